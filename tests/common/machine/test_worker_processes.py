import shutil
import sys
from pathlib import Path

import pytest

from tests.support import processes, trees

CHECK = "from common.machine import worker_processes; worker_processes.check_worker_processes()"


def test_a_temporary_folder_whose_path_has_no_room_for_sockets_is_refused_by_name(tmp_path: Path) -> None:
    processes.python("-c", CHECK, TMPDIR="/tmp").succeeded()
    long_path = trees.write(tmp_path / ("x" * 100), {})
    done = processes.python("-c", CHECK, TMPDIR=str(long_path))
    last = done.stderr.splitlines()[-1]
    assert done.exit_code == 1 and last.startswith("OSError: ") and "path too long" in last
    assert f"Received: {long_path}." in last and "TMPDIR" in last


def test_shared_memory_that_cannot_be_written_is_refused_by_name() -> None:
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none /dev/shm && exec "$@"', "sh"]
    if shutil.which("unshare") is None or processes.run([*inside, "true"]).exit_code:
        pytest.skip("this system lets nobody mount a folder in a namespace of his own")
    done = processes.run([*inside, sys.executable, "-c", CHECK])
    last = done.stderr.splitlines()[-1]
    assert done.exit_code == 1 and "/dev/shm" in last and "Read-only file system" in last and "input=inline" in last
