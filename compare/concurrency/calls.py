"""Calls and ways out of an abstract execution: frames, new processes, exceptions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compare.concurrency.control_flow import NO_NODE, Graph
from compare.concurrency.evaluation import Evaluation
from compare.concurrency.program import last_name
from compare.concurrency.state import MAX_FRAMES, CallFrame, OsProcess, PendingOperation, SimulatedThread
from compare.concurrency.values import (
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

_SMALL = 40
"""Nodes of a function that is executed although nothing in it matters."""


class Calls(Evaluation):
    """Moves processes into functions and out of them."""

    def enter(
        self,
        thread: SimulatedThread,
        function: Function,
        values: Sequence[Value],
        keywords: Mapping[str, Value],
        on_return: Callable[[Value], None],
    ) -> bool:
        """Call a function of the package. False: it is not executed, since nothing in it matters or it is too deep."""
        tree = function.tree
        if isinstance(tree, ast.AsyncFunctionDef):
            return False
        graph = self.program.graph(tree)
        depth = sum(frame.graph is graph for frame in thread.frames)
        if len(thread.frames) >= MAX_FRAMES or depth > 2:
            return False
        if len(graph.nodes) > _SMALL and not any(map(self.program.matters, graph.nodes)):
            return False
        self.entered_functions.add(id(tree))
        frame = CallFrame(graph, function.module, graph.entry, parent=function.closure, function=function, on_return=on_return)
        frame.outer_names = _declared(tree)
        self._bind_arguments(thread, frame, tree.args, function, values, keywords)
        if graph.is_generator:
            kind = "contextmanager" if "contextmanager" in decorators(tree) else "generator"
            thing = SyncObject(kind=kind, owner=frame, name=graph.name)
            frame.generator = thing
            on_return(thing)
            return True
        if thread.frames and any(map(self.program.matters, graph.nodes)):
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
        given = [*([function.receiver] if function.receiver is not None else []), *function.bound_arguments, *values]
        names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        defaults = dict(zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True))
        defaults |= {
            each.arg: value
            for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value is not None
        }
        outer = function.closure or CallFrame(frame.graph, frame.module, 0)
        bound = dict(zip(names, given, strict=False))
        for name in [*names, *(each.arg for each in arguments.kwonlyargs)]:
            if name in keywords:
                bound[name] = keywords[name]
            elif name not in bound and name in defaults:
                bound[name] = self.evaluate(thread, defaults[name], outer)
            elif name not in bound:
                made = Unknown(origin=(*thread.position, id(function.tree), name))
                bound[name] = self.named(thread, name) or self.by_name(name, made)
        if arguments.vararg:
            bound[arguments.vararg.arg] = SequenceValue(list(given[len(names) :]))
        if arguments.kwarg:
            bound[arguments.kwarg.arg] = Unknown()
        frame.names = bound

    def make(
        self,
        thread: SimulatedThread,
        of: Class,
        values: Sequence[Value],
        keywords: Mapping[str, Value],
        deliver: Callable[[Value], None],
    ) -> bool:
        """Make an instance of a class of the package. False: its `__init__` is not executed."""
        site = thread.site if thread.frames else (of.module.file, 0, 0)
        instance = Instance(class_value=of, origin=thread.position, site=site)
        if of.tree is not None and self.program.has_buffers(of.tree):
            instance.marks = frozenset([BUFFERS])
        initial = self.member(thread, of, "__init__")
        if isinstance(initial, Function):
            function = Function(tree=initial.tree, module=initial.module, receiver=instance, owner=initial.owner)
            function.closure = of.closure
            if self.enter(thread, function, values, keywords, lambda _: deliver(instance)):
                return True
        instance.attributes |= keywords
        deliver(instance)
        return False

    def begin(
        self,
        parent: SimulatedThread | None,
        target: Value | None,
        values: Sequence[Value],
        name: str,
        system: OsProcess,
        *,
        daemon: bool,
    ) -> SimulatedThread:
        """A new process that will run `target`."""
        key = (*parent.key, parent.num_started) if parent else ()
        started = SimulatedThread(len(self.threads), name, key, system, daemon=daemon)
        if parent is not None:
            parent.num_started += 1
            started.merge_clock(parent.advance_clock())
            started.trace = [parent.current_step(f"{parent.name} starts {name}")]
            self.has_started_threads |= parent.os_process is system
        started.clock[started.number] = 1
        self.threads.append(started)

        def push(one: Value | None) -> None:
            done: Callable[[Value], None] = lambda _: None  # noqa: E731
            match one:
                case Function():
                    started.ended = not self.enter(started, one, values, {}, done)
                    if not started.frames:  # a generator, or nothing that matters
                        started.ended = True
                case Instance() if one.class_value is not None and isinstance(
                    call := self.attribute(started, one, "__call__"), Function
                ):
                    push(call)
                case _:
                    started.ended = True
                    self.escape(values)

        push(target)
        return started

    def finish(self, thread: SimulatedThread) -> None:
        thread.ended = True
        if thread.sync_object is not None:
            thread.sync_object.clock = thread.advance_clock()

    def leave(self, thread: SimulatedThread, value: Value) -> None:
        """Return from the function on top."""
        frame = thread.frames.pop()
        if frame.generator is not None:
            frame.generator.is_set = True  # it is exhausted
        frame.on_return(value)
        if not thread.frames:
            self.finish(thread)

    def throw(self, thread: SimulatedThread, exception: str) -> None:
        """Raise an exception where the process is."""
        while thread.frames:
            frame = thread.frame
            target = frame.node.error
            if target != NO_NODE:
                frame.error, frame.next_node = exception, target
                return
            thread.frames.pop()
        thread.crashed = True
        self.finish(thread)

    def caught(self, thread: SimulatedThread, exception: str) -> bool:
        """Whether a handler of this process takes such an exception here."""
        return any(self.program.catches(frame.graph, frame.node.error, exception) for frame in thread.frames)

    def may_fail(self, thread: SimulatedThread, exception: str) -> bool:
        """Whether an exception here is worth a look: the code expects it, or a lock would stay taken."""
        frame = thread.frame
        explicit = any(by_acquire for _, _, by_acquire in thread.held_locks)
        if not (explicit or self.caught(thread, exception)):
            return False
        node = frame.node
        if explicit or node.error == NO_NODE:
            return True
        entry = node.error
        meets = _meeting(frame.graph, node.next, entry)
        if meets is None:
            return True
        nodes = [*_until(frame.graph, node.next, meets), *_until(frame.graph, entry, meets)]
        return any(map(self.program.matters, nodes))

    def escape(self, values: Sequence[Value | None]) -> None:
        """Code that is not read gets these values, and may use what they reach."""
        for value in reachable([each for each in values if each is not None]):
            if isinstance(value, SyncObject):
                value.has_escaped = True

    def wait(self, thread: SimulatedThread, operation: PendingOperation, deliver: Callable[[Value], None]) -> None:
        """Do an operation as soon as it can be done. `act` gives its result."""

        def act() -> Value:
            value = operation.perform()
            deliver(value)
            return value

        thread.pending = operation._replace(perform=act)


def _meeting(graph: Graph, one: int, two: int) -> int | None:
    joins = graph.post_dominators
    ways: list[int] = [one]
    while (after := joins.get(ways[-1])) is not None:
        ways.append(after)
    place: int | None = two
    while place is not None and place not in ways:
        place = joins.get(place)
    return place


def _until(graph: Graph, place: int, end: int) -> list[Any]:
    return [] if place in (end, len(graph.nodes)) else [graph.nodes[place], *graph.nodes_between(place, end)]


def decorators(tree: Any) -> set[str]:
    """The last names of what decorates a function."""
    return {last_name(each.func if isinstance(each, ast.Call) else each) for each in getattr(tree, "decorator_list", [])}


@functools.lru_cache(maxsize=8192)
def _declared(tree: Any) -> frozenset[str]:
    """Names that a function declares global or nonlocal."""
    if isinstance(tree, ast.Lambda):
        return frozenset()
    found: set[str] = set()
    waiting: list[Any] = list(tree.body)
    while waiting:
        one = waiting.pop()
        if isinstance(one, (ast.Global, ast.Nonlocal)):
            found.update(one.names)
        if isinstance(one, ast.stmt) and not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            waiting += [each for each in ast.iter_child_nodes(one) if isinstance(each, (ast.stmt, ast.ExceptHandler))]
        elif isinstance(one, ast.ExceptHandler):
            waiting += one.body
    return frozenset(found)
