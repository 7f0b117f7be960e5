"""Records of a regression check: its criteria and its findings. And the points of a history."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from common.frozen import Frozen
from compare.cli.option_parsing import parse_choices, split_names
from compare.judgement.figures import metrics
from compare.judgement.statement import Statement
from compare.statistics.noise import NoiseRange
from compare.statistics.statistics import VERDICT_PAIRS, Ratio, Spread
from compare.tools.regression.measured import COMMAND_SECONDS, FIGURE, SECONDS, Kind, MeasuredSubject

Verdict = Literal[
    "regression", "faster than allowed", "worse, within the threshold", "no change shown", "better", "not tested",
    "too few to tell", "cannot tell", "not judged",
]  # fmt: skip
"""`faster than allowed`: a gain beyond the limit of a benchmark whose marker says `fail_when_faster`. `not tested`: there is no
test, and nothing beyond a threshold needs one. `not judged`: no times are reliable on both sides, in pairs of one pair; the
figures are only shown."""
FAILED = ("regression", "faster than allowed")
UNDECIDED = ("too few to tell", "cannot tell", "not judged")

ACCURACY = "test_accuracy"
JUDGED = ("epoch_seconds", "first_step_seconds", "peak_memory_mib")
"""Metrics that are judged by default. The accuracy is always judged."""

WASTED_PAIRS = 3
"""A measurement ends when so many pairs in a row do not count."""

EXIT_OK, EXIT_REGRESSION, EXIT_UNDECIDED = 0, 3, 5


OF_BENCHMARKS = {SECONDS: "seconds per call", COMMAND_SECONDS: "command seconds", FIGURE: "figure"}
"""Metrics of benchmarks, with their names for a reader."""


def choices() -> tuple[str, ...]:
    """Metrics that `--metric` accepts."""
    return tuple(name for name, figure in metrics().items() if figure.metric and not figure.metric.more_is_better)


def heading(metric: str) -> str:
    """Return the name of a metric for a reader."""
    return OF_BENCHMARKS.get(metric) or metrics()[metric].label


def metrics_named(text: str) -> tuple[str, ...]:
    """The metrics of `--metric`, by name or by heading: `epoch_seconds` is `seconds_per_epoch`."""
    by_heading = {heading(name).replace(" ", "_"): name for name in choices()}
    return tuple(parse_choices("--metric", [by_heading.get(word, word) for word in split_names(text)], choices()))


@dataclass(frozen=True)
class Criteria:
    """Criteria of a regression."""

    threshold: float = 0.05
    """Least fraction that a figure must be worse by."""
    accuracy_threshold: float = 0.01
    """Loss of accuracy, in 0..1, that counts."""
    metrics: tuple[str, ...] | None = None
    """Metrics that are judged and must be measured. None: `JUDGED`, and only the first must be measured."""
    only: str | None = None
    """Pattern for the ids of rows or benchmarks, as for file names. None: all."""

    @property
    def judged(self) -> tuple[str, ...]:
        return self.metrics or JUDGED

    @property
    def needed(self) -> tuple[str, ...]:
        return self.metrics or JUDGED[:1]

    def metrics_of(self, subject: MeasuredSubject) -> tuple[str, ...]:
        """Return the metrics that are judged for a row or a benchmark."""
        return tuple(subject.samples) if subject.spec is None else self.judged


class Change(Frozen):
    """One figure of one row or benchmark, before and now."""

    id: str
    name: str
    metric: str
    method: str
    """paired, paired by seed, Welch, or none. `none`: the figure is the same number in every run, or is not judged."""
    baseline: Spread
    candidate: Spread
    change: Ratio
    """Candidate over baseline, 1 if unchanged. For the accuracy: candidate minus baseline. `p` is not corrected."""
    adjusted_p: float | None = None
    """Holm-corrected p over all tested figures. None if there are too few samples, or nothing to test."""
    verdict: Verdict = "too few to tell"
    unreliable: list[Literal["baseline", "candidate"]] = []
    """Sides without a reliable time. Empty if the times are judged, and if each side has some, but no pair has both."""
    limit: float | None = None
    """Growth that counts, if the benchmark has one of its own."""
    unwritten: float = 0.0
    """The most that digits which a command left out can change the logarithm of the ratio."""
    not_ruled_out: bool = False
    """No regression was shown, but the interval reaches beyond the threshold: the noise may hide one."""

    @property
    def is_accuracy(self) -> bool:
        return self.metric == ACCURACY


class Fact(Frozen):
    """Property of the runs that holds or does not: how they ended, whether the training is proved to be the same."""

    id: str
    name: str
    what: str
    baseline: str
    candidate: str
    verdict: Verdict


class OperationChange(Frozen):
    """One of the longest operations of a row's step, as the framework's own profiler sees it. It is shown, not judged."""

    id: str
    name: str
    operation: str
    baseline: Spread | None
    """Milliseconds per step, without nested operations. None: not among the longest."""
    candidate: Spread | None

    @property
    def milliseconds(self) -> float:
        """Growth of the median, in milliseconds."""
        return (self.candidate.median if self.candidate else 0.0) - (self.baseline.median if self.baseline else 0.0)


class MeasuredSide(Frozen):
    """Origin of one of the two measurements."""

    source: str
    commit: str
    repository: str | None = None
    """Repository of the commit, for a user's own model. None: the suite's."""
    suite_commit: str | None = None
    """Commit of the suite that trained it."""
    measured_at: str
    versions: dict[str, str]


class Judgement(Frozen):
    """The complete result of `convtwins regress`."""

    baseline: MeasuredSide
    candidate: MeasuredSide
    machine: str
    kind: Kind
    paired: bool
    one_look: bool = True
    """Whether the number of pairs was settled beforehand. Stored repeats and files may be added: their intervals allow it."""
    in_turn: bool = False
    """Whether one command has measured both sides in turn, in one folder."""
    planned_pairs: int = 0
    """Pairs that one command was to measure in turn."""
    pairs: int = 0
    """Pairs that one command has measured in turn."""
    disturbed_pairs: int = 0
    """Pairs without a time that counts: other work disturbed each row or benchmark on one side or both."""
    noise: NoiseRange | None = None
    """How much the same code differed from itself. None: too few reliable runs."""
    threshold: float
    accuracy_threshold: float
    tested: int
    """Figures with enough samples that differ. They make one family."""
    changes: list[Change]
    facts: list[Fact]
    operations: list[OperationChange] = []
    """Operations of runs with `--profile`, the largest change first."""
    missing: list[str]
    """Rows or benchmarks of the baseline that the candidate lacks."""
    added: list[str]
    cautions: list[str]
    statements: list[Statement] = []
    """The cautions as facts."""
    environments: list[str] = []
    """Sentences on what differs between the environments of the two sides."""
    differences: list[dict[str, str | None]] = []
    """Differences between the environments by distribution or library: {"what": ..., side: version, ...}."""

    @property
    def verdicts(self) -> list[Verdict]:
        return [item.verdict for item in (*self.changes, *self.facts)]

    @property
    def num_judged(self) -> int:
        """Number of figures and facts, except accuracies of too few seeds: these are only shown."""
        return len(self.verdicts) - self.verdicts.count("not tested")

    @property
    def num_not_ruled_out(self) -> int:
        """Figures that are not shown to be worse, but may be worse by more than their threshold."""
        return sum(change.not_ruled_out for change in self.changes)

    def lacks_digits(self, change: Change) -> bool:
        """Return whether no number of pairs would rule a growth out, because a command writes too few digits."""
        return 2.0 * change.unwritten > self.limit_of(change)

    def limit_of(self, change: Change) -> float:
        """Return the growth of a figure that counts, or the loss of accuracy."""
        if change.is_accuracy:
            return self.accuracy_threshold
        return self.threshold if change.limit is None else change.limit

    @property
    def is_disturbed(self) -> bool:
        """Whether there is no verdict because other work disturbed so many of the planned pairs."""
        left = self.pairs - self.disturbed_pairs
        is_reason = self.disturbed_pairs > 0 and left < VERDICT_PAIRS
        return self._lacks_pairs and is_reason and not self.is_unfinished

    @property
    def is_unfinished(self) -> bool:
        """Whether there is no verdict because the measurement was interrupted before it had enough pairs."""
        has_given_up = self.disturbed_pairs >= WASTED_PAIRS
        return self._lacks_pairs and 0 < self.pairs < min(self.planned_pairs, VERDICT_PAIRS) and not has_given_up

    @property
    def _lacks_pairs(self) -> bool:
        return not {"too few to tell", "not judged"}.isdisjoint(self.verdicts)

    @property
    def exit_code(self) -> int:
        """3 if a figure fails, 5 if something cannot be judged or the noise may hide a regression, else 0."""
        if not {*FAILED}.isdisjoint(self.verdicts):
            return EXIT_REGRESSION
        undecided = self.missing or not self.changes or self.num_not_ruled_out or not {*UNDECIDED}.isdisjoint(self.verdicts)
        return EXIT_UNDECIDED if undecided else EXIT_OK


class HistoryPoint(Frozen):
    """One figure of one row or benchmark at one commit."""

    machine: str
    name: str
    """Description of the work of the row or benchmark."""
    metric: str
    commit: str | None
    dirty: bool
    committed_at: datetime | None
    """Time of the commit. None if neither the file nor git knows."""
    measured_at: datetime
    value: Spread
    of: Literal["repeats", "files", "rounds"] = "repeats"
    """Unit of n. pytest-benchmark: `files` of a commit, or `rounds` of a single file."""
    source: str

    @property
    def when(self) -> tuple[datetime, datetime]:
        """Sort key: the time of the commit, then of the measurement among those of one commit."""
        return self.committed_at or self.measured_at, self.measured_at

    @property
    def commit_name(self) -> str:
        return f"{self.commit[:8]}{'*' if self.dirty else ''}" if self.commit else "no commit"
