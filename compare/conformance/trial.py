"""One twin that is tried: its commands, its recordings, and the words for what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from common import spec
from common.data import sources
from common.data.sources import Dataset
from common.models import architectures
from common.models.architectures import Architecture
from common.spec import Spec
from compare.core import wording
from compare.execution import launch, options
from compare.proof import ladder
from compare.proof.certificate import Rung
from compare.proof.differences import Arrays
from compare.proof.recordings import Recorder, Recording

TOLERANCE = 1e-12
"""Float64 arrays that differ by rounding alone agree within it, on the scale of the largest value."""
_MOST_SHOWN = 3

Faults = Iterator[str]


@dataclass
class Trial:
    """One twin that is tried.

    Args:
        out: folder of specs, recordings, results and logs.
        progress: called with what is being done.
    """

    name: str
    out: Path
    progress: Callable[[str], None] = lambda text: None
    _count: int = field(default=0)

    @cached_property
    def description(self) -> dict[str, Any]:
        return launch.describe(self.name)

    def call(self, words: Sequence[str | Path]) -> tuple[int, str]:
        """(exit code, output) of one command of the twin."""
        self._count += 1
        log = self.out / f"{self._count}.log"
        log.unlink(missing_ok=True)
        code = launch.call(self.name, [str(word) for word in words], log=log)
        return code, log.read_text(encoding="utf-8", errors="replace")

    def written(self, what: Spec | str, name: str) -> Path:
        """A file of a spec."""
        path = self.out / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(what if isinstance(what, str) else what.to_json(), encoding="utf-8")
        return path

    @cached_property
    def recorder(self) -> Recorder:
        return Recorder(self.out, self.progress)

    def traced(self, what: Spec, label: str, *options: str, teacher: Recording | None = None) -> Arrays:
        """A recording of the twin."""
        return self.recorder.arrays(Recording(label, self.name, what, options, teacher))

    def run(self, what: Spec, name: str, *options: str | Path) -> tuple[int, str, Path]:
        """(exit code, output, folder) of a training."""
        folder = self.out / name
        return *self.call(["run", self.written(what, f"{name}-spec"), "--out", folder, *options]), folder


def loaded(what: Spec) -> tuple[Dataset, Architecture]:
    """The data and the model of a spec."""
    dataset = sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir)
    return dataset, architectures.of(what, len(dataset.class_names), dataset.image_size)


def spec_of(model: str = "simple_cnn", optimizer: str = "sgd", **fields: Any) -> Spec:
    values = {
        "model": model,
        "data": {"source": "digits", "limit": 100},
        "optimizer": options.OPTIMIZERS[optimizer],
        "augmentation": {"horizontal_flip": True, "shift_px": 2},
        "precision": "float64",
        "global_batch_size": ladder.BATCH_SIZE,
        "steps": 3,
    }
    return spec.build({**values, **fields})


def failed(rungs: Sequence[Rung]) -> Faults:
    for rung in rungs:
        if rung.status == "failed":
            apart, where = f"{rung.max_relative_difference:.1e}", f" ({rung.where})" if rung.where else ""
            yield f"{rung.name} differ by {apart}, tolerance {rung.tolerance:.0e}{where}"


def last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return wording.one_line(lines[-1]) if lines else "it printed nothing"


def some(found: Sequence[str]) -> str:
    return wording.listed(found, _MOST_SHOWN)
