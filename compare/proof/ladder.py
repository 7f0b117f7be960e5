"""The ladder of proof: is it the same training, in both frameworks and in every synchronous mode?

Each twin records a few steps through the very code that is timed (`python -m <twin> trace`); here the recordings are
held against each other, rung by rung. Float64 is where sameness is proved: what is left is rounding.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import platformdirs
import pydantic
import safetensors.numpy

from common import spec
from common.artifacts import atomic_files
from common.data import sources
from common.frozen import Frozen
from common.machine import machine
from common.models import architectures
from common.models.architectures import Architecture
from common.spec import Spec
from compare.core import errors
from compare.execution import launch

Arrays = dict[str, npt.NDArray[Any]]
Verdict = Literal["proved", "not proved", "not claimed"]

BATCH_SIZE = 16
LEAST_PER_REPLICA = 3
"""Fewer, and the uneven last batch of rung 6 would leave a replica without examples."""
STEPS = 50
PARALLEL_STEPS = 20
LOSS_TOLERANCE = 1e-12
PARALLEL_TOLERANCE = 1e-10
LOGITS_TOLERANCE = 1e-9
"""Ten times that of losses: these are means over a batch, and of some hundred single logits the farthest one counts."""
FIRST_FLOAT32_TOLERANCE = 1e-5
DEEP_FLOAT32_TOLERANCE = 1e-4
"""Of single logits, in which every layer's rounding adds up: some hundred times that of one number."""
GRADIENT_FLOAT32_TOLERANCE = 1e-2
"""In float32 rounding opens some ReLUs and turns some ties of max-pooling: 1.4e-3 were seen for mini_xception."""
GRADIENT_NOISE = 1e-13
"""Rounding in the gradient of a bias in front of BatchNorm, which is zero in exact arithmetic."""
UNSEEN_NOISE = {"float64": 1e-14, "float32": 1e-4}
"""Rounding in the gradients of a mode, which are not recorded: on the scale of the model's largest gradient, in float32 of the
parameter's own, for there the model's would hide whole layers."""
YARDSTICK_FACTOR = 10.0
YARDSTICK_CEILING = 1e-6
"""Where rounding alone may make more than this, a step is shown and not judged: no longer a proof of anything."""
RACED_STEPS = 20
"""Of the configuration that is timed, in its own precision and with its own batch."""
STRICT_STEPS = 3
"""Every model is held to the plain tolerance for this many steps; one that amplifies rounding then to its own yardstick."""
STRICT_STEPS_IN_PARTS = 2
"""Where BatchNorm sees a micro-batch at a time: resnet18's rounding, over four examples, grows a hundredfold with each step."""


class Rung(Frozen):
    """One claim and the largest difference that stands against it."""

    name: str
    model: str
    optimizer: str
    precision: str
    steps: int
    max_relative_difference: float
    """Infinite, in JSON null, where names, shapes or ids differ, or a value is no finite number."""
    step: int | None
    """Where the largest difference stood, from 1; None where the rung has no steps."""
    tolerance: float
    """What that difference is held to at that step."""
    reason: str
    """Why this tolerance."""
    status: Literal["passed", "failed", "shown"]
    """`shown`: reported and not judged."""
    framework: str | None = None
    """Rung 6 only: the framework whose mode is held against its own serial."""
    mode: str | None = None
    where: str | None = None
    """The parameter, file or step with the largest difference."""
    judged_steps: int | None = None
    """Of a rung over steps: how many of them, from the first, have a tolerance."""


class Proof(Frozen):
    """All rungs of one or more ladders."""

    rungs: list[Rung]
    seconds: float
    """What the proof took when it was made."""
    made_at: str = ""
    """UTC, ISO 8601."""
    remembered: bool = False
    """Read back: code, versions, machine and spec are those of an earlier proof."""
    not_claimed: dict[str, str] = {}
    """Mode or framework: why it is not the proved mathematics as it is timed."""
    held_against: dict[str, str] = {}
    """Mode: what it was proved to equal, where that is not the serial run that is timed beside it."""

    @property
    def verdict(self) -> Verdict:
        statuses = {rung.status for rung in self.rungs}
        return "not proved" if "failed" in statuses else "proved" if "passed" in statuses else "not claimed"

    @property
    def sentence(self) -> str:
        """The verdict with its numbers."""
        failed = [rung for rung in self.rungs if rung.status == "failed"]
        if failed:
            first = failed[0]
            return (
                f"not proved: {len(failed)} of {len(self.rungs)} rungs failed, first {first.name} "
                f"({first.max_relative_difference:.1e}, tolerance {first.tolerance:.0e})"
            )
        passed = sum(rung.status == "passed" for rung in self.rungs)
        if not passed:
            return "not claimed: nothing was held against anything"
        when = f", remembered from {self.made_at}" if self.remembered else ""
        losses = [rung for rung in self.rungs if rung.name == "5 losses"]
        if not losses:
            return f"proved: each mode trains as serial does in the same framework; {passed} rungs passed{when}"
        proving = [rung for rung in losses if rung.precision == "float64"] or losses
        worst = max(proving, key=lambda rung: rung.max_relative_difference)
        steps = (
            f"at each of {worst.judged_steps} steps ({worst.where})" if worst.precision == "float64" else "at the first step"
        )
        return (
            f"proved: in {worst.precision} the losses of the frameworks agree within {worst.max_relative_difference:.1e} "
            f"(relative) {steps}; {passed} rungs passed{when}"
        )

    def mode_verdict(self, framework: str, mode: str) -> str:
        """What is proved of one mode of one framework as it is timed: proved, not proved, or not claimed."""
        own = [rung for rung in self.rungs if rung.mode == mode and rung.framework == framework]
        twins = [rung for rung in self.rungs if rung.mode is None]
        if {mode, framework} & self.not_claimed.keys() or not (twins if mode == "serial" else own):
            return "not claimed"
        # A mode that equals its own serial is the same training only where the serial twins are.
        return "not proved" if any(rung.status == "failed" for rung in (*twins, *own)) else "proved"


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
    raced: Mapping[str, Spec] | None = None,
    remember: bool = True,
) -> Proof:
    """Climb the ladder for the model, data and optimizer of a spec.

    Args:
        timed: the run that the proof is for; its batch size, length, precision and mode are replaced by the proof's own,
            and its learning rate falls with the batch, so that as many examples move the weights as far.
        frameworks: at least one; two or more are held against the first.
        modes: of `spec.VARIANTS`, to hold against serial where they claim to be the same mathematics and the machine has them.
        replicas: of those modes.
        out: folder for specs, recordings and logs.
        progress: told what is being done.
        steps: of rung 5.
        precision: float64 proves; float32 shows how rounding grows.
        raced: each framework's serial run as it is timed, switches too; its first steps are held against each other too.
        remember: use the proof of the same code, versions and spec where one is stored, and store this one.

    Raises:
        LaunchError: a twin could not record.
    """
    batch_size = max(BATCH_SIZE // replicas, LEAST_PER_REPLICA) * replicas
    base = _proof_spec(timed, batch_size, steps, precision)
    parallel = [mode for mode in modes if mode != "serial"]
    raced = raced or {}
    remember = remember and base.model in spec.MODELS  # nobody knows all the modules that a user's own model is made of
    key = _key(base, frameworks, parallel, replicas, raced)
    ladder = _Ladder(base, tuple(frameworks), tuple(parallel), replicas, out, progress)
    # What is claimed depends on the timed run itself, which the key leaves out.
    switched = [name for name in frameworks if _is_switched(raced.get(name, timed))]
    claims: dict[str, Any] = {
        "not_claimed": _not_claimed(timed, ladder.architecture, parallel, switched),
        "held_against": _held_against(timed, ladder.architecture, parallel),
    }
    if remember and (proof := _remembered(key)):
        progress("proof remembered: same code, versions, machine and spec")
        return proof.model_copy(update=claims)
    start = time.perf_counter()
    rungs = [*ladder.twins(), *(rung for mode in parallel for rung in ladder.mode(mode)), *ladder.raced(raced)]
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    proof = Proof(rungs=rungs, seconds=time.perf_counter() - start, made_at=made_at, **claims)
    if remember and proof.verdict == "proved":
        atomic_files.write_atomically(_store(key), proof.model_dump_json())
    return proof


@dataclass(frozen=True)
class Yardstick:
    """What frameworks differ from themselves by in another summation order, for models that amplify rounding."""

    losses: npt.NDArray[np.floating]
    """[steps], relative, the largest so far; 0, which allows nothing, where it is not finite or large from the start."""
    logits: float
    """After the last step, on the scale of the largest logit."""


@dataclass(frozen=True)
class _Claim:
    """A parallel mode that is to be serial's mathematics, and what it is held against."""

    parallel: Spec
    parts: int
    """Of each batch, whose gradients serial adds up."""
    frameworks: tuple[str, ...]
    """Those that have the mode here."""


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

    @cached_property
    def _num_training_examples(self) -> int:
        return sources.describe(self.base.data, seed=self.base.seed, cache_dir=self.base.paths.cache_dir).sizes["train"]

    @cached_property
    def architecture(self) -> Architecture:
        dataset = sources.describe(self.base.data, seed=self.base.seed, cache_dir=self.base.paths.cache_dir)
        return architectures.resolve(self.base.model, len(dataset.class_names), dataset.image_size)

    def twins(self) -> list[Rung]:
        """Rungs 1 to 5 and 7: every other framework against the first, serially."""
        first, *others = self.frameworks
        rungs: list[Rung] = []
        for other in others:
            recordings = self._serials[_EVEN][first], self._serials[_EVEN][other]
            held = hold(self.base, self.architecture, *recordings, None)
            if _may_be_rounding(held, STRICT_STEPS):
                held = hold(self.base, self.architecture, *recordings, self._yardstick)
            rungs += held
        return rungs

    def mode(self, mode: str) -> list[Rung]:
        """Rung 6: a parallel mode against serial, inside each framework, over an uneven last batch."""
        claim = self._claims.get(mode)
        if claim is None:
            return []
        split = self._record(claim.parallel, mode, frameworks=claim.frameworks)
        serial = self._serials[_uneven_label(claim.parts)]
        rungs: list[Rung] = []
        for name in claim.frameworks:
            recordings = name, serial[name], split[name]
            held = hold_mode(claim.parallel, self.architecture, *recordings, None)
            if _may_be_rounding(held, _strict_steps(claim.parallel, self.architecture)):
                held = hold_mode(claim.parallel, self.architecture, *recordings, self._uneven_yardstick(claim.parts))
            rungs += held
        return rungs

    @cached_property
    def _claims(self) -> dict[str, _Claim]:
        """By mode; those that are other mathematics than serial, or that no framework has here, are not in it."""
        found: dict[str, _Claim] = {}
        for mode in self.modes:
            # A micro-batch has statistics of its own; where there are none, its serial is the plain one.
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

    def raced(self, specs: Mapping[str, Spec]) -> list[Rung]:
        """Rungs 2 to 5 of the timed kernels: float32, the timed batch and each framework's own switches.

        Where these leave fewer digits than float32, the difference is shown and not judged.
        """
        first, *others = self.frameworks
        if not others or any(name not in specs or specs[name].precision != "float32" for name in self.frameworks):
            return []
        if any(specs[name].optimizer.native for name in self.frameworks):
            return []  # two rules, of which nobody claims that they are one
        short = {
            name: specs[name].with_fields(
                epochs=None,
                steps=RACED_STEPS,
                data=_limited(specs[name], RACED_STEPS * specs[name].global_batch_size),
            )
            for name in self.frameworks
        }
        recordings = {name: self._record(what, "timed", frameworks=(name,))[name] for name, what in short.items()}
        held = [hold(short[first], self.architecture, recordings[first], recordings[other], None) for other in others]
        rungs = [rung for each in held for rung in each if rung.name[0] in "2345"]
        fewer = [f"{name} with {each}" for name in self.frameworks for each in _reduced(name, short[name])]
        if not fewer:
            return rungs
        shown = {"status": "shown", "reason": f"fewer digits than float32: {', '.join(fewer)}"}
        return [rung.model_copy(update=shown) for rung in rungs]

    @cached_property
    def _serials(self) -> dict[str, dict[str, Arrays]]:
        """Every serial recording that something is held against, by label: each framework makes them all in one process."""
        wanted = {_EVEN: self.base} if len(self.frameworks) > 1 else {}
        for parts in sorted({claim.parts for claim in self._claims.values()}):
            wanted[_uneven_label(parts)] = self._uneven.with_fields(accumulation=parts)
        return self._record_together(wanted, self.frameworks)

    @cached_property
    def _yardstick(self) -> Yardstick:
        return self._measure(self.base, "reordered", self._serials[_EVEN])

    @cached_property
    def _uneven(self) -> Spec:
        """Two epochs whose last batch is about half full, and odd where the batch is even."""
        batch_size = self.base.global_batch_size
        available = self._num_training_examples
        examples = min(PARALLEL_STEPS // 2 * batch_size - batch_size // 2 - 1, available)
        while examples % self.replicas == 0 or examples % batch_size < self.replicas:
            examples -= 1  # some replica must get more of the last batch than another
        data = {**self.base.data.model_dump(), "limit": examples}
        return self.base.with_fields(steps=PARALLEL_STEPS, accumulation=1, data=data)

    def _uneven_yardstick(self, parts: int) -> Yardstick:
        if parts not in self._yardsticks:
            what, label = self._uneven.with_fields(accumulation=parts), f"reordered-uneven-{parts}-parts"
            self._yardsticks[parts] = self._measure(what, label, self._serials[_uneven_label(parts)])
        return self._yardsticks[parts]

    def _measure(self, what: Spec, label: str, recordings: dict[str, Arrays]) -> Yardstick:
        reordered = self._record(what, label, "--reverse-batches")
        strict_steps = STRICT_STEPS if what.accumulation == 1 else STRICT_STEPS_IN_PARTS
        return measure_yardstick([(recordings[name], reordered[name]) for name in self.frameworks], strict_steps)

    def _record(self, what: Spec, label: str, *options: str, frameworks: tuple[str, ...] | None = None) -> dict[str, Arrays]:
        """One recording from each framework."""
        return self._record_together({label: what}, self.frameworks if frameworks is None else frameworks, *options)[label]

    def _record_together(
        self, specs: Mapping[str, Spec], frameworks: tuple[str, ...], *options: str
    ) -> dict[str, dict[str, Arrays]]:
        """Recordings by label and framework: one process after the other, for side by side their threads would wait."""
        recordings: dict[str, dict[str, Arrays]] = {label: {} for label in specs}
        if not specs:
            return recordings
        first, what = next(iter(specs.items()))
        folder = self.out / what.model / what.optimizer.name
        folder.mkdir(parents=True, exist_ok=True)
        for label, each in specs.items():
            (folder / f"{label}.json").write_text(each.to_json(), encoding="utf-8")
        labels = " and ".join(specs)
        for name in frameworks:
            self.progress(f"proof: {what.model}, {what.optimizer.name}, {labels}, {name}")
            paths, log = {label: folder / f"{label}-{name}.safetensors" for label in specs}, folder / f"{first}-{name}.log"
            words: list[str] = []
            for label, path in paths.items():
                path.unlink(missing_ok=True)  # never judge an earlier proof's
                source = str(folder / f"{label}.json")
                words += ["--then", source, str(path)] if words else ["trace", source, "--out", str(path)]
            code = launch.call(name, [*words, *options], log=log, hang_seconds=what.hang_seconds)
            if code != 0:
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                raise errors.LaunchError(
                    f"{name} could not record {labels} ({launch.exit_words(code)}). See {log}.\n" + "\n".join(lines[-3:])
                )
            for label, path in paths.items():
                if not path.exists():
                    raise errors.LaunchError(f"{name} recorded nothing for {label}, and ended as if all were well. See {log}.")
                recordings[label][name] = safetensors.numpy.load_file(path)
        return recordings


_EVEN = "serial"
"""Label of what the frameworks are held against each other by."""


def _uneven_label(parts: int) -> str:
    """Of serial over an uneven last batch, its gradients added up over so many parts of each batch."""
    return "serial-uneven" if parts == 1 else f"serial-uneven-{parts}-parts"


def _reduced(framework: str, timed: Spec) -> list[str]:
    """The switches by which it computes with fewer digits; asked for only where there are any."""
    return spec.reduced(timed, spec.of_device(timed, launch.describe(framework))["options"]) if _is_switched(timed) else []


def _strict_steps(what: Spec, architecture: Architecture) -> int:
    in_parts = architecture.has_batch_norm and "pipeline" in what.variant and what.pipeline.micro_batches > 1
    return STRICT_STEPS_IN_PARTS if in_parts else STRICT_STEPS


def _may_be_rounding(held: list[Rung], strict_steps: int) -> bool:
    """Whether what failed has many steps behind it, in which a model may have amplified rounding."""
    return any(rung.status == "failed" for rung in held) and all(
        rung.status != "failed" or (rung.step or 0) > strict_steps for rung in held
    )


def measure_yardstick(pairs: Sequence[tuple[Arrays, Arrays]], strict_steps: int = STRICT_STEPS) -> Yardstick:
    """The yardstick from pairs of recordings by the same framework, in order and with every batch back to front.

    It measures nothing where the order changes the first losses by more than rounding does: then it is no yardstick.
    """
    first = np.full(STRICT_STEPS, LOSS_TOLERANCE)
    first[strict_steps:] = PARALLEL_TOLERANCE
    losses = np.max([_relative(ordered["loss"], reordered["loss"]) for ordered, reordered in pairs], axis=0)
    if not (losses[:STRICT_STEPS] <= first[: len(losses)]).all():
        return Yardstick(losses=np.zeros_like(losses), logits=0.0)
    logits = max(_scaled(ordered["logits/final"], reordered["logits/final"][::-1]) for ordered, reordered in pairs)
    return Yardstick(
        losses=np.maximum.accumulate(np.where(np.isfinite(losses), losses, 0.0)),
        logits=logits if math.isfinite(logits) else 0.0,
    )


def hold(base: Spec, architecture: Architecture, ours: Arrays, theirs: Arrays, yardstick: Yardstick | None) -> list[Rung]:
    """Rungs 1 to 5 and 7 between two serial recordings of the same spec; only the first where that one fails.

    Args:
        base: the spec that both recorded.
        architecture: what both should have built.
        ours: recording of the first framework.
        theirs: recording of the other.
        yardstick: measured where the plain tolerance would not do; None holds every step to that one.
    """
    tolerance = LOSS_TOLERANCE if base.precision == "float64" else DEEP_FLOAT32_TOLERANCE
    kind = f"rounding of {base.precision}, through all layers"
    exact = "names, shapes, count and values are equal or not"
    rungs = [_judged(base, "1 parameters", *_parameters(architecture, ours, theirs), 0.0, exact)]
    if rungs[0].status == "failed":
        return rungs
    for mode in ("train", "eval"):
        difference = _scaled(ours[f"logits/{mode}"], theirs[f"logits/{mode}"])
        rungs.append(_judged(base, f"2 logits, {mode} mode", difference, None, tolerance, kind))
    difference, where = _against_largest(_group(ours, "gradient/"), _group(theirs, "gradient/"))
    reason = f"{kind}, on the scale of the model's largest gradient"
    if base.precision == "float32":
        tolerance, reason = GRADIENT_FLOAT32_TOLERANCE, f"{reason}; it decides some ReLUs and ties of max-pooling"
    rungs.append(_judged(base, "3 gradients", difference, where, tolerance, reason))
    rungs += _after_one_step(base, "4 ", architecture, ours, theirs)
    limits, reason = _loss_limits(base, STRICT_STEPS, LOSS_TOLERANCE, len(ours["loss"]), yardstick)
    rungs.append(_losses(base, "5 losses", ours, theirs, STRICT_STEPS, limits, reason))
    rungs.append(_last_logits(base, "5 logits after the last step, eval mode", architecture, ours, theirs, yardstick))
    rungs.append(_pixels(base, ours, theirs))
    return rungs


def hold_mode(
    parallel: Spec,
    architecture: Architecture,
    framework: str,
    serial: Arrays,
    split: Arrays,
    yardstick: Yardstick | None,
) -> list[Rung]:
    """Rung 6: the recording of a parallel mode against the serial one of the same framework.

    Losses alone would not do: BatchNorm's running statistics and what evaluation makes of them have no part in them.
    """
    name = f"6 {parallel.variant} against serial"
    fields = {"framework": framework, "mode": parallel.variant}
    strict = _strict_steps(parallel, architecture)
    limits, _ = _loss_limits(parallel, strict, PARALLEL_TOLERANCE, len(serial["loss"]), yardstick)
    reason = "summation order over replicas is the only difference left"
    losses = _losses(parallel, name, serial, split, strict, limits, reason, **fields)
    if not np.array_equal(serial["ids"], split["ids"]):
        apart = {"max_relative_difference": math.inf, "status": "failed", "where": "order of the examples"}
        losses = losses.model_copy(update=apart)
    # A rank of several has only its own part of the batch: the first rows, on the first rank.
    whole = {**serial, "logits/final": serial["logits/final"][: len(split["logits/final"])]}
    return [
        losses,
        *_after_one_step(parallel, f"{name}: ", architecture, serial, split, **fields),
        _last_logits(parallel, f"{name}: logits after the last step", architecture, whole, split, yardstick, **fields),
    ]


def _proof_spec(timed: Spec, batch_size: int, steps: int, precision: spec.Precision) -> Spec:
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
        switches="fair",
        framework_options={},
    )


def _is_switched(timed: Spec) -> bool:
    return bool(timed.framework_options) or timed.switches != "fair"


def _limited(what: Spec, examples: int) -> dict[str, Any]:
    return {**what.data.model_dump(), "limit": min(what.data.limit or math.inf, examples)}


def _not_claimed(timed: Spec, architecture: Architecture, modes: Sequence[str], switched: Sequence[str]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for mode in modes:
        asked = spec.build(spec.with_variant({**timed.model_dump(), "global_batch_size": 2}, mode, 2))
        if asked.departs is not None:
            reasons[mode] = asked.departs
        elif asked.data_replicas == 1:
            continue
        elif architecture.has_batch_norm and mode == "hybrid_pipeline":
            reasons[mode] = "BatchNorm over the micro-batches of each copy's shard is another function than serial's"
        elif architecture.has_batch_norm and timed.batch_norm_statistics == "per_replica":
            reasons[mode] = "BatchNorm over each replica's own examples is another function than serial's"
        elif timed.schedule.scaling != "none":
            reasons[mode] = "the learning rate is scaled with the replicas"
        elif architecture.has_batch_norm and timed.accumulation > 1:
            reasons[mode] = "the parts of a batch whose gradients are added up are parts of each replica's shard"
    reasons |= dict.fromkeys(switched, "the float64 proof is made without its switches")
    if timed.optimizer.native:
        reasons |= dict.fromkeys(("serial", *modes), "the frameworks' own optimizers follow different rules")
    return reasons


def _held_against(timed: Spec, architecture: Architecture, modes: Sequence[str]) -> dict[str, str]:
    pipelines = [mode for mode in modes if mode in ("pipeline", "pipeline_1f1b")]
    if not architecture.has_batch_norm or not pipelines:
        return {}
    parts = spec.micro_batches(timed.global_batch_size, timed.pipeline.micro_batches)
    words = f"serial that adds up the gradients of {parts} parts of a batch, for BatchNorm sees one part at a time"
    return dict.fromkeys(pipelines, words) if parts > 1 else {}


def _rung(what: Spec, **fields: Any) -> Rung:
    return Rung(model=what.model, optimizer=what.optimizer.name, precision=what.precision, **fields)


def _judged(what: Spec, name: str, difference: float, where: str | None, tolerance: float, reason: str, **fields: Any) -> Rung:
    """A rung about one moment: passed where its difference is a number within the tolerance."""
    values: dict[str, Any] = {"steps": 1, "step": None, "status": "passed" if difference <= tolerance else "failed", **fields}
    return _rung(what, name=name, max_relative_difference=difference, where=where, tolerance=tolerance, reason=reason, **values)


def _parameters(architecture: Architecture, ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    for parameter in architecture.parameters():
        name = f"initial/{parameter.name}"
        for arrays in (ours, theirs):
            if name not in arrays or arrays[name].shape != parameter.shape:
                return math.inf, parameter.name
            if parameter.trainable != (f"gradient/{parameter.name}" in arrays):
                return math.inf, parameter.name
        if not np.array_equal(ours[name], theirs[name]):
            return math.inf, parameter.name
    values = [parameter.size for parameter in architecture.parameters()]
    trainable = [parameter.size for parameter in architecture.parameters() if parameter.trainable]
    if any(arrays["num_values"].tolist() != [sum(values), sum(trainable)] for arrays in (ours, theirs)):
        return math.inf, "number of values"
    for prefix in ("initial/", "gradient/"):
        if _group(ours, prefix).keys() != _group(theirs, prefix).keys():
            return math.inf, "names"
    return 0.0, None


def _after_one_step(
    what: Spec, prefix: str, architecture: Architecture, ours: Arrays, theirs: Arrays, **fields: Any
) -> list[Rung]:
    """Weights on the scale of the largest update; BatchNorm statistics on that of the largest mean or variance."""
    plain = LOSS_TOLERANCE if what.precision == "float64" else FIRST_FLOAT32_TOLERANCE
    kind = f"rounding of {what.precision}"
    limit, reason = 10 * plain, kind
    if what.precision == "float32":
        limit = GRADIENT_FLOAT32_TOLERANCE
    elif what.optimizer.name == "adam":
        # Adam's first direction is g / (|g| + epsilon): where g is small, its rounding counts up to 1 / epsilon times.
        limit, reason = 1e4 * plain, f"{kind}, times what Adam makes of small gradients"
    difference, where = _updates_apart(what, limit, ours, theirs)
    reason = f"{reason}, on the scale of the largest update"
    rungs = [_judged(what, f"{prefix}weights after one step", difference, where, limit, reason, **fields)]
    if architecture.has_batch_norm:
        difference, where = _statistics_apart(ours, theirs)
        reason = f"{kind}, on the scale of the largest of their kind"
        rungs.append(_judged(what, f"{prefix}BatchNorm statistics after one step", difference, where, plain, reason, **fields))
    return rungs


def _updates_apart(what: Spec, limit: float, ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    gradients = _group(ours, "gradient/")
    largest_gradient = max(float(np.abs(gradient).max()) for gradient in gradients.values())
    largest_update = max(float(np.abs(ours[f"stepped/{name}"] - ours[f"initial/{name}"]).max()) for name in gradients)
    differences: list[tuple[float, str]] = []
    for name, gradient in gradients.items():
        apart = _apart(ours[f"stepped/{name}"], theirs.get(f"stepped/{name}"))
        if what.optimizer.name == "adam" and apart.shape == gradient.shape:
            # Adam's first direction g / (|g| + epsilon), of the gradient with its weight decay, moves by at most d / 4|g| where
            # g moves by d: it must agree wherever g stands out of the rounding. A bias in front of BatchNorm has nothing but
            # rounding, and no direction.
            is_bias, other = name.endswith(".bias"), theirs.get(f"gradient/{name}")
            is_own = what.precision == "float32" and not is_bias
            scale = float(np.abs(gradient).max()) if is_own else largest_gradient
            noise = UNSEEN_NOISE[what.precision] * scale if other is None else float(_apart(gradient, other).max())
            followed = gradient + what.optimizer.weight_decay * ours[f"initial/{name}"]
            counts = np.abs(followed) * limit >= noise
            if not counts.any() and not is_bias and followed.any():
                return math.inf, name  # nothing of it would be compared
            apart = apart[counts] if followed.any() else apart  # that has to stay where it is
        differences.append((_over(apart.max(initial=0.0), largest_update), name))
    return _largest(differences)


def _statistics_apart(ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    trained = _group(ours, "gradient/")
    statistics = {name: array for name, array in _group(ours, "stepped/").items() if name not in trained}
    largest: dict[str, float] = {}
    for name, array in statistics.items():
        role = name.rpartition(".")[2]
        largest[role] = max(largest.get(role, 0.0), float(np.abs(array).max()))
    return _largest(
        [
            (_over(_apart(array, theirs.get(f"stepped/{name}")).max(), largest[name.rpartition(".")[2]]), name)
            for name, array in statistics.items()
        ]
    )


def _loss_limits(
    what: Spec, strict_steps: int, later: float, steps: int, yardstick: Yardstick | None
) -> tuple[npt.NDArray[np.floating], str]:
    """[steps]: what the relative difference of each loss is held to; infinite where it is only shown."""
    if what.precision == "float32":
        limits = np.full(steps, np.inf)
        limits[0] = FIRST_FLOAT32_TOLERANCE
        return limits, "rounding of float32 at the first step; later steps are shown"
    limits = np.full(steps, LOSS_TOLERANCE)
    limits[strict_steps:] = later
    if yardstick is None:
        return limits, "rounding of float64"
    limits[strict_steps:] = np.maximum(later, YARDSTICK_FACTOR * yardstick.losses[strict_steps:])
    beyond = np.flatnonzero(limits > YARDSTICK_CEILING)
    reason = f"rounding of float64; after step {strict_steps} ten times a framework's difference to itself in another order"
    if len(beyond):
        limits[beyond[0] :] = np.inf
        reason += f"; from step {beyond[0] + 1} on, where that exceeds {YARDSTICK_CEILING:.0e}, shown"
    return limits, reason


def _losses(
    what: Spec,
    name: str,
    ours: Arrays,
    theirs: Arrays,
    strict_steps: int,
    limits: npt.NDArray[np.floating],
    reason: str,
    **fields: Any,
) -> Rung:
    """The loss at every step, and how many predictions were right at the first ones, where rounding cannot turn one."""
    differences = _relative(ours["loss"], theirs["loss"])
    steps = len(differences)
    passed = np.isfinite(differences).all() and (differences <= limits).all()
    if passed:
        # The largest that was judged, not the one nearest to its limit: limits may grow with the steps.
        step = int(np.argmax(np.where(np.isfinite(limits), differences, 0.0)))
    else:
        step = int(np.argmax(np.divide(differences, limits, out=np.full(steps, np.inf), where=np.isfinite(differences))))
    difference, tolerance, where = float(differences[step]), float(limits[step]), None
    if not math.isfinite(tolerance):  # a loss that is only shown, and is no number
        tolerance = float(limits[0])
    status = "passed" if passed else "failed"
    if what.precision == "float32":
        where = "grows by rounding: " + ", ".join(f"{differences[at - 1]:.1e} at step {at}" for at in _milestones(steps))
    elif passed:  # how much training there was to agree on
        few = min(5, -(-steps // 2))
        where = f"loss from {ours['loss'][:few].mean():.2f} to {ours['loss'][-few:].mean():.2f}"
    counted = 1 if what.precision == "float32" else strict_steps
    miscounted = _apart(ours["num_correct"], theirs["num_correct"])[:counted] > 0.0
    if passed and miscounted.any():
        step, difference, status, where = int(np.argmax(miscounted)), math.inf, "failed", "number of right predictions"
    judged = int(np.isfinite(limits).sum())
    values = {"step": step + 1, "steps": steps, "judged_steps": judged, "status": status, **fields}
    return _judged(what, name, difference, where, tolerance, reason, **values)


def _milestones(steps: int) -> list[int]:
    return [at for at in (1, 2, 5, 10, 20, 50, 100) if at < steps] + [steps]


def _last_logits(
    what: Spec,
    name: str,
    architecture: Architecture,
    ours: Arrays,
    theirs: Arrays,
    yardstick: Yardstick | None,
    **fields: Any,
) -> Rung:
    steps = len(ours["loss"])
    difference = _scaled(ours["logits/final"], theirs["logits/final"])
    values: dict[str, Any] = {"step": steps, "steps": steps, **fields}
    if what.precision == "float32":
        if math.isfinite(difference):
            values["status"] = "shown"
        reason = "shown: rounding grows with the steps"
        return _judged(what, name, difference, None, FIRST_FLOAT32_TOLERANCE, reason, **values)
    limit, reason = LOGITS_TOLERANCE, "rounding of float64, summed over the steps"
    settings = what.optimizer
    if settings.name == "adam" and architecture.has_batch_norm and not settings.weight_decay:
        # With weight decay the noise grows from step to step, and only the yardstick can say by how much.
        limit = max(limit, steps * settings.learning_rate * min(GRADIENT_NOISE / settings.epsilon, 1.0))
        reason = "Adam moves biases in front of BatchNorm by rounding noise over epsilon, which the running means follow"
    if yardstick is not None and YARDSTICK_FACTOR * yardstick.logits > limit:
        limit = YARDSTICK_FACTOR * yardstick.logits
        reason = "ten times a framework's difference to itself in another order"
        if limit > YARDSTICK_CEILING and math.isfinite(difference):
            values["status"], reason = "shown", f"shown: {reason} exceeds {YARDSTICK_CEILING:.0e}"
    return _judged(what, name, difference, None, limit, reason, **values)


def _pixels(base: Spec, ours: Arrays, theirs: Arrays) -> Rung:
    difference, where = 0.0, None
    if not np.array_equal(ours["ids"], theirs["ids"]):
        difference, where = math.inf, "order of the examples"
    elif not np.array_equal(ours["decoded"], theirs["decoded"]):
        difference, where = math.inf, "decoded pixels"
    else:
        images, others = _group(ours, "images/"), _group(theirs, "images/")
        levels, name = _largest(
            [(_over(_apart(array.astype(np.int64), others.get(name)).max(), 255.0), name) for name, array in images.items()]
        )
        apart = _apart(ours["pixels"], theirs["pixels"]).any(axis=1)
        if levels:
            difference, where = levels, f"images of step {int(name or 0) + 1}"
        elif apart.any():
            difference, where = math.inf, f"images of step {int(np.argmax(apart)) + 1}"
    reason = "order and augmentation, which moves whole pixels, are equal at every step or not; decoding is shared code"
    return _judged(base, "7 pixels and order", difference, where, 0.0, reason, steps=len(ours["loss"]))


def _group(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _against_largest(ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    scale = max(float(np.abs(array).max()) for array in ours.values())
    return _largest([(_over(_apart(ours[name], theirs.get(name)).max(), scale), name) for name in ours])


def _scaled(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    return _over(_apart(ours, theirs).max(), float(np.abs(ours).max()))


def _relative(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[np.floating]:
    apart = _apart(ours, theirs)
    if ours.shape != theirs.shape:
        return apart
    scale = np.maximum(np.maximum(np.abs(ours), np.abs(theirs)), np.finfo(np.float64).tiny)
    return np.divide(apart, scale, out=np.full(apart.shape, np.inf), where=np.isfinite(apart))


def _apart(ours: npt.NDArray[Any], theirs: npt.NDArray[Any] | None) -> npt.NDArray[np.floating]:
    """Absolute differences, in the shape of ours; infinite where one is no finite number, or the other's shape differs."""
    if theirs is None or ours.shape != theirs.shape:
        return np.full(ours.shape, np.inf)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    return np.where(finite, np.abs(np.where(finite, ours, 0.0) - np.where(finite, theirs, 0.0)), np.inf)


def _over(difference: float, scale: float) -> float:
    """A difference on a scale; infinite where the scale is zero or no finite number, which compares nothing."""
    return float(difference) / scale if scale > 0.0 and math.isfinite(scale) else math.inf


def _largest(differences: list[tuple[float, str]]) -> tuple[float, str | None]:
    return max(differences, default=(math.inf, None))


def code_digest(frameworks: Sequence[str], model: str) -> str:
    """SHA-256 over the code of a run: what the twins share, the twins, and a user's own model with its package."""
    folders = [machine.PROJECT_ROOT / folder for folder in ("common", *(launch.FRAMEWORKS[name] for name in frameworks))]
    return machine.code_digest([*folders, *architectures.user_folders(model)])


def _key(base: Spec, frameworks: Sequence[str], modes: Sequence[str], replicas: int, raced: Mapping[str, Spec]) -> str:
    """SHA-256 over everything that a proof depends on: code, versions, devices, the machine, the data, the specs."""
    sha256 = hashlib.sha256(code_digest(frameworks, base.model).encode())
    sha256.update(Path(__file__).read_bytes() + repr(machine.versions("numpy", "pillow")).encode())
    facts = machine.describe()
    sha256.update(repr([facts[fact] for fact in ("processor", "logical_cores", "system", "python")]).encode())
    for name in frameworks:
        described = launch.describe(name)
        sha256.update(repr((sorted(described["versions"].items()), described["devices"])).encode())
    dataset = sources.describe(base.data, seed=base.seed, cache_dir=base.paths.cache_dir)
    sha256.update(repr((dataset.content_hash, base.to_json(), tuple(modes), replicas)).encode())
    sha256.update(repr([(name, raced[name].to_json()) for name in sorted(raced)]).encode())
    return sha256.hexdigest()


def _store(key: str) -> Path:
    return platformdirs.user_cache_path("convtwins") / "proofs" / f"{key}.json"


def _remembered(key: str) -> Proof | None:
    try:
        return Proof.model_validate_json(_store(key).read_bytes()).model_copy(update={"remembered": True})
    except (OSError, pydantic.ValidationError):
        return None
