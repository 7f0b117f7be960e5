"""One step of training from the same state, judged against the referee.

Both frameworks load the same weights, BatchNorm statistics and optimizer state. They take the same batch and do one step with
the kernels that are timed. Nothing that happened earlier counts, so little can hide behind rounding. Each parameter and each
statistic is judged on its own scale.

In float32, the referee's float64 step from the same state is the truth. The tolerance comes from the referee alone. It does
the step again in plain float32, from weights and pixels moved by one unit in the last place. Its means of BatchNorm, and
gradients of convolutions' kernels, err as long sums do. A framework may be `ROUNDING_FACTOR` times as far from the truth as
the farthest of these copies. Three copies may all come close to it by chance. So before a framework is called wrong, more are
made. The larger counts: the farthest of the first three, or the root mean square of all `MOST_COPIES`. ReLU and max-pooling
decide in the copies as they do in float64. Where rounding decided otherwise, the referee takes the decision over (see
`decisions`).

In float64 each step is compared with that of the first framework, within `TOLERANCE`. The scale of a gradient is its largest
component. Where that fails, it is for each component the sum of the absolute values that it adds up, as the referee finds them.
Where they cancel, the sum has fewer digits than its terms, in whatever order it is taken. Rounding in
the layers behind it is not among these terms. It must fit in as well.

Where replicas compress their gradients, the referee compresses each one's share by the written rules. Rounding decides which
step of a byte a value becomes, and which values are the largest. Such a value may become either, see `compressed`. What a
replica keeps for its next step is judged too.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common import spec
from common.data.batches import Plan
from common.machine import machine
from common.models import architectures, work
from common.models.architectures import Architecture, Layer
from common.models.sharding import shard
from common.spec import Spec
from common.training.tracing import SCORED, group, state, state_before
from compare.core import wording
from compare.core.differences import absolute
from compare.proof import claims, decisions
from compare.proof.certificate import Rung
from compare.proof.compressed import Buckets, Exchanged, exchange
from compare.proof.decisions import Decider, Step, Tie
from compare.proof.differences import over, rung
from compare.proof.referee import network, training
from compare.proof.referee.layers import Array
from compare.proof.referee.network import Batch

TOLERANCE = 1e-12
"""In float64, of the largest component of each gradient and statistic."""
MOST_BYTES = 4 * 2**30
"""Of the states of float64 steps. A large model is proved at fewer steps."""
STEPPED_FLOPS = 2.4e10
"""Of the single steps of one recording: about a second in float64. All steps of MiniXception would be half of its proof."""
LEAST_STEPS = 2
"""Of float32 steps, which need the referee's: the first and the last of all. One more where the learning rate changes: at the
last step it may be so small that no weight moves. More are left out where the budget is spent."""
SURE = 0.4
"""Of the tolerance. The effect of told decisions is first found in float32. Its error is some half of the tolerance at most:
that of two passes, which are about as far from the truth as the copies. Beyond this it is found in float64."""
OF_TERMS = "on the scale of what each component adds up"
COPIES = 3
"""Of the step in float32. BatchNorm of the first adds in eight lanes, as a vector unit does. That of the others errs as sums in
the worst order do. See `decisions.rough_mean`. The second adds up convolutions' kernels as one thread does, term after term."""
MOST_COPIES = 12
"""So many are made where a framework is beyond what three copies allow. BatchNorm may see few values. One direction then
carries most of the rounding, and each copy errs by a single random number. Three of these are small together once in some
hundred steps."""
ROUNDING_FACTOR = 8.0
TIE_FACTOR = 2.0
"""Rounding may decide where a value is closer to zero, or to another maximum, than so many times the copies' error (root mean
square). Beyond that lie 2 % of the values that an error of this size would turn."""
MOST_FLOPS = 1e11
"""To find which ties a step decided otherwise. It takes a backward pass for each."""
COMPONENTS = 100_000
"""Of the gradients, by which these ties are found."""
TOLD = 3
"""Gradients with told decisions that are kept of each step: two of the serial runs, and those of a mode."""
HOPELESS = 10.0
"""Times the tolerance that covers any decision of the ties. What differs by more is not explained by them."""
LOOSE = 1e-3
"""Of an array's scale. A larger tolerance proves little. The rung names it, and is shown if it covers any decision."""

_OF_SCORES = (
    "a prediction is the class of the largest logit, or of one that rounding can make the largest; the loss in evaluation may "
    "be off by what rounding moves a logit and the loss itself"
)
"""Why the tolerances of the scores."""

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Rounding of one number, relative."""
_UNTOLD = "the twin does not tell what its replicas keep"
_ASPECTS = ("batches", "losses", "scores", "gradients", "weights", "BatchNorm statistics")


class Truth(NamedTuple):
    """The step as it should be, and the largest rounding error of each number or array."""

    step: Step
    allowed: Step
    """With the decisions of `step`."""
    scales: Mapping[str, float]
    """Of each gradient, see `_scales`."""
    ties: tuple[Tie, ...] = ()
    copies: int = 0
    """In float32, that `allowed` comes from."""


class Finding(NamedTuple):
    """The largest difference of one array. It is relative to the array's own scale, and so is the tolerance."""

    difference: float
    tolerance: float
    where: str
    step: int

    @property
    def ratio(self) -> float:
        if not math.isfinite(self.difference):
            return math.inf
        return self.difference / self.tolerance if self.tolerance else (math.inf if self.difference else 0.0)

    @property
    def array(self) -> str:
        """Its name, without the optimizer's slot."""
        return self.where.partition(",")[0]


class _Division(NamedTuple):
    """How the step of a run divides a batch."""

    chains: list[list[Any]]
    """See `decisions.step`."""
    shards: tuple[tuple[int, int], ...] = ()
    """The bounds of each replica's examples. Empty where gradients are not compressed."""

    @property
    def key(self) -> Any:
        return self.chains_key, self.shards

    @property
    def chains_key(self) -> Any:
        return tuple(tuple(map(bytes, chain)) for chain in self.chains)

    @property
    def parts(self) -> list[Any]:
        return [part for chain in self.chains for part in chain]


class _Found(NamedTuple):
    """What differs at one step, and how it was judged."""

    differences: list[tuple[str, Finding]]
    """(aspect, difference)."""
    counts: Counter[str]
    """Of ties, and of steps with too many of them."""
    of_terms: Mapping[str, float] = {}
    """Gradients judged by `OF_TERMS`: the difference on the scale of the largest component."""


def drawn(what: Spec, architecture: Architecture, plan: Plan) -> list[int]:
    """Steps from all parts of a schedule, from 0.

    The first and the last of all, which may be uneven. Also the first after the learning rate has changed, the first of the
    second epoch, and the last of the first epoch. In float64 more between them. Of a large model fewer: as many as `MOST_BYTES`
    hold and `STEPPED_FLOPS` pay for.
    """
    total = plan.total_steps
    changed = what.schedule.step_size * plan.steps_per_epoch if what.schedule.name == "step" else 0
    parts = (0, total - 1, changed, plan.steps_per_epoch, plan.steps_per_epoch - 1)  # the most telling ones first
    affordable = int(STEPPED_FLOPS / (work.count(architecture).flops * what.global_batch_size))
    telling = list(dict.fromkeys(step for step in parts if 0 <= step < total))
    if what.precision == "float32":
        is_constant = what.schedule.name == "constant" and not what.schedule.warmup_steps
        return sorted(telling[: max(LEAST_STEPS if is_constant else LEAST_STEPS + 1, affordable)])
    state = 8 * sum(parameter.size for parameter in architecture.parameters()) * (2 if what.optimizer.name == "sgd" else 3)
    number = max(2, min(total, MOST_BYTES // state, affordable))
    if number < len(telling):
        return sorted(telling[:number])
    between = np.linspace(0, total - 1, total if number >= total else number - len(telling) + 2)
    return sorted({*telling, *(round(step) for step in between)})


def learning_rates(what: Spec, steps_per_epoch: int, steps: int) -> Callable[[int], float]:
    """The referee's own schedule of a run: the learning rate of a step, from 1."""
    settings, copies = what.schedule, what.data_replicas
    factor = {"none": 1.0, "linear": copies, "sqrt": math.sqrt(copies)}[settings.scaling]
    return training.schedule(
        settings.name,
        what.optimizer.learning_rate * factor,
        step_size=settings.step_size,
        gamma=settings.gamma,
        warmup_steps=settings.warmup_steps,
        steps_per_epoch=steps_per_epoch,
        steps=steps,
    )


class Judge:
    """Judges recordings of the same drawn steps.

    Args:
        architecture: of the model.
        teacher: the recording whose states all others load. It holds the batches.
        steps: drawn, from 0.
        plan: of the run.
        is_timed: the recording is of a timed run, which trained all steps before each of these. The referee is the truth in
            float64 too.
    """

    def __init__(
        self,
        architecture: Architecture,
        teacher: Mapping[str, npt.NDArray[Any]],
        steps: Sequence[int],
        plan: Plan,
        *,
        is_timed: bool = False,
    ) -> None:
        self._is_timed = is_timed
        self._architecture = architecture
        self._teacher = teacher
        self._steps = steps
        self._schedule = {"steps_per_epoch": plan.steps_per_epoch, "steps": plan.total_steps}
        self._flops = work.count(architecture).backward_flops
        self._truths: dict[Any, Truth] = {}
        self._leaders: dict[Any, Decider] = {}
        self._any_decision: dict[Any, Step] = {}
        self._with_turned: dict[Any, Step] = {}
        self._as_told: dict[Any, dict[bytes, Any]] = {}
        self._first_copies: dict[Any, dict[str, Array]] = {}
        """Gradients of the first float32 copy, by step and division."""
        self._effects: dict[Any, Array] = {}
        self._telling: dict[Any, Mapping[str, npt.NDArray[Any]]] = {}
        """By framework, step and chains, a serial recording that tells its decisions."""
        self._terms: dict[Any, dict[str, Array]] = {}
        self._losses: dict[Any, tuple[float, float]] = {}
        self._scored: dict[tuple[int, int], tuple[tuple[Array, Array], float]] = {}
        """By step and number of copies: (logits, losses) in evaluation mode, and how far rounding moves a logit."""
        self.stopped = False
        """Set by another thread that waits for no verdict any more."""

    def rungs(self, what: Spec, recorded: Mapping[str, npt.NDArray[Any]], framework: str) -> list[Rung]:
        """Rung 8 of one framework and mode.

        Args:
            what: the spec of the recorded run.
            recorded: its steps.
            framework: its name.
        """
        found: dict[str, list[Finding]] = {aspect: [] for aspect in _ASPECTS}
        counts = Counter[str]()
        of_terms: dict[str, list[float]] = {}
        judged = partial(self._judged, what, recorded, framework)
        numbers = [step + 1 for step in self._steps] if self._is_timed else range(1, len(self._steps) + 1)
        with ThreadPoolExecutor(machine.available_cores()) as pool:  # BLAS has one thread here, see `ladder.judging`
            for at_step in pool.map(judged, numbers, self._steps):
                counts += at_step.counts
                for aspect, finding in at_step.differences:
                    found[aspect].append(finding)
                for name, difference in at_step.of_terms.items():
                    of_terms.setdefault(name, []).append(difference)
        made: list[Rung] = []
        for aspect, findings in found.items():
            if not findings:
                continue
            worst = max(findings, key=lambda finding: finding.ratio)
            reason = _OF_SCORES if aspect == "scores" else _reason(what, counts) + _widest(findings)
            own_scale = {name: max(differences) for name, differences in of_terms.items()} if aspect == "gradients" else {}
            if own_scale:
                steps = ", ".join(
                    f"{name} at {wording.count(len(of_terms[name]), 'step')} (up to {own_scale[name]:.1e} of its "
                    "largest component)"
                    for name in sorted(own_scale)
                )
                reason += f"; judged {OF_TERMS}: {steps}"
            proves_little = any(counts[why] for why in ("loose", "unexplained", "untold", "any width"))
            loose = aspect == "gradients" and proves_little and worst.ratio <= 1
            made.append(
                rung(
                    what,
                    f"8 one step in {what.precision}: {aspect}",
                    worst.difference,
                    worst.where or None,
                    worst.tolerance,
                    "ids and pixels are equal or not" if aspect == "batches" else ("shown: " if loose else "") + reason,
                    step=worst.step + 1,
                    steps=self._schedule["steps"],
                    judged_steps=len(self._steps),
                    framework=framework,
                    mode=None if what.mode == "serial" else what.variant,
                    of_terms=own_scale,
                    **({"status": "shown"} if loose else {}),
                )
            )
        return made

    def loss(self, what: Spec, step: int) -> tuple[float, float]:
        """(the loss of a float32 step, how far rounding may move it)."""
        key = step, (division := self._division(what, step)).chains_key
        if key not in self._losses:
            leader = Decider()
            true, losses = self._step(step, division, leader, np.float64, forward_only=True)
            moved = [
                self._step(step, division, own, np.float32, seed, forward_only=True)
                for seed, own in enumerate(_copies(leader, MOST_COPIES))
            ]
            self._losses[key] = true.loss, _loss_error(true, losses, moved)
        return self._losses[key]

    def decided_otherwise(
        self, what: Spec, step: int, gradients: Mapping[str, Array]
    ) -> tuple[list[Tie], dict[str, Array]] | None:
        """(the ties that float32 gradients decide otherwise than the referee; its gradients with these decisions).

        None: the nearest ties do not explain the gradients, and there are too many to try all.
        """
        truth = self._truth(what, step)
        affordable = int(MOST_FLOPS // (self._flops * len(self._teacher[f"labels/{step}"])))
        nearest = sorted(truth.ties, key=lambda tie: tie.nearness)[:affordable]
        found: tuple[list[Tie], dict[str, Array]] = [], truth.step.gradients
        for reach in (TIE_FACTOR, decisions.REACH):
            ties = sorted(tie for tie in nearest if tie.nearness <= reach)
            if ties and (turned := self._explaining(what, step, truth, gradients, ties)):
                found = turned, self._turned(what, step, truth, turned).step.gradients
                limits = truth.allowed.gradients
                if all(float(absolute(found[1][name], gradients[name]).max()) <= limits[name] for name in limits):
                    return found
        return found if len(nearest) == len(truth.ties) else None

    def _judged(self, what: Spec, recorded: Mapping[str, npt.NDArray[Any]], framework: str, number: int, step: int) -> _Found:
        """Compare a recorded step with the truth. Where it is beyond the tolerance of few copies, more are made."""
        found = self._compared(what, recorded, framework, number, step)
        beyond = [(aspect, finding.ratio) for aspect, finding in found.differences if finding.ratio > 1]
        is_far = any(ratio > HOPELESS and aspect != "scores" for aspect, ratio in beyond)
        if what.precision == "float64" or not beyond or is_far:
            return found
        division = self._division(what, step)
        if self._truth(what, step).copies < MOST_COPIES:
            self._truths[step, division.key] = self._of_referee(what, step, division, MOST_COPIES)
            self._any_decision.pop((step, division.key), None)
            for key in [each for each in self._effects if each[1:3] == (division.key, step)]:
                del self._effects[key]  # they are in units of the tolerances
        return self._compared(what, recorded, framework, number, step)

    def _compared(self, what: Spec, recorded: Mapping[str, npt.NDArray[Any]], framework: str, number: int, step: int) -> _Found:
        """Compare a recorded step with the truth as it is known so far."""
        if self.stopped:
            raise CancelledError
        truth = self._truth(what, step)
        tells = f"decisions/{step}/0" in recorded
        own_chains = framework, step, self._division(what, step).chains_key
        if tells and what.mode == "serial":
            self._telling.setdefault(own_chains, recorded)
        counts = Counter(ties=sum(tie.nearness <= TIE_FACTOR for tie in truth.ties))

        def findings(truth: Truth) -> list[tuple[str, Finding]]:
            exchanged = self._exchanged(what, recorded, truth, number, step) if what.compresses else None
            if isinstance(exchanged, Exchanged):
                counts["open"] = sum(int(each.sum()) for each in exchanged.open.values())
                counts["any width"] = int(exchanged.is_loose)
            counts["untold"] = int(exchanged == _UNTOLD)
            return list(self._findings(what, recorded, truth, number, step, exchanged))

        def worst(found: list[tuple[str, Finding]], *aspects: str) -> float:
            return max(finding.ratio for aspect, finding in found if aspect in (aspects or _ASPECTS))

        found = findings(truth)
        if what.precision == "float64" and worst(found) > 1:
            beyond: dict[str, float] = {}
            for aspect, finding in found:
                if aspect == "gradients" and 1 < finding.ratio < math.inf:
                    beyond[finding.array] = max(beyond.get(finding.array, 0.0), finding.difference)
            if beyond and self._is_known(what):
                return _Found(findings(self._of_terms(what, step, truth, beyond)), counts, beyond)
        if what.precision == "float64" or worst(found, "gradients", "weights") <= 1:
            return _Found(found, counts)
        # A mode that divides the model does not tell what it decides. Mostly it is what the serial run decides.
        source = recorded if tells else self._telling.get(own_chains)
        if source is not None and (told := self._as_recorded(what, source, truth, step, np.float32)) is not None:
            stepped, turned, unexplained = told
            of_told = findings(stepped)
            is_sure = unexplained or worst(of_told, "gradients", "weights") <= SURE
            if not is_sure and (exact := self._as_recorded(what, source, truth, step, np.float64)) is not None:
                of_told = findings(exact[0])
            counts += Counter(unexplained=unexplained if tells else 0)
            if not unexplained and (tells or worst(of_told, "gradients", "weights") <= 1):
                return _Found(of_told, counts + Counter(turned=turned))
        whatever = truth._replace(allowed=self._with_any_decision(what, step, truth))
        either = findings(whatever)
        if worst(either, "gradients", "weights") > HOPELESS:
            return _Found(either, counts)
        if what.compresses:  # what arrives does not tell a replica's decisions
            return _Found(either, counts + Counter(many=1, loose=1))
        decided = self.decided_otherwise(what, step, self._gradients(what, recorded, step))
        if decided is None:
            widest = max(over(limit, truth.scales[name]) for name, limit in whatever.allowed.gradients.items())
            return _Found(either, counts + Counter(many=1, loose=int(widest > LOOSE)))
        turned, with_them = decided
        own = findings(truth._replace(step=truth.step._replace(gradients=with_them)))
        if worst(own, "gradients", "weights") < worst(found, "gradients", "weights"):
            return _Found(own, counts + Counter(turned=len(turned)))
        return _Found(found, counts)

    def _is_known(self, what: Spec) -> bool:
        """Whether the referee knows the model. One with builders of its own may compute more than its architecture says."""
        return what.model in spec.MODELS or not claims.has_own_builders(what.model)

    def _gradients(self, what: Spec, recorded: Mapping[str, npt.NDArray[Any]], step: int) -> dict[str, Array]:
        """The gradients of a recorded step, which its optimizer state tells."""
        (weights, before), (_, after) = state_before(self._teacher, step), state(recorded, f"after/{step}")
        settings = what.optimizer
        slot, kept, share = "buffer", settings.momentum, 1.0
        if settings.name == "adam":
            slot, kept, share = "mean", settings.beta_1, 1.0 - settings.beta_1
        return {
            name: (np.asarray(after[slot][name], np.float64) - kept * np.asarray(before[slot][name], np.float64)) / share
            - settings.weight_decay * np.asarray(weights[name], np.float64)
            for name in before[slot]
        }

    def _explaining(
        self, what: Spec, step: int, truth: Truth, gradients: Mapping[str, Array], ties: Sequence[Tie]
    ) -> list[Tie]:
        """The ties that a recorded step decided otherwise than the referee, as its gradients tell."""
        division = self._division(what, step)
        sizes = {name: max(limit, np.finfo(np.float32).tiny) for name, limit in truth.allowed.gradients.items()}
        every = max(1, sum(array.size for array in truth.step.gradients.values()) // COMPONENTS)

        def flat(arrays: Mapping[str, Array]) -> Array:
            """A sample of all components, each in units of what rounding may do to it."""
            parts = [
                (arrays[name].ravel()[:: every if array.size > COMPONENTS // 100 else 1] / sizes[name]).astype(np.float32)
                if name in arrays
                else np.zeros(array.ravel()[:: every if array.size > COMPONENTS // 100 else 1].size, np.float32)
                for name, array in truth.step.gradients.items()
            ]
            return np.concatenate(parts)

        key = "effects", division.key, step, len(ties)
        if key not in self._effects:
            leader = self._leaders[step, division.key]
            inputs = self._inputs(step, np.float32)
            each = decisions.effects(self._architecture, *inputs, division.chains, leader.follower(), ties)
            self._effects[key] = np.stack([flat(effect) for effect in each])
        left = flat({name: gradients[name] - wanted for name, wanted in truth.step.gradients.items()})
        return decisions.explained(left, self._effects[key], ties)

    def _as_recorded(
        self, what: Spec, recorded: Mapping[str, npt.NDArray[Any]], truth: Truth, step: int, dtype: Any
    ) -> tuple[Truth, int, int] | None:
        """The truth with the decisions that a run recorded, and two counts: see `Decider.as_recorded`.

        In float32 it is the truth without them, and what they change in a pass from the first copy's inputs.
        """
        own = group(recorded, f"decisions/{step}/")
        arrays = [own[str(number)] for number in range(len(own))]
        division = self._division(what, step)
        kept = self._as_told.setdefault((step, division.key), {})
        digest = hashlib.sha256(b"".join(map(bytes, arrays))).digest() + np.dtype(dtype).str.encode()
        if digest not in kept:  # often the same in several recordings
            told = self._leaders[step, division.key].as_recorded(arrays, division.parts)
            if told is None:
                return None
            while len(kept) >= TOLD:
                del kept[next(iter(kept))]
            gradients = self._step(step, division, told[0], dtype, seed=0 if dtype == np.float32 else None)[0].gradients
            if dtype == np.float32:
                first = self._first_copies[step, division.key]
                changes = {name: np.subtract(array, first[name], dtype=np.float64) for name, array in gradients.items()}
                gradients = {name: array + changes[name] for name, array in truth.step.gradients.items()}
            kept[digest] = gradients, *told[1:]
        gradients, *counted = kept[digest]
        return truth._replace(step=truth.step._replace(gradients=gradients)), *counted

    def _turned(self, what: Spec, step: int, truth: Truth, turned: Sequence[Tie]) -> Truth:
        """The truth of a step, with some ties decided otherwise."""
        division = self._division(what, step)
        key = step, division.key, tuple(turned)
        if key not in self._with_turned:  # often the same in several recordings
            leader = self._leaders[step, division.key]
            self._with_turned[key] = self._step(step, division, leader.follower(turned), np.float64)[0]
        return truth._replace(step=self._with_turned[key])

    def _findings(
        self,
        what: Spec,
        recorded: Mapping[str, npt.NDArray[Any]],
        truth: Truth,
        number: int,
        step: int,
        exchanged: Exchanged | str | None,
    ) -> Iterator[tuple[str, Finding]]:
        unit = UNIT[what.precision]
        if not self._is_timed:  # then the plan judges the batch
            same = all(
                np.array_equal(recorded[f"{each}/{step}"], self._teacher[f"{each}/{step}"]) for each in ("ids", "hashes")
            )
            yield "batches", Finding(0.0 if same else math.inf, 0.0, "" if same else "ids or pixels", step)

        def finding(where: str, difference: Array, allowed: Any, scale: float, is_open: Any = False) -> Finding:
            allowed = np.broadcast_to(allowed, difference.shape)
            if not (np.isfinite(difference).all() and np.isfinite(allowed).all() and math.isfinite(scale)):
                return Finding(math.inf, 0.0, where, step)
            if what.precision == "float64":
                allowed = np.maximum(allowed, TOLERANCE * scale)
            ratio = np.divide(difference, allowed, out=np.where(difference > 0, np.inf, 0.0), where=allowed > 0)
            # What is open says little: it is found where it is too far, and else the others tell.
            told = np.where(is_open & (ratio <= 1), -1.0, ratio)
            worst = np.unravel_index(np.argmax(told if told.max() >= 0 else ratio), ratio.shape)
            scale = max(scale, float(allowed[worst])) or 1.0  # an array that is nothing but rounding has no scale
            return Finding(float(difference[worst]) / scale, float(allowed[worst]) / scale, where, step)

        loss = np.asarray(recorded[f"loss/{step}"], np.float64).reshape(1)
        yield "losses", finding("", absolute(loss, np.array([truth.step.loss])), truth.allowed.loss, abs(truth.step.loss))
        if what.precision == "float32" and f"num_correct/{step}" in recorded:
            yield from (("scores", each) for each in self._counted(recorded, truth, step))
            (_, losses), error, predicted = self._evaluated(recorded, step, truth.copies)
            scored, wanted = np.asarray(recorded[f"scored/{step}/loss"], np.float64).reshape(1), losses.mean().reshape(1)
            scale = abs(float(wanted[0]))
            # An image moves the loss by twice a logit's error at most. The loss rounds too, even where all logits are tiny.
            allowed = 2 * error + ROUNDING_FACTOR * unit * scale
            yield "scores", finding("loss in evaluation", absolute(scored, wanted), allowed, scale)
            yield "scores", predicted
        (weights, kept_before), after = state_before(self._teacher, step), group(recorded, f"after/{step}/weights/")
        for name, wanted in truth.step.statistics.items():
            difference, scale = absolute(wanted, after.get(name)), float(np.abs(wanted).max())
            yield "BatchNorm statistics", finding(name, difference, truth.allowed.statistics[name] + 4 * unit * scale, scale)
        gradients: Mapping[str, Array] = truth.step.gradients
        limits: Mapping[str, Any] = truth.allowed.gradients
        is_open: Mapping[str, Any] = {}
        if isinstance(exchanged, str):
            yield "gradients", Finding(0.0 if exchanged == _UNTOLD else math.inf, 0.0, exchanged, step)
            return
        if exchanged is not None:
            gradients, limits, is_open = exchanged.gradients, exchanged.allowed, exchanged.open
            kept = _lost(recorded, "after", step)
            wanted = zip(exchanged.lost, exchanged.lost_allowed, exchanged.lost_open, strict=True)
            for place, (lost, limit, either) in enumerate(wanted):
                where, scale = f"not sent of bucket {place + 1}", float(np.abs(lost).max())
                yield "gradients", finding(where, absolute(lost, kept[place]), limit, scale, either)
            # What is open may be sent or kept. It may not be both, nor neither.
            if exchanged.sums:
                there, errors = map(self._buckets(what).joined, self._arrived(what, recorded, step))
                for place, (together, limit) in enumerate(exchanged.sums):
                    where, scale = f"sent and kept of bucket {place + 1}", float(np.abs(together).max())
                    difference = absolute(together, there[place] + np.asarray(kept[place], np.float64).sum(0))
                    yield "gradients", finding(where, difference, limit + errors[place], scale)
        settings, rate = what.optimizer, learning_rates(what, **self._schedule)(step + 1)
        for name, gradient in gradients.items():
            weight = np.asarray(weights[name], np.float64)
            slots = {slot: np.asarray(values[name], np.float64) for slot, values in kept_before.items()}
            allowed = limits[name]
            rule = _Rule(settings, slots, unit)
            expected = rule.slots_after(name, weight, gradient, allowed)
            own = {slot: recorded.get(f"after/{step}/slots/{slot}/{name}") for slot in expected}
            for slot, (value, limit, share) in expected.items():
                scale = truth.scales[name] if share else float(np.abs(value).max())
                difference = absolute(value, own[slot]) / (share or 1.0)
                aspect = f"{name}, {slot}", difference, limit / (share or 1.0), scale
                yield "gradients", finding(*aspect, is_open.get(name, False))
            values = {
                slot: value if own[slot] is None else np.asarray(own[slot], np.float64)
                for slot, (value, *_) in expected.items()
            }
            moved, limit = rule.update(values, rate, number)
            difference = absolute(weight - moved, after.get(name))
            scale = float(np.abs(moved).max()) or float(np.abs(weight).max())
            yield "weights", finding(name, difference, limit + 3 * unit * np.abs(weight), scale)

    def _counted(self, recorded: Mapping[str, npt.NDArray[Any]], truth: Truth, step: int) -> Iterator[Finding]:
        """The right predictions in training. A prediction may be any class whose logit rounding can make the largest."""
        logits, labels = truth.step.logits, truth.step.labels
        others = np.where(np.eye(logits.shape[1], dtype=bool)[labels], -np.inf, logits).max(1)
        margins = logits[range(len(labels)), labels] - others
        error = 2 * truth.allowed.logits
        least, most = int((margins > error).sum()), int((margins >= -error).sum())  # equal logits are a tie
        counted = np.asarray(recorded[f"num_correct/{step}"]).item()
        beyond = max(least - counted, counted - most, 0)
        yield Finding(beyond / len(labels), 0.0, f"right predictions of {counted} images, should be {least} to {most}", step)

    def _evaluated(
        self, recorded: Mapping[str, npt.NDArray[Any]], step: int, number: int
    ) -> tuple[tuple[Array, Array], float, Finding]:
        """((logits, losses) in evaluation mode, how far rounding moves a logit, what the recorded predictions miss)."""
        if (step, number) not in self._scored:
            inputs = [self._inputs(step, np.float64), *(self._inputs(step, np.float32, seed) for seed in range(number))]
            (logits, losses), *copies = (
                decisions.scored(self._architecture, weights, Batch(batch.images[:SCORED], batch.labels[:SCORED], []))
                for weights, batch in inputs
            )
            apart = _rounding([float(np.abs(each - logits).max()) for each, _ in copies])
            error = ROUNDING_FACTOR * (apart + UNIT["float32"] * float(np.abs(logits).max()))
            self._scored[step, number] = (logits, losses), error
        (logits, losses), error = self._scored[step, number]
        predictions = np.asarray(recorded[f"scored/{step}/predictions"])
        classes = np.clip(predictions, 0, logits.shape[1] - 1)
        missed = logits.max(1) - logits[range(len(classes)), classes] > 2 * error
        missed |= classes != predictions
        where = f"{missed.sum()} of {len(missed)} predictions in evaluation"
        return (logits, losses), error, Finding(float(missed.mean()), 0.0, where, step)

    def _division(self, what: Spec, step: int) -> _Division:
        size = len(self._teacher[f"labels/{step}"])
        shards = tuple(shard(size, what.data_replicas, rank) for rank in range(what.data_replicas if what.compresses else 0))
        return _Division(_chains(what, size) if self._architecture.has_batch_norm else [[np.arange(size)]], shards)

    def _buckets(self, what: Spec) -> Buckets:
        trained = [parameter for parameter in self._architecture.parameters() if parameter.trainable]
        return Buckets([each.name for each in trained], [each.shape for each in trained], what)

    def _exchanged(
        self, what: Spec, recorded: Mapping[str, npt.NDArray[Any]], truth: Truth, number: int, step: int
    ) -> Exchanged | str:
        """What should arrive, and be kept; or what is wrong with what the replicas had kept before."""
        buckets, lost = self._buckets(what), list[npt.NDArray[Any]]()
        if what.communication.error_feedback:
            lost, kept = (_lost(recorded, when, step) for when in ("before", "after"))
            if not lost and not kept:
                return _UNTOLD
            if any([each.shape for each in own] != buckets.sizes for own in (lost, kept)):
                return "what replicas keep has another size than their buckets"
            if self._is_timed:  # the step before was not recorded
                return exchange(buckets, truth.step.gradients, truth.allowed.gradients, lost)
            earlier = _lost(recorded, "after", self._steps[number - 2]) if number > 1 else list(map(np.zeros_like, lost))
            if not all(map(np.array_equal, earlier, lost)):
                return "what replicas kept of the step before is not what they have now, or no number"
        return exchange(buckets, truth.step.gradients, truth.allowed.gradients, lost)

    def _arrived(
        self, what: Spec, recorded: Mapping[str, npt.NDArray[Any]], step: int
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """(the gradients of a recorded step; how far rounding moves them, since only the optimizer's state tells them)."""
        (weights, before), (_, after) = state_before(self._teacher, step), state(recorded, f"after/{step}")
        slot, share = ("mean", 1.0 - what.optimizer.beta_1) if what.optimizer.name == "adam" else ("buffer", 1.0)
        decay = what.optimizer.weight_decay

        def error(name: str) -> Array:
            sizes = np.abs(after[slot][name]) + np.abs(before[slot][name]) + decay * np.abs(weights[name])
            return (4 * UNIT["float32"] * sizes + 2 * np.finfo(np.float32).tiny) / share

        return self._gradients(what, recorded, step), {name: error(name) for name in before[slot]}

    def _truth(self, what: Spec, step: int) -> Truth:
        if what.precision == "float64":
            return self._of_float64(what, step)  # quickly read, and too large to be kept
        key = step, (division := self._division(what, step)).key
        if key not in self._truths:
            self._truths[key] = self._of_referee(what, step, division)
        return self._truths[key]

    def _of_float64(self, what: Spec, step: int) -> Truth:
        """What the first framework did. Of a timed run, what the referee does."""
        if self._is_timed:
            true, _ = self._step(step, self._division(what, step), Decider(), np.float64)
            loss, gradients, statistics = float(true.loss), true.gradients, true.statistics
        else:
            gradients = self._gradients(what, self._teacher, step)
            stepped, _ = state(self._teacher, f"after/{step}")
            statistics = {name: array for name, array in stepped.items() if name not in gradients}
            loss = self._teacher[f"loss/{step}"].item()
        scales = _scales(self._architecture, gradients)
        allowed = Step(
            TOLERANCE * abs(loss),
            {name: TOLERANCE * scales[name] for name in gradients},
            {name: TOLERANCE * float(np.abs(array).max()) for name, array in statistics.items()},
        )
        return Truth(Step(loss, gradients, statistics), allowed, scales)

    def _of_terms(self, what: Spec, step: int, truth: Truth, arrays: Collection[str]) -> Truth:
        """The same truth of a float64 step. Each component of these arrays' gradients may err by what it adds up."""
        division = self._division(what, step)
        known = self._terms.setdefault((step, division.key), {})
        if any(name not in known for name in arrays):  # those of all kernels are as large as the model
            known |= decisions.terms(self._architecture, *self._inputs(step, np.float64), division.chains, arrays)
        gradients = truth.allowed.gradients | {name: TOLERANCE * known[name] for name in arrays}
        return truth._replace(allowed=truth.allowed._replace(gradients=gradients))

    def _of_referee(self, what: Spec, step: int, division: _Division, copies: int = COPIES) -> Truth:
        leader = Decider()
        true, losses = self._step(step, division, leader, np.float64)
        narrow = what.precision == "float32"

        moved = [self._step(step, division, own, np.float32, seed) for seed, own in enumerate(_copies(leader, copies))]
        ties = tuple(leader.ties()) if narrow else ()
        leader.forget_values()
        if narrow:
            self._leaders[step, division.key] = leader
            self._first_copies[step, division.key] = moved[0][0].gradients

        def rounding(of: Callable[[Step], dict[str, Any]]) -> dict[str, float]:
            apart = [_apart(of(true), of(each)) for each, _ in moved]
            return {name: ROUNDING_FACTOR * _rounding([each[name] for each in apart]) for name in of(true)}

        apart = _rounding([float(np.abs(each.logits - true.logits).max()) for each, _ in moved])
        own = Step(
            _loss_error(true, losses, moved),
            rounding(lambda each: each.gradients),
            rounding(lambda each: each.statistics),
            logits=ROUNDING_FACTOR * (apart + UNIT["float32"] * float(np.abs(true.logits).max())),
        )
        return Truth(true, own, _scales(self._architecture, true.gradients), ties, copies)

    def _with_any_decision(self, what: Spec, step: int, truth: Truth) -> Step:
        """What rounding may do to a float32 step, whichever way it decides the ties."""
        key = step, (division := self._division(what, step)).key
        if key not in self._any_decision:
            near = [tie for tie in truth.ties if tie.nearness <= TIE_FACTOR]
            coins = np.random.default_rng(1).random(len(near)) < 0.5
            # One copy tosses a coin at each tie, the other decides the opposite.
            sides = [[tie for tie, coin in zip(near, coins, strict=True) if coin == side] for side in (True, False)]
            deciders = (self._leaders[key].follower(turned) for turned in sides if turned)
            tossed = [self._step(step, division, own, np.float32, seed)[0] for seed, own in enumerate(deciders)]
            apart = [_apart(truth.step.gradients, each.gradients) for each in tossed]
            turned = {name: max((each[name] for each in apart), default=0.0) for name in truth.step.gradients}
            allowed = truth.allowed.gradients
            gradients = {name: limit + TIE_FACTOR * turned[name] for name, limit in allowed.items()}
            self._any_decision[key] = truth.allowed._replace(gradients=gradients)
        return self._any_decision[key]

    def _step(
        self,
        step: int,
        division: _Division,
        decider: Decider,
        dtype: Any,
        seed: int | None = None,
        *,
        forward_only: bool = False,
    ) -> tuple[Step, Array]:
        """The referee's step. With a seed, from weights and pixels that are moved by one unit in the last place."""
        if self.stopped:
            raise CancelledError
        inputs = self._inputs(step, dtype, seed)
        chains, shards = division.chains, division.shards
        return decisions.step(self._architecture, *inputs, chains, decider, shards, forward_only=forward_only)

    def _inputs(self, step: int, dtype: Any, seed: int | None = None) -> tuple[dict[str, Array], Batch]:
        generator = None if seed is None else np.random.default_rng(seed)

        def given(array: Any) -> Any:
            return array.astype(dtype) if generator is None else _moved(array.astype(dtype), generator)

        scaling = self._teacher["pixel_mean"].tolist(), self._teacher["pixel_std"].tolist()
        images = given(network.scaled(self._teacher[f"images/{step}"], *scaling, dtype))
        masks = [self._teacher[f"masks/{step}/{index}"] for index in range(len(self._architecture.dropouts))]
        weights, _ = state_before(self._teacher, step)
        return {name: given(each) for name, each in weights.items()}, Batch(images, self._teacher[f"labels/{step}"], masks)


def _copies(leader: Decider, number: int = COPIES) -> Iterator[Decider]:
    """Make the deciders of float32 copies of a step, which decide as the leader. The first `COPIES` measure its ties."""
    yield Decider(leader)
    for seed in range(number - 1):
        resum = decisions.term_after_term if seed == 0 else None
        yield Decider(leader, mean_of=decisions.rough_mean(seed), resum=resum, measures=seed < COPIES - 1)


def _loss_error(true: Step, losses: Array, moved: Sequence[tuple[Step, Array]]) -> float:
    """How far rounding may move a step's loss: errors of its examples' losses need not cancel."""
    error = _rounding([float(np.abs(other - losses).mean()) for _, other in moved])
    return ROUNDING_FACTOR * (error + UNIT["float32"] * abs(true.loss))


@dataclass(frozen=True)
class _Rule:
    """The update of one array, and how far rounding may move it."""

    settings: spec.Optimizer
    slots: Mapping[str, Array]
    unit: float

    def slots_after(self, name: str, weight: Array, gradient: Array, allowed: Any) -> dict[str, tuple[Array, Array, float]]:
        """By slot: its value after a step, the largest error, and the gradient's share in it (0 for a square)."""
        given, unit, tiny = self.settings, self.unit, np.finfo(np.float32).tiny  # what fades away ends in few digits
        decayed = gradient + given.weight_decay * weight
        error = allowed + 2 * unit * given.weight_decay * np.abs(weight)
        if given.name == "sgd":
            before = self.slots["buffer"]
            buffer = given.momentum * before + decayed
            return {"buffer": (buffer, error + 3 * unit * (np.abs(buffer) + given.momentum * np.abs(before)) + tiny, 1.0)}
        mean, square = self.slots["mean"], self.slots["square"]
        # A constant such as 1 - beta_2 has the error of beta_2, however small it is.
        new_mean = given.beta_1 * mean + (1 - given.beta_1) * decayed
        new_square = given.beta_2 * square + (1 - given.beta_2) * decayed**2
        share, share_2 = 1 - given.beta_1, 1 - given.beta_2
        mean_error = share * error + 4 * unit * (np.abs(new_mean) + np.abs(mean) + np.abs(decayed))
        square_error = share_2 * (2 * np.abs(decayed) * error + error**2) + 4 * unit * (square + decayed**2)
        return {
            "mean": (new_mean, mean_error + tiny, share),
            "square": (new_square, square_error + tiny, 0.0),
        }

    def update(self, slots: Mapping[str, Array], rate: float, number: int) -> tuple[Array, Array]:
        """What is subtracted from the weight, and the largest error.

        Args:
            slots: after the step, those of the framework itself.
            rate: the learning rate.
            number: of the step, from 1.
        """
        given, unit = self.settings, self.unit
        if given.name == "sgd":
            moved = rate * slots["buffer"]
            return moved, 4 * unit * np.abs(moved)
        corrected = 1 - given.beta_1**number, 1 - given.beta_2**number
        divisor = np.sqrt(slots["square"] / corrected[1]) + given.epsilon
        moved = rate / corrected[0] * slots["mean"] / divisor
        constants = 8 + 1 / corrected[0] + 1 / corrected[1]
        return moved, constants * unit * np.abs(moved)


def update_of(run: Spec, slots: Mapping[str, Array], rate: float, number: int) -> tuple[Array, Array]:
    """(what a step subtracts from a weight, the largest error of that in the run's own precision).

    Args:
        slots: the optimizer's state of the weight after the step.
        rate: the learning rate.
        number: of the step, from 1.
    """
    return _Rule(run.optimizer, {}, UNIT[run.precision]).update(slots, rate, number)


def _lost(recorded: Mapping[str, npt.NDArray[Any]], when: str, step: int) -> list[npt.NDArray[Any]]:
    """Of each bucket [replicas, count]: what compression has lost so far."""
    found = group(recorded, f"lost/{when}/{step}/")
    return [found[str(number)] for number in range(len(found))]


def _apart(truth: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, float]:
    """By name, the largest difference of an array."""
    return {name: float(np.abs(other[name] - array).max()) for name, array in truth.items()}


def _rounding(errors: Sequence[float]) -> float:
    """Return what rounding does, from the errors of copies.

    It is the largest of the first `COPIES`, or the root mean square of all where that is larger.
    """
    return max(*errors[:COPIES], float(np.sqrt(np.mean(np.square(errors)))))


def _widest(findings: Sequence[Finding]) -> str:
    """How wide the tolerances are, as a part of a reason."""
    compared = [finding for finding in findings if finding.tolerance < 1]
    if not compared:
        return "; every array is nothing but rounding, and is not compared"
    widest = max(compared, key=lambda finding: finding.tolerance)
    said = f"; widest tolerance {widest.tolerance:.0e}" + (f" of {widest.where}" if widest.where else "")
    if loose := sum(finding.tolerance > LOOSE for finding in compared):
        said += f", one of {loose} above {LOOSE:.0e}, which prove little of their arrays"
    if empty := len(findings) - len(compared):
        said += f"; {empty} times an array is nothing but rounding, and is not compared"
    return said


def _reason(what: Spec, counts: Counter[str]) -> str:
    """Why these tolerances."""
    if what.precision == "float64":
        return "rounding of float64, on each array's own scale"
    reason = f"{ROUNDING_FACTOR:.0f} times the referee's own float32 rounding, on each array's own scale"
    if counts["ties"]:
        reason += f"; rounding may decide {counts['ties']} ReLUs and maxima"
    if counts["open"]:
        reason += f"; at {counts['open']} components rounding decides what a replica sends, and they may be either"
    if counts["untold"]:
        reason += f"; {_UNTOLD} for the next step, so what arrives is not judged"
    if counts["any width"]:
        reason += "; numbers of half the width are added in any order, so gradients that are not compressed would pass too"
    if counts["turned"]:
        reason += f"; it decided {counts['turned']} otherwise than in float64, and the referee took these decisions over"
    if counts["unexplained"]:
        reason += f"; rounding does not explain {wording.count(counts['unexplained'], 'decision')} that the framework tells"
    if counts["many"]:
        reason += f"; at {counts['many']} steps they are too many to try all, and the tolerance covers any decision"
    return reason


def _chains(what: Spec, size: int) -> list[list[npt.NDArray[np.int64]]]:
    """The positions that BatchNorm sees together: for each replica with its own statistics, micro-batch by micro-batch."""
    parts = what.micro_batches(size)
    shards = [np.arange(*shard(size, what.data_replicas, rank)) for rank in range(what.data_replicas)]
    cut = [np.split(own, parts) for own in shards]
    if what.batch_norm_statistics == "synchronised":
        return [[np.concatenate(together) for together in zip(*cut, strict=True)]]
    return [list(own) for own in cut]


def _moved(array: Array, generator: np.random.Generator) -> Array:
    """Every value one unit in the last place up or down.

    A zero stays. Beside it lie subnormal numbers. No sum would notice them, and with them BLAS is ten times as slow.
    """
    up = generator.random(array.shape, np.float32) < 0.5
    moved = np.nextafter(array, np.where(up, array.dtype.type(np.inf), array.dtype.type(-np.inf)))
    return np.where(array == 0, array, moved)


def _scales(architecture: Architecture, gradients: dict[str, Array]) -> dict[str, float]:
    """The largest component of each gradient. A bias of no effect has the scale of its layer's kernel."""
    scales = {name: float(np.abs(gradient).max()) for name, gradient in gradients.items()}
    return scales | {name: scales[f"{name.removesuffix('bias')}kernel"] for name in of_no_effect(architecture)}


def of_no_effect(architecture: Architecture) -> dict[str, str]:
    """The biases in front of BatchNorm, which takes the mean away, and the bias with it. Each with the name of its BatchNorm.

    In exact arithmetic such a bias has no gradient: its terms add up to zero. What is left is the rounding of this sum.
    """
    trained = {parameter.name for parameter in architecture.parameters()}

    def last(layer: Layer) -> Iterator[Layer]:
        """The layers whose outputs leave a layer as they are, added up, or side by side."""
        inside = architectures.branches(layer)
        for branch in inside if not getattr(layer, "relu", False) else ():
            yield from last(branch[-1]) if branch else ()
        if not inside:
            yield layer

    def in_front(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, str]]:
        for first, second in itertools.pairwise(layers):
            if isinstance(second, architectures.BatchNorm):
                yield from ((each, second.name) for each in last(first))
        for layer in layers:
            for branch in (layer.layers,) if isinstance(layer, architectures.Opaque) else architectures.branches(layer):
                yield from in_front(branch)

    biases = {f"{layer.name}.bias": following for layer, following in in_front(architecture.layers)}
    return {name: following for name, following in biases.items() if name in trained}
