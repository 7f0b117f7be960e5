"""One abstract execution: each process goes through its control-flow graphs until it waits, and another goes on."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from compare.concurrency.calls import decorator_names
from compare.concurrency.control_flow import GraphNode
from compare.concurrency.evaluation import ITSELF, READS_ITEM, VIEWS, length
from compare.concurrency.meanings import (
    DDP_CLASSES,
    FINITENESS_CHECKS,
    HARMLESS_BUILTINS,
    LOADERS,
    LOCAL_CALLS,
    NO_GRADIENTS,
    TENSOR_FACTORIES,
    has_buffers,
    is_point_to_point,
    may_combine,
    may_exchange,
    may_read_data,
)
from compare.concurrency.program import UNSPECIFIED_ERROR, Module, Root, bound_names, last_name, raised_error, stored_names
from compare.concurrency.ranks import RankOperations
from compare.concurrency.state import (
    MAX_VISITS,
    CallFrame,
    DecisionPath,
    NumberTable,
    OsProcess,
    PendingOperation,
    SearchBudget,
    SimulatedThread,
)
from compare.concurrency.values import (
    BUFFERS,
    COLLECTIVE_RESULT,
    DATA_DEPENDENT,
    DATA_DEPENDENT_LENGTH,
    DATA_ITEM,
    DDP,
    LARGE,
    LOADER,
    LOCAL,
    NAMED_LOADER,
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
    marks_of,
    reachable,
    truth,
)

_EXACT = 4
"""A loop over this many numbers at most is executed as often as it says. Longer ones turn twice, or more if a test counts."""
_TWICE = 2
_FEW = 4096
_LOCAL = frozenset([LOCAL])
_EXITS = {"sys.exit", "os._exit", "builtins.exit", "builtins.quit", "os.abort"}
_PASSES_ITEMS = {"tqdm", "iter", "list", "tuple", "sorted", "reversed", "zip", "islice", "trange", "chain", "prefetch", "cycle"}
_POLITE_MODULES = ("logging.", "warnings.", "time.", "math.", "json.", "os.path.", "re.", "random.", "gc.")
_SIZED = {
    "zeros", "ones", "empty", "full", "rand", "randn", "random", "normal", "uniform", "arange", "linspace", "randint", "bytes",
    "bytearray", "state_dict", "read", "read_bytes", "load", "imread", "read_csv",
}  # fmt: skip
"""What these return may be large, unless it is made of few numbers."""
_NUMBERS = {"item", "float", "int", "len", "sum", "mean", "min", "max", "bool", "std", "norm", "argmax", "hash", "str"}
"""What these return is small, whatever it is made of."""
_PLACES = {"device", "map_location", "device_ids", "output_device", "dtype"}
_ALIKE = {"size", "numel", "dim", "type", "is_floating_point", "get_device", "device_count", "is_available", "named_parameters"}
"""Ranks get the same from these."""
_ASKS_KIND = {"isinstance", "issubclass", "hasattr", "callable"}
_POLITE_METHODS = {
    "info", "debug", "warning", "error", "exception", "critical", "format", "items", "keys", "values", "append", "item", "eval",
    "train", "zero_grad", "write", "flush", "strip", "split", "upper", "lower", "startswith", "endswith", "size", "numel",
    "dim",
}  # fmt: skip


class Execution(RankOperations):
    """Executes one path."""

    def __init__(
        self, program: Any, path: DecisionPath, budget: SearchBudget, root: Root, ranks: int, *, prune: bool = True
    ) -> None:
        super().__init__(program, path, budget, ranks)
        self.root = root
        self.prune = prune
        for rank in range(ranks) if program.is_distributed(root) else [None]:
            self._main(root, OsProcess(rank))

    def _main(self, root: Root, system: OsProcess) -> None:
        """The main thread of a rank, or of the program."""
        name = "the main thread" if system.rank is None else f"rank {system.rank}"
        thread = SimulatedThread(len(self.threads), name, (), system)
        thread.clock[thread.number] = 1
        self.threads.append(thread)

        def drive(made: Value) -> None:
            if isinstance(made, SyncObject) and made.kind in ("generator", "contextmanager") and not made.is_set:
                made.owner.results[-1] = Const(lambda _: thread.frames.append(made.owner))  # pyright: ignore[reportUnknownLambdaType]
                thread.frames.append(made.owner)

        if root.function is None:
            graph = self.program.graph(root.module.tree)
            names = system.names.setdefault(root.module.name, {})
            thread.frames.append(CallFrame(graph, root.module, graph.entry, names=names))
        elif root.class_tree is None:
            self.enter(thread, Function(tree=root.function, module=root.module), [], {}, drive)
        else:
            of = Class(root.class_tree, root.module)
            made: list[Value] = []
            method = root.function

            def call(instance: Value) -> None:
                self.caller_values.append(instance)
                if method.name != "__init__" and not made:
                    made.append(instance)
                    member = self.attribute(thread, instance, method.name)
                    if isinstance(member, Function):
                        self.enter(thread, member, [], {}, drive)

            self.make_instance(thread, of, [], {}, call)
        thread.ended = not thread.frames
        if thread.frames and root.function is not None:
            self.caller_values += thread.frame.names.values()

    def run(self) -> None:
        """Execute until nobody can go on.

        Raises:
            Cut: the budget is spent.
        """
        current: SimulatedThread | None = None
        while True:
            able = [each for each in self.threads if self._able(each)]
            if not able:
                if not self._expire():
                    return
                continue
            timed = [each for each in self.threads if each not in able and self._may_expire(each)]
            if current not in able:
                near = [each for each in (*able, *timed) if each.os_process is able[0].os_process]
                current = near[self.path.choose(len(near))]
                if current in timed:
                    self.has_timed_out = True
                    self._time_out(current)
                    continue
            assert current is not None
            operation, current.full_pool = current.pending, None
            if operation is not None:
                others = [each for each in (*able, *timed) if each is not current and each.os_process is current.os_process]
                if others and not current.preempted and (chosen := self.path.choose(1 + len(others))):
                    current.preempted = True
                    current = others[chosen - 1]
                    if current in timed:
                        self.has_timed_out = True
                        self._time_out(current)
                    continue
                current.pending, current.preempted = None, False
                operation.perform()
            while current.pending is None and not current.ended and not current.is_abandoned:
                self.budget.spend()
                self._step(current)

    def _able(self, thread: SimulatedThread) -> bool:
        if thread.ended or thread.is_abandoned:
            return False
        if (pool := thread.full_pool) is not None:
            running = sum(not each.owner.ended and each.owner.full_pool is None for each in pool.items)
            if pool.size is not None and running >= pool.size:
                return False
        return thread.pending is None or thread.pending.is_ready()

    def _may_expire(self, thread: SimulatedThread) -> bool:
        waiting = thread.pending
        return (
            not (thread.ended or thread.is_abandoned)
            and waiting is not None
            and waiting.on_timeout is not None
            and not waiting.has_long_timeout
        )

    @staticmethod
    def _time_out(thread: SimulatedThread) -> None:
        assert thread.pending is not None and thread.pending.on_timeout is not None
        thread.record(f"{thread.pending.description} until its time runs out")
        expire, thread.pending = thread.pending.on_timeout, None
        expire()

    def _expire(self) -> bool:
        """Nobody can go on, so the time of one who does not wait forever runs out."""
        for each in self.threads:
            if not (each.ended or each.is_abandoned) and each.pending is not None and each.pending.on_timeout is not None:
                self._time_out(each)
                return True
        return False

    def simple(self, thread: SimulatedThread, module: Module, tree: ast.expr) -> Value:
        frame = CallFrame(self.program.graph(module.tree), module, 0)
        frame.names = thread.os_process.names.setdefault(module.name, {})
        if isinstance(tree, (ast.Tuple, ast.List)) and not any(isinstance(each, ast.Starred) for each in tree.elts):
            return SequenceValue([self.simple(thread, module, each) for each in tree.elts])
        if isinstance(tree, ast.Call):
            callee = self.evaluate(thread, tree.func, frame)
            values = [self.evaluate(thread, each, frame) for each in tree.args]
            keywords = {each.arg: self.evaluate(thread, each.value, frame) for each in tree.keywords if each.arg}
            made = self.thing(thread, callee.dotted, values, keywords, callee.marks) if isinstance(callee, Lib) else None
            if made is not None:
                made.site = (module.file, tree.lineno, tree.col_offset)
                return made
            if isinstance(callee, Lib) and callee.dotted == "builtins.object":
                return Instance()
            return Unknown()
        return self.evaluate(thread, tree, frame)

    def _step(self, thread: SimulatedThread) -> None:
        frame = thread.frame
        frame.current_node = frame.next_node
        node = frame.node
        if frame.divergences and (names := frame.divergences.pop(frame.current_node, None)):
            self._differ(thread, frame, *names)
        frame.visits[frame.current_node] += 1
        if frame.visits[frame.current_node] > frame.max_visits:
            thread.is_abandoned = True
            return
        frame.next_node = node.next
        match node.kind:
            case "call":
                self._call(thread, frame, node)
            case "do":
                self._do(thread, frame, node.tree)
            case "branch":
                self._branch(thread, frame, node)
            case "pick":
                key = id(frame) if isinstance(node.tree, ast.Return) else id(node.tree)
                frame.results.pop(key, None)
                frame.results[key] = self.evaluate(thread, node.extra, frame)
            case "collect":
                self._collect(thread, frame, node)
            case "iter":
                frame.results.pop(id(node.tree), None)
                frame.loops[id(node.tree)] = self._iterator(thread, frame, node.tree.iter)
            case "next":
                self._next(thread, frame, node)
            case "enter":
                self._enter_with(thread, frame, node)
            case "exit":
                self._exit_with(thread, frame, node)
            case "yield":
                self._yield(thread, frame, node)
            case "return":
                self.return_from_call(thread, frame.results.get(id(frame), NONE))
            case "end":
                self.return_from_call(thread, NONE)
            case "raise":
                self._raise(thread, frame, node)
            case "reraise":
                self.raise_exception(thread, frame.error or UNSPECIFIED_ERROR)
            case "catch":
                for kind, name, entry in node.extra:
                    if self.program.handler_matches(kind, frame.error):
                        frame.next_node = entry
                        if name:
                            frame.names[name] = Unknown()
                        thread.record(f"handles {frame.error}")
                        return
                self.raise_exception(thread, frame.error)
            case _:
                pass

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

    def _branch(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        value = self.evaluate(thread, node.tree, frame)
        known = truth(value)
        is_loop = id(node.tree) in frame.graph.tests
        remembered = None if is_loop else thread.assumed_truths.get(id(value))
        if known is None and remembered is not None:
            known = remembered[1]
        local, negated = LOCAL in value.marks, bool(node.extra)
        doubt = thread.current_step(_shown(node.tree, negated)) if DATA_DEPENDENT in value.marks and not local else None
        if is_loop:
            frame.in_guessed_loop = known is None
            for lock, _, _ in thread.held_locks if known is None else []:
                self.unknown_loop_tests[lock].add(id(node.tree))
        if known is None:
            quiet, join, nodes = self.program.region(frame.graph, frame.current_node)
            if quiet and self.prune:
                self._skip(thread, frame, nodes, join, marks_of([value]))
                return
            if is_loop and frame.visits[frame.current_node] > _TWICE:
                known = False
                self._note_turns(frame, frame.current_node, node, None, _TWICE)
            else:
                usual = is_loop or self.program.is_usually_true(frame.graph, frame.current_node)
                known = usual != bool(self.choose(thread, 2, local=local, divergence=doubt))
            if isinstance(value, Unknown):
                thread.assumed_truths[id(value)] = value, known
            if not local:
                step = thread.record(f"assumes {'true' if known != negated else 'false'}: {_shown(node.tree, negated)}")
                if doubt is not None:
                    thread.divergences.append((thread.num_collectives, step))
            self._assume(thread, _shown(node.tree, negated), same=not local and doubt is None)
        if local:
            quiet, _, _ = self.program.region(frame.graph, frame.current_node)
            self._part(thread, f"{'takes' if known != negated else 'does not take'}: {_shown(node.tree, negated)}", quiet=quiet)
        frame.next_node = node.next if known else node.next_if_false
        if local:
            self._watch(thread, frame)

    def _watch(self, thread: SimulatedThread, frame: CallFrame) -> None:
        """Note the numbers that are set on one way of a branch on which ranks may part."""
        _, join, nodes = self.program.region(frame.graph, frame.current_node)
        if join is None or join == len(frame.graph.nodes):
            return
        places, before = frame.divergences.setdefault(join, ({}, numbers(thread, frame)))
        numbered, counting = set(_numbered(nodes)), set(_numbered(nodes, counting=True))
        for each in stored_names(nodes):
            places[id(frame.names), each] = frame.names, (None if each in numbered else frame.names.get(each))
        for each in _stored_attributes(nodes):
            of = self.evaluate(thread, each.value, frame)
            if isinstance(of, Instance):
                was = None if f".{each.attr}" in numbered else of.attributes.get(each.attr)
                places[id(of.attributes), each.attr] = of.attributes, was
        for key in places.keys() & before.keys():
            if not counting & {key[1], f".{key[1]}"}:
                before.pop(key)

    @staticmethod
    def _differ(thread: SimulatedThread, frame: CallFrame, places: NumberTable, before: NumberTable) -> None:
        """Mark what one rank has kept while another has set it, and numbers that only some have got or counted.

        What is set to another value keeps that one's marks: all ranks may have got it from a collective.

        Args:
            places: what the source sets on one of the ways, and what it was before. None: this matters not, since a number of
                the source is set there.
            before: the numbers that there were, but for those that the source sets without counting them. A function that was
                called may have counted one. In a loop that is followed for fewer turns than it has, such a number is any.
        """
        in_part = any(each.in_truncated_loop for each in thread.frames)
        for (_, name), (holder, was) in places.items():
            value = holder.get(name)
            if isinstance(value, Const) and _is_number(value) and (was is None or was is value):
                holder[name] = Const(value.value, marks=value.marks | _LOCAL)
        for (_, name), (holder, was) in before.items():
            value = holder.get(name)
            if isinstance(value, Const) and isinstance(was, Const) and _is_number(value) and value.value != was.value:
                marks = value.marks | _LOCAL
                holder[name] = Unknown(marks=marks) if in_part else Const(value.value, marks=marks)

    def _note_turns(self, frame: CallFrame, place: int, node: GraphNode, turns: int | None, followed: int) -> None:
        """Record that a loop is followed for fewer turns than it has, if a test in it may wait for a later one."""
        if self.program.depends_on_counter(frame.graph, place, by_item=turns is not None):
            many = f"{turns} turns" if turns is not None else "unknown turns"
            self.truncated_loops[f"a loop of {many} (line {node.line}) followed for {followed}"] = None

    def _assume(self, thread: SimulatedThread, says: str, *, same: bool) -> None:
        """Record an unknown decision of ranks, and whether they take it alike."""
        if thread.os_process.rank is not None:
            step = thread.current_step(says)
            self.assumptions[step] = same and self.assumptions.get(step, True)

    @staticmethod
    def _part(thread: SimulatedThread, says: str, *, quiet: bool = False) -> None:
        """Note a decision that ranks may take differently.

        Args:
            quiet: nothing on its ways is noticed by others, so it is not where ranks part.
        """
        step = thread.record(says)
        if not quiet:
            thread.divergences.append((thread.num_collectives, step))

    def _skip(
        self, thread: SimulatedThread, frame: CallFrame, nodes: Sequence[GraphNode], join: int | None, marks: frozenset[Any]
    ) -> None:
        """Go on where all ways meet. What is assigned on them is unknown."""
        if join == len(frame.graph.nodes):
            returned = [self._guess(thread, frame, each.extra) for each in nodes if each.kind == "pick"]
            self.return_from_call(thread, Unknown(marks=marks_of(returned) | marks))
            return
        assert join is not None
        assigned = [each.tree for each in nodes if each.kind == "do" and isinstance(each.tree, (ast.Assign, ast.AugAssign))]
        guessed: list[Value] = []
        for _ in range(_TWICE):  # what is assigned may be used by the next, in whichever order they stand here
            for tree in assigned:
                value = self._guess(thread, frame, tree.value)
                guessed += [value] if any(isinstance(each, ast.Attribute) for each in _targets(tree)) else []
                for name in bound_names(tree):
                    before = frame.names.get(name)
                    if not isinstance(before, (SyncObject, Instance, Function)):  # those are mostly replaced by their like
                        frame.names[name] = Unknown(marks=marks_of([before, value]) | marks)
        for each in _stored_attributes(nodes):
            of = self.evaluate(thread, each.value, frame)
            if isinstance(of, Instance) and not isinstance(of.attributes.get(each.attr), (SyncObject, Instance, Function)):
                of.attributes[each.attr] = Unknown(marks=marks_of([of.attributes.get(each.attr), *guessed]) | marks)
        for each in nodes:
            made = frame.results.get(id(each.tree)) if each.kind == "collect" else None
            if isinstance(made, SequenceValue):
                made.exact = False
                made.marks |= marks | (
                    {UNEVEN} if LOCAL in marks else {DATA_DEPENDENT_LENGTH} if DATA_DEPENDENT in marks else NO_MARKS
                )
        for name in stored_names(nodes).difference(*map(bound_names, assigned)):
            if not isinstance(frame.names.get(name), (SyncObject, Instance, Function)):
                frame.names[name] = Unknown(marks=marks_of([frame.names.get(name)]) | marks)
        for each in nodes:
            if each.kind == "pick" and not isinstance(each.tree, ast.Return):
                frame.results[id(each.tree)] = Unknown(marks=marks_of([self._guess(thread, frame, each.extra)]) | marks)
        frame.next_node = join

    def _guess(self, thread: SimulatedThread, frame: CallFrame, tree: ast.AST | None) -> Value:
        """The value of an expression whose calls are not made: their results have the marks of what they get."""
        if tree is None or not any(isinstance(each, ast.Call) for each in ast.walk(tree)):
            return self.evaluate(thread, tree, frame)
        parts = [self._guess(thread, frame, each) for each in ast.iter_child_nodes(tree) if isinstance(each, ast.expr)]
        if not isinstance(tree, ast.Call):
            return Unknown(marks=marks_of(parts))
        name = last_name(tree.func)
        if (named := self.named(thread, name)) is not None:
            return named
        of = self._guess(thread, frame, tree.func.value if isinstance(tree.func, ast.Attribute) else tree.func)
        values = [self._guess(thread, frame, each) for each in tree.args]
        keywords = {each.arg: self._guess(thread, frame, each.value) for each in tree.keywords if each.arg}
        return Unknown(marks=_result_marks(name, of, values, keywords))

    def _collect(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        if node.extra == "begin":
            frame.results[id(node.tree)] = SequenceValue([], origin=thread.position)
            return
        made = frame.results.get(id(node.tree))
        tree = node.tree.value if isinstance(node.tree, ast.DictComp) else node.tree.elt
        if isinstance(made, SequenceValue):
            self._grow(thread, made, self.evaluate(thread, tree, frame))
            if isinstance(node.tree, ast.DictComp):
                made.exact = False

    def _raise(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        name = (raised_error(node.tree.exc) if node.tree.exc is not None else frame.error) or UNSPECIFIED_ERROR
        thread.raise_step = thread.record(f"raises {name}")
        self.raise_exception(thread, name)

    # Loops.

    def _iterator(self, thread: SimulatedThread, frame: CallFrame, tree: ast.expr) -> list[Any]:
        """[items that are left or None, turns that are left, the value of each item, whether ranks may part here].

        Of items that are left, the second says whether there are more that are not followed.
        """
        value = self.evaluate(thread, tree, frame)
        if isinstance(value, SyncObject) and value.kind == "generator":
            return [value]
        if isinstance(value, SequenceValue) and value.exact and len(value.items) <= MAX_VISITS - 4:
            return [list(value.items), 0, None, False]
        uneven = UNEVEN in value.marks
        stop = value.stop if isinstance(value, RangeValue) else None
        bounded, many = self._bound(thread)
        # A rank that leaves in a second turn is only missed in a third. What is compared with an earlier turn needs two.
        # Other loops over the same turn as often.
        usual = _TWICE + (thread.os_process.rank is not None and ast.unparse(tree) in self.program.early_exit_iterables)
        if isinstance(stop, Const) and isinstance(stop.value, int):
            most = max(_EXACT, many)
            count = min(max(stop.value, 0), most) if stop.value <= _EXACT or bounded else usual
            if count < stop.value <= MAX_VISITS - 4 and self.program.depends_on_counter(frame.graph, frame.next_node, by_item=True):
                count = stop.value
                frame.max_visits = max(frame.max_visits, MAX_VISITS * count)
            if count < stop.value:
                self._note_turns(frame, frame.next_node, frame.node, stop.value, count)
            return [[Const(each, marks=stop.marks) for each in range(count)], count < stop.value, None, LOCAL in stop.marks]
        item_marks = _item_marks(value)
        wrapped = value.attributes.get("?items") if isinstance(value, Unknown) else None
        if isinstance(stop, Unknown):
            uneven = uneven or LOCAL in stop.marks
        # Without an effect on others, no turn differs from another.
        quiet, _, _ = self.program.region(frame.graph, frame.next_node)
        options = [usual, 0, *([many] if many else [])] if not uneven else [usual, 1, 0]
        # Loops over the same have as many turns, on all ranks and wherever they stand.
        subject = stop if stop is not None else length(value)
        key = ("turns", *subject.origin) if not uneven and subject.origin else ()
        if quiet and self.prune:
            turns = 1
        else:
            options = self.iteration_options.setdefault(key, options) if key else options
            unsure = DATA_DEPENDENT_LENGTH in value.marks or (isinstance(stop, Unknown) and DATA_DEPENDENT in stop.marks)
            doubt = thread.current_step(f"how many turns {_shown(tree)} has") if unsure and not uneven else None
            self._assume(thread, f"how many turns {_shown(tree)} has", same=not uneven and doubt is None)
            turns = options[self.choose(thread, len(options), local=uneven, key=key, divergence=doubt)]
        self._note_turns(frame, frame.next_node, frame.node, None, options[0])
        return [None, turns, (frozenset(item_marks), wrapped), uneven]

    def _bound(self, thread: SimulatedThread) -> tuple[bool, int]:
        """(whether there are bounded queues, turns that fill them and what the threads between them hold).

        0 turns: there are no bounded queues, or too large ones. All ranks get the same for one loop, whatever queues each has:
        a loop must not end earlier on one of them.
        """
        many = self.queue_capacity + len(self.threads) + 2
        now = bool(self.queue_capacity), many if self.queue_capacity and many < MAX_VISITS else 0
        if thread.os_process.rank is None:
            return now
        return self.queue_bounds.setdefault(thread.position, now)

    def _next(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        state: list[Any] = frame.loops.get(id(node.tree)) or [None, 0, (frozenset[Any](), None), False]
        if isinstance(state[0], SyncObject):
            self._advance(thread, frame, node, state[0])
            return
        items, turns, kind, uneven = state
        if items is None:
            if not turns:
                self._leave_loop(thread, frame, node, uneven)
                return
            state[1] -= 1
            marks, wrapped = kind
            item: Value = Unknown(marks=marks)
            if wrapped is not None:
                item = SequenceValue([Unknown(), item])
        elif items:
            item = items.pop(0)
        else:
            self._leave_loop(thread, frame, node, uneven)
            return
        if uneven:
            self._part(thread, f"turns once more: {_shown(node.tree.iter)}")
        self.assign(thread, node.tree.target, item, frame)

    def _leave_loop(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode, uneven: bool) -> None:
        if uneven:
            self._part(thread, f"has no more of: {_shown(node.tree.iter)}")
        frame.loops.pop(id(node.tree), None)
        frame.next_node = node.next_if_false

    def _advance(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode, generator: SyncObject) -> None:
        """Let a generator go on to its next item."""
        if generator.is_set or generator.owner in thread.frames:
            self._leave_loop(thread, frame, node, False)
            return
        inner: CallFrame = generator.owner

        def arrived(value: Value, *, ended: bool) -> None:
            if ended:
                self._leave_loop(thread, frame, node, False)
            else:
                item = SequenceValue([Unknown(), value]) if "enumerated" in generator.flags else value
                self.assign(thread, node.tree.target, item, frame)

        inner.on_return = functools.partial(arrived, ended=True)
        inner.results[-1] = Const(functools.partial(arrived, ended=False))
        thread.frames.append(inner)

    def _yield(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        value = self.evaluate(thread, node.tree.value, frame)
        if isinstance(node.tree, ast.YieldFrom):
            value = Unknown(marks=frozenset([DATA_ITEM]))
        listener = frame.results.get(-1)
        if frame.generator is None or not isinstance(listener, Const):
            return
        frame.results[id(node.tree)] = NONE
        thread.frames.pop()
        listener.value(value)

    # with.

    def _enter_with(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        item: ast.withitem = node.extra
        frame.results.pop(id(item), None)
        value = self.evaluate(thread, item.context_expr, frame)
        frame.results[id(item)] = value

        def entered(result: Value) -> None:
            if item.optional_vars is not None:
                self.assign(thread, item.optional_vars, result, frame)

        match value:
            case SyncObject() if value.kind == "contextmanager":
                inner: CallFrame = value.owner
                inner.on_return = entered
                inner.results[-1] = Const(entered)
                thread.frames.append(inner)
            case SyncObject():
                if not self.use_thing(thread, value, "__enter__", [], {}, entered):
                    entered(value)
            case Instance():
                function = self.attribute(thread, value, "__enter__")
                if not (isinstance(function, Function) and self.enter(thread, function, [], {}, entered)):
                    entered(value)
            case Unknown() if value.dotted == "no_sync":
                thread.no_sync_depth += 1
                entered(value)
            case Unknown() if value.dotted == "no_grad":
                thread.no_grad_depth += 1
                entered(value)
            case Unknown() if value.dotted == "join":
                thread.is_abandoned = True  # uneven ranks are what this is for
            case _:
                entered(value)

    def _exit_with(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        value = frame.results.get(id(node.extra))
        match value:
            case SyncObject() if value.kind == "contextmanager":
                if not value.is_set and value.owner not in thread.frames:
                    inner: CallFrame = value.owner
                    inner.on_return = lambda _: None
                    inner.results[-1] = Const(_nothing)
                    thread.frames.append(inner)
            case SyncObject():
                self.use_thing(thread, value, "__exit__", [], {}, lambda _: None)
            case Instance():
                function = self.attribute(thread, value, "__exit__")
                if isinstance(function, Function):
                    self.enter(thread, function, [Unknown(), Unknown(), Unknown()], {}, lambda _: None)
            case Unknown() if value.dotted == "no_sync":
                thread.no_sync_depth -= 1
            case Unknown() if value.dotted == "no_grad":
                thread.no_grad_depth -= 1
            case _:
                pass

    # Calls.

    def _call(self, thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> None:
        tree: ast.Call = node.tree
        frame.results.pop(id(tree), None)
        callee = self.evaluate(thread, tree.func, frame)
        values: list[Value] = []
        for each in tree.args:
            value = self.evaluate(thread, each, frame)
            if isinstance(each, ast.Starred):
                values += value.items if isinstance(value, SequenceValue) else []
            else:
                values.append(value)
        keywords = {each.arg: self.evaluate(thread, each.value, frame) for each in tree.keywords if each.arg}

        def deliver(value: Value) -> None:
            if isinstance(value, (Unknown, SequenceValue)) and not value.origin:
                value.origin = thread.position
            frame.results[id(tree)] = value

        self.invoke(thread, frame, callee, values, keywords, deliver)

    def invoke(
        self,
        thread: SimulatedThread,
        frame: CallFrame,
        callee: Value,
        values: list[Value],
        keywords: Mapping[str, Value],
        deliver: Any,
    ) -> None:
        """Call anything."""
        match callee:
            case Function():
                if self._fails(thread, quiet=callee):
                    return
                if not self.enter(thread, callee, values, keywords, deliver):
                    self._unread(thread, callee, values, keywords, deliver)
            case Class():
                self.make_instance(thread, callee, values, keywords, deliver)
            case Instance():
                call = self.attribute(thread, callee, "__call__")
                if not (isinstance(call, Function) and self.enter(thread, call, values, keywords, deliver)):
                    self._unread(thread, callee, values, keywords, deliver)
            case Lib():
                if not self._library(thread, frame, callee, values, keywords, deliver):
                    self._unread(thread, callee, values, keywords, deliver)
            case Method():
                if not self._method(thread, callee, values, keywords, deliver):
                    self._unread(thread, callee, values, keywords, deliver)
            case Unknown() if callee.dotted == "ddp" and BUFFERS in callee.marks:
                self._forward(thread, callee, values, keywords, deliver)
            case _:
                self._unread(thread, callee, values, keywords, deliver)

    def _forward(
        self, thread: SimulatedThread, model: Unknown, values: list[Value], keywords: Mapping[str, Value], deliver: Any
    ) -> None:
        """Call a DistributedDataParallel: it broadcasts buffers first, unless its last forward made no gradients."""
        made = Unknown(marks=_result_marks("", model, values, keywords))
        synchronizes = model.attributes.get("?synchronizes", Const(True))
        without = any("no_grad" in each or "inference_mode" in each for frame in thread.frames for each in _decorated(frame))
        model.attributes["?synchronizes"] = Const(not (without or thread.no_grad_depth))
        if truth(synchronizes):
            self.collective(thread, "forward (buffers)", [], {}, lambda _: deliver(made))
        else:
            deliver(made)

    def _unread(
        self, thread: SimulatedThread, callee: Value, values: Sequence[Value], keywords: Mapping[str, Value], deliver: Any
    ) -> None:
        """Call code that is not read. It may fail on one rank alone."""
        dotted = callee.dotted if isinstance(callee, Lib) else ""
        name = callee.name if isinstance(callee, Method) else dotted.rpartition(".")[2]
        polite = name in HARMLESS_BUILTINS or dotted.startswith(_POLITE_MODULES) or name in _POLITE_METHODS
        if not polite and self._fails(thread):
            return
        if not polite:
            self.escape([*values, *keywords.values()])
        of = callee.receiver if isinstance(callee, Method) else callee
        marks = _result_marks(name, of, values, keywords)
        called = last_name(getattr(thread.frame.node.tree, "func", ast.Name("")))
        if has_buffers(dotted):
            marks |= {BUFFERS}
        if called in _NUMBERS:
            marks -= {LARGE}
        elif called in _SIZED and not _few(values):
            marks |= {LARGE}
        made = Unknown(marks=marks)
        if name in VIEWS and isinstance(callee, Method):
            made.attributes["len()"] = length(of)
        if dotted.startswith("torch.") and "ensor" in name:
            made.attributes["?of"] = SequenceValue(list(values))
        elif isinstance(callee, Unknown) and "?of" in callee.attributes:
            made.attributes["?of"] = callee.attributes["?of"]
        reads = name in READS_ITEM and values and isinstance(callee, Method)
        deliver(self.item_read(of, values[0], made) if reads else made)

    def _fails(self, thread: SimulatedThread, quiet: Function | None = None) -> bool:
        """Whether a call raises an exception here: one of the ways to look at.

        Args:
            quiet: a function of the package. It is looked at only if nothing in it matters, as an operation that may fail.
        """
        if quiet is not None and not self.program.may_raise(quiet.tree):
            return False
        frame = thread.frame
        own = sorted(self.program.errors_raised_by(frame.module, frame.node.tree)) if frame.node.kind == "call" else []
        kinds = [each for each in (UNSPECIFIED_ERROR, *own) if self.may_raise(thread, each)]
        if not kinds or not (chosen := self.choose(thread, 1 + len(kinds), local=True)):
            return False
        thread.raise_step = thread.record(f"gets an exception from {_shown(frame.node.tree)}")
        thread.divergences.append((thread.num_collectives, thread.raise_step))
        self.raise_exception(thread, kinds[chosen - 1])
        return True

    def _library(
        self,
        thread: SimulatedThread,
        frame: CallFrame,
        callee: Lib,
        values: list[Value],
        keywords: Mapping[str, Value],
        deliver: Any,
    ) -> bool:
        dotted = callee.dotted
        last = dotted.rpartition(".")[2]
        first = values[0] if values else None
        collective = self.program.known_names.collective(dotted)
        if collective is not None:
            self.collective(thread, collective, values, keywords, deliver)
        elif (
            dotted in ("torch.distributed.is_available", "torch.distributed.is_initialized")
            and thread.os_process.rank is not None
        ):
            deliver(Const(True))
        elif is_point_to_point(dotted):
            self.message(thread, last, values, keywords, deliver)
        elif dotted in DDP_CLASSES:
            buffers = any(BUFFERS in each.marks for each in reachable([*values[:1], *keywords.values()]))
            kept = buffers and truth(keywords.get("broadcast_buffers", Const(True))) is not False
            made = Unknown(marks=frozenset([DDP, BUFFERS] if kept else [DDP]), dotted="ddp")
            self.collective(thread, "DistributedDataParallel", [], keywords, lambda _: deliver(made))
        elif dotted in NO_GRADIENTS:
            deliver(Unknown(dotted="no_grad"))
        elif self.program.known_names.makes_collectives(dotted):
            deliver(Unknown(dotted=dotted))
        elif (made_thing := self.thing(thread, dotted, values, keywords, callee.marks)) is not None:
            deliver(made_thing)
        elif last == "get_context" and "multiprocessing" in dotted:
            kind = first.value if isinstance(first, Const) else "fork"
            deliver(Lib("multiprocessing", marks=frozenset() if kind == "fork" else frozenset(["spawn"])))
        elif last == "set_start_method" and isinstance(first, Const):
            thread.os_process.uses_spawn = first.value != "fork"
            deliver(NONE)
        elif dotted in ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"):
            self._spawn(thread, values, keywords, deliver)
        elif dotted == "os.fork":
            self.forks(thread)
            thread.is_abandoned = True
        elif dotted in _EXITS:
            thread.record("ends the process")
            self.raise_exception(thread, "SystemExit")
        elif dotted == "time.sleep":
            self.wait_for(thread, PendingOperation("sleeps", lambda: False, lambda: NONE, None, lambda: deliver(NONE)), deliver)
        elif dotted in LOCAL_CALLS:
            deliver(Unknown(marks=_LOCAL))
        elif dotted in ("os.environ.get", "os.getenv") and isinstance(first, Const):
            deliver(self.variable(thread, str(first.value)))
        elif dotted == "functools.partial" and isinstance(first, Function):
            deliver(replace(first, bound_arguments=[*first.bound_arguments, *values[1:]]))
        elif dotted in LOADERS:
            sampled = "sampler" in keywords or "batch_sampler" in keywords
            uneven = frozenset([UNEVEN]) if not sampled and any(UNEVEN in each.marks for each in values) else frozenset[Any]()
            held = marks_of([each for one in values[:1] if isinstance(one, Instance) for each in one.attributes.values()])
            unsure = frozenset[Any]() if sampled else (held | marks_of(values)) & {DATA_DEPENDENT_LENGTH}
            deliver(Unknown(marks=frozenset([LOADER]) | uneven | unsure))
        elif dotted == "torch.distributed.algorithms.join.Join":
            deliver(Unknown(dotted="join"))
        elif last == "DistributedSampler":
            deliver(Unknown())
        elif dotted in TENSOR_FACTORIES:
            deliver(_tensor(values))
        elif dotted in ("concurrent.futures.wait", "concurrent.futures.as_completed"):
            tasks = [each for each in (first.items if isinstance(first, SequenceValue) else []) if isinstance(each, SyncObject)]
            done = lambda: all(each.owner.ended for each in tasks)  # noqa: E731
            futures = SequenceValue(list(tasks))
            ended = self._ended(thread, tasks)

            def act() -> Value:
                ended()
                return futures

            self.wait_for(thread, PendingOperation("waits for tasks", done, act, None, None, "future"), deliver)
        elif dotted.startswith("builtins."):
            return self._builtin(frame, last, values, deliver)
        elif last in _PASSES_ITEMS and values:
            source = values[-1] if last == "zip" else values[0]
            deliver(source if last != "cycle" else Unknown(marks=source.marks - {UNEVEN}))
        elif (named := self.named(thread, last)) is not None:
            deliver(named)
        else:
            return False
        return True

    def _builtin(self, frame: CallFrame, name: str, values: list[Value], deliver: Any) -> bool:
        first = values[0] if values else None
        match name:
            case "range" if values:
                deliver(RangeValue(stop=_span(values), marks=marks_of(values)))
            case "len" if first is not None:
                deliver(length(first))
            case "int" | "str" | "float" | "bool" if isinstance(first, Const) and len(values) == 1:
                try:
                    deliver(Const({"int": int, "str": str, "float": float, "bool": bool}[name](first.value), marks=first.marks))
                except (TypeError, ValueError, OverflowError):
                    deliver(Unknown(marks=first.marks))
            case "enumerate" if first is not None:
                if isinstance(first, SyncObject) and first.kind == "generator":
                    first.flags |= {"enumerated"}
                    deliver(first)
                elif isinstance(first, SequenceValue) and first.exact:
                    deliver(SequenceValue([SequenceValue([Const(place), each]) for place, each in enumerate(first.items)]))
                else:
                    attributes: dict[str, Value] = {"?items": first, "len()": length(first)}
                    deliver(Unknown(marks=first.marks, attributes=attributes))
            case "zip" if values and all(isinstance(each, SequenceValue) and each.exact for each in values):
                columns = [each.items for each in values if isinstance(each, SequenceValue)]
                deliver(SequenceValue([SequenceValue(list(row)) for row in zip(*columns, strict=False)]))
            case "iter" | "list" | "tuple" | "sorted" | "reversed" if len(values) == 1 and first is not None:
                deliver(SequenceValue(list(first.items), first.exact) if isinstance(first, SequenceValue) else first)
            case "list" | "tuple" | "set" if not values:
                deliver(SequenceValue([]))
            case "zip" if values:
                uneven = [each for each in values if UNEVEN not in each.marks]
                deliver(Unknown(marks=marks_of(values) - (frozenset() if not uneven else {UNEVEN})))
            case "dict":
                deliver(Unknown(marks=marks_of(values)))
            case "super" if frame.function is not None and frame.function.owner is not None:
                of = frame.function.receiver or Unknown()
                deliver(Unknown(dotted="super", attributes={"of": of, "class": frame.function.owner}))
            case "object":
                deliver(Instance())
            case "next" if isinstance(first, SyncObject):
                deliver(Unknown(marks=frozenset([DATA_ITEM])))
            case "next" if first is not None and first.marks & {LOADER, NAMED_LOADER}:
                deliver(Unknown(marks=_item_marks(first)))
            case _:
                return False
        return True

    def _method(
        self, thread: SimulatedThread, callee: Method, values: list[Value], keywords: Mapping[str, Value], deliver: Any
    ) -> bool:
        of, name = callee.receiver, callee.name
        if isinstance(of, SyncObject):
            if of.kind == "work" and name == "wait":
                self.wait_for(thread, of.owner, deliver)
                return True
            if self.use_thing(thread, of, name, values, keywords, deliver):
                return True
            of.has_escaped = of.has_escaped or name in ("add_done_callback",)
            return False
        if isinstance(of, SequenceValue):
            return self._of_list(thread, of, name, values, deliver)
        if isinstance(of, Unknown):
            if self.program.known_names.collective(f"{of.dotted}.{name}") is not None:
                self.collective(thread, name, [], {}, deliver)
            elif of.dotted == "ddp" and name in ("no_sync", "join"):
                deliver(Unknown(dotted=name))
            elif name == "backward" and DDP in of.marks:
                if thread.no_sync_depth:
                    deliver(NONE)
                else:
                    self.collective(thread, "backward (gradients)", [], {}, deliver)
            elif (named := self.named(thread, name)) is not None:
                deliver(named)
            else:
                return False
            return True
        if isinstance(of, Instance) and name in ITSELF:
            deliver(of)
            return True
        if (named := self.named(thread, name)) is not None and isinstance(of, Lib):
            deliver(named)
            return True
        return False

    def _grow(self, thread: SimulatedThread, of: SequenceValue, value: Value) -> None:
        """Append to a list. What loops of unknown length append may be large for a queue between processes."""
        of.items.append(value)
        if self.program.has_processes and self.is_large(self.size_of(thread, value)):
            of.marks |= {LARGE}

    def _of_list(self, thread: SimulatedThread, of: SequenceValue, name: str, values: list[Value], deliver: Any) -> bool:
        match name:
            case "append" | "add" if values:
                self._grow(thread, of, values[0])
            case "extend" if values and isinstance(values[0], SequenceValue):
                of.items += values[0].items
                of.exact = of.exact and values[0].exact
            case "pop" if of.items and of.exact:
                deliver(of.items.pop(0 if values else -1))
                return True
            case "clear":
                of.items.clear()
            case _:
                return False
        deliver(NONE)
        return True

    def _spawn(self, thread: SimulatedThread, values: list[Value], keywords: Mapping[str, Value], deliver: Any) -> None:
        """`torch.multiprocessing.spawn`: a process for each rank."""
        target = keywords.get("fn", values[0] if values else None)
        given = keywords.get("args", values[1] if len(values) > 1 else None)
        arguments = list(given.items) if isinstance(given, SequenceValue) else []
        started: list[SyncObject] = []
        for rank in range(self.num_ranks):
            thing = SyncObject(kind="thread", name=f"rank {rank}")
            system = OsProcess(rank)
            # Each gets a copy of its own.
            own = [replace(each, attributes=dict(each.attributes)) if isinstance(each, Unknown) else each for each in arguments]
            values_of_rank = [Const(rank, marks=_LOCAL), *own]
            thing.owner = self.start_thread(thread, target, values_of_rank, f"rank {rank}", system, daemon=False)
            thing.owner.key = ("rank",)
            thing.owner.sync_object = thing
            started.append(thing)
        done = lambda: all(each.owner.ended for each in started)  # noqa: E731
        joins = truth(keywords.get("join", Const(True))) is not False
        operation = PendingOperation("waits for the ranks", done, self._ended(thread, started), started[0] if started else None)
        if joins:
            self.wait_for(thread, operation._replace(kind="ranks"), deliver)
        else:
            deliver(Unknown())


def _result_marks(name: str, of: Value, values: Sequence[Value], keywords: Mapping[str, Value]) -> frozenset[Any]:
    """The marks of what a call of code that is not read returns."""
    # A place is no content: what is loaded or moved to a rank's own device is the same everywhere.
    telling = values[:1] if name.startswith("load") else [] if name in ("to", "cuda", "device") else values
    telling = [*telling, *(each for word, each in keywords.items() if word not in _PLACES)]
    marks = NO_MARKS if name in _ALIKE else marks_of([*telling, of])
    if name in _ASKS_KIND:
        return marks - {DATA_DEPENDENT}
    if LOCAL in marks and may_read_data(name):
        marks |= {DATA_DEPENDENT_LENGTH}
    if may_exchange(name):
        return marks - {LOCAL, DATA_DEPENDENT} | {COLLECTIVE_RESULT}
    if may_combine(name):
        return marks - {DATA_DEPENDENT} | {COLLECTIVE_RESULT}
    return marks | {DATA_DEPENDENT} if name in FINITENESS_CHECKS and not marks & {LOCAL, COLLECTIVE_RESULT} else marks


def _item_marks(value: Value) -> frozenset[Any]:
    """The marks of what a loop over it gets."""
    by_data = (
        _LOCAL
        if value.marks & {LOCAL, LOADER}
        else {DATA_DEPENDENT}
        if value.marks & {DATA_DEPENDENT, NAMED_LOADER}
        else NO_MARKS
    )
    return frozenset({DATA_ITEM} | by_data)


def _decorated(frame: CallFrame) -> set[str]:
    return decorator_names(frame.function.tree) if frame.function is not None else set()


def _few(values: Sequence[Value]) -> bool:
    """Whether these sizes, or their first, are known and make few numbers."""
    sizes = values[0].items if values and isinstance(values[0], SequenceValue) else values
    known = [each.value for each in sizes if isinstance(each, Const) and isinstance(each.value, (int, float))]
    return bool(sizes) and len(known) == len(sizes) and math.prod(known) < _FEW


def _is_number(value: Value | None) -> bool:
    return isinstance(value, Const) and isinstance(value.value, (int, float))


def _numbered(nodes: Sequence[GraphNode], *, counting: bool = False) -> Iterator[str]:
    """Names that these nodes set to a number of the source or count up, and attributes, which have a dot before them.

    Args:
        counting: only what they count.
    """
    for each in nodes:
        tree = each.tree
        if each.kind == "do" and (
            isinstance(tree, ast.AugAssign)
            or (
                not counting
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
    """The attributes of objects with a name that any of these nodes assigns."""
    for node in nodes:
        if node.kind == "do" and isinstance(node.tree, (ast.Assign, ast.AugAssign)):
            for target in _targets(node.tree):
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    yield target


def numbers(thread: SimulatedThread, frame: CallFrame) -> NumberTable:
    """Every number within reach, but for truth values: (identity of what holds it, name): (what holds it, the number)."""
    holders: list[dict[str, Value]] = list(thread.os_process.names.values())
    level: CallFrame | None = frame
    while level is not None:
        holders.append(level.names)
        level = level.parent
    instances = (each for each in reachable([value for one in holders for value in one.values()]) if isinstance(each, Instance))
    holders += [each.attributes for each in instances]
    return {
        (id(one), name): (one, value)
        for one in holders
        for name, value in one.items()
        if _is_number(value) and not isinstance(getattr(value, "value", None), bool)
    }


def _nothing(_: Value) -> None:
    """What is done with a value that nobody uses."""


def _span(values: Sequence[Value]) -> Value:
    """How many numbers a range has."""
    if len(values) == 1:
        return values[0]
    if all(isinstance(each, Const) and isinstance(each.value, int) for each in values):
        try:
            return Const(len(range(*[each.value for each in values if isinstance(each, Const)])), marks=marks_of(values))
        except (ValueError, OverflowError):
            return Unknown(marks=marks_of(values))
    if len(values) == 2 and isinstance(values[0], Const) and not values[0].value:
        return values[1]
    return Unknown(marks=marks_of(values))


def _tensor(values: Sequence[Value]) -> Unknown:
    """A new tensor, with its shape if all sizes are known."""
    sizes = values[0].items if len(values) == 1 and isinstance(values[0], SequenceValue) else values
    known = [each.value for each in sizes if isinstance(each, Const) and isinstance(each.value, int)]
    return Unknown(shape=tuple(known) if known and len(known) == len(sizes) else None)


@functools.lru_cache(maxsize=4096)
def _shown(tree: ast.expr, negated: bool = False) -> str:
    """A test as it stands in the source, in short."""
    text = " ".join(ast.unparse(ast.UnaryOp(ast.Not(), tree) if negated else tree).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
