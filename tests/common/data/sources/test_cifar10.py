"""The official forms of CIFAR-10, made up small: archives, folders, pickles that attack, and the download."""

import hashlib
import os
import pickle
import socket
from dataclasses import replace

import numpy as np
import pytest

from common.data.sources import DataRefused, cifar10, load
from common.data.sources.downloads import Download
from common.spec import Data
from tests.common.made_up_data import (
    cifar_batches,
    cifar_binary,
    cifar_python,
    python_2_pickle,
    write_folder,
    write_tar,
    write_zip,
)
from tests.support.refusals import refused


def loaded(source, cache, **fields):
    return load(Data(source=str(source), **fields), seed=0, cache_dir=str(cache))


@pytest.mark.parametrize("files", [cifar_binary(), cifar_python()], ids=["binary", "python"])
def test_an_official_archive_gives_its_pixels_labels_and_splits(files, tmp_path):
    dataset = loaded(write_tar(tmp_path / "any name.tgz", files, mode="w:gz"), tmp_path / "cache")
    assert dataset.class_names[:2] == ("airplane", "automobile") and dataset.image_size == 32
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (135, 15, 30)
    data, labels = cifar_batches()[-1]
    assert dataset.test.labels.tolist() == labels
    # planes of red, green and blue, row by row
    assert np.array_equal(dataset.test.images[3, 5, 7], data[3].reshape(3, 32, 32)[:, 5, 7])
    assert "validation: 10 % of the 150 training examples" in dataset.notes[0]


def test_every_official_form_is_the_same_data(tmp_path):
    paths = [
        write_tar(tmp_path / "a.tar.gz", cifar_binary(), mode="w:gz"),
        write_tar(tmp_path / "b.tar.gz", cifar_python(), mode="w:gz"),
        write_zip(tmp_path / "c.zip", cifar_binary()),
        write_folder(tmp_path / "unpacked", cifar_binary()),
        write_folder(tmp_path / "python", cifar_python()) / "cifar-10-batches-py",
    ]
    assert len({loaded(path, tmp_path / "cache").content_hash for path in paths}) == 1


def test_official_batches_are_resized_if_a_size_is_given(tmp_path):
    dataset = loaded(write_folder(tmp_path / "unpacked", cifar_binary()), tmp_path / "cache", image_size=40)
    assert dataset.train.images.shape[1:] == (40, 40, 3)


def test_training_examples_keep_the_official_order(tmp_path):
    files = cifar_binary()
    backwards = write_tar(tmp_path / "backwards.tar", dict(reversed(files.items())))
    forwards = write_tar(tmp_path / "forwards.tar", files)
    assert loaded(backwards, tmp_path).content_hash == loaded(forwards, tmp_path).content_hash


@pytest.mark.parametrize(
    ("content", "received"),
    [
        (bytes(3073 * 2 - 1), "6,145 bytes, no multiple of 3,073"),
        (b"", "data of shape (0, 3072)"),
        (b"\x0a" + bytes(3072), "labels 10 to 10"),
    ],
)
def test_a_damaged_binary_batch_is_refused_by_name(content, received, tmp_path):
    files = cifar_binary() | {"cifar-10-batches-bin/data_batch_3.bin": content}
    with refused(DataRefused, received=received, names=["data_batch_3.bin"]):
        loaded(write_folder(tmp_path / "unpacked", files), tmp_path / "cache")


class Attack:
    def __reduce__(self):
        return os.system, ("touch attacked",)


ATTACKS = {
    "reduce": pickle.dumps({b"data": Attack(), b"labels": [1]}, protocol=2),
    "global": b"\x80\x02cposix\nsystem\nU\x0etouch attacked\x85R.",
    "numpy_load": b"\x80\x02cnumpy\nload\nU\x04evil\x85R.",
    "instance": b"(U\x0etouch attackedios\nsystem\n.",
    "persistent": b"\x80\x02U\x04evilQ.",
    "object_array": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01\x85"
    b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R\x89](Natb.",
    "memo_bomb": b"\x80\x02}r\xff\xff\xff\x7f.",
    "torn": cifar_python()["cifar-10-batches-py/data_batch_1"][:1000],
    "no_batch": pickle.dumps([1, 2, 3], protocol=2),
    "python_3_array": pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1]}, protocol=4),
    "too_few_labels": python_2_pickle(np.zeros((2, 3072), np.uint8), [1]),
    "nested_labels": python_2_pickle(np.zeros((1, 3072), np.uint8), [1]).replace(b"K\x01eU\x04data", b"]K\x01aeU\x04data"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_pickle_that_is_no_batch_is_refused_and_nothing_in_it_is_called(attack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = cifar_python() | {"cifar-10-batches-py/data_batch_2": ATTACKS[attack]}
    archive = write_tar(tmp_path / "cifar-10-python.tar.gz", files, mode="w:gz")
    with refused(DataRefused, names=["data_batch_2", archive, "no CIFAR-10 batch"]):
        loaded(archive, tmp_path / "cache")
    assert not (tmp_path / "attacked").exists()


def test_the_attack_of_these_tests_would_work_on_plain_pickle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickle.loads(ATTACKS["reduce"])  # noqa: S301
    assert (tmp_path / "attacked").exists()


def test_a_refused_pickle_says_what_it_asked_for():
    with refused(DataRefused, names=["posix.system"]):
        cifar10.read_pickle(ATTACKS["global"], "data_batch_1")


def known(url: str, content: bytes) -> Download:
    return Download(f"{url}/cifar-10-binary.tar.gz", hashlib.sha256(content).hexdigest(), len(content))


def test_cifar10_is_downloaded_once_and_then_found_in_the_cache(server, tmp_path):
    archive = write_tar(tmp_path / "served" / "cifar-10-binary.tar.gz", cifar_binary(), mode="w:gz")
    content = archive.read_bytes()
    for _ in range(2):
        found = cifar10.locate(tmp_path / "cache", binary=known(server, content))
        assert found == tmp_path / "cache" / "cifar-10-binary.tar.gz" and found.read_bytes() == content
        archive.unlink(missing_ok=True)
    assert len(loaded(found, tmp_path / "cache").test) == 30


def test_a_download_of_another_hash_is_refused_and_not_kept(server, tmp_path):
    write_tar(tmp_path / "served" / "cifar-10-binary.tar.gz", cifar_binary(), mode="w:gz")
    with refused(DataRefused, names=["hash"]):
        cifar10.locate(tmp_path / "cache", binary=known(server, b"something else"))
    assert not (tmp_path / "cache" / "cifar-10-binary.tar.gz").exists()


def test_a_download_that_fails_says_what_to_fetch_and_where_to_put_it(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"  # bound, but nobody listens
        place = tmp_path / "cache" / "cifar-10-binary.tar.gz"
        with refused(DataRefused, fix=place, names=[f"{url}/cifar-10-binary.tar.gz", "1,234 bytes"]):
            cifar10.locate(tmp_path / "cache", binary=known(url, b"x" * 1234))


def test_the_cache_may_hold_the_python_archive_or_an_unpacked_folder(tmp_path):
    archive = write_tar(tmp_path / "cifar-10-python.tar.gz", cifar_python(), mode="w:gz")
    python = replace(cifar10.PYTHON, sha256=hashlib.sha256(archive.read_bytes()).hexdigest())
    assert cifar10.locate(tmp_path, python=python) == archive
    write_folder(tmp_path / "other", cifar_binary())
    assert loaded("cifar10", tmp_path / "other").content_hash == loaded(archive, tmp_path).content_hash


def test_the_cache_folder_may_come_from_the_environment(tmp_path, monkeypatch):
    write_folder(tmp_path, cifar_binary())
    monkeypatch.setenv("CONVTWINS_CACHE", str(tmp_path))
    assert load(Data(source="cifar10"), seed=0).name == "cifar10"


def test_an_archive_in_the_cache_that_is_not_the_official_one_is_refused(tmp_path):
    write_tar(tmp_path / "cifar-10-binary.tar.gz", cifar_binary(), mode="w:gz")
    with refused(DataRefused, names=[tmp_path / "cifar-10-binary.tar.gz", cifar10.BINARY.sha256]):
        loaded("cifar10", tmp_path)


def test_five_of_six_batches_are_no_cifar_10(tmp_path):
    files = cifar_binary()
    del files["cifar-10-batches-bin/data_batch_4.bin"]
    with refused(DataRefused, names=[tmp_path / "unpacked", "holds no images"]):
        loaded(write_folder(tmp_path / "unpacked", files), tmp_path / "cache")
