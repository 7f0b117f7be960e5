"""A user's images and labels for `match`, in the place of random ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from common.data.sources import lookup
from common.matching.records import SEED, OpenRequest, write_images
from common.spec import Data, SpecError


def stored(request: OpenRequest, data: str, folder: Path) -> OpenRequest:
    """Write the images that a match takes to a folder, and return the request with them.

    Args:
        request: a request with its image size, classes and steps.
        data: a source, as `data.source` of a spec names it: an image folder, an archive of one, or a data set.
        folder: gets the file.
    """
    height, width, channels = request.image
    received = f"Received: --input {height}x{width}x{channels} with --data {data}."
    if height != width or channels not in (1, 3):
        raise SpecError(f"--data gives square images of 1 or 3 channels. {received} Use e.g. 64x64x3, or leave --data out.")
    most = request.batch * request.steps
    dataset = lookup.load(Data.model_validate({"source": data, "image_size": height, "limit": most}), seed=SEED)
    if len(dataset.class_names) > request.classes:
        raise SpecError(
            f"--data has more classes than the models have outputs. Received: {len(dataset.class_names)} classes in "
            f"{dataset.name}, --classes {request.classes}. Use data of as many classes, or other models."
        )
    rows = np.random.default_rng(SEED).permutation(len(dataset.train))[:most]
    images, labels = np.stack([dataset.train.images[row] for row in rows]), dataset.train.labels[rows]
    if channels == 1:
        if not (images == images[..., :1]).all():
            raise SpecError(f"--data {data} has images in colour, which a model of one channel does not take. {received}")
        images = images[..., :1]
    file = folder / "images.safetensors"
    write_images(np.ascontiguousarray(images), labels, file)
    return request.model_copy(update={"data": str(file), "data_name": dataset.name})
