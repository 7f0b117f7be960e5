"""The commands beside a comparison: doctor, the rehearsal of a matrix, completion, the cache, and the notebook's view."""

import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common import spec
from common.data import cache as store
from compare import api
from compare.cli.errors import FolderError
from compare.comparison import estimate
from compare.proof import ladder
from compare.reporting import comparison_plots
from compare.running import launch
from compare.tools.doctor import doctor
from tests.compare.conftest import behave
from tests.support import comparisons, processes, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import refused

QUICK = ("--frameworks", "left,right", "--cores", "2", "--no-proof", "--modes", "serial", "--limit", "256")


# doctor


def test_doctor_says_what_is_here_and_what_each_mode_needs(fake_twins: pytest.MonkeyPatch) -> None:
    behave(fake_twins, left__data_parallel="unavailable")
    found = convtwins_json("doctor")
    assert [each["framework"] for each in found["frameworks"]] == ["left", "right"]
    modes = {each["mode"]: each for each in found["frameworks"][0]["modes"]}
    assert list(modes) == list(spec.MODES)
    assert modes["data_parallel"]["here"] == "not available: needs 2 CUDA devices, found 0"
    assert (modes["serial"]["here"], modes["serial"]["cut_short"]) == ("yes", "goes on")
    assert modes["pipeline"]["cut_short"] == "starts over"
    assert {each["what"] for each in found["folders"]} >= {"results", "cache", "temporary files"}
    assert all(each["free_mib"] > 0 for each in found["folders"])
    assert found["threads"]["of_a_run"] == 4 and found["threads"]["physical_cores"] >= 1
    assert found["cores_allowed"] == 4 and found["memory_mib"] >= found["memory_free_mib"] > 0
    shown = convtwins("doctor").stdout
    assert re.search(r"left +\S.*: \d+ of 14 modes, with 2 replicas", shown) and "needs 2 CUDA devices" in shown
    whole = " ".join(convtwins("doctor", "--full").stdout.split())
    assert "threads: 4 in a run" in whole and "not available:" in whole and "MiB free" in whole and found["allocator"] in whole


def test_doctor_says_how_much_the_same_loop_differs(fake_twins: pytest.MonkeyPatch) -> None:
    noise = doctor.measure_noise(0.1)
    assert noise.low <= 1.0 <= noise.high and noise.low * noise.high == pytest.approx(1.0) and noise.n >= 3
    facts = doctor.examine(["left"])
    assert noise.words in str(doctor.report({**facts, "noise": noise.model_dump(mode="json")}).screen)
    assert "Noise" not in convtwins("doctor").stdout


@pytest.mark.slow
def test_doctor_fails_in_the_words_of_a_framework_that_cannot_start(fake_twins: pytest.MonkeyPatch) -> None:
    launch.FRAMEWORKS["left"] = "no_such_module"
    done = convtwins("doctor")
    shown = " ".join(done.stdout.split())
    assert done.exit_code == 1 and "left cannot describe itself" in shown and "right right 1.0" in shown
    assert "No module named no_such_module" in " ".join(convtwins("doctor", "--full").stdout.split())


@pytest.mark.parametrize(("written", "there"), [(True, False), (False, False), (False, True)])
def test_doctor_warns_where_every_process_compiles_its_framework_anew(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, written: bool, there: bool
) -> None:
    trees.write(tmp_path, {f"torch/{'__pycache__' if there else 'nothing'}": None})
    fake_twins.setattr(sys, "dont_write_bytecode", not written)  # this interpreter's own
    fake_twins.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    warnings = doctor.examine([])["warnings"]
    assert any("PYTHONDONTWRITEBYTECODE" in each for each in warnings) == (not written and not there)


@pytest.mark.slow
def test_doctor_warns_of_little_room(fake_twins: pytest.MonkeyPatch) -> None:
    fake_twins.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))  # of every disk
    (warning,) = [warning for warning in convtwins_json("doctor")["warnings"] if "(results)" in warning]
    assert "1 MiB" in warning and "2,048" in warning


# --dry-run


def test_a_dry_run_measures_a_few_steps_of_each_framework_and_leaves_nothing(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_twins.chdir(tmp_path)
    plain = convtwins_json("run", *QUICK, "--repeats", "2", "--epochs", "10", "--dry-run")
    order = [(each["row"], each["repeat"]) for each in plain["runs"]]
    rows = [f"{framework}-serial-{cores}" for cores in ("1core", "2cores") for framework in ("left", "right")]
    assert order == [*((row, 0) for row in rows), *((row, 1) for row in reversed(rows))]
    assert {each["row"]: each["source"] for each in plain["runs"]} == {
        **{f"{framework}-serial-2cores": "8 steps measured now" for framework in ("left", "right")},
        **{f"{framework}-serial-1core": f"as {framework}-serial-2cores" for framework in ("left", "right")},
    }
    # A fake takes 1 s for an epoch on one core, however many images it has, and `right` 2 s.
    left, right = (next(each["seconds"] for each in plain["runs"] if each["row"] == row) for row in rows[:2])
    # Two cores are 1.2 times as fast, and were measured: one core is counted as half as fast.
    paced = 10 * 2 / 1.2
    assert right - left == pytest.approx(paced, rel=1e-6)
    assert plain["seconds"] == pytest.approx(sum(each["seconds"] for each in plain["runs"]))
    assert plain["checkpoint_bytes"] > 0 and plain["num_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_counts_the_best_weights_and_says_what_it_does_not_count(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ("run", *QUICK, "--profile", "--dry-run")
    plain, kept = (convtwins_json(*words, "--set", f"best_epoch.keep={keep}") for keep in ("false", "true"))
    weights = kept["checkpoint_bytes"] - plain["checkpoint_bytes"]
    assert weights > 0
    assert kept["num_bytes"] - plain["num_bytes"] == pytest.approx(weights / 2 * len(plain["runs"]), rel=0.01)
    (sentence,) = [line for line in convtwins(*words).stdout.splitlines() if "rofile" in line]
    assert "trace" in sentence and "not counted" in sentence


def test_a_dry_run_of_stored_results_measures_nothing_and_names_what_is_unknown(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    convtwins("run", *QUICK, "--out", out).succeeded()
    behave(fake_twins, left__serial__1="crash", left__serial__2="crash", right__serial__1="crash", right__serial__2="crash")
    words = ("run", *QUICK, "--modes", "serial,data_parallel", "--dry-run", "--from", out)
    known = {run["row"]: (run["seconds"], run["source"]) for run in convtwins_json(*words)["runs"]}
    assert all(f"stored in {out}" == source and seconds for seconds, source in list(known.values())[:4])
    assert len(known) == 6 and [seconds for seconds, _ in known.values()].count(None) == 2


def test_stored_times_are_those_of_runs_of_the_same_kind_and_of_the_middle_one(tmp_path: Path) -> None:
    stored = comparisons.repeated()
    known = estimate.stored_results(comparisons.stored_in(stored, tmp_path))
    row = stored.comparison.rows[0]
    longer = comparisons.with_fields(row, spec=row.spec.with_fields(epochs=9, seed=1, data={"limit": 100}))
    found = known(longer)
    assert isinstance(found, tuple) and found[0].phases is not None and found[0].phases.wall_seconds == 3.5 + 1.9 * 4.0
    for other in ({"data": {"image_size": 256}}, {"augmentation": {"rotation_degrees": 10.0}}, {"optimizer": {"name": "adam"}}):
        unknown = known(comparisons.with_fields(row, spec=row.spec.with_fields(**other)))
        assert isinstance(unknown, str) and unknown.startswith("unknown: ") and str(tmp_path) in unknown


def test_a_dry_run_of_a_folder_lists_what_is_missing(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out"
    behave(fake_twins, right__serial__2="kill")
    assert convtwins("run", *QUICK, "--out", out).exit_code == 1
    before = trees.read(out)
    plain = convtwins_json("run", "--resume", out, "--dry-run", "--from", out)
    assert [each["row"] for each in plain["runs"]] == ["right-serial-2cores"]
    assert trees.read(out) == before


def test_a_dry_run_whose_steps_fail_says_so(fake_twins: pytest.MonkeyPatch) -> None:
    behave(fake_twins, left__serial__2="crash")
    done = convtwins("run", *QUICK, "--dry-run")
    assert done.exit_code == 1
    assert "no more = memory" in re.sub(r"\s+", " ", done.stdout)


def test_a_dry_run_counts_the_proof_unless_it_is_remembered(fake_twins: pytest.MonkeyPatch) -> None:
    words = ("run", *(word for word in QUICK if word != "--no-proof"), "--modes", "serial,data_parallel", "--dry-run")
    proved, serial = convtwins_json(*words), convtwins_json(*words, "--modes", "serial")
    assert proved["proof_seconds"] > serial["proof_seconds"] > 0
    assert "The proof comes before the runs. It takes about" in " ".join(convtwins(*words).stdout.split())
    fake_twins.setattr(ladder, "is_remembered", lambda *rows, **options: True)  # a proof takes a minute
    remembered = convtwins_json(*words)
    assert (remembered["proof_seconds"], remembered["seconds"]) == (0.0, proved["seconds"])
    assert "remembered from an earlier comparison" in " ".join(convtwins(*words).stdout.split())
    # Each of its six runs has at least three steps, with weights and momentum before and after them.
    weights = serial["checkpoint_bytes"] / (2 * (1 + 1))
    assert serial["recorded_bytes"] == pytest.approx(len(serial["runs"]) * 4 * 2 * 2 * weights, rel=0.3)
    assert "for recorded steps until they are judged" in " ".join(convtwins(*words).stdout.split())
    alone = convtwins(*words, "--frameworks", "left", "--modes", "serial")
    assert "one framework alone" in " ".join(alone.stdout.split())


def test_an_estimate_scales_steps_and_evaluation_and_leaves_what_comes_once() -> None:
    row = comparisons.row("pytorch")
    like = comparisons.good(row, seconds=4.0)  # 2 epochs of 640 images in 8 s, validation 0.1 s each, test 0.3 s, the rest 3 s
    twice = comparisons.with_fields(row, spec=row.spec.with_fields(epochs=20))
    assert estimate.seconds(row, like, 640) == pytest.approx(2.0 + 0.5 + 0.25 + 0.25 + 8.0 + 0.5)
    assert estimate.seconds(twice, like, 1280) == pytest.approx(3.0 + 8.0 * 20 + 2 * (20 * 0.1 + 0.3))


# The shell


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], str]:
    """Runs a script of bash that finds the command `convtwins`, and returns what it prints."""
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m compare "$@"\n'
    trees.write(tmp_path, {"bin/convtwins": text})
    (tmp_path / "bin" / "convtwins").chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def run(script: str) -> str:
        words, root = ["bash", "--norc", "-c", script], str(launch.PROJECT_ROOT)
        return processes.run(words, folder=tmp_path, PATH=path, PYTHONPATH=root, HOME=str(tmp_path)).succeeded().stdout

    return run


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("convtwins do", {"doctor"}),
        pytest.param("convtwins run --dry", {"--dry-run"}, marks=pytest.mark.slow),
    ],
)
def test_bash_completes_the_words_of_the_command(shell: Callable[[str], str], line: str, expected: set[str]) -> None:
    words = line.split(" ")
    asked = f'COMP_WORDS=({" ".join(words[:-1])} "{words[-1]}"); COMP_CWORD={len(words) - 1}; _convtwins_completion convtwins'
    show = "source <(convtwins --show-completion); complete -p convtwins"
    registered, *replies = shell(f'{show}; {asked}; printf "%s\\n" "${{COMPREPLY[@]}}"').splitlines()
    assert registered == "complete -o default -F _convtwins_completion convtwins"
    assert expected <= set(replies)
    assert all(reply.startswith(words[-1]) for reply in replies)


def test_completion_is_installed_for_the_shell_that_asks(shell: Callable[[str], str], tmp_path: Path) -> None:
    shell("convtwins --install-completion; true")
    assert ".bash_completions/convtwins.sh" in (tmp_path / ".bashrc").read_text()


# Caches


def test_cache_folders_follow_the_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONVTWINS_CACHE", "KERAS_HOME", "TORCH_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(store.keras_home()) == "/home/someone/.keras"
    assert str(store.torch_home()) == "/home/someone/.cache/torch"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert (str(store.folder(None)), str(store.torch_home())) == ("/xdg/convtwins", "/xdg/torch")
    monkeypatch.setenv("KERAS_HOME", "/keras")
    monkeypatch.setenv("TORCH_HOME", "~/torch")
    assert (str(store.keras_home()), str(store.torch_home())) == ("/keras", "/home/someone/torch")


# A notebook


@pytest.fixture
def results(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> api.Results:
    convtwins("run", *QUICK, "--out", tmp_path / "out").succeeded()
    return api.load(tmp_path / "out")


@pytest.mark.parametrize("folder", [5, None, b"out"])
def test_a_folder_that_is_no_path_is_refused_in_words(folder: Any) -> None:
    with refused(FolderError, field="folder", received=repr(folder)):
        api.load(folder)


def test_a_notebook_gets_a_confusion_matrix_of_each_row(tmp_path: Path) -> None:
    figure = api.plot_confusion(api.load(comparisons.stored_in(comparisons.hostile(3), tmp_path)))
    assert [axis.get_title() for axis in figure.axes] == [
        f"{framework} {mode}" for framework in ("pytorch", "tensorflow") for mode in ("serial, 2 cores", "data_parallel x2")
    ]


def test_a_notebook_gets_tidy_frames_and_figures(results: api.Results) -> None:
    assert len(results.runs) == len(results.summaries) == 4 and len(results.epochs) == 8
    seconds = results.epochs.groupby(["framework", "cores"]).seconds.median()
    assert seconds["left", 2] < seconds["left", 1] < seconds["right", 2]
    summary = results.summaries.set_index("name").loc["left serial, 2 cores"]
    assert summary.epoch_seconds_median == pytest.approx(1 / 1.2) == 1 / summary.speedup_one_core_value
    assert any("all 4 runs that recorded them" in sentence for sentence in results.sentences)
    plotted = (api.plot_loss, api.plot_accuracy, api.plot_seconds, api.plot_speedup, api.plot_efficiency, api.plot_phases)
    for draw in plotted:
        assert draw(results)._repr_png_().startswith(b"\x89PNG")  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ValueError, match="images_per_second"):
        api.plot_input(results)
    with pytest.raises(ValueError, match=r"'los'.* loss, "):
        api.plot(results, "los")
    assert "loss" in comparison_plots.names()


NOTEBOOK = launch.PROJECT_ROOT / "docs" / "notebook.ipynb"


def test_the_notebook_runs_again_and_says_what_it_says(tmp_path: Path) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] or cell["source"][-1].startswith("results = ") for cell in cells), "it was never executed"
    (tmp_path / "notebook.py").write_text("\n\n".join("".join(cell["source"]) for cell in cells))
    variables = {"PYTHONPATH": str(launch.PROJECT_ROOT), "MPLBACKEND": "agg"}
    done = processes.python(tmp_path / "notebook.py", folder=NOTEBOOK.parent, **variables).succeeded()
    printed = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "stream"]
    assert done.stdout == "".join("".join(output["text"]) for output in printed)
