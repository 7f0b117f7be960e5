"""Layouts of image trees, their refusals, and the real archives."""

import os
import pickle

import numpy as np
import pytest

from common.data.decoding import decode
from common.data.decoding.images import MappedRows
from common.data.sources import DataRefused, load
from common.spec import Data
from tests.common.made_up_data import image, pixels, tree, write_folder, write_tar, write_zip
from tests.support.refusals import refused


def loaded(path, cache, seed=0, **fields):
    return load(Data(source=str(path), **fields), seed=seed, cache_dir=str(cache))


def refusal(path, cache, *names, received=None, fix=(), **fields) -> str:
    """The text of the refusal, which has these parts."""
    with refused(DataRefused, received=received, fix=fix, names=names) as caught:
        loaded(path, cache, **fields)
    return str(caught.error)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def test_three_split_folders_are_taken_as_they_are(tmp_path, cache):
    files = tree("train/cat", "train/dog", "valid/cat", "valid/dog", "test/cat", "test/dog")
    dataset = loaded(write_folder(tmp_path / "pets", files), cache)
    assert (dataset.name, dataset.class_names, dataset.image_size, dataset.notes) == ("pets", ("cat", "dog"), 8, ())
    assert dataset.train.labels.tolist() == dataset.test.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert np.array_equal(dataset.train.images[5], pixels("train/dog/1.png"))
    assert np.array_equal(dataset.validation.images[0], pixels("valid/cat/0.png"))
    assert np.array_equal(dataset.test.images[-1], pixels("test/dog/3.png"))


@pytest.mark.parametrize(
    "folders", [("cat", "dog"), ("train/cat", "train/dog"), ("train/cat", "train/dog", "val/cat", "val/dog")]
)
def test_splits_are_parts_or_rows_of_a_memory_map_that_nobody_can_write_to(folders, tmp_path, cache):
    folder = write_folder(tmp_path / "pets", tree(*folders, images=10))
    for data in (Data(source=str(folder)), Data(source=str(folder), limit=5)):
        dataset = load(data, seed=0, cache_dir=str(cache))
        for split in (dataset.train, dataset.validation, dataset.test):
            if isinstance(split.images, np.memmap):
                assert not split.images.flags.writeable
            else:
                assert isinstance(split.images, MappedRows) and len(pickle.dumps(split.images)) < 1000
            assert not split.labels.flags.writeable


def test_the_same_tree_is_the_same_data_in_a_folder_or_any_archive(tmp_path, cache):
    files = tree("train/cat", "train/dog", "val/cat", "val/dog", "test/cat", "test/dog")
    paths = [
        write_folder(tmp_path / "folder", files),
        write_tar(tmp_path / "a.tar", files),
        write_tar(tmp_path / "a.tar.gz", files, mode="w:gz"),
        write_tar(tmp_path / "a.tar.xz", files, mode="w:xz"),
        write_zip(tmp_path / "a.zip", files),
        write_zip(tmp_path / "a_zip_by_content.tar", dict(reversed(files.items()))),
        write_tar(tmp_path / "b.tar", {f"./pets/version 1//{name}": content for name, content in files.items()}),
    ]
    assert len({loaded(path, cache).content_hash for path in paths}) == 1


def test_a_tree_without_splits_is_divided_70_20_10_by_class(tmp_path, cache):
    dataset = loaded(write_folder(tmp_path / "pets", tree("cat", "dog", images=20)), cache)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (28, 8, 4)
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    assert dataset.notes == ("train, validation and test: 70/20/10 of 40 examples, drawn by class with seed 0",)


def test_splits_that_are_missing_are_drawn_from_train_a_tenth_each(tmp_path, cache):
    dataset = loaded(write_folder(tmp_path / "pets", tree("train/cat", "train/dog", images=20)), cache)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (32, 4, 4)
    assert [note.partition(",")[0] for note in dataset.notes] == [
        f"{split}: 10 % of the 40 training examples" for split in ("validation", "test")
    ]
    names = [f"train/{label}/{number}.png" for label in ("cat", "dog") for number in range(20)]
    images = [*dataset.train.images, *dataset.validation.images, *dataset.test.images]
    assert sorted(each.tobytes() for each in images) == sorted(pixels(name).tobytes() for name in names)


def test_only_the_split_that_is_missing_is_drawn(tmp_path, cache):
    files = {**tree("train/cat", "train/dog", images=10), **tree("val/cat", "val/dog", images=3)}
    dataset = loaded(write_folder(tmp_path / "pets", files), cache)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (18, 6, 2)
    assert len(dataset.notes) == 1 and "as the data has no test split" in dataset.notes[0]


def test_the_drawn_split_follows_the_seed_and_the_limit(tmp_path, cache):
    folder = write_folder(tmp_path / "pets", tree("train/cat", "train/dog", images=20))
    assert loaded(folder, cache, seed=1).content_hash == loaded(folder, cache, seed=1).content_hash
    assert loaded(folder, cache, seed=1).content_hash != loaded(folder, cache, seed=2).content_hash
    assert loaded(folder, cache, limit=5).content_hash != loaded(folder, cache).content_hash
    assert len(list((cache / "scanned").glob("*/data"))) == 1


def test_class_ids_follow_sorted_names_of_any_characters(tmp_path, cache):
    names = ("Bell pepper, ripe", "a b", "apple", "ぶどう", "ähre", "test")
    dataset = loaded(write_folder(tmp_path / "fruit", tree(*names)), cache)
    assert dataset.class_names == tuple(sorted(names))


def test_split_folders_may_be_written_in_capitals(tmp_path, cache):
    dataset = loaded(write_folder(tmp_path / "pets", tree("Train/cat", "Train/dog", "TEST/cat", "TEST/dog")), cache)
    assert len(dataset.test) == 8


def test_suffixes_count_in_any_case_for_every_format(tmp_path, cache):
    files = {
        "cat/1.JPG": image("1", image_format="JPEG"),
        "cat/2.jpeg": image("2", image_format="JPEG"),
        "cat/3.Png": image("3", image_format="PNG"),
        "cat/4.bmp": image("4", image_format="BMP"),
        "dog/5.webp": image("5", image_format="WEBP"),
        "dog/6.GIF": image("6", image_format="GIF"),
        "dog/7.tif": image("7", image_format="TIFF"),
        "dog/8.ppm": image("8", image_format="PPM"),
    }
    dataset = loaded(write_folder(tmp_path / "pets", files), cache)
    assert len(dataset.train) + len(dataset.validation) + len(dataset.test) == 8


def test_links_in_a_folder_of_ones_own_are_followed_but_not_in_circles(tmp_path, cache):
    write_folder(tmp_path / "elsewhere", tree("cat", "dog"))
    pets = tmp_path / "pets"
    pets.mkdir()
    for name in ("cat", "dog"):
        (pets / name).symlink_to(tmp_path / "elsewhere" / name)
    assert loaded(pets, cache).content_hash == loaded(tmp_path / "elsewhere", cache).content_hash
    (tmp_path / "elsewhere" / "cat" / "again").symlink_to(pets)
    refusal(pets, cache, pets / "cat/again", "a second time")


def test_links_that_lead_out_of_a_folder_are_named_each_time_it_is_read(tmp_path, cache):
    pets = write_folder(tmp_path / "pets", tree("cat", "dog"))
    (pets / "cat" / "inside.png").symlink_to("../dog/0.png")
    assert not any("lead" in note for note in loaded(pets, cache, duplicates="allow").notes)
    (tmp_path / "private.png").write_bytes(image("private"))
    (pets / "cat" / "outside.png").symlink_to("../../private.png")
    real = str((tmp_path / "private.png").resolve())
    for _ in range(2):
        first, *_ = loaded(pets, cache, duplicates="allow").notes
        assert first.startswith("1 link leads out") and first.endswith(f": 'cat/outside.png' to {real!r}")
    write_folder(tmp_path / "elsewhere", tree("bird"))
    (pets / "bird").symlink_to(tmp_path / "elsewhere" / "bird")
    assert loaded(pets, cache, duplicates="allow").notes[0].startswith("2 links lead out")


def test_a_folder_that_is_itself_reached_by_a_link_has_no_links_that_lead_out_of_it(tmp_path, cache):
    pets = write_folder(tmp_path / "pets", tree("cat", "dog"))
    (pets / "cat" / "inside.png").symlink_to(pets / "dog" / "0.png")
    (tmp_path / "link").symlink_to(pets)
    assert not any("lead" in note for note in loaded(tmp_path / "link", cache, duplicates="allow").notes)


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path, cache):
    folder = write_folder(tmp_path / "pets", tree("cat", "dog"))
    os.mkfifo(folder / "cat" / "5.png")
    refusal(folder, cache, folder / "cat" / "5.png", "no file", received="a device, pipe or socket")


REFUSED = {
    "no_files": ({}, ("holds no images",)),
    "text_among_them": (
        tree("cat", "dog") | {"cat/notes.txt": b"hi"},
        ("'cat/notes.txt': no image suffix", "leave them out with `data.on_bad=skip`"),
    ),
    "one_class": (tree("cat"), ("at least 2 classes", "'cat' alone")),
    "images_beside_class_folders": (tree("cat", "dog") | {"0.png": image("0")}, ("outside of the layout", "'0.png'")),
    "images_in_a_split_folder": (
        {"train/0.png": image("0"), "test/0.png": image("1")},
        ("outside of the layout", "train/0.png"),
    ),
    "a_folder_in_a_class": (tree("cat", "dog", "dog/small"), ("outside of the layout", "'dog/small/0.png'")),
    "no_train": (tree("val/cat", "val/dog", "test/cat", "test/dog"), ("no training split", "test, val")),
    "two_validations": (tree("train/a", "train/b", "val/a", "val/b", "valid/a"), ("one split under two names", "val, valid")),
    "other_classes": (tree("train/a", "train/b", "test/a", "test/c"), ("test lacks 'b'", "train lacks 'c'")),
    "other_size": (
        tree("cat", "dog") | {"dog/9.png": image("9", 9, 9)},
        ("all be of one size", "'dog/9.png' of 9 x 9", "data.image_size=64"),
    ),
    "not_square": ({f"{n}/{n}.png": image(n, 12, 8) for n in "abc"}, ("must be square", "12 x 8", "data.image_size=64")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_tree_out_of_order_is_refused_with_names_and_a_fix(case, tmp_path, cache):
    files, expected = REFUSED[case]
    (tmp_path / "pets").mkdir()
    refusal(write_folder(tmp_path / "pets", files), cache, tmp_path / "pets", *expected)
    assert not list((cache / "decoded").glob("*/")), "a refused tree leaves nothing in the cache"


def test_classes_too_small_to_be_divided_are_refused(tmp_path, cache):
    path = write_folder(tmp_path / "pets", tree("cat", "dog", images=2))
    refusal(path, cache, "pets", "divided", "at least 3 different training images", "'cat' (2)")


def test_images_of_any_shape_are_accepted_if_a_size_is_set(tmp_path, cache):
    files = tree("cat", "dog") | {"dog/9.png": image("9", 20, 10)}
    dataset = loaded(write_folder(tmp_path / "pets", files), cache, image_size=16)
    assert dataset.image_size == 16 and dataset.train.images.shape[1:] == (16, 16, 3)
    assert any("not square" in note and note.endswith(": 1") for note in dataset.notes)
    assert not any("enlarged" in note for note in dataset.notes)


def test_the_notes_name_tiny_images_that_are_enlarged_and_images_that_stand_in_two_classes(tmp_path, cache):
    files = tree("cat", "dog") | {"dog/9.png": image("9", 1, 1), "cat/8.png": image("8"), "dog/8.png": image("8")}
    notes = loaded(write_folder(tmp_path / "pets", files), cache, image_size=16).notes
    for words in ("less than a quarter of 16 px", "more than one class"):
        assert [note.endswith(": 1") for note in notes if words in note] == [True]
    assert not any("two classes" in note or "not square" in note for note in notes)


@pytest.mark.parametrize("pack", [write_folder, write_tar, write_zip])
def test_images_that_are_no_images_are_named(pack, tmp_path, cache):
    torn = image("torn", 64, 64, "JPEG")[:700]
    files = tree("cat", "dog") | {"cat/8.jpg": torn, "dog/9.png": b"no image at all", "dog/empty.png": b""}
    problems = {"dog/9.png": decode.NO_IMAGE, "dog/empty.png": decode.EMPTY, "cat/8.jpg": decode.DAMAGED}
    bad = [f"'{name}': {problem}" for name, problem in problems.items()]
    refusal(pack(tmp_path / "pets", files), cache, "3 of 11 files", *bad)


def test_of_many_bad_files_twenty_are_named(tmp_path, cache):
    files = tree("cat", "dog") | {f"cat/bad{number}.png": b"x" for number in range(100)}
    assert refusal(write_folder(tmp_path / "pets", files), cache, "100 of 108 files", "80 more").count("cat/bad") == 20


@pytest.mark.slow
def test_the_tomato_leaves_load_from_their_archive(test_data, tmp_path):
    dataset = loaded(test_data("tomato-leaf-subset.tar"), tmp_path, image_size=32)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (2700, 500, 300)
    assert len(dataset.class_names) == 10 and dataset.class_names[0] == "Tomato___Bacterial_spot"
    assert np.bincount(dataset.test.labels).tolist() == [30, 30, 31, *[30] * 5, 29, 30]  # copies stay together
    assert "equal those of an earlier one of their split: 8 of train, 9 of validation, 1 of test" in dataset.notes[-1]
    assert loaded(test_data("tomato-leaf-subset.tar"), tmp_path, image_size=32).content_hash == dataset.content_hash


@pytest.mark.slow
def test_all_of_cifar_10_loads_from_its_archive_of_jpeg_files(test_data, tmp_path):
    dataset = loaded(test_data("cifar10-jpeg.tar.xz"), tmp_path)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (45000, 5000, 10000)
    assert dataset.image_size == 32 and np.bincount(dataset.validation.labels).tolist() == [500] * 10
