"""IDX files made up small: as Fashion-MNIST and MNIST come, torn, hostile, and the download."""

import gzip
import hashlib
import socket
import time
from dataclasses import replace

import numpy as np
import pytest

from common.data.sources import DataRefused, fashion_mnist, load
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


def official(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    """Take made-up files for the official ones."""
    known = tuple(replace(each, sha256=hashlib.sha256(files[each.name]).hexdigest()) for each in fashion_mnist.DOWNLOADS)
    monkeypatch.setattr(fashion_mnist, "DOWNLOADS", known)
    contents = tuple(hashlib.sha256(content).hexdigest() for content in plain().values())
    monkeypatch.setattr(fashion_mnist, "CONTENT_SHA256", contents)


def official_address(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    known = tuple(replace(each, url=f"{url}/{each.name}") for each in fashion_mnist.DOWNLOADS)
    monkeypatch.setattr(fashion_mnist, "DOWNLOADS", known)


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
def test_only_the_official_content_names_its_classes_however_it_is_compressed(files, tmp_path, monkeypatch):
    source = write_folder(tmp_path / "idx", files)
    assert loaded(source, tmp_path / "first cache").class_names == tuple("0123456789")
    official(monkeypatch, zipped())
    assert loaded(source, tmp_path / "second cache").class_names == fashion_mnist.CLASS_NAMES
    swapped = dict(zip(files, [list(files.values())[place] for place in (2, 3, 0, 1)], strict=True))
    other = write_folder(tmp_path / "swapped", swapped)
    assert loaded(other, tmp_path / "second cache").class_names == tuple("0123456789")


@pytest.mark.parametrize("files", [plain(), zipped(), recompressed()], ids=["plain", "gzipped", "gzipped by another"])
def test_files_in_the_cache_folder_are_found_by_name_and_their_classes_named(files, tmp_path, monkeypatch):
    official(monkeypatch, zipped())
    write_folder(tmp_path / "fashion-mnist", files)
    dataset = loaded("fashion_mnist", tmp_path)
    assert dataset.name == "fashion_mnist" and dataset.class_names == fashion_mnist.CLASS_NAMES


def test_a_file_in_the_cache_folder_that_is_not_the_official_one_is_refused(tmp_path):
    write_folder(tmp_path / "fashion-mnist", zipped())
    with pytest.raises(DataRefused) as refusal:
        loaded("fashion_mnist", tmp_path)
    assert "train-images-idx3-ubyte.gz is not the official file" in str(refusal.value)
    assert fashion_mnist.DOWNLOADS[0].sha256 in str(refusal.value)


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
    name, content, words = DAMAGE[damage]
    with pytest.raises(DataRefused) as refusal:
        loaded(write_folder(tmp_path / "idx", plain() | {name: content}), tmp_path / "cache")
    assert name in str(refusal.value) and words in str(refusal.value) and "Fetch it again" in str(refusal.value)


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


def test_fashion_mnist_is_downloaded_once_and_then_found_in_the_cache(server, tmp_path, monkeypatch):
    official_address(monkeypatch, server)
    write_folder(tmp_path / "served", zipped())
    official(monkeypatch, zipped())
    dataset = loaded("fashion_mnist", tmp_path / "cache")
    assert len(dataset.test) == 20 and dataset.class_names[0] == "T-shirt/top"
    for name in zipped():
        (tmp_path / "served" / name).unlink()
    assert loaded("fashion_mnist", tmp_path / "cache").content_hash == dataset.content_hash


def test_a_download_of_another_hash_is_refused_and_not_kept(server, tmp_path, monkeypatch):
    official_address(monkeypatch, server)
    write_folder(tmp_path / "served", zipped())
    with refused(DataRefused, names=["hash"]):
        loaded("fashion_mnist", tmp_path / "cache")
    assert not list((tmp_path / "cache" / "fashion-mnist").glob("train*"))


def test_a_download_that_fails_says_what_to_fetch_and_where_to_put_it(tmp_path, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        official_address(monkeypatch, f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(DataRefused) as refusal:
            loaded("fashion_mnist", tmp_path)
    message = str(refusal.value)
    assert "26,421,880 bytes" in message and "/train-images-idx3-ubyte.gz" in message
    assert f"put the file at {tmp_path / 'fashion-mnist' / 'train-images-idx3-ubyte.gz'}" in message


def test_the_official_files_are_the_four_of_mnist():
    assert tuple(known.name.removesuffix(".gz") for known in fashion_mnist.DOWNLOADS) == FILES
    assert all(len(known.sha256) == 64 for known in fashion_mnist.DOWNLOADS) and len(fashion_mnist.CLASS_NAMES) == 10
