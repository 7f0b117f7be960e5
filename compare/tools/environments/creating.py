"""Make an environment from a lock with uv, or with venv and pip where there is no uv."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pydantic

from common.artifacts import records
from common.frozen import Frozen
from common.machine import plain_file
from common.machine.machine import PROJECT_ROOT
from common.spec import SpecError
from compare.cli.errors import FolderError, LaunchError
from compare.running import launch
from compare.running.contestants import Contestant

RECORD_FILE = "convtwins-environment.json"
LOCKS = PROJECT_ROOT / "locks"
"""Folder of the suite's own locks."""
_MOST_BYTES = 2**24
"""Size limit of a lock in bytes. The longest of the suite's own has a hundredth of it."""
_LAST_LINES = 8


class EnvironmentRecord(Frozen):
    """How an environment was made. The record lies in the environment's folder."""

    lock: str
    lock_hash: str
    """SHA-256 of the lock file."""
    tool: str
    """uv or pip."""
    made_at: str
    """UTC, ISO 8601."""


def create(name: str, lock: Path, folder: Path, python: str | None = None, *, no_deps: bool = False) -> Path:
    """Make an environment. If that fails or is interrupted, nothing of it is left but its log.

    Args:
        name: name of its folder.
        lock: a requirements file, or the name of one of the suite's own, e.g. `cpu`.
        folder: gets the environment, and its log as `<name>.log`.
        python: interpreter to make it with. None: this process's.
        no_deps: whether to install what the lock names, and nothing that this requires.

    Returns:
        The path of its interpreter.
    """
    base = _contestant(name, python)
    lock, content = _read_lock(lock)
    launch.inspect(base)
    target = (folder / name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        target.mkdir()
    except FileExistsError:
        raise FolderError(f"There is an environment {name} in {folder}. Choose another name, or remove {target}.") from None
    interpreter, uv = target / "bin" / "python", shutil.which("uv")
    try:
        _install(base, lock, target, uv, folder / f"{name}.log", ["--no-deps"] * no_deps)
        created = Contestant(name=name, twin=base.twin, python=str(interpreter))
        if missing := [package for package, version in launch.inspect(created)["needed"].items() if version is None]:
            raise LaunchError(
                f"The environment {name} would run no twin: {lock} installs no {', '.join(missing)}. Add what locks/common.txt "
                "names (-r common.txt), and lock again."
            )
        record = EnvironmentRecord(
            lock=str(lock.absolute()),
            lock_hash=hashlib.sha256(content).hexdigest(),
            tool="uv" if uv else "pip",
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        records.write(target / RECORD_FILE, record)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return interpreter


def _contestant(name: str, python: str | None) -> Contestant:
    """Return the contestant whose interpreter makes the environment."""
    try:
        return Contestant(name=name, twin=next(iter(launch.FRAMEWORKS)), python=python)
    except pydantic.ValidationError:
        raise SpecError(
            f"An environment's name has letters, digits, dots, dashes and underscores. Received: {name!r}. Use e.g. torch-213."
        ) from None


def _read_lock(lock: Path) -> tuple[Path, bytes]:
    """Return (path, content) of a requirements file, or of one of the suite's own locks by its name."""
    suite_lock = LOCKS / f"{lock}.lock"
    lock = suite_lock if suite_lock.exists() and not lock.exists() else lock
    try:
        return lock, plain_file.read(lock, _MOST_BYTES)
    except OSError as error:
        known = ", ".join(sorted(path.stem for path in LOCKS.glob("*.lock")))
        raise SpecError(
            f"--lock cannot be read. Received: {lock} ({error.strerror}). Name a requirements file, or one of {known}."
        ) from None


def _install(base: Contestant, lock: Path, target: Path, uv: str | None, log: Path, options: Sequence[str]) -> None:
    """Make the environment in a folder and install the lock, with uv or with venv and pip."""
    python = str(target / "bin" / "python")
    requirements = [*options, "-r", str(lock.absolute())]
    steps = [
        [uv, "venv", "--python", base.interpreter, str(target)],
        [uv, "pip", "install", "--python", python, *requirements],
    ] if uv else [
        [base.interpreter, "-I", "-m", "venv", str(target)],
        [python, "-I", "-m", "pip", "install", "--disable-pip-version-check", *requirements],
    ]  # fmt: skip
    with log.open("wb") as output:
        codes = (subprocess.run(step, check=False, stdout=output, stderr=output).returncode for step in steps)
        code = next(filter(None, codes), 0)
    if code != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise LaunchError(
            f"The environment {base.name} cannot be made from {lock} ({launch.describe_exit(code)}). See {log}.\n"
            + "\n".join(lines[-_LAST_LINES:])
        )


def read_record(path: Path) -> EnvironmentRecord | None:
    """Read how the environment of a folder was made. None: not by `env create`."""
    try:
        return records.read(path / RECORD_FILE, EnvironmentRecord, kind="environment", remedy="Make it again.")
    except records.RecordError:
        return None


def environments(folder: Path) -> list[Path]:
    """The environments in a folder."""
    return sorted(path for path in folder.glob("*") if (path / "bin" / "python").exists())
