"""Benchmarks of your own in turn: `pytest ARGS` with pytest-benchmark, or any command, each in a fresh process."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from common.artifacts import atomic_files, records
from common.machine import machine, plain_file
from common.machine.interference import Meter, Usage, cores_taken
from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.cli import wording
from compare.cli.errors import FolderError, UnfitError
from compare.cli.progress import Display
from compare.judgement.run_figures import cores_words
from compare.judgement.sides import BASE
from compare.results.workspace import Workspace
from compare.running.interleaving import Job, remaining, rounds, turn
from compare.running.launch import describe_exit, run_command
from compare.statistics.statistics import VERDICT_PAIRS
from compare.tools.regression import benchmark_files
from compare.tools.regression.benchmark_command import JSON_WORD, BenchmarkCommand
from compare.tools.regression.benchmark_files import MACHINE_KEY, BenchmarkPlan
from compare.tools.regression.benchmark_sides import OTHER_PYTHON, BenchmarkSide
from compare.tools.regression.measured import COMMAND_SECONDS, FIGURE, MeasuredSubject, Measurement
from compare.tools.regression.pair_loop import Pair, PairLoop
from compare.tools.regression.revisions import RevisionError, output
from compare.tools.regression.samples import is_named

RUN_VARIABLE = "CONVTWINS_RUN"
"""Environment variable with the plug-in's run of a measurement: JSON, see `convtwins.pytest_plugin`."""
PLUGIN = "convtwins_pytest_plugin"
"""Name under which a child imports the plug-in, which its environment need not have."""

_TEST_FAILED, _IMPORT_FAILED, _REFUSED, _NOTHING_COLLECTED = 1, 2, 4, 5
"""Exit codes of pytest."""
_WHAT_FAILED = {
    _TEST_FAILED: "a test failed",
    _IMPORT_FAILED: "its tests cannot be imported",
    _REFUSED: "pytest refused its arguments",
}
_MARKS = re.compile(r"^(?:FAILED|ERROR|E  |ERROR:|.*: error:).*", re.MULTILINE)
_REFUSED_BY_PLUGIN = re.compile(r"^ERROR: (.+\. Received: .+)", re.MULTILINE)
_XDIST = re.compile(r"Benchmarks are automatically disabled because xdist plugin is active")
"""Warning of pytest-benchmark where -n is given. A plug-in that is merely installed is named in the header, too."""


class _FailedError(Exception):
    """A run has measured nothing. The text says why."""


class BenchmarkRun(NamedTuple):
    """How a run ended."""

    measurement: Measurement | None
    """Measured benchmarks. None: the run failed."""
    reason: str = ""
    advice: str = ""
    """Advice where the other side does not fail. Empty: the usual."""

    @property
    def subjects(self) -> Mapping[str, MeasuredSubject]:
        """Measured benchmarks by name."""
        return self.measurement.subjects if self.measurement else {}

    @property
    def taken(self) -> dict[str, float]:
        """Cores that other work took, by disturbed benchmark."""
        return {name: max(subject.cores_taken.values()) for name, subject in self.subjects.items() if subject.cores_taken}


class BenchmarkRuns(PairLoop[BenchmarkSide, BenchmarkRun]):
    """Runs of both sides, in the folder that it is claimed for.

    Args:
        command: what is run.
        sides: base and head.
        repeats: the most pairs.
        workspace: the folder. It may hold a part of the same measurement, which is continued.
        progress: shows the progress.
        meter: measures what other work takes while a command runs.
        only: name or pattern of the benchmarks that are judged. None: all.
        is_search: whether one benchmark is followed, and no other test is run.
    """

    repair_head = "Repair it."

    def __init__(
        self,
        command: BenchmarkCommand,
        sides: Sequence[BenchmarkSide],
        repeats: int,
        workspace: Workspace[BenchmarkPlan],
        progress: Display,
        meter: Callable[[], Meter] = Meter,
        only: str | None = None,
        *,
        is_search: bool = False,
    ) -> None:
        base, head = sides
        self.command, self.repeats, self.progress = command, repeats, progress
        self._meter, self._only, self._is_search = meter, only, is_search
        self.pairs = [Pair(base, head)]
        benchmarks = ", or benchmarks that it has" * (command.option == "--pytest")
        self.other_base = "Repair that environment." if base.root is None else f"Choose another base{benchmarks}."
        self.mend_both = f"Mend {command.option}, or {'the environments' if base.root is None else OTHER_PYTHON}."
        self.base_name = base.facts.name
        if command.metric == COMMAND_SECONDS:
            choose([command.name], only, one=False)
        plan = BenchmarkPlan(
            code_hash=code_hash(),
            machine=machine.describe(),
            command=[command.option, command.text],
            sides={"base": base.facts, "head": head.facts},
            repeats=repeats,
        )
        workspace.claim(plan)
        self.folder = workspace.folder
        self._decided: Collection[str] = ()
        self._warm_names: dict[str, Collection[str]] = {}

    def name(self, pair: Pair[BenchmarkSide]) -> str:
        return wording.shortened(self.command.name, 60)

    def stored(self, item: BenchmarkSide, repeat: int) -> BenchmarkRun | None:
        file = benchmark_files.run_file(self.folder, item.id, repeat)
        try:
            return BenchmarkRun(benchmark_files.read(file))
        except FolderError:
            return None

    def remove(self, item: BenchmarkSide, repeat: int) -> None:
        """Remove what a stored run says of benchmarks without a verdict. The next run adds them, even after a kill."""
        file = benchmark_files.run_file(self.folder, item.id, repeat)
        is_judged = self._decided and self.stored(item, repeat) is not None
        values: dict[str, Any] = atomic_files.parse_json(file.read_bytes()) if is_judged else {}
        judged = [entry for entry in values.get("benchmarks", ()) if entry["fullname"] in self._decided]
        if judged:
            atomic_files.write_atomically(file, json.dumps({**values, "benchmarks": judged}, indent=1))
        else:
            file.unlink(missing_ok=True)

    def rounds_left(self, again: Collection[tuple[str, int]]) -> list[list[Job[BenchmarkSide]]]:
        return remaining(rounds(self.pairs[0], self.repeats), lambda job: (job.item.id, job.repeat) not in again)

    def failure(self, result: BenchmarkRun) -> str | None:
        return None if result.measurement else f"failed: {result.reason}"

    def advice(self, result: BenchmarkRun) -> str:
        return result.advice

    def is_disturbed(self, result: BenchmarkRun) -> bool:
        return any(is_named(name, self._only) for name in result.taken)

    def is_spoilt(self, runs: Sequence[BenchmarkRun]) -> bool:
        """Return whether other work disturbed each benchmark on one side or both."""
        shared = _shared_names(runs)
        return bool(shared) and all(any(name in run.taken for run in runs) for name in shared)

    def ending(self, result: BenchmarkRun) -> tuple[None, str]:
        if result.measurement is None:
            return None, f"failed: {result.reason}"
        disturbed = result.taken
        words = f"disturbed: {cores_words(max(disturbed.values()))} cores taken" if disturbed else ""
        return None, f"{words} ({wording.count(len(disturbed), 'benchmark')})" if len(disturbed) > 1 else words

    def complete(self) -> None:
        """Make all pairs, and those again where a disturbed benchmark has too few reliable ones for a verdict.

        Benchmarks with enough reliable pairs keep their times. They have been judged.
        """
        reliable = self._num_reliable()
        self._decided = {name for name, pairs in reliable.items() if pairs >= VERDICT_PAIRS}
        undecided = reliable.keys() - self._decided
        self.make(
            needs_rerun=lambda pair, run: any(name in run.taken or name not in run.subjects for name in undecided),
            has_verdict=lambda: max(self._num_reliable().values(), default=0) >= VERDICT_PAIRS,
        )

    def _num_reliable(self) -> dict[str, int]:
        """Return the number of stored pairs that nothing disturbed, by benchmark of both sides."""
        reliable: dict[str, int] = {}
        for repeat in range(self.repeats):
            runs = self.runs(self.pairs[0], repeat)
            for name in _shared_names(runs):
                reliable[name] = reliable.get(name, 0) + all(name not in run.taken for run in runs)
        return reliable

    def execute(self, item: BenchmarkSide, repeat: int, folder: Path) -> BenchmarkRun:
        """Run one side in a fresh process, and store the file of its benchmarks."""
        file = benchmark_files.run_file(folder, item.id, repeat)
        with PrivateFolder() as temporary:
            written = temporary.path.resolve() / "benchmarks.json"
            words = self._words(written, item)
            meter = self._meter()
            try:
                log, code = run_command(words, item.folder, self._environment(item, repeat, temporary.path))
            except UnfitError as error:
                return BenchmarkRun(None, str(error).partition(". ")[0])
            usage = meter.usage()
            try:
                self._refuse_failed(code, log, written)
                if self.command.option == "--pytest":
                    values = atomic_files.parse_json(written.read_bytes())
                else:
                    values = self._values(written, usage.wall_seconds, _taken(usage))
            except _FailedError as failure:
                log_file = self.folder / f"failed-{item.id}.log"
                atomic_files.write_atomically(log_file, log)
                return BenchmarkRun(None, f"{failure}; the output is in {log_file}", self._advice(code, log, item))
        self._complete_facts(values, item)
        judged = atomic_files.parse_json(file.read_bytes())["benchmarks"] if file.exists() else []  # see `remove`
        names = {entry["fullname"] for entry in judged}
        values["benchmarks"] = [*(entry for entry in values["benchmarks"] if entry["fullname"] not in names), *judged]
        atomic_files.write_atomically(file, json.dumps(values, indent=1))
        run = BenchmarkRun(benchmark_files.read(file))
        if folder != self.folder:
            self._warm_names[item.id] = run.subjects.keys()
            self._refuse_other_benchmarks()
        return run

    def _words(self, written: Path, side: BenchmarkSide) -> list[str]:
        if self.command.option == "--command":
            return [word.replace(JSON_WORD, str(written)) for word in self.command.words]
        own_plugin = ["-p", "no:convtwins", "-p", PLUGIN]  # the same one on both sides, whatever is installed there
        return [side.python, "-m", "pytest", *own_plugin, *self.command.words, f"--benchmark-json={written}"]

    def _environment(self, side: BenchmarkSide, repeat: int, temporary: Path) -> dict[str, str]:
        """Return the variables of a run. Its worktree comes first on Python's path."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        variables.pop("PYTEST_CURRENT_TEST", None)
        (temporary / "plugin").mkdir()
        (temporary / "plugin" / f"{PLUGIN}.py").symlink_to(plugin_file())
        paths = [str(temporary / "plugin"), *side.python_path]
        place = turn([pair_side.id for pair_side in self.pairs[0]], repeat).index(side.id)
        run: dict[str, Any] = {"side": side.id, "pair": repeat, "place": place}
        run |= {"only": self._only, "is_search": self._is_search}
        if side.root is not None:
            run |= {"root": str(side.root), "callers_root": str(side.callers_root)}
        return variables | {
            "PYTHONPATH": os.pathsep.join(paths),
            # `python` of a command is that of the side's environment.
            "PATH": os.pathsep.join([str(Path(side.python).parent), os.environ.get("PATH", os.defpath)]),
            RUN_VARIABLE: json.dumps(run),
        }

    def _refuse_failed(self, code: int, log: str, written: Path) -> None:
        """Refuse a run that has not ended well.

        Raises:
            _FailedError: it measured nothing. The text says why.
        """
        has_tests = self.command.option == "--pytest"
        marks = _MARKS.findall(log) if has_tests else [line for line in log.splitlines() if line.strip()]
        last = f": {wording.one_line(marks[-1]).strip()}" if marks else ""
        if not has_tests:
            if code:
                raise _FailedError(f"{describe_exit(code)}{last}")
            if self.command.metric == FIGURE and not written.exists():
                raise _FailedError(f"it wrote no {JSON_WORD}")
            return
        if code == _REFUSED and (refusal := _REFUSED_BY_PLUGIN.search(log)):
            raise RevisionError(refusal[1])
        if code == 0 and written.exists():
            return
        if _XDIST.search(log) and not written.exists() and code in (0, _TEST_FAILED):
            raise SpecError(
                "pytest-xdist runs tests side by side, so pytest-benchmark measures nothing. "
                f"Received: --pytest {self.command.text}. Add -n 0 to --pytest."
            )
        what = _WHAT_FAILED.get(code) or describe_exit(code)
        raise _FailedError("no benchmark was collected" if code in (0, _NOTHING_COLLECTED) else f"{what}{last}")

    def _advice(self, code: int, log: str, side: BenchmarkSide) -> str:
        """Say what to do about tests that fail on this side alone, if its code may not be at fault. Else empty."""
        if self.command.option == "--command":
            return ""
        else_do = "choose another base" if side.id == BASE else "repair the head"
        if "ModuleNotFoundError" in log and code in (_IMPORT_FAILED, _REFUSED):
            install = "install it there" if side.root is None else OTHER_PYTHON
            return f"If {side.python} lacks a package, {install}. Else {else_do}."
        if code in (0, _NOTHING_COLLECTED):
            return f"Name the files of your benchmarks in --pytest, or {else_do}."
        return ""

    def _values(self, written: Path, seconds: float, taken: float) -> dict[str, Any]:
        """Return a command's figures in the form of pytest-benchmark: its command seconds, or those that it wrote."""
        figures: dict[str, float] = {self.command.name: seconds}
        if self.command.metric == FIGURE:
            figures = _read_figures(written)
        notes = {"cores_taken": taken, "quantity": self.command.metric}
        return {
            "machine_info": {},
            "commit_info": {},
            "benchmarks": [
                {
                    "fullname": name,
                    "name": name,
                    "extra_info": {MACHINE_KEY: notes},
                    "stats": {"median": value, "q1": value, "q3": value, "rounds": 1},
                }
                for name, value in figures.items()
            ],
            "datetime": datetime.now(UTC).isoformat(),
        }

    def _complete_facts(self, values: dict[str, Any], side: BenchmarkSide) -> None:
        """Add machine and code of a run. The files then stand alone in `history`, too."""
        facts = machine.describe()
        info = values["machine_info"]
        info["python_version"] = side.facts.environment.python
        known = {name: facts.get(name) for name in (*machine.IDENTITY, "system")}
        notes = info.get(MACHINE_KEY) or {}
        other_modules = (notes.get("imported_from_elsewhere") or {}) | _tracked(notes.get("of_caller") or {}, side.callers_root)
        if other_modules:
            module, place = next(iter(other_modules.items()))
            raise RevisionError(
                f"The {side.id} imported {module} from {place}, and not from its checkout. Both sides would be the same code. "
                f"Received: {side.facts.name}. Uninstall what is there, or install your project with pip install -e."
            )
        info[MACHINE_KEY] = {**known, "versions": {}}
        values["commit_info"] = {
            **(values.get("commit_info") or {}),
            "id": side.facts.commit or "unversioned",
            "time": side.facts.committed_at,
            "dirty": side.facts.dirty,
        }

    def _refuse_other_benchmarks(self) -> None:
        """Refuse sides without a common benchmark, and a base without the named one. Both are known when the sides are warm."""
        first, *others = self._warm_names.values()
        shared = [name for name in first if all(name in names for names in others)]
        if not shared:
            received = " and ".join(wording.listed(names) for names in (first, *others))
            raise RevisionError(
                f"Base and head have no benchmark in common. Received: {received}. Choose revisions with the same benchmarks."
            )
        choose(shared, self._only, one=self._is_search and bool(others))


def choose(names: Sequence[str], only: str | None, *, one: bool) -> list[str]:
    """Return the benchmarks, or the figures of a command, that `--only` names.

    Args:
        names: all that were measured.
        only: name or pattern. None: all.
        one: whether a search follows it, so that it must be one.
    """
    chosen = [name for name in names if is_named(name, only)]
    if not chosen:
        raise RevisionError(f"--only matches no benchmark. Received: {only}. Choose among {wording.listed(names, 10)}.")
    if one and len(chosen) > 1:
        raise SpecError(f"bisect follows one benchmark. Received: {', '.join(chosen)}. Choose with --only.")
    return chosen


def _shared_names(runs: Sequence[BenchmarkRun]) -> set[str]:
    """Return the benchmarks that all runs have."""
    names = [{*run.subjects} for run in runs]
    return set[str].intersection(*names) if names else set()


def _tracked(files: Mapping[str, str], repository: Path | None) -> dict[str, str]:
    """Return the modules whose files git tracks in a repository. A virtual environment there is not tracked.

    Args:
        files: file of each module.
        repository: its folder. None: there is none.
    """
    if not files or repository is None:
        return {}
    known = {str(repository / name) for name in output("ls-files", "-z", at=repository).split("\0") if name}
    return {module: file for module, file in files.items() if str(Path(file).resolve()) in known}


def _taken(usage: Usage) -> float:
    """Return the cores that other work took from as many cores as the command used, at least one."""
    if not usage.wall_seconds:
        return 0.0
    used, others = (seconds / usage.wall_seconds for seconds in (usage.process_cpu_seconds, usage.other_cpu_seconds))
    return cores_taken(others, max(math.ceil(used - 0.25), 1), machine.describe())


def code_hash() -> str:
    """Return the digest of the code that measures benchmarks."""
    return hashlib.sha256(plugin_file().read_bytes()).hexdigest()


def plugin_file() -> Path:
    """Return the file of the plug-in. A checkout and an installed package have it in the suite."""
    return machine.PROJECT_ROOT / "convtwins" / "pytest_plugin.py"


def _read_figures(path: Path) -> dict[str, float]:
    """Read the figures that a command wrote: a flat JSON object of numbers above 0, because ratios are compared.

    Raises:
        _FailedError: it wrote something else.
    """
    try:
        values = wrong = atomic_files.parse_json(plain_file.read(path, records.MOST_BYTES))
        if isinstance(values, dict) and values:
            wrong = {
                name: value
                for name, value in values.items()
                if type(value) not in (int, float) or not 0 < value <= sys.float_info.max
            }
            if not wrong:
                return {name: float(value) for name, value in values.items()}
        problem = f"holds {wording.shortened(json.dumps(wrong), 80)}"
    except ValueError as error:
        problem = f"is no JSON ({error})"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    raise _FailedError(
        f'the file of {JSON_WORD} {problem}, and must hold an object of numbers above 0, such as {{"seconds": 1.5}}'
    )
