"""The ladder of proof: is it the same training, in both frameworks and in every synchronous mode?

Each twin records a few steps through the very code that is timed (`python -m <twin> trace`); here the recordings are
held against each other, rung by rung. Float64 is where sameness is proved: what is left is rounding.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import platformdirs
import pydantic
import safetensors.numpy
from pydantic import BaseModel, ConfigDict

from common import architectures, datasets, machine, results, spec
from common.architectures import Architecture
from common.spec import Spec
from compare import launch

Arrays = dict[str, npt.NDArray[Any]]
Verdict = Literal["proved", "not proved", "not claimed"]

BATCH_SIZE = 16
STEPS = 50
PARALLEL_STEPS = 20
LOSS_TOLERANCE = 1e-12
PARALLEL_TOLERANCE = 1e-10
FIRST_FLOAT32_TOLERANCE = 1e-5
YARDSTICK_FACTOR = 10.0
STRICT_STEPS = 3
"""A model that amplifies rounding is held to the plain tolerance for this many steps, then to its own yardstick."""

_STRICT_MODELS = ("simple_cnn", "mini_xception")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Rung(_Frozen):
    """One claim and the largest difference that stands against it."""

    name: str
    model: str
    optimizer: str
    precision: str
    steps: int
    max_relative_difference: float
    """Infinite where names, shapes or ids differ."""
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


class Proof(_Frozen):
    """All rungs of one or more ladders."""

    rungs: list[Rung]
    seconds: float
    """What the proof took when it was made."""
    remembered: bool = False
    """Read back: code, versions and spec are those of an earlier proof."""
    not_claimed: dict[str, str] = {}
    """Mode: why it is not serial's mathematics as it is timed."""

    @property
    def verdict(self) -> Verdict:
        return "not proved" if any(rung.status == "failed" for rung in self.rungs) else "proved"

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
        losses = [rung for rung in self.rungs if rung.name == "5 losses"]
        worst = max(losses, key=lambda rung: rung.max_relative_difference)
        return (
            f"proved: in {worst.precision} the losses of the frameworks agree within {worst.max_relative_difference:.1e} "
            f"(relative) at each of {worst.steps} steps; {len(self.rungs)} rungs passed"
        )

    def mode_verdict(self, framework: str, mode: str) -> str:
        """What is proved of one mode of one framework as it is timed: proved, not proved, or not claimed."""
        own = [rung for rung in self.rungs if rung.mode == mode and rung.framework == framework]
        twins = [rung for rung in self.rungs if rung.mode is None]
        if mode in self.not_claimed or not (twins if mode == "serial" else own):
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
    remember: bool = True,
) -> Proof:
    """Climb the ladder for the model, data and optimizer of a spec.

    Args:
        timed: the run that the proof is for; its batch size, length, precision and mode are replaced by the proof's own.
        frameworks: at least one; two or more are held against the first.
        modes: synchronous modes to hold against serial, where the machine has them.
        replicas: of those modes.
        out: folder for specs, recordings and logs.
        progress: told what is being done.
        steps: of rung 5.
        precision: float64 proves; float32 shows how rounding grows.
        remember: use the proof of the same code, versions and spec where one is stored, and store this one.

    Raises:
        LaunchError: a twin could not record.
    """
    batch_size = max(BATCH_SIZE // replicas, 1) * replicas
    base = _proof_spec(timed, batch_size, steps, precision)
    parallel = [mode for mode in modes if mode != "serial"]
    key = _key(base, frameworks, parallel, replicas)
    if remember and (proof := _remembered(key)):
        progress("proof remembered: same code, versions and spec")
        return proof
    start = time.perf_counter()
    ladder = _Ladder(base, tuple(frameworks), replicas, out, progress)
    rungs = [*ladder.twins(), *(rung for mode in parallel for rung in ladder.mode(mode))]
    proof = Proof(
        rungs=rungs, seconds=time.perf_counter() - start, not_claimed=_not_claimed(timed, ladder.architecture, parallel)
    )
    if remember and proof.verdict == "proved":
        results.write_atomically(_store(key), proof.model_dump_json())
    return proof


@dataclass
class _Ladder:
    base: Spec
    frameworks: tuple[str, ...]
    replicas: int
    out: Path
    progress: Callable[[str], None]

    @cached_property
    def architecture(self) -> Architecture:
        dataset = datasets.load(self.base.data, seed=self.base.seed, cache_dir=self.base.paths.cache_dir)
        return architectures.resolve(self.base.model, len(dataset.class_names), dataset.image_size)

    def twins(self) -> list[Rung]:
        """Rungs 1 to 5 and 7: every other framework against the first, serially."""
        recordings = self._record(self.base, "serial")
        yardstick = None
        if self.base.model not in _STRICT_MODELS:
            reordered = self._record(self.base, "reordered", "--reverse-batches")
            yardstick = np.maximum.accumulate(
                np.max([_relative(recordings[name]["loss"], reordered[name]["loss"]) for name in self.frameworks], axis=0)
            )
        first, *others = self.frameworks
        return [
            rung
            for other in others
            for rung in hold(self.base, self.architecture, recordings[first], recordings[other], yardstick)
        ]

    def mode(self, mode: str) -> list[Rung]:
        """Rung 6: a parallel mode against serial, inside each framework, over an uneven last batch."""
        statistics = "synchronised" if self.architecture.has_batch_norm else "per_replica"
        parallel = self._uneven.with_fields(mode=mode, replicas=self.replicas, batch_norm_statistics=statistics)
        here = tuple(name for name in self.frameworks if spec.check_against(parallel, launch.describe(name)) is None)
        split = self._record(parallel, mode, frameworks=here)
        return [hold_mode(parallel, name, self._uneven_serial[name], split[name]) for name in here]

    @cached_property
    def _uneven(self) -> Spec:
        """Two epochs whose last batch is about half full, and odd where the batch is even."""
        batch_size = self.base.global_batch_size
        examples = PARALLEL_STEPS // 2 * batch_size - batch_size // 2 - 1
        return self.base.with_fields(steps=PARALLEL_STEPS, data={**self.base.data.model_dump(), "limit": examples})

    @cached_property
    def _uneven_serial(self) -> dict[str, Arrays]:
        return self._record(self._uneven, "serial-uneven")

    def _record(self, what: Spec, label: str, *options: str, frameworks: tuple[str, ...] | None = None) -> dict[str, Arrays]:
        """One recording from each framework, one after the other: side by side their threads would wait for each other."""
        folder = self.out / what.model / what.optimizer.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{label}.json"
        path.write_text(what.to_json(), encoding="utf-8")
        recordings: dict[str, Arrays] = {}
        for name in self.frameworks if frameworks is None else frameworks:
            self.progress(f"proof: {what.model}, {what.optimizer.name}, {label}, {name}")
            recording, log = folder / f"{label}-{name}.safetensors", folder / f"{label}-{name}.log"
            code = launch.call(name, ["trace", str(path), "--out", str(recording), *options], log=log)
            if code != 0:
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                raise launch.LaunchError(
                    f"{name} could not record {label} ({launch.exit_words(code)}). See {log}.\n" + "\n".join(lines[-3:])
                )
            recordings[name] = safetensors.numpy.load_file(recording)
        return recordings


def hold(
    base: Spec, architecture: Architecture, ours: Arrays, theirs: Arrays, yardstick: npt.NDArray[np.floating] | None
) -> list[Rung]:
    """Rungs 1 to 5 and 7 between two serial recordings of the same spec.

    Args:
        base: the spec that both recorded.
        architecture: what both should have built.
        ours: recording of the first framework.
        theirs: recording of the other.
        yardstick: [steps], the largest relative loss difference so far of a framework against itself in another
            summation order, for models that amplify rounding; None holds every step to the plain tolerance.
    """
    float64 = base.precision == "float64"
    tolerance = LOSS_TOLERANCE if float64 else FIRST_FLOAT32_TOLERANCE
    kind = "rounding of float64" if float64 else "rounding of float32"

    def rung(name: str, difference: float, where: str | None, limit: float, reason: str, **fields: Any) -> Rung:
        values: dict[str, Any] = {"step": None, "steps": 1, **fields}
        values.setdefault("status", "passed" if difference <= limit else "failed")
        return _rung(base, name=name, max_relative_difference=difference, where=where, tolerance=limit, reason=reason, **values)

    rungs = [
        rung("1 parameters", *_parameters(architecture, ours, theirs), 0.0, "names, shapes, count and values are equal or not")
    ]
    if rungs[0].status == "failed":
        return rungs
    for mode in ("train", "eval"):
        difference = _scaled(ours[f"logits/{mode}"], theirs[f"logits/{mode}"])
        rungs.append(rung(f"2 logits, {mode} mode", difference, None, tolerance, kind))
    gradients = _group(ours, "gradient/"), _group(theirs, "gradient/")
    difference, where = _against_largest(*gradients)
    rungs.append(rung("3 gradients", difference, where, tolerance, f"{kind}, on the scale of the model's largest gradient"))
    difference, where = _after_one_step(ours, theirs)
    # Adam's first direction is g / (|g| + epsilon): where g is small, its rounding counts up to 1 / epsilon times.
    adam = base.optimizer.name == "adam"
    limit, reason = (1e3 * tolerance, f"{kind}, times what Adam makes of small gradients") if adam else (10 * tolerance, kind)
    rungs.append(rung("4 weights after one step", difference, where, limit, f"{reason}, on the scale of the largest update"))
    rungs.append(_losses(base, ours, theirs, yardstick))
    difference = _scaled(ours["logits/final"], theirs["logits/final"])
    fields: dict[str, Any] = {"step": base.steps, "steps": base.steps}
    if not float64:
        fields["status"] = "shown"
    limit, reason = _final_tolerance(base, architecture, yardstick)
    rungs.append(rung("5 logits after the last step, eval mode", difference, None, limit, reason, **fields))
    rungs.append(_pixels(base, ours, theirs))
    return rungs


def hold_mode(parallel: Spec, framework: str, serial: Arrays, split: Arrays) -> Rung:
    """Rung 6: the recording of a parallel mode against the serial one of the same framework."""
    difference, step = _worst(_relative(serial["loss"], split["loss"]))
    where = None
    if not np.array_equal(serial["ids"], split["ids"]):
        difference, where = math.inf, "order of the examples"
    tolerance = PARALLEL_TOLERANCE if parallel.precision == "float64" else FIRST_FLOAT32_TOLERANCE
    status = "passed" if difference <= tolerance else "failed"
    if parallel.precision == "float32" and where is None:
        status = "shown"
    return _rung(
        parallel,
        name=f"6 {parallel.mode} against serial",
        steps=len(split["loss"]),
        max_relative_difference=difference,
        step=step,
        where=where,
        tolerance=tolerance,
        reason="summation order over replicas is the only difference left",
        status=status,
        framework=framework,
        mode=parallel.mode,
    )


def growth(ours: Arrays, theirs: Arrays) -> list[float]:
    """The relative difference of the losses at each step."""
    return [float(value) for value in _relative(ours["loss"], theirs["loss"])]


def _proof_spec(timed: Spec, batch_size: int, steps: int, precision: spec.Precision) -> Spec:
    return timed.with_fields(
        epochs=None,
        steps=steps,
        global_batch_size=batch_size,
        precision=precision,
        mode="serial",
        replicas=1,
        input="inline",
        workers=0,
        cores=spec.available_cores(),
        batch_norm_statistics="per_replica",
        data={**timed.data.model_dump(), "limit": min(timed.data.limit or math.inf, steps * batch_size)},
        optimizer={**timed.optimizer.model_dump(), "native": False},
        # Scaling by replicas would make serial and parallel two different trainings.
        schedule={**timed.schedule.model_dump(), "scaling": "none"},
        framework_options={},
    )


def _not_claimed(timed: Spec, architecture: Architecture, modes: Sequence[str]) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for mode in modes:
        if architecture.has_batch_norm and timed.batch_norm_statistics == "per_replica":
            reasons[mode] = "BatchNorm over each replica's own examples is another function than serial's"
        elif timed.schedule.scaling != "none":
            reasons[mode] = "the learning rate is scaled with the replicas"
    if timed.optimizer.native:
        reasons |= dict.fromkeys(("serial", *modes), "the frameworks' own optimizers follow different rules")
    return reasons


def _rung(what: Spec, **fields: Any) -> Rung:
    return Rung(model=what.model, optimizer=what.optimizer.name, precision=what.precision, **fields)


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
    for prefix in ("initial/", "gradient/"):
        if _group(ours, prefix).keys() != _group(theirs, prefix).keys():
            return math.inf, "names"
    return 0.0, None


def _after_one_step(ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    """Weights on the scale of the largest update, statistics on the scale of the largest statistic of their kind."""
    gradients = _group(ours, "gradient/")
    before, after, other = (
        _group(arrays, prefix) for arrays, prefix in ((ours, "initial/"), (ours, "stepped/"), (theirs, "stepped/"))
    )
    largest_gradient = max(float(np.abs(gradient).max()) for gradient in gradients.values())
    largest_update = max(float(np.abs(after[name] - before[name]).max()) for name in gradients)
    differences: list[tuple[float, str]] = []
    for name in after:
        difference = np.abs(after[name] - other[name])
        if name in gradients:
            # A gradient that is rounding noise (a bias in front of BatchNorm) has no direction to agree on.
            difference = difference[np.abs(gradients[name]) > 1e-6 * largest_gradient] / largest_update
        else:
            role = name.rpartition(".")[2]
            difference = difference / max(float(np.abs(after[each]).max()) for each in after if each.endswith(f".{role}"))
        differences.append((float(difference.max(initial=0.0)), name))
    return _largest(differences)


def _losses(base: Spec, ours: Arrays, theirs: Arrays, yardstick: npt.NDArray[np.floating] | None) -> Rung:
    differences = _relative(ours["loss"], theirs["loss"])
    steps = len(differences)
    if base.precision == "float32":
        # Only the first step is judged; afterwards chaos makes rounding grow, which is shown.
        worst, step = _worst(differences)
        return _rung(
            base,
            name="5 losses",
            steps=steps,
            max_relative_difference=worst,
            step=step,
            where=f"first step {differences[0]:.1e}; grows by rounding alone",
            tolerance=FIRST_FLOAT32_TOLERANCE,
            reason="rounding of float32 at the first step; later steps are shown",
            status="passed" if differences[0] <= FIRST_FLOAT32_TOLERANCE else "failed",
        )
    limits = np.full(steps, LOSS_TOLERANCE)
    reason = "rounding of float64"
    if yardstick is not None:
        limits[STRICT_STEPS:] = np.maximum(LOSS_TOLERANCE, YARDSTICK_FACTOR * yardstick[STRICT_STEPS:])
        reason = f"rounding of float64; after step {STRICT_STEPS} ten times a framework's difference to itself in another order"
    # The step that comes closest to its own limit, or goes furthest beyond.
    step = int(np.argmax(np.nan_to_num(differences / limits, nan=np.inf)))
    return _rung(
        base,
        name="5 losses",
        steps=steps,
        max_relative_difference=float(differences[step]),
        step=step + 1,
        tolerance=float(limits[step]),
        reason=reason,
        status="passed" if (differences <= limits).all() else "failed",
    )


def _final_tolerance(base: Spec, architecture: Architecture, yardstick: npt.NDArray[np.floating] | None) -> tuple[float, str]:
    if base.precision == "float32":
        return FIRST_FLOAT32_TOLERANCE, "shown: rounding grows with the steps"
    if yardstick is not None:
        return max(
            1e-9, 100 * YARDSTICK_FACTOR * float(yardstick[-1])
        ), "logits of a network that amplifies rounding, see 5 losses"
    if base.optimizer.name == "adam" and architecture.has_batch_norm:
        return 1e-6, "Adam moves biases in front of BatchNorm by rounding noise over epsilon, which the running means follow"
    return 1e-9, "rounding of float64, summed over the steps"


def _pixels(base: Spec, ours: Arrays, theirs: Arrays) -> Rung:
    difference, where = 0.0, None
    if not np.array_equal(ours["ids"], theirs["ids"]):
        difference, where = math.inf, "order of the examples"
    elif not np.array_equal(ours["decoded"], theirs["decoded"]):
        difference, where = math.inf, "decoded pixels"
    else:
        for name in _group(ours, "images/"):
            apart = np.abs(ours[f"images/{name}"].astype(np.int64) - theirs[f"images/{name}"])
            difference = max(difference, float(apart.max()) / 255.0)
    return _rung(
        base,
        name="7 pixels and order",
        steps=len(ours["loss"]),
        max_relative_difference=difference,
        step=None,
        where=where,
        tolerance=1 / 255,
        reason="decode and order equal or not; augmentation within one level of 255",
        status="passed" if difference <= 1 / 255 else "failed",
    )


def _group(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _against_largest(ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    scale = max(float(np.abs(array).max()) for array in ours.values())
    return _largest([(float(np.abs(ours[name] - theirs[name]).max()) / scale, name) for name in ours])


def _scaled(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    return _finite(float(np.abs(ours - theirs).max() / np.abs(ours).max()))


def _relative(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[np.floating]:
    scale = np.maximum(np.maximum(np.abs(ours), np.abs(theirs)), np.finfo(np.float64).tiny)
    return np.nan_to_num(np.abs(ours - theirs) / scale, nan=np.inf)


def _worst(differences: npt.NDArray[np.floating]) -> tuple[float, int]:
    step = int(np.argmax(differences))
    return float(differences[step]), step + 1


def _largest(differences: list[tuple[float, str]]) -> tuple[float, str | None]:
    difference, where = max(((_finite(value), name) for value, name in differences), default=(0.0, None))
    return difference, where


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _key(base: Spec, frameworks: Sequence[str], modes: Sequence[str], replicas: int) -> str:
    """SHA-256 over everything that a proof depends on: the code of both twins, their versions, the data, the spec."""
    sha256 = hashlib.sha256()
    for folder in ("common", *(launch.FRAMEWORKS[name] for name in frameworks)):
        for path in sorted((machine.PROJECT_ROOT / folder).rglob("*.py")):
            sha256.update(str(path.relative_to(machine.PROJECT_ROOT)).encode() + path.read_bytes())
    sha256.update(Path(__file__).read_bytes())
    for name in frameworks:
        sha256.update(repr(sorted(launch.describe(name)["versions"].items())).encode())
    if base.model not in spec.MODELS:
        sha256.update(Path(str(architectures.user_module(base.model).__file__)).read_bytes())
    dataset = datasets.load(base.data, seed=base.seed, cache_dir=base.paths.cache_dir)
    sha256.update(repr((dataset.content_hash, base.to_json(), tuple(modes), replicas)).encode())
    return sha256.hexdigest()


def _store(key: str) -> Path:
    return platformdirs.user_cache_path("convtwins") / "proofs" / f"{key}.json"


def _remembered(key: str) -> Proof | None:
    try:
        return Proof.model_validate_json(_store(key).read_bytes()).model_copy(update={"remembered": True})
    except (OSError, pydantic.ValidationError):
        return None
