"""Cautions: runs that failed or are missing, exceeded their budget or did not get it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from common.artifacts.schema import RunResult
from common.data import notes as data_notes
from common.machine import interference
from common.spec import Spec
from compare.judgement import environments, run_figures, slices
from compare.judgement.row_figures import FAILURES, Summary
from compare.judgement.run_pairs import finished_runs, interleaving_gap_seconds, replaced_ratio, serial_row_of
from compare.judgement.statement import Advice, Level, Statement
from compare.results import store
from compare.results.store import Comparison, ReplacedRun, StoredComparison
from compare.running import matrix
from compare.running.matrix import Row
from compare.statistics.statistics import is_no_better_than_chance, is_significantly_lower

BUSY_LOAD_PER_CORE = 2.0
"""Load average over logical cores above which a run began on a busy machine. Earlier runs leave less."""

AGAIN_DISTURBED = ("--again", "disturbed")
"""Options that make disturbed repeats again."""

THROTTLED_BELOW = 0.9
"""Ratio of a row's CPU clock to that of the fastest row on as many cores, below which the row was throttled."""

MAX_ACCURACY_DROP = 0.1
"""Drop of accuracy from the best epoch above which a run broke down, if chance does not explain it."""

MAX_LOSS_RISE = 2.0
"""Ratio of the last training loss to that of the best epoch above which a run broke down, if it also exceeds the first one."""

LEAST_FAIR_TURNS = 2
"""Least number of turns that a row begins by the plan, for a caution on more of them. With fewer, orders are not even yet."""


def statements(stored: StoredComparison, summaries: Sequence[Summary]) -> list[Statement]:
    """Cautions on the whole comparison, then on its rows."""
    cautions = [
        *signature(stored),
        *(Statement(kind="set_aside", level="trouble", values={"reason": fault.reason}) for fault in stored.set_aside),
        *_unplanned(stored.unplanned),
        *data_cautions(stored.comparison.data_notes),
        *_shared_cores(stored),
        *_not_interleaved(stored),
        *_out_of_step(stored),
        *_always_first(stored),
        *_made_later(stored),
        *_reruns(stored),
        *environments.cautions(stored),
    ]
    longest = longer(stored, summaries)
    for row, summary in zip(stored.comparison.rows, summaries, strict=True):
        good = list(finished_runs(stored, row).values())
        same_cores = [other for other in summaries if other.cores == summary.cores]
        cautions += [
            *_interruptions(row.id, list(stored.runs[row.id].values())),
            *_outcome(stored, summary, good),
            *_deviations_from_spec(summary, row),
            *_too_short(stored, summary, row, longest),
            *_disturbance(summary, is_side=stored.comparison.argv[:1] in (["regress"], ["bisect"])),
            *_noise(stored, summary, same_cores),
        ]
    return cautions


def _about(row: str, kind: str, *, advice: Advice | None = None, level: Level = "caution", **values: JsonValue) -> Statement:
    return Statement(kind=kind, level=level, rows=(row,), values=values, advice=advice)


def _interruptions(row: str, runs: Sequence[RunResult]) -> Iterator[Statement]:
    """Cautions on runs that were interrupted, restarted or started over."""
    if resumes := sum(run.resumes for run in runs):
        yield _about(row, "resumed", resumes=resumes)
    if deaths := [death for run in runs for death in run.restarts]:
        yield _about(
            row,
            "restarted",
            options=[*sorted({"--elastic" if death.replicas else "--restarts" for death in deaths}, reverse=True)],
            restarts=len(deaths),
            reasons=[death.words for death in deaths],
            seconds_lost=sum(death.seconds_lost for death in deaths),
        )
    for run in runs:
        if fewer := [death for death in run.restarts if death.replicas]:
            values: dict[str, JsonValue] = {
                "replicas": [death.replicas for death in fewer],
                "planned_replicas": run.spec.replicas,
                "epochs": fewer[0].epochs,
                **_changed_mathematics(run.spec, fewer[-1].replicas or 1),
            }
            yield Statement(kind="fewer_replicas", level="caution", rows=(row,), values=values)
    for reason in dict.fromkeys(run.started_over for run in runs if run.started_over):
        yield _about(row, "started_over", reason=reason)


def nothing_can_run(comparison: Comparison) -> list[Statement]:
    """Why nothing is trained, and what to do. Empty: a row can run here."""
    refusals = [row.unavailable for row in comparison.rows if row.unavailable is not None]
    if len(refusals) < len(comparison.rows):
        return []
    is_short_of_cores = any(refusal.status == "not parallel" for refusal in refusals)
    return [
        Statement(
            kind="nothing_can_run",
            level="trouble",
            values={"reasons": list(dict.fromkeys(map(str, refusals)))},
            advice=Advice(kind="share_cores" if is_short_of_cores else "doctor"),
        )
    ]


def _changed_mathematics(spec: Spec, replicas: int) -> dict[str, JsonValue]:
    """Differences in the mathematics of a run that continued with fewer replicas."""
    values: dict[str, JsonValue] = {}
    if spec.batch_norm_statistics == "per_replica":
        values["batch_norm_images"] = spec.global_batch_size // replicas
        values["planned_batch_norm_images"] = spec.per_replica_batch_size
    if spec.schedule.scaling != "none":
        values["learning_rate_for_replicas"] = replicas
    return values


def is_reproduction(stored: StoredComparison) -> bool:
    """Whether `reproduce` made the comparison. Then the published report and the scale set repeats, lengths and data."""
    return stored.comparison.argv[:1] == ["reproduce"]


def advice(stored: StoredComparison, usual: str, options: tuple[str, ...] = ()) -> Advice | None:
    """Advice for a caution: the usual kind with its options, or the larger scale of a reproduction if there is one."""
    if not is_reproduction(stored):
        return Advice(kind=usual, options=options)
    return None if {"full", "--scale=full"} & {*stored.comparison.argv} else Advice(kind="larger_scale")


def _outcome(stored: StoredComparison, summary: Summary, good: Sequence[RunResult]) -> Iterator[Statement]:
    """Cautions on how a row ended and on the accuracy it reached."""
    if summary.status in FAILURES:
        epochs = [len(run.epochs) for run in stored.runs[summary.id].values() if run.status == summary.status]
        yield _about(
            summary.id,
            "failed",
            level="trouble",
            status=summary.status,
            reason=summary.reason,
            epochs=max(epochs, default=0),
        )
    elif summary.status != "ok":
        yield _about(summary.id, "not_finished", status=summary.status, reason=summary.reason)
    if breakdowns := [values for run in good if (values := _breakdown(run, summary.chance_accuracy))]:
        yield Statement(
            kind="broke_down",
            level="caution",
            rows=(summary.id,),
            values={**breakdowns[0], "broken": len(breakdowns), "repeats": len(good)},
            advice=None if is_reproduction(stored) else Advice(kind="smaller_learning_rate"),
        )
    if summary.guesses and summary.test.accuracy is not None and summary.chance_accuracy is not None:
        yield _about(
            summary.id,
            "guesses",
            advice=advice(stored, "train_longer"),
            accuracy=summary.test.accuracy.median,
            chance=summary.chance_accuracy,
            images=summary.test_examples,
        )


def _deviations_from_spec(summary: Summary, row: Row) -> Iterator[Statement]:
    """Cautions on a row that did not run as its spec says."""
    if summary.repeats_done and summary.oversubscribed:
        yield _about(summary.id, "oversubscribed", replicas=summary.replicas, cores=summary.cores)
    if summary.repeats_done and row.spec.micro_batches() < (requested := row.spec.micro_batches_requested):
        yield _about(
            summary.id,
            "fewer_micro_batches",
            batch=row.spec.global_batch_size,
            parts=row.spec.micro_batches(),
            requested=requested,
        )
    if summary.exceeds_budget:
        yield _about(summary.id, "exceeds_budget", cores_used=summary.most_cores_used, cores=summary.cores)


def longer(stored: StoredComparison, summaries: Sequence[Summary]) -> Advice | None:
    """Advice for rows whose repeats were too short to be watched: a length that is enough for all. None: none was."""
    rows = {row.id: row for row in stored.comparison.rows}
    options = [
        run_figures.longer(rows[summary.id].spec, summary.shortest_training_seconds)
        for summary in summaries
        if summary.unwatched and summary.shortest_training_seconds is not None
    ]
    if not options:
        return None
    return advice(stored, "train_for", max(options, key=lambda option: int(option[1].removeprefix("steps="))))


def _too_short(stored: StoredComparison, summary: Summary, row: Row, longer: Advice | None) -> Iterator[Statement]:
    """Cautions on a row that was too short for its times to count.

    Args:
        longer: advice for a row that was too short to be watched.
    """
    if summary.timed_steps == 0 and row.spec.part == "training":
        yield _about(
            summary.id,
            "nothing_timed",
            advice=advice(stored, "more_steps"),
            batch=row.spec.global_batch_size,
            images=stored.comparison.train_examples,
        )
    if summary.too_short:
        yield _about(
            summary.id,
            "too_short",
            advice=advice(stored, "more_epochs"),
            batches=summary.timed_steps,
            needed=summary.steps_needed,
        )
    if summary.unwatched:
        yield _about(
            summary.id,
            "unwatched",
            advice=longer,
            unwatched=summary.unwatched_repeats,
            repeats=summary.repeats_done,
            seconds=summary.shortest_training_seconds,
        )
    if summary.clock_caution is not None:
        yield _about(summary.id, "late_losses", reason=summary.clock_caution)


def _disturbance(summary: Summary, *, is_side: bool) -> Iterator[Statement]:
    """A caution on a row that did not get its cores. Runs of `regress` and `bisect` are paired, so none is repeated alone."""
    if not summary.disturbed:
        return
    stolen = (summary.noise.cores_stolen if summary.noise is not None else None) or 0.0
    cores_taken, taker = max((summary.cores_lost or 0.0, "other work"), (stolen, "the hypervisor"))
    again = None if is_side else Advice(kind="again", options=AGAIN_DISTURBED)
    yield _about(summary.id, "disturbed", advice=again, by=taker, cores_taken=cores_taken, cores=summary.cores)


def _noise(stored: StoredComparison, summary: Summary, same_cores: Sequence[Summary]) -> Iterator[Statement]:
    """Cautions on a busy or throttled machine.

    Args:
        same_cores: rows on as many cores, this one included.
    """
    if (noise := summary.noise) is None:
        return
    cores = stored.comparison.machine.get("logical_cores")
    if noise.load_start is not None and cores and noise.load_start > BUSY_LOAD_PER_CORE * cores:
        yield _about(summary.id, "busy", load=noise.load_start, logical_cores=cores)
    fastest = max(other.noise.frequency_end_mhz or 0.0 for other in same_cores if other.noise)
    if noise.frequency_end_mhz is not None and noise.frequency_end_mhz < THROTTLED_BELOW * fastest:
        yield _about(summary.id, "throttled", mhz=noise.frequency_end_mhz, fastest_mhz=fastest)


def busy_now(cores_of_others: float, cores: int, description: Mapping[str, Any]) -> list[Statement]:
    """A caution on other programs before the first run. Empty if they leave a run its cores.

    Args:
        cores_of_others: cores that they use.
        cores: the most cores that a run has.
        description: `machine.describe` of this machine.
    """
    if interference.cores_taken(cores_of_others, cores, description) <= interference.DISTURBED_FROM:
        return []
    logical_cores = description.get("logical_cores") or cores
    values: dict[str, JsonValue] = {"share": min(cores_of_others / logical_cores, 1.0), "logical_cores": logical_cores}
    return [Statement(kind="busy_now", level="caution", values=values)]


def _breakdown(run: RunResult, chance: float | None) -> dict[str, JsonValue] | None:
    """The distance of a run's end from its best epoch. None if the run did not break down.

    Args:
        chance: accuracy of guessing. None if it is unknown.
    """

    def values(score: str, split: str, best: float, best_epoch: int, end: float, last: int) -> dict[str, JsonValue]:
        return {"score": f"{split} {score}", "best": best, "best_epoch": best_epoch, "end": end, "last_epoch": last}

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
                return values("accuracy", name, best.accuracy, at, end.accuracy, last)
            at, least = min(scores, key=lambda epoch_scores: epoch_scores[1].loss)
            if split == "train" and end.loss > max(scores[0][1].loss, MAX_LOSS_RISE * least.loss):
                return values("loss", name, least.loss, at, end.loss, last)
    return None


def data_cautions(notes: Sequence[str]) -> list[Statement]:
    """Classes that may be none, labels that contradict each other, and images that are scored though another split has them."""
    cautions = [(data_notes.kind(note), data_notes.words(note)) for note in notes]
    return [
        Statement(kind=kind, level="caution", values={"note": words})
        for caution in ("data", "contradicting_labels", "images_in_two_splits")
        for kind, words in cautions
        if kind == caution
    ]


def score_caution(notes: Sequence[str]) -> str:
    """A short caution for the captions of accuracies, on images that are scored though another split has them."""
    return " ".join(f"{note[0].upper()}{note[1:]}." for note in notes if data_notes.kind(note) == "images_in_two_splits")


def _shared_cores(stored: StoredComparison) -> list[Statement]:
    """Cautions on core budgets that were hardware threads of fewer physical cores."""
    budgets = {
        (len(cpus), physical)
        for runs in stored.runs.values()
        for run in runs.values()
        if (cpus := run.machine.get("cpus")) and (physical := run.machine.get("physical_cores"))
    }
    return [
        Statement(kind="shared_cores", level="caution", values={"cores": cores, "physical_cores": physical})
        for cores, physical in sorted(budgets)
        if physical < cores
    ]


def _unplanned(runs: Sequence[str]) -> list[Statement]:
    """A caution on results of runs that the plan does not contain. Leaving out runs would be choosing a verdict."""
    return [Statement(kind="unplanned", level="caution", values={"runs": [*runs]})] if runs else []


def _not_interleaved(stored: StoredComparison) -> list[Statement]:
    """A caution on repeats whose runs were not interleaved, for example after `--resume`."""
    gaps: dict[int, float] = {}
    good = [finished_runs(stored, row) for row in stored.comparison.rows]
    for repeat in stored.wall_seconds:
        runs = [repeats[repeat] for repeats in good if repeat in repeats]
        if seconds := interleaving_gap_seconds(runs, stored.wall_seconds[repeat]):
            gaps[repeat] = seconds
    values: dict[str, JsonValue] = {"repeats": _numbers(gaps), "hours": max(gaps.values(), default=0.0) / 3600.0}
    return [Statement(kind="not_interleaved", level="caution", values=values)] if gaps else []


def _out_of_step(stored: StoredComparison) -> list[Statement]:
    """Cautions on rows whose turns were other steps than those of the rows that they took turns with, by row."""
    repeats_of: dict[str, list[int]] = {}
    for repeat in stored.wall_seconds:
        runs = {row.id: repeats[repeat] for row in stored.comparison.rows if repeat in (repeats := finished_runs(stored, row))}
        spans = {row_id: spans for row_id, run in runs.items() if (spans := slices.spans(run))}
        for row_id, own_spans in spans.items():
            others = [other for other_id, other in spans.items() if other_id != row_id]
            in_common = [span for span in own_spans if any(span in other for other in others)]
            if others and len(in_common) < len(own_spans) / 2:
                repeats_of.setdefault(row_id, []).append(repeat)
    return [
        Statement(kind="out_of_step", level="caution", rows=(row_id,), values={"repeats": _numbers(repeats)})
        for row_id, repeats in repeats_of.items()
    ]


def _always_first(stored: StoredComparison) -> list[Statement]:
    """Cautions on rows that began successive repeats, or most turns, before the rows that they took turns with, by row.

    Successive repeats of the same rows begin with different ones. Repeats in between may be missing, so others say nothing.
    """
    starts, repeats_of, turns, turns_of, fair_turns = (Counter[str]() for _ in range(5))
    before: tuple[int, set[str], str] | None = None
    for repeat in sorted(stored.wall_seconds):
        finished = {
            row.id: repeats[repeat] for row in stored.comparison.rows if repeat in (repeats := finished_runs(stored, row))
        }
        runs = {row_id: run for row_id, run in finished.items() if slices.took_turns([run])}
        if len(runs) < 2 or not (first_rows := slices.first_rows(runs)):
            continue
        if before is not None and before[:2] == (repeat - 1, set(runs)):
            repeats_of[before[2]] += 1
            starts[before[2]] += first_rows[0] == before[2]
        before = repeat, set(runs), first_rows[0]
        turns.update(first_rows)
        turns_of.update(dict.fromkeys(runs, len(first_rows)))
        fair_turns.update({row_id: len(first_rows) / len(runs) for row_id in runs})
    return [
        Statement(
            kind="always_first",
            level="caution",
            rows=(row_id,),
            values={"starts": starts[row_id], "repeats": repeats_of[row_id], "turns": count, "all_turns": turns_of[row_id]},
        )
        for row_id, count in turns.items()
        if 0 < repeats_of[row_id] == starts[row_id]
        or (fair_turns[row_id] >= LEAST_FAIR_TURNS and count > (fair_turns[row_id] + turns_of[row_id]) / 2)
    ]


def _made_later(stored: StoredComparison) -> list[Statement]:
    """Cautions on rows whose runs were not in the round that most rows of their repeat took turns in, after `--resume`."""
    if stored.comparison.argv[:1] in (["regress"], ["bisect"]):  # a pair without one of its runs is made again as a whole
        return []
    repeats_of: dict[str, list[int]] = {}
    for repeat in stored.wall_seconds:
        rounds = {
            row.id: repeats[repeat].round_id
            for row in stored.comparison.rows
            if not row.spec.hosts and repeat in (repeats := finished_runs(stored, row))
        }
        if not (named := Counter(filter(None, rounds.values()))):
            continue
        ((usual, _),) = named.most_common(1)
        for row_id, name in rounds.items():
            if name != usual:
                repeats_of.setdefault(row_id, []).append(repeat)
    return [
        Statement(kind="made_later", level="caution", rows=(row_id,), values={"repeats": _numbers(repeats)})
        for row_id, repeats in repeats_of.items()
    ]


def _reruns(stored: StoredComparison) -> list[Statement]:
    """Cautions on disturbed repeats: which ones were rerun, and what that changed."""
    replaced = stored.comparison.replaced
    pending = {run.repeat for run in replaced if _is_pending(stored, run)}
    cautions: list[Statement] = []
    if rerun := [run for run in replaced if run.repeat not in pending]:
        values: dict[str, JsonValue] = {
            "repeats": _numbers({run.repeat for run in rerun}),
            "runs": len(rerun),
            "disturbed": [
                {"row": run.row, "repeat": run.repeat + 1, "cores_taken": run.cores_taken} for run in rerun if run.cores_taken
            ],
            "ratios": _replaced_ratios(stored),
        }
        cautions.append(Statement(kind="made_again", level="caution", values=values))
    if pending:
        set_apart = Statement(
            kind="set_apart", level="caution", values={"repeats": _numbers(pending)}, advice=Advice(kind="make_runs")
        )
        cautions.append(set_apart)
    return cautions


def _is_pending(stored: StoredComparison, run: ReplacedRun) -> bool:
    """Whether a replaced run has no new result yet. A kill may have left the old result in its place."""
    in_place = stored.made_from.get(store.result_path(run.row, run.repeat)) == run.sha256
    is_archived = run.row in stored.replaced.get(run.repeat, {}).get(run.number, {})
    return run.repeat not in stored.runs[run.row] or (in_place and not is_archived)


def _numbers(repeats: Iterable[int]) -> list[JsonValue]:
    """Repeats as a reader counts them: from 1."""
    return [repeat + 1 for repeat in sorted(repeats)]


def _replaced_ratios(stored: StoredComparison) -> list[JsonValue]:
    """Ratios before and after the rerun, which show whether disturbed repeats favoured a side. Empty if no pair changed."""
    rows = stored.comparison.rows
    pairs = [(other, one) for one, other in itertools.combinations(rows, 2) if matrix.same_except_contestant(one, other)]
    pairs += [(base, row) for row in rows if (base := matrix.input_base_of(rows, row)) is not None]
    pairs += [
        (serial, row) for row in rows if row.spec.is_parallel and (serial := serial_row_of(stored.comparison, row)) is not None
    ]
    return [
        {"slow": slow.id, "fast": fast.id, "pairs": num_pairs, "before": before, "now": now}
        for slow, fast in pairs
        if (ratio := replaced_ratio(stored, slow, fast)) is not None
        for num_pairs, before, now in [ratio]
    ]


def signature(stored: StoredComparison) -> list[Statement]:
    """The statement on a signature that is not confirmed. Empty without one."""
    record = stored.signature
    if record is None or record.confirmed:
        return []
    return [Statement(kind="signature", level="trouble", values={"sentence": record.sentence})]


def unconfirmed_signatures(named: Iterable[tuple[object, StoredComparison]]) -> list[str]:
    """A reason of failure for each comparison with a signature that is not confirmed, by its name."""
    return [f"the signature of {name} does not hold" for name, stored in named if signature(stored)]
