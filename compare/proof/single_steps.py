"""One step of training from the same state, judged against the referee.

Both frameworks load the same weights, BatchNorm statistics and optimizer state. They take the same batch and do one step with
the kernels that are timed. Nothing that happened earlier counts, so little can hide behind rounding. Each parameter and each
statistic is judged on its own scale.

In float32, the referee's float64 step from the same state is the truth. The tolerance comes from the referee alone. It does the
step again in plain float32, which adds one term after the other, from weights and pixels moved by one unit in the last place.
A framework may be `ROUNDING_FACTOR` times as far from the truth as the farthest of these copies. ReLU and max-pooling decide in
them as they do in float64. Where rounding could decide otherwise, two more copies try both decisions.

In float64 each step is compared with that of the first framework, within `TOLERANCE`. Where that fails, the referee says what
rounding alone may do: the error of its float32 copies, times the ratio of the two units in the last place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common import spec
from common.data.batches import Plan
from common.models import architectures
from common.models.architectures import Architecture, MaxPool
from common.models.sharding import shard
from common.spec import Spec
from common.training.tracing import group, state, state_before
from compare.core.differences import absolute
from compare.proof.certificate import Rung
from compare.proof.differences import Arrays, rung
from compare.proof.referee import layers, network, training
from compare.proof.referee.layers import Array, Backward
from compare.proof.referee.network import Batch, Network

TOLERANCE = 1e-12
"""In float64, of the largest component of each gradient and statistic."""
MOST_BYTES = 4 * 2**30
"""Of the states of float64 steps. A large model is proved at fewer steps, spread evenly."""
COPIES = 2
"""Of the step in float32. They are summed one term after the other, which no fast kernel does."""
ROUNDING_FACTOR = 8.0
TIE_FACTOR = 2.0
"""Rounding may decide where a value is closer to zero, or to another maximum, than so many times the copies' error (root mean
square). Beyond that lie 2 % of the values that an error of this size would turn."""

_UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
_ASPECTS = ("batches", "losses", "gradients", "weights", "BatchNorm statistics")


class Step(NamedTuple):
    """What one step gives, or how far each of it may be from that."""

    loss: float
    gradients: dict[str, Any]
    statistics: dict[str, Any]


class Truth(NamedTuple):
    """The step as it should be, and the largest rounding error of each number or array."""

    step: Step
    allowed: Step
    ties: int
    """Decisions of ReLU and max-pooling that rounding may turn."""


class Finding(NamedTuple):
    """The largest difference of one array. It is relative to the array's own scale, and so is the tolerance."""

    difference: float
    tolerance: float
    where: str
    step: int

    @property
    def ratio(self) -> float:
        return self.difference / self.tolerance if self.tolerance else (math.inf if self.difference else 0.0)


def drawn(what: Spec, architecture: Architecture, plan: Plan) -> list[int]:
    """Steps from all parts of a schedule, from 0.

    In float32 the first, the last of the first epoch, which may be uneven, the first of the second epoch, the first after the
    learning rate has changed between epochs, and the last of all. In float64 every step, or as many as `MOST_BYTES` hold.
    """
    total = plan.total_steps
    if what.precision == "float64":
        values = 8 * sum(parameter.size for parameter in architecture.parameters())
        number = max(2, min(total, MOST_BYTES // (values * (2 if what.optimizer.name == "sgd" else 3))))
        return sorted({round(step) for step in np.linspace(0, total - 1, number)})
    wanted = {0, plan.steps_per_epoch - 1, plan.steps_per_epoch, total - 1}
    if what.schedule.name == "step":
        wanted.add(what.schedule.step_size * plan.steps_per_epoch)
    return sorted(step for step in wanted if 0 <= step < total)


def learning_rates(what: Spec, steps_per_epoch: int, steps: int) -> Callable[[int], float]:
    """The referee's own schedule of a run: the learning rate of a step, from 1."""
    settings, copies = what.schedule, what.data_replicas
    factor = {"none": 1.0, "linear": copies, "sqrt": math.sqrt(copies)}[settings.scaling]
    return training.schedule(
        settings.name,
        what.optimizer.learning_rate * factor,
        step_size=settings.step_size,
        gamma=settings.gamma,
        warmup_steps=settings.warmup_steps,
        steps_per_epoch=steps_per_epoch,
        steps=steps,
    )


class Judge:
    """Judges recordings of the same drawn steps.

    Args:
        architecture: of the model.
        teacher: the recording whose states all others load. It holds the batches.
        steps: drawn, from 0.
        plan: of the run.
    """

    def __init__(self, architecture: Architecture, teacher: Arrays, steps: Sequence[int], plan: Plan) -> None:
        self._architecture = architecture
        self._teacher = teacher
        self._steps = steps
        self._schedule = {"steps_per_epoch": plan.steps_per_epoch, "steps": plan.total_steps}
        self._truths: dict[Any, Truth] = {}

    def rungs(self, what: Spec, recorded: Arrays, framework: str) -> list[Rung]:
        """Rung 8 of one framework and mode.

        Args:
            what: the spec of the recorded run.
            recorded: its steps.
            framework: its name.
        """
        found: dict[str, list[Finding]] = {aspect: [] for aspect in _ASPECTS}
        ties = widened = 0
        for number, step in enumerate(self._steps, start=1):
            truth = self._truth(what, step)
            ties += truth.ties
            at_step = list(self._findings(what, recorded, truth, number, step))
            if what.precision == "float64" and any(finding.ratio > 1 for _, finding in at_step):
                widened += 1
                at_step = list(self._findings(what, recorded, self._widened(what, step, truth), number, step))
            for aspect, finding in at_step:
                found[aspect].append(finding)
        reason = {
            "float32": f"{ROUNDING_FACTOR:.0f} times the referee's own float32 rounding, on each array's own scale, and what "
            f"{ties} ReLUs and maxima change that rounding may decide",
            "float64": "rounding of float64, on each array's own scale"
            + (f"; at {widened} steps the referee shows that rounding alone exceeds {TOLERANCE:.0e}" if widened else ""),
        }[what.precision]
        made: list[Rung] = []
        for aspect, findings in found.items():
            if not findings:
                continue
            worst = max(findings, key=lambda finding: finding.ratio)
            compared = [finding.tolerance for finding in findings if finding.tolerance < 1]
            within = f"; widest tolerance {max(compared, default=math.inf):.0e}"
            if empty := len(findings) - len(compared):
                within += f"; {empty} times an array is nothing but rounding, and is not compared"
            made.append(
                rung(
                    what,
                    f"8 one step in {what.precision}: {aspect}",
                    worst.difference,
                    worst.where or None,
                    worst.tolerance,
                    "ids and pixels are equal or not" if aspect == "batches" else reason + within,
                    step=worst.step + 1,
                    steps=self._schedule["steps"],
                    judged_steps=len(self._steps),
                    framework=framework,
                    mode=None if what.mode == "serial" else what.variant,
                )
            )
        return made

    def _findings(self, what: Spec, recorded: Arrays, truth: Truth, number: int, step: int) -> Iterator[tuple[str, Finding]]:
        unit = _UNIT[what.precision]
        same = all(np.array_equal(recorded[f"{each}/{step}"], self._teacher[f"{each}/{step}"]) for each in ("ids", "hashes"))
        yield "batches", Finding(0.0 if same else math.inf, 0.0, "" if same else "ids or pixels", step)

        def finding(where: str, difference: Array, allowed: Any, scale: float) -> Finding:
            allowed = np.broadcast_to(allowed, difference.shape)
            if what.precision == "float64":
                allowed = np.maximum(allowed, TOLERANCE * scale)
            ratio = np.divide(difference, allowed, out=np.where(difference > 0, np.inf, 0.0), where=allowed > 0)
            worst = np.unravel_index(np.argmax(ratio), ratio.shape)
            scale = max(scale, float(allowed[worst])) or 1.0  # an array that is nothing but rounding has no scale
            return Finding(float(difference[worst]) / scale, float(allowed[worst]) / scale, where, step)

        loss = np.asarray(recorded[f"loss/{step}"], np.float64).reshape(1)
        yield "losses", finding("", absolute(loss, np.array([truth.step.loss])), truth.allowed.loss, abs(truth.step.loss))
        (weights, kept_before), after = state_before(self._teacher, step), group(recorded, f"after/{step}/weights/")
        for name, wanted in truth.step.statistics.items():
            difference, scale = absolute(wanted, after.get(name)), float(np.abs(wanted).max())
            yield "BatchNorm statistics", finding(name, difference, truth.allowed.statistics[name] + 4 * unit * scale, scale)
        settings, rate = what.optimizer, learning_rates(what, **self._schedule)(step + 1)
        scales = _scales(self._architecture, truth.step.gradients)
        for name, gradient in truth.step.gradients.items():
            weight = np.asarray(weights[name], np.float64)
            slots = {slot: np.asarray(values[name], np.float64) for slot, values in kept_before.items()}
            allowed = truth.allowed.gradients[name]
            rule = _Rule(settings, slots, unit)
            expected = rule.slots_after(name, weight, gradient, allowed)
            own = {slot: recorded.get(f"after/{step}/slots/{slot}/{name}") for slot in expected}
            kept = all(each is not None for each in own.values())
            if kept:
                for slot, (value, limit, share) in expected.items():
                    scale = scales[name] if share else float(np.abs(value).max())
                    difference = absolute(value, own[slot]) / (share or 1.0)
                    yield "gradients", finding(f"{name}, {slot}", difference, limit / (share or 1.0), scale)
            values = {slot: np.asarray(own[slot] if kept else value, np.float64) for slot, (value, _, _) in expected.items()}
            moved, limit = rule.update(values, rate, number, None if kept else allowed)
            difference = absolute(weight - moved, after.get(name))
            scale = float(np.abs(moved).max()) or float(np.abs(weight).max())
            yield "weights", finding(name, difference, limit + 3 * unit * np.abs(weight), scale)

    def _truth(self, what: Spec, step: int) -> Truth:
        labels = self._teacher[f"labels/{step}"]
        chains = _chains(what, len(labels)) if self._architecture.has_batch_norm else [[np.arange(len(labels))]]
        key = what.precision, step, tuple(tuple(map(bytes, chain)) for chain in chains)
        if key not in self._truths:
            self._truths[key] = (self._of_referee if what.precision == "float32" else self._of_teacher)(what, step, chains)
        return self._truths[key]

    def _of_teacher(self, what: Spec, step: int, chains: Any) -> Truth:
        """What the first framework did, whose optimizer state says what its gradients were."""
        (weights, before), (stepped, after) = state_before(self._teacher, step), state(self._teacher, f"after/{step}")
        settings = what.optimizer
        slot, kept, share = "buffer", settings.momentum, 1.0
        if settings.name == "adam":
            slot, kept, share = "mean", settings.beta_1, 1.0 - settings.beta_1
        gradients: dict[str, Array] = {}
        for name, weight in weights.items():
            if name in after[slot]:
                found = (after[slot][name] - kept * before[slot][name]) / share
                gradients[name] = found - settings.weight_decay * weight
        statistics = {name: array for name, array in stepped.items() if name not in gradients}
        scales = _scales(self._architecture, gradients)
        loss = self._teacher[f"loss/{step}"].item()
        allowed = Step(
            TOLERANCE * abs(loss),
            {name: TOLERANCE * scales[name] for name in gradients},
            {name: TOLERANCE * float(np.abs(array).max()) for name, array in statistics.items()},
        )
        return Truth(Step(loss, gradients, statistics), allowed, 0)

    def _widened(self, what: Spec, step: int, truth: Truth) -> Truth:
        """The same truth of a float64 step, with what rounding alone may do where that is more than the plain tolerance."""
        key = "widened", step
        if key not in self._truths:
            whole = [[np.arange(len(self._teacher[f"labels/{step}"]))]]
            self._truths[key] = self._of_referee(
                what, step, _chains(what, len(whole[0][0])) if what.mode == "serial" else whole
            )
        ratio, rounding = _UNIT["float64"] / _UNIT["float32"], self._truths[key].allowed

        def wider(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
            return {name: max(limit, ratio * other[name]) for name, limit in own.items()}

        allowed = Step(
            max(truth.allowed.loss, ratio * rounding.loss),
            wider(truth.allowed.gradients, rounding.gradients),
            wider(truth.allowed.statistics, rounding.statistics),
        )
        return truth._replace(allowed=allowed)

    def _of_referee(self, what: Spec, step: int, chains: list[list[Any]]) -> Truth:
        weights, _ = state_before(self._teacher, step)
        masks = [self._teacher[f"masks/{step}/{index}"] for index in range(len(self._architecture.dropouts))]
        labels, pixels = self._teacher[f"labels/{step}"], self._teacher[f"images/{step}"]
        scaling = self._teacher["pixel_mean"].tolist(), self._teacher["pixel_std"].tolist()

        def done(decider: _Decider, dtype: Any, generator: np.random.Generator | None = None) -> tuple[Step, Array]:
            def given(array: Any) -> Any:
                array = array.astype(dtype)
                return array if generator is None else _moved(array, generator)

            images = given(network.scaled(pixels, *scaling, dtype))
            batch = Batch(images, labels, masks)
            return _whole_step(
                self._architecture, {name: given(each) for name, each in weights.items()}, batch, chains, decider
            )

        def copies(*deciders: _Decider) -> list[tuple[Step, Array]]:
            with ThreadPoolExecutor() as pool:
                generators = [np.random.default_rng(number) for number in range(len(deciders))]
                return list(pool.map(done, deciders, itertools.repeat(np.float32), generators))

        decider = _Decider()
        true, losses = done(decider, np.float64)
        moved = copies(*(decider.following() for _ in range(COPIES)))
        # One copy tosses a coin at each tie, the other decides the opposite.
        tossed = copies(decider.tossing(opposite=False), decider.tossing(opposite=True)) if what.precision == "float32" else []

        def farthest(of: Callable[[Step], dict[str, Any]], group: list[tuple[Step, Array]]) -> Any:
            return {
                name: max((float(np.abs(of(other)[name] - array).max()) for other, _ in group), default=0.0)
                for name, array in of(true).items()
            }

        def allowed(of: Callable[[Step], dict[str, Any]]) -> dict[str, float]:
            rounding, turned = farthest(of, moved), farthest(of, tossed)
            return {name: ROUNDING_FACTOR * rounding[name] + TIE_FACTOR * turned[name] for name in rounding}

        # Of the examples' losses, whose errors need not cancel.
        error = max(float(np.abs(other - losses).mean()) for _, other in moved)
        loss = ROUNDING_FACTOR * (error + _UNIT["float32"] * abs(true.loss))
        bounds = Step(loss, allowed(lambda each: each.gradients), allowed(lambda each: each.statistics))
        return Truth(true, bounds, decider.ties)


@dataclass(frozen=True)
class _Rule:
    """The update of one array, and how far rounding may move it."""

    settings: spec.Optimizer
    slots: Mapping[str, Array]
    unit: float

    def slots_after(self, name: str, weight: Array, gradient: Array, allowed: float) -> dict[str, tuple[Array, Array, float]]:
        """By slot: its value after a step, the largest error, and the gradient's share in it (0 for a square)."""
        given, unit = self.settings, self.unit
        decayed = gradient + given.weight_decay * weight
        error = allowed + 2 * unit * given.weight_decay * np.abs(weight)
        if given.name == "sgd":
            before = self.slots["buffer"]
            buffer = given.momentum * before + decayed
            return {"buffer": (buffer, error + 3 * unit * (np.abs(buffer) + given.momentum * np.abs(before)), 1.0)}
        mean, square = self.slots["mean"], self.slots["square"]
        # A constant such as 1 - beta_2 has the error of beta_2, however small it is.
        new_mean = given.beta_1 * mean + (1 - given.beta_1) * decayed
        new_square = given.beta_2 * square + (1 - given.beta_2) * decayed**2
        share, share_2 = 1 - given.beta_1, 1 - given.beta_2
        mean_error = share * error + 4 * unit * (np.abs(new_mean) + np.abs(mean) + np.abs(decayed))
        square_error = share_2 * (2 * np.abs(decayed) * error + error**2) + 4 * unit * (square + decayed**2)
        return {
            "mean": (new_mean, mean_error, share),
            "square": (new_square, square_error + np.finfo(np.float32).tiny, 0.0),
        }

    def update(self, slots: Mapping[str, Array], rate: float, number: int, allowed: float | None) -> tuple[Array, Array]:
        """What is subtracted from the weight, and the largest error.

        Args:
            slots: after the step.
            rate: the learning rate.
            number: of the step, from 1.
            allowed: error of the gradient. None: the slots are those of the framework itself.
        """
        given, unit = self.settings, self.unit
        if given.name == "sgd":
            moved = rate * slots["buffer"]
            error = 0.0 if allowed is None else rate * allowed / (1 - given.momentum)
            return moved, error + 4 * unit * np.abs(moved)
        corrected = 1 - given.beta_1**number, 1 - given.beta_2**number
        divisor = np.sqrt(slots["square"] / corrected[1]) + given.epsilon
        moved = rate / corrected[0] * slots["mean"] / divisor
        error = 0.0
        if allowed is not None:
            error = np.minimum(allowed * (rate + np.abs(moved)) / divisor, 2 * rate)
        constants = 8 + 1 / corrected[0] + 1 / corrected[1]
        return moved, error + constants * unit * np.abs(moved)


@dataclass
class _Point:
    """Where a pass has decided: the values, and what it chose."""

    values: Array
    chosen: Any
    errors: list[Any] = field(default_factory=list[Any])
    """Of each copy the root mean square, by channel."""


class _Decider:
    """What ReLU and max-pooling decide. The first pass decides by its own values, later ones as the first did."""

    def __init__(self) -> None:
        self.points: list[_Point] = []
        self.leads, self.tosses, self.opposite = True, False, False
        self.leader = self
        self.ties = 0
        self._next = 0
        self._generator = np.random.default_rng(1)

    def following(self) -> _Decider:
        """For a copy that decides as this pass did. It measures how far the values move."""
        other = _Decider()
        other.points, other.leads, other.leader = self.points, False, self
        return other

    def tossing(self, *, opposite: bool) -> _Decider:
        """For a copy that tosses a coin where rounding decides, and with `opposite` turns every coin round."""
        other = self.following()
        other.tosses, other.opposite = True, opposite
        return other

    def relu(self, x: Array) -> Any:
        """Which values pass."""
        if self.leads:
            self.points.append(_Point(x, x > 0))
            return self.points[-1].chosen
        point = self._point(x)
        if not self.tosses:
            return point.chosen
        near = (point.values != 0) & (
            np.abs(point.values) <= TIE_FACTOR * np.max(point.errors, axis=0)
        )  # a sum of zeros is zero
        return self._tossed(point.chosen, near, ~point.chosen)

    def winner(self, x: Array, layer: MaxPool) -> Any:
        """Which value each window takes."""
        if self.leads:
            flat = layers.windows(x, layer.kernel_size, layer.stride, layer.padding)
            self.points.append(_Point(x, flat.argmax(3)[:, :, :, None].astype(np.int8)))
            return self.points[-1].chosen
        point = self._point(x)
        if not self.tosses:
            return point.chosen
        flat = layers.windows(point.values, layer.kernel_size, layer.stride, layer.padding)
        best = np.take_along_axis(flat, point.chosen.astype(np.int64), 3)
        others = flat.copy() if flat.base is not None else flat
        np.put_along_axis(others, point.chosen.astype(np.int64), -np.inf, 3)
        second = others.argmax(3)[:, :, :, None].astype(np.int8)
        gap = best - np.take_along_axis(others, second.astype(np.int64), 3)
        return self._tossed(point.chosen, (gap > 0) & (gap <= 2 * TIE_FACTOR * np.max(point.errors, axis=0)), second)

    def _point(self, x: Array) -> _Point:
        point = self.points[self._next]
        self._next += 1
        if not self.tosses:
            axes = tuple(range(x.ndim - 1))
            point.errors.append(np.sqrt(np.square(x - point.values).mean(axes)))
        return point

    def _tossed(self, chosen: Any, near: Any, other: Any) -> Any:
        coins = self._generator.random(int(near.sum())) < 0.5
        if not self.opposite:
            self.leader.ties += len(coins)
        turned = near.copy()
        turned[near] = coins ^ self.opposite
        return np.where(turned, other, chosen)


class _Pass(Network):
    """A pass whose decisions somebody else makes."""

    def __init__(self, weights: Any, batch: Batch, decider: _Decider) -> None:
        super().__init__(weights, batch)
        self._decider = decider

    def relu(self, x: Array) -> tuple[Array, Backward]:
        return layers.dropout(x, self._decider.relu(x), 0.0)

    def max_pooling(self, layer: MaxPool, x: Array) -> tuple[Array, Backward]:
        winner = self._decider.winner(x, layer).astype(np.int64)
        return layers.max_pooling(x, layer.kernel_size, layer.stride, layer.padding, winner)


def _whole_step(
    architecture: Architecture, weights: dict[str, Array], batch: Batch, chains: list[list[Any]], decider: _Decider
) -> tuple[Step, Array]:
    """(loss, gradients and statistics of a batch whose parts pass one by one; each example's loss)."""
    total, loss, size = dict[str, Array](), 0.0, len(batch.labels)
    statistics: dict[str, Array] = {}
    losses: list[Any] = []
    for number, chain in enumerate(chains):
        state = dict(weights)
        for own in chain:
            part = Batch(batch.images[own], batch.labels[own], [mask[own] for mask in batch.masks])
            each = _Pass(state, part, decider)
            each.constants = network.BATCH_NORM.get(architecture.name)
            found, backward = each.through(architecture.layers, part.images)
            share, dlogits = layers.cross_entropy(found, part.labels)
            factor = dlogits.dtype.type(len(own) / size)
            backward(dlogits * factor)
            for name, gradient in each.gradients.items():
                total[name] = total[name] + gradient if name in total else gradient
            state |= each.statistics
            loss += float(share) * len(own) / size
            losses += [layers.cross_entropy(row[None], part.labels[i : i + 1])[0] for i, row in enumerate(found)]
        if number == 0:
            statistics = {name: array for name, array in state.items() if name not in total}
    return Step(loss, total, statistics), np.array(losses)


def _chains(what: Spec, size: int) -> list[list[npt.NDArray[np.int64]]]:
    """The positions that BatchNorm sees together: for each replica with its own statistics, micro-batch by micro-batch."""
    parts = what.micro_batches(size)
    shards = [np.arange(*shard(size, what.data_replicas, rank)) for rank in range(what.data_replicas)]
    cut = [np.split(own, parts) for own in shards]
    if what.batch_norm_statistics == "synchronised":
        return [[np.concatenate(together) for together in zip(*cut, strict=True)]]
    return [list(own) for own in cut]


def _moved(array: Array, generator: np.random.Generator) -> Array:
    """Every value one unit in the last place up or down."""
    up = generator.random(array.shape, np.float32) < 0.5
    return np.nextafter(array, np.where(up, array.dtype.type(np.inf), array.dtype.type(-np.inf)))


def _scales(architecture: Architecture, gradients: dict[str, Array]) -> dict[str, float]:
    """The largest component of each gradient. A bias in front of BatchNorm has the scale of its layer's kernel.

    BatchNorm takes the mean away, and the bias with it. In exact arithmetic the bias has no gradient.
    """
    scales = {name: float(np.abs(gradient).max()) for name, gradient in gradients.items()}
    for first, second in itertools.pairwise(architecture.leaves()):
        if isinstance(second, architectures.BatchNorm) and f"{first.name}.bias" in scales:
            scales[f"{first.name}.bias"] = scales[f"{first.name}.kernel"]
    return scales
