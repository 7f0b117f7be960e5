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
from compare.concurrency import meanings, sarif, sources
from compare.concurrency.findings import ConcurrencyFinding, apply_suppressions
from compare.concurrency.program import Program
from compare.concurrency.search import UNUSUAL, Searched, search
from compare.core import exits, wording
from compare.core.interrupt import interruptible
from compare.execution import options
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen

NAME = "concurrency"
MOST_LINES = 8
"""Of a part of the report on the terminal."""
ALIKE = "Unknown, and taken to be the same on all ranks"
NAMED = 3
"""Unknown decisions and unexplored parts that the first screen names. It counts the others."""


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
    as_json: options.AsJson = False,
) -> None:
    """Find deadlocks and races in training code without running it; exit code 6 where there are some."""
    with exits.reported(), interruptible():
        if sarif_file is not None:
            _refuse_nowhere(sarif_file)
        known = meanings.configured(collective or [], names)
        unread: list[str] = []
        files = sources.read(target, unread)
        searched = search(Program(files, known), nodes=nodes, seconds=search_seconds, unusual=unusual)
        searched.left[:0] = unread
        findings, suppressed = apply_suppressions(searched.findings, {each.file: each.comments for each in files})
        code = report(target, len(files), searched, findings, suppressed).deliver(None, as_json=as_json)
        if sarif_file is not None:
            version = code_version.in_words(code_version.describe(machine.PROJECT_ROOT))
            log = sarif.document(findings, suppressed, version)
            try:
                atomic_files.write_atomically(sarif_file, json.dumps(log, indent=1) + "\n")
            except OSError as error:
                raise SpecError(f"--sarif cannot be written. Received: {sarif_file} ({error.strerror}).") from None
    raise typer.Exit(code)


def report(
    target: str,
    files: int,
    searched: Searched,
    findings: Sequence[ConcurrencyFinding],
    suppressed: Sequence[tuple[ConcurrencyFinding, str]],
) -> Report:
    """What was found, with the way of each thread or rank, and what was not explored."""
    certain = [each for each in findings if each.condition is None]
    said = [(f"{each.file}:{each.line}: {each.severity} {each.rule}", [each.message, *_traces(each)]) for each in findings]
    hidden = [f"{each.file}:{each.line} {each.rule}, because {reason}" for each, reason in suppressed]
    left = [f"{each}." for each in searched.left]
    explored = (
        f"{wording.count(files, 'file')}, {wording.count(searched.roots, 'root')}, "
        f"{wording.count(searched.executions, 'execution')}, {wording.count(searched.nodes, 'node')}"
    )
    alike = [f"{each.file}:{each.line}: {each.says}" for each in sorted(searched.assumed) if searched.assumed[each]]
    nothing = "nothing found in what was explored" if left else "nothing found"
    if not searched.roots:
        nothing = "nothing explored: no thread, lock or collective is known here"
    if alike:
        decisions = wording.count(len(alike), "unknown decision")
        nothing += f", if {decisions} {'is' if len(alike) == 1 else 'are'} the same on all ranks"
    sections = (("Suppressed", hidden), (ALIKE, _few(alike)), ("Not explored", _few(left)))
    verdict = wording.count(len(certain), "finding") if certain else nothing
    if len(certain) < len(findings):
        verdict += f", and {wording.count(len(findings) - len(certain), 'conditional warning')}"
    return Report(
        title=f"Deadlocks and races in {target}",
        name=NAME,
        facts=[f"{explored}: {verdict}"],
        marks=[Mark("Findings", str(len(certain)), "bad" if certain else "good")],
        findings=[*said, *((title, lines) for title, lines in sections if lines)],
        values={
            "findings": [_plain(each) for each in certain],
            "conditional": [_plain(each) for each in findings if each.condition is not None],
            "suppressed": [{**_plain(each), "reason": reason} for each, reason in suppressed],
            "taken_alike": alike,
            "not_explored": searched.left,
            "explored": {"files": files, "roots": searched.roots, "executions": searched.executions, "nodes": searched.nodes},
        },
        exit_code=exits.FINDINGS if certain else exits.UNKNOWN if left and not searched.roots else 0,
        screen=Screen(
            asked=[f"Deadlocks and races in {target}?", explored],
            answers=[
                Paragraph(
                    "Found" if certain else "No finding" if searched.roots else "Unknown",
                    [verdict, *map(_said, certain)],
                    "bad" if certain else "good" if searched.roots else "warn",
                ),
                *(
                    Paragraph(label, lines, most=NAMED)
                    for label, lines in (
                        ("Its ways", _ways(certain[0]) if len(certain) == 1 else []),
                        ("Conditional", [_said(each) for each in findings if each.condition is not None]),
                        ("Taken alike", alike),
                        ("Not explored", left),
                        ("Suppressed", hidden),
                    )
                    if lines
                ),
            ],
        ),
    )


def _said(finding: ConcurrencyFinding) -> str:
    return f"{finding.file}:{finding.line}: {finding.severity} {finding.rule}: {finding.message}"


def _ways(finding: ConcurrencyFinding) -> list[str]:
    """The last step of each thread or rank."""
    return [f"{who}: line {steps[-1].line}: {steps[-1].says}" for who, steps in finding.paths if steps]


def _refuse_nowhere(file: Path) -> None:
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


def _few(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"{more} more, see --json."] if more > 0 else [])]


def _traces(finding: ConcurrencyFinding) -> list[str]:
    lines: list[str] = []
    for who, steps in finding.paths:
        lines.append(f" {who}:")
        lines += [f" {'' if step.file == finding.file else f'{step.file} '}line {step.line}: {step.says}" for step in steps]
    return lines


def _plain(finding: ConcurrencyFinding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "file": finding.file,
        "line": finding.line,
        "message": finding.message,
        "condition": None if finding.condition is None else finding.condition._asdict(),
        "paths": [{"who": who, "steps": [step._asdict() for step in steps]} for who, steps in finding.paths],
    }
