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

from common.data.preprocessing.scan import CHUNK_BYTES, file_sums, parts
from common.data.preprocessing.sums import Sums
from common.data.sources import Encoded
from common.machine import machine
from common.machine.dask_security import LOW_OVERHEAD, NO_HTTP_ROUTES, SCHEME, RunSecurity
from common.machine.machine import available_cores
from common.machine.private_folder import PrivateFolder
from common.spec import SCHEDULERS

ALLOWED_FAILURES = 1000
"""Number of workers that may die during one task before Dask gives it up. Dask's default is 3."""

CONNECT_SECONDS = 10.0
_REPLY_TIMEOUT_SECONDS = 60.0
"""Seconds within which a scheduler must list its workers."""
_FAN_IN = 16


class SchedulerError(RuntimeError):
    """The cluster cannot be reached, or has too few workers."""


@contextmanager
def scanning(
    encoded: Encoded, image_size: int, workers: int, scheduler: str, *, chunk_bytes: int = CHUNK_BYTES
) -> Generator[Callable[[], Sums]]:
    """Start workers and warm them up. Gives the function that scans the whole split.

    Args:
        encoded: the files of the split. The workers of a cluster must find `encoded.path`.
        image_size: height and width of their canonical pixels.
        workers: number of threads, of processes with one thread, or of workers of the cluster, whatever threads they have.
        scheduler: one of SCHEDULERS, or the address of a cluster.
        chunk_bytes: bytes of files in one task.

    Raises:
        SchedulerError: the cluster cannot be reached, or has fewer workers.
    """
    groups = parts(encoded, chunk_bytes)
    total = _sum_graph(groups, image_size)
    warm_up = _sum_graph([*groups, *groups][:workers], image_size)
    if scheduler == "threads":

        def compute(graph: Delayed) -> Sums:
            return graph.compute(scheduler="threads", num_workers=workers)

        compute(warm_up)
        yield lambda: compute(total)
        return
    with client(workers, scheduler) as cluster_client:
        addresses = list(worker_info(cluster_client))
        # If all may work, none is named: a killed worker comes back under another address. If only some may work, they are
        # named: else idle workers would steal tasks, and the row would have more workers than it says.
        options: dict[str, Any] = {"workers": addresses[:workers]} if workers < len(addresses) else {}

        def compute_on_cluster(graph: Delayed) -> Sums:
            future: Any = cluster_client.compute(graph, **options)
            return future.result()

        compute_on_cluster(warm_up)
        yield lambda: compute_on_cluster(total)


@contextmanager
def connect(
    address: str, alternative: str = f"use {' or '.join(SCHEDULERS)}", connect_seconds: float = CONNECT_SECONDS
) -> Generator[distributed.Client]:
    """Connect a client to the cluster at an address.

    Args:
        address: tcp://host:port.
        alternative: advice for a user without a cluster.
        connect_seconds: time to wait for an answer.

    Raises:
        SchedulerError: nothing answers at the address.
    """
    try:
        _check_reachable(address, connect_seconds)
        client = distributed.Client(address, timeout=connect_seconds, set_as_default=False)
    except (OSError, ValueError) as error:
        raise SchedulerError(
            f"scheduler cannot be reached. Received: {address} ({error}). Start one with `dask scheduler`, or {alternative}."
        ) from None
    with client:
        yield client


def _check_reachable(address: str, connect_seconds: float) -> None:
    """Raise OSError or ValueError if nothing answers. A Client would find out slowly, and warn again when it is deleted."""
    url = urlsplit(address)
    if not url.hostname or url.port is None:
        raise ValueError("an address is tcp://host:port")
    with socket.create_connection((url.hostname, url.port), connect_seconds) as connection:
        # The first byte of a scheduler's greeting. With TLS, the client speaks first.
        if url.scheme == "tcp" and not connection.recv(1):
            raise OSError("the listener sends nothing")


def workers_and_cores(address: str) -> tuple[int, int]:
    """Return (number of workers of a cluster, number of CPU cores of their machines).

    Raises:
        SchedulerError: nothing answers at the address, or the cluster cannot import this project.
    """
    with connect(address) as client:
        workers = worker_info(client)
        try:
            client.run_on_scheduler(available_cores)
            cores: Any = client.run(available_cores)
        except Exception as error:  # any error of importing or unpickling
            raise SchedulerError(
                f"the cluster at {address} cannot import this project. Received: {error}. Start its scheduler and its workers "
                f"from this environment with PYTHONPATH={machine.PROJECT_ROOT}."
            ) from None
        machines = {workers[worker]["host"]: count for worker, count in cores.items()}
        return len(workers), sum(machines.values())


def num_workers(client: distributed.Client) -> int:
    """Return the number of workers of a client's cluster."""
    return len(worker_info(client))


def worker_info(client: distributed.Client) -> dict[str, Any]:
    """Return information on the workers of a client's cluster, by their addresses.

    Raises:
        OSError: the scheduler does not answer.
    """
    # `scheduler_info` sometimes shows no worker: its answer is overwritten by another that the client asks for by itself.
    identity = client.scheduler.identity  # pyright: ignore[reportOptionalMemberAccess]
    reply: Any = client.sync(identity, n_workers=-1, callback_timeout=_REPLY_TIMEOUT_SECONDS)
    return reply["workers"]


def _sum_graph(groups: list[Encoded], image_size: int) -> Delayed:
    """Return the graph: sums of each group of files, added in a tree, so that no worker holds all of them."""
    task, add = delayed(file_sums, pure=False), delayed(_add, pure=False)
    level = [task(group, image_size) for group in groups]
    while len(level) > 1:
        level = [add(level[first : first + _FAN_IN]) for first in range(0, len(level), _FAN_IN)]
    return level[0]


def _add(sums: list[Sums]) -> Sums:
    return sum(sums, Sums())


@contextmanager
def client(workers: int, scheduler: str) -> Generator[distributed.Client]:
    """Connect a client to worker processes on this machine, or to the cluster at an address.

    Args:
        workers: number of workers that are needed.
        scheduler: `processes`, or the address of a cluster.

    Raises:
        SchedulerError: the cluster cannot be reached, or has fewer workers.
    """
    if scheduler != "processes":
        with connect(scheduler) as connection:
            count = len(worker_info(connection))
            if count < workers:
                raise SchedulerError(
                    f"the cluster must have {workers} workers. Received: {count}. Start more, or ask for fewer."
                )
            with _unlimited_retries(connection):
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
        with cluster, distributed.Client(cluster, set_as_default=False) as connection, _unlimited_retries(connection):
            yield connection


@contextmanager
def _unlimited_retries(client: distributed.Client) -> Generator[None]:
    """Let the cluster retry a task however often its worker dies, until the last user of this setting has gone."""
    client.run_on_scheduler(_count_users, change=1, allowed=ALLOWED_FAILURES)
    try:
        yield
    finally:
        client.run_on_scheduler(_count_users, change=-1, allowed=ALLOWED_FAILURES)


def _count_users(change: int, allowed: int, dask_scheduler: Any = None) -> None:
    users, original = getattr(dask_scheduler, "convtwins_users", (0, dask_scheduler.allowed_failures))
    dask_scheduler.convtwins_users = users + change, original
    dask_scheduler.allowed_failures = allowed if users + change else original
