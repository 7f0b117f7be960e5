"""Commands on the first of two hosts that a slow wire joins, each host with half of the cores.

    python -m tests.benchmarks.links 100 1 plan --modes multi_process --score --out DIR [-- plan ...]

The numbers are megabits a second and milliseconds until a packet arrives. `--hosts` is added to each command. The hosts are
network namespaces of this machine (root needed); the wire is `tests/relay.py`.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

from tests.namespaces import Link, joined_hosts


def main() -> int:
    """Run the commands. Returns the first exit code that is not 0."""
    link, words = Link(float(sys.argv[1]), float(sys.argv[2])), sys.argv[3:]
    commands = [list(group) for between, group in itertools.groupby(words, lambda word: word == "--") if not between]
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    first, second = (",".join(map(str, own)) for own in (cores[:half], cores[half:]))
    environment = {**os.environ, "CONVTWINS_RSH": f"taskset -c {second} ip netns exec {{host}}"}
    with joined_hosts(2, link) as hosts:
        over = ["--hosts", ",".join(host.address for host in hosts)]
        for command in commands:
            run = hosts[0].command("taskset", "-c", first, sys.executable, "-m", "convtwins", *command, *over)
            if code := subprocess.run(run, check=False, env=environment).returncode:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
