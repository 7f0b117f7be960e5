"""The conditions of a row's times, and the division of a comparison of two rows: closed, open, or neither."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, combinations
from typing import Literal, NamedTuple

from common.artifacts.schema import RunResult
from compare.core import wording
from compare.core.statistics import Judged
from compare.execution import matrix
from compare.execution.matrix import Row
from compare.execution.store import Stored

CONDITIONS = {
    "layout": "memory layout",
    "precision": "precision",
    "graph": "graph class",
    "threads": "threads",
    "mechanism": "mechanism",
    "kernels": "kernel library",
    "kernel_search": "kernel search",
    "update": "kernels of the update",
    "data": "place of the data",
    "allocator": "allocator",
    "deterministic": "determinism",
    "learning_rate": "learning rate",
}
"""The conditions of the closed division, each with its name for a reader."""

OF_SWITCHES = {
    "kernels": ("onednn", {"True": "oneDNN", "False": "without oneDNN"}),
    "kernel_search": ("cudnn_autotune", {"True": "cuDNN tries its algorithms", "False": "cuDNN's first choice"}),
    "update": ("optimizer_kernel", {"loop": "an operation at a time", "foreach": "all variables at once", "fused": "fused"}),
    "data": ("data_on", {"host": "host", "device": "device"}),
}
"""Condition: the recorded switch that it comes from, and the words for the values of that switch."""

WITHOUT_SWITCH = {"kernels": "its own", "kernel_search": "its own", "update": "fused", "data": "host"}
"""Of a framework without that switch. TensorFlow has fused kernels alone."""

OF_THE_MODE = ("threads", "mechanism", "update")
"""Conditions that differ between a parallel mode and serial because the modes differ."""

OF_THE_INPUT = ("threads", "mechanism", "data", "allocator")
"""Conditions of a run of the input alone."""

NOT_RECORDED = "not recorded"
DISAGREE = "THE DIVISIONS DISAGREE"
"""Begins the sentence of two divisions that name different frameworks as the faster one."""


WORDS = {
    "closed": "equal conditions (closed division)",
    "open": "each one's best switches (open division)",
    "neither": "unequal conditions (neither closed nor open division)",
    "not known": "conditions that are not known",
}
"""Of a division, after "with"."""


class Division(NamedTuple):
    kind: Literal["closed", "open", "neither", "not known"]
    detail: str
    """Why it is this one, or how the switches were found. May be empty."""
    differing: tuple[str, ...] = ()
    """The conditions that differ, with both values, where these are the detail."""

    @property
    def words(self) -> str:
        return f"{WORDS[self.kind]}: {self.detail}" if self.detail else WORDS[self.kind]


def of_row(stored: Stored, row: Row) -> dict[str, str]:
    """The conditions of a row by their keys in CONDITIONS. Empty if its runs did not record them."""
    runs = [run for run in stored.runs[row.id].values() if run.status == "ok"]
    found = [of_run(run) for run in runs] if all(run.conditions for run in runs) else []
    names = OF_THE_INPUT if row.spec.part == "input" else CONDITIONS
    values = {name: sorted({each[name] for each in found if name in each}) for name in names}
    return {name: " or ".join(each) or NOT_RECORDED for name, each in values.items()} if found else {}


def of_run(run: RunResult) -> dict[str, str]:
    """The recorded conditions of a run, by their keys in CONDITIONS."""
    found = dict(run.conditions)
    if found:
        found["learning_rate"] = f"{run.spec.scaled_learning_rate:.6g}"
    if {"intra_op", "inter_op"} <= run.threads.keys():
        found["threads"] = f"{run.threads['intra_op']} + {run.threads['inter_op']}"
    if not run.switches:
        return found
    for name, (switch, words) in OF_SWITCHES.items():
        value = str(run.switches.get(switch))
        found[name] = words.get(value, value) if switch in run.switches else WITHOUT_SWITCH[name]
    if run.spec.mode == "parameter_server":
        found["update"] = "by the server"
    if (run.device or "").startswith("cpu"):
        found["kernel_search"] = "none on a CPU"
    return found


def division(stored: Stored, one: Row, other: Row, apart: Collection[str] = ()) -> Division:
    """The division that a comparison of two rows belongs to.

    Args:
        apart: conditions that are themselves compared, so that they may differ.
    """
    if one.spec.switches == other.spec.switches == "best" and one.budget and other.budget:
        tried = f"{one.contestant} {one.budget.configurations}, {other.contestant} {other.budget.configurations} configurations"
        if one.budget.is_equal(other.budget):
            same = one.budget.configurations == other.budget.configurations
            return Division("open", f"best of {one.budget.words}{'' if same else f' ({tried})'}")
        budgets = "; ".join(f"{row.contestant} with {row.budget.words}" for row in (one, other) if row.budget)
        return Division("neither", f"tuned with different budgets ({budgets})")
    ours, theirs = of_row(stored, one), of_row(stored, other)
    if not ours or not theirs:
        return Division("not known", "the conditions were not recorded")
    if missing := [CONDITIONS[name] for name in ours if NOT_RECORDED in (ours[name], theirs[name]) and name not in apart]:
        return Division("not known", f"not recorded: {', '.join(missing)}")
    differing = [name for name in ours if name not in apart and ours[name] != theirs[name]]
    if not differing:
        return Division("closed", "")
    said = [f"{CONDITIONS[name]} ({ours[name]} against {theirs[name]})" for name in differing]
    return Division("neither", ", ".join(said), tuple(said))


def lines(stored: Stored, names: dict[str, str]) -> list[str]:
    """One line for each pair of rows of two frameworks: its division.

    Args:
        names: row id: its name without the framework. Rows without one are left out.
    """
    found: dict[Division, list[str]] = {}
    named = {each.name: each.switches for each in stored.comparison.contestants}
    to_even_out = False
    for one, other in combinations(stored.comparison.rows, 2):
        if one.id in names and other.id in names and matrix.differ_by_contestant(one, other):
            found.setdefault(each := division(stored, one, other), []).append(names[one.id])
            # Switches that the user has set apart are what is compared.
            on_purpose = named.get(one.contestant, {}) != named.get(other.contestant, {})
            to_even_out = to_even_out or (each.kind == "neither" and not on_purpose)
    said = _lines(found)
    levels = {row.spec.switches for row in stored.comparison.rows}
    if levels <= {"plain", "usual"} and to_even_out:
        said.append("For equal conditions add --switches closed; for each one's best run `optimize`, then add --switches best.")
    return said


def _lines(found: Mapping[Division, Sequence[str]]) -> list[str]:
    """A line for each division. Conditions that differ in all pairs stand before those that differ in some."""
    neither = {each: rows for each, rows in found.items() if each.differing}
    first = next((each.differing for each in neither), ())
    shared = [one for one in first if all(one in each.differing for each in neither)]
    said: list[str] = []
    merged = len(neither) > 1 and bool(shared)
    if merged:
        said.append(f"{WORDS['neither'].capitalize()} in {'; '.join(chain(*neither.values()))}: {', '.join(shared)}.")
        for each, rows in neither.items():
            if own := [one for one in each.differing if one not in shared]:
                said[-1] += f" Of {'; '.join(rows)} also {', '.join(own)}."
    for each, rows in found.items():
        if not (merged and each in neither):
            said.append(f"{WORDS[each.kind].capitalize()} in {'; '.join(rows)}{f': {each.detail}' if each.detail else ''}.")
    return said


class Winner(NamedTuple):
    """The faster framework of one comparison of two rows."""

    work: str
    """What was run, without its switches."""
    name: str
    where: str
    """Its switches and its division, in words."""
    faster: str


def winners(stored: Stored, judged: Sequence[tuple[Row, Row, Judged]], label: str = "") -> list[Winner]:
    """Who is faster in each pair of rows that has a verdict.

    Args:
        judged: pairs of rows, and seconds of the second over seconds of the first.
        label: stands before the switches, where there are several comparisons.
    """
    found: list[Winner] = []
    for first, second, each in judged:
        if each.verdict in ("above", "below"):
            run, kind = first.spec, division(stored, first, second).kind
            mode = run.mode if run.mode == "serial" else f"{run.variant} x{run.replicas}"
            where = f"{label}switches {run.switches}, {WORDS[kind]}"
            faster = first.contestant if each.verdict == "above" else second.contestant
            work = run.model_copy(update={"switches": "plain", "framework_options": {}}).digest
            found.append(Winner(work, f"{mode} on {wording.count(run.cores, 'core')}", where, faster))
    return found


def disagreements(found: Sequence[Winner]) -> list[str]:
    """One sentence for each work. Two divisions or levels of switches name different frameworks as the faster one."""
    by_work: dict[str, list[Winner]] = {}
    for each in found:
        by_work.setdefault(each.work, []).append(each)
    return [
        f"{DISAGREE} on {own[0].name}: {'; '.join(f'{each.faster} is faster with {each.where}' for each in own)}."
        for own in by_work.values()
        if len({each.faster for each in own}) > 1
    ]
