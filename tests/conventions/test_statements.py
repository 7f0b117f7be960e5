"""Sentences are made last. Nothing in what judges and reports reads one, or patches it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

PROJECT = Path(__file__).parents[2]
READ_BY = frozenset(
    ["startswith", "endswith", "removeprefix", "removesuffix", "replace", "partition", "rpartition", "split", "find", "index"]
)
"""Methods that read or change a text."""
REASONS = {
    ("compare/tools/data/data_report.py", "startswith"): "indented lines of an error",
    ("compare/tools/data/data_report.py", "removesuffix"): "lines of an error",
    ("compare/tools/regression/regress_screen.py", "partition"): "shortens a line between sentences",
    ("compare/reporting/latex.py", "replace"): "typesets a cell's interval",
    ("compare/reporting/latex.py", "split"): "breaks a cell between words",
    ("compare/reporting/comparison_screen.py", "removesuffix"): "the name of a processor",
}
"""(file, method): why a text with a space is read there."""


def sources() -> Iterator[Path]:
    """Files that judge or report."""
    compare = PROJECT / "compare"
    tools = chain.from_iterable(
        compare.rglob(f"*_{kind}.py") for kind in ("report", "screen", "sentences", "statements", "words")
    )
    return iter(sorted({*(compare / "judgement").glob("*.py"), *(compare / "reporting").glob("*.py"), *tools}))


def constants(trees: dict[Path, ast.Module]) -> set[str]:
    """Names of the constants whose text has a space, in any of these modules."""
    return {
        target.id
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Dict | ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.lstrip("_").isupper() and has_words(node.value, set())
    }


def has_words(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression has a text of several words, or a constant that has one."""
    parts = list(ast.walk(node))
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return any(" " in text for text in texts) or any(
        part.id in names if isinstance(part, ast.Name) else part.attr in names
        for part in parts
        if isinstance(part, ast.Name | ast.Attribute)
    )


def read_texts(tree: ast.AST, names: set[str]) -> list[tuple[str, int]]:
    """(method or `in`, line) of each place that reads a text of several words."""
    places: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method), args=[first, *_]) if method in READ_BY and has_words(first, names):
                places.append((method, node.lineno))
            case ast.Compare(left=ast.Constant(value=str() as text), ops=[ast.In() | ast.NotIn()]) if (
                " " in text or text.isupper()
            ):
                places.append(("in", node.lineno))
            case _:
                pass
    return places


def test_no_sentence_is_read_or_patched() -> None:
    modules = [path for package in ("common", "compare") for path in (PROJECT / package).rglob("*.py")]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in modules}
    names = constants(trees)
    places = {(str(path.relative_to(PROJECT)), how): line for path in sources() for how, line in read_texts(trees[path], names)}
    assert {place: line for place, line in places.items() if place not in REASONS} == {}
    assert not REASONS.keys() - places.keys(), "these read no text any more"


def test_planted_readers_of_sentences_are_found() -> None:
    tree = ast.parse(
        'A = "No finding: "\n'
        'x.startswith("All with ")\n'
        'x.replace(A, "b")\n'
        'x.partition(": ")\n'
        '": not known" in x\n'
        '"NOT" in x\n'
        'x.startswith(f"{y}: no")\n'
        'x.startswith("epoch_")\n'
        '"proof" in tables\n'
    )
    assert [how for how, _ in read_texts(tree, constants({Path("a"): tree}))] == [
        *("startswith", "replace", "partition", "in", "in", "startswith")
    ]


def test_the_files_that_judge_and_report_are_read() -> None:
    assert {"cautions.py", "comparison_screen.py", "regress_report.py"} <= {path.name for path in sources()}
