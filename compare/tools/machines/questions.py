"""Comparisons of several machines, and the questions that they answer together."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from common.machine import machine
from common.spec import EFFECTS
from compare.cli.errors import FolderError
from compare.cli.wording import count
from compare.judgement.row_figures import Summary
from compare.judgement.run_pairs import pairs_of_seconds, serial_row_of, uses_accelerator
from compare.judgement.summary import family
from compare.reporting import comparison_report
from compare.reporting.comparison_report import JudgedComparison
from compare.results import store, workspace
from compare.results.store import StoredComparison
from compare.running.matrix import Row
from compare.statistics.statistics import JudgedRatio, MeanEstimate, Ratio, mean_difference, paired_ratio, verdicts
from compare.tools.machines.random_effects import LEAST_MACHINES, Overall, overall


@dataclass
class MeasuredMachine:
    """One machine and the folders that were made on it."""

    name: str
    """Name of the machine: `M1` and so on, in the order of the folders."""
    facts: dict[str, Any]
    folders: list[tuple[Path, JudgedComparison]] = field(default_factory=list[tuple[Path, JudgedComparison]])

    def matches(self, facts: dict[str, Any]) -> bool:
        """Return whether these facts are of this machine: the host is known, and no fact of any of its folders differs."""
        known_facts = [comparison.stored.comparison.machine for _, comparison in self.folders]
        return facts.get("host") is not None and not any(
            known.get("host") is None or machine.differences(known, facts) for known in known_facts
        )


class QuestionSubject(NamedTuple):
    """The subject of a question to every machine. Two machines with the same subject did the same work."""

    above: str
    """The side that is faster if a ratio is above one."""
    below: str
    where: str
    """Mode and cores: `serial on all cores`, `data_parallel x2`."""
    work: str
    """JSON of every relevant field of both rows' specs, and of the data."""
    label: str
    """The work in words: `simple_cnn on digits, batch 64, float32`. Empty if all questions have the same work."""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [f"{self.above} against {self.below}", self.where, self.label]))


class MachineAnswer(NamedTuple):
    """One machine's answer."""

    machine: MeasuredMachine
    seconds: JudgedRatio
    """Seconds of `below` over those of `above`, judged with every answer of every machine."""
    estimate: MeanEstimate
    """Estimate of the logarithm of the ratio."""
    cores: int
    proved: str


class Question(NamedTuple):
    """A subject with the answers of at least two machines."""

    subject: QuestionSubject
    answers: list[MachineAnswer]
    overall: Overall | None
    """Average over machines. None: fewer than LEAST_MACHINES have enough repeats for a verdict."""
    judged: JudgedRatio | None
    """Verdict on the average, judged with all questions."""


class MergedComparisons(NamedTuple):
    machines: list[MeasuredMachine]
    work: str
    """The work of all questions, in words. Empty: it differs, and each question names its own."""
    questions: list[Question]
    left_out: list[str]
    """Sentences: what was left out, and why."""


@dataclass
class _MachinePairs:
    """The pairs of runs of one machine and subject."""

    seconds: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """(seconds of `below`, seconds of `above`) of each pair."""
    cores: int = 0
    proved: set[str] = field(default_factory=set[str])


def read_machines(folders: Sequence[Path], signers: Path | None = None) -> list[MeasuredMachine]:
    """Read comparisons and group them by machine."""
    if len(folders) < 2:
        raise FolderError(f"Several folders are needed. Received: {', '.join(map(str, folders))}. Name two or more.")
    refuse_duplicates(folders)
    machines: list[MeasuredMachine] = []
    folder_of_digest: dict[str, Path] = {}
    for folder in folders:
        workspace.refuse_growing(folder)
        compared = comparison_report.read(folder, signers=signers)
        for path, digest in compared.stored.made_from.items():
            if path != store.PLAN_FILE and (earlier := folder_of_digest.setdefault(digest, folder)) != folder:
                raise FolderError(f"{earlier} and {folder} hold the same run ({path}). Received: both. Leave one out.")
        facts = compared.stored.comparison.machine
        known_machine = next((measured_machine for measured_machine in machines if measured_machine.matches(facts)), None)
        if known_machine is None:
            machines.append(known_machine := MeasuredMachine(f"M{len(machines) + 1}", facts))
        known_machine.folders.append((folder, compared))
    return machines


def refuse_duplicates(folders: Sequence[Path]) -> None:
    """Refuse a folder that is named twice, also by different paths."""
    resolved = [folder.resolve() for folder in folders]
    if duplicate := next((folder for folder in folders if resolved.count(folder.resolve()) > 1), None):
        raise FolderError(f"A folder is named twice. Received: {duplicate}. Name it once.")


def merge(machines: list[MeasuredMachine]) -> MergedComparisons:
    """Find the questions that at least two machines answer, and judge them."""
    pairs_by_subject: dict[QuestionSubject, dict[str, _MachinePairs]] = defaultdict(dict)
    left_out: list[str] = []
    for measured in machines:
        for folder, compared in measured.folders:
            proof = compared.stored.comparison.proof
            if not compared.findings.comparable or (proof is not None and proof.verdict == "not proved"):
                left_out.append(f"{folder} ({measured.name}): it is not shown that its runs trained the same.")
                continue
            for subject, slow, fast in _subjects(compared):
                ids = {slow.id, fast.id}
                if doubtful := [summary.id for summary in compared.summaries if summary.id in ids and summary.in_doubt]:
                    left_out.append(f"{folder} ({measured.name}), {subject.name}: times in doubt of {', '.join(doubtful)}.")
                    continue
                pairs = pairs_by_subject[subject].setdefault(measured.name, _MachinePairs(cores=fast.spec.cores))
                if pairs.cores != fast.spec.cores:
                    cores = f"{fast.spec.cores} cores, and an earlier folder of {measured.name} {pairs.cores}"
                    left_out.append(f"{folder} ({measured.name}), {subject.name}: it has {cores}.")
                    continue
                pairs.seconds += _pairs(compared.stored, slow, fast)
                pairs.proved |= {summary.parity for summary in compared.summaries if summary.id in ids}
    shared = {
        subject: by_machine
        for subject, by_machine in pairs_by_subject.items()
        if sum(bool(pairs.seconds) for pairs in by_machine.values()) > 1
    }
    if not shared:
        also = f" {' '.join(left_out)}" if left_out else ""
        raise FolderError(
            f"No question has answers of two machines. Received: {count(len(machines), 'measured')}, which answer: "
            f"{'; '.join(subject.name for subject in pairs_by_subject) or 'none'}.{also} Name comparisons "
            "of the same model, data and settings."
        )
    single_machine_subjects: dict[str, list[str]] = defaultdict(list)
    for subject in pairs_by_subject.keys() - shared.keys():
        single_machine_subjects[", ".join(pairs_by_subject[subject])].append(subject.name)
    left_out += [
        f"{name} alone answers: {'; '.join(sorted(names))}." for name, names in sorted(single_machine_subjects.items())
    ]
    works = {subject.label for subject in shared}
    labelled = {subject: subject._replace(label="") for subject in shared}
    is_one = len(works) == 1 and len({subject.name for subject in labelled.values()}) == len(shared)
    work = works.pop() if is_one else ""
    labelled = labelled if is_one else _add_differences(list(shared))
    return MergedComparisons(
        machines,
        work,
        _judge_questions(machines, {labelled[subject]: by_machine for subject, by_machine in shared.items()}),
        left_out,
    )


def _add_differences(subjects: Sequence[QuestionSubject]) -> dict[QuestionSubject, QuestionSubject]:
    """Add to the labels of subjects with the same name the fields where they differ."""
    labelled: dict[QuestionSubject, QuestionSubject] = {}
    for subject in subjects:
        works = [json.loads(other.work) for other in subjects if other.name == subject.name]
        (data, _, *rows) = json.loads(subject.work)
        names = [name for name in rows[0] if len({json.dumps(work[2].get(name)) for work in works}) > 1]
        differences = [f"{name} {json.dumps(rows[0][name])}" for name in names]
        differences += [f"data {data[:8]}"] if len({work[0] for work in works}) > 1 else []
        labelled[subject] = subject._replace(label=", ".join([subject.label, *differences]))
    return labelled


def _judge_questions(
    machines: Sequence[MeasuredMachine], pairs_by_subject: dict[QuestionSubject, dict[str, _MachinePairs]]
) -> list[Question]:
    machine_by_name = {machine.name: machine for machine in machines}
    answered_questions = [
        (subject, name, pairs)
        for subject, by_machine in pairs_by_subject.items()
        for name, pairs in by_machine.items()
        if pairs.seconds
    ]
    verdict_list = verdicts([(f"{name}: {subject.name}", _ratio(pairs.seconds)) for subject, name, pairs in answered_questions])
    answers: dict[QuestionSubject, list[MachineAnswer]] = defaultdict(list)
    for (subject, name, pairs), verdict in zip(answered_questions, verdict_list, strict=True):
        proved = ", ".join(sorted(pairs.proved))
        estimate = mean_difference([math.log(slow / fast) for slow, fast in pairs.seconds])
        answers[subject].append(MachineAnswer(machine_by_name[name], verdict, estimate, pairs.cores, proved))
    combined = {
        subject: overall(estimates)
        for subject, machine_answers in answers.items()
        if len(estimates := [answer.estimate for answer in machine_answers if answer.seconds.ratio.has_enough_pairs])
        >= LEAST_MACHINES
    }
    overall_verdicts = dict(
        zip(combined, verdicts([(subject.name, combination.ratio) for subject, combination in combined.items()]), strict=True)
    )
    return [
        Question(subject, machine_answers, combined.get(subject), overall_verdicts.get(subject))
        for subject, machine_answers in answers.items()
    ]


def _ratio(seconds: Sequence[tuple[float, float]]) -> Ratio:
    ratio = paired_ratio(seconds)
    assert ratio is not None
    return ratio


def _pairs(stored: StoredComparison, slow: Row, fast: Row) -> list[tuple[float, float]]:
    return [pair for pair in pairs_of_seconds(stored, slow, fast).values() if min(pair) > 0.0]


def _subjects(compared: JudgedComparison) -> list[tuple[QuestionSubject, Row, Row]]:
    """Return (subject, row in the numerator, row in the denominator) of all questions of a comparison."""
    stored = compared.stored
    rows = {row.id: row for row in stored.comparison.rows}
    budget = max(row.spec.cores for row in stored.comparison.rows)
    questions = family(stored, compared.summaries)
    summaries = {summary.id: summary for summary in compared.summaries}
    subjects: list[tuple[QuestionSubject, Row, Row]] = []
    for one, other, _ in questions.contestants:
        first, second = sorted((one, other), key=lambda summary: summary.contestant)  # in the order of every other folder
        fast, slow = rows[first.id], rows[second.id]
        subject = QuestionSubject(
            fast.contestant, slow.contestant, _where(first, budget), *_work(stored, (first, second), rows)
        )
        subjects.append((subject, slow, fast))
    for row_id in questions.modes:
        row = rows[row_id]
        if (serial := serial_row_of(stored.comparison, row)) is not None:
            both = summaries[row.id], summaries[serial.id]
            mode = f"{row.contestant} {_where(both[0], budget)}"
            work = _work(stored, both, rows)
            subjects.append((QuestionSubject(mode, "serial on as many cores", "", *work), serial, row))
    return subjects


def _where(summary: Summary, budget: int) -> str:
    if summary.is_parallel:
        return f"{summary.mode} x{summary.replicas}"
    cores = "1 core" if summary.cores == 1 else "all cores" if summary.cores == budget else count(summary.cores, "core")
    return f"serial on {cores}"


def _work(stored: StoredComparison, both: tuple[Summary, Summary], rows: dict[str, Row]) -> tuple[str, str]:
    """Return (JSON of the relevant fields of two rows' work, label of the work)."""
    row_fields: list[dict[str, Any]] = []
    for summary in both:
        row = rows[summary.id]
        switch_prefixes = ("framework_options.",) if row.spec.switches == "best" else ()  # each machine has its best
        spec_fields = store.flatten(row.spec.model_dump(mode="json"))
        fields = {
            name: value
            for name, value in EFFECTS.relevant(spec_fields, "epoch_elsewhere", same_data=True).items()
            if not name.startswith(switch_prefixes)
        }
        row_fields.append({**fields, "framework": row.framework, "accelerated": uses_accelerator(summary.device)})
    spec = rows[both[0].id].spec
    switches = "" if spec.switches == "usual" else f", switches {spec.switches}"
    label = f"{spec.model_label} on {stored.comparison.data_name}, batch {spec.global_batch_size}, {spec.precision}{switches}"
    work = [stored.comparison.data_hash, stored.comparison.trainable_values, *row_fields]
    return json.dumps(work, sort_keys=True), label
