"""The search for the fastest switches of one framework: each by itself, then together as long as that is surely faster.

Every measurement is a run of the model alone (`part: compute`) in a fresh process, sealed in the results folder under its
configuration and round; one that is sealed already is not made again. So a search that was cut short goes on where it
stopped, by the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from pydantic import BaseModel, ConfigDict

from common import spec
from common.rates import Rates
from common.results import ResultError, RunResult
from common.spec import Spec
from common.work import Work
from compare import execution, launch, store
from compare.matrix import Row
from compare.statistics import SIGNIFICANCE, Ratio, Spread, paired_ratio, spread
from compare.summary import images_per_second

HOPELESS = 0.8
"""Of the speed of `fair` in the first round, below which a switch is not measured again nor tried with others."""
STOPPED_BELOW = {1: 0.1, 3: 0.5}
"""Epochs of the search: parts of the speed of `fair`. A run that is below after so many is not waited for; the first may
be a slow one."""
PRICE_STEPS = 20
"""Over which losses are held against those of `plain`."""
EPOCH_STEPS = 5
"""Of the runs: the pace of a run is that of its median epoch, so that its warm-up does not count."""

PLAIN, FAIR = "plain", "fair"

Kind = Literal["level", "switch", "together"]


class Step(BaseModel):
    """One configuration of the ladder."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")

    name: str
    kind: Kind
    options: dict[str, Any]
    status: Literal["measured", "dropped", "failed"]
    """`dropped`: after its first round, for being hopelessly slow."""
    reason: str | None = None
    images_per_second: Spread | None = None
    ratio: Ratio | None = None
    """To `fair`, of runs of the same round; None of `fair` itself."""
    first_step_seconds: float | None = None
    """The longest of the rounds: later ones may find what was compiled before."""
    compile_seconds: float | None = None
    """What its first step takes longer than that of `fair`."""
    paid_back_epochs: float | None = None
    """Epochs of the whole data after which its pace has made up for that; None where it does not."""
    price: float | None = None
    """Largest relative difference of a loss to that of `plain` in float32; infinite where one is no number."""
    matrix_fraction: float | None = None
    """Of the machine's rate for float32 matrix products; None where it is not known, or on a GPU."""
    taken: bool = False
    """Whether it is what was found best."""


class _HopelessError(Exception):
    """A run is stopped."""


@dataclass
class _Configuration:
    name: str
    kind: Kind
    options: dict[str, Any]
    dropped: bool = False
    failure: str | None = None
    rounds: dict[int, RunResult] = field(default_factory=dict[int, RunResult])

    @property
    def hopeful(self) -> bool:
        return not self.dropped and self.failure is None


class Request(BaseModel):
    """What is asked for, of every framework alike."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: Spec
    """What is trained, as `fair` has it; its part and length are replaced by the search's own."""
    switches: list[str] | None
    """Those to try; None: all."""
    rounds: int
    """Runs of each configuration."""
    steps: int
    """Timed, of each run."""
    max_price: float
    """Above which a switch is not taken, see `Step.price`."""


class Search:
    """One framework's ladder.

    Args:
        framework: its name.
        request: what is asked for.
        description: the framework's `describe`.
        folder: of this framework's runs.
        train_images: of a whole epoch.
        work: of the model.
        machine_rates: of the machine with the run's cores; None where they are not known.
        told: what is being done.
    """

    def __init__(
        self,
        framework: str,
        request: Request,
        description: Mapping[str, Any],
        *,
        folder: Path,
        train_images: int,
        work: Work,
        machine_rates: Rates | None,
        told: Callable[[str], None],
    ) -> None:
        self._framework = framework
        self._request = request
        self._description = description
        self._folder = folder
        self._train_images = train_images
        self._work = work
        self._rates = machine_rates
        self._told = told
        base = request.spec
        data = base.data.model_dump()
        batch = base.global_batch_size
        self._timed = base.with_fields(
            part="compute",
            epochs=None,
            steps=request.steps + EPOCH_STEPS,
            data=data | {"limit": min(data["limit"] or math.inf, EPOCH_STEPS * batch)},
            checkpoint_seconds=None,
        )
        self._judged = base.with_fields(
            epochs=None,
            steps=PRICE_STEPS,
            data=data | {"limit": min(data["limit"] or math.inf, PRICE_STEPS * batch)},
        )
        self._plain = _Configuration(PLAIN, "level", {})
        self._fair = _Configuration(FAIR, "level", {})
        self._prices: dict[str, float] = {}

    def run(self) -> tuple[list[Step], dict[str, Any]]:
        """The ladder, and the switches that are surely fastest together; see the module.

        Raises:
            LaunchError: `fair` itself cannot be run.
        """
        singles = self._singles()
        everything = [self._fair, self._plain, *singles]
        self._measure(everything, range(1))
        if self._fair.failure is not None:
            raise launch.LaunchError(f"{self._framework} cannot run {self._timed.model}: {self._fair.failure}")
        for each in everything[1:]:
            self._drop_if_hopeless(each, self._fair)
        self._measure(everything, range(1, self._request.rounds))
        ratios = {each.name: ratio for each in singles if (ratio := self._ratio(each, self._fair)) is not None}
        hopeful = [each for each in singles if each.hopeful and each.name in ratios and self._is_cheap(each)]
        hopeful.sort(key=lambda each: -ratios[each.name].value)
        base, tried = self._fair, list[_Configuration]()
        for each in hopeful:
            if base is self._fair:
                if is_surely_faster(ratios[each.name], len(singles)):
                    base = each
            elif not each.options.keys() & base.options.keys():
                options = base.options | each.options
                together = _Configuration(_name(options), "together", options)
                tried.append(together)
                if self._beats(together, base, len(tried), len(singles)):
                    base = together
        ladder = [self._step(each, base) for each in (*everything, *tried)]
        return ladder, base.options

    def _singles(self) -> list[_Configuration]:
        """Each switch at each other value that fits: here, serially, in float32."""
        found: list[_Configuration] = []
        for name, option in self._description["options"].items():
            if self._request.switches is not None and name not in self._request.switches:
                continue
            for value in option["values"]:
                if value != option["default"] and spec.misfit(self._timed, option, value) is None:
                    found.append(_Configuration(_name({name: value}), "switch", {name: value}))
        return found

    def _beats(self, new: _Configuration, base: _Configuration, trial: int, tests: int) -> bool:
        """Whether it is surely faster, in rounds of its own, in which `fair` runs too."""
        first = trial * self._request.rounds
        both = [self._fair, base, new]
        self._measure(both, range(first, first + 1))
        self._drop_if_hopeless(new, base)
        if not new.hopeful:
            return False
        self._measure(both, range(first + 1, first + self._request.rounds))
        ratio = self._ratio(new, base)
        return ratio is not None and is_surely_faster(ratio, tests) and self._is_cheap(new)

    def _measure(self, configurations: Sequence[_Configuration], rounds: range) -> None:
        """A B, then B A: a machine that grows warmer or busier favours none."""
        for number in rounds:
            for each in configurations if number % 2 == 0 else reversed(configurations):
                if each.hopeful and number not in each.rounds:
                    self._told(f"{self._framework}, {each.name}, round {number + 1}")
                    result = self._result(each, number)
                    if result.status == "ok" or self._is_stopped(each, result, number):
                        each.rounds[number] = result
                    else:
                        each.failure = f"{result.status}: {result.reason}"

    def _result(self, each: _Configuration, number: int) -> RunResult:
        row = Row(id=f"{self._framework}-{each.name}", framework=self._framework, spec=self._spec(each, self._timed))
        try:
            sealed = store.sealed(self._folder, row, number)
        except ResultError:
            sealed = None
        if sealed is not None and (sealed.status != "killed" or self._is_stopped(each, sealed, number)):
            return sealed

        def watch(events: Sequence[Mapping[str, Any]]) -> None:
            epochs = [event for event in events if event.get("event") == "epoch"]
            if self._is_hopeless(each, [epoch["timed_images"] / epoch["timed_seconds"] for epoch in epochs], number):
                raise _HopelessError

        try:
            return execution.execute(row, number, self._folder, watch)
        except _HopelessError:
            sealed = store.sealed(self._folder, row, number)
            assert sealed is not None  # as killed, with its epochs
            return sealed

    def _is_stopped(self, each: _Configuration, result: RunResult, number: int) -> bool:
        """Whether a run was stopped for being hopeless: its epochs say how slow it was."""
        paces = [epoch.timed_images / epoch.timed_seconds for epoch in result.epochs]
        return result.status == "killed" and self._is_hopeless(each, paces, number)

    def _is_hopeless(self, each: _Configuration, paces: Sequence[float], number: int) -> bool:
        fair = self._fair.rounds.get(number)
        if each.name in (PLAIN, FAIR) or fair is None or not paces:
            return False
        pace = _median(paces) / images_per_second(fair)
        return any(len(paces) >= epochs and pace < part for epochs, part in STOPPED_BELOW.items())

    def _spec(self, each: _Configuration, base: Spec) -> Spec:
        return base.with_fields(switches=PLAIN if each is self._plain else FAIR, framework_options=each.options)

    def _drop_if_hopeless(self, each: _Configuration, other: _Configuration) -> None:
        ratio = self._ratio(each, other)
        each.dropped = each.name != PLAIN and ratio is not None and ratio.value < HOPELESS

    def _ratio(self, one: _Configuration, other: _Configuration) -> Ratio | None:
        shared = sorted(one.rounds.keys() & other.rounds.keys())
        return paired_ratio(
            [(images_per_second(one.rounds[number]), images_per_second(other.rounds[number])) for number in shared]
        )

    def _is_cheap(self, each: _Configuration) -> bool:
        return self._price(each) <= self._request.max_price

    def _price(self, each: _Configuration) -> float:
        """Largest relative difference of a loss to `plain`'s over some steps of training."""
        if each.name not in self._prices:
            ours, theirs = (self._losses(which) for which in (each, self._plain))
            apart = np.inf if ours is None or theirs is None else np.abs(ours - theirs) / np.abs(theirs)
            self._prices[each.name] = float(np.max(np.where(np.isfinite(apart), apart, np.inf)))
        return self._prices[each.name]

    def _losses(self, each: _Configuration) -> np.ndarray | None:
        """None where the framework cannot record them."""
        folder = self._folder / "losses"
        path, recording = folder / f"{each.name}.json", folder / f"{each.name}.safetensors"
        if not recording.exists():
            self._told(f"{self._framework}, {each.name}, its losses")
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(self._spec(each, self._judged).to_json(), encoding="utf-8")
            partial = recording.with_suffix(".partial")  # of a trace that is cut short
            words = ["trace", str(path), "--out", str(partial)]
            if launch.call(self._framework, words, log=path.with_suffix(".log"), hang_seconds=self._judged.hang_seconds) != 0:
                return None
            partial.replace(recording)
        return np.asarray(safetensors.numpy.load_file(recording)["loss"], np.float64)

    def _step(self, each: _Configuration, best: _Configuration) -> Step:
        status = "failed" if each.failure is not None else "dropped" if each.dropped else "measured"
        common: dict[str, Any] = {"name": each.name, "kind": each.kind, "options": each.options, "reason": each.failure}
        if not each.rounds:
            return Step(status=status, **common)
        paces = [images_per_second(result) for _, result in sorted(each.rounds.items())]
        pace, own = spread(paces), _median(paces)
        compiling = max(_first_step(each) - _first_step(self._fair), 0.0)
        gained = self._train_images / _median([images_per_second(one) for one in self._fair.rounds.values()])
        gained -= self._train_images / own
        rate = self._rates.float32_gflops if self._rates and each.rounds[min(each.rounds)].device == "cpu" else None
        return Step(
            status=status,
            images_per_second=pace,
            ratio=None if each is self._fair else self._ratio(each, self._fair),
            first_step_seconds=_first_step(each),
            compile_seconds=compiling,
            paid_back_epochs=compiling / gained if gained > 0 else None,
            price=self._price(each) if each.hopeful else None,
            matrix_fraction=1e-9 * self._work.flops * own / rate if rate else None,
            taken=each is best,
            **common,
        )


def is_surely_faster(ratio: Ratio, tests: int) -> bool:
    """Whether the first of a ratio may be called faster, as one of so many that might have been.

    Each switch is tested once, by itself or with others: by its p times their number (Bonferroni), for what is tested next
    hangs on what was found. A single round, as after a failure, is sure of nothing.
    """
    return ratio.p is not None and ratio.value > 1.0 and tests * ratio.p < SIGNIFICANCE


def _name(options: Mapping[str, Any]) -> str:
    """In folders and tables, e.g. `arithmetic-bfloat16.memory_format-channels_last`."""
    return ".".join(f"{name}-{value}" for name, value in options.items())


def _first_step(each: _Configuration) -> float:
    return max((result.phases.first_step_seconds for result in each.rounds.values() if result.phases), default=0.0)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
