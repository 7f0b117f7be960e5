"""The rows of a comparison, one for each contestant, mode and core budget, judged before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from common import spec
from common.data.batches import Plan
from common.data.sources import Dataset
from common.frozen import Frozen
from common.models import architectures
from common.models.architectures import Architecture, Opaque
from common.spec import Spec, SpecError
from compare.core import option_parsing, wording
from compare.execution import best_switches, contestants, launch

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)]
"""A plain file name, without a path, that leaves room for what is put behind it."""

_LOOKED_AT = 256
"""At most so many training images, evenly spread, tell whether they are in colour."""


class Row(Frozen):
    """One configuration of one contestant, run once for each repeat."""

    id: FileName
    """Name of the row in folders and tables, e.g. `pytorch-data_parallel-2replicas`."""
    contestant: FileName
    """What it measures: the name of a contestant, by default one of the frameworks."""
    twin: str | None = None
    """Of the contestant. None: it has the contestant's name."""
    spec: Spec
    unavailable: str | None = None
    """`not available: ...` if this machine cannot run it, `not parallel: ...` if its replicas would take turns. Such a row is
    not run."""
    budget: best_switches.Budget | None = None
    """That found its `best` switches. None: it has others, a user set some of them, or the budget was not recorded."""

    @property
    def framework(self) -> str:
        """The twin's name, which its results hold."""
        return self.twin or self.contestant


def rows(
    values: dict[str, Any],
    frameworks: Sequence[str],
    modes: Sequence[str],
    replicas: int,
    workers: Sequence[int] = (),
    levels: Sequence[str] = (),
    *,
    one_core: bool = True,
) -> list[Row]:
    """Every row, in the order of the tables: serial on one core and on all, then each parallel mode on all cores.

    Args:
        values: the spec's nested plain values. `mode`, `replicas` and, for the one-core row, `cores` are set here.
        frameworks: names of contestants, or of `launch.FRAMEWORKS`.
        modes: of `spec.VARIANTS`.
        replicas: of the parallel modes. For hybrids: copies of the model.
        workers: numbers of input workers. Each makes rows of its own. Empty: the number in `values`.
        levels: of switches. Each makes rows of its own. Empty: the level in `values`.
        one_core: whether serial also runs on one core.

    Raises:
        SpecError: a row's spec is refused.
    """
    contestants.check(frameworks, launch.FRAMEWORKS)
    option_parsing.chosen("--modes", modes, tuple(spec.VARIANTS))
    made: list[Row] = []
    for framework in frameworks:
        for mode in modes:
            fed_values = [fed(values, number) for number in workers] or [values]
            for own in [each | {"switches": level} for level in levels for each in fed_values] or fed_values:
                wanted = spec.build(spec.with_variant(own, mode, replicas))
                # A core that replicas cannot share stays idle. So serial also runs on the shared cores, for the comparison.
                sharing = replicas if mode == "serial" else wanted.replicas
                shared = wanted.cores // sharing * sharing or wanted.cores
                serial = {shared, wanted.cores} | ({1} if one_core else set())
                for cores in sorted(serial) if mode == "serial" else [shared]:
                    name = _row_id(framework, wanted, cores) + (f"-{wanted.workers}workers" if len(workers) > 1 else "")
                    name += f"-{wanted.switches}" if len(levels) > 1 else ""
                    made.append(row(name, framework, wanted.with_fields(cores=cores)))
    return made


def row(row_id: str, contestant: str, run: Spec) -> Row:
    """A row of a contestant by its name."""
    twin = contestants.named(contestant).twin
    return Row(id=row_id, contestant=contestant, twin=None if twin == contestant else twin, spec=run)


def fed(values: dict[str, Any], workers: int) -> dict[str, Any]:
    """Set the number of workers. Some workers mean the input `workers`, unless the values name another one."""
    chosen = values.get("input", "inline")
    return {**values, "input": "workers" if chosen == "inline" and workers else chosen, "workers": workers}


def differ_by_contestant(one: Row, other: Row) -> bool:
    """Whether two rows differ by their contestant alone. Each contestant may have switches of its own."""
    alike = one.spec.model_copy(update={"framework_options": other.spec.framework_options})
    return one.contestant != other.contestant and alike == other.spec


def judge(made: Sequence[Row], descriptions: Mapping[str, dict[str, Any]], *, oversubscribe: bool = False) -> list[Row]:
    """Check every row against its framework, and give each framework the switches that it has.

    Args:
        oversubscribe: whether to run more replicas than cores.

    Raises:
        SpecError: no framework has a named switch or its value; or a contestant names a switch that its own framework lacks; or
            the best switches are unknown here.
    """
    known = {name for description in descriptions.values() for name in description["options"]}
    judged: list[Row] = []
    for row in made:
        description = spec.of_device(row.spec, descriptions[row.contestant])
        options = {
            name: value
            for name, value in row.spec.framework_options.items()
            if name in description["options"] or name not in known  # known to none: refused below
        } | contestants.named(row.contestant).switches
        budget = None
        if row.spec.switches == "best":
            best, found_with = best_switches.options(row.spec, row.framework, description)
            budget = None if options else found_with  # what a user sets was not searched
            options = best | options
        own = row.spec.with_fields(framework_options=options)
        try:
            refused = spec.check_against(own, description)
        except spec.SpecError as error:
            if row.contestant == row.framework:
                raise
            raise spec.SpecError(f"The contestant {row.contestant} is refused: {error}") from None
        refused = refused or architectures.cannot_cut(own)
        unavailable = refused or (None if oversubscribe else _not_parallel(own, description))
        judged.append(row.model_copy(update={"spec": own, "unavailable": unavailable, "budget": budget}))
    return judged


def _not_parallel(run: Spec, description: dict[str, Any]) -> str | None:
    on_cpu = all(device["kind"] == "cpu" for device in description["devices"])
    if run.mode == "serial" or not on_cpu or run.cores >= run.replicas:
        return None
    return f"not parallel: {run.replicas} replicas would take turns on {wording.count(run.cores, 'core')}"


def check_data(made: Sequence[Row], dataset: Dataset, seeds: Sequence[int] = ()) -> None:
    """Check every row against the data: the model takes its images, and each replica has an example at every step.

    Args:
        seeds: of all repeats. Parts of a skewed data set are drawn with them. Empty: each row's own.

    Raises:
        SpecError: a row does not fit the data.
    """
    for row in made:
        architecture = architectures.of(row.spec, len(dataset.class_names), dataset.image_size)
        for seed in seeds or (row.spec.seed,):
            Plan(row.spec.with_fields(seed=seed), architecture, len(dataset.train), labels=dataset.train.labels)
    for model in dict.fromkeys(row.spec.model for row in made):
        _refuse_colours(architectures.resolve(model, len(dataset.class_names), dataset.image_size), dataset)


def _refuse_colours(architecture: Architecture, dataset: Dataset) -> None:
    """A model of one channel takes the first. Of images in colour that is red alone."""
    layer, number = architecture.layers[0], len(dataset.train)
    if not isinstance(layer, Opaque) or layer.shape[2] != 1:
        return
    places = sorted({number * place // _LOOKED_AT for place in range(_LOOKED_AT)})
    images = np.asarray(dataset.train.images[places])
    if coloured := np.count_nonzero((images != images[..., :1]).any(axis=(1, 2, 3))):
        height, width, _ = layer.shape
        raise SpecError(
            f"model {architecture.name} takes one channel: of images in colour it would see red alone. Received: "
            f"{dataset.name}, with {coloured} of {len(places)} images in colour. Use grey images, or match again with "
            f"--input {height}x{width}x3."
        )


def _row_id(framework: str, run: Spec, cores: int) -> str:
    if run.mode == "serial":
        return f"{framework}-serial-{cores}core{'s' if cores > 1 else ''}"
    return f"{framework}-{run.variant}-{run.replicas}replicas"
