"""One comparison of a matrix, in the process that a job starts on its machine: see `compare.tools.cluster.jobs`."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from common.artifacts import records
from common.errors import UserError
from compare.cli import exits
from compare.cli.errors import FolderError
from compare.cli.interrupt import Interrupted, interruptible
from compare.comparison import comparison_plan, run
from compare.results import cells
from compare.tools.cluster import jobs
from compare.tools.cluster.jobs import JobStatus


def main(folder: Path, name: str, code_hash: str, job: str) -> None:
    """Run the comparison, and write the status of its job."""
    status, path = JobStatus(job=job, node=os.environ.get("SLURMD_NODENAME", platform.node())), jobs.status_file(folder, name)
    records.write(path, status)
    failure: str | None = None
    try:
        with interruptible(until_exit=True):
            exit_code = _run(folder, name, code_hash)
    except Interrupted as interruption:
        exit_code, failure = interruption.exit_code, "its job was cancelled, or its time was over."
    except (UserError, OSError) as error:
        exit_code, failure = exits.USAGE, str(error)
    records.write(path, status.model_copy(update={"code": exit_code, "failure": failure}))


def _run(folder: Path, name: str, code_hash: str) -> int:
    plan = cells.read(folder)
    comparison_plan.check_contestants(plan.settings.contestants, folder)
    if (local_hash := jobs.matrix_code_hash(plan)) != code_hash:
        raise FolderError(
            f"The code on {platform.node()} is another than where the job was submitted. Received: {local_hash[:12]}, needed: "
            f"{code_hash[:12]}. Install the same version there."
        )
    cell = next(cell for cell in plan.cells if cell.name == name)
    request = comparison_plan.request_for_rows(cell.rows, plan, folder / name)
    return run.run_nested(request, folder / name)[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
