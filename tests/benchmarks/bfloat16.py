"""Convolutions in bfloat16 on the CPU by version of PyTorch: `python -m tests.benchmarks.bfloat16 PYTHON PYTHON ...`.

Each PYTHON is the interpreter of an environment with another version of PyTorch. Each round starts a fresh process of each, in
turn: A B, then B A. A process times forward and backward of each convolution in bfloat16 and in float32, one after the other.
pytorch #183815 reports that 2.13 is 4 to 16 times as slow as nightlies before it. It names the first two kinds of
convolutions; the others are those of this suite's models.

The first table has milliseconds, and bfloat16 over float32 in the same process. The second has each version over the first one,
in bfloat16 and in float32. Ratios are geometric means over rounds, with 95 % intervals. Run it on a machine without other work:

    python -m tests.benchmarks.bfloat16 .environments/torch-213/bin/python .venv/bin/python .environments/torch-215/bin/python

A whole run takes some 20 seconds for each process where bfloat16 is slow.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from compare.running.interleaving import turn
from compare.statistics.statistics import VERDICT_PAIRS, paired_ratio
from compare.statistics.verdict_words import interval_words

CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "dilated 7x7, channels first": {"input": [8, 16, 112, 112], "weight": [32, 16, 7, 7], "dilation": 2},
    "grouped 3x3, channels last": {"input": [8, 64, 56, 56], "weight": [64, 8, 3, 3], "groups": 8, "padding": 1, "last": True},
    "3x3 of 64 channels": {"input": [32, 64, 32, 32], "weight": [64, 64, 3, 3], "padding": 1},
    "3x3 of 64 channels, channels last": {"input": [32, 64, 32, 32], "weight": [64, 64, 3, 3], "padding": 1, "last": True},
    "3x3 with stride 2": {"input": [32, 64, 32, 32], "weight": [128, 64, 3, 3], "padding": 1, "stride": 2},
    "1x1": {"input": [32, 64, 32, 32], "weight": [128, 64, 1, 1]},
    "3x3 of each channel": {"input": [32, 64, 32, 32], "weight": [64, 1, 3, 3], "groups": 64, "padding": 1},
}
"""Shapes [N, C, H, W] and [out, in per group, H, W], and arguments of `conv2d`. `last`: in the memory format channels_last."""
_PROGRAM = """
import json, statistics, sys, time
import torch
from torch.nn import functional

request = json.loads(sys.argv[1])
torch.set_num_threads(request["cores"])
torch.manual_seed(0)

def seconds(convolution, dtype):
    layout = torch.channels_last if convolution.get("last") else torch.contiguous_format
    tensors = [torch.randn(convolution[name]).to(dtype).to(memory_format=layout) for name in ("input", "weight")]
    image, weight = (tensor.requires_grad_() for tensor in tensors)
    settings = {name: convolution[name] for name in ("stride", "padding", "dilation", "groups") if name in convolution}

    def step():
        begin = time.perf_counter()
        functional.conv2d(image, weight, **settings).sum().backward()
        return time.perf_counter() - begin

    step()
    calls = max(3, min(int(request["seconds"] / max(step(), 1e-6)), 200))
    return statistics.median(step() for _ in range(calls))

print(json.dumps({
    "version": torch.__version__,
    "capability": torch.backends.cpu.get_cpu_capability(),
    "seconds": {
        name: {kind: seconds(convolution, getattr(torch, kind)) for kind in ("bfloat16", "float32")}
        for name, convolution in request["convolutions"].items()
    },
}))
"""
KINDS = ("bfloat16", "float32")


def measure(python: str, cores: int, seconds: float) -> dict[str, Any]:
    """Time all convolutions in a fresh process of an interpreter.

    Args:
        cores: threads of the process.
        seconds: about how long each is timed.
    """
    request = {"convolutions": CONVOLUTIONS, "cores": cores, "seconds": seconds}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [python, "-c", _PROGRAM, json.dumps(request)]
    answer = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode:
        sys.exit(f"{python} cannot time convolutions (exit code {answer.returncode}).\n{answer.stderr.strip()[-2000:]}")
    return json.loads(answer.stdout.splitlines()[-1])


def ratio(over: Sequence[float], under: Sequence[float]) -> str:
    """The ratio of paired times in words."""
    value = paired_ratio(list(zip(over, under, strict=True)), one_look=True)
    return "-" if value is None else interval_words(value)


def tables(runs: dict[str, list[dict[str, Any]]]) -> list[Table]:
    """Both tables of this page, from the runs of each interpreter, in the order of rounds."""
    versions = {python: f"torch {answers[0]['version']}" for python, answers in runs.items()}
    first, *others = runs

    def times(python: str, name: str, kind: str) -> list[float]:
        return [answer["seconds"][name][kind] for answer in runs[python]]

    absolute = Table("convolution", *(f"{version}: ms, over float32" for version in versions.values()))
    relative = Table(
        "convolution", *(f"{versions[python]} over {versions[first]}, {kind}" for python in others for kind in KINDS)
    )
    for name in CONVOLUTIONS:
        cells = [
            f"{1e3 * sorted(both[0])[len(both[0]) // 2]:.2f}, {ratio(*both)}"
            for both in ([times(python, name, kind) for kind in KINDS] for python in runs)
        ]
        absolute.add_row(name, *cells)
        relative.add_row(
            name, *(ratio(times(python, name, kind), times(first, name, kind)) for python in others for kind in KINDS)
        )
    return [absolute, relative] if others else [absolute]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="interpreters, the oldest version first")
    parser.add_argument("--rounds", type=int, default=VERDICT_PAIRS + 1, help="fresh processes of each")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="threads of a process")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each convolution and type")
    options = parser.parse_args()
    if options.rounds < 1 or options.cores < 1 or options.seconds <= 0:
        parser.error("--rounds and --cores must be at least 1, and --seconds above 0.")
    runs: dict[str, list[dict[str, Any]]] = {python: [] for python in options.pythons}
    for number in range(options.rounds):
        for python in turn(list(runs), number):
            print(f"round {number + 1} of {options.rounds}: {python}", file=sys.stderr, flush=True)
            runs[python].append(measure(python, options.cores, options.seconds))
    console = Console(width=200)
    console.print(f"{options.cores} threads, instructions {next(iter(runs.values()))[0]['capability']}, n {options.rounds}")
    for table in tables(runs):
        console.print(table)


if __name__ == "__main__":
    main()
