"""A comparison from Python: the same runs, folder, sentences and errors as `run --spec`."""

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.data.sources import DataRefused
from common.errors import UserError
from common.spec import Spec, SpecError
from compare import api
from compare.cli.errors import FolderError, LaunchError, UnfitError
from compare.comparison import run_process
from compare.running import launch, run_settings
from tests.compare import forked
from tests.compare.conftest import behave
from tests.support import comparisons, trees
from tests.support.command_line import convtwins
from tests.support.refusals import check, refused

QUICK: dict[str, Any] = {"modes": ["serial"], "cores": 1, "epochs": 3}
FAKES = "tests.compare.twins.fake_comparison"
"""The process of the comparison, with the fake twins."""


def run(spec: Any, out: Path) -> api.Results:
    """As `api.run` does."""
    results = api.load(run_process.call(spec, out, ("left", "right"), proof=False, sign=None, module=FAKES))
    assert isinstance(results, api.Results)
    return results


def test_all_that_a_notebook_gives_goes_to_that_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = comparisons.stored_in(comparisons.repeated(1), tmp_path / "results")
    given: list[Any] = []

    def call(*fields: Any, **options: Any) -> Path:
        given.extend([fields, options])
        return folder

    monkeypatch.setattr(run_process, "call", call)  # its process would train for real
    results = api.run(QUICK, out=folder, frameworks=("left", "right"), proof=False, sign="key")
    assert results.folder == folder
    assert given == [(QUICK, folder, ("left", "right")), {"proof": False, "sign": "key"}]


@pytest.fixture
def inside(fake_twins: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """What the process of `api.run` answers. It runs in this one."""

    def answer(
        asked_for: Any, out: Path | None = None, frameworks: Any = ("left", "right"), sign: Path | None = None
    ) -> dict[str, Any]:
        asked = {"spec": run_process.spec_values(asked_for), "out": out and str(out), "frameworks": frameworks, "proof": False}
        asked["sign"] = sign and str(sign)
        fake_twins.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))  # that of the process
        run_process.main()
        return json.loads(capfd.readouterr().out)

    return answer


def test_a_mapping_runs_as_a_file_does_and_its_command_is_the_same_again(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    behave(fake_twins, right__serial__1="crash")
    results = run(QUICK | {"data": {"limit": 256}}, out=out)
    assert results.folder == out and results.exit_code == 1
    assert dict(results.runs.groupby(["framework", "status"]).size()) == {("left", "ok"): 1, ("right", "failed"): 1}
    assert (out / "report.html").exists() and results.runs.equals(api.load(out).runs)
    left = (out / "runs" / "left-serial-1core-r0" / "result.json").stat().st_mtime_ns
    behave(fake_twins)
    convtwins(*results.compared.stored.comparison.argv).succeeded()
    assert (out / "runs" / "left-serial-1core-r0" / "result.json").stat().st_mtime_ns == left
    assert set(api.load(out).runs.status) == {"ok"}


def test_ctrl_c_ends_the_runs_keeps_what_had_ended_and_the_same_call_goes_on(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    behave(fake_twins, right__serial__1="hang")
    pids = out / "runs" / "right-serial-1core-r0" / "pids"

    def press() -> None:
        while not (pids.exists() and pids.read_text()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without it
    threading.Thread(target=press, daemon=True).start()
    with pytest.raises(KeyboardInterrupt, match=f"--out {out}"):
        run(QUICK, out=out)
    signal.signal(signal.SIGINT, before)
    fake_twins.setattr(launch, "start_suite_module", forked.Suite)  # which has imported already what it needs
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text().split()[0]), 0)
    assert list(api.load(out).runs.status) == ["ok", "killed"]
    behave(fake_twins)
    printed = capfd.readouterr()
    assert printed.out == "" and "left-serial-1core" in printed.err
    assert set(run(str(_file(tmp_path, QUICK)), out=out).runs.status) == {"ok"}
    assert "left-serial-1core" not in capfd.readouterr().err


def test_a_key_that_cannot_sign_is_refused(inside: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    answer = inside(QUICK, tmp_path / "out", sign=tmp_path / "nowhere")
    assert answer["error"] == "SpecError"
    check(SpecError(answer["words"]), field="--sign", received=tmp_path / "nowhere")


def test_lists_make_a_matrix_and_a_refused_cell_is_told(
    inside: Callable[..., dict[str, Any]], tmp_path: Path, ssh_key: Path
) -> None:
    several = QUICK | {"data": {"source": [str(tmp_path / "nowhere"), "digits"]}}
    assert inside(several, tmp_path / "out", sign=ssh_key) == {"folder": str(tmp_path / "out")}
    made = api.load(tmp_path / "out")
    assert made.cells["digits"].compared.stored.signature.confirmed  # pyright: ignore
    assert isinstance(made, api.Matrix) and list(made.cells) == ["digits"] and len(made.who_wins_where) == 1
    assert list(made.refused) == ["nowhere"] and "nowhere" in made.refused["nowhere"]
    assert made.cells["digits"].folder == tmp_path / "out" / "digits"


def _file(folder: Path, values: Any) -> Path:
    return trees.write(folder, {"run.yaml": values}) / "run.yaml"


@pytest.mark.parametrize(
    ("values", "error", "code"),
    [
        ({"lr": 0.1}, SpecError, 2),
        ({"model": "no.such"}, SpecError, 2),
        ({"modes": ["paralel"]}, SpecError, 2),
        ({"contestants": {"a": {"twin": "left"}, "b": {"twin": "lift"}}}, SpecError, 2),
        ({"data": {"source": "/nowhere"}}, DataRefused, 4),
        (QUICK, FolderError, 2),
        (QUICK | {"contestants": {"a": {"twin": "left", "python": "/nowhere/python"}}}, UnfitError, 2),
    ],
)
def test_errors_are_those_of_the_command_in_its_sentences(
    inside: Callable[..., dict[str, Any]], tmp_path: Path, values: Any, error: type[Exception], code: int
) -> None:
    if error is FolderError:
        (tmp_path / "other.txt").touch()
    out = tmp_path if error is FolderError else tmp_path / "out"
    answer = inside(values, out, None)
    file = _file(tmp_path / "..", values)
    done = convtwins("run", "--spec", file, "--no-proof", "--out", out)
    words = done.stderr.rstrip("\n").replace(f" in spec file {file}", "")  # a process is given values, and no file
    words = words.removeprefix(f"{file} is refused: ")
    assert done.exit_code == code and answer == {"error": error.__name__, "words": words}


@pytest.mark.parametrize("error", [SpecError, FolderError, DataRefused, LaunchError, UnfitError, OSError, KeyboardInterrupt])
def test_an_answer_becomes_the_error_of_its_name(error: type[BaseException]) -> None:
    name = "Interrupted" if error is KeyboardInterrupt else error.__name__
    with pytest.raises(error, match=r"^It is late\.$") as raised:
        run_process.read_answer(json.dumps({"error": name, "words": "It is late."}), 3)
    assert raised.type is error


def test_an_error_of_a_module_that_is_not_imported_here_is_one_of_its_user() -> None:
    with refused(UserError, names="It is late."):
        run_process.read_answer(json.dumps({"error": "ErrorOfAnotherModule", "words": "It is late."}), 3)


def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    with refused(LaunchError, names=["exit code 1", "stderr"]):
        run_process.call({}, tmp_path / "out", None, proof=False, sign=None, module="no_such_module")
    with refused(LaunchError, names=["SIGKILL"]):
        run_process.read_answer("", -signal.SIGKILL)


@pytest.mark.parametrize("wrong", [5, None, [1], {"epochs": {1, 2}}, {"model": object()}])
def test_a_spec_that_is_none_is_refused_before_a_process_starts(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    monkeypatch.delattr(launch, "start_suite_module")
    with refused(SpecError, field="spec"):
        api.run(wrong)


@pytest.mark.parametrize(
    "values",
    [
        {"model": "resnet18", "steps": 3, "optimizer": {"name": "adam", "learning_rate": 1e-5}, "precision": "float64"},
        {"modes": ["serial", "pipeline"], "repeats": 5, "until_decided": True, "most_repeats": 9, "smallest_effect": "3%"},
        {"one_core": False},
        {"contestants": {"a": {"twin": "left"}, "b": {"twin": "left", "switches": {"left_switch": "quick"}}}},
        {"data": {"source": Path("images"), "image_size": (32, 64)}, "repeats": None},
        {"mode": "data_parallel", "replicas": 4, "checkpoint_seconds": None},
    ],
)
def test_the_recorded_command_means_what_the_values_mean(fake_twins: pytest.MonkeyPatch, values: dict[str, Any]) -> None:
    stated = run_process.spec_values(values)
    assert isinstance(stated, dict)
    seen: list[Any] = []
    # The command as it is begun, with the settings that it would check next.
    fake_twins.setattr(
        "compare.comparison.run_options.ComparisonRequest", lambda *fields, **others: seen.append(fields[:2]) or 1 / 0
    )
    expected = run_settings.settings_of_cells(None, stated, {}, [])
    convtwins("run", *run_process.spec_to_options(stated))
    settings, rows = seen[0]
    assert spec.build(settings.values) == spec.build(expected[0][1].values)
    for field in ("modes", "one_core", "replicas", "repeats", "until"):
        assert getattr(settings, field) == getattr(expected[0][1], field)
    names = list(values.get("contestants", launch.FRAMEWORKS))
    assert list(dict.fromkeys(row.contestant for row in rows)) == names


def test_a_spec_object_stands_for_the_fields_that_were_set() -> None:
    values = {"model": "resnet18", "steps": 4, "data": {"source": "leaves"}}
    assert run_process.spec_values(Spec.model_validate(values)) == values
