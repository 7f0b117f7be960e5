"""Processes that a test starts. None outlives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Finished:
    """A process that has ended, or a command that ran in this one."""

    exit_code: int
    """Exit code. A process that a signal ended has the signal's number, negative."""
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Standard output, then standard error."""
        return self.stdout + self.stderr

    @property
    def json(self) -> Any:
        """The JSON value that standard output holds."""
        return json.loads(self.stdout)

    def succeeded(self) -> Finished:
        """Return this. Fail with its output if its exit code is not 0."""
        assert self.exit_code == 0, f"exit code {self.exit_code}\n{self.output}"
        return self


def environment(**variables: str | None) -> dict[str, str]:
    """The variables of this process and these. None removes one."""
    merged: dict[str, str | None] = {**os.environ, **variables}
    return {name: value for name, value in merged.items() if value is not None}


def run(
    words: Sequence[object],
    *,
    folder: Path = PROJECT,
    timeout: float = TIMEOUT_SECONDS,
    stdin: str | None = None,
    **variables: str | None,
) -> Finished:
    """Run a program to its end.

    Args:
        words: the program and its arguments.
        folder: its working directory.
        timeout: seconds until it is killed and the test fails.
        stdin: text for its standard input; None: it is empty.
        variables: environment variables besides those of this process; None removes one.
    """
    process = subprocess.run(
        list(map(str, words)), cwd=folder, timeout=timeout, input=stdin or "", text=True, capture_output=True, check=False,
        env=environment(**variables),
    )  # fmt: skip
    return Finished(process.returncode, process.stdout, process.stderr)


def python(*words: object, **how: Any) -> Finished:
    """Run this interpreter with these arguments, e.g. `"-c", code` or `"-m", module`. `how` is that of `run`."""
    return run([sys.executable, *words], **how)


def twin(framework: str, *words: object, **how: Any) -> Finished:
    """Run a command of a twin in a process of its own, e.g. `twin("pytorch", "models", spec_file)`."""
    return python("-m", f"{framework}_impl", *words, **how)


def git(folder: Path, *words: str) -> str:
    """Run git in a folder and return what it prints."""
    identity = (
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    )
    return run(["git", *identity, *words], folder=folder).succeeded().stdout.strip()


@contextmanager
def started(
    words: Sequence[object], *, folder: Path = PROJECT, variables: Mapping[str, str | None] | None = None, **how: Any
) -> Generator[subprocess.Popen[str]]:
    """Start a program and yield it. It is killed at the end of the block if it still runs.

    Args:
        words: the program and its arguments.
        folder: its working directory.
        variables: environment variables besides those of this process; None removes one.
        how: further arguments of `subprocess.Popen`. Both outputs are pipes unless they say otherwise.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(list(map(str, words)), cwd=folder, env=environment(**(variables or {})), **pipes | how)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
