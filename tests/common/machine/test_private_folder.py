import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from common.machine import machine, private_folder
from common.machine.private_folder import PREFIX, PrivateFolder

HOLD = """
import sys, tempfile
from common.machine.private_folder import PrivateFolder
folder = PrivateFolder()
(folder.path / "file").write_text("content")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def held(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that holds a folder."""
    environment = os.environ | {"PYTHONPATH": str(machine.PROJECT_ROOT), "TMPDIR": str(parent)}
    command = [sys.executable, "-c", HOLD]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_for_its_user_alone_and_goes_with_all_that_is_in_it(parent: Path) -> None:
    with PrivateFolder() as folder:
        assert private_folder.contains(folder.path / "logs" / "log") and not private_folder.contains(parent / "log")
        assert folder.path.parent == parent
        assert folder.path.stat().st_mode & 0o777 == 0o700
        (folder.path / "deep" / "er").mkdir(parents=True)
        assert folder.environment == {"TMPDIR": str(folder.path)}
        assert not private_folder.is_tempdir_private()
        tempfile.tempdir = str(folder.path)
        assert private_folder.is_tempdir_private()
    folder.remove()  # does nothing twice
    assert list(parent.iterdir()) == []


def test_what_a_killed_process_leaves_is_removed_and_what_a_living_one_holds_is_not(parent: Path) -> None:
    killed, left = held(parent)
    living, kept = held(parent)
    killed.kill()
    killed.communicate()
    assert (left / "file").exists()
    with PrivateFolder() as folder:
        assert set(parent.iterdir()) == {kept, folder.path}
        assert (kept / "file").exists()
    living.communicate("")
    PrivateFolder().remove()
    assert list(parent.iterdir()) == []


def test_what_only_looks_like_a_folder_of_a_run_is_left(parent: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine").touch()
    (parent / f"{PREFIX}link").symlink_to(elsewhere)
    (parent / f"{PREFIX}file").touch()
    (parent / "convtwins-other").mkdir()
    PrivateFolder().remove()
    assert len(list(parent.iterdir())) == 3
    assert (elsewhere / "mine").exists()


def test_a_folder_of_another_user_is_left(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (parent / f"{PREFIX}stale").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: -1)
    PrivateFolder().remove()
    assert [path.name for path in parent.iterdir()] == [f"{PREFIX}stale"]
    monkeypatch.undo()


def test_without_locks_nothing_of_others_is_removed(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (parent / f"{PREFIX}others").mkdir()

    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(private_folder.fcntl, "flock", unsupported)
    with PrivateFolder() as folder:
        assert folder.path.exists()
    assert [path.name for path in parent.iterdir()] == [f"{PREFIX}others"]


def test_a_folder_that_another_takes_for_a_stale_one_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    lock = private_folder._lock_folder  # pyright: ignore[reportPrivateUsage]

    def taken(folder: Path) -> int:
        made.append(folder)
        if len(made) == 1:
            folder.rmdir()
        return lock(folder)

    monkeypatch.setattr(private_folder, "_lock_folder", taken)
    with PrivateFolder() as folder:
        assert [folder.path] == made[1:]


def test_the_path_of_a_socket_in_it_fits_on_macos() -> None:
    """There `TMPDIR` has 49 letters, and Python's input workers meet in `pymp-12345678/listener-12345678`."""
    with PrivateFolder() as folder:
        assert 49 + len(f"{folder.path.name}/pymp-12345678/listener-12345678") < 104


def test_a_path_without_room_for_sockets_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    private_folder.check_socket_path()
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'x' * 100}")
    with pytest.raises(OSError, match=r"path too long. Received: /tmp/x+. Set TMPDIR to a folder with a short path$"):
        private_folder.check_socket_path()


def test_no_command_makes_a_temporary_folder_that_stays_where_it_is_killed() -> None:
    other = re.compile(r"\b(TemporaryDirectory|mkdtemp)\b")
    found = [path for path in (machine.PROJECT_ROOT / "compare").rglob("*.py") if other.search(path.read_text())]
    assert found == []
