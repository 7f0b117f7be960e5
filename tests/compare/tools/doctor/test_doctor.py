"""`convtwins doctor`: what is here, what each mode needs, and what will be in the way."""

import re
import shutil
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

from common import spec
from common.spec import Mode
from compare.running import launch
from compare.tools.doctor import doctor
from tests.compare.conftest import behave, lacks_gossip
from tests.support import trees
from tests.support.command_line import convtwins, convtwins_json


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


def test_a_registered_mode_is_described(fake_twins: pytest.MonkeyPatch, gossip: Mode) -> None:
    lacks_gossip(fake_twins)
    described = convtwins_json("doctor")["frameworks"][0]["modes"][-1]
    assert (described["mode"], described["needs"]) == ("gossip", "two machines that talk")
    assert (described["here"], described["cut_short"]) == ("not available: left has no mode gossip", "starts over")
