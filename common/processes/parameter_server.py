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
"""Variable with the address of the run's server process."""
CONNECT_SECONDS = 60.0
"""Seconds that a rank waits for the server's first answer. Both start at the same time."""
CHUNK_SIZE = 2**16
"""Number of values that are added and updated together. They stay in the processor's cache."""
ANSWER_SECONDS = 5.0
"""Seconds that a worker still waits for an answer after another worker has gone. The server may have sent it before."""


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
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        """Start without parameters.

        Args:
            settings: optimizer settings of the spec.
            communication: compression of the workers' gradients.
            workers: number of workers.
            synchronous: one update from all workers' gradients, or one for each worker's.
            staleness: steps that a worker may be ahead of the slowest in asynchronous updates. None: any number.
            chunk_size: number of values that are added and updated together.
        """
        self._chunk_size = chunk_size
        self._settings = settings
        self._communication = communication
        self._workers = workers
        self._synchronous = synchronous
        self._max_lead = 0 if synchronous else staleness
        self._values = np.zeros(0)
        self._counts: list[int] = []
        self._rule = optim.build(settings, self._chunks())
        self._updates = 0
        self._clocks = [0] * workers
        self._pulled = [0] * workers
        self._late: Counter[int] = Counter()
        self._shares: dict[int, list[Array]] = {}
        self._changed = asyncio.Condition()
        self._joined: set[int] = set()
        self._contributions: dict[int, Any] = {}
        self._gather_future: asyncio.Future[list[Any]] | None = None

    async def join(self, rank: int, client: str) -> list[str]:
        """Return all workers' clients, by rank, as soon as all have joined."""
        if rank in self._joined:
            raise ServerError(f"a rank {rank} is here already: another run meets at the same place. Wait until it has ended.")
        self._joined.add(rank)
        return await self.gather(rank, client)

    async def gather(self, rank: int, value: Any) -> list[Any]:
        """Return every worker's value, by rank, as soon as all have called. All make these calls in the same order."""
        future = self._gather_future = self._gather_future or asyncio.get_running_loop().create_future()
        self._contributions[rank] = value
        if len(self._contributions) == self._workers:
            future.set_result([self._contributions[worker] for worker in range(self._workers)])
            self._contributions, self._gather_future = {}, None
        return await future

    async def sum(self, rank: int, values: Array) -> Array:
        """Return the sum of all workers' arrays in the order of their ranks, so that every run gets the same bits."""
        return reduce(np.add, await self.gather(rank, values))

    async def load(self, rank: int, values: Array, counts: list[int]) -> None:
        """Take rank 0's parameters, and how many of them are in each message. All workers wait until they have arrived.

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
            self._rule = optim.build(self._settings, self._chunks())
        await self.gather(rank, None)

    async def push(self, rank: int, messages: list[Array], learning_rate: float) -> None:
        """Take a worker's gradient of its share of the mean over all (synchronous) or of the mean over its own shard."""
        encoded = zip(messages, self._counts, strict=True)
        buckets = [compression.decode(part, count, self._values.dtype, self._communication) for part, count in encoded]
        async with self._changed:
            self._clocks[rank] += 1
            self._shares[rank] = [piece for part in buckets for piece in self._split(part)]
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

    def _chunks(self) -> list[Array]:
        """Return views of the parameters, split like the messages."""
        borders = itertools.pairwise([0, *itertools.accumulate(self._counts)])
        return [piece for start, end in borders for piece in self._split(self._values[start:end])]

    async def pull(self, rank: int) -> Array:
        """Return the parameters, as soon as this worker is not too far ahead of the slowest."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._max_lead is None or self._clocks[rank] - min(self._clocks) <= self._max_lead
            )
            self._pulled[rank] = self._updates
            # The next update must not change what is still being sent. A synchronous one needs a push of every worker, and a
            # worker pushes only when it has its whole answer.
            return self._values if self._synchronous else self._values.copy()

    async def slots(self, rank: int) -> dict[str, Array]:
        """Return the optimizer's state for all parameters, by slot. For recordings, never while a step is timed."""
        return {slot: np.concatenate(arrays) for slot, arrays in self._rule.slots().items()}

    async def load_slots(self, rank: int, values: dict[str, Array]) -> None:
        """Take rank 0's slots. All workers wait until they have arrived."""
        for slot, arrays in self._rule.slots().items() if rank == 0 else ():
            borders = [*itertools.accumulate(map(len, arrays))][:-1]
            for chunk, new_values in zip(arrays, np.split(values[slot], borders), strict=True):
                chunk[:] = new_values
        await self.gather(rank, None)

    async def late(self, rank: int) -> list[int]:
        """Count pushes by the number of updates between the worker's pull and the update that its push became."""
        return [self._late[updates] for updates in range(max(self._late, default=-1) + 1)]

    def _split(self, values: Array) -> list[Array]:
        """Split an array into views of `chunk_size` values. The last has fewer."""
        return [values[start : start + self._chunk_size] for start in range(0, len(values), self._chunk_size)]


class ServerConnection:
    """One worker's connection to the server. Every call waits for the answer."""

    def __init__(
        self,
        client: distributed.Client,
        server: Any,
        rank: int,
        workers: int,
        *,
        synchronous: bool,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._answer_seconds = answer_seconds
        self._client = client
        self._server = server
        self._rank = rank
        shared_channel, own_channel = flight.group_channel(tuple(range(workers))), flight.group_channel((rank,))
        # What all workers ask in the same order, and what each asks as it likes.
        self._channels: dict[str, flight.Channel] = {
            **dict.fromkeys(("join", "gather", "sum", "load", "load_slots"), shared_channel),
            **dict.fromkeys(("push", "pull"), shared_channel if synchronous else own_channel),
            **dict.fromkeys(("slots", "late"), own_channel),
        }
        self._bytes = {"push": 0, "pull": 0}
        self._waiting_seconds = 0.0
        self._pushed = False
        self._clients: list[str] = []  # of all workers, by rank
        self._clients = self._ask("join", client.id)

    def load(self, values: Array, counts: list[int]) -> None:
        """Make rank 0's values the parameters. All workers call it, at the start of the run.

        Args:
            values: values of all parameters, [count].
            counts: number of values in each message of the gradient, in order.
        """
        self._ask("load", values if self._rank == 0 else values[:0], counts)

    def push(self, messages: list[Array], learning_rate: float) -> None:
        """Send the gradient of this worker's share of the mean over all (synchronous) or of the mean over its own shard.

        Args:
            messages: the gradient's buckets, compressed as in the spec, see `common.training.compression`.
            learning_rate: learning rate of the step.
        """
        with self._waiting():
            self._ask("push", messages, learning_rate)
        self._bytes["push"] = sum(message.nbytes for message in messages)
        self._pushed = True

    def pull(self) -> Array:
        """Return the parameters, as soon as the spec lets this worker go on."""
        # Only what follows a push is a step's; before a score the parameters are pulled too.
        with self._waiting() if self._pushed else nullcontext():
            values: Array = self._ask("pull")
        self._bytes["pull"] = values.nbytes
        self._pushed = False
        return values

    def slots(self) -> dict[str, Array]:
        """Return the optimizer's state for all parameters, [count] by slot. For recordings."""
        return self._ask("slots")

    def load_slots(self, values: dict[str, Array]) -> None:
        """Make rank 0's values the slots. All workers call it."""
        self._ask("load_slots", values if self._rank == 0 else {})

    def sum(self, values: Array) -> Array:
        """Return the sum over all workers, equal in each."""
        return self._ask("sum", values)

    def barrier(self) -> None:
        """Wait until all workers have called it."""
        self._ask("gather", None)

    def report(self) -> dict[str, Any]:
        """Return the result fields of the run so far. A step is one push and one pull of each worker."""
        num_bytes, waiting_seconds = self.sum(np.array([sum(self._bytes.values()), self._waiting_seconds]))
        staleness = Staleness(counts=self._ask("late"), waiting_seconds=float(waiting_seconds) / len(self._clients))
        return {"bytes_per_step": float(num_bytes), "staleness": staleness}

    def close(self) -> None:
        """Leave the server, when all workers are done."""
        self.barrier()
        self._client.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        # What rank 0 alone brings is not told: all must record the same.
        payload = arguments[0] if arguments and method in ("sum", "push") else []
        arrays = payload if isinstance(payload, list) else [payload]
        number = self._channels[method].begin(
            "barrier" if method == "gather" else method,
            arrays[0].dtype.name if arrays else "",
            arrays[0].shape if len(arrays) == 1 else (sum(array.size for array in arrays),) if arrays else (),
            sum(array.nbytes for array in arrays),
        )
        answer = self._wait_for_answer(method, *arguments)
        flight.end(number)
        return answer

    def _wait_for_answer(self, method: str, *arguments: Any) -> Any:
        try:
            answer = getattr(self._server, method)(self._rank, *arguments)
            departed_rank: int | None = None
            while True:
                try:
                    return answer.result(timeout=self._answer_seconds)
                except TimeoutError:
                    if departed_rank is not None:
                        raise ServerError(f"rank {departed_rank} has left the parameter server, which waits for it") from None
                    departed_rank = self._find_departed()
        except ServerError:
            raise
        except (OSError, RuntimeError) as error:
            raise ServerError(f"the parameter server is gone ({error})") from None

    def _find_departed(self) -> int | None:
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


def join(
    run_spec: Spec,
    rank: int,
    rendezvous_id: str,
    connect_seconds: float = CONNECT_SECONDS,
    answer_seconds: float = ANSWER_SECONDS,
) -> ServerConnection:
    """Find the server of a run, or start it if nobody has, and wait for the other workers.

    Args:
        run_spec: spec of the run.
        rank: this worker's rank, in 0..replicas-1.
        rendezvous_id: an id that the workers of this run share with no other run.
        connect_seconds: seconds that it waits for the server's first answer.
        answer_seconds: seconds that it still waits for an answer after another worker has gone.

    Raises:
        ServerError: nobody answers, or the cluster cannot hold the server.
    """
    import distributed

    from common.machine.dask_security import RunSecurity

    address = run_spec.parameter_server.scheduler or os.environ.get(ADDRESS_VARIABLE)
    if address is None:
        raise ServerError(
            "mode parameter_server has no server: somebody else than this suite has started its ranks. "
            "Set parameter_server.scheduler to the address of a Dask cluster."
        )
    _silence_dask_logging()
    # A cluster of the user has the security of Dask's configuration.
    security = RunSecurity(os.environ[placement.RUN_SECRET_VARIABLE]) if run_spec.parameter_server.scheduler is None else None
    try:
        client = distributed.Client(
            address, timeout=connect_seconds, set_as_default=False, direct_to_workers=True, security=security
        )
    except (OSError, ValueError) as error:
        raise ServerError(f"the parameter server cannot be reached. Received: {address} ({error}).") from None
    if not client.scheduler_info(n_workers=-1)["workers"]:
        raise ServerError(f"the cluster at {address} has no worker to hold the parameters. Start one with `dask worker`.")
    settings = run_spec.parameter_server
    try:
        future = client.submit(
            Server,
            run_spec.optimizer,
            run_spec.communication,
            run_spec.replicas,
            synchronous=settings.updates == "synchronous",
            staleness=settings.staleness,
            key=f"convtwins-parameters-{rendezvous_id}",  # the same key is the same actor, whoever asks first
            actor=True,
        )
        with client.as_current():
            server: Any = future.result()
    except Exception as error:  # whatever it was that they could not import or unpickle
        raise ServerError(
            f"the cluster at {address} cannot hold the parameters. Received: {error}. Start its scheduler and its workers "
            f"from this environment with PYTHONPATH={machine.PROJECT_ROOT}."
        ) from None
    return ServerConnection(
        client, server, rank, run_spec.replicas, synchronous=settings.updates == "synchronous", answer_seconds=answer_seconds
    )


def server_process(run_spec: Spec, secret: str) -> tuple[ProcessSpec, dict[str, str]] | None:
    """Return the server process of a run and the variables for its ranks. None: a cluster has it, or no server is needed.

    Args:
        run_spec: spec of the run.
        secret: the run's secret. The ranks have it in `placement.RUN_SECRET_VARIABLE`.
    """
    if not run_spec.traits.has_server or run_spec.parameter_server.scheduler is not None:
        return None
    address = run_spec.hosts[0] if run_spec.hosts else placement.LOOPBACK
    (port,) = supervisor.free_ports(1, address)
    command = [sys.executable, "-m", "common.processes.parameter_server", "--address", address, "--port", str(port)]
    # The scheme of `dask_security`, whose import would take the launcher half a second.
    variables = {ADDRESS_VARIABLE: f"convtwins://{rendezvous.join_address(address, port)}"}
    return ProcessSpec("parameter server", command, {placement.RUN_SECRET_VARIABLE: secret}, trains=False), variables


async def serve(address: str, port: int, secret: str) -> None:
    """Run a cluster of one Dask worker until SIGTERM, at one address of this machine, for processes of the run."""
    import dask.config
    import distributed

    from common.machine.dask_security import LOW_OVERHEAD, NO_HTTP_ROUTES, SCHEME, RunSecurity

    _silence_dask_logging()
    dask.config.set({**NO_HTTP_ROUTES, **LOW_OVERHEAD})
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    options: dict[str, Any] = {"host": address, "protocol": SCHEME, "security": RunSecurity(secret)}
    # Dask opens a port for its dashboard even where there is none.
    options |= {"dashboard": False, "dashboard_address": f"{placement.LOOPBACK}:0"}
    async with (
        distributed.Scheduler(port=port, **options) as scheduler,
        distributed.Worker(scheduler.address, nthreads=1, memory_limit=0, **options),
    ):
        await stop.wait()


def _silence_dask_logging() -> None:
    # Dask tells of every connection; what matters is raised here.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def main() -> None:
    """Run the server with the launcher's arguments."""
    parser = argparse.ArgumentParser(prog="python -m common.processes.parameter_server", description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    heartbeat.attach()
    asyncio.run(serve(arguments.address, arguments.port, os.environ[placement.RUN_SECRET_VARIABLE]))


if __name__ == "__main__":
    main()
