"""Tables on the proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compare.reporting.tables import Column, Table


def proof_tables(proof: Mapping[str, Any]) -> list[Table]:
    """The certificate, one rung a line, and what each framework's modes may claim. Tables without a row are left out.

    Args:
        proof: a stored `ProofRecord` as plain values.
    """
    columns = (
        Column("name", "check"),
        *(Column(name, name) for name in ("framework", "mode", "model", "optimizer", "precision")),
        Column("max_relative_difference", "largest difference", -1),
        Column("step", "step"),
        Column("steps", "of steps"),
        Column("tolerance", "tolerance", -1),
        Column("status", "status"),
        Column("where", "where", terminal=False),
        Column("reason", "why this tolerance", terminal=False),
    )
    note = "The largest relative difference of each check (rung), the step where it stood, and the tolerance at that step."
    certificate = Table.from_items("proof", "Certificate of parity", columns, proof["rungs"], note)

    verdicts: Mapping[str, Mapping[str, str]] = proof["mode_verdicts"]
    modes = dict.fromkeys(mode for mode_verdicts in verdicts.values() for mode in mode_verdicts)
    why = (Column("why", "why it is not claimed", pick=proof["not_claimed"].get),) if proof["not_claimed"] else ()
    claim_columns = (
        Column("mode", "mode", pick=str),
        *(Column(name, name, pick=mode_verdicts.get) for name, mode_verdicts in verdicts.items()),
        *why,
    )
    claims = Table.from_items("claims", "The same training, by mode", claim_columns, modes)
    return [table for table in (certificate, claims) if table.rows]
