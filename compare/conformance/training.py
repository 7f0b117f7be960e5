"""The first steps of a training: the plan's batches, and the referee's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from common.data.batches import Plan
from common.data.sources import Dataset
from common.models import weights
from common.models.architectures import Architecture
from common.spec import Spec
from common.training.tracing import group
from compare.conformance import evaluation
from compare.conformance.trial import TOLERANCE, Faults, Trial, loaded, some, spec_of
from compare.execution import options
from compare.proof import third_opinion
from compare.proof.differences import Arrays, scaled
from compare.proof.recordings import Recording

STEPS = {"simple_cnn": 10, "mini_xception": 4, "resnet18": 2, "two_path_cnn": 4}
"""Of each model's training that the referee repeats. Other built-in models are made of the same kinds of layers."""
_LEAVES = "leaves:classes=2,images=60,size=32"


def check(trial: Trial) -> Faults:
    specs = {
        (model, optimizer): third_opinion.spec_of(spec_of(model, optimizer)).with_fields(steps=steps)
        for model, steps in STEPS.items()
        for optimizer in (options.OPTIMIZERS if model == "simple_cnn" else ("sgd",))
    }
    trial.recorder.make(Recording("referee", trial.name, what, ("--batches",)) for what in specs.values())  # by one process
    for (model, optimizer), what in specs.items():
        dataset, architecture = loaded(what)
        recorded = trial.traced(what, "referee", "--batches")
        faults = [*_recorded(what, dataset, architecture, recorded)]
        yield from (f"{model}, {optimizer}: {fault}" for fault in faults)
        if faults:
            continue
        lines = third_opinion.compare(what, architecture, len(dataset.train), {trial.name: recorded}, np.float64)
        yield from (
            f"{model}, {optimizer}: {line.what} differ from the referee by {line.difference:.1e}, tolerance "
            f"{line.tolerance:.0e} ({line.where})"
            for line in lines
            if line.status == "failed"
        )
        expected = evaluation.logits(architecture, group(recorded, "initial/"), recorded["images/0"])
        if (apart := scaled(recorded["logits/eval"], expected)) > TOLERANCE:
            yield f"{model}, {optimizer}: logits/eval differ from the referee by {apart:.1e}, tolerance {TOLERANCE:.0e}"


def _recorded(what: Spec, dataset: Dataset, architecture: Architecture, recorded: Arrays) -> Faults:
    """What a recording lacks: names, shapes and types, the drawn weights, the plan's examples, pixels and masks."""
    parameters = architecture.parameters()
    trainable = [parameter.name for parameter in parameters if parameter.trainable]
    everything = [parameter.name for parameter in parameters]
    wanted = {"ids", "loss", "num_correct", "num_values", "pixels", "decoded", "logits/train", "logits/eval", "logits/final"}
    wanted |= {f"{prefix}/{name}" for prefix in ("initial", "stepped", "final") for name in everything}
    wanted |= {f"gradient/{name}" for name in trainable}
    if lacking := sorted(wanted - recorded.keys()):
        yield f"the recording lacks {some(lacking)}"
        return
    drawn = weights.initial(architecture, what.seed)
    for parameter in parameters:
        found = recorded[f"initial/{parameter.name}"]
        if found.dtype != what.precision or not np.array_equal(found, drawn[parameter.name].astype(what.precision)):
            yield f"initial/{parameter.name} is not the drawn array. Received: {found.dtype} {list(found.shape)}"
    plan = Plan(what, architecture, len(dataset.train))
    taken = 0
    for step in range(what.steps or 1):
        number, position = divmod(step, plan.steps_per_epoch)
        epoch, (start, stop) = plan.draw(number + 1), plan.batch(position)
        ids = epoch.ids[start:stop]
        if not np.array_equal(recorded["ids"][taken : taken + len(ids)], ids):
            yield f"step {step + 1} trains on other examples than the plan's"
        taken += len(ids)
        assert epoch.flips is not None and epoch.shifts is not None, "spec_of asks for both"
        images = _augmented(dataset.train.images[ids], epoch.flips[start:stop], epoch.shifts[start:stop])
        if not np.array_equal(recorded[f"images/{step}"], images):
            yield f"step {step + 1} trains on other pixels than the plan's flips and shifts give"
        for index, units in enumerate(epoch.mask_units):
            mask = np.unpackbits(epoch.masks[index][start:stop], axis=1, count=units, bitorder="little").astype(bool)
            if not np.array_equal(recorded[f"masks/{step}/{index}"], mask):
                yield f"step {step + 1} has another dropout mask than the plan's"


def _augmented(images: npt.NDArray[Any], flips: npt.NDArray[Any], shifts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Flipped and shifted one image at a time, zeros moving in."""
    made = np.zeros_like(images)
    size = images.shape[1]
    for index, (image, flip, moved) in enumerate(zip(images, flips, shifts, strict=True)):
        source = image[:, ::-1] if flip else image
        to, of = zip(
            *((slice(max(-by, 0), size - max(by, 0)), slice(max(by, 0), size + min(by, 0))) for by in moved), strict=True
        )
        made[index][to] = source[of]
    return made


def check_input(trial: Trial) -> Faults:
    data = {"source": _LEAVES}
    specs = {
        "cached": spec_of(data=data),
        "input-workers": spec_of(data=data, input="workers", workers=2),
        "loading-streaming": spec_of(data={**data, "loading": "streaming"}),
        "streaming-workers": spec_of(data={**data, "loading": "streaming"}, input="workers", workers=2),
    }
    trial.recorder.make(Recording(name, trial.name, what) for name, what in specs.items())
    first, *others = (trial.traced(what, name) for name, what in specs.items())
    for name, other in zip(list(specs)[1:], others, strict=True):
        yield from (f"{name} gives other {what}" for what in ("ids", "pixels") if not np.array_equal(first[what], other[what]))
