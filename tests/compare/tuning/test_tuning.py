"""Tuning with twins that really train and need no framework: what is searched, what is kept, and what is said of it."""

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import optuna
import psutil
import pytest
from sqlalchemy.exc import OperationalError

from common.artifacts import atomic_files
from common.data.sources.splits import CAUTION
from common.spec import SpecError
from compare.core.errors import FolderError, LaunchError
from compare.execution import launch
from compare.judgement.verdict_sentences import NO_FINDING
from compare.reporting import tables
from compare.tuning import conductor, optuna_study, tuner, tuning_findings, tuning_report, tuning_sentences
from compare.tuning.records import BestTrial, TunedTrial, Tuning, TuningPlan, TuningRecord, TuningSearch
from compare.tuning.servers import ENDED, Listener
from tests.support.command_line import convtwins
from tests.support.snapshots import FOLDER, Screens

TWINS = {side: f"tests.compare.twins.learner_{side}" for side in ("left", "right")}
SPACE = {
    "optimizer.learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
    "optimizer.momentum": {"low": 0.0, "high": 0.9},
}
VALUES: dict[str, Any] = {"epochs": 2, "data": {"limit": 128}, "cores": 1, "global_batch_size": 128}
SECONDS = 300

DRIVER = Path(__file__).parents[1] / "twins" / "tune.py"


@pytest.fixture(scope="module", autouse=True)
def _learners() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "FRAMEWORKS", TWINS)
        launch.DESCRIPTIONS.clear()
        yield
    launch.DESCRIPTIONS.clear()


def asked(**settings: Any) -> Tuning:
    return Tuning(**{"values": VALUES, "space": SPACE, "frameworks": ("left",), "trials": 3, **settings})


def drawn(search: TuningSearch) -> dict[int, dict[str, Any]]:
    return {trial.slot: trial.fields for trial in search.trials}


def states(folder: Path) -> list[str]:
    """Of all trials, as whoever else looks into the storage sees them."""
    try:
        with closing(sqlite3.connect(f"file:{folder / tuner.STORAGE_FILE}?mode=ro", uri=True)) as connection:
            return [state for (state,) in connection.execute("SELECT state FROM trials")]
    except sqlite3.OperationalError:  # it is being made
        return []


def is_running(folder: Path) -> bool:
    return bool({"RUNNING", "WAITING"} & set(states(folder)))


def wait_until_running(folder: Path) -> psutil.Process:
    """The first of this process's servers, as soon as a trial runs."""
    deadline = time.monotonic() + SECONDS
    while not is_running(folder):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return next(child for child in psutil.Process().children() if child.name() == "learner_left")


# Searches.


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuningRecord]:
    folder = tmp_path_factory.mktemp("tuning") / "made"
    return folder, tuner.tune(asked(sampler="random", jobs=(1, 3), frameworks=("left", "right")), folder)


@pytest.mark.slow
def test_random_trials_are_the_same_in_every_framework_and_with_every_number_of_jobs(
    searched: tuple[Path, TuningRecord],
) -> None:
    _, tuned = searched
    first, *others = tuned.searches
    assert [(search.contestant, search.jobs) for search in tuned.searches] == [
        ("left", 1), ("left", 3), ("right", 1), ("right", 3)
    ]  # fmt: skip
    assert len(drawn(first)) == 3 and first.done and tuned.exit_code == 0
    for other in others:
        assert drawn(other) == drawn(first)
        assert {trial.slot: trial.value for trial in other.trials} == {trial.slot: trial.value for trial in first.trials}


def test_the_best_of_a_framework_has_all_that_the_space_names(searched: tuple[Path, TuningRecord]) -> None:
    _, tuned = searched
    trials = [trial for search in tuned.searches for trial in search.trials]
    assert tuned.best_trials["left"].trial.value == min(trial.value or 9.0 for trial in trials)
    assert tuned.best["left"].keys() == SPACE.keys()
    assert all(trial.value == trial.loss and trial.epochs == 2 and trial.images == 2 * 128 for trial in trials)
    assert all(
        0 <= trial.began_seconds < trial.ended_seconds <= search.seconds for search in tuned.searches for trial in search.trials
    )


def test_a_done_tuning_is_returned_and_nothing_is_trained(
    searched: tuple[Path, TuningRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tuned = searched

    def start(*arguments: Any, **options: Any) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(launch, "start", start)
    assert tuner.tune(asked(sampler="random", jobs=(1, 3), frameworks=("left", "right")), folder) == tuned
    assert tuner.read(folder) == tuned


def test_a_folder_with_another_tuning_is_refused_and_told_what_differs(searched: tuple[Path, TuningRecord]) -> None:
    folder, _ = searched
    with pytest.raises(FolderError, match=r"another tuning \(sampler is \"random\" there, asked for: \"tpe\"\)"):
        tuner.tune(asked(sampler="tpe", jobs=(1, 3), frameworks=("left", "right")), folder)


@pytest.mark.slow
def test_a_tuning_says_who_signed_it(searched: tuple[Path, TuningRecord], tmp_path: Path, ssh_key: Path) -> None:
    folder = shutil.copytree(searched[0], tmp_path / "copy")
    for words, said in ((("--sign", str(ssh_key)), "Signed by"), ((), "Signed by"), ((), "SIGNATURE NOT CONFIRMED")):
        done = convtwins("tune", "--resume", folder, *words)
        assert f"{said}" in done.stdout and str(ssh_key) not in (folder / "report.md").read_text()
        assert done.exit_code == (0 if said == "Signed by" else 1), done.output
        if not words:
            (folder / "signed.txt").write_text("0" * 64 + "  tuned.json\n")


@pytest.mark.drawn
def test_the_report_is_written_in_every_form(
    searched: tuple[Path, TuningRecord], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, tuned = searched
    report = tuning_report.report(tuned, tmp_path)
    assert report.write(tmp_path) is None
    names = {"tuning", "tuning_quality", "tuning_best", "tuning_progress", "tuning_trials"}
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {f"{n}.{s}" for n in names for s in ("csv", "md", "tex")}
    plots = {"best_after_trials", "best_after_seconds", "seconds_by_jobs", "parallel_coordinates"}
    assert {path.stem for path in (tmp_path / "plots").iterdir()} == plots
    page = (tmp_path / "report.html").read_text()
    assert "6 of 6 trials had the same settings in left and right" in page and page.count("<svg") == len(plots)
    assert "too few repeats to tell (1 of 5)" in (tmp_path / "report.md").read_text()
    plain = json.loads(report.to_json())
    assert plain["best"] == tuned.best and plain["exit_code"] == 0
    for folder in (tmp_path, None):  # None: it could not be written
        report.show(folder, as_json=False)
        assert ("the page" in capsys.readouterr().out) is (folder is not None)


def test_a_pruner_stops_trials_between_epochs_and_processes_serve_them(tmp_path: Path) -> None:
    values = {**VALUES, "epochs": 4}
    several = {"backend": "processes", "jobs": (2,), "trials": 6}
    tuned = tuner.tune(asked(values=values, pruner="halving", sampler="random", objective="accuracy", **several), tmp_path)
    (search,) = tuned.searches
    states = {state: [trial for trial in search.trials if trial.state == state] for state in ("ok", "pruned")}
    assert len(states["ok"]) + len(states["pruned"]) == 6 and all(states.values())
    # Rungs stand at epochs 1 and 3.
    assert {trial.epochs for trial in states["pruned"]} <= {1, 3} and {trial.epochs for trial in states["ok"]} == {4}
    assert len(list((tmp_path / "logs").iterdir())) == 2
    # Of accuracy the largest is the best.
    assert tuned.best_trials["left"].trial.value == max(trial.accuracy or 0.0 for trial in states["ok"])


def test_a_trial_that_diverges_or_is_refused_fails_alone(tmp_path: Path) -> None:
    space = {"optimizer.learning_rate": {"choices": [0.01, 1e300]}, "model": {"choices": ["simple_cnn", "mini_xception"]}}
    values = {**VALUES, "data": {"limit": 128, "image_size": 48}}  # which the one takes, and not the other
    tuned = tuner.tune(asked(values=values, space=space, sampler="grid", trials=9), tmp_path)
    (search,) = tuned.searches
    found = {(trial.fields["optimizer.learning_rate"], trial.fields["model"]): trial for trial in search.trials}
    assert {key: trial.state for key, trial in found.items()} == {
        (0.01, "simple_cnn"): "ok",
        (1e300, "simple_cnn"): "diverged",
        (0.01, "mini_xception"): "failed",
        (1e300, "mini_xception"): "failed",
    }
    assert "smaller optimizer.learning_rate" in str(found[1e300, "simple_cnn"].reason)
    assert "data.image_size must be 32 for mini_xception" in str(found[0.01, "mini_xception"].reason)
    assert tuned.exit_code == 1  # of the refused ones: a trial that diverges is an answer
    assert "on digits: 4 of the 4 points of a grid, 1 job by" in tuning_report.report(tuned, tmp_path).facts[0]


def test_studies_may_stand_in_another_database_under_names_of_their_own(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    tuned = tuner.tune(asked(storage=storage, trials=1), tmp_path / "tuning")
    assert optuna.get_all_study_names(storage) == [f"{tuned.plan.token}-left-threads-1jobs-r0"]
    assert not (tmp_path / "tuning" / tuner.STORAGE_FILE).exists()
    assert tuner.tune(asked(storage=storage, trials=1), tmp_path / "tuning") == tuned


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("UPDATE trial_values SET value = 0.001 WHERE trial_id = 1", "its value is 0.001, and the loss of its record "),
        ("UPDATE trial_user_attributes SET value_json = '{}' WHERE key = 'run'", "its record cannot be read: "),
        ("UPDATE trial_user_attributes SET value_json = '7' WHERE key = 'run'", "its record cannot be read: "),
        ("UPDATE trial_user_attributes SET value_json = '{' WHERE key = 'run'", "cannot be read (JSONDecodeError: "),
        (None, "file is not a database). Restore it, or tune in another folder."),
    ],
)
def test_trials_that_were_changed_since_are_not_believed(
    searched: tuple[Path, TuningRecord], tmp_path: Path, changed: str | None, said: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(searched[0], folder)
    storage = folder / tuner.STORAGE_FILE
    if changed is None:
        storage.write_text("no database, whatever its name says")
    else:
        with closing(sqlite3.connect(storage)) as connection, connection:
            assert connection.execute(changed).rowcount
    done = convtwins("tune", "--resume", folder)
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.stderr, done.output


@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_a_tuning_whose_trials_are_lost_keeps_its_record(
    searched: tuple[Path, TuningRecord], tmp_path: Path, lost: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(searched[0], folder)
    (folder / tuner.STORAGE_FILE).unlink()
    if lost == "empty":
        (folder / tuner.STORAGE_FILE).touch()
    done = convtwins("tune", "--resume", folder)
    assert done.exit_code == 2 and f"which holds the trials, is {lost}. Restore it" in done.stderr, done.output
    assert (folder / tuner.RECORD_FILE).read_bytes() == (searched[0] / tuner.RECORD_FILE).read_bytes()


@pytest.mark.parametrize(
    ("reason", "advice"), [("database or disk is full", "Free space."), ("no such table: trials", "Repair it.")]
)
def test_a_storage_that_fails_says_what_helps(reason: str, advice: str) -> None:
    with (
        pytest.raises(LaunchError, match=rf"{reason}.*\. {advice} Then the same command resumes"),
        optuna_study.storage_errors(),
    ):
        raise OperationalError("INSERT", {}, sqlite3.OperationalError(reason))


def test_a_storage_that_another_one_has_open_is_not_called_damaged(
    searched: tuple[Path, TuningRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna_study, "_BUSY_SECONDS", 0.1)
    folder = tmp_path / "copy"
    shutil.copytree(searched[0], folder)
    with closing(sqlite3.connect(folder / tuner.STORAGE_FILE)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        done = convtwins("tune", "--resume", folder)
    assert done.exit_code == 2 and "database is locked). Run the same command again" in done.stderr, done.output


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"values": {**VALUES, "mode": "data_parallel", "replicas": 2}}, "mode of a trial must be serial"),
        ({"values": {**VALUES, "part": "input"}}, "part of a trial must be training"),
        ({"scheduler": "tcp://127.0.0.1:1"}, "--scheduler needs --backend dask"),
        ({"scheduler": "tcp://127.0.0.1:1", "backend": "dask"}, "scheduler cannot be reached"),
        ({"frameworks": ("middle",)}, "--frameworks names something unknown"),
        ({"space": {"cores": {"low": 1, "high": 2}}, "space_name": "mine.yaml"}, "space mine.yaml: cores cannot be tuned"),
        ({"storage": "sqlite:////no/such/folder/x.db"}, "--storage cannot be used"),
        ({"storage": "postgresql://user:secret@127.0.0.1/x"}, "--storage cannot be used"),
        ({"jobs": ()}, "--jobs must be at least 1"),
        (
            {"space": {"seed": {"low": 1, "high": 9}}, "space_name": "mine.yaml"},
            "the best of several seeds is only the luckiest",
        ),
        ({"space": {"data.image_size": {"low": 16, "high": 32}}}, "it changes the images that the trials are scored on"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        tuner.tune(asked(**settings), tmp_path)
    assert said in str(refused.value) and "secret" not in str(refused.value)
    assert "storage" not in settings or not list(tmp_path.iterdir())


def test_a_mode_on_the_command_line_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    done = convtwins(
        "tune", "--set", "mode=data_parallel", "--set", "replicas=2", "--frameworks", "left", "--out", tmp_path / "out"
    )
    assert done.exit_code == 2 and "mode of a trial must be serial" in done.stderr and not (tmp_path / "out").exists()


def test_options_of_the_spec_are_those_of_all_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tuning] = []

    def tune(settings: Tuning, folder: Path, lock: object) -> None:
        seen.append(settings)
        raise SpecError("seen")

    monkeypatch.setattr(tuner, "tune", tune)
    fields = ["--batch-size", "32", "--image-size", "16", "--optimizer", "adam", "--precision", "float64", "--limit", "9"]
    done = convtwins("tune", "--preset", "digits", *fields, "--frameworks", "left")
    assert done.stderr == "seen\n"
    values = seen[0].values
    assert values["data"] == {"source": "digits", "image_size": 16, "limit": 9} and values["optimizer"]["name"] == "adam"
    assert (values["global_batch_size"], values["precision"], values["epochs"]) == (32, "float64", 3)


def test_a_server_that_does_not_start_ends_the_tuning_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.describe("left")
    monkeypatch.setitem(TWINS, "left", "no_such_module")
    with pytest.raises(LaunchError, match=r"left cannot serve trials: exit code 1: .*No module named no_such_module"):
        tuner.tune(asked(), tmp_path)


def test_a_switch_that_is_settled_when_a_process_starts_is_refused_once_and_not_in_every_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = launch.describe("left")
    options = {"allocator": {"values": ["keeping", "system"], "default": "keeping", "plain": "system", "process": ["system"]}}
    monkeypatch.setitem(launch.DESCRIPTIONS, "left", {**described, "options": options})
    with pytest.raises(SpecError, match=r"framework_options\.allocator of left is settled when a process starts"):
        tuner.tune(asked(values={**VALUES, "framework_options": {"allocator": "system"}}), tmp_path)
    with pytest.raises(SpecError, match="switches of a trial must be usual or best"):
        tuner.tune(asked(values={**VALUES, "switches": "plain"}), tmp_path)
    assert not list(tmp_path.iterdir())


# Kills.


def test_a_killed_server_fails_its_trials_and_the_others_are_trained_by_another(tmp_path: Path) -> None:
    values = {**VALUES, "epochs": 20, "global_batch_size": 16}

    def kill() -> None:
        wait_until_running(tmp_path).send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    tuned = tuner.tune(asked(values=values, jobs=(2,), trials=4, sampler="random"), tmp_path)
    killer.join()
    (search,) = tuned.searches
    states = [trial.state for trial in sorted(search.trials, key=lambda trial: trial.slot)]
    assert states.count("killed") in (1, 2) and states.count("ok") == 4 - states.count("killed")
    assert {trial.reason for trial in search.trials if trial.state == "killed"} == {"killed by SIGKILL"}
    assert not is_running(tmp_path) and tuned.exit_code == 1


class Scripted:
    """A server that does what it is asked at once; the second one ends behind its trial, before the first one's is done."""

    def __init__(self, servers: list["Scripted"], listener: Listener) -> None:
        self._servers, self._listener = servers, listener
        servers.append(self)
        self._listener({"event": "ready"})

    def send(self, message: dict[str, Any]) -> None:
        self._trial = message["trial"]
        if self is self._servers[1]:
            self.end_trial()
            self._listener({"event": ENDED, "reason": "out of memory"})
            self._servers[0].end_trial()

    def end_trial(self) -> None:
        scores = {"loss": 0.5, "accuracy": 0.5}
        self._listener({"event": "start", "trial": self._trial, "total_epochs": 1})
        self._listener({"event": "epoch", "trial": self._trial, "epoch": 1, "validation": scores, "images": 8})
        self._listener({"event": "end", "trial": self._trial, "status": "ok", "reason": None})

    def expect(self) -> None: ...

    def look(self) -> None: ...

    def close(self) -> None: ...


def test_a_server_that_dies_when_it_has_nothing_left_to_do_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[Scripted] = []

    @contextmanager
    def serving(*_: Any) -> Iterator[Any]:
        yield lambda place, listener: Scripted(servers, listener)

    monkeypatch.setattr(conductor, "serving", serving)
    (search,) = tuner.tune(asked(backend="processes", jobs=(2,), trials=2), tmp_path).searches
    assert [trial.state for trial in search.trials] == ["ok", "ok"] and len(servers) == 2


class Mortal(Scripted):
    """A server that does what it is asked at once, but the second one, which ends, and the third, which never comes up."""

    def __init__(self, servers: list[Scripted], listener: Listener) -> None:
        if len(servers) == 2:
            servers.append(self)
            listener({"event": ENDED, "reason": "out of memory again"})
        else:
            super().__init__(servers, listener)

    def send(self, message: dict[str, Any]) -> None:
        self._trial = message["trial"]
        if self is self._servers[1]:
            self._listener({"event": ENDED, "reason": "out of memory"})
        elif len(self._servers) == 2 and int(self._trial) == 0:
            pass  # until the second one is gone
        else:
            self.end_trial()

    def look(self) -> None:
        if self is self._servers[0] and self._trial == "0":
            self.end_trial()
            self._trial = ""


def test_a_server_that_cannot_be_replaced_leaves_its_trials_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[Scripted] = []

    @contextmanager
    def serving(*_: Any) -> Iterator[Any]:
        yield lambda place, listener: Mortal(servers, listener)

    monkeypatch.setattr(conductor, "serving", serving)
    tuned = tuner.tune(asked(backend="processes", jobs=(2,), trials=4), tmp_path)
    (search,) = tuned.searches
    assert sorted(trial.state for trial in search.trials) == ["killed", "ok", "ok", "ok"] and len(servers) == 3
    assert search.servers_lost == 1 and search.done and not search.timed
    cautions = dict(tuning_sentences.sentences(tuned, tuning_findings.judge_tuning(tuned)))["Cautions"]
    assert any("1 of its processes ended and could not be replaced" in each for each in cautions)


def test_a_server_that_hangs_is_ended_and_its_trial_fails(tmp_path: Path) -> None:
    def stop() -> None:
        wait_until_running(tmp_path).suspend()

    stopper = threading.Thread(target=stop)
    stopper.start()
    values = {**VALUES, "epochs": 100, "global_batch_size": 16, "hang_seconds": 2.0}
    (search,) = tuner.tune(asked(values=values, trials=1, sampler="random"), tmp_path).searches
    stopper.join()
    assert [trial.state for trial in search.trials] == ["killed"]
    assert "the process is stopped" in str(search.trials[0].reason)


def begun(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), "--out", str(folder), *words],
        env={**os.environ, "PYTHONPATH": str(launch.PROJECT_ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_told(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many trials are told and another one runs."""
    deadline = time.monotonic() + SECONDS
    while states(folder).count("COMPLETE") < count or not is_running(folder):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.02)


@pytest.mark.slow
def test_a_dask_worker_that_is_killed_fails_its_trial_and_another_takes_its_place(tmp_path: Path) -> None:
    words = ("--frameworks", "left", "--trials", "6", "--limit", "128", "--cores", "2", "--epochs", "60", "--sampler", "random")
    tuned = begun(tmp_path, *words, "--backend", "dask", "--jobs", "2", "--json")
    until_told(tmp_path, 1, tuned)
    serving = [each for each in psutil.Process(tuned.pid).children(recursive=True) if "serve-trials" in each.cmdline()]
    assert len(serving) == 2
    worker = serving[0].parent()
    assert worker is not None and worker.pid != tuned.pid
    worker.kill()
    stdout, stderr = tuned.communicate(timeout=SECONDS)
    assert tuned.returncode == 1, stderr
    (search,) = json.loads(stdout)["searches"]
    states = [trial["state"] for trial in search["trials"]]
    assert sorted(states) == ["killed"] + ["ok"] * 5
    (killed,) = (trial for trial in search["trials"] if trial["state"] == "killed")
    assert "its Dask worker is lost" in killed["reason"]
    assert not is_running(tmp_path)


@pytest.mark.slow
def test_a_server_of_a_dask_worker_that_hangs_is_ended_too(tmp_path: Path) -> None:
    words = ("--frameworks", "left", "--trials", "1", "--limit", "128", "--cores", "1", "--epochs", "200")
    tuned = begun(tmp_path, *words, "--backend", "dask", "--set", "hang_seconds=2", "--json")
    until_told(tmp_path, 0, tuned)
    serving = (each for each in psutil.Process(tuned.pid).children(recursive=True) if "serve-trials" in each.cmdline())
    next(serving).suspend()
    stdout, stderr = tuned.communicate(timeout=SECONDS)
    assert tuned.returncode == 1, stderr
    ((trial,),) = (search["trials"] for search in json.loads(stdout)["searches"])
    assert trial["state"] == "killed" and "the process is stopped" in trial["reason"]


LONG: dict[str, Any] = {"epochs": 12, "data": {"limit": 128}, "cores": 1}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> TuningSearch:
    """A search by TPE that nobody disturbs."""
    return tuner.tune(asked(values=LONG, trials=6), tmp_path_factory.mktemp("tuning")).searches[0]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_tuning_that_was_cut_short_goes_on_to_what_it_would_have_been(
    tmp_path: Path, alone: TuningSearch, number: int, code: int, deliveries: list[str]
) -> None:
    folder, space = tmp_path / "cut", tmp_path / "space.yaml"
    space.write_text(json.dumps(SPACE))
    words = ("--frameworks", "left", "--trials", "6", "--limit", "128", "--cores", "1", "--epochs", "12")
    cut = begun(folder, *words, "--space", str(space))
    until_told(folder, 3, cut)
    cut.send_signal(number)
    _, stderr = cut.communicate(timeout=SECONDS)
    assert cut.returncode == code, stderr
    if number == signal.SIGINT:
        assert not is_running(folder)
        assert "Interrupted. Finished trials are saved" in stderr and (folder / "report.html").exists()
        assert 3 <= len(tuner.read(folder).searches[0].trials) < 6
    again = convtwins("tune", "--resume", folder, "--json")
    assert again.exit_code == 0, again.stderr
    assert deliveries == ["locked"]
    assert json.loads(again.stdout)["done"]
    (resumed,) = tuner.read(folder).searches
    assert not is_running(folder)
    assert drawn(resumed) == drawn(alone)
    assert {trial.slot: trial.value for trial in resumed.trials} == {trial.slot: trial.value for trial in alone.trials}
    assert (resumed.attempts, alone.attempts) == (2, 1)


def test_resume_takes_all_settings_from_its_folder(tmp_path: Path) -> None:
    for words, said in (
        (["--resume"], "Option '--resume' requires an argument"),
        (["--resume", str(tmp_path)], "holds no record of a tuning"),
        (["--resume", str(tmp_path), "--trials", "3"], "Received also: --trials. Leave them out"),
        (["--resume", str(tmp_path), "--out", "other"], "Received also: --out. Leave them out"),
    ):
        done = convtwins("tune", *words)
        assert done.exit_code == 2 and said in done.stderr, done.stderr


def test_resume_asks_for_a_password_that_nobody_has_written(tmp_path: Path) -> None:
    plan = made({1: [[0.5]]}, {1: 1.0}).plan
    settings = plan.settings.model_copy(update={"storage": optuna_study.masked("postgresql://me:secret@host/trials")})
    record = plan.model_copy(update={"settings": settings}).model_dump_json()
    (tmp_path / tuner.PLAN_FILE).write_text(atomic_files.with_checksum(record))
    done = convtwins("tune", "--resume", tmp_path)
    assert done.exit_code == 2 and "Received: postgresql://me:***@host/trials. Add --storage URL." in done.stderr


# What is said, from made-up searches.


def made(losses: dict[int, list[list[float]]], seconds: dict[int, float]) -> TuningRecord:
    """A tuning of one framework: {jobs: losses of the trials of each repeat}, each trial of so many seconds."""
    searches = [
        TuningSearch(
            contestant="left", jobs=jobs, repeat=repeat, seed=repeat, cores_a_trial=1, study=f"{jobs}-{repeat}", done=True,
            trials=[
                TunedTrial(
                    slot=slot, number=slot, fields={"optimizer.learning_rate": 0.01 * (slot + 1), "optimizer.momentum": 0.5},
                    state="ok", value=loss, loss=loss, accuracy=0.5, epochs=1, images=100,
                    began_seconds=slot * seconds[jobs], ended_seconds=(slot + 1) * seconds[jobs] * (1 + 0.01 * repeat),
                )
                for slot, loss in enumerate(repeats)
            ],
        )
        for jobs, each in losses.items()
        for repeat, repeats in enumerate(each)
    ]  # fmt: skip
    count = len(next(iter(losses.values())))
    settings = asked(jobs=tuple(losses), repeats=count, trials=len(searches[0].trials))
    plan = TuningPlan(
        created_at="2026-01-01T00:00:00+00:00", token="a", settings=settings, budget=2, data_name="digits", data_hash="a",
        train_examples=128, validation_examples=36, code_hash="b", versions={}, machine={},
    )  # fmt: skip
    return TuningRecord(plan=plan, searches=searches, best_trials={})


def test_five_repeats_say_what_side_by_side_gains_and_costs() -> None:
    noise = [1.0, 1.02, 0.98, 1.01, 0.99]
    few = [[0.9 * n, 0.5 * n, 0.1 * n] for n in noise]
    many = [[0.9 * n, 0.5 * n, 0.2 * n * (1 + 0.01 * place)] for place, n in enumerate(noise)]
    found = tuning_findings.judge_tuning(tuned := made({1: few, 2: many}, {1: 2.0, 2: 1.0}))
    (gain,) = found.gains
    assert gain.seconds and gain.seconds.verdict == "above" and gain.seconds.ratio.value == pytest.approx(2.0)
    assert (
        gain.after_trials
        and gain.after_trials.verdict == "above"
        and gain.after_trials.ratio.value == pytest.approx(2.04, abs=0.01)
    )
    # When two jobs have ended, one job has told its first trial alone.
    assert gain.after_seconds and gain.after_seconds.verdict == "below" and gain.after_seconds.ratio.value < 0.3
    said = dict(tuning_sentences.sentences(tuned, found))
    assert any(
        each.startswith("left, 2 jobs against 1 job: 2.04 (") and "after the same number of trials: worse." in each
        for each in said["Does it cost quality?"]
    )
    assert any("after the same seconds: better" in each for each in said["Does it cost quality?"])
    assert any(
        "2 jobs against 1 job: 2.00" in each and each.endswith(": faster.")
        for each in said["What does it gain to search side by side?"]
    )
    assert "3 comparisons make one family" in said["How sure is that?"][0]


def test_the_notes_on_the_data_are_told_and_the_doubtful_ones_are_cautions() -> None:
    tuned = made({1: [[0.5]]}, {1: 2.0})
    noted = tuned.plan.model_copy(update={"data_notes": ["left out 1 of 9 files: 1 empty", f"{CAUTION}two. Rename one"]})
    tuned = tuned.model_copy(update={"plan": noted})
    said = dict(tuning_sentences.sentences(tuned, tuning_findings.judge_tuning(tuned)))
    assert said["The data"] == noted.data_notes and "The data: two. Rename one." in said["Cautions"]


def test_differences_of_rounding_are_not_said_to_cost_quality() -> None:
    tuned = made({1: [[0.5]] * 5, 2: [[0.5 * (1 + 1e-6 * n)] for n in range(1, 6)]}, {1: 2.0, 2: 1.0})
    said = dict(tuning_sentences.sentences(tuned, tuning_findings.judge_tuning(tuned)))["Does it cost quality?"]
    assert "after the same number of trials: worse, by less than 1 %." in said[0]


def test_one_image_more_in_every_repeat_is_no_certainty() -> None:
    tuned = made({1: [[30 / 36]] * 5, 2: [[31 / 36]] * 5}, {1: 2.0, 2: 1.0})
    settings = tuned.plan.settings.model_copy(update={"objective": "accuracy"})
    tuned = tuned.model_copy(update={"plan": tuned.plan.model_copy(update={"settings": settings})})
    (gain,) = tuning_findings.judge_tuning(tuned).gains
    assert gain.after_trials and gain.after_trials.ratio.value == pytest.approx(31 / 30)
    assert gain.after_trials.ratio.p and gain.after_trials.ratio.p > 0.001


def test_fewer_repeats_say_that_they_are_too_few() -> None:
    found = tuning_findings.judge_tuning(tuned := made({1: [[0.5, 0.1]] * 4, 2: [[0.5, 0.4]] * 4}, {1: 2.0, 2: 1.0}))
    said = dict(tuning_sentences.sentences(tuned, found))
    sentences = said["Does it cost quality?"] + said["What does it gain to search side by side?"]
    assert all("too few repeats to tell (4 of 5)" in sentence for sentence in sentences)
    assert "too few settings to tell: 2" in said["Which fields matter?"][0]


def test_a_search_that_had_nothing_by_then_is_an_outcome_and_no_missing_pair() -> None:
    # One job ends its only trial after 2 seconds; two jobs are quicker in all repeats but one, when one job has nothing yet.
    tuned = made({1: [[0.5]] * 6, 2: [[0.4]] * 6}, {1: 2.0, 2: 2.5})
    slow, quick = tuned.searches[5], tuned.searches[-1]
    (trial,) = quick.trials
    early = quick.model_copy(update={"trials": [trial.model_copy(update={"ended_seconds": 1.0})]})
    tuned = tuned.model_copy(update={"searches": [*tuned.searches[:-1], early]})
    assert slow.repeat == quick.repeat
    found = tuning_findings.judge_tuning(tuned)
    (gain,) = found.gains
    assert gain.after_seconds is None and gain.empty == 6 and gain.after_trials is not None
    said = dict(tuning_sentences.sentences(tuned, found))["Does it cost quality?"]
    assert any("after the same seconds: cannot tell. In 6 repeats" in each for each in said)


def test_a_search_that_was_cut_short_stands_in_no_ratio_of_times() -> None:
    tuned = made({1: [[0.5, 0.4]] * 5, 2: [[0.5, 0.4]] * 5}, {1: 2.0, 2: 1.0})
    first, *others = tuned.searches
    tuned = tuned.model_copy(update={"searches": [first.model_copy(update={"attempts": 2}), *others]})
    (gain,) = tuning_findings.judge_tuning(tuned).gains
    assert gain.seconds and gain.seconds.ratio.n == 4 and gain.after_trials and gain.after_trials.ratio.n == 5


def test_other_work_is_said_beside_whatever_rests_on_seconds_and_jobs_that_do_not_divide_the_cores() -> None:
    tuned = made({1: [[0.5, 0.4]] * 5, 2: [[0.5, 0.4]] * 5}, {1: 2.0, 2: 1.0})
    machine = {"logical_cores": 3}
    tuned = tuned.model_copy(
        update={
            "plan": tuned.plan.model_copy(update={"machine": machine, "budget": 3}),
            "searches": [search.model_copy(update={"cores_of_others": 0.5}) for search in tuned.searches],
        }
    )
    said = dict(tuning_sentences.sentences(tuned, tuning_findings.judge_tuning(tuned)))
    assert said["What does it gain to search side by side?"][0].endswith(f"1 job: no finding.{NO_FINDING}")
    found = tuning_findings.judge_tuning(tuned)
    assert [row["speedup"] for row in tuning_report.jobs_table(tuned).rows] == [None, "disturbed"]
    (quality,) = tuning_report.quality_table(tuned, found)
    assert (quality.rows[0]["seconds"], quality.rows[0]["seconds_verdict"]) == ("disturbed", "disturbed")
    after = {("same seconds" in each): "Other work disturbed it" in each for each in said["Does it cost quality?"]}
    assert after == {True: True, False: False}
    assert any("2 jobs used 2 of the budget's 3 cores" in each for each in said["Cautions"])
    assert [row["cores"] for row in tuning_report.jobs_table(tuned).rows] == [1, 2]


def test_one_of_a_kind_is_not_said_of_many() -> None:
    tuned = made({1: [[0.5]]}, {1: 2.0})
    (search,) = tuned.searches
    failed = search.trials[0].model_copy(update={"state": "failed", "reason": "it stopped."})
    settings = tuned.plan.settings.model_copy(update={"sampler": "tpe", "frameworks": ("left", "right")})
    tuned = tuned.model_copy(
        update={
            "plan": tuned.plan.model_copy(update={"settings": settings}),
            "searches": [
                search.model_copy(update={"trials": [*search.trials, failed], "attempts": 2}),
                search.model_copy(update={"contestant": "right"}),
            ],
            "best_trials": {"left": BestTrial(study=search.study, trial=search.trials[0], fields={})},
        }
    )
    said = dict(tuning_sentences.sentences(tuned, tuning_findings.judge_tuning(tuned)))
    assert "accuracy 0.5000 after 1 epoch, the best of 2 trials" in said["What was found?"][0]
    assert "At least the first trial of a search is drawn at random" in said["Did both frameworks search the same?"][0]
    assert "trial 1 failed: it stopped." in " ".join(said["Cautions"]) and "stopped.." not in " ".join(said["Cautions"])
    assert "interrupted once. Its seconds" in " ".join(said["Cautions"])

    assert "| 100 |" in tables.to_markdown(tuning_report.jobs_table(tuned))


def test_importance_is_of_the_fields_that_vary() -> None:
    found = tuning_findings.judge_tuning(tuned := made({1: [[0.1 * (slot + 1) for slot in range(12)]]}, {1: 1.0}))
    assert found.importances == {"left": {"optimizer.learning_rate": 1.0}}
    *_, last = dict(tuning_sentences.sentences(tuned, found))["Which fields matter?"]
    assert last.startswith("These parts have no interval")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ("postgresql://me:hidden@host/trials", "postgresql://me:***@host/trials"),
        (
            "postgresql://host/trials?user=me&password=hidden&sslpassword=hidden&sslmode=require",
            "postgresql://host/trials?password=***&sslmode=require&sslpassword=***&user=me",
        ),
        ("no url", "no URL of SQLAlchemy's"),
    ],
)
def test_a_password_is_hidden_wherever_it_stands_in_a_url(url: str, shown: str) -> None:
    assert "hidden" not in optuna_study.masked(url)
    assert optuna_study.is_masked(optuna_study.masked(url)) == ("hidden" in url)
    assert sorted(re.split("[?&]", unquote(optuna_study.masked(url)))) == sorted(re.split("[?&]", shown))


def test_the_seeds_of_a_repeat_are_its_own() -> None:
    assert optuna_study.derived_seed(0, 0) == optuna_study.derived_seed(0, 0) != optuna_study.derived_seed(0, 1)
    assert [optuna_study.random_trials(trials) for trials in (1, 8, 20, 100)] == [1, 2, 6, 10]


def test_the_first_screen_says_the_best_settings_and_what_side_by_side_gains(screens: Screens) -> None:
    noise = [1.0, 1.02, 0.98, 1.01, 0.99]
    few = [[0.9 * n, 0.5 * n, 0.1 * n] for n in noise]
    many = [[0.9 * n, 0.5 * n, 0.2 * n * (1 + 0.01 * place)] for place, n in enumerate(noise)]
    tuned = made({1: few, 2: many}, {1: 2.0, 2: 1.0})
    first, *others = tuned.searches
    best = BestTrial(study=first.study, trial=first.trials[-1], fields=first.trials[-1].fields)
    tuned = tuned.model_copy(update={"best_trials": {"left": best}})
    shown = screens(tuning_report.report(tuned, FOLDER))
    assert "left, 2 jobs against 1 job: faster, 2.00 " in shown and "after the same trials, best loss: worse, 2.04 " in shown
    assert "Trouble" not in shown and "optimizer.learning_rate  0.03" in shown
    failed = first.trials[0].model_copy(update={"state": "failed", "reason": "it stopped.", "value": None})
    cut = first.model_copy(update={"trials": [*first.trials, failed], "done": False, "cores_of_others": 0.5})
    tuned = tuned.model_copy(update={"searches": [cut, *others[:1], *others[5:7]], "best_trials": {}})
    shown = screens(tuning_report.report(tuned, FOLDER))
    assert "1 of 4 searches not done." in shown and "1 failed of 13 trials. left: it stopped." in shown
    assert "too few repeats to tell (1 of 5)" in shown and "faster" not in shown and "tune --resume results/made\n" in shown
