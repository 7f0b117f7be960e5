"""The serial run of each framework as files. Anyone can check the claim alone with them. See docs/prove-us-wrong.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.artifacts import array_file, atomic_files
from common.spec import Precision, Spec
from compare.cli.differences import relative
from compare.proof import ladder
from compare.proof.recordings import Recorder, TraceRequest
from compare.running.twins import Twins

SPEC_FILE = "spec.json"


class RecordedRun(NamedTuple):
    """Recorded serial run of one framework."""

    framework: str
    file: Path
    steps: int
    first_loss: float
    last_loss: float
    difference: float
    """Largest relative difference of a loss from the first framework's. Shown, not judged: `parity` does that."""


def record(
    timed_spec: Spec,
    twins: Twins,
    folder: Path,
    *,
    precision: Precision,
    steps: int | None,
    out: Path,
    progress: Callable[[str], None],
) -> list[RecordedRun]:
    """Write a spec and each twin's recording of it: initial weights, batches, masks, learning rates, losses, last weights.

    Args:
        timed_spec: spec with the model, data, optimizer and batch size.
        folder: folder of the files. It may be missing.
        steps: number of steps. None: as many as the proof of a small model has.
        out, progress: see `Recorder`.
    """
    spec = ladder.proof_spec(timed_spec, timed_spec.global_batch_size, steps or ladder.STEPS, precision)
    requests = [TraceRequest("serial", name, spec, ("--batches",)) for name in twins.names]
    recorder = Recorder(twins, out, progress)
    recorder.make(requests)
    folder.mkdir(parents=True, exist_ok=True)
    atomic_files.write_atomically(folder / SPEC_FILE, spec.to_json())
    runs: list[RecordedRun] = []
    first_losses: np.ndarray | None = None
    for request in requests:
        file = folder / f"{request.framework}.safetensors"
        shutil.move(recorder.path(request), file)
        losses = array_file.ArrayFile(file)["loss"]
        first_losses = losses if first_losses is None else first_losses
        difference = float(relative(losses, first_losses).max())
        runs.append(RecordedRun(request.framework, file, len(losses), float(losses[0]), float(losses[-1]), difference))
    return runs
