"""The space of a search: fields of the spec with their ranges, from YAML."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from common import spec
from common.frozen import Finite
from common.spec import SpecError
from compare.execution.store import flat

DEFAULT: dict[str, Any] = {
    "optimizer.name": {"choices": ["sgd", "adam"]},
    "optimizer.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "optimizer.momentum": {"low": 0.0, "high": 0.95},
    "optimizer.weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "schedule.name": {"choices": ["step"]},
    "schedule.step_size": {"low": 1, "high": 5},
    "global_batch_size": {"choices": [32, 64, 128]},
}
"""The ranges that the published report searched, with optimizer and batch size."""
DEFAULT_NAME = "the default space"

GRID_POINTS = 3
"""Points of a grid in a range without a step."""
MOST_POINTS = 100_000
"""Points of the largest allowed grid."""
_MOST_STEPS = 10 * MOST_POINTS
"""Steps of the longest allowed range. They are listed to count a grid."""

_REFUSED = {
    "it says where and how a trial runs, not what it learns": (
        "mode replicas cores hosts part device profile_steps hang_seconds checkpoint_seconds paths.cache_dir workers input"
    ),
    "it changes the images that the trials are scored on": (
        "data.source data.limit data.on_bad data.duplicates data.seed data.image_size data.drawn_part"
    ),
    "the best of several seeds is only the luckiest": "seed",
}
"""Fields that a space must not name, by the reason."""


class _Range(Finite):
    low: float
    high: float
    log: bool = False
    step: float | None = None


class _Choices(Finite):
    choices: list[bool | int | float | str]


@dataclass(frozen=True)
class Space:
    """Fields that every trial draws, and fields that all trials share because the space leaves one choice."""

    distributions: dict[str, BaseDistribution]
    fixed: dict[str, Any]
    stepped: frozenset[str] = frozenset()
    """Fields whose range names its step. A distribution of whole numbers always has one."""

    @property
    def fields(self) -> list[str]:
        return [*self.distributions, *self.fixed]


def read(path: Path | None) -> dict[str, Any]:
    """The ranges of a space file by field, not yet checked. None: the default ones.

    Raises:
        SpecError: the file cannot be read, or is no mapping of names.
    """
    return DEFAULT if path is None else spec.read_values(path, "space file")


def judged(ranges: dict[str, Any], values: dict[str, Any], name: str) -> Space:
    """Checks every range against the spec: its field, and the values at its ends.

    Args:
        ranges: from `read`.
        values: of the spec that all trials share.
        name: of the file, for error messages.

    Raises:
        SpecError: names the file and the field.
    """
    if not ranges:
        raise SpecError(f"space {name} is empty. Received: no field. Write e.g. {_EXAMPLE}.")
    if {"epochs", "steps"} <= ranges.keys():
        raise SpecError(f"space {name}: epochs and steps exclude each other. Received: both. Leave one of them out.")
    distributions: dict[str, BaseDistribution] = {}
    fixed: dict[str, Any] = {}
    for field, written in ranges.items():
        for reason, refused in _REFUSED.items():
            if field in refused.split():
                raise SpecError(f"space {name}: {field} cannot be tuned: {reason}. Received: {written!r}. Leave it out.")
        try:
            made = _distribution(field, written, values)
        except SpecError as error:
            raise SpecError(f"space {name}: {error}") from None
        if isinstance(made, CategoricalDistribution) and len(made.choices) == 1:
            fixed[field] = made.choices[0]
        else:
            distributions[field] = made
    if not distributions:
        raise SpecError(f"space {name} leaves nothing to search. Received: one choice for each field. Give one a range.")
    stepped = frozenset(field for field in distributions if ranges[field].get("step") is not None)
    return Space(distributions, fixed, stepped)


def grid_size(space: Space) -> int:
    """Number of points of the grid."""
    return math.prod(map(len, _axes(space).values()))


def grid(space: Space, seed: int) -> list[dict[str, Any]]:
    """Every point of the grid, in a seeded order, so that the first points are spread over the grid.

    Raises:
        SpecError: there are more points than MOST_POINTS.
    """
    if (size := grid_size(space)) > MOST_POINTS:
        raise SpecError(f"A grid has at most {MOST_POINTS:,} points. Received: {size:,}. Use fewer choices, or random.")
    axes = _axes(space)
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    return [points[place] for place in np.random.default_rng(seed).permutation(len(points))]


_EXAMPLE = "optimizer.learning_rate: {low: 1e-4, high: 1e-1, log: true}"
_FORMS = "Write {low: ..., high: ...} with log: true or step: ... where wanted, or {choices: [...]}"


def _distribution(field: str, written: Any, values: dict[str, Any]) -> BaseDistribution:
    if not isinstance(written, dict):
        raise SpecError(f"{field} needs a range. Received: {written!r}. {_FORMS}.")
    try:
        asked = _Choices.model_validate(written) if "choices" in written else _Range.model_validate(written)
    except pydantic.ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, (field, *detail["loc"][:2])))
        raise SpecError(f"{place}: {detail['msg']}. Received: {written!r}. {_FORMS}.") from None
    if isinstance(asked, _Choices):
        if not asked.choices:
            raise SpecError(f"{field} has no choices. Received: {written!r}. {_FORMS}.")
        read = [_as_read(field, choice, values) for choice in asked.choices]
        if len(set(map(repr, read))) < len(read):
            raise SpecError(f"{field} names a choice twice. Received: {written!r}. Name each once.")
        return CategoricalDistribution(read)
    return _ranged(field, asked, written, values)


def _ranged(field: str, asked: _Range, written: Any, values: dict[str, Any]) -> BaseDistribution:
    low, high = (_as_read(field, int(end) if end.is_integer() else end, values) for end in (asked.low, asked.high))
    if isinstance(low, bool) or not isinstance(low, int | float):
        raise SpecError(f"{field} is no number and has no range. Received: {written!r}. Write {field}: {{choices: [...]}}.")
    if not low < high:
        raise SpecError(f"{field}: low must be below high. Received: {written!r}. Use one choice for a single value.")
    if asked.log and (low <= 0 or asked.step is not None):
        raise SpecError(f"{field}: log needs low above 0, and no step. Received: {written!r}. Leave out one of them.")
    if asked.step is not None and not 0 < asked.step <= high - low:
        raise SpecError(f"{field}: step must be above 0 and fit into the range. Received: {written!r}. Use a smaller one.")
    if asked.step is not None and (high - low) / asked.step > _MOST_STEPS:
        raise SpecError(f"{field} has more than {_MOST_STEPS:,} steps. Received: {written!r}. Use a larger one.")
    if isinstance(low, int):
        if asked.step is not None and not asked.step.is_integer():
            raise SpecError(f"{field} is a whole number and needs a whole step. Received: {written!r}. Use 1 or more.")
        step = int(asked.step or 1)
        return IntDistribution(low, low + (high - low) // step * step, log=asked.log, step=step)
    if asked.step is not None:  # in decimals, because 0.9 is three times 0.3 only there
        start, end, step = (Decimal(str(value)) for value in (low, high, asked.step))
        high = float(start + (end - start) // step * step)
    return FloatDistribution(low, high, log=asked.log, step=asked.step)


def _as_read(field: str, value: Any, values: dict[str, Any]) -> Any:
    """A value as the spec reads it. For example, YAML reads 1e-3 as text; here it becomes a number.

    Raises:
        SpecError: the spec has no such field, or refuses the value.
    """
    others = {"epochs": "steps", "steps": "epochs"}
    shared = {name: given for name, given in values.items() if name != others.get(field)}
    built = spec.build(spec.overlay(shared, {field: value}))
    found = flat(built.model_dump())
    if field not in found:
        raise SpecError(f"{field} is a group of fields. Received: {value!r}. Name one of them.")
    return found[field]


def _axes(space: Space) -> dict[str, Sequence[Any]]:
    return {field: _points(drawn, stepped=field in space.stepped) for field, drawn in space.distributions.items()}


def _points(distribution: BaseDistribution, *, stepped: bool) -> Sequence[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    if stepped and step is not None:
        return [low + place * step for place in range(round((high - low) / step) + 1)]
    spaced = np.geomspace if distribution.log else np.linspace
    points = [min(max(float(point), low), high) for point in spaced(low, high, GRID_POINTS)]
    return sorted({round(point) for point in points}) if isinstance(distribution, IntDistribution) else points
