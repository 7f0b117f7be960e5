"""Another revision of the suite, or of a user's own model, as a contestant: its worktree, and checks that runs import it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from common import USER_PATH, spec
from common.data import sources
from common.machine import code_version, machine
from common.machine.machine import Facts
from common.machine.private_folder import PrivateFolder
from common.models import user_code
from common.spec import Spec, SpecError
from compare.comparison.comparison_plan import ComparisonRequest
from compare.judgement.sides import BASE
from compare.running import launch
from compare.running.contestants import Checkout, Contestant
from compare.tools.regression import requests

LOCK_FILES = ("requirements.lock", "locks/cpu.lock")
"""`make setup` installs one of them."""

_PRINT_DEFAULTS = "from common import spec; print(spec.Spec().to_json())"
_PRINT_FILES = (
    "import json, sys; from common.models.user_code import file_of; "
    "print(); print(json.dumps({name: str(file_of(name) or '') or None for name in sys.argv[1:]}))"
)
_MOST_SECONDS = 300.0


class RevisionError(SpecError):
    """A revision cannot be measured beside this one. The message says why, and what to do."""


@dataclass(frozen=True)
class Worktree:
    """The suite, or another repository, checked out at a commit."""

    root: Path
    commit: str
    repository: Path
    """Repository of the commit."""


@contextmanager
def checked_out(revision: str, repository: Path | None = None) -> Generator[Worktree]:
    """The suite, or another repository, at a revision: in a temporary folder that is always removed.

    Args:
        revision: as git names it, or `PATH@REV`: a revision of another clone.
        repository: the head's folder. None: the suite's.
    """
    repository = repository or machine.PROJECT_ROOT
    source, name = named(revision, repository)
    commit = commit_of(name, source)
    refuse_changes(repository)
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


def refuse_changes(repository: Path) -> None:
    """Refuse uncommitted changes in a working tree."""
    if changed := output("status", "--porcelain", "--untracked-files=no", at=repository):
        raise RevisionError(
            f"The working tree of {repository} has uncommitted changes ({changed.splitlines()[0].strip()}), so a result could "
            "not name its code. Commit or stash them."
        )


def split_revision(text: str) -> tuple[Path, str] | None:
    """Split `PATH@REV` into folder and revision. None: no such pair. A path may contain @ too: the longest one counts."""
    places = [place for place, letter in enumerate(text) if letter == "@" and place]
    splits = ((Path(text[:place]), text[place + 1 :]) for place in reversed(places))
    return next(((folder, revision) for folder, revision in splits if revision and folder.is_dir()), None)


def named(revision: str, repository: Path) -> tuple[Path, str]:
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
def worktree(commit: str, repository: Path | None = None) -> Generator[Worktree]:
    """Check out a commit in a temporary folder that is always removed."""
    with PrivateFolder() as temporary:
        root = temporary.path.resolve() / BASE
        try:
            output("worktree", "add", "--quiet", "--detach", str(root), commit, at=repository)
            yield Worktree(root, commit, repository or machine.PROJECT_ROOT)
        finally:
            git("worktree", "remove", "--force", str(root), at=repository)
            git("worktree", "prune", at=repository)  # for a checkout that was interrupted before it was complete


@contextmanager
def against(revision: str, request: ComparisonRequest) -> Generator[ComparisonRequest]:
    """Yield the request with a base beside each contestant: another revision of the suite, or of a user's own model.

    Args:
        revision: the base, as git names it.
        request: what to run. Its repeats are the pairs.
    """
    request = with_absolute_path(request)
    model, heads = request.rows[0].spec.model, request.twins.contestants
    repository = repository_of(model)
    with checked_out(revision, repository) as worktree:
        if repository == machine.PROJECT_ROOT:
            code = code_of_suite(worktree, revision)
            bases = [head.at(*code) for head in heads]
            heads = [head.at({}, Checkout(machine.PROJECT_ROOT)) for head in heads]
        else:
            code = code_of_model(worktree, revision, repository, model, heads)
            bases = [head.at(*code) for head in heads]
            heads = [head.at(_revision_of_model("HEAD", repository), Checkout()) for head in heads]
        yield requests.with_bases(request, heads, bases)


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


def code_of_model(
    worktree: Worktree, revision: str, repository: Path, model: str, heads: Sequence[Contestant]
) -> tuple[Facts, Checkout]:
    """Return another revision of the repository that a user's own model lies in. This suite trains it.

    Args:
        worktree: the base.
        revision: for messages.
        repository: its folder, the head.
        model: the model as a spec names it.
        heads: the contestants.
    """

    def to_base(path: Path) -> Path:
        """Map a path of the repository to its place in the base. Paths of the suite stay as they are."""
        whole = path.resolve()
        if not whole.is_relative_to(repository) or whole.is_relative_to(machine.PROJECT_ROOT):
            return path
        return worktree.root / whole.relative_to(repository)

    files = user_code.modules(model)
    base_files = [to_base(file) for file in files.values() if file is not None]
    if missing := [path for path in [*base_files, *map(to_base, user_code.folders(model))] if not path.exists()]:
        missing_path = missing[0].relative_to(worktree.root) if missing[0].is_relative_to(worktree.root) else missing[0]
        raise RevisionError(f"{revision} has no {missing_path}. {model} needs it. Commit it, or choose a newer base.")
    folder = to_base(Path.cwd())
    folder.mkdir(parents=True, exist_ok=True)  # git keeps no empty folders
    checkout = Checkout(folder=folder, environment=_environment_of_base(files, to_base, folder))
    _prove_imports(checkout, worktree, revision, list(files), heads)
    return _revision_of_model(worktree.commit, worktree.repository), checkout


def _revision_of_model(revision: str, repository: Path) -> Facts:
    """Return the commit that names what differs. Changes in this suite, which trains both, still show as such."""
    suite = code_version.describe(machine.PROJECT_ROOT)
    return describe_commit(revision, repository) | {"dirty": bool(suite["dirty"]), "suite_commit": suite["commit"]}


def describe_commit(revision: str, repository: Path) -> Facts:
    """A commit and its time, for a plan. Git is not asked later: settings of a repository that a file names run programs."""
    commit = commit_of(revision, repository)
    committed_at = output("show", "--no-patch", "--format=%cI", commit, at=repository).strip()
    return {"commit": commit, "dirty": False, "repository": str(repository), "committed_at": committed_at}


def _environment_of_base(files: Mapping[str, Path | None], to_base: Callable[[Path], Path], folder: Path) -> dict[str, str]:
    """Return the variables that let a process of this suite import a user's modules from the base's checkout.

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
    paths = dict.fromkeys(map(str, [machine.PROJECT_ROOT, *first, *python_path_at(to_base)]))
    return {"PYTHONPATH": os.pathsep.join(paths), USER_PATH: str(folder)}


def python_path_at(to_checkout: Callable[[Path], Path]) -> list[Path]:
    """Return the folders of PYTHONPATH in the order they have, those of a repository at their places in a checkout of it.

    Args:
        to_checkout: maps a path of the repository to its place in the checkout, and leaves other paths.
    """
    entries = [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    # What git ignores, such as a virtual environment in the repository, has no place in the checkout, and stays.
    return [to_checkout(path) if to_checkout(path).exists() else path for path in entries]


def _prove_imports(
    checkout: Checkout, worktree: Worktree, revision: str, modules: Sequence[str], heads: Sequence[Contestant]
) -> None:
    """Check that the base's runs import these modules from its checkout.

    Each interpreter is asked, and imports none of them.
    """
    by_python = {contestant.interpreter: contestant for contestant in heads}
    for python, contestant in by_python.items():
        printed = launch.run_program(
            contestant, _PRINT_FILES, modules, folder=checkout.folder, environment=checkout.environment
        )
        module_files: dict[str, str | None] = json.loads(printed.splitlines()[-1])
        for module, file in module_files.items():
            if file is None or not Path(file).is_relative_to(worktree.root):
                raise RevisionError(
                    f"The runs of {revision} would not import {module} from its checkout. Received: {file or 'no file'}, by "
                    f"{python}. Uninstall what puts it on Python's path (pip uninstall) and name its folder in PYTHONPATH, or "
                    "run each version and compare the folders: regress A B."
                )


def code_of_suite(worktree: Worktree, revision: str) -> tuple[Facts, Checkout]:
    """Return another revision of the suite. Its twins get the fields of a spec that they know.

    Args:
        worktree: its checkout.
        revision: for messages.
    """
    known = _spec_defaults(worktree, revision)
    facts = {"commit": worktree.commit, "dirty": False}
    if worktree.repository != machine.PROJECT_ROOT:
        facts = describe_commit(worktree.commit, worktree.repository)
    return facts, Checkout(worktree.root, spec_json=lambda row_id, run: json.dumps(_known_fields(row_id, run, known, revision)))


def _spec_defaults(worktree: Worktree, revision: str) -> dict[str, Any]:
    """Return the spec of the base with all its defaults, as nested plain values."""
    environment = {**os.environ, "PYTHONPATH": str(worktree.root), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", _PRINT_DEFAULTS]
    answer = _run_program(f"reading the fields of {revision}", command, cwd=worktree.root, env=environment)
    if answer.returncode:
        last = answer.stderr.strip().rpartition("\n")[2]
        raise RevisionError(f"The fields of {revision} cannot be read ({last}). Choose a newer base.")
    return json.loads(answer.stdout)


def _known_fields(row_id: str, run: Spec, known: dict[str, Any], revision: str) -> dict[str, Any]:
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
                    f"{revision} has no field {group}{name}. Received: {json.dumps(value)} in {row_id}. Leave it at "
                    f"{json.dumps(default)}, or choose a newer base."
                )
        return known_part

    defaults = json.loads(spec.Spec().to_json())  # pyright: ignore[reportCallIssue]
    return known_values(json.loads(run.to_json()), defaults, known, "")


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
