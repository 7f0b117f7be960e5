import numpy as np
import pytest

from common.datasets import decode
from common.preprocessing import resize


@pytest.mark.parametrize(
    ("height", "width", "to_px"),
    [(32, 32, 64), (256, 256, 64), (64, 64, 63), (37, 91, 32), (8, 8, 32), (1, 5, 3), (300, 7, 11)],
)
def test_two_matrices_resize_as_the_canonical_decode_does_to_the_last_bit(height: int, width: int, to_px: int) -> None:
    image = np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)
    across = one_pass(resize.matrix(width, to_px), image.transpose(1, 0, 2)).transpose(1, 0, 2)
    both = one_pass(resize.matrix(height, to_px), across)
    assert np.array_equal(both, decode.resize(image[np.newaxis], to_px)[0])


def test_a_matrix_is_shared_and_cannot_be_changed() -> None:
    assert resize.matrix(5, 9) is resize.matrix(5, 9)
    with pytest.raises(ValueError, match="read-only"):
        resize.matrix(5, 9)[0, 0] = 1.0


def one_pass(matrix: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    summed = np.einsum("oi,ijc->ojc", matrix, pixels.astype(np.float64))
    return np.clip(np.floor((summed + resize.HALF) / resize.UNIT), 0, 255).astype(np.uint8)
