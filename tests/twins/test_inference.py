"""Trained models at work: the logits of the run, in any batch; in the framework's own files and back."""

from pathlib import Path

import numpy as np
import pytest

from common.artifacts.trained import Card, Trained
from common.models.weights import WeightsError
from common.training import inference
from tests.twins import made, oracles
from tests.twins.adapters import Twin

NETWORK = made.network()
DATA = made.dataset(NETWORK).train


def model(precision: str = "float64") -> Trained:
    card = Card(
        framework="made up", versions={}, model="simple_cnn", class_names=tuple("abcd"), image_size=made.SIZE_PX,
        pixel_mean=(0.0, 0.0, 0.0), pixel_std=(1.0, 1.0, 1.0), precision=precision, spec_hash="", data_hash="", seed=0,
        epoch=1, validation=None,
    )  # fmt: skip
    return Trained(card, NETWORK, made.values(NETWORK))


@pytest.mark.parametrize("batch_size", [1, 5, 100])
def test_logits_are_those_of_the_formulas_whatever_the_batch(twin: Twin, batch_size: int) -> None:
    found = inference.score(twin.inference.Predictor(model()), DATA.images, batch_size)
    masks = made.masks(NETWORK, len(DATA))
    expected = oracles.Forward(NETWORK, made.values(NETWORK), DATA.images, masks, training=False).logits
    assert found.shape == (len(DATA), 4) and found.dtype == np.float64
    assert np.abs(found - expected).max() < 1e-12


def test_pixels_are_scaled_by_the_card(twin: Twin) -> None:
    scaled = model()
    scaled = scaled._replace(card=scaled.card.model_copy(update={"pixel_std": (0.5, 0.5, 0.5)}))
    dark = DATA.images // 2
    twice = inference.score(twin.inference.Predictor(scaled), dark)
    assert np.allclose(twice, inference.score(twin.inference.Predictor(model()), 2 * dark), rtol=0, atol=1e-12)


def test_a_batch_of_another_size_builds_no_graph(twin: Twin) -> None:
    predictor = twin.inference.Predictor(model())
    before = twin.private_api.compilation_count()
    for batch_size in (1, 5, 7):
        predictor.logits(DATA.images[:batch_size])
    assert twin.private_api.compilation_count() == before


def test_times_are_of_calls_behind_the_warm_up(twin: Twin) -> None:
    times = inference.measure(twin.inference.Predictor(model("float32")), made.SIZE_PX, 3, calls=7, seconds=60.0)
    assert (times.batch_size, len(times.seconds)) == (3, 7)
    assert times.warm_up_calls >= inference.WARM_UP_CALLS and times.first_seconds > 0
    least = inference.measure(twin.inference.Predictor(model("float32")), made.SIZE_PX, 1, calls=1000, seconds=0.0)
    assert len(least.seconds) == inference.LEAST_CALLS


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_frameworks_own_file_holds_the_same_weights(twin: Twin, precision: str, tmp_path: Path) -> None:
    written = model(precision)
    for suffix in twin.formats.SUFFIXES:
        path = tmp_path / f"model{suffix}"
        twin.formats.write(written, path)
        found = twin.formats.read(written.card, NETWORK, path)
        assert found.keys() == written.weights.keys()
        for name, array in found.items():
            assert array.dtype == precision and np.array_equal(array, written.weights[name].astype(precision))


def test_files_that_do_not_fit_are_refused_by_name(twin: Twin, tmp_path: Path) -> None:
    suffix = twin.formats.SUFFIXES[0]
    other = tmp_path / f"other{suffix}"
    larger = made.network(num_classes=5)
    twin.formats.write(model()._replace(architecture=larger, weights=made.values(larger)), other)
    garbage = tmp_path / f"garbage{suffix}"
    garbage.write_bytes(b"no weights at all")
    junk = tmp_path / f"junk{suffix}"
    junk.write_bytes(b"junk\n")  # to a reader of pickles, something that it has stored before
    torn = tmp_path / f"torn{suffix}"
    torn.write_bytes(other.read_bytes()[:1000])
    for path in (other, garbage, junk, torn, tmp_path / f"missing{suffix}"):
        with pytest.raises(WeightsError, match=f"{path.name} holds no weights that fit"):
            twin.formats.read(model().card, NETWORK, path)


def test_a_pickle_is_never_run(twin: Twin, tmp_path: Path) -> None:
    path = tmp_path / f"evil{twin.formats.SUFFIXES[0]}"
    flag = tmp_path / "flag"
    path.write_bytes(b"cpathlib\nPath\n(S'" + str(flag).encode() + b"'\ntRcpathlib\nPath.touch\n(g0\ntR.")
    with pytest.raises(WeightsError):
        twin.formats.read(model().card, NETWORK, path)
    assert not flag.exists()
