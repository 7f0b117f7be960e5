"""Can a learned model prune the checker's search? The figures of `README.md#learned-pruning`.

    python -m plugins.hangs.research.learned_pruning

Every program is searched exhaustively once. That gives a tree: each execution hangs below the decision that it takes otherwise
than the execution that it came from. A policy cuts decisions off, with all that hangs below them. What is left says how many
nodes it visits and which bugs it still finds. So policies are compared on the same executions.

A decision is an example. It is worth something if a finding that is not known yet hangs below it. A random forest learns that
from the programs of some kinds of bugs, and prunes those of other kinds, which it has never seen. After each fit the decisions
that it cut off although a bug of the training kinds hung there alone are given again, with more weight.
"""

from __future__ import annotations

import ast
import functools
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestClassifier

from convtwins_hangs.concurrency import search, sources
from convtwins_hangs.concurrency.meanings import KnownNames
from convtwins_hangs.concurrency.program import Program, last_name
from convtwins_hangs.concurrency.state import DecisionKind, DecisionPath, SearchBudget, SearchLimitReached, SimulatedThread
from plugins.hangs.tests.corpus import generator

NODES = 20_000
SEEDS, FOLDS, ROUNDS = 10, 5, 5
UNUSUAL = 3
"""Of an exhaustive search: the most unusual decisions of an execution."""
MISSED = 10.0
"""The weight of an example that would be cut off by mistake grows so many times with each mistake."""
KINDS: tuple[DecisionKind, ...] = ("start", "preempt", "branch", "turns", "exception", "time-out")
_NO_EXCHANGE = 99
_EXCHANGES = {
    "barrier", "all_reduce", "all_gather", "broadcast", "reduce", "gather", "scatter", "send", "recv", "backward", "acquire",
    "release", "get", "put", "join", "wait", "set", "notify", "notify_all", "submit", "result", "task_done", "start",
}  # fmt: skip
FEATURES = (
    *(f"is {kind}" for kind in KINDS),
    *("alternative", "alternatives", "place", "unusual before", "same place before", "threads or ranks", "is a rank", "depth"),
    *("locks held by it", "locks held by all", "collectives before", "nodes to an exchange", "test mentions the rank"),
    *("waits for a lock", "waits for a queue", "waits in a collective", "others can go on"),
)


class RecordedPath(DecisionPath):
    """A path that keeps the features of each decision."""

    def __init__(self, prefix: Sequence[int], distances: dict[Any, int]) -> None:
        """Args:
        distances: results of `_distance`, shared by the executions of one root.
        """
        super().__init__(prefix)
        self.features: list[list[float]] = []
        """All features of each decision but the alternative."""
        self._distances = distances
        self._num_visits: Counter[Any] = Counter()

    def choose(self, alternatives: int, kind: DecisionKind, thread: SimulatedThread) -> int:
        if alternatives > 1:
            self.features.append(self._features(alternatives, kind, thread))
        return super().choose(alternatives, kind, thread)

    def _features(self, alternatives: int, kind: DecisionKind, thread: SimulatedThread) -> list[float]:
        frame = thread.frame if thread.frames else None
        node = frame.graph.nodes[min(frame.current_node, len(frame.graph.nodes) - 1)] if frame is not None else None
        self._num_visits[kind, id(node)] += 1
        operation = thread.pending if kind == "preempt" else None
        description = operation.description if operation is not None else ""
        awaited = f"{getattr(operation and operation.sync_object, 'kind', '')}{description}".lower()
        return [
            *(float(kind == other_kind) for other_kind in KINDS),
            float(alternatives),
            float(len(self.decisions)),
            float(sum(chosen > 0 for chosen, _ in self.decisions)),
            float(self._num_visits[kind, id(node)]),
            float(len(self.threads)),
            float(thread.os_process.rank is not None),
            float(len(thread.frames)),
            float(len(thread.held_locks)),
            float(sum(len(other.held_locks) for other in self.threads)),
            float(thread.num_collectives),
            float(self._distance(frame) if frame is not None else _NO_EXCHANGE),
            float(node is not None and isinstance(node.tree, ast.AST) and "rank" in ast.dump(node.tree).lower()),
            float("lock" in awaited or "acquire" in awaited),
            float("queue" in awaited or "get" in awaited or "put" in awaited),
            float(operation is not None and bool(operation.kind)),
            float(alternatives - 1 if kind == "preempt" else 0),
        ]

    def _distance(self, frame: Any) -> int:
        """Return the nodes from here to something that others notice. `_NO_EXCHANGE`: nothing of this function is."""
        key = id(frame.graph), frame.current_node
        if key not in self._distances:
            seen, ring, steps = {frame.current_node}, [frame.current_node], 0
            while ring and not any(_exchanges(frame.graph.nodes[each]) for each in ring):
                ways = {way for each in ring for way in frame.graph.nodes[each].successors if way < len(frame.graph.nodes)}
                ring, steps = sorted(ways - seen), steps + 1
                seen |= ways
            self._distances[key] = steps if ring else _NO_EXCHANGE
        return self._distances[key]


def _exchanges(node: Any) -> bool:
    return isinstance(node.tree, ast.Call) and last_name(node.tree.func) in _EXCHANGES


@dataclass
class Run:
    """One execution of the tree."""

    nodes: int
    found: frozenset[tuple[str, str]]
    """(rule, line)."""
    example: int | None
    """Of the decision that it hangs below. None: a root."""
    parent: int | None


@dataclass
class Tree:
    program: generator.Program
    runs: list[Run] = field(default_factory=list[Run])
    examples: list[list[float]] = field(default_factory=list[list[float]])
    unusual: list[int] = field(default_factory=list[int])
    """Of each example: how many unusual decisions lead there, it among them."""
    in_part: bool = False
    """Whether the budget of nodes ended it."""

    @property
    def kind(self) -> str:
        return ", ".join(self.program.rules)

    def walked(self, keep: Callable[[int], bool]) -> tuple[int, set[tuple[str, str]]]:
        """(nodes, findings) of what a policy leaves. `keep` is asked for each example once."""
        alive: list[bool] = []
        nodes, found = 0, set[tuple[str, str]]()
        for run in self.runs:
            alive.append(run.parent is None or (alive[run.parent] and keep(run.example if run.example is not None else -1)))
            if alive[-1]:
                nodes += run.nodes
                found |= run.found
        return nodes, found

    def worth(self) -> list[bool]:
        """Of each example: whether a finding hangs below it that no earlier execution has."""
        known, worth = set[tuple[str, str]](), [False] * len(self.examples)
        for place, run in enumerate(self.runs):
            if run.found - known:
                at: int | None = place
                while at is not None:
                    example = self.runs[at].example
                    if example is not None:
                        worth[example] = True
                    at = self.runs[at].parent
            known |= run.found
        return worth

    def has_bug(self, found: set[tuple[str, str]]) -> bool:
        return bool({rule for rule, _ in found} & set(self.program.rules))


def tree_of(program: generator.Program, folder: FilePath, *, prune: bool, nodes: int = NODES) -> Tree:
    """Search a program, and keep the tree of its executions."""
    path = folder / f"{program.name}.py"
    path.write_text(program.text)
    checked, tree = Program(sources.read(str(path)), KnownNames()), Tree(program)
    entered: set[int] = set()
    for root in checked.roots():
        if root.function is not None and id(root.function) in entered:
            continue
        budget, visited = SearchBudget(nodes, 60.0), 0
        new_path = functools.partial(RecordedPath, distances=dict[Any, int]())
        origins: dict[tuple[int, ...], tuple[int | None, int | None, int]] = {(): (None, None, 0)}
        """(example, parent, unusual decisions) of an execution, by the decisions that it begins with."""
        for exploration in search.explore(checked, root, budget, max_unusual=UNUSUAL, prune=prune, new_path=new_path):
            taken, num_inherited = exploration.path, exploration.num_inherited
            entered |= exploration.execution.entered_functions if exploration.execution is not None else set[int]()
            tree.in_part |= isinstance(exploration.error, SearchLimitReached)
            if exploration.error is not None:
                continue
            found = frozenset((finding.rule, str(finding.line)) for finding in exploration.findings)
            example, parent, unusual = origins.pop(taken.taken[:num_inherited])
            tree.runs.append(Run(budget.visited - visited, found, example, parent))
            visited = budget.visited
            assert isinstance(taken, RecordedPath)
            for place in range(num_inherited, len(taken.decisions) if unusual < UNUSUAL else 0):
                for other in range(1, taken.decisions[place][1]):
                    features = taken.features[place]
                    origins[*taken.taken[:place], other] = len(tree.examples), len(tree.runs) - 1, unusual + 1
                    tree.examples.append([*features[:6], float(other), *features[6:]])
                    tree.unusual.append(unusual + 1)
        if root.function is not None:
            entered.add(id(root.function))
    return tree


def learned(
    trees: Sequence[Tree], seed: int, folds: int = FOLDS, rounds: int = ROUNDS
) -> tuple[Callable[[Tree], Callable[[int], bool]], Any]:
    """(a policy that was fitted to these programs, its model).

    The threshold is the largest where none of these programs loses its bug, by models that were fitted to programs of other
    kinds. What is lost at half of it is given again, with more weight.
    """
    values = np.concatenate([_values(each) for each in trees])
    labels = np.concatenate([np.array(each.worth(), bool) for each in trees])
    kinds = np.concatenate([np.full(len(each.examples), each.kind) for each in trees])
    bounds = np.cumsum([0, *(len(each.examples) for each in trees)])
    names = random.Random(seed).sample(sorted(set(kinds)), len(set(kinds)))
    weights, threshold = np.ones(len(labels)), 0.0
    for _ in range(rounds):
        scores = np.zeros(len(labels))
        for fold in range(folds):
            own = np.isin(kinds, names[fold::folds])
            scores[own] = _scores(_fitted(values[~own], labels[~own], weights[~own], seed), values[own])
        threshold = _largest_without_a_miss(trees, scores, bounds)
        mistaken = labels & (scores < np.quantile(scores, 0.7))
        if not mistaken.any():
            break
        weights[mistaken] *= MISSED
    model = _fitted(values, labels, weights, seed)

    def policy(tree: Tree) -> Callable[[int], bool]:
        own = _scores(model, _values(tree))
        return lambda example: bool(own[example] >= threshold)

    return policy, model


def _values(tree: Tree) -> npt.NDArray[np.float64]:
    return np.array(tree.examples, np.float64).reshape(-1, len(FEATURES))


def _fitted(
    values: npt.NDArray[np.float64], labels: npt.NDArray[np.bool_], weights: npt.NDArray[np.float64], seed: int
) -> RandomForestClassifier:
    forest = RandomForestClassifier(30, max_depth=8, min_samples_leaf=10, class_weight="balanced", random_state=seed, n_jobs=1)
    return forest.fit(values, labels, sample_weight=weights)


def _scores(model: RandomForestClassifier, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if len(values) == 0 or len(model.classes_) < 2:
        return np.zeros(len(values))
    return np.asarray(model.predict_proba(values))[:, 1]


def _largest_without_a_miss(trees: Sequence[Tree], scores: npt.NDArray[np.float64], bounds: npt.NDArray[np.int64]) -> float:
    """Of 40 thresholds. 0 if each loses a bug."""
    for threshold in np.unique(np.quantile(scores, np.linspace(0, 1, 40)))[::-1]:
        kept: list[bool] = (scores >= threshold).tolist()
        if all(
            not tree.program.planted or tree.has_bug(tree.walked(kept[low:].__getitem__)[1])
            for tree, low in zip(trees, bounds.tolist(), strict=False)
        ):
            return float(threshold)
    return 0.0


def main() -> None:
    compare_policies(generator.programs())


def compare_policies(
    programs: Sequence[generator.Program], nodes: int = NODES, seeds: int = SEEDS, folds: int = FOLDS, rounds: int = ROUNDS
) -> None:
    """Search, learn, and print the table."""
    trees = dict[bool, dict[str, Tree]]()
    with tempfile.TemporaryDirectory() as folder:
        for prune in (False, True):
            started = time.process_time()
            trees[prune] = {each.name: tree_of(each, FilePath(folder), prune=prune, nodes=nodes) for each in programs}
            word = "plain rule" if prune else "no pruning"
            in_part = sum(each.in_part for each in trees[prune].values())
            print(f"{word}: {time.process_time() - started:.0f} CPU seconds, {in_part} programs explored in part by the budget")
    exhaustive = {name: tree.walked(lambda _: True) for name, tree in trees[False].items()}
    rows: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    missed: dict[str, Counter[str]] = defaultdict(Counter)
    kinds = sorted({tree.kind for tree in trees[True].values()})
    for seed in range(seeds):
        drawn = random.Random(seed).sample(kinds, len(kinds))
        policies: dict[str, list[Callable[[Tree], Callable[[int], bool]]]] = {
            "no pruning": [lambda _: lambda _: True] * folds,
            "skip what others do not notice": [lambda _: lambda _: True] * folds,
            "the same, at most two unusual decisions": [lambda tree: lambda example: tree.unusual[example] <= 2] * folds,
            "the same, at most one": [lambda tree: lambda example: tree.unusual[example] <= 1] * folds,
            "learned, on top of the skipping": [
                learned([each for each in trees[True].values() if each.kind not in drawn[fold::folds]], seed, folds, rounds)[0]
                for fold in range(folds)
            ],
        }
        for name, of_folds in policies.items():
            own, total, whole = trees[name != "no pruning"], 0, 0
            hits: dict[str, list[bool]] = defaultdict(list)
            for fold, policy in enumerate(of_folds):
                for each in own.values():
                    if each.kind in drawn[fold::folds]:
                        visited, found = each.walked(policy(each))
                        total += visited
                        whole += exhaustive[each.program.name][0]
                        if each.program.planted:
                            hits[each.program.family].append(each.has_bug(found))
                            missed[name][each.program.family] += not hits[each.program.family][-1]
            every = [hit for of in hits.values() for hit in of]
            rows[name].append((total / whole, sum(every) / len(every), _lowest(list(hits.values()), seed)))
    planted = sum(program.planted for program in programs)
    print(f"| policy | nodes, of an exhaustive search | bugs found, of {planted} on held-out kinds | 95 % bound by family |")
    print("|---|---|---|---|")
    for name, each in rows.items():
        share, recall, low = (np.array(column) for column in zip(*each, strict=True))
        print(
            f"| {name} | {statistics.median(share):.1%} ({share.min():.1%} to {share.max():.1%}) "
            f"| {statistics.median(recall):.1%} ({recall.min():.1%} to {recall.max():.1%}) | {statistics.median(low):.1%} |"
        )
    for name, families in missed.items():
        if any(families.values()):
            print(f"{name} misses: {dict(families.most_common(6))}")
    _, model = learned(list(trees[True].values()), 0, folds, rounds)
    ranked = sorted(zip(model.feature_importances_, FEATURES, strict=True), reverse=True)[:6]
    print("what the model looks at:", ", ".join(f"{feature} {share:.0%}" for share, feature in ranked))


def _lowest(families: Sequence[Sequence[bool]], seed: int) -> float:
    """The lower 95 % bound of the recall. Families are drawn again, for variants of one are alike. If none misses a bug, it is
    that of as many families where none did.
    """
    if all(all(each) for each in families):
        return 0.05 ** (1 / len(families))
    draw = np.random.default_rng(seed)
    sums, sizes = (np.array(each) for each in ([sum(of) for of in families], [len(of) for of in families]))
    places = draw.integers(0, len(families), (4000, len(families)))
    return float(np.quantile(sums[places].sum(1) / sizes[places].sum(1), 0.05))


if __name__ == "__main__":
    main()
