"""Private names of Keras, in one place: a later version may change them."""

from __future__ import annotations

from keras.src.backend.common import dtypes


def keep_float64() -> None:
    """Let operations on float64 give float64 on every backend.

    Keras's type promotion gives float32 on torch and JAX, with no option. So a mean of float64 would have seven digits there,
    and no proof in float64 were possible. Operations on float32 don't change.
    """
    dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
