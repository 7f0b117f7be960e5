"""The report of a judgement: verdict, tables and sentences."""

from __future__ import annotations

from dataclasses import replace

from compare.cli.wording import count, joined, percent, shell
from compare.judgement.sides import BASE, HEAD
from compare.reporting import comparison_tables
from compare.reporting.document import Mark, Report
from compare.reporting.tables import Cell, Column, Table
from compare.statistics.noise import LEAST_NEIGHBOURS
from compare.statistics.statistics import CONFIDENCE, VERDICT_PAIRS, Spread, pairs_needed
from compare.statistics.verdict_words import UNBOUNDED, p_value_words, p_words, percent_words, resolution_words
from compare.tools.regression import regress_screen
from compare.tools.regression.records import (
    ACCURACY,
    EXIT_OK,
    EXIT_REGRESSION,
    FAILED,
    UNDECIDED,
    Change,
    Judgement,
    heading,
)
from compare.tools.regression.regress_screen import MeasuredBy

_SIDES = {"baseline": BASE, "candidate": HEAD}
_OPERATIONS = (
    "From each framework's own profiler, in steps after the training, which it slows down. Sums over threads. An operation "
    "without a figure is not among the ten longest of most runs there. Shown, and not judged."
)


def report(judgement: Judgement, measured_by: MeasuredBy | None = None) -> Report:
    """Build the report of a judgement. Its title is the verdict.

    Args:
        measured_by: the command that has measured both sides. None: both were stored.
    """
    sides = ((BASE.capitalize(), judgement.baseline), (HEAD.capitalize(), judgement.candidate))
    bad, too_fast = (judgement.verdicts.count(verdict) for verdict in FAILED)
    decided = judgement.exit_code in (EXIT_OK, EXIT_REGRESSION)
    return Report(
        title=headline(judgement),
        headline=_style(judgement),
        name="regress",
        json_file="regress.json",
        overline="Did a change make it slower?",
        facts=[
            *(
                f"{name}: {side.source}, {side.commit}{f' of {side.repository}' if side.repository else ''}, {side.measured_at}"
                for name, side in sides
            ),
            *(
                f"Trained by: the suite at {commit[:8]}"
                for commit in dict.fromkeys(side.suite_commit for _, side in sides)
                if commit
            ),
            f"Machine: {judgement.machine}",
            _noise_words(judgement),
        ],
        marks=[
            Mark("Regressions", str(bad), "bad" if bad else "good"),
            *[Mark("Faster than allowed", str(too_fast), "bad")] * bool(too_fast),
            Mark("Figures", f"{len(judgement.verdicts)}, {judgement.tested} tested", "good" if decided else "warn"),
            Mark("Not ruled out", str(judgement.num_not_ruled_out), "warn" if judgement.num_not_ruled_out else "good"),
        ],
        findings=sentences(judgement),
        tables=change_tables(judgement),
        values={**judgement.model_dump(mode="json"), "headline": headline(judgement)},
        exit_code=judgement.exit_code,
        screen=regress_screen.screen(
            judgement,
            _undecided_reasons(judgement, needed=f" (a verdict needs {VERDICT_PAIRS})"),
            _pairs_needed(judgement),
            measured_by,
        ),
    )


def _noise_words(judgement: Judgement) -> str:
    """How much the same code differed from itself."""
    if (noise := judgement.noise) is None:
        return f"Noise here today: not known, because fewer than {LEAST_NEIGHBOURS} runs of the same code followed each other"
    return f"{noise.words}, in {noise.share} ratios of runs of the same code that followed each other"


def headline(judgement: Judgement) -> str:
    """The verdict in a sentence."""
    if failures := regress_screen.failure_words(judgement):
        return f"{failures}."
    thresholds = (
        f"({percent_words(judgement.threshold)} of seconds and MiB, {percent_words(judgement.accuracy_threshold)} of accuracy)"
    )
    if judgement.exit_code != EXIT_OK:
        reasons = [*regress_screen.lacking_words(judgement), *_undecided_reasons(judgement, f" {thresholds}")]
        return f"CANNOT TELL whether there is a regression: {joined(reasons)}."
    return f"No regression: none of {judgement.num_judged} figures is worse by more than its threshold {thresholds}."


def _undecided_reasons(judgement: Judgement, thresholds: str = "", needed: str = "") -> list[str]:
    """Say in words why there is no decision. The figures that may be worse come first."""
    reliable = f"no {'pair with ' if judgement.paired else ''}reliable times on both sides"
    few = sum(change.verdict == "too few to tell" for change in judgement.changes)
    causes = (
        (judgement.num_not_ruled_out, f"may be worse by more than the threshold{thresholds}"),
        (few, f"have too few {_samples(judgement)}{needed}"),
        (judgement.verdicts.count("not judged"), f"have {reliable}"),
        (judgement.verdicts.count("cannot tell"), "cannot be judged"),
    )
    total = len(judgement.verdicts)
    reasons = [
        f"{f'{number} of {total} figures' if total > 1 else 'the figure'} {what if number > 1 else what.replace('have', 'has')}"
        for number, what in causes
        if number
    ]
    reasons += ["nothing was measured on both sides"] * (not judgement.changes)
    if missing := len(judgement.missing):
        what = "benchmark" if judgement.kind == "benchmarks" else "row"
        reasons.append(f"{count(missing, what)} of the base {'was' if missing == 1 else 'were'} not measured again")
    return reasons


def _style(judgement: Judgement) -> str:
    """The colour of the headline."""
    if judgement.exit_code == EXIT_REGRESSION:
        return "bold red"
    return "bold green" if judgement.exit_code == EXIT_OK else "bold yellow"


def sentences(judgement: Judgement) -> list[tuple[str, list[str]]]:
    """Sentences that explain the verdict, under headings."""
    facts = [
        (fact.verdict, f"{fact.name}, {fact.what}: {fact.baseline} before, {fact.candidate} now.") for fact in judgement.facts
    ]

    def lines_with(verdict: str) -> list[str]:
        figures = [f"{change_words(change)}." for change in judgement.changes if change.verdict == verdict]
        return figures + [sentence for fact_verdict, sentence in facts if fact_verdict == verdict]

    needed = f"{VERDICT_PAIRS} {_samples(judgement)} that a verdict needs"
    undecided = [
        f"{change_words(change)}: {_not_judged_words(change) or f'{change.change.n} of the {needed}'}."
        for change in judgement.changes
        if change.verdict in UNDECIDED
    ]
    if judgement.verdicts.count("not judged"):
        longer = " Longer runs (--epochs) need a new folder." * (judgement.kind == "comparison")
        folder = judgement.baseline.source.removesuffix(f"@{BASE}")
        same_command = f"The same command with {shell(['--out', folder])}" if judgement.in_turn else "The same command"
        undecided.append(
            f"{same_command} makes the disturbed pairs again, on an idle machine.{longer}"
            if judgement.paired
            else "Longer runs (--epochs) on an idle machine would tell, in another folder (--out)."
        )
    undecided += [sentence for verdict, sentence in facts if verdict in UNDECIDED]
    undecided += [f"{name}: in the base, and not measured now." for name in judgement.missing]
    undecided += ["Nothing was measured on both sides."] * (not judgement.changes)
    more = _samples(judgement) if judgement.kind == "benchmarks" else "repeats"
    digits = "The command writes it in too few digits"
    unsure = [
        f"{change_words(change)}. "
        + (f"{digits}." if judgement.lacks_digits(change) else f"More {'seeds' if change.is_accuracy else more} would tell.")
        for change in judgement.changes
        if change.not_ruled_out
    ]
    if unsure and judgement.paired and (needed := _pairs_needed(judgement)) is not None:
        unsure.append(
            f"If the true changes are these, about {needed} pairs would show that they stay below the threshold"
            f"{f': --repeats {needed} in a new folder' if judgement.kind == 'comparison' or judgement.in_turn else ''}."
        )
    if unsure and judgement.kind != "benchmarks":
        unsure.append("--metric judges chosen figures alone, and a larger --threshold or --accuracy-threshold asks for less.")
    sections = [
        ("Regressions", lines_with("regression")),
        ("Faster than the marker allows: the base is out of date", lines_with("faster than allowed")),
        ("Cannot tell", undecided),
        ("Not tested", lines_with("not tested")),
        ("A regression beyond the threshold is not shown, and not ruled out", unsure),
        ("Better", lines_with("better")),
        ("Measured now, and not in the base", judgement.added),
        (comparison_tables.ENVIRONMENTS, judgement.environments),
        ("Cautions", judgement.cautions),
        ("How it was judged", _method(judgement)),
    ]
    return [(title, lines) for title, lines in sections if lines]


def _samples(judgement: Judgement) -> str:
    if judgement.kind == "benchmarks" and not judgement.in_turn:
        return "benchmark files"
    return "pairs" if judgement.paired else "samples"


def _pairs_needed(judgement: Judgement) -> int | None:
    """Return the number of pairs that would rule out the threshold for all figures. None: for one, no number of pairs would."""
    changes = [change for change in judgement.changes if change.not_ruled_out and not change.is_accuracy]
    if any(map(judgement.lacks_digits, changes)):
        return None
    pair_counts = [
        pairs_needed(change.change, 1.0 + judgement.limit_of(change), one_look=judgement.one_look) for change in changes
    ]
    return max((num_pairs for num_pairs in pair_counts if num_pairs), default=None) if all(pair_counts) else None


def _not_judged_words(change: Change) -> str:
    """Say that a figure is shown and not judged, with its medians. Empty for other figures."""
    if change.verdict != "not judged":
        return ""
    medians = [_number(figure.median) for figure in (change.baseline, change.candidate)]
    match change.unreliable:
        case []:
            why, scope = "no pair has reliable times on both sides", " of the reliable ones"
        case [side]:
            why, scope = f"no time of the {_SIDES[side]} is reliable", ""
        case _:
            why, scope = "none of these times is reliable", ""
    return f"not judged, because {why}. The ratio is of geometric means. Medians{scope}: {medians[0]} before, {medians[1]} now"


def change_words(change: Change) -> str:
    """The change of a figure: its run and metric, the two sides, its size, and how sure it is."""
    ratio = change.change
    form = "+.4f" if change.is_accuracy else ".3f"
    size = f"{ratio.value:{form}}"
    if not ratio.is_bounded:
        size += f" ({UNBOUNDED})"
    elif ratio.low is not None and ratio.high is not None:
        size += f" ({ratio.low:{form}} to {ratio.high:{form}})"
    against = f"head minus base {size}" if change.is_accuracy else f"head {size} times the base"
    surely = "" if change.adjusted_p is None else f", p {p_words(change.adjusted_p)}"
    return f"{change.name}, {heading(change.metric)}: {against}{surely}"


def change_tables(judgement: Judgement) -> list[Table]:
    """Every figure, before and now. Facts are in a table of their own."""
    columns = (
        Column("run", "run"),
        Column("metric", "metric"),
        Column("verdict", "verdict", fold=20),
        Column("change", "times", 3, interval=True),
        Column("p", "p, Holm", short="p,\nHolm"),
        Column("baseline", "base (quartiles)", wide=True),
        Column("candidate", "head (quartiles)", wide=True),
        Column("n", "n"),
    )
    score_columns = tuple(
        replace(column, heading="difference", digits=4) if column.key == "change" else column
        for column in columns
        if column.key != "metric"
    )
    fact_columns = (
        *(Column(key, key) for key in ("run", "what", "verdict")),
        Column("baseline", BASE),
        Column("candidate", HEAD, fold=40),
    )
    figures = [_cells(change) for change in judgement.changes if not change.is_accuracy]
    scores = [_cells(change) for change in judgement.changes if change.is_accuracy]
    facts: list[dict[str, Cell]] = [{"run": fact.name, **fact.model_dump()} for fact in judgement.facts]
    operation_columns = (
        Column("run", "run", pick="name"),
        Column("operation", "operation", fold=40),
        Column("milliseconds", "head minus base, ms", 2, short="change,\nms"),
        Column("baseline", "base, ms", 2, interval=True),
        Column("candidate", "head, ms", 2, interval=True),
    )
    all_tables = [
        Table("changes", "Seconds and memory, head over base", columns, figures),
        Table("accuracy", "Test accuracy, head minus base", score_columns, scores),
        Table("facts", "Runs, proof and first losses", fact_columns, facts),
        Table.from_items("operations", "Where a step's time changed", operation_columns, judgement.operations, _OPERATIONS),
    ]
    return [
        table for table in (*all_tables, *comparison_tables.environment_table(_with_sides(judgement.differences))) if table.rows
    ]


def _with_sides(differences: list[dict[str, str | None]]) -> list[dict[str, str | None]]:
    """Return the differences under the names of the sides that a reader knows: `base's pytorch`."""
    return [
        {
            name.replace("baseline's", f"{BASE}'s").replace("candidate's", f"{HEAD}'s"): value
            for name, value in difference.items()
        }
        for difference in differences
    ]


def _cells(change: Change) -> dict[str, Cell]:
    numbers = {change.baseline.n, change.candidate.n}
    return {
        "run": change.name,
        "metric": heading(change.metric),
        "verdict": f"{change.verdict}{', not ruled out' if change.not_ruled_out else ''}",
        "change": change.change,
        "p": "-" if change.adjusted_p is None else p_value_words(change.adjusted_p),
        "baseline": _spread_words(change.baseline),
        "candidate": _spread_words(change.candidate),
        "n": f"{change.baseline.n}, {change.candidate.n}" if len(numbers) > 1 else str(change.change.n),
    }


def _method(judgement: Judgement) -> list[str]:
    of_files = judgement.kind == "benchmarks"
    by_times = of_files and not judgement.in_turn
    order, unit = ("By their times, the files", "neighbours") if by_times else ("Base and head", "repeats")
    lines = [
        f"{order} were measured in turn: paired t-tests on the logarithms of the ratios of {unit}. So a change is the "
        "geometric mean of these ratios. The medians of both sides may point the other way."
        if judgement.paired
        else "The two were measured apart: Welch's t-tests on logarithms. They cannot separate the change from what else "
        "changed on the machine meanwhile. "
        f"{'Files made in turn (A, B, B, A, ...)' if of_files else '--interleaved REV or --environments A B'} can."
    ]
    if judgement.tested:
        tested = [change for change in judgement.changes if change.adjusted_p is not None and not change.is_accuracy]
        figures = " and ".join(dict.fromkeys(heading(change.metric) for change in tested))
        ratios = [change.change for change in tested]
        lines.append(
            f"A regression is shown to be worse than the base, and is estimated to be worse by more than "
            f"{percent_words(judgement.threshold)} of seconds or MiB, or {percent_words(judgement.accuracy_threshold)} of "
            f"accuracy. The true change may be a little smaller. {count(judgement.tested, 'figure')} could be tested. "
            f"The risk that any of them is called better or worse by chance is {percent(1.0 - CONFIDENCE)}, for all together "
            f"(Holm). Each interval is that of its figure alone. A figure that is the same number in every run is not tested."
            f"{'' if judgement.one_look else ' You may add repeats and look again: the risk stays.'}"
            f"{resolution_words(ratios, judgement.tested, one_look=judgement.one_look, subject=figures)}"
        )
    if of_files:
        lines.append(
            "A sample is the median of a benchmark file, because its rounds come from one process, and the next process may "
            f"differ. Each side needs at least {VERDICT_PAIRS} {'runs' if judgement.in_turn else 'files'}."
        )
    if any(change.is_accuracy for change in judgement.changes):
        lines.append(
            "Accuracies are paired by seed, with the median of each seed's repeats: paired t-tests on their differences. They "
            "hold for the same test images alone."
        )
    elif any(fact.what == heading(ACCURACY) and fact.verdict != "no change shown" for fact in judgement.facts):
        lines.append(
            "Rounding alone moves the accuracy of one seed's training, and its repeats do not show this. So accuracies are "
            f"tested over at least {VERDICT_PAIRS} seeds (run --seeds 0,1,2,3,4)."
        )
    return lines


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _spread_words(spread: Spread) -> str:
    median, low, high = map(_number, (spread.median, spread.low, spread.high))
    return median if low == median == high else f"{median} ({low} to {high})"
