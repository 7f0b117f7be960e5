"""Synthetic leaves: what their names mean, that equal seeds give equal bytes, and that they can be learnt."""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from common.data.sources import DataRefused, leaf_drawing, load_files, synthetic_leaves
from common.data.sources.synthetic_leaves import Leaves
from common.spec import Data
from tests.support import processes
from tests.support.refusals import refused


def write(folder: Path, *, classes: int, images_per_class: int, size_px: int, seed: int) -> None:
    synthetic_leaves.make(folder, Leaves(classes=classes, images=classes * images_per_class, size=size_px, seed=seed))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("leaves", Leaves()),
        ("leaves:classes=38", Leaves(classes=38)),
        ("leaves:seed=1,size=32,images=20000,classes=38", Leaves(classes=38, images=20000, size=32, seed=1)),
        ("leaves:classes=010", Leaves()),
    ],
)
def test_a_source_is_read_in_any_order_with_defaults_for_the_rest(source, wanted):
    assert synthetic_leaves.is_source(source) and synthetic_leaves.parse(source) == wanted
    assert synthetic_leaves.parse(str(wanted)) == wanted


def test_the_shortest_source_names_only_what_differs_from_the_defaults():
    assert str(Leaves()) == "leaves"
    assert str(Leaves(images=50, seed=3)) == "leaves:images=50,seed=3"


@pytest.mark.parametrize("source", ["leaf", "leaves.tar", "./leaves", "leaves/train", "Leaves", "leaves2"])
def test_another_name_is_no_source_of_leaves(source):
    assert not synthetic_leaves.is_source(source)


@pytest.mark.parametrize(
    ("settings", "problem", "received", "fix"),
    [
        ("", "no such setting", "''", "classes"),
        ("class=3", "no such setting", "'class=3'", "did you mean classes?"),
        ("classes=3,", "no such setting", "''", "classes"),
        ("classes", "classes is no whole number", "'classes'", "classes=10"),
        *(
            (f"{name}={value}", f"{name} is no whole number", repr(f"{name}={value}"), f"{name}={default}")
            for name, value, default in (
                *(("classes", value, 10) for value in ("", "2.5", "\u0663", " 3")),
                ("seed", "9" * 5000, 0),
            )
        ),
        ("classes=-3", "classes is out of range", -3, "2 to 1,000"),
        ("classes=1", "classes is out of range", 1, "2 to 1,000"),
        ("seed=" + "9" * 20, "seed is out of range", "9" * 20, ()),
        ("seed=9223372036854775808", "seed is out of range", 2**63, ()),
        ("size=4097", "size is out of range", 4097, "4,096"),
        ("images=5000001", "images is out of range", 5_000_001, "5,000,000"),
        ("classes=3,classes=4", "classes stands twice", "'leaves:classes=3,classes=4'", "once"),
        ("classes=10,images=29", "each class needs 3 images", 29, "images=30"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused_with_what_to_use(settings, problem, received, fix):
    with refused(DataRefused, received=received, fix=fix, names=["data.source leaves", problem]):
        synthetic_leaves.parse(f"leaves:{settings}")


def test_files_lie_by_split_and_class_and_are_jpeg_of_the_size_asked_for(tmp_path):
    write(tmp_path / "leaves", classes=3, images_per_class=20, size_px=24, seed=0)
    made = files(tmp_path / "leaves")
    counts = {split: sum(name.startswith(f"{split}/") for name in made) for split in ("train", "validation", "test")}
    assert counts == {"train": 42, "validation": 12, "test": 6}
    assert {Path(name).parent.name for name in made} == {"Alder___healthy", "Alder___Brown_spot", "Alder___Rust"}
    for name in made:
        with Image.open(tmp_path / "leaves" / name) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (24, 24))
    assert len(set(made.values())) == len(made)


def test_the_total_is_exact_even_if_it_does_not_divide_evenly(tmp_path):
    synthetic_leaves.make(tmp_path / "leaves", Leaves(classes=3, images=11, size=8))
    per_class = {}
    for name in files(tmp_path / "leaves"):
        per_class[Path(name).parent.name] = per_class.get(Path(name).parent.name, 0) + 1
    assert per_class == {"Alder___healthy": 4, "Alder___Brown_spot": 4, "Alder___Rust": 3}


def test_equal_seeds_give_equal_bytes_on_any_number_of_cores_and_others_do_not(tmp_path):
    for folder, seed in (("a", 5), ("b", 6)):
        write(tmp_path / folder, classes=5, images_per_class=9, size_px=48, seed=seed)
    script = (
        f"from pathlib import Path; from common.data.sources import synthetic_leaves; "
        f"synthetic_leaves.make(Path({str(tmp_path / 'c')!r}), synthetic_leaves.Leaves(classes=5, images=45, size=48, seed=5))"
    )
    one_core = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}]); {script}"]
    processes.run(one_core).succeeded()
    a, b, c = (files(tmp_path / folder) for folder in "abc")
    assert a == c
    assert a.keys() == b.keys() and all(a[name] != b[name] for name in a)


def test_class_names_are_all_different_and_every_plant_may_be_healthy():
    names = [leaf_drawing.class_name(label) for label in range(1000)]
    assert len(set(names)) == 1000
    assert sum(name.endswith("___healthy") for name in names) == 250
    assert all(len(name.split("___")) == 2 and all(name.split("___")) for name in names)


def test_leaves_can_be_learnt_from_colours_and_spots_but_not_perfectly(tmp_path):
    write(tmp_path / "leaves", classes=10, images_per_class=60, size_px=32, seed=0)

    def examples(split: str) -> tuple[np.ndarray, list[str]]:
        paths = sorted((tmp_path / "leaves" / split).rglob("*.jpg"))
        images = np.stack([np.asarray(Image.open(path), dtype=float) for path in paths])
        inside = images[:, 8:24, 8:24].reshape(len(images), -1, 3)
        redness = inside[..., 0] - inside[..., 1]
        columns = [inside.mean(axis=1), inside.std(axis=1), np.percentile(redness, [2, 50, 98], axis=1).T]
        return np.concatenate(columns, axis=1), [path.parent.name for path in paths]

    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(*examples("train"))
    assert 0.3 < classifier.score(*examples("validation")) < 0.95


def test_the_look_of_a_class_does_not_depend_on_the_seed(tmp_path):
    means = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        write(folder, classes=6, images_per_class=40, size_px=24, seed=seed)
        pixels = [[np.asarray(Image.open(file)) for file in place.iterdir()] for place in sorted((folder / "train").iterdir())]
        means.append(np.stack([np.mean(images, axis=(0, 1, 2)) for images in pixels]))
    within = np.abs(means[0] - means[1]).max()
    between = np.abs(means[0][:, np.newaxis] - means[1][np.newaxis])[~np.eye(6, dtype=bool)].max()
    assert within < between


@pytest.mark.parametrize("occupant", ["file", "folder with a file"])
def test_a_place_that_is_taken_is_refused_and_left_as_it_is(occupant, tmp_path):
    place = tmp_path / "place"
    if occupant == "file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "notes.txt").write_text("mine")
    with refused(DataRefused, received=place, names=["new or empty folder"]):
        write(place, classes=2, images_per_class=3, size_px=8, seed=0)
    assert (place if occupant == "file" else place / "notes.txt").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [place]


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "place").mkdir()
    write(tmp_path / "place", classes=2, images_per_class=3, size_px=8, seed=0)
    assert len(files(tmp_path / "place")) == 6


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    full_disk = OSError("No space left on device")

    def full(*_: object, **__: object) -> None:
        raise full_disk

    monkeypatch.setattr(Image.Image, "save", full)  # a disk that has become full
    with pytest.raises(OSError) as caught:
        write(tmp_path / "place", classes=2, images_per_class=3, size_px=8, seed=0)
    assert caught.value is full_disk
    assert list(tmp_path.iterdir()) == []


def test_leaves_are_drawn_once_for_each_kind_and_kept_with_the_files_of_other_sources(tmp_path):
    write(tmp_path / "leaves", classes=2, images_per_class=5, size_px=8, seed=0)
    cache = tmp_path / "cache"
    for source in ("leaves:classes=2,images=10,size=8", "leaves:classes=2,images=11,size=8"):
        for _ in range(2):
            drawn = load_files(Data(source=source), seed=0, cache_dir=str(cache))
    assert len(list((cache / "scanned").glob("*/entry.json"))) == 2 and not (cache / "leaves").exists()
    drawn = load_files(Data(source="leaves:classes=2,images=10,size=8"), seed=0, cache_dir=str(cache))
    read = load_files(Data(source=str(tmp_path / "leaves")), seed=0, cache_dir=str(cache))
    assert drawn.content_hash == read.content_hash
    contents = [[split.files.content(row) for row in range(len(split))] for split in (drawn.train, read.train)]
    assert (
        contents[0]
        == contents[1]
        == [content for name, content in files(tmp_path / "leaves").items() if name.startswith("train/")]
    )


def test_another_version_of_what_is_drawn_is_drawn_again(monkeypatch):
    wanted = synthetic_leaves.LeafSource(Leaves(classes=2, images=6, size=8))
    before = wanted.content_hash()
    monkeypatch.setattr(synthetic_leaves, "RULE", "another")  # as a later release has
    assert wanted.content_hash() != before


def test_the_images_drawn_are_the_known_ones():
    """Held as pixels, not as files: another JPEG encoder changes those."""
    generator = np.random.Generator(np.random.Philox(key=0))
    pixels = np.concatenate([leaf_drawing.draw_leaves(label, 2, 32, generator) for label in range(8)])
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == "5e2fceacca39c2e495bb889b5b46beeeef0a0eda3828a89e2d9279b4b91879a6"
