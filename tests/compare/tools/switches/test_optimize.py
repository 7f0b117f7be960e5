"""The search for the fastest switches, on a framework whose paces and losses are made up."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from common.artifacts import results
from common.artifacts.schema import EpochRecord, Phases, RunResult
from common.spec import Spec, from_json
from compare.cli.interrupt import Interrupted
from compare.comparison import executor
from compare.results import store, workspace
from compare.running import best_switches, contestants, launch, matrix
from compare.running.contestants import Contestant
from compare.running.launch import StartedProcess
from compare.running.matrix import Row
from compare.statistics.statistics import Ratio
from compare.tools.switches.search import is_surely_faster
from tests.compare.conftest import describe_as
from tests.compare.twins import fake
from tests.support import trees
from tests.support.command_line import Ended, convtwins, convtwins_json
from tests.support.comparisons import with_fields
from tests.support.refusals import check_ended, refused

OPTIONS = {
    "digits": {"values": ["all", "few", "fewest"], "default": "all", "help": ""},
    "order": {"values": ["rows", "columns"], "default": "rows", "help": ""},
    "graph": {"values": ["none", "compiled", "broken"], "default": "none", "help": ""},
    "memory": {
        "values": ["kept", "given_back", "lost", "slow", "poor"], "default": "kept", "plain": "given_back", "help": "",
    },
    "ranks": {"values": [1, 2], "default": 1, "help": "", "only": {"2": {"mode": ["multi_process"]}}},
}  # fmt: skip
FACTORS = {
    "few": 2.0, "fewest": 3.0, "columns": 0.9, "compiled": 1.3, "broken": 1.0, "given_back": 0.4, "lost": 0.02, "slow": 0.3,
    "poor": 0.6, 2: 9.0,
}  # fmt: skip
COMPILE_SECONDS = 30.0
FAIR_PACE = 100.0


class Twin:
    """What a framework would have measured, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[tuple[str, int]] = []
        self.cut_after: int | None = None
        self.rounding = 0.0
        self.factors: dict[Any, float] = FACTORS
        self.unsteady: str | None = None
        self.fails_from: tuple[str, int] | None = None
        self.cores_of_others = 0.0
        self.patch = monkeypatch
        # Whoever starts a command hands no runs in. Real ones take minutes, and no best switch is known of them.
        monkeypatch.setattr(executor, "executing", self.executing)
        monkeypatch.setattr(launch, "call", self.call)

    def executing(self, *arguments: Any, **options: Any) -> Generator[StartedProcess, None, RunResult]:
        yield from ()
        return self.execute(*arguments, **options)

    def execute(
        self, contestant: Any, row: Any, repeat: int, folder: Path, watch: Any, restarts: int = 0, **_: object
    ) -> RunResult:
        if self.cut_after is not None and len(self.runs) == self.cut_after:
            raise Interrupted(2)
        self.runs.append((row.id, repeat))
        broken = "broken" in row.spec.framework_options.values()
        out_of_memory = self.fails_from is not None and row.id.endswith(self.fails_from[0]) and repeat >= self.fails_from[1]
        epochs = fake.epochs_of(row.spec, fake.images_of(row.spec) / self.pace(row.spec, repeat))
        made = RunResult(
            framework=row.contestant, spec=row.spec, repeat=repeat, device="cpu",
            status="failed" if broken or out_of_memory else "ok",
            reason="no compiler" if broken else "no memory" if out_of_memory else None,
            epochs=epochs,
            phases=phases(row.spec, epochs), cores_of_others=self.cores_of_others, machine={"logical_cores": 2},
        )  # fmt: skip
        made = with_fields(made, epochs=[])
        for epoch in epochs:  # they are watched as they come; who is not patient ends it
            made.epochs.append(epoch)
            try:
                watch(
                    [
                        {"event": "start", "total_epochs": len(epochs)},
                        *({"event": "epoch", **epoch.model_dump()} for epoch in made.epochs),
                    ]
                )
            except BaseException:
                made = with_fields(made, status="killed", reason="interrupted", phases=None)
                results.save(made, store.run_folder(folder, row.id, repeat))
                raise
        results.save(made, store.run_folder(folder, row.id, repeat))
        return made

    def pace(self, run: Spec, repeat: int) -> float:
        """Columns pay where few digits are read; the machine drifts, and each run has its own noise of a thousandth."""
        values = [*run.framework_options.values()] or (["given_back"] if run.switches == "plain" else [])
        factor = float(np.prod([self.factors[value] for value in values]))
        factor *= 1.5 if {"few", "columns"} <= set(values) else 1.0
        factor *= (0.7, 1 / 0.7)[repeat % 2] if self.unsteady in values else 1.0
        return FAIR_PACE * factor * (1.0 + 0.05 * repeat) * (1.0 + 1e-3 * np.sin(17.0 * repeat + 5.0 * factor))

    def call(self, contestant: Contestant, arguments: Sequence[str], **_: Any) -> int:
        run = from_json(Path(arguments[1]).read_text(encoding="utf-8"))
        given = "few" if run.switches == "plain" and described()["options"]["digits"].get("plain") else "all"
        off = {"few": 1e-2, "fewest": 0.5}.get(run.framework_options.get("digits", given), 0.0)
        off = self.rounding if run.precision == "float64" else off
        safetensors.numpy.save_file({"loss": np.linspace(2.0, 1.0, 20) * (1.0 + off)}, arguments[3])
        return 0


def phases(run: Spec, epochs: list[EpochRecord]) -> Phases:
    return fake.phases_of(epochs, 0.5 + (COMPILE_SECONDS if "compiled" in run.framework_options.values() else 0.0))


@pytest.fixture
def twin(fake_twins: pytest.MonkeyPatch) -> Twin:
    describe_as(fake_twins, "left", options=OPTIONS)
    return Twin(fake_twins)


def described() -> dict[str, Any]:
    """The description that the fake twin gives of itself."""
    return fake.describe("left", {})


def words(folder: Path, *more: object) -> tuple[object, ...]:
    cache = f"paths.cache_dir={folder.parent / 'cache'}"
    model = ("--model", "simple_cnn", "--frameworks", "left", "--cores", 2)
    return "optimize", *model, "--set", cache, "--out", folder, *more


def optimize(folder: Path, *more: object) -> Ended:
    return convtwins(*words(folder, *more))


def optimized(folder: Path, *more: object) -> dict[str, Any]:
    """The result for the one framework."""
    return convtwins_json(*words(folder, *more))["frameworks"]["left"]


def ladder(folder: Path, *more: object) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in optimized(folder, *more)["ladder"]}


def taken(steps: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, step in steps.items() if step["taken"]]


def test_switches_are_tried_alone_and_then_together_as_long_as_that_is_surely_faster(twin: Twin, tmp_path: Path) -> None:
    result = optimized(tmp_path / "out")
    steps = {step["name"]: step for step in result["ladder"]}
    assert list(steps) == [
        "usual", "plain", "digits-few", "digits-fewest", "order-columns", "graph-compiled", "graph-broken", "memory-given_back",
        "memory-lost", "memory-slow", "memory-poor",
        "digits-few.graph-compiled", "digits-few.graph-compiled.order-columns",
    ]  # fmt: skip
    assert taken(steps) == ["digits-few.graph-compiled.order-columns"]
    found = result["best"]
    assert found["options"] == {"digits": "few", "graph": "compiled", "order": "columns"}
    assert found["ratio"]["value"] == pytest.approx(2.0 * 1.3 * 0.9 * 1.5, rel=5e-3)
    assert steps["digits-few"]["ratio"]["low"] < 2.0 < steps["digits-few"]["ratio"]["high"]
    assert steps["digits-few"]["loss_drift"] == pytest.approx(1e-2)
    assert steps["digits-fewest"]["loss_drift"] == pytest.approx(0.5)  # the fastest by itself, and too dear
    assert steps["graph-broken"]["status"] == "failed" and steps["graph-broken"]["reason"] == "failed: no compiler"
    assert steps["memory-given_back"]["status"] == "dropped" and steps["plain"]["status"] == "measured"
    for name, factor, epochs in (("memory-lost", 0.02, 1), ("memory-slow", 0.3, 3)):
        assert steps[name]["status"] == "dropped" and steps[name]["reason"] is None
        assert steps[name]["ratio"]["value"] == pytest.approx(factor, rel=5e-3)
        assert steps[name]["first_step_seconds"] is steps[name]["compile_seconds"] is None
        stopped = results.load(store.run_folder(tmp_path / "out" / "left", f"left-{name}", 0) / results.RESULT_FILE)
        assert (stopped.status, len(stopped.epochs)) == ("killed", epochs)
    rounds = {name: sum(row == f"left-{name}" for row, _ in twin.runs) for name in steps}
    assert rounds["memory-given_back"] == rounds["graph-broken"] == 1
    assert steps["memory-poor"]["status"] == "dropped" and rounds["memory-poor"] == 2  # once it might have been other work
    assert rounds["plain"] == rounds["digits-few.graph-compiled.order-columns"] == 5


@pytest.mark.parametrize(
    ("value", "p", "tests", "faster"),
    [(1.1, 0.03, 1, True), (1.1, 0.03, 2, False), (1.1, 0.004, 12, True), (0.9, 1e-6, 1, False), (1.1, None, 1, False)],
)
def test_what_is_called_faster_was_one_of_several_that_might_have_been(
    value: float, p: float | None, tests: int, faster: bool
) -> None:
    assert is_surely_faster(Ratio(value=value, low=None, high=None, n=5, p=p), tests) == faster


def test_rounds_are_interleaved_and_turn_round(twin: Twin, tmp_path: Path) -> None:
    optimize(tmp_path / "out", "--only", "order", "--repeats", "3")
    names = ["left-usual", "left-plain", "left-order-columns"]
    in_rounds = [(name, 0) for name in names] + [(name, 1) for name in names[::-1]] + [(name, 2) for name in names]
    assert twin.runs == [("left-speed", 0), *in_rounds], "the speed says how long a turn is"


def test_compiling_stands_apart_and_is_paid_back_after_epochs(twin: Twin, tmp_path: Path) -> None:
    step = ladder(tmp_path / "out", "--only", "graph")["graph-compiled"]
    assert step["first_step_seconds"] == 0.5 + COMPILE_SECONDS
    assert step["compile_seconds"] == COMPILE_SECONDS
    images = 1257  # of the digits' training split
    saved = images / 110.0 - images / 143.0  # a median epoch, the machine having drifted by a tenth
    assert step["paid_back_epochs"] == pytest.approx(COMPILE_SECONDS / saved, rel=2e-2)
    assert step["matrix_fraction"] > 0


def test_the_price_is_of_every_digit_where_a_newcomer_gets_fewer(twin: Twin, tmp_path: Path) -> None:
    digits = {"values": ["all", "few"], "default": "all", "plain": "few", "reduced": ["few"], "help": ""}
    describe_as(twin.patch, "left", options=OPTIONS | {"digits": digits})
    steps = ladder(tmp_path / "out", "--only", "digits,order")
    assert [steps[name]["loss_drift"] for name in ("usual", "order-columns")] == [0.0, 0.0]
    assert steps["plain"]["loss_drift"] == steps["digits-few"]["loss_drift"] == pytest.approx(1e-2)
    full = from_json((tmp_path / "out" / "left" / "losses" / "full.json").read_text())
    assert (full.switches, full.framework_options) == ("plain", {"digits": "all"})


@pytest.mark.parametrize(
    ("device", "part", "epochs", "limit"), [("auto", "training", 3, None), ("cpu", "compute", None, 5 * 64)]
)
def test_on_an_accelerator_whole_epochs_are_measured_with_their_input(
    twin: Twin, tmp_path: Path, device: str, part: str, epochs: int | None, limit: int | None
) -> None:
    gpu = {"kind": "gpu", "name": "made up"}
    describe_as(twin.patch, "left", devices=[gpu])
    optimize(tmp_path / "out", "--only", "order", "--set", f"device={device}")
    found = results.load(store.run_folder(tmp_path / "out" / "left", "left-usual", 0) / results.RESULT_FILE)
    assert (found.spec.part, found.spec.epochs, found.spec.data.limit) == (part, epochs, limit)


@pytest.mark.parametrize(("rounding", "best"), [(0.0, "digits-few"), (0.2, "digits-few"), (0.3, "digits-fewest")])
def test_a_price_that_rounding_alone_may_have_keeps_no_switch_from_being_taken(
    twin: Twin, tmp_path: Path, rounding: float, best: str
) -> None:
    twin.rounding = rounding
    steps = ladder(tmp_path / "out", "--only", "digits")
    assert taken(steps) == [best]
    assert steps["digits-few"]["rounding"] is None
    assert steps["digits-fewest"]["rounding"] == pytest.approx(rounding)
    assert f" {rounding:.1e}. " in (tmp_path / "out" / "left" / "ladder.md").read_text()


def test_a_switch_that_is_not_sure_by_itself_is_tried_on_top_of_a_slower_one_that_is(twin: Twin, tmp_path: Path) -> None:
    twin.factors = FACTORS | {"compiled": 2.5}
    twin.unsteady = "compiled"
    steps = ladder(tmp_path / "out", "--only", "digits,graph")
    assert steps["graph-compiled"]["ratio"]["value"] > steps["digits-few"]["ratio"]["value"]
    assert taken(steps) == ["digits-few.graph-compiled"]


def test_what_fails_once_is_not_the_best(twin: Twin, tmp_path: Path) -> None:
    twin.fails_from = ("digits-few", 5)  # in the rounds in which others are tried on top of it
    steps = ladder(tmp_path / "out", "--only", "digits,order")
    assert taken(steps) == ["usual"]
    assert (steps["digits-few"]["status"], steps["digits-few"]["reason"]) == ("failed", "failed: no memory")


def test_runs_that_other_work_disturbed_are_told(twin: Twin, tmp_path: Path) -> None:
    in_doubt: list[int] = []
    for twin.cores_of_others in (0.0, 1.0):
        folder = tmp_path / str(twin.cores_of_others)
        in_doubt.append(sum(step["in_doubt"] for step in ladder(folder, "--only", "order", "--repeats", 2).values()))
        assert ("Times of 6 runs are in doubt" in optimize(folder, "--only", "order", "--repeats", 2).stdout) is bool(
            in_doubt[1:]
        )
    assert in_doubt == [0, 6]


def test_threads_that_were_found_with_other_cores_are_left_at_fair(twin: Twin, tmp_path: Path) -> None:
    describe_as(twin.patch, "left", options={"digits": OPTIONS["digits"] | {"found_for": ["cores", "mode"]}})
    optimize(tmp_path / "out", "--repeats", "5")
    found = from_json((tmp_path / "out" / "left" / "losses" / "plain.json").read_text()).with_fields(switches="best")
    description = described()
    assert best_switches.options(found, "left", description)[0] == {"digits": "few"}
    assert best_switches.options(found.with_fields(cores=1), "left", description)[0] == {}
    assert best_switches.options(found.with_fields(mode="multi_process", replicas=2), "left", description)[0] == {}


def test_a_price_may_be_allowed(twin: Twin, tmp_path: Path) -> None:
    steps = ladder(tmp_path / "out", "--only", "digits", "--max-loss-drift", "1")
    assert taken(steps) == ["digits-fewest"]


def test_where_nothing_is_faster_that_is_stored(twin: Twin, tmp_path: Path) -> None:
    assert taken(ladder(tmp_path / "out", "--only", "order")) == ["usual"]
    assert "nothing is surely faster than usual" in optimize(tmp_path / "out", "--only", "order").stdout
    assert best_switches.load("left", "simple_cnn", described(), str(tmp_path / "cache")).options == {}


def test_a_search_that_was_cut_short_goes_on_without_measuring_anything_twice(twin: Twin, tmp_path: Path) -> None:
    twin.cut_after = 9
    done = optimize(tmp_path / "out")
    assert done.exit_code == 130 and f"--out {tmp_path / 'out'}" in done.stderr
    twin.cut_after = None
    again = ladder(tmp_path / "out")
    assert len(twin.runs) == len(set(twin.runs))
    assert again == ladder(tmp_path / "whole")
    optimize(tmp_path / "out").succeeded()


def test_the_report_is_delivered_while_the_folder_is_locked(twin: Twin, tmp_path: Path, deliveries: list[str]) -> None:
    optimize(tmp_path / "out").succeeded()
    assert deliveries == ["locked"]


def test_a_folder_serves_one_search(twin: Twin, tmp_path: Path) -> None:
    optimize(tmp_path / "out", "--only", "order", "--repeats", 2).succeeded()
    check_ended(optimize(tmp_path / "out", "--only", "order", "--repeats", 3), names=["request.rounds", 2, 3])
    trees.write(tmp_path / "else", {"letter.txt": ""})
    check_ended(optimize(tmp_path / "else"), names=["belong to no search", "letter.txt"])
    with workspace.locked(tmp_path / "held"):
        check_ended(optimize(tmp_path / "held"), names=["Another command", tmp_path / "held"])


def test_run_takes_the_best_switches_that_fit_its_rows_and_those_that_it_names_itself(twin: Twin, tmp_path: Path) -> None:
    cache = f"paths.cache_dir={tmp_path / 'cache'}"
    command = ["run", "--frameworks", "left", "--modes", "serial", "--no-proof", "--switches", "best", "--set", cache]
    check_ended(convtwins(*command, "--out", tmp_path / "refused"), names=["optimize --model simple_cnn --frameworks left"])
    optimize(tmp_path / "out", "--repeats", 2)
    convtwins(*command, "--out", tmp_path / "run").succeeded()
    ran = store.read_plan(tmp_path / "run").rows
    assert all(row.spec.framework_options == {"digits": "few", "graph": "compiled", "order": "columns"} for row in ran)
    budget = ran[0].budget
    assert budget is not None and (budget.switches, budget.rounds, budget.steps) == (None, 2, 30)
    assert budget.configurations >= len(OPTIONS)
    narrower = {**OPTIONS, "order": {**OPTIONS["order"], "only": {"columns": {"mode": ["multi_process"]}}}}
    (judged,) = matrix.check_rows(
        [Row(id="row", contestant="left", spec=ran[0].spec.with_fields(framework_options={"digits": "all"}))],
        {"left": {**described(), "options": narrower}},
        [Contestant.plain("left")],
    )
    assert judged.spec.framework_options == {"digits": "all", "graph": "compiled"} and judged.unavailable is None
    assert judged.budget is None  # a user set one of them


def test_what_is_stored_is_refused_where_it_was_changed_or_is_of_other_versions(twin: Twin, tmp_path: Path) -> None:
    optimize(tmp_path / "out", "--only", "digits", "--repeats", "2")
    description, cache = described(), str(tmp_path / "cache")
    newer = {**description, "versions": {"left": "2.0"}}
    with refused(names=["left 1.0", "left 2.0", "optimize"]):
        best_switches.load("left", "simple_cnn", newer, cache)
    with refused(names=["mini_xception", "left"]):
        best_switches.load("left", "mini_xception", description, cache)
    path = best_switches.path("left", "simple_cnn", description, cache)
    path.write_text(path.read_text(encoding="utf-8").replace("few", "all"), encoding="utf-8")
    with refused(names=[path, "is not as this suite wrote it"]):
        best_switches.load("left", "simple_cnn", description, cache)


def test_contestants_of_a_spec_file_are_refused_where_a_command_has_none(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = trees.write(tmp_path, {"spec.yaml": {"model": "simple_cnn", "contestants": {"a": {"twin": "lefft"}}}}) / "spec.yaml"
    commands = contestants.TAKE_CONTESTANTS.partition(", predict")[0].split(", ")
    done = convtwins("optimize", "--frameworks", "left", "--spec", file)
    check_ended(done, field="contestants", received=f"contestants in {file}", names=commands)
    check_ended(convtwins("layers", "--spec", file), field="The twin of a", received="lefft", fix="left")
