"""Plan of a reproduction at a scale: the published runs, the same question corrected, scans, search and final training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from common import spec
from common.machine import machine
from common.spec import Spec, SpecError
from compare.cli import wording
from compare.results.store import flatten
from compare.running import contestants, launch, matrix
from compare.running.matrix import Row
from compare.running.twins import Twins
from compare.tools.data import engine_scans
from compare.tools.evaluation.final_training import EvaluationSettings
from compare.tools.papers.schema import SCALES, SMOKE, Fields, Paper, Scale
from compare.tools.tuning.records import Tuning

AS_IT_WAS = "faithful"
"""Name of the comparison of all published runs."""
CORRECTED = "corrected"

REPLICAS = 2
"""Number of replicas of the parallel runs."""
_ENGINES = ("dask", "pytorch")


@dataclass(frozen=True)
class ReproductionSetting:
    """Inputs of a plan."""

    scale: Scale
    source: str
    """Source of the data."""
    gpus: int
    """Number of GPUs that every framework of the paper sees here."""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Spec fields for all runs. They override the paper's."""
    synthetic: bool = False
    """Whether the data are the default synthetic ones of smoke scale, in place of the paper's."""
    cores: int = field(default_factory=lambda: machine.available_cores())
    """Number of cores here."""

    def merge(self, *fields: Fields) -> dict[str, Any]:
        """Return nested values of dotted fields, with the data's source and the caller's settings. Later fields win."""
        values: dict[str, Any] = {}
        for part in (*fields, {"data.source": self.source}, flatten(dict(self.values))):
            values = spec.overlay(values, part)
        return values

    @property
    def devices(self) -> str:
        return f"{wording.count(self.cores, 'core')}, {self.gpus or 'no'} GPU{'' if self.gpus == 1 else 's'}"


@dataclass(frozen=True)
class PaperTraining:
    """Rows that share their data: one comparison, in a folder of its own."""

    name: str
    title: str
    rows: list[Row]
    repeats: int = 1
    seeds: tuple[int, ...] = ()
    prove: bool = False
    oversubscribe: bool = False


@dataclass(frozen=True)
class ReproductionPlan:
    """Everything that is run for a paper at one scale."""

    paper: Paper
    setting: ReproductionSetting
    faithful: list[PaperTraining]
    """Comparisons of the published runs, as they were really made."""
    corrected: PaperTraining
    """Comparison for the same question, with corrected runs."""
    chosen: list[str]
    """Settings that the paper does not state, and that were chosen here."""
    scans: engine_scans.ScanRequest | None = None
    tuning: Tuning | None = None
    final: EvaluationSettings | None = None
    """Settings of the final training, without what the search will find."""
    twins: Twins = field(default_factory=lambda: Twins(launch.FRAMEWORKS))

    @property
    def trainings(self) -> list[PaperTraining]:
        return [*self.faithful, self.corrected]

    @property
    def published_rows(self) -> list[Row]:
        """The published runs, as rows."""
        return [row for training in self.faithful for row in training.rows]

    @property
    def base(self) -> Spec:
        """Spec of the first of the published runs."""
        return self.published_rows[0].spec

    @property
    def deviations(self) -> list[str]:
        """Differences between the published runs here and the paper's, the size of this scale first."""
        paper = self.paper
        pixels, epochs = self.base.data.image_size, max(row.spec.epochs or 0 for row in self.published_rows)
        lengths = {run.epochs for run in paper.runs.values()}
        longest = f"{'up to ' if len(lengths) > 1 else ''}{max(lengths)}"
        scaled: list[str] = []
        if not self.same_image_size:
            scale_text = f"Images of {pixels} px and {wording.count(epochs, 'epoch')}"
            scaled = [f"{scale_text}, in place of {paper.data.image_size} px and {longest} epochs."]
        elif epochs != max(lengths):
            scaled = [f"{wording.count(epochs, 'epoch')}, in place of {longest}."]
        by_gpus = paper.departs_by_gpus[: self.setting.gpus + 1][-1:]
        return [*scaled, *paper.departs, *(sentence.replace("{devices}", self.setting.devices) for sentence in by_gpus)]

    @property
    def same_image_size(self) -> bool:
        return self.base.data.image_size == self.paper.data.image_size


def build_plan(paper: Paper, setting: ReproductionSetting) -> ReproductionPlan:
    """Build the plan of a paper's runs."""
    size, search = paper.scales[setting.scale], paper.search
    shared: Fields = {"model": paper.model, **paper.fields, **size.fields}
    scans = tuning = final = None
    chosen = [*paper.chosen]
    if paper.scans is not None and (scan := size.scans):
        run = spec.build(setting.merge(shared, paper.scans, scan.fields))
        scans = engine_scans.ScanRequest(_ENGINES, scan.workers, "threads", scan.repeats, run)
    if search is not None and (search_scale := size.search):
        tuning = Tuning(
            values=setting.merge(shared, {"epochs": search_scale.epochs}),
            space=search.space,
            space_name=paper.name,
            trials=search_scale.trials,
            jobs=search_scale.jobs,
            frameworks=search.frameworks,
            repeats=search_scale.repeats,
        )
        ranges = "; ".join(f"{name} {_range_words(search_range)}" for name, search_range in search.space.items())
        chosen += [
            f"The ranges of the search: {ranges}.",
            f"Epochs of a trial: {search_scale.epochs}; of the final training: {size.final_epochs}.",
        ]
    if search is not None and size.final_epochs is not None:
        values = setting.merge(shared, {"epochs": size.final_epochs})
        final = EvaluationSettings(values=values, frameworks=search.frameworks, tuned={}, repeats=1, scores_validation=True)
    return ReproductionPlan(
        paper,
        setting,
        _as_it_was(paper, setting, shared),
        _corrected(paper, setting, shared),
        chosen,
        scans,
        tuning,
        final,
    )


def _range_words(search_range: Any) -> str:
    has_ends = isinstance(search_range, dict) and {"low", "high"} <= search_range.keys()
    return f"{search_range['low']:g} to {search_range['high']:g}" if has_ends else f"{search_range}"


def _as_it_was(paper: Paper, setting: ReproductionSetting, shared: Fields) -> list[PaperTraining]:
    published, size = paper.as_it_was, paper.scales[setting.scale]
    rows: dict[str, Row] = {}
    for name, run in published.runs.items():
        too_small = SCALES.index(setting.scale) < SCALES.index(run.first_scale)
        if too_small or (setting.gpus < run.gpus and not run.replicas_on_cores):
            continue
        fields = {"epochs": min(size.epochs or run.epochs, run.epochs)}
        if run.replicas_on_cores:  # a core that the replicas cannot share stays idle
            cores, replicas = setting.cores, run.fields.get("replicas", REPLICAS)
            fields["cores"] = cores // replicas * replicas or cores
        one_split: Fields = {"data.seed": 0} if published.each_repeat_a_seed else {}
        values = setting.merge(one_split, shared, published.fields, fields, run.fields, run.at.get(setting.scale, {}))
        rows[name] = Row(id=name, contestant=run.framework, spec=spec.build(values))
    if not rows:
        raise SpecError(
            f"{paper.argument} has no run for this scale and machine. Received: --scale {setting.scale}, {setting.devices}. "
            "Use a larger scale, or a machine with the GPUs of its runs."
        )
    seeds = tuple(range(size.repeats)) if published.each_repeat_a_seed else ()
    if published.together:
        on_cores = any(run.replicas_on_cores for run in published.runs.values())
        return [PaperTraining(AS_IT_WAS, published.title, [*rows.values()], size.repeats, seeds, oversubscribe=on_cores)]
    return [PaperTraining(name, published.runs[name].title, [row], size.repeats, seeds) for name, row in rows.items()]


def _corrected(paper: Paper, setting: ReproductionSetting, shared: Fields) -> PaperTraining:
    """Return serial and data-parallel runs of one spec, a seed for each repeat, on one division of the data."""
    size = paper.scales[setting.scale]
    values = setting.merge({"data.seed": 0}, shared, paper.corrected, size.corrected)
    rows = matrix.build_rows(values, contestants.resolve(launch.FRAMEWORKS), ("serial", "data_parallel"), REPLICAS)
    if setting.scale != "full":  # the papers do not use one core
        num_cores = max(row.spec.cores for row in rows if row.spec.is_parallel)
        rows = [row for row in rows if row.spec.cores == num_cores]
    title = "The same question, asked of identical models"
    return PaperTraining(CORRECTED, title, rows, size.seeds, tuple(range(size.seeds)), prove=setting.scale != SMOKE)
