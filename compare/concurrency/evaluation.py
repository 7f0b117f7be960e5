"""Values of names, attributes and expressions in an abstract execution."""

from __future__ import annotations

import ast
import builtins
from dataclasses import replace
from typing import Any

from compare.concurrency import races
from compare.concurrency.meanings import RANK_VARIABLES, SIZE_VARIABLES, is_loader, is_metric
from compare.concurrency.program import Module, bound_names, last_name
from compare.concurrency.state import CallFrame, ExecutionState, MemoryLocation, SimulatedThread
from compare.concurrency.values import (
    COLLECTIVE_RESULT,
    DATA_DEPENDENT,
    DATA_DEPENDENT_LENGTH,
    LARGE,
    LOCAL,
    NAMED_LOADER,
    NO_MARKS,
    UNEVEN,
    Class,
    Const,
    Function,
    Instance,
    Lib,
    Marks,
    Method,
    RangeValue,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    binary,
    compare,
    marks_of,
    truth,
)

_LOCAL = frozenset([LOCAL])
_ALIKE = {"module", "training", "requires_grad", "shape", "dtype", "device", "ndim", "is_cuda"}
"""Attributes that ranks have alike, whatever their data are."""
_SAME_NUMBERS = {"to", "cuda", "cpu", "int", "long", "float", "double", "clone", "detach"}
"""Methods of a tensor that give the same numbers elsewhere."""

ITSELF = {"to", "cuda", "cpu", "float", "half", "double", "train", "eval", "requires_grad_"}
"""Methods of a model that return it."""
READS_ITEM = {"get", "setdefault", "pop"}
"""Methods of a dictionary that read the item of their first argument."""

VIEWS = {"keys", "values", "items", "copy"}
"""Methods of a dictionary or list whose result is as long as it."""


class Evaluation(ExecutionState):
    """Evaluates expressions. Calls in them have been made before: each is a node of its own."""

    def rank_of(self, thread: SimulatedThread) -> Const:
        return Const(thread.os_process.rank or 0, marks=_LOCAL)

    def named(self, thread: SimulatedThread, name: str) -> Value | None:
        """The value of something that is known by its name alone, such as a parameter `rank`."""
        meanings = self.program.known_names
        if thread.os_process.rank is not None:
            if meanings.is_rank(name):
                return self.rank_of(thread)
            if meanings.is_first_rank(name):
                return Const(thread.os_process.rank == 0, marks=_LOCAL)
        return Const(self.num_ranks) if meanings.is_size(name) and thread.os_process.rank is not None else None

    @staticmethod
    def by_name(name: str, value: Value) -> Value:
        """The value, which may be of the rank's own data by the name of the variable that it is bound to."""
        if isinstance(value, Unknown) and not value.dotted and not value.marks & {LOCAL, COLLECTIVE_RESULT}:
            if is_metric(name):
                value.marks |= {DATA_DEPENDENT}
            elif is_loader(name):
                value.marks |= {NAMED_LOADER}
        return value

    def evaluate(self, thread: SimulatedThread, tree: ast.AST | None, frame: CallFrame) -> Value:
        """The value of an expression."""
        if tree is not None and (made := frame.results.get(id(tree))) is not None:
            return made

        def of(each: ast.AST | None) -> Value:
            return self.evaluate(thread, each, frame)

        match tree:
            case None:
                return Const(None)
            case ast.Constant():
                return Const(tree.value)
            case ast.Name():
                return self.lookup(thread, tree.id, frame)
            case ast.Attribute():
                return self._read(thread, tree, of(tree.value))
            case ast.Tuple() | ast.List() | ast.Set():
                return self._sequence(thread, tree.elts, frame)
            case ast.BinOp():
                return binary(tree.op, of(tree.left), of(tree.right))
            case ast.Compare():
                return self._comparison(tree, [of(each) for each in (tree.left, *tree.comparators)])
            case ast.BoolOp():
                return self._either(tree, [of(each) for each in tree.values])
            case ast.UnaryOp():
                value = of(tree.operand)
                if isinstance(tree.op, ast.Not):
                    known = truth(value)
                    return Unknown(marks=marks_of([value])) if known is None else Const(not known, marks=marks_of([value]))
                if isinstance(value, Const) and isinstance(value.value, (int, float)) and isinstance(tree.op, ast.USub):
                    return Const(-value.value, marks=value.marks)
                return Unknown(marks=marks_of([value]))
            case ast.IfExp():
                known = truth(test := of(tree.test))
                if known is not None:
                    chosen = of(tree.body if known else tree.orelse)
                    if isinstance(chosen, Const) and LOCAL in test.marks:
                        return Const(chosen.value, marks=chosen.marks | {LOCAL})
                    return chosen
                return Unknown(marks=marks_of([of(tree.body), of(tree.orelse), test]))
            case ast.Subscript():
                return self._item(thread, of(tree.value), tree.slice, frame)
            case ast.NamedExpr():
                value = of(tree.value)
                self.assign(thread, tree.target, value, frame)
                return value
            case ast.Lambda():
                return Function(tree=tree, module=frame.module, closure=frame)
            case ast.Starred():
                return of(tree.value)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                source = of(tree.generators[0].iter)
                uneven = {UNEVEN} if source.marks & {LOCAL} and tree.generators[0].ifs else set[str]()
                large = set[str]() if isinstance(length(source), Const) else {LARGE}
                return Unknown(marks=marks_of([source]) | uneven | large)
            case ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom():
                return Unknown()
            case _:
                parts = [of(each) for each in ast.iter_child_nodes(tree) if isinstance(each, ast.expr)]
                return Unknown(marks=marks_of(parts))

    def _sequence(self, thread: SimulatedThread, trees: list[ast.expr], frame: CallFrame) -> SequenceValue:
        items: list[Value] = []
        exact = True
        for each in trees:
            value = self.evaluate(thread, each, frame)
            if not isinstance(each, ast.Starred):
                items.append(value)
            elif isinstance(value, SequenceValue):
                items += value.items
                exact = exact and value.exact
            else:
                exact = False
        return SequenceValue(items, exact)

    @staticmethod
    def _comparison(tree: ast.Compare, values: list[Value]) -> Value:
        left, right, *more = values
        if more:
            return Unknown(marks=marks_of(values))
        found = compare(tree.ops[0], left, right)
        if isinstance(found, Unknown) and isinstance(left, Unknown) and isinstance(right, Const):
            # The same question about the same value has the same answer.
            return left.attributes.setdefault(f"?{type(tree.ops[0]).__name__} {right.value!r}", found)
        return found

    @staticmethod
    def _either(tree: ast.BoolOp, values: list[Value]) -> Value:
        ends = isinstance(tree.op, ast.Or)
        unknown: list[Value] = []
        for place, value in enumerate(values):
            known = truth(value)
            if known is None:
                unknown.append(value)
            elif known is ends or (place == len(values) - 1 and not unknown):
                if not unknown or (known is ends and not ends):  # `unknown and False` is false
                    return Const(value.value, marks=marks_of(values[: place + 1])) if isinstance(value, Const) else value
                break
        if len(unknown) == 1 and len(values) == 2 and truth(values[1]) is None and truth(values[0]) is not None:
            # `rank == 0 and flag`: the flag itself, for those who come to it.
            return Unknown(marks=marks_of(values), attributes=getattr(values[1], "attributes", {}))
        return Unknown(marks=marks_of(values))

    def lookup(self, thread: SimulatedThread, name: str, frame: CallFrame) -> Value:
        """The value of a variable."""
        level: CallFrame | None = frame
        while level is not None:
            if name in level.names and name not in level.outer_names:
                return self._noted((level, name), level.names[name]) if name in frame.outer_names else level.names[name]
            level = level.parent
        value = self.of_module(thread, frame.module, name)
        return self._noted((thread.os_process, f"{frame.module.name}.{name}"), value) if name in frame.outer_names else value

    def _noted(self, place: MemoryLocation, value: Value) -> Value:
        """A number with the place that it was read from, so that writing it back is an update."""
        if not isinstance(value, (Const, Unknown)) or not self.has_started_threads:
            return value
        return replace(value, marks=value.marks | {("read", *place)})

    def of_module(self, thread: SimulatedThread, module: Module, name: str) -> Value:
        """The value of a variable of a module. What has not been executed is evaluated when it is first used."""
        names = thread.os_process.names.setdefault(module.name, {})
        if name in names:
            return names[name]
        statement = module.top_level.get(name)
        value: Value
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                value = Function(tree=statement, module=module)
            case ast.ClassDef():
                value = Class(statement, module)
            case ast.Import() | ast.ImportFrom():
                value = self.imported(thread, module, statement, name)
            case ast.Assign() | ast.AnnAssign() if statement.value is not None:
                names[name] = Unknown()  # for a circle
                value = self._settled(thread, module, statement, names).get(name, names[name])
            case _:
                if name == "__name__":
                    value = Const("__main__")
                elif hasattr(builtins, name):
                    value = Lib(f"builtins.{name}")
                else:
                    value = self.named(thread, name) or Unknown()
        if isinstance(value, Unknown) and not value.origin:
            value.origin = (module.name, name)
        names[name] = value
        return value

    def _settled(
        self,
        thread: SimulatedThread,
        module: Module,
        statement: ast.Assign | ast.AnnAssign,
        names: dict[str, Value],
        owner: str = "",
    ) -> dict[str, Value]:
        """The values of all names that a statement outside of functions binds. Those that `names` lacks are added to it.

        Args:
            owner: begins the names of a class in `names`.
        """
        assert statement.value is not None
        frame = CallFrame(self.program.graph(module.tree), module, 0)
        value = self.simple(thread, module, statement.value)
        computed, self.assigns_computed = self.assigns_computed, False  # of the assignment that asks for it
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            self.assign(thread, target, value, frame)
        self.assigns_computed = computed
        for name, each in frame.names.items():
            names.setdefault(owner + name, each)
        return frame.names

    def simple(self, thread: SimulatedThread, module: Module, tree: ast.expr) -> Value:
        """The value of an expression at the top of a module that is not executed."""
        raise NotImplementedError

    def imported(self, thread: SimulatedThread, module: Module, statement: ast.Import | ast.ImportFrom, name: str) -> Value:
        """What an import binds to a name."""
        modules = self.program.modules
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    return Lib(alias.name if alias.asname else name)
            return Unknown()
        source = module.absolute_module(statement)
        for alias in statement.names:
            if (alias.asname or alias.name) == name:
                if f"{source}.{alias.name}" in modules:
                    return Lib(f"{source}.{alias.name}")
                if source in modules and modules[source] is not module:
                    return self.of_module(thread, modules[source], alias.name)
                return Lib(f"{source}.{alias.name}")
        return Unknown()

    def attribute(self, thread: SimulatedThread, value: Value, name: str) -> Value:
        """The value of an attribute."""
        match value:
            case Lib():
                dotted = f"{value.dotted}.{name}"
                if value.dotted in self.program.modules:
                    if dotted in self.program.modules:
                        return Lib(dotted)
                    return self.of_module(thread, self.program.modules[value.dotted], name)
                if dotted.startswith(("tf.", "torch.multiprocessing.queue")):
                    return Lib(dotted.replace("tf.", "tensorflow.", 1))
                return Lib(dotted, marks=value.marks)
            case Instance():
                if name in value.attributes:
                    return value.attributes[name]
                found = None if value.class_value is None else self.member(thread, value.class_value, name)
                if isinstance(found, Function):
                    decorators = {last_name(each) for each in getattr(found.tree, "decorator_list", [])}
                    if decorators & {"property", "cached_property"}:
                        return value.attributes.setdefault(name, self.named(thread, name) or Unknown())
                    receiver = (
                        None if "staticmethod" in decorators else value.class_value if "classmethod" in decorators else value
                    )
                    return replace(found, receiver=receiver)
                if found is not None:
                    return found
                if name in ITSELF:
                    return Method(receiver=value, name=name)
                if value.class_value is not None and self.thread_base(thread, value.class_value):
                    return Method(receiver=self.own_thread(thread, value), name=name)
                return value.attributes.setdefault(name, self.named(thread, name) or _part_of(value, name))
            case Class():
                found = self.member(thread, value, name)
                if found is None:
                    return Method(receiver=value, name=name)
                decorators = {last_name(each) for each in getattr(getattr(found, "tree", None), "decorator_list", [])}
                return replace(found, receiver=value) if isinstance(found, Function) and "classmethod" in decorators else found
            case Unknown():
                if value.dotted == "super":
                    return self._of_super(thread, value, name)
                if name in value.attributes:
                    return value.attributes[name]
                known = None if name in ("rank",) and value.dotted == "shape" else self.named(thread, name)
                if known is None:
                    inherited = NO_MARKS if name in _ALIKE else marks_of([value])
                    inherited |= {COLLECTIVE_RESULT} if name == "grad" else NO_MARKS
                    known = _part_of(value, name, inherited)
                    known.dotted = "shape" if name == "shape" else ""
                    if name in self.program.relevant_calls or name in READS_ITEM | VIEWS or name == "no_sync":
                        return Method(receiver=value, name=name)
                    if name in _SAME_NUMBERS and "?of" in value.attributes:
                        known.attributes["?of"] = value.attributes["?of"]
                value.attributes[name] = known
                return known
            case _:
                return Method(receiver=value, name=name)

    def _read(self, thread: SimulatedThread, tree: ast.Attribute, of: Value) -> Value:
        value = self.attribute(thread, of, tree.attr)
        if isinstance(of, Instance) and isinstance(value, (Const, Unknown)) and self.has_started_threads:
            place = (of, tree.attr)
            self.use(thread, place, "read", ast.unparse(tree))
            return self._noted(place, value)
        return value

    def use(self, thread: SimulatedThread, place: MemoryLocation, kind: str, says: str) -> None:
        """Record an access for the search of races."""
        repeated = any(frame.loops or frame.visits[frame.current_node] > 1 for frame in thread.frames)
        races.access(self, thread, place, kind, says, repeated=repeated)

    def member(self, thread: SimulatedThread, of: Class, name: str, deepest: int = 12) -> Value | None:
        """A method or variable of a class or of its bases in the package."""
        if of.tree is None or not deepest:
            return None
        for statement in of.tree.body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name == name:
                    return Function(tree=statement, module=of.module, closure=of.closure, owner=of)
                case ast.Assign() | ast.AnnAssign() if statement.value is not None and name in bound_names(statement):
                    owner, names = f"{of.tree.name}.", thread.os_process.names.setdefault(of.module.name, {})
                    if owner + name not in names:
                        self._settled(thread, of.module, statement, names, owner)
                    return names.get(owner + name)
                case _:
                    pass
        for base in self.bases(thread, of):
            if isinstance(base, Class) and (found := self.member(thread, base, name, deepest - 1)) is not None:
                return found
        return None

    def bases(self, thread: SimulatedThread, of: Class) -> list[Value]:
        if of.tree is None:
            return []
        frame = of.closure or CallFrame(self.program.graph(of.module.tree), of.module, 0)
        return [self.evaluate(thread, each, frame) for each in of.tree.bases if isinstance(each, (ast.Name, ast.Attribute))]

    def thread_base(self, thread: SimulatedThread, of: Class, deepest: int = 8) -> str:
        """The library's class if this is a thread or process."""
        for base in self.bases(thread, of):
            if isinstance(base, Lib) and base.dotted.endswith((".Thread", ".Process")):
                return base.dotted
            if isinstance(base, Class) and deepest and (found := self.thread_base(thread, base, deepest - 1)):
                return found
        return ""

    def own_thread(self, thread: SimulatedThread, value: Instance) -> SyncObject:
        """The thread that an instance of a subclass of Thread is."""
        found = value.attributes.get("?thread")
        if not isinstance(found, SyncObject):
            assert value.class_value is not None
            flags = (
                frozenset(["process"]) if self.thread_base(thread, value.class_value).endswith("Process") else frozenset[str]()
            )
            name = value.class_value.tree.name if value.class_value.tree is not None else ""
            found = SyncObject(
                kind="thread", site=value.site, name=name, flags=flags, target=self.attribute(thread, value, "run")
            )
            value.attributes["?thread"] = found
        return found

    def _of_super(self, thread: SimulatedThread, value: Unknown, name: str) -> Value:
        of, owner = value.attributes["of"], value.attributes["class"]
        if isinstance(owner, Class):
            for base in self.bases(thread, owner):
                if isinstance(base, Class) and isinstance(found := self.member(thread, base, name), Function):
                    return replace(found, receiver=of)
            if (
                isinstance(of, Instance)
                and of.class_value is not None
                and name != "__init__"
                and self.thread_base(thread, of.class_value)
            ):
                return Method(receiver=self.own_thread(thread, of), name=name)
        return Unknown(dotted="super of a library")

    def _item(self, thread: SimulatedThread, of: Value, index: ast.expr, frame: CallFrame) -> Value:
        if isinstance(index, ast.Slice):
            parts = [self.evaluate(thread, each, frame) for each in (index.lower, index.upper, index.step)]
            marks = marks_of([of, *parts])
            begin, end = (marks_of([each]) & {LOCAL, UNEVEN} for each in parts[:2])
            from_the_end = isinstance(index.upper, ast.UnaryOp)
            if index.upper is not None and not (begin or end or from_the_end):
                marks -= {UNEVEN, DATA_DEPENDENT_LENGTH}  # shard[:n]: cut to one length
            if index.step is not None and index.lower is not None and LOCAL in parts[0].marks:
                marks |= {UNEVEN, LOCAL}  # files[rank::ranks]: the last ranks may get one less
            return Unknown(marks=marks)
        key = self.evaluate(thread, index, frame)
        if isinstance(of, Lib) and of.dotted == "os.environ" and isinstance(key, Const):
            return self.variable(thread, str(key.value))
        place = key.value if isinstance(key, Const) and isinstance(key.value, int) else None
        if isinstance(of, SequenceValue) and of.exact and place is not None and -len(of.items) <= place < len(of.items):
            return self.item_read(of, key, of.items[place])
        if isinstance(of, (Unknown, Instance)):
            return self.item_read(of, key, of.attributes.get(item_name(key)) or Unknown(marks=marks_of([of, key])))
        if isinstance(of, SequenceValue) and of.items:
            things = [each for each in of.items if isinstance(each, (SyncObject, Instance, Function))]
            if things:
                for each in things:
                    if isinstance(each, SyncObject):
                        each.has_escaped = True  # which one it is, is not known
                return Unknown()
        return Unknown(marks=marks_of([of, key]))

    def item_read(self, of: Value, key: Value, value: Value) -> Value:
        """What was read at a key of a list or dictionary, so that writing it back there is an update."""
        return self._noted(_item_of(of, item_name(key)), value) if isinstance(key, Const) else value

    def variable(self, thread: SimulatedThread, name: str) -> Value:
        """A variable of the environment."""
        if thread.os_process.rank is not None and name in RANK_VARIABLES:
            return Const(str(thread.os_process.rank), marks=_LOCAL)
        if thread.os_process.rank is not None and name in SIZE_VARIABLES:
            return Const(str(self.num_ranks))
        return Unknown()

    def assign(self, thread: SimulatedThread, target: ast.AST, value: Value, frame: CallFrame) -> None:
        """Bind a value to a target of an assignment."""
        match target:
            case ast.Name():
                self._bind(thread, target.id, self.by_name(target.id, value) if self.assigns_computed else value, frame)
            case ast.Tuple() | ast.List():
                items = value.items if isinstance(value, SequenceValue) and len(value.items) == len(target.elts) else None
                for place, each in enumerate(target.elts):
                    inherited = value.marks if not isinstance(value, Const) else NO_MARKS
                    self.assign(thread, each, items[place] if items else Unknown(marks=inherited), frame)
            case ast.Starred():
                self.assign(thread, target.value, Unknown(marks=marks_of([value])), frame)
            case ast.Attribute():
                value = self.by_name(target.attr, value) if self.assigns_computed else value
                self._store(thread, self.evaluate(thread, target.value, frame), target.attr, value, target)
            case ast.Subscript():
                of, key = self.evaluate(thread, target.value, frame), target.slice
                name = self.evaluate(thread, key, frame) if not isinstance(key, ast.Slice) else Const(":")
                self._store(thread, of, item_name(name), value, target)
                _put(of, name, value)
            case _:
                pass

    def _bind(self, thread: SimulatedThread, name: str, value: Value, frame: CallFrame) -> None:
        if name not in frame.outer_names:
            if isinstance(value, SyncObject) and not value.name and value.kind != "thread":
                value.name = name
            frame.names[name] = value
            return
        level = frame.parent
        while level is not None:
            if name in level.names and name not in level.outer_names:
                self._write(thread, (level, name), value, name)
                level.names[name] = value
                return
            level = level.parent
        self._write(thread, (thread.os_process, f"{frame.module.name}.{name}"), value, name)
        thread.os_process.names.setdefault(frame.module.name, {})[name] = value

    def _write(self, thread: SimulatedThread, place: MemoryLocation, value: Value, says: str) -> None:
        kind = "update" if ("read", *place) in value.marks else "flag" if self.assigns_constant else "write"
        self.use(thread, place, kind, says)

    def _store(self, thread: SimulatedThread, of: Value, name: str, value: Value, target: ast.AST) -> None:
        if name.startswith("[") and ("read", *(place := _item_of(of, name))) in value.marks:
            self._write(thread, place, value, ast.unparse(target))
        if isinstance(of, SyncObject) and name == "daemon":
            of.flags = of.flags | {"daemon"} if truth(value) is not False else of.flags - {"daemon"}
        elif isinstance(of, Instance) or (isinstance(of, Unknown) and not of.dotted):
            if not name.startswith("["):
                self._write(thread, (of, name), value, ast.unparse(target))
            if isinstance(value, SyncObject) and not value.name and value.kind != "thread":
                value.name = name
            of.attributes[name] = value
            if name == "[]":
                for each in [value, *of.attributes.values()]:
                    if isinstance(each, SyncObject):
                        each.has_escaped = True
        elif isinstance(of, SequenceValue) and isinstance(value, SyncObject):
            value.has_escaped = True
            of.exact = False

    def update(self, thread: SimulatedThread, tree: ast.AugAssign, frame: CallFrame) -> None:
        """`target += value`."""
        value = self.evaluate(thread, tree.value, frame)
        target: Any = tree.target
        load = ast.copy_location(_loaded(target), target)
        before = self.evaluate(thread, load, frame)
        after = binary(tree.op, before, value)
        after = self.by_name(last_name(target), after)
        place: MemoryLocation | None = None
        if isinstance(target, ast.Attribute):
            of = self.evaluate(thread, target.value, frame)
            place = (of, target.attr) if isinstance(of, Instance) else None
        elif isinstance(target, ast.Subscript) and not isinstance(target.slice, ast.Slice):
            of, key = self.evaluate(thread, target.value, frame), self.evaluate(thread, target.slice, frame)
            if isinstance(of, (Unknown, SequenceValue, Instance)) and isinstance(key, Const):
                place = _item_of(of, item_name(key))
        elif isinstance(target, ast.Name) and target.id in frame.outer_names:
            level = frame.parent
            while level is not None and target.id not in level.names:
                level = level.parent
            place = (level, target.id) if level else (thread.os_process, f"{frame.module.name}.{target.id}")
        if place is not None:
            self.use(thread, place, "update", ast.unparse(target))
            after = replace(after, marks=frozenset(each for each in after.marks if not isinstance(each, tuple)))
        if isinstance(target, ast.Subscript):
            of = self.evaluate(thread, target.value, frame)
            key = Const(":") if isinstance(target.slice, ast.Slice) else self.evaluate(thread, target.slice, frame)
            if isinstance(of, Unknown) and isinstance(key, Const) and item_name(key) in of.attributes:
                of.attributes[item_name(key)] = after
            _put(of, key, after)
        elif isinstance(target, ast.Name) and target.id not in frame.outer_names:
            frame.names[target.id] = after
        elif isinstance(target, ast.Attribute):
            of = self.evaluate(thread, target.value, frame)
            if isinstance(of, (Instance, Unknown)):
                of.attributes[target.attr] = after
        elif isinstance(target, ast.Name):
            thread.os_process.names.setdefault(frame.module.name, {})[target.id] = after


def item_name(key: Value) -> str:
    """As what an item of a list or dictionary is kept."""
    return f"[{key.value!r}]" if isinstance(key, Const) else "[]"


def _item_of(of: Value, name: str) -> MemoryLocation:
    """The place of an item. Copies of an unknown value share their attributes, so these know of whom."""
    return (of.attributes.setdefault("?self", of) if isinstance(of, Unknown) else of), name


def _part_of(value: Value, name: str, marks: Marks = NO_MARKS) -> Unknown:
    return Unknown(marks=marks, origin=(*value.origin, name) if value.origin else ())


def _put(of: Value, key: Value, value: Value) -> None:
    """Put a value at a numbered place of a list or tensor. A tensor with one number of the rank's own is the rank's own."""
    number = key.value if isinstance(key, Const) else None
    if isinstance(of, SequenceValue) and of.exact and isinstance(number, int) and -len(of.items) <= number < len(of.items):
        of.items[number] = value
    elif isinstance(of, Unknown) and (isinstance(number, int) or number == ":") and LOCAL in value.marks:
        of.marks = of.marks | _LOCAL
        made_of = of.attributes.setdefault("?of", SequenceValue([]))
        if isinstance(made_of, SequenceValue):
            made_of.items.append(value)


def _loaded(target: Any) -> Any:
    match target:
        case ast.Name():
            return ast.Name(target.id, ast.Load())
        case ast.Attribute():
            return ast.Attribute(target.value, target.attr, ast.Load())
        case _:
            return ast.Subscript(target.value, target.slice, ast.Load())


def length(value: Value) -> Value:
    """`len(value)`, the same whenever it is asked."""
    if isinstance(value, SequenceValue) and value.exact:
        return Const(len(value.items))
    marks = (
        _LOCAL if UNEVEN in value.marks else frozenset([DATA_DEPENDENT]) if DATA_DEPENDENT_LENGTH in value.marks else NO_MARKS
    )
    if isinstance(value, (Unknown, Instance)):
        return value.attributes.setdefault("len()", _part_of(value, "len()", marks))
    if isinstance(value, RangeValue) and value.stop is not None:
        return value.stop
    return _part_of(value, "len()", marks)
