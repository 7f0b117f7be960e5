import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import distributed
import pytest

from tests.common.data.preprocessing.made_up_cluster import Cluster
from tests.support import processes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler and two workers of one thread each, started as a user would: processes that know each other by TCP."""
    folder = tmp_path_factory.mktemp("cluster")
    known_to = ["--scheduler-file", str(folder / "scheduler.json")]
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", *known_to]
    worker = ["worker", "--nthreads", "1", "--no-dashboard", "--local-directory", str(folder), *known_to]
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log.txt").open("wb"))
        for words in (scheduler, worker, worker):
            command = [sys.executable, "-m", "dask", *words]
            process = stack.enter_context(processes.started(command, stdout=log, stderr=subprocess.STDOUT))
            stack.callback(process.wait)
            stack.callback(process.terminate)
        wait_for(folder / "scheduler.json")
        with distributed.Client(scheduler_file=str(folder / "scheduler.json"), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=300)
            yield Cluster(client)


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 300
    while not file.exists():
        assert time.monotonic() < deadline, "the scheduler did not start"
        time.sleep(0.05)
