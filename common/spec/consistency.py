"""Checks that the fields of a spec fit each other. Each raises a SpecError that names field, value and fix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from common.spec.errors import SpecError, alternatives, did_you_mean
from common.spec.groups import Dask
from common.spec.modes import MODES
from common.spec.names import INPUTS, MODELS, SCHEDULERS

if TYPE_CHECKING:
    from common.spec.schema import Spec

_SKEW = Dask.model_fields["skew"].default


def check(spec: Spec) -> None:
    """Check that the fields of a spec fit each other."""
    _check_names(spec)
    _check_replicas(spec)
    _check_hosts(spec)
    _check_elastic(spec)
    _check_mode_fields(spec)
    _check_input(spec)


def _check_names(spec: Spec) -> None:
    if spec.model not in MODELS and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", spec.model):
        raise SpecError(
            f"model is unknown. Received: {spec.model!r}. Use {alternatives(MODELS)}{did_you_mean(spec.model, MODELS)}, or "
            "`package.module` of your own model, a name with a dot: its file lies in a folder."
        )
    if spec.model not in MODELS and spec.structure_overrides:
        received = ", ".join(f"{name} {value:g}" for name, value in spec.structure_overrides.items())
        raise SpecError(
            f"width, depth and dropout are of the built-in models. Received: {received} for {spec.model}, whose architecture() "
            "says its own. Leave them out."
        )
    for field, names in (("mode", MODES.names()), ("input", INPUTS)):
        value = getattr(spec, field)
        if value not in names:
            raise SpecError(f"{field} is unknown. Received: {value!r}. Use {alternatives(names)}{did_you_mean(value, names)}.")
    if spec.epochs is not None and spec.steps is not None:
        raise SpecError(f"epochs and steps exclude each other. Received: {spec.epochs} and {spec.steps}. Set one of them.")


def _check_replicas(spec: Spec) -> None:
    if not spec.is_parallel and spec.replicas != 1:
        raise SpecError(f"replicas must be 1 in mode serial. Received: {spec.replicas}. Use 1, or a parallel mode.")
    if spec.is_parallel and spec.replicas < 2:
        raise SpecError(
            f"replicas must be at least 2 in mode {spec.mode}: one replica is serial. Received: {spec.replicas}. Use 2."
        )
    inner = spec.hybrid.inner_replicas
    if spec.traits.is_nested and (spec.replicas % inner or spec.replicas == inner):
        raise SpecError(
            f"replicas must be at least twice hybrid.inner_replicas in mode hybrid, and a multiple of it. Received: "
            f"{spec.replicas} and {inner}. Use {2 * inner}."
        )
    remainder = spec.global_batch_size % spec.data_replicas
    if remainder:
        lower = spec.global_batch_size - remainder
        choices = [str(size) for size in (lower, lower + spec.data_replicas) if size]
        raise SpecError(
            f"global_batch_size must divide evenly over replicas. Received: {spec.global_batch_size} over "
            f"{spec.data_replicas}. Use {' or '.join(choices)}."
        )


def _check_elastic(spec: Spec) -> None:
    least = spec.least_replicas
    if least is None or not spec.is_parallel:  # that is what one replica is, and may be asked for together with others
        return
    if not spec.traits.is_elastic:
        elastic_modes = MODES.names(lambda mode: mode.is_elastic)
        raise SpecError(
            f"least_replicas is for {alternatives(elastic_modes)}. Received: {least} in mode {spec.mode}. Leave it out."
        )
    if least > spec.replicas:
        raise SpecError(f"least_replicas must be at most replicas. Received: {least} of {spec.replicas}. Use 1.")
    if spec.hosts:
        raise SpecError(f"least_replicas is for runs on one machine. Received: hosts {', '.join(spec.hosts)}. Leave one out.")
    if spec.communication.compression != "none" or spec.dask.order == "owned":
        which = "compressed gradients" if spec.communication.compression != "none" else "images that replicas own"
        raise SpecError(f"least_replicas is not for {which}, which depend on the replicas. Leave it out.")


def _check_hosts(spec: Spec) -> None:
    if spec.hosts and not spec.traits.runs_across_hosts:
        host_modes = MODES.names(lambda mode: mode.runs_across_hosts)
        raise SpecError(
            f"hosts are for {alternatives(host_modes)}. Received: {', '.join(spec.hosts)} in mode {spec.mode}. Use none."
        )
    if spec.hosts and spec.replicas < len(spec.hosts):
        raise SpecError(f"replicas must be one for each host at least. Received: {spec.replicas} on {len(spec.hosts)}.")
    for host in spec.hosts:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.:_-]*", host):  # a word of a command line
            raise SpecError(f"hosts are names or addresses. Received: {host!r}. Use e.g. 192.168.0.2.")


def _check_mode_fields(spec: Spec) -> None:
    settings = spec.parameter_server
    if spec.traits.has_server and settings.staleness is not None and not spec.traits.has_late_gradients:
        raise SpecError(
            f"parameter_server.staleness bounds asynchronous updates. Received: {settings.staleness} with "
            "synchronous ones. Set parameter_server.updates to asynchronous, or leave it out."
        )
    if spec.optimizer.native and spec.traits.has_own_rule:
        raise SpecError(
            f"optimizer.native is not for mode {spec.variant}, which has the suite's own rule. Received: true. Use false."
        )
    if spec.communication.compression != "none" and not spec.traits.compresses:
        compressing_modes = MODES.variants(lambda mode: mode.compresses and mode.is_parallel)
        raise SpecError(
            f"communication.compression is for {alternatives(compressing_modes)}. Received: "
            f"{spec.communication.compression} in mode {spec.variant}. Use none."
        )
    if spec.accumulation > 1 and spec.traits.divides_model:
        raise SpecError(
            f"accumulation is not for mode {spec.mode}. Received: {spec.accumulation}. Use 1 (a pipeline has "
            "pipeline.micro_batches)."
        )
    if spec.traits.is_nested and spec.traits.cuts_batches and spec.pipeline.schedule == "asynchronous":
        raise SpecError(
            "pipeline.schedule must be synchronous in mode hybrid, whose copies wait for each other. "
            "Received: asynchronous. Use gpipe or 1f1b."
        )


def _check_input(spec: Spec) -> None:
    if spec.input != "inline" and spec.workers < 1:
        raise SpecError(f"workers must be at least 1 with input {spec.input}. Received: {spec.workers}. Use 2.")
    if spec.part == "compute" and spec.input != "inline":
        raise SpecError(f"input must be inline for the model alone, which gets one batch. Received: {spec.input}. Use inline.")
    if spec.part != "training" and (spec.best_epoch.keep or spec.best_epoch.patience):
        raise SpecError(f"best_epoch is of the training. Received: part {spec.part}, which learns nothing. Leave it out.")
    _check_owners(spec)
    if spec.input == "inline" and spec.workers:
        raise SpecError(f"workers must be 0 with input inline. Received: {spec.workers}. Use 0, or input workers.")


def _check_owners(spec: Spec) -> None:
    settings = spec.dask
    if settings.order != "owned":
        for field, unset in (("owners", None), ("partition", "balanced"), ("skew", _SKEW), ("speeds", ())):
            if (value := getattr(settings, field)) != unset:
                raise SpecError(f"dask.{field} is for dask.order owned. Received: {value} with {settings.order}. Leave it out.")
        return
    if not spec.traits.can_own_images:
        owning_modes = MODES.names(lambda mode: mode.can_own_images)
        raise SpecError(
            f"dask.order owned is for {alternatives(owning_modes)}, where each replica is a process. "
            f"Received: mode {spec.mode}. Use global."
        )
    if spec.traits.has_late_gradients:
        raise SpecError(
            "dask.order owned is not for asynchronous updates of a parameter_server, which do not weigh parts by their size. "
            "Received: parameter_server.updates asynchronous. Use synchronous, or order global."
        )
    if settings.owners is None or (spec.is_parallel and settings.owners != spec.replicas):
        raise SpecError(
            f"dask.owners must be the number of replicas, also in the serial run that they are compared with. Received: "
            f"{settings.owners} with replicas {spec.replicas}. Set it to the replicas of the parallel mode."
        )
    if settings.scheduler not in SCHEDULERS:
        raise SpecError(
            f"dask.order owned needs chunks that the processes of the run hold. Received: dask.scheduler {settings.scheduler}. "
            f"Use {alternatives(SCHEDULERS)}."
        )
    if spec.accumulation > 1:
        raise SpecError(
            f"accumulation is not for dask.order owned, whose replicas' batches differ in size. Received: {spec.accumulation}. "
            "Use 1."
        )
    if settings.partition != "class_skew" and settings.skew != _SKEW:
        raise SpecError(
            f"dask.skew is for dask.partition class_skew. Received: {settings.skew:g} with {settings.partition}. Leave it out."
        )
    expected = settings.owners if settings.partition == "speed" else 0
    if len(settings.speeds) != expected:
        raise SpecError(
            f"dask.speeds must be one number for each owner with dask.partition speed, and none else. Received: "
            f"{len(settings.speeds)} with {settings.partition} and {settings.owners} owners. Use {expected}."
        )
