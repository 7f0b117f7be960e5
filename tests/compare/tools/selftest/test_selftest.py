import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

from common import spec
from common.models import architectures
from compare.judgement.summary import family, summarize
from compare.reporting import comparison_report
from compare.reporting.comparison_report import JudgedComparison
from compare.results import store
from compare.results.store import StoredComparison
from compare.running import contestants, launch
from compare.running.comparison_settings import ComparisonSettings
from compare.running.contestants import Contestant
from compare.statistics import alpha_spending, scaling_laws, statistics
from compare.statistics.statistics import paired_ratio
from compare.statistics.until_decided import UntilDecided
from compare.tools.selftest import selftest
from tests.compare.conftest import behave
from tests.support import comparisons
from tests.support.command_line import convtwins, convtwins_json

AMDAHL = scaling_laws.amdahl


def narrow(pairs: list[tuple[float, float]]) -> Any:
    """The defect that a bootstrap of few repeats has: its intervals are too narrow."""
    ratio = paired_ratio(pairs, one_look=True)
    assert ratio is not None and ratio.p is not None
    low, high = (math.exp(math.log(ratio.value) / 2 + math.log(bound or 1) / 2) for bound in (ratio.low, ratio.high))
    return comparisons.with_fields(ratio, p=ratio.p / 4, low=low, high=high)


def one_look(freedom: float, pairs: int | None) -> float:
    """The rule before: each look at a fixed 5 %."""
    return float(special.stdtrit(freedom, 0.975))


def at_each_look(freedom: float, pairs: int) -> float:
    """One-sided tests, each at the whole 5 %."""
    return float(special.stdtrit(freedom, 0.95))


def uncorrected(looks: Sequence[float], one_look: Sequence[float]) -> list[float]:
    """Each question at the whole 5 %, however many there are."""
    return list(looks)


def known_noise(error: float, freedom: float, comparisons: int, pairs: int | None = None) -> float:
    """The formula before: the estimated noise is taken for the true one."""
    assert pairs is not None
    critical = special.stdtrit(freedom, 1 - alpha_spending.level(pairs, 0.05 / comparisons) / 2)
    return error * float(special.nctdtrinc(freedom, 0.1, critical))


def as_independent(repeats: Any) -> Any:
    """The fit before: each point as if it had a serial run of its own."""
    together = AMDAHL(repeats)
    points = [(1.0 - 1.0 / r, 1.0 / speedup - 1.0 / r) for each in repeats for r, speedup in each]
    assert together is not None
    x, y = np.array(points).T
    error = math.sqrt(float(((y - together.value * x) ** 2).sum()) / (len(x) - 1) / float(x @ x))
    half = special.stdtrit(len(x) - 1, 0.975) * error * statistics.critical(4, 5) / statistics.critical(4, None)
    return comparisons.with_fields(together, low=together.value - half, high=together.value + half)


@pytest.mark.parametrize(
    ("module", "name", "defect", "fails"),
    [
        pytest.param(selftest, "paired_ratio", narrow, "families of 8 equal comparisons", marks=pytest.mark.slow),
        (statistics, "critical", one_look, "equal runs called different at any of 5 to 20 repeats"),
        pytest.param(
            statistics, "critical_equivalence", at_each_look, "differences of just 5 % called smaller", marks=pytest.mark.slow
        ),
        pytest.param(
            statistics,
            "equivalence_p_values",
            uncorrected,
            "families of 8 differences of just 5 % over one base",
            marks=pytest.mark.slow,
        ),
        pytest.param(statistics, "detectable_mean", known_noise, "slowdowns found among 8 comparisons", marks=pytest.mark.slow),
        pytest.param(scaling_laws, "amdahl", as_independent, "intervals of serial fractions", marks=pytest.mark.slow),
    ],
)
def test_a_defect_of_the_verdicts_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, defect: Any, fails: str
) -> None:
    """Planted: what findings F, G and J were, and a test that is too narrow."""
    monkeypatch.setattr(module, name, defect)  # the planted defect
    trials = 2_500 if defect is one_look else 10_000  # it is seen in few
    found = {check.what: check.passed for check in selftest.simulate(trials, seed=1)}
    assert not next(passed for what, passed in found.items() if what.startswith(fails))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_an_honest_test_passes_with_few_trials_too(seed: int) -> None:
    assert all(check.passed for check in selftest.simulate(1000, seed))


def test_the_family_of_the_simulation_is_that_of_a_default_run() -> None:
    settings = ComparisonSettings(values={"cores": 2, "epochs": 2})
    rows = settings.build_rows(contestants.resolve(launch.FRAMEWORKS))
    stored = comparisons.of_rows(rows, 4.0, 5)
    assert len(family(stored, summarize(stored)).judged) == selftest.FAMILY


def test_the_verdicts_hold_in_ten_thousand_comparisons_and_nothing_is_started() -> None:
    printed = convtwins_json("selftest", "--simulate-only")
    equal, slower, smaller, noisy, matters, family, none_smaller, among, law = printed["checks"]
    numbers = [10_000] * 5 + [2_500] * 4
    assert [(check["where"], check["n"]) for check in printed["checks"]] == [("simulated", number) for number in numbers]
    assert (equal["required"], matters["required"]) == ("3 to 6 %", "at most 6 %")

    def percent(check: dict[str, str]) -> float:
        return float(check["found"].partition(" %")[0])

    assert 3 <= percent(equal) <= 5
    assert percent(slower) >= 99 and slower["found"].endswith("after 5.0 repeats")
    assert percent(smaller) >= 95 and float(smaller["found"].split()[3]) < 7
    assert percent(noisy) >= 90 and 8 < float(noisy["found"].split()[3]) < 10
    assert 3 <= percent(matters) <= 5
    assert percent(family) <= 5 and "uncorrected: " in family["what"]
    assert 0 < percent(none_smaller) <= 5
    assert percent(among) >= 88 and 94 <= percent(law) <= 96
    assert printed["passed"]


def trials(slower: float, equal: float = 1.0) -> JudgedComparison:
    """Real trials that went so: seconds of the slower row, and of the second of the equal ones, over those of the first."""
    noise = ((1.0, 1.01, 0.99, 1.0, 1.0), (1.01, 0.99, 1.0, 1.01, 0.99), (0.99, 1.0, 1.01, 1.0, 1.01))
    return measured([[4.0 * factor * n for n in noises] for factor, noises in zip((1.0, equal, slower), noise, strict=True)])


def measured(seconds: Sequence[Sequence[float]]) -> JudgedComparison:
    """The trials' first rows with these seconds of an epoch, by repeat."""
    rows = selftest.rows(selftest.VALUES, [Contestant.plain("pytorch")])[: len(seconds)]
    runs = {
        row.id: {repeat: comparisons.good(row, time, repeat) for repeat, time in enumerate(times)}
        for row, times in zip(rows, seconds, strict=True)
    }
    plan = comparisons.comparison(rows, len(seconds[0]))
    return comparison_report.judge(StoredComparison(comparison=plan, runs=runs, set_aside=[]))


def test_trials_are_equal_rows_and_one_with_a_known_tenth_more_to_do() -> None:
    first, second, slower = selftest.rows(selftest.VALUES, [Contestant.plain("pytorch")])
    assert first.spec == second.spec and first.id != second.id
    assert slower.spec.data.limit is not None and first.spec.data.limit is not None
    assert slower.spec.data.limit / first.spec.data.limit == pytest.approx(selftest.SLOWDOWN)
    sizes = [row.spec.global_batch_size for row in (first, slower)]
    assert sizes[1] / sizes[0] == pytest.approx(selftest.SLOWDOWN)
    assert slower.spec.data.limit / sizes[1] == first.spec.data.limit / sizes[0], "turns compare the same steps"


@pytest.mark.parametrize("mode", spec.MODES)
def test_every_mode_can_have_real_pairs(mode: str) -> None:
    values = spec.with_variant(selftest.VALUES, mode, replicas=2)
    for row in selftest.rows(values, [Contestant.plain("pytorch")]):  # a batch that does not divide is refused here
        assert row.spec.mode == spec.MODES[mode].name and architectures.why_not_divisible(row.spec) is None


@pytest.mark.parametrize(
    ("slower", "equal", "passed"),
    [(1.1, 1.0, [True, True]), (1.01, 1.0, [True, False]), (1.1, 1.1, [False, True])],
)
def test_trials_pass_where_equal_is_equal_and_slower_is_slower(slower: float, equal: float, passed: list[bool]) -> None:
    found = selftest.judge(trials(slower, equal))
    assert [check.passed for check in found.checks] == passed
    assert found.passed == all(passed)
    assert " 1.4 % (standard deviation; from so few pairs, it may be 0.8 % to " in found.sentences[0]
    assert " 4.5 % nine times in ten, and of 8.5 % in a report with 8 comparisons" in found.sentences[0]


def test_a_trial_that_failed_is_no_success() -> None:
    stored = trials(1.1).stored
    found = selftest.judge(comparison_report.judge(comparisons.with_fields(stored, runs=stored.runs | {"pytorch-slower": {}})))
    assert [(check.found, check.passed) for check in found.checks[1:]] == [("no times: a run failed", False)]


def test_trials_go_the_way_of_any_comparison(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The made-up twin's epochs take the same time however many images they have: nothing is slower, and that is told."""
    printed = convtwins_json("selftest", "--frameworks", "left", "--trials", "1000", exit_code=1)
    equal, slower = (check for check in printed["checks"] if check["where"] == "left")
    assert (equal["n"], equal["passed"]) == (5, True)
    assert "1.00 (1.00 to 1.00)" in equal["found"] and "p = 1.000 among 2" in equal["p_value"]
    assert (slower["n"], slower["passed"]) == (5, False)


def pairs_of(logs: Sequence[float]) -> JudgedComparison:
    """Pairs of equal runs that differ by these logarithms."""
    return measured([[4.0] * len(logs), [4.0 * math.exp(log) for log in logs]])


def drifting(number: int, correlation: float = 0.8, seed: int = 0) -> list[float]:
    """Noise that depends on the pair before. If 0.8 of it is kept, a few pairs look alike."""
    draw, kept = np.random.default_rng(seed), [0.0]
    for _ in range(number):
        kept.append(correlation * kept[-1] + draw.normal(0.0, 0.02))
    return kept[1:]


@pytest.mark.parametrize(
    ("correlation", "number", "least", "most"),
    [
        (0.0, 200, 0.02, 0.08),
        (0.2, 200, 0.82, 0.94),
        pytest.param(0.2, 400, 0.97, 1.0, marks=pytest.mark.slow),
        pytest.param(0.4, 200, 0.99, 1.0, marks=pytest.mark.slow),
    ],
)
def test_pairs_that_depend_on_each_other_fail_as_often_as_is_said(
    correlation: float, number: int, least: float, most: float
) -> None:
    """Planted: dependence of 0.2, which blocks of two alone let pass in more than a third of cases."""
    draw = np.random.default_rng(1)
    found = [selftest._dependence(np.array(drifting(number, correlation, seed)), draw, 400)[1] < 0.05 for seed in range(300)]
    assert least <= sum(found) / 300 <= most
    if correlation == selftest.TESTED_CORRELATION:
        assert selftest._dependence_power(number) == pytest.approx(sum(found) / 300, abs=0.05)


def test_what_alternates_between_repeats_hides_no_dependence() -> None:
    logs = np.array(drifting(200, 0.5))
    turns = np.where(np.arange(200) % 2, 0.05, -0.05)
    alone, both = (selftest._dependence(each, np.random.default_rng(0)) for each in (logs, logs + turns))
    assert both == pytest.approx(alone) and alone[1] < 0.01


def test_the_bound_of_any_pairs_allows_for_the_dependence_that_they_do_not_rule_out() -> None:
    logs = np.random.default_rng(1).normal(0.0, 0.02, 60)
    found = selftest.judge_pairs(pairs_of(logs.tolist()), 60, seed=0).checks
    dependence, drawn = (
        next(each for each in found if "depend" in each.what),
        next(each for each in found if "blocks" in each.what),
    )
    assert dependence.passed and "fails in 46 % of cases" in dependence.what
    most = float(dependence.found.rpartition("below ")[2])
    assert most >= 1.645 / math.sqrt(60)
    alarms = selftest.decide(selftest._correlated_pairs(np.random.default_rng(1), most), selftest.UNTIL).ever_different.mean()
    assert alarms > 0.07
    assert float(re.findall(r"(\d+\.\d+) %", drawn.found)[-1]) > 100 * float(alarms) - 1.5


@pytest.mark.parametrize(
    ("logs", "passed"),
    [
        (np.random.default_rng(0).normal(0.0, 0.02, 200).tolist(), [True] * 7),
        (np.random.default_rng(0).normal(0.02, 0.02, 200).tolist(), [True, False, True, True, False, True, True]),
        (drifting(200), [True, True, False, False, False, False, True]),
        pytest.param(drifting(200, 0.2, seed=3), [True, True, True, False, True, True, True], marks=pytest.mark.slow),
        (np.random.default_rng(0).normal(0.0, 0.2, 200).tolist(), [True, True, True, True, True, True, False]),
        pytest.param(
            np.random.default_rng(1).normal(0.0, 0.02, 150).tolist(),
            [False, True, True, True, True, True, True],
            marks=pytest.mark.slow,
        ),
        ([0.01] * 10, [False]),
    ],
    ids=[
        "quiet",
        "one side is slower",
        "drift within the pairs",
        "a little dependence",
        "too noisy",
        "pairs are missing",
        "too few",
    ],
)
def test_real_pairs_pass_where_they_are_equal_and_independent(logs: list[float], passed: list[bool]) -> None:
    found = selftest.judge_pairs(pairs_of(logs), 200, seed=0)
    assert [check.passed for check in found.checks] == passed


def test_the_bound_of_false_alarms_allows_for_there_being_few_pairs() -> None:
    """Planted: a bound that only knows how many sequences were drawn is as narrow for 40 pairs as for 400."""
    logs = np.random.default_rng(0).normal(0.0, 0.02, 400)

    def beyond(number: int) -> float:
        draw = np.random.default_rng(0)
        shown = selftest.decide(selftest._sequences(logs[:number], draw, swapped=True), selftest.UNTIL).ever_different.mean()
        return selftest.alarms_bound(logs[:number], draw, swapped=True) - float(shown)

    few, many = beyond(40), beyond(400)
    of_sequences = 1.645 * math.sqrt(0.05 * 0.95 / selftest.NUM_SEQUENCES)
    assert few > 1.3 * many and many > of_sequences


def test_both_bounds_are_said_and_pairs_of_one_sided_noise_are_judged_as_recorded() -> None:
    skewed = (np.random.default_rng(0).exponential(0.02, 200) - 0.02).tolist()
    *_, drawn, recorded, _ = selftest.judge_pairs(pairs_of(skewed), 200, seed=0).checks
    assert drawn.passed and recorded.what.endswith("real pairs, as recorded") and not recorded.passed
    for check in (drawn, recorded):
        rate, of_these, of_any = (float(word) for word in re.findall(r"(\d+\.\d+) %", check.found))
        assert rate < of_these < of_any


def test_real_pairs_are_kept_and_continued(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "pairs"
    words = ("selftest", "--frameworks", "left", "--real-pairs", "20", "--trials", "1000", "--out", out)
    behave(fake_twins, left__serial__1="noisy until 5")
    assert convtwins(*words).exit_code == 130
    kept = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    behave(fake_twins, left__serial__1="noisy")
    checks = [check for check in convtwins_json(*words)["checks"] if check["where"] != "simulated"]
    assert [check["where"] for check in checks] == ["left"] * 7 and "after 5." in checks[6]["found"]
    assert len(kept) == 11 and sum(path.stat().st_mtime_ns == mtime for path, mtime in kept.items()) == 10
    assert sum(map(len, store.read(out).runs.values())) == 40


@pytest.mark.usefixtures("fake_twins")
def test_pairs_that_cannot_run_here_are_refused_before_anything_is_simulated(tmp_path: Path) -> None:
    words = ("selftest", "--frameworks", "left", "--real-pairs", "20", "--mode", "data_parallel", "--cores", "1")
    refused = convtwins(*words, "--out", tmp_path / "pairs")
    assert refused.exit_code == 2 and "2 replicas" in refused.stderr and "--cores" in refused.stderr


@pytest.mark.parametrize(
    ("noise", "effect", "found", "repeats"),
    [
        (0.01, 0.00, "smaller", 5.1),
        (0.01, 0.05, "larger", 5.1),
        (0.01, 0.10, "larger", 5.1),
        (0.03, 0.00, "smaller", 9.9),
        (0.03, 0.05, "larger", 10.0),
        (0.03, 0.10, "larger", 5.4),
    ],
)
def test_one_question_of_the_usual_noise_is_decided_rightly_in_few_repeats(
    noise: float, effect: float, found: str, repeats: float
) -> None:
    draw = np.random.default_rng(6)
    logs = draw.normal(math.log1p(effect), noise * math.sqrt(2.0), (4000, 30))
    decisions = selftest.decide(logs, UntilDecided())
    assert getattr(decisions, found).mean() > 0.95
    assert decisions.repeats.mean() <= repeats
