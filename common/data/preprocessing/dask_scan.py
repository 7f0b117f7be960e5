"""Sums over a split's pixels by Dask: a map over groups of files, a reduction by addition."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import dask.config
import distributed
from dask.delayed import Delayed, delayed

from common.data.preprocessing.scan import file_sums, parts
from common.data.preprocessing.sums import Sums
from common.data.sources import Encoded
from common.machine import machine
from common.machine.dask_security import NO_HTTP_ROUTES, LOW_OVERHEAD, SCHEME, RunSecurity
from common.machine.machine import available_cores
from common.machine.private_folder import PrivateFolder
from common.spec import SCHEDULERS

ALLOWED_FAILURES = 1000
"""How many workers may die during one task before Dask gives it up. Dask's default is 3."""

CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 60.0
"""Within which a scheduler names its workers."""
_FAN_IN = 16


class SchedulerError(RuntimeError):
    """The cluster cannot be reached, or has too few workers."""


@contextmanager
def scanning(encoded: Encoded, image_size: int, workers: int, scheduler: str) -> Generator[Callable[[], Sums]]:
    """Start workers and warm them up. Gives the function that scans the whole split.

    Args:
        encoded: the files of the split. The workers of a cluster must find `encoded.path`.
        image_size: height and width of their canonical pixels.
        workers: number of threads, of processes with one thread, or of workers of the cluster, whatever threads they have.
        scheduler: one of SCHEDULERS, or the address of a cluster.

    Raises:
        SchedulerError: the cluster cannot be reached, or has fewer workers.
    """
    stretches = parts(encoded)
    total = _total(stretches, image_size)
    warm_up = _total([*stretches, *stretches][:workers], image_size)
    if scheduler == "threads":

        def compute(graph: Delayed) -> Sums:
            return graph.compute(scheduler="threads", num_workers=workers)

        compute(warm_up)
        yield lambda: compute(total)
        return
    with client(workers, scheduler) as connection:
        all_workers = list(workers_of(connection))
        # If all may work, none is named: a killed worker comes back under another address. If only some may work, they are
        # named: else idle workers would steal tasks, and the row would have more workers than it says.
        chosen: dict[str, Any] = {"workers": all_workers[:workers]} if workers < len(all_workers) else {}

        def compute_there(graph: Delayed) -> Sums:
            future: Any = connection.compute(graph, **chosen)
            return future.result()

        compute_there(warm_up)
        yield lambda: compute_there(total)


@contextmanager
def connected(address: str, otherwise: str = f"use {' or '.join(SCHEDULERS)}") -> Generator[distributed.Client]:
    """A client of the cluster at this address.

    Args:
        otherwise: what to do without a cluster.

    Raises:
        SchedulerError: nothing answers at the address.
    """
    try:
        _knock(address)
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise SchedulerError(
            f"scheduler cannot be reached. Received: {address} ({error}). Start one with `dask scheduler`, or {otherwise}."
        ) from None
    with client:
        yield client


def _knock(address: str) -> None:
    """Raise OSError or ValueError if nothing answers. A Client would find out slowly, and warn again when it is deleted."""
    place = urlsplit(address)
    if not place.hostname or place.port is None:
        raise ValueError("an address is tcp://host:port")
    with socket.create_connection((place.hostname, place.port), CONNECT_SECONDS) as connection:
        # Of a scheduler's greeting. With TLS, the client speaks first.
        if place.scheme == "tcp" and not connection.recv(1):
            raise OSError("the listener sends nothing")


def workers_and_cores(address: str) -> tuple[int, int]:
    """(number of workers of a cluster, number of CPU cores of their machines).

    Raises:
        SchedulerError: nothing answers at the address, or the cluster cannot import this project.
    """
    with connected(address) as client:
        found = workers_of(client)
        try:
            client.run_on_scheduler(available_cores)
            cores: Any = client.run(available_cores)
        except Exception as error:  # any error of importing or unpickling
            raise SchedulerError(
                f"the cluster at {address} cannot import this project. Received: {error}. Start its scheduler and its workers "
                f"from this environment with PYTHONPATH={machine.PROJECT_ROOT}."
            ) from None
        machines = {found[worker]["host"]: count for worker, count in cores.items()}
        return len(found), sum(machines.values())


def num_workers(client: distributed.Client) -> int:
    """Number of workers of a client's cluster."""
    return len(workers_of(client))


def workers_of(client: distributed.Client) -> dict[str, Any]:
    """Facts of the workers of a client's cluster, by their addresses.

    Raises:
        OSError: the scheduler does not answer.
    """
    # `scheduler_info` sometimes shows no worker: its answer is overwritten by another that the client asks for by itself.
    identity = client.scheduler.identity  # pyright: ignore[reportOptionalMemberAccess]
    found: Any = client.sync(identity, n_workers=-1, callback_timeout=_ANSWER_SECONDS)
    return found["workers"]


def _total(stretches: list[Encoded], image_size: int) -> Delayed:
    """The graph: sums of each group of files, added in a tree, so that no worker holds all of them."""
    task, add = delayed(file_sums, pure=False), delayed(_add, pure=False)
    level = [task(stretch, image_size) for stretch in stretches]
    while len(level) > 1:
        level = [add(level[first : first + _FAN_IN]) for first in range(0, len(level), _FAN_IN)]
    return level[0]


def _add(some: list[Sums]) -> Sums:
    return sum(some, Sums())


@contextmanager
def client(workers: int, scheduler: str) -> Generator[distributed.Client]:
    """A client of worker processes on this machine, or of the cluster at an address.

    Args:
        workers: number of workers that are needed.
        scheduler: `processes`, or the address of a cluster.

    Raises:
        SchedulerError: the cluster cannot be reached, or has fewer workers.
    """
    if scheduler != "processes":
        with connected(scheduler) as connection:
            found = len(workers_of(connection))
            if found < workers:
                raise SchedulerError(
                    f"the cluster must have {workers} workers. Received: {found}. Start more, or ask for fewer."
                )
            with _patient(connection):
                yield connection
        return
    # By default, Dask looks for a dead worker after 15 s, and gives it up for good if it has just died again.
    settings: dict[str, Any] = {"distributed.deploy.lost-worker-timeout": "1 week", **NO_HTTP_ROUTES, **LOW_OVERHEAD}
    folder = PrivateFolder(dask.config.get("temporary-directory", None))
    with folder, dask.config.set(settings):
        cluster = distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",  # Dask's default port is fixed, and open to other machines
            silence_logs=logging.CRITICAL,  # a worker that loses the scheduler while both end
            protocol=SCHEME,
            security=RunSecurity(),
            local_directory=str(folder.path),
        )
        with cluster, distributed.Client(cluster, set_as_default=False) as connection, _patient(connection):
            yield connection


@contextmanager
def _patient(client: distributed.Client) -> Generator[None]:
    """Let the cluster retry a task however often its worker dies, until the last user of this setting has gone."""
    client.run_on_scheduler(_count_users, change=1, allowed=ALLOWED_FAILURES)
    try:
        yield
    finally:
        client.run_on_scheduler(_count_users, change=-1, allowed=ALLOWED_FAILURES)


def _count_users(change: int, allowed: int, dask_scheduler: Any = None) -> None:
    users, before = getattr(dask_scheduler, "convtwins_users", (0, dask_scheduler.allowed_failures))
    dask_scheduler.convtwins_users = users + change, before
    dask_scheduler.allowed_failures = allowed if users + change else before
