"""The settings of a comparison: what options, spec files and presets are turned into, and what is stored with its plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field

from common.frozen import Count, Exact
from common.spec import SpecError
from compare.running import matrix
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.statistics.statistics import VERDICT_PAIRS
from compare.statistics.until_decided import UntilDecided

MOST_REPEATS = 10_000
"""Largest number of repeats of a row. More is a typing error."""


class ComparisonSettings(Exact):
    """All settings of a comparison.

    Those that say which rows there are, from `values` to `levels`, are not stored: a plan has the rows that they were laid out
    to.
    """

    repeats: int = Field(default=1, ge=1)
    """How often each row is run."""
    seeds: tuple[int, ...] = ()
    """Seeds of the repeats, in a cycle. Empty: each row's spec has its own."""
    until: UntilDecided | None = None
    """When to stop adding repeats. None: exactly `repeats` of each row are made."""
    contestants: tuple[Contestant, ...] = ()
    """Contestants that are more than a twin's name. In a new comparison: those of its spec file."""
    prove: bool = True
    """Whether to prove first that the training is the same."""
    oversubscribe: bool = False
    """Whether to run modes with more replicas than cores. The replicas then share cores."""
    turns: bool | None = None
    """Whether the runs of a repeat take turns within their epochs, see `taking_turns`. None: on a CPU they do."""
    restarts: Count = 0
    """How often a run that dies is restarted, see `executor.execute`."""
    target_accuracy: float | None = None
    """Accuracy of the validation split where the time to accuracy ends."""
    values: dict[str, Any] = Field(default={}, exclude=True)
    """Values of the spec, nested and plain."""
    modes: tuple[str, ...] = Field(default=("serial", "data_parallel", "multi_process"), exclude=True)
    replicas: int = Field(default=2, exclude=True)
    """Replicas of the parallel modes."""
    one_core: bool = Field(default=True, exclude=True)
    """Whether serial also runs on one core, as the baseline of the speed-up. False: it runs on the cores of the parallel modes
    only."""
    workers: tuple[int, ...] = Field(default=(), exclude=True)
    """Numbers of input workers, each with its own rows. Empty: the number in the values."""
    inputs: tuple[str, ...] = Field(default=(), exclude=True)
    """How batches are fed, each with its own rows. Empty: the input in the values."""
    levels: tuple[str, ...] = Field(default=(), exclude=True)
    """Levels of switches, each with its own rows. Empty: the level in the values."""
    stated_settings: tuple[str, ...] = Field(default=(), exclude=True)
    """Names among `modes`, `one_core` and `repeats` that a spec file sets. A command with other defaults uses them for the
    rest."""

    def updated(self, **changes: Any) -> Self:
        """Return the settings with other values. None leaves a field as it is."""
        return self.model_copy(update={name: value for name, value in changes.items() if value is not None})

    def build_rows(self, contestants: Sequence[Contestant]) -> list[Row]:
        """Build the rows of these contestants, see `matrix.build_rows`."""
        return matrix.build_rows(
            self.values,
            contestants,
            self.modes,
            self.replicas,
            self.workers,
            self.levels,
            self.inputs,
            one_core=self.one_core,
        )

    def check_repeats(self) -> Self:
        """Return the settings, with enough repeats for a verdict if repeats are added until it is decided."""
        if self.repeats > MOST_REPEATS:
            raise SpecError(f"A row has at most {MOST_REPEATS} runs. Received: {self.repeats}. Ask for fewer.")
        if self.until is None:
            return self
        repeats = max(self.repeats, VERDICT_PAIRS)
        if not repeats <= self.until.most_repeats <= MOST_REPEATS:
            raise SpecError(
                f"--most-repeats must be from --repeats to {MOST_REPEATS}. Received: {self.until.most_repeats} for "
                f"{repeats} repeats. Use {max(repeats, 30)}."
            )
        return self.updated(repeats=repeats)

    def keeps_seeds(self, seeds: Sequence[int]) -> bool:
        """Return whether every repeat keeps its seed if the comparison has these seeds from now on."""
        if not self.seeds or not seeds:
            return not self.seeds and not seeds
        return all(self.seeds[repeat % len(self.seeds)] == seeds[repeat % len(seeds)] for repeat in range(self.repeats))

    def difference_in_turns(self, new: ComparisonSettings) -> str | None:
        """Describe how new settings ask for another way to take turns. None: they do not."""
        if new.turns in (None, self.turns):
            return None
        ways = {True: "in turns (--turns)", False: "one after the other (--no-turns)", None: "in turns on a CPU alone"}
        return f"its runs train {ways[self.turns]}; asked for: {ways[new.turns]}"

    def continued_by(self, new: ComparisonSettings) -> Self:
        """Return the settings to go on with: the stored ones, with those new ones that may change."""
        return self.updated(
            repeats=max(self.repeats, new.repeats),
            seeds=new.seeds,
            until=new.until,
            restarts=new.restarts,
            target_accuracy=new.target_accuracy,
        )


def _few_repeats(settings: ComparisonSettings) -> ComparisonSettings:
    if settings.repeats > MOST_REPEATS:
        raise ValueError(f"it has more than {MOST_REPEATS} repeats")
    return settings


def _without_turns(values: Any) -> Any:
    """Return the stored fields of settings. Where they say nothing about turns, no run took any."""
    return {"turns": False} | cast(dict[str, Any], values) if isinstance(values, dict) else values


PlannedSettings = Annotated[ComparisonSettings, AfterValidator(_few_repeats), BeforeValidator(_without_turns)]
"""Settings of a plan. A stored plan may come from anybody, so the number of repeats is limited."""


def from_version_1(values: Any, version: int | None) -> Any:
    """Return the fields of a stored plan as version 2 has them. In version 1 each setting was a field of the plan.

    Args:
        values: the fields.
        version: `schema_version` in plans of version 1. None: they had no such field.
    """
    if not isinstance(values, dict) or "settings" in values or values.get("schema_version") != version:
        return values
    fields = cast(dict[str, Any], values)
    stored = [name for name, field in ComparisonSettings.model_fields.items() if not field.exclude]
    settings = {name: fields[name] for name in stored if name in fields}
    return {name: value for name, value in fields.items() if name not in stored} | {"schema_version": 2, "settings": settings}
