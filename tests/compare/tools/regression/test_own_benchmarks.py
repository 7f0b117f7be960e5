"""Suites of pytest-benchmark and commands of one's own, of two revisions or environments in turn, in real processes."""

import json
import sys
import venv
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compare.cli.progress import display
from compare.results.workspace import Workspace
from compare.tools.regression import benchmark_files
from compare.tools.regression.benchmark_command import BenchmarkCommand
from compare.tools.regression.benchmark_runs import BenchmarkRun, BenchmarkRuns
from compare.tools.regression.benchmark_sides import BenchmarkSide, Repository, from_environment
from compare.tools.regression.revisions import RevisionError
from tests.compare.tools.regression import own_suite
from tests.compare.tools.regression.own_suite import ARGS, SLOWER, WORK, inside, notes_of, project
from tests.compare.tools.regression.repository import commit, git, initialised, worktrees
from tests.support import trees
from tests.support.command_line import Ended, convtwins
from tests.support.refusals import check_ended, refused

PARSE, WRITE = "bench/test_work.py::test_speed[parse]", "bench/test_work.py::test_speed[write]"


@pytest.fixture(autouse=True)
def one_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in own_suite.ONE_PLUGIN.items():
        monkeypatch.setenv(name, value)


def regress(repository: Path, *words: object, arguments: str = ARGS) -> Ended:
    with inside(repository):
        return convtwins("regress", *words, "--pytest", arguments)


def judged(ended: Ended) -> tuple[int, dict[str, Any]]:
    assert ended.stdout, ended.output
    return ended.exit_code, json.loads(ended.stdout)


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {change["id"]: change["verdict"] for change in report["changes"]}


def test_a_slowdown_of_one_benchmark_is_a_regression_of_that_one_alone(tmp_path: Path) -> None:
    repository = project(tmp_path / "project", SLOWER)
    code, report = judged(regress(repository, "--interleaved", "before", "--repeats", 5, "--out", tmp_path / "out", "--json"))
    assert code == 3 and verdicts(report) == {PARSE: "regression", WRITE: "no change shown"}
    (change,) = (each for each in report["changes"] if each["id"] == PARSE)
    assert change["change"]["value"] == pytest.approx(1.2, rel=0.001) and change["change"]["n"] == 5
    assert report["paired"] and report["in_turn"]
    assert "*" in (tmp_path / "out" / ".gitignore").read_text().splitlines()  # results in a user's repository are not theirs
    assert report["baseline"]["commit"] == git(repository, "rev-parse", "before")[:8]
    assert report["candidate"]["commit"] == git(repository, "rev-parse", "HEAD")[:8]
    assert worktrees(repository) == 1
    runs = {path.stem: notes_of(path)["test_speed[parse]"] for path in (tmp_path / "out" / "runs").iterdir()}
    order = [(each["pair"], each["place"], each["side"]) for each in runs.values()]
    assert sorted(order)[:6] == [(0, 0, "base"), (0, 1, "head"), (1, 0, "head"), (1, 1, "base"), (2, 0, "base"), (2, 1, "head")]


def test_a_gain_that_a_marker_forbids_fails_and_is_called_a_gain(tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    marked = own_suite.SUITE.replace(
        "@pytest.mark.benchmark", "@pytest.mark.convtwins(fail_when_faster=True)\n@pytest.mark.benchmark"
    )
    commit(repository, "faster", {"src/work.py": WORK.replace("1.0", "0.5"), "bench/test_work.py": marked})
    words = ("--interleaved", "before", "--repeats", 5, "--out", tmp_path / "out")
    code, report = judged(regress(repository, *words, "--json"))
    assert code == 3 and verdicts(report) == {PARSE: "faster than allowed", WRITE: "no change shown"}
    assert report["headline"] == "FASTER THAN ALLOWED in 1 of 2 figures."
    shown = regress(repository, *words).stdout  # only judged again
    assert "Faster   test_speed[parse]" in shown and "REGRESSION" not in shown and "Worse" not in shown


TAKES_TURNS = """
def test_it(paired):
    paired(lambda: None, lambda: sum(range(1000)), turns=3).assert_not_slower("5%")
"""


def test_an_assertion_on_callables_in_turn_does_not_end_a_measurement(tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    commit(repository, "paired", {"bench/test_work.py": "", "bench/test_paired.py": TAKES_TURNS}, "paired")
    commit(repository, "later", {"notes.txt": "later"})
    done = own_suite.run_pytest(repository, "bench/test_paired.py", "-q")
    assert done.exit_code == 1 and "slower" in done.stdout
    out = tmp_path / "out"
    _, report = judged(regress(repository, "--interleaved", "paired", "--repeats", 5, "--out", out, "--json"))
    assert [*verdicts(report)] == ["bench/test_paired.py::test_it"]
    assert notes_of(out / "runs" / "head-0.json")["test_it"]["paired"]["low"] > 1.05


def test_one_commit_against_itself_is_no_regression_and_its_noise_is_said(tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    out = tmp_path / "out"
    code, report = judged(regress(repository, "--interleaved", "HEAD", "--repeats", 5, "--out", out, "--json"))
    assert code == 0 and {*verdicts(report).values()} == {"no change shown"}
    assert report["noise"]["n"] == 8 and 1.0 < report["noise"]["high"] < 1.01
    before = {path: path.read_bytes() for path in (out / "runs").iterdir()}
    code, again = judged(regress(repository, "--interleaved", "HEAD", "--repeats", 5, "--out", out, "--json"))
    assert code == 0 and again["changes"] == report["changes"]
    assert {path: path.read_bytes() for path in (out / "runs").iterdir()} == before  # only judged again
    assert "Noise here today: 0.99 to 1.01" in (out / "regress.md").read_text()


FAILING = 'def test_it_works():\n    assert 1 == 2, "it does not"\n'
NO_CLOCK = own_suite.SUITE.replace("from work import cost", "from work import nothing")
XDIST = "def pytest_configure(config):\n    print('plugins: xdist-3.6.1')\n"
OTHERS = own_suite.SUITE.replace("test_speed", "test_pace")


@pytest.mark.parametrize(
    ("files", "exit_code", "names"),
    [
        ({"bench/test_other.py": FAILING}, 1, ["head", "a test failed", "it does not"]),
        ({"bench/test_work.py": NO_CLOCK}, 1, ["head", "its tests cannot be imported"]),
        ({"bench/test_work.py": OTHERS}, 2, ["no benchmark in common", "test_pace[parse]", "test_speed[parse]"]),
        ({"bench/test_work.py": "def test_nothing():\n    pass\n"}, 1, ["head", "no benchmark was collected", "--pytest"]),
        (
            # pytest-xdist is installed, and shows in the output, but no -n is given.
            {"bench/test_work.py": "def test_nothing():\n    pass\n", "bench/conftest.py": XDIST},
            1,
            ["head", "no benchmark was collected", "--pytest"],
        ),
    ],
    ids=["a test fails", "an import fails", "other benchmarks", "no benchmark", "pytest-xdist is installed"],
)
def test_a_head_that_cannot_be_measured_ends_with_the_reason(
    tmp_path: Path, files: dict[str, str], exit_code: int, names: list[str]
) -> None:
    repository = project(tmp_path / "project", WORK, **files)
    out = tmp_path / "out"
    ended = regress(repository, "--interleaved", "before", "--out", out)
    check_ended(ended, exit_code=exit_code, names=names)
    assert not [*(out / "runs").glob("*")] and worktrees(repository) == 1


@pytest.mark.parametrize(
    ("words", "arguments", "names"),
    [
        (["--interleaved", "before"], f"{ARGS} -p xdist.plugin -n 2", ["pytest-xdist", "-n 0"]),
        (["--interleaved", "before"], f"{ARGS} --no-such-option", ["pytest refused its arguments", "--no-such-option"]),
        (["--interleaved", "before"], "bench/none.py", ["bench/none.py"]),
        (["--interleaved", "nothing"], ARGS, ["nothing"]),
        (["--interleaved", "before"], "bench 'open", ["--pytest"]),
        (["--interleaved", "before"], "bench --benchmark-json=x", ["--benchmark-json"]),
        (["--interleaved", "before", "--python", "/nowhere/python"], ARGS, ["/nowhere/python"]),
        (["--interleaved", "before", "--epochs", "3"], ARGS, ["--pytest", "--epochs"]),
        (["--interleaved", "before", "--command", "true"], ARGS, ["--pytest", "--command"]),
        ([], ARGS, ["--interleaved"]),
    ],
)
def test_a_request_that_measures_nothing_is_refused(tmp_path: Path, words: list[str], arguments: str, names: list[str]) -> None:
    repository = project(tmp_path / "project")
    ended = regress(repository, *words, *(["--out", tmp_path / "out"] if words else []), arguments=arguments)
    check_ended(ended, names=names)
    assert worktrees(repository) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (f"{ARGS} -k nothing", "no benchmark was collected"),
        ("benchmarks -q", "pytest refused its arguments"),
        (f"{ARGS} --no-such-option", "pytest refused its arguments"),
    ],
)
def test_arguments_that_name_nothing_on_either_side_are_at_fault_and_not_the_base(
    tmp_path: Path, arguments: str, reason: str
) -> None:
    repository = project(tmp_path / "project")
    ended = regress(repository, "--interleaved", "before", "--out", tmp_path / "out", arguments=arguments)
    check_ended(ended, names=[reason, "Mend --pytest"])
    assert "another base" not in ended.stderr and "cannot do" not in ended.stderr


def test_tests_that_the_head_alone_has_are_no_fault_of_the_arguments(tmp_path: Path) -> None:
    repository = project(tmp_path / "project", **{"bench/test_new.py": own_suite.SUITE.replace("test_speed", "test_new")})
    ended = regress(repository, "--interleaved", "before", "--out", tmp_path / "out", arguments=f"{ARGS} -k test_new")
    check_ended(ended, names=["no benchmark was collected", "before", "another base"])


@pytest.mark.parametrize("option", ["--command", "--pytest"])
def test_where_the_head_fails_too_the_command_is_at_fault_and_not_the_base(tmp_path: Path, option: str) -> None:
    repository = project(tmp_path / "project")
    words = ("regress", "--interleaved", "before", option, "python new.py" if option == "--command" else "new.py")
    with inside(repository):
        ended = convtwins(*words, "--out", tmp_path / "out")
        check_ended(ended, names=["before", "The head fails, too", f"Mend {option}", "--python .venv/bin/python"])
        assert "another base" not in ended.stderr
        commit(repository, "a new file", {"new.py": own_suite.SUITE})
        ended = convtwins(*words, "--out", tmp_path / "out")
        check_ended(ended, names=["before", "another base"])
        assert "The head fails" not in ended.stderr


def test_an_only_that_names_nothing_is_refused_before_a_benchmark_runs(tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    commit(repository, "fails", {"bench/test_work.py": own_suite.SUITE.replace("    benchmark.pedantic", "    assert 0\n#")})
    commit(repository, "later", {"notes.txt": "later"})
    for words in (["regress", "--interleaved", "HEAD~1"], ["bisect", "--good", "HEAD~1"]):
        with inside(repository):
            ended = convtwins(*words, "--pytest", ARGS, "--only", "nope", "--out", tmp_path / words[0])
            check_ended(ended, received="nope", fix=[PARSE, WRITE])
            never = convtwins(*words, "--command", "false", "--only", "nope", "--out", tmp_path / f"{words[0]}-command")
            check_ended(never, received="nope", fix="false")
            figure = """python -c "open('{json}', 'w').write('{\\"loss\\": 1}')" """
            ended = convtwins(*words, "--command", figure, "--only", "nope", "--out", tmp_path / f"{words[0]}-figure")
            check_ended(ended, received="nope", fix="loss")
        assert " head" not in ended.stderr and not [*tmp_path.glob("**/runs/*")]


def test_an_environment_without_pytest_is_refused_before_anything_runs(tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    venv.create(tmp_path / "empty", symlinks=True)
    python = tmp_path / "empty" / "bin" / "python"
    for words, fix in (
        (["regress", "--interleaved", "before", "--python", python], "--python .venv/bin/python"),
        (["regress", "--environments", sys.executable, python], "Install it there"),
        (["bisect", "--environments", sys.executable, python], "Install it there"),
        (["bisect", "--good", "before", "--python", python], "--python .venv/bin/python"),
    ):
        with inside(repository):
            ended = convtwins(*words, "--pytest", ARGS, "--out", tmp_path / "out")
        check_ended(ended, received=python, names=["no pytest"], fix=fix)
        assert "base" not in ended.stderr and not (tmp_path / "out").exists()


def test_a_base_without_benchmarks_is_refused_and_changes_must_be_committed(tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    git(repository, "rm", "-q", "-r", "bench")
    commit(repository, "none", {"bench/readme.txt": "none"}, "none")
    commit(repository, "again", own_suite.FILES)
    check_ended(regress(repository, "--interleaved", "none", "--out", tmp_path / "out"), names=["none", "another base"])
    trees.write(repository, {"src/work.py": SLOWER})
    check_ended(regress(repository, "--interleaved", "before", "--out", tmp_path / "out"), names=["src/work.py"])
    check_ended(regress(tmp_path, "--interleaved", "before", "--out", tmp_path / "out"), names=["no git repository"])


def test_benchmarks_that_other_work_disturbed_do_not_count_and_are_made_again(tmp_path: Path) -> None:
    taken = {f"head-{pair}": {"test_speed[parse]": 0.9} for pair in range(5)}
    repository = project(tmp_path / "project", SLOWER, **{"bench/taken.json": json.dumps(taken)})
    words = ("--interleaved", "before", "--repeats", 5, "--out", tmp_path / "out")
    code, report = judged(regress(repository, *words, "--json"))
    assert code == 5 and verdicts(report) == {PARSE: "not judged", WRITE: "no change shown"}
    assert any("5 of 5 runs of the head were disturbed" in caution for caution in report["cautions"])
    points = convtwins("history", tmp_path / "out", "--json").succeeded()
    assert {(each["name"], each["commit"][:8]) for each in json.loads(points.stdout)} == {
        ("test_speed[parse]", report["baseline"]["commit"]),
        *(("test_speed[write]", report[side]["commit"]) for side in ("baseline", "candidate")),
    }
    runs = tmp_path / "out" / "runs"
    before = {path.name: json.loads(path.read_text())["datetime"] for path in runs.iterdir()}
    kept = marked(runs / "head-0.json", WRITE)
    judged(regress(repository, *words, "--json"))
    after = {path.name: json.loads(path.read_text()) for path in runs.iterdir()}
    assert all(after[name]["datetime"] != time for name, time in before.items())
    assert kept in after["head-0.json"]["benchmarks"]  # it has been judged


def marked(file: Path, name: str) -> dict[str, Any]:
    """Give a benchmark a time in its file that no run has, and return its entry."""
    values = json.loads(file.read_text())
    (entry,) = [each for each in values["benchmarks"] if each["fullname"] == name]
    entry["stats"]["median"] *= 1.0001
    file.write_text(json.dumps(values))
    return entry


def test_what_was_judged_outlives_a_run_that_fails_when_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[str, object] = {f"head-{pair}": {"test_speed[parse]": 0.9} for pair in range(5)}
    repository, file = project(tmp_path / "project", SLOWER), tmp_path / "taken.json"
    monkeypatch.setenv("TAKEN_FILE", str(file))
    runs = tmp_path / "out" / "runs"

    def measure(cores: dict[str, object]) -> None:
        file.write_text(json.dumps(cores))
        regress(repository, "--interleaved", "before", "--repeats", 5, "--out", tmp_path / "out")

    measure(taken)
    kept = marked(runs / "head-1.json", WRITE)
    measure({**taken, "head-1": "no numbers: this run fails"})
    assert json.loads((runs / "head-1.json").read_text())["benchmarks"] == [kept]
    measure({})
    assert kept in json.loads((runs / "head-1.json").read_text())["benchmarks"]
    assert len([*runs.iterdir()]) == 2 * 5


BOTH_TAKEN = {"test_speed[parse]": 0.9, "test_speed[write]": 0.9}


def test_three_disturbed_pairs_end_a_measurement_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, out = project(tmp_path / "project", SLOWER), tmp_path / "out"
    taken = tmp_path / "taken.json"
    taken.write_text(json.dumps({f"head-{pair}": BOTH_TAKEN for pair in range(6)}))
    monkeypatch.setenv("TAKEN_FILE", str(taken))
    busy = regress(repository, "--interleaved", "before", "--out", out)
    assert busy.exit_code == 5 and len([*(out / "runs").iterdir()]) == 2 * 3
    shown = " ".join(busy.stdout.split())
    assert "CANNOT TELL whether there is a regression: other programs took cores from 3 of 3 pairs, exit code 5." in shown
    assert "test_speed[parse], seconds per call: +20.0 % measured, not judged" in shown
    assert "go on when the machine is idle" in shown and f"--out {out}" in shown
    assert "3 pairs in a row" in busy.stderr
    taken.unlink()
    assert regress(repository, "--interleaved", "before", "--out", out).exit_code == 3
    assert len([*(out / "runs").iterdir()]) == 2 * 6


class WrittenRuns(BenchmarkRuns):
    """Runs that start no process. Each writes the file that one of pytest-benchmark would have written."""

    taken: Mapping[int, Mapping[str, float]]
    """Cores that other work takes from the base, by pair and benchmark."""

    def execute(self, item: BenchmarkSide, repeat: int, folder: Path) -> BenchmarkRun:
        cores = self.taken.get(repeat, {}) if item.id == "base" else {}
        entries = [
            {
                "fullname": name,
                "name": name,
                "extra_info": {"convtwins": {"cores_taken": cores.get(name, 0.0)}},
                "stats": {"median": 1.0, "q1": 1.0, "q3": 1.0, "rounds": 5},
            }
            for name in BOTH_TAKEN
        ]
        file = benchmark_files.run_file(folder, item.id, repeat)
        file.parent.mkdir(exist_ok=True)
        facts = {"machine_info": {"python_version": "3"}, "datetime": "2026-01-01T00:00:00+00:00"}
        file.write_text(json.dumps({**facts, "benchmarks": entries}))
        return BenchmarkRun(benchmark_files.read(file))


@pytest.mark.parametrize(
    ("taken", "pairs"),
    [
        (dict.fromkeys((5, 6, 7), BOTH_TAKEN), 8),
        ({pair: {"test_speed[parse]": 0.9} for pair in range(8)}, 8),
        (dict.fromkeys((0, 1, 3, 4), BOTH_TAKEN), 8),
        (dict.fromkeys((0, 2, 3, 4), BOTH_TAKEN), 5),
    ],
    ids=["after a verdict", "one benchmark of two", "not in a row", "in a row"],
)
def test_pairs_of_which_something_counts_end_no_measurement(
    tmp_path: Path, taken: dict[int, dict[str, float]], pairs: int
) -> None:
    base = from_environment("base", sys.executable)
    with Workspace.open(tmp_path / "out", benchmark_files.IN_TURN) as workspace, display() as progress:
        command = BenchmarkCommand("--pytest", ARGS)
        runs = WrittenRuns(command, [base, replace(base, id="head")], 8, workspace, progress)
        runs.taken = taken
        runs.complete()
    assert len([*(tmp_path / "out" / "runs").iterdir()]) == 2 * pairs


def test_code_that_is_imported_from_elsewhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed copy would be measured on both sides."""
    repository = project(tmp_path / "project", SLOWER)
    trees.write(tmp_path / "installed", {"work.py": WORK})
    conftest = f"import sys\nsys.path.insert(0, {str(tmp_path / 'installed')!r})\n" + own_suite.CONFTEST
    commit(repository, "path", {"bench/conftest.py": conftest}, "path")
    ended = regress(repository, "--interleaved", "path", "--out", tmp_path / "out")
    check_ended(ended, names=["work", tmp_path / "installed" / "work.py", "pip install -e"])


LIBRARY = "import json, sys\n\ndef cost():\n    return %s\n"
RUN = "import json, sys\nfrom pace import cost\njson.dump({'cost': cost()}, open(sys.argv[1], 'w'))\n"


@pytest.mark.parametrize(("place", "on_path"), [("pace.py", "."), ("pace.py", None), ("lib/pace.py", "lib")])
def test_each_side_imports_its_own_code_whatever_the_users_path_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, on_path: str | None
) -> None:
    repository = initialised(tmp_path / "project")
    commit(repository, "before", {place: LIBRARY % 1.0, "bench/run.py": RUN})
    commit(repository, "now", {place: LIBRARY % 2.0})
    if on_path is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", str(repository / on_path))
    words = ("--interleaved", "HEAD~1", "--repeats", 5, "--out", tmp_path / "out", "--json")
    with inside(repository):
        ended = convtwins("regress", *words, "--command", "python bench/run.py {json}")
    (change,) = json.loads(ended.stdout)["changes"]
    assert (change["baseline"]["median"], change["candidate"]["median"]) == (1.0, 2.0)


def test_a_base_that_imports_a_file_of_the_callers_checkout_is_refused(tmp_path: Path) -> None:
    repository = project(tmp_path / "project", **{"lib/pace.py": ""})
    conftest = f"import sys\nsys.path.insert(0, {str(repository / 'lib')!r})\nimport pace\n" + own_suite.CONFTEST
    commit(repository, "path", {"bench/conftest.py": conftest}, "path")
    ended = regress(repository, "--interleaved", "path", "--out", tmp_path / "out")
    check_ended(ended, names=["pace", repository / "lib" / "pace.py", "its checkout"])


def test_a_command_is_measured_by_its_figures_or_its_seconds(tmp_path: Path) -> None:
    script = "import json, sys\njson.dump({'loss seconds': %s, 'peak MiB': 3.0}, open(sys.argv[1], 'w'))\n"
    repository = project(tmp_path / "project", **{"train.py": script % 1.5})
    commit(repository, "slower", {"train.py": script % 2.0})
    with inside(repository):
        words = ("regress", "--interleaved", "HEAD~1", "--repeats", 5, "--json")
        ended = convtwins(*words, "--command", "python train.py {json}", "--out", tmp_path / "figures")
        report = json.loads(ended.stdout)
        found = {change["id"]: change["change"]["value"] for change in report["changes"]}
        assert found == {"loss seconds": pytest.approx(2.0 / 1.5), "peak MiB": 1.0}
        seconds = json.loads(convtwins(*words, "--command", "python -c pass", "--out", tmp_path / "seconds").stdout)
        assert [change["id"] for change in seconds["changes"]] == ["python -c pass"]
        assert seconds["changes"][0]["metric"] == "command_seconds"
        shown = convtwins(*words[:-1], "--full", "--command", "python -c pass", "--out", tmp_path / "seconds").stdout
        assert "command seconds" in shown and "per call" not in shown
        assert seconds["changes"][0]["baseline"]["median"] > 0.0
        for command, names in (
            ("python train.py", ["exit code 1", "IndexError"]),
            ("python -c pass {json}", ["{json}"]),
            ("no-such-program", ["no-such-program"]),
            (f"python {repository}/train.py {{json}}", [repository / "train.py", "from here: train.py"]),  # of both sides
            (f"python -c pass --file={repository}/train.py", [repository / "train.py", "from here: train.py"]),
            (f"sh -c 'cd . && python {repository}/train.py'", [repository / "train.py", "from here: train.py"]),
            ("""python -c "open('{json}', 'w').write('[1]')" """, ["{json}", "[1]"]),
            ("""python -c "open('{json}', 'w').write('7')" """, ["the file of {json} holds 7", '{"seconds": 1.5}']),
            ("""python -c "open('{json}', 'w').write('{\\"a\\": {\\"b\\": 1}}')" """, ["{json}", '{"a": {"b": 1}}']),
            ("""python -c "open('{json}', 'w').write('{}')" """, ["the file of {json} holds {}"]),
            ("""python -c "open('{json}', 'w').write('seconds')" """, ["the file of {json} is no JSON"]),
            ("""python -c "open('{json}', 'w').write('{\\"a\\": 1' + 400 * '0' + '}')" """, ["{json}", "an object of numbers"]),
            ("""python -c "open('{json}', 'w').write(100000 * '[')" """, ["{json}", "deep"]),
            ("""python -c "open('{json}', 'w').write('{\\"a\\": true}')" """, ["{json}", '{"a": true}']),
            ("""python -c "open('{json}', 'w').write('{\\"a\\": \\"1.5\\"}')" """, ["{json}", '{"a": "1.5"}']),
            ("false --benchmark-json=x", ["exit code 1"]),  # an option of a program that is not pytest
            ("""python -c "open('{json}', 'w').write('{\\"loss\\": 0}')" """, ["{json}", '{"loss": 0}', "above 0"]),
        ):
            check_ended(convtwins(*words, "--command", command, "--out", tmp_path / "bad"), names=names)


def test_two_environments_measure_this_folder(tmp_path: Path) -> None:
    repository = project(tmp_path / "project")
    (tmp_path / "other").symlink_to(Path(sys.executable).parent.parent)
    trees.write(repository, {"src/work.py": SLOWER})  # changes are measured, too
    words = ("--environments", sys.executable, tmp_path / "other", "--repeats", 5, "--out", tmp_path / "out", "--json")
    code, report = judged(regress(repository, *words, arguments=f"{ARGS} -o pythonpath=src"))
    assert code == 0 and report["baseline"]["commit"].endswith("+changes")
    assert {*verdicts(report).values()} == {"no change shown"}


def test_runs_of_other_changes_are_not_continued(tmp_path: Path) -> None:
    """Environments measure the folder as it is. Its commit does not say which changes that were."""
    repository = project(tmp_path / "project")
    (tmp_path / "other").symlink_to(Path(sys.executable).parent.parent)
    words = ("--environments", sys.executable, tmp_path / "other", "--repeats", 5, "--out", tmp_path / "out", "--json")
    command = """python -c "open('{json}', 'w').write('{\\"a\\": 1}')" """

    def measured() -> Ended:
        with inside(repository):
            return convtwins("regress", *words, "--command", command)

    trees.write(repository, {"src/work.py": SLOWER})
    for _ in range(2):  # the second time continues the first
        assert measured().exit_code in (0, 5)
    trees.write(repository, {"src/work.py": SLOWER + "\n"})
    check_ended(measured(), names=[tmp_path / "out"])


def test_the_commit_that_made_a_benchmark_slower_is_found(tmp_path: Path) -> None:
    """The second of two commits is slow. The first cannot be imported, and is left out: it may have made it slow, too."""
    repository = project(tmp_path / "project", WORK, **{"bench/test_other.py": "import nothing_there"})
    commit(repository, "slow", {"src/work.py": SLOWER, "bench/test_other.py": ""})
    words = ("bisect", "--good", "before", "--pytest", ARGS, "--json")
    with inside(repository):
        ended = convtwins(*words, "--out", tmp_path / "out", "--only", PARSE)
        check_ended(convtwins(*words, "--out", tmp_path / "several"), names=["one benchmark", "--only", PARSE, WRITE])
    report = json.loads(ended.stdout)
    titles = [each["title"].partition(" ")[2] for each in report["candidates"]]
    assert titles == ["before", "now", "slow"] and report["metric"] == "seconds"
    assert {titles[int(place)] for place in report["search"]["skipped"]} == {"now"}
    assert report["search"]["outcome"] == "one of several" and ended.exit_code == 5
    assert report["suspects"] == [git(repository, "rev-parse", name) for name in ("HEAD~1", "HEAD")]
    assert report["search"]["trials"][0]["verdict"] == "bad" and worktrees(repository) == 1


def test_a_search_runs_the_benchmark_that_it_follows_and_no_other_test(tmp_path: Path) -> None:
    repository = project(tmp_path / "project", WORK, **{"bench/test_other.py": FAILING})
    commit(repository, "slow", {"src/work.py": SLOWER})
    words = ("bisect", "--good", "before", "--pytest", ARGS, "--only", PARSE, "--out", tmp_path / "out")
    with inside(repository):
        ended = convtwins(*words).succeeded()
    assert {name for path in tmp_path.glob("out/*/runs/*.json") for name in notes_of(path)} == {"test_speed[parse]"}
    slow = git(repository, "rev-parse", "HEAD")[:8]
    shown = " ".join(ended.stdout.split())
    assert f"First bad: {slow} slow" in shown and "seconds per call of test_speed[parse]" in shown
    assert f"commit {slow}, pair 1 of at most 30, base" in ended.stderr and " left" not in ended.stderr


def test_a_search_that_left_out_a_commit_without_the_benchmark_goes_on(tmp_path: Path) -> None:
    repository = project(tmp_path / "project", WORK, **{"bench/test_work.py": OTHERS})
    commit(repository, "slow", {"src/work.py": SLOWER, "bench/test_work.py": own_suite.SUITE})
    words = ("bisect", "--good", "before", "--pytest", ARGS, "--only", PARSE, "--out", tmp_path / "out")
    with inside(repository):
        first, again = convtwins(*words), convtwins(*words)
    assert (first.exit_code, again.exit_code) == (5, 5) and again.stdout == first.stdout
    assert "now was left out: --only matches no benchmark. Received: " in " ".join(first.stdout.split())


def test_a_commit_without_the_program_of_a_command_cannot_be_measured(tmp_path: Path) -> None:
    repository = initialised(tmp_path / "project")
    trees.write(repository, {"measure.sh": "#!/bin/sh\n"})
    (repository / "measure.sh").chmod(0o755)
    commit(repository, "before", {})
    git(repository, "rm", "-q", "measure.sh")
    commit(repository, "moved", {"notes.txt": "moved"})
    with inside(repository), ExitStack() as resources:
        command = BenchmarkCommand("--command", "./measure.sh")
        named = Repository(sys.executable, command)
        sides = [
            resources.enter_context(named.checked_out(side, name)) for side, name in (("base", "HEAD~1"), ("head", "HEAD"))
        ]
        workspace = resources.enter_context(Workspace.open(tmp_path / "out", benchmark_files.IN_TURN))
        runs = BenchmarkRuns(command, sides, 5, workspace, resources.enter_context(display()))
        with refused(RevisionError, names="./measure.sh cannot be started"):
            runs.make(enough=lambda: True)
        assert runs.stored(sides[0], 0) is None  # it ended in the warm-up


def test_an_environment_without_pytest_between_the_ends_of_a_search_is_left_out(tmp_path: Path) -> None:
    by_environment = WORK.replace('"parse": 1.0', '"parse": 1.2 if "upgraded" in sys.executable else 1.0')
    repository = project(tmp_path / "project", f"import sys\n{by_environment}")
    venv.create(tmp_path / "empty", symlinks=True)
    upgraded = tmp_path / "upgraded"
    upgraded.symlink_to(Path(sys.executable).parent.parent)

    def search(*environments: object) -> Ended:
        words = ("--pytest", f"{ARGS} -o pythonpath=src", "--only", PARSE, "--out", tmp_path / f"out{len(environments)}")
        with inside(repository):
            return convtwins("bisect", "--environments", *environments, *words)

    ended = search(sys.executable, tmp_path / "empty", upgraded)
    shown = "".join(ended.stdout.split())  # a long path may be folded
    assert ended.exit_code == 5, ended.output
    assert f"{tmp_path / 'empty'}wasleftout:Theinterpreterhasnopytest." in shown
    assert "Thefirstbadoneisamong2thatcouldnotbetoldapart." in shown
    check_ended(search(sys.executable, tmp_path / "empty"), received=tmp_path / "empty", names=["no pytest"])


def test_a_search_names_the_figure_that_a_command_writes(tmp_path: Path) -> None:
    script = "import json, sys\njson.dump({'seconds per epoch': %s}, open(sys.argv[1], 'w'))\n"
    repository = project(tmp_path / "project", **{"train.py": script % 1.5})
    commit(repository, "slower", {"train.py": script % 2.0})
    with inside(repository):
        ended = convtwins(
            "bisect", "--good", "HEAD~1", "--command", "python train.py {json}", "--most-repeats", 5, "--out", tmp_path / "out"
        )
    assert "Which change made seconds per epoch of python train.py {json} larger?" in " ".join(ended.stdout.split())
    with inside(repository):
        ended = convtwins("bisect", "--good", "HEAD~1", "--command", "true", "--most-repeats", 5, "--out", tmp_path / "seconds")
    assert "Which change made command seconds of true larger?" in " ".join(ended.stdout.split())


def test_both_sides_have_the_statistic_that_the_heads_marker_names(tmp_path: Path) -> None:
    """The least of the new side beside the median of the old one would hide a slowdown."""
    rounds = own_suite.SUITE.replace("CLOCK.factor * cost(name)", "CLOCK.factor * cost(name) * next(SIZES)").replace(
        "CLOCK = Clock()", "CLOCK = Clock()\nSIZES = __import__('itertools').cycle([1.0, 1.0, 1.25, 1.25, 1.25])"
    )
    marked = rounds.replace("@pytest.mark.benchmark", '@pytest.mark.convtwins(metric="min")\n@pytest.mark.benchmark')
    repository = project(tmp_path / "project", **{"bench/test_work.py": rounds})
    commit(repository, "slower", {"src/work.py": SLOWER, "bench/test_work.py": marked})
    out = tmp_path / "out"
    code, report = judged(regress(repository, "--interleaved", "HEAD~1", "--repeats", 5, "--out", out, "--json"))
    assert code == 3 and verdicts(report) == {PARSE: "regression", WRITE: "no change shown"}
    assert sorted(each["change"]["value"] for each in report["changes"]) == pytest.approx([1.0, 1.2])
    files = [sorted((out / "runs").glob(f"{side}-*.json")) for side in ("base", "head")]
    for side, paths in zip(("before", "now"), files, strict=True):
        trees.write(tmp_path / side, {path.name: path.read_text() for path in paths})
    stored = json.loads(convtwins("regress", tmp_path / "before", tmp_path / "now", "--json").stdout)
    assert verdicts(stored) == verdicts(report)
