"""Small trees of images, archives and CIFAR-10 batches for the tests of common.data.sources."""

import hashlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


def pixels(name: str, width: int = 8, height: int = 8) -> NDArray[np.uint8]:
    """uint8 [height, width, 3], other ones for each name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def saved(picture: Image.Image, image_format: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, image_format, **options)
    return file.getvalue()


def image(name: str, width: int = 8, height: int = 8, image_format: str = "PNG") -> bytes:
    return saved(Image.fromarray(pixels(name, width, height)), image_format)


def tree(*folders: str, images: int = 4) -> dict[str, bytes]:
    """`images` PNG files in each folder, e.g. of `train/cat`."""
    names = [f"{folder}/{number}.png" for folder in folders for number in range(images)]
    return {name: image(name) for name in names}


def write_folder(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def write_tar(path: Path, files: Mapping[str, bytes], *extra: tarfile.TarInfo, mode: str = "w") -> Path:
    """A tar archive of the files and then of the extra members, which have no content."""
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in extra:
            archive.addfile(member)
    return path


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def cifar_batches(per_batch: int = 30) -> list[tuple[NDArray[np.uint8], list[int]]]:
    """Data uint8 [N, 3072] and labels of the six batches, every class in each."""
    generator = np.random.default_rng(0)
    labels = [number % 10 for number in range(per_batch)]
    return [(generator.integers(0, 256, (per_batch, 3072), dtype=np.uint8), labels) for _ in BATCHES]


def cifar_binary(per_batch: int = 30) -> dict[str, bytes]:
    files = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n", "cifar-10-batches-bin/readme.html": b"<html>"}
    for name, (data, labels) in zip(BATCHES, cifar_batches(per_batch), strict=True):
        records = np.concatenate([np.array(labels, np.uint8)[:, np.newaxis], data], axis=1)
        files[f"cifar-10-batches-bin/{name}.bin"] = records.tobytes()
    return files


def cifar_python(per_batch: int = 30) -> dict[str, bytes]:
    files = {"cifar-10-batches-py/batches.meta": b"", "cifar-10-batches-py/readme.html": b"<html>"}
    for name, (data, labels) in zip(BATCHES, cifar_batches(per_batch), strict=True):
        files[f"cifar-10-batches-py/{name}"] = python_2_pickle(data, labels)
    return files


def python_2_pickle(data: NDArray[np.uint8], labels: list[int]) -> bytes:
    """What cPickle of Python 2 wrote: protocol 2, byte strings, and an array by way of numpy.core.multiarray."""

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text

    def integer(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\x09U\x01bq\x0a\x87q\x0bRq\x0c"
        + (b"(K\x01" + integer(data.shape[0]) + integer(data.shape[1]) + b"\x86q\x0d")
        + b"cnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11"
        + b"(K\x03U\x01|q\x12NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x13b"
        + (b"\x89" + string(data.tobytes()) + b"q\x14tq\x15b")
    )
    return (
        b"\x80\x02}q\x01("
        + (string(b"batch_label") + b"q\x02" + string(b"training batch 1 of 5") + b"q\x03")
        + (string(b"labels") + b"q\x04]q\x05(" + b"".join(integer(label) for label in labels) + b"e")
        + (string(b"data") + b"q\x06" + array)
        + (string(b"filenames") + b"q\x16]q\x17(" + b"".join(string(b"image.png") for _ in labels) + b"e")
        + b"u."
    )
