"""Sets of torchvision, TensorFlow Datasets and Hugging Face by name: read once by the package, then from the cache."""

import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from common.data import sources
from common.data.dataset import DataRefused
from common.data.sources import public_set_process, public_sets
from common.errors import UserError
from common.spec import Data
from tests.support import processes
from tests.support.refusals import check, refused

NUMBERS = np.random.default_rng(0)
Written = dict[str, Any]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("torchvision:MNIST", ("torchvision", "MNIST", False, {})),
        ("tfds:cats_vs_dogs:4.0.1,root=/d", ("tfds", "cats_vs_dogs:4.0.1", False, {"root": "/d"})),
        ("huggingface:owner/name,label=kind,download=yes", ("huggingface", "owner/name", True, {"label": "kind"})),
    ],
)
def test_a_name_is_read_with_its_settings(source: str, expected: tuple[Any, ...]) -> None:
    found = public_sets.parse(source)
    assert (found.package, found.name, found.download, found.settings) == expected and public_sets.is_published(source)


def test_a_folder_of_the_user_is_no_published_set(tmp_path: Path) -> None:
    assert not public_sets.is_published(f"huggingface:{tmp_path}") and not public_sets.is_published("leaves:seed=1")
    assert public_sets.parse(f"huggingface:{tmp_path}").title == f"huggingface:{tmp_path.name}"


@pytest.mark.parametrize(
    ("source", "received", "names"),
    [
        ("torchvision:", "''", ["a name is missing", "torchvision:NAME"]),
        ("tfds:../../no_such_folder", "no_such_folder'", ["no such folder"]),
        ("tfds:a b", "'a b'", ["a name is missing"]),
        ("torchvision:MNIST,root", "'root'", ["name=value"]),
        ("torchvision:MNIST,root=a,root=b", "'root=b'", ["once"]),
        ("torchvision:MNIST,download=true", "'true'", ["yes or no", "Use download=yes"]),
        ("huggingface:~nobody-here/x", None, ["no such folder"]),
    ],
)
def test_a_source_of_another_form_is_refused(source: str, received: str | None, names: list[str], tmp_path: Path) -> None:
    with refused(DataRefused, received=received, names=[f"data.source {source}", *names]):
        sources.load(Data(source=source), seed=0, cache_dir=str(tmp_path))


def idx(folder: Path, name: str, array: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    (folder / name).write_bytes(header + array.astype(np.uint8).tobytes())


def test_a_set_of_torchvision_is_read_once_and_then_needs_no_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(public_set_process.PYTHON, raising=False)
    raw = tmp_path / "root" / "MNIST" / "raw"
    written = {kind: (NUMBERS.integers(0, 256, (count, 28, 28)), np.arange(count) % 10) for kind, count in KINDS.items()}
    for kind, (images, labels) in written.items():
        idx(raw, f"{kind}-images-idx3-ubyte", images)
        idx(raw, f"{kind}-labels-idx1-ubyte", labels)
    data = Data(source=f"torchvision:MNIST,root={tmp_path / 'root'}")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))  # which keeps what TMPDIR was at first
    found = sources.load(data, seed=0, cache_dir=str(tmp_path / "cache"))
    assert list((tmp_path / "temporary").iterdir()) == [], "a package left something"
    assert (found.name, found.image_size, found.class_names[3]) == ("torchvision:MNIST", 28, "3 - three")
    assert [len(split) for split in (found.train, found.validation, found.test)] == [50, 10, 20]
    images, labels = written["t10k"]
    order = np.argsort(labels, kind="stable")
    assert np.array_equal(np.asarray(found.test.images)[..., 0], images[order])
    assert np.array_equal(found.test.labels, labels[order])
    (record,) = (tmp_path / "cache" / public_sets.KIND).glob("*/entry.json")
    facts = json.loads(record.read_text())["record"]
    assert facts["facts"]["sizes"] == {"train": 60, "test": 20} and facts["facts"]["package"].startswith("torchvision ")
    assert len(facts["data_sha256"]) == 64
    assert "reading torchvision:MNIST once" in capfd.readouterr().err
    monkeypatch.setenv(public_set_process.PYTHON, str(tmp_path / "none"))
    assert sources.load(data, seed=0, cache_dir=str(tmp_path / "cache")).content_hash == found.content_hash


KINDS = {"train": 60, "t10k": 20}


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Written]:
    """Writes a set of a made-up package, in this process. Returns paths and contents of the archive, and its facts."""

    def convert(package: str, module: Any, name: str = "Made", **settings: str) -> Written:
        for imported in (package, f"{package}.made"):
            monkeypatch.setitem(sys.modules, imported, module)
        download = settings.pop("download", "no") == "yes"
        out = tmp_path / "out"
        path = settings.pop("path", None)
        wanted = public_set_process.SetRequest(
            f"{package}:{name}", package, f"{package}.made", name, path, download, settings, str(out)
        )
        facts = public_set_process.run(wanted)
        with tarfile.open(out) as archive:
            files = {each.name: archive.extractfile(each).read() for each in archive}  # pyright: ignore[reportOptionalMemberAccess]
        return {"files": files, **facts}

    return convert


GREY = Image.fromarray(np.full((4, 4), 7, np.uint8))


class Divided:
    """As torchvision's sets with `train`."""

    classes = ("a/b", ("Felis", "cat"), ".x")

    def __init__(self, root: str, train: bool = True, download: bool = False) -> None:
        self.examples: Sequence[Any] = [(GREY, np.int64(number % 3)) for number in range(6 if train else 3)]
        if root != "/there" and not download:
            raise RuntimeError("Dataset not found. You can use download=True to download it")

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, number: int) -> Any:
        return self.examples[number]


class BySplit(Divided):
    """As those with `split`, through `**kwargs`."""

    def __init__(self, kind: str = "x", split: str = "train", **kwargs: Any) -> None:
        if split not in ("trainval", "test"):
            raise ValueError(f"Unknown value '{split}' for argument split.")
        super().__init__(**kwargs)


class Whole(Divided):
    """As those that are not divided."""

    classes = None

    def __init__(self, size: int = 4) -> None:
        super().__init__("/there")
        self.examples = [(np.zeros((4, 4, 3), np.uint8), number % 2) for number in range(size)]


class Boxes(Divided):
    def __getitem__(self, number: int) -> Any:
        return GREY, {"boxes": [[0, 0, 1, 1]]}


class Videos(Divided):
    def __getitem__(self, number: int) -> Any:
        return np.zeros((5, 4, 4, 3), np.uint8), 0, "sound"


class Unlabelled(Divided):
    def __getitem__(self, number: int) -> Any:
        return GREY, -1


MADE = SimpleNamespace(
    __all__=["Made", "BySplit", "Whole", "Boxes", "Videos", "Unlabelled"], __version__="9", function=len,
    Made=Divided, BySplit=BySplit, Whole=Whole, Boxes=Boxes, Videos=Videos, Unlabelled=Unlabelled,
)  # fmt: skip


def test_classes_become_folders_that_may_be_ones(convert: Callable[..., Written]) -> None:
    found = convert("torchvision", MADE, root="/there")
    assert found["sizes"] == {"train": 6, "test": 3} and found["package"] == "torchvision 9"
    assert sorted({str(Path(name).parent) for name in found["files"]}) == sorted(
        f"{split}/{name}" for split in ("train", "test") for name in ("a_b", "Felis, cat", "_.x")
    )
    (content, *_) = found["files"].values()
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(content))), np.full((4, 4), 7))


def test_splits_are_found_by_the_words_that_the_set_takes(convert: Callable[..., Written]) -> None:
    assert convert("torchvision", MADE, "BySplit", root="/there", kind="y")["sizes"] == {"train": 6, "test": 6}
    whole = convert("torchvision", MADE, "Whole", size="8", root="/elsewhere")
    assert whole["sizes"] == {"all": 8} and {Path(name).parts[0] for name in whole["files"]} == {"0000", "0001"}


def test_nothing_is_downloaded_unless_it_was_said(convert: Callable[..., Written]) -> None:
    with pytest.raises(public_set_process.Refused) as caught:
        convert("torchvision", MADE, root="/nowhere")
    check(UserError(str(caught.value)), received="RuntimeError: Dataset not found", names=["download=yes"])
    assert convert("torchvision", MADE, root="/nowhere", download="yes")["sizes"] == {"train": 6, "test": 3}


@pytest.mark.parametrize(
    ("name", "settings", "received", "fix", "problem"),
    [
        ("made", {}, "'made'", "Did you mean Made?", "no such set"),
        ("function", {}, "'function'", "Use one of Made", "no such set"),
        ("Made", {"rot": "x"}, "rot", "Use download, root, train", "no such setting"),
        ("Boxes", {}, "a label of type dict", "Use a set for classification", "no single class"),
        ("Videos", {}, "ndarray of uint8 [5, 4, 4, 3]", "Use a set of pictures", "images of 8 bits"),
        ("Unlabelled", {}, "none", "Use another set", "no labelled images"),
    ],
)
def test_what_is_no_classification_of_images_is_refused(
    convert: Callable[..., Written], name: str, settings: dict[str, str], received: str, fix: str, problem: str
) -> None:
    with pytest.raises(public_set_process.Refused) as caught:
        convert("torchvision", MADE, name, root="/there", **settings)
    text = str(caught.value)
    check(UserError(text), received=received, fix=fix, names=[f"data.source torchvision:{name}", problem])
    assert not text.endswith("?.")


@pytest.mark.parametrize(("version", "asked"), [("3.6.0", False), ("4.0.0", True), ("10.1.0.dev0", True)])
def test_a_package_that_may_run_code_of_a_set_is_not_asked_for_it(
    convert: Callable[..., Written], version: str, asked: bool
) -> None:
    def load_dataset(*arguments: Any, **settings: Any) -> None:
        raise InterruptedError("asked")

    package = SimpleNamespace(__version__=version, load_dataset=load_dataset, DatasetDict=dict)
    with pytest.raises(public_set_process.Refused) as caught:
        convert("huggingface", package)
    names = ["InterruptedError: asked"] if asked else [f"datasets {version}", "datasets 4 or later"]
    check(UserError(str(caught.value)), names=names)


def test_a_missing_package_is_named_with_the_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(public_set_process.PYTHON, raising=False)
    monkeypatch.setitem(public_sets.PACKAGES, "tfds", "no_such_package.sets")
    fix = ["Install no_such_package", public_set_process.PYTHON]
    with refused(DataRefused, received=sys.executable, fix=fix, names=["No module named 'no_such_package'"]):
        sources.load(Data(source="tfds:mnist"), seed=0, cache_dir=str(tmp_path))


BUILT_BY_TFDS = """
import sys, numpy as np, tensorflow_datasets as tfds

class Squares(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")
    BOXES = False

    def _info(self):
        features = {"image": tfds.features.Image(shape=(8, 8, 1)), "number": tfds.features.ClassLabel(names=["red", "green"])}
        features |= {"boxes": tfds.features.Sequence(tfds.features.BBoxFeature())} if self.BOXES else {}
        features |= {"other": tfds.features.ClassLabel(names=["x", "y"])} if self.BOXES else {}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, downloads):
        return {split: self._generate_examples(split) for split in ("train", "test", "extra")}

    def _generate_examples(self, split):
        for number in range(12):
            more = {"boxes": [tfds.features.BBox(0.0, 0.0, 1.0, 1.0)], "other": 0} if self.BOXES else {}
            image = np.full((8, 8, 1), number + 100 * (split == "test"), np.uint8)
            yield number, {"image": image, "number": number % 2, **more}

class Boxes(Squares):
    BOXES = True

for kind in (Squares, Boxes):
    kind(data_dir=sys.argv[1]).download_and_prepare()
"""
BUILT_BY_HUGGING_FACE = """
import sys, numpy as np, datasets
from PIL import Image

def split(test):
    images = [Image.fromarray(np.full((8, 8), number + 100 * test, np.uint8)) for number in range(12)]
    columns = {"picture": images, "kind": [number % 2 for number in range(12)]}
    kinds = {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["red", "green"])}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))

datasets.DatasetDict({"train": split(0), "test": split(1)}).save_to_disk(sys.argv[1] + "/divided")
split(0).save_to_disk(sys.argv[1] + "/whole")
split(0).remove_columns("kind").save_to_disk(sys.argv[1] + "/bare")
"""


@pytest.fixture
def other_python() -> str:
    """An interpreter that has both packages, and reads the sets."""
    python = os.environ.get(public_set_process.PYTHON)
    if not python:
        pytest.skip(f"{public_set_process.PYTHON} names no interpreter with tensorflow_datasets and datasets")
    return python


@pytest.mark.slow
def test_a_set_that_tfds_has_prepared_is_read_by_its_folder(other_python: str, tmp_path: Path) -> None:
    processes.run([other_python, "-c", BUILT_BY_TFDS, tmp_path / "sets"]).succeeded()
    found = sources.load(Data(source=f"tfds:{tmp_path}/sets/squares/1.0.0"), seed=0, cache_dir=str(tmp_path / "cache"))
    assert found.class_names == ("green", "red") and len(found.test) == 12
    _check_pixels_and_classes(found.test)
    _refused(f"tfds:{tmp_path}/sets/boxes/1.0.0", tmp_path, "one column of type ClassLabel as label")
    named = sources.load(
        Data(source=f"tfds:{tmp_path}/sets/boxes/1.0.0,label=number"), seed=0, cache_dir=str(tmp_path / "cache")
    )
    assert named.content_hash == found.content_hash
    _refused("tfds:mnits", tmp_path, "tensorflow_datasets", "'mnits'. Did you mean")
    _refused(f"tfds:mnist,root={tmp_path}", tmp_path, "download=yes")


@pytest.mark.slow
def test_a_set_that_hugging_face_has_saved_is_read_by_its_folder(other_python: str, tmp_path: Path) -> None:
    processes.run([other_python, "-c", BUILT_BY_HUGGING_FACE, tmp_path]).succeeded()
    found = sources.load(Data(source=f"huggingface:{tmp_path}/divided"), seed=0, cache_dir=str(tmp_path / "cache"))
    assert found.class_names == ("green", "red") and len(found.test) == 12 and "test" not in " ".join(found.notes)
    _check_pixels_and_classes(found.test)
    whole = sources.load(Data(source=f"huggingface:{tmp_path}/whole"), seed=0, cache_dir=str(tmp_path / "cache"))
    assert sum(map(len, (whole.train, whole.validation, whole.test))) == 12
    _refused(f"huggingface:{tmp_path}/bare", tmp_path, "as label", "picture (Image)", "Use a set for classification")
    _refused("huggingface:nobody/nothing", tmp_path, "download=yes")


def _check_pixels_and_classes(split: sources.DatasetSplit) -> None:
    """Image n of test is grey of value 100 + n. Even ones are red (the second class by name)."""
    shown = {int(image[0, 0, 0]): int(label) for image, label in zip(split.images, split.labels, strict=True)}
    assert shown == {100 + number: 1 - number % 2 for number in range(12)}


def _refused(source: str, tmp_path: Path, *names: str) -> None:
    with refused(DataRefused, names=names):
        sources.load(Data(source=source), seed=0, cache_dir=str(tmp_path / "cache"))
