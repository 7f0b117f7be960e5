"""Values of names, attributes and expressions in an abstract execution."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import replace

from convtwins_hangs.concurrency import meanings, races, sync_objects
from convtwins_hangs.concurrency.program import Module, assigned_targets, bound_names, decorator_names, last_name, source
from convtwins_hangs.concurrency.state import CallFrame, ExecutionState, MemoryLocation, SimulatedThread
from convtwins_hangs.concurrency.values import (
    NO_MARKS,
    RANK_DEPENDENT,
    Class,
    Const,
    Function,
    Instance,
    Lib,
    Method,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    ValueMark,
    binary,
    compare,
    derived,
    length,
    marks_of,
    truth,
)


class Evaluator(ExecutionState):
    """Evaluates expressions. Their calls were executed before, as separate nodes."""

    def rank_of(self, thread: SimulatedThread) -> Const:
        return Const(thread.os_process.rank or 0, marks=RANK_DEPENDENT)

    def value_by_name(self, thread: SimulatedThread, name: str) -> Value | None:
        """Return the value of a variable known by its name alone, such as `rank`. None: not known."""
        known_names = self.program.known_names
        if thread.os_process.rank is not None:
            if known_names.is_rank(name):
                return self.rank_of(thread)
            if known_names.is_first_rank(name):
                return Const(thread.os_process.rank == 0, marks=RANK_DEPENDENT)
        return Const(self.num_ranks) if known_names.is_size(name) and thread.os_process.rank is not None else None

    @staticmethod
    def mark_by_name(name: str, value: Value) -> Value:
        """Mark a value as data-dependent if the name of its variable suggests it, and return the value."""
        if isinstance(value, Unknown) and not value.dotted and not value.marks & {ValueMark.LOCAL, ValueMark.COLLECTIVE_RESULT}:
            if meanings.is_metric(name):
                value.marks |= {ValueMark.DATA_DEPENDENT}
            elif meanings.is_loader(name):
                value.marks |= {ValueMark.NAMED_LOADER}
        return value

    def evaluate(self, thread: SimulatedThread, tree: ast.AST | None, frame: CallFrame) -> Value:
        """Return the value of an expression."""
        if tree is not None and (result := frame.results.get(id(tree))) is not None:
            return result
        match tree:
            case None:
                return Const(None)
            case ast.Constant():
                return Const(tree.value)
            case ast.Name():
                return self.lookup(thread, tree.id, frame)
            case ast.Attribute():
                return self._read_attribute(thread, tree, self.evaluate(thread, tree.value, frame))
            case ast.Tuple() | ast.List() | ast.Set():
                return self._sequence(thread, tree.elts, frame)
            case ast.BinOp():
                return binary(tree.op, self.evaluate(thread, tree.left, frame), self.evaluate(thread, tree.right, frame))
            case ast.Compare():
                return self._compare(tree, self._evaluate_all(thread, (tree.left, *tree.comparators), frame))
            case ast.BoolOp():
                return self._bool_op(tree, self._evaluate_all(thread, tree.values, frame))
            case ast.UnaryOp():
                value = self.evaluate(thread, tree.operand, frame)
                if isinstance(tree.op, ast.Not):
                    is_true = truth(value)
                    return Unknown(marks=marks_of([value])) if is_true is None else Const(not is_true, marks=marks_of([value]))
                if isinstance(value, Const) and isinstance(value.value, (int, float)) and isinstance(tree.op, ast.USub):
                    return Const(-value.value, marks=value.marks)
                return Unknown(marks=marks_of([value]))
            case ast.IfExp():
                is_true = truth(test := self.evaluate(thread, tree.test, frame))
                if is_true is not None:
                    branch_value = self.evaluate(thread, tree.body if is_true else tree.orelse, frame)
                    if isinstance(branch_value, Const) and ValueMark.LOCAL in test.marks:
                        return Const(branch_value.value, marks=branch_value.marks | {ValueMark.LOCAL})
                    return branch_value
                return Unknown(marks=marks_of([*self._evaluate_all(thread, (tree.body, tree.orelse), frame), test]))
            case ast.Subscript():
                return self._subscript(thread, self.evaluate(thread, tree.value, frame), tree.slice, frame)
            case ast.NamedExpr():
                value = self.evaluate(thread, tree.value, frame)
                self.assign(thread, tree.target, value, frame, tree.value)
                return value
            case ast.Lambda():
                return Function(tree=tree, module=frame.module, closure=frame)
            case ast.Starred():
                return self.evaluate(thread, tree.value, frame)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                iterable = self.evaluate(thread, tree.generators[0].iter, frame)
                uneven = {ValueMark.UNEVEN} if ValueMark.LOCAL in iterable.marks and tree.generators[0].ifs else NO_MARKS
                large = NO_MARKS if isinstance(length(iterable), Const) else {ValueMark.LARGE}
                return Unknown(marks=marks_of([iterable]) | uneven | large)
            case ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom():
                return Unknown()
            case _:
                children = [child for child in ast.iter_child_nodes(tree) if isinstance(child, ast.expr)]
                return Unknown(marks=marks_of(self._evaluate_all(thread, children, frame)))

    def _evaluate_all(self, thread: SimulatedThread, trees: Sequence[ast.expr | None], frame: CallFrame) -> list[Value]:
        return [self.evaluate(thread, tree, frame) for tree in trees]

    def _sequence(self, thread: SimulatedThread, trees: list[ast.expr], frame: CallFrame) -> SequenceValue:
        items: list[Value] = []
        exact = True
        for element in trees:
            value = self.evaluate(thread, element, frame)
            if not isinstance(element, ast.Starred):
                items.append(value)
            elif isinstance(value, SequenceValue):
                items += value.items
                exact = exact and value.exact
            else:
                exact = False
        return SequenceValue(items, exact)

    @staticmethod
    def _compare(tree: ast.Compare, values: list[Value]) -> Value:
        left, right, *more = values
        if more:
            return Unknown(marks=marks_of(values))
        result = compare(tree.ops[0], left, right)
        if isinstance(result, Unknown) and isinstance(left, Unknown) and isinstance(right, Const):
            # The same question about the same value has the same answer.
            return left.attributes.setdefault(f"?{type(tree.ops[0]).__name__} {right.value!r}", result)
        return result

    @staticmethod
    def _bool_op(tree: ast.BoolOp, values: list[Value]) -> Value:
        ends_on = isinstance(tree.op, ast.Or)
        unknown_values: list[Value] = []
        for index, value in enumerate(values):
            is_true = truth(value)
            if is_true is None:
                unknown_values.append(value)
            elif is_true is ends_on or (index == len(values) - 1 and not unknown_values):
                if not unknown_values or (is_true is ends_on and not ends_on):  # `unknown and False` is false
                    return Const(value.value, marks=marks_of(values[: index + 1])) if isinstance(value, Const) else value
                break
        if len(unknown_values) == 1 and len(values) == 2 and truth(values[1]) is None and truth(values[0]) is not None:
            # `rank == 0 and flag`: the flag itself, for those who come to it.
            return Unknown(marks=marks_of(values), attributes=getattr(values[1], "attributes", {}))
        return Unknown(marks=marks_of(values))

    def lookup(self, thread: SimulatedThread, name: str, frame: CallFrame) -> Value:
        """Return the value of a variable."""
        level: CallFrame | None = frame
        while level is not None:
            if name in level.names and name not in level.outer_names:
                value, location = level.names[name], (level, name)
                break
            level = level.parent
        else:
            value = self.module_variable(thread, frame.module, name)
            location = (thread.os_process, f"{frame.module.name}.{name}")
        return self._with_location(location, value) if name in frame.outer_names else value

    @staticmethod
    def _outer_variable(thread: SimulatedThread, name: str, frame: CallFrame) -> tuple[MemoryLocation, dict[str, Value]]:
        """Return (location, namespace) of a variable that a function declares global or nonlocal."""
        level = frame.parent
        while level is not None:
            if name in level.names and name not in level.outer_names:
                return (level, name), level.names
            level = level.parent
        namespace = thread.os_process.names.setdefault(frame.module.name, {})
        return (thread.os_process, f"{frame.module.name}.{name}"), namespace

    def _with_location(self, location: MemoryLocation, value: Value) -> Value:
        """Mark a number with the location that it was read from, so that writing it back is an update."""
        if not isinstance(value, (Const, Unknown)) or not self.has_started_threads:
            return value
        return replace(value, marks=value.marks | {("read", *location)})

    def module_variable(self, thread: SimulatedThread, module: Module, name: str) -> Value:
        """Return the value of a module's variable, evaluated at its first use if its statement was not executed."""
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
                value = self._bind_module_statement(thread, module, statement, names).get(name, names[name])
            case _:
                if name == "__name__":
                    value = Const("__main__")
                elif hasattr(builtins, name):
                    value = Lib(f"builtins.{name}")
                else:
                    value = self.value_by_name(thread, name) or Unknown()
        if isinstance(value, Unknown) and not value.origin:
            value.origin = (module.name, name)
        names[name] = value
        return value

    def _bind_module_statement(
        self,
        thread: SimulatedThread,
        module: Module,
        statement: ast.Assign | ast.AnnAssign,
        names: dict[str, Value],
        owner: str = "",
    ) -> dict[str, Value]:
        """Return the values that a statement at module or class level binds, and add those missing in `names`.

        Args:
            owner: prefix of a class's variables in `names`.
        """
        assert statement.value is not None
        frame = CallFrame(self.program.graph(module.tree), module, 0)
        value = self.evaluate_at_top(thread, module, statement.value)
        for target in assigned_targets(statement):
            self.assign(thread, target, value, frame)
        for name, bound_value in frame.names.items():
            names.setdefault(owner + name, bound_value)
        return frame.names

    def evaluate_at_top(self, thread: SimulatedThread, module: Module, tree: ast.expr) -> Value:
        """Return the value of an expression at module level that is not executed."""
        frame = CallFrame(self.program.graph(module.tree), module, 0)
        frame.names = thread.os_process.names.setdefault(module.name, {})
        if isinstance(tree, (ast.Tuple, ast.List)) and not any(isinstance(element, ast.Starred) for element in tree.elts):
            return SequenceValue([self.evaluate_at_top(thread, module, element) for element in tree.elts])
        if isinstance(tree, ast.Call):
            callee = self.evaluate(thread, tree.func, frame)
            values, keywords = self.arguments_of(thread, tree, frame)
            sync_object = (
                sync_objects.make(thread, callee.dotted, values, keywords, callee.marks) if isinstance(callee, Lib) else None
            )
            if sync_object is not None:
                sync_object.site = (module.file, tree.lineno, tree.col_offset)
                return sync_object
            if isinstance(callee, Lib) and callee.dotted == "builtins.object":
                return Instance()
            return Unknown()
        return self.evaluate(thread, tree, frame)

    def arguments_of(self, thread: SimulatedThread, call: ast.Call, frame: CallFrame) -> tuple[list[Value], dict[str, Value]]:
        """Return the positional and keyword arguments of a call."""
        values = self._sequence(thread, call.args, frame).items
        return values, {keyword.arg: self.evaluate(thread, keyword.value, frame) for keyword in call.keywords if keyword.arg}

    def imported(self, thread: SimulatedThread, module: Module, statement: ast.Import | ast.ImportFrom, name: str) -> Value:
        """Return the value that an import binds to a name."""
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
                    return self.module_variable(thread, modules[source], alias.name)
                return Lib(f"{source}.{alias.name}")
        return Unknown()

    def attribute(self, thread: SimulatedThread, value: Value, name: str) -> Value:
        """Return the value of an attribute."""
        match value:
            case Lib():
                return self._lib_attribute(thread, value, name)
            case Instance():
                return value.attributes.get(name) or self._instance_attribute(thread, value, name)
            case Class():
                return self._class_attribute(thread, value, name)
            case Unknown() if value.dotted == "super":
                return self._super_attribute(thread, value, name)
            case Unknown():
                return value.attributes.get(name) or self._unknown_attribute(thread, value, name)
            case _:
                return Method(receiver=value, name=name)

    def _lib_attribute(self, thread: SimulatedThread, value: Lib, name: str) -> Value:
        dotted, modules = f"{value.dotted}.{name}", self.program.modules
        if value.dotted in modules:
            return Lib(dotted) if dotted in modules else self.module_variable(thread, modules[value.dotted], name)
        if dotted.startswith(("tf.", "torch.multiprocessing.queue")):
            return Lib(dotted.replace("tf.", "tensorflow.", 1))
        return Lib(dotted, marks=value.marks)

    def _instance_attribute(self, thread: SimulatedThread, value: Instance, name: str) -> Value:
        """Return an attribute that was not set on the instance itself."""
        class_value = value.class_value
        member = None if class_value is None else self.member(thread, class_value, name)
        if isinstance(member, Function):
            decorators = decorator_names(member.tree)
            if decorators & {"property", "cached_property"}:
                return value.attributes.setdefault(name, self.value_by_name(thread, name) or Unknown())
            if "staticmethod" in decorators:
                return replace(member, receiver=None)
            return replace(member, receiver=class_value if "classmethod" in decorators else value)
        if member is not None:
            return member
        if name in meanings.RETURNS_SELF:
            return Method(receiver=value, name=name)
        if class_value is not None and self.thread_base(thread, class_value):
            return Method(receiver=self.instance_thread(thread, value), name=name)
        return value.attributes.setdefault(name, self.value_by_name(thread, name) or derived(value, name))

    def _class_attribute(self, thread: SimulatedThread, value: Class, name: str) -> Value:
        member = self.member(thread, value, name)
        if isinstance(member, Function) and "classmethod" in decorator_names(member.tree):
            return replace(member, receiver=value)
        return Method(receiver=value, name=name) if member is None else member

    def _unknown_attribute(self, thread: SimulatedThread, value: Unknown, name: str) -> Value:
        """Return an attribute that was not read before."""
        is_tensor_rank = name == "rank" and value.dotted == "shape"
        if not is_tensor_rank and (known := self.value_by_name(thread, name)) is not None:
            return value.attributes.setdefault(name, known)
        if (
            name in self.program.relevant_calls
            or name in meanings.ITEM_READERS | meanings.SAME_LENGTH_METHODS
            or name == "no_sync"
        ):
            return Method(receiver=value, name=name)
        marks = NO_MARKS if name in meanings.SAME_ATTRIBUTES else marks_of([value])
        result = derived(value, name, marks | {ValueMark.COLLECTIVE_RESULT} if name == "grad" else marks)
        result.dotted = "shape" if name == "shape" else ""
        if name in meanings.NUMBER_PRESERVING_METHODS and "?of" in value.attributes:
            result.attributes["?of"] = value.attributes["?of"]
        return value.attributes.setdefault(name, result)

    def _read_attribute(self, thread: SimulatedThread, tree: ast.Attribute, owner: Value) -> Value:
        value = self.attribute(thread, owner, tree.attr)
        if isinstance(owner, Instance) and isinstance(value, (Const, Unknown)) and self.has_started_threads:
            location = (owner, tree.attr)
            self.record_access(thread, location, "read", source(tree))
            return self._with_location(location, value)
        return value

    def record_access(self, thread: SimulatedThread, location: MemoryLocation, kind: str, name: str) -> None:
        """Record an access for race detection."""
        repeated = any(frame.loops or frame.visits[frame.current_node] > 1 for frame in thread.frames)
        races.access(thread, location, kind, name, repeated=repeated)

    def member(self, thread: SimulatedThread, class_value: Class, name: str, max_depth: int = 12) -> Value | None:
        """Return a method or variable of a class or of its bases in the program. None: there is none."""
        if class_value.tree is None or not max_depth:
            return None
        for statement in class_value.tree.body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name == name:
                    return Function(tree=statement, module=class_value.module, closure=class_value.closure, owner=class_value)
                case ast.Assign() | ast.AnnAssign() if statement.value is not None and name in bound_names(statement):
                    owner, names = f"{class_value.tree.name}.", thread.os_process.names.setdefault(class_value.module.name, {})
                    if owner + name not in names:
                        self._bind_module_statement(thread, class_value.module, statement, names, owner)
                    return names.get(owner + name)
                case _:
                    pass
        for base in self.bases(thread, class_value):
            if isinstance(base, Class) and (member := self.member(thread, base, name, max_depth - 1)) is not None:
                return member
        return None

    def bases(self, thread: SimulatedThread, class_value: Class) -> list[Value]:
        if class_value.tree is None:
            return []
        frame = class_value.closure or CallFrame(self.program.graph(class_value.module.tree), class_value.module, 0)
        return [
            self.evaluate(thread, base, frame) for base in class_value.tree.bases if isinstance(base, (ast.Name, ast.Attribute))
        ]

    def thread_base(self, thread: SimulatedThread, class_value: Class, max_depth: int = 8) -> str:
        """Return the library class that a thread or process class derives from, or an empty string."""
        for base in self.bases(thread, class_value):
            if isinstance(base, Lib) and base.dotted.endswith((".Thread", ".Process")):
                return base.dotted
            if isinstance(base, Class) and max_depth and (dotted := self.thread_base(thread, base, max_depth - 1)):
                return dotted
        return ""

    def instance_thread(self, thread: SimulatedThread, value: Instance) -> SyncObject:
        """Return the thread behind an instance of a subclass of Thread."""
        sync_object = value.attributes.get("?thread")
        if not isinstance(sync_object, SyncObject):
            assert value.class_value is not None
            flags = (
                frozenset(["process"]) if self.thread_base(thread, value.class_value).endswith("Process") else frozenset[str]()
            )
            name = value.class_value.tree.name if value.class_value.tree is not None else ""
            sync_object = SyncObject(
                kind="thread", site=value.site, name=name, flags=flags, target=self.attribute(thread, value, "run")
            )
            value.attributes["?thread"] = sync_object
        return sync_object

    def _super_attribute(self, thread: SimulatedThread, value: Unknown, name: str) -> Value:
        receiver, owner = value.attributes["of"], value.attributes["class"]
        if isinstance(owner, Class):
            for base in self.bases(thread, owner):
                if isinstance(base, Class) and isinstance(member := self.member(thread, base, name), Function):
                    return replace(member, receiver=receiver)
            if (
                isinstance(receiver, Instance)
                and receiver.class_value is not None
                and name != "__init__"
                and self.thread_base(thread, receiver.class_value)
            ):
                return Method(receiver=self.instance_thread(thread, receiver), name=name)
        return Unknown(dotted="super of a library")

    def _subscript(self, thread: SimulatedThread, container: Value, index: ast.expr, frame: CallFrame) -> Value:
        if isinstance(index, ast.Slice):
            bounds = self._evaluate_all(thread, (index.lower, index.upper, index.step), frame)
            marks = marks_of([container, *bounds])
            lower_marks, upper_marks = (marks_of([bound]) & {ValueMark.LOCAL, ValueMark.UNEVEN} for bound in bounds[:2])
            from_the_end = isinstance(index.upper, ast.UnaryOp)
            if index.upper is not None and not (lower_marks or upper_marks or from_the_end):
                marks -= {ValueMark.UNEVEN, ValueMark.DATA_DEPENDENT_LENGTH}  # shard[:n]: cut to one length
            if index.step is not None and index.lower is not None and ValueMark.LOCAL in bounds[0].marks:
                marks |= {ValueMark.UNEVEN, ValueMark.LOCAL}  # files[rank::ranks]: the last ranks may get one less
            return Unknown(marks=marks)
        key = self.evaluate(thread, index, frame)
        if isinstance(container, Lib) and container.dotted == "os.environ" and isinstance(key, Const):
            return self.environment_variable(thread, str(key.value))
        index_value = key.value if isinstance(key, Const) and isinstance(key.value, int) else None
        if (
            isinstance(container, SequenceValue)
            and container.exact
            and index_value is not None
            and -len(container.items) <= index_value < len(container.items)
        ):
            return self.read_item(container, key, container.items[index_value])
        if isinstance(container, (Unknown, Instance)):
            return self.read_item(
                container, key, container.attributes.get(item_name(key)) or Unknown(marks=marks_of([container, key]))
            )
        if isinstance(container, SequenceValue) and container.items:
            candidates = [item for item in container.items if isinstance(item, (SyncObject, Instance, Function))]
            if candidates:
                for candidate in candidates:
                    if isinstance(candidate, SyncObject):
                        candidate.has_escaped = True  # which one it is, is not known
                return Unknown()
        return Unknown(marks=marks_of([container, key]))

    def read_item(self, container: Value, key: Value, value: Value) -> Value:
        """Mark an item with the container and key that it was read from, so that writing it back is an update."""
        return self._with_location(_item_location(container, item_name(key)), value) if isinstance(key, Const) else value

    def environment_variable(self, thread: SimulatedThread, name: str) -> Value:
        """Return the value of an environment variable."""
        if thread.os_process.rank is not None and name in meanings.RANK_VARIABLES:
            return Const(str(thread.os_process.rank), marks=RANK_DEPENDENT)
        if thread.os_process.rank is not None and name in meanings.SIZE_VARIABLES:
            return Const(str(self.num_ranks))
        return Unknown()

    def assign(
        self, thread: SimulatedThread, target: ast.AST, value: Value, frame: CallFrame, expression: ast.expr | None = None
    ) -> None:
        """Bind a value to an assignment's target.

        Args:
            expression: expression of the value. None: it comes from a loop, a context manager, or a statement that is not
                executed.
        """
        is_flag = isinstance(expression, ast.Constant)
        if isinstance(target, (ast.Name, ast.Attribute)) and isinstance(expression, (ast.Call, ast.BinOp)):
            value = self.mark_by_name(last_name(target), value)
        match target:
            case ast.Name():
                self._bind(thread, target.id, value, frame, is_flag=is_flag)
            case ast.Tuple() | ast.List():
                items = value.items if isinstance(value, SequenceValue) and len(value.items) == len(target.elts) else None
                for index, element in enumerate(target.elts):
                    inherited = value.marks if not isinstance(value, Const) else NO_MARKS
                    self.assign(thread, element, items[index] if items else Unknown(marks=inherited), frame, expression)
            case ast.Starred():
                self.assign(thread, target.value, Unknown(marks=marks_of([value])), frame, expression)
            case ast.Attribute():
                owner = self.evaluate(thread, target.value, frame)
                self._store(thread, owner, target.attr, value, target, is_flag=is_flag)
            case ast.Subscript():
                container, key = self.evaluate(thread, target.value, frame), self._key(thread, target, frame)
                self._store(thread, container, item_name(key), value, target, is_flag=is_flag)
                _set_item(container, key, value)
            case _:
                pass

    def _key(self, thread: SimulatedThread, tree: ast.Subscript, frame: CallFrame) -> Value:
        return Const(":") if isinstance(tree.slice, ast.Slice) else self.evaluate(thread, tree.slice, frame)

    def _bind(self, thread: SimulatedThread, name: str, value: Value, frame: CallFrame, *, is_flag: bool) -> None:
        if name in frame.outer_names:
            location, namespace = self._outer_variable(thread, name, frame)
            self._write(thread, location, value, name, is_flag=is_flag)
            namespace[name] = value
            return
        if isinstance(value, SyncObject) and not value.name and value.kind != "thread":
            value.name = name
        frame.names[name] = value

    def _write(self, thread: SimulatedThread, location: MemoryLocation, value: Value, name: str, *, is_flag: bool) -> None:
        kind = "update" if ("read", *location) in value.marks else "flag" if is_flag else "write"
        self.record_access(thread, location, kind, name)

    def _store(self, thread: SimulatedThread, owner: Value, name: str, value: Value, target: ast.AST, *, is_flag: bool) -> None:
        if name.startswith("[") and ("read", *(location := _item_location(owner, name))) in value.marks:
            self._write(thread, location, value, source(target), is_flag=is_flag)
        if isinstance(owner, SyncObject) and name == "daemon":
            owner.flags = owner.flags | {"daemon"} if truth(value) is not False else owner.flags - {"daemon"}
        elif isinstance(owner, Instance) or (isinstance(owner, Unknown) and not owner.dotted):
            if not name.startswith("["):
                self._write(thread, (owner, name), value, source(target), is_flag=is_flag)
            if isinstance(value, SyncObject) and not value.name and value.kind != "thread":
                value.name = name
            owner.attributes[name] = value
            if name == "[]":
                for attribute in [value, *owner.attributes.values()]:
                    if isinstance(attribute, SyncObject):
                        attribute.has_escaped = True
        elif isinstance(owner, SequenceValue) and isinstance(value, SyncObject):
            value.has_escaped = True
            owner.exact = False

    def update(self, thread: SimulatedThread, tree: ast.AugAssign, frame: CallFrame) -> None:
        """Execute an augmented assignment, `target += value`."""
        target = tree.target
        value = self.evaluate(thread, tree.value, frame)
        value = self.mark_by_name(last_name(target), binary(tree.op, self.evaluate(thread, target, frame), value))
        match target:
            case ast.Name():
                location, namespace = None, frame.names
                if target.id in frame.outer_names:
                    location, namespace = self._outer_variable(thread, target.id, frame)
                namespace[target.id] = self._updated(thread, location, value, target)
            case ast.Attribute():
                owner = self.evaluate(thread, target.value, frame)
                value = self._updated(thread, (owner, target.attr) if isinstance(owner, Instance) else None, value, target)
                if isinstance(owner, (Instance, Unknown)):
                    owner.attributes[target.attr] = value
            case ast.Subscript():
                owner, key = self.evaluate(thread, target.value, frame), self._key(thread, target, frame)
                is_known = isinstance(owner, (Unknown, SequenceValue, Instance)) and isinstance(key, Const)
                is_item = is_known and not isinstance(target.slice, ast.Slice)
                value = self._updated(thread, _item_location(owner, item_name(key)) if is_item else None, value, target)
                if isinstance(owner, Unknown) and isinstance(key, Const) and item_name(key) in owner.attributes:
                    owner.attributes[item_name(key)] = value
                _set_item(owner, key, value)

    def _updated(self, thread: SimulatedThread, location: MemoryLocation | None, value: Value, target: ast.expr) -> Value:
        """Record the update of a location, and return the value without the locations that it was read from."""
        if location is None:
            return value
        self.record_access(thread, location, "update", source(target))
        return replace(value, marks=frozenset(mark for mark in value.marks if not isinstance(mark, tuple)))


def item_name(key: Value) -> str:
    """Return the attribute name under which an item of a list or dictionary is stored."""
    return f"[{key.value!r}]" if isinstance(key, Const) else "[]"


def _item_location(container: Value, name: str) -> MemoryLocation:
    """Return the memory location of an item. Copies of an unknown value share attributes, so `?self` names the original."""
    return (container.attributes.setdefault("?self", container) if isinstance(container, Unknown) else container), name


def _set_item(container: Value, key: Value, value: Value) -> None:
    """Store a value at an index of a list or tensor. A rank-dependent number makes the whole tensor rank-dependent."""
    number = key.value if isinstance(key, Const) else None
    if (
        isinstance(container, SequenceValue)
        and container.exact
        and isinstance(number, int)
        and -len(container.items) <= number < len(container.items)
    ):
        container.items[number] = value
    elif isinstance(container, Unknown) and (isinstance(number, int) or number == ":") and ValueMark.LOCAL in value.marks:
        container.marks = container.marks | RANK_DEPENDENT
        sources = container.attributes.setdefault("?of", SequenceValue([]))
        if isinstance(sources, SequenceValue):
            sources.items.append(value)
