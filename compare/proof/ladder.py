"""The ladder of proof: do all frameworks and all synchronous modes train the same network?

Each twin records a few steps through the code that is timed (`python -m <twin> trace`). The ladder compares the recordings
rung by rung. Float64 proves sameness, because only rounding is left there.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from common import spec
from common.data import sources
from common.data.batches import Plan
from common.data.sources import Dataset
from common.machine import machine
from common.models import architectures, work
from common.models.architectures import Architecture
from common.spec import Spec
from compare.execution import launch
from compare.execution.matrix import Row
from compare.proof import claims, remembered, rungs, single_steps, timed_rows, tolerances
from compare.proof.certificate import RISES, Proof, Rung, Setting
from compare.proof.differences import Arrays
from compare.proof.recordings import Recorder, Recording
from compare.proof.tolerances import Yardstick

BATCH_SIZE = 16
LEAST_PER_REPLICA = 3
"""Fewer examples would leave a replica without any in the uneven last batch of rung 6."""
STEPS = 50
PARALLEL_STEPS = 20
TIMED_FLOPS = 1.2e11
"""Of the free-running float64 steps of one recording with the timed batch and rate: some four seconds. They pay for fewer steps
of a larger model. One that could not make `LEAST_TIMED` is proved with a smaller batch, and the proof says so."""
LEAST_TIMED = 20
FREE_FLOPS = 1e11
"""The same of the smaller batch: some seven seconds. A large model makes `FEWER` of its steps at least."""
FEWER = 0.25
SWITCH_SECONDS = 1e-4
"""Between two threads of the referee."""
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
    runs: Sequence[tuple[str, Spec]] = (),
    remember: bool = True,
    keep: bool = False,
) -> Proof:
    """Climb the ladder for the model, data and optimizer of a spec.

    Args:
        timed: the run that the proof is for. The proof sets its own length, precision and mode. Where the timed batch would
            take too long, its batch is smaller. Then its learning rate falls with it, so that as many examples move the weights
            as far.
        frameworks: at least one. All others are compared with the first.
        modes: of `spec.VARIANTS`. Each is compared with serial if it claims the same mathematics and the machine has it.
        replicas: of those modes.
        out: folder for specs, recordings and logs.
        progress: called with what is being done.
        steps: of rung 5. None: `STEPS`, or fewer of a large model.
        precision: float64 proves. float32 shows how rounding grows.
        runs: (framework, spec) of all that is timed. Their levels of switches are proved. Empty: that of `timed`.
        remember: use a stored proof of the same code, versions and spec, and store this one.
        keep: all recordings. Else they stay only where a rung failed: they are the evidence.

    Raises:
        LaunchError: a twin could not record.
    """
    asked = _asked(timed, frameworks, modes, replicas, steps, precision, runs)
    ladder = _Ladder(asked.base, tuple(frameworks), asked.modes, replicas, asked.levels[1:], out, progress)
    ladder.parallel_steps = 2 * math.ceil(asked.share * PARALLEL_STEPS / 2)
    # What is claimed depends on the timed run itself, which the key leaves out.
    with_switches = [
        name
        for name in frameworks
        if not any(timed_rows.is_of(asked.levels, name, run) for other, run in runs or [(name, timed)] if other == name)
    ]
    claimed: dict[str, Any] = {
        "not_claimed": claims.not_claimed(timed, ladder.architecture, asked.modes, replicas, with_switches),
        "compared_with": claims.compared_with(timed, ladder.architecture, asked.modes),
        "timed": _setting(timed),
    }
    # Nobody knows all the modules that a user's own model is made of.
    remember = remember and asked.base.model in spec.MODELS
    if remember and (proof := remembered.load(asked.key)):
        progress("proof remembered: same code, versions, machine and spec")
        return proof.model_copy(update=claimed)
    start = time.perf_counter()
    with judging(), contextlib.closing(ladder):
        ladder.record()
        if ladder.settle():
            ladder.record()
        single = ladder.single_steps()
        climbed = ladder.climb()
        for each in single:
            climbed += ladder.judged(each)
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    first_layer = ladder.architecture.layers[0]
    proof = Proof(
        rungs=climbed,
        seconds=time.perf_counter() - start,
        made_at=made_at,
        levels=list(asked.levels),
        proved=_setting(ladder.base),
        rounded=first_layer.rounded if isinstance(first_layer, architectures.Opaque) else "",
        **claimed,
    )
    if proof.verdict != "not proved":
        if not keep:
            ladder.recorder.forget_all()
        if remember:
            remembered.save(asked.key, proof)
    return proof


def prove_rows(rows: Sequence[Row], frameworks: Sequence[str], *, replicas: int, **options: Any) -> Proof:
    """Climb the ladder for the rows of a comparison.

    Args:
        rows: judged, see `matrix.check_rows`.
        frameworks, replicas, options: see `prove`.

    Raises:
        LaunchError: a twin could not record.
    """
    return prove(**_of_rows(rows, frameworks, replicas), **options)


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
    ladder = _Ladder(base, tuple(frameworks), parallel, replicas, (), out, progress, every_step=True)
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
    asked = _asked(**_of_rows(rows, frameworks, replicas), steps=None, precision="float64")
    return asked.base.model in spec.MODELS and remembered.load(asked.key) is not None


class _Asked(NamedTuple):
    """What a proof is asked for."""

    base: Spec
    """What it trains."""
    share: float
    """Of the steps, that it makes."""
    modes: tuple[str, ...]
    """Parallel ones."""
    levels: tuple[str, ...]
    """Of switches. The base has the first."""
    key: str
    """Under which the proof is stored."""


def _asked(
    timed: Spec,
    frameworks: Sequence[str],
    modes: Sequence[str],
    replicas: int,
    steps: int | None,
    precision: spec.Precision,
    runs: Sequence[tuple[str, Spec]],
) -> _Asked:
    levels = timed_rows.levels(runs or [(name, timed) for name in frameworks])
    parallel = tuple(mode for mode in modes if mode != "serial")
    base, share = _base(timed, replicas, steps, precision, levels[0])
    key = remembered.key(base, frameworks, (f"{share:.3f} of the steps", parallel, levels), replicas)
    return _Asked(base, share, parallel, levels, key)


def _of_rows(rows: Sequence[Row], frameworks: Sequence[str], replicas: int) -> dict[str, Any]:
    """The arguments of `prove` for rows. Serial runs speak for the modes: switches are the same in all."""
    first = rows[0].spec
    on_most_cores = sorted(rows, key=lambda row: -row.spec.cores)
    return {
        "timed": first.with_fields(hosts=(), cores=min(first.cores, machine.available_cores())),  # the mathematics are the same
        "frameworks": frameworks,
        "modes": timed_rows.modes_of(rows),
        "replicas": replicas,
        "runs": [(row.contestant, spec.build(spec.with_variant(row.spec.model_dump(), "serial", 1))) for row in on_most_cores],
    }


def base_of(rows: Sequence[Row], frameworks: Sequence[str], replicas: int) -> Spec:
    """What the proof of these rows trains."""
    return _asked(**_of_rows(rows, frameworks, replicas), steps=None, precision="float64").base


def _base(timed: Spec, replicas: int, steps: int | None, precision: spec.Precision, level: str) -> tuple[Spec, float]:
    """(what the proof trains; the share of the steps that it makes)."""
    as_timed = proof_spec(timed, timed.global_batch_size, steps or STEPS, precision, level)
    is_shared = timed.global_batch_size % replicas == 0 and timed.global_batch_size >= LEAST_PER_REPLICA * replicas
    affordable = int(TIMED_FLOPS / _flops_of_a_step(as_timed))
    if is_shared and affordable >= (steps or LEAST_TIMED):
        number = steps or min(STEPS, affordable)
        return proof_spec(timed, timed.global_batch_size, number, precision, level), number / (steps or STEPS)
    base = proof_spec(timed, _batch_size(replicas), steps or STEPS, precision, level)
    if steps is not None or precision == "float32":
        return base, 1.0
    share = min(1.0, max(FEWER, FREE_FLOPS / (STEPS * _flops_of_a_step(base))))
    return proof_spec(timed, _batch_size(replicas), round(share * STEPS), precision, level), share


@contextlib.contextmanager
def judging() -> Generator[None]:
    """What the referee needs to be quick: threads that share out the steps, and not each product of small matrices."""
    machine.keep_freed_memory()
    interval = sys.getswitchinterval()
    # A thread that comes from a short product waits so long for the interpreter: 5 ms undo what a second core brings.
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        sys.setswitchinterval(interval)
        machine.trim_heap()


def _batch_size(replicas: int) -> int:
    return max(BATCH_SIZE // replicas, LEAST_PER_REPLICA) * replicas


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
    addition: str = ""
    """To the rungs' names."""


@dataclass
class _Ladder:
    base: Spec
    frameworks: tuple[str, ...]
    modes: tuple[str, ...]
    """Parallel ones."""
    replicas: int
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
                if self._is_settled and self.recorder.is_made(each.teacher):
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
            if parallel.not_serial_because is not None or (own_statistics and parallel.mode == "hybrid"):
                continue
            if architectures.cannot_cut(parallel) is not None:
                continue
            here = tuple(name for name in self.frameworks if spec.check_against(parallel, launch.describe(name)) is None)
            if here:
                found[mode] = _Claim(parallel, parallel.pipeline.micro_batches if own_statistics else 1, here)
        return found

    def single_steps(self) -> list[_SingleSteps]:
        """Rung 8 of the proof's own runs, with each level of switches."""
        return [steps for level in (self.base.switches, *self.other_levels) for steps in self._steps_of(level)]

    def _steps_of(self, level: str) -> Iterator[_SingleSteps]:
        """Single steps over many uneven epochs: all of them in float64, a few in float32.

        `level` of switches may be another one than that of the other rungs. Then the rungs are named by it.
        """
        addition, of_label = ("", "") if level == self.base.switches else (f", switches {level}", f"-{level}")
        first, *others = self.frameworks
        for micro_batches in sorted({1, *(claim.micro_batches for claim in self._claims.values())}):
            serial = self._uneven.with_fields(accumulation=micro_batches, steps=self.base.steps, switches=level)
            parallel = [
                (name, claim.parallel.with_fields(steps=self.base.steps, switches=level))
                for claim in self._claims.values()
                if claim.micro_batches == micro_batches
                for name in claim.frameworks
            ]
            if serial.precision == "float64" and not others and not parallel:
                continue  # nothing to compare the first framework with
            available = len(self._dataset.train)
            plan = Plan(serial, self.architecture, min(serial.data.limit or available, available))
            drawn = list(range(plan.total_steps)) if self.every_step else single_steps.drawn(serial, self.architecture, plan)
            options = "--drawn", ",".join(map(str, drawn))
            label = f"single-steps-{serial.precision}-{micro_batches}-parts{of_label}"
            teacher = Recording(label, first, serial, options)
            students = tuple(
                Recording(f"{label}-{what.variant}", name, what, options, teacher)
                for name, what in [*((name, serial) for name in others), *parallel]
                if spec.check_against(what, launch.describe(name)) is None
            )
            yield _SingleSteps(teacher, students, drawn, plan, addition)

    def judged(self, steps: _SingleSteps) -> list[Rung]:
        """The rungs of single steps."""
        futures = [self._judge(steps, each) for each in self._to_judge(steps)]
        self._teachers_shown.add(steps.teacher.label)
        return [rung.model_copy(update={"name": rung.name + steps.addition}) for each in futures for rung in each.result()]

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


def _setting(what: Spec) -> Setting:
    """Batch, first learning rate and images of a run."""
    images = len(sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir).train)
    return Setting(batch_size=what.global_batch_size, learning_rate=what.optimizer.learning_rate, images=images)


def _flops_of_a_step(what: Spec) -> int:
    """Operations of one step on a whole batch."""
    dataset = sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir)
    return work.count(architectures.of(what, len(dataset.class_names), dataset.image_size)).flops * what.global_batch_size


def _limited(what: Spec, examples: int) -> dict[str, Any]:
    return {**what.data.model_dump(), "limit": min(what.data.limit or math.inf, examples)}
