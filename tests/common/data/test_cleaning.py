"""Every file is opened before training. A bad file is named, or left out in all places alike."""

import errno
import io
import random
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from common.data import notes, threads
from common.data.dataset import BadImageError
from common.data.decoding import decode
from common.data.sources import DataRefused, Encoded, describe, image_folder, load, load_files, load_manifest, scanned
from common.data.sources.archives import Tar
from common.data.sources.file_source import Content, Folder
from common.data.threads import ThreadLimits
from common.spec import Data
from tests.common.data.preprocessing.made_up_scan import packed
from tests.common.made_up_data import image, pixels, saved, tree, write_folder, write_tar, write_zip
from tests.support.refusals import refused

GOOD = tree("cat", "dog", images=6)


def png_header(width: int, height: int) -> bytes:
    content = bytearray(image("header"))
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def png_of_16_bit_rgb() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(b"".join(b"\0" + bytes(range(48)) for _ in range(8)))
    header = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.png", image("a"))
    return file.getvalue()


def half(image_format: str) -> bytes:
    content = image("half", 64, 64, image_format)
    return content[: len(content) // 2]


SIXTEEN = Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000)

BAD = {
    "an_empty_file": ("x.jpg", b"", decode.EMPTY),
    "one_byte": ("x.jpg", b"\xff", decode.NO_IMAGE),
    "zeros": ("x.jpg", bytes(5000), decode.NO_IMAGE),
    "text": ("x.png", b"no image at all", decode.NO_IMAGE),
    "an_error_page": ("x.jpg", b"<!DOCTYPE html><title>404</title>", decode.NO_IMAGE),
    "svg": ("x.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", decode.NO_IMAGE),
    "pdf": ("x.jpg", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", decode.NO_IMAGE),
    "postscript": ("x.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", decode.NO_IMAGE),
    "an_archive": ("x.png", zipped(), decode.NO_IMAGE),
    "a_jpeg_header_alone": ("x.jpg", image("a", 64, 64, "JPEG")[:20], decode.NO_IMAGE),
    "half_a_jpeg": ("x.jpg", half("JPEG"), decode.DAMAGED),
    "a_jpeg_without_its_end": ("x.jpg", image("a", 64, 64, "JPEG")[:-60], decode.DAMAGED),
    "half_a_png": ("x.png", half("PNG"), decode.DAMAGED),
    "a_png_with_changed_bytes": ("x.png", image("a").replace(b"IDAT", b"IDAT\0\0", 1), decode.DAMAGED),
    "half_a_gif": ("x.gif", half("GIF"), decode.DAMAGED),
    "half_a_bmp": ("x.bmp", half("BMP"), decode.DAMAGED),
    "half_a_tiff": ("x.tif", half("TIFF"), decode.DAMAGED),
    "half_a_webp": ("x.webp", half("WEBP"), decode.DAMAGED),
    "half_a_ppm": ("x.ppm", half("PPM"), decode.DAMAGED),
    "a_png_named_jpg": ("x.jpg", image("a"), decode.WRONG_SUFFIX),
    "a_jpeg_named_png": ("x.PNG", image("a", image_format="JPEG"), decode.WRONG_SUFFIX),
    "a_gif_named_webp": ("x.webp", image("a", image_format="GIF"), decode.WRONG_SUFFIX),
    "an_image_without_suffix": ("x", image("a"), decode.NO_SUFFIX),
    "an_unfinished_download": ("x.jpg.part", image("a", image_format="JPEG"), decode.NO_SUFFIX),
    "notes": ("notes.txt", b"to be sorted", decode.NO_SUFFIX),
    "64_megapixels": ("x.png", png_header(8000, 8000), decode.TOO_LARGE),
    "100_megapixels": ("x.png", png_header(10_000, 10_000), decode.TOO_LARGE),
    "ten_gigapixels": ("x.png", png_header(100_000, 100_000), decode.TOO_LARGE),
    "16_bit_grey": ("x.png", saved(SIXTEEN, "PNG"), decode.TOO_DEEP),
    "16_bit_rgb": ("x.png", png_of_16_bit_rgb(), decode.TOO_DEEP),
    "16_bit_tiff": ("x.tiff", saved(SIXTEEN, "TIFF"), decode.TOO_DEEP),
    "16_bit_pgm": ("x.pgm", b"P5 2 2 65535\n" + bytes(8), decode.TOO_DEEP),
    "12_bit_ppm": ("x.ppm", b"P6 1 1 4095\n" + bytes(6), decode.TOO_DEEP),
    "floats": ("x.tif", saved(Image.fromarray(np.ones((8, 8), np.float32)), "TIFF"), decode.TOO_DEEP),
    "no_pixels": ("x.ppm", b"P6 0 0 255\n", decode.NO_IMAGE),
}


@pytest.fixture
def cache(tmp_path) -> str:
    return str(tmp_path / "cache")


def splits_of(loaded):
    return loaded.train, loaded.validation, loaded.test


LIKE_ANOTHER = {
    *("one_byte", "zeros", "an_error_page", "pdf", "a_jpeg_without_its_end", "half_a_bmp", "half_a_ppm"),
    *("a_gif_named_webp", "100_megapixels", "16_bit_pgm", "12_bit_ppm"),
}
"""Kinds that one beside them stands for in the quick suite."""


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in LIKE_ANOTHER else []) for kind in BAD])
def test_a_bad_file_is_refused_by_name_or_left_out_everywhere(kind, tmp_path, cache):
    name, content, problem = BAD[kind]
    path = str(write_folder(tmp_path / "pets", GOOD | {f"dog/{name}": content}))
    refusals = set()
    for read in (load, load_files):
        with refused(DataRefused, names=[f"1 of {len(GOOD) + 1} files", f"'dog/{name}': {problem}"]) as caught:
            read(Data(source=path), seed=0, cache_dir=cache)
        refusals.add(str(caught.error))
    assert len(refusals) == 1
    skipping = Data(source=path, on_bad="skip")
    dataset, files = load(skipping, seed=0, cache_dir=cache), load_files(skipping, seed=0, cache_dir=cache)
    clean = load(Data(source=str(write_folder(tmp_path / "clean", GOOD))), seed=0, cache_dir=cache)
    assert dataset.content_hash == files.content_hash == clean.content_hash
    assert dataset.notes == files.notes == (f"left out 1 of {len(GOOD) + 1} files: 1 {problem}", *clean.notes)
    manifest = load_manifest(skipping, cache_dir=cache)
    assert manifest.problems[manifest.paths.index(f"dog/{name}")] == problem


def test_the_examples_that_skip_leaves_are_the_same_as_arrays_and_as_files(tmp_path, cache):
    files = GOOD | {f"{folder}/bad{number}.png": b"x" for folder in ("cat", "dog") for number in range(3)}
    for pack in (write_folder, write_tar, write_zip):
        data = Data(source=str(pack(tmp_path / pack.__name__, files)), on_bad="skip", image_size=4, limit=5)
        dataset, streamed = load(data, seed=3, cache_dir=cache), load_files(data, seed=3, cache_dir=cache)
        assert (len(dataset.train), dataset.content_hash) == (5, streamed.content_hash)
        for split in ("train", "validation", "test"):
            arrays, encoded = getattr(dataset, split), getattr(streamed, split).encoded
            assert np.array_equal(arrays.labels, getattr(streamed, split).labels)
            for index, expected in enumerate(arrays.images):
                assert np.array_equal(decode.decode(encoded.content(index), 4), expected)


def test_notes_count_the_files_left_out_by_reason(tmp_path, cache):
    bad = {"cat/a.png": b"", "cat/b.png": b"", "dog/c.txt": b"x", "dog/d.jpg": image("d"), "README": b"outside of the layout"}
    data = Data(source=str(write_folder(tmp_path / "pets", GOOD | bad)), on_bad="skip")
    assert load(data, seed=0, cache_dir=cache).notes[0] == (
        "left out 5 of 17 files: 2 empty, 2 no image suffix, 1 wrong suffix"
    )


def test_a_file_that_may_not_be_read_is_a_bad_file(tmp_path, cache):
    def forbid() -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", "secret.png")

    class Secret(Folder):  # permissions do not bind the user root
        def read(self, names):
            for name, content in super().read(names):
                yield name, Content(content.num_bytes, forbid) if name == "cat/secret.png" else content

    folder = write_folder(tmp_path / "pets", GOOD | {"cat/secret.png": image("secret")})
    scanned.scan(Secret(folder), Path(cache))
    with refused(DataRefused, names=["cat/secret.png", "unreadable", "Permission denied"]):
        load(Data(source=str(folder)), seed=0, cache_dir=cache)


@pytest.mark.parametrize("target", ["nowhere.png", "link.png"])
def test_a_link_that_leads_nowhere_is_a_bad_file(tmp_path, cache, target):
    folder = write_folder(tmp_path / "pets", GOOD)
    (folder / "cat" / "link.png").symlink_to(target)
    with refused(DataRefused, names=["1 of 13", "cat/link.png", "unreadable"]):
        load(Data(source=str(folder)), seed=0, cache_dir=cache)
    skipping = Data(source=str(folder), on_bad="skip")
    assert sum(map(len, splits_of(load_files(skipping, seed=0, cache_dir=cache)))) == 12
    (folder / "cat" / "link.png").unlink()
    (folder / "cat" / "link.png").symlink_to("../../found.png")
    (tmp_path / "found.png").write_bytes(image("found"))
    assert sum(map(len, splits_of(load_files(skipping, seed=0, cache_dir=cache)))) == 13


@pytest.mark.parametrize("files", [GOOD, {f"train/{name}": content for name, content in GOOD.items()}])
@pytest.mark.parametrize("pack", [write_folder, write_zip])
def test_a_picture_beside_the_class_folders_is_a_bad_file(files, pack, tmp_path, cache):
    beside = {"cover.png": image("cover")} | ({"train/all.png": image("all")} if "train/cat/0.png" in files else {})
    path = str(pack(tmp_path / "pets", files | beside))
    with refused(DataRefused, names=["'cover.png': outside of the layout"]):
        load(Data(source=path), seed=0, cache_dir=cache)
    skipped = load(Data(source=path, on_bad="skip"), seed=0, cache_dir=cache)
    assert skipped.notes[0] == f"left out {len(beside)} of {12 + len(beside)} files: {len(beside)} outside of the layout"
    clean = load(Data(source=str(write_folder(tmp_path / "clean", files))), seed=0, cache_dir=cache)
    assert skipped.content_hash == clean.content_hash


def test_a_class_folder_without_a_usable_image_is_refused_or_left_out(tmp_path, cache):
    folder = write_folder(tmp_path / "pets", GOOD | {"rat/a.png": b"x", "hidden/.keep": b""})
    (folder / "bat").mkdir()
    with refused(DataRefused, names=[f"'{name}': no usable image" for name in ("bat", "hidden", "rat")]):
        load(Data(source=str(folder)), seed=0, cache_dir=cache)
    dataset = load(Data(source=str(folder), on_bad="skip"), seed=0, cache_dir=cache)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.notes[1] == "left out classes without a usable image: 'bat', 'hidden', 'rat'"


def test_an_empty_class_folder_in_an_archive_is_seen_too(tmp_path, cache):
    folders = [tarfile.TarInfo(f"pets/{name}/") for name in ("cat", "bat", "dog/.hidden")]
    for folder in folders:
        folder.type = tarfile.DIRTYPE
    files = {f"pets/{name}": content for name, content in GOOD.items()}
    with refused(DataRefused, names=["1 class folder", "'bat'"]):
        load(Data(source=str(write_tar(tmp_path / "pets.tar", files, *folders))), seed=0, cache_dir=cache)


def test_an_empty_class_folder_that_comes_later_is_seen_though_no_file_changed(tmp_path, cache):
    folder = write_folder(tmp_path / "pets", GOOD)
    load(Data(source=str(folder)), seed=0, cache_dir=cache)
    (folder / "bat").mkdir()
    with refused(DataRefused, names=["'bat': no usable image"]):
        load(Data(source=str(folder)), seed=0, cache_dir=cache)


SPELLINGS = tree("train/cat", "train/Schl\u00fcssel", "val/cat", "val/Schlu\u0308ssel")


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (tree("train/cat", "train/dog", "val/cat") | {"val/dog/0.png": b"x"}, ["validation lacks 'dog'", "Add", "remove"]),
        (SPELLINGS, ["Unicode", r"'Schlu\u0308ssel' and 'Schl\xfcssel'"]),
        ({"cat/0.png": b"x", "dog/0.png": b""}, ["at least 2 classes"]),
        ({"dog/0.png": b"x"} | tree("cat"), ["at least 2 classes"]),
    ],
)
def test_classes_that_skipping_leaves_uneven_or_too_few_are_refused(files, names, tmp_path, cache):
    with refused(DataRefused, names=names):
        load(Data(source=str(write_folder(tmp_path / "pets", files)), on_bad="skip"), seed=0, cache_dir=cache)


COPY = image("twins")
SPLITS = tree("train/cat", "train/dog", "val/cat", "val/dog", "test/cat", "test/dog")


def test_equal_pixels_in_two_splits_are_refused_by_name_whatever_the_files_bytes(tmp_path, cache):
    other_bytes = saved(Image.fromarray(pixels("twins")), "BMP")
    files = SPLITS | {
        "train/cat/copy.png": COPY,
        "test/cat/copy.bmp": other_bytes,
        "train/dog/again.png": SPLITS["val/dog/1.png"],
    }
    path = str(write_folder(tmp_path / "pets", files))
    for read in (load, load_files):
        pairs = ["'train/cat/copy.png' = 'test/cat/copy.bmp'", "'train/dog/again.png' = 'val/dog/1.png'"]
        with refused(DataRefused, names=["2 images", "more than one split", *pairs]):
            read(Data(source=path), seed=0, cache_dir=cache)
        allowed = read(Data(source=path, duplicates="allow"), seed=0, cache_dir=cache)
        assert [note for note in allowed.notes if notes.kind(note) == "images_in_two_splits"] == [
            notes.in_two_splits(1, len(allowed.validation), "validation", "train"),
            notes.in_two_splits(1, len(allowed.test), "test", "train"),
        ]


@pytest.mark.parametrize("left", ["bad", "wide", "copies"])
def test_one_refusal_names_bad_files_sizes_and_shared_images(left, tmp_path, cache):
    """Else a user mends one, waits for another scan, and is refused for the next. `left`: what the data do not have."""
    faults = {
        "bad": ({"train/cat/torn.png": COPY[:60]}, f"'train/cat/torn.png': {decode.DAMAGED}"),
        "wide": ({"train/dog/wide.png": image("wide", 9, 4)}, "9 x 4"),
        "copies": ({"train/cat/copy.png": COPY, "test/cat/copy.png": COPY}, "'train/cat/copy.png' = 'test/cat/copy.png'"),
    }
    files = dict(SPLITS)
    for fault, (made, _) in faults.items():
        files |= made if fault != left else {}
    for read in (load, load_files, describe):
        with pytest.raises(DataRefused) as refusal:
            read(Data(source=str(write_folder(tmp_path / "pets", files))), seed=0, cache_dir=cache)
        assert {fault: str(refusal.value).count(said) for fault, (_, said) in faults.items()} == dict.fromkeys(faults, 1) | {
            left: 0
        }


def test_of_many_images_in_two_splits_twenty_are_named(tmp_path, cache):
    files = tree("train/cat", "train/dog", images=15)
    files |= {name.replace("train", "val"): content for name, content in files.items()}
    with refused(DataRefused, names=["30 images", "10 more"]) as caught:
        load(Data(source=str(write_folder(tmp_path / "pets", files))), seed=0, cache_dir=cache)
    assert str(caught.error).count(" = ") == 20


def test_equal_pixels_within_a_split_are_counted(tmp_path, cache):
    files = (
        SPLITS | {f"train/cat/copy{number}.png": COPY for number in range(3)} | {"val/dog/copy.png": SPLITS["val/dog/0.png"]}
    )
    dataset = load(Data(source=str(write_folder(tmp_path / "pets", files))), seed=0, cache_dir=cache)
    assert dataset.notes == ("examples whose pixels equal those of an earlier one of their split: 2 of train, 1 of validation",)


def test_copies_are_never_drawn_into_different_splits(tmp_path, cache):
    files = {
        f"{folder}/{number}_{copy}.png": image(f"{folder}{number}") for folder in "ab" for number in range(15) for copy in "xyz"
    }
    for seed in range(5):
        dataset = load(Data(source=str(write_folder(tmp_path / "pets", files))), seed=seed, cache_dir=cache)
        seen = [{each.tobytes() for each in split.images} for split in (dataset.train, dataset.validation, dataset.test)]
        assert [len(each) for each in seen] == [21, 6, 3] and not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
        assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [63, 18, 9]


def made_up_jpegs() -> list[bytes]:
    smooth = [np.asarray(Image.fromarray(pixels(str(number), 6, 6)).resize((48, 48))) for number in range(10)]
    return [
        saved(Image.fromarray(each), "JPEG", progressive=number % 2, quality=50 + 5 * number)
        for number, each in enumerate(smooth)
    ]


@pytest.fixture(params=["made up", pytest.param("real", marks=pytest.mark.slow)])
def jpegs(request, test_data) -> list[bytes]:
    if request.param == "made up":
        return made_up_jpegs()
    with tarfile.open(test_data("tomato-leaf-subset.tar")) as archive:
        members = [member for member in archive if member.name.lower().endswith(".jpg")][::350]
        return [archive.extractfile(member).read() for member in members]


def cut(content: bytearray, chance: random.Random) -> bytearray:
    return content[: chance.randrange(len(content))]


def change_a_byte(content: bytearray, chance: random.Random) -> bytearray:
    content[chance.randrange(len(content))] = chance.randrange(256)
    return content


def change_the_header(content: bytearray, chance: random.Random) -> bytearray:
    for _ in range(3):
        content[chance.randrange(2, min(700, len(content)))] = chance.randrange(256)
    return content


def lose_a_stretch(content: bytearray, chance: random.Random) -> bytearray:
    start = chance.randrange(len(content))
    del content[start : start + chance.randrange(1, 200)]
    return content


def repeat_a_stretch(content: bytearray, chance: random.Random) -> bytearray:
    start = chance.randrange(len(content))
    content[start:start] = content[start : start + chance.randrange(1, 200)]
    return content


def zero_a_stretch(content: bytearray, chance: random.Random) -> bytearray:
    start = chance.randrange(len(content))
    stretch = content[start : start + chance.randrange(1, 400)]
    content[start : start + len(stretch)] = bytes(len(stretch))
    return content


MUTATIONS: list[Callable[[bytearray, random.Random], bytearray]] = [
    cut, change_a_byte, change_the_header, lose_a_stretch, repeat_a_stretch, zero_a_stretch
]  # fmt: skip


def test_of_500_mutated_jpegs_each_is_an_image_or_a_named_bad_file(jpegs, tmp_path, cache):
    chance = random.Random(0)
    mutated = {
        f"{'cat' if number % 2 else 'dog'}/{number:03}.jpg": bytes(
            MUTATIONS[number % len(MUTATIONS)](bytearray(jpegs[number % len(jpegs)]), chance)
        )
        for number in range(500)
    }
    images, problems = 0, set()
    with decode.ignore_warnings():
        for content in mutated.values():
            try:
                decoded = decode.decode(content, None)
            except BadImageError as bad:
                problems.add(bad.kind)
            else:
                images += 1
                assert decoded.dtype == np.uint8 and decoded.ndim == 3 and decoded.shape[2] == 3
    assert problems <= set(decode.PROBLEMS) and 50 < images < 450
    data = Data(source=str(write_folder(tmp_path / "pets", mutated)), on_bad="skip", image_size=8, duplicates="allow")
    dataset, files = load(data, seed=0, cache_dir=cache), load_files(data, seed=0, cache_dir=cache)
    assert dataset.content_hash == files.content_hash
    assert sum(map(len, splits_of(dataset))) == images
    with refused(DataRefused, names=[f"{500 - images} of 500"]):
        load(Data(source=data.source), seed=0, cache_dir=cache)


@pytest.mark.parametrize(
    ("library", "failure", "image_format"),
    [
        ("PIL.ImageFile.ImageFile.load", MemoryError(), "PNG"),
        ("PIL.ImageFile.ImageFile.load", OSError("out of memory when reading image file"), "PNG"),
        ("PIL.ImageFile.ImageFile.load", OSError(errno.ENOMEM, "Cannot allocate memory"), "PNG"),
        ("simplejpeg.decode_jpeg", MemoryError(), "JPEG"),
        ("simplejpeg.decode_jpeg", ValueError("Insufficient memory (case 4)"), "JPEG"),
    ],
)
def test_a_lack_of_memory_does_not_make_a_bad_file_and_nothing_is_stored(
    library, failure, image_format, tmp_path, cache, monkeypatch
):
    def without_memory(*_: object, **__: object) -> None:
        raise failure

    files = {f"{folder}/{name}": image(f"{folder}{name}", 8, 8, image_format) for folder in ("cat", "dog") for name in range(6)}
    files = {f"{name}.{'jpg' if image_format == 'JPEG' else 'png'}": content for name, content in files.items()}
    data = Data(source=str(write_folder(tmp_path / "pets", files)), on_bad="skip")
    with monkeypatch.context() as patched:
        patched.setattr(library, without_memory)  # a decoder that is out of memory
        with pytest.raises(MemoryError):
            decode.examine(next(iter(files.values())))
        for read in (load, load_files):
            with refused(DataRefused, received="MemoryError", names=["memory", "nothing was stored"]):
                read(data, seed=0, cache_dir=cache)
    assert not list(Path(cache).rglob("data"))
    assert sum(map(len, splits_of(load(data, seed=0, cache_dir=cache)))) == len(files)


@pytest.fixture
def decodes(monkeypatch) -> list[str]:
    """Grows by the name of the library whenever one decodes the pixels of a JPEG."""
    calls: list[str] = []
    strict, pillow = simplejpeg.decode_jpeg, JpegImageFile.load

    def counted(content, **more):
        calls.append("simplejpeg")
        return strict(content, **more)

    def counted_load(self):
        if self.tile:  # without tiles its pixels are there already
            calls.append("Pillow")
        return pillow(self)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", counted)  # else only the time would tell
    monkeypatch.setattr(JpegImageFile, "load", counted_load)
    return calls


def test_a_plain_jpeg_is_decoded_once_when_it_is_judged_and_once_for_the_cache(tmp_path, cache, decodes):
    files = {f"{folder}/{number}.jpg": image(f"{folder}{number}", 16, 16, "JPEG") for folder in "ab" for number in range(10)}
    data = Data(source=str(write_folder(tmp_path / "pets", files)))
    manifest = load_manifest(data, cache_dir=cache)
    assert manifest.plain.all() and decodes == ["simplejpeg"] * 20
    load(data, seed=0, cache_dir=cache)
    assert decodes == ["simplejpeg"] * 20 + ["Pillow"] * 20
    load(data, seed=0, cache_dir=cache)
    assert len(decodes) == 40


def test_a_jpeg_that_is_not_plain_is_decoded_once_when_it_is_judged(decodes):
    colours = Image.fromarray(pixels("colours", 16, 16))
    for content in (saved(colours.convert("CMYK"), "JPEG"), saved(colours, "JPEG", keep_rgb=True)):
        decodes.clear()
        assert not decode.examine(content)[0].decodes_identically and decodes == ["Pillow"]


def test_few_bytes_of_decoded_images_are_held_whatever_their_size(tmp_path):
    contents, read, held = [image(str(number), 64, 64) for number in range(70)], [], []

    class Counted(Encoded):
        def content(self, index):
            read.append(index)
            return super().content(index)

    class Counting:
        row_bytes = 64 * 64 * 3

        def write(self, first, images):
            time.sleep(0 if held else 0.3)  # so that decoding gets ahead as far as it may
            held.append(len(read) - len(held))

    encoded = packed(tmp_path / "packed", contents)
    encoded = Counted(encoded.path, encoded.offsets, encoded.sizes, encoded.decodes_identically)
    decode.decode_all(encoded, None, Counting(), limits=ThreadLimits(threads=1, batch_bytes=4 * Counting.row_bytes))
    assert len(held) == len(contents) and max(held) <= 4 * (2 * 1 + 2)


@pytest.mark.parametrize(("pack", "kind"), [(write_folder, Folder), (write_tar, Tar)])
def test_few_bytes_of_large_files_are_held_however_many_there_are(pack, kind, tmp_path):
    files = {
        f"{folder}/{number:03}.bmp": image(f"{folder}{number}", 64, 64, "BMP")
        for folder in ("cat", "dog")
        for number in range(60)
    }
    source = kind(pack(tmp_path / "pets", files))
    pack_file = io.BytesIO()
    held: list[int] = []

    class Counting(kind):
        def read(self, wanted):
            given = 0
            for name, content in super().read(wanted):
                given += content.num_bytes
                held.append(given - pack_file.tell())
                yield name, content

    limits = ThreadLimits(threads=1, batch_bytes=30_000)
    manifest = image_folder.scan(Counting(source.path), source.listing(), pack_file, limits=limits)
    assert len(manifest.usable_rows) == len(files) and len(pack_file.getvalue()) == sum(map(len, files.values()))
    largest = max(map(len, files.values()))
    assert max(held) <= (2 * 1 + 1) * (30_000 + largest) + largest < sum(map(len, files.values())) / 8


def test_batches_end_at_a_number_of_items_or_of_bytes():
    taken, limits = 0, ThreadLimits(threads=2)

    def items():
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    for num_bytes, per_batch in ((0, threads.BATCH), (limits.batch_bytes // 4, 4), (2 * limits.batch_bytes, 1)):
        taken = 0
        results = threads.ordered(str, items(), num_bytes=lambda _, size=num_bytes: size, limits=limits)
        for done, result in enumerate(results):
            assert result == str(done) and taken - done <= (2 * 2 + 1) * per_batch
