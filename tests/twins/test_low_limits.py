"""A run that may use little of the machine ends well, or says why not, in both frameworks."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import results
from compare.execution import launch, store
from tests.control_groups import control_group, within
from tests.twins.runs import SECONDS, Run

pytestmark = pytest.mark.slow

WORKERS = {"input": "workers", "workers": 2}
KEPT = {"checkpoint_seconds": 0, "best_epoch": {"keep": True}}
CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "files of 8 KiB": (["bash", "-c", 'ulimit -f 8; exec "$@"', "bash"], KEPT),
    "16 descriptors": (["bash", "-c", 'ulimit -n 16; exec "$@"', "bash"], WORKERS),
    "no room in /dev/shm": (
        ["unshare", "--mount", "bash", "-c", 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"', "bash"],
        WORKERS,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_within_a_low_limit_ends_well_or_says_why_not(framework: str, tmp_path: Path, case: str) -> None:
    prefix, fields = CASES[case]
    if shutil.which(prefix[0]) is None:
        pytest.skip(f"{prefix[0]} is not here")
    run = Run(framework, tmp_path / "run", {"model": "tests.twins.own_plain_model", **fields}, prefix=prefix)
    code = run.process.wait(SECONDS)
    path = tmp_path / "run" / results.RESULT_FILE
    if path.exists():
        result = results.load(path)
        assert (code, result.status) in ((0, "ok"), (1, "failed"))
        assert (result.reason is None) == (code == 0), result.reason
    else:
        assert code == 1 and "cannot be written" in run.log.rstrip().splitlines()[-1]


LIMITS: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "memory": (("memory.limit_in_bytes", "memory.max"), ("300M", "420M")),
    "pids": (("pids.max", "pids.max"), ("5", "8")),
}
"""By controller, the file of its limit in versions 1 and 2, and two limits. The first may be less than an import needs."""


@pytest.mark.parametrize(
    ("controller", "limit"), [(controller, limit) for controller in LIMITS for limit in LIMITS[controller][1]]
)
def test_a_comparison_within_a_control_group_ends_well_or_says_why_not(
    framework: str, tmp_path: Path, controller: str, limit: str
) -> None:
    settings = ["--frameworks", framework, "--modes", "serial", "--cores", "1", "--no-proof", "--limit", "128", "--epochs", "1"]
    command = [sys.executable, "-m", "compare", "run", *settings, "--out", str(tmp_path / "out")]
    first, second = ({file: limit} for file in LIMITS[controller][0])
    with control_group(controller, first, second) as group:
        inside = [*within(group), *command]
        done = subprocess.run(inside, cwd=launch.PROJECT_ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert not (group / "cgroup.procs").read_text(encoding="ascii"), "a process is left"
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    stored = list((tmp_path / "out").glob("runs/*/result.json"))
    if done.returncode == 1:
        lacking = {"memory": "out of memory", "pids": "thread|fork|Resource temporarily unavailable"}[controller]
        reason = results.load(stored[0]).reason if stored else done.stderr
        assert re.search(lacking, reason or "", re.IGNORECASE), reason
    again = [*command[:4], "--resume", str(tmp_path / "out")] if (tmp_path / "out" / store.PLAN_FILE).exists() else command
    subprocess.run(again, cwd=launch.PROJECT_ROOT, check=True, timeout=SECONDS, capture_output=True)
