import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from common.machine import machine, private_folder
from common.machine.private_folder import PREFIX, PrivateFolder
from tests.support import processes, trees

HOLD = """
import sys, tempfile
from common.machine.private_folder import PrivateFolder
folder = PrivateFolder()
(folder.path / "file").write_text("content")
print(folder.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def held(parent: Path) -> Generator[tuple[subprocess.Popen[str], Path]]:
    """A process that holds a folder."""
    words = [sys.executable, "-c", HOLD]
    with processes.started(words, stdin=subprocess.PIPE, variables={"TMPDIR": str(parent)}) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())


def test_a_folder_is_for_its_user_alone_and_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    ask = "from common.machine import private_folder; print(private_folder.is_tempdir_private())"
    with PrivateFolder(tmp_path) as folder:
        assert private_folder.contains(folder.path / "logs" / "log") and not private_folder.contains(tmp_path / "log")
        assert folder.path.parent == tmp_path
        assert folder.path.stat().st_mode & 0o777 == 0o700
        (folder.path / "deep" / "er").mkdir(parents=True)
        assert folder.environment == {"TMPDIR": str(folder.path)}
        answers = [processes.python("-c", ask, TMPDIR=str(path)).stdout.strip() for path in (tmp_path, folder.path)]
        assert answers == ["False", "True"]
        # The path of a socket in it fits on macOS, where `TMPDIR` has 49 letters.
        assert 49 + len(f"{folder.path.name}/pymp-12345678/listener-12345678") < 104
    folder.remove()  # does nothing twice
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_leaves_is_removed_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    with held(tmp_path) as (killed, left), held(tmp_path) as (living, kept):
        killed.kill()
        killed.communicate()
        assert (left / "file").exists()
        with PrivateFolder(tmp_path) as folder:
            assert set(tmp_path.iterdir()) == {kept, folder.path}
            assert (kept / "file").exists()
        living.communicate("")
    PrivateFolder(tmp_path).remove()
    assert list(tmp_path.iterdir()) == []


def test_what_only_looks_like_a_folder_of_a_run_is_left(tmp_path: Path) -> None:
    trees.write(tmp_path, {"elsewhere/mine": "", f"parent/{PREFIX}file": "", "parent/convtwins-other": None})
    parent = tmp_path / "parent"
    (parent / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    PrivateFolder(parent).remove()
    assert len(list(parent.iterdir())) == 3
    assert (tmp_path / "elsewhere" / "mine").exists()


def test_a_folder_of_another_user_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{PREFIX}stale").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: -1)  # only root can give a folder away
    PrivateFolder(tmp_path).remove()
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}stale"]


def test_without_locks_nothing_of_others_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{PREFIX}others").mkdir()

    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(private_folder.fcntl, "flock", unsupported)  # a file system without locks
    with PrivateFolder(tmp_path) as folder:
        assert folder.path.exists()
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}others"]


def test_a_folder_that_another_takes_for_a_stale_one_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Path] = []
    lock = private_folder._lock_folder  # pyright: ignore[reportPrivateUsage]

    def taken(folder: Path) -> int:
        attempts.append(folder)
        if len(attempts) == 1:
            folder.rmdir()
        return lock(folder)

    monkeypatch.setattr(private_folder, "_lock_folder", taken)  # between two steps of the constructor
    with PrivateFolder(tmp_path) as folder:
        assert [folder.path] == attempts[1:]


def test_no_command_makes_a_temporary_folder_that_stays_where_it_is_killed() -> None:
    other = re.compile(r"\b(TemporaryDirectory|mkdtemp)\b")
    found = [path for path in (machine.PROJECT_ROOT / "compare").rglob("*.py") if other.search(path.read_text())]
    assert found == []
