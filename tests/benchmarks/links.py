"""Commands on the first of two hosts that a slow wire joins, each host with half of the cores.

    python -m tests.benchmarks.links 100 1 plan --modes multi_process --score --out DIR [-- plan ...]

`--hosts` is added to each command. The hosts are network namespaces of this machine, which need root. The wire is
`tests/relay.py`: a process that takes time from the ranks, most on fast links.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys

import pytest

from compare.cli.interrupt import Interrupted, interruptible
from tests.namespaces import Link, joined_hosts


def main() -> int:
    """Run the commands. Returns the first exit code that is not 0, or 2 where no such hosts can be made."""
    try:
        with interruptible():
            return _run()
    except Interrupted as interruption:
        return interruption.exit_code  # the command has said so


def _run() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("megabits", type=float, help="a second, of what each host sends")
    parser.add_argument("milliseconds", type=float, help="until a packet arrives")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of convtwins; several are divided by --")
    read = parser.parse_args()
    if not (read.megabits > 0 <= read.milliseconds and read.command):
        parser.error("a link needs a rate above 0, a delay of 0 or more, and a command.")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        parser.error(f"two hosts need two cores. Received: {len(cores)}.")
    first, second = (",".join(map(str, own)) for own in (cores[: len(cores) // 2], cores[len(cores) // 2 :]))
    commands = [list(group) for between, group in itertools.groupby(read.command, lambda word: word == "--") if not between]
    environment = {**os.environ, "CONVTWINS_RSH": f"taskset -c {second} ip netns exec {{host}}"}
    try:
        with joined_hosts(2, Link(read.megabits, read.milliseconds)) as hosts:
            over = ["--hosts", ",".join(host.address for host in hosts)]
            for command in commands:
                run = hosts[0].command("taskset", "-c", first, sys.executable, "-m", "convtwins", *command, *over)
                with subprocess.Popen(run, env=environment) as process:
                    try:
                        code = process.wait()
                    except Interrupted:
                        process.terminate()  # it ends what it has started
                        raise
                if code:
                    return code
    except pytest.skip.Exception as reason:
        parser.error(f"no hosts: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
