"""What a proof examines: the very runs of a comparison's rows, and the verdict on each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common import spec
from common.models import architectures
from common.spec import Spec
from compare.execution.matrix import Row
from compare.execution.store import IN_FLOAT64
from compare.proof import claims
from compare.proof.certificate import Proof

Timed = tuple[Mapping[str, Spec], Sequence[str]]
"""(by framework, a serial run as it is timed, parallel modes that are timed alike)."""


def row_verdicts(proof: Proof, rows: Sequence[Row]) -> dict[str, str]:
    """The verdict on each row, by its id.

    A row has the verdict on its mode if the float64 proof was made with its switches, and if rung 8 has examined its very run.
    If the gradients of that run are shown and not judged, the row is proved in float64 alone. A run in float64, or by the
    frameworks' own optimizers, has no rung 8. A matched pair has none either, so its rows are proved in float64 alone.
    """
    found: dict[str, str] = {}
    for row in rows:
        verdict: str = proof.mode_verdict(row.contestant, row.spec.variant)
        if verdict == "proved" and not is_of(proof.levels, row.contestant, row.spec):
            verdict = "not claimed"
        if verdict == "proved" and row.spec.precision == "float32":
            run = run_name(row.contestant, row.spec)
            verdict = "not examined" if run not in proof.examined else IN_FLOAT64 if run in proof.shown else "proved"
            verdict = IN_FLOAT64 if architectures.is_opaque(row.spec.model) else verdict
        found[row.id] = verdict
    return found


def run_name(framework: str, what: Spec) -> str:
    """A run, as a proof remembers that it has examined it."""
    return f"{framework} {what.digest}"


def groups(rows: Sequence[Row]) -> dict[tuple[str, int, int], tuple[dict[str, Spec], list[str]]]:
    """The runs of rows that have the same switches, input workers and cores. Those on most cores come last."""
    found: dict[tuple[str, int, int], tuple[dict[str, Spec], list[str]]] = {}
    for row in sorted(rows, key=lambda row: row.spec.cores):
        runs, modes = found.setdefault(key(row.spec), ({}, []))
        if row.spec.mode == "serial":
            runs[row.contestant] = row.spec
            continue
        runs.setdefault(row.contestant, spec.build(spec.with_variant(row.spec.model_dump(), "serial", 1)))
        if row.unavailable is None and row.spec.variant not in modes:
            modes.append(row.spec.variant)
    return found


def key(what: Spec) -> tuple[str, int, int]:
    """Equal for runs of one group."""
    return what.switches, what.workers, what.cores


def levels(groups: Sequence[Mapping[str, Spec]]) -> tuple[str, ...]:
    """The levels of switches that the float64 proof is made with, that of the last group first."""
    found: dict[str, None] = {}
    for runs in reversed(groups):
        own = {run.switches for run in runs.values()}
        if len(own) == 1 and all(claims.keeps_mathematics(name, run) for name, run in runs.items()):
            found |= dict.fromkeys(own)
    return tuple(found) or ("usual",)


def is_of(levels: Sequence[str], framework: str, run: Spec) -> bool:
    """Whether a proof that is made with these levels of switches covers a run."""
    return run.switches in levels and claims.keeps_mathematics(framework, run)


def modes_of(rows: Sequence[Row]) -> list[str]:
    """The modes that run here, each once."""
    return list(dict.fromkeys(row.spec.variant for row in rows if row.unavailable is None))
