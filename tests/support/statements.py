"""What the report of a comparison says, in words, and what modules write as statements."""

import ast
from collections.abc import Collection, Iterable
from pathlib import Path

from compare.reporting import comparison_report
from compare.results.store import StoredComparison


def in_words(stored: StoredComparison) -> dict[str, list[str]]:
    """The sentences of a comparison, by subject."""
    judged = comparison_report.judge(stored)
    return {subject: judged.in_words(statements) for subject, statements in judged.findings.statements.items()}


def texts(modules: Iterable[Path]) -> set[str]:
    """Every text in these modules."""
    return {
        node.value
        for path in modules
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def kinds(modules: Iterable[Path], of: str) -> set[str]:
    """Kinds that these modules write as `Statement(kind=...)`, or as another call with this name."""
    calls = [
        node for path in modules for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
    ]
    return {
        part.value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == of
        for keyword in call.keywords
        if keyword.arg == "kind"
        for part in ast.walk(keyword.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.islower() and " " not in part.value
    }


def check_words(maker: str | None, templates: Collection[str]) -> None:
    """Check that each kind of statement that a module makes has words, and that it makes each kind with words.

    Args:
        maker: file of the module.
        templates: kinds that have words.
    """
    assert maker is not None
    assert kinds([Path(maker)], "Statement") <= {*templates} <= texts([Path(maker)])
