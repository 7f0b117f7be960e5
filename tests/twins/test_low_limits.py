"""A run that may use little of the machine ends well, or says why not, in both frameworks."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import checkpoint, event_log, results
from compare.results import store
from tests import full_disk
from tests.control_groups import control_group, within
from tests.full_disk import FullDisk
from tests.support import processes
from tests.support.command_line import convtwins_process
from tests.twins.runs import RANKS, SECONDS, Run

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


@pytest.mark.parametrize("mode", ["serial", "multi_process"])
def test_a_disk_full_for_any_one_file_fails_the_run_with_its_name_or_is_said(framework: str, tmp_path: Path, mode: str) -> None:
    """Each write of a serial run fails once: the n-th, and all later ones to that file until it is closed.

    Of a run with two ranks, one write of each kind (`write`, `fsync`, `ftruncate`) to each file fails. Where a temporary file
    of Python or of the framework does not fit, a run that does without it need not say so.
    """
    library = full_disk.compiled(tmp_path)

    fields = {"model": "tests.twins.own_plain_model", "epochs": 2, **KEPT, **(RANKS if mode == "multi_process" else {})}

    def run(name: str, **environment: str) -> Run:
        made = Run(framework, tmp_path / name, fields, **environment)
        made.process.wait(SECONDS)
        return made

    disk = FullDisk(library, tmp_path / "undisturbed")
    expected = run("undisturbed", **disk.environment).end().final_weights_hash
    kinds = [write.kind for write in disk.writes()]
    files = {results.RESULT_FILE, results.BEST_FILE, event_log.EVENTS_FILE, checkpoint.FILE}
    assert {name for _, name in kinds} >= files
    met: set[tuple[str, str]] = set()
    for at, kind in enumerate(kinds, 1):
        if mode != "serial" and kind in kinds[: at - 1]:
            continue
        disk, folder = FullDisk(library, tmp_path / str(at), at), tmp_path / str(at)
        disturbed = run(str(at), **disk.environment)
        where, code, path = disk.met(), disturbed.process.returncode, folder / results.RESULT_FILE
        met.add(where.kind)
        result = results.load(path) if path.exists() else None
        said = f"{disturbed.log}\n{result.reason if result is not None else ''}"
        # A rank that lost its partner may say where.
        unwanted = "^OSError: " if mode == "multi_process" else "Traceback"
        assert not re.search(unwanted, disturbed.log, re.MULTILINE), (where, said)
        assert not list(folder.glob(".*.partial")) and not event_log.damaged_events(folder), where
        named = re.search(rf"No space left on device: '.*{re.escape(where.kind[1])}.*'", said)
        if code == 0:
            assert result is not None and (result.status, result.final_weights_hash) == ("ok", expected), (where, said)
            assert named or where.is_temporary, (where, said)
        else:
            assert code == 1 and (result is None or result.status == "failed") and named, (where, said)
            again = run(str(at))
            assert again.end().final_weights_hash == expected, (where, again.log)
    assert {name for _, name in met} >= files and (mode != "serial" or met == set(kinds))


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
    words = ["run", *settings, "--out", str(tmp_path / "out")]
    first, second = ({file: limit} for file in LIMITS[controller][0])
    with control_group(controller, first, second) as group:
        done = processes.run([*within(group), sys.executable, "-m", "compare", *words])
        assert not (group / "cgroup.procs").read_text(encoding="ascii"), "a process is left"
    assert done.exit_code in (0, 1) and "Traceback" not in done.stderr, done.stderr
    stored = list((tmp_path / "out").glob("runs/*/result.json"))
    if done.exit_code == 1:
        lacking = {"memory": "out of memory", "pids": "thread|fork|Resource temporarily unavailable"}[controller]
        reason = results.load(stored[0]).reason if stored else done.stderr
        assert re.search(lacking, reason or "", re.IGNORECASE), reason
    again = ["run", "--resume", str(tmp_path / "out")] if (tmp_path / "out" / store.PLAN_FILE).exists() else words
    convtwins_process(*again).succeeded()


HELD_MIB = 1650
"""Of each replica of `tests.planted.large` after its imports. With Adam it needs four times its 384 MiB of weights, and more to
write them down. Divided over two replicas 1,200 to 1,400 MiB were seen, serially 1,900."""
LARGE: dict[str, Any] = {
    "model": "tests.planted.large",
    "optimizer": {"name": "adam"},
    "data": {"image_size": 12, "limit": 64},
    "epochs": None,
    "steps": 2,
    "framework_options": {"allocator": "system"},  # it gives freed memory back
}
DIVIDED = ["sharded_data_parallel", "tensor_parallel", "pipeline"]
"""Modes that divide the weights. Twin: only torch has a process for each replica there."""


@pytest.mark.parametrize("mode", ["serial", *DIVIDED])
def test_a_model_too_large_for_one_replica_trains_where_it_is_divided(framework: str, tmp_path: Path, mode: str) -> None:
    if mode in DIVIDED and framework == "tensorflow":
        pytest.skip("TensorFlow's replicas share a process there; the result has the memory of each, computed")
    (tmp_path / "spec.json").write_text(json.dumps(LARGE), "utf-8")
    cores = "1" if mode == "serial" else "2"
    words = ["--spec", tmp_path / "spec.json", "--modes", mode, "--frameworks", framework, "--cores", cores, "--no-proof"]
    first, second = ({file: f"{HELD_MIB}M"} for file in LIMITS["memory"][0])
    with control_group("memory", first, second, "0") as one, control_group("memory", first, second, "1") as other:
        done = convtwins_process("run", *words, "--out", tmp_path / "out", CONVTWINS_GROUPS=f"{one}:{other}")
    (path,) = (tmp_path / "out").glob("runs/*/result.json")
    result = results.load(path)
    if mode == "serial":
        assert (done.exit_code, result.status) == (1, "killed") and "out of memory" in (result.reason or ""), result.reason
    else:
        assert (done.exit_code, result.status) == (0, "ok"), f"{result.reason}\n{done.stderr}"
