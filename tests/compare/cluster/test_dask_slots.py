"""`run --on tcp://...`: a Dask cluster whose workers have a slot each."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.config
import distributed
import pytest

from common.machine import machine
from compare.cluster import dask_slots, jobs
from compare.execution import cells, store
from tests.compare.command_line import compare
from tests.compare.conftest import behave

QUICK = ("--frameworks", "left,right", "--cores", 1, "--no-proof", "--modes", "serial", "--no-one-core")
TWO = ("--model", "simple_cnn,resnet18")


@contextmanager
def cluster(*hosts: str, resources: dict[str, float] | None = None, kind: Any = distributed.Worker) -> Generator[str]:
    """The address of a scheduler with a worker at each of these addresses of this machine."""
    slot = {dask_slots.RESOURCE: 1} if resources is None else resources
    own = {"nthreads": 1, "resources": slot, "dashboard": False}
    workers = {f"{number}": {"cls": kind, "options": {"host": host, **own}} for number, host in enumerate(hosts)}
    scheduler = {"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "dashboard": False}}
    with (
        dask.config.set({"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}),
        distributed.SpecCluster(workers=workers, scheduler=scheduler) as made,
    ):
        yield made.scheduler_address


@pytest.fixture
def two_machines(fake_twins: pytest.MonkeyPatch) -> Iterator[str]:
    fake_twins.setattr(jobs, "PROCESS", "tests.compare.twins.fake_cell")
    fake_twins.setattr(dask_slots, "_POLL_SECONDS", 0.02)
    with cluster("127.0.0.2", "127.0.0.3") as address:
        yield address


def test_two_comparisons_run_on_two_machines_and_join_one_folder(
    two_machines: str, fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    behave(fake_twins, right__serial__1="crash")
    done = compare("run", *QUICK, *TWO, "--on", two_machines, "--out", out, "--json")
    print(done.output)
    print(done.exception)
    assert done.exit_code == 1
