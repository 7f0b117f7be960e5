"""Planted: pairs of rows whose conditions, tuning budgets or data differ. Each verdict must name what differs."""

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from common import spec
from compare.judgement import conditions
from compare.judgement.conditions import CONDITIONS, DIVISION_WORDS
from compare.judgement.row_figures import NOT_COMPARABLE, OTHER_DATA
from compare.judgement.summary import summarize
from compare.reporting import comparison_report, comparison_tables, side_by_side, tables
from compare.results.store import StoredComparison
from compare.running.best_switches import SwitchSearchBudget
from compare.running.contestants import Contestant
from tests.support import comparisons
from tests.support.comparisons import of_rows, row, with_fields, with_plan, with_runs
from tests.support.statements import in_words

DISAGREE = "THE SETTINGS DECIDE WHO IS FASTER"
EQUAL = comparisons.conditions(row("pytorch"))
OTHER_LAYOUT = EQUAL | {"layout": "NHWC"}
BUDGET = SwitchSearchBudget(switches=None, rounds=5, steps=30, configurations=21)


def _pair(
    ours: dict[str, str], theirs: dict[str, str], seconds: tuple[float, float] = (4.0, 2.0), suffix: str = "", **fields: Any
) -> StoredComparison:
    """A serial row of each framework, with these conditions and seconds per epoch."""
    rows = [
        with_fields(planned, id=f"{planned.id}{suffix}", spec=planned.spec.with_fields(**fields))
        for planned in (row("pytorch"), row("tensorflow"))
    ]
    runs = {
        planned.id: {
            repeat: with_fields(comparisons.good(planned, own + 0.01 * repeat, repeat), conditions=held) for repeat in range(5)
        }
        for planned, held, own in zip(rows, (ours, theirs), seconds, strict=True)
    }
    return StoredComparison(comparison=comparisons.comparison(rows, 5), runs=runs, set_aside=[])


def _with_budgets(stored: StoredComparison, *budgets: SwitchSearchBudget | None) -> StoredComparison:
    rows = [with_fields(planned, budget=own) for planned, own in zip(stored.comparison.rows, budgets, strict=True)]
    return with_plan(stored, rows=rows)


def _division(stored: StoredComparison) -> tuple[str, str]:
    """Kind and reason of the division of both rows. The verdict ends with the kind, and the first line gives both."""
    found = conditions.division(stored, *stored.comparison.rows)
    sentences = in_words(stored)
    (verdict,) = sentences["contestants"]
    assert verdict.endswith(f", {DIVISION_WORDS[found.kind]}.")
    first = sentences["divisions"][0]
    assert first.lower().startswith(DIVISION_WORDS[found.kind]) and found.detail in first
    return found.kind, found.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("layout", "NHWC"),
        ("precision", "float32, layers in bfloat16"),
        ("graph", "graph"),
        ("mechanism", "MirroredStrategy"),
        ("allocator", "the system's default"),
        ("deterministic", "enforced"),
    ],
)
def test_a_verdict_names_the_condition_that_differs(name: str, value: str) -> None:
    expected = f"{CONDITIONS[name]} ({EQUAL[name]} against {value})"
    assert _division(_pair(EQUAL, EQUAL | {name: value})) == ("neither", expected)


@pytest.mark.parametrize(
    ("scaling", "rates", "division"),
    [("none", ["0.05", "0.05"], ("closed", "")), ("linear", ["0.05", "0.1"], ("neither", "learning rate (0.05 against 0.1)"))],
)
def test_a_mode_whose_learning_rate_is_scaled_has_another_condition_than_serial_and_the_table_shows_it(
    scaling: str, rates: list[str], division: tuple[str, str]
) -> None:
    rows = [row("pytorch"), row("pytorch", "data_parallel")]
    rows = [with_fields(planned, spec=planned.spec.with_fields(schedule={"scaling": scaling})) for planned in rows]
    stored = of_rows(rows, 4.0)
    assert [conditions.row_conditions(stored, planned)["learning_rate"] for planned in rows] == rates
    found = conditions.division(stored, *rows, conditions.MODE_CONDITIONS)
    assert (found.kind, found.detail) == division
    (table,) = comparison_tables.conditions_table(summarize(stored))
    shown = [column.heading for column in table.columns if column.terminal]
    assert ("learning rate" in shown) == (scaling == "linear")


def test_the_heading_names_shared_settings_that_are_not_the_default_and_none_of_those_that_a_mode_sets() -> None:
    fields: dict[str, Any] = {"schedule": {"scaling": "linear"}, "optimizer": {"native": True}}
    usual = [row("pytorch"), row("pytorch", "pipeline")]
    other = [
        with_fields(planned, spec=planned.spec.with_fields(**fields))
        for planned in (row("pytorch"), row("pytorch", "data_parallel"))
    ]
    start = "Other than by default: "
    for rows, expected in ((other, [f'{start}optimizer.native true, schedule.scaling "linear"']), (usual, [])):
        facts = comparison_report.facts(comparison_report.judge(of_rows(rows, 4.0)))
        assert [fact for fact in facts if fact.startswith(start)] == expected


def test_a_verdict_names_threads_that_differ() -> None:
    stored = with_runs(_pair(EQUAL, EQUAL), "tensorflow", threads={"intra_op": 4, "inter_op": 2})
    assert _division(stored) == ("neither", "threads (2 + 1 against 4 + 2)")


@pytest.mark.parametrize(
    ("switch", "value", "detail"),
    [
        ("onednn", False, "kernel library (oneDNN against without oneDNN)"),
        ("optimizer_kernel", "loop", "kernels of the update (fused against an operation at a time)"),
        ("optimizer_kernel", "foreach", "kernels of the update (fused against all variables at once)"),
        ("data_on", "device", "place of the data (host against device)"),
        ("cudnn_autotune", False, "kernel search (cuDNN tries its algorithms against cuDNN's first choice)"),
    ],
)
def test_a_verdict_names_the_switch_of_kernels_that_differs(switch: str, value: Any, detail: str) -> None:
    stored = with_runs(_pair(EQUAL, EQUAL), device="Some GPU")
    stored = with_runs(stored, "tensorflow", switches=lambda run: run.switches | {switch: value})
    assert _division(stored) == ("neither", detail)


def test_a_twin_without_the_switch_of_kernels_says_itself_how_it_updates() -> None:
    stored = _pair(EQUAL, EQUAL | {"update": "all variables at once"})
    assert _division(stored) == ("neither", "kernels of the update (fused against all variables at once)")
    switched = with_runs(stored, "pytorch", switches=lambda run: run.switches | {"optimizer_kernel": "foreach"})
    assert _division(switched) == ("closed", "")


@pytest.mark.parametrize("named", [{}, {"graph": True}])
def test_conditions_that_the_user_has_set_apart_are_not_to_be_evened_out(named: dict[str, Any]) -> None:
    apart = (Contestant(name="tensorflow", twin="tensorflow", switches=named),)
    stored = with_plan(_pair(EQUAL, EQUAL | {"graph": "graph"}), settings__contestants=apart)
    hints = [line for line in in_words(stored)["divisions"] if "--switches closed" in line]
    assert len(hints) == (0 if named else 1)


def test_what_a_device_or_a_mode_does_not_use_is_no_condition() -> None:
    on_cpu = with_runs(_pair(EQUAL, EQUAL), "tensorflow", switches=lambda run: run.switches | {"cudnn_autotune": False})
    served = _pair(EQUAL, EQUAL, mode="parameter_server", replicas=2)
    served = with_runs(served, "pytorch", switches=lambda run: run.switches | {"optimizer_kernel": "loop"})
    assert _division(on_cpu) == _division(served) == ("closed", "")


def test_equal_conditions_are_the_closed_division_under_any_level(snapshot: SnapshotAssertion) -> None:
    assert _division(_pair(EQUAL, EQUAL)) == ("closed", "")
    sentences = in_words(_pair(EQUAL, EQUAL))
    assert [sentences["contestants"], sentences["divisions"]] == snapshot


def test_results_without_conditions_are_in_no_division() -> None:
    assert _division(_pair({}, {}))[0] == "not known"
    (table,) = comparison_tables.conditions_table(summarize(_pair(EQUAL, {})))
    assert table.rows[1]["layout"] == table.rows[1]["mechanism"] == "not recorded"
    assert comparison_tables.conditions_table(summarize(_pair({}, {}))) == []


def test_the_best_of_both_are_open_if_the_tuning_budget_was_the_same() -> None:
    stored = _pair(EQUAL, OTHER_LAYOUT, switches="best")
    best = "best of all switches, 5 rounds of 30 steps"
    assert _division(_with_budgets(stored, BUDGET, BUDGET)) == ("open", best)
    fewer = with_fields(BUDGET, configurations=14)
    assert _division(_with_budgets(stored, BUDGET, fewer)) == ("open", f"{best} (pytorch 21, tensorflow 14 configurations)")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rounds", 2, "all switches, 2 rounds of 30 steps"),
        ("steps", 10, "all switches, 5 rounds of 10 steps"),
        ("switches", ["graph"], "graph, 5 rounds of 30 steps"),
    ],
)
def test_another_tuning_budget_is_said(field: str, value: Any, words: str) -> None:
    other = with_fields(BUDGET, **{field: value})
    kind, detail = _division(_with_budgets(_pair(EQUAL, EQUAL, switches="best"), BUDGET, other))
    assert kind == "neither" and f"pytorch with {BUDGET.words}; tensorflow with {words}" in detail


def test_a_budget_that_was_not_recorded_makes_no_open_division() -> None:
    kind, detail = _division(_with_budgets(_pair(EQUAL, OTHER_LAYOUT, switches="best"), BUDGET, None))
    assert kind == "neither" and detail.startswith(CONDITIONS["layout"])


def _together(*stored: StoredComparison) -> StoredComparison:
    """One comparison of all their rows."""
    rows = [planned for one in stored for planned in one.comparison.rows]
    runs = {row_id: runs for one in stored for row_id, runs in one.runs.items()}
    return StoredComparison(comparison=comparisons.comparison(rows, 5), runs=runs, set_aside=[])


def _closed_and_best(winner_of_best: str) -> StoredComparison:
    closed = _pair(EQUAL, EQUAL, (4.0, 2.0), "-closed", switches="closed")
    seconds = (1.0, 2.0) if winner_of_best == "pytorch" else (2.0, 1.0)
    best = _with_budgets(_pair(EQUAL, OTHER_LAYOUT, seconds, "-best", switches="best"), BUDGET, BUDGET)
    return _together(closed, best)


def test_every_division_has_its_line_beside_others(snapshot: SnapshotAssertion) -> None:
    """Also one that is neither after a closed one, and two that share no condition."""
    closed = _pair(EQUAL, EQUAL, suffix="-closed", switches="closed")
    layout = _pair(EQUAL, OTHER_LAYOUT, suffix="-layout")
    graph = _pair(EQUAL, EQUAL | {"graph": "another"}, suffix="-graph", seed=1)
    lines = [in_words(_together(*both))["divisions"] for both in ((closed, layout), (layout, graph))]
    assert [[DIVISION_WORDS["neither"] in line.lower() for line in of][:2] for of in lines] == [[False, True], [True, True]]
    assert lines == snapshot


def test_divisions_that_disagree_are_told_in_the_first_lines(snapshot: SnapshotAssertion) -> None:
    judged = comparison_report.judge(_closed_and_best("pytorch"))
    first, *_ = judged.in_words(judged.findings.divisions)
    assert first.startswith(DISAGREE) and first == snapshot
    report = comparison_report.report(judged, Path("out"))
    assert report.screen is not None
    assert [answer.sentences for answer in report.screen.answers if answer.label == "Settings"] == [[first]]
    page = report.to_markdown()
    assert page.count(tables.escaped(first)) == 1 and page.index(tables.escaped(first)) < page.index("## ")


def test_two_reports_side_by_side_tell_that_their_divisions_disagree(snapshot: SnapshotAssertion) -> None:
    """A run with `closed`, and the same with `best`."""
    closed = _pair(EQUAL, EQUAL, (4.0, 2.0), switches="closed")
    best = _with_budgets(_pair(EQUAL, OTHER_LAYOUT, (1.0, 2.0), switches="best"), BUDGET, BUDGET)
    both = comparison_report.judge(closed), comparison_report.judge(best)
    (sentence,) = side_by_side.report((Path("a"), Path("b")), both, None).first_sentences
    assert sentence.startswith(DISAGREE) and sentence == snapshot


def test_divisions_that_agree_are_not_told_to_disagree() -> None:
    lines = in_words(_closed_and_best("tensorflow"))["divisions"]
    assert lines and not any(DISAGREE in line for line in lines)


@pytest.mark.parametrize("planted", ["serial-2", "data_parallel-2"])
def test_rows_of_other_data_have_no_speedup_and_no_verdict(planted: str) -> None:
    judged = comparison_report.judge(with_runs(comparisons.repeated(), f"pytorch-{planted}", [3], data_hash="another"))
    assert not judged.findings.comparable and not judged.findings.contestants and not judged.findings.modes
    speedups = comparison_tables.speedup_table(judged.summaries).rows
    rows = {cells["contestant"]: cells for cells in speedups if cells["run"] == "data_parallel x2"}
    assert rows["pytorch"]["pays"] == rows["pytorch"]["speedup_same_cores"] == OTHER_DATA
    assert rows["tensorflow"]["pays"] == rows["tensorflow"]["speedup_same_cores"] == NOT_COMPARABLE
    main = comparison_tables.main_table(judged.summaries).rows
    (cells,) = [cells for cells in main if cells["pays"] == OTHER_DATA]
    assert cells["contestant"] == "pytorch" and cells["speedup_one_core"] == OTHER_DATA


def test_a_framework_that_read_other_data_than_the_comparison_has_no_speedup_either() -> None:
    stored = with_runs(comparisons.repeated(), "tensorflow", data_hash="another")
    pays = [cells["pays"] for cells in comparison_tables.speedup_table(summarize(stored)).rows]
    assert pays == [None, NOT_COMPARABLE, None, OTHER_DATA]


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


@pytest.mark.parametrize(("level", "is_told"), [("usual", True), ("plain", True), ("closed", False), ("best", False)])
def test_the_way_to_the_divisions_is_told_where_no_row_took_it(level: str, is_told: bool, snapshot: SnapshotAssertion) -> None:
    lines = in_words(_pair(EQUAL, OTHER_LAYOUT, switches=level))["divisions"]
    assert any("--switches closed" in line for line in lines) == is_told and lines == snapshot
