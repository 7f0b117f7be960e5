"""Rendezvous of a twin whose modes all run in one process: there are no ranks. See `common.processes.twin.Rendezvous`."""

from __future__ import annotations

from common.spec import Spec

WAITING: str = r"(?!)"
"""Regular expression that matches a stack frame's file name if the rank waits for others there: never."""


def environments(spec: Spec) -> list[dict[str, str]]:
    """Return the environment of each rank: none."""
    return []


def adopt() -> None:
    """Read this rank's number from an outer launcher: there is none."""
