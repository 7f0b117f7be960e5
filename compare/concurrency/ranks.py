"""What ranks do together: collectives of a group in one order, and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compare.concurrency.findings import ConcurrencyFinding, TraceStep
from compare.concurrency.meanings import GROUP_POSITIONS, ROOT_POSITIONS, SAME_SHAPE_COLLECTIVES, synced_position
from compare.concurrency.state import PendingOperation, SimulatedThread
from compare.concurrency.threads import Deliver, Threads
from compare.concurrency.values import (
    COLLECTIVE_RESULT,
    DATA_DEPENDENT,
    LOCAL,
    NONE,
    Const,
    Lib,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    truth,
)

WORLD = "the world"
_MISMATCHES = {"collective-order", "collective-shape", "collective-root", "collective-group"}
"""What one execution reports once: nothing after it is sure."""


class Issue(NamedTuple):
    """A collective that a rank has begun."""

    name: str
    shape: tuple[int, ...] | None
    root: object
    process: SimulatedThread
    step: TraceStep
    moment: int
    """The process's clock."""
    members: tuple[int, ...] | None = None
    """Those of the group that `new_group` makes, if they are known."""
    objects: tuple[Value, ...] | None = None
    """What it gives to `broadcast_object_list`, if that is known."""


class Ranks(Threads):
    """Operations among ranks."""

    def collective(
        self, thread: SimulatedThread, name: str, values: Sequence[Value], keywords: Mapping[str, Value], deliver: Deliver
    ) -> None:
        """Issue a collective, and wait until every rank of its group has done so."""
        rank = thread.os_process.rank
        if name == "new_group" and truth(keywords.get("use_local_synchronization", Const(False))) is not False:
            deliver(Unknown())  # made by its members alone
            return
        values = [*values, keywords["object_list"]] if not values and "object_list" in keywords else values
        given = keywords.get("group", keywords.get("process_group"))
        if given is None and (place := GROUP_POSITIONS.get(name)) is not None and len(values) > place:
            given = values[place]
        group: object = WORLD
        members = range(self.num_ranks)
        if isinstance(given, SyncObject) and given.kind == "group":
            group, members = given.size, given.items
            if rank not in members:
                deliver(NONE)
                return
        elif given is not None and not isinstance(given, (Const, Lib)):
            # A group that is not known: only its order among those of the same place is.
            deliver(self._after(name, values))
            return
        if rank is None or len(members) < 2 or (name == "init_process_group" and "world_size" in keywords):
            thread.has_joined_ranks = thread.has_joined_ranks or name == "init_process_group"
            self.may_exclude_ranks = self.may_exclude_ranks or name == "init_process_group"
            deliver(self._after(name, values))
            return
        thread.has_joined_ranks = True
        issue = self._issue(thread, name, values, keywords)
        of_rank = self.collective_calls.setdefault(group, {each: [] for each in members})
        self._judge_threads(of_rank[rank], issue)
        place = len(of_rank[rank])
        of_rank[rank].append(issue)
        thread.num_collectives += 1
        self._judge_matching(of_rank, rank, place, issue)
        asynchronous = keywords.get("async_op")
        everyone = lambda: all(len(each) > place for each in of_rank.values())  # noqa: E731

        def done() -> Value:
            if name == "new_group":
                return self._new_group(thread, values, keywords)
            if name == "broadcast" and issue.root == rank and values:
                _shared(values[0])
            objects = next((each[place].objects for one, each in of_rank.items() if one == issue.root), None)
            return self._after(name, values, objects)

        operation = PendingOperation(f"waits in {name}", everyone, done, None, None, "collective")
        if asynchronous is not None and truth(asynchronous) is not False:
            self._after(name, values)
            deliver(SyncObject(kind="work", name=name, target=Const(None), owner=operation))
        else:
            self.wait(thread, operation, deliver)

    def _issue(self, thread: SimulatedThread, name: str, values: Sequence[Value], keywords: Mapping[str, Value]) -> Issue:
        tensor = keywords.get("tensor", values[0] if values else None)
        shape = tensor.shape if isinstance(tensor, Unknown) and name in SAME_SHAPE_COLLECTIVES else None
        root: object = None
        if (place := ROOT_POSITIONS.get(name)) is not None:
            given = keywords.get("src", keywords.get("dst", values[place] if len(values) > place else Const(0)))
            root = given.value if isinstance(given, Const) else None
        first = values[0] if values else None
        objects: tuple[Value, ...] | None = None
        if name == "broadcast_object_list" and isinstance(first, SequenceValue) and first.exact:
            objects = tuple(first.items)
        step, moment = thread.record(f"reaches {name}"), thread.clock.get(thread.number, 0)
        members = self._members(values, keywords) if name == "new_group" else None
        return Issue(name, shape, root, thread, step, moment, tuple(sorted(members)) if members else None, objects)

    def _after(self, name: str, values: Sequence[Value], objects: Sequence[Value] | None = None) -> Value:
        """What ranks have alike after a collective.

        Args:
            objects: the items of the root's list, which all have then.
        """
        place = synced_position(name)
        target = values[place] if place is not None and len(values) > place else None
        if name.endswith("_"):
            target = values[0] if values else None
        for each in [target, *(target.items if isinstance(target, SequenceValue) else [])]:
            if each is not None:
                alike(each)
        if isinstance(target, SequenceValue):
            made = frozenset([COLLECTIVE_RESULT])
            known: list[Value] = [
                Const(each.value) if isinstance(each, Const) else Unknown(marks=made) for each in objects or []
            ]
            target.items, target.exact = known, objects is not None
        return Unknown(marks=frozenset([COLLECTIVE_RESULT]))

    def _new_group(self, thread: SimulatedThread, values: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        thread.os_process.num_groups += 1
        members = self._members(values, keywords)
        if members is None or any(each >= self.num_ranks for each in members):
            return Unknown()
        return SyncObject(kind="group", size=thread.os_process.num_groups, items=members, site=thread.site)

    def _members(self, values: Sequence[Value], keywords: Mapping[str, Value]) -> list[int] | None:
        """The ranks that are given to `new_group`. None: unknown."""
        given = keywords.get("ranks", values[0] if values else None)
        if isinstance(given, SequenceValue) and given.exact:
            numbers = [each.value for each in given.items if isinstance(each, Const) and isinstance(each.value, int)]
            return numbers if len(numbers) == len(given.items) else None
        return list(range(self.num_ranks)) if given is None or (isinstance(given, Const) and given.value is None) else None

    def _judge_threads(self, before: Sequence[Issue], issue: Issue) -> None:
        for each in before[-8:]:
            if each.process is not issue.process and not issue.process.has_observed(each.process.number, each.moment):
                self.findings.append(
                    ConcurrencyFinding(
                        "collective-threads",
                        issue.step.file,
                        issue.step.line,
                        f"{issue.name} and {each.name} are begun by two threads of one rank, and nothing orders them. "
                        "Another rank may begin them in the other order.",
                        [(one.process.name, one.process.trace[-12:]) for one in (each, issue)],
                        frozenset({(each.step.file, each.step.line)}),
                    )
                )

    def _judge_matching(self, of_rank: Mapping[int, Sequence[Issue]], rank: int, place: int, issue: Issue) -> None:
        for other, issues in of_rank.items():
            if other == rank or len(issues) <= place or any(each.rule in _MISMATCHES for each in self.findings):
                continue
            theirs = issues[place]
            if theirs.name != issue.name:
                rule, says = "collective-order", f"reaches {theirs.name} where rank {rank} reaches {issue.name}"
            elif None not in (theirs.shape, issue.shape) and theirs.shape != issue.shape:
                rule, says = "collective-shape", f"gives {issue.name} the shape {theirs.shape}, rank {rank} gives {issue.shape}"
            elif _groups_differ(theirs.members, issue.members):
                rule = "collective-group"
                says = f"makes a group of ranks {_listed(theirs.members)}, rank {rank} makes one of {_listed(issue.members)}"
            elif None not in (theirs.root, issue.root) and theirs.root != issue.root:
                rule, says = (
                    "collective-root",
                    f"names {theirs.root} as the root of {issue.name}, rank {rank} names {issue.root}",
                )
            else:
                continue
            self.parted(rule, f"Rank {other} {says}.", theirs.process, issue.process, theirs.step, issue.step)

    def parted(
        self, rule: str, says: str, one: SimulatedThread, two: SimulatedThread, first: TraceStep, second: TraceStep
    ) -> None:
        """Report that two ranks part, with the branch where they did."""
        cause = cause_of(one, two)
        if cause is not None:
            says += f" They may part in line {cause.line}: {cause.says.partition(': ')[2] or cause.says}."
        also = {(each.file, each.line) for each in (first, second, *([cause] if cause else []))}
        paths = [(each.name, each.trace[-16:]) for each in (one, two)]
        self.findings.append(ConcurrencyFinding(rule, first.file, first.line, says, paths, frozenset(also)))

    def message(
        self, thread: SimulatedThread, name: str, values: Sequence[Value], keywords: Mapping[str, Value], deliver: Deliver
    ) -> None:
        """Send to a rank, or receive from one."""
        rank = thread.os_process.rank
        peer = keywords.get("dst", keywords.get("src", values[1] if len(values) > 1 else None))
        known = isinstance(peer, Const) and isinstance(peer.value, int) and 0 <= peer.value < self.num_ranks
        if rank is None or not known:
            if rank is not None:
                self.message_counts[(-1, -1, "unknown")] = 1
            deliver(Unknown())
            return
        assert isinstance(peer, Const)
        sends = name in ("send", "isend")
        own, other = ("send", "recv") if sends else ("recv", "send")
        source, target = (rank, int(peer.value)) if sends else (int(peer.value), rank)
        place = self.message_counts.get((source, target, own), 0)
        self.message_counts[source, target, own] = place + 1
        thread.record(f"reaches {name} with rank {peer.value}")

        def done() -> Value:
            if not sends and values:
                values[0].marks = frozenset(values[0].marks | {LOCAL})
            return NONE

        operation = PendingOperation(
            f"waits in {name} for rank {peer.value}",
            lambda: self.message_counts.get((source, target, other), 0) > place,
            done,
            SyncObject(kind="message", count=peer.value),
            None,
            own,
        )
        if name.startswith("i"):
            deliver(SyncObject(kind="work", name=name, owner=operation))
        else:
            self.wait(thread, operation, deliver)


def _groups_differ(theirs: Sequence[int] | None, own: Sequence[int] | None) -> bool:
    """Whether ranks wait for each other in making groups of these ranks. Nobody waits in a group of one."""
    return theirs is not None and own is not None and theirs != own and max(len(theirs), len(own)) > 1


def _listed(members: Sequence[int] | None) -> str:
    return ", ".join(map(str, members or ()))


def _shared(tensor: Value) -> None:
    """The root has broadcast a tensor, so all ranks may take what the root made it of."""
    waiting = [tensor.attributes.get("?of")] if isinstance(tensor, Unknown) else []
    while waiting:
        one = waiting.pop()
        if isinstance(one, SequenceValue):
            waiting += one.items
        elif one is not None:
            one.marks = one.marks - {LOCAL, DATA_DEPENDENT} | {COLLECTIVE_RESULT}


def alike(value: Value) -> None:
    """All ranks have the same value now, with all that is in it."""
    value.marks = frozenset(value.marks - {LOCAL, DATA_DEPENDENT} | {COLLECTIVE_RESULT})
    if isinstance(value, Unknown):
        for name in [each for each in value.attributes if each.startswith(("[", "?"))]:
            del value.attributes[name]
        for each in value.attributes.values():
            each.marks = each.marks - {LOCAL, DATA_DEPENDENT} | {COLLECTIVE_RESULT}  # `item`, if it was asked for before


def cause_of(one: SimulatedThread, two: SimulatedThread) -> TraceStep | None:
    """Where the two ranks took different ways: the last such place since they were together, or else the last of all.

    A branch that both came to and left on different ways tells most. Next is one that only one of them came to.
    """
    own, other = (
        [each for each in mine.divergences if each not in theirs.divergences] for mine, theirs in ((one, two), (two, one))
    )
    met = {(place, step.file, step.line) for place, step in other}
    facing = [(place, step) for place, step in own if (place, step.file, step.line) in met]
    together = min(one.num_collectives, two.num_collectives) - 1
    for chosen in (facing, [*own, *other]):
        late = [each for each in chosen if each[0] >= together]
        if late:
            return max(reversed(late), key=lambda each: each[0])[1]
    differing = [*own, *other]
    return max(reversed(differing), key=lambda each: each[0])[1] if differing else None
