"""Calls and returns of an abstract execution: frames, new threads, exceptions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convtwins_hangs.concurrency.control_flow import NO_NODE, Graph
from convtwins_hangs.concurrency.evaluation import Evaluator
from convtwins_hangs.concurrency.program import last_name
from convtwins_hangs.concurrency.state import (
    MAX_FRAMES,
    BlockingCall,
    CallFrame,
    CallOutcome,
    OsProcess,
    SimulatedError,
    SimulatedThread,
)
from convtwins_hangs.concurrency.values import (
    BUFFERS,
    Class,
    Function,
    Instance,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    reachable,
)

Deliver = Callable[[Value], None]
_MAX_IRRELEVANT_NODES = 40
"""Maximum number of nodes of a function that is executed although none of them is relevant."""


class Calls(Evaluator):
    """Moves threads into functions and out of them."""

    def enter(
        self,
        thread: SimulatedThread,
        function: Function,
        values: Sequence[Value],
        keywords: Mapping[str, Value],
        on_return: Deliver,
    ) -> bool:
        """Call a function of the program. False: it is not executed, because no node is relevant or the stack is too deep."""
        tree = function.tree
        if isinstance(tree, ast.AsyncFunctionDef):
            return False
        graph = self.program.graph(tree)
        depth = sum(frame.graph is graph for frame in thread.frames)
        if len(thread.frames) >= MAX_FRAMES or depth > 2:
            return False
        if len(graph.nodes) > _MAX_IRRELEVANT_NODES and not any(map(self.program.is_relevant, graph.nodes)):
            return False
        self.entered_functions.add(id(tree))
        frame = CallFrame(graph, function.module, graph.entry, parent=function.closure, function=function, on_return=on_return)
        frame.outer_names = _declared_names(tree)
        self._bind_arguments(thread, frame, tree.args, function, values, keywords)
        if graph.is_generator:
            kind = "contextmanager" if "contextmanager" in decorator_names(tree) else "generator"
            generator = SyncObject(kind=kind, owner=frame, name=graph.name)
            frame.generator = generator
            on_return(generator)
            return True
        if thread.frames and any(map(self.program.is_relevant, graph.nodes)):
            thread.record(f"calls {graph.name}()")
        thread.frames.append(frame)
        return True

    def _bind_arguments(
        self,
        thread: SimulatedThread,
        frame: CallFrame,
        arguments: ast.arguments,
        function: Function,
        values: Sequence[Value],
        keywords: Mapping[str, Value],
    ) -> None:
        positional = [*([function.receiver] if function.receiver is not None else []), *function.bound_arguments, *values]
        names = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
        defaults = dict(zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True))
        defaults |= {
            parameter.arg: value
            for parameter, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value is not None
        }
        outer_frame = function.closure or CallFrame(frame.graph, frame.module, 0)
        bound = dict(zip(names, positional, strict=False))
        for name in [*names, *(parameter.arg for parameter in arguments.kwonlyargs)]:
            if name in keywords:
                bound[name] = keywords[name]
            elif name not in bound and name in defaults:
                bound[name] = self.evaluate(thread, defaults[name], outer_frame)
            elif name not in bound:
                default = Unknown(origin=(*thread.position, id(function.tree), name))
                bound[name] = self.value_by_name(thread, name) or self.mark_by_name(name, default)
        if arguments.vararg:
            bound[arguments.vararg.arg] = SequenceValue(list(positional[len(names) :]))
        if arguments.kwarg:
            bound[arguments.kwarg.arg] = Unknown()
        frame.names = bound

    def make_instance(
        self,
        thread: SimulatedThread,
        class_value: Class,
        values: Sequence[Value],
        keywords: Mapping[str, Value],
        deliver: Deliver,
    ) -> bool:
        """Make an instance of a class of the program. False: its `__init__` is not executed."""
        site = thread.site if thread.frames else (class_value.module.file, 0, 0)
        instance = Instance(class_value=class_value, origin=thread.position, site=site)
        if class_value.tree is not None and self.program.has_buffers(class_value.tree):
            instance.marks = frozenset([BUFFERS])
        initializer = self.member(thread, class_value, "__init__")
        if isinstance(initializer, Function):
            function = Function(tree=initializer.tree, module=initializer.module, receiver=instance, owner=initializer.owner)
            function.closure = class_value.closure
            if self.enter(thread, function, values, keywords, lambda _: deliver(instance)):
                return True
        instance.attributes |= keywords
        deliver(instance)
        return False

    def start_thread(
        self,
        parent: SimulatedThread | None,
        target: Value | None,
        values: Sequence[Value],
        name: str,
        os_process: OsProcess,
        *,
        daemon: bool,
    ) -> SimulatedThread:
        """Start a new thread that will run `target`."""
        key = (*parent.key, parent.num_started) if parent else ()
        thread = SimulatedThread(len(self.threads), name, key, os_process, daemon=daemon)
        if parent is not None:
            parent.num_started += 1
            thread.merge_clock(parent.advance_clock())
            thread.trace = [parent.current_step(f"{parent.name} starts {name}")]
            self.has_started_threads |= parent.os_process is os_process
        thread.clock[thread.number] = 1
        self.threads.append(thread)

        def push(function: Value | None) -> None:
            ignore: Deliver = lambda _: None  # noqa: E731
            match function:
                case Function():
                    thread.ended = not self.enter(thread, function, values, {}, ignore)
                    if not thread.frames:  # a generator, or nothing that matters
                        thread.ended = True
                case Instance() if function.class_value is not None and isinstance(
                    call := self.attribute(thread, function, "__call__"), Function
                ):
                    push(call)
                case _:
                    thread.ended = True
                    self.escape(values)

        push(target)
        return thread

    def end_thread(self, thread: SimulatedThread) -> None:
        thread.ended = True
        if thread.sync_object is not None:
            thread.sync_object.clock = thread.advance_clock()

    def return_from_call(self, thread: SimulatedThread, value: Value) -> None:
        """Return from the innermost frame."""
        frame = thread.frames.pop()
        if frame.generator is not None:
            frame.generator.is_set = True  # it is exhausted
        frame.on_return(value)
        if not thread.frames:
            self.end_thread(thread)

    def raise_exception(self, thread: SimulatedThread, exception: str) -> None:
        """Raise an exception at the thread's current node."""
        while thread.frames:
            frame = thread.frame
            target = frame.node.error
            if target != NO_NODE:
                frame.error, frame.next_node = exception, target
                return
            thread.frames.pop()
        thread.crashed = True
        self.end_thread(thread)

    def is_caught(self, thread: SimulatedThread, exception: str) -> bool:
        """Return whether a handler of the thread catches such an exception here."""
        return any(self.program.catches(frame.graph, frame.node.error, exception) for frame in thread.frames)

    def may_raise(self, thread: SimulatedThread, exception: str) -> bool:
        """Return whether to explore an exception here: the code expects it, or a lock would stay locked."""
        frame = thread.frame
        holds_acquired_lock = any(is_by_acquire for _, _, is_by_acquire in thread.held_locks)
        if not (holds_acquired_lock or self.is_caught(thread, exception)):
            return False
        node = frame.node
        if holds_acquired_lock or node.error == NO_NODE:
            return True
        entry = node.error
        join = _common_post_dominator(frame.graph, node.next, entry)
        if join is None:
            return True
        nodes = [*_nodes_until(frame.graph, node.next, join), *_nodes_until(frame.graph, entry, join)]
        return any(map(self.program.is_relevant, nodes))

    def escape(self, values: Sequence[Value | None]) -> None:
        """Mark all objects reachable from these values as used by external code."""
        for value in reachable([value for value in values if value is not None]):
            if isinstance(value, SyncObject):
                value.has_escaped = True

    def finish_call(self, thread: SimulatedThread, outcome: CallOutcome, deliver: Deliver) -> bool:
        """Deliver the value of a call, now or when it no longer blocks. False: the function is unknown."""
        if isinstance(outcome, Value):
            deliver(outcome)
        elif outcome is not None:
            self._resume_call(thread, outcome, deliver, None)
        return outcome is not None

    def _resume_call(self, thread: SimulatedThread, call: BlockingCall, deliver: Deliver, has_timed_out: bool | None) -> None:
        try:
            thread.pending = call.send(has_timed_out)
        except StopIteration as end:
            deliver(end.value)
        except SimulatedError as error:
            self.raise_exception(thread, str(error))
        else:
            thread.resume = functools.partial(self._resume_call, thread, call, deliver)


def _common_post_dominator(graph: Graph, first: int, second: int) -> int | None:
    joins = graph.post_dominators
    chain: list[int] = [first]
    while (follower := joins.get(chain[-1])) is not None:
        chain.append(follower)
    candidate: int | None = second
    while candidate is not None and candidate not in chain:
        candidate = joins.get(candidate)
    return candidate


def _nodes_until(graph: Graph, node_index: int, end: int) -> list[Any]:
    return [] if node_index in (end, len(graph.nodes)) else [graph.nodes[node_index], *graph.nodes_between(node_index, end)]


def decorator_names(tree: Any) -> set[str]:
    """Return the last names of a function's decorators."""
    return {
        last_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for decorator in getattr(tree, "decorator_list", [])
    }


@functools.lru_cache(maxsize=8192)
def _declared_names(tree: Any) -> frozenset[str]:
    """Return the names that a function declares global or nonlocal."""
    if isinstance(tree, ast.Lambda):
        return frozenset()
    names: set[str] = set()
    pending: list[Any] = list(tree.body)
    while pending:
        statement = pending.pop()
        if isinstance(statement, (ast.Global, ast.Nonlocal)):
            names.update(statement.names)
        if isinstance(statement, ast.stmt) and not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            pending += [child for child in ast.iter_child_nodes(statement) if isinstance(child, (ast.stmt, ast.ExceptHandler))]
        elif isinstance(statement, ast.ExceptHandler):
            pending += statement.body
    return frozenset(names)
