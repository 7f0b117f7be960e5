"""Control-flow graphs of functions: a node for each call, branch, assignment and exit.

Graphs are built backwards, from the last statement to the first. Each builder method gets the node that follows and returns
the entry of its statement.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

NO_NODE = -1
"""Target of an exception that leaves the function."""

FunctionLike = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(slots=True, eq=False)
class GraphNode:
    """One step of a function.

    Kinds: call; do, a statement without calls; pick, the value of a conditional expression; collect, an item of a
    comprehension; join, the head of a `while`. The others are named after what Python calls them.
    """

    kind: str
    tree: Any
    next: int
    """Index of the following node. branch: if the test is true. next: the loop body."""
    next_if_false: int = NO_NODE
    """Index of the second following node. branch: if the test is false. next: after the loop."""
    error: int = NO_NODE
    """Index of the node that an exception leads to."""
    extra: Any = None
    """Data of the kind. branch: whether the source has a `not` before the test. pick: the chosen expression.

    catch: [(type or None, name, entry)].
    """

    @property
    def line(self) -> int:
        return getattr(self.tree, "lineno", 0) or 0

    @property
    def successors(self) -> list[int]:
        """Indices of all nodes of the function that may follow, except after an exception in this node."""
        if self.kind == "catch":
            return [entry for _, _, entry in self.extra]
        if self.kind in ("raise", "reraise"):
            return [] if self.error == NO_NODE else [self.error]
        successors = [self.next] if self.kind not in ("return", "end") else []
        if self.kind in ("branch", "next"):
            successors.append(self.next_if_false)
        return [successor for successor in successors if successor != NO_NODE]


@dataclass(eq=False)
class Graph:
    """The control flow of one function or module."""

    name: str
    nodes: list[GraphNode] = field(default_factory=list[GraphNode])
    entry: int = 0
    is_generator: bool = False
    tests: set[int] = field(default_factory=set[int])
    """Identities of the tests of the function's `while` loops."""

    @functools.cached_property
    def post_dominators(self) -> dict[int, int]:
        """Immediate post-dominator of each node: where all paths from it meet again. `len(nodes)` is the function's end.

        Paths that leave the function by an exception, or never end, are ignored.
        """
        count = len(self.nodes)
        end = count
        successors = [[end] if node.kind in ("return", "end") else node.successors for node in self.nodes]
        predecessors: list[list[int]] = [[] for _ in range(count + 1)]
        for node, followers in enumerate(successors):
            for follower in followers:
                predecessors[follower].append(node)
        order: list[int] = []  # postorder of the reversed graph
        visited = {end}
        stack: list[tuple[int, Iterator[int]]] = [(end, iter(predecessors[end]))]
        while stack:
            node, unvisited = stack[-1]
            for predecessor in unvisited:
                if predecessor not in visited:
                    visited.add(predecessor)
                    stack.append((predecessor, iter(predecessors[predecessor])))
                    break
            else:
                stack.pop()
                order.append(node)
        order_of = {node: index for index, node in enumerate(order)}
        dominators = {end: end}
        changed = True
        while changed:  # Cooper, Harvey and Kennedy, A Simple, Fast Dominance Algorithm (2001)
            changed = False
            for node in reversed(order):
                if node == end:
                    continue
                dominator: int | None = None
                for follower in successors[node]:
                    if follower in dominators:
                        candidate = follower
                        while dominator is not None and candidate != dominator:
                            if order_of[candidate] < order_of[dominator]:
                                candidate = dominators[candidate]
                            else:
                                dominator = dominators[dominator]
                        dominator = candidate
                if dominator is not None and dominators.get(node) != dominator:
                    dominators[node] = dominator
                    changed = True
        del dominators[end]
        return dominators

    def nodes_between(self, node: int, end: int) -> list[GraphNode]:
        """Return the nodes on all paths from `node` to `end`, without these two."""
        visited = {node, end}
        pending = self.nodes[node].successors
        nodes: list[GraphNode] = []
        while pending:
            index = pending.pop()
            if index not in visited:
                visited.add(index)
                nodes.append(self.nodes[index])
                pending += self.nodes[index].successors
        return nodes


Finalizer = Callable[[int], int]


@dataclass(frozen=True)
class _Context:
    """Targets of the exits of a statement."""

    error: int = NO_NODE
    finalizers: tuple[Finalizer, ...] = ()
    """Builders of the `finally` and `with` exits to run on the way out, outermost first."""
    after_break: int = NO_NODE
    after_continue: int = NO_NODE
    num_outer_finalizers: int = 0
    """Number of finalizers outside of the innermost loop."""

    def leave(self, target: int, num_outer: int = 0) -> int:
        for finalizer in self.finalizers[num_outer:]:
            target = finalizer(target)
        return target


def function_graph(function: FunctionLike, name: str) -> Graph:
    """Build the graph of a function's body."""
    if isinstance(function, ast.Lambda):
        body: Sequence[ast.stmt] = [ast.copy_location(ast.Return(function.body), function.body)]
    else:
        body = function.body
    return body_graph(body, name)


def body_graph(body: Sequence[ast.stmt], name: str) -> Graph:
    """Build the graph of a list of statements."""
    builder = _GraphBuilder(Graph(name))
    end = builder.node("end", body[-1] if body else None, NO_NODE, _Context())
    builder.graph.entry = builder.block(body, end, _Context())
    return builder.graph


class _GraphBuilder:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def node(self, kind: str, tree: Any, after: int, context: _Context, other: int = NO_NODE, extra: Any = None) -> int:
        self.graph.nodes.append(GraphNode(kind, tree, after, other, context.error, extra))
        return len(self.graph.nodes) - 1

    def block(self, statements: Sequence[ast.stmt], after: int, context: _Context) -> int:
        for statement in reversed(statements):
            after = self.statement(statement, after, context)
        return after

    def statement(self, tree: ast.stmt, after: int, context: _Context) -> int:
        match tree:
            case ast.If():
                yes, no = self.block(tree.body, after, context), self.block(tree.orelse, after, context)
                return self.test(tree.test, yes, no, context)
            case ast.While():
                return self.while_loop(tree, after, context)
            case ast.For() | ast.AsyncFor():
                return self.for_loop(tree, after, context)
            case ast.Try() | ast.TryStar():
                return self.try_statement(tree, after, context)
            case ast.With() | ast.AsyncWith():
                return self.with_items(tree.items, tree.body, after, context)
            case ast.Match():
                return self.match(tree, after, context)
            case ast.Return():
                return_node = self.node("return", tree, NO_NODE, context)
                # The value is computed before the finalizers run, and they may compute others.
                exit_node = context.leave(return_node)
                value = self.node("pick", tree, exit_node, context, extra=tree.value)
                return self.expression(tree.value, value, context)
            case ast.Raise():
                raised = self.node("raise", tree, NO_NODE, context)
                return self.expression(tree.exc, raised, context)
            case ast.Break():
                return context.leave(context.after_break, context.num_outer_finalizers)
            case ast.Continue():
                return context.leave(context.after_continue, context.num_outer_finalizers)
            case ast.Pass() | ast.Global() | ast.Nonlocal():
                return after
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return self.node("do", tree, after, context)
            case ast.Assert():
                return self.expression(tree.test, after, context)
            case _:
                return self.expressions(ast.iter_child_nodes(tree), self.node("do", tree, after, context), context)

    def test(self, tree: ast.expr, yes: int, no: int, context: _Context, *, negated: bool = False) -> int:
        """Add a branch. `not`, `and` and `or` become separate branches if a later operand has a call."""
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
            return self.test(tree.operand, no, yes, context, negated=not negated)
        if isinstance(tree, ast.BoolOp) and any(_has_call(value) for value in tree.values[1:]):
            for value in reversed(tree.values[1:]):
                entry = self.test(value, yes, no, context, negated=negated)
                yes, no = (entry, no) if isinstance(tree.op, ast.And) else (yes, entry)
            return self.test(tree.values[0], yes, no, context, negated=negated)
        return self.expression(tree, self.node("branch", tree, yes, context, other=no, extra=negated), context)

    def while_loop(self, tree: ast.While, after: int, context: _Context) -> int:
        head = self.node("join", tree, NO_NODE, context)
        test = tree.test
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
        self.graph.tests.add(id(test))
        inside = replace(context, after_break=after, after_continue=head, num_outer_finalizers=len(context.finalizers))
        body = self.block(tree.body, head, inside)
        self.graph.nodes[head].next = self.test(tree.test, body, self.block(tree.orelse, after, context), context)
        return head

    def for_loop(self, tree: ast.For | ast.AsyncFor, after: int, context: _Context) -> int:
        head = self.node("next", tree, NO_NODE, context, other=self.block(tree.orelse, after, context))
        inside = replace(context, after_break=after, after_continue=head, num_outer_finalizers=len(context.finalizers))
        self.graph.nodes[head].next = self.block(tree.body, head, inside)
        return self.expression(tree.iter, self.node("iter", tree, head, context), context)

    def comprehension(self, tree: Any, after: int, context: _Context) -> int:
        """Add a comprehension as loops that collect its items."""

        def loop(generators: Sequence[ast.comprehension], after: int) -> int:
            if not generators:
                collect = self.node("collect", tree, after, context)
                items = [tree.key, tree.value] if isinstance(tree, ast.DictComp) else [tree.elt]
                return self.expressions(items, collect, context)
            generator, *others = generators
            head = self.node("next", generator, NO_NODE, context, other=after)
            body = loop(others, head)
            for condition in reversed(generator.ifs):
                body = self.test(condition, body, head, context)
            self.graph.nodes[head].next = body
            return self.expression(generator.iter, self.node("iter", generator, head, context), context)

        return self.node("collect", tree, loop(tree.generators, after), context, extra="begin")

    def try_statement(self, tree: Any, after: int, context: _Context) -> int:
        inside = context
        if tree.finalbody:

            def finalizer(target: int) -> int:
                return self.block(tree.finalbody, target, context)

            reraise = self.node("reraise", tree, NO_NODE, context)
            inside = replace(context, error=finalizer(reraise), finalizers=(*context.finalizers, finalizer))
            after = finalizer(after)
        guarded = inside
        if tree.handlers:
            handlers = [(handler.type, handler.name, self.block(handler.body, after, inside)) for handler in tree.handlers]
            guarded = replace(inside, error=self.node("catch", tree, NO_NODE, inside, extra=handlers))
        return self.block(tree.body, self.block(tree.orelse, after, inside), guarded)

    def with_items(self, items: Sequence[ast.withitem], body: Sequence[ast.stmt], after: int, context: _Context) -> int:
        if not items:
            return self.block(body, after, context)
        item, *others = items
        position = ast.copy_location(ast.Pass(), item.context_expr)

        def finalizer(target: int) -> int:
            return self.node("exit", position, target, context, extra=item)

        reraise = self.node("reraise", position, NO_NODE, context)
        inside = replace(context, error=finalizer(reraise), finalizers=(*context.finalizers, finalizer))
        entered = self.with_items(others, body, finalizer(after), inside)
        return self.expression(item.context_expr, self.node("enter", position, entered, context, extra=item), context)

    def match(self, tree: ast.Match, after: int, context: _Context) -> int:
        entry = after
        for case in reversed(tree.cases):
            body = self.block(case.body, after, context)
            if isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None:
                entry = body
                continue
            test: ast.expr = ast.Name("?case", ast.Load())
            if isinstance(case.pattern, ast.MatchValue) and case.guard is None:
                test = ast.Compare(tree.subject, [ast.Eq()], [case.pattern.value])
            entry = self.node("branch", ast.copy_location(test, case.pattern), body, context, other=entry)
        return self.expression(tree.subject, entry, context)

    def expressions(self, trees: Any, after: int, context: _Context) -> int:
        for tree in reversed(list(trees)):
            after = self.expression(tree, after, context)
        return after

    def expression(self, tree: ast.AST | None, after: int, context: _Context) -> int:
        """Add the calls of an expression, in evaluation order."""
        match tree:
            case None | ast.Lambda():
                return after
            case ast.Call():
                call = self.node("call", tree, after, context)
                keyword_values = [keyword.value for keyword in tree.keywords]
                return self.expressions([tree.func, *tree.args, *keyword_values], call, context)
            case ast.IfExp() if _has_call(tree.body) or _has_call(tree.orelse):
                picks = [self.node("pick", tree, after, context, extra=value) for value in (tree.body, tree.orelse)]
                yes, no = self.expression(tree.body, picks[0], context), self.expression(tree.orelse, picks[1], context)
                return self.test(tree.test, yes, no, context)
            case ast.BoolOp() if any(_has_call(value) for value in tree.values[1:]):
                entry = self.expression(
                    tree.values[-1], self.node("pick", tree, after, context, extra=tree.values[-1]), context
                )
                for operand in reversed(tree.values[:-1]):
                    pick = self.node("pick", tree, after, context, extra=operand)
                    targets = (entry, pick) if isinstance(tree.op, ast.And) else (pick, entry)
                    branch = self.node("branch", operand, targets[0], context, other=targets[1])
                    entry = self.expression(operand, branch, context)
                return entry
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self.comprehension(tree, after, context) if _has_call(tree) else after
            case ast.Yield() | ast.YieldFrom():
                self.graph.is_generator = True
                return self.expression(tree.value, self.node("yield", tree, after, context), context)
            case _:
                return self.expressions(ast.iter_child_nodes(tree), after, context)


@functools.lru_cache(maxsize=65536)
def _has_call(tree: ast.AST) -> bool:
    return any(isinstance(node, (ast.Call, ast.Yield, ast.YieldFrom)) for node in ast.walk(tree))
