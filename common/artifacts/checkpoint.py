"""Checkpoints. A run that was cut short resumes from one. Each is one file, written between two epochs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pydantic

from common.artifacts import checked_arrays, records
from common.artifacts.records import RecordError
from common.artifacts.schema import EpochRecord, Phases
from common.errors import UserError
from common.frozen import Exact, Frozen
from common.machine import placement
from common.machine.interference import Usage
from common.models.weights import Weights
from common.spec import Spec

FILE = "checkpoint.safetensors"
_VERSION = "3"
_IDS = "ids"
_STATE, _BEST = "state/", "best/"


class CheckpointError(UserError, ValueError):
    """A run cannot resume from a checkpoint: torn, changed, or of another run."""


class Identity(Frozen):
    """Fields that must be equal for a run to resume from a checkpoint."""

    framework: str
    spec: Spec
    repeat: int
    versions: dict[str, str]
    data_hash: str
    weights_hash: str
    """SHA-256 of the initial weights."""


class Progress(Exact):
    """Measurements of a run so far, over all its attempts."""

    identity: Identity
    epochs: list[EpochRecord]
    phases: Phases
    first_step_loss: float
    step_losses: list[float] = []
    """Mean losses of the first steps, as in the result. Empty in a checkpoint of an earlier version."""
    resumes: int
    """Number of resumptions before this checkpoint was written."""
    usage: Usage
    load_start: float | None
    frequency_start_mhz: float | None
    peak_memory_mib: float
    """Peak memory in MiB, summed over all processes of the run."""
    peak_memory_pss_mib: float | None = None
    clock: list[tuple[float, list[float]]] = []
    """Entry of each epoch that the clock's audit has checked, see `common.training.timing.LateLosses`."""
    clock_stepped: str | None = None
    """See `common.training.timing.ClockAudit`."""


class Checkpoint(NamedTuple):
    """A run between two epochs."""

    progress: Progress
    ids: npt.NDArray[np.int64]
    """int64 [N], ids of all examples so far, in training order."""
    state: dict[str, npt.NDArray[Any]]
    """Training state, as `BaseTrainer.state` returns it."""
    best: Weights
    """Weights of the best epoch so far. Empty if the spec does not keep them."""


class SupportsAllReduce(Protocol):
    """Anything that sums arrays over the processes of a run."""

    def all_reduce_world(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The sum over processes, in every process; float64 or int64."""
        ...


def save(checkpoint: Checkpoint, directory: Path) -> None:
    """Replace a run's checkpoint atomically.

    Raises:
        OSError: it cannot be written. The former one stays.
    """
    metadata = {"version": _VERSION, "progress": checkpoint.progress.model_dump_json()}
    checked_arrays.write(directory / FILE, metadata, _arrays(checkpoint))


def load(directory: Path) -> Checkpoint:
    """Read the checkpoint of an attempt."""
    path = directory / FILE
    if not path.exists():
        raise CheckpointError("no checkpoint had been made")
    try:
        metadata, arrays = checked_arrays.read(path, kind="checkpoint", version=_VERSION)
    except RecordError as error:
        raise CheckpointError(str(error).rstrip(".")) from None  # it is quoted within a sentence
    return _parsed(metadata.get("progress", ""), arrays, path)


def broadcast_from_rank0(trainer: SupportsAllReduce, local_checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Broadcast rank 0's checkpoint to all ranks of a run, which may be on other machines. All ranks call it.

    Args:
        local_checkpoint: rank 0's checkpoint, or None; in other ranks None.
    """
    if not placement.is_rank():
        return local_checkpoint
    header = b"" if local_checkpoint is None else json.dumps(_header(local_checkpoint)).encode()
    length = int(trainer.all_reduce_world(np.array([len(header)]))[0])
    if not length:
        return None
    padded = np.zeros(length, np.int64) if local_checkpoint is None else np.frombuffer(header, np.uint8).astype(np.int64)
    progress, shapes = json.loads(trainer.all_reduce_world(padded).astype(np.uint8).tobytes())
    local_arrays = {} if local_checkpoint is None else _arrays(local_checkpoint)
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, dtype, shape in shapes:
        values = local_arrays.get(name, np.zeros(shape, dtype))
        arrays[name] = trainer.all_reduce_world(values.reshape(-1)).reshape(shape)
    return _parsed(progress, arrays)


def remove(directory: Path) -> None:
    """Remove a checkpoint that is no longer needed."""
    (directory / FILE).unlink(missing_ok=True)


def _header(checkpoint: Checkpoint) -> tuple[str, list[tuple[str, str, tuple[int, ...]]]]:
    shapes = [(name, array.dtype.name, array.shape) for name, array in _arrays(checkpoint).items()]
    return checkpoint.progress.model_dump_json(), shapes


def _arrays(checkpoint: Checkpoint) -> dict[str, npt.NDArray[Any]]:
    groups = ((_STATE, checkpoint.state), (_BEST, checkpoint.best))
    arrays = {prefix + name: array for prefix, group in groups for name, array in group.items()}
    return {name: np.asarray(array, order="C") for name, array in {_IDS: checkpoint.ids, **arrays}.items()}


def _parsed(progress: str, arrays: Mapping[str, npt.NDArray[Any]], path: Path = Path(FILE)) -> Checkpoint:
    def group(prefix: str) -> dict[str, npt.NDArray[Any]]:
        return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}

    try:
        return Checkpoint(Progress.model_validate_json(progress), arrays[_IDS], group(_STATE), group(_BEST))
    except (KeyError, pydantic.ValidationError) as error:
        raise CheckpointError(records.torn_message(path, "checkpoint", records.describe_error(error), "").rstrip(".")) from None
