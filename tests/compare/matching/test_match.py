"""Ports that are the same, and a planted mistake for each cause that `match` knows. One process per framework serves all."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.models import architectures, user_code, work
from common.spec import SpecError
from compare import api
from compare.execution import launch
from compare.matching import causes, model_comparison, pair_file
from compare.matching import match as matching
from compare.matching.causes import KNOWN_CAUSES, Cause
from compare.matching.model_comparison import Match, ModelProcess
from compare.proof import ladder
from compare.proof.certificate import Proof, Rung
from tests.planted import pair_for_run

TORCH, KERAS = "tests.planted.ports_torch", "tests.planted.ports_keras"
IMAGE, CLASSES = (8, 8, 3), 5
EXAMPLE = launch.PROJECT_ROOT / "docs" / "examples" / "match"

Both = tuple[ModelProcess, ModelProcess]
OWN = {"optimizer": ("sgd", "sgd"), "loss": ("cross_entropy", "cross_entropy"), "prepare": ("prepare", "prepare")}


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with model_comparison.start_processes(tmp_path_factory.mktemp("match")) as started:
        yield started


TURNED = ("transposed", "moved", "swapped_twice", "transposed_by_tensorflow", "transposed_before_dropout")
"""Right ports that put the channels first before they flatten."""


def matched(both: Both, net: str, model: str, **options: Any) -> Match:
    for name in ("loss", "optimizer", "prepare"):
        if name in options:
            options[name] = (f"{TORCH}:{options[name][0]}", f"{KERAS}:{options[name][1]}")
    return matching.match(
        f"{TORCH}:{net}", f"{KERAS}:{model}", image=IMAGE, classes=CLASSES, **{"steps": 2, **options}, processes=both
    )


@pytest.mark.parametrize(
    ("net", "model", "options"),
    [
        ("Net", "port", {}),
        ("Net", "Subclassed", {}),
        ("Net", "sequential", {}),
        ("Residual", "residual", {}),
        ("Twice", "twice_by_name", {}),
        ("TwoPaths", "TwoPaths", {"maps": ["left=one"]}),
        ("blocks", "blocks", {}),
        ("seeded", "seeded", {"as_built": True}),
        ("Net", "port", OWN),
        ("Net", TURNED[0], {}),
        ("Shared", "shared", {}),
        ("Perceptron", "perceptron", {"prepare": ("channels_last", "scaled_only")}),
        ("Heads", "heads_channels_first", {}),
        ("with_relu6", "subclassed_with_relu6", {}),
        ("resized_to_the_nearest", "resized_to_the_nearest", {}),
        ("Transposed", "transposed_convolution_that_is_cut", {}),
        ("reflecting", "reflecting", {}),
        ("Attends", "Attends", {}),
        ("Attends", "attends_in_layers", {}),
        ("AttendsAtOnce", "attends_at_once", {}),
        ("NormFirst", "norm_first", {}),
        ("NormThenActivation", "norm_then_activation", {}),
        ("Net", "port", {"loss": ("cross_entropy_of_weighted_classes", "cross_entropy_over_the_weights")}),
        ("Net", "port", {"optimizer": ("BelowTheRoot", "rmsprop_without_momentum")}),
        ("TurnsInside", "turns_inside", {}),
        ("Gated", "gated", {}),
        *(
            pytest.param(net, port, options, marks=pytest.mark.slow)
            for net, port, options in (
                ("Twice", "Twice", {}),
                ("Twice", "Twice", {"maps": ["left=one"]}),
                *(("Net", port, {}) for port in TURNED[1:]),
                ("ChannelsLast", "port", {}),
                ("InTurn", "in_turn", {}),
                ("Perceptron", "perceptron", {}),
                ("Perceptron", "perceptron_channels_first", {}),
                ("ScaledPerceptron", "ScaledPerceptron", {}),
                ("Heads", "heads", {}),
                ("with_relu6", "with_relu6", {}),
                ("with_softmax_inside", "with_softmax_inside", {}),
                ("with_hardswish", "with_hardswish", {}),
            )
        ),
    ],
)
def test_a_right_port_is_the_same_model(both: Both, net: str, model: str, options: dict[str, Any]) -> None:
    found = matched(both, net, model, **options)
    assert found.same, found.sentences
    said, *others = found.sentences  # no settings are told that zeros in front even out
    assert said.startswith(f"Yes: {TORCH}:{net} and {KERAS}:{model} are the same model.")
    assert [each[:46] for each in others] == ["Functions that a subclassed Keras model calls "] * bool(
        found.opened[1].unrecorded
    )
    rules = 1 if "optimizer" in options else 2
    assert len(found.rungs) == 7 + 2 * rules + bool(options.get("as_built"))


@pytest.mark.parametrize("model", ["inception", pytest.param("InceptionOfFunctions", marks=pytest.mark.slow)])
def test_parallel_branches_are_paired_by_their_paths(both: Both, model: str) -> None:
    """Shapes do not tell them apart, and the port makes and runs them in another order."""
    found = matched(both, "Inception", model, accept=["biased-variance"])
    assert found.holds, found.sentences
    assert [rung.name for rung in found.rungs if rung.status != model_comparison.PASSED] == ["running statistics"]


def test_branches_that_only_an_activation_tells_apart_are_refused_with_a_command_that_works(both: Both) -> None:
    with pytest.raises(SpecError, match="Neither names nor the paths through the models tell them apart") as refused:
        matched(both, "TwoSums", "two_sums")
    maps = re.findall(r"--map (\S+=\w+)", str(refused.value).partition("Perhaps")[2])
    assert len(maps) == 4
    assert matched(both, "TwoSums", "two_sums", maps=maps).same
    wrong = matched(both, "TwoSums", "two_sums", maps=["first.0=b_begin"])  # the others follow
    assert not wrong.holds and "activation" in {cause.name for rung in wrong.rungs for cause in rung.causes}, wrong.sentences


def test_a_match_prints_its_answer_with_a_line_for_each_rung_and_tells_as_each_ends(both: Both) -> None:
    told: list[str] = []
    found = matched(both, "Net", "same_padding", progress=told.append)
    assert told[0] == "opening both models ..." and told[1] == "layers and parameters: agrees"
    assert told[2] == "measuring both: outputs, gradients, 2 steps of training ..."
    assert len(told) == len(found.rungs) + 2
    assert re.fullmatch(r"logits, inference: differs by \d\.\de-\d+", told[3])
    shown = repr(found)
    assert str(found) == shown and shown.startswith("\n".join(found.sentences))
    assert "layers and parameters: passed, largest difference 0.0e+00\n" in shown and "Rung(" not in shown
    assert shown.count("\n") == len(found.sentences) + len(found.rungs)
    assert repr(found.rungs[1]).startswith("logits, inference: failed, largest difference ")


FAR = "logits, far from the usual values"
CASES: list[tuple[str, str, str, str, dict[str, Any], str]] = [
    ("layer-missing", "layers and parameters", "Net", "other_width", {}, "conv2 (conv 3x3x4x6"),
    ("pairing", "logits, inference", "TwoPaths", "TwoPaths", {}, "By order alone left, right were paired with two, one."),
    ("bias-missing", "logits, inference", "Net", "without_bias", {}, "conv2d_1 has no bias"),
    ("flatten-order", "weights as given", "seeded", "seeded_without_order", {"as_built": True}, "in the other order of"),
    ("kernel-layout", "weights as given", "seeded", "seeded_transposed", {"as_built": True}, "height and width exchanged"),
    ("initialisation", "weights as given", "Net", "port", {"as_built": True}, "draw parameters of another size"),
    ("input-scaling", "logits, inference", "Net", "scaled", {}, "pixels times 0.00784314, plus -1"),
    (
        *("input-scaling", "logits, inference", "Net", "port", {"prepare": ("prepare", "prepare_without_scale")}),
        "pixels times 255, plus 0",
    ),
    (
        *("input-scaling", "logits, inference", "Net", "port", {"prepare": ("prepare", "prepare_by_channel")}),
        "pixels times [0.5, 1, 2], plus [0.25, 0, -0.125].",
    ),
    (
        *("input-scaling", "logits, inference", "Net", "port", {"prepare": ("prepare", "prepare_shifted_by_channel")}),
        "pixels times 1, plus [0.25, 0, -0.125].",
    ),
    ("data-format", "logits, inference", "Net", "reshaped", {}, "reshaped to channels, height, width instead of transposed"),
    ("data-format", "logits, inference", "TurnsInside", "turns_inside_as_pytorch", {}, "norm sees pytorch's width, channels"),
    ("data-format", "layers and parameters", "with_norm", "wrong_axis", {}, "normalises along axis 1"),
    ("order", "logits, inference", "Shared", "shared_in_another_order", {}, "tensorflow concatenates in another order"),
    (
        *("order", "logits, inference", "Inception", "inception_joined_in_another_order", {}),
        "tensorflow concatenates in another order than pytorch: its channels are pytorch's",
    ),
    (
        *("order", "logits, inference", "InTurn", "in_turn_in_another_order", {}),
        "pytorch calls one where tensorflow calls two. If only the names are exchanged, add --map one=two.",
    ),
    ("float32", "logits, inference", "Net", "in_float32", {}, "dense computes in float32"),
    ("float32", "logits, inference", "Net", "rounded_on_the_way", {}, "tensorflow's values are rounded to float32"),
    ("addition-missing", "logits, inference", "Residual", "without_addition", {}, "pytorch adds an earlier value"),
    (
        *("addition-missing", "logits, inference", "InvertedResidual", "inverted_residual_without_addition", {}),
        "pytorch adds an earlier value",
    ),
    ("padding", "logits, inference", "Net", "same_padding", {}, "tensorflow 0 above and 1 below, 0 left and 1 right"),
    ("padding", "logits, inference", "blocks", "same_padding_in_a_block", {}, "pads 1 above and 1 below, 1 left and 1 right"),
    (
        *("padding", "logits, inference", "Transposed", "transposed_convolution", {}),
        "2 above and 1 below, 2 left and 1 right of the whole map, tensorflow 1 above and 2 below, 1 left and 2 right.",
    ),
    (
        *("padding", "logits, inference", "reflecting", "padded_convolution", {}),
        "2 left and 2 right by mode reflect, tensorflow 2 above and 2 below, 2 left and 2 right with zeros.",
    ),
    (
        *("interpolation", "logits, inference", "resized_with_aligned_corners", "resized_bilinearly", {}),
        "pytorch resizes by bilinear with aligned corners, tensorflow by bilinear.",
    ),
    (
        *("interpolation", "logits, inference", "resized_by_a_function", "resized_to_the_nearest", {}),
        "pytorch resizes by bicubic (-0.75), tensorflow by nearest.",
    ),
    ("attention", "logits, inference", "Attends", "attends_without_a_factor", {}, "by 0.5 in 2 heads, tensorflow by 1 in 2"),
    ("attention", "logits, inference", "Attends", "attends_in_layers_without_a_factor", {}, "2 heads, tensorflow by 1 in 2"),
    ("attention", "logits, inference", "Attends", "attends_with_four_heads", {}, "0.5 in 2 heads, tensorflow by 0.5 in 4"),
    ("attention", "logits, inference", "AttendsAtOnce", "attends_at_once_by_its_width", {}, "2 heads, tensorflow by 0.353553"),
    (
        *("normalisation-place", "logits, inference", "NormFirst", "norm_last", {}),
        "pytorch has the normalisation norm in front of one, one, tensorflow has norm elsewhere.",
    ),
    (
        *("normalisation-place", "logits, inference", "NormThenActivation", "activation_then_norm", {}),
        "pytorch has the normalisation norm in front of tanh, tensorflow has norm behind tanh.",
    ),
    (
        *("normalisation-place", "logits, training", "ReluThenNorm", "norm_then_relu", {}),
        "pytorch has the normalisation norm behind ReLU, tensorflow has batch_normalization",
    ),
    (
        *("activation", "logits, inference", "InvertedResidual", "inverted_residual_with_relu_before_the_sum", {}),
        "In front of an addition: pytorch applies no activation, tensorflow ReLU.",
    ),
    (
        *("activation", "logits, inference", "blocks", "relu_before_the_sum", {}),
        "In front of an addition: pytorch applies no activation (behind the sum ReLU), tensorflow ReLU (these",
    ),
    ("activation", "logits, inference", "with_gelu_tanh", "gelu", {}, "GELU (tanh), tensorflow GELU (erf)"),
    ("activation", "logits, inference", "with_leaky", "leaky", {}, "leaky ReLU, slope 0.01, tensorflow leaky ReLU, slope 0.3"),
    ("activation", "logits, inference", "with_small_gelu_tanh", "gelu", {}, "GELU (tanh), tensorflow GELU (erf)"),
    ("activation", "logits, inference", "TurnsInside", "turns_inside_with_tanh", {}, "ReLU, tensorflow tanh"),
    ("activation", "logits, inference", "Gated", "gated_by_a_hard_sigmoid", {}, "applies sigmoid, tensorflow hard sigmoid"),
    ("activation", "logits, inference", "with_tanh", "hard_tanh", {}, "pytorch applies tanh, tensorflow hard tanh."),
    ("activation", FAR, "with_relu6", "port", {}, "pytorch applies ReLU6, tensorflow ReLU."),
    ("activation", FAR, "with_relu6", "Subclassed", {}, "pytorch applies ReLU6, tensorflow ReLU."),
    ("activation", FAR, "Net", "with_relu6", {}, "pytorch applies ReLU, tensorflow ReLU6."),
    ("input-scaling", FAR, "Brightens", "port", {}, "pixels times 0.05, plus 0"),
    ("activation", "logits, inference", "Net", "no_activation", {}, "ReLU, tensorflow no activation"),
    ("pooling", "logits, inference", "Net", "average_pool", {}, "the maximum of 2x2, tensorflow the average of 2x2"),
    ("pooling", "logits, inference", "padded_pool", "pool_padded_with_zeros", {}, "1 left and 1 right, with zeros."),
    ("pooling", "logits, inference", "with_leaky", "right_leaky_and_average_pool", {}, "tensorflow the average of 2x2"),
    ("epsilon", "logits, inference", "with_norm", "default_norm", {}, "epsilon 1e-05, tensorflow's batch_normalization 0.001"),
    ("epsilon", "logits, inference", "TurnsInside", "turns_inside_with_another_epsilon", {}, "norm adds epsilon 1e-05, te"),
    ("epsilon", "logits, inference", "Upsampled", "upsampled_with_another_epsilon", {}, "adds epsilon 1e-05, tensorflow's ba"),
    ("batch-norm-mode", "logits, training", "with_norm", "norm_in_inference", {}, "batch_normalization the running ones"),
    ("dropout-active", "logits, inference", "AlwaysDropping", "port", {}, "pytorch drops 0.3 of the values also in inference"),
    ("dropout-active", "logits, training", "Net", "no_dropout", {}, "drops 0.3 of the values in training, tensorflow none"),
    ("dropout-rate", "logits, training", "Net", "other_rate", {}, "pytorch drops 0.3 of the values, tensorflow 0.5"),
    ("dropout-rate", "logits, training", "with_leaky", "right_leaky_of_other_rate", {}, "0.3 of the values, tensorflow 0.5"),
    ("dropout-rate", "logits, training", "mixed", "single_values_dropped", {}, "whole channels, tensorflow single values"),
    ("softmax-output", "logits, inference", "Net", "softmax", {}, "tensorflow returns probabilities (softmax), pytorch logits"),
    ("softmax-output", "logits, inference", "with_leaky", "ProbabilitiesInInference", {}, "returns probabilities (softmax)"),
    ("batch-norm-momentum", "running statistics", "with_norm", "other_momentum", {}, "weight 0.1 in its running statistics"),
    ("biased-variance", "running statistics", "with_norm", "with_norm", {}, "running variance of norm is the biased one"),
    ("frozen", "gradients", "Net", "frozen", {}, "tensorflow does not train dense.bias"),
    ("label-encoding", "layers and parameters", "Net", "one_class_more", {}, "Labels that start at 1 need one more"),
    ("label-encoding", "loss", "Net", "port", {"loss": ("cross_entropy", "from_one")}, "labels one too low"),
    ("loss", "loss", "Net", "port", {"loss": ("cross_entropy", "of_probabilities")}, "softmax of the outputs"),
    ("loss", "loss", "Net", "port", {"loss": ("cross_entropy", "summed")}, "sum of the cross-entropies"),
    (
        *("class-weights", "loss", "Net", "port", {"loss": ("cross_entropy_of_weighted_classes", "cross_entropy")}),
        "pytorch weights the classes 0, 1, 2, 3, 4 as 1 : 2 : 0.5 : 4 : 3, tensorflow all classes alike.",
    ),
    (
        *("class-weights", "loss", "Net", "port"),
        {"loss": ("cross_entropy_of_weighted_classes", "cross_entropy_of_weighted_classes")},
        "4 : 3. pytorch divides by the sum of the weights, tensorflow by another number,",
    ),
    ("rmsprop", "one update, own optimizers", "Net", "port", {"optimizer": ("rmsprop", "rmsprop")}, "0.1 behind the root"),
    ("weight-decay", "loss", "Net", "regularized", {}, "tensorflow adds a regularizer to the loss: 0.01 times the square"),
    ("adam-epsilon", "one update, own optimizers", "Net", "port", {"optimizer": ("adam", "adam")}, "1e-07 before the bias"),
    (
        *("weight-decay", "one update, own optimizers", "Net", "port"),
        *({"optimizer": ("adam_with_decay", "adam_with_decay")}, "0.01 as part of the gradient (coupled), tensorflow by 0.01"),
    ),
    ("learning-rate", "one update, own optimizers", "Net", "port", {"optimizer": ("sgd", "slower_sgd")}, "learning rate 0.01"),
]  # fmt: skip
READ_FROM_THE_MODELS = {"layer-missing", "initialisation", "frozen", "pairing", "float32"}
"""Causes that need no experiment."""


def _once(cases: list[tuple[str, str, str, str, dict[str, Any], str]]) -> list[Any]:
    """All cases. In the quick suite is the first of each cause at each rung."""
    first = {case[:2]: case for case in reversed(cases)}
    return [pytest.param(*case, marks=[] if first[case[:2]] is case else [pytest.mark.slow]) for case in cases]


@pytest.mark.parametrize(("cause", "rung", "net", "model", "options", "said"), _once(CASES), ids=lambda each: str(each)[:40])
def test_a_planted_mistake_is_found_where_it_is_and_named(
    both: Both, cause: str, rung: str, net: str, model: str, options: dict[str, Any], said: str
) -> None:
    found = matched(both, net, model, **options)
    assert not found.same and not found.holds
    first = next(each for each in found.rungs if each.status == model_comparison.FAILED and each.causes)
    if rung != "logits, inference" or cause != "bias-missing":  # that one is seen in the parameters too
        assert first.name == rung, found.sentences
    causes = [each for failed in found.rungs for each in failed.causes if each.name == cause]
    assert causes and said in " ".join(each.sentence for each in causes), found.sentences
    read = cause in READ_FROM_THE_MODELS or rung == "layers and parameters"
    assert read or any(each.residual is not None and each.residual < 1e-5 for each in causes)
    if rung.startswith("logits"):
        assert any(re.search(r"ports_(torch|keras)\.py:\d+", each.where) for each in causes)


@pytest.mark.parametrize(
    ("net", "model", "maps"),
    [
        ("InvertedResidual", "inverted_residual_upside_down", []),  # of the two normalisations, the first agrees
        # Both part, but another layer does so first.
        pytest.param("InvertedResidual", "inverted_residual_upside_down_early", [], marks=pytest.mark.slow),
        ("TwoPaths", "TwoPaths", ["left=two", "right=one"]),
    ],
)
def test_a_pairing_is_not_doubted_where_the_layers_agree_or_the_user_names_it(
    both: Both, net: str, model: str, maps: list[str]
) -> None:
    found = matched(both, net, model, maps=maps)
    assert not found.holds and "pairing" not in {each.name for rung in found.rungs for each in rung.causes}, found.sentences
    assert any(rung.between for rung in found.rungs), found.sentences


@pytest.mark.parametrize(
    ("cause", "net", "model", "options"),
    [
        ("interpolation", "resized_to_the_nearest", "resized_upside_down", {}),
        ("padding", "Transposed", "transposed_convolution_of_a_turned_image", {}),
        ("padding", "reflecting", "reflecting_and_dilated", {}),
        ("attention", "Attends", "attends_over_queries", {}),
        ("normalisation-place", "NormFirst", "norm_first_and_doubled", {}),
        ("normalisation-place", "NormThenActivation", "activation_twice_around_norm", {}),
        ("activation", "InvertedResidual", "inverted_residual_halved_before_the_sum", {}),
        ("class-weights", "Net", "port", {"loss": ("cross_entropy", "focal")}),
        ("rmsprop", "Net", "port", {"optimizer": ("rmsprop", "wrong_rmsprop")}),
    ],
)
def test_another_fault_at_the_same_place_does_not_get_the_name(
    both: Both, cause: str, net: str, model: str, options: dict[str, Any]
) -> None:
    found = matched(both, net, model, **options)
    assert not found.holds and cause not in {each.name for rung in found.rungs for each in rung.causes}, found.sentences


@pytest.mark.parametrize(
    ("optimizers", "cause"),
    [(("sgd_with_decay", "sgd_with_decay"), "weight-decay"), (("sgd", "sgd_without_momentum"), "learning-rate")],
)
def test_settings_that_act_from_the_second_step_on_are_named(both: Both, optimizers: tuple[str, str], cause: str) -> None:
    found = matched(both, "Net", "port", optimizer=optimizers)
    update, steps = found.rungs[-2:]
    assert update.status == model_comparison.PASSED and steps.status == model_comparison.FAILED, found.sentences
    assert [each.name for each in steps.causes] == [cause] and not found.holds


@pytest.mark.slow
def test_running_means_that_are_zero_but_for_rounding_are_no_difference(both: Both) -> None:
    found = matched(both, "bottleneck", "bottleneck", accept=["biased-variance"])
    assert found.holds, found.sentences
    (statistics,) = (rung for rung in found.rungs if rung.name == "running statistics")
    assert [each.name for each in statistics.causes] == ["biased-variance"]
    other = matched(both, "bottleneck", "bottleneck_of_other_momentum", accept=["biased-variance"])
    (statistics,) = (rung for rung in other.rungs if rung.name == "running statistics")
    assert not other.holds and "batch-norm-momentum" in {each.name for each in statistics.causes}, other.sentences


def test_a_momentum_is_told_in_the_words_of_each_framework(both: Both) -> None:
    (last,) = (said for said in matched(both, "with_norm", "other_momentum").sentences if said.startswith("Other settings"))
    assert "norm (momentum: pytorch 0.1, which is 0.9 in tensorflow, not 0.1)" in last


def test_an_activation_is_told_once_with_its_layer(both: Both) -> None:
    found = matched(both, "bottleneck", "bottleneck_that_is_not_linear")
    rung = next(rung for rung in found.rungs if rung.name == "logits, inference")
    (said,) = (each.sentence for each in rung.causes)
    assert said.startswith("In front of 2, ") and "(relu6): pytorch applies no activation" in said, said


def test_every_cause_has_a_planted_case_and_stands_in_the_docs() -> None:
    assert {case[0] for case in CASES} | causes.ROUNDING_CAUSES == KNOWN_CAUSES.keys()
    page = (launch.PROJECT_ROOT / "docs" / "match.md").read_text()
    assert all(f"| `{name}` | {words} |" in page for name, words in KNOWN_CAUSES.items())


def test_a_port_that_exchanges_height_and_width_too_before_it_flattens_is_another_model(both: Both) -> None:
    found = matched(both, "Net", "transposed_wrongly")
    assert not found.same and "flatten" in found.sentences[2]


@pytest.mark.parametrize(
    ("net", "model", "between"),
    [
        ("with_clamped_leaky", "right_leaky", "leaky_relu at "),
        ("ClampedLogits", "port", "between dense, dense, the last that agree, and the output"),
        pytest.param("Brightens", "Subclassed", "", marks=pytest.mark.slow),
        pytest.param("CountsZeros", "port", "", marks=pytest.mark.slow),
        ("GuardsBlack", "Standardises", "between the image, the last that agree, and conv1"),
        ("SeesTheBatch", "port", ""),
    ],
)
def test_what_differs_at_large_or_dark_values_alone_is_no_yes(both: Both, net: str, model: str, between: str) -> None:
    found = matched(both, net, model)
    assert not found.holds and found.sentences[0] == f"No: they part first at: {FAR}.", found.sentences
    (far,) = (rung for rung in found.rungs if rung.name == FAR)
    assert far.difference > 1e-3 and between in far.between, far


def test_black_images_do_not_settle_the_order_in_which_an_image_is_flattened(both: Both) -> None:
    found = matched(both, "Gamma", "Gamma")
    assert found.same, found.sentences


@pytest.mark.parametrize(
    ("net", "model"),
    [
        ("Scaled", "rescaled"),
        pytest.param("TwoRounded", "two_rounded", marks=pytest.mark.slow),
        pytest.param("with_gelu", "gelu", marks=pytest.mark.slow),
    ],
)
def test_what_tensorflow_rounds_is_held_to_what_rounding_makes_of_large_values(both: Both, net: str, model: str) -> None:
    found = matched(both, net, model)
    assert found.holds and not found.same, found.sentences
    (far,) = (rung for rung in found.rungs if rung.name == FAR)
    assert far.difference <= far.tolerance < 1e-3, far


def test_settings_that_differ_where_all_values_agree_are_no_plain_yes(both: Both) -> None:
    found = matched(both, "with_relu6_behind_sigmoid", "with_relu_behind_sigmoid")
    assert found.holds and not found.same and found.sentences[0].startswith("Yes, but for settings that differ: "), (
        found.sentences
    )
    assert "(function relu6, relu)" in found.sentences[1]


@pytest.mark.slow
def test_weights_that_are_not_copied_are_not_said_to_be_reordered_and_other_draws_are_told(both: Both) -> None:
    assert "were reordered" in " ".join(note.sentence for note in matched(both, "Net", "port").notes)
    built = matched(both, "seeded", "seeded", as_built=True)
    assert [note.sentence.endswith("must reorder its rows.") for note in built.notes] == [True]
    (weights,) = (
        rung for rung in matched(both, "seeded", "drawn_again", as_built=True).rungs if rung.name == "weights as given"
    )
    assert [cause.name for cause in weights.causes] == ["initialisation"]
    assert "Only the draws differ." in weights.causes[0].sentence


@pytest.mark.slow
def test_the_table_of_layers_is_named_only_where_it_shows_the_difference(both: Both) -> None:
    said = " ".join(matched(both, "ClampedLogits", "port").sentences)
    assert "None of the known causes explains it." in said and "The table of layers" not in said
    assert "The table of layers shows" in " ".join(matched(both, "Scaled", "rescaled_and_dilated").sentences)


@pytest.mark.parametrize(
    "wrong", [{"classes": 1}, {"classes": "7"}, {"image": (8, 8)}, {"image": "8x8x3"}, {"image": (8, 8, 0)}, {"steps": 0}]
)
def test_from_python_a_wrong_number_is_refused_as_on_the_command_line(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(SpecError, match=f"{name} must be"):
        api.match("a:b", "c:d", **{"image": IMAGE, "classes": 5, **wrong})


def test_settings_of_an_optimizer_that_act_later_are_no_plain_yes(both: Both) -> None:
    found = matched(both, "Net", "port", optimizer=("sgd", "sgd_that_averages_and_clips"))
    assert found.holds and not found.same and found.sentences[0].startswith("Yes, but for settings that differ: ")
    said = found.sentences[1]
    assert "clipnorm: pytorch none, tensorflow 1000.0" in said and "use_ema: pytorch none, tensorflow True (every 100" in said


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (
            ("sgd", "sgd_that_decays"),
            "schedule: pytorch none, tensorflow ExponentialDecay (initial_learning_rate 0.1, decay_steps 100",
        ),
        (("adagrad", "adagrad"), "initial_accumulator_value: pytorch none, tensorflow 0.1"),
    ],
)
def test_a_schedule_and_another_setting_of_an_optimizer_are_named(both: Both, optimizer: tuple[str, str], said: str) -> None:
    found = matched(both, "Net", "port", optimizer=optimizer)
    assert not found.same and said in " ".join(found.sentences), found.sentences


@pytest.mark.slow
def test_a_pass_that_proves_nothing_is_left_out_and_said(both: Both) -> None:
    checked = matched(both, "ChecksItsImages", "port")
    assert checked.same, checked.sentences
    assert "weights as they are, images times 255 (pytorch refuses them)" in checked.sentences[1]
    large = matched(both, "Overflows", "Overflows", loss=("tiny", "tiny"))
    (far,) = (rung for rung in large.rungs if rung.name == FAR)
    assert (
        far.status == model_comparison.PASSED and "weights times 8, images as they are (values are not finite)" in far.left_out
    )


def test_what_is_accepted_does_not_fail_the_match(both: Both) -> None:
    found = matched(both, "with_norm", "with_norm", accept=["biased-variance"])
    assert found.holds and not found.same and found.sentences[0] == "Yes, but for what was accepted."
    adam = matched(both, "Net", "port", optimizer=("adam", "adam"), accept=["adam-epsilon"])
    assert adam.holds and [rung.status for rung in adam.rungs][-2:] == ["accepted", "follows"]


def test_what_is_accepted_excuses_nothing_that_it_hides(both: Both) -> None:
    missing = matched(both, "Net", "other_width", accept=["layer-missing"])
    assert not any("Other settings" in said for said in missing.sentences)  # nothing was measured
    assert not missing.holds and missing.sentences[0] == "No: they part first at: layers and parameters."
    model, *_ = [case[2:4] for case in CASES if case[0] == "epsilon"]
    behind = matched(both, *model, accept=["epsilon", "biased-variance"])
    assert not behind.holds and behind.sentences[0].startswith("Cannot tell: what was accepted changes all that follows")
    assert {"accepted", "not judged"} <= {rung.status for rung in behind.rungs}


def test_normalisation_and_dropout_of_a_flattened_image_agree_in_all_but_the_biased_variance(both: Both) -> None:
    found = matched(both, "mixed", "mixed", accept=["biased-variance"])
    assert found.holds, found.sentences
    assert [rung.name for rung in found.rungs if rung.status != model_comparison.PASSED] == ["running statistics"]


def test_a_bias_in_front_of_batch_norm_whose_gradient_is_rounding_is_no_difference(both: Both) -> None:
    found = matched(both, "norm_twice", "norm_twice", accept=["biased-variance"], steps=20)
    assert found.holds, found.sentences


@pytest.mark.slow
def test_biases_that_training_moves_by_rounding_alone_are_no_difference(both: Both) -> None:
    found = matched(both, "norm_twice_of_zero_biases", "norm_twice", accept=["biased-variance"], steps=20)
    assert found.holds, found.sentences


def test_statistics_of_every_layer_must_be_explained(both: Both) -> None:
    found = matched(both, "norm_twice_with_a_second_that_keeps_its_variance", "norm_twice", accept=["biased-variance"])
    (statistics,) = (rung for rung in found.rungs if rung.name == "running statistics")
    assert not found.holds and statistics.status == model_comparison.FAILED and not statistics.causes, found.sentences


def test_the_same_call_gives_the_same_answer(both: Both) -> None:
    first, second = ([rung.difference for rung in matched(both, "Net", "same_padding").rungs] for _ in range(2))
    assert first == second


def test_a_rounded_constant_is_told_and_tried_out_also_where_outputs_agree_within_the_tolerance(both: Both) -> None:
    found = matched(both, "with_barely_leaky", "right_leaky")
    assert found.holds and not found.same
    assert found.sentences[0] == "Yes, but for constants that a framework rounds to float32."
    (inference,) = (rung for rung in found.rungs if rung.name == "logits, inference")
    assert inference.status == model_comparison.ROUNDS and inference.difference < inference.tolerance
    (cause,) = inference.causes
    assert cause.residual is not None and cause.residual < 1e-14 < 1e-10 < (inference.first or 0)


def test_a_cause_that_leaves_as_much_is_not_called_verified(both: Both) -> None:
    said = " ".join(matched(both, "Net", "in_float32").sentences)
    assert "float32: tensorflow's dense computes in float32" in said and "Verified" not in said and "Not verified" in said


def test_layers_that_see_the_same_are_judged_by_their_running_statistics_and_others_follow(both: Both) -> None:
    found = matched(both, "norm_twice", "norm_twice_of_other_epsilon", accept=["biased-variance"])
    rungs = {rung.name: rung for rung in found.rungs}
    assert not found.holds and [cause.name for cause in rungs["logits, training"].causes] in ([], ["epsilon"])
    statistics = rungs["running statistics"]
    assert statistics.status == model_comparison.ACCEPTED and statistics.where == "1.variance" and statistics.difference < 1e-2
    behind = matched(both, "norm_twice", "norm_twice_of_other_epsilon")
    assert behind.sentences[0] == "No: they part first at: logits, inference."


def test_a_fault_that_has_no_name_is_said_to_lie_between_two_layers(both: Both) -> None:
    found = matched(both, "blocks", "turned_before_the_sum")
    said = " ".join(found.sentences)
    assert said.count("were paired with") <= 1 and not found.holds
    assert "The fault lies between 0.same#2, block/same#2, the last that agree, and 1.down, block_1/down." in said, said
    assert "Functions that a subclassed Keras model calls are not recorded." in said


def test_what_keras_cannot_do_otherwise_is_said_first_with_how_to_let_it_pass(both: Both) -> None:
    first = matched(both, "with_norm", "with_norm").sentences[0]
    assert first == (
        "No: they part at running statistics alone. There Keras has a convention of its own: add --accept biased-variance."
    )


def test_wrong_usage_names_the_option(both: Both) -> None:
    with pytest.raises(SpecError, match=r"There is no module nosuch here\."):
        matching.match("nosuch.net:Net", f"{KERAS}:port", image=IMAGE, classes=CLASSES)  # before any process starts
    with pytest.raises(SpecError, match=r"A model is package\.module:name\. Received: '\.net:Net'"):
        matching.match(".net:Net", f"{KERAS}:port", image=IMAGE, classes=CLASSES)
    with pytest.raises(SpecError, match=r"ports_keras has no prot\. Received: .* Did you mean port\?"):
        matching.match(f"{TORCH}:Net", f"{KERAS}:prot", image=IMAGE, classes=CLASSES)  # before any process starts
    with pytest.raises(SpecError, match=r"--classes must be the number of outputs\. Received: 7; both models give 5\."):
        matching.match(f"{TORCH}:InTurn", f"{KERAS}:in_turn", image=IMAGE, classes=7, processes=both)
    with pytest.raises(SpecError, match=r"was given images of --input 16x16x3: does it take these\?"):
        matching.match(f"{TORCH}:Net", f"{KERAS}:port", image=(16, 16, 3), classes=CLASSES, processes=both)


def test_what_tensorflow_rounds_is_accepted_alone_and_hides_nothing(both: Both) -> None:
    right = matched(both, "with_leaky", "right_leaky")
    assert right.holds, right.sentences
    smaller = matched(both, "large_then_layer_norm", "large_then_layer_norm")
    assert not smaller.holds, smaller.sentences
    (split,) = (rung for rung in smaller.rungs if rung.name == "logits, inference")
    assert [cause.name for cause in split.causes] == ["epsilon"] and split.difference < 1e-4


@pytest.mark.slow
def test_all_rounded_constants_are_looked_behind_and_each_is_tried_out(both: Both) -> None:
    right = matched(both, "TwoRounded", "two_rounded")
    assert right.holds and right.tolerated_difference == "constants that a framework rounds to float32", right.sentences
    (gelu,) = (cause for rung in matched(both, "with_gelu", "gelu").rungs[1:2] for cause in rung.causes)
    assert gelu.residual is not None and gelu.residual < 1e-14, gelu
    wrong = matched(both, "TwoRounded", "two_rounded_with_another_epsilon")
    assert not wrong.holds, wrong.sentences
    assert [cause.name for cause in wrong.rungs[1].causes] == ["epsilon"], wrong.sentences


@pytest.mark.parametrize(
    ("net", "model"),
    [
        ("Scaled", "rescaled"),
        pytest.param("Scaled", "rescaled_and_padded", marks=pytest.mark.slow),
        pytest.param("Standardised", "standardised", marks=pytest.mark.slow),
    ],
)
def test_a_scaling_whose_constants_tensorflow_rounds_is_accepted(both: Both, net: str, model: str) -> None:
    found = matched(both, net, model)
    assert found.holds and found.tolerated_difference == "constants that a framework rounds to float32", found.sentences
    (cause,) = found.rungs[1].causes
    assert cause.residual is not None and cause.residual < 1e-14 < 1e-10 < found.rungs[1].difference
    assert "scales and shifts by constants that are rounded to float32" in cause.sentence


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("rescaled_a_little_wrongly", ["input-scaling"]),
        ("rescaled_with_padding_on_other_sides", ["padding"]),
        ("rescaled_and_dilated", []),
    ],
)
def test_a_scaling_that_tensorflow_rounds_hides_no_fault(both: Both, model: str, names: list[str]) -> None:
    found = matched(both, "Scaled", model)
    assert not found.holds and [cause.name for cause in found.rungs[1].causes] == names, found.sentences


@pytest.mark.parametrize("model", ["upsampled", "UpsampledByFunctions"])
def test_what_tensorflow_computes_in_float32_is_said_and_accepted(both: Both, model: str) -> None:
    found = matched(both, "Upsampled", model, accept=["biased-variance"], steps=20)
    assert found.holds and not found.same, found.sentences
    (inference,) = (rung for rung in found.rungs if rung.name == "logits, inference")
    assert inference.status == model_comparison.ROUNDS and [cause.name for cause in inference.causes] == ["lower-precision"]
    assert 1e-9 < (inference.first or 0) < 3e-7
    assert any("only by what a framework computes in float32" in said for said in found.sentences)


def test_a_rounded_constant_is_remembered_behind_a_rung_that_the_tolerance_lets_pass() -> None:
    cause = Cause("rounded-constants", "A slope is rounded.", "", 1e-16)
    update = model_comparison.RungResult("one update, sgd", 1.02e-8, 1e-8, model_comparison.FAILED, "conv.kernel")
    rungs = [
        model_comparison.RungResult("logits, inference", 9e-10, 1e-10, model_comparison.FAILED, causes=(cause,), first=2e-9),
        model_comparison.RungResult("logits, training", 9e-13, 1e-10, model_comparison.PASSED),
        model_comparison.RungResult("gradients", 9.9e-9, 1e-8, model_comparison.PASSED),
    ]

    def statuses(*rungs: model_comparison.RungResult) -> list[str]:
        return [each.status for each in model_comparison._apply_accepted(model_comparison._mark_consequences(rungs), [])]

    assert statuses(*rungs, update) == [
        model_comparison.ROUNDS,
        model_comparison.PASSED,
        model_comparison.PASSED,
        model_comparison.ROUNDS,
    ]
    assert statuses(*rungs[1:], update)[-1] == model_comparison.FAILED  # no constant is rounded
    assert statuses(*rungs, replace(update, difference=1e-5))[-1] == model_comparison.FAILED  # more than it may make


def test_running_means_behind_a_bias_that_is_missing_follow_from_it(both: Both) -> None:
    found = matched(both, "norm_twice", "norm_twice_without_a_bias", accept=["biased-variance"])
    rungs = {rung.name: rung for rung in found.rungs}
    assert not found.holds and [cause.name for cause in rungs["logits, inference"].causes] == ["bias-missing"]
    assert rungs["logits, training"].status == model_comparison.PASSED
    assert rungs["running statistics"].status == model_comparison.ACCEPTED and rungs["running statistics"].difference < 1e-2
    assert not any("None of the known causes" in said for said in found.sentences), found.sentences


def test_layers_that_join_several_inputs_are_not_said_to_take_the_same(both: Both) -> None:
    found = matched(both, "Gated", "gated_beside_an_image_upside_down")
    (inference,) = (rung for rung in found.rungs if rung.name == "logits, inference")
    assert not inference.causes and inference.where.endswith(", sum"), found.sentences
    assert inference.between == f"in {inference.where}, or in what these take beside their first input, which is the same"


def test_an_optimizer_is_judged_behind_a_rounded_constant_too(both: Both) -> None:
    decays = matched(both, "with_leaky", "right_leaky", optimizer=("sgd_with_a_little_decay", "sgd"))
    causes = {cause.name for rung in decays.rungs for cause in rung.causes if rung.status == model_comparison.FAILED}
    assert not decays.holds and causes == {"weight-decay"}, decays.sentences
    adam = matched(both, "with_leaky", "right_leaky", optimizer=("adam", "adam"), accept=["adam-epsilon"])
    assert adam.holds, adam.sentences


def test_a_difference_says_where_it_begins_and_what_was_not_compared(both: Both) -> None:
    found = matched(both, "with_norm", "default_norm", accept=["biased-variance"])
    assert found.sentences[0] == "No: they part first at: logits, inference."
    whole, begins, cause = found.sentences[1:4]
    assert re.fullmatch(r"logits, inference: differs by \d\.\de[+-]\d+\.", whole)
    assert re.fullmatch(r" It begins at norm, batch_norm\S*, by 4\.\de-04\. What is behind it was not judged\.", begins), begins
    assert "epsilon" in cause and cause.count("differ by") == 1 and " there." in cause


def test_a_rung_with_a_cause_of_its_own_follows_from_no_other_and_other_settings_are_told(both: Both) -> None:
    found = matched(both, "norm_twice", "norm_twice_of_other_momentum_with_softmax", accept=["biased-variance"])
    rungs = {rung.name: rung for rung in found.rungs}
    assert rungs["logits, inference"].status == rungs["running statistics"].status == model_comparison.FAILED
    assert rungs["loss"].status == model_comparison.FOLLOWS
    assert {each.name for each in rungs["running statistics"].causes} == {"batch-norm-momentum", "biased-variance"}
    both_at_once = matched(both, "with_norm", "default_norm").sentences
    assert both_at_once[-1].startswith("Other settings, which other layers may even out: norm (epsilon 1e-05, 0.001"), (
        both_at_once
    )


def test_a_bias_in_front_of_relu_and_batch_norm_is_judged_and_a_gradient_half_a_percent_too_long_is_found(both: Both) -> None:
    """In front of BatchNorm alone its gradient is rounding, whose scale is the kernel's."""
    right = matched(both, "ReluThenNorm", "relu_then_norm", accept=["biased-variance"])
    assert right.holds, right.sentences
    always_on = matched(both, "relu_then_norm_with_a_channel_always_on", "relu_then_norm", accept=["biased-variance"])
    assert always_on.holds, always_on.sentences
    wrong = matched(both, "relu_then_norm_of_wrong_gradient", "relu_then_norm", accept=["biased-variance"])
    assert not wrong.holds
    statuses = {rung.name: rung.status for rung in wrong.rungs}
    assert (
        statuses["logits, training"] == statuses["loss"] == model_comparison.PASSED
        and statuses["gradients"] == model_comparison.FAILED
    )
    (gradients,) = (rung for rung in wrong.rungs if rung.name == "gradients")
    assert "conv.bias" in gradients.where and 1e-4 < gradients.difference < 5e-3


def test_a_sixth_that_pytorch_rounds_in_a_gradient_is_said_and_accepted_and_hides_nothing(both: Both) -> None:
    found = matched(both, "with_hardsigmoid", "with_hardsigmoid")
    assert found.holds and not found.same, found.sentences
    (cause,) = [each for rung in found.rungs for each in rung.causes]
    assert cause.name == "rounded-constants" and "Behind conv2, pytorch multiplies the gradient of a hard" in cause.sentence
    assert cause.residual is not None and cause.residual < 1e-11
    assert {rung.name: rung.status for rung in found.rungs}["gradients"] == model_comparison.ROUNDS
    for port in ("with_hardsigmoid_of_wrong_gradient", "with_hardsigmoid_and_another_fault"):
        wrong = matched(both, "with_hardsigmoid", port)
        assert not wrong.holds and {rung.name: rung.status for rung in wrong.rungs}["gradients"] == model_comparison.FAILED, (
            port
        )


def test_a_constant_that_tensorflow_rounds_is_said_and_accepted(both: Both) -> None:
    found = matched(both, "with_gelu", "gelu")
    assert found.holds and not found.same
    (cause,) = [each for rung in found.rungs for each in rung.causes if rung.name == "logits, inference"]
    assert cause.name == "rounded-constants" and "tensorflow computes its GELU (erf)" in cause.sentence
    assert all(rung.difference < 1e-4 for rung in found.rungs)


def test_a_flatten_order_is_evened_out_and_said(both: Both) -> None:
    notes = [note.name for note in matched(both, "Net", "port").notes]
    assert notes == ["initialisation", "flatten-order"]


@pytest.mark.parametrize("net", ["with_buffers", "with_buffers_that_are_not_saved"])
def test_buffers_that_do_not_change_are_constants(both: Both, net: str) -> None:
    found = matched(both, net, "centred")
    assert found.same, found.sentences
    with pytest.raises(SpecError, match=r"The buffer calls of .*:Counting changes while the model runs\."):
        matched(both, "Counting", "centred")


def test_a_file_that_is_no_state_dict_is_refused_in_a_few_words(both: Both, tmp_path: Path) -> None:
    (tmp_path / "nonsense.pt").write_bytes(bytes(range(200)))
    with pytest.raises(
        SpecError, match=r"nonsense\.pt is no state_dict\. Received: no file of torch\.save\. Save one"
    ) as refused:
        matched(both, "Net", "port", weights=[str(tmp_path / "nonsense.pt")])
    assert "weights_only" not in str(refused.value)


@pytest.mark.parametrize(
    ("net", "model", "said"),
    [
        (
            "Unsupported",
            "port",
            r"conv \(Conv3d, tests/planted/ports_torch\.py:\d+\) has parameters of its own \(weight, bias\) and is not sup",
        ),
        ("Broken", "port", r"Broken failed: RuntimeError: .*\(tests/planted/ports_torch\.py:\d+\)"),
        ("Absent", "port", r"tests\.planted\.ports_torch has no Absent"),
        ("CLASSES", "port", r"must be a Module, its class, or a function\. Received: int"),
        (
            "Net",
            "unsupported",
            r"own \(Own, tests/planted/ports_keras\.py:\d+\) has parameters of its own and is not supported",
        ),
        ("Net", "random", r"gaussian_noise \(GaussianNoise, tests/planted/ports_keras\.py:\d+\) draws random numbers"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_with_its_line(both: Both, net: str, model: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        matched(both, net, model)
    assert matched(both, "Net", "sequential").same  # the processes go on


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maps": ["conv1"]}, "--map must be torch.name=keras.name"),
        ({"accept": ["epsilom"]}, "Did you mean epsilon?"),
        ({"weights": ["absent.pt"]}, "--weights names no file"),
        ({"weights": ["net.keras"]}, "--weights takes one .pt and one .weights.h5. Received: net.keras."),
        ({"steps": 100_001}, "steps must be 1 to 100,000. Received: 100001."),
        ({"net": "net", "model": "model:build"}, "A model or function is named package.module:name. Received: 'net'"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.keras").touch()
    with pytest.raises(SpecError, match=re.escape(said)):
        matching.match(**{"net": "a:b", "model": "c:d", "image": IMAGE, "classes": 5, **options})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("text", ["28", "28x28", "0x8x3", "axbxc"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--input must be height x width x channels"):
        matching.image_shape(text)


def test_a_class_of_a_notebook_is_refused() -> None:
    with pytest.raises(SpecError, match="Move it to a file"):
        api.match(type("Net", (), {"__module__": "__main__"}), "c:d", image=IMAGE, classes=5)


def test_a_pair_is_written_as_the_module_that_the_twins_are_tested_with(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = matched(both, "ForRun", "ForRun", accept=["biased-variance"])
    said = pair_file.write(found, tmp_path / "planted" / "pair_for_run.py")
    assert "run --model planted.pair_for_run --image-size 8" in said[0] and "unbiased" in said[1]
    monkeypatch.syspath_prepend(tmp_path)
    written = user_code.module("planted.pair_for_run")
    assert replace(written.MODEL, name=pair_for_run.MODEL.name) == pair_for_run.MODEL
    assert (written.PYTORCH, written.TENSORFLOW) == (pair_for_run.PYTORCH, pair_for_run.TENSORFLOW)
    own, sides = user_code.folders("planted.pair_for_run")
    assert own == tmp_path / "planted" and sides == launch.PROJECT_ROOT / "tests"  # their code is part of the run's digest


def test_a_written_pair_carries_what_is_rounded_and_a_proof_that_fails_by_it_names_it(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair_file.write(matched(both, "with_barely_leaky", "right_leaky"), tmp_path / "rounded_pair" / "net.py")
    monkeypatch.syspath_prepend(tmp_path)
    rounded = user_code.module("rounded_pair.net").MODEL.rounded
    said = {
        "name": "2 logits",
        "model": "rounded_pair.net",
        "optimizer": "sgd",
        "precision": "float64",
        "steps": 1,
        "step": None,
    }
    said |= {"tolerance": 1e-12, "reason": "rounding", "status": "failed"}
    small, large = (Rung.model_validate({**said, "max_relative_difference": size}) for size in (4e-10, 0.1))
    sentences = [Proof(rungs=[rung], seconds=1.0, rounded=rounded).sentence for rung in (small, large)]
    assert (
        "This may come from what `match` found: rounded-constants: tensorflow computes its leaky ReLU, slope 0.01"
        in sentences[0]
    )
    assert "rounded" not in sentences[1]


@pytest.mark.slow
def test_a_proof_of_a_written_pair_fails_by_what_tensorflow_rounds_and_names_it(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair_file.write(matched(both, "Scaled", "rescaled"), tmp_path / "scaled_pair" / "net.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{launch.PROJECT_ROOT}{os.pathsep}{tmp_path}")  # of the twins
    said = "This may come from what `match` found: rounded-constants: tensorflow's rescaling scales and shifts"
    data = {"source": "leaves:classes=5,images=60,size=16", "image_size": 8}
    what = spec.build({"model": "scaled_pair.net", "data": data, "global_batch_size": 8})
    proof = ladder.prove(
        what, launch.FRAMEWORKS, ("serial",), replicas=2, steps=2, out=tmp_path / "proof", remember=False, progress=print
    )
    assert proof.verdict == "not proved" and said in proof.sentence, proof.sentence


@pytest.mark.slow
def test_a_written_pair_with_buffers_is_proved(both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair_file.write(matched(both, "with_buffers", "centred"), tmp_path / "buffers_pair" / "net.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{launch.PROJECT_ROOT}{os.pathsep}{tmp_path}")  # of the twins
    data = {"source": "leaves:classes=5,images=60,size=16", "image_size": 8}
    what = spec.build({"model": "buffers_pair.net", "data": data, "global_batch_size": 8})
    proof = ladder.prove(
        what, launch.FRAMEWORKS, ("serial",), replicas=2, steps=2, out=tmp_path / "proof", remember=False, progress=print
    )
    assert proof.verdict == "proved", proof.sentence


def test_a_shared_layer_keeps_its_name_in_a_written_pair(both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair_file.write(matched(both, "Shared", "shared"), tmp_path / "shared_pair" / "net.py")
    monkeypatch.syspath_prepend(tmp_path)
    written = user_code.module("shared_pair.net")
    assert written.TENSORFLOW.layers["shared"] == "shared" and [name for name, _ in written.MODEL.again] == ["shared"]


@pytest.mark.parametrize(
    ("net", "model", "said"),
    [
        ("Net", "same_padding", "the models are not the same."),
        ("ForRun", "ForRun", "Add --accept biased-variance: a run makes"),
    ],
)
def test_a_pair_that_does_not_match_is_not_written(both: Both, tmp_path: Path, net: str, model: str, said: str) -> None:
    (written,) = pair_file.write(matched(both, net, model), tmp_path / "pairs" / "net.py")
    assert "was not written" in written and said in written and not (tmp_path / "pairs").exists()


def test_each_call_of_a_layer_counts_in_a_written_pair_and_a_name_that_two_layers_have_tells_their_block(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (said,) = pair_file.write(matched(both, "blocks", "blocks"), Path("deep", "blocks_pair", "net.py"))
    assert said.endswith("run --model deep.blocks_pair.net --image-size 8.")
    (said,) = pair_file.write(matched(both, "blocks", "blocks"), tmp_path / "not-a-name" / "blocks_pair" / "net.py")
    assert said.endswith(f"run --model blocks_pair.net --image-size 8, with PYTHONPATH={tmp_path / 'not-a-name'}.")
    monkeypatch.syspath_prepend(tmp_path / "not-a-name")
    written = user_code.module("blocks_pair.net")
    assert list(written.TENSORFLOW.layers.values()) == ["block/down", "block/same", "block_1/down", "block_1/same", "dense"]
    counted = work.count(architectures.resolve("blocks_pair.net", CLASSES, 8))
    down, same = [2 * 9 * 4 * each for each in (3 * 16, 4 * 4)], [2 * 9 * 4 * 4 * each for each in (16, 4)]
    assert counted.forward_flops == sum(down) + 2 * sum(same) + 2 * 16 * CLASSES


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("Residual", {}, r"up \(transposed_conv 2x2x3x4.*has parameters of a kind that a run does not have"),
        ("mixed", {"accept": ["biased-variance"]}, r"6 \(batch_norm 36.*must normalise images"),
        ("FunctionDropout", {}, r"dropout at .*ports_torch\.py:\d+.*is a function, which takes no mask"),
    ],
)
def test_a_layer_that_a_run_cannot_have_is_refused_by_name(
    both: Both, tmp_path: Path, model: str, options: dict[str, Any], said: str
) -> None:
    keras = {"Residual": "residual", "FunctionDropout": "port"}.get(model, model)
    with pytest.raises(SpecError, match=said):
        pair_file.write(matched(both, model, keras, **options), tmp_path / "pairs" / "net.py")


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        ("pairs/net.txt", {}, "must name FOLDER/FILE.py"),
        ("my-pairs/net.py", {}, "must name FOLDER/FILE.py"),
        ("pairs/class.py", {}, "no keyword of Python"),
        ("import/net.py", {}, "no keyword of Python"),
        ("pairs/net.py", {"own_input": True}, "takes no --prepare"),
        ("pairs/net.py", {"own_loss": True}, "takes no --loss"),
    ],
)
def test_what_cannot_become_a_model_of_a_run_is_refused_first(path: str, options: dict[str, bool], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        pair_file.check(Path(path), **{"own_input": False, "own_loss": False, **options})


def test_a_file_in_the_place_of_a_folder_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("")
    with pytest.raises(SpecError, match=r"--write names a folder that is a file\."):
        pair_file.check(tmp_path / "pairs" / "net.py", own_input=False, own_loss=False)


def test_a_users_own_file_is_not_overwritten(tmp_path: Path) -> None:
    own = tmp_path / "pairs" / "net.py"
    own.parent.mkdir()
    own.write_text("class Net: ...\n", encoding="utf-8")
    with pytest.raises(SpecError, match="would overwrite"):
        pair_file.check(own, own_input=False, own_loss=False)
    own.write_text('"""A pair of models that are the same, written by `convtwins match`.\n"""\n', encoding="utf-8")
    pair_file.check(own, own_input=False, own_loss=False)


@pytest.mark.slow
def test_a_pair_is_matched_written_trained_in_parallel_and_proved(tmp_path: Path) -> None:
    done = example(tmp_path, "keras_net:build", "--write", str(tmp_path / "pairs" / "net.py"))
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": f"{launch.PROJECT_ROOT}{os.pathsep}{tmp_path}"}
    words = "run --model pairs.net --data digits --limit 200 --epochs 1 --repeats 1 --replicas 2 --modes data_parallel,pipeline"
    command = [sys.executable, "-m", "compare", *words.split(), "--out", str(tmp_path / "out"), "--image-size"]
    ran = subprocess.run([*command, "28"], cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    rows = api.load(tmp_path / "out").summaries.set_index("id")
    for framework in launch.FRAMEWORKS:
        parallel = rows.loc[f"{framework}-data_parallel-2replicas"]
        assert (parallel["status"], parallel["parity"]) == ("ok", "proved in float64")
        assert parallel["first_step_difference"] < 1e-5
        assert "only the user's own code joins" in rows.loc[f"{framework}-pipeline-2replicas", "reason"]
    other = subprocess.run(
        [*command[:-2], str(tmp_path / "other"), "--image-size", "32"],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 2 and "was matched with images of 28x28 pixels" in " ".join(other.stderr.split())


@pytest.mark.slow
def test_weights_of_files_are_copied_or_compared(both: Both, tmp_path: Path) -> None:
    made = "from tests.planted import ports_{0} as p; import sys; "
    torch = made.format("torch") + "import torch; torch.save(p.Net().state_dict(), sys.argv[1])"
    keras = made.format("keras") + "p.port().save_weights(sys.argv[1])"
    files = [str(tmp_path / "net.pt"), str(tmp_path / "net.weights.h5")]
    for program, file in zip((torch, keras), files, strict=True):
        subprocess.run([sys.executable, "-c", program, file], cwd=launch.PROJECT_ROOT, check=True, capture_output=True)
    assert matched(both, "Net", "port", weights=files[:1]).same
    subprocess.run(
        [sys.executable, "-c", torch.replace("Net()", "with_buffers()"), files[0]], cwd=launch.PROJECT_ROOT, check=True
    )
    assert matched(both, "with_buffers", "centred", weights=files[:1]).same
    subprocess.run([sys.executable, "-c", torch, files[0]], cwd=launch.PROJECT_ROOT, check=True)
    first = next(rung for rung in matched(both, "Net", "port", weights=files).rungs if rung.status == model_comparison.FAILED)
    assert first.name == "weights as given" and [cause.name for cause in first.causes] == ["initialisation"]
    with pytest.raises(SpecError, match=r"net\.pt does not fit .*with_norm.* Give the state_dict of this model"):
        matched(both, "with_norm", "with_norm", weights=files[:1])
    twice = "{'state_dict': p.Net().state_dict(), 'state_dict_ema': p.Net().state_dict()}"
    for held in ("torch.nn.DataParallel(p.Net()).state_dict()", twice):
        program = torch.replace("p.Net().state_dict()", held)
        subprocess.run([sys.executable, "-c", program, files[0]], cwd=launch.PROJECT_ROOT, check=True)
        assert matched(both, "Net", "port", weights=files[:1]).same
    inside = torch.replace("p.Net().state_dict()", "{'epoch': 3, 'model': p.Net().state_dict(), 'optimizer': {'state': {}}}")
    subprocess.run([sys.executable, "-c", inside, files[0]], cwd=launch.PROJECT_ROOT, check=True)
    assert matched(both, "Net", "port", weights=files[:1]).same
    subprocess.run(
        [sys.executable, "-c", inside.replace("Net()", "with_norm().norm"), files[0]], cwd=launch.PROJECT_ROOT, check=True
    )
    with pytest.raises(SpecError, match=r"it holds epoch, model, optimizer, and weights of this model in 0 of them"):
        matched(both, "Net", "port", weights=files[:1])


def example(home: Path, model: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "compare",
        "match",
        "net:Net",
        model,
        "--input",
        "28x28x1",
        "--classes",
        "10",
        "--steps",
        "2",
    ]
    environment = {"PYTHONPATH": str(launch.PROJECT_ROOT), "PATH": "", "HOME": str(home)}
    return subprocess.run([*command, *words], cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_right_port_of_the_example_is_the_same_model(tmp_path: Path) -> None:
    done = example(tmp_path, "keras_net:build", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "same"


def test_the_first_try_of_the_example_is_explained_with_the_users_line_and_a_report(tmp_path: Path) -> None:
    done = example(tmp_path, "keras_net:first_try", "--out", str(tmp_path / "report"))
    assert done.returncode == 1, done.stderr
    assert "Comparing net:Net with keras_net:first_try. This may take minutes.\n" in done.stderr
    assert "\nlayers and parameters: agrees\n" in done.stderr and "\nlogits, inference: differs by " in done.stderr
    page = (launch.PROJECT_ROOT / "docs" / "match.md").read_text()
    quoted = page.partition("exit code 1, and says:\n")[2].partition("\nBelow that")[0].split()
    said = done.stdout.split()
    start = next(at for at in range(len(said)) if said[at : at + 3] == quoted[:3])
    residual = quoted.index("there.") - 1  # the rounding of a processor
    assert said[start : start + residual] == quoted[:residual]
    assert said[start + residual + 1 : start + len(quoted)] == quoted[residual + 1 :]
    stored = json.loads((tmp_path / "report" / "match.json").read_text())
    assert not stored["same"] and not stored["holds"]
    assert stored["verdict"] == "not the same" and stored["rungs"][1]["causes"][0]["name"] == "padding"
    assert (tmp_path / "report" / "match.html").is_file()
