"""Looks at all ranks of a job again and again."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence

from compare.watching import connections, learned
from compare.watching.job import Job
from compare.watching.member import MOST_TOGETHER, Member
from compare.watching.verdict import STUCK, Verdict, judge


class Watcher:
    """A job under watch.

    Args:
        pids: its processes, or one that started the others.
        patience: the rules call the job slow or stuck after so many seconds.
        tree: says whether the job is stuck, in place of the rules.

    Raises:
        SpecError: there is no such process.
    """

    def __init__(self, pids: Sequence[int], patience: float, tree: learned.Tree | None = None) -> None:
        self._job = Job(pids)
        self._learned = None if tree is None else learned.Judge(tree)
        self._patience = patience
        self._keep = patience if tree is None else max(patience, learned.SECONDS)
        self._members: dict[int, Member] = {}
        """By their first process."""
        self._looked = 0.0
        self._sampled: dict[int, float] = {}
        self.num_looks = 0
        self.cost_seconds = 0.0
        """CPU time of all looks, with that of py-spy."""

    @property
    def members(self) -> list[Member]:
        """Ranks first, with those that have ended and were not started again."""
        living = {each.name for each in self._members.values() if not each.ended}
        found = [each for each in self._members.values() if not each.ended or each.name not in living]
        return sorted(found, key=lambda each: each.group.order)

    @property
    def ranks(self) -> list[Member]:
        return [each for each in self.members if each.group.is_rank]

    def look(self) -> None:
        """Look at all processes once. It takes milliseconds."""
        before = _cpu_seconds()
        now = time.monotonic()
        seconds, self._looked = now - self._looked if self.num_looks else 0.0, now
        groups = self._job.groups()
        seen = connections.all_of_here()
        for group in groups:
            known = self._members.get(group.pids[0])
            member = known or self._members.setdefault(group.pids[0], Member(group))
            member.look(group, seen, connections.inodes(group.pids), seconds if known else 0.0, self._keep)
        heads = {group.pids[0] for group in groups if self._members[group.pids[0]].footprints}
        for head, member in self._members.items():
            member.ended = head not in heads
        self._sample(now)
        self.num_looks += 1
        self.cost_seconds += _cpu_seconds() - before

    def verdict(self) -> Verdict:
        """What the job is, by the looks so far."""
        before = _cpu_seconds()
        found = judge(self.ranks, self._patience, self._patience / 2)
        if found.state == STUCK:  # it is the last word, so it stands on what the ranks do now
            found = judge(self.ranks, self._patience)
        if self._learned is not None:
            found = self._learned.verdict(self.ranks, found, self._looked)
        self.cost_seconds += _cpu_seconds() - before
        return found

    def close(self) -> None:
        for member in self._members.values():
            member.close()

    def _sample(self, now: float) -> None:
        """Take the stacks of the rank that has waited for it for the longest time, and of one that may spin.

        Each takes milliseconds of a core. A rank that spins is found by several samples, too late if all take turns.
        If one mostly waits in an exchange, the stacks of all are taken together. They show for whom it waits.
        """
        living = [each for each in self.ranks if not each.ended]
        turns = sorted(living, key=lambda each: self._sampled.get(each.group.pids[0], 0.0))
        some_wait = not all(each.is_busy for each in living)
        suspects = [each for each in turns[1:] if each.asked or (some_wait and each.is_busy)]
        together = MOST_TOGETHER if any(each.mostly_waits for each in living) else 1
        chosen = turns[:together] + sorted(suspects, key=lambda each: not each.asked)[:1]
        for pid, member in {each.group.pids[0]: each for each in chosen}.items():
            member.sample(now, self._patience)
            self._sampled[pid] = now


def _cpu_seconds() -> float:
    """CPU time of this process and its ended children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)
