"""The package that is checked: its modules, functions and classes, and which of them matter here."""

from __future__ import annotations

import ast
import builtins
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from common.spec import SpecError
from compare.concurrency import control_flow
from compare.concurrency.control_flow import NO_NODE, FunctionLike, Graph, GraphNode
from compare.concurrency.meanings import DDP_CLASSES, KNOWN_LIBRARIES, THREAD_NAMES, KnownNames, has_buffers, may_be_collective
from compare.concurrency.sources import SourceFile

_CHANGES = {"append", "extend", "add", "update", "pop"}
"""Methods that change a container."""
SOME = "some exception"
"""An exception that data or the machine cause, so that one rank may get it alone."""
_NEVER_SOME = {
    "SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "StopAsyncIteration",  # no failures
    "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError", "AttributeError", "TypeError", "SyntaxError",
    "NotImplementedError",  # of the program or its versions, so that all ranks get them
    "Empty", "Full", "TimeoutError", "BrokenBarrierError", "BrokenExecutor",  # of waiting, which is executed
}  # fmt: skip
"""Errors that are not `SOME`. Every other kind is, but for those of the package: they come from where it raises them."""
Defined = ast.FunctionDef | ast.AsyncFunctionDef
_ENTERED = {"ThreadPoolExecutor", "get_lock", "no_sync", "join"}
"""Calls in a `with` that matter although nothing waits in them yet."""


@dataclass(eq=False)
class Module:
    name: str
    file: str
    tree: ast.Module
    is_package: bool
    top: dict[str, ast.stmt] = field(default_factory=dict[str, ast.stmt])
    """What binds each name at the top. Of several, the last."""
    imports: dict[str, str] = field(default_factory=dict[str, str])
    """Name that an import binds, in a function too: what it stands for."""

    def __post_init__(self) -> None:
        for statement in _at_the_top(self.tree.body):
            for name in bound(statement):
                self.top[name] = statement

    def named(self, tree: ast.expr) -> str:
        """The whole name of what an expression names: `torch.distributed.barrier` for `dist.barrier`."""
        if isinstance(tree, ast.Attribute):
            return f"{self.named(tree.value)}.{tree.attr}"
        return self.imports.get(tree.id, tree.id) if isinstance(tree, ast.Name) else ""

    def absolute(self, statement: ast.ImportFrom) -> str:
        """The module that a `from` imports from."""
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".") if self.name else []
        keep = len(parts) - statement.level + self.is_package
        return ".".join([*parts[: max(keep, 0)], *filter(None, [statement.module])])


class Root(NamedTuple):
    """Where an execution begins."""

    module: Module
    function: Defined | None = None
    """None: the module itself, as a script."""
    of_class: ast.ClassDef | None = None

    @property
    def title(self) -> str:
        name = ".".join(each.name for each in (self.of_class, self.function) if each is not None)
        return f"{self.module.file}{f', {name}' if name else ''}"


@dataclass(eq=False)
class _Known:
    """A function or method before anything is executed."""

    module: Module
    owner: str
    """The class that it stands in, if any."""
    is_top: bool = False
    """It stands for the module itself."""
    calls: list[ast.Call] = field(default_factory=list[ast.Call])
    withs: list[ast.withitem] = field(default_factory=list[ast.withitem])

    raised: set[str] = field(default_factory=set[str])
    """The kinds of errors that it raises itself."""

    @functools.cached_property
    def called(self) -> frozenset[str]:
        """The whole names of what it calls."""
        return frozenset(self.module.named(call.func) for call in self.calls)


class Program:
    """All modules, by name, with what is known of every function without running anything."""

    def __init__(self, sources: Sequence[SourceFile], meanings: KnownNames) -> None:
        """Read all functions.

        Raises:
            SpecError: the only file is nested too deeply.
        """
        self.unread: list[str] = []
        """Files that are nested too deeply, in words."""
        self.meanings = meanings
        self.modules = {each.name: Module(each.name, each.file, each.tree, each.is_package) for each in sources}
        self._graphs: dict[int, Graph] = {}
        self._mattering: dict[int, bool] = {}
        self._regions: dict[tuple[int, int], tuple[bool, int | None, list[GraphNode]]] = {}
        self._known: dict[int, _Known] = {}
        self._top = {name: _Known(module, "", is_top=True) for name, module in self.modules.items()}
        self._named: dict[str, list[_Known]] = defaultdict(list)
        self.names: set[str] = set()
        self._models: set[str] = set()
        """Names of models whose forward may exchange buffers."""
        self._bases: dict[str, list[str]] = {}
        """Class: its bases."""
        for name, module in list(self.modules.items()):
            try:
                self._look(module, module.tree, [self._top[name]], "")
            except RecursionError:
                self.unread.append(f"{module.file}:1: the code is nested too deeply to be read. Leave it out")
                del self.modules[name]
        if self.unread and not self.modules:
            raise SpecError(f"{self.unread[0]}.")
        self.has_processes = not self.names.isdisjoint({"Process", "spawn", "start_processes"})
        self.has_threads = bool(THREAD_NAMES & self.names)
        self.words = meanings.relevant_calls(self.names)
        everyone = [*self._known.values(), *self._top.values()]
        calls = {id(each): list(self._callees(each)) for each in everyone}
        self._matter = self._reaching(
            calls, lambda each: any(self._is_event(each, call) for call in each.calls) or any(map(_is_lock, each.withs))
        )
        passed = {id(each): [*calls[id(each)], *self._passed(each)] for each in everyone}
        self._meet = self._reaching(passed, lambda each: any(map(meanings.is_rank_operation, each.called)))

        def begins(known: _Known) -> bool:
            return any(map(meanings.starts_concurrency, known.called)) or bool(
                "Lock" in self.names and any(map(_is_lock, known.withs))
            )

        self._begin = self._reaching(calls, begins)
        self._calls_that_matter = {
            id(call)
            for each in everyone
            for call in each.calls
            if self._is_event(each, call) or any(id(one) in self._matter for one in self._candidates(each.module, call))
        }

    def _look(self, module: Module, tree: ast.AST, inside: list[_Known], owner: str) -> None:
        """Note every function, and the calls in each."""
        for child in ast.iter_child_nodes(tree):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                known = self._known[id(child)] = _Known(module, owner)
                self._named[child.name].append(known)
                self._look(module, child, [*(each for each in inside if not each.is_top), known], "")
                continue
            if isinstance(child, ast.Call):
                for each in inside:
                    each.calls.append(child)
            elif isinstance(child, ast.withitem):
                for each in inside:
                    each.withs.append(child)
            elif isinstance(child, ast.Assign) and isinstance(child.value, ast.Call):
                if module.named(child.value.func) in DDP_CLASSES:
                    self._models.update(map(last_name, child.targets))
            elif isinstance(child, ast.Raise) and child.exc is not None:
                for each in inside:
                    each.raised.add(raised_by(child.exc))
            elif isinstance(child, ast.ClassDef):
                self._bases[child.name] = [last_name(each) for each in child.bases]
            elif isinstance(child, ast.Attribute):
                self.names.add(child.attr)
            elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                self.names.add(child.id)
            elif isinstance(child, (ast.Import, ast.ImportFrom)):
                self.names.update(alias.name for alias in child.names)
                self.names.add(getattr(child, "module", None) or "")
                source = f"{module.absolute(child)}." if isinstance(child, ast.ImportFrom) else ""
                module.imports |= {alias.asname or alias.name: source + alias.name for alias in child.names}
            self._look(module, child, inside, child.name if isinstance(child, ast.ClassDef) else owner)

    def _callees(self, known: _Known) -> Iterator[_Known]:
        for call in known.calls:
            yield from self._candidates(known.module, call)

    def _passed(self, known: _Known) -> Iterator[_Known]:
        """Functions that are given to others by name, as in `launch(main)`."""
        for call in known.calls:
            for each in (*call.args, *(word.value for word in call.keywords)):
                if isinstance(each, ast.Name):
                    yield from self._defined(known.module, each.id)

    def _candidates(self, module: Module, call: ast.Call) -> list[_Known]:
        """The functions of the package that a call may mean, by its name."""
        function = call.func
        if isinstance(function, ast.Name):
            return self._defined(module, function.id)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            statement = module.top.get(function.value.id)
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                other = self._imported_module(module, statement, function.value.id)
                return self._defined(other, function.attr) if other is not None else []
        return [each for each in self._named.get(last_name(function), []) if each.owner]

    def _defined(self, module: Module, name: str, deepest: int = 5) -> list[_Known]:
        statement = module.top.get(name)
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return [self._known[id(statement)]]
            case ast.ClassDef():
                return [self._known[id(each)] for each in statement.body if isinstance(each, ast.FunctionDef)]
            case ast.ImportFrom() if deepest:
                source = self.modules.get(module.absolute(statement))
                original = next((each.name for each in statement.names if (each.asname or each.name) == name), name)
                return self._defined(source, original, deepest - 1) if source is not None else []
            case None:  # a function within a function
                return [each for each in self._named.get(name, []) if each.module is module and not each.owner]
            case _:
                return []

    def _imported_module(self, module: Module, statement: ast.Import | ast.ImportFrom, name: str) -> Module | None:
        for alias in statement.names:
            if (alias.asname or alias.name.partition(".")[0]) == name:
                source = f"{module.absolute(statement)}." if isinstance(statement, ast.ImportFrom) else ""
                return self.modules.get(source + alias.name)
        return None

    def _reaching(self, calls: dict[int, list[_Known]], direct: Callable[[_Known], bool]) -> set[int]:
        """Identities of those of whom this is true, and of all who may call one of them."""
        everyone = [*self._known.values(), *self._top.values()]
        callers: dict[int, list[_Known]] = defaultdict(list)
        for each in everyone:
            for one in calls[id(each)]:
                callers[id(one)].append(each)
        waiting = [each for each in everyone if direct(each)]
        found = {id(each) for each in waiting}
        while waiting:
            for each in callers[id(waiting.pop())]:
                if id(each) not in found:
                    found.add(id(each))
                    waiting.append(each)
        return found

    def graph(self, tree: FunctionLike | ast.Module) -> Graph:
        found = self._graphs.get(id(tree))
        if found is None:
            if isinstance(tree, ast.Module):
                found = control_flow.body_graph(tree.body, "module")
            else:
                found = control_flow.function_graph(tree, getattr(tree, "name", "lambda"))
            self._graphs[id(tree)] = found
        return found

    def matters(self, node: GraphNode) -> bool:
        """Whether a node may do something that other threads or ranks notice."""
        found = self._mattering.get(id(node))
        if found is None:
            found = self._mattering[id(node)] = self._judge(node)
        return found

    def _judge(self, node: GraphNode) -> bool:
        match node.kind:
            case "call":
                return id(node.tree) in self._calls_that_matter
            case "enter" | "exit":
                item: ast.withitem = node.extra
                return not isinstance(item.context_expr, ast.Call) or (
                    id(item.context_expr) in self._calls_that_matter or last_name(item.context_expr.func) in _ENTERED
                )
            case "yield":
                return True
            case "do":
                return self.has_threads and _stores(node.tree)
            case _:
                return False

    def _is_event(self, known: _Known, call: ast.Call) -> bool:
        """Whether a call may be of a library and do something that others notice."""
        name = last_name(call.func)
        if isinstance(call.func, ast.Name):
            name = known.module.named(call.func).rpartition(".")[2]
        if name in self._models:
            return True
        if name not in self.words:
            return False
        plain = isinstance(call.func, ast.Attribute)
        if name == "get" and plain:  # of a dictionary
            return not call.args or (isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, bool))
        if name == "join" and plain:  # of a text or a path
            return not call.args or (isinstance(call.args[0], ast.Constant) and not isinstance(call.args[0].value, str))
        return name != "set" or (plain and not call.args)

    @functools.cache  # noqa: B019  a program lives as long as its search
    def has_buffers(self, tree: ast.ClassDef) -> bool:
        """Whether a class of the package is a model that makes buffers itself."""
        return any(has_buffers(last_name(each)) for each in ast.walk(tree) if isinstance(each, (ast.Name, ast.Attribute)))

    def may_raise(self, tree: FunctionLike) -> bool:
        """Whether a function does something that can fail, and nothing that matters."""
        graph = self.graph(tree)
        if any(map(self.matters, graph.nodes)):
            return False
        risky = (ast.Call, ast.Subscript, ast.Raise, ast.Div, ast.FloorDiv, ast.Mod, ast.Assert)
        return any(isinstance(each, risky) for each in ast.walk(tree))

    @functools.cache  # noqa: B019  a program lives as long as its search
    def errors_of(self, module: Module, call: ast.Call) -> frozenset[str]:
        """The kinds of errors of the package's own that a call may raise."""
        found: set[str] = set()
        seen: set[int] = set()
        waiting = self._candidates(module, call)
        while waiting:
            one = waiting.pop()
            if id(one) not in seen:
                seen.add(id(one))
                found |= one.raised & self._bases.keys()
                waiting = [*waiting, *self._callees(one)]
        return frozenset(found)

    @functools.cache  # noqa: B019  a program lives as long as its search
    def takes(self, kind: ast.expr | None, exception: str) -> bool:
        """Whether `except kind` takes an exception."""
        if kind is None:
            return True
        names = {last_name(each) for each in (kind.elts if isinstance(kind, ast.Tuple) else [kind])}
        if exception == SOME:  # code that is not read raises no errors of the package
            return not names <= _NEVER_SOME | self._bases.keys()
        return not names.isdisjoint(self._lineage(exception))

    def _lineage(self, exception: str) -> set[str]:
        """A kind of error with all kinds that it is one of."""
        found: set[str] = set()
        waiting = [exception]
        while waiting:
            one = waiting.pop()
            known = getattr(builtins, one, None)
            if one not in self._bases:
                found |= (
                    {each.__name__ for each in known.__mro__} if isinstance(known, type) else {"Exception", "BaseException"}
                )
            elif one not in found:
                waiting += self._bases[one]
            found.add(one)
        return found

    @functools.cache  # noqa: B019  a program lives as long as its search
    def catches(self, graph: Graph, place: int, exception: str) -> bool:
        """Whether a handler takes an exception whose way in this function begins at a node."""
        seen: set[int] = set()
        waiting = [place]
        while waiting:
            one = waiting.pop()
            if one == NO_NODE or one in seen:
                continue
            seen.add(one)
            node = graph.nodes[one]
            if node.kind == "catch":
                if any(self.takes(kind, exception) for kind, _, _ in node.extra):
                    return True
                waiting.append(node.error)
            elif node.kind == "reraise":
                waiting.append(node.error)
            else:
                waiting += node.successors
        return False

    def region(self, graph: Graph, place: int) -> tuple[bool, int | None, list[GraphNode]]:
        """(whether nothing matters between a branch and where its ways meet again, that node, the nodes between).

        That node is `len(graph.nodes)` if they only meet at the function's end, and None if they never do.
        """
        key = id(graph), place
        found = self._regions.get(key)
        if found is None:
            join = graph.post_dominators.get(place)
            if join is None:
                found = False, None, []
            else:
                nodes = graph.nodes_between(place, join)
                found = not any(map(self.matters, nodes)), join, nodes
            self._regions[key] = found
        return found

    @functools.cache  # noqa: B019  a program lives as long as its search
    def counts(self, graph: Graph, place: int, *, by_item: bool) -> bool:
        """Whether a test in a loop, on whose ways others notice something, depends on a number that its turns count.

        Args:
            place: the head of the loop.
            by_item: its items are known numbers.
        """
        _, _, nodes = self.region(graph, place)
        counted = {ast.unparse(each) for each in ast.walk(graph.nodes[place].tree.target)} if by_item else set[str]()
        for node in nodes:
            if node.kind == "do" and isinstance(node.tree, ast.AugAssign):
                counted.add(ast.unparse(node.tree.target))
        tests = [graph.nodes.index(node) for node in nodes if node.kind == "branch" and id(node.tree) not in graph.tests]
        return any(
            isinstance(each, (ast.Name, ast.Attribute)) and ast.unparse(each) in counted
            for test in tests
            if not self.region(graph, test)[0]
            for each in ast.walk(graph.nodes[test].tree)
        )

    @functools.cached_property
    def left_early(self) -> frozenset[str]:
        """What the loops that something in them may end are over, as text."""
        loops = [each for module in self.modules.values() for each in ast.walk(module.tree) if isinstance(each, ast.For)]
        leaves = (ast.Break, ast.Return)
        return frozenset(
            ast.unparse(each.iter)
            for each in loops
            if any(isinstance(one, leaves) for part in each.body for one in ast.walk(part))
        )

    @functools.cache  # noqa: B019  a program lives as long as its search
    def usual(self, graph: Graph, place: int) -> bool:
        """Whether a branch is usually taken: the way on which more happens comes first."""
        node = graph.nodes[place]
        join = graph.post_dominators.get(place, len(graph.nodes))
        yes, no = (
            0 if way == join else sum(map(self.matters, [graph.nodes[way], *graph.nodes_between(way, join)]))
            for way in (node.next, node.next_if_false)
        )
        return yes >= no

    def roots(self) -> list[Root]:
        """Scripts, then functions that nobody in the package names, then all others.

        Only those that may start threads or ranks, take the locks of their object, or reach a collective.
        """
        scripts = [
            Root(module)
            for name, module in self.modules.items()
            if id(self._top[name]) in self._begin or (_is_script(module) and self._script_begins(module))
        ]
        functions: list[Root] = []
        for module in self.modules.values():
            for statement in _at_the_top(module.tree.body):
                if isinstance(statement, ast.FunctionDef):
                    functions.append(Root(module, statement))
                elif isinstance(statement, ast.ClassDef):
                    inner = [each for each in statement.body if isinstance(each, ast.FunctionDef)]
                    functions += [Root(module, each, statement) for each in inner]
        functions = [root for root in functions if id(self._known[id(root.function)]) in self._begin]
        first = [root for root in functions if root.function is not None and root.function.name not in self.names]
        return [*scripts, *first, *(root for root in functions if root not in first)]

    def not_known(self, *, ranks: bool) -> list[str]:
        """Calls of code that is not read which may be collectives by their names, in words.

        Args:
            ranks: where there are none, also those that ask for a rank.
        """
        collectives: dict[str, str] = {}
        asking: dict[str, str] = {}
        for each in [*self._known.values(), *self._top.values()]:
            for call in each.calls:
                dotted, last = each.module.named(call.func).lstrip("."), last_name(call.func)
                where = f"{each.module.file}:{call.lineno}: {dotted}"
                if self._named.get(last) or self.meanings.is_rank_operation(dotted) or dotted.startswith(KNOWN_LIBRARIES):
                    continue
                if may_be_collective(last):
                    collectives.setdefault(dotted, f"{where} may be a collective. Name it: --collective {dotted}")
                elif ranks and self.meanings.is_rank(last):
                    asking.setdefault(dotted, f"{where} asks for a rank. Name the collectives: --collective NAME")
        return list((collectives or asking).values())

    def _script_begins(self, module: Module) -> bool:
        return any(id(each) in self._begin for each in self._callees(self._top[module.name]))

    @functools.cache  # noqa: B019  a program lives as long as its search
    def is_distributed(self, root: Root) -> bool:
        """Whether ranks run the root. Otherwise it may start them."""
        everyone = [self._top[root.module.name], *(each for each in self._known.values() if each.module is root.module)]
        called = frozenset[str]().union(*(each.called for each in everyone))
        if root.function is None:
            starts = {each.rpartition(".")[2] for each in called} & {"spawn", "start_processes", "Process"}
            return id(self._top[root.module.name]) in self._meet and not starts
        return any(map(self.meanings.is_rank_operation, called)) or id(self._known[id(root.function)]) in self._meet


def last_name(tree: ast.expr) -> str:
    return tree.attr if isinstance(tree, ast.Attribute) else tree.id if isinstance(tree, ast.Name) else ""


def raised_by(tree: ast.expr) -> str:
    """The kind of error that `raise tree` raises."""
    return last_name(tree.func if isinstance(tree, ast.Call) else tree)


def bound(statement: ast.stmt) -> list[str]:
    """The names that a statement binds itself."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Import():
            return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
        case ast.ImportFrom():
            return [alias.asname or alias.name for alias in statement.names]
        case ast.Assign():
            names = [each for target in statement.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
            return [each.id for each in names if isinstance(each.ctx, ast.Store)]
        case ast.AnnAssign() | ast.AugAssign():
            return [statement.target.id] if isinstance(statement.target, ast.Name) else []
        case _:
            return []


def stored_names(nodes: Sequence[GraphNode]) -> set[str]:
    """The variables that any of these nodes assigns."""
    found: set[str] = set()
    for node in nodes:
        trees: list[Any] = []
        if node.kind == "do":
            found.update(bound(node.tree))
            trees = [node.tree]
        elif node.kind == "next":
            trees = [node.tree.target]
        elif node.kind == "enter" and node.extra.optional_vars is not None:
            trees = [node.extra.optional_vars]
        elif node.kind == "call" and last_name(node.tree.func) in _CHANGES and isinstance(node.tree.func, ast.Attribute):
            trees = [ast.Name(last_name(node.tree.func.value), ast.Store())]
        for tree in trees:
            found |= {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return found


def _at_the_top(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those in `if` and `try`."""
    for statement in body:
        yield statement
        match statement:
            case ast.If():
                yield from _at_the_top([*statement.body, *statement.orelse])
            case ast.Try():
                yield from _at_the_top([*statement.body, *statement.orelse, *statement.finalbody])
                yield from _at_the_top([each for handler in statement.handlers for each in handler.body])
            case ast.With():
                yield from _at_the_top(statement.body)
            case _:
                pass


def _is_script(module: Module) -> bool:
    return any(
        isinstance(statement, ast.If)
        and any(isinstance(each, ast.Name) and each.id == "__name__" for each in ast.walk(statement.test))
        for statement in module.tree.body
    )


def _is_lock(item: ast.withitem) -> bool:
    return not isinstance(item.context_expr, ast.Call) or last_name(item.context_expr.func) in _ENTERED


def _stores(tree: ast.AST) -> bool:
    targets: list[Any] = []
    if isinstance(tree, ast.Assign):
        targets = list(tree.targets)
    elif isinstance(tree, ast.AugAssign):
        targets = [tree.target]
    return any(isinstance(each, (ast.Attribute, ast.Subscript)) for each in targets) or (
        isinstance(tree, ast.AugAssign) and isinstance(tree.target, ast.Name) and isinstance(tree.target.ctx, ast.Store)
    )
