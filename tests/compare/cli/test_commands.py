"""The frame of every command, seen through a command that a function and a line in `MODULES` add."""

from __future__ import annotations

import ast
import json
import pickle
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from common.errors import Setting
from common.spec import SpecError
from compare.__main__ import MODULES, modules, source_of
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended


@pytest.fixture(autouse=True)
def added() -> Generator[None]:
    """A made-up command, added by its line."""
    MODULES["made-up"] = "tests.compare.cli.made_up_command"
    yield
    del MODULES["made-up"]


def test_a_command_prints_its_report() -> None:
    done = convtwins("made-up").succeeded()
    assert "areas [1, 2]" in done.stdout and "computing" in done.stderr


def test_a_command_has_its_options_with_those_of_the_frame_and_stands_in_the_list() -> None:
    text = convtwins("made-up", "--help", COLUMNS="120").succeeded().stdout
    options = ["--ending", "--height", "--widths", "--out", "--json", "--full"]
    assert [text.index(option) for option in options] == sorted(text.index(option) for option in options)
    assert "default: 1,2" in text
    assert "Compute areas." in convtwins("--help").stdout


def test_a_report_is_json_on_request_and_written_to_the_folder_that_the_outcome_names(tmp_path: Path) -> None:
    values = convtwins_json("made-up", "--widths", "2,5", "--height", 2, "--ending", "well", "--out", tmp_path / "out")
    assert values["areas"] == [4, 10]
    assert json.loads((tmp_path / "out" / "areas.json").read_text())["areas"] == [4, 10]


@pytest.mark.parametrize(("ending", "code"), [("well", 0), ("badly", 3), ("unfinished", 1)])
def test_the_exit_code_is_that_of_the_report_or_of_the_work_after_it(ending: str, code: int) -> None:
    done = convtwins("made-up", "--ending", ending)
    assert done.exit_code == code and "areas" in done.stdout


def test_an_error_that_a_user_can_fix_is_one_line() -> None:
    done = convtwins("made-up", "--ending", "refused")
    check_ended(done, exit_code=2, field="--ending", received="refused", fix="well")
    assert done.stdout == ""


def test_an_error_names_the_commands_own_option_for_a_setting_and_nothing_that_the_command_lacks() -> None:
    assert convtwins("made-up", "--ending", "too-low").stderr.splitlines()[-1] == "The height is refused. Or use `--height 3`."
    assert convtwins("made-up", "--ending", "too-deep").stderr.splitlines()[-1] == "The depth is refused."
    deep = SpecError("The depth is refused.", setting=Setting("Or use", "made_up.depth", 3))
    assert str(deep) == "The depth is refused. Or use `made_up.depth=3`."
    assert str(pickle.loads(pickle.dumps(deep))) == str(deep)  # noqa: S301  as workers send it


def test_a_broken_rule_and_a_wrong_value_are_refused_before_any_work() -> None:
    broken, wrong = convtwins("made-up", "--out", "x"), convtwins("made-up", "--widths", "0")
    check_ended(broken, field="--out", received="--out x", fix="--ending")
    check_ended(wrong, field="--widths", received="'0'", fix="1,2,3")
    assert broken.stdout == wrong.stdout == ""


def test_an_interrupted_command_ends_with_its_message_and_the_code_of_the_signal() -> None:
    done = convtwins("made-up", "--ending", "interrupted")
    assert done.exit_code == 128 + signal.SIGINT and done.stdout == ""
    assert done.stderr.splitlines()[-1] == "Interrupted. Start again."


def test_an_output_that_cannot_be_written_is_exit_code_1_and_the_report_is_printed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = convtwins("made-up", "--ending", "well", "--out", tmp_path / "file")
    assert done.exit_code == 1 and "areas" in done.stdout and "cannot be written" in done.stderr


@pytest.mark.parametrize("module", modules().values())
def test_no_command_copies_the_frame(module: str) -> None:
    path = source_of(module)
    assert path is not None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "command")
    source = ast.unparse(function)
    assert not any(word in source for word in ("exit_on_error", "interruptible(", "typer.Exit", ".deliver("))
