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

# MARK
from common.data.batches import BatchPlan
from common.machine import machine
from common.models import architectures, work
from common.models.architectures import Architecture, Layer
from common.models.sharding import shard
from common.spec import MODELS, Optimizer, Spec
from common.training.tracing import SCORED, group, state, state_before
from compare.core import wording
from compare.core.differences import absolute
from compare.proof import claims, decisions
from compare.proof.certificate import Rung
from compare.proof.compressed import Buckets, ExpectedExchange, expected_exchange
from compare.proof.decisions import Decider, StepOutcome, Tie
from compare.proof.differences import make_rung, on_scale
from compare.proof.referee import network, training
from compare.proof.referee.layers import Array
from compare.proof.referee.network import RefereeBatch

TOLERANCE = 1e-12
"""Tolerance in float64, relative to the largest component of each gradient and statistic."""
MOST_BYTES = 4 * 2**30
"""Bytes of the states of float64 steps. A large model is proved at fewer steps."""
STEPPED_FLOPS = 2.4e10
"""FLOPs of the single steps of one recording: about a second in float64. All steps of MiniXception would be half of its
proof."""
LEAST_STEPS = 2
"""Fewest float32 steps, each of which the referee repeats: the first and the last of all. One more if the learning rate
changes, because it may be so small at the last step that no weight moves. The budget decides about more steps."""
SCREENING_MARGIN = 0.4
"""Difference divided by tolerance up to which a float32 pass with the recorded decisions is enough; otherwise it is repeated in
float64. The error of the two float32 passes is at most some half of the tolerance."""
TERM_SCALE = "on the scale of what each component adds up"
COPIES = 3
"""Number of copies of a step in float32. BatchNorm of the first adds in eight lanes, as a vector unit does. That of the others
errs as sums in the worst order do, see `decisions.rough_mean`. The second adds up convolutions' kernels as one thread does."""
MOST_COPIES = 12
"""Number of copies of a step if a framework exceeds the tolerance of the first ones. BatchNorm may see few values. One
direction then carries most of the rounding, and each copy errs by a single random number. Three of these are all small once in
some hundred steps."""
ROUNDING_FACTOR = 8.0
TIE_FACTOR = 2.0
"""Distance from zero, or from another maximum, up to which rounding may decide, in errors of the copies (root mean square).
Beyond that lie 2 % of the values that an error of this size would turn."""
MOST_FLOPS = 1e11
"""FLOPs to find the ties that a step decided otherwise. Each takes a backward pass."""
MAX_COMPONENTS = 100_000
"""Number of components of the gradients by which these ties are found."""
MAX_CACHED_GRADIENTS = 3
"""Number of gradients with recorded decisions that are cached for each step: two of the serial runs, and those of a mode."""
HOPELESS_RATIO = 10.0
"""Ratio to the tolerance that covers any decision of the ties. Ties do not explain a larger difference."""
LOOSE_TOLERANCE = 1e-3
"""Tolerance, relative to an array's scale, above which a step proves little. The rung names it, and is shown if it covers any
decision."""

_SCORES_REASON = (
    "a prediction is the class of the largest logit, or of one that rounding can make the largest; the loss in evaluation may "
    "be off by what rounding moves a logit and the loss itself"
)
"""Reason of the tolerances of the scores."""

UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Relative rounding of one number."""
_ERROR_FEEDBACK_NOT_RECORDED = "the twin does not tell what its replicas keep"
_ASPECTS = ("batches", "losses", "scores", "gradients", "weights", "BatchNorm statistics")


class Truth(NamedTuple):
    """Expected result of a step, and the largest rounding error of each number or array."""

    step: StepOutcome
    error_limits: StepOutcome
    """Largest errors, given the decisions of `step`."""
    scales: Mapping[str, float]
    """Scale of each gradient, see `_scales`."""
    ties: tuple[Tie, ...] = ()
    copies: int = 0
    """Number of float32 copies from which `error_limits` comes. 0 in float64."""


class Finding(NamedTuple):
    """Largest difference of one array, and its tolerance. Both are relative to the array's own scale."""

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
        """Name of the array, without the optimizer's slot."""
        return self.where.partition(",")[0]


class _Division(NamedTuple):
    """Division of a batch in a step of a run."""

    chains: list[list[Any]]
    """Chains of parts, see `decisions.compute_step`."""
    shards: tuple[tuple[int, int], ...] = ()
    """Bounds of each replica's examples. Empty if gradients are not compressed."""

    @property
    def key(self) -> Any:
        return self.chains_key, self.shards

    @property
    def chains_key(self) -> Any:
        return tuple(tuple(map(bytes, chain)) for chain in self.chains)

    @property
    def parts(self) -> list[Any]:
        return [part for chain in self.chains for part in chain]


class _StepJudgement(NamedTuple):
    """Differences at one step, and counts of how they were judged."""

    differences: list[tuple[str, Finding]]
    """(aspect, finding) of each comparison."""
    counts: Counter[str]
    """Counts of ties, of turned and unexplained decisions, and of steps with too many ties or wide tolerances."""
    of_terms: Mapping[str, float] = {}
    """Gradient that is judged on the scale of its terms: difference relative to its largest component."""


def drawn_steps(
    spec: Spec,
    architecture: Architecture,
    plan: BatchPlan,
    max_bytes: int | None = None,
    max_flops: float = STEPPED_FLOPS,
) -> list[int]:
    """Return steps from all parts of a schedule, from 0.

    They are the first and the last step, the first after the learning rate has changed, the first of the second epoch, and the
    last of the first epoch. The last step may be uneven. Float64 has more steps between them. A large model has fewer: as
    many as the limits allow.

    Args:
        spec: the serial run.
        architecture: the model's architecture.
        plan: the plan of the run.
        max_bytes: bytes of the states of float64 steps. None: `MOST_BYTES`.
        max_flops: FLOPs of all steps.
    """
    total = plan.total_steps
    changed = spec.schedule.step_size * plan.steps_per_epoch if spec.schedule.name == "step" else 0
    parts = (0, total - 1, changed, plan.steps_per_epoch, plan.steps_per_epoch - 1)  # the most telling ones first
    affordable = int(max_flops / (work.count(architecture).flops * spec.global_batch_size))
    preferred = list(dict.fromkeys(step for step in parts if 0 <= step < total))
    if spec.precision == "float32":
        is_constant = spec.schedule.name == "constant" and not spec.schedule.warmup_steps
        return sorted(preferred[: max(LEAST_STEPS if is_constant else LEAST_STEPS + 1, affordable)])
    state = 8 * sum(parameter.size for parameter in architecture.parameters()) * (2 if spec.optimizer.name == "sgd" else 3)
    number = max(2, min(total, (MOST_BYTES if max_bytes is None else max_bytes) // state, affordable))
    if number < len(preferred):
        return sorted(preferred[:number])
    between = np.linspace(0, total - 1, total if number >= total else number - len(preferred) + 2)
    return sorted({*preferred, *(round(step) for step in between)})


def learning_rates(spec: Spec, steps_per_epoch: int, steps: int) -> Callable[[int], float]:
    """Return the learning rate of a run as a function of the step, from 1, by the referee's own schedule."""
    settings, copies = spec.schedule, spec.data_replicas
    factor = {"none": 1.0, "linear": copies, "sqrt": math.sqrt(copies)}[settings.scaling]
    return training.schedule(
        settings.name,
        spec.optimizer.learning_rate * factor,
        step_size=settings.step_size,
        gamma=settings.gamma,
        warmup_steps=settings.warmup_steps,
        steps_per_epoch=steps_per_epoch,
        steps=steps,
    )


class StepJudge:
    """Judges recordings of the same drawn steps.

    Args:
        architecture: the model's architecture.
        teacher: the recording whose states all others load. It holds the batches.
        steps: the drawn steps, from 0.
        plan: the plan of the run.
        is_timed: whether the recording is of a timed run, which trained all steps before each of these. Then the referee is the
            truth in float64 too.
    """

    def __init__(
        self,
        architecture: Architecture,
        teacher: Mapping[str, npt.NDArray[Any]],
        steps: Sequence[int],
        plan: BatchPlan,
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
        self._any_decision_limits: dict[Any, StepOutcome] = {}
        self._turned_steps: dict[Any, StepOutcome] = {}
        self._recorded_gradients: dict[Any, dict[bytes, Any]] = {}
        self._first_copies: dict[Any, dict[str, Array]] = {}
        """(step, division): gradients of the first float32 copy."""
        self._effects: dict[Any, Array] = {}
        self._serial_with_decisions: dict[Any, Mapping[str, npt.NDArray[Any]]] = {}
        """(framework, step, chains): a serial recording that holds its decisions."""
        self._terms: dict[Any, dict[str, Array]] = {}
        self._losses: dict[Any, tuple[float, float]] = {}
        self._evaluations: dict[tuple[int, int], tuple[tuple[Array, Array], float]] = {}
        """(step, number of copies): (logits, losses) in evaluation mode, and the largest rounding error of a logit."""
        self.max_flops = MOST_FLOPS
        """FLOPs to find the ties that a step decided otherwise."""
        self.stopped = False
        """Whether judging is cancelled. Another thread sets it."""

    def rungs(self, spec: Spec, recorded: Mapping[str, npt.NDArray[Any]], framework: str) -> list[Rung]:
        """Return rung 8 of one framework and mode.

        Args:
            spec: the spec of the recorded run.
            recorded: the recorded steps.
            framework: the framework's name.
        """
        findings_by_aspect: dict[str, list[Finding]] = {aspect: [] for aspect in _ASPECTS}
        counts = Counter[str]()
        of_terms: dict[str, list[float]] = {}
        judge_step = partial(self._judge_step, spec, recorded, framework)
        numbers = [step + 1 for step in self._steps] if self._is_timed else range(1, len(self._steps) + 1)
        with ThreadPoolExecutor(machine.available_cores()) as pool:  # BLAS has one thread here, see `ladder.fast_referee`
            for judgement in pool.map(judge_step, numbers, self._steps):
                counts += judgement.counts
                for aspect, finding in judgement.differences:
                    findings_by_aspect[aspect].append(finding)
                for name, difference in judgement.of_terms.items():
                    of_terms.setdefault(name, []).append(difference)
        rungs: list[Rung] = []
        for aspect, findings in findings_by_aspect.items():
            if not findings:
                continue
            worst = max(findings, key=lambda finding: finding.ratio)
            reason = _SCORES_REASON if aspect == "scores" else _reason(spec, counts) + _widest_text(findings)
            term_judged = {name: max(differences) for name, differences in of_terms.items()} if aspect == "gradients" else {}
            if term_judged:
                steps = ", ".join(
                    f"{name} at {wording.count(len(of_terms[name]), 'step')} (up to {term_judged[name]:.1e} of its "
                    "largest component)"
                    for name in sorted(term_judged)
                )
                reason += f"; judged {TERM_SCALE}: {steps}"
            proves_little = any(counts[why] for why in ("loose", "unexplained", "untold", "any width"))
            is_loose = aspect == "gradients" and proves_little and worst.ratio <= 1
            rungs.append(
                make_rung(
                    spec,
                    f"8 one step in {spec.precision}: {aspect}",
                    worst.difference,
                    worst.where or None,
                    worst.tolerance,
                    "ids and pixels are equal or not" if aspect == "batches" else ("shown: " if is_loose else "") + reason,
                    step=worst.step + 1,
                    steps=self._schedule["steps"],
                    judged_steps=len(self._steps),
                    framework=framework,
                    mode=spec.variant if spec.is_parallel else None,
                    of_terms=term_judged,
                    **({"status": "shown"} if is_loose else {}),
                )
            )
        return rungs

    def loss(self, spec: Spec, step: int) -> tuple[float, float]:
        """Return (loss of a float32 step, its largest rounding error)."""
        key = step, (division := self._division(spec, step)).chains_key
        if key not in self._losses:
            leader = Decider()
            true, losses = self._step(step, division, leader, np.float64, forward_only=True)
            moved = [
                self._step(step, division, decider, np.float32, seed, forward_only=True)
                for seed, decider in enumerate(_copy_deciders(leader, MOST_COPIES))
            ]
            self._losses[key] = true.loss, _loss_error(true, losses, moved)
        return self._losses[key]

    def differing_ties(
        self, spec: Spec, step: int, gradients: Mapping[str, Array]
    ) -> tuple[list[Tie], dict[str, Array]] | None:
        """Return (ties that float32 gradients decide otherwise than the referee; its gradients with these decisions).

        None: the nearest ties do not explain the gradients, and there are too many to try all.
        """
        truth = self._truth(spec, step)
        affordable = int(self.max_flops // (self._flops * len(self._teacher[f"labels/{step}"])))
        nearest = sorted(truth.ties, key=lambda tie: tie.nearness)[:affordable]
        explanation: tuple[list[Tie], dict[str, Array]] = [], truth.step.gradients
        for reach in (TIE_FACTOR, decisions.REACH):
            ties = sorted(tie for tie in nearest if tie.nearness <= reach)
            if ties and (turned := self._explaining_ties(spec, step, truth, gradients, ties)):
                explanation = turned, self._with_turned_ties(spec, step, truth, turned).step.gradients
                limits = truth.error_limits.gradients
                if all(float(absolute(explanation[1][name], gradients[name]).max()) <= limits[name] for name in limits):
                    return explanation
        return explanation if len(nearest) == len(truth.ties) else None

    def _judge_step(
        self, spec: Spec, recorded: Mapping[str, npt.NDArray[Any]], framework: str, number: int, step: int
    ) -> _StepJudgement:
        """Compare a recorded step with the truth. If it exceeds the tolerance of few copies, more are made."""
        judgement = self._compare_step(spec, recorded, framework, number, step)
        beyond = [(aspect, finding.ratio) for aspect, finding in judgement.differences if finding.ratio > 1]
        is_far = any(ratio > HOPELESS_RATIO and aspect != "scores" for aspect, ratio in beyond)
        if spec.precision == "float64" or not beyond or is_far:
            return judgement
        division = self._division(spec, step)
        if self._truth(spec, step).copies < MOST_COPIES:
            self._truths[step, division.key] = self._referee_truth(spec, step, division, MOST_COPIES)
            self._any_decision_limits.pop((step, division.key), None)
            for key in [effect_key for effect_key in self._effects if effect_key[1:3] == (division.key, step)]:
                del self._effects[key]  # they are in units of the tolerances
        return self._compare_step(spec, recorded, framework, number, step)

    def _compare_step(
        self, spec: Spec, recorded: Mapping[str, npt.NDArray[Any]], framework: str, number: int, step: int
    ) -> _StepJudgement:
        """Compare a recorded step with the truth as it is known so far."""
        if self.stopped:
            raise CancelledError
        truth = self._truth(spec, step)
        has_decisions = f"decisions/{step}/0" in recorded
        chains_key = framework, step, self._division(spec, step).chains_key
        if has_decisions and not spec.is_parallel:
            self._serial_with_decisions.setdefault(chains_key, recorded)
        counts = Counter(ties=sum(tie.nearness <= TIE_FACTOR for tie in truth.ties))

        def findings(truth: Truth) -> list[tuple[str, Finding]]:
            exchanged = self._expected_exchange(spec, recorded, truth, number, step) if spec.compresses else None
            if isinstance(exchanged, ExpectedExchange):
                counts["open"] = sum(int(flags.sum()) for flags in exchanged.is_open.values())
                counts["any width"] = int(exchanged.is_loose)
            counts["untold"] = int(exchanged == _ERROR_FEEDBACK_NOT_RECORDED)
            return list(self._findings(spec, recorded, truth, number, step, exchanged))

        def worst(aspect_findings: list[tuple[str, Finding]], *aspects: str) -> float:
            return max(finding.ratio for aspect, finding in aspect_findings if aspect in (aspects or _ASPECTS))

        plain_findings = findings(truth)
        if spec.precision == "float64" and worst(plain_findings) > 1:
            beyond: dict[str, float] = {}
            for aspect, finding in plain_findings:
                if aspect == "gradients" and 1 < finding.ratio < math.inf:
                    beyond[finding.array] = max(beyond.get(finding.array, 0.0), finding.difference)
            if beyond and self._is_known(spec):
                return _StepJudgement(findings(self._with_term_limits(spec, step, truth, beyond)), counts, beyond)
        if spec.precision == "float64" or worst(plain_findings, "gradients", "weights") <= 1:
            return _StepJudgement(plain_findings, counts)
        # A mode that divides the model does not record decisions. Mostly they are those of the serial run.
        source = recorded if has_decisions else self._serial_with_decisions.get(chains_key)
        if source is not None and (replay := self._replay_decisions(spec, source, truth, step, np.float32)) is not None:
            with_decisions, turned, unexplained = replay
            replayed_findings = findings(with_decisions)
            is_certain = unexplained or worst(replayed_findings, "gradients", "weights") <= SCREENING_MARGIN
            if not is_certain and (exact := self._replay_decisions(spec, source, truth, step, np.float64)) is not None:
                replayed_findings = findings(exact[0])
            counts += Counter(unexplained=unexplained if has_decisions else 0)
            if not unexplained and (has_decisions or worst(replayed_findings, "gradients", "weights") <= 1):
                return _StepJudgement(replayed_findings, counts + Counter(turned=turned))
        with_any_decision = truth._replace(error_limits=self._limits_of_any_decision(spec, step, truth))
        any_findings = findings(with_any_decision)
        if worst(any_findings, "gradients", "weights") > HOPELESS_RATIO:
            return _StepJudgement(any_findings, counts)
        if spec.compresses:  # the gradients that arrive do not determine a replica's decisions
            return _StepJudgement(any_findings, counts + Counter(many=1, loose=1))
        explanation = self.differing_ties(spec, step, self._gradients(spec, recorded, step))
        if explanation is None:
            widest = max(
                on_scale(limit, truth.scales[name]) for name, limit in with_any_decision.error_limits.gradients.items()
            )
            return _StepJudgement(any_findings, counts + Counter(many=1, loose=int(widest > LOOSE_TOLERANCE)))
        turned, with_ties = explanation
        tie_findings = findings(truth._replace(step=truth.step._replace(gradients=with_ties)))
        if worst(tie_findings, "gradients", "weights") < worst(plain_findings, "gradients", "weights"):
            return _StepJudgement(tie_findings, counts + Counter(turned=len(turned)))
        return _StepJudgement(plain_findings, counts)

    def _is_known(self, spec: Spec) -> bool:
        """Whether the referee knows the model. A model with builders of its own may compute more than its architecture says."""
        return spec.model in MODELS or not claims.has_own_builders(spec.model)

    def _gradients(self, spec: Spec, recorded: Mapping[str, npt.NDArray[Any]], step: int) -> dict[str, Array]:
        """Compute the gradients of a recorded step from its optimizer state."""
        (weights, before), (_, after) = state_before(self._teacher, step), state(recorded, f"after/{step}")
        settings = spec.optimizer
        slot, factor, share = "buffer", settings.momentum, 1.0
        if settings.name == "adam":
            slot, factor, share = "mean", settings.beta_1, 1.0 - settings.beta_1
        return {
            name: (np.asarray(after[slot][name], np.float64) - factor * np.asarray(before[slot][name], np.float64)) / share
            - settings.weight_decay * np.asarray(weights[name], np.float64)
            for name in before[slot]
        }

    def _explaining_ties(
        self, spec: Spec, step: int, truth: Truth, gradients: Mapping[str, Array], ties: Sequence[Tie]
    ) -> list[Tie]:
        """Return the ties that explain the gradients of a recorded step if it decided them otherwise than the referee."""
        division = self._division(spec, step)
        sizes = {name: max(limit, np.finfo(np.float32).tiny) for name, limit in truth.error_limits.gradients.items()}
        stride = max(1, sum(array.size for array in truth.step.gradients.values()) // MAX_COMPONENTS)

        def flat(arrays: Mapping[str, Array]) -> Array:
            """Sample the components of all arrays, each in units of its rounding error."""
            parts = [
                (arrays[name].ravel()[:: stride if array.size > MAX_COMPONENTS // 100 else 1] / sizes[name]).astype(np.float32)
                if name in arrays
                else np.zeros(array.ravel()[:: stride if array.size > MAX_COMPONENTS // 100 else 1].size, np.float32)
                for name, array in truth.step.gradients.items()
            ]
            return np.concatenate(parts)

        key = "effects", division.key, step, len(ties)
        if key not in self._effects:
            leader = self._leaders[step, division.key]
            inputs = self._inputs(step, np.float32)
            effects = decisions.tie_effects(self._architecture, *inputs, division.chains, leader.follower(), ties)
            self._effects[key] = np.stack([flat(effect) for effect in effects])
        residual = flat({name: gradients[name] - expected for name, expected in truth.step.gradients.items()})
        return decisions.explaining_ties(residual, self._effects[key], ties)

    def _replay_decisions(
        self, spec: Spec, recorded: Mapping[str, npt.NDArray[Any]], truth: Truth, step: int, dtype: Any
    ) -> tuple[Truth, int, int] | None:
        """Return the truth with the decisions that a run recorded, and the two counts of `Decider.follow_recording`.

        In float32, the change by these decisions comes from a pass with the first copy's inputs.
        """
        recorded_arrays = group(recorded, f"decisions/{step}/")
        arrays = [recorded_arrays[str(number)] for number in range(len(recorded_arrays))]
        division = self._division(spec, step)
        cached = self._recorded_gradients.setdefault((step, division.key), {})
        digest = hashlib.sha256(b"".join(map(bytes, arrays))).digest() + np.dtype(dtype).str.encode()
        if digest not in cached:  # often the same in several recordings
            replay = self._leaders[step, division.key].follow_recording(arrays, division.parts)
            if replay is None:
                return None
            while len(cached) >= MAX_CACHED_GRADIENTS:
                del cached[next(iter(cached))]
            gradients = self._step(step, division, replay[0], dtype, seed=0 if dtype == np.float32 else None)[0].gradients
            if dtype == np.float32:
                first_copy = self._first_copies[step, division.key]
                changes = {name: np.subtract(array, first_copy[name], dtype=np.float64) for name, array in gradients.items()}
                gradients = {name: array + changes[name] for name, array in truth.step.gradients.items()}
            cached[digest] = gradients, *replay[1:]
        gradients, *counts = cached[digest]
        return truth._replace(step=truth.step._replace(gradients=gradients)), *counts

    def _with_turned_ties(self, spec: Spec, step: int, truth: Truth, turned: Sequence[Tie]) -> Truth:
        """Return the truth of a step with some ties decided otherwise."""
        division = self._division(spec, step)
        key = step, division.key, tuple(turned)
        if key not in self._turned_steps:  # often the same in several recordings
            leader = self._leaders[step, division.key]
            self._turned_steps[key] = self._step(step, division, leader.follower(turned), np.float64)[0]
        return truth._replace(step=self._turned_steps[key])

    def _findings(
        self,
        spec: Spec,
        recorded: Mapping[str, npt.NDArray[Any]],
        truth: Truth,
        number: int,
        step: int,
        exchanged: ExpectedExchange | str | None,
    ) -> Iterator[tuple[str, Finding]]:
        unit = UNIT[spec.precision]
        if not self._is_timed:  # then the plan judges the batch
            same = all(
                np.array_equal(recorded[f"{prefix}/{step}"], self._teacher[f"{prefix}/{step}"]) for prefix in ("ids", "hashes")
            )
            yield "batches", Finding(0.0 if same else math.inf, 0.0, "" if same else "ids or pixels", step)

        def finding(where: str, difference: Array, allowed: Any, scale: float, is_open: Any = False) -> Finding:
            allowed = np.broadcast_to(allowed, difference.shape)
            if not (np.isfinite(difference).all() and np.isfinite(allowed).all() and math.isfinite(scale)):
                return Finding(math.inf, 0.0, where, step)
            if spec.precision == "float64":
                allowed = np.maximum(allowed, TOLERANCE * scale)
            ratio = np.divide(difference, allowed, out=np.where(difference > 0, np.inf, 0.0), where=allowed > 0)
            # Open components have wide limits: they count only if they exceed them, and else the others do.
            informative = np.where(is_open & (ratio <= 1), -1.0, ratio)
            worst = np.unravel_index(np.argmax(informative if informative.max() >= 0 else ratio), ratio.shape)
            scale = max(scale, float(allowed[worst])) or 1.0  # an array that is nothing but rounding has no scale
            return Finding(float(difference[worst]) / scale, float(allowed[worst]) / scale, where, step)

        loss = np.asarray(recorded[f"loss/{step}"], np.float64).reshape(1)
        yield "losses", finding("", absolute(loss, np.array([truth.step.loss])), truth.error_limits.loss, abs(truth.step.loss))
        if spec.precision == "float32" and f"num_correct/{step}" in recorded:
            yield from (("scores", miscount) for miscount in self._prediction_findings(recorded, truth, step))
            (_, losses), error, predicted = self._evaluate(recorded, step, truth.copies)
            evaluated_loss, expected_loss = (
                np.asarray(recorded[f"scored/{step}/loss"], np.float64).reshape(1),
                losses.mean().reshape(1),
            )
            scale = abs(float(expected_loss[0]))
            # An image moves the loss by twice a logit's error at most. The loss rounds too, even where all logits are tiny.
            allowed = 2 * error + ROUNDING_FACTOR * unit * scale
            yield "scores", finding("loss in evaluation", absolute(evaluated_loss, expected_loss), allowed, scale)
            yield "scores", predicted
        (weights, slots_before), after = state_before(self._teacher, step), group(recorded, f"after/{step}/weights/")
        for name, statistic in truth.step.statistics.items():
            difference, scale = absolute(statistic, after.get(name)), float(np.abs(statistic).max())
            yield (
                "BatchNorm statistics",
                finding(name, difference, truth.error_limits.statistics[name] + 4 * unit * scale, scale),
            )
        gradients: Mapping[str, Array] = truth.step.gradients
        limits: Mapping[str, Any] = truth.error_limits.gradients
        is_open: Mapping[str, Any] = {}
        if isinstance(exchanged, str):
            yield "gradients", Finding(0.0 if exchanged == _ERROR_FEEDBACK_NOT_RECORDED else math.inf, 0.0, exchanged, step)
            return
        if exchanged is not None:
            gradients, limits, is_open = exchanged.gradients, exchanged.tolerances, exchanged.is_open
            residuals_after = _recorded_residuals(recorded, "after", step)
            residual_arrays = zip(exchanged.residuals, exchanged.residual_tolerances, exchanged.residual_is_open, strict=True)
            for place, (residual, limit, flags) in enumerate(residual_arrays):
                where, scale = f"not sent of bucket {place + 1}", float(np.abs(residual).max())
                yield "gradients", finding(where, absolute(residual, residuals_after[place]), limit, scale, flags)
            # An open component is sent or kept, but never both or neither.
            if exchanged.sums:
                arrived, errors = map(self._buckets(spec).joined, self._arrived_gradients(spec, recorded, step))
                for place, (total, limit) in enumerate(exchanged.sums):
                    where, scale = f"sent and kept of bucket {place + 1}", float(np.abs(total).max())
                    difference = absolute(total, arrived[place] + np.asarray(residuals_after[place], np.float64).sum(0))
                    yield "gradients", finding(where, difference, limit + errors[place], scale)
        settings, rate = spec.optimizer, learning_rates(spec, **self._schedule)(step + 1)
        for name, gradient in gradients.items():
            weight = np.asarray(weights[name], np.float64)
            slots = {slot: np.asarray(values[name], np.float64) for slot, values in slots_before.items()}
            allowed = limits[name]
            rule = _UpdateRule(settings, slots, unit)
            expected = rule.slots_after(name, weight, gradient, allowed)
            recorded_slots = {slot: recorded.get(f"after/{step}/slots/{slot}/{name}") for slot in expected}
            for slot, (value, limit, share) in expected.items():
                scale = truth.scales[name] if share else float(np.abs(value).max())
                difference = absolute(value, recorded_slots[slot]) / (share or 1.0)
                arguments = f"{name}, {slot}", difference, limit / (share or 1.0), scale
                yield "gradients", finding(*arguments, is_open.get(name, False))
            values = {
                slot: value if recorded_slots[slot] is None else np.asarray(recorded_slots[slot], np.float64)
                for slot, (value, *_) in expected.items()
            }
            update, limit = rule.update(values, rate, number)
            difference = absolute(weight - update, after.get(name))
            scale = float(np.abs(update).max()) or float(np.abs(weight).max())
            yield "weights", finding(name, difference, limit + 3 * unit * np.abs(weight), scale)

    def _prediction_findings(self, recorded: Mapping[str, npt.NDArray[Any]], truth: Truth, step: int) -> Iterator[Finding]:
        """Compare the right predictions in training.

        A prediction may be any class whose logit rounding can make the largest.
        """
        logits, labels = truth.step.logits, truth.step.labels
        others = np.where(np.eye(logits.shape[1], dtype=bool)[labels], -np.inf, logits).max(1)
        margins = logits[range(len(labels)), labels] - others
        error = 2 * truth.error_limits.logits
        least, most = int((margins > error).sum()), int((margins >= -error).sum())  # equal logits are a tie
        counted = np.asarray(recorded[f"num_correct/{step}"]).item()
        beyond = max(least - counted, counted - most, 0)
        yield Finding(beyond / len(labels), 0.0, f"right predictions of {counted} images, should be {least} to {most}", step)

    def _evaluate(
        self, recorded: Mapping[str, npt.NDArray[Any]], step: int, number: int
    ) -> tuple[tuple[Array, Array], float, Finding]:
        """Return ((logits, losses) in evaluation mode, largest rounding error of a logit, finding about the predictions)."""
        if (step, number) not in self._evaluations:
            inputs = [self._inputs(step, np.float64), *(self._inputs(step, np.float32, seed) for seed in range(number))]
            (logits, losses), *copies = (
                decisions.score_in_evaluation(
                    self._architecture, weights, RefereeBatch(batch.images[:SCORED], batch.labels[:SCORED], [])
                )
                for weights, batch in inputs
            )
            rounding = _rounding([float(np.abs(copy_logits - logits).max()) for copy_logits, _ in copies])
            error = ROUNDING_FACTOR * (rounding + UNIT["float32"] * float(np.abs(logits).max()))
            self._evaluations[step, number] = (logits, losses), error
        (logits, losses), error = self._evaluations[step, number]
        predictions = np.asarray(recorded[f"scored/{step}/predictions"])
        classes = np.clip(predictions, 0, logits.shape[1] - 1)
        missed = logits.max(1) - logits[range(len(classes)), classes] > 2 * error
        missed |= classes != predictions
        where = f"{missed.sum()} of {len(missed)} predictions in evaluation"
        return (logits, losses), error, Finding(float(missed.mean()), 0.0, where, step)

    def _division(self, spec: Spec, step: int) -> _Division:
        size = len(self._teacher[f"labels/{step}"])
        shards = tuple(shard(size, spec.data_replicas, rank) for rank in range(spec.data_replicas if spec.compresses else 0))
        return _Division(_chains(spec, size) if self._architecture.has_batch_norm else [[np.arange(size)]], shards)

    def _buckets(self, spec: Spec) -> Buckets:
        trainable = [parameter for parameter in self._architecture.parameters() if parameter.trainable]
        return Buckets([parameter.name for parameter in trainable], [parameter.shape for parameter in trainable], spec)

    def _expected_exchange(
        self, spec: Spec, recorded: Mapping[str, npt.NDArray[Any]], truth: Truth, number: int, step: int
    ) -> ExpectedExchange | str:
        """Return the expected exchange of compressed gradients, or the fault of the residuals from before the step."""
        buckets, residuals = self._buckets(spec), list[npt.NDArray[Any]]()
        if spec.communication.error_feedback:
            residuals, residuals_after = (_recorded_residuals(recorded, when, step) for when in ("before", "after"))
            if not residuals and not residuals_after:
                return _ERROR_FEEDBACK_NOT_RECORDED
            if any(
                [array.shape for array in replica_residuals] != buckets.sizes
                for replica_residuals in (residuals, residuals_after)
            ):
                return "what replicas keep has another size than their buckets"
            if self._is_timed:  # the step before was not recorded
                return expected_exchange(buckets, truth.step.gradients, truth.error_limits.gradients, residuals)
            earlier = (
                _recorded_residuals(recorded, "after", self._steps[number - 2])
                if number > 1
                else list(map(np.zeros_like, residuals))
            )
            if not all(map(np.array_equal, earlier, residuals)):
                return "what replicas kept of the step before is not what they have now, or no number"
        return expected_exchange(buckets, truth.step.gradients, truth.error_limits.gradients, residuals)

    def _arrived_gradients(
        self, spec: Spec, recorded: Mapping[str, npt.NDArray[Any]], step: int
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return (gradients of a recorded step from its optimizer state; their largest rounding errors)."""
        (weights, before), (_, after) = state_before(self._teacher, step), state(recorded, f"after/{step}")
        slot, share = ("mean", 1.0 - spec.optimizer.beta_1) if spec.optimizer.name == "adam" else ("buffer", 1.0)
        decay = spec.optimizer.weight_decay

        def error(name: str) -> Array:
            sizes = np.abs(after[slot][name]) + np.abs(before[slot][name]) + decay * np.abs(weights[name])
            return (4 * UNIT["float32"] * sizes + 2 * np.finfo(np.float32).tiny) / share

        return self._gradients(spec, recorded, step), {name: error(name) for name in before[slot]}

    def _truth(self, spec: Spec, step: int) -> Truth:
        if spec.precision == "float64":
            return self._float64_truth(spec, step)  # quickly read, and too large to be kept
        key = step, (division := self._division(spec, step)).key
        if key not in self._truths:
            self._truths[key] = self._referee_truth(spec, step, division)
        return self._truths[key]

    def _float64_truth(self, spec: Spec, step: int) -> Truth:
        """Return the step of the first framework as the truth. For a timed run, that of the referee."""
        if self._is_timed:
            true, _ = self._step(step, self._division(spec, step), Decider(), np.float64)
            loss, gradients, statistics = float(true.loss), true.gradients, true.statistics
        else:
            gradients = self._gradients(spec, self._teacher, step)
            stepped, _ = state(self._teacher, f"after/{step}")
            statistics = {name: array for name, array in stepped.items() if name not in gradients}
            loss = self._teacher[f"loss/{step}"].item()
        scales = _scales(self._architecture, gradients)
        allowed = StepOutcome(
            TOLERANCE * abs(loss),
            {name: TOLERANCE * scales[name] for name in gradients},
            {name: TOLERANCE * float(np.abs(array).max()) for name, array in statistics.items()},
        )
        return Truth(StepOutcome(loss, gradients, statistics), allowed, scales)

    def _with_term_limits(self, spec: Spec, step: int, truth: Truth, arrays: Collection[str]) -> Truth:
        """Widen the tolerance of these gradients to the sum of their absolute terms."""
        division = self._division(spec, step)
        terms = self._terms.setdefault((step, division.key), {})
        if any(name not in terms for name in arrays):  # those of all kernels are as large as the model
            terms |= decisions.absolute_terms(self._architecture, *self._inputs(step, np.float64), division.chains, arrays)
        gradients = truth.error_limits.gradients | {name: TOLERANCE * terms[name] for name in arrays}
        return truth._replace(error_limits=truth.error_limits._replace(gradients=gradients))

    def _referee_truth(self, spec: Spec, step: int, division: _Division, copies: int = COPIES) -> Truth:
        leader = Decider()
        true, losses = self._step(step, division, leader, np.float64)
        narrow = spec.precision == "float32"

        copy_steps = [
            self._step(step, division, decider, np.float32, seed) for seed, decider in enumerate(_copy_deciders(leader, copies))
        ]
        ties = tuple(leader.ties()) if narrow else ()
        leader.forget_values()
        if narrow:
            self._leaders[step, division.key] = leader
            self._first_copies[step, division.key] = copy_steps[0][0].gradients

        def rounding(select: Callable[[StepOutcome], dict[str, Any]]) -> dict[str, float]:
            differences = [_largest_differences(select(true), select(copy_step)) for copy_step, _ in copy_steps]
            return {
                name: ROUNDING_FACTOR * _rounding([difference[name] for difference in differences]) for name in select(true)
            }

        logits_rounding = _rounding([float(np.abs(copy_step.logits - true.logits).max()) for copy_step, _ in copy_steps])
        limits = StepOutcome(
            _loss_error(true, losses, copy_steps),
            rounding(lambda outcome: outcome.gradients),
            rounding(lambda outcome: outcome.statistics),
            logits=ROUNDING_FACTOR * (logits_rounding + UNIT["float32"] * float(np.abs(true.logits).max())),
        )
        return Truth(true, limits, _scales(self._architecture, true.gradients), ties, copies)

    def _limits_of_any_decision(self, spec: Spec, step: int, truth: Truth) -> StepOutcome:
        """Return the largest errors of a float32 step for any decision of its ties."""
        key = step, (division := self._division(spec, step)).key
        if key not in self._any_decision_limits:
            near_ties = [tie for tie in truth.ties if tie.nearness <= TIE_FACTOR]
            coins = np.random.default_rng(1).random(len(near_ties)) < 0.5
            # One copy tosses a coin at each tie, the other decides the opposite.
            halves = [[tie for tie, coin in zip(near_ties, coins, strict=True) if coin == heads] for heads in (True, False)]
            deciders = (self._leaders[key].follower(turned) for turned in halves if turned)
            tossed = [self._step(step, division, decider, np.float32, seed)[0] for seed, decider in enumerate(deciders)]
            differences = [_largest_differences(truth.step.gradients, outcome.gradients) for outcome in tossed]
            largest_changes = {
                name: max((difference[name] for difference in differences), default=0.0) for name in truth.step.gradients
            }
            allowed = truth.error_limits.gradients
            gradients = {name: limit + TIE_FACTOR * largest_changes[name] for name, limit in allowed.items()}
            self._any_decision_limits[key] = truth.error_limits._replace(gradients=gradients)
        return self._any_decision_limits[key]

    def _step(
        self,
        step: int,
        division: _Division,
        decider: Decider,
        dtype: Any,
        seed: int | None = None,
        *,
        forward_only: bool = False,
    ) -> tuple[StepOutcome, Array]:
        """Compute the referee's step. With a seed, weights and pixels are moved by one unit in the last place."""
        if self.stopped:
            raise CancelledError
        inputs = self._inputs(step, dtype, seed)
        chains, shards = division.chains, division.shards
        return decisions.compute_step(self._architecture, *inputs, chains, decider, shards, forward_only=forward_only)

    def _inputs(self, step: int, dtype: Any, seed: int | None = None) -> tuple[dict[str, Array], RefereeBatch]:
        generator = None if seed is None else np.random.default_rng(seed)

        def cast(array: Any) -> Any:
            return array.astype(dtype) if generator is None else _perturb(array.astype(dtype), generator)

        scaling = self._teacher["pixel_mean"].tolist(), self._teacher["pixel_std"].tolist()
        images = cast(network.scaled(self._teacher[f"images/{step}"], *scaling, dtype))
        masks = [self._teacher[f"masks/{step}/{index}"] for index in range(len(self._architecture.dropouts))]
        weights, _ = state_before(self._teacher, step)
        return {name: cast(array) for name, array in weights.items()}, RefereeBatch(
            images, self._teacher[f"labels/{step}"], masks
        )


def _copy_deciders(leader: Decider, number: int = COPIES) -> Iterator[Decider]:
    """Yield the deciders of float32 copies of a step, which decide as the leader. The first `COPIES` measure its ties."""
    yield Decider(leader)
    for seed in range(number - 1):
        resum = decisions.term_after_term if seed == 0 else None
        yield Decider(leader, mean_of=decisions.rough_mean(seed), resum=resum, measures=seed < COPIES - 1)


def _loss_error(true: StepOutcome, losses: Array, copy_steps: Sequence[tuple[StepOutcome, Array]]) -> float:
    """Return the largest rounding error of a step's loss: errors of its examples' losses need not cancel."""
    error = _rounding([float(np.abs(other - losses).mean()) for _, other in copy_steps])
    return ROUNDING_FACTOR * (error + UNIT["float32"] * abs(true.loss))


@dataclass(frozen=True)
class _UpdateRule:
    """Update of one array, and its largest rounding error."""

    settings: Optimizer
    slots: Mapping[str, Array]
    unit: float

    def slots_after(self, name: str, weight: Array, gradient: Array, allowed: Any) -> dict[str, tuple[Array, Array, float]]:
        """Return for each slot: its value after a step, the largest error, and the gradient's share in it (0 for a square)."""
        settings, unit, tiny = self.settings, self.unit, np.finfo(np.float32).tiny  # what fades away ends in few digits
        decayed = gradient + settings.weight_decay * weight
        error = allowed + 2 * unit * settings.weight_decay * np.abs(weight)
        if settings.name == "sgd":
            before = self.slots["buffer"]
            buffer = settings.momentum * before + decayed
            return {"buffer": (buffer, error + 3 * unit * (np.abs(buffer) + settings.momentum * np.abs(before)) + tiny, 1.0)}
        mean, square = self.slots["mean"], self.slots["square"]
        # A constant such as 1 - beta_2 has the error of beta_2, however small it is.
        new_mean = settings.beta_1 * mean + (1 - settings.beta_1) * decayed
        new_square = settings.beta_2 * square + (1 - settings.beta_2) * decayed**2
        share, square_share = 1 - settings.beta_1, 1 - settings.beta_2
        mean_error = share * error + 4 * unit * (np.abs(new_mean) + np.abs(mean) + np.abs(decayed))
        square_error = square_share * (2 * np.abs(decayed) * error + error**2) + 4 * unit * (square + decayed**2)
        return {
            "mean": (new_mean, mean_error + tiny, share),
            "square": (new_square, square_error + tiny, 0.0),
        }

    def update(self, slots: Mapping[str, Array], rate: float, number: int) -> tuple[Array, Array]:
        """Return (update that is subtracted from the weight, its largest error).

        Args:
            slots: the framework's own slots after the step.
            rate: the learning rate.
            number: number of the step, from 1.
        """
        settings, unit = self.settings, self.unit
        if settings.name == "sgd":
            update = rate * slots["buffer"]
            return update, 4 * unit * np.abs(update)
        corrections = 1 - settings.beta_1**number, 1 - settings.beta_2**number
        divisor = np.sqrt(slots["square"] / corrections[1]) + settings.epsilon
        update = rate / corrections[0] * slots["mean"] / divisor
        constants = 8 + 1 / corrections[0] + 1 / corrections[1]
        return update, constants * unit * np.abs(update)


def expected_update(spec: Spec, slots: Mapping[str, Array], rate: float, number: int) -> tuple[Array, Array]:
    """Return (update that a step subtracts from a weight, its largest error in the precision of the run).

    Args:
        slots: the optimizer's state of the weight after the step.
        rate: the learning rate.
        number: number of the step, from 1.
    """
    return _UpdateRule(spec.optimizer, {}, UNIT[spec.precision]).update(slots, rate, number)


def _recorded_residuals(recorded: Mapping[str, npt.NDArray[Any]], when: str, step: int) -> list[npt.NDArray[Any]]:
    """Return the recorded residuals of each bucket, [replicas, count], before or after a step."""
    arrays = group(recorded, f"lost/{when}/{step}/")
    return [arrays[str(number)] for number in range(len(arrays))]


def _largest_differences(truth: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, float]:
    """Return the largest difference of each array."""
    return {name: float(np.abs(other[name] - array).max()) for name, array in truth.items()}


def _rounding(errors: Sequence[float]) -> float:
    """Return the rounding error from the errors of copies.

    It is the largest of the first `COPIES`, or the root mean square of all if that is larger.
    """
    return max(*errors[:COPIES], float(np.sqrt(np.mean(np.square(errors)))))


def _widest_text(findings: Sequence[Finding]) -> str:
    """Describe the widest tolerances, as a part of a reason."""
    compared = [finding for finding in findings if finding.tolerance < 1]
    if not compared:
        return "; every array is nothing but rounding, and is not compared"
    widest = max(compared, key=lambda finding: finding.tolerance)
    text = f"; widest tolerance {widest.tolerance:.0e}" + (f" of {widest.where}" if widest.where else "")
    if loose := sum(finding.tolerance > LOOSE_TOLERANCE for finding in compared):
        text += f", one of {loose} above {LOOSE_TOLERANCE:.0e}, which prove little of their arrays"
    if num_empty := len(findings) - len(compared):
        text += f"; {num_empty} times an array is nothing but rounding, and is not compared"
    return text


def _reason(spec: Spec, counts: Counter[str]) -> str:
    """Return the reason of the tolerances."""
    if spec.precision == "float64":
        return "rounding of float64, on each array's own scale"
    reason = f"{ROUNDING_FACTOR:.0f} times the referee's own float32 rounding, on each array's own scale"
    if counts["ties"]:
        reason += f"; rounding may decide {counts['ties']} ReLUs and maxima"
    if counts["open"]:
        reason += f"; at {counts['open']} components rounding decides what a replica sends, and they may be either"
    if counts["untold"]:
        reason += f"; {_ERROR_FEEDBACK_NOT_RECORDED} for the next step, so what arrives is not judged"
    if counts["any width"]:
        reason += "; numbers of half the width are added in any order, so gradients that are not compressed would pass too"
    if counts["turned"]:
        reason += f"; it decided {counts['turned']} otherwise than in float64, and the referee took these decisions over"
    if counts["unexplained"]:
        reason += f"; rounding does not explain {wording.count(counts['unexplained'], 'decision')} that the framework tells"
    if counts["many"]:
        reason += f"; at {counts['many']} steps they are too many to try all, and the tolerance covers any decision"
    return reason


def _chains(spec: Spec, size: int) -> list[list[npt.NDArray[np.int64]]]:
    """Return the positions that BatchNorm sees together: by replica with its own statistics, then by micro-batch."""
    parts = spec.micro_batches(size)
    shards = [np.arange(*shard(size, spec.data_replicas, rank)) for rank in range(spec.data_replicas)]
    parts_by_replica = [np.split(positions, parts) for positions in shards]
    if spec.batch_norm_statistics == "synchronised":
        return [[np.concatenate(parts_of_all) for parts_of_all in zip(*parts_by_replica, strict=True)]]
    return [list(positions) for positions in parts_by_replica]


def _perturb(array: Array, generator: np.random.Generator) -> Array:
    """Move every value one unit in the last place up or down.

    A zero stays. Its neighbours are subnormal numbers, which change no sum and make BLAS ten times as slow.
    """
    up = generator.random(array.shape, np.float32) < 0.5
    perturbed = np.nextafter(array, np.where(up, array.dtype.type(np.inf), array.dtype.type(-np.inf)))
    return np.where(array == 0, array, perturbed)


def _scales(architecture: Architecture, gradients: dict[str, Array]) -> dict[str, float]:
    """Return the largest component of each gradient. A bias without effect has the scale of its layer's kernel."""
    scales = {name: float(np.abs(gradient).max()) for name, gradient in gradients.items()}
    return scales | {
        name: scales[f"{name.removesuffix('bias')}kernel"] for name in biases_cancelled_by_batch_norm(architecture)
    }


def biases_cancelled_by_batch_norm(architecture: Architecture) -> dict[str, str]:
    """Return the biases in front of BatchNorm, which subtracts them with the mean. Each with the name of its BatchNorm.

    In exact arithmetic such a bias has no gradient: its terms add up to zero. What is left is the rounding of this sum.
    """
    trained = {parameter.name for parameter in architecture.parameters()}

    def last_layers(layer: Layer) -> Iterator[Layer]:
        """Yield the layers whose outputs are the output of a layer, are added up to it, or are concatenated to it."""
        branches = architectures.branches(layer)
        for branch in branches if not getattr(layer, "relu", False) else ():
            yield from last_layers(branch[-1]) if branch else ()
        if not branches:
            yield layer

    def layers_before_batch_norm(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, str]]:
        for first, second in itertools.pairwise(layers):
            if isinstance(second, architectures.BatchNorm):
                yield from ((output_layer, second.name) for output_layer in last_layers(first))
        for layer in layers:
            for branch in (layer.layers,) if isinstance(layer, architectures.Opaque) else architectures.branches(layer):
                yield from layers_before_batch_norm(branch)

    biases = {f"{layer.name}.bias": following for layer, following in layers_before_batch_norm(architecture.layers)}
    return {name: following for name, following in biases.items() if name in trained}
