"""One form of all stored measurements: results folders of `convtwins run` and files of pytest-benchmark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from common.artifacts.schema import Environment, Metrics
from common.frozen import Frozen
from common.machine import machine
from common.spec import EFFECTS, Spec
from compare.cli.errors import FolderError
from compare.cli.wording import count
from compare.judgement.row_figures import Doubt
from compare.judgement.statement import Statement
from compare.results import store
from compare.statistics.statistics import Spread, spread

Kind = Literal["comparison", "benchmarks"]

SECONDS = "seconds"
"""Metric of a benchmark: seconds per call, a statistic over its rounds."""
COMMAND_SECONDS = "command_seconds"
"""Metric of a command: its wall time, from start to end."""
FIGURE = "figure"
"""Metric of a figure that a command writes itself. Less is better."""


class MeasuredSubject(Frozen):
    """A row of a comparison, or a benchmark."""

    id: str
    name: str
    """Name for a reader."""
    samples: dict[str, dict[int, float]]
    """Finite values: metric: {repeat or file: value}. A benchmark has the median of each file, whose rounds share a process."""
    statistic: str = "median"
    """Statistic of a benchmark's rounds that its samples are."""
    statistics: dict[str, dict[int, float]] = {}
    """Finite statistics of a benchmark's rounds, that of its samples too: {statistic: {file: value}}. Empty for a row."""
    spreads: dict[str, Spread]
    """Spread of each metric that was measured. For a single benchmark file it is taken over the rounds."""
    tests: dict[int, Metrics] = {}
    """Scores on the test split, by repeat."""
    seeds: dict[int, int] = {}
    """Seed of each repeat."""
    predictions: dict[int, str] = {}
    """Hash of the predictions on the test split, by repeat, if known."""
    spec: Spec | None = None
    status: str = "ok"
    """Status, see `Summary.status`."""
    reason: str | None = None
    parity: str | None = None
    """Parity, see `Summary.parity`. None for a benchmark."""
    first_step_agrees: bool | None = None
    """Whether the first losses of the frameworks are the same up to rounding. None if unknown."""
    device: str | None = None
    hashes: dict[str, dict[int, str]] = {}
    """Hashes of the initial weights and of the order of examples, by repeat."""
    recorded_data: dict[str, list[str]] = {}
    """Content and amount of the data that the runs recorded, over the repeats."""
    operations: dict[str, Spread] = {}
    """Milliseconds of a step in its longest operations, over the profiled repeats. Most of these list the operation."""
    slice_ratios: dict[int, float] = {}
    """Epoch seconds over those of the base's run of the same repeat, by the slices of both, if they took turns."""
    start_times: list[str] = []
    """Start times of the runs, in whole seconds, if recorded."""
    saved_at: dict[int, datetime] = {}
    """Times when the files of a benchmark were saved, by file number. Empty for a row."""
    unreliable_repeats: dict[int, Doubt] = {}
    """Reasons why times are not reliable, by repeat."""
    clock_cautions: dict[int, str] = {}
    """Cautions of the clock, by repeat with late losses."""
    cores_taken: dict[int, float] = {}
    """Cores that other work took, by disturbed repeat."""
    is_watched: bool = True
    """Whether the runs say what other work took. A file of pytest-benchmark does if the plug-in of this suite was there."""
    limit: float | None = None
    """Growth that counts, if the benchmark has one of its own."""
    fails_when_faster: bool = False
    """Whether a gain beyond the limit fails as a regression does: the baseline is out of date then."""

    @property
    def repeats(self) -> set[int]:
        """Repeats that ended well."""
        return {*self.seeds, *(repeat for values in self.samples.values() for repeat in values)}

    def has_the_runs_of(self, other: MeasuredSubject) -> bool:
        """Return whether these are the other one's runs: started at the same times, with the same figures.

        Two runs that take turns may start within one second.
        """
        return self.start_times == other.start_times != [] and self.samples == other.samples

    def with_statistic(self, statistic: str) -> Self:
        """Return a benchmark whose samples are this statistic of its rounds, in place of the one that its marker names."""
        if statistic == self.statistic:
            return self
        ((metric, samples),) = self.samples.items()
        values = self.statistics.get(statistic, {})
        if missing := samples.keys() - values.keys():
            raise FolderError(
                f"{self.name} is judged by its {statistic}, which {count(len(missing), 'file')} of the other side lack. "
                f"Received: {', '.join(self.statistics)}. Measure both sides again."
            )
        (spread_of_rounds,) = self.spreads.values()
        is_one_file = len(samples) == 1
        spread = spread_of_rounds.model_copy(update={"median": values[min(samples)]}) if is_one_file else spread_of(values)
        return self.model_copy(update={"statistic": statistic, "samples": {metric: values}, "spreads": {metric: spread}})

    @property
    def work(self) -> dict[str, Any]:
        """Fields of the spec that decide the work, by dotted name. Empty for a benchmark.

        Data is compared by content, devices by name.
        """
        fields = store.flatten(self.spec.model_dump(mode="json")) if self.spec else {}
        return EFFECTS.relevant(fields, "work")


class Measurement(Frozen):
    """One results folder, benchmark file, or folder of such files."""

    source: Path
    kind: Kind
    measured_at: datetime
    commit: str | None
    committed_at: datetime | None
    """Time of the commit. None if it is not stored."""
    dirty: bool
    """Whether the working tree had uncommitted changes."""
    machine: dict[str, Any]
    """Facts of `machine.IDENTITY`. None for a fact that is not known."""
    repository: str | None = None
    """Repository of the commit. None: the suite's own."""
    suite_commit: str | None = None
    """Commit of the suite, if it trained the models of another repository."""
    versions: dict[str, str]
    """Versions of Python, the system and the frameworks."""
    data_name: str | None
    data_hash: str | None
    proof: str | None
    """Verdict of the proof, in words. None if none was asked for."""
    subjects: dict[str, MeasuredSubject]
    set_aside: list[str] = []
    """Reasons why unreliable stored files of a comparison do not count."""
    is_damaged: bool = False
    """Whether a stored file was torn or changed, and not only left unsigned."""
    environments: dict[str, Environment] = {}
    """Environments of the contestants of a comparison, if they are recorded."""
    environment_changes: list[Statement] = []
    """Cautions on runs of a comparison that were made in another environment than planned."""
    side: Literal["base", "head"] | None = None
    """Side of a measurement in turn, whose repeats have a partner on the other side. None: it is no such side."""
    measured_in: Path | None = None
    """Folder of that measurement."""
    planned_repeats: int = 0
    """Number of repeats that its plan settles. 0: it has no plan."""

    @property
    def machine_name(self) -> str:
        return f"{machine.processors(self.machine)}, {self.machine['logical_cores'] or '?'} logical cores"

    @property
    def names_its_code(self) -> bool:
        """Whether the commit says which code was measured: it is a commit hash, without changes."""
        return not self.dirty and re.fullmatch("[0-9a-f]{7,64}", self.commit or "") is not None

    @property
    def commit_name(self) -> str:
        """The commit for a reader: `1a2b3c4d`, `1a2b3c4d+changes`, or `no commit`."""
        return f"{self.commit[:8]}{'+changes' if self.dirty else ''}" if self.commit else "no commit"


def parse_time(text: str) -> datetime:
    """Parse a time. One without a zone is in UTC."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def spread_of(values: dict[int, float]) -> Spread:
    """Return the spread of one or more finite values by repeat."""
    result = spread(list(values.values()))
    assert result is not None  # the values are finite, and not none
    return result
