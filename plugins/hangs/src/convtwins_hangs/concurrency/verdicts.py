"""Findings at the end of an execution: threads and ranks that wait forever, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convtwins_hangs.concurrency.execution import Execution
from convtwins_hangs.concurrency.findings import ConcurrencyFinding, TraceStep, finding_at
from convtwins_hangs.concurrency.ranks import UNKNOWN_RANK, divergence_finding
from convtwins_hangs.concurrency.state import SimulatedThread
from convtwins_hangs.concurrency.values import SyncObject, reachable


def judge(execution: Execution) -> list[ConcurrencyFinding]:
    """Return the findings of a finished execution. They are conditional if it assumed a data-dependent divergence."""
    divergence = execution.divergence_step
    return [
        _make_conditional(finding, divergence) if divergence is not None else finding
        for finding in _blocked_findings(execution)
    ]


def _make_conditional(finding: ConcurrencyFinding, divergence: TraceStep) -> ConcurrencyFinding:
    location = f"line {divergence.line}" if divergence.file == finding.file else f"{divergence.file}:{divergence.line}"
    message = f"If this may differ between ranks: {divergence.says} ({location}). {finding.message}"
    related_locations = finding.related_locations | {divergence.location}
    return replace(finding, message=message, related_locations=related_locations, condition=divergence)


def _blocked_findings(execution: Execution) -> list[ConcurrencyFinding]:
    if execution.findings:
        return [_with_settled_rule(execution, finding) for finding in execution.findings]
    blocked = [
        thread for thread in execution.threads if not thread.ended and not thread.is_abandoned and thread.pending is not None
    ]
    if not blocked or _has_failed(execution):
        return []
    blocked_ranks = [
        thread for thread in blocked if thread.pending is not None and thread.pending.kind in ("collective", "send", "recv")
    ]
    if blocked_ranks:
        return _rank_findings(execution, blocked_ranks)
    deadlocked = _deadlocked(execution, blocked)
    return [_thread_finding(execution, deadlocked)] if _is_certain(execution, deadlocked) else []


def _has_failed(execution: Execution) -> bool:
    """Return whether an exception has ended a thread that takes the others with it."""
    crashed = [thread for thread in execution.threads if thread.crashed]
    # A main thread or rank takes the others with it, or its launcher does. So does a thread that gives up what was only slow.
    return any(execution.has_timed_out or thread.number == 0 or thread.os_process.rank is not None for thread in crashed)


def _deadlocked(execution: Execution, blocked: Sequence[SimulatedThread]) -> list[SimulatedThread]:
    """Return the blocked threads that nothing else can release."""
    is_function = execution.root.function is not None
    reachable_ids = {id(value) for value in reachable(execution.caller_values)} if is_function else set[int]()
    deadlocked = [thread for thread in blocked if not _may_be_released(thread, reachable_ids)]
    if len(deadlocked) < len(blocked) or any(thread.is_abandoned for thread in execution.threads):
        return _waiting_for_each_other(deadlocked)
    return deadlocked


def _is_certain(execution: Execution, deadlocked: Sequence[SimulatedThread]) -> bool:
    if all(thread.daemon for thread in deadlocked):  # they end with the program
        return False
    if execution.root.function is not None and deadlocked[0].number and len(deadlocked) < 2:
        return False  # a thread that outlives a function may be ended by who calls the next one
    return not any(_has_guessed_test(execution, thread) for thread in deadlocked)


def _has_guessed_test(execution: Execution, thread: SimulatedThread) -> bool:
    """Return whether a thread waits in a loop with an unknown test while another unknown test needs the same lock.

    Such tests may exclude each other, as not full and not empty do.
    """
    sync_object = thread.awaited_object
    if sync_object is None or sync_object.kind != "condition" or not isinstance(sync_object.target, SyncObject):
        return False
    return thread.frame.in_guessed_loop and len(execution.unknown_loop_tests[sync_object.target]) > 1


def _with_settled_rule(execution: Execution, finding: ConcurrencyFinding) -> ConcurrencyFinding:
    """Turn a mismatched order into a missing collective if one rank issues collectives that another does not."""
    if finding.rule != "collective-order":
        return finding
    for calls_by_rank in execution.collective_calls.values():
        names = {tuple(sorted(call.name for call in calls)) for calls in calls_by_rank.values()}
        if len(names) > 1:
            return replace(finding, rule="collective-missing")
    return finding


def _may_be_released(thread: SimulatedThread, reachable_ids: set[int]) -> bool:
    """Return whether external code may end the thread's wait."""
    assert thread.pending is not None
    sync_object = thread.pending.sync_object
    if sync_object is None:
        return thread.pending.kind not in ("future",)
    if sync_object.kind == "lock":
        return False
    return sync_object.has_escaped or (
        id(sync_object) in reachable_ids and sync_object.kind not in ("thread", "future", "pool")
    )


def _waiting_for_each_other(threads: Sequence[SimulatedThread]) -> list[SimulatedThread]:
    """Return the threads that wait only for locks and ends of each other."""
    remaining = list(threads)
    while True:
        waiting = [thread for thread in remaining if (owner := _awaited_thread(thread)) is not None and owner in remaining]
        if len(waiting) == len(remaining):
            return waiting
        remaining = waiting


def _awaited_thread(thread: SimulatedThread) -> SimulatedThread | None:
    """Return the only thread that can end the thread's wait. None: there is no single one."""
    sync_object = thread.awaited_object
    return sync_object.owner if sync_object is not None and sync_object.kind in ("lock", "thread", "future") else None


def _thread_finding(execution: Execution, deadlocked: Sequence[SimulatedThread]) -> ConcurrencyFinding:
    involved = _cycle(next((thread for thread in deadlocked if thread.number == 0), deadlocked[0])) or deadlocked
    rule, main = _select_rule(execution, involved)
    awaited = [thread.awaited_object for thread in involved]
    held_locks = [
        (thread, lock, step)
        for thread in involved
        for lock, step, _ in thread.held_locks
        if lock.kind == "lock" and lock in awaited
    ]
    errors = [(thread, thread.raise_step) for thread in execution.threads if thread.raise_step is not None]
    failed_texts = [f"{thread.name} ended by an exception (line {step.line})" for thread, step in errors if thread.crashed]
    if rule in ("lock-not-released", "never-signalled"):
        failed_texts += [f"{thread.name} got an exception in line {step.line}" for thread, step in errors if not thread.crashed]
    texts = [
        f"Nobody can go on: {'; '.join(f'{thread.name} {_standing(thread)}' for thread in involved)}",
        "; ".join(f"{thread.name} holds {lock.title} (line {step.line})" for thread, lock, step in held_locks),
        "; ".join(failed_texts),
    ]
    shown_threads = [*involved, *(thread for thread, _ in errors if thread not in involved)]
    blocked_steps = {thread: [thread.blocked_step] if thread.pending is not None else [] for thread in shown_threads}
    paths = [(thread.name, [*thread.trace[-16:], *steps]) for thread, steps in blocked_steps.items()]
    related = [
        *(step for steps in blocked_steps.values() for step in steps),
        *(step for _, _, step in held_locks),
        *(step for _, step in errors),
    ]
    return finding_at(rule, main.blocked_step, " ".join(f"{text}." for text in texts if text), paths, related)


def _standing(thread: SimulatedThread) -> str:
    """Return what a thread waits for, and where."""
    step = thread.blocked_step
    return f"{step.says} (line {step.line})"


def _select_rule(execution: Execution, involved: Sequence[SimulatedThread]) -> tuple[str, SimulatedThread]:
    """Return (the rule, the thread that the finding is about)."""
    kinds = {thread: sync_object.kind for thread in involved if (sync_object := thread.awaited_object) is not None}
    for thread, kind in kinds.items():
        lock = thread.awaited_object
        if kind == "lock" and lock is not None:
            is_by_acquire = any(other is lock and is_explicit for other, _, is_explicit in lock.owner.held_locks)
            if lock.owner.ended or (is_by_acquire and lock.owner.raise_step is not None):
                return "lock-not-released", thread
            if lock.owner is thread:
                return "lock-again", thread
    others = [thread for thread, kind in kinds.items() if kind != "lock"]
    if "future" in kinds.values() and any(thread.full_pool for thread in execution.threads):
        return "pool-deadlock", others[0]
    if "lock" in kinds.values():
        waits_otherwise = [thread for thread in involved if kinds.get(thread) != "lock"]
        return ("lock-held", waits_otherwise[0]) if others else ("lock-order", involved[0])
    if blocked_puts := [thread for thread in involved if thread.blocked_step.says.startswith("puts")]:
        return "queue-deadlock", blocked_puts[0]
    signals = [thread for thread, kind in kinds.items() if kind not in ("thread", "pool")]
    return "never-signalled", (signals or involved)[0]


def _cycle(thread: SimulatedThread) -> list[SimulatedThread]:
    """Return the cycle of threads that wait for each other. Empty: there is none."""
    chain = [thread]
    while (awaited := _awaited_thread(chain[-1])) is not None and awaited.pending is not None and not awaited.ended:
        if awaited in chain:
            return chain[chain.index(awaited) :]
        chain.append(awaited)
    return []


def _rank_findings(execution: Execution, blocked: Sequence[SimulatedThread]) -> list[ConcurrencyFinding]:
    if any(source == UNKNOWN_RANK for source, _, _ in execution.message_counts):
        return []
    main_threads = {
        thread.os_process.rank: thread for thread in execution.threads if thread.key in ((), ("rank",)) or thread in blocked
    }
    if any(thread.is_abandoned or thread.crashed for thread in main_threads.values()):
        return []
    for thread in blocked:
        for rank in _late_ranks(execution, thread):
            other = main_threads.get(rank)
            if other is None or other is thread or (execution.may_exclude_ranks and not other.has_joined_ranks):
                continue
            if other.ended:
                return [_divergence_finding("collective-missing", thread, other, "has ended without it")]
            if other.pending is not None and other.pending.kind == "collective":
                state = f"{other.pending.description} of another group (line {other.blocked_step.line})"
                return [_divergence_finding("collective-group", thread, other, state)]
            if other.pending is not None:
                return [_divergence_finding("collective-missing", thread, other, _standing(other))]
    for thread in blocked:
        if thread.pending is not None and thread.pending.kind in ("send", "recv"):
            other = main_threads.get(thread.awaited_object.count) if thread.awaited_object is not None else None
            if other is None or other is thread:
                return []
            state = _standing(other) if other.pending is not None else "has ended"
            return [_divergence_finding("point-to-point", thread, other, state)]
    return []


def _late_ranks(execution: Execution, thread: SimulatedThread) -> list[int]:
    """Return the ranks that have issued fewer collectives of a group than a thread that waits in one."""
    rank = thread.os_process.rank
    if thread.pending is None or thread.pending.kind != "collective" or rank is None:
        return []
    groups = [calls_by_rank for calls_by_rank in execution.collective_calls.values() if rank in calls_by_rank]
    return [
        other for calls_by_rank in groups for other, calls in calls_by_rank.items() if len(calls) < len(calls_by_rank[rank])
    ]


def _divergence_finding(rule: str, thread: SimulatedThread, other: SimulatedThread, state: str) -> ConcurrencyFinding:
    step = thread.blocked_step
    other_step = other.blocked_step if other.frames else (other.trace[-1] if other.trace else step)
    message = f"{thread.name} {step.says}, and {other.name} {state}."
    return divergence_finding(rule, message, (thread, other), (step, other_step))


def lock_orders(
    acquisitions: Sequence[tuple[SyncObject, SyncObject, SimulatedThread, TraceStep, TraceStep, frozenset[int]]], cls: str
) -> list[ConcurrencyFinding]:
    """Return the cycles in the order that the methods of one class take its locks.

    Args:
        acquisitions: `ExecutionState.lock_acquisitions` of several executions. Locks of the same site are the same lock.
    """
    edges: dict[tuple[object, object], tuple[str, TraceStep, TraceStep, SyncObject, SyncObject]] = {}
    for held_lock, lock, thread, held_at, step, all_held in acquisitions:
        if len(all_held) == 1 and held_lock.site != lock.site:
            edges.setdefault(
                (held_lock.site, lock.site), (thread.trace[0].says if thread.trace else "", held_at, step, held_lock, lock)
            )
    findings: list[ConcurrencyFinding] = []
    for (first_site, second_site), (_, held_at, step, held_lock, lock) in edges.items():
        reverse = edges.get((second_site, first_site))
        if reverse is None or str(first_site) > str(second_site):
            continue
        message = (
            f"Methods of {cls} take {held_lock.title} and then {lock.title} (line {step.line}), and in the other order "
            f"(line {reverse[2].line}). "
            "Two threads that call them wait for each other."
        )
        paths = [("one thread", [held_at, step]), ("another thread", [reverse[1], reverse[2]])]
        findings.append(finding_at("lock-order", step, message, paths, [reverse[2]]))
    return findings
