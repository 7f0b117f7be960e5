"""What the float64 proof says of the rows of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from common.spec import Spec
from compare.execution.matrix import Row
from compare.execution.store import IN_FLOAT64
from compare.proof import claims
from compare.proof.certificate import Proof


def row_verdicts(proof: Proof, rows: Sequence[Row]) -> dict[str, str]:
    """The verdict on each row, by its id, before the steps of its own runs are judged: see `spot_checks.row_verdicts`.

    A row has the verdict on its mode if the float64 proof was made with its switches. Nobody has looked at its own runs yet.
    """
    found: dict[str, str] = {}
    for row in rows:
        verdict: str = proof.mode_verdict(row.contestant, row.spec.variant)
        if verdict == "proved":
            verdict = IN_FLOAT64 if is_of(proof.levels, row.contestant, row.spec) else "not claimed"
        found[row.id] = verdict
    return found


def levels(runs: Sequence[tuple[str, Spec]]) -> tuple[str, ...]:
    """The levels of switches that the float64 proof is made with, that of the first run first.

    Args:
        runs: (framework, spec).
    """
    found = dict.fromkeys(run.switches for name, run in runs if claims.keeps_mathematics(name, run))
    return tuple(found) or ("usual",)


def is_of(levels: Sequence[str], framework: str, run: Spec) -> bool:
    """Whether a proof that is made with these levels of switches covers a run."""
    return run.switches in levels and claims.keeps_mathematics(framework, run)


def modes_of(rows: Sequence[Row]) -> list[str]:
    """The modes that run here, each once."""
    return list(dict.fromkeys(row.spec.variant for row in rows if row.unavailable is None))
