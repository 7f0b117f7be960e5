"""Called functions of an abstract execution: their frames, arguments and exceptions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from convtwins_hangs.concurrency.control_flow import NO_NODE, Graph
from convtwins_hangs.concurrency.evaluation import Evaluator
from convtwins_hangs.concurrency.program import UNSPECIFIED_ERROR, decorator_names, short_source
from convtwins_hangs.concurrency.state import MAX_FRAMES, CallFrame, Keywords, SimulatedError, SimulatedThread
from convtwins_hangs.concurrency.values import (
    Class,
    Function,
    Instance,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    ValueMark,
    reachable,
)

_MAX_IRRELEVANT_NODES = 40
"""Maximum number of nodes of a function that is executed although none of them is relevant."""


class Calls(Evaluator):
    """Makes the frames of called functions, and says which exceptions matter there."""

    def new_frame(
        self, thread: SimulatedThread, function: Value, values: Sequence[Value] = (), keywords: Keywords | None = None
    ) -> CallFrame | None:
        """Return the frame of a called function of the program.

        None: it is not executed, because no node is relevant, the stack is too deep, or it is no function of the program.
        """
        if not isinstance(function, Function) or isinstance(function.tree, ast.AsyncFunctionDef):
            return None
        tree = function.tree
        graph = self.program.graph(tree)
        depth = sum(frame.graph is graph for frame in thread.frames)
        if len(thread.frames) >= MAX_FRAMES or depth > 2:
            return None
        is_relevant = any(map(self.program.is_relevant, graph.nodes))
        if len(graph.nodes) > _MAX_IRRELEVANT_NODES and not is_relevant:
            return None
        self.entered_functions.add(id(tree))
        frame = CallFrame(graph, function.module, graph.entry, parent=function.closure, function=function)
        frame.outer_names = _declared_names(tree)
        frame.names = self._bound_arguments(thread, frame, tree.args, function, values, keywords or {})
        if graph.is_generator:
            kind = "contextmanager" if "contextmanager" in decorator_names(tree) else "generator"
            frame.generator = SyncObject(kind=kind, owner=frame, name=graph.name)
        elif thread.frames and is_relevant:
            thread.record(f"calls {graph.name}()")
        return frame

    def _bound_arguments(
        self,
        thread: SimulatedThread,
        frame: CallFrame,
        arguments: ast.arguments,
        function: Function,
        values: Sequence[Value],
        keywords: Mapping[str, Value],
    ) -> dict[str, Value]:
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
        return bound

    def new_instance(
        self, thread: SimulatedThread, class_value: Class, values: Sequence[Value], keywords: Keywords
    ) -> tuple[Instance, CallFrame | None]:
        """Return (an instance of a class of the program, the frame of its `__init__`). None: that is not executed."""
        site = thread.site if thread.frames else (class_value.module.file, 0, 0)
        instance = Instance(class_value=class_value, origin=thread.position, site=site)
        if class_value.tree is not None and self.program.has_buffers(class_value.tree):
            instance.marks = frozenset([ValueMark.BUFFERS])
        frame, initializer = None, self.member(thread, class_value, "__init__")
        if isinstance(initializer, Function):
            function = Function(tree=initializer.tree, module=initializer.module, receiver=instance, owner=initializer.owner)
            function.closure = class_value.closure
            frame = self.new_frame(thread, function, values, keywords)
        if frame is None:
            instance.attributes |= keywords
        return instance, frame

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

    def choose_to_raise(self, thread: SimulatedThread, harmless: Function | None = None) -> None:
        """Choose whether a call raises an exception here, and raise it.

        Args:
            harmless: function of the program. It is treated as an operation that may fail only if none of its nodes is
                relevant.
        """
        if harmless is not None and not self.program.may_raise(harmless.tree):
            return
        frame = thread.frame
        own_errors = sorted(self.program.errors_raised_by(frame.module, frame.node.tree)) if frame.node.kind == "call" else []
        kinds = [kind for kind in (UNSPECIFIED_ERROR, *own_errors) if self.may_raise(thread, kind)]
        if not kinds or not (choice := self.choose(thread, 1 + len(kinds), "exception", local=True)):
            return
        thread.raise_step = thread.record(f"gets an exception from {short_source(frame.node.tree)}")
        thread.diverge_at(thread.raise_step)
        raise SimulatedError(kinds[choice - 1])

    def escape(self, values: Sequence[Value | None]) -> None:
        """Mark all objects reachable from these values as used by external code."""
        for value in reachable([value for value in values if value is not None]):
            if isinstance(value, SyncObject):
                value.has_escaped = True


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
