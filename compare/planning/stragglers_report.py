"""The report of `stragglers`: its sentences and its table."""

from __future__ import annotations

from compare.core.statistics import VERDICT_PAIRS
from compare.core.wording import count, joined, percent
from compare.judgement.verdict_sentences import DISTURBED
from compare.planning.slow_rank import PERIOD_SECONDS
from compare.planning.straggling import Found, Suffered
from compare.reporting import document
from compare.reporting.document import Report
from compare.reporting.screen import Bar, Chart, Paragraph, Screen
from compare.reporting.tables import Column, Table

RESULTS_FILE, MEASURED_FOLDER = "stragglers.json", "measured"


def report(found: Found, repeats: int) -> Report:
    plan = found.plan
    versions = {name: own.versions for name, own in plan.machine.frameworks.items()}
    sections = [
        ("Cautions", found.cautions),
        ("How good the simulator was", accuracy_words(found)),
        ("No rank to slow", _not_slowed(found)),
    ]
    return Report(
        title=f"Slow ranks: {plan.run.model_label}, batch {plan.run.global_batch_size}",
        json_file=RESULTS_FILE,
        facts=[*verdicts(found.suffered), document.hardware_and_versions(plan.machine.facts, versions)],
        findings=[(heading, sentences) for heading, sentences in sections if sentences],
        tables=[table(found.suffered, repeats)] if found.suffered else [],
        values={
            "spec": plan.run.model_dump(mode="json"),
            "verdicts": verdicts(found.suffered),
            "suffered": [{**each.model_dump(mode="json"), "error": each.error, "n": each.n} for each in found.suffered],
            "median_error": found.median_error,
            "in_one_process": found.in_one_process,
        },
        screen=screen(found),
    )


def screen(found: Found) -> Screen:
    """Which mode suffers how much."""
    run = found.plan.run
    bars = [
        Bar(
            (each.contestant, each.words, each.straggler.words),
            each.measured and each.measured.value,
            _words(each) if each.measured else "not measured",
            [f"{each.simulated:.2f}", "in doubt" if each.in_doubt else ""],
        )
        for each in found.suffered
    ]
    answers = [
        Paragraph("Suffers", verdicts(found.suffered)),
        Paragraph("Simulated", accuracy_words(found)),
        Paragraph("Not slowed", _not_slowed(found)),
        Paragraph("Trouble", found.cautions, "bad"),
    ]
    return Screen(
        asked=[f"What does a slow rank cost? {run.model_label} on {run.data.source}, batch {run.global_batch_size}"],
        answers=[each for each in answers if each.sentences],
        chart=Chart(("times as long with a slow rank, measured", "times as long"), ["simulated", ""], bars),
    )


def _not_slowed(found: Found) -> list[str]:
    return [f"{name}, all replicas in one process: {joined(modes)}." for name, modes in found.in_one_process.items()]


def verdicts(suffered: list[Suffered]) -> list[str]:
    """A line for each framework and slow rank: where a step suffers least and most."""
    groups: dict[tuple[str, str], list[Suffered]] = {}
    for each in suffered:
        if each.measured is not None:
            groups.setdefault((each.contestant, each.straggler.words), []).append(each)
    said: list[str] = []
    for (name, straggler), own in groups.items():
        least, most = (choose(own, key=_value) for choose in (min, max))
        few = min(each.n for each in own)
        if any(each.in_doubt for each in own):
            said.append(f"{name}, {straggler}: no finding.{DISTURBED} The same command makes disturbed runs again.")
        elif few < VERDICT_PAIRS:
            said.append(f"{name}, {straggler}: {few} of the {count(VERDICT_PAIRS, 'pair')} that a verdict needs.")
        elif least is most:
            said.append(f"{name}, {straggler}: a step takes {_words(most)} times as long in {most.words}.")
        else:
            both = f"{_words(least)} times as long in {least.words}, {_words(most)} in {most.words}"
            alone = "Each interval is that of its mode alone, and compares no modes."
            said.append(f"{name}, {straggler}: a step takes {both}; in the others between these. {alone}")
    return said


def _value(each: Suffered) -> float:
    return each.measured.value if each.measured else 0.0


def _words(each: Suffered) -> str:
    assert each.measured is not None
    ratio = each.measured
    return f"{ratio.value:.2f}" + ("" if ratio.low is None else f" ({ratio.low:.2f} to {ratio.high:.2f})")


def accuracy_words(found: Found) -> list[str]:
    errors = [each for each in found.suffered if each.error is not None]
    if not errors or found.median_error is None:
        return []
    worst = max(errors, key=lambda each: abs(each.error or 0.0))
    return [
        f"The simulated ratios are off by {percent(found.median_error)} in the median of {len(errors)}, and by "
        f"{percent(abs(worst.error or 0.0))} at most: {worst.contestant} {worst.words}, {worst.straggler.words}."
    ]


def table(suffered: list[Suffered], repeats: int) -> Table:
    columns = (
        Column("contestant", "contestant"),
        Column("words", "layout", fold=34),
        Column("straggler", "slow", fold=30, pick="straggler.words"),
        Column("measured", "times as long, measured", 2, short="times as\nlong", interval=True),
        Column("simulated", "simulated", 2),
        Column("error", "error, %", 0, short="error\n%", pick=lambda each: None if each.error is None else 100 * each.error),
        Column("n", "pairs"),
        Column("in_doubt", "runs in doubt", short="in\ndoubt", wide=True),
    )
    return Table.of(
        "stragglers",
        "How much longer a step takes with a slow rank",
        columns,
        suffered,
        note=f"Of {repeats} interleaved repeats: seconds of a step with the slow rank over those without, in pairs, with the "
        f"95 % interval. The rank is stopped for a part of every {1e3 * PERIOD_SECONDS:.0f} ms. Error: (simulated - measured) "
        "/ measured.",
    )
