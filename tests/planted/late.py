"""Run a twin as it is timed, with a defect that acts in some of its steps alone.

    python -m tests.planted.late FRAMEWORK OUT SPEC DEFECT[.WHEN[.NUMBER]] ...

Each run goes to OUT/DEFECT.WHEN.NUMBER, with a word of its own: so others of its steps are recorded. NUMBER is its seed. WHEN
is one of `WHENS`. The defects are planted one after another in one process, around the twin's own trainer, and are the same for
both frameworks.

As a user's own model (`model: tests.planted.late`) it plants CONVTWINS_PLANTED in the last rank of a run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.data.batches import BatchPlan, EpochDraws
from common.machine import placement
from common.processes import entry
from common.training.trainer import BaseTrainer, Batch
from convtwins.models import Architecture
from tests.planted import clock
from tests.twins import own_plain_model

LATE_EPOCH = 4
"""From which on a late defect acts."""
When = Callable[[int], bool]
"""Whether a defect acts in a step of the run, from 0."""


class Steps:
    """What a trainer has done so far, for defects that depend on it."""

    def __init__(self, trainer: Any) -> None:
        self.in_epoch: int = trainer._plan.steps_per_epoch
        self.loss = np.inf
        """Of the step before."""
        train = trainer.train_step

        def watched(*given: Any) -> Any:
            outputs = train(*given)
            self.loss = float(trainer.fetch([outputs[0]])[0])
            return outputs

        trainer.train_step = watched


WHENS: dict[str, Callable[[Steps], When]] = {
    "late": lambda steps: lambda step: step >= (LATE_EPOCH - 1) * steps.in_epoch,
    "rare": lambda steps: lambda step: np.random.default_rng(step).random() < 0.25,
    "by_loss": lambda steps: lambda step: steps.loss < LOW_LOSS,
    "by_epoch": lambda steps: lambda step: step // steps.in_epoch + 1 == LATE_EPOCH,
    "by_step": lambda steps: lambda step: step % 3 == 2,
}
LOW_LOSS = 2.28


def architecture(num_classes: int, image_size: int) -> Architecture:
    planted = os.environ.get("CONVTWINS_PLANTED")
    if planted and os.environ.get("RANK") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1):
        clock.wrap_trainer(lambda trainer: plant(planted, trainer))
    return own_plain_model.architecture(num_classes, image_size)


def plant(name: str, trainer: Any) -> None:
    """Plant `DEFECT[.WHEN[.NUMBER]]`. The default is `late`."""
    defect, when, *_ = [*name.split("."), "late"]
    PLANTS[defect](trainer, WHENS[when](Steps(trainer)))


def main(framework: str, out: Path, spec_file: str, names: Sequence[str]) -> int:
    """Make the runs. Returns the first exit code that is not 0."""
    if framework == "pytorch":
        import pytorch_impl.__main__ as module
    else:
        import tensorflow_impl.__main__ as module
    twin, is_configured = module.load_twin(), False

    def configure(*given: Any) -> None:  # once in a process
        nonlocal is_configured
        if not is_configured:
            twin.configure(*given)
        is_configured = True

    draw, rate = BatchPlan.draw, BatchPlan.learning_rate
    for name in names:
        os.environ[placement.SPOT_CHECKS_VARIABLE] = "" if name == nothing_recorded.__name__ else f"word of {name}"

        def build(*given: Any, name: str = name) -> BaseTrainer:
            trainer = twin.build(*given)
            plant(name, trainer)
            return trainer

        values = json.loads(Path(spec_file).read_text(encoding="utf-8"))
        own = out / f"{name}.json"
        own.write_text(
            json.dumps(values | {"seed": int(name.split(".")[2])} if name.count(".") == 2 else values), encoding="utf-8"
        )
        planted = dataclasses.replace(twin, build=build, configure=configure)
        code = entry.main(
            framework,
            lambda planted=planted: planted,
            module.rendezvous,
            module.switches,
            ["run", str(own), "--out", str(out / name)],
        )
        (out / name / "spot_checks.txt").write_text(f"word of {name}", encoding="utf-8")
        BatchPlan.draw, BatchPlan.learning_rate = draw, rate
        if code:
            return code
    return entry.EXIT_OK


def nothing(trainer: Any, when: When) -> None:
    """The clean twin."""


def nothing_recorded(trainer: Any, when: When) -> None:
    """Without a word of a launcher."""


def images_of_the_batch_before(trainer: Any, when: When) -> None:
    """Ids and labels as planned."""
    _in_batches(trainer, when, lambda batch, before: batch._replace(images=before.images))


def labels_of_the_batch_before(trainer: Any, when: When) -> None:
    _in_batches(trainer, when, lambda batch, before: batch._replace(labels=before.labels))


def other_examples(trainer: Any, when: When) -> None:
    """Whole batches are trained twice, and every other one never."""
    _in_batches(trainer, when, lambda batch, before: before)


def images_are_brighter(trainer: Any, when: When) -> None:
    """By one level of 256."""
    _in_batches(trainer, when, lambda batch, before: batch._replace(images=batch.images + 1))


def images_are_black(trainer: Any, when: When) -> None:
    _in_batches(trainer, when, lambda batch, before: batch._replace(images=batch.images * 0))


def labels_are_the_next_class(trainer: Any, when: When) -> None:
    _in_batches(trainer, when, lambda batch, before: batch._replace(labels=(batch.labels + 1) % 10))


def labels_are_one_class(trainer: Any, when: When) -> None:
    _in_batches(trainer, when, lambda batch, before: batch._replace(labels=batch.labels * 0))


def flips_of_the_first_epoch(trainer: Any, when: When) -> None:
    draw = BatchPlan.draw

    def drawn(plan: BatchPlan, epoch: int) -> EpochDraws:
        own, begin = draw(plan, epoch), (epoch - 1) * plan.steps_per_epoch
        is_on = epoch > 1 and any(map(when, range(begin, begin + plan.steps_per_epoch)))
        return dataclasses.replace(own, flips=draw(plan, 1).flips) if is_on else own

    BatchPlan.draw = drawn


def schedule_is_late(trainer: Any, when: When) -> None:
    """By an epoch, in the plan of this process."""
    rate = BatchPlan.learning_rate
    BatchPlan.learning_rate = lambda plan, step: rate(plan, max(step - plan.steps_per_epoch, 0) if when(step) else step)


def rate_is_larger(trainer: Any, when: When) -> None:
    """Inside the update, so that nothing outside shows it."""
    _in_steps(trainer, when, lambda train, batch, number, rate: train(batch, number, 1.02 * rate))


def gradients_are_longer(trainer: Any, when: When) -> None:
    """By 3 %: the mean over one example less."""
    _in_steps(trainer, when, lambda train, batch, number, rate: train(batch, number - 1, rate))


def a_bias_rests(trainer: Any, when: When) -> None:
    def rest(train: Any, batch: Batch, number: int, rate: float) -> Any:
        before = trainer.weights()["dense.bias"].copy()
        outputs = train(batch, number, rate)
        trainer.load_weights({**trainer.weights(), "dense.bias": before})
        return outputs

    _in_steps(trainer, when, rest)


def momentum_is_forgotten(trainer: Any, when: When) -> None:
    def forget(train: Any, batch: Batch, number: int, rate: float) -> Any:
        slots = {slot: {name: 0 * array for name, array in each.items()} for slot, each in trainer.slots().items()}
        trainer.load_slots(slots, trainer.weights())
        return train(batch, number, rate)

    _in_steps(trainer, when, forget)


def updates_are_left_out(trainer: Any, when: When) -> None:
    """Every second one."""
    done = 0

    def leave_out(train: Any, batch: Batch, number: int, rate: float) -> Any:
        nonlocal done
        done += 1
        weights, slots = trainer.weights(), trainer.slots()
        outputs = train(batch, number, rate)
        if done % 2:
            trainer.load_slots(slots, weights)
        return outputs

    _in_steps(trainer, when, leave_out)


def images_are_swapped_inside_the_step(trainer: Any, when: When) -> None:
    """The loop hands over the right batch."""
    kept: list[Batch] = []

    def swap(train: Any, batch: Batch, number: int, rate: float) -> Any:
        kept[:] = [*kept, batch][-2:]
        other = kept[0] if len(kept[0].labels) == len(batch.labels) else batch
        return train(batch._replace(images=other.images), number, rate)

    _in_steps(trainer, when, swap)


def losses_are_told_smaller(trainer: Any, when: When) -> None:
    def smaller(train: Any, batch: Batch, number: int, rate: float) -> Any:
        loss, correct = train(batch, number, rate)
        return 0.98 * loss, correct

    _in_steps(trainer, when, smaller)


def right_predictions_are_told_more(trainer: Any, when: When) -> None:
    def more(train: Any, batch: Batch, number: int, rate: float) -> Any:
        loss, correct = train(batch, number, rate)
        return loss, correct + 2

    _in_steps(trainer, when, more)


PLANTS: dict[str, Callable[[Any, When], None]] = {
    plant.__name__: plant
    for plant in (
        nothing,
        nothing_recorded,
        images_of_the_batch_before,
        labels_of_the_batch_before,
        other_examples,
        images_are_brighter,
        images_are_black,
        labels_are_the_next_class,
        labels_are_one_class,
        flips_of_the_first_epoch,
        schedule_is_late,
        rate_is_larger,
        gradients_are_longer,
        a_bias_rests,
        momentum_is_forgotten,
        updates_are_left_out,
        images_are_swapped_inside_the_step,
        losses_are_told_smaller,
        right_predictions_are_told_more,
    )
}


def _in_batches(trainer: Any, when: When, change: Callable[[Batch, Batch], Batch]) -> None:
    """Change batches, given the one of equal size before."""
    feed, in_epoch = trainer.feed, trainer._plan.steps_per_epoch

    def changed_feed() -> Any:
        start = feed()

        def changed(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
            before: Batch | None = None
            for step, batch in zip(steps, start(epoch, steps), strict=False):
                is_on = before is not None and len(before.labels) == len(batch.labels)
                yield change(batch, before) if is_on and when((epoch - 1) * in_epoch + step) else batch
                before = batch

        return changed

    trainer.feed = changed_feed


def _in_steps(trainer: Any, when: When, step: Callable[..., Any]) -> None:
    """Do steps otherwise."""
    train = trainer.train_step

    def changed(batch: Batch, number: int, rate: float) -> Any:
        return step(train, batch, number, rate) if when(trainer.updates) else train(batch, number, rate)

    trainer.train_step = changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
