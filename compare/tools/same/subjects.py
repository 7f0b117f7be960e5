"""A side of the comparison: a file of losses, or a command that writes them."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.cli import exits, wording
from compare.cli.option_parsing import split_command
from compare.running.launch import describe_exit, run_into_files
from compare.tools.same import curves
from compare.tools.same.curves import Curve, LossesError

LOSSES_WORD = "{losses}"
"""Stands in a command for the file or folder that it writes its losses to."""
_LOSSES, _OUTPUT, _ERRORS = "losses", "output.txt", "errors.txt"
SEED_VARIABLE, COUNT_VARIABLE = "CONVTWINS_ULP", "CONVTWINS_ULP_COUNT"
"""Environment variables that `nudge` of `convtwins/ulp.py` reads."""
_FILE_SUFFIXES = {".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt", ".log"}
_LAUNCHERS = {"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun", "horovodrun"}
"""Programs whose option `-n` or `-np` is a number of processes."""
_PROCESSES = re.compile(r"(?:--nproc[-_]per[-_]node|--num[-_]processes|--world[-_]size|--ntasks|-np?)[ =](\d+)(?=\s|$)")
_LONG_PROCESSES = re.compile(r"(?:--nproc[-_]per[-_]node|--num[-_]processes|--world[-_]size)[ =](\d+)(?=\s|$)")
_DEVICES = re.compile(r"--(?:gpus|devices)[ =](\d+(?:,\d+)*)(?=\s|$)")
_SHORT = 60


class CommandError(UserError, RuntimeError):
    """A command of a user failed. Losses that cannot be read are a `LossesError`."""

    exit_code = exits.RUN_FAILED


class Run(NamedTuple):
    """Losses of one run, and how many values `nudge` moved in it."""

    curve: Curve
    moved: int | None
    """None: the command did not call `nudge`."""


class Columns(NamedTuple):
    """Names of the columns or tags. None: the usual ones."""

    loss: str | None = None
    step: str | None = None


class Subject(NamedTuple):
    """One of the two sides."""

    letter: str
    """A or B."""
    text: str
    """As the user gave it."""
    words: tuple[str, ...] = ()
    """Words of a command. Empty: a file."""
    written: Path | None = None
    """Where the command writes its losses, in every run. None: to `{losses}`, or to stdout."""

    @property
    def name(self) -> str:
        return f"{self.letter} ({wording.shortened(wording.one_line(self.text), _SHORT)})"

    @property
    def processes(self) -> int | None:
        """Number of processes that the command starts, as far as its words say."""
        launchers = [place for place, word in enumerate(self.words) if Path(word).name in _LAUNCHERS]
        launched = " ".join(self.words[launchers[0] + 1 :]) if launchers else ""
        text = " ".join(self.words)
        if number := _PROCESSES.search(launched) or _LONG_PROCESSES.search(text):
            return int(number[1])
        devices = _DEVICES.search(text)
        if devices is None:
            return None
        return devices[1].count(",") + 1 if "," in devices[1] else int(devices[1])

    def files(self, copies: int) -> list[Path]:
        """Return a file, and so many of its copies as lie beside it: `A.jsonl` has `A-copy-1.jsonl` and so on."""
        of_copies = (self._copy_file(copy) for copy in range(1, 1 + copies))
        return [Path(self.text), *itertools.takewhile(_exists, of_copies)]

    def _copy_file(self, copy: int) -> Path:
        path = Path(self.text)
        return path.parent / f"{path.stem}-copy-{copy}{path.suffix}"

    def refuse_missing_copies(self, copies: int) -> None:
        """Refuse a file that has fewer copies beside it."""
        if not self.words and (there := len(self.files(copies))) <= copies:
            raise SpecError(
                f"--copies {copies} runs a command again, or reads copies beside a file. Received: {self.text} as "
                f"{self.letter}, without {self._copy_file(there).name}. Name a command, or leave --copies out."
            )

    def run(self, columns: Columns, folder: Path, seed: int | None = None) -> Run:
        """Run the command, and read what it wrote.

        Args:
            folder: gets what the command has printed, and written to `{losses}`, if it fails, is interrupted, or its losses
                cannot be read.
            seed: seed of a copy whose inputs are moved. None: inputs stay.
        """
        with PrivateFolder() as temporary:
            place = temporary.path.resolve()
            try:
                return self._run(columns, place, seed)
            except BaseException:
                printed = [path for path in (place / _OUTPUT, place / _ERRORS) if path.exists() and path.stat().st_size]
                for path in [*place.glob(f"{_LOSSES}*"), *printed]:
                    folder.mkdir(parents=True, exist_ok=True)
                    shutil.move(path, folder)
                raise

    def _run(self, columns: Columns, place: Path, seed: int | None) -> Run:
        target, count_file = place / _LOSSES, place / "count"
        variables = {name: value for name, value in os.environ.items() if name not in (SEED_VARIABLE, COUNT_VARIABLE)}
        if seed is not None:
            variables |= {SEED_VARIABLE: str(seed), COUNT_VARIABLE: str(count_file)}
        before = _states(self.written)
        words = [word.replace(LOSSES_WORD, str(target)) for word in self.words]
        code = run_into_files(words, variables, place / _OUTPUT, place / _ERRORS, curves.MOST_BYTES)
        output, errors = ((place / name).read_text(encoding="utf-8", errors="replace") for name in (_OUTPUT, _ERRORS))
        if code:
            lines = [line for line in f"{output}\n{errors}".splitlines() if line.strip()]
            last = f": {wording.shortened(wording.one_line(lines[-1]), 200)}" if lines else ""
            raise CommandError(f"{self.letter} failed ({describe_exit(code)}){last}. Received: {self.text}. Run it by hand.")
        moved = _moved(count_file)
        if self.written is not None:
            changed = [path for path, state in _states(self.written).items() if before.get(path) != state]
            if not changed:
                raise LossesError(
                    f"{self.letter} wrote no losses to {self.written}. Received: {self.text}. Name its file with --losses."
                )
            return Run(curves.read(self.written, *columns, files=changed if self.written.is_dir() else None), moved)
        try:
            if any(LOSSES_WORD in word for word in self.words):
                return Run(curves.read(self._written_losses(place), *columns), moved)
            return Run(curves.parse(output, f"the output of {self.name}", *columns, printed=True), moved)
        except LossesError as error:
            raise LossesError(str(error).replace(str(target), LOSSES_WORD)) from None

    def _written_losses(self, place: Path) -> Path:
        """Return the file or folder that was written in the place of `{losses}`, with whatever suffix."""
        written = sorted(place.glob(f"{_LOSSES}*"))
        if len(written) != 1:
            names = wording.listed(path.name.replace(_LOSSES, LOSSES_WORD, 1) for path in written)
            raise LossesError(
                f"{self.letter} must write its losses to {LOSSES_WORD}. Received: {names}. Let it write one file there."
            )
        return written[0]


def subject(letter: str, text: str, written: Path | None = None) -> Subject:
    """Return a side from a word of the command line: a file or folder that is there, or else a command."""
    path = Path(text)
    is_data = path.suffix in _FILE_SUFFIXES or "tfevents" in path.name  # whatever its mode: some file systems set every x bit
    if text and _exists(path) and (is_data or not (path.is_file() and os.access(path, os.X_OK))):
        return Subject(letter, text)
    words = split_command(letter, text)
    if not words:
        raise SpecError(f"{letter} is a command or a file of losses. Received: nothing. Use e.g. 'python train.py'.")
    if written is not None and any(LOSSES_WORD in word for word in words):
        raise SpecError(f"--losses and {LOSSES_WORD} both say where {letter} writes. Received: {text}. Leave --losses out.")
    if shutil.which(words[0]) is None:
        if len(words) == 1 and is_data:
            raise SpecError(f"{letter} names a file that is not there. Received: {text}. Name a file of losses.")
        raise SpecError(
            f"{letter} is neither a file nor a command that can be started. Received: {text}. Name a program that is there."
        )
    return Subject(letter, text, tuple(words), written)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a long command is too long for a name
        return False


def _states(path: Path | None) -> Mapping[Path, tuple[int, int, int]]:
    """Return what tells whether a file, or each file of a folder, was written again."""
    if path is None or not path.exists():
        return {}
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return {file: (status.st_ino, status.st_size, status.st_mtime_ns) for file in files for status in [file.stat()]}


def _moved(count_file: Path) -> int | None:
    try:
        return sum(int(line) for line in count_file.read_text(encoding="utf-8").split() if line.isdecimal())
    except OSError:
        return None
