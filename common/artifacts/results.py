"""What a run leaves behind: a line per epoch as it happens, and one atomic, versioned result that seals it."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Literal, cast

import pydantic
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from common import spec
from common.machine.rates import DeviceRates
from common.spec import Spec

SCHEMA_VERSION = 1

Status = Literal["ok", "failed", "diverged", "killed", "not parallel", "not available"]

RESULT_FILE = "result.json"
EVENTS_FILE = "events.jsonl"
ANY: TypeAdapter[Any] = TypeAdapter(Any)
"""Reads JSON into plain values; what is none is a ValueError."""
_CHECKSUM = "sha256"
_SEAL, _END = f', "{_CHECKSUM}": "'.encode(), b'"}'
"""Around the checksum of a result, or of a line of events.jsonl, which is its last value."""
_PARTIAL = ".partial"
"""The end of the names of files that are being written; the first letter is a point."""
TRACE_FILE = "trace.json.gz"
BEST_FILE = "best.safetensors"
"""The weights of the best epoch, where the spec keeps them; see `common.artifacts.trained`."""


class ResultError(ValueError):
    """A stored result cannot be read: torn, of another version, or not a result."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Metrics(_Frozen):
    """Scores of one pass over one split."""

    loss: float
    """Mean cross-entropy over examples."""
    accuracy: float
    """num_correct / num_examples, in 0..1."""
    num_correct: int
    num_examples: int


class EpochRecord(_Frozen):
    """One pass over the training split, and the validation that followed it."""

    epoch: int
    """From 1."""
    steps: int
    images: int
    epoch_images: int
    """Images of a whole epoch: more than `images` where the spec's `steps` cut this one short."""
    learning_rate: float
    """Of the epoch's last step."""
    train: Metrics | None
    """None where only a part was run. Over the epoch, each batch scored before its update, with augmentation and dropout."""
    validation: Metrics | None
    timed_seconds: float
    """Wall time of the epoch's timed steps; a process's first step is left out."""
    timed_steps: int
    timed_images: int
    input_wait_seconds: float
    """The part of timed_seconds in which the training loop waited for its next batch."""
    evaluation_seconds: float
    first_step_seconds: float | None = None
    """Of the process that began with this epoch; None in all others."""

    @property
    def seconds(self) -> float:
        """Seconds for a whole epoch at the pace of the timed images."""
        return self.timed_seconds * self.epoch_images / self.timed_images if self.timed_images else float("nan")

    @property
    def images_per_second(self) -> float:
        return self.timed_images / self.timed_seconds if self.timed_images else float("nan")


class Phases(_Frozen):
    """Wall time of the process by phase; the six of them add up to wall_seconds.

    Of a run that went on from a checkpoint, all attempts are added up, each until the checkpoint that the next one began with.
    """

    import_seconds: float
    """Process start until the framework is imported, its devices are set up and the ranks know each other."""
    build_seconds: float
    """Data from the cache, model, initial weights, optimizer."""
    first_step_seconds: float
    """The first update: tracing, compiling, first touch of memory."""
    training_seconds: float
    """All other updates, their wait for input included."""
    input_wait_seconds: float
    """Part of training_seconds."""
    evaluation_seconds: float
    other_seconds: float
    wall_seconds: float


class StepParts(_Frozen):
    """Where the time of a step goes: medians over a segment of its own after the training, seconds a step."""

    steps: int
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
    """How forward, backward and optimizer were told apart, or why they cannot be."""


class Operation(_Frozen):
    """All operations of one name, as a profiler has seen them, in a step."""

    name: str
    """As the framework calls it; the other one's fuses differently under other names."""
    calls: float
    self_seconds: float
    """Without the operations inside of it; of several threads or streams the sum."""
    share: float
    """Of the self seconds of all operations, 0..1."""


class TopOperations(_Frozen):
    """What the framework's own profiler saw in steps after the training, which it slows down: of the first process."""

    steps: int
    operations: list[Operation] = []
    """Ten at most, the longest first."""
    trace: str | None = None
    """File beside the result, in Chrome's trace event format."""
    failure: str | None = None
    """Why there is no trace, or nothing at all."""


class Staleness(_Frozen):
    """Of a parameter server: by how many updates of others each worker's gradients were late."""

    counts: list[int]
    """Pushes whose gradients were made `index` updates before the one that they became."""
    waiting_seconds: float
    """Mean over workers: in the pushes and pulls of training steps, for the server and for each other."""


class Members(_Frozen):
    """Of model averaging, on the test split."""

    average: Metrics
    ensemble: Metrics
    """A vote of the members, ties to the smallest label; its loss is the members' mean."""
    members: list[Metrics]


class Noise(_Frozen):
    """What else the machine did meanwhile; None where the system does not say."""

    load_start: float | None = None
    """Load average of the minute before the run: processes that ran or waited for a core, of earlier runs too."""
    load_end: float | None = None
    frequency_start_mhz: float | None = None
    """Mean clock of the CPUs that the run was held to."""
    frequency_end_mhz: float | None = None
    cores_stolen: float | None = None
    """During training, of those that the run was held to by the hypervisor, for other machines; part of cores_taken."""
    cores_taken: float | None = None
    """During training, of the CPUs that the run was held to, by everything else; None also where the run was on several
    machines."""


class RunResult(_Frozen):
    """Everything that one run of one framework says of itself."""

    schema_version: int = Field(default=SCHEMA_VERSION, strict=True)
    framework: str
    spec: Spec
    status: Status
    reason: str | None = None
    """Why the status is not ok, for the reader of a table."""
    repeat: int = 0
    implementation: str | None = None
    """What the mode really was here, e.g. `nn.DataParallel` or `replicas in CPU threads`."""
    device: str | None = None
    devices: list[str] = []
    threads: dict[str, int] = {}
    """Intra-op, inter-op, loader workers and ranks that the core budget was spent on."""
    cores_used: float | None = None
    """CPU seconds over wall seconds during training, all processes of the run: at most the budget."""
    cores_of_others: float | None = None
    """The same of everything else that ran on the machine meanwhile; None also where the run was on several."""
    epochs: list[EpochRecord] = []
    best_epoch: int | None = None
    """By the validation split, where the spec asks for it."""
    test: Metrics | None = None
    """Of the weights after the last epoch."""
    first_step_loss: float | None = None
    """Mean loss of the first batch before any update, to full precision: equal in both frameworks up to rounding."""
    phases: Phases | None = None
    peak_memory_mib: float | None = None
    """Largest resident memory of the run, its ranks and workers summed; of a resumed run, of its largest attempt."""
    device_peak_memory_mib: float | None = None
    order_hash: str | None = None
    """SHA-256 over the int64 ids of the training examples in the order in which they were trained on."""
    data_hash: str | None = None
    weights_hash: str | None = None
    """SHA-256 over the initial weights."""
    pixel_mean: tuple[float, float, float] | None = None
    """What was subtracted from each channel, in 0..1 ..."""
    pixel_std: tuple[float, float, float] | None = None
    """... and what it was then divided by."""
    bytes_per_step: float | None = None
    """Sent by all replicas of the run together to exchange gradients, weights or activations, in a step of a whole batch."""
    step_parts: StepParts | None = None
    top_operations: TopOperations | None = None
    device_rates: DeviceRates | None = None
    """Of the first process's accelerator; None on a CPU, whose rates the comparison has."""
    switches: dict[str, Any] = {}
    """All of the framework's switches as they were, by the names that its `describe` lists."""
    reduced: list[str] = []
    """Those by which it computed with fewer digits than its precision says, as `name=value`."""
    staleness: Staleness | None = None
    members: Members | None = None
    predictions_hash: str | None = None
    """SHA-256 over the int64 labels predicted for the test split."""
    confusion: list[list[int]] | None = None
    """Of the test split, examples of each true class (row) that were taken for each class (column)."""
    class_names: list[str] = []
    versions: dict[str, str] = {}
    machine: dict[str, Any] = {}
    started_at: str | None = None
    """UTC, ISO 8601; of the last attempt."""
    noise: Noise | None = None
    resumes: int = 0
    """How often the run was cut short and went on from a checkpoint; see `Phases` for how its time is counted."""
    started_over: str | None = None
    """Why a run that was cut short did not go on from a checkpoint."""


def save(result: RunResult, directory: Path) -> Path:
    """Seal a run: write result.json whole or not at all."""
    path = directory / RESULT_FILE
    write_atomically(path, to_line(result))
    return path


def to_line(result: RunResult) -> bytes:
    """A result as its file holds it: one line, so that its checksum can be held against the text as it is."""
    return _sealed(json.loads(result.model_dump_json()))


def load(path: Path) -> RunResult:
    """Read a sealed result.

    Raises:
        ResultError: the file is torn, changed since it was written, no result, or of another schema version.
    """
    try:
        content = path.read_bytes()
        whole = _as_written(content)
        if whole is not None and (result := _of_this_version(whole)) is not None:
            return result
        values = parsed(content)
        if not is_unchanged(values):
            raise ResultError(f"{path} was changed since it was written: its checksum does not fit. Run it again.")
        version = values.get("schema_version") if isinstance(values, dict) else None
        if version != SCHEMA_VERSION:
            raise ResultError(
                f"{path} has another schema_version. Received: {version!r}, needed: {SCHEMA_VERSION}. "
                "Run it again with this version."
            )
        values["spec"] = _recorded_spec(json.dumps(values["spec"]))
        return RunResult.model_validate(values)
    except ResultError:
        raise
    except (OSError, KeyError, ValueError, RecursionError) as error:
        raise ResultError(f"{path} is not a whole result ({type(error).__name__}: {error}). Run it again.") from None


def _of_this_version(text: bytes) -> RunResult | None:
    """None where `load` has to say what is wrong with it."""
    try:
        result = RunResult.model_validate_json(text)
    except pydantic.ValidationError:
        return None
    return result if "schema_version" in result.model_fields_set and result.schema_version == SCHEMA_VERSION else None


@functools.lru_cache
def _recorded_spec(text: str) -> Spec:
    """Judged once for all repeats of a row."""
    return spec.from_json(text)


def append_event(directory: Path, event: str, **values: Any) -> None:
    """Add one line to events.jsonl and push it to the operating system, so that a kill loses no finished epoch."""
    line = _sealed({"event": event, **values}) + b"\n"
    with (directory / EVENTS_FILE).open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        if file.read(1) not in (b"", b"\n"):  # torn by a kill: this line is not to be lost with it
            line = b"\n" + line
        file.write(line)


def read_events(directory: Path) -> list[dict[str, Any]]:
    """The whole lines of events.jsonl; those torn by a kill or changed since are left out, see `damaged_events`."""
    return [event for line in _lines(directory) if (event := _event(line)) is not None]


def damaged_events(directory: Path) -> list[int]:
    """The numbers, from 1, of the lines of events.jsonl that `read_events` leaves out."""
    return [number for number, line in enumerate(_lines(directory), 1) if _as_written(line) is None and _event(line) is None]


def _lines(directory: Path) -> list[bytes]:
    try:
        return [line for line in (directory / EVENTS_FILE).read_bytes().split(b"\n") if line]
    except FileNotFoundError:
        return []


def _sealed(values: dict[str, Any]) -> bytes:
    """A line of JSON that ends with the checksum of its values."""
    text = _canonical(values).encode()
    return text.removesuffix(b"}") + _SEAL + _sha256(text) + _END


def _as_written(line: bytes) -> bytes | None:
    """A line of `_sealed` without its checksum; None where it is not so to the letter, though its values may be unchanged.

    That is seen at once, where `is_unchanged` needs all values, and writes them once more.
    """
    text, _, rest = line.rpartition(_SEAL)
    whole = text + b"}"
    return whole if rest == _sha256(whole) + _END else None


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = ANY.validate_json(line)  # several times as fast on short lines, of which there may be many
    except ValueError:
        return None
    if not isinstance(event, dict) or not is_unchanged(cast(dict[str, Any], event)):
        return None
    return cast(dict[str, Any], event)


def read_epochs(directory: Path) -> list[EpochRecord]:
    """The epochs that events.jsonl holds, of a run that may have died after them."""
    records: list[EpochRecord] = []
    for event in read_events(directory):
        if event.get("event") == "epoch":
            try:
                records.append(EpochRecord.model_validate({name: event.get(name) for name in EpochRecord.model_fields}))
            except pydantic.ValidationError:
                continue  # a line torn by a kill may still be JSON
    return records


def clear(directory: Path) -> None:
    """Remove what an earlier run left, so that nobody takes it for this one's."""
    for name in (RESULT_FILE, EVENTS_FILE, TRACE_FILE, BEST_FILE):
        (directory / name).unlink(missing_ok=True)


def parsed(content: bytes) -> Any:
    """The values of a JSON file that anybody may have written; what is none is a ValueError, however deep it nests."""
    try:
        return json.loads(content.decode("utf-8-sig"))  # some editors write a mark of the order of bytes
    except RecursionError:
        raise ValueError("it nests too deep") from None


def with_checksum(text: str) -> str:
    """A JSON object's text with the SHA-256 of its values, by which a change of any of them is noticed."""
    values = json.loads(text)
    return json.dumps({**values, _CHECKSUM: digest(values)}, indent=1)


def is_unchanged(values: Any) -> bool:
    """Whether values are those that were written; takes the checksum out of them. What has none, from before, passes."""
    written = values.pop(_CHECKSUM, None) if isinstance(values, dict) else None
    return written is None or written == digest(cast(dict[str, Any], values))


def digest(values: dict[str, Any]) -> str:
    """SHA-256 of plain JSON values, whatever the order of their names."""
    return _sha256(_canonical(values).encode()).decode()


def _canonical(values: dict[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file whole or not at all, also when the power fails in between: then the one before may stand."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PARTIAL)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> None:
    """Remove what kills in the middle of `write_atomically` left in a folder, and below it, that nobody writes to."""
    for temporary in folder.rglob(f".*{_PARTIAL}"):
        temporary.unlink(missing_ok=True)
