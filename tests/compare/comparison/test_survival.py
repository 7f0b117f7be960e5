"""What kills, full disks and damaged files do to a comparison: nothing that is not said."""

import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.artifacts import atomic_files, checkpoint, event_log, results
from common.artifacts.schema import EpochRecord, RunResult
from common.machine import machine
from compare.cli import errors
from compare.results import store, workspace
from compare.running import launch
from tests import full_disk
from tests.compare.conftest import behave
from tests.compare.twins import deadly
from tests.full_disk import FullDisk
from tests.support import comparisons, processes, trees
from tests.support.command_line import Ended, convtwins, convtwins_json
from tests.support.refusals import check_ended, refused

DRIVER = textwrap.dedent(
    """
    import sys
    from common.machine import machine
    from compare.running import launch
    from compare.__main__ import app
    from tests.compare.twins import deadly
    deadly.arm()
    kind, *words = sys.argv[1:]
    launch.FRAMEWORKS.clear()
    launch.FRAMEWORKS.update({side: f"tests.compare.twins.{kind}{side}" for side in ("left", "right")})
    machine.available_cores = lambda: 4
    app(words)
    """
)
EPOCHS = 30
SETTINGS = ("--modes", "serial", "--cores", "1", "--no-proof", "--limit", "256")
LEARNED = (*SETTINGS, "--epochs", str(EPOCHS), "--set", "checkpoint_seconds=0")
SECONDS = 300
INTERRUPT_SECONDS = 5.0
"""On a core of its own. Where more processes than cores want to run, it takes as many times longer."""


def started(kind: str, *words: object, **variables: str) -> subprocess.Popen[str]:
    """A comparison in a process of its own, of fake twins (`kind` is "") or of learning ones ("learner_").

    It is ended by `ended`, or by a kill of the test: no block could hold all of them.
    """
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, kind, *map(str, words)],
        env=processes.environment(PYTHONPATH=str(launch.PROJECT_ROOT), **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == code, stderr
    return stderr


def learning(folder: Path, frameworks: str, **environment: str) -> subprocess.Popen[str]:
    """The comparison of the learning twins in this folder, from its start or from where it stands."""
    if (folder / store.PLAN_FILE).exists():
        return started("learner_", "run", "--resume", folder, **environment)
    return started("learner_", "run", "--frameworks", frameworks, *LEARNED, "--out", folder, **environment)


def sealed(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("runs/*/result.json")}


def learned(records: list[EpochRecord]) -> list[tuple[Any, ...]]:
    """What an epoch record says beside times."""
    return [(record.epoch, record.steps, record.train, record.validation) for record in records]


def gone(folder: Path) -> bool:
    """Whether no process works in this folder any more."""

    def words(process: psutil.Process) -> str:
        try:
            return " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            return ""

    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if not any(str(folder) in words(process) for process in psutil.process_iter()):
            return True
        time.sleep(0.05)
    return False


class Checked:
    """A comparison that is killed again and again, held against one that was left alone."""

    def __init__(self, folder: Path, reference: dict[str, RunResult]) -> None:
        self.folder = folder
        self._reference = reference
        self._sealed: dict[str, bytes] = {}
        self._attempts: dict[str, bytes] = {}

    def check(self) -> None:
        """No finished run was touched, and no record of an epoch says anything else than the reference."""
        assert gone(self.folder), "an orphan"
        now = {name: content for name, content in sealed(self.folder).items() if json.loads(content)["status"] == "ok"}
        assert {name: now.get(name) for name in self._sealed} == self._sealed
        self._sealed = now
        for directory in self.folder.glob("runs/*"):
            records = event_log.read_epochs(directory)
            reference = self._reference[directory.name.partition(".")[0]]
            numbers = [record.epoch for record in records]
            assert numbers == list(range(1, len(numbers) + 1)), "an epoch is missing or there twice"
            assert learned(records) == learned(reference.epochs[: len(records)])
            if (directory / checkpoint.FILE).exists():  # written after the record of its last epoch
                assert len(records) >= len(checkpoint.load(directory).progress.epochs), "the record of an epoch is lost"
        attempts = {path.name: (path / event_log.EVENTS_FILE).read_bytes() for path in self._attempts_with_records()}
        assert {name: attempts.get(name) for name in self._attempts} == self._attempts, "an earlier attempt was touched"
        self._attempts = attempts

    def _attempts_with_records(self) -> list[Path]:
        return [path for path in self.folder.glob("runs/*.attempt*") if (path / event_log.EVENTS_FILE).exists()]

    def is_whole(self) -> bool:
        return len(self._sealed) == len(self._reference)

    def verify(self) -> int:
        """Every run is what it would have been without the kills; how often they went on from a checkpoint."""
        self.check()
        found = {name: results.load(self.folder / "runs" / name / results.RESULT_FILE) for name in self._reference}
        for name, result in found.items():
            expected = self._reference[name]
            assert result.status == "ok"
            assert learned(result.epochs) == learned(expected.epochs)
            same = ("test", "order_hash", "predictions_hash", "first_step_loss", "weights_hash", "final_weights_hash")
            assert [getattr(result, field) for field in same] == [getattr(expected, field) for field in same]
            assert event_log.read_epochs(self.folder / "runs" / name) == result.epochs
        assert list(self.folder.glob(f"runs/*/{checkpoint.FILE}")) == []
        return sum(result.resumes for result in found.values())


def left_alone(folder: Path, frameworks: str, **environment: str) -> dict[str, RunResult]:
    """The results of a comparison that nobody kills, by the name of the run."""
    ended(learning(folder, frameworks, **environment))
    found = {name: results.load(folder / "runs" / name / results.RESULT_FILE) for name in sealed(folder)}
    assert len(found) == len(frameworks.split(",")) and all(len(result.epochs) == EPOCHS for result in found.values())
    return found


@pytest.mark.slow
def test_a_kill_in_the_middle_of_any_write_leaves_what_can_be_gone_on_from_and_no_litter(tmp_path: Path) -> None:
    comparison = Checked(tmp_path / "out", left_alone(tmp_path / "reference", "left"))
    for moment, code in (
        ("1 compare.json", -signal.SIGKILL),  # of the comparison: before there is a plan;
        ("2 checkpoint.safetensors", 1),  # of the run, and the comparison says so and ends;
        ("1 result.json", -signal.SIGKILL),  # of the run when all its work is done, and of the comparison when it says so;
        ("1 report.html", -signal.SIGKILL),  # of the comparison when all runs are.
    ):
        ended(learning(comparison.folder, "left", **{deadly.VARIABLE: moment}), code)
        comparison.check()
        assert list(comparison.folder.rglob(f".{moment.split()[1]}.*")), "nothing was half written"
    ended(learning(comparison.folder, "left"))
    assert comparison.verify() == 2
    assert [path.name for path in comparison.folder.rglob(".*")] == [".lock"]


@pytest.mark.slow
def test_sigkill_at_50_random_moments_loses_no_run_and_no_epoch_and_doubles_none(tmp_path: Path) -> None:
    kills, frameworks = 50, "left,right"
    begun = time.monotonic()
    reference = left_alone(tmp_path / "reference", frameworks)
    seconds = time.monotonic() - begun
    moments = random.Random(kills)
    comparison = Checked(tmp_path / "0", reference)
    killed = resumes = 0
    while killed < kills:
        process = learning(comparison.folder, frameworks)
        try:
            process.communicate(timeout=moments.uniform(0.1, seconds))
            assert process.returncode == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            killed += 1
        comparison.check()
        if comparison.is_whole() and killed < kills:
            ended(learning(comparison.folder, frameworks))
            resumes += comparison.verify()
            comparison = Checked(tmp_path / str(killed), reference)
    ended(learning(comparison.folder, frameworks))
    resumes += comparison.verify()
    assert resumes > 0


@pytest.mark.slow
def test_ctrl_c_ends_a_run_deaf_to_sigterm_in_5_seconds_with_a_partial_report_and_no_orphan(tmp_path: Path) -> None:
    out = tmp_path / "out ü"
    variables = {"FAKE_TWIN_BEHAVIOUR": json.dumps({"right-serial-1": "deaf"})}
    process = started("", "run", "--frameworks", "left,right", *SETTINGS, "--out", out, **variables)
    pids = out / "runs" / "right-serial-1core-r0" / "pids"
    deadline = time.monotonic() + SECONDS
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=SECONDS)
    assert time.monotonic() - begun < INTERRUPT_SECONDS * max(1.0, os.getloadavg()[0] / machine.available_cores())
    assert process.returncode == 130, stderr
    left = [psutil.Process(int(pid)) for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in left), "an orphan"
    assert f"{machine.COMMAND} run --resume '{out}'" in stderr and f"with --out '{out}', or" in stderr
    assert str(out) in stdout
    assert {path.name for path in (out).iterdir()} >= {"report.md", "results.json", "tables", "plots"}
    found = {row: [(run.status, run.reason) for run in runs.values()] for row, runs in store.read(out).runs.items()}
    assert found == {"left-serial-1core": [("ok", None)], "right-serial-1core": [("killed", "interrupted")]}
    assert "killed after 1 epoch: interrupted" in (out / "report.md").read_text()


def test_the_lock_of_a_killed_comparison_is_free(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from compare.results import workspace
        with workspace.locked(Path(sys.argv[1])):
            print(flush=True)
            time.sleep(600)
        """
    )
    with processes.started([sys.executable, "-c", code, tmp_path]) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with refused(errors.FolderError, names=[tmp_path], fix="--out"), workspace.locked(tmp_path):
            pass
        holder.kill()
    with workspace.locked(tmp_path):
        pass


# Going on.


def fake_comparison(folder: Path, frameworks: str = "left,right") -> Ended:
    return convtwins("run", "--frameworks", frameworks, *SETTINGS, "--out", folder)


def test_resume_takes_every_setting_from_the_folder_and_runs_what_is_missing(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    behave(fake_twins, left__serial__1="kill")
    assert fake_comparison(tmp_path / "out").exit_code == 1
    before = sealed(tmp_path / "out")
    behave(fake_twins)
    resumed = convtwins("run", "--resume", tmp_path / "out").succeeded()
    (line,) = [line for line in resumed.progress if "set aside" in line]
    assert line == (
        "1 run did not end well: left-serial-1core (repeat 1). It begins again. What was written is set aside in "
        "runs/*.attempt*."
    )
    assert (tmp_path / "out" / "runs" / "left-serial-1core-r0.attempt1").is_dir()
    now = sealed(tmp_path / "out")
    assert now["right-serial-1core-r0"] == before["right-serial-1core-r0"]
    assert results.load(tmp_path / "out" / "runs" / "left-serial-1core-r0" / "result.json").status == "ok"
    assert "set aside" not in convtwins("run", "--resume", tmp_path / "out").succeeded().stderr
    again = convtwins_json("run", "--resume", tmp_path / "out", "--repeats", "2")
    assert again["comparison"]["repeats"] == 2
    fewer = convtwins("run", "--resume", tmp_path / "out", "--repeats", "1")
    check_ended(fewer, field="--repeats", received=1, names=[tmp_path / "out", "2"])


def test_resume_refuses_changed_code_and_changed_data(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_comparison(tmp_path / "out", "left")
    plan = store.read_plan(tmp_path / "out")
    for field, word in (("code_hash", "code"), ("data_hash", "data")):
        store.write_plan(tmp_path / "out", comparisons.with_fields(plan, **{field: "other"}))
        check_ended(convtwins("run", "--resume", tmp_path / "out"), names=[tmp_path / "out", word], fix="--out")


# Damage.


def test_a_flipped_digit_is_named_set_aside_and_run_again(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fake_comparison(out, "left")
    result, events = (out / "runs" / "left-serial-1core-r0" / name for name in ("result.json", "events.jsonl"))
    for path, old, new in ((result, b'"accuracy": 0.9,', b'"accuracy": 0.8,'), (events, b'"steps": 4', b'"steps": 5')):
        assert old in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(old, new, 1))
    (aside,) = convtwins_json("report", out, exit_code=1)["set_aside"]
    assert aside.startswith("runs/left-serial-1core-r0/result.json is not as this suite wrote it")
    convtwins("run", "--resume", out).succeeded()
    kept = out / "runs" / "left-serial-1core-r0.attempt1"
    assert event_log.damaged_events(kept) == [3]
    convtwins("report", out).succeeded()


def test_damaged_events_of_a_sealed_run_are_named_by_line(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fake_comparison(out, "left")
    events = out / "runs" / "left-serial-1core-r0" / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-9])
    (aside,) = convtwins_json("report", out, exit_code=1)["set_aside"]
    assert aside.startswith("runs/left-serial-1core-r0/events.jsonl: line 4,")


def test_a_flipped_digit_of_the_plan_is_named(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_comparison(tmp_path / "out", "left")
    plan = tmp_path / "out" / store.PLAN_FILE
    plan.write_text(plan.read_text().replace('"seed": 0', '"seed": 1', 1))
    check_ended(convtwins("run", "--resume", tmp_path / "out"), names=["compare.json", "not as this suite wrote it"])


def test_where_the_last_checkpoint_is_damaged_the_one_before_is_gone_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees.write(tmp_path, dict.fromkeys(("run.attempt1", "run.attempt2", "run.attempt3")))
    run, older, newer, empty = (tmp_path / name for name in ("run", "run.attempt1", "run.attempt2", "run.attempt3"))
    for attempt in (older, newer):
        checkpoint.save(comparisons.checkpoint(), attempt)
    assert store.attempt_to_resume(run) == newer
    path = newer / checkpoint.FILE
    path.write_bytes(path.read_bytes()[:-7])
    assert store.attempt_to_resume(run) == older
    assert str(path) in capsys.readouterr().err
    (older / checkpoint.FILE).unlink()
    assert store.attempt_to_resume(run) == empty  # which says why it starts over


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("id", value) for value in ("pytorch-x/../../../README", "/tmp/x", "..", "a\nb", "")),
        ("contestant", "../x"),
        ("repeats", 10**9),
        ("repeats", 0),
    ],
)
def test_a_plan_from_elsewhere_leads_to_no_other_folder_and_keeps_nobody_busy_for_ever(
    tmp_path: Path, field: str, value: str | int
) -> None:
    comparisons.stored_in(comparisons.repeated(1), tmp_path / "out")
    path = tmp_path / "out" / store.PLAN_FILE
    plan = json.loads(path.read_text())
    plan.pop("sha256")
    (plan if field == "repeats" else plan["rows"][0])[field] = value
    path.write_text(atomic_files.with_checksum(json.dumps(plan)))  # who changes it on purpose can do that too
    before = sorted(tmp_path.rglob("*"))
    for words in (("report", tmp_path / "out", "--out", tmp_path / "a" / "b"), ("run", "--resume", tmp_path / "out")):
        check_ended(convtwins(*words), names=["compare.json", "not a whole comparison"])
    assert sorted(tmp_path.rglob("*")) == before
    if field == "id":
        with refused(errors.FolderError, names=["plain file name"]):
            store.run_folder(tmp_path, f"{value}/x", 0)


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB; the test is skipped where none can be mounted."""
    folder = trees.write(tmp_path / "disk", {})
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"size=8m") != 0:
        pytest.skip("a small disk can only be mounted by root")
    yield folder
    libc.umount2(bytes(folder), 2)  # also where something still looks into it


def test_a_run_that_fills_the_disk_fails_and_the_others_finish(fake_twins: pytest.MonkeyPatch, small_disk: Path) -> None:
    behave(fake_twins, left__serial__1="fill")
    done = fake_comparison(small_disk / "out")
    assert done.exit_code == 1
    stored = store.read(small_disk / "out")
    statuses = {row: runs[0].status for row, runs in stored.runs.items()}
    assert statuses == {"left-serial-1core": "failed", "right-serial-1core": "ok"}
    behave(fake_twins)
    convtwins("run", "--resume", small_disk / "out").succeeded()


def test_a_disk_that_stays_full_leaves_what_is_sealed_and_goes_on_when_there_is_room(
    fake_twins: pytest.MonkeyPatch, small_disk: Path
) -> None:
    out = small_disk / "out"
    behave(fake_twins, right__serial__1="keep full")
    done = fake_comparison(out)
    assert done.exit_code == 1, done.output
    assert "No space left on device" in done.stderr
    shown = " ".join(done.stdout.split())
    assert re.search(r"right serial, 1 core failed: .*cannot be (started|written)", shown), shown
    assert "the page" not in done.stdout
    kept = sealed(out)
    assert results.load(out / "runs" / "left-serial-1core-r0" / "result.json").status == "ok"
    for ballast in out.glob("runs/*/ballast"):
        ballast.unlink()
    behave(fake_twins)
    convtwins("run", "--resume", out).succeeded()
    assert sealed(out)["left-serial-1core-r0"] == kept["left-serial-1core-r0"]


def _form(write: full_disk.Write) -> str:
    """The name of its file, or the ending of one among tables or plots."""
    _, name = write.kind
    return Path(name).suffix if write.path.parent.name in ("tables", "plots") else name


@pytest.mark.slow
def test_a_disk_that_is_full_for_any_one_file_loses_no_run_and_says_so(tmp_path: Path) -> None:
    """One write and one `fsync` of each file of a comparison's own process fail, see `full_disk`.

    One file of each form stands for all tables and plots. tests/twins/test_low_limits.py has the files of a run.
    """
    library = full_disk.compiled(tmp_path)
    disk = FullDisk(library, tmp_path / "reference")
    reference = left_alone(tmp_path / "reference" / "out", "left", **disk.environment)
    kinds: dict[tuple[str, str], int] = {}
    met: set[tuple[str, str]] = set()
    for at, write in enumerate(disk.writes(), 1):
        kinds.setdefault((write.call, _form(write)), at)
    assert {name for call, name in kinds if call == "write"} >= {store.PLAN_FILE, "spec.json", "report.html", ".csv", ".svg"}
    for at in kinds.values():
        disk, out = FullDisk(library, tmp_path / str(at), at), tmp_path / str(at) / "out"
        done = learning(out, "left", **disk.environment)
        stderr, where = done.communicate(timeout=SECONDS)[1], disk.met()
        comparison = Checked(out, reference)
        comparison.check()
        assert "Traceback" not in stderr, (where, stderr)
        named = re.search(rf"No space left on device: '.*{re.escape(where.kind[1])}.*'", stderr)
        assert (done.returncode == 0 and where.is_temporary) or (done.returncode in (1, 2) and named), (where, stderr)
        met.add((where.call, _form(where)))
        ended(learning(out, "left"))
        comparison.verify()
        assert list(out.rglob("*.partial")) == []
        shutil.rmtree(out)
    assert met == set(kinds)
