"""Contestants of one twin, trained for real: with other switches, and in a second environment."""

import json
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import convtwins_process

SMALL = (
    "--modes", "serial", "--cores", "1", "--set", "data.limit=64", "--set", "global_batch_size=16", "--epochs", "1",
    "--set", "model=tests.parity.probe", "--precision", "float64",
)  # fmt: skip
PLANTED = """
import importlib.abc, importlib.machinery, sys

class Planter(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch.nn.functional":
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        run = found.loader.exec_module
        def planted(module):
            run(module)
            right = module.cross_entropy
            module.cross_entropy = lambda *values, **options: right(*values, **options) * (1 + 1e-7)
        found.loader.exec_module = planted
        return found

sys.meta_path.insert(0, Planter())
"""
"""A PyTorch whose loss, and with it every gradient, is a ten-millionth too large."""


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """The interpreter of another environment, which reaches the distributions of this one and has one more."""
    venv.create(tmp_path / "second", symlinks=True)
    (site,) = (tmp_path / "second").glob("lib/python*/site-packages")
    (site / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "only_there-1.0.dist-info").mkdir()
    return tmp_path / "second" / "bin" / "python"


def compare(*words: str | Path) -> tuple[int, dict[str, Any]]:
    done = convtwins_process(*words, "--json")
    assert done.stdout, done.stderr
    return done.exit_code, done.json


@pytest.mark.slow
def test_two_contestants_with_other_switches_and_one_of_a_second_environment_are_proved_and_compared(
    second: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, found = compare(
        "run", "--contestant", "nchw=pytorch", "--contestant", "nhwc=pytorch,memory_format=channels_last",
        "--contestant", f"second=pytorch@{second}", *SMALL, "--out", out,
    )  # fmt: skip
    assert code == 0, found
    comparison = found["comparison"]
    proof = comparison["proof"]
    assert proof["verdict"] == "proved", proof["sentence"]
    # All three: the switch keeps all digits, so the float64 proof is made with it.
    assert proof["mode_verdicts"] == {name: {"serial": "proved"} for name in ("nchw", "nhwc", "second")}
    assert proof["not_claimed"] == {}
    spec = next((out / "proof").rglob("serial-nhwc.json"))
    assert json.loads(spec.read_text())["framework_options"] == {"memory_format": "channels_last"}
    runs = {row_id: each[0] for row_id, each in found["runs"].items()}
    assert {run["framework"] for run in runs.values()} == {"pytorch"}
    assert runs["nhwc-serial-1core"]["switches"]["memory_format"] == "channels_last"
    ran = {row_id.split("-")[0]: run["environment"] for row_id, run in runs.items()}
    assert ran["second"]["interpreter"] == str(second) and ran["nchw"]["interpreter"] == sys.executable
    assert "only-there==1.0" in ran["second"]["distributions"] and "only-there==1.0" not in ran["nchw"]["distributions"]
    assert ran["nchw"]["distributions_hash"] == ran["nhwc"]["distributions_hash"] != ran["second"]["distributions_hash"]
    assert {name: each["distributions_hash"] for name, each in ran.items()} == {
        name: each["distributions_hash"] for name, each in comparison["environments"].items()
    }
    assert len({run["first_step_loss"] for run in runs.values()}) <= 2 and found["findings"]["comparable"]
    sentences = found["findings"]["environments"]
    assert len(sentences) == 2 and all("against second: only-there not there against 1.0" in sentence for sentence in sentences)
    page = (out / "report.html").read_text("utf-8")
    assert all(words in page for words in ("nchw", "nhwc", "only-there", str(second)))


@pytest.mark.slow
def test_a_defect_planted_in_one_contestants_environment_is_caught(second: Path, tmp_path: Path) -> None:
    (site,) = second.parents[1].glob("lib/python*/site-packages")
    (site / "planted_defect.py").write_text(PLANTED)
    (site / "planted.pth").write_text("import planted_defect\n")
    code, found = compare(
        "parity", "--contestant", "here=pytorch", "--contestant", f"there=pytorch@{second}", "--modes", "serial",
        "--model", "tests.parity.probe", "--optimizer", "sgd", "--steps", "3", "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 1 and found["verdict"] == "not proved"
    failed = {rung["name"] for rung in found["rungs"] if rung["status"] == "failed"}
    assert any(name.endswith("gradients") for name in failed) and "5 losses" in failed, failed
