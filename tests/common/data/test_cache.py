"""Scanned and decoded data on disk: built once, shared, and built again when torn or changed."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from common.data import cache, pixel_cache
from common.data.dataset import BadImageError
from common.data.decoding import decode
from common.data.preprocessing import scaling
from common.data.sources import DataRefused, describe, file_source, identity, image_folder, load, load_files, lookup, splits
from common.spec import Data
from tests.common.made_up_data import image, tree, write_folder, write_tar
from tests.support.refusals import refused

FILES = tree("train/cat", "train/dog", "val/cat", "val/dog", "test/cat", "test/dog")


@pytest.fixture
def builds(monkeypatch) -> list[int]:
    """How many images were decoded each time."""
    calls: list[int] = []
    original = decode.decode_all

    def counted(encoded, *more, **options):
        calls.append(len(encoded))
        original(encoded, *more, **options)

    monkeypatch.setattr(decode, "decode_all", counted)
    return calls


@pytest.fixture
def scans(monkeypatch) -> list[int]:
    """Grows by one whenever the files of a tree are opened."""
    calls: list[int] = []
    original = image_folder.scan

    def counted(*arguments):
        calls.append(1)
        return original(*arguments)

    monkeypatch.setattr(image_folder, "scan", counted)
    return calls


@pytest.fixture
def divisions(monkeypatch) -> list[int]:
    """Grows by one whenever splits are made."""
    calls: list[int] = []
    original = splits.divide

    def counted(*arguments, **more):
        calls.append(1)
        return original(*arguments, **more)

    monkeypatch.setattr(splits, "divide", counted)
    return calls


@pytest.fixture
def pets(tmp_path) -> Path:
    return write_folder(tmp_path / "pets", FILES)


def loaded(path, cache_dir, **fields):
    return load(Data(source=str(path), **fields), seed=0, cache_dir=str(cache_dir))


def entry_of(cache_dir: Path, kind: str = "decoded") -> Path:
    (entry,) = [path.parent for path in (cache_dir / kind).glob("*/entry.json")]
    return entry


def stored_rows(cache_dir: Path) -> int:
    """How many images are decoded there."""
    with np.load(entry_of(cache_dir) / "arrays.npz") as arrays:
        return int(arrays["sha256"].any(axis=1).sum())


def test_a_second_load_opens_and_decodes_nothing(pets, tmp_path, builds, scans):
    first, second = loaded(pets, tmp_path / "cache"), loaded(pets, tmp_path / "cache")
    assert len(builds) == len(scans) == 1
    assert first.content_hash == second.content_hash
    assert np.array_equal(first.train.images, second.train.images)


def test_files_are_opened_once_and_the_same_examples_decoded_once_for_each_size(pets, tmp_path, builds, scans):
    loaded(pets, tmp_path / "cache")
    loaded(pets, tmp_path / "cache", limit=100, on_bad="skip", duplicates="allow")
    assert len(builds) == 1
    loaded(pets, tmp_path / "cache", image_size=16)
    assert len(builds) == 2 and len(scans) == 1


def test_each_division_is_made_once(pets, tmp_path, divisions):
    whole = loaded(pets, tmp_path / "cache")
    again = loaded(pets, tmp_path / "cache")
    files = load_files(Data(source=str(pets)), seed=0, cache_dir=str(tmp_path / "cache"))
    assert len(divisions) == 1
    assert again.content_hash == files.content_hash == whole.content_hash and again.notes == files.notes == whole.notes
    for split in ("train", "validation", "test"):
        one, other = getattr(again, split), getattr(files, split)
        assert one.labels.tolist() == other.labels.tolist() == getattr(whole, split).labels.tolist()
        assert other.encoded.content(0) == FILES[f"{split[:3] if split == 'validation' else split}/cat/0.png"]
    loaded(pets, tmp_path / "cache", loading="streaming")
    assert len(divisions) == 1


def test_each_field_that_affects_splits_has_its_own_division(tmp_path, divisions):
    pets = write_folder(tmp_path / "pets", tree("train/cat", "train/dog", images=20))
    deciding = {"limit": 9, "image_size": 16, "on_bad": "skip", "duplicates": "allow", "drawn_part": 0.2}
    assert set(Data.model_fields) - {*deciding} == {"source", "loading", "normalization", "seed"}
    whole = loaded(pets, tmp_path / "cache")
    for number, (field, value) in enumerate(deciding.items(), start=2):
        loaded(pets, tmp_path / "cache", **{field: value})
        assert len(divisions) == number, field
    other = load(Data(source=str(pets)), seed=1, cache_dir=str(tmp_path / "cache"))
    assert len(divisions) == 7 and other.content_hash != whole.content_hash


def test_if_nothing_is_drawn_all_seeds_share_their_splits(pets, tmp_path, divisions):
    hashes = {load(Data(source=str(pets)), seed=seed, cache_dir=str(tmp_path / "cache")).content_hash for seed in range(3)}
    assert len(hashes) == len(divisions) == 1
    for seed in range(3):
        load(Data(source=str(pets), limit=4), seed=seed, cache_dir=str(tmp_path / "cache"))
    assert len(divisions) == 4


def test_splits_that_were_stored_are_those_of_this_version(tmp_path):
    pets = write_folder(
        tmp_path / "pets", tree("cat", "dog", images=20) | {"dog/bad.png": b"x", "dog/again.png": image("cat0")}
    )
    found = loaded(pets, tmp_path / "cache", limit=10, on_bad="skip")
    told = json.dumps([found.content_hash, found.notes, found.test.labels.tolist()])
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "18614727797be8e6", "Raise splits.VERSION, then change this hash."


def test_splits_of_files_that_were_judged_otherwise_are_not_used(pets, tmp_path, monkeypatch):
    loaded(pets, tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache" / "scanned")
    original, content = decode.examine, FILES["train/cat/0.png"]

    def stricter(given):
        if given == content:
            raise BadImageError(decode.DAMAGED)
        return original(given)

    monkeypatch.setattr(decode, "examine", stricter)
    with refused(DataRefused, names=[f"'train/cat/0.png': {decode.DAMAGED}"]):
        loaded(pets, tmp_path / "cache")
    left = loaded(pets, tmp_path / "cache", on_bad="skip")
    expected = loaded(
        write_folder(tmp_path / "fewer", {name: FILES[name] for name in FILES if FILES[name] != content}), tmp_path
    )
    assert left.content_hash == expected.content_hash and np.array_equal(left.train.images, expected.train.images)


def test_an_entry_that_is_torn_while_it_is_read_is_a_disk_error(pets, tmp_path):
    loaded(pets, tmp_path / "cache")
    place = entry_of(tmp_path / "cache", "scanned")
    entry = cache.fetch(tmp_path / "cache", "scanned", place.name, lambda _: pytest.fail("it is whole"))
    with (place / "arrays.npz").open("r+b") as file:
        file.write(bytes(place.joinpath("arrays.npz").stat().st_size // 2))
    with pytest.raises(OSError) as caught:
        _ = [entry.arrays[name] for name in entry.arrays]
    assert "whole a moment ago" in str(caught.value) and str(place / "arrays.npz") in str(caught.value)


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("loading", ["cached", "streaming"])
def test_of_all_that_is_stored_a_later_load_reads_what_it_needs(loading, limit, pets, tmp_path, monkeypatch):
    loaded(pets, tmp_path / "cache", loading=loading, limit=limit)
    original, read = cache._StoredArrays.__getitem__, set()

    def noted(self, name):
        read.add(name)
        return original(self, name)

    monkeypatch.setattr(cache._StoredArrays, "__getitem__", noted)
    loaded(pets, tmp_path / "cache", loading=loading, limit=limit)
    columns = ("ids", "labels", "rows") if loading == "streaming" else ("ids", "labels")
    of_splits = {f"{split}_{column}" for split in splits.SPLITS for column in columns}
    if loading == "streaming":
        of_splits.remove("train_ids")  # its pixels are not stored
    of_files = {"offsets", "file_bytes", "plain"} if loading == "streaming" else set()
    some_pixels = {"known"} if loading == "streaming" or limit else set()  # where all are stored, that is told
    assert read == of_splits | of_files | some_pixels


def test_splits_are_made_each_time_if_they_cannot_be_stored(pets, tmp_path, divisions, monkeypatch):
    expected = loaded(pets, tmp_path / "whole", limit=4)
    loaded(pets, tmp_path / "cache")

    def refused(*_):
        raise PermissionError(errno.EACCES, "a cache folder of another user")

    monkeypatch.setattr(cache, "staging_folder", refused)
    for _ in range(2):
        found = loaded(pets, tmp_path / "cache", limit=4)
        assert found.content_hash == expected.content_hash and np.array_equal(found.train.images, expected.train.images)
    assert len(divisions) == 4


def test_what_is_refused_is_refused_again_though_it_was_divided_when_it_was_allowed(tmp_path):
    pets = write_folder(tmp_path / "pets", FILES | {"test/cat/9.png": FILES["train/cat/0.png"]})
    for _ in range(2):
        with refused(DataRefused, fix="data.duplicates=allow", names=["more than one split"]):
            loaded(pets, tmp_path / "cache")
        allowed = loaded(pets, tmp_path / "cache", duplicates="allow")
    assert any(note.endswith(splits.IN_TWO_SPLITS) for note in allowed.notes)


def test_only_the_examples_that_a_limit_keeps_are_decoded(pets, tmp_path):
    dataset = loaded(pets, tmp_path / "cache", limit=4)
    kept = len(dataset.train) + len(dataset.validation) + len(dataset.test)
    assert kept == 12 < len(FILES)
    assert stored_rows(tmp_path / "cache") == kept


@pytest.mark.parametrize("folders", [("cat", "dog"), ("train/cat", "train/dog")])
def test_drawn_splits_limits_and_seeds_share_one_decoded_copy(folders, tmp_path, builds):
    pets = write_folder(tmp_path / "pets", tree(*folders, images=20))
    by_limit = [loaded(pets, tmp_path / "cache", limit=limit) for limit in (4, 8, 20)]
    assert stored_rows(tmp_path / "cache") < 40 and len(builds) == 3
    whole = loaded(pets, tmp_path / "cache")
    assert stored_rows(tmp_path / "cache") == 40 and len(builds) == 4
    by_seed = [load(Data(source=str(pets)), seed=seed, cache_dir=str(tmp_path / "cache")) for seed in range(1, 4)]
    by_size = loaded(pets, tmp_path / "cache", image_size=8)
    assert len(builds) == 4 and by_size.content_hash == whole.content_hash
    size_bytes = (entry_of(tmp_path / "cache") / "data").stat().st_size
    assert size_bytes < 40 * 8 * 8 * 3 + 200
    for number, dataset in enumerate([*by_limit, whole, *by_seed]):
        alone = load(
            Data(source=str(pets), limit=(4, 8, 20)[number] if number < 3 else None),
            seed=max(number - 3, 0),
            cache_dir=str(tmp_path / f"cache {number}"),
        )
        assert dataset.content_hash == alone.content_hash
        for split in ("train", "validation", "test"):
            assert np.array_equal(getattr(dataset, split).images, getattr(alone, split).images)


def test_images_that_a_later_run_needs_too_are_decoded_without_the_earlier_ones(pets, tmp_path, builds):
    for limit in (4, 4, None, 4):
        loaded(pets, tmp_path / "cache", limit=limit)
    assert builds == [12, 12]


@pytest.mark.parametrize("fails", ["write", "finish"])
def test_a_run_that_dies_while_it_adds_images_costs_the_earlier_ones_nothing(fails, pets, tmp_path, monkeypatch):
    expected = loaded(pets, tmp_path / "whole").train.images
    few = loaded(pets, tmp_path / "cache", limit=4).train.images
    before = np.asarray(few).copy()
    original = getattr(pixel_cache.PixelFile, fails)

    def failing(self, *arguments):
        original(self, *arguments)
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pixel_cache.PixelFile, fails, failing)
        with refused(DataRefused, names=["no space left"]):
            loaded(pets, tmp_path / "cache")
    assert stored_rows(tmp_path / "cache") == 12 and np.array_equal(few, before)
    assert np.array_equal(loaded(pets, tmp_path / "cache").train.images, expected)
    assert stored_rows(tmp_path / "cache") == 24


def test_of_a_decoded_copy_that_was_written_to_only_the_changed_images_are_decoded_again(pets, tmp_path, builds):
    expected = np.asarray(loaded(pets, tmp_path / "cache").test.images).copy()
    builds.clear()
    flip_a_byte(entry_of(tmp_path / "cache"))
    assert np.array_equal(loaded(pets, tmp_path / "cache").test.images, expected) and builds == [1]


def test_streaming_decodes_and_stores_no_training_image_until_it_is_looked_at(pets, tmp_path, builds):
    streamed = loaded(pets, tmp_path / "cache", loading="streaming")
    assert stored_rows(tmp_path / "cache") == len(streamed.validation) + len(streamed.test) == 16
    cached = loaded(pets, tmp_path / "another")
    assert streamed.content_hash == cached.content_hash
    for split in ("train", "validation", "test"):
        one, other = getattr(streamed, split), getattr(cached, split)
        assert one.images.shape == other.images.shape and one.images.nbytes == other.images.nbytes
        assert np.array_equal(one.images, other.images) and one.labels.tolist() == other.labels.tolist()
    normalized = Data(source=str(pets), normalization="dataset")
    expected = scaling.scaling_for(normalized, cached, cache_dir=str(tmp_path / "another"))
    assert scaling.scaling_for(normalized, streamed, cache_dir=str(tmp_path / "cache")) == expected
    assert stored_rows(tmp_path / "cache") == 16


def test_data_that_has_no_room_on_the_disk_is_refused_before_it_is_decoded(pets, tmp_path, builds, monkeypatch):
    monkeypatch.setattr(lookup.shutil, "disk_usage", lambda _: SimpleNamespace(free=24 * 8 * 8 * 3 - 1))
    ways_out = ["data.image_size", "data.limit", "streaming", "paths.cache_dir", "convtwins cache --prune"]
    with refused(DataRefused, fix=ways_out, names=["24 images of pets", "8 x 8", "4,608", "4,607", tmp_path / "cache"]):
        loaded(pets, tmp_path / "cache")
    assert not builds
    assert not list((tmp_path / "cache" / "decoded").glob("*/data"))
    loaded(pets, tmp_path / "cache", loading="streaming")


@pytest.mark.parametrize("loading", ["cached", "streaming"])
def test_a_description_is_that_of_the_loaded_data_and_decodes_nothing(loading, pets, tmp_path, builds):
    data = Data(source=str(pets), limit=4, image_size=6, loading=loading)
    described = describe(data, seed=1, cache_dir=str(tmp_path / "cache"))
    assert not builds and not (tmp_path / "cache" / "decoded").exists()
    dataset = load(data, seed=1, cache_dir=str(tmp_path / "cache"))
    for name in ("name", "class_names", "content_hash", "image_size", "notes"):
        assert getattr(described, name) == getattr(dataset, name)
    assert described.sizes == {split: len(getattr(dataset, split)) for split in ("train", "validation", "test")}


REFUSED = {
    "missing": ({"source": "no/such/folder"}, {}),
    "bad files": ({}, {"train/cat/bad.png": b"no image"}),
    "shared images": ({}, {"test/cat/again.png": FILES["train/cat/0.png"]}),
    "another size": ({}, {"train/cat/large.png": image("large", 12, 12)}),
    "nothing to stream": ({"source": "digits", "loading": "streaming"}, {}),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_description_is_refused_as_the_data_are(kind, tmp_path):
    values, more = REFUSED[kind]
    data = Data(**{"source": str(write_folder(tmp_path / "pets", FILES | more)), **values})
    messages: list[str] = []
    for read in (describe, load):
        with pytest.raises(DataRefused) as caught:
            read(data, seed=0, cache_dir=str(tmp_path / read.__name__))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_description_is_refused_if_there_is_no_room_for_the_images(pets, tmp_path, monkeypatch):
    needed = 24 * 8 * 8 * 3
    monkeypatch.setattr(lookup.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with refused(DataRefused, names=["24 images of pets", "8 x 8"]):
        describe(Data(source=str(pets)), seed=0, cache_dir=str(tmp_path / "cache"))
    monkeypatch.undo()
    loaded(pets, tmp_path / "cache")
    monkeypatch.setattr(lookup.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    describe(Data(source=str(pets)), seed=0, cache_dir=str(tmp_path / "cache"))  # all are there


def test_decoding_much_data_is_announced(pets, tmp_path, monkeypatch, capsys):
    loaded(pets, tmp_path / "cache")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(lookup, "_LARGE_BYTES", 100)
    loaded(pets, tmp_path / "cache", image_size=400)
    written = capsys.readouterr()
    assert written.err.startswith("decoding 24 images of pets at 400 x 400 pixels: 0.0 GiB in ") and not written.out


def test_files_need_no_decoded_pixels(pets, tmp_path, builds, scans):
    load_files(Data(source=str(pets)), seed=0, cache_dir=str(tmp_path / "cache"))
    assert len(scans) == 1 and not builds and not (tmp_path / "cache" / "decoded").exists()


@pytest.mark.parametrize("change", ["bytes", "name", "class", "added", "removed"])
def test_a_changed_folder_is_decoded_again(change, pets, tmp_path, builds):
    before = loaded(pets, tmp_path / "cache").content_hash
    match change:
        case "bytes":
            (pets / "train/cat/0.png").write_bytes(image("another"))
        case "name":
            (pets / "train/cat/0.png").rename(pets / "train/cat/9.png")
        case "class":
            (pets / "train/cat/0.png").rename(pets / "train/dog/9.png")
        case "added":
            (pets / "train/cat/9.png").write_bytes(image("another"))
        case _:
            (pets / "train/cat/0.png").unlink()
    assert loaded(pets, tmp_path / "cache").content_hash != before
    assert len(builds) == 2


def cut(entry: Path, name: str, num_bytes: int) -> None:
    content = (entry / name).read_bytes()
    (entry / name).write_bytes(content[:num_bytes])


def set_record(entry: Path, **values: object) -> None:
    stored = json.loads((entry / "entry.json").read_text())
    stored["record"] |= values
    (entry / "entry.json").write_text(json.dumps(stored))


def flip_a_byte(entry: Path) -> None:
    with (entry / "data").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        (last,) = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


DAMAGE = {
    "data cut": lambda entry: cut(entry, "data", 500),
    "data gone": lambda entry: (entry / "data").unlink(),
    "a byte changed": flip_a_byte,
    "arrays cut": lambda entry: cut(entry, "arrays.npz", 10),
    "arrays gone": lambda entry: (entry / "arrays.npz").unlink(),
    "arrays changed": lambda entry: np.savez(entry / "arrays.npz", paths=np.zeros(24, np.uint8)),
    "record cut": lambda entry: cut(entry, "entry.json", 100),
    "record empty": lambda entry: cut(entry, "entry.json", 0),
    "record changed": lambda entry: set_record(entry, data_bytes=1),
    "record of another kind": lambda entry: (entry / "entry.json").write_text("[1]"),
    "record of another version": lambda entry: set_record(entry, version=0),
}


@pytest.mark.parametrize("kind", ["scanned", "decoded"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_torn_or_changed_entry_is_built_again(damage, kind, pets, tmp_path, builds, scans):
    before = loaded(pets, tmp_path / "cache")
    expected = before.train.images.copy()
    DAMAGE[damage](entry_of(tmp_path / "cache", kind))
    after = loaded(pets, tmp_path / "cache")
    assert (len(scans), len(builds)) == ((2, 1) if kind == "scanned" else (1, 2))
    assert np.array_equal(after.train.images, expected) and after.class_names == ("cat", "dog")


@pytest.mark.parametrize("damage", [damage for damage in DAMAGE if damage.startswith(("arrays", "record")) or "gone" in damage])
def test_torn_or_changed_splits_are_made_again_of_what_was_scanned(damage, pets, tmp_path, builds, scans, divisions):
    before = loaded(pets, tmp_path / "cache")
    DAMAGE[damage](entry_of(tmp_path / "cache", "divided"))
    after = loaded(pets, tmp_path / "cache")
    assert len(divisions) == 2 and len(scans) == len(builds) == 1
    assert after.content_hash == before.content_hash and after.train.labels.tolist() == before.train.labels.tolist()


def test_copied_entries_are_valid(pets, tmp_path, builds, scans):
    loaded(pets, tmp_path / "cache")
    shutil.copytree(tmp_path / "cache", tmp_path / "copy", copy_function=shutil.copyfile)
    loaded(pets, tmp_path / "copy")
    assert len(builds) == len(scans) == 1


def test_remains_of_a_killed_process_are_removed(pets, tmp_path):
    loaded(pets, tmp_path / "cache")
    entry = entry_of(tmp_path / "cache")
    partial = entry.with_name(f"{entry.name}.partial")
    entry.rename(partial)
    cut(partial, "data", 300)
    loaded(pets, tmp_path / "cache")
    assert entry.is_dir() and not partial.exists()


def test_a_source_that_changes_while_it_is_read_is_refused_and_not_cached(pets, tmp_path, monkeypatch):
    original = file_source.Folder.read

    def changing(self, wanted):
        (pets / "train/cat/0.png").write_bytes(image("another"))
        return original(self, wanted)

    monkeypatch.setattr(file_source.Folder, "read", changing)
    with refused(DataRefused, names=["changed while it was read"]):
        loaded(pets, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("data"))


def test_processes_that_start_together_decode_once(pets, tmp_path):
    script = f"""
import time, uuid
from pathlib import Path
from common.data import sources
from common.data.decoding import decode
from common.spec import Data
original = decode.decode_all
def counted(*arguments, **more):
    Path({str(tmp_path)!r}, f"{{uuid.uuid4()}}.build").touch()
    time.sleep(0.5)
    original(*arguments, **more)
decode.decode_all = counted
print(sources.load(Data(source={str(pets)!r}), seed=0, cache_dir={str(tmp_path / "cache")!r}).content_hash)
"""
    project = Path(__file__).parents[3]
    processes = [
        subprocess.Popen([sys.executable, "-c", script], cwd=project, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    hashes = {process.communicate(timeout=300)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(hashes) == 1 and len(list(tmp_path.glob("*.build"))) == 1


def test_a_cache_that_cannot_be_written_is_refused_with_a_fix(pets, tmp_path):
    (tmp_path / "file").touch()
    with refused(DataRefused, names=["paths.cache_dir"]):
        loaded(pets, tmp_path / "file")


def test_a_pixel_file_with_missing_rows_is_not_sealed(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((5, 4, 4, 3), np.uint8))
    with (tmp_path / "images.npy").open("r+b") as file:
        pixels = pixel_cache.PixelFile(file, np.array([1, 3]), 4)
        pixels.write(1, np.zeros((1, 4, 4, 3), np.uint8))
        with pytest.raises(RuntimeError) as caught:
            pixels.finish()
    assert "1 images" in str(caught.value)


@pytest.fixture
def hashings(monkeypatch) -> list[int]:
    """Grows by one whenever all bytes of a folder are hashed."""
    calls: list[int] = []
    original = file_source.Folder.content_hash

    def counted(self):
        calls.append(1)
        return original(self)

    monkeypatch.setattr(file_source.Folder, "content_hash", counted)
    return calls


def test_a_folder_at_rest_is_hashed_once(pets, tmp_path, hashings, monkeypatch):
    monkeypatch.setattr(identity, "MIN_AGE_SECONDS", -1e9)  # as if it had been written long ago
    first, second = loaded(pets, tmp_path / "cache"), loaded(pets, tmp_path / "cache")
    assert len(hashings) == 1 and first.content_hash == second.content_hash


def test_a_folder_that_was_just_written_is_hashed_again_as_clocks_tick_slowly(pets, tmp_path, hashings):
    loaded(pets, tmp_path / "cache")
    before = len(hashings)
    loaded(pets, tmp_path / "cache")
    assert len(hashings) == before + 1 and not (tmp_path / "cache" / "hashes").exists()


def test_a_file_that_was_written_to_is_hashed_again_even_where_size_and_time_were_kept(pets, tmp_path, hashings, monkeypatch):
    monkeypatch.setattr(identity, "MIN_AGE_SECONDS", -1e9)
    loaded(pets, tmp_path / "cache")
    file = pets / "train/cat/0.png"
    status = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    loaded(pets, tmp_path / "cache")
    assert len(hashings) == 2


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"fingerprint": 1}', '{"content_hash": 1}'])
def test_a_damaged_stored_hash_is_computed_again(content, pets, tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "MIN_AGE_SECONDS", -1e9)
    before = loaded(pets, tmp_path / "cache").content_hash
    (remembered,) = (tmp_path / "cache" / "hashes").iterdir()
    good = remembered.read_text()
    remembered.write_text(content)
    assert loaded(pets, tmp_path / "cache").content_hash == before and remembered.read_text() == good


def test_the_cache_folder_is_the_users_own_unless_told(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CONVTWINS_CACHE", raising=False)
    assert cache.folder(None).name == "convtwins"
    monkeypatch.setenv("CONVTWINS_CACHE", str(tmp_path / "by environment"))
    assert cache.folder(None) == tmp_path / "by environment"
    assert cache.folder(str(tmp_path / "by argument")) == tmp_path / "by argument"


def test_the_name_of_a_dataset_is_its_path_without_suffixes(tmp_path):
    for name in ("pets.tar", "pets.tar.xz", "pets.tgz", "pets.zip"):
        files = tree("cat", "dog")
        assert lookup.load(
            Data(source=str(write_tar(tmp_path / name, files))), seed=0, cache_dir=str(tmp_path / "cache")
        ).name == "pets"  # fmt: skip
