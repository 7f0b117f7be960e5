"""A model that makes the last rank of its run hang in the third step, as CONVTWINS_PLANTED says.

It is planted through the spec, so that the run goes through the real command line, launcher and watchdog. The file
CONVTWINS_PLANTED_AT is touched when the hang begins. CONVTWINS_PLANTED_AFTER seconds of training go before it.
"""

import hashlib
import itertools
import mmap
import os
import queue
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.data.batches import BatchPlan
from common.processes import parameter_server
from common.training import loop
from convtwins.models import Architecture
from tests.twins import own_plain_model

STEP = 3
BUSY_SECONDS = 10.0
SLOW_STEP_SECONDS = 0.7
PAGES = 100
"""That a step reads again where memory comes from the disk."""


def architecture(num_classes: int, image_size: int) -> Architecture:
    planted = os.environ.get("CONVTWINS_PLANTED")
    if planted and os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1):
        HANGS[planted]()
    return own_plain_model.architecture(num_classes, image_size)


def at_the_step(hang: Callable[[], object], *, at_each: bool = False) -> Callable[[], None]:
    """Plants what is done in the training loop, before its third step, or before that and each later one."""

    def plant() -> None:
        learning_rate, after = BatchPlan.learning_rate, float(os.environ.get("CONVTWINS_PLANTED_AFTER", "0"))
        first, times = 0.0, 0

        def planted(plan: BatchPlan, step: int) -> float:
            nonlocal first, times
            now = time.monotonic()
            first = first or now
            if step >= STEP - 1 and now - first >= after and (at_each or not times):
                times += 1
                if times == 1:
                    begins()
                hang()
            return learning_rate(plan, step)

        BatchPlan.learning_rate = planted

    return plant


def begins() -> None:
    if "CONVTWINS_PLANTED_AT" in os.environ:
        Path(os.environ["CONVTWINS_PLANTED_AT"]).touch()


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def full_queue() -> None:
    full: queue.Queue[int] = queue.Queue(1)
    full.put(0)
    full.put(1)


def two_locks() -> None:
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def take(one: threading.Lock, other: threading.Lock) -> None:
        with one:
            both.wait()
            with other:
                pass

    threading.Thread(target=take, args=(second, first), daemon=True).start()
    take(first, second)


def long_step(seconds: float = BUSY_SECONDS) -> None:
    """Computes, by default for longer than the limit of the tests."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000)


def message() -> None:
    """Waits for one that nobody sends."""
    here, _there = socket.socketpair()
    here.recv(1)


def spinning() -> None:
    """Asks for a flag that nobody sets."""
    flag = False
    while not flag:
        pass


def livelock() -> None:
    """Two threads that hold one lock each, want the other's, and give way at the same time, again and again."""
    locks, both = (threading.Lock(), threading.Lock()), threading.Barrier(2)

    def polite(own: threading.Lock, other: threading.Lock) -> None:
        while True:
            with own:
                both.wait()
                if other.acquire(timeout=0.005):
                    return
                both.wait()

    threading.Thread(target=polite, args=locks[::-1], daemon=True).start()
    polite(*locks)


def paging() -> None:
    """Its memory, the file CONVTWINS_PLANTED_PAGES, comes from the disk again and again.

    The control group CONVTWINS_PLANTED_GROUP has room for a part of it.
    """
    global _pages
    if _pages is None:
        Path(os.environ["CONVTWINS_PLANTED_GROUP"], "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
        with Path(os.environ["CONVTWINS_PLANTED_PAGES"]).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            _pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        _pages.madvise(mmap.MADV_RANDOM)
    for _ in range(PAGES):
        _pages[random.randrange(len(_pages))]


_pages: mmap.mmap | None = None


def missing_collective() -> None:
    """Leaves out the sum of the first loss over ranks, which is asked for after the first step."""
    train = loop.TrainingRun.train

    def planted(run: loop.TrainingRun, trainer: Any, *arguments: Any) -> None:
        all_reduce = trainer.all_reduce_shards

        def skipped(values: Any) -> Any:
            begins()
            trainer.all_reduce_shards = all_reduce
            return values

        trainer.all_reduce_shards = skipped
        train(run, trainer, *arguments)

    loop.TrainingRun.train = planted


def missing_push() -> None:
    """Leaves out its gradient of the third step, so that the server waits for it, and goes on to what all do at the end."""
    push, pushes = parameter_server.ServerConnection.push, itertools.count(1)

    def planted(connection: parameter_server.ServerConnection, *arguments: Any) -> None:
        if next(pushes) == STEP:
            begins()
        else:
            push(connection, *arguments)

    parameter_server.ServerConnection.push = planted


HANGS: dict[str, Callable[[], None]] = {
    "stopped": at_the_step(stopped),
    "full_queue": at_the_step(full_queue),
    "two_locks": at_the_step(two_locks),
    "long_step": at_the_step(long_step),
    "nothing": at_the_step(lambda: None),
    "slow_steps": at_the_step(lambda: long_step(SLOW_STEP_SECONDS), at_each=True),
    "message": at_the_step(message),
    "spinning": at_the_step(spinning),
    "livelock": at_the_step(livelock),
    "paging": at_the_step(paging, at_each=True),
    "missing_collective": missing_collective,
    "missing_push": missing_push,
}
