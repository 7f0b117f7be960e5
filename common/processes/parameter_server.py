"""A parameter server for both frameworks: arrays in, arrays out, on a dask.distributed actor.

Each worker pulls the parameters, makes gradients of its shard and pushes them; the server updates the parameters (Li et
al. 2014). Its methods wait on the event loop of the Dask worker that holds it, so that a barrier blocks nobody else.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from common import spec
from common.artifacts.schema import Staleness
from common.machine import flight, heartbeat, machine, placement
from common.processes import rendezvous, supervisor
from common.processes.process_spec import ProcessSpec
from common.spec import Spec
from common.training import compression, optim

if TYPE_CHECKING:  # imported where a run has a server: it takes half a second, of every other run too
    import distributed

Array = npt.NDArray[Any]

ADDRESS_VARIABLE = "CONVTWINS_PARAMETER_SERVER"
"""Where the ranks find the server process of their run."""
CONNECT_SECONDS = 60.0
"""For which a rank waits until the server answers for the first time: both start at once."""
PIECE = 2**16
"""Values that are added and updated at once. They stay in the processor's cache."""
LOST_SECONDS = 5.0
"""Within which the answer to a worker must come once another worker has gone: it may have been given before."""


class ServerError(RuntimeError):
    """The parameter server cannot be reached, is gone, or waits for a worker that is gone."""


class Server:
    """The parameters, and the rule that updates them."""

    def __init__(
        self,
        settings: spec.Optimizer,
        communication: spec.Communication,
        workers: int,
        *,
        synchronous: bool,
        staleness: int | None,
    ) -> None:
        """Start without parameters.

        Args:
            communication: says how the workers compress what they push.
            synchronous: one update from all workers' gradients, or one for each worker's.
            staleness: of asynchronous updates: steps that a worker may be ahead of the slowest; None: any number.
        """
        self._settings = settings
        self._communication = communication
        self._workers = workers
        self._synchronous = synchronous
        self._bound = 0 if synchronous else staleness
        self._values = np.zeros(0)
        self._counts: list[int] = []
        self._rule = optim.build(settings, self._pieces())
        self._updates = 0
        self._clocks = [0] * workers
        self._pulled = [0] * workers
        self._late: Counter[int] = Counter()
        self._shares: dict[int, list[Array]] = {}
        self._changed = asyncio.Condition()
        self._joined: set[int] = set()
        self._gathered: dict[int, Any] = {}
        self._all_gathered: asyncio.Future[list[Any]] | None = None

    async def join(self, rank: int, client: str) -> list[str]:
        """All workers' clients, by rank, as soon as all are here."""
        if rank in self._joined:
            raise ServerError(f"a rank {rank} is here already: another run meets at the same place. Wait until it has ended.")
        self._joined.add(rank)
        return await self.gather(rank, client)

    async def gather(self, rank: int, value: Any) -> list[Any]:
        """What every worker has brought, by rank, as soon as all have; asked by all in the same order."""
        everybody = self._all_gathered = self._all_gathered or asyncio.get_running_loop().create_future()
        self._gathered[rank] = value
        if len(self._gathered) == self._workers:
            everybody.set_result([self._gathered[each] for each in range(self._workers)])
            self._gathered, self._all_gathered = {}, None
        return await everybody

    async def sum(self, rank: int, values: Array) -> Array:
        """The sum of all workers' arrays, in the order of their ranks, so that it is the same at every run."""
        return reduce(np.add, await self.gather(rank, values))

    async def load(self, rank: int, values: Array, counts: list[int]) -> None:
        """Take rank 0's parameters, and how many of them are in each message; all workers wait until they are here.

        The optimizer's state stays if the parameters are as many as before. No worker pulls meanwhile.

        Raises:
            ServerError: the messages do not hold as many values.
        """
        if rank == 0 and sum(counts) != len(values):
            raise ServerError(f"messages of {sum(counts)} values do not hold all parameters. Received: {len(values)} values.")
        if rank == 0 and counts == self._counts and values.dtype == self._values.dtype:
            self._values[:] = values
        elif rank == 0:
            self._values = values.copy()
            self._counts = counts
            self._rule = optim.build(self._settings, self._pieces())
        await self.gather(rank, None)

    async def push(self, rank: int, messages: list[Array], learning_rate: float) -> None:
        """Take a worker's gradient: of its share of the mean over all (synchronous), or of the mean over its own shard."""
        parts = zip(messages, self._counts, strict=True)
        gradient = [compression.decode(part, count, self._values.dtype, self._communication) for part, count in parts]
        async with self._changed:
            self._clocks[rank] += 1
            self._shares[rank] = [piece for part in gradient for piece in _cut(part)]
            if not self._synchronous or len(self._shares) == self._workers:
                self._update(learning_rate)
            self._changed.notify_all()

    def _update(self, learning_rate: float) -> None:
        self._late.update(self._updates - self._pulled[rank] for rank in self._shares)
        self._updates += 1
        shares = [self._shares[rank] for rank in sorted(self._shares)]
        totals = (reduce(np.add, pieces) for pieces in zip(*shares, strict=True))
        self._rule.apply(totals, learning_rate, self._updates)
        self._shares.clear()

    def _pieces(self) -> list[Array]:
        """The parameters, cut as each message is."""
        borders = itertools.pairwise([0, *itertools.accumulate(self._counts)])
        return [piece for start, end in borders for piece in _cut(self._values[start:end])]

    async def pull(self, rank: int) -> Array:
        """The parameters, as soon as this worker is not too far ahead of the slowest."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._bound is None or self._clocks[rank] - min(self._clocks) <= self._bound)
            self._pulled[rank] = self._updates
            # The next update must not change what is still being sent. A synchronous one needs a push of every worker, and a
            # worker pushes only when it has its whole answer.
            return self._values if self._synchronous else self._values.copy()

    async def slots(self, rank: int) -> dict[str, Array]:
        """What the rule keeps for all parameters, by slot. For recordings, never while a step is timed."""
        return {slot: np.concatenate(kept) for slot, kept in self._rule.slots().items()}

    async def load_slots(self, rank: int, values: dict[str, Array]) -> None:
        """Take rank 0's slots; all workers wait until they are here."""
        for slot, kept in self._rule.slots().items() if rank == 0 else ():
            borders = [*itertools.accumulate(map(len, kept))][:-1]
            for piece, own in zip(kept, np.split(values[slot], borders), strict=True):
                piece[:] = own
        await self.gather(rank, None)

    async def late(self, rank: int) -> list[int]:
        """Pushes by the number of updates between the worker's pull and the update that its push became."""
        return [self._late[updates] for updates in range(max(self._late, default=-1) + 1)]


def _cut(values: Array) -> list[Array]:
    """Views of `PIECE` values, the last of fewer."""
    return [values[start : start + PIECE] for start in range(0, len(values), PIECE)]


class Connection:
    """One worker's way to the server; every call waits for the answer."""

    def __init__(self, client: distributed.Client, server: Any, rank: int, workers: int, *, synchronous: bool) -> None:
        self._client = client
        self._server = server
        self._rank = rank
        together, alone = flight.group_channel(tuple(range(workers))), flight.group_channel((rank,))
        # What all workers ask in the same order, and what each asks as it likes.
        self._channels: dict[str, flight.Channel] = {
            **dict.fromkeys(("join", "gather", "sum", "load", "load_slots"), together),
            **dict.fromkeys(("push", "pull"), together if synchronous else alone),
            **dict.fromkeys(("slots", "late"), alone),
        }
        self._bytes = {"push": 0, "pull": 0}
        self._waiting_seconds = 0.0
        self._pushed = False
        self._clients: list[str] = []  # of all workers, by rank
        self._clients = self._ask("join", client.id)

    def load(self, values: Array, counts: list[int]) -> None:
        """Make rank 0's values the parameters; called by all workers, at the start of the run.

        Args:
            values: of all parameters, [count].
            counts: how many of them the gradient has in each of its messages, in order.
        """
        self._ask("load", values if self._rank == 0 else values[:0], counts)

    def push(self, messages: list[Array], learning_rate: float) -> None:
        """Give the gradient: of this worker's share of the mean over all (synchronous), or of the mean over its own shard.

        Args:
            messages: of its buckets, as the spec has them compressed, see `common.training.compression`.
        """
        with self._waiting():
            self._ask("push", messages, learning_rate)
        self._bytes["push"] = sum(message.nbytes for message in messages)
        self._pushed = True

    def pull(self) -> Array:
        """The parameters, as soon as the spec lets this worker go on."""
        # Only what follows a push is a step's; before a score the parameters are pulled too.
        with self._waiting() if self._pushed else nullcontext():
            values: Array = self._ask("pull")
        self._bytes["pull"] = values.nbytes
        self._pushed = False
        return values

    def slots(self) -> dict[str, Array]:
        """What the server's rule keeps for all parameters, [count] by slot. For recordings."""
        return self._ask("slots")

    def load_slots(self, values: dict[str, Array]) -> None:
        """Make rank 0's values the slots; called by all workers."""
        self._ask("load_slots", values if self._rank == 0 else {})

    def sum(self, values: Array) -> Array:
        """The sum over workers, the same in each."""
        return self._ask("sum", values)

    def barrier(self) -> None:
        """Wait until all workers are here."""
        self._ask("gather", None)

    def report(self) -> dict[str, Any]:
        """Of the run so far, as fields of its result; a step is one push and one pull of each worker."""
        moved, waited = self.sum(np.array([sum(self._bytes.values()), self._waiting_seconds]))
        staleness = Staleness(counts=self._ask("late"), waiting_seconds=float(waited) / len(self._clients))
        return {"bytes_per_step": float(moved), "staleness": staleness}

    def close(self) -> None:
        """Leave the server, when all workers are done."""
        self.barrier()
        self._client.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        # What rank 0 alone brings is not told: all must record the same.
        brought = arguments[0] if arguments and method in ("sum", "push") else []
        arrays = brought if isinstance(brought, list) else [brought]
        number = self._channels[method].begin(
            "barrier" if method == "gather" else method,
            arrays[0].dtype.name if arrays else "",
            arrays[0].shape if len(arrays) == 1 else (sum(array.size for array in arrays),) if arrays else (),
            sum(array.nbytes for array in arrays),
        )
        answer = self._answer(method, *arguments)
        flight.end(number)
        return answer

    def _answer(self, method: str, *arguments: Any) -> Any:
        try:
            answer = getattr(self._server, method)(self._rank, *arguments)
            gone: int | None = None
            while True:
                try:
                    return answer.result(timeout=LOST_SECONDS)
                except TimeoutError:
                    if gone is not None:
                        raise ServerError(f"rank {gone} has left the parameter server, which waits for it") from None
                    gone = self._departed()
        except ServerError:
            raise
        except (OSError, RuntimeError) as error:
            raise ServerError(f"the parameter server is gone ({error})") from None

    def _departed(self) -> int | None:
        # Asked, not subscribed to: a worker may leave before the scheduler has a subscription.
        for rank, client in enumerate(self._clients):
            events: Any = self._client.get_events(client)
            if any(event.get("action") == "remove-client" for _, event in events):
                return rank
        return None

    @contextmanager
    def _waiting(self) -> Generator[None]:
        started = time.perf_counter()
        yield
        self._waiting_seconds += time.perf_counter() - started


def join(read: Spec, rank: int, meeting_place: str) -> Connection:
    """Find the server of a run, or start it where nobody has, and wait for the other workers.

    Args:
        rank: this worker's, in 0..replicas-1.
        meeting_place: a word that the workers of this run share with no other run.

    Raises:
        ServerError: nobody answers, or the cluster cannot hold the server.
    """
    import distributed

    from common.machine.dask_security import RunSecurity

    address = read.parameter_server.scheduler or os.environ.get(ADDRESS_VARIABLE)
    if address is None:
        raise ServerError(
            "mode parameter_server has no server: somebody else than this suite has started its ranks. "
            "Set parameter_server.scheduler to the address of a Dask cluster."
        )
    _hush()
    # A cluster of the user has what Dask's configuration says.
    security = RunSecurity(os.environ[placement.RUN_SECRET_VARIABLE]) if read.parameter_server.scheduler is None else None
    try:
        client = distributed.Client(
            address, timeout=CONNECT_SECONDS, set_as_default=False, direct_to_workers=True, security=security
        )
    except (OSError, ValueError) as error:
        raise ServerError(f"the parameter server cannot be reached. Received: {address} ({error}).") from None
    if not client.scheduler_info(n_workers=-1)["workers"]:
        raise ServerError(f"the cluster at {address} has no worker to hold the parameters. Start one with `dask worker`.")
    settings = read.parameter_server
    try:
        future = client.submit(
            Server,
            read.optimizer,
            read.communication,
            read.replicas,
            synchronous=settings.updates == "synchronous",
            staleness=settings.staleness,
            key=f"convtwins-parameters-{meeting_place}",  # the same key is the same actor, whoever asks first
            actor=True,
        )
        with client.as_current():
            server: Any = future.result()
    except Exception as error:  # whatever it was that they could not import or unpickle
        raise ServerError(
            f"the cluster at {address} cannot hold the parameters. Received: {error}. Start its scheduler and its workers "
            f"from this environment with PYTHONPATH={machine.PROJECT_ROOT}."
        ) from None
    return Connection(client, server, rank, read.replicas, synchronous=settings.updates == "synchronous")


def of_its_own(read: Spec, secret: str) -> tuple[ProcessSpec, dict[str, str]] | None:
    """The server process that a run needs beside its ranks, and what tells them of it; None: a cluster has it, or no server.

    Args:
        secret: of the run. The ranks have it in `placement.RUN_SECRET_VARIABLE`.
    """
    if read.mode != "parameter_server" or read.parameter_server.scheduler is not None:
        return None
    address = read.hosts[0] if read.hosts else placement.LOOPBACK
    (port,) = supervisor.free_ports(1, address)
    command = [sys.executable, "-m", "common.processes.parameter_server", "--address", address, "--port", str(port)]
    # The scheme of `dask_security`, whose import would take the launcher half a second.
    here = {ADDRESS_VARIABLE: f"convtwins://{rendezvous.joined(address, port)}"}
    return ProcessSpec("parameter server", command, {placement.RUN_SECRET_VARIABLE: secret}, trains=False), here


async def serve(address: str, port: int, secret: str) -> None:
    """Be a cluster of one Dask worker until SIGTERM: at an address of this machine and no other, for processes of the run."""
    import dask.config
    import distributed

    from common.machine.dask_security import NO_HTTP_ROUTES, LOW_OVERHEAD, SCHEME, RunSecurity

    _hush()
    dask.config.set({**NO_HTTP_ROUTES, **LOW_OVERHEAD})
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    there: dict[str, Any] = {"host": address, "protocol": SCHEME, "security": RunSecurity(secret)}
    # Dask opens a port for its dashboard even where there is none.
    there |= {"dashboard": False, "dashboard_address": f"{placement.LOOPBACK}:0"}
    async with (
        distributed.Scheduler(port=port, **there) as scheduler,
        distributed.Worker(scheduler.address, nthreads=1, memory_limit=0, **there),
    ):
        await stop.wait()


def _hush() -> None:
    # Dask tells of every connection; what matters is raised here.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def main() -> None:
    """Serve as the run's launcher asks for it."""
    parser = argparse.ArgumentParser(prog="python -m common.processes.parameter_server", description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    supervisor.die_with_parent()
    heartbeat.attach()
    asyncio.run(serve(arguments.address, arguments.port, os.environ[placement.RUN_SECRET_VARIABLE]))


if __name__ == "__main__":
    main()
