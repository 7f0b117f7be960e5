"""Plans a run: predicts all layouts of each framework, measures the best ones, and projects with the measured errors."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import spec
from common.artifacts.schema import RunResult
from common.data import sources
from common.machine import machine
from common.models import architectures
from common.models.architectures import Architecture
from common.spec import Spec, SpecError
from compare.comparison import run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.core.errors import LaunchError
from compare.core.progress import Display
from compare.execution import matrix
from compare.execution.comparison_settings import ComparisonSettings
from compare.execution.matrix import Row
from compare.execution.twins import Twins
from compare.judgement.run_figures import times_in_doubt
from compare.judgement.run_pairs import finished_runs
from compare.judgement.statement_words import DISTURBED
from compare.planning import layouts, machine_file, measuring, prediction, projection, schedules
from compare.planning.accuracy import TIE, PredictionPair
from compare.planning.case import Case
from compare.planning.costs import Costs, PlannedMachine
from compare.planning.layouts import SERIAL_WORDS, PlannedLayout
from compare.planning.prediction import PredictedLayout
from compare.planning.projection import MAP_REPLICAS, CostModel, MapPoint, MeasuredWinner, ProjectedLayout

MEASURED_LAYOUTS = 3
"""Number of measured layouts of each framework, besides serial."""
MEASURED_STEPS = 20
"""Number of steps of each measured run. A spec may have fewer."""


@dataclass(frozen=True)
class PlanRequest:
    """The parsed options of the command line."""

    settings: ComparisonSettings
    twins: Twins
    machine: str
    """Path of a machine's file, or `machine_file.HERE`."""
    limit_mib: float | None
    every_mode: bool = False
    """Whether the best layout of each mode is measured, instead of the best layouts of all."""
    sizes: tuple[int, ...] = ()
    """Numbers of replicas to project to."""
    maps: bool = False


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
    cost_models: list[CostModel] = field(default_factory=list[CostModel])
    pairs: list[PredictionPair] = field(default_factory=list[PredictionPair])
    projected: list[ProjectedLayout] = field(default_factory=list[ProjectedLayout])
    winners: dict[str, list[MapPoint]] = field(default_factory=dict[str, list[MapPoint]])
    """Points of the map, by framework."""
    measured_winners: dict[str, MeasuredWinner] = field(default_factory=dict[str, MeasuredWinner])
    """Fastest measured mode, by framework."""
    cases: dict[str, dict[str, Case]] = field(default_factory=dict[str, dict[str, Case]])
    """Cases of the layouts that can run here, by framework and layout."""
    image_seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds for each image of serial on one device, at the batch of a replica, by framework."""


def predict(request: PlanRequest, progress: Display) -> PlanResult:
    """Measure what the cache folder does not hold yet, and simulate every layout."""
    start, replicas, twins = progress.clock(), request.settings.replicas, request.twins
    stored_machine = None if request.machine == machine_file.HERE else _read_machine(request)
    run_spec = spec.build(spec.with_variant(request.settings.values, "serial", 1))
    progress.stage("asking the frameworks what they can do here")
    with twins.describe_all() as answer:
        descriptions = {name: spec.description_for_device(run_spec, answer(name)) for name in twins.names}
    hosts = request.settings.values.get("hosts") or ()
    architecture = sources.architecture_of(run_spec)
    architectures.refuse_opaque(architecture, "plan")
    server = any(spec.MODES[mode].has_server for mode in request.settings.modes)
    planned_machine = stored_machine or measuring.this_machine(twins, run_spec, replicas, hosts, progress, server=server)
    examples = len(sources.load(run_spec.data, seed=run_spec.split_seed, cache_dir=run_spec.paths.cache_dir).train)
    # A spec has no more cores than there are here. Those of the devices count.
    local_cores = machine.available_cores() * max(len(hosts), 1)
    cores = min(replicas * planned_machine.cores_of_device, local_cores)
    values = {**request.settings.values, "cores": cores}
    candidates, refusals = layouts.enumerate_layouts(values, request.settings.modes, replicas)
    serial = candidates[0].run.with_fields(cores=planned_machine.cores_of_device)
    candidates[0] = PlannedLayout(SERIAL_WORDS, serial)
    if stored_machine is None and run_spec.cores > planned_machine.cores_of_device:
        candidates.insert(1, PlannedLayout(f"serial, {run_spec.cores} cores", serial.with_fields(cores=run_spec.cores)))
    plan = PlanResult(serial, planned_machine, [], is_local=stored_machine is None)
    for name in twins.names:
        rows = [matrix.build_row(f"{name}-{index}", twins[name], layout.run) for index, layout in enumerate(candidates)]
        checked_rows = matrix.check_rows(rows, descriptions, twins.contestants, oversubscribe=True)
        layouts_here = [PlannedLayout(layout.words, row.spec) for layout, row in zip(candidates, checked_rows, strict=True)]
        unavailable = [str(row.unavailable) if row.unavailable else None for row in checked_rows]
        costs = measuring.model_costs(
            twins, name, layouts_here[0].run, _batches(layouts_here, planned_machine), planned_machine.cores_of_device, progress
        )
        if costs.disturbed or planned_machine.frameworks[name].disturbed:
            plan.disturbed.append(name)
            plan.cautions.append(f"{name}: other work took cores while layers or messages were timed. {DISTURBED}")
        progress.stage(f"{name}: simulating {len(layouts_here)} layouts")
        _predict_framework(plan, request, name, layouts_here, unavailable, architecture, costs, examples, descriptions[name])
        plan.predicted += [
            PredictedLayout(contestant=name, words=mode, run=serial, why=f"not predicted: {reason}")
            for mode, reason in refusals.items()
        ]
    plan.predicted = prediction.rank(plan.predicted)
    plan.seconds = progress.clock() - start
    return plan


def _read_machine(request: PlanRequest) -> PlannedMachine:
    """Read the machine from its file."""
    replicas = request.settings.replicas
    planned_machine = machine_file.read(Path(request.machine))
    if missing := [name for name in request.twins.names if name not in planned_machine.frameworks]:
        raise SpecError(
            f"{request.machine} says nothing of {', '.join(missing)}. It has "
            f"{', '.join(planned_machine.frameworks) or 'none'}. Choose with --frameworks, or add them to the file."
        )
    if len(planned_machine.devices) < replicas:
        raise SpecError(
            f"{request.machine} has fewer devices than replicas. Received: {len(planned_machine.devices)} for {replicas}. "
            "Add devices, or use fewer --replicas."
        )
    if planned_machine.cores_of_device > (local_cores := machine.available_cores()):
        raise SpecError(
            f"cores_of_device of {request.machine} is more than this machine has. Received: "
            f"{planned_machine.cores_of_device}, with {local_cores} here. Layers are timed here with so many. Use fewer."
        )
    return planned_machine


def _batches(candidates: Sequence[PlannedLayout], planned_machine: PlannedMachine) -> set[tuple[int, int]]:
    """Return (cores, batch size) at which layers are timed: the smallest, the largest and a replica's share of a batch."""
    cores = planned_machine.cores_of_device
    sizes = [layout.run.per_replica_batch_size // layout.run.micro_batches() for layout in candidates]
    share = min(layout.run.per_replica_batch_size for layout in candidates)
    serial = {(layout.run.cores, layout.run.global_batch_size) for layout in candidates if not layout.run.is_parallel}
    return {(cores, size) for size in (min(sizes), share, max(sizes))} | serial


def _predict_framework(
    plan: PlanResult,
    request: PlanRequest,
    name: str,
    candidates: Sequence[PlannedLayout],
    unavailable: Sequence[str | None],
    architecture: Architecture,
    costs: Costs,
    examples: int,
    description: Mapping[str, Any],
) -> None:
    modes = {mode: facts.get("one_process", False) for mode, facts in description["modes"].items()}
    cases = [
        prediction.build_case(
            layout, architecture, costs, plan.machine, name, examples, one_process=modes.get(layout.run.mode, False)
        )
        for layout in candidates
    ]
    predictions: list[PredictedLayout] = []
    runnable = plan.cases[name] = {}
    for layout, case, reason in zip(candidates, cases, unavailable, strict=True):
        if reason is not None:
            predictions.append(PredictedLayout(contestant=name, words=layout.words, run=layout.run, why=reason))
            continue
        predictions.append(prediction.predict(name, layout, case, cases[0], request.limit_mib))
        runnable[layout.words] = case
        if (better := prediction.with_best_cut(case)) is not None:
            plan.cuts.append(_cut(name, layout, *better))
    plan.predicted += predictions
    if name not in plan.disturbed:
        plan.changes += _changes(name, [layout for layout in prediction.rank(predictions) if layout.rankable], runnable)
    share = min(layout.run.per_replica_batch_size for layout in candidates)
    serial = PlannedLayout(SERIAL_WORDS, candidates[0].run.with_fields(global_batch_size=share))
    case = prediction.build_case(serial, architecture, costs, plan.machine, name, examples, one_process=False)
    plan.image_seconds[name] = schedules.step(case)[0].total / share
    plan.cost_models.append(
        CostModel(
            contestant=name,
            values={**request.settings.values, "framework_options": candidates[0].run.framework_options},
            architecture=architecture,
            costs=costs,
            machine=plan.machine,
            one_process=frozenset(mode for mode, is_one in modes.items() if is_one),
            train_examples=examples,
            replica_images=share,
        )
    )


def _cut(name: str, layout: PlannedLayout, case: Case, gain: float) -> dict[str, Any]:
    assert case.stages is not None
    ends = [str(stage.architecture.layers[-1].name) for stage in case.stages]
    return {
        "contestant": name,
        "layout": layout.words,
        "stages": "; ".join(f"{device.name}: to {end}" for device, end in zip(case.devices, ends, strict=True)),
        "gain": gain,
    }


def _changes(name: str, order: Sequence[PredictedLayout], cases: Mapping[str, Case]) -> list[str]:
    """Describe the changes that would let the second mode win. Other layouts of the best one's mode are skipped.

    Empty for a second mode that is as good within `TIE`.
    """
    best = order[0] if order else None
    other = next((candidate for candidate in order if best is not None and candidate.run.variant != best.run.variant), None)
    if best is None or other is None or best.step_seconds is None or other.step_seconds is None:
        return []
    if (ratio := other.step_seconds / best.step_seconds) <= 1 + TIE:
        return []
    speedups = prediction.required_speedups(cases[best.words], cases[other.words])
    words = [_format_speedup(resource, factor) for resource, factor in speedups.items()]
    condition = (
        f"It would win with {' or '.join(words)}."
        if words
        else "No change of links or devices by up to 1,000 times makes it win."
    )
    return [f"{name}: {best.words} is predicted {ratio:.2f} times as fast as {other.words}. {condition}"]


def _format_speedup(resource: str, factor: float) -> str:
    noun = {"link": "links", "compute": "devices"}[resource]
    return f"{noun} {factor:.3g} times as fast" if factor >= 1 else f"{noun} {1 / factor:.3g} times as slow"


def measure(request: PlanRequest, plan: PlanResult, folder: Path) -> None:
    """Run serial and the best layouts of each framework, interleaved, in fresh processes, for a few steps."""
    rows = measured_rows(plan, request.twins, every_mode=request.every_mode)
    settings = ComparisonSettings(repeats=request.settings.repeats, prove=False, oversubscribe=True)
    outcome, _ = run.run_nested(ComparisonRequest(settings, rows, request.twins), folder)
    stored = outcome.stored
    plan.pairs = pair_measurements(
        plan, stored.comparison.rows, {row.id: list(finished_runs(stored, row).values()) for row in rows}
    )
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
    for name in dict.fromkeys(layout.contestant for layout in plan.predicted):
        predictions = [layout for layout in plan.predicted if layout.contestant == name and layout.rankable]
        serial = [layout for layout in predictions if layout.words == SERIAL_WORDS]
        best = [layout for layout in predictions if layout not in serial]
        if every_mode:
            fastest: dict[str, PredictedLayout] = {}
            for layout in best:
                fastest.setdefault(layout.run.variant, layout)
            best = list(fastest.values())
        else:
            best = best[:MEASURED_LAYOUTS]
        for layout in [*serial, *best]:
            steps = min(layout.run.steps or MEASURED_STEPS, MEASURED_STEPS)
            short_spec = layout.run.with_fields(epochs=None, steps=steps, checkpoint_seconds=None)
            rows.append(matrix.build_row(row_id(layout), twins[name], short_spec))
    return rows


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


def extrapolate(request: PlanRequest, plan: PlanResult) -> None:
    """Add projections to other numbers of replicas, and maps over links."""
    for cost_model in plan.cost_models:
        image_seconds = plan.image_seconds[cost_model.contestant]
        pairs = [pair for pair in plan.pairs if pair.contestant == cost_model.contestant]
        if request.sizes:
            plan.projected += projection.project(cost_model, request.sizes, request.settings.modes, image_seconds, pairs)
        if request.maps:
            plan.winners[cost_model.contestant] = projection.fastest_modes(cost_model, request.settings.modes, image_seconds)
            if (winner := _measured_winner(plan, cost_model.contestant, pairs)) is not None:
                plan.measured_winners[cost_model.contestant] = winner


def _measured_winner(plan: PlanResult, name: str, pairs: Sequence[PredictionPair]) -> MeasuredWinner | None:
    """Return the fastest measured multi-process mode, to mark on the map.

    None: serial or nothing else was measured, there are no links between processes, or a map has no such number of replicas.
    """
    runs = {words: case.run for words, case in plan.cases[name].items() if not case.one_process}
    link = plan.machine.frameworks[name].links.all_reduce
    serial = next((pair for pair in pairs if pair.words == SERIAL_WORDS), None)
    candidates = [pair for pair in pairs if pair.words in runs and runs[pair.words].is_parallel]
    candidates = [
        pair for pair in candidates if runs[pair.words].not_serial_because is None and runs[pair.words].replicas in MAP_REPLICAS
    ]
    if link is None or serial is None or not candidates:
        return None
    fastest = min([serial, *candidates], key=lambda pair: pair.measured_seconds)
    return MeasuredWinner(
        seconds_per_byte=link.beta_seconds_per_byte,
        replicas=runs[candidates[0].words].replicas,
        mode=runs[fastest.words].variant,
        speedup=serial.measured_seconds / fastest.measured_seconds,
    )
