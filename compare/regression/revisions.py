"""Measures two revisions of the suite, or two environments, in turn: base A, head B, then B A. Each run is a fresh process."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from common import spec
from common.artifacts import atomic_files
from common.artifacts.schema import RunResult
from common.data import sources
from common.machine import code_version, machine
from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.comparison import comparison_plan, run
from compare.comparison.run import Request
from compare.core.progress import Display, Watchers
from compare.execution import contestants, executor, launch, store
from compare.execution.contestants import Contestant
from compare.execution.executor import Code
from compare.execution.interleaving import turn
from compare.execution.matrix import Row
from compare.execution.store import Comparison

BASE, HEAD = "base", "head"
MARK_FILE = "interleaved.json"
"""Marks a folder with a `base` and a `head` that were measured in turn, so that their repeats are pairs."""

LOCK_FILE = "requirements.lock"

_PRINT_DEFAULTS = "from common import spec; print(spec.Spec().to_json())"
_MOST_SECONDS = 300.0


class RevisionError(SpecError):
    """A revision cannot be measured beside this one. The message says why, and what to do."""


@dataclass(frozen=True)
class Checkout:
    """The suite at a commit."""

    root: Path
    commit: str


@dataclass(frozen=True)
class _OneSide:
    """One of the two sides."""

    plan: Comparison
    code: Code | None = None
    """None: this one's."""
    contestants: Sequence[Contestant] = ()
    """That are entered before each of its runs."""

    def execute(self, row: Row, repeat: int, folder: Path, watch: executor.Watch) -> RunResult:
        contestants.enter(self.contestants)
        return executor.execute(row, repeat, folder, watch, self.code)


@contextmanager
def checked_out(revision: str) -> Generator[Checkout]:
    """The suite at another revision, in a temporary folder that is always removed.

    Raises:
        RevisionError: git does not know the revision, the working tree has uncommitted changes, or the two revisions need
            other packages.
    """
    here = machine.PROJECT_ROOT
    if not (here / ".git").exists():
        raise RevisionError(f"{here} is no git checkout, so it has no revisions. Clone the suite to compare them.")
    found = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if found.returncode:
        raise RevisionError(
            f"git knows no revision {revision!r}. Fetch it first. A shallow clone needs its history: git fetch --unshallow, or "
            "fetch-depth: 0 of actions/checkout."
        )
    if changed := _output("status", "--porcelain", "--untracked-files=no"):
        raise RevisionError(
            f"The working tree has uncommitted changes ({changed.splitlines()[0].strip()}), so a result could not name its "
            "code. Commit or stash them."
        )
    commit = found.stdout.strip()
    with PrivateFolder() as temporary:
        root = temporary.path / BASE
        try:
            _output("worktree", "add", "--quiet", "--detach", str(root), commit)
            if not filecmp.cmp(here / LOCK_FILE, root / LOCK_FILE, shallow=False):
                raise RevisionError(
                    f"{LOCK_FILE} differs between {revision} and the working tree, so one .venv cannot run both. Measure each "
                    "in its own clone (make setup, .venv/bin/python -m compare run --repeats 5), and compare the folders."
                )
            yield Checkout(root, commit)
        finally:
            git("worktree", "remove", "--force", str(root))
            git("worktree", "prune")  # for a checkout that was interrupted before it was complete


def order(rows: Sequence[Row], pairs: int) -> list[tuple[Row, int, str]]:
    """The order of the runs. Base and head of a row run next to each other: A B, then B A."""
    return [(row, pair, side) for pair in range(pairs) for row in turn(rows, pair) for side in turn((BASE, HEAD), pair)]


def measure(revision: str, request: Request, out: Path, shown: Display) -> None:
    """Measure another revision beside this one.

    The runs of each are stored as a comparison's folder, `base` and `head`. First, one run of each row and revision is made
    and discarded. It compiles modules, fills caches, and shows whether the other revision can run at all.

    Args:
        revision: the base, as git names it.
        request: what to run. Its repeats are the pairs.
        out: absolute path of the folder for both, empty or missing.
        shown: where progress is shown.

    Raises:
        RevisionError: the revision cannot be measured beside this one.
        FolderError, SpecError, DataRefused, LaunchError: nothing was measured.
        Interrupted: some runs were made; the folder holds them.
    """
    with checked_out(revision) as base, store.locked(out):
        store.refuse_others(out, None, None, "measurement")
        settings = replace(request.settings, values=_with_absolute_path(request.settings.values))
        head = comparison_plan.judged(replace(request, settings=settings), shown)
        rows = [row for row in head.rows if row.unavailable is None]
        if not rows:
            raise RevisionError(f"{head.rows[0].id}: {head.rows[0].unavailable}. Choose rows that this machine can do.")
        known = _fields(base, revision)
        for row in rows:
            _known_fields(row, known, revision)  # refuses before anything runs
        codes = {
            BASE: Code(base.root, lambda row: json.dumps(_known_fields(row, known, revision))),
            HEAD: Code(machine.PROJECT_ROOT, lambda row: row.spec.to_json()),
        }
        if request.prove:
            head = head.model_copy(update={"proof": run.proof(head, request, out / HEAD, Watchers(shown))})
        sides = {BASE: _OneSide(_plan_of(base, head), codes[BASE]), HEAD: _OneSide(head, codes[HEAD])}
        _in_turn(revision, rows, sides, out, {"revision": revision}, shown)


def measure_environments(pythons: tuple[str, str], request: Request, out: Path, shown: Display) -> None:
    """Measure this revision in two environments: the base's, then the head's.

    Args:
        pythons: of each: an interpreter, the folder of a virtual environment, or a name, see `contestants.interpreter`.
        request: what to run. Its repeats are the pairs.
        out: absolute path of the folder for both, empty or missing.
        shown: where progress is shown.

    Raises:
        RevisionError: a contestant has an interpreter of its own, or the environments cannot run the same.
        FolderError, SpecError, DataRefused, LaunchError: nothing was measured.
        Interrupted: some runs were made; the folder holds them.
    """
    named = [contestants.named(name) for name in request.frameworks]
    if own := [each for each in named if each.python is not None]:
        raise RevisionError(
            f"--environments names the interpreters. Received also: {own[0].name}@{own[0].python}. Leave one of them out."
        )
    with store.locked(out):
        store.refuse_others(out, None, None, "measurement")
        sides: dict[str, _OneSide] = {}
        for side, python in zip((BASE, HEAD), pythons, strict=True):
            there = [Contestant.of_fields(each.name, {**each.model_dump(), "python": python}) for each in named]
            contestants.enter(there)
            plan = comparison_plan.judged(request, shown)
            if side == HEAD and request.prove:
                plan = plan.model_copy(update={"proof": run.proof(plan, request, out / HEAD, Watchers(shown))})
            sides[side] = _OneSide(plan, contestants=there)
        base, head = (sides[side].plan for side in (BASE, HEAD))
        if [(row.spec, row.unavailable) for row in base.rows] != [(row.spec, row.unavailable) for row in head.rows]:
            raise RevisionError(
                "The two environments cannot run the same rows with the same switches. Received: "
                f"{' and '.join(pythons)}. Choose rows and switches that both have."
            )
        rows = [row for row in head.rows if row.unavailable is None]
        if not rows:
            raise RevisionError(f"{head.rows[0].id}: {head.rows[0].unavailable}. Choose rows that this machine can do.")
        _in_turn(pythons[0], rows, sides, out, {"environments": list(pythons)}, shown)


def _in_turn(
    what: str, rows: Sequence[Row], sides: Mapping[str, _OneSide], out: Path, mark: Mapping[str, Any], shown: Display
) -> None:
    """Warm up both sides, then run them in turn. `what` names the base, and `mark` is what the folder's mark says of them."""
    _warm_up(rows, sides, what, shown)
    for side, each in sides.items():
        store.write_plan(out / side, each.plan)
    commits = {side: each.plan.machine["commit"] for side, each in sides.items()}
    atomic_files.write_atomically(out / MARK_FILE, json.dumps({**mark, "commits": commits}, indent=1) + "\n")
    head = sides[HEAD].plan
    jobs = order(rows, head.repeats)
    shown.plan([row.id for row, _, _ in jobs])
    for row, pair, side in jobs:
        shown.begin(row.id, f"{row.id}, {side} ({pair + 1} of {head.repeats})")
        sides[side].execute(head.of_repeat(row, pair), pair, out / side, shown.watch)
        shown.end()


def _warm_up(rows: Sequence[Row], sides: Mapping[str, _OneSide], what: str, shown: Display) -> None:
    with PrivateFolder() as temporary:
        for row in rows:
            for side, each in sides.items():
                shown.say(f"{row.id}, {side}: warm-up")
                made = each.execute(row, 0, temporary.path / side, lambda events: None)
                if side == BASE and made.status not in ("ok", "not parallel"):
                    raise RevisionError(
                        f"{what} cannot do {row.id} ({made.status}: {made.reason}), so there is nothing to compare with. "
                        "Choose another base, or rows that it can do with --only."
                    )


def _plan_of(base: Checkout, head: Comparison) -> Comparison:
    """What the base's folder records about itself: the same rows, by other code."""
    twins = {row.framework for row in head.rows}
    folders = [
        base.root / folder
        for folder in ("common", *sorted(launch.FRAMEWORKS[name] for name in twins if name in launch.FRAMEWORKS))
    ]
    own = {**head.machine, "commit": base.commit, "dirty": False}
    return head.model_copy(update={"machine": own, "code_hash": machine.code_digest(folders), "proof": None})


def _fields(base: Checkout, revision: str) -> dict[str, Any]:
    """The spec of the base with all its defaults, as nested plain values."""
    environment = {**os.environ, "PYTHONPATH": str(base.root), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", _PRINT_DEFAULTS]
    answer = _finished(f"reading the fields of {revision}", command, cwd=base.root, env=environment)
    if answer.returncode:
        last = answer.stderr.strip().rpartition("\n")[2]
        raise RevisionError(f"The fields of {revision} cannot be read ({last}). Choose a newer base.")
    return json.loads(answer.stdout)


def _known_fields(row: Row, known: dict[str, Any], revision: str) -> dict[str, Any]:
    """A row's spec without the fields that another revision lacks, which must be at their default here."""

    def kept(values: dict[str, Any], defaults: dict[str, Any], known: dict[str, Any], group: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in values.items():
            default = defaults.get(name)
            if name in known:
                nested = default and isinstance(default, dict)  # a group of fields
                found[name] = kept(value, cast(dict[str, Any], default), known[name], f"{group}{name}.") if nested else value
            elif value != default:
                raise RevisionError(
                    f"{revision} has no field {group}{name}. Received: {json.dumps(value)} in {row.id}. Leave it at "
                    f"{json.dumps(default)}, or choose a newer base."
                )
        return found

    defaults = json.loads(spec.Spec().to_json())  # pyright: ignore[reportCallIssue]
    return kept(json.loads(row.spec.to_json()), defaults, known, "")


def _with_absolute_path(values: dict[str, Any]) -> dict[str, Any]:
    """A spec's values, with an absolute path to the data."""
    source = values.get("data", {}).get("source")
    if not isinstance(source, str) or source in sources.NAMES or not Path(source).exists():
        return values
    return spec.overlay(values, {"data.source": str(Path(source).resolve())})


def _output(*arguments: str) -> str:
    """The output of git.

    Raises:
        RevisionError: it failed.
    """
    answer = git(*arguments)
    if answer.returncode:
        last = answer.stderr.strip().rpartition("\n")[2]
        raise RevisionError(f"git {arguments[0]} failed ({last}). Repair that, and try again.")
    return answer.stdout


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git on the suite's own checkout.

    Raises:
        RevisionError: it cannot be started, or does not end.
    """
    command = ["git", "-C", str(machine.PROJECT_ROOT), "-c", "core.hooksPath=/dev/null", *arguments]
    return _finished(f"git {arguments[0]}", command, env=code_version.git_environment())


def _finished(what: str, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_MOST_SECONDS, **options)
    except OSError as error:
        raise RevisionError(f"{command[0]} cannot be started ({error.strerror}). Install it.") from None
    except subprocess.TimeoutExpired:
        raise RevisionError(f"{what} took more than {_MOST_SECONDS:.0f} s. Try it by hand, then again.") from None
