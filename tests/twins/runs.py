"""Small real runs, each in processes of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from common import spec
from common.artifacts import contradictions, event_log, results
from common.artifacts.schema import RunResult
from common.machine import machine

PROJECT = Path(__file__).parents[2]

SETTINGS: dict[str, Any] = {
    "model": "tests.planted.hanging",  # own_plain_model, unless a test plants something
    "data": {"image_size": 12, "limit": 64},
    "global_batch_size": 32,
    "epochs": 3,
    "precision": "float64",
    "cores": min(2, machine.available_cores()),
}
RANKS = {"mode": "multi_process", "replicas": 2}
ENDLESS = {**RANKS, "epochs": 400_000}

SECONDS = 300
"""How long any process may take on a machine that has much else to do."""


class Run:
    """`python -m <twin> run`, as someone starts it. It is ended where its `with` ends."""

    settings = SETTINGS

    def __init__(
        self,
        framework: str,
        folder: Path,
        fields: dict[str, Any],
        prefix: Sequence[str] = (),
        words: Sequence[str] = (),
        **environment: str,
    ) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.spec = spec.build(self.settings | fields)
        (folder / "spec.json").write_text(self.spec.to_json(), encoding="utf-8")
        self.started = time.time()
        with (folder / "log").open("ab") as log, (folder / "stdout").open("ab") as output:
            command = [
                *prefix,
                sys.executable,
                "-m",
                f"{framework}_impl",
                "run",
                str(folder / "spec.json"),
                "--out",
                str(folder),
            ]
            self.process = subprocess.Popen(
                [*command, *words],
                cwd=PROJECT,
                stdout=output,
                stderr=log,
                env={**os.environ, **environment},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def end(self) -> RunResult:
        """Its sealed result, which does not contradict itself."""
        self.process.wait(SECONDS)
        self.seconds = time.time() - self.started
        assert not (self.folder / "stdout").read_bytes(), "stdout is for data"
        path = self.folder / results.RESULT_FILE
        assert path.exists(), self.log
        result = results.load(path)
        found = contradictions.find_contradictions(result, event_log.read_events(self.folder))
        assert not found, found  # of whatever mode, however it ended
        return result

    def wait_for_an_epoch(self) -> None:
        deadline = time.monotonic() + SECONDS
        while not event_log.read_epochs(self.folder):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def ranks(self) -> list[psutil.Process]:
        """Its ranks by number, as soon as they have trained an epoch."""
        self.wait_for_an_epoch()
        ranks = [child for child in psutil.Process(self.process.pid).children() if "RANK" in child.environ()]
        return sorted(ranks, key=lambda child: int(child.environ()["RANK"]))

    def processes(self) -> list[psutil.Process]:
        """All that it has started, on any host: their command lines name its folder, or one that was made for a host."""
        return [process for process in psutil.process_iter() if str(self.folder) in _words(process)]

    def kill(self) -> None:
        """End it, if it has not ended; what it started goes with it."""
        self.process.kill()
        self.process.wait()


def wait_until_gone(found: Sequence[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(found, timeout=SECONDS)
    assert alive == []


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.NoSuchProcess:
        return ""
