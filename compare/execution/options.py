"""Options that several commands share. One thing has one name, one meaning and one field of the spec everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from common import spec
from common.data import sources
from compare.core import presets
from compare.core.option_parsing import chosen, names
from compare.execution import contestants as named_contestants
from compare.execution import launch

ALL_FRAMEWORKS = ",".join(launch.FRAMEWORKS)

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    "adam": {"name": "adam", "learning_rate": 1e-3},
}
"""What `--optimizer` stands for."""

_DATA = f"{', '.join(sources.NAMES)}, or an image folder or archive"
_MODEL = f"{', '.join(spec.MODELS)}, or package.module of your own"

Frameworks = Annotated[str, typer.Option(help=f"Which, with commas: {', '.join(launch.FRAMEWORKS)}.")]
SomeFrameworks = Annotated[
    str | None,
    typer.Option("--frameworks", help=f"Which, with commas: {', '.join(launch.FRAMEWORKS)}. Default: all, or --contestant."),
]
"""With `Contestants`. `contestants` reads both."""
Contestants = Annotated[
    list[str] | None,
    typer.Option(
        "--contestant", metavar="NAME=TWIN[@PYTHON][,SWITCH=VALUE...]", help="A contestant of your own. May be repeated."
    ),
]
PresetName = Annotated[str | None, typer.Option("--preset", help=f"A named comparison: {', '.join(presets.PRESETS)}.")]
SpecFile = Annotated[Path | None, typer.Option("--spec", help="A spec file (.yaml or .json).")]
Data = Annotated[str | None, typer.Option(help=f"{_DATA}.")]
Model = Annotated[str | None, typer.Option(help=f"{_MODEL}.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training split.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images of a step, over all replicas. Default: 64.")]
ImageSize = Annotated[int | None, typer.Option(min=1, help="Resize images to this many pixels.")]
OptimizerName = Annotated[str | None, typer.Option("--optimizer", help="sgd (0.05, momentum 0.9) or adam (1e-3).")]
Precision = Annotated[str | None, typer.Option(help="float32 or float64.")]
Limit = Annotated[int | None, typer.Option(help="Training examples to keep.")]
OnBad = Annotated[str | None, typer.Option(help="strict: bad files refuse the data; skip: they are left out.")]
Duplicates = Annotated[str | None, typer.Option(help="Equal images in two splits: refuse or allow.")]
Seed = Annotated[int | None, typer.Option(help="Of order, weights, augmentation and splits.")]
Cores = Annotated[int | None, typer.Option(help="CPU cores that each run may use. Default: all.")]
Hosts = Annotated[str | None, typer.Option(help="Machines for the ranks, with commas. The first is this one.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="field=value of the spec, e.g. optimizer.momentum=0.")]
Out = Annotated[Path | None, typer.Option(help="Results folder. Default: one named by time under results/.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]


def contestants(
    frameworks: str | None, words: list[str] | None, in_file: Mapping[str, Any], *, elsewhere: bool = False
) -> list[str]:
    """Enter the contestants that a command compares, and return their names.

    Args:
        in_file: `contestants` of the spec file.
        elsewhere: whether other interpreters run them, see `contestants.choose`.

    Raises:
        SpecError: one is refused.
    """
    named = None if frameworks is None else names(frameworks)
    return named_contestants.choose(named, words or [], in_file, launch.FRAMEWORKS, elsewhere=elsewhere)


_FIELDS = {
    "data": "data.source",
    "batch_size": "global_batch_size",
    "image_size": "data.image_size",
    "limit": "data.limit",
    "on_bad": "data.on_bad",
    "duplicates": "data.duplicates",
}
"""Fields of the spec whose option has a shorter name."""


def fields(**options: Any) -> dict[str, Any]:
    """Dotted fields of the spec from shared options by their Python names. None: the option was not given.

    Raises:
        SpecError: `optimizer` is unknown.
    """
    found = {_FIELDS.get(name, name): value for name, value in options.items()}
    if (optimizer := found.get("optimizer")) is not None:
        name = chosen("--optimizer", [optimizer], tuple(OPTIMIZERS))[0]
        found |= {f"optimizer.{field}": value for field, value in OPTIMIZERS[name].items()}
        del found["optimizer"]
    return found
