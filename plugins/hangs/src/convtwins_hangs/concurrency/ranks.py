"""Operations among ranks: collectives, which a group issues in one order, and point-to-point messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from convtwins_hangs.concurrency.calls import Calls
from convtwins_hangs.concurrency.findings import ConcurrencyFinding, TraceStep, finding_at
from convtwins_hangs.concurrency.meanings import TORCH_COLLECTIVES, CollectiveArguments
from convtwins_hangs.concurrency.state import BlockingCall, CallOutcome, Keywords, PendingOperation, SimulatedThread
from convtwins_hangs.concurrency.values import NONE, Const, Lib, SequenceValue, SyncObject, Unknown, Value, ValueMark, truth

DEFAULT_GROUP = "the world"
UNKNOWN_RANK = -1
"""Rank of a message whose other end is not known."""
_MISMATCHES = {"collective-order", "collective-shape", "collective-root", "collective-group"}
"""Rules reported once per execution, because nothing after a mismatch is certain."""


class CollectiveCall(NamedTuple):
    """One call of a collective on one rank."""

    name: str
    shape: tuple[int, ...] | None
    root: object
    thread: SimulatedThread
    step: TraceStep
    moment: int
    """The thread's own clock when it issued the collective."""
    members: tuple[int, ...] | None = None
    """Ranks of the group that `new_group` makes. None: unknown, or another collective."""
    objects: tuple[Value, ...] | None = None
    """Objects passed to `broadcast_object_list`. None: unknown, or another collective."""


class RankOperations(Calls):
    """Collectives and messages among ranks."""

    def collective(
        self, thread: SimulatedThread, name: str, values: Sequence[Value] = (), keywords: Keywords | None = None
    ) -> BlockingCall:
        """Issue a collective, and wait until every rank of its group has done so."""
        rank, keywords = thread.os_process.rank, keywords or {}
        if name == "new_group" and truth(keywords.get("use_local_synchronization", Const(False))) is not False:
            return Unknown()  # made by its members alone
        values = [*values, keywords["object_list"]] if not values and "object_list" in keywords else values
        group_value = keywords.get("group", keywords.get("process_group"))
        if group_value is None and (position := _known(name).group) is not None and len(values) > position:
            group_value = values[position]
        group_key: object = DEFAULT_GROUP
        members = range(self.num_ranks)
        if isinstance(group_value, SyncObject) and group_value.kind == "group":
            group_key, members = group_value.size, group_value.items
            if rank not in members:
                return NONE
        elif group_value is not None and not isinstance(group_value, (Const, Lib)):
            # A group that is not known: only its order among those of the same place is.
            return self._apply_result(name, values)
        if rank is None or len(members) < 2 or (name == "init_process_group" and "world_size" in keywords):
            thread.has_joined_ranks = thread.has_joined_ranks or name == "init_process_group"
            self.may_exclude_ranks = self.may_exclude_ranks or name == "init_process_group"
            return self._apply_result(name, values)
        thread.has_joined_ranks = True
        call = self._make_call(thread, name, values, keywords)
        calls_by_rank = self.collective_calls.setdefault(group_key, {member: [] for member in members})
        self._judge_threads(calls_by_rank[rank], call)
        position = len(calls_by_rank[rank])
        calls_by_rank[rank].append(call)
        thread.num_collectives += 1
        self._judge_matching(calls_by_rank, rank, position, call)

        def complete() -> BlockingCall:
            is_ready = lambda: all(len(calls) > position for calls in calls_by_rank.values())  # noqa: E731
            yield PendingOperation(f"waits in {name}", is_ready, kind="collective")
            if name == "new_group":
                return self._new_group(thread, values, keywords)
            if name == "broadcast" and call.root == rank and values:
                _mark_shared(values[0])
            objects = next((calls[position].objects for member, calls in calls_by_rank.items() if member == call.root), None)
            return self._apply_result(name, values, objects)

        is_async = keywords.get("async_op")
        if is_async is not None and truth(is_async) is not False:
            self._apply_result(name, values)
            return SyncObject(kind="work", name=name, target=Const(None), owner=complete)
        return (yield from complete())

    def _make_call(self, thread: SimulatedThread, name: str, values: Sequence[Value], keywords: Keywords) -> CollectiveCall:
        tensor = keywords.get("tensor", values[0] if values else None)
        shape = tensor.shape if isinstance(tensor, Unknown) and _known(name).has_one_shape else None
        root: object = None
        if (position := _known(name).root) is not None:
            root_value = keywords.get("src", keywords.get("dst", values[position] if len(values) > position else Const(0)))
            root = root_value.value if isinstance(root_value, Const) else None
        first = values[0] if values else None
        objects: tuple[Value, ...] | None = None
        if name == "broadcast_object_list" and isinstance(first, SequenceValue) and first.exact:
            objects = tuple(first.items)
        step, moment = thread.record(f"reaches {name}"), thread.clock.get(thread.number, 0)
        members = self._members(values, keywords) if name == "new_group" else None
        return CollectiveCall(name, shape, root, thread, step, moment, tuple(sorted(members)) if members else None, objects)

    def _apply_result(self, name: str, values: Sequence[Value], objects: Sequence[Value] | None = None) -> Value:
        """Mark what all ranks have in common after a collective, and return the call's value.

        Args:
            objects: items of the root's list, which all ranks have afterwards.
        """
        position = _known(name).shared
        target = values[position] if position is not None and len(values) > position else None
        if name.endswith("_"):
            target = values[0] if values else None
        for value in [target, *(target.items if isinstance(target, SequenceValue) else [])]:
            if value is not None:
                mark_identical(value)
        if isinstance(target, SequenceValue):
            result_marks = frozenset([ValueMark.COLLECTIVE_RESULT])
            items: list[Value] = [
                Const(item.value) if isinstance(item, Const) else Unknown(marks=result_marks) for item in objects or []
            ]
            target.items, target.exact = items, objects is not None
        return Unknown(marks=frozenset([ValueMark.COLLECTIVE_RESULT]))

    def _new_group(self, thread: SimulatedThread, values: Sequence[Value], keywords: Keywords) -> Value:
        thread.os_process.num_groups += 1
        members = self._members(values, keywords)
        if members is None or any(rank >= self.num_ranks for rank in members):
            return Unknown()
        return SyncObject(kind="group", size=thread.os_process.num_groups, items=members, site=thread.site)

    def _members(self, values: Sequence[Value], keywords: Keywords) -> list[int] | None:
        """Return the ranks passed to `new_group`. None: unknown."""
        ranks = keywords.get("ranks", values[0] if values else None)
        if isinstance(ranks, SequenceValue) and ranks.exact:
            numbers = [rank.value for rank in ranks.items if isinstance(rank, Const) and isinstance(rank.value, int)]
            return numbers if len(numbers) == len(ranks.items) else None
        return list(range(self.num_ranks)) if ranks is None or (isinstance(ranks, Const) and ranks.value is None) else None

    def _judge_threads(self, earlier_calls: Sequence[CollectiveCall], call: CollectiveCall) -> None:
        for earlier in earlier_calls[-8:]:
            if earlier.thread is not call.thread and not call.thread.has_observed(earlier.thread.number, earlier.moment):
                message = (
                    f"{call.name} and {earlier.name} are begun by two threads of one rank, and nothing orders them. "
                    "Another rank may begin them in the other order."
                )
                paths = [earlier.thread.path(), call.thread.path()]
                self.findings.append(finding_at("collective-threads", call.step, message, paths, [earlier.step]))

    def _judge_matching(
        self, calls_by_rank: Mapping[int, Sequence[CollectiveCall]], rank: int, index: int, call: CollectiveCall
    ) -> None:
        for other_rank, calls in calls_by_rank.items():
            if other_rank == rank or len(calls) <= index or any(finding.rule in _MISMATCHES for finding in self.findings):
                continue
            other_call = calls[index]
            if other_call.name != call.name:
                rule, message = "collective-order", f"reaches {other_call.name} where rank {rank} reaches {call.name}"
            elif None not in (other_call.shape, call.shape) and other_call.shape != call.shape:
                rule, message = (
                    "collective-shape",
                    f"gives {call.name} the shape {other_call.shape}, rank {rank} gives {call.shape}",
                )
            elif _groups_differ(other_call.members, call.members):
                rule = "collective-group"
                message = (
                    f"makes a group of ranks {_joined(other_call.members)}, rank {rank} makes one of {_joined(call.members)}"
                )
            elif None not in (other_call.root, call.root) and other_call.root != call.root:
                rule, message = (
                    "collective-root",
                    f"names {other_call.root} as the root of {call.name}, rank {rank} names {call.root}",
                )
            else:
                continue
            who = (other_call.thread, call.thread)
            self.findings.append(divergence_finding(rule, f"Rank {other_rank} {message}.", who, (other_call.step, call.step)))

    def message(self, thread: SimulatedThread, name: str, values: Sequence[Value], keywords: Keywords) -> CallOutcome:
        """Send to a rank, or receive from one."""
        rank = thread.os_process.rank
        peer = keywords.get("dst", keywords.get("src", values[1] if len(values) > 1 else None))
        is_known_rank = isinstance(peer, Const) and isinstance(peer.value, int) and 0 <= peer.value < self.num_ranks
        if rank is None or not is_known_rank:
            if rank is not None:
                self.message_counts[UNKNOWN_RANK, UNKNOWN_RANK, name] = 1
            return Unknown()
        assert isinstance(peer, Const)
        is_send = name in ("send", "isend")
        direction, other_direction = ("send", "recv") if is_send else ("recv", "send")
        source, target = (rank, int(peer.value)) if is_send else (int(peer.value), rank)
        index = self.message_counts.get((source, target, direction), 0)
        self.message_counts[source, target, direction] = index + 1
        thread.record(f"reaches {name} with rank {peer.value}")

        def complete() -> BlockingCall:
            yield PendingOperation(
                f"waits in {name} for rank {peer.value}",
                lambda: self.message_counts.get((source, target, other_direction), 0) > index,
                SyncObject(kind="message", count=peer.value),
                direction,
            )
            if not is_send and values:
                values[0].marks = frozenset(values[0].marks | {ValueMark.LOCAL})
            return NONE

        return SyncObject(kind="work", name=name, owner=complete) if name.startswith("i") else complete()


def _known(name: str) -> CollectiveArguments:
    return TORCH_COLLECTIVES.get(name, CollectiveArguments())


def _groups_differ(other_members: Sequence[int] | None, members: Sequence[int] | None) -> bool:
    """Return whether two `new_group` calls block each other. Nobody waits in a group of one."""
    return (
        other_members is not None
        and members is not None
        and other_members != members
        and max(len(other_members), len(members)) > 1
    )


def _joined(members: Sequence[int] | None) -> str:
    return ", ".join(map(str, members or ()))


def _mark_shared(tensor: Value) -> None:
    """Mark the values that the root built a broadcast tensor from as equal on all ranks."""
    pending = [tensor.attributes.get("?of")] if isinstance(tensor, Unknown) else []
    while pending:
        source = pending.pop()
        if isinstance(source, SequenceValue):
            pending += source.items
        elif source is not None:
            _clear_own_marks(source)


def _clear_own_marks(value: Value) -> None:
    value.marks = value.marks - {ValueMark.LOCAL, ValueMark.DATA_DEPENDENT} | {ValueMark.COLLECTIVE_RESULT}


def mark_identical(value: Value) -> None:
    """Mark a value and its contents as equal on all ranks."""
    _clear_own_marks(value)
    if isinstance(value, Unknown):
        for name in [attribute for attribute in value.attributes if attribute.startswith(("[", "?"))]:
            del value.attributes[name]
        for attribute_value in value.attributes.values():  # `item`, if it was asked for before
            _clear_own_marks(attribute_value)


def divergence_finding(
    rule: str, message: str, ranks: tuple[SimulatedThread, SimulatedThread], steps: tuple[TraceStep, TraceStep]
) -> ConcurrencyFinding:
    """Return the finding that two ranks diverge, with the branch where they did.

    Args:
        steps: where each of the two ranks stands.
    """
    cause = _divergence_between(*ranks)
    if cause is not None:
        message += f" They may part in line {cause.line}: {cause.says.partition(': ')[2] or cause.says}."
    related = [*steps, *([cause] if cause is not None else [])]
    return finding_at(rule, steps[0], message, [rank.path(16) for rank in ranks], related)


def _divergence_between(first: SimulatedThread, second: SimulatedThread) -> TraceStep | None:
    """Return the decision where two ranks diverged: the last since their last common collective, or else the last of all.

    A branch that both reached and left on different paths is preferred to one that only one of them reached.
    """
    first_only, second_only = (
        [divergence for divergence in thread.divergences if divergence not in other_thread.divergences]
        for thread, other_thread in ((first, second), (second, first))
    )
    common_branches = {(num_calls, step.location) for num_calls, step in second_only}
    facing = [(num_calls, step) for num_calls, step in first_only if (num_calls, step.location) in common_branches]
    last_common_call = min(first.num_collectives, second.num_collectives) - 1
    everywhere = [*first_only, *second_only]
    late, late_facing = (
        [divergence for divergence in candidates if divergence[0] >= last_common_call] for candidates in (everywhere, facing)
    )
    candidates = late_facing or late or everywhere
    return max(reversed(candidates), key=lambda divergence: divergence[0])[1] if candidates else None
