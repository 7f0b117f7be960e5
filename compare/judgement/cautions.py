"""Cautions: runs that failed or are missing, exceeded their budget or did not get it."""

from __future__ import annotations

from collections.abc import Sequence

from common.artifacts.schema import RunResult
from common.data.dataset import listed
from compare.core import wording
from compare.execution.store import Stored
from compare.judgement import environments
from compare.judgement.row_figures import Summary
from compare.judgement.summary import FAILURES, measured, seconds_apart

CROWDED_FROM = 2.0
"""Load average over logical cores above which a run began on a busy machine. Earlier runs leave less."""

SLOWED_BELOW = 0.9
"""Clock over that of the fastest row with as many cores, below which a row was slowed."""

FALLEN_FROM = 0.1
"""A run broke down if its accuracy fell by more than this from its best epoch. Small splits waver by less."""

RISEN_FROM = 2.0
"""A run broke down if its last training loss exceeds the first one, and that of the best epoch this many times."""


def _cut_short(summary: Summary, runs: Sequence[RunResult]) -> list[str]:
    """Runs of a row that were cut short and continued or started over."""
    sentences: list[str] = []
    if resumes := sum(run.resumes for run in runs):
        times = "once" if resumes == 1 else f"{resumes} times"
        sentences.append(
            f"{summary.name}: was cut short and continued from a checkpoint {times}. Its wall time leaves out what was lost in "
            "between. Each epoch is timed by itself."
        )
    reasons = dict.fromkeys(run.started_over for run in runs if run.started_over)
    return [*sentences, *(f"{summary.name}: was cut short and started over: {reason}." for reason in reasons)]


def _broke_down(summary: Summary, runs: Sequence[RunResult]) -> list[str]:
    """Whether the final scores of a row are far from those of its best epoch."""
    found = [words for run in runs if (words := _breakdown(run))]
    if not found:
        return []
    which = f" in {len(found)} of {len(runs)} repeats" if len(runs) > 1 else ""
    return [f"{summary.name}: broke down{which}: {found[0]}. Its scores are those of the end. Try a smaller learning rate."]


def _breakdown(run: RunResult) -> str | None:
    """How far a run ended from its best epoch, in words. None if it did not break down."""
    for split, name in (("validation", "validation"), ("train", "training")):
        scores = [(record.epoch, found) for record in run.epochs if (found := getattr(record, split)) is not None]
        if scores:
            last, end = scores[-1]
            at, best = max(scores, key=lambda each: each[1].accuracy)
            if best.accuracy - end.accuracy > FALLEN_FROM:
                return f"{name} accuracy {best.accuracy:.4f} at epoch {at}, {end.accuracy:.4f} at the last, {last}"
            at, least = min(scores, key=lambda each: each[1].loss)
            if split == "train" and end.loss > max(scores[0][1].loss, RISEN_FROM * least.loss):
                return f"{name} loss {least.loss:.4f} at epoch {at}, {end.loss:.4f} at the last, {last}"
    return None


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


def _not_in_turn(stored: Stored) -> list[str]:
    """Repeats whose runs did not meet the same machine, for example after `--resume`."""
    apart: dict[int, float] = {}
    good = [measured(stored, row) for row in stored.comparison.rows]
    for repeat in stored.wall_seconds:
        runs = [found[repeat] for found in good if repeat in found]
        if seconds := seconds_apart(stored, repeat, runs):
            apart[repeat] = seconds
    if not apart:
        return []
    which = ", ".join(str(repeat + 1) for repeat in sorted(apart))
    hours = max(apart.values()) / 3600.0
    return [
        f"Repeat{'s' if len(apart) > 1 else ''} {which}: not all runs were made in turn. Up to {hours:.1f} hours lie between "
        "them. Runs so far apart are in no ratio: they did not meet the same machine."
    ]


def unchecked(stored: Stored) -> list[str]:
    """Stored files that nobody can check."""
    if not stored.unchecked:
        return []
    files = wording.count(len(stored.unchecked), "file")
    return [
        f"{files} without a checksum, of a version that wrote none. Nobody can tell whether they were changed: "
        f"{listed(stored.unchecked)}."
    ]


def sentences(stored: Stored, summaries: Sequence[Summary]) -> list[str]:
    sentences = [
        *(f"Set aside: {reason}" for reason in stored.set_aside),
        *unchecked(stored),
        *_shared_cores(stored),
        *_not_in_turn(stored),
    ]
    sentences += environments.cautions(stored)
    for row, summary in zip(stored.comparison.rows, summaries, strict=True):
        sentences += _cut_short(summary, list(stored.runs[summary.id].values()))
        if summary.status in FAILURES:
            after = wording.count(summary.epochs_done, "epoch")
            sentences.append(f"{summary.name}: {summary.status} after {after}: {summary.reason}.")
        elif summary.status != "ok":
            sentences.append(f"{summary.name}: {summary.status}: {summary.reason}.")
        sentences += _broke_down(summary, list(measured(stored, row).values()))
        if summary.repeats_done and summary.oversubscribed:
            sentences.append(f"{summary.name}: oversubscribed, {summary.replicas} replicas on {summary.cores} cores.")
        if summary.repeats_done and row.spec.micro_batches() < (asked := row.spec.micro_batches_asked):
            sentences.append(
                f"{summary.name}: its batches of {row.spec.global_batch_size} are cut into {row.spec.micro_batches()} parts, "
                f"not {asked}: all parts of every replica's share are of one size."
            )
        if summary.too_short:
            sentences.append(
                f"{summary.name}: {summary.timed_steps} timed batches, of {summary.steps_needed} that show a steady pace: rely "
                "on no rate of it, and make it longer with --epochs."
            )
        if summary.unwatched:
            sentences.append(f"{summary.name}: too short to tell whether other work disturbed it: rely on no time of it.")
        if summary.clock_caution is not None:
            sentences.append(f"{summary.name}: {summary.clock_caution}: rely on no time of it.")
        if summary.exceeds_budget:
            sentences.append(f"{summary.name}: used {summary.cores_used:.2f} cores of a budget of {summary.cores}.")
        if summary.disturbed and not summary.stolen:
            sentences.append(
                f"{summary.name}: other work took {summary.cores_lost:.2f} cores of its budget of {summary.cores}: rely "
                "on no time of it."
            )
        sentences += _noise(stored, summary, [other for other in summaries if other.cores == summary.cores])
    return sentences


def _noise(stored: Stored, summary: Summary, alike: Sequence[Summary]) -> list[str]:
    """What the machine did beside a row, where it is too much; `alike` are the rows on as many cores, itself among them."""
    if summary.noise is None:
        return []
    noise, sentences = summary.noise, list[str]()
    if summary.stolen:
        sentences.append(
            f"{summary.name}: the hypervisor took {noise.cores_stolen:.2f} cores of its budget of {summary.cores}: rely on no "
            "time of it."
        )
    cores = stored.comparison.machine.get("logical_cores")
    if noise.load_start is not None and cores and noise.load_start > CROWDED_FROM * cores:
        sentences.append(f"{summary.name}: began at a load average of {noise.load_start:.1f} on {cores} logical cores.")
    fastest = max(other.noise.frequency_end_mhz or 0.0 for other in alike if other.noise)
    if noise.frequency_end_mhz is not None and noise.frequency_end_mhz < SLOWED_BELOW * fastest:
        sentences.append(
            f"{summary.name}: its CPUs ended at {noise.frequency_end_mhz:.0f} MHz, those of another row at {fastest:.0f}: "
            "their times do not compare well."
        )
    return sentences
