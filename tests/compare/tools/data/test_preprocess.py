"""Whole scans by fake twins and by Dask, as a user would start them."""

import csv
import gc
import json
import math
import os
import re
import shutil
import signal
import socket
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.data.preprocessing import dask_scan, statistics
from common.data.sources import DatasetSplit, load, load_files
from common.machine import machine
from common.spec import Data
from compare.running import launch
from compare.tools.data import engine_scans, preprocess_report
from tests.common.data.preprocessing.made_up_scan import jpeg
from tests.common.made_up_data import write_folder
from tests.support import trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.processes import started
from tests.support.refusals import check_ended

TWINS = {"left": "tests.compare.twins.scan_left", "right": "tests.compare.twins.scan_right"}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """60 small JPEGs of two classes, two frameworks that only pretend, two cores."""
    monkeypatch.setattr(launch, "FRAMEWORKS", TWINS)
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    monkeypatch.setenv("CONVTWINS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_SCAN_ORDER", str(tmp_path / "order"))
    behave(monkeypatch)
    return write_folder(
        tmp_path / "leaves", {f"{name}/{seed}.jpg": jpeg(seed + 100 * (name == "b")) for name in "ab" for seed in range(30)}
    )


def behave(monkeypatch: pytest.MonkeyPatch, **behaviours: str) -> None:
    """Set how fake scans behave: `left_2="crash"` for `left` with 2 workers."""
    monkeypatch.setenv("FAKE_SCAN_BEHAVIOUR", json.dumps({name.replace("_", "-"): value for name, value in behaviours.items()}))


def rows(printed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{row['engine']}-{row['workers']}": row for row in printed["rows"]}


def told(printed: dict[str, Any]) -> list[str]:
    """What was found, but for mean and deviation, which are numbers elsewhere."""
    return [each for each in printed["findings"]["What was found"] if not each.startswith("Mean")]


def test_every_engine_gives_the_statistics_of_the_training_split(data: Path) -> None:
    printed = convtwins_json("preprocess", data, "--engines", "dask,left,right", "--workers", "1,4", "--repeats", 1)
    images = np.asarray(load(Data(source=str(data)), seed=0).train.images)
    scaled = images.reshape(-1, 3) / 255
    made = rows(printed)
    assert list(made) == ["dask-1", "dask-4", "left-1", "left-4", "right-1", "right-4"]
    for row in made.values():
        np.testing.assert_allclose(row["mean"], scaled.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(row["std"], scaled.std(axis=0), rtol=1e-12)
        assert row["images"] == len(images) and row["status"] == "ok"
        assert math.isclose(row["images_per_second"], row["images"] / row["seconds"])
        assert math.isclose(row["efficiency"], row["speedup"] / row["workers"])
    assert [row["oversubscribed"] for row in made.values()] == [False, True] * 3
    assert made["left-1"]["speedup"] == 1.0 and made["left-4"]["speedup"] > 1.0


def test_the_result_is_stored_for_the_runs(data: Path) -> None:
    printed = convtwins_json("preprocess", data, "--engines", "left", "--workers", 1, "--repeats", 1)
    assert printed["content_hash"] == load(Data(source=str(data)), seed=0).content_hash
    # Other images, whose statistics would be zeros if they were computed again.
    black = DatasetSplit(images=np.zeros((1, 1, 1, 3), np.uint8), labels=np.zeros(1, np.int64))
    found = statistics.dataset_statistics(black, printed["content_hash"])
    assert [list(found.mean), list(found.std)] == [printed["mean"], printed["std"]]


def test_scans_take_turns_and_the_median_counts(data: Path) -> None:
    printed = convtwins_json("preprocess", data, "--engines", "left,right", "--workers", 1, "--repeats", 3)
    there = ["left-1", "right-1"]
    assert Path(os.environ["FAKE_SCAN_ORDER"]).read_text().split() == there + there[::-1] + there
    for row in rows(printed).values():
        assert row["seconds"] == sorted(scan["seconds"] for scan in row["scans"])[1]


def test_without_a_row_of_one_worker_there_is_no_speed_up(data: Path) -> None:
    (row,) = convtwins_json("preprocess", data, "--engines", "left", "--workers", 2, "--repeats", 1)["rows"]
    assert row["speedup"] is None and row["efficiency"] is None


@pytest.mark.parametrize(
    ("behaviour", "status", "reason"),
    [
        ("crash", "failed", "exit code 1: RuntimeError: no more = memory"),
        pytest.param("kill", "killed", "killed by SIGKILL", marks=pytest.mark.slow),
        pytest.param("silent", "failed", "ended without a result", marks=pytest.mark.slow),
    ],
)
def test_a_scan_that_dies_is_a_row_and_the_others_finish(
    data: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, status: str, reason: str
) -> None:
    behave(monkeypatch, left_2=behaviour)
    printed = convtwins_json("preprocess", data, "--engines", "left,right", "--workers", "1,2", "--repeats", 2, exit_code=1)
    made = rows(printed)
    assert {name: row["status"] for name, row in made.items()} == {
        "left-1": "ok",
        "left-2": status,
        "right-1": "ok",
        "right-2": "ok",
    }
    assert made["left-2"]["reason"] == reason
    assert made["left-2"]["seconds"] is None and made["left-2"]["mean"] is None
    assert Path(os.environ["FAKE_SCAN_ORDER"]).read_text().split().count("left-2") == 1
    assert f"left x2: {status}: {reason}" in told(printed)


def test_sums_that_differ_in_one_unit_are_named_and_nothing_is_stored(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    behave(monkeypatch, right_2="lie")
    printed = convtwins_json("preprocess", data, "--engines", "left,right", "--workers", "1,2", "--repeats", 1, exit_code=1)
    assert printed["differing"] == ["right x2"] and told(printed) == snapshot
    assert not (tmp_path / "cache" / "statistics").exists()


@pytest.mark.drawn
def test_table_and_plot_are_written(data: Path, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    out = tmp_path / "out"
    done = convtwins("preprocess", data, "--engines", "dask,left", "--workers", "1,4", "--repeats", 1, "--out", out).succeeded()
    written = trees.read(out)
    names = {name for name in written if not name.startswith(("logs/", "."))}
    assert names == {
        "plots/preprocess.png", "plots/preprocess.svg", *(f"preprocess.{suffix}" for suffix in ("md", "html", "json")),
        *(f"tables/preprocess.{suffix}" for suffix in ("csv", "md", "tex")),
    }  # fmt: skip
    assert written["plots/preprocess.png"].startswith(b"\x89PNG")
    assert all(label in written["plots/preprocess.svg"] for label in (b">workers</text>", b">dask</text>"))
    assert b"| engine | workers | seconds | images/s | speed-up | efficiency | oversubscribed |" in written["preprocess.md"]
    assert [row[:2] for row in csv.reader(written["tables/preprocess.csv"].decode().splitlines())] == [
        ["engine", "workers"], ["dask", "1"], ["dask", "4"], ["left", "1"], ["left", "4"],
    ]  # fmt: skip
    made = json.loads(written["preprocess.json"])["rows"]
    for row in made:
        assert {"engine", "workers", "seconds", "images", "images_per_second", "speedup", "efficiency"} <= row.keys()
        assert {"oversubscribed", "mean", "std", "status", "reason"} <= row.keys()
    assert re.search(r"dask +1 .* no .* ok", done.stdout) and re.search(r"left +4 .* yes .* ok", done.stdout)
    disturbed = [row | {"scans": [scan | {"cores_of_others": 1e3} for scan in row["scans"]]} for row in made]
    assert [preprocess_report.doubt(disturbed), preprocess_report.doubt(disturbed[1:2])] == snapshot


def test_more_workers_than_a_cluster_has_is_a_row_that_is_not_run(data: Path) -> None:
    row = engine_scans.plan_row("dask", 2, 1, 1)
    assert (row.status, row.reason, row.oversubscribed) == ("not available", "the cluster has 1 worker", True)
    request = engine_scans.ScanRequest(("dask",), (2,), "tcp://127.0.0.1:1", 1, spec.build({"data": {"source": str(data)}}))
    files = load_files(request.spec.data, seed=0)
    assert engine_scans.ScanOutcome(request, files, 2, [row]).exit_code == 0


@pytest.mark.parametrize("place", ["nonsense", "127.0.0.1", "no-such-host.invalid:8786", "127.0.0.1:port", "[::1"])
def test_an_address_without_a_listener_is_refused_at_once_in_one_sentence(data: Path, place: str) -> None:
    began = time.monotonic()
    done = convtwins("preprocess", data, "--engines", "dask", "--scheduler", f"tcp://{place}")
    gc.collect()  # a client that was begun would complain now, which pytest makes an error
    check_ended(done, field="scheduler", received=f"tcp://{place}", fix="dask scheduler")
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert time.monotonic() - began < dask_scan.CONNECT_SECONDS


@pytest.mark.parametrize("listens", [False, True])
def test_a_listener_that_says_nothing_is_no_scheduler(listens: bool) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(dask_scan.SchedulerError) as raised, dask_scan.connect(address, connect_seconds=1.0):
            pass
    assert address in str(raised.value)


def test_an_earlier_result_is_replaced(data: Path, tmp_path: Path) -> None:
    for workers in ("1", "2"):
        arguments = ("--engines", "left", "--workers", workers, "--repeats", 1, "--out", tmp_path / "out")
        convtwins("preprocess", data, *arguments).succeeded()
    assert [row["workers"] for row in preprocess_report.read(tmp_path / "out")] == [2]


def test_workers_without_work_are_reported(data: Path, snapshot: SnapshotAssertion) -> None:
    arguments = ("--engines", "left", "--repeats", 1, "--workers")
    assert [told(convtwins_json("preprocess", data, *arguments, workers)) for workers in ("1,5", "1")] == snapshot


@pytest.mark.parametrize("option", [("--on-bad", "skip"), pytest.param(("--set", "data.on_bad=skip"), marks=pytest.mark.slow)])
def test_bad_files_may_be_left_out(data: Path, option: tuple[str, str]) -> None:
    (data / "a" / "bad.jpg").write_bytes(b"x")
    arguments = ("preprocess", data, "--engines", "left", "--workers", 1, "--repeats", 1)
    assert convtwins(*arguments).exit_code == 4
    convtwins(*arguments, *option).succeeded()


def test_the_size_is_an_option_as_of_other_commands_and_stands_beside_mean_and_deviation(data: Path, tmp_path: Path) -> None:
    arguments = ("preprocess", data, "--engines", "left", "--workers", 1, "--repeats", 1)
    assert " 24 x 24 " in convtwins(*arguments).stdout
    done = convtwins(*arguments, "--image-size", 8, "--out", tmp_path / "out").succeeded()
    assert " 8 x 8 " in done.stdout and " 8 x 8 " in (tmp_path / "out" / "preprocess.md").read_text()
    stored = json.loads((tmp_path / "out" / "preprocess.json").read_text())
    scaled = np.asarray(load(Data(source=str(data), image_size=8), seed=0).train.images).reshape(-1, 3) / 255
    assert stored["image_size"] == 8
    np.testing.assert_allclose(stored["std"], scaled.std(axis=0), rtol=1e-12)


def test_images_in_two_splits_may_be_allowed_and_the_notes_on_the_data_are_told(
    data: Path, snapshot: SnapshotAssertion
) -> None:
    for split in ("train", "val"):
        write_folder(data / split, {f"{name}/{seed}.jpg": jpeg(seed) for seed, name in enumerate("abab")})
    for name in "ab":
        shutil.rmtree(data / name)
    arguments = (
        "preprocess", data, "--engines", "left", "--workers", 1, "--repeats", 1, "--set", "data.drawn_part=0.5"
    )  # fmt: skip
    assert convtwins(*arguments).exit_code == 4
    printed = convtwins_json(*arguments, "--duplicates", "allow")
    assert printed["findings"]["The data"] == printed["notes"] == snapshot


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_an_interrupt_ends_all_that_was_started(data: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    pids = tmp_path / "pids"
    script = textwrap.dedent(
        f"""
        from compare.running import launch
        from compare.__main__ import app
        launch.FRAMEWORKS = {TWINS!r}
        app(["preprocess", {str(data)!r}, "--engines", "left", "--workers", "1"])
        """
    )
    variables = {"FAKE_SCAN_BEHAVIOUR": '{"left-1": "hang"}', "FAKE_SCAN_PIDS": str(pids)}
    with started([sys.executable, "-c", script], variables=variables) as process:
        deadline = time.monotonic() + 300
        while not (pids.exists() and pids.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        scans = [int(pid) for pid in pids.read_text().split()]
        process.send_signal(number)
        assert process.wait(30) == code
    assert not [pid for pid in scans if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
