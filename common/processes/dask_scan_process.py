"""`python -m common.processes.dask_scan_process JOB.npz`: the suite's own scan of a split, by Dask."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from common.data.preprocessing import dask_scan, job
from common.machine import machine
from common.training import timing


def main() -> int:
    """Run the job. Returns the exit code, 1 if the cluster cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m common.processes.dask_scan_process", description="Scan the files of a split by Dask."
    )
    parser.add_argument("job", type=Path, metavar="JOB.npz")
    parser.add_argument("--scheduler", required=True, help="threads, processes, or tcp://host:port")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.json")
    arguments = parser.parse_args()
    machine.keep_freed_memory()
    scanning = functools.partial(dask_scan.scanning, scheduler=arguments.scheduler)
    try:
        job.run(scanning, arguments.job, arguments.workers, arguments.out, timing.process_started())
    except dask_scan.SchedulerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
