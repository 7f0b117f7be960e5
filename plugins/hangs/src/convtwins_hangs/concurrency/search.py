"""Depth-first search over the executions of every root. Those with the fewest unusual decisions come first."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from compare.cli import wording
from convtwins_hangs.concurrency import verdicts
from convtwins_hangs.concurrency.execution import Execution
from convtwins_hangs.concurrency.findings import ConcurrencyFinding, TraceStep
from convtwins_hangs.concurrency.program import Program, Root, bound_names, last_name
from convtwins_hangs.concurrency.state import DecisionPath, SearchBudget, SearchLimitReached

UNUSUAL = 2
"""Default maximum of unusual decisions in one execution: another branch, another thread first, an exception."""
_MAX_RANKS = 4


@dataclass
class SearchResult:
    """Findings, counts and unexplored parts of a search."""

    findings: list[ConcurrencyFinding] = field(default_factory=list[ConcurrencyFinding])
    roots: int = 0
    executions: int = 0
    nodes: int = 0
    nodes_to_first_finding: int | None = None
    """Nodes visited until the first finding. None: no finding."""
    assumptions: dict[TraceStep, bool] = field(default_factory=dict[TraceStep, bool])
    """Whether each unknown decision was always assumed to be the same on all ranks."""
    unexplored: list[str] = field(default_factory=list[str])
    """Messages about parts that were not explored, with the reason."""


def search(program: Program, *, nodes: int, seconds: float, unusual: int = UNUSUAL, prune: bool = True) -> SearchResult:
    """Explore a program.

    Args:
        nodes: maximum number of control-flow nodes to visit from one root.
        seconds: maximum time of the whole search.
        unusual: maximum number of unusual decisions in one execution.
        prune: whether to skip branches and loops without nodes that other threads or ranks can observe.
    """
    result = SearchResult(unexplored=list(program.unread_files))
    total_budget = SearchBudget(10**12, seconds)
    entered_functions: set[int] = set()
    locks_by_class: dict[ast.ClassDef, list[object]] = defaultdict(list)
    roots = program.roots()
    result.unexplored += program.unknown_calls(ranks=not roots)
    for root in roots:
        if root.function is not None and id(root.function) in entered_functions:
            continue
        if total_budget.out_of_time:
            result.unexplored.append(f"{root.title}: not begun: {seconds:g} s (--search-seconds)")
            continue
        result.roots += 1
        root_budget = SearchBudget(nodes, max(total_budget.seconds_left, 0.0), total_seconds=seconds)
        _explore_root(program, root, root_budget, result, entered_functions, locks_by_class, max_unusual=unusual, prune=prune)
        result.nodes += root_budget.visited
    for class_tree, locks in locks_by_class.items():
        result.findings += verdicts.lock_orders(locks, class_tree.name)  # pyright: ignore[reportArgumentType]
    result.findings = remove_duplicates(sorted(result.findings, key=lambda finding: finding.condition is not None))
    return result


class ExploredPath(NamedTuple):
    """One execution of a root, with what it found."""

    path: DecisionPath
    num_inherited: int
    """Number of decisions that come from an earlier execution. The last of them is taken otherwise than there."""
    execution: Execution | None
    findings: Sequence[ConcurrencyFinding] = ()
    has_more: bool = False
    """Whether other executions follow from it that have too many unusual decisions."""
    error: Exception | None = None
    """Reason why it did not end. Only calls that are nested too deeply let others follow."""


def explore(
    program: Program,
    root: Root,
    budget: SearchBudget,
    *,
    max_unusual: int,
    prune: bool,
    new_path: Callable[[tuple[int, ...]], DecisionPath] = DecisionPath,
) -> Iterator[ExploredPath]:
    """Execute a root in every way with few unusual decisions, until the budget is spent.

    Args:
        new_path: returns the path that begins with some decisions.
    """
    ranks = _num_ranks(root)
    # Even levels: by number of unusual decisions. Odd levels: also one by which ranks diverge only if their data differ.
    levels: list[list[tuple[int, ...]]] = [[()], *([] for _ in range(2 * max_unusual + 1))]
    while any(levels):
        level = next(index for index, level in enumerate(levels) if level)
        prefix, (unusual, is_data_dependent) = levels[level].pop(), divmod(level, 2)
        path, execution = new_path(prefix), None
        try:
            execution = Execution(program, path, budget, root, ranks, prune=prune)
            execution.run()
            findings = verdicts.judge(execution)
        except Exception as error:  # a defect of this checker must not hide what other roots have
            yield ExploredPath(path, len(prefix), execution, error=error)
            if isinstance(error, RecursionError):
                continue
            return
        others = [
            (position, alternative)
            for position in range(len(prefix), len(path.decisions))
            for alternative in range(1, path.decisions[position][1])
        ]
        yield ExploredPath(path, len(prefix), execution, findings, has_more=bool(others) and unusual == max_unusual)
        for position, alternative in others if unusual < max_unusual else []:
            depends_on_data = is_data_dependent or position in path.data_dependent
            levels[2 * (unusual + 1) + depends_on_data].append((*path.taken[:position], alternative))


def _explore_root(
    program: Program,
    root: Root,
    budget: SearchBudget,
    result: SearchResult,
    entered_functions: set[int],
    locks_by_class: dict[ast.ClassDef, list[object]],
    *,
    max_unusual: int,
    prune: bool,
) -> None:
    reasons: list[str] = []
    truncated_loops: dict[str, None] = {}
    for exploration in explore(program, root, budget, max_unusual=max_unusual, prune=prune):
        if (execution := exploration.execution) is not None:
            entered_functions |= execution.entered_functions
            truncated_loops |= execution.truncated_loops
            for step, is_same in execution.assumptions.items():
                result.assumptions[step] = is_same and result.assumptions.get(step, True)
            if root.class_tree is not None:
                locks_by_class[root.class_tree] += execution.lock_acquisitions
        match exploration.error:
            case None:
                result.executions += 1
                result.findings += exploration.findings
                if exploration.findings and result.nodes_to_first_finding is None:
                    result.nodes_to_first_finding = result.nodes + budget.visited
                if exploration.has_more:
                    reasons.append(f"executions with more than {wording.count(max_unusual, 'unusual decision')} left out")
            case SearchLimitReached() as error:
                reasons.append(str(error))
            case RecursionError():
                reasons.append("calls that are nested too deeply left out")
            case error:
                result.unexplored.append(f"{root.title}: the checker failed ({type(error).__name__}: {error})")
    if root.function is not None:
        entered_functions.add(id(root.function))
    reasons += truncated_loops
    if reasons:
        result.unexplored.append(f"{root.title}: explored in part: {'; '.join(dict.fromkeys(reasons))}")


def _num_ranks(root: Root) -> int:
    """Return the number of ranks to simulate: one more than the largest rank that the code names."""
    largest = 1
    for node in ast.walk(root.module.tree):
        numbers: list[ast.expr] = []
        if isinstance(node, ast.Compare) and "rank" in last_name(node.left):
            numbers = node.comparators
        elif isinstance(node, ast.Call) and last_name(node.func) == "new_group":
            arguments = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "ranks")]
            names = {argument.id for argument in arguments if isinstance(argument, ast.Name)}
            arguments += [
                statement.value
                for statement in ast.walk(root.module.tree)
                if isinstance(statement, ast.Assign) and names & {*bound_names(statement)}
            ]
            numbers = [element for tree in arguments for element in getattr(tree, "elts", [])]
        for number in numbers:
            if isinstance(number, ast.Constant) and isinstance(number.value, int):
                largest = max(largest, number.value)
    return min(largest + 1, _MAX_RANKS)


def remove_duplicates(findings: Sequence[ConcurrencyFinding]) -> list[ConcurrencyFinding]:
    """Remove duplicate findings: keep the first of each family at overlapping locations."""
    unique: list[ConcurrencyFinding] = []
    families = {
        "collective-order": "collective-missing",
        "collective-group": "collective-missing",
        "never-signalled": "queue-deadlock",
    }
    for finding in findings:
        family = families.get(finding.rule, finding.rule)
        if not any(
            (families.get(other.rule, other.rule) == family and (finding.file, finding.line) in other.locations)
            or (other.locations == finding.locations and other.rule == finding.rule)
            for other in unique
        ):
            unique.append(finding)
    return unique
