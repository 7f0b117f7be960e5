"""One comparison of a matrix, in the process that a job starts on its machine: see `compare.cluster.jobs`."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from common.artifacts import records
from common.data.sources import DataRefused
from common.models.weights import WeightsError
from common.spec import SpecError
from compare.cluster import jobs
from compare.cluster.jobs import Answer
from compare.comparison import comparison_plan, run
from compare.core import exits
from compare.core.errors import FolderError, LaunchError
from compare.core.interrupt import Interrupted, interruptible
from compare.execution import cells


def main(folder: Path, name: str, code: str, job: str) -> None:
    """Run the comparison, and write its answer."""
    answer, path = Answer(job=job, node=os.environ.get("SLURMD_NODENAME", platform.node())), jobs.answer_file(folder, name)
    records.write(path, answer)
    failure: str | None = None
    try:
        with interruptible(to_the_end=True):
            ended = _run(folder, name, code)
    except Interrupted as interruption:
        ended, failure = interruption.exit_code, "its job was cancelled, or its time was over."
    except (SpecError, FolderError, WeightsError, DataRefused, LaunchError, OSError) as error:
        ended, failure = exits.USAGE, str(error)
    records.write(path, answer.model_copy(update={"code": ended, "failure": failure}))


def _run(folder: Path, name: str, code: str) -> int:
    plan = cells.read(folder)
    comparison_plan.enter(plan.contestants, folder)
    if (here := jobs.code_of(plan)) != code:
        raise FolderError(
            f"The code on {platform.node()} is another than where the job was submitted. Received: {here[:12]}, needed: "
            f"{code[:12]}. Install the same version there."
        )
    cell = next(cell for cell in plan.cells if cell.name == name)
    request = comparison_plan.of_rows(cell.rows, plan, folder / name)
    return run.within(request, folder / name)[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
