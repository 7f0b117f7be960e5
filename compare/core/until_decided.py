"""`--until-decided`: repeats are added until every question has an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.frozen import Frozen
from common.spec import SpecError
from compare.core.option_parsing import fraction
from compare.core.statistics import VERDICT_PAIRS

FIELDS = ("until_decided", "most_repeats", "smallest_effect")


class UntilDecided(Frozen):
    """When to stop adding repeats."""

    most_repeats: int = 30
    smallest_effect: float = 0.05
    """Relative difference that matters. A difference that is surely smaller is decided too."""


def of_fields(values: Mapping[str, Any]) -> tuple[dict[str, Any], UntilDecided | None]:
    """(the other fields, when to stop) of a spec file.

    Raises:
        SpecError: a field has no possible value.
    """
    others = {name: value for name, value in values.items() if name not in FIELDS}
    asked, most, smallest = (values.get(name) for name in FIELDS)
    if asked not in (None, True, False):
        raise SpecError(f"until_decided must be true or false. Received: {asked!r}. Use true.")
    if most is not None and type(most) is not int:
        raise SpecError(f"most_repeats must be a whole number. Received: {most!r}. Use e.g. 30.")
    return others, asked_for(bool(asked), most, None if smallest is None else str(smallest), None)


def asked_for(asked: bool, most: int | None, smallest: str | None, before: UntilDecided | None) -> UntilDecided | None:
    """When to stop, by the options of a command over those of its spec file or folder (`before`).

    Raises:
        SpecError: an option has no possible value, or goes with `--until-decided` and stands alone.
    """
    if not asked and before is None:
        for option, value in (("--most-repeats", most), ("--smallest-effect", smallest)):
            if value is not None:
                raise SpecError(f"{option} goes with --until-decided. Received: {value} without it. Add --until-decided.")
        return None
    if most is not None and most < VERDICT_PAIRS:
        raise SpecError(f"--most-repeats must be at least {VERDICT_PAIRS}: a verdict needs as many. Received: {most}. Use 30.")
    given = {"most_repeats": most, "smallest_effect": None if smallest is None else _effect(smallest)}
    return (before or UntilDecided()).model_copy(update={name: value for name, value in given.items() if value is not None})


def _effect(text: str) -> float:
    value = fraction(text)
    if not 0.0 < value < 1.0:
        raise SpecError(
            f"--smallest-effect must be a percentage or a fraction, above 0 and below 100 %. Received: {text!r}. "
            "Use 5% or 0.05."
        )
    return value
