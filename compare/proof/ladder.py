"""The ladder of proof: do all frameworks and all synchronous modes train the same network?

Each twin records a few steps through the code that is timed (`python -m <twin> trace`). The ladder compares the recordings
rung by rung. Float64 proves sameness, because only rounding is left there.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from common import spec
from common.data import sources
from common.data.batches import Plan
from common.data.sources import Dataset
from common.machine import machine
from common.models import architectures, work
from common.models.architectures import Architecture
from common.spec import Spec
from compare.core import wording
from compare.execution import launch
from compare.execution.matrix import Row
from compare.execution.store import Trajectories
from compare.judgement import growth
from compare.proof import claims, remembered, rungs, single_steps, timed_rows, tolerances
from compare.proof.certificate import RISES, Proof, Rung, Setting
from compare.proof.differences import Arrays
from compare.proof.recordings import Recorder, Recording
from compare.proof.timed_rows import Timed
from compare.proof.tolerances import Yardstick

BATCH_SIZE = 16
LEAST_PER_REPLICA = 3
"""Fewer examples would leave a replica without any in the uneven last batch of rung 6."""
STEPS = 50
PARALLEL_STEPS = 20
TIMED_FLOPS = 3e11
"""Of the free-running float64 steps of one recording with the timed batch and rate: some ten seconds. A model whose steps take
more is proved with a smaller batch, and the proof says so."""
FREE_FLOPS = 1e11
"""The same of the smaller batch: some seven seconds. A large model makes `FEWER` of its steps at least."""
FEWER = 0.25
COPIES = 3
"""Of the timed run in each framework. If the frameworks differ by rounding alone, their distance exceeds that of all six copies
to their own run about once in seven. Then MORE_COPIES are made, and it is exceeded about once in nineteen."""
MORE_COPIES = 9
MORE_FLOPS = 2e12
"""Of these in one framework. Those of a large model would take longer than its proof."""
LEAST_WITH_MORE = 10
"""Steps that more copies follow, at least. Of a large model `LEAST_FOLLOWED` are followed, by no more copies."""
LEAST_FOLLOWED, MOST_FOLLOWED = 4, 100
FOLLOWED_FLOPS = 0.6e12
"""Of a run and its copies in one framework: some eight seconds on one core. The losses of digits' copies
are tenths apart by then."""
LOWER_RATES = 2
"""How often the learning rate of the free-running losses may be divided by ten."""
_EVEN = "serial"
"""Label of the recordings that the frameworks are compared by."""


def prove(
    timed: Spec,
    frameworks: Sequence[str],
    modes: Sequence[str],
    *,
    replicas: int,
    out: Path,
    progress: Callable[[str], None],
    steps: int | None = None,
    precision: spec.Precision = "float64",
    timed_runs: Mapping[str, Spec] | None = None,
    others: Sequence[Timed] = (),
    remember: bool = True,
    keep: bool = False,
) -> Proof:
    """Climb the ladder for the model, data and optimizer of a spec.

    Args:
        timed: the run that the proof is for. The proof sets its own batch size, length, precision and mode. Its learning rate
            falls with the batch, so that as many examples move the weights as far.
        frameworks: at least one. All others are compared with the first.
        modes: of `spec.VARIANTS`. Each is compared with serial if it claims the same mathematics and the machine has it.
        replicas: of those modes.
        out: folder for specs, recordings and logs.
        progress: called with what is being done.
        steps: of rung 5. None: `STEPS`, or fewer of a large model.
        precision: float64 proves. float32 shows how rounding grows.
        timed_runs: by framework, its serial run as it is timed, with its switches. Their first steps are compared too.
        others: such runs with other switches, input workers or cores. Single steps of these are compared too.
        remember: use a stored proof of the same code, versions and spec, and store this one.
        keep: all recordings. Else they stay only where a rung failed: they are the evidence.

    Raises:
        LaunchError: a twin could not record.
    """
    parallel = [mode for mode in modes if mode != "serial"]
    timed_runs = timed_runs or {}
    every = [*(runs for runs, _ in others), timed_runs or dict.fromkeys(frameworks, timed)]
    level, *other_levels = timed_rows.levels(every)
    base, share = _base(timed, replicas, steps, precision, level)
    remember = remember and base.model in spec.MODELS  # nobody knows all the modules that a user's own model is made of
    key = _key(base, frameworks, replicas, (timed_runs, parallel), others, share)
    timed_alike: tuple[Timed, ...] = ((timed_runs, parallel), *others) if timed_runs else ()
    ladder = _Ladder(base, tuple(frameworks), tuple(parallel), replicas, timed_alike, tuple(other_levels), out, progress)
    ladder.parallel_steps = 2 * math.ceil(share * PARALLEL_STEPS / 2)
    # What is claimed depends on the timed run itself, which the key leaves out.
    levels = level, *other_levels
    with_switches = [
        name for name in frameworks if not any(timed_rows.is_of(levels, name, runs.get(name, timed)) for runs in every)
    ]
    claimed: dict[str, Any] = {
        "not_claimed": claims.not_claimed(timed, ladder.architecture, parallel, replicas, with_switches),
        "compared_with": claims.compared_with(timed, ladder.architecture, parallel),
        "timed": _setting(timed),
    }
    if remember and (proof := remembered.load(key)):
        progress("proof remembered: same code, versions, machine and spec")
        return proof.model_copy(update=claimed)
    start = time.perf_counter()
    with judging(), contextlib.closing(ladder):
        ladder.record()
        if ladder.settle():
            ladder.record()
        single = ladder.single_steps()
        climbed = ladder.climb()
        examined: dict[str, bool] = {}
        for each in single:
            judged = ladder.judged(each)
            climbed += judged
            shown = {(rung.framework, rung.mode) for rung in judged if rung.status == "shown" and ": gradients" in rung.name}
            examined |= {run: of_run in shown for run, of_run in each.examined.items()}
        followed, copies = ladder.trajectories()
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    first_layer = ladder.architecture.layers[0]
    proof = Proof(
        rungs=[*climbed, *followed],
        seconds=time.perf_counter() - start,
        made_at=made_at,
        trajectories=copies,
        examined=list(examined),
        shown=[run for run, is_shown in examined.items() if is_shown],
        levels=list(levels),
        proved=_setting(ladder.base),
        rounded=first_layer.rounded if isinstance(first_layer, architectures.Opaque) else "",
        **claimed,
    )
    if proof.verdict != "not proved":
        if not keep:
            ladder.recorder.forget_all()
        if remember:
            remembered.save(key, proof)
    return proof


def prove_rows(rows: Sequence[Row], frameworks: Sequence[str], *, replicas: int, **options: Any) -> Proof:
    """Climb the ladder for the rows of a comparison, as they are timed.

    Args:
        rows: judged, see `matrix.judge`.
        frameworks, replicas, options: see `prove`.

    Raises:
        LaunchError: a twin could not record.
    """
    *others, (timed, _) = timed_rows.groups(rows).values()
    return prove(
        _timed(rows), frameworks, timed_rows.modes_of(rows), replicas=replicas, timed_runs=timed, others=others, **options
    )


def with_more_copies(
    copies: Trajectories, rows: Sequence[Row], frameworks: Sequence[str], *, out: Path, progress: Callable[[str], None]
) -> Trajectories:
    """As many further copies of the timed serial run as make `MORE_COPIES`, followed as far as those that are there.

    Rounding turns a ReLU, or another maximum, in some runs only. A row may be among these, and none of a few copies.

    Args:
        copies: of the proof of these rows. Returned as they are if they are as many, or if more would cost too much.
        rows, frameworks, out, progress: see `prove_rows`.

    Raises:
        LaunchError: a twin could not record.
    """
    *_, (serial, _) = timed_rows.groups(rows).values()
    has_more = all(len(losses) > MORE_COPIES for losses in copies.losses.values())
    if has_more or not _may_have_more_copies(serial[frameworks[0]], copies.steps):
        return copies
    recorder = Recorder(out, progress)
    followed = _follow(recorder, serial, frameworks, copies.steps, MORE_COPIES, copies)
    recorder.forget_all()
    return followed


def every_step(
    what: Spec,
    frameworks: Sequence[str],
    modes: Sequence[str],
    *,
    replicas: int,
    out: Path,
    progress: Callable[[str], None],
    steps: int = STEPS,
) -> list[Rung]:
    """Rung 8 in float64 alone, at each of the steps, of all synchronous modes that claim serial's mathematics.

    Args:
        what: gives model, data, optimizer and batch size.
        modes, replicas, out, progress: see `prove`. A recording is deleted when it has been judged: it may be large.

    Raises:
        LaunchError: a twin could not record.
    """
    base = proof_spec(what, what.global_batch_size, steps, "float64")
    parallel = tuple(mode for mode in modes if mode != "serial")
    ladder = _Ladder(base, tuple(frameworks), parallel, replicas, (), (), out, progress, every_step=True)
    found: list[Rung] = []
    with judging(), contextlib.closing(ladder):
        for each in ladder.single_steps():
            ladder.recorder.make([each.teacher])
            at_once = max(2, single_steps.MOST_BYTES // ladder.recorder.path(each.teacher).stat().st_size)
            for start in range(0, len(each.others), at_once):
                some = each.others[start : start + at_once]
                ladder.recorder.make(some)
                found += ladder.judged(replace(each, others=some))
                ladder.recorder.forget(some)
            ladder.recorder.forget([each.teacher])
    return found


def is_remembered(rows: Sequence[Row], frameworks: Sequence[str], *, replicas: int) -> bool:
    """Whether `prove_rows` finds a stored proof."""
    *others, (timed, _) = timed_rows.groups(rows).values()
    parallel = [mode for mode in timed_rows.modes_of(rows) if mode != "serial"]
    level = timed_rows.levels([*(runs for runs, _ in others), timed])[0]
    base, share = _base(_timed(rows), replicas, None, "float64", level)
    key = _key(base, frameworks, replicas, (timed, parallel), others, share)
    return base.model in spec.MODELS and remembered.load(key) is not None


def _base(timed: Spec, replicas: int, steps: int | None, precision: spec.Precision, level: str) -> tuple[Spec, float]:
    """(what the proof trains; the share of the steps that it makes)."""
    as_timed = proof_spec(timed, timed.global_batch_size, steps or STEPS, precision, level)
    is_shared = timed.global_batch_size % replicas == 0 and timed.global_batch_size >= LEAST_PER_REPLICA * replicas
    if is_shared and (steps or STEPS) * _flops_of_a_step(as_timed) <= TIMED_FLOPS:
        return as_timed, 1.0
    base = proof_spec(timed, _batch_size(replicas), steps or STEPS, precision, level)
    if steps is not None or precision == "float32":
        return base, 1.0
    share = min(1.0, max(FEWER, FREE_FLOPS / (STEPS * _flops_of_a_step(base))))
    return proof_spec(timed, _batch_size(replicas), round(share * STEPS), precision, level), share


def _key(base: Spec, frameworks: Sequence[str], replicas: int, timed: Timed, others: Sequence[Timed], share: float) -> str:
    modes = [
        f"{share:.3f} of the steps",
        *timed[1],
        *(f"{mode} of run {number}" for number, (_, own) in enumerate(others, start=2) for mode in own),
    ]
    return remembered.key(base, frameworks, modes, replicas, [timed[0], *(runs for runs, _ in others)])


@contextlib.contextmanager
def judging() -> Generator[None]:
    """What the referee needs to be quick: threads that share out the steps, and not each product of small matrices."""
    machine.keep_freed_memory()
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        machine.give_freed_memory_back()


def _batch_size(replicas: int) -> int:
    return max(BATCH_SIZE // replicas, LEAST_PER_REPLICA) * replicas


def _timed(rows: Sequence[Row]) -> Spec:
    base = rows[0].spec
    return base.with_fields(hosts=(), cores=min(base.cores, machine.available_cores()))  # the mathematics are the same here


@dataclass(frozen=True)
class _Claim:
    """A parallel mode that claims to be serial's mathematics, and what it is compared with."""

    parallel: Spec
    micro_batches: int
    """Of each batch, whose gradients serial adds up."""
    frameworks: tuple[str, ...]
    """Those that have the mode on this machine."""


@dataclass
class _Comparison:
    """Rungs of two recordings, which are read for them: those of all modes may fill the memory."""

    ordered: str
    """Label of the serial recordings that the yardstick is measured against."""
    strict_steps: int
    rungs: Callable[[Yardstick | None], list[Rung]]

    @cached_property
    def strict(self) -> list[Rung]:
        """By the plain tolerances."""
        return self.rungs(None)

    @property
    def needs_yardstick(self) -> bool:
        return tolerances.may_be_rounding(self.strict, self.strict_steps)


@dataclass(frozen=True)
class _SingleSteps:
    """Rung 8: recordings of the same drawn steps, from the states of the first framework's serial run."""

    teacher: Recording
    others: tuple[Recording, ...]
    drawn: list[int]
    plan: Plan
    examined: Mapping[str, tuple[str, str | None]] = field(default_factory=dict[str, tuple[str, str | None]])
    """The timed runs that these steps are of, and the framework and mode of their rungs."""
    shown: Mapping[str, str] = field(default_factory=dict[str, str])
    """Contestant: why its rungs prove nothing."""
    addition: str = ""
    """To the rungs' names."""


@dataclass
class _Ladder:
    base: Spec
    frameworks: tuple[str, ...]
    modes: tuple[str, ...]
    """Parallel ones."""
    replicas: int
    runs: tuple[Timed, ...]
    """What is timed: first the run that is followed, then others with other switches, workers or cores."""
    other_levels: tuple[str, ...]
    """Of switches, that the base has not."""
    out: Path
    progress: Callable[[str], None]
    _judges: dict[str, single_steps.Judge] = field(default_factory=dict[str, single_steps.Judge])
    """Of single steps, by the teacher's label."""
    _rungs: dict[Path, Future[list[Rung]]] = field(default_factory=dict[Path, Future[list[Rung]]])
    """Of single steps, by recording. They are judged while other recordings are made."""
    _teachers_shown: set[str] = field(default_factory=set[str])
    parallel_steps: int = PARALLEL_STEPS
    every_step: bool = False
    """Float64 steps of a large model too."""

    def __post_init__(self) -> None:
        self._first_rate = self.base.optimizer.learning_rate
        self.recorder = Recorder(self.out, self.progress)
        self._judging = ThreadPoolExecutor(1)

    def close(self) -> None:
        """Judge no more."""
        for judge in self._judges.values():
            judge.stopped = True
        self._judging.shutdown(wait=False, cancel_futures=True)

    def record(self) -> None:
        """Make ahead what the rungs will need, in as few processes as possible."""
        steps = self.single_steps()

        def judge_ahead() -> None:
            for each in steps:
                # `settle` cannot change what is timed.
                if (each.examined or self._is_settled) and self.recorder.is_made(each.teacher):
                    wanted = self._to_judge(each)
                    waited_for = {
                        one.framework for one in wanted if one.what.mode == "serial" and not self.recorder.is_made(one)
                    }
                    for recorded in filter(self.recorder.is_made, wanted):
                        if recorded.framework not in waited_for:  # its serial run tells what it decides
                            self._judge(each, recorded)

        self.recorder.make(
            [
                *self._serial_recordings.values(),
                *(each.teacher for each in steps),
                *(_copies(self.runs[0][0], self.frameworks, self._followed, 0, COPIES) if self._is_followed else []),
                *(each for mode in self._claims for each in self._of_mode(mode)),
                *(student for each in steps for student in each.others),
            ],
            judge_ahead,
        )

    @cached_property
    def _dataset(self) -> Dataset:
        return sources.load(self.base.data, seed=self.base.split_seed, cache_dir=self.base.paths.cache_dir)

    @cached_property
    def architecture(self) -> Architecture:
        return architectures.of(self.base, len(self._dataset.class_names), self._dataset.image_size)

    def settle(self) -> bool:
        """Divide the learning rate by ten until the free-running loss falls. A loss that rises grows any difference with it.

        Returns:
            Whether the learning rate is another now.
        """
        for _ in range(LOWER_RATES):
            if not self._rises:
                break
            settings = self.base.optimizer.model_dump()
            settings["learning_rate"] /= 10
            self.base = self.base.with_fields(optimizer=settings)
            self.progress(f"proof: {self.base.model}: the loss rises; the learning rate becomes {settings['learning_rate']:g}")
            for name in ("_serial_recordings", "_uneven", "_claims"):
                self.__dict__.pop(name, None)
        return self.base.optimizer.learning_rate != self._first_rate

    @property
    def _is_settled(self) -> bool:
        """Whether it is known that `settle` leaves the learning rate as it is."""
        return all(map(self.recorder.is_made, self._serial_recordings.values())) and not self._rises

    @property
    def _rises(self) -> bool:
        """Whether the loss is no lower at the end of rung 5. Ten steps are too few to say."""
        if len(self.frameworks) < 2 or (self.base.steps or 0) <= 10:
            return False
        losses = self._serial(_EVEN, self.frameworks[0])["loss"]
        return not losses[-5:].mean() < losses[:5].mean()

    def _exhibited(self, rung: Rung) -> Rung:
        """The rung of free-running losses, as far as it may prove something."""
        if rung.name != "5 losses" or rung.status != "passed":
            return rung
        if self._rises:
            shown = f"shown: {RISES}, and such a run proves nothing; {rung.reason}"
            return rung.model_copy(update={"status": "shown", "reason": shown})
        if self.base.optimizer.learning_rate == self._first_rate:
            return rung
        return rung.model_copy(update={"where": f"{rung.where}, at learning rate {self.base.optimizer.learning_rate:g}"})

    def climb(self) -> list[Rung]:
        """Rungs 1 to 7."""
        comparisons = [*self._of_twins(), *(each for mode in self._claims for each in self._with_serial(mode))]
        climbed = [each.strict for each in comparisons]
        # Rounding is amplified by the model. So one framework's yardstick is mostly enough, and the frameworks share them out.
        for frameworks in sorted({1, len(self.frameworks)}):
            doubtful = [
                number
                for number, each in enumerate(comparisons)
                if each.needs_yardstick and any(rung.status == "failed" for rung in climbed[number])
            ]
            labels = dict.fromkeys(comparisons[number].ordered for number in doubtful)
            reordered = {label: self._reordered(label, first)[:frameworks] for first, label in enumerate(labels)}
            self.recorder.make([recording for recordings in reordered.values() for recording in recordings])
            yardsticks = {label: self._measure(label, recordings) for label, recordings in reordered.items()}
            for number in doubtful:
                each = comparisons[number]
                climbed[number] = _excused(each.strict, each.rungs(yardsticks[each.ordered]))
        found = [rung for several in climbed for rung in several]
        return list(map(self._exhibited, found))

    def _of_twins(self) -> list[_Comparison]:
        """Rungs 1 to 5 and 7: the serial run of every other framework against that of the first."""
        first, *others = self.frameworks

        def compared(other: str, yardstick: Yardstick | None) -> list[Rung]:
            sides = self._serial(_EVEN, first), self._serial(_EVEN, other)
            return rungs.compare_serials(self.base, self.architecture, *sides, yardstick)

        return [_Comparison(_EVEN, tolerances.STRICT_STEPS, partial(compared, other)) for other in others]

    def _with_serial(self, mode: str) -> list[_Comparison]:
        """Rung 6: a parallel mode against serial in the same framework, with an uneven last batch."""
        claim = self._claims[mode]
        ordered, strict_steps = _uneven_label(claim.micro_batches), tolerances.strict_steps(claim.parallel, self.architecture)

        def compared(split: Recording, yardstick: Yardstick | None) -> list[Rung]:
            sides = split.framework, self._serial(ordered, split.framework), self.recorder.arrays(split)
            return rungs.compare_mode(claim.parallel, self.architecture, *sides, yardstick)

        return [_Comparison(ordered, strict_steps, partial(compared, split)) for split in self._of_mode(mode)]

    def _of_mode(self, mode: str) -> list[Recording]:
        claim = self._claims[mode]
        return [Recording(mode, name, claim.parallel) for name in claim.frameworks]

    @cached_property
    def _claims(self) -> dict[str, _Claim]:
        """By mode, without those of other mathematics than serial's, and without those that no framework has here."""
        found: dict[str, _Claim] = {}
        for mode in self.modes:
            # BatchNorm has statistics of each micro-batch. A model without BatchNorm is compared with plain serial.
            own_statistics = self.architecture.has_batch_norm and "pipeline" in mode
            statistics = "synchronised" if self.architecture.has_batch_norm and not own_statistics else "per_replica"
            values = {**self._uneven.model_dump(), "batch_norm_statistics": statistics}
            parallel = spec.build(spec.with_variant(values, mode, self.replicas))
            if parallel.departs is not None or (own_statistics and parallel.mode == "hybrid"):
                continue
            if architectures.cannot_cut(parallel) is not None:
                continue
            here = tuple(name for name in self.frameworks if spec.check_against(parallel, launch.describe(name)) is None)
            if here:
                found[mode] = _Claim(parallel, parallel.pipeline.micro_batches if own_statistics else 1, here)
        return found

    def single_steps(self) -> list[_SingleSteps]:
        """Rung 8 of all that is timed, or else of the proof's own runs; and of these with other levels of switches."""
        teachers: dict[str, Recording] = {}
        found: list[_SingleSteps] = []
        for number, (runs, modes) in enumerate(self.runs, start=1):
            found += self._timed_steps(runs, modes, number, teachers)
        for level in self.other_levels if self.runs else (self.base.switches, *self.other_levels):
            found += self._proved_steps(level)
        return found

    def _timed_steps(
        self, specs: Mapping[str, Spec], modes: Sequence[str], number: int, teachers: dict[str, Recording]
    ) -> list[_SingleSteps]:
        """Float32 steps of what is timed, with the timed kernels, batch, input, modes and switches.

        `modes` are the parallel ones. If the switches leave fewer digits than float32, the difference is shown and not judged.
        """
        if not self.frameworks or any(name not in specs or specs[name].precision != "float32" for name in self.frameworks):
            return []
        if any(specs[name].optimizer.native for name in self.frameworks):
            return []  # two update rules, which nobody claims to be the same
        if isinstance(self.architecture.layers[0], architectures.Opaque):
            return []  # the referee, whose float32 steps these are compared with, cannot compute it
        serial = {name: _few_batches(specs[name], self.architecture, len(self._dataset.train)) for name in self.frameworks}
        examined: dict[str, tuple[str, str | None]] = {
            timed_rows.run_name(name, specs[name]): (name, None) for name in self.frameworks
        }
        parallel: list[tuple[str, Spec]] = []
        for mode in modes:
            for name in self.frameworks:
                sides = [spec.with_variant(each[name].model_dump(), mode, self.replicas) for each in (specs, serial)]
                own, few = map(spec.build, sides)
                examined[timed_rows.run_name(name, own)] = name, own.variant
                if claims.has_single_steps(few):
                    parallel.append((name, few))
        steps = replace(self._steps(f"timed-{number}", serial, parallel, teachers), examined=examined)
        if self.base.model not in spec.MODELS and claims.has_own_builders(self.base.model):
            reason = "shown: the model has builders of its own, and the referee knows only its architecture"
            steps = replace(steps, shown=dict.fromkeys(self.frameworks, reason))
        for name in self.frameworks:
            if fewer := claims.reduced(name, specs[name]):
                reason = f"fewer digits than float32: {', '.join(f'{name} with {each}' for each in fewer)}"
                steps = replace(steps, shown={**steps.shown, name: reason})
        if number > 1:
            what = specs[self.frameworks[0]]
            which = f"switches {what.switches}, {wording.count(what.workers, 'worker')}, {wording.count(what.cores, 'core')}"
            steps = replace(steps, addition=f", {which}")
        return [steps]

    def _proved_steps(self, level: str) -> list[_SingleSteps]:
        """Steps of the proof's own spec, over many uneven epochs: all of them in float64, a few in float32.

        `level` of switches may be another one than that of the other rungs. Then the rungs are named by it.
        """
        found: list[_SingleSteps] = []
        addition, of_label = ("", "") if level == self.base.switches else (f", switches {level}", f"-{level}")
        for micro_batches in sorted({1, *(claim.micro_batches for claim in self._claims.values())}):
            serial = self._uneven.with_fields(accumulation=micro_batches, steps=self.base.steps, switches=level)
            parallel = [
                (name, claim.parallel.with_fields(steps=self.base.steps, switches=level))
                for claim in self._claims.values()
                if claim.micro_batches == micro_batches
                for name in claim.frameworks
            ]
            if serial.precision == "float64" and len(self.frameworks) < 2 and not parallel:
                continue  # nothing to compare the first framework with
            label = f"{micro_batches}-parts{of_label}"
            steps = self._steps(label, dict.fromkeys(self.frameworks, serial), parallel, {})
            found.append(replace(steps, addition=addition))
        return found

    def _steps(
        self,
        label: str,
        serial: Mapping[str, Spec],
        parallel: Sequence[tuple[str, Spec]],
        teachers: dict[str, Recording],
    ) -> _SingleSteps:
        """Single steps of serial runs and of the same runs in other modes. Only switches may differ among the serial ones.

        Runs of the same batches load the same states: those of the first such run, which `teachers` keeps.
        """
        first, *others = self.frameworks
        base = serial[first]
        available = len(self._dataset.train)
        plan = Plan(base, self.architecture, min(base.data.limit or available, available))
        drawn = list(range(plan.total_steps)) if self.every_step else single_steps.drawn(base, self.architecture, plan)
        options = "--drawn", ",".join(map(str, drawn))
        label = f"single-steps-{base.precision}-{label}"
        own = Recording(label, first, base, options)
        teacher = teachers.setdefault(_inline(base).with_fields(cores=1, switches="usual", framework_options={}).digest, own)
        if teacher != own:
            others = list(self.frameworks)
        students = tuple(
            Recording(f"{label}-{what.variant}", name, what, options, teacher)
            for name, what in [*((name, serial[name]) for name in others), *parallel]
            if spec.check_against(what, launch.describe(name)) is None
        )
        return _SingleSteps(teacher, students, drawn, plan)

    def judged(self, steps: _SingleSteps) -> list[Rung]:
        """The rungs of single steps."""
        futures = [self._judge(steps, each) for each in self._to_judge(steps)]
        self._teachers_shown.add(steps.teacher.label)
        found = [rung.model_copy(update={"name": rung.name + steps.addition}) for each in futures for rung in each.result()]
        # Other batches, and what is not finite, are no matter of digits.
        return [
            rung.model_copy(update={"status": "shown", "reason": steps.shown[rung.framework]})
            if rung.framework is not None
            and rung.framework in steps.shown
            and (rung.status != "failed" or (": batches" not in rung.name and math.isfinite(rung.max_relative_difference)))
            else rung
            for rung in found
        ]

    def _to_judge(self, steps: _SingleSteps) -> tuple[Recording, ...]:
        """In float64 the teacher is the truth itself. In float32 the referee is, and the teacher is judged once."""
        is_judge = steps.teacher.what.precision == "float64" or steps.teacher.label in self._teachers_shown
        return steps.others if is_judge else (steps.teacher, *steps.others)

    def _judge(self, steps: _SingleSteps, recorded: Recording) -> Future[list[Rung]]:
        """The rungs of one recording of single steps, which another thread finds."""
        path = self.recorder.path(recorded)
        if path not in self._rungs:
            judge, what, name = self._judge_of(steps), recorded.what, recorded.framework
            self._rungs[path] = self._judging.submit(lambda: judge.rungs(what, self.recorder.opened(recorded), name))
        return self._rungs[path]

    def _judge_of(self, steps: _SingleSteps) -> single_steps.Judge:
        label = steps.teacher.label
        if label not in self._judges:
            teacher = self.recorder.opened(steps.teacher)  # states of float64 steps may fill the memory
            self._judges[label] = single_steps.Judge(self.architecture, teacher, steps.drawn, steps.plan)
        return self._judges[label]

    def trajectories(self) -> tuple[list[Rung], Trajectories | None]:
        """The timed serial run as it goes, in its own precision, and copies that tell how far rounding carries it.

        It is an exhibit: it can show that the frameworks train another thing, and never that they train the same.
        """
        if not self._is_followed:
            return [], None
        first, *others = self.frameworks
        serial = self.runs[0][0]
        made = _follow(self.recorder, serial, self.frameworks, self._followed, COPIES)
        pairs = [(other, growth.between(made.losses[first][0], made.losses[other][0], made)) for other in others]
        beyond = [pair.beyond for _, pair in pairs if pair.beyond is not None and not pair.is_other_training]
        steps = min(self._followed, max(*beyond, LEAST_WITH_MORE)) if beyond else 0
        if beyond and _may_have_more_copies(serial[first], steps):
            made = _follow(self.recorder, serial, self.frameworks, steps, MORE_COPIES, made)
            pairs = [(other, growth.between(made.losses[first][0], made.losses[other][0], made)) for other in others]
        return [rungs.trajectory(serial[first], pair, made.losses[first][0]) for _, pair in pairs], made

    @property
    def _is_followed(self) -> bool:
        if len(self.frameworks) < 2 or not self.runs or any(name not in self.runs[0][0] for name in self.frameworks):
            return False
        what = [self.runs[0][0][name] for name in self.frameworks]
        plain = all(each.precision == "float32" and not each.optimizer.native for each in what)
        return plain and not any(claims.reduced(name, each) for name, each in zip(self.frameworks, what, strict=True))

    @cached_property
    def _followed(self) -> int:
        """How many steps of a run are followed: all, or as many as the budget of operations has room for."""
        what = self.runs[0][0][self.frameworks[0]]
        dataset = sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir)
        work_of_a_step = work.count(self.architecture).flops * what.global_batch_size * (1 + COPIES)
        plan = Plan(what, self.architecture, len(dataset.train))
        affordable = int(FOLLOWED_FLOPS / work_of_a_step)
        return min(plan.total_steps, MOST_FOLLOWED, affordable if affordable >= LEAST_WITH_MORE else LEAST_FOLLOWED)

    @cached_property
    def _serial_recordings(self) -> dict[tuple[str, str], Recording]:
        """By label and framework, every serial recording that something is compared with."""
        wanted = {_EVEN: self.base} if len(self.frameworks) > 1 else {}
        for micro_batches in sorted({claim.micro_batches for claim in self._claims.values()}):
            wanted[_uneven_label(micro_batches)] = self._uneven.with_fields(accumulation=micro_batches)
        return {(label, name): Recording(label, name, what) for label, what in wanted.items() for name in self.frameworks}

    def _serial(self, label: str, framework: str) -> Arrays:
        self.recorder.make(self._serial_recordings.values())
        return self.recorder.arrays(self._serial_recordings[label, framework])

    @cached_property
    def _uneven(self) -> Spec:
        """Two epochs whose last batch is about half full, and odd if the batch is even."""
        batch_size = self.base.global_batch_size
        available = len(self._dataset.train)
        examples = min(self.parallel_steps // 2 * batch_size - batch_size // 2 - 1, available)
        while examples % self.replicas == 0 or examples % batch_size < self.replicas:
            examples -= 1  # some replica must get more of the last batch than another
        data = {**self.base.data.model_dump(), "limit": examples}
        return self.base.with_fields(steps=self.parallel_steps, accumulation=1, data=data)

    def _reordered(self, ordered: str, first: int) -> list[Recording]:
        """Serial recordings once more, with each batch reversed. They begin with the framework of this number."""
        names = [self.frameworks[(first + place) % len(self.frameworks)] for place in range(len(self.frameworks))]
        own = [self._serial_recordings[ordered, name] for name in names]
        return [each._replace(label=f"reordered-{ordered}", options=("--reverse-batches",)) for each in own]

    def _measure(self, ordered: str, reordered: Sequence[Recording]) -> Yardstick:
        pairs = [(self._serial(ordered, each.framework), self.recorder.arrays(each)) for each in reordered]
        return tolerances.measure_yardstick(pairs)


def _few_batches(timed: Spec, architecture: Architecture, available: int) -> Spec:
    """The timed run with two whole batches in an epoch and the uneven one, if it has one.

    Replicas that own their images keep the timed parts, unless these leave one of so few batches without an example of a part.
    """
    size = timed.global_batch_size
    examples = min(timed.data.limit or available, available)
    few = timed.with_fields(data=_limited(timed, min(examples, 2 * size + examples % size)), profile_steps=0)
    if few.dask.order == "owned":
        train = sources.load(few.data, seed=few.split_seed, cache_dir=few.paths.cache_dir).train
        try:
            Plan(few, architecture, len(train), labels=train.labels)
        except spec.SpecError:
            return _of_equal_parts(few)
    return few


def _of_equal_parts(what: Spec) -> Spec:
    """A run whose replicas own their images, with parts of equal size and an example of each in every batch."""
    train = sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir).train
    rest = len(train) % what.global_batch_size
    if 0 < rest < min(what.dask.owners or 1, len(train)):
        what = what.with_fields(data=_limited(what, len(train) - rest))
    equal = {"partition": "balanced", "skew": spec.Dask.model_fields["skew"].default, "speeds": ()}
    return what.with_fields(dask={**what.dask.model_dump(), **equal})


def _excused(strict: list[Rung], measured: list[Rung]) -> list[Rung]:
    """What passes only by the yardstick is an exhibit: it is shown with its growth and proves nothing."""
    failed = {rung.name for rung in strict if rung.status == "failed"}
    return [
        rung.model_copy(update={"status": "shown", "reason": f"shown: {rung.reason}"})
        if rung.name in failed and rung.status == "passed"
        else rung
        for rung in measured
    ]


def _uneven_label(micro_batches: int) -> str:
    """Label of serial recordings with an uneven last batch and so many micro-batches."""
    return "serial-uneven" if micro_batches == 1 else f"serial-uneven-{micro_batches}-parts"


def proof_spec(timed: Spec, batch_size: int, steps: int, precision: spec.Precision, level: str = "usual") -> Spec:
    """A timed run as the proof trains it: serially, with its own batch size, length, precision and learning rate.

    Replicas that own their images get parts of equal size: of others, some might have no example in so small a batch.
    """
    made = timed.with_fields(
        epochs=None,
        steps=steps,
        global_batch_size=batch_size,
        precision=precision,
        mode="serial",
        replicas=1,
        communication={},
        profile_steps=0,
        cores=machine.available_cores(),
        batch_norm_statistics="per_replica",
        data=_limited(timed, steps * batch_size),
        optimizer={
            **timed.optimizer.model_dump(),
            "native": False,
            "learning_rate": timed.optimizer.learning_rate * batch_size / timed.global_batch_size,
        },
        # Scaling by replicas would make serial and parallel two different trainings.
        schedule={**timed.schedule.model_dump(), "scaling": "none"},
        switches=level,
        framework_options={},
    )
    return _of_equal_parts(made) if made.dask.order == "owned" else made


def _copies(serial: Mapping[str, Spec], frameworks: Sequence[str], steps: int, first: int, last: int) -> list[Recording]:
    options = "--copies", str(first), str(last), str(steps)
    return [Recording(f"trajectory-copies-{first}-{last}", name, _inline(serial[name]), options) for name in frameworks]


def _follow(
    recorder: Recorder,
    serial: Mapping[str, Spec],
    frameworks: Sequence[str],
    steps: int,
    copies: int,
    known: Trajectories | None = None,
) -> Trajectories:
    """The run and its copies. Those that are known, of as many steps or more, are not made again."""
    found = {name: [each[:steps] for each in known.losses[name]] if known else [] for name in frameworks}
    wanted = _copies(serial, frameworks, steps, min(map(len, found.values())), copies)
    recorder.make(wanted)
    plain = {
        each.framework: found[each.framework] + [list(map(float, losses)) for losses in recorder.arrays(each)["losses"]]
        for each in wanted
    }
    return Trajectories(cores=wanted[0].what.cores, steps=steps, losses=plain)


def _may_have_more_copies(what: Spec, steps: int) -> bool:
    """Whether `MORE_COPIES` of so many steps are affordable."""
    return steps >= LEAST_WITH_MORE and _flops_of_a_step(what) * steps * (1 + MORE_COPIES) <= MORE_FLOPS


def _setting(what: Spec) -> Setting:
    """Batch, first learning rate and images of a run."""
    images = len(sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir).train)
    return Setting(batch_size=what.global_batch_size, learning_rate=what.optimizer.learning_rate, images=images)


def _flops_of_a_step(what: Spec) -> int:
    """Operations of one step on a whole batch."""
    dataset = sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir)
    return work.count(architectures.of(what, len(dataset.class_names), dataset.image_size)).flops * what.global_batch_size


def _inline(what: Spec) -> Spec:
    """A run whose batches are made in the training thread: the same batches without other processes."""
    return what if what.input == "dask" else what.with_fields(input="inline", workers=0)


def _limited(what: Spec, examples: int) -> dict[str, Any]:
    return {**what.data.model_dump(), "limit": min(what.data.limit or math.inf, examples)}
