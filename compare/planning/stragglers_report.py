"""The report of `stragglers`: its sentences and its table."""

from __future__ import annotations

from compare.core.statistics import VERDICT_PAIRS
from compare.core.wording import count, joined, percent
from compare.judgement.statement_words import DISTURBED
from compare.planning.slow_rank import PERIOD_SECONDS
from compare.planning.straggling import SlowdownResult, StragglerResults
from compare.reporting import document
from compare.reporting.document import Report
from compare.reporting.screen import Bar, Chart, Paragraph, Screen
from compare.reporting.tables import Column, Table

RESULTS_FILE, MEASURED_FOLDER = "stragglers.json", "measured"


def report(results: StragglerResults, repeats: int) -> Report:
    plan = results.plan
    versions = {name: timings.versions for name, timings in plan.machine.frameworks.items()}
    sections = [
        ("Cautions", results.cautions),
        ("How good the simulator was", accuracy_sentences(results)),
        ("No rank to slow", _unslowed_modes(results)),
    ]
    return Report(
        title=f"Slow ranks: {plan.run.model_label}, batch {plan.run.global_batch_size}",
        json_file=RESULTS_FILE,
        facts=[*verdicts(results.slowdowns), document.hardware_and_versions(plan.machine.facts, versions)],
        findings=[(heading, sentences) for heading, sentences in sections if sentences],
        tables=[table(results.slowdowns, repeats)] if results.slowdowns else [],
        values={
            "spec": plan.run.model_dump(mode="json"),
            "verdicts": verdicts(results.slowdowns),
            "suffered": [
                {**slowdown.model_dump(mode="json"), "error": slowdown.error, "n": slowdown.n} for slowdown in results.slowdowns
            ],
            "median_error": results.median_error,
            "in_one_process": results.one_process_modes,
        },
        screen=screen(results),
    )


def screen(results: StragglerResults) -> Screen:
    """Return the first screen: the slowdown of each mode."""
    run = results.plan.run
    bars = [
        Bar(
            (slowdown.contestant, slowdown.words, slowdown.straggler.words),
            slowdown.measured and slowdown.measured.value,
            _format_ratio(slowdown) if slowdown.measured else "not measured",
            [f"{slowdown.simulated:.2f}", "in doubt" if slowdown.in_doubt else ""],
        )
        for slowdown in results.slowdowns
    ]
    answers = [
        Paragraph("Suffers", verdicts(results.slowdowns)),
        Paragraph("Simulated", accuracy_sentences(results)),
        Paragraph("Not slowed", _unslowed_modes(results)),
        Paragraph("Trouble", results.cautions, "bad"),
    ]
    return Screen(
        subject=[f"What does a slow rank cost? {run.model_label} on {run.data.source}, batch {run.global_batch_size}"],
        answers=[answer for answer in answers if answer.sentences],
        chart=Chart(("times as long with a slow rank, measured", "times as long"), ["simulated", ""], bars),
    )


def _unslowed_modes(results: StragglerResults) -> list[str]:
    return [f"{name}, all replicas in one process: {joined(modes)}." for name, modes in results.one_process_modes.items()]


def verdicts(slowdowns: list[SlowdownResult]) -> list[str]:
    """Return one line for each framework and slow rank: the modes with the smallest and largest slowdown."""
    groups: dict[tuple[str, str], list[SlowdownResult]] = {}
    for slowdown in slowdowns:
        if slowdown.measured is not None:
            groups.setdefault((slowdown.contestant, slowdown.straggler.words), []).append(slowdown)
    sentences: list[str] = []
    for (name, straggler), group in groups.items():
        least, most = (choose(group, key=_value) for choose in (min, max))
        num_pairs = min(slowdown.n for slowdown in group)
        if any(slowdown.in_doubt for slowdown in group):
            sentences.append(f"{name}, {straggler}: no finding. {DISTURBED} The same command makes disturbed runs again.")
        elif num_pairs < VERDICT_PAIRS:
            sentences.append(f"{name}, {straggler}: {num_pairs} of the {count(VERDICT_PAIRS, 'pair')} that a verdict needs.")
        elif least is most:
            sentences.append(f"{name}, {straggler}: a step takes {_format_ratio(most)} times as long in {most.words}.")
        else:
            extremes = f"{_format_ratio(least)} times as long in {least.words}, {_format_ratio(most)} in {most.words}"
            note = "Each interval is that of its mode alone, and compares no modes."
            sentences.append(f"{name}, {straggler}: a step takes {extremes}; in the others between these. {note}")
    return sentences


def _value(slowdown: SlowdownResult) -> float:
    return slowdown.measured.value if slowdown.measured else 0.0


def _format_ratio(slowdown: SlowdownResult) -> str:
    assert slowdown.measured is not None
    ratio = slowdown.measured
    return f"{ratio.value:.2f}" + ("" if ratio.low is None else f" ({ratio.low:.2f} to {ratio.high:.2f})")


def accuracy_sentences(results: StragglerResults) -> list[str]:
    errors = [slowdown for slowdown in results.slowdowns if slowdown.error is not None]
    if not errors or results.median_error is None:
        return []
    worst = max(errors, key=lambda slowdown: abs(slowdown.error or 0.0))
    return [
        f"The simulated ratios are off by {percent(results.median_error)} in the median of {len(errors)}, and by "
        f"{percent(abs(worst.error or 0.0))} at most: {worst.contestant} {worst.words}, {worst.straggler.words}."
    ]


def table(slowdowns: list[SlowdownResult], repeats: int) -> Table:
    columns = (
        Column("contestant", "contestant"),
        Column("words", "layout", fold=34),
        Column("straggler", "slow", fold=30, pick="straggler.words"),
        Column("measured", "times as long, measured", 2, short="times as\nlong", interval=True),
        Column("simulated", "simulated", 2),
        Column(
            "error",
            "error, %",
            0,
            short="error\n%",
            pick=lambda slowdown: None if slowdown.error is None else 100 * slowdown.error,
        ),
        Column("n", "pairs"),
        Column("in_doubt", "runs in doubt", short="in\ndoubt", wide=True),
    )
    return Table.from_items(
        "stragglers",
        "How much longer a step takes with a slow rank",
        columns,
        slowdowns,
        note=f"Of {repeats} interleaved repeats: seconds of a step with the slow rank over those without, in pairs, with the "
        f"95 % interval. The rank is stopped for a part of every {1e3 * PERIOD_SECONDS:.0f} ms. Error: (simulated - measured) "
        "/ measured.",
    )
