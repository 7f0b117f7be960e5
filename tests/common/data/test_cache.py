"""Scanned and decoded data on disk: built once, shared, and built again when torn or changed."""

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.data import cache, notes
from common.data.dataset import BadImageError, Dataset
from common.data.decoding import decode
from common.data.pixel_cache import PixelCache, PixelFile
from common.data.preprocessing import scaling
from common.data.sources import DataRefused, describe, identity, load, load_files, lookup, scanned, splits
from common.data.sources.file_source import Folder
from common.spec import Data
from tests.common.made_up_data import image, tree, write_folder, write_tar
from tests.support import processes
from tests.support.refusals import refused

FILES = tree("train/cat", "train/dog", "val/cat", "val/dog", "test/cat", "test/dog")
EVERYTHING = {"scanned": 1, "divided": 1, "decoded": 1}
"""What the first load writes."""


class Cache:
    """A cache folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written: dict[str, int] = {}
        """How many entries of each kind the last load has written."""

    def load(self, source: Path, *, seed: int = 0, **fields: Any) -> Dataset:
        before = self._stamps()
        try:
            return load(Data(source=str(source), **fields), seed=seed, cache_dir=str(self.path))
        finally:
            self.written = dict(Counter(kind for kind, *_ in self._stamps() - before))

    def entry(self, kind: str = "decoded") -> Path:
        (entry,) = [path.parent for path in (self.path / kind).glob("*/entry.json")]
        return entry

    def stored_rows(self) -> int:
        """How many images are decoded there."""
        with np.load(self.entry() / "arrays.npz") as arrays:
            return int(arrays["sha256"].any(axis=1).sum())

    def _stamps(self) -> set[tuple[str, Path, int, int]]:
        """(kind, file, inode, time) of each entry. All that is scanned, divided or decoded is written into one."""
        files = [(path, path.stat()) for path in self.path.glob("*/*/arrays.npz")]
        return {(path.parts[-3], path, status.st_ino, status.st_mtime_ns) for path, status in files}


@pytest.fixture
def cached(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "pets", FILES)


def test_files_are_opened_once_and_the_same_examples_decoded_once_for_each_size(pets, cached):
    first = cached.load(pets)
    assert cached.written == EVERYTHING
    second = cached.load(pets)
    assert cached.written == {}
    assert first.content_hash == second.content_hash
    assert np.array_equal(first.train.images, second.train.images)
    cached.load(pets, limit=100, on_bad="skip", duplicates="allow")
    assert cached.written == {"divided": 1}
    cached.load(pets, image_size=16)
    assert cached.written == {"divided": 1, "decoded": 1}


def test_each_division_is_made_once(pets, cached):
    whole = cached.load(pets)
    again = cached.load(pets)
    files = load_files(Data(source=str(pets)), seed=0, cache_dir=str(cached.path))
    assert again.content_hash == files.content_hash == whole.content_hash and again.notes == files.notes == whole.notes
    for split in ("train", "validation", "test"):
        one, other = getattr(again, split), getattr(files, split)
        assert one.labels.tolist() == other.labels.tolist() == getattr(whole, split).labels.tolist()
        assert other.encoded.content(0) == FILES[f"{split[:3] if split == 'validation' else split}/cat/0.png"]
    cached.load(pets, loading="streaming")
    assert cached.written == {}
    assert len(list((cached.path / "divided").glob("*/entry.json"))) == 1


def test_each_field_that_affects_splits_has_its_own_division(tmp_path, cached):
    pets = write_folder(tmp_path / "pets", tree("train/cat", "train/dog", images=20))
    deciding = {"limit": 9, "image_size": 16, "on_bad": "skip", "duplicates": "allow", "drawn_part": 0.2}
    assert set(Data.model_fields) - {*deciding} == {"source", "loading", "normalization", "seed"}
    whole = cached.load(pets)
    for field, value in deciding.items():
        cached.load(pets, **{field: value})
        assert cached.written["divided"] == 1, field
    other = cached.load(pets, seed=1)
    assert cached.written["divided"] == 1 and other.content_hash != whole.content_hash


def test_if_nothing_is_drawn_all_seeds_share_their_splits(pets, cached):
    hashes = set[str]()
    for seed in range(3):
        hashes.add(cached.load(pets, seed=seed).content_hash)
        assert cached.written == ({} if seed else EVERYTHING)
    assert len(hashes) == 1
    for seed in range(3):
        cached.load(pets, seed=seed, limit=4)
        assert cached.written == {"divided": 1}


def test_splits_that_were_stored_are_those_of_this_version(tmp_path, cached):
    pets = write_folder(
        tmp_path / "pets", tree("cat", "dog", images=20) | {"dog/bad.png": b"x", "dog/again.png": image("cat0")}
    )
    found = cached.load(pets, limit=10, on_bad="skip")
    told = json.dumps([found.content_hash, found.notes, found.test.labels.tolist()])
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "18614727797be8e6", "Raise splits.VERSION, then change this hash."


def test_splits_of_files_that_were_judged_otherwise_are_not_used(pets, tmp_path, cached, monkeypatch):
    cached.load(pets)
    shutil.rmtree(cached.path / "scanned")
    original, content = decode.examine, FILES["train/cat/0.png"]

    def stricter(given):
        if given == content:
            raise BadImageError(decode.DAMAGED)
        return original(given)

    monkeypatch.setattr(decode, "examine", stricter)  # another version of a decoder
    with refused(DataRefused, names=[f"'train/cat/0.png': {decode.DAMAGED}"]):
        cached.load(pets)
    left = cached.load(pets, on_bad="skip")
    fewer = write_folder(tmp_path / "fewer", {name: FILES[name] for name in FILES if FILES[name] != content})
    expected = Cache(tmp_path / "another").load(fewer)
    assert left.content_hash == expected.content_hash and np.array_equal(left.train.images, expected.train.images)


def test_an_entry_that_is_torn_while_it_is_read_is_a_disk_error(pets, cached):
    cached.load(pets)
    place = cached.entry("scanned")
    entry = cache.fetch(cached.path, "scanned", place.name, lambda _: pytest.fail("it is whole"))
    with (place / "arrays.npz").open("r+b") as file:
        file.write(bytes(place.joinpath("arrays.npz").stat().st_size // 2))
    with pytest.raises(OSError) as caught:
        _ = [entry.arrays[name] for name in entry.arrays]
    assert "whole a moment ago" in str(caught.value) and str(place / "arrays.npz") in str(caught.value)


@pytest.mark.parametrize("limit", [None, 4])
@pytest.mark.parametrize("loading", ["cached", "streaming"])
def test_of_all_that_is_stored_a_later_load_reads_what_it_needs(loading, limit, pets, cached, monkeypatch):
    cached.load(pets, loading=loading, limit=limit)
    original, read = cache._StoredArrays.__getitem__, set()

    def noted(self, name):
        read.add(name)
        return original(self, name)

    monkeypatch.setattr(cache._StoredArrays, "__getitem__", noted)  # else only memory would tell
    cached.load(pets, loading=loading, limit=limit)
    of_splits = {f"{split}_{column}" for split in splits.SPLITS for column in ("rows", "labels")}
    of_files = {"offsets", "file_bytes", "plain"} if loading == "streaming" else set()
    some_pixels = {"known"} if loading == "streaming" or limit else set()  # where all are stored, that is told
    assert read == of_splits | of_files | some_pixels


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="there is no folder that nobody can write to")
def test_splits_are_made_each_time_if_they_cannot_be_stored(pets, tmp_path, cached):
    expected = Cache(tmp_path / "whole").load(pets, limit=4)
    cached.load(pets)
    shutil.rmtree(cached.path / "divided")
    (cached.path / "divided").symlink_to("/sys")  # as a cache folder of another user
    for _ in range(2):
        found = cached.load(pets, limit=4)
        assert cached.written == {}
        assert found.content_hash == expected.content_hash and np.array_equal(found.train.images, expected.train.images)


def test_what_is_refused_is_refused_again_though_it_was_divided_when_it_was_allowed(tmp_path, cached):
    pets = write_folder(tmp_path / "pets", FILES | {"test/cat/9.png": FILES["train/cat/0.png"]})
    for _ in range(2):
        with refused(DataRefused, fix="data.duplicates=allow", names=["more than one split"]):
            cached.load(pets)
        allowed = cached.load(pets, duplicates="allow")
    assert "images_in_two_splits" in map(notes.kind, allowed.notes)


def test_only_the_examples_that_a_limit_keeps_are_decoded(pets, cached):
    dataset = cached.load(pets, limit=4)
    kept = len(dataset.train) + len(dataset.validation) + len(dataset.test)
    assert kept == 12 < len(FILES)
    assert cached.stored_rows() == kept


@pytest.mark.parametrize("folders", [("cat", "dog"), ("train/cat", "train/dog")])
def test_drawn_splits_limits_and_seeds_share_one_decoded_copy(folders, tmp_path, cached):
    pets = write_folder(tmp_path / "pets", tree(*folders, images=20))
    loads = [{"limit": limit} for limit in (4, 8, 20)] + [{"limit": None, "seed": seed} for seed in range(4)]
    datasets, rows = list[Dataset](), list[int]()
    for fields in loads:
        datasets.append(cached.load(pets, **fields))
        rows.append(cached.stored_rows())
        assert ("decoded" in cached.written) == (rows != [*rows[:-2], rows[-1], rows[-1]])
    assert rows == sorted(rows) and len(set(rows[:4])) == 4 and rows[2] < 40 and rows[3:] == [40] * 4
    by_size = cached.load(pets, image_size=8)
    assert "decoded" not in cached.written and by_size.content_hash == datasets[3].content_hash
    assert (cached.entry() / "data").stat().st_size < 40 * 8 * 8 * 3 + 200
    for number, (fields, dataset) in enumerate(zip(loads, datasets, strict=True)):
        alone = Cache(tmp_path / f"cache {number}").load(pets, **fields)
        assert dataset.content_hash == alone.content_hash
        for split in ("train", "validation", "test"):
            assert np.array_equal(getattr(dataset, split).images, getattr(alone, split).images)


IMAGES = np.random.default_rng(0).integers(0, 256, (24, 4, 4, 3), np.uint8)


class Pixels:
    """Decoded pixels of IMAGES, each row that is written noted."""

    def __init__(self, folder: Path) -> None:
        self.cache = PixelCache(folder / "decoded" / "key", IMAGES.shape, {})
        self.written: list[list[int]] = []

    def fetch(self, rows: list[int], at_most: int = len(IMAGES)) -> np.ndarray:
        """Fetch rows. The disk is full after `at_most` of them."""

        def write(ids: np.ndarray, pixels: PixelFile) -> None:
            self.written.append(ids.tolist())
            pixels.write(0, IMAGES[ids[:at_most]])
            if at_most <= len(ids):
                raise OSError("no space left on device")

        return self.cache.fetch(np.array(rows), write)


def test_images_that_a_later_run_needs_too_are_written_without_the_earlier_ones(tmp_path):
    pixels, every = Pixels(tmp_path), list(range(24))
    for rows in ([3, 1, 23], [1, 3], every, [1], every):
        assert np.array_equal(pixels.fetch(rows)[rows], IMAGES[rows])
    assert pixels.written == [[1, 3, 23], [row for row in every if row not in (1, 3, 23)]]
    flip_a_byte(pixels.cache.entry_path)
    assert pixels.cache.missing(np.arange(24)).tolist() == every, "which one has changed is not known yet"
    assert np.array_equal(pixels.fetch(every), IMAGES) and pixels.written[2:] == [[23]]


@pytest.mark.parametrize("at_most", [0, 1, 12])
def test_a_run_that_dies_while_it_adds_images_costs_the_earlier_ones_nothing(at_most, tmp_path):
    pixels, every = Pixels(tmp_path), list(range(24))
    few, rest = every[::2], every[1::2]
    before = pixels.fetch(few)
    with pytest.raises(OSError):
        pixels.fetch(every, at_most)
    assert np.array_equal(before[few], IMAGES[few])
    assert np.array_equal(pixels.fetch(every), IMAGES) and pixels.written == [few, rest, rest]
    assert not len(pixels.cache.missing(np.arange(24)))


def test_copied_pixels_are_valid(tmp_path):
    pixels, copy = Pixels(tmp_path), Pixels(tmp_path / "copy")
    pixels.fetch([1, 3])
    shutil.copytree(tmp_path / "decoded", tmp_path / "copy" / "decoded", copy_function=shutil.copyfile)
    assert np.array_equal(copy.fetch([1, 3])[[1, 3]], IMAGES[[1, 3]]) and copy.written == []


def test_a_pixel_file_with_missing_rows_is_not_sealed(tmp_path):
    with pytest.raises(RuntimeError, match="1 images"):
        PixelCache(tmp_path / "key", IMAGES.shape, {}).fetch(np.array([1, 3]), lambda _, file: file.write(1, IMAGES[:1]))
    assert not (tmp_path / "key").exists()


TOGETHER = """
import sys, time, uuid
from pathlib import Path
import numpy as np
from common.data import cache, pixel_cache

folder = Path(sys.argv[1])

def work(name):
    (folder / f"{uuid.uuid4()}.{name}").touch()
    time.sleep(0.5)

def build(file):
    work("scan")
    return cache.EntryMetadata({}, {})

def write(ids, pixels):
    work("decode")
    pixels.write(0, np.ones((len(ids), 4, 4, 3), np.uint8))

cache.fetch(folder, "scanned", "key", build)
print(pixel_cache.PixelCache(folder / "decoded" / "key", (5, 4, 4, 3), {}).fetch(np.arange(5), write).sum())
"""


def test_processes_that_start_together_scan_and_decode_once(tmp_path):
    with ExitStack() as stack:
        words = [sys.executable, "-c", TOGETHER, tmp_path]
        started = [stack.enter_context(processes.started(words)) for _ in range(3)]
        assert [process.communicate(timeout=300)[0] for process in started] == ["240\n"] * 3
    assert sorted(path.suffix for path in tmp_path.glob("*.*")) == [".decode", ".scan"]


def test_streaming_decodes_and_stores_no_training_image_until_it_is_looked_at(pets, tmp_path, cached):
    streamed = cached.load(pets, loading="streaming")
    assert cached.stored_rows() == len(streamed.validation) + len(streamed.test) == 16
    whole = Cache(tmp_path / "another").load(pets)
    assert streamed.content_hash == whole.content_hash
    for split in ("train", "validation", "test"):
        one, other = getattr(streamed, split), getattr(whole, split)
        assert one.images.shape == other.images.shape and one.images.nbytes == other.images.nbytes
        assert np.array_equal(one.images, other.images) and one.labels.tolist() == other.labels.tolist()
    normalized = Data(source=str(pets), normalization="dataset")
    expected = scaling.scaling_for(normalized, whole, cache_dir=str(tmp_path / "another"))
    assert scaling.scaling_for(normalized, streamed, cache_dir=str(cached.path)) == expected
    assert cached.stored_rows() == 16


@pytest.fixture
def room(monkeypatch):
    """Sets the free bytes of the disk. Its size is the machine's."""
    return lambda free: monkeypatch.setattr(lookup.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_data_that_has_no_room_on_the_disk_is_refused_before_it_is_decoded(pets, cached, room):
    room(24 * 8 * 8 * 3 - 1)
    ways_out = ["data.image_size", "data.limit", "streaming", "paths.cache_dir", "convtwins cache --prune"]
    for read in (load, describe):
        with refused(DataRefused, fix=ways_out, names=["24 images of pets", "8 x 8", "4,608", "4,607", cached.path]):
            read(Data(source=str(pets)), seed=0, cache_dir=str(cached.path))
        assert not list((cached.path / "decoded").glob("*/data"))
    cached.load(pets, loading="streaming")
    room(24 * 8 * 8 * 3)
    cached.load(pets)
    room(0)
    describe(Data(source=str(pets)), seed=0, cache_dir=str(cached.path))  # all are there


@pytest.mark.parametrize("loading", ["cached", "streaming"])
def test_a_description_is_that_of_the_loaded_data_and_decodes_nothing(loading, pets, cached):
    data = Data(source=str(pets), limit=4, image_size=6, loading=loading)
    described = describe(data, seed=1, cache_dir=str(cached.path))
    assert not (cached.path / "decoded").exists()
    dataset = load(data, seed=1, cache_dir=str(cached.path))
    for name in ("name", "class_names", "content_hash", "image_size", "notes"):
        assert getattr(described, name) == getattr(dataset, name)
    assert described.sizes == {split: len(getattr(dataset, split)) for split in ("train", "validation", "test")}


REFUSED = {
    "missing": ({"source": "no/such/folder"}, {}),
    "bad files": ({}, {"train/cat/bad.png": b"no image"}),
    "shared images": ({}, {"test/cat/again.png": FILES["train/cat/0.png"]}),
    "another size": ({}, {"train/cat/large.png": image("large", 12, 12)}),
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


def test_decoding_much_data_is_announced(pets, cached, monkeypatch, capsys):
    cached.load(pets)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(lookup, "_LARGE_BYTES", 100)  # else a gibibyte would be decoded
    cached.load(pets, image_size=400)
    written = capsys.readouterr()
    assert "24 images of pets at 400 x 400 pixels" in written.err and str(cached.path) in written.err and not written.out


def test_files_need_no_decoded_pixels(pets, cached):
    load_files(Data(source=str(pets)), seed=0, cache_dir=str(cached.path))
    assert cached.entry("scanned") and not (cached.path / "decoded").exists()


@pytest.mark.parametrize("change", ["bytes", "name", "class", "added", "removed"])
def test_a_changed_folder_is_decoded_again(change, pets, cached):
    before = cached.load(pets).content_hash
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
    assert cached.load(pets).content_hash != before
    assert cached.written == EVERYTHING


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


TORN = [(kind, damage) for kind in ("scanned", "decoded") for damage in DAMAGE]
TORN += [("divided", damage) for damage in DAMAGE if damage.startswith(("arrays", "record")) or "gone" in damage]


@pytest.mark.parametrize(("kind", "damage"), TORN)
def test_a_torn_or_changed_entry_is_built_again_of_the_others(kind, damage, pets, cached):
    before = cached.load(pets)
    expected = before.train.images.copy()
    DAMAGE[damage](cached.entry(kind))
    after = cached.load(pets)
    assert cached.written == {kind: 1}
    assert np.array_equal(after.train.images, expected) and after.class_names == ("cat", "dog")
    assert after.content_hash == before.content_hash and after.train.labels.tolist() == before.train.labels.tolist()


def test_copied_entries_are_valid(pets, tmp_path, cached):
    cached.load(pets)
    copy = Cache(shutil.copytree(cached.path, tmp_path / "copy", copy_function=shutil.copyfile))
    copy.load(pets)
    assert copy.written == {"decoded": 1}, "only the times of the pixels are noted anew"


def test_remains_of_a_killed_process_are_removed(pets, cached):
    cached.load(pets)
    entry = cached.entry()
    partial = entry.with_name(f"{entry.name}.partial")
    entry.rename(partial)
    cut(partial, "data", 300)
    cached.load(pets)
    assert entry.is_dir() and not partial.exists()


def test_a_source_that_changes_while_it_is_read_is_refused_and_not_cached(pets, tmp_path):
    class Changing(Folder):
        def read(self, names):
            (pets / "train/cat/0.png").write_bytes(image("another"))
            return super().read(names)

    with refused(DataRefused, names=[pets, "changed while it was read"]):
        scanned.scan(Changing(pets), tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("data"))


def test_a_cache_that_cannot_be_written_is_refused_with_a_fix(pets, tmp_path):
    (tmp_path / "file").touch()
    with refused(DataRefused, fix="paths.cache_dir", names=[tmp_path / "file"]):
        Cache(tmp_path / "file").load(pets)


class Hashed(Folder):
    """A folder, each reading of all its bytes counted."""

    readings = 0

    def content_hash(self) -> str:
        self.readings += 1
        return super().content_hash()


LONG_AGO = {"min_age_seconds": -1e9}
"""As if the folder had been written long ago."""


@pytest.mark.parametrize(("age", "readings"), [(LONG_AGO, 1), ({}, 2)])
def test_a_folder_is_hashed_once_unless_it_was_just_written_as_clocks_tick_slowly(age, readings, pets, tmp_path):
    folder = Hashed(pets)
    first, second = (identity.content_hash(folder, tmp_path / "cache", **age) for _ in range(2))
    assert first == second == Folder(pets).content_hash() and folder.readings == readings
    assert (tmp_path / "cache" / "hashes").exists() == (readings == 1)


def test_a_file_that_was_written_to_is_hashed_again_even_where_size_and_time_were_kept(pets, tmp_path):
    folder, file = Hashed(pets), pets / "train/cat/0.png"
    identity.content_hash(folder, tmp_path / "cache", **LONG_AGO)
    status = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    identity.content_hash(folder, tmp_path / "cache", **LONG_AGO)
    assert folder.readings == 2


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"fingerprint": 1}', '{"content_hash": 1}'])
def test_a_damaged_stored_hash_is_computed_again(content, pets, tmp_path):
    before = identity.content_hash(Folder(pets), tmp_path, **LONG_AGO)
    (remembered,) = (tmp_path / "hashes").iterdir()
    good = remembered.read_text()
    remembered.write_text(content)
    assert identity.content_hash(Folder(pets), tmp_path, **LONG_AGO) == before and remembered.read_text() == good


def test_the_cache_folder_is_the_users_own_unless_told(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CONVTWINS_CACHE", raising=False)
    assert cache.folder(None).name == "convtwins"
    monkeypatch.setenv("CONVTWINS_CACHE", str(tmp_path / "by environment"))
    assert cache.folder(None) == tmp_path / "by environment"
    assert cache.folder(str(tmp_path / "by argument")) == tmp_path / "by argument"


def test_the_name_of_a_dataset_is_its_path_without_suffixes(tmp_path, cached):
    for name in ("pets.tar", "pets.tar.xz", "pets.tgz", "pets.zip"):
        assert cached.load(write_tar(tmp_path / name, tree("cat", "dog"))).name == "pets"
