"""Names of classes come with the data and with checkpoints. Every report shows each of their characters in one way."""

import numpy as np
import pytest

from common.artifacts.schema import Metrics
from common.artifacts.trained import Card, Trained
from common.models import weights
from compare.cli import wording
from compare.judgement.row_figures import GUESSING
from compare.judgement.summary import summarize
from compare.reporting import class_tables, latex, tables
from compare.tools.evaluation import predict
from compare.tools.evaluation.scoring import EvaluationRecord
from tests.compare.twins import linear
from tests.support import comparisons

NAMES = ("bell\a", "red\x1b[31m", "two\nlines", "a\tb", "right \u202e left", "zero\u200bwidth", "back\\slash", "слива")
SHOWN = (
    r"bell\x07", r"red\x1b[31m", r"two\nlines", r"a\tb", r"right \u202e left", r"zero\u200bwidth", r"back\\slash", "слива",
)  # fmt: skip


def test_a_name_is_shown_character_by_character() -> None:
    assert tuple(map(wording.visible, NAMES)) == SHOWN
    assert [wording.visible(name) for name in ("a b", " a", "a  ", "  ", "")] == [
        "a b",
        r"\x20a",
        r"a\x20\x20",
        r"\x20\x20",
        "",
    ]


def predictions(correct: int = 50, chance: float | None = None) -> tables.Table:
    network = linear.architecture(len(NAMES), 8)
    card = Card(
        framework="left", versions={}, model="a.b", class_names=NAMES, image_size=8, pixel_mean=(0, 0, 0), pixel_std=(1, 1, 1),
        precision="float64", spec_hash="", data_hash="", seed=0, epoch=1, chance_accuracy=chance,
        validation=Metrics(loss=1.0, accuracy=correct / 100, num_correct=correct, num_examples=100),
    )  # fmt: skip
    model = Trained(card, network, weights.initial(network, 0))
    found = predict.Predictions("left", model, [predict.Path(f"{name}.png") for name in NAMES], np.eye(len(NAMES)))
    report = predict.report(found, predict.Path("model"), len(NAMES))
    assert [image["label"] for image in report.values["images"]] == list(NAMES)
    return report.terminal_tables[0]


def test_predictions_of_a_model_that_guesses_say_so() -> None:
    assert GUESSING in predictions(17).note and "0.1700" in predictions(17).note  # by chance 0.125, of 8 classes
    assert GUESSING not in predictions(50).note and GUESSING in predictions(50, chance=0.5).note


def compared() -> list[tables.Table]:
    counts = np.eye(len(NAMES), dtype=int).tolist()
    summaries = summarize(comparisons.with_runs(comparisons.repeated(1), confusion=counts))
    return [*class_tables.class_table(summaries, NAMES), *class_tables.confusion_table(summaries, NAMES)]


def test_every_table_shows_names_in_this_way() -> None:
    predicted, (classes, confusion) = predictions(), compared()
    assert [row["label"] for row in predicted.rows] == list(SHOWN)
    assert [row["image"] for row in predicted.rows] == [f"{name}.png" for name in SHOWN]
    assert all(f"{name} 0.0000" in str(predicted.rows[0]["others"]) for name in SHOWN[1:])
    assert [row["class"] for row in classes.rows[: len(SHOWN)]] == list(SHOWN)
    assert [row["class"] for row in confusion.rows[: len(SHOWN)]] == list(SHOWN)
    assert EvaluationRecord.model_construct(class_names=list(NAMES)).shown_class_names == list(SHOWN)


@pytest.mark.parametrize("form", [tables.to_csv, latex.to_latex, tables.to_markdown])
def test_no_file_holds_a_control_character(form: object) -> None:
    assert callable(form)
    for table in (predictions(), *compared()):
        text = str(form(table))
        assert not [letter for letter in text if not letter.isprintable() and letter != "\n"]
