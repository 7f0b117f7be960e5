"""A matrix: comparisons that differ in their model, data, batch or the like. Each is a cell, with a folder within one."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field

from common import spec
from common.frozen import Count, Exact, Moment
from common.machine.machine import Facts
from common.spec import SpecError
from compare.core.until_decided import UntilDecided
from compare.execution import store
from compare.execution.contestants import Contestant
from compare.execution.matrix import FileName, Row
from compare.execution.store import MOST_REPEATS

PLAN_FILE, KIND = "matrix.json", "matrix"
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


class Cell(Exact):
    """One comparison of a matrix."""

    name: FileName
    """Of its folder."""
    labels: dict[str, str]
    """Its value on each axis that has several, by the axis's name in reports."""
    rows: list[Row] = Field(min_length=1)
    """As they are laid out, not judged yet."""
    failure: str | None = None
    """Why it was refused, last time."""
    job: str | None = None
    """The last one that Slurm ran it as."""


class MatrixPlan(Exact):
    """matrix.json: the comparisons of a matrix, and what they share."""

    kind: Literal["matrix"] = KIND
    created_at: Moment
    argv: list[str]
    code_hash: str
    machine: Facts
    cells: list[Cell] = Field(min_length=1, max_length=MOST_CELLS)
    repeats: int = Field(ge=1, le=MOST_REPEATS)
    seeds: list[int] = []
    until: UntilDecided | None = None
    contestants: list[Contestant] = []
    prove: bool = True
    oversubscribe: bool = False
    restarts: Count = 0
    target_accuracy: float | None = None
    on: str | None = None
    """What runs the comparisons on other machines: `slurm`, or the address of a Dask scheduler. None: this machine does."""

    @property
    def axes(self) -> list[str]:
        return list(self.cells[0].labels)


def holds(folder: Path) -> bool:
    """Whether a folder holds a matrix."""
    return (folder / PLAN_FILE).exists()


def read(folder: Path) -> MatrixPlan:
    """The plan of a matrix.

    Raises:
        FolderError: there is none, or it cannot be read.
    """
    return store.read_record(folder / PLAN_FILE, MatrixPlan, "a matrix")


def expand(values: dict[str, Any]) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """(labels, values) of every combination of the listed values. Without a list: one, which has no label.

    Args:
        values: of a spec, nested and plain.

    Raises:
        SpecError: a list is empty or has a value twice, or there are too many combinations.
    """
    made: list[tuple[dict[str, str], dict[str, Any]]] = [({}, values)]
    for field, name in AXES.items():
        group, _, leaf = field.rpartition(".")
        within: Any = values.get(group) if group else values
        listed = cast(dict[str, Any], within).get(leaf) if isinstance(within, dict) else None
        if not isinstance(listed, list):
            continue
        each_value = cast(list[Any], listed)
        labels = _labels(each_value)
        if (number := len(made) * len(each_value)) > MOST_CELLS:
            raise SpecError(f"A matrix has at most {MOST_CELLS} comparisons. Received: {number} or more. Name fewer values.")
        is_twice = any(one == other for one, other in itertools.combinations(each_value, 2))  # 64 is 64.0
        if not labels or is_twice or len(set(labels)) < len(labels):
            raise SpecError(f"{field} must list different values. Received: {listed!r}. Name each once.")
        made = [
            ({**own, name: label}, spec.overlay(of_one, {field: value}))
            for own, of_one in made
            for label, value in zip(labels, each_value, strict=True)
        ]
    return made


def names(labels: Sequence[dict[str, str]]) -> list[str]:
    """Names of folders for cells with these labels."""
    made: list[str] = []
    for own in labels:
        words = [label if re.match(r"\D", label) else f"{axis} {label}" for axis, label in own.items()]
        name = "-".join(filter(None, (re.sub(r"[^A-Za-z0-9.]+", "_", word).strip("_.") for word in words))) or "cell"
        made.append(name)
    twice = {name for name, number in Counter(made).items() if number > 1}
    return [f"{name}-{number}" if name in twice else name for number, name in enumerate(made, 1)]


def _labels(values: Sequence[Any]) -> list[str]:
    """Words for the values of an axis: the shortest that tell them apart."""
    groups = [cast(dict[str, Any], value) if isinstance(value, dict) else {"": value} for value in values]
    short = [Path(str(group.get("name", next(iter(group.values()), "")))).name for group in groups]
    if len(set(short)) == len(short):
        return short
    return [" ".join(f"{name}={value}" if name else str(value) for name, value in group.items()) for group in groups]
