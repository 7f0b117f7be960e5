"""`python -m compare optimize`: search the switches that make training fastest on this machine, and store them."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from common import spec
from common.artifacts import atomic_files, records
from common.data import sources
from common.frozen import Frozen
from common.machine import machine, rates
from common.machine.rates import Rates
from common.models import architectures, work
from common.spec import Spec, SpecError
from compare.core import exits, terminal, wording
from compare.core.errors import FolderError
from compare.core.interrupt import Interrupted, interruptible
from compare.core.option_parsing import chosen, names
from compare.core.progress import Display, display
from compare.execution import best_switches, code_digest, launch, store
from compare.execution.best_switches import Best
from compare.reporting import tables
from compare.reporting.tables import Column, Table
from compare.switches.search import ACCELERATOR_EPOCHS, FAIR, PARTED, PLAIN, PRICE_STEPS, Request, Search, Step

RECORD_FILE = "optimize.json"
LADDER = "ladder"
"""Name of the files with the ladder of each framework, in its folder."""


class Record(Frozen):
    """What a folder's search measures. Another search may not resume in the folder."""

    request: Request
    frameworks: list[str]
    code_hash: str
    machine: dict[str, Any]
    versions: dict[str, dict[str, str]]
    rates: Rates | None
    """Of the machine when the search began."""


@dataclass(frozen=True)
class Outcome:
    """One framework's ladder, and what is stored from it and where."""

    framework: str
    ladder: list[Step]
    best: Best
    stored: Path
    rounds: int
    """Of each configuration, where none is dropped."""


def command(
    model: Annotated[str, typer.Option(help=f"{', '.join(spec.MODELS)}, or package.module of your own.")],
    frameworks: Annotated[str, typer.Option(help="Which, with commas.")] = ",".join(launch.FRAMEWORKS),
    data: Annotated[str, typer.Option(help=f"{', '.join(sources.NAMES)}, or an image folder or archive.")] = "digits",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Images of a step. Default: 64.")] = None,
    only: Annotated[str | None, typer.Option(help="Switches to try, with commas. Default: all.")] = None,
    repeats: Annotated[int, typer.Option(min=2, help="Runs of each configuration, in turns.")] = 5,
    steps: Annotated[
        int, typer.Option(min=1, help=f"Timed steps of each run; on a GPU it takes {ACCELERATOR_EPOCHS} epochs.")
    ] = 30,
    max_price: Annotated[
        float, typer.Option(min=0, help=f"Relative difference of a loss over {PRICE_STEPS} steps that best may cost.")
    ] = 0.1,
    cores: Annotated[int | None, typer.Option(help="CPU cores that each run may use. Default: all.")] = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", help="field=value of the spec.")] = None,
    out: Annotated[Path | None, typer.Option(help="Runs and ladders. Default: results/<time>-optimize-<model>.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Search the switches that make training fastest here, and store them for `run --switches best`."""
    with exits.told():
        named = chosen("--frameworks", names(frameworks), tuple(launch.FRAMEWORKS))
        fields: dict[str, Any] = {"model": model, "data.source": data, "global_batch_size": batch_size, "cores": cores}
        base = spec.from_options(fields, assignments)
        _check(base)
        folder = out or store.new_folder("optimize", model)
        switches = None if only is None else names(only)
        request = Request(spec=base, switches=switches, rounds=repeats, steps=steps, max_price=max_price)
        with interruptible(), display(Console(stderr=True)) as shown:
            try:
                outcomes = _search(request, named, folder, shown)
            except Interrupted as interruption:
                interruption.words = f"Interrupted. The same command with --out {folder} goes on."
                raise
        show(outcomes, folder, as_json=as_json)


def show(outcomes: list[Outcome], folder: Path, *, as_json: bool) -> None:
    """Print each framework's ladder and the findings, or everything as one JSON object."""
    if as_json:
        plain = {outcome.framework: _plain(outcome) for outcome in outcomes}
        typer.echo(json.dumps({"folder": str(folder), "frameworks": plain}, indent=1))
        return
    console = terminal.stdout(width=160)
    for outcome in outcomes:
        made = table(outcome)
        console.print(tables.to_rich(made, console.width))
        console.print(Text(tables.note_on_terminal(made, console.width, str(folder)), style="dim"))
        for sentence in sentences(outcome):
            console.print(Text(wording.one_line(sentence)))


def table(outcome: Outcome) -> Table:
    """The ladder: levels, then each single switch, the fastest first, then the combinations."""
    columns = (
        Column("configuration", "configuration", fold=60),
        Column("images_per_second", "images/s", 1, interval=True),
        Column("ratio", "times fair", 3, interval=True),
        Column("compile_seconds", "compile seconds", 1, short="compile\ns"),
        Column("paid_back_epochs", "paid back after epochs", 1, short="paid back\nepochs"),
        Column("price", "largest loss difference", -1, short="price"),
        Column("matrix_fraction", "of the float32 matrix rate", 3, short="of matrix\nrate"),
        Column("status", "status", fold=12),
        Column("reason", "reason", terminal=False),
    )
    parted = next((step.rounding for step in outcome.ladder if step.rounding is not None), None)
    unsteady = (
        f" Losses of {PLAIN} in float32 part from those in float64 by {parted:.1e}: a price of up to {PARTED:g} times that may "
        "be rounding that grew, and keeps no switch from being taken."
        if parted is not None
        else ""
    )
    order = {"level": 0, "switch": 1, "together": 2}
    ladder = sorted(outcome.ladder, key=lambda step: (order[step.kind], -(step.ratio.value if step.ratio else 1.0)))
    rows = [
        {column.key: getattr(step, column.key) for column in columns if column.key in Step.model_fields}
        | {"configuration": step.name.replace(".", ", "), "status": "best" if step.taken else step.status}
        for step in ladder
    ]
    return Table(
        LADDER,
        f"Switches of {outcome.framework}: {outcome.best.model}, batch {outcome.best.spec.global_batch_size}",
        columns,
        rows,
        note=f"Medians with quartiles, ratios with 95 % intervals, of up to {outcome.rounds} interleaved rounds. Compile "
        f"seconds: what the first step takes longer than that of {FAIR}; paid back after so many epochs of the whole data. "
        f"Price: largest relative difference of a loss over {PRICE_STEPS} steps to that of {PLAIN} in float32.{unsteady} "
        "Matrix rate: of NumPy's product in float32; on a GPU of the framework's own, in the run's arithmetic.",
    )


def sentences(outcome: Outcome) -> list[str]:
    """What was found, and what could not be measured."""
    found = outcome.best
    said = [f"{step.name}: {step.reason}" for step in outcome.ladder if step.reason]
    doubtful = {step.name: step.in_doubt for step in outcome.ladder if step.in_doubt}
    if doubtful:
        said.append(
            f"Times of {sum(doubtful.values())} runs are in doubt, as other work took cores from them or they were too short "
            f"to tell ({', '.join(doubtful)}). Search again with another --out while nothing else runs."
        )
    if not found.options:
        return [f"{outcome.framework}: nothing is surely faster than {FAIR}. That is stored in {outcome.stored}.", *said]
    switches = ", ".join(f"{name}={value}" for name, value in found.options.items())
    return [f"{outcome.framework}: best is {switches}. `run --switches best` takes it from {outcome.stored}.", *said]


def _search(request: Request, named: list[str], folder: Path, shown: Display) -> list[Outcome]:
    base = request.spec
    shown.say("asking the frameworks what they can do here")
    with launch.asked(named) as answer:
        descriptions = {framework: spec.of_device(base, answer(framework)) for framework in named}
    if request.switches is not None:
        known = {name: None for description in descriptions.values() for name in description["options"]}
        chosen("--only", request.switches, tuple(known))
    shown.say("reading the data")
    dataset = sources.describe(base.data, seed=base.split_seed, cache_dir=base.paths.cache_dir)
    architecture = architectures.resolve(base.model, len(dataset.class_names), dataset.image_size)
    outcomes: list[Outcome] = []
    with _claimed(folder, request, descriptions) as record:
        for framework in named:
            search = Search(
                framework,
                request,
                descriptions[framework],
                folder=folder / framework,
                train_images=dataset.sizes["train"],
                work=work.count(architecture),
                machine_rates=record.rates,
                told=shown.say,
            )
            ladder, options = search.run()
            taken = next(step for step in ladder if step.taken)
            found = Best(
                framework=framework,
                model=base.model,
                machine=best_switches.identity(descriptions[framework]),
                versions=descriptions[framework]["versions"],
                options=options,
                ratio=taken.ratio,
                measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
                spec=base,
            )
            stored = best_switches.save(found, descriptions[framework], base.paths.cache_dir)
            outcome = Outcome(framework, ladder, found, stored, request.rounds)
            made = table(outcome)
            atomic_files.write_atomically(folder / framework / f"{LADDER}.md", tables.to_markdown(made) + "\n")
            atomic_files.write_atomically(folder / framework / f"{LADDER}.csv", tables.to_csv(made))
            atomic_files.write_atomically(folder / framework / f"{LADDER}.json", json.dumps(_plain(outcome), indent=1) + "\n")
            outcomes.append(outcome)
    return outcomes


@contextmanager
def _claimed(folder: Path, request: Request, descriptions: dict[str, dict[str, Any]]) -> Generator[Record]:
    """Claim the folder: a new one, or one of the same search.

    Raises:
        FolderError: it holds something else, or another process has it locked.
    """
    path = folder / RECORD_FILE
    wanted = Record(
        request=request,
        frameworks=list(descriptions),
        code_hash=code_digest.of(list(descriptions), request.spec.model),
        machine={fact: machine.describe().get(fact) for fact in (*machine.IDENTITY, "python")},
        versions={framework: description["versions"] for framework, description in descriptions.items()},
        rates=None,
    )
    with store.locked(folder):
        if path.exists():
            record = store.read_record(path, Record, "a search of switches")
            _refuse_other(folder, record, wanted)
        elif others := sorted(each.name for each in folder.glob("[!.]*")):
            raise FolderError(f"{folder} holds files that are no search's ({others[0]}). Choose an empty folder with --out.")
        else:
            record = wanted.model_copy(update={"rates": rates.measured(request.spec.cores)})
            records.write(path, record)
        atomic_files.sweep(folder)
        yield record


def _refuse_other(folder: Path, record: Record, wanted: Record) -> None:
    pairs = [(name, getattr(record.request, name), getattr(wanted.request, name)) for name in Request.model_fields]
    pairs += [(name, getattr(record, name), getattr(wanted, name)) for name in ("frameworks", "versions")]
    for name, there, asked in pairs:
        if there != asked:
            raise FolderError(f"{folder} holds another search: its {name} differs. Choose another --out.")
    hashes, machines = (record.code_hash, wanted.code_hash), (record.machine, wanted.machine)
    if (why := store.other_ground(hashes, machines)) is not None:
        raise FolderError(f"{folder} holds a search that cannot go on: {why}. Choose another --out.")


def _check(base: Spec) -> None:
    """Refuse fields that the search itself sets.

    Raises:
        SpecError: a field differs from the search's own value.
    """
    own = {"mode": "serial", "part": "training", "input": "inline", "precision": "float32", "switches": FAIR}
    for name, needed in own.items():
        if (received := getattr(base, name)) != needed:
            raise SpecError(f"optimize searches with {name} {needed}. Received: {received}. Leave it out.")
    if base.framework_options:
        raise SpecError(f"optimize searches framework_options. Received: {base.framework_options}. Leave them out.")


def _plain(outcome: Outcome) -> dict[str, Any]:
    ladder = [json.loads(step.model_dump_json()) for step in outcome.ladder]
    return {"best": json.loads(outcome.best.model_dump_json()), "stored": str(outcome.stored), "ladder": ladder}
