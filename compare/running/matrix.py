"""The rows of a comparison, one for each contestant, mode and core budget, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer

from common import spec
from common.data.batches import BatchPlan
from common.data.sources import Dataset
from common.frozen import Frozen
from common.models import architectures
from common.models.architectures import Architecture, Opaque
from common.spec import Spec, SpecError
from compare.cli import option_parsing, wording
from compare.running import best_switches
from compare.running.contestants import Contestant

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)]
"""A plain file name without a path. It leaves room for a suffix."""

MOST_ROWS = 1000
"""Largest number of rows of a comparison. Rows are compared in pairs, so a report takes ten seconds for as many."""

INPUT_FIELDS = ("input", "workers")
"""Fields that change how batches are fed, and nothing else."""

_COLOUR_SAMPLE_SIZE = 256
"""Number of training images, evenly spread, that are searched for colour."""


class Unavailable(Frozen):
    """Why this machine does not run a row."""

    status: Literal["not available", "not parallel"]
    """`not available` if the machine cannot run it, `not parallel` if its replicas would take turns."""
    reason: str

    def __str__(self) -> str:
        """Return the stored form, which `read` reads."""
        return f"{self.status}: {self.reason}"

    @classmethod
    def read(cls, text: str) -> Unavailable:
        """Read the stored form: `not available: needs 2 CUDA devices, found 0`."""
        status, _, reason = text.partition(": ")
        return cls.model_validate({"status": status, "reason": reason})


class Row(Frozen):
    """One configuration of one contestant, run once for each repeat."""

    id: FileName
    """Name of the row in folders and tables, e.g. `pytorch-data_parallel-2replicas`."""
    contestant: FileName
    """Name of the contestant that the row measures, by default one of the frameworks."""
    twin: str | None = None
    """Name of the contestant's twin. None: the contestant's name."""
    spec: Spec
    unavailable: Annotated[
        Unavailable | None,
        BeforeValidator(lambda value: Unavailable.read(value) if isinstance(value, str) else value, str | None),
        PlainSerializer(lambda value: None if value is None else str(value), str | None),
    ] = None
    """Why the row is not run. It is stored as `STATUS: REASON`."""
    budget: best_switches.SwitchSearchBudget | None = None
    """Budget of the search that found the row's `best` switches. None: others, some set by a user, or not recorded."""

    @property
    def framework(self) -> str:
        """Name of the twin, as results store it."""
        return self.twin or self.contestant


def build_rows(
    values: dict[str, Any],
    contestants: Sequence[Contestant],
    modes: Sequence[str],
    replicas: int,
    workers: Sequence[int] = (),
    levels: Sequence[str] = (),
    inputs: Sequence[str] = (),
    *,
    one_core: bool = True,
) -> list[Row]:
    """Build every row, in the order of the tables: serial on one core and on all, then each parallel mode on all cores.

    Args:
        values: the spec's nested plain values. `mode`, `replicas` and, for the one-core row, `cores` are set here.
        contestants: the contestants.
        modes: words of `spec.MODES`.
        replicas: replicas of the parallel modes. For hybrids: copies of the model.
        workers: numbers of input workers. Each makes rows of its own. Empty: the number in `values`.
        inputs: words of `spec.INPUTS`. Each makes rows of its own, those with workers for each number of them. Empty: the
            input in `values`.
        levels: levels of switches. Each makes rows of its own. Empty: the level in `values`.
        one_core: whether serial also runs on one core.
    """
    option_parsing.parse_choices("--modes", modes, tuple(spec.MODES))
    matrix_rows: list[Row] = []
    for contestant in contestants:
        for mode in modes:
            input_variants = _input_variants(values, inputs, workers)
            for row_values in [
                base_values | {"switches": level} for level in levels for base_values in input_variants
            ] or input_variants:
                run = spec.build(spec.with_variant(row_values, mode, replicas))
                # A core that replicas cannot share stays idle. So serial also runs on the shared cores, for the comparison.
                num_sharing = run.replicas if run.is_parallel else replicas
                usable_cores = run.cores // num_sharing * num_sharing or run.cores
                serial_cores = {usable_cores, run.cores} | ({1} if one_core else set())
                for cores in [usable_cores] if run.is_parallel else sorted(serial_cores):
                    name = _row_id(contestant.name, run, cores)
                    name += f"-{_input_id(run, inputs)}" if len(input_variants) > 1 else ""
                    name += f"-{run.switches}" if len(levels) > 1 else ""
                    matrix_rows.append(build_row(name, contestant, run.with_fields(cores=cores)))
    if len(matrix_rows) > MOST_ROWS:
        raise SpecError(
            f"A comparison has at most {MOST_ROWS:,} rows. Received: {len(matrix_rows):,}. Name fewer modes or workers."
        )
    return matrix_rows


def build_row(row_id: str, contestant: Contestant, run: Spec) -> Row:
    """Build the row of a contestant."""
    twin = None if contestant.twin == contestant.name else contestant.twin
    return Row(id=row_id, contestant=contestant.name, twin=twin, spec=run)


def _input_variants(values: dict[str, Any], inputs: Sequence[str], workers: Sequence[int]) -> list[dict[str, Any]]:
    """Return the values of each input. An input with workers has a variant for each number of them, by default one worker."""
    if not inputs:
        return [with_workers(values, number) for number in workers] or [values]
    numbers = [number for number in workers if number] or [values.get("workers") or 1]
    return [
        {**values, "input": kind, "workers": number} for kind in inputs for number in ([0] if kind == "inline" else numbers)
    ]


def _input_id(run: Spec, inputs: Sequence[str]) -> str:
    return "inline" if inputs and run.input == "inline" else f"{run.workers}{run.input if inputs else 'workers'}"


def with_workers(values: dict[str, Any], workers: int) -> dict[str, Any]:
    """Set the number of input workers. If there are any, the input is `workers`, unless the values name another one."""
    input_kind = values.get("input", "inline")
    return {**values, "input": "workers" if input_kind == "inline" and workers else input_kind, "workers": workers}


def same_except_contestant(one: Row, other: Row) -> bool:
    """Return whether two rows differ by their contestant alone. Each contestant may have switches of its own."""
    return one.contestant != other.contestant and all(
        getattr(one.spec, name) == getattr(other.spec, name) for name in Spec.model_fields if name != "framework_options"
    )


def same_except_input(one: Row, other: Row) -> bool:
    """Return whether two rows differ by their input alone: how batches are fed, and by how many workers."""
    return one.contestant == other.contestant and _is_only_difference(one.spec, other.spec, INPUT_FIELDS)


def _is_only_difference(one: Spec, other: Spec, fields: tuple[str, ...]) -> bool:
    """Return whether two specs differ in some of these fields, and in no others."""
    others_are_equal = all(getattr(one, name) == getattr(other, name) for name in Spec.model_fields if name not in fields)
    return others_are_equal and any(getattr(one, name) != getattr(other, name) for name in fields)


def input_base_of(rows: Sequence[Row], row: Row) -> Row | None:
    """Return the row that a row's input is compared with: `inline`, or else the first of those that differ by it alone.

    None if this machine can run none, or if it is the row itself.
    """
    alike = [other for other in rows if other.unavailable is None and (other.id == row.id or same_except_input(row, other))]
    base = min(alike, key=lambda other: other.spec.input != "inline", default=None)
    return None if base is None or base.id == row.id else base


def check_rows(
    rows: Sequence[Row],
    descriptions: Mapping[str, dict[str, Any]],
    contestants: Iterable[Contestant],
    *,
    oversubscribe: bool = False,
) -> list[Row]:
    """Check every row against its framework, and give each framework the switches that it has.

    Args:
        rows: the rows.
        descriptions: {contestant: its description}.
        contestants: the contestants, some with switches.
        oversubscribe: whether to run more replicas than cores.
    """
    by_name = {contestant.name: contestant for contestant in contestants}
    known = {name for description in descriptions.values() for name in description["options"]}
    checked_rows: list[Row] = []
    for row in rows:
        contestant = by_name[row.contestant]
        name = contestant.base_of or contestant.name
        description = spec.description_for_device(row.spec, descriptions[row.contestant])
        options = {
            name: value
            for name, value in row.spec.framework_options.items()
            if name in description["options"] or name not in known  # known to none: refused below
        } | contestant.switches
        budget = None
        if row.spec.switches == "best":
            best, search_budget = best_switches.options(row.spec, row.framework, description)
            budget = None if options else search_budget  # what a user sets was not searched
            options = best | options
        row_spec = row.spec.with_fields(framework_options=options)
        locations = {switch: ("contestants", name, "switches", switch) for switch in contestant.switches}
        try:
            refusal = spec.check_against(row_spec, description, locations=locations)
        except spec.SpecError as error:
            if name == row.framework or not error.field.startswith("framework_options"):
                raise
            raise spec.SpecError(f"The contestant {name} is refused: {error}") from None
        refusal = refusal or architectures.why_not_divisible(row_spec)
        unavailable = Unavailable.read(refusal) if refusal else None if oversubscribe else _not_parallel(row_spec, description)
        checked_rows.append(row.model_copy(update={"spec": row_spec, "unavailable": unavailable, "budget": budget}))
    return checked_rows


def _not_parallel(run: Spec, description: dict[str, Any]) -> Unavailable | None:
    on_cpu = all(device["kind"] == "cpu" for device in description["devices"])
    if not run.is_parallel or not on_cpu or run.cores >= run.replicas:
        return None
    turns = f"{run.replicas} replicas would take turns on {wording.count(run.cores, 'core')}"
    return Unavailable(status="not parallel", reason=turns)


def check_data(rows: Sequence[Row], dataset: Dataset, seeds: Sequence[int] = ()) -> None:
    """Check every row against the data: the model takes its images, and each replica has an example at every step.

    Args:
        seeds: seeds of all repeats. Parts of a skewed data set are drawn with them. Empty: each row's own.
    """
    for row in rows:
        architecture = architectures.build(row.spec, len(dataset.class_names), dataset.image_size)
        for seed in seeds or (row.spec.seed,):
            BatchPlan(row.spec.with_fields(seed=seed), architecture, len(dataset.train), labels=dataset.train.labels)
    for model in dict.fromkeys(row.spec.model for row in rows):
        _refuse_coloured_images(architectures.resolve(model, len(dataset.class_names), dataset.image_size), dataset)


def _refuse_coloured_images(architecture: Architecture, dataset: Dataset) -> None:
    """Refuse images in colour for a model of one channel: it would take the red channel alone."""
    layer, number = architecture.layers[0], len(dataset.train)
    if not isinstance(layer, Opaque) or layer.shape[2] != 1:
        return
    indices = sorted({number * index // _COLOUR_SAMPLE_SIZE for index in range(_COLOUR_SAMPLE_SIZE)})
    images = np.asarray(dataset.train.images[indices])
    if num_coloured := np.count_nonzero((images != images[..., :1]).any(axis=(1, 2, 3))):
        height, width, _ = layer.shape
        raise SpecError(
            f"model {architecture.name} takes one channel: of images in colour it would see red alone. Received: "
            f"{dataset.name}, with {num_coloured} of {len(indices)} images in colour. Use grey images, or match again with "
            f"--input {height}x{width}x3."
        )


def _row_id(framework: str, run: Spec, cores: int) -> str:
    if not run.is_parallel:
        return f"{framework}-serial-{cores}core{'s' if cores > 1 else ''}"
    return f"{framework}-{run.variant}-{run.replicas}replicas"
