"""Verdict of a proof from the rungs of its ladder, and the sentence that says it."""

from __future__ import annotations

from typing import Literal

from common.frozen import Frozen
from common.spec import MODES
from compare.cli import wording

Verdict = Literal["proved", "not proved", "not claimed"]
LOSS_RISES = "the loss rises at every learning rate that was tried"
"""Start of the reason of losses that are only shown because they rise."""
_MAX_ROUNDING = 1e-4
"""Largest relative difference that constants rounded to float32 explain."""


class Rung(Frozen):
    """One claim, and the largest difference that was found against it."""

    name: str
    """Number, aspect, and what a mode or a single step is compared in, as tables show them."""
    number: int
    """Number of the rung on the ladder, 1 to 8."""
    aspect: str
    """Name of the compared values, such as `losses`, `gradients` or `weights after one step`."""
    model: str
    optimizer: str
    precision: str
    steps: int
    max_relative_difference: float
    """Infinite if names, shapes or ids differ, or if a value is not finite. In JSON, infinity is null."""
    step: int | None
    """The step of the largest difference, from 1. None: the rung has no steps."""
    tolerance: float
    """The largest difference that is allowed at that step."""
    reason: str
    """Reason of this tolerance."""
    status: Literal["passed", "failed", "shown"]
    """`shown`: reported, but not judged."""
    framework: str | None = None
    """Framework whose mode is compared with its own serial run (rung 6), or whose steps are judged (rung 8)."""
    mode: str | None = None
    where: str | None = None
    """The parameter, file or step with the largest difference."""
    judged_steps: int | None = None
    """Number of steps that have a tolerance. None: the rung has no steps."""
    first_tolerance: float | None = None
    """Tolerance of the loss at the first step of a timed run."""
    of_terms: dict[str, float] = {}
    """Gradients that differ by more than the tolerance, and are judged on the scale of what each component adds up: parameter
    to largest difference, relative to the largest component."""

    @property
    def is_twin_losses(self) -> bool:
        """Whether it compares the free-running losses of the frameworks."""
        return (self.number, self.aspect) == (5, "losses")


def _may_be_rounding(rung: Rung) -> bool:
    """Whether a constant that is rounded to float32 may explain why a rung failed. In float32 both frameworks round it."""
    return rung.precision == "float64" and rung.max_relative_difference < _MAX_ROUNDING


class TrainingSetting(Frozen):
    """Batch size, learning rate and number of images of a training."""

    batch_size: int
    learning_rate: float
    images: int
    """Images in an epoch of training."""

    @property
    def description(self) -> str:
        return f"batch {self.batch_size}, learning rate {self.learning_rate:g}, {self.images:,} images"


class Proof(Frozen):
    """All rungs of one or more ladders."""

    rungs: list[Rung]
    seconds: float
    """Seconds that the proof took when it was made."""
    made_at: str = ""
    """Time when the proof was made: UTC, ISO 8601."""
    remembered: bool = False
    """Whether the proof was read back from an earlier one with the same code, versions, machine and spec."""
    not_claimed: dict[str, str] = {}
    """Mode or framework: reason why it does not claim to be the proved mathematics as it is timed."""
    compared_with: dict[str, str] = {}
    """Mode: run that it was proved to equal, if that is not the serial run that is timed beside it."""
    levels: list[str] = ["usual"]
    """Levels of switches of the float64 rungs."""
    rounded: str = ""
    """`Opaque.rounded` of a matched pair. Empty: no matched pair."""
    proved: TrainingSetting | None = None
    """Setting of the float64 losses. None: an old proof."""
    timed: TrainingSetting | None = None
    """Setting of the runs that the proof is for."""

    @property
    def verdict(self) -> Verdict:
        statuses = {rung.status for rung in self.rungs}
        if "failed" in statuses:
            return "not proved"
        return "proved" if "passed" in statuses and not self._judges_one_update() else "not claimed"

    def _judges_one_update(self, framework: str | None = None, mode: str | None = None) -> bool:
        """Whether only the first update is judged: losses are only shown, and no single steps stand for them.

        Args:
            framework: framework of the rungs. None: any.
            mode: mode of the rungs. None: the serial runs of the frameworks against each other.
        """
        losses, steps = self._later_rungs(framework, mode)
        return any(rung.status == "shown" for rung in losses) and all(rung.status != "passed" for rung in steps)

    def _later_rungs(self, framework: str | None, mode: str | None) -> tuple[list[Rung], list[Rung]]:
        """Return the rungs about later updates than the first: (losses, gradients of single steps)."""
        mode_rungs = [rung for rung in self.rungs if rung.mode == mode and framework in (None, rung.framework)]
        twins = [rung for rung in self.rungs if rung.is_twin_losses]
        losses = twins if mode is None else [rung for rung in mode_rungs if (rung.number, rung.aspect) == (6, "losses")]
        return losses, [rung for rung in mode_rungs if (rung.number, rung.aspect) == (8, "gradients")]

    def why_one_update(self, framework: str | None = None, mode: str | None = None, distance: str = "") -> str:
        """Say why nothing is claimed, though some rungs passed: one update alone was judged.

        Args:
            distance: how far the later losses differ, in brackets.
        """
        framework_with_steps = self._framework_with_steps(framework)
        of_serial = mode is None or not MODES[mode].is_parallel or self._judges_one_update(framework_with_steps)
        losses, steps = self._later_rungs(framework_with_steps, None) if of_serial else self._later_rungs(framework, mode)
        rises = f"; {LOSS_RISES}" if any(LOSS_RISES in rung.reason for rung in losses) else ""
        more, others = ("", " and gradients of single steps") if steps else (" (parity --single-steps judges more)", "")
        return f"one update alone was judged{more}: later losses{distance}{others} prove nothing here{rises}"

    @property
    def sentence(self) -> str:
        """The verdict with its numbers."""
        return f"{self.verdict}: {self.reason}"

    @property
    def reason(self) -> str:
        """The numbers of the verdict."""
        failed = [rung for rung in self.rungs if rung.status == "failed"]
        if failed:
            first = failed[0]
            # Without a framework, `where` is the range of the losses.
            parts = (first.framework, first.mode, first.where and f"at {first.where}") if first.framework else ()
            where = [part for part in parts if part]
            return (
                f"{len(failed)} of {len(self.rungs)} checks failed, first: {first.name.removeprefix(f'{first.number} ')} "
                f"({first.max_relative_difference:.1e}, tolerance {first.tolerance:.0e}{'; ' * bool(where)}{' '.join(where)})"
                + f". This may come from what `match` found: {self.rounded}"
                * bool(self.rounded and all(map(_may_be_rounding, failed)))
            )
        passed = sum(rung.status == "passed" for rung in self.rungs)
        if not passed:
            return "nothing was compared"
        num_shown = sum(rung.status == "shown" and not rung.is_twin_losses for rung in self.rungs)
        judged_text = f"{wording.count(passed, 'check')} passed" + f", {num_shown} shown and not judged" * bool(num_shown)
        when = f", remembered from {self.made_at}" if self.remembered else ""
        free = [rung for rung in self.rungs if rung.is_twin_losses]
        losses = [rung for rung in free if rung.status == "passed"]
        if free and (not losses or self.verdict == "not claimed"):
            worst = max((rung for rung in free if rung not in losses), key=lambda rung: rung.max_relative_difference)
            few = worst.judged_steps is not None and worst.judged_steps < (worst.steps or 0)
            prefix = f"the first {worst.judged_steps} of " if few else ""
            distance = f" (up to {worst.max_relative_difference:.1e} apart in {prefix}{worst.steps} steps)"
            if self.verdict == "not claimed":
                return f"{judged_text}; {self.why_one_update(distance=distance)}{when}"
            return f"{judged_text}; later losses{distance} prove nothing here{when}"
        if not losses:
            return f"each mode trains as serial does in the same framework; {judged_text}{when}"
        proving = [rung for rung in losses if rung.precision == "float64"] or losses
        worst = max(proving, key=lambda rung: rung.max_relative_difference)
        steps = (
            f"at each of {worst.judged_steps} steps ({worst.where})" if worst.precision == "float64" else "at the first step"
        )
        return (
            f"in {worst.precision} the losses agree within {worst.max_relative_difference:.1e} "
            f"(relative) {steps}{self._setting_text}; {judged_text}{when}"
        )

    @property
    def _setting_text(self) -> str:
        """Setting of the proved losses as the end of a clause, with the timed setting if that differs."""
        if self.proved is None or self.timed is None:
            return ""
        if self.proved.model_copy(update={"images": self.timed.images}) == self.timed:
            timed = f"the timed batch {self.proved.batch_size}, learning rate {self.proved.learning_rate:g}"
            num_images, all_images = self.proved.images, self.timed.images
            return f" with {timed}, {num_images:,} images" + f" of {all_images:,}" * (num_images < all_images)
        return f" with {self.proved.description} (timed: {self.timed.description})"

    def mode_verdict(self, framework: str, mode: str) -> str:
        """Return the verdict on one mode of one framework as it is timed."""
        mode_rungs = [rung for rung in self.rungs if rung.mode == mode and rung.framework == framework]
        twins = [rung for rung in self.rungs if rung.mode is None]
        if {mode, framework} & self.not_claimed.keys() or not (mode_rungs if MODES[mode].is_parallel else twins):
            return "not claimed"
        # A mode equals its own serial run. It is the same training only if the serial runs of the frameworks are.
        if any(rung.status == "failed" for rung in (*twins, *mode_rungs)):
            return "not proved"
        if self.is_one_update(framework, mode):
            return "not claimed"
        return "proved" if any(rung.status == "passed" for rung in mode_rungs or twins) else "not claimed"

    def is_one_update(self, framework: str, mode: str) -> bool:
        """Whether only the first update of a mode, or of the serial runs that it rests on, is judged."""
        return self._judges_one_update(self._framework_with_steps(framework)) or (
            MODES[mode].is_parallel and self._judges_one_update(framework, mode)
        )

    def _framework_with_steps(self, framework: str | None) -> str | None:
        """Return the framework if its serial run has single steps of its own, else None.

        In float64 all others are compared with the serial run of the first framework, which therefore has none.
        """
        frameworks = {rung.framework for rung in self.rungs if rung.number == 8 and rung.mode is None}
        return framework if framework in frameworks else None
