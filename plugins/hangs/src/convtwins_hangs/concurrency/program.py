"""The program under analysis: its modules, functions and classes, and which of them are relevant to concurrency."""

from __future__ import annotations

import ast
import builtins
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from common.spec import SpecError
from convtwins_hangs.concurrency import control_flow, meanings
from convtwins_hangs.concurrency.control_flow import NO_NODE, FunctionLike, Graph, GraphNode
from convtwins_hangs.concurrency.meanings import KnownNames
from convtwins_hangs.concurrency.sources import SourceFile

_MUTATING_METHODS = {"append", "extend", "add", "update", "pop"}
"""Methods that change a container."""
UNSPECIFIED_ERROR = "some exception"
"""Exception caused by data or the machine, so that one rank may get it alone."""
_SPECIFIC_ERRORS = {
    "SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "StopAsyncIteration",  # no failures
    "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError", "AttributeError", "TypeError", "SyntaxError",
    "NotImplementedError",  # of the program or its versions, so that all ranks get them
    "Empty", "Full", "TimeoutError", "BrokenBarrierError", "BrokenExecutor",  # of waiting, which is executed
}  # fmt: skip
"""Errors that `UNSPECIFIED_ERROR` never stands for. Errors defined by the program come from its `raise` statements."""
FunctionDefinition = ast.FunctionDef | ast.AsyncFunctionDef
_RELEVANT_CONTEXT_MANAGERS = {"ThreadPoolExecutor", "get_lock", "no_sync", "join"}
"""Calls in a `with` statement that are relevant although they do not block."""


@dataclass(eq=False)
class Module:
    name: str
    file: str
    tree: ast.Module
    is_package: bool
    top_level: dict[str, ast.stmt] = field(default_factory=dict[str, ast.stmt])
    """Last statement at module level that binds each name."""
    imports: dict[str, str] = field(default_factory=dict[str, str])
    """Dotted name that each imported name stands for, imports in functions included."""

    def __post_init__(self) -> None:
        for statement in _top_level_statements(self.tree.body):
            for name in bound_names(statement):
                self.top_level[name] = statement

    def qualified_name(self, tree: ast.expr) -> str:
        """Return the full dotted name of an expression: `torch.distributed.barrier` for `dist.barrier`."""
        if isinstance(tree, ast.Attribute):
            return f"{self.qualified_name(tree.value)}.{tree.attr}"
        return self.imports.get(tree.id, tree.id) if isinstance(tree, ast.Name) else ""

    def absolute_module(self, statement: ast.ImportFrom) -> str:
        """Return the absolute name of the module that a `from` statement imports from."""
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".") if self.name else []
        num_parts = len(parts) - statement.level + self.is_package
        return ".".join([*parts[: max(num_parts, 0)], *filter(None, [statement.module])])


class Root(NamedTuple):
    """Entry point of an execution."""

    module: Module
    function: FunctionDefinition | None = None
    """None: the module itself, as a script."""
    class_tree: ast.ClassDef | None = None

    @property
    def title(self) -> str:
        name = ".".join(tree.name for tree in (self.class_tree, self.function) if tree is not None)
        return f"{self.module.file}{f', {name}' if name else ''}"


@dataclass(eq=False)
class _FunctionSummary:
    """Static summary of a function or method."""

    module: Module
    owner: str
    """Name of the enclosing class, or empty."""
    is_module: bool = False
    """Whether the summary is of the module itself."""
    calls: list[ast.Call] = field(default_factory=list[ast.Call])
    with_items: list[ast.withitem] = field(default_factory=list[ast.withitem])

    raised_errors: set[str] = field(default_factory=set[str])
    """Names of the errors in the function's own `raise` statements."""

    @functools.cached_property
    def called_names(self) -> frozenset[str]:
        """Dotted names of the called functions."""
        return frozenset(self.module.qualified_name(call.func) for call in self.calls)


class Program:
    """All modules by name, with static summaries of their functions."""

    def __init__(self, sources: Sequence[SourceFile], known_names: KnownNames) -> None:
        """Read all functions."""
        self.unread_files: list[str] = []
        """Messages about files that are nested too deeply."""
        self.known_names = known_names
        self.modules = {source.name: Module(source.name, source.file, source.tree, source.is_package) for source in sources}
        self._graphs: dict[int, Graph] = {}
        self._relevance: dict[int, bool] = {}
        self._regions: dict[tuple[int, int], tuple[bool, int | None, list[GraphNode]]] = {}
        self._summaries: dict[int, _FunctionSummary] = {}
        self._module_summaries = {name: _FunctionSummary(module, "", is_module=True) for name, module in self.modules.items()}
        self._summaries_by_name: dict[str, list[_FunctionSummary]] = defaultdict(list)
        self.names: set[str] = set()
        self._model_names: set[str] = set()
        """Names of models whose forward may exchange buffers."""
        self._bases: dict[str, list[str]] = {}
        """Names of the bases, by class name."""
        for name, module in list(self.modules.items()):
            try:
                self._collect(module, module.tree, [self._module_summaries[name]], "")
            except RecursionError:
                self.unread_files.append(f"{module.file}:1: the code is nested too deeply to be read. Leave it out")
                del self.modules[name]
        if self.unread_files and not self.modules:
            raise SpecError(f"{self.unread_files[0]}.")
        self.has_processes = not self.names.isdisjoint({"Process", "spawn", "start_processes"})
        self.has_threads = bool(meanings.THREAD_NAMES & self.names)
        self.relevant_calls = known_names.relevant_calls(self.names)
        summaries = [*self._summaries.values(), *self._module_summaries.values()]
        calls = {id(summary): list(self._callees(summary)) for summary in summaries}
        self._relevant_functions = self._transitive_callers(
            calls,
            lambda summary: (
                any(self._is_relevant_call(summary, call) for call in summary.calls) or any(map(_is_lock, summary.with_items))
            ),
        )
        callees_or_passed = {id(summary): [*calls[id(summary)], *self._passed_functions(summary)] for summary in summaries}
        self._rank_functions = self._transitive_callers(
            callees_or_passed, lambda summary: any(map(known_names.is_rank_operation, summary.called_names))
        )

        def starts(summary: _FunctionSummary) -> bool:
            return any(map(known_names.starts_concurrency, summary.called_names)) or bool(
                "Lock" in self.names and any(map(_is_lock, summary.with_items))
            )

        self._starting_functions = self._transitive_callers(calls, starts)
        self._relevant_call_ids = {
            id(call)
            for summary in summaries
            for call in summary.calls
            if self._is_relevant_call(summary, call)
            or any(id(callee) in self._relevant_functions for callee in self._possible_callees(summary.module, call))
        }

    def _collect(self, module: Module, tree: ast.AST, enclosing: list[_FunctionSummary], owner: str) -> None:
        """Collect every function and the calls in it."""
        for child in ast.iter_child_nodes(tree):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                summary = self._summaries[id(child)] = _FunctionSummary(module, owner)
                self._summaries_by_name[child.name].append(summary)
                self._collect(module, child, [*(outer for outer in enclosing if not outer.is_module), summary], "")
                continue
            if isinstance(child, ast.Call):
                for outer in enclosing:
                    outer.calls.append(child)
            elif isinstance(child, ast.withitem):
                for outer in enclosing:
                    outer.with_items.append(child)
            elif isinstance(child, ast.Assign) and isinstance(child.value, ast.Call):
                if module.qualified_name(child.value.func) in meanings.DDP_CLASSES:
                    self._model_names.update(map(last_name, child.targets))
            elif isinstance(child, ast.Raise) and child.exc is not None:
                for outer in enclosing:
                    outer.raised_errors.add(raised_error(child.exc))
            elif isinstance(child, ast.ClassDef):
                self._bases[child.name] = [last_name(base) for base in child.bases]
            elif isinstance(child, ast.Attribute):
                self.names.add(child.attr)
            elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
                self.names.add(child.id)
            elif isinstance(child, (ast.Import, ast.ImportFrom)):
                self.names.update(alias.name for alias in child.names)
                self.names.add(getattr(child, "module", None) or "")
                source = f"{module.absolute_module(child)}." if isinstance(child, ast.ImportFrom) else ""
                module.imports |= {alias.asname or alias.name: source + alias.name for alias in child.names}
            self._collect(module, child, enclosing, child.name if isinstance(child, ast.ClassDef) else owner)

    def _callees(self, summary: _FunctionSummary) -> Iterator[_FunctionSummary]:
        for call in summary.calls:
            yield from self._possible_callees(summary.module, call)

    def _passed_functions(self, summary: _FunctionSummary) -> Iterator[_FunctionSummary]:
        """Yield the functions passed to others by name, as in `launch(main)`."""
        for call in summary.calls:
            for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
                if isinstance(argument, ast.Name):
                    yield from self._definitions(summary.module, argument.id)

    def _possible_callees(self, module: Module, call: ast.Call) -> list[_FunctionSummary]:
        """Return the program's functions that a call may refer to, by name."""
        function = call.func
        if isinstance(function, ast.Name):
            return self._definitions(module, function.id)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            statement = module.top_level.get(function.value.id)
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                other = self._imported_module(module, statement, function.value.id)
                return self._definitions(other, function.attr) if other is not None else []
        return [summary for summary in self._summaries_by_name.get(last_name(function), []) if summary.owner]

    def _definitions(self, module: Module, name: str, max_depth: int = 5) -> list[_FunctionSummary]:
        statement = module.top_level.get(name)
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return [self._summaries[id(statement)]]
            case ast.ClassDef():
                return [self._summaries[id(method)] for method in statement.body if isinstance(method, ast.FunctionDef)]
            case ast.ImportFrom() if max_depth:
                source = self.modules.get(module.absolute_module(statement))
                original = next((alias.name for alias in statement.names if (alias.asname or alias.name) == name), name)
                return self._definitions(source, original, max_depth - 1) if source is not None else []
            case None:  # a function within a function
                return [
                    summary
                    for summary in self._summaries_by_name.get(name, [])
                    if summary.module is module and not summary.owner
                ]
            case _:
                return []

    def _imported_module(self, module: Module, statement: ast.Import | ast.ImportFrom, name: str) -> Module | None:
        for alias in statement.names:
            if (alias.asname or alias.name.partition(".")[0]) == name:
                source = f"{module.absolute_module(statement)}." if isinstance(statement, ast.ImportFrom) else ""
                return self.modules.get(source + alias.name)
        return None

    def _transitive_callers(
        self, calls: dict[int, list[_FunctionSummary]], is_direct: Callable[[_FunctionSummary], bool]
    ) -> set[int]:
        """Return the ids of the summaries where `is_direct` holds, and of all their transitive callers."""
        summaries = [*self._summaries.values(), *self._module_summaries.values()]
        callers: dict[int, list[_FunctionSummary]] = defaultdict(list)
        for caller in summaries:
            for callee in calls[id(caller)]:
                callers[id(callee)].append(caller)
        pending = [summary for summary in summaries if is_direct(summary)]
        reached = {id(summary) for summary in pending}
        while pending:
            for caller in callers[id(pending.pop())]:
                if id(caller) not in reached:
                    reached.add(id(caller))
                    pending.append(caller)
        return reached

    def graph(self, tree: FunctionLike | ast.Module) -> Graph:
        graph = self._graphs.get(id(tree))
        if graph is None:
            if isinstance(tree, ast.Module):
                graph = control_flow.body_graph(tree.body, "module")
            else:
                graph = control_flow.function_graph(tree, getattr(tree, "name", "lambda"))
            self._graphs[id(tree)] = graph
        return graph

    def is_relevant(self, node: GraphNode) -> bool:
        """Return whether a node may do something that other threads or ranks can observe."""
        relevant = self._relevance.get(id(node))
        if relevant is None:
            relevant = self._relevance[id(node)] = self._compute_relevance(node)
        return relevant

    def _compute_relevance(self, node: GraphNode) -> bool:
        match node.kind:
            case "call":
                return id(node.tree) in self._relevant_call_ids
            case "enter" | "exit":
                item: ast.withitem = node.extra
                return not isinstance(item.context_expr, ast.Call) or (
                    id(item.context_expr) in self._relevant_call_ids
                    or last_name(item.context_expr.func) in _RELEVANT_CONTEXT_MANAGERS
                )
            case "yield":
                return True
            case "do":
                return self.has_threads and _assigns_shared(node.tree)
            case _:
                return False

    def _is_relevant_call(self, summary: _FunctionSummary, call: ast.Call) -> bool:
        """Return whether a call may be a library call that other threads or ranks can observe."""
        name = last_name(call.func)
        if isinstance(call.func, ast.Name):
            name = summary.module.qualified_name(call.func).rpartition(".")[2]
        if name in self._model_names:
            return True
        if name not in self.relevant_calls:
            return False
        is_method = isinstance(call.func, ast.Attribute)
        if name == "get" and is_method:  # of a dictionary
            return not call.args or (isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, bool))
        if name == "join" and is_method:  # of a text or a path
            return not call.args or (isinstance(call.args[0], ast.Constant) and not isinstance(call.args[0].value, str))
        return name != "set" or (is_method and not call.args)

    @functools.cache  # noqa: B019  a program lives as long as its search
    def has_buffers(self, tree: ast.ClassDef) -> bool:
        """Return whether a class of the program is a model that makes buffers itself."""
        return any(
            meanings.has_buffers(last_name(node)) for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))
        )

    @functools.cache  # noqa: B019  a program lives as long as its search
    def may_raise(self, tree: FunctionLike) -> bool:
        """Return whether a function may fail and has no relevant nodes."""
        graph = self.graph(tree)
        if any(map(self.is_relevant, graph.nodes)):
            return False
        risky = (ast.Call, ast.Subscript, ast.Raise, ast.Div, ast.FloorDiv, ast.Mod, ast.Assert)
        return any(isinstance(node, risky) for node in ast.walk(tree))

    @functools.cache  # noqa: B019  a program lives as long as its search
    def errors_raised_by(self, module: Module, call: ast.Call) -> frozenset[str]:
        """Return the program-defined errors that a call may raise."""
        errors: set[str] = set()
        visited: set[int] = set()
        pending = self._possible_callees(module, call)
        while pending:
            summary = pending.pop()
            if id(summary) not in visited:
                visited.add(id(summary))
                errors |= summary.raised_errors & self._bases.keys()
                pending = [*pending, *self._callees(summary)]
        return frozenset(errors)

    @functools.cache  # noqa: B019  a program lives as long as its search
    def handler_matches(self, kind: ast.expr | None, exception: str) -> bool:
        """Return whether `except kind` catches an exception."""
        if kind is None:
            return True
        names = {last_name(handled) for handled in (kind.elts if isinstance(kind, ast.Tuple) else [kind])}
        if exception == UNSPECIFIED_ERROR:  # code that is not read raises no errors of the package
            return not names <= _SPECIFIC_ERRORS | self._bases.keys()
        return not names.isdisjoint(self._error_ancestors(exception))

    def _error_ancestors(self, exception: str) -> set[str]:
        """Return the names of an error and of all its base classes."""
        ancestors: set[str] = set()
        pending = [exception]
        while pending:
            name = pending.pop()
            builtin = getattr(builtins, name, None)
            if name not in self._bases:
                ancestors |= (
                    {ancestor.__name__ for ancestor in builtin.__mro__}
                    if isinstance(builtin, type)
                    else {"Exception", "BaseException"}
                )
            elif name not in ancestors:
                pending += self._bases[name]
            ancestors.add(name)
        return ancestors

    @functools.cache  # noqa: B019  a program lives as long as its search
    def catches(self, graph: Graph, node_index: int, exception: str) -> bool:
        """Return whether a handler in this function catches an exception that starts at a node."""
        visited: set[int] = set()
        pending = [node_index]
        while pending:
            index = pending.pop()
            if index == NO_NODE or index in visited:
                continue
            visited.add(index)
            node = graph.nodes[index]
            if node.kind == "catch":
                if any(self.handler_matches(kind, exception) for kind, _, _ in node.extra):
                    return True
                pending.append(node.error)
            elif node.kind == "reraise":
                pending.append(node.error)
            else:
                pending += node.successors
        return False

    def region(self, graph: Graph, node_index: int) -> tuple[bool, int | None, list[GraphNode]]:
        """Return (whether no node before the join is relevant, the join, the nodes between) of a branch.

        The join is where all paths meet again: `len(graph.nodes)` at the function's end, None if they never meet.
        """
        key = id(graph), node_index
        region = self._regions.get(key)
        if region is None:
            end = graph.post_dominators.get(node_index)
            if end is None:
                region = False, None, []
            else:
                nodes = graph.nodes_between(node_index, end)
                region = not any(map(self.is_relevant, nodes)), end, nodes
            self._regions[key] = region
        return region

    @functools.cache  # noqa: B019  a program lives as long as its search
    def depends_on_counter(self, graph: Graph, node_index: int, *, by_item: bool) -> bool:
        """Return whether a relevant test in a loop depends on a number that the iterations count.

        Args:
            node_index: index of the loop head.
            by_item: whether the loop runs over known numbers.
        """
        _, _, nodes = self.region(graph, node_index)
        counters = {ast.unparse(part) for part in ast.walk(graph.nodes[node_index].tree.target)} if by_item else set[str]()
        for node in nodes:
            if node.kind == "do" and isinstance(node.tree, ast.AugAssign):
                counters.add(ast.unparse(node.tree.target))
        tests = [graph.nodes.index(node) for node in nodes if node.kind == "branch" and id(node.tree) not in graph.tests]
        return any(
            isinstance(part, (ast.Name, ast.Attribute)) and ast.unparse(part) in counters
            for test in tests
            if not self.region(graph, test)[0]
            for part in ast.walk(graph.nodes[test].tree)
        )

    @functools.cached_property
    def early_exit_iterables(self) -> frozenset[str]:
        """Source texts of the iterables of `for` loops with a `break` or `return`."""
        for_loops = [node for module in self.modules.values() for node in ast.walk(module.tree) if isinstance(node, ast.For)]
        exit_statements = (ast.Break, ast.Return)
        return frozenset(
            ast.unparse(loop.iter)
            for loop in for_loops
            if any(isinstance(node, exit_statements) for part in loop.body for node in ast.walk(part))
        )

    @functools.cache  # noqa: B019  a program lives as long as its search
    def is_usually_true(self, graph: Graph, node_index: int) -> bool:
        """Return whether the true path of a branch is the usual one: it has at least as many relevant nodes."""
        node = graph.nodes[node_index]
        end = graph.post_dominators.get(node_index, len(graph.nodes))
        yes, no = (
            0
            if successor == end
            else sum(map(self.is_relevant, [graph.nodes[successor], *graph.nodes_between(successor, end)]))
            for successor in (node.next, node.next_if_false)
        )
        return yes >= no

    def roots(self) -> list[Root]:
        """Return the entry points: scripts, then functions that the program never names, then all others.

        Only those that may start threads or ranks, take the locks of their object, or reach a collective.
        """
        scripts = [
            Root(module)
            for name, module in self.modules.items()
            if id(self._module_summaries[name]) in self._starting_functions
            or (_is_script(module) and self._script_begins(module))
        ]
        functions: list[Root] = []
        for module in self.modules.values():
            for statement in _top_level_statements(module.tree.body):
                if isinstance(statement, ast.FunctionDef):
                    functions.append(Root(module, statement))
                elif isinstance(statement, ast.ClassDef):
                    methods = [method for method in statement.body if isinstance(method, ast.FunctionDef)]
                    functions += [Root(module, method, statement) for method in methods]
        functions = [root for root in functions if id(self._summaries[id(root.function)]) in self._starting_functions]
        unnamed = [root for root in functions if root.function is not None and root.function.name not in self.names]
        return [*scripts, *unnamed, *(root for root in functions if root not in unnamed)]

    def unknown_calls(self, *, ranks: bool) -> list[str]:
        """Return messages about external calls that, by their names, may be collectives.

        Args:
            ranks: whether to report calls that ask for a rank if there are no possible collectives.
        """
        collectives: dict[str, str] = {}
        rank_calls: dict[str, str] = {}
        for summary in [*self._summaries.values(), *self._module_summaries.values()]:
            for call in summary.calls:
                dotted, last = summary.module.qualified_name(call.func).lstrip("."), last_name(call.func)
                where = f"{summary.module.file}:{call.lineno}: {dotted}"
                if (
                    self._summaries_by_name.get(last)
                    or self.known_names.is_rank_operation(dotted)
                    or dotted.startswith(meanings.KNOWN_LIBRARIES)
                ):
                    continue
                if meanings.may_be_collective(last):
                    collectives.setdefault(dotted, f"{where} may be a collective. Name it: --collective {dotted}")
                elif ranks and self.known_names.is_rank(last):
                    rank_calls.setdefault(dotted, f"{where} asks for a rank. Name the collectives: --collective NAME")
        return list((collectives or rank_calls).values())

    def _script_begins(self, module: Module) -> bool:
        return any(id(callee) in self._starting_functions for callee in self._callees(self._module_summaries[module.name]))

    @functools.cache  # noqa: B019  a program lives as long as its search
    def is_distributed(self, root: Root) -> bool:
        """Return whether the root runs on every rank. Otherwise it may start the ranks."""
        summaries = [
            self._module_summaries[root.module.name],
            *(summary for summary in self._summaries.values() if summary.module is root.module),
        ]
        called_names = frozenset[str]().union(*(summary.called_names for summary in summaries))
        if root.function is None:
            launchers = {name.rpartition(".")[2] for name in called_names} & {"spawn", "start_processes", "Process"}
            return id(self._module_summaries[root.module.name]) in self._rank_functions and not launchers
        return (
            any(map(self.known_names.is_rank_operation, called_names))
            or id(self._summaries[id(root.function)]) in self._rank_functions
        )


def last_name(tree: ast.expr) -> str:
    return tree.attr if isinstance(tree, ast.Attribute) else tree.id if isinstance(tree, ast.Name) else ""


@functools.lru_cache(maxsize=8192)
def source(tree: ast.AST) -> str:
    """Return the source text of a syntax tree."""
    return ast.unparse(tree)


@functools.lru_cache(maxsize=8192)
def short_source(tree: ast.expr, is_negated: bool = False) -> str:
    """Return the source text of a test, shortened."""
    text = " ".join(ast.unparse(ast.UnaryOp(ast.Not(), tree) if is_negated else tree).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


@functools.lru_cache(maxsize=8192)
def decorator_names(tree: Any) -> frozenset[str]:
    """Return the last names of a function's decorators."""
    return frozenset(
        last_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for decorator in getattr(tree, "decorator_list", [])
    )


def raised_error(tree: ast.expr) -> str:
    """Return the name of the error that `raise tree` raises."""
    return last_name(tree.func if isinstance(tree, ast.Call) else tree)


def assigned_targets(statement: ast.AST) -> list[ast.expr]:
    """Return the targets to which a statement assigns, also with an annotation or an operator. Other statements have none."""
    match statement:
        case ast.Assign():
            return statement.targets
        case ast.AugAssign():
            return [statement.target]
        case ast.AnnAssign() if statement.value is not None:
            return [statement.target]
        case _:
            return []


def bound_names(statement: ast.stmt) -> list[str]:
    """Return the names that a statement itself binds."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Import():
            return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
        case ast.ImportFrom():
            return [alias.asname or alias.name for alias in statement.names]
        case ast.Assign():
            names = [node for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            return [name.id for name in names if isinstance(name.ctx, ast.Store)]
        case ast.AnnAssign() | ast.AugAssign():
            return [statement.target.id] if isinstance(statement.target, ast.Name) else []
        case _:
            return []


def stored_names(nodes: Sequence[GraphNode]) -> set[str]:
    """Return the variables that any of the nodes assigns."""
    names: set[str] = set()
    for node in nodes:
        trees: list[Any] = []
        if node.kind == "do":
            names.update(bound_names(node.tree))
            trees = [node.tree]
        elif node.kind == "next":
            trees = [node.tree.target]
        elif node.kind == "enter" and node.extra.optional_vars is not None:
            trees = [node.extra.optional_vars]
        elif (
            node.kind == "call" and last_name(node.tree.func) in _MUTATING_METHODS and isinstance(node.tree.func, ast.Attribute)
        ):
            trees = [ast.Name(last_name(node.tree.func.value), ast.Store())]
        for tree in trees:
            names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names


def _top_level_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements at module level, also those in `if`, `try` and `with`."""
    for statement in body:
        yield statement
        match statement:
            case ast.If():
                yield from _top_level_statements([*statement.body, *statement.orelse])
            case ast.Try():
                yield from _top_level_statements([*statement.body, *statement.orelse, *statement.finalbody])
                yield from _top_level_statements([child for handler in statement.handlers for child in handler.body])
            case ast.With():
                yield from _top_level_statements(statement.body)
            case _:
                pass


def _is_script(module: Module) -> bool:
    return any(
        isinstance(statement, ast.If)
        and any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test))
        for statement in module.tree.body
    )


def _is_lock(item: ast.withitem) -> bool:
    return not isinstance(item.context_expr, ast.Call) or last_name(item.context_expr.func) in _RELEVANT_CONTEXT_MANAGERS


def _assigns_shared(tree: ast.AST) -> bool:
    return any(isinstance(target, (ast.Attribute, ast.Subscript)) for target in assigned_targets(tree)) or (
        isinstance(tree, ast.AugAssign) and isinstance(tree.target, ast.Name) and isinstance(tree.target.ctx, ast.Store)
    )
