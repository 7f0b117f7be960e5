"""Jobs of a Dask cluster: each comparison has a machine to itself. The folders travel with the jobs."""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from common.artifacts import records
from common.data.sources import DataRefused
from common.machine import machine
from common.machine.private_folder import PrivateFolder
from compare.cluster import archive, jobs
from compare.cluster.jobs import Answer, Ended, Ends, Say
from compare.core.errors import FolderError, LaunchError
from compare.execution import cells, contestants, store
from compare.execution.cells import Cell, MatrixPlan

if TYPE_CHECKING:
    import distributed

SCHEMES = ("tcp://", "tls://")
RESOURCE = "convtwins"
"""A worker that has one of it is a machine's slot."""
_START = f'`dask worker ADDRESS --nworkers 1 --resources "{RESOURCE}=1"`'
_POLL_SECONDS = 0.5
_PROBE_SECONDS = 120.0
"""A worker may import the suite for the first time. One that is stopped never answers."""
_ANSWER_SECONDS = 2.0
"""Of a worker that only says that it is there."""
_ANY = os.getpid
"""What every worker can do, whatever code it has."""


@contextmanager
def slots(address: str, plan: MatrixPlan) -> Generator[tuple[distributed.Client, dict[str, dict[str, Any]]]]:
    """Connect to a cluster whose machines can run a matrix.

    Yields:
        (client, facts of the machine of each slot by the address of its worker).

    Raises:
        LaunchError: no scheduler answers, no worker has a slot, two of one machine have, or one lacks this code.
    """
    from common.data.preprocessing import dask_scan  # here: importing Dask takes longer than many a command

    try:
        with dask_scan.connected(address, "run without --on") as client:
            yield client, _checked(client, address, plan)
    except dask_scan.SchedulerError as error:
        raise LaunchError(f"--on: the {error}") from None


def _checked(client: distributed.Client, address: str, plan: MatrixPlan) -> dict[str, dict[str, Any]]:
    workers = _workers(client)
    if not workers:
        raise LaunchError(f"No worker at {address} has a slot for comparisons. Start one on each machine: {_START}.")
    hosts = Counter(each["host"] for each in workers.values())
    if twice := next((host for host, number in hosts.items() if number > 1), None):
        raise LaunchError(
            f"Two comparisons on one machine would disturb each other. Received: {hosts[twice]} workers with a slot on "
            f"{twice}. Start one on each machine: {_START}."
        )
    same = f"Start its scheduler and its workers from the same environment, with PYTHONPATH={machine.PROJECT_ROOT}."
    ask = {"workers": list(workers), "on_error": "return", "callback_timeout": _PROBE_SECONDS}
    try:
        found: dict[str, Any] = cast(Any, client).run(probe, plan.model_dump_json(), **ask)
    except TimeoutError:
        silent = [worker for worker in workers if not _answers(client, worker)]
        raise LaunchError(
            f"Not every worker at {address} answered in {_PROBE_SECONDS:g} s. Silent: {', '.join(silent) or 'none now'}. A "
            "worker that is stopped never answers: end it. One that still imports the suite answers the next time."
        ) from None
    code = jobs.code_of(plan)
    for worker, answer in found.items():
        if isinstance(answer, BaseException):
            raise LaunchError(f"The worker {worker} cannot run this suite. Received: {answer}. {same}")
        if answer["failure"] is not None:
            raise LaunchError(f"The worker {worker} cannot run this matrix. Received: {answer['failure']}")
        if answer["code"] != code:
            raise LaunchError(
                f"The worker {worker} has other code than this machine. Received: {answer['code'][:12]}, needed: "
                f"{code[:12]}. {same}"
            )
    try:
        client.run_on_scheduler(machine.available_cores)  # a scheduler reads what it hands on
    except Exception as error:  # any error of importing or unpickling
        raise LaunchError(f"The scheduler at {address} cannot hand on jobs of this suite. Received: {error}. {same}") from None
    return {worker: answer["machine"] for worker, answer in found.items()}


def _answers(client: distributed.Client, worker: str) -> bool:
    """Whether a worker answers at all."""
    try:
        cast(Any, client).run(_ANY, workers=[worker], callback_timeout=_ANSWER_SECONDS)
    except Exception:  # too late, or its connection is gone
        return False
    return True


def probe(plan: str) -> dict[str, Any]:
    """On a worker: its code and its machine, or why it cannot run a matrix."""
    made = MatrixPlan.model_validate_json(plan)
    contestants.enter(made.contestants)
    try:
        return {"failure": None, "code": jobs.code_of(made), "machine": machine.describe()}
    except (ValueError, RuntimeError, OSError) as error:
        return {"failure": str(error)}


def work(plan: bytes, cell: str, code: str, before: bytes | None, topic: str) -> tuple[str, bytes | None]:
    """On a worker: run one comparison of a matrix in a temporary folder.

    Args:
        plan: the file of the matrix.
        before: what the comparison has already, see `archive.pack`.
        topic: of the events that tell its progress.

    Returns:
        (answer, the comparison).
    """
    import distributed
    from dask.context import thread_state

    worker, key = cast(Any, distributed.get_worker()), cast(str, thread_state.key)

    def is_cancelled() -> bool:
        """Whether nobody waits for this job any more: it was cancelled, or its client is gone."""
        task = worker.state.tasks.get(key)
        return task is None or task.state != "executing"

    with PrivateFolder() as private:
        folder, said = private.path / "matrix", [""]

        def say(line: str) -> None:
            said[0] = line
            worker.log_event(topic, f"{cell}: {line}")

        folder.mkdir()
        (folder / cells.PLAN_FILE).write_bytes(plan)
        if before is not None:
            archive.unpack(before, folder / cell)
        jobs.do(folder, cell, code, key, say, is_cancelled)
        answer = jobs.answered(folder, cell)
        if answer is None or answer.code is None:
            raise RuntimeError(f"its process died. Its last line: {said[0]}")
        return answer.model_dump_json(), archive.pack(folder / cell)


def run(address: str, folder: Path, plan: MatrixPlan, wanted: Sequence[Cell], code: str, *, say: Say) -> Ends:
    """Run these comparisons on the machines of a cluster, one at a time on each. What comes back joins the folder.

    Yields:
        Each comparison when its job is over.

    Raises:
        LaunchError: see `slots`.
    """
    topic = f"{RESOURCE}-{uuid.uuid4().hex}"
    with slots(address, plan) as (client, machines):
        connection = cast(Any, client)

        def tell(event: tuple[float, Any]) -> None:
            say(str(event[1]))

        connection.subscribe_topic(topic, tell)
        left, running = list(wanted), dict[str, tuple[Any, Cell]]()
        try:
            while left or running:
                present = _workers(client)
                for worker in (each for each in machines if each in present and each not in running):
                    if (cell := next((each for each in left if _fits(folder, each, machines[worker])), None)) is not None:
                        left.remove(cell)
                        say(f"{cell.name}: sent to {worker}")
                        made, begun = (folder / cells.PLAN_FILE).read_bytes(), archive.pack(folder / cell.name)
                        sent = made, cell.name, code, begun, topic
                        where = {"workers": [worker], "allow_other_workers": False, "resources": {RESOURCE: 1}}
                        running[worker] = connection.submit(work, *sent, pure=False, retries=0, **where), cell
                if left and not running:
                    why = "no machine of the cluster can run it: it was begun on one that is not there, or no worker is left."
                    yield from (Ended(cell.name, why) for cell in left)
                    return
                time.sleep(_POLL_SECONDS)
                present = _workers(client)
                for worker, (future, cell) in list(running.items()):
                    if future.done() or worker not in present:
                        del running[worker]
                        yield Ended(cell.name, _outcome(future, worker, plan, cell, folder))
        finally:
            connection.cancel([future for future, _ in running.values()])


def _outcome(future: Any, worker: str, plan: MatrixPlan, cell: Cell, folder: Path) -> str | None:
    """Take what a job has sent. Returns why it has failed; None: it has not."""
    if not future.done():
        future.cancel()
        return f"its job was lost: the worker {worker} has left the cluster, or its scheduler does not answer."
    try:
        text, content = future.result()
        answer = Answer.model_validate_json(text)
        if content is not None:
            archive.join(content, plan, cell, folder)
        records.write(jobs.answer_file(folder, cell.name), answer)
    except (FolderError, DataRefused) as error:
        return str(error)
    except Exception as error:  # whatever a worker raises or sends
        return f"its job was lost on {worker}: {error}"
    return jobs.outcome(answer, "its process died")


def _fits(folder: Path, cell: Cell, facts: Mapping[str, Any]) -> bool:
    """Whether a comparison can run on a machine: its pairs stay on the one that it was begun on."""
    begun = (folder / cell.name / store.PLAN_FILE).exists()
    return not begun or not machine.differences(store.read_plan(folder / cell.name).machine, facts)


def _workers(client: distributed.Client) -> dict[str, Any]:
    """Workers that have a slot, by their addresses. None where the scheduler does not answer."""
    from common.data.preprocessing import dask_scan

    try:
        found = dask_scan.workers_of(client)
    except OSError:
        return {}
    return {worker: each for worker, each in found.items() if each["resources"].get(RESOURCE)}
