"""A spec: one training run, frozen and validated."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BaseModel, Field

from common.frozen import Finite
from common.machine import machine, placement
from common.machine.heartbeat import HANG_SECONDS
from common.spec import consistency, plain_values
from common.spec.effects import Aspect, Effects, Keeps
from common.spec.errors import SpecError, did_you_mean, format_value
from common.spec.groups import (
    Augmentation,
    Averaging,
    BestEpoch,
    Communication,
    Dask,
    Data,
    Hybrid,
    Optimizer,
    ParameterServer,
    Paths,
    Pipeline,
    Schedule,
)
from common.spec.modes import MODES, Mode
from common.spec.names import (
    MOST_BATCH_SIZE,
    MOST_EPOCHS,
    MOST_MICRO_BATCHES,
    MOST_REPLICAS,
    MOST_STEPS,
    BatchNormStatistics,
    Device,
    Precision,
)

_LONGEST_NAME = 255
_STRUCTURE: tuple[str, ...] = ("width", "depth", "dropout")
_MOST_FAULTS = 10
"""Refused fields that one message explains."""


class Spec(Finite):
    """One training run. Field order is the order of the tables and of the YAML file."""

    model: Annotated[str, Keeps()] = Field("simple_cnn", max_length=_LONGEST_NAME)
    """One of `MODELS`, or the dotted name of a module that defines `architecture`."""
    width: Annotated[float, Keeps()] = Field(1.0, gt=0, le=16)
    """Factor on the channels of all layers of a built-in model, and on the features of its hidden dense layers."""
    depth: Annotated[float, Keeps()] = Field(1.0, gt=0, le=16)
    """Factor on the number of blocks, or of convolutions, in each part of a built-in model. One is left at least."""
    dropout: Annotated[float | None, Keeps()] = Field(None, ge=0, lt=1)
    """Rate of dropout in front of the classifier of a built-in model. 0: none. None: the model's own rate."""
    data: Data = Data()  # pyright: ignore[reportCallIssue]
    optimizer: Annotated[Optimizer, Keeps()] = Optimizer()  # pyright: ignore[reportCallIssue]
    schedule: Annotated[Schedule, Keeps()] = Schedule()  # pyright: ignore[reportCallIssue]
    loss: Annotated[Literal["sparse_categorical_crossentropy", "categorical_crossentropy"], Keeps()] = (
        "sparse_categorical_crossentropy"
    )
    epochs: Annotated[int | None, Keeps("epoch", "step")] = Field(None, ge=1, le=MOST_EPOCHS)
    """Full passes over the training split. Set epochs or steps. Without either: 2 epochs."""
    steps: Annotated[int | None, Keeps("epoch", "step")] = Field(None, ge=1, le=MOST_STEPS)
    """Optimizer updates. The last epoch is cut short."""
    global_batch_size: Annotated[int, Keeps()] = Field(64, ge=1, le=MOST_BATCH_SIZE)
    precision: Annotated[Precision, Keeps()] = "float32"
    mode: Annotated[str, Keeps("examples", "serial_run")] = Field("serial", max_length=_LONGEST_NAME)
    replicas: Annotated[int, Keeps("examples", "serial_run")] = Field(1, ge=1, le=MOST_REPLICAS)
    accumulation: Annotated[int, Keeps()] = Field(1, ge=1, le=MOST_MICRO_BATCHES)
    """Micro-batches of each replica's batch. Their gradients are added up before the one update. See `micro_batches`."""
    communication: Annotated[Communication, Keeps("examples")] = Communication()  # pyright: ignore[reportCallIssue]
    parameter_server: Annotated[ParameterServer, Keeps("serial_run")] = ParameterServer()  # pyright: ignore[reportCallIssue]
    pipeline: Annotated[Pipeline, Keeps("serial_run")] = Pipeline()  # pyright: ignore[reportCallIssue]
    hybrid: Annotated[Hybrid, Keeps("serial_run")] = Hybrid()  # pyright: ignore[reportCallIssue]
    averaging: Annotated[Averaging, Keeps()] = Averaging()  # pyright: ignore[reportCallIssue]
    input: Annotated[str, Keeps()] = Field("inline", max_length=_LONGEST_NAME)
    workers: Annotated[int, Keeps()] = Field(0, ge=0, le=1024)
    """Input workers of each process of the run: loader processes (PyTorch) or parallel map calls (TensorFlow), or Dask's."""
    prefetch: Annotated[int, Keeps()] = Field(2, ge=1, le=1024)
    """Batches that each input worker prepares ahead, or that are prepared of a Dask array in all."""
    dask: Annotated[Dask, Keeps()] = Dask()  # pyright: ignore[reportCallIssue]
    cores: Annotated[int, Keeps("epoch_elsewhere", "examples", "serial_run")] = Field(
        default_factory=lambda: machine.available_cores() * placement.num_machines(()), ge=1, le=2**20
    )
    """CPU cores of the whole run, on all hosts together, replicas and input workers included. Default: all that this process
    may use, times the hosts."""
    device: Annotated[Device, Keeps("work")] = "auto"
    """Device of the run. auto: the GPUs that the framework finds, else the CPU. cpu: the CPU, even if there are GPUs."""
    part: Annotated[Literal["training", "input", "compute"], Keeps()] = "training"
    """Part of the training that is run and timed: all, the input path alone, or the model alone on one batch repeatedly."""
    profile_steps: Annotated[int, Keeps("work", "step")] = Field(0, ge=0, le=MOST_EPOCHS)
    """Steps of segments after training, which time the parts of a step separately and write a trace. 0: none."""
    hosts: Annotated[tuple[str, ...], Keeps("epoch_elsewhere", "examples", "serial_run")] = Field((), max_length=MOST_REPLICAS)
    """Machines by name or address. The ranks are spread over them in order. The first is this one. Empty: all are here."""
    least_replicas: Annotated[int | None, Keeps("work", "examples", "serial_run")] = Field(None, ge=1, le=MOST_REPLICAS)
    """Least number of replicas with which the run continues after deaths of processes, each time with fewer. The mathematics
    may change then, so such a run does not count. None: a run never continues with fewer."""
    hang_seconds: Annotated[float, Keeps("work", "step")] = Field(HANG_SECONDS, gt=0, le=1e9)
    """Seconds within which a hanging run is ended: one without progress that uses no CPU or is stopped. See `watchdog`."""
    checkpoint_seconds: Annotated[float | None, Keeps("epoch", "step")] = Field(60.0, ge=0, le=1e9)
    """Least seconds between two checkpoints. They are written between epochs, outside of timed training. An interrupted run
    resumes from the last one. 0: after every epoch. None: never."""
    best_epoch: Annotated[BestEpoch, Keeps()] = BestEpoch()  # pyright: ignore[reportCallIssue]
    seed: Annotated[int, Keeps("epoch", "step")] = Field(0, ge=0, lt=2**63)
    augmentation: Annotated[Augmentation, Keeps()] = Augmentation()  # pyright: ignore[reportCallIssue]
    batch_norm_statistics: Annotated[BatchNormStatistics, Keeps()] = "per_replica"
    """Statistics over each replica's shard, or over the global batch. Then a parallel run has serial's mathematics."""
    switches: Annotated[Literal["plain", "usual", "closed", "best"], Keeps("examples")] = "usual"
    """Level of the switches that `framework_options` does not name. plain: the framework's own defaults. usual: each framework
    as it is mostly used, within the core budget. closed: also the same memory layout and graph class in both, if the mode
    allows it. best: the fastest that `convtwins optimize` found here, which `run` writes into `framework_options`; others as
    usual."""
    framework_options: Annotated[dict[str, Any], Keeps("examples")] = {}
    """The framework's own switches, by the names that its `describe` lists."""
    paths: Paths = Paths()  # pyright: ignore[reportCallIssue]

    @pydantic.field_validator("framework_options")
    @classmethod
    def _sort_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        return dict(sorted(options.items()))  # as results hold them, so that one spec has one digest

    @pydantic.model_validator(mode="before")
    @classmethod
    def _default_epochs(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("epochs") is None and values.get("steps") is None:
            values = {**values, "epochs": 2}
        return values

    @pydantic.model_validator(mode="before")
    @classmethod
    def _default_cores(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("cores") is None and isinstance(values.get("hosts"), (list, tuple)):
            values = {**values, "cores": machine.available_cores() * placement.num_machines(values["hosts"])}
        return values

    @pydantic.model_validator(mode="after")
    def _check_consistency(self) -> Self:
        consistency.check(self)
        return self

    @property
    def variant(self) -> str:
        """Name of this run's mode in `--modes`."""
        return self.traits.variant

    @property
    def traits(self) -> Mode:
        """Traits of this run's mode."""
        return MODES.find(self.mode, lambda field: operator.attrgetter(field)(self))

    @property
    def is_parallel(self) -> bool:
        """Whether this run has several replicas."""
        return self.traits.is_parallel

    @property
    def not_serial_because(self) -> str | None:
        """Reason why this run has other mathematics than serial on purpose. None for a mode that claims the same."""
        if self.traits.not_serial_because is not None:
            return self.traits.not_serial_because
        return f"gradients are sent as {self.communication.compression}" if self.compresses else None

    @property
    def compresses(self) -> bool:
        """Whether replicas exchange compressed gradients."""
        return self.is_parallel and self.communication.compression != "none"

    @property
    def not_resumable_because(self) -> str | None:
        """Reason why this run starts over after an interruption. None: it resumes from its last checkpoint."""
        if self.part != "training":
            return "only a part of the training is run, which learns nothing"
        if not self.traits.resumes:
            return f"mode {self.variant} starts over: each of its processes holds a part of what is trained"
        if self.compresses and self.communication.error_feedback:
            return "error feedback starts over: each replica holds what compression has lost so far"
        return "it makes no checkpoints: checkpoint_seconds is null" if self.checkpoint_seconds is None else None

    @property
    def data_replicas(self) -> int:
        """Number of shards of every global batch. Each belongs to one copy of the model, which may itself be divided."""
        traits = self.traits
        if not traits.divides_batch:
            return 1
        return self.replicas // self.hybrid.inner_replicas if traits.is_nested else self.replicas

    @property
    def replicas_requested(self) -> int:
        """Number of replicas as `with_variant` takes it: of a nested mode, the number of copies of the model."""
        return self.data_replicas if self.traits.is_nested else self.replicas

    @property
    def replicas_per_host(self) -> int:
        """Number of replicas on the first host, which has the most. Without hosts: all."""
        return -(-self.replicas // max(len(self.hosts), 1))

    @property
    def per_replica_batch_size(self) -> int:
        """Number of examples of each copy of the model in a whole batch."""
        return self.global_batch_size // self.data_replicas

    @property
    def split_seed(self) -> int:
        """Seed of the splits: the data's seed, so that runs of several seeds share their test images, else the run's."""
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def micro_batches_requested(self) -> int:
        """Number of micro-batches that the spec requests: for a pipeline, else by `accumulation`."""
        return self.pipeline.micro_batches if self.traits.cuts_batches else self.accumulation

    def micro_batches(self, num_examples: int | None = None) -> int:
        """Number of micro-batches into which every copy of the model cuts a batch. See `micro_batches`.

        Args:
            num_examples: size of the global batch. None: a whole batch.
        """
        return micro_batches(num_examples or self.global_batch_size, self.micro_batches_requested, self.data_replicas)

    @property
    def batches_ahead(self) -> int:
        """Largest number of batches that the input of each process prepares ahead."""
        return {"inline": 0, "workers": self.prefetch * self.workers, "dask": self.prefetch}[self.input]

    @property
    def with_fewer_replicas(self) -> Spec | None:
        """This run with the largest smaller number of replicas that divides the batch. None: below `least_replicas`."""
        for replicas in range(self.replicas - 1, (self.least_replicas or self.replicas) - 1, -1):
            if self.global_batch_size % replicas == 0:
                return self.with_fields(mode="serial" if replicas == 1 else self.mode, replicas=replicas)
        return None

    def can_resume_from(self, other: Spec) -> bool:
        """Return whether this run can resume from a checkpoint of another spec: equal, or with other replicas if elastic.

        Replicas that share an optimizer's state cannot read that of one replica.
        """
        from_one_replica = "state" in self.traits.divides and not other.is_parallel
        is_elastic = self.least_replicas is not None and not from_one_replica
        excluded = {"mode", "replicas"} if is_elastic else set[str]()
        return self.model_dump(exclude=excluded) == other.model_dump(exclude=excluded)

    def differs(self, other: Spec, *, in_: Aspect, excluded: Collection[str] = ()) -> bool:
        """Return whether this run and another differ in an aspect, as their fields say it where they are declared.

        Args:
            excluded: dotted names of fields that may also differ.
        """
        return EFFECTS.differ(self, other, in_, excluded)

    @property
    def scaled_learning_rate(self) -> float:
        """Base learning rate, scaled for replicas as `schedule.scaling` says."""
        if self.schedule.scaling == "none":  # every step asks
            return self.optimizer.learning_rate
        replicas = self.data_replicas
        return self.optimizer.learning_rate * (replicas if self.schedule.scaling == "linear" else math.sqrt(replicas))

    def learning_rate(self, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """Return the learning rate of one update: the base rate, scaled for replicas, warmed up and scheduled.

        schedule: `step` and `exponential` change between epochs, as torch.optim's StepLR and ExponentialLR do.
            `cosine` falls at every step and reaches zero just after the last one (Loshchilov & Hutter 2017, without restarts).
        warm-up: rises linearly from zero to the scaled rate.
        scaling: follows the replicas, as in the published reports. Goyal et al. 2017 scale with the global batch, and warm up
            from the base rate.

        Args:
            step: updates done before this one, from 0.
            steps_per_epoch: at least 1.
            total_steps: updates of the whole run.
        """
        schedule, rate = self.schedule, self.scaled_learning_rate
        epoch = step // steps_per_epoch
        if schedule.name == "step":
            rate *= schedule.gamma ** (epoch // schedule.step_size)
        elif schedule.name == "exponential":
            rate *= schedule.gamma**epoch
        elif schedule.name == "cosine":
            rate *= 0.5 * (1.0 + math.cos(math.pi * step / total_steps))
        if step < schedule.warmup_steps:
            rate *= (step + 1) / schedule.warmup_steps
        return rate

    @property
    def digest(self) -> str:
        """SHA-256 over all fields. Structure fields count if they change the model, `least_replicas` if it is set."""
        unset = {name for name in _STRUCTURE if name not in self.structure_overrides}
        unset |= {"least_replicas"} if self.least_replicas is None else set()
        return hashlib.sha256(self.model_dump_json(exclude=unset).encode()).hexdigest()

    @property
    def structure_overrides(self) -> dict[str, float]:
        """Values of `width`, `depth` and `dropout` that differ from the built-in model's."""
        return {name: getattr(self, name) for name in _STRUCTURE if getattr(self, name) != Spec.model_fields[name].default}

    @property
    def model_label(self) -> str:
        """Name of the model, with its structure if that is not the built-in one."""
        structure = ", ".join(f"{name} {value:g}" for name, value in self.structure_overrides.items())
        return f"{self.model} ({structure})" if structure else self.model

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)

    def with_fields(self, **fields: Any) -> Spec:
        """Return a copy with these top-level fields changed, validated again."""
        return build({**self.model_dump(), **fields})


EFFECTS = Effects(Spec)
"""Statements on all fields of a spec, which stand where the fields are declared."""


def build(values: dict[str, Any]) -> Spec:
    """Build a spec from nested plain values, to be run on this machine."""
    try:
        spec = Spec.model_validate(values)
    except pydantic.ValidationError as error:
        raise _spec_error(error.errors()) from None
    max_cores = machine.available_cores() * placement.num_machines(spec.hosts)
    if spec.cores > max_cores and not placement.is_launched_rank():
        raise SpecError(f"cores exceeds what this process may use. Received: {spec.cores}. Use 1 to {max_cores}.")
    return spec


def check_fields(values: dict[str, Any], source: str) -> None:
    """Refuse unknown fields and wrong values by the name of their source. Whether fields fit each other is not asked.

    Args:
        values: nested plain values. Other sources may override or complete them.
        source: where they stand, e.g. `spec file a.yaml`.
    """
    try:
        Spec.model_validate(values)
    except pydantic.ValidationError as error:
        details = [detail for detail in error.errors() if not isinstance(detail.get("ctx", {}).get("error"), SpecError)]
        if details:
            raise _spec_error(details, source) from None


def from_json(text: str | bytes) -> Spec:
    """Read a spec that was validated before, by its sender or on the machine of a result.

    It may name more cores than this process may use.
    """
    try:
        plain_values.from_json(text if isinstance(text, str) else text.decode())
        return Spec.model_validate_json(text)
    except pydantic.ValidationError as error:
        raise _spec_error(error.errors()) from None
    except ValueError as error:
        raise SpecError(f"The spec is not valid JSON: {error}.") from None


def micro_batches(num_examples: int, most: int, replicas: int = 1) -> int:
    """Return the largest number of equal micro-batches, at most `most`, into which every replica can cut its shard.

    They are equal because the stages of a pipeline know beforehand the shapes that they send. So shards of a prime size, or of
    two sizes, are not cut.

    Args:
        num_examples: size of the global batch.
        most: number that the spec requests.
        replicas: number of replicas that share the batch.
    """
    if num_examples < 1 or most < 1:
        raise ValueError(f"num_examples and most must be at least 1. Received: {num_examples} and {most}.")
    return max((parts for parts in range(2, most + 1) if num_examples % (parts * replicas) == 0), default=1)


def _spec_error(details: Sequence[Any], source: str = "") -> SpecError:
    rest = [f"{len(details) - _MOST_FAULTS:,} more fields are refused."] if len(details) > _MOST_FAULTS else []
    return SpecError("\n".join([*(_explain(detail, source) for detail in details[:_MOST_FAULTS]), *rest]))


def _explain(detail: Any, source: str) -> str:
    field = ".".join(str(part) for part in detail["loc"]) or "spec"
    received, named = format_value(detail.get("input"), detail["loc"]), f"{field} in {source}" if source else field
    if detail["type"] == "extra_forbidden":
        names = _field_names(detail["loc"][:-1])
        name = str(detail["loc"][-1])
        nearest = did_you_mean(name, names, sentence=True)
        return f"{named} is not a field. Received: {received}.{nearest} Fields here: {', '.join(names)}."
    if detail["type"] == "model_type":
        first = _field_names(detail["loc"])[0]
        return f"{named} is a group of fields. Received: {received}. Write e.g. {field}: {{{first}: ...}}."
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return str(cause)
    return f"{named} is refused: {detail['msg'].removeprefix('Value error, ')}. Received: {received}. Change {field}."


def _field_names(location: tuple[Any, ...]) -> tuple[str, ...]:
    model: type[BaseModel] = Spec
    for part in location:
        annotation = model.model_fields[str(part)].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return tuple(model.model_fields)
