"""The two sides of a comparison in pairs: base and head, each as a comparison of its own with the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from compare.execution.store import RUNS_FOLDER, Comparison, StoredComparison

BASE, HEAD = "base", "head"

_Value = TypeVar("_Value")


def split(stored: StoredComparison) -> dict[str, StoredComparison]:
    """Return the base and the head of a comparison whose contestants are pairs, see `Contestant.base_of`. Else empty.

    Rows and contestants of the base have the names of the head's. The proof is the head's.
    """
    base_names = {each.name: each.base_of for each in stored.comparison.contestants if each.base_of is not None}
    if not base_names:
        return {}
    return {
        BASE: _side(stored, base_names, {"proof": None}),
        HEAD: _side(stored, {name: name for name in base_names.values()}, {"proof": _proof_of_head(stored.comparison)}),
    }


def _side(stored: StoredComparison, names: Mapping[str, str], fields: Mapping[str, Any]) -> StoredComparison:
    """Return the rows of some contestants.

    Args:
        names: {name of a contestant: its name here}.
        fields: fields of the comparison that are other here.
    """
    plan = stored.comparison
    contestants = [contestant for contestant in plan.contestants if contestant.name in names]
    rows = [row for row in plan.rows if row.contestant in names]
    ids = {row.id: names[row.contestant] + row.id.removeprefix(row.contestant) for row in rows}
    revisions = [contestant.revision.facts for contestant in contestants if contestant.revision is not None]

    def renamed(values: Mapping[str, _Value]) -> dict[str, _Value]:
        return {{**ids, **names}[name]: value for name, value in values.items() if name in ids or name in names}

    comparison = plan.model_copy(
        update={
            "rows": [row.model_copy(update={"id": ids[row.id], "contestant": names[row.contestant]}) for row in rows],
            "contestants": [
                contestant.model_copy(update={"name": names[contestant.name], "base_of": None})
                for contestant in contestants
                if contestant.python is not None or contestant.switches
            ],
            "versions": renamed(plan.versions),
            "environments": renamed(plan.environments),
            "left_out": renamed(plan.left_out),
            "machine": {**plan.machine, **(revisions[0] if revisions else {})},
            **fields,
        }
    )
    other_runs = [f"{RUNS_FOLDER}/{row.id}-r" for row in plan.rows if row.id not in ids]
    return stored.model_copy(
        update={
            "comparison": comparison,
            "runs": renamed(stored.runs),
            "set_aside": [text for text in stored.set_aside if not any(run in text for run in other_runs)],
            "torn": renamed(stored.torn),
        }
    )


def _proof_of_head(plan: Comparison) -> Any:
    """Return the proof without its entries on contestants and rows of the base."""
    if plan.proof is None:
        return None
    bases = {contestant.name for contestant in plan.contestants if contestant.base_of is not None}
    left_out = bases | {row.id for row in plan.rows if row.contestant in bases}
    fields = ("mode_verdicts", "row_verdicts", "not_claimed")
    return plan.proof.model_copy(
        update={
            field: {name: value for name, value in getattr(plan.proof, field).items() if name not in left_out}
            for field in fields
        }
    )
