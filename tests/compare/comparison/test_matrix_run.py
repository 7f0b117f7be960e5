"""`run` with several models, data or batch sizes: one folder, one report."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compare import api
from compare.cli.errors import FolderError
from compare.reporting import matrix_report, plots
from compare.results import cells, signing, store
from compare.running import launch
from tests.compare.conftest import behave, write_empty
from tests.support import comparisons, trees
from tests.support.command_line import Ended, convtwins, convtwins_json
from tests.support.refusals import check_ended

QUICK = ("run", "--frameworks", "left,right", "--cores", "1", "--no-proof", "--modes", "serial")
CELLS = ["simple_cnn-batch_size_32", "simple_cnn-batch_size_64", "resnet18-batch_size_32", "resnet18-batch_size_64"]
AXES = ("--model", "simple_cnn,resnet18", "--batch-size", "32,64")


def matrix(out: Path, *arguments: object) -> Ended:
    return convtwins(*QUICK, *AXES, "--out", out, *arguments)


def table(printed: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return next(table["rows"] for table in printed["tables"] if table["name"] == name)


@pytest.mark.drawn
def test_a_matrix_is_one_folder_and_its_report_begins_with_who_wins_where(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, draw = tmp_path / "out", plots.write_all

    def write_all(drawings: Mapping[str, plots.Drawing], folder: Path) -> list[Path]:
        """Those of the comparisons are drawn in other tests."""
        return (draw if "wins" in drawings else write_empty)(drawings, folder)

    fake_twins.setattr(plots, "write_all", write_all)
    printed = convtwins_json(*QUICK, "--model", "simple_cnn,resnet18", "--out", out, "--repeats", 5)
    assert printed["tables"][0]["name"] == "who_wins_where"
    found = table(printed, "who_wins_where")
    assert [(each["model"], each["winner"]) for each in found] == [("simple_cnn", "left"), ("resnet18", "left")]
    assert all(each["times"]["value"] > 1.5 and each["times"]["n"] == 5 for each in found)
    assert {each["family"] for each in printed["verdicts"]} == {2}
    for name in ("simple_cnn", "resnet18"):
        assert store.read_plan(out / name).rows[0].spec.model == name
        assert (out / name / "report.html").exists()
    html = (out / "report.html").read_text("utf-8")
    assert html.index("Who wins where") < html.index(">Comparison<") and "left is faster in 2 of 2 comparisons" in html
    assert {path.name for path in (out / "tables").glob("who*")} == {f"who_wins_where.{form}" for form in ("csv", "md", "tex")}
    assert printed == json.loads((out / "results.json").read_text())
    files = [path for cell in ("simple_cnn", "resnet18") for path in (out / cell).glob("runs/*/result.json")]
    files += [out / cell / store.PLAN_FILE for cell in ("simple_cnn", "resnet18")]
    assert printed["made_from"] == {path.relative_to(out).as_posix(): signing.sha256(path) for path in files}
    assert len(files) == 22 and "22 files, SHA-256 " in html
    shown = api.load(out)
    assert isinstance(shown, api.Matrix)
    assert list(shown.cells) == ["simple_cnn", "resnet18"] and list(shown.who_wins_where.winner) == ["left"] * 2


def test_the_verdicts_of_a_matrix_allow_for_the_number_of_its_comparisons(tmp_path: Path) -> None:
    """Planted: twenty cells without a difference beside one whose p is small among its own few comparisons."""
    rows = comparisons.repeated().comparison.rows
    plan = cells.MatrixPlan.model_validate(
        {
            "created_at": "2026-01-01T00:00:00+00:00",
            "argv": ["run"],
            "code_hash": "0",
            "machine": {},
            "settings": {"repeats": 5},
        }
        | {"cells": [{"name": f"c{n}", "labels": {"data": str(n)}, "rows": rows} for n in range(21)]}
    )
    (tmp_path / cells.PLAN_FILE).touch()
    for number, cell in enumerate(plan.cells):
        stored = comparisons.repeated()
        for repeat, factor in enumerate(comparisons.NOISE):
            seconds = 4.0 * factor * (1.0 if number else 1.02) * (0.995, 1.005)[repeat % 2]
            stored.runs[rows[2].id][repeat] = comparisons.good(rows[2], seconds, repeat)
        comparisons.stored_in(stored, tmp_path / cell.name)
    store.records.write(tmp_path / cells.PLAN_FILE, plan)
    read = matrix_report.read(tmp_path)
    alone = read.compared["c0"].findings.verdicts[0]
    together = matrix_report.cell_verdicts(read)[0].judged
    assert together.ratio == alone.ratio and together.family == 42 > alone.family
    assert (alone.verdict, together.verdict) == ("above", "no difference shown")
    sections = matrix_report.report(read, tmp_path).sections
    assert not any("is faster" in sentence for each in sections for _, sentences in each.findings for sentence in sentences)


def test_a_comparison_that_is_refused_is_said_and_the_others_go_on(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = convtwins(*QUICK, "--data", f"{tmp_path / 'nowhere'},digits", "--out", out, "--json")
    *_, why = lines = done.stderr.splitlines()
    assert done.exit_code == 1 and "1 comparison" in why and convtwins("report", out).stderr == f"{why}\n"
    failure = done.json["cells"]["nowhere"]["failure"]
    assert f"nowhere is left out: {failure}" in lines
    assert [row["state"] for row in table(done.json, "cells")] == [failure, "ok"]
    assert "nowhere" in done.json["findings"]["Cautions"][0] and len(table(done.json, "who_wins_where")) == 1


def test_a_matrix_of_which_nothing_can_begin_is_refused_like_a_comparison(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = convtwins(*QUICK, "--data", f"{tmp_path / 'a'},{tmp_path / 'b'}", "--out", tmp_path / "out")
    assert done.exit_code == 4 and not (tmp_path / "out" / cells.PLAN_FILE).exists()


def test_a_run_that_fails_makes_the_matrix_fail_and_no_other_run(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__serial__1="crash")
    done = matrix(tmp_path / "out", "--json")
    assert done.exit_code == 1
    assert [row["state"] for row in table(done.json, "cells")] == ["1 failed"] * 4
    assert done.stderr.splitlines()[-1].count(": 1 row failed") == 4


def test_an_interrupted_matrix_goes_on_where_it_was(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    behave(fake_twins, right__serial__1="ctrl-c")
    done = matrix(out)
    assert done.exit_code == 130 and f"run --resume {out}" in done.stderr and "Exit code" not in done.stderr
    assert "not run yet" in (out / "report.md").read_text()
    kept = out / CELLS[0] / "runs" / "left-serial-1core-r0" / "result.json"
    assert list(out.glob("*/runs/*/result.json")) == [kept, kept.parents[1] / "right-serial-1core-r0" / "result.json"]
    written = kept.stat().st_mtime_ns
    behave(fake_twins)
    result = convtwins_json("run", "--resume", out)
    assert len(table(result, "who_wins_where")) == 4 and kept.stat().st_mtime_ns == written
    files = {path: path.stat().st_mtime_ns for path in out.glob("*/runs/*/result.json")}
    assert len(files) == 9 and len(list(out.glob("*/runs/*.attempt1"))) == 1
    matrix(out).succeeded()
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/runs/*/result.json")} == files


def test_another_matrix_or_a_comparison_is_refused_in_its_folder(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    matrix(out).succeeded()
    check_ended(convtwins(*QUICK, "--batch-size", "32,64", "--out", out), names=[out, "another matrix"])
    check_ended(convtwins(*QUICK, "--out", out), names=[out, "no comparison"])
    resumed = convtwins("run", "--resume", out, "--model", "simple_cnn")
    check_ended(resumed, field="--resume", names=["--model", "--repeats", "--restarts", "--until-decided", "--on"])
    with pytest.raises(FolderError):
        store.read(out)


def test_a_matrix_goes_on_in_no_folder_that_a_link_leads_to(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, other = tmp_path / "out", trees.write(tmp_path / "other", {})
    matrix(out).succeeded()
    shutil.rmtree(out / CELLS[0])
    (out / CELLS[0]).symlink_to(other)
    check_ended(convtwins("run", "--resume", out), names=[out / CELLS[0], "link"])
    assert not list(other.iterdir())


def test_report_makes_it_again_and_writes_elsewhere(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    matrix(out).succeeded()
    (out / "report.md").unlink()
    winners = table(convtwins_json("report", out), "who_wins_where")
    assert (out / "report.md").exists()
    assert [f"{row['model']}-batch_size_{row['batch size']}" for row in winners] == CELLS
    assert all(store.read_plan(out / name).rows[0].spec.model == name.partition("-")[0] for name in CELLS)
    assert list(api.load(out).cells) == CELLS
    convtwins("report", out, "--out", tmp_path / "b").succeeded()
    assert "Who wins where" in (tmp_path / "b" / "report.html").read_text()
    check_ended(convtwins("report", out, out / CELLS[0]), names=["matrix"])
    launch.FRAMEWORKS["left"] = "no_such_module"  # it would be asked next
    check_ended(matrix(out, "--seed", 7, "--dry-run"), names=[out, "another matrix", "seed", "0"])


def test_a_dry_run_adds_up_the_cells(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_twins.chdir(tmp_path)
    printed = convtwins_json(*QUICK, *AXES, "--repeats", 3, "--dry-run")
    assert list(printed["cells"]) == CELLS and printed["runs"] == 4 * 2 * 3
    assert printed["seconds"] == pytest.approx(sum(each["seconds"] for each in printed["cells"].values()))
    assert list(tmp_path.iterdir()) == []


def test_a_spec_file_may_hold_lists_and_an_option_may_have_one_value(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    optimizers = [{"name": "sgd", "learning_rate": 0.1}, {"name": "adam", "learning_rate": 0.001}]
    values = {"model": ["simple_cnn", "resnet18"], "optimizer": optimizers}
    file, out = trees.write(tmp_path, {"run.yaml": values}) / "run.yaml", tmp_path / "out"
    convtwins(*QUICK, "--spec", file, "--model", "simple_cnn", "--out", out).succeeded()
    assert [cell.name for cell in cells.read(out).cells] == ["sgd", "adam"]
    assert store.read_plan(out / "adam").rows[0].spec.optimizer.learning_rate == 0.001
    done = convtwins("parity", "--frameworks", "left", "--spec", file)
    check_ended(done, field="run", received="a list for model, optimizer")
