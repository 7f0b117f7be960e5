"""Two revisions in turn: which runs come when, what the base is given, and that nothing of it stays behind."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.artifacts import atomic_files, results
from common.artifacts.schema import Noise, RunResult
from common.machine import code_version, machine
from compare.comparison import comparison_plan, run
from compare.core.interrupt import Interrupted
from compare.core.presets import Preset
from compare.execution import code_digest, contestants, executor, launch, store
from compare.execution.executor import CodeOverride
from compare.execution.matrix import Row
from compare.proof import ladder
from compare.proof.certificate import Proof, Rung
from compare.regression import revisions
from compare.regression.revisions import RevisionError
from tests.compare import test_schema
from tests.compare.regression.conftest import upgrade
from tests.compare.regression.repository import git
from tests.support import comparisons
from tests.support.command_line import convtwins

SPEC_MODULE = "class Spec:\n    def to_json(self):\n        return {!r}\n"


def commit(folder: Path, what: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", what)


def spec_module(*without: str) -> str:
    """A base's `common/spec.py`: this one's fields, without some."""
    values = json.loads(spec.Spec().to_json())
    for dotted in without:
        group, _, leaf = dotted.rpartition(".")
        del (values[group] if group else values)[leaf]
    return SPEC_MODULE.format(json.dumps(values))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two commits, `before` and the one that is checked out, in the place of the suite's own."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "before", {"requirements.lock": "torch==1\n", "state": "before", "common/spec.py": spec_module()})
    git(folder, "tag", "before")
    commit(folder, "now", {"state": "now"})
    monkeypatch.setattr(machine, "PROJECT_ROOT", folder)
    return folder


def worktrees(repository: Path) -> int:
    return len(git(repository, "worktree", "list").splitlines())


def test_base_and_head_take_turns_and_so_do_the_rows() -> None:
    first, second = comparisons.row("pytorch"), comparisons.row("tensorflow")
    jobs = [(row.contestant, pair, side) for row, pair, side in revisions.order([first, second], 2)]
    assert jobs == [
        ("pytorch", 0, "base"), ("pytorch", 0, "head"), ("tensorflow", 0, "base"), ("tensorflow", 0, "head"),
        ("tensorflow", 1, "head"), ("tensorflow", 1, "base"), ("pytorch", 1, "head"), ("pytorch", 1, "base"),
    ]  # fmt: skip


def test_another_revision_stands_beside_this_one_and_is_gone_afterwards(repository: Path) -> None:
    with revisions.checked_out("before") as base:
        assert (base.root / "state").read_text() == "before" and (repository / "state").read_text() == "now"
        assert base.commit == git(repository, "rev-parse", "before")
        assert worktrees(repository) == 2
    assert not base.root.parent.exists() and worktrees(repository) == 1


@pytest.mark.parametrize("interruption", [Interrupted(signal.SIGINT), RuntimeError("broken")])
def test_whatever_breaks_off_leaves_no_checkout_behind(repository: Path, interruption: BaseException) -> None:
    with pytest.raises(type(interruption)), revisions.checked_out("before") as base:
        raise interruption
    assert not base.root.parent.exists() and worktrees(repository) == 1


def test_ctrl_c_leaves_no_checkout_behind(repository: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from common.machine import machine\n"
        "from compare.regression import revisions\n"
        "from compare.core.interrupt import Interrupted, interruptible\n"
        "machine.PROJECT_ROOT = pathlib.Path(sys.argv[1])\n"
        "try:\n"
        "    with interruptible(), revisions.checked_out('before') as base:\n"
        "        print(base.root, flush=True)\n"
        "        time.sleep(60)\n"
        "except Interrupted as interruption:\n"
        "    sys.exit(interruption.exit_code)\n"
    )
    command = [sys.executable, "-c", program, str(repository)]
    process = subprocess.Popen(command, cwd=launch.PROJECT_ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    root = Path(process.stdout.readline().strip())
    assert (root / "state").exists()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    process.stdout.close()
    assert not root.parent.exists() and worktrees(repository) == 1


def test_what_cannot_be_measured_in_turn_is_refused_with_what_to_do(repository: Path, tmp_path: Path) -> None:
    def said(revision: str) -> str:
        with pytest.raises(RevisionError) as refused, revisions.checked_out(revision):
            pass
        assert worktrees(repository) == 1
        return str(refused.value)

    assert f"git knows no revision 'origin/main' of {repository}. Fetch it first" in said("origin/main")
    assert "git knows no revision '--all'" in said("--all")
    (repository / "untracked").write_text("")
    with revisions.checked_out("before"):
        pass  # files that git does not know change nothing that was committed
    (repository / "state").write_text("changed")
    assert "uncommitted changes (M state)" in said("before")
    commit(repository, "other packages", {"requirements.lock": "torch==2\n"})
    assert "requirements.lock differs between before and the working tree" in said("before")
    git(repository, "tag", "new")
    commit(repository, "a lock of its own for CPUs", {"locks/cpu.lock": "torch==2\n"})
    with revisions.checked_out("new"):
        pass  # it knew one lock only
    git(repository, "tag", "newer")
    commit(repository, "other packages on CPUs", {"locks/cpu.lock": "torch==3\n"})
    assert "locks/cpu.lock differs between newer and the working tree" in said("newer")
    shutil.rmtree(repository / ".git")
    with pytest.raises(RevisionError, match="is no git checkout"), revisions.checked_out("before"):
        pass


def test_what_git_tells_its_hooks_does_not_lead_elsewhere(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", "/nowhere")
        with revisions.checked_out("before") as base:
            assert (base.root / "state").read_text() == "before"
    assert worktrees(repository) == 1


@pytest.fixture
def rows() -> list[Row]:
    """What is run; a test may put others in."""
    return [comparisons.row("pytorch"), comparisons.row("tensorflow")]


@pytest.fixture
def stand_in(repository: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Runs that take no time, half as slow again as before; gives (state of the code, row, repeat) of each."""
    done: list[tuple[str, str, int]] = []
    here = {"processor": "Some CPU", "logical_cores": 2, "commit": git(repository, "rev-parse", "HEAD"), "dirty": False}

    def judged(request: run.ComparisonRequest, shown: Any) -> store.Comparison:
        own = {"machine": here, "seeds": list(request.settings.seeds)}
        return comparisons.comparison(rows, request.settings.repeats).model_copy(update=own)

    def execute(row: Row, repeat: int, folder: Path, watch: Any, code: CodeOverride) -> RunResult:
        state = (code.root / "state").read_text()
        done.append((state, row.id, repeat))
        directory = store.run_folder(folder, row.id, repeat)
        atomic_files.write_atomically(directory / "spec.json", code.spec_json(row))
        seconds = (2.0 if state == "before" else 3.0) * (1 + 0.01 * (repeat % 3))
        made_up = comparisons.good(row, seconds, repeat)
        results.save(made_up, directory)
        return made_up

    monkeypatch.setattr(comparison_plan, "build_plan", judged)
    monkeypatch.setattr(executor, "execute", execute)
    return done


def regress(*words: str | Path) -> Any:
    return convtwins("regress", *words, COLUMNS="200")


def test_a_slowdown_between_two_revisions_is_a_regression(
    repository: Path, stand_in: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = regress("--interleaved", "before", "--set", "seed=7", "--out", out)
    assert done.exit_code == 3, done.output
    assert "  Verdict  REGRESSION in 2 of " in done.stdout and "bisect --good" in done.stdout
    warm, measured = stand_in[:4], stand_in[4:]
    pytorch, tensorflow = "pytorch-serial-2", "tensorflow-serial-2"
    assert warm == [(state, row, 0) for row in (pytorch, tensorflow) for state in ("before", "now")]
    assert [state for state, row, _ in measured if row == pytorch] == ["before", "now", "now", "before"] * 3
    assert len(measured) == 2 * 2 * 6
    kept = json.loads((out / "regress.json").read_text())
    assert test_schema.faults("regress", kept) == []
    assert kept["paired"] and kept["exit_code"] == 3
    assert [kept[side]["commit"] for side in ("baseline", "candidate")] == [
        git(repository, "rev-parse", revision)[:8] for revision in ("before", "HEAD")
    ]
    assert (out / "regress.md").read_text().startswith("# REGRESSION")
    assert "REGRESSION in 2 of" in (out / "regress.html").read_text()
    for path in (out / "tables").glob("*.csv"):  # every row has a cell for each heading
        assert len({len(line) for line in csv.reader(path.read_text().splitlines())}) == 1
    for side in ("base", "head"):  # each pair has a seed of its own, the same in both
        runs = store.read(out / side).runs[pytorch]
        assert {repeat: run.spec.seed for repeat, run in runs.items()} == {repeat: repeat + 7 for repeat in range(6)}
        assert json.loads((out / side / "runs" / f"{pytorch}-r3" / "spec.json").read_text())["seed"] == 10
    assert store.read_plan(out / "base").machine["commit"] == git(repository, "rev-parse", "before")
    assert regress(out).exit_code == 3  # judged again from what is stored
    assert worktrees(repository) == 1
    again = regress("--interleaved", "before", "--set", "seed=7", "--out", out)
    assert again.stdout == done.stdout and "12 of 12 pairs are in" in again.stderr and len(stand_in) == 4 + 2 * 2 * 6


def test_the_base_may_be_a_revision_of_another_clone(
    repository: Path, stand_in: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    other = tmp_path / "of@a-colleague"
    git(tmp_path, "clone", "-q", str(repository), str(other))
    commit(other, "a trial", {"state": "elsewhere"})
    git(other, "tag", "trial")
    (other / "state").write_text("not committed")  # what is measured is the commit
    out = tmp_path / "out"
    done = regress("--interleaved", f"{other}@trial", "--out", out, "--full")
    assert done.exit_code == 0, done.output  # equal times
    assert {state for state, _, _ in stand_in} == {"elsewhere", "now"}
    plan = store.read_plan(out / "base").machine
    assert plan["commit"] == git(other, "rev-parse", "trial") and plan["repository"] == str(other) and plan["committed_at"]
    assert f"{plan['commit'][:8]} of {other}," in " ".join(done.stdout.split())
    assert store.read_plan(out / "head").machine.get("repository") is None
    assert worktrees(repository) == worktrees(other) == 1


def test_another_clone_that_cannot_be_the_base_is_refused(
    repository: Path, stand_in: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(repository), str(other))
    commit(other, "newer packages", {"requirements.lock": "torch==2\n"})
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    git(foreign, "init", "-q", "-b", "main")
    commit(foreign, "another project", {"common/names.py": ""})
    (tmp_path / "plain").mkdir()
    for named, said in (
        (f"{other}@nowhere", f"git knows no revision 'nowhere' of {other}"),
        (f"{other}@main", f"requirements.lock differs between {other}@main and the working tree"),
        (f"{foreign}@main", f"{foreign}@main is no revision of this suite: it has no common/spec"),
        (f"{tmp_path / 'plain'}@main", "is no git checkout"),
        (f"{tmp_path / 'none'}@main", f"of {repository}. Fetch it first"),
    ):
        done = regress("--interleaved", named, "--out", tmp_path / "out")
        assert done.exit_code == 2 and said in done.stderr, (named, done.stderr)
    assert not stand_in and worktrees(other) == worktrees(foreign) == 1


def test_a_revision_with_an_at_sign_is_the_repositorys_own(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "main").mkdir()
    monkeypatch.chdir(repository)
    with revisions.checked_out("main@{0}") as base:  # by git's log of `main`, though a folder is called so
        assert base.commit == git(repository, "rev-parse", "main") and base.repository == repository


OWN_MODEL = """
from common.models.architectures import Architecture, Dense, Flatten

def architecture(num_classes, image_size):
    values = image_size * image_size * 3
    hidden = Dense("hidden", values, {width})
    return Architecture("own", image_size, num_classes, (Flatten("flat"), hidden, Dense("out", {width}, num_classes)))
"""


@pytest.fixture
def team(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's repository, whose model has twice the width since `before`.

    With the parameter `src` it is installed as editable: every interpreter puts `src` behind the libraries, as a .pth file
    does, and the working directory lies elsewhere. Else the working directory is on the path.
    """
    folder = tmp_path / "team"
    folder.mkdir()
    root = folder / "src" if (editable := getattr(request, "param", None) == "src") else folder
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "nothing")
    commit(root, "before", {"nets_of_a_team/__init__.py": "", "nets_of_a_team/net.py": OWN_MODEL.format(width=8)})
    git(folder, "tag", "before")
    commit(root, "now", {"nets_of_a_team/net.py": OWN_MODEL.format(width=16)})
    if editable:
        at_start(tmp_path, f"import sys\nsys.path.append({str(root)!r})\n", monkeypatch)
        monkeypatch.setattr(sys, "path", [*sys.path, str(root)])
        monkeypatch.chdir(tmp_path)
    else:
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [each for each in sys.modules if each.partition(".")[0] == "nets_of_a_team"]:
        del sys.modules[name]


def at_start(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every interpreter that is started run a program first."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


def sides(revision: str, team: Path, model: str = "nets_of_a_team.net", *, dirty: bool = False) -> list[revisions.SideRunner]:
    head = comparisons.repeated(1).comparison
    rows = [row.model_copy(update={"spec": row.spec.with_fields(model=model)}) for row in head.rows]
    own = {
        "machine": {**head.machine, "commit": "a" * 40, "dirty": dirty},
        "code_hash": code_digest.compute(["pytorch"], model),
    }
    head = head.model_copy(update={"rows": rows, **own})
    with revisions.checked_out(revision, team) as base:
        return list(revisions.sides_of_model(base, revision, team, head, ["pytorch"]))


def test_the_revision_of_ones_own_model_is_that_of_its_own_repository(team: Path) -> None:
    assert revisions.repository_of(None) == revisions.repository_of("resnet18") == machine.PROJECT_ROOT
    assert revisions.repository_of("tests.twins.own_plain_model") == machine.PROJECT_ROOT
    assert revisions.repository_of("nets_of_a_team.net") == team
    before, now = sides("before", team)
    assert before.code is not None and now.code is None
    assert [each.plan.machine["commit"] for each in (before, now)] == [git(team, "rev-parse", at) for at in ("before", "main")]
    assert {each.plan.machine["repository"] for each in (before, now)} == {str(team)}
    assert {each.plan.machine["suite_commit"] for each in (before, now)} == {"a" * 40}  # as `sides` has it
    times = [git(team, "show", "-s", "--format=%cI", at) for at in ("before", "main")]
    assert [each.plan.machine["committed_at"] for each in (before, now)] == times
    with pytest.raises(RevisionError, match=r"before~1 has no nets_of_a_team.net.py\. nets_of_a_team.net needs it"):
        sides("before~1", team)
    shutil.rmtree(team / ".git")
    with pytest.raises(RevisionError, match=r"must lie in one git repository.* git says: fatal: not a git repository"):
        revisions.repository_of("nets_of_a_team.net")


def test_the_base_of_ones_own_model_may_lie_in_another_clone(team: Path, tmp_path: Path) -> None:
    other = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(team), str(other))
    commit(other, "a trial", {"trial": ""})
    before, now = sides(f"{other}@HEAD", team)
    assert [each.plan.machine["commit"] for each in (before, now)] == [git(each, "rev-parse", "HEAD") for each in (other, team)]
    assert [each.plan.machine["repository"] for each in (before, now)] == [str(other), str(team)]
    assert worktrees(team) == worktrees(other) == 1


def test_a_repository_that_git_refuses_is_refused_in_its_words(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setattr(code_version, "git_environment", lambda: {**os.environ, "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"})
    with pytest.raises(RevisionError, match=r"git says: fatal: .*dubious ownership.*git config --global --add safe.directory"):
        revisions.repository_of("nets_of_a_team.net")


def test_equal_revisions_of_ones_own_model_have_equal_code_and_another_model_has_another(team: Path) -> None:
    base, head = sides("HEAD", team)
    assert base.plan.code_hash == head.plan.code_hash
    older, head = sides("before", team)
    assert older.plan.code_hash != head.plan.code_hash == base.plan.code_hash


def test_changes_of_the_suite_show_beside_the_commits_of_ones_own_model(team: Path) -> None:
    for dirty in (True, False):
        assert [each.plan.machine["dirty"] for each in sides("before", team, dirty=dirty)] == [dirty, dirty]


def test_the_base_of_ones_own_model_works_in_its_own_checkout(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = sides("before", team)
    assert before.code is not None and before.code.folder is not None
    assert before.code.folder.name == revisions.BASE and not before.code.folder.exists()  # removed afterwards
    assert before.code.environment["CONVTWINS_USER_PATH"] == str(before.code.folder)
    (team / "results").mkdir()  # git knows no empty folder
    monkeypatch.chdir(team / "results")
    within, _ = sides("before", team)
    assert within.code is not None and within.code.folder is not None
    assert within.code.folder.parts[-2:] == (revisions.BASE, "results")
    monkeypatch.chdir(team.parent)
    outside, _ = sides("before", team)
    assert outside.code is not None and outside.code.folder == team.parent


@pytest.mark.parametrize("team", ["src"], indirect=True)
def test_the_checkout_comes_before_an_editable_installation(team: Path) -> None:
    before, _ = sides("before", team)
    assert before.code is not None
    suite, first, *rest = before.code.environment["PYTHONPATH"].split(os.pathsep)
    assert Path(suite) == machine.PROJECT_ROOT and Path(first).parts[-2:] == (revisions.BASE, "src")
    assert str(team / "src") not in rest


def test_a_run_works_in_the_folder_of_its_code(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    command = [sys.executable, "-c", "import os; print(os.getcwd())"]
    process = launch.StartedProcess(command, tmp_path / "log.txt", folder=tmp_path / "there")
    assert process.wait(60) == 0
    launch.stop(process)
    assert (tmp_path / "log.txt").read_text().strip() == str(tmp_path / "there")


def test_a_suite_within_the_users_repository_stays_where_it_is(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = machine.PROJECT_ROOT
    commit(team, "the suite within", {"vendor/suite/kept.py": ""})
    suite = team / "vendor" / "suite"
    for name in ("common", "pytorch_impl"):
        (suite / name).symlink_to(real / name)
    (suite / "new.py").write_text("")
    with monkeypatch.context() as within:
        within.setattr(machine, "PROJECT_ROOT", suite)
        within.setattr(sys, "path", [str(suite), *(each for each in sys.path if Path(each).resolve() != real)])
        within.setenv("PYTHONPATH", str(suite))
        before, _ = sides("HEAD", team)
    assert before.code is not None
    assert before.code.environment["PYTHONPATH"].split(os.pathsep) == [str(suite), str(before.code.folder)]


def test_python_files_that_no_commit_holds_are_refused_by_name(team: Path) -> None:
    commit(team, "what git ignores", {".gitignore": "/scratch/\n"})
    for place in ("scratch/of_mine.py", "notes.txt"):
        (team / place).parent.mkdir(exist_ok=True)
        (team / place).write_text("")
    sides("before", team)
    (team / "nets_of_a_team" / "layers.py").write_text("")
    with pytest.raises(RevisionError, match=r"Python files that git does not know \(nets_of_a_team/layers.py\)"):
        sides("before", team)
    (team / "nets_of_a_team" / "layers.py").unlink()
    commit(team, "a file later", {"nets_of_a_team/later.py": OWN_MODEL.format(width=8)})
    with pytest.raises(RevisionError, match=r"before has no nets_of_a_team/later.py\. nets_of_a_team.later needs it"):
        sides("before", team, "nets_of_a_team.later")


@pytest.mark.parametrize("what", ["the model", pytest.param("an import", marks=pytest.mark.slow)])
def test_a_base_that_would_import_the_heads_model_is_refused(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    other = tmp_path / "other"
    if what == "an import":
        commit(team, "a pair", {"pair.py": "", "nets_of_a_team/pair.py": 'IMPORTS = ("pair:Net",)\n' + OWN_MODEL})
        git(team, "tag", "-f", "before")
        other.mkdir()
        (other / "pair.py").write_text("")
    first = team if what == "the model" else other
    at_start(tmp_path, f"import sys\nsys.path.insert(0, {str(first)!r})\n", monkeypatch)
    model, found = ("nets_of_a_team.net", "net.py") if what == "the model" else ("nets_of_a_team.pair", "pair.py")
    with pytest.raises(RevisionError, match=f"The runs of before would not import .*Received: {first}.*{found}.*pip uninstall"):
        sides("before", team, model)
    assert worktrees(team) == 1


@pytest.mark.slow
@pytest.mark.parametrize("team", ["flat", "src"], indirect=True)
def test_two_revisions_of_ones_own_model_train_two_models(team: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = "--data digits --limit 64 --epochs 1 --repeats 1 --cores 1 --frameworks pytorch --model nets_of_a_team.net"
    done = regress("--interleaved", "before", *words.split(), "--out", out)
    assert done.exit_code == 5, done.output
    hashes = [
        results.load(out / side / "runs" / "pytorch-serial-1core-r0" / results.RESULT_FILE).weights_hash
        for side in (revisions.BASE, revisions.HEAD)
    ]
    assert None not in hashes and hashes[0] != hashes[1]
    assert git(team, "rev-parse", "before")[:8] in done.output and worktrees(team) == 1


def test_options_of_runs_are_those_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[run.ComparisonRequest] = []

    def measure(revision: str, request: run.ComparisonRequest, out: Path, shown: Any, *, remake: bool) -> None:
        assert remake
        seen.append(request)
        raise RevisionError("seen")

    monkeypatch.setattr(revisions, "measure", measure)
    fields = ("--data", "digits", "--batch-size", "32", "--image-size", "16", "--optimizer", "adam", "--seed", "3")
    for words, length in (((), {"epochs": 4}), (("--set", "steps=9"), {"steps": 9}), (("--epochs", "2"), {"epochs": 2})):
        assert regress("--interleaved", "before", *fields, *words).stderr == "seen\n"
        values = seen.pop().settings.values
        assert {name: values[name] for name in ("epochs", "steps") if name in values} == length
        assert values["global_batch_size"] == 32 and values["optimizer"]["name"] == "adam" and values["seed"] == 3
        assert values["data"] == {"source": "digits", "image_size": 16, "seed": 3}


def test_too_few_pairs_are_an_error_not_a_pass(stand_in: list[tuple[str, str, int]], tmp_path: Path) -> None:
    done = regress("--interleaved", "before", "--repeats", "3", "--out", tmp_path / "out")
    assert done.exit_code == 5 and "  Verdict  CANNOT TELL" in done.stdout and "--repeats 5" in done.stdout


def test_the_base_is_given_the_fields_that_it_knows(
    repository: Path, stand_in: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    commit(repository, "older", {"common/spec.py": spec_module("hang_seconds", "optimizer.native"), "state": "before"})
    git(repository, "tag", "older")
    commit(repository, "newer", {"common/spec.py": spec_module(), "state": "now"})
    assert regress("--interleaved", "older", "--out", tmp_path / "out").exit_code == 3
    specs = [
        json.loads((tmp_path / "out" / side / "runs/pytorch-serial-2-r0/spec.json").read_text()) for side in ("base", "head")
    ]
    assert "hang_seconds" not in specs[0] and "native" not in specs[0]["optimizer"]
    assert specs[1]["hang_seconds"] == 60.0 and specs[1] == json.loads(comparisons.row("pytorch").spec.to_json())


def test_a_field_that_the_base_does_not_know_is_refused(
    repository: Path, rows: list[Row], stand_in: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    commit(repository, "older", {"common/spec.py": spec_module("optimizer.weight_decay")})
    git(repository, "tag", "older")
    commit(repository, "broken", {"common/spec.py": "raise ImportError('no spec')"})
    git(repository, "tag", "broken")
    commit(repository, "now", {"common/spec.py": spec_module()})
    row = rows[0]
    optimizer = row.spec.optimizer.model_copy(update={"weight_decay": 0.1})
    rows[0] = row.model_copy(update={"spec": row.spec.model_copy(update={"optimizer": optimizer})})
    for revision, said in (
        ("older", "older has no field optimizer.weight_decay. Received: 0.1 in pytorch-serial-2. Leave it at 0.0, or"),
        ("broken", "The fields of broken cannot be read (ImportError: no spec)"),
    ):
        done = regress("--interleaved", revision, "--out", tmp_path / revision)
        assert done.exit_code == 2 and said in done.stderr
    assert stand_in == [] and worktrees(repository) == 1


def test_a_base_that_cannot_do_a_run_is_told_before_anything_is_measured(
    stand_in: list[tuple[str, str, int]], repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(row: Row, repeat: int, *rest: Any) -> RunResult:
        return comparisons.bad(row, "failed", "exit code 2: mode is unknown", epochs=0)

    monkeypatch.setattr(executor, "execute", fail)
    done = regress("--interleaved", "before", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "before cannot do pytorch-serial-2 (failed: exit code 2: mode is unknown)" in done.stderr
    assert worktrees(repository) == 1


def test_an_interruption_keeps_what_was_measured_and_says_where(
    repository: Path, stand_in: list[tuple[str, str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = executor.execute

    def interrupted(row: Row, repeat: int, *rest: Any) -> RunResult:
        if repeat == 2:
            raise Interrupted(signal.SIGTERM)
        return whole(row, repeat, *rest)

    monkeypatch.setattr(executor, "execute", interrupted)
    done = regress("--interleaved", "before", "--out", tmp_path / "out")
    assert done.exit_code == 143 and f"Finished runs are in {tmp_path / 'out'}" in done.stderr
    assert worktrees(repository) == 1
    judged = regress(tmp_path / "out")
    assert judged.exit_code == 5 and "  Verdict  CANNOT TELL" in judged.stdout


def test_the_same_command_goes_on_where_it_was_interrupted_and_makes_a_broken_pair_again(
    repository: Path, stand_in: list[tuple[str, str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = tmp_path / "out", executor.execute

    def interrupted(row: Row, repeat: int, *rest: Any) -> RunResult:
        if len(stand_in) == 4 + 8 + 1:  # the warm-up, two pairs of both rows, and a half
            raise Interrupted(signal.SIGINT)
        return whole(row, repeat, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(executor, "execute", interrupted)
        done = regress("--interleaved", "before", "--out", out)
    assert done.exit_code == 130 and f"The same command with --out {out} continues." in done.stderr
    del stand_in[:]
    git(repository, "tag", "another-name", "before")
    done = regress("--interleaved", "another-name", "--out", out)
    assert done.exit_code == 3 and "4 of 12 pairs are in" in done.stderr, done.output
    assert len(stand_in) == 4 + 16 and {repeat for _, _, repeat in stand_in[4:]} == {2, 3, 4, 5}
    assert len([each for each in stand_in[4:] if each[1:] == ("pytorch-serial-2", 2)]) == 2


@pytest.mark.parametrize(("spoilt", "made_again"), [([0, 3], [0, 3]), ([3], [])], ids=["too few count", "five count"])
def test_the_same_command_makes_disturbed_pairs_again_unless_their_times_were_judged(
    stand_in: list[tuple[str, str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoilt: list[int],
    made_again: list[int],
) -> None:
    whole, command = executor.execute, ("--interleaved", "before", "--out", tmp_path / "out")

    def disturbed(row: Row, repeat: int, folder: Path, *rest: Any) -> RunResult:
        done = whole(row, repeat, folder, *rest)
        if repeat in spoilt and folder.name == "head" and folder.is_relative_to(tmp_path):
            done = done.model_copy(update={"noise": Noise(cores_taken=0.97)})
            results.save(done, store.run_folder(folder, row.id, repeat))
        return done

    with monkeypatch.context() as patch:
        patch.setattr(executor, "execute", disturbed)
        regress(*command)
    del stand_in[:]
    regress(*command)
    assert [repeat for _, _, repeat in stand_in[4:]] == [each for each in made_again for _ in range(4)]
    assert len(stand_in) == (4 + 4 * len(made_again) if made_again else 0)


def test_a_side_is_not_gone_on_with_alone(tmp_path: Path) -> None:
    plan = comparisons.comparison([comparisons.row("pytorch")]).model_copy(
        update={"argv": ["regress", "--interleaved", "before"]}
    )
    store.write_plan(tmp_path / "head", plan)
    done = convtwins("run", "--resume", tmp_path / "head")
    said = f"whose runs are pairs. Received: --resume. Give the command regress again, with --out {tmp_path}."
    assert done.exit_code == 2 and said in done.stderr, done.output


def test_another_measurement_is_not_gone_on_with_and_the_refusal_names_the_difference(
    repository: Path, stand_in: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    regress("--interleaved", "before", "--out", out)
    runs = len(stand_in)
    for words, said in (
        (("--repeats", "7"), "holds another measurement (repeats is 6 there, asked for: 7)"),
        (("--proof",), "holds another measurement (proof is false there, asked for: true)"),
        (("--seed", "7"), "(its seeds are 0, 1, 2, 3, 4, 5; asked for: 7, 8, 9, 10, 11, 12)"),
    ):
        done = regress("--interleaved", "before", *words, "--out", out)
        assert done.exit_code == 2 and said in done.stderr, done.output
    commit(repository, "later", {"state": "later"})
    done = regress("--interleaved", "HEAD", "--out", out)
    assert done.exit_code == 2 and "holds another measurement (commits.base is" in done.stderr, done.output
    assert len(stand_in) == runs


def test_a_head_that_fails_in_its_warm_up_ends_the_measurement_with_its_reason(
    repository: Path, stand_in: list[tuple[str, str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = executor.execute

    def broken(row: Row, repeat: int, folder: Path, watch: Any, code: CodeOverride) -> RunResult:
        made_up = whole(row, repeat, folder, watch, code)
        return comparisons.bad(row, "failed", "exit code 1: ImportError: gone", epochs=0) if folder.name == "head" else made_up

    with monkeypatch.context() as patch:
        patch.setattr(executor, "execute", broken)
        done = regress("--interleaved", "before", "--out", tmp_path / "out", "--markdown", tmp_path / "summary.md")
    assert done.exit_code == 1 and done.stdout == "" and len(stand_in) == 2
    reason = "The head's warm-up of pytorch-serial-2 did not end well (failed: exit code 1: ImportError: gone)."
    assert reason in done.stderr and (tmp_path / "summary.md").read_text().startswith("# No verdict\n\nThe head's warm-up")
    commit(repository, "mended", {"state": "mended"})  # nothing was measured, so the folder is free for it
    assert regress("--interleaved", "before", "--out", tmp_path / "out").exit_code == 3


def test_a_full_disk_ends_the_measurement_at_once_and_keeps_what_was_measured(
    stand_in: list[tuple[str, str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = tmp_path / "out", executor.execute

    def full(row: Row, repeat: int, *rest: Any) -> RunResult:
        made_up = whole(row, repeat, *rest)
        if repeat < 2:
            return made_up
        shutil.rmtree(store.run_folder(rest[0], row.id, repeat))
        return comparisons.bad(row, "failed", "it cannot be started: [Errno 28] No space left on device", epochs=0)

    with monkeypatch.context() as patch:
        patch.setattr(executor, "execute", full)
        done = regress("--interleaved", "before", "--out", out, "--markdown", tmp_path / "summary.md")
    assert done.exit_code == 1 and done.stdout == "" and len(stand_in) == 4 + 8 + 1
    said = "No space left on device. The measurement stops here; regress"
    assert f"base (3 of 6): it cannot be started: [Errno 28] {said} {out} judges its runs. Free space" in done.stderr
    assert said in (tmp_path / "summary.md").read_text()
    assert regress("--interleaved", "before", "--out", out).exit_code == 3


def test_without_a_terminal_the_first_line_comes_at_once_and_a_disturbed_run_says_so(
    stand_in: list[tuple[str, str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = executor.execute

    def disturbed(row: Row, repeat: int, folder: Path, *rest: Any) -> RunResult:
        made_up = whole(row, repeat, folder, *rest).model_copy(update={"noise": Noise(cores_taken=0.97)})
        results.save(made_up, store.run_folder(folder, row.id, repeat))
        return made_up

    monkeypatch.setattr(executor, "execute", disturbed)
    done = regress("--interleaved", "before", "--repeats", "1", "--out", tmp_path / "out", "--only", "pytorch*")
    lines = done.stderr.splitlines()
    assert lines[:3] == [f"{revisions.PREPARING} ...", *(f"pytorch-serial-2, {side}: warm-up ..." for side in ("base", "head"))]
    assert lines[-1].startswith("tensorflow-serial-2, head (1 of 1): 0:00; none left; disturbed: 0.97 cores taken.")


def test_data_named_by_a_relative_path_is_found_from_every_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)

    def found(values: dict[str, Any]) -> dict[str, Any]:
        return revisions.with_absolute_path(run.ComparisonRequest(Preset(values=values), [], None, False)).settings.values

    whole = found({"data": {"source": "images", "limit": 5}, "seed": 1})
    assert whole == {"data": {"source": str(tmp_path / "images"), "limit": 5}, "seed": 1}
    for values in ({}, {"data": {"source": "digits"}}, {"data": {"source": "leaves:images=10"}}):
        assert found(values) == values


def test_a_program_that_does_not_end_is_told_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def never(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(RevisionError, match="git status took more than 300 s"):
        revisions.git("status")
    with pytest.raises(RevisionError, match="reading the fields of main took more than 300 s"):
        revisions._spec_defaults(revisions.Checkout(tmp_path, "a" * 40, tmp_path), "main")


def test_what_git_sets_for_its_hooks_is_not_passed_on_but_its_configuration_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_CONFIG_COUNT"):
        monkeypatch.setenv(name, "0")
    kept = {name for name in code_version.git_environment() if name.startswith("GIT_")}
    assert "GIT_CONFIG_COUNT" in kept and not kept & {"GIT_DIR", "GIT_OBJECT_DIRECTORY"}


# Two environments in turn.


def test_two_environments_take_turns_and_each_runs_in_its_own_interpreter(
    fake_twins: pytest.MonkeyPatch, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    out, pythons = tmp_path / "out", interpreters(2)
    words = ["regress", "--environments", *pythons, "--contestant", "it=left", "--repeats", "2", "--out", out, "--json"]
    started: list[str] = []
    command = launch._command

    def listened(name: str, arguments: Any) -> list[str]:
        started.append(launch.interpreter(name))
        return command(name, arguments)

    fake_twins.setattr(launch, "_command", listened)
    done = convtwins(*words)
    assert done.exit_code == 5, done.output  # two pairs are too few to tell
    old, new = map(str, pythons)
    assert started[-6:] == [old, new, old, new, new, old]
    for side, python in (("base", old), ("head", new)):
        plan = store.read_plan(out / side)
        assert [each.python for each in plan.contestants] == [python]
        assert {row.id for row in plan.rows} == {"it-serial-4cores"}
        assert len(store.read(out / side).runs["it-serial-4cores"]) == 2
    assert json.loads((out / revisions.MARK_FILE).read_text())["environments"] == [old, new]
    contestants.clear_registry()


def test_an_upgrade_in_the_middle_ends_the_measurement_and_leaves_no_run_of_it(
    fake_twins: pytest.MonkeyPatch, recorded: list[tuple[str, str]], interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    out, pythons = tmp_path / "out", interpreters(2)
    words = ["regress", "--environments", *pythons, "--contestant", "it=left", "--repeats", "2", "--out", out]
    whole = executor.execute

    def upgraded(row: Row, repeat: int, folder: Path, *rest: Any) -> RunResult:
        if len(recorded) == 4:  # after the warm-up and the first pair
            upgrade(pythons[1])
        return whole(row, repeat, folder, *rest)

    fake_twins.setattr(executor, "execute", upgraded)
    done = convtwins(*words)
    said = " ".join(done.output.split())
    assert done.exit_code == 1 and "The environment of it has changed since the command began: newer was 1.0, now 99.0" in said
    assert [sorted(store.read(out / side).runs["it-serial-4cores"]) for side in ("base", "head")] == [[0], [0]]
    contestants.clear_registry()


def test_the_proof_of_an_upgrade_compares_both_environments_and_none_passes_unproved(
    fake_twins: pytest.MonkeyPatch, recorded: list[tuple[str, str]], interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    out, pythons = tmp_path / "out", interpreters(2)
    asked: list[dict[str, str]] = []

    def prove_rows(rows: list[Row], frameworks: list[str], **options: Any) -> Proof:
        asked.append({name: launch.interpreter(name) for name in frameworks})
        assert [row.contestant for row in rows] == frameworks
        rung = {
            "name": "5 losses", "model": "simple_cnn", "optimizer": "sgd", "precision": "float64", "steps": 50, "step": 1,
            "max_relative_difference": 0.0, "tolerance": 1e-12, "reason": "", "judged_steps": 50, "where": "step 1",
            "status": "failed",
        }  # fmt: skip
        return Proof(rungs=[Rung.model_validate(rung)], seconds=1.0)

    fake_twins.setattr(ladder, "prove_rows", prove_rows)
    words = ["regress", "--environments", *pythons, "--contestant", "it=left", "--repeats", "5", "--proof", "--out", out]
    done = convtwins(*words, "--only", "it-serial-4cores", "--json")
    found = json.loads(done.stdout)
    assert asked == [{"it-base": str(pythons[0]), "it-head": str(pythons[1])}]
    proof = store.read_plan(out / "head").proof
    assert proof is not None and proof.mode_verdicts == {"it": {"serial": "not proved"}}
    assert proof.row_verdicts == {"it-serial-4cores": "not proved"}
    assert found["environments"] == ["baseline's it against candidate's it: newer 0.0 against 1.0."]
    assert found["differences"] == [{"what": "newer", "baseline's it": "0.0", "candidate's it": "1.0"}]
    assert "## In what do the environments differ?" in (out / "regress.md").read_text()
    (fact,) = (each for each in found["facts"] if each["what"] == "same training in both frameworks")
    assert (fact["candidate"], fact["verdict"]) == ("not proved", "cannot tell")
    contestants.clear_registry()


def test_an_upgrade_during_the_proof_is_refused_before_anything_is_measured(
    fake_twins: pytest.MonkeyPatch, recorded: list[tuple[str, str]], interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    pythons = interpreters(2)

    def prove_rows(*rest: Any, **options: Any) -> Proof:
        upgrade(pythons[0])
        return Proof(rungs=[], seconds=1.0)

    fake_twins.setattr(ladder, "prove_rows", prove_rows)
    words = ["regress", "--environments", *pythons, "--contestant", "it=left", "--proof", "--out", tmp_path / "out"]
    done = convtwins(*words)
    assert done.exit_code == 1 and "The environment of it has changed since the proof: newer was 0.0" in done.output
    assert recorded == []
    contestants.clear_registry()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [pytest.param(("--frameworks", "third"), id="name"), pytest.param(("--contestant", "third=third"), id="contestant")],
)
def test_a_twin_that_only_the_two_environments_have_is_looked_up_there(
    fake_twins: pytest.MonkeyPatch, interpreters: Callable[[int], list[Path]], tmp_path: Path, words: tuple[str, str]
) -> None:
    pythons = interpreters(2)
    run_it = ["regress", "--environments", *pythons, *words, "--repeats", "1", "--out", tmp_path / "out"]
    done = convtwins(*run_it)
    assert done.exit_code == 2 and "It has no twin third. Install a package with an entry point third" in done.output
    for python in pythons:
        (site,) = python.parents[1].glob("lib/python*/site-packages")
        (site / "third_impl").mkdir()
        (site / "third_impl" / "__init__.py").write_text("SUPPORTED = {}\n")
        main = "import sys\nfrom tests.compare.twins import fake\nsys.exit(fake.main('third'))\n"
        (site / "third_impl" / "__main__.py").write_text(main)
        (site / "third-1.0.dist-info").mkdir()
        (site / "third-1.0.dist-info" / "METADATA").write_text("Name: third\nVersion: 1.0\n")
        (site / "third-1.0.dist-info" / "entry_points.txt").write_text("[convtwins.twins]\nthird = third_impl\n")
    launch.DESCRIPTIONS.clear()
    done = convtwins(*run_it)
    assert done.exit_code == 5, done.output  # one pair is too few to tell
    assert len(store.read(tmp_path / "out" / "head").runs["third-serial-4cores"]) == 1
    contestants.clear_registry()


def test_an_interruption_with_two_environments_speaks_of_no_checkout(
    fake_twins: pytest.MonkeyPatch, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    def interrupted(*words: Any) -> RunResult:
        raise Interrupted(signal.SIGTERM)

    fake_twins.setattr(executor, "execute", interrupted)
    words = ["regress", "--environments", *interpreters(2), "--contestant", "it=left", "--out", tmp_path / "out"]
    done = convtwins(*words)
    assert done.exit_code == 143 and "checkout" not in done.stderr, done.output
    contestants.clear_registry()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--environments", "a", "b", "--interleaved", "HEAD"], "--interleaved and --environments exclude each other"),
        (["somewhere", "--environments", "a", "b"], "--environments measures both sides itself"),
        (["--environments", "gone", "b", "--frameworks", "left"], "The interpreter of left cannot be started"),
        (["--environments", "a", "b", "--contestant", "x=left@/c/python"], "Received also: x@/c/python"),
    ],
)
def test_environments_that_cannot_be_measured_are_refused(
    fake_twins: pytest.MonkeyPatch, tmp_path: Path, words: list[str], reason: str
) -> None:
    done = convtwins("regress", *words, "--out", tmp_path / "out")
    assert done.exit_code in (1, 2) and reason in done.output, done.output
    contestants.clear_registry()
