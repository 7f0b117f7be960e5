"""Which comparisons a matrix has, and what they are called."""

from typing import Any

import pytest

from common.spec import SpecError
from compare.running import axes


def test_every_combination_of_the_listed_values_is_a_cell_and_the_rest_is_shared() -> None:
    values = {"model": ["a", "b"], "data": {"source": ["x", "y"], "limit": 9}, "global_batch_size": [32, 128], "epochs": 1}
    made = axes.expand(values)
    assert len(made) == 8 and made[0][0] == {"model": "a", "data": "x", "batch size": "32"}
    assert made[-1][1] == {"model": "b", "data": {"source": "y", "limit": 9}, "global_batch_size": 128, "epochs": 1}
    assert values["model"] == ["a", "b"]
    names = axes.names([labels for labels, _ in made])
    assert names[0] == "a-x-batch_size_32" and len(set(names)) == 8


def test_values_without_a_list_are_one_comparison() -> None:
    assert axes.expand({"model": "a"}) == [({}, {"model": "a"})]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["/data/a/leaves", "/data/leaves.tar"], ["leaves", "leaves.tar"]),
        (["/data/a/leaves", "/data/b/leaves"], ["/data/a/leaves", "/data/b/leaves"]),
        ([{"name": "sgd", "momentum": 0}, {"name": "adam"}], ["sgd", "adam"]),
        ([{"name": "sgd", "momentum": 0}, {"name": "sgd", "momentum": 0.9}], ["name=sgd momentum=0", "name=sgd momentum=0.9"]),
    ],
)
def test_labels_are_the_shortest_words_that_tell_values_apart(values: list[Any], labels: list[str]) -> None:
    field = "optimizer" if isinstance(values[0], dict) else "data.source"
    nested = {"optimizer": values} if field == "optimizer" else {"data": {"source": values}}
    assert [next(iter(own.values())) for own, _ in axes.expand(nested)] == labels


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": []}, "model must list different values. Received: []."),
        ({"data": {"source": ["a", "a"]}}, "data.source must list different values. Received: ['a', 'a']."),
        ({"global_batch_size": [64, 64.0]}, "global_batch_size must list different values. Received: [64, 64.0]."),
        ({"global_batch_size": list(range(1, 1002))}, "A matrix has at most 1000 comparisons. Received: 1001 or more."),
    ],
)
def test_a_list_that_makes_no_matrix_is_refused_by_its_field(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as refusal:
        axes.expand(values)
    assert str(refusal.value).startswith(said)


def test_names_of_folders_are_plain_and_differ() -> None:
    labels = [{"data": "../слива"}, {"data": "../???"}, {"data": "a b"}, {"data": "a/b"}]
    assert axes.names(labels) == ["cell-1", "cell-2", "a_b-3", "a_b-4"]
