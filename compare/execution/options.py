"""Options that several commands share. One thing has one name, one meaning and one field of the spec everywhere."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_type_hints

import typer

from common import spec
from common.data import sources
from compare.core import presets
from compare.core.option_parsing import chosen, names, numbers
from compare.execution import contestants as named_contestants
from compare.execution import launch

ALL_FRAMEWORKS = ",".join(launch.FRAMEWORKS)

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    "adam": {"name": "adam", "learning_rate": 1e-3},
}
"""What `--optimizer` stands for."""

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
MODES = f"Which of {', '.join(spec.VARIANTS)}, with commas; or all."
REPLICAS = "Replicas of the parallel modes."
REPEATS = "How often each is run."
MOST_REPEATS = "The most repeats."
STEPS = "Training steps."
MOST_COMPARED_STEPS = 100_000
"""Of `match`, `parity` and `optimize`. A larger number is a slip: each step is kept, or takes a part of a second."""
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

Frameworks = Annotated[str, typer.Option(help=FRAMEWORKS)]
SomeFrameworks = Annotated[str | None, typer.Option("--frameworks", help=f"{FRAMEWORKS} Default: all, or --contestant.")]
"""With `Contestants`. `contestants` reads both."""
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
Hosts = Annotated[str | None, typer.Option(help="Machines for the ranks, with commas. The first is this one.")]
Set = Annotated[list[str] | None, typer.Option("--set", help=SET)]
Modes = Annotated[str | None, typer.Option(help=MODES)]
Replicas = Annotated[int | None, typer.Option(min=2, help=f"{REPLICAS} Default: 2.")]
Workers = Annotated[str | None, typer.Option(help=WORKERS)]
Resume = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Continue what is in this results folder, with all its settings.")
]
Out = Annotated[Path | None, typer.Option(help=f"{OUT} Default: one named by time under results/.")]
OutOrNone = Annotated[Path | None, typer.Option("--out", help=f"{OUT} Default: nothing is kept.")]
Sign = Annotated[Path | None, typer.Option(metavar="KEY", help="Sign the results with this SSH key, in ssh-keygen's format.")]
"""A command calls `signing.check` before it begins."""
Signers = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Demand a signature by a key in this file of ssh's allowed signers.")
]
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
    if (optimizer := found.pop("optimizer", None)) is not None:
        named = chosen("--optimizer", optimizer if isinstance(optimizer, list) else [optimizer], tuple(OPTIMIZERS))
        one = {f"optimizer.{field}": value for field, value in OPTIMIZERS[named[0]].items()}
        found |= one if len(named) == 1 else {"optimizer": [OPTIMIZERS[name] for name in named]}
    return found


_BESIDE_FIELDS = ("preset", "spec_file", "assignments")


class _Asked:
    """A group of options that has some of the spec."""

    preset: str | None
    spec_file: Path | None
    assignments: list[str] | None

    def asked(self, **others: Any) -> tuple[str | None, Path | None, dict[str, Any], list[str]]:
        """(preset, spec file, fields, assignments) as `run_settings.settings` takes them.

        Args:
            others: options of the command's own, as `fields` takes them.

        Raises:
            SpecError: the optimizer is unknown.
        """
        return self.preset, self.spec_file, fields(**self._own(), **others), self.assignments or []

    def _own(self) -> dict[str, Any]:
        own = dataclasses.fields(cast(Any, self))
        return {each.name: getattr(self, each.name) for each in own if each.name not in _BESIDE_FIELDS}


@dataclass(frozen=True, kw_only=True)
class SpecOptions(_Asked):
    """A group of options, see `grouped`: the spec of what is run."""

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
    """The spec with its length, cores and seed."""

    epochs: Epochs = None
    limit: Limit = None
    cores: Cores = None
    seed: Seed = None


@dataclass(frozen=True, kw_only=True)
class MatrixOptions(_Asked):
    """The same as TrainingOptions, where some may have several values. `cells.AXES` names their fields."""

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

    def _own(self) -> dict[str, Any]:
        own = super()._own()
        for name in ("batch_size", "image_size", "model", "data", "optimizer", "precision"):
            text = own[name]
            if text is None or (name == "data" and Path(text).exists()):  # a path may have commas
                continue
            numbered = name in ("batch_size", "image_size")
            listed: list[Any] = [*numbers(f"--{name.replace('_', '-')}", text, least=1)] if numbered else names(text)
            if name == "data":
                listed = _with_settings(listed)
            own[name] = listed[0] if len(listed) == 1 else listed or text
        return own


def _with_settings(words: Sequence[str]) -> list[str]:
    """The sources among the words between commas. `name=value` is a setting of the source before it."""
    sources: list[str] = []
    for word in words:
        if sources and re.match(r"\w+=", word):
            sources[-1] += f",{word}"
        else:
            sources.append(word)
    return sources


@dataclass(frozen=True, kw_only=True)
class ContestantOptions:
    """A group of options: what is compared."""

    frameworks: SomeFrameworks = None
    contestant: Contestants = None

    def names(self, in_file: Mapping[str, Any], *, elsewhere: bool = False) -> list[str]:
        """Enter the contestants and return their names, see `contestants`."""
        return contestants(self.frameworks, self.contestant, in_file, elsewhere=elsewhere)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: a parameter whose type is a dataclass stands for the options of its fields."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    for each in inspect.signature(command, eval_str=True).parameters.values():
        if not dataclasses.is_dataclass(each.annotation):
            parameters.append(each)
            continue
        groups[each.name] = each.annotation
        types = get_type_hints(each.annotation, include_extras=True)
        parameters += [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name])
            for field in dataclasses.fields(each.annotation)
        ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    # Where typer looks for the options of a command.
    vars(called)["__signature__"] = inspect.Signature(parameters)
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called
