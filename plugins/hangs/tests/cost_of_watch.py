"""What `watch` costs: CPU time of a look, and what it does to the job that is watched.

`python -m plugins.hangs.tests.cost_of_watch` runs a job of two ranks that does a fixed amount of work, watched and not watched,
in turn. What counts is the CPU time of the job: other work on the machine hardly changes it.

Exit code 1: the pairs do not exclude that the job takes MOST more CPU time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from compare.running.interleaving import turn
from compare.statistics.statistics import paired_ratio
from convtwins_hangs.watching.watcher import Watcher

MOST = 0.03
JOB = """
import hashlib, os, sys

def forward(text):
    return hashlib.pbkdf2_hmac("sha256", text, b"", 2000)

def backward(digest):
    return sum(value * value for value in digest * 300)

for number in range(int(sys.argv[1])):
    backward(forward(str(number).encode()))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--interval", type=float, default=1.0)
    arguments = parser.parse_args()
    pairs: list[dict[bool, float]] = []
    looks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(JOB)
        for number in range(arguments.pairs):
            pairs.append({watched: ran(path, arguments, looks if watched else None) for watched in turn([True, False], number)})
            print(
                {("watched" if watched else "alone"): round(seconds, 3) for watched, seconds in pairs[-1].items()}, flush=True
            )
    ratio = paired_ratio([(each[True], each[False]) for each in pairs], one_look=True)
    print(
        f"CPU microseconds of a look at two ranks, with stacks: {1e6 * statistics.median(looks):.0f} (median of {len(looks)})"
    )
    print(f"CPU time of the job, watched against alone: {ratio}")
    return int(ratio is None or ratio.high is None or ratio.high > 1 + MOST)


def ran(path: Path, arguments: argparse.Namespace, looks: list[float] | None) -> float:
    """CPU seconds of both ranks.

    Args:
        looks: gets the CPU seconds of each look. None: nobody looks.
    """
    ranks = [
        subprocess.Popen([sys.executable, path, str(arguments.steps)], env=os.environ | {"RANK": str(rank)})
        for rank in range(2)
    ]
    watcher = Watcher([each.pid for each in ranks], 10.0) if looks is not None else None
    used, left = 0.0, {each.pid for each in ranks}
    while left:
        if watcher is not None and looks is not None:
            before = watcher.cost_seconds
            watcher.look()
            watcher.verdict()
            looks.append(watcher.cost_seconds - before)
        time.sleep(arguments.interval)
        for pid in list(left):
            ended, _, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                left.remove(pid)
                used += usage.ru_utime + usage.ru_stime
    if watcher is not None:
        watcher.close()
    for each in ranks:
        each.returncode = 0  # it was waited for above
    return used


if __name__ == "__main__":
    sys.exit(main())
