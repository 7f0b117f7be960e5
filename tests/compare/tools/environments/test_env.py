"""`compare env`: environments are made from a lock, listed and checked."""

import json
import stat
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.errors import UserError
from common.machine import environment, plugins
from compare.running import contestants, launch
from compare.tools.environments import checking, creating
from compare.tools.environments.checking import EnvironmentCheck, TwinStatus
from tests import hostile_files
from tests.support import processes, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check, check_ended

_UV = """#!{python}
import json, os, pathlib, subprocess, sys, venv
words = sys.argv[1:]
with open({calls!r}, "a") as calls:
    print(json.dumps(words), file=calls)
if words[0] == "venv":
    venv.create(words[-1], symlinks=True)
    if meanwhile := os.environ.pop("MEANWHILE", None):
        subprocess.run(["sh", "-c", meanwhile])
elif "fail" in pathlib.Path(words[-1]).read_text():
    sys.exit("No matching distribution found for fail")
else:
    (site,) = pathlib.Path(words[3]).parents[1].glob("lib/python*/site-packages")
    for line in pathlib.Path(words[-1]).read_text().splitlines():
        name, version = line.split("==")
        (site / f"{{name}}-{{version}}.dist-info").mkdir()
"""
"""Makes what uv makes, of empty distributions. MEANWHILE is a command that somebody else gives while it works."""

NEEDED = "".join(f"{name}==1.0\n" for name in environment.REQUIRED)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up uv is on the path; yields the file of its command lines."""
    text = _UV.format(python=sys.executable, calls=str(tmp_path / "calls"))
    path = trees.write(tmp_path, {"programs/uv": text}) / "programs" / "uv"
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    return tmp_path / "calls"


def test_an_environment_is_made_from_a_lock_listed_and_checked(calls: Path, tmp_path: Path) -> None:
    lock = tmp_path / "my.lock"
    lock.write_text(f"{NEEDED}tensorflow==1.15.0")
    done = convtwins("env", "create", "mine", "--lock", lock)
    assert done.exit_code == 1 and "tensorflow 1.15.0" in done.stdout  # nothing in it can run a twin
    made = tmp_path / ".environments" / "mine"
    target = str(made / "bin" / "python")
    assert [json.loads(line) for line in calls.read_text().splitlines()] == [
        ["venv", "--python", sys.executable, str(made)],
        ["pip", "install", "--python", target, "-r", str(lock)],
    ]
    convtwins("env", "create", "other", "--lock", lock, "--no-deps", "--folder", tmp_path / "others")
    assert json.loads(calls.read_text().splitlines()[-1])[4] == "--no-deps"
    (found,) = convtwins_json("env", "list")["environments"]
    assert (found["name"], found["interpreter"], found["lock"]) == ("mine", target, str(lock))
    assert sorted(found["distributions"]) == sorted([*NEEDED.split(), "tensorflow==1.15.0"])
    assert found["needed"] == dict.fromkeys(environment.REQUIRED, "1.0")
    assert f"{environment.REQUIRED[0]} 1.0," in done.stdout
    assert [(each["twin"], each["installed"]) for each in found["twins"]] == [("pytorch", False), ("tensorflow", True)]
    assert convtwins("env", "check", "mine").exit_code == 1
    assert contestants.interpreter("mine") == Path(target)
    convtwins("env", "create", "own", "--lock", "tensorflow-cpu", "--folder", tmp_path / "others")
    assert json.loads(calls.read_text().splitlines()[-1])[-1] == str(launch.PROJECT_ROOT / "locks" / "tensorflow-cpu.lock")
    again = convtwins("env", "create", "mine", "--lock", lock)
    check_ended(again, field="mine", names=[".environments", tmp_path / ".environments" / "mine"])


def test_what_cannot_be_installed_leaves_its_log_alone(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "my.lock").write_text("fail")
    done = convtwins("env", "create", "mine", "--lock", "my.lock")
    log = tmp_path / ".environments" / "mine.log"
    names = ["my.lock", "exit code 1", log.relative_to(tmp_path), "No matching distribution found for fail"]
    check_ended(done, exit_code=1, field="mine", names=names)
    assert [path.name for path in (tmp_path / ".environments").iterdir()] == ["mine.log"]


def test_an_environment_without_what_every_twin_needs_is_refused_by_name(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "my.lock").write_text(NEEDED.replace("pydantic==1.0\n", "torch==2.14.1\n"))
    done = convtwins("env", "create", "mine", "--lock", "my.lock")
    check_ended(done, exit_code=1, field="mine", names=["my.lock", "pydantic", "locks/common.txt"])
    assert [path.name for path in (tmp_path / ".environments").iterdir()] == ["mine.log"]
    venv.create(tmp_path / "mine", symlinks=True)  # made by hand
    (site,) = (tmp_path / "mine").glob("lib/python*/site-packages")
    there = ("torch-2.14.1", "torchvision-0.29.1", *NEEDED.replace("==", "-").split())
    trees.write(site, {f"{line}.dist-info": None for line in there if "pydantic" not in line})
    fault = convtwins_json("env", "check", "./mine", exit_code=1)["fault"]
    assert fault.startswith("pytorch: ") and "pydantic" in fault and "locks/common.txt" in fault


def test_of_two_that_make_an_environment_of_one_name_the_second_is_refused_and_leaves_the_first(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my.lock").write_text(NEEDED)
    command = f"{sys.executable} -m compare env create mine --lock my.lock --folder made >{tmp_path}/printed 2>&1"
    monkeypatch.setenv("PYTHONPATH", str(launch.PROJECT_ROOT))
    monkeypatch.setenv("MEANWHILE", f"{command}; echo $? >{tmp_path}/code")
    target = creating.create("mine", tmp_path / "my.lock", tmp_path / "made")
    assert target.exists() and len(calls.read_text().splitlines()) == 2
    assert (tmp_path / "code").read_text() == "2\n"
    check(UserError((tmp_path / "printed").read_text()), field="mine", names=["made", tmp_path / "made" / "mine"])


def test_an_environment_that_is_broken_is_listed_with_its_fault(tmp_path: Path) -> None:
    program = tmp_path / ".environments" / "broken" / "bin" / "python"
    trees.write(program.parent, {"python": "#!/bin/sh\nexit 3\n"})
    program.chmod(0o755)
    (found,) = convtwins_json("env", "list")["environments"]
    assert "broken" in found["error"] and "exit code 3" in found["error"]
    assert convtwins("env", "check", "broken").exit_code == 1


@pytest.mark.parametrize("name", ["my env", "x" * 70, "-umläut"])
def test_an_environment_whose_name_no_contestant_could_have_is_listed_and_checked(tmp_path: Path, name: str) -> None:
    venv.create(tmp_path / ".environments" / name, symlinks=True)
    (found,) = convtwins_json("env", "list")["environments"]
    assert (found["name"], found["error"]) == (name, None)
    fault = convtwins_json("env", "check", tmp_path / ".environments" / name, exit_code=1)["fault"]
    assert "torch is not installed" in fault


def test_a_twin_of_a_package_whose_name_no_contestant_could_have_is_listed_as_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"METADATA": "Name: odd\nVersion: 1.0\n", "entry_points.txt": "[convtwins.twins]\nmy twin = odd_impl\n"}
    trees.write(tmp_path / "site" / "odd-1.0.dist-info", files)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    venv.create(tmp_path / "mine", symlinks=True)
    twins = convtwins_json("env", "check", "./mine", exit_code=1)["environment"]["twins"]
    (refusal,) = [twin["refusal"] for twin in twins if twin["twin"] == "my twin"]
    assert "name" in refusal and "contestant" in refusal


def test_a_check_imports_each_framework_and_names_what_dies_and_what_clashes(
    tmp_path: Path, fake_twins: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "mine", symlinks=True)
    (site,) = (tmp_path / "mine").glob("lib/python*/site-packages")
    fake_twins.setitem(launch.FRAMEWORKS, "dead", "tests.compare.twins.no_such_twin")
    clashing = {f"{name}.dist-info/RECORD": f"shared.so,sha256={name},1\n" for name in ("one-1.0", "other-1.0")}
    broken = {
        "broken-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n",
        "broken-1.0.dist-info/entry_points.txt": f"[{plugins.TWINS}]\nbroken = no_such_package\n",
    }
    trees.write(site, {"here.pth": f"{sysconfig.get_path('purelib')}\n", **clashing, **broken})
    found = convtwins_json("env", "check", "mine/bin/python", exit_code=1)["environment"]
    assert found["name"] == "mine" and found["clashes"] == ["one and other both installed shared.so"]
    twins = {status["twin"]: status for status in found["twins"]}
    assert "no_such_package" in twins["broken"]["refusal"], "a plug-in that cannot be imported hides nothing else"
    left, right, dead = (twins[name] for name in ("left", "right", "dead"))
    assert (left["versions"], left["devices"], left["refusal"]) == ({"left": "1.0"}, ["cpu (cpu)"], None)
    assert right["refusal"] is None and "dead in mine" in dead["refusal"] and "no_such_twin" in dead["refusal"]


@pytest.mark.parametrize(
    ("libraries", "on_gpu", "words"),
    [
        ({"CUDA": "13.0", "NVIDIA driver": "550.54.15"}, False, ["580.65.06", "550.54.15"]),
        ({"CUDA": "13.0", "NVIDIA driver": "580.82.07"}, False, ["no GPU"]),
        ({"CUDA": "13.0", "NVIDIA driver": "580.82.07"}, True, []),
        ({"CUDA": "13.0"}, False, []),
        ({"NVIDIA driver": "550.54.15"}, False, []),
    ],
)
def test_a_driver_that_is_too_old_is_named(libraries: dict[str, str], on_gpu: bool, words: list[str]) -> None:
    cautions = checking._cautions(libraries, on_gpu=on_gpu)
    assert len(cautions) == bool(words) and all(word in cautions[0] for word in words)


def test_an_environment_is_usable_if_one_twin_runs_and_none_is_broken() -> None:
    runs, absent = TwinStatus(twin="a"), TwinStatus(twin="b", refusal="b is not installed.", installed=False)
    broken = TwinStatus(twin="c", refusal="c 1.0 is not supported.")

    def fault(*twins: TwinStatus, clashes: Sequence[str] = ()) -> str | None:
        return EnvironmentCheck(name="x", interpreter="p", twins=[*twins], clashes=[*clashes]).fault

    assert fault(runs, absent) is None
    assert fault(runs, broken) == f"c: {broken.refusal}" and fault(absent) == f"b: {absent.refusal}"
    assert fault(runs, clashes=["both"]) == "both"


@pytest.mark.slow
def test_pip_makes_an_environment_where_there_is_no_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch, "inspect", lambda name: {"needed": {}})  # of a lock without what a twin needs
    (tmp_path / "my.lock").write_text("# nothing\n")
    target = creating.create("mine", tmp_path / "my.lock", tmp_path / "made")
    processes.run([target, "-c", "import pip"]).succeeded()
    made = creating.read_record(tmp_path / "made" / "mine")
    assert made is not None and (made.tool, made.lock) == ("pip", str(tmp_path / "my.lock"))


@pytest.mark.parametrize("name", hostile_files.IN_PLACE)
def test_a_lock_that_is_a_pipe_or_endless_is_refused(name: str, tmp_path: Path) -> None:
    fault = hostile_files.put(name, tmp_path / "my.lock")
    with hostile_files.soon():
        done = convtwins("env", "create", "mine", "--lock", str(tmp_path / "my.lock"))
    check_ended(done, field="--lock", received=tmp_path / "my.lock", names=[fault.strip()])
