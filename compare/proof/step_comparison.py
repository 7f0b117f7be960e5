"""One recorded step against its truth: losses, scores, statistics, gradients and weights, each on its own scale.

If gradients or weights differ by more than rounding allows, explanations are tried in turn: float64 sums whose terms cancel,
the decisions that the run recorded, and the decisions of ties that explain its gradients.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.models.architectures import Architecture
from common.spec import MODELS, Optimizer, Spec
from common.training.tracing import group, state
from compare.cli.differences import absolute
from compare.proof import claims
from compare.proof.compressed import Buckets, ExpectedExchange, expected_exchange
from compare.proof.differences import on_scale
from compare.proof.referee.layers import Array
from compare.proof.step_truth import ROUNDING_FACTOR, TIE_FACTOR, TOLERANCE, UNIT, StepTruth, TaughtSteps, Truth, gradient_slot

SCREENING_MARGIN = 0.4
"""Difference over tolerance up to where a float32 pass with the recorded decisions is enough; otherwise it is repeated in
float64. The error of the two float32 passes is at most some half of the tolerance."""
HOPELESS_RATIO = 10.0
"""Ratio to the tolerance that covers any decision of the ties. Ties do not explain a larger difference."""
LOOSE_TOLERANCE = 1e-3
"""Tolerance, relative to an array's scale, above which a step proves little. The rung names it, and is shown if it covers any
decision."""
ERROR_FEEDBACK_NOT_RECORDED = "the twin does not tell what its replicas keep"
ASPECTS = ("batches", "losses", "scores", "gradients", "weights", "BatchNorm statistics")


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


Findings = list[tuple[str, Finding]]
"""(aspect, finding) of each comparison."""


def worst_ratio(findings: Findings, *aspects: str) -> float:
    """Return the largest ratio to a tolerance in these aspects. None: in all."""
    return max(finding.ratio for aspect, finding in findings if aspect in (aspects or ASPECTS))


class StepJudgement(NamedTuple):
    """Differences at one step, and counts of how they were judged."""

    findings: Findings
    counts: Counter[str]
    """Counts of ties, of turned and unexplained decisions, and of steps with too many ties, wide tolerances or decisions that
    do not fit the model."""
    of_terms: Mapping[str, float] = {}
    """Gradient that is judged on the scale of its terms: difference relative to its largest component."""


@dataclass
class StepComparison:
    """Comparison of a recorded step with its truth.

    Args:
        spec: the spec of the recorded run.
        recorded: the recorded steps.
        taught: the steps of the recording that teaches.
        expected: the truth of this step.
        number: number of the step in the optimizer's count, from 1.
        rate: learning rate of the step.
        earlier: index of the step that was recorded before. None: this is the first.
    """

    spec: Spec
    recorded: Mapping[str, npt.NDArray[Any]]
    taught: TaughtSteps
    expected: StepTruth
    number: int
    rate: float
    earlier: int | None
    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def step(self) -> int:
        return self.expected.step

    # Explanations, in the order in which they are tried.

    def judge(self) -> StepJudgement:
        """Judge the step by the first explanation that applies."""
        truth = self.expected.truth
        self.counts["ties"] = sum(tie.nearness <= TIE_FACTOR for tie in truth.ties)
        plain = self.findings(truth)
        if self.spec.precision == "float64":
            return self._with_cancelling_terms(plain) or StepJudgement(plain, self.counts)
        if worst_ratio(plain, "gradients", "weights") <= 1:
            return StepJudgement(plain, self.counts)
        return self._with_recorded_decisions() or self._with_unrecorded_decisions(plain)

    def _with_cancelling_terms(self, plain: Findings) -> StepJudgement | None:
        beyond: dict[str, float] = {}
        for aspect, finding in plain:
            if aspect == "gradients" and 1 < finding.ratio < math.inf:
                beyond[finding.array] = max(beyond.get(finding.array, 0.0), finding.difference)
        # A model with builders of its own may compute more than its architecture says.
        is_known = self.spec.model in MODELS or not claims.has_own_builders(self.spec.model)
        if not beyond or not is_known:
            return None
        return StepJudgement(self.findings(self.expected.with_term_limits(beyond)), self.counts, beyond)

    def _with_recorded_decisions(self) -> StepJudgement | None:
        replay = self.expected.with_recorded_decisions(self.recorded, np.float32)
        if replay is None:
            return None
        if replay.unexplained or not replay.fits:
            self.counts += Counter(unexplained=replay.unexplained, misfit=not replay.fits)
            return None
        findings = self.findings(replay.truth)
        if worst_ratio(findings, "gradients", "weights") > SCREENING_MARGIN:
            exact = self.expected.with_recorded_decisions(self.recorded, np.float64)
            assert exact is not None, "the same decisions fit"
            findings = self.findings(exact.truth)
        return StepJudgement(findings, self.counts + Counter(turned=replay.turned))

    def _with_unrecorded_decisions(self, plain: Findings) -> StepJudgement:
        """Find the decisions by the gradients, or judge by a tolerance that covers any decision."""
        covering = self.expected.with_any_decision
        findings = self.findings(covering)
        if worst_ratio(findings, "gradients", "weights") > HOPELESS_RATIO:
            return StepJudgement(findings, self.counts)
        if self.spec.compresses:  # the gradients that arrive do not determine a replica's decisions
            return StepJudgement(findings, self.counts + Counter(many=1, loose=1))
        replay = self.expected.with_found_ties(self.expected.recorded_gradients(self.recorded))
        if replay is None:
            widest = max(on_scale(limit, covering.scales[name]) for name, limit in covering.error_limits.gradients.items())
            return StepJudgement(findings, self.counts + Counter(many=1, loose=int(widest > LOOSE_TOLERANCE)))
        explained = self.findings(replay.truth)
        if worst_ratio(explained, "gradients", "weights") < worst_ratio(plain, "gradients", "weights"):
            return StepJudgement(explained, self.counts + Counter(turned=replay.turned))
        return StepJudgement(plain, self.counts)

    # Findings by aspect.

    def findings(self, truth: Truth) -> Findings:
        """Compare all aspects with a truth."""
        exchanged = self._expected_exchange(truth) if self.spec.compresses else None
        if isinstance(exchanged, ExpectedExchange):
            self.counts["open"] = sum(int(flags.sum()) for flags in exchanged.is_open.values())
            self.counts["any width"] = int(exchanged.is_loose)
        self.counts["untold"] = int(exchanged == ERROR_FEEDBACK_NOT_RECORDED)
        by_aspect = {
            "batches": self._batches(),
            "losses": self._losses(truth),
            "scores": self._scores(truth),
            "BatchNorm statistics": self._statistics(truth),
        }
        findings = [(aspect, finding) for aspect, aspect_findings in by_aspect.items() for finding in aspect_findings]
        if isinstance(exchanged, str):
            difference = 0.0 if exchanged == ERROR_FEEDBACK_NOT_RECORDED else math.inf
            return [*findings, ("gradients", Finding(difference, 0.0, exchanged, self.step))]
        return [*findings, *self._exchange(exchanged), *self._updates(truth, exchanged)]

    def _finding(self, where: str, difference: Array, allowed: Any, scale: float, is_open: Any = False) -> Finding:
        """Return the difference that is nearest to its tolerance.

        Args:
            where: name of the array.
            difference: difference of each component.
            allowed: largest rounding error of each component, or of all.
            scale: scale of the array.
            is_open: whether a component may become one of several values. Its limit is wide. It counts only if it exceeds the
                limit, and else the others do.
        """
        allowed = np.broadcast_to(allowed, difference.shape)
        if not (np.isfinite(difference).all() and np.isfinite(allowed).all() and math.isfinite(scale)):
            return Finding(math.inf, 0.0, where, self.step)
        if self.spec.precision == "float64":
            allowed = np.maximum(allowed, TOLERANCE * scale)
        ratio = np.divide(difference, allowed, out=np.where(difference > 0, np.inf, 0.0), where=allowed > 0)
        informative = np.where(is_open & (ratio <= 1), -1.0, ratio)
        worst = np.unravel_index(np.argmax(informative if informative.max() >= 0 else ratio), ratio.shape)
        scale = max(scale, float(allowed[worst])) or 1.0  # an array that is nothing but rounding has no scale
        return Finding(float(difference[worst]) / scale, float(allowed[worst]) / scale, where, self.step)

    def _batches(self) -> Iterator[Finding]:
        if self.taught.is_timed:
            return  # the plan judges the batch
        names = [f"{prefix}/{self.step}" for prefix in ("ids", "hashes")]
        same = all(np.array_equal(self.recorded[name], self.taught.teacher[name]) for name in names)
        yield Finding(0.0 if same else math.inf, 0.0, "" if same else "ids or pixels", self.step)

    def _losses(self, truth: Truth) -> Iterator[Finding]:
        loss, expected = _number(self.recorded[f"loss/{self.step}"]), np.array([truth.step.loss])
        yield self._finding("", absolute(loss, expected), truth.error_limits.loss, abs(truth.step.loss))

    def _scores(self, truth: Truth) -> Iterator[Finding]:
        if self.spec.precision != "float32" or f"num_correct/{self.step}" not in self.recorded:
            return
        yield self._right_predictions(truth)
        logits, losses, error = self.expected.evaluation
        evaluated_loss, expected_loss = _number(self.recorded[f"scored/{self.step}/loss"]), losses.mean().reshape(1)
        scale = abs(float(expected_loss[0]))
        # An image moves the loss by twice a logit's error at most. The loss rounds too, even where all logits are tiny.
        allowed = 2 * error + ROUNDING_FACTOR * UNIT["float32"] * scale
        yield self._finding("loss in evaluation", absolute(evaluated_loss, expected_loss), allowed, scale)
        predictions = np.asarray(self.recorded[f"scored/{self.step}/predictions"])
        classes = np.clip(predictions, 0, logits.shape[1] - 1)
        missed = logits.max(1) - logits[range(len(classes)), classes] > 2 * error
        missed |= classes != predictions
        where = f"{missed.sum()} of {len(missed)} predictions in evaluation"
        yield Finding(float(missed.mean()), 0.0, where, self.step)

    def _right_predictions(self, truth: Truth) -> Finding:
        """Compare the right predictions in training.

        A prediction may be any class whose logit rounding can make the largest.
        """
        logits, labels = truth.step.logits, truth.step.labels
        others = np.where(np.eye(logits.shape[1], dtype=bool)[labels], -np.inf, logits).max(1)
        margins = logits[range(len(labels)), labels] - others
        error = 2 * truth.error_limits.logits
        least, most = int((margins > error).sum()), int((margins >= -error).sum())  # equal logits are a tie
        counted = np.asarray(self.recorded[f"num_correct/{self.step}"]).item()
        beyond = max(least - counted, counted - most, 0)
        where = f"right predictions of {counted} images, should be {least} to {most}"
        return Finding(beyond / len(labels), 0.0, where, self.step)

    def _statistics(self, truth: Truth) -> Iterator[Finding]:
        after, unit = group(self.recorded, f"after/{self.step}/weights/"), UNIT[self.spec.precision]
        for name, statistic in truth.step.statistics.items():
            difference, scale = absolute(statistic, after.get(name)), float(np.abs(statistic).max())
            yield self._finding(name, difference, truth.error_limits.statistics[name] + 4 * unit * scale, scale)

    def _updates(self, truth: Truth, exchanged: ExpectedExchange | None) -> Iterator[tuple[str, Finding]]:
        """Compare the gradients in the optimizer's state, and the weights that follow from the recorded state."""
        unit = UNIT[self.spec.precision]
        gradients: Mapping[str, Array] = exchanged.gradients if exchanged else truth.step.gradients
        limits: Mapping[str, Any] = exchanged.tolerances if exchanged else truth.error_limits.gradients
        is_open: Mapping[str, Any] = exchanged.is_open if exchanged else {}
        weights, slots_before = self.taught.state_before(self.step)
        after = group(self.recorded, f"after/{self.step}/weights/")
        for name, gradient in gradients.items():
            weight = np.asarray(weights[name], np.float64)
            slots = {slot: np.asarray(values[name], np.float64) for slot, values in slots_before.items()}
            rule = UpdateRule(self.spec.optimizer, slots, unit)
            expected = rule.slots_after(weight, gradient, limits[name])
            recorded_slots = {slot: self.recorded.get(f"after/{self.step}/slots/{slot}/{name}") for slot in expected}
            for slot, (value, limit, share) in expected.items():
                scale = truth.scales[name] if share else float(np.abs(value).max())
                difference = absolute(value, recorded_slots[slot]) / (share or 1.0)
                where = f"{name}, {slot}"
                yield (
                    "gradients",
                    self._finding(where, difference, limit / (share or 1.0), scale, is_open.get(name, False)),
                )
            values = {
                slot: value if recorded_slots[slot] is None else np.asarray(recorded_slots[slot], np.float64)
                for slot, (value, *_) in expected.items()
            }
            update, limit = rule.update(values, self.rate, self.number)
            difference = absolute(weight - update, after.get(name))
            scale = float(np.abs(update).max()) or float(np.abs(weight).max())
            yield "weights", self._finding(name, difference, limit + 3 * unit * np.abs(weight), scale)

    # Compressed gradients.

    def _exchange(self, exchanged: ExpectedExchange | None) -> Iterator[tuple[str, Finding]]:
        """Compare what each replica keeps for its next step, alone and together with what arrives."""
        if exchanged is None:
            return
        residuals_after = _recorded_residuals(self.recorded, "after", self.step)
        arrays = zip(exchanged.residuals, exchanged.residual_tolerances, exchanged.residual_is_open, strict=True)
        for place, (residual, limit, flags) in enumerate(arrays):
            where, scale = f"not sent of bucket {place + 1}", float(np.abs(residual).max())
            yield "gradients", self._finding(where, absolute(residual, residuals_after[place]), limit, scale, flags)
        if not exchanged.sums:
            return
        # An open component is sent or kept, but never both or neither.
        arrived, errors = map(_buckets(self.spec, self.taught.architecture).joined, self._arrived_gradients())
        for place, (total, limit) in enumerate(exchanged.sums):
            where, scale = f"sent and kept of bucket {place + 1}", float(np.abs(total).max())
            difference = absolute(total, arrived[place] + np.asarray(residuals_after[place], np.float64).sum(0))
            yield "gradients", self._finding(where, difference, limit + errors[place], scale)

    def _expected_exchange(self, truth: Truth) -> ExpectedExchange | str:
        """Return the expected exchange of compressed gradients, or the fault of the residuals from before the step."""
        buckets, residuals = _buckets(self.spec, self.taught.architecture), list[npt.NDArray[Any]]()
        if self.spec.communication.error_feedback:
            residuals, residuals_after = (_recorded_residuals(self.recorded, when, self.step) for when in ("before", "after"))
            if not residuals and not residuals_after:
                return ERROR_FEEDBACK_NOT_RECORDED
            if any([array.shape for array in buckets_kept] != buckets.sizes for buckets_kept in (residuals, residuals_after)):
                return "what replicas keep has another size than their buckets"
            if not self.taught.is_timed:  # else the step before was not recorded
                expected = list(map(np.zeros_like, residuals))
                if self.earlier is not None:
                    expected = _recorded_residuals(self.recorded, "after", self.earlier)
                if not all(map(np.array_equal, expected, residuals)):
                    return "what replicas kept of the step before is not what they have now, or no number"
        return expected_exchange(buckets, truth.step.gradients, truth.error_limits.gradients, residuals)

    def _arrived_gradients(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return (gradients of the recorded step from its optimizer state; their largest rounding errors)."""
        (weights, before), (_, after) = self.taught.state_before(self.step), state(self.recorded, f"after/{self.step}")
        slot, _, share = gradient_slot(self.spec.optimizer)
        decay = self.spec.optimizer.weight_decay

        def error(name: str) -> Array:
            sizes = np.abs(after[slot][name]) + np.abs(before[slot][name]) + decay * np.abs(weights[name])
            return (4 * UNIT["float32"] * sizes + 2 * np.finfo(np.float32).tiny) / share

        return self.expected.recorded_gradients(self.recorded), {name: error(name) for name in before[slot]}


@dataclass(frozen=True)
class UpdateRule:
    """Update of one array, and its largest rounding error."""

    settings: Optimizer
    slots: Mapping[str, Array]
    unit: float

    def slots_after(self, weight: Array, gradient: Array, allowed: Any) -> dict[str, tuple[Array, Array, float]]:
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


def _number(value: npt.NDArray[Any]) -> Array:
    return np.asarray(value, np.float64).reshape(1)


def _buckets(spec: Spec, architecture: Architecture) -> Buckets:
    trainable = [parameter for parameter in architecture.parameters() if parameter.trainable]
    return Buckets([parameter.name for parameter in trainable], [parameter.shape for parameter in trainable], spec)


def _recorded_residuals(recorded: Mapping[str, npt.NDArray[Any]], when: str, step: int) -> Sequence[npt.NDArray[Any]]:
    """Return the recorded residuals of each bucket, [replicas, count], before or after a step."""
    arrays = group(recorded, f"lost/{when}/{step}/")
    return [arrays[str(number)] for number in range(len(arrays))]
