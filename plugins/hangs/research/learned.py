"""Learned verdict on stuck jobs: a small decision tree over the ranks' resource use in the last seconds.

`python -m plugins.hangs.research.learn_watch` makes it from recordings of runs where something was planted. Unlike the
fixed rules of `watch`, it knows nothing of stacks. This watches a job, and lets the tree say whether it is stuck:

    python -m plugins.hangs.research.learned PID
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from common.frozen import Exact
from convtwins_hangs.watching import report, watch
from convtwins_hangs.watching.member import JobMember, Look, rate
from convtwins_hangs.watching.verdict import STUCK, UNKNOWN, Verdict, name_ended_members
from convtwins_hangs.watching.watcher import Watcher

MODEL_FILE = Path(__file__).with_name("learned.json")
WINDOW_SECONDS = 2.0
"""Seconds of looks that one prediction covers."""
UNKNOWN_VALUE = -1.0
MAX_QUIET_SECONDS = 20.0
"""Upper limit of the feature `seconds without progress`."""
_LOGARITHMIC = {
    "network": "network_bytes",
    "disk": "disk_bytes",
    "minor faults": "minor_faults",
    "major faults": "major_faults",
    "switches": "voluntary_switches",
    "forced switches": "involuntary_switches",
}
"""Fields of `Look` used as log(1 + rate a second), by feature name."""
_LINEAR = {
    "cores": "cpu_seconds",
    "helpers' cores": "helpers_cpu_seconds",
    "waits for a core": "core_wait_seconds",
    "wants": "wants",
    "waits for the disk": "disk_waits",
}
_FEATURES_OF_OTHERS = ("cores", "network", "switches", "wants")
FEATURES = (
    *(*_LINEAR, *_LOGARITHMIC, "stopped", "seconds without progress"),
    *(f"others' most {name}" for name in _FEATURES_OF_OTHERS),
    "others' least cores",
    "ranks",
)


class RankUsage(NamedTuple):
    """Resource use of a rank in the last seconds."""

    looks: Sequence[Look]
    is_stopped: bool
    quiet_seconds: float | None
    """Seconds since the last progress mark. None: the rank writes none."""


class TreeNode(Exact):
    """A node of the decision tree. A leaf has no field."""

    field: str | None = None
    border: float = 0.0
    below: int = 0
    """Index of the child for values up to the border."""
    above: int = 0
    stuck: float
    """Fraction of stuck training samples at this node, with both classes weighted equally."""


class DecisionTree(Exact):
    """The decision tree and its thresholds, as stored in learned.json."""

    threshold: float
    """Minimum stuck fraction where a rank counts as stuck."""
    lasting_seconds: float
    """Least seconds of counting as stuck before a rank is reported."""
    nodes: list[TreeNode]

    def predict(self, values: Mapping[str, float]) -> tuple[float, list[str]]:
        """Return (stuck fraction of the leaf, conditions on the path to it)."""
        node, conditions = self.nodes[0], list[str]()
        while node.field is not None:
            is_below = values[node.field] <= node.border
            border = math.expm1(node.border) if node.field.removeprefix("others' most ") in _LOGARITHMIC else node.border
            conditions.append(f"{node.field} {'at most' if is_below else 'above'} {border:.3g}")
            node = self.nodes[node.below if is_below else node.above]
        return node.stuck, conditions


def features(ranks: Mapping[str, RankUsage]) -> dict[str, dict[str, float]]:
    """Compute the features of each rank that was watched for long enough."""
    own_features: dict[str, dict[str, float]] = {}
    for name, usage in ranks.items():
        if sum(look.seconds for look in usage.looks) >= WINDOW_SECONDS:
            rank_features = {field: rate(usage.looks, look_field, WINDOW_SECONDS) for field, look_field in _LINEAR.items()}
            rank_features |= {
                field: math.log1p(rate(usage.looks, look_field, WINDOW_SECONDS)) for field, look_field in _LOGARITHMIC.items()
            }
            quiet_seconds = UNKNOWN_VALUE if usage.quiet_seconds is None else min(usage.quiet_seconds, MAX_QUIET_SECONDS)
            own_features[name] = rank_features | {"stopped": float(usage.is_stopped), "seconds without progress": quiet_seconds}
    all_features: dict[str, dict[str, float]] = {}
    for name, member_features in own_features.items():
        others = [other_features for other, other_features in own_features.items() if other != name]
        all_features[name] = member_features | {
            f"others' most {feature}": max((other_features[feature] for other_features in others), default=UNKNOWN_VALUE)
            for feature in _FEATURES_OF_OTHERS
        }
        all_features[name]["others' least cores"] = min(
            (other_features["cores"] for other_features in others), default=UNKNOWN_VALUE
        )
        all_features[name]["ranks"] = float(len(own_features))
    return all_features


class TreeJudge:
    """Judges the ranks of one job after each look."""

    def __init__(self, tree: DecisionTree) -> None:
        self._tree = tree
        self._stuck_since: dict[str, float] = {}

    def stuck(self, features_by_rank: Mapping[str, Mapping[str, float]], now: float) -> dict[str, str]:
        """Return the ranks that have counted as stuck for long enough, with the conditions.

        Args:
            features_by_rank: result of `features`.
            now: seconds of any clock.
        """
        reasons: dict[str, str] = {}
        # A rank that was away may have been started again.
        self._stuck_since = {name: since for name, since in self._stuck_since.items() if name in features_by_rank}
        for name, rank_features in features_by_rank.items():
            stuck_part, conditions = self._tree.predict(rank_features)
            if stuck_part < self._tree.threshold:
                self._stuck_since.pop(name, None)
            elif now - self._stuck_since.setdefault(name, now) >= self._tree.lasting_seconds:
                reasons[name] = ", ".join(conditions)
        return reasons

    def verdict(self, members: Sequence[JobMember], by_rules: Verdict, now: float) -> Verdict:
        """Return a verdict: stuck by the tree, otherwise by the fixed rules."""
        living = [member for member in members if not member.ended]
        usages = {member.name: RankUsage(member.looks, member.is_stopped, member.quiet_seconds) for member in living}
        if reasons := self.stuck(features(usages), now):
            words = "; ".join(f"{name} looks as stuck ones did ({why})" for name, why in reasons.items())
            return name_ended_members(Verdict(STUCK, words, tuple(reasons)), members)
        if by_rules.state == STUCK:
            return Verdict(UNKNOWN, f"the rules say that {by_rules.reason}, and it does not look as stuck jobs did")
        return by_rules


class TreeWatcher(Watcher):
    """A job under watch. The tree says whether it is stuck, and the fixed rules say the rest."""

    def __init__(self, pids: Sequence[int], patience: float, tree: DecisionTree) -> None:
        super().__init__(pids, patience, keep_seconds=WINDOW_SECONDS)
        self._tree_judge = TreeJudge(tree)

    def verdict(self) -> Verdict:
        return self._tree_judge.verdict(self.ranks, super().verdict(), self.last_look)


def load_tree() -> DecisionTree:
    """Load the stored decision tree."""
    return DecisionTree.model_validate_json(MODEL_FILE.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Watch a job as `convtwins watch` does, and judge it by the tree.")
    parser.add_argument("pids", type=int, nargs="+", metavar="PID")
    parser.add_argument("--seconds", type=float, help="watch for so long (default: until it is stuck or has ended)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two looks")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds without work after which the rules call it slow")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    given = parser.parse_args()
    try:
        with closing(TreeWatcher(given.pids, given.patience, load_tree())) as watcher:
            verdict = watch.last_verdict(watcher, given.seconds, given.interval)
            return report.report(watcher, verdict).deliver(None, as_json=given.json)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
