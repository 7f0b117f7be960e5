"""Options that several commands share. One thing has one name, one meaning and one field of the spec everywhere."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import typer

from common import spec
from common.data import sources
from compare.cli.option_parsing import parse_choices, parse_modes, split_names
from compare.cli.option_types import Integers, Names, OptionType, Parsed
from compare.running import contestants as named_contestants
from compare.running import launch, presets
from compare.running.contestants import Contestant
from compare.running.twins import Twins

ALL_FRAMEWORKS = tuple(launch.FRAMEWORKS)

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    "adam": {"name": "adam", "learning_rate": 1e-3},
}
"""{value of `--optimizer`: fields of the spec's optimizer}."""

# The first sentence of each option's help is the same in all commands. A command may add others of its own.
DATA = f"{', '.join(sources.NAMES)}, torchvision:NAME, tfds:NAME, huggingface:NAME, or an image folder or archive."
MODEL = f"{', '.join(spec.MODELS)}, or package.module of your own."
FRAMEWORKS = f"Which, with commas: {', '.join(launch.FRAMEWORKS)}."
EPOCHS = "Passes over the training split."
OPTIMIZER = "sgd (0.05, momentum 0.9) or adam (1e-3)."
PRECISION = "float32 or float64."
SEED = "Seed of all that is drawn."
CORES = "CPU cores to use."
WORKERS = "Input workers. Several numbers, with commas, make rows of each."
MODES = f"Which of {', '.join(spec.MODES)}, with commas; or all."
REPLICAS = "Replicas of the parallel modes."
REPEATS = "How often each is run."
MOST_REPEATS = "The most repeats."
STEPS = "Training steps."
MOST_COMPARED_STEPS = 100_000
"""Largest number of steps of `match`, `parity` and `optimize`. More is a typing error: each step is stored."""
CALLS = "Timed calls."
PROFILE = "Time the parts of a step separately, after each run."
PROOF = "Prove first that the training is the same."
METRIC = "Which figures, with commas."
ONLY = "Rows or benchmarks whose id matches, e.g. 'pytorch-*'."
THRESHOLD = "Growth that counts."
ENVIRONMENTS = "Measure this revision in these environments, see `env`."
SCHEDULER = "tcp://host:port of a Dask cluster."
OUT = "Results folder."
SET = "field=value of the spec, e.g. optimizer.momentum=0."

_SEVERAL = "Several, with commas, make a matrix."


@dataclasses.dataclass(frozen=True)
class BuiltinTwins(OptionType):
    """Names of the suite's own twins, with commas."""

    others: tuple[str, ...] = ()
    """Other words that are allowed too."""

    def parse(self, option: str, text: str) -> tuple[str, ...]:
        return tuple(named_contestants.builtin_twins(option, split_names(text), (*self.others, *launch.FRAMEWORKS)))


Frameworks = Annotated[tuple[str, ...], BuiltinTwins(), typer.Option(help=FRAMEWORKS)]
SomeFrameworks = Annotated[str | None, typer.Option("--frameworks", help=f"{FRAMEWORKS} Default: all, or --contestant.")]
"""Option `--frameworks` of commands that also have `Contestants`. `contestants` reads both."""
Contestants = Annotated[
    list[str] | None,
    typer.Option(
        "--contestant", metavar="NAME=TWIN[@PYTHON][,SWITCH=VALUE...]", help="A contestant of your own. May be repeated."
    ),
]
PresetName = Annotated[str | None, typer.Option("--preset", help=f"A named comparison: {', '.join(presets.PRESETS)}.")]
SpecFile = Annotated[Path | None, typer.Option("--spec", help="A spec file (.yaml or .json).")]
Data = Annotated[str | None, typer.Option(help=DATA)]
Model = Annotated[str | None, typer.Option(help=MODEL)]
Epochs = Annotated[int | None, typer.Option(help=EPOCHS)]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Images of a step, over all replicas. Default: 64.")]
ImageSize = Annotated[int | None, typer.Option(min=1, help="Resize images to this many pixels.")]
OptimizerName = Annotated[str | None, typer.Option("--optimizer", help=OPTIMIZER)]
Precision = Annotated[str | None, typer.Option(help=PRECISION)]
Limit = Annotated[int | None, typer.Option(help="Training examples to keep.")]
OnBad = Annotated[
    Literal["strict", "skip"] | None, typer.Option(help="strict: bad files refuse the data; skip: they are left out.")
]
Duplicates = Annotated[Literal["refuse", "allow"] | None, typer.Option(help="Equal images in two splits: refuse or allow.")]
Seed = Annotated[int | None, typer.Option(min=0, help=f"{SEED} Order, weights, augmentation and splits.")]
DataSeed = Annotated[int, typer.Option("--seed", min=0, help=f"{SEED} Splits and what the limit keeps.")]
Cores = Annotated[int | None, typer.Option(help=f"{CORES} Default: all.")]
Hosts = Annotated[
    tuple[str, ...] | None, Names(), typer.Option(help="Machines for the ranks, with commas. The first is this one.")
]
Set = Annotated[list[str] | None, typer.Option("--set", help=SET)]
Modes = Annotated[tuple[str, ...] | None, Parsed(parse_modes), typer.Option(help=MODES)]
Turns = Annotated[
    bool | None,
    typer.Option("--turns/--no-turns", help="Let the runs of a repeat train in turns of a quarter second. Default: on a CPU."),
]
Replicas = Annotated[int | None, typer.Option(min=2, help=f"{REPLICAS} Default: 2.")]
Workers = Annotated[tuple[int, ...] | None, Integers(least=0), typer.Option(help=WORKERS)]
Resume = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Continue what is in this results folder, with all its settings.")
]
Out = Annotated[Path | None, typer.Option(help=f"{OUT} Default: one named by time under results/.")]
OutOrNone = Annotated[Path | None, typer.Option("--out", help=f"{OUT} Default: nothing is kept.")]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Append the report to this file, e.g. $GITHUB_STEP_SUMMARY.")]
"""Option `--markdown`. The command gives `document.errors_in_markdown` to its frame, and ends with `Report.append_to`."""
Sign = Annotated[Path | None, typer.Option(metavar="KEY", help="Sign the results with this SSH key, in ssh-keygen's format.")]
"""Option `--sign`. A command calls `signing.check_key` before it begins."""
Signers = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Demand a signature by a key in this file of ssh's allowed signers.")
]


def contestants(
    frameworks: str | None, words: list[str] | None, in_file: Sequence[Contestant], *, has_other_interpreters: bool = False
) -> Twins:
    """Return the contestants that a command compares.

    Args:
        in_file: contestants of the spec file.
        has_other_interpreters: whether other interpreters run them, see `Twins.choose`.
    """
    framework_names = None if frameworks is None else split_names(frameworks)
    return Twins.choose(framework_names, words or [], in_file, launch.FRAMEWORKS, has_other_interpreters=has_other_interpreters)


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
    """Return dotted fields of the spec from shared options by their Python names. None: the option was not given."""
    values = {_FIELDS.get(name, name): value for name, value in options.items()}
    if (optimizer := values.pop("optimizer", None)) is not None:
        optimizers = parse_choices("--optimizer", optimizer if isinstance(optimizer, list) else [optimizer], tuple(OPTIMIZERS))
        optimizer_fields = {f"optimizer.{field}": value for field, value in OPTIMIZERS[optimizers[0]].items()}
        values |= optimizer_fields if len(optimizers) == 1 else {"optimizer": [OPTIMIZERS[name] for name in optimizers]}
    return values


_NOT_SPEC_FIELDS = ("preset", "spec_file", "assignments")


class SpecRequest(NamedTuple):
    """The arguments of `run_settings.settings`, from the options of a command."""

    preset: str | None
    spec_file: Path | None
    options: dict[str, Any]
    """{dotted field of the spec: value}."""
    assignments: list[str]
    """Values of `--set`."""


class _SpecOptionGroup:
    """Base of the groups of options that include fields of the spec."""

    preset: str | None
    spec_file: Path | None
    assignments: list[str] | None

    def to_request(self, **others: Any) -> SpecRequest:
        """Return the arguments of `run_settings.settings`.

        Args:
            others: further options of the command, as `fields` takes them.
        """
        return SpecRequest(self.preset, self.spec_file, fields(**self._field_values(), **others), self.assignments or [])

    def _field_values(self) -> dict[str, Any]:
        group_fields = dataclasses.fields(cast(Any, self))
        return {
            group_field.name: getattr(self, group_field.name)
            for group_field in group_fields
            if group_field.name not in _NOT_SPEC_FIELDS
        }


@dataclass(frozen=True, kw_only=True)
class SpecOptions(_SpecOptionGroup):
    """A group of options, see `commands.command`: the spec of the run."""

    preset: PresetName = None
    spec_file: SpecFile = None
    data: Data = None
    model: Model = None
    batch_size: BatchSize = None
    image_size: ImageSize = None
    optimizer: OptimizerName = None
    precision: Precision = None
    assignments: Set = None


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(SpecOptions):
    """A group of options: the spec with its length, cores and seed."""

    epochs: Epochs = None
    limit: Limit = None
    cores: Cores = None
    seed: Seed = None


@dataclass(frozen=True, kw_only=True)
class MatrixOptions(_SpecOptionGroup):
    """A group of options like TrainingOptions, where some may have several values. `axes.AXES` names their fields."""

    preset: PresetName = None
    spec_file: SpecFile = None
    data: Annotated[str | None, typer.Option(help=f"{DATA} {_SEVERAL}")] = None
    model: Annotated[str | None, typer.Option(help=f"{MODEL} {_SEVERAL}")] = None
    batch_size: Annotated[
        str | None, typer.Option(help=f"Images of a step, over all replicas. Default: 64. {_SEVERAL}", metavar="INTEGER,...")
    ] = None
    image_size: Annotated[
        str | None, typer.Option(help=f"Resize images to this many pixels. {_SEVERAL}", metavar="INTEGER,...")
    ] = None
    optimizer: Annotated[str | None, typer.Option(help=f"{OPTIMIZER} {_SEVERAL}")] = None
    precision: Annotated[str | None, typer.Option(help=f"{PRECISION} {_SEVERAL}")] = None
    assignments: Set = None
    epochs: Epochs = None
    limit: Limit = None
    cores: Cores = None
    seed: Seed = None

    def _field_values(self) -> dict[str, Any]:
        values = super()._field_values()
        for name in ("batch_size", "image_size", "model", "data", "optimizer", "precision"):
            text = values[name]
            if text is None or (name == "data" and Path(text).exists()):  # a path may have commas
                continue
            is_numeric = name in ("batch_size", "image_size")
            parsed: list[Any] = (
                [*Integers(least=1).parse(f"--{name.replace('_', '-')}", text)] if is_numeric else split_names(text)
            )
            if name == "data":
                parsed = _join_settings(parsed)
            values[name] = parsed[0] if len(parsed) == 1 else parsed or text
        return values


def _join_settings(words: Sequence[str]) -> list[str]:
    """Join comma-separated words into sources. `name=value` is a setting of the source before it."""
    sources: list[str] = []
    for word in words:
        if sources and re.match(r"\w+=", word):
            sources[-1] += f",{word}"
        else:
            sources.append(word)
    return sources


@dataclass(frozen=True, kw_only=True)
class ContestantOptions:
    """A group of options: the contestants that are compared."""

    frameworks: SomeFrameworks = None
    contestant: Contestants = None

    def twins(self, in_file: Sequence[Contestant], *, has_other_interpreters: bool = False) -> Twins:
        """Return the contestants, see `contestants`."""
        return contestants(self.frameworks, self.contestant, in_file, has_other_interpreters=has_other_interpreters)
