"""Findings as SARIF 2.1.0, which code hosts show beside the code."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from convtwins_hangs.concurrency.findings import RULES, ConcurrencyFinding, TraceStep

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def document(
    findings: Sequence[ConcurrencyFinding], suppressed: Sequence[tuple[ConcurrencyFinding, str]], version: str
) -> dict[str, Any]:
    """Build the SARIF log of one run, suppressed findings with their reasons included."""
    names = list(RULES)
    results = [_result(finding, names) for finding in findings]
    for finding, reason in suppressed:
        results.append({**_result(finding, names), "suppressions": [{"kind": "inSource", "justification": reason}]})
    rules = [
        {"id": name, "shortDescription": {"text": rule.description}, "defaultConfiguration": {"level": rule.severity}}
        for name, rule in RULES.items()
    ]
    driver = {"name": "convtwins concurrency", "version": version, "rules": rules}
    return {"$schema": SCHEMA, "version": VERSION, "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(finding: ConcurrencyFinding, names: Sequence[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": names.index(finding.rule),
        "level": "note" if finding.condition is not None else finding.severity,
        "message": {"text": finding.message},
        "locations": [_location(finding.file, finding.line)],
    }
    locations = sorted(finding.related_locations - {(finding.file, finding.line)})
    if locations:
        result["relatedLocations"] = [{"id": number, **_location(*location)} for number, location in enumerate(locations, 1)]
    flows = [{"id": who, "locations": [{"location": _step(step)} for step in steps]} for who, steps in finding.paths if steps]
    if flows:
        result["codeFlows"] = [{"threadFlows": flows}]
    return result


def _location(file: str, line: int) -> dict[str, Any]:
    location = {"artifactLocation": {"uri": _uri(file, Path.cwd())}, "region": {"startLine": max(line, 1)}}
    return {"physicalLocation": location}


@functools.lru_cache(maxsize=4096)
def _uri(file: str, here: Path) -> str:
    """Return a file's path relative to the root of this repository, or to this folder if there is none. Others: file:///..."""
    path = Path(file).resolve()
    root = next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)
    return quote(path.relative_to(root).as_posix()) if path.is_relative_to(root) else path.as_uri()


def _step(step: TraceStep) -> dict[str, Any]:
    return {**_location(step.file, step.line), "message": {"text": step.says or "here"}}
