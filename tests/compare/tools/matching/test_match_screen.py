"""The first screens of `match`: the same, another model, excused, and not to be told."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.matching.records import Layer, ModelReport, OpenRequest
from compare.judgement.statement import Statement
from compare.running import launch
from compare.tools.matching import corrections, match, match_words, model_comparison
from compare.tools.matching.causes import BIASED_VARIANCE, Cause
from compare.tools.matching.model_comparison import LayerPair, Match, RungResult
from tests.support.command_line import convtwins
from tests.support.snapshots import Screens
from tests.support.statements import check_words

NAMES = (
    "layers and parameters", "logits, inference", "logits, far from the usual values", "logits, training", "running statistics",
    "loss", "gradients", "one update, sgd", "20 steps, sgd", "one update, adam", "20 steps, adam",
)  # fmt: skip
WHERE = "net.py:12, keras_net.py:20"
BOTH = {"one": "pytorch", "other": "tensorflow"}
PADDINGS = [[[[[1, 1], [1, 1]], "zeros"]], [[[[0, 1], [0, 1]], "zeros"]]]
PADDING = Cause("padding", {**BOTH, "forms": PADDINGS}, WHERE, 4.9e-16, "", 0.89, "conv2")
BIASED = {"one": "tensorflow", "layer": "norm", "times": 1.002, "also": []}
BIAS = Cause(BIASED_VARIANCE, BIASED, WHERE, 1.2e-16, "", 4.4e-6, "norm")
FLATTENED = {**BOTH, "layers": ["fc", "dense"], "orders": ["chw", "hwc"], "copied": True}
NOTES = [Cause("flatten-order", FLATTENED, WHERE, None, "evened-out")]


def matched(settings: dict[str, str] | None = None, /, **changed: Any) -> Match:
    """A match whose rungs agree but for these: their numbers by the start of their names."""
    rungs = [RungResult(name, 2e-16, 1e-10, model_comparison.PASSED) for name in NAMES]
    for start, fields in changed.items():
        place = next(at for at, name in enumerate(NAMES) if name.replace(",", "").replace(" ", "_").startswith(start))
        rungs[place] = replace(rungs[place], **fields)
    asks = tuple(OpenRequest(model=model, image=(28, 28, 1), classes=10) for model in ("net:Net", "keras_net:build"))
    layers = Layer(name="conv2", kind="conv"), Layer(name="conv2d_1", kind="conv")
    return Match(
        ("pytorch", "tensorflow"), (asks[0], asks[1]), rungs, [LayerPair(*layers, 0.0, 0.0, settings or {})], NOTES,
        (ModelReport(layers=[], outputs=[10], where=None), ModelReport(layers=[], outputs=[10], where=None, unrecorded=True)),
    )  # fmt: skip


def screened(screens: Screens, found: Match, *written: str, folder: Path | None = None) -> str:
    """The words of the screen, once it is held against the kept ones."""
    report = match.report(found, [], written)
    assert report.exit_code == (0 if found.holds else 1)
    return " ".join(screens(report, folder).split())


FOLLOWS = {"status": model_comparison.FOLLOWS, "difference": 0.3}
PARTED: dict[str, Any] = {
    "logits_inference": {
        "status": model_comparison.FAILED, "difference": 0.34, "where": "conv2, conv2d_1", "first": 0.89, "causes": (PADDING,),
        "at_the_end": False,
    },
    "logits_far": FOLLOWS, "logits_training": FOLLOWS, "loss": FOLLOWS, "gradients": FOLLOWS, "one_update_sgd": FOLLOWS,
    "20_steps_sgd": FOLLOWS, "one_update_adam": FOLLOWS, "20_steps_adam": FOLLOWS,
}  # fmt: skip


def test_the_same_model_is_said_with_what_was_compared(screens: Screens) -> None:
    assert "--write" in screened(screens, matched())


def test_another_model_is_said_with_its_cause_by_name_and_the_lines_to_change(screens: Screens) -> None:
    found = matched({"padding": "padding [[1, 1], [1, 1]], [[0, 1], [0, 1]]", "stride": "stride 2, 1"}, **PARTED)
    shown = screened(screens, found)
    assert f"look at {WHERE}" in shown and "--write" not in shown
    assert "conv2 (stride 2, 1)" in shown  # the padding is explained already


EPSILON_VALUES = {**BOTH, "layers": ["bn1", "batch_normalization"], "kind": "batch_norm", "epsilon": [1e-05, 1e-03]}
EPSILON = Cause("epsilon", EPSILON_VALUES, "net.py:9, keras_net.py:18", 4.5e-16, "", 4.9e-4, "bn1")
MOMENTA = {**BOTH, "layers": ["bn1", "batch_normalization"], "weights": [0.1, 0.01], "stated": 0.1, "also": ["bn2"]}
MOMENTUM = Cause("batch-norm-momentum", MOMENTA, "net.py:9, keras_net.py:18", 1.2e-16, "", 0.15, "bn1")


def test_several_mistakes_have_a_line_each_with_their_layer_their_size_and_what_to_write(screens: Screens) -> None:
    behind = PADDING, EPSILON._replace(at="bn2", size=2e-5)
    first = {**PARTED["logits_inference"], "where": "bn1, batch_normalization", "first": 4.9e-4, "causes": (EPSILON,)}
    running = {"status": model_comparison.FAILED, "difference": 0.15, "causes": (MOMENTUM, BIAS)}
    found = matched(**{**PARTED, "logits_inference": {**first, "behind": behind}, "running": running})
    text = screened(screens, found)
    lines = [
        "The difference begins at bn1, batch_normalization, with 4.9e-04. Layers behind it were judged in part.",
        "epsilon at bn1, bn2, alone 4.9e-04: write BatchNormalization(epsilon=1e-05).",
        'padding at conv2, alone 8.9e-01: write ZeroPadding2D(1) before it and padding="valid" in it.',
        "batch-norm-momentum at bn1, bn2, alone 1.5e-01: write BatchNormalization(momentum=0.9).",
        "biased-variance at norm, alone 4.4e-06: add --accept biased-variance: Keras has no option for it.",
    ]
    places = [text.find(line) for line in lines]
    assert -1 not in places and places == sorted(places), places
    assert all(cause.at in " ".join(found.sentences) for cause in behind)


def test_the_size_of_a_cause_stands_at_its_layer_and_beside_what_is_left() -> None:
    assert match_words.experiment(MOMENTUM) == (
        "Verified: alone it makes the two differ by 1.5e-01 at bn1 (less at bn2), and by 1.2e-16 once corrected."
    )


@pytest.mark.parametrize(
    ("cause", "variant", "values", "words"),
    [
        ("padding", "", {"forms": [[[[[0, 0], [0, 0]], "zeros"]]]}, 'write padding="valid"'),
        (
            "padding", "", {"forms": [[[[[1, 1], [2, 2]], "zeros"]]]},
            'write ZeroPadding2D((1, 2)) before it and padding="valid" in it',
        ),
        (
            "padding", "", {"forms": [[[[[0, 1], [0, 1]], "zeros"]]]},
            'write ZeroPadding2D(((0, 1), (0, 1))) before it and padding="valid" in it',
        ),
        (
            "padding", "", {"forms": [[[[[1, 1], [1, 1]], "reflect"]]]},
            'write keras.ops.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], mode="reflect") before it and padding="valid" in it',
        ),
        ("padding", "", {"forms": [[[[[1, 1], [1, 1]], "circular"]]]}, ""),
        ("padding", "", {"forms": [[[[[1, 1], [1, 1]], "zeros"], [[[1, 1], [1, 1]], "reflect"]]]}, ""),
        ("padding", "cut", {"forms": [[[[1, 0], [1, 0]], [[0, 1], [0, 1]]]], "is_whole": True}, ""),
        (
            "padding", "cut", {"forms": [[[[1, 0], [1, 0]]]], "is_whole": True},
            'write padding="valid" and Cropping2D(((1, 0), (1, 0))) behind it',
        ),
        ("padding", "cut", {"forms": [[[[1, -1], [1, 0]]]], "is_whole": True}, ""),
        ("padding", "cut", {"forms": [[[[1, 0], [1, 0]]]], "is_whole": False}, ""),
        ("epsilon", "", {"kind": "layer_norm", "epsilon": [1e-05, 0.001]}, "write LayerNormalization(epsilon=1e-05)"),
        ("batch-norm-momentum", "", {"stated": 0.1}, "write BatchNormalization(momentum=0.9)"),
        ("batch-norm-momentum", "", {"stated": None}, ""),
        ("bias-missing", "", {"place": 1, "role": "bias"}, "write use_bias=True"),
        ("bias-missing", "", {"place": 0, "role": "bias"}, "write use_bias=False"),
        ("bias-missing", "parameter", {"place": 1, "role": "gamma"}, "write scale=False"),
        ("activation", "", {"forms": [["leaky ReLU, slope 0.01"], ["ReLU"]]}, "write LeakyReLU(negative_slope=0.01)"),
        ("activation", "", {"forms": [["ReLU", "ReLU6"], ["tanh"]]}, ""),
        ("activation", "addition", {"forms": [[["ReLU", True]], [["tanh", True]]]}, 'write activation="relu"'),
        (
            "pooling", "", {"forms": [[["maximum", [2, 2]]], [["average", [2, 2]]]]},
            'write MaxPooling2D((2, 2), padding="valid") with the same strides',
        ),
        ("interpolation", "", {"forms": [["bilinear"], ["nearest"]]}, 'write interpolation="bilinear"'),
        ("interpolation", "", {"forms": [["bilinear with aligned corners"], ["nearest"]]}, ""),
        ("dropout-rate", "", {"rates": [0.25, 0.5]}, "write Dropout(0.25)"),
        ("dropout-rate", "channels", {"place": 0}, "write SpatialDropout2D in the place of Dropout"),
        ("dropout-active", "training", {"place": 0, "rate": 0.25}, "write Dropout(0.25)"),
        ("dropout-active", "inference", {"place": 1}, "leave training=True out"),
        ("softmax-output", "", {"place": 1, "returns": "probabilities (softmax)"}, "leave the softmax of the last layer out"),
        ("frozen", "", {"place": 1}, "leave trainable=False out"),
        ("batch-norm-mode", "", {"mode": "training", "batch": [True, False]}, "leave training=False and trainable=False out"),
        ("label-encoding", "outputs", {"outputs": [10, 11]}, "write units=10 in the last layer"),
        ("data-format", "shape", {"axis": 1}, "write axis=-1"),
        (
            "loss", "", {"losses": ["mean cross-entropy of logits", "cross-entropy of the outputs, taken as probabilities"]},
            "write from_logits=True in the loss",
        ),
        (
            "adam-epsilon", "", {"optimizers": [{"epsilon": 1e-8}, {"epsilon": 1e-7}]}, "write Adam(epsilon=1e-08)",
        ),
        (
            "adam-epsilon", "", {"optimizers": [{"epsilon": 1e-8}, {"epsilon": 1e-8}]},
            "add --accept adam-epsilon: Keras has no option for it",
        ),
        (
            "rmsprop", "", {"optimizers": [{"decay": 0.99, "epsilon": 1e-8}, {"decay": 0.9, "epsilon": 1e-8}]},
            "write RMSprop(rho=0.99)",
        ),
        (
            "weight-decay", "",
            {"optimizers": [{"weight_decay": 0.01, "coupled": False}, {"weight_decay": 0.0, "coupled": False}]},
            "write weight_decay=0.01 in the optimizer",
        ),
        (
            "weight-decay", "",
            {"optimizers": [{"weight_decay": 0.01, "coupled": True}, {"weight_decay": 0.01, "coupled": False}]}, "",
        ),
        ("weight-decay", "regularizer", {"place": 1, "factor": 0.01}, "leave kernel_regularizer out"),
        (
            "learning-rate", "",
            {"optimizers": [{"rule": "sgd", "learning_rate": 0.1}, {"rule": "sgd", "learning_rate": 0.01}]},
            "write learning_rate=0.1 in the optimizer",
        ),
        ("order", "", {}, ""),
    ],
)  # fmt: skip
def test_a_cause_that_one_argument_mends_says_what_to_write(
    cause: str, variant: str, values: dict[str, Any], words: str
) -> None:
    assert corrections.correction(Cause(cause, values, variant=variant)) == words


def test_the_json_of_a_cause_has_its_facts_and_its_sentence() -> None:
    values = json.loads(match.report(matched(**PARTED), []).to_json())
    (cause,) = values["rungs"][1]["causes"]
    assert cause["values"]["forms"] == PADDINGS and cause["sentence"].startswith("pytorch pads 1 above")
    (statement,) = (statement for statement in values["statements"] if statement["kind"] == "cause")
    assert match_words.sentences([Statement.model_validate(statement)])[0].startswith(
        f"padding: {cause['sentence']} Verified: "
    )


def test_the_json_tells_a_cause_that_no_correction_verified_from_one_that_was_not_tried_out() -> None:
    residuals = (math.inf, None)
    parted = {**PARTED["logits_inference"], "causes": tuple(PADDING._replace(residual=residual) for residual in residuals)}
    values = json.loads(match.report(matched(**{**PARTED, "logits_inference": parted}), []).to_json())
    statements = [Statement.model_validate(statement) for statement in values["statements"]]
    told = match_words.sentences(statement for statement in statements if statement.kind == "cause")
    assert [cause["is_tried"] for cause in values["rungs"][1]["causes"]] == [True, False]
    assert ["Not verified: no correction was found" in told[0], "Not tried out" in told[1]] == [True, True], told


def test_a_place_may_have_braces_in_its_name() -> None:
    forms = {"layers": ["relu at {net}.py:3", "relu"], "same_input": True, "functions": [], "forms": [["ReLU"], ["ReLU6"]]}
    told = match_words.cause_sentence(Cause("activation", {**BOTH, **forms}))
    assert told == 'At relu at {net}.py:3, relu: pytorch applies ReLU, tensorflow ReLU6. In Keras, write activation="relu".'


def test_a_difference_without_a_name_says_so(screens: Screens) -> None:
    parted = {**PARTED["logits_inference"], "causes": (), "between": "between conv1 and conv2"}
    assert "look at" not in screened(screens, matched(**{**PARTED, "logits_inference": parted}))


@pytest.mark.parametrize("status", [model_comparison.FAILED, model_comparison.ACCEPTED])
def test_what_keras_cannot_do_otherwise_is_let_pass_by_a_word(screens: Screens, status: str) -> None:
    biased = {"status": status, "difference": 4.4e-6, "where": "norm.variance", "causes": (BIAS,)}
    found = matched(running={**biased, "tolerance": 1e-10})
    assert (found.sentences[0].startswith("The same but for running statistics: ")) is (status == model_comparison.FAILED)
    is_accepted = status == model_comparison.ACCEPTED
    written = ["pairs/net.py was written. Train it in both frameworks: run --model pairs.net --image-size 28."]
    shown = screened(screens, found, *(written if is_accepted else []))
    assert ("the same command with --accept biased-variance" in shown) is not is_accepted
    assert ("pairs/net.py" in shown) is is_accepted


def test_what_was_accepted_and_hides_the_rest_is_no_yes(screens: Screens) -> None:
    hidden = {"status": model_comparison.UNJUDGED, "difference": 0.3}
    found = matched(logits_inference={**hidden, "causes": (PADDING,)}, logits_training=hidden, loss=hidden)
    screened(screens, found, folder=Path("results/made"))
    assert match.report(found, []).values["verdict"] == "cannot tell"


PAGE = launch.PROJECT_ROOT / "docs" / "match.md"


def test_the_first_forty_lines_of_the_page_explain_every_word_of_a_first_screen() -> None:
    first = "\n".join(PAGE.read_text().splitlines()[:40])
    labels = {*match._LABELS.values(), "Same, but", "Not accepted", "Why", "Settings", "lines to look at"}
    rows = {row.split(" | ")[0].removeprefix("| ") for row in first.splitlines() if row.startswith("| ")}
    assert labels <= rows and "--accept biased-variance" in first and "also called rungs" in first
    assert "convtwins match my_package" in first and "first 40 lines" in first


def test_the_page_has_one_spelling_of_the_command() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if "bin/convtwins" in line]
    assert lines == ['alias convtwins="$PWD/.venv/bin/convtwins"']


def test_every_kind_of_statement_has_words_and_every_template_is_of_a_kind_that_is_made() -> None:
    check_words(model_comparison.__file__, match_words.TEMPLATES)


def test_a_file_for_a_pull_request_has_each_check_the_versions_and_the_layers_behind_a_click(tmp_path: Path) -> None:
    versions = {"torch": "2.14.1", "torchvision": None}, {"keras": "3.15.1"}
    report = match.report(replace(matched(**PARTED), versions=versions), ["match", "net:Net", "keras_net:build"])
    file = tmp_path / "comment.md"
    assert (report.append_to(file, 1), report.append_to(None, 1), report.append_to(tmp_path, 0)) == (1, 1, 1)
    text = file.read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows if row[0].removeprefix("| ") in NAMES] == [*NAMES]
    assert "<details><summary>Layers, side by side: 1 row</summary>" in text and text.count("</details>") == 1
    assert "torch 2.14.1" in text and "keras 3.15.1" in text and "torchvision" not in text
    report.append_to(file, 1)
    assert file.read_text() == 2 * text


def test_a_refusal_stands_in_the_file_for_a_pull_request(tmp_path: Path) -> None:
    file = tmp_path / "comment.md"
    words = ("nosuch.net:Net", "keras_net:build", "--input", "8x8x3", "--classes", 5)
    assert convtwins("match", *words, "--markdown", file).exit_code == 2
    assert file.read_text().startswith("# No verdict") and "nosuch" in file.read_text()
