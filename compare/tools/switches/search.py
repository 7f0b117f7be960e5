"""Search for the fastest switches of one framework: first each alone, then together while each addition is surely faster.

Every measurement is a run of the model alone (`part: compute`) in a fresh process. The runs of a round take turns: a turn is an
epoch, whose length follows from the speed of `usual`. Each result is stored in the results folder under its configuration and
round, and a finished run is not repeated. So an interrupted search resumes with the same steps.
On an accelerator, a run trains whole epochs with their input: switches there also decide where the input is made. Costs that
occur once an epoch count in the pace, as in a real run. Runs follow each other there, since all would share its memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
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
from compare.cli import errors
from compare.comparison import executor
from compare.judgement import slices
from compare.judgement.run_figures import images_per_second, times_in_doubt
from compare.results import store
from compare.running import launch
from compare.running.contestants import Contestant
from compare.running.interleaving import Job, LabelDisplay, one_round, run_in_turns
from compare.running.launch import StartedProcess, waited_for
from compare.running.matrix import Row
from compare.running.taking_turns import TURN_SECONDS, Seat
from compare.statistics.statistics import SIGNIFICANCE, Ratio, Spread, paired_ratio, spread

HOPELESS_FRACTION = {1: 0.5, 2: 0.8}
"""{rounds: fraction of the speed of `usual`}. A slower switch is neither measured again nor combined with others. A single
round may be slow by chance."""
FUTILE_FRACTION = {1: 0.8, 2: 1.0}
"""{rounds: fraction of the speed of the best so far} below which an addition to it is dropped. An addition that is slower in
the mean of two rounds will not be surely faster in five."""
STOP_FRACTION = {1: 0.1, 3: 0.5}
"""{epochs: fraction of the speed of `usual`}. A run that is slower after this number of epochs is stopped. The first epoch
may be slow by chance."""
DRIFT_STEPS = 20
"""Number of steps over which losses are compared with `plain`."""
EPOCH_STEPS = 5
"""Least number of steps of an epoch. A run's pace is that of its median epoch, so that its warm-up does not count."""
LEAST_EPOCHS = 6
"""Least number of epochs of a run besides its first one: each is a slice, and a ratio of slices needs some."""
ACCELERATOR_EPOCHS = 3
"""Number of epochs of a run on an accelerator. Its pace is that of the median epoch too."""

MOST_DRIFT_RATIO = 2.0
"""Largest ratio of a switch's loss drift to float32's own drift from float64. Only a larger drift is attributed to the switch:
in some unsteady trainings, rounding alone changes the losses by any amount within those steps."""

PLAIN, USUAL, FULL, FLOAT64 = "plain", "usual", "full", "float64"

Kind = Literal["level", "switch", "together"]


class LadderStep(Frozen):
    """One configuration of the ladder."""

    name: str
    kind: Kind
    options: dict[str, Any]
    status: Literal["measured", "dropped", "failed"]
    """State of the configuration. `dropped`: hopelessly slow after one or two rounds."""
    reason: str | None = None
    images_per_second: Spread | None = None
    ratio: Ratio | None = None
    """Ratio to `usual`, from runs of the same round. None for `usual` itself."""
    first_step_seconds: float | None = None
    """Median of the rounds. Each round compiles anew. None if every run was stopped."""
    compile_seconds: float | None = None
    """Extra seconds of the first step, compared with `usual`."""
    paid_back_epochs: float | None = None
    """Epochs of the whole data after which the higher speed makes up for that. None if it never does."""
    loss_drift: float | None = None
    """Largest relative difference of a loss from `plain` with full float32 digits. Infinite if a loss is not a number."""
    rounding: float | None = None
    """Loss drift of float32 itself, from float64. Set if the switch's own drift is above the limit."""
    matrix_fraction: float | None = None
    """Fraction of the machine's rate for float32 matrix products; on an accelerator, of its rate in the run's arithmetic. None
    if the rate is not known."""
    in_doubt: int = 0
    """Number of runs whose times are not reliable; see `times_in_doubt`."""
    taken: bool = False
    """Whether the configuration is the best."""


class _HopelessError(Exception):
    """A run is stopped because it is hopelessly slow."""


@dataclass
class _Configuration:
    name: str
    kind: Kind
    options: dict[str, Any]
    dropped: bool = False
    failure: str | None = None
    rounds: dict[int, RunResult] = field(default_factory=dict[int, RunResult])

    @property
    def is_candidate(self) -> bool:
        return not self.dropped and self.failure is None

    @property
    def paces(self) -> list[float]:
        """Images per second of each round."""
        return [images_per_second(result) for _, result in sorted(self.rounds.items())]

    @property
    def first_step_seconds(self) -> float | None:
        """Median seconds of the first step. None if every run was stopped."""
        seconds = [result.phases.first_step_seconds for result in self.rounds.values() if result.phases]
        return _median(seconds) if seconds else None


class SearchRequest(Frozen):
    """Settings of the search, the same for every framework."""

    spec: Spec
    """Spec of the training with `usual` switches. The search sets part and length itself."""
    switches: list[str] | None
    """Switches to try. None: all."""
    rounds: int
    """Number of runs of each configuration."""
    steps: int
    """Number of timed steps of each run. On an accelerator, a run has ACCELERATOR_EPOCHS instead."""
    max_loss_drift: float
    """Largest loss drift of a switch that is taken, unless float32 itself drifts as far from float64."""


@dataclass
class SwitchSearch:
    """The search for the fastest switches of one framework."""

    framework: str
    request: SearchRequest
    description: Mapping[str, Any]
    """Description of the framework, from its `describe`."""
    folder: Path
    """Folder of this framework's runs."""
    train_images: int
    """Number of images of a whole epoch."""
    work: Work
    """Operations and bytes of the model."""
    machine_rates: Rates | None
    """Rates of the machine with the run's cores. None if they are not known."""
    report: Callable[[str], None]
    """Function that is called with a line of progress."""

    def __post_init__(self) -> None:
        base = self.request.spec
        if self._on_accelerator:
            self._timed_spec = base.with_fields(epochs=ACCELERATOR_EPOCHS, steps=None, checkpoint_seconds=None)
        else:
            self._timed_spec = self._spec_of_epochs(EPOCH_STEPS)
        self._drift_spec = base.with_fields(epochs=None, steps=DRIFT_STEPS, data=self._limited(DRIFT_STEPS))
        self._plain = _Configuration(PLAIN, "level", {})
        options: dict[str, Any] = self.description["options"]
        full_precision_options = {
            name: option["default"] for name, option in options.items() if option.get("plain") in option.get("reduced", ())
        }
        self._full = _Configuration(FULL, "level", full_precision_options) if full_precision_options else self._plain
        """Configuration with full float32 digits, the reference for losses. With `plain`, some devices use fewer digits."""
        self._float64 = _Configuration(FLOAT64, "level", full_precision_options)
        self._usual = _Configuration(USUAL, "level", {})
        self._drifts: dict[str, float] = {}
        self._hopeless: set[tuple[str, int]] = set()
        """(name, round) of the runs that were stopped as hopeless."""
        self._usual_paces: dict[int, Sequence[float]] = {}
        """Images per second of each epoch of `usual` so far, by round."""

    def run(self) -> tuple[list[LadderStep], dict[str, Any]]:
        """Run the search. Returns the ladder, and the switches that are surely the fastest together."""
        if not self._on_accelerator:
            self._timed_spec = self._spec_of_epochs(self._epoch_steps())
        singles = self._singles()
        base_configurations = [self._usual, self._plain, *singles]
        for number in range(self.request.rounds):
            self._measure(base_configurations, number)
            for configuration in singles:
                self._drop_if_below(HOPELESS_FRACTION.get(number + 1, 0.0), configuration, self._usual)
        ratios = {single.name: ratio for single in singles if (ratio := self._ratio(single, self._usual)) is not None}
        candidates = [
            single for single in singles if single.is_candidate and single.name in ratios and self._is_precise(single)
        ]
        candidates.sort(key=lambda single: -ratios[single.name].value)
        tests = 2 * len(singles)  # each may be tested by itself, and once on top of others
        bases = [self._usual, *[single for single in candidates if is_surely_faster(ratios[single.name], tests)][:1]]
        tried: list[_Configuration] = []
        for configuration in candidates:
            base = bases[-1]
            if base is self._usual:
                break
            if not configuration.options.keys() & base.options.keys():
                options = base.options | configuration.options
                combination = _Configuration(_name(options), "together", options)
                tried.append(combination)
                if self._beats(combination, base, len(tried), tests):
                    bases.append(combination)
                while not bases[-1].is_candidate:  # what has failed once is nobody's best
                    bases.pop()
        ladder = [self._step(configuration, bases[-1]) for configuration in (*base_configurations, *tried)]
        return ladder, bases[-1].options

    def _epoch_steps(self) -> int:
        """Return the steps of an epoch that take `usual` as long as a turn. It runs once for that, and is stored."""
        row = Row(id=f"{self.framework}-speed", contestant=self.framework, spec=self._spec(self._usual, self._timed_spec))
        result = self._load(row, 0)
        if result is None or result.status == "killed":
            self.report(f"{self.framework}, {USUAL}, its speed")
            result = waited_for(self._running(row, 0, lambda events: None))
        if result.status != "ok":
            return EPOCH_STEPS  # the first round says why
        step_seconds = row.spec.global_batch_size / images_per_second(result)
        return max(round(TURN_SECONDS / step_seconds), EPOCH_STEPS)

    def _spec_of_epochs(self, epoch_steps: int) -> Spec:
        """Return the spec of runs with epochs of this length, at least LEAST_EPOCHS besides the first one."""
        return self.request.spec.with_fields(
            part="compute",
            epochs=None,
            steps=max(self.request.steps, LEAST_EPOCHS * epoch_steps) + epoch_steps,
            data=self._limited(epoch_steps),
            checkpoint_seconds=None,
        )

    def _limited(self, steps: int) -> dict[str, Any]:
        """Return the fields of the data, limited to the images that this number of steps needs."""
        base = self.request.spec
        return base.data.model_dump() | {"limit": min(base.data.limit or math.inf, steps * base.global_batch_size)}

    def _singles(self) -> list[_Configuration]:
        """Return a configuration for each other value of a switch that fits this machine, serial mode and float32."""
        configurations: list[_Configuration] = []
        for name, option in self.description["options"].items():
            if self.request.switches is not None and name not in self.request.switches:
                continue
            for value in option["values"]:
                if value != option["default"] and spec.incompatibility(self._timed_spec, option, value) is None:
                    configurations.append(_Configuration(_name({name: value}), "switch", {name: value}))
        return configurations

    def _beats(self, new: _Configuration, base: _Configuration, trial: int, tests: int) -> bool:
        """Return whether a configuration is surely faster than another, in new rounds. `usual` also runs in these rounds."""
        first = trial * self.request.rounds
        for number in range(self.request.rounds):
            self._measure([self._usual, base, new], first + number)
            self._drop_if_below(FUTILE_FRACTION.get(number + 1, 0.0), new, base)
            if not new.is_candidate:
                return False
        ratio = self._ratio(new, base)
        return ratio is not None and is_surely_faster(ratio, tests) and self._is_precise(new)

    def _measure(self, configurations: Sequence[_Configuration], number: int) -> None:
        """Measure one round: A B, and B A in the next. So a machine that grows warmer or busier favours none."""
        contestant = Contestant.plain(self.framework)

        def execute_together(jobs: Sequence[Job[_Configuration]]) -> Generator[tuple[int, RunResult]]:
            return executor.run_together(
                [self._row(job.item) for job in jobs],
                [contestant] * len(jobs),
                lambda place, seat: self._measuring(jobs[place].item, number, seat),
            )

        candidates = [configuration for configuration in configurations if configuration.is_candidate]
        if (usual := self._stored(self._usual, number)) is not None and usual.status == "ok":
            self._usual.rounds[number] = usual  # tells which stored runs were hopeless
        for ended in run_in_turns(
            [one_round(candidates, number)],
            lambda job: waited_for(self._measuring(job.item, number)),
            LabelDisplay(self.report),
            name=lambda configuration: configuration.name,
            label=lambda job: f"{self.framework}, {job.item.name}, round {number + 1}",
            stored=lambda job: self._stored(job.item, number),
            execute_together=None if self._on_accelerator else execute_together,
        ):
            for (configuration, _), result in ended:
                if result.status == "ok" or self._is_stopped(configuration, result, number):
                    configuration.rounds[number] = result
                else:
                    configuration.failure = f"{result.status}: {result.reason}"
        if self._usual.failure is not None:
            raise errors.LaunchError(f"{self.framework} cannot run {self._timed_spec.model}: {self._usual.failure}")

    def _row(self, configuration: _Configuration) -> Row:
        return Row(
            id=f"{self.framework}-{configuration.name}",
            contestant=self.framework,
            spec=self._spec(configuration, self._timed_spec),
        )

    def _load(self, row: Row, number: int) -> RunResult | None:
        try:
            return store.load_result(self.folder, row, number)
        except ResultError:
            return None

    def _stored(self, configuration: _Configuration, number: int) -> RunResult | None:
        """Return a stored run that is not made again. None: there is none, or it was interrupted."""
        result = self._load(self._row(configuration), number)
        is_cut_short = result is not None and result.status == "killed" and not self._is_stopped(configuration, result, number)
        return None if is_cut_short else result

    def _running(
        self, row: Row, number: int, watch: executor.Watch, seat: Seat | None = None
    ) -> Generator[StartedProcess, None, RunResult]:
        return executor.executing(Contestant.plain(self.framework), row, number, self.folder, watch, seat=seat)

    def _measuring(
        self, configuration: _Configuration, number: int, seat: Seat | None = None
    ) -> Generator[StartedProcess, None, RunResult]:
        """Run a configuration, one look at its process for each step of the generator. A hopeless one is stopped."""
        row = self._row(configuration)

        def watch(events: list[dict[str, Any]]) -> None:
            epochs = [event for event in events if event.get("event") == "epoch"]
            paces = [epoch["timed_images"] / epoch["timed_seconds"] for epoch in epochs]
            if configuration is self._usual:
                self._usual_paces[number] = paces
            if self._is_hopeless(configuration, paces, number):
                self._hopeless.add((configuration.name, number))
                raise _HopelessError

        try:
            return (yield from self._running(row, number, watch, seat))
        except _HopelessError:
            result = store.load_result(self.folder, row, number)
            assert result is not None  # as killed, with its epochs
            return result

    def _is_stopped(self, configuration: _Configuration, result: RunResult, number: int) -> bool:
        """Return whether a run was stopped as hopeless. Its epochs show how slow it was."""
        paces = [epoch.timed_images / epoch.timed_seconds for epoch in result.epochs]
        is_hopeless = (configuration.name, number) in self._hopeless or self._is_hopeless(configuration, paces, number)
        return result.status == "killed" and is_hopeless

    def _is_hopeless(self, configuration: _Configuration, paces: Sequence[float], number: int) -> bool:
        usual = self._usual.rounds.get(number)
        usual_paces = self._usual_paces.get(number, ()) if usual is None else [images_per_second(usual)]
        if configuration.name in (PLAIN, USUAL) or not usual_paces or not paces:
            return False
        pace = _median(paces) / _median(usual_paces)
        return any(len(paces) >= epochs and pace < part for epochs, part in STOP_FRACTION.items())

    def _spec(self, configuration: _Configuration, base: Spec) -> Spec:
        level = USUAL
        if configuration is self._plain or configuration is self._full or configuration is self._float64:
            level = PLAIN
        precision = "float64" if configuration is self._float64 else base.precision
        return base.with_fields(switches=level, framework_options=configuration.options, precision=precision)

    @property
    def _on_accelerator(self) -> bool:
        """Whether runs use an accelerator: `describe` lists one, and the spec does not name the CPU."""
        has_accelerator = any(device["kind"] != "cpu" for device in self.description.get("devices", ()))
        return has_accelerator and self.request.spec.device != "cpu"

    def _drop_if_below(self, part: float, configuration: _Configuration, other: _Configuration) -> None:
        ratio = self._ratio(configuration, other)
        configuration.dropped = configuration.dropped or (ratio is not None and ratio.value < part)

    def _ratio(self, one: _Configuration, other: _Configuration) -> Ratio | None:
        shared = sorted(one.rounds.keys() & other.rounds.keys())
        return paired_ratio([_paces(one.rounds[number], other.rounds[number]) for number in shared], one_look=True)

    def _is_precise(self, configuration: _Configuration) -> bool:
        drift, rounding = self._loss_drift(configuration), self._rounding(configuration)
        return drift <= self.request.max_loss_drift or (rounding is not None and drift <= MOST_DRIFT_RATIO * rounding)

    def _rounding(self, configuration: _Configuration) -> float | None:
        """Return the loss drift of float32 itself. None if it is not needed, or not a number."""
        if not self.request.max_loss_drift < self._loss_drift(configuration) < np.inf:
            return None
        drift = self._loss_drift(self._float64)
        return drift if drift < np.inf else None

    def _loss_drift(self, configuration: _Configuration) -> float:
        """Return the largest relative difference of a loss from `plain` with full digits, over DRIFT_STEPS steps."""
        if configuration.name not in self._drifts:
            losses, full_losses = (self._losses(either) for either in (configuration, self._full))
            difference = np.inf if losses is None or full_losses is None else np.abs(losses - full_losses) / np.abs(full_losses)
            self._drifts[configuration.name] = float(np.max(np.where(np.isfinite(difference), difference, np.inf)))
        return self._drifts[configuration.name]

    def _losses(self, configuration: _Configuration) -> np.ndarray | None:
        """Return the losses of DRIFT_STEPS steps. None if the framework cannot record them."""
        folder = self.folder / "losses"
        path, recording = folder / f"{configuration.name}.json", folder / f"{configuration.name}.safetensors"
        if not recording.exists():
            self.report(f"{self.framework}, {configuration.name}, its losses")
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(self._spec(configuration, self._drift_spec).to_json(), encoding="utf-8")
            partial = recording.with_suffix(".partial")  # of a trace that is cut short
            words = ["trace", str(path), "--out", str(partial)]
            log, hang_seconds = path.with_suffix(".log"), self._drift_spec.hang_seconds
            if launch.call(Contestant.plain(self.framework), words, log=log, hang_seconds=hang_seconds) != 0:
                return None
            partial.replace(recording)
        return np.asarray(safetensors.numpy.load_file(recording)["loss"], np.float64)

    def _step(self, configuration: _Configuration, best: _Configuration) -> LadderStep:
        status = "failed" if configuration.failure is not None else "dropped" if configuration.dropped else "measured"
        fields: dict[str, Any] = {
            "name": configuration.name,
            "kind": configuration.kind,
            "options": configuration.options,
            "reason": configuration.failure,
        }
        if not configuration.rounds:
            return LadderStep(status=status, **fields)
        pace = _median(configuration.paces)
        first_step_seconds, usual_seconds = configuration.first_step_seconds, self._usual.first_step_seconds
        compile_seconds = (
            None if first_step_seconds is None or usual_seconds is None else max(first_step_seconds - usual_seconds, 0.0)
        )
        saved_seconds = self.train_images / _median(self._usual.paces) - self.train_images / pace
        first_round = configuration.rounds[min(configuration.rounds)]
        if first_round.device == "cpu":
            rate = self.machine_rates.float32_gflops if self.machine_rates else None
        else:
            rate = first_round.device_rates.matrix_gflops if first_round.device_rates else None
        return LadderStep(
            status=status,
            images_per_second=spread(configuration.paces),
            ratio=None if configuration is self._usual else self._ratio(configuration, self._usual),
            first_step_seconds=first_step_seconds,
            compile_seconds=compile_seconds,
            paid_back_epochs=compile_seconds / saved_seconds if compile_seconds is not None and saved_seconds > 0 else None,
            loss_drift=self._loss_drift(configuration) if configuration.is_candidate else None,
            rounding=self._rounding(configuration) if configuration.is_candidate else None,
            matrix_fraction=1e-9 * self.work.flops * pace / rate if rate else None,
            in_doubt=sum(map(times_in_doubt, configuration.rounds.values())),
            taken=configuration is best,
            **fields,
        )


def is_surely_faster(ratio: Ratio, tests: int) -> bool:
    """Return whether the numerator of a ratio is surely faster, as one of `tests` possible tests.

    The p is multiplied by the number of possible tests (Bonferroni), because results decide what is tested next. A single
    round, for example after a failure, proves nothing.
    """
    return ratio.p is not None and ratio.value > 1.0 and tests * ratio.p < SIGNIFICANCE


def _paces(one: RunResult, other: RunResult) -> tuple[float, float]:
    """Return the images per second of two runs. If they took turns, their ratio is that of their slices."""
    ratio, pace = slices.ratio(slow=other, fast=one), images_per_second(other)
    return (images_per_second(one) if ratio is None else ratio * pace), pace


def _name(options: Mapping[str, Any]) -> str:
    """Return the name of a configuration in folders and tables, e.g. `arithmetic-bfloat16.memory_format-channels_last`."""
    return ".".join(f"{name}-{value}" for name, value in options.items())


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
