"""Fields of a spec that may have several values, and the combinations of these, which are the cells of a matrix."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from common import spec
from common.spec import SpecError
from common.spec.errors import format_value

MOST_CELLS = 1000
AXES = {
    "model": "model",
    "data.source": "data",
    "data.image_size": "image size",
    "global_batch_size": "batch size",
    "optimizer": "optimizer",
    "precision": "precision",
}
"""Fields that may be lists, and their names in reports."""


def expand(values: dict[str, Any]) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Return (labels, values) of every combination of the listed values. Without a list: one, which has no label.

    Args:
        values: values of a spec, nested and plain.
    """
    cells: list[tuple[dict[str, str], dict[str, Any]]] = [({}, values)]
    for field, name in AXES.items():
        group, _, leaf = field.rpartition(".")
        group_values: Any = values.get(group) if group else values
        axis_value = cast(dict[str, Any], group_values).get(leaf) if isinstance(group_values, dict) else None
        if not isinstance(axis_value, list):
            continue
        axis_values = cast(list[Any], axis_value)
        labels = _labels(axis_values)
        if (number := len(cells) * len(axis_values)) > MOST_CELLS:
            raise SpecError(f"A matrix has at most {MOST_CELLS} comparisons. Received: {number} or more. Name fewer values.")
        has_duplicates = any(one == other for one, other in itertools.combinations(axis_values, 2))  # 64 is 64.0
        if not labels or has_duplicates or len(set(labels)) < len(labels):
            received = format_value(axis_values, field)
            raise SpecError(f"{field} must list different values. Received: {received}. Name each once.")
        cells = [
            ({**cell_labels, name: label}, spec.overlay(cell_values, {field: value}))
            for cell_labels, cell_values in cells
            for label, value in zip(labels, axis_values, strict=True)
        ]
    return cells


def names(labels: Sequence[dict[str, str]]) -> list[str]:
    """Return names of folders for cells with these labels."""
    folder_names: list[str] = []
    for cell_labels in labels:
        words = [label if re.match(r"\D", label) else f"{axis} {label}" for axis, label in cell_labels.items()]
        name = "-".join(filter(None, (re.sub(r"[^A-Za-z0-9.]+", "_", word).strip("_.") for word in words))) or "cell"
        folder_names.append(name)
    duplicates = {name for name, number in Counter(folder_names).items() if number > 1}
    return [f"{name}-{number}" if name in duplicates else name for number, name in enumerate(folder_names, 1)]


def _labels(values: Sequence[Any]) -> list[str]:
    """Return labels for the values of an axis: the shortest that distinguish them."""
    groups = [cast(dict[str, Any], value) if isinstance(value, dict) else {"": value} for value in values]
    short = [Path(str(group.get("name", next(iter(group.values()), "")))).name for group in groups]
    if len(set(short)) == len(short):
        return short
    return [" ".join(f"{name}={value}" if name else str(value) for name, value in group.items()) for group in groups]
