"""What the end of an execution says: who waits forever, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compare.concurrency.execution import Execution
from compare.concurrency.findings import ConcurrencyFinding, TraceStep
from compare.concurrency.state import SimulatedThread
from compare.concurrency.values import SyncObject, reachable


def judge(execution: Execution) -> list[ConcurrencyFinding]:
    """The findings of an execution in which nobody can go on, with what they rest on."""
    doubted = execution.divergence_step
    return [_conditional(each, doubted) if doubted is not None else each for each in _judged(execution)]


def _conditional(finding: ConcurrencyFinding, doubted: TraceStep) -> ConcurrencyFinding:
    where = f"line {doubted.line}" if doubted.file == finding.file else f"{doubted.file}:{doubted.line}"
    says = f"If this may differ between ranks: {doubted.says} ({where}). {finding.message}"
    return replace(
        finding, message=says, related_locations=finding.related_locations | {(doubted.file, doubted.line)}, condition=doubted
    )


def _judged(execution: Execution) -> list[ConcurrencyFinding]:
    if execution.findings:
        return [_settled(execution, each) for each in execution.findings]
    # A main thread or rank that ends by an exception takes the others with it, or its launcher does.
    ended_badly = any(each.crashed and (each.number == 0 or each.os_process.rank is not None) for each in execution.threads)
    # So does a thread that gives up with an exception what was only slow.
    ended_badly = ended_badly or (execution.has_timed_out and any(each.crashed for each in execution.threads))
    stuck = [each for each in execution.threads if not each.ended and not each.is_abandoned and each.pending is not None]
    if not stuck or ended_badly:
        return []
    of_ranks = [each for each in stuck if each.pending is not None and each.pending.kind in ("collective", "send", "recv")]
    if of_ranks:
        return _among_ranks(execution, of_ranks)
    known = {id(each) for each in reachable(execution.caller_values)} if execution.root.function is not None else set[int]()
    hopeless = [each for each in stuck if not _is_open(each, known)]
    if len(hopeless) < len(stuck) or any(each.is_abandoned for each in execution.threads):
        hopeless = _closed(hopeless)
    if all(each.daemon for each in hopeless):  # they end with the program
        return []
    if execution.root.function is not None and hopeless[0].number and len(hopeless) < 2:
        return []  # a thread that outlives a function may be ended by who calls the next one
    if any(_is_guess(execution, each) for each in hopeless):
        return []
    return [_among_threads(execution, hopeless)]


def _is_guess(execution: Execution, thread: SimulatedThread) -> bool:
    """Whether it waits in a loop whose test is unknown, and another such test depends on the same: not full, not empty."""
    thing = thread.pending.sync_object if thread.pending is not None else None
    if thing is None or thing.kind != "condition" or not isinstance(thing.target, SyncObject):
        return False
    return thread.frame.in_guessed_loop and len(execution.unknown_loop_tests[thing.target]) > 1


def _settled(execution: Execution, finding: ConcurrencyFinding) -> ConcurrencyFinding:
    """Ranks that reach other collectives: some in another order, or one rank more than the other?"""
    if finding.rule != "collective-order":
        return finding
    for of_rank in execution.collective_calls.values():
        names = {tuple(sorted(each.name for each in issues)) for issues in of_rank.values()}
        if len(names) > 1:
            return replace(finding, rule="collective-missing")
    return finding


def _is_open(thread: SimulatedThread, known: set[int]) -> bool:
    """Whether code that is not read may give what the process waits for."""
    assert thread.pending is not None
    thing = thread.pending.sync_object
    if thing is None:
        return thread.pending.kind not in ("future",)
    if thing.kind == "lock":
        return False
    return thing.has_escaped or (id(thing) in known and thing.kind not in ("thread", "future", "pool"))


def _closed(hopeless: Sequence[SimulatedThread]) -> list[SimulatedThread]:
    """Those who only wait for locks and ends of each other."""
    left = list(hopeless)
    while True:
        stay = [each for each in left if (giver := _giver(each)) is not None and giver in left]
        if len(stay) == len(left):
            return stay
        left = stay


def _giver(thread: SimulatedThread) -> SimulatedThread | None:
    """Who alone can give what the process waits for."""
    assert thread.pending is not None
    thing = thread.pending.sync_object
    return thing.owner if thing is not None and thing.kind in ("lock", "thread", "future") else None


def _among_threads(execution: Execution, hopeless: Sequence[SimulatedThread]) -> ConcurrencyFinding:
    first = next((each for each in hopeless if each.number == 0), hopeless[0])
    cycle = _cycle(first)
    involved = cycle or hopeless
    things = [
        each.pending.sync_object for each in involved if each.pending is not None and each.pending.sync_object is not None
    ]
    locks = [each for each in things if each.kind == "lock"]
    others = [each for each in things if each.kind != "lock"]
    rule, main = _rule(execution, involved, locks, others)
    step = _waits(main)
    who = "; ".join(f"{each.name} {each.pending.description} (line {_waits(each).line})" for each in involved if each.pending)
    holding = [
        f"{each.name} holds {lock.title} (line {where.line})"
        for each in involved
        for lock, where, _ in each.held_locks
        if lock in locks
    ]
    dead = [
        f"{each.name} ended by an exception (line {each.raise_step.line})"
        for each in execution.threads
        if each.crashed and each.raise_step
    ]
    dead += [
        f"{each.name} got an exception in line {each.raise_step.line}"
        for each in execution.threads
        if each.raise_step and not each.crashed and rule in ("lock-not-released", "never-signalled")
    ]
    says = (
        f"Nobody can go on: {who}." + (f" {'; '.join(holding)}." if holding else "") + (f" {'; '.join(dead)}." if dead else "")
    )
    shown = [*involved, *(each for each in execution.threads if each.raise_step and each not in involved)]
    paths = [(each.name, [*each.trace[-16:], _waits(each)] if each.pending else each.trace[-16:]) for each in shown]
    also = {(each.file, each.line) for one in shown if one.pending for each in [_waits(one)]}
    also |= {(where.file, where.line) for each in involved for lock, where, _ in each.held_locks if lock in locks}
    also |= {(each.raise_step.file, each.raise_step.line) for each in shown if each.raise_step}
    return ConcurrencyFinding(rule, step.file, step.line, says, paths, frozenset(also))


def _rule(
    execution: Execution, involved: Sequence[SimulatedThread], locks: Sequence[SyncObject], others: Sequence[SyncObject]
) -> tuple[str, SimulatedThread]:
    """(the rule, who is named first)."""
    for each in involved:
        thing = each.pending.sync_object if each.pending is not None else None
        if thing is not None and thing.kind == "lock":
            by_acquire = any(lock is thing and explicit for lock, _, explicit in thing.owner.held_locks)
            if thing.owner.ended or (by_acquire and thing.owner.raise_step is not None):
                return "lock-not-released", each
            if thing.owner is each:
                return "lock-again", each
    if any(each.kind == "future" for each in others) and any(each.full_pool for each in execution.threads):
        return "pool-deadlock", next(each for each in involved if each.pending and each.pending.sync_object in others)
    if locks and others:
        return "lock-held", next(each for each in involved if each.pending and each.pending.sync_object not in locks)
    if locks:
        return "lock-order", involved[0]
    puts = [each for each in involved if each.pending is not None and each.pending.description.startswith("puts")]
    if puts:
        return "queue-deadlock", puts[0]
    waits = [
        each
        for each in involved
        if each.pending and each.pending.sync_object and each.pending.sync_object.kind not in ("thread", "pool")
    ]
    return "never-signalled", waits[0] if waits else involved[0]


def _cycle(thread: SimulatedThread) -> list[SimulatedThread]:
    """The processes that wait for each other in a circle, or the chain to the first who waits for no single one."""
    chain = [thread]
    while (giver := _giver(chain[-1])) is not None and giver.pending is not None and not giver.ended:
        if giver in chain:
            return chain[chain.index(giver) :]
        chain.append(giver)
    return []


def _waits(thread: SimulatedThread) -> TraceStep:
    return thread.current_step(thread.pending.description if thread.pending is not None else "")


def _among_ranks(execution: Execution, stuck: Sequence[SimulatedThread]) -> list[ConcurrencyFinding]:
    if ("unknown") in {key[2] for key in execution.message_counts if key[0] == -1}:
        return []
    mains = {each.os_process.rank: each for each in execution.threads if each.key in ((), ("rank",)) or each in stuck}
    if any(each.is_abandoned or each.crashed for each in mains.values()):
        return []
    for one in stuck:
        assert one.pending is not None
        if one.pending.kind != "collective":
            continue
        late = [
            rank
            for issued in execution.collective_calls.values()
            if one.os_process.rank in issued
            for rank, each in issued.items()
            if len(each) < len(issued[one.os_process.rank])
        ]
        for rank in late:
            other = mains.get(rank)
            if other is None or other is one or (execution.may_exclude_ranks and not other.has_joined_ranks):
                continue
            if other.ended:
                return [_parted(execution, "collective-missing", one, other, "has ended without it")]
            if other.pending is None:
                continue
            if other.pending.kind == "collective":
                return [
                    _parted(
                        execution,
                        "collective-group",
                        one,
                        other,
                        f"{other.pending.description} of another group (line {_waits(other).line})",
                    )
                ]
            return [
                _parted(execution, "collective-missing", one, other, f"{other.pending.description} (line {_waits(other).line})")
            ]
    messages = [each for each in stuck if each.pending is not None and each.pending.kind in ("send", "recv")]
    if messages:
        one = messages[0]
        assert one.pending is not None and one.pending.sync_object is not None
        other = mains.get(one.pending.sync_object.count)
        if other is not None and other is not one:
            does = f"{other.pending.description} (line {_waits(other).line})" if other.pending else "has ended"
            return [_parted(execution, "point-to-point", one, other, does)]
    return []


def _parted(execution: Execution, rule: str, one: SimulatedThread, other: SimulatedThread, does: str) -> ConcurrencyFinding:
    assert one.pending is not None
    step = _waits(one)
    there = _waits(other) if other.frames else (other.trace[-1] if other.trace else step)
    before = len(execution.findings)
    execution.report_divergence(rule, f"{one.name} {step.says}, and {other.name} {does}.", one, other, step, there)
    return execution.findings.pop(before)


def lock_orders(
    taken: Sequence[tuple[SyncObject, SyncObject, SimulatedThread, TraceStep, TraceStep, frozenset[int]]], cls: str
) -> list[ConcurrencyFinding]:
    """Circles in the order in which the methods of one class take its locks.

    Args:
        taken: see `State.locks_taken`, of several executions. Locks of the same place are the same.
    """
    edges: dict[tuple[object, object], tuple[str, TraceStep, TraceStep, SyncObject, SyncObject]] = {}
    for held, lock, thread, where, step, every in taken:
        if len(every) == 1 and held.site != lock.site:
            edges.setdefault((held.site, lock.site), (thread.trace[0].says if thread.trace else "", where, step, held, lock))
    found: list[ConcurrencyFinding] = []
    for (one, two), (_, where, step, held, lock) in edges.items():
        back = edges.get((two, one))
        if back is None or str(one) > str(two):
            continue
        says = (
            f"Methods of {cls} take {held.title} and then {lock.title} (line {step.line}), and in the other order "
            f"(line {back[2].line}). "
            "Two threads that call them wait for each other."
        )
        paths = [("one thread", [where, step]), ("another thread", [back[1], back[2]])]
        found.append(
            ConcurrencyFinding("lock-order", step.file, step.line, says, paths, frozenset({(back[2].file, back[2].line)}))
        )
    return found
