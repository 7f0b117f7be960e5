"""Runs in which something is planted that never comes, see `tests.planted.hanging`."""

import importlib
import itertools
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.artifacts import results
from compare.comparison import executor
from compare.results import store
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from tests.twins.runs import PROJECT, RANKS, SETTINGS, Run, wait_until_gone

LIMIT = {"hang_seconds": 5.0}
MARGIN_SECONDS = 5.0
"""Beyond the limit, on a machine that has much else to do: what the watcher itself was kept waiting does not count."""
SOAK_SECONDS = float(os.environ.get("CONVTWINS_SOAK_SECONDS", "1800"))
"""Of normal runs in one framework: an hour in both."""

PLACES = {
    "full_queue": r"wait \(threading\.py:\d+\)",
    "two_locks": r"take \(hanging\.py:\d+\)",
}


@pytest.fixture
def start(begin: Any, tmp_path: Path) -> Any:
    def start_one(planted: str, fields: dict[str, Any]) -> Run:
        at = str(tmp_path / "planted")
        return begin(tmp_path, LIMIT | fields, CONVTWINS_PLANTED=planted, CONVTWINS_PLANTED_AT=at)

    return start_one


def assert_ended_in_time(run: Run) -> None:
    ended, begun = ((run.folder / name).stat().st_mtime for name in (results.RESULT_FILE, "planted"))
    assert ended - begun <= LIMIT["hang_seconds"] + MARGIN_SECONDS


@pytest.mark.slow
def test_a_rank_that_is_stopped_ends_the_run_and_is_named(start: Any) -> None:
    run = start("stopped", RANKS)
    result = run.end()
    assert run.process.returncode == 1
    assert result.status == "killed"
    assert result.reason.startswith("rank 1 of 2 is stopped after step 2; rank 0 of 2 waits in "), result.reason
    files = "stacks-rank0.txt, stacks-rank1.txt, collectives.txt"
    assert f": no progress for 4.5 s; see {files}. Collective " in result.reason, result.reason
    assert "most recent call first" in (run.folder / "stacks-rank0.txt").read_text()
    assert "cannot write" in (run.folder / "stacks-rank1.txt").read_text()
    assert_ended_in_time(run)
    wait_until_gone(run.processes())


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLACES)
def test_a_rank_that_waits_for_what_never_comes_ends_the_run_and_is_named(start: Any, planted: str) -> None:
    run = start(planted, RANKS)
    result = run.end()
    assert result.status == "killed"
    named = rf"rank 1 of 2 hangs in {PLACES[planted]} after step 2; rank 0 of 2 waits in .*: no progress for 4.5 s; .*"
    assert re.fullmatch(named, result.reason), result.reason
    assert "hanging.py" in (run.folder / "stacks-rank1.txt").read_text()
    assert_ended_in_time(run)
    wait_until_gone(run.processes())


@pytest.mark.slow
@pytest.mark.parametrize("mode", [mode for mode in spec.MODES if mode not in ("serial", "data_parallel")])
def test_the_exchange_that_a_rank_never_comes_to_is_named_in_every_mode(start: Any, framework: str, mode: str) -> None:
    fields = spec.with_variant({"pipeline": {"micro_batches": 2}}, mode, 2) | {"cores": SETTINGS["cores"]}
    built = spec.build(SETTINGS | fields)
    ranks = len(importlib.import_module(f"{framework}_impl.rendezvous").environments(built))
    if not ranks:
        pytest.skip(f"{mode} is one process in {framework}")
    run = start("two_locks", fields)
    reason = run.end().reason
    # The culprit sleeps outside every exchange, so another one has begun what it never comes to.
    named = rf"rank {ranks - 1} has not come to it: its last was (collective |message )?\d+.*, [a-z_]+, done \d+\.\d s ago"
    others = r"(Collective|Message) \d+.*, begun \d+\.\d s ago: rank .* (waits?|is|are|has begun|have begun) "
    assert re.search(rf", collectives\.txt\. {others}[^;]*; {named}($|;)", reason), reason
    listed = (run.folder / "collectives.txt").read_text()
    assert [line for line in listed.splitlines() if line.startswith("rank")] == [
        line for rank in range(ranks) for line in re.findall(rf"^rank {rank}: \d+ exchanges.*", listed, flags=re.MULTILINE)
    ]
    assert "not done" in listed
    wait_until_gone(run.processes())


@pytest.mark.slow
def test_a_rank_that_leaves_out_an_exchange_ends_the_run(start: Any, framework: str) -> None:
    run = start("missing_collective", RANKS)
    result = run.end()
    assert run.process.returncode == 1
    if framework == "pytorch" and "went on" in result.reason:
        assert result.reason.startswith("rank 1 of 2 went on without the others and hangs in "), result.reason
    elif framework == "pytorch":  # gloo ends a rank that is sent more than it asked for
        # Where it takes the other one with it, nobody is left to have stacks.
        # One that aborts because its partner is gone is not to blame.
        ending = r"rank [01] of 2 (was ended by SIGABRT|ended with exit code 1); see .*collectives\.txt\. Collective .*"
        assert re.fullmatch(ending, result.reason), run.log
        assert re.search(r"rank 0 \S+ \S+ in all_reduce of 1 .*; rank 1 \S+ \S+ in gradients of 847 float64", result.reason), (
            run.log
        )
        assert "distributed collective mismatch" in run.log
    else:  # TensorFlow sees that two exchanges do not fit, and ends both ranks
        assert result.status == "failed"
        named = r"^rank [01] of 2 ended with exit code 1.*: rank 0 .* in all_reduce of 1 .*; rank 1 .* in the graph of a step"
        assert re.search(named, run.log, flags=re.MULTILINE), run.log
    assert_ended_in_time(run)
    wait_until_gone(run.processes())


@pytest.mark.slow
def test_a_rank_that_never_comes_to_an_exchange_ends_the_run_and_is_named(start: Any) -> None:
    run = start("missing_push", RANKS | {"mode": "parameter_server"})
    result = run.end()
    assert result.status == "killed"
    assert re.match(r"rank 1 of 2 went on without the others and hangs in .*: no progress for 4\.5 s; ", result.reason), (
        result.reason
    )
    assert re.search(r"rank 0 has done push of 847 float64 .*; rank 1 has done pull$", result.reason), result.reason
    assert_ended_in_time(run)
    wait_until_gone(run.processes())


@pytest.mark.parametrize(
    "planted",
    ["two_locks", pytest.param("full_queue", marks=pytest.mark.slow), pytest.param("stopped", marks=pytest.mark.slow)],
)
@pytest.mark.shared
def test_a_run_of_one_process_that_hangs_is_ended_by_the_comparison(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.setenv("CONVTWINS_PLANTED", planted)
    monkeypatch.chdir(PROJECT)
    row = Row(id="hangs", contestant=framework, spec=spec.build(SETTINGS | LIMIT | {"cores": 1}))
    result = executor.execute(Contestant.plain(framework), row, 0, tmp_path, lambda events: None)
    assert result.status == "killed"
    place = "is stopped" if planted == "stopped" else f"hangs in {PLACES[planted]}"
    assert result.reason is not None
    assert re.fullmatch(rf"the process {place} after step 2: no progress for 4.5 s; see stacks-rank0\.txt", result.reason)
    stacks = (store.run_folder(tmp_path, row.id, 0) / "stacks-rank0.txt").read_text()
    assert ("cannot write" if planted == "stopped" else "hanging.py") in stacks


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, RANKS], ids=["serial", "multi_process"])
def test_a_step_that_computes_for_longer_than_the_limit_is_no_hang(start: Any, fields: dict[str, Any]) -> None:
    run = start("long_step", fields)
    result = run.end()
    assert result.status == "ok", result.reason
    assert result.phases.wall_seconds > LIMIT["hang_seconds"]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, SOAK_SECONDS], ids=["one", "for long"])
def test_normal_runs_raise_no_alarm(start: Any, seconds: float) -> None:
    begun = time.monotonic()
    for mode in itertools.cycle(("multi_process", *(mode for mode in spec.MODES if mode != "multi_process"))):
        fields = spec.with_variant({"epochs": 20, "pipeline": {"micro_batches": 2}}, mode, 2)
        result = start("", fields | {"cores": SETTINGS["cores"]}).end()
        assert result.status == "ok", (mode, result.reason)
        if time.monotonic() - begun >= seconds:
            break
