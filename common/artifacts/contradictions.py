"""What a stored result says against itself: all its values judged together, with its spec and its events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from common.artifacts import event_log
from common.artifacts.schema import EpochRecord, Metrics, Phases, RunResult

_ROUNDING = 1e-6
"""Part of a sum, or seconds, by which floats may differ that were added in another order."""
_LEAST_STEP_SECONDS = 1e-6
"""No step takes less, of whatever model: asking for its batch in Python takes longer."""
_OWN_CLOCK_SECONDS = 1e-3
"""For each epoch, what a rank's own clock may be apart from the clock of all ranks, see `common.training.timing`."""
_HOST_CLOCKS = 1e-3
"""The same of the clocks of several hosts, as a part."""
_TICK_SECONDS = 0.1
"""Of each core in each epoch, by which the CPU time of all processes may be wrong: the kernel counts it in ticks of 0.01 s."""
_LEARNING_RATE_ROUNDING = 1e-9
_MOST_SHOWN = 3


def found(result: RunResult, events: Sequence[Mapping[str, Any]] | None = None, *, all_events: bool = True) -> list[str]:
    """Each contradiction as a clause that has both figures. Empty: a run can have recorded these values.

    The rules are those by which `common.training.loop` records. A run that did not end well has recorded a part.

    Args:
        events: of the run, from `event_log.read_events`. None: there is no such file.
        all_events: whether no line of that file is torn or was changed.
    """
    judged = [*_epochs(result), *_scores(result)]
    if events is not None:
        judged += _events(result, events, all_events=all_events)
    if result.status == "failed":  # perhaps because its clock was wrong, as its reason says; no time of it counts
        return judged
    return [*judged, *_times(result), *_rates(result), *_clock(result, events or [])]


def words(result: RunResult, contradictions: Sequence[str]) -> str:
    """A sentence that names whose run contradicts itself, without its end."""
    shown = [*contradictions[:_MOST_SHOWN], *["..."] * (len(contradictions) > _MOST_SHOWN)]
    return f"contradicts itself: in this run of {result.framework}, {'; '.join(shown)}"


def _ended_well(result: RunResult) -> bool:
    return result.status in ("ok", "not parallel")


def _same(one: float, other: float, tolerance: float = _ROUNDING) -> bool:
    return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _planned(result: RunResult) -> tuple[int, int]:
    """(steps of a whole epoch, steps of the run)."""
    spec = result.spec
    steps = -(-result.epochs[0].epoch_images // spec.global_batch_size)
    return steps, spec.steps if spec.steps is not None else steps * (spec.epochs or 0)


def _epochs(result: RunResult) -> Iterator[str]:
    """Epochs to the spec, images to steps times batch."""
    spec, epochs = result.spec, result.epochs
    if not epochs:
        return
    for place, each in enumerate(epochs, 1):
        if each.epoch != place:
            yield f"epoch {each.epoch} stands where epoch {place} must stand"
            return
    per_epoch, total = _planned(result)
    number = -(-total // per_epoch)
    if len(epochs) > number:
        yield f"{len(epochs)} epochs stand, and the spec has {number}"
        return
    if _ended_well(result) and len(epochs) < number and spec.best_epoch.patience is None:
        yield f"{len(epochs)} epochs stand, and the spec has {number}"
    elastic = any(each.replicas for each in result.restarts)  # others had another learning rate
    first = min(spec.global_batch_size, epochs[0].epoch_images)
    for place, each in enumerate(epochs):
        steps = min(per_epoch, total - place * per_epoch)
        images = first * steps if spec.part == "compute" else min(spec.global_batch_size * steps, each.epoch_images)
        left_out = [spec.global_batch_size * (step - 1) for step in set(each.left_out) if 1 <= step <= steps]
        images_left_out = sum(min(spec.global_batch_size, each.epoch_images - start) for start in left_out)
        untimed = steps - each.timed_steps - len(each.left_out)
        last_step = place * per_epoch + steps - 1
        rate = spec.learning_rate(last_step, per_epoch, total)
        for what, said, why, must in (
            ("images of a whole epoch", each.epoch_images, "epoch 1 has", epochs[0].epoch_images),
            ("steps", each.steps, "spec and images make", steps),
            ("images", each.images, f"{steps} steps of {spec.global_batch_size} make", images),
            (
                "timed images",
                each.timed_images,
                f"{each.timed_steps} timed steps make",
                images - first * untimed - images_left_out,
            ),
        ):
            if said != must:
                yield f"epoch {each.epoch} has {what}: {said}, and {why} {must}"
        if untimed not in (0, 1) or (untimed == 0 and (place == 0 or each.first_step_seconds is not None)):
            others = f" and {len(each.left_out)} that it recorded" if each.left_out else ""
            yield (
                f"epoch {each.epoch} has {each.timed_steps} timed steps of {steps}, and a process times all but its first one"
                f"{others}"
            )
        if not elastic and not math.isclose(each.learning_rate, rate, rel_tol=_LEARNING_RATE_ROUNDING, abs_tol=1e-300):
            yield f"epoch {each.epoch} has the learning rate {each.learning_rate:g}, and its schedule makes {rate:g}"
    if (more := sum(each.timed_steps + len(each.left_out) < each.steps for each in epochs)) > 1 + result.resumes:
        yield f"{more} epochs have an untimed first step, and the run had {1 + result.resumes} processes one after the other"


def _scores(result: RunResult) -> Iterator[str]:
    """Counts to images, the confusion to the test, losses of steps to those of epochs."""
    epochs, test = result.epochs, result.test
    if result.spec.part != "training":
        if test is not None or any(each.train is not None or each.validation is not None for each in epochs):
            yield f"scores stand, and the part {result.spec.part} of the training has none"
        return
    for each in epochs:
        if each.train is None or each.validation is None:
            yield f"epoch {each.epoch} has no scores"
            return
        if each.train.num_examples != each.images:
            yield f"epoch {each.epoch} has scored {each.train.num_examples} training images, and trained on {each.images}"
        assert epochs[0].validation is not None
        if each.validation.num_examples != (first := epochs[0].validation.num_examples):
            yield f"epoch {each.epoch} has {each.validation.num_examples} validation images, and epoch 1 has {first}"
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
        for each in (result.members.average, result.members.ensemble, *result.members.members):
            if each.num_examples != test.num_examples:
                yield f"a member has {each.num_examples} test images, and the run {test.num_examples}"


def _best(result: RunResult) -> Iterator[str]:
    if result.best_epoch is None:
        return
    if not 1 <= result.best_epoch <= len(result.epochs):
        yield f"epoch {result.best_epoch} is the best, and {len(result.epochs)} epochs stand"
        return
    scores = [each.validation for each in result.epochs if each.validation is not None]
    best = scores[result.best_epoch - 1]
    by_loss = result.spec.best_epoch.by == "loss"
    said, most = (best.loss, min(each.loss for each in scores)) if by_loss else (
        best.num_correct, max(each.num_correct for each in scores)
    )  # fmt: skip
    if said != most:
        yield f"epoch {result.best_epoch} is the best with {said:g}, and another has {most:g}"


def _losses(result: RunResult) -> Iterator[str]:
    losses, first = result.step_losses, result.first_step_loss
    if losses and first is not None and not _same(losses[0], first):
        yield f"the first loss is {first:g}, and the first of the steps' losses {losses[0]:g}"
    if not result.epochs or (epoch := result.epochs[0]).train is None or not losses:
        return
    most = _planned(result)[1]
    if len(losses) > most:
        yield f"{len(losses)} steps have losses, and the run has {most} steps"
    elif len(losses) >= epoch.steps:
        sizes = [min(result.spec.global_batch_size, epoch.images - done) for done in _starts(result, epoch)]
        mean = sum(loss * size for loss, size in zip(losses, sizes, strict=False)) / epoch.images
        if not _same(mean, epoch.train.loss):
            yield f"epoch 1 has the training loss {epoch.train.loss:g}, and its steps make {mean:g}"


def _starts(result: RunResult, epoch: EpochRecord) -> range:
    return range(0, epoch.images, result.spec.global_batch_size)


def _times(result: RunResult) -> Iterator[str]:
    """Phases to the wall time, seconds of epochs to phases."""
    for each in result.epochs:
        least = _LEAST_STEP_SECONDS * each.timed_steps
        if each.timed_seconds < least:
            yield f"epoch {each.epoch} has {each.timed_steps} steps in {each.timed_seconds:.3g} s, and they take {least:.3g} s"
        if each.input_wait_seconds > each.timed_seconds * (1 + _HOST_CLOCKS) + _OWN_CLOCK_SECONDS:
            yield (
                f"epoch {each.epoch} has waited {each.input_wait_seconds:.3g} s for its input, and lasted "
                f"{each.timed_seconds:.3g} s"
            )
    if result.phases is not None:
        yield from _phases(result, result.phases)


def _phases(result: RunResult, phases: Phases) -> Iterator[str]:
    parts = phases.model_dump(exclude={"wall_seconds", "input_wait_seconds"})
    least = dict.fromkeys(parts, 0.0)
    # The seconds of an epoch are those of all ranks, which may begin a moment before this one and be counted by another host.
    least["other_seconds"] = -_OWN_CLOCK_SECONDS * (len(result.epochs) + 1) - _HOST_CLOCKS * abs(phases.training_seconds)
    for name, seconds in parts.items():
        if not math.isfinite(seconds) or seconds < least[name] - _ROUNDING:
            yield f"phases.{name} is {seconds:.6g}, and no phase takes less than no time"
            return
    if not _same(total := sum(parts.values()), phases.wall_seconds):
        yield f"the phases add up to {total:.6g} s, and the wall time is {phases.wall_seconds:.6g} s"
    compiled = phases.first_step_seconds + phases.compile_seconds
    for what, said, name, must, whole in (
        ("timed seconds", [each.timed_seconds for each in result.epochs], "training_seconds", phases.training_seconds, True),
        (
            "seconds of waiting for input",
            [each.input_wait_seconds for each in result.epochs],
            "input_wait_seconds",
            phases.input_wait_seconds,
            True,
        ),
        (
            "seconds of evaluation",
            [each.evaluation_seconds for each in result.epochs],
            "evaluation_seconds",
            phases.evaluation_seconds,
            False,
        ),
        (
            "seconds of first steps",
            [each.first_step_seconds or 0.0 for each in result.epochs],
            "first_step_seconds and compile_seconds",
            compiled,
            False,
        ),
    ):
        # A run that ended early has trained in an epoch that is not recorded. The test is evaluated after all epochs.
        exact = whole and _ended_well(result)
        if not (_same(sum(said), must) or (not exact and sum(said) < must)):
            yield f"the {what} of all epochs add up to {sum(said):.6g}, and phases.{name} has {must:.6g}"


def _rates(result: RunResult) -> Iterator[str]:
    """Images a second and CPU seconds to the seconds that were timed."""
    seconds = sum(each.timed_seconds for each in result.epochs)
    images, steps = sum(each.timed_images for each in result.epochs), sum(each.timed_steps for each in result.epochs)
    paces = result.images_per_second_by_process
    if paces and not result.resumes and not result.restarts and _ended_well(result):  # else they are of the last attempt
        own_clocks = _OWN_CLOCK_SECONDS * len(result.epochs)
        made = sum(paces) * (seconds * (1 + _HOST_CLOCKS) + own_clocks)
        if made < images * (1 - _ROUNDING) or max(paces) * _LEAST_STEP_SECONDS * steps > images * (1 + _ROUNDING):
            yield (
                f"the processes have {sum(paces):.6g} images a second together, and the epochs {images} images in "
                f"{seconds:.6g} s"
            )
    cores, phases = result.machine.get("logical_cores"), result.phases
    if result.spec.hosts or phases is None or not isinstance(cores, int):
        return
    # CPU time is read when the ranks have met and again when they know of each other's end.
    read = max(phases.training_seconds + phases.other_seconds, 0.0)
    most = cores * (read * 1.05 + _TICK_SECONDS * (len(result.epochs) + 1))
    for name, used in (("cores_used", result.cores_used), ("cores_of_others", result.cores_of_others)):
        if used is not None and not 0.0 <= used * phases.training_seconds <= most:
            yield (
                f"{name} is {used:.6g}, which is {used * phases.training_seconds:.6g} CPU seconds, and a machine of {cores} "
                f"cores has no more than {most:.6g} in that time"
            )


def _events(result: RunResult, events: Sequence[Mapping[str, Any]], *, all_events: bool) -> Iterator[str]:
    """Epochs to events. A run that ended in writing an event lacks the last one."""
    told = event_log.epochs(events)
    stand = {each.epoch: each for each in result.epochs}
    for each in told:
        if (known := stand.get(each.epoch)) is None:
            yield f"the events have an epoch {each.epoch}, and the result has {len(stand)} epochs"
            return
        if each != known:
            field = next(name for name in EpochRecord.model_fields if getattr(each, name) != getattr(known, name))
            yield (
                f"epoch {each.epoch} has {field} {_shown(getattr(known, field))} in the result, and "
                f"{_shown(getattr(each, field))} in its event"
            )
            return
    if len(told) != len({each.epoch for each in told}):
        yield f"the events have {len(told)} epochs, and {len({each.epoch for each in told})} different ones"
    lacking = len(stand) - len(told)
    if all_events and lacking > (0 if _ended_well(result) else 1):
        yield f"the result has {len(stand)} epochs, and the events {len(told)}"
    first = next((event.get("loss") for event in events if event.get("event") == "first_step"), None)
    if isinstance(first, float) and result.first_step_loss is not None and not _same(first, result.first_step_loss):
        yield f"the first loss is {result.first_step_loss:g} in the result, and {first:g} in its event"


def _clock(result: RunResult, events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Seconds of epochs to the run's own clock at its events. Epochs before `resume` are of an earlier attempt."""
    resumed = next((place for place, event in enumerate(events) if event.get("event") == "resume"), -1)
    before: float | None = None
    for place, event in enumerate(events):
        clock = event.get("clock")
        if not isinstance(clock, float):
            continue
        if before is not None and clock < before:
            yield f"the run's clock stood at {before:.6g} s, and at the next event at {clock:.6g} s"
            return
        if before is not None and place > resumed and event.get("event") == "epoch":
            for each in event_log.epochs([event]):
                lasted = each.timed_seconds + each.evaluation_seconds
                if clock - before < lasted * (1 - _HOST_CLOCKS) - _OWN_CLOCK_SECONDS:
                    yield f"epoch {each.epoch} has lasted {lasted:.6g} s, and its events are {clock - before:.6g} s apart"
                    return
        before = clock
        wall = result.phases.wall_seconds if result.phases is not None and resumed < 0 else math.inf
        if event.get("event") == "epoch" and clock > wall + _OWN_CLOCK_SECONDS:
            yield f"the wall time is {wall:.6g} s, and an epoch ended after {clock:.6g} s"
            return


def _shown(value: object) -> str:
    if isinstance(value, Metrics):
        return f"of {value.num_correct} right of {value.num_examples}, loss {value.loss:.6g}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
