"""A run that may use little of the machine ends well, or says why not, in both frameworks."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import results
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
