"""Processes that serve trials: on this machine, or each on a worker of a Dask cluster; see `common.processes.serving`."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from common import spec
from common.machine import machine
from common.processes import watchdog
from common.spec import SpecError
from compare.core.errors import LaunchError
from compare.execution import executor, launch

Backend = Literal["threads", "processes", "dask"]
BACKENDS: tuple[Backend, ...] = ("threads", "processes", "dask")

ENDED = "ended"
"""The event by which this process learns that a server is gone; `reason` says how."""

Hear = Callable[[dict[str, Any]], None]
"""Called with every event of a server, from a thread of its own."""

_WORKER_SECONDS = 60.0
"""Seconds to wait for a lost worker to come back."""
_POLL_SECONDS = 0.01
_CLOSE_SECONDS = 10.0
"""Seconds to wait until a worker has ended its server."""


@dataclass(frozen=True)
class Layout:
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
        return [
            "serve-trials",
            "--device",
            self.device,
            *(word for name, number in numbers.items() for word in (f"--{name}", str(number))),
        ]


class Server(Protocol):
    """A process that serves trials."""

    def send(self, message: dict[str, Any]) -> None:
        """Send it a request. If the server is gone, `ended` arrives instead of an answer."""
        ...

    def expect(self) -> None:
        """It has work from now on. Its watchdog starts here."""
        ...

    def look(self) -> None:
        """Call this often while it has work: a server that hangs is ended."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Local:
    """A server on this machine.

    Args:
        framework: a name of `launch.FRAMEWORKS`.
        arguments: of its command.
        log: receives its stderr.
        hear: called with its events, and finally with ENDED.
        hang_seconds: after this time, a server that hangs is ended.
    """

    def __init__(self, framework: str, arguments: list[str], log: Path, hear: Hear, hang_seconds: float) -> None:
        self._hang_seconds = hang_seconds
        self._log = log
        self._hang: str | None = None
        self._kills = executor.memory_kills()
        self._process = launch.start(framework, arguments, log=log, talks=True)
        self.expect()
        threading.Thread(target=self._listen, args=(hear,), daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Send it a request. If the server is gone, `ended` arrives instead of an answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the listener reports its end
            pass

    def expect(self) -> None:
        """It has work from now on. Its watchdog starts here."""
        member = watchdog.Member("the process", self._process.watched)
        self._dog = watchdog.Watchdog([member], self._hang_seconds)

    def look(self) -> None:
        """Call this often while it has work: a server that hangs is ended."""
        if self._hang is None and (hang := self._dog.look()) is not None:
            (path,) = watchdog.save_stacks(hang.stacks, [self._log.stem], self._log.parent)
            self._hang = f"{hang.words}; see {path.name}"
            launch.stop(self._process, grace_seconds=0.0)

    def close(self) -> None:
        """End it."""
        launch.stop(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # of unsent data
                    pass

    def _listen(self, hear: Hear) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                hear(json.loads(line))
        except ValueError:  # a torn line, or closed meanwhile
            pass
        code = self._process.wait()
        lacked_memory = executor.memory_kills() > self._kills
        hear({"event": ENDED, "reason": self._hang or executor.ending_words(code, self._log, lacked_memory)})


class Outpost:
    """Held by a Dask worker: a server on the worker's machine, which ends with the worker.

    Args:
        framework, arguments, hang_seconds: as `Local` takes them.
    """

    def __init__(self, framework: str, arguments: list[str], hang_seconds: float) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="convtwins-"))
        self._heard: list[dict[str, Any]] = []
        self._server = Local(framework, arguments, self._folder / "log.txt", self._heard.append, hang_seconds)
        self._end = weakref.finalize(self, _tidy_up, self._server, self._folder)

    async def send(self, message: dict[str, Any]) -> None:
        """As `Server.send`."""
        self._server.send(message)

    async def expect(self) -> None:
        """As `Server.expect`."""
        self._server.expect()

    async def look(self) -> None:
        """As `Server.look`. The stacks that it saves are removed with the folder."""
        self._server.look()

    async def hear(self) -> list[dict[str, Any]]:
        """Its events since the last call. Waits until there are any."""
        while not self._heard:
            await asyncio.sleep(_POLL_SECONDS)
        count = len(self._heard)
        heard, self._heard[:count] = self._heard[:count], []
        return heard

    async def close(self) -> None:
        """End it."""
        self._end()


def _tidy_up(server: Local, folder: Path) -> None:
    server.close()
    shutil.rmtree(folder, ignore_errors=True)


class Distant:
    """A server on a worker of a Dask cluster. The worker watches it; the cluster's heartbeats watch the worker.

    Args:
        actor: an Outpost there.
        hear: called with its events, and finally with ENDED.
    """

    def __init__(self, actor: Any, hear: Hear) -> None:
        self._actor = actor
        threading.Thread(target=self._listen, args=(hear,), daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Send it a request. If the server is gone, `ended` arrives instead of an answer."""
        self._ask("send", message)

    def expect(self) -> None:
        """It has work from now on. Its watchdog starts here."""
        self._ask("expect", seconds=0.0)

    def look(self) -> None:
        """Call this often while it has work: a server that hangs is ended."""
        self._ask("look", seconds=0.0)

    def close(self) -> None:
        """End it."""
        self._ask("close", seconds=_CLOSE_SECONDS)

    def _ask(self, what: str, *arguments: Any, seconds: float | None = None) -> None:
        try:
            asked = getattr(self._actor, what)(*arguments)
            if seconds != 0.0:
                asked.result(timeout=seconds)
        except Exception:  # whatever Dask raises of a worker that is lost, or that nobody can reach: `_listen` hears of it
            pass

    def _listen(self, hear: Hear) -> None:
        reason = "ended"
        try:
            while True:
                for event in self._actor.hear().result():
                    hear(event)
                    if event["event"] == ENDED:
                        return
        except Exception as error:  # whatever Dask raises for a lost worker
            reason = f"its Dask worker is lost: {str(error).strip() or type(error).__name__}"
        hear({"event": ENDED, "reason": reason})


@contextmanager
def serving(
    framework: str, layout: Layout, scheduler: str | None, logs: Path, hang_seconds: float
) -> Generator[Callable[[int, Hear], Server]]:
    """Returns the function that starts the server of a place, from 0. Call it again to replace a server that has ended.

    Args:
        framework: a name of `launch.FRAMEWORKS`.
        layout: of the jobs.
        scheduler: address of a Dask cluster. None: a local cluster of processes, if the backend is `dask`.
        logs: name of the servers' logs but for place and suffix.
        hang_seconds: after this time, a server that hangs is ended.

    Raises:
        SpecError: the cluster cannot be reached, or has too few workers.

    The returned function raises LaunchError if a lost worker does not come back.
    """
    if layout.backend != "dask":

        def local(place: int, hear: Hear) -> Server:
            log = logs.with_name(f"{logs.name}-{place}.txt")
            return Local(framework, layout.arguments(place), log, hear, hang_seconds)

        yield local
        return
    from common.data.preprocessing import dask_scan  # takes a second to import

    try:
        with dask_scan.client(layout.jobs, scheduler or "processes") as client:
            held: dict[int, str] = {}

            def distant(place: int, hear: Hear) -> Server:
                held.pop(place, None)
                try:
                    client.wait_for_workers(layout.jobs, timeout=_WORKER_SECONDS)
                except TimeoutError:
                    there = len(client.scheduler_info(n_workers=-1)["workers"])
                    raise LaunchError(
                        f"the Dask cluster{f' {scheduler}' if scheduler else ''} has lost workers: {there} of {layout.jobs} "
                        f"are there after {_WORKER_SECONDS:g} s. Start them again; the same command with --resume goes on."
                    ) from None
                workers: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
                taken = Counter(held.values())
                held[place] = address = min(sorted(workers), key=taken.__getitem__)
                # # Servers of one machine share its cores.
                neighbours = [other for other in held if workers.get(held[other], {}).get("host") == workers[address]["host"]]
                outpost = (framework, layout.arguments(neighbours.index(place)), hang_seconds)
                return Distant(_outpost(client, outpost, address), hear)

            yield distant
    except dask_scan.SchedulerError as error:
        raise SpecError(str(error)) from None


def _outpost(client: Any, arguments: tuple[str, list[str], float], worker: str) -> Any:
    try:
        future = client.submit(Outpost, *arguments, actor=True, workers=[worker], pure=False)
        with client.as_current():
            return future.result()
    except Exception as error:  # whatever they could not import or unpickle
        raise LaunchError(
            f"the Dask worker {worker} cannot serve trials. Received: {error}. Start the cluster's scheduler and its workers "
            f"from this environment with PYTHONPATH={machine.PROJECT_ROOT}."
        ) from None


def cores_of(scheduler: str | None) -> int:
    """CPU cores of all machines of a Dask cluster. Without a cluster: of this process.

    Raises:
        SpecError: the cluster cannot be reached, or does not know this project.
    """
    if scheduler is None:
        return machine.available_cores()
    from common.data.preprocessing import dask_scan

    try:
        return dask_scan.workers_and_cores(scheduler)[1]
    except dask_scan.SchedulerError as error:
        raise SpecError(str(error)) from None
