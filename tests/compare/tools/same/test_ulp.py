"""The hook that moves inputs by one unit in the last place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from compare.tools.same import subjects
from convtwins import ulp
from convtwins.ulp import nudge


@pytest.fixture
def moves(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that counts moved values, in a copy."""
    monkeypatch.setenv(ulp.SEED_VARIABLE, "1")
    monkeypatch.setenv(ulp.COUNT_VARIABLE, "count")
    return here / "count"


def test_the_hook_and_the_command_have_the_same_variables() -> None:
    assert (ulp.SEED_VARIABLE, ulp.COUNT_VARIABLE) == (subjects.SEED_VARIABLE, subjects.COUNT_VARIABLE)


def test_without_the_command_the_same_object_comes_back() -> None:
    values = np.ones(3)
    assert nudge(values) is values


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_every_value_becomes_a_neighbour(moves: Path, dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=(40, 3)).astype(dtype)
    moved = nudge(values)
    up, down = (np.nextafter(values, np.asarray(end, dtype)) for end in (np.inf, -np.inf))
    assert moved.dtype == values.dtype and ((moved == up) | (moved == down)).all()
    assert (moved == up).any() and (moved == down).any() and moves.read_text() == "120\n"


@pytest.mark.usefixtures("moves")
def test_zeros_no_numbers_and_integers_stay() -> None:
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    assert np.array_equal(nudge(values), values, equal_nan=True)
    assert np.array_equal(nudge(np.arange(4)), np.arange(4))


class Pair(NamedTuple):
    weights: Any
    biases: Any


@pytest.mark.usefixtures("moves")
def test_dicts_lists_and_tuples_keep_their_form() -> None:
    one = np.ones(2, np.float32)
    moved = nudge({"a": [one, (one,)], "b": Pair(one, 3), "c": None})
    assert isinstance(moved["b"], Pair) and moved["b"].biases == 3 and moved["c"] is None
    assert (moved["a"][0] != 1).all() and (moved["a"][1][0] != 1).all() and (moved["b"].weights != 1).all()


@pytest.mark.usefixtures("moves")
def test_two_calls_move_in_other_directions_and_no_other_draw_changes() -> None:
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    values = np.ones(64)
    assert not np.array_equal(nudge(values), nudge(values))
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.usefixtures("moves")
def test_a_coarser_dtype_has_a_larger_unit() -> None:
    values = np.full(16, 1.5, np.float32)
    assert set(np.abs(nudge(values, like="bfloat16") - values).tolist()) == {2.0**-7}
    assert set(np.abs(nudge(values, like="float64") - values).tolist()) == {2.0**-23}


@pytest.mark.usefixtures("moves")
@pytest.mark.parametrize(("values", "like", "names"), [(object(), None, "object"), (np.ones(1), "int8", "int8")])
def test_another_thing_is_refused(values: object, like: str | None, names: str) -> None:
    with pytest.raises((TypeError, ValueError), match=names):
        nudge(values, like)
