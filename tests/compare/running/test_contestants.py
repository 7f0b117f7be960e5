"""Contestants: how they are named, and which are refused before anything is trained."""

import stat
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from common.artifacts.schema import Environment
from common.machine import environment
from common.spec import SpecError
from compare.cli.errors import LaunchError, NoAnswerError
from compare.judgement import environments
from compare.judgement.statement_words import sentences
from compare.reporting import comparison_report
from compare.results import store
from compare.running import code_digest, contestants, launch
from compare.running.contestants import Contestant
from compare.running.twins import Twins
from tests.compare.conftest import describe_as
from tests.support import comparisons, trees
from tests.support.command_line import convtwins, here
from tests.support.refusals import check_ended, refused

TWINS = ("pytorch", "tensorflow")


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
    with refused(SpecError, field="--contestant", received=repr(word), fix="pytorch-old=pytorch@.venv-old/bin/python"):
        Contestant.from_option(word)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("../a=pytorch", {"field": "name", "received": "../a", "fix": ["letters", "digits", "dots"]}),
        (f"{'a' * 61}=pytorch", {"field": "name", "received": "a" * 61}),
        ("a=pytorch,x=1,x=2", {"field": "x", "received": "a=pytorch,x=1,x=2"}),
        ("a=pytorch,x=[1", {"field": "a", "received": "a=pytorch,x=[1"}),
        ("a=pytorch,x=2020-13-45", {"field": "a", "received": "a=pytorch,x=2020-13-45", "names": ["date"], "fix": "quotes"}),
        ("a=pytorch,x=!!python/name:os.system", {"field": "a", "received": "a=pytorch,x=!!python/name:os.system"}),
        ("a=py\0torch", {"field": "twin", "received": repr("py\0torch"), "fix": "letters"}),
        ("a=../x@/usr/bin/python3", {"field": "twin", "received": "../x"}),
        ("a=pytorch@/usr/bin/py\0thon", {"field": "python", "received": repr("/usr/bin/py\0thon")}),
        ("a=pytorch,x=[1]", {"field": "switches.x", "received": "[1]"}),
        ("a=pytorch,x=null", {"field": "switches.x", "received": "None"}),
    ],
)
def test_a_name_or_switch_that_cannot_be_is_refused_by_name(word: str, parts: dict[str, Any]) -> None:
    with refused(SpecError, **parts):
        Twins.choose(None, [word], (), TWINS)


def test_the_command_line_goes_over_the_spec_file_and_may_name_its_contestants() -> None:
    in_file = [Contestant(name="old", twin="pytorch", python="/old/bin/python"), Contestant(name="new", twin="pytorch")]
    assert Twins.choose(None, [], (), TWINS).names == ["pytorch", "tensorflow"]
    assert Twins.choose(["tensorflow"], [], (), TWINS).names == ["tensorflow"]
    assert Twins.choose(None, [], in_file, TWINS).names == ["old", "new"]
    assert Twins.choose(["new", "tensorflow"], [], in_file, TWINS).names == ["new", "tensorflow"]
    assert Twins.choose(None, ["mine=pytorch"], in_file, TWINS).names == ["mine"]
    both = Twins.choose(["old", "tensorflow"], ["mine=pytorch"], in_file, TWINS)
    assert both.names == ["old", "tensorflow", "mine"] and both["old"].python == "/old/bin/python"
    assert both.definitions == [both["old"], Contestant(name="mine", twin="pytorch")]
    assert both["tensorflow"] == Contestant(name="tensorflow", twin="tensorflow")


@pytest.mark.parametrize(
    ("frameworks", "words", "parts"),
    [
        (None, ["a=pytorch", "a=tensorflow"], {"field": "a", "received": "a=pytorch and a=tensorflow"}),
        (["pytorch"], ["pytorch=pytorch,x=1"], {"field": "pytorch", "received": "pytorch=pytorch,x=1"}),
        (None, ["a=pytroch"], {"field": "a", "received": "pytroch", "fix": "pytorch"}),
        (None, ["pytorch=tensorflow"], {"field": "pytorch", "received": "pytorch=tensorflow"}),
        (["b"], ["a=pytorch"], {"field": "--frameworks", "received": "b", "fix": "a"}),
    ],
)
def test_two_of_one_name_and_unknown_twins_are_refused(
    frameworks: list[str] | None, words: list[str], parts: dict[str, Any]
) -> None:
    with refused(SpecError, **parts):
        Twins.choose(frameworks, words, (), TWINS)


def test_a_twin_that_other_interpreters_have_is_looked_up_there() -> None:
    with refused(SpecError, field="The twin of a", received="third"):
        Twins.choose(None, ["a=third"], (), TWINS)
    assert Twins.choose(["third"], ["a=third"], (), TWINS, has_other_interpreters=True).names == ["third", "a"]
    with refused(SpecError, field="third"):
        Twins.choose(["third"], ["third=other"], (), TWINS, has_other_interpreters=True)


def install_twin(folder: Path, name: str, text: str = "") -> Path:
    """A package beside the suite that has a twin."""
    entry = f"[convtwins.twins]\n{name} = {name}_impl\n"
    metadata = {"entry_points.txt": entry, "METADATA": f"Name: {name}\nVersion: 1.0\n"}
    files = {f"{name}-1.0.dist-info/{file}": content for file, content in metadata.items()}
    return trees.write(folder, {f"{name}_impl/__init__.py": text, **files})


@pytest.mark.parametrize(
    "words",
    here(
        ("tune", "--data", "digits"), ("optimize", "--model", "simple_cnn"), ("evaluate", "--data", "digits"), ("selftest",),
        ("models", "--model", "simple_cnn"),
    ),
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_command_for_the_own_twins_names_another_and_says_what_takes_it(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(install_twin(tmp_path / "site", "third"))
    monkeypatch.chdir(trees.write(tmp_path / "here", {}))
    monkeypatch.setattr(launch, "start", pytest.fail)  # a guard: nothing is started
    done = convtwins(*words, "--frameworks", "third")
    check_ended(done, field="--frameworks", received="third", fix=[*TWINS, contestants.TAKE_CONTESTANTS])
    done = convtwins(*words, "--contestant", "third=third@/no/python")
    words_of_refusal = " ".join(done.output.replace("│", " ").split())
    assert done.exit_code == 2 and "--contestant" in words_of_refusal and contestants.TAKE_CONTESTANTS in words_of_refusal
    assert list((tmp_path / "here").iterdir()) == []


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
    trees.write(tmp_path, {"programs": None, "mine/bin": None})
    program = script(tmp_path / "programs" / "mine", "exit 3")
    monkeypatch.setenv("PATH", str(program.parent))
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


def check_unusable(python: Path | str, *names: object, twin: str = "pytorch", **parts: Any) -> None:
    """Hold that an interpreter is refused before its twin starts, and is named with these values."""
    subject = Contestant(name="subject", twin=twin, python=str(python))
    with refused(LaunchError, names=["subject", python, *names], **parts), Twins(["subject"], [subject]).describe_all():
        pass


def test_an_interpreter_that_is_missing_or_is_no_program_is_refused(tmp_path: Path) -> None:
    check_unusable(tmp_path / "gone" / "python", "No such file or directory", fix="env create")
    check_unusable(trees.write(tmp_path, {"python": "text"}) / "python", "Permission denied")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("echo 'no such library' >&2; exit 3", ["exit code 3", "no such library"]),
        ("kill -SEGV $$", ["SIGSEGV"]),
        ("echo hello", ["exit code 0", "hello"]),
        ("echo 3.8.10", ["3.8.10", "3.11", "3.14"]),
        ("echo 3.14.0", ["3.14.0"]),
        ('[ "$1" = -I ] && echo 3.12.1 || { echo broken >&2; exit 1; }', ["installed", "exit code 1", "broken"]),
    ],
)
def test_an_interpreter_that_does_not_work_or_is_of_another_python_is_refused(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    check_unusable(script(tmp_path / "python", text), *names)


def test_an_interpreter_that_hangs_is_refused(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "exec sleep 60")
    subject = Contestant(name="subject", twin="pytorch", python=str(python))
    with refused(NoAnswerError, names=["subject", python, "0.3 s"]):
        launch.inspect(subject, answer_seconds=0.3)


@pytest.mark.parametrize(("twin", "package"), [("pytorch", "torch"), ("tensorflow", "tensorflow")])
def test_an_interpreter_without_its_framework_is_refused(bare: Path, twin: str, package: str) -> None:
    check_unusable(bare, package, "not installed", twin=twin)


@pytest.mark.parametrize("version", ["1.13.1", "99.0.0rc1+cpu"])
def test_a_framework_outside_the_supported_versions_is_refused(bare: Path, version: str) -> None:
    (site,) = bare.parents[1].glob("lib/python*/site-packages")
    trees.write(site, {f"torch-{version}.dist-info": None})
    check_unusable(bare, f"torch {version}")


@pytest.mark.parametrize(("twin", "close"), [("pytroch", ["pytorch"]), ("dask", [])])
def test_a_twin_that_another_interpreter_does_not_have_is_refused(bare: Path, twin: str, close: list[str]) -> None:
    """Not even where the suite has something of this name that is no twin."""
    check_unusable(bare, twin, *close, twin=twin)


def test_a_framework_that_is_missing_here_is_refused_before_anything_is_imported_and_the_doctor_asks_the_others(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trees.write(tmp_path, {"absent_impl/__init__.py": 'SUPPORTED = {"absent": ("1", "2")}'})
    fake_twins.syspath_prepend(tmp_path)
    fake_twins.setitem(launch.FRAMEWORKS, "absent", "absent_impl")  # it has no __main__ that could be started
    done = convtwins("run", "--out", tmp_path / "out")
    check_ended(done, field="absent", received=sys.executable, fix="convtwins[absent]", names=["not installed"])
    with Twins(["absent", "left"]).describe_all(defer_errors=True) as answer:
        assert answer("left")["framework"] == "left"
        with refused(LaunchError, field="absent", names=["not installed"]):
            answer("absent")


def test_a_twin_of_a_package_beside_the_suite_is_held_to_its_versions_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install_twin(tmp_path, "third", 'SUPPORTED = {"numpy": ("99", "100")}\n')))
    with refused(LaunchError, field="third", names=["numpy", "99", "100"]):
        Twins(["third"]).describe("third")


def test_a_framework_that_dies_on_import_is_refused(linked: Path, tmp_path: Path) -> None:
    (site,) = linked.parents[1].glob("lib/python*/site-packages")
    trees.write(site, {"torch/__init__.py": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"})
    subject = Contestant(name="subject", twin="pytorch", python=str(linked))
    with refused(LaunchError, field="subject", names=["SIGSEGV", f"{linked} -m pytorch_impl describe"]):
        Twins(["subject"], [subject]).describe("subject")


def test_a_run_with_such_an_interpreter_trains_nothing(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = script(tmp_path / "python", "exit 3")
    done = convtwins("run", "--contestant", "fine=left", "--contestant", f"broken=left@{broken}", "--out", tmp_path / "out")
    check_ended(done, field="broken", names=[broken, "exit code 3"])
    assert not (tmp_path / "out").exists()


def test_the_supported_versions_of_python_are_those_of_the_project() -> None:
    lowest, beyond = environment.PYTHONS
    assert f'requires-python = ">={lowest},<{beyond}"' in (launch.PROJECT_ROOT / "pyproject.toml").read_text("utf-8")


# Two contestants of one twin.


def test_two_contestants_of_one_twin_are_compared(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--contestant", "usual=left", "--contestant", "quick.er=left,left_switch=quick", "--contestant", "right=right"]
    out = tmp_path / "out"
    done = convtwins(
        "run", *words, "--modes", "serial", "--cores", "1", "--repeats", "5", "--no-proof", "--out", out, "--json"
    ).succeeded()
    stored = store.read(out)
    assert [(row.id, row.contestant, row.framework) for row in stored.comparison.rows] == [
        ("usual-serial-1core", "usual", "left"),
        ("quick.er-serial-1core", "quick.er", "left"),
        ("right-serial-1core", "right", "right"),
    ]
    options = [row.spec.framework_options for row in stored.comparison.rows]
    assert options == [{}, {"left_switch": "quick"}, {}]
    assert all(run.framework == row.framework for row in stored.comparison.rows for run in stored.runs[row.id].values())
    sentence = "\n".join(done.json["findings"]["contestants"])
    assert all(name in sentence for name in ("usual", "quick.er left_switch=quick", "right")), sentence
    assert "Which contestant is faster?" in (out / "report.md").read_text("utf-8")
    frame = (out / "tables" / "runs.csv").read_text("utf-8")
    assert '"quick.er","left"' in frame
    convtwins("run", "--resume", out, "--repeats", "6").succeeded()
    assert len(store.read(out).runs["quick.er-serial-1core"]) == 6
    other = convtwins("run", *words[:-2], "--contestant", "right=right,right_switch=quick", "--modes", "serial", "--cores", "1",
                    "--repeats", "6", "--no-proof", "--out", out)  # fmt: skip
    check_ended(other, names=[out, "right-serial-1core", "framework_options.right_switch", "null", '"quick"'])


def test_a_plan_that_is_resumed_names_its_interpreters_and_brings_none_of_its_own(
    fake_twins: pytest.MonkeyPatch, linked: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["run", "--contestant", "a=left", "--contestant", f"b=left@{linked}", "--modes", "serial", "--cores", "1"]
    convtwins(*words, "--no-proof", "--out", out).succeeded()
    notice = convtwins("run", "--resume", out).succeeded().stderr.splitlines()[0]
    assert f"'{linked}'" in notice and "for b." in notice
    started = tmp_path / "started"
    own = script(out / "python", f"touch {started}")
    plan = comparisons.with_fields(
        store.read_plan(out), settings__contestants=(Contestant(name="b", twin="left", python=str(own)),)
    )
    store.write_plan(out, plan)
    check_ended(convtwins("run", "--resume", out), field="b", received=repr(str(own)), fix=["--contestant", "--out"])
    assert not started.exists()


def test_contestants_of_a_spec_file_are_compared(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "epochs: 3\ncores: 1\ncontestants:\n  one: {twin: left}\n  other: {twin: left, switches: {left_switch: quick}}\n"
    out, file = tmp_path / "out", trees.write(tmp_path, {"spec.yaml": text}) / "spec.yaml"
    convtwins("run", "--spec", file, "--modes", "serial", "--no-proof", "--out", out).succeeded()
    assert [row.contestant for row in store.read_plan(out).rows] == ["one", "other"]


def test_the_code_of_a_twin_that_two_interpreters_bring_counts_for_each() -> None:
    codes = {"/one/python": "a", "/other/python": "b"}
    first, second = (Contestant(name=f"of{n}", twin="brought", python=path) for n, path in enumerate(codes))
    switched = Contestant(name="switched", twin="brought", python="/other/python", switches={"x": 1})

    def digest(*compared: Contestant) -> str:
        return code_digest.compute(compared, "simple_cnn", code_of=lambda contestant: codes[contestant.interpreter])

    before = digest(first, second)
    assert digest(second, switched) == digest(second) != before
    codes["/one/python"] = "changed"
    assert digest(first, second) != before


# Environments.


def test_an_environment_that_changed_since_the_proof_is_refused_before_anything_is_trained(
    fake_twins: pytest.MonkeyPatch, linked: Path, tmp_path: Path
) -> None:
    (site,) = linked.parents[1].glob("lib/python*/site-packages")
    out, later = tmp_path / "out", site / "Some_Thing-1.0.dist-info"
    words = ["run", "--contestant", f"a=left@{linked}", "--modes", "serial", "--cores", "1", "--no-one-core", "--out", out]
    before = launch.current_environment(Contestant(name="a", twin="left", python=str(linked)))
    describe_as(fake_twins, "left", environment=before.model_dump())
    later.mkdir()
    check_ended(convtwins(*words), exit_code=1, field="a", names=["some-thing", "1.0", "Nothing was trained"])
    assert not (out / "runs").exists()
    later.rmdir()
    convtwins(*words).succeeded()
    without = tuple(text for text in before.distributions if not text.startswith("numpy=="))
    changed = {**before.model_dump(), "distributions": without, "distributions_hash": "other"}
    describe_as(fake_twins, "left", environment=changed)
    check_ended(convtwins(*words), names=[out, "a", "numpy", "gone"])


def test_a_report_says_in_which_environments_two_contestants_differ_and_names_runs_of_another(tmp_path: Path) -> None:
    one, other = made_up("numpy==2.4.6", "torch==2.14.1", CUDA="13.0"), made_up("numpy==2.4.6", CUDA="12.5")
    both = {"pytorch": one, "tensorflow": other}
    stored = comparisons.with_plan(comparisons.repeated(2), environments=both)
    stored = comparisons.with_runs(stored, environment=lambda run: both[run.framework])
    first = stored.comparison.rows[0].id
    stored = comparisons.with_runs(stored, first, [1], environment=made_up("numpy==2.4.7", "torch==2.14.1"))
    folder = comparisons.stored_in(stored, tmp_path)
    compared = comparison_report.read(folder)
    (caution,) = sentences(environments.cautions(compared.stored))
    assert caution in compared.in_words(compared.findings.troubles) and caution.startswith(f"{first}, repeat 2: ")
    assert "numpy was 2.4.6, now 2.4.7" in caution
    text = comparison_report.report(compared, folder).to_markdown()
    assert "In what do the environments differ?" in text and "| torch | 2.14.1 |" in text
    assert compared.findings.environments == environments.statements({"pytorch": one, "tensorflow": made_up("numpy==2.4.6")})
    on_gpu = environments.relevant_environments(both, {"gpus": ["A"]})
    assert environments.differences(on_gpu) == [
        {"what": "torch", "pytorch": "2.14.1", "tensorflow": None},
        {"what": "CUDA", "pytorch": "13.0", "tensorflow": "12.5"},
    ]


def test_without_a_gpu_libraries_for_gpus_do_not_count_and_all_others_do() -> None:
    libraries = {"NVIDIA driver": "580", "CUDA": "13.0", "cuDNN": "9.1", "NCCL": "2.1"}
    found = environments.relevant_environments(
        {"a": made_up(**libraries, oneDNN="3.7"), "b": made_up(CUDA="12.5", oneDNN="3.9")}, {}
    )
    assert sentences(environments.statements(found)) == ["a against b: oneDNN 3.7 against 3.9."]
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
    subject = Contestant(name="linked", twin="pytorch", python=str(linked))
    found, here = launch.current_environment(subject), launch.current_environment(Contestant.plain("pytorch"))
    assert found.interpreter == str(linked) and here.interpreter == sys.executable
    assert found.distributions == here.distributions and found.distributions_hash == here.distributions_hash
    assert any(text.startswith("torch==") for text in found.distributions)
    (site,) = linked.parents[1].glob("lib/python*/site-packages")
    (site / "Some_Thing-1.0.dist-info").mkdir()
    changed = launch.current_environment(subject)
    assert contestants.describe_changes(found, changed) == "some-thing was added, now 1.0"


def test_two_distributions_that_own_the_same_file_clash(bare: Path) -> None:
    (site,) = bare.parents[1].glob("lib/python*/site-packages")
    records: dict[str, Any] = {"torch-2.14.1.dist-info": None, "torchvision-0.29.1.dist-info": None}
    for name, digest in (("nvidia_cudnn_cu12-9.1", "sha256=a,10"), ("nvidia_cudnn_cu13-9.2", "sha256=b,12")):
        lines = [f"nvidia/cudnn/lib/libcudnn.so.9,{digest}", f"nvidia/cudnn/x.h,{digest}", "nvidia/__init__.py,sha256=e,0"]
        records[f"{name}.dist-info/RECORD"] = "\n".join([*lines, f"{name}.dist-info/RECORD,,"])
    trees.write(site, records)
    subject = Contestant(name="both", twin="pytorch", python=str(bare))
    assert launch.inspect(subject, "--clashes")["clashes"] == [
        "nvidia-cudnn-cu12 and nvidia-cudnn-cu13 both installed nvidia/cudnn/lib/libcudnn.so.9 and 1 more files"
    ]
