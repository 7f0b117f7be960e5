"""Comparisons on other machines, which a tool runs. Without it, everything runs here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from common.spec import SpecError
from compare.cli import tools
from compare.comparison.comparison_plan import ComparisonRequest
from compare.results.cells import MatrixPlan


class OtherMachines(Protocol):
    """The functions of the module that a tool names in `OTHER_MACHINES` of its package."""

    def check_backend(self, on: str) -> None:
        """Check the value of `--on`."""
        ...

    def check_rows(self, requests: Sequence[ComparisonRequest]) -> None:
        """Check that other machines can run the requested comparisons."""
        ...

    def check_can_submit(self, plan: MatrixPlan) -> None:
        """Check that jobs can be submitted, before a folder is made."""
        ...

    def run_cells(self, plan: MatrixPlan, folder: Path, on_received: Callable[[Path], object]) -> None:
        """Run the missing comparisons as jobs, and record which failed.

        Args:
            on_received: called with the folder of each comparison that has come back and was checked.
        """
        ...

    def rehearse(self, plan: MatrixPlan, folder: Path, *, as_json: bool) -> int:
        """Print the jobs that would be submitted."""
        ...


def other_machines() -> OtherMachines:
    """Return the tool that runs comparisons on other machines."""
    if (module := tools.provider("OTHER_MACHINES")) is None:
        raise SpecError("--on needs the tool cluster, whose folder is not here. Leave --on out, or install all of Convtwins.")
    return cast(OtherMachines, module)
