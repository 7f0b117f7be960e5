"""Claims on loss curves, compared number by number."""

from __future__ import annotations

from compare.core.differences import FLOAT32_TOLERANCE, relative_difference
from compare.core.wording import count
from compare.execution import launch
from compare.papers import judging, schema
from compare.papers.here import Here
from compare.papers.judging import CANNOT_TELL, Judgement
from compare.papers.plan import CORRECTED

Losses = dict[int, list[float]]
"""Repeat: losses."""


def _losses(here: Here, training: str, row: str) -> Losses:
    """The training loss of each epoch."""
    return {
        repeat: [epoch.train.loss for epoch in run.epochs if epoch.train] for repeat, run in here.runs(training, row).items()
    }


def _first_loss(here: Here, training: str, row: str) -> Losses:
    """The loss of the first step, which is one number."""
    runs = here.runs(training, row).items()
    return {repeat: [run.first_step_loss] for repeat, run in runs if run.first_step_loss is not None}


def _gaps(base: Losses, other: Losses) -> list[float]:
    """Relative differences of the losses of the repeats that both have."""
    return [
        relative_difference(a, b)
        for repeat, losses in other.items()
        if repeat in base
        for a, b in zip(base[repeat], losses, strict=False)
    ]


def _own_gap(base: Losses) -> float | None:
    """The largest relative difference among repeats of one seed. None if there is one repeat."""
    first, *others = base.values() if base else ([],)
    return max((relative_difference(a, b) for other in others for a, b in zip(first, other, strict=False)), default=None)


def same_losses(here: Here, claim: schema.SameLosses) -> Judgement:
    training = here.training_of(claim.base)
    base = _losses(here, training, claim.base)
    names = [row.id for each in here.plan.faithful for row in each.rows if row.spec.workers]
    gaps = [gap for name in names for gap in _gaps(base, _losses(here, training, name))]
    if not gaps:
        return CANNOT_TELL, ["The runs were not all made."]
    said = f"{count(len(gaps), 'training loss', 'training losses')} of epochs with workers, compared with serial's: "
    if not any(gaps):
        if missing := [name for name in names if not here.runs(training, name)]:
            return CANNOT_TELL, [f"{said}all the same number. There is no run of {', '.join(missing)}."]
        return "reproduced", [f"{said}all the same number."]
    own = _own_gap(base)
    evidence = [f"{said}the largest relative difference is {max(gaps):.1e}."]
    if own == 0.0:
        return "not reproduced", [*evidence, "Repeats of serial have all the same losses."]
    known = "There is one repeat of serial" if own is None else f"Repeats of serial differ by up to {own:.1e} among themselves"
    return CANNOT_TELL, [*evidence, f"{known}: this device may not repeat itself."]


def other_losses(here: Here, claim: schema.OtherLosses) -> Judgement:
    run = here.paper.runs[claim.run]
    faithful = claim.run in {row.id for each in here.plan.faithful for row in each.rows}
    training, parallel, alone = (
        (here.training_of(claim.run), claim.run, claim.base) if faithful else (CORRECTED, *judging.pair(here, run.framework))
    )
    serial = _losses(here, training, alone)
    first = _gaps(_first_loss(here, training, alone), _first_loss(here, training, parallel))
    gaps = _gaps(serial, _losses(here, training, parallel))
    if not first or not gaps:
        return CANNOT_TELL, ["The runs were not all made."]
    if not faithful and (unsound := judging.unsound(here)):
        return CANNOT_TELL, [unsound]
    summary = here.summary(training, parallel)
    how = summary.implementation if summary else None
    evidence = [
        f"{count(len(gaps), 'training loss', 'training losses')} of epochs ({how or 'two replicas'}), compared with "
        f"serial's: relative differences of {min(gaps):.1e} to {max(gaps):.1e}; of the first step, from equal weights: "
        f"{min(first):.1e} to {max(first):.1e}.",
        _of_batch_norm(here, training, parallel),
        *([] if faithful else [claim.remark_on_cores]),
    ]
    noise = FLOAT32_TOLERANCE
    if rounding := _rounding(here):
        noise = max(noise, judging.SURELY * rounding)
        evidence.append(
            f"Serial runs of the two frameworks are the same training except for rounding. They differ by up to {rounding:.1e} "
            f"in their first step: more than {noise:.0e} counts as another curve."
        )
    if faithful and (own := _own_gap(_first_loss(here, training, alone))):
        evidence.append(f"Repeats of serial differ among themselves by up to {own:.1e}.")
        noise = max(noise, own)
    # Only the first step is judged. Later, rounding differences have grown and hide everything else.
    changed = [gap > noise for gap in first]
    if all(changed):
        return "reproduced", evidence
    return (CANNOT_TELL if any(changed) else "not reproduced"), evidence


def _of_batch_norm(here: Here, training: str, row: str) -> str:
    specs = {(each.name, known.id): known.spec for each in here.plan.trainings for known in each.rows}
    if specs[training, row].batch_norm_statistics == "synchronised":
        return "BatchNorm is synchronised, as it was asked for here, and not in DataParallel: it is serial's mathematics."
    return (
        "Each replica normalises by the statistics of its own part of the batch, as DataParallel does: it is another function. "
        "With `--set batch_norm_statistics=synchronised` the modes that offer it are serial's mathematics."
    )


def _rounding(here: Here) -> float | None:
    """The largest relative difference of the first step's loss between the serial runs of the frameworks: the same training."""
    first, *others = (_first_loss(here, CORRECTED, judging.pair(here, framework)[1]) for framework in launch.FRAMEWORKS)
    return max((gap for other in others for gap in _gaps(first, other)), default=None)
