"""Ports that are the same, and a planted mistake for each cause that `match` knows. One process per framework serves all."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.data import sources
from common.data.sources import DataRefused
from common.models import architectures, user_code, work
from common.spec import SpecError
from compare import api
from compare.judgement.statement import Statement
from compare.proof import ladder
from compare.proof.certificate import Proof, Rung
from compare.running import launch
from compare.running.twins import Twins
from compare.tools.matching import causes, model_comparison, pair_file
from compare.tools.matching import match as matching
from compare.tools.matching.causes import Cause
from compare.tools.matching.match_words import CAUSES, KNOWN_CAUSES, cause_sentence, optimizer_words, sentences
from compare.tools.matching.model_comparison import ACCEPTED, FAILED, FOLLOWS, PASSED, ROUNDS, Match, ModelProcess, RungResult
from tests.common.made_up_data import image, tree, write_folder
from tests.planted import pair_for_run
from tests.support import processes
from tests.support.command_line import convtwins, convtwins_process
from tests.support.processes import Finished
from tests.support.refusals import check_ended, refused

TORCH, KERAS = "tests.planted.ports_torch", "tests.planted.ports_keras"
IMAGE, CLASSES = (8, 8, 3), 5
EXAMPLE = launch.PROJECT_ROOT / "docs" / "examples" / "match"

Both = tuple[ModelProcess, ModelProcess]
OWN = {"optimizer": ("sgd", "sgd"), "loss": ("cross_entropy", "cross_entropy"), "prepare": ("prepare", "prepare")}
LAYERS, INFERENCE, FAR = "layers and parameters", "logits, inference", "logits, far from the usual values"
TRAINING, GIVEN, STATISTICS = "logits, training", "weights as given", "running statistics"
OWN_UPDATE = "one update, own optimizers"
BIASED = ["biased-variance"]


TURNED = ("transposed", "moved", "swapped_twice", "transposed_by_tensorflow", "transposed_before_dropout")
"""Right ports that put the channels first before they flatten."""


def matched(both: Both, net: str, model: str, **options: Any) -> Match:
    for name in ("loss", "optimizer", "prepare"):
        if name in options:
            options[name] = (f"{TORCH}:{options[name][0]}", f"{KERAS}:{options[name][1]}")
    return matching.match(
        f"{TORCH}:{net}", f"{KERAS}:{model}", image=IMAGE, classes=CLASSES, **{"steps": 2, **options}, processes=both
    )


def rung(found: Match, name: str) -> RungResult:
    return next(each for each in found.rungs if each.name == name)


def cause_names(*rungs: RungResult) -> list[str]:
    return [cause.name for each in rungs for cause in each.causes]


def without_sizes(*sentences: str) -> list[str]:
    """Sentences without lines of the planted ports, and without sizes that rest on the processor or on what was drawn."""
    patterns = {r"\.py:\d+": ".py:LINE", r"\d\.\de[-+]\d+": "SIZE", r"(root mean square\): ).*(?= Training)": r"\1SIZES."}
    for pattern, word in patterns.items():
        sentences = tuple(re.sub(pattern, word, sentence) for sentence in sentences)
    return list(sentences)


def first_failed(found: Match) -> str:
    """The name of the rung at which the models part first. They must part."""
    assert not found.holds, found.sentences
    return next(each.name for each in found.rungs if each.status == FAILED)


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
    # No settings are told that zeros in front even out, but that a subclassed Keras model's functions are not recorded.
    assert found.statements[1:] == found.caveats and len(found.caveats) == bool(found.opened[1].unrecorded)
    rules = 1 if "optimizer" in options else 2
    assert len(found.rungs) == 7 + 2 * rules + bool(options.get("as_built"))


@pytest.mark.parametrize(
    ("net", "model"),
    [
        # Parallel branches: shapes do not tell them apart, and the port makes and runs them in another order.
        ("Inception", "inception"),
        pytest.param("Inception", "InceptionOfFunctions", marks=pytest.mark.slow),
        # Normalisation and dropout of a flattened image.
        ("mixed", "mixed"),
        # Running means that are zero but for rounding.
        pytest.param("bottleneck", "bottleneck", marks=pytest.mark.slow),
        # A bias in front of ReLU. In front of BatchNorm alone its gradient is rounding, whose scale is the kernel's.
        ("ReluThenNorm", "relu_then_norm"),
        ("relu_then_norm_with_a_channel_always_on", "relu_then_norm"),
    ],
)
def test_a_right_port_differs_in_its_biased_variance_alone(both: Both, net: str, model: str) -> None:
    found = matched(both, net, model, accept=BIASED)
    assert found.holds, found.sentences
    (differs,) = (each for each in found.rungs if each.status != PASSED)
    assert differs.name == STATISTICS and cause_names(differs) == BIASED


@pytest.mark.parametrize("net", ["norm_twice", pytest.param("norm_twice_of_zero_biases", marks=pytest.mark.slow)])
def test_a_bias_in_front_of_batch_norm_whose_gradient_is_rounding_is_no_difference(both: Both, net: str) -> None:
    found = matched(both, net, "norm_twice", accept=BIASED, steps=20)
    assert found.holds, found.sentences


def test_branches_that_only_an_activation_tells_apart_are_refused_with_a_command_that_works(both: Both) -> None:
    with refused(SpecError, fix="--map") as caught:
        matched(both, "TwoSums", "two_sums")
    _, *maps = re.findall(r"--map (\S+=\w+)", str(caught.error))  # the first shows the form
    assert len(maps) == 4
    assert matched(both, "TwoSums", "two_sums", maps=maps).same
    wrong = matched(both, "TwoSums", "two_sums", maps=["first.0=b_begin"])  # the others follow
    assert not wrong.holds and "activation" in cause_names(*wrong.rungs), wrong.sentences


def test_a_match_prints_its_answer_with_a_line_for_each_rung_and_tells_as_each_ends(both: Both) -> None:
    told: list[str] = []
    found = matched(both, "Net", "same_padding", progress=told.append)
    opening, first, measuring, *others = told
    assert [line.partition(":")[0] for line in (first, *others)] == [each.name for each in found.rungs]
    assert "2 steps" in measuring and opening not in found.sentences
    assert re.search(r" \d\.\de-\d+$", others[0])
    shown = str(found)
    assert shown == repr(found) == "\n".join([*found.sentences, "", *map(repr, found.rungs)])
    assert [repr(each).partition(", largest difference ")[0] for each in found.rungs[:2]] == [
        f"{LAYERS}: passed", f"{INFERENCE}: failed"
    ]  # fmt: skip


CASES: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("layer-missing", LAYERS, "Net", "other_width", {}),
    ("pairing", INFERENCE, "TwoPaths", "TwoPaths", {}),
    ("bias-missing", INFERENCE, "Net", "without_bias", {}),
    ("flatten-order", GIVEN, "seeded", "seeded_without_order", {"as_built": True}),
    ("kernel-layout", GIVEN, "seeded", "seeded_transposed", {"as_built": True}),
    ("initialisation", GIVEN, "Net", "port", {"as_built": True}),
    ("input-scaling", INFERENCE, "Net", "scaled", {}),
    ("input-scaling", INFERENCE, "Net", "port", {"prepare": ("prepare", "prepare_without_scale")}),
    ("input-scaling", INFERENCE, "Net", "port", {"prepare": ("prepare", "prepare_by_channel")}),
    ("input-scaling", INFERENCE, "Net", "port", {"prepare": ("prepare", "prepare_shifted_by_channel")}),
    ("data-format", INFERENCE, "Net", "reshaped", {}),
    ("data-format", INFERENCE, "TurnsInside", "turns_inside_as_pytorch", {}),
    ("data-format", LAYERS, "with_norm", "wrong_axis", {}),
    ("order", INFERENCE, "Shared", "shared_in_another_order", {}),
    ("order", INFERENCE, "Inception", "inception_joined_in_another_order", {}),
    ("order", INFERENCE, "InTurn", "in_turn_in_another_order", {}),
    ("float32", INFERENCE, "Net", "in_float32", {}),
    ("float32", INFERENCE, "Net", "rounded_on_the_way", {}),
    ("addition-missing", INFERENCE, "Residual", "without_addition", {}),
    ("addition-missing", INFERENCE, "InvertedResidual", "inverted_residual_without_addition", {}),
    ("padding", INFERENCE, "Net", "same_padding", {}),
    ("padding", INFERENCE, "blocks", "same_padding_in_a_block", {}),
    ("padding", INFERENCE, "Transposed", "transposed_convolution", {}),
    ("padding", INFERENCE, "reflecting", "padded_convolution", {}),
    ("interpolation", INFERENCE, "resized_with_aligned_corners", "resized_bilinearly", {}),
    ("interpolation", INFERENCE, "resized_by_a_function", "resized_to_the_nearest", {}),
    ("attention", INFERENCE, "Attends", "attends_without_a_factor", {}),
    ("attention", INFERENCE, "Attends", "attends_in_layers_without_a_factor", {}),
    ("attention", INFERENCE, "Attends", "attends_with_four_heads", {}),
    ("attention", INFERENCE, "AttendsAtOnce", "attends_at_once_by_its_width", {}),
    ("normalisation-place", INFERENCE, "NormFirst", "norm_last", {}),
    ("normalisation-place", INFERENCE, "NormThenActivation", "activation_then_norm", {}),
    ("normalisation-place", TRAINING, "ReluThenNorm", "norm_then_relu", {}),
    ("activation", INFERENCE, "InvertedResidual", "inverted_residual_with_relu_before_the_sum", {}),
    ("activation", INFERENCE, "blocks", "relu_before_the_sum", {}),
    ("activation", INFERENCE, "with_gelu_tanh", "gelu", {}),
    ("activation", INFERENCE, "with_leaky", "leaky", {}),
    ("activation", INFERENCE, "with_small_gelu_tanh", "gelu", {}),
    ("activation", INFERENCE, "TurnsInside", "turns_inside_with_tanh", {}),
    ("activation", INFERENCE, "Gated", "gated_by_a_hard_sigmoid", {}),
    ("activation", INFERENCE, "with_tanh", "hard_tanh", {}),
    ("activation", FAR, "with_relu6", "port", {}),
    ("activation", FAR, "with_relu6", "Subclassed", {}),
    ("activation", FAR, "Net", "with_relu6", {}),
    ("input-scaling", FAR, "Brightens", "port", {}),
    ("activation", INFERENCE, "Net", "no_activation", {}),
    ("pooling", INFERENCE, "Net", "average_pool", {}),
    ("pooling", INFERENCE, "padded_pool", "pool_padded_with_zeros", {}),
    ("pooling", INFERENCE, "with_leaky", "right_leaky_and_average_pool", {}),
    ("epsilon", INFERENCE, "with_norm", "default_norm", {}),
    ("epsilon", INFERENCE, "TurnsInside", "turns_inside_with_another_epsilon", {}),
    ("epsilon", INFERENCE, "Upsampled", "upsampled_with_another_epsilon", {}),
    ("batch-norm-mode", TRAINING, "with_norm", "norm_in_inference", {}),
    ("dropout-active", INFERENCE, "AlwaysDropping", "port", {}),
    ("dropout-active", TRAINING, "Net", "no_dropout", {}),
    ("dropout-rate", TRAINING, "Net", "other_rate", {}),
    ("dropout-rate", TRAINING, "with_leaky", "right_leaky_of_other_rate", {}),
    ("dropout-rate", TRAINING, "mixed", "single_values_dropped", {}),
    ("softmax-output", INFERENCE, "Net", "softmax", {}),
    ("softmax-output", INFERENCE, "with_leaky", "ProbabilitiesInInference", {}),
    ("batch-norm-momentum", STATISTICS, "with_norm", "other_momentum", {}),
    ("biased-variance", STATISTICS, "with_norm", "with_norm", {}),
    ("frozen", "gradients", "Net", "frozen", {}),
    ("label-encoding", LAYERS, "Net", "one_class_more", {}),
    ("label-encoding", "loss", "Net", "port", {"loss": ("cross_entropy", "from_one")}),
    ("loss", "loss", "Net", "port", {"loss": ("cross_entropy", "of_probabilities")}),
    ("loss", "loss", "Net", "port", {"loss": ("cross_entropy", "summed")}),
    ("class-weights", "loss", "Net", "port", {"loss": ("cross_entropy_of_weighted_classes", "cross_entropy")}),
    (
        "class-weights",
        "loss",
        "Net",
        "port",
        {"loss": ("cross_entropy_of_weighted_classes", "cross_entropy_of_weighted_classes")},
    ),
    ("rmsprop", OWN_UPDATE, "Net", "port", {"optimizer": ("rmsprop", "rmsprop")}),
    ("weight-decay", "loss", "Net", "regularized", {}),
    ("adam-epsilon", OWN_UPDATE, "Net", "port", {"optimizer": ("adam", "adam")}),
    ("weight-decay", OWN_UPDATE, "Net", "port", {"optimizer": ("adam_with_decay", "adam_with_decay")}),
    ("learning-rate", OWN_UPDATE, "Net", "port", {"optimizer": ("sgd", "slower_sgd")}),
]


READ_FROM_THE_MODELS = {"layer-missing", "initialisation", "frozen", "pairing", "float32"}
"""Causes that need no experiment."""


def _once() -> list[Any]:
    """All cases. In the quick suite is the first of each cause at each rung."""
    first = {case[:2]: case for case in reversed(CASES)}
    return [
        pytest.param(
            *case,
            marks=[] if first[case[:2]] is case else [pytest.mark.slow],
            id=" ".join([*case[:4], *(name for value in case[4].values() if value is not True for name in value)]),
        )
        for case in CASES
    ]


@pytest.mark.parametrize(("cause", "rung_name", "net", "model", "options"), _once())
def test_a_planted_mistake_is_found_where_it_is_and_named(
    both: Both, snapshot: SnapshotAssertion, cause: str, rung_name: str, net: str, model: str, options: dict[str, Any]
) -> None:
    found = matched(both, net, model, **options)
    assert not found.same and not found.holds
    first = next(each for each in found.rungs if each.status == FAILED and each.causes)
    if rung_name != INFERENCE or cause != "bias-missing":  # that one is seen in the parameters too
        assert first.name == rung_name, found.sentences
    of_this_name = [each for failed in found.rungs for each in failed.causes if each.name == cause]
    read = cause in READ_FROM_THE_MODELS or rung_name == LAYERS
    assert read or any(each.residual is not None and each.residual < 1e-5 for each in of_this_name)
    if rung_name.startswith("logits"):
        assert any(re.search(r"ports_(torch|keras)\.py:\d+", each.where) for each in of_this_name)
    assert without_sizes(*dict.fromkeys(cause_sentence(each) for each in of_this_name)) == snapshot


def test_every_cause_has_a_planted_case_and_stands_in_the_docs() -> None:
    assert {case[0] for case in CASES} | causes.ROUNDING_CAUSES == KNOWN_CAUSES.keys()
    assert {key.partition("/")[0] for key in CAUSES} == KNOWN_CAUSES.keys()
    page = (launch.PROJECT_ROOT / "docs" / "match.md").read_text()
    assert all(f"| `{name}` | {words} |" in page for name, words in KNOWN_CAUSES.items())


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
    assert not found.holds and "pairing" not in cause_names(*found.rungs), found.sentences
    assert any(each.between for each in found.rungs), found.sentences


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
    assert not found.holds and cause not in cause_names(*found.rungs), found.sentences


@pytest.mark.parametrize(
    ("optimizers", "cause"),
    [(("sgd_with_decay", "sgd_with_decay"), "weight-decay"), (("sgd", "sgd_without_momentum"), "learning-rate")],
)
def test_settings_that_act_from_the_second_step_on_are_named(both: Both, optimizers: tuple[str, str], cause: str) -> None:
    found = matched(both, "Net", "port", optimizer=optimizers)
    update, steps = found.rungs[-2:]
    assert update.status == PASSED and steps.status == FAILED, found.sentences
    assert cause_names(steps) == [cause] and not found.holds


@pytest.mark.slow
def test_another_momentum_of_running_means_that_are_zero_but_for_rounding_is_found(both: Both) -> None:
    found = matched(both, "bottleneck", "bottleneck_of_other_momentum", accept=BIASED)
    assert not found.holds and "batch-norm-momentum" in cause_names(rung(found, STATISTICS)), found.sentences


def test_a_momentum_is_told_in_the_words_of_each_framework(both: Both, snapshot: SnapshotAssertion) -> None:
    assert matched(both, "with_norm", "other_momentum").settings_differences == snapshot


def test_an_activation_is_told_once_with_its_layer(both: Both, snapshot: SnapshotAssertion) -> None:
    (cause,) = rung(matched(both, "bottleneck", "bottleneck_that_is_not_linear"), INFERENCE).causes
    assert without_sizes(cause_sentence(cause)) == snapshot


def test_a_port_that_exchanges_height_and_width_too_before_it_flattens_is_another_model(both: Both) -> None:
    found = matched(both, "Net", "transposed_wrongly")
    assert not found.holds and "flatten" in rung(found, INFERENCE).where, found.sentences


@pytest.mark.parametrize(
    ("net", "model", "between"),
    [
        ("with_clamped_leaky", "right_leaky", ["leaky_relu"]),
        ("ClampedLogits", "port", ["dense", "output"]),
        pytest.param("Brightens", "Subclassed", [], marks=pytest.mark.slow),
        pytest.param("CountsZeros", "port", [], marks=pytest.mark.slow),
        ("GuardsBlack", "Standardises", ["image", "conv1"]),
        ("SeesTheBatch", "port", []),
    ],
)
def test_what_differs_at_large_or_dark_values_alone_is_no_yes(both: Both, net: str, model: str, between: list[str]) -> None:
    found = matched(both, net, model)
    assert first_failed(found) == FAR
    assert rung(found, FAR).difference > 1e-3 and set(between) <= set(re.findall(r"\w+", rung(found, FAR).between))


def test_black_images_do_not_settle_the_order_in_which_an_image_is_flattened(both: Both) -> None:
    found = matched(both, "Gamma", "Gamma")
    assert found.same, found.sentences


@pytest.mark.parametrize(
    ("net", "model", "options", "facts"),
    [
        ("with_relu6_behind_sigmoid", "with_relu_behind_sigmoid", {}, ["function relu6, relu"]),
        (
            *("Net", "port", {"optimizer": ("sgd", "sgd_that_averages_and_clips")}),
            ["clipnorm: pytorch none, tensorflow 1000.0", "use_ema: pytorch none, tensorflow True (every 100"],
        ),
    ],
)
def test_settings_that_differ_where_all_values_agree_are_no_plain_yes(
    both: Both, net: str, model: str, options: dict[str, Any], facts: list[str]
) -> None:
    found = matched(both, net, model, **options)
    assert found.holds and not found.same and {each.status for each in found.rungs} == {PASSED}, found.sentences
    optimizers = optimizer_words({"one": "pytorch", "other": "tensorflow", "settings": found.optimizers})
    told = " ".join([*found.settings_differences, optimizers])
    assert all(fact in told for fact in facts) and all(fact in found.sentences[1] for fact in facts), found.sentences


@pytest.mark.parametrize(
    ("optimizer", "facts"),
    [
        (("sgd", "sgd_that_decays"), ["schedule: pytorch none, tensorflow ExponentialDecay", "decay_steps 100"]),
        (("adagrad", "adagrad"), ["initial_accumulator_value: pytorch none, tensorflow 0.1"]),
    ],
)
def test_a_schedule_and_another_setting_of_an_optimizer_are_named(
    both: Both, optimizer: tuple[str, str], facts: list[str]
) -> None:
    found = matched(both, "Net", "port", optimizer=optimizer)
    told = optimizer_words({"one": "pytorch", "other": "tensorflow", "settings": found.optimizers})
    assert not found.same and all(fact in told for fact in facts), found.sentences


@pytest.mark.slow
def test_weights_that_are_not_copied_are_not_reordered_and_other_draws_are_told(
    both: Both, snapshot: SnapshotAssertion
) -> None:
    copied, built = matched(both, "Net", "port"), matched(both, "seeded", "seeded", as_built=True)
    (drawn,) = rung(matched(both, "seeded", "drawn_again", as_built=True), GIVEN).causes
    assert drawn.name == "initialisation"
    assert {
        "copied": [cause_sentence(note) for note in copied.notes if note.name == "flatten-order"],
        "as built": [cause_sentence(note) for note in built.notes],
        "drawn again": cause_sentence(drawn),
    } == snapshot


@pytest.mark.slow
def test_the_table_of_layers_is_named_only_where_it_shows_the_difference(both: Both, snapshot: SnapshotAssertion) -> None:
    pairs = (("ClampedLogits", "port"), ("Scaled", "rescaled_and_dilated"))
    told = [[line for line in matched(both, *pair).sentences if "known causes" in line] for pair in pairs]
    assert told == snapshot


@pytest.mark.slow
def test_a_pass_that_proves_nothing_is_left_out_and_said(both: Both, snapshot: SnapshotAssertion) -> None:
    checked = matched(both, "ChecksItsImages", "port")
    assert checked.same and rung(checked, FAR).left_out and checked.caveats[0].values["rung"] == FAR, checked
    large = rung(matched(both, "Overflows", "Overflows", loss=("tiny", "tiny")), FAR)
    assert large.status == PASSED and large.left_out
    assert [rung(checked, FAR).left_out, large.left_out] == snapshot


def test_what_is_accepted_does_not_fail_the_match(both: Both) -> None:
    found = matched(both, "with_norm", "with_norm", accept=BIASED)
    assert found.holds and not found.same and rung(found, STATISTICS).status == ACCEPTED
    adam = matched(both, "Net", "port", optimizer=("adam", "adam"), accept=["adam-epsilon"])
    assert adam.holds and [each.status for each in adam.rungs][-2:] == [ACCEPTED, FOLLOWS]


def test_what_is_accepted_excuses_nothing_that_it_hides(both: Both) -> None:
    missing = matched(both, "Net", "other_width", accept=["layer-missing"])
    assert first_failed(missing) == LAYERS and not missing.settings_differences  # nothing was measured
    model, *_ = [case[2:4] for case in CASES if case[0] == "epsilon"]
    behind = matched(both, *model, accept=["epsilon", *BIASED])
    assert not behind.holds and FAILED not in {each.status for each in behind.rungs}
    assert matching.report(behind, []).values["verdict"] == "cannot tell"
    assert {ACCEPTED, model_comparison.UNJUDGED} <= {each.status for each in behind.rungs}


def test_statistics_of_every_layer_must_be_explained(both: Both) -> None:
    found = matched(both, "norm_twice_with_a_second_that_keeps_its_variance", "norm_twice", accept=BIASED)
    assert not found.holds and rung(found, STATISTICS).status == FAILED and not rung(found, STATISTICS).causes


def test_the_same_call_gives_the_same_answer(both: Both) -> None:
    first, second = ([each.difference for each in matched(both, "Net", "same_padding").rungs] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("net", "model", "in_constants"),
    [
        ("Scaled", "rescaled", 1e-14),
        pytest.param("Scaled", "rescaled_and_padded", 1e-14, marks=pytest.mark.slow),
        pytest.param("Standardised", "standardised", 1e-14, marks=pytest.mark.slow),
        ("with_gelu", "gelu", 1e-14),
        pytest.param("TwoRounded", "two_rounded", None, marks=pytest.mark.slow),
        ("with_barely_leaky", "right_leaky", 1e-14),
    ],
)
def test_constants_that_tensorflow_rounds_are_said_tried_out_and_accepted(
    both: Both, snapshot: SnapshotAssertion, net: str, model: str, in_constants: float | None
) -> None:
    found = matched(both, net, model)
    assert found.holds and not found.same and found.tolerated_difference == causes.ROUNDED_CONSTANTS, found.sentences
    inference, far = rung(found, INFERENCE), rung(found, FAR)
    assert inference.status == ROUNDS and set(cause_names(inference)) == {"rounded-constants"}
    # Also where the outputs agree within the tolerance: there the first layer that differs does not.
    within = model == "right_leaky"
    assert (inference.difference < inference.tolerance) is within
    assert (inference.first or 0.0 if within else inference.difference) > 1e-10
    # Of large values they may make a little more.
    assert far.difference <= far.tolerance < 1e-3 and all(each.difference < 1e-4 for each in found.rungs), far
    if in_constants is not None:
        (cause,) = inference.causes
        assert cause.residual is not None and cause.residual < in_constants
    assert [cause_sentence(cause) for cause in inference.causes] == snapshot


@pytest.mark.parametrize(
    ("net", "model", "names"),
    [
        ("Scaled", "rescaled_a_little_wrongly", ["input-scaling"]),
        ("Scaled", "rescaled_with_padding_on_other_sides", ["padding"]),
        ("Scaled", "rescaled_and_dilated", []),
        ("large_then_layer_norm", "large_then_layer_norm", ["epsilon"]),
        pytest.param("TwoRounded", "two_rounded_with_another_epsilon", ["epsilon"], marks=pytest.mark.slow),
    ],
)
def test_what_tensorflow_rounds_hides_no_fault(both: Both, net: str, model: str, names: list[str]) -> None:
    found = matched(both, net, model)
    assert not found.holds and cause_names(rung(found, INFERENCE)) == names, found.sentences
    assert net != "large_then_layer_norm" or rung(found, INFERENCE).difference < 1e-4


def test_a_cause_that_leaves_as_much_is_not_called_verified(both: Both) -> None:
    computed, *_ = (cause for each in matched(both, "Net", "in_float32").rungs for cause in each.causes)
    assert computed.name == "float32" and computed.residual == float("inf")


def test_layers_that_see_the_same_are_judged_by_their_running_statistics_and_others_follow(both: Both) -> None:
    found = matched(both, "norm_twice", "norm_twice_of_other_epsilon", accept=BIASED)
    assert not found.holds and cause_names(rung(found, TRAINING)) in ([], ["epsilon"])
    statistics = rung(found, STATISTICS)
    assert statistics.status == ACCEPTED and statistics.where == "1.variance" and statistics.difference < 1e-2
    assert first_failed(matched(both, "norm_twice", "norm_twice_of_other_epsilon")) == INFERENCE


def test_a_fault_that_has_no_name_is_said_to_lie_between_two_layers(both: Both, snapshot: SnapshotAssertion) -> None:
    found = matched(both, "blocks", "turned_before_the_sum")
    assert not found.holds and cause_names(*found.rungs).count("pairing") <= 1
    assert found.opened[1].unrecorded  # a fault in a function of a subclassed model has no name
    assert without_sizes(*found.sentences) == snapshot


def test_what_keras_cannot_do_otherwise_is_all_that_differs(both: Both) -> None:
    assert matched(both, "with_norm", "with_norm").only_biased_variance  # the first screen says how to let it pass


@pytest.mark.parametrize("model", ["upsampled", "UpsampledByFunctions"])
def test_what_tensorflow_computes_in_float32_is_said_and_accepted(both: Both, snapshot: SnapshotAssertion, model: str) -> None:
    found = matched(both, "Upsampled", model, accept=BIASED, steps=20)
    assert found.holds and not found.same, found.sentences
    inference = rung(found, INFERENCE)
    assert inference.status == ROUNDS and cause_names(inference) == ["lower-precision"]
    assert 1e-9 < (inference.first or 0) < 3e-7
    assert without_sizes(*sentences(found.describe_rung(inference)[:1])) == snapshot


def test_a_rounded_constant_is_remembered_behind_a_rung_that_the_tolerance_lets_pass() -> None:
    cause = Cause("rounded-constants", residual=1e-16)
    update = RungResult("one update, sgd", 1.02e-8, 1e-8, FAILED, "conv.kernel")
    rungs = [
        RungResult(INFERENCE, 9e-10, 1e-10, FAILED, causes=(cause,), first=2e-9),
        RungResult(TRAINING, 9e-13, 1e-10, PASSED),
        RungResult("gradients", 9.9e-9, 1e-8, PASSED),
    ]

    def statuses(*rungs: RungResult) -> list[str]:
        return [each.status for each in model_comparison._apply_accepted(model_comparison._mark_consequences(rungs), [])]

    assert statuses(*rungs, update) == [ROUNDS, PASSED, PASSED, ROUNDS]
    assert statuses(*rungs[1:], update)[-1] == FAILED  # no constant is rounded
    assert statuses(*rungs, replace(update, difference=1e-5))[-1] == FAILED  # more than it may make


def test_a_second_mistake_behind_the_first_is_found_with_its_layer_and_its_size(both: Both) -> None:
    found = matched(both, "strided_norm_twice", "strided_norm_twice_of_defaults")
    inference, statistics = rung(found, INFERENCE), rung(found, STATISTICS)
    assert [(cause.name, cause.at) for cause in (*inference.causes, *inference.behind)] == [
        *(("epsilon", "1"), ("padding", "3"), ("epsilon", "4"))
    ]
    first, padding, _ = sizes = [cause.size or 0.0 for cause in (*inference.causes, *inference.behind)]
    assert first == inference.first and padding > 100 * max(first, sizes[2])  # what differs most is not what differs first
    named = (*statistics.causes, *statistics.behind)
    assert {(cause.name, cause.at) for cause in named} == {
        (name, layer) for name in ("batch-norm-momentum", *BIASED) for layer in ("1", "4")
    }
    assert all(cause.is_verified and (cause.residual or 0.0) < 1e-9 for cause in (*inference.behind, *named))
    assert not found.unexplained_settings and len(found.settings_differences) == 3
    assert {each.status for each in found.rungs if each.behind} == {FAILED}


def test_padding_in_front_of_a_layer_behind_the_first_that_differs_is_no_mistake(both: Both) -> None:
    inference = rung(matched(both, "strided_norm_twice", "strided_norm_twice_padded_in_front"), INFERENCE)
    assert [(cause.name, cause.at) for cause in (*inference.causes, *inference.behind)] == [("epsilon", "1"), ("epsilon", "4")]


def test_a_biased_variance_is_told_at_the_layer_where_the_check_differs_most_and_by_as_much(both: Both) -> None:
    found = matched(both, "norm_twice", "norm_twice")
    statistics = rung(found, STATISTICS)
    (cause,) = statistics.causes
    assert found.only_biased_variance and f"{cause.at}.variance" == statistics.where
    assert cause.size == pytest.approx(statistics.difference, rel=1e-6) and len(cause.places) == 2
    assert found.sentences[0].startswith("The same but for ")


def test_running_means_behind_a_bias_that_is_missing_follow_from_it(both: Both) -> None:
    found = matched(both, "norm_twice", "norm_twice_without_a_bias", accept=BIASED)
    assert not found.holds and cause_names(rung(found, INFERENCE)) == ["bias-missing"]
    assert rung(found, TRAINING).status == PASSED
    assert rung(found, STATISTICS).status == ACCEPTED and rung(found, STATISTICS).difference < 1e-2
    assert all(each.causes for each in found.rungs if each.status == FAILED), found.sentences


def test_layers_that_join_several_inputs_are_not_said_to_take_the_same(both: Both, snapshot: SnapshotAssertion) -> None:
    inference = rung(matched(both, "Gated", "gated_beside_an_image_upside_down"), INFERENCE)
    assert not inference.causes and inference.where.endswith(", sum")
    assert inference.between.replace(inference.where, "LAYERS") == snapshot


def test_an_optimizer_is_judged_behind_a_rounded_constant_too(both: Both) -> None:
    decays = matched(both, "with_leaky", "right_leaky", optimizer=("sgd_with_a_little_decay", "sgd"))
    failed = (each for each in decays.rungs if each.status == FAILED)
    assert not decays.holds and set(cause_names(*failed)) == {"weight-decay"}, decays.sentences
    adam = matched(both, "with_leaky", "right_leaky", optimizer=("adam", "adam"), accept=["adam-epsilon"])
    assert adam.holds, adam.sentences


def test_a_difference_says_where_it_begins_and_what_was_not_compared(both: Both) -> None:
    found = matched(both, "with_norm", "default_norm", accept=BIASED)
    assert first_failed(found) == INFERENCE
    inference = rung(found, INFERENCE)
    assert inference.where.startswith("norm, batch_norm") and not inference.at_the_end
    assert inference.first is not None and f"{inference.first:.1e}".startswith("4.") and 4e-4 <= inference.first < 5e-4
    (cause,) = inference.causes
    assert cause.name == "epsilon" and cause.residual is not None
    by_cause = Statement(kind="cause", level="finding", values=cause.facts())
    assert found.statements[1:4] == [*found.describe_rung(inference), by_cause]
    assert found.sentences[3].startswith(f"epsilon: {cause_sentence(cause)} Verified: ") and cause.where in found.sentences[3]


def test_a_rung_with_a_cause_of_its_own_follows_from_no_other_and_other_settings_are_told(both: Both) -> None:
    found = matched(both, "norm_twice", "norm_twice_of_other_momentum_with_softmax", accept=BIASED)
    assert rung(found, INFERENCE).status == rung(found, STATISTICS).status == FAILED
    assert rung(found, "loss").status == FOLLOWS
    assert set(cause_names(rung(found, STATISTICS))) == {"batch-norm-momentum", *BIASED}
    at_once = matched(both, "with_norm", "default_norm")
    assert at_once.settings_differences[0].startswith("norm (epsilon 1e-05, 0.001")
    assert at_once.settings_differences[0] in at_once.sentences[-1]


def test_a_gradient_half_a_percent_too_long_in_front_of_relu_and_batch_norm_is_found(both: Both) -> None:
    wrong = matched(both, "relu_then_norm_of_wrong_gradient", "relu_then_norm", accept=BIASED)
    gradients = rung(wrong, "gradients")
    assert not wrong.holds and rung(wrong, TRAINING).status == rung(wrong, "loss").status == PASSED
    assert gradients.status == FAILED and "conv.bias" in gradients.where and 1e-4 < gradients.difference < 5e-3


def test_a_sixth_that_pytorch_rounds_in_a_gradient_is_said_and_accepted_and_hides_nothing(
    both: Both, snapshot: SnapshotAssertion
) -> None:
    found = matched(both, "with_hardsigmoid", "with_hardsigmoid")
    assert found.holds and not found.same, found.sentences
    (cause,) = [each for differs in found.rungs for each in differs.causes]
    assert cause.name == "rounded-constants" and cause_sentence(cause) == snapshot
    assert cause.residual is not None and cause.residual < 1e-11
    assert rung(found, "gradients").status == ROUNDS
    for port in ("with_hardsigmoid_of_wrong_gradient", "with_hardsigmoid_and_another_fault"):
        wrong = matched(both, "with_hardsigmoid", port)
        assert not wrong.holds and rung(wrong, "gradients").status == FAILED, port


def test_a_flatten_order_is_evened_out_and_said(both: Both) -> None:
    notes = [note.name for note in matched(both, "Net", "port").notes]
    assert notes == ["initialisation", "flatten-order"]


@pytest.mark.parametrize("net", ["with_buffers", "with_buffers_that_are_not_saved"])
def test_buffers_that_do_not_change_are_constants(both: Both, net: str) -> None:
    found = matched(both, net, "centred")
    assert found.same, found.sentences
    with refused(SpecError, names=["calls", "Counting"]):
        matched(both, "Counting", "centred")


# Refusals that need both processes, or Python. Those of the command stand in refusals/match.yaml.


def test_a_file_that_is_no_state_dict_is_refused_in_a_few_words(both: Both, tmp_path: Path) -> None:
    (tmp_path / "nonsense.pt").write_bytes(bytes(range(200)))
    with refused(SpecError, received="torch.save", names=["nonsense.pt", "state_dict"]) as caught:
        matched(both, "Net", "port", weights=[str(tmp_path / "nonsense.pt")])
    assert "weights_only" not in str(caught.error)


@pytest.mark.parametrize(
    ("net", "model", "names"),
    [
        ("Unsupported", "port", ["conv", "Conv3d", "weight", "bias", "not supported", "tests/planted/ports_torch.py"]),
        ("Broken", "port", ["Broken", "RuntimeError", "tests/planted/ports_torch.py"]),
        ("Absent", "port", [TORCH, "Absent"]),
        ("CLASSES", "port", ["CLASSES", "Module", "int"]),
        ("Net", "unsupported", ["own", "Own", "not supported", "tests/planted/ports_keras.py"]),
        ("Net", "random", ["gaussian_noise", "GaussianNoise", "random numbers", "tests/planted/ports_keras.py"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name_with_its_line(both: Both, net: str, model: str, names: list[str]) -> None:
    with refused(SpecError, names=names) as caught:
        matched(both, net, model)
    assert re.search(r"ports_\w+\.py:\d+\)", str(caught.error)) or not names[-1].endswith(".py")
    assert matched(both, "Net", "sequential").same  # the processes go on


@pytest.mark.parametrize(
    ("net", "model", "wrong", "names"),
    [
        ("InTurn", "in_turn", {"classes": 7}, ["--classes", 7, 5]),
        ("Net", "port", {"image": (16, 16, 3)}, ["--input", "16x16x3"]),
    ],
)
def test_sizes_that_the_models_do_not_have_are_refused_by_their_option(
    both: Both, net: str, model: str, wrong: dict[str, Any], names: list[object]
) -> None:
    with refused(SpecError, names=names):
        matching.match(f"{TORCH}:{net}", f"{KERAS}:{model}", **{"image": IMAGE, "classes": CLASSES, **wrong}, processes=both)


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 1}, {"classes": "7"}, {"image": (8, 8)}, {"image": "8x8x3"}, {"image": (8, 8, 0)}, {"steps": 0},
        {"steps": 100_001},
    ],
)  # fmt: skip
def test_from_python_a_wrong_number_is_refused_as_on_the_command_line(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with refused(SpecError, field=name) as caught:
        api.match("a:b", "c:d", **{"image": IMAGE, "classes": 5, **wrong})
    assert caught.error.received == repr(value)


def test_a_damaged_image_is_refused_without_an_option_that_match_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "start", pytest.fail)  # a guard: what is refused starts nothing
    photos = write_folder(tmp_path / "photos", tree("cat", "dog") | {"cat/torn.png": image("torn")[:60]})
    words = ("tests.planted.ports_torch:Net", "tests.planted.ports_keras:port", "--input", "8x8x3", "--classes", "5")
    ended = convtwins("match", *words, "--data", photos)
    check_ended(ended, exit_code=4, names=["'cat/torn.png'", "Repair or remove them."])
    assert ended.stderr.endswith("Repair or remove them.\n")
    asked = spec.build({"data": {"source": str(photos)}})
    with refused(DataRefused, names=["Or leave them out with `data.on_bad=skip`."]):
        sources.load(asked.data, seed=0)


def test_a_class_of_a_notebook_is_refused() -> None:
    with refused(SpecError, fix="Move it to a file", names=["Net"]):
        api.match(type("Net", (), {"__module__": "__main__"}), "c:d", image=IMAGE, classes=5)


# Pairs that `run --model` takes.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder. Modules in it are found, here and by the twins."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{launch.PROJECT_ROOT}:{tmp_path}")
    return tmp_path


def test_a_pair_is_written_as_the_module_that_the_twins_are_tested_with(
    both: Both, home: Path, snapshot: SnapshotAssertion
) -> None:
    path = Path("planted", "pair_for_run.py")
    assert pair_file.write(matched(both, "ForRun", "ForRun", accept=BIASED), path) == snapshot
    pair_file.check(path, own_input=False, own_loss=False)  # it may be written again
    written = user_code.module("planted.pair_for_run")
    assert replace(written.MODEL, name=pair_for_run.MODEL.name) == pair_for_run.MODEL
    assert (written.PYTORCH, written.TENSORFLOW) == (pair_for_run.PYTORCH, pair_for_run.TENSORFLOW)
    own, sides = user_code.folders("planted.pair_for_run")
    assert own == home / "planted" and sides == launch.PROJECT_ROOT / "tests"  # their code is part of the run's digest


@pytest.mark.usefixtures("home")
def test_a_written_pair_carries_what_is_rounded_and_a_proof_that_fails_by_it_names_it(
    both: Both, snapshot: SnapshotAssertion
) -> None:
    assert pair_file.write(matched(both, "with_barely_leaky", "right_leaky"), Path("rounded_pair", "net.py")) == snapshot
    rounded = user_code.module("rounded_pair.net").MODEL.rounded
    assert rounded.startswith("rounded-constants: ")
    fields = {
        "name": "2 logits", "number": 2, "aspect": "logits", "model": "rounded_pair.net", "optimizer": "sgd",
        "precision": "float64", "steps": 1, "step": None, "tolerance": 1e-12, "reason": "rounding", "status": "failed",
    }  # fmt: skip
    small, large = (Rung.model_validate({**fields, "max_relative_difference": size}) for size in (4e-10, 0.1))
    named = [rounded in Proof(rungs=[each], seconds=1.0, rounded=rounded).sentence for each in (small, large)]
    assert named == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "model", "verdict"), [("Scaled", "rescaled", "not proved"), ("with_buffers", "centred", "proved")]
)
def test_a_written_pair_with_buffers_is_proved_and_a_proof_that_tensorflow_rounds_names_what(
    both: Both, home: Path, net: str, model: str, verdict: str
) -> None:
    name = f"{model}_pair.net"
    pair_file.write(matched(both, net, model), Path(f"{model}_pair", "net.py"))
    data = {"source": "leaves:classes=5,images=60,size=16", "image_size": 8}
    what = spec.build({"model": name, "data": data, "global_batch_size": 8})
    request = ladder.ProofRequest(what, Twins(launch.FRAMEWORKS), ("serial",), replicas=2, steps=2)
    proof = ladder.prove(request, out=home / "proof", remember=False, progress=print)
    assert proof.verdict == verdict, proof.sentence
    assert user_code.module(name).MODEL.rounded in proof.sentence  # empty where nothing is


@pytest.mark.usefixtures("home")
def test_a_shared_layer_keeps_its_name_in_a_written_pair(both: Both) -> None:
    pair_file.write(matched(both, "Shared", "shared"), Path("shared_pair", "net.py"))
    written = user_code.module("shared_pair.net")
    assert written.TENSORFLOW.layers["shared"] == "shared" and [name for name, _ in written.MODEL.again] == ["shared"]


@pytest.mark.parametrize(("net", "model"), [("Net", "same_padding"), ("ForRun", "ForRun")])
def test_a_pair_that_does_not_match_is_not_written(
    both: Both, home: Path, snapshot: SnapshotAssertion, net: str, model: str
) -> None:
    assert pair_file.write(matched(both, net, model), Path("pairs", "net.py")) == snapshot
    assert not (home / "pairs").exists()


def test_each_call_of_a_layer_counts_in_a_written_pair_and_a_name_that_two_layers_have_tells_their_block(
    both: Both, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = matched(both, "blocks", "blocks")
    (said,) = pair_file.write(found, Path("deep", "blocks_pair", "net.py"))
    assert said.endswith("run --model deep.blocks_pair.net --image-size 8.")
    (said,) = pair_file.write(found, home / "not-a-name" / "blocks_pair" / "net.py")
    assert said.endswith(f"run --model blocks_pair.net --image-size 8, with PYTHONPATH={home / 'not-a-name'}.")
    monkeypatch.syspath_prepend(home / "not-a-name")
    written = user_code.module("blocks_pair.net")
    assert list(written.TENSORFLOW.layers.values()) == ["block/down", "block/same", "block_1/down", "block_1/same", "dense"]
    counted = work.count(architectures.resolve("blocks_pair.net", CLASSES, 8))
    down, same = [2 * 9 * 4 * each for each in (3 * 16, 4 * 4)], [2 * 9 * 4 * 4 * each for each in (16, 4)]
    assert counted.forward_flops == sum(down) + 2 * sum(same) + 2 * 16 * CLASSES


@pytest.mark.parametrize(
    ("net", "model", "options", "names"),
    [
        ("Residual", "residual", {}, ["--write", "up", "transposed_conv 2x2x3x4"]),
        ("mixed", "mixed", {"accept": BIASED}, ["--write", "6", "batch_norm 36"]),
        ("FunctionDropout", "port", {}, ["--write", "dropout", "ports_torch.py", "torch.nn.Dropout"]),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_layer_that_a_run_cannot_have_is_refused_by_name(
    both: Both, net: str, model: str, options: dict[str, Any], names: list[str]
) -> None:
    with refused(SpecError, names=names):
        pair_file.write(matched(both, net, model, **options), Path("pairs", "net.py"))


@pytest.mark.slow
def test_a_pair_is_matched_written_trained_in_parallel_and_proved(tmp_path: Path) -> None:
    example(tmp_path, "keras_net:build", "--write", tmp_path / "pairs" / "net.py").succeeded()
    words = "run --model pairs.net --data digits --limit 200 --epochs 1 --repeats 1 --replicas 2 --modes data_parallel,pipeline"
    how: dict[str, Any] = {"folder": EXAMPLE, "PYTHONPATH": f"{launch.PROJECT_ROOT}:{tmp_path}"}
    convtwins_process(*words.split(), "--out", tmp_path / "out", "--image-size", 28, **how).succeeded()
    rows = api.load(tmp_path / "out").summaries.set_index("id")
    for framework in launch.FRAMEWORKS:
        parallel = rows.loc[f"{framework}-data_parallel-2replicas"]
        assert (parallel["status"], parallel["parity"]) == ("ok", "proved in float64")
        assert parallel["first_step_difference"] < 1e-5
        assert "only the user's own code joins" in rows.loc[f"{framework}-pipeline-2replicas", "reason"]
    other = convtwins_process(*words.split(), "--out", tmp_path / "other", "--image-size", 32, **how)
    assert other.exit_code == 2 and "28x28" in other.stderr


@pytest.mark.slow
def test_weights_of_files_are_copied_or_compared(both: Both, tmp_path: Path) -> None:
    net, port = tmp_path / "net.pt", tmp_path / "net.weights.h5"

    def save(held: str) -> None:
        processes.python(
            "-c", f"import torch; from tests.planted import ports_torch as p; torch.save({held}, {str(net)!r})"
        ).succeeded()

    def match_with(torch_model: str, keras_model: str, *files: Path) -> Match:
        return matched(both, torch_model, keras_model, weights=[str(file) for file in files or (net,)])

    processes.python("-c", f"from tests.planted import ports_keras as p; p.port().save_weights({str(port)!r})").succeeded()
    state = "p.Net().state_dict()"
    for held in (
        state,
        "torch.nn.DataParallel(p.Net()).state_dict()",
        f"{{'state_dict': {state}, 'state_dict_ema': {state}}}",
        f"{{'epoch': 3, 'model': {state}, 'optimizer': {{'state': {{}}}}}}",
    ):
        save(held)
        assert match_with("Net", "port").same, held
    save("p.with_buffers().state_dict()")
    assert match_with("with_buffers", "centred").same
    save(state)
    found = match_with("Net", "port", net, port)
    assert first_failed(found) == GIVEN and cause_names(rung(found, GIVEN)) == ["initialisation"]
    with refused(SpecError, names=["net.pt", "with_norm", "state_dict"]):
        match_with("with_norm", "with_norm")
    save("{'epoch': 3, 'model': p.with_norm().norm.state_dict(), 'optimizer': {'state': {}}}")
    with refused(SpecError, names=["epoch", "model", "optimizer", 0]):
        match_with("Net", "port")


def example(home: Path, model: str, *words: object) -> Finished:
    options = ("--input", "28x28x1", "--classes", 10, "--steps", 2)
    return convtwins_process(
        *("match", "net:Net", model, *options, *words), folder=EXAMPLE, PYTHONPATH=str(launch.PROJECT_ROOT), HOME=str(home)
    )


@pytest.mark.slow
def test_the_right_port_of_the_example_is_the_same_model(tmp_path: Path) -> None:
    assert example(tmp_path, "keras_net:build", "--json").succeeded().json["verdict"] == "same"


def test_the_first_try_of_the_example_is_explained_with_the_users_line_and_a_report(tmp_path: Path) -> None:
    done = example(tmp_path, "keras_net:first_try", "--out", tmp_path / "report")
    assert done.exit_code == 1, done.stderr
    begins = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert begins.index(LAYERS) < begins.index(INFERENCE)  # told as each ends
    page = (launch.PROJECT_ROOT / "docs" / "match.md").read_text()
    quoted, _, line = page.partition("The second command says:\n")[2].partition("\n\n")[0].partition("\n    lines to look at ")
    assert line.strip() in done.stdout
    quoted = quoted.split()
    said = done.stdout.split()
    start = next(at for at in range(len(said)) if said[at : at + 3] == quoted[:3])
    residual = quoted.index("once") - 1  # the rounding of a processor
    assert said[start : start + residual] == quoted[:residual]
    assert said[start + residual + 1 : start + len(quoted)] == quoted[residual + 1 :]
    stored = json.loads((tmp_path / "report" / "match.json").read_text())
    assert not stored["same"] and not stored["holds"]
    assert stored["verdict"] == "not the same" and stored["rungs"][1]["causes"][0]["name"] == "padding"
    assert (tmp_path / "report" / "match.html").is_file()
