"""How far the losses of two frameworks grow apart over a run, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compare.core.differences import FLOAT32_TOLERANCE, relative
from compare.execution.store import Trajectories

CERTAIN = 1000.0
CERTAIN_STEPS, LARGE = 3, 0.1
"""Losses that differ by so many times the limit are no rounding in the first steps. Later a ReLU that rounding turns in one run
and in no copy has given 170 times the limit. So there the difference must also be this large."""
MARGIN = 2.0
"""Times the copies' distance. The largest distance of a few copies is smaller than that of many."""

UNITS = 2.0**-22
"""Two units in the last place of a float32 loss. Kernels that add in another order differ by so much, whatever copies do."""

Losses = npt.NDArray[np.floating]


class Growth(NamedTuple):
    """The losses of two runs of the same training, step by step."""

    differences: Losses
    """[steps], relative."""
    copies: Losses
    """[up to steps]: see `distances`. Empty: there are no copies."""
    number: int = 0
    """Of copies in each framework."""

    @property
    def limits(self) -> Losses:
        """[up to steps]: how far rounding may carry each step: MARGIN times `copies`, or FLOAT32_TOLERANCE if that is more."""
        return np.maximum(MARGIN * self.copies, FLOAT32_TOLERANCE)

    @property
    def judged(self) -> int:
        """Steps that have a limit."""
        return min(len(self.differences), len(self.copies))

    @property
    def beyond(self) -> int | None:
        """The first step, from 1, that rounding does not explain."""
        over = ~(self.differences[: self.judged] <= self.limits[: self.judged])
        return int(np.argmax(over)) + 1 if over.any() else None

    @property
    def is_other_training(self) -> bool:
        """Whether a step differs by more than any rounding."""
        judged = self.differences[: self.judged]
        beyond = judged > CERTAIN * self.limits[: self.judged]
        beyond[CERTAIN_STEPS:] &= judged[CERTAIN_STEPS:] > LARGE
        return bool(beyond.any()) or not np.isfinite(self.differences).all()

    def at(self, step: int) -> str:
        return f"{self.differences[step - 1]:.1e} at step {step}"

    @property
    def shown(self) -> str:
        """The difference at a few steps, the first and the last judged one among them, and the largest of all later ones."""
        steps = self.judged or len(self.differences)
        found = ", ".join(map(self.at, [at for at in (1, 2, 5, 10, 20, 50, 100) if at < steps] + [steps]))
        most = int(np.argmax(self.differences[:steps])) + 1
        found += f", at most {self.at(most)}" if f"at step {most}" not in found else ""
        later = self.differences[steps:]
        return f"{found}, later by up to {later.max():.1e}" if later.size else found

    @property
    def explained(self) -> str:
        """What explains the differences, as a sentence."""
        if not self.judged:
            return "No copies of the run were made: nothing says whether this is rounding."
        if not (finite := np.isfinite(self.differences)).all():
            return f"NOT ROUNDING: a loss of step {int(np.argmin(finite)) + 1} is no number."
        copies = "Copies are the serial run with weights that start one unit in the last place apart, "
        copies += f"{self.number} in each framework."
        if (step := self.beyond) is not None:
            more = f"from step {step} on the losses differ by more than copies do ({self.at(step)}, limit "
            more += f"{self.limits[step - 1]:.1e})."
            if self.is_other_training:
                return f"NOT ROUNDING: {more}"
            return (
                f"Not shown to be rounding: {more} {copies} They show how far rounding carries a run. Three reasons are "
                f"left: chance, for rounding alone passes so few copies in up to one comparison of {2 * self.number + 1}; sums "
                "that round by more than one unit, as BatchNorm's over a batch may; or the frameworks compute something else."
            )
        last = self.limits[self.judged - 1]
        apart = self.copies[: self.judged]
        unlike = self.differences[: self.judged] > np.maximum(MARGIN * apart, UNITS)
        step = int(np.argmax(unlike)) + 1 if unlike.any() else None
        if last > FLOAT32_TOLERANCE:
            limit = f"(limit {last:.1e}, twice their distance)"
            said = f"Rounding explains this. Copies of the run differ as much {limit}."
            if step is not None:
                said = f"Copies of the run differ as much later {limit}. But {self.at(step)} is more than twice the "
                said += f"{apart[step - 1]:.1e} of copies there. Less than {FLOAT32_TOLERANCE:.0e} is too little to judge."
        elif step is not None:
            said = f"Less than {FLOAT32_TOLERANCE:.0e}, but {self.at(step)} is more than twice {apart[step - 1]:.1e}, the "
            said += "distance of copies. It is within the tolerance of float32 losses, but copies alone do not explain it."
        else:
            said = (
                f"Rounding explains this. It is less than {FLOAT32_TOLERANCE:.0e}, and between copies it does not grow beyond "
            )
            said += "that."
        said += f" {copies}"
        if self.judged < len(self.differences):
            said += f" Copies were followed for {self.judged} steps. Later losses are not judged."
        return said


def between(ours: Sequence[float] | Losses, theirs: Sequence[float] | Losses, copies: Trajectories | None) -> Growth:
    """The growth between two runs, each a list of the losses of its first steps."""
    steps = min(len(ours), len(theirs))
    found = relative(np.asarray(ours[:steps], np.float64), np.asarray(theirs[:steps], np.float64))
    if copies is None:
        return Growth(found, np.zeros(0))
    return Growth(found, distances(copies), min(len(losses) for losses in copies.losses.values()) - 1)


def distances(copies: Trajectories) -> Losses:
    """[steps]: the largest distance so far between any two of a framework's run and its copies."""
    found = [
        relative(losses[one], losses[other])
        for losses in (np.asarray(each, np.float64) for each in copies.losses.values())
        for one in range(len(losses))
        for other in range(one)
    ]
    return np.maximum.accumulate(np.max([np.where(np.isfinite(each), each, 0.0) for each in found], axis=0))
