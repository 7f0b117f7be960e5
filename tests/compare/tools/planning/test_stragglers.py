"""`convtwins stragglers` with frameworks whose times are made up, and the simulator's answers in closed form."""

import json
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from common.artifacts import results
from common.artifacts.schema import Noise, RunResult
from compare.comparison import executor
from compare.results import store
from compare.running.launch import StartedProcess
from compare.running.matrix import Row
from compare.running.twins import Twins
from compare.statistics.statistics import paired_ratio
from compare.tools.planning import slow_rank, stragglers, straggling
from compare.tools.planning.planned_machine import Device, FrameworkTimings, PlannedMachine
from compare.tools.planning.planner import PlanResult
from compare.tools.planning.prediction import CostModel, PredictedLayout
from compare.tools.planning.slow_rank import Straggler
from compare.tools.planning.straggling import SlowdownResult, StragglerResults
from tests.compare.tools.planning import made
from tests.support import comparisons
from tests.support.command_line import Ended, convtwins
from tests.support.comparisons import with_fields
from tests.support.refusals import check_ended
from tests.support.snapshots import Screens

MODES = "multi_process,model_averaging,parameter_server"


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Runs that take no time; gives (row, repeat) of each. A step suffers by 3 / 4 of the factor beyond 1."""
    done: list[tuple[str, int]] = []

    def executing(
        contestant: Any, row: Row, repeat: int, folder: Path, watch: Any, seat: Any
    ) -> Generator[StartedProcess, None, RunResult]:
        yield from ()
        done.append((row.id, repeat))
        slow = float(row.id.rpartition("-x")[2].removesuffix("-moving"))
        result = comparisons.good(row, (1 + 0.75 * (slow - 1)) * (1 + 0.01 * repeat), repeat)
        results.save(result, store.run_folder(folder, row.id, repeat))
        return result

    # Real runs take minutes.
    monkeypatch.setattr(executor, "executing", executing)
    # Such a run has no rank that could be slowed.
    monkeypatch.setattr(
        straggling,
        "Brake",
        lambda straggler, *_: nullcontext(SimpleNamespace(factor=straggler.factor, watching=lambda looks: looks)),
    )
    return done


def ask(*words: object) -> Ended:
    size = ["--data", "digits", "--image-size", 32, "--batch-size", made.BATCH, "--modes", MODES]
    return convtwins("stragglers", "--model", "simple_cnn", *size, *words)


def test_synchronous_replicas_wait_for_the_slowest_one_and_stages_only_while_it_works() -> None:
    replicas = made.case(made.run("multi_process", 4))
    for factor in (1.5, 2.0, 4.0):
        assert straggling.simulate_slowdown(replicas, Straggler(factor)) == pytest.approx(factor)
        assert straggling.simulate_slowdown(replicas, Straggler(factor, moves=True)) == pytest.approx(factor)
    turns = made.case(made.run("model_parallel", 2), stages_of_costs=2)  # equal stages, which take turns
    assert straggling.simulate_slowdown(turns, Straggler(3.0)) == pytest.approx(2.0)


def test_the_paces_of_a_slow_rank_that_moves_are_averaged() -> None:
    """A slow first device of a pipeline with unequal stages costs another time than a slow last one."""
    turns = made.case(made.run("model_parallel", 2), stages_of_costs=2, speeds=(1.0, 0.5))
    first, last = (
        straggling.simulate_slowdown(replace(turns, devices=order), Straggler(2.0))
        for order in (turns.devices[::-1], turns.devices)
    )
    assert last == pytest.approx(5 / 3) and first == pytest.approx(4 / 3)
    moving = straggling.simulate_slowdown(turns, Straggler(2.0, moves=True))
    assert moving == pytest.approx(2 / (3 / 4 + 3 / 5))


def test_ranks_that_meet_seldom_each_have_the_mean_of_their_paces_where_a_slow_rank_moves() -> None:
    for run in (made.run("model_averaging", 4), made.run("parameter_server_async", 4)):
        apart = made.case(run)
        assert straggling.simulate_slowdown(apart, Straggler(2.0)) == pytest.approx(2.0)
        assert straggling.simulate_slowdown(apart, Straggler(2.0, moves=True)) == pytest.approx(4 / 3.5)
    every = made.case(made.run("model_averaging", 4, averaging={"every_steps": 1}))
    assert straggling.simulate_slowdown(every, Straggler(2.0, moves=True)) == pytest.approx(2.0)


@pytest.mark.usefixtures("times")
def test_every_mode_of_processes_is_measured_interleaved_beside_the_simulator(
    executed: list[tuple[str, int]], tmp_path: Path
) -> None:
    words = ("--factor", "2,4", "--jitter", "--frameworks", "left", "--out", tmp_path / "out")
    ask(*words).succeeded()
    per_repeat = 3 * 4  # three modes of processes; even, x2, x4 and x4 in turn
    assert len(executed) == 5 * per_repeat and len(set(executed)) == len(executed)
    assert [each for each, _ in executed[:per_repeat]] == [each for each, _ in executed[per_repeat : 2 * per_repeat]][::-1]
    kept = json.loads((tmp_path / "out" / "stragglers.json").read_text())
    assert {(each["factor"], each["moves"]) for each in kept["suffered"]} == {(2.0, False), (4.0, False), (4.0, True)}
    for each in kept["suffered"]:
        assert each["measured"]["value"] == pytest.approx(1 + 0.75 * (each["factor"] - 1))
        assert each["measured"]["n"] == each["n"] == 5
        assert each["error"] == pytest.approx(each["simulated"] / each["measured"]["value"] - 1)
    before = len(executed)
    ask(*words).succeeded()
    assert len(executed) == before  # every run is there
    check_ended(ask("--factor", "3", "--frameworks", "left", "--out", tmp_path / "out"), names=["slow ranks"])


def test_the_best_layout_of_each_mode_is_slowed_if_it_has_ranks() -> None:
    """A mode whose replicas share a process has none. Nor has serial, and a layout that does not fit is not run."""

    def predicted(words: str, variant: str, seconds: float, **fields: Any) -> PredictedLayout:
        run = made.run(variant, 1 if variant == "serial" else 2)
        return PredictedLayout(contestant="left", words=words, run=run, step_seconds=seconds, **fields)

    every = [
        predicted("serial", "serial", 1.0), predicted("threads", "data_parallel", 1.0),
        predicted("too large", "multi_process", 1.0, fits=False), predicted("first", "multi_process", 2.0),
        predicted("second", "multi_process", 3.0), predicted("averaged", "model_averaging", 4.0),
    ]  # fmt: skip
    timings = {"left": FrameworkTimings(versions={})}
    machine, network = PlannedMachine(name="made", devices=[Device(name="0")], frameworks=timings), made.architecture()
    costs = CostModel(
        "left", {}, every[0].run, network, made.costs(network), machine, frozenset({"data_parallel"}), 100 * made.BATCH
    )
    chosen, in_one = straggling.measurable_layouts(PlanResult(every[0].run, machine, every, cost_models={"left": costs}))
    assert [each.words for each in chosen] == ["first", "averaged"] and in_one == {"left": ["data_parallel"]}
    assert [row.spec.steps for row in straggling.build_rows(chosen, Twins(["left"]))] == [straggling.MIN_STEPS] * 2
    assert straggling.build_rows([predicted("quick", "multi_process", 0.1)], Twins(["left"]))[0].spec.steps == 40


@pytest.mark.usefixtures("times", "executed")
def test_a_run_whose_rank_was_not_slowed_is_left_out_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straggling, "Brake", slow_rank.Brake)  # the real one, which finds no rank here
    ended = ask("--factor", "2", "--frameworks", "left", "--repeats", 1, "--out", tmp_path / "out")
    check_ended(ended, exit_code=1, names=["No pair of runs"])
    left = {path.name for path in (tmp_path / "out" / "measured" / "runs").iterdir()}
    assert left and all(name.endswith("-x1-r0") for name in left)


@pytest.mark.usefixtures("times")
def test_other_work_and_a_run_that_fails_are_told(
    executed: list[tuple[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    whole = executor.executing

    def troubled(contestant: Any, row: Row, *arguments: Any, **options: Any) -> Generator[StartedProcess, None, RunResult]:
        result = yield from whole(contestant, row, *arguments, **options)
        if "averaging" in row.id and row.id.endswith("x2"):
            return comparisons.bad(row, "failed", "it broke", epochs=0)
        return with_fields(result, **({"noise": Noise(cores_taken=0.97)} if "server" in row.id else {}))

    # A run in between fails, and another one is disturbed.
    monkeypatch.setattr(executor, "executing", troubled)
    ask("--factor", "2", "--frameworks", "left", "--repeats", 2, "--out", tmp_path / "out")
    stored = json.loads((tmp_path / "out" / "stragglers.json").read_text())
    in_doubt = {each["words"].split()[0] for each in stored["suffered"] if each["in_doubt"]}
    assert in_doubt == {"parameter_server"} and len(stored["findings"]["Cautions"]) == 2
    assert [stored["verdicts"], stored["findings"]["Cautions"]] == snapshot


def test_the_first_screen_says_which_mode_suffers_most(screens: Screens) -> None:
    plan = PlanResult(made.run("serial", 1), PlannedMachine(name="m", devices=[Device(name="a")], frameworks={}), [])
    suffered = [
        SlowdownResult(
            contestant="left", words=words, factor=factor, moves=False, simulated=factor,
            measured=paired_ratio([(factor * times * (1 + 0.001 * pair), 1.0) for pair in range(5)]),
        )
        for words, times in (("multi_process x2", 0.9), ("model_averaging x2", 0.6))
        for factor in (2.0, 4.0)
    ]  # fmt: skip
    found = StragglerResults(plan, suffered, {"left": ["tensor_parallel"]}, ["A caution."])
    shown = screens(stragglers.report(found, 5))
    assert "1.20 " in shown and "1.80 " in shown
