"""The search: every root's executions, depth first, those with the fewest unusual decisions before others."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from compare.concurrency import verdicts
from compare.concurrency.execution import Execution
from compare.concurrency.findings import ConcurrencyFinding, TraceStep
from compare.concurrency.program import Program, Root, bound, last_name
from compare.concurrency.state import SearchBudget, SearchLimitReached, DecisionPath
from compare.core import wording

UNUSUAL = 2
"""Decisions of one execution that differ from the usual one: another branch, another thread first, an exception."""
_MOST_RANKS = 4


@dataclass
class Searched:
    """What a search has found, and what it has left out."""

    findings: list[ConcurrencyFinding] = field(default_factory=list[ConcurrencyFinding])
    roots: int = 0
    executions: int = 0
    nodes: int = 0
    first: int | None = None
    """Nodes until the first finding."""
    assumed: dict[TraceStep, bool] = field(default_factory=dict[TraceStep, bool])
    """Unknown decision of ranks: whether it was always taken to be the same on all."""
    left: list[str] = field(default_factory=list[str])
    """What was not explored, and why."""


def search(program: Program, *, nodes: int, seconds: float, unusual: int = UNUSUAL, prune: bool = True) -> Searched:
    """Explore a program.

    Args:
        nodes: the most nodes of control-flow graphs that are visited from one root.
        seconds: the most time for all.
        unusual: the most unusual decisions of one execution.
        prune: skip branches and loops in which nothing happens that others notice.
    """
    found = Searched(left=list(program.unread))
    everything = SearchBudget(10**12, seconds)
    entered: set[int] = set()
    taken: dict[ast.ClassDef, list[object]] = defaultdict(list)
    roots = program.roots()
    found.left += program.not_known(ranks=not roots)
    for root in roots:
        if root.function is not None and id(root.function) in entered:
            continue
        if everything.out_of_time:
            found.left.append(f"{root.title}: not begun: {seconds:g} s (--search-seconds)")
            continue
        found.roots += 1
        own = SearchBudget(nodes, max(everything.seconds_left, 0.0), total_seconds=seconds)
        _explore(program, root, own, found, entered, taken, most_unusual=unusual, prune=prune)
        found.nodes += own.visited
    for of_class, locks in taken.items():
        found.findings += verdicts.lock_orders(locks, of_class.name)  # pyright: ignore[reportArgumentType]
    found.findings = distinct(sorted(found.findings, key=lambda each: each.condition is not None))
    return found


def _explore(
    program: Program,
    root: Root,
    budget: SearchBudget,
    found: Searched,
    entered: set[int],
    taken: dict[ast.ClassDef, list[object]],
    *,
    most_unusual: int,
    prune: bool,
) -> None:
    ranks = _ranks(root)
    # After those with as many unusual decisions, each with one by which ranks part only if their data differ.
    levels: list[list[tuple[int, ...]]] = [[()], *([] for _ in range(2 * most_unusual + 1))]
    why: list[str] = []
    shortened: dict[str, None] = {}
    while any(levels):
        level = next(place for place, level in enumerate(levels) if level)
        prefix, (unusual, doubtful) = levels[level].pop(), divmod(level, 2)
        path = DecisionPath(prefix)
        execution: Execution | None = None
        try:
            execution = Execution(program, path, budget, root, ranks, prune=prune)
            execution.run()
            findings = verdicts.judge(execution)
        except SearchLimitReached as spent:
            why.append(str(spent))
            break
        except RecursionError:
            why.append("calls that are nested too deeply left out")
            continue
        except Exception as error:  # a defect of this checker must not hide what other roots have
            found.left.append(f"{root.title}: the checker failed ({type(error).__name__}: {error})")
            break
        finally:
            if execution is not None:
                entered |= execution.entered_functions
                shortened |= execution.truncated_loops
                for step, same in execution.assumptions.items():
                    found.assumed[step] = same and found.assumed.get(step, True)
                if root.of_class is not None:
                    taken[root.of_class] += execution.lock_acquisitions
        found.executions += 1
        found.findings += findings
        if findings and found.first is None:
            found.first = found.nodes + budget.visited
        decisions = [chosen for chosen, _ in path.decisions]
        for place in range(len(prefix), len(decisions)):
            for other in range(1, path.decisions[place][1]):
                if unusual + 1 <= most_unusual:
                    doubts = doubtful or place in path.data_dependent
                    levels[2 * (unusual + 1) + doubts].append((*decisions[:place], other))
                else:
                    why.append(f"executions with more than {wording.count(most_unusual, 'unusual decision')} left out")
    if root.function is not None:
        entered.add(id(root.function))
    why += shortened
    if why:
        found.left.append(f"{root.title}: explored in part: {'; '.join(dict.fromkeys(why))}")


def _ranks(root: Root) -> int:
    """How many ranks are needed to see what the code does: one more than the largest that it names."""
    largest = 1
    for node in ast.walk(root.module.tree):
        numbers: list[ast.expr] = []
        if isinstance(node, ast.Compare) and "rank" in last_name(node.left):
            numbers = node.comparators
        elif isinstance(node, ast.Call) and last_name(node.func) == "new_group":
            given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "ranks")]
            named = {each.id for each in given if isinstance(each, ast.Name)}
            given += [
                each.value for each in ast.walk(root.module.tree) if isinstance(each, ast.Assign) and named & {*bound(each)}
            ]
            numbers = [each for tree in given for each in getattr(tree, "elts", [])]
        for each in numbers:
            if isinstance(each, ast.Constant) and isinstance(each.value, int):
                largest = max(largest, each.value)
    return min(largest + 1, _MOST_RANKS)


def distinct(findings: Sequence[ConcurrencyFinding]) -> list[ConcurrencyFinding]:
    """Each finding once: the first of those that say the same of overlapping places."""
    kept: list[ConcurrencyFinding] = []
    family = {
        "collective-order": "collective-missing",
        "collective-group": "collective-missing",
        "never-signalled": "queue-deadlock",
    }
    for each in findings:
        own = family.get(each.rule, each.rule)
        if not any(
            (family.get(one.rule, one.rule) == own and (each.file, each.line) in one.locations)
            or (one.locations == each.locations and one.rule == each.rule)
            for one in kept
        ):
            kept.append(each)
    return kept
