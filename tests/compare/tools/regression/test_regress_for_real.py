"""Revisions of the suite itself, trained for real in turn: the same one twice, and one with more work planted in a twin."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compare.tools.regression.repository import copied, git, worktrees
from tests.support.command_line import convtwins_process

TIMEOUT_SECONDS = 3600.0
PLANTED = Path("pytorch_impl/train.py")
BEFORE = "            num_correct = (logits.argmax(1) == labels).sum()\n"
EXTRA = """\
            for _ in range(3):
                model(input.scale(images, next(model.parameters()).dtype, self.scaling), *masks)
"""
"""Three more forward passes a step in one twin, whose results nobody uses."""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The working tree as the first commit of a repository, and the planted work as its second."""
    folder = copied(tmp_path / "clone")
    for what in ("before", "slower"):
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", what)
        git(folder, "tag", what)
        code = (folder / PLANTED).read_text()
        assert code.count(BEFORE) == 1
        (folder / PLANTED).write_text(code.replace(BEFORE, EXTRA + BEFORE))
    git(folder, "checkout", "-q", "--force", "slower")
    return folder


def regress(clone: Path, *words: object) -> tuple[int, dict[str, Any]]:
    done = convtwins_process("regress", "--interleaved", *words, "--json", folder=clone, timeout=TIMEOUT_SECONDS)
    assert done.stdout, done.stderr
    assert worktrees(clone) == 1
    return done.exit_code, done.json


@pytest.mark.slow
def test_work_planted_in_one_twin_is_a_regression_of_that_twin_alone(clone: Path, tmp_path: Path) -> None:
    code, found = regress(clone, "before", "--repeats", "5", "--out", tmp_path / "out")
    assert code == found["exit_code"] == 3
    slower = {change["id"]: change for change in found["changes"] if change["metric"] == "epoch_seconds"}
    (pytorch,) = (change for name, change in slower.items() if name.startswith("pytorch"))
    (tensorflow,) = (change for name, change in slower.items() if name.startswith("tensorflow"))
    assert pytorch["verdict"] == "regression" and pytorch["change"]["low"] > 1.05
    assert tensorflow["verdict"] != "regression"
    said = {(fact["what"], fact["candidate"]) for fact in found["facts"]}
    assert ("first loss in both frameworks", "agrees") in said and {what for what, _ in said} <= {
        "first loss in both frameworks",
        "test accuracy",
    }
    assert found["baseline"]["commit"] == git(clone, "rev-parse", "before")[:8]


@pytest.mark.slow
def test_a_revision_and_itself_take_turns(clone: Path, tmp_path: Path) -> None:
    settings = ("--repeats", "5", "--set", "steps=20", "--frameworks", "pytorch")
    code, found = regress(clone, "HEAD", *settings, "--out", tmp_path / "out")
    assert code == found["exit_code"] and found["paired"] and found["pairs"] == 5
    started = sorted(
        (
            json.loads(path.read_text())["started_at"],
            "base" if path.parent.name.startswith("pytorch-base-") else "head",
            path.parent.name[-2:],
        )
        for path in (tmp_path / "out").rglob("result.json")
    )
    assert [(side, pair) for _, side, pair in started] == [
        ("base", "r0"), ("head", "r0"), ("head", "r1"), ("base", "r1"), ("base", "r2"), ("head", "r2"),
        ("head", "r3"), ("base", "r3"), ("base", "r4"), ("head", "r4"),
    ]  # fmt: skip
