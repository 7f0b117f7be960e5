"""`compare env`: environments are made from a lock, listed and checked."""

import json
import shutil
import stat
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.machine import environment
from compare.core.errors import FolderError
from compare.environments import checking, creating
from compare.environments.checking import EnvironmentCheck, TwinStatus
from compare.execution import contestants, launch
from tests import hostile_files
from tests.support.command_line import convtwins

_UV = """#!{python}
import json, pathlib, sys, venv
words = sys.argv[1:]
with open({calls!r}, "a") as calls:
    print(json.dumps(words), file=calls)
if words[0] == "venv":
    venv.create(words[-1], symlinks=True)
elif "fail" in pathlib.Path(words[-1]).read_text():
    sys.exit("No matching distribution found for fail")
else:
    (site,) = pathlib.Path(words[3]).parents[1].glob("lib/python*/site-packages")
    for line in pathlib.Path(words[-1]).read_text().splitlines():
        name, version = line.split("==")
        (site / f"{{name}}-{{version}}.dist-info").mkdir()
"""
"""Makes what uv makes, of empty distributions."""

NEEDED = "".join(f"{name}==1.0\n" for name in environment.REQUIRED)


@pytest.fixture(autouse=True)
def nobody_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    contestants.clear_registry()
    yield
    contestants.clear_registry()


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up uv is on the path; yields the file of its command lines."""
    path = tmp_path / "programs" / "uv"
    path.parent.mkdir()
    path.write_text(_UV.format(python=sys.executable, calls=str(tmp_path / "calls")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    return tmp_path / "calls"


def test_an_environment_is_made_from_a_lock_listed_and_checked(calls: Path, tmp_path: Path) -> None:
    lock = tmp_path / "my.lock"
    lock.write_text(f"{NEEDED}tensorflow==1.15.0")
    done = convtwins("env", "create", "mine", "--lock", lock)
    assert done.exit_code == 1  # nothing in it can run a twin, which the check says at once
    assert "tensorflow: tensorflow 1.15.0 is not supported. Use a version from" in " ".join(done.stdout.split())
    made = tmp_path / ".environments" / "mine"
    target = str(made / "bin" / "python")
    assert [json.loads(line) for line in calls.read_text().splitlines()] == [
        ["venv", "--python", sys.executable, str(made)],
        ["pip", "install", "--python", target, "-r", str(lock)],
    ]
    convtwins("env", "create", "other", "--lock", lock, "--no-deps", "--folder", tmp_path / "others")
    assert json.loads(calls.read_text().splitlines()[-1])[4] == "--no-deps"
    listed = json.loads(convtwins("env", "list", "--json").stdout)["environments"]
    (found,) = listed
    assert (found["name"], found["interpreter"], found["lock"]) == ("mine", target, str(lock))
    assert sorted(found["distributions"]) == sorted([*NEEDED.split(), "tensorflow==1.15.0"])
    assert found["needed"] == dict.fromkeys(environment.REQUIRED, "1.0")
    assert f"What every twin needs: {environment.REQUIRED[0]} 1.0," in done.stdout
    assert [(each["twin"], each["installed"]) for each in found["twins"]] == [("pytorch", False), ("tensorflow", True)]
    assert convtwins("env", "check", "mine").exit_code == 1
    assert contestants.interpreter("mine") == Path(target)
    convtwins("env", "create", "own", "--lock", "tensorflow-cpu", "--folder", tmp_path / "others")
    assert json.loads(calls.read_text().splitlines()[-1])[-1] == str(launch.PROJECT_ROOT / "locks" / "tensorflow-cpu.lock")
    again = convtwins("env", "create", "mine", "--lock", lock)
    assert again.exit_code == 2 and "There is an environment mine in .environments" in again.output


def test_what_cannot_be_installed_leaves_its_log_alone(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "my.lock").write_text("fail")
    done = convtwins("env", "create", "mine", "--lock", "my.lock")
    assert done.exit_code == 1 and "The environment mine cannot be made from my.lock (exit code 1)" in done.output
    assert "No matching distribution found for fail" in done.output
    assert [path.name for path in (tmp_path / ".environments").iterdir()] == ["mine.log"]


def test_an_environment_without_what_every_twin_needs_is_refused_by_name(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "my.lock").write_text(NEEDED.replace("pydantic==1.0\n", "torch==2.14.1\n"))
    done = convtwins("env", "create", "mine", "--lock", "my.lock")
    said = " ".join(done.output.split())
    assert done.exit_code == 1 and "The environment mine would run no twin: my.lock installs no pydantic." in said
    assert [path.name for path in (tmp_path / ".environments").iterdir()] == ["mine.log"]
    venv.create(tmp_path / "mine", symlinks=True)  # made by hand
    (site,) = (tmp_path / "mine").glob("lib/python*/site-packages")
    for line in ("torch-2.14.1", "torchvision-0.29.1", *NEEDED.replace("==", "-").split()):
        if "pydantic" not in line:
            (site / f"{line}.dist-info").mkdir()
    fault = json.loads(convtwins("env", "check", "./mine", "--json").stdout)["fault"]
    assert fault == "pytorch: It has no pydantic, and every twin needs what locks/common.txt names. Install it there."


def test_of_two_that_make_an_environment_of_one_name_the_second_is_refused_and_leaves_the_first(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.lock").write_text(NEEDED)
    started, again = subprocess.run, []

    def both(command: list[str], **options: Any) -> Any:
        if "venv" in command:  # the other one starts while this one works
            with pytest.raises(FolderError, match="There is an environment mine"):
                again.append(creating.create("mine", tmp_path / "my.lock", tmp_path / "made"))
        return started(command, **options)

    monkeypatch.setattr(subprocess, "run", both)
    target = creating.create("mine", tmp_path / "my.lock", tmp_path / "made")
    assert target.exists() and again == [] and len(calls.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["create"], "env create needs a name and --lock FILE"),
        (["create", "mine"], "env create needs a name and --lock FILE"),
        (["create", "../mine", "--lock", "my.lock"], "An environment's name has letters"),
        (["create", "mine", "--lock", "gone.lock"], "--lock cannot be read. Received: gone.lock"),
        (["create", "mine", "--lock", "gone"], "or one of cpu, pytorch-cuda, tensorflow-cpu, tensorflow-cuda."),
        (["list", "--lock", "my.lock"], "--lock, --python and --no-deps are for env create"),
        (["lst"], "Did you mean list?"),
    ],
)
def test_wrong_words_are_refused_and_make_nothing(tmp_path: Path, words: list[str], reason: str) -> None:
    (tmp_path / "my.lock").write_text("")
    done = convtwins("env", *words)
    assert done.exit_code == 2 and reason in done.output
    assert not (tmp_path / ".environments").exists()


def test_an_interpreter_that_cannot_make_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.lock").write_text("")
    done = convtwins("env", "create", "mine", "--lock", "my.lock", "--python", "gone/python")
    assert done.exit_code == 2 and "The interpreter of mine cannot be started" in done.output
    assert not (tmp_path / ".environments").exists()


def test_an_environment_that_is_broken_is_listed_with_its_fault(tmp_path: Path) -> None:
    program = tmp_path / ".environments" / "broken" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    (found,) = json.loads(convtwins("env", "list", "--json").stdout)["environments"]
    assert "The interpreter of pytorch in broken does not work (exit code 3)" in found["error"]
    assert convtwins("env", "check", "broken").exit_code == 1


@pytest.mark.parametrize("name", ["/nonexist", "./gone", "gone", "."])
def test_an_environment_that_is_not_there_is_refused_by_the_name_that_was_given(name: str) -> None:
    done = convtwins("env", "check", name)
    assert done.exit_code == 2 and f"Received: {name}, but there is no /" in done.stderr


@pytest.mark.parametrize("name", ["my env", "x" * 70, "-umläut"])
def test_an_environment_whose_name_no_contestant_could_have_is_listed_and_checked(tmp_path: Path, name: str) -> None:
    venv.create(tmp_path / ".environments" / name, symlinks=True)
    (found,) = json.loads(convtwins("env", "list", "--json").stdout)["environments"]
    assert (found["name"], found["error"]) == (name, None)
    done = convtwins("env", "check", str(tmp_path / ".environments" / name), "--json")
    assert done.exit_code == 1, done.output
    assert "torch is not installed" in json.loads(done.stdout)["fault"]


def test_a_twin_of_a_package_whose_name_no_contestant_could_have_is_listed_as_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "site" / "odd-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Name: odd\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[convtwins.twins]\nmy twin = odd_impl\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    venv.create(tmp_path / "mine", symlinks=True)
    twins = json.loads(convtwins("env", "check", "./mine", "--json").stdout)["environment"]["twins"]
    assert "Its name cannot stand in a contestant." in {each["twin"]: each["refusal"] for each in twins}["my twin"]


def test_a_check_imports_each_framework_and_names_what_dies_and_what_clashes(
    tmp_path: Path, fake_twins: pytest.MonkeyPatch
) -> None:
    launch.DESCRIPTIONS.clear()
    venv.create(tmp_path / "mine", symlinks=True)
    (site,) = (tmp_path / "mine").glob("lib/python*/site-packages")
    (site / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    fake_twins.setitem(launch.FRAMEWORKS, "dead", "tests.compare.twins.no_such_twin")
    for name in ("one-1.0", "other-1.0"):
        (site / f"{name}.dist-info").mkdir()
        (site / f"{name}.dist-info" / "RECORD").write_text(f"shared.so,sha256={name},1\n")
    done = convtwins("env", "check", "mine/bin/python", "--json")
    found = json.loads(done.stdout)["environment"]
    assert done.exit_code == 1 and found["name"] == "mine"
    assert found["clashes"] == ["one and other both installed shared.so"]
    left, right, dead = found["twins"]
    assert (left["versions"], left["devices"], left["refusal"]) == ({"left": "1.0"}, ["cpu (cpu)"], None)
    assert right["refusal"] is None and "dead in mine cannot describe itself" in dead["refusal"]


@pytest.mark.parametrize(
    ("libraries", "on_gpu", "caution"),
    [
        ({"CUDA": "13.0", "NVIDIA driver": "550.54.15"}, False, "needs an NVIDIA driver from 580.65.06 on. Found: 550.54.15."),
        ({"CUDA": "13.0", "NVIDIA driver": "580.82.07"}, False, "and it sees no GPU"),
        ({"CUDA": "13.0", "NVIDIA driver": "580.82.07"}, True, None),
        ({"CUDA": "13.0"}, False, None),
        ({"NVIDIA driver": "550.54.15"}, False, None),
    ],
)
def test_a_driver_that_is_too_old_is_named(libraries: dict[str, str], on_gpu: bool, caution: str | None) -> None:
    found = checking._cautions(libraries, on_gpu=on_gpu)
    assert (caution is None and found == []) or (caution is not None and caution in found[0])


def test_an_environment_is_usable_if_one_twin_runs_and_none_is_broken() -> None:
    runs, absent = TwinStatus(twin="a"), TwinStatus(twin="b", refusal="b is not installed.", installed=False)
    broken = TwinStatus(twin="c", refusal="c 1.0 is not supported.")
    assert EnvironmentCheck(name="x", interpreter="p", twins=[runs, absent]).fault is None
    assert EnvironmentCheck(name="x", interpreter="p", twins=[runs, broken]).fault == "c: c 1.0 is not supported."
    assert EnvironmentCheck(name="x", interpreter="p", twins=[absent]).fault == "b: b is not installed."
    assert EnvironmentCheck(name="x", interpreter="p", twins=[runs], clashes=["both"]).fault == "both"


@pytest.mark.slow
def test_pip_makes_an_environment_where_there_is_no_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(launch, "inspect", lambda name: {"needed": {}})
    (tmp_path / "my.lock").write_text("# nothing\n")
    target = creating.create("mine", tmp_path / "my.lock", tmp_path / "made")
    assert subprocess.run([target, "-c", "import pip"], check=False).returncode == 0
    made = creating.read_record(tmp_path / "made" / "mine")
    assert made is not None and (made.tool, made.lock) == ("pip", str(tmp_path / "my.lock"))


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_a_lock_that_is_a_pipe_or_endless_is_refused(name: str, tmp_path: Path) -> None:
    said = hostile_files.put(name, tmp_path / "my.lock")
    with hostile_files.soon():
        done = convtwins("env", "create", "mine", "--lock", str(tmp_path / "my.lock"))
    assert done.exit_code == 2 and f"--lock cannot be read. Received: {tmp_path / 'my.lock'} (it {said}" in done.output
