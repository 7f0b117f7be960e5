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
from common.spec.errors import format_value
from compare.results.store import flatten

DEFAULT: dict[str, Any] = {
    "optimizer.name": {"choices": ["sgd", "adam"]},
    "optimizer.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "optimizer.momentum": {"low": 0.0, "high": 0.95},
    "optimizer.weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "schedule.name": {"choices": ["step"]},
    "schedule.step_size": {"low": 1, "high": 5},
    "global_batch_size": {"choices": [32, 64, 128]},
}
"""Ranges that the published report searched, with optimizer and batch size."""
DEFAULT_NAME = "the default space"

GRID_POINTS = 3
"""Points of a grid in a range without a step."""
MAX_POINTS = 100_000
"""Points of the largest allowed grid."""
_MAX_STEPS = 10 * MAX_POINTS
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
    """Read the ranges of a space file by field, not yet checked. None: the default ones."""
    return DEFAULT if path is None else spec.read_values(path, "space file")


def check_space(ranges: dict[str, Any], values: dict[str, Any], name: str) -> Space:
    """Check every range against the spec: its field, and the values at its ends.

    Args:
        ranges: ranges by field, from `read`.
        values: values of the spec that all trials share.
        name: name of the file, for error messages.
    """
    if not ranges:
        raise SpecError(f"space {name} is empty. Received: no field. Write e.g. {_EXAMPLE}.")
    if {"epochs", "steps"} <= ranges.keys():
        raise SpecError(f"space {name}: epochs and steps exclude each other. Received: both. Leave one of them out.")
    distributions: dict[str, BaseDistribution] = {}
    fixed: dict[str, Any] = {}
    for field, raw in ranges.items():
        received = format_value(raw, field)
        for reason, refused in _REFUSED.items():
            if field in refused.split():
                raise SpecError(f"space {name}: {field} cannot be tuned: {reason}. Received: {received}. Leave it out.")
        try:
            distribution = _distribution(field, raw, values)
        except SpecError as error:
            raise SpecError(f"space {name}: {error}") from None
        if isinstance(distribution, CategoricalDistribution) and len(distribution.choices) == 1:
            fixed[field] = distribution.choices[0]
        else:
            distributions[field] = distribution
    if not distributions:
        raise SpecError(f"space {name} leaves nothing to search. Received: one choice for each field. Give one a range.")
    stepped = frozenset(field for field in distributions if ranges[field].get("step") is not None)
    return Space(distributions, fixed, stepped)


def grid_size(space: Space) -> int:
    """Return the number of points of the grid."""
    return math.prod(map(len, _axes(space).values()))


def grid(space: Space, seed: int) -> list[dict[str, Any]]:
    """Return every point of the grid, in a seeded order, so that the first points are spread over the grid."""
    if (size := grid_size(space)) > MAX_POINTS:
        raise SpecError(f"A grid has at most {MAX_POINTS:,} points. Received: {size:,}. Use fewer choices, or random.")
    axes = _axes(space)
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    return [points[place] for place in np.random.default_rng(seed).permutation(len(points))]


_EXAMPLE = "optimizer.learning_rate: {low: 1e-4, high: 1e-1, log: true}"
_FORMS = "Write {low: ..., high: ...} with log: true or step: ... where wanted, or {choices: [...]}"


def _distribution(field: str, raw: Any, values: dict[str, Any]) -> BaseDistribution:
    received = format_value(raw, field)
    if not isinstance(raw, dict):
        raise SpecError(f"{field} needs a range. Received: {received}. {_FORMS}.")
    try:
        parsed = _Choices.model_validate(raw) if "choices" in raw else _Range.model_validate(raw)
    except pydantic.ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(map(str, (field, *detail["loc"][:2])))
        raise SpecError(f"{place}: {detail['msg']}. Received: {received}. {_FORMS}.") from None
    if isinstance(parsed, _Choices):
        if not parsed.choices:
            raise SpecError(f"{field} has no choices. Received: {received}. {_FORMS}.")
        choices = [_parse_value(field, choice, values) for choice in parsed.choices]
        if len(set(map(repr, choices))) < len(choices):
            raise SpecError(f"{field} names a choice twice. Received: {received}. Name each once.")
        return CategoricalDistribution(choices)
    return _range_distribution(field, parsed, raw, values)


def _range_distribution(field: str, parsed: _Range, raw: Any, values: dict[str, Any]) -> BaseDistribution:
    low, high = (_parse_value(field, int(end) if end.is_integer() else end, values) for end in (parsed.low, parsed.high))
    received = format_value(raw, field)
    if isinstance(low, bool) or not isinstance(low, int | float):
        raise SpecError(f"{field} is no number and has no range. Received: {received}. Write {field}: {{choices: [...]}}.")
    if not low < high:
        raise SpecError(f"{field}: low must be below high. Received: {received}. Use one choice for a single value.")
    if parsed.log and (low <= 0 or parsed.step is not None):
        raise SpecError(f"{field}: log needs low above 0, and no step. Received: {received}. Leave out one of them.")
    if parsed.step is not None and not 0 < parsed.step <= high - low:
        raise SpecError(f"{field}: step must be above 0 and fit into the range. Received: {received}. Use a smaller one.")
    if parsed.step is not None and (high - low) / parsed.step > _MAX_STEPS:
        raise SpecError(f"{field} has more than {_MAX_STEPS:,} steps. Received: {received}. Use a larger one.")
    if isinstance(low, int):
        if parsed.step is not None and not parsed.step.is_integer():
            raise SpecError(f"{field} is a whole number and needs a whole step. Received: {received}. Use 1 or more.")
        step = int(parsed.step or 1)
        return IntDistribution(low, low + (high - low) // step * step, log=parsed.log, step=step)
    if parsed.step is not None:  # in decimals, because 0.9 is three times 0.3 only there
        start, end, step = (Decimal(str(value)) for value in (low, high, parsed.step))
        high = float(start + (end - start) // step * step)
    return FloatDistribution(low, high, log=parsed.log, step=parsed.step)


def _parse_value(field: str, value: Any, values: dict[str, Any]) -> Any:
    """Return a value as the spec parses it. For example, YAML reads 1e-3 as text; here it becomes a number."""
    others = {"epochs": "steps", "steps": "epochs"}
    shared = {name: other for name, other in values.items() if name != others.get(field)}
    built = spec.build(spec.overlay(shared, {field: value}))
    fields = flatten(built.model_dump())
    if field not in fields:
        raise SpecError(f"{field} is a group of fields. Received: {format_value(value, field)}. Name one of them.")
    return fields[field]


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
