import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from compare.__main__ import app
from compare.comparison import selftest
from compare.core.presets import Preset
from compare.core.statistics import paired_ratio
from compare.execution import launch, matrix
from compare.execution.store import Stored
from compare.judgement.findings import findings
from compare.judgement.summary import family, summarize
from compare.reporting.comparison_report import Compared
from tests.compare import made


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["selftest", *arguments])


def test_a_test_that_raises_too_many_alarms_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defect that a bootstrap of few repeats has: its intervals are too narrow."""

    def narrow(pairs: list[tuple[float, float]]) -> Any:
        ratio = paired_ratio(pairs)
        assert ratio is not None and ratio.p is not None
        low, high = (math.exp(math.log(ratio.value) / 2 + math.log(bound or 1) / 2) for bound in (ratio.low, ratio.high))
        return ratio.model_copy(update={"p": ratio.p / 4, "low": low, "high": high})

    monkeypatch.setattr(selftest, "paired_ratio", narrow)
    equal, _, family, _ = selftest.simulate(1000, seed=1)
    assert not equal.passed and not family.passed


@pytest.mark.parametrize("seed", range(8))
def test_an_honest_test_passes_with_few_trials_too(seed: int) -> None:
    """The bounds of 10,000, 4 to 6 %, would fail it in about one seed of eight; the first of these is one."""
    assert all(check.passed for check in selftest.simulate(1000, seed))


def test_the_family_of_the_simulation_is_that_of_a_default_run() -> None:
    rows = matrix.rows({"cores": 2, "epochs": 2}, tuple(launch.FRAMEWORKS), Preset().modes, Preset().replicas)
    runs = {row.id: {repeat: made.good(row, 4.0 + 0.01 * repeat, repeat) for repeat in range(5)} for row in rows}
    stored = Stored(comparison=made.comparison(rows, 5), runs=runs, set_aside=[])
    assert len(family(stored, summarize(stored)).judged) == selftest.FAMILY


def test_the_verdicts_hold_in_ten_thousand_comparisons_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "start", pytest.fail)
    done = command("--simulate-only", "--json")
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    equal, slower, family, among = printed["checks"]
    numbers = [10_000, 10_000, 2_500, 2_500]
    assert [(check["where"], check["n"]) for check in printed["checks"]] == [("simulated", number) for number in numbers]
    assert equal["required"] == "4 to 6 %"
    assert 4 <= float(equal["found"].rstrip("%")) <= 6
    assert float(slower["found"].rstrip("%")) >= 90
    assert float(family["found"].rstrip("%")) <= 6 and "uncorrected: 2" in family["what"]
    assert float(among["found"].rstrip("%")) >= 88 and among["what"].startswith("slowdowns of 10.2 % found among 8 comparisons")
    assert printed["passed"]


def test_an_unknown_framework_is_refused_before_anything_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "simulate", pytest.fail)
    done = command("--frameworks", "pytorchh")
    assert done.exit_code == 2 and "Did you mean pytorch?" in done.stderr


def trials(slower: float, equal: float = 1.0) -> Compared:
    """Real trials that went so: seconds of the slower row, and of the second of the equal ones, over those of the first."""
    rows = selftest.rows(Preset(values=selftest.VALUES), ["pytorch"])
    noise = ((1.0, 1.01, 0.99, 1.0, 1.0), (1.01, 0.99, 1.0, 1.01, 0.99), (0.99, 1.0, 1.01, 1.0, 1.01))
    runs = {
        row.id: {repeat: made.good(row, 4.0 * factor * each, repeat) for repeat, each in enumerate(noises)}
        for row, factor, noises in zip(rows, (1.0, equal, slower), noise, strict=True)
    }
    stored = Stored(comparison=made.comparison(rows, 5), runs=runs, set_aside=[])
    summaries = summarize(stored)
    return Compared(stored, summaries, findings(stored, summaries))


def test_trials_are_equal_rows_and_one_with_a_known_tenth_more_to_do() -> None:
    first, second, slower = selftest.rows(Preset(values=selftest.VALUES), ["pytorch"])
    assert first.spec == second.spec and first.id != second.id
    assert slower.spec.data.limit is not None and first.spec.data.limit is not None
    assert slower.spec.data.limit / first.spec.data.limit == pytest.approx(selftest.SLOWDOWN)
    batch = first.spec.global_batch_size
    assert slower.spec.data.limit % batch == first.spec.data.limit % batch == 0


@pytest.mark.parametrize(
    ("slower", "equal", "passed"),
    [(1.1, 1.0, [True, True]), (1.01, 1.0, [True, False]), (1.1, 1.1, [False, True])],
)
def test_trials_pass_where_equal_is_equal_and_slower_is_slower(slower: float, equal: float, passed: list[bool]) -> None:
    found = selftest.judge(trials(slower, equal))
    assert [check.passed for check in found.checks] == passed
    assert found.passed == all(passed)
    assert found.sentences[0].startswith("pytorch here: two equal runs differ by 1.4 % (standard deviation; 0.8 % to ")
    assert found.sentences[0].endswith("nine times in ten, and of 5.0 % among 8 comparisons; at the most, 14.9 %.")


def test_a_trial_that_failed_is_no_success() -> None:
    report = trials(1.1)
    stored = report.stored.model_copy(update={"runs": report.stored.runs | {"pytorch-slower": {}}})
    summaries = summarize(stored)
    found = selftest.judge(Compared(stored, summaries, findings(stored, summaries)))
    assert [(check.found, check.passed) for check in found.checks[1:]] == [("no times: a run failed", False)]


def test_trials_go_the_way_of_any_comparison(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The made-up twin's epochs take the same time however many images they have: nothing is slower, and that is told."""
    fake_twins.setattr(selftest, "simulate", lambda trials, seed: [])
    done = command("--frameworks", "left", "--json")
    assert done.exit_code == 1, done.output
    equal, slower = json.loads(done.stdout)["checks"]
    assert (equal["n"], equal["passed"], equal["found"]) == (
        5,
        True,
        "1.00 (1.00 to 1.00) times the seconds: no difference shown (p = 1.000 among 2 comparisons)",
    )
    assert (slower["n"], slower["passed"]) == (5, False)
