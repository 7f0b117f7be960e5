"""What to run: one frozen, validated description that every part of the suite reads.

A spec comes from YAML, JSON or the command line, and travels to the twins as JSON. Everything that can be judged
without a framework is judged here; devices, possible modes and a framework's own switches are judged by the twin's
`describe` (see `check_against`).
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from typing import Any, Literal, Self

import pydantic
from pydantic import BaseModel, Field

from common.frozen import Finite
from common.machine import machine, placement
from common.machine.heartbeat import HANG_SECONDS

MODELS = ("simple_cnn", "mini_xception", "resnet18")
MODES = (
    "serial",
    "data_parallel",
    "multi_process",
    "parameter_server",
    "model_parallel",
    "tensor_parallel",
    "pipeline",
    "hybrid",
    "model_averaging",
)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{mode: (mode, {}) for mode in MODES if mode != "hybrid"},
    "parameter_server": (
        "parameter_server",
        {"parameter_server.updates": "synchronous", "parameter_server.staleness": None},
    ),
    "pipeline": ("pipeline", {"pipeline.schedule": "gpipe"}),
    "parameter_server_async": ("parameter_server", {"parameter_server.updates": "asynchronous"}),
    "pipeline_1f1b": ("pipeline", {"pipeline.schedule": "1f1b"}),
    "pipeline_async": ("pipeline", {"pipeline.schedule": "asynchronous"}),
    "hybrid_tensor": ("hybrid", {"hybrid.inner": "tensor_parallel"}),
    "hybrid_pipeline": ("hybrid", {"hybrid.inner": "pipeline"}),
}
"""The words of `--modes`: a mode, and the fields that make the variant of it, whatever they were; see `Spec.variant`."""
HOST_MODES = ("multi_process", "parameter_server", "model_averaging")
"""Modes whose replicas may be on several machines."""
COMPRESSING_VARIANTS = ("serial", "data_parallel", "multi_process", "parameter_server")
"""Whose replicas can send their gradients compressed; serial, which sends none, may be asked for beside them."""
WHOLE_BATCH_MODES = ("serial", "model_parallel", "tensor_parallel", "pipeline")
"""Modes whose replicas work on the same examples: they share the model, not the batch."""
RESUMABLE_MODES = ("serial", "data_parallel", "multi_process")
"""Modes in which rank 0 has all that a run goes on from."""
INPUTS = ("inline", "workers", "dask")
SCHEDULERS = ("threads", "processes")
"""Dask's, besides `tcp://host:port` of a cluster that stands."""
LEVELS = ("plain", "fair", "best")
"""Of switches; see `Spec.switches`."""
Precision = Literal["float32", "float64"]
Device = Literal["auto", "cpu"]
BatchNormStatistics = Literal["per_replica", "synchronised"]


class SpecError(ValueError):
    """A spec was refused. The message names the field, the value received, and the fix."""


class Data(Finite):
    source: str = Field("digits", min_length=1, coerce_numbers_to_str=True)
    """One of `datasets.NAMES` (`leaves` with settings behind it), or the path of an image folder or of an archive of one."""
    image_size: int | None = Field(None, ge=1, le=4096)
    """Height and width in pixels to which images are resized once, when cached; None keeps their own size."""
    limit: int | None = Field(None, ge=1)
    """Number of training examples to keep (seeded draw); validation and test shrink in proportion."""
    on_bad: Literal["strict", "skip"] = "strict"
    """What becomes of files that are no usable images: the data is refused, or they are left out in both frameworks alike."""
    duplicates: Literal["refuse", "allow"] = "refuse"
    """Whether images of equal pixels may stand in two splits."""
    loading: Literal["cached", "streaming"] = "cached"
    """Training images from the decoded cache, or decoded from their files at every epoch by the framework's own means."""
    drawn_part: float = Field(0.1, gt=0, le=0.5)
    """Of the training images, for each split that divided data lacks; each class has at least one in it."""
    normalization: Literal["none", "half", "dataset", "imagenet"] = "none"
    """Per channel, after division by 255: nothing, or (pixel - mean) / standard deviation: 0.5 and 0.5, or those of the
    training split or of ImageNet."""
    seed: int | None = Field(None, ge=0, lt=2**63)
    """Of splits that are drawn and of the limit; None: the run's own seed."""


class Optimizer(Finite):
    name: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = Field(0.05, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    """SGD only."""
    beta_1: float = Field(0.9, ge=0, lt=1)
    """Adam only."""
    beta_2: float = Field(0.999, ge=0, lt=1)
    """Adam only."""
    epsilon: float = Field(1e-8, gt=0)
    """Adam only; added after the bias correction, as in the paper and in PyTorch."""
    weight_decay: float = Field(0.0, ge=0)
    """Coupled: added to the gradient, as the L2 penalty weight_decay / 2 * |w|^2 would."""
    native: bool = False
    """Use the framework's own optimizer in place of the shared update rule; the twins then part."""


class Schedule(Finite):
    name: Literal["constant", "step", "exponential", "cosine"] = "constant"
    step_size: int = Field(10, ge=1)
    """`step`: epochs between two drops."""
    gamma: float = Field(0.1, gt=0, le=1)
    """`step`: factor at each drop; `exponential`: factor at each epoch."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises linearly to its full value."""
    scaling: Literal["none", "linear", "sqrt"] = "none"
    """Factor on the learning rate from the number R of replicas that share the batch: 1, R, or the square root of R."""


class Augmentation(Finite):
    horizontal_flip: bool = False
    """Mirror each training image left to right with probability 1/2."""
    shift_px: int = Field(0, ge=0)
    """Shift each training image by up to this many pixels both ways, zeros moving in: a padded random crop."""
    rotation_degrees: float = Field(0.0, ge=0, le=180)
    """Rotate each training image about its middle by up to this angle both ways."""
    shear_degrees: float = Field(0.0, ge=0, le=60)
    """Shear each training image along its rows by up to this angle both ways."""
    zoom: float = Field(0.0, ge=0, lt=1)
    """Scale each training image about its middle by a factor within 1 - zoom and 1 + zoom."""
    brightness: float = Field(0.0, ge=0, lt=1)
    """Multiply the pixels of each training image by a factor within 1 - brightness and 1 + brightness."""


class Dask(Finite):
    """How `input: dask` cuts up the training images, and who computes the parts."""

    chunk_images: int = Field(256, ge=1)
    scheduler: str = Field("threads", pattern=r"threads|processes|(tcp|tls|ucx|ws|wss)://\S+")
    """`threads` of the training process, worker `processes` on this machine, or the address of a dask.distributed cluster."""
    order: Literal["global", "chunks"] = "global"
    """Serial's order, each batch gathered from all over; or chunks in random order and random order within each."""


class Communication(Finite):
    """How the replicas of synchronous data-parallel modes exchange their gradients."""

    bucket_mib: float = Field(25.0, gt=0)
    """Gradients are sent in buckets of this size, each as soon as it is full; compressed ones, and those for a server, after
    the backward pass. Of PyTorch's threads of one process, which share a memory, only compressed ones are cut."""
    compression: Literal["none", "float16", "int8", "top_k"] = "none"
    """What travels: the gradients; half as wide; a byte each on a scale per bucket; or the largest of each bucket alone."""
    top_k: float = Field(0.01, gt=0, le=1)
    """The part of each bucket's values that `top_k` sends."""
    error_feedback: bool = True
    """Whether what compression loses is added to the next step's gradients (Seide et al. 2014, Stich et al. 2018)."""


class ParameterServer(Finite):
    updates: Literal["synchronous", "asynchronous"] = "synchronous"
    """One update a step from all workers' gradients; or one for each worker's, as it comes (Dean et al. 2012)."""
    staleness: int | None = Field(None, ge=0)
    """Asynchronous: steps that a worker may be ahead of the slowest (Ho et al. 2013); None: any number."""
    scheduler: str | None = Field(None, pattern=r"(tcp|tls|ucx|ws|wss)://\S+")
    """A dask.distributed cluster that holds the parameters; None: a server process of the run's own."""


class Pipeline(Finite):
    micro_batches: int = Field(4, ge=1)
    """Parts of each replica's batch that follow one another through the stages; see `micro_batches`."""
    schedule: Literal["gpipe", "1f1b", "asynchronous"] = "gpipe"
    """All forward, then all backward (Huang et al. 2019); in turn; or on with stale weights (Narayanan et al. 2019)."""


class Hybrid(Finite):
    inner: Literal["tensor_parallel", "pipeline"] = "tensor_parallel"
    """How the replicas that share a copy of the model divide it; the copies divide the batch."""
    inner_replicas: int = Field(2, ge=2)
    """Replicas of each copy; there are `replicas` / `inner_replicas` copies."""


class Averaging(Finite):
    every_steps: int | None = Field(None, ge=1)
    """Steps between two averages of all replicas' weights (local SGD, Stich 2019); None: one average, at the end."""


class BestEpoch(Finite):
    """Which epoch's weights are kept, and when the training ends because none gets better."""

    keep: bool = False
    """Write the weights of the best epoch beside the result (see `common.artifacts.trained`); of equal epochs the earliest."""
    by: Literal["accuracy", "loss"] = "accuracy"
    """Of the validation split."""
    patience: int | None = Field(None, ge=1)
    """Epochs in a row, none of them the best, after which the training ends; None: it ends with `epochs` or `steps`."""


class Paths(Finite):
    cache_dir: str | None = None
    """Where decoded data and downloads are kept; None: the user's cache folder."""


class Spec(Finite):
    """One training run. Field order is the order of the tables and of the YAML file."""

    model: str = "simple_cnn"
    """`simple_cnn`, `mini_xception`, `resnet18`, or the dotted name of a module that defines `architecture`."""
    data: Data = Data()  # pyright: ignore[reportCallIssue]
    optimizer: Optimizer = Optimizer()  # pyright: ignore[reportCallIssue]
    schedule: Schedule = Schedule()  # pyright: ignore[reportCallIssue]
    loss: Literal["sparse_categorical_crossentropy", "categorical_crossentropy"] = "sparse_categorical_crossentropy"
    epochs: int | None = Field(None, ge=1)
    """Full passes over the training split; exactly one of epochs and steps is set (neither: 2 epochs)."""
    steps: int | None = Field(None, ge=1)
    """Optimizer updates, the last epoch cut short where they end."""
    global_batch_size: int = Field(64, ge=1)
    precision: Precision = "float32"
    mode: str = "serial"
    replicas: int = Field(1, ge=1)
    accumulation: int = Field(1, ge=1)
    """Micro-batches of each replica's batch, whose gradients are added up before its one update; see `micro_batches`."""
    communication: Communication = Communication()  # pyright: ignore[reportCallIssue]
    parameter_server: ParameterServer = ParameterServer()  # pyright: ignore[reportCallIssue]
    pipeline: Pipeline = Pipeline()  # pyright: ignore[reportCallIssue]
    hybrid: Hybrid = Hybrid()  # pyright: ignore[reportCallIssue]
    averaging: Averaging = Averaging()  # pyright: ignore[reportCallIssue]
    input: str = "inline"
    workers: int = Field(0, ge=0)
    """Input workers of each process of the run: loader processes (PyTorch) or parallel map calls (TensorFlow), or Dask's."""
    prefetch: int = Field(2, ge=1)
    """Batches that are made before they are asked for: by each input worker, or of a Dask array in all."""
    dask: Dask = Dask()  # pyright: ignore[reportCallIssue]
    cores: int = Field(default_factory=lambda: machine.available_cores() * placement.machines(()), ge=1)
    """CPU cores that the whole run may use, replicas and input workers included, on all hosts together. Default: all that this
    process may use, times the hosts."""
    device: Device = "auto"
    """auto: the GPUs that the framework finds, else the CPU; cpu: the CPU, though there be GPUs."""
    part: Literal["training", "input", "compute"] = "training"
    """What is run and timed: all of it; the input path alone; or the model alone, over and over on the first batch."""
    profile_steps: int = Field(0, ge=0)
    """Steps of segments after the training, in which the parts of a step are timed apart and a trace is written; 0: none."""
    hosts: tuple[str, ...] = ()
    """Machines, by name or address, over which the ranks are spread in order, the first of them this one; none: all here."""
    hang_seconds: float = Field(HANG_SECONDS, gt=0)
    """A run that hangs ends within this time: no progress, and no CPU time or a stopped process. See `watchdog`."""
    checkpoint_seconds: float | None = Field(60.0, ge=0)
    """Between two checkpoints, at least; they are made between epochs, outside of all timed training, and a run that was cut
    short goes on from the last one. 0: after every epoch; None: none."""
    best_epoch: BestEpoch = BestEpoch()  # pyright: ignore[reportCallIssue]
    seed: int = Field(0, ge=0, lt=2**63)
    augmentation: Augmentation = Augmentation()  # pyright: ignore[reportCallIssue]
    batch_norm_statistics: BatchNormStatistics = "per_replica"
    """Over each replica's shard, or over the global batch (then a parallel run is serial's mathematics)."""
    switches: Literal["plain", "fair", "best"] = "fair"
    """Where `framework_options` names no other value: as a newcomer gets the framework, all that both have set alike, or as
    `compare optimize` found them fastest here (`compare` writes those into `framework_options`; the rest are fair)."""
    framework_options: dict[str, Any] = {}
    """The framework's own switches, by the names that its `describe` lists."""
    paths: Paths = Paths()  # pyright: ignore[reportCallIssue]

    @pydantic.field_validator("framework_options")
    @classmethod
    def _by_name(cls, options: dict[str, Any]) -> dict[str, Any]:
        return dict(sorted(options.items()))  # as results hold them: the digest of one spec is one

    @pydantic.model_validator(mode="before")
    @classmethod
    def _two_epochs_unless_told(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("epochs") is None and values.get("steps") is None:
            values = {**values, "epochs": 2}
        return values

    @pydantic.model_validator(mode="before")
    @classmethod
    def _cores_of_every_host(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("cores") is None and isinstance(values.get("hosts"), (list, tuple)):
            values = {**values, "cores": machine.available_cores() * placement.machines(values["hosts"])}
        return values

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.model not in MODELS and not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", self.model):
            raise SpecError(
                f"model is unknown. Received: {self.model!r}. Use {alternatives(MODELS)}{did_you_mean(self.model, MODELS)}, or "
                "`package.module` of your own model."
            )
        for field, names in (("mode", MODES), ("input", INPUTS)):
            value = getattr(self, field)
            if value not in names:
                raise SpecError(
                    f"{field} is unknown. Received: {value!r}. Use {alternatives(names)}{did_you_mean(value, names)}."
                )
        if self.epochs is not None and self.steps is not None:
            raise SpecError(f"epochs and steps exclude each other. Received: {self.epochs} and {self.steps}. Set one of them.")
        if self.mode == "serial" and self.replicas != 1:
            raise SpecError(f"replicas must be 1 in mode serial. Received: {self.replicas}. Use 1, or a parallel mode.")
        if self.mode != "serial" and self.replicas < 2:
            raise SpecError(
                f"replicas must be at least 2 in mode {self.mode}: one replica is serial. Received: {self.replicas}. Use 2."
            )
        inner = self.hybrid.inner_replicas
        if self.mode == "hybrid" and (self.replicas % inner or self.replicas == inner):
            raise SpecError(
                f"replicas must be at least twice hybrid.inner_replicas in mode hybrid, and a multiple of it. Received: "
                f"{self.replicas} and {inner}. Use {2 * inner}."
            )
        remainder = self.global_batch_size % self.data_replicas
        if remainder:
            lower = self.global_batch_size - remainder
            choices = [str(size) for size in (lower, lower + self.data_replicas) if size]
            raise SpecError(
                f"global_batch_size must divide evenly over replicas. Received: {self.global_batch_size} over "
                f"{self.data_replicas}. Use {' or '.join(choices)}."
            )
        self._check_mode_fields()
        if self.input != "inline" and self.workers < 1:
            raise SpecError(f"workers must be at least 1 with input {self.input}. Received: {self.workers}. Use 2.")
        if self.part == "compute" and self.input != "inline":
            raise SpecError(
                f"input must be inline for the model alone, which gets one batch. Received: {self.input}. Use inline."
            )
        if self.part != "training" and (self.best_epoch.keep or self.best_epoch.patience):
            raise SpecError(f"best_epoch is of the training. Received: part {self.part}, which learns nothing. Leave it out.")
        if self.input == "inline" and self.workers:
            raise SpecError(f"workers must be 0 with input inline. Received: {self.workers}. Use 0, or input workers.")
        return self

    def _check_mode_fields(self) -> None:
        if self.hosts and self.mode not in HOST_MODES:
            raise SpecError(
                f"hosts are for {alternatives(HOST_MODES)}. Received: {', '.join(self.hosts)} in mode {self.mode}. Use none."
            )
        if self.hosts and self.replicas < len(self.hosts):
            raise SpecError(f"replicas must be one for each host at least. Received: {self.replicas} on {len(self.hosts)}.")
        for host in self.hosts:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.:_-]*", host):  # a word of a command line
                raise SpecError(f"hosts are names or addresses. Received: {host!r}. Use e.g. 192.168.0.2.")
        settings = self.parameter_server
        if self.mode == "parameter_server" and settings.staleness is not None and settings.updates == "synchronous":
            raise SpecError(
                f"parameter_server.staleness bounds asynchronous updates. Received: {settings.staleness} with "
                "synchronous ones. Set parameter_server.updates to asynchronous, or leave it out."
            )
        if self.optimizer.native and (self.mode == "parameter_server" or self.variant == "pipeline_async"):
            raise SpecError(
                f"optimizer.native is not for mode {self.variant}, which has the suite's own rule. Received: true. Use false."
            )
        if self.communication.compression != "none" and self.variant not in COMPRESSING_VARIANTS:
            raise SpecError(
                f"communication.compression is for {alternatives(COMPRESSING_VARIANTS[1:])}. Received: "
                f"{self.communication.compression} in mode {self.variant}. Use none."
            )
        if self.accumulation > 1 and self.mode in ("pipeline", "hybrid", "model_parallel", "tensor_parallel"):
            raise SpecError(
                f"accumulation is not for mode {self.mode}. Received: {self.accumulation}. Use 1 (a pipeline has "
                "pipeline.micro_batches)."
            )

        if self.variant == "hybrid_pipeline" and self.pipeline.schedule == "asynchronous":
            raise SpecError(
                "pipeline.schedule must be synchronous in mode hybrid, whose copies wait for each other. "
                "Received: asynchronous. Use gpipe or 1f1b."
            )

    @property
    def variant(self) -> str:
        """The word of `--modes` for this run."""
        if self.mode == "parameter_server" and self.parameter_server.updates == "asynchronous":
            return "parameter_server_async"
        if self.mode == "pipeline" and self.pipeline.schedule != "gpipe":
            return {"1f1b": "pipeline_1f1b", "asynchronous": "pipeline_async"}[self.pipeline.schedule]
        if self.mode == "hybrid":
            return {"tensor_parallel": "hybrid_tensor", "pipeline": "hybrid_pipeline"}[self.hybrid.inner]
        return self.mode

    @property
    def departs(self) -> str | None:
        """Why this run is meant to be other mathematics than serial's; None for a mode that claims to be the same."""
        if self.mode == "model_averaging":
            return "replicas train apart, and their weights are averaged now and then"
        if self.variant == "parameter_server_async":
            return "gradients are applied to weights that have moved on since"
        if self.variant == "pipeline_async":
            return "every micro-batch makes an update of its own, with gradients of weights that have moved on since"
        if self.communication.compression != "none" and self.mode != "serial":
            return f"gradients are sent as {self.communication.compression}"
        return None

    @property
    def starts_over(self) -> str | None:
        """Why this run starts over when it was cut short; None where it goes on from its last checkpoint."""
        if self.part != "training":
            return "only a part of the training is run, which learns nothing"
        if self.mode not in RESUMABLE_MODES:
            return f"mode {self.variant} starts over: each of its processes holds a part of what is trained"
        settings = self.communication
        if self.mode != "serial" and settings.compression != "none" and settings.error_feedback:
            return "error feedback starts over: each replica holds what compression has lost so far"
        return "it makes no checkpoints: checkpoint_seconds is null" if self.checkpoint_seconds is None else None

    @property
    def data_replicas(self) -> int:
        """Shards into which every global batch is cut: copies of the model, whatever each of them is divided into."""
        if self.mode in WHOLE_BATCH_MODES:
            return 1
        return self.replicas // self.hybrid.inner_replicas if self.mode == "hybrid" else self.replicas

    @property
    def replicas_a_host(self) -> int:
        """Replicas on the first host, which has the most; without hosts, all."""
        return -(-self.replicas // max(len(self.hosts), 1))

    @property
    def per_replica_batch_size(self) -> int:
        """Examples of each copy of the model in a whole batch."""
        return self.global_batch_size // self.data_replicas

    @property
    def split_seed(self) -> int:
        """By which the data are divided: its own, so that runs of several seeds are scored on the same images, or the run's."""
        return self.seed if self.data.seed is None else self.data.seed

    @property
    def parts_asked(self) -> int:
        """Parts of a batch that this run is to work on one after the other: of a pipeline, else of `accumulation`."""
        return self.pipeline.micro_batches if "pipeline" in self.variant else self.accumulation

    def parts(self, num_examples: int | None = None) -> int:
        """Those into which every copy of the model really cuts a batch, see `micro_batches`.

        Args:
            num_examples: of the batch; None: a whole one.
        """
        return micro_batches(num_examples or self.global_batch_size, self.parts_asked, self.data_replicas)

    @property
    def batches_ahead(self) -> int:
        """Batches that each process's input makes before they are asked for, at most."""
        return {"inline": 0, "workers": self.prefetch * self.workers, "dask": self.prefetch}[self.input]

    def learning_rate(self, step: int, steps_per_epoch: int, total_steps: int) -> float:
        """The learning rate of one update: the base rate, scaled for replicas, warmed up and scheduled.

        `step` and `exponential` change between epochs as torch.optim's StepLR and ExponentialLR do; `cosine` falls at
        every step to reach zero just after the last one (Loshchilov & Hutter 2017, without restarts); warm-up rises
        linearly from zero to the scaled rate. Scaling follows the replicas, as the published reports do it; Goyal et al.
        2017 scale with the global batch, and warm up from the base rate.

        Args:
            step: updates done before this one, from 0.
            steps_per_epoch: at least 1.
            total_steps: updates of the whole run.
        """
        schedule, replicas = self.schedule, self.data_replicas
        rate = self.optimizer.learning_rate * {"none": 1.0, "linear": replicas, "sqrt": math.sqrt(replicas)}[schedule.scaling]
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
        """SHA-256 over all fields."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)

    def with_fields(self, **fields: Any) -> Spec:
        """A copy with these top-level fields changed, validated again."""
        return build({**self.model_dump(), **fields})


def build(values: dict[str, Any]) -> Spec:
    """A spec from nested plain values, to be run here; every refusal is a SpecError that names field, value and fix."""
    try:
        spec = Spec.model_validate(values)
    except pydantic.ValidationError as error:
        raise SpecError("\n".join(_explain(detail) for detail in error.errors())) from None
    most = machine.available_cores() * placement.machines(spec.hosts)
    if spec.cores > most and not placement.judged_by_its_launcher():
        raise SpecError(f"cores exceeds what this process may use. Received: {spec.cores}. Use 1 to {most}.")
    return spec


def from_json(text: str | bytes) -> Spec:
    """Read back a spec that was judged before: by its sender, or by the machine whose result records it.

    It is history, not a request, so it may name more cores than this process may use.
    """
    try:
        return Spec.model_validate_json(text)
    except pydantic.ValidationError as error:
        raise SpecError("\n".join(_explain(detail) for detail in error.errors())) from None


def micro_batches(num_examples: int, most: int, replicas: int = 1) -> int:
    """Into how many equal parts every replica cuts its shard: not more than `most`, as many as cut every shard evenly.

    Equal, because the stages of a pipeline agree beforehand on the shapes that they hand on; so shards of a prime size, or
    of two sizes, go through whole.

    Args:
        num_examples: of the global batch.
        most: as many as the spec asks for.
        replicas: that share the batch.
    """
    if num_examples < 1 or most < 1:
        raise ValueError(f"num_examples and most must be at least 1. Received: {num_examples} and {most}.")
    return max((parts for parts in range(2, most + 1) if num_examples % (parts * replicas) == 0), default=1)


def _explain(detail: Any) -> str:
    field = ".".join(str(part) for part in detail["loc"]) or "spec"
    received = detail.get("input")
    if detail["type"] == "extra_forbidden":
        names = _field_names(detail["loc"][:-1])
        name = str(detail["loc"][-1])
        nearest = did_you_mean(name, names, sentence=True)
        return f"{field} is not a field. Received: {received!r}.{nearest} Fields here: {', '.join(names)}."
    if detail["type"] == "model_type":
        first = _field_names(detail["loc"])[0]
        return f"{field} is a group of fields. Received: {received!r}. Write e.g. {field}: {{{first}: ...}}."
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return str(cause)
    return f"{field} is refused: {detail['msg']}. Received: {received!r}. Change {field}."


def _field_names(location: tuple[Any, ...]) -> tuple[str, ...]:
    model: type[BaseModel] = Spec
    for part in location:
        annotation = model.model_fields[str(part)].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return tuple(model.model_fields)


def alternatives(names: tuple[str, ...]) -> str:
    return (
        " or ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else (names[0] if names else "nothing: there is none")
    )


def did_you_mean(name: str, names: tuple[str, ...], *, sentence: bool = False) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    if not close:
        return ""
    return f" Did you mean {close[0]}?" if sentence else f" (did you mean {close[0]}?)"
