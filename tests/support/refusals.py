"""Refusals, held to their parts and not to their sentences."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator
from contextlib import contextmanager

import pytest

from common.errors import UserError
from tests.support.command_line import Ended


class Caught:
    """The error that a block of `refused` raised. It is set when the block has ended."""

    error: UserError


@contextmanager
def refused(
    kind: type[UserError] = UserError,
    *,
    field: str | None = None,
    received: object = None,
    fix: object = (),
    names: object = (),
) -> Generator[Caught]:
    """Assert that the block raises an error of a kind, with these parts.

    Args:
        kind: the class of the error.
        field: the field, option or file that the problem names as a whole word; None: any.
        received: the value that was received, as the text writes it or as an object; None: any, or none.
        fix: one or several values that the advice names as whole words; none: any advice.
        names: values that stand anywhere in the text as whole words, e.g. a file and what is wrong with it.
    """
    caught = Caught()
    with pytest.raises(kind) as information:
        yield caught
    caught.error = information.value
    check(caught.error, field=field, received=received, fix=fix, names=names)


def check(
    error: UserError,
    *,
    field: str | None = None,
    received: object = None,
    fix: object = (),
    names: object = (),
) -> None:
    """Assert the parts of an error, as `refused` does."""
    text = str(error)
    assert field is None or _names(error.problem, field), f"the problem does not name {field}: {text}"
    if received is not None:
        assert error.received is not None, f"no value is said to be received: {text}"
        assert _names(error.received, str(received)), f"not {received} is said to be received: {text}"
    for value in _values(fix):
        assert _names(error.fix, str(value)), f"the advice does not name {value}: {text}"
    for value in _values(names):
        assert _names(text, str(value)), f"{value} is not named: {text}"


def check_ended(ended: Ended, *, exit_code: int = 2, **parts: object) -> None:
    """Assert that a command ended with a refusal of these parts, which names no option that the command lacks."""
    assert ended.exit_code != 0, f"it was not refused: exit code 0\n{ended.output}"
    assert ended.exit_code == exit_code, f"exit code {ended.exit_code}\n{ended.output}"
    check(ended.refusal, **parts)  # type: ignore[arg-type]
    assert not ended.strange_options, f"the command has no option {', '.join(ended.strange_options)}: {ended.refusal}"


def _values(value: object) -> Collection[object]:
    """Return the values of an argument that takes one or several. A string is one."""
    return value if isinstance(value, Collection) and not isinstance(value, str | bytes) else [value]


def _names(text: str, word: str) -> bool:
    """Whether a text has a word as a whole: `1` is none of 1.5, -1 and 10, and `--no` none of --no-proof.

    A part of a dotted field counts: `limit` names data.limit.
    """
    before = r"(?<!\d\.)" if word[:1].isdigit() else ""
    after = r"(?!\.\d)" if word[-1:].isdigit() else ""
    return re.search(rf"(?<![\w-]){before}{re.escape(word)}(?![\w-]){after}", text) is not None
