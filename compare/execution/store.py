"""The folder of a comparison: its plan, one subfolder for each run, and a lock so that two never share it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import filelock
from pydantic import BaseModel, Field

from common.artifacts import atomic_files, checkpoint, contradictions, event_log, records, results
from common.artifacts.checkpoint import CheckpointError
from common.artifacts.schema import Environment, ResultError, RunResult
from common.frozen import Count, Exact, Moment
from common.machine import machine, plain_file
from common.machine.machine import Facts
from common.machine.plain_file import PlainFileError
from common.machine.rates import Rates
from common.models.work import Work
from compare.core.errors import FolderError
from compare.core.until_decided import UntilDecided
from compare.execution import contestants, signing
from compare.execution.contestants import Contestant
from compare.execution.matrix import FileName, Row
from compare.execution.signing import Signature

_LONGEST_VALUE = 120
"""Characters of a value that a refusal shows."""
_MOST_DIFFERENCES = 5
SCHEMA_VERSION = 1

PLAN_FILE = "compare.json"
RUNS_FOLDER, PROOF_FOLDER = "runs", "proof"
LOG_FILE = "log.txt"
SPEC_FILE = "spec.json"
WORD_FILE = "spot_checks.txt"
"""The word that an attempt drew its recorded steps from."""
_LOCK_FILE = ".lock"
_ATTEMPT = re.compile(r"\.attempt[0-9]+$")
_LOCK_SECONDS = 1.0
"""How long a command tries to get a folder. One that only looks whether a folder is busy holds it for a moment."""

FINISHED = ("ok", "not parallel")
"""Statuses of a run that ended well."""
MOST_REPEATS = 10_000
"""More are a slip of the hand, or a plan that would keep its reader busy for ever."""


_Record = TypeVar("_Record", bound=BaseModel)


IN_FLOAT64 = "proved in float64"
"""The verdict on a row whose runs recorded no steps, or whose gradients are shown and not judged."""


class SpotCheck(Exact):
    """What the recorded steps of one timed run, and the fingerprints of its epochs, say."""

    row: FileName
    repeat: Count
    started_at: Moment | None = None
    """Of the run. One that was made again has another."""
    missing: list[Count] = []
    """Recorded steps whose files are not there: a disk may have been full."""
    has_fingerprints: bool = False
    steps: list[Count] = []
    """Recorded, from 1. Batch, learning rate and update of each are judged."""
    computed: list[Count] = []
    """Those of them whose loss and gradients the referee has computed again."""
    epochs: Count = 0
    """Whose every example is known to be the plan's."""
    faults: list[str] = []
    """What is not as the plan and the referee say, each with its step or epoch."""
    shown: str = ""
    """Why the gradients prove nothing."""


class ProofRecord(Exact):
    """What the comparison keeps of its proof."""

    verdict: str
    """proved, not proved, or not claimed."""
    sentence: str
    mode_verdicts: dict[str, dict[str, str]] = {}
    """contestant: {mode: verdict}."""
    row_verdicts: dict[str, str] = {}
    """Row id: the verdict on the mode, and on the recorded steps of the row's runs."""
    not_claimed: dict[str, str] = {}
    """Mode: why it is another function than serial as it is timed."""
    compared_with: dict[str, str] = {}
    """Mode: what it was proved to equal, where that is not the serial run beside it."""
    rungs: list[dict[str, Any]] = []
    trajectories: Any = None
    """Copies of the run, which earlier versions made. Nothing reads them any more."""
    spot_checks: list[SpotCheck] = []


class Replaced(Exact):
    """A good run that `--again disturbed` made again. It is kept. It stays in ratios to runs that were undisturbed as well."""

    row: FileName
    """Id of its row."""
    repeat: Count
    sha256: str
    """Of its result."""
    number: int = Field(ge=1)
    """Of its folder: 1 for runs of the first time that this repeat was made again. Runs of one number were made in turn."""
    cores_taken: float | None
    """Cores of its budget that other work or the hypervisor took. None: not disturbed itself, but another run of its repeat."""
    epoch_seconds: float

    @property
    def path(self) -> str:
        """Of its result, in the folder of the comparison."""
        return f"{RUNS_FOLDER}/{self.row}-r{self.repeat}.replaced{self.number}/{results.RESULT_FILE}"


class Comparison(Exact):
    """compare.json: what is compared, and with what."""

    schema_version: int = SCHEMA_VERSION
    created_at: Moment
    """UTC, ISO 8601."""
    argv: list[str]
    rows: list[Row] = Field(min_length=1)
    repeats: int = Field(ge=1, le=MOST_REPEATS)
    data_name: str
    data_hash: str
    data_notes: list[str] = []
    class_names: list[str] = []
    trainable_values: int = 0
    """Of the model."""
    train_examples: int = 0
    code_hash: str
    """See `compare.execution.code_digest`."""
    versions: dict[str, dict[str, str]]
    """contestant: {package: version}."""
    contestants: list[Contestant] = []
    """Those that are more than a twin's name."""
    environments: dict[str, Environment] = {}
    """By contestant, as they were before the proof. Empty: not recorded."""
    machine: Facts
    prove: bool = True
    """Whether a proof was asked for."""
    oversubscribe: bool = False
    """Whether more replicas than cores were to run."""
    restarts: Count = 0
    """How often a run that is killed is restarted."""
    proof: ProofRecord | None = None
    """None until it has been run."""
    seeds: list[int] = []
    """Of the repeats, one after the other and again; none: each row's spec has its own."""
    target_accuracy: float | None = None
    """Of the validation split, until which seconds are counted."""
    until: UntilDecided | None = None
    """When to stop adding repeats. None: `repeats` of each row are made."""
    left_out: dict[str, list[int]] = {}
    """Row id: repeats that `until` did not need, because every question about the row was decided before."""
    replaced: list[Replaced] = []
    """Runs that were made again because other work disturbed a run of their repeat."""
    work: Work | None = None
    """What the model computes and moves."""
    rates: dict[int, Rates] = {}
    """Cores: what the machine did of such work with so many, measured before the runs."""

    @property
    def headline(self) -> str:
        """The verdict of the proof, for whoever reads nothing else: `proved` only if each serial row is proved as it is timed.

        Modes that train something else by design say so themselves.
        """
        if self.proof is None:
            return "not examined"
        rows = self.proof.row_verdicts
        serial = {rows.get(row.id) for row in self.rows if row.spec.mode == "serial" and row.unavailable is None}
        is_less = IN_FLOAT64 in rows.values() or not serial <= {None, "proved"}
        return IN_FLOAT64 if self.proof.verdict == "proved" and is_less else self.proof.verdict

    def repeats_of(self, row_id: str) -> list[int]:
        """Those that are to be run of a row."""
        return [repeat for repeat in range(self.repeats) if repeat not in self.left_out.get(row_id, ())]

    def of_repeat(self, row: Row, repeat: int) -> Row:
        """A row as one of its repeats runs it: with that repeat's seed, the same in all rows, where there are seeds."""
        if not self.seeds:
            return row
        seed = self.seeds[repeat % len(self.seeds)]
        return row.model_copy(update={"spec": row.spec.model_copy(update={"seed": seed})})


class Stored(Exact):
    """A comparison as its folder holds it."""

    comparison: Comparison
    runs: dict[str, dict[int, RunResult]]
    """Row id: {repeat: result}; runs that are missing are not in it."""
    set_aside: list[str]
    """Why each stored file that cannot be relied on was left out."""
    torn: dict[str, int] = {}
    """Row id: how many of its repeats have a result that was set aside."""
    unplanned: list[str] = []
    """Folders of runs that have a result and are not in the plan."""
    replaced: dict[int, dict[int, dict[str, RunResult]]] = {}
    """Repeat: {number: {row id: result}} of the runs that `Comparison.replaced` names, the oldest number first."""
    made_from: dict[str, str] = {}
    """SHA-256 of each file that was read, by its path in the folder: the plan, and every result that stands in its place. The
    plan has those of replaced results."""
    signature: Signature | None = None
    """None: it has none."""

    @cached_property
    def wall_seconds(self) -> dict[int, float]:
        """Repeat: of all its runs together."""
        found: dict[int, float] = defaultdict(float)
        for runs in self.runs.values():
            for repeat, run in runs.items():
                found[repeat] += run.phases.wall_seconds if run.phases else 0.0
        return found

    @cached_property
    def other_data(self) -> set[str]:
        """Ids of the rows with a run that had other data than the comparison. Without any of its own, than the first run."""
        seen = {row_id: {run.data_hash for run in runs.values()} - {None} for row_id, runs in self.runs.items()}
        every = [found for each in seen.values() for found in sorted(filter(None, each))]
        own = self.comparison.data_hash
        expected = own if own in every else next(iter(every), own)
        return {row_id for row_id, each in seen.items() if each - {expected}}


def new_folder(*names: str) -> Path:
    """`results/<time>-<names>`: the default results folder of a command."""
    said = (re.sub(r"[^\w.-]+", "-", name) for name in names)
    return Path("results") / "-".join([f"{datetime.now().astimezone():%Y%m%d-%H%M%S}", *said])


def run_folder(folder: Path, row_id: str, repeat: int) -> Path:
    """The folder of one run.

    Raises:
        FolderError: it would lie elsewhere than among the comparison's runs.
    """
    runs = folder / RUNS_FOLDER
    if (made := runs / f"{row_id}-r{repeat}").parent != runs:
        raise FolderError(f"A row's id must be a plain file name. Received: {row_id!r}. Run the comparison in another folder.")
    return made


def result_path(row_id: str, repeat: int) -> str:
    """Of the result of one run, in the folder of its comparison."""
    return f"{RUNS_FOLDER}/{row_id}-r{repeat}/{results.RESULT_FILE}"


def refuse_others(
    folder: Path, record: str | None, kind: str | None, what: str, *, own: Collection[str] = (), option: str = "--out"
) -> None:
    """Refuse a folder that cannot be written, or holds anything but an earlier result of the same kind. It is not touched.

    Args:
        folder: to write to. It may be missing.
        record: name of the JSON file of such a result. None: the folder may hold nothing but `own`.
        kind: value of its field `kind`, if it has one.
        what: names such a result in messages.
        own: names that may be there without a record. A result that was cut short leaves them.
        option: that named the folder.

    Raises:
        FolderError: it holds something else, or `refuse_unwritable` refuses it.
    """
    refuse_unwritable(folder, option)
    others = sorted(path.name for path in folder.glob("[!.]*") if path.name not in own)
    if not others:
        return
    try:
        found = None if record is None else plain_file.read(folder / record, records.MOST_BYTES)
        same = found is not None and atomic_files.parsed(found).get("kind") == kind
    except (OSError, ValueError, AttributeError):
        same = False
    if not same:
        found = f"holds files that belong to no {what}" if record or own else "is not empty"
        raise FolderError(f"{folder} {found} ({others[0]}). Choose an empty folder with {option}.")


def refuse_unwritable(folder: Path, option: str = "--out") -> None:
    """Refuse a folder that nothing can be written to. It is not touched, and may be missing.

    Args:
        option: that named the folder.

    Raises:
        FolderError: it or a folder above it is a file, or may not be written.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise FolderError(f"{there} is a file, not a folder. Choose a folder with {option}.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FolderError(f"Results cannot be written to {folder} ({there} may not be written). Choose another {option}.")


def refuse_links(folder: Path, names: Collection[str]) -> None:
    """Refuse to write to a folder whose own subfolders lead elsewhere. The folder itself may be a link.

    Args:
        names: of the subfolders. They may be missing.

    Raises:
        FolderError: one is a link.
    """
    for path in (folder / name for name in names):
        if path.is_symlink():
            raise FolderError(
                f"{path} is a link, and what is written there would lie elsewhere. Remove it, or choose another --out."
            )


def refuse_busy(folder: Path) -> None:
    """Refuse a folder that another command works in.

    Raises:
        FolderError: one does.
    """
    if (folder / _LOCK_FILE).exists():
        with locked(folder):
            pass


def refuse_growing(folder: Path) -> None:
    """Refuse to read a folder that another command still writes to, in a command that wants whole comparisons.

    Raises:
        FolderError: one does.
    """
    if not (folder / _LOCK_FILE).exists():
        return
    lock = filelock.FileLock(folder / _LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise FolderError(f"Another command still writes to {folder}. Wait until it has ended, or leave it out.") from None
    except OSError:
        return  # a folder that may only be read: nobody here writes to it
    lock.release()


def read_record(path: Path, record: type[_Record], what: str) -> _Record:
    """A record of a command's own work.

    Args:
        what: a noun for it, with its article.

    Raises:
        FolderError: no such file, torn, or changed since it was written.
    """
    again = "Make it again in another folder."
    return records.read(path, record, what=f"record of {what}", again=again, name_it="Name another folder.", raises=FolderError)


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold a results folder, made where it is missing.

    Raises:
        FolderError: another comparison holds it, or it cannot be written.
    """
    refuse_unwritable(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / _LOCK_FILE, timeout=_LOCK_SECONDS)
        lock.acquire(poll_interval=0.02)
    except filelock.Timeout:
        raise FolderError(f"Another command works in {folder}. Wait for it, or choose another --out.") from None
    except OSError as error:
        raise FolderError(f"Results cannot be written to {folder} ({error}). Choose another --out.") from None
    try:
        yield
    finally:
        lock.release()


def refuse_used(folder: Path, rows: Sequence[Row], seeds: Sequence[int]) -> None:
    """Refuse a folder at once for what shows before anything is prepared; `claim` judges the rest. It is not touched.

    Args:
        folder: that is to be written to; may be missing.
        rows: of the comparison to come, as they are laid out: their `framework_options` are not judged yet, and refuse nothing.

    Raises:
        FolderError: it cannot be written, or holds a comparison of other rows or seeds, or files of another kind.
    """
    refuse_unwritable(folder)
    if _holds_plan(folder):
        _refuse_other(folder, _other_rows(read_plan(folder), rows, seeds, but_for="framework_options."))


def claim(folder: Path, wanted: Comparison) -> Comparison:
    """Take a locked folder for a comparison, new or the same again; what a kill left half written in it is removed.

    Returns:
        The comparison to go on with: the stored one where it is the same, with the larger number of repeats and their seeds.

    Raises:
        FolderError: the folder holds another comparison, or files of another kind.
    """
    if not _holds_plan(folder):
        atomic_files.sweep(folder)
        return wanted
    stored = read_plan(folder)
    _refuse_other(folder, _difference(stored, wanted))
    atomic_files.sweep(folder)
    argv = _with_repeats(stored.argv, wanted.repeats) if wanted.repeats > stored.repeats else stored.argv
    argv = wanted.argv if wanted.seeds != stored.seeds else argv
    if wanted.until is not None and wanted.until != stored.until:  # the last of several values of an option counts
        argv = [*argv, "--until-decided", "--most-repeats", str(wanted.until.most_repeats)]
        argv += ["--smallest-effect", str(wanted.until.smallest_effect)]
    if wanted.restarts != stored.restarts:
        argv = [*argv, "--restarts", str(wanted.restarts)]
    return stored.model_copy(
        update={
            "repeats": max(stored.repeats, wanted.repeats),
            "seeds": wanted.seeds,
            "argv": argv,
            "target_accuracy": wanted.target_accuracy or stored.target_accuracy,
            "until": wanted.until or stored.until,
            "restarts": wanted.restarts,
        }
    )


def _with_repeats(argv: Sequence[str], repeats: int) -> list[str]:
    """A comparison's command with another number of repeats."""
    option = "--repeats"
    others = [word for before, word in zip(["", *argv], argv, strict=False) if option not in (before, word.partition("=")[0])]
    return [*others, option, str(repeats)]


def _holds_plan(folder: Path) -> bool:
    """Whether a folder holds a comparison to go on with. If it holds none, it must be empty, except for hidden files.

    Raises:
        FolderError: it is not, or a folder of the comparison is a link.
    """
    if (folder / PLAN_FILE).exists():
        refuse_links(folder, (RUNS_FOLDER, PROOF_FOLDER))
        return True
    refuse_others(folder, PLAN_FILE, None, "comparison")
    return False


def _refuse_other(folder: Path, difference: str | None) -> None:
    if difference:
        raise FolderError(
            f"{folder} holds the results of another comparison ({difference}). Choose another --out, or remove it."
        )


def write_plan(folder: Path, comparison: Comparison) -> None:
    records.write(folder / PLAN_FILE, comparison)


def read_plan(folder: Path) -> Comparison:
    """The comparison of a folder.

    Raises:
        FolderError: there is none, or it cannot be read.
    """
    return records.read(
        folder / PLAN_FILE,
        Comparison,
        what="comparison",
        again="Run the comparison again in another folder.",
        name_it="Name the folder that `run` printed.",
        version=SCHEMA_VERSION,
        raises=FolderError,
    )


def finished(folder: Path, row: Row, repeat: int) -> RunResult | None:
    """The result of one run; None where it has none.

    Raises:
        ResultError: the file is torn, or the result of another spec or repeat.
    """
    path = run_folder(folder, row.id, repeat) / results.RESULT_FILE
    if not path.exists():
        return None
    result = _judged(path)
    if result.spec != row.spec or result.framework != row.framework:
        raise ResultError(f"{path} is the result of another spec. Run it again.")
    if result.status in FINISHED and not result.epochs:
        raise ResultError(f"{path} has no epoch. Run it again.")
    if result.repeat != repeat:
        raise ResultError(f"{path} is the result of another repeat: of {result.repeat}. Run it again.")
    return result


def _judged(path: Path) -> RunResult:
    return _loaded(path, _state(path), _state(path.parent / event_log.EVENTS_FILE))


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes with a file. None: there is none."""
    try:
        file = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


@lru_cache(maxsize=4096)
def _loaded(path: Path, state: tuple[int, ...] | None, events: tuple[int, ...] | None) -> RunResult:
    """Parse a result and judge it as a whole once in a command, unless the `state` of its file or of its events has changed.

    Raises:
        ResultError: it cannot be read, or contradicts itself.
    """
    result = results.load(path)
    try:
        told = None if events is None else event_log.read_events(path.parent)
        whole = not event_log.damaged_events(path.parent)
    except PlainFileError:  # named beside the result
        told, whole = None, False
    if found := contradictions.found(result, told, all_events=whole):
        raise ResultError(f"{path} {contradictions.words(result, found)}. Run it again.")
    return result


def read(folder: Path, signers: Path | None = None) -> Stored:
    """A comparison with all its results so far; torn ones are named and left out.

    Args:
        signers: who may have signed it, see `signing.judge`. None: anybody, or nobody.

    Raises:
        FolderError: the folder holds no comparison, or `signers` cannot be read.
    """
    comparison = read_plan(folder)
    runs: dict[str, dict[int, RunResult]] = {row.id: {} for row in comparison.rows}
    set_aside: list[str] = []
    torn: dict[str, int] = {}
    made_from = {PLAN_FILE: signing.sha256(folder / PLAN_FILE)}
    planned = {PLAN_FILE}
    for row in comparison.rows:
        for repeat in comparison.repeats_of(row.id):
            path = result_path(row.id, repeat)
            planned.add(path)
            try:
                result = finished(folder, comparison.of_repeat(row, repeat), repeat)
            except ResultError as error:
                set_aside.append(str(error).replace(f"{folder}/", ""))
                torn[row.id] = torn.get(row.id, 0) + 1
                continue
            if result is not None:
                runs[row.id][repeat] = result
                made_from[path] = signing.sha256(folder / path)
            if damaged := _damaged(run_folder(folder, row.id, repeat)):
                stands = "the run has no result yet" if result is None else "the sealed result stands on its own"
                path = f"{RUNS_FOLDER}/{row.id}-r{repeat}/{event_log.EVENTS_FILE}"
                set_aside.append(f"{path}{damaged}; {stands}.")
    set_aside += _lost(folder, comparison.replaced, made_from)
    return Stored(
        comparison=comparison,
        runs=runs,
        set_aside=set_aside,
        torn=torn,
        unplanned=_unplanned(folder, planned, comparison.replaced),
        replaced=_replaced(folder, comparison.replaced),
        made_from=made_from,
        signature=signing.judge(folder, made_from, planned, signers),
    )


def _unplanned(folder: Path, planned: Set[str], replaced: Sequence[Replaced]) -> list[str]:
    """Names of run folders whose result no plan asks for. Earlier attempts at a planned run are none of them."""
    known = {Path(path).parent.name for path in (*planned, *(each.path for each in replaced))}
    try:
        with os.scandir(folder / RUNS_FOLDER) as entries:
            others = sorted(each.name for each in entries if _ATTEMPT.sub("", each.name) not in known)
    except OSError:  # runs that cannot be read are missing
        return []
    there = (name for name in others if os.path.lexists(folder / RUNS_FOLDER / name / results.RESULT_FILE))
    return [os.fsencode(name).decode("utf-8", "backslashreplace") for name in there]


def set_apart(folder: Path, replaced: Sequence[Replaced]) -> None:
    """Give replaced runs folders of their own, with their earlier attempts. Those that have one already are left alone."""
    for each in replaced:
        directory, place = run_folder(folder, each.row, each.repeat), (folder / each.path).parent
        path = directory / results.RESULT_FILE
        if place.exists() or not _is_as_it_was(path, each):
            continue
        for number in range(len(attempts(directory)), 0, -1):  # a kill in between leaves no gap
            _attempt(directory, number).rename(_attempt(place, number))
        directory.rename(place)


def _replaced(folder: Path, replaced: Sequence[Replaced]) -> dict[int, dict[int, dict[str, RunResult]]]:
    """Replaced results that are as they were. See `Stored.replaced`."""
    found: dict[int, dict[int, dict[str, RunResult]]] = {}
    for each in sorted(replaced, key=lambda each: each.number):
        path = folder / each.path
        if _is_as_it_was(path, each):
            with suppress(ResultError):  # which `_lost` names
                found.setdefault(each.repeat, {}).setdefault(each.number, {})[each.row] = _judged(path)
    return found


def _is_as_it_was(path: Path, replaced: Replaced) -> bool:
    try:
        return signing.sha256(path) == replaced.sha256
    except (FileNotFoundError, NotADirectoryError, PlainFileError):
        return False


def _lost(folder: Path, replaced: Sequence[Replaced], made_from: Mapping[str, str]) -> list[str]:
    """Replaced results that are not as they were. A run that was to be replaced, and still stands in its place, is whole."""
    said: list[str] = []
    for each in replaced:
        path = folder / each.path
        if not path.exists():
            if made_from.get(result_path(each.row, each.repeat)) != each.sha256:
                said.append(f"{each.path} is missing: it was made again, and must be kept.")
        elif not _is_as_it_was(path, each):
            said.append(f"{each.path} was changed since it was made again.")
        else:
            try:
                _judged(path)
            except ResultError as error:
                said.append(str(error).replace(f"{folder}/", ""))
    return said


def clear(directory: Path) -> None:
    """Make way for a run: an earlier attempt that left something keeps it under a number.

    Raises:
        FolderError: the folder is a link.
    """
    refuse_links(directory.parent, [directory.name])
    if directory.exists() and any(directory.iterdir()):
        directory.rename(_attempt(directory, len(attempts(directory)) + 1))
    directory.mkdir(parents=True, exist_ok=True)


def attempts(directory: Path) -> list[Path]:
    """The folders of a run's earlier attempts, the last one first."""
    found: list[Path] = []
    while (attempt := _attempt(directory, len(found) + 1)).exists():
        found.append(attempt)
    return found[::-1]


def resumable(directory: Path) -> Path | None:
    """The earlier attempt to go on from: the last one with a whole checkpoint, else the last one; None where there is none."""
    found = attempts(directory)
    return next(filter(_has_whole_checkpoint, found), next(iter(found), None))


def _has_whole_checkpoint(attempt: Path) -> bool:
    if not (attempt / checkpoint.FILE).exists():
        return False
    try:
        checkpoint.load(attempt)
    except CheckpointError as error:
        print(f"Not gone on from: {error}.", file=sys.stderr)
        return False
    return True


def _attempt(directory: Path, number: int) -> Path:
    return directory.with_name(f"{directory.name}.attempt{number}")


def _damaged(directory: Path) -> str:
    """What is wrong with the events of a run, as the end of a sentence. Empty: nothing."""
    try:
        numbers = event_log.damaged_events(directory)
    except PlainFileError as error:
        return f" {error.fault}"
    more = " and perhaps more" if len(numbers) == event_log.MOST_DAMAGED else ""
    lines = f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}{more}"
    return f": {lines}, torn or changed since" if numbers else ""


def _difference(stored: Comparison, wanted: Comparison) -> str | None:
    """What makes two comparisons different ones; None where the one can go on as the other."""
    if other := _other_rows(stored, wanted.rows, wanted.seeds):
        return other
    if stored.data_hash != wanted.data_hash:
        return "its data had other content"
    if stored.versions != wanted.versions:
        return "it ran other versions of the frameworks"
    if stored.contestants != wanted.contestants:
        return "its contestants had other interpreters or switches"
    for name, before in stored.environments.items():
        if (now := wanted.environments.get(name)) is not None and (changed := contestants.changes(before, now)):
            return f"the environment of {name} has changed since: {changed}"
    return other_ground((stored.code_hash, wanted.code_hash), (stored.machine, wanted.machine))


def other_ground(code_hashes: tuple[str, str], machines: tuple[Mapping[str, Any], Mapping[str, Any]]) -> str | None:
    """How code or machine have changed since a record was made; None where what it is of can go on.

    Args:
        code_hashes: (then, now), see `compare.execution.code_digest`.
        machines: (then, now), see `machine.describe`.
    """
    if code_hashes[0] != code_hashes[1]:
        return "the code has been changed since"
    then, now = machines
    for fact in (*machine.differences(then, now), "python"):
        if then.get(fact) != now.get(fact):
            return f"{fact} was {then.get(fact)} there and is {now.get(fact)} now"
    return None


def _other_rows(stored: Comparison, rows: Sequence[Row], seeds: Sequence[int], but_for: str | None = None) -> str | None:
    """How its rows and seeds differ from those asked for; None where it is by nothing but fields that start with `but_for`."""
    if (stored_ids := _ids(stored.rows)) != (wanted_ids := _ids(rows)):
        return f"its rows are {', '.join(stored_ids)}; asked for: {', '.join(wanted_ids)}"
    if not _keeps_seeds(stored, seeds):
        return f"its seeds are {_listed(stored.seeds)}; asked for: {_listed(seeds)}"
    for before, now in zip(stored.rows, rows, strict=True):
        there, asked = flat(before.spec.model_dump(mode="json")), flat(now.spec.model_dump(mode="json"))
        if any(but_for is None or not name.startswith(but_for) for name in _differing(there, asked)):
            return f"of {now.id}, {differing(there, asked)}"
    return None


def _keeps_seeds(stored: Comparison, seeds: Sequence[int]) -> bool:
    """Whether every repeat of a stored comparison keeps its seed, if it has these seeds from now on."""
    if not stored.seeds or not seeds:
        return not stored.seeds and not seeds
    return all(stored.seeds[each % len(stored.seeds)] == seeds[each % len(seeds)] for each in range(stored.repeats))


def differing(there: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """`epochs is 2 there, asked for: 3; ...`: the fields that differ between record and request. None if none differs.

    Args:
        there: fields of the record, JSON-ready.
        asked: the same of what is asked for.
    """
    names = _differing(there, asked)

    def shown(value: object) -> str:
        text = json.dumps(value)
        return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."

    said = [
        f"{name} is {shown(there.get(name))} there, asked for: {shown(asked.get(name))}" for name in names[:_MOST_DIFFERENCES]
    ]
    more = len(names) - len(said)
    return "; ".join([*said, *([f"and {more} more"] if more else [])]) or None


def _differing(there: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    return [name for name in {**there, **asked} if there.get(name) != asked.get(name)]


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or "none, but one for all repeats"


def _ids(rows: Sequence[Row]) -> list[str]:
    return [row.id for row in rows]


def flat(values: dict[str, Any], group: str = "") -> dict[str, Any]:
    """Every field of a spec by its dotted name, as `--set` takes it."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        fields |= flat(cast(dict[str, Any], value), f"{group}{name}.") if isinstance(value, dict) else {group + name: value}
    return fields
