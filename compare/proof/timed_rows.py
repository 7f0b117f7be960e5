"""Verdicts of the float64 proof on the rows of a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from common.spec import Spec
from compare.proof import claims
from compare.proof.certificate import Proof
from compare.results.store import IN_FLOAT64
from compare.running.matrix import Row
from compare.running.twins import Twins


def row_verdicts(proof: Proof, twins: Twins, rows: Sequence[Row]) -> dict[str, str]:
    """Return the verdict on each row, by id, before the steps of its own runs are judged: see `spot_checks.row_verdicts`.

    A row has the verdict on its mode if the float64 proof was made with its switches. Its own runs are not examined yet.
    """
    verdicts: dict[str, str] = {}
    for row in rows:
        verdict: str = proof.mode_verdict(row.contestant, row.spec.variant)
        if verdict == "proved":
            verdict = IN_FLOAT64 if covers(proof.levels, twins, row.contestant, row.spec) else "not claimed"
        verdicts[row.id] = verdict
    return verdicts


def reasons_not_claimed(proof: Proof, twins: Twins, rows: Sequence[Row]) -> dict[str, str]:
    """Return why nothing is claimed of modes, contestants and rows, by name or id."""
    reasons, verdicts = dict(proof.not_claimed), row_verdicts(proof, twins, rows)
    for row in rows:
        contestant, mode = row.contestant, row.spec.variant
        if verdicts[row.id] != "not claimed":
            continue
        if proof.mode_verdict(contestant, mode) == "proved":
            reasons[row.id] = claims.WITHOUT_SWITCHES
        elif (
            proof.verdict == "proved"
            and not {contestant, mode} & proof.not_claimed.keys()
            and proof.is_one_update(contestant, mode)
        ):
            reasons[row.id] = proof.why_one_update(contestant, mode)
    return reasons


def proved_levels(twins: Twins, runs: Sequence[tuple[str, Spec]]) -> tuple[str, ...]:
    """Return the levels of switches for the float64 proof, that of the first run first.

    Args:
        twins: the contestants.
        runs: (contestant, spec).
    """
    levels = dict.fromkeys(run.switches for name, run in runs if claims.keeps_mathematics(twins, name, run))
    return tuple(levels) or ("usual",)


def covers(levels: Sequence[str], twins: Twins, name: str, run: Spec) -> bool:
    """Whether a proof with these levels of switches covers a run."""
    return run.switches in levels and claims.keeps_mathematics(twins, name, run)


def available_modes(rows: Sequence[Row]) -> list[str]:
    """Return the modes of the rows that can run on this machine, without duplicates."""
    return list(dict.fromkeys(row.spec.variant for row in rows if row.unavailable is None))
