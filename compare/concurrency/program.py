"""The package that is checked: its modules, functions and classes, and which of them matter here."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compare.concurrency import control_flow
from compare.concurrency.control_flow import FunctionLike, Graph, Node
from compare.concurrency.meanings import THREAD_WORDS, Meanings
from compare.concurrency.sources import Source

Defined = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Module:
    name: str
    file: str
    tree: ast.Module
    is_package: bool
    top: dict[str, ast.stmt] = field(default_factory=dict[str, ast.stmt])
    """What binds each name at the top. Of several, the last."""

    def __post_init__(self) -> None:
        for statement in _at_the_top(self.tree.body):
            for name in bound(statement):
                self.top[name] = statement

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


class Program:
    """All modules, by name, with what is known of every function without running anything."""

    def __init__(self, sources: Sequence[Source], meanings: Meanings) -> None:
        self.meanings = meanings
        self.modules = {each.name: Module(each.name, each.file, each.tree, each.is_package) for each in sources}
        self._graphs: dict[int, Graph] = {}
        self._interesting: dict[int, bool] = {}
        self._regions: dict[tuple[int, int], tuple[bool, int | None, list[Node]]] = {}
        self.names = _called(self.modules.values())
        self.has_threads = bool(THREAD_WORDS & self.names)
        self.words = self._words()

    def graph(self, tree: FunctionLike | ast.Module) -> Graph:
        found = self._graphs.get(id(tree))
        if found is None:
            if isinstance(tree, ast.Module):
                found = control_flow.of_body(tree.body, "module")
            else:
                found = control_flow.of_function(tree, getattr(tree, "name", "lambda"))
            self._graphs[id(tree)] = found
        return found

    def matters(self, node: Node) -> bool:
        """Whether a node may do something that other threads or ranks notice."""
        found = self._interesting.get(id(node))
        if found is None:
            found = self._interesting[id(node)] = self._judge(node)
        return found

    def _judge(self, node: Node) -> bool:
        match node.kind:
            case "call":
                return self._call_matters(node.tree)
            case "enter" | "exit":
                return self._with_matters(node.extra)
            case "yield":
                return True
            case "do":
                return self.has_threads and _stores(node.tree)
            case _:
                return False

    def _call_matters(self, call: ast.Call) -> bool:
        name = last_name(call.func)
        if name not in self.words:
            return False
        plain = isinstance(call.func, ast.Attribute)
        if name == "get" and plain:  # of a dictionary
            return not call.args or isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, bool)
        if name == "join" and plain:  # of a text or a path
            return not call.args or isinstance(call.args[0], ast.Constant) and not isinstance(call.args[0].value, str)
        if name == "set":
            return plain and not call.args
        return True

    def _with_matters(self, item: ast.withitem) -> bool:
        expression = item.context_expr
        return not isinstance(expression, ast.Call) or last_name(expression.func) in {*self.words, "get_lock", "no_sync", "join"}

    def region(self, graph: Graph, place: int) -> tuple[bool, int | None, list[Node]]:
        """(whether nothing matters between a branch and where its ways meet again, that node, the nodes between).

        That node is `len(graph.nodes)` if they only meet at the function's end, and None if they never do.
        """
        key = id(graph), place
        found = self._regions.get(key)
        if found is None:
            join = graph.joins.get(place)
            if join is None:
                found = False, None, []
            else:
                nodes = graph.between(place, join)
                found = not any(map(self.matters, nodes)), join, nodes
            self._regions[key] = found
        return found

    def functions(self) -> Iterator[Root]:
        """Every function and method of the package, without those inside of functions."""
        for module in self.modules.values():
            for statement in _at_the_top(module.tree.body):
                if isinstance(statement, ast.FunctionDef):
                    yield Root(module, statement)
                elif isinstance(statement, ast.ClassDef):
                    for inner in statement.body:
                        if isinstance(inner, ast.FunctionDef):
                            yield Root(module, inner, statement)

    def _words(self) -> frozenset[str]:
        """Last names of calls that matter, with the functions that lead to one."""
        words = set(self.meanings.words())
        inside: dict[str, set[str]] = defaultdict(set)
        direct: set[str] = set()
        for module in self.modules.values():
            for owner, function in _all_functions(module.tree):
                names = {function.name} if function.name not in ("__init__", "__call__") or owner is None else {owner}
                if function.name in ("__enter__", "__exit__", "__iter__", "__next__") and owner is not None:
                    names.add(owner)
                for node in ast.walk(function):
                    matters = False
                    if isinstance(node, ast.Call):
                        for name in names:
                            inside[name].add(last_name(node.func))
                        matters = self._direct(node, words)
                    elif isinstance(node, ast.withitem):
                        matters = not isinstance(node.context_expr, ast.Call)
                    if matters:
                        direct |= names
        words |= direct - {"__init__"}
        while more := {name for name, called in inside.items() if name not in words and not called.isdisjoint(direct)}:
            words |= more
            direct |= more
        return frozenset(words)

    def _direct(self, call: ast.Call, words: set[str]) -> bool:
        self.words = frozenset(words)
        return self._call_matters(call)

    def roots(self) -> list[Root]:
        """Scripts, then functions that nobody in the package calls and that matter, then all others that matter."""
        scripts = [Root(module) for module in self.modules.values() if self._is_script(module)]
        functions = [root for root in self.functions() if root.function is not None and self._function_matters(root)]
        first = [root for root in functions if root.function is not None and root.function.name not in self.names]
        return [*scripts, *first, *(root for root in functions if root not in first)]

    def _function_matters(self, root: Root) -> bool:
        assert root.function is not None
        return any(
            (isinstance(node, ast.Call) and self._call_matters(node))
            or (isinstance(node, ast.withitem) and self._with_matters(node))
            for node in ast.walk(root.function)
        )

    def _is_script(self, module: Module) -> bool:
        for statement in module.tree.body:
            if isinstance(statement, ast.If) and "__name__" in {
                each.id for each in ast.walk(statement.test) if isinstance(each, ast.Name)
            }:
                return True
            if isinstance(statement, (ast.Expr, ast.For, ast.With, ast.While, ast.Try)):
                if any(isinstance(each, ast.Call) and self._call_matters(each) for each in ast.walk(statement)):
                    return True
        return False

    def is_distributed(self, root: Root) -> bool:
        """Whether ranks run the root. Otherwise it may start them."""
        words = self.meanings.collective_words()
        trees: list[ast.AST] = [root.module.tree]  # a function's own module says best what it belongs to
        called = {last_name(node.func) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)}
        if root.function is not None:
            own = {last_name(node.func) for node in ast.walk(root.function) if isinstance(node, ast.Call)}
            return not own.isdisjoint(words) or (not called.isdisjoint(words) and not own.isdisjoint(self.words))
        starts = {"spawn", "start_processes", "Process"} & called
        everywhere = words & self.names
        return bool(everywhere) and not starts


def last_name(tree: ast.expr) -> str:
    return tree.attr if isinstance(tree, ast.Attribute) else tree.id if isinstance(tree, ast.Name) else ""


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
            return [each.id for target in statement.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        case ast.AnnAssign() | ast.AugAssign():
            return [statement.target.id] if isinstance(statement.target, ast.Name) else []
        case _:
            return []


def stored_names(nodes: Sequence[Node]) -> set[str]:
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
        elif node.kind == "call" and isinstance(node.tree.func, ast.Attribute):
            if isinstance(node.tree.func.value, ast.Name) and node.tree.func.attr in ("append", "extend", "add", "update", "pop"):
                found.add(node.tree.func.value.id)
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


def _all_functions(tree: ast.AST, owner: str | None = None) -> Iterator[tuple[str | None, Defined]]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield owner, child
            yield from _all_functions(child)
        else:
            yield from _all_functions(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _called(modules: Any) -> frozenset[str]:
    """Every name that is read anywhere."""
    found: set[str] = set()
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.add(node.id)
    return frozenset(found)


def _stores(tree: ast.AST) -> bool:
    targets: list[Any] = []
    if isinstance(tree, ast.Assign):
        targets = list(tree.targets)
    elif isinstance(tree, ast.AugAssign):
        targets = [tree.target]
    return any(isinstance(each, (ast.Attribute, ast.Subscript)) for each in targets) or (
        isinstance(tree, ast.AugAssign) and isinstance(tree.target, ast.Name) and isinstance(tree.target.ctx, ast.Store)
    )
