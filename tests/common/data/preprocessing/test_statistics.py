"""Mean and standard deviation from exact sums, and the file that keeps them."""

import json
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from common.data.preprocessing import statistics
from common.data.preprocessing.sums import Sums, from_array
from common.data.sources import DatasetSplit

IMAGES: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, (5, 9, 9, 3), dtype=np.uint8)


def split(images: NDArray[np.uint8]) -> DatasetSplit:
    return DatasetSplit(images=images, labels=np.zeros(len(images), np.int64))


def sums_of(images: NDArray[np.uint8]) -> Sums:
    flat = images.reshape(-1, 3).astype(np.int64)
    return from_array(np.stack([flat.sum(axis=0), (flat**2).sum(axis=0)]), len(flat))


def test_statistics_are_those_of_the_pixels_between_0_and_1() -> None:
    made = statistics.statistics(sums_of(IMAGES))
    scaled = IMAGES.reshape(-1, 3) / 255
    np.testing.assert_allclose(made.mean, scaled.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(made.std, scaled.std(axis=0), rtol=1e-14)


def test_a_spread_of_one_value_in_ten_billion_pixels_is_not_lost() -> None:
    pixels = 10**10
    made = statistics.statistics(Sums(pixels, (255 * pixels - 1,) * 3, (65025 * (pixels - 1) + 254**2,) * 3))
    variance = Fraction(pixels - 1, pixels**2 * 255**2)  # one pixel of 254 among those of 255
    assert made.std == pytest.approx([float(variance) ** 0.5] * 3, rel=1e-14)


def test_one_colour_has_no_spread() -> None:
    made = statistics.statistics(sums_of(np.full((2, 3, 3, 3), 77, np.uint8)))
    assert made == statistics.Statistics((77 / 255,) * 3, (0.0, 0.0, 0.0))


def test_statistics_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least one pixel.* none"):
        statistics.statistics(Sums())


def test_statistics_are_computed_once_and_then_read(tmp_path: Path) -> None:
    first = statistics.dataset_statistics(split(IMAGES), "key", cache_dir=str(tmp_path))
    assert first == statistics.statistics(sums_of(IMAGES))
    assert statistics.dataset_statistics(split(IMAGES // 2), "key", cache_dir=str(tmp_path)) == first


def test_other_data_has_other_statistics(tmp_path: Path) -> None:
    statistics.dataset_statistics(split(IMAGES), "one", cache_dir=str(tmp_path))
    other = statistics.dataset_statistics(split(IMAGES // 2), "other", cache_dir=str(tmp_path))
    assert other == statistics.statistics(sums_of(IMAGES // 2))


def test_processes_that_ask_together_compute_once(tmp_path: Path) -> None:
    """Their images differ here, and the first one's count."""

    def ask(number: int) -> statistics.Statistics:
        return statistics.dataset_statistics(split(IMAGES + np.uint8(number)), "key", cache_dir=str(tmp_path))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"pixels": 405', '"pixels": 406'),
        lambda text: "[]",
        lambda text: json.dumps({"record": {}, "sha256": ""}),
        lambda text: "",
    ],
    ids=["torn", "changed", "a list", "empty record", "empty"],
)
def test_a_file_that_was_torn_or_changed_is_made_again(tmp_path: Path, harm: object) -> None:
    assert callable(harm)
    path = statistics.store(sums_of(IMAGES), "key", cache_dir=str(tmp_path))
    path.write_text(harm(path.read_text()))
    made = statistics.dataset_statistics(split(IMAGES), "key", cache_dir=str(tmp_path))
    assert made == statistics.statistics(sums_of(IMAGES))
    assert json.loads(path.read_text())["record"]["mean"] == list(made.mean)
