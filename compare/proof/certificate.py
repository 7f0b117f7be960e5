"""What the rungs of the ladder prove: the verdict, and the sentence that says it."""

from __future__ import annotations

from typing import Literal

from common.frozen import Frozen

Verdict = Literal["proved", "not proved", "not claimed"]
LOSSES = "5 losses"
RISES = "the loss rises at every learning rate that was tried"
"""Begins the reason of losses that are shown for it."""
_ROUNDS = 1e-4
"""Constants that are rounded to float32 explain no larger difference."""


class Rung(Frozen):
    """One claim, and the largest difference that was found against it."""

    name: str
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
    """Why this tolerance."""
    status: Literal["passed", "failed", "shown"]
    """`shown`: reported, but not judged."""
    framework: str | None = None
    """Rung 6: its mode is compared with its own serial run. Rung 8: its steps are judged."""
    mode: str | None = None
    where: str | None = None
    """The parameter, file or step with the largest difference."""
    judged_steps: int | None = None
    """Of a rung over steps: how many have a tolerance."""
    first_tolerance: float | None = None
    """Of the first loss of a timed run."""
    of_terms: dict[str, float] = {}
    """Gradients that differ by more than the tolerance, and are judged on the scale of what each component adds up. By
    parameter: the largest difference, relative to the largest component."""


def _may_round(rung: Rung) -> bool:
    """Whether a constant that is rounded to float32 may explain what failed. In float32 it is rounded in both frameworks."""
    return rung.precision == "float64" and rung.max_relative_difference < _ROUNDS


class Setting(Frozen):
    """How much of the data a training sees in a step, and how far the step goes."""

    batch_size: int
    learning_rate: float
    images: int
    """In an epoch of training."""

    @property
    def words(self) -> str:
        return f"batch {self.batch_size}, learning rate {self.learning_rate:g}, {self.images:,} images"


class Proof(Frozen):
    """All rungs of one or more ladders."""

    rungs: list[Rung]
    seconds: float
    """How long the proof took when it was made."""
    made_at: str = ""
    """UTC, ISO 8601."""
    remembered: bool = False
    """Read back from an earlier proof with the same code, versions, machine and spec."""
    not_claimed: dict[str, str] = {}
    """Mode or framework: why it does not claim to be the proved mathematics as it is timed."""
    compared_with: dict[str, str] = {}
    """Mode: what it was proved to equal, if that is not the serial run that is timed beside it."""
    levels: list[str] = ["usual"]
    """Levels of switches that the float64 rungs were made with."""
    rounded: str = ""
    """Of a matched pair: `Opaque.rounded`."""
    proved: Setting | None = None
    """With which the float64 losses were made. None: an old proof."""
    timed: Setting | None = None
    """With which the runs that the proof is for train."""

    @property
    def verdict(self) -> Verdict:
        statuses = {rung.status for rung in self.rungs}
        if "failed" in statuses:
            return "not proved"
        return "proved" if "passed" in statuses and not self._is_one_update() else "not claimed"

    def _is_one_update(self, framework: str | None = None, mode: str | None = None) -> bool:
        """Whether losses are only shown, and no single steps stand for them. Then nothing after the first update is judged.

        Args:
            framework: None: any.
            mode: None: the serial runs of the frameworks against each other.
        """
        losses, steps = self._later(framework, mode)
        return any(rung.status == "shown" for rung in losses) and all(rung.status != "passed" for rung in steps)

    def _later(self, framework: str | None, mode: str | None) -> tuple[list[Rung], list[Rung]]:
        """The rungs that judge what follows the first update: losses, and gradients of single steps."""
        own = [rung for rung in self.rungs if rung.mode == mode and framework in (None, rung.framework)]
        twins = [rung for rung in self.rungs if rung.name == LOSSES]
        losses = twins if mode is None else [rung for rung in own if rung.name == f"6 {mode} against serial"]
        return losses, [rung for rung in own if rung.name.startswith("8 ") and ": gradients" in rung.name]

    def one_update(self, framework: str | None = None, mode: str | None = None) -> str:
        """Why nothing is claimed, though some rungs passed: one update alone was judged."""
        serial = self._with_own_steps(framework)
        of_serial = mode in (None, "serial") or self._is_one_update(serial)
        losses, steps = self._later(serial, None) if of_serial else self._later(framework, mode)
        why = f"{RISES}, so later losses are" if any(RISES in rung.reason for rung in losses) else "later losses are"
        if steps:
            return f"{why} only shown, and so are gradients of single steps: one update alone was judged"
        return (
            f"{why} only shown, and single steps were not compared: one update alone was judged (parity --single-steps judges "
            "more)"
        )

    @property
    def sentence(self) -> str:
        """The verdict with its numbers."""
        failed = [rung for rung in self.rungs if rung.status == "failed"]
        if failed:
            first = failed[0]
            # Without a framework, `where` is the range of the losses.
            parts = (first.framework, first.mode, first.where and f"at {first.where}") if first.framework else ()
            where = [part for part in parts if part]
            return (
                f"not proved: {len(failed)} of {len(self.rungs)} rungs failed, first {first.name} "
                f"({first.max_relative_difference:.1e}, tolerance {first.tolerance:.0e}{'; ' * bool(where)}{' '.join(where)})"
                + f". This may come from what `match` found: {self.rounded}"
                * bool(self.rounded and all(map(_may_round, failed)))
            )
        passed = sum(rung.status == "passed" for rung in self.rungs)
        if not passed:
            return "not claimed: nothing was compared"
        shown = sum(rung.status == "shown" and rung.name != LOSSES for rung in self.rungs)
        judged = f"{passed} rungs passed" + f", {shown} shown and not judged" * bool(shown)
        when = f", remembered from {self.made_at}" if self.remembered else ""
        free = [rung for rung in self.rungs if rung.name == LOSSES]
        losses = [rung for rung in free if rung.status == "passed"]
        if free and (not losses or self.verdict == "not claimed"):
            worst = max((rung for rung in free if rung not in losses), key=lambda rung: rung.max_relative_difference)
            few = worst.judged_steps is not None and worst.judged_steps < (worst.steps or 0)
            of = f"the first {worst.judged_steps} of " if few else ""
            grown = f"differ by up to {worst.max_relative_difference:.1e} in {of}{worst.steps} steps"
            if self.verdict == "not claimed":
                return f"not claimed: {judged}; {self.one_update()}; free-running losses {grown}{when}"
            return f"proved: {judged}; free-running losses {grown}, which is shown and proves nothing{when}"
        if not losses:
            return f"proved: each mode trains as serial does in the same framework; {judged}{when}"
        proving = [rung for rung in losses if rung.precision == "float64"] or losses
        worst = max(proving, key=lambda rung: rung.max_relative_difference)
        steps = (
            f"at each of {worst.judged_steps} steps ({worst.where})" if worst.precision == "float64" else "at the first step"
        )
        return (
            f"proved: in {worst.precision} the losses of the frameworks agree within {worst.max_relative_difference:.1e} "
            f"(relative) {steps}{self._setting}; {judged}{when}"
        )

    @property
    def _setting(self) -> str:
        """What the losses were proved with, and where that is not what is timed."""
        if self.proved is None or self.timed is None:
            return ""
        if self.proved.model_copy(update={"images": self.timed.images}) == self.timed:
            timed = f"the timed batch {self.proved.batch_size}, learning rate {self.proved.learning_rate:g}"
            own, all_images = self.proved.images, self.timed.images
            return f" with {timed}, {own:,} images" + f" of {all_images:,}" * (own < all_images)
        return f" with {self.proved.words} (timed: {self.timed.words})"

    def mode_verdict(self, framework: str, mode: str) -> str:
        """The verdict on one mode of one framework as it is timed."""
        own = [rung for rung in self.rungs if rung.mode == mode and rung.framework == framework]
        twins = [rung for rung in self.rungs if rung.mode is None]
        if {mode, framework} & self.not_claimed.keys() or not (twins if mode == "serial" else own):
            return "not claimed"
        # A mode equals its own serial run. It is the same training only if the serial runs of the frameworks are.
        if any(rung.status == "failed" for rung in (*twins, *own)):
            return "not proved"
        if self.is_one_update(framework, mode):
            return "not claimed"
        return "proved" if any(rung.status == "passed" for rung in own or twins) else "not claimed"

    def is_one_update(self, framework: str, mode: str) -> bool:
        """Whether nothing but the first update of a mode, or of the serial runs that it rests on, is judged."""
        return self._is_one_update(self._with_own_steps(framework)) or (
            mode != "serial" and self._is_one_update(framework, mode)
        )

    def _with_own_steps(self, framework: str | None) -> str | None:
        """The framework if its serial run has single steps of its own. Else None.

        In float64 the first framework's serial run is what all others are compared with. It has none.
        """
        own = {rung.framework for rung in self.rungs if rung.name.startswith("8 ") and rung.mode is None}
        return framework if framework in own else None
