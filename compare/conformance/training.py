"""Check of the first steps of a training: the plan's batches, and the referee's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from common.data.batches import BatchPlan
from common.data.sources import Dataset
from common.models import weights
from common.models.architectures import Architecture
from common.spec import Spec
from common.training.tracing import group
from compare.conformance import evaluation
from compare.conformance.trial import TOLERANCE, Faults, TwinUnderTest, list_some, load_data_and_model, spec_of
from compare.proof import referee_check
from compare.proof.differences import Arrays, scaled_difference
from compare.proof.recordings import TraceRequest

_LEAVES = "leaves:classes=2,images=60,size=32"


def check(trial: TwinUnderTest) -> Faults:
    specs = {
        (model, optimizer): referee_check.referee_spec(spec_of(model, optimizer)).with_fields(steps=steps)
        for model, steps in trial.model_steps.items()
        for optimizer in (trial.optimizers if model == "simple_cnn" else ("sgd",))
    }
    trial.recorder.make(TraceRequest("referee", trial.name, spec, ("--batches",)) for spec in specs.values())  # by one process
    for (model, optimizer), spec in specs.items():
        dataset, architecture = load_data_and_model(spec)
        recorded = trial.record(spec, "referee", "--batches")
        faults = [*_recording_faults(spec, dataset, architecture, recorded)]
        yield from (f"{model}, {optimizer}: {fault}" for fault in faults)
        if faults:
            continue
        lines = referee_check.compare(spec, architecture, len(dataset.train), {trial.name: recorded}, np.float64)
        yield from (
            f"{model}, {optimizer}: {line.what} differ from the referee by {line.difference:.1e}, tolerance "
            f"{line.tolerance:.0e} ({line.where})"
            for line in lines
            if line.status == "failed"
        )
        expected = evaluation.logits(architecture, group(recorded, "initial/"), recorded["images/0"])
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
