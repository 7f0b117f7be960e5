"""Run the whole suite: `python -m tests.suite`, or with `--slow` the slow tests too.

Its parts are pytest processes of their own, because one process must never import both frameworks. As many run at once as
there are cores. One more at once takes longer: processes that share a core cost each other more than they wait.

Each part has a temporary folder of its own, which goes with it. Only the folders of failed tests stay, in FAILED_FOLDERS until
the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from common.machine import machine
from common.machine.private_folder import PrivateFolder

PROJECT = Path(__file__).parents[1]
FAILED_FOLDERS = PROJECT / ".pytest_cache" / "failed"
"""Gets the `tmp_path` of each failed test, by part."""
TESTS_FAILED = 1
"""pytest's exit code. A part that was interrupted has another."""

SAME_EXAMPLES = "--hypothesis-seed=0"
"""Made-up inputs are the same at every run of the suite, so that red means changed. Plain pytest draws new ones."""
LONGEST = "--durations=10"
"""Each part ends with what took longest, so that it can be kept short."""
TWO_FILES_AT_ONCE = ("-n", "2", "--dist", "loadfile")
"""Where most of the time is waiting for processes that start."""
# The longest first, so that none is left to run alone in the end.
PARTS = {
    "twins, TensorFlow": ("tests/twins", "--framework", "tensorflow"),
    "compare": (*TWO_FILES_AT_ONCE, "tests/compare"),
    "twins, PyTorch": ("tests/twins", "--framework", "pytorch"),
    "parity": ("tests/parity",),
    "hangs": (*TWO_FILES_AT_ONCE, "plugins/hangs/tests"),
    "common": (*TWO_FILES_AT_ONCE, "tests/common", "tests/conventions"),
    "browser": ("tests/browser",),
    "contract, JAX": ("tests/twins/test_contract.py", "--framework", "jax"),
    **{
        f"contract, Keras on {name}": ("tests/twins/test_contract.py", "--framework", f"keras-{backend}")
        for backend, name in {"torch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX"}.items()
    },
}


class Ended(NamedTuple):
    part: str
    code: int
    seconds: float
    output: str

    @property
    def closing_line(self) -> str:
        """pytest's own count of what passed, failed and was skipped."""
        lines = self.output.rstrip().splitlines()
        return lines[-1].strip("= ") if lines else "no output"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suite", description="Run every part of the test suite.")
    parser.add_argument("--slow", action="store_true", help="run the slow tests too")
    parser.add_argument("--at-once", type=int, default=min(machine.available_cores(), len(PARTS)), help="parts at a time")
    arguments = parser.parse_args()
    markers = "slow or not slow" if arguments.slow else "not slow"
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    started = time.monotonic()
    shutil.rmtree(FAILED_FOLDERS, ignore_errors=True)
    ended: dict[str, Ended] = {}
    running: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(arguments.at_once) as pool:
        try:
            for future in as_completed([pool.submit(run, part, markers, running) for part in PARTS]):
                one = future.result()
                ended[one.part] = one
                print(f"\n{'=' * 20} {one.part}: {one.seconds:.0f} s {'=' * 20}\n{one.output}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
    print(f"{'part':20}{'seconds':>8}  result")
    for part in PARTS:
        one = ended[part]
        print(f"{part:20}{one.seconds:8.0f}  {'FAILED' if one.code else 'passed'}: {one.closing_line}")
    failed = [part for part in PARTS if ended[part].code]
    if FAILED_FOLDERS.exists():
        print(f"The folders of failed tests are in {FAILED_FOLDERS} until the next run.")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{'all':20}{time.monotonic() - started:8.0f}  {'FAILED: ' + ', '.join(failed) if failed else 'passed'}")
    # On a machine that is shared, or has more cores, this says how much work it was.
    print(f"{'CPU seconds':20}{used.ru_utime + used.ru_stime:8.0f}")
    return 1 if failed else 0


def run(part: str, markers: str, running: list[subprocess.Popen[str]]) -> Ended:
    """One part to its end. pytest's exit code 5 (no test was found) fails here like any other."""
    print(f"{part} starts", flush=True)
    started = time.monotonic()
    with PrivateFolder() as folder:
        temporary, of_tests = folder.path / "t", folder.path / "p"  # short names, because sockets lie there
        temporary.mkdir()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            markers,
            SAME_EXAMPLES,
            LONGEST,
            "--basetemp",
            str(of_tests),
            *PARTS[part],
        ]
        process = subprocess.Popen(
            command,
            cwd=PROJECT,
            env=os.environ | {"TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
        output, _ = process.communicate()
        if process.returncode == TESTS_FAILED and of_tests.exists():
            FAILED_FOLDERS.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # a full disk, or a socket that cannot be moved to another one
                shutil.move(of_tests, FAILED_FOLDERS / part)
    return Ended(part, process.returncode, time.monotonic() - started, output)


if __name__ == "__main__":
    sys.exit(main())
