"""The base of every error that its reader can mend."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar, NamedTuple

_RECEIVED = re.compile(r"[.:;] Received(?: also)?: ")
_END_OF_VALUE = re.compile(r"\. (?=[A-Z])")
_FIELD = re.compile(r"--?[\w-]+|[A-Za-z_]\w*(?:\.\w+|\[\w+\])*")


class Setting(NamedTuple):
    """A way out of an error: a field of the spec is set to a value. Each command has its own option for it, or none."""

    words: str
    """Beginning of the sentence, e.g. `Or leave them out with`."""
    field: str
    """Dotted name."""
    value: object


def as_field(field: str, value: object) -> str | None:
    """Return a setting as a spec file has it."""
    return f"{field}={value}"


_typed_words: ContextVar[Callable[[str, object], str | None]] = ContextVar("_typed_words", default=as_field)


@contextmanager
def settings_typed(words: Callable[[str, object], str | None]) -> Generator[None]:
    """Let errors of this block say how a setting is typed.

    Args:
        words: returns what a user types to set (field, value). None: the running command cannot set it.
    """
    token = _typed_words.set(words)
    try:
        yield
    finally:
        _typed_words.reset(token)


def typed_setting(field: str, value: object) -> str | None:
    """Return what a user types to set a field. None: the running command cannot set it."""
    return _typed_words.get()(field, value)


class UserError(Exception):
    """An error of what a user gave. Its text has three parts: `what is wrong. Received: what. What to do.`

    `commands` end with `exit_code` and print the text. Tests and programs read the parts.

    Args:
        text: the text without the setting.
        setting: advice that is added as the last sentence where the running command can follow it.
    """

    exit_code: ClassVar[int] = 2
    setting: Setting | None = None

    def __init__(self, *text: object, setting: Setting | None = None) -> None:
        super().__init__(*text)
        self.setting = setting

    def __str__(self) -> str:
        text, setting = super().__str__(), self.setting
        typed = typed_setting(setting.field, setting.value) if setting is not None else None
        return text if setting is None or typed is None else f"{text} {setting.words} `{typed}`."

    @classmethod
    def kinds(cls) -> list[type[UserError]]:
        """Return this class and all that derive from it."""
        return [cls, *(kind for derived in cls.__subclasses__() for kind in derived.kinds())]

    @property
    def problem(self) -> str:
        """The part of the text that says what is wrong."""
        return _RECEIVED.split(str(self), maxsplit=1)[0]

    @property
    def field(self) -> str:
        """The field or option that the problem begins with, e.g. `global_batch_size` or `--epochs`, or its first word."""
        name = _FIELD.match(self.problem)
        return name.group() if name else ""

    @property
    def received(self) -> str | None:
        """The value that was received, as the text writes it. None if the text names none."""
        _, *rest = _RECEIVED.split(str(self), maxsplit=1)
        return _END_OF_VALUE.split(rest[0], maxsplit=1)[0].removesuffix(".") if rest else None

    @property
    def fix(self) -> str:
        """The part of the text that says what to do: all that follows the received value, or else the first sentence.

        It is empty if nothing follows.
        """
        *_, rest = _RECEIVED.split(str(self), maxsplit=1)
        _, *advice = _END_OF_VALUE.split(rest, maxsplit=1)
        return "".join(advice)
