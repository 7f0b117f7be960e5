"""The decisions of ReLU and max-pooling in the referee's passes. Rounding may take some otherwise, and gradients then jump.

A value next to zero, or two almost equal maxima, is a tie. The leader is the pass in float64. Other passes follow its
decisions, except at the ties that are turned in them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.models.architectures import Architecture, BatchNorm, Conv, Dense, Dropout, Layer, MaxPool
from common.training.tracing import unpack
from compare.proof.referee import layers, network
from compare.proof.referee.layers import Array, Backward
from compare.proof.referee.network import Network, RefereeBatch

REACH = 8.0
"""Largest distance of a tie from zero, or from another maximum, in errors of the copies (root mean square)."""
RECORDED_REACH = 8 * REACH
"""`REACH` for a decision that a framework recorded: it may be eight times as far from the truth as the copies."""

MAX_TERMS = 2**21
"""Number of terms of one place of a kernel that `term_after_term` adds: some ten milliseconds."""
EQUAL_MAXIMA = 1e-12
"""Relative difference below which two maxima come of equal inputs. Whichever wins, the gradient is the same."""


class StepOutcome(NamedTuple):
    """Result of one step, or the largest error of each part of it."""

    loss: float
    gradients: dict[str, Any]
    statistics: dict[str, Any]
    logits: Any = None
    """Logits [N, classes] in training mode, with the parts one after the other. As an error: one number for all."""
    labels: Any = None
    """Labels, int64 [N], in the order of the logits."""


class Tie(NamedTuple):
    """A decision that rounding may turn."""

    point: int
    """Index of the point among those where a step decides."""
    place: int
    """Index into the flat array of this point's decisions."""
    other_decision: int
    """Decision if the tie is turned."""
    nearness: float
    """Distance from the other decision, in errors of the copies. At most `REACH`."""
    windows: tuple[tuple[int, int], ...] = ()
    """(place, other decision) of windows of the pooling behind a ReLU whose values were all zero. A value that passes the ReLU
    becomes their maximum."""

    def changes_at(self, point: int) -> tuple[tuple[int, int], ...]:
        """Return (place, decision) for each decision that this tie turns at a point."""
        return ((self.place, self.other_decision),) if point == self.point else self.windows if point == self.point + 1 else ()


@dataclass
class _DecisionPoint:
    """A ReLU or a max-pooling of a pass: its input values, and the leader's decisions."""

    values: Array
    decisions: Any
    layer: MaxPool | None
    errors: list[Any] = field(default_factory=list[Any])
    """Root mean square error of each copy, by channel. Values without error, such as zeros behind a ReLU, do not count."""
    half_error_distances: Any = None
    """Distance from each other decision in halves of an error, uint8, at most 255. It replaces the values."""

    def measure(self, x: Array) -> None:
        """Note the error of a copy's values. At a pooling, the error of the differences within a window."""
        error = x - self.values
        if self.layer is not None:
            error = layers.windows(error, self.layer.kernel_size, self.layer.stride, self.layer.padding)
            error = np.where(np.isfinite(error), error, 0.0)  # the padding never wins
            error = error - np.take_along_axis(error, self.decisions.astype(np.int64), 3)
        axes = tuple(range(error.ndim - 1))
        self.errors.append(np.sqrt(np.square(error).sum(axes) / np.maximum(np.count_nonzero(error, axes), 1)))

    def ties(self, number: int) -> list[Tie]:
        """Return the ties of this point, after the copies have passed. Equal values come of equal inputs, and are no tie."""
        nearness = self._nearness()
        self.half_error_distances = np.minimum(np.ceil(2 * nearness), 255).astype(np.uint8)
        point_ties: list[Tie] = []
        for other in range(nearness.shape[3] if self.layer else 1):
            distances = nearness[:, :, :, other] if self.layer else nearness
            for place in map(int, np.flatnonzero((distances > 0) & (distances <= REACH))):
                decision = other if self.layer else int(not self.decisions.flat[place])
                point_ties.append(Tie(number, place, decision, float(distances.flat[place])))
        return point_ties

    def _nearness(self) -> Array:
        """Return the distance from each other decision in errors: from each value of a window, or from zero at a ReLU."""
        error = np.maximum(np.max(self.errors, axis=0), np.finfo(np.float64).tiny)
        if self.layer is None:
            return np.abs(self.values) / error
        flat = layers.windows(self.values, self.layer.kernel_size, self.layer.stride, self.layer.padding)
        best = np.take_along_axis(flat, self.decisions.astype(np.int64), 3)
        return np.where(best - flat > EQUAL_MAXIMA * np.abs(best), best - flat, 0.0) / error

    def count_differences(self, decisions: Any) -> tuple[int, int]:
        """Return (number of decisions that differ and change a gradient; number of these that rounding does not explain)."""
        distances = (
            self.half_error_distances
            if self.layer is None
            else np.take_along_axis(self.half_error_distances, decisions.astype(np.int64), 3)
        )
        distances = distances[(decisions != self.decisions) & (distances > 0)]
        return len(distances), int((distances > 2 * RECORDED_REACH).sum())

    def zero_windows(self, place: int) -> tuple[tuple[int, int], ...]:
        """Return (place, decision) of each window that holds this value, if no value of the window is above zero."""
        layer, (_, height, width, channels) = self.layer, self.decisions.shape[:3] + self.decisions.shape[4:]
        assert layer is not None, "only a pooling has windows"
        image, *position, channel = np.unravel_index(place, self.values.shape)
        if self.values[image, *position, channel] != 0:
            return ()  # another layer stands between
        (top, _), (left, _) = layer.padding
        windows: list[tuple[int, int]] = []
        for a, b in np.ndindex(layer.kernel_size, layer.kernel_size):
            (row, row_rest), (column, column_rest) = (
                divmod(position[0] + top - a, layer.stride),
                divmod(position[1] + left - b, layer.stride),
            )
            if row_rest or column_rest or not (0 <= row < height and 0 <= column < width):
                continue
            origin = row * layer.stride - top, column * layer.stride - left
            rows, columns = (slice(max(start, 0), start + layer.kernel_size) for start in origin)
            if self.values[image, rows, columns, channel].max() <= 0:
                window = np.ravel_multi_index((image, row, column, channel), (len(self.values), height, width, channels))
                windows.append((int(window), a * layer.kernel_size + b))
        return tuple(windows)


class Decider:
    """Makes the decisions of a step.

    Args:
        leader: decider whose decisions this one takes. None: it decides by its own values.
        turned_ties: ties that it decides otherwise than the leader.
        mean_of: function for BatchNorm's mean.
        resum: function that adds up the gradient of a convolution's kernel, see `term_after_term`.
        measures: whether it measures how near the leader's ties are. It does not if it turns any.
    """

    def __init__(
        self,
        leader: Decider | None = None,
        turned_ties: Sequence[Tie] = (),
        mean_of: Callable[[Array], Array] = layers.mean,
        resum: Callable[[Array, Array, Array], Array] | None = None,
        *,
        measures: bool = True,
    ) -> None:
        self.mean_of, self.resum = mean_of, resum
        self.points: list[_DecisionPoint] = [] if leader is None else leader.points
        self._is_leader, self._measures = leader is None, measures and not turned_ties
        self._turned_ties = turned_ties
        self._next = 0
        self.recorded_decisions: dict[int, Any] = {}
        """Point: decisions of a framework there."""

    def ties(self) -> list[Tie]:
        """Return all ties of the leader's step, after its copies have passed."""
        all_ties: list[Tie] = []
        for number, (point, next_point) in enumerate(itertools.zip_longest(self.points, self.points[1:])):
            ties = point.ties(number)
            if point.layer is None and next_point and next_point.layer and next_point.values.shape == point.values.shape:
                ties = [tie._replace(windows=next_point.zero_windows(tie.place)) if tie.other_decision else tie for tie in ties]
            all_ties += ties
        return all_ties

    def follower(self, turned_ties: Sequence[Tie] = ()) -> Decider:
        """Return a decider that takes this one's decisions and measures nothing."""
        return Decider(self, turned_ties, measures=False)

    def follow_recording(
        self, recorded: Sequence[npt.NDArray[np.int64]], parts: Sequence[Any]
    ) -> tuple[Decider, int, int] | None:
        """Return (follower of a framework's decisions; number that differ; number of these that rounding does not explain).

        Args:
            recorded: by layer, decisions of the whole batch, see `tracing.pack`.
            parts: the positions of each part of the batch, in the order that they pass.

        Returns:
            None: nothing that fits was recorded.
        """
        points_per_part, follower, num_turned, num_unexplained = len(self.points) // len(parts), self.follower(), 0, 0
        if len(recorded) != points_per_part:
            return None
        for layer, packed in enumerate(recorded):
            points = self.points[layer::points_per_part]
            decisions = unpack(packed, (sum(map(len, parts)), *points[0].decisions.shape[1:]), points[0].decisions.dtype)
            kinds = 2 if points[0].layer is None else points[0].layer.kernel_size ** 2
            if decisions is None or not (decisions.min() >= 0 and decisions.max() < kinds):
                return None
            for part, (positions, point) in enumerate(zip(parts, points, strict=True)):
                num_differing, num_beyond = point.count_differences(decisions[positions])
                num_turned, num_unexplained = num_turned + num_differing, num_unexplained + num_beyond
                follower.recorded_decisions[part * points_per_part + layer] = decisions[positions]
        return follower, num_turned, num_unexplained

    def forget_values(self) -> None:
        """Free the values. The decisions stay, and the distances from the others."""
        for point in self.points:
            point.values = np.zeros(0)

    def decide(self, x: Array, layer: MaxPool | None = None) -> Any:
        """Return which values pass a ReLU, or which value each window of a pooling takes."""
        number, self._next = self._next, self._next + 1
        if self._is_leader:
            decisions = x > 0
            if layer is not None:
                flat = layers.windows(x, layer.kernel_size, layer.stride, layer.padding)
                decisions = flat.argmax(3)[:, :, :, None].astype(np.int16)
            self.points.append(_DecisionPoint(x, decisions, layer))
            return decisions
        if number in self.recorded_decisions:
            return self.recorded_decisions[number]
        point = self.points[number]
        if self._measures:
            point.measure(x)
        changes = [turn for tie in self._turned_ties for turn in tie.changes_at(number)]
        return replace_decisions(point.decisions, changes) if changes else point.decisions


def replace_decisions(decisions: Any, changes: Sequence[tuple[int, int]]) -> Any:
    """Return decisions with other ones at some places."""
    decisions = decisions.copy()
    for index, decision in changes:
        decisions.flat[index] = decision
    return decisions


class _DeciderPass(Network):
    """Pass whose decisions come from a decider."""

    def __init__(self, weights: Any, batch: RefereeBatch, decider: Decider) -> None:
        super().__init__(weights, batch)
        self._decider = decider
        self.terms: dict[str, Array] | None = None
        """Parameter: sum of the absolute values that its gradient adds up. The backward pass computes these in place of
        gradients. None: it computes gradients."""
        self.kernels_with_terms: Collection[str] = ()
        """Kernels whose absolute terms are computed."""
        self.replica_rows: Sequence[npt.NDArray[np.int64]] = ()
        """Indices of each replica's examples in this part of the batch. Its share of every gradient is computed too."""

    def _layer(self, layer: Layer, x: Array) -> tuple[Array, Backward]:
        backward: Any  # that of a convolution can leave out dL/dkernel
        if isinstance(layer, Conv) and layer.groups > 1:
            y, backward = _image_by_image(partial(super()._layer, layer), x)
        else:
            y, backward = super()._layer(layer, x)

        def gradients(dy: Array) -> tuple[Array, dict[str, Array]]:
            dx, by_role = backward(dy)
            if self._decider.resum is not None and isinstance(layer, Conv) and layer.groups == 1:
                by_role["kernel"] = self._resummed(self._decider.resum, layer, by_role["kernel"], saved, dy)
            return dx, by_role

        # The output of a convolution is not needed behind its BatchNorm, and would be half of a pass's memory.
        saved: Any = y if isinstance(layer, BatchNorm) else x if isinstance(layer, Conv | Dense) else None

        def outer_backward(dy: Array) -> tuple[Array, dict[str, Array]]:
            if self.terms is None:
                dx, by_role = gradients(dy)
                shares: dict[str, Array] = {}
                for rank, rows in enumerate(self.replica_rows if by_role else ()):
                    share = by_role if len(rows) == len(dy) else gradients(_only_rows(dy, rows))[1] if len(rows) else {}
                    shares |= {share_name(role, rank): array for role, array in share.items()}
                return dx, by_role | shares
            self.terms |= {f"{layer.name}.{role}": terms for role, terms in self._terms(layer, saved, dy).items()}
            return backward(dy, with_kernel=False) if isinstance(layer, Conv) else backward(dy)

        return y, outer_backward

    @staticmethod
    def _resummed(resum: Callable[[Array, Array, Array], Array], layer: Conv, kernel: Array, x: Array, dy: Array) -> Array:
        views = layers.views(x, layer.padding, 0.0, layer.kernel_size, layer.stride)
        places = np.ndindex(layer.kernel_size, layer.kernel_size)
        return np.stack([resum(kernel[a, b], views[:, :, :, a, b], dy) for a, b in places]).reshape(kernel.shape)

    def _terms(self, layer: Layer, saved: Any, dy: Array) -> dict[str, Array]:
        """Return absolute terms by role. `saved` is the output of a BatchNorm, and the input of a layer with a kernel."""
        axes = tuple(range(dy.ndim - 1))
        if isinstance(layer, BatchNorm):
            gamma, terms = self._array(layer, "gamma"), np.abs(dy)
            normal = saved - self._array(layer, "beta")
            np.divide(normal, np.where(gamma == 0, np.inf, gamma), out=normal)
            beta = terms.sum(axes)
            terms *= np.abs(normal, out=normal)
            return {"gamma": terms.sum(axes), "beta": beta}
        if not isinstance(layer, Conv | Dense):
            return {}
        by_role = {"bias": np.abs(dy).sum(axes)} if isinstance(layer, Dense) or layer.bias else {}
        if f"{layer.name}.kernel" in self.kernels_with_terms:
            by_role |= super()._layer(layer, np.abs(saved))[1](np.abs(dy))[1]
        return by_role

    def relu(self, x: Array) -> tuple[Array, Backward]:
        decisions = self._decider.decide(x)
        # A product with truth values takes four times as long in float64.
        return x * decisions.astype(x.dtype), lambda dy: (dy * decisions.astype(dy.dtype), {})

    def max_pooling(self, layer: MaxPool, x: Array) -> tuple[Array, Backward]:
        decisions = self._decider.decide(x, layer).astype(np.int64)
        return layers.max_pooling(x, layer.kernel_size, layer.stride, layer.padding, decisions)


def _image_by_image(convolve: Callable[[Array], tuple[Array, Any]], x: Array) -> tuple[Array, Any]:
    """Convolve in groups, image by image. The products are small, and nine passes over a large batch would wait for memory."""
    passes = [convolve(x[image : image + 1]) for image in range(len(x))]

    def backward(dy: Array, **options: Any) -> tuple[Array, dict[str, Array]]:
        results = [image_backward(dy[image : image + 1], **options) for image, (_, image_backward) in enumerate(passes)]
        summed = {role: np.sum([gradients[role] for _, gradients in results], axis=0) for role in results[0][1]}
        return np.concatenate([dx for dx, _ in results]), summed

    return np.concatenate([y for y, _ in passes]), backward


def share_name(name: str, rank: int) -> str:
    """Return the name of a replica's share of a gradient: the part that its own examples add."""
    return f"{name}@{rank}"


def _only_rows(dy: Array, rows: npt.NDArray[np.int64]) -> Array:
    masked = np.zeros_like(dy)
    masked[rows] = dy[rows]
    return masked


def compute_step(
    architecture: Architecture,
    weights: dict[str, Array],
    batch: RefereeBatch,
    chains: list[list[Any]],
    decider: Decider,
    shards: Sequence[tuple[int, int]] = (),
    *,
    forward_only: bool = False,
) -> tuple[StepOutcome, Array]:
    """Compute (outcome of a step on a batch whose parts pass one by one; each example's loss).

    Args:
        architecture: the model's architecture.
        weights: weights before the step.
        batch: the whole batch.
        chains: positions in the batch of each part of each chain. The parts of a chain pass on their BatchNorm statistics.
            Those of the first chain are returned.
        decider: decider of all parts.
        shards: bounds of each replica's positions. Then the gradients hold the share of each replica too, see `share_name`.
        forward_only: whether to leave out gradients.
    """
    gradients, loss, size = dict[str, Array](), 0.0, len(batch.labels)
    statistics: dict[str, Array] = {}
    losses: list[Any] = []
    logits: list[Array] = []
    targets: list[npt.NDArray[np.int64]] = []
    for number, chain in enumerate(chains):
        state = dict(weights)
        passes = _passes(architecture, state, batch, chain, decider)
        for positions, (network_pass, part_logits, labels, backward, dlogits) in zip(chain, passes, strict=True):
            network_pass.replica_rows = [np.flatnonzero((positions >= low) & (positions < high)) for low, high in shards]
            if not forward_only:
                backward(dlogits)
            for name, gradient in network_pass.gradients.items():
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
            loss += float(layers.cross_entropy(part_logits, labels)[0]) * len(labels) / size
            losses += _losses(part_logits, labels)
            logits.append(part_logits)
            targets.append(labels)
        if number == 0:
            statistics = {name: array for name, array in state.items() if name not in gradients}
    return StepOutcome(loss, gradients, statistics, np.concatenate(logits), np.concatenate(targets)), np.array(losses)


def _losses(logits: Array, labels: npt.NDArray[np.int64]) -> list[Any]:
    """Return the loss of each example."""
    return [layers.cross_entropy(row[None], labels[i : i + 1])[0] for i, row in enumerate(logits)]


def score_in_evaluation(architecture: Architecture, weights: dict[str, Array], batch: RefereeBatch) -> tuple[Array, Array]:
    """Return (logits [N, classes], losses [N]) in evaluation mode: BatchNorm with its running statistics, and no dropout."""
    evaluation = _EvaluationPass(weights, batch)
    evaluation.constants = network.BATCH_NORM.get(architecture.name)
    logits, _ = evaluation.through(architecture.layers, batch.images)
    return logits, np.array(_losses(logits, batch.labels))


class _EvaluationPass(Network):
    """Forward pass in evaluation mode."""

    def _layer(self, layer: Layer, x: Array) -> tuple[Array, Backward]:
        return (x, _no_backward) if isinstance(layer, Dropout) else super()._layer(layer, x)

    def _batch_norm(self, layer: BatchNorm, x: Array) -> tuple[Array, Backward]:
        epsilon, _ = self.constants or (layer.epsilon, None)
        gamma, beta, mean, variance = (self._array(layer, role) for role in ("gamma", "beta", "mean", "variance"))
        return gamma * (x - mean) / np.sqrt(variance + x.dtype.type(epsilon)) + beta, _no_backward


def _no_backward(dy: Array) -> tuple[Array, dict[str, Array]]:
    raise TypeError("a pass in evaluation mode has no gradients")


def absolute_terms(
    architecture: Architecture,
    weights: dict[str, Array],
    batch: RefereeBatch,
    chains: list[list[Any]],
    kernels: Collection[str],
) -> dict[str, Array]:
    """Return for each parameter the sum of the absolute values that its gradient adds up.

    For the arguments, see `compute_step`.

    Args:
        kernels: kernels whose terms are computed. All other parameters are small, and are always computed.
    """
    terms: dict[str, Array] = {}
    decider = Decider()
    for chain in chains:
        for network_pass, _, _, backward, dlogits in _passes(architecture, dict(weights), batch, chain, decider):
            network_pass.terms, network_pass.kernels_with_terms = {}, kernels
            backward(dlogits)
            terms |= {name: terms.get(name, 0) + array for name, array in network_pass.terms.items()}
    return terms


def _passes(
    architecture: Architecture, state: dict[str, Array], batch: RefereeBatch, chain: list[Any], decider: Decider
) -> Iterator[tuple[_DeciderPass, Array, npt.NDArray[np.int64], Backward, Array]]:
    """Yield (pass, logits, labels, backward function, gradient of the batch's loss) of each part.

    Statistics go into `state`.
    """
    for positions in chain:
        part = RefereeBatch(batch.images[positions], batch.labels[positions], [mask[positions] for mask in batch.masks])
        network_pass = _DeciderPass(state, part, decider)
        network_pass.mean_of = decider.mean_of
        network_pass.constants = network.BATCH_NORM.get(architecture.name)
        logits, backward = network_pass.through(architecture.layers, part.images)
        _, dlogits = layers.cross_entropy(logits, part.labels)
        yield network_pass, logits, part.labels, backward, dlogits * dlogits.dtype.type(len(positions) / len(batch.labels))
        state |= network_pass.statistics


def rough_mean(seed: int) -> Callable[[Array], Array]:
    """Return a mean over every axis but the last that errs as plain float32 sums may, up or down at random for each channel.

    The error is the largest of several orders of adding, term after term among them. In any order the sum of n terms errs by at
    most n units, and by about the root of n if rounding is random. Equal terms, such as the pixels of a black border, all round
    to the same side. The error then grows with n, and its sign depends on the order.
    """
    generator = np.random.default_rng(seed)

    def mean(x: Array) -> Array:
        flat = x.reshape(-1, x.shape[-1])
        true = flat.mean(0, np.float64)
        mixed = flat[np.random.default_rng(0).permutation(len(flat))]
        errors = [np.abs(layers.mean(rows, lanes) - true) for rows in (flat, flat[::-1], mixed) for lanes in (1, 2)]
        return (true + np.max(errors, axis=0) * generator.choice((-1.0, 1.0), len(true))).astype(x.dtype)

    return mean


def term_after_term(product: Array, x: Array, y: Array, max_terms: int = MAX_TERMS) -> Array:
    """Return x^T y [C, O] as one thread of a framework may add it up: all images and pixels into one sum.

    BLAS adds in blocks, whose errors cancel. In one long sum, equal terms all round to the same side, such as those of a plain
    background. Some columns are added up like this, evenly spread: as many as `max_terms` allows, one at least.

    Args:
        product: x^T y as BLAS adds it up.
        x, y: arrays [N, H, W, C] and [N, H, W, O].
        max_terms: number of terms of one place of a kernel that are added up.
    """
    left, right = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    every = math.ceil(right.shape[1] / max(1, max_terms // left.size))
    columns = right[:, ::every]
    total = np.zeros((left.shape[1], columns.shape[1]), product.dtype)
    at_once = max(1, max_terms // total.size)
    for start in range(0, len(left), at_once):
        terms = left[start : start + at_once, :, None] * columns[start : start + at_once, None]
        terms[0] += total
        total = terms.sum(0)  # NumPy adds along the first axis one after the other
    summed = product.copy()
    summed[:, ::every] = total
    return summed


def explaining_ties(residual: Array, effects: Array, ties: Sequence[Tie]) -> list[Tie]:
    """Return the ties whose effects together explain an array.

    The start is the rounded least-squares solution: effects of ties in one channel are alike. Then the tie that explains most
    of what is left is turned, or turned back, until none explains more than rounding.

    Args:
        residual: array to explain, [P], in units of the rounding error.
        effects: effect of each tie, [K, P], in the same units.
        ties: the K ties.
    """
    sizes = np.square(effects).sum(1)
    shares = np.linalg.lstsq(effects @ effects.T, effects @ residual, rcond=None)[0]
    signs = np.where((shares > 0.5) & (sizes > 1), np.float32(-1), np.float32(1))
    rest = residual - effects[signs < 0].sum(0)
    for _ in range(4 * len(ties)):
        gains = 2 * signs * (effects @ rest) - sizes
        best = int(gains.argmax())
        if gains[best] <= 1:
            break
        rest -= signs[best] * effects[best]
        signs[best] = -signs[best]
    return [tie for tie, sign in zip(ties, signs, strict=True) if sign < 0]
