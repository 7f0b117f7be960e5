"""The words of `same`: the answer, the causes, and the experiment that would confirm each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from compare.cli import wording
from compare.judgement import statement_words
from compare.judgement.statement import Statement
from compare.judgement.statement_words import Below, Template
from compare.proof.step_truth import ROUNDING_FACTOR
from compare.tools.same.causes import CurveCause


def sentences(statements: Iterable[Statement]) -> list[str]:
    """Statements on two curves in words."""
    return statement_words.sentences(statements, templates=TEMPLATES)


def cause_sentence(cause: CurveCause) -> str:
    """One cause in words, with how well it fits."""
    fit = "" if cause.residual is None else f" It explains all but {cause.residual:.1e} of the largest difference."
    if cause.residual == 0.0:
        fit = ""
    return statement_words.fill(CAUSES[cause.key][0], cause.values) + fit


def experiment(cause: CurveCause) -> str:
    """The experiment that would confirm a cause, as a sentence."""
    return statement_words.fill(CAUSES[cause.key][1], cause.values)


def _times(factor: float) -> str:
    """Format a factor: `2 times`, `1/2 of`, `1.37 times`."""
    if factor < 1 and abs(round(1 / factor) * factor - 1) < 1e-3:
        return f"1/{round(1 / factor)} of"
    return f"{factor:.4g} times"


def _processes(values: Mapping[str, Any]) -> str:
    if "processes" not in values:
        return ""
    return f" {values['of']} starts {values['processes']} processes."


def _scale(values: Mapping[str, Any]) -> str:
    return (
        f"At every step B's loss is {_times(values['times'])} A's, within rounding. The updates are the same: only what is "
        f"logged has the factor, or the optimizer ignores it, as Adam does. A sum stands for a mean, or parts are divided "
        f"twice.{_processes(values)}"
    )


def _first_scale(values: Mapping[str, Any]) -> str:
    return (
        f"At the first step B's loss is {_times(values['times'])} A's, and later the trainings part. The factor is in the "
        f"gradient too: a sum over processes, parts or examples in the place of a mean, or a mean of means.{_processes(values)}"
    )


def _divide(values: Mapping[str, Any]) -> str:
    change = _undone("loss", values["times"])
    return f"{change} before backward(), and compare again. Confirmed if they agree."


def _undone(subject: str, factor: float) -> str:
    return f"Divide B's {subject} by {factor:.3g}" if factor > 1 else f"Multiply B's {subject} by {1 / factor:.3g}"


def _rate(values: Mapping[str, Any]) -> str:
    part = wording.percent(values["explained"])
    return (
        f"B's losses fall as A's do with about {_times(values['times'])} A's learning rate. That explains {part} of the "
        "squared differences. The rate was scaled, or gradients are a sum where A has a mean, or a mean of means."
        f"{_processes(values)}"
    )


def _restore_rate(values: Mapping[str, Any]) -> str:
    factor = values["times"]
    if "processes" in values:
        factor = float(values["processes"]) if factor > 1 else 1 / values["processes"]
    return f"{_undone('learning rate', factor)}, and compare again. Confirmed if they agree."


def _running_mean(values: Mapping[str, Any]) -> str:
    since = f"the begin of each {values['period']} steps" if values["period"] else "the first step"
    return f"{values['one']} logs the mean of the losses since {since}, {{other}} the loss of each step.".format(**values)


def _divergence(values: Mapping[str, Any]) -> str:
    return f"{values['one']}'s loss is no number at step {values['step']}: an overflow, or a step that is too large."


_EXACT_LOG = "Log the loss of each step in both, before any average, and compare again. Confirmed if they agree."
_SAME_ORDER = (
    "Print a checksum of each batch (ids or labels) in both at that step. Confirmed if they differ. Then shuffle once with one "
    "seed, or without shuffling."
)
_ZERO_RATE = (
    "Run both with the learning rate 0 for one epoch. Confirmed if the losses then are the same in another order, or have the "
    "same mean."
)
CAUSES: dict[str, tuple[Template, Template]] = {
    "divergence": (
        _divergence,
        "Run {one} in float32 without autocast, or with a tenth of the learning rate. Confirmed if its losses stay finite.",
    ),
    "loss-scale": (_scale, _divide),
    "loss-scale/first": (_first_scale, _divide),
    "loss-scale/mostly": (
        "At {steps} of {all} steps B's loss is {times:.4g} times A's: a sum over the examples of a batch, or over processes, "
        "where A logs a mean. The other batches may be short.",
        "Log the mean over examples in both, and compare again. Confirmed if they agree.",
    ),
    "step-shift": (
        "{one}'s loss at a step is {other}'s of {steps:step} earlier. {one} logs after the update where {other} logs before "
        "it, or starts with other batches.",
        "Log both before the update, from the first batch on, and compare again. Confirmed if they agree.",
    ),
    "loss-offset": (
        "B's loss is A's plus {by:.6g}, at every step. A constant term is in the logged loss of one.",
        "Log the cross-entropy alone in both, and compare again. Confirmed if they agree.",
    ),
    "running-mean": (_running_mean, _EXACT_LOG),
    "running-mean/exponential": (
        "{one} logs a moving average: {weight:.4g} times the last value, plus {other}'s loss of the step with the rest.",
        _EXACT_LOG,
    ),
    "running-mean/window": ("{one} logs the mean of the last {window} losses of {other}.", _EXACT_LOG),
    "micro-batches/mean": (
        "{one} logs {parts} losses for each of {other}'s. Their mean is {other}'s: the parts of a batch (micro-batches) are "
        "logged.",
        "Log one mean for each update in {one}, and compare again. Confirmed if they agree.",
    ),
    "micro-batches/sum": (
        "{one} logs {parts} losses for each of {other}'s. Their sum is {other}'s: parts are divided by their number already.",
        "Log one sum for each update in {one}, and compare again. Confirmed if they agree.",
    ),
    "order/exact": ("Both have the same losses in another order: the batches come in another order.", _SAME_ORDER),
    "order/mean": (
        "Both losses have the same mean: the same examples come in other batches.",
        _SAME_ORDER,
    ),
    "order": (
        "The differences look random from the first step on: other examples in each batch, or in another order.",
        _ZERO_RATE,
    ),
    "order/second": (
        "The first batch is the same. From step {step} on the batches may be others: another order, or another division among "
        "processes.",
        _SAME_ORDER,
    ),
    "order/epoch": (
        "All steps before step {step} agree. A new epoch may begin there, with the examples in another order: another seed, or "
        "a DistributedSampler without set_epoch().",
        _SAME_ORDER,
    ),
    "last-batch/logged": (
        "They differ at every {period}th step alone: the last batch of an epoch is short, and its loss is a mean of unequal "
        "parts (a mean of means).",
        "Drop the last batch in both (drop_last=True), and compare again. Confirmed if they agree.",
    ),
    "last-batch/epoch": (
        "All steps before step {step} agree. If an epoch ends there, its last batch is short: processes get unequal parts, and "
        "a mean of means weighs their examples differently, or one side drops or pads it.",
        "Drop the last batch in both (drop_last=True), or take a size that divides the examples. Confirmed if they agree.",
    ),
    "no-update": (
        "{one}'s loss does not change: {one} does not train. The optimizer may have other parameters, a learning rate of 0, or "
        "no step.",
        "Print the norm of one parameter before and after a step in {one}. Confirmed if it stays.",
    ),
    "precision/values": (
        "All of {one}'s losses are numbers of {dtype}: {one} computes in lower precision.",
        "Run {one} in float32 without autocast, and compare again. Confirmed if they agree within rounding.",
    ),
    "precision/size": (
        "The first loss differs by {by:.1e} of the larger loss alone: one may compute in lower precision (autocast, TF32, "
        "bfloat16).",
        "Run both in float32 without autocast and TF32, and compare again. Confirmed if they agree within rounding.",
    ),
    "initial-weights": (
        "The first losses differ, before any update: the initial weights may be others.",
        "Print the norm of each parameter before the first step in both, or load one checkpoint in both. Confirmed if norms "
        "differ.",
    ),
    "draws": (
        "Or other random draws on the same examples: dropout or augmentation with another seed.",
        "Switch dropout and augmentation off in both, and compare again. Confirmed if they agree.",
    ),
    "one-rank": (
        "Or one process logs its own loss alone, not the mean over all.",
        "Average the loss over processes (all_reduce) before it is logged. Confirmed if they agree.",
    ),
    "batch-statistics": (
        "Or BatchNorm sees a part of the batch on one side: one process's examples, or a micro-batch.",
        "Synchronise BatchNorm (SyncBatchNorm), or set it to eval() in both. Confirmed if the first losses agree.",
    ),
    "loss-definition": (
        "One curve stays above the other from the first step on: another loss (label smoothing, weight decay in the loss, an "
        "auxiliary term, padding counted), or other inputs.",
        "Compute both losses on one stored batch of logits and labels. Confirmed if they differ.",
    ),
    "learning-rate": (_rate, _restore_rate),
    "learning-rate/unknown": (
        "The first loss is the same, so weights and first batch are too. The first update differs, and B's losses fall "
        "{speed}: learning rate, scale of the gradients (sum or mean), weight decay, clipping, or the optimizer.",
        "Print the norms of the gradient and of the update at the first step in both. Their ratio is the factor. If the "
        "gradients differ by it, it is a scale. If the updates alone do, it is a setting of the optimizer.",
    ),
    "second-update": (
        "The first update is the same, the second is not (step {step}): what has a memory differs. Momentum, Adam's betas or "
        "bias correction, the learning rate's schedule, or gradients that are not set to zero. With Adam also clipping and the "
        "scale of the gradients (sum or mean): its first update does not depend on their scale.",
        "Print the norms of the gradient at the first step in both: another norm is clipping or a scale. Else train both with "
        "plain SGD at a constant rate. Confirmed if they agree. If not, look at zero_grad().",
    ),
    "uneven-parts": (
        "The differences look random from the first step on, {by:.1e} of the larger loss in the median: one side may take a "
        "mean of means over uneven parts of a batch (processes or micro-batches).",
        "Add the losses of all examples up in both and divide once, by the number of examples in the whole batch. Confirmed if "
        "they agree.",
    ),
    "late-setting": (
        "{updates:update} agree before step {step}: a setting may change there. A schedule's milestone, clipping that begins "
        "to act, an evaluation that leaves eval() on, or a checkpoint that is loaded.",
        "Print learning rate, norm of the gradient and model.training around that step in both. Confirmed if one differs.",
    ),
    "between-lines": (
        "The training parts between the logged steps {before} and {step}.",
        "Log every step, and compare again: the step says more.",
    ),
}
"""(sentence, experiment) of every cause, by its name and variant."""


def _another(values: Mapping[str, Any]) -> str:
    others = wording.count(values["others"], "other step") if values["others"] else ""
    if values["moved"]:
        nor = f", nor at {others}" if others else ""
        return f"Another training: rounding does not explain the difference at step {values['step']}{nor}."
    places = f"step {values['step']}{f' and at {others}' if others else ''}"
    return f"Another training: the losses differ by more than rounding usually makes at {places}."


def _first_difference(values: Mapping[str, Any]) -> str:
    losses = f"Step {values['step']}: A's loss is {values['a']:.9g}, B's {values['b']:.9g}."
    if math.isinf(values["relative"]):
        return losses
    limit = "nothing" if values["limit"] == 0 else "any difference" if values["limit"] >= 1 else f"up to {values['limit']:.1e}"
    by_rounding = f"Rounding {'explains' if values['moved'] else 'may explain'} {limit}"
    return f"{losses} They differ by {values['relative']:.1e} of the larger loss. {by_rounding}."


def _copies(values: Mapping[str, Any]) -> str:
    (first, runs), *others = values["copies"].items()
    sides = " and ".join([f"{wording.count(runs, 'run')} of {first}", *(f"{number} of {letter}" for letter, number in others)])
    if values["moved"]:
        text = f"Rounding was measured by the smallest change of inputs: {sides}."
        return f"{text} Their losses are equal, so the limit is {_unit(values)}." if values["equal"] else text
    most = f"Their losses are equal, so a yes allows {_unit(values)}" if values["equal"] else "A yes allows what they differ by"
    return f"The commands were repeated unchanged: {sides}. {most}."


def _unit(values: Mapping[str, Any]) -> str:
    digits = ", and half a unit of the last written digit" if values["digits"] else ""
    return f"{values['unit']:.1e} of the larger loss ({ROUNDING_FACTOR:g} roundings of {values['dtype']}){digits}"


def _by_unit(values: Mapping[str, Any]) -> str:
    return (
        f"The same within what {values['dtype']} can show: the losses of {wording.count(values['steps'], 'step')} differ by "
        f"{values['largest']:.1e} of the larger loss at most. Repeats differ by less, so the limit is {_unit(values)}."
    )


def _without_copies(values: Mapping[str, Any]) -> str:
    limit = f"{'at least' if values['repeated'] else 'up to'} {values['start']:.0e}"
    return (
        f"Rounding was not measured. So {limit} of the larger loss may be rounding at the first step, and a hundred times the "
        "difference so far at each later one. To measure it: --copies 3 --ulp."
    )


def _missing(values: Mapping[str, Any]) -> str:
    letter, other = values["letter"], values["other"]
    count = wording.count(values["steps"], "step")
    text = f"{letter} goes on for {count} after step {values['last']}, where {other} ends."
    return f"{text} Compare the first ones: --steps {values['common']}."


def _gaps(values: Mapping[str, Any]) -> str:
    letter, other = values["letter"], values["other"]
    count = wording.count(values["steps"], "step")
    text = f"{letter} has {count} from {values['first']} to {values['last']} that {other} lacks."
    return f"{text} Compare the common ones: --steps {values['common']}." if values["partial"] else text


def _blunt(values: Mapping[str, Any]) -> str:
    what = "rounding alone" if values["moved"] else "repeating a command"
    begin = f"Cannot tell: {what} explains a difference of more than 1 % of the larger loss"
    if values["place"]:
        return (
            f"{begin} from step {values['step']} on. Before it, that explains what differs. Compare these steps alone: "
            f"--steps {values['place']}."
        )
    return (
        f"{begin} at the first logged step. Log the first steps. Set every seed, so that a repeat gives the same losses. "
        "Compute in float32."
    )


TEMPLATES: dict[str, Template | Below] = {
    "curves_same": "Yes: all {steps:step} have the same loss, {how}.",
    "curves_same_until": "Yes, until both are no number at step {end}: {steps:step} before it with the same loss, {how}.",
    "curves_stored": (
        "{steps:step} of A are stored in {file}. Nothing was compared. The same command compares with them from now on."
    ),
    "curves_rounding": (
        "The same training: the losses of {steps:step} differ by {largest:.1e} of the larger loss at most, which rounding "
        "explains. It would explain up to {most:.1e}."
    ),
    "curves_repeat": (
        "The same within repeats: the losses of {steps:step} differ by {largest:.1e} of the larger loss at most, as repeats of "
        "one command do."
    ),
    "curves_unit": _by_unit,
    "curves_another": _another,
    "curves_undecided": (
        "Cannot tell rounding from another training: the losses differ by {largest:.1e} of the larger loss at most."
    ),
    "curves_blunt": _blunt,
    "curves_ended": "Cannot tell: the common {steps:step} {agree}, and one side has more.",
    "first_difference": _first_difference,
    "first_rounding": "Before that they differ within rounding, first at step {step} by {relative:.1e} of the larger loss.",
    "limit_copies": _copies,
    "limit_without": _without_copies,
    "missing": _missing,
    "in_order": "Steps are aligned in order: A has {a}, B {b}.",
    "counted": (
        "{letter} has no column of steps, so its lines are counted. Many steps may lie between two lines: unless rounding is "
        "measured (--copies 3 --ulp), no difference is too large for it."
    ),
    "gaps": _gaps,
    "digits": "{letter} writes {digits}. Smaller differences are not seen.",
    "coarse": "All of {letter}'s losses are numbers of {dtype}. It computes in lower precision, and rounds by more.",
    "both_end": "Both are no number from step {step} on. Steps before it were compared.",
    "not_nudged": (
        "The rounding of {letter} was not measured, so that of {other} counts. To measure it: --ulp, and nudge() in {letter}'s "
        "script."
    ),
    "no_cause": "None of the known patterns fits.",
}
"""Words by kind of statement on two curves."""
