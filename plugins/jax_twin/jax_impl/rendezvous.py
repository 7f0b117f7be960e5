"""Rendezvous of the ranks of a run with several processes. This twin has modes of one process only."""

from __future__ import annotations

from common.spec import Spec

WAITING: str = r"(?!)"
"""Regular expression that matches a stack frame's file name if the rank waits for others there: never."""


def environments(spec: Spec) -> list[dict[str, str]]:
    """Return the environment of each rank, see `common.processes.rendezvous`. Empty for a mode with one process."""
    return []


def adopt() -> None:
    """Read this rank's number from an outer launcher, if one started it."""
