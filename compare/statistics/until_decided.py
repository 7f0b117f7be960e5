"""`--until-decided`: repeats are added until every question has an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.frozen import Frozen
from common.spec import SpecError
from common.spec.errors import format_value
from compare.cli.option_types import Percent
from compare.statistics.statistics import VERDICT_PAIRS

FIELDS = ("until_decided", "most_repeats", "smallest_effect")


class UntilDecided(Frozen):
    """Stopping rule for repeats."""

    most_repeats: int = 30
    smallest_effect: float = 0.05
    """Relative difference that matters. A difference that is surely smaller is decided too."""


def split_stopping_rule(values: Mapping[str, Any]) -> tuple[dict[str, Any], UntilDecided | None]:
    """Split the fields of a spec file into (other fields, stopping rule)."""
    others = {name: value for name, value in values.items() if name not in FIELDS}
    until_decided, most_repeats, smallest_effect = (values.get(name) for name in FIELDS)
    if until_decided not in (None, True, False):
        received = format_value(until_decided, "until_decided")
        raise SpecError(f"until_decided must be true or false. Received: {received}. Use true.")
    if most_repeats is not None and type(most_repeats) is not int:
        received = format_value(most_repeats, "most_repeats")
        raise SpecError(f"most_repeats must be a whole number. Received: {received}. Use e.g. 30.")
    return others, stopping_rule_from_options(
        bool(until_decided), most_repeats, None if smallest_effect is None else str(smallest_effect), None
    )


def stopping_rule_from_options(
    until_decided: bool, most_repeats: int | None, smallest_effect: str | None, stored: UntilDecided | None
) -> UntilDecided | None:
    """Return the stopping rule from the options of a command, which override those of its spec file or folder (`stored`)."""
    if not until_decided and stored is None:
        for option, value in (("--most-repeats", most_repeats), ("--smallest-effect", smallest_effect)):
            if value is not None:
                raise SpecError(f"{option} goes with --until-decided. Received: {value} without it. Add --until-decided.")
        return None
    if most_repeats is not None and most_repeats < VERDICT_PAIRS:
        raise SpecError(
            f"--most-repeats must be at least {VERDICT_PAIRS}: a verdict needs as many. Received: {most_repeats}. Use 30."
        )
    options = {
        "most_repeats": most_repeats,
        "smallest_effect": None
        if smallest_effect is None
        else Percent(is_open=True).parse("--smallest-effect", smallest_effect),
    }
    return (stored or UntilDecided()).model_copy(update={name: value for name, value in options.items() if value is not None})
