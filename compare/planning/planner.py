"""A whole plan: everything predicted for each framework, the best layouts measured, the errors carried into projections."""

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
from compare.core.presets import Preset
from compare.core.progress import Display
from compare.execution import launch, matrix
from compare.execution.matrix import Row
from compare.judgement.run_figures import times_in_doubt
from compare.judgement.summary import finished_runs
from compare.judgement.verdict_sentences import DISTURBED
from compare.planning import layouts, machine_file, measuring, prediction, projection, schedules
from compare.planning.accuracy import TIE, PredictionPair
from compare.planning.case import Case
from compare.planning.costs import Costs, PlannedMachine
from compare.planning.layouts import PlannedLayout
from compare.planning.prediction import PredictedLayout
from compare.planning.projection import MAP_REPLICAS, CostModel, MeasuredWinner, ProjectedLayout, MapPoint

MEASURED_LAYOUTS = 3
"""Of each framework, besides serial."""
MEASURED_STEPS = 20
"""Of each measured run. A spec may ask for fewer."""


@dataclass(frozen=True)
class Asked:
    """The options of the command line, read."""

    settings: Preset
    contestants: list[str]
    machine: str
    """A file, or `machine_file.HERE`."""
    limit_mib: float | None
    every_mode: bool = False
    """Whether the best layout of each mode is measured, and not the best layouts alone."""
    sizes: tuple[int, ...] = ()
    """Numbers of replicas to project to."""
    maps: bool = False


@dataclass
class Plan:
    """What was found."""

    run: Spec
    """Serial, on one device."""
    machine: PlannedMachine
    predicted: list[PredictedLayout]
    """Ranked, see `prediction.ranked`."""
    here: bool = True
    """Whether the machine is this one, and not one of a file."""
    disturbed: list[str] = field(default_factory=list[str])
    """Frameworks: other work took cores while they were timed."""
    seconds: float = 0.0
    """That the prediction took, with what was timed for it."""
    cautions: list[str] = field(default_factory=list[str])
    """Sentences: why the figures may be off."""
    changes: list[str] = field(default_factory=list[str])
    """Sentences: what would have to change for the second to win."""
    cuts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Pipelines that another cut makes faster here."""
    grounds: list[CostModel] = field(default_factory=list[CostModel])
    pairs: list[PredictionPair] = field(default_factory=list[PredictionPair])
    projected: list[ProjectedLayout] = field(default_factory=list[ProjectedLayout])
    winners: dict[str, list[MapPoint]] = field(default_factory=dict[str, list[MapPoint]])
    """By framework."""
    measured_winners: dict[str, MeasuredWinner] = field(default_factory=dict[str, MeasuredWinner])
    """By framework."""
    cases: dict[str, dict[str, Case]] = field(default_factory=dict[str, dict[str, Case]])
    """By framework and layout: those that can run here."""
    image_seconds: dict[str, float] = field(default_factory=dict[str, float])
    """Of serial on one device at the batch of a replica, by framework."""


def predict(asked: Asked, shown: Display) -> Plan:
    """Measure what is not known yet, and simulate every layout.

    Raises:
        SpecError, DataRefused, LaunchError: something is refused.
    """
    began, replicas, names = shown.clock(), asked.settings.replicas, asked.contestants
    given = None if asked.machine == machine_file.HERE else _given_machine(asked)
    wanted = spec.build(spec.with_variant(asked.settings.values, "serial", 1))
    shown.stage("asking the frameworks what they can do here")
    with launch.describe_all(names) as answer:
        described = {name: spec.description_for_device(wanted, answer(name)) for name in names}
    hosts = asked.settings.values.get("hosts") or ()
    architecture = sources.architecture_of(wanted)
    architectures.refuse_opaque(architecture, "plan")
    server = any(each.startswith("parameter_server") for each in asked.settings.modes)
    planned_for = given or measuring.this_machine(names, wanted, replicas, hosts, shown, server=server)
    examples = len(sources.load(wanted.data, seed=wanted.split_seed, cache_dir=wanted.paths.cache_dir).train)
    # A spec has no more cores than there are here. Those of the devices count.
    here = machine.available_cores() * max(len(hosts), 1)
    cores = min(replicas * planned_for.cores_of_device, here)
    own_values = {**asked.settings.values, "cores": cores}
    found, refused = layouts.enumerate_layouts(own_values, asked.settings.modes, replicas)
    one = found[0].run.with_fields(cores=planned_for.cores_of_device)
    found[0] = PlannedLayout("serial", one)
    if given is None and wanted.cores > planned_for.cores_of_device:
        found.insert(1, PlannedLayout(f"serial, {wanted.cores} cores", one.with_fields(cores=wanted.cores)))
    plan = Plan(one, planned_for, [], here=given is None)
    for name in names:
        rows = [matrix.build_row(f"{name}-{index}", name, each.run) for index, each in enumerate(found)]
        judged = matrix.check_rows(rows, described, oversubscribe=True)
        layouts_here = [PlannedLayout(each.words, row.spec) for each, row in zip(found, judged, strict=True)]
        barred = [row.unavailable for row in judged]
        costs = measuring.model_costs(
            name, layouts_here[0].run, _batches(layouts_here, planned_for), planned_for.cores_of_device, shown
        )
        if costs.disturbed or planned_for.frameworks[name].disturbed:
            plan.disturbed.append(name)
            plan.cautions.append(f"{name}: other work took cores while layers or messages were timed.{DISTURBED}")
        shown.stage(f"{name}: simulating {len(layouts_here)} layouts")
        _predict_framework(plan, asked, name, layouts_here, barred, architecture, costs, examples, described[name])
        plan.predicted += [
            PredictedLayout(contestant=name, words=mode, run=one, why=f"not predicted: {reason}") for mode, reason in refused.items()
        ]
    plan.predicted = prediction.rank(plan.predicted)
    plan.seconds = shown.clock() - began
    return plan


def _given_machine(asked: Asked) -> PlannedMachine:
    """The machine of a file."""
    replicas = asked.settings.replicas
    made = machine_file.read(Path(asked.machine))
    if missing := [name for name in asked.contestants if name not in made.frameworks]:
        raise SpecError(
            f"{asked.machine} says nothing of {', '.join(missing)}. It has {', '.join(made.frameworks) or 'none'}. Choose with "
            "--frameworks, or add them to the file."
        )
    if len(made.devices) < replicas:
        raise SpecError(
            f"{asked.machine} has fewer devices than replicas. Received: {len(made.devices)} for {replicas}. Add devices, or "
            "use fewer --replicas."
        )
    if made.cores_of_device > (here := machine.available_cores()):
        raise SpecError(
            f"cores_of_device of {asked.machine} is more than this machine has. Received: {made.cores_of_device}, with {here} "
            "here. Layers are timed here with so many. Use fewer."
        )
    return made


def _batches(found: Sequence[PlannedLayout], planned_for: PlannedMachine) -> set[tuple[int, int]]:
    """(cores, batch size) at which layers are timed: on a device the smallest, the largest and a replica's share of a batch."""
    own = planned_for.cores_of_device
    sizes = [each.run.per_replica_batch_size // each.run.micro_batches() for each in found]
    share = min(each.run.per_replica_batch_size for each in found)
    serial = {(each.run.cores, each.run.global_batch_size) for each in found if each.run.mode == "serial"}
    return {(own, size) for size in (min(sizes), share, max(sizes))} | serial


def _predict_framework(
    plan: Plan,
    asked: Asked,
    name: str,
    found: Sequence[PlannedLayout],
    barred: Sequence[str | None],
    architecture: Architecture,
    costs: Costs,
    examples: int,
    description: Mapping[str, Any],
) -> None:
    modes = {mode: facts.get("one_process", False) for mode, facts in description["modes"].items()}
    cases = [
        prediction.build_case(each, architecture, costs, plan.machine, name, examples, one_process=modes.get(each.run.mode, False))
        for each in found
    ]
    own: list[PredictedLayout] = []
    kept = plan.cases[name] = {}
    for layout, case, reason in zip(found, cases, barred, strict=True):
        if reason is not None:
            own.append(PredictedLayout(contestant=name, words=layout.words, run=layout.run, why=reason))
            continue
        own.append(prediction.predict(name, layout, case, cases[0], asked.limit_mib))
        kept[layout.words] = case
        if (better := prediction.with_best_cut(case)) is not None:
            plan.cuts.append(_cut(name, layout, *better))
    plan.predicted += own
    if name not in plan.disturbed:
        plan.changes += _changes(name, [each for each in prediction.rank(own) if each.rankable], kept)
    share = min(each.run.per_replica_batch_size for each in found)
    alone = PlannedLayout("serial", found[0].run.with_fields(global_batch_size=share))
    case = prediction.build_case(alone, architecture, costs, plan.machine, name, examples, one_process=False)
    plan.image_seconds[name] = schedules.step(case)[0].total / share
    plan.grounds.append(
        CostModel(
            contestant=name,
            values={**asked.settings.values, "framework_options": found[0].run.framework_options},
            architecture=architecture,
            costs=costs,
            machine=plan.machine,
            one_process=frozenset(mode for mode, one in modes.items() if one),
            train_examples=examples,
            replica_images=share,
        )
    )


def _cut(name: str, layout: PlannedLayout, placed: Case, gain: float) -> dict[str, Any]:
    assert placed.stages is not None
    ends = [str(stage.architecture.layers[-1].name) for stage in placed.stages]
    return {
        "contestant": name,
        "layout": layout.words,
        "stages": "; ".join(f"{device.name}: to {end}" for device, end in zip(placed.devices, ends, strict=True)),
        "gain": gain,
    }


def _changes(name: str, order: Sequence[PredictedLayout], cases: Mapping[str, Case]) -> list[str]:
    """What would have to change for the second mode to win. Layouts of the best one's mode are passed over.

    Nothing is said of a second mode that is as good within `TIE`.
    """
    best = order[0] if order else None
    other = next((each for each in order if best is not None and each.run.variant != best.run.variant), None)
    if best is None or other is None or best.step_seconds is None or other.step_seconds is None:
        return []
    if (behind := other.step_seconds / best.step_seconds) <= 1 + TIE:
        return []
    needed = prediction.required_speedups(cases[best.words], cases[other.words])
    words = [_words(what, factor) for what, factor in needed.items()]
    said = (
        f"It would win with {' or '.join(words)}."
        if words
        else "No change of links or devices by up to 1,000 times makes it win."
    )
    return [f"{name}: {best.words} is predicted {behind:.2f} times as fast as {other.words}. {said}"]


def _words(what: str, factor: float) -> str:
    which = {"link": "links", "compute": "devices"}[what]
    return f"{which} {factor:.3g} times as fast" if factor >= 1 else f"{which} {1 / factor:.3g} times as slow"


def measure(asked: Asked, plan: Plan, folder: Path) -> None:
    """Run serial and the best layouts of each framework, interleaved, in fresh processes, for a few steps.

    Raises:
        SpecError, DataRefused, LaunchError, FolderError: nothing was run, or no run went well.
        Interrupted: some runs were made.
    """
    rows = measured_rows(plan, every_mode=asked.every_mode)
    request = ComparisonRequest(
        Preset(repeats=asked.settings.repeats, replicas=asked.settings.replicas),
        asked.contestants,
        None,
        prove=False,
        lay_out=lambda settings, frameworks: list(rows),
        oversubscribe=True,
    )
    compared, _ = run.run_nested(request, folder)
    stored = compared.stored
    plan.pairs = pairs(plan, stored.comparison.rows, {row.id: list(finished_runs(stored, row).values()) for row in rows})
    if doubtful := sum(each.in_doubt for each in plan.pairs):
        every = sum(each.n for each in plan.pairs)
        plan.cautions.append(f"{doubtful} of {every} measured runs are in doubt: other work took cores of them.{DISTURBED}")
    if not plan.pairs:
        raise LaunchError(f"No measured run went well. {folder} has their results and logs.")


def measured_rows(plan: Plan, *, every_mode: bool = False) -> list[Row]:
    """The rows that are measured: of each framework serial on one device, and the best layouts.

    Args:
        every_mode: whether these are the best of each mode, and serial on all cores.
    """
    made: list[Row] = []
    for name in dict.fromkeys(each.contestant for each in plan.predicted):
        own = [each for each in plan.predicted if each.contestant == name and each.rankable]
        serial = [each for each in own if each.run.mode == "serial" and each.words == "serial"]
        best = [each for each in own if each not in serial]
        if every_mode:
            fastest: dict[str, PredictedLayout] = {}
            for each in best:
                fastest.setdefault(each.run.variant, each)
            best = list(fastest.values())
        else:
            best = best[:MEASURED_LAYOUTS]
        for each in [*serial, *best]:
            steps = min(each.run.steps or MEASURED_STEPS, MEASURED_STEPS)
            short = each.run.with_fields(epochs=None, steps=steps, checkpoint_seconds=None)
            made.append(matrix.build_row(row_id(each), name, short))
    return made


def row_id(each: PredictedLayout) -> str:
    """Name of a layout's row."""
    words = each.words.replace(",", "").replace("(", "").replace(")", "").replace(" ", "-")
    return f"{each.contestant}-{words}"


def pairs(plan: Plan, rows: Sequence[Row], results: Mapping[str, Sequence[RunResult]]) -> list[PredictionPair]:
    """Predicted beside measured, for every layout with good runs. Seconds are those of a step of a whole batch."""
    by_id = {row_id(each): each for each in plan.predicted}
    made: list[PredictionPair] = []
    for row in rows:
        runs = [each for each in results.get(row.id, []) if sum(epoch.timed_images for epoch in each.epochs)]
        predicted = by_id[row.id].step_seconds
        if predicted is None or not runs:
            continue
        times = [step_seconds(each) for each in runs]
        peaks = [peak for each in runs for peak in each.peak_memory_by_process_mib]
        made.append(
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
    return made


def step_seconds(result: RunResult) -> float:
    """Seconds of a step of a whole batch, without steps that are not timed."""
    images = sum(each.timed_images for each in result.epochs)
    return sum(each.timed_seconds for each in result.epochs) * result.spec.global_batch_size / images


def look_further(asked: Asked, plan: Plan) -> None:
    """Add what the simulator says of other sizes and links."""
    for ground in plan.grounds:
        alone = plan.image_seconds[ground.contestant]
        own = [each for each in plan.pairs if each.contestant == ground.contestant]
        if asked.sizes:
            plan.projected += projection.project(ground, asked.sizes, asked.settings.modes, alone, own)
        if asked.maps:
            plan.winners[ground.contestant] = projection.fastest_modes(ground, asked.settings.modes, alone)
            if (found := _measured_winner(plan, ground.contestant, own)) is not None:
                plan.measured_winners[ground.contestant] = found


def _measured_winner(plan: Plan, name: str, own: Sequence[PredictionPair]) -> MeasuredWinner | None:
    """Of modes whose replicas are processes, as those of a map are.

    None: serial or nothing else was measured, there are no links between processes, or a map has no such number of replicas.
    """
    runs = {words: case.run for words, case in plan.cases[name].items() if not case.one_process}
    link = plan.machine.frameworks[name].links.all_reduce
    alone = next((each for each in own if each.words == "serial"), None)
    others = [each for each in own if each.words in runs and runs[each.words].mode != "serial"]
    others = [each for each in others if runs[each.words].not_serial_because is None and runs[each.words].replicas in MAP_REPLICAS]
    if link is None or alone is None or not others:
        return None
    fastest = min([alone, *others], key=lambda each: each.measured_seconds)
    return MeasuredWinner(
        seconds_per_byte=link.beta_seconds_per_byte,
        replicas=runs[others[0].words].replicas,
        mode=runs[fastest.words].variant,
        speedup=alone.measured_seconds / fastest.measured_seconds,
    )
