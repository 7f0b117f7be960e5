"""Statements: the facts that a report says in words. `statement_words` has the words, and nothing else reads a sentence."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from common.frozen import Frozen

Level = Literal["info", "finding", "caution", "trouble"]
"""`finding` answers a question of the report. `caution` limits what figures mean. `trouble` changes or takes away an answer."""


class Advice(Frozen):
    """A thing that a user can do about a statement."""

    kind: str
    """Key of `statement_words.ADVICE`."""
    options: tuple[str, ...] = ()
    """Words behind the command that resumes the comparison, or those of another command, if that is the advice."""


class Statement(Frozen):
    """One fact about a comparison."""

    kind: str
    """Key of `statement_words.TEMPLATES`, or of a tool's own templates. Programs that read the JSON choose by it."""
    level: Level
    rows: tuple[str, ...] = ()
    """Ids of the rows that it is about. Empty: the whole comparison."""
    values: dict[str, JsonValue] = {}
    """Figures and names that its words contain."""
    advice: Advice | None = None
