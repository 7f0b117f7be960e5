"""The folder of a comparison: its plan, one subfolder for each run, and a lock so that two never share it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeVar, cast

from pydantic import BaseModel, Field, model_validator

from common.artifacts import checkpoint, contradictions, event_log, records, results
from common.artifacts.checkpoint import CheckpointError
from common.artifacts.schema import Environment, ResultError, RunResult
from common.frozen import Count, Exact, Moment
from common.machine import machine
from common.machine.machine import Facts
from common.machine.plain_file import PlainFileError
from common.machine.rates import Rates
from common.models.work import Work
from compare.cli.errors import FolderError
from compare.results import signing
from compare.results.signing import Signature
from compare.running import contestants
from compare.running.comparison_settings import PlannedSettings, from_version_1
from compare.running.contestants import Contestant
from compare.running.matrix import MOST_ROWS, FileName, Row

_LONGEST_VALUE = 120
"""Characters of a value that a refusal shows."""
_MOST_DIFFERENCES = 5
SCHEMA_VERSION = 2

PLAN_FILE = "compare.json"
RUNS_FOLDER, PROOF_FOLDER = "runs", "proof"
LOG_FILE = "log.txt"
SPEC_FILE = "spec.json"
NONCE_FILE = "spot_checks.txt"
"""File with the nonce that an attempt drew its recorded steps with."""
_ATTEMPT = re.compile(r"\.attempt[0-9]+$")

FINISHED = ("ok", "not parallel")
"""Statuses of a run that ended well."""

_Record = TypeVar("_Record", bound=BaseModel)


IN_FLOAT64 = "proved in float64"
"""Verdict on a row whose runs recorded no steps, or whose gradients are shown and not judged."""


class SpotCheck(Exact):
    """Findings from the recorded steps of one timed run and the fingerprints of its epochs."""

    row: FileName
    repeat: Count
    started_at: Moment | None = None
    """Start of the run. A run that was made again has another."""
    missing: list[Count] = []
    """Recorded steps whose files are missing: a disk may have been full."""
    has_fingerprints: bool = False
    steps: list[Count] = []
    """Recorded steps, from 1. Batch, learning rate and update of each are judged."""
    computed: list[Count] = []
    """Recorded steps whose loss and gradients the referee has computed again."""
    epochs: Count = 0
    """Number of epochs where every example is known to be the plan's."""
    faults: list[str] = []
    """Deviations from the plan or the referee, each with its step or epoch."""
    shown: str = ""
    """Why the gradients prove nothing."""


class ProofRecord(Exact):
    """The proof of a comparison as compare.json stores it."""

    verdict: str
    """`proved`, `not proved` or `not claimed`."""
    sentence: str
    float64_sentence: str = ""
    """Sentence of the float64 proof alone, where timed runs refute it. Empty: `sentence`, or not known (earlier versions)."""
    remembered: bool = False
    """Whether the float64 proof is that of an earlier comparison of the same code, versions, machine and spec."""
    mode_verdicts: dict[str, dict[str, str]] = {}
    """{contestant: {mode: verdict}}."""
    row_verdicts: dict[str, str] = {}
    """{row id: verdict on the mode and on the recorded steps of the row's runs}."""
    not_claimed: dict[str, str] = {}
    """{mode: why it is another function than serial as it is timed}."""
    compared_with: dict[str, str] = {}
    """{mode: run that it was proved to equal}, where that is not the serial run beside it."""
    rungs: list[dict[str, Any]] = []
    trajectories: Any = None
    """Copies of the run, which earlier versions made. Nothing reads them any more."""
    spot_checks: list[SpotCheck] = []

    @property
    def reason(self) -> str:
        """Why the verdict is so: the stored sentence without the verdict, which it may begin with."""
        return self.sentence.removeprefix(f"{self.verdict}: ").removesuffix(".")


class ReplacedRun(Exact):
    """A good run that `--again disturbed` made again. Its result still counts in ratios to undisturbed runs."""

    row: FileName
    """Id of its row."""
    repeat: Count
    sha256: str
    """SHA-256 of the result file."""
    number: int = Field(ge=1)
    """Number of the folder: 1 if this repeat was made again for the first time. Runs with one number were made in turn."""
    cores_taken: float | None
    """Cores of its budget that other work or the hypervisor took. None: another run of its repeat was disturbed."""
    epoch_seconds: float

    @property
    def path(self) -> str:
        """Path of the result, relative to the folder of the comparison."""
        return f"{RUNS_FOLDER}/{self.row}-r{self.repeat}.replaced{self.number}/{results.RESULT_FILE}"


class Comparison(Exact):
    """compare.json: the plan of a comparison, and its proof."""

    schema_version: Literal[2] = SCHEMA_VERSION
    created_at: Moment
    """Time of the plan: UTC, ISO 8601."""
    argv: list[str]
    settings: PlannedSettings
    rows: list[Row] = Field(min_length=1, max_length=MOST_ROWS)
    data_name: str
    data_hash: str
    data_notes: list[str] = []
    class_names: list[str] = []
    trainable_values: int = 0
    """Number of trainable values of the model."""
    train_examples: int = 0
    code_hash: str
    """Digest of the code, see `compare.running.code_digest`."""
    versions: dict[str, dict[str, str]]
    """{contestant: {package: version}}."""
    environments: dict[str, Environment] = {}
    """{contestant: environment before the proof}. Empty: not recorded."""
    machine: Facts
    proof: ProofRecord | None = None
    """Result of the proof. None until it has been run."""
    left_out: dict[str, list[int]] = {}
    """{row id: repeats that `settings.until` did not need}, because every question about the row was decided before."""
    replaced: list[ReplacedRun] = []
    """Runs that were made again because other work disturbed a run of their repeat."""
    work: Work | None = None
    """Operations and bytes of the model."""
    rates: dict[int, Rates] = {}
    """{number of cores: rates of the machine with them}, measured before the runs."""

    _read_version_1 = model_validator(mode="before")(lambda values: from_version_1(values, version=1))

    @property
    def replicas(self) -> int:
        """Replicas that the parallel modes are proved with."""
        return min((row.spec.replicas_requested for row in self.rows if row.spec.is_parallel), default=2)

    @property
    def takes_turns(self) -> bool:
        """Whether the runs of a repeat take turns. GPUs are no default: both frameworks would have to share their memory."""
        if self.settings.turns is not None:
            return self.settings.turns
        has_partners = sum(row.unavailable is None for row in self.rows) > 1
        return has_partners and not self.machine.get("gpus") and not self.has_input_ahead

    @property
    def has_input_ahead(self) -> bool:
        """Whether a row is of input workers alone. They make batches ahead, so a part of an epoch does not tell their pace."""
        return any(row.spec.part == "input" and row.spec.batches_ahead for row in self.rows)

    @property
    def headline(self) -> str:
        """Verdict of the proof in one word: `proved` only if each serial row is proved as it is timed.

        Modes that train something else by design are not counted.
        """
        if self.proof is None:
            return "not examined"
        rows = self.proof.row_verdicts
        serial = {rows.get(row.id) for row in self.rows if not row.spec.is_parallel and row.unavailable is None}
        is_less = IN_FLOAT64 in rows.values() or not serial <= {None, "proved"}
        return IN_FLOAT64 if self.proof.verdict == "proved" and is_less else self.proof.verdict

    def with_settings(self, **changes: Any) -> Self:
        """Return the comparison with other settings."""
        return self.model_copy(update={"settings": self.settings.updated(**changes)})

    def continued_by(self, new: Any) -> Self:
        """Return the comparison to continue with in a folder that holds this one, if `new` is the same comparison."""
        before, now = self.settings, new.settings
        argv = _with_repeats(self.argv, now.repeats) if now.repeats > before.repeats else self.argv
        argv = new.argv if now.seeds != before.seeds else argv
        if now.until is not None and now.until != before.until:  # the last of several values of an option counts
            argv = [*argv, "--until-decided", "--most-repeats", str(now.until.most_repeats)]
            argv += ["--smallest-effect", str(now.until.smallest_effect)]
        if now.restarts != before.restarts:
            argv = [*argv, "--restarts", str(now.restarts)]
        return self.model_copy(update={"argv": argv, "settings": before.continued_by(now)})

    def difference(self, new: Any) -> str | None:
        """Describe what makes another comparison different. None: it can continue this one."""
        if other := self._row_difference(new.rows, new.settings.seeds):
            return other
        if other := self.settings.updated(turns=self.takes_turns).difference_in_turns(new.settings):
            return other
        if self.data_hash != new.data_hash:
            return "its data had other content"
        if self.versions != new.versions:
            return "it ran other versions of the frameworks"
        stored_contestants, new_contestants = (
            {contestant.name: contestant.model_dump(mode="json") for contestant in plan.settings.contestants}
            for plan in (self, new)
        )
        if other := describe_differences(flatten(stored_contestants), flatten(new_contestants)):
            return f"of its contestants, {other}"
        for name, before in self.environments.items():
            if (now := new.environments.get(name)) is not None and (changed := contestants.describe_changes(before, now)):
                return f"the environment of {name} has changed since: {changed}"
        return code_or_machine_change((self.code_hash, new.code_hash), (self.machine, new.machine))

    def early_difference(self, early: Mapping[str, Any]) -> str | None:
        """Describe how `rows` as they are laid out, or `seeds`, differ. None: they do not."""
        return self._row_difference(early["rows"], early["seeds"], ignored_prefix="framework_options.")

    def _row_difference(self, rows: Sequence[Row], seeds: Sequence[int], ignored_prefix: str | None = None) -> str | None:
        """Describe how rows and seeds differ from new ones. None: at most fields that start with `ignored_prefix` differ."""
        if (stored_ids := _ids(self.rows)) != (new_ids := _ids(rows)):
            return f"its rows are {', '.join(stored_ids)}; asked for: {', '.join(new_ids)}"
        if not self.settings.keeps_seeds(seeds):
            return f"its seeds are {_seed_list(self.settings.seeds)}; asked for: {_seed_list(seeds)}"
        for before, now in zip(self.rows, rows, strict=True):
            stored_fields, new_fields = flatten(before.spec.model_dump(mode="json")), flatten(now.spec.model_dump(mode="json"))
            if any(
                ignored_prefix is None or not name.startswith(ignored_prefix)
                for name in _differing_fields(stored_fields, new_fields)
            ):
                return f"of {now.id}, {describe_differences(stored_fields, new_fields)}"
        return None

    def contestant_of(self, row: Row) -> Contestant:
        """Return the contestant that a row measures."""
        (contestant,) = contestants.resolve([row.contestant], self.settings.contestants)
        return contestant

    @property
    def num_rounds(self) -> int:
        """Number of repeats, with those that were made again."""
        return self.settings.repeats + len({(run.repeat, run.number) for run in self.replaced})

    def repeats_of(self, row_id: str) -> list[int]:
        """Return the repeats that are to be run of a row."""
        return [repeat for repeat in range(self.settings.repeats) if repeat not in self.left_out.get(row_id, ())]

    def row_for_repeat(self, row: Row, repeat: int) -> Row:
        """Return a row as one of its repeats runs it: with that repeat's seed, the same in all rows, if there are seeds."""
        if not (seeds := self.settings.seeds):
            return row
        seed = seeds[repeat % len(seeds)]
        return row.model_copy(update={"spec": row.spec.model_copy(update={"seed": seed})})


class SetAside(NamedTuple):
    """A stored file that cannot be relied on, and was left out."""

    row: str
    """Id of the row of its run."""
    reason: str
    """Sentence that names the file."""


class StoredComparison(Exact):
    """A comparison as read from its folder."""

    comparison: Comparison
    runs: dict[str, dict[int, RunResult]]
    """{row id: {repeat: result}}. Missing runs are left out."""
    set_aside: list[SetAside]
    torn: dict[str, int] = {}
    """{row id: number of its repeats whose result was set aside}."""
    unplanned: list[str] = []
    """Names of run folders that have a result and are not in the plan."""
    replaced: dict[int, dict[int, dict[str, RunResult]]] = {}
    """{repeat: {number: {row id: result}}} of the runs that `Comparison.replaced` names, the oldest number first."""
    made_from: dict[str, str] = {}
    """SHA-256 of each file that was read, by its path in the folder: the plan, and every result that stands in its place. The
    plan has those of replaced results."""
    signature: Signature | None = None
    """Signature of the folder. None: it has none."""

    @cached_property
    def wall_seconds(self) -> dict[int, float]:
        """{repeat: wall time of all its runs together}."""
        seconds: dict[int, float] = defaultdict(float)
        for runs in self.runs.values():
            for repeat, run in runs.items():
                seconds[repeat] += run.phases.wall_seconds if run.phases else 0.0
        return seconds

    @cached_property
    def other_data(self) -> set[str]:
        """Ids of the rows with a run that had other data than the comparison; than the first run if no run had its data."""
        hashes_by_row = {row_id: {run.data_hash for run in runs.values()} - {None} for row_id, runs in self.runs.items()}
        all_hashes = [data_hash for row_hashes in hashes_by_row.values() for data_hash in sorted(filter(None, row_hashes))]
        planned_hash = self.comparison.data_hash
        expected = planned_hash if planned_hash in all_hashes else next(iter(all_hashes), planned_hash)
        return {row_id for row_id, row_hashes in hashes_by_row.items() if row_hashes - {expected}}


def new_folder(*names: str) -> Path:
    """`results/<time>-<names>`: the default results folder of a command."""
    slugs = (re.sub(r"[^\w.-]+", "-", name) for name in names)
    return Path("results") / "-".join([f"{datetime.now().astimezone():%Y%m%d-%H%M%S}", *slugs])


def run_folder(folder: Path, row_id: str, repeat: int) -> Path:
    """Return the folder of one run."""
    runs = folder / RUNS_FOLDER
    if (directory := runs / f"{row_id}-r{repeat}").parent != runs:
        raise FolderError(f"A row's id must be a plain file name. Received: {row_id!r}. Run the comparison in another folder.")
    return directory


def result_path(row_id: str, repeat: int) -> str:
    """Return the path of one run's result, relative to the folder of its comparison."""
    return f"{RUNS_FOLDER}/{row_id}-r{repeat}/{results.RESULT_FILE}"


def refuse_links(folder: Path, names: Collection[str]) -> None:
    """Refuse to write to a folder whose own subfolders lead elsewhere. The folder itself may be a link.

    Args:
        names: names of the subfolders. They may be missing.
    """
    for path in (folder / name for name in names):
        if path.is_symlink():
            raise FolderError(
                f"{path} is a link, and what is written there would lie elsewhere. Remove it, or choose another --out."
            )


def read_record(path: Path, record: type[_Record], noun: str) -> _Record:
    """Read the record of a command's own work.

    Args:
        noun: a noun for it, with its article.
    """
    again = "Make it again in another folder."
    return records.read(
        path, record, kind=f"record of {noun}", remedy=again, missing_remedy="Name another folder.", raises=FolderError
    )


def _with_repeats(argv: Sequence[str], repeats: int) -> list[str]:
    """Return a comparison's command with another number of repeats."""
    option = "--repeats"
    others = [word for before, word in zip(["", *argv], argv, strict=False) if option not in (before, word.partition("=")[0])]
    return [*others, option, str(repeats)]


def write_plan(folder: Path, comparison: Comparison) -> None:
    records.write(folder / PLAN_FILE, comparison)


def read_plan(folder: Path) -> Comparison:
    """Read the comparison of a folder."""
    return records.read(
        folder / PLAN_FILE,
        Comparison,
        kind="comparison",
        remedy="Run the comparison again in another folder.",
        missing_remedy="Name the folder that `run` printed.",
        version=SCHEMA_VERSION,
        older_versions=(1,),
        raises=FolderError,
    )


def load_result(folder: Path, row: Row, repeat: int) -> RunResult | None:
    """Return the result of one run. None: it has none."""
    path = run_folder(folder, row.id, repeat) / results.RESULT_FILE
    if not path.exists():
        return None
    result = _load_cached(path)
    if result.spec != row.spec or result.framework != row.framework:
        raise ResultError(f"{path} is the result of another spec. Run it again.")
    if result.status in FINISHED and not result.epochs:
        raise ResultError(f"{path} has no epoch. Run it again.")
    if result.repeat != repeat:
        raise ResultError(f"{path} is the result of another repeat: of {result.repeat}. Run it again.")
    return result


def _load_cached(path: Path) -> RunResult:
    return _load_and_check(path, _file_state(path), _file_state(path.parent / event_log.EVENTS_FILE))


def _file_state(path: Path) -> tuple[int, ...] | None:
    """Return values that change when a file changes. None: there is no file."""
    try:
        file = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns


@lru_cache(maxsize=4096)
def _load_and_check(path: Path, state: tuple[int, ...] | None, events_state: tuple[int, ...] | None) -> RunResult:
    """Parse a result and check it as a whole. Done once, unless the state of its file or of its events has changed."""
    result = results.load(path)
    try:
        events = None if events_state is None else event_log.read_events(path.parent)
        is_complete = not event_log.damaged_events(path.parent)
    except PlainFileError:  # named beside the result
        events, is_complete = None, False
    if faults := contradictions.find_contradictions(result, events, all_events=is_complete):
        raise ResultError(f"{path} {contradictions.contradiction_sentence(result, faults)}. Run it again.")
    return result


def read(folder: Path, signers: Path | None = None) -> StoredComparison:
    """Read a comparison with all its results so far. Torn results are named and left out.

    Args:
        signers: file of allowed signers, see `signing.verify`. None: anybody, or nobody.
    """
    comparison = read_plan(folder)
    runs: dict[str, dict[int, RunResult]] = {row.id: {} for row in comparison.rows}
    set_aside: list[SetAside] = []
    torn: dict[str, int] = {}
    made_from = {PLAN_FILE: signing.sha256(folder / PLAN_FILE)}
    planned = {PLAN_FILE}
    for row in comparison.rows:
        for repeat in comparison.repeats_of(row.id):
            path = result_path(row.id, repeat)
            planned.add(path)
            try:
                result = load_result(folder, comparison.row_for_repeat(row, repeat), repeat)
            except ResultError as error:
                set_aside.append(SetAside(row.id, str(error).replace(f"{folder}/", "")))
                torn[row.id] = torn.get(row.id, 0) + 1
                continue
            if result is not None:
                runs[row.id][repeat] = result
                made_from[path] = signing.sha256(folder / path)
            if damaged := _describe_damage(run_folder(folder, row.id, repeat)):
                consequence = "the run has no result yet" if result is None else "the sealed result stands on its own"
                path = f"{RUNS_FOLDER}/{row.id}-r{repeat}/{event_log.EVENTS_FILE}"
                set_aside.append(SetAside(row.id, f"{path}{damaged}; {consequence}."))
    set_aside += _replaced_run_faults(folder, comparison.replaced, made_from)
    return StoredComparison(
        comparison=comparison,
        runs=runs,
        set_aside=set_aside,
        torn=torn,
        unplanned=_unplanned(folder, planned, comparison.replaced),
        replaced=_load_replaced_runs(folder, comparison.replaced),
        made_from=made_from,
        signature=signing.verify(folder, made_from, planned, signers),
    )


def _unplanned(folder: Path, planned: Set[str], replaced: Sequence[ReplacedRun]) -> list[str]:
    """Return names of run folders whose result is not planned. Earlier attempts of a planned run are not among them."""
    known = {Path(path).parent.name for path in (*planned, *(run.path for run in replaced))}
    try:
        with os.scandir(folder / RUNS_FOLDER) as entries:
            others = sorted(entry.name for entry in entries if _ATTEMPT.sub("", entry.name) not in known)
    except OSError:  # runs that cannot be read are missing
        return []
    names = (name for name in others if os.path.lexists(folder / RUNS_FOLDER / name / results.RESULT_FILE))
    return [os.fsencode(name).decode("utf-8", "backslashreplace") for name in names]


def archive_replaced_runs(folder: Path, replaced: Sequence[ReplacedRun]) -> None:
    """Move replaced runs to folders of their own, with their earlier attempts. Runs that have one already are not touched."""
    for run in replaced:
        directory, archive = run_folder(folder, run.row, run.repeat), (folder / run.path).parent
        path = directory / results.RESULT_FILE
        if archive.exists() or not _is_unchanged(path, run):
            continue
        for number in range(len(earlier_attempts(directory)), 0, -1):  # a kill in between leaves no gap
            _attempt_folder(directory, number).rename(_attempt_folder(archive, number))
        directory.rename(archive)


def _load_replaced_runs(folder: Path, replaced: Sequence[ReplacedRun]) -> dict[int, dict[int, dict[str, RunResult]]]:
    """Load the replaced results that are unchanged. See `StoredComparison.replaced`."""
    runs: dict[int, dict[int, dict[str, RunResult]]] = {}
    for run in sorted(replaced, key=lambda run: run.number):
        path = folder / run.path
        if _is_unchanged(path, run):
            with suppress(ResultError):  # which `_lost` names
                runs.setdefault(run.repeat, {}).setdefault(run.number, {})[run.row] = _load_cached(path)
    return runs


def _is_unchanged(path: Path, replaced: ReplacedRun) -> bool:
    try:
        return signing.sha256(path) == replaced.sha256
    except (FileNotFoundError, NotADirectoryError, PlainFileError):
        return False


def _replaced_run_faults(folder: Path, replaced: Sequence[ReplacedRun], made_from: Mapping[str, str]) -> list[SetAside]:
    """Describe replaced results that are missing or changed. A run that is still to be moved is no fault."""
    faults: list[SetAside] = []
    for run in replaced:
        path = folder / run.path
        if not path.exists():
            if made_from.get(result_path(run.row, run.repeat)) != run.sha256:
                faults.append(SetAside(run.row, f"{run.path} is missing: it was made again, and must be kept."))
        elif not _is_unchanged(path, run):
            faults.append(SetAside(run.row, f"{run.path} was changed since it was made again."))
        else:
            try:
                _load_cached(path)
            except ResultError as error:
                faults.append(SetAside(run.row, str(error).replace(f"{folder}/", "")))
    return faults


def prepare_run_folder(directory: Path) -> None:
    """Make an empty folder for a run. Files of an earlier attempt move to a numbered folder."""
    refuse_links(directory.parent, [directory.name])
    if directory.exists() and any(directory.iterdir()):
        directory.rename(_attempt_folder(directory, len(earlier_attempts(directory)) + 1))
    directory.mkdir(parents=True, exist_ok=True)


def earlier_attempts(directory: Path) -> list[Path]:
    """Return the folders of a run's earlier attempts, the last one first."""
    folders: list[Path] = []
    while (attempt := _attempt_folder(directory, len(folders) + 1)).exists():
        folders.append(attempt)
    return folders[::-1]


def has_checkpoint(directory: Path) -> bool:
    """Whether a run, or an earlier attempt of it, left a checkpoint."""
    return any((attempt / checkpoint.FILE).exists() for attempt in (directory, *earlier_attempts(directory)))


def attempt_to_resume(directory: Path) -> Path | None:
    """Return the earlier attempt to resume from: the last with a whole checkpoint, else the last. None: there is none."""
    folders = earlier_attempts(directory)
    return next(filter(_has_whole_checkpoint, folders), next(iter(folders), None))


def _has_whole_checkpoint(attempt: Path) -> bool:
    if not (attempt / checkpoint.FILE).exists():
        return False
    try:
        checkpoint.load(attempt)
    except CheckpointError as error:
        print(f"Not gone on from: {error}.", file=sys.stderr)
        return False
    return True


def _attempt_folder(directory: Path, number: int) -> Path:
    return directory.with_name(f"{directory.name}.attempt{number}")


def _describe_damage(directory: Path) -> str:
    """Describe damaged events of a run, as the end of a sentence. Empty: none is damaged."""
    try:
        numbers = event_log.damaged_events(directory)
    except PlainFileError as error:
        return f" {error.fault}"
    more = " and perhaps more" if len(numbers) == event_log.MOST_DAMAGED else ""
    lines = f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}{more}"
    return f": {lines}, torn or changed since" if numbers else ""


def code_or_machine_change(code_hashes: tuple[str, str], machines: tuple[Mapping[str, Any], Mapping[str, Any]]) -> str | None:
    """Describe how code or machine have changed since a record was made. None: its work can be resumed.

    Args:
        code_hashes: (then, now), see `compare.running.code_digest`.
        machines: (then, now), see `machine.describe`.
    """
    if code_hashes[0] != code_hashes[1]:
        return "the code has been changed since"
    then, now = machines
    for fact in (*machine.differences(then, now), "python"):
        if then.get(fact) != now.get(fact):
            return f"{fact} was {then.get(fact)} there and is {now.get(fact)} now"
    return None


def describe_differences(stored_fields: Mapping[str, Any], new_fields: Mapping[str, Any]) -> str | None:
    """`epochs is 2 there, asked for: 3; ...`: the fields that differ between record and request. None if none differs.

    Args:
        stored_fields: fields of the record, JSON-ready.
        new_fields: fields of the request, JSON-ready.
    """
    names = _differing_fields(stored_fields, new_fields)

    def shortened(value: object) -> str:
        text = json.dumps(value)
        return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."

    sentences = [
        f"{name} is {shortened(stored_fields.get(name))} there, asked for: {shortened(new_fields.get(name))}"
        for name in names[:_MOST_DIFFERENCES]
    ]
    more = len(names) - len(sentences)
    return "; ".join([*sentences, *([f"and {more} more"] if more else [])]) or None


def _differing_fields(stored_fields: Mapping[str, Any], new_fields: Mapping[str, Any]) -> list[str]:
    return [name for name in {**stored_fields, **new_fields} if stored_fields.get(name) != new_fields.get(name)]


def _seed_list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or "none, but one for all repeats"


def _ids(rows: Sequence[Row]) -> list[str]:
    return [row.id for row in rows]


def flatten(values: dict[str, Any], group: str = "") -> dict[str, Any]:
    """Return every field of a spec by its dotted name, as `--set` takes it."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        fields |= flatten(cast(dict[str, Any], value), f"{group}{name}.") if isinstance(value, dict) else {group + name: value}
    return fields
