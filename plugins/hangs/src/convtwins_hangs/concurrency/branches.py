"""Branches of an abstract execution: the path that a thread takes, and what is known where the paths of ranks meet again."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence

from convtwins_hangs.concurrency import external_code
from convtwins_hangs.concurrency.control_flow import GraphNode
from convtwins_hangs.concurrency.program import assigned_targets, bound_names, last_name, short_source, stored_names
from convtwins_hangs.concurrency.state import USUAL_ITERATIONS, CallFrame, NumberTable, SimulatedThread
from convtwins_hangs.concurrency.values import (
    NO_MARKS,
    RANK_DEPENDENT,
    Const,
    Function,
    Instance,
    Marks,
    SequenceValue,
    SyncObject,
    Unknown,
    Value,
    ValueMark,
    marks_of,
    reachable,
    truth,
)


def take(thread: SimulatedThread, frame: CallFrame, node: GraphNode) -> Value | None:
    """Choose a path of a branch. Return the function's value if both only lead to its end, else None."""
    value = thread.execution.evaluate(thread, node.tree, frame)
    is_true = truth(value)
    is_loop = id(node.tree) in frame.graph.tests
    assumption = None if is_loop else thread.assumed_truths.get(id(value))
    if is_true is None and assumption is not None:
        is_true = assumption[1]
    is_local, is_negated = ValueMark.LOCAL in value.marks, bool(node.extra)
    depends_on_data = ValueMark.DATA_DEPENDENT in value.marks and not is_local
    if is_loop:
        frame.in_guessed_loop = is_true is None
        for lock, _, _ in thread.held_locks if is_true is None else []:
            thread.execution.unknown_loop_tests[lock].add(id(node.tree))
    if is_true is None:
        is_quiet, join, nodes = thread.execution.program.region(frame.graph, frame.current_node)
        if is_quiet and thread.execution.prune:
            return _skip(thread, frame, nodes, join, marks_of([value]))
        is_true = _assume(thread, frame, node, value, is_loop=is_loop)
        test = short_source(node.tree, is_negated)
        if not is_local:
            step = thread.record(f"assumes {'true' if is_true != is_negated else 'false'}: {test}")
            if depends_on_data:
                thread.diverge_at(step)
        thread.execution.record_assumption(thread, test, is_same=not is_local and not depends_on_data)
    if is_local:
        is_quiet, _, _ = thread.execution.program.region(frame.graph, frame.current_node)
        verb = "takes" if is_true != is_negated else "does not take"
        step = thread.record(f"{verb}: {short_source(node.tree, is_negated)}")
        if not is_quiet:
            thread.diverge_at(step)
    frame.next_node = node.next if is_true else node.next_if_false
    if is_local:
        _watch_numbers(thread, frame)
    return None


def _assume(thread: SimulatedThread, frame: CallFrame, node: GraphNode, value: Value, *, is_loop: bool) -> bool:
    """Assume whether an unknown test is true. The same value is not asked again."""
    is_local = ValueMark.LOCAL in value.marks
    if is_loop and frame.visits[frame.current_node] > USUAL_ITERATIONS:
        is_true = bool(node.extra)
        thread.execution.record_truncation(frame, frame.current_node, node.line, None, USUAL_ITERATIONS)
    else:
        is_usually_true = (
            not node.extra if is_loop else thread.execution.program.is_usually_true(frame.graph, frame.current_node)
        )
        divergence = None
        if ValueMark.DATA_DEPENDENT in value.marks and not is_local:
            divergence = thread.current_step(short_source(node.tree, bool(node.extra)))
        is_true = is_usually_true != bool(thread.execution.choose(thread, 2, "branch", local=is_local, divergence=divergence))
    if isinstance(value, Unknown):
        thread.assumed_truths[id(value)] = value, is_true
    return is_true


def _watch_numbers(thread: SimulatedThread, frame: CallFrame) -> None:
    """Record the numbers that are set on one path of a rank-dependent branch."""
    _, join, nodes = thread.execution.program.region(frame.graph, frame.current_node)
    if join is None or join == len(frame.graph.nodes):
        return
    assigned, old_numbers = frame.divergences.setdefault(join, ({}, _reachable_numbers(thread, frame)))
    set_to_number, counted = set(_number_targets(nodes)), set(_number_targets(nodes, only_counted=True))
    for name in stored_names(nodes):
        assigned[id(frame.names), name] = frame.names, (None if name in set_to_number else frame.names.get(name))
    for attribute in _stored_attributes(nodes):
        owner = thread.execution.evaluate(thread, attribute.value, frame)
        if isinstance(owner, Instance):
            old_value = None if f".{attribute.attr}" in set_to_number else owner.attributes.get(attribute.attr)
            assigned[id(owner.attributes), attribute.attr] = owner.attributes, old_value
    for key in assigned.keys() & old_numbers.keys():
        if not counted & {key[1], f".{key[1]}"}:
            old_numbers.pop(key)


def mark_divergent_numbers(thread: SimulatedThread, assigned: NumberTable, old_numbers: NumberTable) -> None:
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
            holder[name] = Const(value.value, marks=value.marks | RANK_DEPENDENT)
    for (_, name), (holder, old_value) in old_numbers.items():
        value = holder.get(name)
        if isinstance(value, Const) and isinstance(old_value, Const) and _is_number(value) and value.value != old_value.value:
            marks = value.marks | RANK_DEPENDENT
            holder[name] = Unknown(marks=marks) if is_truncated else Const(value.value, marks=marks)


def _skip(
    thread: SimulatedThread, frame: CallFrame, nodes: Sequence[GraphNode], join: int | None, marks: Marks
) -> Value | None:
    """Continue where all paths of a branch meet. Variables assigned on them become unknown.

    Return the function's value if they meet at its end, else None.
    """
    if join == len(frame.graph.nodes):
        returned = [_approximate(thread, frame, pick.extra) for pick in nodes if pick.kind == "pick"]
        return frame.leave(Unknown(marks=marks_of(returned) | marks))
    assert join is not None
    assignments = [node.tree for node in nodes if node.kind == "do" and assigned_targets(node.tree)]
    attribute_marks = marks
    for _ in range(USUAL_ITERATIONS):  # what is assigned may be used by the next, in whichever order they stand here
        for assignment in assignments:
            value_marks = marks_of([_approximate(thread, frame, assignment.value)]) | marks
            if any(isinstance(target, ast.Attribute) for target in assigned_targets(assignment)):
                attribute_marks |= value_marks
            for name in bound_names(assignment):
                _forget(frame.names, name, value_marks)
    for attribute in _stored_attributes(nodes):
        owner = thread.execution.evaluate(thread, attribute.value, frame)
        if isinstance(owner, Instance):
            _forget(owner.attributes, attribute.attr, attribute_marks)
    uneven = {ValueMark.DATA_DEPENDENT_LENGTH} if ValueMark.DATA_DEPENDENT in marks else NO_MARKS
    for node in nodes:
        collected = frame.results.get(id(node.tree)) if node.kind == "collect" else None
        if isinstance(collected, SequenceValue):
            collected.exact = False
            collected.marks |= marks | ({ValueMark.UNEVEN} if ValueMark.LOCAL in marks else uneven)
    for name in stored_names(nodes).difference(*map(bound_names, assignments)):
        _forget(frame.names, name, marks)
    for node in nodes:
        if node.kind == "pick" and not isinstance(node.tree, ast.Return):
            picked = _approximate(thread, frame, node.extra)
            frame.results[id(node.tree)] = Unknown(marks=marks_of([picked]) | marks)
    frame.next_node = join
    return None


def _forget(names: dict[str, Value], name: str, marks: Marks) -> None:
    """Make a variable unknown. An object stays, since such are mostly replaced by their like."""
    old_value = names.get(name)
    if not isinstance(old_value, (SyncObject, Instance, Function)):
        names[name] = Unknown(marks=marks_of([old_value]) | marks)


def _approximate(thread: SimulatedThread, frame: CallFrame, tree: ast.AST | None) -> Value:
    """Return the value of an expression without executing its calls: results inherit the marks of the arguments."""
    if tree is None or not _has_call(tree):
        return thread.execution.evaluate(thread, tree, frame)

    def approximate(child: ast.AST) -> Value:
        return _approximate(thread, frame, child)

    children = [approximate(child) for child in ast.iter_child_nodes(tree) if isinstance(child, ast.expr)]
    if not isinstance(tree, ast.Call):
        return Unknown(marks=marks_of(children))
    name = last_name(tree.func)
    if (named := thread.execution.value_by_name(thread, name)) is not None:
        return named
    callee = approximate(tree.func.value if isinstance(tree.func, ast.Attribute) else tree.func)
    values = [approximate(argument) for argument in tree.args]
    keywords = {keyword.arg: approximate(keyword.value) for keyword in tree.keywords if keyword.arg}
    return Unknown(marks=external_code.result_marks(name, callee, values, keywords))


@functools.lru_cache(maxsize=8192)
def _has_call(tree: ast.AST) -> bool:
    return any(isinstance(child, ast.Call) for child in ast.walk(tree))


def _is_number(value: Value | None) -> bool:
    return isinstance(value, Const) and isinstance(value.value, (int, float))


def _number_targets(nodes: Sequence[GraphNode], *, only_counted: bool = False) -> Iterator[str]:
    """Yield the variables and .attributes that the nodes set to a literal number or count.

    Args:
        only_counted: whether to yield counted ones only.
    """
    for node in nodes:
        tree = node.tree
        if node.kind != "do" or not (targets := assigned_targets(tree)):
            continue
        is_literal = isinstance(tree.value, ast.Constant) and isinstance(tree.value.value, (int, float))
        if isinstance(tree, ast.AugAssign) or (is_literal and not only_counted):
            yield from bound_names(tree)
            yield from (f".{target.attr}" for target in targets if isinstance(target, ast.Attribute))


def _stored_attributes(nodes: Sequence[GraphNode]) -> Iterator[ast.Attribute]:
    """Yield the attributes of named objects that any of the nodes assigns."""
    for node in nodes:
        for target in assigned_targets(node.tree) if node.kind == "do" else []:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                yield target


def _reachable_numbers(thread: SimulatedThread, frame: CallFrame) -> NumberTable:
    """Return every reachable number except truth values, as a `NumberTable`."""
    holders: list[dict[str, Value]] = list(thread.os_process.names.values())
    level: CallFrame | None = frame
    while level is not None:
        holders.append(level.names)
        level = level.parent
    values = reachable([value for namespace in holders for value in namespace.values()])
    holders += [value.attributes for value in values if isinstance(value, Instance)]
    return {
        (id(namespace), name): (namespace, value)
        for namespace in holders
        for name, value in namespace.items()
        if isinstance(value, Const) and _is_number(value) and not isinstance(value.value, bool)
    }
