"""Check of single steps from a recorded state."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from common.data.batches import BatchPlan
from common.models.architectures import Architecture
from common.models.weights import Weights
from common.spec import Spec
from common.training.tracing import group, state_before
from compare.conformance.trial import TOLERANCE, Faults, TwinUnderTest, list_some, load_data_and_model, rung_faults, spec_of
from compare.proof import referee_check, single_steps
from compare.proof.differences import Arrays, scaled_difference
from compare.proof.recordings import TraceRequest
from compare.proof.referee import network
from compare.proof.referee.network import RefereeBatch

STEPS = (0, 1, 4)
_DRAWN = ("--drawn", ",".join(map(str, STEPS)))
_SLOTS = {"sgd": {"buffer"}, "adam": {"mean", "square"}}


def check(trial: TwinUnderTest) -> Faults:
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
