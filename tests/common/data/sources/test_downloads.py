import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from common.data.sources import cifar10, fashion_mnist

CONTENT = b"an archive"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return tmp_path


def put(path: Path, content: bytes = CONTENT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("home", ["keras", "torch"])
def test_what_keras_or_torch_has_downloaded_is_not_downloaded_again(homes: Path, home: str) -> None:
    name = {"keras": "cifar-10-batches-py-target_archive", "torch": "cifar-10-python.tar.gz"}[home]
    put(homes / home / "datasets" / name)
    python = replace(cifar10.PYTHON, sha256=SHA256)
    assert cifar10.locate(homes / "cache", python=python) == homes / "cache" / "cifar-10-python.tar.gz"
    assert (homes / "cache" / "cifar-10-python.tar.gz").read_bytes() == CONTENT


def test_fashion_mnist_is_taken_file_by_file(homes: Path) -> None:
    known = tuple(replace(each, sha256=SHA256) for each in fashion_mnist.DOWNLOADS)
    for place, each in zip(("keras/datasets/fashion-mnist", "torch/datasets/FashionMNIST/raw") * 2, known, strict=True):
        put(homes / place / each.name)
    folder = fashion_mnist.locate(homes / "cache", downloads=known)
    assert sorted(path.name for path in folder.iterdir()) == sorted(each.name for each in known)


def test_a_file_of_other_content_is_skipped(homes: Path) -> None:
    put(homes / "keras" / "datasets" / "file", b"another")
    assert not replace(cifar10.PYTHON, sha256=SHA256).reuse_download(["file", "missing"], homes / "cache" / "file")
    assert not (homes / "cache").exists()
