"""Stuck or not, as learned from recordings: a small decision tree over what the ranks used in the last seconds.

`python -m tests.benchmarks.learn_watch` makes it from recordings of runs in which something was planted. Unlike the fixed
rules of `verdict`, it knows nothing of stacks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from common.frozen import Exact
from compare.watching.member import Look, Member, rate
from compare.watching.verdict import STUCK, UNKNOWN, Verdict, with_ended

MODEL = Path(__file__).with_name("learned.json")
SECONDS = 2.0
"""Of looks that one judgement is made of."""
NOT_KNOWN = -1.0
MOST_QUIET = 20.0
"""Seconds without progress. More are no other case."""
_COUNTS = {
    "network": "network_bytes",
    "disk": "disk_bytes",
    "minor faults": "minor_faults",
    "major faults": "major_faults",
    "switches": "voluntary_switches",
    "forced switches": "involuntary_switches",
}
"""Taken as the logarithm of one more than a second has of them."""
_PARTS = {
    "cores": "cpu_seconds",
    "helpers' cores": "helpers_cpu_seconds",
    "waits for a core": "core_wait_seconds",
    "wants": "wants",
    "waits for the disk": "disk_waits",
}
_OF_OTHERS = ("cores", "network", "switches", "wants")
FIELDS = (
    *(*_PARTS, *_COUNTS, "stopped", "seconds without progress"),
    *(f"others' most {name}" for name in _OF_OTHERS),
    "others' least cores",
    "ranks",
)


class Seen(NamedTuple):
    """A rank in the last seconds."""

    looks: Sequence[Look]
    stopped: bool
    quiet_seconds: float | None
    """Since its last mark of progress. None: it leaves none."""


class Node(Exact):
    """Of the tree. A leaf has no field."""

    field: str | None = None
    border: float = 0.0
    below: int = 0
    """The node for values up to the border."""
    above: int = 0
    stuck: float
    """Part of what came here in training that was stuck, both kinds weighed alike."""


class Tree(Exact):
    """learned.json."""

    threshold: float
    """A rank is called stuck from this part on ..."""
    lasting_seconds: float
    """... after so long."""
    nodes: list[Node]

    def way(self, values: Mapping[str, float]) -> tuple[float, list[str]]:
        """(part that was stuck, conditions on the way to it)."""
        node, said = self.nodes[0], list[str]()
        while node.field is not None:
            is_below = values[node.field] <= node.border
            border = math.expm1(node.border) if node.field.removeprefix("others' most ") in _COUNTS else node.border
            said.append(f"{node.field} {'at most' if is_below else 'above'} {border:.3g}")
            node = self.nodes[node.below if is_below else node.above]
        return node.stuck, said


def values(ranks: Mapping[str, Seen]) -> dict[str, dict[str, float]]:
    """What the tree asks for, of each rank that was looked at for long enough."""
    own: dict[str, dict[str, float]] = {}
    for name, seen in ranks.items():
        if sum(look.seconds for look in seen.looks) >= SECONDS:
            found = {field: rate(seen.looks, of, SECONDS) for field, of in _PARTS.items()}
            found |= {field: math.log1p(rate(seen.looks, of, SECONDS)) for field, of in _COUNTS.items()}
            quiet = NOT_KNOWN if seen.quiet_seconds is None else min(seen.quiet_seconds, MOST_QUIET)
            own[name] = found | {"stopped": float(seen.stopped), "seconds without progress": quiet}
    whole: dict[str, dict[str, float]] = {}
    for name, mine in own.items():
        others = [each for other, each in own.items() if other != name]
        whole[name] = mine | {f"others' most {of}": max((each[of] for each in others), default=NOT_KNOWN) for of in _OF_OTHERS}
        whole[name]["others' least cores"] = min((each["cores"] for each in others), default=NOT_KNOWN)
        whole[name]["ranks"] = float(len(own))
    return whole


class Judge:
    """Judges the ranks of one job, look after look."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._since: dict[str, float] = {}

    def stuck(self, found: Mapping[str, Mapping[str, float]], now: float) -> dict[str, str]:
        """Ranks that have looked stuck for long enough, and why.

        Args:
            found: see `values`.
            now: seconds of any clock.
        """
        said: dict[str, str] = {}
        # A rank that was away may have been started again.
        self._since = {name: since for name, since in self._since.items() if name in found}
        for name, each in found.items():
            part, conditions = self._tree.way(each)
            if part < self._tree.threshold:
                self._since.pop(name, None)
            elif now - self._since.setdefault(name, now) >= self._tree.lasting_seconds:
                said[name] = ", ".join(conditions)
        return said

    def verdict(self, members: Sequence[Member], by_rules: Verdict, now: float) -> Verdict:
        """Whether the job is stuck. What else it is, the fixed rules say."""
        living = [each for each in members if not each.ended]
        seen = {each.name: Seen(each.looks, each.stopped, each.quiet_seconds) for each in living}
        if said := self.stuck(values(seen), now):
            words = "; ".join(f"{name} looks as stuck ones did ({why})" for name, why in said.items())
            return with_ended(Verdict(STUCK, words, tuple(said)), members)
        if by_rules.state == STUCK:
            return Verdict(UNKNOWN, f"the rules say that {by_rules.because}, and it does not look as stuck jobs did")
        return by_rules


def stored() -> Tree:
    """The tree that was learned."""
    return Tree.model_validate_json(MODEL.read_text(encoding="utf-8"))
