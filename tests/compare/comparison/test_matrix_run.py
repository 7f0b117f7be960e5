"""`run` with several models, data or batch sizes: one folder, one report."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from compare import api
from compare.comparison import comparison_plan, run
from compare.core.errors import FolderError
from compare.execution import cells, executor, signing, store
from compare.reporting import matrix_report, plots
from tests.compare.conftest import behave, write_empty
from tests.support import comparisons
from tests.support.command_line import convtwins

QUICK = ("--frameworks", "left,right", "--cores", "1", "--no-proof", "--modes", "serial")
CELLS = ["simple_cnn-batch_size_32", "simple_cnn-batch_size_64", "resnet18-batch_size_32", "resnet18-batch_size_64"]
AXES = ("--model", "simple_cnn,resnet18", "--batch-size", "32,64")


def matrix(out: Path, *arguments: object) -> Any:
    return convtwins("run", *QUICK, *AXES, "--out", out, *arguments)


def table(printed: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return next(each["rows"] for each in printed["tables"] if each["name"] == name)


@pytest.mark.drawn
def test_a_matrix_is_one_folder_and_its_report_begins_with_who_wins_where(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, draw = tmp_path / "out", plots.write_all

    def write_all(drawings: Mapping[str, plots.Drawing], folder: Path) -> list[Path]:
        """Those of the comparisons are drawn in other tests."""
        return (draw if "wins" in drawings else write_empty)(drawings, folder)

    fake_twins.setattr(plots, "write_all", write_all)
    done = convtwins("run", *QUICK, "--model", "simple_cnn,resnet18", "--out", out, "--repeats", 5, "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
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
    plan = cells.MatrixPlan.model_validate(
        {"created_at": "2026-01-01T00:00:00+00:00", "argv": ["run"], "code_hash": "0", "machine": {}, "repeats": 5}
        | {
            "cells": [
                {"name": f"c{n}", "labels": {"data": str(n)}, "rows": comparisons.repeated().comparison.rows} for n in range(21)
            ]
        }
    )
    (tmp_path / cells.PLAN_FILE).touch()
    noise = (1.0, 1.02, 0.98, 1.01, 0.99)
    for number, cell in enumerate(plan.cells):
        stored = comparisons.repeated()
        for repeat, factor in enumerate(noise):
            seconds = 4.0 * factor * (1.0 if number else 1.02) * (0.995, 1.005)[repeat % 2]
            row = stored.comparison.rows[2]
            stored.runs[row.id][repeat] = comparisons.good(row, seconds, repeat)
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
    done = convtwins("run", *QUICK, "--data", f"{tmp_path / 'nowhere'},digits", "--out", out, "--json")
    assert done.exit_code == 1
    assert "nowhere is left out: " in done.stderr
    why = "Exit code 1: 1 comparison could not be run. The report says more.\n"
    assert done.stderr.endswith(why) and convtwins("report", out).stderr == why
    printed = json.loads(done.stdout)
    assert [each["state"] for each in table(printed, "cells")] == [printed["cells"]["nowhere"]["failure"], "ok"]
    assert "nowhere" in printed["findings"]["Cautions"][0] and len(table(printed, "who_wins_where")) == 1


def test_a_matrix_of_which_nothing_can_begin_is_refused_like_a_comparison(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ",".join(str(tmp_path / name) for name in ("a", "b"))
    done = convtwins("run", *QUICK, "--data", words, "--out", tmp_path / "out")
    assert done.exit_code == 4 and not (tmp_path / "out" / cells.PLAN_FILE).exists()
    done = convtwins("run", *QUICK, *AXES, "--out", tmp_path / "other", "--epochs", "-1")
    assert done.exit_code == 2 and "epochs is refused" in done.stderr and not (tmp_path / "other").exists()


def test_a_run_that_fails_makes_the_matrix_fail_and_no_other_run(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    behave(fake_twins, left__serial__1="crash")
    done = matrix(tmp_path / "out", "--json")
    assert done.exit_code == 1
    assert [each["state"] for each in table(json.loads(done.stdout), "cells")] == ["1 failed"] * 4
    assert done.stderr.count(": 1 row failed or did not end") == 4 and done.stderr.endswith(". The report says more.\n")


def test_an_interrupted_matrix_goes_on_where_it_was(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, ran, execute = tmp_path / "out", list[str](), executor.execute

    def interrupted(row: Any, repeat: int, folder: Path, *rest: Any, **named: Any) -> Any:
        if len(ran) == 3:
            raise run.Interrupted(2)
        ran.append(folder.name)
        return execute(row, repeat, folder, *rest, **named)

    with fake_twins.context() as patch:
        patch.setattr(executor, "execute", interrupted)
        done = matrix(out)
    assert done.exit_code == 130 and f"run --resume {out}" in done.stderr and "Exit code" not in done.stderr
    assert "not run yet" in (out / "report.md").read_text()
    ran.clear()
    fake_twins.setattr(
        executor,
        "execute",
        lambda row, repeat, folder, *rest, **named: (ran.append(folder.name), execute(row, repeat, folder, *rest, **named))[1],
    )
    done = convtwins("run", "--resume", out, "--json")
    assert done.exit_code == 0, done.output
    assert ran == [CELLS[1], *[name for name in CELLS[2:] for _ in "ab"]]
    assert len(table(json.loads(done.stdout), "who_wins_where")) == 4
    again = matrix(out)
    assert again.exit_code == 0 and len(ran) == 5


def test_another_matrix_or_a_comparison_is_refused_in_its_folder(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert matrix(out).exit_code == 0
    other = convtwins("run", *QUICK, "--batch-size", "32,64", "--out", out)
    assert other.exit_code == 2 and "holds another matrix" in other.stderr
    single = convtwins("run", *QUICK, "--out", out)
    assert single.exit_code == 2 and "belong to no comparison" in single.stderr
    assert "--resume takes all settings" in convtwins("run", "--resume", out, "--model", "simple_cnn").stderr
    with pytest.raises(FolderError):
        store.read(out)


def test_a_matrix_goes_on_in_no_folder_that_a_link_leads_to(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    assert matrix(out).exit_code == 0
    shutil.rmtree(out / CELLS[0])
    other.mkdir()
    (out / CELLS[0]).symlink_to(other)
    done = convtwins("run", "--resume", out)
    assert done.exit_code == 2 and f"{out / CELLS[0]} is a link" in done.stderr and not list(other.iterdir())


def test_report_makes_it_again_and_writes_elsewhere(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert matrix(out).exit_code == 0
    (out / "report.md").unlink()
    again = convtwins("report", out, "--json")
    assert again.exit_code == 0 and (out / "report.md").exists()
    found = table(json.loads(again.stdout), "who_wins_where")
    assert [f"{each['model']}-batch_size_{each['batch size']}" for each in found] == CELLS
    assert all(store.read_plan(out / name).rows[0].spec.model == name.partition("-")[0] for name in CELLS)
    assert list(api.load(out).cells) == CELLS
    done = convtwins("report", out, "--out", tmp_path / "b")
    assert done.exit_code == 0 and "Who wins where" in (tmp_path / "b" / "report.html").read_text()
    done = convtwins("report", out, out / CELLS[0])
    assert done.exit_code == 2 and "A matrix has no report beside another." in done.stderr
    fake_twins.setattr(comparison_plan, "build_plan", pytest.fail)
    done = convtwins("run", *QUICK, *AXES, "--seed", 7, "--dry-run", "--out", out)
    assert done.exit_code == 2 and "holds another matrix (cells." in done.stderr and "seed is 0 there" in done.stderr


def test_a_dry_run_adds_up_the_cells(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_twins.chdir(tmp_path)
    done = convtwins("run", *QUICK, *AXES, "--repeats", 3, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert list(printed["cells"]) == CELLS and printed["runs"] == 4 * 2 * 3
    assert printed["seconds"] == pytest.approx(sum(each["seconds"] for each in printed["cells"].values()))
    assert list(tmp_path.iterdir()) == []


def test_a_spec_file_may_hold_lists_and_an_option_may_have_one_value(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    optimizers = [{"name": "sgd", "learning_rate": 0.1}, {"name": "adam", "learning_rate": 0.001}]
    file.write_text(yaml.safe_dump({"model": ["simple_cnn", "resnet18"], "optimizer": optimizers}))
    out = tmp_path / "out"
    done = convtwins("run", *QUICK, "--spec", file, "--model", "simple_cnn", "--out", out)
    assert done.exit_code == 0, done.output
    assert [cell.name for cell in cells.read(out).cells] == ["sgd", "adam"]
    assert store.read_plan(out / "adam").rows[0].spec.optimizer.learning_rate == 0.001
    refused = convtwins("layers", "--frameworks", "left", "--spec", file)
    assert refused.exit_code == 2 and "Only run takes several values. Received: a list for model, optimizer." in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch-size", "32,x"), "--batch-size must be whole numbers of at least 1. Received: 'x'."),
        (("--batch-size", "0"), "--batch-size must be whole numbers of at least 1. Received: '0'."),
        (("--model", "simple_cnn,simple_cnn"), "model must list different values."),
        (("--optimizer", "sgd,lion"), "--optimizer names something unknown. Received: 'lion'."),
        (
            ("--precision", "float32,float16"),
            "precision is refused: Input should be 'float32' or 'float64'. Received: 'float16'.",
        ),
    ],
)
def test_a_value_that_no_cell_can_have_is_refused_by_name(
    fake_twins: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    done = convtwins("run", *QUICK, *words)
    assert done.exit_code == 2 and said in " ".join(done.stderr.split()), done.output
