"""Commands of a twin in one process, without a framework."""

import argparse
import gc
import io
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.machine import machine
from common.processes import commands, serving
from common.processes.twin import Twin
from common.spec import Spec


@pytest.mark.parametrize(("available", "threads"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_match_gives_each_of_two_frameworks_half_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, available: int, threads: int
) -> None:
    """At least one. Both compute at the same time."""
    configured: list[int] = []

    def configure(what: Spec) -> None:
        configured.append(what.cores)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which the command hides for good
    monkeypatch.setattr(machine, "available_cores", lambda: available)
    for owner, name in ((machine, "keep_freed_memory"), (serving, "exit_on_signals"), (gc, "freeze")):
        monkeypatch.setattr(owner, name, lambda: None)
    held: list[Any] = []
    monkeypatch.setattr(machine, "set_affinity", held.append)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    twin = cast(Twin, SimpleNamespace(open_model=lambda ask: None, configure=configure))
    assert commands.match("made_up", lambda: twin, argparse.Namespace()) == 0
    assert configured == [threads] and len(held) == 1
