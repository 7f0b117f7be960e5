"""Published reports made again: their figures, what is run for them, and verdicts that are no stronger than the intervals."""

import ast
import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.artifacts.schema import RunResult
from common.machine import machine
from common.models import architectures
from common.training import scores
from compare.reporting import comparison_report
from compare.reporting.comparison_report import JudgedComparison
from compare.reporting.document import Section
from compare.reporting.tables import Column, Table
from compare.results import store
from compare.results.store import ProofRecord, StoredComparison
from compare.running import launch
from compare.running.matrix import Row
from compare.statistics.statistics import paired_ratio, relative_to, verdicts
from compare.tools.papers import accuracy_claims, cells, curves, judging, local_results, paper_file, reproduce, time_claims
from compare.tools.papers.accuracy_claims import AccuracyLoss, Difference, MoreAccurate, NoAccuracyLoss
from compare.tools.papers.cells import ComparedFigure
from compare.tools.papers.local_results import FAILED, LocalResults
from compare.tools.papers.plan import ReproductionPlan, ReproductionSetting, build_plan
from compare.tools.papers.schema import SCALES, Paper
from compare.tools.papers.step_runner import FinishedStep, PassedValues, StepsRecord
from compare.tools.tuning.records import TunedTrial, Tuning, TuningPlan, TuningRecord, TuningSearch
from tests import hostile_files
from tests.compare.conftest import describe_as
from tests.parity import settings as parity_settings
from tests.planted import exercise
from tests.support import comparisons, trees
from tests.support.command_line import Ended, convtwins, convtwins_json
from tests.support.refusals import check_ended
from tests.support.snapshots import Screens

PAPERS = paper_file.paper_names()
CIFAR10, PLANT, TOMATO = PAPERS
OPEN = "cannot be told here"
VERDICTS = {"reproduced", "not reproduced", "contradicted by the paper's own table", OPEN}
PLAN = comparisons.comparison([comparisons.row("pytorch")])
DISTURBED = {"cores_of_others": 1.5, "machine": {"logical_cores": 2}}
LEAVES = "leaves:classes=2,images=20,size=32"
"""Images of classes that no paper has."""


@pytest.fixture
def fakes(fake_twins: pytest.MonkeyPatch) -> None:
    """Both frameworks pretended, under their own names."""
    found = {name: f"tests.compare.twins.as_{name}" for name in ("pytorch", "tensorflow")}
    fake_twins.setattr(launch, "FRAMEWORKS", found)  # as the fixture that this one extends


def planned(
    name: str, scale: Any = "quick", data: str = "leaves", gpus: int = 0, values: Any = None, **setting: Any
) -> ReproductionPlan:
    return build_plan(
        paper_file.find_paper(name), ReproductionSetting(scale, data, gpus, values or {}, **{"cores": 2, **setting})
    )


@pytest.mark.parametrize(("gpus", "lacking"), [(0, 4), (1, 3), (2, 0)])
def test_claims_that_need_gpus_are_counted_before_anything_runs(gpus: int, lacking: int) -> None:
    sentences = reproduce._claims_without_gpus(planned(TOMATO, gpus=gpus))
    assert len(sentences) == (lacking > 0)
    assert all(f"{lacking} of 7 claims" in sentence and "at any scale" in sentence for sentence in sentences)


def test_a_claim_that_cannot_be_told_has_its_reason() -> None:
    judged = judging.judge_all(nothing(TOMATO))
    untold = [claim for claim in judged if claim.verdict == judging.CANNOT_TELL]
    assert len(untold) > 3 and all(claim.why_not_told for claim in untold)
    assert sum("GPU" in claim.why_not_told for claim in untold) >= 4
    assert all(not claim.why_not_told for claim in judged if claim.verdict != judging.CANNOT_TELL)


def nothing(name: str, *setting: Any, **more: Any) -> LocalResults:
    """A paper of which nothing was run."""
    return LocalResults(planned(name, *setting, **more), {}, {})


def local(subject: ReproductionPlan, runs: Callable[[Row], Mapping[int, RunResult]], **plan: Any) -> LocalResults:
    """A paper of which some runs were made: those of a row, by repeat. `plan` holds fields of the comparisons."""
    trainings: dict[str, JudgedComparison] = {}
    for training in subject.trainings:
        stored = {row.id: found for row in training.rows if (found := dict(runs(row)))}
        if not stored:
            continue
        comparison = comparisons.comparison([row for row in training.rows if row.id in stored], repeats=5)
        trainings[training.name] = comparison_report.judge(
            StoredComparison(comparison=comparisons.with_fields(comparison, **plan), runs=stored, set_aside=[])
        )
    return LocalResults(subject, trainings, {})


def timed(
    subject: ReproductionPlan, seconds: Mapping[str, float], changed: Mapping[str, Any] | None = None, **plan: Any
) -> LocalResults:
    """Five repeats of the rows whose seconds of an epoch are given, with little noise."""

    def runs(row: Row) -> dict[int, RunResult]:
        draw = random.Random(row.id)
        noisy = [seconds[row.id] * draw.gauss(1.0, 0.005) for _ in range(5)] if row.id in seconds else []
        made = {repeat: comparisons.good(row, each, repeat) for repeat, each in enumerate(noisy)}
        return {repeat: comparisons.with_fields(run, **(changed or {})) for repeat, run in made.items()}

    return local(subject, runs, **plan)


def scored(subject: ReproductionPlan, accuracies: Mapping[str, Sequence[float]]) -> LocalResults:
    """Repeats whose accuracies are given, by row: those of the last epoch and of the test."""

    def runs(row: Row) -> dict[int, RunResult]:
        scores = [comparisons.score(each, 1.0, 10_000) for each in accuracies.get(row.id, ())]
        good = {repeat: comparisons.good(row, 1.0, repeat) for repeat in range(len(scores))}
        return {
            repeat: comparisons.with_fields(
                run, test=scores[repeat], epochs=[comparisons.with_fields(run.epochs[-1], validation=scores[repeat])]
            )
            for repeat, run in good.items()
        }

    return local(subject, runs)


def with_losses(losses: Mapping[str, Mapping[int, Sequence[float]]], scale: str = "smoke", gpus: int = 0) -> LocalResults:
    """The plant report, of which runs with these losses of their epochs were made, by row and repeat."""

    def run(row: Row, repeat: int, of_epochs: Sequence[float]) -> RunResult:
        good = comparisons.good(row, 1.0, repeat, first_step_loss=of_epochs[0])
        epochs = [comparisons.with_fields(good.epochs[0], epoch=at + 1, train__loss=loss) for at, loss in enumerate(of_epochs)]
        return comparisons.with_fields(good, epochs=epochs)

    rungs = [
        {"precision": "float32", "status": "passed", "framework": name, "first_tolerance": 1e-3} for name in launch.FRAMEWORKS
    ]
    return local(
        planned(PLANT, scale, gpus=gpus),
        lambda row: {repeat: run(row, repeat, each) for repeat, each in losses.get(row.id, {}).items()},
        proof=ProofRecord(verdict="proved", sentence="", rungs=rungs),
    )


def verdict_of(found: LocalResults, claim: str) -> str:
    return found.paper.claims[claim].judge(found)[0]


def table_of(found: LocalResults, name: str) -> Table:
    return next(table for table in cells.build_tables(found) if table.name == name)


def reproduced(*words: object) -> Ended:
    return convtwins("reproduce", *words)


def parts_of(*words: object) -> dict[str, Any]:
    """The parts of a reproduction at smoke scale, by name."""
    return {part["name"]: part for part in convtwins_json("reproduce", *words, "--scale", "smoke")["parts"]}


def found_in(parts: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return next(table for part in parts.values() for table in part["tables"] if table["name"] == name)["rows"]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_has_a_plan_at_every_scale_for_any_number_of_gpus(name: str, scale: str) -> None:
    for gpus in (0, 1, 2):
        made = planned(name, scale, paper_file.find_paper(name).data.smoke, gpus)
        names = [row.id for training in made.faithful for row in training.rows]
        assert len(names) == len(set(names)) and made.chosen and made.deviations
        assert {row.contestant for row in made.corrected.rows} == {"pytorch", "tensorflow"}
        assert len({row.spec.data.model_dump_json() for row in made.corrected.rows}) == 1
        assert made.corrected.repeats >= (5 if scale != "smoke" else 1)


def test_networks_of_the_cifar10_report_have_the_numbers_of_weights_that_were_counted_in_its_notebooks() -> None:
    def trainable(model: str) -> int:
        return sum(each.size for each in architectures.resolve(model, 10, 32).parameters() if each.trainable)

    assert trainable("common.published.pytorch_mini_xception") == 391_050
    keras = architectures.resolve("common.published.keras_mini_xception", 10, 32)
    assert sum(each.size for each in keras.parameters()) == 96_202
    norms = [layer for layer in keras.leaves() if isinstance(layer, architectures.BatchNorm)]
    assert norms and {(each.momentum, each.epsilon) for each in norms} == {(0.01, 1e-3)}


def test_the_faithful_runs_differ_as_the_notebooks_do_and_the_corrected_ones_do_not() -> None:
    made = planned(CIFAR10, "full", "cifar10", 1)
    runs = {training.name: training.rows[0].spec for training in made.faithful}
    assert [run.device for run in runs.values()] == ["cpu", "auto", "auto"]
    assert [run.global_batch_size for run in runs.values()] == [32, 64, 32]
    assert [run.data.normalization for run in runs.values()] == ["none", "half", "none"]
    assert [run.mode for run in runs.values()] == ["serial"] * 3  # for nothing was split
    assert [run.input for run in runs.values()] == ["inline", "workers", "dask"]
    assert [run.epochs for run in runs.values()] == [8, 20, 20]
    assert runs["tensorflow_mirrored_dask"].data.drawn_part == 0.2 and runs["tensorflow_mirrored_dask"].split_seed == 42
    assert all(run.optimizer.native for run in runs.values())
    assert {row.spec.model for row in made.corrected.rows} == {"mini_xception"}


def test_the_search_and_the_final_training_are_in_the_estimate_of_time() -> None:
    search, final = reproduce._search_and_final(planned(PLANT))
    assert (search.repeats, search.rows[0].spec.epochs) == (8 * 4, 1)
    assert (final.repeats, final.rows[0].spec.epochs) == (1, 6)
    assert reproduce._search_and_final(planned(CIFAR10, "quick", "digits")) == []


def test_cells_that_a_larger_scale_fills_have_its_command_and_those_of_a_run_that_failed_have_none() -> None:
    paper = paper_file.find_paper(CIFAR10)
    setting = ReproductionSetting("quick", "digits", 0, spec.overlay({}, {"steps": None, "model": "a b", "data.seed": 1}))
    repeated = "--set steps=null --set 'model=a b' --set data.seed=1"
    command = f".venv/bin/convtwins reproduce {CIFAR10} --scale full --data digits {repeated}"
    whole, drawn = (ReproductionSetting(scale, "digits", 0, synthetic=scale == "smoke") for scale in ("full", "smoke"))
    reason = partial(local_results.reason_after_last_epoch, paper)
    assert reason(setting, 4) == f"after epoch 4 of scale quick; all: {command}"
    assert (reason(setting, 0), reason(whole, 4)) == (FAILED, "after epoch 4 of scale full")
    assert "--data" not in reason(drawn, 1)
    given = re.findall(r"--set (\S+)", local_results.reproduce_command(paper, setting, "full"))
    assert spec.parse_assignments(given[:1]) == {"steps": None}


@pytest.mark.parametrize(
    ("name", "known", "unknown"),
    [
        (CIFAR10, "airplane", "Tomato___healthy"),
        (TOMATO, "Tomato___healthy", "airplane"),
        (PLANT, "Tomato___healthy", "Alder___healthy"),
    ],
)
def test_data_of_as_many_other_classes_are_not_the_reports(name: str, known: str, unknown: str) -> None:
    subject = planned(name, "full", "somewhere")
    for class_name, others in ((known, False), (unknown, True)):
        names = [class_name] * subject.paper.data.classes
        comparison = comparisons.with_fields(PLAN, class_names=names)
        assert (reproduce._OTHER_DATA in reproduce._departures(subject, comparison)) == others


def test_a_cell_after_the_epochs_of_a_scale_that_needs_gpus_has_the_command_of_a_scale_with_so_many() -> None:
    found = nothing(PLANT, "smoke", synthetic=True)
    for run, epoch, scale in (("data_parallel", 1, "smoke"), ("data_parallel", 2, "full"), ("workers-4", 1, "quick")):
        assert found.why_not_run(run, epoch).endswith(f"{PLANT} --scale {scale}")
    scans = cells.fill_rows(found, found.paper.table("preprocessing"))
    assert all(reason.endswith(f"{PLANT} --scale quick") for _, reason in scans.values())


@pytest.mark.parametrize(
    ("sequential", "torch", "reason"),
    [
        (0, 20, f"Keras, sequential: {FAILED}"),
        (0, 0, FAILED),
        (0, 2, f"Keras, sequential: {FAILED}; PyTorch, loader workers: after epoch 2 of scale full"),
    ],
)
def test_a_cell_of_the_cifar10_report_is_open_for_the_reason_of_its_own_run(sequential: int, torch: int, reason: str) -> None:
    trained = {"sequential": sequential, "pytorch_cuda_workers": torch, "tensorflow_mirrored_dask": 20 if torch else 0}

    def runs(row: Row) -> dict[int, RunResult]:
        good = comparisons.good(row, 1.0)
        return {0: comparisons.with_fields(good, epochs=good.epochs[:epochs])} if (epochs := trained.get(row.id)) else {}

    assert table_of(local(planned(CIFAR10, "full", "cifar10"), runs), "table_4").rows[2]["open"] == reason


@pytest.mark.parametrize(("gpus", "reason"), [(0, FAILED), (1, "needs 2 GPUs; there: "), (2, FAILED)])
def test_a_parallel_cell_of_the_tomato_report_says_what_it_needs_where_it_cannot_be_run(gpus: int, reason: str) -> None:
    rows = table_of(nothing(TOMATO, gpus=gpus), "table_I").rows
    assert [row["mode"] for row in rows] == ["serial", "serial", "data_parallel", "data_parallel"]
    assert all(str(row["open"]).startswith(reason) for row in rows[2:])
    assert all(row["open"] == FAILED for row in rows[:2])


@pytest.mark.usefixtures("fakes")
def test_replicas_on_the_cpu_are_no_gpus_where_the_caller_asks_for_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def planned(paper: Paper, setting: ReproductionSetting) -> ReproductionPlan:
        asked.append(setting.gpus)
        raise SystemExit

    for name, number in (("pytorch", 3), ("tensorflow", 2)):
        describe_as(monkeypatch, name, devices=[{"name": "H200", "kind": "cuda"}] * number)
    monkeypatch.setattr(reproduce, "build_plan", planned)  # what comes next trains
    for more in ((), ("--set", "device=cpu")):
        reproduced(TOMATO, "--scale", "smoke", "--out", tmp_path / "out", *more)
    assert asked == [2, 0]


def test_adam_of_each_tomato_run_is_the_frameworks_own() -> None:
    (training,) = planned(TOMATO, "full", gpus=2).faithful
    epsilons = {(row.contestant, row.spec.optimizer.epsilon) for row in training.rows}
    assert epsilons == {("pytorch", 1e-8), ("tensorflow", 1e-7)}


def test_a_gpu_row_of_the_plant_report_is_run_only_where_there_are_two() -> None:
    for gpus, rows in ((0, 4), (1, 4), (2, 5)):
        (training,) = planned(PLANT, gpus=gpus).faithful
        assert len(training.rows) == rows


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("name", "data", "table"),
    [(CIFAR10, "digits", "table_1"), (TOMATO, "leaves:classes=10,images=200,size=32", "table_I")],  # files, to be streamed
)
def test_a_report_is_made_again_with_tables_curves_and_a_verdict_for_each_claim(
    name: str, data: str, table: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [name, "--scale", "smoke", "--data", data, "--out", out, "--set"]
    done = reproduced(*words, "data.image_size=32", "--json").succeeded()
    parts = {part["name"]: part for part in done.json["parts"]}
    verdicts = {row["claim"]: row["verdict"] for row in found_in(parts, "claims")}
    assert list(verdicts) == [claim.said for claim in paper_file.find_paper(name).claims.values()]
    assert set(verdicts.values()) <= VERDICTS
    page = (out / "report.html").read_text()
    assert page.count("<svg") >= 1 and OPEN in page
    first = found_in(parts, table)[0]
    assert first["accuracy_paper"] and first["accuracy_here"] and first["accuracy_ratio"] is None  # these are other data
    again = reproduced(*words, "data.image_size=32", "--json")
    assert again.stdout == done.stdout
    # Verdicts are judged anew: what they are of may have been gone on with.
    assert ["1 of 4" in each.stderr for each in (done, again)] == [True, False] and "4 of 4" in again.stderr
    check_ended(reproduced(*words, "data.image_size=33"), names=[out])


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("name", PAPERS)
def test_a_quick_reproduction_says_how_long_it_takes_before_it_starts(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subject = planned(name, "quick", "leaves:classes=10,images=200,size=32", values={"data": {"image_size": 32}})
    made = reproduce._plan_step(subject, tmp_path, PassedValues())
    assert re.search(r"About \d+:\d\d min of training", capsys.readouterr().err)
    rows = made.part.tables[0].rows
    assert rows and all(row["seconds"] for row in rows)


@pytest.mark.usefixtures("fakes")
def test_a_row_on_fewer_cores_is_estimated_at_no_more_seconds_than_in_proportion(tmp_path: Path) -> None:
    subject = planned(TOMATO, "full", "leaves:classes=10,images=200,size=32", values={"data": {"image_size": 32}})
    table = reproduce._plan_step(subject, tmp_path, PassedValues()).part.tables[0]
    seconds = {row["row"]: row["seconds"] for row in table.rows}
    one, *_, all_cores = (row for row in subject.corrected.rows if row.contestant == "pytorch" and not row.spec.is_parallel)
    assert seconds[all_cores.id] < seconds[one.id] <= all_cores.spec.cores * seconds[all_cores.id]


def test_claims_that_the_tables_of_the_cifar10_report_contradict_are_called_so() -> None:
    verdicts = {claim.name: claim for claim in judging.judge_all(nothing(CIFAR10, "smoke", "digits"))}
    assert verdicts["most_accurate"].verdict == verdicts["fastest"].verdict == "contradicted by the paper's own table"
    assert "PyTorch, loader workers 0.8298, Keras, sequential 0.8156" in verdicts["most_accurate"].evidence[0]
    assert verdicts["epoch_time"].verdict == verdicts["loses_none"].verdict == OPEN
    assert "30.8 to 44.3 times" in verdicts["epoch_time"].evidence[0]


@pytest.mark.parametrize("name", PAPERS)
def test_where_nothing_was_run_every_cell_is_open_and_no_claim_is_reproduced(name: str) -> None:
    found = nothing(name, "smoke", LEAVES)
    judged = judging.judge_all(found)
    assert [claim.text for claim in judged] == [claim.said for claim in found.paper.claims.values()]
    assert {claim.verdict for claim in judged} <= {OPEN, "contradicted by the paper's own table"}
    assert all(claim.evidence for claim in judged)
    tables = [table for table in cells.build_tables(found) if not table.name.startswith("arithmetic")]
    assert tables
    for row in (row for table in tables for row in table.rows):
        assert not any(value for key, value in row.items() if key.endswith(("_here", "_ratio")))
        assert row["open"]
    curves.draw(Figure(), found)


def test_the_reports_arithmetic_is_checked_against_its_own_tables() -> None:
    plant, tomato = (cells.build_tables(nothing(name, "smoke", LEAVES))[-1].rows for name in (PLANT, TOMATO))
    agrees = {row["what"]: row["agrees"] for row in plant}
    for what in ("dask x4, speed-up", "training images, against the sum of the classes"):
        assert agrees[what] == "NO"
    supports = "test images, against the supports of the report"
    assert [(row["worked_out"], row["agrees"]) for row in plant if row["what"] == supports] == [(17572, "NO")]
    assert agrees["pytorch x8, speed-up"] == agrees["8 jobs, speed-up"] == "yes"
    assert {"2 loader workers, speed-up", "DataParallel on two GPUs, speed-up"} <= agrees.keys()
    # Only what the report states: the speed-ups of its times are nobody's but ours.
    assert [(row["stated"], row["agrees"]) for row in tomato] == [(1.8, "yes"), (3.0, "yes")]


def _difference(mean: float, half: float, n: int = 5, p: float = 0.01) -> Difference:
    return Difference("a", "b", mean, mean - half, mean + half, n, p)


def loses(difference: Difference | None) -> str:
    return AccuracyLoss(said="", kind="accuracy_loss", run="a", than="b", points=2.0).verdict(difference)[0]


def loses_none(difference: Difference | None) -> str:
    return NoAccuracyLoss(said="", kind="no_accuracy_loss").verdict(difference)[0]


def leads(difference: Difference | None) -> str:
    return MoreAccurate(said="", kind="more_accurate", run="a", than="b", points=1.15).verdict(difference)[0]


@pytest.mark.parametrize(
    ("judge", "difference", "verdict"),
    [
        (loses, None, OPEN),
        (loses, _difference(-0.02, 0.01, n=4), OPEN),
        (loses, _difference(-0.02, 0.01), "reproduced"),
        (loses, _difference(-0.02, 0.01, p=0.2), OPEN),
        (loses, _difference(-0.02, 0.04, p=0.2), OPEN),
        # Under settings that the report does not state: to find no such loss says nothing of the report's.
        (loses, _difference(0.0, 0.01, p=0.9), OPEN),
        (loses, _difference(-0.10, 0.01), OPEN),
        (loses_none, _difference(0.0, 0.005, p=0.9), "reproduced"),  # a loss of a point is ruled out
        (loses_none, _difference(-0.006, 0.003, p=0.001), "not reproduced"),  # a loss is shown, small as it is
        (loses_none, _difference(-0.006, 0.003, p=0.06), "reproduced"),
        (loses_none, _difference(0.0, 0.03, p=0.9), OPEN),
        (loses_none, replace(_difference(0.0, 0.005, p=0.9), learned=False), OPEN),
        (loses_none, _difference(-0.04, 0.01), "not reproduced"),
        (loses_none, _difference(-0.04, 0.01, n=3), OPEN),
        (leads, _difference(0.04, 0.01), "reproduced"),
        (leads, _difference(-0.04, 0.01), "not reproduced"),
        (leads, _difference(0.01, 0.03, p=0.4), OPEN),
        (leads, _difference(0.04, 0.01, p=0.06), OPEN),
        (leads, _difference(0.0, 0.01, p=0.9), "not reproduced"),  # a lead of 1.15 points is ruled out
        (leads, _difference(0.0, 0.02, p=0.9), OPEN),
    ],
)
def test_a_claim_on_an_accuracy_is_judged_by_what_the_interval_holds_and_rules_out(
    judge: Callable[[Difference | None], str], difference: Difference | None, verdict: str
) -> None:
    assert judge(difference) == verdict


def test_accuracies_are_paired_by_seed_and_tested_as_one_family() -> None:
    subject = planned(PLANT)
    x, y, z, *_ = (row.id for row in subject.faithful[0].rows)
    accuracies = {x: [0.90, 0.91, 0.92, 0.93, 0.94], y: [0.80, 0.81, 0.82, 0.83, 0.84], z: [0.9, 0.8, 0.9, 0.8, 0.9]}
    run = scored(subject, accuracies)
    found = accuracy_claims.accuracy_differences(run, "faithful", [(x, y), (x, z)])
    sure, unsure = found[x, y], found[x, z]
    assert (sure.n, round(sure.mean, 6)) == (5, 0.1) and sure.low < 0.1 < sure.high and sure.p < 0.01
    assert unsure.p > 0.05 and unsure.low < 0 < unsure.high
    assert accuracy_claims.accuracy_differences(run, "faithful", [(x, y)])[x, y].p == pytest.approx(sure.p / 2)


GAIN = 1.05
"""From which more workers count as a gain."""


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([(10, 10.1), (10, 10.0), (10, 9.9), (10, 10.05), (10, 10.0)], "reproduced"),
        ([(10, 5.1), (10, 5.0), (10, 4.9), (10, 5.05), (10, 5.0)], "not reproduced"),
        ([(10, 9.6), (10, 9.1), (10, 9.5), (10, 9.2), (10, 9.4)], OPEN),  # 1.04 to 1.10
        ([(10, 9.71), (10, 9.69), (10, 9.7), (10, 9.68), (10, 9.72)], "reproduced"),  # faster by 3 %, surely
        ([(10, 9.3), (10, 9.2), (10, 9.25), (10, 9.22), (10, 9.28)], "not reproduced"),  # 1.075 to 1.088
        ([(10, 5.0), (10, 15.0), (10, 9.9), (10, 7.0), (10, 12.0)], OPEN),
        ([(10, 10.1), (10, 10.0)], OPEN),
    ],
)
def test_more_workers_gain_nothing_only_where_a_gain_is_ruled_out(gains: list[tuple[float, float]], verdict: str) -> None:
    ratio = paired_ratio(gains)
    assert ratio is not None
    held = relative_to(ratio, GAIN)
    assert time_claims.no_gain(ratio, verdicts([("more", held)])[0], GAIN)[0] == verdict


def test_one_of_several_numbers_of_workers_gains_only_as_surely_as_the_first_of_several() -> None:
    ratio = paired_ratio([(10, each) for each in (9.3, 8.85, 9.4, 8.95, 9.3)])
    assert ratio is not None
    held = relative_to(ratio, GAIN)
    assert held.p is not None and 0.025 < held.p < 0.05
    for family, verdict in ((1, "not reproduced"), (2, OPEN)):
        judged = verdicts([("more", held), ("still more", relative_to(ratio, ratio.value))][:family])
        assert time_claims.no_gain(ratio, judged[0], GAIN)[0] == verdict


_MORE = [
    (1.5, 1.2, "reproduced"),
    (1.2, 1.5, "not reproduced"),
    (0.9, 0.6, "not reproduced"),  # what loses less does not gain more
    (1.2, 1.2, OPEN),
]
"""Two speed-ups, and whether the first is the larger gain."""


@pytest.mark.parametrize(
    ("tensorflow", "torch", "verdict", "gpus", "disturbed"),
    [
        *((*each, 2, False) for each in _MORE),
        (1.5, 1.2, OPEN, 0, False),
        (1.5, 1.2, OPEN, 2, True),
    ],
)
def test_parallel_times_of_the_tomato_report_are_judged_on_gpus_alone(
    tensorflow: float, torch: float, verdict: str, gpus: int, disturbed: bool
) -> None:
    """Serial TensorFlow takes as many times as long as serial PyTorch as PyTorch gains by replicas."""
    run = nothing(TOMATO, gpus=gpus)
    (parallel, serial), (others_parallel, others) = (run.corrected_pair(name) for name in ("pytorch", "tensorflow"))
    seconds = {serial: 4.0, parallel: 4.0 / torch, others: 4.0 * torch, others_parallel: 4.0 * torch / tensorflow}
    found = timed(run.plan, seconds, DISTURBED if disturbed else None)
    judged = {claim.name: claim for claim in judging.judge_all(found)}
    more = judged["parallel_time_more"]
    assert more.verdict == verdict
    assert "tensorflow-data_parallel 1.32, pytorch-data_parallel 1.04 times" in " ".join(more.evidence)
    told = gpus == 2 and not disturbed
    for name, gain in (("serial_time", torch), ("parallel_time_pytorch", torch), ("parallel_time_tensorflow", tensorflow)):
        known = "reproduced" if gain > 1 else "not reproduced"
        assert judged[name].verdict == (known if told else OPEN), name


@pytest.mark.parametrize(
    ("native", "alike", "verdict"),
    [(0.04, 0.04, "reproduced"), (-0.04, -0.04, "not reproduced"), (0.04, -0.04, OPEN)],
)
def test_the_more_accurate_framework_is_it_as_it_was_and_corrected(native: float, alike: float, verdict: str) -> None:
    subject = planned(TOMATO)
    pairs = {
        ("pytorch-serial", "tensorflow-serial"): native,
        tuple(nothing(TOMATO).corrected_pair(name)[1] for name in ("pytorch", "tensorflow")): alike,
    }
    accuracies = {first: [0.8 + lead + seed / 500 for seed in range(5)] for (first, _), lead in pairs.items()}
    accuracies |= {second: [0.8 + (seed * 2 % 5) / 500 for seed in range(5)] for _, second in pairs}
    assert verdict_of(scored(subject, accuracies), "serial_accuracy") == verdict


@pytest.mark.parametrize(
    ("proof", "weights", "is_sound"),
    [("proved", "weights", True), (None, "weights", True), ("not proved", "weights", False), ("proved", "others", False)],
)
def test_nothing_is_told_from_corrected_runs_that_are_not_the_same_training(
    proof: str | None, weights: str, is_sound: bool
) -> None:
    made = comparisons.with_runs(comparisons.repeated(), "pytorch-serial", weights_hash=weights)
    made = comparisons.with_plan(made, proof=proof and ProofRecord(verdict=proof, sentence=""))
    found = LocalResults(planned(TOMATO), {"corrected": comparison_report.judge(made)}, {})
    sure: tuple[judging.Verdict, str] = ("reproduced", "2 times")
    for verdict, words in (judging.unless_unsound(found, sure), judging.unless_disturbed(found, "corrected", ("a",), sure)):
        assert (verdict == "reproduced") == (words == "2 times") == is_sound
    assert judging.unless_disturbed(found, "faithful", ("a",), sure) == sure  # those are meant to differ


@pytest.mark.parametrize(
    ("cores", "within", "beyond", "warned", "verdict"),
    [
        (2, 1.3, 1.0, True, "reproduced"),
        (2, 1.3, 1.3, True, "not reproduced"),
        (2, 1.3, 1.0, False, "not reproduced"),  # PyTorch warns of it
        (2, 1.0, 1.0, True, OPEN),  # the input is not what these runs wait for
        (3, 1.3, 1.3, True, OPEN),  # 2 workers do not fill 3 cores
        (3, 1.3, 1.0, True, OPEN),
        (1, 1.3, 1.0, True, OPEN),
    ],
)
def test_workers_beyond_the_cores_are_judged_where_the_cores_are_full_and_input_is_waited_for(
    cores: int, within: float, beyond: float, warned: bool, verdict: str, tmp_path: Path
) -> None:
    seconds = {"serial": 4.0 * within, "workers-2": 4.0, "workers-4": 4.0 / beyond, "workers-8": 4.0 / beyond}
    for row in seconds:
        for repeat in range(5):
            is_warned = warned and repeat == 1 and row in ("workers-4", "workers-8")
            warning = "UserWarning: Our suggested max number of worker is 2" if is_warned else "nothing"
            trees.write(store.run_folder(tmp_path, row, repeat), {store.LOG_FILE: f"{warning}\n"})
    found = replace(timed(planned(PLANT, cores=cores), seconds), folders={"faithful": tmp_path})
    assert verdict_of(found, "workers_beyond_cores") == verdict


@pytest.mark.parametrize(("workers", "parallel", "verdict"), _MORE)
def test_two_gpus_gain_less_than_the_best_number_of_workers(workers: float, parallel: float, verdict: str) -> None:
    gains = {"workers-2": 0.5 * workers, "workers-4": workers, "workers-8": 0.5 * workers, "data_parallel": parallel}
    seconds = {"serial": 4.0} | {row: 4.0 / gain for row, gain in gains.items()}
    subject = planned(PLANT, gpus=2)
    assert verdict_of(timed(subject, seconds), "two_gpus_gain_less") == verdict
    assert verdict_of(timed(subject, seconds, DISTURBED), "two_gpus_gain_less") == OPEN


@pytest.mark.parametrize(
    ("gain", "cores", "pairs", "disturbed", "verdict"),
    [
        (3.2, 8, 5, False, "reproduced"),
        (1.5, 8, 5, False, OPEN),  # a gain, and not the 3.21 times
        (0.8, 8, 5, False, "not reproduced"),
        (1.0, 8, 5, False, OPEN),
        (3.2, 8, 4, False, OPEN),
        (3.2, 2, 5, False, OPEN),
        (3.2, 8, 5, True, OPEN),
    ],
)
def test_threaded_searches_gain_what_the_report_says_where_the_interval_holds_it(
    gain: float, cores: int, pairs: int, disturbed: bool, verdict: str
) -> None:
    def search(jobs: int, repeat: int) -> TuningSearch:
        seconds = (1 + 0.01 * (repeat - 2)) * gain if jobs == 1 else 1.0
        trial = TunedTrial(
            slot=0,
            number=0,
            fields={"optimizer.momentum": 0.5},
            state="ok",
            value=0.5,
            began_seconds=0.0,
            ended_seconds=seconds,
        )
        return TuningSearch(
            contestant="pytorch", jobs=jobs, repeat=repeat, seed=repeat, cores_a_trial=1, study=f"{jobs}-{repeat}",
            trials=[trial], done=True, cores_of_others=9.0 if disturbed and repeat == jobs == 1 else 0.0,
        )  # fmt: skip

    settings = Tuning(
        jobs=(1, 8), repeats=pairs, frameworks=("pytorch",), space={"optimizer.momentum": {"low": 0.5, "high": 0.9}}
    )
    plan = TuningPlan(
        created_at="2026-01-01T00:00:00+00:00", token="a", settings=settings, budget=8, data_name="leaves", data_hash="a",
        train_examples=128, validation_examples=36, code_hash="b", versions={}, machine={},
    )  # fmt: skip
    searches = [search(jobs, repeat) for jobs in (1, 8) for repeat in range(pairs)]
    tuned = TuningRecord(plan=plan, searches=searches, best_trials={})
    assert verdict_of(replace(nothing(PLANT, cores=cores), tuning=tuned), "threaded_tuning") == verdict


@pytest.mark.parametrize(
    ("slower", "cores", "taken", "tasks", "verdict"),
    [
        (1.0, 4, 0.0, 2, "reproduced"),
        (0.2, 4, 0.0, 2, "not reproduced"),
        (1.0, 2, 0.0, 2, OPEN),  # the report had four cores
        (1.0, 4, 1.5, 2, OPEN),  # other work took some of the two workers' cores
        (1.0, 4, 0.0, 1, OPEN),  # one of the two had nothing to do
    ],
)
def test_engines_scale_by_their_own_pace_alone(slower: float, cores: int, taken: float, tasks: int, verdict: str) -> None:
    # Other work first uses the cores that two workers leave idle.
    others = machine.describe()["logical_cores"] - min(2, machine.available_cores()) + taken

    def row(engine: str, workers: int, seconds: float) -> dict[str, Any]:
        scans = [{"seconds": seconds * (1 + 0.001 * repeat), "cores_of_others": others} for repeat in range(5)]
        made = {"engine": engine, "workers": workers, "status": "ok", "scans": scans, "seconds": seconds, "images": 10}
        return made | {"tasks": tasks}

    scans = [row("dask", 1, 2.0), row("dask", 2, 1.5 * slower), row("pytorch", 1, 8.0), row("pytorch", 2, 4.0)]
    # Repeats are alike to the last digit but for a common drift: any difference is sure.
    here = replace(nothing(PLANT, "smoke", LEAVES, cores=cores), scans=scans)
    assert verdict_of(here, "loaders_scale_better") == verdict
    assert ("(dask x1, dask x2, pytorch x1, pytorch x2)" in table_of(here, "preprocessing").note) == bool(taken)


_SAME = [2.0, 1.5]


@pytest.mark.parametrize(
    ("serial", "workers", "verdict"),
    [
        ({0: _SAME, 1: _SAME}, {0: _SAME, 1: _SAME}, "reproduced"),
        ({0: _SAME, 1: _SAME}, {0: [2.0, 1.6]}, "not reproduced"),
        ({0: _SAME, 1: _SAME}, {0: [2.0, float("nan")]}, "not reproduced"),
        ({0: _SAME, 1: [2.0, 1.51]}, {0: [2.0, 1.6]}, OPEN),  # serial does not repeat itself either
        ({0: _SAME}, {0: [2.0, 1.6]}, OPEN),
        ({}, {0: _SAME}, OPEN),
    ],
)
def test_workers_change_the_losses_only_where_serial_repeats_itself(
    serial: dict[int, list[float]], workers: dict[int, list[float]], verdict: str
) -> None:
    assert verdict_of(with_losses({"serial": serial, "workers-2": workers}), "workers_keep_losses") == verdict


@pytest.mark.parametrize(
    ("parallel", "verdict"),
    [
        ({0: [2.1, 1.6], 1: [2.1, 1.5]}, "reproduced"),
        ({0: [2.0, 1.6], 1: [2.0, 1.6]}, "not reproduced"),  # later on, to where rounding may have grown
        ({0: _SAME, 1: [2.1, 1.6]}, OPEN),
        ({0: _SAME, 1: [2.00001, 1.5]}, "not reproduced"),
    ],
)
def test_a_curve_is_changed_where_its_first_step_is_in_every_repeat(parallel: dict[int, list[float]], verdict: str) -> None:
    found = with_losses({"serial": {0: _SAME, 1: _SAME}, "data_parallel": parallel}, gpus=2)
    assert verdict_of(found, "data_parallel_changes_losses") == verdict


@pytest.mark.parametrize(("others", "verdict"), [(2.0015, "not reproduced"), (2.00001, "reproduced")])
def test_a_curve_is_no_other_one_where_the_frameworks_part_as_far_by_rounding(others: float, verdict: str) -> None:
    nobody = nothing(PLANT, "smoke")
    (parallel, serial), (_, other) = (nobody.corrected_pair(name) for name in launch.FRAMEWORKS)
    found = with_losses({serial: {0: [2.0]}, parallel: {0: [2.01]}, other: {0: [others]}})
    assert verdict_of(found, "data_parallel_changes_losses") == verdict


def test_a_row_of_workers_that_is_missing_keeps_the_verdict_open() -> None:
    found = with_losses({"serial": {0: _SAME}, "workers-2": {0: _SAME}}, "quick")
    verdict, evidence = found.paper.claims["workers_keep_losses"].judge(found)
    assert verdict == OPEN and "workers-4, workers-8" in evidence[0]


def test_a_failed_run_with_workers_is_no_run_without_a_warning() -> None:
    found = nothing(PLANT)
    verdict, evidence = found.paper.claims["workers_beyond_cores"].judge(found)
    assert verdict == OPEN and not any("warn" in each for each in evidence)


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [({}, "reproduced"), (DISTURBED, OPEN), ({"cores_used": None}, OPEN)],
    ids=["quiet", "disturbed", "unwatched"],
)
def test_no_verdict_is_given_on_times_that_other_work_disturbed_or_may_have(changed: dict[str, Any], verdict: str) -> None:
    rows = nothing(PLANT).corrected_pair("pytorch")
    found = timed(planned(PLANT), dict.fromkeys(rows, 1.0), changed)
    judged, words = judging.unless_disturbed(found, "corrected", rows, ("reproduced", "2 times"), "a: ")
    assert judged == verdict and (words == "2 times") == (verdict == "reproduced")
    # Other work makes a ratio anything, so none is said.
    assert ("2 times" in words, words.startswith("a: ")) == (changed != DISTURBED, changed == DISTURBED)


def _classes() -> list[str]:
    return [str(name) for (name,) in paper_file.find_paper(PLANT).table("class_report").rows]


def test_a_class_whose_name_the_report_cuts_off_is_found_by_what_is_left_of_it() -> None:
    whole = "Corn_(maize)___Cercospora_leaf_spot Gray_leaf_spot"
    cut = next(name for name in _classes() if "Cercospora" in name)
    assert cells.local_class_name(cut, [whole, "Corn_(maize)___healthy"]) == whole
    assert cells.local_class_name("Corn", ["Corn_a", "Corn_b"]) == "Corn"


def test_scores_of_classes_are_of_the_split_that_the_reports_are_of() -> None:
    labels = np.array([0, 0, 1, 1, 1])
    right, wrong = (np.eye(2)[each] for each in (labels, 1 - labels))
    validation, test = scores.score(labels, right), scores.score(labels, wrong)
    models = [SimpleNamespace(validation_scores=validation, scores=test, validation=None)]
    evaluated = cast(Any, SimpleNamespace(models=models, class_names=[_classes()[0], "other"]))
    first, second, *_ = table_of(replace(nothing(PLANT, data=LEAVES), evaluation=evaluated), "class_report").rows
    assert (first["recall_here"], first["support_here"], first["support_ratio"], first["open"]) == (1.0, 2, None, None)
    assert second["recall_here"] is None and second["open"] == "not a class of the data here"


def test_a_cell_that_is_open_says_why_and_a_ratio_is_here_over_paper() -> None:
    figures = [(2.0, 3.0, "unused"), (2.0, None, "needs 2 GPUs"), (None, None, "the report has none either")]
    rows = [({"name": reason}, [ComparedFigure("seconds", "seconds", 1, *pair)], reason) for *pair, reason in figures]
    table = cells.comparison_table("x", "X", ["name"], rows)
    assert [row.get("seconds_ratio") for row in table.rows] == [1.5, None, None]
    assert [row["open"] for row in table.rows] == [None, "needs 2 GPUs", None]


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        ((CIFAR10, "--scale", "tiny"), 2, {"field": "--scale", "received": "'tiny'"}),
        ((TOMATO, "--set", "modle=1"), 2, {"field": "modle", "fix": "model"}),
        ((PLANT, "--data", "no/such/folder"), 4, {"names": ["no/such/folder"]}),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_trained(
    words: tuple[str, ...], code: int, parts: dict[str, Any], tmp_path: Path
) -> None:
    check_ended(reproduced(*words, "--out", tmp_path), exit_code=code, **parts)
    assert not (tmp_path / "2-faithful").exists()


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("name", PAPERS)
def test_data_that_are_missing_are_named_with_what_to_fetch_and_where_to_put_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVTWINS_CACHE", str(tmp_path / "cache"))
    done = reproduced(name, "--out", tmp_path / "out")
    check_ended(done, exit_code=4, received="--data", fix=paper_file.find_paper(name).data.fetch, names=[tmp_path / "cache"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", PAPERS)
def test_data_are_found_in_the_cache_by_name(name: str, tmp_path: Path) -> None:
    wanted = paper_file.find_paper(name)
    assert reproduce._cached_data(wanted, tmp_path) is None
    for found in (tmp_path / f"{wanted.data.cache_names[-1]}.zip", tmp_path / f"{wanted.data.cache_names[0]}.tar.gz"):
        found.touch()
        assert reproduce._cached_data(wanted, tmp_path) == str(found)


FIGURES = {
    "cifar10-minixception.yaml": "37731fe71468cf11",
    "plant-disease-classes.csv": "ccb6d71d623c5734",
    "plant-disease-resnet18.yaml": "dc0ef785f6fead06",
    "tomato-two-frameworks.yaml": "b452186287d6a683",
}


def _published(path: Path) -> bytes:
    """What a paper's file takes from the paper: the figures of its tables, those that it states beside them, its claims."""
    if path.suffix == ".csv":
        return path.read_bytes()
    file = yaml.safe_load(path.read_text())
    figures = {name: table.get("figures") for name, table in file["tables"].items()}
    stated = [each["stated"] for each in file["arithmetic"]]
    return json.dumps([figures, stated, {name: each["said"] for name, each in file["claims"].items()}]).encode()


def test_the_published_figures_are_those_that_were_copied() -> None:
    """A slip of the hand in one of them is seen here; they were held against the reports themselves."""
    files = [path for path in sorted(paper_file.FOLDER.iterdir()) if path.suffix in (".yaml", ".csv")]
    assert {path.name: hashlib.sha256(_published(path)).hexdigest()[:16] for path in files} == FIGURES


FILLED = {
    CIFAR10: [
        *((f"table_{number}", 0, "accuracy") for number in (1, 2, 3)),
        *((f"table_{number}", 0, "pytorch_cuda_workers") for number in (4, 5)),
    ],
    TOMATO: [
        *((table, row, key) for table, key in (("table_I", "accuracy"), ("table_II", "loss")) for row in range(4)),
        *(("table_III", row, "seconds") for row in range(2)),
    ],
    PLANT: [
        *((table, 0, "seconds") for table in ("preprocessing", "training", "tuning")),
        *((table, 1, "speedup") for table in ("training", "tuning")),
        ("epochs_serial", 0, "train_loss"),
        *(("final", row, "accuracy") for row in range(3)),
    ],
}
"""Cells that smoke scale fills: (table, row, figure)."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_every_report_is_made_again_at_smoke_scale_by_both_frameworks(name: str, tmp_path: Path) -> None:
    """Its two minutes on two idle cores are for the docs to say; here it has its end."""
    parts = parts_of(name, "--out", tmp_path / "out")
    assert found_in(parts, "claims")
    for table, row, key in FILLED[name]:
        assert found_in(parts, table)[row][f"{key}_here"], (table, row, key)


FOURTH = (launch.PROJECT_ROOT / "docs" / "reproduce.md").read_text().split("```yaml\n")[1].split("```")[0]
"""The paper of the docs page."""


def fourth(folder: Path, *changes: tuple[str, str]) -> Path:
    text = FOURTH
    for change in changes:
        text = text.replace(*change)
    return trees.write(folder, {"fourth.yaml": text}) / "fourth.yaml"


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_scores_on_other_data_have_no_ratio_and_captions_say_what_was_measured_and_which_times_are_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    disturbed = {f"{name}-serial-4": "disturbed in 0" for name in ("pytorch", "tensorflow")}
    monkeypatch.setenv("FAKE_TWIN_BEHAVIOUR", json.dumps(disturbed))
    parts = parts_of(fourth(tmp_path, ('class_pattern: "[0-9]"', 'class_pattern: "[a-j]"')), "--out", tmp_path / "out")
    table = next(table for table in parts["verdicts"]["tables"] if table["name"] == "runs")
    first = table["rows"][0]
    assert first["accuracy_here"] and first["accuracy_paper"] and first["accuracy_ratio"] is None and first["seconds_ratio"]
    assert table["note"] == snapshot
    head = (tmp_path / "out" / "report.md").read_text().split("## ")[0]
    facts = ("scale smoke; begun", reproduce._OTHER_DATA, "For figures: ", "scale quick", "Code: commit")
    assert all(fact in head for fact in facts)


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_a_fourth_paper_is_a_file(tmp_path: Path) -> None:
    file = fourth(tmp_path)
    parts = parts_of(file, "--out", tmp_path / "out")
    assert parts["plan"]["sections"]["What was found wrong in the report"] == ["It is made up."]
    assert [row["verdict"] for row in found_in(parts, "claims")] == [OPEN] * 2  # two repeats
    first, second, third = next(table for table in parts["verdicts"]["tables"] if table["name"] == "runs")["rows"]
    assert first["accuracy_here"] and first["seconds_ratio"] and first["speedup_here"] == 1.0
    assert second["speedup_here"] is None and second["open"] is None
    assert first["accuracy_ratio"]  # the digits are its own data
    assert third["accuracy_here"] is None and f"reproduce {file} --scale smoke" in third["open"]
    assert [row["agrees"] for row in found_in(parts, "arithmetic_fourth")] == ["NO"]  # 100 / 50 is not 3
    report = (tmp_path / "out" / "report.md").read_text()
    assert report.startswith("# Reproduction of: A fourth report\n")
    assert "synthetic" not in report  # its smoke data are the digits


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (("kind: no_accuracy_loss", "kind: no_loss"), {"field": "claims.as_good"}),
        (("than: tensorflow-serial", "than: tensorflow"), {"field": "claims.faster.than", "received": "'tensorflow'"}),
        (("[pytorch-serial, 0.9, 100, 1.0]", "[pytorch-serial, 0.9]"), {"names": ["run, accuracy"]}),
        (("- [tensorflow-serial, 0.8", "- [theano-serial, 0.8"), {"field": "tables.runs"}),
        (
            ("framework: tensorflow", "framework: theano"),
            {"field": "as_it_was.runs.tensorflow-serial.framework", "received": "'theano'"},
        ),
        (("  quick: {", "  tiny: {"), {"names": ["scales.tiny"]}),
        (("model: simple_cnn", "modle: simple_cnn"), {"field": "modle", "received": "'simple_cnn'"}),
        (("model: simple_cnn", ""), {"field": "model", "fix": "Add"}),
        (("column: accuracy,", "column: loss,"), {"field": "curves.0.column", "received": "'loss'"}),
        (("speedup: {heading", "gain: {heading"), {"field": "tables.runs.columns.gain.measure"}),
        (('"[0-9]"', '"("'), {"field": "data.class_pattern", "received": "'('"}),
        (('"[0-9]"', '"((a{999}){999}){999}"'), {"field": "data.class_pattern"}),
        (("figures:", "csv: ../secret.csv\n    figures:"), {"field": "tables.runs.csv"}),
    ],
)
def test_a_wrong_field_of_a_paper_is_named_with_its_file(wrong: tuple[str, str], parts: dict[str, Any], tmp_path: Path) -> None:
    done = reproduced(file := fourth(tmp_path, wrong), "--out", tmp_path / "out")
    check_ended(done, **{**parts, "names": [file, *parts.get("names", [])]})


FROM_CSV = ("figures:", "csv: figures.csv\n    figures:")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "figures.csv"),
        (b"\xff", "decode"),
        (b"run,accuracy,seconds,speedup\npytorch-serial,[[[[,1,1\n", "node content"),
        (b"run,accuracy,seconds,speedup\npytorch-serial,{a: 1},1,1\n", "figures.0.1"),
        (b"run,accuracy,seconds,speedup\n" + b"x" * 200_000 + b",1,1,1\n", "limit"),
    ],
    ids=range(5),
)
def test_a_wrong_file_of_figures_is_refused_with_the_reason(content: bytes, fault: str, tmp_path: Path) -> None:
    file = fourth(tmp_path, FROM_CSV)
    trees.write(tmp_path, {"figures.csv": content})
    check_ended(reproduced(file, "--out", tmp_path / "out"), names=[file, fault])


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_figures_in_a_pipe_or_an_endless_file_are_refused(name: str, tmp_path: Path) -> None:
    file = fourth(tmp_path, FROM_CSV)
    fault = hostile_files.put(name, tmp_path / "figures.csv")
    with hostile_files.soon():
        done = reproduced(file, "--out", tmp_path / "out")
    assert done.exit_code == 2 and f"figures.csv {fault}" in done.stderr


def test_every_mistake_of_the_exercise_is_one_that_can_be_planted() -> None:
    source = (exercise.PROJECT / "tests" / "planted" / "defects_pytorch.py").read_text()
    planted = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert {defect for _, defect in exercise.DEFECTS} <= planted
    assert all(parity_settings.setting(name) for name, _ in exercise.DEFECTS)


def test_a_field_that_the_caller_sets_has_the_last_word_and_leaves_the_others_of_its_group_as_they_are() -> None:
    set_by_caller = {"data.image_size": 32, "optimizer.learning_rate": 0.5, "hang_seconds": 7.0}
    before, after = (planned(TOMATO, values=spec.overlay({}, fields)).faithful[0].rows for fields in ({}, set_by_caller))
    for was, now in zip(before, after, strict=True):
        assert now.spec.data == comparisons.with_fields(was.spec.data, image_size=32)
        assert now.spec.optimizer == comparisons.with_fields(was.spec.optimizer, learning_rate=0.5)
        assert now.spec.hang_seconds == 7.0


def test_what_the_caller_sets_and_other_data_are_said_to_be_not_the_reports(snapshot: SnapshotAssertion) -> None:
    subject = planned(PLANT, "quick", "leaves:classes=4", 1, spec.overlay({}, {"data.limit": 64}))
    facts = {"data_name": "leaves", "class_names": ["a", "b", "c", "d"], "train_examples": 60}
    comparison = comparisons.with_fields(PLAN, **facts)
    assert [subject.deviations[0], *reproduce._departures(subject, comparison)] == snapshot
    cell = LocalResults(subject, {}, {}).why_not_run("data_parallel")
    assert cell.endswith("--scale quick --data leaves:classes=4 --set data.limit=64")


def test_a_folder_of_another_scale_is_refused_in_few_words() -> None:
    there, asked = {"scale": "smoke", "rows": [{"model": "x" * 50}] * 9}, {"scale": "quick", "rows": []}
    many = {f"field{number}": number for number in range(9)}
    said = store.describe_differences(there | many, asked)
    assert said is not None and said.startswith('scale is "smoke" there, asked for: "quick"; rows is [{"model"')
    assert len(said) < 700 and said.endswith("and 6 more")


@pytest.mark.parametrize(("scale", "confirmed"), [("smoke", 0), ("quick", 0), ("full", 3)])
def test_the_first_screen_counts_the_claims_and_tells_apart_what_a_smaller_scale_shows(
    screens: Screens, scale: Any, confirmed: int
) -> None:
    subject = planned(TOMATO, scale, "tomato")
    kinds = ["reproduced", "not reproduced", OPEN, "reproduced", "contradicted by the paper's own table"]
    told = [claim.said for claim in subject.paper.claims.values()]
    rows: list[Any] = [{"claim": said, "verdict": kinds[place % len(kinds)]} for place, said in enumerate(told)]
    columns = (Column("claim", "claim"), Column("verdict", "verdict"))
    steps = {"plan": [], reproduce._VERDICTS: [Table("claims", "Claims", columns, rows)]}
    done = [
        FinishedStep(part=Section(name=name, title=name, tables=tables), passed=PassedValues(), seconds=60.0, exit_code=0)
        for name, tables in steps.items()
    ]
    record = StepsRecord(
        kind="reproduction", created_at="2026-01-01T00:00:00+00:00", argv=["reproduce"], settings={}, code_hash="a",
        machine={"processor": "AMD EPYC 7B13"},
    )  # fmt: skip
    shown = screens(reproduce._report(subject, record, done, 4))
    assert f"7 claims: {confirmed} confirmed" in shown and "1 not told" in shown and "by its own table" in shown
    # A verdict of a smaller scale is never called confirmed or refuted.
    assert ("+ confirmed" in shown) == (scale == "full") != ("+ at toy scale only" in shown)
