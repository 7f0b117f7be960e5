"""Measure two revisions of the suite, or two environments, in turn: base A, head B, then B A. Each run is a fresh process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from common import USER_PATH, spec
from common.artifacts import atomic_files, records
from common.artifacts.schema import RunResult
from common.data import sources
from common.machine import code_version, machine, plain_file
from common.machine.private_folder import PrivateFolder
from common.models import user_code
from common.spec import Spec, SpecError
from compare.comparison import comparison_plan, run
from compare.comparison.run import ComparisonRequest
from compare.core.errors import LaunchError
from compare.core.progress import Display
from compare.core.statistics import VERDICT_PAIRS
from compare.execution import code_digest, contestants, executor, launch, store
from compare.execution.contestants import Contestant
from compare.execution.executor import CodeOverride
from compare.execution.interleaving import Job, remaining, rounds, run_in_turns, turn
from compare.execution.matrix import Row
from compare.execution.store import Comparison, ProofRecord
from compare.execution.workspace import COMPARISON, FolderKind, Workspace
from compare.judgement import run_figures

BASE, HEAD = "base", "head"
MARK_FILE = "interleaved.json"
"""Marks a folder with a `base` and a `head` that were measured in turn, so that their repeats are pairs."""
MEASUREMENT = FolderKind[None](noun="measurement", file=MARK_FILE)

LOCK_FILES = ("requirements.lock", "locks/cpu.lock")
"""`make setup` installs one of them."""

PREPARING = "asking the frameworks and reading the data"

_PRINT_DEFAULTS = "from common import spec; print(spec.Spec().to_json())"
_PRINT_FILES = (
    "import json, sys; from common.models.user_code import file_of; "
    "print(); print(json.dumps({name: str(file_of(name) or '') or None for name in sys.argv[1:]}))"
)
_MOST_SECONDS = 300.0


class RevisionError(SpecError):
    """A revision cannot be measured beside this one. The message says why, and what to do."""


@dataclass(frozen=True)
class Checkout:
    """The suite at a commit."""

    root: Path
    commit: str
    repository: Path
    """Repository of the commit."""


@dataclass(frozen=True)
class SideRunner:
    """One of the two sides, which executes rows."""

    plan: Comparison
    code: CodeOverride | None = None
    """Code that the runs use. None: that of this checkout."""

    def execute(self, row: Row, repeat: int, folder: Path, watch: executor.Watch) -> RunResult:
        """Run a row."""
        result = executor.execute(self.plan.contestant_of(row), row, repeat, folder, watch, self.code)
        planned = self.plan.environments.get(row.contestant)
        if planned and result.environment and (changed := contestants.describe_changes(planned, result.environment)):
            shutil.rmtree(store.run_folder(folder, row.id, repeat), ignore_errors=True)
            raise LaunchError(
                f"The environment of {row.contestant} has changed since the command began: {changed}. Received: "
                f"{result.environment.interpreter}. Measure again in another folder, and leave the environment alone meanwhile."
            )
        return result

    def refuse_changed(self) -> None:
        """Check that the environments are still the plan's."""
        comparison_plan.refuse_changed_environments(self.plan)


@contextmanager
def checked_out(revision: str, repository: Path | None = None) -> Generator[Checkout]:
    """The suite, or another repository, at a revision: in a temporary folder that is always removed.

    Args:
        revision: as git names it, or `PATH@REV`: a revision of another clone.
        repository: the head's folder. None: the suite's.
    """
    repository = repository or machine.PROJECT_ROOT
    source, name = _named(revision, repository)
    commit = commit_of(name, source)
    if changed := output("status", "--porcelain", "--untracked-files=no", at=repository):
        raise RevisionError(
            f"The working tree of {repository} has uncommitted changes ({changed.splitlines()[0].strip()}), so a result could "
            "not name its code. Commit or stash them."
        )
    if repository != machine.PROJECT_ROOT and (new := _untracked(repository)):
        raise RevisionError(
            f"{repository} has Python files that git does not know ({', '.join(new)}), so the head could train what its commit "
            "does not hold. Commit them, or name them in .gitignore."
        )
    with worktree(commit, source) as base:
        # Python would take what the checkout lacks from this suite, and compare this suite with itself.
        if repository == machine.PROJECT_ROOT and not any((base.root / "common").glob("spec*")):
            raise RevisionError(f"{revision} is no revision of this suite: it has no common/spec. Name a clone of the suite.")
        if repository == machine.PROJECT_ROOT and (lock := other_lock(commit, source)) is not None:
            raise RevisionError(
                f"{lock} differs between {revision} and the working tree, so one .venv cannot run both. Measure each "
                "in its own clone (make setup, .venv/bin/convtwins run --repeats 5), and compare the folders."
            )
        yield base


def split_revision(text: str) -> tuple[Path, str] | None:
    """Split `PATH@REV` into folder and revision. None: no such pair. A path may contain @ too: the longest one counts."""
    places = [place for place, letter in enumerate(text) if letter == "@" and place]
    splits = ((Path(text[:place]), text[place + 1 :]) for place in reversed(places))
    return next(((folder, revision) for folder, revision in splits if revision and folder.is_dir()), None)


def _named(revision: str, repository: Path) -> tuple[Path, str]:
    """Return the repository and the revision that are meant. A name that `repository` knows itself belongs to it."""
    other = split_revision(revision)
    if other is None or not rev_parse(revision, repository).returncode:
        return repository, revision
    return other[0].resolve(), other[1]


def rev_parse(revision: str, repository: Path) -> subprocess.CompletedProcess[str]:
    """Ask git which commit a revision is. The return code is not 0 if git knows none."""
    return git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", at=repository)


def _untracked(repository: Path) -> list[str]:
    """Return the Python files of a repository that git neither knows nor ignores, without those of the suite."""
    new = output("ls-files", "-z", "--others", "--exclude-standard", "--", "*.py", at=repository).split("\0")
    return [name for name in new if name and not (repository / name).is_relative_to(machine.PROJECT_ROOT)]


def commit_of(revision: str, repository: Path | None = None) -> str:
    """Return the commit that git knows by this name."""
    repository = repository or machine.PROJECT_ROOT
    if not (repository / ".git").exists():
        raise RevisionError(f"{repository} is no git checkout, so it has no revisions. Clone the suite to compare them.")
    answer = rev_parse(revision, repository)
    if answer.returncode:
        raise RevisionError(
            f"git knows no revision {revision!r} of {repository}. Fetch it first. A shallow clone needs its history: git fetch "
            "--unshallow, or fetch-depth: 0 of actions/checkout."
        )
    return answer.stdout.strip()


def other_lock(commit: str, repository: Path | None = None) -> str | None:
    """Return the lock file that differs between a commit and the working tree. A lock that one of them lacks is skipped."""
    for name in LOCK_FILES:
        there, here = git("show", f"{commit}:./{name}", at=repository), machine.PROJECT_ROOT / name
        if not there.returncode and here.exists() and here.read_text(encoding="utf-8") != there.stdout:
            return name
    return None


@contextmanager
def worktree(commit: str, repository: Path | None = None) -> Generator[Checkout]:
    """Check out a commit in a temporary folder that is always removed."""
    with PrivateFolder() as temporary:
        root = temporary.path.resolve() / BASE
        try:
            output("worktree", "add", "--quiet", "--detach", str(root), commit, at=repository)
            yield Checkout(root, commit, repository or machine.PROJECT_ROOT)
        finally:
            git("worktree", "remove", "--force", str(root), at=repository)
            git("worktree", "prune", at=repository)  # for a checkout that was interrupted before it was complete


class SideRow(NamedTuple):
    """A row as one side runs it."""

    row: Row
    side: str


def order(rows: Sequence[Row], pairs: int) -> list[list[Job[SideRow]]]:
    """Return the runs of each pair, in order. Base and head of a row run next to each other: A B, then B A."""
    return rounds([SideRow(row, side) for row in rows for side in (BASE, HEAD)], pairs)


def measure(revision: str, request: ComparisonRequest, out: Path, progress: Display, *, remake: bool = True) -> None:
    """Measure another revision beside this one: of the suite, or of the repository that a user's own model lies in.

    The runs of each are stored as a comparison's folder, `base` and `head`. First, one run of each row and revision is made
    and discarded. It compiles modules, fills caches, and shows whether the other revision can run at all.

    Args:
        revision: the base, as git names it.
        request: what to run. Its repeats are the pairs.
        out: absolute path of the folder for both. It may hold a part of the same measurement, which is continued.
        progress: shows the progress.
        remake: whether disturbed pairs are made again, see `_rerun_rule`.
    """
    with ExitStack() as stack:
        workspace = stack.enter_context(Workspace.open(out, MEASUREMENT))
        progress.stage(PREPARING)
        repository = repository_of(request.rows[0].spec.model)
        base = stack.enter_context(checked_out(revision, repository))
        workspace.lock()
        head = comparison_plan.build_plan(with_absolute_path(request), progress)
        rows = runnable(head)
        if repository == machine.PROJECT_ROOT:
            before = side_of(base, revision, head, rows)
            now = SideRunner(head, CodeOverride(machine.PROJECT_ROOT, lambda row: row.spec.to_json()))
        else:
            before, now = sides_of_model(base, revision, repository, head, request.twins.contestants)
        sides = {BASE: before, HEAD: now}
        claim_folder(out, sides, {"revision": revision, "repeats": head.settings.repeats, "proof": request.settings.prove})
        if request.settings.prove:
            sides[HEAD] = replace(
                now, plan=now.plan.model_copy(update={"proof": run.proof(head, request, out / HEAD, progress)})
            )
            sides[HEAD].refuse_changed()
        run_interleaved(revision, rows, sides, out, progress, needs_rerun=_rerun_rule(head, rows if remake else [], out))


def repository_of(model: str | None) -> Path:
    """Return the repository whose revisions are measured: that of a user's own model, else the suite's.

    Args:
        model: as a spec names it. None: the default one.
    """
    if model is None or not (places := [folder.resolve() for folder in user_code.folders(model)]):
        return machine.PROJECT_ROOT
    installed = Path(sysconfig.get_path("purelib")).resolve()
    tops, git_error = set[str](), ""
    for place in places:
        if place.is_relative_to(installed):
            tops.add("")
            continue
        answer = git("rev-parse", "--show-toplevel", at=place if place.is_dir() else place.parent)
        tops.add(answer.stdout.strip())
        git_error = git_error or f" git says: {' '.join(answer.stderr.split())}" * bool(answer.returncode)
    if len(tops) != 1 or not all(tops):
        raise RevisionError(
            f"{model} must lie in one git repository, whose revision is the base. Received: {', '.join(map(str, places))}."
            f"{git_error} Else both sides would train the same model. Put it under git, or run each version and compare the "
            "folders: regress A B."
        )
    return Path(*tops).resolve()


def sides_of_model(
    checkout: Checkout, revision: str, repository: Path, head: Comparison, compared: Sequence[Contestant]
) -> tuple[SideRunner, SideRunner]:
    """Two revisions of the repository that a user's own model lies in, trained by this suite.

    Args:
        checkout: the base.
        revision: for messages.
        repository: its folder, the head.
        head: the plan of the head.
        compared: the contestants.
    """

    def to_base(path: Path) -> Path:
        """Map a path of the repository to its place in the base. Paths of the suite stay as they are."""
        whole = path.resolve()
        if not whole.is_relative_to(repository) or whole.is_relative_to(machine.PROJECT_ROOT):
            return path
        return checkout.root / whole.relative_to(repository)

    model = head.rows[0].spec.model
    files = user_code.modules(model)
    base_files = [to_base(file) for file in files.values() if file is not None]
    if missing := [path for path in [*base_files, *map(to_base, user_code.folders(model))] if not path.exists()]:
        missing_path = missing[0].relative_to(checkout.root) if missing[0].is_relative_to(checkout.root) else missing[0]
        raise RevisionError(f"{revision} has no {missing_path}. {model} needs it. Commit it, or choose a newer base.")
    folder = to_base(Path.cwd())
    folder.mkdir(parents=True, exist_ok=True)  # git keeps no empty folders
    code = CodeOverride(None, lambda row: row.spec.to_json(), _environment_of_base(files, to_base, folder), folder)
    _prove_imports(code, checkout, revision, list(files), head)
    # The commit names what differs. Changes in this suite, which trains both, still show as such.
    suite_fields = {
        "repository": str(repository),
        "suite_commit": head.machine.get("commit"),
        "dirty": bool(head.machine.get("dirty")),
    }
    now = {**head.machine, **suite_fields, **_commit("HEAD", repository)}
    base_fields = {
        "machine": {**now, "repository": str(checkout.repository), **_commit(checkout.commit, checkout.repository)},
        "code_hash": code_digest.compute(compared, model, to_base),
        "proof": None,
    }
    return SideRunner(head.model_copy(update=base_fields), code), SideRunner(head.model_copy(update={"machine": now}))


def _commit(revision: str, repository: Path) -> dict[str, str]:
    """A commit and its time, for a plan. Git is not asked later: settings of a repository that a file names run programs."""
    commit = commit_of(revision, repository)
    return {"commit": commit, "committed_at": output("show", "--no-patch", "--format=%cI", commit, at=repository).strip()}


def _environment_of_base(files: Mapping[str, Path | None], to_base: Callable[[Path], Path], folder: Path) -> dict[str, str]:
    """Return the variables with which a process of this suite imports a user's modules from the base's checkout.

    Args:
        files: files of the modules, in the head.
        to_base: maps a path of the head to its place in the base.
        folder: working directory of the process.
    """
    roots = [
        file.parents[len(name.split(".")) - (file.name != "__init__.py")] for name, file in files.items() if file is not None
    ]
    # An editable installation adds its folder behind PYTHONPATH, and other modules of the repository may lie in another one.
    here = Path.cwd().resolve()
    roots += [place for place in map(Path, filter(None, sys.path)) if place.resolve() != here]
    first = [to_base(root) for root in roots if to_base(root) != root and to_base(root).is_dir()]
    python_path = [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    # What git ignores, such as a virtual environment in the repository, has no place in the base, and stays.
    python_path = [to_base(path) if to_base(path).exists() else path for path in python_path]
    paths = dict.fromkeys(map(str, [machine.PROJECT_ROOT, *first, *python_path]))
    return {"PYTHONPATH": os.pathsep.join(paths), USER_PATH: str(folder)}


def _prove_imports(code: CodeOverride, checkout: Checkout, revision: str, modules: Sequence[str], head: Comparison) -> None:
    """Check that the base's runs import these modules from its checkout.

    Each interpreter is asked, and imports none of them.
    """
    by_python = {contestant.interpreter: contestant for contestant in map(head.contestant_of, runnable(head))}
    for python, contestant in by_python.items():
        printed = launch.run_program(contestant, _PRINT_FILES, modules, folder=code.folder, environment=code.environment)
        module_files: dict[str, str | None] = json.loads(printed.splitlines()[-1])
        for module, file in module_files.items():
            if file is None or not Path(file).is_relative_to(checkout.root):
                raise RevisionError(
                    f"The runs of {revision} would not import {module} from its checkout. Received: {file or 'no file'}, by "
                    f"{python}. Uninstall what puts it on Python's path (pip uninstall) and name its folder in PYTHONPATH, or "
                    "run each version and compare the folders: regress A B."
                )


def side_of(checkout: Checkout, revision: str, head: Comparison, rows: Sequence[Row]) -> SideRunner:
    """Return a checkout as one side.

    Args:
        checkout: the checkout of the revision.
        revision: for messages.
        head: the plan of this revision.
        rows: to run.
    """
    known = _spec_defaults(checkout, revision)
    for row in rows:
        _known_fields(row, known, revision)  # refuses before anything runs
    code = CodeOverride(checkout.root, lambda row: json.dumps(_known_fields(row, known, revision)))
    return SideRunner(_base_plan(checkout, head), code)


def measure_environments(
    pythons: tuple[str, str], request: ComparisonRequest, out: Path, progress: Display, *, remake: bool = True
) -> None:
    """Measure this revision in two environments: the base's, then the head's.

    Args:
        pythons: for each side an interpreter, the folder of a virtual environment, or a name, see `contestants.interpreter`.
        request: what to run. Its repeats are the pairs. A proof compares the head's contestants with the base's.
        out: absolute path of the folder for both. It may hold a part of the same measurement, which is continued.
        progress: shows the progress.
        remake: as for `measure`.
    """
    with Workspace.open(out, MEASUREMENT) as workspace:
        progress.stage(PREPARING)
        workspace.lock()
        sides: dict[str, SideRunner] = dict(zip((BASE, HEAD), sides_of_environments(pythons, request, progress), strict=True))
        mark = {"environments": list(pythons), "repeats": sides[HEAD].plan.settings.repeats, "proof": request.settings.prove}
        claim_folder(out, sides, mark)
        if request.settings.prove:
            proof = _proof_between(sides, request, out / HEAD, progress)
            sides[HEAD] = replace(sides[HEAD], plan=sides[HEAD].plan.model_copy(update={"proof": proof}))
            for side in sides.values():
                side.refuse_changed()
        rows = runnable(head := sides[HEAD].plan)
        run_interleaved(pythons[0], rows, sides, out, progress, needs_rerun=_rerun_rule(head, rows if remake else [], out))


def _proof_between(sides: Mapping[str, SideRunner], request: ComparisonRequest, out: Path, progress: Display) -> ProofRecord:
    """Prove that the contestants of both environments train the same, for the head. All are compared with the base's first."""
    both_sides = [
        contestant.model_copy(update={"name": f"{contestant.name}-{side}"})
        for side, runner in sides.items()
        for contestant in runner.plan.settings.contestants
    ]
    twins = request.twins.with_contestants(both_sides)
    rows = {
        f"{row.id}-{side}": row.model_copy(
            update={"id": f"{row.id}-{side}", "contestant": f"{row.contestant}-{side}", "twin": row.framework}
        )
        for side, runner in sides.items()
        for row in runner.plan.rows
    }
    both = sides[HEAD].plan.model_copy(update={"rows": list(rows.values())})
    proof = run.proof(both, replace(request, twins=twins), out, progress)

    names = {*twins.names, *rows}

    def head_entries(values: Mapping[str, Any]) -> dict[str, Any]:
        end = f"-{HEAD}"
        head_values = {name.removesuffix(end): value for name, value in values.items() if name in names and name.endswith(end)}
        return {name: value for name, value in values.items() if name not in names} | head_values

    fields = ("mode_verdicts", "row_verdicts", "not_claimed")
    return proof.model_copy(update={field: head_entries(getattr(proof, field)) for field in fields})


def sides_of_environments(pythons: Sequence[str], request: ComparisonRequest, progress: Display) -> list[SideRunner]:
    """Return each environment as a side."""
    named = request.twins.contestants
    if with_python := [contestant for contestant in named if contestant.python is not None]:
        raise RevisionError(
            f"--environments names the interpreters. Received also: {with_python[0].name}@{with_python[0].python}. "
            "Leave one of them out."
        )
    sides: list[SideRunner] = []
    for python in pythons:
        side_contestants = [
            Contestant.from_fields(contestant.name, {**contestant.model_dump(), "python": python}) for contestant in named
        ]
        side_request = replace(request, twins=request.twins.with_contestants(side_contestants))
        sides.append(SideRunner(comparison_plan.build_plan(side_request, progress)))
    for side, python in zip(sides, pythons, strict=True):
        if [(row.spec, row.unavailable) for row in side.plan.rows] != [
            (row.spec, row.unavailable) for row in sides[-1].plan.rows
        ]:
            raise RevisionError(
                "The two environments cannot run the same rows with the same switches. Received: "
                f"{python} and {pythons[-1]}. Choose rows and switches that both have."
            )
    return sides


def runnable(plan: Comparison) -> list[Row]:
    """Return the rows that this machine can run."""
    rows = [row for row in plan.rows if row.unavailable is None]
    if not rows:
        raise RevisionError(f"{plan.rows[0].id}: {plan.rows[0].unavailable}. Choose rows that this machine can do.")
    return rows


def claim_folder(out: Path, sides: Mapping[str, SideRunner], mark: Mapping[str, Any]) -> None:
    """Take a locked folder for a measurement, new or the same again, and mark it.

    Args:
        out: the folder.
        sides: `base` and `head`.
        mark: what identifies the measurement besides the two plans. `revision`, a name of the base, does not.
    """
    requested_mark = {**mark, "commits": {side: runner.plan.machine["commit"] for side, runner in sides.items()}}
    path = out / MARK_FILE
    if path.exists() and _has_runs(out):
        stored, requested = (
            {**store.flatten(record), "revision": None}
            for record in (atomic_files.parse_json(plain_file.read(path, records.MOST_BYTES)), requested_mark)
        )
        MEASUREMENT.refuse_difference(out, store.describe_differences(stored, requested))
    atomic_files.write_atomically(path, json.dumps(requested_mark, indent=1) + "\n")


def is_side(folder: Path) -> bool:
    """Whether a results folder is a side of a measurement in turn, so that its runs have partners."""
    return folder.resolve().name in (BASE, HEAD) and (folder.resolve().parent / MARK_FILE).exists()


def _has_runs(out: Path) -> bool:
    return any(out.glob(f"*/{store.RUNS_FOLDER}/*"))


def run_interleaved(
    base_name: str,
    rows: Sequence[Row],
    sides: Mapping[str, SideRunner],
    out: Path,
    progress: Display,
    enough: Callable[[], bool] | None = None,
    warm: Collection[str] = (),
    needs_rerun: Callable[[Row, RunResult], bool] = lambda row, run: False,
) -> None:
    """Warm up both sides, then run them in turn. Pairs that the folder holds already are not repeated.

    Args:
        base_name: name of the base, for messages.
        rows: to run.
        sides: `base` and `head`.
        out: gets a folder of each side. See `claim_folder`.
        progress: shows the progress.
        enough: asked after each pair whether more are needed. Then the runs of both sides must succeed. None: all pairs of
            the plan are made.
        warm: sides that need no warm-up.
        needs_rerun: whether a row's run that the folder holds does not count, so that its pair is made again.

    Raises:
        OSError: a result could not be stored.
    """
    head = sides[HEAD].plan
    plans = {
        side: COMPARISON.resume(out / side, runner.plan) if _has_runs(out) else runner.plan for side, runner in sides.items()
    }

    def is_complete(job: Job[SideRow]) -> bool:
        """Whether both runs of a pair are there. Else both are made: they must meet the same state of the machine."""
        row = job.item.row
        runs = _completed_pair(head, row, job.repeat, out)
        return bool(runs) and not any(needs_rerun(row, run) for run in runs)

    planned = order(rows, head.settings.repeats)
    left = remaining(planned, is_complete)
    num_planned, num_left = (sum(map(len, jobs)) // 2 for jobs in (planned, left))
    if num_left < num_planned:
        progress.stage(f"{num_planned - num_left} of {num_planned} pairs are in {out}")
    if not left:
        return
    _warm_up(
        rows,
        {side: runner for side, runner in sides.items() if side not in warm},
        base_name,
        progress,
        strict=enough is not None,
    )
    for side, plan in plans.items():
        store.write_plan(out / side, plan)

    def label(job: Job[SideRow]) -> str:
        (row, side), pair = job
        return f"{row.id}, {side} ({pair + 1} of {'at most ' if enough is not None else ''}{head.settings.repeats})"

    def execute(job: Job[SideRow]) -> RunResult:
        (row, side), pair = job
        if side == turn((BASE, HEAD), pair)[0]:  # the first of its pair
            for name in sides:
                shutil.rmtree(store.run_folder(out / name, row.id, pair), ignore_errors=True)
        result = sides[side].execute(head.row_for_repeat(row, pair), pair, out / side, progress.watch)
        if result.status not in store.FINISHED and not executor.is_stored_with_space_left(
            store.run_folder(out / side, row.id, pair)
        ):
            raise OSError(f"{label(job)}: {result.reason}. The measurement stops here; regress {out} judges its runs")
        return result

    def accept(job: Job[SideRow], result: RunResult) -> bool:
        if enough is None or result.status in store.FINISHED:
            return True
        words = f"{job.item.row.id} did not end well ({result.status}: {result.reason})."
        if job.item.side == BASE:
            raise LaunchError(f"{base_name}: {words} It had ended well before. The same command continues.")
        raise RevisionError(words)

    for _ in run_in_turns(
        left,
        execute,
        progress,
        name=lambda item: item.row.id,
        label=label,
        accept=accept,
        ending=run_figures.ending,
    ):
        if enough is not None and enough():
            return


def _completed_pair(plan: Comparison, row: Row, pair: int, out: Path) -> list[RunResult]:
    """Return the runs of both sides that ended well. Empty: one of them is missing."""
    row = plan.row_for_repeat(row, pair)
    runs = [run for side in (BASE, HEAD) if (run := comparison_plan.good_result(out / side, row, pair)) is not None]
    return runs if len(runs) == 2 else []


def _rerun_rule(plan: Comparison, rows: Sequence[Row], out: Path) -> Callable[[Row, RunResult], bool]:
    """Return the rule which runs are made again: disturbed ones, in rows with too few reliable pairs for a verdict.

    Pairs of other rows stay. Their times have been judged, and whoever could draw them again would choose among verdicts.
    """

    def is_reliable(row: Row, pair: int) -> bool:
        runs = _completed_pair(plan, row, pair, out)
        return bool(runs) and not any(map(run_figures.times_in_doubt, runs))

    pairs = range(plan.settings.repeats)
    undecided_rows = {row.id for row in rows if sum(is_reliable(row, pair) for pair in pairs) < VERDICT_PAIRS}
    return lambda row, run: row.id in undecided_rows and run_figures.disturbing_cores(run) is not None


def _warm_up(rows: Sequence[Row], sides: Mapping[str, SideRunner], base_name: str, progress: Display, *, strict: bool) -> None:
    with PrivateFolder() as temporary:
        for row in rows:
            for side, runner in sides.items():
                progress.stage(f"{row.id}, {side}: warm-up")
                result = runner.execute(row, 0, temporary.path / side, lambda events: None)
                if result.status in store.FINISHED:
                    continue
                if side == BASE:
                    raise RevisionError(
                        f"{base_name} cannot do {row.id} ({result.status}: {result.reason}), so there is nothing to compare "
                        "with. Choose another base, or rows that it can do with --only."
                    )
                words = f"{row.id} did not end well ({result.status}: {result.reason})."
                if strict:
                    raise RevisionError(words)
                raise LaunchError(
                    f"The head's warm-up of {words} {base_name} can do it. Repair it, or choose other rows with --only."
                )


def _base_plan(base: Checkout, head: Comparison) -> Comparison:
    """Return the plan that the base's folder records: the same rows, run by other code."""
    twins = {row.framework for row in head.rows}
    folders = [
        base.root / folder
        for folder in ("common", *sorted(launch.FRAMEWORKS[name] for name in twins if name in launch.FRAMEWORKS))
    ]
    base_machine = {**head.machine, "commit": base.commit, "dirty": False}
    if base.repository != machine.PROJECT_ROOT:
        base_machine |= {"repository": str(base.repository), **_commit(base.commit, base.repository)}
    return head.model_copy(update={"machine": base_machine, "code_hash": machine.code_digest(folders), "proof": None})


def _spec_defaults(base: Checkout, revision: str) -> dict[str, Any]:
    """Return the spec of the base with all its defaults, as nested plain values."""
    environment = {**os.environ, "PYTHONPATH": str(base.root), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", _PRINT_DEFAULTS]
    answer = _run_program(f"reading the fields of {revision}", command, cwd=base.root, env=environment)
    if answer.returncode:
        last = answer.stderr.strip().rpartition("\n")[2]
        raise RevisionError(f"The fields of {revision} cannot be read ({last}). Choose a newer base.")
    return json.loads(answer.stdout)


def _known_fields(row: Row, known: dict[str, Any], revision: str) -> dict[str, Any]:
    """Return a row's spec without the fields that another revision lacks. These must be at their defaults here."""

    def known_values(values: dict[str, Any], defaults: dict[str, Any], known: dict[str, Any], group: str) -> dict[str, Any]:
        known_part: dict[str, Any] = {}
        for name, value in values.items():
            default = defaults.get(name)
            if name in known:
                nested = default and isinstance(default, dict)  # a group of fields
                known_part[name] = (
                    known_values(value, cast(dict[str, Any], default), known[name], f"{group}{name}.") if nested else value
                )
            elif value != default:
                raise RevisionError(
                    f"{revision} has no field {group}{name}. Received: {json.dumps(value)} in {row.id}. Leave it at "
                    f"{json.dumps(default)}, or choose a newer base."
                )
        return known_part

    defaults = json.loads(spec.Spec().to_json())  # pyright: ignore[reportCallIssue]
    return known_values(json.loads(row.spec.to_json()), defaults, known, "")


def with_absolute_path(request: ComparisonRequest) -> ComparisonRequest:
    """A request with an absolute path to the data, which every checkout finds."""
    source = request.rows[0].spec.data.source
    if source in sources.NAMES or not Path(source).exists():
        return request
    data = {"source": str(Path(source).resolve())}

    def with_source(run: Spec) -> Spec:
        return run.with_fields(data=run.data.model_dump() | data)

    return replace(request, rows=[row.model_copy(update={"spec": with_source(row.spec)}) for row in request.rows])


def output(*arguments: str, at: Path | None = None) -> str:
    """Return the output of a git command."""
    answer = git(*arguments, at=at)
    if answer.returncode:
        last = answer.stderr.strip().rpartition("\n")[2]
        raise RevisionError(f"git {arguments[0]} failed ({last}). Repair that, and try again.")
    return answer.stdout


def git(*arguments: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run git on the suite's own checkout, or on another."""
    command = ["git", "-C", str(at or machine.PROJECT_ROOT), "-c", "core.hooksPath=/dev/null", *arguments]
    return _run_program(f"git {arguments[0]}", command, env=code_version.git_environment())


def _run_program(
    what: str, command: Sequence[str], *, most_seconds: float = _MOST_SECONDS, **options: Any
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=most_seconds, **options)
    except OSError as error:
        raise RevisionError(f"{command[0]} cannot be started ({error.strerror}). Install it.") from None
    except subprocess.TimeoutExpired:
        raise RevisionError(f"{what} took more than {most_seconds:g} s. Try it by hand, then again.") from None
