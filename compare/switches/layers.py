"""`convtwins layers`: what a training step waits for, layer by layer, and how far each is from the machine's limit."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from common import spec
from common.data import sources
from common.machine import machine, rates
from common.machine.interference import DISTURBED_FROM, cores_taken
from common.machine.rates import Rates
from common.models.architectures import Conv, Window
from common.spec import Spec, SpecError
from common.training import layers
from common.training.layers import LayerTimes, Unit
from compare.comparison import comparison_plan
from compare.core import exits
from compare.core.interrupt import interruptible
from compare.core.progress import Display, display
from compare.core.statistics import Spread, spread
from compare.execution import launch, matrix, options, results_folder, run_settings, twin_client
from compare.execution.interleaving import turn
from compare.judgement import verdict_sentences
from compare.judgement.row_figures import DISTURBED
from compare.reporting import document
from compare.reporting.document import Report
from compare.reporting.tables import Cell, Column, Table


@dataclass(frozen=True)
class Timed:
    """All measurements of one model."""

    spec: Spec
    units: list[Unit]
    rates: Rates | None
    """Rates of the machine. None if they could not be measured."""
    gpus: list[str] | None
    """Names. None: the layers ran on the CPU."""
    found: dict[str, list[LayerTimes]]
    """By framework, one entry for each process."""
    specs: dict[str, Spec]
    """By framework, without the switches that it lacks."""

    @property
    def frameworks(self) -> list[str]:
        return list(self.found)

    @property
    def on_cpu(self) -> bool:
        return all(each.device == "cpu" for made in self.found.values() for each in made)

    @property
    def reach(self) -> tuple[float, float] | None:
        """(GFLOP/s of matrix products, GB/s of copies) of the device of the layers. None if they could not be measured.

        On an accelerator: as the faster framework reaches them.
        """
        if self.on_cpu:
            return (self.rates.gflops(self.spec.precision), self.rates.copy_gb_per_second) if self.rates else None
        known = [each.device_rates for made in self.found.values() for each in made if each.device_rates]
        if not known:
            return None
        return max(each.matrix_gflops for each in known), max(each.copy_gb_per_second for each in known)

    def cores_taken(self, framework: str) -> float:
        """The most cores that other work took from a process of a framework. 0 if that is too few to disturb it."""
        known = machine.describe()
        worst = max(cores_taken(each.cores_of_others, self.spec.cores, known) for each in self.found[framework])
        return worst if worst > DISTURBED_FROM else 0.0

    def seconds(self, framework: str, numbers: list[int]) -> Spread:
        """Seconds of all layers of these units together in a step."""
        made = spread(
            [sum(each.seconds[number] * len(self.units[number].names) for number in numbers) for each in self.found[framework]]
        )
        assert made is not None  # there is a process at least
        return made

    def limits(self, number: int) -> tuple[float, float] | None:
        """Lower bounds (seconds at the rate of matrix products, seconds at the rate of copies) for all layers of a unit.

        None if the rates could not be measured.
        """
        if self.reach is None:
            return None
        gflops, copied = self.reach
        unit, size = self.units[number], self.spec.global_batch_size
        computing = 1e-9 * unit.flops * size / gflops
        moving = 1e-9 * unit.bytes_moved(self.spec) / copied
        return len(unit.names) * computing, len(unit.names) * moving

    def limit(self, numbers: list[int]) -> float | None:
        """Lower bound in seconds for all layers of these units."""
        found = [self.limits(number) for number in numbers]
        return None if None in found else sum(max(both) for both in found if both is not None)


RESULTS_FILE = "layers.json"


@options.grouped
def command(
    *,
    of_spec: options.SpecOptions,
    compared: options.ContestantOptions,
    cores: options.Cores = None,
    repeats: Annotated[int, typer.Option(min=1, help=f"{options.REPEATS} Each time in a process of its own.")] = 3,
    calls: Annotated[int, typer.Option(min=1, help=f"{options.CALLS} Of each layer, in each process.")] = 10,
    out: options.OutOrNone = None,
    as_json: options.AsJson = False,
) -> None:
    """Time each layer of a model alone, forward and backward, and compare it with the limits of the machine."""
    with exits.exit_on_error():
        asked = of_spec.to_request(cores=cores)
        named = compared.names(run_settings.settings(*asked).contestants)
        wanted = comparison_plan.single_run_spec("layers", *asked, with_contestants=True)
        if wanted.mode != "serial":
            raise SpecError(f"layers times one replica. Received: mode {wanted.mode}. Leave it out.")
        with interruptible(), results_folder.lock_folder(out, RESULTS_FILE, None, "timing of layers", allowed=document.report_files()):
            with display() as shown:
                timed = measure(wanted, named, repeats, calls, shown)
            code = report(timed).deliver(out, as_json=as_json)
    raise typer.Exit(code)


def report(timed: Timed) -> Report:
    versions = {name: found[0].versions for name, found in timed.found.items()}
    kinds: defaultdict[str, list[int]] = defaultdict(list)
    for number, unit in enumerate(timed.units):
        kinds[_kind(unit)].append(number)
    by_words: defaultdict[str, list[int]] = defaultdict(list)
    for number, unit in enumerate(timed.units):
        by_words[_words(unit)].append(number)
    return Report(
        title=f"Layers of {timed.spec.model_label}",
        json_file=RESULTS_FILE,
        facts=[document.hardware_and_versions(machine.describe() | {"gpus": timed.gpus}, versions, cores=timed.spec.cores)],
        findings=[("How far that goes", sentences(timed))],
        tables=[
            _table(timed, "layer-kinds", f"What a step of {timed.spec.model_label} waits for, by kinds of layers", kinds),
            _table(timed, "layers", f"Layers of {timed.spec.model_label}", by_words),
        ],
        values={
            "spec": timed.spec.model_dump(mode="json"),
            "framework_options": {framework: own.framework_options for framework, own in timed.specs.items()},
            "machine": machine.describe() | {"gpus": timed.gpus},
            "rates": timed.rates,
            "processes": timed.found,
            "sentences": sentences(timed),
        },
    )


def measure(wanted: Spec, frameworks: list[str], repeats: int, calls: int, shown: Display) -> Timed:
    """Time the layers of a model in fresh processes. The frameworks alternate.

    Raises:
        SpecError: a switch does not fit, or the model does not take these images.
        LaunchError: a process failed.
    """
    shown.say("asking the frameworks what they can do here")
    with launch.describe_all(frameworks) as answer:
        rows = [matrix.build_row(framework, framework, wanted) for framework in frameworks]
        rows = matrix.check_rows(rows, {framework: answer(framework) for framework in frameworks})
        gpus = spec.gpus(wanted, map(answer, frameworks))
    if refused := [f"{row.contestant}: {row.unavailable}" for row in rows if row.unavailable is not None]:
        raise SpecError(refused[0])
    specs = {row.contestant: row.spec for row in rows}
    architecture = sources.architecture_of(wanted)
    shown.say("measuring what the machine can do")
    known = rates.measure_in_subprocess(wanted.cores)
    found: dict[str, list[LayerTimes]] = {framework: [] for framework in frameworks}
    for repeat in range(repeats):
        for framework in turn(frameworks, repeat):
            shown.say(f"{framework}, process {repeat + 1} of {repeats}")
            made = twin_client.query(framework, "layers", specs[framework], "--calls", str(calls))
            found[framework].append(LayerTimes.model_validate_json(made))
    return Timed(wanted, layers.unique_layers(architecture), known, gpus, found, specs)


def sentences(timed: Timed) -> list[str]:
    """What a reader needs to know about the figures."""
    said: list[str] = []
    everything = list(range(len(timed.units)))
    for framework in timed.frameworks:
        apart = timed.seconds(framework, everything).median
        whole = statistics.median(each.whole_seconds for each in timed.found[framework])
        taken = timed.cores_taken(framework)
        said.append(
            f"{framework}: forward and backward, without loss and update, its layers one by one take {1e3 * apart:.1f} ms, "
            f"the model as a whole {1e3 * whole:.1f} ms{'' if taken else f' ({whole / apart:.2f} times that)'}."
        )
        if taken:
            said.append(f"{framework}: other work took up to {taken:.2f} cores.{verdict_sentences.DISTURBED}")
        if left_out := sorted(timed.spec.framework_options.keys() - timed.specs[framework].framework_options.keys()):
            said.append(f"{framework} has no {' or '.join(left_out)}. It was timed without it.")
    if timed.reach is None:
        said.append("The limits of the machine could not be measured.")
    return said


def _table(timed: Timed, name: str, title: str, numbers: Mapping[str, list[int]]) -> Table:
    """Layers by their words, slowest first: by the longest time in any framework."""

    def longest(words: str) -> float:
        return max(timed.seconds(framework, numbers[words]).median for framework in timed.frameworks)

    rows = [_row(timed, words, numbers[words]) for words in sorted(numbers, key=longest, reverse=True)]
    rows.append(_row(timed, "all of them", list(range(len(timed.units)))))
    columns = [Column("layers", "layers", fold=44), Column("number", "number", short="n")]
    columns.append(Column("limit_ms", "limit, ms", 1, short="limit\nms"))
    columns.append(Column("bound", "limited by", short="by", wide=True))
    for framework in timed.frameworks:
        columns += [
            Column(f"{framework}_ms", f"{framework}, ms", 1, short=f"{framework}\nms", interval=True),
            Column(f"{framework}_share", f"{framework}, % of all", 1, short="%"),
            Column(f"{framework}_times", f"{framework}, times the limit", 1, short="times\nlimit"),
        ]
    size = timed.spec.global_batch_size
    limits, whose = "", "NumPy's" if timed.on_cpu else "the device's"
    if timed.reach is not None:
        gflops, copied = timed.reach
        limits = (
            f"Limit: the longer of two times. Operations take theirs at {gflops:.0f} GFLOP/s, the rate of {whose} matrix "
            f"product here; values are moved at {copied:.1f} GB/s, the rate of a copy. Values in caches move faster. "
        )
    return Table(
        name,
        f"{title}, batch {size}, {timed.spec.precision}, forward and backward",
        tuple(columns),
        rows,
        spreads_on_terminal=False,
        note=f"{limits}Each layer is timed by itself, with random values. Medians over processes; files also have quartiles.",
    )


def _row(timed: Timed, words: str, numbers: list[int]) -> dict[str, Cell]:
    limit = timed.limit(numbers)
    both = [each for number in numbers if (each := timed.limits(number)) is not None]
    bounds = {"operations" if computing > moving else "memory" for computing, moving in both}
    everything = list(range(len(timed.units)))
    row: dict[str, Cell] = {
        "layers": words,
        "number": sum(len(timed.units[number].names) for number in numbers),
        "limit_ms": None if limit is None else 1e3 * limit,
        "bound": " and ".join(sorted(bounds)),
    }
    for framework in timed.frameworks:
        seconds = timed.seconds(framework, numbers)
        row[f"{framework}_ms"] = seconds.times(1e3)
        row[f"{framework}_share"] = 100.0 * seconds.median / timed.seconds(framework, everything).median
        row[f"{framework}_times"] = (DISTURBED if timed.cores_taken(framework) else seconds.median / limit) if limit else None
    return row


def _kind(unit: Unit) -> str:
    """The name of its kind. Kernels of one pixel are matrix products, larger kernels are not."""
    layer = unit.layer
    if isinstance(layer, Conv):
        if layer.groups > 1:
            return "depthwise convolutions" if layer.is_depthwise else "grouped convolutions"
        return "convolutions 1x1" if layer.kernel_size == 1 else "convolutions"
    return {
        "BatchNorm": "BatchNorm",
        "ReLU": "ReLU",
        "MaxPool": "max pooling",
        "AveragePool": "average pooling",
        "GlobalAveragePool": "global average pooling",
        "Flatten": "flatten",
        "Dense": "dense layers",
        "Dropout": "dropout",
        "Residual": "residual sums",
        "Concatenation": "concatenations",
    }[unit.kind]


def _words(unit: Unit) -> str:
    layer = unit.layer
    kernel = f" {layer.kernel_size}x{layer.kernel_size}" if isinstance(layer, Window) else ""
    stride = f"/{layer.stride}" if isinstance(layer, Window) and layer.stride > 1 else ""
    groups = f" in {layer.groups} groups" if isinstance(layer, Conv) and layer.groups > 1 else ""
    shapes = ["x".join(map(str, shape)) for shape in (unit.input_shape, unit.output_shape)]
    first = "" if unit.input_needs_gradient else ", first"
    return f"{unit.kind}{kernel}{stride}{groups}, {' to '.join(dict.fromkeys(shapes))}{first}"
