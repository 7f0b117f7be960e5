"""The report on several machines: who is faster on how many of them, and by how much on average."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.machine.machine import cpu_name
from compare.cli import exits, wording
from compare.judgement import cautions
from compare.reporting import comparison_plots, document, plots
from compare.reporting.comparison_report import facts
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen, caution_count
from compare.reporting.tables import Cell, Column, Table
from compare.statistics.statistics import CONFIDENCE, VERDICT_PAIRS, inverse
from compare.statistics.verdict_words import family_words, interval_words, p_words, verdict_text
from compare.tools.machines.questions import MachineAnswer, MeasuredMachine, MergedComparisons, Question
from compare.tools.machines.random_effects import LEAST_MACHINES

KIND, NAME, RESULTS_FILE = "merge", "merged", "merged.json"


def report(merged: MergedComparisons, out: Path | None) -> Report:
    """Build the report on merged comparisons.

    Args:
        out: folder that the report is written to. None: it is not written.
    """
    folders = [folder for machine in merged.machines for folder, _ in machine.folders]
    compared = [comparison for machine in merged.machines for _, comparison in machine.folders]
    unsigned = cautions.unconfirmed_signatures(
        (folder, comparison.stored) for machine in merged.machines for folder, comparison in machine.folders
    )
    return Report(
        name=NAME,
        json_file=RESULTS_FILE,
        title=f"{wording.count(len(compared), 'comparison')} of {wording.count(len(merged.machines), 'machine')}",
        overline="Comparison of frameworks",
        facts=[
            *([merged.work] if merged.work else []),
            *(f"{machine.name}: {', '.join(f'{folder}' for folder, _ in machine.folders)}" for machine in merged.machines),
        ],
        marks=[
            Mark("Machines", str(len(merged.machines)), "good" if len(merged.machines) >= LEAST_MACHINES else "warn"),
            Mark("Questions", str(len(merged.questions))),
        ],
        findings=[
            ("Who is faster?", [sentence for question in merged.questions for sentence in _sentences(question)]),
            ("How sure is that?", _surety(merged)),
            ("Cautions", [*merged.left_out, *_cautions(merged.machines), *unsigned]),
        ],
        tables=[_machines_table(merged.machines), _answers_table(merged.questions), _overall_table(merged.questions)],
        drawings={"machines": lambda figure: _draw(figure, merged.questions)},
        commands=[
            (
                "The report on all of them:",
                f"{document.COMPARE} {wording.shell(['merge', *map(str, folders), *(['--out', str(out)] if out else [])])}",
            )
        ],
        values={
            "kind": KIND,
            "folders": list(map(str, folders)),
            "work": merged.work,
            "questions": list(map(_to_dict, merged.questions)),
        },
        exit_code=exits.RUN_FAILED if unsigned else 0,
        failures=unsigned,
        screen=screen(merged, unsigned),
    )


def screen(merged: MergedComparisons, unsigned: Sequence[str]) -> Screen:
    """Build the first screen: who is faster on how many machines, question by question."""
    machines, folders = len(merged.machines), sum(len(machine.folders) for machine in merged.machines)
    few = f"No average: it needs {LEAST_MACHINES} machines, with at least {VERDICT_PAIRS} repeats each."
    number = len(_cautions(merged.machines))
    trouble = [*merged.left_out, *unsigned]
    columns = [Column("question", "question"), Column("answer", "faster")]
    if any(question.judged for question in merged.questions):
        columns.append(Column("average", "on average"))
    rows: list[dict[str, Cell]] = [
        {"question": question.subject.name, "answer": _answer_text(question), "average": _average_text(question)}
        for question in merged.questions
    ]
    return Screen(
        subject=[
            f"Who is faster on which machine? {merged.work}".strip(),
            f"{wording.count(folders, 'comparison')} of {wording.count(machines, 'machine')}",
        ],
        answers=[Paragraph("Trouble", trouble, "bad")] if trouble else [],
        table=Table("questions", "Who is faster?", tuple(columns), rows),
        remarks=[
            *([few] if not any(question.judged for question in merged.questions) else []),
            *caution_count(number),
        ],
    )


def _average_text(question: Question) -> str | None:
    """Return the average over machines, with its verdict. None: there is no average."""
    if question.overall is None or question.judged is None:
        return None
    above, below, ratio = question.subject.above, question.subject.below, question.overall.ratio
    if question.judged.verdict == "below":
        return f"{below} {interval_words(inverse(ratio))} times as fast"
    times = f"{above} {interval_words(ratio)} times as fast"
    return (
        times
        if question.judged.verdict == "above"
        else f"{verdict_text(question.judged, when_above='', when_below='', when_neither='not decided')}: {times}"
    )


def _answer_text(question: Question) -> str:
    """Return who is faster on how many machines."""
    subject, answers = question.subject, question.answers
    texts: list[str] = []
    for verdict, name, is_inverted in (("above", subject.above, False), ("below", subject.below, True)):
        winners = [answer for answer in answers if answer.seconds.verdict == verdict]
        if winners:
            times = sorted(
                1.0 / answer.seconds.ratio.value if is_inverted else answer.seconds.ratio.value for answer in winners
            )
            factors = " to ".join(dict.fromkeys(f"{factor:.2f}" for factor in (times[0], times[-1])))
            texts.append(f"{name} is {factors} times as fast on {_machine_list(winners, answers)}")
    for verdict, words in (
        ("no difference shown", "no difference is shown"),
        ("too few repeats to tell", "too few repeats to tell"),
    ):
        if others := [answer for answer in answers if answer.seconds.verdict == verdict]:
            texts.append(f"{words} on {_machine_list(others, answers)}")
    return "; ".join(texts)


def _sentences(question: Question) -> list[str]:
    subject = question.subject
    sentences = [f"{subject.name}: {_answer_text(question)}."]
    if question.overall is None or question.judged is None:
        return sentences
    ratio, spread, (low, high) = question.overall
    above, below = (f"{name} is faster" for name in (subject.above, subject.below))
    verdict = verdict_text(question.judged, when_above=above, when_below=below, when_neither="not decided")
    family = f" among {question.judged.family}" if question.judged.family > 1 else ""
    assert question.judged.p is not None
    return [
        *sentences,
        f"On average over {ratio.n} machines: {verdict}. {subject.above} is {interval_words(ratio)} times as fast as "
        f"{subject.below} (p {p_words(question.judged.p)}{family}). The machines differ by {wording.percent(spread)} (standard "
        f"deviation). In about {wording.percent(CONFIDENCE)} of cases one more machine like these shows {low:.2f} to "
        f"{high:.2f}.",
    ]


def _machine_list(subset: Sequence[MachineAnswer], all_answers: Sequence[MachineAnswer]) -> str:
    """Return e.g. `3 of 4 machines (M1, M2, M4)`."""
    if len(subset) == len(all_answers):
        return f"all {len(subset)} machines"
    return f"{len(subset)} of {len(all_answers)} machines ({', '.join(answer.machine.name for answer in subset)})"


def _surety(merged: MergedComparisons) -> list[str]:
    words = family_words([answer.seconds for question in merged.questions for answer in question.answers])
    machine_counts = [question.overall.ratio.n for question in merged.questions if question.overall]
    sentences = [f"Each machine's own answer: {words}"] if words else []
    if machine_counts:
        sentences.append(
            "In an average each machine is one case, whatever its number of repeats (t-test on the machines' logarithms). They "
            "are Holm-corrected among each other, and not for looking again with each machine that is added."
        )
        sentences.append("Nobody drew these machines at random. What they say of another one holds as far as it is like them.")
    if len(machine_counts) < len(merged.questions):
        sentences.append(
            f"An average over machines needs {LEAST_MACHINES} of them, with at least {VERDICT_PAIRS} repeats each. Where there "
            "are fewer, none is given."
        )
    return sentences


def _cautions(machines: Sequence[MeasuredMachine]) -> list[str]:
    packages: dict[str, dict[str, list[str]]] = {}
    sentences: list[str] = []
    for machine in machines:
        for folder, compared in machine.folders:
            sentences += [f"{machine.name}, {folder}: {trouble}" for trouble in compared.in_words(compared.findings.troubles)]
            for versions in compared.stored.comparison.versions.values():
                for package, version in versions.items():
                    names = packages.setdefault(package, {}).setdefault(version, [])
                    names += [machine.name] * (machine.name not in names)
        if len(machine.folders) > 1:
            sentences.append(
                f"{machine.name} has {len(machine.folders)} folders. The repeats of all count as its own, as if made in a row."
            )
    differing = [
        f"{package} " + ", ".join(f"{version} ({', '.join(names)})" for version, names in by_version.items())
        for package, by_version in packages.items()
        if len(by_version) > 1
    ]
    return [
        *([f"Versions differ, so the machines differ by them too: {'; '.join(differing)}."] if differing else []),
        *sentences,
    ]


def _machines_table(machines: Sequence[MeasuredMachine]) -> Table:
    def proof(machine: MeasuredMachine) -> str:
        return ", ".join(dict.fromkeys(comparison.stored.comparison.headline for _, comparison in machine.folders))

    def signed(machine: MeasuredMachine) -> str:
        signatures = [comparison.stored.signature for _, comparison in machine.folders]
        return ", ".join(dict.fromkeys("no" if signature is None else signature.sentence for signature in signatures))

    columns = (
        Column("name", "machine"),
        Column("processor", "processor", pick=lambda machine: cpu_name(machine.facts), fold=30),
        Column("cores", "cores", pick="facts.cores"),
        Column("memory", "memory MiB", pick="facts.memory_mib"),
        Column("system", "system", pick="facts.system", wide=True),
        Column("made", "what", pick=lambda machine: facts(machine.folders[0][1])[0], fold=40, wide=True),
        Column("proof", "same training", pick=proof),
        Column("signed", "signed", pick=signed, fold=24, wide=True),
    )
    return Table.from_items("machines", "Machines", columns, machines)


def _answers_table(questions: Sequence[Question]) -> Table:
    lines = [(question.subject, answer) for question in questions for answer in question.answers]

    def verdict(line: Any) -> str:
        subject, answer = line
        return verdict_text(
            answer.seconds, when_above=subject.above, when_below=subject.below, when_neither="no difference shown"
        )

    columns = (
        Column("question", "question", pick=lambda line: line[0].name, fold=36),
        Column("machine", "machine", pick="1.machine.name"),
        Column("cores", "cores", pick="1.cores"),
        Column("repeats", "repeats", pick="1.seconds.ratio.n"),
        Column("times", "times as fast", 2, interval=True, pick="1.seconds.ratio"),
        Column("faster", "faster", pick=verdict, fold=24),
        Column("p", "p", 4, least=True, pick="1.seconds.p", wide=True),
        Column("proved", "same training", pick="1.proved", wide=True),
    )
    note = (
        "Times as fast: the first of the question against the second, by seconds per epoch (95 % interval). p: corrected for "
        "all lines of this table together (Holm)."
    )
    return Table.from_items("answers", "By machine", columns, lines, note)


def _overall_table(questions: Sequence[Question]) -> Table:
    columns = (
        Column("question", "question", pick="subject.name", fold=36),
        Column("machines", "machines", pick="overall.ratio.n"),
        Column("times", "times as fast", 2, interval=True, pick="overall.ratio"),
        Column("p", "p", 4, least=True, pick="judged.p"),
        Column("spread", "machines differ by", 3, pick="overall.spread"),
        Column("low", "one more, from", 2, pick="overall.further.0"),
        Column("high", "to", 2, pick="overall.further.1"),
    )
    note = (
        "Machines differ by: standard deviation, without their noise. One more: what a further machine like these shows in "
        "about 95 % of cases."
    )
    return Table.from_items(
        "overall", "Over the machines", columns, [question for question in questions if question.overall], note
    )


def _draw(figure: Figure, questions: Sequence[Question]) -> bool:
    """Draw every machine's ratio with its interval, and the average below them."""
    axis: Axes = figure.subplots()
    names: list[str] = []
    for question in questions:
        lines = [(answer.machine.name, answer.seconds.ratio, plots.COLOURS[0]) for answer in question.answers]
        if question.overall:
            lines.append(("average", question.overall.ratio, plots.COLOURS[3]))
        for name, ratio, colour in lines:
            words = f"{question.subject.name}: {ratio.value:.3f} times as fast ({name})"
            comparison_plots.draw_ratio(axis, len(names), ratio, name, words, colour)
            names.append(f"{question.subject.above} against {question.subject.below} {question.subject.where}, {name}")
    axis.axvline(1.0, color="black", linewidth=1)
    comparison_plots.name_rows(axis, names)
    axis.set(title="Each machine, and the average (95 % intervals)", xlabel="times as fast, the first against the second")
    return bool(names)


def _to_dict(question: Question) -> dict[str, Any]:
    combined = question.overall
    return {
        "first": question.subject.above,
        "second": question.subject.below,
        "where": question.subject.where,
        "machines": {answer.machine.name: answer.seconds for answer in question.answers},
        "overall": None
        if combined is None
        else {"judged": question.judged, "spread": combined.spread, "one_more": list(combined.further)},
    }
