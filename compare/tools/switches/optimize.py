"""`convtwins optimize`: search the switches that make training fastest on this machine, and store them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from common import spec
from common.data import sources
from common.machine import machine, rates
from common.machine.machine import Facts
from common.machine.rates import Rates
from common.models import architectures, work
from common.spec import Spec, SpecError
from compare.cli import commands, wording
from compare.cli.commands import Invocation, Outcome
from compare.cli.option_parsing import parse_choices
from compare.cli.option_types import Names
from compare.cli.progress import Display
from compare.comparison import comparison_plan
from compare.reporting import document, tables
from compare.reporting.document import Report
from compare.reporting.tables import Column, Table
from compare.results import store
from compare.results.workspace import FolderKind, PlannedWork, Workspace
from compare.running import best_switches, code_digest, contestants, options
from compare.running.best_switches import BestSwitches, SwitchSearchBudget
from compare.running.twins import Twins
from compare.tools.switches.search import (
    ACCELERATOR_EPOCHS,
    DRIFT_STEPS,
    LEAST_EPOCHS,
    MOST_DRIFT_RATIO,
    PLAIN,
    USUAL,
    LadderStep,
    SearchRequest,
    SwitchSearch,
)

RECORD_FILE = "optimize.json"
LADDER = "ladder"
"""Name of the files with the ladder of each framework, in the framework's folder."""


class SearchRecord(PlannedWork):
    """The plan of the search in a folder. Another search cannot resume in the folder."""

    request: SearchRequest
    frameworks: list[str]
    versions: dict[str, dict[str, str]]
    rates: Rates | None
    """Rates of the machine when the search began."""

    def identity(self) -> dict[str, Any]:
        return self.model_dump(mode="json", include={"request", "frameworks", "versions"})


@dataclass(frozen=True)
class SearchOutcome:
    """One framework's ladder, and the best switches that are stored from it."""

    contestant: str
    ladder: list[LadderStep]
    best: BestSwitches
    path: Path
    rounds: int
    """Number of rounds of each configuration that is not dropped."""


@commands.command()
def command(
    invocation: Invocation,
    *,
    spec_options: options.SpecOptions,
    frameworks: options.Frameworks = options.ALL_FRAMEWORKS,
    only: Annotated[tuple[str, ...] | None, Names(), typer.Option(help="Switches to try, with commas. Default: all.")] = None,
    repeats: Annotated[int, typer.Option(min=2, help=f"{options.REPEATS} In turns.")] = 5,
    steps: Annotated[
        int,
        typer.Option(
            min=1,
            max=options.MOST_COMPARED_STEPS,
            help=f"{options.STEPS} Timed, in each run: as many, or {LEAST_EPOCHS} turns. On a GPU {ACCELERATOR_EPOCHS} epochs.",
        ),
    ] = 30,
    max_loss_drift: Annotated[
        float, typer.Option(min=0, help=f"Largest relative difference of a loss over {DRIFT_STEPS} steps that best may have.")
    ] = 0.1,
    cores: options.Cores = None,
    out: options.Out = None,
) -> Outcome:
    """Search the switches that make training fastest here, and store them for `run --switches best`."""
    base = comparison_plan.single_run_spec("optimize", *spec_options.to_request(cores=cores))
    _check_fixed_fields(base)
    folder = out or store.new_folder("optimize", base.model)
    request = SearchRequest(
        spec=base, switches=None if only is None else [*only], rounds=repeats, steps=steps, max_loss_drift=max_loss_drift
    )
    again = f"To continue, run the same command with {wording.shell(['--out', str(folder)])}."
    invocation.interrupt_message = f"Interrupted. {again}"
    early = {"request": request.model_dump(mode="json"), "frameworks": [*frameworks]}
    workspace = invocation.hold(Workspace.open(folder, SEARCH, early=early))
    outcomes, facts = _search(request, [*frameworks], workspace, invocation.progress)
    return Outcome(report(outcomes, facts, folder), folder)


def report(outcomes: Sequence[SearchOutcome], facts: Facts, folder: Path) -> Report:
    """Report each framework's ladder and best switches. Each ladder is also written to the framework's folder.

    Args:
        facts: facts about the machine.
    """
    ladders = {outcome.contestant: table(outcome) for outcome in outcomes}
    values = {outcome.contestant: _to_dict(outcome) for outcome in outcomes}
    files: dict[str, str | bytes] = {}
    for framework, ladder in ladders.items():
        files[f"{framework}/{LADDER}.md"] = tables.to_markdown(ladder) + "\n"
        files[f"{framework}/{LADDER}.csv"] = tables.to_csv(ladder)
        files[f"{framework}/{LADDER}.json"] = document.to_json(values[framework]) + "\n"
    versions = {outcome.contestant: outcome.best.versions for outcome in outcomes}
    return Report(
        title="The fastest switches",
        facts=[document.hardware_and_versions(facts, versions, cores=outcomes[0].best.spec.cores)],
        findings=[(outcome.contestant, sentences(outcome)) for outcome in outcomes],
        tables=list(ladders.values()),
        files=files,
        values={"folder": str(folder), "frameworks": values},
    )


def table(outcome: SearchOutcome) -> Table:
    """Build the table of a ladder: levels, then each single switch, the fastest first, then the combinations."""
    columns = (
        Column("configuration", "configuration", fold=60, pick=lambda step: step.name.replace(".", ", ")),
        Column("images_per_second", "images/s", 1, interval=True),
        Column("ratio", "times usual", 3, interval=True),
        Column("in_doubt", "runs in doubt", short="in\ndoubt", pick=lambda step: step.in_doubt or None),
        Column("compile_seconds", "compile seconds", 1, short="compile\ns"),
        Column("paid_back_epochs", "paid back after epochs", 1, short="paid back\nepochs"),
        Column("loss_drift", "largest loss difference", -1, short="loss\ndrift"),
        Column("matrix_fraction", "of the float32 matrix rate", 3, short="of matrix\nrate"),
        Column("status", "status", fold=12, pick=lambda step: "best" if step.taken else step.status),
        Column("reason", "reason", terminal=False),
    )
    rounding = next((step.rounding for step in outcome.ladder if step.rounding is not None), None)
    rounding_note = (
        f" Losses of {PLAIN} in float32 part from those in float64 by {rounding:.1e}. A loss drift of up to "
        f"{MOST_DRIFT_RATIO:g} times this may be rounding that grew. It keeps no switch from being taken."
        if rounding is not None
        else ""
    )
    order = {"level": 0, "switch": 1, "together": 2}
    ladder = sorted(outcome.ladder, key=lambda step: (order[step.kind], -(step.ratio.value if step.ratio else 1.0)))
    return Table.from_items(
        f"{LADDER}-{outcome.contestant}",
        f"Switches of {outcome.contestant}: {outcome.best.model}, batch {outcome.best.spec.global_batch_size}",
        columns,
        ladder,
        note=f"Medians with quartiles, ratios with 95 % intervals, of up to {outcome.rounds} interleaved rounds. Compile "
        f"seconds: how much longer the first step takes than that of {USUAL}. They are paid back after so many epochs of the "
        f"whole data. Loss drift: largest relative difference of a loss over {DRIFT_STEPS} steps from that of {PLAIN} in "
        f"float32.{rounding_note} Matrix rate: NumPy's product in float32; on a GPU the framework's own, in the run's "
        "arithmetic.",
    )


def sentences(outcome: SearchOutcome) -> list[str]:
    """Summarize a search in sentences: the best switches, and what could not be measured."""
    best = outcome.best
    notes = [f"{step.name}: {step.reason}" for step in outcome.ladder if step.reason]
    doubtful = {step.name: step.in_doubt for step in outcome.ladder if step.in_doubt}
    if doubtful:
        notes.append(
            f"Times of {sum(doubtful.values())} runs are in doubt ({', '.join(doubtful)}). Other work took cores from them, or "
            "they were too short to tell. Search again with another --out while nothing else runs."
        )
    if not best.options:
        return [f"{outcome.contestant}: nothing is surely faster than {USUAL}. That is stored in {outcome.path}.", *notes]
    switches = ", ".join(f"{name}={value}" for name, value in best.options.items())
    return [f"{outcome.contestant}: best is {switches}. `run --switches best` takes it from {outcome.path}.", *notes]


def _search(
    request: SearchRequest, framework_names: list[str], workspace: Workspace[SearchRecord], progress: Display
) -> tuple[list[SearchOutcome], Facts]:
    """Search each framework's switches. Returns the outcomes and the machine's facts."""
    base, folder = request.spec, workspace.folder
    progress.say("asking the frameworks what they can do here")
    with Twins(framework_names).describe_all() as answer:
        descriptions = {framework: spec.description_for_device(base, answer(framework)) for framework in framework_names}
    if request.switches is not None:
        option_names = {name: None for description in descriptions.values() for name in description["options"]}
        parse_choices("--only", request.switches, tuple(option_names))
    progress.say("reading the data")
    dataset = sources.describe(base.data, seed=base.split_seed, cache_dir=base.paths.cache_dir)
    architecture = architectures.build(base, len(dataset.class_names), dataset.image_size)
    progress.say("measuring what the machine can do")
    outcomes: list[SearchOutcome] = []
    record = workspace.claim(_record(request, descriptions, is_new=not (folder / RECORD_FILE).exists()))
    for framework in framework_names:
        search = SwitchSearch(
            framework,
            request,
            descriptions[framework],
            folder=folder / framework,
            train_images=dataset.sizes["train"],
            work=work.count(architecture),
            machine_rates=record.rates,
            report=progress.say,
        )
        ladder, switches = search.run()
        outcomes.append(_store(framework, request, descriptions[framework], ladder, switches))
        report(outcomes, record.machine, folder).write(folder)  # the command says at its end whether that worked
    return outcomes, record.machine


def _record(request: SearchRequest, descriptions: Mapping[str, dict[str, Any]], *, is_new: bool) -> SearchRecord:
    return SearchRecord(
        request=request,
        frameworks=list(descriptions),
        code_hash=code_digest.compute(contestants.resolve(descriptions), request.spec.model),
        machine={fact: machine.describe().get(fact) for fact in (*machine.IDENTITY, "python")}
        | {"gpus": spec.gpus(request.spec, descriptions.values())},
        versions={framework: description["versions"] for framework, description in descriptions.items()},
        rates=rates.measure_in_subprocess(request.spec.cores)
        if is_new
        else None,  # of a resumed search, those of its beginning count
    )


SEARCH = FolderKind(noun="search", file=RECORD_FILE, record=SearchRecord)


def _store(
    framework: str, request: SearchRequest, description: Mapping[str, Any], steps: list[LadderStep], options: dict[str, Any]
) -> SearchOutcome:
    best = BestSwitches(
        framework=framework,
        model=request.spec.model,
        machine=best_switches.identity(description),
        versions=description["versions"],
        options=options,
        ratio=next(step for step in steps if step.taken).ratio,
        budget=SwitchSearchBudget(
            switches=request.switches, rounds=request.rounds, steps=request.steps, configurations=len(steps)
        ),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=request.spec,
    )
    path = best_switches.save(best, description, request.spec.paths.cache_dir)
    return SearchOutcome(framework, steps, best, path, request.rounds)


def _check_fixed_fields(base: Spec) -> None:
    """Refuse fields that the search itself sets."""
    fixed = {"mode": "serial", "part": "training", "input": "inline", "precision": "float32", "switches": USUAL}
    for name, needed in fixed.items():
        if (received := getattr(base, name)) != needed:
            raise SpecError(f"optimize searches with {name} {needed}. Received: {received}. Leave it out.")
    if base.framework_options:
        raise SpecError(f"optimize searches framework_options. Received: {base.framework_options}. Leave them out.")


def _to_dict(outcome: SearchOutcome) -> dict[str, Any]:
    ladder = [json.loads(step.model_dump_json()) for step in outcome.ladder]
    return {"best": json.loads(outcome.best.model_dump_json()), "stored": str(outcome.path), "ladder": ladder}
