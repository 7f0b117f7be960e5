"""The report of an evaluation: its findings and their sentences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from common.data.dataset import Images
from common.training import scores
from common.training.scores import BINS, CHANCE
from compare.core.statistics import CONFIDENCE, SIGNIFICANCE
from compare.core.wording import listed, percent
from compare.evaluation import evaluation_plots, evaluation_tables
from compare.evaluation.evaluation_tables import is_guessing
from compare.evaluation.scoring import Evaluated, Model, Pair
from compare.judgement.cautions import data_cautions
from compare.judgement.row_figures import GUESSING
from compare.reporting import document
from compare.reporting.document import Report
from compare.reporting.screen import Paragraph, Screen, caution_count

_SPENT = 1e-3
"""Fraction of the first learning rate. A schedule below it leaves little to learn."""
_WORST_SAID = 3
_FIRST = ("contestant", "accuracy", "loss", "macro_f1", "calibration_error", "best_epoch", "status")
"""Columns of the scores that the first screen shows."""
_OTHER_DATA = (
    "The fields were tuned on other data, or other splits of it: where images of this test split were among them, its scores "
    "flatter."
)


def report(made: Evaluated, images: Images) -> Report:
    """The report of an evaluation.

    Args:
        images: uint8 [N, S, S, 3], of the test split.
    """
    spec = next(iter(made.specs.values()))
    found = findings(made)
    return Report(
        title="Evaluation",
        name="evaluation",
        facts=[
            f"{spec['model']} on {made.data_name}: final training and evaluation",
            document.hardware_and_versions(made.machine, made.versions),
        ],
        findings=found,
        tables=evaluation_tables.documents(made),
        terminal_tables=evaluation_tables.on_terminal(made),
        drawings=evaluation_plots.drawings(made),
        files=evaluation_plots.confused_images(made, images),
        values=made.model_dump(mode="json") | {"sentences": [sentence for _, said in found for sentence in said]},
        exit_code=made.exit_code,
        screen=screen(made),
    )


def screen(made: Evaluated) -> Screen:
    """How often the final models are right, and whether they agree."""
    spec = next(iter(made.specs.values()))
    scored = [model for model in made.models if model.scores]
    failed = [model for model in made.models if not model.scores]
    crossed = _crossing_words(made)
    moved = any(
        each.labelled_differently or each.largest_difference > made.rounding
        for model in made.models
        for each in model.crossings
    )
    other = [_OTHER_DATA] if made.tuned_on not in (None, made.data_hash) else []
    trouble = [*_failed_words(failed, made), *(crossed[::-1] if moved else []), *other, *data_cautions(made.data_notes)]
    answers = [
        Paragraph("Right", [_right_words(model, made) for model in scored]),
        Paragraph("Agree", [_pair_words(pair, made) for pair in made.pairs]),
        Paragraph("Carries over", [] if moved else crossed),
        Paragraph("Trouble", trouble, "bad"),
    ]
    table = evaluation_tables.scores_table(made)
    return Screen(
        subject=[f"{spec['model']} on {made.data_name}: final training and evaluation", f"{made.num_examples:,} test images"],
        answers=[each for each in answers if each.sentences],
        table=replace(table, columns=tuple(column for column in table.columns if column.key in _FIRST)),
        remarks=caution_count(len(_cautions(made))),
    )


def _right_words(model: Model, made: Evaluated) -> str:
    found = model.scores
    assert found is not None
    interval = _interval(found)
    guesses = f", {GUESSING}" if is_guessing(found) else ""
    right = f"{found.num_correct:,} of {found.num_examples:,} right"
    return f"{_name(model, made)}: {right}, {found.accuracy:.4f} ({interval.low:.4f} to {interval.high:.4f}){guesses}."


def _failed_words(failed: list[Model], made: Evaluated) -> list[str]:
    return [f"{_name(model, made)}: {model.status}{f', {model.reason}' if model.reason else ''}." for model in failed]


def findings(made: Evaluated) -> list[tuple[str, list[str]]]:
    """The findings, by subject."""
    scored = [model for model in made.models if model.scores]
    found = [
        ("How often are the final models right?", [_accuracy_words(model, made) for model in scored]),
        ("Do the frameworks' models agree?", _agreement_words(made)),
        ("Does a checkpoint carry over?", _crossing_words(made)),
        ("What is confused?", [words for contestant in made.scored if (words := _confused_words(made, contestant))]),
        ("Are the models as sure as they are right?", [_calibration_words(model, made) for model in scored]),
        ("Cautions", _cautions(made)),
    ]
    return [(title, sentences) for title, sentences in found if sentences]


def _accuracy_words(model: Model, made: Evaluated) -> str:
    found = model.scores
    assert found is not None
    interval = _interval(found)
    guesses = f", {GUESSING}" if is_guessing(found) else ""
    ended = f"best epoch {model.best_epoch} of {model.epochs}"
    return (
        f"{_name(model, made)}: {found.num_correct:,} of {found.num_examples:,} right, {found.accuracy:.4f} "
        f"({percent(CONFIDENCE)}, Wilson's interval: {interval.low:.4f} to {interval.high:.4f}){guesses}; {ended}."
    )


def _interval(found: scores.SplitScores) -> Any:
    """Wilson's (1927) interval of the accuracy: `low` and `high`."""
    from scipy import stats  # here: it takes half a second to import, and most commands score nothing

    return stats.binomtest(found.num_correct, found.num_examples).proportion_ci(CONFIDENCE, method="wilson")


def _agreement_words(made: Evaluated) -> list[str]:
    said = [_pair_words(pair, made) for pair in made.pairs]
    if said:
        said.append(
            "That is of these trained models on these images: another seed gives other models, and their difference is no "
            "difference between the frameworks."
        )
    return said


def _pair_words(pair: Pair, made: Evaluated) -> str:
    found = pair.agreement
    seed = f"Seed {pair.seed}: " if len({each.seed for each in made.models}) > 1 else ""
    differing = f"{found.labelled_differently:,} of {found.num_examples:,} images"
    start = f"{seed}{pair.first} and {pair.second} label {differing} differently"
    if pair.adjusted_p is None:
        return f"{start}; neither is right where the other is wrong, so there is nothing to test."
    alone = f"{pair.first} alone is right on {found.first_alone_right:,}, {pair.second} alone on {found.second_alone_right:,}"
    p = "< 0.001" if pair.adjusted_p < 0.001 else f"= {pair.adjusted_p:.3f}"
    tested = sum(each.adjusted_p is not None for each in made.pairs)
    among = f" among {tested} pairs, Holm" if tested > 1 else ""
    better = pair.first if found.first_alone_right > found.second_alone_right else pair.second
    verdict = f"{better}'s model is right more often" if pair.adjusted_p < SIGNIFICANCE else "no difference in accuracy shown"
    return f"{start}; {alone}: {verdict} (McNemar's exact test, p {p}{among})."


def _crossing_words(made: Evaluated) -> list[str]:
    crossings = [(model, each) for model in made.models for each in model.crossings]
    if not crossings:
        return []
    largest = max(each.largest_difference for _, each in crossings)
    limit = made.rounding
    moved = [(model, each) for model, each in crossings if each.labelled_differently]
    size = f"the largest difference of a probability is {largest:.1e}"
    if not moved and largest <= limit:
        many = "Each checkpoint" if len(crossings) > 1 else "The checkpoint"
        return [f"{many} labels every test image the same in the other framework; {size}, which is rounding."]
    said = [
        f"{_name(model, made)}'s checkpoint labels {each.labelled_differently:,} of {made.num_examples:,} images differently "
        f"in {each.contestant}: the largest difference of a probability is {each.largest_difference:.1e}."
        for model, each in moved
    ]
    return said if largest <= limit else [*said, f"NOT THE SAME: {size}, more than rounding ({limit:.0e})."]


def _confused_words(made: Evaluated, contestant: str) -> str | None:
    model = made.of(contestant)[0]
    worst = [
        f"{made.shown_class_names[pair.true]} taken for {made.shown_class_names[pair.predicted]} ({pair.count:,}, "
        f"{100 * pair.share:.0f} % of the class)"
        for pair in model.worst[:_WORST_SAID]
    ]
    return f"{_name(model, made)}: {'; '.join(worst)}." if worst else None


def _calibration_words(model: Model, made: Evaluated) -> str:
    found = model.scores
    assert found is not None
    confidence = sum(each.confidence * each.count for each in found.bins if each.confidence is not None) / found.num_examples
    interval = _interval(found)
    chance = "more than" if found.calibration_error > found.calibration_chance else "no more than"
    kind = "neither surer nor less sure than it is right, as far as so many images can tell"
    if not interval.low <= confidence <= interval.high:
        kind = "surer than it is right" if confidence > found.accuracy else "less sure than it is right"
    return (
        f"{_name(model, made)}: expected calibration error {found.calibration_error:.4f} ({BINS} bins), {chance} the "
        f"{found.calibration_chance:.4f} within which a calibrated model stays by chance ({percent(CHANCE)}); mean confidence "
        f"{confidence:.4f} at an accuracy of {found.accuracy:.4f}, on the whole {kind}."
    )


def _cautions(made: Evaluated) -> list[str]:
    said = _failed_words([model for model in made.models if not model.scores], made)
    for contestant in made.scored:
        last = [model for model in made.of(contestant) if model.best_epoch == model.epochs]
        if last and _schedule_words(made, contestant) is None:
            said.append(f"{contestant}: the best epoch was the last one; a longer training may be better.")
    if unseen := [name for name, images in zip(made.shown_class_names, made.supports, strict=False) if not images]:
        said.append(
            f"The test split has no image of {listed(unseen, _WORST_SAID)}: the 0 of {'it' if len(unseen) == 1 else 'them'} is "
            "in the macro averages."
        )
    if made.tuned_on not in (None, made.data_hash):
        said.append(_OTHER_DATA)
    said += data_cautions(made.data_notes)
    said += [words for contestant in made.scored if (words := _schedule_words(made, contestant))]
    settings = {contestant: {**spec, "framework_options": None} for contestant, spec in made.specs.items()}
    first = next(iter(settings.values()))
    differing = sorted({field for spec in settings.values() for field in spec if spec[field] != first.get(field)})
    if differing:
        said.append(f"The frameworks trained with settings of their own, so this is no race: {', '.join(differing)} differ.")
    if made.models and all(model.repeat == 0 for model in made.models):
        said.append("One training of each framework: how much another seed would change is not known; --repeats says it.")
    return said


def _schedule_words(made: Evaluated, contestant: str) -> str | None:
    """A warning if the learning rate falls in steps to almost nothing, as when shorter trials chose the steps."""
    spec = made.specs[contestant]
    size, gamma = spec["schedule.step_size"], spec["schedule.gamma"]
    if spec["schedule.name"] != "step" or gamma == 1.0:
        return None
    spent = size * math.ceil(math.log(_SPENT) / math.log(gamma)) + 1
    if spent > max(model.epochs for model in made.of(contestant)):
        return None
    return (
        f"{contestant}: from epoch {spent} on the learning rate was {_SPENT:g} of the first or less, by schedule.step_size "
        f"{size} and gamma {gamma:g}. Steps are counted in epochs: those that suit a short trial end a long training early."
    )


def _name(model: Model, made: Evaluated) -> str:
    several = len({each.seed for each in made.models}) > 1
    return f"{model.contestant}, seed {model.seed}" if several else model.contestant
