"""Calls of code that is not read: what is known of their results, and what they may keep."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

from convtwins_hangs.concurrency import meanings
from convtwins_hangs.concurrency.program import last_name
from convtwins_hangs.concurrency.state import Keywords, SimulatedThread
from convtwins_hangs.concurrency.values import (
    NO_MARKS,
    Const,
    Lib,
    Marks,
    Method,
    SequenceValue,
    Unknown,
    Value,
    ValueMark,
    length,
    marks_of,
)

_MAX_SMALL_NUMBERS = 4096


def call(thread: SimulatedThread, callee: Value, values: Sequence[Value], keywords: Keywords) -> Value:
    """Call external code, and return its result. It may fail on one rank alone."""
    dotted = callee.dotted if isinstance(callee, Lib) else ""
    name = callee.name if isinstance(callee, Method) else dotted.rpartition(".")[2]
    if not (
        name in meanings.HARMLESS_BUILTINS or dotted.startswith(meanings.HARMLESS_MODULES) or name in meanings.HARMLESS_METHODS
    ):
        thread.execution.choose_to_raise(thread)
        thread.execution.escape([*values, *keywords.values()])
    owner = callee.receiver if isinstance(callee, Method) else callee
    marks = result_marks(name, owner, values, keywords)
    call_name = last_name(getattr(thread.frame.node.tree, "func", ast.Name("")))
    if meanings.has_buffers(dotted):
        marks |= {ValueMark.BUFFERS}
    if call_name in meanings.SMALL_RESULTS:
        marks -= {ValueMark.LARGE}
    elif call_name in meanings.LARGE_RESULTS and not _are_few(values):
        marks |= {ValueMark.LARGE}
    result = Unknown(marks=marks)
    if name in meanings.SAME_LENGTH_METHODS and isinstance(callee, Method):
        result.attributes["len()"] = length(owner)
    if dotted.startswith("torch.") and "ensor" in name:
        result.attributes["?of"] = SequenceValue(list(values))
    elif isinstance(callee, Unknown) and "?of" in callee.attributes:
        result.attributes["?of"] = callee.attributes["?of"]
    reads = name in meanings.ITEM_READERS and values and isinstance(callee, Method)
    return thread.execution.read_item(owner, values[0], result) if reads else result


def result_marks(name: str, receiver: Value, values: Sequence[Value], keywords: Keywords) -> Marks:
    """Return the marks of the result of an external call."""
    # A place is no content: what is loaded or moved to a rank's own device is the same everywhere.
    relevant_values = values[:1] if name.startswith("load") else [] if name in ("to", "cuda", "device") else values
    relevant_values = [
        *relevant_values,
        *(value for keyword, value in keywords.items() if keyword not in meanings.PLACEMENT_KEYWORDS),
    ]
    marks = NO_MARKS if name in meanings.SAME_RESULTS else marks_of([*relevant_values, receiver])
    if name in meanings.TYPE_TESTS:
        return marks - {ValueMark.DATA_DEPENDENT}
    if ValueMark.LOCAL in marks and meanings.may_read_data(name):
        marks |= {ValueMark.DATA_DEPENDENT_LENGTH}
    if meanings.may_exchange(name):
        return marks - {ValueMark.LOCAL, ValueMark.DATA_DEPENDENT} | {ValueMark.COLLECTIVE_RESULT}
    if meanings.may_combine(name):
        return marks - {ValueMark.DATA_DEPENDENT} | {ValueMark.COLLECTIVE_RESULT}
    is_own_check = name in meanings.FINITENESS_CHECKS and not marks & {ValueMark.LOCAL, ValueMark.COLLECTIVE_RESULT}
    return marks | {ValueMark.DATA_DEPENDENT} if is_own_check else marks


def _are_few(values: Sequence[Value]) -> bool:
    """Return whether the sizes, or the first argument's items, are known and their product is small."""
    sizes = values[0].items if values and isinstance(values[0], SequenceValue) else values
    constants = [size.value for size in sizes if isinstance(size, Const) and isinstance(size.value, (int, float))]
    return bool(sizes) and len(constants) == len(sizes) and math.prod(constants) < _MAX_SMALL_NUMBERS
