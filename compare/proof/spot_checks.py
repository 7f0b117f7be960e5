"""Timed runs are judged by steps that were drawn while they ran, and by what every step trained on.

A run records a few steps off the clock: the batch, the state before and after. Each is held against the plan and the referee.
So no framework is the judge of another:

- ids, labels, pixels and dropout masks are those of the plan, from the source through the referee's own augmentation
- the update follows from the optimizer's own state and the learning rate of the schedule
- loss, gradients, statistics and scores follow from the state before, see `single_steps`. The referee takes its time. So it
  computes some steps of each row, which are drawn when their runs have ended

The ids, labels, pixels and learning rates of all steps leave a fingerprint for each epoch. It must be the plan's.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors

from common import spec
from common.artifacts import array_file
from common.artifacts.schema import EpochRecord, RunResult
from common.data import sources
from common.data.batches import Epoch, Plan
from common.data.preprocessing import scaling
from common.data.sources import Dataset
from common.machine import machine
from common.models import architectures, weights, work
from common.models.architectures import Architecture
from common.spec import Spec
from common.training.spot_checks import AFTER_FILE, BEFORE_FILE, TOLD_FILE, Draw, example_hashes, fingerprint, strata
from common.training.tracing import state
from compare.core import wording
from compare.core.differences import FLOAT32_TOLERANCE, relative_difference
from compare.execution import store
from compare.execution.matrix import Row
from compare.execution.store import IN_FLOAT64, SpotCheck, StoredComparison
from compare.judgement import sameness
from compare.proof import claims, ladder, single_steps
from compare.proof.augmentation import augmented
from compare.proof.certificate import Rung
from compare.proof.differences import rung

COMPUTED_FLOPS = 4e10
"""Of the recorded steps that the referee computes again, all runs together: some six seconds on two cores. At least one of each
row."""
MOST_BYTES = 2**32
"""Of recorded steps on disk. Beyond that they are judged when a repeat ends: those of 30 runs of ResNet18 would take 20 GB."""
HASHED_BYTES = 2**33
"""Of augmented images whose hashes are computed, for all runs of a training: some twenty seconds. Of longer trainings some
epochs are drawn, and the first one in which runs differ."""
SAMPLED = 30
"""Times as long as other images take those that are sampled between pixels."""
_OF_NO_MATTER = {
    "mode", "replicas", "least_replicas", "hosts", "cores", "switches", "communication", "framework_options"
}  # fmt: skip
"""Fields of a spec that decide neither which examples a step gets nor what is in them."""
_TOLD = 1e-6
"""Relative difference of a loss in a record and in a result, which may be added up in another order."""
LEVELS = 1
"""By which a pixel may differ that is sampled between others."""


def is_checked(run: Spec) -> bool:
    """Whether a timed run can be judged by single steps."""
    return run.part == "training" and not run.optimizer.native and claims.has_single_steps(run)


@dataclass(frozen=True, eq=False)
class _Recorded:
    """A recorded step of a run."""

    row: Row
    folder: Path
    """Of its run."""
    step: int
    """From 0."""
    told_loss: float | None
    """What the run's result says of this step. None: only the first steps of a run are told."""

    @property
    def paths(self) -> tuple[Path, Path]:
        return self.folder / BEFORE_FILE.format(self.step), self.folder / AFTER_FILE.format(self.step)

    @property
    def words(self) -> str:
        return f"step {self.step + 1}"


class Timed(NamedTuple):
    """A timed run and its folder."""

    row: Row
    repeat: int
    result: RunResult
    folder: Path


def open_runs(folder: Path, stored: StoredComparison, known: Sequence[SpotCheck]) -> list[Timed]:
    """The runs of a comparison that can be judged, and are not judged yet."""
    before = {(each.row, each.repeat, each.started_at) for each in known}
    return [
        Timed(row, repeat, result, store.run_folder(folder, row.id, repeat))
        for row in stored.comparison.rows
        if is_checked(row.spec)
        for repeat, result in stored.runs[row.id].items()
        if result.status == "ok" and (row.id, repeat, result.started_at) not in before
        if not any(death.replicas for death in result.restarts)  # the plan of fewer replicas is another one
    ]


def current(stored: StoredComparison, known: Sequence[SpotCheck]) -> list[SpotCheck]:
    """What is known of runs that are still there, and were not made again since."""
    runs = {(row, repeat, run.started_at) for row, repeats in stored.runs.items() for repeat, run in repeats.items()}
    return [each for each in known if (each.row, each.repeat, each.started_at) in runs]


def num_bytes(folder: Path) -> int:
    """Size of the recorded steps in the folder of a run, or of all runs."""
    return sum(path.stat().st_size for path in folder.rglob("spot_check*.safetensors"))


def judge(
    runs: Sequence[Timed],
    known: Sequence[SpotCheck],
    progress: Callable[[str], None],
    others: Sequence[RunResult] = (),
) -> list[SpotCheck]:
    """Judge timed runs by what they recorded. Files of recorded steps are deleted where nothing is wrong.

    Args:
        runs: of one comparison.
        known: of its other runs.
        others: all runs of the comparison. If they differ from these in an epoch, every example of it is computed.
        progress: called with what is being done.
    """
    recorded = [
        _Recorded(run.row, run.folder, step - 1, next(iter(run.result.step_losses[step - 1 : step]), None))
        for run in runs
        for step in run.result.spot_checks
    ]
    recorded = [each for each in recorded if all(path.exists() for path in each.paths)]
    truths: dict[str, _Truth] = {}

    def truth_of(run: Spec) -> _Truth:
        return truths.setdefault(run.model_dump_json(exclude=_OF_NO_MATTER), _Truth(run))

    before = sum(len(each.computed) for each in known)
    computed = set(_chosen(recorded, truth_of(recorded[0].row.spec).flops, before)) if recorded else set[_Recorded]()
    progress(f"spot checks: {len(recorded)} recorded steps, {len(computed)} computed again")
    with ladder.judging(), ThreadPoolExecutor(machine.available_cores()) as pool:
        truths_of = [truth_of(each.row.spec) for each in recorded]
        judged = pool.map(_judged, recorded, truths_of, [each in computed for each in recorded])
        answers = list(zip(recorded, judged, strict=True))
    for result in [*(run.result for run in runs), *others]:
        if (key := result.spec.model_dump_json(exclude=_OF_NO_MATTER)) in truths:
            truths[key].note(result)
    found: list[SpotCheck] = []
    for row, repeat, result, folder in runs:
        own = {each: answer for each, answer in answers if each.folder == folder}
        epochs, faults = _epochs(truth_of(row.spec), result)
        faults += _draw_faults(truth_of(row.spec), result, folder)
        faults += [fault for answer in own.values() for fault in answer.faults]
        is_short = not len(strata(truth_of(row.spec).plan))
        if own or faults or not is_short:
            found.append(
                SpotCheck(
                    row=row.id,
                    repeat=repeat,
                    started_at=result.started_at,
                    missing=sorted({*result.spot_checks} - {each.step + 1 for each in own}),
                    has_fingerprints=any(record.fingerprint for record in result.epochs),
                    steps=[each.step + 1 for each in own],
                    computed=[each.step + 1 for each, answer in own.items() if answer.is_computed],
                    epochs=epochs,
                    faults=faults,
                    shown=next((answer.shown for answer in own.values() if answer.shown), ""),
                )
            )
        # One faulty run of a row is evidence enough: those of a large model would fill the disk.
        if not faults or any(each.faults for each in (*known, *found[:-1]) if each.row == row.id):
            for file in (*(path for each in own for path in each.paths), folder / TOLD_FILE):
                file.unlink(missing_ok=True)
    return found


def row_verdicts(
    verdicts: Mapping[str, str], runs: Mapping[str, Mapping[int, RunResult]], checks: Sequence[SpotCheck]
) -> dict[str, str]:
    """The verdict on each row, by its id, once its timed runs are judged.

    A row is proved if its mode is, and if all its good runs recorded steps that are right. A run without them leaves it proved
    in float64 alone.

    Args:
        verdicts: of the proof.
        runs: by row and repeat.
    """
    found = dict(verdicts)
    for row, repeats in runs.items():
        good = {(repeat, run.started_at) for repeat, run in repeats.items() if run.status == "ok"}
        own = [each for each in checks if each.row == row]
        if any(each.faults for each in own):
            found[row] = "not proved"
        elif own and found.get(row) in ("proved", IN_FLOAT64):
            if any(each.missing or (each.has_fingerprints and not each.steps) for each in own):
                found[row] = "not examined"  # a run that could have recorded steps lacks some
            else:
                right = {(each.repeat, each.started_at) for each in own if each.steps and not each.shown}
                found[row] = "proved" if good <= right else IN_FLOAT64
    return found


def first_losses(stored: StoredComparison) -> list[Rung]:
    """The first float32 losses of all frameworks against the referee's, if they differ by more than a shallow network's do.

    The tolerance comes from the referee's own float32 rounding, see `single_steps`. A deep network rounds by more.
    """
    alike: dict[tuple[str, str, int], list[tuple[str, float]]] = {}
    specs: dict[tuple[str, str, int], Spec] = {}
    for row in stored.comparison.rows:
        if row.spec.variant != "pipeline_async" and row.spec.precision == "float32" and row.spec.part == "training":
            for result in stored.runs[row.id].values():
                if result.first_step_loss is not None and not result.reduced:
                    run = result.spec
                    key = run.model_dump_json(exclude=_OF_NO_MATTER), run.variant, run.replicas
                    specs[key] = run
                    alike.setdefault(key, []).append((row.contestant, result.first_step_loss))
    found: list[Rung] = []
    judges: dict[str, single_steps.Judge] = {}
    with ladder.judging():
        for key, losses in alike.items():
            told = [loss for _, loss in losses]
            truth = _Truth(run := specs[key])
            if relative_difference(min(told), max(told)) <= FLOAT32_TOLERANCE or _unknown(run, truth):
                continue
            if truth.is_sampled or run.augmentation.brightness:
                continue  # an honest image may differ from the referee's by a level
            if key[0] not in judges:
                judges[key[0]] = single_steps.Judge(truth.architecture, truth.first_step(), [0], truth.plan, is_timed=True)
            loss, allowed = judges[key[0]].loss(run, 0)
            found += [
                rung(
                    run,
                    sameness.FIRST_LOSSES,
                    relative_difference(loss, own),
                    f"first loss {own:.7g}, should be {loss:.7g}",
                    allowed / abs(loss),
                    "rounding of float32, through all layers",
                    framework=contestant,
                    mode=None if run.mode == "serial" else run.variant,
                    step=1,
                    first_tolerance=allowed / abs(loss),
                )
                for contestant, own in dict.fromkeys(losses)
            ]
    return found


def _chosen(recorded: Sequence[_Recorded], flops: float, before: int) -> list[_Recorded]:
    """Recorded steps for the referee: of each row one, and more while the budget lasts. Rows and parts of runs take turns.

    Nobody can foresee them: they are drawn when the runs have ended.

    Args:
        recorded: to choose from.
        flops: operations of a step.
        before: how many were computed earlier. Each row has one now all the same.
    """
    order = list(recorded)
    random.SystemRandom().shuffle(order)
    rows, places, chosen = Counter[str](), Counter[tuple[str, int]](), list[_Recorded]()
    place = {
        each: sorted(other.step for other in recorded if other.folder == each.folder).index(each.step) for each in recorded
    }
    while order:
        best = min(order, key=lambda each: (rows[each.row.id], places[each.row.contestant, place[each]]))
        if rows[best.row.id] and (before + len(chosen) + 1) * flops > COMPUTED_FLOPS:
            break
        order.remove(best)
        chosen.append(best)
        rows[best.row.id] += 1
        places[best.row.contestant, place[best]] += 1
    return chosen


@dataclass
class _Truth:
    """What the runs of one training must do, whatever framework and mode they have."""

    run: Spec
    _hashes: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = field(
        default_factory=dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    )
    """By epoch: ids in the order of training, and a hash of each example."""

    _told: dict[int, set[str | None]] = field(default_factory=dict[int, set[str | None]])
    """By epoch: the fingerprints of all runs."""

    def note(self, result: RunResult) -> None:
        """Know a run's fingerprints, before `epochs` is asked for."""
        for record in result.epochs:
            self._told.setdefault(record.epoch, set()).add(record.fingerprint)

    @cached_property
    def epochs(self) -> set[int]:
        """The epochs whose examples are computed: all, or as many as the budget pays for, and those in which runs differ."""
        in_epoch = self.plan.num_examples * self.architecture.image_size**2 * 3
        most = HASHED_BYTES // (in_epoch * (SAMPLED if self.is_sampled else 1))
        drawn = random.SystemRandom().sample(sorted(self._told), min(most, len(self._told)))
        return {*drawn, *[epoch for epoch, told in sorted(self._told.items()) if len(told) > 1][:1]}

    @property
    def is_sampled(self) -> bool:
        """Whether pixels lie between those of the source, which takes `SAMPLED` times as long."""
        given = self.run.augmentation
        return bool(given.rotation_degrees or given.shear_degrees or given.zoom)

    @cached_property
    def dataset(self) -> Dataset:
        return sources.load(self.run.data, seed=self.run.split_seed, cache_dir=self.run.paths.cache_dir)

    @cached_property
    def architecture(self) -> Architecture:
        return architectures.of(self.run, len(self.dataset.class_names), self.dataset.image_size)

    @cached_property
    def plan(self) -> Plan:
        labels = self.dataset.train.labels if self.run.dask.partition == "class_skew" else None
        pixels = scaling.of(self.run.data, self.dataset, cache_dir=self.run.paths.cache_dir)
        return Plan(self.run, self.architecture, len(self.dataset.train), False, pixels, labels)

    @cached_property
    def draw(self) -> Callable[[int], Epoch]:
        """`Plan.draw`, which draws a whole epoch with all its masks. Several records are of one epoch."""
        return lru_cache(maxsize=8)(self.plan.draw)

    @property
    def flops(self) -> float:
        """Operations of one step."""
        return work.count(self.architecture).flops * self.run.global_batch_size

    def first_step(self) -> dict[str, npt.NDArray[Any]]:
        """A record of the first step, as its state before it and its batch must be."""
        drawn, (start, stop) = self.draw(1), self.plan.batch(0)
        ids, images, labels = self.batch(drawn, start, stop)
        arrays: dict[str, npt.NDArray[Any]] = {
            "ids/0": ids,
            "images/0": images,
            "labels/0": labels,
            "before/0/drawn": np.array(0),
        }
        arrays |= {f"masks/0/{index}": mask for index, mask in enumerate(_masks(drawn, start, stop))}
        initial = weights.initial(self.architecture, self.run.seed)
        arrays |= {f"before/0/weights/{name}": initial[name].astype(self.run.precision) for name in initial}
        return arrays | self.scaling

    @property
    def scaling(self) -> dict[str, npt.NDArray[Any]]:
        """Mean and standard deviation of the pixels, float64 [3], as a recording has them."""
        mean, deviation = self.plan.scaling.mean, self.plan.scaling.std
        return {"pixel_mean": np.array(mean, np.float64), "pixel_std": np.array(deviation, np.float64)}

    def batch(
        self, drawn: Epoch, start: int, stop: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """(ids, augmented images, labels) at these positions of an epoch."""
        part = slice(start, stop)
        ids = drawn.ids[part]
        draws = (None if each is None else each[part] for each in (drawn.flips, drawn.shifts, drawn.affines, drawn.brightness))
        return ids, augmented(np.asarray(self.dataset.train.images[ids]), *draws), self.dataset.train.labels[ids]

    def hashes(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        if epoch not in self._hashes:
            drawn, stop = self.draw(epoch), self.plan.batch(self.plan.steps_in(epoch) - 1)[1]
            hashes = np.zeros(stop, np.int64)
            for step in range(self.plan.steps_in(epoch)):
                part = self.plan.batch(step)
                _, images, labels = self.batch(drawn, *part)
                hashes[slice(*part)] = example_hashes(images, labels)
            self._hashes[epoch] = drawn.ids[:stop], hashes
        return self._hashes[epoch]


class _Answer(NamedTuple):
    faults: list[str]
    is_computed: bool = False
    shown: str = ""


def _epochs(truth: _Truth, result: RunResult) -> tuple[int, list[str]]:
    """(epochs whose fingerprint is the plan's; what is wrong)."""
    told = [record for record in result.epochs if record.fingerprint is not None and record.epoch in truth.epochs]
    wrong = [record.epoch for record in told if record.fingerprint != _expected(truth, result.spec, record)]
    faults = [f"epoch {epoch}: its ids, labels, pixels or learning rates are not the plan's" for epoch in wrong[:1]]
    if len(wrong) > 1:
        faults = [f"{faults[0]}, nor are those of {wording.count(len(wrong) - 1, 'later epoch')}"]
    return len(told) - len(wrong), faults


def _expected(truth: _Truth, run: Spec, record: EpochRecord) -> str:
    ids, hashes = truth.hashes(record.epoch)
    plan = truth.plan
    first = (record.epoch - 1) * plan.steps_per_epoch
    rate = single_steps.learning_rates(run, plan.steps_per_epoch, plan.total_steps)
    return fingerprint(ids, hashes, [rate(step + 1) for step in range(first, first + record.steps)], first)


def _draw_faults(truth: _Truth, result: RunResult, folder: Path) -> list[str]:
    """Whether the recorded steps are those that the launcher's word draws. A resumed run began to draw in some later epoch."""
    if result.resumes or result.first_step_loss is None or not any(record.fingerprint for record in result.epochs):
        return []
    try:
        draw = Draw((folder / store.NONCE_FILE).read_text(encoding="utf-8"), truth.plan)
    except OSError:
        return []
    steps: list[int] = []
    losses = [record.train.loss for record in result.epochs if record.train]
    for number, record in enumerate(result.epochs):
        begin = number * truth.plan.steps_per_epoch
        own = losses[:number] or [result.first_step_loss]
        steps += draw.steps(own, max(begin, 1), begin + record.steps)
    wanted = [step + 1 for step in steps]
    return [] if wanted == result.spot_checks else [f"the recorded steps are {result.spot_checks}, should be {wanted}"]


def _judged(recorded: _Recorded, truth: _Truth, is_computed: bool) -> _Answer:
    """What is wrong with a recorded step. A record that another twin or a torn disk has left may hold anything."""
    try:
        return _judged_record(recorded, truth, is_computed)
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        return _Answer([f"{recorded.words}: its record cannot be judged: {type(error).__name__}: {error}"])


def _judged_record(recorded: _Recorded, truth: _Truth, is_computed: bool) -> _Answer:
    run, step = recorded.row.spec, recorded.step
    arrays: dict[str, npt.NDArray[Any]] = {}
    for path in recorded.paths:
        arrays |= array_file.ArrayFile(path)
    faults = [f"{recorded.words}: {fault}" for fault in _batch_faults(truth, arrays, step)]
    loss = arrays[f"loss/{step}"].item()
    if recorded.told_loss is not None and not relative_difference(loss, recorded.told_loss) <= _TOLD:
        faults.append(f"{recorded.words}: its loss is {loss:.7g}, and the result says {recorded.told_loss:.7g}")
    fewer = claims.reduced(recorded.row.contestant, run)
    if not fewer:
        faults += [f"{recorded.words}: {fault}" for fault in _update_faults(truth, run, arrays, step)]
    shown = f"fewer digits than {run.precision}: {', '.join(fewer)}" if fewer else _unknown(run, truth)
    if faults or shown or not is_computed:
        return _Answer(faults, shown=shown)
    if (path := recorded.folder / TOLD_FILE).exists():
        told = array_file.ArrayFile(path)
        arrays |= {name: told[name] for kind in ("decisions", "scored") for name in told.names_in(f"{kind}/{step}/")}
    arrays |= truth.scaling
    judge = single_steps.Judge(truth.architecture, arrays, [step], truth.plan, is_timed=True)
    rungs = judge.rungs(run, arrays, recorded.row.contestant)
    for each in rungs:
        if each.status == "failed":
            aspect, where = each.name.rpartition(": ")[2], f" ({each.where})" if each.where else ""
            faults.append(
                f"{recorded.words}: {aspect} differ from the referee's by {each.max_relative_difference:.1e}{where}, "
                f"tolerance {each.tolerance:.1e}"
            )
    loose = next((each.reason for each in rungs if each.status == "shown"), "")
    return _Answer(faults, is_computed=True, shown=loose)


def _unknown(run: Spec, truth: _Truth) -> str:
    """Why the referee cannot compute a model. Empty: it can."""
    if isinstance(truth.architecture.layers[0], architectures.Opaque):
        return "the referee does not know the layers of a matched pair"
    if run.model not in spec.MODELS and claims.has_own_builders(run.model):
        return "the model has builders of its own, and the referee knows only its architecture"
    return ""


def _batch_faults(truth: _Truth, arrays: Mapping[str, npt.NDArray[Any]], step: int) -> list[str]:
    """What of a batch is not the plan's."""
    epoch, in_epoch = divmod(step, truth.plan.steps_per_epoch)
    start, stop = truth.plan.batch(in_epoch)
    drawn = truth.draw(epoch + 1)
    ids, images, labels = truth.batch(drawn, start, stop)
    if not np.array_equal(arrays[f"ids/{step}"], ids):
        return [f"{_count(arrays[f'ids/{step}'] != ids)} examples are not those of the plan"]
    faults: list[str] = []
    if not np.array_equal(arrays[f"labels/{step}"], labels):
        faults.append(f"{_count(arrays[f'labels/{step}'] != labels)} labels are not those of the source")
    there = arrays[f"images/{step}"]
    apart = np.abs(there.astype(np.int16) - images) if there.shape == images.shape else None
    allowed = LEVELS if drawn.affines is not None or drawn.brightness is not None else 0
    if apart is None or apart.max() > allowed:
        number = len(images) if apart is None else _count(apart.reshape(len(images), -1).max(1) > allowed)
        faults.append(f"{number} of {len(images)} images are not those of the source, augmented as planned")
    masks = enumerate(_masks(drawn, start, stop))
    if not all(np.array_equal(arrays.get(f"masks/{step}/{index}", ()), mask) for index, mask in masks):
        faults.append("dropout masks are not those of the plan")
    return faults


def _masks(drawn: Epoch, start: int, stop: int) -> list[npt.NDArray[np.bool_]]:
    """Of each dropout [N, units] at these positions of an epoch, true where a value is kept."""
    return [
        np.unpackbits(bits[start:stop], axis=1, count=units, bitorder="little").view(bool)
        for bits, units in zip(drawn.masks, drawn.mask_units, strict=True)
    ]


def _count(differs: Any) -> int:
    return int(np.count_nonzero(differs))


def _update_faults(truth: _Truth, run: Spec, arrays: Mapping[str, npt.NDArray[Any]], step: int) -> list[str]:
    """Whether the weights moved as the optimizer's own new state and the schedule's learning rate say."""
    (weights, before), (after, slots) = state(arrays, f"before/{step}"), state(arrays, f"after/{step}")
    rate = single_steps.learning_rates(run, truth.plan.steps_per_epoch, truth.plan.total_steps)(step + 1)
    if not before:
        return []
    names = next(iter(before.values()))
    ratios: dict[str, float] = {}
    for name in names:
        weight = np.asarray(weights[name], np.float64)
        own = {slot: np.asarray(values[name], np.float64) for slot, values in slots.items()}
        moved, limit = single_steps.update_of(run, own, rate, step + 1)
        limit = limit + 3 * single_steps.UNIT[run.precision] * np.abs(weight)
        difference = np.abs(weight - moved - np.asarray(after[name], np.float64))
        worst = float(np.max(difference / np.maximum(limit, np.finfo(np.float64).tiny)))
        if not worst <= 1.0:
            ratios[name] = worst if math.isfinite(worst) else math.inf
    if not ratios:
        return []
    return [
        f"the update of {wording.listed(sorted(ratios, key=lambda name: -ratios[name]))} is not that of learning rate {rate:g}"
    ]
