"""Processes that serve trials, on this machine or on workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import spec
from common.machine import machine
from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.cli.errors import LaunchError
from compare.running.servers import ENDED, Listener, LocalServer
from compare.tools.tuning.records import Backend

_WORKER_SECONDS = 60.0
"""Seconds to wait for a lost worker to come back."""
_POLL_SECONDS = 0.01
_CLOSE_SECONDS = 10.0
"""Seconds to wait until a worker has ended its server."""


@dataclass(frozen=True)
class JobLayout:
    """How jobs share the cores."""

    backend: Backend
    jobs: int
    """Trials that run at the same time."""
    budget: int
    """Cores of all trials together."""
    device: spec.Device = "auto"

    @property
    def servers(self) -> int:
        return 1 if self.backend == "threads" else self.jobs

    @property
    def trials_a_server(self) -> int:
        return self.jobs if self.backend == "threads" else 1

    @property
    def cores_a_trial(self) -> int:
        return max(self.budget // self.jobs, 1)

    def arguments(self, place: int) -> list[str]:
        """Arguments of the twin's command, for the server at a place from 0."""
        numbers = {"cores": self.cores_a_trial, "trials": self.trials_a_server, "place": place, "budget": self.budget}
        options = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
        return ["serve-trials", "--device", self.device, *options]


class ServerActor:
    """An actor of a Dask worker: a server on the worker's machine, which ends with the worker.

    The stacks of a hanging server are removed with its folder.

    Args:
        framework, arguments, hang_seconds: as in `LocalServer`.
    """

    def __init__(self, framework: str, arguments: list[str], hang_seconds: float) -> None:
        folder = PrivateFolder()
        self._events: list[dict[str, Any]] = []
        self._server = LocalServer(framework, arguments, folder.path / "log.txt", self._events.append, hang_seconds)
        self._end = weakref.finalize(self, _remove, self._server, folder)

    async def call(self, method: str, *arguments: Any) -> None:
        """Call a method of the server."""
        if method == "close":
            self._end()
        else:
            getattr(self._server, method)(*arguments)

    async def events(self) -> list[dict[str, Any]]:
        """Return the server's events since the last call. Wait until there are any."""
        while not self._events:
            await asyncio.sleep(_POLL_SECONDS)
        count = len(self._events)
        events, self._events[:count] = self._events[:count], []
        return events


def _remove(server: LocalServer, folder: PrivateFolder) -> None:
    server.close()
    folder.remove()


class RemoteServer:
    """A server on a worker of a Dask cluster, with the methods of `LocalServer`.

    The worker watches the server. The cluster's heartbeats watch the worker.

    Args:
        actor: a ServerActor there.
        listener: called with its events, and finally with ENDED.
    """

    def __init__(self, actor: Any, listener: Listener) -> None:
        self._actor = actor
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        self._call("send", message, seconds=None)

    def expect(self) -> None:
        self._call("expect")

    def look(self) -> None:
        self._call("look")

    def close(self) -> None:
        self._call("close", seconds=_CLOSE_SECONDS)

    def _call(self, method: str, *arguments: Any, seconds: float | None = 0.0) -> None:
        with suppress(Exception):  # whatever Dask raises for a lost or unreachable worker: `_listen` reports it
            answer = self._actor.call(method, *arguments)
            if seconds != 0.0:
                answer.result(timeout=seconds)

    def _listen(self, listener: Listener) -> None:
        reason = "ended"
        try:
            while True:
                for event in self._actor.events().result():
                    listener(event)
                    if event["event"] == ENDED:
                        return
        except Exception as error:  # whatever Dask raises for a lost worker
            reason = f"its Dask worker is lost: {str(error).strip() or type(error).__name__}"
        listener({"event": ENDED, "reason": reason})


Server = LocalServer | RemoteServer
Serving = Callable[[str, JobLayout, str | None, Path, float], AbstractContextManager[Callable[[int, Listener], Server]]]
"""The type of `serving`."""


@contextmanager
def serving(
    framework: str, layout: JobLayout, scheduler: str | None, logs: Path, hang_seconds: float
) -> Generator[Callable[[int, Listener], Server]]:
    """Yield the function that starts the server of a place, from 0. Call it again to replace a server that has ended.

    Args:
        scheduler: address of a Dask cluster. None: a local cluster of processes, if the backend is `dask`.
        logs: path of the servers' logs without place and suffix.
        hang_seconds: after this time, a server that hangs is ended.

    The yielded function raises LaunchError if a lost worker does not come back.
    """
    if layout.backend != "dask":

        def start_local(place: int, listener: Listener) -> Server:
            log = logs.with_name(f"{logs.name}-{place}.txt")
            return LocalServer(framework, layout.arguments(place), log, listener, hang_seconds)

        yield start_local
        return
    from common.data.preprocessing import dask_scan  # takes a second to import

    try:
        with dask_scan.client(layout.jobs, scheduler or "processes") as client:
            yield _remote_starter(client, framework, layout, scheduler, hang_seconds)
    except dask_scan.SchedulerError as error:
        raise SpecError(str(error)) from None


def _remote_starter(
    client: Any, framework: str, layout: JobLayout, scheduler: str | None, hang_seconds: float
) -> Callable[[int, Listener], Server]:
    """Return the function that starts the server of a place on the worker with the fewest servers."""
    addresses: dict[int, str] = {}

    def start(place: int, listener: Listener) -> Server:
        addresses.pop(place, None)
        try:
            client.wait_for_workers(layout.jobs, timeout=_WORKER_SECONDS)
        except TimeoutError:
            num_workers = len(client.scheduler_info(n_workers=-1)["workers"])
            raise LaunchError(
                f"The Dask cluster{f' {scheduler}' if scheduler else ''} has lost workers. Received: {num_workers} of "
                f"{layout.jobs} after {_WORKER_SECONDS:g} s. Start them again, and run the same command with --resume."
            ) from None
        workers: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
        num_servers = Counter(addresses.values())
        addresses[place] = address = min(sorted(workers), key=num_servers.__getitem__)
        # Servers of one machine share its cores.
        neighbours = [other for other in addresses if workers.get(addresses[other], {}).get("host") == workers[address]["host"]]
        arguments = (framework, layout.arguments(neighbours.index(place)), hang_seconds)
        try:
            future = client.submit(ServerActor, *arguments, actor=True, workers=[address], pure=False)
            with client.as_current():
                return RemoteServer(future.result(), listener)
        except Exception as error:  # whatever the worker could not import or unpickle
            raise LaunchError(
                f"The Dask worker {address} cannot serve trials. Received: {error}. Start the cluster's scheduler and its "
                f"workers from this environment with PYTHONPATH={machine.PROJECT_ROOT}."
            ) from None

    return start


def cores_of(scheduler: str) -> int:
    """Return the number of CPU cores of all machines of a Dask cluster."""
    from common.data.preprocessing import dask_scan

    try:
        return dask_scan.workers_and_cores(scheduler)[1]
    except dask_scan.SchedulerError as error:
        raise SpecError(str(error)) from None
