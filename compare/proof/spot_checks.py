"""Timed runs are judged by steps that were drawn while they ran, and by what every step trained on.

A run records a few steps off the clock: the batch, the state before and after. Each is compared with the plan and the referee.
So no framework is the judge of another:

- ids, labels, pixels and dropout masks are those of the plan, from the source through the referee's own augmentation
- the update follows from the optimizer's own state and the learning rate of the schedule
- loss, gradients, statistics and scores follow from the state before, see `single_steps`. The referee takes its time. So it
  computes some steps of each row, which are drawn when their runs have ended

The ids, labels, pixels and learning rates of all steps leave a fingerprint for each epoch. It must be the plan's.
"""

from __future__ import annotations

import json
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors

from common import spec
from common.artifacts import array_file
from common.artifacts.schema import EpochRecord, RunResult
from common.data import sources
from common.data.batches import BatchPlan, EpochDraws
from common.data.preprocessing import scaling
from common.data.sources import Dataset
from common.machine import machine
from common.models import architectures, weights, work
from common.models.architectures import Architecture
from common.spec import EFFECTS, Spec
from common.training.spot_checks import AFTER_FILE, BEFORE_FILE, DECISIONS_FILE, StepDraw, example_hashes, fingerprint, strata
from common.training.tracing import state
from compare.cli import wording
from compare.cli.differences import FLOAT32_TOLERANCE, relative_difference
from compare.proof import claims, ladder, single_steps
from compare.proof.augmentation import augment
from compare.proof.certificate import Rung
from compare.proof.differences import make_rung
from compare.proof.step_comparison import UpdateRule
from compare.proof.step_truth import UNIT
from compare.results import store
from compare.results.store import IN_FLOAT64, SpotCheck, StoredComparison
from compare.running.matrix import Row
from compare.running.twins import Twins

COMPUTED_FLOPS = 4e10
"""FLOPs of the recorded steps that the referee computes again, for all runs together: some six seconds on two cores. Each row
has at least one step."""
MOST_BYTES = 2**32
"""Bytes of recorded steps on disk. Beyond that they are judged when a repeat ends: those of 30 runs of ResNet18 would take 20
GB."""
HASHED_BYTES = 2**33
"""Bytes of augmented images whose hashes are computed, for all runs of a training: some twenty seconds. For a longer training
some epochs are drawn, and the first one where runs differ."""
SAMPLING_COST = 30
"""Time of an image that is sampled between pixels, divided by the time of another image."""
_RESULT_TOLERANCE = 1e-6
"""Largest relative difference of a loss in a record and in a result, which may be added up in another order."""
MAX_LEVELS = 1
"""Largest difference of a pixel that is sampled between others, in levels."""


def _examples_key(run_spec: Spec) -> str:
    """Return a key that is equal for runs with the same examples in each step."""
    return json.dumps(EFFECTS.relevant(store.flatten(run_spec.model_dump(mode="json")), "examples"))


def is_checked(run_spec: Spec) -> bool:
    """Whether a timed run can be judged by single steps."""
    return run_spec.part == "training" and not run_spec.optimizer.native and claims.has_single_steps(run_spec)


class TimedRun(NamedTuple):
    """Timed run and its folder."""

    row: Row
    repeat: int
    result: RunResult
    folder: Path


@dataclass(frozen=True, eq=False)
class _RecordedStep:
    """Recorded step of a timed run."""

    run: TimedRun
    step: int
    """Index of the step, from 0."""

    @property
    def paths(self) -> tuple[Path, Path]:
        return self.run.folder / BEFORE_FILE.format(self.step), self.run.folder / AFTER_FILE.format(self.step)


def unjudged_runs(folder: Path, stored: StoredComparison, known_checks: Sequence[SpotCheck]) -> list[TimedRun]:
    """Return the runs of a comparison that can be judged, and are not judged yet."""
    judged = {(check.row, check.repeat, check.started_at) for check in known_checks}
    return [
        TimedRun(row, repeat, result, store.run_folder(folder, row.id, repeat))
        for row in stored.comparison.rows
        if is_checked(row.spec)
        for repeat, result in stored.runs[row.id].items()
        if result.status == "ok" and (row.id, repeat, result.started_at) not in judged
        if not any(death.replicas for death in result.restarts)  # the plan of fewer replicas is another one
    ]


def current_checks(stored: StoredComparison, known_checks: Sequence[SpotCheck]) -> list[SpotCheck]:
    """Return the checks of runs that still exist and were not made again since."""
    runs = {(row, repeat, run.started_at) for row, repeats in stored.runs.items() for repeat, run in repeats.items()}
    return [check for check in known_checks if (check.row, check.repeat, check.started_at) in runs]


def num_bytes(folder: Path) -> int:
    """Return the size of the recorded steps in the folder of a run, or of all runs, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("spot_check*.safetensors"))


def judge(
    twins: Twins,
    runs: Sequence[TimedRun],
    known_checks: Sequence[SpotCheck],
    progress: Callable[[str], None],
    others: Sequence[RunResult] = (),
) -> list[SpotCheck]:
    """Judge timed runs by what they recorded. Files of recorded steps are deleted where nothing is wrong.

    Args:
        twins: the contestants of the comparison.
        runs: timed runs of one comparison.
        known_checks: checks of its other runs.
        progress: called with a message about the current work.
        others: results of all runs of the comparison. If they differ from these in an epoch, every example of it is computed.
    """
    planned = [_RecordedStep(run, step - 1) for run in runs for step in run.result.spot_checks]
    steps = [step for step in planned if all(path.exists() for path in step.paths)]
    truths: dict[str, _ExpectedTraining] = {}

    def truth_of(run_spec: Spec) -> _ExpectedTraining:
        return truths.setdefault(_examples_key(run_spec), _ExpectedTraining(run_spec))

    num_computed = sum(len(check.computed) for check in known_checks)
    computed = set(_choose_steps(steps, truth_of(steps[0].run.row.spec).flops, num_computed)) if steps else set[_RecordedStep]()
    progress(f"spot checks: {len(steps)} recorded steps, {len(computed)} computed again")
    stopping = threading.Event()
    with ladder.fast_referee(), ThreadPoolExecutor(machine.available_cores()) as pool:
        truths_of = [truth_of(step.run.row.spec) for step in steps]
        judged = pool.map(partial(_judge_step, twins, stopping), steps, truths_of, [step in computed for step in steps])
        try:
            answers = list(zip(steps, judged, strict=True))
        except BaseException:  # a signal does not wait until the steps are computed whose turn it is
            stopping.set()
            raise
    for result in [*(run.result for run in runs), *others]:
        if (key := _examples_key(result.spec)) in truths:
            truths[key].note(result)
    checks: list[SpotCheck] = []
    for run in runs:
        row, repeat, result, folder = run
        truth, answers_by_step = truth_of(row.spec), {step: answer for step, answer in answers if step.run is run}
        epochs, faults = _epochs(truth, result)
        faults += _draw_faults(truth, result, folder)
        faults += [fault for answer in answers_by_step.values() for fault in answer.faults]
        if answers_by_step or faults or strata(truth.plan):
            checks.append(
                SpotCheck(
                    row=row.id,
                    repeat=repeat,
                    started_at=result.started_at,
                    missing=sorted({*result.spot_checks} - {step.step + 1 for step in answers_by_step}),
                    has_fingerprints=any(record.fingerprint for record in result.epochs),
                    steps=[step.step + 1 for step in answers_by_step],
                    computed=[step.step + 1 for step, answer in answers_by_step.items() if answer.is_computed],
                    epochs=epochs,
                    faults=faults,
                    shown=next((answer.unproved_reason for answer in answers_by_step.values() if answer.unproved_reason), ""),
                )
            )
        # One faulty run of a row is evidence enough: those of a large model would fill the disk.
        if not faults or any(check.faults for check in (*known_checks, *checks[:-1]) if check.row == row.id):
            for file in (*(path for step in answers_by_step for path in step.paths), folder / DECISIONS_FILE):
                file.unlink(missing_ok=True)
    return checks


def row_verdicts(
    verdicts: Mapping[str, str], runs: Mapping[str, Mapping[int, RunResult]], checks: Sequence[SpotCheck]
) -> dict[str, str]:
    """Return the verdict on each row, by id, once its timed runs are judged.

    A row is proved if its mode is, and if all its good runs recorded steps that are right. A run without them leaves it proved
    in float64 alone.

    Args:
        verdicts: verdicts of the proof, by row.
        runs: results by row and repeat.
        checks: checks of these runs.
    """
    updated = dict(verdicts)
    for row, repeats in runs.items():
        good = {(repeat, run.started_at) for repeat, run in repeats.items() if run.status == "ok"}
        row_checks = [check for check in checks if check.row == row]
        if any(check.faults for check in row_checks):
            updated[row] = "not proved"
        elif row_checks and updated.get(row) in ("proved", IN_FLOAT64):
            if any(check.missing or (check.has_fingerprints and not check.steps) for check in row_checks):
                updated[row] = "not examined"  # a run that could have recorded steps lacks some
            else:
                right = {(check.repeat, check.started_at) for check in row_checks if check.steps and not check.shown}
                updated[row] = "proved" if good <= right else IN_FLOAT64
    return updated


def first_losses(stored: StoredComparison) -> list[Rung]:
    """Compare the first float32 losses with the referee's, if the frameworks differ by more than a shallow network's do.

    The tolerance comes from the referee's own float32 rounding, see `single_steps`. A deep network rounds by more.
    """
    runs_by_mode: dict[tuple[str, str, int], list[tuple[str, Spec, float]]] = {}
    for row in stored.comparison.rows:
        if not row.spec.traits.updates_each_micro_batch and row.spec.precision == "float32" and row.spec.part == "training":
            for result in stored.runs[row.id].values():
                if result.first_step_loss is not None and not result.reduced:
                    key = _examples_key(result.spec), result.spec.variant, result.spec.replicas
                    runs_by_mode.setdefault(key, []).append((row.contestant, result.spec, result.first_step_loss))
    rungs: list[Rung] = []
    judges: dict[str, single_steps.StepJudge] = {}
    with ladder.fast_referee():
        for (examples, *_), runs in runs_by_mode.items():
            *_, (_, run_spec, _) = runs
            losses = [loss for _, _, loss in runs]
            truth = _ExpectedTraining(run_spec)
            if relative_difference(min(losses), max(losses)) <= FLOAT32_TOLERANCE or _why_unknown(run_spec, truth):
                continue
            if truth.is_sampled or run_spec.augmentation.brightness:
                continue  # an honest image may differ from the referee's by a level
            if examples not in judges:
                judges[examples] = single_steps.StepJudge(
                    truth.architecture, truth.first_step(), [0], truth.plan, is_timed=True
                )
            loss, allowed = judges[examples].truth(run_spec, 0).loss
            rungs += [
                make_rung(
                    run_spec,
                    8,
                    "losses",
                    relative_difference(loss, first_loss),
                    f"first loss {first_loss:.7g}, should be {loss:.7g}",
                    allowed / abs(loss),
                    "rounding of float32, through all layers",
                    framework=contestant,
                    step=1,
                    first_tolerance=allowed / abs(loss),
                )
                for contestant, first_loss in dict.fromkeys((contestant, loss) for contestant, _, loss in runs)
            ]
    return rungs


def _choose_steps(recorded: Sequence[_RecordedStep], flops: float, before: int) -> list[_RecordedStep]:
    """Draw recorded steps for the referee: one of each row, and more while the budget lasts. Rows and parts of runs take turns.

    No run can foresee them: they are drawn when the runs have ended.

    Args:
        recorded: the recorded steps.
        flops: FLOPs of a step.
        before: number of steps that were computed earlier. They count in the budget, but each row has one step now all the
            same.
    """
    order = list(recorded)
    random.SystemRandom().shuffle(order)
    rows, places, chosen = Counter[str](), Counter[tuple[str, int]](), list[_RecordedStep]()

    def place(step: _RecordedStep) -> tuple[str, int]:
        """Return the contestant, and the index of the step among the recorded ones of its run."""
        return step.run.row.contestant, sum(other.run is step.run and other.step < step.step for other in recorded)

    while order:
        best = min(order, key=lambda step: (rows[step.run.row.id], places[place(step)]))
        if rows[best.run.row.id] and (before + len(chosen) + 1) * flops > COMPUTED_FLOPS:
            break
        order.remove(best)
        chosen.append(best)
        rows[best.run.row.id] += 1
        places[place(best)] += 1
    return chosen


@dataclass
class _ExpectedTraining:
    """Expected batches of one training, which are the same for all frameworks and modes."""

    run_spec: Spec
    _fingerprints: dict[int, set[str | None]] = field(default_factory=dict[int, set[str | None]])
    """Epoch: fingerprints of all runs."""

    def note(self, result: RunResult) -> None:
        """Note the fingerprints of a run. Call this before the first use of `epochs`."""
        for record in result.epochs:
            self._fingerprints.setdefault(record.epoch, set()).add(record.fingerprint)

    @cached_property
    def epochs(self) -> set[int]:
        """Epochs whose examples are computed: all, or as many as the budget allows, and the first one where runs differ."""
        values_per_epoch = self.plan.num_examples * self.architecture.image_size**2 * 3
        max_epochs = HASHED_BYTES // (values_per_epoch * (SAMPLING_COST if self.is_sampled else 1))
        drawn = random.SystemRandom().sample(sorted(self._fingerprints), min(max_epochs, len(self._fingerprints)))
        return {*drawn, *[epoch for epoch, fingerprints in sorted(self._fingerprints.items()) if len(fingerprints) > 1][:1]}

    @property
    def is_sampled(self) -> bool:
        """Whether pixels are sampled between those of the source, which takes `SAMPLING_COST` times as long."""
        augmentation = self.run_spec.augmentation
        return bool(augmentation.rotation_degrees or augmentation.shear_degrees or augmentation.zoom)

    @cached_property
    def dataset(self) -> Dataset:
        return sources.load(self.run_spec.data, seed=self.run_spec.split_seed, cache_dir=self.run_spec.paths.cache_dir)

    @cached_property
    def architecture(self) -> Architecture:
        return sources.architecture_of(self.run_spec)

    @cached_property
    def plan(self) -> BatchPlan:
        labels = self.dataset.train.labels if self.run_spec.dask.partition == "class_skew" else None
        pixels = scaling.scaling_for(self.run_spec.data, self.dataset, cache_dir=self.run_spec.paths.cache_dir)
        return BatchPlan(self.run_spec, self.architecture, len(self.dataset.train), False, pixels, labels)

    @cached_property
    def draw(self) -> Callable[[int], EpochDraws]:
        """Cached `Plan.draw`. It draws a whole epoch with all its masks, and several records share an epoch."""
        return lru_cache(maxsize=8)(self.plan.draw)

    @property
    def flops(self) -> float:
        """FLOPs of one step."""
        return work.count(self.architecture).flops * self.run_spec.global_batch_size

    def first_step(self) -> dict[str, npt.NDArray[Any]]:
        """Return a record of the first step as it must be: its batch and the state before it."""
        drawn, (start, stop) = self.draw(1), self.plan.batch(0)
        ids, images, labels = self.batch(drawn, start, stop)
        arrays: dict[str, npt.NDArray[Any]] = {
            "ids/0": ids,
            "images/0": images,
            "labels/0": labels,
            "before/0/drawn": np.array(0),
        }
        arrays |= {f"masks/0/{index}": mask for index, mask in enumerate(_masks(drawn, start, stop))}
        initial = weights.initial(self.architecture, self.run_spec.seed)
        arrays |= {f"before/0/weights/{name}": initial[name].astype(self.run_spec.precision) for name in initial}
        return arrays | self.scaling

    @property
    def scaling(self) -> dict[str, npt.NDArray[Any]]:
        """Mean and standard deviation of the pixels, float64 [3], under the names of a recording."""
        mean, deviation = self.plan.scaling.mean, self.plan.scaling.std
        return {"pixel_mean": np.array(mean, np.float64), "pixel_std": np.array(deviation, np.float64)}

    def batch(
        self, drawn: EpochDraws, start: int, stop: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return (ids, augmented images, labels) at these positions of an epoch."""
        part = slice(start, stop)
        ids = drawn.ids[part]
        draws = (
            None if values is None else values[part] for values in (drawn.flips, drawn.shifts, drawn.affines, drawn.brightness)
        )
        return ids, augment(np.asarray(self.dataset.train.images[ids]), *draws), self.dataset.train.labels[ids]

    @cached_property
    def hashes(self) -> Callable[[int], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Cached function of the epoch: (ids in the order of training, a hash of each example)."""

        def hashes_of(epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
            drawn, parts = self.draw(epoch), [self.plan.batch(step) for step in range(self.plan.steps_in(epoch))]
            hashes = [example_hashes(*self.batch(drawn, *part)[1:]) for part in parts]
            return drawn.ids[: parts[-1][1]], np.concatenate(hashes)

        return cache(hashes_of)


class _StepAnswer(NamedTuple):
    faults: list[str]
    is_computed: bool = False
    unproved_reason: str = ""


def _epochs(truth: _ExpectedTraining, result: RunResult) -> tuple[int, list[str]]:
    """Return (number of epochs whose fingerprint is the plan's; faults)."""
    records = [record for record in result.epochs if record.fingerprint is not None and record.epoch in truth.epochs]
    wrong_epochs = [record.epoch for record in records if record.fingerprint != _expected(truth, result.spec, record)]
    faults = [f"epoch {epoch}: its ids, labels, pixels or learning rates are not the plan's" for epoch in wrong_epochs[:1]]
    if len(wrong_epochs) > 1:
        faults = [f"{faults[0]}, nor are those of {wording.count(len(wrong_epochs) - 1, 'later epoch')}"]
    return len(records) - len(wrong_epochs), faults


def _expected(truth: _ExpectedTraining, run_spec: Spec, record: EpochRecord) -> str:
    ids, hashes = truth.hashes(record.epoch)
    plan = truth.plan
    first = (record.epoch - 1) * plan.steps_per_epoch
    rate = single_steps.learning_rates(run_spec, plan.steps_per_epoch, plan.total_steps)
    return fingerprint(ids, hashes, [rate(step + 1) for step in range(first, first + record.steps)], first)


def _draw_faults(truth: _ExpectedTraining, result: RunResult, folder: Path) -> list[str]:
    """Check that the recorded steps are those that the launcher's nonce draws.

    A resumed run is skipped: it drew from a later epoch.
    """
    if result.resumes or result.first_step_loss is None or not any(record.fingerprint for record in result.epochs):
        return []
    try:
        draw = StepDraw((folder / store.NONCE_FILE).read_text(encoding="utf-8"), truth.plan)
    except OSError:
        return []
    steps: list[int] = []
    losses = [record.train.loss for record in result.epochs if record.train]
    for number, record in enumerate(result.epochs):
        begin = number * truth.plan.steps_per_epoch
        known_losses = losses[:number] or [result.first_step_loss]
        steps += draw.steps(known_losses, max(begin, 1), begin + record.steps)
    expected_steps = [step + 1 for step in steps]
    return (
        []
        if expected_steps == result.spot_checks
        else [f"the recorded steps are {result.spot_checks}, should be {expected_steps}"]
    )


def _judge_step(
    twins: Twins, stopping: threading.Event, recorded: _RecordedStep, truth: _ExpectedTraining, is_computed: bool
) -> _StepAnswer:
    """Judge a recorded step. A record of a faulty twin, or from a damaged disk, may hold anything, and becomes a fault."""
    try:
        answer = _judge_record(twins, stopping, recorded, truth, is_computed)
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        answer = _StepAnswer([f"its record cannot be judged: {type(error).__name__}: {error}"])
    return answer._replace(faults=[f"step {recorded.step + 1}: {fault}" for fault in answer.faults])


def _judge_record(
    twins: Twins, stopping: threading.Event, recorded: _RecordedStep, truth: _ExpectedTraining, is_computed: bool
) -> _StepAnswer:
    row, step = recorded.run.row, recorded.step
    run_spec = row.spec
    arrays: dict[str, npt.NDArray[Any]] = {}
    for path in recorded.paths:
        arrays |= array_file.ArrayFile(path)
    faults = _batch_faults(truth, arrays, step)
    loss = arrays[f"loss/{step}"].item()
    for result_loss in recorded.run.result.step_losses[step : step + 1]:  # a result has only the first losses
        if not relative_difference(loss, result_loss) <= _RESULT_TOLERANCE:
            faults.append(f"its loss is {loss:.7g}, and the result says {result_loss:.7g}")
    reduced_switches = claims.reduced_precision_switches(twins, row.contestant, run_spec)
    if not reduced_switches:
        faults += _update_faults(truth, run_spec, arrays, step)
    reason = (
        f"fewer digits than {run_spec.precision}: {', '.join(reduced_switches)}"
        if reduced_switches
        else _why_unknown(run_spec, truth)
    )
    if faults or reason or not is_computed:
        return _StepAnswer(faults, unproved_reason=reason)
    if (path := recorded.run.folder / DECISIONS_FILE).exists():
        scored_file = array_file.ArrayFile(path)
        arrays |= {
            name: scored_file[name] for kind in ("decisions", "scored") for name in scored_file.names_in(f"{kind}/{step}/")
        }
    arrays |= truth.scaling
    judge = single_steps.StepJudge(truth.architecture, arrays, [step], truth.plan, is_timed=True, stopping=stopping)
    rungs = judge.rungs(run_spec, arrays, row.contestant)
    faults = [
        f"{rung.aspect} differ from the referee's by {rung.max_relative_difference:.1e}"
        f"{f' ({rung.where})' if rung.where else ''}, tolerance {rung.tolerance:.1e}"
        for rung in rungs
        if rung.status == "failed"
    ]
    shown_reason = next((rung.reason for rung in rungs if rung.status == "shown"), "")
    return _StepAnswer(faults, is_computed=True, unproved_reason=shown_reason)


def _why_unknown(run_spec: Spec, truth: _ExpectedTraining) -> str:
    """Return why the referee cannot compute a model. Empty: it can."""
    if isinstance(truth.architecture.layers[0], architectures.Opaque):
        return "the referee does not know the layers of a matched pair"
    if run_spec.model not in spec.MODELS and claims.has_own_builders(run_spec.model):
        return "the model has builders of its own, and the referee knows only its architecture"
    return ""


def _batch_faults(truth: _ExpectedTraining, arrays: Mapping[str, npt.NDArray[Any]], step: int) -> list[str]:
    """Return the differences of a batch from the plan's."""
    epoch, in_epoch = divmod(step, truth.plan.steps_per_epoch)
    start, stop = truth.plan.batch(in_epoch)
    drawn = truth.draw(epoch + 1)
    ids, images, labels = truth.batch(drawn, start, stop)
    if not np.array_equal(arrays[f"ids/{step}"], ids):
        return [f"{_count(arrays[f'ids/{step}'] != ids)} examples are not those of the plan"]
    faults: list[str] = []
    if not np.array_equal(arrays[f"labels/{step}"], labels):
        faults.append(f"{_count(arrays[f'labels/{step}'] != labels)} labels are not those of the source")
    recorded_images = arrays[f"images/{step}"]
    differences = np.abs(recorded_images.astype(np.int16) - images) if recorded_images.shape == images.shape else None
    allowed = MAX_LEVELS if drawn.affines is not None or drawn.brightness is not None else 0
    if differences is None or differences.max() > allowed:
        number = len(images) if differences is None else _count(differences.reshape(len(images), -1).max(1) > allowed)
        faults.append(f"{number} of {len(images)} images are not those of the source, augmented as planned")
    masks = enumerate(_masks(drawn, start, stop))
    if not all(np.array_equal(arrays.get(f"masks/{step}/{index}", ()), mask) for index, mask in masks):
        faults.append("dropout masks are not those of the plan")
    return faults


def _masks(drawn: EpochDraws, start: int, stop: int) -> list[npt.NDArray[np.bool_]]:
    """Return the mask of each dropout, [N, units], at these positions of an epoch, true where a value is kept."""
    return [
        np.unpackbits(bits[start:stop], axis=1, count=units, bitorder="little").view(bool)
        for bits, units in zip(drawn.masks, drawn.mask_units, strict=True)
    ]


def _count(differs: Any) -> int:
    return int(np.count_nonzero(differs))


def _update_faults(truth: _ExpectedTraining, run_spec: Spec, arrays: Mapping[str, npt.NDArray[Any]], step: int) -> list[str]:
    """Check that the weights moved as the optimizer's own new state and the schedule's learning rate say."""
    (weights, before), (after, slots) = state(arrays, f"before/{step}"), state(arrays, f"after/{step}")
    rate = single_steps.learning_rates(run_spec, truth.plan.steps_per_epoch, truth.plan.total_steps)(step + 1)
    if not before:
        return []
    names, unit = next(iter(before.values())), UNIT[run_spec.precision]
    ratios: dict[str, float] = {}
    for name in names:
        weight = np.asarray(weights[name], np.float64)
        slots_after = {slot: np.asarray(values[name], np.float64) for slot, values in slots.items()}
        update, limit = UpdateRule(run_spec.optimizer, {}, unit).update(slots_after, rate, step + 1)
        limit = limit + 3 * unit * np.abs(weight)
        difference = np.abs(weight - update - np.asarray(after[name], np.float64))
        worst = float(np.max(difference / np.maximum(limit, np.finfo(np.float64).tiny)))
        if not worst <= 1.0:
            ratios[name] = worst if math.isfinite(worst) else math.inf
    if not ratios:
        return []
    return [
        f"the update of {wording.listed(sorted(ratios, key=lambda name: -ratios[name]))} does not fit learning rate {rate:g}"
    ]
