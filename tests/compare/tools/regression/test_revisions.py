"""Two revisions in turn: which runs come when, what the base is given, and that nothing of it stays behind."""

import csv
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.artifacts.schema import Noise, RunResult
from common.machine import code_version, machine
from common.spec import Spec
from compare.cli.interrupt import Interrupted
from compare.comparison import comparison_plan
from compare.comparison.comparison_plan import ComparisonRequest
from compare.judgement import sides
from compare.judgement.sides import BASE, HEAD
from compare.proof import ladder
from compare.proof.certificate import Proof, Rung
from compare.results import store
from compare.results.store import StoredComparison
from compare.running import contestants, launch, matrix
from compare.running.comparison_settings import ComparisonSettings
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.running.twins import Twins
from compare.tools.regression import requests, revisions
from compare.tools.regression.revisions import RevisionError
from tests.compare.tools.regression.conftest import upgrade
from tests.compare.tools.regression.repository import commit, git, initialised, spec_module, worktrees
from tests.compare.tools.regression.stand_in import StandIn, whole, with_base_rows
from tests.support import comparisons, processes, schemas, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended, refused

regress = partial(convtwins, "regress")
PYTORCH, TENSORFLOW = "pytorch-serial-2", "tensorflow-serial-2"
BASE_PYTORCH = "pytorch-base-serial-2"
TAKEN = Noise(cores_taken=0.97)


def side_of(out: Path, side: str) -> StoredComparison:
    return sides.split(store.read(out))[side]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two commits, `before` and the one that is checked out, in the place of the suite's own."""
    folder = initialised(tmp_path / "repository")
    commit(folder, "before", {"requirements.lock": "torch==1\n", "state": "before", "common/spec.py": spec_module()}, "before")
    commit(folder, "now", {"state": "now"})
    monkeypatch.setattr(machine, "PROJECT_ROOT", folder)  # the commands know no other suite than their own
    return folder


def test_base_and_head_take_turns_and_so_do_the_rows() -> None:
    first, second = comparisons.row("pytorch"), comparisons.row("tensorflow")
    heads = contestants.resolve(["pytorch", "tensorflow"])
    rows = with_base_rows([first, second], [each for head in heads for each in (head.as_base(), head)])
    bases = {"pytorch-base": "base", "tensorflow-base": "base"}
    jobs = [
        (row.framework, pair, bases.get(row.contestant, "head"))
        for pair_jobs in comparison_plan.order(rows, 2)
        for row, pair in pair_jobs
    ]
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


def test_ctrl_c_leaves_no_checkout_behind(repository: Path) -> None:
    program = """if True:
        import sys, time, pathlib
        from common.machine import machine
        from compare.tools.regression import requests, revisions
        from compare.cli.interrupt import Interrupted, interruptible
        machine.PROJECT_ROOT = pathlib.Path(sys.argv[1])
        try:
            with interruptible(), revisions.checked_out('before') as base:
                print(base.root, flush=True)
                time.sleep(60)
        except Interrupted as interruption:
            sys.exit(interruption.exit_code)
    """
    with processes.started([sys.executable, "-c", program, repository]) as process:
        assert process.stdout is not None
        root = Path(process.stdout.readline().strip())
        assert (root / "state").exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
    assert not root.parent.exists() and worktrees(repository) == 1


def test_what_cannot_be_measured_in_turn_is_refused_with_what_to_do(repository: Path) -> None:
    def refuses(revision: str, **parts: Any) -> None:
        with refused(RevisionError, **parts), revisions.checked_out(revision):
            pass
        assert worktrees(repository) == 1

    def takes(revision: str) -> None:
        with revisions.checked_out(revision):
            pass

    refuses("origin/main", names=["'origin/main'", repository, "Fetch"])
    refuses("--all", names=["'--all'"])
    (repository / "untracked").write_text("")
    takes("before")  # files that git does not know change nothing that was committed
    (repository / "state").write_text("changed")
    refuses("before", names=["M state"])
    commit(repository, "other packages", {"requirements.lock": "torch==2\n"}, "new")
    refuses("before", field="requirements.lock", names=["before"])
    commit(repository, "a lock of its own for CPUs", {"locks/cpu.lock": "torch==2\n"}, "newer")
    takes("new")  # it knew one lock only
    commit(repository, "other packages on CPUs", {"locks/cpu.lock": "torch==3\n"})
    refuses("newer", field="locks/cpu.lock", names=["newer"])
    shutil.rmtree(repository / ".git")
    with refused(RevisionError, names=[repository, "checkout"]), revisions.checked_out("before"):
        pass


def test_what_git_tells_its_hooks_does_not_lead_elsewhere(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as hook:
        hook.setenv("GIT_DIR", "/nowhere")
        with revisions.checked_out("before") as base:
            assert (base.root / "state").read_text() == "before"
    assert worktrees(repository) == 1


@pytest.fixture
def stand_in(repository: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Runs that are half as slow again as before."""
    rows = [comparisons.row("pytorch"), comparisons.row("tensorflow")]
    return StandIn(lambda state: 2.0 if state == "before" else 3.0, "state", rows).install(monkeypatch)


def test_a_slowdown_between_two_revisions_is_a_regression(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("--interleaved", "before", "--set", "seed=7", "--out", out)
    done = regress(*words)
    assert done.exit_code == 3, done.output
    assert "  Verdict  REGRESSION in 2 of " in done.stdout and "bisect --good" in done.stdout
    warm, measured = stand_in.done[:4], stand_in.done[4:]
    assert warm == [(state, row, 0) for row in (PYTORCH, TENSORFLOW) for state in ("before", "now")]
    assert [state for state, row, _ in measured if row == PYTORCH] == ["before", "now", "now", "before"] * 3
    assert len(measured) == 2 * 2 * 6
    stored = json.loads((out / "regress.json").read_text())
    assert schemas.faults("regress", stored) == []
    assert stored["paired"] and stored["exit_code"] == 3
    before, now = (git(repository, "rev-parse", revision) for revision in ("before", "HEAD"))
    assert [stored[side]["commit"] for side in ("baseline", "candidate")] == [before[:8], now[:8]]
    assert (out / "regress.md").read_text().startswith("# REGRESSION")
    assert "REGRESSION in 2 of" in (out / "regress.html").read_text()
    for path in (out / "tables").glob("*.csv"):  # every row has a cell for each heading
        assert len({len(line) for line in csv.reader(path.read_text().splitlines())}) == 1
    for side, row in (
        ("base", BASE_PYTORCH),
        ("head", PYTORCH),
    ):  # each pair has a seed of its own, the same in both
        runs = side_of(out, side).runs[PYTORCH]
        assert {repeat: run.spec.seed for repeat, run in runs.items()} == {repeat: repeat + 7 for repeat in range(6)}
        assert json.loads((out / "runs" / f"{row}-r3" / "spec.json").read_text())["seed"] == 10
    assert side_of(out, "base").comparison.machine["commit"] == before
    assert regress(out).exit_code == 3  # judged again from what is stored
    assert worktrees(repository) == 1
    again = regress(*words)
    assert again.stdout == done.stdout and "12 of 12 pairs" in again.stderr and len(stand_in.done) == 4 + 2 * 2 * 6


def test_the_base_may_be_a_revision_of_another_clone(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    other = tmp_path / "of@a-colleague"
    git(tmp_path, "clone", "-q", str(repository), str(other))
    commit(other, "a trial", {"state": "elsewhere"}, "trial")
    (other / "state").write_text("not committed")  # what is measured is the commit
    out = tmp_path / "out"
    done = regress("--interleaved", f"{other}@trial", "--out", out, "--full").succeeded()  # equal times
    assert {state for state, _, _ in stand_in.done} == {"elsewhere", "now"}
    plan = side_of(out, "base").comparison.machine
    assert plan["commit"] == git(other, "rev-parse", "trial") and plan["repository"] == str(other) and plan["committed_at"]
    assert f"{plan['commit'][:8]} of {other}," in " ".join(done.stdout.split())
    assert side_of(out, "head").comparison.machine.get("repository") is None
    assert worktrees(repository) == worktrees(other) == 1


def test_another_clone_that_cannot_be_the_base_is_refused(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    other, foreign = tmp_path / "other", initialised(tmp_path / "foreign")
    git(tmp_path, "clone", "-q", str(repository), str(other))
    commit(other, "newer packages", {"requirements.lock": "torch==2\n"})
    commit(foreign, "another project", {"common/names.py": ""})
    (tmp_path / "plain").mkdir()
    for base, names in (
        (f"{other}@nowhere", ["'nowhere'", other]),
        (f"{other}@main", ["requirements.lock", f"{other}@main"]),
        (f"{foreign}@main", [f"{foreign}@main", "common/spec"]),
        (f"{tmp_path / 'plain'}@main", [tmp_path / "plain", "checkout"]),
        (f"{tmp_path / 'none'}@main", [repository, "Fetch"]),
    ):
        check_ended(regress("--interleaved", base, "--out", tmp_path / "out"), names=names)
    assert not stand_in.done and worktrees(other) == worktrees(foreign) == 1


def test_a_revision_with_an_at_sign_is_the_repositorys_own(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "main").mkdir()
    monkeypatch.chdir(repository)
    with revisions.checked_out("main@{0}") as base:  # by git's log of `main`, though a folder is called so
        assert base.commit == git(repository, "rev-parse", "main") and base.repository == repository


OWN_MODEL = """
from convtwins.models import Architecture, Dense, Flatten

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
    folder = initialised(tmp_path / "team")
    root = folder / "src" if (editable := getattr(request, "param", None) == "src") else folder
    git(folder, "commit", "-q", "--allow-empty", "-m", "nothing")
    commit(root, "before", {"nets_of_a_team/__init__.py": "", "nets_of_a_team/net.py": OWN_MODEL.format(width=8)}, "before")
    commit(root, "now", {"nets_of_a_team/net.py": OWN_MODEL.format(width=16)})
    if editable:
        at_start(tmp_path, f"import sys\nsys.path.append({str(root)!r})\n", monkeypatch)
        monkeypatch.setattr(sys, "path", [*sys.path, str(root)])  # at its end, where an installation puts it
        monkeypatch.chdir(tmp_path)
    else:
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [each for each in sys.modules if each.partition(".")[0] == "nets_of_a_team"]:
        del sys.modules[name]


def at_start(tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every interpreter that is started run a program first."""
    monkeypatch.setenv("PYTHONPATH", str(trees.write(tmp_path / "site", {"sitecustomize.py": program})))


def base_and_head(revision: str, model: str = "nets_of_a_team.net") -> list[Contestant]:
    twins = Twins(["pytorch"])
    settings = ComparisonSettings(values={"model": model}, modes=("serial",), one_core=False)
    request = ComparisonRequest(settings, settings.build_rows(twins.contestants), twins)
    with revisions.against(revision, request) as paired:
        return paired.twins.contestants


def facts(pair: Sequence[Contestant], name: str) -> list[Any]:
    return [each.revision[name] for each in pair]


def test_the_revision_of_ones_own_model_is_that_of_its_own_repository(team: Path) -> None:
    assert revisions.repository_of(None) == revisions.repository_of("resnet18") == machine.PROJECT_ROOT
    assert revisions.repository_of("tests.twins.own_plain_model") == machine.PROJECT_ROOT
    assert revisions.repository_of("nets_of_a_team.net") == team
    before, now = base_and_head("before")
    assert before.checkout is not None and before.checkout.environment and now.checkout is not None
    assert (now.checkout.root, now.checkout.folder, now.checkout.environment) == (None, None, {})
    assert facts((before, now), "commit") == [git(team, "rev-parse", at) for at in ("before", "main")]
    assert {*facts((before, now), "repository")} == {str(team)}
    suite = code_version.describe(machine.PROJECT_ROOT)
    assert {*facts((before, now), "suite_commit")} == {suite["commit"]}
    assert {*facts((before, now), "dirty")} == {bool(suite["dirty"])}
    times = [git(team, "show", "-s", "--format=%cI", at) for at in ("before", "main")]
    assert facts((before, now), "committed_at") == times
    with refused(RevisionError, names=["before~1", "nets_of_a_team/net.py", "nets_of_a_team.net"]):
        base_and_head("before~1")
    shutil.rmtree(team / ".git")
    with refused(RevisionError, field="nets_of_a_team.net", names=["git says: fatal: not a git repository"]):
        revisions.repository_of("nets_of_a_team.net")


def test_the_base_of_ones_own_model_may_lie_in_another_clone(team: Path, tmp_path: Path) -> None:
    other = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(team), str(other))
    commit(other, "a trial", {"trial": ""})
    found = base_and_head(f"{other}@HEAD")
    assert facts(found, "commit") == [git(each, "rev-parse", "HEAD") for each in (other, team)]
    assert facts(found, "repository") == [str(other), str(team)]
    assert worktrees(team) == worktrees(other) == 1


def test_a_repository_that_git_refuses_is_refused_in_its_words(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    program = f'#!/bin/sh\nGIT_TEST_ASSUME_DIFFERENT_OWNER=1 exec {shutil.which("git")} "$@"\n'
    (trees.write(tmp_path / "bin", {"git": program}) / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with refused(RevisionError, names=["git says: fatal", "dubious ownership", "git config --global --add safe.directory"]):
        revisions.repository_of("nets_of_a_team.net")


def test_both_sides_of_ones_own_model_show_changes_of_the_suite_that_trains_it(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = initialised(tmp_path / "suite")
    commit(suite, "the suite", {"kept": ""})
    monkeypatch.setattr(machine, "PROJECT_ROOT", suite)  # the commands know no other suite than their own
    for content, is_dirty in (("", False), ("changed", True)):
        (suite / "kept").write_text(content)
        found = revisions._revision_of_model("HEAD", team)
        assert (found["dirty"], found["suite_commit"]) == (is_dirty, git(suite, "rev-parse", "HEAD"))


def test_the_base_of_ones_own_model_works_in_its_own_checkout(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = base_and_head("before")
    assert before.checkout is not None and before.checkout.folder is not None
    assert before.checkout.folder.name == BASE and not before.checkout.folder.exists()  # removed afterwards
    assert before.checkout.environment["CONVTWINS_USER_PATH"] == str(before.checkout.folder)
    (team / "results").mkdir()  # git knows no empty folder
    monkeypatch.chdir(team / "results")
    within, _ = base_and_head("before")
    assert within.checkout is not None and within.checkout.folder is not None
    assert within.checkout.folder.parts[-2:] == (BASE, "results")
    monkeypatch.chdir(team.parent)
    outside, _ = base_and_head("before")
    assert outside.checkout is not None and outside.checkout.folder == team.parent


@pytest.mark.parametrize("team", ["src"], indirect=True)
def test_the_checkout_comes_before_an_editable_installation(team: Path) -> None:
    before, _ = base_and_head("before")
    assert before.checkout is not None
    suite, first, *rest = before.checkout.environment["PYTHONPATH"].split(os.pathsep)
    assert Path(suite) == machine.PROJECT_ROOT and Path(first).parts[-2:] == (BASE, "src")
    assert str(team / "src") not in rest


def test_a_run_works_in_the_folder_of_its_code(tmp_path: Path) -> None:
    there, log = trees.write(tmp_path / "there", {}), tmp_path / "log.txt"
    process = launch.StartedProcess([sys.executable, "-c", "import os; print(os.getcwd())"], log, folder=there)
    assert process.wait(60) == 0
    launch.stop(process)
    assert log.read_text().strip() == str(there)


def test_a_suite_within_the_users_repository_stays_where_it_is(team: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = machine.PROJECT_ROOT
    commit(team, "the suite within", {"vendor/suite/kept.py": ""})
    suite = team / "vendor" / "suite"
    for name in ("common", "pytorch_impl"):
        (suite / name).symlink_to(real / name)
    (suite / "new.py").write_text("")
    with monkeypatch.context() as within:  # as Python would be started there
        within.setattr(machine, "PROJECT_ROOT", suite)
        within.setattr(sys, "path", [str(suite), *(each for each in sys.path if Path(each).resolve() != real)])
        within.setenv("PYTHONPATH", str(suite))
        before, _ = base_and_head("HEAD")
    assert before.checkout is not None
    assert before.checkout.environment["PYTHONPATH"].split(os.pathsep) == [str(suite), str(before.checkout.folder)]


def test_python_files_that_no_commit_holds_are_refused_by_name(team: Path) -> None:
    commit(team, "what git ignores", {".gitignore": "/scratch/\n"})
    trees.write(team, {"scratch/of_mine.py": "", "notes.txt": ""})
    base_and_head("before")
    (team / "nets_of_a_team" / "layers.py").write_text("")
    with refused(RevisionError, names=[team, "nets_of_a_team/layers.py", ".gitignore"]):
        base_and_head("before")
    (team / "nets_of_a_team" / "layers.py").unlink()
    commit(team, "a file later", {"nets_of_a_team/later.py": OWN_MODEL.format(width=8)})
    with refused(RevisionError, names=["before", "nets_of_a_team/later.py", "nets_of_a_team.later"]):
        base_and_head("before", "nets_of_a_team.later")


@pytest.mark.parametrize("what", ["the model", pytest.param("an import", marks=pytest.mark.slow)])
def test_a_base_that_would_import_the_heads_model_is_refused(
    team: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    other = tmp_path / "other"
    if what == "an import":
        files = {"pair.py": "", "nets_of_a_team/pair.py": 'IMPORTS = ("pair:Net",)\n' + OWN_MODEL}
        commit(team, "a pair", files, "before")
        trees.write(other, {"pair.py": ""})
    first = team if what == "the model" else other
    at_start(tmp_path, f"import sys\nsys.path.insert(0, {str(first)!r})\n", monkeypatch)
    model, found = ("nets_of_a_team.net", "net.py") if what == "the model" else ("nets_of_a_team.pair", "pair.py")
    with refused(RevisionError, field="before", fix="pip uninstall") as caught:
        base_and_head("before", model)
    received = caught.error.received or ""
    assert received.startswith(str(first)) and found in received
    assert worktrees(team) == 1


@pytest.mark.slow
@pytest.mark.parametrize("team", ["flat", "src"], indirect=True)
def test_two_revisions_of_ones_own_model_train_two_models(team: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = "--data digits --limit 64 --epochs 1 --repeats 5 --cores 1 --frameworks pytorch --model nets_of_a_team.net"
    done = regress("--interleaved", "before", *words.split(), "--out", out)
    assert done.exit_code == 5, done.output
    hashes = [side_of(out, side).runs["pytorch-serial-1core"][0].weights_hash for side in (BASE, HEAD)]
    assert None not in hashes and hashes[0] != hashes[1]
    assert git(team, "rev-parse", "before")[:8] in done.output and worktrees(team) == 1


def test_options_of_runs_are_those_of_both_sides(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.behaviour = never
    fields = ("--data", "digits", "--batch-size", "32", "--image-size", "16", "--optimizer", "adam", "--seed", "3")
    for words, length in (((), {"epochs": 4}), (("--set", "steps=9"), {"steps": 9}), (("--epochs", "2"), {"epochs": 2})):
        regress("--interleaved", "before", *fields, *words, "--out", tmp_path / "out")
        values = stand_in.requests.pop().settings.values
        assert {name: values[name] for name in ("epochs", "steps") if name in values} == length
        assert values["global_batch_size"] == 32 and values["optimizer"]["name"] == "adam" and values["seed"] == 3
        assert values["data"] == {"source": "digits", "image_size": 16, "seed": 3}


def never(run: RunResult, folder: Path) -> RunResult:
    raise Interrupted(signal.SIGTERM)


def test_the_base_is_given_the_fields_that_it_knows(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    older = {"common/spec.py": spec_module("hang_seconds", "optimizer.native"), "state": "before"}
    commit(repository, "older", older, "older")
    commit(repository, "newer", {"common/spec.py": spec_module(), "state": "now"})
    assert regress("--interleaved", "older", "--out", tmp_path / "out").exit_code == 3
    base, head = (
        json.loads((tmp_path / "out" / "runs" / f"{row}-r0/spec.json").read_text()) for row in (BASE_PYTORCH, PYTORCH)
    )
    assert "hang_seconds" not in base and "native" not in base["optimizer"]
    assert head["hang_seconds"] == 60.0 and head == json.loads(comparisons.row("pytorch").spec.to_json())


def test_a_field_that_the_base_does_not_know_is_refused(repository: Path, stand_in: StandIn, tmp_path: Path) -> None:
    commit(repository, "older", {"common/spec.py": spec_module("optimizer.weight_decay")}, "older")
    commit(repository, "broken", {"common/spec.py": "raise ImportError('no spec')"}, "broken")
    commit(repository, "now", {"common/spec.py": spec_module()})
    stand_in.rows[0] = comparisons.with_fields(stand_in.rows[0], spec__optimizer__weight_decay=0.1)
    for revision, parts in (
        ("older", {"field": "optimizer.weight_decay", "received": f"0.1 in {PYTORCH}", "fix": "0.0"}),
        ("broken", {"field": "broken", "names": ["ImportError: no spec"]}),
    ):
        check_ended(regress("--interleaved", revision, "--out", tmp_path / revision), **parts)
    assert stand_in.done == [] and worktrees(repository) == 1


def test_an_interruption_keeps_what_was_measured_and_the_same_command_goes_on_with_a_broken_pair(
    repository: Path, stand_in: StandIn, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def interrupt(run: RunResult, folder: Path) -> RunResult:
        if len(stand_in.done) == 4 + 8 + 1:  # the warm-up, two pairs of both rows, and a half
            raise Interrupted(signal.SIGINT)
        return run

    stand_in.behaviour = interrupt
    done = regress("--interleaved", "before", "--out", out)
    assert done.exit_code == 130 and worktrees(repository) == 1
    stays = f"Interrupted. The other checkout is removed. 4 of 12 pairs are in {out}."
    assert done.stderr.splitlines()[-1] == f"{stays} The same command with --out {out} continues."
    judged = regress(out)
    assert judged.exit_code == 5 and "  Verdict  CANNOT TELL" in judged.stdout
    assert "4 of 6 planned pairs are missing" in " ".join(judged.stdout.split())
    stand_in.done.clear()
    stand_in.behaviour = whole
    git(repository, "tag", "another-name", "before")
    done = regress("--interleaved", "another-name", "--out", out)
    assert done.exit_code == 3 and "4 of 12 pairs" in done.stderr, done.output
    again = stand_in.done[4:]
    assert len(again) == 16 and {repeat for _, _, repeat in again} == {2, 3, 4, 5}
    assert len([each for each in again if each[1:] == (PYTORCH, 2)]) == 2


@pytest.mark.parametrize(("spoilt", "made_again"), [([0, 3], [0, 3]), ([3], [])], ids=["too few count", "five count"])
def test_the_same_command_makes_disturbed_pairs_again_unless_their_times_were_judged(
    stand_in: StandIn, tmp_path: Path, spoilt: list[int], made_again: list[int]
) -> None:
    def disturbed(run: RunResult, folder: Path) -> RunResult:
        is_spoilt = run.repeat in spoilt and folder.name == "head" and folder.is_relative_to(tmp_path)
        return comparisons.with_fields(run, noise=TAKEN) if is_spoilt else run

    command = ("--interleaved", "before", "--out", tmp_path / "out")
    stand_in.behaviour = disturbed
    regress(*command)
    stand_in.behaviour = whole
    stand_in.done.clear()
    regress(*command)
    assert [repeat for _, _, repeat in stand_in.done[4:]] == [each for each in made_again for _ in range(4)]
    assert len(stand_in.done) == (4 + 4 * len(made_again) if made_again else 0)


def test_trainings_of_which_times_alone_are_judged_end_after_three_disturbed_rounds(stand_in: StandIn, tmp_path: Path) -> None:
    """Memory is measured on a busy machine, too."""
    stand_in.behaviour = lambda run, folder: comparisons.with_fields(run, noise=TAKEN)
    times = ("--interleaved", "before", "--metric", "epoch_seconds", "--out", tmp_path / "times")
    done = regress(*times)
    assert done.exit_code == 5 and len(stand_in.done) == 4 + 3 * 4
    assert "other programs took cores from 3 of 3 pairs" in " ".join(done.stdout.split())
    stand_in.done.clear()
    assert regress("--interleaved", "before", "--out", tmp_path / "all").exit_code == 5
    assert len(stand_in.done) == 4 + 6 * 4
    memory = regress("--interleaved", "before", "--metric", "peak_memory_mib", "--repeats", "5", "--out", tmp_path / "memory")
    assert memory.exit_code == 0 and "other programs took cores from 5 of 5 pairs" not in " ".join(memory.stdout.split())
    stand_in.behaviour = whole
    assert regress(*times).exit_code == 3


@pytest.mark.parametrize(("planned", "spoilt"), [(5, 1), (6, 2), (6, 3)])
def test_other_programs_are_the_reason_where_they_left_too_few_pairs_for_a_verdict(
    stand_in: StandIn, tmp_path: Path, planned: int, spoilt: int
) -> None:
    stand_in.behaviour = lambda run, folder: comparisons.with_fields(run, noise=TAKEN) if run.repeat < spoilt else run
    out = tmp_path / "out"
    done = regress("--interleaved", "before", "--metric", "epoch_seconds", "--repeats", planned, "--out", out)
    screen = " ".join(done.stdout.split())
    whole_report = " ".join((out / "regress.md").read_text(encoding="utf-8").split())
    assert done.exit_code == 5
    for text in (screen, whole_report):
        assert "other programs took cores from" in text, text
    assert "when the machine is idle" in screen and "more pairs" not in screen
    assert ("makes the disturbed pairs again" in whole_report) is (spoilt == 3)


def test_an_interrupted_measurement_names_the_missing_pairs_and_not_the_disturbed_ones(
    repository: Path, stand_in: StandIn, tmp_path: Path
) -> None:
    def interrupt(run: RunResult, folder: Path) -> RunResult:
        if len(stand_in.done) == 4 + 8 + 1:
            raise Interrupted(signal.SIGINT)
        return comparisons.with_fields(run, noise=TAKEN) if run.repeat == 0 else run

    stand_in.behaviour = interrupt
    out = tmp_path / "out"
    assert regress("--interleaved", "before", "--metric", "epoch_seconds", "--out", out).exit_code == 130
    screen = " ".join(regress(out, "--metric", "epoch_seconds").stdout.split())
    assert "4 of 6 planned pairs are missing" in screen and "took cores from" not in screen


def test_a_side_is_not_gone_on_with_alone(tmp_path: Path) -> None:
    plan = comparisons.with_fields(
        comparisons.comparison([comparisons.row("pytorch")]), argv=["regress", "--interleaved", "before"]
    )
    store.write_plan(tmp_path / "head", plan)
    check_ended(convtwins("run", "--resume", tmp_path / "head"), received="--resume", fix=["regress", f"--out {tmp_path}"])
    base = Contestant.plain("pytorch").as_base()
    both = comparisons.with_fields(
        plan, settings__contestants=(base,), rows=with_base_rows(plan.rows, [base, Contestant.plain("pytorch")])
    )
    store.write_plan(tmp_path, both)
    check_ended(convtwins("run", "--resume", tmp_path), received="--resume", fix=["regress", f"--out {tmp_path}"])


def test_another_measurement_is_not_gone_on_with_and_the_refusal_names_the_difference(
    repository: Path, stand_in: StandIn, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    regress("--interleaved", "before", "--out", out)
    runs = len(stand_in.done)
    for words, difference in (
        (("--repeats", "7"), "repeats is 6 there, asked for: 7"),
        (("--proof",), "proof is false there, asked for: true"),
        (("--seed", "7"), "its seeds are 0, 1, 2, 3, 4, 5; asked for: 7, 8, 9, 10, 11, 12"),
    ):
        check_ended(regress("--interleaved", "before", *words, "--out", out), names=[out, difference])
    commit(repository, "later", {"state": "later"})
    check_ended(regress("--interleaved", "HEAD", "--out", out), names=[out, "pytorch-base.revision.commit"])
    assert len(stand_in.done) == runs


@pytest.mark.parametrize(
    ("side", "code", "name", "runs"), [("base", 2, "before", 2), ("base, head", 2, "before", 2), ("head", 1, "head", 2)]
)
def test_a_side_that_fails_in_its_warm_up_ends_the_measurement_with_its_reason(
    repository: Path, stand_in: StandIn, tmp_path: Path, side: str, code: int, name: str, runs: int
) -> None:
    def broken(run: RunResult, folder: Path) -> RunResult:
        fault = {"status": "failed", "reason": "exit code 1: ImportError: gone"} if folder.name in side else {}
        return comparisons.with_fields(run, **fault)

    stand_in.behaviour = broken
    out, summary = tmp_path / "out", tmp_path / "summary.md"
    done = regress("--interleaved", "before", "--out", out, "--markdown", summary)
    check_ended(done, exit_code=code, field=name, names=[PYTORCH, "failed: exit code 1: ImportError: gone"])
    assert done.stdout == "" and len(stand_in.done) == runs and worktrees(repository) == 1
    assert ("another base" in done.stderr) == (side == "base") and ("The head fails, too" in done.stderr) == ("," in side)
    text = summary.read_text()
    assert text.startswith("# No verdict\n\n") and "ImportError: gone" in text
    stand_in.behaviour = whole
    commit(repository, "mended", {"state": "mended"})  # nothing was measured, so the folder is free for it
    assert regress("--interleaved", "before", "--out", out).exit_code == 3


def test_a_full_disk_ends_the_measurement_at_once_and_keeps_what_was_measured(stand_in: StandIn, tmp_path: Path) -> None:
    out, summary = tmp_path / "out", tmp_path / "summary.md"
    fault = "[Errno 28] No space left on device"

    def full(run: RunResult, folder: Path) -> RunResult:
        failed = {"status": "failed", "reason": f"it cannot be started: {fault}", "epochs": []}
        return comparisons.with_fields(run, **(failed if run.repeat == 2 else {}))

    stand_in.behaviour = full
    done = regress("--interleaved", "before", "--out", out, "--markdown", summary)
    check_ended(done, exit_code=1, names=["base (3 of 6)", fault, f"regress {out}"])
    assert done.stdout == "" and len(stand_in.done) == 4 + 8 + 1
    assert "No space left on device" in summary.read_text()
    stand_in.behaviour = whole
    assert regress("--interleaved", "before", "--out", out).exit_code == 3


def test_without_a_terminal_the_first_line_comes_at_once_and_a_disturbed_run_says_so(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.behaviour = lambda run, folder: comparisons.with_fields(run, noise=TAKEN)
    done = regress("--interleaved", "before", "--repeats", "5", "--out", tmp_path / "out", "--only", "pytorch*")
    lines = done.stderr.splitlines()
    assert lines[:3] == [f"{requests.PREPARING} ...", *(f"{PYTORCH}, {side}: warm-up ..." for side in ("base", "head"))]
    assert lines[-1].startswith(f"{TENSORFLOW}, head (5 of 5): 0:00;") and "0.97 cores taken" in lines[-1]


def test_data_named_by_a_relative_path_is_found_from_every_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)

    def found(values: dict[str, Any]) -> Spec:
        row = matrix.build_row("one", Contestant.plain("pytorch"), spec.build(values))
        (found_row,) = revisions.with_absolute_path(ComparisonRequest(ComparisonSettings(), [row], Twins([]))).rows
        return found_row.spec

    whole = found({"data": {"source": "images", "limit": 5}, "seed": 1})
    assert whole == spec.build({"data": {"source": str(tmp_path / "images"), "limit": 5}, "seed": 1})
    for values in ({}, {"data": {"source": "digits"}}, {"data": {"source": "leaves:images=10"}}):
        assert found(values) == spec.build(values)


def test_a_program_that_does_not_end_is_told_as_such() -> None:
    assert revisions._MOST_SECONDS == 300.0
    with refused(RevisionError, field="git status", names=["0.1 s"]):
        revisions._run_program("git status", [sys.executable, "-c", "import time; time.sleep(60)"], most_seconds=0.1)


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
    started: list[str] = []
    command = launch._command

    def listened(contestant: Contestant, arguments: Any) -> list[str]:
        started.append(contestant.interpreter)
        return command(contestant, arguments)

    fake_twins.setattr(launch, "_command", listened)  # it changes nothing: no result of a fake twin says what started it
    done = regress("--environments", *pythons, "--contestant", "it=left", "--repeats", "5", "--out", out, "--json")
    assert done.exit_code == 0, done.output  # the same twin twice
    old, new = map(str, pythons)
    assert started[-12:] == [old, new, *[old, new, new, old] * 2, old, new]
    for side, python in (("base", old), ("head", new)):
        plan = side_of(out, side).comparison
        assert [each.python for each in plan.settings.contestants] == [python]
        assert {row.id for row in plan.rows} == {"it-serial-4cores"}
        assert len(side_of(out, side).runs["it-serial-4cores"]) == 5


def test_an_upgrade_in_the_middle_ends_the_measurement_and_leaves_no_run_of_it(
    recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    out, pythons = tmp_path / "out", interpreters(2)
    of_environment = recorded.fields

    def upgraded(contestant: Contestant) -> Any:
        if len(recorded.done) == 4:  # after the warm-up and the first pair
            upgrade(pythons[1])
        return of_environment(contestant)

    recorded.fields = upgraded
    done = regress("--environments", *pythons, "--contestant", "it=left", "--repeats", "5", "--out", out)
    check_ended(done, exit_code=1, field="it", names=["newer was 1.0, now 99.0"])
    assert [sorted(side_of(out, side).runs["it-serial-4cores"]) for side in ("base", "head")] == [[0], [0]]


def test_the_proof_of_an_upgrade_compares_both_environments_and_none_passes_unproved(
    fake_twins: pytest.MonkeyPatch, recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    out, pythons = tmp_path / "out", interpreters(2)
    asked: list[dict[str, str]] = []

    def prove_rows(rows: list[Row], twins: Twins, **options: Any) -> Proof:
        asked.append({contestant.name: contestant.interpreter for contestant in twins.contestants})
        assert [row.contestant for row in rows] == twins.names
        rung = {
            "name": "5 losses", "number": 5, "aspect": "losses", "model": "simple_cnn", "optimizer": "sgd",
            "precision": "float64", "steps": 50, "step": 1, "max_relative_difference": 0.0, "tolerance": 1e-12, "reason": "",
            "judged_steps": 50, "where": "step 1", "status": "failed",
        }  # fmt: skip
        return Proof(rungs=[Rung.model_validate(rung)], seconds=1.0)

    fake_twins.setattr(ladder, "prove_rows", prove_rows)  # no fake twin trains what could be proved
    words = ["--environments", *pythons, "--contestant", "it=left", "--repeats", "5", "--proof", "--out", out]
    found = convtwins_json("regress", *words, "--only", "it-serial-4cores", exit_code=3)
    assert asked == [{"it-base": str(pythons[0]), "it": str(pythons[1])}]
    proof = side_of(out, "head").comparison.proof
    assert proof is not None and proof.mode_verdicts == {"it": {"serial": "not proved"}}
    assert proof.row_verdicts == {"it-serial-4cores": "not proved"}
    assert found["environments"] == ["base's it against head's it: newer 0.0 against 1.0."]
    assert found["differences"] == [{"what": "newer", "baseline's it": "0.0", "candidate's it": "1.0"}]
    assert "## In what do the environments differ?" in (out / "regress.md").read_text()
    (fact,) = (each for each in found["facts"] if each["what"] == "same training in both frameworks")
    assert (fact["candidate"], fact["verdict"]) == ("not proved", "cannot tell")


def test_an_upgrade_during_the_proof_is_refused_before_anything_is_measured(
    fake_twins: pytest.MonkeyPatch, recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    pythons = interpreters(2)

    def prove_rows(*rest: Any, **options: Any) -> Proof:
        upgrade(pythons[0])
        return Proof(rungs=[], seconds=1.0)

    fake_twins.setattr(ladder, "prove_rows", prove_rows)  # as above
    done = regress("--environments", *pythons, "--contestant", "it=left", "--proof", "--out", tmp_path / "out")
    check_ended(done, exit_code=1, names=["it-base", "newer was 0.0"])
    assert recorded.done == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [pytest.param(("--frameworks", "third"), id="name"), pytest.param(("--contestant", "third=third"), id="contestant")],
)
def test_a_twin_that_only_the_two_environments_have_is_looked_up_there(
    fake_twins: pytest.MonkeyPatch, interpreters: Callable[[int], list[Path]], tmp_path: Path, words: tuple[str, str]
) -> None:
    pythons = interpreters(2)
    run_it = ["--environments", *pythons, *words, "--repeats", "5", "--out", tmp_path / "out"]
    check_ended(regress(*run_it), names=["It has no twin third", "entry point third"])
    for python in pythons:
        (site,) = python.parents[1].glob("lib/python*/site-packages")
        files = {
            "third_impl/__init__.py": "SUPPORTED = {}\n",
            "third_impl/__main__.py": "import sys\nfrom tests.compare.twins import fake\nsys.exit(fake.main('third'))\n",
            "third-1.0.dist-info/METADATA": "Name: third\nVersion: 1.0\n",
            "third-1.0.dist-info/entry_points.txt": "[convtwins.twins]\nthird = third_impl\n",
        }
        trees.write(site, files)
    done = regress(*run_it)
    assert done.exit_code == 0, done.output  # the same twin twice
    assert len(side_of(tmp_path / "out", "head").runs["third-serial-4cores"]) == 5


def test_an_interruption_with_two_environments_speaks_of_no_checkout(
    recorded: StandIn, interpreters: Callable[[int], list[Path]], tmp_path: Path
) -> None:
    recorded.behaviour = never
    done = regress("--environments", *interpreters(2), "--contestant", "it=left", "--out", tmp_path / "out")
    assert done.exit_code == 143 and "checkout" not in done.stderr, done.output


@pytest.mark.usefixtures("fake_twins")
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["a", "gone", "--frameworks", "left"], {"names": ["left", "gone/bin/python"]}),
        (["a", "b", "--contestant", "x=left@/c/python"], {"field": "--environments", "names": ["x@/c/python"]}),
    ],
)
def test_environments_that_cannot_be_measured_are_refused(tmp_path: Path, words: list[str], parts: dict[str, Any]) -> None:
    done = regress("--environments", *words, "--out", tmp_path / "out")
    check_ended(done, **parts)
