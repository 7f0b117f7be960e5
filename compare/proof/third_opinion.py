"""Both frameworks against the referee: twins that agree may be wrong together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from common.data import sources
from common.data.batches import Plan
from common.models import architectures
from common.models.architectures import Architecture
from common.spec import Optimizer, Spec
from compare.core.differences import absolute, relative
from compare.proof import ladder, single_steps
from compare.proof.differences import Arrays, farthest, group, over
from compare.proof.recordings import Recorder, Recording
from compare.proof.referee import network, training
from compare.proof.referee.network import Batch, Weights

STEPS = 10
FEW_IMAGES, MOST_PIXELS = 8, 32
"""Of the one step in longdouble, which NumPy computes slowly."""
EPSILON = 1e-3
"""Of Adam, unless the user sets one: all arrays are compared as strictly as with SGD. With a tiny one, as Adam's own is, the
rounding of a gradient that is zero becomes a direction. So that is compared besides: see `_with_own_epsilon`."""
TOLERANCES = {"loss": 1e-12, "losses": 1e-10, "gradients": 1e-12, "weights": 1e-10, "BatchNorm": 1e-10, "last": 1e-8}
"""Relative, in float64. `loss` is the first loss, `losses` all ten. Gradients are on the scale of the largest one. Weights and
statistics are those after one step, `last` those after all. Their scale is the largest change of their kind. ResNet18
amplifies rounding a hundredfold over ten steps."""

LOOSE = 1e-3
"""A tolerance as wide as this proves nothing. What would need it is shown."""
NOISE_FACTOR = 4.0
"""A step adds up its gradient in another order than the pass that records it."""

_GRADIENTS, _TIES, _FIRST_UPDATE = "gradients of the first step", "ties decided", "weights after one step"
_UNIT = float(np.finfo(np.float64).eps)
Differences = dict[str, tuple[float, str | None]]
FLIPPED = 1e-4
"""Of float32 gradients. More is not the rounding of sums."""
Status = Literal["passed", "failed", "shown"]


class Line(NamedTuple):
    """One comparison of one framework with the referee."""

    model: str
    optimizer: str
    framework: str
    precision: str
    """Of the framework."""
    referee: str
    """dtype of the referee."""
    what: str
    difference: float
    where: str | None
    tolerance: float | None
    """None: shown, not judged."""

    @property
    def status(self) -> Status:
        return "shown" if self.tolerance is None else "passed" if self.difference <= self.tolerance else "failed"


def spec_of(timed: Spec) -> Spec:
    """A run as it is compared with the referee: ten serial steps in float64."""
    what = ladder.proof_spec(timed, ladder.BATCH_SIZE, STEPS, "float64").with_fields(accumulation=1)
    if what.optimizer.name != "adam" or what.optimizer.epsilon != Optimizer.model_fields["epsilon"].default:
        return what
    return what.with_fields(optimizer={**what.optimizer.model_dump(), "epsilon": EPSILON})


def specs_of(timed: Spec) -> list[Spec]:
    """The runs that are compared: `spec_of`, and the same with Adam's own epsilon where that is another."""
    first = spec_of(timed)
    own = first.with_fields(optimizer={**first.optimizer.model_dump(), "epsilon": timed.optimizer.epsilon})
    return [first, *([own] if own != first else [])]


def judge(specs: Sequence[Spec], frameworks: Sequence[str], out: Path, progress: Callable[[str], None]) -> list[Line]:
    """Compare every spec's first steps in every framework with the referee.

    Args:
        specs: serial, float64. See `specs_of`.
        progress: called with what is being done.

    Raises:
        LaunchError: a framework could not record.
    """
    lines: list[Line] = []
    recorder = Recorder(out, progress)
    for what in specs:
        dataset = sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir)
        architecture = architectures.of(what, len(dataset.class_names), dataset.image_size)
        architectures.refuse_opaque(architecture, "the referee")
        wanted: list[tuple[str, Spec, Any]] = [("referee", what, np.float64)]
        if architecture.image_size <= MOST_PIXELS:
            few = what.with_fields(steps=1, global_batch_size=min(FEW_IMAGES, what.global_batch_size))
            wanted.append(("referee-one-step", few, np.longdouble))
        wanted.append(("referee-float32", what.with_fields(precision="float32", steps=1), np.float64))
        if is_own_epsilon(what.optimizer):
            wanted = [("referee-own-epsilon", what, np.float64)]
        recorder.make(Recording(label, name, run, ("--batches",)) for name in frameworks for label, run, _ in wanted)
        for label, run, dtype in wanted:
            progress(f"referee: {what.model}, {what.optimizer.name}, {run.steps} steps in {np.dtype(dtype).name}")
            made = {name: recorder.arrays(Recording(label, name, run, ("--batches",))) for name in frameworks}
            with ladder.judging():
                lines += compare(run, architecture, len(dataset.train.labels), made, dtype)
    return lines


def compare(
    what: Spec, architecture: Architecture, num_examples: int, recorded: Mapping[str, Arrays], dtype: Any
) -> list[Line]:
    """Compare recordings of one spec with the referee's own training on the same batches."""
    lines: list[Line] = []
    ours = next(iter(recorded.values()))
    rate = single_steps.learning_rates(what, steps_per_epoch=-(-num_examples // what.global_batch_size), steps=what.steps or 1)
    truth = _train(what, architecture, rate, ours, dtype)
    judged = what.precision == "float64"
    for framework, arrays in recorded.items():
        inputs = [name for name in ours if name.startswith(("images/", "labels/", "masks/", "initial/", "pixel_"))]
        same = all(np.array_equal(ours[name], arrays.get(name, np.zeros(0))) for name in inputs)
        found: Differences = {"the same weights and batches": (math.inf, None)}
        limits = dict[str, float | None]()
        if same:
            found = _differences(arrays, truth, what.steps or 1)
        if same and judged and is_own_epsilon(what.optimizer):
            rates = [rate(step) for step in range(1, (what.steps or 1) + 1)]
            found, limits = _with_own_epsilon(what.optimizer, rates, architecture, arrays, truth, found)
        if same and not judged and found[_GRADIENTS][0] > FLIPPED:
            found |= _with_its_decisions(what, architecture, num_examples, arrays)
        for name, (difference, where) in found.items():
            kind = name.split()[0]
            tolerance = limits.get(name, TOLERANCES.get(kind, 0.0)) if judged or not same else None
            lines.append(
                Line(
                    what.model_label,
                    what.optimizer.name + f", epsilon {what.optimizer.epsilon:g}" * is_own_epsilon(what.optimizer),
                    framework,
                    what.precision,
                    np.dtype(dtype).name,
                    name,
                    difference,
                    where,
                    tolerance,
                )
            )
    return lines


def rule_of(settings: Optimizer) -> training.SGD | training.Adam:
    """The referee's update rule of an optimizer, fresh."""
    if settings.name == "adam":
        return training.Adam(settings.beta_1, settings.beta_2, settings.epsilon, settings.weight_decay)
    return training.SGD(settings.momentum, settings.weight_decay)


class _Truth(NamedTuple):
    losses: npt.NDArray[Any]
    gradients: Weights
    first: Weights
    last: Weights


def _train(what: Spec, architecture: Architecture, rate: Callable[[int], float], arrays: Arrays, dtype: Any) -> _Truth:
    update = rule_of(what.optimizer)
    steps = what.steps or 1
    mean, deviation = arrays["pixel_mean"].tolist(), arrays["pixel_std"].tolist()
    if what.data.normalization == "none":
        mean, deviation = [0.0] * 3, [1.0] * 3
    batches = (
        Batch(
            network.scaled(arrays[f"images/{step}"], mean, deviation, dtype),
            arrays[f"labels/{step}"],
            [arrays[f"masks/{step}/{index}"].astype(bool) for index in range(len(architecture.dropouts))],
        )
        for step in range(steps)
    )
    losses: list[Any] = []
    gradients, first, last = Weights(), Weights(), Weights()
    for found, after in training.train(architecture, group(arrays, "initial/"), batches, update, rate, dtype):
        losses.append(found.loss)
        gradients, first, last = gradients or found.gradients, first or dict(after), after
    return _Truth(np.array(losses), gradients, first, last)


def _with_its_decisions(
    what: Spec, architecture: Architecture, num_examples: int, arrays: Arrays
) -> dict[str, tuple[float, str | None]]:
    """The gradients' difference if the referee decides those ties as the framework did that explain it."""
    initial = group(arrays, "initial/")
    teacher = {**arrays, "before/0/drawn": np.array(0), **{f"before/0/weights/{name}": each for name, each in initial.items()}}
    judge = single_steps.Judge(architecture, teacher, [0], Plan(what, architecture, num_examples))
    gradients = {name: np.asarray(each, np.float64) for name, each in group(arrays, "gradient/").items()}
    decided = judge.decided_otherwise(what, 0, gradients)
    if decided is None:
        return {}
    ties, theirs = decided
    return {f"{_GRADIENTS} with {len(ties)} {_TIES} as there": _against_largest(gradients, theirs, theirs)}


def _differences(arrays: Arrays, truth: _Truth, steps: int) -> Differences:
    apart = relative(arrays["loss"].astype(truth.losses.dtype), truth.losses)
    found: Differences = {"loss of the first step": (float(apart[0]), None)}
    if steps > 1:
        found["losses"] = (float(apart.max()), f"step {int(apart.argmax()) + 1}")
    found[_GRADIENTS] = _against_largest(group(arrays, "gradient/"), truth.gradients, truth.gradients)
    found |= _after(arrays, _FIRST_UPDATE, "stepped/", truth.first)
    return found | (_after(arrays, "last weights", "final/", truth.last) if steps > 1 else {})


def _after(arrays: Arrays, name: str, prefix: str, after: Weights) -> Differences:
    """Weights, and the statistics of BatchNorm, each on the scale of the largest change of its kind."""
    initial, found = group(arrays, "initial/"), Differences()
    for kind, words in (((), name), (("mean", "variance"), name.replace("weights", "BatchNorm statistics"))):
        chosen = {key for key in after if (key.rpartition(".")[2] in ("mean", "variance")) == bool(kind)}
        if chosen:
            changes = {key: after[key] - initial[key] for key in chosen}
            found[words] = _against_largest(group(arrays, prefix), {key: after[key] for key in chosen}, changes)
    return found


def is_own_epsilon(settings: Optimizer) -> bool:
    """Whether it is Adam with the epsilon that it has unless a user sets one."""
    return settings.name == "adam" and settings.epsilon == Optimizer.model_fields["epsilon"].default


def _with_own_epsilon(
    settings: Optimizer, rates: Sequence[float], architecture: Architecture, arrays: Arrays, truth: _Truth, found: Differences
) -> tuple[Differences, dict[str, float | None]]:
    """The differences of Adam with a tiny epsilon, and the tolerances that its arithmetic gives.

    Adam's first direction is g / (|g| + epsilon), where g includes the weight decay. An error d of g moves it by at most
    d epsilon / (|g| - d + epsilon)^2. That is d / epsilon where g is zero, and far less than d where it is large. So each value
    has a tolerance of its own. The value that is nearest to its tolerance is shown. The gradients of the array differ by d,
    which is judged by itself.

    Ten steps go on from the first one. If the first update differs by k times what it may with a large epsilon, the tolerances
    of losses and last values are k times as wide. Each last value may have moved by its own error at every step besides.

    A bias in front of BatchNorm goes on by the rounding of each step. Its last value and the running mean that follows it are
    not compared. Neither changes a loss in training.
    """
    initial, recorded = group(arrays, "initial/"), group(arrays, "gradient/")
    directions = Weights()
    for name, gradient in truth.gradients.items():
        error = NOISE_FACTOR * max(float(absolute(gradient, recorded.get(name)).max()), _UNIT * float(np.abs(gradient).max()))
        size = np.maximum(np.abs(gradient + settings.weight_decay * initial[name]) - error, 0.0)
        directions[name] = np.minimum(error * settings.epsilon / (size + settings.epsilon) ** 2, 2.0)
    free = single_steps.of_no_effect(architecture)
    counted = [name for name in directions if name not in free]
    first = _nearest(arrays, "stepped/", truth.first, list(directions), directions, rates[0], TOLERANCES["weights"])
    without = {name: truth.first[name] for name in counted}
    wider = max(_after(arrays, _FIRST_UPDATE, "stepped/", without)[_FIRST_UPDATE][0] / TOLERANCES["weights"], 1.0)
    judged: Differences = {name: each for name, each in found.items() if not name.startswith("last ")}
    judged[_FIRST_UPDATE], limits = first[:2], {_FIRST_UPDATE: first[2]}
    if "last weights" in found:
        limits["losses"] = wider * TOLERANCES["losses"]
        last = _nearest(arrays, "final/", truth.last, counted, directions, sum(rates), wider * TOLERANCES["last"])
        judged["last weights"], limits["last weights"] = last[:2], last[2]
        followed = {f"{following}.mean" for following in free.values()}
        kept = {name: each for name, each in truth.last.items() if name not in directions and name not in followed}
        judged |= _after(arrays, "last weights", "final/", kept)
        limits |= dict.fromkeys(judged.keys() & {"last BatchNorm statistics"}, wider * TOLERANCES["last"])
    loose = {name for name, limit in limits.items() if limit >= LOOSE and math.isfinite(judged[name][0])}
    return judged, {name: None if name in loose else limit for name, limit in limits.items()}


def _nearest(
    arrays: Arrays, prefix: str, after: Weights, names: Sequence[str], directions: Weights, rate: float, plain: float
) -> tuple[float, str, float]:
    """(difference, array, tolerance) of the value that is nearest to its tolerance, on the scale of the largest change."""
    initial, ours = group(arrays, "initial/"), group(arrays, prefix)
    largest = max(float(np.abs(after[name] - initial[name]).max()) for name in names)
    found: list[tuple[float, float, str, float]] = []
    for name in names:
        apart, allowed = absolute(after[name], ours.get(name)) / largest, plain + rate * directions[name] / largest
        ratios = np.where(np.isfinite(apart), apart / allowed, math.inf)
        place = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
        difference = float(apart[place]) if np.isfinite(apart[place]) else math.inf
        found.append((float(ratios[place]), difference, name, float(allowed[place])))
    return max(found)[1:]


def _against_largest(ours: Arrays, theirs: Weights, scale: Weights) -> tuple[float, str | None]:
    largest = max(float(np.abs(array).max()) for array in scale.values())
    return farthest([(over(float(absolute(array, ours.get(name)).max()), largest), name) for name, array in theirs.items()])


def cautions(lines: Sequence[Line]) -> list[str]:
    """What a reader of these lines must know."""
    said: list[str] = []
    if any(line.referee == np.dtype(np.longdouble).name for line in lines):
        digits = np.finfo(np.longdouble).nmant
        if digits == np.finfo(np.float64).nmant:
            said.append("On this machine longdouble is float64: the step in it proves nothing more.")
        else:
            said.append(f"One step of {FEW_IMAGES} images was done in longdouble, which has a mantissa of {digits} bits here.")
    if any(line.optimizer == "adam" for line in lines):
        said.append(f"Adam's epsilon is {EPSILON:g} in the rows `adam`, unless the spec sets one.")
    if any("epsilon" in line.optimizer for line in lines):
        said.append(
            "With Adam's own epsilon the rounding of a gradient that is zero becomes a direction. So the first update has the "
            "tolerance that this arithmetic gives each value. The last values of biases in front of BatchNorm, and the running "
            "means that follow them, are not compared."
        )
    return said


def closer(lines: Sequence[Line]) -> list[str]:
    """In float32: which framework is closer to the truth, and by how much, for each run."""
    said: list[str] = []
    narrow = [line for line in lines if line.precision == "float32"]
    for model, optimizer in dict.fromkeys((line.model, line.optimizer) for line in narrow):
        own = [line.what for line in narrow if (line.model, line.optimizer) == (model, optimizer) and _TIES not in line.what]
        for what in dict.fromkeys(own):
            found = sorted(
                (line for line in narrow if (line.model, line.optimizer, line.what) == (model, optimizer, what)),
                key=lambda line: line.difference,
            )
            if len(found) < 2:
                continue
            best, worst = found[0], found[-1]
            each = f"{best.difference:.1e} against {worst.difference:.1e}"
            if best.difference == worst.difference:
                said.append(f"{model}, {optimizer}, {what}: both are as close to the referee ({best.difference:.1e}).")
            elif worst.difference > FLIPPED:
                not_sums = "That is no matter of sums alone."
                said.append(f"{model}, {optimizer}, {what}: {best.framework} is closer ({each}). {not_sums}")
            else:
                times = worst.difference / best.difference if best.difference else math.inf
                said.append(f"{model}, {optimizer}, {what}: {best.framework} is {times:.1f} times as close ({each}).")
    said += [_flipped(line, narrow) for line in narrow if line.difference > FLIPPED and line.what == _GRADIENTS]
    if said:
        said.append("This is one step on one machine. Other processors have other kernels, and another order of sums.")
    return said


def _flipped(line: Line, lines: Sequence[Line]) -> str:
    """Whether ties explain a float32 gradient that is far from the referee's."""
    start = (
        f"{line.model}, {line.optimizer}, {line.framework}: a gradient differs by {line.difference:.1e} ({line.where}), too "
        "much for rounded sums."
    )
    run = line[:3]
    with_ties = [each for each in lines if each[:3] == run and _TIES in each.what]
    if not with_ties:
        return f"{start} There are too many ties (a ReLU at zero, equal maxima) to tell whether they explain it."
    each = with_ties[0]
    number = each.what.removeprefix(f"{_GRADIENTS} with ").partition(" ")[0]
    if each.difference <= FLIPPED:
        return (
            f"{start} It is no fault: rounding decided {number} ties (a ReLU at zero, equal maxima) otherwise than in float64. "
            f"With these decisions the referee differs by {each.difference:.1e}."
        )
    return f"{start} None of the ties that were tried (a ReLU at zero, equal maxima) explain it. It may be a fault."
