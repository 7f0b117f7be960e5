"""The serial run of each framework as files. Anyone can check the claim alone with them. See docs/check-us-yourself.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.artifacts import array_file, atomic_files
from common.spec import Precision, Spec
from compare.core.differences import relative
from compare.proof import ladder
from compare.proof.recordings import Recorder, Recording

SPEC_FILE = "spec.json"


class Recorded(NamedTuple):
    """The run of one framework, in its file."""

    framework: str
    file: Path
    steps: int
    first_loss: float
    last_loss: float
    difference: float
    """Largest relative difference of a loss from the first framework's. Shown, not judged: `parity` does that."""


def record(
    timed: Spec,
    frameworks: Sequence[str],
    folder: Path,
    *,
    precision: Precision,
    steps: int | None,
    out: Path,
    progress: Callable[[str], None],
) -> list[Recorded]:
    """Write a spec and each framework's recording of it: initial weights, batches, masks, learning rates, losses, last weights.

    Args:
        timed: gives model, data, optimizer and batch size.
        folder: for the files. It may be missing.
        steps: None: as many as a proof follows of a small model.
        out, progress: see `Recorder`.

    Raises:
        LaunchError: a twin could not record.
    """
    what = ladder.proof_spec(timed, timed.global_batch_size, steps or ladder.STEPS, precision)
    wanted = [Recording("serial", name, what, ("--batches",)) for name in frameworks]
    recorder = Recorder(out, progress)
    recorder.make(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    atomic_files.write_atomically(folder / SPEC_FILE, what.to_json())
    made: list[Recorded] = []
    ours: np.ndarray | None = None
    for each in wanted:
        file = folder / f"{each.framework}.safetensors"
        shutil.move(recorder.path(each), file)
        losses = array_file.ArrayFile(file)["loss"]
        ours = losses if ours is None else ours
        apart = float(relative(losses, ours).max())
        made.append(Recorded(each.framework, file, len(losses), float(losses[0]), float(losses[-1]), apart))
    return made
