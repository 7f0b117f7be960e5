"""A twin that scans as a real one does, and fails in the ways that a real one may.

FAKE_SCAN_BEHAVIOUR holds JSON: {"<framework>-<workers>": "<behaviour>"}; what is not in it goes well.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from common.data.preprocessing import job, scan
from common.data.preprocessing.sums import Sums
from common.data.sources import Encoded


def main(framework: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["preprocess"])
    parser.add_argument("job", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with Path(os.environ["FAKE_SCAN_ORDER"]).open("a") as order:
        order.write(f"{framework}-{arguments.workers}\n")
    behaviour = json.loads(os.environ["FAKE_SCAN_BEHAVIOUR"]).get(f"{framework}-{arguments.workers}", "ok")

    @contextlib.contextmanager
    def scanning(encoded: Encoded, image_size: int, workers: int) -> Iterator[Callable[[], Sums]]:
        def run() -> Sums:
            sums = scan.scan(encoded, image_size, workers)
            time.sleep(0.4 / workers)
            return replace(sums, squares=(sums.squares[0] + 1, *sums.squares[1:])) if behaviour == "lie" else sums

        yield run

    misbehave(behaviour, arguments.job.parent)
    job.run(scanning, arguments.job, arguments.workers, arguments.out, time.time())


def misbehave(behaviour: str, folder: Path) -> None:
    if behaviour == "crash":
        print("a warning before", file=sys.stderr)
        raise RuntimeError("no more = memory\x1b[31m")
    if behaviour == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "silent":
        sys.exit(0)
    if behaviour == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        Path(os.environ["FAKE_SCAN_PIDS"]).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
