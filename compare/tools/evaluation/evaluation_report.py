"""The report of an evaluation: its findings and their sentences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from common.data.dataset import Images
from common.training import scores
from common.training.scores import BINS, CHANCE
from compare.cli.wording import listed, percent
from compare.judgement import statement_words
from compare.judgement.cautions import data_cautions
from compare.judgement.row_figures import GUESSING
from compare.reporting import document
from compare.reporting.document import Report
from compare.reporting.screen import Paragraph, Screen, caution_count
from compare.statistics.statistics import CONFIDENCE, SIGNIFICANCE
from compare.tools.evaluation import evaluation_plots, evaluation_tables
from compare.tools.evaluation.evaluation_tables import is_guessing
from compare.tools.evaluation.scoring import EvaluationRecord, ModelPair, ScoredModel

_MIN_LEARNING_RATE_RATIO = 1e-3
"""Smallest useful fraction of the first learning rate. Below it, little is learned."""
_MAX_WORST = 3
_SCREEN_COLUMNS = ("contestant", "accuracy", "loss", "macro_f1", "calibration_error", "best_epoch", "status")
"""Columns of the scores that the first screen shows."""
_OTHER_DATA = (
    "The fields were tuned on other data, or other splits of it: where images of this test split were among them, its scores "
    "flatter."
)


def report(evaluation: EvaluationRecord, images: Images) -> Report:
    """Build the report of an evaluation.

    Args:
        images: images of the test split, uint8 [N, S, S, 3].
    """
    spec = next(iter(evaluation.specs.values()))
    sections = findings(evaluation)
    return Report(
        title="Evaluation",
        name="evaluation",
        facts=[
            f"{spec['model']} on {evaluation.data_name}: final training and evaluation",
            document.hardware_and_versions(evaluation.machine, evaluation.versions),
        ],
        findings=sections,
        tables=evaluation_tables.written_tables(evaluation),
        terminal_tables=evaluation_tables.terminal_tables(evaluation),
        drawings=evaluation_plots.drawings(evaluation),
        files=evaluation_plots.confused_images(evaluation, images),
        values=evaluation.model_dump(mode="json")
        | {"sentences": [sentence for _, sentences in sections for sentence in sentences]},
        exit_code=evaluation.exit_code,
        screen=screen(evaluation),
    )


def screen(evaluation: EvaluationRecord) -> Screen:
    """Show how often the final models are right, and whether they agree."""
    spec = next(iter(evaluation.specs.values()))
    scored = [model for model in evaluation.models if model.scores]
    failed = [model for model in evaluation.models if not model.scores]
    crossing_sentences = _crossing_words(evaluation)
    differs = any(
        crossing.labelled_differently or crossing.largest_difference > evaluation.rounding
        for model in evaluation.models
        for crossing in model.crossings
    )
    other_data = [_OTHER_DATA] if evaluation.tuned_on not in (None, evaluation.data_hash) else []
    trouble = [
        *_failed_words(failed, evaluation),
        *(crossing_sentences[::-1] if differs else []),
        *other_data,
        *statement_words.sentences(data_cautions(evaluation.data_notes)),
    ]
    answers = [
        Paragraph("Right", [f"{_right_words(model, evaluation)}." for model in scored]),
        Paragraph("Agree", [_pair_words(pair, evaluation) for pair in evaluation.pairs]),
        Paragraph("Carries over", [] if differs else crossing_sentences),
        Paragraph("Trouble", trouble, "bad"),
    ]
    table = evaluation_tables.scores_table(evaluation)
    return Screen(
        subject=[
            f"{spec['model']} on {evaluation.data_name}: final training and evaluation",
            f"{evaluation.num_examples:,} test images",
        ],
        answers=answers,
        table=replace(table, columns=tuple(column for column in table.columns if column.key in _SCREEN_COLUMNS)),
        remarks=caution_count(len(_cautions(evaluation))),
    )


def _right_words(model: ScoredModel, evaluation: EvaluationRecord, how: str = "") -> str:
    """How often a model is right. `how`: the interval's name, to stand before it."""
    split_scores = model.scores
    assert split_scores is not None
    interval = _interval(split_scores)
    right = f"{split_scores.num_correct:,} of {split_scores.num_examples:,} right"
    accuracy = f"{split_scores.accuracy:.4f} ({how}{interval.low:.4f} to {interval.high:.4f})"
    return f"{_name(model, evaluation)}: {right}, {accuracy}{f', {GUESSING}' if is_guessing(split_scores) else ''}"


def _failed_words(failed: list[ScoredModel], evaluation: EvaluationRecord) -> list[str]:
    return [f"{_name(model, evaluation)}: {model.status}{f', {model.reason}' if model.reason else ''}." for model in failed]


def findings(evaluation: EvaluationRecord) -> list[tuple[str, list[str]]]:
    """Return the findings, by subject."""
    scored = [model for model in evaluation.models if model.scores]
    interval = f"{percent(CONFIDENCE)}, Wilson's interval: "
    right = [
        f"{_right_words(model, evaluation, interval)}; best epoch {model.best_epoch} of {model.epochs}." for model in scored
    ]
    sections = [
        ("How often are the final models right?", right),
        ("Do the frameworks' models agree?", _agreement_words(evaluation)),
        ("Does a checkpoint carry over?", _crossing_words(evaluation)),
        (
            "What is confused?",
            [words for contestant in evaluation.scored if (words := _confused_words(evaluation, contestant))],
        ),
        ("Are the models as sure as they are right?", [_calibration_words(model, evaluation) for model in scored]),
        ("Cautions", _cautions(evaluation)),
    ]
    return [(title, sentences) for title, sentences in sections if sentences]


def _interval(split_scores: scores.SplitScores) -> Any:
    """Return Wilson's (1927) interval of the accuracy, with `low` and `high`."""
    from scipy import stats  # here: it takes half a second to import, and most commands score nothing

    return stats.binomtest(split_scores.num_correct, split_scores.num_examples).proportion_ci(CONFIDENCE, method="wilson")


def _agreement_words(evaluation: EvaluationRecord) -> list[str]:
    sentences = [_pair_words(pair, evaluation) for pair in evaluation.pairs]
    if sentences:
        sentences.append(
            "That is of these trained models on these images: another seed gives other models, and their difference is no "
            "difference between the frameworks."
        )
    return sentences


def _pair_words(pair: ModelPair, evaluation: EvaluationRecord) -> str:
    agreement = pair.agreement
    seed = f"Seed {pair.seed}: " if len({model.seed for model in evaluation.models}) > 1 else ""
    differing = f"{agreement.labelled_differently:,} of {agreement.num_examples:,} images"
    start = f"{seed}{pair.first} and {pair.second} label {differing} differently"
    if pair.adjusted_p is None:
        return f"{start}; neither is right where the other is wrong, so there is nothing to test."
    alone = (
        f"{pair.first} alone is right on {agreement.first_alone_right:,}, "
        f"{pair.second} alone on {agreement.second_alone_right:,}"
    )
    p = "< 0.001" if pair.adjusted_p < 0.001 else f"= {pair.adjusted_p:.3f}"
    tested = sum(other.adjusted_p is not None for other in evaluation.pairs)
    among = f" among {tested} pairs, Holm" if tested > 1 else ""
    better = pair.first if agreement.first_alone_right > agreement.second_alone_right else pair.second
    verdict = f"{better}'s model is right more often" if pair.adjusted_p < SIGNIFICANCE else "no difference in accuracy shown"
    return f"{start}; {alone}: {verdict} (McNemar's exact test, p {p}{among})."


def _crossing_words(evaluation: EvaluationRecord) -> list[str]:
    crossings = [(model, crossing) for model in evaluation.models for crossing in model.crossings]
    if not crossings:
        return []
    largest = max(crossing.largest_difference for _, crossing in crossings)
    limit = evaluation.rounding
    differing = [(model, crossing) for model, crossing in crossings if crossing.labelled_differently]
    size = f"the largest difference of a probability is {largest:.1e}"
    if not differing and largest <= limit:
        many = "Each checkpoint" if len(crossings) > 1 else "The checkpoint"
        return [f"{many} labels every test image the same in the other framework; {size}, which is rounding."]
    sentences = [
        f"{_name(model, evaluation)}'s checkpoint labels {crossing.labelled_differently:,} of {evaluation.num_examples:,} "
        f"images differently in {crossing.contestant}: the largest difference of a probability is "
        f"{crossing.largest_difference:.1e}."
        for model, crossing in differing
    ]
    return sentences if largest <= limit else [*sentences, f"NOT THE SAME: {size}, more than rounding ({limit:.0e})."]


def _confused_words(evaluation: EvaluationRecord, contestant: str) -> str | None:
    model = evaluation.models_of(contestant)[0]
    worst = [
        f"{evaluation.shown_class_names[pair.true]} taken for {evaluation.shown_class_names[pair.predicted]} ({pair.count:,}, "
        f"{100 * pair.share:.0f} % of the class)"
        for pair in model.worst[:_MAX_WORST]
    ]
    return f"{_name(model, evaluation)}: {'; '.join(worst)}." if worst else None


def _calibration_words(model: ScoredModel, evaluation: EvaluationRecord) -> str:
    split_scores = model.scores
    assert split_scores is not None
    confidence = (
        sum(score_bin.confidence * score_bin.count for score_bin in split_scores.bins if score_bin.confidence is not None)
        / split_scores.num_examples
    )
    interval = _interval(split_scores)
    chance = "more than" if split_scores.calibration_error > split_scores.calibration_chance else "no more than"
    kind = "neither surer nor less sure than it is right, as far as so many images can tell"
    if not interval.low <= confidence <= interval.high:
        kind = "surer than it is right" if confidence > split_scores.accuracy else "less sure than it is right"
    return (
        f"{_name(model, evaluation)}: expected calibration error {split_scores.calibration_error:.4f} ({BINS} bins), {chance} "
        f"the {split_scores.calibration_chance:.4f} within which a calibrated model stays by chance ({percent(CHANCE)}); mean "
        f"confidence {confidence:.4f} at an accuracy of {split_scores.accuracy:.4f}, on the whole {kind}."
    )


def _cautions(evaluation: EvaluationRecord) -> list[str]:
    sentences = _failed_words([model for model in evaluation.models if not model.scores], evaluation)
    for contestant in evaluation.scored:
        last = [model for model in evaluation.models_of(contestant) if model.best_epoch == model.epochs]
        if last and _schedule_words(evaluation, contestant) is None:
            sentences.append(f"{contestant}: the best epoch was the last one; a longer training may be better.")
    if unseen := [name for name, images in zip(evaluation.shown_class_names, evaluation.supports, strict=False) if not images]:
        sentences.append(
            f"The test split has no image of {listed(unseen, _MAX_WORST)}: the 0 of {'it' if len(unseen) == 1 else 'them'} is "
            "in the macro averages."
        )
    if evaluation.tuned_on not in (None, evaluation.data_hash):
        sentences.append(_OTHER_DATA)
    sentences += statement_words.sentences(data_cautions(evaluation.data_notes))
    sentences += [words for contestant in evaluation.scored if (words := _schedule_words(evaluation, contestant))]
    settings = {contestant: {**spec, "framework_options": None} for contestant, spec in evaluation.specs.items()}
    first = next(iter(settings.values()))
    differing = sorted({field for spec in settings.values() for field in spec if spec[field] != first.get(field)})
    if differing:
        sentences.append(
            f"The frameworks trained with settings of their own, so this is no race: {', '.join(differing)} differ."
        )
    if evaluation.models and all(model.repeat == 0 for model in evaluation.models):
        sentences.append("One training of each framework: how much another seed would change is not known; --repeats says it.")
    return sentences


def _schedule_words(evaluation: EvaluationRecord, contestant: str) -> str | None:
    """Return a warning if the learning rate falls in steps to almost nothing, as when shorter trials chose the steps."""
    spec = evaluation.specs[contestant]
    size, gamma = spec["schedule.step_size"], spec["schedule.gamma"]
    if spec["schedule.name"] != "step" or gamma == 1.0:
        return None
    last_useful_epoch = size * math.ceil(math.log(_MIN_LEARNING_RATE_RATIO) / math.log(gamma)) + 1
    if last_useful_epoch > max(model.epochs for model in evaluation.models_of(contestant)):
        return None
    return (
        f"{contestant}: from epoch {last_useful_epoch} on the learning rate was {_MIN_LEARNING_RATE_RATIO:g} of the first or "
        f"less, by schedule.step_size {size} and gamma {gamma:g}. Steps are counted in epochs: those that suit a short trial "
        "end a long training early."
    )


def _name(model: ScoredModel, evaluation: EvaluationRecord) -> str:
    several = len({other.seed for other in evaluation.models}) > 1
    return f"{model.contestant}, seed {model.seed}" if several else model.contestant
