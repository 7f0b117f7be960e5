"""What a report says, whatever it is written in: sentences, tables, facts of the machine and the commands to repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.artifacts.schema import RunResult
from compare.core import exits, wording
from compare.execution import launch, store
from compare.execution.store import RUNS_FOLDER, SPEC_FILE, Stored
from compare.judgement.findings import Findings, findings
from compare.judgement.summary import FAILURES, Summary, summarize
from compare.reporting import comparison_tables, document, tables

COMPARE = ".venv/bin/python -m compare"


@dataclass(frozen=True)
class Report:
    """A stored comparison, and what was made of it."""

    stored: Stored
    summaries: list[Summary]
    findings: Findings

    @property
    def exit_code(self) -> int:
        """1 where a run failed or is missing, the proof was refuted or the timed runs did not train the same, else 0."""
        proof = self.stored.comparison.proof
        refuted = proof is not None and proof.verdict == "not proved"
        bad = any(summary.status in (*FAILURES, "not run") for summary in self.summaries)
        bad = bad or bool(self.stored.set_aside)
        return exits.RUN_FAILED if bad or refuted or not self.findings.comparable else 0


def read(folder: Path, unsealed: Sequence[tuple[str, RunResult]] = ()) -> Report:
    """Read a results folder and judge it.

    Args:
        folder: of a comparison.
        unsealed: (row id, result) of runs that could leave none there, as on a full disk: their reasons are told.

    Raises:
        FolderError: the folder holds no comparison.
    """
    stored = store.read(folder)
    for row_id, result in unsealed:
        stored.runs[row_id].setdefault(result.repeat, result)
    summaries = summarize(stored)
    return Report(stored, summaries, findings(stored, summaries))


def sections(report: Report) -> list[tuple[str, list[str]]]:
    found = report.findings
    sections = [
        ("Is it the same training?", found.sameness),
        ("Which framework is faster?", found.frameworks),
        ("Which modes pay?", found.modes),
        ("How sure is that?", found.surety),
        ("How accurate, and how soon?", found.scores),
        ("Which modes are not serial's mathematics, and what came of it?", found.departures),
        ("Input or model: what bounds the runs?", found.bounds),
        ("Cautions", found.troubles),
        ("The data", report.stored.comparison.data_notes),
    ]
    return [(title, sentences) for title, sentences in sections if sentences]


def heading(report: Report) -> str:
    comparison = report.stored.comparison
    spec = comparison.rows[0].spec
    count, unit = (spec.epochs, "epoch") if spec.epochs is not None else (spec.steps, "step")
    length = f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    repeats = f"{wording.count(comparison.repeats, 'repeat')}"
    cores = max(row.spec.cores for row in comparison.rows)
    seeds = f"seeds {', '.join(map(str, comparison.seeds))}" if comparison.seeds else f"seed {spec.seed}"
    part = {"training": "", "input": "; the input path alone", "compute": "; the model alone, on one batch"}[spec.part]
    return (
        f"{spec.model} on {comparison.data_name}, {spec.optimizer.name}, global batch {spec.global_batch_size}, {length}, "
        f"{spec.precision}, {seeds}, {repeats}{part}\n"
        f"{document.ground(comparison.machine, comparison.versions, cores=cores)}"
    )


def documents(report: Report) -> list[tables.Table]:
    """Every table that is written, the certificate of the proof among them."""
    comparison = report.stored.comparison
    return [
        *comparison_tables.documents(report.summaries),
        *comparison_tables.class_table(report.summaries, comparison.class_names),
        *(comparison_tables.proof_tables(comparison.proof.model_dump()) if comparison.proof else []),
    ]


def environment(report: Report) -> list[tuple[str, str]]:
    """Facts of the machine, the versions, the data and the code, by name."""
    comparison = report.stored.comparison
    facts: dict[str, Any] = {
        name.replace("_", " ").replace(" mib", " MiB"): value for name, value in comparison.machine.items()
    }
    for framework, packages in comparison.versions.items():
        facts[framework] = ", ".join(f"{package} {version}" for package, version in packages.items())
    facts |= {
        "data": comparison.data_name,
        "classes": len(comparison.class_names) or None,
        "hash of the data": comparison.data_hash,
        "trainable values": f"{comparison.trainable_values:,}" if comparison.trainable_values else None,
        "hash of the code": comparison.code_hash,
        "made at": comparison.created_at,
    }
    return [(name, wording.one_line(_in_words(value))) for name, value in facts.items() if value is not None]


def commands(report: Report, folder: Path) -> list[tuple[str, str]]:
    """What each is for, and the line that does it again."""
    comparison = report.stored.comparison
    commit = comparison.machine.get("commit")
    made: list[tuple[str, str]] = []
    if isinstance(commit, str):
        changed = ", and changes to it that were not committed" if comparison.machine.get("dirty") else ""
        made.append((f"The code that made it{changed}:", shell(["git", "checkout", commit])))
    return [
        *made,
        ("Its environment:", "make setup"),
        ("The comparison:", f"{COMPARE} {shell(comparison.argv)}"),
        ("This report, from the stored results:", f"{COMPARE} {shell(['report', str(folder)])}"),
    ]


def run_commands(report: Report, folder: Path) -> list[str]:
    """One run of each row by itself, with its spec, into a folder of its own."""
    lines: list[str] = []
    for row in report.stored.comparison.rows:
        if row.unavailable is None:
            twin = launch.FRAMEWORKS.get(row.framework, row.framework)
            spec_file = folder / RUNS_FOLDER / f"{row.id}-r0" / SPEC_FILE
            words = [".venv/bin/python", "-m", twin, "run", str(spec_file), "--out", f"again/{row.id}"]
            lines.append(shell(words))
    return lines


def shell(words: Sequence[str]) -> str:
    """A command line of these words; one with letters that do not show, or turn those around them, is written by its bytes."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_by_bytes(word)}'" for word in words)


def _by_bytes(word: str) -> str:
    kept = (letter if letter.isprintable() and letter not in "'\\" else None for letter in word)
    return "".join(
        letter or "".join(f"\\x{byte:02x}" for byte in hidden.encode("utf-8", "surrogateescape"))
        for letter, hidden in zip(kept, word, strict=True)
    )


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return json.dumps(value) if isinstance(value, Mapping | list) else str(value)
