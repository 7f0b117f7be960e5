"""The conditions of a row's times, and the division of a comparison of two rows: closed, open, or neither."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, combinations
from typing import Literal, NamedTuple

from pydantic import JsonValue

from common.artifacts.schema import RunResult
from common.spec.shared_switches import UPDATES
from compare.cli import wording
from compare.judgement.statement import Statement
from compare.results.store import StoredComparison
from compare.running import matrix
from compare.running.matrix import Row
from compare.statistics.statistics import JudgedRatio

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

SWITCH_CONDITIONS = {
    "kernels": ("onednn", {"True": "oneDNN", "False": "without oneDNN"}),
    "kernel_search": ("cudnn_autotune", {"True": "cuDNN tries its algorithms", "False": "cuDNN's first choice"}),
    "update": ("optimizer_kernel", UPDATES),
    "data": ("data_on", {"host": "host", "device": "device"}),
}
"""Condition: the recorded switch that it comes from, and the words for the values of that switch."""

VALUE_WITHOUT_SWITCH = {"kernels": "its own", "kernel_search": "its own", "update": "fused", "data": "host"}
"""Values of conditions of a framework that lacks the switch, and whose other switches don't set them either."""

MODE_CONDITIONS = ("threads", "mechanism", "update")
"""Conditions that differ between a parallel mode and serial because the modes differ."""

INPUT_CONDITIONS = ("threads", "mechanism", "data", "allocator")
"""Conditions that apply to a run of the input alone."""

NOT_RECORDED = "not recorded"

PLAIN_WORDS = {
    "closed": "equal settings",
    "open": "each one's best settings",
    "neither": "unequal settings",
    "not known": "settings that are not known",
}
"""Words for each kind of division, behind "with"."""

_DIVISION_NAMES = {"closed": "closed division", "open": "open division", "neither": "neither closed nor open division"}

DIVISION_WORDS = {
    kind: f"{words} ({_DIVISION_NAMES[kind]})" if kind in _DIVISION_NAMES else words for kind, words in PLAIN_WORDS.items()
}
"""Words for each kind of division, with its name."""


class ComparisonDivision(NamedTuple):
    kind: Literal["closed", "open", "neither", "not known"]
    detail: str
    """Reason for the division, or how the switches were tuned. May be empty."""
    differing: tuple[str, ...] = ()
    """Conditions that differ, with both values, if `detail` lists these."""

    @property
    def words(self) -> str:
        return self._with_detail(DIVISION_WORDS)

    @property
    def plain_words(self) -> str:
        """The words without the name of the division, for the first screen."""
        return self._with_detail(PLAIN_WORDS)

    def _with_detail(self, words: Mapping[str, str]) -> str:
        return f"{words[self.kind]}: {self.detail}" if self.detail else words[self.kind]


def row_conditions(stored: StoredComparison, row: Row) -> dict[str, str]:
    """The conditions of a row by their keys in CONDITIONS. Empty if its runs did not record them."""
    runs = [run for run in stored.runs[row.id].values() if run.status == "ok"]
    by_run = [run_conditions(run) for run in runs] if all(run.conditions for run in runs) else []
    names = INPUT_CONDITIONS if row.spec.part == "input" else CONDITIONS
    values = {name: sorted({run_values[name] for run_values in by_run if name in run_values}) for name in names}
    return {name: " or ".join(choices) or NOT_RECORDED for name, choices in values.items()} if by_run else {}


def run_conditions(run: RunResult) -> dict[str, str]:
    """The recorded conditions of a run, by their keys in CONDITIONS."""
    values = dict(run.conditions)
    if values:
        values["learning_rate"] = f"{run.spec.scaled_learning_rate:.6g}"
    if {"intra_op", "inter_op"} <= run.threads.keys():
        values["threads"] = f"{run.threads['intra_op']} + {run.threads['inter_op']}"
    if not run.switches:
        return values
    for name, (switch, words) in SWITCH_CONDITIONS.items():
        if switch in run.switches:
            value = str(run.switches[switch])
            values[name] = words.get(value, value)
        else:
            values.setdefault(name, VALUE_WITHOUT_SWITCH[name])
    if run.spec.traits.has_server:
        values["update"] = "by the server"
    if (run.device or "").startswith("cpu"):
        values["kernel_search"] = "none on a CPU"
    return values


def division(stored: StoredComparison, one: Row, other: Row, ignored: Collection[str] = ()) -> ComparisonDivision:
    """The division that a comparison of two rows belongs to.

    Args:
        ignored: conditions that are themselves compared, so that they may differ.
    """
    if one.spec.switches == other.spec.switches == "best" and one.budget and other.budget:
        tried = f"{one.contestant} {one.budget.configurations}, {other.contestant} {other.budget.configurations} configurations"
        if one.budget.is_equal(other.budget):
            same = one.budget.configurations == other.budget.configurations
            return ComparisonDivision("open", f"best of {one.budget.words}{'' if same else f' ({tried})'}")
        budgets = "; ".join(f"{row.contestant} with {row.budget.words}" for row in (one, other) if row.budget)
        return ComparisonDivision("neither", f"tuned with different budgets ({budgets})")
    ours, theirs = row_conditions(stored, one), row_conditions(stored, other)
    if not ours or not theirs:
        return ComparisonDivision("not known", "they were not recorded")
    if missing := [CONDITIONS[name] for name in ours if NOT_RECORDED in (ours[name], theirs[name]) and name not in ignored]:
        return ComparisonDivision("not known", f"not recorded: {', '.join(missing)}")
    differing = [name for name in ours if name not in ignored and ours[name] != theirs[name]]
    if not differing:
        return ComparisonDivision("closed", "")
    differences = [f"{CONDITIONS[name]} ({ours[name]} against {theirs[name]})" for name in differing]
    return ComparisonDivision("neither", ", ".join(differences), tuple(differences))


def division_statements(stored: StoredComparison, names: Mapping[str, str]) -> list[Statement]:
    """The division of each pair of rows of two frameworks. Pairs with the same one share a statement.

    Args:
        names: row id: its name without the framework. Rows without one are left out.
    """
    pairs_by_division: dict[ComparisonDivision, list[str]] = {}
    switches = {contestant.name: contestant.switches for contestant in stored.comparison.settings.contestants}
    can_be_equalised = False
    for one, other in combinations(stored.comparison.rows, 2):
        if one.id in names and other.id in names and matrix.same_except_contestant(one, other):
            pairs_by_division.setdefault(pair_division := division(stored, one, other), []).append(names[one.id])
            # Switches that the user has set apart are what is compared.
            on_purpose = switches.get(one.contestant, {}) != switches.get(other.contestant, {})
            can_be_equalised = can_be_equalised or (pair_division.kind == "neither" and not on_purpose)
    statements = _merged_divisions(pairs_by_division)
    levels = {row.spec.switches for row in stored.comparison.rows}
    if levels <= {"plain", "usual"} and can_be_equalised:
        statements.append(Statement(kind="can_be_equalised", level="info"))
    return statements


def _merged_divisions(pairs_by_division: Mapping[ComparisonDivision, list[str]]) -> list[Statement]:
    """A statement for each division. Conditions that differ in all pairs stand before those that differ in some."""
    neither = {key: pairs for key, pairs in pairs_by_division.items() if key.differing}
    first = next((key.differing for key in neither), ())
    shared = [difference for difference in first if all(difference in key.differing for key in neither)]
    statements: list[Statement] = []
    merged = len(neither) > 1 and bool(shared)
    if merged:
        others: list[JsonValue] = [
            {"pairs": [*pairs], "conditions": [*differences]}
            for key, pairs in neither.items()
            if (differences := [difference for difference in key.differing if difference not in shared])
        ]
        values: dict[str, JsonValue] = {
            "division": "neither",
            "pairs": [*chain(*neither.values())],
            "detail": ", ".join(shared),
            "others": others,
        }
        statements.append(Statement(kind="division", level="info", values=values))
    statements += [
        Statement(kind="division", level="info", values={"division": key.kind, "pairs": [*pairs], "detail": key.detail})
        for key, pairs in pairs_by_division.items()
        if not (merged and key in neither)
    ]
    return statements


class FasterFramework(NamedTuple):
    """The faster framework of one comparison of two rows."""

    work_hash: str
    """Digest of the spec without its switches."""
    configuration: str
    conditions: str
    """Switches and division, in words."""
    faster: str


def faster_frameworks(
    stored: StoredComparison, judged_pairs: Sequence[tuple[Row, Row, JudgedRatio]], label: str = ""
) -> list[FasterFramework]:
    """The faster framework of each pair of rows that has a verdict.

    Args:
        judged_pairs: pairs of rows, and the ratio of the second's seconds to the first's.
        label: prefix of the switches, if there are several comparisons.
    """
    results: list[FasterFramework] = []
    for first, second, judged in judged_pairs:
        if judged.verdict in ("above", "below"):
            spec, kind = first.spec, division(stored, first, second).kind
            mode = f"{spec.variant} x{spec.replicas}" if spec.is_parallel else spec.mode
            conditions = f"{label}switches {spec.switches}, {DIVISION_WORDS[kind]}"
            faster = first.contestant if judged.verdict == "above" else second.contestant
            work_hash = spec.model_copy(update={"switches": "plain", "framework_options": {}}).digest
            results.append(FasterFramework(work_hash, f"{mode} on {wording.count(spec.cores, 'core')}", conditions, faster))
    return results


def disagreements(results: Sequence[FasterFramework]) -> list[Statement]:
    """One statement for each work. Two divisions or levels of switches name different frameworks as the faster one."""
    by_work: dict[str, list[FasterFramework]] = {}
    for result in results:
        by_work.setdefault(result.work_hash, []).append(result)
    return [
        Statement(
            kind="divisions_disagree",
            level="trouble",
            values={
                "configuration": group[0].configuration,
                "faster": [{"framework": result.faster, "conditions": result.conditions} for result in group],
            },
        )
        for group in by_work.values()
        if len({result.faster for result in group}) > 1
    ]
