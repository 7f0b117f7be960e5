"""Learned pruning: it runs, and its policies are compared on the same executions."""

import dataclasses
import re
from pathlib import Path

import pytest

from plugins.hangs.research import learned_pruning
from plugins.hangs.tests.corpus import generator

FAMILIES = ("stopper_of_one_rank", "event_not_set", "own_error", "no_notify", "not_released", "cache_and_stats", "global_total")
"""Families with few nodes, of five kinds of bugs."""
POLLING = """
import threading

ready = threading.Event()

def work():
    ready.set()

thread = threading.Thread(target=work)
thread.start()
while not ready.wait(1):
    pass
thread.join()
"""
"""No family waits with a timeout in a loop."""
PROGRAMS = [generator.made(family, seed) for family in FAMILIES for seed in (0, 1, 2)]


def kinds(tree: learned_pruning.Tree) -> set[str]:
    """The kinds of decisions of a tree, by the features that say so."""
    return {
        name.removeprefix("is ")
        for example in tree.examples
        for name, value in zip(learned_pruning.FEATURES, example, strict=True)
        if value and name.removeprefix("is ") in learned_pruning.KINDS
    }


def test_every_kind_of_decision_is_an_example_that_is_worth_something_where_a_bug_hangs_below(tmp_path: Path) -> None:
    trees = [learned_pruning.tree_of(program, tmp_path, prune=True, nodes=600) for program in PROGRAMS]
    polling = dataclasses.replace(generator.made("no_notify", 0), text=POLLING)
    polling_tree = learned_pruning.tree_of(polling, tmp_path, prune=True, nodes=600)
    assert set().union(*map(kinds, [*trees, polling_tree])) == set(learned_pruning.KINDS)
    for tree in trees:
        nodes, found = tree.walked(lambda _: True)
        usual_nodes, _ = tree.walked(lambda _: False)
        assert tree.has_bug(found) == tree.program.planted and usual_nodes <= nodes
        assert not any(tree.worth()) or tree.program.planted


def test_the_policies_are_compared_and_the_plain_rule_loses_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    learned_pruning.compare_policies(PROGRAMS, nodes=600, seeds=1, folds=2, rounds=1)
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    figures = {row[0].removeprefix("| "): [float(re.findall(r"[\d.]+", cell)[0]) for cell in row[1:]] for row in rows}
    assert len(figures) == 5 and figures["no pruning"][0] == 100.0
    assert figures["skip what others do not notice"][1] == figures["the same, at most two unusual decisions"][1] == 100.0
    assert figures["the same, at most one"][0] < figures["the same, at most two unusual decisions"][0] <= 100.0
    assert all(0.0 <= share <= 100.0 for row in figures.values() for share in row)
