"""Archives from anywhere: what they may not hold."""

import gzip
import io
import stat
import tarfile
import zipfile
import zlib

import pytest

from common.datasets import DataRefused, archives, load, trees
from common.spec import Data
from tests.common.made_up_data import image, tree, write_tar, write_zip

FILES = tree("cat", "dog")


@pytest.fixture
def refusal(tmp_path):
    def receive(path) -> str:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(DataRefused) as caught:
            load(Data(source=str(path)), seed=0, cache_dir=str(tmp_path / "cache"))
        left = {path for path in tmp_path.rglob("*") if path not in before and path.suffix != ".lock"}
        assert left <= {tmp_path / "cache", tmp_path / "cache" / "scanned"}, "nothing is extracted"
        return str(caught.value)

    return receive


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/etc/cat.png", "leads out of it"),
        ("../cat.png", "leads out of it"),
        ("cat/../../dog.png", "leads out of it"),
        ("C:\\cat.png", "leads out of it"),
        ("\\\\host\\cat.png", "leads out of it"),
        (".hidden/../../cat.png", "leads out of it"),
    ],
)
@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_a_path_that_leads_out_of_the_archive_is_refused(write, name, words, tmp_path, refusal):
    message = refusal(write(tmp_path / "pets", {**FILES, name: image(name)}))
    assert words in message and repr(name) in message


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.SYMTYPE, "holds a link"),
        (tarfile.LNKTYPE, "holds a link"),
        (tarfile.CHRTYPE, "what is no plain file"),
        (tarfile.BLKTYPE, "what is no plain file"),
        (tarfile.FIFOTYPE, "what is no plain file"),
    ],
)
def test_links_devices_and_pipes_in_a_tar_are_refused_hidden_ones_too(kind, words, tmp_path, refusal):
    for name in ("cat/evil.png", ".evil"):
        message = refusal(write_tar(tmp_path / "pets.tar", FILES, member(name, kind, "/etc/passwd")))
        assert words in message and repr(name) in message


@pytest.mark.parametrize(("kind", "words"), [(stat.S_IFLNK, "holds a link"), (stat.S_IFCHR, "what is no plain file")])
def test_links_and_devices_in_a_zip_are_refused(kind, words, tmp_path, refusal):
    path = write_zip(tmp_path / "pets.zip", FILES)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("cat/evil.png")
        info.external_attr = (kind | 0o644) << 16
        archive.writestr(info, "/etc/passwd")
    assert words in refusal(path)


def test_a_path_that_comes_twice_is_refused(tmp_path, refusal):
    path = write_tar(tmp_path / "pets.tar", FILES | {"./cat/0.png": image("another")})
    assert "two files of one path" in refusal(path)


def test_an_encrypted_file_is_refused(tmp_path, refusal):
    path = write_zip(tmp_path / "pets.zip", FILES)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    assert "an encrypted file" in refusal(path)


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_a_file_of_absurd_size_is_refused_before_it_is_read(write, tmp_path, refusal, monkeypatch):
    monkeypatch.setattr(trees, "MAX_FILE_BYTES", 10_000)
    message = refusal(write(tmp_path / "pets", FILES | {"cat/bomb.png": bytes(10_001)}))
    assert "'cat/bomb.png'" in message and "Received: 10,001 bytes" in message


def test_a_tar_that_claims_a_size_it_does_not_have_is_refused(tmp_path, refusal):
    bomb = member("cat/bomb.png")
    bomb.size = 2**40
    path = tmp_path / "pets.tar"
    path.write_bytes(bomb.tobuf() + bytes(2048))
    assert "Received: 1,099,511,627,776 bytes" in refusal(path)


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_an_archive_that_unpacks_to_too_much_is_refused(write, tmp_path, refusal, monkeypatch):
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED_BYTES", 50_000)
    monkeypatch.setattr(archives, "ALLOWED_RATIO", 1)
    bombs = {f"cat/bomb{number}.png": bytes(9_000) for number in range(20)}
    path = write(tmp_path / "pets", FILES | bombs)
    if write is write_tar:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert "unpacks to too much" in refusal(path)


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_too_many_files_are_refused(write, tmp_path, refusal, monkeypatch):
    monkeypatch.setattr(trees, "MAX_FILES", 7)
    assert "too many files" in refusal(write(tmp_path / "pets", FILES))


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.REGTYPE])
def test_an_archive_without_end_is_refused_after_so_many_members(kind, tmp_path, refusal, monkeypatch):
    monkeypatch.setattr(trees, "MAX_FILES", 2_000)
    path = tmp_path / "pets.tar.gz"
    path.write_bytes(gzip.compress(member(".hidden/again", kind).tobuf() * 50_000))
    assert "too many files" in refusal(path)


def test_an_extended_header_of_absurd_size_is_refused_before_it_is_read(tmp_path, refusal, monkeypatch):
    monkeypatch.setattr(trees, "MAX_FILE_BYTES", 10_000)
    header = member("long", tarfile.GNUTYPE_LONGNAME)
    header.size = 2**30
    path = tmp_path / "pets.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf() + bytes(2**20)))
    assert "a header in" in refusal(path)


def test_an_image_of_absurd_dimensions_is_refused_by_its_header(tmp_path, refusal):
    content = bytearray(image("bomb"))
    content[16:24] = (8000).to_bytes(4, "big") + (8000).to_bytes(4, "big")  # width and height of a PNG
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    path = write_tar(tmp_path / "pets.tar", FILES | {"cat/bomb.png": bytes(content)})
    with pytest.raises(DataRefused) as caught:
        load(Data(source=str(path)), seed=0, cache_dir=str(tmp_path / "cache"))
    message = str(caught.value)
    assert "'cat/bomb.png': more than 50 megapixels (8000 x 8000 pixels)" in message


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
@pytest.mark.parametrize("part", [0.1, 0.5])
def test_a_torn_tar_is_refused(mode, part, tmp_path, refusal):
    path = write_tar(tmp_path / "pets.tar", FILES, mode=mode)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    assert "cannot be read as an archive" in refusal(path)


def test_a_tar_that_ends_between_two_members_is_refused(tmp_path, refusal):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        end = archive.offset
    path = tmp_path / "pets.tar"
    path.write_bytes(buffer.getvalue()[:end])
    assert "the end of the archive is missing" in refusal(path)


def test_a_tar_with_a_damaged_header_is_refused(tmp_path, refusal):
    path = write_tar(tmp_path / "pets.tar", FILES)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"dog/2.png", b"dog/X.png", 1))
    assert "the end of the archive is missing" in refusal(path)


def test_a_torn_or_damaged_zip_is_refused(tmp_path, refusal):
    path = write_zip(tmp_path / "pets.zip", FILES)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "cannot be read as an archive" in refusal(path)
    place = content.index(b"cat/2.png") + 40
    path.write_bytes(content[:place] + bytes(8) + content[place + 8 :])
    assert "cannot be read as an archive" in refusal(path)


def test_a_file_name_that_is_no_unicode_is_refused(tmp_path, refusal):
    assert "not UTF-8" in refusal(write_tar(tmp_path / "pets.tar", {**FILES, "cat/\udcff.png": image("x")}))
