"""Runs of commands: their progress, and what stays of them where the comparison fails."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compare.cli.interrupt import Interrupted
from compare.tools.same import curves, runs
from compare.tools.same.curves import Curve
from tests.support.command_line import Ended, convtwins

TRAINING = """import os, sys
target, apart, failing = sys.argv[1:]
copy = os.environ.get("CONVTWINS_ULP", "0")
with open(target, "w") as file:
    file.write('{"step": 1, "loss": %r}\\n' % (1.5 + float(apart) + 1e-7 * int(copy)))
if copy != "0":
    with open(os.environ["CONVTWINS_ULP_COUNT"], "a") as file:
        file.write("5")
sys.exit(3 if copy == failing else 0)
"""
MOVED = ("--copies", "3", "--ulp")
FIRST_COPIES = ("A-copy-1.jsonl", "B-copy-1.jsonl")
_END = re.compile(r"([AB]) \(.*\)(?:, copy (\d) of 3)?: \d+:\d\d(?:; (\d) left, about \d+:\d\d)?\.")


@pytest.fixture(autouse=True)
def scripts(here: Path) -> Path:
    (here / "train.py").write_text(TRAINING)
    (here / "print.py").write_text("import sys\nprint(sys.argv[1])\n")
    return here


def training(apart: float = 0.0, failing: str = "none", target: str = "{losses}.jsonl") -> str:
    return f"{sys.executable} train.py {target} {apart} {failing}"


def printing(text: str) -> str:
    """A command that prints a text."""
    return f"{sys.executable} print.py '{text}'"


def failed(*words: str, code: int, results: str = "results") -> tuple[Ended, dict[str, Path]]:
    """A command that failed with an exit code, and the files of the folder that its error names."""
    ended = convtwins("same", *words)
    assert ended.exit_code == code and ended.stdout == "", ended.output
    (folder,) = Path(results).glob("*-same-*")
    files = {str(path.relative_to(folder)): path for path in folder.rglob("[!.]*") if path.is_file()}
    assert f"What was measured is in {folder}: " in ended.stderr and all(name in ended.stderr for name in files), ended.stderr
    return ended, files


def test_every_run_is_announced_and_its_end_tells_the_time_that_is_left() -> None:
    ended = convtwins("same", training(), training(0.5), *MOVED)
    begun = [line.removesuffix(" ...") for line in ended.progress if line.endswith(" ...")]
    ends = [_END.fullmatch(line) for line in ended.progress if not line.endswith(" ...")]
    order = [("A", None), ("B", None), *((letter, copy) for copy in "123" for letter in "AB")]
    assert [end and end.groups() for end in ends] == [(*run, left) for run, left in zip(order, [*"7654321", None], strict=True)]
    assert [re.sub(r" \(.*\)(, copy (\d) of 3)?", r"\2", line) for line in begun] == [
        "A",
        "B",
        "A1",
        "B1",
        "A2",
        "B2",
        "A3",
        "B3",
    ]


def test_the_losses_before_a_copy_that_fails_stay_and_can_be_compared() -> None:
    ended, files = failed(training(), training(0.5, failing="2"), *MOVED, code=1)
    assert "B failed (exit code 3)" in ended.stderr and "The answer without copies: another training." in ended.stderr
    copies = {f"{letter}-copy-{copy}.jsonl" for letter, copy in ("A1", "B1", "A2")}
    assert files.keys() == {"A.jsonl", "B.jsonl", *copies, "B-copy-2/losses.jsonl"}
    again = convtwins("same", str(files["A.jsonl"]), str(files["B-copy-2/losses.jsonl"]), "--json")
    difference = json.loads(again.stdout)["first_difference"]
    assert (difference["a"], difference["b"]) == (1.5, 1.5 + 0.5 + 2e-7)


def test_the_first_losses_in_a_file_that_every_run_writes_stay() -> None:
    first, second = training(failing="1", target="log.jsonl"), training(0.5, target="log.jsonl")
    _, files = failed(first, second, "--losses", "log.jsonl", *MOVED, code=1)
    assert files.keys() == {"A.jsonl", "B.jsonl"} and curves.read(files["A.jsonl"]).losses.tolist() == [1.5]


@pytest.mark.parametrize(
    ("a", "b", "options", "code", "names"),
    [
        (training(), training(0.5), ["--loss", "los"], 2, {"A/losses.jsonl"}),
        (training(), f"{sys.executable} -c 'raise SystemExit(3)'", [], 1, {"A.jsonl"}),
        (training(), printing('{"step": 1000, "loss": 1}'), [], 2, {"A.jsonl", "B.jsonl"}),
        (training(), printing("step 1: 0.5"), [], 2, {"A.jsonl", "B/output.txt"}),
        (
            printing('{"step": 1, "loss": 1}'),
            printing('{"step": 1, "loss": 2}'),
            MOVED,
            1,
            {"A.jsonl", "B.jsonl", *FIRST_COPIES},
        ),
    ],
    ids=["another column", "no losses", "no common step", "a line that is no JSON", "no hook"],
)
def test_what_was_measured_stays_whatever_fails(a: str, b: str, options: Sequence[str], code: int, names: set[str]) -> None:
    _, files = failed(a, b, *options, code=code)
    assert files.keys() == names


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (printing('{"step": 1, "loss": 1}'), []),
        (training(), []),
        (training(target="log.jsonl"), ["--losses", "log.jsonl"]),
    ],
    ids=["stdout", "{losses}", "--losses"],
)
def test_another_column_is_wrong_usage_wherever_the_losses_are(command: str, options: Sequence[str]) -> None:
    ended = convtwins("same", command, command, "--loss", "los", *options)
    assert ended.exit_code == 2 and "los" in ended.stderr and "step, loss" in ended.stderr, ended.output


def test_losses_that_are_no_golden_curve_stay() -> None:
    _, files = failed(printing('{"step": 1, "loss": NaN}'), "--golden", "golden.json", code=2)
    assert files.keys() == {"A.jsonl"} and not Path("golden.json").exists()


def test_losses_stay_in_the_folder_of_the_report_which_the_next_call_writes() -> None:
    out = ("--out", "reports/one")
    _, files = failed(training(), training(0.5, failing="0"), *out, code=1, results="reports/one")
    assert files.keys() == {"A.jsonl", "B/losses.jsonl"} and not Path("results").exists()
    assert [path.name for path in Path("reports").iterdir()] == ["one"]
    assert convtwins("same", f"{sys.executable} -c 'raise SystemExit(3)'", training(), "--out", "new/one").exit_code == 1
    assert not Path("new").exists()
    assert convtwins("same", training(), training(0.5), *out).exit_code == 1
    assert Path("reports/one/same.json").exists() and all(file.exists() for file in files.values())


def compared(*words: object) -> tuple[str, dict[str, int]]:
    """The verdict of a comparison with moved copies, and the number of copies of each side."""
    values = json.loads(convtwins("same", *words, *MOVED, "--json").stdout)
    (limit,) = (statement for statement in values["statements"] if statement["kind"] == "limit_copies")
    return values["verdict"], limit["values"]["copies"]


def test_copies_that_stayed_are_read_beside_their_file_in_the_place_of_a_command() -> None:
    ended = convtwins("same", training(), training(5e-6, failing="5"), *MOVED)
    files = {path.name: path for path in Path("results").glob("*-same-*/*.jsonl")}
    assert "The answer with 3 copies: another training." in ended.stderr and "in the place of its command" in ended.stderr
    assert compared(files["A.jsonl"], files["B.jsonl"]) == ("another training", {"A": 5, "B": 4})
    assert compared(files["A.jsonl"], training(5e-6)) == ("rounding", {"A": 5, "B": 12})
    assert convtwins("same", files["A.jsonl"], "--golden", "golden.json", *MOVED).exit_code == 1
    assert compared(training(5e-6), "--golden", "golden.json") == ("rounding", {"A": 3, "B": 12})
    values = json.loads(convtwins("same", files["B.jsonl"], "--golden", "golden.json", "--json").stdout)
    (other,) = (statement["values"] for statement in values["statements"] if statement["kind"] == "not_nudged")
    assert other == {"letter": "B", "other": "A"}


def test_a_golden_curve_that_cannot_be_written_at_last_names_what_was_measured(here: Path) -> None:
    remove = "import shutil; shutil.rmtree('stored'); open('stored', 'w').close()"
    (here / "stored").mkdir()
    (here / "last.py").write_text(f'{remove}\nprint(\'{{"step": 1, "loss": 1}}\')\n')
    ended, files = failed(f"{sys.executable} last.py", "--golden", "stored/golden.json", code=1)
    assert files.keys() == {"A.jsonl"} and "name another file" in ended.stderr.lower() and "continues" not in ended.stderr


def test_a_file_that_cannot_be_read_is_refused_before_a_command_runs() -> None:
    Path("bad.jsonl").write_text('{"step": 1}\n')
    ended = convtwins("same", training(target="ran.jsonl"), "bad.jsonl")
    assert ended.exit_code == 2 and "bad.jsonl" in ended.stderr
    assert not Path("ran.jsonl").exists() and not Path("results").exists()


@pytest.mark.parametrize("options", [(), ("--out", "reports/one")])
def test_an_answer_leaves_nothing_but_its_report(here: Path, options: tuple[str, ...]) -> None:
    before = {*here.iterdir()}
    assert convtwins("same", training(), training(0.5), *options).exit_code == 1
    assert {*here.iterdir()} - before == ({here / "reports"} if options else set())
    assert [path.name for path in here.glob("reports/*")] == ["one"] * bool(options)


def test_commands_run_where_no_results_can_be_written(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    temporary = here / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    Path("results").write_text("a file\n")
    assert convtwins("same", training(), training()).exit_code == 0 and not [*temporary.iterdir()]
    ended = convtwins("same", training(), training(0.5, failing="0"))
    (folder,) = temporary.iterdir()
    assert (
        ended.exit_code == 1 and f"What was measured is in {folder}: A.jsonl" in ended.stderr and (folder / "A.jsonl").exists()
    )
    refusal = convtwins("same", training(), training(), "--out", "results/one")
    assert refusal.exit_code == 2 and "--out" in refusal.stderr


def test_an_interruption_names_what_was_measured(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = here / "results" / "same"

    def measure() -> None:
        with runs.keeping(folder):
            curves.write(folder / "A.jsonl", Curve("a", np.array([1]), np.array([0.5])))
            raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted):
        measure()
    assert f"{folder}: A.jsonl" in capsys.readouterr().err and (folder / "A.jsonl").exists()


def test_what_a_command_printed_stays_if_it_fails_or_is_interrupted(here: Path) -> None:
    program = "import sys; print(1, flush=True); print(2, file=sys.stderr, flush=True); {}"
    (here / "fail.py").write_text(program.format("sys.exit(3)"))
    _, files = failed(f"{sys.executable} fail.py", training(), code=1)
    assert {name: file.read_text() for name, file in files.items()} == {"A/output.txt": "1\n", "A/errors.txt": "2\n"}
    wait = "open('ready', 'w').close(); import time; time.sleep(600)"
    (here / "wait.py").write_text(program.format(wait))
    words = [sys.executable, "-m", "compare", "same", f"{sys.executable} wait.py", training(), "--out", "reports/one"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not Path("ready").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stderr = process.stderr.read()
    (folder,) = Path("reports/one").glob("*-same-*")
    assert process.returncode == 128 + signal.SIGINT and f"{folder}: A/errors.txt, A/output.txt." in stderr, stderr
    assert [(folder / "A" / name).read_text() for name in ("output.txt", "errors.txt")] == ["1\n", "2\n"]


@pytest.mark.parametrize("epochs", [None, [0, 0, 1]])
@pytest.mark.parametrize("is_counted", [False, True])
def test_a_curve_is_read_as_it_was_written(epochs: list[int] | None, *, is_counted: bool) -> None:
    steps = [1, 2, 3] if is_counted else [0, 5, 7]
    known = None if epochs is None else np.array(epochs)
    curve = Curve("a", np.array(steps), np.array([0.1, np.nan, 1 / 3]), known, is_counted)
    curves.write(Path("a.jsonl"), curve)
    again = curves.read(Path("a.jsonl"))
    assert np.array_equal(again.losses, curve.losses, equal_nan=True) and again.steps.tolist() == steps
    assert again.is_counted is is_counted and (None if again.epochs is None else again.epochs.tolist()) == epochs
