"""A study file: the spec that all steps share, the settings of each step, and their size at each scale."""

from __future__ import annotations

import difflib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import BaseModel, Field

from common import spec
from common.frozen import Frozen
from common.models import architectures
from common.spec import Spec, SpecError
from common.spec.errors import format_value
from compare.cli.option_parsing import parse_choices
from compare.running import contestants, launch
from compare.running.comparison_settings import ComparisonSettings
from compare.running.twins import Twins
from compare.tools.evaluation import final_training
from compare.tools.evaluation.final_training import EvaluationSettings
from compare.tools.tuning import search_space, tuner
from compare.tools.tuning.records import Backend, Objective, Pruner, Sampler, Tuning

_AtLeast0 = Annotated[int, Field(ge=0, le=10**6)]
_AtLeast1 = Annotated[int, Field(ge=1, le=10**6)]
_Counts = Annotated[tuple[_AtLeast1, ...], Field(min_length=1)]
_AtLeast2 = Annotated[int, Field(ge=2, le=10**6)]

SCALES = ("smoke", "quick", "full")
_MATRIX = ("mode", "replicas", "epochs", "steps")
"""Spec fields that steps set themselves."""


class Clean(Frozen):
    """Treatment of broken and duplicate images."""

    on_bad: Literal["strict", "skip"] = "skip"
    duplicates: Literal["refuse", "allow"] = "refuse"


class Normalise(Frozen):
    """Settings of the scans for mean and standard deviation of the training split, by every engine."""

    engines: tuple[str, ...] = Field(default_factory=lambda: (*launch.SUITE_WORKERS, *launch.FRAMEWORKS))
    workers: _Counts = (1, 2)
    repeats: _AtLeast1 = 3


class Pretrain(Frozen):
    """Settings of the comparison of serial with parallel training."""

    modes: Annotated[tuple[str, ...], Field(min_length=1)] = ComparisonSettings().modes
    replicas: _AtLeast2 = 2
    epochs: _AtLeast1 = 2
    repeats: _AtLeast1 = 1


class Tune(Frozen):
    """Settings of the search for better fields of the spec, see `tuning.records.Tuning`."""

    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    objective: Objective = "loss"
    trials: _AtLeast1 = 12
    jobs: _Counts = (1, 2)
    repeats: _AtLeast1 = 1
    backend: Backend = "threads"
    epochs: _AtLeast1 = 2
    """Number of epochs of a trial."""
    space: dict[str, Any] = search_space.DEFAULT


class Final(Frozen):
    """Settings of the training of the best fields, to its best validation epoch."""

    epochs: _AtLeast1 = 30
    patience: _AtLeast0 = 5
    """Number of epochs without a better one after which training ends. 0: it never ends early."""
    repeats: _AtLeast1 = 1


class Study(Frozen):
    """A whole study, at one scale."""

    title: str = Field(min_length=1)
    frameworks: tuple[str, ...] = Field(default_factory=lambda: tuple(launch.FRAMEWORKS))
    spec: dict[str, Any] = {}
    """Fields of the spec for all steps."""
    clean: Clean = Clean()
    normalise: Normalise = Normalise()
    pretrain: Pretrain = Pretrain()
    tune: Tune = Tune()
    final: Final = Final()

    @classmethod
    def read(cls, path: Path, scale: str, assignments: dict[str, Any]) -> Self:
        """Read the study of a file at one of its scales.

        Args:
            path: a YAML file of these fields and `scales`: {scale: {dotted field: value}}.
            scale: one of SCALES.
            assignments: dotted fields that are set after all.
        """
        parse_choices("--scale", [scale], SCALES)
        values = spec.read_values(path, "study file")
        scales = values.pop("scales", {})
        try:
            if not isinstance(scales, dict) or any(not isinstance(group, dict) for group in scales.values()):
                received = format_value(scales, "scales")
                raise SpecError(
                    f"scales must be groups of dotted fields. Received: {received}. Write {{smoke: {{tune.trials: 3}}}}."
                )
            if scales:
                parse_choices("scales", list(scales), SCALES)
            study = cls.model_validate(spec.overlay(spec.overlay(values, scales.get(scale, {})), assignments))
            study._check()
        except (pydantic.ValidationError, SpecError) as error:
            where = f"{path} with {', '.join(assignments)} set" if assignments else str(path)
            reason = _explained(error) if isinstance(error, pydantic.ValidationError) else error
            raise SpecError(f"{where}: {reason}") from None
        return study

    @cached_property
    def twins(self) -> Twins:
        """The contestants of all steps."""
        return Twins(self.frameworks)

    def base(self, **fields: Any) -> Spec:
        """Return the spec that all steps share, cleaned data and all, with more fields set."""
        return spec.build(self.values(**fields))

    def values(self, **fields: Any) -> dict[str, Any]:
        """Return the values of that spec, before they are checked. Dotted names are written with two underscores."""
        cleaned = {"data.on_bad": self.clean.on_bad, "data.duplicates": self.clean.duplicates}
        return spec.overlay(self.spec, cleaned | {name.replace("__", "."): value for name, value in fields.items()})

    def tuning(self) -> Tuning:
        """Return the settings of the tuning: serial trainings. Trials that run at the same time share the core budget."""
        tune = self.tune
        return Tuning(
            values=self.values(epochs=tune.epochs),
            frameworks=self.frameworks,
            space_name="tune.space",
            **tune.model_dump(exclude={"epochs"}),
        )

    def evaluation(self, best: dict[str, dict[str, Any]]) -> EvaluationSettings:
        """Return the settings of the final training.

        Args:
            best: framework: {dotted field of the spec: value}.
        """
        final = self.final
        values = self.values(epochs=final.epochs, best_epoch__patience=final.patience or None)
        return EvaluationSettings(values=values, frameworks=self.frameworks, tuned=best, repeats=final.repeats)

    def _check(self) -> None:
        if set_here := [field for field in _MATRIX if field in self.spec]:
            raise SpecError(f"spec.{set_here[0]} is each step's own. Received: {self.spec[set_here[0]]!r}. Set it there.")
        contestants.builtin_twins("frameworks", self.frameworks, launch.FRAMEWORKS)
        contestants.builtin_twins("normalise.engines", self.normalise.engines, (*launch.SUITE_WORKERS, *launch.FRAMEWORKS))
        try:
            base = self.base()
        except SpecError as error:
            raise SpecError(f"in spec, {error}") from None
        if base.data.image_size is not None:
            architectures.build(base, 2, base.data.image_size)  # refuses images that are too small for it
        for variant in parse_choices("pretrain.modes", self.pretrain.modes, tuple(spec.MODES)):
            spec.build(spec.with_variant(self.values(epochs=self.pretrain.epochs), variant, self.pretrain.replicas))
        tuner.check(self.tuning())
        if shared := sorted(field for field in self.tune.space if field.split(".")[0] in final_training.SHARED):
            raise SpecError(
                f"tune.space.{shared[0]} must be the same in all frameworks, for the final models are scored on the same "
                f"images. Received: {self.tune.space[shared[0]]!r}. Leave it out."
            )
        final_training.rows(self.evaluation({}))


_GROUPS: dict[str, type[BaseModel]] = {
    "clean": Clean,
    "normalise": Normalise,
    "pretrain": Pretrain,
    "tune": Tune,
    "final": Final,
}
_FIELDS = [
    *Study.model_fields,
    "scales",
    *(f"{name}.{field}" for name, group in _GROUPS.items() for field in group.model_fields),
]


def _explained(error: pydantic.ValidationError) -> str:
    first = error.errors()[0]
    received = format_value(first["input"], first["loc"])
    field = ".".join(map(str, first["loc"])) or "study"
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(field, _FIELDS, n=1)
        return f"{field} is not a field. Received: {received}. {f'Did you mean {close[0]}?' if close else 'Leave it out.'}"
    if first["type"] == "tuple_type":
        return f"{field} is a list. Received: {received}. Write [{received}]."
    return f"{field} is refused: {first['msg']}. Received: {received}. Change {field}."
