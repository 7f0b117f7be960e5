"""What the end of an execution says: who waits forever, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compare.concurrency.execution import Execution
from compare.concurrency.findings import Finding, Step
from compare.concurrency.state import Process
from compare.concurrency.values import Thing, reachable


def judge(execution: Execution) -> list[Finding]:
    """The findings of an execution in which nobody can go on, with what they rest on."""
    doubted = execution.doubted
    return [_conditional(each, doubted) if doubted is not None else each for each in _judged(execution)]


def _conditional(finding: Finding, doubted: Step) -> Finding:
    where = f"line {doubted.line}" if doubted.file == finding.file else f"{doubted.file}:{doubted.line}"
    says = f"If this may differ between ranks: {doubted.says} ({where}). {finding.says}"
    return replace(finding, says=says, also=finding.also | {(doubted.file, doubted.line)}, condition=doubted)


def _judged(execution: Execution) -> list[Finding]:
    if execution.findings:
        return [_settled(execution, each) for each in execution.findings]
    # A main thread or rank that ends by an exception takes the others with it, or its launcher does.
    ended_badly = any(each.crashed and (each.number == 0 or each.system.rank is not None) for each in execution.processes)
    # So does a thread that gives up with an exception what was only slow.
    ended_badly = ended_badly or (execution.timed_out and any(each.crashed for each in execution.processes))
    stuck = [each for each in execution.processes if not each.ended and not each.cut and each.waiting is not None]
    if not stuck or ended_badly:
        return []
    of_ranks = [each for each in stuck if each.waiting is not None and each.waiting.kind in ("collective", "send", "recv")]
    if of_ranks:
        return _among_ranks(execution, of_ranks)
    known = {id(each) for each in reachable(execution.given)} if execution.root.function is not None else set[int]()
    hopeless = [each for each in stuck if not _is_open(each, known)]
    if len(hopeless) < len(stuck) or any(each.cut for each in execution.processes):
        hopeless = _closed(hopeless)
    if all(each.daemon for each in hopeless):  # they end with the program
        return []
    if execution.root.function is not None and hopeless[0].number and len(hopeless) < 2:
        return []  # a thread that outlives a function may be ended by who calls the next one
    if any(_is_guess(execution, each) for each in hopeless):
        return []
    return [_among_threads(execution, hopeless)]


def _is_guess(execution: Execution, process: Process) -> bool:
    """Whether it waits in a loop whose test is unknown, and another such test depends on the same: not full, not empty."""
    thing = process.waiting.thing if process.waiting is not None else None
    if thing is None or thing.kind != "condition" or not isinstance(thing.target, Thing):
        return False
    return process.frame.guessed and len(execution.guesses[thing.target]) > 1


def _settled(execution: Execution, finding: Finding) -> Finding:
    """Ranks that reach other collectives: some in another order, or one rank more than the other?"""
    if finding.rule != "collective-order":
        return finding
    for of_rank in execution.exchanges.values():
        names = {tuple(sorted(each.name for each in issues)) for issues in of_rank.values()}
        if len(names) > 1:
            return replace(finding, rule="collective-missing")
    return finding


def _is_open(process: Process, known: set[int]) -> bool:
    """Whether code that is not read may give what the process waits for."""
    assert process.waiting is not None
    thing = process.waiting.thing
    if thing is None:
        return process.waiting.kind not in ("future",)
    if thing.kind == "lock":
        return False
    return thing.is_open or (id(thing) in known and thing.kind not in ("thread", "future", "pool"))


def _closed(hopeless: Sequence[Process]) -> list[Process]:
    """Those who only wait for locks and ends of each other."""
    left = list(hopeless)
    while True:
        stay = [each for each in left if (giver := _giver(each)) is not None and giver in left]
        if len(stay) == len(left):
            return stay
        left = stay


def _giver(process: Process) -> Process | None:
    """Who alone can give what the process waits for."""
    assert process.waiting is not None
    thing = process.waiting.thing
    return thing.owner if thing is not None and thing.kind in ("lock", "thread", "future") else None


def _among_threads(execution: Execution, hopeless: Sequence[Process]) -> Finding:
    first = next((each for each in hopeless if each.number == 0), hopeless[0])
    cycle = _cycle(first)
    involved = cycle or hopeless
    things = [each.waiting.thing for each in involved if each.waiting is not None and each.waiting.thing is not None]
    locks = [each for each in things if each.kind == "lock"]
    others = [each for each in things if each.kind != "lock"]
    rule, main = _rule(execution, involved, locks, others)
    step = _waits(main)
    who = "; ".join(f"{each.name} {each.waiting.says} (line {_waits(each).line})" for each in involved if each.waiting)
    holding = [
        f"{each.name} holds {lock.title} (line {where.line})"
        for each in involved
        for lock, where, _ in each.held
        if lock in locks
    ]
    dead = [
        f"{each.name} ended by an exception (line {each.thrown.line})"
        for each in execution.processes
        if each.crashed and each.thrown
    ]
    dead += [
        f"{each.name} got an exception in line {each.thrown.line}"
        for each in execution.processes
        if each.thrown and not each.crashed and rule in ("lock-not-released", "never-signalled")
    ]
    says = (
        f"Nobody can go on: {who}." + (f" {'; '.join(holding)}." if holding else "") + (f" {'; '.join(dead)}." if dead else "")
    )
    shown = [*involved, *(each for each in execution.processes if each.thrown and each not in involved)]
    paths = [(each.name, [*each.trace[-16:], _waits(each)] if each.waiting else each.trace[-16:]) for each in shown]
    also = {(each.file, each.line) for one in shown if one.waiting for each in [_waits(one)]}
    also |= {(where.file, where.line) for each in involved for lock, where, _ in each.held if lock in locks}
    also |= {(each.thrown.file, each.thrown.line) for each in shown if each.thrown}
    return Finding(rule, step.file, step.line, says, paths, frozenset(also))


def _rule(
    execution: Execution, involved: Sequence[Process], locks: Sequence[Thing], others: Sequence[Thing]
) -> tuple[str, Process]:
    """(the rule, who is named first)."""
    for each in involved:
        thing = each.waiting.thing if each.waiting is not None else None
        if thing is not None and thing.kind == "lock":
            by_acquire = any(lock is thing and explicit for lock, _, explicit in thing.owner.held)
            if thing.owner.ended or (by_acquire and thing.owner.thrown is not None):
                return "lock-not-released", each
            if thing.owner is each:
                return "lock-again", each
    if any(each.kind == "future" for each in others) and any(each.queued for each in execution.processes):
        return "pool-deadlock", next(each for each in involved if each.waiting and each.waiting.thing in others)
    if locks and others:
        return "lock-held", next(each for each in involved if each.waiting and each.waiting.thing not in locks)
    if locks:
        return "lock-order", involved[0]
    puts = [each for each in involved if each.waiting is not None and each.waiting.says.startswith("puts")]
    if puts:
        return "queue-deadlock", puts[0]
    waits = [
        each for each in involved if each.waiting and each.waiting.thing and each.waiting.thing.kind not in ("thread", "pool")
    ]
    return "never-signalled", waits[0] if waits else involved[0]


def _cycle(process: Process) -> list[Process]:
    """The processes that wait for each other in a circle, or the chain to the first who waits for no single one."""
    chain = [process]
    while (giver := _giver(chain[-1])) is not None and giver.waiting is not None and not giver.ended:
        if giver in chain:
            return chain[chain.index(giver) :]
        chain.append(giver)
    return []


def _waits(process: Process) -> Step:
    return process.here(process.waiting.says if process.waiting is not None else "")


def _among_ranks(execution: Execution, stuck: Sequence[Process]) -> list[Finding]:
    if ("unknown") in {key[2] for key in execution.messages if key[0] == -1}:
        return []
    mains = {each.system.rank: each for each in execution.processes if each.key in ((), ("rank",)) or each in stuck}
    if any(each.cut or each.crashed for each in mains.values()):
        return []
    for one in stuck:
        assert one.waiting is not None
        if one.waiting.kind != "collective":
            continue
        late = [
            rank
            for issued in execution.exchanges.values()
            if one.system.rank in issued
            for rank, each in issued.items()
            if len(each) < len(issued[one.system.rank])
        ]
        for rank in late:
            other = mains.get(rank)
            if other is None or other is one or (execution.partial and not other.joined):
                continue
            if other.ended:
                return [_parted(execution, "collective-missing", one, other, "has ended without it")]
            if other.waiting is None:
                continue
            if other.waiting.kind == "collective":
                return [
                    _parted(
                        execution,
                        "collective-group",
                        one,
                        other,
                        f"{other.waiting.says} of another group (line {_waits(other).line})",
                    )
                ]
            return [_parted(execution, "collective-missing", one, other, f"{other.waiting.says} (line {_waits(other).line})")]
    messages = [each for each in stuck if each.waiting is not None and each.waiting.kind in ("send", "recv")]
    if messages:
        one = messages[0]
        assert one.waiting is not None and one.waiting.thing is not None
        other = mains.get(one.waiting.thing.count)
        if other is not None and other is not one:
            does = f"{other.waiting.says} (line {_waits(other).line})" if other.waiting else "has ended"
            return [_parted(execution, "point-to-point", one, other, does)]
    return []


def _parted(execution: Execution, rule: str, one: Process, other: Process, does: str) -> Finding:
    assert one.waiting is not None
    step = _waits(one)
    there = _waits(other) if other.frames else (other.trace[-1] if other.trace else step)
    before = len(execution.findings)
    execution.parted(rule, f"{one.name} {step.says}, and {other.name} {does}.", one, other, step, there)
    return execution.findings.pop(before)


def lock_orders(taken: Sequence[tuple[Thing, Thing, Process, Step, Step, frozenset[int]]], cls: str) -> list[Finding]:
    """Circles in the order in which the methods of one class take its locks.

    Args:
        taken: see `State.locks_taken`, of several executions. Locks of the same place are the same.
    """
    edges: dict[tuple[object, object], tuple[str, Step, Step, Thing, Thing]] = {}
    for held, lock, process, where, step, every in taken:
        if len(every) == 1 and held.site != lock.site:
            edges.setdefault((held.site, lock.site), (process.trace[0].says if process.trace else "", where, step, held, lock))
    found: list[Finding] = []
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
        found.append(Finding("lock-order", step.file, step.line, says, paths, frozenset({(back[2].file, back[2].line)})))
    return found
