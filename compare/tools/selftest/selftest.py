"""`convtwins selftest`: test whether the verdicts are reliable, in simulation and on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from scipy import special

from common import spec
from common.frozen import Frozen
from common.machine.private_folder import PrivateFolder
from compare.cli import commands, exits, wording
from compare.cli.option_rules import Excludes, Needs
from compare.cli.option_types import Choice, Percent
from compare.cli.wording import percent
from compare.comparison import comparison_plan, run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.judgement import slices
from compare.judgement.run_pairs import finished_runs, pairs_of_seconds, ratio_of_seconds
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Cell, Column, Table
from compare.results import store
from compare.results.store import StoredComparison
from compare.results.workspace import COMPARISON
from compare.running import matrix, options
from compare.running.comparison_settings import ComparisonSettings
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.running.twins import Twins
from compare.statistics import scaling_laws, statistics, verdict_words
from compare.statistics.statistics import VERDICT_PAIRS, JudgedRatio, Ratio, paired_ratio, verdicts
from compare.statistics.until_decided import UntilDecided
from compare.statistics.verdict_words import interval_words
from compare.tools.selftest import repeats_needed as needed

Floats, Booleans = npt.NDArray[np.float64], npt.NDArray[np.bool_]

TRIALS = 10_000
NOISE = 0.02
"""Standard deviation of the logarithm of one simulated run's time."""
MUCH_NOISE = 0.03
DRIFT = 0.3
"""Standard deviation of the logarithm of the drift that both runs of a pair share: the machine grows warmer or busier."""
PLANTED_SLOWDOWN = 0.10
SLOWDOWN = 1.0 + PLANTED_SLOWDOWN
"""Slowdown that is planted in real pairs, unless another one is asked for."""
TREND = 0.003
"""Slowdown of a run relative to the run before it. The sign alternates between repeats."""
FAMILY = 8
"""Number of comparisons that are judged together: as many as `run` makes of both frameworks by default."""
MOST_REPEATS = 20
"""Largest number of repeats. The verdict is checked after each repeat from VERDICT_PAIRS on."""
UNTIL = UntilDecided(most_repeats=MOST_REPEATS)

ALARM_RATE, LEAST_ALARM_RATE = statistics.SIGNIFICANCE, 0.03
"""Bounds of the fraction of comparisons of equal runs that are called different at any look. Fewer would waste repeats."""

REPLICA_COUNTS, SERIAL_FRACTION = (2, 4, 8), 0.1
"""Numbers of replicas of the simulated scaling, and its true serial fraction."""

PAIR_EPOCHS = 2
"""Default epochs of real pairs. Many short runs show the noise of processes better than few long ones."""
LEAST_PAIRS = 20
"""Smallest number of real pairs that are judged."""
BLOCK_PAIRS = 2
"""Number of successive real pairs in a resampled block. Longer blocks leave too few different ones: with blocks of 5, 200
independent pairs would miss the bar in a fifth of cases. So dependence has a test of its own, see `_dependence`."""
TESTED_CORRELATION = 0.2
"""Correlation of successive pairs that the stated power of the test is for: false alarms are 9 % then."""
LEAST_DEPENDENCE_P = 0.05
NUM_PERMUTATIONS = 2000
"""Number of random permutations of the pairs, for the test of dependence."""
STRETCH_PAIRS = 10
"""Number of successive real pairs in a stretch. Means of stretches are compared to find a slow drift."""
LEAST_DRIFT_P = 0.01
NUM_SEQUENCES = 4000
"""Number of resampled sequences, each of MOST_REPEATS real pairs."""
NUM_RESAMPLES = 200
"""Number of times that the real pairs themselves are resampled, in stretches (block bootstrap)."""
MOST_ALARM_RATE = 0.07
"""Limit of the upper 95 % bound of the rate of false alarms in sequences of equal real runs."""

MOST_LISTED_CHECKS = 3
"""Number of passed checks of one place that the first screen lists. It counts the others."""

LEAST_P = 0.001
"""Smallest p of equal runs that passes. A verdict occurs by chance in one trial of 20, a p below this in one of 1000."""

EPOCH_STEPS = 25
BATCH, SLOWER_BATCH = 40, 44
"""Images of a step. The slower run has a tenth more in each step, and as many steps, since turns compare the same ones. So it
takes up to a tenth longer: the update of the weights and the dispatch of operations do not grow. Both divide by four, so every
mode takes them."""
VALUES: dict[str, Any] = {
    "model": "simple_cnn",
    "data": {"source": "digits"},
    "epochs": 3,
    "cores": 1,
}


class SelftestCheck(Frozen):
    """One requirement, and the result of its check."""

    where: str
    """`simulated`, or the framework that ran here."""
    what: str
    n: int
    """Number of comparisons that were simulated, or of pairs of real runs."""
    found: str
    p_value: str = ""
    """p-value behind `found`, in words. The first screen leaves it out of checks that passed."""
    required: str
    passed: bool


class Selftest(Frozen):
    checks: list[SelftestCheck]
    sentences: list[str]
    """Sentences on what the real trials show about this machine."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


@commands.command(
    Excludes("--simulate-only", "--real-pairs"),
    Excludes("--repeats-needed", "--real-pairs"),
    Needs(["--out", "--mode", "--cores", "--epochs", "--slowdown", "--within"], "--real-pairs", "Add --real-pairs 200."),
)
def command(
    frameworks: options.Frameworks = options.ALL_FRAMEWORKS,
    simulate_only: Annotated[bool, typer.Option("--simulate-only", help="No trials on this machine. Takes seconds.")] = False,
    real_pairs: Annotated[
        int | None,
        typer.Option(
            min=LEAST_PAIRS, help="Run so many pairs of equal runs of the first framework, e.g. 200, and resample them."
        ),
    ] = None,
    repeats_needed: Annotated[
        bool,
        typer.Option("--repeats-needed", help="Only simulate how many repeats `run --until-decided` needs. Takes minutes."),
    ] = False,
    mode: Annotated[
        str,
        Choice(tuple(spec.MODES)),
        typer.Option(help="Of --real-pairs: the mode of both runs, e.g. data_parallel. Two replicas."),
    ] = "serial",
    cores: Annotated[
        int | None, typer.Option(min=1, help="Of --real-pairs: cores of a run. Default: 1 for each replica.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, help=f"Of --real-pairs: epochs of a run, of {EPOCH_STEPS} steps each.")
    ] = PAIR_EPOCHS,
    slowdown: Annotated[
        float,
        Percent(is_open=True),
        typer.Option(help="Of --real-pairs: the slowdown that is planted, e.g. 3%. It must be found in 90 % of cases."),
    ] = PLANTED_SLOWDOWN,
    within: Annotated[
        int, typer.Option(min=VERDICT_PAIRS, max=MOST_REPEATS, help="Of --real-pairs: repeats within which it must be found.")
    ] = MOST_REPEATS,
    turns: options.Turns = None,
    out: Annotated[Path | None, typer.Option(help=f"{options.OUT} Of --real-pairs. The same command continues there.")] = None,
    trials: Annotated[
        int, typer.Option(min=1000, max=10_000_000, help="Comparisons to simulate. A quarter as many families.")
    ] = TRIALS,
    seed: Annotated[int, typer.Option(min=0, help=f"{options.SEED} The simulation.")] = 0,
) -> Report:
    """Test the verdicts themselves: equal runs must be called equal, and a known slowdown must be found."""
    if repeats_needed:
        return repeats_report(needed.table(max(trials // 10, 100), seed, UntilDecided()))
    values = spec.with_variant(VALUES, mode, replicas=2)
    values |= {"cores": cores or values["replicas"], "epochs": epochs}
    pairs = None if real_pairs is None else _pairs_request(frameworks[0], values, real_pairs, turns, out)
    if pairs is not None:
        COMPARISON.check(pairs.out, comparison_plan.early_identity(pairs))
    result = Selftest(checks=[], sentences=[])
    if not simulate_only:
        result = _run_trials(frameworks, turns) if pairs is None else _run_pairs(pairs, seed, slowdown, within)
    return report(Selftest(checks=[*simulate(trials, seed), *result.checks], sentences=result.sentences))


class Bound(NamedTuple):
    """Range of a measure that passes. A measure of decided sequences must also come after fewer repeats."""

    words: str
    least: float = -math.inf
    most: float = math.inf
    fewer_repeats: float = math.inf


class Measure(NamedTuple):
    """Measured value of a check, and the mean number of repeats after which it was decided."""

    value: float
    words: str
    repeats: float = 0.0


CheckRow = tuple[str, Measure, Bound]


def _rate(successes: Booleans | np.bool_ | float, repeats: npt.NDArray[np.int64] | None = None) -> Measure:
    rate = float(np.mean(successes))
    if repeats is None:
        return Measure(rate, percent(rate, 2))
    return Measure(rate, f"{percent(rate, 2)}, after {repeats.mean():.1f} repeats", float(repeats.mean()))


def _checks(where: str, n: int, rows: Sequence[CheckRow]) -> list[SelftestCheck]:
    """Check each (what, measure, bound)."""
    return [
        SelftestCheck(
            where=where,
            what=what,
            n=n,
            found=measure.words,
            required=bound.words,
            passed=bound.least <= measure.value <= bound.most and measure.repeats < bound.fewer_repeats,
        )
        for what, measure, bound in rows
    ]


_POWER_BOUND = Bound(f"at least {percent(statistics.POWER)}", statistics.POWER)
_EQUIVALENCE_BOUND = Bound(f"at least {percent(statistics.POWER)}, after fewer than 10", statistics.POWER, fewer_repeats=10)
_ALL_LOOKS = f"any of {VERDICT_PAIRS} to {MOST_REPEATS} repeats"


def simulate(trials: int, seed: int) -> list[SelftestCheck]:
    """Simulate how often the verdicts of a report are wrong, for pairs of times with log-normal noise and a known truth.

    Args:
        trials: number of single comparisons of each kind. There are a quarter as many families and scalings.
    """
    generator = np.random.default_rng(seed)
    singles = _simulate_singles(generator, trials)
    families = _simulate_families(generator, trials // 4)
    return [*singles, *families, *_simulate_scalings(generator, trials // 4)]


def _simulate_singles(generator: np.random.Generator, trials: int) -> list[SelftestCheck]:
    """Check the decisions on single comparisons."""
    limit, effect = math.log1p(UNTIL.smallest_effect), percent(UNTIL.smallest_effect)
    equal = decide(_logs(generator, trials, NOISE), UNTIL)
    slower = decide(_logs(generator, trials, NOISE) + math.log(SLOWDOWN), UNTIL)
    noisy = decide(_logs(generator, trials, MUCH_NOISE), UNTIL)
    at_threshold = decide(_logs(generator, trials, MUCH_NOISE) + limit, UNTIL)
    most_alarms = _most_alarms(trials)
    range_text = f"{100 * LEAST_ALARM_RATE:.3g} to {100 * most_alarms.most:.3g} %"
    alarm_bound = most_alarms._replace(words=range_text, least=LEAST_ALARM_RATE)
    rows = [
        (f"equal runs called different at {_ALL_LOOKS}, judged after each", _rate(equal.ever_different), alarm_bound),
        (
            f"slowdowns of {percent(SLOWDOWN - 1)} found, noise {percent(NOISE)}, until decided",
            _rate(slower.larger, slower.repeats),
            _POWER_BOUND,
        ),
        (
            f"equal runs shown to differ by less than {effect}, noise {percent(NOISE)}, until decided",
            _rate(equal.smaller, equal.repeats),
            _EQUIVALENCE_BOUND,
        ),
        (f"the same, noise {percent(MUCH_NOISE)}", _rate(noisy.smaller, noisy.repeats), _EQUIVALENCE_BOUND),
        (
            f"differences of just {effect} called smaller at {_ALL_LOOKS}, noise {percent(MUCH_NOISE)}",
            _rate(at_threshold.ever_smaller),
            most_alarms,
        ),
    ]
    return _checks("simulated", trials, rows)


def _simulate_families(generator: np.random.Generator, number: int) -> list[SelftestCheck]:
    """Check the verdicts on families of comparisons that are judged together."""
    noise = generator.normal(0.0, MUCH_NOISE, (number, 1 + FAMILY, MOST_REPEATS))
    at_threshold = needed.decide(noise[:, 1:] - noise[:, :1] + math.log1p(UNTIL.smallest_effect), UNTIL)
    families = _families(generator, number, 1.0)
    alarm_rate = _fraction(families, lambda judged: any(member.verdict in ("above", "below") for member in judged))
    uncorrected_rate = _fraction(
        families, lambda judged: any((member.ratio.p or 0.0) < statistics.SIGNIFICANCE for member in judged)
    )
    # The noise of a comparison of its own is what a report knows when it says what can be found.
    standard_errors = _logs(generator, number, NOISE)[:, :VERDICT_PAIRS].std(axis=1, ddof=1) / math.sqrt(VERDICT_PAIRS)
    least_slowdowns = np.exp(standard_errors * statistics.detectable_mean(1.0, VERDICT_PAIRS - 1, FAMILY, VERDICT_PAIRS))
    power = _fraction(_families(generator, number, least_slowdowns), lambda judged: judged[0].verdict == "above")
    least_power = statistics.POWER - _tolerance(statistics.POWER, number)
    rows = [
        (
            f"families of {FAMILY} equal comparisons with any called different (uncorrected: {percent(uncorrected_rate, 1)})",
            _rate(alarm_rate),
            _most_alarms(number),
        ),
        (
            f"families of {FAMILY} differences of just {percent(UNTIL.smallest_effect)} over one base with any called smaller, "
            f"noise {percent(MUCH_NOISE)}, until decided",
            _rate(at_threshold.smaller.any(axis=1)),
            _most_alarms(number),
        ),
        (
            f"slowdowns found among {FAMILY} comparisons, noise {percent(NOISE)}, each as large as {VERDICT_PAIRS} earlier "
            f"pairs say is found ({percent(float(least_slowdowns.mean()) - 1, 1)} on average)",
            _rate(power),
            Bound(f"at least {100 * least_power:.3g} %", least_power),
        ),
    ]
    return _checks("simulated", number, rows)


def _simulate_scalings(generator: np.random.Generator, number: int) -> list[SelftestCheck]:
    """Check the intervals of serial fractions."""
    least, most = (statistics.CONFIDENCE + sign * _tolerance(ALARM_RATE, number) for sign in (-1.0, 1.0))
    what = (
        f"intervals of serial fractions that hold the truth, {', '.join(map(str, REPLICA_COUNTS))} replicas over one serial "
        "run, by one look"
    )
    bound = Bound(f"{100 * least:.3g} to {100 * most:.3g} %", least, most)
    return _checks("simulated", number, [(what, _rate(_coverage(generator, number)), bound)])


def _most_alarms(trials: int) -> Bound:
    """Return the bound of false alarms among so many trials."""
    most = ALARM_RATE + _tolerance(ALARM_RATE, trials)
    return Bound(f"at most {100 * most:.3g} %", most=most)


class SequenceDecisions(NamedTuple):
    """Decisions on sequences of pairs. Every field is an array with one entry for each sequence."""

    larger: Booleans
    """Whether the sequence ended with a mean that is surely above zero."""
    smaller: Booleans
    """Whether the sequence ended with a mean that is surely smaller than the effect that matters."""
    repeats: npt.NDArray[np.int64]
    """Number of repeats at the end of the sequence."""
    ever_different: Booleans
    """Whether any look, also later ones, would have called the mean different from zero."""
    ever_smaller: Booleans
    """Whether any look, also later ones, would have called the mean surely smaller than the effect that matters."""


def decide(logs: Floats, until: UntilDecided) -> SequenceDecisions:
    """Look at sequences of pairs after each repeat, as `run --until-decided` does for a single question.

    Args:
        logs: logarithms of the ratios of pairs: [sequences, repeats].
        until: the stopping rule.
    """
    last = logs.shape[1]
    larger, smaller, undecided, ever_different, ever_smaller = (
        np.full(len(logs), value) for value in (False, False, True, False, False)
    )
    repeats = np.full(len(logs), last)
    mean, squares = np.zeros(len(logs)), np.zeros(len(logs))  # of the pairs so far (Welford 1962)
    for n in range(1, last + 1):
        distance = logs[:, n - 1] - mean
        mean = mean + distance / n
        squares += distance * (logs[:, n - 1] - mean)
        if n < VERDICT_PAIRS:
            continue
        error = np.sqrt(squares / (n - 1) / n)
        half_width = statistics.critical(n - 1, n) * error
        different = np.abs(mean) > half_width
        is_near_zero = np.abs(mean) + statistics.critical_equivalence(n - 1, n) * error < math.log1p(until.smallest_effect)
        is_small = is_near_zero & ~different
        larger |= undecided & different & (mean > 0)
        smaller |= undecided & is_small
        repeats[undecided & (different | is_small)] = n
        ever_different |= different
        ever_smaller |= is_near_zero
        undecided &= ~(different | is_small)
    return SequenceDecisions(larger, smaller, repeats, ever_different, ever_smaller)


def _tolerance(rate: float, trials: int) -> float:
    """Return the allowed distance from a rate: 0.01 or, for few trials, the distance that chance exceeds once in 1000 times."""
    return max(0.01, float(special.ndtri(0.9995)) * math.sqrt(rate * (1.0 - rate) / trials))


def rows(values: dict[str, Any], contestants: Sequence[Contestant]) -> list[Row]:
    """Build two equal rows of each framework, and one whose steps have a tenth more images."""

    def row(contestant: Contestant, name: str, batch: int) -> Row:
        work = {"global_batch_size": batch, "data.limit": EPOCH_STEPS * batch}
        return matrix.build_row(f"{contestant.name}-{name}", contestant, spec.build(spec.overlay(values, work)))

    sizes = {"equal-1": BATCH, "equal-2": BATCH, "slower": SLOWER_BATCH}
    return [row(contestant, name, batch) for contestant in contestants for name, batch in sizes.items()]


def judge(compared: JudgedComparison) -> Selftest:
    """Judge real trials that were laid out by `rows`."""
    stored = compared.stored
    by_id = {row.id: row for row in stored.comparison.rows}
    contestants = list(dict.fromkeys(row.contestant for row in by_id.values()))
    pairs = [(contestant, other) for contestant in contestants for other in ("equal-2", "slower")]
    ratios = [
        ((contestant, other), ratio)
        for contestant, other in pairs
        if (ratio := ratio_of_seconds(stored, by_id[f"{contestant}-{other}"], by_id[f"{contestant}-equal-1"])) is not None
    ]
    judged = dict(zip([key for key, _ in ratios], verdicts([(" ".join(key), ratio) for key, ratio in ratios]), strict=True))
    checks = [_check(contestant, other, judged.get((contestant, other))) for contestant, other in pairs]
    resolutions = [sentence for contestant in contestants if (sentence := _resolution(stored, contestant))]
    return Selftest(checks=checks, sentences=[*resolutions, *dict.fromkeys(compared.in_words(compared.findings.troubles))])


def report(result: Selftest) -> Report:
    columns = (
        Column("where", "where"),
        Column("what", "what", fold=44),
        Column("n", "n"),
        Column("found", "found", fold=24),
        Column("required", "required", fold=20),
        Column("passed", "passed"),
    )
    cells: list[dict[str, Cell]] = [
        check.model_dump() | {"found": f"{check.found}{check.p_value}", "passed": "yes" if check.passed else "NO"}
        for check in result.checks
    ]
    title = "Can the verdicts be relied on?"
    return Report(
        title=title,
        tables=[Table("selftest", title, columns, cells)],
        findings=[("What the trials show of this machine", result.sentences)] if result.sentences else [],
        values=result.model_dump() | {"passed": result.passed},
        exit_code=0 if result.passed else exits.RUN_FAILED,
        screen=_screen(title, result),
    )


def repeats_report(table: Table) -> Report:
    """Report how many repeats `run --until-decided` needs."""
    of_interest = ("noise", "difference", "1", str(FAMILY), "decided")
    return Report(
        title=table.title,
        tables=[table],
        values={"rows": table.rows},
        screen=Screen(
            subject=["How many repeats does `run --until-decided` need?"],
            answers=[Paragraph("", ["Repeats on average. In brackets: what 90 % of reports need at most."])],
            table=replace(
                table, columns=tuple(replace(column, fold=None) for column in table.columns if column.key in of_interest)
            ),
        ),
    )


def _screen(title: str, result: Selftest) -> Screen:
    """Build the first screen: how many checks passed, those that failed, and what was found."""
    failed = [check for check in result.checks if not check.passed]
    places = list(dict.fromkeys(check.where for check in result.checks))
    sentences = [f"{len(result.checks) - len(failed)} of {len(result.checks)} checks passed."]
    if places == ["simulated"]:
        sentences.append("Nothing ran on this machine: leave out --simulate-only.")
    answers = [
        Paragraph("No" if failed else "Yes", sentences, "bad" if failed else "good"),
        Paragraph(
            "Failed",
            [f"{check.where}: {check.what}: {check.found}{check.p_value}. Required: {check.required}." for check in failed],
            "bad",
        ),
        *(Paragraph(place, _passed(result.checks, place), most=MOST_LISTED_CHECKS) for place in places),
        Paragraph("This machine", result.sentences),
    ]
    return Screen(subject=[title, *places], answers=answers)


def _passed(checks: Sequence[SelftestCheck], where: str) -> list[str]:
    return [f"{check.what}: {check.found}." for check in checks if check.where == where and check.passed]


def _run_trials(contestants: Sequence[str], turns: bool | None) -> Selftest:
    """Run the real trials like any comparison, and judge them."""
    with PrivateFolder() as temporary:
        settings, twins = ComparisonSettings(repeats=VERDICT_PAIRS, prove=False, turns=turns), Twins(contestants)
        request = ComparisonRequest(settings, rows(VALUES, twins.contestants), twins)
        compared, _ = run.run_nested(request, temporary.path / "runs")
    return judge(compared)


def _pairs_request(
    framework: str, values: dict[str, Any], pairs: int, turns: bool | None, out: Path | None
) -> ComparisonRequest:
    """Return the request for pairs of equal, interleaved runs of one framework."""
    settings, twins = ComparisonSettings(repeats=pairs, prove=False, turns=turns), Twins([framework])
    equal_rows = rows(values, twins.contestants)[:2]
    return ComparisonRequest(settings, equal_rows, twins, out or store.new_folder("selftest", framework))


def _run_pairs(request: ComparisonRequest, seed: int, slowdown: float, within: int) -> Selftest:
    """Run pairs, see `_pairs_request`, and judge them. A folder with some of them is continued."""
    folder = request.out
    assert folder is not None
    advice = f"the same command with {wording.shell(['--out', str(folder)])} continues"
    typer.echo(f"Real pairs are kept in {folder}. If this is cut short, {advice}.", err=True)
    compared, _ = run.run_nested(request, folder)
    row = compared.stored.comparison.rows[0]
    if row.unavailable is not None:
        raise spec.SpecError(
            f"No pairs of {row.spec.mode} can run here: {row.unavailable.reason}. Choose other --cores or --mode."
        )
    return judge_pairs(compared, request.settings.repeats, seed, slowdown, within)


def judge_pairs(
    compared: JudgedComparison, num_pairs: int, seed: int, slowdown: float = PLANTED_SLOWDOWN, within: int = MOST_REPEATS
) -> Selftest:
    """Judge pairs of equal real runs.

    Sequences are put together from blocks of successive pairs. Both runs are equal, so the truth of every sequence is made zero
    (Hall & Wilson 1991): it is drawn which run of a block is called the slower one, or the pairs stay as they were recorded and
    lose their common mean. A lasting difference of the two, dependence between pairs, and a drift have checks of their own.

    There are two bounds of false alarms. One is of these pairs, and has the bar. The other is of any pairs of this machine, and
    allows for the largest correlation of successive pairs that these do not rule out. Few pairs were made, so a sound machine
    often has the second one above the bar.

    Args:
        slowdown: slowdown that is planted in the sequences, e.g. 0.03.
        within: number of repeats within which it must be found.
    """
    first, second = compared.stored.comparison.rows
    pairs = pairs_of_seconds(compared.stored, slow=second, fast=first)
    logs = np.array([math.log(slow / fast) for _, (slow, fast) in sorted(pairs.items())])
    number = Measure(len(logs), f"{len(logs)}")
    if len(logs) < LEAST_PAIRS:
        too_few = ("pairs of equal runs", number, Bound(f"at least {LEAST_PAIRS}", LEAST_PAIRS))
        return Selftest(checks=_checks(first.contestant, len(logs), [too_few]), sentences=[])
    generator = np.random.default_rng(seed)
    sequences = [_sequences(logs, generator, swapped=swapped) for swapped in (True, False)]
    equal = decide(sequences[0], UNTIL)
    independence_rows, most_correlation = _independence_rows(logs, generator)
    rows = [
        ("pairs of equal runs that were made", number, Bound(f"{num_pairs}", num_pairs)),
        *independence_rows,
        *_alarm_rows(logs, generator, [equal, decide(sequences[1], UNTIL)], most_correlation),
        _planted_row(sequences[0][:, :within], slowdown),
    ]
    both = [finished_runs(compared.stored, row) for row in (second, first)]
    noise = slices.noise([(both[0][repeat], both[1][repeat]) for repeat in pairs])
    turns = "" if noise is None else f", in turns: {percent(noise.within_repeats, 1)} of it from their slices"
    sentences = [
        f"Two equal runs differ by {percent(float(logs.std(ddof=1)), 1)} here (standard deviation{turns}). "
        f"Equal runs are decided after {equal.repeats.mean():.1f} repeats.",
        *compared.in_words(compared.findings.troubles),
    ]
    return Selftest(checks=_checks(first.contestant, len(logs), rows), sentences=sentences)


def _independence_rows(logs: Floats, generator: np.random.Generator) -> tuple[list[CheckRow], float]:
    """Return rows on a lasting difference, drift and dependence, and the largest correlation that is not ruled out."""
    bias, ratio = statistics.mean_difference(logs.tolist()), paired_ratio([(math.exp(log), 1.0) for log in logs], one_look=True)
    assert ratio is not None and ratio.low is not None and ratio.high is not None  # there are LEAST_PAIRS
    drift_p, (correlation, dependence_p) = _drift_p(logs), _dependence(logs, generator)
    most_correlation = min(max(correlation, 0.0) + float(special.ndtri(statistics.CONFIDENCE)) / math.sqrt(len(logs)), 0.99)
    drift_text, dependence_text = (f"p {verdict_words.p_words(p)}" for p in (drift_p, dependence_p))
    rows = [
        (
            "the same run against itself, all pairs",
            Measure(
                bias.p,
                f"{math.expm1(bias.mean):+.2%} ({ratio.low - 1.0:+.2%} to {ratio.high - 1.0:+.2%}, "
                f"p {verdict_words.p_words(bias.p)})",
            ),
            _least_p(LEAST_P),
        ),
        (f"drift: the means of {STRETCH_PAIRS} successive pairs differ", Measure(drift_p, drift_text), _least_p(LEAST_DRIFT_P)),
        (
            f"successive pairs depend on each other; a correlation of {TESTED_CORRELATION:g} fails in "
            f"{percent(_dependence_power(len(logs)))} of cases",
            Measure(dependence_p, f"{correlation:+.2f} ({dependence_text}), below {most_correlation:.2f}"),
            _least_p(LEAST_DEPENDENCE_P),
        ),
    ]
    return rows, most_correlation


def _least_p(p: float) -> Bound:
    return Bound(f"p at least {p:g}", p)


def _alarm_rows(
    logs: Floats, generator: np.random.Generator, decisions: Sequence[SequenceDecisions], most_correlation: float
) -> list[CheckRow]:
    """Return a row on the false alarms in swapped sequences, and one in sequences as recorded."""
    dependent_alarm_rate = float(decide(_correlated_pairs(generator, most_correlation), UNTIL).ever_different.mean())
    rows: list[CheckRow] = []
    for decided, swapped, suffix in zip(decisions, (True, False), ("", ", as recorded"), strict=True):
        alarms = int(decided.ever_different.sum())
        most_rate = float(special.betaincinv(alarms + 1, NUM_SEQUENCES - alarms, statistics.CONFIDENCE))
        any_pairs = max(alarms_bound(logs, generator, swapped=swapped), dependent_alarm_rate)
        what = (
            f"equal runs called different at {_ALL_LOOKS}: {NUM_SEQUENCES:,} sequences of blocks of {BLOCK_PAIRS} real "
            f"pairs{suffix}"
        )
        rate, these, others = (percent(value, 2) for value in (alarms / NUM_SEQUENCES, most_rate, any_pairs))
        measure = Measure(most_rate, f"{rate}; below {these} of these pairs, below {others} of any pairs")
        rows.append((what, measure, Bound(f"at most {percent(MOST_ALARM_RATE)} of these pairs", most=MOST_ALARM_RATE)))
    return rows


def _planted_row(equal_sequences: Floats, slowdown: float) -> CheckRow:
    slower = decide(equal_sequences + math.log1p(slowdown), UNTIL)
    most = equal_sequences.shape[1]
    until = "until decided" if most == MOST_REPEATS else f"within {most} repeats"
    what = f"slowdowns of {percent(slowdown)} planted in these sequences and found, {until}"
    return what, _rate(slower.larger, slower.repeats), _POWER_BOUND


def alarms_bound(logs: Floats, generator: np.random.Generator, *, swapped: bool) -> float:
    """Return the upper 95 % bound of the rate of false alarms among any pairs, by a block bootstrap over stretches.

    Args:
        logs: logarithms of the ratios of the real pairs, in their order.
        generator: generator of the draws.
        swapped: whether it is drawn which run of a block is called the slower one.
    """
    number, rates = len(logs) // STRETCH_PAIRS, list[float]()
    for _ in range(NUM_RESAMPLES):
        starts = generator.integers(0, len(logs), (number, 1))
        others = logs[(starts + np.arange(STRETCH_PAIRS)) % len(logs)].reshape(-1)
        rates.append(float(decide(_sequences(others, generator, swapped=swapped), UNTIL).ever_different.mean()))
    return float(np.quantile(rates, statistics.CONFIDENCE))


def _sequences(logs: Floats, generator: np.random.Generator, *, swapped: bool) -> Floats:
    """Resample [NUM_SEQUENCES, MOST_REPEATS] from blocks of successive pairs, with random signs or without their mean."""
    logs = logs if swapped else logs - logs.mean()
    starts = generator.integers(0, len(logs), (NUM_SEQUENCES, MOST_REPEATS // BLOCK_PAIRS, 1))
    blocks = logs[(starts + np.arange(BLOCK_PAIRS)) % len(logs)]
    if swapped:
        blocks = blocks * generator.choice([-1.0, 1.0], starts.shape)
    return blocks.reshape(NUM_SEQUENCES, MOST_REPEATS)


def _drift_p(logs: Floats) -> float:
    """Return p of the analysis of variance between stretches of pairs (Fisher 1925)."""
    stretches = logs[: len(logs) // STRETCH_PAIRS * STRETCH_PAIRS].reshape(-1, STRETCH_PAIRS)
    between, within = STRETCH_PAIRS * stretches.mean(axis=1).var(ddof=1), stretches.var(axis=1, ddof=1).mean()
    number = len(stretches)
    return float(special.fdtrc(number - 1, number * (STRETCH_PAIRS - 1), between / within)) if within else 1.0


def _dependence(logs: Floats, generator: np.random.Generator, permutations: int = NUM_PERMUTATIONS) -> tuple[float, float]:
    """Return (correlation of successive pairs, p that it is not above zero), by a permutation test.

    The two runs of a pair alternate in being the first. This effect is removed, because it would hide a dependence.
    """
    rest = logs.copy()
    for half in (rest[0::2], rest[1::2]):
        half -= half.mean()
    drawn = generator.permuted(np.broadcast_to(rest, (permutations, len(rest))), axis=1)
    statistic, permuted = ((order[..., 1:] * order[..., :-1]).sum(axis=-1) for order in (rest, drawn))
    return float(statistic / (rest**2).sum()), float((1 + (permuted >= statistic).sum()) / (1 + permutations))


def _dependence_power(pairs: int) -> float:
    """Return the power of the test in `_dependence` with this number of pairs and a correlation of TESTED_CORRELATION."""
    return float(special.ndtr(TESTED_CORRELATION * math.sqrt(pairs) + special.ndtri(LEAST_DEPENDENCE_P)))


def _correlated_pairs(generator: np.random.Generator, correlation: float) -> Floats:
    """Simulate [NUM_SEQUENCES, MOST_REPEATS] equal pairs, successive ones of this correlation (first-order autoregression)."""
    logs = generator.normal(0.0, MUCH_NOISE, (NUM_SEQUENCES, MOST_REPEATS))
    for n in range(1, MOST_REPEATS):
        logs[:, n] = correlation * logs[:, n - 1] + math.sqrt(1.0 - correlation**2) * logs[:, n]
    return logs


def _logs(generator: np.random.Generator, trials: int, noise: float) -> Floats:
    """Simulate logarithms of the ratios of pairs of equal runs, whose trend alternates: [trials, MOST_REPEATS]."""
    trend = TREND * np.where(np.arange(MOST_REPEATS) % 2, -1.0, 1.0)
    return generator.normal(0.0, noise * math.sqrt(2.0), (trials, MOST_REPEATS)) + trend


def _families(generator: np.random.Generator, trials: int, slowdown: float | Floats) -> list[list[JudgedRatio]]:
    """Simulate families of comparisons with one base, and judge them as a report does. The runs of a pair share the same drift.

    The base runs next to each other run, alternately before and after it. The first comparison has the slower run.
    """
    noise = generator.normal(0.0, NOISE, (trials, VERDICT_PAIRS, 1 + FAMILY))
    drift = generator.normal(0.0, DRIFT, (trials, VERDICT_PAIRS, 1))
    noise[:, 0::2, 1:] += TREND
    noise[:, 1::2, 1:] -= TREND
    seconds: Floats = np.exp(noise + drift)
    seconds[:, :, 1] *= np.broadcast_to(slowdown, trials)[:, None]
    return [verdicts([(str(number), ratio) for number, ratio in enumerate(_ratios(runs))]) for runs in seconds]


def _ratios(runs: Floats) -> list[Ratio]:
    """Return the ratio of each further column to the first, of seconds [pairs, 1 + comparisons]."""
    base, *others = runs.T.tolist()
    ratios = [paired_ratio(list(zip(other, base, strict=True))) for other in others]
    return [ratio for ratio in ratios if ratio is not None]


def _coverage(generator: np.random.Generator, trials: int) -> float:
    """Return the fraction of scalings whose interval, by one look, contains the true serial fraction."""
    serial_noise = generator.normal(0.0, NOISE, (trials, VERDICT_PAIRS, 1))
    parallel_noise = generator.normal(0.0, NOISE, (trials, VERDICT_PAIRS, len(REPLICA_COUNTS)))
    shares = np.array([SERIAL_FRACTION + (1.0 - SERIAL_FRACTION) / size for size in REPLICA_COUNTS])
    freedom, num_covered = VERDICT_PAIRS - 1, 0
    one_look = statistics.critical(freedom, None) / statistics.critical(freedom, VERDICT_PAIRS)
    for gains in np.exp(serial_noise - parallel_noise) / shares:
        fraction = scaling_laws.amdahl(
            [list(zip(REPLICA_COUNTS, repeat_gains, strict=True)) for repeat_gains in gains.tolist()]
        )
        assert fraction is not None and fraction.low is not None and fraction.high is not None
        num_covered += abs(fraction.value - SERIAL_FRACTION) <= one_look * (fraction.high - fraction.low) / 2
    return num_covered / trials


def _fraction(families: Sequence[list[JudgedRatio]], predicate: Callable[[list[JudgedRatio]], bool]) -> float:
    return sum(map(predicate, families)) / len(families)


def _check(contestant: str, other: str, judged: JudgedRatio | None) -> SelftestCheck:
    equal = other == "equal-2"
    finding, p_value, passed = "no times: a run failed", "", False
    if judged is not None:
        word = verdict_words.verdict_text(judged, when_above="slower", when_below="faster", when_neither="no difference shown")
        finding = f"{interval_words(judged.ratio)} times the seconds: {word}"
        p_value = verdict_words.p_value_text(judged)
        passed = (judged.ratio.p or 0.0) >= LEAST_P if equal else judged.verdict == "above"
    return SelftestCheck(
        where=contestant,
        what="the same run against itself" if equal else f"{SLOWER_BATCH - BATCH} images more to a step of {BATCH}",
        n=judged.ratio.n if judged else 0,
        found=finding,
        p_value=p_value,
        required=f"p by itself at least {LEAST_P:g}" if equal else "slower",
        passed=passed,
    )


def _resolution(stored: StoredComparison, contestant: str) -> str | None:
    """Describe the smallest difference that a comparison can find on this machine, from the noise of the equal runs."""
    by_id = {row.id: row for row in stored.comparison.rows}
    first, second = (by_id[f"{contestant}-{name}"] for name in ("equal-1", "equal-2"))
    logs = [math.log(one / other) for one, other in pairs_of_seconds(stored, first, second).values()]
    if len(logs) < VERDICT_PAIRS:
        return None
    deviation, freedom = float(np.std(logs, ddof=1)), len(logs) - 1
    tails = special.chdtri(freedom, (0.5 - statistics.CONFIDENCE / 2, 0.5 + statistics.CONFIDENCE / 2))
    low, high = (deviation * math.sqrt(freedom / float(tail)) for tail in tails)

    def least(comparisons: int) -> str:
        least_log = statistics.detectable_mean(deviation / math.sqrt(len(logs)), freedom, comparisons, len(logs))
        return percent(math.expm1(least_log), 1)

    return (
        f"{contestant} here: two equal runs differ by {percent(deviation, 1)} "
        f"(standard deviation; from so few pairs, it may be {percent(low, 1)} to {percent(high, 1)}). "
        f"So {len(logs)} pairs find a difference of about {least(1)} nine times in ten, and of "
        f"{least(FAMILY)} in a report with {FAMILY} comparisons. These are averages, as few pairs show the noise only roughly."
    )
