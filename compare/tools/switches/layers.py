"""`convtwins layers`: time a training step layer by layer, and compare each layer with the machine's limit."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
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
from common.training.layers import LayerTimes, UniqueLayer
from compare.cli import commands
from compare.cli.commands import Invocation, Outcome
from compare.cli.progress import Display
from compare.comparison import comparison_plan
from compare.judgement import statement_words
from compare.judgement.row_figures import DISTURBED
from compare.reporting import document
from compare.reporting.document import Report
from compare.reporting.tables import Cell, Column, Table
from compare.results.workspace import FolderKind, Workspace
from compare.running import matrix, options, run_settings, twin_client
from compare.running.interleaving import Job, LabelDisplay, rounds, run_in_turns
from compare.running.launch import StartedProcess, waited_for
from compare.running.taking_turns import Seat, importing_at_once, run_round
from compare.running.twins import Twins
from compare.statistics.statistics import Spread, spread


@dataclass(frozen=True)
class LayerTimings:
    """All measurements of one model."""

    spec: Spec
    units: list[UniqueLayer]
    rates: Rates | None
    """Rates of the machine. None if they could not be measured."""
    gpus: list[str] | None
    """Names of the GPUs. None: the layers ran on the CPU."""
    measurements: dict[str, list[LayerTimes]]
    """{framework: one entry for each process}."""
    specs: dict[str, Spec]
    """{framework: spec without the switches that it lacks}."""

    @property
    def frameworks(self) -> list[str]:
        return list(self.measurements)

    @property
    def on_cpu(self) -> bool:
        return all(measured.device == "cpu" for processes in self.measurements.values() for measured in processes)

    @property
    def peak_rates(self) -> tuple[float, float] | None:
        """(GFLOP/s of matrix products, GB/s of copies) of the device of the layers. None if they could not be measured.

        On an accelerator: the rates of the faster framework.
        """
        if self.on_cpu:
            return (self.rates.gflops(self.spec.precision), self.rates.copy_gb_per_second) if self.rates else None
        device_rates = [
            measured.device_rates for processes in self.measurements.values() for measured in processes if measured.device_rates
        ]
        if not device_rates:
            return None
        return max(rate.matrix_gflops for rate in device_rates), max(rate.copy_gb_per_second for rate in device_rates)

    def cores_taken(self, framework: str) -> float:
        """Return the most cores that other work took from a process of a framework. 0 if that is too few to disturb it."""
        facts = machine.describe()
        worst = max(cores_taken(measured.cores_of_others, self.spec.cores, facts) for measured in self.measurements[framework])
        return worst if worst > DISTURBED_FROM else 0.0

    def seconds(self, framework: str, numbers: list[int]) -> Spread:
        """Return the seconds of all layers of these units together in a step."""
        total = spread(
            [
                sum(measured.seconds[number] * len(self.units[number].names) for number in numbers)
                for measured in self.measurements[framework]
            ]
        )
        assert total is not None  # there is a process at least
        return total

    def limits(self, number: int) -> tuple[float, float] | None:
        """Return lower bounds (seconds at the rate of matrix products, seconds at the rate of copies) for all layers of a unit.

        None if the rates could not be measured.
        """
        if self.peak_rates is None:
            return None
        gflops, copy_rate = self.peak_rates
        unit, size = self.units[number], self.spec.global_batch_size
        computing = 1e-9 * unit.flops * size / gflops
        moving = 1e-9 * unit.bytes_moved(self.spec) / copy_rate
        return len(unit.names) * computing, len(unit.names) * moving

    def limit(self, numbers: list[int]) -> float | None:
        """Return the lower bound in seconds for all layers of these units."""
        limits = [self.limits(number) for number in numbers]
        return None if None in limits else sum(max(limit) for limit in limits if limit is not None)


RESULTS_FILE = "layers.json"


@commands.command()
def command(
    invocation: Invocation,
    *,
    spec_options: options.SpecOptions,
    contestant_options: options.ContestantOptions,
    cores: options.Cores = None,
    repeats: Annotated[int, typer.Option(min=1, help=f"{options.REPEATS} Each time in a process of its own.")] = 3,
    calls: Annotated[int, typer.Option(min=1, help=f"{options.CALLS} Of each layer, in each process.")] = 10,
    out: options.OutOrNone = None,
) -> Outcome:
    """Time each layer of a model alone, forward and backward, and compare it with the limits of the machine."""
    spec_request = spec_options.to_request(cores=cores)
    twins = contestant_options.twins(run_settings.settings(*spec_request).contestants)
    run_spec = comparison_plan.single_run_spec("layers", *spec_request, with_contestants=True)
    if run_spec.is_parallel:
        raise SpecError(f"layers times one replica. Received: mode {run_spec.mode}. Leave it out.")
    kind = FolderKind[None](noun="timing of layers", file=RESULTS_FILE, allowed=document.report_files())
    invocation.hold(Workspace.open(out, kind)).lock()
    return Outcome(report(measure(run_spec, twins, repeats, calls, invocation.progress)), out)


def report(timed: LayerTimings) -> Report:
    versions = {name: processes[0].versions for name, processes in timed.measurements.items()}
    kinds: defaultdict[str, list[int]] = defaultdict(list)
    for number, unit in enumerate(timed.units):
        kinds[_kind_name(unit)].append(number)
    by_description: defaultdict[str, list[int]] = defaultdict(list)
    for number, unit in enumerate(timed.units):
        by_description[_describe(unit)].append(number)
    return Report(
        title=f"Layers of {timed.spec.model_label}",
        json_file=RESULTS_FILE,
        facts=[document.hardware_and_versions(machine.describe() | {"gpus": timed.gpus}, versions, cores=timed.spec.cores)],
        findings=[("How far that goes", sentences(timed))],
        tables=[
            _table(timed, "layer-kinds", f"What a step of {timed.spec.model_label} waits for, by kinds of layers", kinds),
            _table(timed, "layers", f"Layers of {timed.spec.model_label}", by_description),
        ],
        values={
            "spec": timed.spec.model_dump(mode="json"),
            "framework_options": {
                framework: framework_spec.framework_options for framework, framework_spec in timed.specs.items()
            },
            "machine": machine.describe() | {"gpus": timed.gpus},
            "rates": timed.rates,
            "processes": timed.measurements,
            "sentences": sentences(timed),
        },
    )


def measure(run_spec: Spec, twins: Twins, repeats: int, calls: int, progress: Display) -> LayerTimings:
    """Time the layers of a model in fresh processes. The frameworks take turns, layer by layer; on a GPU they alternate."""
    progress.say("asking the frameworks what they can do here")
    with twins.describe_all() as answer:
        descriptions = {name: answer(name) for name in twins.names}
    rows = [matrix.build_row(contestant.name, contestant, run_spec) for contestant in twins.contestants]
    rows = matrix.check_rows(rows, descriptions, twins.contestants)
    gpus = spec.gpus(run_spec, descriptions.values())
    if refusals := [f"{row.contestant}: {row.unavailable}" for row in rows if row.unavailable is not None]:
        raise SpecError(refusals[0])
    specs = {row.contestant: row.spec for row in rows}
    architecture = sources.architecture_of(run_spec)
    progress.say("measuring what the machine can do")
    machine_rates = rates.measure_in_subprocess(run_spec.cores)
    measurements: dict[str, list[LayerTimes]] = {name: [] for name in twins.names}

    def timing_layers(name: str, seat: Seat | None = None) -> Generator[StartedProcess, None, LayerTimes]:
        output = yield from twin_client.querying(twins[name], "layers", specs[name], "--calls", str(calls), seat=seat)
        return LayerTimes.model_validate_json(output)

    def time_together(jobs: Sequence[Job[str]]) -> Generator[tuple[int, LayerTimes]]:
        importing = importing_at_once(len(jobs), run_spec.cores)
        return run_round([job.item for job in jobs], timing_layers, importing=importing)

    for ended in run_in_turns(
        rounds(twins.names, repeats),
        lambda job: waited_for(timing_layers(job.item)),
        LabelDisplay(progress.say),
        name=str,
        label=lambda job: f"{job.item}, process {job.repeat + 1} of {repeats}",
        execute_together=time_together if gpus is None else None,
    ):
        for job, times in ended:
            measurements[job.item].append(times)
    return LayerTimings(run_spec, layers.unique_layers(architecture), machine_rates, gpus, measurements, specs)


def sentences(timed: LayerTimings) -> list[str]:
    """Return sentences that a reader needs to know about the figures."""
    texts: list[str] = []
    all_units = list(range(len(timed.units)))
    for framework in timed.frameworks:
        sum_of_layers = timed.seconds(framework, all_units).median
        whole_model = statistics.median(measured.whole_seconds for measured in timed.measurements[framework])
        cores_taken = timed.cores_taken(framework)
        texts.append(
            f"{framework}: forward and backward, without loss and update, its layers one by one "
            f"take {1e3 * sum_of_layers:.1f} ms, the model as a whole {1e3 * whole_model:.1f} ms"
            f"{'' if cores_taken else f' ({whole_model / sum_of_layers:.2f} times that)'}."
        )
        if cores_taken:
            texts.append(f"{framework}: other work took up to {cores_taken:.2f} cores. {statement_words.DISTURBED}")
        if left_out := sorted(timed.spec.framework_options.keys() - timed.specs[framework].framework_options.keys()):
            texts.append(f"{framework} has no {' or '.join(left_out)}. It was timed without it.")
    if timed.peak_rates is None:
        texts.append("The limits of the machine could not be measured.")
    return texts


def _table(timed: LayerTimings, name: str, title: str, numbers: Mapping[str, list[int]]) -> Table:
    """Build a table of layers by their description, slowest first: by the longest time in any framework."""

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
    if timed.peak_rates is not None:
        gflops, copy_rate = timed.peak_rates
        limits = (
            f"Limit: the longer of two times. Operations take theirs at {gflops:.0f} GFLOP/s, the rate of {whose} matrix "
            f"product here; values are moved at {copy_rate:.1f} GB/s, the rate of a copy. Values in caches move faster. "
        )
    return Table(
        name,
        f"{title}, batch {size}, {timed.spec.precision}, forward and backward",
        tuple(columns),
        rows,
        spreads_on_terminal=False,
        note=f"{limits}Each layer is timed by itself, with random values. Medians over processes; files also have quartiles.",
    )


def _row(timed: LayerTimings, words: str, numbers: list[int]) -> dict[str, Cell]:
    limit = timed.limit(numbers)
    limits = [unit_limits for number in numbers if (unit_limits := timed.limits(number)) is not None]
    bounds = {"operations" if computing > moving else "memory" for computing, moving in limits}
    all_units = list(range(len(timed.units)))
    row: dict[str, Cell] = {
        "layers": words,
        "number": sum(len(timed.units[number].names) for number in numbers),
        "limit_ms": None if limit is None else 1e3 * limit,
        "bound": " and ".join(sorted(bounds)),
    }
    for framework in timed.frameworks:
        seconds = timed.seconds(framework, numbers)
        row[f"{framework}_ms"] = seconds.times(1e3)
        row[f"{framework}_share"] = 100.0 * seconds.median / timed.seconds(framework, all_units).median
        row[f"{framework}_times"] = (DISTURBED if timed.cores_taken(framework) else seconds.median / limit) if limit else None
    return row


def _kind_name(unit: UniqueLayer) -> str:
    """Return the name of a unit's kind. Kernels of one pixel are matrix products, larger kernels are not."""
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


def _describe(unit: UniqueLayer) -> str:
    layer = unit.layer
    kernel = f" {layer.kernel_size}x{layer.kernel_size}" if isinstance(layer, Window) else ""
    stride = f"/{layer.stride}" if isinstance(layer, Window) and layer.stride > 1 else ""
    groups = f" in {layer.groups} groups" if isinstance(layer, Conv) and layer.groups > 1 else ""
    shapes = ["x".join(map(str, shape)) for shape in (unit.input_shape, unit.output_shape)]
    first = "" if unit.input_needs_gradient else ", first"
    return f"{unit.kind}{kernel}{stride}{groups}, {' to '.join(dict.fromkeys(shapes))}{first}"
