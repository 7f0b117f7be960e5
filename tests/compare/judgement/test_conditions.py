"""Planted: pairs of rows whose conditions, tuning budgets or data differ. Each verdict must name what differs."""

from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.artifacts.schema import RunResult
from compare.execution.best_switches import SwitchSearchBudget
from compare.execution.contestants import Contestant
from compare.execution.matrix import Row
from compare.execution.store import StoredComparison
from compare.judgement import conditions
from compare.judgement.findings import findings
from compare.judgement.row_figures import NOT_COMPARABLE
from compare.judgement.summary import summarize
from compare.reporting import comparison_report, comparison_tables, side_by_side, tables
from compare.reporting.comparison_report import JudgedComparison
from tests.support import comparisons

EQUAL = comparisons.conditions(comparisons.row("pytorch"))
BUDGET = SwitchSearchBudget(switches=None, rounds=5, steps=30, configurations=21)


def _pair(
    ours: dict[str, str], theirs: dict[str, str], seconds: tuple[float, float] = (4.0, 2.0), suffix: str = "", **fields: Any
) -> StoredComparison:
    """A serial row of each framework, with these conditions and seconds per epoch."""
    rows: list[Row] = []
    runs: dict[str, dict[int, RunResult]] = {}
    for name, held, own in zip(("pytorch", "tensorflow"), (ours, theirs), seconds, strict=True):
        row = comparisons.row(name)
        row = row.model_copy(update={"id": f"{row.id}{suffix}", "spec": row.spec.with_fields(**fields)})
        rows.append(row)
        runs[row.id] = {
            repeat: comparisons.good(row, own + 0.01 * repeat, repeat).model_copy(update={"conditions": held})
            for repeat in range(5)
        }
    return StoredComparison(comparison=comparisons.comparison(rows, 5), runs=runs, set_aside=[])


NEITHER = "Unequal conditions (neither closed nor open division)"


def _with_budgets(stored: StoredComparison, *budgets: SwitchSearchBudget | None) -> StoredComparison:
    rows = [row.model_copy(update={"budget": each}) for row, each in zip(stored.comparison.rows, budgets, strict=True)]
    return stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"rows": rows})})


def _verdict(stored: StoredComparison) -> str:
    (said,) = findings(stored, summarize(stored)).contestants
    return said


def _division(stored: StoredComparison) -> str:
    """The line of the division, which alone says why it is this one."""
    said = findings(stored, summarize(stored)).divisions[0]
    kind, rest = said.removesuffix(".").split(" in serial, 2 cores", 1)
    assert _verdict(stored).lower().endswith(f", {kind.lower()}.")
    return kind + rest


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("layout", "NHWC", "memory layout (NCHW against NHWC)"),
        ("precision", "float32, layers in bfloat16", "precision (float32 against float32, layers in bfloat16)"),
        ("graph", "graph", "graph class (eager against graph)"),
        ("mechanism", "MirroredStrategy", "mechanism (one replica against MirroredStrategy)"),
        ("allocator", "the system's default", "allocator (keeps freed pages against the system's default)"),
        ("deterministic", "enforced", "determinism (not enforced against enforced)"),
    ],
)
def test_a_verdict_names_the_condition_that_differs(name: str, value: str, said: str) -> None:
    stored = _pair(EQUAL, EQUAL | {name: value})
    assert _division(stored) == f"{NEITHER}: {said}"


def test_a_mode_whose_learning_rate_is_scaled_has_another_condition_than_serial_and_the_table_shows_it() -> None:
    rows = [comparisons.row("pytorch"), comparisons.row("pytorch", "data_parallel")]
    for scaling, rates, division in (("none", ["0.05", "0.05"], "closed"), ("linear", ["0.05", "0.1"], "neither")):
        scaled = [row.model_copy(update={"spec": row.spec.with_fields(schedule={"scaling": scaling})}) for row in rows]
        runs = {row.id: {0: comparisons.good(row, 4.0)} for row in scaled}
        stored = StoredComparison(comparison=comparisons.comparison(scaled), runs=runs, set_aside=[])
        assert [conditions.row_conditions(stored, row)["learning_rate"] for row in scaled] == rates
        found = conditions.division(stored, *scaled, conditions.MODE_CONDITIONS)
        assert found.kind == division and found.detail == ("learning rate (0.05 against 0.1)" if scaling == "linear" else "")
        (table,) = comparison_tables.conditions_table(summarize(stored))
        shown = [column.heading for column in table.columns if column.terminal]
        assert ("learning rate" in shown) == (scaling == "linear")


def test_the_heading_names_shared_settings_that_are_not_the_default_and_none_of_those_that_a_mode_sets() -> None:
    rows = [comparisons.row("pytorch"), comparisons.row("pytorch", "data_parallel")]
    fields: dict[str, Any] = {"schedule": {"scaling": "linear"}, "optimizer": {"native": True}}
    rows = [row.model_copy(update={"spec": row.spec.with_fields(**fields)}) for row in rows]
    for own, expected in (
        (rows, ['Other than by default: optimizer.native true, schedule.scaling "linear"']),
        ([comparisons.row("pytorch"), comparisons.row("pytorch", "pipeline")], []),
    ):
        stored = StoredComparison(
            comparison=comparisons.comparison(own), runs={row.id: {0: comparisons.good(row, 4.0)} for row in own}, set_aside=[]
        )
        summaries = summarize(stored)
        said = comparison_report.facts(JudgedComparison(stored, summaries, findings(stored, summaries)))
        assert [each for each in said if each.startswith("Other than")] == expected


def test_a_verdict_names_threads_that_differ() -> None:
    stored = _pair(EQUAL, EQUAL)
    first = stored.runs["tensorflow-serial-2"]
    for repeat, run in first.items():
        first[repeat] = run.model_copy(update={"threads": {"intra_op": 4, "inter_op": 2}})
    assert _division(stored) == f"{NEITHER}: threads (2 + 1 against 4 + 2)"


@pytest.mark.parametrize(
    ("switch", "value", "said"),
    [
        ("onednn", False, "kernel library (oneDNN against without oneDNN)"),
        ("optimizer_kernel", "loop", "kernels of the update (fused against an operation at a time)"),
        ("optimizer_kernel", "foreach", "kernels of the update (fused against all variables at once)"),
        ("data_on", "device", "place of the data (host against device)"),
        ("cudnn_autotune", False, "kernel search (cuDNN tries its algorithms against cuDNN's first choice)"),
    ],
)
def test_a_verdict_names_the_switch_of_kernels_that_differs(switch: str, value: Any, said: str) -> None:
    stored = _pair(EQUAL, EQUAL)
    for runs in stored.runs.values():
        runs |= {repeat: run.model_copy(update={"device": "Some GPU"}) for repeat, run in runs.items()}
    other = stored.runs["tensorflow-serial-2"]
    other |= {repeat: run.model_copy(update={"switches": run.switches | {switch: value}}) for repeat, run in other.items()}
    assert _division(stored) == f"{NEITHER}: {said}"


@pytest.mark.parametrize("named", [{}, {"graph": True}])
def test_conditions_that_the_user_has_set_apart_are_not_to_be_evened_out(named: dict[str, Any]) -> None:
    stored = _pair(EQUAL, EQUAL | {"graph": "graph"})
    apart = [Contestant(name="tensorflow", twin="tensorflow", switches=named)]
    stored = stored.model_copy(update={"comparison": stored.comparison.model_copy(update={"contestants": apart})})
    hints = [said for said in findings(stored, summarize(stored)).divisions if "--switches closed" in said]
    assert len(hints) == (0 if named else 1)


def test_what_a_device_or_a_mode_does_not_use_is_no_condition() -> None:
    stored = _pair(EQUAL, EQUAL)  # on a CPU
    other = stored.runs["tensorflow-serial-2"]
    other |= {
        repeat: run.model_copy(update={"switches": run.switches | {"cudnn_autotune": False}}) for repeat, run in other.items()
    }
    assert _verdict(stored).endswith("equal conditions (closed division).")
    served = _pair(EQUAL, EQUAL, mode="parameter_server", replicas=2)
    for name, kernel in (("pytorch", {"optimizer_kernel": "loop"}), ("tensorflow", {})):
        runs = served.runs[f"{name}-serial-2"]
        runs |= {repeat: run.model_copy(update={"switches": run.switches | kernel}) for repeat, run in runs.items()}
    assert _verdict(served).endswith("equal conditions (closed division).")


def test_equal_conditions_are_the_closed_division_under_any_level() -> None:
    assert _verdict(_pair(EQUAL, EQUAL)).endswith(
        "serial on 2 cores, switches usual, on Some CPU, equal conditions (closed division)."
    )


def test_results_without_conditions_are_in_no_division() -> None:
    assert _division(_pair({}, {})) == "Conditions that are not known: the conditions were not recorded"
    (table,) = comparison_tables.conditions_table(summarize(_pair(EQUAL, {})))
    assert table.rows[1]["layout"] == table.rows[1]["mechanism"] == "not recorded"
    assert comparison_tables.conditions_table(summarize(_pair({}, {}))) == []


def test_the_best_of_both_are_open_if_the_tuning_budget_was_the_same() -> None:
    stored = _pair(EQUAL, EQUAL | {"layout": "NHWC"}, switches="best")
    assert (
        _division(_with_budgets(stored, BUDGET, BUDGET))
        == "Each one's best switches (open division): best of all switches, 5 rounds of 30 steps"
    )
    fewer = BUDGET.model_copy(update={"configurations": 14})
    tried = "(pytorch 21, tensorflow 14 configurations)"
    assert (
        _division(_with_budgets(stored, BUDGET, fewer))
        == f"Each one's best switches (open division): best of all switches, 5 rounds of 30 steps {tried}"
    )


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("rounds", 2, "all switches, 2 rounds of 30 steps"),
        ("steps", 10, "all switches, 5 rounds of 10 steps"),
        ("switches", ["graph"], "graph, 5 rounds of 30 steps"),
    ],
)
def test_another_tuning_budget_is_said(field: str, value: Any, said: str) -> None:
    other = BUDGET.model_copy(update={field: value})
    stored = _with_budgets(_pair(EQUAL, EQUAL, switches="best"), BUDGET, other)
    budgets = f"pytorch with all switches, 5 rounds of 30 steps; tensorflow with {said}"
    assert _division(stored) == f"{NEITHER}: tuned with different budgets ({budgets})"


def test_a_budget_that_was_not_recorded_makes_no_open_division() -> None:
    stored = _with_budgets(_pair(EQUAL, EQUAL | {"layout": "NHWC"}, switches="best"), BUDGET, None)
    assert f"{NEITHER}: memory layout" in _division(stored)


def _together(*stored: StoredComparison) -> StoredComparison:
    """One comparison of all their rows."""
    rows = [row for each in stored for row in each.comparison.rows]
    runs = {row_id: runs for each in stored for row_id, runs in each.runs.items()}
    return StoredComparison(comparison=comparisons.comparison(rows, 5), runs=runs, set_aside=[])


def _divisions(winner_of_best: str) -> StoredComparison:
    closed = _pair(EQUAL, EQUAL, (4.0, 2.0), "-closed", switches="closed")
    seconds = (1.0, 2.0) if winner_of_best == "pytorch" else (2.0, 1.0)
    best = _with_budgets(_pair(EQUAL, EQUAL | {"layout": "NHWC"}, seconds, "-best", switches="best"), BUDGET, BUDGET)
    return _together(closed, best)


def test_every_division_has_its_line_beside_others() -> None:
    """Also one that is neither after a closed one, and two that share no condition."""
    closed = _pair(EQUAL, EQUAL, suffix="-closed", switches="closed")
    layout = _pair(EQUAL, EQUAL | {"layout": "NHWC"}, suffix="-layout")
    graph = _pair(EQUAL, EQUAL | {"graph": "another"}, suffix="-graph", seed=1)
    for stored, lines in ((_together(closed, layout), 2), (_together(layout, graph), 2)):
        said = [line for line in findings(stored, summarize(stored)).divisions if "division)" in line]
        assert len(said) == lines and sum("neither" in line for line in said) == lines - ("Equal" in said[0]), said
    assert "memory layout" in said[0] and "another" in said[1]


def test_divisions_that_disagree_are_told_in_the_first_lines() -> None:
    stored = _divisions("pytorch")
    summaries = summarize(stored)
    compared = JudgedComparison(stored, summaries, findings(stored, summaries))
    said = (
        "THE DIVISIONS DISAGREE on serial on 2 cores: tensorflow is faster with switches closed, equal conditions (closed "
        "division); pytorch is faster with switches best, each one's best switches (open division)."
    )
    assert compared.findings.divisions[0] == said
    made_report = comparison_report.report(compared, Path("out"))
    assert made_report.screen is not None
    assert [each.sentences for each in made_report.screen.answers if each.label == "Divisions"] == [[said]]
    written = made_report.to_markdown()
    assert written.count(tables.escaped(said)) == 1 and written.index(tables.escaped(said)) < written.index("## ")


def test_two_reports_side_by_side_tell_that_their_divisions_disagree() -> None:
    """A run with `closed`, and the same with `best`."""
    closed = _pair(EQUAL, EQUAL, (4.0, 2.0), switches="closed")
    best = _with_budgets(_pair(EQUAL, EQUAL | {"layout": "NHWC"}, (1.0, 2.0), switches="best"), BUDGET, BUDGET)
    compared = [JudgedComparison(each, summarize(each), findings(each, summarize(each))) for each in (closed, best)]
    (said,) = side_by_side.report((Path("a"), Path("b")), (compared[0], compared[1]), None).first_sentences
    assert said == (
        "THE DIVISIONS DISAGREE on serial on 2 cores: tensorflow is faster with A, switches closed, equal conditions (closed "
        "division); pytorch is faster with B, switches best, each one's best switches (open division)."
    )


def test_divisions_that_agree_are_not_told_to_disagree() -> None:
    stored = _divisions("tensorflow")
    assert not any("DISAGREE" in line for line in findings(stored, summarize(stored)).divisions)


@pytest.mark.parametrize("planted", ["serial-2", "data_parallel-2"])
def test_rows_of_other_data_have_no_speedup_and_no_verdict(planted: str) -> None:
    stored = comparisons.repeated()
    runs = stored.runs[f"pytorch-{planted}"]
    runs[3] = runs[3].model_copy(update={"data_hash": "another"})
    summaries = summarize(stored)
    found = findings(stored, summaries)
    assert not found.comparable and not found.contestants and not found.modes
    rows = {
        row["contestant"]: row for row in comparison_tables.speedup_table(summaries).rows if row["run"] == "data_parallel x2"
    }
    assert rows["pytorch"]["pays"] == rows["pytorch"]["speedup_same_cores"] == comparison_tables.OTHER_DATA
    assert rows["tensorflow"]["pays"] == rows["tensorflow"]["speedup_same_cores"] == NOT_COMPARABLE
    (row,) = [row for row in comparison_tables.main_table(summaries).rows if row["pays"] == comparison_tables.OTHER_DATA]
    assert row["contestant"] == "pytorch" and row["speedup_one_core"] == comparison_tables.OTHER_DATA


def test_a_framework_that_read_other_data_than_the_comparison_has_no_speedup_either() -> None:
    stored = comparisons.repeated()
    for row_id in ("tensorflow-serial-2", "tensorflow-data_parallel-2"):
        stored.runs[row_id] = {
            repeat: run.model_copy(update={"data_hash": "another"}) for repeat, run in stored.runs[row_id].items()
        }
    pays = [row["pays"] for row in comparison_tables.speedup_table(summarize(stored)).rows]
    assert pays == [None, NOT_COMPARABLE, None, comparison_tables.OTHER_DATA]


def test_a_twins_description_gives_the_conditions_of_a_run() -> None:
    description = {
        "modes": {"serial": {"mechanism": "one replica"}},
        "inputs": {"workers": "worker processes"},
        "deterministic": False,
        "options": {
            "arithmetic": {"values": ["full", "bfloat16"], "default": "full"},
            "order": {"values": [1, 2], "default": 1, "closed": 2, "sets": {"layout": {"1": "NCHW", "2": "NHWC"}}},
        },
    }
    usual = {"precision": "float32", "layout": "NCHW", "mechanism": "one replica", "deterministic": "not enforced"}
    assert spec.conditions(spec.build({}), description) == usual
    assert spec.conditions(spec.build({"switches": "closed"}), description) == usual | {"layout": "NHWC"}
    fewer = spec.build({"framework_options": {"arithmetic": "bfloat16"}, "input": "workers", "workers": 1})
    assert spec.conditions(fewer, description) == usual | {
        "precision": "float32, layers in bfloat16",
        "mechanism": "one replica; input by worker processes",
    }


def test_the_way_to_the_divisions_is_told_where_no_row_took_it() -> None:
    other = EQUAL | {"layout": "NHWC"}
    way = "For equal conditions add --switches closed; for each one's best run `optimize`, then add --switches best."
    for level, told in (("usual", True), ("plain", True), ("closed", False), ("best", False)):
        stored = _pair(EQUAL, other, switches=level)
        assert (way in findings(stored, summarize(stored)).divisions) == told
    equal = _pair(EQUAL, EQUAL)
    assert findings(equal, summarize(equal)).divisions == ["Equal conditions (closed division) in serial, 2 cores."]
