"""`python -m compare selftest`: tests whether the verdicts are reliable, in simulation and on this machine."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from scipy import special

from common import spec
from common.frozen import Frozen
from compare.comparison import run
from compare.comparison.comparison_plan import Request
from compare.core import exits, statistics
from compare.core.option_parsing import chosen, names
from compare.core.presets import Preset
from compare.core.statistics import VERDICT_PAIRS, Judged, Ratio, interval_words, paired_ratio, verdicts
from compare.core.wording import percent
from compare.execution import launch, options
from compare.execution.matrix import Row
from compare.execution.store import Stored
from compare.judgement.summary import epoch_seconds, measured, ratio_of_seconds
from compare.reporting.comparison_report import Compared
from compare.reporting.document import Report
from compare.reporting.tables import Cell, Column, Table

TRIALS = 10_000
NOISE = 0.02
"""Standard deviation of the logarithm of one simulated run's time."""
DRIFT = 0.3
"""The same for the drift that both runs of a pair share: a machine that grows warmer or busier."""
SLOWDOWN = 1.10
TREND = 0.003
"""Slowdown of a run relative to the run before it. The sign alternates between repeats."""
FAMILY = 8
"""Comparisons that are judged together: as many as `run` makes of both frameworks by default."""

ALARMS = statistics.SIGNIFICANCE
"""Fraction of comparisons of equal runs that are called different by chance."""

LEAST_P = 0.001
"""For equal runs. A verdict on them occurs by chance in one trial of twenty, a p below this in one of a thousand."""

IMAGES, SLOWER_IMAGES = 1000, 1100
"""Images of an epoch, in batches that divide both. The slower run does exactly a tenth more of the same work."""
VALUES: dict[str, Any] = {
    "model": "simple_cnn",
    "data": {"source": "digits"},
    "global_batch_size": 50,
    "epochs": 3,
    "cores": 1,
}


class Check(Frozen):
    """One requirement, and what was found."""

    where: str
    """`simulated`, or the framework that ran here."""
    what: str
    n: int
    """Comparisons that were simulated, or pairs of real runs."""
    found: str
    required: str
    passed: bool


class Selftest(Frozen):
    checks: list[Check]
    sentences: list[str]
    """What the real trials show about this machine."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def command(
    frameworks: options.Frameworks = options.ALL_FRAMEWORKS,
    simulate_only: Annotated[bool, typer.Option("--simulate-only", help="No trials on this machine. Takes seconds.")] = False,
    trials: Annotated[int, typer.Option(min=1000, help="Comparisons to simulate. A quarter as many families.")] = TRIALS,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation.")] = 0,
    as_json: options.AsJson = False,
) -> None:
    """Test the verdicts themselves: equal runs must be called equal, and a known slowdown must be found."""
    with exits.reported():
        asked = chosen("--frameworks", names(frameworks), tuple(launch.FRAMEWORKS))
        made = Selftest(checks=simulate(trials, seed), sentences=[])
        if not simulate_only:
            found = _try_here(asked)
            made = Selftest(checks=[*made.checks, *found.checks], sentences=found.sentences)
    raise typer.Exit(report(made).deliver(None, as_json=as_json))


def simulate(trials: int, seed: int) -> list[Check]:
    """How often the verdicts of a report are wrong if the truth is known: pairs of times with log-normal noise.

    Args:
        trials: single comparisons of each kind. There are a quarter as many families.
        seed: of the noise.
    """
    generator = np.random.default_rng(seed)
    least = math.expm1(statistics.least_found(NOISE * math.sqrt(2 / VERDICT_PAIRS), VERDICT_PAIRS - 1, FAMILY))
    equal = _simulated(generator, trials, 1)
    slower = _simulated(generator, trials, 1, SLOWDOWN)
    number = trials // 4
    families = _simulated(generator, number, FAMILY)
    with_slower = _simulated(generator, number, FAMILY, 1.0 + least)
    alarms = _share(equal, lambda judged: judged[0].verdict in ("above", "below"))
    any_alarm = _share(families, lambda judged: any(each.verdict in ("above", "below") for each in judged))
    alone = _share(families, lambda judged: any((each.ratio.p or 0.0) < statistics.SIGNIFICANCE for each in judged))
    found, found_among = (_share(each, lambda judged: judged[0].verdict == "above") for each in (slower, with_slower))
    around, most = _tolerance(ALARMS, trials), ALARMS + _tolerance(ALARMS, number)
    least_power = statistics.POWER - _tolerance(statistics.POWER, number)
    add = partial(Check, where="simulated")
    return [
        add(
            what=f"equal runs called different, {VERDICT_PAIRS} pairs",
            n=trials,
            found=percent(alarms, 2),
            required=f"{100 * (ALARMS - around):.3g} to {100 * (ALARMS + around):.3g} %",
            passed=abs(alarms - ALARMS) <= around,
        ),
        add(
            what=f"slowdowns of {percent(SLOWDOWN - 1)} found, noise {percent(NOISE)}, {VERDICT_PAIRS} pairs",
            n=trials,
            found=percent(found, 2),
            required=f"at least {percent(statistics.POWER)}",
            passed=found >= statistics.POWER,
        ),
        add(
            what=f"families of {FAMILY} equal comparisons with any called different (uncorrected: {percent(alone, 1)})",
            n=number,
            found=percent(any_alarm, 2),
            required=f"at most {100 * most:.3g} %",
            passed=any_alarm <= most,
        ),
        add(
            what=f"slowdowns of {percent(least, 1)} found among {FAMILY} comparisons: the least that {VERDICT_PAIRS} pairs of "
            f"noise {percent(NOISE)} are said to find there",
            n=number,
            found=percent(found_among, 2),
            required=f"at least {100 * least_power:.3g} %",
            passed=found_among >= least_power,
        ),
    ]


def _tolerance(rate: float, trials: int) -> float:
    """Allowed distance from a rate: 0.01 or, for few trials, the distance that chance exceeds once in a thousand times."""
    return max(0.01, float(special.ndtri(0.9995)) * math.sqrt(rate * (1.0 - rate) / trials))


def rows(settings: Preset, contestants: Sequence[str]) -> list[Row]:
    """For each framework, two equal rows and one whose epoch is a tenth longer."""
    return [
        Row(
            id=f"{contestant}-{name}",
            contestant=contestant,
            spec=spec.build(spec.overlay(settings.values, {"data.limit": images})),
        )
        for contestant in contestants
        for name, images in (("equal-1", IMAGES), ("equal-2", IMAGES), ("slower", SLOWER_IMAGES))
    ]


def judge(made: Compared) -> Selftest:
    """Judge real trials that were laid out by `rows`."""
    stored = made.stored
    by_id = {row.id: row for row in stored.comparison.rows}
    contestants = list(dict.fromkeys(row.contestant for row in by_id.values()))
    wanted = [(contestant, other) for contestant in contestants for other in ("equal-2", "slower")]
    ratios = [
        ((contestant, other), ratio)
        for contestant, other in wanted
        if (ratio := ratio_of_seconds(stored, by_id[f"{contestant}-{other}"], by_id[f"{contestant}-equal-1"])) is not None
    ]
    judged = dict(zip([key for key, _ in ratios], verdicts([(" ".join(key), ratio) for key, ratio in ratios]), strict=True))
    checks = [_check(contestant, other, judged.get((contestant, other))) for contestant, other in wanted]
    resolutions = [said for each in contestants if (said := _resolution(stored, each))]
    return Selftest(checks=checks, sentences=[*resolutions, *dict.fromkeys(made.findings.troubles)])


def report(made: Selftest) -> Report:
    columns = (
        Column("where", "where"),
        Column("what", "what", fold=44),
        Column("n", "n"),
        Column("found", "found", fold=24),
        Column("required", "required", fold=20),
        Column("passed", "passed"),
    )
    cells: list[dict[str, Cell]] = [check.model_dump() | {"passed": "yes" if check.passed else "NO"} for check in made.checks]
    title = "Can the verdicts be relied on?"
    return Report(
        title=title,
        tables=[Table("selftest", title, columns, cells)],
        findings=[("What the trials show of this machine", made.sentences)] if made.sentences else [],
        values=made.model_dump() | {"passed": made.passed},
        exit_code=0 if made.passed else exits.RUN_FAILED,
    )


def _try_here(contestants: Sequence[str]) -> Selftest:
    """The real trials, run like any comparison.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError, Interrupted: as `run.within`.
    """
    with tempfile.TemporaryDirectory(prefix="convtwins-selftest-") as folder:
        settings = Preset(values=VALUES, modes=("serial",), repeats=VERDICT_PAIRS)
        out = Path(folder) / "runs"
        compared, _ = run.within(Request(settings, list(contestants), out, prove=False, lay_out=rows), out)
    return judge(compared)


def _simulated(generator: np.random.Generator, trials: int, comparisons: int, slowdown: float = 1.0) -> list[list[Judged]]:
    """Simulated families of comparisons with one base. The runs of a pair share the same drift; verdicts are a report's own.

    The base runs next to each, alternately before and after it. The first comparison has the slower run.
    """
    noise = generator.normal(0.0, NOISE, (trials, VERDICT_PAIRS, 1 + comparisons))
    drift = generator.normal(0.0, DRIFT, (trials, VERDICT_PAIRS, 1))
    noise[:, 0::2, 1:] += TREND
    noise[:, 1::2, 1:] -= TREND
    seconds: npt.NDArray[np.float64] = np.exp(noise + drift)
    seconds[:, :, 1] *= slowdown
    return [verdicts([(str(number), ratio) for number, ratio in enumerate(_ratios(runs))]) for runs in seconds]


def _ratios(runs: npt.NDArray[np.float64]) -> list[Ratio]:
    """Ratio of each further column to the first: seconds [pairs, 1 + comparisons]."""
    base, *others = runs.T.tolist()
    found = [paired_ratio(list(zip(other, base, strict=True))) for other in others]
    return [ratio for ratio in found if ratio is not None]


def _share(families: Sequence[list[Judged]], holds: Callable[[list[Judged]], bool]) -> float:
    return sum(map(holds, families)) / len(families)


def _check(contestant: str, other: str, judged: Judged | None) -> Check:
    equal = other == "equal-2"
    found, passed = "no times: a run failed", False
    if judged is not None:
        said = statistics.word(judged, above="slower", below="faster", neither="no difference shown")
        found = f"{interval_words(judged.ratio)} times the seconds: {said}{statistics.surety(judged)}"
        passed = (judged.ratio.p or 0.0) >= LEAST_P if equal else judged.verdict == "above"
    return Check(
        where=contestant,
        what="the same run against itself" if equal else f"{SLOWER_IMAGES - IMAGES} images more to an epoch of {IMAGES}",
        n=judged.ratio.n if judged else 0,
        found=found,
        required=f"p by itself at least {LEAST_P:g}" if equal else "slower",
        passed=passed,
    )


def _resolution(stored: Stored, contestant: str) -> str | None:
    """The smallest difference that a comparison can find on this machine, from the noise of the equal runs."""
    by_id = {row.id: row for row in stored.comparison.rows}
    first, second = (measured(stored, by_id[f"{contestant}-{name}"]) for name in ("equal-1", "equal-2"))
    logs = [math.log(epoch_seconds(first[each]) / epoch_seconds(second[each])) for each in sorted(first.keys() & second.keys())]
    if len(logs) < VERDICT_PAIRS:
        return None
    deviation, freedom = float(np.std(logs, ddof=1)), len(logs) - 1
    tails = special.chdtri(freedom, (0.5 - statistics.CONFIDENCE / 2, 0.5 + statistics.CONFIDENCE / 2))
    low, high = (deviation * math.sqrt(freedom / float(tail)) for tail in tails)

    def least(deviation: float, comparisons: int) -> str:
        return percent(math.expm1(statistics.least_found(deviation / math.sqrt(len(logs)), freedom, comparisons)), 1)

    return (
        f"{contestant} here: two equal runs differ by {percent(deviation, 1)} "
        f"(standard deviation; {percent(low, 1)} to {percent(high, 1)}, for so few "
        f"pairs). So {len(logs)} pairs find a difference of about {least(deviation, 1)} nine times in ten, and of "
        f"{least(deviation, FAMILY)} among {FAMILY} comparisons; at the most, {least(high, FAMILY)}."
    )
