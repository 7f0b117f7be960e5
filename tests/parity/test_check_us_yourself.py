"""`parity --record`, and the plain loops of docs/prove-us-wrong.md that check what it writes without this suite."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from common import spec
from tests.parity.made_up import FakeTwins
from tests.support import processes, trees
from tests.support.command_line import convtwins
from tests.support.refusals import check_ended

PROJECT = Path(__file__).parents[2]
LOOPS: dict[str, str] = dict(
    zip(
        ("pytorch", "tensorflow"),
        re.findall(r"^```python\n(.*?)^```$", (PROJECT / "docs" / "prove-us-wrong.md").read_text(), re.MULTILINE | re.DOTALL),
        strict=True,
    )
)
OTHER: dict[str, str] = {"pytorch": "tensorflow", "tensorflow": "pytorch"}
PLANTED: dict[str, tuple[str, str]] = {
    "pytorch": ("momentum=0.9", "momentum=0.90001"),
    "tensorflow": ("momentum = 0.9", "momentum = 0.90001"),
}


def parity(*words: str) -> Any:
    return convtwins("parity", *words)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command of the page writes, of fewer steps."""
    folder = tmp_path_factory.mktemp("check") / "recorded"
    done = parity("--record", str(folder), "--optimizer", "sgd", "--set", "optimizer.learning_rate=0.01", "--steps", "5")
    assert done.exit_code == 0, done.output
    return folder


def largest_difference(loop: str, file: Path, tmp_path: Path) -> float:
    """What a loop prints that runs where nothing of the suite can be imported."""
    (script := tmp_path / "loop.py").write_text(loop)
    done = processes.python(script, file, folder=tmp_path, PYTHONPATH=None).succeeded()
    said = re.fullmatch(r"5 losses, largest relative difference (\S+)\n", done.stdout)
    assert said, done.stdout
    return float(said[1])


def test_a_recording_holds_all_that_a_training_reads_and_what_came_of_it(recorded: Path) -> None:
    what = spec.from_json((recorded / "spec.json").read_bytes())
    assert (what.steps, what.precision, what.mode, what.optimizer.learning_rate) == (5, "float64", "serial", 0.01)
    assert sorted(path.name for path in recorded.iterdir()) == ["pytorch.safetensors", "spec.json", "tensorflow.safetensors"]
    ours, theirs = (load_file(recorded / f"{name}.safetensors") for name in LOOPS)
    assert ours["learning_rate"].tolist() == [0.01] * 5 and ours["loss"].shape == (5,)
    for step in range(5):
        for name in (f"images/{step}", f"labels/{step}", f"masks/{step}/0"):
            assert (ours[name] == theirs[name]).all(), name
    weights = {name.removeprefix("initial/") for name in ours if name.startswith("initial/")}
    assert weights == {name.removeprefix("final/") for name in ours if name.startswith("final/")} and "conv1.kernel" in weights


@pytest.mark.parametrize("framework", LOOPS)
def test_the_plain_loop_of_the_page_finds_the_losses_of_the_other_framework(
    framework: str, recorded: Path, tmp_path: Path
) -> None:
    assert largest_difference(LOOPS[framework], recorded / f"{OTHER[framework]}.safetensors", tmp_path) <= 1e-12


@pytest.mark.parametrize("framework", LOOPS)
def test_another_momentum_shows_in_the_plain_loop_of_the_page(framework: str, recorded: Path, tmp_path: Path) -> None:
    planted = LOOPS[framework].replace(*PLANTED[framework])
    assert planted != LOOPS[framework]
    assert largest_difference(planted, recorded / f"{framework}.safetensors", tmp_path) > 1e-8


@pytest.mark.parametrize("framework", LOOPS)
def test_the_plain_loops_import_nothing_but_their_framework_and_what_reads_the_file(framework: str) -> None:
    imports = [node for node in ast.walk(ast.parse(LOOPS[framework])) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {each.module if isinstance(each, ast.ImportFrom) else alias.name for each in imports for alias in each.names}
    own = {"pytorch": {"torch", "safetensors.torch"}, "tensorflow": {"tensorflow", "keras", "numpy", "safetensors.numpy"}}
    assert names == {"sys"} | own[framework]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--referee", "--optimizer", "sgd"], {"names": ["--referee", "--record"]}),
        (["--single-steps", "--optimizer", "sgd"], {"names": ["--single-steps", "--record"]}),
        (
            ["--optimizer", "sgd", "--modes", "serial", "--no-remember"],
            {"names": ["Received also: --modes, --remember/--no-remember"]},
        ),
        ([], {"field": "--record", "received": "simple_cnn with sgd, simple_cnn with adam", "fix": "--model"}),
    ],
)
def test_what_goes_with_no_recording_is_refused(
    words: list[str], parts: dict[str, Any], twins: FakeTwins, tmp_path: Path
) -> None:
    check_ended(parity("--record", str(tmp_path / "recorded"), *words), **parts)
    assert not twins.calls and not (tmp_path / "recorded").exists()


def test_a_recording_is_written_to_no_file_and_over_no_other(twins: FakeTwins, tmp_path: Path) -> None:
    words = ("--optimizer", "sgd", "--steps", "2")
    folder = tmp_path / "deep" / "recorded"
    assert parity("--record", str(folder), *words).exit_code == 0
    check_ended(parity("--record", str(folder), *words), field=str(folder), names=["pytorch.safetensors", "--record"])
    on_file = folder / "spec.json"
    check_ended(parity("--record", str(on_file), *words), field=str(on_file), names=["--record"])


def test_the_serial_run_of_a_spec_file_is_recorded_in_float64(twins: FakeTwins, tmp_path: Path) -> None:
    values = {"global_batch_size": 32, "modes": ["serial", "data_parallel"], "width": 0.25}
    path = trees.write(tmp_path, {"run.yaml": values}) / "run.yaml"
    folder = tmp_path / "recorded"
    done = parity("--record", str(folder), "--spec", str(path), "--steps", "3", "--frameworks", "tensorflow", "--json")
    assert done.exit_code == 0, done.output
    (made,) = json.loads(done.stdout)["recordings"]
    assert (made["framework"], made["steps"], made["difference"]) == ("tensorflow", 3, 0.0)
    ((framework, what),) = twins.calls
    assert (framework, what.mode, what.precision, what.global_batch_size, what.steps, what.width) == (
        "tensorflow", "serial", "float64", 32, 3, 0.25,
    )  # fmt: skip
    assert what.with_fields(framework_options={}) == spec.from_json((folder / "spec.json").read_bytes())
