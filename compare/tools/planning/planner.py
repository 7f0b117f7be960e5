"""Plans a run: predicts all layouts of each framework, measures the best ones, and projects with the measured errors."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import spec
from common.artifacts.schema import RunResult
from common.data import sources
from common.machine import machine
from common.models import architectures
from common.spec import Spec, SpecError
from compare.cli.errors import LaunchError
from compare.cli.progress import Display
from compare.comparison import run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.judgement.run_figures import times_in_doubt
from compare.judgement.run_pairs import finished_runs
from compare.judgement.statement_words import DISTURBED
from compare.running import matrix
from compare.running.comparison_settings import ComparisonSettings
from compare.running.matrix import Row
from compare.running.twins import Twins
from compare.statistics.scaling_laws import Kind, LinkModel
from compare.tools.planning import measuring, planned_machine, prediction, projection
from compare.tools.planning.accuracy import TIE, PredictionPair
from compare.tools.planning.case import Case
from compare.tools.planning.planned_machine import HERE, PlannedMachine
from compare.tools.planning.prediction import SERIAL_WORDS, CostModel, PredictedLayout
from compare.tools.planning.projection import MAP_REPLICAS, MapPoint, MeasuredWinner, ProjectedLayout

MEASURED_LAYOUTS = 3
"""Number of measured layouts of each framework, besides serial."""
MEASURED_STEPS = 20
"""Number of steps of each measured run. A spec may have fewer."""


@dataclass
class PlanResult:
    """Predictions, measurements and projections of a plan."""

    run: Spec
    """Spec of the serial run on one device."""
    machine: PlannedMachine
    predicted: list[PredictedLayout]
    """Predicted layouts in the order of `prediction.rank`."""
    is_local: bool = True
    """Whether the machine is this one, instead of one from a file."""
    disturbed: list[str] = field(default_factory=list[str])
    """Frameworks whose timing other work disturbed."""
    seconds: float = 0.0
    """Seconds that the prediction took, including its measurements."""
    cautions: list[str] = field(default_factory=list[str])
    """Reasons why the figures may be off, in sentences."""
    changes: list[str] = field(default_factory=list[str])
    """Changes that would let the second mode win, in sentences."""
    cuts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Pipelines that are faster with another cut on this machine."""
    cost_models: dict[str, CostModel] = field(default_factory=dict[str, CostModel])
    """Costs by framework."""
    pairs: list[PredictionPair] = field(default_factory=list[PredictionPair])
    projected: list[ProjectedLayout] = field(default_factory=list[ProjectedLayout])
    winners: dict[str, list[MapPoint]] = field(default_factory=dict[str, list[MapPoint]])
    """Points of the map, by framework."""
    measured_winners: dict[str, MeasuredWinner] = field(default_factory=dict[str, MeasuredWinner])
    """Fastest measured mode, by framework."""
    share: int = 1
    """Smallest number of images that a replica has in a step of a layout."""

    @property
    def names(self) -> list[str]:
        """Names of the frameworks that were predicted, in their order."""
        return list(dict.fromkeys(layout.contestant for layout in self.predicted))

    def case(self, layout: PredictedLayout) -> Case:
        """Return the case of a layout in its framework."""
        return self.cost_models[layout.contestant].case(layout.run)

    def predictions_of(self, name: str) -> list[PredictedLayout]:
        """Return the predicted layouts of one framework, the fastest first."""
        return [layout for layout in self.predicted if layout.contestant == name]

    def pairs_of(self, name: str) -> list[PredictionPair]:
        """Return the measured layouts of one framework."""
        return [pair for pair in self.pairs if pair.contestant == name]


def predict(
    settings: ComparisonSettings, twins: Twins, progress: Display, *, machine_path: str = HERE, limit_mib: float | None = None
) -> PlanResult:
    """Measure what the cache folder does not hold yet, and simulate every layout.

    Args:
        settings: spec, modes and number of replicas of the plan.
        twins: contestants to plan for.
        progress: shows what is done.
        machine_path: path of a machine's file, or `HERE`.
        limit_mib: memory limit of each device. None: the machine's own limits count.
    """
    start, replicas = progress.clock(), settings.replicas
    stored_machine = None if machine_path == HERE else _read_machine(machine_path, twins.names, replicas)
    run_spec = spec.build(spec.with_variant(settings.values, "serial", 1))
    progress.stage("asking the frameworks what they can do here")
    with twins.describe_all() as answer:
        descriptions = {name: spec.description_for_device(run_spec, answer(name)) for name in twins.names}
    hosts = settings.values.get("hosts") or ()
    architecture = sources.architecture_of(run_spec)
    architectures.refuse_opaque(architecture, "plan")
    server = any(spec.MODES[mode].has_server for mode in settings.modes)
    own_machine = stored_machine or measuring.this_machine(twins, run_spec, replicas, hosts, progress, server=server)
    device_cores = own_machine.cores_of_device
    examples = len(sources.load(run_spec.data, seed=run_spec.split_seed, cache_dir=run_spec.paths.cache_dir).train)
    # A spec has no more cores than there are here. Those of the devices count.
    cores = min(replicas * device_cores, machine.available_cores() * max(len(hosts), 1))
    parallel, refusals = prediction.enumerate_layouts({**settings.values, "cores": cores}, settings.modes, replicas)
    serial = parallel.pop(SERIAL_WORDS).with_fields(cores=device_cores)
    layouts = {SERIAL_WORDS: serial}
    if stored_machine is None and run_spec.cores > device_cores:
        layouts[f"serial, {run_spec.cores} cores"] = serial.with_fields(cores=run_spec.cores)
    layouts |= parallel
    plan = PlanResult(serial, own_machine, [], is_local=stored_machine is None)
    plan.share = min(layout.per_replica_batch_size for layout in layouts.values())
    for name in twins.names:
        rows = [matrix.build_row(f"{name}-{index}", twins[name], layout) for index, layout in enumerate(layouts.values())]
        rows = dict(zip(layouts, matrix.check_rows(rows, descriptions, twins.contestants, oversubscribe=True), strict=True))
        serial = rows[SERIAL_WORDS].spec
        batches = _batches([row.spec for row in rows.values()], device_cores, plan.share)
        cost_model = CostModel(
            contestant=name,
            values={**settings.values, "framework_options": serial.framework_options},
            serial=serial,
            architecture=architecture,
            costs=measuring.model_costs(twins, name, serial, batches, device_cores, progress),
            machine=own_machine,
            one_process=frozenset(mode for mode, facts in descriptions[name]["modes"].items() if facts.get("one_process")),
            train_examples=examples,
        )
        plan.cost_models[name] = cost_model
        if cost_model.costs.disturbed or own_machine.frameworks[name].disturbed:
            plan.disturbed.append(name)
            plan.cautions.append(f"{name}: other work took cores while layers or messages were timed. {DISTURBED}")
        progress.stage(f"{name}: simulating {len(rows)} layouts")
        _predict_framework(plan, cost_model, rows, limit_mib)
        plan.predicted += [
            PredictedLayout(contestant=name, words=mode, run=plan.run, why=f"not predicted: {reason}")
            for mode, reason in refusals.items()
        ]
    plan.predicted = prediction.rank(plan.predicted)
    plan.seconds = progress.clock() - start
    return plan


def _read_machine(path: str, names: Collection[str], replicas: int) -> PlannedMachine:
    """Read the machine from its file."""
    stored_machine = planned_machine.read(Path(path))
    if missing := [name for name in names if name not in stored_machine.frameworks]:
        raise SpecError(
            f"{path} says nothing of {', '.join(missing)}. It has {', '.join(stored_machine.frameworks) or 'none'}. "
            "Choose with --frameworks, or add them to the file."
        )
    if len(stored_machine.devices) < replicas:
        raise SpecError(
            f"{path} has fewer devices than replicas. Received: {len(stored_machine.devices)} for {replicas}. Add devices, or "
            "use fewer --replicas."
        )
    if stored_machine.cores_of_device > (local_cores := machine.available_cores()):
        raise SpecError(
            f"cores_of_device of {path} is more than this machine has. Received: {stored_machine.cores_of_device}, with "
            f"{local_cores} here. Layers are timed here with so many. Use fewer."
        )
    return stored_machine


def _batches(runs: Sequence[Spec], cores: int, share: int) -> set[tuple[int, int]]:
    """Return (cores, batch size) where layers are timed: the smallest, the largest and a replica's share of a batch."""
    sizes = [run.per_replica_batch_size // run.micro_batches() for run in runs]
    serial = {(run.cores, run.global_batch_size) for run in runs if not run.is_parallel}
    return {(cores, size) for size in (min(sizes), share, max(sizes))} | serial


def _predict_framework(plan: PlanResult, cost_model: CostModel, rows: Mapping[str, Row], limit_mib: float | None) -> None:
    """Add the predictions of one framework.

    Args:
        plan: gets the predictions.
        cost_model: costs in this framework.
        rows: row of each layout, by its words.
        limit_mib: memory limit of each device.
    """
    name, predictions = cost_model.contestant, list[PredictedLayout]()
    serial = cost_model.case(cost_model.serial)
    for words, row in rows.items():
        if row.unavailable:
            predictions.append(PredictedLayout(contestant=name, words=words, run=row.spec, why=str(row.unavailable)))
            continue
        case = cost_model.case(row.spec)
        predictions.append(prediction.predict(name, words, case, serial, limit_mib))
        if (better := prediction.with_best_cut(case)) is not None:
            plan.cuts.append(_cut(name, words, *better))
    plan.predicted += predictions
    if name not in plan.disturbed:
        plan.changes += _changes(plan, [layout for layout in prediction.rank(predictions) if layout.rankable])


def _cut(name: str, words: str, case: Case, gain: float) -> dict[str, Any]:
    assert case.stages is not None
    ends = [str(stage.architecture.layers[-1].name) for stage in case.stages]
    return {
        "contestant": name,
        "layout": words,
        "stages": "; ".join(f"{device.name}: to {end}" for device, end in zip(case.devices, ends, strict=True)),
        "gain": gain,
    }


def _changes(plan: PlanResult, order: Sequence[PredictedLayout]) -> list[str]:
    """Describe the changes that would let the second mode win. Other layouts of the best one's mode are skipped.

    Empty for a second mode that is as good within `TIE`.
    """
    best = order[0] if order else None
    other = next((candidate for candidate in order if best is not None and candidate.run.variant != best.run.variant), None)
    if best is None or other is None or best.step_seconds is None or other.step_seconds is None:
        return []
    if (ratio := other.step_seconds / best.step_seconds) <= 1 + TIE:
        return []
    speedups = prediction.required_speedups(plan.case(best), plan.case(other))
    words = [_format_speedup(resource, factor) for resource, factor in speedups.items()]
    condition = (
        f"It would win with {' or '.join(words)}."
        if words
        else "No change of links or devices by up to 1,000 times makes it win."
    )
    return [f"{best.contestant}: {best.words} is predicted {ratio:.2f} times as fast as {other.words}. {condition}"]


def _format_speedup(resource: str, factor: float) -> str:
    noun = {"link": "links", "compute": "devices"}[resource]
    return f"{noun} {factor:.3g} times as fast" if factor >= 1 else f"{noun} {1 / factor:.3g} times as slow"


def measure(plan: PlanResult, settings: ComparisonSettings, twins: Twins, folder: Path, *, every_mode: bool) -> None:
    """Run serial and the best layouts of each framework, interleaved, in fresh processes, for a few steps."""
    rows = measured_rows(plan, twins, every_mode=every_mode)
    settings = ComparisonSettings(repeats=settings.repeats, prove=False, oversubscribe=True)
    stored = run.run_nested(ComparisonRequest(settings, rows, twins), folder)[0].stored
    results = {row.id: list(finished_runs(stored, row).values()) for row in rows}
    plan.pairs = pair_measurements(plan, stored.comparison.rows, results)
    if doubtful := sum(pair.in_doubt for pair in plan.pairs):
        num_runs = sum(pair.n for pair in plan.pairs)
        plan.cautions.append(f"{doubtful} of {num_runs} measured runs are in doubt: other work took cores of them. {DISTURBED}")
    if not plan.pairs:
        raise LaunchError(f"No measured run went well. {folder} has their results and logs.")


def measured_rows(plan: PlanResult, twins: Twins, *, every_mode: bool = False) -> list[Row]:
    """Return the rows to measure: for each framework serial on one device, and the best layouts.

    Args:
        plan: the predictions.
        twins: the contestants.
        every_mode: whether to measure the best layout of each mode, and serial on all cores.
    """
    rows: list[Row] = []
    for name in plan.names:
        predictions = [layout for layout in plan.predictions_of(name) if layout.rankable]
        serial = [layout for layout in predictions if layout.words == SERIAL_WORDS]
        best = [layout for layout in predictions if layout not in serial]
        best = prediction.best_of_each_mode(best) if every_mode else best[:MEASURED_LAYOUTS]
        rows += [
            build_row(layout, twins, min(layout.run.steps or MEASURED_STEPS, MEASURED_STEPS)) for layout in [*serial, *best]
        ]
    return rows


def build_row(layout: PredictedLayout, twins: Twins, steps: int) -> Row:
    """Return the row that measures a layout for some steps."""
    short_spec = layout.run.with_fields(epochs=None, steps=steps, checkpoint_seconds=None)
    return matrix.build_row(row_id(layout), twins[layout.contestant], short_spec)


def row_id(layout: PredictedLayout) -> str:
    """Return the id of a layout's row."""
    words = layout.words.replace(",", "").replace("(", "").replace(")", "").replace(" ", "-")
    return f"{layout.contestant}-{words}"


def pair_measurements(
    plan: PlanResult, rows: Sequence[Row], results: Mapping[str, Sequence[RunResult]]
) -> list[PredictionPair]:
    """Return predictions beside measurements of every layout with good runs. Seconds are those of a step of a whole batch."""
    by_id = {row_id(layout): layout for layout in plan.predicted}
    pairs: list[PredictionPair] = []
    for row in rows:
        runs = [result for result in results.get(row.id, []) if sum(epoch.timed_images for epoch in result.epochs)]
        predicted = by_id[row.id].step_seconds
        if predicted is None or not runs:
            continue
        times = [step_seconds(result) for result in runs]
        peaks = [peak for result in runs for peak in result.peak_memory_by_process_mib]
        pairs.append(
            PredictionPair(
                contestant=row.contestant,
                words=by_id[row.id].words,
                predicted_seconds=predicted,
                measured_seconds=statistics.median(times),
                low_seconds=min(times),
                high_seconds=max(times),
                n=len(times),
                in_doubt=sum(map(times_in_doubt, runs)),
                predicted_mib=by_id[row.id].process_mib,
                measured_mib=max(peaks, default=None),
            )
        )
    return pairs


def step_seconds(result: RunResult) -> float:
    """Return the seconds of a step of a whole batch, over the timed steps."""
    images = sum(epoch.timed_images for epoch in result.epochs)
    return sum(epoch.timed_seconds for epoch in result.epochs) * result.spec.global_batch_size / images


def project(
    plan: PlanResult, modes: Sequence[str], sizes: Sequence[int], kinds: Sequence[Kind], network: LinkModel | None
) -> None:
    """Add projections to other numbers of replicas."""
    for name, cost_model in plan.cost_models.items():
        pairs = plan.pairs_of(name)
        plan.projected += projection.project(cost_model, modes, plan.share, pairs, sizes=sizes, kinds=kinds, network=network)
    known = {(row.kind, row.replicas) for row in plan.projected}
    if missing := [f"{size:,} ({kind})" for kind, size in itertools.product(kinds, sizes) if (kind, size) not in known]:
        plan.cautions.append(
            f"Nothing is projected to {', '.join(missing)} replicas. No mode of the plan takes so many, or the batch is small."
        )


def map_fastest_modes(plan: PlanResult, modes: Sequence[str]) -> None:
    """Add maps of the fastest mode over links, replicas and speeds."""
    for name, cost_model in plan.cost_models.items():
        plan.winners[name] = projection.fastest_modes(cost_model, modes, plan.share)
        if (winner := _measured_winner(plan, name, plan.pairs_of(name))) is not None:
            plan.measured_winners[name] = winner


def _measured_winner(plan: PlanResult, name: str, pairs: Sequence[PredictionPair]) -> MeasuredWinner | None:
    """Return the fastest measured multi-process mode, to mark on the map.

    None: serial or nothing else was measured, there are no links between processes, or a map has no such number of replicas.
    """
    runs = {layout.words: layout.run for layout in plan.predictions_of(name) if not plan.case(layout).one_process}
    link = plan.machine.frameworks[name].links.all_reduce
    serial = next((pair for pair in pairs if pair.words == SERIAL_WORDS), None)
    on_map = {
        words for words, run in runs.items() if run.is_parallel and not run.not_serial_because and run.replicas in MAP_REPLICAS
    }
    candidates = [pair for pair in pairs if pair.words in on_map]
    if link is None or serial is None or not candidates:
        return None
    fastest = min([serial, *candidates], key=lambda pair: pair.measured_seconds)
    return MeasuredWinner(
        seconds_per_byte=link.beta_seconds_per_byte,
        replicas=runs[candidates[0].words].replicas,
        mode=runs[fastest.words].variant,
        speedup=serial.measured_seconds / fastest.measured_seconds,
    )
