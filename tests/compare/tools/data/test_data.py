"""What `compare data` finds in data sets, as a user would ask for it."""

import csv
import io
import json
import os
import re
import signal
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.data import notes
from common.data.dataset import DataRefused
from common.data.decoding import decode
from common.data.sources import leaf_drawing, synthetic_leaves
from common.errors import UserError
from compare.cli import wording
from compare.reporting import image_grid, plots
from compare.tools.data import data_report, duplicates, exploration
from tests.common.made_up_data import cifar_binary, image, tree, write_folder
from tests.support.command_line import Ended, convtwins, convtwins_json
from tests.support.refusals import check
from tests.support.snapshots import Screens

DIVIDED = tree("train/Tomato_healthy", "train/Tomato_Rust", "valid/Tomato_healthy", "valid/Tomato_Rust", images=12)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVTWINS_CACHE", str(tmp_path / "cache"))


def check_shown(ended: Ended, **parts: Any) -> None:
    """Assert that data were shown and refused with these parts."""
    assert ended.exit_code == 4 and ended.stdout
    check(ended.refusal, **parts)


def words(text: str) -> str:
    """A text without its line breaks, which rest on the width."""
    return " ".join(text.split())


def test_a_divided_tree_is_counted_by_class_and_split(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    found = convtwins_json("data", write_folder(tmp_path / "leaves", DIVIDED))
    assert (found["name"], found["image_size"], found["refusal"], found["exit_code"]) == ("leaves", 8, None, 0)
    assert found["splits"] == {"train": 22, "validation": 24, "test": 2}
    rust, healthy = found["classes"]
    assert (rust["name"], rust["plant"], rust["condition"]) == ("Tomato_Rust", "Tomato", "Rust")
    assert (healthy["condition"], healthy["counts"]) == ("healthy", {"train": 11, "validation": 12, "test": 1})
    assert found["files"]["kinds"] == [{"format": "PNG", "mode": "RGB", "width_px": 8, "height_px": 8, "files": 48}]
    assert found["files"]["total_bytes"] == sum(map(len, DIVIDED.values()))
    assert found["content_hash"] and found["notes"] == snapshot


def test_a_limit_shows_what_it_keeps(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    found = convtwins_json("data", write_folder(tmp_path / "leaves", DIVIDED), "--limit", "10")
    assert found["splits"] == {"train": 10, "validation": 11, "test": 1}
    found = convtwins_json("data", "digits", "--limit", 5)
    assert found["splits"]["train"] == 5 and sum(each["counts"]["train"] > 0 for each in found["classes"]) == 5
    assert found["notes"] == snapshot
    trained = convtwins("data", "digits", "--limit", 5, "--seed", 3).stdout
    assert "run --data digits --set data.limit=5 --seed 3" in trained


def test_arrays_of_pixels_are_explored_as_image_files() -> None:
    found = convtwins_json("data", "digits")
    assert (found["files"]["usable"], found["files"]["bad"], found["names_tell"]) == (1797, [], False)
    assert sum(found["splits"].values()) == 1797 and found["exact"]["groups"] == 0
    assert re.fullmatch(r"\d/\d{6}\.ppm", found["near"]["named"][0][0])


@pytest.mark.parametrize(
    ("class_names", "pairs"),
    [
        (["Tomato___Late_blight", "Potato___healthy"], [("Tomato", "Late blight"), ("Potato", "healthy")]),
        (["Tomato_Late_blight", "Tomato_Leaf_Mold"], [("Tomato", "Late blight"), ("Tomato", "Leaf Mold")]),
        (["Pepper__bell___Bacterial_spot", "Corn___healthy"], [("Pepper bell", "Bacterial spot"), ("Corn", "healthy")]),
        (["Corn_(maize)___Common_rust_", "Grape___Esca_(Black)"], [("Corn (maize)", "Common rust"), ("Grape", "Esca (Black)")]),
        (["Tomato__Target_Spot", "Tomato_healthy"], [("Tomato", "Target Spot"), ("Tomato", "healthy")]),
        (["Pepper,_bell___healthy", "Tomate___Mehltau ö"], [("Pepper, bell", "healthy"), ("Tomate", "Mehltau ö")]),
        (["Soybean_healthy", "Squash_Powdery_mildew"], [("Soybean", "healthy"), ("Squash", "Powdery mildew")]),
        (["ankle_boot", "t_shirt"], None),
        (["cat", "Tomato___healthy"], None),
        (["_Tomato", "Tomato_"], None),
        (["___", "a___b"], None),
        (["0", "1"], None),
    ],
)
def test_plants_and_conditions_are_read_from_names_that_tell(
    class_names: list[str], pairs: list[tuple[str, str]] | None
) -> None:
    assert exploration.plants_and_conditions(class_names) == pairs


BROKEN = {
    "train/Tomato_Rust/empty.png": b"",
    "train/Tomato_Rust/y [bold].jpg": image("y"),
    "train/Tomato_Rust/torn.png": image("z")[:60],
    "train/Tomato_Rust/notes.txt": b"hello",
}


def test_what_is_broken_is_shown_with_its_reason_and_ends_with_exit_code_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    folder = write_folder(tmp_path / "photos", DIVIDED | BROKEN)
    (folder / "train" / "Potato_healthy").mkdir()
    found = convtwins_json("data", folder, exit_code=4)
    assert {Path(bad["path"]).name: bad["problem"] for bad in found["files"]["bad"]} == {
        "empty.png": "empty",
        "y [bold].jpg": "wrong suffix",
        "torn.png": "truncated or damaged",
        "notes.txt": "no image suffix",
    }
    assert found["files"]["empty_class_folders"] == ["train/Potato_healthy"]
    assert found["splits"] == {"train": 22, "validation": 24, "test": 2}  # shown without the broken ones
    assert found["content_hash"] is None
    assert found["refusal"].count("--on-bad skip") == 1
    monkeypatch.chdir(tmp_path)
    done = convtwins("data", "photos", "--full")
    assert done.exit_code == 4 and done.stderr
    assert done.stdout == snapshot


def test_a_refusal_of_broken_files_names_the_copies_across_splits_too(tmp_path: Path) -> None:
    copies = {"valid/Tomato_Rust/copy.png": image("copy"), "train/Tomato_Rust/copy.png": image("copy")}
    found = convtwins_json("data", write_folder(tmp_path / "leaves", DIVIDED | BROKEN | copies), exit_code=4)
    check(DataRefused(found["refusal"]), names=["--on-bad skip", "--duplicates allow", "1 image"])


@pytest.mark.parametrize(
    ("files", "facts"),
    [
        (tree("\u00e4hre", "a\u0308hre", "test"), ["'test'", r"'a\u0308hre'", r"'\xe4hre'"]),
        (DIVIDED | {"train/Tomato_Rust/copy.png": DIVIDED["train/Tomato_healthy/0.png"]}, ["1 group"]),
    ],
    ids=["names", "equal images in two classes"],
)
def test_a_class_named_like_a_split_classes_that_look_alike_and_images_of_two_classes_are_cautions(
    tmp_path: Path, snapshot: SnapshotAssertion, files: dict[str, bytes], facts: list[str]
) -> None:
    folder = write_folder(tmp_path / "leaves", files)
    found, _, _ = exploration.explore(spec.build({"data": {"source": str(folder)}}).data, seed=0)
    trouble = {answer.label: answer.sentences for answer in data_report.screen(found).answers}["Trouble"]
    cautions = [line for lines in convtwins_json("data", folder)["findings"].values() for line in lines if "Caution" in line]
    assert [trouble, cautions] == snapshot
    assert all(fact in " ".join(cautions) for fact in facts)


def test_images_of_a_format_that_is_not_read_are_shown_with_their_cure(tmp_path: Path) -> None:
    done = convtwins("data", write_folder(tmp_path / "leaves", tree("cat", "dog") | {"cat/phone.heic": b"x"}))
    for shown in (UserError(done.stdout), done.refusal):
        check(shown, names=["'cat/phone.heic'", "HEIC", "JPEG"])
    assert done.exit_code == 4


def test_data_without_one_usable_image_are_shown_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "leaves", {"cat/0.png": b"", "dog/0.png": b""})
    assert len(convtwins_json("data", folder, exit_code=4)["files"]["bad"]) == 2
    assert "'cat/0.png': empty" in convtwins("data", folder).stdout


def test_broken_files_may_be_left_out(tmp_path: Path) -> None:
    found = convtwins_json("data", write_folder(tmp_path / "leaves", DIVIDED | BROKEN), "--on-bad", "skip")
    assert found["refusal"] is None and len(found["files"]["bad"]) == 4 and found["content_hash"]


def test_up_to_twenty_broken_files_are_named_and_all_are_in_the_json(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "leaves", DIVIDED | {f"train/Tomato_Rust/{number:02}x.png": b"" for number in range(30)})
    assert len(convtwins_json("data", folder, exit_code=4)["files"]["bad"]) == 30
    lines = convtwins("data", folder, "--full").stdout.splitlines()
    assert sum(line.endswith("x.png': empty") for line in lines) == 20 and "    and 10 more" in lines


def test_images_of_many_sizes_are_refused_and_shown_at_64_pixels(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "leaves", DIVIDED | {"train/Tomato_Rust/wide.png": image("wide", 20, 10)})
    found = convtwins_json("data", folder, exit_code=4)
    check(DataRefused(found["refusal"]), fix="--image-size 64")
    assert found["image_size"] == 64 and "64 x 64" in found["notes"][0]
    assert [(kind["width_px"], kind["height_px"], kind["files"]) for kind in found["files"]["kinds"]] == [
        (8, 8, 48),
        (20, 10, 1),
    ]
    assert convtwins_json("data", folder, "--image-size", "16")["image_size"] == 16


def test_splits_that_lack_a_class_are_shown_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = write_folder(tmp_path / "pets", tree("train/cat", "train/dog", "test/cat"))
    found = convtwins_json("data", folder, "--out", out, exit_code=4)
    assert found["splits"] == {"train": 8, "test": 4} and found["near"] is None and found["image_size"] is None
    assert found["classes"][1]["counts"] == {"train": 4, "test": 0}
    assert not (out / "sample_sheet.png").exists() and (out / "class_balance.png").exists()


def test_exact_duplicates_are_grouped_with_those_across_splits_first(tmp_path: Path) -> None:
    same = DIVIDED["train/Tomato_Rust/3.png"]
    copies = {
        "train/Tomato_healthy/a.png": DIVIDED["train/Tomato_healthy/0.png"],
        "valid/Tomato_Rust/b.png": same,
        "valid/Tomato_healthy/c.png": same,
    }
    folder = write_folder(tmp_path / "leaves", DIVIDED | copies)
    check_shown(convtwins("data", folder), names=["--duplicates allow"])
    exact = convtwins_json("data", folder, "--duplicates", "allow")["exact"]
    assert (exact["groups"], exact["images"], exact["groups_across_splits"], exact["groups_across_classes"]) == (2, 5, 1, 1)
    assert sorted(exact["named"][0]) == ["train/Tomato_Rust/3.png", "valid/Tomato_Rust/b.png", "valid/Tomato_healthy/c.png"]


def test_exact_duplicates_of_arrays_are_those_of_the_sources_own_pixels(tmp_path: Path) -> None:
    files = cifar_binary()
    name = "cifar-10-batches-bin/data_batch_1.bin"
    records = np.frombuffer(files[name], np.uint8).reshape(-1, 1 + 3 * 32 * 32).copy()
    records[1, 1:] = records[0, 1:]
    records[3, 1:] = records[2, 1:]
    records[3, -1] ^= 1  # lost where the images are resized
    two = decode.resize(records[2:4, 1:].reshape(2, 3, 32, 32).transpose(0, 2, 3, 1), 4)
    assert np.array_equal(two[0], two[1])
    folder = write_folder(tmp_path / "cifar", files | {name: records.tobytes()})
    whole, resized = convtwins_json("data", folder), convtwins_json("data", folder, "--image-size", "4")
    assert (whole["image_size"], resized["image_size"]) == (32, 4)
    assert (whole["exact"]["groups"], whole["exact"]["images"]) == (1, 2)
    assert resized["exact"] == whole["exact"]


NUMBERS = list(map(str, range(30_000)))
"""Names of images."""


def smooth(seed: int, size: int = 48) -> NDArray[np.uint8]:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC))


def saved_again(pixels: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


CHANGES: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    "saved again": lambda pixels: saved_again(pixels, 90),
    "darker": lambda pixels: (pixels.astype(int) * 3 // 4).astype(np.uint8),
    "smaller": lambda pixels: np.asarray(Image.fromarray(pixels).resize((24, 24)).resize((48, 48))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_that_was_changed_a_little_is_a_near_twin_and_another_image_is_not(change: str) -> None:
    images = np.stack([smooth(seed) for seed in range(40)])
    images = np.concatenate([images, np.stack([CHANGES[change](images[place]) for place in range(5)])])
    splits = np.array([0] * 40 + [1] * 5)
    hashes = duplicates.difference_hashes(images)
    found = duplicates.near(hashes, [decode.sha256(image) for image in images], splits, NUMBERS)
    assert {pair[:2] for pair in found.named} == {(str(place), str(40 + place)) for place in range(5)}
    assert (found.images, found.pairs, found.pairs_across_splits) == (10, 5, 5)


@pytest.mark.parametrize("size", [1, 5, 9, 32, 100])
def test_images_of_any_size_have_difference_hashes_and_chunks_do_not_change_them(size: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, size, size, 3), dtype=np.uint8)
    hashes = duplicates.difference_hashes(images)
    assert hashes.shape == (20, 2) and hashes.dtype == np.uint64
    assert np.array_equal(duplicates.difference_hashes(images, bytes_at_once=3 * images[0].nbytes), hashes)


@pytest.mark.parametrize("seed", range(8))
def test_near_twins_are_those_that_a_comparison_of_all_pairs_finds(seed: int) -> None:
    generator = np.random.default_rng(seed)
    centres = generator.integers(0, 2**64, (12, 2), dtype=np.uint64)
    places = generator.integers(0, 64, (150, 2, 3), dtype=np.uint64)
    flips = np.bitwise_or.reduce(np.where(generator.random(places.shape) < 0.5, np.uint64(1) << places, 0), axis=2)
    hashes = centres[generator.integers(0, 12, 150)] ^ flips.astype(np.uint64)
    digests = [pair.tobytes() + bytes([generator.integers(2)]) for pair in hashes]  # some of equal pixels, some of equal hash
    splits = generator.integers(0, 3, 150)
    apart = np.bitwise_count(hashes[:, np.newaxis] ^ hashes[np.newaxis])
    twins = (apart <= 2).all(axis=2) & (np.array(digests)[:, np.newaxis] != np.array(digests)[np.newaxis])
    found = duplicates.near(hashes, digests, splits, NUMBERS)
    across = twins & (splits[:, np.newaxis] != splits)
    assert found.pairs == np.triu(twins).sum() > 0
    assert found.images == twins.any(axis=1).sum() and found.pairs_across_splits == np.triu(across).sum()
    named = [(int(first), int(second), distance) for first, second, distance in found.named]
    for first, second, distance in named:
        assert twins[first, second] and distance == apart[first, second].sum()
    within = [bool(splits[first] == splits[second]) for first, second, _ in named]
    assert within == sorted(within) and len(within) == min(20, found.pairs)


def test_thousands_of_plain_images_do_not_take_the_square_of_their_number() -> None:
    blank = np.zeros((30_000, 2), np.uint64)
    digests = [bytes([place % 250, place // 250]) for place in range(30_000)]
    found = duplicates.near(blank, digests, np.zeros(30_000, np.int64), NUMBERS)
    assert (found.images, found.pairs) == (30_000, 30_000 * 29_999 // 2)


@pytest.mark.drawn
def test_a_results_folder_holds_report_counts_files_and_pictures(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = convtwins("data", write_folder(tmp_path / "leaves", DIVIDED), "--out", out, "--full")
    assert done.exit_code == 0 and str(out / "report.md") in done.stdout.replace("\n", "")
    pictures = {"sample_sheet.png", "class_balance.png", "class_balance.svg"}
    names = {"report.md", "report.html", "tables", "data.json", "counts.csv", "files.csv", *pictures}
    assert {path.name for path in out.iterdir()} - {".lock", ".gitignore"} == names
    assert json.loads((out / "data.json").read_text()) == convtwins_json("data", tmp_path / "leaves")
    with (out / "counts.csv").open() as file:
        assert next(csv.DictReader(file)) == {
            "class": "Tomato_Rust",
            "plant": "Tomato",
            "condition": "Rust",
            "train": "11",
            "validation": "12",
            "test": "1",
            "total": "24",
            "percent": "50.0",
        }
    with (out / "files.csv").open() as file:
        assert [row["path"] for row in csv.DictReader(file)] == sorted(DIVIDED)
    report = (out / "report.md").read_text()
    assert "![sample sheet](sample_sheet.png)" in report and r"| Tomato\_Rust |" in report


def test_an_earlier_exploration_is_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convtwins("data", write_folder(tmp_path / "leaves", DIVIDED), "--out", out)
    assert convtwins("data", "digits", "--out", out).exit_code == 0
    assert json.loads((out / "data.json").read_text())["name"] == "digits"
    with (out / "files.csv").open() as file:
        assert {row["format"] for row in csv.DictReader(file)} == {"PPM"}


def test_classes_that_differ_in_a_control_character_stay_apart(tmp_path: Path) -> None:
    names = ["a\nb", "a\tb", "a b", "a\\nb"]
    convtwins("data", write_folder(tmp_path / "pets", tree(*names, images=12)), "--out", tmp_path / "out")
    shown = {"a\\nb", "a\\tb", "a b", "a\\\\nb"}
    for file in ("counts.csv", "files.csv"):
        with (tmp_path / "out" / file).open() as rows:
            assert {row["class"] for row in csv.DictReader(rows)} == shown


def test_long_class_names_are_shortened_and_columns_without_room_are_named(tmp_path: Path) -> None:
    long = "Tomato_" + "x" * 190 + "_end"
    folder = write_folder(tmp_path / "pets", tree(long, "Tomato_healthy", images=12))
    in_a_log = convtwins("data", folder, "--full").stdout
    assert re.search(rf"\n{long}\n  train: \d+\n(  .+\n)+  images: 12\n  %: 50\.00\n", in_a_log)

    def in_a_terminal(width: int) -> str:
        colourful = convtwins("data", folder, "--full", COLUMNS=str(width), FORCE_COLOR="1").stdout
        return re.sub(r"\x1b\[[\d;]*m", "", colourful)

    wide, narrow = in_a_terminal(120), in_a_terminal(40)
    assert re.search(r"\nTomato_x+…x+_end +\d+ +\d+ +\d+ +12 +50\.00\n", wide)
    told = ["Too wide" in shown and "--out" in shown.partition("Too wide")[2] for shown in (wide, narrow)]
    assert told == [False, True]
    assert max(map(len, narrow.split("What is broken")[0].splitlines()[3:8])) <= 40


def test_the_current_folder_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_folder(tmp_path / "pets", tree("train/cat", "train/dog", "test/cat")))
    assert convtwins_json("data", ".", exit_code=4)["name"] == "pets"


def test_an_interrupt_while_leaves_are_made_is_answered_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interrupt comes while files are written.
    monkeypatch.setattr(synthetic_leaves, "_write_all", lambda folder, wanted: os.kill(os.getpid(), signal.SIGTERM))
    done = convtwins("data", "leaves:classes=2,images=6,size=8", "--write", tmp_path / "made")
    assert done.exit_code == 143 and str(tmp_path / ".made.") in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_names_that_the_pictures_cannot_show_are_numbered_and_listed(tmp_path: Path) -> None:
    names = ["слива", "日本語の葉", "🍅"]
    assert plots.labels(names) == ["слива", "class 1", "class 2"]
    assert plots.labels(["new\nline", "turned\u202eround"]) == ["new line", "turned round"]
    convtwins("data", write_folder(tmp_path / "leaves", tree(*names, images=12)), "--out", tmp_path / "out")
    report = (tmp_path / "out" / "report.md").read_text()
    assert "class 1 is 日本語の葉, class 2 is 🍅" in report


def test_a_long_name_in_the_class_balance_keeps_its_start_and_its_end() -> None:
    name = "start_" + "x" * 200 + "_end"
    svg = image_grid.class_balance({"train": [1_000_000, 999_999]}, [name, "dog"], "Pets")["svg"].decode()
    assert re.search(">start_x+…x+_end<", svg)


def test_files_csv_has_a_row_for_each_file_and_no_hash_of_what_cannot_be_decoded(tmp_path: Path) -> None:
    convtwins("data", write_folder(tmp_path / "leaves", DIVIDED | BROKEN), "--out", tmp_path / "out")
    with (tmp_path / "out" / "files.csv").open() as file:
        rows = {row["path"]: row for row in csv.DictReader(file)}
    assert list(rows["train/Tomato_Rust/empty.png"]) == [
        "path", "split", "class", "problem", "detail", "format", "mode", "file_bytes", "width_px", "height_px", "plain_jpeg",
        "file_sha256", "pixel_sha256",
    ]  # fmt: skip
    assert (
        rows["train/Tomato_Rust/torn.png"]["pixel_sha256"] == "" and len(rows["train/Tomato_Rust/0.png"]["pixel_sha256"]) == 64
    )


def test_the_sample_sheet_has_a_row_for_each_class_and_the_images_themselves(tmp_path: Path) -> None:
    images = np.stack([np.full((16, 16, 3), 20 * place, np.uint8) for place in range(12)])
    labels = np.array([0, 1] * 6)
    with Image.open(io.BytesIO(image_grid.sample_sheet(images, labels, ["even", "odd"]))) as drawn:
        pixels = np.asarray(drawn.convert("RGB"))
    rows = [pixels[62, 230:, 0], pixels[62 + 118, 230:, 0]]
    assert [sorted(set(row.tolist())) for row in rows] == [[0, 40, 80, 120, 160, 200, 255], [20, 60, 100, 140, 180, 220, 255]]


def test_pictures_are_the_same_for_the_same_data(tmp_path: Path) -> None:
    for name in ("a", "b"):
        convtwins("data", "leaves:classes=3,images=30,size=16", "--out", tmp_path / name)
    for name in ("sample_sheet.png", "class_balance.png", "class_balance.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_class_balance_names_every_class_and_number(tmp_path: Path) -> None:
    files = image_grid.class_balance({"train": [1200, 30], "test": [100, 3]}, ["a $b$ & <c>", "dog"], "Pets")
    texts = [element.text for element in ElementTree.fromstring(files["svg"]).iter("{http://www.w3.org/2000/svg}text")]
    assert {"a $b$ & <c>", "dog", "1,300", "33", "train", "test", "Pets"} <= set(texts)
    with Image.open(io.BytesIO(files["png"])) as drawn:
        assert drawn.width > 800


def test_hundreds_of_classes_have_bars_without_names() -> None:
    small = image_grid.class_balance({"train": [3] * 1000}, [f"class {label}" for label in range(1000)], "Many")
    with Image.open(io.BytesIO(small["png"])) as drawn:
        assert drawn.height < 5000
    assert b"class 999" not in small["svg"]


@pytest.mark.parametrize(
    "name",
    [
        *("日本語の葉", "=1+1", "[bold]x", "tab\tand line\nbreak"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("слива", "a, \"b\" 'c'", "🍅")),
    ],
)
def test_class_names_of_any_kind_are_shown(name: str, tmp_path: Path) -> None:
    files = {path.replace("cat", name): content for path, content in tree("train/cat", "train/dog", images=12).items()}
    found = convtwins_json("data", write_folder(tmp_path / "pets", files), "--out", tmp_path / "out")
    assert name in [each["name"] for each in found["classes"]]
    shown = wording.visible(name)
    assert shown in convtwins("data", tmp_path / "pets").stdout
    with (tmp_path / "out" / "counts.csv").open() as file:
        assert shown in [row["class"].removeprefix("'") for row in csv.DictReader(file)]


def test_the_terminal_shows_everything_in_words(
    snapshot: SnapshotAssertion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("leaf photos"), DIVIDED | {"train/Tomato_Rust/3 again.png": DIVIDED["train/Tomato_Rust/3.png"]})
    done = convtwins("data", "leaf photos", "--full")
    assert done.exit_code == 0 and done.stderr == ""
    assert done.stdout == snapshot


def test_leaves_are_written_to_a_folder_as_they_are_explored(tmp_path: Path) -> None:
    done = convtwins("data", "leaves:classes=2,images=20,size=16", "--write", tmp_path / "made")
    assert re.findall(r"\d+", done.succeeded().stdout)[:2] == ["20", "2"]
    assert len(list((tmp_path / "made").rglob("*.jpg"))) == 20
    assert (
        convtwins_json("data", tmp_path / "made")["content_hash"]
        == convtwins_json("data", "leaves:classes=2,images=20,size=16")["content_hash"]
    )


@pytest.mark.parametrize(
    ("source", "title", "images", "is_said"),
    [
        ("leaves:classes=2,images=20,size=16", "leaves:classes=2,images=20,size=16 (drawn)", 20, False),
        ("leaves", "leaves (drawn)", 1000, True),
        ("./leaves", "leaves", 48, False),
        ("digits", "digits", 1797, True),
    ],
)
def test_a_name_that_is_a_folder_here_too_is_said_and_the_title_tells_which_was_read(
    source: str, title: str, images: int, is_said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("leaves"), DIVIDED)
    Path("digits").mkdir()
    done = convtwins("data", source)
    found = convtwins_json("data", source)
    assert (found["name"], sum(found["splits"].values())) == (title, images)
    assert [f"./{source}" in note for note in found["notes"] if notes.kind(note) == "data"] == [True] * is_said
    assert (f"Use ./{source} to read that" in " ".join(done.stdout.split())) == is_said


def test_synthetic_leaves_name_plants_and_conditions_and_have_no_duplicates() -> None:
    found = convtwins_json("data", "leaves:classes=6,images=120,size=32")
    assert {each["plant"] for each in found["classes"]} == {"Alder", "Beech"}
    assert [each["name"] for each in found["classes"]] == sorted(leaf_drawing.class_name(label) for label in range(6))
    assert found["exact"]["groups"] == 0 and found["files"]["kinds"][0]["format"] == "JPEG"


@pytest.mark.slow
def test_the_tomato_leaves_are_described_as_they_are(test_data: Callable[[str], Path]) -> None:
    found = convtwins_json("data", test_data("tomato-leaf-subset.tar"))
    assert found["splits"] == {"train": 2700, "validation": 500, "test": 300} and len(found["classes"]) == 10
    assert {each["plant"] for each in found["classes"]} == {"Tomato"} and found["files"]["bad"] == []
    assert found["files"]["kinds"] == [{"format": "JPEG", "mode": "RGB", "width_px": 256, "height_px": 256, "files": 3500}]
    assert (found["exact"]["groups"], found["exact"]["groups_across_splits"]) == (17, 0)
    assert (found["near"]["pairs"], found["near"]["pairs_across_splits"]) == (5, 1)


def test_near_twins_that_were_not_counted_send_to_the_refusal_whatever_its_cause_is(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """A class with too few images, where all images have one size."""
    done = convtwins("data", write_folder(tmp_path / "leaves", tree("cat", "dog", images=2)))
    assert re.findall(r"Near twins .*?\. .*?\.", words(done.stdout)) == snapshot
    assert " 3 " in done.stderr and "--image-size" not in done.output  # of too few images, not of their sizes


COPY = {"valid/Tomato_healthy/copy.png": DIVIDED["train/Tomato_Rust/3.png"]}


@pytest.mark.parametrize(("name", "more"), [("clean", {}), ("broken", BROKEN), ("copies", COPY)])
def test_the_first_screen_says_whether_the_data_can_be_used(
    screens: Screens, name: str, more: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("photos"), DIVIDED | more)
    wanted = spec.build({"data": {"source": "photos"}})
    found, _, _ = exploration.explore(wanted.data, seed=0, cache_dir=str(tmp_path / "cache"))
    report = data_report.report(found, train="convtwins run --data photos")
    shown = screens(report, None)
    assert ("train on it" in shown) == (found.refusal is None) == (name == "clean")
    assert ("data.on_bad=skip" in shown) == (name == "broken") and ("data.duplicates=allow" in shown) == (name == "copies")
