"""One abstract execution: each thread runs through its control-flow graphs until it blocks, then another runs."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from convtwins_hangs.concurrency import library_calls, sync_objects, threads
from convtwins_hangs.concurrency.calls import decorator_names
from convtwins_hangs.concurrency.control_flow import NO_NODE, GraphNode
from convtwins_hangs.concurrency.evaluation import ITEM_READERS, RETURNS_SELF, SAME_LENGTH_METHODS
from convtwins_hangs.concurrency.library_calls import LibraryCall, item_marks
from convtwins_hangs.concurrency.meanings import (
    FINITENESS_CHECKS,
    HARMLESS_BUILTINS,
    has_buffers,
    may_combine,
    may_exchange,
    may_read_data,
)
from convtwins_hangs.concurrency.program import (
    UNSPECIFIED_ERROR,
    Root,
    bound_names,
    last_name,
    raised_error,
    stored_names,
)
from convtwins_hangs.concurrency.ranks import RankOperations
from convtwins_hangs.concurrency.state import (
    MAX_VISITS,
    BlockingCall,
    CallFrame,
    CallOutcome,
    DecisionPath,
    Keywords,
    Loop,
    NumberTable,
    OsProcess,
    PendingOperation,
    SearchBudget,
    SimulatedError,
    SimulatedThread,
)
from convtwins_hangs.concurrency.values import (
    BUFFERS,
    COLLECTIVE_RESULT,
    DATA_DEPENDENT,
    DATA_DEPENDENT_LENGTH,
    DATA_ITEM,
    DDP,
    LARGE,
    LOCAL,
    NO_MARKS,
    NONE,
    UNEVEN,
    Class,
    Const,
    Function,
    Instance,
    Lib,
    Method,
    RangeValue,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    length,
    marks_of,
    reachable,
    truth,
)

_MAX_EXACT_ITERATIONS = 4
"""Longest loop over numbers that is executed in full. Longer loops run twice, or more if a test depends on a counter."""
_USUAL_ITERATIONS = 2
_MAX_SMALL_NUMBERS = 4096
_LOCAL = frozenset([LOCAL])
_HARMLESS_MODULES = ("logging.", "warnings.", "time.", "math.", "json.", "os.path.", "re.", "random.", "gc.")
_LARGE_RESULTS = {
    "zeros", "ones", "empty", "full", "rand", "randn", "random", "normal", "uniform", "arange", "linspace", "randint", "bytes",
    "bytearray", "state_dict", "read", "read_bytes", "load", "imread", "read_csv",
}  # fmt: skip
"""Functions whose result may be large, unless it is made of few numbers."""
_SMALL_RESULTS = {"item", "float", "int", "len", "sum", "mean", "min", "max", "bool", "std", "norm", "argmax", "hash", "str"}
"""Functions whose result is small."""
_PLACEMENT_KEYWORDS = {"device", "map_location", "device_ids", "output_device", "dtype"}
_SAME_ON_ALL_RANKS = {
    "size",
    "numel",
    "dim",
    "type",
    "is_floating_point",
    "get_device",
    "device_count",
    "is_available",
    "named_parameters",
}
"""Methods and functions that return the same value on all ranks."""
_TYPE_TESTS = {"isinstance", "issubclass", "hasattr", "callable"}
_HARMLESS_METHODS = {
    "info", "debug", "warning", "error", "exception", "critical", "format", "items", "keys", "values", "append", "item", "eval",
    "train", "zero_grad", "write", "flush", "strip", "split", "upper", "lower", "startswith", "endswith", "size", "numel",
    "dim",
}  # fmt: skip


class Execution(RankOperations):
    """Executes one decision path."""

    def __init__(
        self, program: Any, path: DecisionPath, budget: SearchBudget, root: Root, num_ranks: int, *, prune: bool = True
    ) -> None:
        super().__init__(program, path, budget, num_ranks)
        self.root = root
        self.prune = prune
        for rank in range(num_ranks) if program.is_distributed(root) else [None]:
            self._start_main_thread(root, OsProcess(rank))

    def _start_main_thread(self, root: Root, os_process: OsProcess) -> None:
        """Start the main thread of a rank or of the program."""
        name = "the main thread" if os_process.rank is None else f"rank {os_process.rank}"
        thread = SimulatedThread(len(self.threads), name, (), os_process)
        thread.clock[thread.number] = 1
        self.threads.append(thread)

        instance: Instance | None = None
        if root.function is None:
            graph = self.program.graph(root.module.tree)
            names = os_process.names.setdefault(root.module.name, {})
            frame = CallFrame(graph, root.module, graph.entry, names=names)
        elif root.class_tree is None:
            frame = self.new_frame(thread, Function(tree=root.function, module=root.module))
        else:
            instance, frame = self.new_instance(thread, Class(root.class_tree, root.module), [], {})
            if frame is None:
                frame, instance = self._root_method_frame(thread, instance), None
        if frame is None:
            thread.ended = True
            return
        if root.function is not None:
            self.caller_values += frame.names.values()
        thread.steps = self._run_root(thread, frame, instance)

    def _run_root(self, thread: SimulatedThread, frame: CallFrame, instance: Instance | None) -> BlockingCall:
        """Execute the frame of a root.

        Args:
            instance: the frame is its `__init__`, and the root's method follows. None: the frame is all.
        """
        yield from self._run_to_end(thread, frame)
        if instance is not None and (method_frame := self._root_method_frame(thread, instance)) is not None:
            yield from self._run_to_end(thread, method_frame)
        return NONE

    def _root_method_frame(self, thread: SimulatedThread, instance: Instance) -> CallFrame | None:
        """Return the frame of the root's method. None: it is not executed, or it is `__init__`, which was."""
        assert self.root.function is not None
        self.caller_values.append(instance)
        name = self.root.function.name
        return self.new_frame(thread, self.attribute(thread, instance, name)) if name != "__init__" else None

    def _run_to_end(self, thread: SimulatedThread, frame: CallFrame) -> BlockingCall:
        """Execute a frame. A generator's is executed for all its items."""
        value = yield from self.run_frame(thread, frame)
        while frame.generator is not None and not frame.generator.is_set:
            value = yield from self.run_frame(thread, frame)
        return value

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
                current = candidates[self.path.choose(len(candidates))]
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
                if others and not current.preempted and (choice := self.path.choose(1 + len(others))):
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
        thread = SimulatedThread(len(self.threads), name, (*parent.key, parent.num_started), os_process, daemon=daemon)
        parent.num_started += 1
        thread.merge_clock(parent.advance_clock())
        thread.trace = [parent.current_step(f"{parent.name} starts {name}")]
        self.has_started_threads |= parent.os_process is os_process
        thread.clock[thread.number] = 1
        self.threads.append(thread)
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

    def run_frame(self, thread: SimulatedThread, frame: CallFrame) -> BlockingCall:
        """Execute a frame, and return the value that it returns, or that it yields if it is a generator's.

        Raises:
            SimulatedError: the frame raises an exception that it does not catch.
        """
        thread.frames.append(frame)
        while True:
            if thread.pauses or thread.is_abandoned:
                yield None
            self.budget.spend()
            try:
                value = yield from self._execute_node(thread, frame)
            except SimulatedError as error:
                if frame.node.error == NO_NODE:
                    thread.frames.pop()
                    raise
                frame.error, frame.next_node = str(error), frame.node.error
                continue
            if value is not None:
                thread.frames.pop()
                return value

    def _execute_node(self, thread: SimulatedThread, frame: CallFrame) -> Generator[PendingOperation | None, Any, Value | None]:
        """Execute the next node of a frame. Return the value with which it leaves the frame, or None."""
        frame.current_node = frame.next_node
        node = frame.node
        if frame.divergences and (number_tables := frame.divergences.pop(frame.current_node, None)):
            self._mark_divergent_numbers(thread, frame, *number_tables)
        frame.visits[frame.current_node] += 1
        if frame.visits[frame.current_node] > frame.max_visits:
            thread.is_abandoned = True
            return None
        frame.next_node = node.next
        match node.kind:
            case "call":
                yield from self._call(thread, frame, node)
            case "do":
                self._do(thread, frame, node.tree)
            case "branch":
                return self._branch(thread, frame, node)
            case "pick":
                key = id(frame) if isinstance(node.tree, ast.Return) else id(node.tree)
                frame.results.pop(key, None)
                frame.results[key] = self.evaluate(thread, node.extra, frame)
            case "collect":
                self._collect(thread, frame, node)
            case "iter":
                frame.results.pop(id(node.tree), None)
                frame.loops[id(node.tree)] = self._start_loop(thread, frame, node.tree.iter)
            case "next":
                yield from self._next_iteration(thread, frame, node)
            case "enter":
                yield from self._enter_with(thread, frame, node)
            case "exit":
                yield from self._exit_with(thread, frame, node)
            case "yield" if frame.generator is not None:
                value = self.evaluate(thread, node.tree.value, frame)
                frame.results[id(node.tree)] = NONE
                return Unknown(marks=frozenset([DATA_ITEM])) if isinstance(node.tree, ast.YieldFrom) else value
            case "return" | "end":
                return self._leave_frame(frame, frame.results.get(id(frame), NONE) if node.kind == "return" else NONE)
            case "raise":
                name = (raised_error(node.tree.exc) if node.tree.exc is not None else frame.error) or UNSPECIFIED_ERROR
                thread.raise_step = thread.record(f"raises {name}")
                raise SimulatedError(name)
            case "reraise":
                raise SimulatedError(frame.error or UNSPECIFIED_ERROR)
            case "catch":
                self._catch(thread, frame, node)
            case _:
                pass
        return None

    @staticmethod
    def _leave_frame(frame: CallFrame, value: Value) -> Value:
        """Return the value that a frame returns, and mark its generator as exhausted."""
        if frame.generator is not None:
            frame.generator.is_set = True
        return value

    def _catch(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        for kind, name, entry in node.extra:
            if self.program.handler_matches(kind, frame.error):
                frame.next_node = entry
                if name:
                    frame.names[name] = Unknown()
                thread.record(f"handles {frame.error}")
                return
        raise SimulatedError(frame.error)

    # Statements.

    def _do(self, thread: SimulatedThread, frame: CallFrame, tree: Any) -> None:
        match tree:
            case ast.Assign():
                self.assigns_constant = isinstance(tree.value, ast.Constant)
                value = self.evaluate(thread, tree.value, frame)
                self.assigns_computed = isinstance(tree.value, (ast.Call, ast.BinOp))
                for target in tree.targets:
                    self.assign(thread, target, value, frame)
                self.assigns_computed = False
            case ast.AnnAssign():
                if tree.value is not None:
                    self.assign(thread, tree.target, self.evaluate(thread, tree.value, frame), frame)
            case ast.AugAssign():
                self.update(thread, tree, frame)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                closure = None if frame.function is None else frame
                frame.names[tree.name] = Function(tree=tree, module=frame.module, closure=closure)
            case ast.ClassDef():
                frame.names[tree.name] = Class(tree, frame.module, None if frame.function is None else frame)
            case ast.Import() | ast.ImportFrom():
                for alias in tree.names:
                    name = alias.asname or (alias.name.partition(".")[0] if isinstance(tree, ast.Import) else alias.name)
                    frame.names[name] = self.imported(thread, frame.module, tree, name)
            case _:
                pass

    def _branch(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> Value | None:
        """Choose a path of a branch. Return the function's value if both only lead to its end, else None."""
        value = self.evaluate(thread, node.tree, frame)
        is_true = truth(value)
        is_loop = id(node.tree) in frame.graph.tests
        assumption = None if is_loop else thread.assumed_truths.get(id(value))
        if is_true is None and assumption is not None:
            is_true = assumption[1]
        is_local, is_negated = LOCAL in value.marks, bool(node.extra)
        divergence = (
            thread.current_step(_source_text(node.tree, is_negated)) if DATA_DEPENDENT in value.marks and not is_local else None
        )
        if is_loop:
            frame.in_guessed_loop = is_true is None
            for lock, _, _ in thread.held_locks if is_true is None else []:
                self.unknown_loop_tests[lock].add(id(node.tree))
        if is_true is None:
            is_quiet, join, nodes = self.program.region(frame.graph, frame.current_node)
            if is_quiet and self.prune:
                return self._skip(thread, frame, nodes, join, marks_of([value]))
            if is_loop and frame.visits[frame.current_node] > _USUAL_ITERATIONS:
                is_true = False
                self._record_truncation(frame, frame.current_node, node, None, _USUAL_ITERATIONS)
            else:
                is_usually_true = is_loop or self.program.is_usually_true(frame.graph, frame.current_node)
                is_true = is_usually_true != bool(self.choose(thread, 2, local=is_local, divergence=divergence))
            if isinstance(value, Unknown):
                thread.assumed_truths[id(value)] = value, is_true
            if not is_local:
                step = thread.record(
                    f"assumes {'true' if is_true != is_negated else 'false'}: {_source_text(node.tree, is_negated)}"
                )
                if divergence is not None:
                    thread.divergences.append((thread.num_collectives, step))
            self._record_assumption(thread, _source_text(node.tree, is_negated), is_same=not is_local and divergence is None)
        if is_local:
            is_quiet, _, _ = self.program.region(frame.graph, frame.current_node)
            self._record_divergence(
                thread,
                f"{'takes' if is_true != is_negated else 'does not take'}: {_source_text(node.tree, is_negated)}",
                is_quiet=is_quiet,
            )
        frame.next_node = node.next if is_true else node.next_if_false
        if is_local:
            self._watch_numbers(thread, frame)
        return None

    def _watch_numbers(self, thread: SimulatedThread, frame: CallFrame) -> None:
        """Record the numbers that are set on one path of a rank-dependent branch."""
        _, join, nodes = self.program.region(frame.graph, frame.current_node)
        if join is None or join == len(frame.graph.nodes):
            return
        assigned, old_numbers = frame.divergences.setdefault(join, ({}, reachable_numbers(thread, frame)))
        set_to_number, counted = set(_number_targets(nodes)), set(_number_targets(nodes, only_counted=True))
        for name in stored_names(nodes):
            assigned[id(frame.names), name] = frame.names, (None if name in set_to_number else frame.names.get(name))
        for attribute in _stored_attributes(nodes):
            owner = self.evaluate(thread, attribute.value, frame)
            if isinstance(owner, Instance):
                old_value = None if f".{attribute.attr}" in set_to_number else owner.attributes.get(attribute.attr)
                assigned[id(owner.attributes), attribute.attr] = owner.attributes, old_value
        for key in assigned.keys() & old_numbers.keys():
            if not counted & {key[1], f".{key[1]}"}:
                old_numbers.pop(key)

    @staticmethod
    def _mark_divergent_numbers(
        thread: SimulatedThread, frame: CallFrame, assigned: NumberTable, old_numbers: NumberTable
    ) -> None:
        """Mark numbers as rank-dependent that some ranks set or counted in a branch and others did not.

        A number that was set to another value keeps that value's marks: all ranks may have it from a collective.

        Args:
            assigned: variables that the source sets on one of the paths, with their old values. None: the source sets the
                variable to a number, so the old value is irrelevant.
            old_numbers: all numbers before the branch, except those that the source sets without counting. A called
                function may have counted one. In a loop that is followed for fewer iterations than it has, such a number
                is unknown.
        """
        is_truncated = any(call_frame.in_truncated_loop for call_frame in thread.frames)
        for (_, name), (holder, old_value) in assigned.items():
            value = holder.get(name)
            if isinstance(value, Const) and _is_number(value) and (old_value is None or old_value is value):
                holder[name] = Const(value.value, marks=value.marks | _LOCAL)
        for (_, name), (holder, old_value) in old_numbers.items():
            value = holder.get(name)
            if (
                isinstance(value, Const)
                and isinstance(old_value, Const)
                and _is_number(value)
                and value.value != old_value.value
            ):
                marks = value.marks | _LOCAL
                holder[name] = Unknown(marks=marks) if is_truncated else Const(value.value, marks=marks)

    def _record_truncation(
        self, frame: CallFrame, node_index: int, node: GraphNode, iterations: int | None, followed: int
    ) -> None:
        """Record that a loop is followed for too few iterations, if a test in it depends on a counter."""
        if self.program.depends_on_counter(frame.graph, node_index, by_item=iterations is not None):
            count = f"{iterations} turns" if iterations is not None else "unknown turns"
            self.truncated_loops[f"a loop of {count} (line {node.line}) followed for {followed}"] = None

    def _record_assumption(self, thread: SimulatedThread, decision: str, *, is_same: bool) -> None:
        """Record an unknown decision of ranks, and whether it was assumed to be the same on all."""
        if thread.os_process.rank is not None:
            step = thread.current_step(decision)
            self.assumptions[step] = is_same and self.assumptions.get(step, True)

    @staticmethod
    def _record_divergence(thread: SimulatedThread, decision: str, *, is_quiet: bool = False) -> None:
        """Record a decision that may differ between ranks.

        Args:
            is_quiet: whether no node on its paths is relevant, so that ranks do not diverge here.
        """
        step = thread.record(decision)
        if not is_quiet:
            thread.divergences.append((thread.num_collectives, step))

    def _skip(
        self, thread: SimulatedThread, frame: CallFrame, nodes: Sequence[GraphNode], join: int | None, marks: frozenset[Any]
    ) -> Value | None:
        """Continue where all paths of a branch meet. Variables assigned on them become unknown.

        Return the function's value if they meet at its end, else None.
        """
        if join == len(frame.graph.nodes):
            returned = [self._approximate(thread, frame, pick.extra) for pick in nodes if pick.kind == "pick"]
            return self._leave_frame(frame, Unknown(marks=marks_of(returned) | marks))
        assert join is not None
        assigned = [
            assignment.tree
            for assignment in nodes
            if assignment.kind == "do" and isinstance(assignment.tree, (ast.Assign, ast.AugAssign))
        ]
        guessed: list[Value] = []
        for _ in range(_USUAL_ITERATIONS):  # what is assigned may be used by the next, in whichever order they stand here
            for assignment in assigned:
                value = self._approximate(thread, frame, assignment.value)
                guessed += [value] if any(isinstance(target, ast.Attribute) for target in _targets(assignment)) else []
                for name in bound_names(assignment):
                    old_value = frame.names.get(name)
                    if not isinstance(old_value, (SyncObject, Instance, Function)):  # those are mostly replaced by their like
                        frame.names[name] = Unknown(marks=marks_of([old_value, value]) | marks)
        for attribute in _stored_attributes(nodes):
            owner = self.evaluate(thread, attribute.value, frame)
            if isinstance(owner, Instance) and not isinstance(
                owner.attributes.get(attribute.attr), (SyncObject, Instance, Function)
            ):
                owner.attributes[attribute.attr] = Unknown(
                    marks=marks_of([owner.attributes.get(attribute.attr), *guessed]) | marks
                )
        for node in nodes:
            collected = frame.results.get(id(node.tree)) if node.kind == "collect" else None
            if isinstance(collected, SequenceValue):
                collected.exact = False
                collected.marks |= marks | (
                    {UNEVEN} if LOCAL in marks else {DATA_DEPENDENT_LENGTH} if DATA_DEPENDENT in marks else NO_MARKS
                )
        for name in stored_names(nodes).difference(*map(bound_names, assigned)):
            if not isinstance(frame.names.get(name), (SyncObject, Instance, Function)):
                frame.names[name] = Unknown(marks=marks_of([frame.names.get(name)]) | marks)
        for node in nodes:
            if node.kind == "pick" and not isinstance(node.tree, ast.Return):
                frame.results[id(node.tree)] = Unknown(marks=marks_of([self._approximate(thread, frame, node.extra)]) | marks)
        frame.next_node = join
        return None

    def _approximate(self, thread: SimulatedThread, frame: CallFrame, tree: ast.AST | None) -> Value:
        """Return the value of an expression without executing its calls: results inherit the marks of the arguments."""
        if tree is None or not any(isinstance(child, ast.Call) for child in ast.walk(tree)):
            return self.evaluate(thread, tree, frame)
        children = [
            self._approximate(thread, frame, child) for child in ast.iter_child_nodes(tree) if isinstance(child, ast.expr)
        ]
        if not isinstance(tree, ast.Call):
            return Unknown(marks=marks_of(children))
        name = last_name(tree.func)
        if (named := self.value_by_name(thread, name)) is not None:
            return named
        callee = self._approximate(thread, frame, tree.func.value if isinstance(tree.func, ast.Attribute) else tree.func)
        values = [self._approximate(thread, frame, argument) for argument in tree.args]
        keywords = {keyword.arg: self._approximate(thread, frame, keyword.value) for keyword in tree.keywords if keyword.arg}
        return Unknown(marks=_result_marks(name, callee, values, keywords))

    def _collect(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        if node.extra == "begin":
            frame.results[id(node.tree)] = SequenceValue([], origin=thread.position)
            return
        collected = frame.results.get(id(node.tree))
        tree = node.tree.value if isinstance(node.tree, ast.DictComp) else node.tree.elt
        if isinstance(collected, SequenceValue):
            self._append(thread, collected, self.evaluate(thread, tree, frame))
            if isinstance(node.tree, ast.DictComp):
                collected.exact = False

    # Loops.

    def _start_loop(self, thread: SimulatedThread, frame: CallFrame, tree: ast.expr) -> Loop:
        """Choose the items of a loop."""
        value = self.evaluate(thread, tree, frame)
        if isinstance(value, SyncObject) and value.kind == "generator":
            return Loop(generator=value)
        if isinstance(value, SequenceValue) and value.exact and len(value.items) <= MAX_VISITS - 4:
            return Loop(iter(list(value.items)))
        is_uneven = UNEVEN in value.marks
        stop = value.stop if isinstance(value, RangeValue) else None
        is_bounded, filling = self._queue_filling(thread)
        # A rank that leaves in a second iteration is only missed in a third. Comparing with an earlier one takes two.
        # Other loops over the same iterable run as often.
        usual_count = _USUAL_ITERATIONS + (
            thread.os_process.rank is not None and ast.unparse(tree) in self.program.early_exit_iterables
        )
        if isinstance(stop, Const) and isinstance(stop.value, int):
            limit = max(_MAX_EXACT_ITERATIONS, filling)
            count = min(max(stop.value, 0), limit) if stop.value <= _MAX_EXACT_ITERATIONS or is_bounded else usual_count
            if count < stop.value <= MAX_VISITS - 4 and self.program.depends_on_counter(
                frame.graph, frame.next_node, by_item=True
            ):
                count = stop.value
                frame.max_visits = max(frame.max_visits, MAX_VISITS * count)
            if count < stop.value:
                self._record_truncation(frame, frame.next_node, frame.node, stop.value, count)
            indices = (Const(index, marks=stop.marks) for index in range(count))
            return Loop(indices, is_truncated=count < stop.value, is_uneven=LOCAL in stop.marks)
        marks_of_items = item_marks(value)
        is_enumerated = isinstance(value, Unknown) and "?items" in value.attributes
        if isinstance(stop, Unknown):
            is_uneven = is_uneven or LOCAL in stop.marks
        # Without an observable effect, all iterations are equal.
        is_quiet, _, _ = self.program.region(frame.graph, frame.next_node)
        options = [usual_count, 0, *([filling] if filling else [])] if not is_uneven else [usual_count, 1, 0]
        # Loops over the same iterable have the same number of iterations, on all ranks and everywhere.
        subject = stop if stop is not None else length(value)
        key = ("turns", *subject.origin) if not is_uneven and subject.origin else ()
        if is_quiet and self.prune:
            remaining = 1
        else:
            options = self.iteration_options.setdefault(key, options) if key else options
            is_data_dependent = DATA_DEPENDENT_LENGTH in value.marks or (
                isinstance(stop, Unknown) and DATA_DEPENDENT in stop.marks
            )
            divergence = (
                thread.current_step(f"how many turns {_source_text(tree)} has") if is_data_dependent and not is_uneven else None
            )
            self._record_assumption(
                thread, f"how many turns {_source_text(tree)} has", is_same=not is_uneven and divergence is None
            )
            remaining = options[self.choose(thread, len(options), local=is_uneven, key=key, divergence=divergence)]
        self._record_truncation(frame, frame.next_node, frame.node, None, options[0])
        items = (Unknown(marks=marks_of_items) for _ in range(remaining))
        return Loop(
            (SequenceValue([Unknown(), item]) for item in items) if is_enumerated else items,
            is_truncated=True,
            is_uneven=is_uneven,
        )

    def _queue_filling(self, thread: SimulatedThread) -> tuple[bool, int]:
        """Return (whether there are bounded queues, iterations that fill them and the threads between them).

        0 iterations: there are no bounded queues, or too large ones. All ranks get the same result for one loop, whatever
        queues each has, because a loop must not end earlier on one of them.
        """
        filling = self.queue_capacity + len(self.threads) + 2
        result = bool(self.queue_capacity), filling if self.queue_capacity and filling < MAX_VISITS else 0
        if thread.os_process.rank is None:
            return result
        return self.queue_bounds.setdefault(thread.position, result)

    def _next_iteration(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> BlockingCall:
        """Assign the next item of a loop, or leave the loop."""
        loop = frame.loops.get(id(node.tree), Loop())
        item = next(loop.items, None)
        if (generator := loop.generator) is not None and not (generator.is_set or generator.owner in thread.frames):
            value = yield from self.run_frame(thread, generator.owner)
            if not generator.is_set:
                item = SequenceValue([Unknown(), value]) if "enumerated" in generator.flags else value
        source = node.tree.iter
        if item is None:
            if loop.is_uneven:
                self._record_divergence(thread, f"has no more of: {_source_text(source)}")
            frame.loops.pop(id(node.tree), None)
            frame.next_node = node.next_if_false
            return NONE
        if loop.is_uneven:
            self._record_divergence(thread, f"turns once more: {_source_text(source)}")
        self.assign(thread, node.tree.target, item, frame)
        return NONE

    # with.

    def _enter_with(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> BlockingCall:
        item: ast.withitem = node.extra
        frame.results.pop(id(item), None)
        value = result = self.evaluate(thread, item.context_expr, frame)
        frame.results[id(item)] = value
        match value:
            case SyncObject() if value.kind == "contextmanager":
                result = yield from self.run_frame(thread, value.owner)
            case SyncObject():
                outcome = sync_objects.call_method(self, thread, value, "__enter__")
                result = (yield from outcome) if isinstance(outcome, Generator) else value
            case Instance():
                inner = self.new_frame(thread, self.attribute(thread, value, "__enter__"))
                if inner is not None:
                    result = yield from self.run_call(thread, inner)
            case Unknown() if value.dotted == "no_sync":
                thread.no_sync_depth += 1
            case Unknown() if value.dotted == "no_grad":
                thread.no_grad_depth += 1
            case Unknown() if value.dotted == "join":
                thread.is_abandoned = True  # uneven ranks are what this is for
                return NONE
            case _:
                pass
        if item.optional_vars is not None:
            self.assign(thread, item.optional_vars, result, frame)
        return NONE

    def _exit_with(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> BlockingCall:
        value = frame.results.get(id(node.extra))
        match value:
            case SyncObject() if value.kind == "contextmanager":
                if not value.is_set and value.owner not in thread.frames:
                    yield from self.run_frame(thread, value.owner)
            case SyncObject():
                outcome = sync_objects.call_method(self, thread, value, "__exit__")
                if isinstance(outcome, Generator):
                    yield from outcome
            case Instance():
                inner = self.new_frame(thread, self.attribute(thread, value, "__exit__"), [Unknown(), Unknown(), Unknown()])
                if inner is not None:
                    yield from self.run_call(thread, inner)
            case Unknown() if value.dotted == "no_sync":
                thread.no_sync_depth -= 1
            case Unknown() if value.dotted == "no_grad":
                thread.no_grad_depth -= 1
            case _:
                pass
        return NONE

    # Calls.

    def _call(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> BlockingCall:
        tree: ast.Call = node.tree
        frame.results.pop(id(tree), None)
        callee = self.evaluate(thread, tree.func, frame)
        values: list[Value] = []
        for argument in tree.args:
            value = self.evaluate(thread, argument, frame)
            if isinstance(argument, ast.Starred):
                values += value.items if isinstance(value, SequenceValue) else []
            else:
                values.append(value)
        keywords = {keyword.arg: self.evaluate(thread, keyword.value, frame) for keyword in tree.keywords if keyword.arg}

        value = yield from self._invoke(thread, frame, callee, values, keywords)
        if isinstance(value, (Unknown, SequenceValue)) and not value.origin:
            value.origin = thread.position
        frame.results[id(tree)] = value
        return value

    def _invoke(
        self, thread: SimulatedThread, frame: CallFrame, callee: Value, values: list[Value], keywords: Keywords
    ) -> BlockingCall:
        """Call any value, and return the result."""
        outcome: CallOutcome = None
        match callee:
            case Function():
                self._choose_to_raise(thread, harmless=callee)
                if (inner := self.new_frame(thread, callee, values, keywords)) is not None:
                    outcome = self.run_call(thread, inner)
            case Class():
                outcome, inner = self.new_instance(thread, callee, values, keywords)
                if inner is not None:
                    yield from self.run_call(thread, inner)
            case Instance():
                inner = self.new_frame(thread, self.attribute(thread, callee, "__call__"), values, keywords)
                if inner is not None:
                    outcome = self.run_call(thread, inner)
            case Lib():
                outcome = library_calls.simulate(LibraryCall(self, thread, frame, callee, values, keywords))
            case Method():
                outcome = self._call_method(thread, callee, values, keywords)
            case Unknown() if callee.dotted == "ddp" and BUFFERS in callee.marks:
                outcome = self._call_ddp_model(thread, callee, values, keywords)
            case _:
                pass
        if isinstance(outcome, Generator):
            return (yield from outcome)
        return outcome if outcome is not None else self._call_external(thread, callee, values, keywords)

    def run_call(self, thread: SimulatedThread, frame: CallFrame) -> BlockingCall:
        """Execute the frame of a call, and return its value. A call of a generator function makes the generator alone."""
        if frame.generator is not None:
            return frame.generator
        return (yield from self.run_frame(thread, frame))

    def _call_ddp_model(self, thread: SimulatedThread, model: Unknown, values: list[Value], keywords: Keywords) -> BlockingCall:
        """Call a DistributedDataParallel model. It broadcasts buffers first, unless its last forward pass made no gradients."""
        result = Unknown(marks=_result_marks("", model, values, keywords))
        synchronizes = model.attributes.get("?synchronizes", Const(True))
        is_without_gradients = any(
            "no_grad" in name or "inference_mode" in name for frame in thread.frames for name in _frame_decorators(frame)
        )
        model.attributes["?synchronizes"] = Const(not (is_without_gradients or thread.no_grad_depth))
        if truth(synchronizes):
            yield from self.collective(thread, "forward (buffers)")
        return result

    def _call_external(self, thread: SimulatedThread, callee: Value, values: Sequence[Value], keywords: Keywords) -> Value:
        """Call external code. It may fail on one rank alone."""
        dotted = callee.dotted if isinstance(callee, Lib) else ""
        name = callee.name if isinstance(callee, Method) else dotted.rpartition(".")[2]
        is_harmless = name in HARMLESS_BUILTINS or dotted.startswith(_HARMLESS_MODULES) or name in _HARMLESS_METHODS
        if not is_harmless:
            self._choose_to_raise(thread)
            self.escape([*values, *keywords.values()])
        owner = callee.receiver if isinstance(callee, Method) else callee
        marks = _result_marks(name, owner, values, keywords)
        call_name = last_name(getattr(thread.frame.node.tree, "func", ast.Name("")))
        if has_buffers(dotted):
            marks |= {BUFFERS}
        if call_name in _SMALL_RESULTS:
            marks -= {LARGE}
        elif call_name in _LARGE_RESULTS and not _are_few(values):
            marks |= {LARGE}
        result = Unknown(marks=marks)
        if name in SAME_LENGTH_METHODS and isinstance(callee, Method):
            result.attributes["len()"] = length(owner)
        if dotted.startswith("torch.") and "ensor" in name:
            result.attributes["?of"] = SequenceValue(list(values))
        elif isinstance(callee, Unknown) and "?of" in callee.attributes:
            result.attributes["?of"] = callee.attributes["?of"]
        reads = name in ITEM_READERS and values and isinstance(callee, Method)
        return self.read_item(owner, values[0], result) if reads else result

    def _choose_to_raise(self, thread: SimulatedThread, harmless: Function | None = None) -> None:
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
        if not kinds or not (choice := self.choose(thread, 1 + len(kinds), local=True)):
            return
        thread.raise_step = thread.record(f"gets an exception from {_source_text(frame.node.tree)}")
        thread.divergences.append((thread.num_collectives, thread.raise_step))
        raise SimulatedError(kinds[choice - 1])

    def _call_method(self, thread: SimulatedThread, callee: Method, values: list[Value], keywords: Keywords) -> CallOutcome:
        receiver, name = callee.receiver, callee.name
        match receiver:
            case SyncObject():
                outcome = sync_objects.call_method(self, thread, receiver, name, values, keywords)
                receiver.has_escaped |= outcome is None and name == "add_done_callback"
                return outcome
            case SequenceValue():
                return self._call_list_method(thread, receiver, name, values)
            case Unknown():
                return self._call_unknown_method(thread, receiver, name)
            case Instance() if name in RETURNS_SELF:
                return receiver
            case Lib():
                return self.value_by_name(thread, name)
            case _:
                return None

    def _call_unknown_method(self, thread: SimulatedThread, receiver: Unknown, name: str) -> CallOutcome:
        if self.program.known_names.collective(f"{receiver.dotted}.{name}") is not None:
            return self.collective(thread, name)
        if receiver.dotted == "ddp" and name in ("no_sync", "join"):
            return Unknown(dotted=name)
        if name == "backward" and DDP in receiver.marks:
            return NONE if thread.no_sync_depth else self.collective(thread, "backward (gradients)")
        return self.value_by_name(thread, name)

    def _append(self, thread: SimulatedThread, sequence: SequenceValue, value: Value) -> None:
        """Append to a list, and mark it as large if a loop of unknown length does so."""
        sequence.items.append(value)
        if self.program.has_processes and threads.is_large(threads.num_bytes_put(self, thread, value)):
            sequence.marks |= {LARGE}

    def _call_list_method(
        self, thread: SimulatedThread, sequence: SequenceValue, name: str, values: list[Value]
    ) -> Value | None:
        match name:
            case "append" | "add" if values:
                self._append(thread, sequence, values[0])
            case "extend" if values and isinstance(values[0], SequenceValue):
                sequence.items += values[0].items
                sequence.exact = sequence.exact and values[0].exact
            case "pop" if sequence.items and sequence.exact:
                return sequence.items.pop(0 if values else -1)
            case "clear":
                sequence.items.clear()
            case _:
                return None
        return NONE


def _result_marks(name: str, receiver: Value, values: Sequence[Value], keywords: Keywords) -> frozenset[Any]:
    """Return the marks of the result of an external call."""
    # A place is no content: what is loaded or moved to a rank's own device is the same everywhere.
    relevant_values = values[:1] if name.startswith("load") else [] if name in ("to", "cuda", "device") else values
    relevant_values = [*relevant_values, *(value for keyword, value in keywords.items() if keyword not in _PLACEMENT_KEYWORDS)]
    marks = NO_MARKS if name in _SAME_ON_ALL_RANKS else marks_of([*relevant_values, receiver])
    if name in _TYPE_TESTS:
        return marks - {DATA_DEPENDENT}
    if LOCAL in marks and may_read_data(name):
        marks |= {DATA_DEPENDENT_LENGTH}
    if may_exchange(name):
        return marks - {LOCAL, DATA_DEPENDENT} | {COLLECTIVE_RESULT}
    if may_combine(name):
        return marks - {DATA_DEPENDENT} | {COLLECTIVE_RESULT}
    return marks | {DATA_DEPENDENT} if name in FINITENESS_CHECKS and not marks & {LOCAL, COLLECTIVE_RESULT} else marks


def _frame_decorators(frame: CallFrame) -> set[str]:
    return decorator_names(frame.function.tree) if frame.function is not None else set()


def _are_few(values: Sequence[Value]) -> bool:
    """Return whether the sizes, or the first argument's items, are known and their product is small."""
    sizes = values[0].items if values and isinstance(values[0], SequenceValue) else values
    constants = [size.value for size in sizes if isinstance(size, Const) and isinstance(size.value, (int, float))]
    return bool(sizes) and len(constants) == len(sizes) and math.prod(constants) < _MAX_SMALL_NUMBERS


def _is_number(value: Value | None) -> bool:
    return isinstance(value, Const) and isinstance(value.value, (int, float))


def _number_targets(nodes: Sequence[GraphNode], *, only_counted: bool = False) -> Iterator[str]:
    """Yield the variables and .attributes that the nodes set to a literal number or count.

    Args:
        only_counted: whether to yield counted ones only.
    """
    for node in nodes:
        tree = node.tree
        if node.kind == "do" and (
            isinstance(tree, ast.AugAssign)
            or (
                not only_counted
                and isinstance(tree, ast.Assign)
                and isinstance(tree.value, ast.Constant)
                and _is_number(Const(tree.value.value))
            )
        ):
            yield from bound_names(tree)
            yield from (f".{target.attr}" for target in _targets(tree) if isinstance(target, ast.Attribute))


def _targets(tree: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return tree.targets if isinstance(tree, ast.Assign) else [tree.target]


def _stored_attributes(nodes: Sequence[GraphNode]) -> Iterator[ast.Attribute]:
    """Yield the attributes of named objects that any of the nodes assigns."""
    for node in nodes:
        if node.kind == "do" and isinstance(node.tree, (ast.Assign, ast.AugAssign)):
            for target in _targets(node.tree):
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    yield target


def reachable_numbers(thread: SimulatedThread, frame: CallFrame) -> NumberTable:
    """Return every reachable number except truth values, as a `NumberTable`."""
    holders: list[dict[str, Value]] = list(thread.os_process.names.values())
    level: CallFrame | None = frame
    while level is not None:
        holders.append(level.names)
        level = level.parent
    instances = (
        value
        for value in reachable([value for namespace in holders for value in namespace.values()])
        if isinstance(value, Instance)
    )
    holders += [instance.attributes for instance in instances]
    return {
        (id(namespace), name): (namespace, value)
        for namespace in holders
        for name, value in namespace.items()
        if _is_number(value) and not isinstance(getattr(value, "value", None), bool)
    }


@functools.lru_cache(maxsize=4096)
def _source_text(tree: ast.expr, is_negated: bool = False) -> str:
    """Return the source text of a test, shortened."""
    text = " ".join(ast.unparse(ast.UnaryOp(ast.Not(), tree) if is_negated else tree).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
