"""One abstract execution: each thread runs through its control-flow graphs until it blocks, then another runs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from convtwins_hangs.concurrency import branches, contexts, invocations, loops
from convtwins_hangs.concurrency.control_flow import NO_NODE, GraphNode
from convtwins_hangs.concurrency.program import UNSPECIFIED_ERROR, Root, assigned_targets, raised_error
from convtwins_hangs.concurrency.ranks import RankOperations
from convtwins_hangs.concurrency.state import (
    BlockingCall,
    BlockingStep,
    CallFrame,
    CallOutcome,
    DecisionPath,
    Keywords,
    OsProcess,
    SearchBudget,
    SimulatedError,
    SimulatedThread,
)
from convtwins_hangs.concurrency.values import NONE, Class, Function, Instance, Unknown, Value, ValueMark


class Execution(RankOperations):
    """Executes one decision path."""

    def __init__(
        self, program: Any, path: DecisionPath, budget: SearchBudget, root: Root, num_ranks: int, *, prune: bool = True
    ) -> None:
        super().__init__(program, path, budget, num_ranks)
        self.root = root
        self.prune = prune
        for rank in range(num_ranks) if program.is_distributed(root) else [None]:
            thread = self._new_thread("the main thread" if rank is None else f"rank {rank}", (), OsProcess(rank))
            thread.steps = self._run_root(thread)

    def _new_thread(self, name: str, key: tuple[Any, ...], os_process: OsProcess) -> SimulatedThread:
        thread = SimulatedThread(self, len(self.threads), name, key, os_process)
        thread.clock[thread.number] = 1
        self.threads.append(thread)
        return thread

    def _run_root(self, thread: SimulatedThread) -> BlockingCall:
        """Execute the root: a script, a function, or a method on a new instance of its class."""
        function, module = self.root.function, self.root.module
        if function is None:
            graph = self.program.graph(module.tree)
            names = thread.os_process.names.setdefault(module.name, {})
            return (yield from self.run_frame(thread, CallFrame(graph, module, graph.entry, names=names)))
        callee: Value = Function(tree=function, module=module)
        if self.root.class_tree is not None:
            instance, initializer = self.new_instance(thread, Class(self.root.class_tree, module), [], {})
            if initializer is not None:
                self.caller_values += initializer.names.values()
                yield from self._run_to_end(thread, initializer)
            self.caller_values.append(instance)
            if function.name == "__init__":
                return NONE
            callee = self.attribute(thread, instance, function.name)
        if (frame := self.new_frame(thread, callee)) is not None:
            self.caller_values += frame.names.values()
            yield from self._run_to_end(thread, frame)
        return NONE

    def _run_to_end(self, thread: SimulatedThread, frame: CallFrame) -> BlockingStep:
        """Execute a frame. A generator's is executed for all its items."""
        yield from self.run_frame(thread, frame)
        while frame.generator is not None and not frame.generator.is_set:
            yield from self.run_frame(thread, frame)

    def run(self) -> None:
        """Execute until no thread can run.

        Raises:
            SearchLimitReached: the budget is exhausted.
        """
        current: SimulatedThread | None = None
        while True:
            runnable = [thread for thread in self.threads if self._is_runnable(thread)]
            if not runnable:
                if not self._time_out_one():
                    return
                continue
            expirable = [thread for thread in self.threads if thread not in runnable and self._may_time_out(thread)]
            if current not in runnable:
                candidates = [thread for thread in (*runnable, *expirable) if thread.os_process is runnable[0].os_process]
                current = candidates[self.path.choose(len(candidates), "start", candidates[0])]
                if current in expirable:
                    self.has_timed_out = True
                    self._time_out(current)
                    continue
            assert current is not None
            current.full_pool = None
            if current.pending is not None:
                others = [
                    thread
                    for thread in (*runnable, *expirable)
                    if thread is not current and thread.os_process is current.os_process
                ]
                if others and not current.preempted and (choice := self.path.choose(1 + len(others), "preempt", current)):
                    current.preempted = True
                    current = others[choice - 1]
                    if current in expirable:
                        self.has_timed_out = True
                        self._time_out(current)
                    continue
                current.preempted = False
            self._advance(current)

    def _advance(self, thread: SimulatedThread, *, has_timed_out: bool | None = None) -> None:
        """Execute a thread until it blocks, pauses or ends."""
        assert thread.steps is not None
        try:
            thread.pending = thread.steps.send(has_timed_out)
        except StopIteration as end:
            self._end_thread(thread, end.value)
        except SimulatedError:
            thread.crashed = True
            self._end_thread(thread)

    @staticmethod
    def _end_thread(thread: SimulatedThread, result: Value | None = None) -> None:
        thread.ended, thread.pending = True, None
        if thread.sync_object is not None:
            if thread.sync_object.kind == "future" and result is not None:
                thread.sync_object.target = result
            thread.sync_object.clock = thread.advance_clock()

    def _is_runnable(self, thread: SimulatedThread) -> bool:
        if thread.ended or thread.is_abandoned:
            return False
        if (pool := thread.full_pool) is not None:
            running = sum(not future.owner.ended and future.owner.full_pool is None for future in pool.items)
            if pool.size is not None and running >= pool.size:
                return False
        return thread.pending is None or thread.pending.is_ready()

    def _may_time_out(self, thread: SimulatedThread) -> bool:
        operation = thread.pending
        return (
            not (thread.ended or thread.is_abandoned)
            and operation is not None
            and operation.has_timeout
            and not operation.has_long_timeout
        )

    def _time_out(self, thread: SimulatedThread) -> None:
        """Let a thread's timeout expire. Its call goes on, and the thread pauses behind it."""
        assert thread.pending is not None
        thread.record(f"{thread.pending.description} until its time runs out")
        thread.pauses = True
        self._advance(thread, has_timed_out=True)
        thread.pauses = False

    def _time_out_one(self) -> bool:
        """Let the first pending timeout expire. False: no thread has one."""
        for thread in self.threads:
            if not (thread.ended or thread.is_abandoned) and thread.pending is not None and thread.pending.has_timeout:
                self._time_out(thread)
                return True
        return False

    def start_thread(
        self,
        parent: SimulatedThread,
        target: Value | None,
        values: Sequence[Value],
        name: str,
        os_process: OsProcess,
        *,
        daemon: bool = False,
    ) -> SimulatedThread:
        """Start a new thread that will run `target`. It has ended at once if nothing of that is executed."""
        thread = self._new_thread(name, (*parent.key, parent.num_started), os_process)
        thread.daemon = daemon
        parent.num_started += 1
        thread.merge_clock(parent.advance_clock())
        thread.trace = [parent.current_step(f"{parent.name} starts {name}")]
        self.has_started_threads |= parent.os_process is os_process
        if isinstance(target, Instance):
            target = self.attribute(thread, target, "__call__")
        if not isinstance(target, Function):
            self.escape(values)
        frame = self.new_frame(thread, target, values) if target is not None else None
        if frame is None or frame.generator is not None:
            thread.ended = True
        else:
            thread.steps = self.run_frame(thread, frame)
        return thread

    def call_function(
        self, thread: SimulatedThread, function: Value, values: Sequence[Value] = (), keywords: Keywords | None = None
    ) -> CallOutcome:
        """Call a function. A generator function makes its generator alone. None: it is not executed, see `new_frame`."""
        frame = self.new_frame(thread, function, values, keywords)
        if frame is None:
            return None
        return self.run_frame(thread, frame) if frame.generator is None else frame.generator

    def run_frame(self, thread: SimulatedThread, frame: CallFrame) -> BlockingCall:
        """Execute a frame, and return the value that it returns, or that it yields if it is a generator's.

        Raises:
            SimulatedError: the frame raises an exception that it does not catch.
        """
        thread.frames.append(frame)
        nodes, visits = frame.graph.nodes, frame.visits
        while True:
            if thread.pauses or thread.is_abandoned:
                yield None
            self.budget.spend()
            index = frame.current_node = frame.next_node
            node = nodes[index]
            if frame.divergences and (number_tables := frame.divergences.pop(index, None)):
                branches.mark_divergent_numbers(thread, *number_tables)
            visits[index] += 1
            if visits[index] > frame.max_visits:
                thread.is_abandoned = True
                continue
            frame.next_node = node.next
            try:
                outcome = _STEPS[node.kind](thread, frame, node)
                if outcome is None:
                    continue
                if not isinstance(outcome, Value):
                    yield from outcome
                    continue
            except SimulatedError as error:
                if node.error == NO_NODE:
                    thread.frames.pop()
                    raise
                frame.error, frame.next_node = str(error), node.error
                continue
            thread.frames.pop()
            return outcome


Step = Callable[[SimulatedThread, CallFrame, GraphNode], Value | BlockingStep | None]
"""Executes one node. Returns the value with which it leaves the frame, or what may block, or None."""


def _do(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
    """Execute a statement without calls."""
    tree = node.tree
    match tree:
        case ast.Assign() | ast.AnnAssign() if tree.value is not None:
            value = thread.execution.evaluate(thread, tree.value, frame)
            for target in assigned_targets(tree):
                thread.execution.assign(thread, target, value, frame, tree.value)
        case ast.AugAssign():
            thread.execution.update(thread, tree, frame)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            closure = None if frame.function is None else frame
            frame.names[tree.name] = Function(tree=tree, module=frame.module, closure=closure)
        case ast.ClassDef():
            frame.names[tree.name] = Class(tree, frame.module, None if frame.function is None else frame)
        case ast.Import() | ast.ImportFrom():
            for alias in tree.names:
                name = alias.asname or (alias.name.partition(".")[0] if isinstance(tree, ast.Import) else alias.name)
                frame.names[name] = thread.execution.imported(thread, frame.module, tree, name)
        case _:
            pass


def _pick(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
    """Keep the value of a `return` or of a conditional expression."""
    key = id(frame) if isinstance(node.tree, ast.Return) else id(node.tree)
    frame.results.pop(key, None)
    frame.results[key] = thread.execution.evaluate(thread, node.extra, frame)


def _yield(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> Value | None:
    if frame.generator is None:
        return None
    value = thread.execution.evaluate(thread, node.tree.value, frame)
    frame.results[id(node.tree)] = NONE
    return Unknown(marks=frozenset([ValueMark.DATA_ITEM])) if isinstance(node.tree, ast.YieldFrom) else value


def _return(_: SimulatedThread, frame: CallFrame, ___: GraphNode) -> Value:
    return frame.leave(frame.results.get(id(frame), NONE))


def _end(_: SimulatedThread, frame: CallFrame, ___: GraphNode) -> Value:
    return frame.leave(NONE)


def _go_on(_: SimulatedThread, ___: CallFrame, ____: GraphNode) -> None:
    pass


def _raise(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
    name = (raised_error(node.tree.exc) if node.tree.exc is not None else frame.error) or UNSPECIFIED_ERROR
    thread.raise_step = thread.record(f"raises {name}")
    raise SimulatedError(name)


def _reraise(_: SimulatedThread, frame: CallFrame, ___: GraphNode) -> None:
    raise SimulatedError(frame.error or UNSPECIFIED_ERROR)


def _catch(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
    for kind, name, entry in node.extra:
        if thread.execution.program.handler_matches(kind, frame.error):
            frame.next_node = entry
            if name:
                frame.names[name] = Unknown()
            thread.record(f"handles {frame.error}")
            return
    raise SimulatedError(frame.error)


_STEPS: dict[str, Step] = {
    "call": invocations.execute,
    "do": _do,
    "branch": branches.take,
    "pick": _pick,
    "collect": loops.collect,
    "iter": loops.start,
    "next": loops.next_item,
    "enter": contexts.enter,
    "exit": contexts.leave,
    "yield": _yield,
    "return": _return,
    "end": _end,
    "raise": _raise,
    "reraise": _reraise,
    "catch": _catch,
    "join": _go_on,
}
"""Functions that execute a node, by its kind."""
