"""Findings as SARIF 2.1.0, which code hosts show beside the code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compare.concurrency.findings import RULES, Finding, Step

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def document(findings: Sequence[Finding], suppressed: Sequence[tuple[Finding, str]], version: str) -> dict[str, Any]:
    """A SARIF log of one run. Suppressed findings are in it, with their reasons."""
    names = list(RULES)
    results = [_result(each, names) for each in findings]
    for each, reason in suppressed:
        results.append({**_result(each, names), "suppressions": [{"kind": "inSource", "justification": reason}]})
    rules = [
        {
            "id": name,
            "shortDescription": {"text": rule.says},
            "defaultConfiguration": {"level": rule.severity},
        }
        for name, rule in RULES.items()
    ]
    driver = {"name": "convtwins concurrency", "version": version, "rules": rules}
    return {"$schema": SCHEMA, "version": VERSION, "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(finding: Finding, names: Sequence[str]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": names.index(finding.rule),
        "level": finding.severity,
        "message": {"text": finding.says},
        "locations": [_location(finding.file, finding.line)],
    }
    also = sorted(finding.also - {(finding.file, finding.line)})
    if also:
        made["relatedLocations"] = [{"id": place, **_location(*each)} for place, each in enumerate(also, 1)]
    flows = [{"id": who, "locations": [{"location": _step(each)} for each in steps]} for who, steps in finding.paths if steps]
    if flows:
        made["codeFlows"] = [{"threadFlows": flows}]
    return made


def _location(file: str, line: int) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": file.replace(" ", "%20")}, "region": {"startLine": max(line, 1)}}
    return {"physicalLocation": place}


def _step(step: Step) -> dict[str, Any]:
    return {**_location(step.file, step.line), "message": {"text": step.says or "here"}}
