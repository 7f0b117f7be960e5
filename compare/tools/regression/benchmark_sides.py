"""The two sides of benchmarks of your own: revisions of a repository, each in its own worktree, or two environments."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.artifacts.schema import Environment
from common.machine import code_version, machine
from compare.cli.errors import NoAnswerError, UnfitError
from compare.running import contestants
from compare.tools.regression import revisions
from compare.tools.regression.benchmark_command import BenchmarkCommand
from compare.tools.regression.benchmark_files import PlannedSide
from compare.tools.regression.revisions import RevisionError

_DESCRIBE = """
import importlib.util, json, sys
paths = sys.path[1:]
for finder in sys.meta_path:
    # An editable installation of setuptools names the folders of its packages here.
    mapping = getattr(sys.modules.get(getattr(finder, "__module__", "")), "MAPPING", {})
    paths += [str(path).rpartition("/")[0] for path in mapping.values()]
root, user_paths, packages = json.loads(sys.argv[1])
sys.path.insert(0, root)
from common.machine import environment
sys.path.pop(0)
described = environment.describe()
sys.path += user_paths
missing = [name for name in packages if importlib.util.find_spec(name.replace("-", "_")) is None]
print(json.dumps({"paths": paths, "environment": described, "missing": missing}))
"""
_BETWEEN_PATHS = re.compile(r"""[\s'"=;&|()<>]+|::""")
_DESCRIBE_SECONDS = 60.0
OTHER_PYTHON = "name the environment of your project: add --python .venv/bin/python"
"""Advice where runs of revisions need another environment."""


@dataclass(frozen=True)
class BenchmarkSide:
    """Where benchmarks of one side run."""

    id: str
    """`base` or `head`."""
    facts: PlannedSide
    folder: Path
    """Working directory of its processes."""
    root: Path | None = None
    """Folder of the worktree. None: the benchmarks run in the caller's folder."""
    callers_root: Path | None = None
    """Folder of the repository that the command was started in. A worktree must import nothing that git tracks there."""
    python_path: tuple[str, ...] = ()
    """Folders that are imported from, before those of the environment: those of the worktree, then the user's PYTHONPATH."""

    @property
    def python(self) -> str:
        return self.facts.environment.interpreter


def from_environment(
    side: str, python: str, packages: Sequence[str] = (), *, answer_seconds: float = _DESCRIBE_SECONDS
) -> BenchmarkSide:
    """Return this folder's code in an environment.

    Args:
        side: id of the side.
        python: its environment, see `contestants.interpreter`.
        packages: packages that it must have.
        answer_seconds: limit of the interpreter's answer.
    """
    here = Path.cwd()
    answer = revisions.git("rev-parse", "--show-toplevel", at=here)
    root = None if answer.returncode else Path(answer.stdout.strip())
    code = code_version.describe(root) if root else {}
    environment, _ = _describe(contestants.interpreter(python), packages, "Install it there.", answer_seconds)
    facts = PlannedSide(
        name=python,
        commit=code.get("commit"),
        dirty=bool(code.get("dirty")),
        changes_hash=_hash_changes(root) if root and code.get("dirty") else None,
        repository=None,
        environment=environment,
    )
    user_paths = map(str, revisions.python_path_at(lambda path: path))
    return BenchmarkSide(side, facts, here, python_path=tuple(user_paths))


class Repository:
    """The git repository of the caller's folder, whose revisions are measured.

    Args:
        python: environment of the benchmarks, see `contestants.interpreter`.
        command: it is run in each revision. The environment must have its packages.
    """

    def __init__(self, python: str, command: BenchmarkCommand) -> None:
        here = Path.cwd().resolve()
        answer = revisions.git("rev-parse", "--show-toplevel", at=here)
        if answer.returncode:
            raise RevisionError(f"{here} lies in no git repository, so it has no revisions. Go to the folder of your project.")
        self.root = Path(answer.stdout.strip()).resolve()
        self._folder = here.relative_to(self.root)
        self._refuse_own_files(command)
        self.environment, paths = _describe(
            contestants.interpreter(python), command.packages, f"Install it there, or {OTHER_PYTHON}.", _DESCRIBE_SECONDS
        )
        inside = [Path(path).resolve() for path in paths if path and Path(path).resolve().is_relative_to(self.root)]
        self._paths = [path.relative_to(self.root) for path in inside]

    @contextmanager
    def checked_out(self, side: str, revision: str) -> Generator[BenchmarkSide]:
        """Check out a revision, or `PATH@REV` of another clone, in a temporary folder that is always removed."""
        repository, name = revisions.named(revision, self.root)
        commit = revisions.commit_of(name, repository)
        with revisions.worktree(commit, repository) as worktree:
            folder = worktree.root / self._folder
            if not folder.is_dir():
                raise RevisionError(f"{revision} has no folder {self._folder}. Choose a newer base.")

            def to_worktree(path: Path) -> Path:
                whole = path.resolve()
                return worktree.root / whole.relative_to(self.root) if whole.is_relative_to(self.root) else path

            # What an installation put on Python's path, the folder itself, and the usual place of a package. Only
            # `python -m` has the folder on its path anyway.
            source_paths = [worktree.root / path for path in (*self._paths, self._folder, self._folder / "src", Path("src"))]
            paths = dict.fromkeys([*filter(Path.is_dir, source_paths), *revisions.python_path_at(to_worktree)])
            facts = revisions.describe_commit(commit, repository)
            planned = PlannedSide(
                name=revision,
                commit=commit,
                committed_at=facts["committed_at"],
                repository=str(repository),
                environment=self.environment,
            )
            yield BenchmarkSide(side, planned, folder, worktree.root, self.root, tuple(map(str, paths)))

    def _refuse_own_files(self, command: BenchmarkCommand) -> None:
        """Refuse a command that names a file of this checkout by its whole path: both sides would use that one file."""
        # Paths stand within words too: sh -c '...', --file=..., test_work.py::test_parse.
        parts = [part for word in command.words for part in (word, *_BETWEEN_PATHS.split(word))]
        for named in map(Path, dict.fromkeys(parts)):
            if not named.is_absolute() or not named.resolve().is_relative_to(self.root):
                continue
            if not revisions.git("ls-files", "--error-unmatch", "--", str(named.resolve()), at=self.root).returncode:
                raise RevisionError(
                    f"{command.option} names a file of this checkout by its whole path, so both sides would use the same one. "
                    f"Received: {named}. Name it from here: {os.path.relpath(named.resolve(), self.root / self._folder)}."
                )

    def refuse_changes(self) -> None:
        """Refuse uncommitted changes: the head is a commit, and would not hold them."""
        revisions.refuse_changes(self.root)


def _hash_changes(root: Path) -> str:
    """Return the SHA-256 of the names and contents of changed files, and of new files of Python that git does not ignore."""
    changed = revisions.output("diff", "--name-only", "-z", "HEAD", at=root)
    new = revisions.output("ls-files", "-z", "--others", "--exclude-standard", "--", "*.py", at=root)
    digest = hashlib.sha256()
    for name in sorted({*changed.split("\0"), *new.split("\0")} - {""}):
        content = (root / name).read_bytes() if (root / name).is_file() else b""  # a file that was removed, or a submodule
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _describe(python: Path, packages: Sequence[str], advice: str, answer_seconds: float) -> tuple[Environment, list[str]]:
    """Return the environment of an interpreter and the folders that it imports from.

    Args:
        python: the interpreter. To be described it needs no package.
        packages: packages that its runs need.
        advice: what to do if it has none of them.
        answer_seconds: limit of its answer.
    """
    user_paths = [*map(str, revisions.python_path_at(lambda path: path))]
    command = [str(python), "-c", _DESCRIBE, json.dumps([str(machine.PROJECT_ROOT), user_paths, packages])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, timeout=answer_seconds, cwd="/"
        )
        described: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise NoAnswerError(
            f"The interpreter gave no answer in {answer_seconds:g} s. Received: {python}. Name the python of an environment."
        ) from None
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        last = str(getattr(error, "stderr", "")).strip().rpartition("\n")[2]
        why = error.strerror if isinstance(error, OSError) else last or "it describes no environment"
        raise UnfitError(
            f"The interpreter cannot be used ({why}). Received: {python}. Name the python of an environment."
        ) from None
    if described["missing"]:
        raise UnfitError(f"The interpreter has no {described['missing'][0]}. Received: {python}. {advice}")
    return Environment.model_validate(described["environment"]), described["paths"]
