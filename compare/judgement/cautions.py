"""Cautions: runs that failed or are missing, exceeded their budget or did not get it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from common.artifacts.schema import RunResult
from common.data.sources.splits import CAUTION, IN_TWO_CLASSES, IN_TWO_SPLITS
from common.spec import Spec
from compare.core import wording
from compare.core.statistics import is_no_better_than_chance, is_significantly_lower
from compare.execution import matrix, store
from compare.execution.matrix import Row
from compare.execution.store import Comparison, ReplacedRun, StoredComparison
from compare.judgement import environments
from compare.judgement.row_figures import FAILURES, Summary
from compare.judgement.run_figures import cores_words
from compare.judgement.run_pairs import finished_runs, interleaving_gap_seconds, replaced_ratio, serial_row_of

BUSY_LOAD_PER_CORE = 2.0
"""Load average over logical cores above which a run began on a busy machine. Earlier runs leave less."""

RESUME_PLACEHOLDER = "run --resume DIR"
"""Placeholder of the command that resumes a comparison. A report replaces it, because only a report knows the folder."""

THROTTLED_BELOW = 0.9
"""Ratio of a row's CPU clock to that of the fastest row on as many cores, below which the row was throttled."""

MAX_ACCURACY_DROP = 0.1
"""Drop of accuracy from the best epoch above which a run broke down, if chance does not explain it."""

MAX_LOSS_RISE = 2.0
"""Ratio of the last training loss to that of the best epoch above which a run broke down, if it also exceeds the first one."""


class _Caution(NamedTuple):
    """A warning about one row. Rows with the same `several` share one sentence."""

    row: str
    one: str
    """The sentence if no other row has the same warning."""
    several: str
    figure: str = ""
    """The row's own figure, behind its name in a sentence on several rows."""


def sentences(stored: StoredComparison, summaries: Sequence[Summary]) -> list[str]:
    """Cautions on the whole comparison, then on its rows. Rows with the same caution share one sentence with their number."""
    general = [
        *signature(stored),
        *(f"Set aside: {reason}" for reason in stored.set_aside),
        *_unplanned(stored.unplanned),
        *data_cautions(stored.comparison.data_notes),
        *_shared_cores(stored),
        *_not_interleaved(stored),
        *_reruns(stored),
        *environments.cautions(stored),
    ]
    by_sentence: dict[str, list[_Caution]] = {}
    for row, summary in zip(stored.comparison.rows, summaries, strict=True):
        good = list(finished_runs(stored, row).values())
        same_cores = [other for other in summaries if other.cores == summary.cores]
        for caution in (
            *_interruptions(summary, list(stored.runs[summary.id].values())),
            *_outcome(stored, summary, good),
            *_deviations_from_spec(summary, row),
            *_too_short(stored, summary, row),
            *_disturbance(summary, is_side=stored.comparison.argv[:1] in (["regress"], ["bisect"])),
            *_noise(stored, summary, same_cores),
        ):
            by_sentence.setdefault(caution.several, []).append(caution)
    return [*general, *(_merge_cautions(group, len(summaries)) for group in by_sentence.values())]


def _merge_cautions(cautions: Sequence[_Caution], num_rows: int) -> str:
    names = dict.fromkeys(f"{caution.row} ({caution.figure})" if caution.figure else caution.row for caution in cautions)
    if len(names) == 1:
        return f"{cautions[0].row}: {cautions[0].one}"
    which = (
        ("Both rows" if num_rows == 2 else f"All {num_rows} rows")
        if len(names) == num_rows
        else f"{len(names)} of {num_rows} rows"
    )
    return f"{which}: {cautions[0].several} These are: {'; '.join(names)}."


def _interruptions(summary: Summary, runs: Sequence[RunResult]) -> Iterator[_Caution]:
    """Cautions on runs that were interrupted, restarted or started over."""
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
        lost_work = _lost_work_words(sum(death.seconds_lost for death in deaths))
        why = wording.listed(death.words for death in deaths)
        options = " and ".join(sorted({"--elastic" if death.replicas else "--restarts" for death in deaths}, reverse=True))
        text = f"restarted by itself ({options}): {why}; {lost_work}."
        yield _Caution(summary.name, f"was {text}", f"restarted by themselves ({options}).", f"{times}; {lost_work}")
    for run in runs:
        if fewer := [death for death in run.restarts if death.replicas]:
            left = f"{', then '.join(str(death.replicas) for death in fewer)} of {run.spec.replicas}"
            epochs = wording.count(fewer[0].epochs, "epoch")
            yield _Caution(
                summary.name,
                f"went on with {left} replicas (--elastic), from its last checkpoint when it had finished {epochs}: "
                f"{_changed_mathematics(run.spec, fewer[-1].replicas or 1)}. That run does not count.",
                "went on with fewer replicas (--elastic). These runs do not count.",
                f"{left} when it had finished {epochs}",
            )
    for reason in dict.fromkeys(run.started_over for run in runs if run.started_over):
        text = f"started over: {reason}."
        yield _Caution(summary.name, f"was {text}", text)


def nothing_can_run(comparison: Comparison) -> list[str]:
    """Why nothing is trained, and what to do. Empty: a row can run here."""
    reasons = dict.fromkeys(row.unavailable for row in comparison.rows)
    if None in reasons:
        return []
    cure = f"To see what it can run: {wording.command('doctor')}"
    if any(str(reason).startswith("not parallel") for reason in reasons):
        cure = "Ask for fewer replicas, or add --oversubscribe, which lets replicas share cores."
    return [f"NO ROW CAN RUN on this machine, so nothing is trained ({'; '.join(map(str, reasons))}). {cure}"]


def _changed_mathematics(spec: Spec, replicas: int) -> str:
    """Differences in the mathematics of a run that continued with fewer replicas."""
    changes: list[str] = []
    if spec.batch_norm_statistics == "per_replica":
        sizes = f"{spec.global_batch_size // replicas} images and not {spec.per_replica_batch_size}"
        changes.append(f"BatchNorm, where the model has it, normalised the {sizes} of a replica")
    if spec.schedule.scaling != "none":
        changes.append(f"the learning rate was scaled for {wording.count(replicas, 'replica')}")
    return " and ".join(changes) or "sums have fewer parts, so the same mathematics but for rounding"


def _lost_work_words(seconds: float) -> str:
    """The work that restarts lost, in words."""
    if seconds < 0.95:
        return "less than a second of work was lost"
    return f"{seconds:.1f} s of work were lost" if seconds < 9.95 else f"{seconds:.0f} s of work were lost"


def is_reproduction(stored: StoredComparison) -> bool:
    """Whether `reproduce` made the comparison. Then the published report and the scale set repeats, lengths and data."""
    return stored.comparison.argv[:1] == ["reproduce"]


def advice(stored: StoredComparison, usual: str) -> str:
    """Advice for a caution: the usual one, or the larger scale of a reproduction if there is one."""
    if not is_reproduction(stored):
        return f" {usual}"
    return "" if {"full", "--scale=full"} & {*stored.comparison.argv} else " A larger --scale helps."


def _outcome(stored: StoredComparison, summary: Summary, good: Sequence[RunResult]) -> Iterator[_Caution]:
    """Cautions on how a row ended and on the accuracy it reached."""
    if summary.status in FAILURES:
        epochs = [len(run.epochs) for run in stored.runs[summary.id].values() if run.status == summary.status]
        after = f"after {wording.count(max(epochs), 'epoch')}" if any(epochs) else "before the end of its first epoch"
        yield _Caution(
            summary.name, f"{summary.status} {after}: {summary.reason}.", f"{summary.status}: {summary.reason}.", after
        )
    elif summary.status != "ok":
        yield _Caution(summary.name, *[f"{summary.status}: {summary.reason}."] * 2)
    if breakdowns := [words for run in good if (words := _breakdown(run, summary.chance_accuracy))]:
        which = f", in {len(breakdowns)} of {len(good)} repeats" if len(good) > 1 else ""
        rest = "scores are those of the end."
        if not is_reproduction(stored):
            rest += " Try a smaller learning rate."
        yield _Caution(
            summary.name,
            f"broke down: {breakdowns[0]}{which}. Its {rest}",
            f"broke down. Their {rest}",
            f"{breakdowns[0]}{which}",
        )
    if summary.guesses and summary.test.accuracy is not None and summary.chance_accuracy is not None:
        reached, chance = f"{summary.test.accuracy.median:.4f}", f"{summary.chance_accuracy:.4f}"
        rest = (
            f"not shown to be better than guessing, which is right on {chance} of {summary.test_examples} test images."
            f"{advice(stored, 'Train for longer, or test on more images.')}"
        )
        yield _Caution(summary.name, f"its test accuracy of {reached} is {rest}", f"their test accuracy is {rest}", reached)


def _deviations_from_spec(summary: Summary, row: Row) -> Iterator[_Caution]:
    """Cautions on a row that did not run as its spec says."""
    if summary.repeats_done and summary.oversubscribed:
        on = f"{summary.replicas} replicas on {summary.cores} cores"
        yield _Caution(summary.name, f"oversubscribed, {on}.", "oversubscribed: replicas share cores.", on)
    if summary.repeats_done and row.spec.micro_batches() < (requested := row.spec.micro_batches_requested):
        parts, why = row.spec.micro_batches(), "all parts of every replica's share are of one size."
        yield _Caution(
            summary.name,
            f"its batches of {row.spec.global_batch_size} are cut into {parts} parts, not {requested}: {why}",
            f"their batches are cut into fewer parts than asked: {why}",
            f"{parts}, not {requested}",
        )
    if summary.exceeds_budget:
        yield _Caution(
            summary.name,
            f"used {summary.most_cores_used:.2f} cores of a budget of {summary.cores}.",
            "used more cores than their budget.",
            f"{summary.most_cores_used:.2f} of {summary.cores}",
        )


def _too_short(stored: StoredComparison, summary: Summary, row: Row) -> Iterator[_Caution]:
    """Cautions on a row that was too short for its times to count."""
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
        text = "too short to tell whether other work disturbed {0}: rely on no time of {0}."
        yield _Caution(summary.name, text.format("it"), text.format("them"))
    if (late := summary.clock_caution) is not None:
        yield _Caution(
            summary.name,
            f"{late}. Some work may not be timed: rely on no time of it.",
            "their losses came late, so some work may not be timed: rely on no time of them.",
            late,
        )


def _disturbance(summary: Summary, *, is_side: bool) -> Iterator[_Caution]:
    """A caution on a row that did not get its cores. Runs of `regress` and `bisect` are paired, so none is repeated alone."""
    if not summary.disturbed:
        return
    stolen = (summary.noise.cores_stolen if summary.noise is not None else None) or 0.0
    cores_lost, who = max((summary.cores_lost or 0.0, "other work"), (stolen, "the hypervisor"))
    again = "" if is_side else f" {RESUME_PLACEHOLDER} --again disturbed makes {{}} repeats again."
    yield _Caution(
        summary.name,
        f"{who} took {cores_words(cores_lost)} cores of its budget of {summary.cores}: rely on no time of it."
        f"{again.format('its')}",
        f"{who} took cores of their budgets: rely on no time of them.{again.format('their')}",
        f"{cores_words(cores_lost)} of {summary.cores}",
    )


def _noise(stored: StoredComparison, summary: Summary, same_cores: Sequence[Summary]) -> Iterator[_Caution]:
    """Cautions on a busy or throttled machine.

    Args:
        same_cores: rows on as many cores, this one included.
    """
    if (noise := summary.noise) is None:
        return
    cores = stored.comparison.machine.get("logical_cores")
    if noise.load_start is not None and cores and noise.load_start > BUSY_LOAD_PER_CORE * cores:
        on = f"on {cores} logical cores."
        yield _Caution(
            summary.name,
            f"began at a load average of {noise.load_start:.1f} {on}",
            f"began at a high load average {on}",
            f"{noise.load_start:.1f}",
        )
    fastest = max(other.noise.frequency_end_mhz or 0.0 for other in same_cores if other.noise)
    if noise.frequency_end_mhz is not None and noise.frequency_end_mhz < THROTTLED_BELOW * fastest:
        yield _Caution(
            summary.name,
            f"its CPUs ended at {noise.frequency_end_mhz:.0f} MHz, those of another row at {fastest:.0f}: their times do not "
            "compare well.",
            "their CPUs ended at a lower clock than those of other rows: their times do not compare well.",
            f"{noise.frequency_end_mhz:.0f} MHz, others {fastest:.0f}",
        )


def _breakdown(run: RunResult, chance: float | None) -> str | None:
    """The distance of a run's end from its best epoch, in words. None if the run did not break down.

    Args:
        chance: accuracy of guessing. None if it is unknown.
    """
    for split, name in (("validation", "validation"), ("train", "training")):
        scores = [(record.epoch, metrics) for record in run.epochs if (metrics := getattr(record, split)) is not None]
        if scores:
            last, end = scores[-1]
            at, best = max(scores, key=lambda epoch_scores: epoch_scores[1].accuracy)
            learned = chance is None or not is_no_better_than_chance(chance, best.accuracy, best.num_examples)
            if (
                learned
                and best.accuracy - end.accuracy > MAX_ACCURACY_DROP
                and is_significantly_lower(best.accuracy, end.accuracy, end.num_examples)
            ):
                return f"{name} accuracy {best.accuracy:.4f} at epoch {at}, {end.accuracy:.4f} at epoch {last}, the last"
            at, least = min(scores, key=lambda epoch_scores: epoch_scores[1].loss)
            if split == "train" and end.loss > max(scores[0][1].loss, MAX_LOSS_RISE * least.loss):
                return f"{name} loss {least.loss:.4f} at epoch {at}, {end.loss:.4f} at epoch {last}, the last"
    return None


def data_cautions(notes: Sequence[str]) -> list[str]:
    """Classes that may be none, labels that contradict each other, and images that are scored though another split has them."""
    label_advice = "So some of them have a wrong label, or the classes overlap. convtwins data FOLDER names them."
    leak_advice = "Accuracy on them is no accuracy on new images. convtwins data FOLDER names them."
    return [
        *(f"The data: {note.removeprefix(CAUTION)}." for note in notes if note.startswith(CAUTION)),
        *(f"The data: {note}. {label_advice}" for note in notes if note.startswith(IN_TWO_CLASSES)),
        *(f"The data: {note}. {leak_advice}" for note in notes if note.endswith(IN_TWO_SPLITS)),
    ]


def score_caution(notes: Sequence[str]) -> str:
    """A short caution for the captions of accuracies, on images that are scored though another split has them."""
    return " ".join(f"{note[0].upper()}{note[1:]}." for note in notes if note.endswith(IN_TWO_SPLITS))


def _shared_cores(stored: StoredComparison) -> list[str]:
    """Cautions on core budgets that were hardware threads of fewer physical cores."""
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
    """A caution on results of runs that the plan does not contain. Leaving out runs would be choosing a verdict."""
    if not runs:
        return []
    results = wording.count(len(runs), "result")
    return [f"{results} in {store.RUNS_FOLDER}/ that the plan does not ask for and no figure counts: {wording.listed(runs)}."]


def _not_interleaved(stored: StoredComparison) -> list[str]:
    """A caution on repeats whose runs were not interleaved, for example after `--resume`."""
    gaps: dict[int, float] = {}
    good = [finished_runs(stored, row) for row in stored.comparison.rows]
    for repeat in stored.wall_seconds:
        runs = [repeats[repeat] for repeats in good if repeat in repeats]
        if seconds := interleaving_gap_seconds(runs, stored.wall_seconds[repeat]):
            gaps[repeat] = seconds
    if not gaps:
        return []
    which = ", ".join(str(repeat + 1) for repeat in sorted(gaps))
    hours = max(gaps.values()) / 3600.0
    return [
        f"Repeat{'s' if len(gaps) > 1 else ''} {which}: not all runs were made in turn. Up to {hours:.1f} hours lie between "
        "them. Runs so far apart are in no ratio: they did not meet the same machine."
    ]


def _reruns(stored: StoredComparison) -> list[str]:
    """Cautions on disturbed repeats: which ones were rerun, and what that changed."""
    replaced = stored.comparison.replaced
    pending = {run.repeat for run in replaced if _is_pending(stored, run)}
    sentences: list[str] = []
    if rerun := [run for run in replaced if run.repeat not in pending]:
        disturbed = [f"{run.row}, repeat {run.repeat + 1}: {run.cores_taken:.2f}" for run in rerun if run.cores_taken]
        sentences.append(
            f"{_repeats({run.repeat for run in rerun})} made again with all rows (--again disturbed), "
            f"{wording.count(len(rerun), 'run')} in all. Other work had taken cores of {len(disturbed)} of them "
            f"({wording.listed(disturbed)}). Of the old runs, pairs that were both undisturbed stay in ratios, and no other "
            f"figure has them. They are kept in runs/*.replaced*.{_replaced_ratios(stored)}"
        )
    if pending:
        sentences.append(
            f"{_repeats(pending)} set apart (--again disturbed), not yet made again. {RESUME_PLACEHOLDER} makes the runs."
        )
    return sentences


def _is_pending(stored: StoredComparison, run: ReplacedRun) -> bool:
    """Whether a replaced run has no new result yet. A kill may have left the old result in its place."""
    in_place = stored.made_from.get(store.result_path(run.row, run.repeat)) == run.sha256
    is_archived = run.row in stored.replaced.get(run.repeat, {}).get(run.number, {})
    return run.repeat not in stored.runs[run.row] or (in_place and not is_archived)


def _repeats(repeats: Iterable[int]) -> str:
    """Repeats as a subject with its verb: `Repeats 2, 3 were`."""
    names = [str(repeat + 1) for repeat in sorted(repeats)]
    return f"Repeat{'s' if len(names) > 1 else ''} {', '.join(names)} {'were' if len(names) > 1 else 'was'}"


def _replaced_ratios(stored: StoredComparison) -> str:
    """Ratios before and after the rerun, which show whether disturbed repeats favoured a side. Empty if no pair changed."""
    rows = stored.comparison.rows
    pairs = [(other, one) for one, other in itertools.combinations(rows, 2) if matrix.same_except_contestant(one, other)]
    pairs += [
        (serial, row) for row in rows if row.spec.is_parallel and (serial := serial_row_of(stored.comparison, row)) is not None
    ]
    ratios = [
        f"{slow.id} over {fast.id}: {before:.3f} in {wording.count(num_pairs, 'replaced pair')}, {after:.3f} now"
        for slow, fast in pairs
        if (ratio := replaced_ratio(stored, slow, fast)) is not None
        for num_pairs, before, after in [ratio]
    ]
    return f" Ratios of epoch seconds in these repeats: {'; '.join(ratios)}." if ratios else ""


def signature(stored: StoredComparison) -> list[str]:
    """The sentence on a signature that is not confirmed. Empty without one."""
    record = stored.signature
    return [record.sentence] if record is not None and not record.confirmed else []


def unconfirmed_signatures(named: Iterable[tuple[object, StoredComparison]]) -> list[str]:
    """A reason of failure for each comparison with a signature that is not confirmed, by its name."""
    return [f"the signature of {name} does not hold" for name, stored in named if signature(stored)]
