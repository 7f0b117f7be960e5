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
"""Tolerance for an accuracy, and for a loss slightly below 0."""


INTERRUPTED = "interrupted"
"""First word of the reason of a run that its user interrupted. Its status is killed."""

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


class Slice(Exact):
    """Consecutive steps of an epoch, which a run trained in one turn, see `common.training.turns`."""

    first_step: Count
    """Number of the first step in the epoch, from 1."""
    steps: Count
    """Number of steps. The timed ones among them are those that the epoch's `left_out` does not name."""
    seconds: Seconds
    """Wall time of the timed ones."""
    taken_cpu_seconds: Seconds
    """CPU time of other work on the run's CPUs in these seconds."""
    stolen_cpu_seconds: Seconds
    """CPU time that the hypervisor gave to other machines instead."""
    began_at: Seconds | None = None
    """Time when the turn began, in seconds since 1970. None: an earlier version recorded none."""


class EpochRecord(Exact):
    """One pass over the training split, and the validation that followed it."""

    epoch: Count
    """Number of the epoch, from 1."""
    steps: Count
    images: Count
    epoch_images: Count
    """Images of a whole epoch: more than `images` where the spec's `steps` cut this one short."""
    learning_rate: float
    """Learning rate of the epoch's last step."""
    train: Metrics | None
    """Scores over the epoch, each batch before its update, with augmentation and dropout. None if only a part was run."""
    validation: Metrics | None
    timed_seconds: Seconds
    """Wall time of the epoch's timed steps: all but a process's first one and those of `left_out`."""
    timed_steps: Count
    timed_images: Count
    input_wait_seconds: Seconds
    """Part of timed_seconds: the training loop waited for its next batch."""
    evaluation_seconds: Seconds
    first_step_seconds: Seconds | None = None
    """Seconds of the first step, and of compiling for other batch sizes. Only the first epoch of a process has it."""
    left_out: list[Count] = []
    """Steps that were not timed, from 1: those that were recorded for a spot check, with input workers those behind them, whose
    batches were ready, and the first one of each turn."""
    slices: list[Slice] = []
    """The epoch's steps by turn. Empty: the run trained without a pause."""
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
    def training_seconds(self) -> float:
        """Seconds of the steps that were timed or left out, at the pace of the timed ones."""
        return self.timed_seconds + len(self.left_out) * self.timed_seconds / max(self.timed_steps, 1)

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
    """All other updates that were timed, their wait for input included, until the last rank has done its last one."""
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
    """Seconds of computing of the slowest replica, without any exchange."""
    communication_hidden_seconds: float | None = None
    """Seconds of the exchange that overlap with computing."""
    communication_exposed_seconds: float | None = None
    """Seconds of the exchange while everything waits for it."""
    idle_seconds: float | None = None
    """Seconds that a replica neither computes nor exchanges, mean over replicas: pipeline bubbles, slower neighbours."""
    not_separable: str | None = None
    """Reason why a part is None."""
    transfer_seconds: float | None = None
    """Seconds to copy a batch from the host to the device. This and the next three: slowest process, without any exchange."""
    forward_seconds: float | None = None
    backward_seconds: float | None = None
    optimizer_seconds: float | None = None
    pieces: str | None = None
    """Method by which forward, backward and optimizer were separated, or why they cannot be."""


class ProfiledOperation(Exact):
    """All operations of one name in a step, as a profiler recorded them."""

    name: str
    """Name in the framework. The other framework fuses operations differently, under other names."""
    calls: float
    self_seconds: float
    """Seconds without the operations inside it, summed over threads or streams."""
    share: float
    """Fraction of the self seconds of all operations, 0..1."""


class TopOperations(Exact):
    """Operations from the framework's own profiler, in steps after the training, which it slows down. First process only."""

    steps: Count
    operations: list[ProfiledOperation] = []
    """Operations with the longest self time, longest first, at most ten."""
    trace: str | None = None
    """File beside the result, in Chrome's trace event format."""
    failure: str | None = None
    """Reason why there is no trace, or nothing at all."""


class Staleness(Exact):
    """Staleness of the gradients that workers push to an asynchronous parameter server."""

    counts: list[Count]
    """Pushes by staleness: updates by others between the pull of a gradient's weights and its own update."""
    waiting_seconds: float
    """Seconds of waiting for the server and for other workers in the pushes and pulls of training steps, mean over workers."""


class Members(Exact):
    """Scores of model averaging on the test split."""

    average: Metrics
    ensemble: Metrics
    """Scores of the members' majority vote, ties to the smallest label. The loss is the members' mean."""
    members: list[Metrics]


class Chunks(Exact):
    """Chunks of input dask: their owners, and the bytes that were moved for the batches of all processes."""

    owners: Literal["processes", "workers of a cluster"]
    owner_of_chunk: list[Count]
    """Owner of each chunk: rank of the process, or number of the worker in the order of addresses."""
    held_mib: list[Seconds]
    """MiB of pixels that each owner holds."""
    gathered_bytes: Count
    """Bytes of pixels of all batches since the process of the last attempt began."""
    moved_bytes: Count
    """Bytes of `gathered_bytes` that came from another process of the run, or from a cluster."""


class Noise(Exact):
    """Other work on the machine during the run. A field is None if the system does not report it."""

    load_start: float | None = None
    """Load average of the minute before the run: processes that ran or waited for a core, of earlier runs too."""
    load_end: float | None = None
    frequency_start_mhz: float | None = None
    """Mean clock in MHz of the CPUs that the run may use."""
    frequency_end_mhz: float | None = None
    cores_stolen: float | None = None
    """Cores that the hypervisor gave to other machines during training. Only CPUs of the run count. Part of cores_taken."""
    cores_taken: float | None = None
    """Cores that other work took during training. Only CPUs of the run count. None also if it ran on several machines."""


class Environment(Exact):
    """The Python environment of a process."""

    interpreter: str
    python: str
    """Version of Python."""
    distributions: tuple[str, ...]
    """All installed distributions, as `name==version`."""
    distributions_hash: str
    """SHA-256 over `distributions` and the version of Python."""
    libraries: dict[str, str] = {}
    """Known versions of the NVIDIA driver, CUDA, cuDNN, NCCL and oneDNN. All except the driver's are what the framework says of
    its own build."""


class Restart(Exact):
    """The end of an attempt that was followed by another: something from outside ended a process of the run."""

    reason: str
    epochs: Count
    """Epochs that were finished until then."""
    steps: Count
    """Updates after these epochs, of the first process."""
    seconds_lost: Seconds
    """Wall time from the attempt's last checkpoint, or from its start, until all its processes had ended."""
    replicas: Count | None = None
    """Replicas that the run went on with (`Spec.least_replicas`); it is `not parallel`. None: as many as before."""

    @property
    def words(self) -> str:
        """Sentence about the restart, without what other processes saw of it."""
        fewer = f", went on with replicas: {self.replicas}" if self.replicas else ""
        return f"{self.reason.partition(';')[0]} (finished epochs: {self.epochs}, steps after them: {self.steps}{fewer})"


class RunResult(Exact):
    """All that is recorded of one run of one framework."""

    schema_version: int = Field(default=SCHEMA_VERSION, strict=True)
    framework: str
    spec: Spec
    status: Status
    reason: str | None = None
    """Reason why the status is not ok, for the reader of a table."""
    repeat: Count = 0
    implementation: str | None = None
    """Implementation of the mode on this machine, e.g. `nn.DataParallel` or `replicas in CPU threads`."""
    device: str | None = None
    devices: list[str] = []
    threads: dict[str, Count] = {}
    """Intra-op, inter-op, loader workers and ranks that the core budget was spent on."""
    cores_used: float | None = None
    """CPU seconds over wall seconds during training, all processes of the run: at most the budget."""
    cores_of_others: float | None = None
    """CPU seconds over wall seconds during training of other work on the machine. None also for a run on several machines."""
    epochs: list[EpochRecord] = []
    best_epoch: Count | None = None
    """Number of the best epoch on the validation split, if the spec asks for it."""
    test: Metrics | None = None
    """Scores on the test split of the weights after the last epoch."""
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
    """Largest proportional set size (PSS) of the run after any epoch, in MiB. PSS counts a shared page once."""
    peak_memory_by_process_mib: list[float] = []
    """Largest resident memory (RSS) of each process with its workers, by rank; of a resumed run, of its last attempt."""
    computed_memory_by_device_mib: dict[str, float] = {}
    """Computed MiB of each logical device that shares a process, since nobody can measure it: weights, statistics, gradients,
    the optimizer's state, and the largest gathered layer. The peak is larger: activations are not in it."""
    device_peak_memory_mib: float | None = None
    """Peak memory in MiB of all devices together; None on a CPU."""
    peak_memory_by_device_mib: dict[str, Seconds] = {}
    """Peak memory in MiB by device, as `rank 0 GPU 1`. Devices that a process did not use are left out."""
    images_per_second_by_process: list[Seconds] = []
    """Images per second in all timed epochs, by rank: each process's own images over the time until it had launched the last
    step of each epoch. Of a resumed run, its last attempt counts. Processes that synchronise in every step are as fast as the
    slowest. Empty for a run of one process, and if no step was timed."""
    chunks: Chunks | None = None
    """Owners and transfers of input dask. None: another input, or no batch was made."""
    order_hash: str | None = None
    """SHA-256 over the int64 ids of the training examples in the order of training."""
    data_hash: str | None = None
    weights_hash: str | None = None
    """SHA-256 over the initial weights."""
    final_weights_hash: str | None = None
    """SHA-256 over the weights after the last epoch. Runs that add up everything in the same order have the same."""
    pixel_mean: tuple[float, float, float] | None = None
    """Value that was subtracted from each channel, for pixels in 0..1."""
    pixel_std: tuple[float, float, float] | None = None
    """Divisor of each channel after that."""
    bytes_per_step: float | None = None
    """Bytes that all replicas together send in a step of a whole batch to exchange gradients, weights or activations."""
    bytes_per_step_by_kind: dict[str, float] = {}
    """Bytes per step by kind of exchange, if a mode has several."""
    step_parts: StepParts | None = None
    top_operations: TopOperations | None = None
    device_rates: DeviceRates | None = None
    """Rates of the first process's accelerator; None on a CPU, whose rates the comparison stores."""
    switches: dict[str, Any] = {}
    """Values of all the framework's switches in this run, by the names that its `describe` lists."""
    reduced: list[str] = []
    """Switches that made the run compute with fewer digits than its precision says, as `name=value`."""
    conditions: dict[str, str] = {}
    """Conditions beside the work that decide the run's times, in words that both frameworks share: those of
    `common.spec.conditions`, and the allocator. Empty: not recorded."""
    staleness: Staleness | None = None
    members: Members | None = None
    predictions_hash: str | None = None
    """SHA-256 over the int64 labels predicted for the test split."""
    confusion: list[list[Count]] | None = None
    """Examples of the test split: true class (row) by predicted class (column). As many of both, and one example at least."""
    class_names: list[str] = []
    versions: dict[str, str] = {}
    environment: Environment | None = None
    """Python environment of the run. None: not recorded."""
    machine: Facts = {}
    started_at: Moment | None = None
    """Start of the last attempt, UTC, ISO 8601."""
    noise: Noise | None = None
    round_id: str | None = None
    """Unique name of the round of runs that it took turns with. None: it took none, or it is not recorded."""
    resumes: Count = 0
    """Number of times that the run was cut short and resumed from a checkpoint. See `Phases` for how its time is counted."""
    started_over: str | None = None
    """Reason why a run that was cut short did not resume from a checkpoint."""
    restarts: list[Restart] = []
    """Deaths of processes after which the run was restarted automatically, see `compare.comparison.executor`."""
    clock_confirmed: bool | None = None
    """Whether the launcher's own clock confirms the run's to 2 %. False: the run was too short to tell. None: not looked at."""
    clock_caution: str | None = None
    """Observation about the run's clock that may be caused by the machine. If set, no time of the run is reliable."""

    @pydantic.field_validator("confusion")
    @classmethod
    def _counts_examples(cls, confusion: list[list[int]] | None) -> list[list[int]] | None:
        if confusion is not None and ({len(row) for row in confusion} != {len(confusion)} or not sum(map(sum, confusion))):
            raise ValueError("confusion is no square matrix of examples")
        return confusion
