"""Nobody compares the name of a parallel mode: code asks for a trait of `common.spec.Mode` instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PACKAGES = ("common", "compare", "convtwins", "pytorch_impl", "tensorflow_impl", "plugins")
REGISTRY = PROJECT / "common" / "spec" / "modes.py"
AFFIXES = {"startswith", "endswith", "removeprefix", "removesuffix"}


def registered_names() -> set[str]:
    """The names and variants of all records in the registry."""
    keywords = (node for node in ast.walk(ast.parse(REGISTRY.read_text())) if isinstance(node, ast.keyword))
    return {
        keyword.value.value
        for keyword in keywords
        if keyword.arg in ("name", "variant")
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
    }


NAMES = registered_names()


def literals(node: ast.AST) -> Iterator[str]:
    """The strings of a literal, of a tuple, list or set of them, or of a pattern."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            for part in parts:
                yield from literals(part)
        case ast.MatchValue(value=value):
            yield from literals(value)
        case ast.MatchOr(patterns=parts) | ast.MatchSequence(patterns=parts):
            for part in parts:
                yield from literals(part)
        case _:
            pass


def compared_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name of a mode) of each comparison with a literal."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare():
                operands, line = [node.left, *node.comparators], node.lineno
            case ast.match_case():
                operands, line = [node.pattern], node.pattern.lineno
            case ast.Call(func=ast.Attribute(attr=method)) if method in AFFIXES:
                operands, line = node.args, node.lineno
            case _:
                continue
        for operand in operands:
            yield from ((line, text) for text in literals(operand) if text in NAMES)


def test_the_names_are_those_of_the_registry() -> None:
    assert {"serial", "hybrid", "hybrid_tensor", "pipeline_async", "model_averaging"} < NAMES


@pytest.mark.parametrize("package", PACKAGES)
def test_nobody_compares_the_name_of_a_mode(package: str) -> None:
    faults = [
        f"{path.relative_to(PROJECT)}:{line}: {name}"
        for path in sorted((PROJECT / package).rglob("*.py"))
        if not {"build", "tests"} & set(path.parts)
        for line, name in compared_names(ast.parse(path.read_text()))
    ]
    assert not faults, "Ask for a trait of common.spec.Mode instead."


@pytest.mark.parametrize(
    "code",
    [
        'run.mode == "serial"',
        '"serial" != run.mode',
        'run.variant in ("pipeline", "pipeline_1f1b")',
        '"pipeline" in run.variant',
        '(run.mode, run.cores) == ("serial", 1)',
        'modes == ["serial"]',
        'mode.startswith("parameter_server")',
        'match run.mode:\n    case "serial" | "hybrid":\n        pass',
    ],
)
def test_a_comparison_is_seen(code: str) -> None:
    assert list(compared_names(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ['spec.with_variant(values, "serial", 1)', 'run.traits.exchange == "ring"', '{"serial": Serial}']
)
def test_a_value_is_no_comparison(code: str) -> None:
    assert not list(compared_names(ast.parse(code)))
