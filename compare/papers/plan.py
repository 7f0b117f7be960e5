"""What is run for a paper at a scale: its runs as they were, the same question corrected, scans, search and final training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common import spec
from common.machine import machine
from common.spec import Spec, SpecError
from compare.core import wording
from compare.data import engine_scans
from compare.evaluation.final_training import Evaluation
from compare.execution import launch, matrix
from compare.execution.matrix import Row
from compare.execution.store import flat
from compare.papers.schema import SCALES, SMOKE, Fields, Paper, Scale
from compare.tuning.records import Tuning

AS_IT_WAS = "faithful"
"""Name of the comparison of all published runs."""
CORRECTED = "corrected"

REPLICAS = 2
"""Of the parallel runs."""
_ENGINES = ("dask", "pytorch")


@dataclass(frozen=True)
class Setting:
    """The inputs of a plan."""

    scale: Scale
    source: str
    """Of the data."""
    gpus: int
    """GPUs that every framework of the paper sees here."""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Spec fields for all runs. They override the paper's."""
    synthetic: bool = False
    """Whether the data are those that stand for the paper's at smoke scale, by default."""

    def overlaid(self, *fields: Fields) -> dict[str, Any]:
        """Nested values of dotted fields, with the data's source and the caller's settings. Later fields win."""
        values: dict[str, Any] = {}
        for each in (*fields, {"data.source": self.source}, flat(dict(self.values))):
            values = spec.overlay(values, each)
        return values

    @property
    def devices(self) -> str:
        cores = wording.count(machine.available_cores(), "core")
        return f"{cores}, {self.gpus or 'no'} GPU{'' if self.gpus == 1 else 's'}"


@dataclass(frozen=True)
class Training:
    """Rows that share their data: one comparison, in a folder of its own."""

    name: str
    title: str
    rows: list[Row]
    repeats: int = 1
    seeds: tuple[int, ...] = ()
    prove: bool = False
    oversubscribe: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that is run for a paper at one scale."""

    paper: Paper
    setting: Setting
    faithful: list[Training]
    """The published runs as they were really made."""
    corrected: Training
    """The same question, with corrected runs."""
    chosen: list[str]
    """Settings that the paper does not state, and that were chosen here."""
    scans: engine_scans.Request | None = None
    tuning: Tuning | None = None
    final: Evaluation | None = None
    """The final training. What the search finds is yet missing."""

    @property
    def trainings(self) -> list[Training]:
        return [*self.faithful, self.corrected]

    @property
    def base(self) -> Spec:
        """The spec of the first of the published runs."""
        return self.faithful[0].rows[0].spec

    @property
    def departs(self) -> list[str]:
        """How the published runs differ here from the paper's, the size of this scale first."""
        paper = self.paper
        pixels, epochs = self.base.data.image_size, max(row.spec.epochs or 0 for each in self.faithful for row in each.rows)
        lengths = {run.epochs for run in paper.runs.values()}
        most = f"{'up to ' if len(lengths) > 1 else ''}{max(lengths)}"
        scaled: list[str] = []
        if not self.same_image_size:
            here = f"Images of {pixels} px and {wording.count(epochs, 'epoch')}"
            scaled = [f"{here}, in place of {paper.data.image_size} px and {most} epochs."]
        elif epochs != max(lengths):
            scaled = [f"{wording.count(epochs, 'epoch')}, in place of {most}."]
        by_gpus = paper.departs_by_gpus[: self.setting.gpus + 1][-1:]
        return [*scaled, *paper.departs, *(each.replace("{devices}", self.setting.devices) for each in by_gpus)]

    @property
    def same_image_size(self) -> bool:
        return self.base.data.image_size == self.paper.data.image_size


def plan(paper: Paper, setting: Setting) -> Plan:
    """The runs of a paper.

    Raises:
        SpecError: a field of its file makes no spec.
    """
    size, search = paper.scales[setting.scale], paper.search
    shared: Fields = {"model": paper.model, **paper.fields, **size.fields}
    scans = tuning = final = None
    chosen = [*paper.chosen]
    if paper.scans is not None and (scan := size.scans):
        run = spec.build(setting.overlaid(shared, paper.scans, scan.fields))
        scans = engine_scans.Request(_ENGINES, scan.workers, "threads", scan.repeats, run)
    if search is not None and (extent := size.search):
        tuning = Tuning(
            values=setting.overlaid(shared, {"epochs": extent.epochs}),
            space=search.space,
            space_name=paper.name,
            trials=extent.trials,
            jobs=extent.jobs,
            frameworks=search.frameworks,
            repeats=extent.repeats,
        )
        ranges = "; ".join(f"{name} {_range_words(each)}" for name, each in search.space.items())
        chosen += [
            f"The ranges of the search: {ranges}.",
            f"Epochs of a trial: {extent.epochs}; of the final training: {size.final_epochs}.",
        ]
    if search is not None and size.final_epochs is not None:
        values = setting.overlaid(shared, {"epochs": size.final_epochs})
        final = Evaluation(values=values, frameworks=search.frameworks, tuned={}, repeats=1, scores_validation=True)
    return Plan(
        paper,
        setting,
        _as_it_was(paper, setting, shared),
        _corrected(paper, setting, shared),
        chosen,
        scans,
        tuning,
        final,
    )


def _range_words(written: Any) -> str:
    known = isinstance(written, dict) and {"low", "high"} <= written.keys()
    return f"{written['low']:g} to {written['high']:g}" if known else f"{written}"


def _as_it_was(paper: Paper, setting: Setting, shared: Fields) -> list[Training]:
    was, size = paper.as_it_was, paper.scales[setting.scale]
    rows: dict[str, Row] = {}
    for name, run in was.runs.items():
        too_small = SCALES.index(setting.scale) < SCALES.index(run.first_scale)
        if too_small or (setting.gpus < run.gpus and not run.replicas_on_cores):
            continue
        fields = {"epochs": min(size.epochs or run.epochs, run.epochs)}
        if run.replicas_on_cores:  # a core that the replicas cannot share stays idle
            cores, replicas = machine.available_cores(), run.fields.get("replicas", REPLICAS)
            fields["cores"] = cores // replicas * replicas or cores
        one_split: Fields = {"data.seed": 0} if was.each_repeat_a_seed else {}
        values = setting.overlaid(one_split, shared, was.fields, fields, run.fields, run.at.get(setting.scale, {}))
        rows[name] = Row(id=name, contestant=run.framework, spec=spec.build(values))
    if not rows:
        raise SpecError(
            f"{paper.argument} has no run for this scale and machine. Received: --scale {setting.scale}, {setting.devices}. "
            "Use a larger scale, or a machine with the GPUs of its runs."
        )
    seeds = tuple(range(size.repeats)) if was.each_repeat_a_seed else ()
    if was.together:
        on_cores = any(run.replicas_on_cores for run in was.runs.values())
        return [Training(AS_IT_WAS, was.title, [*rows.values()], size.repeats, seeds, oversubscribe=on_cores)]
    return [Training(name, was.runs[name].title, [row], size.repeats, seeds) for name, row in rows.items()]


def _corrected(paper: Paper, setting: Setting, shared: Fields) -> Training:
    """Serial and data-parallel runs of one spec, a seed for each repeat, on one division of the data."""
    size = paper.scales[setting.scale]
    values = setting.overlaid({"data.seed": 0}, shared, paper.corrected, size.corrected)
    rows = matrix.rows(values, tuple(launch.FRAMEWORKS), ("serial", "data_parallel"), REPLICAS)
    if setting.scale != "full":  # the papers do not use one core
        most = max(row.spec.cores for row in rows if row.spec.mode != "serial")
        rows = [row for row in rows if row.spec.cores == most]
    title = "The same question, asked of identical models"
    return Training(CORRECTED, title, rows, size.seeds, tuple(range(size.seeds)), prove=setting.scale != SMOKE)
