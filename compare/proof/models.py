"""`convtwins models`: the layers that each framework built, side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from common import spec
from common.data import sources
from common.models import work
from common.models.architectures import Architecture
from compare.cli import commands, exits
from compare.cli.option_types import DistinctNames
from compare.running import options, twin_client
from compare.running.contestants import Contestant


@dataclass(frozen=True)
class ModelSummaries:
    """Models as the frameworks have built them, as `models` prints them."""

    summaries: list[dict[str, Any]]

    def deliver(self, folder: Path | None, *, as_json: bool) -> int:
        """Print the models. Returns the exit code: 1 if the frameworks have built different ones."""
        if as_json:
            print(json.dumps(self.summaries, indent=1))
        else:
            console = Console()
            if not console.is_terminal:
                console.width = 160
            for summary in self.summaries:
                show(summary, console)
        return 0 if all(summary["same"] for summary in self.summaries) else exits.RUN_FAILED


@commands.command()
def command(
    model: Annotated[
        tuple[str, ...], DistinctNames(spec.MODELS), typer.Option(help=f"{options.MODEL} Several, with commas.")
    ] = spec.MODELS,
    data: Annotated[str, typer.Option(help=f"{options.DATA} It gives classes and size.")] = "digits",
    image_size: options.ImageSize = None,
    frameworks: options.Frameworks = options.ALL_FRAMEWORKS,
) -> ModelSummaries:
    """Print layers, output shapes, values and FLOPs of the models as each framework has built them."""
    summaries: list[dict[str, Any]] = []
    for name in model:
        run_spec = spec.build({"model": name, "data": {"source": data, "image_size": image_size}})
        architecture = sources.architecture_of(run_spec)
        summaries.append(summarize(architecture, run_spec, frameworks))
    return ModelSummaries(summaries)


def summarize(architecture: Architecture, run_spec: spec.Spec, frameworks: Sequence[str]) -> dict[str, Any]:
    """Return the architecture's layers with their FLOPs, and beside them the layers that each framework built."""
    built: dict[str, dict[str, Any]] = {
        name: json.loads(twin_client.query(Contestant.plain(name), "models", run_spec)) for name in frameworks
    }
    by_layer = {framework: {layer["name"]: layer for layer in summary["layers"]} for framework, summary in built.items()}
    first = by_layer[frameworks[0]]
    layers: list[dict[str, Any]] = []
    for layer in architecture.leaves():
        if layer.name not in first:
            continue  # ReLU has no values, and its shape is its input's
        sides = {name: (rows[layer.name]["output_shape"], rows[layer.name]["values"]) for name, rows in by_layer.items()}
        layers.append(
            {
                "name": layer.name,
                "kind": type(layer).__name__,
                "flops": work.forward_flops(layer, math.prod(first[layer.name]["output_shape"])),
                "sides": {name: {"output_shape": shape, "values": values} for name, (shape, values) in sides.items()},
                "same": len({(tuple(shape), values) for shape, values in sides.values()}) == 1,
            }
        )
    totals = {name: {key: summary[key] for key in ("values", "trainable_values")} for name, summary in built.items()}
    expected = {
        "values": sum(parameter.size for parameter in architecture.parameters()),
        "trainable_values": sum(parameter.size for parameter in architecture.parameters() if parameter.trainable),
    }
    return {
        "model": architecture.name,
        "image_size": architecture.image_size,
        "num_classes": architecture.num_classes,
        "layers": layers,
        "totals": totals,
        "flops": sum(layer["flops"] for layer in layers),
        "same": all(layer["same"] for layer in layers) and all(total == expected for total in totals.values()),
    }


def show(summary: dict[str, Any], console: Console) -> None:
    """Print one model: a line for each layer, with shapes and values from each framework."""
    sides = list(summary["totals"])
    title = f"{summary['model']}, {summary['num_classes']} classes, {summary['image_size']} px"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("layer", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for side in sides:
        table.add_column(f"{side}: shape", no_wrap=True)
        table.add_column("values", justify="right", no_wrap=True)
    table.add_column("FLOPs", justify="right", no_wrap=True)
    table.add_column("same")
    for layer in summary["layers"]:
        cells = [
            cell
            for side in layer["sides"].values()
            for cell in ("x".join(str(size) for size in side["output_shape"]), f"{side['values']:,}")
        ]
        table.add_row(layer["name"], layer["kind"], *cells, f"{layer['flops']:,}", "yes" if layer["same"] else "NO")
    console.print(table, highlight=False)
    for side, total in summary["totals"].items():
        console.print(f"{side}: {total['values']:,} values, {total['trainable_values']:,} of them trainable", highlight=False)
    same = "the same in all" if summary["same"] else "NOT THE SAME"
    console.print(f"forward pass of one image: {summary['flops']:,} FLOPs; layers and values: {same}\n", highlight=False)
