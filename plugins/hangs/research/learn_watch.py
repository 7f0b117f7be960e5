"""Learn from recordings whether a rank is stuck, and compare what was learned with the rules of `watch` on other runs.

    python -m plugins.hangs.research.learn_watch DIR --write

DIR holds recordings of `plugins.hangs.research.footprints`. The tree of `learned.py` is fitted, and judged on
recordings that it was not fitted to: of other modes, of other loads, and of kinds of fault that it has never seen. Its
threshold is chosen on the recordings that it is fitted to. `--write` stores the tree that is fitted to all of them.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats
from sklearn.tree import DecisionTreeClassifier

from convtwins_hangs.watching.member import Look
from convtwins_hangs.watching.verdict import STUCK
from plugins.hangs.research import learned
from plugins.hangs.research.footprints import FAULTS, PATIENCES

STUCK_FAULTS = ("stopped", "spinning", "lock", "queue", "collective", "livelocked", "network_cut")
OF_ALL_RANKS = ("starved", "network_cut")
"""Faults that no rank has alone."""
DEPTH, LEAF = 6, 0.002
"""Of the tree: its depth, and the part of all windows that a leaf has at least."""
THRESHOLDS, LASTING = (0.8, 0.9, 0.95, 0.98), (0.0, 1.0, 2.0, 3.0)
FOLDS = 5


class Moment(NamedTuple):
    """A look of a recording: what the tree asks for, by rank, and what the rules said then."""

    at: float
    values: dict[str, dict[str, float]]
    by_rules: dict[str, list[Any]]


class Recording(NamedTuple):
    """A recording, read."""

    framework: str
    mode: str
    fault: str
    begun: float
    culprit: str | None
    load: float
    moments: list[Moment]

    @property
    def is_stuck(self) -> bool:
        return self.fault in STUCK_FAULTS

    def without_progress(self) -> Recording:
        """The same as of a job of others, which leaves no marks of progress."""
        unknown = {"seconds without progress": learned.UNKNOWN_VALUE}
        moments = [
            each._replace(values={rank: found | unknown for rank, found in each.values.items()}) for each in self.moments
        ]
        return self._replace(moments=moments)

    @property
    def healthy_seconds(self) -> float:
        """In which an alarm is false."""
        return self.begun if self.is_stuck else self.moments[-1].at

    def kind(self, moment: Moment, rank: str) -> str | None:
        """What a rank was in the last seconds. None: it changed in them."""
        if self.fault == "normal" or moment.at < self.begun:
            return "normal"
        if moment.at < self.begun + learned.WINDOW_SECONDS:
            return None
        return self.fault if self.fault in OF_ALL_RANKS or self.culprit in (None, rank) else "normal"


def read(path: Path) -> Recording:
    document = json.loads(gzip.decompress(path.read_bytes()))
    kept: dict[str, list[Look]] = {}
    changed: dict[str, tuple[Any, float]] = {}
    moments: list[Moment] = []
    for look in document["looks"]:
        seen: dict[str, learned.RankUsage] = {}
        for name, each in look["ranks"].items():
            if "seconds" not in each:  # it has ended, or was just found
                continue
            kept.setdefault(name, []).append(Look._make(each[field] or 0 for field in Look._fields))
            quiet = None
            if each["marks"] is not None:
                if name not in changed or changed[name][0] != each["marks"]:
                    changed[name] = each["marks"], look["at"]
                quiet = look["at"] - changed[name][1]
            seen[name] = learned.RankUsage(kept[name], each["stopped"], quiet)
        rules = {key: value for key, value in look.items() if key.startswith("rule ")}
        moments.append(Moment(look["at"], learned.features(seen), rules))
    fields = {name: document[name] for name in ("framework", "mode", "fault", "begun", "culprit", "load")}
    return Recording(**fields, moments=moments)


def fitted(recordings: Sequence[Recording]) -> DecisionTreeClassifier:
    """The tree. Each window is there twice, the second time without marks of progress, which others' jobs do not leave."""
    rows: list[list[float]] = []
    kinds: list[str] = []
    for each in recordings:
        for moment in each.moments:
            for rank, values in moment.values.items():
                if (kind := each.kind(moment, rank)) is not None:
                    rows.append([values[field] for field in learned.FEATURES])
                    kinds.append(kind)
    seen = np.array(rows)
    blind = seen.copy()
    blind[:, learned.FEATURES.index("seconds without progress")] = learned.UNKNOWN_VALUE
    counts = Counter(kinds)
    stuck = np.array([kind in STUCK_FAULTS for kind in kinds])
    # Each kind weighs as much as any other on its side, and both sides weigh the same.
    sides = {side: sum((kind in STUCK_FAULTS) == side for kind in counts) for side in (True, False)}
    weights = np.array([1.0 / counts[kind] / sides[kind in STUCK_FAULTS] for kind in kinds])
    tree = DecisionTreeClassifier(max_depth=DEPTH, min_samples_leaf=math.ceil(LEAF * 2 * len(rows)), random_state=0)
    return tree.fit(np.vstack([seen, blind]), np.concatenate([stuck, stuck]), np.concatenate([weights, weights]))


def nodes(tree: DecisionTreeClassifier) -> list[learned.TreeNode]:
    found: list[learned.TreeNode] = []
    inside = tree.tree_
    for number in range(inside.node_count):
        part = float(inside.value[number][0][1] / inside.value[number][0].sum())
        if inside.children_left[number] < 0:
            found.append(learned.TreeNode(stuck=part))
        else:
            below, above = int(inside.children_left[number]), int(inside.children_right[number])
            field, border = learned.FEATURES[inside.feature[number]], float(inside.threshold[number])
            found.append(learned.TreeNode(field=field, border=border, below=below, above=above, stuck=part))
    return found


class Alarm(NamedTuple):
    at: float
    ranks: list[str]


def first_alarm(tree: learned.DecisionTree, recording: Recording) -> Alarm | None:
    judge = learned.TreeJudge(tree)
    for moment in recording.moments:
        if said := judge.stuck(moment.values, moment.at):
            return Alarm(moment.at, list(said))
    return None


def alarm_of_rules(patience: float) -> Callable[[Recording], Alarm | None]:
    def first(recording: Recording) -> Alarm | None:
        for moment in recording.moments:
            state, ranks = moment.by_rules[f"rule {patience:g}"]
            if state == STUCK:
                return Alarm(moment.at, ranks)
        return None

    return first


class Score(NamedTuple):
    stuck: int
    found: int
    right: int
    """Of those found: the rank alone that has the fault was named, or any where it has no rank."""
    seconds: list[float]
    """From the fault to the alarm."""
    false_alarms: int
    hours: float
    """In which an alarm is false."""
    missed: Counter[str]

    def row(self, judge: str, split: str) -> str:
        most = stats.chi2.ppf(0.95, 2 * (self.false_alarms + 1)) / 2 / self.hours
        middle, late = np.quantile(self.seconds, (0.5, 0.95)) if self.seconds else (np.nan, np.nan)
        missed = ", ".join(f"{kind} {count}" for kind, count in self.missed.most_common()) or "none"
        return (
            f"| {judge} | {split} | {self.found} of {self.stuck} | {middle:.1f} ({late:.1f}) | {self.right} of {self.found} | "
            f"{self.false_alarms} in {self.hours:.2f} h (at most {most:.1f} an hour) | {missed} |"
        )


def score(alarms: Sequence[tuple[Recording, Alarm | None]]) -> Score:
    seconds: list[float] = []
    right = false = 0
    missed: Counter[str] = Counter()
    for each, alarm in alarms:
        if alarm is not None and (not each.is_stuck or alarm.at < each.begun):
            false += 1
        if each.is_stuck and (alarm is None or alarm.at < each.begun):
            missed[each.fault] += 1
        elif each.is_stuck and alarm is not None:
            seconds.append(alarm.at - each.begun)
            right += each.culprit is None or alarm.ranks == [each.culprit]
    stuck = sum(each.is_stuck for each, _ in alarms)
    hours = sum(each.healthy_seconds for each, _ in alarms) / 3600
    return Score(stuck, len(seconds), right, seconds, false, hours, missed)


def held_out(recordings: Sequence[Recording], groups: Sequence[int]) -> Iterator[tuple[Recording, learned.DecisionTree]]:
    """Each recording with a tree that was fitted to those of other groups."""
    for group in sorted(set(groups)):
        tree = chosen([each for each, own in zip(recordings, groups, strict=True) if own != group])
        yield from ((each, tree) for each, own in zip(recordings, groups, strict=True) if own == group)


def chosen(recordings: Sequence[Recording]) -> learned.DecisionTree:
    """The tree of these recordings. Its threshold has the fewest false alarms in a part that a tree was not fitted to, then the
    most hangs found, then the earliest alarms.
    """
    set_aside = sorted({each.mode for each in recordings})[::3]
    aside = [each for each in recordings if each.mode in set_aside]
    inner = nodes(fitted([each for each in recordings if each.mode not in set_aside]))

    def cost(threshold: float, lasting: float) -> tuple[float, ...]:
        tree = learned.DecisionTree(threshold=threshold, lasting_seconds=lasting, nodes=inner)
        found = score([(each, first_alarm(tree, each)) for each in aside])
        return found.false_alarms, -found.found, float(np.median(found.seconds)) if found.seconds else np.inf

    threshold, lasting = min(itertools.product(THRESHOLDS, LASTING), key=lambda pair: cost(*pair))
    return learned.DecisionTree(threshold=threshold, lasting_seconds=lasting, nodes=nodes(fitted(recordings)))


def learn(folder: Path, *, write: bool, rules_alone: bool = False) -> None:
    recordings = [read(path) for path in sorted(folder.glob("*.json.gz"))]
    if not rules_alone and (missing := FAULTS.keys() - {each.fault for each in recordings}):
        sys.exit(f"{folder} has no recordings of {', '.join(sorted(missing))}. Record them first.")
    windows = Counter(
        kind
        for each in recordings
        for moment in each.moments
        for rank in moment.values
        if (kind := each.kind(moment, rank)) is not None
    )
    print(f"{len(recordings)} recordings; windows of one rank by kind: {dict(windows.most_common())}")
    loads = sorted(each.load for each in recordings)
    print(f"load: {loads[0]:.1f} to {loads[-1]:.1f}, median {loads[len(loads) // 2]:.1f}")
    print("\n| judge | held out | hangs found | seconds, median (95 %) | right rank | false alarms | not found |")
    print("|---|---|---|---|---|---|---|")
    for patience in PATIENCES:
        alarm = alarm_of_rules(patience)
        print(score([(each, alarm(each)) for each in recordings]).row(f"rules, patience {patience:g} s", "-"))
    if rules_alone:
        return
    modes, faults = (sorted({getattr(each, field) for each in recordings}) for field in ("mode", "fault"))
    splits = {
        "modes": [modes.index(each.mode) % FOLDS for each in recordings],
        "loads": [int(each.load > loads[len(loads) // 2]) for each in recordings],
        "kinds of fault": [faults.index(each.fault) for each in recordings],
    }
    for name, groups in splits.items():
        judged = list(held_out(recordings, groups))
        print(score([(each, first_alarm(tree, each)) for each, tree in judged]).row("tree", name))
        blind = [(each, first_alarm(tree, each.without_progress())) for each, tree in judged]
        print(score(blind).row("tree, steps not known", name), flush=True)
    tree = chosen(recordings)
    print(f"\nThe tree: {len(tree.nodes)} nodes, threshold {tree.threshold:g}, lasting {tree.lasting_seconds:g} s")
    if write:
        learned.MODEL_FILE.write_text(tree.model_dump_json(indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help=f"store the tree in {learned.MODEL_FILE.name}")
    parser.add_argument("--rules-alone", action="store_true", help="only what the rules said, of any recordings")
    given = parser.parse_args()
    learn(given.folder, write=given.write, rules_alone=given.rules_alone)


if __name__ == "__main__":
    main()
