"""The gate that compares what the suite itself costs with its last release."""

from pathlib import Path

import pytest

from common.machine import machine
from tests.benchmarks.gate import Measure, judge, refuse_other_code

PRINTED = Measure("planted", "cost.py", ("cost.py",), lambda printed, _: float(printed))
SPENT = Measure("processor time", "cost.py", ("cost.py",))
BUSY = "import time\nwhile time.process_time() < {}: pass"


def sides(folder: Path, base: str | None, head: str) -> tuple[Path, Path]:
    made = folder / "base", folder / "head"
    for side, code in zip(made, (base, head), strict=True):
        side.mkdir()
        if code is not None:
            (side / "cost.py").write_text(code)
    return made


@pytest.mark.parametrize(
    ("base", "head", "code", "words"),
    [
        ("print(10)", "print(13)", 1, "planted: 1.30 (1.30 to 1.30) times as much, SLOWER"),
        ("print(10)", "print(11)", 0, "planted: 1.10 (1.10 to 1.10) times as much, not slower"),
        ("print(13)", "print(10)", 0, "not slower"),
        ("print(10)", "import random; print(random.choice([2, 100]))", 2, "cannot be told"),
        (None, "print(10)", 2, "planted: cannot be told, the revision has no cost.py"),
    ],
)
def test_a_ratio_is_judged_by_its_whole_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str | None, head: str, code: int, words: str
) -> None:
    assert judge([PRINTED], *sides(tmp_path, base, head)) == code
    assert words in capsys.readouterr().out


def test_processor_time_that_doubles_is_slower_whatever_else_is_not(tmp_path: Path) -> None:
    made = sides(tmp_path, BUSY.format(0.1), BUSY.format(0.3))
    assert judge([PRINTED._replace(cost=lambda printed, seconds: 1.0), SPENT], *made) == 1


def test_a_measure_that_fails_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"planted: cost\.py failed in .* with exit code 7"):
        judge([PRINTED], *sides(tmp_path, "print(10)", "raise SystemExit(7)"))


def test_a_checkout_whose_code_is_not_the_one_that_runs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(machine.PROJECT_ROOT))
    with pytest.raises(SystemExit, match="not the code of the checkout"):
        refuse_other_code(tmp_path)
