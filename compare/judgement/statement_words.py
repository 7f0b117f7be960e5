"""The words of every statement: one template for each kind. A sentence is made here, last, and nothing reads it afterwards."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.machine.interference import DISTURBED_FROM, LEAST_TIMED_SECONDS
from compare.cli import wording
from compare.cli.wording import Detail, count
from compare.judgement.conditions import DIVISION_WORDS
from compare.judgement.row_figures import GUESSING, Doubt, Summary, Target
from compare.judgement.run_figures import cores_words
from compare.judgement.statement import Advice, Statement
from compare.judgement.verdict_statements import doubt
from compare.results import store
from compare.running import contestants
from compare.statistics import verdict_words
from compare.statistics.statistics import VERDICT_PAIRS, JudgedRatio, Spread
from compare.statistics.verdict_words import percent_words

DISTURBED = "Other programs took cores from it: do not rely on this."
NO_FINDING = "Other programs took cores from these runs. Make them again on an idle machine."
DOUBTS: dict[Doubt | None, str] = {
    None: "",
    "disturbed": DISTURBED,
    "late_losses": "Its losses came after the clock had stopped, so some work may not be timed: do not rely on this.",
    "unwatched": "Too short to tell whether other programs took cores from it: do not rely on this.",
}
"""Sentence behind one on times that are not reliable, see `verdict_statements.doubt`."""
DOUBTED_ROW: dict[Doubt, str] = {
    "disturbed": "other programs took cores",
    "late_losses": "losses that came after the clock had stopped",
    "too_short": "too few timed batches",
    "unwatched": "too short to tell whether other programs took cores",
}
"""Why no time of a row is reliable, in brackets or behind a colon, see `Summary.doubt`."""
_DOUBTED_RUNS = {
    "disturbed": "{were} disturbed",
    "late_losses": "got {their} losses late ({cautions:;})",
    "unwatched": "{were} too short to tell whether other programs took cores from {them}",
}
"""Predicates of one or several runs by the reason why their times are not reliable, see `run_figures.doubt`."""
_ONE, _SEVERAL = {"were": "was", "their": "its", "them": "it"}, {"were": "were", "their": "their", "them": "them"}
NOT_PROVED = "The same training is not proved."

FILES_UNWATCHED = "These benchmark files do not say whether other programs took cores: they were made without the plug-in."

_RELY_ON_NO_TIME = "Do not rely on these times."
_NEEDS = f"A verdict needs {VERDICT_PAIRS} repeats."
_AGAIN = f"{NO_FINDING.removesuffix('.')}: {{resume}}."
_MOST_PACKAGES = 6
MOSTLY_WITHIN = 0.7
"""Standard deviation within repeats over that between them. From here on, half of the variance is that within them."""

Template = str | Callable[[Mapping[str, Any]], str]
"""Text with fields, see `Fields`, or a function of the values."""


class RowTemplate(NamedTuple):
    """Words on one row. Rows with the same words share a sentence, which names each with its figure."""

    text: Template
    """Clause without a subject."""
    figure: Template = ""
    """Figure of the row: behind a colon if it is the only row, else in brackets behind its name. May be empty."""
    rest: str = ""
    """Further sentences."""


class Below(NamedTuple):
    """Words of a statement that belongs below the one before."""

    text: Template


Templates = Mapping[str, Template | RowTemplate | Below]
"""Words by kind of statement."""


class Fields(string.Formatter):
    """Fill in the fields of a template.

    `{steps:step}` is a number with its noun, `{rows:;}` a list with semicolons, `{names:and}` a list whose last name stands
    behind `and`, `{names:,}` a list with commas, `{names:3}` its first three names.
    """

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, list):
            return _list_words(list(map(str, value)), format_spec)
        if re.fullmatch("[a-z][a-z ]+", format_spec):
            return count(value, format_spec)
        return super().format_field(value, format_spec)


def _list_words(names: Sequence[str], format_spec: str) -> str:
    if format_spec == "and":
        return wording.joined(names)
    return wording.listed(names, int(format_spec)) if format_spec.isdigit() else f"{format_spec} ".join(names)


def _restarted(values: Mapping[str, Any]) -> str:
    seconds = values["seconds_lost"]
    duration = "less than a second" if seconds < 0.95 else f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{wording.listed(values['reasons'])}; {duration} of work lost"


def _fewer_replicas(values: Mapping[str, Any]) -> str:
    changes: list[str] = []
    if "batch_norm_images" in values:
        sizes = f"{values['batch_norm_images']} images of a replica instead of {values['planned_batch_norm_images']}"
        changes.append(f"BatchNorm, where the model has it, then normalised {sizes}")
    if "learning_rate_for_replicas" in values:
        changes.append(f"the learning rate was scaled for {count(values['learning_rate_for_replicas'], 'replica')}")
    change = " and ".join(changes) or "the mathematics stayed the same, up to rounding"
    replicas = ", then ".join(map(str, values["replicas"]))
    return f"{replicas} of {values['planned_replicas']} when it had finished {count(values['epochs'], 'epoch')}: {change}"


def _nothing_timed(values: Mapping[str, Any]) -> str:
    batch, images = values["batch"], values["images"]
    large = f" (a batch of {batch} holds all {images} training images)" if batch > images > 0 else ""
    return f"no epoch could be timed: a run's first step is never timed, and there was no other{large}"


def _too_short_training(values: Mapping[str, Any]) -> str:
    which = f" in {values['unwatched']} of {values['repeats']} repeats" if values["unwatched"] < values["repeats"] else ""
    return f"{values['seconds']:.2g} s{which}" if values["seconds"] is not None else which.strip()


def _broke_down(values: Mapping[str, Any]) -> str:
    which = f", in {values['broken']} of {values['repeats']} repeats" if values["repeats"] > 1 else ""
    text = "{score} {best:.4f} at epoch {best_epoch}, {end:.4f} at epoch {last_epoch}, the last"
    return f"{Fields().format(text, **values)}{which}"


def _failed(values: Mapping[str, Any]) -> str:
    end = f"after {count(values['epochs'], 'epoch')}" if values["epochs"] else "before the end of its first epoch"
    return f"{values['status']} {end}: {values['reason']}"


def _repeat_words(repeats: Sequence[int], *verb: str) -> str:
    """Repeats as a subject, with the verb in singular and plural if there is one: `Repeats 2, 3 were`."""
    is_many = len(repeats) > 1
    return " ".join([f"Repeat{'s' if is_many else ''} {', '.join(map(str, repeats))}", *verb[is_many : is_many + 1]])


def _unplanned(values: Mapping[str, Any]) -> str:
    runs, folder = values["runs"], f"{store.RUNS_FOLDER}/"
    results = count(len(runs), "result")
    return f"{results} in {folder} count in no figure, because the plan does not ask for them: {wording.listed(runs)}."


def _cores_taken(values: Mapping[str, Any]) -> str:
    return f"{cores_words(values['cores_taken'])} of {values['cores']}"


def _not_interleaved(values: Mapping[str, Any]) -> str:
    return (
        f"{_repeat_words(values['repeats'])}: not all runs were made in turn. Up to {values['hours']:.1f} hours lie between "
        "them. Runs so far apart are not compared, because the machine may have changed meanwhile."
    )


def _noise_in_turns(values: Mapping[str, Any]) -> str:
    between, within = (100.0 * values[name] for name in ("between_repeats", "within_repeats"))
    is_from_within = within >= MOSTLY_WITHIN * between
    advice = "longer runs help as much as more repeats" if is_from_within else "more repeats help, and longer runs hardly do"
    return (
        f"The ratio of two rows' times varies by {between:.1f} % from repeat to repeat. Unsteady times within a repeat alone "
        f"would make it vary by {within:.1f} %. So {advice}."
    )


def _set_apart(values: Mapping[str, Any]) -> str:
    return f"{_repeat_words(values['repeats'], 'was', 'were')} set apart (--again disturbed), not yet made again."


def _made_again(values: Mapping[str, Any]) -> str:
    disturbed = [f"{run['row']}, repeat {run['repeat']}: {cores_words(run['cores_taken'])}" for run in values["disturbed"]]
    ratios = [
        f"{ratio['slow']} over {ratio['fast']}: {ratio['before']:.3f} in the {count(ratio['pairs'], 'old pair')}, "
        f"{ratio['now']:.3f} now"
        for ratio in values["ratios"]
    ]
    before = f" Ratios of epoch seconds in these repeats: {'; '.join(ratios)}." if ratios else ""
    return (
        f"{_repeat_words(values['repeats'], 'was', 'were')} made again with all rows (--again disturbed), "
        f"{count(values['runs'], 'run')} in all. Other programs had taken cores from {len(disturbed)} of the old runs "
        f"({wording.listed(disturbed)}). Two old runs of a repeat still count in ratios if nothing disturbed either of them. "
        f"No other figure uses the old runs. They are kept in runs/*.replaced*.{before}"
    )


def _other_versions(values: Mapping[str, Any]) -> str:
    versions = [
        f"{version['name']} {version['one'] or 'not there'} against {version['other'] or 'not there'}"
        for version in values["versions"]
    ]
    return f"{values['one']} against {values['other']}: {contestants.join_first(versions, _MOST_PACKAGES)}."


def _identical_training(values: Mapping[str, Any]) -> str:
    reason = values["reason"].rstrip(".")
    plain = {"proved": " (both compute the same, up to rounding)", "not proved": " (they may be two different trainings)"}
    verdict = f"{values['verdict']}{plain.get(values['verdict'], '')}"
    if "some_rows_proved" not in values:
        return f"Identical training: {verdict}: {reason}."
    rows = "Not every row is proved as it is timed: the table says which" if values["some_rows_proved"] else ""
    return f"Identical training: {verdict}: {reason}. {rows or 'No row is proved as it is timed'}."


def _spot_checks_passed(values: Mapping[str, Any]) -> str:
    again = (
        " A third program, the referee in plain NumPy, computed loss and gradients of "
        f"{values['recomputed']} of them again, and they agree."
    )
    images = f" Every image, pixel and label of {count(values['epochs'], 'epoch')} was as planned."
    return (
        f"Spot checks: {count(values['steps'], 'step')} of {count(values['runs'], 'timed run')} were drawn by chance and "
        f"recorded. All had the planned batch, learning rate and update."
        f"{again * bool(values['recomputed'])}{images * bool(values['epochs'])}"
    )


def _first_losses(values: Mapping[str, Any]) -> str:
    verdict = {
        True: "the first losses agree",
        None: "the first losses differ, as rounding alone may make them here, so they show nothing",
        False: "THE FIRST LOSSES DO NOT AGREE, so do not compare the figures",
    }[values["agree"]]
    differ = f"differ between the {values['between']} by at most {values['difference']:.1e} of their size ({values['mode']})"
    losses = differ if values["difference"] else f"are the same number in all {values['between']}"
    allowed = f"up to {values['tolerance']:.0e} counts as rounding"
    return (
        f"Timed runs, loss of the first batch before any update: {verdict}. In {values['precision']} they {losses}; {allowed}."
    )


def _scores_differ(values: Mapping[str, Any]) -> str:
    text = (
        f"The losses agree within {values['loss_difference']:.1e} at every step. The {values['split']} scores differ by "
        f"{values['different']} of {count(values['images'], 'image')} ({values['mode']})."
    )
    if values["explained"]:
        return f"{text} Rounding can do that where a model finds two classes of an image almost equally likely."
    return f"{text} Losses that agree so well do not explain that."


def _hashes(values: Mapping[str, Any]) -> str:
    """The end of a sentence on hashes: within what runs are compared."""
    within = f", within each of {values['seeds']} seeds" if values["seeds"] > 1 else ""
    return f"{within}." + " Only runs that ended after the same number of epochs are compared in this." * bool(
        values.get("of_equal_length")
    )


def _same_hashes(values: Mapping[str, Any]) -> str:
    subjects = values["subjects"]
    it = "them" if len(subjects) > 1 else "it"
    return f"Same {wording.joined(subjects)} in all {values['runs']} runs that recorded {it}{_hashes(values)}"


def _other_hashes(values: Mapping[str, Any]) -> str:
    text = f"NOT the same {wording.joined(values['subjects'])}: {values['different']} different among {values['runs']} runs"
    return f"{text}{_hashes(values)} Do not compare their figures."


def _division(values: Mapping[str, Any]) -> str:
    others = [f" Of {'; '.join(other['pairs'])} also {', '.join(other['conditions'])}." for other in values.get("others", ())]
    detail = f": {values['detail']}" if values["detail"] else ""
    return f"{DIVISION_WORDS[values['division']].capitalize()} in {'; '.join(values['pairs'])}{detail}.{''.join(others)}"


def _divisions_disagree(values: Mapping[str, Any]) -> str:
    clauses = [f"{faster['framework']} is faster with {faster['conditions']}" for faster in values["faster"]]
    return f"THE SETTINGS DECIDE WHO IS FASTER in {values['configuration']}: {'; '.join(clauses)}."


def _shared_conditions(values: Mapping[str, Any]) -> str:
    conditions = values["conditions"].values()
    return f"All {', '.join(['as above', *conditions])}." if values["as_above"] else f"All hold for {', '.join(conditions)}."


def _verdict(values: Mapping[str, Any], text: str, separator: str) -> str:
    """A verdict with the conditions that it does not share with others, and what is to be doubted."""
    conditions = [words for name, words in values["conditions"].items() if name not in values["shared_conditions"]]
    doubts = [] if values["doubt"] == "disturbed" else [NOT_PROVED * values["proof_missing"], DOUBTS[values["doubt"]]]
    return " ".join(filter(None, [f"{separator.join(filter(None, [text, ', '.join(conditions)]))}.", *doubts]))


def _contestants_compared(values: Mapping[str, Any]) -> str:
    first, second = values["contestants"]
    if values["doubt"] == "disturbed":
        return _verdict(values, f"{first} against {second}: not known", ": ")
    return _verdict(values, verdict_words.faster(JudgedRatio.model_validate(values["judged"]), first, second), ": ")


def _mode_compared(values: Mapping[str, Any]) -> str:
    name, speedup = values["row"], JudgedRatio.model_validate(values["judged"])
    times = f"{verdict_words.interval_words(speedup.ratio)} times as fast as {values['base']}"
    word = verdict_words.speedup_verdict(speedup)
    if values["doubt"] == "disturbed":
        text = f"{name}: not known"
    elif speedup.verdict == "too few repeats to tell":
        text = f"{name}: too few repeats to tell ({speedup.ratio.n} of {VERDICT_PAIRS}); it is {times} here"
    else:
        start = f"{name} {word}: it" if speedup.verdict in ("above", "below") else f"{name}: {word}; it"
        text = f"{start} is {times}{verdict_words.p_value_text(speedup)}"
    return _verdict(values, text, "; ")


def _family(values: Mapping[str, Any]) -> str:
    return verdict_words.family_words([JudgedRatio.model_validate(judged) for judged in values["judged"]]) or ""


def _unmattering(values: Mapping[str, Any]) -> str:
    return f"A difference below {percent_words(values['smallest_effect'])} counts as none (--smallest-effect)."


def _open_questions(values: Mapping[str, Any], which: str = "open") -> str:
    return f"{len(values[which])} of {count(values['questions'], 'question')} ({'; '.join(values[which])})."


def _decision_cut_short(values: Mapping[str, Any]) -> str:
    known = f" Open so far: {_open_questions(values)}" if values["open"] else ""
    repeats = count(values["repeats"], "repeat")
    return f"Not all of {repeats} were made, so not all is decided.{known} {_unmattering(values)}"


def _decided(values: Mapping[str, Any]) -> str:
    fewer = "Rows whose questions were decided before that ran fewer times. " if values["some_ran_fewer"] else ""
    number, repeats = values["questions"], count(values["repeats"], "repeat")
    decided = "The question is" if number == 1 else f"All {number} questions are"
    return f"{decided} decided after {repeats}. {fewer}{_unmattering(values)}"


def _not_decided(values: Mapping[str, Any]) -> str:
    end = "Fewer than half of these repeats made a pair, so no repeats were added. " if values["stuck"] else ""
    if values["rounds"] >= values["most_repeats"]:
        again = ", those made again included" if values["rounds"] > values["repeats"] else ""
        end = f"The most is {values['most_repeats']} (--most-repeats){again}. "
    repeats = count(values["repeats"], "repeat")
    open_words = f"Not decided after {repeats}: {_open_questions(values)} {end}{_unmattering(values)}" if values["open"] else ""
    if not values["disturbed"]:
        return open_words
    unknown = f"{_open_questions(values, 'disturbed')} Other programs took cores from their runs."
    return _joined(open_words, f"Not known: {unknown}" if open_words else f"Not known after {repeats}: {unknown}")


def _accuracy_over_seeds(values: Mapping[str, Any]) -> str:
    accuracy = Spread.model_validate(values["accuracy"])
    guessing = f", {GUESSING}" if values["guesses"] else ""
    half = f"(middle half {accuracy.low:.4f} to {accuracy.high:.4f}){guessing}"
    return f"{values['row']}: test accuracy {accuracy.median:.4f} over {accuracy.n} seeds {half}."


def _target_accuracy(values: Mapping[str, Any]) -> str:
    target, pace = Target.model_validate(values["target"]), values["epoch_seconds"]
    repeats = f"{target.reached} of {target.repeats} repeats"
    text = f"validation accuracy {target.accuracy:g} was not reached in {count(values['epochs_done'], 'epoch')}"
    if target.reached:
        text = f"validation accuracy {target.accuracy:g} was reached in {repeats}, which leaves no median"
    if target.seconds is not None and target.epochs is not None:
        seconds = target.seconds
        spread = f" ({seconds.low:.2f} to {seconds.high:.2f})" if seconds.n > 1 else ""
        after = count(target.epochs.median, "epoch")
        text = f"validation accuracy {target.accuracy:g} after {seconds.median:.2f} s{spread} and {after}"
        text += f", in {repeats}" if target.repeats > 1 else ""
    return f"{values['row']}: {text}{'' if pace is None else f'; {pace:.2f} s per epoch'}."


def _inexact_mode(values: Mapping[str, Any]) -> str:
    reached = f"{values['accuracy']:.4f}{f' ({GUESSING})' if values['guesses'] else ''}"
    serial = values["serial_accuracy"]
    beside = "" if serial is None else f", serial's {serial:.4f}"
    parts = [f"{values['difference']}: test accuracy {reached}{beside}"]
    if "staleness" in values:
        parts.append(
            Fields().format(
                "gradients came from weights that were {mean:.2f} updates old on average, {most} at most (of {pushes} pushes); "
                "{waiting_seconds:.2f} s of waiting",
                **values["staleness"],
            )
        )
    if "members" in values:
        alone = "the average of the members {average:.4f}, their vote {vote:.4f}, each alone {least:.4f} to {most:.4f}"
        parts.append(Fields().format(alone, **values["members"]))
    return f"{values['row']}: {'; '.join(parts)}."


def _input_wait(values: Mapping[str, Any]) -> str:
    conclusion = "the input limits its pace" if values["wait"] > 0.5 else "input and model both limit its pace"
    text = f"{values['row']}: waits {wording.percent(values['wait'])} of its training time for its input: {conclusion}."
    return " ".join(filter(None, [text, DOUBTS[values["doubt"]]]))


def unreliable_words(values: Mapping[str, Any]) -> str:
    """How many runs of a side have no reliable times, and why. The values are those of `unreliable_runs`."""
    why = fill(_DOUBTED_RUNS[values["why"]], {**values, **(_ONE if values["unreliable"] == 1 else _SEVERAL)})
    text = f"{values['unreliable']} of {count(values['runs'], 'run')} {values['whose']} {why}"
    if taken := values.get("cores_taken"):
        ends = dict.fromkeys(cores_words(end(taken)) for end in (min, max))
        budget = f" of a budget of {values['cores']}" if values["cores"] else ""
        text += f": other programs or the hypervisor took {' to '.join(ends)} cores{budget}, more than {DISTURBED_FROM}"
    return f"{text}."


def _unreliable_runs(values: Mapping[str, Any]) -> str:
    whose = "Its" if values["unreliable"] == 1 else "Their"
    return f"{values['name']}: {unreliable_words(values)} {whose} times do not count."


def _caution_of_side(values: Mapping[str, Any]) -> str:
    return f"The {values['side']}: {' '.join(sentences([Statement.model_validate(values['caution'])]))}"


TEMPLATES: Templates = {
    # Cautions on the whole comparison.
    "signature": "{sentence}",
    "set_aside": "Set aside: {reason}",
    "unplanned": _unplanned,
    "data": "The data: {note}.",
    "contradicting_labels": (
        "The data: {note}. So some of them have a wrong label, or the classes overlap. convtwins data FOLDER names them."
    ),
    "images_in_two_splits": (
        "The data: {note}. Such images are not new to the model when it is tested. convtwins data FOLDER names them."
    ),
    "shared_cores": (
        "The {cores} cores of the budget were {cores} hardware threads of {physical_cores:physical core}. Two threads of one "
        "core do less work than two cores."
    ),
    "not_interleaved": _not_interleaved,
    "out_of_step": RowTemplate(
        "in some repeats its turns trained other steps than those of the other rows",
        "repeat {repeats:,}",
        "So whole runs are compared there, and other work on the machine counts more.",
    ),
    "made_later": RowTemplate(
        "not trained in turns with most other rows of a repeat, but before or after them, because a run was interrupted",
        "repeat {repeats:,}",
        "So whole runs are compared there, and what the machine did at another time counts.",
    ),
    "always_first": RowTemplate(
        "began too often before the rows that it took turns with",
        "{starts} of {repeats:successive repeat}, {turns} of {all_turns:turn}",
        "What starts first may be slower, so ratios may be off. The order should alternate: please report this.",
    ),
    "made_again": _made_again,
    "set_apart": _set_apart,
    "another_environment": "{row_id}, repeat {repeat}: ANOTHER ENVIRONMENT than before the proof: {changes}.",
    "other_versions": _other_versions,
    "other_interpreter": "{one} and {other} run in two interpreters with the same packages.",
    "nothing_can_run": "NO ROW CAN RUN on this machine, so nothing is trained ({reasons:;}).",
    # Cautions on rows.
    "resumed": RowTemplate(
        "cut short and continued from a checkpoint",
        "{resumes:time}",
        "The wall time leaves out what was lost in between. Each epoch is timed by itself.",
    ),
    "restarted": RowTemplate("restarted automatically ({options:and})", _restarted),
    "fewer_replicas": RowTemplate(
        "went on from a checkpoint with fewer replicas (--elastic)", _fewer_replicas, "Such runs do not count."
    ),
    "started_over": RowTemplate("started over: {reason}"),
    "failed": RowTemplate(_failed),
    "not_finished": RowTemplate("{status}: {reason}"),
    "broke_down": RowTemplate("became much worse before it ended", _broke_down, "Scores are those of the end."),
    "guesses": RowTemplate(
        "no better than guessing, as far as {images} test images tell (always naming one class reaches {chance:.4f})",
        "accuracy {accuracy:.4f}",
    ),
    "oversubscribed": RowTemplate("more replicas than cores, so they take turns", "{replicas} replicas on {cores:core}"),
    "fewer_micro_batches": RowTemplate(
        "batches are cut into fewer parts than asked, because all parts must have one size",
        "{parts}, not {requested}",
    ),
    "exceeds_budget": RowTemplate("used more cores than the budget", "{cores_used:.2f} of {cores}"),
    "nothing_timed": RowTemplate(_nothing_timed),
    "too_short": RowTemplate(
        "too few timed batches to show a steady pace", "{batches} of {needed}", "Do not rely on these rates."
    ),
    "unwatched": RowTemplate(
        f"too short to tell whether other programs took cores from it, which needs {LEAST_TIMED_SECONDS} s of training",
        _too_short_training,
        _RELY_ON_NO_TIME,
    ),
    "late_losses": RowTemplate("some work may not be timed", "{reason}", _RELY_ON_NO_TIME),
    "disturbed": RowTemplate(
        "{by} took cores of the budget",
        _cores_taken,
        _RELY_ON_NO_TIME,
    ),
    "busy": RowTemplate("the machine was busy when it began", "load average {load:.1f} on {logical_cores:logical core}"),
    "busy_now": lambda values: (
        f"Other programs use {wording.percent(values['share'])} of the {count(values['logical_cores'], 'core')} here now. "
        "Times get less certain, and a row that loses too much to them gets no verdict: best wait until they have ended."
    ),
    "throttled": RowTemplate(
        "CPUs ended at a lower clock than those of another row, so these times do not compare well",
        "{mhz:.0f} MHz, others {fastest_mhz:.0f}",
    ),
    # The same training.
    "not_examined": "Identical training: not examined, so nothing is claimed.",
    "identical_training": _identical_training,
    "update_rule": (
        "Weight updates: all frameworks use one formula of this suite. Their own optimizers round differently: with them "
        "(--set optimizer.native=true) losses differ by {difference:.1e} at step 20 ({optimizer}, simple_cnn on digits, "
        "float64)."
    ),
    "spot_check_failed": "Spot checks: NOT AS PLANNED: {row_id}, repeat {repeat}: {faults:;}.",
    "nothing_recorded": (
        "Spot checks: {runs:timed run} recorded no step: their images lie on a device, or an older version made them."
    ),
    "records_missing": "Spot checks: {records:record} of {runs:timed run} are missing.",
    "spot_checks_passed": _spot_checks_passed,
    "gradients_prove_nothing": "Spot checks: the gradients are no evidence for or against: {reason}.",
    "mode_not_claimed": "{mode}: not claimed: {reason}.",
    "mode_compared_with": "{mode}: the proof compares it with {other}. The serial runs that are timed here see whole batches.",
    "first_losses": _first_losses,
    "first_loss_failed": Below("{framework}, {mode}: {where}."),
    "scores_differ": Below(_scores_differ),
    "reduced_precision": (
        "{switches:,}: with these switches a framework computes with fewer digits than its precision says. So the first losses "
        "of those runs are not compared."
    ),
    "one_hash": "Not compared: {subjects:and}. Only one run recorded them.",
    "same_hashes": _same_hashes,
    "other_hashes": _other_hashes,
    "order_not_compared": (
        "Order of examples: the runs ended after different numbers of epochs, so that it cannot be compared."
    ),
    # Verdicts and the conditions that they hold for.
    "divisions_disagree": _divisions_disagree,
    "division": _division,
    "can_be_equalised": (
        "To compare with equal settings, add --switches closed. To compare each at its best, run `optimize`, then add "
        "--switches best."
    ),
    "shared_conditions": _shared_conditions,
    "contestants_compared": _contestants_compared,
    "mode_compared": _mode_compared,
    "input_compared": _mode_compared,
    "no_finding": "Not known:",
    "family": _family,
    "decision_cut_short": _decision_cut_short,
    "nothing_to_decide": "Not decided after {repeats:repeat}: no two runs can be compared.",
    "decided": _decided,
    "not_decided": _not_decided,
    "noise_in_turns": _noise_in_turns,
    "small_in_turns": (
        "{names:;}: taking turns may make or hide a difference of up to {percent:.0f} % between two frameworks: each loses a "
        "little time whenever it stops and goes on. Measure it with --no-turns as well."
    ),
    # Two measurements.
    "package_changed": "{package} was {baseline} and is {candidate}.",
    "uncommitted_changes": "The {side} was measured with uncommitted changes.",
    "caution_of_side": _caution_of_side,
    "set_aside_of_side": "The {side}: {reason}",
    "other_work": "{name}: other {what} than before, so another training.",
    "not_above_zero": "{name}: {left_out} of {figures} figures of the {side} are zero or less, and do not count ({metric}).",
    "without_partner": "{name}: {figures:figure} without a partner on the other side, not counted ({metric}).",
    "limit_changed": "{name}: the test's own limit was {baseline} before and is {candidate} now. The one of now counts.",
    "medians_differ": "{name}: the {side}'s files disagree: one median is {times:.1f} times another.",
    "unreliable_runs": _unreliable_runs,
    "neither_side_proved": "Neither side has a proof that both frameworks train the same.",
    "files_unwatched": FILES_UNWATCHED,
    "proof_of_candidate": "The head's proof: {proof}.",
    # What a row reached.
    "accuracy_over_seeds": _accuracy_over_seeds,
    "target_accuracy": _target_accuracy,
    "inexact_mode": _inexact_mode,
    "input_wait": _input_wait,
}
"""Words by kind of statement. A field `row` is the name of its only row, `row_id` the id."""

ADVICE: dict[str, str] = {
    "doctor": f"To see what it can run: {wording.command('doctor')}",
    "share_cores": "Ask for fewer replicas, or add --oversubscribe, which lets replicas share cores.",
    "smaller_learning_rate": "Try a smaller learning rate.",
    "train_longer": "Train for longer, or test on more images.",
    "more_steps": "Use a smaller --batch-size, or more images or --epochs.",
    "more_epochs": "Use more --epochs.",
    "train_for": "Use {options} or more.",
    "larger_scale": "A larger --scale helps.",
    "again": "{resume} makes disturbed repeats again.",
    "again_when_idle": _AGAIN,
    "again_with_repeats": f"{_AGAIN} {_NEEDS}",
    "again_at_scale": f"{_AGAIN} {_NEEDS} A larger --scale helps.",
    "make_runs": "{resume} makes the runs.",
    "make_rest": "--resume makes the rest.",
    "add_repeats": "--resume adds repeats.",
}
"""Sentences by kind of advice. `{resume}` is the command that resumes the comparison, with the options of the advice.
`{options}` are these options alone."""


def sentences(
    statements: Iterable[Statement],
    summaries: Sequence[Summary] = (),
    folder: Path | str | None = None,
    templates: Templates = TEMPLATES,
) -> list[str]:
    """Statements in words, in their order. Statements on rows that have the same words share a sentence.

    Args:
        summaries: all rows of the comparison. None are needed for statements that name no row.
        folder: folder of the comparison, which advice names. None: `DIR` stands for it.
        templates: a tool's own words. Other kinds are looked up in `TEMPLATES`.
    """
    names = {summary.id: summary.name for summary in summaries}
    sentences: list[str | tuple[str, str, str]] = []
    figures_by_row: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for statement in statements:
        template, advised = templates.get(statement.kind) or TEMPLATES[statement.kind], advice_words(statement.advice, folder)
        row_id = next(iter(statement.rows), "")
        name = names.get(row_id, row_id)
        values = {**statement.values, "row": name, "row_id": row_id}
        if not isinstance(template, RowTemplate):
            is_below = isinstance(template, Below)
            text = _joined(fill(template.text if is_below else template, values), advised)
            sentences.append(Detail(text) if is_below else text)
            continue
        shared = statement.kind, fill(template.text, values), _joined(template.rest, advised)
        if shared not in figures_by_row:
            figures_by_row[shared] = {}
            sentences.append(shared)
        figures = figures_by_row[shared].setdefault(name, [])
        if (figure := fill(template.figure, values)) and figure not in figures:
            figures.append(figure)
    return [
        sentence if isinstance(sentence, str) else _row_sentence(figures_by_row[sentence], len(names), *sentence[1:])
        for sentence in sentences
    ]


def _row_sentence(figures: Mapping[str, Sequence[str]], num_rows: int, text: str, rest: str) -> str:
    """One sentence on all rows with the same words, and what follows from it.

    Args:
        figures: name of each row: its figures. Each of its runs may have one.
    """
    words = {name: "; ".join(row_figures) for name, row_figures in figures.items()}
    if len(words) == 1:
        ((name, figure),) = words.items()
        return _joined(f"{name}: {text}{f': {figure}' if figure else ''}.", rest)
    which = "Both rows" if num_rows == 2 else f"All {num_rows} rows"
    which = which if len(words) == num_rows else f"{len(words)} of {num_rows} rows"
    listed = "; ".join(f"{name} ({figure})" if figure else name for name, figure in words.items())
    return _joined(f"{which}: {text}.", rest, f"These are: {listed}.")


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def fill(template: Template, values: Mapping[str, Any]) -> str:
    """Put values in the fields of a template, see `Fields`."""
    return Fields().vformat(template, (), values) if isinstance(template, str) else template(values)


def advice_words(advice: Advice | None, folder: Path | str | None = None) -> str:
    """Advice in words. Empty if there is none."""
    if advice is None:
        return ""
    resume = ["run", "--resume", "DIR" if folder is None else str(folder), *advice.options]
    command = wording.command(*resume) if folder is not None else wording.shell(resume)
    return ADVICE[advice.kind].format(resume=command, options=wording.shell(advice.options))


def unreliable_rows_note(rows: Iterable[tuple[str, Summary]]) -> str:
    """Name the rows without a reliable time, for the caption of a table. Empty if there are none."""
    names_by_doubt: dict[str, list[str]] = {}
    rows = list(rows)
    for name, summary in rows:
        if summary.doubt:
            names_by_doubt.setdefault(DOUBTED_ROW[summary.doubt], []).append(name)
    if 1 < len(rows) == sum(map(len, names_by_doubt.values())) and len(names_by_doubt) == 1:
        return f"Rely on no time of any row: {next(iter(names_by_doubt))}."
    return " ".join(f"Rely on no time of {'; '.join(names)}: {why}." for why, names in names_by_doubt.items())


def doubt_words(*summaries: Summary) -> str:
    """Sentence behind one on the times of these rows. Empty if they are reliable."""
    return DOUBTS[doubt(*summaries)]
