"""Control-flow graphs: every way through a function, and where ways meet."""

from __future__ import annotations

import ast

import pytest

from convtwins_hangs.concurrency.control_flow import NO_NODE, Graph, GraphNode, body_graph


def graph(text: str) -> Graph:
    return body_graph(ast.parse(text).body, "test")


def calls(found: Graph, choices: str) -> str:
    """The functions that are called on one way: `y` and `n` answer the branches in turn, `!` raises in a call."""
    place, said, waiting = found.entry, list[str](), list(choices)
    while place != NO_NODE:
        node = found.nodes[place]
        place = node.next
        if node.kind == "call":
            said.append(ast.unparse(node.tree.func))
            if waiting[:1] == ["!"]:
                waiting.pop(0)
                place = node.error
        elif node.kind in ("branch", "next") and waiting.pop(0) == "n":
            place = node.next_if_false
        elif node.kind == "catch":
            place = node.extra[0][2]
        elif node.kind in ("reraise", "raise"):
            place = node.error
        elif node.kind == "exit":
            said.append("exit")
    return " ".join(said)


@pytest.mark.parametrize(
    ("text", "choices", "expected"),
    [
        ("f(g())", "", "g f"),
        ("if a:\n    f()\nelse:\n    g()\nh()", "y", "f h"),
        ("if a:\n    f()\nelse:\n    g()\nh()", "n", "g h"),
        ("if a and f():\n    g()", "n", ""),
        ("if a and f():\n    g()", "yy", "f g"),
        ("if not (a or f()):\n    g()", "nn", "f g"),
        ("x = f() if a else g()", "n", "g"),
        ("x = a or f()", "n", "f"),
        ("while f():\n    if g():\n        continue\n    h()\nk()", "yyyn" + "n", "f g f g h f k"),
        ("for x in f():\n    if g():\n        break\nelse:\n    h()\nk()", "yy", "f g k"),
        ("for x in f():\n    if g():\n        break\nelse:\n    h()\nk()", "n", "f h k"),
        ("try:\n    f()\nfinally:\n    g()\nh()", "", "f g h"),
        ("try:\n    f()\nfinally:\n    g()\nh()", "!", "f g"),
        ("try:\n    f()\nexcept E:\n    g()\nelse:\n    h()\nk()", "!", "f g k"),
        ("try:\n    f()\nexcept E:\n    g()\nelse:\n    h()\nk()", "", "f h k"),
        ("for x in a:\n    try:\n        break\n    finally:\n        f()\ng()", "y", "f g"),
        ("with f():\n    g()", "!" , "f"),
        ("with f() as x, g():\n    h()\nk()", "", "f g h exit exit k"),
        ("x = [f(y) for y in g() if h(y)]", "yyynn", "g h f h"),
        ("match f():\n    case 1:\n        g()\n    case _:\n        h()", "n", "f h"),
    ],
)  # fmt: skip
def test_every_way_calls_what_python_calls(text: str, choices: str, expected: str) -> None:
    assert calls(graph(text), choices) == expected


def test_an_exception_in_the_body_of_a_with_leaves_it() -> None:
    found = graph("with f():\n    g()")
    (inner,) = [node for node in found.nodes if node.kind == "call" and ast.unparse(node.tree) == "g()"]
    assert found.nodes[inner.error].kind == "exit" and found.nodes[found.nodes[inner.error].next].kind == "reraise"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if a:\n    f()\nh()", "h()"),
        ("if a:\n    f()\nelif b:\n    g()\nh()", "h()"),
        ("if a:\n    raise E\nh()", "h()"),
        ("for x in a:\n    f()\nh()", "h()"),
        ("if a:\n    while True:\n        f()\nh()", "h()"),
    ],
)
def test_ways_meet_where_the_code_says(text: str, expected: str) -> None:
    found = graph(text)
    place = next(place for place, node in enumerate(found.nodes) if node.kind in ("branch", "next") and _first(found, place))
    assert ast.unparse(found.nodes[found.post_dominators[place]].tree) == expected


def _first(found: Graph, place: int) -> bool:
    """Whether this is the outermost branch: the entry, or what it leads to without another one."""
    node: GraphNode = found.nodes[found.entry]
    while node.kind not in ("branch", "next"):
        node = found.nodes[node.next]
    return node is found.nodes[place]


def test_ways_that_end_apart_meet_at_the_end() -> None:
    found = graph("def f():\n    if a:\n        return 1\n    return 2")
    inner = body_graph(found.nodes[found.entry].tree.body, "f")
    (branch,) = [place for place, node in enumerate(inner.nodes) if node.kind == "branch"]
    assert inner.post_dominators[branch] == len(inner.nodes)
