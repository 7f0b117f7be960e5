"""Tuning with twins that really train and need no framework: what is searched, what is kept, and what is said of it."""

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import optuna
import psutil
import pytest
from sqlalchemy.exc import OperationalError
from syrupy.assertion import SnapshotAssertion

from common.artifacts import atomic_files
from common.data.notes import caution
from common.spec import SpecError
from compare.cli.errors import FolderError, LaunchError
from compare.judgement.statement import Statement
from compare.reporting import tables
from compare.running import launch
from compare.running.servers import ENDED, Listener
from compare.tools.tuning import optuna_study, tuner, tuning_findings, tuning_report, tuning_statements, tuning_words
from compare.tools.tuning.records import BestTrial, TunedTrial, Tuning, TuningPlan, TuningRecord, TuningSearch
from compare.tools.tuning.servers import Serving
from compare.tools.tuning.tuning_findings import Gain
from tests.compare.twins import learner
from tests.support import trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.comparisons import with_fields
from tests.support.processes import started
from tests.support.refusals import check, check_ended, refused
from tests.support.snapshots import FOLDER, Screens
from tests.support.statements import check_words

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
        yield


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


def tune(settings: Tuning, folder: Path, **options: Any) -> TuningRecord:
    """A tuning in a folder, which is free again afterwards."""
    with tuner.open_workspace(settings, folder) as workspace:
        return tuner.tune(settings, workspace, **options)


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
    return folder, tune(asked(sampler="random", jobs=(1, 3), frameworks=("left", "right")), folder)


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


def test_a_done_tuning_is_returned_and_nothing_is_trained(searched: tuple[Path, TuningRecord]) -> None:
    folder, tuned = searched

    def serving(*_: Any) -> Any:
        raise AssertionError("something was started")

    assert tune(asked(sampler="random", jobs=(1, 3), frameworks=("left", "right")), folder, serving=serving) == tuned
    assert tuner.read(folder) == tuned


def test_a_folder_with_another_tuning_is_refused_and_told_what_differs(searched: tuple[Path, TuningRecord]) -> None:
    folder, _ = searched
    with refused(FolderError, names=["sampler", "random", "tpe"]):
        tune(asked(sampler="tpe", jobs=(1, 3), frameworks=("left", "right")), folder)


@pytest.mark.slow
def test_a_tuning_says_who_signed_it(searched: tuple[Path, TuningRecord], tmp_path: Path, ssh_key: Path) -> None:
    folder = shutil.copytree(searched[0], tmp_path / "copy")
    for words, said in ((("--sign", ssh_key), "Signed by"), ((), "Signed by"), ((), "SIGNATURE NOT CONFIRMED")):
        done = convtwins("tune", "--resume", folder, *words)
        assert said in done.stdout and str(ssh_key) not in (folder / "report.md").read_text()
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
    assert (tmp_path / "report.html").read_text().count("<svg") == len(plots)
    (same,) = dict(tuning_report.sections(tuned, tuning_findings.judge_tuning(tuned)))["Did both frameworks search the same?"]
    for name in ("report.html", "report.md"):
        text = (tmp_path / name).read_text()
        assert same in text and same.startswith("6 of 6 ") and "1 of 5" in text, name
    plain = json.loads(report.to_json())
    assert plain["best"] == tuned.best and plain["exit_code"] == 0
    for folder in (tmp_path, None):  # None: it could not be written
        report.show(folder, as_json=False)
        assert ("the page" in capsys.readouterr().out) is (folder is not None)


def test_a_pruner_stops_trials_between_epochs_and_processes_serve_them(tmp_path: Path) -> None:
    values = {**VALUES, "epochs": 4}
    several = {"backend": "processes", "jobs": (2,), "trials": 6}
    tuned = tune(asked(values=values, pruner="halving", sampler="random", objective="accuracy", **several), tmp_path)
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
    tuned = tune(asked(values=values, space=space, sampler="grid", trials=9), tmp_path)
    (search,) = tuned.searches
    found = {(trial.fields["optimizer.learning_rate"], trial.fields["model"]): trial for trial in search.trials}
    assert {key: trial.state for key, trial in found.items()} == {
        (0.01, "simple_cnn"): "ok",
        (1e300, "simple_cnn"): "diverged",
        (0.01, "mini_xception"): "failed",
        (1e300, "mini_xception"): "failed",
    }
    assert "optimizer.learning_rate" in str(found[1e300, "simple_cnn"].reason)
    check(SpecError(str(found[0.01, "mini_xception"].reason)), field="data.image_size", names=[32, "mini_xception"])
    assert tuned.exit_code == 1  # of the refused ones: a trial that diverges is an answer
    assert "digits: 4 of the 4 points" in tuning_report.report(tuned, tmp_path).facts[0]


def test_studies_may_stand_in_another_database_under_names_of_their_own(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    tuned = tune(asked(storage=storage, trials=1), tmp_path / "tuning")
    assert optuna.get_all_study_names(storage) == [f"{tuned.plan.token}-left-threads-1jobs-r0"]
    assert not (tmp_path / "tuning" / tuner.STORAGE_FILE).exists()
    assert tune(asked(storage=storage, trials=1), tmp_path / "tuning") == tuned


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ("UPDATE trial_values SET value = 0.001 WHERE trial_id = 1", [0.001, "loss"]),
        *(
            (f"UPDATE trial_user_attributes SET value_json = '{record}' WHERE key = 'run'", ["record"])
            for record in ("{}", "7")
        ),
        ("UPDATE trial_user_attributes SET value_json = '{' WHERE key = 'run'", ["JSONDecodeError"]),
        (None, ["tuning.db", "not a database"]),
    ],
)
def test_trials_that_were_changed_since_are_not_believed(
    searched: tuple[Path, TuningRecord], tmp_path: Path, changed: str | None, names: list[object]
) -> None:
    folder = shutil.copytree(searched[0], tmp_path / "copy")
    storage = folder / tuner.STORAGE_FILE
    if changed is None:
        storage.write_text("no database, whatever its name says")
    else:
        with closing(sqlite3.connect(storage)) as connection, connection:
            assert connection.execute(changed).rowcount
    ended = convtwins("tune", "--resume", folder)
    check_ended(ended, names=[*names, "Restore"])
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_a_tuning_whose_trials_are_lost_keeps_its_record(
    searched: tuple[Path, TuningRecord], tmp_path: Path, lost: str
) -> None:
    folder = shutil.copytree(searched[0], tmp_path / "copy")
    (folder / tuner.STORAGE_FILE).unlink()
    if lost == "empty":
        (folder / tuner.STORAGE_FILE).touch()
    check_ended(convtwins("tune", "--resume", folder), names=[tuner.STORAGE_FILE, lost, "Restore"])
    assert (folder / tuner.RECORD_FILE).read_bytes() == (searched[0] / tuner.RECORD_FILE).read_bytes()


@pytest.mark.parametrize(("reason", "advice"), [("database or disk is full", "Free"), ("no such table: trials", "Repair")])
def test_a_storage_that_fails_says_what_helps(reason: str, advice: str) -> None:
    with refused(LaunchError, names=[reason, advice]), optuna_study.storage_errors():
        raise OperationalError("INSERT", {}, sqlite3.OperationalError(reason))


def test_a_storage_that_another_one_has_open_is_not_called_damaged(searched: tuple[Path, TuningRecord], tmp_path: Path) -> None:
    file = shutil.copytree(searched[0], tmp_path / "copy") / tuner.STORAGE_FILE
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with refused(FolderError, names=[file.name, "database is locked"]) as caught:
            optuna_study.file_storage(file, busy_seconds=0.1)
    assert optuna_study.ELSEWHERE not in str(caught.error)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"scheduler": "tcp://127.0.0.1:1", "backend": "dask"}, "scheduler"),
        ({"storage": "postgresql://user:secret@127.0.0.1/x"}, "--storage"),
        ({"jobs": ()}, "--jobs"),
        ({"values": {**VALUES, "switches": "plain"}}, "switches"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(tmp_path: Path, settings: dict[str, Any], field: str) -> None:
    with refused(SpecError, field=field) as caught:
        tune(asked(**settings), tmp_path)
    assert "secret" not in str(caught.error) and ("backend" in settings or not list(tmp_path.iterdir()))


def test_options_of_the_spec_are_those_of_all_trials(tmp_path: Path) -> None:
    fields = ["--batch-size", 32, "--image-size", 48, "--optimizer", "adam", "--precision", "float64", "--limit", 64]
    convtwins(
        "tune", "--preset", "digits", *fields, "--frameworks", "left", "--trials", 1, "--out", tmp_path / "out"
    ).succeeded()
    values = tuner.stored_settings(tmp_path / "out").values
    assert values["data"] == {"source": "digits", "image_size": 48, "limit": 64} and values["optimizer"]["name"] == "adam"
    assert (values["global_batch_size"], values["precision"], values["epochs"]) == (32, "float64", 3)


def test_a_server_that_does_not_start_ends_the_tuning_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import sys\nfrom tests.compare.twins import learner\nif sys.argv[1] != 'describe':\n    import no_such_module\n"
    folder = trees.write(tmp_path / "twins", {"silent_twin.py": f"{code}learner.main('left')\n"})
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setitem(TWINS, "left", "silent_twin")
    with refused(LaunchError, names=["left", "exit code 1", "No module named", "no_such_module"]):
        tune(asked(), tmp_path / "out")


def test_a_switch_that_is_settled_when_a_process_starts_is_refused_once_and_not_in_every_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = learner.describe
    options = {"allocator": {"values": ["keeping", "system"], "default": "keeping", "plain": "system", "process": ["system"]}}
    # Another description of a learner, whose own has no such option.
    monkeypatch.setattr(learner, "describe", lambda name: described(name) | ({"options": options} if name == "left" else {}))
    with refused(SpecError, field="framework_options.allocator", names=["left"]):
        tune(asked(values={**VALUES, "framework_options": {"allocator": "system"}}), tmp_path)
    assert not list(tmp_path.iterdir())


# Kills.


def test_a_killed_server_fails_its_trials_and_the_others_are_trained_by_another(tmp_path: Path) -> None:
    values = {**VALUES, "epochs": 20, "global_batch_size": 16}

    def kill() -> None:
        wait_until_running(tmp_path).send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    tuned = tune(asked(values=values, jobs=(2,), trials=4, sampler="random"), tmp_path)
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


def serving_by(kind: type[Scripted], servers: list[Scripted]) -> Serving:
    @contextmanager
    def serving(*_: Any) -> Iterator[Any]:
        yield lambda place, listener: kind(servers, listener)

    return serving


def test_a_server_that_dies_when_it_has_nothing_left_to_do_ends_nothing(tmp_path: Path) -> None:
    servers: list[Scripted] = []
    settings = asked(backend="processes", jobs=(2,), trials=2)
    (search,) = tune(settings, tmp_path, serving=serving_by(Scripted, servers)).searches
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


def test_a_server_that_cannot_be_replaced_leaves_its_trials_to_the_others(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    servers: list[Scripted] = []
    settings = asked(backend="processes", jobs=(2,), trials=4)
    tuned = tune(settings, tmp_path, serving=serving_by(Mortal, servers))
    (search,) = tuned.searches
    assert sorted(trial.state for trial in search.trials) == ["killed", "ok", "ok", "ok"] and len(servers) == 3
    assert search.servers_lost == 1 and search.done and not search.timed
    assert [each for each in sentences(tuned)["Cautions"] if "replaced" in each] == snapshot


def test_a_server_that_hangs_is_ended_and_its_trial_fails(tmp_path: Path) -> None:
    def stop() -> None:
        wait_until_running(tmp_path).suspend()

    stopper = threading.Thread(target=stop)
    stopper.start()
    values = {**VALUES, "epochs": 100, "global_batch_size": 16, "hang_seconds": 2.0}
    (search,) = tune(asked(values=values, trials=1, sampler="random"), tmp_path).searches
    stopper.join()
    assert [trial.state for trial in search.trials] == ["killed"] and "stopped" in str(search.trials[0].reason)


def begun(folder: Path, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
    variables = {"PYTHONPATH": str(launch.PROJECT_ROOT)}
    return started([sys.executable, DRIVER, "--out", folder, *words], variables=variables)


def until_told(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many trials are told and another one runs."""
    deadline = time.monotonic() + SECONDS
    while states(folder).count("COMPLETE") < count or not is_running(folder):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.02)


def serving_trials(tuned: subprocess.Popen[str]) -> list[psutil.Process]:
    return [each for each in psutil.Process(tuned.pid).children(recursive=True) if "serve-trials" in each.cmdline()]


@pytest.mark.slow
def test_a_dask_worker_that_is_killed_fails_its_trial_and_another_takes_its_place(tmp_path: Path) -> None:
    words = ("--frameworks", "left", "--trials", "6", "--limit", "128", "--cores", "2", "--epochs", "60", "--sampler", "random")
    with begun(tmp_path, *words, "--backend", "dask", "--jobs", "2", "--json") as tuned:
        until_told(tmp_path, 1, tuned)
        first, _ = serving_trials(tuned)
        worker = first.parent()
        assert worker is not None and worker.pid != tuned.pid
        worker.kill()
        stdout, stderr = tuned.communicate(timeout=SECONDS)
    assert tuned.returncode == 1, stderr
    (search,) = json.loads(stdout)["searches"]
    assert sorted(trial["state"] for trial in search["trials"]) == ["killed"] + ["ok"] * 5
    (killed,) = (trial for trial in search["trials"] if trial["state"] == "killed")
    assert "Dask worker" in killed["reason"]
    assert not is_running(tmp_path)


@pytest.mark.slow
def test_a_server_of_a_dask_worker_that_hangs_is_ended_too(tmp_path: Path) -> None:
    words = ("--frameworks", "left", "--trials", "1", "--limit", "128", "--cores", "1", "--epochs", "200")
    with begun(tmp_path, *words, "--backend", "dask", "--set", "hang_seconds=2", "--json") as tuned:
        until_told(tmp_path, 0, tuned)
        serving_trials(tuned)[0].suspend()
        stdout, stderr = tuned.communicate(timeout=SECONDS)
    assert tuned.returncode == 1, stderr
    ((trial,),) = (search["trials"] for search in json.loads(stdout)["searches"])
    assert trial["state"] == "killed" and "stopped" in trial["reason"]


LONG: dict[str, Any] = {"epochs": 12, "data": {"limit": 128}, "cores": 1}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> TuningSearch:
    """A search by TPE that nobody disturbs."""
    return tune(asked(values=LONG, trials=6), tmp_path_factory.mktemp("tuning")).searches[0]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_tuning_that_was_cut_short_goes_on_to_what_it_would_have_been(
    tmp_path: Path, alone: TuningSearch, number: int, code: int, deliveries: list[str]
) -> None:
    folder, space = tmp_path / "cut", tmp_path / "space.yaml"
    space.write_text(json.dumps(SPACE))
    words = ("--frameworks", "left", "--trials", "6", "--limit", "128", "--cores", "1", "--epochs", "12")
    with begun(folder, *words, "--space", str(space)) as cut:
        until_told(folder, 3, cut)
        cut.send_signal(number)
        _, stderr = cut.communicate(timeout=SECONDS)
    assert cut.returncode == code, stderr
    if number == signal.SIGINT:
        assert not is_running(folder)
        assert "Interrupted." in stderr and f"--resume {folder}" in stderr and (folder / "report.html").exists()
        assert 3 <= len(tuner.read(folder).searches[0].trials) < 6
    assert convtwins_json("tune", "--resume", folder)["done"] and deliveries == ["locked"]
    (resumed,) = tuner.read(folder).searches
    assert not is_running(folder)
    assert drawn(resumed) == drawn(alone)
    assert {trial.slot: trial.value for trial in resumed.trials} == {trial.slot: trial.value for trial in alone.trials}
    assert (resumed.attempts, alone.attempts) == (2, 1)


def test_resume_asks_for_a_password_that_nobody_has_written(tmp_path: Path) -> None:
    url = optuna_study.masked("postgresql://me:secret@host/trials")
    record = with_fields(made({1: [[0.5]]}, {1: 1.0}).plan, settings__storage=url).model_dump_json()
    (tmp_path / tuner.PLAN_FILE).write_text(atomic_files.with_checksum(record))
    check_ended(convtwins("tune", "--resume", tmp_path), field="--resume", received=url, fix="--storage")
    assert url == "postgresql://me:***@host/trials"


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


def sentences(tuned: TuningRecord) -> dict[str, list[str]]:
    """What a report says, by heading."""
    return dict(tuning_report.sections(tuned, tuning_findings.judge_tuning(tuned)))


def gain(tuned: TuningRecord) -> Gain:
    """That of two jobs over one."""
    (gain,) = tuning_findings.judge_tuning(tuned).gains
    return gain


@pytest.fixture
def two_jobs() -> TuningRecord:
    """Five repeats, in which two jobs are twice as fast, and find half as good a setting by their third trial."""
    noise = [1.0, 1.02, 0.98, 1.01, 0.99]
    few = [[0.9 * n, 0.5 * n, 0.1 * n] for n in noise]
    many = [[0.9 * n, 0.5 * n, 0.2 * n * (1 + 0.01 * place)] for place, n in enumerate(noise)]
    return made({1: few, 2: many}, {1: 2.0, 2: 1.0})


def test_five_repeats_say_what_side_by_side_gains_and_costs(two_jobs: TuningRecord, snapshot: SnapshotAssertion) -> None:
    found = gain(two_jobs)
    assert found.seconds and found.seconds.verdict == "above" and found.seconds.ratio.value == pytest.approx(2.0)
    assert found.after_trials and found.after_trials.verdict == "above"
    assert found.after_trials.ratio.value == pytest.approx(2.04, abs=0.01)
    # When two jobs have ended, one job has told its first trial alone.
    assert found.after_seconds and found.after_seconds.verdict == "below" and found.after_seconds.ratio.value < 0.3
    assert sentences(two_jobs) == snapshot


def test_the_json_has_the_facts_behind_every_sentence(two_jobs: TuningRecord) -> None:
    values = json.loads(tuning_report.report(two_jobs, FOLDER).to_json())
    statements = {subject: map(Statement.model_validate, records) for subject, records in values["statements"].items()}
    in_words = {tuning_words.HEADINGS[subject]: tuning_words.sentences(facts) for subject, facts in statements.items()}
    assert {heading: sentences for heading, sentences in in_words.items() if sentences} == values["sections"]
    assert values["statements"]["gains"][0]["values"]["judged"]["verdict"] == "above"


def test_the_notes_on_the_data_are_told_and_the_doubtful_ones_are_cautions(snapshot: SnapshotAssertion) -> None:
    notes = ["left out 1 of 9 files: 1 empty", caution("two. Rename one")]
    said = sentences(with_fields(made({1: [[0.5]]}, {1: 2.0}), plan__data_notes=notes))
    assert said["The data"] == notes and said["Cautions"] == snapshot


def test_differences_of_rounding_are_not_said_to_cost_quality(snapshot: SnapshotAssertion) -> None:
    tuned = made({1: [[0.5]] * 5, 2: [[0.5 * (1 + 1e-6 * n)] for n in range(1, 6)]}, {1: 2.0, 2: 1.0})
    assert sentences(tuned)["Does it cost quality?"][0] == snapshot


def test_one_image_more_in_every_repeat_is_no_certainty() -> None:
    tuned = made({1: [[30 / 36]] * 5, 2: [[31 / 36]] * 5}, {1: 2.0, 2: 1.0})
    found = gain(with_fields(tuned, plan__settings__objective="accuracy"))
    assert found.after_trials and found.after_trials.ratio.value == pytest.approx(31 / 30)
    assert found.after_trials.ratio.p and found.after_trials.ratio.p > 0.001


def test_fewer_repeats_say_that_they_are_too_few(snapshot: SnapshotAssertion) -> None:
    tuned = made({1: [[0.5, 0.1]] * 4, 2: [[0.5, 0.4]] * 4}, {1: 2.0, 2: 1.0})
    judged = tuning_findings.judge_tuning(tuned).judged
    assert len(judged) == 3 and {each.verdict for each in judged} == {"too few repeats to tell"}
    assert sentences(tuned) == snapshot


def test_a_search_that_had_nothing_by_then_is_an_outcome_and_no_missing_pair(snapshot: SnapshotAssertion) -> None:
    # One job ends its only trial after 2 seconds; two jobs are quicker in all repeats but one, when one job has nothing yet.
    tuned = made({1: [[0.5]] * 6, 2: [[0.4]] * 6}, {1: 2.0, 2: 2.5})
    *others, quick = tuned.searches
    assert others[5].repeat == quick.repeat
    early = with_fields(quick, trials=[with_fields(quick.trials[0], ended_seconds=1.0)])
    tuned = with_fields(tuned, searches=[*others, early])
    found = gain(tuned)
    assert found.after_seconds is None and found.empty == 6 and found.after_trials is not None
    assert sentences(tuned)["Does it cost quality?"][-1] == snapshot


def test_one_search_without_a_value_is_the_worst_outcome_and_leaves_no_ratio_of_the_others() -> None:
    tuned = made({1: [[0.5]] * 6, 2: [[0.4]] * 6}, {1: 2.0, 2: 2.0})
    found = gain(tuned)
    assert found.empty == 0 and found.after_seconds and found.after_seconds.ratio.n == 6
    *others, quick = tuned.searches
    early = with_fields(quick, trials=[with_fields(quick.trials[0], ended_seconds=1.0)])
    found = gain(with_fields(tuned, searches=[*others, early]))
    assert found.empty == 1 and found.after_seconds is None


def test_a_search_that_was_cut_short_stands_in_no_ratio_of_times() -> None:
    tuned = made({1: [[0.5, 0.4]] * 5, 2: [[0.5, 0.4]] * 5}, {1: 2.0, 2: 1.0})
    first, *others = tuned.searches
    found = gain(with_fields(tuned, searches=[with_fields(first, attempts=2), *others]))
    assert found.seconds and found.seconds.ratio.n == 4 and found.after_trials and found.after_trials.ratio.n == 5


def test_other_work_is_said_beside_whatever_rests_on_seconds_and_jobs_that_do_not_divide_the_cores(
    snapshot: SnapshotAssertion,
) -> None:
    tuned = made({1: [[0.5, 0.4]] * 5, 2: [[0.5, 0.4]] * 5}, {1: 2.0, 2: 1.0})
    disturbed = [with_fields(search, cores_of_others=0.5) for search in tuned.searches]
    tuned = with_fields(tuned, plan__machine={"logical_cores": 3}, plan__budget=3, searches=disturbed)
    assert [(row["speedup"], row["cores"]) for row in tuning_report.jobs_table(tuned).rows] == [(None, 1), ("disturbed", 2)]
    (quality,) = tuning_report.quality_table(tuned, tuning_findings.judge_tuning(tuned))
    assert (quality.rows[0]["seconds"], quality.rows[0]["seconds_verdict"]) == ("disturbed", "disturbed")
    assert sentences(tuned) == snapshot


def test_one_of_a_kind_is_not_said_of_many(snapshot: SnapshotAssertion) -> None:
    tuned = with_fields(
        made({1: [[0.5]]}, {1: 2.0}), plan__settings__sampler="tpe", plan__settings__frameworks=("left", "right")
    )
    (search,) = tuned.searches
    failed = with_fields(search.trials[0], state="failed", reason="it stopped.")
    searches = [with_fields(search, trials=[*search.trials, failed], attempts=2), with_fields(search, contestant="right")]
    best = {"left": BestTrial(study=search.study, trial=search.trials[0], fields={})}
    tuned = with_fields(tuned, searches=searches, best_trials=best)
    assert sentences(tuned) == snapshot
    assert "| 100 |" in tables.to_markdown(tuning_report.jobs_table(tuned))


def test_importance_is_of_the_fields_that_vary(snapshot: SnapshotAssertion) -> None:
    tuned = made({1: [[0.1 * (slot + 1) for slot in range(12)]]}, {1: 1.0})
    assert tuning_findings.judge_tuning(tuned).importances == {"left": {"optimizer.learning_rate": 1.0}}
    assert sentences(tuned)["Which fields matter?"] == snapshot


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


def test_the_first_screen_says_the_best_settings_and_what_side_by_side_gains(two_jobs: TuningRecord, screens: Screens) -> None:
    first, *others = two_jobs.searches
    best = BestTrial(study=first.study, trial=first.trials[-1], fields=first.trials[-1].fields)
    screens(tuning_report.report(with_fields(two_jobs, best_trials={"left": best}), FOLDER))
    failed = with_fields(first.trials[0], state="failed", reason="it stopped.", value=None)
    cut = with_fields(first, trials=[*first.trials, failed], done=False, cores_of_others=0.5)
    screens(tuning_report.report(with_fields(two_jobs, searches=[cut, *others[:1], *others[5:7]]), FOLDER))


def test_every_kind_of_statement_has_words_and_every_template_is_of_a_kind_that_is_made() -> None:
    check_words(tuning_statements.__file__, {*tuning_words.TEMPLATES, *tuning_words.SHORT_TEMPLATES})
