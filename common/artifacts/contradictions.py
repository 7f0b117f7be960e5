"""Contradictions within a stored result. Its values are compared with each other, with its spec and with its events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from common.artifacts import event_log
from common.artifacts.schema import EpochRecord, Metrics, Phases, RunResult

_ROUNDING = 1e-6
"""Relative tolerance, or tolerance in seconds, for floats that were added in another order."""
_LEAST_STEP_SECONDS = 1e-6
"""Seconds that every step takes at least, whatever the model: requesting its batch in Python takes longer."""
_OWN_CLOCK_SECONDS = 1e-3
"""Largest difference in seconds of a rank's own clock to that of all ranks in an epoch, see `common.training.timing`."""
_HOST_CLOCKS = 1e-3
"""Relative difference that is allowed between the clocks of several hosts."""
_TICK_SECONDS = 0.1
"""Seconds of error in CPU time that are allowed for each core and epoch: the kernel counts in ticks of 0.01 s."""
_LEARNING_RATE_ROUNDING = 1e-9
_MOST_SHOWN = 3


def find_contradictions(
    result: RunResult, events: Sequence[Mapping[str, Any]] | None = None, *, all_events: bool = True
) -> list[str]:
    """Return each contradiction as a clause with both figures. Empty: a run can have recorded these values.

    They are the rules of the records that `common.training.loop` makes. A run that did not end well has recorded a part.

    Args:
        events: of the run, from `event_log.read_events`. None: there is no such file.
        all_events: whether no line of that file is torn or was changed.
    """
    contradictions = [*_epochs(result), *_scores(result)]
    if events is not None:
        contradictions += _events(result, events, all_events=all_events)
    if result.status == "failed":  # perhaps because its clock was wrong, as its reason says; no time of it counts
        return contradictions
    return [*contradictions, *_times(result), *_rates(result), *_clock(result, events or [])]


def contradiction_sentence(result: RunResult, contradictions: Sequence[str]) -> str:
    """Return a sentence, without its full stop, that names the run and its first contradictions."""
    clauses = [*contradictions[:_MOST_SHOWN], *["..."] * (len(contradictions) > _MOST_SHOWN)]
    return f"contradicts itself: in this run of {result.framework}, {'; '.join(clauses)}"


def _ended_well(result: RunResult) -> bool:
    return result.status in ("ok", "not parallel")


def _is_close(one: float, other: float, tolerance: float = _ROUNDING) -> bool:
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _planned_steps(result: RunResult) -> tuple[int, int]:
    """Return (steps of a whole epoch, steps of the run)."""
    spec = result.spec
    steps = -(-result.epochs[0].epoch_images // spec.global_batch_size)
    return steps, spec.steps if spec.steps is not None else steps * (spec.epochs or 0)


def _epochs(result: RunResult) -> Iterator[str]:
    """Compare epochs with the spec, and images with steps times batch size."""
    spec, epochs = result.spec, result.epochs
    if not epochs:
        return
    for place, epoch in enumerate(epochs, 1):
        if epoch.epoch != place:
            yield f"epoch {epoch.epoch} stands where epoch {place} must stand"
            return
    per_epoch, total = _planned_steps(result)
    number = -(-total // per_epoch)
    if len(epochs) > number:
        yield f"{len(epochs)} epochs stand, and the spec has {number}"
        return
    if _ended_well(result) and len(epochs) < number and spec.best_epoch.patience is None:
        yield f"{len(epochs)} epochs stand, and the spec has {number}"
    is_elastic = any(restart.replicas for restart in result.restarts)  # others had another learning rate
    first = min(spec.global_batch_size, epochs[0].epoch_images)
    for place, epoch in enumerate(epochs):
        steps = min(per_epoch, total - place * per_epoch)
        images = first * steps if spec.part == "compute" else min(spec.global_batch_size * steps, epoch.epoch_images)
        left_out = [spec.global_batch_size * (step - 1) for step in set(epoch.left_out) if 1 <= step <= steps]
        images_left_out = sum(min(spec.global_batch_size, epoch.epoch_images - start) for start in left_out)
        untimed = steps - epoch.timed_steps - len(epoch.left_out)
        last_step = place * per_epoch + steps - 1
        rate = spec.learning_rate(last_step, per_epoch, total)
        for quantity, recorded, source, expected in (
            ("images of a whole epoch", epoch.epoch_images, "epoch 1 has", epochs[0].epoch_images),
            ("steps", epoch.steps, "spec and images make", steps),
            ("images", epoch.images, f"{steps} steps of {spec.global_batch_size} make", images),
            (
                "timed images",
                epoch.timed_images,
                f"{epoch.timed_steps} timed steps make",
                images - first * untimed - images_left_out,
            ),
        ):
            if recorded != expected:
                yield f"epoch {epoch.epoch} has {quantity}: {recorded}, and {source} {expected}"
        if untimed not in (0, 1) or (untimed == 0 and (place == 0 or epoch.first_step_seconds is not None)):
            others = f" and {len(epoch.left_out)} that it left out" if epoch.left_out else ""
            yield (
                f"epoch {epoch.epoch} has {epoch.timed_steps} timed steps of {steps}, and a process times all but its first one"
                f"{others}"
            )
        if not is_elastic and not math.isclose(epoch.learning_rate, rate, rel_tol=_LEARNING_RATE_ROUNDING, abs_tol=1e-300):
            yield f"epoch {epoch.epoch} has the learning rate {epoch.learning_rate:g}, and its schedule makes {rate:g}"
    if (num_incomplete := sum(epoch.timed_steps + len(epoch.left_out) < epoch.steps for epoch in epochs)) > 1 + result.resumes:
        yield (
            f"{num_incomplete} epochs have an untimed first step, and the run had {1 + result.resumes} processes one after the "
            "other"
        )


def _scores(result: RunResult) -> Iterator[str]:
    """Compare scores with images, the confusion matrix with the test scores, and losses of steps with those of epochs."""
    epochs, test = result.epochs, result.test
    if result.spec.part != "training":
        if test is not None or any(epoch.train is not None or epoch.validation is not None for epoch in epochs):
            yield f"scores stand, and the part {result.spec.part} of the training has none"
        return
    for epoch in epochs:
        if epoch.train is None or epoch.validation is None:
            yield f"epoch {epoch.epoch} has no scores"
            return
        if epoch.train.num_examples != epoch.images:
            yield f"epoch {epoch.epoch} has scored {epoch.train.num_examples} training images, and trained on {epoch.images}"
        assert epochs[0].validation is not None
        if epoch.validation.num_examples != (first := epochs[0].validation.num_examples):
            yield f"epoch {epoch.epoch} has {epoch.validation.num_examples} validation images, and epoch 1 has {first}"
    if test is not None:
        yield from _test_scores(result, test)
    yield from _best(result)
    yield from _losses(result)


def _test_scores(result: RunResult, test: Metrics) -> Iterator[str]:
    if result.confusion is not None:
        counted, right = sum(map(sum, result.confusion)), sum(row[place] for place, row in enumerate(result.confusion))
        if counted != test.num_examples:
            yield f"the confusion matrix has {counted} images, and the test split {test.num_examples}"
        if right != test.num_correct:
            yield f"the confusion matrix has {right} right predictions, and the test {test.num_correct}"
        if result.class_names and len(result.class_names) != len(result.confusion):
            yield f"the confusion matrix has {len(result.confusion)} classes, and the data {len(result.class_names)}"
    if result.members is not None:
        for metrics in (result.members.average, result.members.ensemble, *result.members.members):
            if metrics.num_examples != test.num_examples:
                yield f"a member has {metrics.num_examples} test images, and the run {test.num_examples}"


def _best(result: RunResult) -> Iterator[str]:
    if result.best_epoch is None:
        return
    if not 1 <= result.best_epoch <= len(result.epochs):
        yield f"epoch {result.best_epoch} is the best, and {len(result.epochs)} epochs stand"
        return
    scores = [epoch.validation for epoch in result.epochs if epoch.validation is not None]
    best = scores[result.best_epoch - 1]
    by_loss = result.spec.best_epoch.by == "loss"
    best_value, extreme = (best.loss, min(score.loss for score in scores)) if by_loss else (
        best.num_correct, max(score.num_correct for score in scores)
    )  # fmt: skip
    if best_value != extreme:
        yield f"epoch {result.best_epoch} is the best with {best_value:g}, and another has {extreme:g}"


def _losses(result: RunResult) -> Iterator[str]:
    losses, first = result.step_losses, result.first_step_loss
    if losses and first is not None and not _is_close(losses[0], first):
        yield f"the first loss is {first:g}, and the first of the steps' losses {losses[0]:g}"
    if not result.epochs or (epoch := result.epochs[0]).train is None or not losses:
        return
    most = _planned_steps(result)[1]
    if len(losses) > most:
        yield f"{len(losses)} steps have losses, and the run has {most} steps"
    elif len(losses) >= epoch.steps:
        sizes = [min(result.spec.global_batch_size, epoch.images - done) for done in _starts(result, epoch)]
        mean = sum(loss * size for loss, size in zip(losses, sizes, strict=False)) / epoch.images
        if not _is_close(mean, epoch.train.loss):
            yield f"epoch 1 has the training loss {epoch.train.loss:g}, and its steps make {mean:g}"


def _starts(result: RunResult, epoch: EpochRecord) -> range:
    return range(0, epoch.images, result.spec.global_batch_size)


def _times(result: RunResult) -> Iterator[str]:
    """Compare phases with the wall time, and seconds of epochs with phases."""
    for epoch in result.epochs:
        least = _LEAST_STEP_SECONDS * epoch.timed_steps
        if epoch.timed_seconds < least:
            yield (
                f"epoch {epoch.epoch} has {epoch.timed_steps} steps in {epoch.timed_seconds:.3g} s, and they take {least:.3g} s"
            )
        if epoch.input_wait_seconds > epoch.timed_seconds * (1 + _HOST_CLOCKS) + _OWN_CLOCK_SECONDS:
            yield (
                f"epoch {epoch.epoch} has waited {epoch.input_wait_seconds:.3g} s for its input, and lasted "
                f"{epoch.timed_seconds:.3g} s"
            )
        yield from _slices(epoch)
    if result.phases is not None:
        yield from _phases(result, result.phases)


def _slices(epoch: EpochRecord) -> Iterator[str]:
    """Compare the slices of an epoch with its timed steps and seconds."""
    if not epoch.slices:
        return
    steps = [slice_.first_step + place for slice_ in epoch.slices for place in range(slice_.steps)]
    timed = [step for step in steps if step not in set(epoch.left_out)]
    if steps != list(range(epoch.steps - len(steps) + 1, epoch.steps + 1)) or len(timed) != epoch.timed_steps:
        yield f"epoch {epoch.epoch} has {epoch.timed_steps} timed steps of {epoch.steps}, and its slices have {len(timed)}"
    if not _is_close(seconds := sum(slice_.seconds for slice_ in epoch.slices), epoch.timed_seconds):
        yield f"epoch {epoch.epoch} lasted {epoch.timed_seconds:.6g} s, and its slices {seconds:.6g} s"


def _phases(result: RunResult, phases: Phases) -> Iterator[str]:
    parts = phases.model_dump(exclude={"wall_seconds", "input_wait_seconds"})
    least = dict.fromkeys(parts, 0.0)
    # The seconds of an epoch are those of all ranks, which may begin a moment before this one and be counted by another host.
    least["other_seconds"] = -_OWN_CLOCK_SECONDS * (len(result.epochs) + 1) - _HOST_CLOCKS * abs(phases.training_seconds)
    for name, seconds in parts.items():
        if not math.isfinite(seconds) or seconds < least[name] - _ROUNDING:
            yield f"phases.{name} is {seconds:.6g}, and no phase takes less than no time"
            return
    if not _is_close(total := sum(parts.values()), phases.wall_seconds):
        yield f"the phases add up to {total:.6g} s, and the wall time is {phases.wall_seconds:.6g} s"
    compiled = phases.first_step_seconds + phases.compile_seconds
    for quantity, values, name, expected, is_whole in (
        ("timed seconds", [epoch.timed_seconds for epoch in result.epochs], "training_seconds", phases.training_seconds, True),
        (
            "seconds of waiting for input",
            [epoch.input_wait_seconds for epoch in result.epochs],
            "input_wait_seconds",
            phases.input_wait_seconds,
            True,
        ),
        (
            "seconds of evaluation",
            [epoch.evaluation_seconds for epoch in result.epochs],
            "evaluation_seconds",
            phases.evaluation_seconds,
            False,
        ),
        (
            "seconds of first steps",
            [epoch.first_step_seconds or 0.0 for epoch in result.epochs],
            "first_step_seconds and compile_seconds",
            compiled,
            False,
        ),
    ):
        # A run that ended early has trained in an epoch that is not recorded. The test is evaluated after all epochs.
        exact = is_whole and _ended_well(result)
        if not (_is_close(sum(values), expected) or (not exact and sum(values) < expected)):
            yield f"the {quantity} of all epochs add up to {sum(values):.6g}, and phases.{name} has {expected:.6g}"


def _rates(result: RunResult) -> Iterator[str]:
    """Compare images per second and CPU seconds with the timed seconds."""
    seconds = sum(epoch.timed_seconds for epoch in result.epochs)
    images, steps = sum(epoch.timed_images for epoch in result.epochs), sum(epoch.timed_steps for epoch in result.epochs)
    rates = result.images_per_second_by_process
    if rates and not result.resumes and not result.restarts and _ended_well(result):  # else they are of the last attempt
        own_clocks = _OWN_CLOCK_SECONDS * len(result.epochs)
        images_by_rate = sum(rates) * (seconds * (1 + _HOST_CLOCKS) + own_clocks)
        if images_by_rate < images * (1 - _ROUNDING) or max(rates) * _LEAST_STEP_SECONDS * steps > images * (1 + _ROUNDING):
            yield (
                f"the processes have {sum(rates):.6g} images a second together, and the epochs {images} images in "
                f"{seconds:.6g} s"
            )
    cores, phases = result.machine.get("logical_cores"), result.phases
    if result.spec.hosts or phases is None or not isinstance(cores, int):
        return
    # CPU time is read when the ranks have met and again when they know of each other's end.
    counted_seconds = max(phases.training_seconds + phases.other_seconds, 0.0)
    max_cpu_seconds = cores * (counted_seconds * 1.05 + _TICK_SECONDS * (len(result.epochs) + 1))
    for name, used in (("cores_used", result.cores_used), ("cores_of_others", result.cores_of_others)):
        if used is not None and not 0.0 <= used * phases.training_seconds <= max_cpu_seconds:
            yield (
                f"{name} is {used:.6g}, which is {used * phases.training_seconds:.6g} CPU seconds, and a machine of {cores} "
                f"cores has no more than {max_cpu_seconds:.6g} in that time"
            )


def _events(result: RunResult, events: Sequence[Mapping[str, Any]], *, all_events: bool) -> Iterator[str]:
    """Compare epochs with events. A run that ended while it wrote an event lacks the last one."""
    logged_epochs = event_log.epochs(events)
    epochs_by_number = {epoch.epoch: epoch for epoch in result.epochs}
    for epoch in logged_epochs:
        if (stored_epoch := epochs_by_number.get(epoch.epoch)) is None:
            yield f"the events have an epoch {epoch.epoch}, and the result has {len(epochs_by_number)} epochs"
            return
        if epoch != stored_epoch:
            field = next(name for name in EpochRecord.model_fields if getattr(epoch, name) != getattr(stored_epoch, name))
            yield (
                f"epoch {epoch.epoch} has {field} {_format(getattr(stored_epoch, field))} in the result, and "
                f"{_format(getattr(epoch, field))} in its event"
            )
            return
    if len(logged_epochs) != len({epoch.epoch for epoch in logged_epochs}):
        yield f"the events have {len(logged_epochs)} epochs, and {len({epoch.epoch for epoch in logged_epochs})} different ones"
    num_missing = len(epochs_by_number) - len(logged_epochs)
    if all_events and num_missing > (0 if _ended_well(result) else 1):
        yield f"the result has {len(epochs_by_number)} epochs, and the events {len(logged_epochs)}"
    first = next((event.get("loss") for event in events if event.get("event") == "first_step"), None)
    if isinstance(first, float) and result.first_step_loss is not None and not _is_close(first, result.first_step_loss):
        yield f"the first loss is {result.first_step_loss:g} in the result, and {first:g} in its event"


def _clock(result: RunResult, events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Compare seconds of epochs with the run's clock at its events. Epochs before `resume` are of an earlier attempt."""
    resume_position = next((place for place, event in enumerate(events) if event.get("event") == "resume"), -1)
    previous_clock: float | None = None
    for place, event in enumerate(events):
        clock = event.get("clock")
        if not isinstance(clock, float):
            continue
        if previous_clock is not None and clock < previous_clock:
            yield f"the run's clock stood at {previous_clock:.6g} s, and at the next event at {clock:.6g} s"
            return
        if previous_clock is not None and place > resume_position and event.get("event") == "epoch":
            for epoch in event_log.epochs([event]):
                epoch_seconds = epoch.timed_seconds + epoch.evaluation_seconds
                if clock - previous_clock < epoch_seconds * (1 - _HOST_CLOCKS) - _OWN_CLOCK_SECONDS:
                    yield (
                        f"epoch {epoch.epoch} has lasted {epoch_seconds:.6g} s, and its events are "
                        f"{clock - previous_clock:.6g} s apart"
                    )
                    return
        previous_clock = clock
        wall = result.phases.wall_seconds if result.phases is not None and resume_position < 0 else math.inf
        if event.get("event") == "epoch" and clock > wall + _OWN_CLOCK_SECONDS:
            yield f"the wall time is {wall:.6g} s, and an epoch ended after {clock:.6g} s"
            return


def _format(value: object) -> str:
    if isinstance(value, Metrics):
        return f"of {value.num_correct} right of {value.num_examples}, loss {value.loss:.6g}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
