"""Watcher that looks at all ranks of a job repeatedly."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence

from convtwins_hangs.watching import connections
from convtwins_hangs.watching.job import WatchedJob
from convtwins_hangs.watching.member import MAX_JOINT_MEMBERS, JobMember
from convtwins_hangs.watching.verdict import STUCK, Verdict, judge_job


class Watcher:
    """A job under watch.

    Args:
        pids: the job's processes, or one that started the others.
        patience: the rules call the job slow or stuck after so many seconds.
        keep_seconds: seconds of looks that are kept, at least the patience.
    """

    def __init__(self, pids: Sequence[int], patience: float, keep_seconds: float = 0.0) -> None:
        self._job = WatchedJob(pids)
        self._patience = patience
        self._keep_seconds = max(patience, keep_seconds)
        self._members: dict[int, JobMember] = {}
        """Members by the id of their first process."""
        self.last_look = 0.0
        """Time of the last look, in seconds of `time.monotonic`."""
        self._sample_times: dict[int, float] = {}
        self.num_looks = 0
        self.cost_seconds = 0.0
        """CPU seconds of all looks, including py-spy."""

    @property
    def members(self) -> list[JobMember]:
        """Members, ranks first, including those that have ended and were not started again."""
        living = {member.name for member in self._members.values() if not member.ended}
        members = [member for member in self._members.values() if not member.ended or member.name not in living]
        return sorted(members, key=lambda member: member.group.order)

    @property
    def ranks(self) -> list[JobMember]:
        return [member for member in self.members if member.group.is_rank]

    def look(self) -> None:
        """Look at all processes once. This takes milliseconds."""
        cpu_before = _cpu_seconds()
        now = time.monotonic()
        elapsed, self.last_look = now - self.last_look if self.num_looks else 0.0, now
        groups = self._job.groups()
        connections_by_inode = connections.established()
        for group in groups:
            known_member = self._members.get(group.pids[0])
            member = known_member or self._members.setdefault(group.pids[0], JobMember(group))
            member.look(
                group,
                connections_by_inode,
                connections.socket_inodes(group.pids),
                elapsed if known_member else 0.0,
                self._keep_seconds,
            )
        heads = {group.pids[0] for group in groups if self._members[group.pids[0]].footprints}
        for head, member in self._members.items():
            member.ended = head not in heads
        self._sample(now)
        self.num_looks += 1
        self.cost_seconds += _cpu_seconds() - cpu_before

    def verdict(self) -> Verdict:
        """Return the verdict by the looks so far."""
        cpu_before = _cpu_seconds()
        verdict = judge_job(self.ranks, self._patience, self._patience / 2)
        if verdict.state == STUCK:  # it is the last word, so it stands on what the ranks do now
            verdict = judge_job(self.ranks, self._patience)
        self.cost_seconds += _cpu_seconds() - cpu_before
        return verdict

    def close(self) -> None:
        for member in self._members.values():
            member.close()

    def _sample(self, now: float) -> None:
        """Sample the stacks of the least recently sampled rank, and of one that may spin.

        Each sample takes milliseconds of a core. Finding a spinning rank takes several samples, too long in turns.
        If a rank mostly waits in an exchange, all are sampled together to show for whom it waits.
        """
        living = [member for member in self.ranks if not member.ended]
        by_sample_time = sorted(living, key=lambda member: self._sample_times.get(member.group.pids[0], 0.0))
        are_some_waiting = not all(member.is_busy for member in living)
        suspects = [member for member in by_sample_time[1:] if member.only_polled or (are_some_waiting and member.is_busy)]
        num_joint = MAX_JOINT_MEMBERS if any(member.is_mostly_waiting for member in living) else 1
        chosen = by_sample_time[:num_joint] + sorted(suspects, key=lambda member: not member.only_polled)[:1]
        for pid, member in {member.group.pids[0]: member for member in chosen}.items():
            member.sample(now, self._patience)
            self._sample_times[pid] = now


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
