"""Expected result of one step, and by how much rounding may change it.

In float32, the referee's float64 step from the same state is the truth. The tolerance comes from the referee alone. It does
the step again in plain float32, from weights and pixels moved by one unit in the last place. Its means of BatchNorm, and
gradients of convolutions' kernels, err as long sums do. A framework may be `ROUNDING_FACTOR` times as far from the truth as
the farthest of these copies. Three copies may all come close to it by chance. So before a framework is called wrong, more are
made. The larger counts: the farthest of the first three, or the root mean square of all `MOST_COPIES`. ReLU and max-pooling
decide in the copies as they do in float64. If rounding decided otherwise, the referee takes the decision over (see
`decisions`).

In float64 the step of the first framework is the truth, or for a timed run that of the referee.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.models import architectures, work
from common.models.architectures import Architecture, Layer
from common.models.sharding import shard
from common.models.weights import Weights
from common.spec import Optimizer, Spec
from common.training.tracing import SCORED, group, state, state_before
from compare.cli.differences import absolute
from compare.proof import decisions
from compare.proof.decisions import Decider, StepOutcome, Tie
from compare.proof.referee import network
from compare.proof.referee.layers import Array
from compare.proof.referee.network import RefereeBatch

TOLERANCE = 1e-12
"""Tolerance in float64, relative to the largest component of each gradient and statistic."""
COPIES = 3
"""Number of copies of a step in float32. BatchNorm of the first adds in eight lanes, as a vector unit does. That of the others
errs as sums in the worst order do, see `decisions.rough_mean`. The second adds up convolutions' kernels as one thread does."""
MOST_COPIES = 12
"""Number of copies of a step if a framework exceeds the tolerance of the first ones. BatchNorm may see few values. One
direction then carries most of the rounding, and each copy errs by a single random number. Three of these are all small once in
some hundred steps."""
ROUNDING_FACTOR = 8.0
TIE_FACTOR = 2.0
"""Distance from zero, or from another maximum, within that rounding may decide, in errors of the copies (root mean square).
Beyond that lie 2 % of the values that an error of this size would turn."""
MOST_FLOPS = 1.5e11
"""FLOPs to find the ties that a step decided otherwise, where no decisions are recorded. Each takes a step in float64."""
MAX_COMPONENTS = 100_000
"""Number of components of the gradients that find these ties."""
MAX_CACHED_GRADIENTS = 3
"""Number of gradients with recorded decisions that are cached for each step: two of the serial runs, and those of a mode."""
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Relative rounding of one number."""


class Truth(NamedTuple):
    """Expected result of a step, and the largest rounding error of each number or array."""

    step: StepOutcome
    error_limits: StepOutcome
    """Largest errors, given the decisions of `step`."""
    scales: Mapping[str, float]
    """Scale of each gradient, see `_scales`."""
    ties: tuple[Tie, ...] = ()

    def with_gradients(self, gradients: dict[str, Array]) -> Truth:
        return self._replace(step=self.step._replace(gradients=gradients))

    def with_limits(self, gradients: dict[str, Any]) -> Truth:
        """Replace the largest errors of gradients."""
        return self._replace(error_limits=self.error_limits._replace(gradients=gradients))


class Replay(NamedTuple):
    """A truth with the decisions that a run recorded."""

    truth: Truth
    turned: int
    """Number of recorded decisions that differ from the referee's and change a gradient."""
    unexplained: int
    """Number of these that rounding does not explain."""
    fits: bool = True
    """Whether the recorded decisions are those of the model's layers. If not, the truth has the referee's own decisions."""


class Division(NamedTuple):
    """Division of a batch in a step of a run."""

    chains: list[list[Any]]
    """Chains of parts, see `decisions.compute_step`."""
    shards: tuple[tuple[int, int], ...] = ()
    """Bounds of each replica's examples. Empty if gradients are not compressed."""

    @classmethod
    def for_batch(cls, spec: Spec, architecture: Architecture, size: int) -> Division:
        """Return the division of a batch of this size."""
        shards = tuple(shard(size, spec.data_replicas, rank) for rank in range(spec.data_replicas if spec.compresses else 0))
        return cls(_chains(spec, size) if architecture.has_batch_norm else [[np.arange(size)]], shards)

    @property
    def key(self) -> Any:
        return tuple(tuple(map(bytes, chain)) for chain in self.chains), self.shards

    @property
    def parts(self) -> list[Any]:
        return [part for chain in self.chains for part in chain]


class TaughtSteps:
    """Steps whose states and batches a recording holds, computed by the referee.

    Args:
        architecture: the model's architecture.
        teacher: the recording.
        is_timed: whether the recording is of a timed run, which trained all steps before each of these. Then the referee is the
            truth in float64 too.
        max_flops: FLOPs to find the ties that a step decided otherwise.
        stopping: set by another thread to cancel the work. None: an event of its own.
    """

    def __init__(
        self,
        architecture: Architecture,
        teacher: Mapping[str, npt.NDArray[Any]],
        *,
        is_timed: bool = False,
        max_flops: float = MOST_FLOPS,
        stopping: threading.Event | None = None,
    ) -> None:
        self.architecture, self.teacher, self.is_timed, self.max_flops = architecture, teacher, is_timed, max_flops
        self.stopping = stopping or threading.Event()

    def size(self, step: int) -> int:
        """Return the size of a step's batch."""
        return len(self.teacher[f"labels/{step}"])

    def state_before(self, step: int) -> tuple[Weights, dict[str, Weights]]:
        return state_before(self.teacher, step)

    def inputs(self, step: int, dtype: Any, seed: int | None = None) -> tuple[dict[str, Array], RefereeBatch]:
        """Return (weights, batch). With a seed, weights and pixels are moved by one unit in the last place."""
        generator = None if seed is None else np.random.default_rng(seed)

        def cast(array: Any) -> Any:
            return array.astype(dtype) if generator is None else _perturb(array.astype(dtype), generator)

        scaling = self.teacher["pixel_mean"].tolist(), self.teacher["pixel_std"].tolist()
        images = cast(network.scaled(self.teacher[f"images/{step}"], *scaling, dtype))
        masks = [self.teacher[f"masks/{step}/{index}"] for index in range(len(self.architecture.dropouts))]
        weights, _ = self.state_before(step)
        return {name: cast(array) for name, array in weights.items()}, RefereeBatch(
            images, self.teacher[f"labels/{step}"], masks
        )


class StepTruth:
    """Truth of one step and one division of its batch, with all that the referee has computed of it so far.

    Args:
        taught: the steps of the recording that teaches.
        spec: spec of a run with this division.
        step: index of the step, from 0.
        division: the division of the step's batch.
        copies: number of float32 copies that set the tolerances.
    """

    def __init__(self, taught: TaughtSteps, spec: Spec, step: int, division: Division, copies: int = COPIES) -> None:
        self.step, self.division, self.copies = step, division, copies
        self._taught, self._spec = taught, spec
        self.leader = Decider()
        """Decider of the float64 step. The copies follow it."""
        self._first_copy_gradients: dict[str, Array] = {}
        self._replays: dict[bytes, Replay] = {}
        self._terms: dict[str, Array] = {}
        self._effects: dict[Tie, Array] = {}
        """Effect of turning a tie, see `_sampled_change`."""

    @property
    def truth(self) -> Truth:
        """The truth with the referee's own decisions."""
        # In float64 it is quickly read, and too large to be kept.
        return self._float64_truth() if self._spec.precision == "float64" else self._float32_truth

    def _float64_truth(self) -> Truth:
        if self._taught.is_timed:
            true, _ = self._compute(Decider(), np.float64)
            loss, gradients, statistics = float(true.loss), true.gradients, true.statistics
        else:
            teacher = self._taught.teacher
            gradients = self.recorded_gradients(teacher)
            stepped, _ = state(teacher, f"after/{self.step}")
            statistics = {name: array for name, array in stepped.items() if name not in gradients}
            loss = teacher[f"loss/{self.step}"].item()
        scales = _scales(self._taught.architecture, gradients)
        allowed = StepOutcome(
            TOLERANCE * abs(loss),
            {name: TOLERANCE * scales[name] for name in gradients},
            {name: TOLERANCE * float(np.abs(array).max()) for name, array in statistics.items()},
        )
        return Truth(StepOutcome(loss, gradients, statistics), allowed, scales)

    @cached_property
    def _float32_truth(self) -> Truth:
        true, losses = self._compute(self.leader, np.float64)
        copy_steps = self._copies(self.leader, self.copies)
        ties = tuple(self.leader.ties())
        self.leader.forget_values()
        self._first_copy_gradients = copy_steps[0][0].gradients

        def rounding(select: Callable[[StepOutcome], dict[str, Any]]) -> dict[str, float]:
            differences = [_largest_differences(select(true), select(copy_step)) for copy_step, _ in copy_steps]
            return {
                name: ROUNDING_FACTOR * float(rounding_error([difference[name] for difference in differences]))
                for name in select(true)
            }

        logits_rounding = float(rounding_error([np.abs(copy_step.logits - true.logits).max() for copy_step, _ in copy_steps]))
        limits = StepOutcome(
            _loss_error(true, losses, copy_steps),
            rounding(lambda outcome: outcome.gradients),
            rounding(lambda outcome: outcome.statistics),
            logits=ROUNDING_FACTOR * (logits_rounding + UNIT["float32"] * float(np.abs(true.logits).max())),
        )
        return Truth(true, limits, _scales(self._taught.architecture, true.gradients), ties)

    @cached_property
    def loss(self) -> tuple[float, float]:
        """(loss of the float32 step, its largest rounding error)."""
        leader = Decider()
        true, losses = self._compute(leader, np.float64, forward_only=True)
        return true.loss, _loss_error(true, losses, self._copies(leader, MOST_COPIES, forward_only=True))

    def _copies(self, leader: Decider, number: int, *, forward_only: bool = False) -> list[tuple[StepOutcome, Array]]:
        """Compute float32 copies of the step, which decide as the leader. The first `COPIES` measure its ties."""
        copies = [self._compute(Decider(leader), np.float32, 0, forward_only=forward_only)]
        for seed in range(number - 1):
            resum = decisions.term_after_term if seed == 0 else None
            decider = Decider(leader, mean_of=decisions.rough_mean(seed), resum=resum, measures=seed < COPIES - 1)
            copies.append(self._compute(decider, np.float32, seed + 1, forward_only=forward_only))
        return copies

    @cached_property
    def evaluation(self) -> tuple[Array, Array, float]:
        """(logits and losses of some images before the step in evaluation mode, largest rounding error of a logit)."""
        seeds = [(np.float64, None), *((np.float32, seed) for seed in range(self.copies))]
        (logits, losses), *copies = (
            decisions.score_in_evaluation(
                self._taught.architecture, weights, RefereeBatch(batch.images[:SCORED], batch.labels[:SCORED], [])
            )
            for weights, batch in (self._taught.inputs(self.step, dtype, seed) for dtype, seed in seeds)
        )
        rounding = float(rounding_error([np.abs(copy_logits - logits).max() for copy_logits, _ in copies]))
        return logits, losses, ROUNDING_FACTOR * (rounding + UNIT["float32"] * float(np.abs(logits).max()))

    def recorded_gradients(self, recorded: Mapping[str, npt.NDArray[Any]]) -> dict[str, Array]:
        """Compute the gradients of a recorded step from its optimizer state."""
        (weights, before), (_, after) = self._taught.state_before(self.step), state(recorded, f"after/{self.step}")
        slot, factor, share = gradient_slot(self._spec.optimizer)
        return {
            name: (np.asarray(after[slot][name], np.float64) - factor * np.asarray(before[slot][name], np.float64)) / share
            - self._spec.optimizer.weight_decay * np.asarray(weights[name], np.float64)
            for name in before[slot]
        }

    def with_term_limits(self, arrays: Collection[str]) -> Truth:
        """Widen the tolerance of these gradients to the sum of their absolute terms."""
        if any(name not in self._terms for name in arrays):  # those of all kernels are as large as the model
            inputs = self._taught.inputs(self.step, np.float64)
            self._terms |= decisions.absolute_terms(self._taught.architecture, *inputs, self.division.chains, arrays)
        truth = self.truth
        return truth.with_limits(truth.error_limits.gradients | {name: TOLERANCE * self._terms[name] for name in arrays})

    @cached_property
    def with_any_decision(self) -> Truth:
        """The truth with tolerances of gradients that cover any decision of the ties."""
        truth = self.truth
        near_ties = [tie for tie in truth.ties if tie.nearness <= TIE_FACTOR]
        coins = np.random.default_rng(1).random(len(near_ties)) < 0.5
        # One copy tosses a coin at each tie, the other decides the opposite.
        halves = [[tie for tie, coin in zip(near_ties, coins, strict=True) if coin == heads] for heads in (True, False)]
        deciders = (self.leader.follower(turned) for turned in halves if turned)
        tossed = [self._compute(decider, np.float32, seed)[0] for seed, decider in enumerate(deciders)]
        differences = [_largest_differences(truth.step.gradients, outcome.gradients) for outcome in tossed]
        limits = {
            name: limit + TIE_FACTOR * max((difference[name] for difference in differences), default=0.0)
            for name, limit in truth.error_limits.gradients.items()
        }
        return truth.with_limits(limits)

    def with_recorded_decisions(self, recorded: Mapping[str, npt.NDArray[Any]], dtype: Any) -> Replay | None:
        """Take over the decisions that a run recorded. None: it recorded none.

        In float32, the change by these decisions comes from a pass with the first copy's inputs.
        """
        recorded_arrays = group(recorded, f"decisions/{self.step}/")
        arrays = [recorded_arrays[str(number)] for number in range(len(recorded_arrays))]
        truth = self.truth
        if not arrays:
            return None
        digest = hashlib.sha256(b"".join(map(bytes, arrays))).digest() + np.dtype(dtype).str.encode()
        if digest not in self._replays:  # often the same in several recordings
            followed = self.leader.follow_recording(arrays, self.division.parts)
            if followed is None:
                return Replay(truth, 0, 0, fits=False)
            while len(self._replays) >= MAX_CACHED_GRADIENTS:
                del self._replays[next(iter(self._replays))]
            follower, turned, unexplained = followed
            gradients = self._compute(follower, dtype, seed=0 if dtype == np.float32 else None)[0].gradients
            if dtype == np.float32:
                first = self._first_copy_gradients
                changes = {name: np.subtract(array, first[name], dtype=np.float64) for name, array in gradients.items()}
                gradients = {name: array + changes[name] for name, array in truth.step.gradients.items()}
            self._replays[digest] = Replay(truth.with_gradients(gradients), turned, unexplained)
        return self._replays[digest]

    def with_found_ties(self, recorded_gradients: Mapping[str, Array]) -> Replay | None:
        """Take over the decisions of ties that explain float32 gradients, where a run records no decisions.

        None: the nearest ties do not explain the gradients, and there are too many to try all.
        """
        truth = self.truth
        flops = work.count(self._taught.architecture).flops * self._taught.size(self.step)
        nearest = sorted(truth.ties, key=lambda tie: tie.nearness)[: int(self._taught.max_flops // flops)]
        replay, limits = Replay(truth, 0, 0), truth.error_limits.gradients
        for reach in (TIE_FACTOR, decisions.REACH):
            ties = sorted(tie for tie in nearest if tie.nearness <= reach)
            if ties and (turned := self.explaining_ties(recorded_gradients, ties)):
                gradients = self.gradients_with(turned)
                replay = Replay(truth.with_gradients(gradients), len(turned), 0)
                if all(float(absolute(gradients[name], recorded_gradients[name]).max()) <= limits[name] for name in limits):
                    return replay
        return replay if len(nearest) == len(truth.ties) else None

    def gradients_with(self, turned: Sequence[Tie]) -> dict[str, Array]:
        """Compute the gradients with some ties decided otherwise."""
        return self._compute(self.leader.follower(turned), np.float64)[0].gradients

    def explaining_ties(self, recorded_gradients: Mapping[str, Array], ties: Sequence[Tie]) -> list[Tie]:
        """Return the ties that explain the gradients if the recorded step decided them otherwise than the referee."""
        self._effects |= {tie: self._sampled_change(self.gradients_with([tie])) for tie in ties if tie not in self._effects}
        effects = np.stack([self._effects[tie] for tie in ties])
        return decisions.explaining_ties(self._sampled_change(recorded_gradients), effects, ties)

    def _sampled_change(self, gradients: Mapping[str, Array]) -> Array:
        """Sample the differences of all gradients from the truth, each in units of its rounding error."""
        expected, limits = self.truth.step.gradients, self.truth.error_limits.gradients
        stride = max(1, sum(array.size for array in expected.values()) // MAX_COMPONENTS)
        tiny = np.finfo(np.float32).tiny
        strides = {name: stride if array.size > MAX_COMPONENTS // 100 else 1 for name, array in expected.items()}
        changes = [
            (gradients[name] - array).ravel()[:: strides[name]] / max(limits[name], tiny) for name, array in expected.items()
        ]
        return np.concatenate(changes).astype(np.float32)

    def _compute(
        self, decider: Decider, dtype: Any, seed: int | None = None, *, forward_only: bool = False
    ) -> tuple[StepOutcome, Array]:
        """Compute the referee's step, see `decisions.compute_step`. For the seed, see `TaughtSteps.inputs`."""
        if self._taught.stopping.is_set():
            raise CancelledError
        inputs, (chains, shards) = self._taught.inputs(self.step, dtype, seed), self.division
        return decisions.compute_step(self._taught.architecture, *inputs, chains, decider, shards, forward_only=forward_only)


def gradient_slot(settings: Optimizer) -> tuple[str, float, float]:
    """Return (the optimizer's slot that adds up gradients, the factor of its old value, the share of a new gradient)."""
    return ("mean", settings.beta_1, 1.0 - settings.beta_1) if settings.name == "adam" else ("buffer", settings.momentum, 1.0)


def _loss_error(true: StepOutcome, losses: Array, copy_steps: Sequence[tuple[StepOutcome, Array]]) -> float:
    """Return the largest rounding error of a step's loss: errors of its examples' losses need not cancel."""
    errors = [float(np.abs(other - losses).mean()) for _, other in copy_steps]
    return float(loss_limit(errors, true.loss, UNIT["float32"]))


def _largest_differences(truth: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, float]:
    """Return the largest difference of each array."""
    return {name: float(np.abs(other[name] - array).max()) for name, array in truth.items()}


def loss_limit(errors: npt.ArrayLike, loss: npt.ArrayLike, unit: float) -> npt.NDArray[np.floating]:
    """Return the largest error of losses that rounding explains.

    Args:
        errors: [copies, ...] absolute errors of the losses of copies that are moved by one unit in the last place.
        loss: [...] losses.
        unit: relative rounding of one loss.
    """
    return ROUNDING_FACTOR * (rounding_error(errors) + unit * np.abs(loss))


def rounding_error(errors: npt.ArrayLike) -> npt.NDArray[np.floating]:
    """Return the rounding error, [...], from the errors of copies, [copies, ...].

    It is the largest of the first `COPIES`, or the root mean square of all if that is larger.
    """
    copies = np.asarray(errors)
    return np.maximum(copies[:COPIES].max(axis=0), np.sqrt(np.square(copies).mean(axis=0)))


def _chains(spec: Spec, size: int) -> list[list[npt.NDArray[np.int64]]]:
    """Return the positions that BatchNorm sees together: by replica with its own statistics, then by micro-batch."""
    parts = spec.micro_batches(size)
    shards = [np.arange(*shard(size, spec.data_replicas, rank)) for rank in range(spec.data_replicas)]
    parts_by_replica = [np.split(positions, parts) for positions in shards]
    if spec.batch_norm_statistics == "synchronised":
        return [[np.concatenate(parts_of_all) for parts_of_all in zip(*parts_by_replica, strict=True)]]
    return [list(positions) for positions in parts_by_replica]


def _perturb(array: Array, generator: np.random.Generator) -> Array:
    """Move every value one unit in the last place up or down.

    A zero stays. Its neighbours are subnormal numbers, which change no sum and make BLAS ten times as slow.
    """
    up = generator.random(array.shape, np.float32) < 0.5
    perturbed = np.nextafter(array, np.where(up, array.dtype.type(np.inf), array.dtype.type(-np.inf)))
    return np.where(array == 0, array, perturbed)


def _scales(architecture: Architecture, gradients: dict[str, Array]) -> dict[str, float]:
    """Return the largest component of each gradient. A bias without effect has the scale of its layer's kernel."""
    scales = {name: float(np.abs(gradient).max()) for name, gradient in gradients.items()}
    return scales | {
        name: scales[f"{name.removesuffix('bias')}kernel"] for name in biases_cancelled_by_batch_norm(architecture)
    }


def biases_cancelled_by_batch_norm(architecture: Architecture) -> dict[str, str]:
    """Return the biases in front of BatchNorm, which subtracts them with the mean. Each with the name of its BatchNorm.

    In exact arithmetic such a bias has no gradient: its terms add up to zero. What is left is the rounding of this sum.
    """
    trained = {parameter.name for parameter in architecture.parameters()}

    def last_layers(layer: Layer) -> Iterator[Layer]:
        """Yield the layers whose outputs are the output of a layer, are added up to it, or are concatenated to it."""
        branches = architectures.branches(layer)
        for branch in branches if not getattr(layer, "relu", False) else ():
            yield from last_layers(branch[-1]) if branch else ()
        if not branches:
            yield layer

    def layers_before_batch_norm(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, str]]:
        for first, second in itertools.pairwise(layers):
            if isinstance(second, architectures.BatchNorm):
                yield from ((output_layer, second.name) for output_layer in last_layers(first))
        for layer in layers:
            for branch in (layer.layers,) if isinstance(layer, architectures.Opaque) else architectures.branches(layer):
                yield from layers_before_batch_norm(branch)

    biases = {f"{layer.name}.bias": following for layer, following in layers_before_batch_norm(architecture.layers)}
    return {name: following for name, following in biases.items() if name in trained}
