"""The search for the fastest switches of one framework: first each alone, then together while each addition is surely faster.

Every measurement is a run of the model alone (`part: compute`) in a fresh process. Its result is stored in the results folder
under its configuration and round, and a finished run is not repeated. So an interrupted search resumes with the same steps.
On an accelerator, a run trains whole epochs with their input: switches there also decide where the input is made. Costs that
occur once an epoch count in the pace, as in a real run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy

from common import spec
from common.artifacts.schema import ResultError, RunResult
from common.frozen import Frozen
from common.machine.rates import Rates
from common.models.work import Work
from common.spec import Spec
from compare.core import errors
from compare.core.statistics import SIGNIFICANCE, Ratio, Spread, paired_ratio, spread
from compare.execution import executor, launch, store
from compare.execution.interleaving import turn
from compare.execution.matrix import Row
from compare.judgement.run_figures import images_per_second, times_in_doubt

HOPELESS = {1: 0.5, 2: 0.8}
"""By rounds: fraction of the speed of `usual`. A slower switch is neither measured again nor combined with others. A single
round may be slow by chance."""
FUTILE = {1: 0.8, 2: 1.0}
"""The same for additions to the best so far, as fractions of its speed. An addition that is slower in the mean of two rounds
will not be surely faster in five."""
STOPPED_BELOW = {1: 0.1, 3: 0.5}
"""By epochs of the search: fraction of the speed of `usual`. A run below it after so many epochs is stopped. The first epoch
may be slow by chance."""
DRIFT_STEPS = 20
"""Steps over which losses are compared with those of `plain`."""
EPOCH_STEPS = 5
"""Steps of an epoch. A run's pace is that of its median epoch, so that its warm-up does not count."""
ACCELERATOR_EPOCHS = 3
"""Epochs of a run on an accelerator, for the same reason."""

PARTED = 2.0
"""Factor over float32's own loss drift from float64. Only a drift above it is attributed to the switch: in some unsteady
trainings, rounding alone changes the losses by any amount within those steps."""

PLAIN, USUAL, FULL, FLOAT64 = "plain", "usual", "full", "float64"

Kind = Literal["level", "switch", "together"]


class Step(Frozen):
    """One configuration of the ladder."""

    name: str
    kind: Kind
    options: dict[str, Any]
    status: Literal["measured", "dropped", "failed"]
    """`dropped`: hopelessly slow after one or two rounds."""
    reason: str | None = None
    images_per_second: Spread | None = None
    ratio: Ratio | None = None
    """Ratio to `usual`, from runs of the same round. None for `usual` itself."""
    first_step_seconds: float | None = None
    """Median of the rounds. Each round compiles anew. None if every run was stopped."""
    compile_seconds: float | None = None
    """Extra seconds of its first step, compared with `usual`."""
    paid_back_epochs: float | None = None
    """Epochs of the whole data after which its pace makes up for that. None if it never does."""
    loss_drift: float | None = None
    """Largest relative difference of a loss from `plain` with full float32 digits. Infinite if a loss is not a number."""
    rounding: float | None = None
    """Loss drift of float32 itself, from float64. Set if the switch's own drift is above the limit."""
    matrix_fraction: float | None = None
    """Fraction of the machine's rate for float32 matrix products; on an accelerator, of its rate in the run's arithmetic. None
    if the rate is not known."""
    in_doubt: int = 0
    """Runs whose times are not reliable; see `times_in_doubt`."""
    taken: bool = False
    """Whether it is the best found."""


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

    @property
    def paces(self) -> list[float]:
        """Images per second of the rounds."""
        return [images_per_second(result) for _, result in sorted(self.rounds.items())]

    @property
    def first_step_seconds(self) -> float | None:
        """Median; None where every run was stopped."""
        known = [result.phases.first_step_seconds for result in self.rounds.values() if result.phases]
        return _median(known) if known else None


class Request(Frozen):
    """What to search, the same for every framework."""

    spec: Spec
    """The training, as `usual` has it. The search sets part and length itself."""
    switches: list[str] | None
    """Switches to try. None: all."""
    rounds: int
    """Runs of each configuration."""
    steps: int
    """Timed steps of each run. On an accelerator, a run takes ACCELERATOR_EPOCHS instead."""
    max_loss_drift: float
    """A switch with a larger loss drift is not taken, unless float32 itself drifts as far from float64."""


@dataclass
class Search:
    """One framework's ladder."""

    framework: str
    request: Request
    description: Mapping[str, Any]
    """The framework's `describe`."""
    folder: Path
    """Of this framework's runs."""
    train_images: int
    """Of a whole epoch."""
    work: Work
    """Of the model."""
    machine_rates: Rates | None
    """Of the machine with the run's cores; None where they are not known."""
    report: Callable[[str], None]
    """Is called with what is being done."""

    def __post_init__(self) -> None:
        request, base = self.request, self.request.spec
        if self._on_accelerator:
            self._timed = base.with_fields(epochs=ACCELERATOR_EPOCHS, steps=None, checkpoint_seconds=None)
        else:
            self._timed = base.with_fields(
                part="compute",
                epochs=None,
                steps=request.steps + EPOCH_STEPS,
                data=self._limited(EPOCH_STEPS),
                checkpoint_seconds=None,
            )
        self._judged = base.with_fields(epochs=None, steps=DRIFT_STEPS, data=self._limited(DRIFT_STEPS))
        self._plain = _Configuration(PLAIN, "level", {})
        options: dict[str, Any] = self.description["options"]
        fewer = {name: each["default"] for name, each in options.items() if each.get("plain") in each.get("reduced", ())}
        self._full = _Configuration(FULL, "level", fewer) if fewer else self._plain
        """Reference for losses. Under `plain`, some devices compute with fewer digits."""
        self._float64 = _Configuration(FLOAT64, "level", fewer)
        self._usual = _Configuration(USUAL, "level", {})
        self._drifts: dict[str, float] = {}

    def run(self) -> tuple[list[Step], dict[str, Any]]:
        """The ladder, and the switches that are surely the fastest together; see the module.

        Raises:
            LaunchError: `usual` itself cannot be run.
        """
        singles = self._singles()
        everything = [self._usual, self._plain, *singles]
        for number in range(self.request.rounds):
            self._measure(everything, number)
            for each in singles:
                self._drop_if_below(HOPELESS.get(number + 1, 0.0), each, self._usual)
        ratios = {each.name: ratio for each in singles if (ratio := self._ratio(each, self._usual)) is not None}
        hopeful = [each for each in singles if each.hopeful and each.name in ratios and self._is_precise(each)]
        hopeful.sort(key=lambda each: -ratios[each.name].value)
        tests = 2 * len(singles)  # each may be tested by itself, and once on top of others
        bases = [self._usual, *[each for each in hopeful if is_surely_faster(ratios[each.name], tests)][:1]]
        tried: list[_Configuration] = []
        for each in hopeful:
            base = bases[-1]
            if base is self._usual:
                break
            if not each.options.keys() & base.options.keys():
                options = base.options | each.options
                together = _Configuration(_name(options), "together", options)
                tried.append(together)
                if self._beats(together, base, len(tried), tests):
                    bases.append(together)
                while not bases[-1].hopeful:  # what has failed once is nobody's best
                    bases.pop()
        ladder = [self._step(each, bases[-1]) for each in (*everything, *tried)]
        return ladder, bases[-1].options

    def _limited(self, steps: int) -> dict[str, Any]:
        """The data, limited to what so many steps need."""
        base = self.request.spec
        return base.data.model_dump() | {"limit": min(base.data.limit or math.inf, steps * base.global_batch_size)}

    def _singles(self) -> list[_Configuration]:
        """Every switch at each other value that fits this machine, serial mode and float32."""
        found: list[_Configuration] = []
        for name, option in self.description["options"].items():
            if self.request.switches is not None and name not in self.request.switches:
                continue
            for value in option["values"]:
                if value != option["default"] and spec.incompatibility(self._timed, option, value) is None:
                    found.append(_Configuration(_name({name: value}), "switch", {name: value}))
        return found

    def _beats(self, new: _Configuration, base: _Configuration, trial: int, tests: int) -> bool:
        """Whether it is surely faster, in rounds of its own. `usual` also runs in these rounds."""
        first = trial * self.request.rounds
        for number in range(self.request.rounds):
            self._measure([self._usual, base, new], first + number)
            self._drop_if_below(FUTILE.get(number + 1, 0.0), new, base)
            if not new.hopeful:
                return False
        ratio = self._ratio(new, base)
        return ratio is not None and is_surely_faster(ratio, tests) and self._is_precise(new)

    def _measure(self, configurations: Sequence[_Configuration], number: int) -> None:
        """One round: A B, and B A in the next. So a machine that grows warmer or busier favours none.

        Raises:
            LaunchError: `usual` itself cannot be run.
        """
        for each in turn(configurations, number):
            if each.hopeful:
                self.report(f"{self.framework}, {each.name}, round {number + 1}")
                result = self._result(each, number)
                if result.status == "ok" or self._is_stopped(each, result, number):
                    each.rounds[number] = result
                else:
                    each.failure = f"{result.status}: {result.reason}"
        if self._usual.failure is not None:
            raise errors.LaunchError(f"{self.framework} cannot run {self._timed.model}: {self._usual.failure}")

    def _result(self, each: _Configuration, number: int) -> RunResult:
        row = Row(id=f"{self.framework}-{each.name}", contestant=self.framework, spec=self._spec(each, self._timed))
        try:
            finished = store.finished(self.folder, row, number)
        except ResultError:
            finished = None
        if finished is not None and (finished.status != "killed" or self._is_stopped(each, finished, number)):
            return finished

        def watch(events: Sequence[Mapping[str, Any]]) -> None:
            epochs = [event for event in events if event.get("event") == "epoch"]
            if self._is_hopeless(each, [epoch["timed_images"] / epoch["timed_seconds"] for epoch in epochs], number):
                raise _HopelessError

        try:
            return executor.execute(row, number, self.folder, watch)
        except _HopelessError:
            finished = store.finished(self.folder, row, number)
            assert finished is not None  # as killed, with its epochs
            return finished

    def _is_stopped(self, each: _Configuration, result: RunResult, number: int) -> bool:
        """Whether a run was stopped as hopeless. Its epochs show how slow it was."""
        paces = [epoch.timed_images / epoch.timed_seconds for epoch in result.epochs]
        return result.status == "killed" and self._is_hopeless(each, paces, number)

    def _is_hopeless(self, each: _Configuration, paces: Sequence[float], number: int) -> bool:
        usual = self._usual.rounds.get(number)
        if each.name in (PLAIN, USUAL) or usual is None or not paces:
            return False
        pace = _median(paces) / images_per_second(usual)
        return any(len(paces) >= epochs and pace < part for epochs, part in STOPPED_BELOW.items())

    def _spec(self, each: _Configuration, base: Spec) -> Spec:
        level = USUAL
        if each is self._plain or each is self._full or each is self._float64:
            level = PLAIN
        precision = "float64" if each is self._float64 else base.precision
        return base.with_fields(switches=level, framework_options=each.options, precision=precision)

    @property
    def _on_accelerator(self) -> bool:
        """Whether runs use one: `describe` lists it, and the spec does not ask for the CPU."""
        listed = any(device["kind"] != "cpu" for device in self.description.get("devices", ()))
        return listed and self.request.spec.device != "cpu"

    def _drop_if_below(self, part: float, each: _Configuration, other: _Configuration) -> None:
        ratio = self._ratio(each, other)
        each.dropped = each.dropped or (ratio is not None and ratio.value < part)

    def _ratio(self, one: _Configuration, other: _Configuration) -> Ratio | None:
        shared = sorted(one.rounds.keys() & other.rounds.keys())
        return paired_ratio(
            [(images_per_second(one.rounds[number]), images_per_second(other.rounds[number])) for number in shared],
            one_look=True,
        )

    def _is_precise(self, each: _Configuration) -> bool:
        drift, rounding = self._loss_drift(each), self._rounding(each)
        return drift <= self.request.max_loss_drift or (rounding is not None and drift <= PARTED * rounding)

    def _rounding(self, each: _Configuration) -> float | None:
        """The loss drift of float32 itself. None if it is not needed, or not a number."""
        if not self.request.max_loss_drift < self._loss_drift(each) < np.inf:
            return None
        found = self._loss_drift(self._float64)
        return found if found < np.inf else None

    def _loss_drift(self, each: _Configuration) -> float:
        """Largest relative difference of a loss from `plain` with full digits, over some steps of training."""
        if each.name not in self._drifts:
            ours, theirs = (self._losses(which) for which in (each, self._full))
            apart = np.inf if ours is None or theirs is None else np.abs(ours - theirs) / np.abs(theirs)
            self._drifts[each.name] = float(np.max(np.where(np.isfinite(apart), apart, np.inf)))
        return self._drifts[each.name]

    def _losses(self, each: _Configuration) -> np.ndarray | None:
        """None where the framework cannot record them."""
        folder = self.folder / "losses"
        path, recording = folder / f"{each.name}.json", folder / f"{each.name}.safetensors"
        if not recording.exists():
            self.report(f"{self.framework}, {each.name}, its losses")
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(self._spec(each, self._judged).to_json(), encoding="utf-8")
            partial = recording.with_suffix(".partial")  # of a trace that is cut short
            words = ["trace", str(path), "--out", str(partial)]
            if launch.call(self.framework, words, log=path.with_suffix(".log"), hang_seconds=self._judged.hang_seconds) != 0:
                return None
            partial.replace(recording)
        return np.asarray(safetensors.numpy.load_file(recording)["loss"], np.float64)

    def _step(self, each: _Configuration, best: _Configuration) -> Step:
        status = "failed" if each.failure is not None else "dropped" if each.dropped else "measured"
        common: dict[str, Any] = {"name": each.name, "kind": each.kind, "options": each.options, "reason": each.failure}
        if not each.rounds:
            return Step(status=status, **common)
        own = _median(each.paces)
        first, of_usual = each.first_step_seconds, self._usual.first_step_seconds
        compiling = None if first is None or of_usual is None else max(first - of_usual, 0.0)
        gained = self.train_images / _median(self._usual.paces) - self.train_images / own
        first_round = each.rounds[min(each.rounds)]
        if first_round.device == "cpu":
            rate = self.machine_rates.float32_gflops if self.machine_rates else None
        else:
            rate = first_round.device_rates.matrix_gflops if first_round.device_rates else None
        return Step(
            status=status,
            images_per_second=spread(each.paces),
            ratio=None if each is self._usual else self._ratio(each, self._usual),
            first_step_seconds=first,
            compile_seconds=compiling,
            paid_back_epochs=compiling / gained if compiling is not None and gained > 0 else None,
            loss_drift=self._loss_drift(each) if each.hopeful else None,
            rounding=self._rounding(each) if each.hopeful else None,
            matrix_fraction=1e-9 * self.work.flops * own / rate if rate else None,
            in_doubt=sum(map(times_in_doubt, each.rounds.values())),
            taken=each is best,
            **common,
        )


def is_surely_faster(ratio: Ratio, tests: int) -> bool:
    """Whether the first of a ratio is surely faster, as one of `tests` possible tests.

    The p is multiplied by the number of possible tests (Bonferroni), because results decide what is tested next. A single
    round, for example after a failure, proves nothing.
    """
    return ratio.p is not None and ratio.value > 1.0 and tests * ratio.p < SIGNIFICANCE


def _name(options: Mapping[str, Any]) -> str:
    """In folders and tables, e.g. `arithmetic-bfloat16.memory_format-channels_last`."""
    return ".".join(f"{name}-{value}" for name, value in options.items())


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
