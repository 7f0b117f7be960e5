"""Claims on loss curves, compared number by number."""

from __future__ import annotations

from typing import Literal

from compare.cli.differences import FLOAT32_TOLERANCE, relative_difference
from compare.cli.wording import count
from compare.running import launch
from compare.tools.papers.judging import CANNOT_TELL, Judgement
from compare.tools.papers.local_results import LocalResults
from compare.tools.papers.plan import CORRECTED
from compare.tools.papers.schema import PublishedClaim

_SURELY = 10.0
"""Smallest ratio of a difference that counts to that of two runs that differ by rounding alone."""

Losses = dict[int, list[float]]
"""Losses by repeat."""


def _losses(results: LocalResults, training: str, row: str) -> Losses:
    """Return the training loss of each epoch, by repeat."""
    return {
        repeat: [epoch.train.loss for epoch in run.epochs if epoch.train] for repeat, run in results.runs(training, row).items()
    }


def _first_loss(results: LocalResults, training: str, row: str) -> Losses:
    """Return the loss of the first step, one number by repeat."""
    runs = results.runs(training, row).items()
    return {repeat: [run.first_step_loss] for repeat, run in runs if run.first_step_loss is not None}


def _gaps(base: Losses, other: Losses) -> list[float]:
    """Return the relative differences of the losses of the repeats that both have."""
    return [
        relative_difference(a, b)
        for repeat, losses in other.items()
        if repeat in base
        for a, b in zip(base[repeat], losses, strict=False)
    ]


def _largest_gap_of_repeats(base: Losses) -> float | None:
    """Return the largest relative difference among repeats of one seed. None if there is one repeat."""
    first, *others = base.values() if base else ([],)
    return max((relative_difference(a, b) for other in others for a, b in zip(first, other, strict=False)), default=None)


class SameLosses(PublishedClaim):
    """Claim: runs with loader workers have the losses of another run to the last digit."""

    kind: Literal["same_losses"]
    base: str

    def judge(self, results: LocalResults) -> Judgement:
        training = results.training_of(self.base)
        base = _losses(results, training, self.base)
        names = [row.id for row in results.plan.published_rows if row.spec.workers]
        gaps = [gap for name in names for gap in _gaps(base, _losses(results, training, name))]
        if not gaps:
            return CANNOT_TELL, ["The runs were not all made."]
        prefix = f"{count(len(gaps), 'training loss', 'training losses')} of epochs with workers, compared with serial's: "
        if not any(gaps):
            if missing := [name for name in names if not results.runs(training, name)]:
                return CANNOT_TELL, [f"{prefix}all the same number. There is no run of {', '.join(missing)}."]
            return "reproduced", [f"{prefix}all the same number."]
        repeat_gap = _largest_gap_of_repeats(base)
        evidence = [f"{prefix}the largest relative difference is {max(gaps):.1e}."]
        if repeat_gap == 0.0:
            return "not reproduced", [*evidence, "Repeats of serial have all the same losses."]
        repeats_text = (
            "There is one repeat of serial"
            if repeat_gap is None
            else f"Repeats of serial differ by up to {repeat_gap:.1e} among themselves"
        )
        return CANNOT_TELL, [*evidence, f"{repeats_text}: this device may not repeat itself."]


class OtherLosses(PublishedClaim):
    """Claim: a run has another loss curve than a serial one."""

    kind: Literal["other_losses"]
    run: str
    base: str
    remark_on_cores: str
    """Further evidence if the run is not made here and replicas on CPU cores stand for it."""

    def judge(self, results: LocalResults) -> Judgement:
        faithful = self.run in {row.id for row in results.plan.published_rows}
        training, parallel, alone = (
            (results.training_of(self.run), self.run, self.base)
            if faithful
            else (CORRECTED, *results.corrected_pair(results.paper.runs[self.run].framework))
        )
        serial = _losses(results, training, alone)
        first = _gaps(_first_loss(results, training, alone), _first_loss(results, training, parallel))
        gaps = _gaps(serial, _losses(results, training, parallel))
        if not first or not gaps:
            return CANNOT_TELL, ["The runs were not all made."]
        if not faithful and (unsound := results.unsound_reason):
            return CANNOT_TELL, [unsound]
        summary = results.summary(training, parallel)
        implementation = summary.implementation if summary else None
        evidence = [
            f"{count(len(gaps), 'training loss', 'training losses')} of epochs ({implementation or 'two replicas'}), compared "
            f"with serial's: relative differences of {min(gaps):.1e} to {max(gaps):.1e}; of the first step, from equal "
            f"weights: {min(first):.1e} to {max(first):.1e}.",
            _batch_norm_sentence(results, training, parallel),
            *([] if faithful else [self.remark_on_cores]),
        ]
        noise = FLOAT32_TOLERANCE
        if rounding := _rounding(results):
            noise = max(noise, _SURELY * rounding)
            evidence.append(
                f"Serial runs of the two frameworks are the same training except for rounding. They differ by up to "
                f"{rounding:.1e} in their first step: more than {noise:.0e} counts as another curve."
            )
        if faithful and (repeat_gap := _largest_gap_of_repeats(_first_loss(results, training, alone))):
            evidence.append(f"Repeats of serial differ among themselves by up to {repeat_gap:.1e}.")
            noise = max(noise, repeat_gap)
        # Only the first step is judged. Later, rounding differences have grown and hide everything else.
        changed = [gap > noise for gap in first]
        if all(changed):
            return "reproduced", evidence
        return (CANNOT_TELL if any(changed) else "not reproduced"), evidence


def _batch_norm_sentence(results: LocalResults, training: str, row: str) -> str:
    rows = results.plan.corrected.rows if training == CORRECTED else results.plan.published_rows
    if next(known.spec for known in rows if known.id == row).batch_norm_statistics == "synchronised":
        return "BatchNorm is synchronised, as it was asked for here, and not in DataParallel: it is serial's mathematics."
    return (
        "Each replica normalises by the statistics of its own part of the batch, as DataParallel does: it is another function. "
        "With `--set batch_norm_statistics=synchronised` the modes that offer it are serial's mathematics."
    )


def _rounding(results: LocalResults) -> float | None:
    """Return the largest relative difference of the first step's loss between the frameworks' serial runs."""
    first, *others = (_first_loss(results, CORRECTED, results.corrected_pair(framework)[1]) for framework in launch.FRAMEWORKS)
    return max((gap for other in others for gap in _gaps(first, other)), default=None)
