"""Hostile archives are refused."""

import bz2
import gzip
import io
import lzma
import os
import random
import stat
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest

from common.data.sources import DataRefused, archives, file_source, image_folder, load, load_manifest
from common.data.sources.archives import ArchiveLimits
from common.data.sources.file_source import Folder
from common.spec import Data
from tests.common.made_up_data import image, tree, write_folder, write_tar, write_zip
from tests.support.refusals import refused

FILES = tree("cat", "dog")


def sealed(block: bytes, **changes: int) -> bytes:
    """A header of a tar with some bytes changed, e.g. `at_482=1`, and a checksum that fits."""
    header = bytearray(block)
    for place, value in changes.items():
        header[int(place.removeprefix("at_"))] = value
    header[148:156] = b" " * 8
    header[148:155] = b"%06o\0" % sum(header)
    return bytes(header)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info


@pytest.fixture
def assert_refused(tmp_path):
    """Asserts that an archive of these bytes, or at this path, is refused with its path, these words and nothing extracted."""

    def assert_refused(archive: Path | bytes, *names: object, received: object = None) -> str:
        path = tmp_path / "pets" if isinstance(archive, bytes) else archive
        if isinstance(archive, bytes):
            path.write_bytes(archive)
        before = set(tmp_path.rglob("*"))
        with refused(DataRefused, received=received, names=[path, *names]) as caught:
            load(Data(source=str(path)), seed=0, cache_dir=str(tmp_path / "cache"))
        left = {path for path in set(tmp_path.rglob("*")) - before if path.suffix != ".lock"}
        assert left <= {tmp_path / "cache", tmp_path / "cache" / "scanned"}, "nothing is extracted"
        return str(caught.error)

    return assert_refused


OUTSIDE = ["/etc/cat.png", "../cat.png", "cat/../../dog.png", "C:\\cat.png", "\\\\host\\cat.png", ".hidden/../../cat.png"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_a_path_that_leads_out_of_the_archive_is_refused(write, name, tmp_path, assert_refused):
    assert_refused(write(tmp_path / "pets", {**FILES, name: image(name)}), "leads out", received=repr(name))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_links_devices_and_pipes_in_a_tar_are_refused_hidden_ones_too(kind, tmp_path, assert_refused):
    words = "a link" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else "no plain file"
    for name in ("cat/evil.png", ".evil"):
        path = write_tar(tmp_path / "pets.tar", FILES, member(name, kind, "/etc/passwd"))
        assert_refused(path, words, received=repr(name))


@pytest.mark.parametrize(("kind", "words"), [(stat.S_IFLNK, "a link"), (stat.S_IFCHR, "no plain file")])
def test_links_and_devices_in_a_zip_are_refused(kind, words, tmp_path, assert_refused):
    path = write_zip(tmp_path / "pets.zip", FILES)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("cat/evil.png")
        info.external_attr = (kind | 0o644) << 16
        archive.writestr(info, "/etc/passwd")
    assert_refused(path, words, received="'cat/evil.png'")


def test_names_that_no_folder_can_hold_are_refused(tmp_path, assert_refused):
    twice = write_tar(tmp_path / "twice.tar", FILES | {"./cat/0.png": image("another")})
    assert_refused(twice, "two files with one path", received="'cat/0.png'")
    assert_refused(write_tar(tmp_path / "name.tar", {**FILES, "cat/\udcff.png": image("x")}), "UTF-8")


def test_an_encrypted_file_is_refused(tmp_path, assert_refused):
    content = bytearray(write_zip(tmp_path / "pets.zip", FILES).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    assert_refused(bytes(content), "encrypted", received="'cat/0.png'")


@pytest.mark.parametrize(
    ("name", "received"),
    [
        ("a/" * 2100 + "cat.png", "4,207 characters in 'a/a/a"),
        (f"cat/{'ä' * 128}.png", "a part of 260 bytes in 'cat/" + "ä" * 76),
    ],
)
@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_a_path_that_no_file_system_takes_is_refused(write, name, received, tmp_path, assert_refused):
    text = assert_refused(write(tmp_path / "pets", FILES | {name: image("x")}), "too long", received=received)
    assert len(text) < 500


@pytest.mark.parametrize("write", [write_tar, write_zip])
@pytest.mark.parametrize(
    ("limits", "files", "names"),
    [
        (ArchiveLimits(file_bytes=10_000), {"cat/bomb.png": bytes(10_001)}, ["'cat/bomb.png'", "10,001 bytes", "10,000 bytes"]),
        (ArchiveLimits(files=7), {}, ["too many files", "more than 7"]),
        (
            ArchiveLimits(unpacked_bytes=50_000, unpacked_ratio=1),
            {f"cat/bomb{number}.png": bytes(9_000) for number in range(20)},
            ["unpacks to too much", "more than 50,000 bytes"],
        ),
    ],
)
def test_an_archive_beyond_a_limit_is_refused_before_it_is_read(write, limits, files, names, tmp_path):
    path = write(tmp_path / "pets", FILES | files)
    if write is write_tar:
        path.write_bytes(gzip.compress(path.read_bytes()))
    with refused(DataRefused, names=[path, *names]):
        archives.open_archive(path, limits).listing()


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.REGTYPE])
def test_an_archive_without_end_is_refused_after_so_many_members(kind, tmp_path):
    (tmp_path / "pets").write_bytes(gzip.compress(member(".hidden/again", kind).tobuf() * 50_000))
    with refused(DataRefused, received="more than 2,000", names=["too many files"]):
        archives.open_archive(tmp_path / "pets", ArchiveLimits(files=2_000)).listing()


def test_what_follows_the_end_of_a_compressed_tar_counts_as_unpacked(tmp_path):
    (tmp_path / "pets").write_bytes(gzip.compress(write_tar(tmp_path / "whole.tar", FILES).read_bytes() + bytes(2**20)))
    with refused(DataRefused, received="more than 50,000 bytes", names=["unpacks to too much"]):
        archives.open_archive(tmp_path / "pets", ArchiveLimits(unpacked_bytes=50_000, unpacked_ratio=1)).listing()


def test_a_tar_that_claims_a_size_it_does_not_have_is_refused(assert_refused):
    assert_refused(member("cat/bomb.png", size=2**40).tobuf() + bytes(2048), received="1,099,511,627,776 bytes")


def test_an_image_of_absurd_dimensions_is_refused_by_its_header(tmp_path):
    content = bytearray(image("bomb"))
    content[16:24] = (8000).to_bytes(4, "big") + (8000).to_bytes(4, "big")  # width and height of a PNG
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    path = write_tar(tmp_path / "pets.tar", FILES | {"cat/bomb.png": bytes(content)})
    with refused(DataRefused, names=["'cat/bomb.png': more than 50 megapixels", "8000 x 8000"]):
        load(Data(source=str(path)), seed=0, cache_dir=str(tmp_path / "cache"))


NO_ARCHIVE = "cannot be read as an archive"
NO_END = "the end of the archive is missing"


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
@pytest.mark.parametrize("part", [0.1, 0.5])
def test_a_torn_tar_is_refused(mode, part, tmp_path, assert_refused):
    content = write_tar(tmp_path / "pets.tar", FILES, mode=mode).read_bytes()
    assert_refused(content[: int(len(content) * part)], NO_ARCHIVE)


def test_a_tar_that_ends_between_two_members_or_has_a_damaged_header_is_refused(tmp_path, assert_refused):
    content = write_tar(tmp_path / "pets.tar", FILES).read_bytes()
    with tarfile.open(tmp_path / "pets.tar") as archive:
        last = archive.getmembers()[-1]
    assert_refused(content[: last.offset_data + -(-last.size // 512) * 512], NO_END)
    assert_refused(content.replace(b"dog/2.png", b"dog/X.png", 1), NO_END)


def test_a_torn_or_damaged_zip_is_refused(tmp_path, assert_refused):
    content = write_zip(tmp_path / "pets.zip", FILES).read_bytes()
    assert_refused(content[: len(content) // 2], NO_ARCHIVE)
    place = content.index(b"cat/2.png") + 40
    assert_refused(content[:place] + bytes(8) + content[place + 8 :], NO_ARCHIVE)


EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
SPARSE_HEADER = sealed(member("cat/holes.png", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT), at_482=1)


@pytest.mark.parametrize("kind", EXTENDED)
@pytest.mark.parametrize("size", [2**30, 2**20, 2**16 - 1024, 2**13, -512])
def test_an_extended_header_of_absurd_size_is_refused_before_it_is_read(kind, size, assert_refused):
    header = member("header", kind, size=size)
    started = time.perf_counter()
    assert_refused(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + b"1" * 2**20), "headers are too large")
    assert time.perf_counter() - started < 60  # tarfile would take hours for so many digits


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(SPARSE_HEADER + (b"00000000001\0" * 42 + b"\1" + bytes(7)) * 10_000),
        (member("header", tarfile.XHDTYPE, size=12).tobuf() + b"12 mtime=12\n".ljust(512, b"\0")) * 2_000,
    ],
    ids=["sparse", "extended"],
)
def test_headers_without_end_are_refused(content, assert_refused):
    assert_refused(content, "headers are too large")


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_large_images_pass(tar_format, tmp_path):
    files = {f"{'ä' * 100}/{folder}/{'long' * 60}{number}.png": image(f"{folder}{number}", 200, 200)
             for folder in ("cat", "dog") for number in range(5)}  # fmt: skip
    with tarfile.open(tmp_path / "pets.tar", "w", format=tar_format) as archive:
        for name, content in files.items():
            archive.addfile(member(name, size=len(content)), io.BytesIO(content))
    assert min(map(len, files.values())) > archives.MAX_HEADER_BYTES
    manifest = load_manifest(Data(source=str(tmp_path / "pets.tar")), cache_dir=str(tmp_path / "cache"))
    assert sorted(manifest.paths) == sorted(files)


def test_to_recognise_an_archive_unpacks_nothing(tmp_path):
    bomb = member("header", tarfile.XHDTYPE, size=2**30)
    path = tmp_path / "pets"
    for content in (lzma.compress(bomb.tobuf() + bytes(2**20), lzma.FORMAT_ALONE), b"", b"x" * 511, bytes(512), b"\xff" * 512):
        path.write_bytes(content)
        assert archives.open_archive(path) is None
    path.write_bytes(bomb.tobuf())
    assert isinstance(archives.open_archive(path), archives.Tar)


@pytest.mark.parametrize("length", [512, 700, 1000])
def test_a_torn_sparse_header_is_refused(length, assert_refused):
    assert_refused((SPARSE_HEADER + bytes(512))[:length], NO_ARCHIVE)


def archive_of_every_kind(folder: Path) -> list[bytes]:
    """Small archives in the forms of which hostile ones are made."""
    contents: list[bytes] = []
    small = {"cat/0.png": b"0" * 700, f"dog/{'long' * 40}.png": b"1" * 30}
    for tar_format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        for kind, pax_headers in (
            (tarfile.REGTYPE, {"comment": "12345", "size": "700", "hdrcharset": "BINARY"}),
            (tarfile.GNUTYPE_SPARSE, {"GNU.sparse.map": "0,100,512,100", "GNU.sparse.size": "700"}),
            (tarfile.REGTYPE, {"GNU.sparse.size": "700", "GNU.sparse.numblocks": "1", "GNU.sparse.offset": "0"}),
            (tarfile.REGTYPE, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "700"}),
        ):
            file = io.BytesIO()
            with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
                for name, content in small.items():
                    info = member(name if tar_format != tarfile.USTAR_FORMAT else name[-40:], kind)
                    info.size, info.pax_headers = len(content), pax_headers
                    archive.addfile(info, io.BytesIO(content))
            contents.append(file.getvalue())
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(folder / "small.zip", "w", method) as archive:
            for name, content in small.items():
                archive.writestr(name, content)
        contents.append((folder / "small.zip").read_bytes())
    return contents


def mutated(content: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, most often to another one that a header may hold, and sometimes cut; checksums mostly fit again."""
    changed = bytearray(content)
    used = len(content.rstrip(b"\0"))
    for _ in range(chance.choice((0, 1, 2, 5))):
        place = chance.randrange(used)
        changed[place] = chance.choice((chance.randrange(256), *b"0123456789 =,\n\0\x80\xffLKSxgX"))
        start = place // 512 * 512
        if changed[start + 257 : start + 262] == b"ustar" and chance.random() < 0.8:
            changed[start : start + 512] = sealed(changed[start : start + 512])
    return bytes(changed[: chance.randrange(used + 512)] if chance.random() < 0.3 else changed)


def test_of_400_mutated_archives_each_gives_files_or_is_refused(tmp_path):
    chance = random.Random(0)
    originals = archive_of_every_kind(tmp_path)
    path = tmp_path / "mutated"
    read, kinds_of_damage = 0, set()
    started = time.perf_counter()
    for number in range(400):
        path.write_bytes(mutated(originals[number % len(originals)], chance))
        archive = archives.open_archive(path)
        if archive is None:
            continue
        try:
            listing = archive.listing()
            contents = {name: content() for name, content in archive.read(listing.files)}
        except DataRefused as refusal:
            kinds_of_damage.add(str(refusal).partition("Received: ")[2].partition(":")[0])
        else:
            read += 1
            assert sorted(contents) == sorted(listing.files)
    assert read > 20 and len(kinds_of_damage) > 5 and time.perf_counter() - started < 120


def test_a_compressed_tar_without_its_checksum_or_with_another_one_is_refused(tmp_path, assert_refused):
    content = write_tar(tmp_path / "whole.tar", FILES).read_bytes()
    gzipped, xzipped, bzipped = gzip.compress(content), lzma.compress(content), bz2.compress(content)
    check_of_xz = len(xzipped) - 12 - 4 * (1 + int.from_bytes(xzipped[-8:-4], "little")) - 1  # before index and footer
    for damaged in (
        gzipped[:-8],  # no checksum
        gzipped[:-6],  # half of it
        gzipped[:-8] + bytes(4) + gzipped[-4:],
        gzipped[:-4] + bytes(4),  # another length
        xzipped[:-12],
        xzipped[:check_of_xz] + bytes([xzipped[check_of_xz] ^ 1]) + xzipped[check_of_xz + 1 :],
        bzipped[:-4],
    ):
        assert_refused(damaged, NO_ARCHIVE)


def test_a_file_in_a_zip_that_unpacks_to_more_than_it_says_is_refused_without_memory_for_it(tmp_path):
    path = write_zip(tmp_path / "pets.zip", {"cat/bomb.png": bytes(2**26)})
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (100).to_bytes(4, "little")
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with refused(DataRefused, names=[path, "cannot be read as an archive"]):
            list(archives.Zip(path).read(["cat/bomb.png"]))
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_a_large_file_of_an_archive_is_in_memory_once(write, tmp_path):
    size = 2**24
    path = write(tmp_path / "pets", {"cat/large.png": bytes(size)})
    source = archives.open_archive(path)
    assert source is not None
    tracemalloc.start()
    try:
        assert [content.num_bytes for _, content in source.read(["cat/large.png"])] == [size]
        assert tracemalloc.get_traced_memory()[1] < 1.3 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("write", [write_folder, write_tar, write_zip])
def test_an_image_file_has_a_lower_limit_than_a_file_of_arrays(write, tmp_path):
    largest = image_folder.MAX_FILE_BYTES
    path = write(tmp_path / "pets", FILES | {"cat/large.png": bytes(largest + 1)})
    source = Folder(path) if write is write_folder else archives.open_archive(path)
    listing = source.listing()
    with refused(DataRefused, received=f"{largest + 1:,} bytes", fix=f"{largest:,} bytes", names=["cat/large.png"]):
        image_folder.scan(source, listing, io.BytesIO())
    if write is write_folder:
        os.truncate(path / "cat/large.png", file_source.MAX_FILE_BYTES + 1)
        with refused(DataRefused, received="268,435,457 bytes", names=["cat/large.png"]):
            source.listing()


def test_a_zip_with_backslashes_is_refused_with_the_reason(tmp_path):
    """As some programs on Windows write them: elsewhere each would be one long name in the root."""
    files = {name.replace("/", "\\"): content for name, content in tree("train/cat", "train/dog").items()}
    with refused(DataRefused, received=repr("train\\cat\\0.png"), names=["backslashes"]):
        load(Data(source=str(write_zip(tmp_path / "pets.zip", files))), seed=0, cache_dir=str(tmp_path / "cache"))
