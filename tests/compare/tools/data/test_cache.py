"""The cache folder on the command line: what it holds, and what may be removed."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data import cache as store
from common.data.preprocessing import statistics
from common.data.sources import load
from common.spec import Data
from compare.tools.data import cache
from tests.common.made_up_data import tree, write_folder
from tests.support.command_line import convtwins, convtwins_json
from tests.support.processes import started

FOLDERS = [f"{split}/{kind}" for split in ("train", "val", "test") for kind in ("cat", "dog")]


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "pets", tree(*FOLDERS))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def listed(root: Path, *arguments: object) -> dict[str, list[dict[str, Any]]]:
    items: dict[str, list[dict[str, Any]]] = {}
    for item in convtwins_json("cache", "--cache-dir", root, *arguments)["items"]:
        items.setdefault(item["kind"], []).append(item)
    return items


def age(root: Path, days: float) -> None:
    then = time.time() - days * 86_400
    for path in root.rglob("*"):
        if path.name in ("entry.json",) or path.suffix == ".json":
            os.utime(path, (then, then))


def fill(source: str, root: Path, **fields: Any) -> None:
    load(Data(source=source, **fields), seed=0, cache_dir=str(root))


def test_everything_is_listed_with_its_source_size_and_last_use(pets: Path, root: Path) -> None:
    fill(str(pets), root, limit=4)
    fill("leaves:images=40,classes=2", root)
    (root / "cifar-10-binary.tar.gz").write_bytes(bytes(5000))
    (root / "another programs file").touch()
    dataset = load(Data(source=str(pets)), seed=0, cache_dir=str(root / "other"))
    statistics.dataset_statistics(dataset.train, dataset.content_hash, cache_dir=str(root))
    items = listed(root)
    kinds = {"decoded images", "checked files", "splits", "means and deviations", "download"}
    assert set(items) - {"content hashes"} == kinds  # hashes are remembered of settled files alone
    assert {(item["source"], item["detail"]) for item in items["decoded images"]} >= {(str(pets), "12 of 24, 8 px")}
    assert all(item["num_bytes"] > 0 and item["status"] == "kept" for kind in items.values() for item in kind)
    assert all(abs(time.time() - _seconds(item["last_used"])) < 600 for kind in items.values() for item in kind)
    text = convtwins("cache", "--cache-dir", root).succeeded().stdout
    assert "12 of 24, 8 px" in text and str(root) in text


def _seconds(iso: str) -> float:
    return np.datetime64(iso.removesuffix("+00:00")).astype("datetime64[s]").astype(float)


def test_only_what_was_not_used_for_so_long_is_removed_and_is_made_again(pets: Path, root: Path) -> None:
    fill(str(pets), root)
    fill(str(pets), root, image_size=16)
    age(root, 40)
    fill(str(pets), root, image_size=16)  # used again: its record, and that of the files
    items = listed(root, "--prune")
    assert [(item["detail"], item["status"]) for item in items["decoded images"]] == [
        ("24 of 24, 16 px", "kept"),
        ("24 of 24, 8 px", "removed"),
    ]
    assert [item["status"] for item in items["checked files"]] == ["kept"]
    assert [item["detail"] for item in listed(root)["decoded images"]] == ["24 of 24, 16 px"]
    assert not listed(root, "--prune", "--older-than", 1).get("left over")
    assert {item["status"] for kind in listed(root, "--prune", "--older-than", 0).values() for item in kind} == {"removed"}
    assert listed(root) == {}
    fill(str(pets), root)


def test_downloads_and_files_of_others_stay(root: Path) -> None:
    (root / "fashion-mnist").mkdir(parents=True)
    for name in ("cifar-10-binary.tar.gz", "another", "fashion-mnist/files"):
        (root / name).write_bytes(b"x")
    listed(root, "--prune", "--older-than", 0)
    assert sorted(path.name for path in root.iterdir()) == ["another", "cifar-10-binary.tar.gz", "fashion-mnist"]


@pytest.mark.parametrize("loading", ["cached", "streaming"])
@pytest.mark.parametrize("limit", [None, 6])
def test_what_a_running_process_reads_stays_and_goes_when_it_has_ended(
    loading: str, limit: int | None, pets: Path, root: Path
) -> None:
    script = f"""
import sys
from common.data import sources
from common.spec import Data
data = Data(source={str(pets)!r}, loading={loading!r}, limit={limit!r})
dataset = sources.load(data, seed=0, cache_dir={str(root)!r})
print("ready", flush=True)
sys.stdin.readline()
import pickle, numpy
again = pickle.loads(pickle.dumps(dataset.train.encoded)) if dataset.train.encoded else None
print(numpy.asarray(dataset.train.images).sum() > 0 and (again is None or len(again.content(0)) > 0))
"""
    with started([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        items = listed(root, "--prune", "--older-than", 0)
        assert [item["status"] for item in items["decoded images"]] == ["in use"]
        assert [item["status"] for item in items["checked files"]] == (["in use"] if loading == "streaming" else ["removed"])
        assert process.communicate("\n", timeout=300)[0] == "True\n"
    assert {item["status"] for item in listed(root, "--prune", "--older-than", 0)["decoded images"]} == {"removed"}


def test_what_is_being_written_stays_and_what_a_killed_process_left_goes_whatever_its_age(pets: Path, root: Path) -> None:
    fill(str(pets), root)
    (entry,) = (path.parent for path in (root / "decoded").glob("*/entry.json"))
    left = [entry.with_name(f"{entry.name}.partial"), root / "leaves" / "0123456789abcdef"]
    for folder in left:
        (folder / "class").mkdir(parents=True)
    with store.lock(entry):
        items = listed(root, "--prune", "--older-than", 0)
        assert items["decoded images"][0]["status"] == "in use"
        assert {(Path(item["path"]), item["status"]) for item in items["left over"]} == {
            (left[0], "in use"),
            (left[1], "removed"),
        }
    assert entry.is_dir() and left[0].is_dir() and not left[1].exists()
    assert listed(root, "--prune")["decoded images"][0]["status"] == "kept" and not left[0].exists()


def test_a_torn_entry_is_listed_and_goes(root: Path) -> None:
    for name in ("a" * 64, "b" * 64):
        (root / "decoded" / name).mkdir(parents=True)
    (root / "decoded" / ("a" * 64) / "entry.json").write_text("{")
    assert [item["source"] for item in listed(root)["decoded images"]] == ["unknown", "unknown"]
    assert {item["status"] for item in listed(root, "--prune", "--older-than", 0)["decoded images"]} == {"removed"}


def test_a_folder_that_is_missing_holds_nothing(root: Path) -> None:
    pruned = convtwins("cache", "--cache-dir", root, "--prune").succeeded()
    assert cache.list_items(root) == [] and "0.0 MiB" in pruned.stdout and not root.exists()
