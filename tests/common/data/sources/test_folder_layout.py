"""Names of splits, folders without a place, hidden images, doubtful classes, formats that are not read: anywhere alike."""

import pytest

from common.data.decoding import decode, other_formats
from common.data.notes import kind
from common.data.sources import DataRefused, describe, load_manifest
from common.spec import Data
from tests.common.made_up_data import image, tree, write_folder, write_tar, write_zip
from tests.support.refusals import refused

PACKS = pytest.mark.parametrize("pack", [write_folder, write_tar, write_zip])


@pytest.fixture
def cache(tmp_path) -> str:
    return str(tmp_path / "cache")


def described(path, cache, **fields):
    return describe(Data(source=str(path), **fields), seed=0, cache_dir=cache)


def refusal(path, cache, *names, received=None, fix=(), **fields) -> str:
    """The text of the refusal, which has these parts."""
    with refused(DataRefused, received=received, fix=fix, names=names) as caught:
        described(path, cache, **fields)
    return str(caught.error)


LONGER = {
    "participles": ("Training", None, "Testing"),
    "sets": ("training_set", "validation_set", "test_set"),
    "with a hyphen, a space or nothing": ("train-set", "val set", "TESTSET"),
    "data and images": ("train_data", "valid data", "test-images"),
    "beside short ones": ("train", "val", "testing"),
}


@PACKS
@pytest.mark.parametrize("case", LONGER)
def test_longer_names_of_splits_are_those_splits(case, pack, tmp_path, cache):
    short = {"train": "train", "validation": "val", "test": "test"}
    named = dict(zip(short, LONGER[case], strict=True))
    files = {split: tree(*(f"{short[split]}/{kind}" for kind in ("cat", "dog"))) for split in short if named[split]}
    plain = {name: content for part in files.values() for name, content in part.items()}
    longer = {
        f"brains/{named[split]}{name.removeprefix(short[split])}": content
        for split, part in files.items()
        for name, content in part.items()
    }
    found = described(pack(tmp_path / "longer", longer), cache)
    assert (found.class_names, found.content_hash) == (
        ("cat", "dog"),
        described(write_folder(tmp_path / "plain", plain), cache).content_hash,
    )


def test_a_longer_name_alone_is_a_folder_around_the_tree_as_it_has_always_been(tmp_path, cache):
    wrapped = described(write_folder(tmp_path / "wrapped", tree("Training/cat", "Training/dog", images=20)), cache)
    assert wrapped.sizes == {"train": 28, "validation": 8, "test": 4} and "70/20/10" in wrapped.notes[0]


def test_one_split_under_a_short_and_a_longer_name_is_refused(tmp_path, cache):
    path = write_folder(tmp_path / "pets", tree("train/cat", "train/dog", "test/cat", "testing/dog"))
    refusal(path, cache, "one split under two names", received="test, testing, train")


DOUBLED = tree("xray/train/ill", "xray/train/well", "xray/test/ill", "xray/test/well")
MISPLACED = {
    "a doubled tree": (
        DOUBLED | {f"xray/{name}": content for name, content in DOUBLED.items()},
        ["'xray/xray' with 16 files, e.g. 'xray/xray/test/ill/0.png'"],
    ),
    "a tree in a class-wise tree": (
        tree("pets/cat", "pets/dog", "pets/pets/cat", "pets/pets/dog"),
        ["'pets/pets' with 8 files, e.g. 'pets/pets/cat/0.png'"],
    ),
    "splits inside of splits": (
        tree("train/train/cat", "train/train/dog", "test/test/cat", "test/test/dog"),
        ["'test/test' with 8 files, e.g. 'test/test/cat/0.png'", "'train/train' with 8 files, e.g. 'train/train/cat/0.png'"],
    ),
    "splits of other words inside of splits": (
        tree("train/Training/cat", "train/Training/dog", "test/Testing/cat", "test/Testing/dog"),
        ["'test/Testing' with 8 files, e.g. 'test/Testing/cat/0.png'", "'train/Training' with 8 files"],
    ),
    "classes inside of classes": (tree("cat/cat", "dog/dog"), ["'cat/cat' with 4 files", "'dog/dog' with 4 files"]),
    "a folder beside the splits": (
        tree("train/cat", "train/dog", "test/cat", "test/dog", "unlabeled/all") | {"train/notes.txt": b"x"},
        ["'unlabeled' with 4 files, e.g. 'unlabeled/all/0.png'"],
    ),
    "more loose images of a split than images of classes": (
        tree("train/cat", "train/dog") | tree("test", images=30),
        ["'test' with 30 files, e.g. 'test/0.png'"],
    ),
    "loose images of every split": (
        tree("Training", "Testing"),
        ["'Testing' with 4 files, e.g. 'Testing/0.png'", "'Training' with 4 files, e.g. 'Training/0.png'"],
    ),
    "splits with names of their own": (
        tree("seg_train/sea", "seg_train/wood", "seg_test/sea", "seg_test/wood"),
        ["'seg_test' with 8 files, e.g. 'seg_test/sea/0.png'", "'seg_train' with 8 files, e.g. 'seg_train/sea/0.png'"],
    ),
    "folders in a class": (
        tree("cat", "dog") | tree("dog/small", images=1) | tree("dog/x/y", images=5),
        ["'dog/small' with 'dog/small/0.png'", "'dog/x' with 5 files, e.g. 'dog/x/y/0.png'"],
    ),
}


@PACKS
@pytest.mark.parametrize("case", MISPLACED)
def test_images_without_a_place_are_named_by_their_outermost_folder(case, pack, tmp_path, cache):
    files, named = MISPLACED[case]
    message = refusal(pack(tmp_path / "data", files), cache, "outside of the layout", *named)
    assert message.count(".png'") <= len({name.rpartition("/")[0] for name in files})
    assert ("inside a folder of the same kind" in message) == (
        case.startswith(("a doubled", "a tree", "splits inside", "splits of other", "classes inside"))
    )


@PACKS
def test_the_inner_folder_of_a_doubled_tree_alone_is_data(pack, tmp_path, cache):
    files = {f"xray/{name}": content for name, content in DOUBLED.items()}
    assert described(pack(tmp_path / "data", files), cache).class_names == ("ill", "well")


def test_a_few_loose_images_of_a_split_are_one_line_of_the_refusal(tmp_path, cache):
    files = tree("train/cat", "train/dog", images=20) | tree("test", images=5) | {"0.png": image("0")}
    folder = write_folder(tmp_path / "pets", files)
    refusal(folder, cache, "6 of 46 files", "'test': 5 images outside of the layout", "'0.png': outside of the layout")
    assert "6 of 46 files: 6 outside of the layout" in described(folder, cache, on_bad="skip").notes[0]


def test_the_folder_of_one_class_is_told_to_use_the_folder_above_and_one_image_is_named(tmp_path, cache):
    write_folder(tmp_path / "pets", tree("cat", "dog", "train/bird", images=30))
    for given, above in (("cat", "pets"), ("train/bird", "pets")):
        received = "30 files, e.g. '0.png' right in it"
        refusal(tmp_path / "pets" / given, cache, "no class folders", received=received, fix=["one class", tmp_path / above])


@pytest.mark.parametrize("pack", [write_tar, write_zip])
def test_the_archive_of_one_class_is_told_to_pack_the_folder_above(pack, tmp_path, cache):
    images = {f"{number}.png": image(str(number)) for number in range(30)}
    received = "30 files, e.g. '0.png' right in it"
    refusal(pack(tmp_path / "cat", images), cache, received=received, fix=["one class", "pack the folder above"])
    refusal(pack(tmp_path / "folder", tree("cat")), cache, received="'cat' alone", fix="all classes")


@PACKS
@pytest.mark.parametrize("name", ["test", "Testing", "valid", "train", "test_set"])
def test_a_class_named_like_a_split_is_a_caution_and_stays_a_class(name, pack, tmp_path, cache):
    found = described(pack(tmp_path / "data", tree("cat", "dog", name)), cache)
    assert set(found.class_names) == {"cat", "dog", name}
    words = ("as a class", f"named like a split: {name!r}", "move the folder out")
    assert kind(found.notes[0]) == "data" and all(part in found.notes[0] for part in words)


def test_a_class_that_has_the_name_of_a_split_in_every_split_is_no_caution(tmp_path, cache):
    folders = [f"{split}/{kind}" for split in ("train", "test") for kind in ("bus", "train")]
    found = described(write_folder(tmp_path / "data", tree(*folders)), cache)
    assert found.class_names == ("bus", "train") and "data" not in map(kind, found.notes)


@PACKS
def test_classes_that_look_alike_are_a_caution(pack, tmp_path, cache):
    files = tree("dog", "Schl\u00fcssel", "Schlu\u0308ssel", "a b", "a  b", "x", "x\u200b")
    notes = described(pack(tmp_path / "data", files), cache).notes
    assert kind(notes[0]) == "data" and "Unicode" in notes[0]
    pairs = (r"'Schlu\u0308ssel' and 'Schl\xfcssel'", "'a  b' and 'a b'", r"'x' and 'x\u200b'")
    assert all(pair in notes[0] for pair in pairs) and "'dog'" not in notes[0]


HIDDEN = "left out images whose file or folder has a name that begins with a point: "
NO_IMAGES = {
    ".DS_Store": b"x",
    ".git/objects/ab": b"x",
    "cat/._0.png": b"x",
    "__MACOSX/cat/._0.png": b"x",
    ".a/b/c/0.png": b"x",
    "cat/Thumbs.db": b"x",
    "desktop.ini": b"x",
}


@PACKS
def test_images_that_a_point_hides_are_named_and_other_hidden_files_are_not(pack, tmp_path, cache):
    plain = described(write_folder(tmp_path / "plain", tree("cat", "dog")), cache)
    seen = tree("cat", "dog") | NO_IMAGES
    of_seen = described(pack(tmp_path / "seen", seen), cache)
    assert (of_seen.notes, of_seen.content_hash) == (plain.notes, plain.content_hash)
    hidden = {**tree(".bird", "cat/.ipynb_checkpoints", ".old/cow"), "dog/.9.png": image("9"), ".notes/a.txt": b"x"}
    path = pack(tmp_path / "data", seen | hidden)
    found = described(path, cache)
    assert found.content_hash == plain.content_hash
    assert found.notes == (f"{HIDDEN}'.bird', '.old', 'cat/.ipynb_checkpoints', 'dog/.9.png'", *plain.notes)
    manifest = load_manifest(Data(source=str(path)), cache_dir=cache)
    assert manifest is not None and "hidden" not in manifest.columns()


@PACKS
def test_a_tree_whose_images_are_all_hidden_says_so(pack, tmp_path, cache):
    refusal(pack(tmp_path / "data", tree(".cat", ".dog")), cache, "no images", "hidden", "'.cat', '.dog'", "Rename")


def test_a_hidden_class_that_comes_or_goes_later_is_seen_though_no_visible_file_changed(tmp_path, cache):
    folder = write_folder(tmp_path / "data", tree("cat", "dog"))
    before = described(folder, cache)
    write_folder(folder, tree(".bird"))
    assert described(folder, cache).notes == (f"{HIDDEN}'.bird'", *before.notes)
    (folder / ".bird").rename(tmp_path / "bird")
    assert described(folder, cache).notes == before.notes


@pytest.mark.skipif("sys.platform != 'linux'", reason="other systems refuse such names")
def test_a_hidden_name_that_is_no_unicode_is_named_too(tmp_path, cache):
    folder = write_folder(tmp_path / "data", tree("cat", "dog") | {".b\udcffrd/0.png": image("0")})
    assert described(folder, cache).notes[0] == HIDDEN + r"'.b\\udcffrd'"


UNREAD = {
    "HEIC is not read: convert it to JPEG": ("x.heic", "x.HEIC"),
    "HEIF is not read: convert it to JPEG": ("x.heif",),
    "AVIF is not read: convert it to JPEG": ("x.avif",),
    "JXL is not read: convert it to JPEG": ("x.jxl",),
    "CR2 is not read: convert it to JPEG": ("x.cr2", "x.CR2"),
    "NEF is not read: convert it to JPEG": ("x.nef",),
    "DNG is not read: convert it to JPEG": ("x.DNG",),
    "SVG is not read: convert it to PNG": ("x.svg",),
    "PSD is not read: convert it to PNG": ("x.psd",),
    "DCM is not read: convert it to PNG": ("x.dcm",),
}


@pytest.mark.parametrize("told", UNREAD)
def test_a_well_known_format_that_is_not_read_is_named_with_its_cure(told, tmp_path, cache):
    bad = {f"dog/{name}": b"whatever" for name in UNREAD[told]}
    path = write_zip(tmp_path / "data.zip", tree("cat", "dog") | bad)
    refusal(path, cache, *(f"'{name}': {decode.UNREAD} ({told})" for name in bad))
    assert described(path, cache, on_bad="skip").notes[0].endswith(f": {len(bad)} {decode.UNREAD}")


def test_no_format_that_is_read_is_told_to_be_converted():
    assert not any(map(other_formats.by_suffix, (*decode.SUFFIXES, "", ".txt", ".part")))


@PACKS
def test_a_tree_of_images_that_are_all_unread_names_their_formats_once(pack, tmp_path, cache):
    files = {"README.txt": b"x"}
    files |= {f"{kind}/{number}.{'heic' if kind == 'cat' else 'NEF'}": b"x" for kind in ("cat", "dog") for number in range(30)}
    advice = ["HEIC is not read: convert it to JPEG", "NEF is not read: convert it to JPEG"]
    message = refusal(pack(tmp_path / "data", files), cache, received="60 files, e.g. 'cat/0.heic'", fix=advice)
    assert message.count("heic'") == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC is not read: convert it to JPEG"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0", "HEIF is not read: convert it to JPEG"),
        (b"\0\0\0\x1cftypavif\0\0\0\0", "AVIF is not read: convert it to JPEG"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "JXL is not read: convert it to JPEG"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "JP2 is not read: convert it to JPEG"),
        (b"8BPS\0\x01", "PSD is not read: convert it to PNG"),
        (b"\0\0\0\x18ftypisom\0\0\0\0", None),
    ],
)
def test_a_file_whose_suffix_hides_such_a_format_is_judged_by_its_content(content, told, tmp_path, cache):
    path = write_folder(tmp_path / "data", tree("cat", "dog") | {"dog/phone.jpg": content})
    problem = f"{decode.UNREAD} ({told})" if told else decode.NO_IMAGE
    assert f"'dog/phone.jpg': {problem}\n" in refusal(path, cache)
