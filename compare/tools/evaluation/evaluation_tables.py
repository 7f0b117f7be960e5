"""The tables of an evaluation."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from common.training.scores import BINS, CHANCE, TOP, SplitScores, sum_matrices
from compare.cli.wording import percent
from compare.judgement.row_figures import GUESSING
from compare.reporting.class_tables import ZERO
from compare.reporting.tables import Column, Table, value_at, with_rows
from compare.statistics.statistics import Spread, is_no_better_than_chance, majority_accuracy, spread
from compare.tools.evaluation.scoring import EvaluationRecord


def written_tables(evaluation: EvaluationRecord) -> list[Table]:
    """Return every table that is written."""
    return [
        scores_table(evaluation),
        class_table(evaluation),
        *with_rows(
            [agreement_table(evaluation), crossing_table(evaluation), confused_table(evaluation), calibration_table(evaluation)]
        ),
        *(table for contestant in evaluation.scored for table in confusion_tables(evaluation, contestant)),
    ]


def terminal_tables(evaluation: EvaluationRecord) -> list[Table]:
    """Return the tables that are printed."""
    all_tables = (
        scores_table(evaluation),
        agreement_table(evaluation),
        crossing_table(evaluation),
        class_table(evaluation),
        confused_table(evaluation),
    )
    return with_rows(all_tables)


def is_guessing(split_scores: SplitScores) -> bool:
    """Whether the accuracy is not shown to be better than always naming the most frequent class."""
    return is_no_better_than_chance(majority_accuracy(split_scores.confusion), split_scores.accuracy, split_scores.num_examples)


def _over_trainings(evaluation: EvaluationRecord, contestant: str, path: str) -> Spread | None:
    return spread([value for model in evaluation.models_of(contestant) if (value := value_at(model, path)) is not None])


_SCORES = (
    ("accuracy", "test accuracy", "acc.", "scores.accuracy"),
    ("top_accuracy", f"top-{TOP} accuracy", f"top-{TOP}", "scores.top_accuracy"),
    ("loss", "test loss", "loss", "scores.loss"),
    ("macro_precision", "macro precision", "macro\nprec.", "scores.macro.precision"),
    ("macro_recall", "macro recall", "macro\nrecall", "scores.macro.recall"),
    ("macro_f1", "macro F1", "macro\nF1", "scores.macro.f1"),
    ("weighted_f1", "weighted F1", "weighted\nF1", "scores.weighted.f1"),
    ("calibration_error", "calibration error", "calibr.\nerror", "scores.calibration_error"),
    ("calibration_chance", "calibration error by chance", "", "scores.calibration_chance"),
)
"""(key, heading, short heading or none on the terminal, path of the score) of each column of scores."""


def _guessing(evaluation: EvaluationRecord, contestant: str) -> str | None:
    all_scores = [model.scores for model in evaluation.models_of(contestant) if model.scores]
    return GUESSING if all_scores and all(map(is_guessing, all_scores)) else None


def _status(evaluation: EvaluationRecord, contestant: str) -> str:
    failed = [model for model in evaluation.models if model.contestant == contestant and not model.scores]
    return ", ".join(f"{model.status} (seed {model.seed})" for model in failed) or "ok"


def _joined(evaluation: EvaluationRecord, contestant: str, path: str) -> str | None:
    return ", ".join(str(value_at(model, path)) for model in evaluation.models_of(contestant)) or None


def scores_table(evaluation: EvaluationRecord) -> Table:
    over_trainings, joined = partial(_over_trainings, evaluation), partial(_joined, evaluation)
    accuracy, *other_scores = [
        Column(key, heading, 4, short=short, interval=True, terminal=bool(short), pick=partial(over_trainings, path=path))
        for key, heading, short, path in _SCORES
    ]
    guessing = Column("guessing", "test accuracy is", short="acc. is", fold=10, pick=partial(_guessing, evaluation))
    seconds = partial(over_trainings, path="wall_seconds")
    columns = (
        Column("contestant", "contestant", pick=str),
        accuracy,
        *([guessing] if any(_guessing(evaluation, contestant) for contestant in evaluation.contestants) else []),
        *other_scores,
        Column("best_epoch", "best epoch", short="best\nepoch", pick=partial(joined, path="best_epoch")),
        Column("epochs", "epochs trained", short="epochs", pick=partial(joined, path="epochs")),
        Column("n", "trainings", short="n", pick=lambda contestant: len(evaluation.models_of(contestant))),
        Column("wall_seconds", "wall seconds", 1, interval=True, terminal=False, pick=seconds),
        Column("status", "status", pick=partial(_status, evaluation)),
    )
    title = f"The best epoch of each framework, on {evaluation.num_examples:,} test images of {evaluation.data_name}"
    note = (
        f"Best by the validation split, the earliest of equal ones. Calibration error: {BINS} bins of equal width over "
        "the probability of the predicted label (Naeini et al. 2015, Guo et al. 2017); by chance, a calibrated model stays "
        f"within the error beside it in {percent(CHANCE)} of such samples. Of several trainings the median; in the "
        "report with the 25 % and 75 % quantiles."
    )
    return Table.from_items("evaluation", title, columns, evaluation.contestants, note, spreads_on_terminal=False)


def class_table(evaluation: EvaluationRecord) -> Table:
    """Return precision, recall and F1 of every class, the frameworks side by side, and their averages below."""

    def figure(contestant: str, key: str, heading: str) -> Column:
        def pick(line: tuple[str, int, str]) -> Spread | None:
            return _over_trainings(evaluation, contestant, f"scores.{line[2]}.{key}")

        return Column(
            f"{contestant}_{key}", f"{contestant} {heading}", 4, short=f"{contestant}\n{heading}", interval=True, pick=pick
        )

    figures = {"precision": "precision", "recall": "recall", "f1": "F1"}
    columns = (
        Column("class", "class", pick="0"),
        *(figure(contestant, key, heading) for contestant in evaluation.scored for key, heading in figures.items()),
        Column("support", "support", pick="1"),
    )
    lines = [
        (name, support, f"classes.{label}")
        for label, (name, support) in enumerate(zip(evaluation.shown_class_names, evaluation.supports, strict=False))
    ]
    if lines:
        lines += [(f"{average} average", evaluation.num_examples, average) for average in ("macro", "weighted")]
    note = f"Support: test images of the class. Macro: each class counts the same; weighted: by its support. {ZERO}"
    return Table.from_items(
        "classes", "Precision, recall and F1 of each class", columns, lines, note, spreads_on_terminal=False
    )


def agreement_table(evaluation: EvaluationRecord) -> Table:
    def agreement_column(key: str, heading: str, digits: int | None = None, **options: Any) -> Column:
        return Column(key, heading, digits, pick=f"agreement.{key}", **options)

    columns = (
        Column("first", "first"),
        Column("second", "second"),
        Column("seed", "seed"),
        agreement_column("labelled_differently", "labelled differently", short="labelled\ndifferently"),
        agreement_column("first_alone_right", "first alone right", short="first\nright"),
        agreement_column("second_alone_right", "second alone right", short="second\nright"),
        agreement_column("p", "McNemar's exact p", 3, least=True, short="McNemar\np"),
        Column("adjusted_p", "p, Holm-corrected", 3, short="p, Holm"),
    )
    note = (
        "Right: images that this one alone has right. The test asks whether both are right equally often; it has no p "
        "where neither is ever right alone."
    )
    title = f"Two frameworks' models on the same {evaluation.num_examples:,} images"
    return Table.from_items("agreement", title, columns, evaluation.pairs, note)


def crossing_table(evaluation: EvaluationRecord) -> Table:
    columns = (
        Column("trained_in", "trained in", pick="0.contestant"),
        Column("seed", "seed", pick="0.seed"),
        Column("used_in", "used in", pick="1.contestant"),
        Column("labelled_differently", "labelled differently", pick="1.labelled_differently"),
        Column(
            "largest_difference",
            "largest difference of a probability",
            -1,
            short="largest\ndifference",
            pick="1.largest_difference",
        ),
    )
    crossings = [(model, crossing) for model in evaluation.models for crossing in model.crossings]
    note = "Against what the framework that trained it makes of the same test images."
    return Table.from_items("crossings", "The same checkpoint in both frameworks", columns, crossings, note)


def confused_table(evaluation: EvaluationRecord) -> Table:
    columns = (
        Column("contestant", "contestant", pick="0.contestant"),
        Column("seed", "seed", pick="0.seed"),
        Column("true", "true class", pick="2"),
        Column("predicted", "taken for", pick="3"),
        Column("count", "images", pick="1.count"),
        Column("share", "share of the true class", 4, short="share", pick="1.share"),
    )
    names = evaluation.shown_class_names
    confused = [(model, pair, names[pair.true], names[pair.predicted]) for model in evaluation.models for pair in model.worst]
    return Table.from_items("confused", "Classes that are confused most often", columns, confused)


def calibration_table(evaluation: EvaluationRecord) -> Table:
    columns = (
        Column("contestant", "contestant", pick="0.contestant"),
        Column("seed", "seed", pick="0.seed"),
        Column("low", "confidence above", 3, pick="1.low"),
        Column("high", "up to", 3, pick="1.high"),
        Column("count", "images", pick="1.count"),
        Column("confidence", "mean confidence", 4, pick="1.confidence"),
        Column("accuracy", "accuracy", 4, pick="1.accuracy"),
    )
    bins = [
        (model, score_bin) for model in evaluation.models if model.scores for score_bin in model.scores.bins if score_bin.count
    ]
    return Table.from_items("calibration", "How sure the models are, and how often they are right", columns, bins)


def confusion_tables(evaluation: EvaluationRecord, contestant: str) -> list[Table]:
    """Return the counts, and the shares of each true class. Several trainings are added up."""
    counts = np.array(confusion(evaluation, contestant))
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    several = (
        f", {len(evaluation.models_of(contestant))} trainings added up" if len(evaluation.models_of(contestant)) > 1 else ""
    )

    def table(name: str, title: str, matrix: Any, digits: int | None) -> Table:
        taken_for = [
            Column(f"class_{label}", class_name, digits, pick=f"1.{label}")
            for label, class_name in enumerate(evaluation.shown_class_names)
        ]
        lines = zip(evaluation.shown_class_names, matrix.tolist(), strict=True)
        columns = [Column("true", "true class", pick="0"), *taken_for]
        return Table.from_items(f"{name}_{contestant}", f"{contestant}: confusion, {title}{several}", columns, lines)

    return [
        table("confusion", "images", counts, None),
        table("confusion_normalised", "share of the true class", shares, 4),
    ]


def confusion(evaluation: EvaluationRecord, contestant: str) -> list[list[int]]:
    """Count the test images of each true class (row) that were taken for each class (column), over all trainings."""
    return sum_matrices([model.scores.confusion for model in evaluation.models_of(contestant) if model.scores])
