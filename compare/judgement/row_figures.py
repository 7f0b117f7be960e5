"""The figures of one row of a comparison, as every table, plot and sentence reads them."""

from __future__ import annotations

from typing import Literal

from common.artifacts.schema import Noise, Phases, StepParts, TopOperations
from common.frozen import Frozen
from common.machine.interference import DISTURBED_FROM
from common.spec import MODES
from compare.cli import wording
from compare.statistics.statistics import Ratio, Spread, is_no_better_than_chance

FAILURES = ("failed", "diverged", "killed")
UNFINISHED = ("not run", "incomplete")
"""Statuses of a row: no repeat has a result, or some have none."""

GUESSING = "no better than guessing"
DISTURBED = "disturbed"
"""Replaces a ratio of times that other work disturbed, and a verdict on it."""

NOT_COMPARABLE = "not comparable"
"""Replaces a ratio of times of runs that did not train the same, and a verdict on it."""

OTHER_DATA = "other data"
"""Replaces a figure that compares rows of different data."""

BUDGET_TOLERANCE = 1.05
"""Ratio of used to budgeted cores above which a row exceeds its budget. Clocks and start-up blur smaller excesses."""


class ScoreSpreads(Frozen):
    """Final scores of one split over the repeats."""

    accuracy: Spread | None
    loss: Spread | None


class EpochMedians(Frozen):
    """Medians of one epoch over the repeats; `n` repeats reached it."""

    epoch: int
    train_loss: float | None
    train_accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float | None
    n: int


class Target(Frozen):
    """Time to a validation accuracy."""

    accuracy: float
    reached: int
    """Number of repeats that reached the accuracy."""
    repeats: int
    """Number of repeats made, including diverged and failed ones. Without these, the luckier ones would pass for all."""
    seconds: Spread | None
    """Training seconds to the accuracy over all repeats, with the first step, without evaluation. Repeats that did not reach it
    are right-censored. None if a quantile is censored. Else a few quick repeats would pass for all."""
    epochs: Spread | None


class Limit(Frozen):
    """Rates of a row beside those that the machine can reach. Fractions are None if the machine's rates are unknown."""

    gflop_per_image: float
    mb_per_image: float
    """Megabytes (1e6 bytes) read and written per image, by formula."""
    gflops: float
    """GFLOP per second."""
    matrix_fraction: float | None
    """Fraction of the rate that the row's cores reach in matrix products of its precision."""
    gb_per_second: float
    """Gigabytes (1e9 bytes) moved per second, if nothing came from a cache."""
    copy_fraction: float | None
    """Fraction of the rate that its cores reach in copies of memory. Above 1 if caches serve."""


Doubt = Literal["disturbed", "late_losses", "too_short", "unwatched"]
"""Why times are not reliable: other work took cores, losses came after the clock had stopped, too few batches were timed, or
the runs were too short to tell whether other work disturbed them."""


class Summary(Frozen, extra="allow"):
    """One row: its configuration, its results, and how it compares.

    `figures` declares what each value is, and where it comes from. A value that code reads by attribute has its type here.
    """

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
    unwatched_repeats: int
    shortest_training_seconds: float | None
    cores_lost: float | None
    most_cores_used: float | None
    precision: str
    switches: str
    conditions: dict[str, str]
    status: str
    reason: str | None
    repeats_done: int
    repeats: int
    epochs_done: int
    steps: int | None
    timed_steps: int | None
    steps_needed: int
    images: int | None
    train: ScoreSpreads
    validation: ScoreSpreads
    test: ScoreSpreads
    epoch_seconds: Spread | None
    images_per_second: Spread | None
    training_seconds: Spread | None
    wall_seconds: Spread | None
    phases: Phases | None
    step_parts: StepParts | None
    top_operations: TopOperations | None
    expected_idle: float | None
    speedup_same_cores: Ratio | None
    parallel_efficiency: float | None
    pays: str | None
    """Whether a parallel mode beats serial on the same cores, or the word of `hidden_ratios`. See `summary.family`."""
    hidden_ratios: dict[str, str] = {}
    """Words that replace `speedup_one_core`, `speedup_same_cores` or `parallel_efficiency` in reports, by field name. Either
    other work disturbed the row or its serial row, or the runs did not train the same."""
    other_data: bool
    device_peak_memory_mib: float | None
    parity: str
    first_step_loss: float | None
    first_step_difference: float | None
    epochs: list[EpochMedians]
    seeds: int
    test_accuracy_over_seeds: Spread | None
    target: Target | None
    noise: Noise | None
    limit: Limit | None
    clock_caution: str | None
    confusion: list[list[int]] | None
    test_examples: int | None
    chance_accuracy: float | None
    shares_name: bool = False
    """Whether another row would have the same name, e.g. a row with another batch. Then the id serves as the name."""

    @property
    def name(self) -> str:
        """The row for a reader: `pytorch serial, 1 core` or `tensorflow data_parallel x2`."""
        if self.shares_name:
            return self.id
        return self.fed_name if self.input == "inline" else f"{self.fed_name}, {self.input_words}"

    @property
    def input_words(self) -> str:
        """The input for a reader: `inline`, `2 workers` or `1 Dask worker`."""
        if self.input == "inline":
            return self.input
        return wording.count(self.workers, "Dask worker" if self.input == "dask" else "worker")

    @property
    def is_parallel(self) -> bool:
        """Whether the row's runs have several replicas."""
        return MODES[self.mode].is_parallel

    @property
    def configuration(self) -> str:
        """The part of the name that the same rows of other frameworks share: `serial, 1 core`."""
        return self.name.removeprefix(self.contestant).lstrip(" -")

    @property
    def fed_name(self) -> str:
        """The part of the name that rows with other numbers of input workers share."""
        if not self.is_parallel:
            return f"{self.contestant} serial, {wording.count(self.cores, 'core')}"
        return f"{self.contestant} {self.mode} x{self.replicas}"

    def reported_ratio(self, key: str) -> Ratio | float | str | None:
        """A ratio for a report, or the word of `hidden_ratios` that replaces it."""
        return self.hidden_ratios.get(key, getattr(self, key))

    @property
    def input_wait(self) -> float | None:
        """Fraction of the training time, 0..1, that the loop waited for its next batch."""
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
        """Whether the test accuracy is not shown to be better than guessing."""
        accuracy, chance, number = self.test.accuracy, self.chance_accuracy, self.test_examples
        return bool(accuracy and chance and number and is_no_better_than_chance(chance, accuracy.median, number))

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
        """Whether a repeat was too short to tell whether other work disturbed it."""
        return self.unwatched_repeats > 0

    @property
    def doubt(self) -> Doubt | None:
        """Why no time of the row is reliable. None if its times are."""
        reasons: dict[Doubt, bool] = {
            "disturbed": self.disturbed,
            "late_losses": self.clock_caution is not None,
            "too_short": self.too_short,
            "unwatched": self.unwatched,
        }
        return next((why for why, applies in reasons.items() if applies), None)

    @property
    def in_doubt(self) -> bool:
        return self.doubt is not None


def oversubscribed(replicas: int, cores: int, device: str | None) -> bool:
    """Whether replicas outnumber cores, on a machine whose only devices are its cores."""
    return replicas > cores and (device or "").startswith("cpu")
