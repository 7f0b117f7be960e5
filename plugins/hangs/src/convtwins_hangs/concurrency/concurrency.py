"""`convtwins concurrency`: deadlocks and races of training code, found in its source without running it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from common.artifacts import atomic_files
from common.machine import code_version, machine
from common.spec import SpecError
from compare.cli import commands, exits, wording
from compare.cli.commands import Outcome
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from convtwins_hangs.concurrency import meanings, sarif, sources
from convtwins_hangs.concurrency.findings import ConcurrencyFinding, apply_suppressions
from convtwins_hangs.concurrency.program import Program
from convtwins_hangs.concurrency.search import UNUSUAL, SearchResult, search

NAME = "concurrency"
MAX_LINES = 8
"""Lines of one section of the report on the terminal."""
ASSUMED_SAME_TITLE = "Unknown, and taken to be the same on all ranks"
MAX_NAMED = 3
"""Unknown decisions and unexplored parts named on the first screen. The others are counted."""


@commands.command()
def command(
    target: Annotated[str, typer.Argument(metavar="PATH|MODULE", help="A .py file, a folder of them, or a module.")],
    collective: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A function that all ranks call together, e.g. horovod.torch.allreduce. May be repeated."
        ),
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="YAML file with lists `collectives`, `ranks` and `sizes` of names.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of control-flow graphs to visit from one root.")] = 50_000,
    search_seconds: Annotated[float, typer.Option(min=0.1, help="Time for the whole search.")] = 60.0,
    unusual: Annotated[
        int, typer.Option(min=0, max=5, help="Decisions of one execution that may be unusual, as an exception is.")
    ] = UNUSUAL,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", help="Write the findings as SARIF 2.1.0. Its folder must exist.")
    ] = None,
) -> Outcome:
    """Find deadlocks and races in training code without running it; exit code 6 where there are some."""
    if sarif_file is not None:
        _check_sarif_path(sarif_file)
    known_names = meanings.read_known_names(collective or [], names)
    skipped: list[str] = []
    files = sources.read(target, skipped)
    result = search(Program(files, known_names), nodes=nodes, seconds=search_seconds, unusual=unusual)
    result.unexplored[:0] = skipped
    findings, suppressed = apply_suppressions(result.findings, {file.file: file.comments for file in files})

    def write_sarif(code: int) -> int:
        if sarif_file is not None:
            version = code_version.in_words(code_version.describe(machine.PROJECT_ROOT))
            log = sarif.document(findings, suppressed, version)
            try:
                atomic_files.write_atomically(sarif_file, json.dumps(log, indent=1) + "\n")
            except OSError as error:
                raise SpecError(f"--sarif cannot be written. Received: {sarif_file} ({error.strerror}).") from None
        return code

    return Outcome(report(target, len(files), result, findings, suppressed), finish=write_sarif)


def report(
    target: str,
    files: int,
    result: SearchResult,
    findings: Sequence[ConcurrencyFinding],
    suppressed: Sequence[tuple[ConcurrencyFinding, str]],
) -> Report:
    """Build the report: the findings with the trace of each thread or rank, and the unexplored parts."""
    certain_findings = [finding for finding in findings if finding.condition is None]
    finding_sections = [
        (f"{finding.file}:{finding.line}: {finding.severity} {finding.rule}", [finding.message, *_traces(finding)])
        for finding in findings
    ]
    suppressed_lines = [f"{finding.file}:{finding.line} {finding.rule}, because {reason}" for finding, reason in suppressed]
    unexplored = [f"{reason}." for reason in result.unexplored]
    explored = (
        f"{wording.count(files, 'file')}, {wording.count(result.roots, 'root')}, "
        f"{wording.count(result.executions, 'execution')}, {wording.count(result.nodes, 'node')}"
    )
    assumed_same = [f"{step.file}:{step.line}: {step.says}" for step in sorted(result.assumptions) if result.assumptions[step]]
    nothing = "nothing found in what was explored" if unexplored else "nothing found"
    if not result.roots:
        nothing = "nothing explored: no thread, lock or collective is known here"
    if assumed_same:
        decisions = wording.count(len(assumed_same), "unknown decision")
        nothing += f", if {decisions} {'is' if len(assumed_same) == 1 else 'are'} the same on all ranks"
    tail_sections = (
        ("Suppressed", suppressed_lines),
        (ASSUMED_SAME_TITLE, _first_lines(assumed_same)),
        ("Not explored", _first_lines(unexplored)),
    )
    verdict = wording.count(len(certain_findings), "finding") if certain_findings else nothing
    if len(certain_findings) < len(findings):
        verdict += f", and {wording.count(len(findings) - len(certain_findings), 'conditional warning')}"
    return Report(
        title=f"Deadlocks and races in {target}",
        name=NAME,
        facts=[f"{explored}: {verdict}"],
        marks=[Mark("Findings", str(len(certain_findings)), "bad" if certain_findings else "good")],
        findings=[*finding_sections, *((title, lines) for title, lines in tail_sections if lines)],
        values={
            "findings": [_to_dict(finding) for finding in certain_findings],
            "conditional": [_to_dict(finding) for finding in findings if finding.condition is not None],
            "suppressed": [{**_to_dict(finding), "reason": reason} for finding, reason in suppressed],
            "taken_alike": assumed_same,
            "not_explored": result.unexplored,
            "explored": {"files": files, "roots": result.roots, "executions": result.executions, "nodes": result.nodes},
        },
        exit_code=exits.FINDINGS if certain_findings else exits.UNKNOWN if unexplored and not result.roots else 0,
        screen=Screen(
            subject=[f"Deadlocks and races in {target}?", explored],
            answers=[
                Paragraph(
                    "Found" if certain_findings else "No finding" if result.roots else "Unknown",
                    [verdict, *map(_summary_line, certain_findings)],
                    "bad" if certain_findings else "good" if result.roots else "warn",
                ),
                *(
                    Paragraph(label, lines, most=MAX_NAMED)
                    for label, lines in (
                        ("Its ways", _last_steps(certain_findings[0]) if len(certain_findings) == 1 else []),
                        ("Conditional", [_summary_line(finding) for finding in findings if finding.condition is not None]),
                        ("Taken alike", assumed_same),
                        ("Not explored", unexplored),
                        ("Suppressed", suppressed_lines),
                    )
                    if lines
                ),
            ],
        ),
    )


def _summary_line(finding: ConcurrencyFinding) -> str:
    return f"{finding.file}:{finding.line}: {finding.severity} {finding.rule}: {finding.message}"


def _last_steps(finding: ConcurrencyFinding) -> list[str]:
    """The last step of each thread or rank."""
    return [f"{who}: line {steps[-1].line}: {steps[-1].says}" for who, steps in finding.paths if steps]


def _check_sarif_path(file: Path) -> None:
    """Refuse, before any work, a SARIF file that is a folder, a device or a link, or whose folder is not there."""
    try:
        is_folder, has_folder = file.is_dir(), file.parent.is_dir()
        is_other = file.is_symlink() or (file.exists() and not file.is_file())
    except OSError as error:
        raise SpecError(f"--sarif cannot be written. Received: {file} ({error.strerror}).") from None
    if is_folder:
        raise SpecError(f"--sarif is a folder. Received: {file}. Name a file, e.g. {file / 'found.sarif'}.")
    if is_other:
        raise SpecError(f"--sarif must be a plain file. Received: {file}. Name another, which may be there or not.")
    if not has_folder:
        raise SpecError(f"--sarif must lie in a folder that exists. Received: {file}. Make {file.parent} first.")


def _first_lines(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], *([f"{more} more, see --json."] if more > 0 else [])]


def _traces(finding: ConcurrencyFinding) -> list[str]:
    lines: list[str] = []
    for who, steps in finding.paths:
        lines.append(wording.Detail(f"{who}:"))
        lines += [
            wording.Detail(f"{'' if step.file == finding.file else f'{step.file} '}line {step.line}: {step.says}")
            for step in steps
        ]
    return lines


def _to_dict(finding: ConcurrencyFinding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "file": finding.file,
        "line": finding.line,
        "message": finding.message,
        "condition": None if finding.condition is None else finding.condition._asdict(),
        "paths": [{"who": who, "steps": [step._asdict() for step in steps]} for who, steps in finding.paths],
    }
