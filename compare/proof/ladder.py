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
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from threadpoolctl import threadpool_limits

from common import spec
from common.data import sources
from common.data.batches import BatchPlan
from common.data.sources import DatasetSplit
from common.machine import machine
from common.models import architectures, work
from common.models.architectures import Architecture
from common.spec import Spec
from compare.proof import claims, proof_cache, rungs, single_steps, timed_rows, tolerances
from compare.proof.certificate import LOSS_RISES, Proof, Rung, TrainingSetting
from compare.proof.differences import Arrays
from compare.proof.recordings import Recorder, TraceRequest
from compare.proof.tolerances import Yardstick
from compare.running.matrix import Row
from compare.running.twins import Twins

BATCH_SIZE = 16
LEAST_PER_REPLICA = 3
"""Fewest examples of a replica. Fewer could leave a replica without any in the uneven last batch of rung 6."""
STEPS = 50
PARALLEL_STEPS = 20
TIMED_FLOPS = 1.2e11
"""FLOPs of the free-running float64 steps of one recording with the timed batch and rate: some four seconds. A larger model
makes fewer steps. One that could not make `LEAST_TIMED_STEPS` is proved with a smaller batch, as the proof states."""
LEAST_TIMED_STEPS = 20
FREE_FLOPS = 1e11
"""FLOPs of the free-running float64 steps of one recording with the smaller batch: some seven seconds. A large model makes at
least `LEAST_SHARE` of the steps."""
LEAST_SHARE = 0.25
SWITCH_SECONDS = 1e-4
"""Seconds after which the interpreter switches between threads of the referee."""
LOWER_RATES = 2
"""Number of times that the learning rate of the free-running losses may be divided by ten."""
_EVEN_LABEL = "serial"
"""Label of the recordings that compare the frameworks."""


@dataclass(frozen=True)
class ProofRequest:
    """Run that a proof is for, and what the proof compares."""

    timed_spec: Spec
    """The run that the proof is for. The proof sets its own length, precision and mode. Where the timed batch would take too
    long, its batch is smaller. Then its learning rate falls with it, so that as many examples move the weights as far."""
    twins: Twins
    """At least one contestant. All others are compared with the first."""
    modes: Sequence[str]
    """Words of `spec.MODES`. Each is compared with serial if it claims the same mathematics and the machine has it."""
    _: KW_ONLY
    replicas: int
    """Number of replicas of those modes."""
    steps: int | None = None
    """Number of steps of rung 5. None: `STEPS`, or fewer of a large model."""
    precision: spec.Precision = "float64"
    """float64 proves. float32 shows how rounding grows."""
    runs: Sequence[tuple[str, Spec]] = ()
    """(contestant, spec) of all timed runs. Their levels of switches are proved. Empty: the level of `timed_spec`."""

    @classmethod
    def for_rows(cls, rows: Sequence[Row], twins: Twins, *, replicas: int, steps: int | None = None) -> Self:
        """Request a proof for the checked rows of a comparison, see `matrix.check_rows`.

        Serial runs stand for all modes, because switches are the same in all.
        """
        first = rows[0].spec
        on_most_cores = sorted(rows, key=lambda row: -row.spec.cores)
        return cls(
            first.with_fields(hosts=(), cores=min(first.cores, machine.available_cores())),  # the mathematics are the same
            twins,
            timed_rows.available_modes(rows),
            replicas=replicas,
            steps=steps,
            runs=[(row.contestant, spec.build(spec.with_variant(row.spec.model_dump(), "serial", 1))) for row in on_most_cores],
        )

    @property
    def parallel_modes(self) -> tuple[str, ...]:
        return tuple(mode for mode in self.modes if spec.MODES[mode].is_parallel)

    @property
    def why_nothing(self) -> str | None:
        """Reason why the proof would compare nothing. None: it compares something."""
        if self.timed_spec.part != "training":
            return "a part of the training learns nothing"
        if not self.modes:
            return "no row can run here"
        if len(self.twins.names) < 2 and not self.parallel_modes:
            return "one framework alone has nothing to be compared with"
        return None

    @property
    def timed_runs(self) -> Sequence[tuple[str, Spec]]:
        return self.runs or [(name, self.timed_spec) for name in self.twins.names]

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """Levels of switches. The base has the first."""
        return timed_rows.proved_levels(self.twins, self.timed_runs)

    @property
    def base(self) -> Spec:
        """Serial spec that the proof trains."""
        return self._base_and_share[0]

    @property
    def share(self) -> float:
        """Share of the full number of steps that the proof makes."""
        return self._base_and_share[1]

    @cached_property
    def _base_and_share(self) -> tuple[Spec, float]:
        return _base_spec(self.timed_spec, self.replicas, self.steps, self.precision, self.levels[0])

    @cached_property
    def key(self) -> str:
        """Key of the stored proof."""
        options = f"{self.share:.3f} of the steps", self.parallel_modes, self.levels
        return proof_cache.key(self.base, self.twins, options, self.replicas)

    def stored_proof(self) -> Proof | None:
        """Return the stored proof of the same code, versions and spec.

        The modules of a user's own model are not all known, so a stored proof of it may be stale.
        """
        return proof_cache.load(self.key) if self.base.model in spec.MODELS else None

    def claims(self, architecture: Architecture) -> dict[str, Any]:
        """Return the fields of a proof that depend on the timed run itself, which is not in the key."""
        with_switches = [
            name
            for name in self.twins.names
            if not any(timed_rows.covers(self.levels, self.twins, name, run) for other, run in self.timed_runs if other == name)
        ]
        return {
            "not_claimed": claims.reasons_not_claimed(
                self.timed_spec, architecture, self.parallel_modes, self.replicas, with_switches
            ),
            "compared_with": claims.other_baselines(self.timed_spec, architecture, self.parallel_modes),
            "timed": _setting(self.timed_spec),
        }


def prove(
    request: ProofRequest, *, out: Path, progress: Callable[[str], None], remember: bool = True, keep: bool = False
) -> Proof:
    """Climb the ladder for the model, data and optimizer of a spec.

    Args:
        request: what is proved.
        out: folder for specs, recordings and logs.
        progress: called with a message about the current work.
        remember: use a stored proof of the same code, versions and spec, and store this one.
        keep: whether all recordings stay. Else they stay only if a rung failed, as evidence.
    """
    ladder = Ladder(request, out, progress)
    claim_fields = request.claims(ladder.architecture)
    if remember and (stored := request.stored_proof()):
        progress("proof remembered: same code, versions, machine and spec")
        return stored.model_copy(update=claim_fields)
    start = time.perf_counter()
    all_rungs = ladder.climb()
    first_layer = ladder.architecture.layers[0]
    proof = Proof(
        rungs=all_rungs,
        seconds=time.perf_counter() - start,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        levels=list(request.levels),
        proved=_setting(ladder.base),
        rounded=first_layer.rounded if isinstance(first_layer, architectures.Opaque) else "",
        **claim_fields,
    )
    if proof.verdict != "not proved":
        if not keep:
            ladder.recorder.forget_all()
        if remember and request.base.model in spec.MODELS:
            proof_cache.save(request.key, proof)
    return proof


def prove_rows(rows: Sequence[Row], twins: Twins, *, replicas: int, steps: int | None = None, **options: Any) -> Proof:
    """Climb the ladder for the rows of a comparison, see `ProofRequest.for_rows` and `prove`."""
    return prove(ProofRequest.for_rows(rows, twins, replicas=replicas, steps=steps), **options)


def judge_every_step(request: ProofRequest, *, out: Path, progress: Callable[[str], None]) -> list[Rung]:
    """Return rung 8 in float64 alone, at each step, for all synchronous modes that claim serial's mathematics.

    A recording is deleted when it has been judged: it may be large.

    Args:
        request: what is judged.
        out, progress: see `prove`.
    """
    timed_spec = request.timed_spec
    ladder = Ladder(request, out, progress)
    ladder.base = proof_spec(timed_spec, timed_spec.global_batch_size, request.steps or STEPS, "float64")
    ladder.other_levels, ladder.parallel_steps, ladder.every_step = (), PARALLEL_STEPS, True
    all_rungs: list[Rung] = []
    with fast_referee(), contextlib.closing(ladder):
        for step_set in ladder.single_steps():
            ladder.recorder.make([step_set.teacher])
            recordings_at_once = max(2, single_steps.MOST_BYTES // ladder.recorder.path(step_set.teacher).stat().st_size)
            for start in range(0, len(step_set.students), recordings_at_once):
                chunk = step_set.students[start : start + recordings_at_once]
                ladder.recorder.make(chunk)
                all_rungs += ladder.rungs_of_step_set(replace(step_set, students=chunk))
                ladder.recorder.forget(chunk)
            ladder.recorder.forget([step_set.teacher])
    return all_rungs


def is_remembered(rows: Sequence[Row], twins: Twins, *, replicas: int) -> bool:
    """Whether `prove_rows` finds a stored proof."""
    return ProofRequest.for_rows(rows, twins, replicas=replicas).stored_proof() is not None


def _base_spec(timed_spec: Spec, replicas: int, steps: int | None, precision: spec.Precision, level: str) -> tuple[Spec, float]:
    """Return (serial spec that the proof trains; share of the full number of steps that it makes)."""
    as_timed = proof_spec(timed_spec, timed_spec.global_batch_size, steps or STEPS, precision, level)
    is_shared = timed_spec.global_batch_size % replicas == 0 and timed_spec.global_batch_size >= LEAST_PER_REPLICA * replicas
    affordable = int(TIMED_FLOPS / _flops_of_a_step(as_timed))
    if is_shared and affordable >= (steps or LEAST_TIMED_STEPS):
        number = steps or min(STEPS, affordable)
        return proof_spec(timed_spec, timed_spec.global_batch_size, number, precision, level), number / (steps or STEPS)
    base = proof_spec(timed_spec, _batch_size(replicas), steps or STEPS, precision, level)
    if steps is not None or precision == "float32":
        return base, 1.0
    share = min(1.0, max(LEAST_SHARE, FREE_FLOPS / (STEPS * _flops_of_a_step(base))))
    return proof_spec(timed_spec, _batch_size(replicas), round(share * STEPS), precision, level), share


@contextlib.contextmanager
def fast_referee() -> Generator[None]:
    """Set up threads for the referee: they share the steps among them, and BLAS uses one thread for each small product."""
    machine.keep_freed_memory()
    interval = sys.getswitchinterval()
    # A thread waits this long for the interpreter after a short product. At the default of 5 ms a second core gains nothing.
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
    """Parallel mode that claims serial's mathematics, and the serial run that it is compared with."""

    parallel: Spec
    micro_batches: int
    """Number of parts of each batch, whose gradients the serial run adds up."""
    frameworks: tuple[str, ...]
    """Frameworks that have the mode on this machine."""


@dataclass
class _Comparison:
    """Comparison of two recordings. They are read on demand: those of all modes may fill the memory."""

    ordered_label: str
    """Label of the serial recordings that the yardstick is measured against."""
    strict_steps: int
    rungs: Callable[[Yardstick | None], list[Rung]]

    @cached_property
    def strict_rungs(self) -> list[Rung]:
        """Rungs with the plain tolerances."""
        return self.rungs(None)

    @property
    def needs_yardstick(self) -> bool:
        return tolerances.may_be_rounding(self.strict_rungs, self.strict_steps)


@dataclass(frozen=True)
class _StepSet:
    """Recordings of the same drawn steps for rung 8, from the states of the first framework's serial run."""

    teacher: TraceRequest
    students: tuple[TraceRequest, ...]
    step_numbers: list[int]
    plan: BatchPlan
    name_suffix: str = ""
    """Suffix of the rungs' names."""


class Ladder:
    """The rungs of one request.

    Args:
        request: what is proved.
        out, progress: see `prove`.
    """

    def __init__(self, request: ProofRequest, out: Path, progress: Callable[[str], None]) -> None:
        self.base, self.twins, self.modes = request.base, request.twins, request.parallel_modes
        self.frameworks = request.twins.names
        self.replicas, self.progress = request.replicas, progress
        self.other_levels = request.levels[1:]
        """Levels of switches besides that of the base."""
        self.parallel_steps = 2 * math.ceil(request.share * PARALLEL_STEPS / 2)
        self.every_step = False
        """Whether all float64 steps are judged, also those of a large model."""
        self.recorder = Recorder(request.twins, out, progress)
        self._first_rate = self.base.optimizer.learning_rate
        self._judges: dict[str, single_steps.StepJudge] = {}
        """Judges of single steps, by the teacher's label."""
        self._rung_futures: dict[Path, Future[list[Rung]]] = {}
        """Rungs of single steps, by recording. They are judged while other recordings are made."""
        self._judged_teachers: set[str] = set()
        self._judge_pool = ThreadPoolExecutor(1)

    def climb(self) -> list[Rung]:
        """Return all rungs."""
        with fast_referee(), contextlib.closing(self):
            self.record()
            if self.settle_learning_rate():
                self.record()
            step_sets = self.single_steps()
            compared = len(self._serial_recordings) + sum(len(self._mode_requests(mode)) for mode in self._claims)
            self.progress(f"proof, rungs 1 to 7: whole runs of {compared} recordings are compared")
            all_rungs = self._whole_runs()
            for step_set in step_sets:
                steps = f"single steps of {len(self._to_judge(step_set))} recordings are judged"
                self.progress(f"proof, rung 8 in {step_set.teacher.spec.precision}{step_set.name_suffix}: {steps}")
                all_rungs += self.rungs_of_step_set(step_set)
            return all_rungs

    def close(self) -> None:
        """Stop judging."""
        for judge in self._judges.values():
            judge.stop()
        self._judge_pool.shutdown(wait=False, cancel_futures=True)

    def record(self) -> None:
        """Make the recordings that the rungs need, in as few processes as possible."""
        step_sets = self.single_steps()

        def judge_recorded() -> None:
            for step_set in step_sets:
                if self._learning_rate_is_settled and self.recorder.is_made(step_set.teacher):
                    for recording in filter(self.recorder.is_made, self._to_judge(step_set)):
                        self._judge(step_set, recording)

        self.recorder.make(
            [
                *self._serial_recordings.values(),
                *(step_set.teacher for step_set in step_sets),
                *(request for mode in self._claims for request in self._mode_requests(mode)),
                *(student for step_set in step_sets for student in step_set.students),
            ],
            judge_recorded,
        )

    @cached_property
    def _num_images(self) -> int:
        """Number of images of the data set's training split."""
        return len(_training_split(self.base))

    @cached_property
    def architecture(self) -> Architecture:
        return sources.architecture_of(self.base)

    def settle_learning_rate(self) -> bool:
        """Divide the learning rate by ten until the free-running loss falls. Differences grow with a loss that rises.

        Returns:
            Whether the learning rate has changed.
        """
        for _ in range(LOWER_RATES):
            if not self._loss_rises:
                break
            settings = self.base.optimizer.model_dump()
            settings["learning_rate"] /= 10
            self.base = self.base.with_fields(optimizer=settings)
            self.progress(f"proof: {self.base.model}: the loss rises; the learning rate becomes {settings['learning_rate']:g}")
            for name in ("_serial_recordings", "_uneven", "_claims"):
                self.__dict__.pop(name, None)
        return self.base.optimizer.learning_rate != self._first_rate

    @property
    def _learning_rate_is_settled(self) -> bool:
        """Whether it is known that `settle_learning_rate` keeps the learning rate."""
        return all(map(self.recorder.is_made, self._serial_recordings.values())) and not self._loss_rises

    @property
    def _loss_rises(self) -> bool:
        """Whether the loss does not fall during rung 5. False for at most ten steps, which are too few to tell."""
        if len(self.frameworks) < 2 or (self.base.steps or 0) <= 10:
            return False
        losses = self._serial_arrays(_EVEN_LABEL, self.frameworks[0])["loss"]
        return not losses[-5:].mean() < losses[:5].mean()

    def _mark_exhibit(self, rung: Rung) -> Rung:
        """Mark a passed rung of free-running losses as shown if the loss rises, or add its lowered learning rate."""
        if not rung.is_twin_losses or rung.status != "passed":
            return rung
        if self._loss_rises:
            reason = f"shown: {LOSS_RISES}, and such a run proves nothing; {rung.reason}"
            return rung.model_copy(update={"status": "shown", "reason": reason})
        if self.base.optimizer.learning_rate == self._first_rate:
            return rung
        return rung.model_copy(update={"where": f"{rung.where}, at learning rate {self.base.optimizer.learning_rate:g}"})

    def _whole_runs(self) -> list[Rung]:
        """Return rungs 1 to 7."""
        comparisons = [
            *self._twin_comparisons(),
            *(comparison for mode in self._claims for comparison in self._mode_comparisons(mode)),
        ]
        rungs_by_comparison = [comparison.strict_rungs for comparison in comparisons]
        # The model amplifies rounding, so the yardstick of one framework is mostly enough. The frameworks take turns.
        for frameworks in sorted({1, len(self.frameworks)}):
            doubtful = [
                number
                for number, comparison in enumerate(comparisons)
                if comparison.needs_yardstick and any(rung.status == "failed" for rung in rungs_by_comparison[number])
            ]
            labels = dict.fromkeys(comparisons[number].ordered_label for number in doubtful)
            reordered = {label: self._reordered(label, first)[:frameworks] for first, label in enumerate(labels)}
            self.recorder.make([recording for recordings in reordered.values() for recording in recordings])
            yardsticks = {label: self._measure_yardstick(label, recordings) for label, recordings in reordered.items()}
            for number in doubtful:
                comparison = comparisons[number]
                rungs_by_comparison[number] = _mark_excused(
                    comparison.strict_rungs, comparison.rungs(yardsticks[comparison.ordered_label])
                )
        all_rungs = [rung for comparison_rungs in rungs_by_comparison for rung in comparison_rungs]
        return list(map(self._mark_exhibit, all_rungs))

    def _twin_comparisons(self) -> list[_Comparison]:
        """Return comparisons for rungs 1 to 5 and 7: the serial run of every other framework against that of the first."""
        first, *others = self.frameworks

        def compare(other: str, yardstick: Yardstick | None) -> list[Rung]:
            recordings = self._serial_arrays(_EVEN_LABEL, first), self._serial_arrays(_EVEN_LABEL, other)
            return rungs.compare_serials(self.base, self.architecture, *recordings, yardstick)

        return [_Comparison(_EVEN_LABEL, tolerances.STRICT_STEPS, partial(compare, other)) for other in others]

    def _mode_comparisons(self, mode: str) -> list[_Comparison]:
        """Return comparisons for rung 6: a parallel mode against serial in the same framework, with an uneven last batch."""
        claim = self._claims[mode]
        ordered_label, strict_steps = (
            _uneven_label(claim.micro_batches),
            tolerances.strict_steps(claim.parallel, self.architecture),
        )

        def compare(request: TraceRequest, yardstick: Yardstick | None) -> list[Rung]:
            recordings = request.framework, self._serial_arrays(ordered_label, request.framework), self.recorder.arrays(request)
            return rungs.compare_mode(claim.parallel, self.architecture, *recordings, yardstick)

        return [_Comparison(ordered_label, strict_steps, partial(compare, request)) for request in self._mode_requests(mode)]

    def _mode_requests(self, mode: str) -> list[TraceRequest]:
        claim = self._claims[mode]
        return [TraceRequest(mode, name, claim.parallel) for name in claim.frameworks]

    @cached_property
    def _claims(self) -> dict[str, _Claim]:
        """Claims by mode, without modes of other mathematics than serial's, and without those that no framework has here."""
        claims_by_mode: dict[str, _Claim] = {}
        for mode in self.modes:
            # BatchNorm has statistics of each micro-batch. A model without BatchNorm is compared with plain serial.
            has_part_statistics = self.architecture.has_batch_norm and spec.MODES[mode].cuts_batches
            statistics = "synchronised" if self.architecture.has_batch_norm and not has_part_statistics else "per_replica"
            values = {**self._uneven.model_dump(), "batch_norm_statistics": statistics}
            parallel = spec.build(spec.with_variant(values, mode, self.replicas))
            if parallel.not_serial_because is not None or (has_part_statistics and parallel.traits.is_nested):
                continue
            if architectures.why_not_divisible(parallel) is not None:
                continue
            available_frameworks = tuple(
                name for name in self.frameworks if spec.check_against(parallel, self.twins.describe(name)) is None
            )
            if available_frameworks:
                claims_by_mode[mode] = _Claim(
                    parallel, parallel.pipeline.micro_batches if has_part_statistics else 1, available_frameworks
                )
        return claims_by_mode

    def single_steps(self) -> list[_StepSet]:
        """Return the step sets of rung 8, for each level of switches."""
        return [steps for level in (self.base.switches, *self.other_levels) for steps in self._step_sets_for(level)]

    def _step_sets_for(self, level: str) -> Iterator[_StepSet]:
        """Yield single steps over many uneven epochs: many in float64, a few in float32.

        Args:
            level: level of switches. If the other rungs have another one, the names of these rungs show it.
        """
        name_suffix, label_suffix = ("", "") if level == self.base.switches else (f", switches {level}", f"-{level}")
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
            plan = BatchPlan(serial, self.architecture, min(serial.data.limit or self._num_images, self._num_images))
            drawn = (
                list(range(plan.total_steps)) if self.every_step else single_steps.drawn_steps(serial, self.architecture, plan)
            )
            options = "--drawn", ",".join(map(str, drawn))
            label = f"single-steps-{serial.precision}-{micro_batches}-parts{label_suffix}"
            teacher = TraceRequest(label, first, serial, options)
            students = tuple(
                TraceRequest(f"{label}-{run_spec.variant}", name, run_spec, options, teacher)
                for name, run_spec in [*((name, serial) for name in others), *parallel]
                if spec.check_against(run_spec, self.twins.describe(name)) is None
            )
            yield _StepSet(teacher, students, drawn, plan, name_suffix)

    def rungs_of_step_set(self, step_set: _StepSet) -> list[Rung]:
        """Return the rungs of single steps."""
        futures = [self._judge(step_set, request) for request in self._to_judge(step_set)]
        self._judged_teachers.add(step_set.teacher.label)
        return [
            rung.model_copy(update={"name": rung.name + step_set.name_suffix}) for future in futures for rung in future.result()
        ]

    def _to_judge(self, step_set: _StepSet) -> tuple[TraceRequest, ...]:
        """Return the recordings to judge: without the teacher in float64, where it is the truth.

        In float32 it is judged once.
        """
        teacher_is_truth = step_set.teacher.spec.precision == "float64" or step_set.teacher.label in self._judged_teachers
        return step_set.students if teacher_is_truth else (step_set.teacher, *step_set.students)

    def _judge(self, step_set: _StepSet, request: TraceRequest) -> Future[list[Rung]]:
        """Return the future rungs of one recording of single steps, which another thread judges."""
        path = self.recorder.path(request)
        if path not in self._rung_futures:
            judge, run_spec, name = self._judge_of(step_set), request.spec, request.framework
            self._rung_futures[path] = self._judge_pool.submit(lambda: judge.rungs(run_spec, self.recorder.open(request), name))
        return self._rung_futures[path]

    def _judge_of(self, step_set: _StepSet) -> single_steps.StepJudge:
        label = step_set.teacher.label
        if label not in self._judges:
            teacher = self.recorder.open(step_set.teacher)  # states of float64 steps may fill the memory
            self._judges[label] = single_steps.StepJudge(self.architecture, teacher, step_set.step_numbers, step_set.plan)
        return self._judges[label]

    @cached_property
    def _serial_recordings(self) -> dict[tuple[str, str], TraceRequest]:
        """Serial recordings that others are compared with, by label and framework."""
        specs_by_label = {_EVEN_LABEL: self.base} if len(self.frameworks) > 1 else {}
        for micro_batches in sorted({claim.micro_batches for claim in self._claims.values()}):
            specs_by_label[_uneven_label(micro_batches)] = self._uneven.with_fields(accumulation=micro_batches)
        return {
            (label, name): TraceRequest(label, name, run_spec)
            for label, run_spec in specs_by_label.items()
            for name in self.frameworks
        }

    def _serial_arrays(self, label: str, framework: str) -> Arrays:
        self.recorder.make(self._serial_recordings.values())
        return self.recorder.arrays(self._serial_recordings[label, framework])

    @cached_property
    def _uneven(self) -> Spec:
        """Spec of two epochs whose last batch is about half full, and odd if the batch is even."""
        batch_size = self.base.global_batch_size
        examples = min(self.parallel_steps // 2 * batch_size - batch_size // 2 - 1, self._num_images)
        while examples % self.replicas == 0 or examples % batch_size < self.replicas:
            examples -= 1  # some replica must get more of the last batch than another
        data = {**self.base.data.model_dump(), "limit": examples}
        return self.base.with_fields(steps=self.parallel_steps, accumulation=1, data=data)

    def _reordered(self, ordered_label: str, first: int) -> list[TraceRequest]:
        """Return requests for serial recordings with each batch reversed, starting with the framework of index `first`."""
        names = [self.frameworks[(first + place) % len(self.frameworks)] for place in range(len(self.frameworks))]
        requests = [self._serial_recordings[ordered_label, name] for name in names]
        return [request._replace(label=f"reordered-{ordered_label}", options=("--reverse-batches",)) for request in requests]

    def _measure_yardstick(self, ordered_label: str, reordered: Sequence[TraceRequest]) -> Yardstick:
        pairs = [
            (self._serial_arrays(ordered_label, request.framework), self.recorder.arrays(request)) for request in reordered
        ]
        return tolerances.measure_yardstick(pairs)


def _with_equal_parts(run_spec: Spec) -> Spec:
    """Give replicas that own their images parts of equal size, with an example of each part in every batch."""
    images = len(_training_split(run_spec))
    rest = images % run_spec.global_batch_size
    if 0 < rest < min(run_spec.dask.owners or 1, images):
        run_spec = run_spec.with_fields(data=_limited(run_spec, images - rest))
    equal = {"partition": "balanced", "skew": spec.Dask.model_fields["skew"].default, "speeds": ()}
    return run_spec.with_fields(dask={**run_spec.dask.model_dump(), **equal})


def _mark_excused(strict: list[Rung], with_yardstick: list[Rung]) -> list[Rung]:
    """Mark rungs that pass only by the yardstick as shown: they prove nothing."""
    return [
        rung.model_copy(update={"status": "shown", "reason": f"shown: {rung.reason}"})
        if (before.status, rung.status) == ("failed", "passed")
        else rung
        for before, rung in zip(strict, with_yardstick, strict=True)
    ]


def _uneven_label(micro_batches: int) -> str:
    """Return the label of serial recordings with an uneven last batch and so many micro-batches."""
    return "serial-uneven" if micro_batches == 1 else f"serial-uneven-{micro_batches}-parts"


def proof_spec(timed_spec: Spec, batch_size: int, steps: int, precision: spec.Precision, level: str = "usual") -> Spec:
    """Return the proof's spec of a timed run: serial, with another batch size, length, precision and learning rate.

    Replicas that own their images get parts of equal size. Else some might have no example in so small a batch.
    """
    serial_spec = timed_spec.with_fields(
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
        data=_limited(timed_spec, steps * batch_size),
        optimizer={
            **timed_spec.optimizer.model_dump(),
            "native": False,
            "learning_rate": timed_spec.optimizer.learning_rate * batch_size / timed_spec.global_batch_size,
        },
        # Scaling by replicas would make serial and parallel two different trainings.
        schedule={**timed_spec.schedule.model_dump(), "scaling": "none"},
        switches=level,
        framework_options={},
    )
    return _with_equal_parts(serial_spec) if serial_spec.dask.order == "owned" else serial_spec


def _setting(run_spec: Spec) -> TrainingSetting:
    """Return the batch size, first learning rate and number of images of a run."""
    return TrainingSetting(
        batch_size=run_spec.global_batch_size,
        learning_rate=run_spec.optimizer.learning_rate,
        images=len(_training_split(run_spec)),
    )


def _training_split(run_spec: Spec) -> DatasetSplit:
    return sources.load(run_spec.data, seed=run_spec.split_seed, cache_dir=run_spec.paths.cache_dir).train


def _flops_of_a_step(run_spec: Spec) -> int:
    """Return the FLOPs of one step on a whole batch."""
    return work.count(sources.architecture_of(run_spec)).flops * run_spec.global_batch_size


def _limited(run_spec: Spec, examples: int) -> dict[str, Any]:
    return {**run_spec.data.model_dump(), "limit": min(run_spec.data.limit or math.inf, examples)}
