"""A mistake planted in one twin must not pass for the same training; the rung that sees it first is named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from common.models import architectures
from compare.proof import certificate, rungs
from tests.parity.settings import setting
from tests.support import processes

Recordings = Callable[[str, str, str], dict[str, np.ndarray]]

# framework, setting, defect, the rung that catches it first, and others that must catch it too.
OF_BOTH = ("groups_are_in_another_order", "average_pool_counts_padding", "branches_are_in_another_order")
QUICK = [
    ("pytorch", "sgd", "bias_is_dropped", "1 parameters", ()),
    ("pytorch", "sgd", "parameter_has_another_name", "1 parameters", ()),
    ("tensorflow", "sgd", "depthwise_has_a_bias", "1 parameters", ()),
    ("pytorch", "sgd", "max_pool_padding_is_symmetric", "2 logits, train mode", ()),
    *(("pytorch", "sgd", defect, "2 logits, train mode", ()) for defect in OF_BOTH),
    ("pytorch", "sgd", "dense_kernel_is_transposed", "2 logits, train mode", ("2 logits, eval mode",)),
    ("pytorch", "sgd", "flatten_is_channels_first", "2 logits, train mode", ()),
    ("pytorch", "sgd", "dropout_mask_is_ignored", "2 logits, train mode", ()),
    ("pytorch", "sgd", "kernels_are_rounded_to_tf32", "2 logits, train mode", ()),
    ("pytorch", "sgd", "images_are_scaled_by_256", "2 logits, train mode", ()),
    ("pytorch", "sgd", "images_pass_through_float32", "2 logits, train mode", ("5 losses",)),
    ("pytorch", "sgd", "batch_norm_epsilon_of_keras", "2 logits, train mode", ()),
    ("tensorflow", "float32", "fused_batch_norm_epsilon_of_keras", "2 logits, train mode", ("5 losses",)),
    ("pytorch", "sgd", "bias_has_no_effect", "3 gradients", ()),
    ("pytorch", "sgd", "labels_are_swapped", "3 gradients", ("5 losses",)),
    ("pytorch", "relu_norm", "bias_gradients_are_half_a_percent_too_long", "3 gradients", ("4 weights after one step",)),
    ("pytorch", "adam", "adam_epsilon_before_correction", "4 weights after one step", ("5 losses",)),
    ("pytorch", "adam", "adam_epsilon_of_keras", "4 weights after one step", ("5 losses",)),
    ("pytorch", "adam", "adam_weight_decay_is_decoupled", "4 weights after one step", ("5 losses",)),
    ("tensorflow", "sgd", "optimizer_of_keras", "4 weights after one step", ("5 losses",)),
    ("pytorch", "sgd", "batch_norm_momentum_means_old", "4 BatchNorm statistics after one step", ()),
    ("pytorch", "sgd", "batch_norm_running_variance_is_biased", "4 BatchNorm statistics after one step", ()),
    ("pytorch", "sgd", "momentum_through_float32", "5 losses", ("5 logits after the last step, eval mode",)),
    ("pytorch", "sgd", "sgd_weight_decay_is_decoupled", "5 losses", ("5 logits after the last step, eval mode",)),
    ("pytorch", "sgd", "learning_rate_in_the_buffer", "5 losses", ("5 logits after the last step, eval mode",)),
    ("pytorch", "data_parallel", "last_shard_is_unscaled", "6 data_parallel against serial", ()),
    ("pytorch", "data_parallel", "batch_norm_is_per_replica", "6 data_parallel against serial", ()),
    (
        "pytorch",
        "data_parallel",
        "synchronised_running_variance_is_biased",
        "6 data_parallel against serial: BatchNorm statistics after one step",
        ("6 data_parallel against serial: logits after the last step",),
    ),
    ("pytorch", "sgd", "shift_goes_the_other_way", "2 logits, train mode", ("7 pixels and order",)),
    ("pytorch", "sgd", "one_pixel_level_off", "2 logits, train mode", ("7 pixels and order",)),
    ("pytorch", "sgd", "order_of_another_seed", "2 logits, train mode", ("7 pixels and order",)),
    ("pytorch", "sgd", "later_batches_are_reversed", "7 pixels and order", ()),
]
SLOW = [
    # As with PyTorch above: TensorFlow builds a graph for each.
    *(("tensorflow", "sgd", defect, "2 logits, train mode", ()) for defect in (*OF_BOTH, "flatten_is_channels_first")),
    ("tensorflow", "sgd", "max_pool_padding_is_symmetric", "2 logits, train mode", ()),
    ("tensorflow", "sgd", "batch_norm_momentum_means_old", "4 BatchNorm statistics after one step", ()),
    ("tensorflow", "adam", "adam_epsilon_before_correction", "4 weights after one step", ("5 losses",)),
    ("tensorflow", "data_parallel", "last_shard_is_unscaled", "6 data_parallel against serial", ()),
    ("pytorch", "multi_process", "last_shard_is_unscaled", "6 multi_process against serial", ()),
    ("pytorch", "multi_process", "batch_norm_is_per_replica", "6 multi_process against serial", ()),
    ("tensorflow", "multi_process", "last_shard_is_unscaled", "6 multi_process against serial", ()),
    *(
        (framework, "sharded_data_parallel", defect, "6 sharded_data_parallel against serial", ())
        for framework in ("pytorch", "tensorflow")
        for defect in (
            "last_shard_is_unscaled",
            "scatter_averages_over_ranks",
            "gathered_parameters_are_stale",
            "optimizer_state_is_shifted_by_one_rank",
            "batch_norm_is_per_replica",
        )
    ),
    ("pytorch", "mini_xception", "max_pool_padding_is_symmetric", "2 logits, train mode", ()),
    ("pytorch", "mini_xception", "batch_norm_running_variance_is_biased", "4 BatchNorm statistics after one step", ()),
    ("pytorch", "mini_xception", "momentum_through_float32", "5 losses", ()),
    ("tensorflow", "mini_xception", "batch_norm_momentum_means_old", "4 BatchNorm statistics after one step", ()),
    ("pytorch", "simple_cnn", "flatten_is_channels_first", "2 logits, train mode", ()),
    ("pytorch", "simple_cnn", "dropout_mask_is_ignored", "2 logits, train mode", ()),
    ("pytorch", "simple_cnn", "adam_epsilon_of_keras", "4 weights after one step", ()),
    ("pytorch", "simple_cnn", "later_batches_are_reversed", "7 pixels and order", ()),
    ("tensorflow", "resnet18_float32", "fused_batch_norm_epsilon_of_keras", "2 logits, train mode", ()),
]
# Not a defect: torch's own SGD follows the shared rule. It fails where the ladder would find fault with anything.
HARMLESS = [("pytorch", "sgd", "native_optimizer")]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    planted = [row[:3] for row in (*QUICK, *HARMLESS)]
    # The clean recordings come last: had a defect not been taken back, they would show it.
    clean = [
        (framework, name, "nothing")
        for framework in ("pytorch", "tensorflow")
        for name in ("sgd", "adam", "float32", "relu_norm")
    ]
    return _record(tmp_path_factory.mktemp("planted"), [*planted, *clean, ("pytorch", "data_parallel", "nothing")])


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    models = ("mini_xception", "simple_cnn", "resnet18_float32", "sgd", "adam")
    clean = [(framework, name, "nothing") for framework in ("pytorch", "tensorflow") for name in models]
    parallel = [
        ("pytorch", "multi_process", "nothing"),
        ("tensorflow", "multi_process", "nothing"),
        ("tensorflow", "data_parallel", "nothing"),
        ("tensorflow", "data_parallel", "batch_norm_is_per_replica"),
        ("pytorch", "sharded_data_parallel", "nothing"),
        ("tensorflow", "sharded_data_parallel", "nothing"),
    ]
    return _record(tmp_path_factory.mktemp("planted-slow"), [*(row[:3] for row in SLOW), *clean, *parallel])


@pytest.mark.parametrize(("framework", "name", "defect", "first", "also"), QUICK)
def test_a_planted_defect_is_not_proved(
    quick: Recordings, framework: str, name: str, defect: str, first: str, also: tuple[str, ...]
) -> None:
    _assert_caught(quick, framework, name, defect, first, also)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "name", "defect", "first", "also"),
    [*SLOW, ("tensorflow", "data_parallel", "batch_norm_is_per_replica", "6 data_parallel against serial", ())],
)
def test_a_defect_planted_in_a_real_model_or_among_processes_is_not_proved(
    slow: Recordings, framework: str, name: str, defect: str, first: str, also: tuple[str, ...]
) -> None:
    _assert_caught(slow, framework, name, defect, first, also)


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
@pytest.mark.parametrize("name", ["sgd", "adam", "float32", "relu_norm"])
def test_the_clean_twin_passes_where_its_defects_fail(quick: Recordings, framework: str, name: str) -> None:
    proof = _proof(quick, framework, name, "nothing")
    assert proof.verdict == "proved", proof.sentence
    assert {rung.name[0] for rung in proof.rungs} == set(
        "1257" if name == "float32" else "123457"
    )  # rung 8 judges single float32 steps


@pytest.mark.parametrize(("framework", "name", "defect"), [("pytorch", "data_parallel", "nothing"), *HARMLESS])
def test_a_change_that_is_no_defect_passes(quick: Recordings, framework: str, name: str, defect: str) -> None:
    proof = _proof(quick, framework, name, defect)
    assert proof.verdict == "proved", proof.sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "name"),
    [
        *((framework, name) for framework in ("pytorch", "tensorflow") for name in ("mini_xception", "simple_cnn")),
        ("pytorch", "resnet18_float32"),
        ("tensorflow", "data_parallel"),
        ("pytorch", "multi_process"),
        ("tensorflow", "multi_process"),
        ("pytorch", "sharded_data_parallel"),
        ("tensorflow", "sharded_data_parallel"),
    ],
)
def test_the_clean_twin_passes_with_real_models_and_among_processes(slow: Recordings, framework: str, name: str) -> None:
    proof = _proof(slow, framework, name, "nothing")
    assert proof.verdict == "proved", proof.sentence


def test_every_rung_has_a_planted_defect_that_it_catches_first() -> None:
    assert {row[3][0] for row in QUICK} == set("1234567")


def _assert_caught(recordings: Recordings, framework: str, name: str, defect: str, first: str, also: tuple[str, ...]) -> None:
    proof = _proof(recordings, framework, name, defect)
    failed = [rung.name for rung in proof.rungs if rung.status == "failed"]
    assert proof.verdict == "not proved", "passed every rung"
    assert failed[0] == first
    assert set(also) <= set(failed)
    assert proof.sentence.startswith("not proved:") and f"first: {first[2:]} " in proof.sentence


def _proof(recordings: Recordings, framework: str, name: str, defect: str) -> certificate.Proof:
    """The rungs of one recording: against the clean other framework, or in a parallel mode against its own serial."""
    base = setting(name)
    architecture = architectures.resolve(base.model, 10, 32)
    recorded = recordings(framework, name, defect)
    if base.mode == "serial":
        other = {"pytorch": "tensorflow", "tensorflow": "pytorch"}[framework]
        compared = rungs.compare_serials(base, architecture, recordings(other, name, "nothing"), recorded, None)
    else:
        compared = rungs.compare_mode(base, architecture, framework, recordings(framework, "sgd", "nothing"), recorded, None)
    return certificate.Proof(rungs=compared, seconds=0.0)


def _record(folder: Path, jobs: list[tuple[str, str, str]]) -> Recordings:
    """Plant and record: each framework in a process of its own, several processes apart, and TensorFlow's replicas too.

    TensorFlow numbers its collective operations by process, so that one has room for one parallel mode only.
    """
    groups: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}
    for job in jobs:
        framework, name, _ = job
        mode = setting(name).mode
        (folder / f"{name}.json").write_text(setting(name).to_json(), encoding="utf-8")
        apart = (
            job
            if framework == "tensorflow" and mode != "serial"
            else (framework, "" if mode in ("serial", "data_parallel") else mode)
        )
        groups.setdefault(apart, []).append(job)
    for group in groups.values():
        framework = group[0][0]
        out = folder / framework
        out.mkdir(exist_ok=True)
        words = [f"{folder / name}.json:{defect}" for _, name, defect in group]
        processes.python("-m", "tests.planted.plant", framework, out, *words, timeout=600).succeeded()
    return lambda framework, name, defect: safetensors.numpy.load_file(folder / framework / f"{name}-{defect}.safetensors")
