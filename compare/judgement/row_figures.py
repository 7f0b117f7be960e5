"""The figures of one row of a comparison, as every table, plot and sentence reads them."""

from __future__ import annotations

from collections.abc import Iterable

from common.artifacts.schema import Noise, Phases, StepParts, TopOperations
from common.frozen import Frozen
from common.machine.interference import DISTURBED_FROM
from compare.core import wording
from compare.core.statistics import Ratio, Spread, is_no_better_than

GUESSING = "no better than guessing"
DISTURBED = "disturbed"
"""Stands for a ratio of times that other work disturbed, and for a verdict on it."""

NOT_COMPARABLE = "not comparable"
"""Stands for a ratio of times of runs that did not train the same, and for a verdict on it."""

BUDGET_TOLERANCE = 1.05
"""Measured cores over budgeted cores above which a row exceeds its budget. Clocks and start-up blur smaller excesses."""


class Scores(Frozen):
    """Final scores of one split over the repeats."""

    accuracy: Spread | None
    loss: Spread | None


class Epoch(Frozen):
    """Medians of one epoch over the repeats; `n` repeats reached it."""

    epoch: int
    train_loss: float | None
    train_accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float | None
    n: int


class Target(Frozen):
    """How soon a validation accuracy was reached."""

    accuracy: float
    reached: int
    """Repeats that reached it."""
    repeats: int
    """Repeats that were made, including those that diverged or failed. Without these, the luckier ones would pass for all."""
    seconds: Spread | None
    """Training time until then, with the first step, without evaluation, over all repeats. Repeats that did not reach it count
    as later than all others. None if that leaves a quantile open. Else a few quick repeats would pass for all."""
    epochs: Spread | None


class Limit(Frozen):
    """How near a row came to the limits of the machine. Fractions are None if its rates are unknown."""

    gflop_per_image: float
    mb_per_image: float
    """Read and written, by formula, in units of 1e6 bytes."""
    gflops: float
    """Done per second."""
    matrix_fraction: float | None
    """Fraction of the rate that the row's cores reach in matrix products of its precision."""
    gb_per_second: float
    """Moved per second, if nothing came from a cache."""
    copy_fraction: float | None
    """Fraction of the rate that its cores reach in copies of memory. Above 1 if caches serve."""


class Summary(Frozen):
    """One row: its configuration, its results, and how it compares."""

    id: str
    contestant: str
    mode: str
    implementation: str | None
    device: str | None
    replicas: int
    part: str
    input: str
    workers: int
    cores: int
    cores_used: float | None
    """CPU seconds over wall seconds in training. The median of the repeats."""
    cores_lost: float | None
    """Cores of its budget that other work took during training. The largest of the repeats."""
    most_cores_used: float | None = None
    """The largest `cores_used` of the repeats, because each must keep the budget."""
    precision: str
    switches: str
    """Their level, and those that the spec names: `usual`, or `best: arithmetic=bfloat16`."""
    conditions: dict[str, str]
    """See `conditions.CONDITIONS`. Empty: not recorded."""
    status: str
    """The worst status of the repeats: one of RunResult's, `not run` or `incomplete`."""
    reason: str | None
    repeats_done: int
    repeats: int
    epochs_done: int
    steps: int | None
    timed_steps: int | None
    """The fewest of the repeats."""
    steps_needed: int
    images: int | None
    """Trained on, over all epochs of one run."""
    train: Scores
    validation: Scores
    test: Scores
    epoch_seconds: Spread | None
    """Over repeats, of `epoch_seconds`: steps without the run's first, evaluation apart."""
    images_per_second: Spread | None
    training_seconds: Spread | None
    wall_seconds: Spread | None
    phases: Phases | None
    """Of the repeat with the median wall time, so that they add up."""
    bytes_per_step: float | None
    """Sent by all replicas together, by formula."""
    step_parts: StepParts | None
    """Median of each part over the repeats. None if the run was not profiled."""
    top_operations: TopOperations | None
    """Of the first repeat. None if the run was not profiled."""
    expected_idle: float | None
    """Of synchronous pipelines: the part of a step, 0..1, that one of several equal stages waits, by formula."""
    speedup_one_core: Ratio | None
    """Epoch seconds of serial on one core over this row's."""
    speedup_same_cores: Ratio | None
    """Epoch seconds of serial on the same cores over this row's."""
    parallel_efficiency: float | None
    """Speed-up over the ratio of resources: cores against one core; on accelerators, replicas against one device."""
    pays: str | None
    """For parallel modes: whether it beats serial on the same cores, or the word of `hidden_ratios`. See `family`."""
    hidden_ratios: dict[str, str] = {}
    """Those of `speedup_one_core`, `speedup_same_cores` and `parallel_efficiency` that no report shows, each with the word that
    stands for it: other work disturbed its row or serial row, or the runs did not train the same."""
    other_data: bool
    """Whether it or a serial row of its speed-ups had other data than the comparison. Then it has no speed-up."""
    peak_memory_pss_mib: float | None
    peak_memory_mib: float | None
    device_peak_memory_mib: float | None
    parity: str
    first_step_loss: float | None
    first_step_difference: float | None
    """Largest relative difference of the first loss to the other frameworks' rows of the same configuration and seed."""
    epochs: list[Epoch]
    seeds: int
    """Number of different seeds of the repeats."""
    test_accuracy_over_seeds: Spread | None
    """Of the medians of the seeds: each seed is one sample. None for a single seed."""
    target: Target | None
    noise: Noise | None
    """The worst of the repeats: highest loads and stolen time, lowest clocks."""
    limit: Limit | None
    clock_caution: str | None = None
    """As in RunResult, of the first repeat that has one."""
    confusion: list[list[int]] | None = None
    """Of the test split, summed over the repeats: rows are the true class, columns the predicted one."""
    test_examples: int | None = None
    """Images of the test split."""
    chance_accuracy: float | None = None
    """Test accuracy of a guess that always names the most frequent class. None if the classes are unknown."""
    shares_name: bool = False
    """Whether another row would have the same name, e.g. a row with another batch. Then the id is its name."""

    @property
    def name(self) -> str:
        """The row for a reader: `pytorch serial, 1 core` or `tensorflow data_parallel x2`."""
        if self.shares_name:
            return self.id
        kind = f"{'Dask ' if self.input == 'dask' else ''}worker{'s' if self.workers > 1 else ''}"
        return self.fed_name if self.input == "inline" else f"{self.fed_name}, {self.workers} {kind}"

    @property
    def configuration(self) -> str:
        """The part of the name that the same rows of other frameworks share: `serial, 1 core`."""
        return self.name.removeprefix(self.contestant).lstrip(" -")

    @property
    def fed_name(self) -> str:
        """The part of the name that its rows with other numbers of input workers share."""
        if self.mode == "serial":
            return f"{self.contestant} serial, {wording.count(self.cores, 'core')}"
        return f"{self.contestant} {self.mode} x{self.replicas}"

    def shown_ratio(self, key: str) -> Ratio | float | str | None:
        """One of the three ratios of `hidden_ratios` for a report, or the word that stands for it."""
        return self.hidden_ratios.get(key, getattr(self, key))

    @property
    def input_wait(self) -> float | None:
        """The part of its training time, 0..1, that the loop waited for its next batch."""
        if self.phases is None or not self.phases.training_seconds:
            return None
        return self.phases.input_wait_seconds / self.phases.training_seconds

    @property
    def exceeds_budget(self) -> bool:
        return self.most_cores_used is not None and self.most_cores_used > self.cores * BUDGET_TOLERANCE

    @property
    def oversubscribed(self) -> bool:
        return oversubscribed(self.replicas, self.cores, self.device)

    @property
    def guesses(self) -> bool:
        """Whether its test accuracy is not shown to be better than guessing."""
        found, chance, number = self.test.accuracy, self.chance_accuracy, self.test_examples
        return bool(found and chance and number and is_no_better_than(chance, found.median, number))

    @property
    def too_short(self) -> bool:
        return self.timed_steps is not None and self.timed_steps < self.steps_needed

    @property
    def stolen(self) -> bool:
        """Whether a hypervisor took so much of the machine that no time of the row is reliable."""
        return self.noise is not None and (self.noise.cores_stolen or 0.0) > DISTURBED_FROM

    @property
    def disturbed(self) -> bool:
        return self.stolen or (self.cores_lost is not None and self.cores_lost > DISTURBED_FROM)

    @property
    def unwatched(self) -> bool:
        """Whether it was too short to tell whether other work disturbed it."""
        return bool(self.repeats_done) and self.part == "training" and self.cores_used is None

    @property
    def doubt(self) -> str | None:
        """Why no time of it is reliable. None if it is."""
        reasons = {
            "disturbed by other work": self.disturbed,
            "losses that came after the clock had stopped": self.clock_caution is not None,
            "too few timed batches": self.too_short,
            "too short to tell whether other work disturbed it": self.unwatched,
        }
        return next((why for why, is_so in reasons.items() if is_so), None)

    @property
    def in_doubt(self) -> bool:
        return self.doubt is not None


def unreliable(rows: Iterable[tuple[str, Summary]]) -> str:
    """Names the rows of which no time is reliable, for the caption of a table. Empty if there are none."""
    named: dict[str, list[str]] = {}
    rows = list(rows)
    for name, summary in rows:
        if summary.doubt:
            named.setdefault(summary.doubt, []).append(name)
    if 1 < len(rows) == sum(map(len, named.values())) and len(named) == 1:
        return f"Rely on no time of any row: {next(iter(named))}."
    return " ".join(f"Rely on no time of {'; '.join(names)}: {why}." for why, names in named.items())


def oversubscribed(replicas: int, cores: int, device: str | None) -> bool:
    """More replicas than cores, on a machine whose only devices are its cores."""
    return replicas > cores and (device or "").startswith("cpu")
