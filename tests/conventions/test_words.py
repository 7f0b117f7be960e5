"""The product uses the field's words. Names are nouns, docstrings whole sentences, and no class name stands twice."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGES = ("common", "compare", "convtwins", "pytorch_impl", "tensorflow_impl", "plugins")
TWINS = ("pytorch_impl", "tensorflow_impl", "plugins/jax_twin", "plugins/keras_twin")
"""They mirror each other, so their classes share names."""

HOUSE_WORDS = frozenset(
    (
        *("anew", "apart", "asked", "departs", "each", "found", "held", "kept", "lost", "made", "meet", "of", "own", "room"),
        *("said", "seen", "shown", "told", "wanted", "Side", "Thing", "Ways"),
    )
)
"""Ordinary words that had a meaning of the house. None names a variable, parameter, field, function or class."""
STORED = {
    ("compare/reporting/tables.py", "apart"): "a field of tables that studies store",
    ("common/matching/pair.py", "Side"): "files that `match --write` made import it",
    ("compare/tools/selftest/selftest.py", "found"): "a column of selftest.json",
    ("compare/results/store.py", "shown"): "a field of compare.json",
    ("compare/tools/regression/records.py", "of"): "a field of regress.json",
    ("compare/tools/papers/schema.py", "said"): "a field of the papers' YAML",
    ("compare/tools/papers/schema.py", "departs"): "a field of the papers' YAML",
}
"""House words that stay, with the reason."""
SAME_CLASSES = {"ParameterServer", "Pipeline"}
"""A group of the spec's fields, whose name the schema shows, and the trainer of that mode."""
OPENINGS = ("Of ", "What ", "That ", "Those ", "The same", "Its ", "By ")
"""A docstring that begins so is no whole sentence, or answers a question that nobody asked."""
CLASS_AS_VERB = re.compile(r"[A-Z][a-z]+[A-Z]\w* (a|an|the|all|each|what)\b")
"""A docstring that begins so has a class's name where its verb was: renaming the class changed it."""


def files(package: str) -> Iterator[Path]:
    """Files that are shipped. Research is not, as tests are not."""
    return (path for path in sorted((PROJECT / package).rglob("*.py")) if not {"build", "tests", "research"} & set(path.parts))


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each name that a module binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str()) | ast.ExceptHandler(name=str()):
                yield (node.asname if isinstance(node, ast.alias) else node.name) or "", node.lineno
            case _:
                pass


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each docstring of a module, class, function, field or constant, with its line."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield text, statement.lineno
                case _:
                    pass


def house_words(tree: ast.AST) -> list[tuple[str, int]]:
    return [(name, line) for name, line in bound_names(tree) if name.lstrip("_") in HOUSE_WORDS]


def half_sentences(tree: ast.AST) -> list[tuple[str, int]]:
    return [
        (text.splitlines()[0], line)
        for text, line in docstrings(tree)
        if text.startswith(OPENINGS) or CLASS_AS_VERB.match(text)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_a_word_of_the_house(package: str) -> None:
    assert not [
        f"{path.relative_to(PROJECT)}:{line}: {name}"
        for path in files(package)
        for name, line in house_words(ast.parse(path.read_text(encoding="utf-8")))
        if (str(path.relative_to(PROJECT)), name) not in STORED
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_docstring_can_be_read_alone(package: str) -> None:
    assert not [
        f"{path.relative_to(PROJECT)}:{line}: {text}"
        for path in files(package)
        for text, line in half_sentences(ast.parse(path.read_text(encoding="utf-8")))
    ]


RAISED_ANYWHERE = {
    "UserError", "SpecError", "PlainValuesError", "WeightsError", "DataRefused", "BadImageError", "RecordError", "ResultError",
    "CheckpointError", "LaunchError", "UnfitError", "FolderError", "RevisionError", "Interrupted",
}  # fmt: skip


def repeated_rules(tree: ast.AST) -> list[tuple[str, int]]:
    """Lines of `Raises:` that name nothing but errors that any function may raise."""
    lines = [(line.strip(), number) for text, number in docstrings(tree) if "Raises:" in text for line in text.splitlines()]
    heads = [(line.partition(":")[0].split(", "), line, number) for line, number in lines if ":" in line]
    return [(line, number) for names, line, number in heads if set(names) <= RAISED_ANYWHERE]


@pytest.mark.parametrize("package", PACKAGES)
def test_what_any_function_may_raise_stands_in_no_docstring(package: str) -> None:
    assert not [
        f"{path.relative_to(PROJECT)}:{line}: {text}"
        for path in files(package)
        for text, line in repeated_rules(ast.parse(path.read_text(encoding="utf-8")))
    ]


def test_a_repeated_rule_is_found_and_other_errors_are_not() -> None:
    text = '"""Read.\n\nRaises:\n    SpecError, FolderError: it cannot.\n    OSError: neither.\n"""'
    assert repeated_rules(ast.parse(text)) == [("SpecError, FolderError: it cannot.", 1)]


def test_no_class_name_stands_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in files(package):
            name = str(path.relative_to(PROJECT))
            where = "twins" if name.startswith(TWINS) else name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and where not in places[node.name]:
                    places[node.name].append(where)
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert twice.keys() == SAME_CLASSES


def test_planted_words_are_found() -> None:
    tree = ast.parse(
        'def of(each, rows):\n    """Of a row."""\n    self.made = [row for row in rows]\n    with x as _found: pass\n'
    )
    assert [name for name, _ in house_words(tree)] == ["of", "each", "made", "_found"]
    assert [text for text, _ in half_sentences(tree)] == ["Of a row."]
    renamed = ast.parse('def mark():\n    """ValueMark a value as equal."""')
    assert [text for text, _ in half_sentences(renamed)] == ["ValueMark a value as equal."]
