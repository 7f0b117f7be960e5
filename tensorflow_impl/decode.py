"""Decode image files to canonical pixels, by the framework's own decoder where its pixels are the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from common.data.decoding import decode as canonical


def decode(content: bytes) -> tf.Tensor:
    """Decode a plain JPEG (`Encoded.decodes_identically`) with the framework: accurate DCT, fancy upsampling.

    Returns:
        uint8 [H, W, 3], equal to `common.data.decoding.decode.decode` to the last bit.
    """
    # Twin: TensorFlow's default is a faster DCT with other pixels.
    return tf.io.decode_jpeg(content, channels=3, fancy_upscaling=True, dct_method="INTEGER_ACCURATE")


def image(content: bytes, plain: bool, image_size: int) -> tf.Tensor:
    """Decode any image file. The framework decodes plain JPEGs; the shared rule decodes others and resizes.

    Args:
        content: bytes of the file.
        plain: the file's `Encoded.decodes_identically`.
        image_size: height and width in pixels.

    Returns:
        uint8 [image_size, image_size, 3].
    """

    # Twin: `content` and `plain` may be tensors of a graph. The graph has the branches and calls Python for the shared rule.
    def by_shared_rule() -> tf.Tensor:
        return tf.numpy_function(lambda file: canonical.decode(file, image_size), [content], tf.uint8)

    def resized(decoded: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return canonical.resize(decoded[np.newaxis], image_size)[0]

    def by_framework() -> tf.Tensor:
        decoded = decode(content)
        return tf.cond(
            tf.reduce_all(tf.shape(decoded)[:2] == image_size),
            lambda: decoded,
            lambda: tf.numpy_function(resized, [decoded], tf.uint8),
        )

    return tf.ensure_shape(tf.cond(plain, by_framework, by_shared_rule), (image_size, image_size, 3))
