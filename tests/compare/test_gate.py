"""The gate that compares what the suite itself costs with its last release."""

from pathlib import Path

import pytest

from common.machine import machine
from tests.benchmarks import gate
from tests.benchmarks.gate import Measure, judge, refuse_other_code
from tests.support.processes import git

PRINTED = Measure("planted", "cost.py", ("cost.py",), lambda printed, _: float(printed))
SPENT = Measure("processor time", "cost.py", ("cost.py",))
UNSTEADY = "import os; n = len(os.listdir()); open(f'{n}.seen', 'w').close(); print((2, 100)[n % 2])"
BUSY = "import time\nwhile time.process_time() < {}: pass"


def sides(folder: Path, base: str | None, head: str) -> tuple[Path, Path]:
    made = folder / "base", folder / "head"
    for side, code in zip(made, (base, head), strict=True):
        side.mkdir()
        if code is not None:
            (side / "cost.py").write_text(code)
    return made


@pytest.mark.parametrize(
    ("base", "head", "code", "told"),
    [
        ("print(10)", "print(13)", 1, ["1.30 (1.30 to 1.30)", gate.SLOWER]),
        ("print(10)", "print(11)", 0, ["1.10 (1.10 to 1.10)", gate.FINE]),
        ("print(13)", "print(10)", 0, [gate.FINE]),
        ("print(10)", UNSTEADY, 5, [gate.UNKNOWN]),
        (None, "print(10)", 5, [gate.UNKNOWN, "cost.py"]),
    ],
)
def test_a_ratio_is_judged_by_its_whole_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str | None, head: str, code: int, told: list[str]
) -> None:
    assert judge([PRINTED], *sides(tmp_path, base, head)) == code
    printed = capsys.readouterr().out
    assert printed.startswith("planted: ") and all(each in printed for each in told)


def test_processor_time_that_doubles_is_slower_whatever_else_is_not(tmp_path: Path) -> None:
    made = sides(tmp_path, BUSY.format(0.06), BUSY.format(0.18))
    assert judge([PRINTED._replace(cost=lambda printed, seconds: 1.0), SPENT], *made) == 1


def test_a_measure_that_fails_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"planted: cost\.py .* 7\."):
        judge([PRINTED], *sides(tmp_path, "print(10)", "raise SystemExit(7)"))


def test_a_checkout_whose_code_is_not_the_one_that_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(machine.PROJECT_ROOT))
    with pytest.raises(SystemExit, match=str(tmp_path)):
        refuse_other_code(tmp_path)


def test_the_code_of_a_checkout_is_measured_though_python_keeps_folders_off_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    made = sides(tmp_path, "print(10)", "print(13)")
    assert judge([PRINTED._replace(words=("-m", "cost"))], *made) == 1
    for package in ("common", "compare"):
        (made[0] / package).mkdir()
        (made[0] / package / "__init__.py").touch()
    refuse_other_code(made[0])


@pytest.mark.parametrize("cost", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_measure_without_a_cost_is_no_answer(tmp_path: Path, side: int, cost: str) -> None:
    base, head = (f"print('{cost}')" if number == side else "print(10)" for number in (0, 1))
    with pytest.raises(SystemExit, match=rf"planted: .* Received: {float(cost)} in "):
        judge([PRINTED], *sides(tmp_path, base, head))


def test_a_revision_that_is_nowhere_is_an_error_and_one_that_a_shallow_clone_lacks_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, shallow = tmp_path / "whole", tmp_path / "shallow"
    git(tmp_path, "init", "--quiet", str(whole))
    for message in ("first", "second"):
        git(whole, "commit", "--quiet", "--allow-empty", "--message", message)
    first = git(whole, "rev-parse", "HEAD~1")
    git(tmp_path, "clone", "--quiet", "--depth", "1", whole.as_uri(), str(shallow))
    monkeypatch.setattr(gate, "PROJECT_ROOT", whole)
    with pytest.raises(SystemExit, match="0" * 40):
        gate.main(["0" * 40])
    monkeypatch.setattr(gate, "PROJECT_ROOT", shallow)
    assert gate.main([first]) == 5
    assert first in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([""], ["revision", "''"]),
        (["HEAD", "--pairs", "1"], ["--pairs", "2", "Received: 1."]),
        (["HEAD", "--pair", "5", "--quick"], ["--quick"]),
    ],
)
def test_wrong_usage_is_not_told_as_what_cannot_be_told(
    words: list[str], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        gate.main(words)
    told = capsys.readouterr().err
    assert ended.value.code == 2 and all(name in told for name in names)
