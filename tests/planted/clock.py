"""A model that plants a defect of timing in the process of its run, as CONVTWINS_PLANTED says."""

import os
import time
from typing import Any

from common.training import loop, run_clock, timing
from convtwins.models import Architecture
from tests.twins import own_plain_model

SLOW_SECONDS = 0.4
"""Of a step of the slow rank."""


def architecture(num_classes: int, image_size: int) -> Architecture:
    plant = {
        "slow_rank": slow_rank,
        "late_rank": late_rank,
        "evaluation_waits": evaluation_waits,
        "other_clock": other_clock,
        "slow_clock": slow_clock,
        "unprepared": unprepared,
        "nothing": lambda: None,
    }
    plant[os.environ["CONVTWINS_PLANTED"]]()
    return own_plain_model.architecture(num_classes, image_size)


def slow_rank() -> None:
    """Rank 1 takes its time before each step."""
    if os.environ.get("RANK") == "1":
        wrap_trainer(lambda trainer: setattr(trainer, "train_step", slowed(trainer.train_step)))


def late_rank() -> None:
    """Rank 1 takes its time after each step, when it has sent what the others wait for."""
    if os.environ.get("RANK") == "1":
        wrap_trainer(lambda trainer: setattr(trainer, "train_step", late(trainer.train_step)))


def late(train_step: Any) -> Any:
    def step(*arguments: Any) -> Any:
        outcome = train_step(*arguments)
        time.sleep(SLOW_SECONDS)
        return outcome

    return step


def slowed(train_step: Any) -> Any:
    def step(*arguments: Any) -> Any:
        time.sleep(SLOW_SECONDS)
        return train_step(*arguments)

    return step


def evaluation_waits() -> None:
    """The same, but the clock stops with rank 0. The others are waited for, and the weights averaged, in evaluation."""
    slow_rank()
    timing.elapsed_over_ranks = lambda starts, ends: float(ends[0] - starts[0])

    def plant(trainer: Any) -> None:
        trainer.broadcast_statistics = trainer.finish_epoch
        trainer.finish_epoch = lambda: None

    wrap_trainer(plant)


def other_clock() -> None:
    """Rank 1 counts from another start, as in a time namespace of its own."""
    if os.environ.get("RANK") == "1":
        stamps = run_clock.gather_start_and_end
        run_clock.gather_start_and_end = lambda trainer, start, end: stamps(trainer, start + 3600.0, end + 3600.0)


def slow_clock() -> None:
    """Rank 1's clock goes at 0.9 of the true speed, from its first epoch on."""
    if os.environ.get("RANK") == "1":
        clock, begin = time.perf_counter, time.perf_counter()
        time.perf_counter = lambda: begin + 0.9 * (clock() - begin)


def unprepared() -> None:
    """No batch size is built before it is timed, and the run does not look for that."""
    timing.ClockAudit.defects = lambda audit, seen: {}
    timing.ClockAudit.caution = lambda audit: None
    wrap_trainer(lambda trainer: setattr(trainer, "compile", lambda step_sizes, score_sizes: None))


def wrap_trainer(plant: Any) -> None:
    learn = loop.TrainingRun.train_and_validate

    def planted(run: loop.TrainingRun, trainer: Any, *arguments: Any) -> None:
        plant(trainer)
        learn(run, trainer, *arguments)

    loop.TrainingRun.train_and_validate = planted
