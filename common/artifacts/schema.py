"""The result of a run, field by field."""

from __future__ import annotations

from typing import Any, Literal, Self

import pydantic
from pydantic import Field

from common.errors import UserError
from common.frozen import Count, Exact, Moment, Seconds
from common.machine.machine import Facts
from common.machine.rates import DeviceRates
from common.spec import Spec

SCHEMA_VERSION = 1
_ROUNDING = 1e-6
"""Of an accuracy, or of a loss of nothing."""


INTERRUPTED = "interrupted"
"""How the reason of a run begins that its user interrupted. Its status is killed."""

Status = Literal["ok", "failed", "diverged", "killed", "not parallel", "not available"]


class ResultError(UserError, ValueError):
    """A stored result cannot be read: torn, of another version, or not a result."""


class Metrics(Exact):
    """Scores of one pass over one split."""

    loss: float
    """Mean cross-entropy over examples."""
    accuracy: float
    """num_correct / num_examples, in 0..1."""
    num_correct: Count
    num_examples: Count

    @pydantic.model_validator(mode="after")
    def _of_counts(self) -> Self:
        if not 0 < self.num_examples >= self.num_correct:
            raise ValueError(f"num_correct is {self.num_correct} of {self.num_examples} examples")
        if not abs(self.accuracy - self.num_correct / self.num_examples) < _ROUNDING:
            raise ValueError(f"accuracy is {self.accuracy}, and {self.num_correct} of {self.num_examples} are right")
        if self.loss < -_ROUNDING:
            raise ValueError(f"loss is {self.loss}, and no cross-entropy is negative")
        return self


class EpochRecord(Exact):
    """One pass over the training split, and the validation that followed it."""

    epoch: Count
    """From 1."""
    steps: Count
    images: Count
    epoch_images: Count
    """Images of a whole epoch: more than `images` where the spec's `steps` cut this one short."""
    learning_rate: float
    """Of the epoch's last step."""
    train: Metrics | None
    """None where only a part was run. Over the epoch, each batch scored before its update, with augmentation and dropout."""
    validation: Metrics | None
    timed_seconds: Seconds
    """Wall time of the epoch's timed steps; a process's first step is left out."""
    timed_steps: Count
    timed_images: Count
    input_wait_seconds: Seconds
    """Part of timed_seconds: the training loop waited for its next batch."""
    evaluation_seconds: Seconds
    first_step_seconds: Seconds | None = None
    """With the compiling for other batch sizes. Only the first epoch of a process has it."""
    left_out: list[Count] = []
    """Steps that were not timed because of a spot check, from 1: those that were recorded, and with input workers those behind
    them, whose batches were ready."""
    fingerprint: str | None = None
    """SHA-256 of the ids, labels, pixels, learning rates and numbers of its steps: see `common.training.spot_checks`."""

    @pydantic.model_validator(mode="after")
    def _timed(self) -> Self:
        if self.timed_images and not self.timed_seconds:
            raise ValueError("timed_images took no time")
        if self.timed_steps > self.steps or self.timed_images > self.images:
            timed, whole = (self.timed_steps, self.timed_images), (self.steps, self.images)
            raise ValueError(f"timed steps and images are {timed} of {whole}")
        return self

    @property
    def seconds(self) -> float:
        """Seconds for a whole epoch at the pace of the timed images."""
        return self.timed_seconds * self.epoch_images / self.timed_images if self.timed_images else float("nan")

    @property
    def images_per_second(self) -> float:
        return self.timed_images / self.timed_seconds if self.timed_images else float("nan")


class Phases(Exact):
    """Wall time of the process by phase. The seven phases add up to wall_seconds.

    A resumed run adds up all attempts. Each counts until the checkpoint that the next one began with.
    """

    import_seconds: float
    """From the start of the process until the framework is imported, devices are set up and ranks are connected."""
    build_seconds: float
    """Data from the cache, model, initial weights, optimizer."""
    first_step_seconds: float
    """The first update: tracing, compiling, first use of memory."""
    compile_seconds: float = 0.0
    """Tracing and compiling for all batches of another size, of training and evaluation."""
    training_seconds: float
    """All other updates, their wait for input included, until the last rank has done its last one."""
    input_wait_seconds: float
    """Part of training_seconds."""
    evaluation_seconds: float
    other_seconds: float
    wall_seconds: float


class StepParts(Exact):
    """Where the time of a step goes: medians over a segment of its own after the training, seconds a step."""

    steps: Count
    step_seconds: float
    compute_seconds: float | None = None
    """Of the slowest replica, without any exchange."""
    communication_hidden_seconds: float | None = None
    """Of the exchange, while something is computed."""
    communication_exposed_seconds: float | None = None
    """Of the exchange, while everything waits for it."""
    idle_seconds: float | None = None
    """In which a replica neither computes nor exchanges, the mean over replicas: a pipeline's bubbles, slower neighbours."""
    not_separable: str | None = None
    """Why a part is None."""
    transfer_seconds: float | None = None
    """Of a batch from the host to the device; like the three below of the slowest process, and without any exchange."""
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    pieces: str | None = None
    """How forward, backward and optimizer were separated, or why they cannot be."""


class Operation(Exact):
    """All operations of one name, as a profiler has seen them, in a step."""

    name: str
    """As the framework calls it; the other one's fuses differently under other names."""
    calls: float
    self_seconds: float
    """Without the operations inside of it; of several threads or streams the sum."""
    share: float
    """Of the self seconds of all operations, 0..1."""


class TopOperations(Exact):
    """From the framework's own profiler, in steps after the training, which it slows down. Of the first process."""

    steps: Count
    operations: list[Operation] = []
    """Ten at most, the longest first."""
    trace: str | None = None
    """File beside the result, in Chrome's trace event format."""
    failure: str | None = None
    """Why there is no trace, or nothing at all."""


class Staleness(Exact):
    """Of a parameter server: by how many updates of others each worker's gradients were late."""

    counts: list[Count]
    """Pushes by staleness: updates by others between the pull of a gradient's weights and its own update."""
    waiting_seconds: float
    """Mean over workers: in the pushes and pulls of training steps, for the server and for each other."""


class Members(Exact):
    """Of model averaging, on the test split."""

    average: Metrics
    ensemble: Metrics
    """A vote of the members, ties to the smallest label; its loss is the members' mean."""
    members: list[Metrics]


class Chunks(Exact):
    """Of input dask: who holds the training images, and what was moved for the batches of all processes."""

    owners: Literal["processes", "workers of a cluster"]
    owner_of_chunk: list[Count]
    """Rank of the process, or number of the worker in the order of addresses, for each chunk."""
    held_mib: list[Seconds]
    """Pixels of the chunks that each owner holds."""
    gathered_bytes: Count
    """Pixels of all batches since the process of the last attempt began."""
    moved_bytes: Count
    """The part of them that came from another process of the run, or from a cluster."""


class Noise(Exact):
    """Other work on the machine meanwhile. None if the system does not say."""

    load_start: float | None = None
    """Load average of the minute before the run: processes that ran or waited for a core, of earlier runs too."""
    load_end: float | None = None
    frequency_start_mhz: float | None = None
    """Mean clock of the CPUs that the run was held to."""
    frequency_end_mhz: float | None = None
    cores_stolen: float | None = None
    """Cores that the hypervisor gave to other machines during training. Only CPUs of the run count. Part of cores_taken."""
    cores_taken: float | None = None
    """Cores that other work took during training. Only CPUs of the run count. None also if it ran on several machines."""


class Environment(Exact):
    """What a process ran in."""

    interpreter: str
    python: str
    """Its version."""
    distributions: tuple[str, ...]
    """All that it can import, as `name==version`."""
    distributions_hash: str
    """SHA-256 over them and the version of Python."""
    libraries: dict[str, str] = {}
    """Known versions of the NVIDIA driver, CUDA, cuDNN, NCCL and oneDNN. All except the driver's are what the framework says of
    its own build."""


class Restart(Exact):
    """The end of an attempt that was followed by another: something from outside ended a process of the run."""

    reason: str
    epochs: Count
    """Finished until then ..."""
    steps: Count
    """... and updates after them, of the first process."""
    seconds_lost: Seconds
    """Wall time from the attempt's last checkpoint, or from its start, until all its processes had ended."""
    replicas: Count | None = None
    """With which the run went on (`Spec.least_replicas`). None: with as many as before. Such a run is `not parallel`."""

    @property
    def words(self) -> str:
        """Without what others saw of it."""
        fewer = f", went on with replicas: {self.replicas}" if self.replicas else ""
        return f"{self.reason.partition(';')[0]} (finished epochs: {self.epochs}, steps after them: {self.steps}{fewer})"


class RunResult(Exact):
    """All that is recorded of one run of one framework."""

    schema_version: int = Field(default=SCHEMA_VERSION, strict=True)
    framework: str
    spec: Spec
    status: Status
    reason: str | None = None
    """Why the status is not ok, for the reader of a table."""
    repeat: Count = 0
    implementation: str | None = None
    """What the mode really was here, e.g. `nn.DataParallel` or `replicas in CPU threads`."""
    device: str | None = None
    devices: list[str] = []
    threads: dict[str, Count] = {}
    """Intra-op, inter-op, loader workers and ranks that the core budget was spent on."""
    cores_used: float | None = None
    """CPU seconds over wall seconds during training, all processes of the run: at most the budget."""
    cores_of_others: float | None = None
    """The same of everything else that ran on the machine meanwhile; None also where the run was on several."""
    epochs: list[EpochRecord] = []
    best_epoch: Count | None = None
    """By the validation split, where the spec asks for it."""
    test: Metrics | None = None
    """Of the weights after the last epoch."""
    first_step_loss: float | None = None
    """Mean loss of the first batch before any update, to full precision: equal in both frameworks up to rounding."""
    step_losses: list[float] = []
    """Mean losses of the first steps, each before its update. Empty also where an older checkpoint lacks them."""
    spot_checks: list[Count] = []
    """Steps that were recorded off the clock for a judge, from 1. Of a resumed run, those of its last attempt."""
    phases: Phases | None = None
    peak_memory_mib: float | None = None
    """Largest resident memory (RSS) of the run, its ranks and workers summed; of a resumed run, of its largest attempt."""
    peak_memory_pss_mib: float | None = None
    """The same as proportional set size (PSS), which counts a shared page once: the largest after any epoch."""
    peak_memory_by_process_mib: list[float] = []
    """Largest resident memory (RSS) of each process with its workers, by rank; of a resumed run, of its last attempt."""
    computed_memory_by_device_mib: dict[str, float] = {}
    """Of logical devices that share a process: computed, since nobody can measure it. Weights, statistics, gradients, the
    optimizer's state, and what is gathered of the largest layer. The peak is larger: activations are not in it."""
    device_peak_memory_mib: float | None = None
    """Of all devices together; None on a CPU."""
    peak_memory_by_device_mib: dict[str, Seconds] = {}
    """The same by device, as `rank 0 GPU 1`; those that a process did not use are left out."""
    images_per_second_by_process: list[Seconds] = []
    """Of all timed epochs, by rank: each process's own images over the time until it had launched the last step of each epoch.
    Of a resumed run, those of its last attempt. Processes that meet in every step all have the pace of the slowest. Empty for a
    run of one process, and if no step was timed."""
    chunks: Chunks | None = None
    """Of input dask. None: another input, or no batch was made."""
    order_hash: str | None = None
    """SHA-256 over the int64 ids of the training examples in the order of training."""
    data_hash: str | None = None
    weights_hash: str | None = None
    """SHA-256 over the initial weights."""
    final_weights_hash: str | None = None
    """SHA-256 over the weights after the last epoch. Runs that add up everything in the same order have the same."""
    pixel_mean: tuple[float, float, float] | None = None
    """What was subtracted from each channel, in 0..1 ..."""
    pixel_std: tuple[float, float, float] | None = None
    """... and what it was then divided by."""
    bytes_per_step: float | None = None
    """Sent by all replicas of the run together to exchange gradients, weights or activations, in a step of a whole batch."""
    bytes_per_step_by_kind: dict[str, float] = {}
    """The same by kind of exchange, where a mode has several."""
    step_parts: StepParts | None = None
    top_operations: TopOperations | None = None
    device_rates: DeviceRates | None = None
    """Of the first process's accelerator; None on a CPU, whose rates the comparison has."""
    switches: dict[str, Any] = {}
    """All of the framework's switches as they were, by the names that its `describe` lists."""
    reduced: list[str] = []
    """Switches that made it compute with fewer digits than its precision says, as `name=value`."""
    conditions: dict[str, str] = {}
    """Conditions that decide its times beside the work, in words that both frameworks share: see `common.spec.conditions`, and
    the allocator. Empty: not recorded."""
    staleness: Staleness | None = None
    members: Members | None = None
    predictions_hash: str | None = None
    """SHA-256 over the int64 labels predicted for the test split."""
    confusion: list[list[Count]] | None = None
    """Examples of the test split: true class (row) by predicted class (column). As many of both, and one example at least."""
    class_names: list[str] = []
    versions: dict[str, str] = {}
    environment: Environment | None = None
    """None: not recorded."""
    machine: Facts = {}
    started_at: Moment | None = None
    """UTC, ISO 8601; of the last attempt."""
    noise: Noise | None = None
    resumes: Count = 0
    """How often the run was cut short and resumed from a checkpoint. See `Phases` for how its time is counted."""
    started_over: str | None = None
    """Why a run that was cut short did not resume from a checkpoint."""
    restarts: list[Restart] = []
    """The deaths after which all its processes were started again by themselves, see `compare.execution.executor`."""
    clock_confirmed: bool | None = None
    """Whether the launcher's own clock confirms the run's to 2 %. False: the run was too short to tell. None: not looked at."""
    clock_caution: str | None = None
    """What was seen of its clock that may be the machine's doing. No time of the run is reliable then."""

    @pydantic.field_validator("confusion")
    @classmethod
    def _counts_examples(cls, confusion: list[list[int]] | None) -> list[list[int]] | None:
        if confusion is not None and ({len(row) for row in confusion} != {len(confusion)} or not sum(map(sum, confusion))):
            raise ValueError("confusion is no square matrix of examples")
        return confusion
