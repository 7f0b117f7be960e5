"""Single steps from a recorded state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from common.data.batches import Plan
from common.models.architectures import Architecture
from common.models.weights import Weights
from common.spec import Spec
from common.training.tracing import group, state_before
from compare.conformance.trial import TOLERANCE, Faults, Trial, failed, loaded, some, spec_of
from compare.execution import options
from compare.proof import single_steps, third_opinion
from compare.proof.differences import Arrays, scaled
from compare.proof.recordings import Recording
from compare.proof.referee import network
from compare.proof.referee.network import Batch

STEPS, PRECISIONS = (0, 1, 4), ("float32", "float64")
_DRAWN = ("--drawn", ",".join(map(str, STEPS)))
_SLOTS = {"sgd": {"buffer"}, "adam": {"mean", "square"}}


def check(trial: Trial) -> Faults:
    wanted = {
        f"{optimizer}, {precision}": Recording(
            f"steps-{precision}", trial.name, spec_of(optimizer=optimizer, precision=precision, steps=6), _DRAWN
        )
        for optimizer in options.OPTIMIZERS
        for precision in PRECISIONS
    }
    trial.recorder.make(wanted.values())  # by one process
    for where, recording in wanted.items():
        yield from (f"{where}: {fault}" for fault in _step_faults(trial, recording))


def _step_faults(trial: Trial, recording: Recording) -> Faults:
    what, recorded = recording.what, trial.recorder.arrays(recording)
    dataset, architecture = loaded(what)
    trainable = {parameter.name for parameter in architecture.parameters() if parameter.trainable}
    slots = {name.split("/")[0] for name in group(recorded, "after/0/slots/")}
    if slots != _SLOTS[what.optimizer.name]:
        yield f"the optimizer's slots must be {', '.join(sorted(_SLOTS[what.optimizer.name]))}. Received: {some(sorted(slots))}"
        return
    kept = {slot: set(group(recorded, f"after/0/slots/{slot}/")) for slot in slots}
    if other := [slot for slot, found in kept.items() if found != trainable]:
        yield f"{other[0]} must have one array for each trainable parameter, by its name"
        return
    again = trial.traced(what, f"{recording.label}-again", *_DRAWN, teacher=recording)
    for name in sorted(name for name in recorded if name.startswith(("after/", "loss/"))):
        unit = {"float32": 1e-5, "float64": TOLERANCE}[what.precision]
        if name not in again or scaled(again[name], recorded[name]) > unit:
            yield f"{name} differs if its state is loaded from a recording"
            break
    # A judge takes the gradients of a float64 recording for the truth. So it gets the referee's, never the twin's own.
    truth = recorded if what.precision == "float32" else by_referee(what, architecture, recorded)
    judge = single_steps.Judge(architecture, truth, STEPS, Plan(what, architecture, len(dataset.train)))
    yield from failed(judge.rungs(what, recorded, trial.name))


def by_referee(what: Spec, architecture: Architecture, recorded: Arrays) -> Arrays:
    """The recording of the same float64 steps by the referee, each from the recorded state before it."""
    made = {name: array for name, array in recorded.items() if not name.startswith("after/")}
    scaling = recorded["pixel_mean"].tolist(), recorded["pixel_std"].tolist()

    def keep(prefix: str, weights: Weights, slots: Mapping[str, Weights]) -> None:
        made.update({f"{prefix}/weights/{name}": array for name, array in weights.items()})
        made.update({f"{prefix}/slots/{slot}/{name}": array for slot, each in slots.items() for name, array in each.items()})

    for number, step in enumerate(STEPS, start=1):
        weights, slots = state_before(recorded, step)
        images = network.scaled(recorded[f"images/{step}"], *scaling, np.float64)
        masks = [recorded[f"masks/{step}/{index}"].astype(bool) for index in range(len(architecture.dropouts))]
        found = network.gradients(architecture, weights, Batch(images, recorded[f"labels/{step}"], masks))
        rule = third_opinion.rule_of(what.optimizer)
        for slot, values in slots.items():
            setattr(rule, f"{slot}s", dict(values))
        for name, gradient in found.gradients.items():
            rule.update(name, weights[name], gradient, 0.0, number)
        made |= {f"loss/{step}": np.array([found.loss]), f"before/{step}/drawn": np.array(step)}
        keep(f"before/{step}", weights, slots)
        keep(f"after/{step}", found.statistics, {slot: getattr(rule, f"{slot}s") for slot in slots})
    return made
