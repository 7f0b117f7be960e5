"""Words for what processes do, which serve for one and for several."""

from __future__ import annotations

from typing import Self

_SINGULARS = {"be": "is", "have": "has", "do": "does", "go": "goes", "": ""}
_PLURALS = {"be": "are"}


class Phrase(str):
    """The words for what one process does, e.g. `waits in all_reduce`. `for_count` has the same for several.

    Attributes:
        plural: the words for several processes.
    """

    plural: str

    def __new__(cls, verb: str, rest: str = "", rest_of_several: str | None = None) -> Self:
        """Make a phrase.

        Args:
            verb: the infinitive, e.g. `wait`. Empty: an empty phrase.
            rest: the words after the verb, for one process.
            rest_of_several: those for several processes. None: the same.
        """
        phrase = super().__new__(cls, f"{_SINGULARS.get(verb, f'{verb}s')} {rest}".strip())
        phrase.plural = f"{_PLURALS.get(verb, verb)} {rest if rest_of_several is None else rest_of_several}".strip()
        return phrase

    def for_count(self, count: int) -> str:
        """Return the words for so many processes."""
        return str(self) if count == 1 else self.plural

    def followed_by(self, text: str) -> Phrase:
        """Return this phrase with a text behind it, which is the same for one and for several."""
        longer = str.__new__(Phrase, f"{self}{text}")
        longer.plural = f"{self.plural}{text}"
        return longer
