"""Both frameworks against the referee: twins that agree may be wrong together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from common.data import sources
from common.data.batches import BatchPlan
from common.models import architectures
from common.models.architectures import Architecture
from common.spec import Optimizer, Spec
from compare.cli.differences import absolute, relative
from compare.proof import ladder, single_steps, step_truth
from compare.proof.differences import Arrays, group, largest_difference, on_scale
from compare.proof.recordings import Recorder, TraceRequest
from compare.proof.referee import network, training
from compare.proof.referee.network import RefereeBatch, Weights
from compare.running.twins import Twins

STEPS = 10
FEW_IMAGES, MOST_PIXELS = 8, 32
"""Largest batch and image size of the one step in longdouble, which NumPy computes slowly."""
EPSILON = 1e-3
"""Epsilon of Adam, unless the user sets one: with it all arrays are compared as strictly as with SGD. With the tiny default,
the rounding of a gradient that is zero becomes a direction. `_with_default_epsilon` compares that too."""
_FIRST_LOSS, _LOSSES, _GRADIENTS = "loss of the first step", "losses", "gradients of the first step"
_FIRST_UPDATE, _FIRST_STATISTICS = "weights after one step", "BatchNorm statistics after one step"
_LAST_WEIGHTS, _LAST_STATISTICS = "last weights", "last BatchNorm statistics"
TOLERANCES = {
    _FIRST_LOSS: 1e-12,
    _LOSSES: 1e-10,
    _GRADIENTS: 1e-12,
    _FIRST_UPDATE: 1e-10,
    _FIRST_STATISTICS: 1e-10,
    _LAST_WEIGHTS: 1e-8,
    _LAST_STATISTICS: 1e-8,
}
"""Relative tolerances in float64. Gradients are relative to the largest one. Weights and statistics are relative to the largest
change of their kind. ResNet18 amplifies rounding a hundredfold over ten steps."""

LOOSE_TOLERANCE = 1e-3
"""Tolerance above that a comparison proves nothing, and is only shown."""
NOISE_FACTOR = 4.0
"""Factor on rounding errors: a step adds up its gradient in another order than the pass that records it."""

_UNIT = float(np.finfo(np.float64).eps)
RELU_FLIP_THRESHOLD = 1e-4
"""Difference of float32 gradients above which a flipped ReLU or maximum is likelier than the rounding of sums."""
Status = Literal["passed", "failed", "shown"]


class RefereeComparison(NamedTuple):
    """Comparison of one aspect of one framework with the referee."""

    model: str
    optimizer: str
    framework: str
    precision: str
    """Precision of the framework."""
    referee: str
    """Dtype of the referee."""
    what: str
    difference: float
    where: str | None
    tolerance: float | None
    """Largest difference that passes. None: shown, not judged."""
    ties: int | None = None
    """Number of ties that the referee decided as the framework did. None: it decided all alone."""

    @property
    def status(self) -> Status:
        return "shown" if self.tolerance is None else "passed" if self.difference <= self.tolerance else "failed"


class _Difference(NamedTuple):
    """The last fields of a `RefereeComparison`."""

    difference: float
    where: str | None
    tolerance: float | None
    ties: int | None = None


Differences = dict[str, _Difference]
"""Differences by what is compared."""


def referee_spec(timed_spec: Spec) -> Spec:
    """Return the spec that is compared with the referee: ten serial steps in float64."""
    spec = ladder.proof_spec(timed_spec, ladder.BATCH_SIZE, STEPS, "float64").with_fields(accumulation=1)
    if spec.optimizer.name != "adam" or spec.optimizer.epsilon != Optimizer.model_fields["epsilon"].default:
        return spec
    return spec.with_fields(optimizer={**spec.optimizer.model_dump(), "epsilon": EPSILON})


def referee_specs(timed_spec: Spec) -> list[Spec]:
    """Return the specs that are compared: `referee_spec`, and one with the user's epsilon of Adam if that differs."""
    first = referee_spec(timed_spec)
    with_default_epsilon = first.with_fields(
        optimizer={**first.optimizer.model_dump(), "epsilon": timed_spec.optimizer.epsilon}
    )
    return [first, *([with_default_epsilon] if with_default_epsilon != first else [])]


def judge(specs: Sequence[Spec], twins: Twins, out: Path, progress: Callable[[str], None]) -> list[RefereeComparison]:
    """Compare every spec's first steps in every framework with the referee.

    Args:
        specs: serial specs in float64, see `referee_specs`.
        twins: the contestants to compare.
        out: folder of recordings and logs.
        progress: called with a message about the current work.
    """
    lines: list[RefereeComparison] = []
    recorder = Recorder(twins, out, progress)
    for spec in specs:
        dataset = sources.load(spec.data, seed=spec.split_seed, cache_dir=spec.paths.cache_dir)
        architecture = architectures.build(spec, len(dataset.class_names), dataset.image_size)
        architectures.refuse_opaque(architecture, "the referee")
        runs: list[tuple[str, Spec, Any]] = [("referee", spec, np.float64)]
        if architecture.image_size <= MOST_PIXELS:
            few = spec.with_fields(steps=1, global_batch_size=min(FEW_IMAGES, spec.global_batch_size))
            runs.append(("referee-one-step", few, np.longdouble))
        runs.append(("referee-float32", spec.with_fields(precision="float32", steps=1), np.float64))
        if has_default_epsilon(spec.optimizer):
            runs = [("referee-own-epsilon", spec, np.float64)]
        recorder.make(
            TraceRequest(label, name, run_spec, ("--batches",)) for name in twins.names for label, run_spec, _ in runs
        )
        for label, run_spec, dtype in runs:
            progress(f"referee: {spec.model}, {spec.optimizer.name}, {run_spec.steps} steps in {np.dtype(dtype).name}")
            recordings = {name: recorder.arrays(TraceRequest(label, name, run_spec, ("--batches",))) for name in twins.names}
            with ladder.fast_referee():
                lines += compare(run_spec, architecture, len(dataset.train.labels), recordings, dtype)
    return lines


def compare(
    spec: Spec, architecture: Architecture, num_examples: int, recorded: Mapping[str, Arrays], dtype: Any
) -> list[RefereeComparison]:
    """Compare recordings of one spec with the referee's own training on the same batches."""
    lines: list[RefereeComparison] = []
    first_arrays = next(iter(recorded.values()))
    steps = spec.steps or 1
    rate = single_steps.learning_rates(spec, steps_per_epoch=-(-num_examples // spec.global_batch_size), steps=steps)
    truth = _train(spec, architecture, rate, first_arrays, dtype)
    optimizer = spec.optimizer.name + f", epsilon {spec.optimizer.epsilon:g}" * has_default_epsilon(spec.optimizer)
    for framework, arrays in recorded.items():
        inputs = [name for name in first_arrays if name.startswith(("images/", "labels/", "masks/", "initial/", "pixel_"))]
        if not all(np.array_equal(first_arrays[name], arrays.get(name, np.zeros(0))) for name in inputs):
            differences = {"the same weights and batches": _Difference(math.inf, None, 0.0)}
        else:
            differences = _differences(arrays, truth, steps)
            if spec.precision == "float64" and has_default_epsilon(spec.optimizer):
                rates = [rate(step) for step in range(1, steps + 1)]
                differences = _with_default_epsilon(spec.optimizer, rates, architecture, arrays, truth, differences)
            elif spec.precision != "float64":
                differences = {what: difference._replace(tolerance=None) for what, difference in differences.items()}
                if differences[_GRADIENTS].difference > RELU_FLIP_THRESHOLD:
                    differences |= _difference_with_framework_decisions(spec, architecture, num_examples, arrays)
        run = spec.model_label, optimizer, framework, spec.precision, np.dtype(dtype).name
        lines += [RefereeComparison(*run, what, *difference) for what, difference in differences.items()]
    return lines


def update_rule(settings: Optimizer) -> training.RefereeSGD | training.RefereeAdam:
    """Return the referee's update rule of an optimizer, with empty state."""
    if settings.name == "adam":
        return training.RefereeAdam(settings.beta_1, settings.beta_2, settings.epsilon, settings.weight_decay)
    return training.RefereeSGD(settings.momentum, settings.weight_decay)


class _RefereeTraining(NamedTuple):
    losses: npt.NDArray[Any]
    gradients: Weights
    first: Weights
    last: Weights


def _train(
    spec: Spec, architecture: Architecture, rate: Callable[[int], float], arrays: Arrays, dtype: Any
) -> _RefereeTraining:
    update = update_rule(spec.optimizer)
    steps = spec.steps or 1
    mean, deviation = arrays["pixel_mean"].tolist(), arrays["pixel_std"].tolist()
    if spec.data.normalization == "none":
        mean, deviation = [0.0] * 3, [1.0] * 3
    batches = (
        RefereeBatch(
            network.scaled(arrays[f"images/{step}"], mean, deviation, dtype),
            arrays[f"labels/{step}"],
            [arrays[f"masks/{step}/{index}"].astype(bool) for index in range(len(architecture.dropouts))],
        )
        for step in range(steps)
    )
    losses: list[Any] = []
    gradients, first, last = Weights(), Weights(), Weights()
    for result, arrays_after in training.train(architecture, group(arrays, "initial/"), batches, update, rate, dtype):
        losses.append(result.loss)
        gradients, first, last = gradients or result.gradients, first or dict(arrays_after), arrays_after
    return _RefereeTraining(np.array(losses), gradients, first, last)


def _difference_with_framework_decisions(
    spec: Spec, architecture: Architecture, num_examples: int, arrays: Arrays
) -> Differences:
    """Return the gradients' difference if the referee decides the ties that explain it as the framework did."""
    initial = group(arrays, "initial/")
    teacher = {
        **arrays,
        "before/0/drawn": np.array(0),
        **{f"before/0/weights/{name}": array for name, array in initial.items()},
    }
    judge = single_steps.StepJudge(architecture, teacher, [0], BatchPlan(spec, architecture, num_examples))
    gradients = {name: np.asarray(array, np.float64) for name, array in group(arrays, "gradient/").items()}
    replay = judge.truth(spec, 0).with_found_ties(gradients)
    if replay is None:
        return {}
    theirs = replay.truth.step.gradients
    difference = _difference_to_largest(gradients, theirs, theirs)
    return {f"{_GRADIENTS} with {replay.turned} ties decided as there": _Difference(*difference, None, replay.turned)}


def _differences(arrays: Arrays, truth: _RefereeTraining, steps: int) -> Differences:
    loss_differences = relative(arrays["loss"].astype(truth.losses.dtype), truth.losses)
    results: dict[str, tuple[float, str | None]] = {_FIRST_LOSS: (float(loss_differences[0]), None)}
    if steps > 1:
        results[_LOSSES] = (float(loss_differences.max()), f"step {int(loss_differences.argmax()) + 1}")
    results[_GRADIENTS] = _difference_to_largest(group(arrays, "gradient/"), truth.gradients, truth.gradients)
    differences = {what: _Difference(*difference, TOLERANCES[what]) for what, difference in results.items()}
    differences |= _weight_differences(arrays, (_FIRST_UPDATE, _FIRST_STATISTICS), "stepped/", truth.first)
    if steps > 1:
        differences |= _weight_differences(arrays, (_LAST_WEIGHTS, _LAST_STATISTICS), "final/", truth.last)
    return differences


def _weight_differences(arrays: Arrays, kinds: tuple[str, str], prefix: str, after: Weights) -> Differences:
    """Compare weights, and statistics of BatchNorm, each relative to the largest change of its kind."""
    initial, differences = group(arrays, "initial/"), Differences()
    for is_statistic, what in enumerate(kinds):
        values = {
            key: value for key, value in after.items() if (key.rpartition(".")[2] in ("mean", "variance")) == is_statistic
        }
        if values:
            changes = {key: value - initial[key] for key, value in values.items()}
            difference = _difference_to_largest(group(arrays, prefix), values, changes)
            differences[what] = _Difference(*difference, TOLERANCES[what])
    return differences


def has_default_epsilon(settings: Optimizer) -> bool:
    """Whether the optimizer is Adam with its default epsilon."""
    return settings.name == "adam" and settings.epsilon == Optimizer.model_fields["epsilon"].default


def _with_default_epsilon(
    settings: Optimizer,
    rates: Sequence[float],
    architecture: Architecture,
    arrays: Arrays,
    truth: _RefereeTraining,
    differences: Differences,
) -> Differences:
    """Return the differences of Adam with a tiny epsilon, and the tolerances that its arithmetic gives.

    Adam's first direction is g / (|g| + epsilon), where g includes the weight decay. An error d of g moves it by at most
    d epsilon / (|g| - d + epsilon)^2. That is d / epsilon where g is zero, and far less than d where it is large. So each value
    has a tolerance of its own. The value that is nearest to its tolerance is shown. The gradients of the array differ by d,
    which is judged alone.

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
    biases_without_effect = step_truth.biases_cancelled_by_batch_norm(architecture)
    judged_names = [name for name in directions if name not in biases_without_effect]
    plain, kinds = TOLERANCES[_FIRST_UPDATE], (_FIRST_UPDATE, _FIRST_STATISTICS)
    without = {name: truth.first[name] for name in judged_names}
    widening = max(_weight_differences(arrays, kinds, "stepped/", without)[_FIRST_UPDATE].difference / plain, 1.0)
    last = {_LAST_WEIGHTS, _LAST_STATISTICS}
    judged = {what: difference for what, difference in differences.items() if what not in last}
    judged[_FIRST_UPDATE] = _nearest_to_tolerance(
        arrays, "stepped/", truth.first, list(directions), directions, rates[0], plain
    )
    if _LAST_WEIGHTS in differences:
        judged[_LOSSES] = judged[_LOSSES]._replace(tolerance=widening * TOLERANCES[_LOSSES])
        plain = widening * TOLERANCES[_LAST_WEIGHTS]
        judged[_LAST_WEIGHTS] = _nearest_to_tolerance(arrays, "final/", truth.last, judged_names, directions, sum(rates), plain)
        not_judged = {*directions, *(f"{following}.mean" for following in biases_without_effect.values())}
        statistics = {name: value for name, value in truth.last.items() if name not in not_judged}
        for what, difference in _weight_differences(arrays, (_LAST_WEIGHTS, _LAST_STATISTICS), "final/", statistics).items():
            judged[what] = difference._replace(tolerance=plain)
    return {
        what: difference._replace(tolerance=None) if _is_loose(difference) else difference
        for what, difference in judged.items()
    }


def _is_loose(difference: _Difference) -> bool:
    return (difference.tolerance or 0.0) >= LOOSE_TOLERANCE and math.isfinite(difference.difference)


def _nearest_to_tolerance(
    arrays: Arrays, prefix: str, after: Weights, names: Sequence[str], directions: Weights, rate: float, plain: float
) -> _Difference:
    """Return the difference of the value nearest to its tolerance, relative to the largest change."""
    initial, ours = group(arrays, "initial/"), group(arrays, prefix)
    largest = max(float(np.abs(after[name] - initial[name]).max()) for name in names)
    candidates: list[tuple[float, _Difference]] = []
    for name in names:
        differences, allowed = absolute(after[name], ours.get(name)) / largest, plain + rate * directions[name] / largest
        ratios = np.where(np.isfinite(differences), differences / allowed, math.inf)
        place = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
        difference = float(differences[place]) if np.isfinite(differences[place]) else math.inf
        candidates.append((float(ratios[place]), _Difference(difference, name, float(allowed[place]))))
    return max(candidates)[1]


def _difference_to_largest(ours: Arrays, theirs: Weights, scale: Weights) -> tuple[float, str | None]:
    largest = max(float(np.abs(array).max()) for array in scale.values())
    return largest_difference(
        [(on_scale(float(absolute(array, ours.get(name)).max()), largest), name) for name, array in theirs.items()]
    )


def caution_sentences(lines: Sequence[RefereeComparison], longdouble_bits: int = np.finfo(np.longdouble).nmant) -> list[str]:
    """Return sentences on the limits of these comparisons.

    Args:
        lines: the comparisons.
        longdouble_bits: bits of the mantissa of `np.longdouble` on this machine.
    """
    sentences: list[str] = []
    if any(line.referee == np.dtype(np.longdouble).name for line in lines):
        if longdouble_bits == np.finfo(np.float64).nmant:
            sentences.append("On this machine longdouble is float64: the step in it proves nothing more.")
        else:
            sentences.append(
                f"One step of {FEW_IMAGES} images was done in longdouble, which has a mantissa of {longdouble_bits} bits here."
            )
    if any(line.optimizer == "adam" for line in lines):
        sentences.append(f"Adam's epsilon is {EPSILON:g} in the rows `adam`, unless the spec sets one.")
    if any("epsilon" in line.optimizer for line in lines):
        sentences.append(
            "With Adam's own epsilon, a gradient of zero moves its weight by its rounding. So each value of the first update "
            "has a tolerance of its own, computed from this rounding. The last values of biases in front of BatchNorm, and the "
            "running means that follow them, are not compared."
        )
    return sentences


def closer_framework_sentences(lines: Sequence[RefereeComparison]) -> list[str]:
    """Say for each run which framework is closer to the referee in float32, and by how much."""
    sentences: list[str] = []
    narrow = [line for line in lines if line.precision == "float32"]
    for model, optimizer in dict.fromkeys((line.model, line.optimizer) for line in narrow):
        aspects = [line.what for line in narrow if (line.model, line.optimizer) == (model, optimizer) and line.ties is None]
        for what in dict.fromkeys(aspects):
            ranked = sorted(
                (line for line in narrow if (line.model, line.optimizer, line.what) == (model, optimizer, what)),
                key=lambda line: line.difference,
            )
            if len(ranked) < 2:
                continue
            best, worst = ranked[0], ranked[-1]
            pair_text = f"{best.difference:.1e} against {worst.difference:.1e}"
            if best.difference == worst.difference:
                sentences.append(f"{model}, {optimizer}, {what}: both are as close to the referee ({best.difference:.1e}).")
            elif worst.difference > RELU_FLIP_THRESHOLD:
                not_sums = "The order of sums alone does not explain that."
                sentences.append(f"{model}, {optimizer}, {what}: {best.framework} is closer ({pair_text}). {not_sums}")
            else:
                times = worst.difference / best.difference if best.difference else math.inf
                sentences.append(f"{model}, {optimizer}, {what}: {best.framework} is {times:.1f} times as close ({pair_text}).")
    sentences += [
        _flip_sentence(line, narrow) for line in narrow if line.difference > RELU_FLIP_THRESHOLD and line.what == _GRADIENTS
    ]
    if sentences:
        sentences.append("This is one step on one machine. Other processors have other kernels, and another order of sums.")
    return sentences


def _flip_sentence(line: RefereeComparison, lines: Sequence[RefereeComparison]) -> str:
    """Say whether ties explain a float32 gradient that is far from the referee's."""
    start = (
        f"{line.model}, {line.optimizer}, {line.framework}: a gradient differs by {line.difference:.1e} ({line.where}), too "
        "much for rounded sums."
    )
    tie_line = next((other for other in lines if other[:3] == line[:3] and other.ties is not None), None)
    if tie_line is None:
        return f"{start} There are too many ties (a ReLU at zero, equal maxima) to tell whether they explain it."
    if tie_line.difference <= RELU_FLIP_THRESHOLD:
        return (
            f"{start} It is no fault: rounding decided {tie_line.ties} ties (a ReLU at zero, equal maxima) otherwise than in "
            f"float64. If the referee decides them alike, it differs by {tie_line.difference:.1e}."
        )
    return f"{start} None of the ties that were tried (a ReLU at zero, equal maxima) explain it. It may be a fault."
