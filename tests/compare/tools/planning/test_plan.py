"""`convtwins plan` with frameworks whose times are made up."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from common.spec import Mode
from compare.running import launch
from compare.running.twins import Twins
from compare.statistics.scaling_laws import LinkModel
from compare.tools.planning import plan_report, planned_machine, planner, prediction, schedules
from compare.tools.planning.accuracy import PredictionPair
from compare.tools.planning.case import PredictionError
from compare.tools.planning.planned_machine import Device, PlannedMachine
from compare.tools.planning.planner import PlanResult
from compare.tools.planning.prediction import PredictedLayout
from tests.compare.conftest import describe_as
from tests.compare.tools.planning import made
from tests.compare.tools.planning.conftest import Times
from tests.compare.twins import fake
from tests.support.command_line import convtwins, convtwins_json
from tests.support.comparisons import with_fields
from tests.support.refusals import check_ended
from tests.support.snapshots import Screens

SLOW = LinkModel(name="slow", alpha_seconds=1.0, beta_seconds_per_byte=0.0)


def words(*words: object) -> tuple[object, ...]:
    return "plan", "--model", "simple_cnn", "--data", "digits", "--image-size", 32, "--batch-size", made.BATCH, *words


def plan(*more: object) -> dict[str, Any]:
    return convtwins_json(*words(*more))


def test_every_mode_is_ranked_with_its_parts_by_framework(times: Times) -> None:
    found = plan()["predicted"]
    for name in ("left", "right"):
        own = [each for each in found if each["contestant"] == name]
        known = [each["step_seconds"] for each in own if each["step_seconds"]]
        assert known == sorted(known) and len(known) > 15
        assert all(sum(each["parts"].values()) == pytest.approx(each["step_seconds"]) for each in own if each["parts"])
        hybrids = [each for each in own if each["words"].startswith("hybrid")]
        assert [each["step_seconds"] for each in hybrids] == [None, None]  # two replicas are too few
        serial = next(each for each in own if each["words"] == "serial")
        assert serial["efficiency"] == pytest.approx(1.0)
        # Two devices' cores make a step 2 ** 0.5 times as fast here, so they are used that much less well.
        wide = next(each for each in own if each["words"] == "serial, 4 cores")
        assert wide["efficiency"] == pytest.approx(2**0.5 / 2)
    # Layers were timed at the smallest micro-batch, a replica's share and the whole batch, and serially on all cores.
    assert times.batches[0] == {(2, 4), (2, 32), (2, 64), (4, 64)}


def test_a_switch_of_one_framework_is_left_out_for_the_other(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = {"values": ["contiguous", "channels_last"], "default": "contiguous", "help": "layout"}
    for framework, options in (("left", {"memory_format": switch}), ("right", {})):
        describe_as(monkeypatch, framework, options=options)
    plan("--modes", "data_parallel", "--set", "framework_options.memory_format=channels_last")
    assert times.options == {"left": {"memory_format": "channels_last"}, "right": {}}


def test_the_first_lines_say_which_mode_pays_why_and_how_sure(times: Times, snapshot: SnapshotAssertion) -> None:
    times.links = made.links(made.FREE)
    modes = ("--frameworks", "left", "--modes", "multi_process,data_parallel,parameter_server,model_parallel")
    # Links are free, and nothing but stages that take turns takes longer. A tie has no order.
    tied, full = plan(*modes), plan(*modes, "--memory-limit", "1MiB")
    assert "What would have to change" not in tied["findings"]
    times.links = made.links(SLOW)
    slow = ("--frameworks", "left", "--modes", "multi_process")
    measured = plan(*slow, "--measure", "--repeats", 1)
    assert times.servers == [True, True, False]
    times.disturbed = True
    disturbed = plan(*slow)
    assert "What would have to change" not in disturbed["findings"]
    (said,) = measured["verdicts"]
    measured["verdicts"], judged = said.split(" Of ")  # its numbers are real ones
    assert judged.startswith(f"{len(measured['measured'])} layouts") and re.search(r" \d[\d,]* %", judged)
    assert [found["verdicts"] for found in (tied, full, measured, disturbed)] == snapshot


def test_layouts_that_are_equal_may_have_different_reasons(snapshot: SnapshotAssertion) -> None:
    def predicted(variant: str, **parts: float) -> PredictedLayout:
        each = {"compute": 0.0, "input": 0.0, "exposed": 0.0, "bubble": 0.0} | parts
        run = made.run(variant, 1 + (variant != "serial"))
        return PredictedLayout(contestant="left", words=variant, run=run, step_seconds=sum(each.values()), parts=each)

    found = [
        predicted("serial", compute=1.0),
        predicted("multi_process", compute=0.5, exposed=0.54),
        predicted("model_parallel", compute=0.5, bubble=0.6),
    ]
    assert [plan_report.winner(found), plan_report.winner(found[2:])] == snapshot


def test_layouts_that_do_not_fit_are_last_and_say_what_they_need(times: Times) -> None:
    modes = ("--frameworks", "left", "--modes", "multi_process,pipeline")
    sizes = sorted(max(each["memory_mib"].values()) for each in plan(*modes)["predicted"] if each["step_seconds"])
    limit = int(sizes[len(sizes) // 2])
    found = plan(*modes, "--memory-limit", f"{limit}MiB")["predicted"]
    beyond = [each for each in found if each["why"] and "does not fit" in each["why"]]
    assert beyond and not any(each["fits"] for each in beyond)
    fitting = [each["fits"] for each in found if each["step_seconds"]]
    assert fitting == sorted(fitting, reverse=True) and any(fitting)
    assert all(max(each["memory_mib"].values()) > limit for each in beyond)


def test_what_would_have_to_change_is_a_change_that_does_it(times: Times, tmp_path: Path) -> None:
    out = tmp_path / "out"
    times.links = made.links(SLOW)
    modes = ("--frameworks", "left", "--modes", "multi_process,tensor_parallel")
    (said,) = plan(*modes, "--out", out)["findings"]["What would have to change"]
    factor = float(said.split("links ")[1].split()[0])
    path = out / "machine.yaml"
    values = yaml.safe_load(path.read_text("utf-8"))
    for link in values["frameworks"]["left"]["links"].values():
        link["alpha_seconds"] /= factor * 1.01
    path.write_text(yaml.safe_dump(values), "utf-8")
    best = plan(*modes, "--machine", path)["predicted"][0]["words"]
    assert best.startswith("multi_process") and plan(*modes)["predicted"][0]["words"].startswith("serial")


FREE = made.FREE.model_dump()


def of_left(**fields: Any) -> dict[str, Any]:
    return {"frameworks": {"left": {"versions": {}, **fields}}}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"devices": []}, "devices"),
        ({"crowd": 2}, "crowd"),
        ({"schema_version": 9}, "schema_version 9"),
        ({"frameworks": {}}, "left"),
        (of_left(crowding=0.5), "frameworks.left.crowding"),
        (of_left(links={"send": {**FREE, "alpha_seconds": -1.0}}), "links.send.alpha_seconds"),
        (of_left(links={"send": {**FREE, "beta_seconds_per_byte": -1.0}}), "links.send.beta_seconds_per_byte"),
        ({"cores_of_device": 5}, "cores_of_device"),
    ],
)
def test_a_machine_file_that_is_refused_says_what_to_do_before_anything_is_asked(
    times: Times, fake_twins: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, Any], name: str
) -> None:
    # Whoever asked this framework would be told that it has no such module.
    fake_twins.setitem(launch.FRAMEWORKS, "left", "no_such_module")
    whole = times.this_machine(Twins(["left"]), made.run("serial", 1), 2, [], None, server=True)
    path = tmp_path / "machine.yaml"
    asked = words("--frameworks", "left", "--machine", path)
    path.write_text(yaml.safe_dump(whole.model_dump(mode="json") | change), "utf-8")
    check_ended(convtwins(*asked), names=[path, name])
    path.write_text(planned_machine.text(whole), "utf-8")
    assert planned_machine.read(path) == whole
    check_ended(convtwins(*asked, "--replicas", 4), field="replicas", received="2 for 4", fix="--replicas")


def test_the_best_three_and_serial_are_measured_and_errors_become_bands(times: Times, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = plan(
        "--frameworks", "left", "--modes", "multi_process,data_parallel,pipeline", "--measure", "--repeats", "2",
        "--project", "8,4096", "--maps", "--out", str(out),
    )  # fmt: skip
    measured = found["measured"]
    assert len(measured) == 1 + planner.MEASURED_LAYOUTS and {each["n"] for each in measured} == {2}
    best = [each["words"] for each in found["predicted"] if each["words"] != "serial"][: planner.MEASURED_LAYOUTS]
    assert {each["words"] for each in measured} == {"serial", *best}
    for each in measured:
        assert each["error"] == pytest.approx(each["predicted_seconds"] / each["measured_seconds"] - 1)
    (wide,) = [each for each in found["projected"] if (each["replicas"], each["mode"]) == (4096, "multi_process")]
    ratios = [each["measured_seconds"] / each["predicted_seconds"] for each in measured]
    assert wide["low_seconds"] == pytest.approx(wide["step_seconds"] * min(ratios))
    assert wide["high_seconds"] == pytest.approx(wide["step_seconds"] * max(ratios))
    assert (out / "measured" / "compare.json").exists() and "| 4096 |" in (out / "report.md").read_text("utf-8")
    star = found["measured_winners"]["left"]
    times_of = {each["words"]: each["measured_seconds"] for each in measured}
    assert star["speedup"] == pytest.approx(times_of["serial"] / min(times_of.values())) and star["replicas"] == 2
    assert (out / "plots" / "map_left.png").exists()
    judged = " ".join(found["findings"]["How good the predictions were"])
    assert re.search(r"left: .* 4 layouts", judged) and "Rank correlation" in judged


def test_a_score_measures_the_best_layout_of_every_mode() -> None:
    def predicted(words: str, variant: str, seconds: float | None) -> PredictedLayout:
        return PredictedLayout(
            contestant="pytorch", words=words, run=made.run(variant, 1 + (variant != "serial")), step_seconds=seconds
        )

    found = [
        predicted("pipeline x2, 4 micro-batches", "pipeline", 1.0),
        predicted("serial, 2 cores", "serial", 1.5),
        predicted("pipeline x2, 2 micro-batches", "pipeline", 2.0),
        predicted("multi_process x2", "multi_process", 3.0),
        predicted("serial", "serial", 4.0),
        predicted("tensor_parallel x2", "tensor_parallel", 5.0),
        predicted("parameter_server x2", "parameter_server", None),
    ]
    plan = PlanResult(made.run("serial", 1), PlannedMachine(name="m", devices=[Device(name="a")], frameworks={}), found)
    names = {each.id: each.spec for each in planner.measured_rows(plan, Twins(["pytorch"]), every_mode=True)}
    assert [*names] == [
        "pytorch-serial", "pytorch-pipeline-x2-4-micro-batches", "pytorch-serial-2-cores",
        "pytorch-multi_process-x2", "pytorch-tensor_parallel-x2",
    ]  # fmt: skip
    assert {each.steps for each in names.values()} == {planner.MEASURED_STEPS}
    for steps, measured in ((6, 6), (1000, planner.MEASURED_STEPS)):
        plan.predicted = [with_fields(each, run=each.run.with_fields(epochs=None, steps=steps)) for each in found]
        assert {each.spec.steps for each in planner.measured_rows(plan, Twins(["pytorch"]))} == {measured}
    assert [each.id for each in planner.measured_rows(plan, Twins(["pytorch"]))] == [
        "pytorch-serial", "pytorch-pipeline-x2-4-micro-batches", "pytorch-serial-2-cores",
        "pytorch-pipeline-x2-2-micro-batches",
    ]  # fmt: skip


@pytest.mark.usefixtures("times")
def test_without_measurement_a_projection_has_no_bands() -> None:
    found = plan("--frameworks", "left", "--modes", "multi_process,model_averaging", "--project", "8", "--maps")
    assert {each["low_seconds"] for each in found["projected"]} == {None}
    points = found["winners"]["left"]
    slow = {each["mode"] for each in points if each["link"] == "10 Mbit/s" and each["speed"] == 100}
    fast = {each["mode"] for each in points if each["link"] == "100 Gbit/s" and each["speed"] == 0.1}
    assert (slow, fast) == ({"serial"}, {"multi_process"})  # averaging is another mathematics


@pytest.mark.usefixtures("times")
def test_a_projection_over_another_network_keeps_the_batch_or_the_batch_of_a_replica(tmp_path: Path) -> None:
    modes = ("--frameworks", "left", "--modes", "multi_process", "--project", "8,128")
    values = plan(*modes, "--kinds", "strong,weak", "--network", "1e-3,1e-9", "--out", tmp_path)
    projected = {(row["kind"], row["replicas"]): row for row in values["projected"]}
    assert set(projected) == {("strong", 8), ("weak", 8), ("weak", 128)}, "64 images are too few for 128 replicas"
    assert "128 (strong) replicas" in " ".join(values["findings"]["Cautions"])
    assert {row["network"] for row in projected.values()} == {"1e-3,1e-9"}
    # Two cores share a second of 64 images. The network has no crowding, and a message of a ring takes a millisecond.
    compute = {"strong": 8 / made.BATCH / 2**0.5, "weak": 32 / made.BATCH / 2**0.5}
    for kind, seconds in compute.items():
        row = projected[kind, 8]
        assert row["step_seconds"] > seconds + 14e-3 and row["efficiency"] == pytest.approx(seconds / row["step_seconds"])
    assert "over 1e-3,1e-9" in (tmp_path / "report.md").read_text("utf-8")
    faster = plan(*modes, "--network", "nvlink")["projected"]
    assert faster[0]["kind"] == "weak" and faster[0]["step_seconds"] < projected["weak", 8]["step_seconds"]
    check_ended(convtwins(*words("--network", "nvlink")), field="--network", names=["--project"])


def test_other_work_on_the_machine_is_a_caution(times: Times, snapshot: SnapshotAssertion) -> None:
    modes = ("--frameworks", "left", "--modes", "multi_process")
    quiet = convtwins(*words(*modes))
    # Outside a terminal, a line says what begins.
    assert [line.partition(":")[0] for line in quiet.stderr.splitlines()][1:] == ["left"] and "3 layouts" in quiet.stderr
    assert "Cautions" not in plan(*modes)["findings"]
    times.disturbed = True
    assert plan(*modes)["findings"]["Cautions"] == snapshot


def test_the_fullest_rank_is_no_server_and_holds_all_devices_of_its_process(
    times: Times, fake_twins: pytest.MonkeyPatch
) -> None:
    modes: Any = fake.describe("left", {})["modes"]
    describe_as(fake_twins, "left", modes={**modes, "tensor_parallel": modes["tensor_parallel"] | {"one_process": True}})
    found = plan("--frameworks", "left", "--modes", "tensor_parallel,parameter_server,multi_process")["predicted"]
    by_mode = {each["words"].split()[0]: each for each in found}
    together, served, apart = (by_mode[mode] for mode in ("tensor_parallel", "parameter_server", "multi_process"))
    assert together["process_mib"] == pytest.approx(sum(together["memory_mib"].values()))
    assert served["process_mib"] == apart["process_mib"] == pytest.approx(max(apart["memory_mib"].values()))
    assert "server" in served["memory_mib"]


def test_a_framework_that_cannot_run_a_mode_says_why(times: Times, fake_twins: pytest.MonkeyPatch) -> None:
    barred = {"available": False, "reason": "needs 2 CUDA devices, found 0"}
    modes: Any = fake.describe("left", {})["modes"]
    describe_as(fake_twins, "left", modes={**modes, "tensor_parallel": modes["tensor_parallel"] | barred})
    (found,) = [each for each in plan("--frameworks", "left")["predicted"] if each["words"].startswith("tensor")]
    assert found["step_seconds"] is None and barred["reason"] in found["why"]


def test_modes_that_stay_on_one_machine_say_so_where_there_are_several(times: Times) -> None:
    found = plan("--frameworks", "left", "--modes", "multi_process,pipeline", "--hosts", "127.0.0.1,127.0.0.2")["predicted"]
    known = [each["words"] for each in found if each["step_seconds"]]
    assert "multi_process x2" in known and not any(words.startswith("pipeline") for words in known)
    (refused,) = [each for each in found if each["words"] == "pipeline"]
    assert re.search(r"\bhosts\b.*\bmulti_process\b", refused["why"])


@pytest.mark.parametrize("name", ["predicted", "measured", "disturbed"])
def test_the_first_screen_says_which_mode_pays_and_how_sure(screens: Screens, name: str) -> None:
    def predicted(contestant: str, words: str, variant: str, seconds: float | None) -> PredictedLayout:
        parts = {"compute": 0.8 * (seconds or 0), "input": 0.0, "exposed": 0.2 * (seconds or 0), "bubble": 0.0}
        return PredictedLayout(
            contestant=contestant, words=words, run=made.run(variant, 1 + (variant != "serial")), step_seconds=seconds,
            parts=parts, memory_mib={"cpu 0": 120.0}, why=None if seconds else "needs 2 CUDA devices",
        )  # fmt: skip

    found = [
        predicted(contestant, words, variant, seconds and seconds * times)
        for contestant, times in (("pytorch", 1.0), ("tensorflow", 1.3))
        for words, variant, seconds in (
            ("multi_process x2", "multi_process", 0.0301),
            ("data_parallel x2", "data_parallel", 0.0402),
            ("pipeline x2, 4 micro-batches", "pipeline", 0.0463),
            ("serial", "serial", 0.0515),
            ("tensor_parallel x2", "tensor_parallel", None),
        )
    ]
    plan = PlanResult(made.run("serial", 1), PlannedMachine(name="a laptop", devices=[Device(name="a")], frameworks={}), found)
    if name == "measured":
        plan.pairs = [
            PredictionPair(
                contestant=each.contestant, words=each.words, predicted_seconds=each.step_seconds or 0.0,
                measured_seconds=1.1 * (each.step_seconds or 0.0), low_seconds=0.01, high_seconds=0.09, n=3,
            )
            for each in found
            if each.step_seconds
        ]  # fmt: skip
    if name == "disturbed":
        plan.disturbed, plan.cautions = ["pytorch"], ["pytorch: other work took cores."]
    shown = screens(plan_report.report(plan, None))
    assert ("--measure" in shown) != (name == "measured") == (" 9 %" in shown)


def test_a_registered_mode_is_laid_out_and_the_file_that_lacks_its_schedule_is_named(gossip: Mode) -> None:
    planned, refusals = prediction.enumerate_layouts({"cores": 2}, ["gossip"], 2)
    assert [*planned] == ["serial", "gossip x2"] and not refusals
    with pytest.raises(PredictionError, match=r"mode gossip .*compare/tools/planning/schedules\.py"):
        schedules.step(made.case(made.run("gossip", 2)))
