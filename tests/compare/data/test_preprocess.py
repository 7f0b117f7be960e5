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
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from common.data.preprocessing import dask_scan, statistics
from common.data.sources import load
from common.machine import machine
from common.spec import Data
from compare.data import preprocess_report
from compare.execution import launch
from tests.common.data.preprocessing.made_up_scan import jpeg
from tests.common.made_up_data import write_folder
from tests.support.command_line import convtwins

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


def preprocess(*arguments: str | Path) -> Any:
    return convtwins("preprocess", *arguments)


def rows(done: Any) -> dict[str, dict[str, Any]]:
    return {f"{row['engine']}-{row['workers']}": row for row in json.loads(done.stdout)["rows"]}


def test_every_engine_gives_the_statistics_of_the_training_split(data: Path) -> None:
    done = preprocess(data, "--engines", "dask,left,right", "--workers", "1,4", "--repeats", "1", "--json")
    assert done.exit_code == 0, done.output
    images = np.asarray(load(Data(source=str(data)), seed=0).train.images)
    scaled = images.reshape(-1, 3) / 255
    made = rows(done)
    assert list(made) == ["dask-1", "dask-4", "left-1", "left-4", "right-1", "right-4"]
    for row in made.values():
        np.testing.assert_allclose(row["mean"], scaled.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(row["std"], scaled.std(axis=0), rtol=1e-12)
        assert row["images"] == len(images) and row["status"] == "ok"
        assert math.isclose(row["images_per_second"], row["images"] / row["seconds"])
        assert math.isclose(row["efficiency"], row["speedup"] / row["workers"])
    assert [row["oversubscribed"] for row in made.values()] == [False, True] * 3
    assert made["left-1"]["speedup"] == 1.0 and made["left-4"]["speedup"] > 1.0


def test_the_result_is_stored_for_the_runs(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = preprocess(data, "--engines", "left", "--workers", "1", "--repeats", "1", "--json")
    printed = json.loads(done.stdout)
    dataset = load(Data(source=str(data)), seed=0)
    assert printed["content_hash"] == dataset.content_hash
    monkeypatch.setattr(statistics.scan, "scan_array", None)  # it must not be computed again
    found = statistics.dataset_statistics(dataset.train.images, dataset.content_hash)
    assert [list(found.mean), list(found.std)] == [printed["mean"], printed["std"]]


def test_scans_take_turns_and_the_median_counts(data: Path) -> None:
    done = preprocess(data, "--engines", "left,right", "--workers", "1", "--repeats", "3", "--json")
    there = ["left-1", "right-1"]
    assert Path(os.environ["FAKE_SCAN_ORDER"]).read_text().split() == there + there[::-1] + there
    for row in rows(done).values():
        assert row["seconds"] == sorted(scan["seconds"] for scan in row["scans"])[1]


def test_without_a_row_of_one_worker_there_is_no_speed_up(data: Path) -> None:
    row = rows(preprocess(data, "--engines", "left", "--workers", "2", "--repeats", "1", "--json"))["left-2"]
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
    done = preprocess(data, "--engines", "left,right", "--workers", "1,2", "--repeats", "2", "--json")
    assert done.exit_code == 1
    made = rows(done)
    assert {name: row["status"] for name, row in made.items()} == {
        "left-1": "ok",
        "left-2": status,
        "right-1": "ok",
        "right-2": "ok",
    }
    assert made["left-2"]["reason"] == reason
    assert made["left-2"]["seconds"] is None and made["left-2"]["mean"] is None
    assert Path(os.environ["FAKE_SCAN_ORDER"]).read_text().split().count("left-2") == 1
    assert f"left x2: {status}: {reason}" in preprocess(data, "--engines", "left", "--workers", "2").stdout


def test_sums_that_differ_in_one_unit_are_named_and_nothing_is_stored(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behave(monkeypatch, right_2="lie")
    arguments = (data, "--engines", "left,right", "--workers", "1,2", "--repeats", "1")
    done = preprocess(*arguments, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["differing"] == ["right x2"]
    assert not (tmp_path / "cache" / "statistics").exists()
    assert "NOT THE SAME: right x2 found other integer sums than the others." in preprocess(*arguments).stdout


@pytest.mark.drawn
def test_table_and_plot_are_written(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preprocess_report, "DISTURBED_FROM", -1.0)  # so that other work disturbs every scan
    out = tmp_path / "out"
    done = preprocess(data, "--engines", "dask,left", "--workers", "1,4", "--repeats", "1", "--out", out)
    assert done.exit_code == 0, done.output
    assert {path.name for path in out.iterdir()} - {".lock"} == {
        "logs",
        "plots",
        "tables",
        *(f"preprocess.{suffix}" for suffix in ("md", "html", "json")),
    }
    assert (out / "plots" / "preprocess.png").read_bytes().startswith(b"\x89PNG")
    assert (
        ">workers</text>" in (out / "plots" / "preprocess.svg").read_text()
        and ">dask</text>" in (out / "plots" / "preprocess.svg").read_text()
    )
    assert (
        "| engine | workers | seconds | images/s | speed-up | efficiency | oversubscribed |"
        in (out / "preprocess.md").read_text()
    )
    assert [row[:2] for row in csv.reader((out / "tables" / "preprocess.csv").read_text().splitlines())] == [
        ["engine", "workers"], ["dask", "1"], ["dask", "4"], ["left", "1"], ["left", "4"],
    ]  # fmt: skip
    disturbed = "Other work disturbed scans of 4 rows (dask x1, dask x4, left x1, left x4): rely on no time of them."
    assert disturbed in (out / "preprocess.md").read_text()
    for row in json.loads((out / "preprocess.json").read_text())["rows"]:
        assert {"engine", "workers", "seconds", "images", "images_per_second", "speedup", "efficiency"} <= row.keys()
        assert {"oversubscribed", "mean", "std", "status", "reason"} <= row.keys()
    assert re.search(r"dask +1 .* no .* ok", done.stdout) and re.search(r"left +4 .* yes .* ok", done.stdout)


def test_more_workers_than_a_cluster_has_is_a_row_that_is_not_run(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_scan, "workers_and_cores", lambda address: (1, 1))
    done = preprocess(data, "--engines", "dask", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1", "--json")
    assert done.exit_code == 0
    row = rows(done)["dask-2"]
    assert (row["status"], row["reason"], row["oversubscribed"]) == ("not available", "the cluster has 1 worker", True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--engines", "dusk"), 2, "--engines names something unknown. Received: 'dusk'. Use dask, left, right."),
        (("--engines", ""), 2, "--engines is empty"),
        (("--engines", "left,left"), 2, "Name each once"),
        (("--workers", "0"), 2, "--workers must be whole numbers of at least 1. Received: '0'."),
        (("--workers", "1,-2"), 2, "Received: '-2'"),
        (("--workers", "two"), 2, "Received: 'two'"),
        (("--workers", "1,1"), 2, "Name each once"),
        (
            ("--scheduler", "thread"),
            2,
            "--scheduler is unknown. Received: 'thread'. Use threads, processes, tcp://host:port or tls://host:port.",
        ),
        (("--scheduler", "tls:/host:1"), 2, "--scheduler is unknown. Received: 'tls:/host:1'."),
        (("--scheduler", "tls://host:1", "--set", "data.on_bed=skip"), 2, "Did you mean on_bad?"),
        (("--limit", "0"), 2, "limit"),
    ],
)
def test_what_cannot_be_scanned_is_refused(data: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = preprocess(data, "--engines", "left", *arguments)
    assert done.exit_code == code, done.output
    assert message in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("source", "message"),
    [("digits", "digits holds no image files, and preprocessing reads nothing else."), ("no/such/folder", "no/such/folder")],
)
def test_data_without_files_is_refused(data: Path, source: str, message: str) -> None:
    done = preprocess(source, "--engines", "left")
    assert done.exit_code == 4 and message in done.stderr


def test_a_scheduler_that_is_not_there_is_refused_soon(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_scan, "CONNECT_SECONDS", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        done = preprocess(data, "--engines", "dask", "--scheduler", address)
    assert done.exit_code == 2
    assert f"scheduler cannot be reached. Received: {address}" in done.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # they are counted here
@pytest.mark.parametrize("place", ["nonsense", "127.0.0.1", "no-such-host.invalid:8786", "127.0.0.1:port", "[::1"])
def test_an_address_without_a_listener_is_refused_at_once_in_one_sentence(
    data: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    monkeypatch.setattr(dask_scan.distributed, "Client", None)  # which would take its time
    done = preprocess(data, "--engines", "dask", "--scheduler", f"tcp://{place}")
    gc.collect()
    assert (done.exit_code, done.stdout, complaints) == (2, "", [])
    assert done.stderr.startswith(f"scheduler cannot be reached. Received: tcp://{place} (") and done.stderr.count("\n") == 1


def test_a_listener_that_says_nothing_is_no_scheduler(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_scan, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(dask_scan.distributed, "Client", None)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        done = preprocess(data, "--engines", "dask", "--scheduler", f"tcp://127.0.0.1:{mute.getsockname()[1]}")
    assert done.exit_code == 2 and "scheduler cannot be reached" in done.stderr


@pytest.mark.parametrize("occupant", ["notes.txt", "preprocess.json", "data.json"])
def test_a_folder_with_other_files_is_refused_and_left_as_it_is(data: Path, tmp_path: Path, occupant: str) -> None:
    out = write_folder(tmp_path / "out", {occupant: b"{}"})
    done = preprocess(data, "--engines", "left", "--workers", "1", "--out", out)
    assert done.exit_code == 2 and f"no preprocess ({occupant})" in done.stderr
    assert [path.name for path in out.iterdir()] == [occupant]
    assert not Path(os.environ["FAKE_SCAN_ORDER"]).exists()


def test_a_file_in_place_of_the_folder_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    done = preprocess(data, "--engines", "left", "--workers", "1", "--out", tmp_path / "out")
    assert done.exit_code == 2 and f"{tmp_path / 'out'} is a file, not a folder." in done.stderr
    assert "Choose a folder with --out." in done.stderr


def test_an_earlier_result_is_replaced(data: Path, tmp_path: Path) -> None:
    for workers in ("1", "2"):
        arguments = ("--engines", "left", "--workers", workers, "--repeats", "1", "--out", tmp_path / "out")
        assert preprocess(data, *arguments).exit_code == 0
    assert [row["workers"] for row in json.loads((tmp_path / "out" / "preprocess.json").read_text())["rows"]] == [2]


def test_workers_without_work_are_reported(data: Path) -> None:
    said = preprocess(data, "--engines", "left", "--workers", "1,5", "--repeats", "1").stdout
    assert "Of 5 workers at most 1 had work" in said and "same integer sums in both scans" in said
    alone = preprocess(data, "--engines", "left", "--workers", "1", "--repeats", "1").stdout
    assert "had work" not in alone and "The one scan found the same integer sums as this process" in alone


@pytest.mark.parametrize("option", [("--on-bad", "skip"), pytest.param(("--set", "data.on_bad=skip"), marks=pytest.mark.slow)])
def test_bad_files_may_be_left_out(data: Path, option: tuple[str, str]) -> None:
    (data / "a" / "bad.jpg").write_bytes(b"x")
    arguments = (data, "--engines", "left", "--workers", "1", "--repeats", "1")
    assert preprocess(*arguments).exit_code == 4
    assert preprocess(*arguments, *option).exit_code == 0


def test_the_size_is_an_option_as_of_other_commands_and_stands_beside_mean_and_deviation(data: Path, tmp_path: Path) -> None:
    arguments = (data, "--engines", "left", "--workers", "1", "--repeats", "1")
    assert "Mean / standard deviation in 0..1 at 24 x 24 pixels: red " in preprocess(*arguments).stdout
    done = preprocess(*arguments, "--image-size", "8", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "Mean / standard deviation in 0..1 at 8 x 8 pixels: red " in done.stdout
    assert "images of leaves at 8 x 8 pixels" in (tmp_path / "out" / "preprocess.md").read_text()
    stored = json.loads((tmp_path / "out" / "preprocess.json").read_text())
    scaled = np.asarray(load(Data(source=str(data), image_size=8), seed=0).train.images).reshape(-1, 3) / 255
    assert stored["image_size"] == 8
    np.testing.assert_allclose(stored["std"], scaled.std(axis=0), rtol=1e-12)
    assert preprocess(*arguments, "--image-size", "0").exit_code == 2


def test_images_in_two_splits_may_be_allowed_and_the_notes_on_the_data_are_told(data: Path) -> None:
    for split in ("train", "val"):
        write_folder(data / split, {f"{name}/{seed}.jpg": jpeg(seed) for seed, name in enumerate("abab")})
    for name in "ab":
        shutil.rmtree(data / name)
    arguments = (data, "--engines", "left", "--workers", "1", "--repeats", "1", "--set", "data.drawn_part=0.5")
    assert preprocess(*arguments).exit_code == 4
    done = preprocess(*arguments, "--duplicates", "allow")
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert "The data " in said and "validation images are training images too, equal pixel for pixel" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_an_interrupt_ends_all_that_was_started(data: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    pids = tmp_path / "pids"
    script = textwrap.dedent(
        f"""
        from compare.execution import launch
        from compare.__main__ import app
        launch.FRAMEWORKS = {TWINS!r}
        app(["preprocess", {str(data)!r}, "--engines", "left", "--workers", "1"])
        """
    )
    environment = {**os.environ, "FAKE_SCAN_BEHAVIOUR": '{"left-1": "hang"}', "FAKE_SCAN_PIDS": str(pids)}
    process = subprocess.Popen([sys.executable, "-c", script], cwd=launch.PROJECT_ROOT, env=environment)
    deadline = time.monotonic() + 300
    while not (pids.exists() and pids.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    started = [int(pid) for pid in pids.read_text().split()]
    process.send_signal(number)
    assert process.wait(30) == code
    assert not [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
