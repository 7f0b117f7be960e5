"""Run a twin as it is timed, with a defect that begins late, and another word for each run.

    python -m tests.planted.late FRAMEWORK OUT SPEC DEFECT ...

Each run goes to OUT/DEFECT. The defects are planted one after another in one process, around the twin's own trainer, and are
the same for both frameworks.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common.data.batches import Epoch, Plan
from common.machine import placement
from common.processes import entry
from common.training.trainer import Batch, Trainer

LATE_EPOCH = 4
"""From which on a defect acts."""


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

    draw, rate = Plan.draw, Plan.learning_rate
    for name in names:
        os.environ[placement.SPOT_CHECKS_VARIABLE] = "" if name == nothing_recorded.__name__ else f"word of {name}"

        def build(*given: Any, name: str = name) -> Trainer:
            trainer = twin.build(*given)
            PLANTS[name](trainer)
            return trainer

        planted = dataclasses.replace(twin, build=build, configure=configure)
        code = entry.main(
            framework,
            lambda planted=planted: planted,
            module.rendezvous,
            module.switches,
            ["run", spec_file, "--out", str(out / name)],
        )
        (out / name / "spot_checks.txt").write_text(f"word of {name}", encoding="utf-8")
        Plan.draw, Plan.learning_rate = draw, rate
        if code:
            return code
    return entry.EXIT_OK


def nothing(trainer: Any) -> None:
    """The clean twin."""


def nothing_recorded(trainer: Any) -> None:
    """Without a word of a launcher."""


def images_of_the_batch_before(trainer: Any) -> None:
    """Ids and labels as planned."""
    _in_batches(trainer, lambda batch, before: batch._replace(images=before.images))


def labels_of_the_batch_before(trainer: Any) -> None:
    _in_batches(trainer, lambda batch, before: batch._replace(labels=before.labels))


def other_examples(trainer: Any) -> None:
    """Whole batches are trained twice, and every other one never."""
    _in_batches(trainer, lambda batch, before: before)


def flips_of_the_first_epoch(trainer: Any) -> None:
    draw = Plan.draw

    def drawn(plan: Plan, epoch: int) -> Epoch:
        own = draw(plan, epoch)
        return own if epoch < LATE_EPOCH else dataclasses.replace(own, flips=draw(plan, 1).flips)

    Plan.draw = drawn


def schedule_is_late(trainer: Any) -> None:
    """By an epoch, in the plan of this process."""
    rate = Plan.learning_rate
    Plan.learning_rate = lambda plan, step: rate(plan, max(step - plan.steps_per_epoch, 0))


def rate_is_larger(trainer: Any) -> None:
    """Inside the update, so that nothing outside shows it."""
    _in_steps(trainer, lambda train, batch, number, rate: train(batch, number, 1.02 * rate))


def gradients_are_longer(trainer: Any) -> None:
    """By 3 %: the mean over one example less."""
    _in_steps(trainer, lambda train, batch, number, rate: train(batch, number - 1, rate))


def a_bias_rests(trainer: Any) -> None:
    def rest(train: Any, batch: Batch, number: int, rate: float) -> Any:
        before = trainer.weights()["dense.bias"].copy()
        outputs = train(batch, number, rate)
        trainer.load_weights({**trainer.weights(), "dense.bias": before})
        return outputs

    _in_steps(trainer, rest)


def momentum_is_forgotten(trainer: Any) -> None:
    def forget(train: Any, batch: Batch, number: int, rate: float) -> Any:
        slots = {slot: {name: 0 * array for name, array in each.items()} for slot, each in trainer.slots().items()}
        trainer.load_slots(slots, trainer.weights())
        return train(batch, number, rate)

    _in_steps(trainer, forget)


def updates_are_left_out(trainer: Any) -> None:
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

    _in_steps(trainer, leave_out)


def images_are_swapped_inside_the_step(trainer: Any) -> None:
    """The loop hands over the right batch."""
    kept: list[Batch] = []

    def swap(train: Any, batch: Batch, number: int, rate: float) -> Any:
        kept[:] = [*kept, batch][-2:]
        other = kept[0] if len(kept[0].labels) == len(batch.labels) else batch
        return train(batch._replace(images=other.images), number, rate)

    _in_steps(trainer, swap)


def losses_are_told_smaller(trainer: Any) -> None:
    def smaller(train: Any, batch: Batch, number: int, rate: float) -> Any:
        loss, correct = train(batch, number, rate)
        return 0.98 * loss, correct

    _in_steps(trainer, smaller)


def right_predictions_are_told_more(trainer: Any) -> None:
    def more(train: Any, batch: Batch, number: int, rate: float) -> Any:
        loss, correct = train(batch, number, rate)
        return loss, correct + 2

    _in_steps(trainer, more)


PLANTS: dict[str, Callable[[Any], None]] = {
    plant.__name__: plant
    for plant in (
        nothing,
        nothing_recorded,
        images_of_the_batch_before,
        labels_of_the_batch_before,
        other_examples,
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


def _in_batches(trainer: Any, change: Callable[[Batch, Batch], Batch]) -> None:
    """Change late batches of equal size, given the one before."""
    feed = trainer.feed

    def changed_feed() -> Any:
        start = feed()

        def changed(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
            before: Batch | None = None
            for batch in start(epoch, steps):
                is_late = epoch >= LATE_EPOCH and before is not None and len(before.labels) == len(batch.labels)
                yield change(batch, before) if is_late and before is not None else batch
                before = batch

        return changed

    trainer.feed = changed_feed


def _in_steps(trainer: Any, step: Callable[..., Any]) -> None:
    """Do late steps otherwise."""
    train, plan = trainer.train_step, trainer._plan

    def changed(batch: Batch, number: int, rate: float) -> Any:
        is_late = trainer.updates >= (LATE_EPOCH - 1) * plan.steps_per_epoch
        return step(train, batch, number, rate) if is_late else train(batch, number, rate)

    trainer.train_step = changed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
