"""The arguments of `python -m <twin>`, which both twins share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from common import spec
from common.training import inference

_SPEC_COMMANDS = (
    ("models", "the model of a spec as the framework has built it (JSON)"),
    ("run", "train: DIR/events.jsonl grows, DIR/result.json is written at the end"),
    ("trace", "record the arrays of a few steps for the parity proof (safetensors)"),
    ("layers", "time each layer of the model by itself (JSON)"),
    ("exchanges", "time what ranks send each other, and passes of the model beside each other (JSON)"),
)


def parse(framework: str, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of `python -m <twin>`. Wrong ones end the process with exit code 2."""
    parser = argparse.ArgumentParser(prog=f"python -m {framework}_impl", description=f"The {framework} twin.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("describe", help="devices, modes and switches of this framework on this machine, as JSON")
    for command, help_text in _SPEC_COMMANDS:
        subparser = commands.add_parser(command, help=help_text)
        subparser.add_argument("spec", type=Path, metavar="SPEC.json")
        subparser.add_argument("--out", type=Path, required=True, metavar="DIR" if command == "run" else "FILE")
        if command == "run":
            subparser.add_argument("--repeat", type=int, default=0, help="which repeat this is, for the result")
            subparser.add_argument("--resume", type=Path, metavar="DIR", help="go on from the checkpoint of an earlier attempt")
        if command == "layers":
            subparser.add_argument("--calls", type=int, required=True, help="timed, of each")
        if command == "trace":
            _add_trace_options(subparser)
    _add_trials(commands)
    commands.add_parser("match", help="open and measure models of users, as lines of JSON on stdin ask")
    subparser = commands.add_parser("preprocess", help="scan the image files of a split for their sums (JSON)")
    subparser.add_argument("job", type=Path, metavar="JOB.npz")
    subparser.add_argument("--workers", type=int, required=True)
    subparser.add_argument("--out", type=Path, required=True, metavar="FILE")
    inference.add_commands(commands)
    if "" in argv:  # an empty path would be the current folder
        parser.error("A value is empty. Received: ''. Give it a value, or leave its option out.")
    first, *others = _split_recordings(argv) if argv[:1] == ["trace"] else [list(argv)]
    arguments = parser.parse_args(first)
    arguments.then = [parser.parse_args(["trace", *other]) for other in others]
    return arguments


def _split_recordings(argv: Sequence[str]) -> list[list[str]]:
    """Split the arguments at each `--then`, which begins another recording."""
    recordings: list[list[str]] = [[]]
    for argument in argv:
        if argument == "--then":
            recordings.append([])
        else:
            recordings[-1].append(argument)
    return recordings


def _add_trace_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "`--then SPEC.json --out FILE ...` adds another recording with options of its own. The same process makes it, with the "
        "same threads, devices and switches."
    )
    parser.add_argument(
        "--drawn",
        type=lambda text: [int(step) for step in text.split(",")],
        metavar="STEP,...",
        help="record these single steps, from 0, instead of a run",
    )
    parser.add_argument(
        "--teacher", type=Path, metavar="FILE", help="load the state before each drawn step from this recording; wait for it"
    )
    parser.add_argument("--reverse-batches", action="store_true", help="sum in another order: the yardstick")
    parser.add_argument("--batches", action="store_true", help="also the batches of all steps, and the weights after them")


def _add_trials(commands: Any) -> None:
    parser = commands.add_parser("serve-trials", help="train what lines of JSON on stdin ask for, and report it on stdout")
    parser.add_argument("--cores", type=int, required=True, help="of each trial")
    parser.add_argument("--trials", type=int, default=1, help="side by side, each in a thread of its own")
    parser.add_argument("--place", type=int, default=0, help="of this process among several that share the budget, from 0")
    parser.add_argument("--budget", type=int, help="cores of all of them; default: those of this one")
    parser.add_argument("--device", choices=get_args(spec.Device), default="auto", help="of each trial, as in its spec")
