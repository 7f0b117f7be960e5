"""Which modes claim to train as serial does, as they are timed, and why others do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import spec
from common.models import user_code
from common.models.architectures import Architecture
from common.spec import Spec
from compare.execution import contestants, launch

WITHOUT_SWITCHES = "the float64 proof is made without its switches"


def not_claimed(
    timed: Spec, architecture: Architecture, modes: Sequence[str], replicas: int, frameworks: Sequence[str]
) -> dict[str, str]:
    """Mode or framework: why it does not claim to be the proved mathematics as it is timed.

    Args:
        timed: the run that the proof is for.
        modes: parallel ones.
        replicas: of those modes.
        frameworks: contestants all of whose runs have switches that the float64 proof is made without.
    """
    reasons: dict[str, str] = {}
    for mode in modes:
        asked = spec.build(spec.with_variant({**timed.model_dump(), "global_batch_size": replicas}, mode, replicas))
        if asked.not_serial_because is not None:
            reasons[mode] = asked.not_serial_because
        elif asked.data_replicas == 1:
            continue
        elif architecture.has_batch_norm and mode == "hybrid_pipeline":
            reasons[mode] = "BatchNorm over the micro-batches of each copy's shard is another function than serial's"
        elif architecture.has_batch_norm and timed.batch_norm_statistics == "per_replica":
            own = "BatchNorm over each replica's own examples (batch_norm_statistics=per_replica)"
            reasons[mode] = f"{own} is another function than serial's"
        elif timed.schedule.scaling != "none":
            reasons[mode] = "the learning rate is scaled with the replicas"
        elif architecture.has_batch_norm and timed.accumulation > 1:
            reasons[mode] = "the parts of a batch whose gradients are added up are parts of each replica's shard"
    reasons |= dict.fromkeys(frameworks, WITHOUT_SWITCHES)
    if timed.optimizer.native:
        reasons |= dict.fromkeys(("serial", *modes), "the frameworks' own optimizers follow different rules")
    return reasons


def compared_with(timed: Spec, architecture: Architecture, modes: Sequence[str]) -> dict[str, str]:
    """Mode: what its proof compares it with, if that is not the serial run that is timed beside it."""
    pipelines = [mode for mode in modes if mode in ("pipeline", "pipeline_1f1b")]
    if not architecture.has_batch_norm or not pipelines:
        return {}
    micro_batches = spec.micro_batches(timed.global_batch_size, timed.pipeline.micro_batches)
    words = f"serial that adds up the gradients of {micro_batches} parts of a batch, for BatchNorm sees one part at a time"
    return dict.fromkeys(pipelines, words) if micro_batches > 1 else {}


def has_single_steps(run: Spec) -> bool:
    """Whether one step of a run follows from the state before it: other mathematics than serial's only by compression."""
    if run.compresses:
        run = run.with_fields(communication={**run.communication.model_dump(), "compression": "none"})
    return run.not_serial_because is None


def has_switches(timed: Spec) -> bool:
    """Whether a run has other switches than `usual`."""
    return bool(timed.framework_options) or timed.switches != "usual"


def keeps_mathematics(name: str, timed: Spec) -> bool:
    """Whether the float64 proof can be made with a run's switches: those of a level and of the contestant, if all digits stay.

    Layout, graph, threads and kernels are no change of mathematics. Switches that a spec names, or that were searched, are
    each framework's own, so that no one proof has them.
    """
    own = proved_switches(name, timed.with_fields(precision="float64"))
    return timed.switches != "best" and timed.framework_options.items() <= own.items() and not reduced(name, timed)


def proved_switches(name: str, *specs: Spec) -> dict[str, Any]:
    """The switches of a contestant that its float64 proof is made with: those that keep all digits and fit all these specs."""
    wanted = contestants.by_name(name).switches
    if not wanted:
        return {}
    options = spec.description_for_device(specs[0], launch.describe(name))["options"]
    return {
        switch: value
        for switch, value in wanted.items()
        if switch in options and value not in options[switch].get("reduced", ())
        if all(spec.incompatibility(each, options[switch], value) is None for each in specs)
    }


def reduced(framework: str, timed: Spec) -> list[str]:
    """The switches that make a run compute with fewer digits. The framework is asked only if there are switches."""
    return spec.reduced_precision_switches(timed, spec.description_for_device(timed, launch.describe(framework))["options"]) if has_switches(timed) else []


def has_own_builders(model: str) -> bool:
    """Whether a user's model builds its networks itself, so that its architecture may not say all that they compute."""
    module = user_code.module(model)
    return any(hasattr(module, f"build_{framework}") for framework in launch.FRAMEWORKS)
