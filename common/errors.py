"""The base of every error that its reader can mend."""

from __future__ import annotations

import re
from typing import ClassVar

_RECEIVED = re.compile(r"[.:;] Received(?: also)?: ")
_END_OF_VALUE = re.compile(r"\. (?=[A-Z])")
_FIELD = re.compile(r"--?[\w-]+|[A-Za-z_]\w*(?:\.\w+|\[\w+\])*")


class UserError(Exception):
    """An error of what a user gave. Its text has three parts: `what is wrong. Received: what. What to do.`

    `commands` end with `exit_code` and print the text. Tests and programs read the parts.
    """

    exit_code: ClassVar[int] = 2

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
