"""One step of training from the same state, judged against the referee.

Both frameworks load the same weights, BatchNorm statistics and optimizer state. They take the same batch and do one step with
the kernels that are timed. Nothing that happened earlier counts, so little can hide behind rounding. Each parameter and each
statistic is judged on its own scale, see `step_truth` and `step_comparison`.

In float64 each step is compared with that of the first framework, within `TOLERANCE`. The scale of a gradient is its largest
component. If that fails, it is for each component the sum of the absolute values that it adds up, as the referee finds them.
If they cancel, the sum has fewer digits than its terms, in whatever order it is taken. Rounding in
the layers behind it is not among these terms. It must fit in as well.

If replicas compress their gradients, the referee compresses each one's share by the written rules. Rounding decides which
step of a byte a value becomes, and which values are the largest. Such a value may become either, see `compressed`. What a
replica keeps for its next step is judged too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from common.data.batches import BatchPlan
from common.machine import machine
from common.models import work
from common.models.architectures import Architecture
from common.spec import Spec
from compare.cli import wording
from compare.proof.certificate import Rung
from compare.proof.differences import make_rung
from compare.proof.referee import training
from compare.proof.step_comparison import (
    ASPECTS,
    ERROR_FEEDBACK_NOT_RECORDED,
    HOPELESS_RATIO,
    LOOSE_TOLERANCE,
    Finding,
    StepComparison,
    StepJudgement,
)
from compare.proof.step_truth import COPIES, MOST_COPIES, ROUNDING_FACTOR, Division, StepTruth, TaughtSteps

MOST_BYTES = 4 * 2**30
"""Bytes of the states of float64 steps. A large model is proved at fewer steps."""
STEPPED_FLOPS = 2.4e10
"""FLOPs of the single steps of one recording: about a second in float64. All steps of MiniXception would be half of its
proof."""
LEAST_STEPS = 2
"""Fewest float32 steps. The referee repeats each: the first and the last of all. One more if the learning rate
changes, because it may be so small at the last step that no weight moves. The budget decides about more steps."""
TERM_SCALE = "on the scale of what each component adds up"
_SCORES_REASON = (
    "a prediction is the class of the largest logit, or of one that rounding can make the largest; the loss in evaluation may "
    "be off by what rounding moves a logit and the loss itself"
)
"""Reason of the tolerances of the scores."""


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
        options: see `TaughtSteps`.
    """

    def __init__(
        self,
        architecture: Architecture,
        teacher: Mapping[str, npt.NDArray[Any]],
        steps: Sequence[int],
        plan: BatchPlan,
        **options: Any,
    ) -> None:
        self._taught = TaughtSteps(architecture, teacher, **options)
        self._steps = steps
        self._plan = plan
        self._truths: dict[Any, StepTruth] = {}

    def stop(self) -> None:
        """Cancel the judging in another thread."""
        self._taught.stopping.set()

    def truth(self, spec: Spec, step: int, copies: int = COPIES) -> StepTruth:
        """Return the truth of a step of a run, with tolerances from at least so many float32 copies."""
        division = Division.for_batch(spec, self._taught.architecture, self._taught.size(step))
        truth = self._truths.get((step, division.key))
        if truth is None or truth.copies < copies:
            truth = self._truths[step, division.key] = StepTruth(self._taught, spec, step, division, copies)
        return truth

    def rungs(self, spec: Spec, recorded: Mapping[str, npt.NDArray[Any]], framework: str) -> list[Rung]:
        """Return rung 8 of one framework and mode.

        Args:
            spec: the spec of the recorded run.
            recorded: the recorded steps.
            framework: the framework's name.
        """
        findings_by_aspect: dict[str, list[Finding]] = {aspect: [] for aspect in ASPECTS}
        counts = Counter[str]()
        of_terms: dict[str, list[float]] = {}
        with ThreadPoolExecutor(machine.available_cores()) as pool:  # BLAS has one thread here, see `ladder.fast_referee`
            for judgement in pool.map(partial(self._judge_step, spec, recorded), range(len(self._steps))):
                counts += judgement.counts
                for aspect, finding in judgement.findings:
                    findings_by_aspect[aspect].append(finding)
                for name, difference in judgement.of_terms.items():
                    of_terms.setdefault(name, []).append(difference)
        rungs: list[Rung] = []
        for aspect, findings in findings_by_aspect.items():
            if not findings:
                continue
            worst = max(findings, key=lambda finding: finding.ratio)
            reason = _SCORES_REASON if aspect == "scores" else _reason(spec, counts) + _widest_text(findings)
            term_judged = of_terms if aspect == "gradients" else {}
            proves_little = any(counts[why] for why in ("loose", "unexplained", "misfit", "untold", "any width"))
            is_loose = aspect == "gradients" and proves_little and worst.ratio <= 1
            rungs.append(
                make_rung(
                    spec,
                    8,
                    aspect,
                    worst.difference,
                    worst.where or None,
                    worst.tolerance,
                    "ids and pixels are equal or not"
                    if aspect == "batches"
                    else ("shown: " if is_loose else "") + reason + _terms_text(term_judged),
                    step=worst.step + 1,
                    steps=self._plan.total_steps,
                    judged_steps=len(self._steps),
                    framework=framework,
                    of_terms={name: max(differences) for name, differences in term_judged.items()},
                    **({"status": "shown"} if is_loose else {}),
                )
            )
        return rungs

    def _judge_step(self, spec: Spec, recorded: Mapping[str, npt.NDArray[Any]], index: int) -> StepJudgement:
        """Compare a recorded step with the truth. If it exceeds the tolerance of few copies, more are made."""
        if self._taught.stopping.is_set():
            raise CancelledError
        step = self._steps[index]
        number = step + 1 if self._taught.is_timed else index + 1
        rate = learning_rates(spec, self._plan.steps_per_epoch, self._plan.total_steps)(step + 1)
        earlier = self._steps[index - 1] if index else None

        def judge(copies: int) -> StepJudgement:
            expected = self.truth(spec, step, copies)
            return StepComparison(spec, recorded, self._taught, expected, number, rate, earlier).judge()

        judgement = judge(COPIES)
        beyond = [(aspect, finding.ratio) for aspect, finding in judgement.findings if finding.ratio > 1]
        is_far = any(ratio > HOPELESS_RATIO and aspect != "scores" for aspect, ratio in beyond)
        if spec.precision == "float64" or not beyond or is_far:
            return judgement
        return judge(MOST_COPIES)


def _terms_text(of_terms: Mapping[str, Sequence[float]]) -> str:
    """Name the gradients that are judged on the scale of their terms, as a part of a reason."""
    if not of_terms:
        return ""
    steps = ", ".join(
        f"{name} at {wording.count(len(differences), 'step')} (up to {max(differences):.1e} of its largest component)"
        for name, differences in sorted(of_terms.items())
    )
    return f"; judged {TERM_SCALE}: {steps}"


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
        reason += f"; {ERROR_FEEDBACK_NOT_RECORDED} for the next step, so what arrives is not judged"
    if counts["any width"]:
        reason += "; numbers of half the width are added in any order, so gradients that are not compressed would pass too"
    if counts["turned"]:
        reason += f"; it decided {counts['turned']} otherwise than in float64, and the referee took these decisions over"
    if counts["unexplained"]:
        reason += f"; rounding does not explain {wording.count(counts['unexplained'], 'decision')} that the framework tells"
    if counts["misfit"]:
        reason += "; the decisions that the framework tells are not those of the model's layers"
    if counts["many"]:
        reason += f"; at {counts['many']} steps they are too many to try all, and the tolerance covers any decision"
    return reason
