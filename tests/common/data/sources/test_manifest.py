"""One manifest of a tree of images, and the packed files that go with it."""

import dataclasses
import hashlib
import pickle

import numpy as np
import pytest
from PIL import Image

from common.data.decoding import decode
from common.data.sources import DataRefused, Encoded, load, load_files, load_manifest
from common.data.sources.manifest import Manifest
from common.spec import Data
from tests.common.data.decoding.test_decode import saved, turned
from tests.common.made_up_data import cifar_binary, image, pixels, tree, write_folder, write_tar, write_zip
from tests.support.refusals import refused

PLANTS = (
    "Apple___Apple_scab",
    "Cherry_(including_sour)___healthy",
    "Corn_(maize)___Cercospora_leaf_spot Gray_leaf_spot",
    "Pepper,_bell___Bacterial_spot",
    "Tomate___Krautfäule",
    "トマト___健康",
)
TREE = tree("train/cat", "train/dog", "val/cat", "val/dog", "test/cat", "test/dog")


@pytest.fixture
def cache(tmp_path) -> str:
    return str(tmp_path / "cache")


def test_plants_and_conditions_are_found_below_two_wrapping_folders(tmp_path, cache):
    names = sorted((*PLANTS, *(f"Plant {number}___condition" for number in range(32))))
    wrap = "New Plant Diseases Dataset(Augmented)/New Plant Diseases Dataset(Augmented)"
    files = tree(*(f"{wrap}/{split}/{name}" for split in ("train", "valid") for name in names), images=3)
    hidden = {f"{wrap}/train/{names[0]}/.DS_Store": b"x", f"{wrap}/.cache/train/{names[0]}/0.png": image("hidden")}
    contents = []
    for path in (write_folder(tmp_path / "plants", files | hidden), write_zip(tmp_path / "plants.zip", files | hidden)):
        loaded = load_files(Data(source=str(path)), seed=0, cache_dir=cache)
        assert loaded.class_names == tuple(names) and len(names) == 38
        assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (76, 114, 38)  # one of each class at least
        manifest = load_manifest(Data(source=str(path)), cache_dir=cache)
        assert manifest.splits == ("train",) * 114 + ("validation",) * 114
        assert manifest.classes == tuple(name for _ in range(2) for name in names for _ in range(3))
        contents.append([loaded.validation.encoded.content(index) for index in range(114)])
    assert contents[0] == contents[1] == [files[f"{wrap}/valid/{name}/{number}.png"] for name in names for number in range(3)]


def test_the_manifest_says_what_each_file_is(tmp_path, cache):
    grey = saved(Image.fromarray(pixels("grey")).convert("L"), "JPEG")
    bad = {"train/cat/8.jpg": grey, "train/cat/9.jpg": b"x", "README": b"read me", "val/rat/7.png": image("rat")[:50]}
    data = Data(source=str(write_folder(tmp_path / "pets", TREE | bad)), on_bad="skip")
    manifest = load_manifest(data, cache_dir=cache)
    assert manifest.paths == (*sorted(name for name in {**TREE, **bad} if name.startswith("train/")), *sorted(
        name for name in {**TREE, **bad} if name.startswith("val/")
    ), *sorted(name for name in TREE if name.startswith("test/")), "README")  # fmt: skip
    contents = {**TREE, **bad}
    for row, path in enumerate(manifest.paths):
        assert manifest.file_bytes[row] == len(contents[path])
        assert manifest.file_sha256[row].tobytes() == hashlib.sha256(contents[path]).digest()
    row = manifest.paths.index("train/cat/8.jpg")
    columns = {name: values[row] for name, values in manifest.columns().items()}
    assert columns == {
        "paths": "train/cat/8.jpg", "splits": "train", "classes": "cat", "problems": "", "details": "",
        "formats": "JPEG", "modes": "L", "file_bytes": len(grey), "widths_px": 8, "heights_px": 8, "plain": True,
        "file_sha256": hashlib.sha256(grey).hexdigest(), "pixel_sha256": decode.sha256(decode.decode(grey, None)).hex(),
    }  # fmt: skip
    assert {path: problem for path, problem in zip(manifest.paths, manifest.problems, strict=True) if problem} == {
        "train/cat/9.jpg": decode.NO_IMAGE, "README": decode.NO_SUFFIX, "val/rat/7.png": decode.DAMAGED
    }  # fmt: skip
    assert manifest.classes[-1] == manifest.splits[-1] == ""


def test_a_manifest_comes_back_from_its_arrays_as_it_was(tmp_path, cache):
    folder = write_folder(tmp_path / "pets", tree(*PLANTS) | {f"{PLANTS[0]}/bad, \n file.png": b"x"})
    (folder / "Ärger,\n leer").mkdir()
    manifest = load_manifest(Data(source=str(folder)), cache_dir=cache)
    again = Manifest.from_arrays(manifest.to_arrays())
    for field in dataclasses.fields(Manifest):
        assert np.array_equal(getattr(again, field.name), getattr(manifest, field.name)), field.name
    assert again.empty_folders == (("all", "Ärger,\n leer"),)


def test_arrays_of_pixels_become_image_files_of_the_same_pixels_in_the_same_order(tmp_path, cache):
    for source in ("digits", str(write_tar(tmp_path / "cifar.tar", cifar_binary()))):
        manifest = load_manifest(Data(source=source), cache_dir=cache)
        assert set(zip(manifest.formats, manifest.modes, strict=True)) == {("PPM", "RGB")}
        whole = load(Data(source=source), seed=0, cache_dir=cache)
        for files in (
            load_files(Data(source=source), seed=0, cache_dir=cache),
            load(Data(source=source, loading="streaming"), seed=0, cache_dir=cache),
        ):
            assert files.content_hash == whole.content_hash
            for index in (0, 7, len(whole.train) - 1):
                assert np.array_equal(decode.decode(files.train.encoded.content(index), None), whole.train.images[index])
        rows = load_files(Data(source=source), seed=0, cache_dir=cache).train.rows
        labels = [manifest.class_names.index(manifest.classes[row]) for row in rows]
        assert labels == whole.train.labels.tolist() and len(set(manifest.paths)) == len(manifest)


def test_packed_files_are_sent_by_name_and_taken_in_any_order(tmp_path, cache):
    encoded = load_files(Data(source=str(write_folder(tmp_path / "pets", TREE))), seed=0, cache_dir=cache).train.encoded
    assert encoded.content(0) == TREE["train/cat/0.png"]
    pickled = pickle.dumps(encoded)
    assert TREE["train/cat/0.png"] not in pickled
    part = pickle.loads(pickled).take(np.array([7, 0, 3]))  # noqa: S301  its own bytes
    assert isinstance(part, Encoded) and len(part) == 3
    assert [part.content(index) for index in range(3)] == [TREE[f"train/{name}.png"] for name in ("dog/3", "cat/0", "cat/3")]


def test_files_of_several_sizes_need_a_size_as_arrays_do(tmp_path, cache):
    path = str(write_folder(tmp_path / "pets", TREE | {"train/cat/wide.png": image("wide", 12, 8)}))
    for read in (load, load_files):
        with refused(DataRefused, names=["'train/cat/wide.png' of 12 x 8"]):
            read(Data(source=path), seed=0, cache_dir=cache)
        assert read(Data(source=path, image_size=6), seed=0, cache_dir=cache).image_size == 6


def jpeg(mode: str = "RGB", **options: object) -> bytes:
    return saved(Image.fromarray(pixels("plain", 32, 32)).convert(mode), "JPEG", **options)


PLAIN = {
    "colours": (jpeg(), True),
    "grey": (jpeg("L"), True),
    "every_pixel": (jpeg(subsampling=0), True),
    "half_the_columns": (jpeg(subsampling=1), True),
    "progressive": (jpeg(progressive=True), True),
    "upright_by_exif": (jpeg(exif=turned(1)), True),
    "turned_by_exif": (jpeg(exif=turned(3)), False),
    "cmyk": (jpeg("CMYK"), False),
    "stored_as_rgb": (jpeg(keep_rgb=True), False),
    "bytes_behind_its_end": (jpeg() + b"\0", False),
    "png": (image("plain"), False),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_files_are_jpegs_that_every_decoder_reads_alike(kind):
    content, expected = PLAIN[kind]
    header, decoded = decode.examine(content)
    assert header.decodes_identically is expected
    assert np.array_equal(decoded, decode.decode(content, None))
