"""Which modes claim to train as serial does, as they are timed, and why others do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import spec
from common.models import user_code
from common.models.architectures import Architecture
from common.spec import Spec
from compare.running import launch
from compare.running.twins import Twins

WITHOUT_SWITCHES = "the float64 proof is made without its switches"


def reasons_not_claimed(
    timed_spec: Spec, architecture: Architecture, modes: Sequence[str], replicas: int, frameworks: Sequence[str]
) -> dict[str, str]:
    """Return the modes and frameworks that do not claim to be the proved mathematics as they are timed, each with its reason.

    Args:
        timed_spec: the run that the proof is for.
        modes: the parallel modes.
        replicas: the replicas of those modes.
        frameworks: contestants all of whose runs have switches that the float64 proof is made without.
    """
    reasons: dict[str, str] = {}
    for mode in modes:
        parallel = spec.build(spec.with_variant({**timed_spec.model_dump(), "global_batch_size": replicas}, mode, replicas))
        if parallel.not_serial_because is not None:
            reasons[mode] = parallel.not_serial_because
        elif parallel.data_replicas == 1:
            continue
        elif architecture.has_batch_norm and parallel.traits.cuts_batches:
            reasons[mode] = "BatchNorm over the micro-batches of each copy's shard is another function than serial's"
        elif architecture.has_batch_norm and timed_spec.batch_norm_statistics == "per_replica":
            statistics = "BatchNorm over each replica's own examples (batch_norm_statistics=per_replica)"
            reasons[mode] = f"{statistics} is another function than serial's"
        elif timed_spec.schedule.scaling != "none":
            reasons[mode] = "the learning rate is scaled with the replicas"
        elif architecture.has_batch_norm and timed_spec.accumulation > 1:
            reasons[mode] = "gradients are added up over parts of each replica's shard, not of the whole batch"
    reasons |= dict.fromkeys(frameworks, WITHOUT_SWITCHES)
    if timed_spec.optimizer.native:
        reasons |= dict.fromkeys(("serial", *modes), "the frameworks' own optimizers follow different rules")
    return reasons


def other_baselines(timed_spec: Spec, architecture: Architecture, modes: Sequence[str]) -> dict[str, str]:
    """Return the modes whose counterpart is not the serial run beside them: mode to that run."""
    pipelines = [mode for mode in modes if _is_plain_pipeline(spec.MODES[mode])]
    if not architecture.has_batch_norm or not pipelines:
        return {}
    micro_batches = spec.micro_batches(timed_spec.global_batch_size, timed_spec.pipeline.micro_batches)
    description = (
        f"serial that adds up the gradients of {micro_batches} parts of a batch, because BatchNorm sees one part at a time"
    )
    return dict.fromkeys(pipelines, description) if micro_batches > 1 else {}


def _is_plain_pipeline(mode: spec.Mode) -> bool:
    return mode.cuts_batches and not mode.is_nested and not mode.has_late_gradients


def has_single_steps(run_spec: Spec) -> bool:
    """Whether one step of a run follows from the state before it: it differs from serial only by compression."""
    if run_spec.compresses:
        run_spec = run_spec.with_fields(communication={**run_spec.communication.model_dump(), "compression": "none"})
    return run_spec.not_serial_because is None


def has_switches(timed_spec: Spec) -> bool:
    """Whether a run has other switches than `usual`."""
    return bool(timed_spec.framework_options) or timed_spec.switches != "usual"


def keeps_mathematics(twins: Twins, name: str, timed_spec: Spec) -> bool:
    """Whether the float64 proof covers a run's switches: those of a level and of the contestant, if they keep full precision.

    Layout, graph, threads and kernels do not change the mathematics. Switches that a spec names, or that were searched, differ
    between frameworks, so no single proof covers them.
    """
    switches = proved_switches(twins, name, timed_spec.with_fields(precision="float64"))
    return (
        timed_spec.switches != "best"
        and timed_spec.framework_options.items() <= switches.items()
        and not reduced_precision_switches(twins, name, timed_spec)
    )


def proved_switches(twins: Twins, name: str, *specs: Spec) -> dict[str, Any]:
    """Return the switches of a contestant in its float64 proof: those that keep full precision and fit all these specs."""
    contestant_switches = twins[name].switches
    if not contestant_switches:
        return {}
    options = spec.description_for_device(specs[0], twins.describe(name))["options"]
    return {
        switch: value
        for switch, value in contestant_switches.items()
        if switch in options and value not in options[switch].get("reduced", ())
        if all(spec.incompatibility(run_spec, options[switch], value) is None for run_spec in specs)
    }


def reduced_precision_switches(twins: Twins, name: str, timed_spec: Spec) -> list[str]:
    """Return the switches that reduce the precision of a run. The twin is asked only if there are switches."""
    return (
        spec.reduced_precision_switches(timed_spec, spec.description_for_device(timed_spec, twins.describe(name))["options"])
        if has_switches(timed_spec)
        else []
    )


def has_own_builders(model: str) -> bool:
    """Whether a user's model builds its networks itself, so that its architecture may not say all that they compute."""
    module = user_code.module(model)
    return any(hasattr(module, f"build_{framework}") for framework in launch.FRAMEWORKS)
