"""Contestants: how they are named, and which are refused before anything is trained."""

import json
import re
import stat
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.artifacts.schema import Environment
from common.machine import environment
from common.spec import SpecError
from compare.comparison import run
from compare.core.errors import LaunchError
from compare.execution import code_digest, contestants, launch, store
from compare.execution.contestants import Contestant
from compare.execution.store import ProofRecord
from compare.judgement import environments, measurements
from compare.reporting import comparison_report
from compare.switches import layers
from tests.support import comparisons
from tests.support.command_line import convtwins

TWINS = ("pytorch", "tensorflow")


@pytest.fixture(autouse=True)
def nobody_entered() -> Iterator[None]:
    contestants.clear_registry()
    yield
    contestants.clear_registry()


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """An interpreter without a single distribution."""
    venv.create(tmp_path / "bare", symlinks=True)
    return tmp_path / "bare" / "bin" / "python"


@pytest.fixture
def linked(bare: Path) -> Path:
    """The same, which reaches the distributions of this process's environment."""
    (site,) = bare.parents[1].glob("lib/python*/site-packages")
    (site / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return bare


def script(path: Path, text: str) -> Path:
    """An executable that only pretends to be an interpreter."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("word", "made"),
    [
        ("a=pytorch", Contestant(name="a", twin="pytorch")),
        ("a-2.13=pytorch@/usr/bin/python3", Contestant(name="a-2.13", twin="pytorch", python="/usr/bin/python3")),
        (
            "b=pytorch,arithmetic=bfloat16,onednn=false,threads=2",
            Contestant(name="b", twin="pytorch", switches={"arithmetic": "bfloat16", "onednn": False, "threads": 2}),
        ),
        (
            "c=tensorflow@/x/python,jit=true",
            Contestant(name="c", twin="tensorflow", python="/x/python", switches={"jit": True}),
        ),
    ],
)
def test_a_word_of_the_command_line_makes_a_contestant(word: str, made: Contestant) -> None:
    assert Contestant.from_option(word) == made
    fields = made.model_dump(exclude={"name"}, exclude_none=True)
    assert Contestant.from_fields(made.name, fields) == made


@pytest.mark.parametrize("word", ["", "a", "=pytorch", "a=", "a=pytorch@", "a=pytorch,", "a=pytorch,quick", "a=pytorch,=1"])
def test_a_word_of_another_form_is_refused(word: str) -> None:
    with pytest.raises(SpecError, match=r"--contestant takes NAME=TWIN\[@PYTHON\]"):
        Contestant.from_option(word)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("../a=pytorch", r"The contestant \.\./a has a name that is refused"),
        (f"{'a' * 61}=pytorch", "has a name that is refused"),
        ("a=pytorch,x=1,x=2", "--contestant a sets x twice"),
        ("a=pytorch,x=[1", "--contestant a has a value that cannot be read"),
        ("a=pytorch,x=2020-13-45", "--contestant a has a value that cannot be read.*is a date to YAML"),
        ("a=pytorch,x=!!python/name:os.system", "--contestant a has a value that cannot be read"),
        ("a=py\0torch", "The contestant a has a twin that is refused.*Use letters"),
        ("a=../x@/usr/bin/python3", "The contestant a has a twin that is refused"),
        ("a=pytorch@/usr/bin/py\0thon", "The contestant a has a python that is refused.*it is no path"),
        ("a=pytorch,x=[1]", r"The contestant a has a switches\.x.* that is refused"),
        ("a=pytorch,x=null", r"The contestant a has a switches\.x.* that is refused"),
    ],
)
def test_a_name_or_switch_that_cannot_be_is_refused_by_name(word: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        contestants.choose(None, [word], {}, TWINS)


def test_the_command_line_goes_over_the_spec_file_and_may_name_its_contestants() -> None:
    in_file = {"old": {"twin": "pytorch", "python": "/old/bin/python"}, "new": {"twin": "pytorch"}}
    assert contestants.choose(None, [], {}, TWINS) == ["pytorch", "tensorflow"]
    assert contestants.choose(["tensorflow"], [], {}, TWINS) == ["tensorflow"]
    assert contestants.choose(None, [], in_file, TWINS) == ["old", "new"]
    assert contestants.choose(["new", "tensorflow"], [], in_file, TWINS) == ["new", "tensorflow"]
    assert contestants.choose(None, ["mine=pytorch"], in_file, TWINS) == ["mine"]
    assert contestants.choose(["old"], ["mine=pytorch"], in_file, TWINS) == ["old", "mine"]
    assert contestants.by_name("old").python == "/old/bin/python"
    assert contestants.registered(["mine", "tensorflow"]) == [Contestant(name="mine", twin="pytorch")]
    assert contestants.by_name("tensorflow") == Contestant(name="tensorflow", twin="tensorflow")


@pytest.mark.parametrize(
    ("frameworks", "words", "reason"),
    [
        (None, ["a=pytorch", "a=tensorflow"], "Two contestants are named a"),
        (["pytorch"], ["pytorch=pytorch,x=1"], "Two contestants are named pytorch"),
        (None, ["a=pytroch"], "The twin of a names something unknown. Received: 'pytroch'.* Did you mean pytorch"),
        (None, ["pytorch=tensorflow"], "pytorch is the name of another twin. Received: pytorch=tensorflow"),
        (["b"], ["a=pytorch"], "--frameworks names something unknown. Received: 'b'"),
    ],
)
def test_two_of_one_name_and_unknown_twins_are_refused(frameworks: list[str] | None, words: list[str], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        contestants.choose(frameworks, words, {}, TWINS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("contestants: {a: {twin: left}, a: {twin: right}}", "a stands there twice"),
        ("contestants: [left]", "contestants must be a group"),
        ("contestants:", "contestants must be a group of them. Received: None"),
        ("contestants: {}", "contestants must be a group of them. Received: {}"),
        ("contestants: {3.11: {twin: left}}", "a field without a name. Received: 3.11. Quote it"),
        ("contestants: {a: left}", r"contestants\.a must be a group of fields"),
        ("contestants: {a: {twin: left, pyhton: x}}", "The contestant a has a pyhton that is refused"),
        ("contestants: {a: {python: x}}", "The contestant a has a twin that is refused"),
    ],
)
def test_a_spec_file_with_wrong_contestants_is_refused(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    done = convtwins("run", "--spec", tmp_path / "spec.yaml", "--out", tmp_path / "out")
    assert done.exit_code == 2 and reason.replace("\\", "") in done.output.replace("\n", " "), done.output
    assert not (tmp_path / "out").exists()


def test_contestants_of_a_spec_file_are_refused_where_a_command_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spec.yaml").write_text("model: simple_cnn\ncontestants: {a: {twin: pytorch}}")
    done = convtwins("optimize", "--spec", tmp_path / "spec.yaml")
    assert done.exit_code == 2
    assert "contestants of a spec file are for run, parity, scaling, plan, stragglers, regress, bisect and layers" in " ".join(
        done.output.split()
    )
    seen: list[str] = []

    def measure(what: object, named: list[str], *rest: object) -> None:
        seen.extend(named)
        raise SpecError("seen")

    monkeypatch.setattr(layers, "measure", measure)
    assert convtwins("layers", "--spec", tmp_path / "spec.yaml").exit_code == 2 and seen == ["a"]


def test_a_twin_that_other_interpreters_have_is_looked_up_there() -> None:
    with pytest.raises(SpecError, match="The twin of a names something unknown"):
        contestants.choose(None, ["a=third"], {}, TWINS)
    assert contestants.choose(["third"], ["a=third"], {}, TWINS, has_other_interpreters=True) == ["third", "a"]
    assert contestants.check(["third", "a"], TWINS) == ["third", "a"]
    with pytest.raises(SpecError, match="Two contestants are named third"):
        contestants.choose(["third"], ["third=other"], {}, TWINS, has_other_interpreters=True)


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "--data", "digits"), ("optimize", "--model", "simple_cnn"), ("evaluate", "--data", "digits"), ("selftest",),
        ("models", "--model", "simple_cnn"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_command_for_the_own_twins_names_another_and_says_what_takes_it(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contestants, "_installed_twins", lambda: {"third": None})
    monkeypatch.setattr(launch, "StartedProcess", None)  # nothing is started
    done = convtwins(*words, "--frameworks", "third")
    said = " ".join(done.output.split())
    assert (
        done.exit_code == 2
        and "--frameworks takes the suite's own twins here. Received: 'third', the twin of a package" in said
    )
    assert f"{contestants.TAKE_CONTESTANTS} take the twin of a package." in said
    done = convtwins(*words, "--contestant", "third=third@/no/python")
    assert done.exit_code == 2 and f"{contestants.TAKE_CONTESTANTS} take contestants" in " ".join(
        done.output.replace("│", " ").split()
    )
    assert list(tmp_path.iterdir()) == []


def test_an_environment_is_named_by_its_folder_its_interpreter_or_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = tmp_path / ".environments" / "mine" / "bin" / "python"
    expected.parent.mkdir(parents=True)
    expected.symlink_to(sys.executable)  # must not be followed: a virtual environment is known by its own link
    for text in ("mine", ".environments/mine", ".environments/mine/bin/python", str(expected)):
        assert Contestant.from_option(f"a=pytorch@{text}").python == str(expected)


def test_a_word_without_a_slash_is_an_environment_or_a_program_and_no_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "programs").mkdir()
    program = script(tmp_path / "programs" / "mine", "exit 3")
    monkeypatch.setenv("PATH", str(program.parent))
    (tmp_path / "mine" / "bin").mkdir(parents=True)
    script(tmp_path / "other", "exit 3")
    made = tmp_path / ".environments" / "mine"
    assert contestants.interpreter("mine") == program
    assert contestants.interpreter("other") == tmp_path / ".environments" / "other" / "bin" / "python"
    assert contestants.interpreter("./mine") == tmp_path / "mine" / "bin" / "python"
    assert contestants.interpreter("./other") == tmp_path / "other"
    assert contestants.interpreter("~/mine/bin/python") == tmp_path / "home" / "mine" / "bin" / "python"
    made.mkdir(parents=True)
    assert contestants.interpreter("mine") == made / "bin" / "python"


# Bad input: each is refused by name before anything is trained.


def refused(python: Path | str, twin: str = "pytorch") -> str:
    contestants.register([Contestant(name="subject", twin=twin, python=str(python))])
    with pytest.raises(LaunchError) as error, launch.describe_all(["subject"]):
        pass
    assert "subject" in str(error.value) and str(python) in str(error.value)
    return str(error.value)


def test_an_interpreter_that_is_missing_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path / "gone" / "python")
    assert said.startswith("The interpreter of subject cannot be started: No such file or directory.")


def test_an_interpreter_that_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("text")
    assert "cannot be started: Permission denied" in refused(tmp_path / "python")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo 'no such library' >&2; exit 3", "does not work (exit code 3)"),
        ("kill -SEGV $$", "does not work (killed by SIGSEGV)"),
        ("echo hello", "does not work (exit code 0)"),
        ("echo 3.8.10", "Python 3.8.10 is not supported. Use a version from 3.11 on and below 3.14."),
        ("echo 3.14.0", "Python 3.14.0 is not supported."),
        ('[ "$1" = -I ] && echo 3.12.1 || { echo broken >&2; exit 1; }', "cannot list what is installed (exit code 1)"),
    ],
)
def test_an_interpreter_that_does_not_work_or_is_of_another_python_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refused(script(tmp_path / "python", text))


def test_an_interpreter_that_hangs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_PROBE_SECONDS", 0.3)
    assert "gave no answer in 0 s" in refused(script(tmp_path / "python", "exec sleep 60"))


@pytest.mark.parametrize("twin", TWINS)
def test_an_interpreter_without_its_framework_is_refused(bare: Path, twin: str) -> None:
    said = refused(bare, twin)
    package = {"pytorch": "torch", "tensorflow": "tensorflow"}[twin]
    assert said.startswith(f"The interpreter of subject cannot run it: {package} is not installed. Use a version from")


@pytest.mark.parametrize("version", ["1.13.1", "99.0.0rc1+cpu"])
def test_a_framework_outside_the_supported_versions_is_refused(bare: Path, version: str) -> None:
    (site,) = bare.parents[1].glob("lib/python*/site-packages")
    (site / f"torch-{version}.dist-info").mkdir()
    assert f"torch {version} is not supported" in refused(bare)


@pytest.mark.parametrize(
    ("twin", "reason"),
    [
        ("pytroch", "It has no twin pytroch. Install a package.* Did you mean pytorch?"),
        ("dask", "It has no twin dask. Install a"),
    ],
)
def test_a_twin_that_another_interpreter_does_not_have_is_refused(bare: Path, twin: str, reason: str) -> None:
    assert re.search(reason, refused(bare, twin))


def test_a_framework_that_is_missing_here_is_refused_before_anything_is_imported_and_the_doctor_asks_the_others(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_twins.setitem(launch.FRAMEWORKS, "tensorflow", "tensorflow_impl")
    fake_twins.setattr(launch, "_CapturedProcess", None)  # nothing is started
    there = {name: version for name, version in environment.distributions().items() if not name.startswith("tensorflow")}
    fake_twins.setattr(environment, "distributions", lambda: there)
    done = convtwins("run", "--out", tmp_path / "out")
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and "tensorflow cannot run here: tensorflow is not installed." in said
    assert "Install convtwins[tensorflow], or choose other frameworks." in said
    with launch.describe_all(["tensorflow", "left"], defer_errors=True) as answer:
        assert answer("left")["framework"] == "left"
        with pytest.raises(LaunchError, match="tensorflow is not installed"):
            answer("tensorflow")


def test_a_twin_of_a_package_beside_the_suite_is_held_to_its_versions_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "third_impl").mkdir()
    (tmp_path / "third_impl" / "__init__.py").write_text('SUPPORTED = {"numpy": ("99", "100")}\n')
    (tmp_path / "third-1.0.dist-info").mkdir()
    (tmp_path / "third-1.0.dist-info" / "entry_points.txt").write_text("[convtwins.twins]\nthird = third_impl\n")
    (tmp_path / "third-1.0.dist-info" / "METADATA").write_text("Name: third\nVersion: 1.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"numpy \S+ is not supported. Use a version from 99 on"):
        launch.describe("third")


def test_a_framework_that_dies_on_import_is_refused(linked: Path, tmp_path: Path) -> None:
    (site,) = linked.parents[1].glob("lib/python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    contestants.register([Contestant(name="subject", twin="pytorch", python=str(linked))])
    with pytest.raises(LaunchError, match=r"subject cannot describe itself \(killed by SIGSEGV\)") as error:
        launch.describe("subject")
    assert f"{linked} -m pytorch_impl describe" in str(error.value)


def test_a_run_with_such_an_interpreter_trains_nothing(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = script(tmp_path / "python", "exit 3")
    done = convtwins("run", "--contestant", "fine=left", "--contestant", f"broken=left@{broken}", "--out", tmp_path / "out")
    assert done.exit_code == 2 and "The interpreter of broken does not work" in done.output
    assert not (tmp_path / "out").exists()


def test_the_supported_versions_of_python_are_those_of_the_project() -> None:
    lowest, beyond = environment.PYTHONS
    assert f'requires-python = ">={lowest},<{beyond}"' in (launch.PROJECT_ROOT / "pyproject.toml").read_text("utf-8")


# Two contestants of one twin.


def test_two_contestants_of_one_twin_are_compared(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--contestant", "usual=left", "--contestant", "quick.er=left,left_switch=quick", "--contestant", "right=right"]
    out = tmp_path / "out"
    done = convtwins("run", *words, "--modes", "serial", "--cores", "1", "--repeats", "5", "--no-proof", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    stored = store.read(out)
    assert [(row.id, row.contestant, row.framework) for row in stored.comparison.rows] == [
        ("usual-serial-1core", "usual", "left"),
        ("quick.er-serial-1core", "quick.er", "left"),
        ("right-serial-1core", "right", "right"),
    ]
    options = [row.spec.framework_options for row in stored.comparison.rows]
    assert options == [{}, {"left_switch": "quick"}, {}]
    assert all(run.framework == row.framework for row in stored.comparison.rows for run in stored.runs[row.id].values())
    found = json.loads(done.stdout)
    said = "\n".join(found["findings"]["contestants"])
    assert "usual and quick.er" in said or "quick.er and usual" in said, said
    assert "usual is" in said and "right" in said and "quick.er left_switch=quick" in said, said
    assert "Which contestant is faster?" in (out / "report.md").read_text("utf-8")
    frame = (out / "tables" / "runs.csv").read_text("utf-8")
    assert '"quick.er","left"' in frame
    again = convtwins("run", "--resume", out, "--repeats", "6")
    assert again.exit_code == 0, again.output
    assert len(store.read(out).runs["quick.er-serial-1core"]) == 6
    other = convtwins("run", *words[:-2], "--contestant", "right=right,right_switch=quick", "--modes", "serial", "--cores", "1",
                    "--repeats", "6", "--no-proof", "--out", out)  # fmt: skip
    assert other.exit_code == 2 and "holds the results of another comparison" in other.output


def test_a_plan_that_is_resumed_names_its_interpreters_and_brings_none_of_its_own(
    fake_twins: pytest.MonkeyPatch, linked: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["run", "--contestant", "a=left", "--contestant", f"b=left@{linked}", "--modes", "serial", "--cores", "1"]
    assert convtwins(*words, "--no-proof", "--out", out).exit_code == 0
    resumed = convtwins("run", "--resume", out)
    assert resumed.exit_code == 0 and f"The folder's plan starts '{linked}' for b." in resumed.output
    started = tmp_path / "started"
    own = script(out / "python", f"touch {started}")
    store.write_plan(
        out,
        store.read_plan(out).model_copy(update={"contestants": [Contestant(name="b", twin="left", python=str(own))]}),
    )
    refused = convtwins("run", "--resume", out)
    assert refused.exit_code == 2 and "The interpreter of b lies in the results folder." in refused.output
    assert not started.exists()


def test_a_switch_that_the_twin_of_a_contestant_lacks_is_refused_though_another_twin_has_it(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = convtwins("run", "--contestant", "a=left,right_switch=quick", "--contestant", "b=right", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "The contestant a is refused: framework_options.right_switch is unknown to left" in " ".join(done.output.split())


def test_contestants_of_a_spec_file_are_compared(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        "epochs: 3\ncores: 1\ncontestants:\n  one: {twin: left}\n  other: {twin: left, switches: {left_switch: quick}}\n"
    )
    out = tmp_path / "out"
    done = convtwins("run", "--spec", tmp_path / "spec.yaml", "--modes", "serial", "--no-proof", "--out", out)
    assert done.exit_code == 0, done.output
    assert [row.contestant for row in store.read_plan(out).rows] == ["one", "other"]


def test_the_code_of_a_twin_that_two_interpreters_bring_counts_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"/one/python": "a", "/other/python": "b"}
    monkeypatch.setattr(launch, "probe", lambda name: {"code": codes[launch.interpreter(name)]})
    contestants.register(Contestant(name=f"of{n}", twin="brought", python=path) for n, path in enumerate(codes))
    contestants.register([Contestant(name="switched", twin="brought", python="/other/python", switches={"x": 1})])
    before = code_digest.compute(["of0", "of1"], "simple_cnn")
    assert code_digest.compute(["of1", "switched"], "simple_cnn") == code_digest.compute(["of1"], "simple_cnn") != before
    codes["/one/python"] = "changed"
    assert code_digest.compute(["of0", "of1"], "simple_cnn") != before


# Environments.


def test_an_environment_that_changed_since_the_proof_is_refused_before_anything_is_trained(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = made_up("numpy==2.4.6")
    for description in launch.DESCRIPTIONS.values():
        description["environment"] = before.model_dump()
    now = {"left": before, "right": made_up("numpy==2.4.7")}
    fake_twins.setattr(run, "proof", lambda *arguments: ProofRecord(verdict="proved", sentence="Losses agree."))
    fake_twins.setattr(launch, "current_environment", now.__getitem__)
    words = ["run", "--frameworks", "left,right", "--modes", "serial", "--out", tmp_path / "out"]
    done = convtwins(*words)
    assert done.exit_code == 1, done.output
    assert (
        "The environment of right has changed since the proof: numpy was 2.4.6, now 2.4.7. Nothing was trained." in done.output
    )
    assert not (tmp_path / "out" / "runs").exists()
    now["right"] = before
    assert convtwins(*words).exit_code == 0
    launch.DESCRIPTIONS["left"]["environment"] = made_up("numpy==2.4.8").model_dump()
    resumed = convtwins(*words)
    assert resumed.exit_code == 2
    assert "the environment of left has changed since: numpy was 2.4.6, now 2.4.8" in resumed.output


def test_a_report_says_in_which_environments_two_contestants_differ_and_names_runs_of_another(tmp_path: Path) -> None:
    stored = comparisons.repeated(2)
    one, other = made_up("numpy==2.4.6", "torch==2.14.1", CUDA="13.0"), made_up("numpy==2.4.6", CUDA="12.5")
    comparison = stored.comparison.model_copy(update={"environments": {"pytorch": one, "tensorflow": other}})
    runs = {
        row.id: {
            repeat: result.model_copy(update={"environment": comparison.environments[row.contestant]})
            for repeat, result in stored.runs[row.id].items()
        }
        for row in comparison.rows
    }
    first = comparison.rows[0].id
    runs[first][1] = runs[first][1].model_copy(update={"environment": made_up("numpy==2.4.7", "torch==2.14.1")})
    folder = comparisons.stored_in(store.StoredComparison(comparison=comparison, runs=runs, set_aside=[]), tmp_path)
    found = comparison_report.read(folder)
    assert found.findings.environments == ["pytorch against tensorflow: torch 2.14.1 against not there."]
    caution = f"{first}, repeat 2: ANOTHER ENVIRONMENT than before the proof: numpy was 2.4.6, now 2.4.7."
    assert caution in found.findings.troubles and measurements.read(folder).environment_changes == [caution]
    text = comparison_report.report(found, folder).to_markdown()
    assert "In what do the environments differ?" in text and "| torch | 2.14.1 |" in text
    said = environments.sentences(environments.relevant_environments(comparison.environments, {"gpus": ["A"]}))
    assert said == ["pytorch against tensorflow: torch 2.14.1 against not there; CUDA 13.0 against 12.5."]


def test_without_a_gpu_libraries_for_gpus_do_not_count_and_all_others_do() -> None:
    libraries = {"NVIDIA driver": "580", "CUDA": "13.0", "cuDNN": "9.1", "NCCL": "2.1"}
    found = environments.relevant_environments(
        {"a": made_up(**libraries, oneDNN="3.7"), "b": made_up(CUDA="12.5", oneDNN="3.9")}, {}
    )
    assert environments.sentences(found) == ["a against b: oneDNN 3.7 against 3.9."]
    assert environments.differences(found) == [{"what": "oneDNN", "a": "3.7", "b": "3.9"}]


def made_up(*distributions: str, python: str = "3.11.7", **libraries: str) -> Environment:
    return Environment(
        interpreter="/usr/bin/python",
        python=python,
        distributions=distributions,
        distributions_hash="".join(distributions) + python,
        libraries=libraries,
    )


def test_what_differs_between_two_environments_is_named() -> None:
    one = made_up("numpy==2.4.6", "torch==2.14.1", CUDA="13.0", oneDNN="3.12")
    other = made_up("numpy==2.4.6", "scipy==1.17.1", "torch==2.15.0", python="3.12.1", CUDA="13.1")
    assert contestants.version_differences(one, other) == [
        ("Python", "3.11.7", "3.12.1"),
        ("scipy", None, "1.17.1"),
        ("torch", "2.14.1", "2.15.0"),
        ("CUDA", "13.0", "13.1"),
    ]
    assert contestants.version_differences(one, one) == [] and contestants.describe_changes(one, one) is None
    assert contestants.describe_changes(one, other) == (
        "Python was 3.11.7, now 3.12.1; scipy was added, now 1.17.1; torch was 2.14.1, now 2.15.0"
    )


def test_an_environment_lists_what_its_interpreter_can_import(bare: Path, linked: Path) -> None:
    contestants.register([Contestant(name="linked", twin="pytorch", python=str(linked))])
    found, here = launch.current_environment("linked"), launch.current_environment("pytorch")
    assert found.interpreter == str(linked) and here.interpreter == sys.executable
    assert found.distributions == here.distributions and found.distributions_hash == here.distributions_hash
    assert any(text.startswith("torch==") for text in found.distributions)
    (site,) = linked.parents[1].glob("lib/python*/site-packages")
    (site / "Some_Thing-1.0.dist-info").mkdir()
    changed = launch.current_environment("linked")
    assert contestants.describe_changes(found, changed) == "some-thing was added, now 1.0"


def test_two_distributions_that_own_the_same_file_clash(bare: Path) -> None:
    (site,) = bare.parents[1].glob("lib/python*/site-packages")
    for name, digest in (("nvidia_cudnn_cu12-9.1", "sha256=a,10"), ("nvidia_cudnn_cu13-9.2", "sha256=b,12")):
        (site / f"{name}.dist-info").mkdir()
        lines = [f"nvidia/cudnn/lib/libcudnn.so.9,{digest}", f"nvidia/cudnn/x.h,{digest}", "nvidia/__init__.py,sha256=e,0"]
        (site / f"{name}.dist-info" / "RECORD").write_text("\n".join([*lines, f"{name}.dist-info/RECORD,,"]))
    (site / "torch-2.14.1.dist-info").mkdir()
    (site / "torchvision-0.29.1.dist-info").mkdir()
    contestants.register([Contestant(name="both", twin="pytorch", python=str(bare))])
    assert launch.inspect("both", "--clashes")["clashes"] == [
        "nvidia-cudnn-cu12 and nvidia-cudnn-cu13 both installed nvidia/cudnn/lib/libcudnn.so.9 and 1 more files"
    ]
