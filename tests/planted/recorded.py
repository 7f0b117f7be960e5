"""MiniXception in ranks whose flight recorder is measured or rests in half of the epochs, as CONVTWINS_RECORDER says.

`measured`: rank 0 writes to the file CONVTWINS_RECORDED how many records a step of the second epoch makes, the CPU seconds
that the step takes this process, and the CPU microseconds that one record takes in it.
`alternating`: in the epochs of which `rests` is true, nothing is recorded, and nothing is described for a record.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.machine import flight, heartbeat
from common.machine.flight import RankRange
from common.models import architectures
from convtwins.models import Architecture

STEPS = 4
"""Of an epoch."""
FIRST, LAST = STEPS + 1, 2 * STEPS
"""Steps of the second epoch: what lies between their ends is measured."""
ROUNDS, CALLS = 30, 300
VALUES = (64, 128)


def architecture(num_classes: int, image_size: int) -> Architecture:
    how = os.environ.get("CONVTWINS_RECORDER")
    if how == "alternating" and "RANK" in os.environ:
        alternate()
    if how == "measured" and os.environ.get("RANK") == "0":
        measure(Path(os.environ["CONVTWINS_RECORDED"]))
    return architectures.resolve("mini_xception", num_classes, image_size)


def rests(epoch: int) -> bool:
    """Whether the recorder rests in this epoch, the first being 1: in one of each two, and not always in the later one."""
    return epoch % 4 in (2, 3)


def alternate() -> None:
    """Let the recorder rest as `rests` says, in every rank at the same steps."""
    resting, steps, stepped = False, 0, heartbeat.count_step

    def planted() -> None:
        nonlocal resting, steps
        steps += 1
        resting = rests(steps // STEPS + 1)
        stepped()

    def unless_resting(real: Callable[..., int]) -> Callable[..., int]:
        return lambda *arguments, **options: 0 if resting else real(*arguments, **options)

    heartbeat.count_step = planted
    for name, module in sys.modules.items():
        if name.endswith("_impl.collectives"):
            names = {"begin", "begin_message"} & set(module.__dict__)
            module.__dict__.update({each: unless_resting(module.__dict__[each]) for each in names})
    flight.Channel.begin, flight.end = unless_resting(flight.Channel.begin), unless_resting(flight.end)


def measure(out: Path) -> None:
    stepped, steps, before, start = heartbeat.count_step, 0, 0, 0.0

    def planted() -> None:
        nonlocal steps, before, start
        steps += 1
        if steps == FIRST:
            before, start = begun(), time.process_time()
        if steps == LAST:
            seconds, records, between = time.process_time() - start, begun() - before, LAST - FIRST
            found = {"records": records / between, "step_seconds": seconds / between, "microseconds": microseconds()}
            out.write_text(json.dumps(found), "utf-8")
        stepped()

    heartbeat.count_step = planted


def begun() -> int:
    """Records of this process so far."""
    return max((record.number for record in flight.read(bytes(flight._ring), bytes(flight._ring), 0).records), default=0)


def microseconds() -> float:
    """Median over rounds of what it takes to describe a tensor, and to begin and end its record, in this process."""
    found: list[float] = []
    with recording() as record:
        for _ in range(ROUNDS):
            start = time.thread_time()
            for _ in range(CALLS):
                record()
            found.append((time.thread_time() - start) / CALLS * 1e6)
    return statistics.median(found)


@contextmanager
def recording() -> Iterator[Callable[[], None]]:
    """Makes one record of a tensor of the process's framework. It is with this rank alone, so nobody has to match it."""
    (module,) = (module for name, module in sys.modules.items() if name.endswith("_impl.collectives"))
    tensor = (module.torch if hasattr(module, "torch") else module.tf).zeros(VALUES)
    look_up, module.channel = module.channel, {"one": flight.Channel(RankRange(0, 1, 1))}.__getitem__

    def record() -> None:
        flight.end(module.begin("one", "all_reduce", tensor))

    try:
        yield record
    finally:
        module.channel = look_up
