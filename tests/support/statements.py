"""What the report of a comparison says, in words."""

from compare.reporting import comparison_report
from compare.results.store import StoredComparison


def in_words(stored: StoredComparison) -> dict[str, list[str]]:
    """The sentences of a comparison, by subject."""
    judged = comparison_report.judge(stored)
    return {subject: judged.in_words(statements) for subject, statements in judged.findings.statements.items()}
