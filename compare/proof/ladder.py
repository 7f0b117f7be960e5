"""The ladder of proof: do all frameworks and all synchronous modes train the same network?

Each twin records a few steps through the code that is timed (`python -m <twin> trace`). The ladder compares the recordings
rung by rung. Float64 proves sameness, because only rounding is left there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

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
from compare.execution.store import Trajectories
from compare.judgement import growth
from compare.proof import claims, recordings, remembered, rungs, single_steps, tolerances
from compare.proof.certificate import Proof, Rung
from compare.proof.differences import Arrays
from compare.proof.tolerances import Yardstick

BATCH_SIZE = 16
LEAST_PER_REPLICA = 3
"""Fewer examples would leave a replica without any in the uneven last batch of rung 6."""
STEPS = 50
PARALLEL_STEPS = 20
COPIES = 3
"""Of the timed run in each framework. If the frameworks differ by rounding alone, their distance exceeds that of all six copies
to their own run about once in seven. Then MORE_COPIES are made, and it is exceeded about once in nineteen."""
MORE_COPIES = 9
LEAST_FOLLOWED, MOST_FOLLOWED = 10, 100
FOLLOWED_FLOPS = 1.5e12
"""Of a run and its copies in one framework: some ten seconds on two cores."""
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
    steps: int = STEPS,
    precision: spec.Precision = "float64",
    timed_runs: Mapping[str, Spec] | None = None,
    others: Sequence[Mapping[str, Spec]] = (),
    remember: bool = True,
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
        steps: of rung 5.
        precision: float64 proves. float32 shows how rounding grows.
        timed_runs: by framework, its serial run as it is timed, with its switches. Their first steps are compared too.
        others: such runs with other switches or input workers. Single steps of these are compared too.
        remember: use a stored proof of the same code, versions and spec, and store this one.

    Raises:
        LaunchError: a twin could not record.
    """
    parallel = [mode for mode in modes if mode != "serial"]
    timed_runs = timed_runs or {}
    base, key = _base_and_key(timed, frameworks, parallel, replicas, [timed_runs, *others], steps, precision)
    remember = remember and base.model in spec.MODELS  # nobody knows all the modules that a user's own model is made of
    ladder = _Ladder(base, tuple(frameworks), tuple(parallel), replicas, out, progress)
    # What is claimed depends on the timed run itself, which the key leaves out.
    with_switches = [
        name for name in frameworks if any(claims.has_switches(runs.get(name, timed)) for runs in (timed_runs, *others))
    ]
    claimed: dict[str, Any] = {
        "not_claimed": claims.not_claimed(timed, ladder.architecture, parallel, with_switches),
        "compared_with": claims.compared_with(timed, ladder.architecture, parallel),
    }
    if remember and (proof := remembered.load(key)):
        progress("proof remembered: same code, versions, machine and spec")
        return proof.model_copy(update=claimed)
    start = time.perf_counter()
    ladder.settle()
    climbed = [
        *ladder.twins(),
        *(rung for mode in parallel for rung in ladder.mode(mode)),
        *(ladder.timed(timed_runs) if timed_runs else ladder.proved()),
        *(_named(rung, runs) for number, runs in enumerate(others, start=2) for rung in ladder.timed(runs, number)),
    ]
    followed, copies = ladder.trajectories(timed_runs)
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    proof = Proof(
        rungs=[*climbed, *followed],
        seconds=time.perf_counter() - start,
        made_at=made_at,
        trajectories=copies,
        **claimed,
    )
    if remember and proof.verdict == "proved":
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
    *others, timed_runs = timed_runs_of(rows)
    return prove(_timed(rows), frameworks, modes_of(rows), replicas=replicas, timed_runs=timed_runs, others=others, **options)


def is_remembered(rows: Sequence[Row], frameworks: Sequence[str], *, replicas: int) -> bool:
    """Whether `prove_rows` finds a stored proof."""
    *others, timed_runs = timed_runs_of(rows)
    parallel = [mode for mode in modes_of(rows) if mode != "serial"]
    base, key = _base_and_key(_timed(rows), frameworks, parallel, replicas, [timed_runs, *others])
    return base.model in spec.MODELS and remembered.load(key) is not None


def _base_and_key(
    timed: Spec,
    frameworks: Sequence[str],
    parallel: Sequence[str],
    replicas: int,
    timed_runs: Sequence[Mapping[str, Spec]],
    steps: int = STEPS,
    precision: spec.Precision = "float64",
) -> tuple[Spec, str]:
    """The spec of a proof, and the key of the stored proof."""
    batch_size = max(BATCH_SIZE // replicas, LEAST_PER_REPLICA) * replicas
    base = proof_spec(timed, batch_size, steps, precision)
    return base, remembered.key(base, frameworks, parallel, replicas, timed_runs)


def _timed(rows: Sequence[Row]) -> Spec:
    base = rows[0].spec
    return base.with_fields(hosts=(), cores=min(base.cores, machine.available_cores()))  # the mathematics are the same here


def timed_runs_of(rows: Sequence[Row]) -> list[dict[str, Spec]]:
    """By framework, the serial run of every combination of switches and input workers. The one that is timed comes last."""
    alike: dict[tuple[str, int], dict[str, Spec]] = {}
    for row in rows:  # those on most cores come last
        runs = alike.setdefault((row.spec.switches, row.spec.workers), {})
        if row.spec.mode == "serial":
            runs[row.contestant] = row.spec
        elif row.contestant not in runs:
            runs[row.contestant] = spec.build(spec.with_variant(row.spec.model_dump(), "serial", 1))
    return list(alike.values())


def _named(rung: Rung, runs: Mapping[str, Spec]) -> Rung:
    what = next(iter(runs.values()))
    return rung.model_copy(update={"name": f"{rung.name}, switches {what.switches}, {what.workers} workers"})


def modes_of(rows: Sequence[Row]) -> list[str]:
    """The modes that run here, each once."""
    return list(dict.fromkeys(row.spec.variant for row in rows if row.unavailable is None))


@dataclass(frozen=True)
class _Claim:
    """A parallel mode that claims to be serial's mathematics, and what it is compared with."""

    parallel: Spec
    micro_batches: int
    """Of each batch, whose gradients serial adds up."""
    frameworks: tuple[str, ...]
    """Those that have the mode on this machine."""


@dataclass
class _Ladder:
    base: Spec
    frameworks: tuple[str, ...]
    modes: tuple[str, ...]
    """Parallel ones."""
    replicas: int
    out: Path
    progress: Callable[[str], None]
    _yardsticks: dict[int, Yardstick] = field(default_factory=dict[int, Yardstick])

    def __post_init__(self) -> None:
        self._first_rate = self.base.optimizer.learning_rate

    @cached_property
    def _dataset(self) -> Dataset:
        return sources.load(self.base.data, seed=self.base.split_seed, cache_dir=self.base.paths.cache_dir)

    @cached_property
    def architecture(self) -> Architecture:
        return architectures.resolve(self.base.model, len(self._dataset.class_names), self._dataset.image_size)

    def settle(self) -> None:
        """Divide the learning rate by ten until the free-running loss falls. A loss that rises grows any difference with it."""
        for _ in range(LOWER_RATES):
            if not self._rises:
                return
            settings = self.base.optimizer.model_dump()
            settings["learning_rate"] /= 10
            self.base = self.base.with_fields(optimizer=settings)
            self.progress(f"proof: {self.base.model}: the loss rises; the learning rate becomes {settings['learning_rate']:g}")
            for name in ("_serials", "_uneven", "_claims"):
                self.__dict__.pop(name, None)

    @property
    def _rises(self) -> bool:
        """Whether the loss is no lower at the end of rung 5. Ten steps are too few to say."""
        if len(self.frameworks) < 2 or (self.base.steps or 0) <= 10:
            return False
        losses = self._serials[_EVEN][self.frameworks[0]]["loss"]
        return not losses[-5:].mean() < losses[:5].mean()

    def _exhibited(self, rung: Rung) -> Rung:
        """The rung of free-running losses, as far as it may prove something."""
        if rung.name != "5 losses" or rung.status != "passed":
            return rung
        if self._rises:
            shown = f"shown: the loss rises at every learning rate that was tried, and such a run proves nothing; {rung.reason}"
            return rung.model_copy(update={"status": "shown", "reason": shown})
        if self.base.optimizer.learning_rate == self._first_rate:
            return rung
        return rung.model_copy(update={"where": f"{rung.where}, at learning rate {self.base.optimizer.learning_rate:g}"})

    def twins(self) -> list[Rung]:
        """Rungs 1 to 5 and 7: the serial run of every other framework against that of the first."""
        first, *others = self.frameworks
        found: list[Rung] = []
        for other in others:
            sides = self._serials[_EVEN][first], self._serials[_EVEN][other]
            compared = rungs.compare_serials(self.base, self.architecture, *sides, None)
            if tolerances.may_be_rounding(compared, tolerances.STRICT_STEPS):
                compared = _excused(compared, rungs.compare_serials(self.base, self.architecture, *sides, self._yardstick))
            found += map(self._exhibited, compared)
        return found

    def mode(self, mode: str) -> list[Rung]:
        """Rung 6: a parallel mode against serial in the same framework, with an uneven last batch."""
        claim = self._claims.get(mode)
        if claim is None:
            return []
        split = self._record(claim.parallel, mode, frameworks=claim.frameworks)
        serial = self._serials[_uneven_label(claim.micro_batches)]
        found: list[Rung] = []
        for name in claim.frameworks:
            sides = name, serial[name], split[name]
            compared = rungs.compare_mode(claim.parallel, self.architecture, *sides, None)
            if tolerances.may_be_rounding(compared, tolerances.strict_steps(claim.parallel, self.architecture)):
                yardstick = self._uneven_yardstick(claim.micro_batches)
                compared = _excused(compared, rungs.compare_mode(claim.parallel, self.architecture, *sides, yardstick))
            found += compared
        return found

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
            here = tuple(name for name in self.frameworks if spec.check_against(parallel, launch.describe(name)) is None)
            if here:
                found[mode] = _Claim(parallel, parallel.pipeline.micro_batches if own_statistics else 1, here)
        return found

    def timed(self, specs: Mapping[str, Spec], number: int = 1) -> list[Rung]:
        """Rung 8: single float32 steps of what is timed, with the timed kernels, batch, input, modes and switches.

        If the switches leave fewer digits than float32, the difference is shown and not judged.
        """
        if not self.frameworks or any(name not in specs or specs[name].precision != "float32" for name in self.frameworks):
            return []
        if any(specs[name].optimizer.native for name in self.frameworks):
            return []  # two update rules, which nobody claims to be the same
        serial = {name: _few_batches(specs[name], len(self._dataset.train)) for name in self.frameworks}
        parallel = [
            (name, spec.build(spec.with_variant(serial[name].model_dump(), mode, self.replicas)))
            for mode in self.modes
            for name in self.frameworks
        ]
        found = self.single_steps(f"timed-{number}", serial, [(name, what) for name, what in parallel if what.departs is None])
        fewer = [f"{name} with {each}" for name in self.frameworks for each in claims.reduced(name, specs[name])]
        reason = f"fewer digits than float32: {', '.join(fewer)}"
        if not fewer and self.base.model not in spec.MODELS and claims.has_own_builders(self.base.model):
            reason = "shown: the model has builders of its own, and the referee knows only its architecture"
        elif not fewer:
            return found
        shown = {"status": "shown", "reason": reason}
        # Other batches, and what is not finite, are no matter of digits.
        return [
            rung
            if rung.status == "failed" and (rung.name.endswith(": batches") or not math.isfinite(rung.max_relative_difference))
            else rung.model_copy(update=shown)
            for rung in found
        ]

    def proved(self) -> list[Rung]:
        """Rung 8 of the proof's own spec, over many uneven epochs: at every step in float64, at a few in float32."""
        found: list[Rung] = []
        for micro_batches in sorted({1, *(claim.micro_batches for claim in self._claims.values())}):
            serial = self._uneven.with_fields(accumulation=micro_batches, steps=self.base.steps)
            parallel = [
                (name, claim.parallel.with_fields(steps=self.base.steps))
                for claim in self._claims.values()
                if claim.micro_batches == micro_batches
                for name in claim.frameworks
            ]
            found += self.single_steps(f"{micro_batches}-parts", dict.fromkeys(self.frameworks, serial), parallel)
        return found

    def single_steps(self, label: str, serial: Mapping[str, Spec], parallel: Sequence[tuple[str, Spec]]) -> list[Rung]:
        """Rung 8: single steps of all runs, from the states of the first framework's serial run.

        Args:
            label: of the recordings.
            serial: by framework. Only switches may differ.
            parallel: framework, and the same run in another mode.
        """
        first, *others = self.frameworks
        base = serial[first]
        if base.precision == "float64" and not others and not parallel:
            return []  # nothing to compare the first framework with
        available = len(self._dataset.train)
        plan = Plan(base, self.architecture, min(base.data.limit or available, available))
        drawn = single_steps.drawn(base, self.architecture, plan)
        options = ["--drawn", ",".join(map(str, drawn))]
        label = f"single-steps-{base.precision}-{label}"
        teacher = self._record(base, label, *options, frameworks=(first,))[first]
        options += ["--teacher", str(recordings.path(self.out, base, label, first))]
        judge = single_steps.Judge(self.architecture, teacher, drawn, plan)
        found = judge.rungs(base, teacher, first) if base.precision == "float32" else []
        for name, what in [*((name, serial[name]) for name in others), *parallel]:
            if spec.check_against(what, launch.describe(name)) is None:
                recorded = self._record(what, f"{label}-{what.variant}", *options, frameworks=(name,))[name]
                found += judge.rungs(what, recorded, name)
        return found

    def trajectories(self, specs: Mapping[str, Spec]) -> tuple[list[Rung], Trajectories | None]:
        """The timed serial run as it goes, in its own precision, and copies that tell how far rounding carries it.

        It is an exhibit: it can show that the frameworks train another thing, and never that they train the same.
        """
        first, *others = self.frameworks
        what = [specs[name] for name in self.frameworks if name in specs]
        reduced = any(claims.reduced(name, specs[name]) for name in self.frameworks if name in specs)
        if not others or len(what) < len(self.frameworks) or reduced:
            return [], None
        if any(each.precision != "float32" or each.optimizer.native for each in what):
            return [], None
        steps = self._followed(what[0])
        made = self._follow(specs, steps, COPIES)
        pairs = [(other, growth.between(made.losses[first][0], made.losses[other][0], made)) for other in others]
        beyond = [pair.beyond for _, pair in pairs if pair.beyond is not None and not pair.is_other_training]
        if beyond:
            made = self._follow(specs, min(steps, max(*beyond, LEAST_FOLLOWED)), MORE_COPIES)
            pairs = [(other, growth.between(made.losses[first][0], made.losses[other][0], made)) for other in others]
        return [rungs.trajectory(what[0], pair, made.losses[first][0]) for _, pair in pairs], made

    def _followed(self, what: Spec) -> int:
        """How many steps of a run are followed: all, or as many as the budget of operations has room for."""
        work_of_a_step = work.count(self.architecture).flops * what.global_batch_size * (1 + COPIES)
        plan = Plan(what, self.architecture, len(self._timed_dataset(what).train))
        return min(plan.total_steps, MOST_FOLLOWED, max(LEAST_FOLLOWED, int(FOLLOWED_FLOPS / work_of_a_step)))

    def _timed_dataset(self, what: Spec) -> Dataset:
        return sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir)

    def _follow(self, specs: Mapping[str, Spec], steps: int, copies: int) -> Trajectories:
        label = f"trajectory-{copies}-copies"
        losses = {
            name: self._record(_inline(specs[name]), label, "--copies", str(copies), str(steps), frameworks=(name,))[name][
                "losses"
            ]
            for name in self.frameworks
        }
        plain = {name: [list(map(float, each)) for each in found] for name, found in losses.items()}
        return Trajectories(cores=specs[self.frameworks[0]].cores, steps=steps, losses=plain)

    @cached_property
    def _serials(self) -> dict[str, dict[str, Arrays]]:
        """By label, every serial recording that something is compared with. A framework makes all of them in one process."""
        wanted = {_EVEN: self.base} if len(self.frameworks) > 1 else {}
        for micro_batches in sorted({claim.micro_batches for claim in self._claims.values()}):
            wanted[_uneven_label(micro_batches)] = self._uneven.with_fields(accumulation=micro_batches)
        return recordings.record(wanted, self.frameworks, self.out, self.progress)

    @cached_property
    def _yardstick(self) -> Yardstick:
        return self._measure(self.base, "reordered", self._serials[_EVEN])

    @cached_property
    def _uneven(self) -> Spec:
        """Two epochs whose last batch is about half full, and odd if the batch is even."""
        batch_size = self.base.global_batch_size
        available = len(self._dataset.train)
        examples = min(PARALLEL_STEPS // 2 * batch_size - batch_size // 2 - 1, available)
        while examples % self.replicas == 0 or examples % batch_size < self.replicas:
            examples -= 1  # some replica must get more of the last batch than another
        data = {**self.base.data.model_dump(), "limit": examples}
        return self.base.with_fields(steps=PARALLEL_STEPS, accumulation=1, data=data)

    def _uneven_yardstick(self, micro_batches: int) -> Yardstick:
        if micro_batches not in self._yardsticks:
            what = self._uneven.with_fields(accumulation=micro_batches)
            label = f"reordered-uneven-{micro_batches}-parts"
            self._yardsticks[micro_batches] = self._measure(what, label, self._serials[_uneven_label(micro_batches)])
        return self._yardsticks[micro_batches]

    def _measure(self, what: Spec, label: str, ordered: dict[str, Arrays]) -> Yardstick:
        reordered = self._record(what, label, "--reverse-batches")
        strict_steps = tolerances.STRICT_STEPS if what.accumulation == 1 else tolerances.STRICT_STEPS_IN_PARTS
        return tolerances.measure_yardstick([(ordered[name], reordered[name]) for name in self.frameworks], strict_steps)

    def _record(self, what: Spec, label: str, *options: str, frameworks: tuple[str, ...] | None = None) -> dict[str, Arrays]:
        """One recording from each framework."""
        asked = self.frameworks if frameworks is None else frameworks
        return recordings.record({label: what}, asked, self.out, self.progress, *options)[label]


def _few_batches(timed: Spec, available: int) -> Spec:
    """The timed run with two whole batches in an epoch and the uneven one, if it has one."""
    size = timed.global_batch_size
    examples = min(timed.data.limit or available, available)
    return timed.with_fields(data=_limited(timed, min(examples, 2 * size + examples % size)), profile_steps=0)


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


def proof_spec(timed: Spec, batch_size: int, steps: int, precision: spec.Precision) -> Spec:
    """A timed run as the proof trains it: serially, with its own batch size, length, precision and learning rate."""
    return timed.with_fields(
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
        switches="usual",
        framework_options={},
    )


def _inline(what: Spec) -> Spec:
    """A run whose batches are made in the training thread: the same batches without other processes."""
    return what if what.input == "dask" else what.with_fields(input="inline", workers=0)


def _limited(what: Spec, examples: int) -> dict[str, Any]:
    return {**what.data.model_dump(), "limit": min(what.data.limit or math.inf, examples)}
