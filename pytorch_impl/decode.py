"""Decode image files to canonical pixels, by the framework's own decoder where its pixels are the same."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from common.data.decoding import decode as canonical


def decode(content: bytes) -> torch.Tensor:
    """Decode a plain JPEG (`Encoded.decodes_identically`) with the framework: accurate DCT, fancy upsampling.

    Returns:
        uint8 [H, W, 3], equal to `common.data.decoding.decode.decode` to the last bit.
    """
    # Twin: torchvision's decoder has no settings. Its defaults are these, and it returns channels first.
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    pixels = cast(torch.Tensor, decode_jpeg(data, ImageReadMode.RGB))
    return pixels.permute(1, 2, 0)


def image(content: bytes, plain: bool, image_size: int) -> torch.Tensor:
    """Decode any image file. The framework decodes plain JPEGs; the shared rule decodes others and resizes.

    Args:
        content: bytes of the file.
        plain: the file's `Encoded.decodes_identically`.
        image_size: height and width in pixels.

    Returns:
        uint8 [image_size, image_size, 3].
    """
    # Twin: the branch here is Python's. TensorFlow's pipeline is a graph that calls Python for the shared rule.
    if plain:
        decoded = decode(content)
        if decoded.shape[:2] == (image_size, image_size):
            return decoded
        return torch.from_numpy(canonical.resize(decoded.numpy()[np.newaxis], image_size)[0])
    return torch.from_numpy(canonical.decode(content, image_size).copy())
