"""Checks of the first steps of a training against the plan and the referee, of single steps, and of parallel modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from common import spec
from common.data.batches import BatchPlan
from common.data.sources import Dataset
from common.models import weights
from common.models.architectures import Architecture
from common.models.weights import Weights
from common.spec import Spec
from common.training.tracing import group, state_before
from compare.proof import ladder, referee_check, single_steps
from compare.proof.differences import Arrays, scaled_difference
from compare.proof.recordings import TraceRequest
from compare.proof.referee import network
from compare.proof.referee.network import RefereeBatch
from compare.running import launch
from compare.tools.conformance.trial import (
    TOLERANCE,
    Faults,
    TwinUnderTest,
    expected_logits,
    list_some,
    load_data_and_model,
    rung_faults,
    spec_of,
)

_LEAVES = "leaves:classes=2,images=60,size=32"


def check_training(trial: TwinUnderTest) -> Faults:
    specs = {
        (model, optimizer): referee_check.referee_spec(spec_of(model, optimizer)).with_fields(steps=steps)
        for model, steps in trial.model_steps.items()
        for optimizer in (trial.optimizers if model == "simple_cnn" else ("sgd",))
    }
    trial.recorder.make(TraceRequest("referee", trial.name, spec, ("--batches",)) for spec in specs.values())  # by one process
    for (model, optimizer), run_spec in specs.items():
        dataset, architecture = load_data_and_model(run_spec)
        recorded = trial.record(run_spec, "referee", "--batches")
        faults = [*_recording_faults(run_spec, dataset, architecture, recorded)]
        yield from (f"{model}, {optimizer}: {fault}" for fault in faults)
        if faults:
            continue
        lines = referee_check.compare(run_spec, architecture, len(dataset.train), {trial.name: recorded}, np.float64)
        yield from (
            f"{model}, {optimizer}: {line.what} differ from the referee by {line.difference:.1e}, tolerance "
            f"{line.tolerance:.0e} ({line.where})"
            for line in lines
            if line.status == "failed"
        )
        expected = expected_logits(architecture, group(recorded, "initial/"), recorded["images/0"])
        if (difference := scaled_difference(recorded["logits/eval"], expected)) > TOLERANCE:
            yield f"{model}, {optimizer}: logits/eval differ from the referee by {difference:.1e}, tolerance {TOLERANCE:.0e}"


def _recording_faults(spec: Spec, dataset: Dataset, architecture: Architecture, recorded: Arrays) -> Faults:
    """Yield faults of a recording: in names, shapes, types, drawn weights, and the plan's examples, pixels and masks."""
    parameters = architecture.parameters()
    trainable = [parameter.name for parameter in parameters if parameter.trainable]
    all_names = [parameter.name for parameter in parameters]
    required = {"ids", "loss", "num_correct", "num_values", "pixels", "decoded", "logits/train", "logits/eval", "logits/final"}
    required |= {f"{prefix}/{name}" for prefix in ("initial", "stepped", "final") for name in all_names}
    required |= {f"gradient/{name}" for name in trainable}
    if lacking := sorted(required - recorded.keys()):
        yield f"the recording lacks {list_some(lacking)}"
        return
    drawn = weights.initial(architecture, spec.seed)
    for parameter in parameters:
        array = recorded[f"initial/{parameter.name}"]
        if array.dtype != spec.precision or not np.array_equal(array, drawn[parameter.name].astype(spec.precision)):
            yield f"initial/{parameter.name} is not the drawn array. Received: {array.dtype} {list(array.shape)}"
    plan = BatchPlan(spec, architecture, len(dataset.train))
    num_seen = 0
    for step in range(spec.steps or 1):
        number, position = divmod(step, plan.steps_per_epoch)
        epoch, (start, stop) = plan.draw(number + 1), plan.batch(position)
        ids = epoch.ids[start:stop]
        if not np.array_equal(recorded["ids"][num_seen : num_seen + len(ids)], ids):
            yield f"step {step + 1} trains on other examples than the plan's"
        num_seen += len(ids)
        assert epoch.flips is not None and epoch.shifts is not None, "spec_of asks for both"
        images = _augmented(dataset.train.images[ids], epoch.flips[start:stop], epoch.shifts[start:stop])
        if not np.array_equal(recorded[f"images/{step}"], images):
            yield f"step {step + 1} trains on other pixels than the plan's flips and shifts give"
        for index, units in enumerate(epoch.mask_units):
            mask = np.unpackbits(epoch.masks[index][start:stop], axis=1, count=units, bitorder="little").astype(bool)
            if not np.array_equal(recorded[f"masks/{step}/{index}"], mask):
                yield f"step {step + 1} has another dropout mask than the plan's"


def _augmented(images: npt.NDArray[Any], flips: npt.NDArray[Any], shifts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Flip and shift one image at a time, with zeros moving in."""
    augmented = np.zeros_like(images)
    size = images.shape[1]
    for index, (image, flip, shift) in enumerate(zip(images, flips, shifts, strict=True)):
        source = image[:, ::-1] if flip else image
        target, origin = zip(
            *(
                (slice(max(-offset, 0), size - max(offset, 0)), slice(max(offset, 0), size + min(offset, 0)))
                for offset in shift
            ),
            strict=True,
        )
        augmented[index][target] = source[origin]
    return augmented


def check_input(trial: TwinUnderTest) -> Faults:
    data = {"source": _LEAVES}
    specs = {
        "cached": spec_of(data=data),
        "input-workers": spec_of(data=data, input="workers", workers=2),
        "loading-streaming": spec_of(data={**data, "loading": "streaming"}),
        "streaming-workers": spec_of(data={**data, "loading": "streaming"}, input="workers", workers=2),
    }
    trial.recorder.make(TraceRequest(name, trial.name, spec) for name, spec in specs.items())
    first, *others = (trial.record(spec, name) for name, spec in specs.items())
    for name, other in zip(list(specs)[1:], others, strict=True):
        yield from (
            f"{name} gives other {name_of_array}"
            for name_of_array in ("ids", "pixels")
            if not np.array_equal(first[name_of_array], other[name_of_array])
        )


STEPS = (0, 1, 4)
_DRAWN = ("--drawn", ",".join(map(str, STEPS)))
_SLOTS = {"sgd": {"buffer"}, "adam": {"mean", "square"}}


def check_single_steps(trial: TwinUnderTest) -> Faults:
    recordings = {
        f"{optimizer}, {precision}": TraceRequest(
            f"steps-{precision}", trial.name, spec_of(optimizer=optimizer, precision=precision, steps=6), _DRAWN
        )
        for optimizer in trial.optimizers
        for precision in trial.precisions
    }
    trial.recorder.make(recordings.values())  # by one process
    for label, recording in recordings.items():
        yield from (f"{label}: {fault}" for fault in _step_faults(trial, recording))


def _step_faults(trial: TwinUnderTest, recording: TraceRequest) -> Faults:
    spec, recorded = recording.spec, trial.recorder.arrays(recording)
    dataset, architecture = load_data_and_model(spec)
    trainable = {parameter.name for parameter in architecture.parameters() if parameter.trainable}
    slots = {name.split("/")[0] for name in group(recorded, "after/0/slots/")}
    if slots != _SLOTS[spec.optimizer.name]:
        expected = ", ".join(sorted(_SLOTS[spec.optimizer.name]))
        yield f"the optimizer's slots must be {expected}. Received: {list_some(sorted(slots))}"
        return
    slot_names = {slot: set(group(recorded, f"after/0/slots/{slot}/")) for slot in slots}
    if wrong := [slot for slot, names in slot_names.items() if names != trainable]:
        yield f"{wrong[0]} must have one array for each trainable parameter, by its name"
        return
    replayed = trial.record(spec, f"{recording.label}-again", *_DRAWN, teacher=recording)
    for name in sorted(name for name in recorded if name.startswith(("after/", "loss/"))):
        tolerance = {"float32": 1e-5, "float64": TOLERANCE}[spec.precision]
        if name not in replayed or scaled_difference(replayed[name], recorded[name]) > tolerance:
            yield f"{name} differs if its state is loaded from a recording"
            break
    # A judge takes the gradients of a float64 recording for the truth. So it gets the referee's, never the twin's own.
    truth = recorded if spec.precision == "float32" else by_referee(spec, architecture, recorded)
    judge = single_steps.StepJudge(architecture, truth, STEPS, BatchPlan(spec, architecture, len(dataset.train)))
    yield from rung_faults(judge.rungs(spec, recorded, trial.name))


def by_referee(spec: Spec, architecture: Architecture, recorded: Arrays) -> Arrays:
    """Return a recording of the same float64 steps by the referee, each from the recorded state before it."""
    arrays = {name: array for name, array in recorded.items() if not name.startswith("after/")}
    scaling = recorded["pixel_mean"].tolist(), recorded["pixel_std"].tolist()

    def add_state(prefix: str, weights: Weights, slots: Mapping[str, Weights]) -> None:
        arrays.update({f"{prefix}/weights/{name}": array for name, array in weights.items()})
        arrays.update(
            {f"{prefix}/slots/{slot}/{name}": array for slot, values in slots.items() for name, array in values.items()}
        )

    for number, step in enumerate(STEPS, start=1):
        weights, slots = state_before(recorded, step)
        images = network.scaled(recorded[f"images/{step}"], *scaling, np.float64)
        masks = [recorded[f"masks/{step}/{index}"].astype(bool) for index in range(len(architecture.dropouts))]
        result = network.gradients(architecture, weights, RefereeBatch(images, recorded[f"labels/{step}"], masks))
        rule = referee_check.update_rule(spec.optimizer)
        for slot, values in slots.items():
            setattr(rule, f"{slot}s", dict(values))
        for name, gradient in result.gradients.items():
            rule.update(name, weights[name], gradient, 0.0, number)
        arrays |= {f"loss/{step}": np.array([result.loss]), f"before/{step}/drawn": np.array(step)}
        add_state(f"before/{step}", weights, slots)
        add_state(f"after/{step}", result.statistics, {slot: getattr(rule, f"{slot}s") for slot in slots})
    return arrays


def check_modes(trial: TwinUnderTest) -> Faults:
    for name, mode in trial.description["modes"].items():
        words = [word for word, traits in spec.MODES.items() if traits.name == name and traits.is_parallel]
        if not mode["available"] or not words:
            continue
        # BatchNorm over all replicas is tried where they share a process.
        serial = spec_of("mini_xception" if spec.MODES[words[0]].processes == "one" else "simple_cnn")
        request = ladder.ProofRequest(serial, trial.twins, words, replicas=2, steps=5)
        proof = ladder.prove(request, out=trial.out / name, progress=trial.progress, remember=False)
        yield from rung_faults(proof.rungs)
        for word in words:
            parallel = spec.build(spec.with_variant(serial.model_dump(), word, 2))
            if parallel.not_serial_because is None and not any(rung.mode == word for rung in proof.rungs):
                yield f"{word}: it is called available, and nothing of it could be tried with 2 replicas"
            elif parallel.not_serial_because is not None and (code := trial.run(parallel, f"{word}-run")[0]) != 0:
                yield f"{word}: a run ended with {launch.describe_exit(code)}"
