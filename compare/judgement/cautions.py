"""Cautions: runs that failed or are missing, exceeded their budget or did not get it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from common.artifacts.schema import RunResult
from common.data.sources.splits import CAUTION, IN_TWO_CLASSES, IN_TWO_SPLITS
from common.spec import Spec
from compare.core import wording
from compare.core.statistics import fell, is_no_better_than
from compare.execution import matrix, store
from compare.execution.matrix import Row
from compare.execution.store import Comparison, Replaced, Stored
from compare.judgement import environments
from compare.judgement.row_figures import Summary
from compare.judgement.run_figures import cores_words
from compare.judgement.summary import FAILURES, measured, replaced_ratio, seconds_apart, serial_of

CROWDED_FROM = 2.0
"""Load average over logical cores above which a run began on a busy machine. Earlier runs leave less."""

RESUME = "run --resume DIR"
"""Stands for the command with the folder, which only a report knows."""

SLOWED_BELOW = 0.9
"""Clock over that of the fastest row with as many cores, below which a row was slowed."""

FALLEN_FROM = 0.1
"""A run broke down if its accuracy fell by more than this from its best epoch, and by more than chance (`fell`)."""

RISEN_FROM = 2.0
"""A run broke down if its last training loss exceeds the first one, and that of the best epoch this many times."""


class _Caution(NamedTuple):
    """What is wrong with one row. Rows with the same `several` share one sentence."""

    row: str
    one: str
    """Said if it is the only row of its kind."""
    several: str
    figure: str = ""
    """Of this row, behind its name in the sentence of several."""


def sentences(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    """Of the whole comparison, then of its rows. Rows with the same caution are one sentence, with their number."""
    general = [
        *signature(stored),
        *(f"Set aside: {reason}" for reason in stored.set_aside),
        *_unplanned(stored.unplanned),
        *of_the_data(stored.comparison.data_notes),
        *_shared_cores(stored),
        *_not_in_turn(stored),
        *_made_again(stored),
        *environments.cautions(stored),
    ]
    kinds: dict[str, list[_Caution]] = {}
    for row, summary in zip(stored.comparison.rows, summaries, strict=True):
        good = list(measured(stored, row).values())
        alike = [other for other in summaries if other.cores == summary.cores]
        for caution in (
            *_cut_short(summary, list(stored.runs[summary.id].values())),
            *_ended(stored, summary, good),
            *_as_asked(summary, row),
            *_short(stored, summary, row),
            *_other_work(summary, is_side=stored.comparison.argv[:1] in (["regress"], ["bisect"])),
            *_noise(stored, summary, alike),
        ):
            kinds.setdefault(caution.several, []).append(caution)
    return [*general, *(_said(own, len(summaries)) for own in kinds.values())]


def _said(alike: Sequence[_Caution], rows: int) -> str:
    named = dict.fromkeys(f"{each.row} ({each.figure})" if each.figure else each.row for each in alike)
    if len(named) == 1:
        return f"{alike[0].row}: {alike[0].one}"
    which = ("Both rows" if rows == 2 else f"All {rows} rows") if len(named) == rows else f"{len(named)} of {rows} rows"
    return f"{which}: {alike[0].several} These are: {'; '.join(named)}."


def _cut_short(summary: Summary, runs: Sequence[RunResult]) -> Iterator[_Caution]:
    """Runs of a row that did not go through in one piece."""
    if resumes := sum(run.resumes for run in runs):
        times = "once" if resumes == 1 else f"{resumes} times"
        rest = "leaves out what was lost in between. Each epoch is timed by itself."
        yield _Caution(
            summary.name,
            f"was cut short and continued from a checkpoint {times}. Its wall time {rest}",
            f"cut short and continued from a checkpoint. Their wall time {rest}",
            times,
        )
    if deaths := [death for run in runs for death in run.restarts]:
        times = wording.count(len(deaths), "restart")
        lost = _lost(sum(death.seconds_lost for death in deaths))
        why = wording.listed(death.words for death in deaths)
        options = " and ".join(sorted({"--elastic" if death.replicas else "--restarts" for death in deaths}, reverse=True))
        said = f"restarted by itself ({options}): {why}; {lost}."
        yield _Caution(summary.name, f"was {said}", f"restarted by themselves ({options}).", f"{times}; {lost}")
    for run in runs:
        if fewer := [death for death in run.restarts if death.replicas]:
            left = f"{', then '.join(str(death.replicas) for death in fewer)} of {run.spec.replicas}"
            epochs = wording.count(fewer[0].epochs, "epoch")
            yield _Caution(
                summary.name,
                f"went on with {left} replicas (--elastic), from its last checkpoint when it had finished {epochs}: "
                f"{_other_mathematics(run.spec, fewer[-1].replicas or 1)}. That run does not count.",
                "went on with fewer replicas (--elastic). These runs do not count.",
                f"{left} when it had finished {epochs}",
            )
    for reason in dict.fromkeys(run.started_over for run in runs if run.started_over):
        said = f"started over: {reason}."
        yield _Caution(summary.name, f"was {said}", said)


def nothing_can_run(comparison: Comparison) -> list[str]:
    """Why nothing is trained, and what to do. Empty: a row can run here."""
    why = dict.fromkeys(row.unavailable for row in comparison.rows)
    if None in why:
        return []
    cure = f"To see what it can run: {wording.command('doctor')}"
    if any(str(each).startswith("not parallel") for each in why):
        cure = "Ask for fewer replicas, or add --oversubscribe, which lets replicas share cores."
    return [f"NO ROW CAN RUN on this machine, so nothing is trained ({'; '.join(map(str, why))}). {cure}"]


def _other_mathematics(spec: Spec, replicas: int) -> str:
    """What a run that went on with fewer replicas computed otherwise."""
    changes: list[str] = []
    if spec.batch_norm_statistics == "per_replica":
        sizes = f"{spec.global_batch_size // replicas} images and not {spec.per_replica_batch_size}"
        changes.append(f"BatchNorm, where the model has it, normalised the {sizes} of a replica")
    if spec.schedule.scaling != "none":
        changes.append(f"the learning rate was scaled for {wording.count(replicas, 'replica')}")
    return " and ".join(changes) or "sums have fewer parts, so the same mathematics but for rounding"


def _lost(seconds: float) -> str:
    """How much work restarts have lost, in words."""
    if seconds < 0.95:
        return "less than a second of work was lost"
    return f"{seconds:.1f} s of work were lost" if seconds < 9.95 else f"{seconds:.0f} s of work were lost"


def is_reproduction(stored: Stored) -> bool:
    """Whether `reproduce` made it. Then the published report and the scale set repeats, lengths and data."""
    return stored.comparison.argv[:1] == ["reproduce"]


def advice(stored: Stored, usual: str) -> str:
    """What helps: the usual, or the larger scale of a reproduction, if there is one."""
    if not is_reproduction(stored):
        return f" {usual}"
    return "" if {"full", "--scale=full"} & {*stored.comparison.argv} else " A larger --scale helps."


def _ended(stored: Stored, summary: Summary, good: Sequence[RunResult]) -> Iterator[_Caution]:
    """How a row ended, and what it learned."""
    if summary.status in FAILURES:
        epochs = [len(run.epochs) for run in stored.runs[summary.id].values() if run.status == summary.status]
        after = f"after {wording.count(max(epochs), 'epoch')}" if any(epochs) else "before the end of its first epoch"
        yield _Caution(
            summary.name, f"{summary.status} {after}: {summary.reason}.", f"{summary.status}: {summary.reason}.", after
        )
    elif summary.status != "ok":
        yield _Caution(summary.name, *[f"{summary.status}: {summary.reason}."] * 2)
    if found := [words for run in good if (words := _breakdown(run, summary.chance_accuracy))]:
        which = f", in {len(found)} of {len(good)} repeats" if len(good) > 1 else ""
        rest = "scores are those of the end."
        if not is_reproduction(stored):
            rest += " Try a smaller learning rate."
        yield _Caution(
            summary.name,
            f"broke down: {found[0]}{which}. Its {rest}",
            f"broke down. Their {rest}",
            f"{found[0]}{which}",
        )
    if summary.guesses and summary.test.accuracy is not None and summary.chance_accuracy is not None:
        reached, chance = f"{summary.test.accuracy.median:.4f}", f"{summary.chance_accuracy:.4f}"
        rest = (
            f"not shown to be better than guessing, which is right on {chance} of {summary.test_examples} test images."
            f"{advice(stored, 'Train for longer, or test on more images.')}"
        )
        yield _Caution(summary.name, f"its test accuracy of {reached} is {rest}", f"their test accuracy is {rest}", reached)


def _as_asked(summary: Summary, row: Row) -> Iterator[_Caution]:
    """Whether a row ran as its spec says."""
    if summary.repeats_done and summary.oversubscribed:
        on = f"{summary.replicas} replicas on {summary.cores} cores"
        yield _Caution(summary.name, f"oversubscribed, {on}.", "oversubscribed: replicas share cores.", on)
    if summary.repeats_done and row.spec.micro_batches() < (asked := row.spec.micro_batches_asked):
        parts, why = row.spec.micro_batches(), "all parts of every replica's share are of one size."
        yield _Caution(
            summary.name,
            f"its batches of {row.spec.global_batch_size} are cut into {parts} parts, not {asked}: {why}",
            f"their batches are cut into fewer parts than asked: {why}",
            f"{parts}, not {asked}",
        )
    if summary.exceeds_budget:
        yield _Caution(
            summary.name,
            f"used {summary.most_cores_used:.2f} cores of a budget of {summary.cores}.",
            "used more cores than their budget.",
            f"{summary.most_cores_used:.2f} of {summary.cores}",
        )


def _short(stored: Stored, summary: Summary, row: Row) -> Iterator[_Caution]:
    """Whether a row was too short for its times to count."""
    train_examples = stored.comparison.train_examples
    if summary.timed_steps == 0 and row.spec.part == "training":
        why = "the first step of a run is not timed, and there was no other"
        if row.spec.global_batch_size > train_examples > 0:
            why = f"a batch of {row.spec.global_batch_size} is larger than the training split of {train_examples}, and {why}"
        usual = "Use a smaller --batch-size, or more images or --epochs."
        rest = f"no epoch time can be told: {why}.{advice(stored, usual)}"
        yield _Caution(summary.name, rest, rest)
    if summary.too_short:
        yield _Caution(
            summary.name,
            f"{summary.timed_steps} timed batches, of {summary.steps_needed} that show a steady pace: rely on no rate of it."
            f"{advice(stored, 'Make it longer with --epochs.')}",
            "too few timed batches to show a steady pace: rely on no rate of them."
            f"{advice(stored, 'Make them longer with --epochs.')}",
            f"{summary.timed_steps} of {summary.steps_needed}",
        )
    if summary.unwatched:
        said = "too short to tell whether other work disturbed {0}: rely on no time of {0}."
        yield _Caution(summary.name, said.format("it"), said.format("them"))
    if (late := summary.clock_caution) is not None:
        yield _Caution(
            summary.name,
            f"{late}. Some work may not be timed: rely on no time of it.",
            "their losses came late, so some work may not be timed: rely on no time of them.",
            late,
        )


def _other_work(summary: Summary, *, is_side: bool) -> Iterator[_Caution]:
    """Whether a row got its cores. The runs of a side of `regress` or `bisect` have partners, so it is not made again alone."""
    if not summary.disturbed:
        return
    stolen = (summary.noise.cores_stolen if summary.noise is not None else None) or 0.0
    lost, who = max((summary.cores_lost or 0.0, "other work"), (stolen, "the hypervisor"))
    again = "" if is_side else f" {RESUME} --again disturbed makes {{}} repeats again."
    yield _Caution(
        summary.name,
        f"{who} took {cores_words(lost)} cores of its budget of {summary.cores}: rely on no time of it.{again.format('its')}",
        f"{who} took cores of their budgets: rely on no time of them.{again.format('their')}",
        f"{cores_words(lost)} of {summary.cores}",
    )


def _noise(stored: Stored, summary: Summary, alike: Sequence[Summary]) -> Iterator[_Caution]:
    """Whether a row met a busy or a slowed machine. `alike` are the rows on as many cores, itself among them."""
    if (noise := summary.noise) is None:
        return
    cores = stored.comparison.machine.get("logical_cores")
    if noise.load_start is not None and cores and noise.load_start > CROWDED_FROM * cores:
        on = f"on {cores} logical cores."
        yield _Caution(
            summary.name,
            f"began at a load average of {noise.load_start:.1f} {on}",
            f"began at a high load average {on}",
            f"{noise.load_start:.1f}",
        )
    fastest = max(other.noise.frequency_end_mhz or 0.0 for other in alike if other.noise)
    if noise.frequency_end_mhz is not None and noise.frequency_end_mhz < SLOWED_BELOW * fastest:
        yield _Caution(
            summary.name,
            f"its CPUs ended at {noise.frequency_end_mhz:.0f} MHz, those of another row at {fastest:.0f}: their times do not "
            "compare well.",
            "their CPUs ended at a lower clock than those of other rows: their times do not compare well.",
            f"{noise.frequency_end_mhz:.0f} MHz, others {fastest:.0f}",
        )


def _breakdown(run: RunResult, chance: float | None) -> str | None:
    """How far a run ended from its best epoch, in words. None if it did not break down.

    Args:
        chance: accuracy of guessing. None if it is unknown.
    """
    for split, name in (("validation", "validation"), ("train", "training")):
        scores = [(record.epoch, found) for record in run.epochs if (found := getattr(record, split)) is not None]
        if scores:
            last, end = scores[-1]
            at, best = max(scores, key=lambda each: each[1].accuracy)
            learned = chance is None or not is_no_better_than(chance, best.accuracy, best.num_examples)
            if learned and best.accuracy - end.accuracy > FALLEN_FROM and fell(best.accuracy, end.accuracy, end.num_examples):
                return f"{name} accuracy {best.accuracy:.4f} at epoch {at}, {end.accuracy:.4f} at epoch {last}, the last"
            at, least = min(scores, key=lambda each: each[1].loss)
            if split == "train" and end.loss > max(scores[0][1].loss, RISEN_FROM * least.loss):
                return f"{name} loss {least.loss:.4f} at epoch {at}, {end.loss:.4f} at epoch {last}, the last"
    return None


def of_the_data(notes: Sequence[str]) -> list[str]:
    """Classes that may be none, labels that contradict each other, and images that are scored though another split has them."""
    labels = "So some of them have a wrong label, or the classes overlap. convtwins data FOLDER names them."
    seen = "Accuracy on them is no accuracy on new images. convtwins data FOLDER names them."
    return [
        *(f"The data: {note.removeprefix(CAUTION)}." for note in notes if note.startswith(CAUTION)),
        *(f"The data: {note}. {labels}" for note in notes if note.startswith(IN_TWO_CLASSES)),
        *(f"The data: {note}. {seen}" for note in notes if note.endswith(IN_TWO_SPLITS)),
    ]


def of_the_scores(notes: Sequence[str]) -> str:
    """The same for the captions of accuracies, in short."""
    return " ".join(f"{note[0].upper()}{note[1:]}." for note in notes if note.endswith(IN_TWO_SPLITS))


def _shared_cores(stored: Stored) -> list[str]:
    """Budgets that were hardware threads of fewer physical cores."""
    budgets = {
        (len(cpus), physical)
        for runs in stored.runs.values()
        for run in runs.values()
        if (cpus := run.machine.get("cpus")) and (physical := run.machine.get("physical_cores"))
    }
    return [
        f"A budget of {cores} cores was {cores} hardware threads of {physical} physical core{'s' if physical > 1 else ''}. Two "
        "threads of a core do less than two cores."
        for cores, physical in sorted(budgets)
        if physical < cores
    ]


def _unplanned(runs: Sequence[str]) -> list[str]:
    """Results that do not count, as under another plan than they were made by. Who leaves out runs chooses a verdict."""
    if not runs:
        return []
    found = wording.count(len(runs), "result")
    return [f"{found} in {store.RUNS_FOLDER}/ that the plan does not ask for and no figure counts: {wording.listed(runs)}."]


def _not_in_turn(stored: Stored) -> list[str]:
    """Repeats whose runs did not meet the same machine, for example after `--resume`."""
    apart: dict[int, float] = {}
    good = [measured(stored, row) for row in stored.comparison.rows]
    for repeat in stored.wall_seconds:
        runs = [found[repeat] for found in good if repeat in found]
        if seconds := seconds_apart(runs, stored.wall_seconds[repeat]):
            apart[repeat] = seconds
    if not apart:
        return []
    which = ", ".join(str(repeat + 1) for repeat in sorted(apart))
    hours = max(apart.values()) / 3600.0
    return [
        f"Repeat{'s' if len(apart) > 1 else ''} {which}: not all runs were made in turn. Up to {hours:.1f} hours lie between "
        "them. Runs so far apart are in no ratio: they did not meet the same machine."
    ]


def _made_again(stored: Stored) -> list[str]:
    """Repeats that other work disturbed: which ones were made again, and what that changed."""
    replaced = stored.comparison.replaced
    waiting = {each.repeat for each in replaced if _is_waiting(stored, each)}
    said: list[str] = []
    if again := [each for each in replaced if each.repeat not in waiting]:
        disturbed = [f"{each.row}, repeat {each.repeat + 1}: {each.cores_taken:.2f}" for each in again if each.cores_taken]
        said.append(
            f"{_repeats({each.repeat for each in again})} made again with all rows (--again disturbed), "
            f"{wording.count(len(again), 'run')} in all. Other work had taken cores of {len(disturbed)} of them "
            f"({wording.listed(disturbed)}). Of the old runs, pairs that were both undisturbed stay in ratios, and no other "
            f"figure has them. They are kept in runs/*.replaced*.{_replaced_ratios(stored)}"
        )
    if waiting:
        said.append(f"{_repeats(waiting)} set apart (--again disturbed), not yet made again. {RESUME} makes the runs.")
    return said


def _is_waiting(stored: Stored, run: Replaced) -> bool:
    """Whether nothing was made in a run's place yet. A kill may have left the run itself there."""
    in_place = stored.made_from.get(store.result_path(run.row, run.repeat)) == run.sha256
    is_apart = run.row in stored.replaced.get(run.repeat, {}).get(run.number, {})
    return run.repeat not in stored.runs[run.row] or (in_place and not is_apart)


def _repeats(repeats: Iterable[int]) -> str:
    """`Repeats 2, 3 were`."""
    names = [str(repeat + 1) for repeat in sorted(repeats)]
    return f"Repeat{'s' if len(names) > 1 else ''} {', '.join(names)} {'were' if len(names) > 1 else 'was'}"


def _replaced_ratios(stored: Stored) -> str:
    """Whether disturbed repeats favoured a side, in words. Empty if no pair of a verdict was replaced."""
    rows = stored.comparison.rows
    asked = [(two, one) for one, two in itertools.combinations(rows, 2) if matrix.differ_by_contestant(one, two)]
    asked += [
        (serial, row) for row in rows if row.spec.mode != "serial" and (serial := serial_of(stored.comparison, row)) is not None
    ]
    found = [
        f"{slow.id} over {fast.id}: {before:.3f} in {wording.count(pairs, 'replaced pair')}, {after:.3f} now"
        for slow, fast in asked
        if (ratio := replaced_ratio(stored, slow, fast)) is not None
        for pairs, before, after in [ratio]
    ]
    return f" Ratios of epoch seconds in these repeats: {'; '.join(found)}." if found else ""


def signature(stored: Stored) -> list[str]:
    """A signature that is not confirmed."""
    found = stored.signature
    return [found.sentence] if found is not None and not found.confirmed else []


def unsigned(named: Iterable[tuple[object, Stored]]) -> list[str]:
    """A reason of failure for each comparison with a signature that is not confirmed, by its name."""
    return [f"the signature of {name} does not hold" for name, stored in named if signature(stored)]
