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
from compare.core.errors import FolderError
from compare.core.statistics import MeanEstimate, JudgedRatio, Ratio, mean_difference, paired_ratio, verdicts
from compare.core.wording import count
from compare.execution import store
from compare.execution.matrix import Row
from compare.execution.store import StoredComparison
from compare.judgement.measurements import FIELDS_WITHOUT_EFFECT_ON_WORK, is_in_data_hash
from compare.judgement.row_figures import Summary
from compare.judgement.summary import uses_accelerator, family, pairs_of_seconds, serial_row_of
from compare.machines.random_effects import LEAST_MACHINES, Overall, overall
from compare.reporting import comparison_report
from compare.reporting.comparison_report import JudgedComparison

_OF_THE_MACHINE = (*FIELDS_WITHOUT_EFFECT_ON_WORK, "cores", "hosts", "epochs", "steps", "seed", "checkpoint_seconds")
"""Fields of a spec that may differ between machines: none of them changes what an epoch computes."""


@dataclass
class Machine:
    """One machine and the folders that were made on it."""

    name: str
    """`M1`, in the order of the folders."""
    facts: dict[str, Any]
    folders: list[tuple[Path, JudgedComparison]] = field(default_factory=list[tuple[Path, JudgedComparison]])

    def has(self, facts: dict[str, Any]) -> bool:
        """Whether it is the machine of these facts: the host is known, and no fact of any of its folders differs."""
        own = [each.stored.comparison.machine for _, each in self.folders]
        return facts.get("host") is not None and not any(
            each.get("host") is None or machine.differences(each, facts) for each in own
        )


class Subject(NamedTuple):
    """What is asked of every machine. Two machines with the same subject did the same work."""

    above: str
    """Who is faster where a ratio is above one."""
    below: str
    where: str
    """`serial on all cores`, `data_parallel x2`."""
    work: str
    """Every field of both rows' specs that counts, and the data."""
    shown: str
    """The work for a reader: `simple_cnn on digits, batch 64, float32`. Empty where all questions are of one."""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [f"{self.above} against {self.below}", self.where, self.shown]))


class Answer(NamedTuple):
    """One machine's answer."""

    machine: Machine
    seconds: JudgedRatio
    """Seconds of `below` over those of `above`, judged with every answer of every machine."""
    estimate: MeanEstimate
    """Of its logarithm."""
    cores: int
    proved: str


class Question(NamedTuple):
    """A subject with the answers of at least two machines."""

    subject: Subject
    answers: list[Answer]
    overall: Overall | None
    """None: fewer than LEAST_MACHINES have enough repeats for a verdict."""
    judged: JudgedRatio | None
    """Its ratio, judged with those of all questions."""


class Gathered(NamedTuple):
    machines: list[Machine]
    work: str
    """Of all questions, for a reader. Empty: they differ, and each names its own."""
    questions: list[Question]
    left_out: list[str]
    """Sentences: what was given and does not count, and why."""


@dataclass
class _Pairs:
    """Of one machine and subject."""

    seconds: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Those of `below`, and of `above`."""
    cores: int = 0
    proved: set[str] = field(default_factory=set[str])


def read(folders: Sequence[Path], signers: Path | None = None) -> list[Machine]:
    """Read comparisons and tell the machines apart.

    Raises:
        FolderError: there are fewer than two folders, one holds no comparison or is still written to, or two hold the same run.
    """
    if len(folders) < 2:
        raise FolderError(f"Several folders are needed. Received: {', '.join(map(str, folders))}. Name two or more.")
    refuse_twice(folders)
    machines: list[Machine] = []
    seen: dict[str, Path] = {}
    for folder in folders:
        store.refuse_growing(folder)
        compared = comparison_report.read(folder, signers=signers)
        for path, digest in compared.stored.made_from.items():
            if path != store.PLAN_FILE and (before := seen.setdefault(digest, folder)) != folder:
                raise FolderError(f"{before} and {folder} hold the same run ({path}). Received: both. Leave one out.")
        facts = compared.stored.comparison.machine
        same = next((each for each in machines if each.has(facts)), None)
        if same is None:
            machines.append(same := Machine(f"M{len(machines) + 1}", facts))
        same.folders.append((folder, compared))
    return machines


def refuse_twice(folders: Sequence[Path]) -> None:
    """Refuse a folder that is named twice, in whatever words.

    Raises:
        FolderError: one is.
    """
    resolved = [each.resolve() for each in folders]
    if twice := next((each for each in folders if resolved.count(each.resolve()) > 1), None):
        raise FolderError(f"A folder is named twice. Received: {twice}. Name it once.")


def gather(machines: list[Machine]) -> Gathered:
    """Find the questions that at least two machines answer, and judge them.

    Raises:
        FolderError: there is none.
    """
    found: dict[Subject, dict[str, _Pairs]] = defaultdict(dict)
    left_out: list[str] = []
    for each in machines:
        for folder, compared in each.folders:
            proof = compared.stored.comparison.proof
            if not compared.findings.comparable or (proof is not None and proof.verdict == "not proved"):
                left_out.append(f"{folder} ({each.name}): it is not shown that its runs trained the same.")
                continue
            for subject, slow, fast in _subjects(compared):
                ids = {slow.id, fast.id}
                if doubtful := [summary.id for summary in compared.summaries if summary.id in ids and summary.in_doubt]:
                    left_out.append(f"{folder} ({each.name}), {subject.name}: times in doubt of {', '.join(doubtful)}.")
                    continue
                pairs = found[subject].setdefault(each.name, _Pairs(cores=fast.spec.cores))
                if pairs.cores != fast.spec.cores:
                    cores = f"{fast.spec.cores} cores, and an earlier folder of {each.name} {pairs.cores}"
                    left_out.append(f"{folder} ({each.name}), {subject.name}: it has {cores}.")
                    continue
                pairs.seconds += _pairs(compared.stored, slow, fast)
                pairs.proved |= {summary.parity for summary in compared.summaries if summary.id in ids}
    shared = {subject: of for subject, of in found.items() if sum(bool(each.seconds) for each in of.values()) > 1}
    if not shared:
        also = f" {' '.join(left_out)}" if left_out else ""
        raise FolderError(
            f"No question has answers of two machines. Received: {count(len(machines), 'machine')}, which answer: "
            f"{'; '.join(subject.name for subject in found) or 'none'}.{also} Name comparisons of the same model, data and "
            "settings."
        )
    alone: dict[str, list[str]] = defaultdict(list)
    for subject in found.keys() - shared.keys():
        alone[", ".join(found[subject])].append(subject.name)
    left_out += [f"{name} alone answers: {'; '.join(sorted(names))}." for name, names in sorted(alone.items())]
    works = {subject.shown for subject in shared}
    told = {subject: subject._replace(shown="") for subject in shared}
    is_one = len(works) == 1 and len({each.name for each in told.values()}) == len(shared)
    work = works.pop() if is_one else ""
    told = told if is_one else _told_apart(list(shared))
    return Gathered(machines, work, _judged(machines, {told[subject]: of for subject, of in shared.items()}), left_out)


def _told_apart(subjects: Sequence[Subject]) -> dict[Subject, Subject]:
    """Subjects of the same name with what they differ in."""
    told: dict[Subject, Subject] = {}
    for subject in subjects:
        alike = [json.loads(each.work) for each in subjects if each.name == subject.name]
        (data, _, *rows) = json.loads(subject.work)
        names = [name for name in rows[0] if len({json.dumps(each[2].get(name)) for each in alike}) > 1]
        words = [f"{name} {json.dumps(rows[0][name])}" for name in names]
        words += [f"data {data[:8]}"] if len({each[0] for each in alike}) > 1 else []
        told[subject] = subject._replace(shown=", ".join([subject.shown, *words]))
    return told


def _judged(machines: Sequence[Machine], found: dict[Subject, dict[str, _Pairs]]) -> list[Question]:
    named = {each.name: each for each in machines}
    answered = [(subject, name, each) for subject, of in found.items() for name, each in of.items() if each.seconds]
    judged = verdicts([(f"{name}: {subject.name}", _ratio(each.seconds)) for subject, name, each in answered])
    answers: dict[Subject, list[Answer]] = defaultdict(list)
    for (subject, name, each), verdict in zip(answered, judged, strict=True):
        proved = ", ".join(sorted(each.proved))
        estimate = mean_difference([math.log(slow / fast) for slow, fast in each.seconds])
        answers[subject].append(Answer(named[name], verdict, estimate, each.cores, proved))
    combined = {
        subject: overall(enough)
        for subject, each in answers.items()
        if len(enough := [one.estimate for one in each if one.seconds.ratio.has_enough_pairs]) >= LEAST_MACHINES
    }
    over = dict(zip(combined, verdicts([(subject.name, each.ratio) for subject, each in combined.items()]), strict=True))
    return [Question(subject, each, combined.get(subject), over.get(subject)) for subject, each in answers.items()]


def _ratio(seconds: Sequence[tuple[float, float]]) -> Ratio:
    ratio = paired_ratio(seconds)
    assert ratio is not None
    return ratio


def _pairs(stored: StoredComparison, slow: Row, fast: Row) -> list[tuple[float, float]]:
    return [pair for pair in pairs_of_seconds(stored, slow, fast).values() if min(pair) > 0.0]


def _subjects(compared: JudgedComparison) -> list[tuple[Subject, Row, Row]]:
    """(subject, the row whose seconds are divided, the row that they are divided by) of all that a comparison asks."""
    stored = compared.stored
    rows = {row.id: row for row in stored.comparison.rows}
    budget = max(row.spec.cores for row in stored.comparison.rows)
    asked = family(stored, compared.summaries)
    summaries = {summary.id: summary for summary in compared.summaries}
    found: list[tuple[Subject, Row, Row]] = []
    for one, other, _ in asked.contestants:
        first, second = sorted((one, other), key=lambda summary: summary.contestant)  # as every other folder has them
        fast, slow = rows[first.id], rows[second.id]
        subject = Subject(fast.contestant, slow.contestant, _where(first, budget), *_work(stored, (first, second), rows))
        found.append((subject, slow, fast))
    for row_id in asked.modes:
        row = rows[row_id]
        if (serial := serial_row_of(stored.comparison, row)) is not None:
            both = summaries[row.id], summaries[serial.id]
            mode = f"{row.contestant} {_where(both[0], budget)}"
            work = _work(stored, both, rows)
            found.append((Subject(mode, "serial on as many cores", "", *work), serial, row))
    return found


def _where(summary: Summary, budget: int) -> str:
    if summary.mode != "serial":
        return f"{summary.mode} x{summary.replicas}"
    cores = "1 core" if summary.cores == 1 else "all cores" if summary.cores == budget else count(summary.cores, "core")
    return f"serial on {cores}"


def _work(stored: StoredComparison, both: tuple[Summary, Summary], rows: dict[str, Row]) -> tuple[str, str]:
    """(all that counts of two rows' work, the same for a reader)."""
    kept: list[dict[str, Any]] = []
    for summary in both:
        row = rows[summary.id]
        own_switches = ("framework_options.",) if row.spec.switches == "best" else ()  # each machine has its best
        own = {
            name: each
            for name, each in store.flatten(row.spec.model_dump(mode="json")).items()
            if name not in _OF_THE_MACHINE and not name.startswith(own_switches) and not is_in_data_hash(name)
        }
        kept.append({**own, "framework": row.framework, "accelerated": uses_accelerator(summary.device)})
    spec = rows[both[0].id].spec
    switches = "" if spec.switches == "usual" else f", switches {spec.switches}"
    shown = f"{spec.model_label} on {stored.comparison.data_name}, batch {spec.global_batch_size}, {spec.precision}{switches}"
    same = [stored.comparison.data_hash, stored.comparison.trainable_values, *kept]
    return json.dumps(same, sort_keys=True), shown
