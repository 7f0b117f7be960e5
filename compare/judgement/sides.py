"""The two sides of a comparison in pairs: base and head, each as a comparison of its own with the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from compare.results.store import StoredComparison
from compare.running import contestants
from compare.running.contestants import Contestant

BASE, HEAD = "base", "head"

_Value = TypeVar("_Value")


def split(stored: StoredComparison) -> dict[str, StoredComparison]:
    """Return the base and the head of a comparison whose contestants are pairs, see `Contestant.base_of`. Else empty.

    Rows and contestants of the base have the names of the head's. The proof is the head's.
    """
    bases = [contestant for contestant in stored.comparison.settings.contestants if contestant.base_of is not None]
    if not bases:
        return {}
    heads = contestants.resolve([base.base_of or "" for base in bases], stored.comparison.settings.contestants)
    return {BASE: _side(stored, bases), HEAD: _side(stored, heads)}


def _side(stored: StoredComparison, compared: Sequence[Contestant]) -> StoredComparison:
    """Return the runs of some contestants, under the names of the heads."""
    plan = stored.comparison
    by_name = {contestant.name: contestant for contestant in compared}
    names = {contestant.name: contestant.base_of or contestant.name for contestant in compared}
    rows = [row for row in plan.rows if row.contestant in names]
    names |= {row.id: by_name[row.contestant].head_row(row.id) for row in rows}

    def renamed(values: Mapping[str, _Value]) -> dict[str, _Value]:
        return {names[name]: value for name, value in values.items() if name in names}

    proof = None
    if plan.proof is not None and compared[0].base_of is None:
        fields = {name: renamed(getattr(plan.proof, name)) for name in ("mode_verdicts", "row_verdicts", "not_claimed")}
        proof = plan.proof.model_copy(update=fields)
    own_contestants = tuple(
        contestant.model_copy(update={"name": names[contestant.name], "base_of": None})
        for contestant in compared
        if contestant.python is not None or contestant.switches
    )
    fields = {
        "rows": [row.model_copy(update={"id": names[row.id], "contestant": names[row.contestant]}) for row in rows],
        "settings": plan.settings.updated(contestants=own_contestants),
        "versions": renamed(plan.versions),
        "environments": renamed(plan.environments),
        "machine": plan.machine | compared[0].revision,
        "proof": proof,
    }
    return stored.model_copy(
        update={
            "comparison": plan.model_copy(update=fields),
            "runs": renamed(stored.runs),
            "set_aside": [fault._replace(row=names[fault.row]) for fault in stored.set_aside if fault.row in names],
            "torn": renamed(stored.torn),
        }
    )
