"""The first screen of a comparison: at any width the same answer, and nothing that results.json does not hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.artifacts.schema import Noise
from compare.judgement import statement_words
from compare.judgement.findings import findings
from compare.judgement.statement import Statement
from compare.judgement.summary import summarize
from compare.reporting import comparison_report, document, side_by_side
from compare.reporting.comparison_report import judge
from compare.reporting.document import Report
from compare.reporting.screen import MAX_LINES, Screen
from compare.results.store import ProofRecord, SpotCheck, StoredComparison
from compare.statistics.until_decided import UntilDecided
from tests.support import comparisons
from tests.support.snapshots import Screens, printed

FOLDER = Path("results/made")


def report(stored: StoredComparison) -> Report:
    return comparison_report.report(judge(stored), FOLDER)


def screen(stored: StoredComparison) -> Screen:
    shown = report(stored).screen
    assert shown is not None
    return shown


def proved(stored: StoredComparison, verdict: str = "proved", *, computed: bool = True) -> StoredComparison:
    """The same with a proof. `verdict` is that of each row."""
    rows = {each.id: verdict for each in stored.comparison.rows}
    checks = [SpotCheck(row=each, repeat=0, steps=[3, 9], computed=[9] if computed else [], epochs=2) for each in rows]
    rung = {"name": "5 losses", "precision": "float64", "steps": 50, "status": "passed"}
    if verdict == "not proved":
        rung |= {
            "name": "8 one step in float64: batches",
            "status": "failed",
            "framework": "tensorflow",
            "where": "ids or pixels",
        }
    whole = "proved" if verdict == "proved in float64" else verdict
    said = {"sentence": f"{whole}: 1 of 16 rungs failed" if whole != "proved" else "proved: 16 rungs passed"}
    record = ProofRecord(verdict=whole, **said, row_verdicts=rows, spot_checks=checks, rungs=[rung])
    return comparisons.with_plan(stored, proof=record)


def at_fault(stored: StoredComparison, *row_ids: str) -> StoredComparison:
    """Recorded steps of these rows are not as planned."""
    proof = proved(stored).comparison.proof
    assert proof is not None
    faults = ["step 60: the update of conv1.bias does not fit learning rate 0.05", "step 97: losses differ"]
    checks = [comparisons.with_fields(each, faults=faults if each.row in row_ids else []) for each in proof.spot_checks]
    verdicts = {row: "not proved" if row in row_ids else verdict for row, verdict in proof.row_verdicts.items()}
    refuted = {"verdict": "not proved", "sentence": "not proved: timed runs", "spot_checks": checks, "row_verdicts": verdicts}
    return comparisons.with_plan(stored, proof=comparisons.with_fields(proof, **refuted))


def disturbed(stored: StoredComparison, row_id: str) -> StoredComparison:
    """Other work took a core in all runs of a row."""
    return comparisons.with_runs(stored, row_id, noise=Noise(cores_stolen=1.0))


def many(stored: StoredComparison, copies: int = 4) -> StoredComparison:
    """The same rows with several seeds, each a row of its own."""
    rows = [
        comparisons.with_fields(each, id=f"{each.id}-{seed}", spec__seed=seed)
        for seed in range(copies)
        for each in stored.comparison.rows
    ]
    runs = {
        each.id: {
            repeat: comparisons.with_fields(run, spec=each.spec)
            for repeat, run in stored.runs[each.id.rpartition("-")[0]].items()
        }
        for each in rows
    }
    return comparisons.with_fields(comparisons.with_plan(stored, rows=rows), runs=runs)


def no_gain(stored: StoredComparison) -> StoredComparison:
    """PyTorch's two replicas are as fast as serial."""
    runs = {repeat: comparisons.paced(run, 2.0) for repeat, run in stored.runs["pytorch-data_parallel-2"].items()}
    return comparisons.with_fields(stored, runs={**stored.runs, "pytorch-data_parallel-2": runs})


KINDS: dict[str, Callable[[], StoredComparison]] = {
    "answered": lambda: proved(comparisons.repeated()),
    "few_repeats": lambda: comparisons.repeated(2),
    "troubled_comparison": comparisons.troubled,
    "refuted": lambda: proved(comparisons.repeated(), "not proved"),
    "rows_at_fault": lambda: at_fault(comparisons.repeated(), "pytorch-serial-2", "tensorflow-data_parallel-2"),
    "disturbed_row": lambda: disturbed(proved(comparisons.repeated()), "pytorch-data_parallel-2"),
    "many_rows": lambda: proved(many(comparisons.repeated())),
    "input_alone": comparisons.input_only,
    "no_gain": lambda: no_gain(comparisons.repeated()),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_first_screen_of_a_comparison(screens: Screens, name: str) -> None:
    stored = KINDS[name]()
    # Of many rows, each kind of verdict is still said.
    shown = screens(report(stored), most=MAX_LINES if len(stored.comparison.rows) <= 4 else MAX_LINES + 4)
    assert str(FOLDER / "report.html") in shown and "--full" in shown


def test_the_first_screen_of_two_comparisons_side_by_side(screens: Screens) -> None:
    folders = Path("results/a"), Path("results/b")
    both = judge(comparisons.repeated()), judge(comparisons.repeated())
    screens(side_by_side.report(folders, both, None), None)


def test_bars_are_letters_that_any_terminal_has(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    report(proved(comparisons.repeated())).show(None, as_json=False)
    text = capsys.readouterr().out
    assert text.count("\n") <= MAX_LINES
    assert set(text) - set(map(chr, range(32, 127))) <= {"\n", "█"}


@pytest.mark.usefixtures("everything")
def test_full_prints_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    whole = report(proved(comparisons.repeated()))
    whole.show(None, as_json=False)
    text = capsys.readouterr().out
    assert text.count("\n") > MAX_LINES
    assert all(heading in text for heading, sentences in whole.findings if sentences)
    assert not any(line.endswith(" ") for line in text.splitlines())


paces = st.lists(st.sampled_from([1.0, 1.004, 1.03, 1.2, 2.0]), min_size=4, max_size=4)


DOUBTS: dict[str, dict[str, Any]] = {
    "none": {},
    "disturbed": {"noise": Noise(cores_stolen=1.0)},
    "too short to be watched": {"cores_used": None},
    "losses came late": {"clock_caution": "the last losses came 0.5 s after the clock had stopped"},
    "other weights": {"weights_hash": "another"},
}


@settings(max_examples=60, deadline=None)
@given(
    paces=paces,
    repeats=st.sampled_from([1, 2, 3, 5, 7]),
    verdict=st.sampled_from(["proved", "proved in float64", "not proved", "not claimed"]),
    doubt=st.sampled_from(list(DOUBTS)),
    computed=st.booleans(),
)
def test_the_screen_says_nothing_that_the_results_do_not_hold(
    paces: list[float], repeats: int, verdict: str, doubt: str, computed: bool
) -> None:
    stored = proved(comparisons.repeated(5), verdict, computed=computed)
    rows = [each.id for each in stored.comparison.rows]
    runs = {
        row: {
            repeat: comparisons.paced(comparisons.with_fields(stored.runs[row][repeat % 5], repeat=repeat), pace)
            for repeat in range(repeats)
        }
        for row, pace in zip(rows, paces, strict=True)
    }
    timed = comparisons.with_plan(comparisons.with_fields(stored, runs=runs), settings__repeats=repeats)
    whole = report(comparisons.with_runs(timed, rows[0], **DOUBTS[doubt]))
    assert whole.screen is not None and whole.screen.chart is not None
    values = json.loads(document.to_json(whole.values))
    answers = {each.label: each.sentences for each in whole.screen.answers}
    in_doubt = set() if doubt == "none" else {rows[0]}
    serial = {row: row.replace("data_parallel", "serial") for row in rows}

    found = values["findings"]
    decided = {
        each["name"]: each["verdict"]
        for each in found["verdicts"]
        if each["verdict"] in ("above", "below") and not in_doubt & {*each["name"].split(" against "), serial.get(each["name"])}
    }
    pairs = {name: kind for name, kind in decided.items() if " against " in name}
    winners = {name.split(" against ")[kind == "below"].partition("-")[0] for name, kind in pairs.items()}
    marks = {bar.cells[1] for bar in whole.screen.chart.bars}
    fair, is_refuted = " ".join(answers.get("Fair?", ())), verdict == "not proved"
    if is_refuted:
        assert "Faster" not in answers and "Parallel" not in answers and answers["Not proved"]
        assert whole.exit_code == 1 and not marks & {"+", "-", "~"}
    elif not found["comparable"]:
        assert not found["verdicts"] and "Trouble" in answers and "Parallel" not in answers and not marks & {"+", "-", "~"}
    else:
        said = {each.partition(":")[0] for each in answers["Faster"]} & {"pytorch", "tensorflow"}
        assert said == winners, "each winner of the results is named, and no other"
        gains = {each.partition(":")[0] for each in answers["Parallel"]}
        of_modes = {kind for name, kind in decided.items() if name not in pairs}
        assert ("faster than serial on 2 cores" in gains) == ("above" in of_modes)
        assert ("slower than serial on 2 cores" in gains) == ("below" in of_modes)
        assert decided or not marks & {"+", "-"}
        assert bool(in_doubt) == any("rely" in each for each in answers.get("Trouble", ()))
    assert ("proved in 64-bit numbers" in fair) == (found["comparable"] and verdict in ("proved", "proved in float64"))
    assert ("timed runs of all rows were not fully checked" in fair) == (found["comparable"] and verdict == "proved in float64")
    assert ("computed again" in fair) == (computed and "follow the plan" in fair)
    assert len(printed(whole, 100).splitlines()) <= MAX_LINES + 2


def test_each_row_at_fault_is_named_and_no_other() -> None:
    shown = screen(at_fault(comparisons.repeated(), "pytorch-serial-2", "tensorflow-data_parallel-2"))
    answers = {each.label: " ".join(each.sentences) for each in shown.answers}
    for name, wrong in (("pytorch serial", True), ("tensorflow data_parallel x2", True), ("tensorflow serial", False)):
        assert (name in answers["Not proved"], name in answers["Trouble"]) == (wrong, wrong)


def test_the_only_configuration_of_two_frameworks_that_other_work_disturbed_has_no_name() -> None:
    rows = [comparisons.row(name) for name in ("pytorch", "tensorflow")]
    shown = screen(disturbed(comparisons.of_rows(rows, repeats=5), rows[0].id))
    words = "pytorch or tensorflow: not known, as other programs took cores"
    assert any(words in answer.sentences for answer in shown.answers)


def test_questions_on_disturbed_runs_are_not_known_and_neither_decided_nor_open() -> None:
    """Both questions of the row are counted apart: against the other framework, and against serial."""
    stored = proved(comparisons.repeated())
    stored = comparisons.with_fields(stored, comparison__settings__until=UntilDecided(smallest_effect=0.1))

    def decision(stored: StoredComparison) -> Statement:
        return findings(stored, summarize(stored)).surety[0]

    before, now = decision(stored), decision(disturbed(stored, "pytorch-data_parallel-2"))
    assert now.kind == "not_decided" and now.level == "caution"
    unknown = now.values["disturbed"]
    assert isinstance(unknown, list) and len(unknown) == 2
    assert set(now.values["open"]) == set(before.values["open"]) - set(unknown)
    (sentence,) = statement_words.sentences([now])
    assert all(str(question) in sentence for question in unknown) and "other programs" in sentence.lower()


def test_a_row_that_other_work_disturbed_has_no_ratio_and_no_mark_of_a_verdict() -> None:
    stored = disturbed(proved(comparisons.repeated()), "pytorch-data_parallel-2")
    shown = screen(stored)
    assert shown.chart is not None
    bars = {" ".join(bar.name): bar.cells for bar in shown.chart.bars}
    assert bars["pytorch data_parallel x2"][:2] == ["serial not known", "?"]
    assert bars["tensorflow data_parallel x2"][1] == "-", "the others keep their verdicts"
    (trouble,) = (answer.sentences for answer in shown.answers if answer.label == "Trouble")
    assert ["pytorch data_parallel x2" in each for each in trouble] == [True]
    assert any("--again disturbed" in command for _, command in shown.next)
    undisturbed = screen(proved(comparisons.repeated()))
    assert [any("--cores" in remark for remark in each.remarks) for each in (shown, undisturbed)] == [True, False]
