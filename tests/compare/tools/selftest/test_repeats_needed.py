"""Repeats that whole families of questions need, by simulation."""

import math

import numpy as np
import pytest
from scipy import special

from compare.statistics import statistics
from compare.statistics.until_decided import UntilDecided
from compare.tools.selftest import repeats_needed, selftest
from tests.support.command_line import convtwins_json

UNTIL = UntilDecided(most_repeats=15)
DRAW = np.random.default_rng(0)


def drawn(truth: float, questions: int, families: int = 400, noise: float = 0.03) -> repeats_needed.Floats:
    return DRAW.normal(truth, noise * math.sqrt(2.0), (families, questions, UNTIL.most_repeats))


@pytest.mark.parametrize("truth", [0.0, 0.05, 0.1])
def test_one_question_is_decided_as_by_the_other_simulation(truth: float) -> None:
    """`selftest.decide` states the rule once more, by critical values."""
    logs = drawn(truth, 1)
    here, there = repeats_needed.decide(logs, UNTIL), selftest.decide(logs[:, 0], UNTIL)
    assert (here.repeats == there.repeats).all() and (here.smaller[:, 0] == there.smaller).all()
    assert ((here.different[:, 0] & (here.means[:, 0] > 0)) == there.larger).all()


def test_a_family_is_decided_as_the_verdicts_of_a_report_are() -> None:
    for logs in drawn(np.log1p([0.0, 0.0, 0.2, 0.05])[:, None], 4, families=20):
        made = repeats_needed.decide(logs[None, :, :5], UNTIL)
        ratios = [statistics.paired_ratio([(math.exp(log), 1.0) for log in each[:5]]) for each in logs]
        judged = statistics.verdicts([("", each) for each in ratios if each], UNTIL.smallest_effect)
        assert [each.verdict in ("above", "below") for each in judged] == made.different[0].tolist()
        assert [each.verdict == "no difference that matters" for each in judged] == made.smaller[0].tolist()


def test_a_false_answer_is_counted() -> None:
    yes, no = np.array([[True]]), np.array([[False]])

    def wrong(different: bool, mean: float, truth: float) -> bool:
        answers = (yes, no) if different else (no, yes)
        return bool(
            repeats_needed.FamilyDecisions(*answers, np.array([[mean]]), np.array([5])).wrong(np.array([truth]), 0.05)[0]
        )

    assert wrong(True, 0.1, 0.0) and wrong(True, -0.1, 0.02) and wrong(False, 0.01, math.log(1.05))
    assert not (wrong(True, 0.1, 0.02) or wrong(False, 0.01, 0.0) or wrong(False, 0.01, 0.04))


def test_the_bound_is_that_of_a_fixed_number_and_known_noise() -> None:
    noise, margin = 0.03, math.log(1.05)
    one_side, power = special.ndtri(0.95), special.ndtri(0.95)  # either side may fail in 5 %
    expected = math.ceil(2 * (noise * (one_side + power) / margin) ** 2)
    assert repeats_needed.least_fixed_repeats([0.0], noise, 0.05) == expected
    different = math.ceil(2 * (noise * (special.ndtri(0.975) + special.ndtri(0.9)) / math.log(1.1)) ** 2)
    assert repeats_needed.least_fixed_repeats([math.log(1.1)], noise, 0.05) == different
    eight = repeats_needed.least_fixed_repeats([0.0] * 8, noise, 0.05)
    assert eight is not None and eight > expected
    assert repeats_needed.least_fixed_repeats([math.log(1.05) / 2], 1.0, 0.05) is None


def test_eight_questions_need_fewer_than_ten_repeats_at_2_percent_of_noise() -> None:
    table = convtwins_json("selftest", "--repeats-needed", "--trials", "1000")
    rows = {(row["noise"], row["difference"]): row for row in table["rows"]}
    assert len(rows) == 24

    def mean(noise: str, difference: str, questions: int = 8) -> float:
        return float(rows[noise, difference][str(questions)].split()[0])

    assert all(mean("1 %", difference) < 10 for difference in repeats_needed.DIFFERENCES)
    assert all(mean("2 %", difference) < 10 for difference in ("none", "10 %", "20 %", "none in half, 20 % in half"))
    assert mean("2 %", "5 %", 1) < mean("2 %", "5 %", 8) < 13
    # What no method can do: the bound alone is above ten.
    assert rows["3 %", "none"]["known"] > 10 and mean("3 %", "none") > 10
