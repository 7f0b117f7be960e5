"""IDX files made up small: as Fashion-MNIST and MNIST come, torn, hostile, and the download."""

import gzip
import hashlib
import socket
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.data.sources import DataRefused, fashion_mnist, load
from common.data.sources.downloads import Download
from common.data.sources.file_source import Folder
from common.spec import Data
from tests.common.made_up_data import write_folder, write_tar
from tests.support.refusals import refused

GREY = np.random.default_rng(0).integers(0, 256, (70, 28, 28), dtype=np.uint8)
LABELS = np.arange(70, dtype=np.uint8) % 10
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def plain() -> dict[str, bytes]:
    return dict(zip(FILES, (idx(GREY[:50]), idx(LABELS[:50]), idx(GREY[50:]), idx(LABELS[50:])), strict=True))


def zipped() -> dict[str, bytes]:
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in plain().items()}


def recompressed() -> dict[str, bytes]:
    """The same content under other bytes, as in Debian's package."""
    return {f"{name}.gz": gzip.compress(content, 1, mtime=1) for name, content in plain().items()}


def loaded(source, cache, **fields):
    return load(Data(source=str(source), **fields), seed=0, cache_dir=str(cache))


CONTENT_SHA256 = [hashlib.sha256(content).hexdigest() for content in plain().values()]


def downloads(url: str = "http://nowhere") -> list[Download]:
    """The made-up files, as the official ones are described."""
    return [
        replace(known, url=f"{url}/{name}", sha256=hashlib.sha256(content).hexdigest())
        for known, (name, content) in zip(fashion_mnist.DOWNLOADS, zipped().items(), strict=True)
    ]


def class_names(folder: Path) -> tuple[str, ...]:
    """The names of the classes, if the made-up content is the official one."""
    tree = Folder(folder)
    names = fashion_mnist.find_files(tree.listing().files)
    assert names is not None
    return fashion_mnist.read(tree, names, content_sha256=CONTENT_SHA256).class_names


def test_idx_files_give_their_images_labels_and_splits(tmp_path):
    dataset = loaded(write_folder(tmp_path / "idx", plain()), tmp_path / "cache")
    assert dataset.image_size == 32
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (40, 10, 20)
    assert dataset.test.labels.tolist() == LABELS[50:].tolist()
    assert "validation: 10 % of the 50 training examples" in dataset.notes[0]


def test_a_grey_image_gets_two_zero_pixels_around_it_and_its_channel_three_times(tmp_path):
    image = loaded(write_folder(tmp_path / "idx", plain()), tmp_path / "cache").test.images[3]
    for channel in range(3):
        assert np.array_equal(image[2:30, 2:30, channel], GREY[53])
    assert image.sum() == 3 * int(GREY[53].astype(int).sum())


def test_every_form_is_the_same_data(tmp_path):
    mixed = {**dict(list(plain().items())[:2]), **dict(list(zipped().items())[2:])}
    sources = [
        write_folder(tmp_path / "plain", plain()),
        write_folder(tmp_path / "zipped", zipped()),
        write_folder(tmp_path / "mixed", mixed),
        write_folder(tmp_path / "both", {**plain(), **zipped()}),
        write_folder(tmp_path / "wrapped", {f"raw/{name}": content for name, content in plain().items()}),
        write_tar(tmp_path / "mnist.tar", plain()),
    ]
    assert len({loaded(source, tmp_path / "cache").content_hash for source in sources}) == 1


def test_images_are_resized_if_a_size_is_given(tmp_path):
    dataset = loaded(write_folder(tmp_path / "idx", plain()), tmp_path / "cache", image_size=40)
    assert dataset.train.images.shape == (40, 40, 40, 3)


@pytest.mark.parametrize("files", [plain(), zipped(), recompressed()], ids=["plain", "gzipped", "gzipped by another"])
def test_only_the_official_content_names_its_classes_however_it_is_compressed(files, tmp_path):
    source = write_folder(tmp_path / "cache" / "fashion-mnist", files)
    assert fashion_mnist.locate(tmp_path / "cache", downloads=downloads(), content_sha256=CONTENT_SHA256) == source
    assert class_names(source) == fashion_mnist.CLASS_NAMES
    assert loaded(source, tmp_path / "cache").class_names == tuple("0123456789")
    swapped = dict(zip(files, [list(files.values())[place] for place in (2, 3, 0, 1)], strict=True))
    assert class_names(write_folder(tmp_path / "swapped", swapped)) == tuple("0123456789")


def test_files_in_the_cache_folder_are_found_by_name_but_refused_if_they_are_not_the_official_ones(tmp_path):
    write_folder(tmp_path / "one" / "fashion-mnist", plain())
    assert loaded("fashion_mnist", tmp_path / "one").name == "fashion_mnist"
    file = write_folder(tmp_path / "other" / "fashion-mnist", zipped()) / "train-images-idx3-ubyte.gz"
    with refused(DataRefused, names=[file, "not the official file", fashion_mnist.DOWNLOADS[0].sha256]):
        loaded("fashion_mnist", tmp_path / "other")


IMAGES, TRAIN_LABELS = FILES[:2]
DAMAGE = {
    "empty": (IMAGES, b"", "a start of nothing"),
    "too short for a header": (IMAGES, bytes((0, 0, 8, 3, 0, 0)), "a start of 00 00 08 03"),
    "labels in place of images": (IMAGES, idx(LABELS[:50]), "a start of 00 00 08 01, needed: 00 00 08 03"),
    "images in place of labels": (TRAIN_LABELS, idx(GREY[:50]), "a start of 00 00 08 03, needed: 00 00 08 01"),
    "floats": (IMAGES, bytes((0, 0, 13, 3)) + idx(GREY[:50])[4:], "a start of 00 00 0d 03"),
    "no zeros in front": (IMAGES, b"\x01" + idx(GREY[:50])[1:], "a start of 01 00 08 03"),
    "torn": (IMAGES, idx(GREY[:50])[:-1], "39,199 values under a header that says 50 x 28 x 28"),
    "a byte too long": (IMAGES, idx(GREY[:50]) + b"\0", "39,201 values under a header that says 50 x 28 x 28"),
    "no images": (IMAGES, idx(GREY[:0]), "0 values under a header that says 0 x 28 x 28"),
    "a huge header": (IMAGES, bytes((0, 0, 8, 3)) + b"\xff" * 12, "0 values under a header that says 4294967295 x 4294967295"),
    "a header that overflows": (
        IMAGES,
        bytes((0, 0, 8, 3)) + bytes((0, 1, 0, 0)) * 2 + bytes(4),
        "images of 0 x 65536 pixels",
    ),
    "another image size": (IMAGES, idx(GREY[:50, :20]), "images of 28 x 20 pixels, needed: 28 x 28"),
    "labels missing": (TRAIN_LABELS, idx(LABELS[:49]), "49 labels for 50 images"),
    "a label of 10": (TRAIN_LABELS, idx(np.full(50, 10, np.uint8)), "a label 10, needed: 0 to 9"),
    "gzip torn": (IMAGES, gzip.compress(idx(GREY[:50]))[:-20], "a damaged gzip file"),
    "gzip of rubbish": (IMAGES, b"\x1f\x8b" + bytes(100), "a damaged gzip file"),
    "gzip of another thing": (IMAGES, gzip.compress(b"hello, this is text"), "a start of 68 65 6c 6c"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_by_name(damage, tmp_path):
    name, content, received = DAMAGE[damage]
    with refused(DataRefused, received=received, fix="Fetch it again", names=[name]):
        loaded(write_folder(tmp_path / "idx", plain() | {name: content}), tmp_path / "cache")


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    bomb = gzip.compress(bytes(1 << 20), 9) * 400  # members one after another unpack to their sum
    started = time.perf_counter()
    with refused(DataRefused, names=[TRAIN_LABELS, "200,016 bytes"]):
        loaded(write_folder(tmp_path / "idx", plain() | {TRAIN_LABELS: bomb}), tmp_path / "cache")
    assert time.perf_counter() - started < 30


def test_three_of_four_files_are_no_idx_data(tmp_path):
    files = plain()
    del files[TRAIN_LABELS]
    with refused(DataRefused, names=[tmp_path / "idx", "holds no images"]):
        loaded(write_folder(tmp_path / "idx", files), tmp_path / "cache")


def test_fashion_mnist_is_downloaded_once_and_then_found_in_the_cache(server, tmp_path):
    served = write_folder(tmp_path / "served", zipped())
    for _ in range(2):
        found = fashion_mnist.locate(tmp_path / "cache", downloads=downloads(server), content_sha256=CONTENT_SHA256)
        assert {name: (found / name).read_bytes() for name in zipped()} == zipped()
        for file in served.iterdir():
            file.unlink()
    assert len(loaded(found, tmp_path / "cache").test) == 20 and class_names(found)[0] == "T-shirt/top"


def test_a_download_of_another_hash_is_refused_and_not_kept(server, tmp_path):
    write_folder(tmp_path / "served", recompressed())
    with refused(DataRefused, names=["hash"]):
        fashion_mnist.locate(tmp_path / "cache", downloads=downloads(server))
    assert not list((tmp_path / "cache" / "fashion-mnist").glob("train*"))


def test_a_download_that_fails_says_what_to_fetch_and_where_to_put_it(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        place = tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz"
        with refused(DataRefused, fix=place, names=["26,421,880 bytes", f"{url}/train-images-idx3-ubyte.gz"]):
            fashion_mnist.locate(tmp_path, downloads=downloads(url))


def test_the_official_files_are_the_four_of_mnist():
    assert tuple(known.name.removesuffix(".gz") for known in fashion_mnist.DOWNLOADS) == FILES
    assert all(len(known.sha256) == 64 for known in fashion_mnist.DOWNLOADS) and len(fashion_mnist.CLASS_NAMES) == 10
