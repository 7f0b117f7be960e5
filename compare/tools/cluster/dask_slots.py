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
from common.errors import UserError
from common.machine import machine
from common.machine.private_folder import PrivateFolder
from compare.cli.errors import LaunchError
from compare.results import cells, store
from compare.results.cells import Cell, MatrixPlan
from compare.tools.cluster import archive, jobs
from compare.tools.cluster.jobs import JobEnd, JobEnds, JobStatus, Say

if TYPE_CHECKING:
    import distributed

SCHEMES = ("tcp://", "tls://")
RESOURCE = "convtwins"
"""Dask resource that marks a worker as a machine's slot."""
_START = f'`dask worker ADDRESS --nworkers 1 --resources "{RESOURCE}=1"`'
_SAME_CODE = f"Start its scheduler and its workers from the same environment, with PYTHONPATH={machine.PROJECT_ROOT}."
_POLL_SECONDS = 0.5
_PROBE_SECONDS = 120.0
"""Timeout of checking workers. A worker may import the suite for the first time. A stopped one never answers."""
_ANSWER_SECONDS = 2.0
"""Timeout of a worker that only has to answer at all."""
_ANY_TASK = os.getpid
"""Function that every worker can run, whatever code it has."""


@contextmanager
def connect_slots(address: str, plan: MatrixPlan) -> Generator[tuple[distributed.Client, dict[str, dict[str, Any]]]]:
    """Connect to a cluster whose machines can run a matrix.

    Yields:
        (client, facts of the machine of each slot by the address of its worker).
    """
    from common.data.preprocessing import dask_scan  # here: importing Dask takes longer than many a command

    try:
        with dask_scan.connect(address, "run without --on") as client:
            yield client, _check_workers(client, address, plan)
    except dask_scan.SchedulerError as error:
        raise LaunchError(f"--on: the {error}") from None


def _check_workers(client: distributed.Client, address: str, plan: MatrixPlan) -> dict[str, dict[str, Any]]:
    workers = _workers(client)
    if not workers:
        raise LaunchError(f"No worker at {address} has a slot for comparisons. Start one on each machine: {_START}.")
    hosts = Counter(facts["host"] for facts in workers.values())
    if duplicate_host := next((host for host, number in hosts.items() if number > 1), None):
        raise LaunchError(
            f"Two comparisons on one machine would disturb each other. Received: {hosts[duplicate_host]} workers "
            f"with a slot on {duplicate_host}. Start one on each machine: {_START}."
        )
    options = {"workers": list(workers), "on_error": "return", "callback_timeout": _PROBE_SECONDS}
    try:
        answers: dict[str, Any] = cast(Any, client).run(probe, plan.model_dump_json(), **options)
    except TimeoutError:
        silent = [worker for worker in workers if not _answers(client, worker)]
        raise LaunchError(
            f"Not every worker at {address} answered in {_PROBE_SECONDS:g} s. Silent: {', '.join(silent) or 'none now'}. A "
            "worker that is stopped never answers: end it. One that still imports the suite answers the next time."
        ) from None
    check_answers(answers, jobs.matrix_code_hash(plan))
    try:
        client.run_on_scheduler(machine.available_cores)  # a scheduler reads what it hands on
    except Exception as error:  # any error of importing or unpickling
        raise LaunchError(
            f"The scheduler at {address} cannot hand on jobs of this suite. Received: {error}. {_SAME_CODE}"
        ) from None
    return {worker: answer["machine"] for worker, answer in answers.items()}


def check_answers(answers: Mapping[str, Any], code_hash: str) -> None:
    """Check that every worker can run a matrix with the same code.

    Args:
        answers: what `probe` returned or raised on each worker, by its address.
        code_hash: see `jobs.matrix_code_hash`.
    """
    for worker, answer in answers.items():
        if isinstance(answer, BaseException):
            raise LaunchError(f"The worker {worker} cannot run this suite. Received: {answer}. {_SAME_CODE}")
        if answer["failure"] is not None:
            raise LaunchError(f"The worker {worker} cannot run this matrix. Received: {answer['failure']}")
        if answer["code"] != code_hash:
            raise LaunchError(
                f"The worker {worker} has other code than this machine. Received: {answer['code'][:12]}, needed: "
                f"{code_hash[:12]}. {_SAME_CODE}"
            )


def _answers(client: distributed.Client, worker: str) -> bool:
    """Return whether a worker answers at all."""
    try:
        cast(Any, client).run(_ANY_TASK, workers=[worker], callback_timeout=_ANSWER_SECONDS)
    except Exception:  # too late, or its connection is gone
        return False
    return True


def probe(plan: str) -> dict[str, Any]:
    """Describe a worker's code and machine, or say why it cannot run a matrix. Runs on the worker."""
    matrix_plan = MatrixPlan.model_validate_json(plan)
    try:
        return {"failure": None, "code": jobs.matrix_code_hash(matrix_plan), "machine": machine.describe()}
    except (ValueError, RuntimeError, OSError) as error:
        return {"failure": str(error)}


def run_on_worker(plan: bytes, cell: str, code_hash: str, packed_cell: bytes | None, topic: str) -> tuple[str, bytes | None]:
    """Run one comparison of a matrix in a temporary folder. Runs on a worker.

    Args:
        plan: content of the matrix's plan file.
        packed_cell: earlier state of the comparison, see `archive.pack`.
        topic: topic of the events that report progress.

    Returns:
        (status of the job, packed comparison).
    """
    import distributed
    from dask.context import thread_state

    worker, key = cast(Any, distributed.get_worker()), cast(str, thread_state.key)

    def is_cancelled() -> bool:
        """Return whether no client waits for this job any more: it was cancelled, or its client is gone."""
        task = worker.state.tasks.get(key)
        return task is None or task.state != "executing"

    with PrivateFolder() as private:
        folder, last_line = private.path / "matrix", [""]

        def say(line: str) -> None:
            last_line[0] = line
            worker.log_event(topic, f"{cell}: {line}")

        folder.mkdir()
        (folder / cells.PLAN_FILE).write_bytes(plan)
        if packed_cell is not None:
            archive.unpack(packed_cell, folder / cell)
        jobs.run_job(folder, cell, code_hash, key, say, is_cancelled)
        status = jobs.read_status(folder, cell)
        if status is None or status.code is None:
            raise RuntimeError(f"its process died. Its last line: {last_line[0]}")
        return status.model_dump_json(), archive.pack(folder / cell)


def run(address: str, folder: Path, plan: MatrixPlan, pending: Sequence[Cell], code_hash: str, *, say: Say) -> JobEnds:
    """Run these comparisons on the machines of a cluster, one at a time on each. Results are installed in the folder.

    Yields:
        Each comparison when its job has ended.
    """
    topic = f"{RESOURCE}-{uuid.uuid4().hex}"
    with connect_slots(address, plan) as (client, machines):
        connection = cast(Any, client)

        def on_event(event: tuple[float, Any]) -> None:
            say(str(event[1]))

        connection.subscribe_topic(topic, on_event)
        remaining, running = list(pending), dict[str, tuple[Any, Cell]]()
        try:
            while remaining or running:
                connected = _workers(client)
                for worker in (address for address in machines if address in connected and address not in running):
                    if (
                        cell := next((candidate for candidate in remaining if _fits(folder, candidate, machines[worker])), None)
                    ) is not None:
                        remaining.remove(cell)
                        say(f"{cell.name}: sent to {worker}")
                        plan_bytes, packed_cell = (folder / cells.PLAN_FILE).read_bytes(), archive.pack(folder / cell.name)
                        arguments = plan_bytes, cell.name, code_hash, packed_cell, topic
                        placement = {"workers": [worker], "allow_other_workers": False, "resources": {RESOURCE: 1}}
                        running[worker] = connection.submit(run_on_worker, *arguments, pure=False, retries=0, **placement), cell
                if remaining and not running:
                    reason = (
                        "no machine of the cluster can run it: it was begun on one that is not there, or no worker is left."
                    )
                    yield from (JobEnd(cell.name, reason) for cell in remaining)
                    return
                time.sleep(_POLL_SECONDS)
                connected = _workers(client)
                for worker, (future, cell) in list(running.items()):
                    if future.done() or worker not in connected:
                        del running[worker]
                        yield JobEnd(cell.name, _collect(future, worker, plan, cell, folder))
        finally:
            connection.cancel([future for future, _ in running.values()])


def _collect(future: Any, worker: str, plan: MatrixPlan, cell: Cell, folder: Path) -> str | None:
    """Collect the result of a job. Returns why it failed. None: it has not failed."""
    if not future.done():
        future.cancel()
        return f"its job was lost: the worker {worker} has left the cluster, or its scheduler does not answer."
    try:
        text, content = future.result()
        status = JobStatus.model_validate_json(text)
        if content is not None:
            archive.install(content, plan, cell, folder)
        records.write(jobs.status_file(folder, cell.name), status)
    except UserError as error:
        return str(error)
    except Exception as error:  # whatever a worker raises or sends
        return f"its job was lost on {worker}: {error}"
    return jobs.failure_reason(status, "its process died")


def _fits(folder: Path, cell: Cell, facts: Mapping[str, Any]) -> bool:
    """Return whether a comparison can run on a machine: its pairs stay on the one where it was started."""
    has_started = (folder / cell.name / store.PLAN_FILE).exists()
    return not has_started or not machine.differences(store.read_plan(folder / cell.name).machine, facts)


def _workers(client: distributed.Client) -> dict[str, Any]:
    """Return the workers with a slot, by their addresses. Empty if the scheduler does not answer."""
    from common.data.preprocessing import dask_scan

    try:
        workers = dask_scan.worker_info(client)
    except OSError:
        return {}
    return {worker: facts for worker, facts in workers.items() if facts["resources"].get(RESOURCE)}
