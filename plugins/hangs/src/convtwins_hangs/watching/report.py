"""Report on a watched job: table, stacks and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from compare.cli import exits, wording
from compare.reporting.document import Mark, Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Column, Table
from convtwins_hangs.watching.member import AMOUNTS, JobMember
from convtwins_hangs.watching.verdict import ENDED, HEALTHY, SLOW, STUCK, UNKNOWN, Verdict
from convtwins_hangs.watching.watcher import Watcher

NAME = "watch"
EXIT_CODES = {HEALTHY: 0, SLOW: 0, ENDED: 0, STUCK: exits.FINDINGS, UNKNOWN: exits.UNKNOWN}
_TONES = {HEALTHY: "good", SLOW: "warn", STUCK: "bad", UNKNOWN: "warn"}
_MAX_FRAMES = 12
"""Maximum number of frames of a thread on the terminal. JSON has all."""
_FRACTION_FIELDS = {"runs_or_wants_a_core_or_disk": "wants", "waits_for_disk": "disk_waits"}
"""Fields of `Look` that are fractions of the time, by their names in JSON."""

_COLUMNS = (
    Column("name", "rank"),
    Column("processes", "processes"),
    Column("threads", "threads"),
    Column("cores", "cores", 2),
    Column("core_wait", "waits for core", 2, wide=True),
    Column("network", "network KiB/s", 1),
    Column("disk", "disk MiB/s", 1, wide=True),
    Column("major_faults", "major faults/s", 1, wide=True),
    Column("switches", "switches/s", 0, wide=True),
    Column("involuntary", "forced/s", 0, terminal=False),
    Column("memory", "MiB", 0),
    Column("shared", "shared MiB", 0, terminal=False),
    Column("swap", "swapped MiB", 0, terminal=False),
    Column("steps", "step"),
    Column("where", "where", fold=60),
)


_SCREEN_COLUMNS = ("name", "cores", "network", "memory", "steps", "where")
"""Columns of the first screen."""


def table(members: Sequence[JobMember]) -> Table:
    """Build the table of each rank's mean resource use over the kept looks."""
    return Table("footprints", "Footprints, the mean of the last looks", _COLUMNS, [_row(member) for member in members])


def report(watcher: Watcher, verdict: Verdict) -> Report:
    """Build the report of the verdict, the footprints and the stacks."""
    members = watcher.members
    cost = 1e6 * watcher.cost_seconds / max(watcher.num_looks, 1)
    footprints = table(members)
    stack_sections = [
        (f"Stacks of {member.name}", _stack_lines(member))
        for member in members
        if member.dumps and verdict.state in (STUCK, SLOW)
    ]
    return Report(
        title="A job under watch",
        name=NAME,
        facts=[wording.one_line(verdict.text)],
        marks=[Mark("Verdict", verdict.state, _TONES.get(verdict.state, ""))],
        tables=[footprints],
        findings=[
            *stack_sections,
            (
                "Cost",
                [f"{wording.count(watcher.num_looks, 'look')}, {cost:,.0f} µs of a core each. Nothing was asked of the job."],
            ),
        ],
        elsewhere="--json",
        values={
            "verdict": verdict.state,
            "because": verdict.reason,
            "to_blame": list(verdict.ranks),
            "ranks": [_to_dict(member) for member in members],
            "looks": watcher.num_looks,
            "cpu_microseconds_of_a_look": cost,
        },
        exit_code=EXIT_CODES[verdict.state],
        screen=Screen(
            subject=[
                "Is this job healthy, slow or stuck?",
                wording.count(len(members), "process", "processes"),
                wording.count(watcher.num_looks, "look"),
            ],
            answers=[
                Paragraph(verdict.state.capitalize(), [f"{verdict.reason}."], _TONES.get(verdict.state, "")),
                *([Paragraph("To blame", [wording.joined(verdict.ranks)])] if verdict.ranks else []),
            ],
            table=replace(footprints, columns=tuple(column for column in footprints.columns if column.key in _SCREEN_COLUMNS)),
        ),
    )


def _row(member: JobMember) -> dict[str, Any]:
    states: Counter[str] = Counter(thread.state for footprint in member.footprints.values() for thread in footprint.threads)
    memory = [
        sum(getattr(footprint, name) for footprint in member.footprints.values()) / 2**20
        for name in ("resident_bytes", "shared_bytes", "swap_bytes")
    ]
    return {
        "name": member.name + (" (ended)" if member.ended else ""),
        "processes": " ".join(map(str, member.group.pids[:3])) + (" ..." if len(member.group.pids) > 3 else ""),
        "threads": " ".join(f"{count} {state}" for state, count in sorted(states.items())),
        "cores": member.rate("cpu_seconds"),
        "core_wait": member.rate("core_wait_seconds"),
        "network": member.rate("network_bytes") / 1024,
        "disk": member.rate("disk_bytes") / 2**20,
        "major_faults": member.rate("major_faults"),
        "switches": member.rate("voluntary_switches"),
        "involuntary": member.rate("involuntary_switches"),
        "memory": memory[0],
        "shared": memory[1],
        "swap": memory[2],
        "steps": member.marks.steps if member.marks is not None else None,
        "where": member.wait_state().where if member.dumps else None,
    }


def _stack_lines(member: JobMember) -> list[str]:
    lines: list[str] = []
    for pid, dump in member.dumps.items():
        if not dump.stacks:
            lines.append(f"Process {pid}: no stacks: {dump.missing}.")
        for stack in dump.stacks:
            lines.append(f"Process {pid}, thread {stack.name or stack.thread}, the innermost call first:")
            lines += [wording.Detail(f"{frame.file}:{frame.line} {frame.function}") for frame in stack.frames[:_MAX_FRAMES]]
    return lines


def _to_dict(member: JobMember) -> dict[str, Any]:
    standing = member.wait_state() if member.dumps else None
    return {
        "name": member.name,
        "is_rank": member.group.is_rank,
        "ended": member.ended,
        "waits": standing._asdict() if standing is not None else None,
        "a_second": {field: member.rate(field) for field in AMOUNTS} if member.looks else {},
        "part_of_time": {name: member.rate(field) for name, field in _FRACTION_FIELDS.items()} if member.looks else {},
        "processes": [
            {**footprint._asdict(), "threads": [thread._asdict() for thread in footprint.threads]}
            for footprint in member.footprints.values()
        ],
        "connections": [connection._asdict() for connection in member.connections],
        "stacks": {
            str(pid): {
                "missing": dump.missing,
                "threads": [
                    {**stack._asdict(), "frames": [frame._asdict() for frame in stack.frames]} for stack in dump.stacks
                ],
            }
            for pid, dump in member.dumps.items()
        },
    }
