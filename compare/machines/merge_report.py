"""The report on several machines: who is faster on how many of them, and by how much on average."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compare.core import exits, wording
from compare.core.statistics import CONFIDENCE, VERDICT_PAIRS, inverse
from compare.core.verdict_words import family_words, interval_words, p_words, verdict_text
from compare.judgement import cautions
from compare.machines.gathered import Answer as OfMachine
from compare.machines.gathered import Gathered, Machine, Question
from compare.machines.random_effects import LEAST_MACHINES
from compare.reporting import comparison_plots, document, plots
from compare.reporting.comparison_report import facts
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen, caution_count
from compare.reporting.tables import Cell, Column, Table

KIND, NAME, RESULTS_FILE = "merge", "merged", "merged.json"


def report(found: Gathered, out: Path | None) -> Report:
    """The report of what was gathered.

    Args:
        out: where it is to be written. None: nowhere.
    """
    folders = [folder for machine in found.machines for folder, _ in machine.folders]
    compared = [each for machine in found.machines for _, each in machine.folders]
    unsigned = cautions.unconfirmed_signatures((folder, each.stored) for machine in found.machines for folder, each in machine.folders)
    return Report(
        name=NAME,
        json_file=RESULTS_FILE,
        title=f"{wording.count(len(compared), 'comparison')} of {wording.count(len(found.machines), 'machine')}",
        overline="Comparison of frameworks",
        facts=[
            *([found.work] if found.work else []),
            *(f"{machine.name}: {', '.join(f'{folder}' for folder, _ in machine.folders)}" for machine in found.machines),
        ],
        marks=[
            Mark("Machines", str(len(found.machines)), "good" if len(found.machines) >= LEAST_MACHINES else "warn"),
            Mark("Questions", str(len(found.questions))),
        ],
        findings=[
            ("Who is faster?", [sentence for question in found.questions for sentence in _sentences(question)]),
            ("How sure is that?", _surety(found)),
            ("Cautions", [*found.left_out, *_cautions(found.machines), *unsigned]),
        ],
        tables=[_machines_table(found.machines), _answers_table(found.questions), _overall_table(found.questions)],
        drawings={"machines": lambda figure: _draw(figure, found.questions)},
        commands=[
            (
                "The report on all of them:",
                f"{document.COMPARE} {wording.shell(['merge', *map(str, folders), *(['--out', str(out)] if out else [])])}",
            )
        ],
        values={
            "kind": KIND,
            "folders": list(map(str, folders)),
            "work": found.work,
            "questions": list(map(_plain, found.questions)),
        },
        exit_code=exits.RUN_FAILED if unsigned else 0,
        failures=unsigned,
        screen=screen(found, unsigned),
    )


def screen(found: Gathered, unsigned: Sequence[str]) -> Screen:
    """Who is faster on how many machines, question by question."""
    machines, folders = len(found.machines), sum(len(machine.folders) for machine in found.machines)
    few = f"No average: it needs {LEAST_MACHINES} machines, with at least {VERDICT_PAIRS} repeats each."
    number = len(_cautions(found.machines))
    trouble = [*found.left_out, *unsigned]
    columns = [Column("question", "question"), Column("answer", "faster")]
    if any(question.judged for question in found.questions):
        columns.append(Column("average", "on average"))
    rows: list[dict[str, Cell]] = [
        {"question": each.subject.name, "answer": _told(each), "average": _average(each)} for each in found.questions
    ]
    return Screen(
        subject=[
            f"Who is faster on which machine? {found.work}".strip(),
            f"{wording.count(folders, 'comparison')} of {wording.count(machines, 'machine')}",
        ],
        answers=[Paragraph("Trouble", trouble, "bad")] if trouble else [],
        table=Table("questions", "Who is faster?", tuple(columns), rows),
        remarks=[
            *([few] if not any(question.judged for question in found.questions) else []),
            *caution_count(number),
        ],
    )


def _average(question: Question) -> str | None:
    """The average over machines, with its verdict."""
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


def _told(question: Question) -> str:
    """Who is faster on how many machines."""
    subject, answers = question.subject, question.answers
    said: list[str] = []
    for verdict, name, turned in (("above", subject.above, False), ("below", subject.below, True)):
        won = [each for each in answers if each.seconds.verdict == verdict]
        if won:
            times = sorted(1.0 / each.seconds.ratio.value if turned else each.seconds.ratio.value for each in won)
            by = " to ".join(dict.fromkeys(f"{each:.2f}" for each in (times[0], times[-1])))
            said.append(f"{name} is {by} times as fast on {_of(won, answers)}")
    for verdict, words in (
        ("no difference shown", "no difference is shown"),
        ("too few repeats to tell", "too few repeats to tell"),
    ):
        if some := [each for each in answers if each.seconds.verdict == verdict]:
            said.append(f"{words} on {_of(some, answers)}")
    return "; ".join(said)


def _sentences(question: Question) -> list[str]:
    subject = question.subject
    told = [f"{subject.name}: {_told(question)}."]
    if question.overall is None or question.judged is None:
        return told
    ratio, spread, (low, high) = question.overall
    above, below = (f"{name} is faster" for name in (subject.above, subject.below))
    verdict = verdict_text(question.judged, when_above=above, when_below=below, when_neither="not decided")
    among = f" among {question.judged.family}" if question.judged.family > 1 else ""
    assert question.judged.p is not None
    return [
        *told,
        f"On average over {ratio.n} machines: {verdict}. {subject.above} is {interval_words(ratio)} times as fast as "
        f"{subject.below} (p {p_words(question.judged.p)}{among}). The machines differ by {wording.percent(spread)} (standard "
        f"deviation). In about {wording.percent(CONFIDENCE)} of cases one more machine like these shows {low:.2f} to "
        f"{high:.2f}.",
    ]


def _of(some: Sequence[OfMachine], all_of_them: Sequence[OfMachine]) -> str:
    """`3 of 4 machines (M1, M2, M4)`."""
    if len(some) == len(all_of_them):
        return f"all {len(some)} machines"
    return f"{len(some)} of {len(all_of_them)} machines ({', '.join(each.machine.name for each in some)})"


def _surety(found: Gathered) -> list[str]:
    words = family_words([answer.seconds for question in found.questions for answer in question.answers])
    counted = [question.overall.ratio.n for question in found.questions if question.overall]
    said = [f"Each machine's own answer: {words}"] if words else []
    if counted:
        said.append(
            "In an average each machine is one case, whatever its number of repeats (t-test on the machines' logarithms). They "
            "are Holm-corrected among each other, and not for looking again with each machine that is added."
        )
        said.append("Nobody drew these machines at random. What they say of another one holds as far as it is like them.")
    if len(counted) < len(found.questions):
        said.append(
            f"An average over machines needs {LEAST_MACHINES} of them, with at least {VERDICT_PAIRS} repeats each. Where there "
            "are fewer, none is given."
        )
    return said


def _cautions(machines: Sequence[Machine]) -> list[str]:
    packages: dict[str, dict[str, list[str]]] = {}
    said: list[str] = []
    for machine in machines:
        for folder, compared in machine.folders:
            said += [f"{machine.name}, {folder}: {each}" for each in compared.findings.troubles]
            for versions in compared.stored.comparison.versions.values():
                for package, version in versions.items():
                    names = packages.setdefault(package, {}).setdefault(version, [])
                    names += [machine.name] * (machine.name not in names)
        if len(machine.folders) > 1:
            said.append(
                f"{machine.name} has {len(machine.folders)} folders. The repeats of all count as its own, as if made in a row."
            )
    differing = [
        f"{package} " + ", ".join(f"{version} ({', '.join(names)})" for version, names in of.items())
        for package, of in packages.items()
        if len(of) > 1
    ]
    return [*([f"Versions differ, so the machines differ by them too: {'; '.join(differing)}."] if differing else []), *said]


def _machines_table(machines: Sequence[Machine]) -> Table:
    def proof(machine: Machine) -> str:
        return ", ".join(dict.fromkeys(each.stored.comparison.headline for _, each in machine.folders))

    def signed(machine: Machine) -> str:
        signatures = [each.stored.signature for _, each in machine.folders]
        return ", ".join(dict.fromkeys("no" if each is None else each.sentence for each in signatures))

    columns = (
        Column("name", "machine"),
        Column("processor", "processor", pick="facts.processor", fold=30),
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
        return verdict_text(answer.seconds, when_above=subject.above, when_below=subject.below, when_neither="no difference shown")

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
    return Table.from_items("overall", "Over the machines", columns, [each for each in questions if each.overall], note)


def _draw(figure: Figure, questions: Sequence[Question]) -> bool:
    """Every machine's ratio with its interval, and the average below them."""
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


def _plain(question: Question) -> dict[str, Any]:
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
