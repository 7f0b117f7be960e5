"""The learning twin, whose clocks all go at CONVTWINS_PACE of the true speed: nothing in its process can tell."""

import os
import sys
import time
from collections.abc import Callable

from tests.compare.twins import learner

PACE = float(os.environ.get("CONVTWINS_PACE", "1"))


def slowed(clock: Callable[..., float]) -> Callable[..., float]:
    begins = dict[tuple[object, ...], float]()

    def slow(*which: object) -> float:
        now = clock(*which)
        begin = begins.setdefault(which, now)
        return begin + PACE * (now - begin)

    return slow


if __name__ == "__main__":
    for name in ("perf_counter", "clock_gettime", "time"):
        setattr(time, name, slowed(getattr(time, name)))
    sys.exit(learner.main("left"))
