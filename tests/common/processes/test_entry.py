"""How a twin's process ends."""

import sys
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.processes import Finished

ENDING = """
import atexit, sys, threading, time
from common.processes import entry

def late():
    time.sleep(0.2)
    print("a thread")

atexit.register(print, "atexit")
threading.Thread(target=late).start()
print("main")
class Kept:
    def __del__(self):
        print("teardown")
kept = Kept()
"""


def ended(program: str, redirected: str = "") -> Finished:
    words = ["bash", "-c", f'"$0" "$@" {redirected}', sys.executable, "-c", ENDING + program]
    return processes.run(words, timeout=60, PYTHONUNBUFFERED=None)


RANK = "import os; os.environ['RANK'] = '0'; "


@pytest.mark.parametrize(
    ("program", "done"),
    [
        ("entry.exit_without_teardown(3)", ["main", "a thread", "atexit"]),
        (f"{RANK}entry.exit_without_teardown(3)", ["main", "atexit"]),
        (f"{RANK}entry.exit_without_teardown(3, ranks_too=False)", ["main", "a thread", "atexit", "teardown"]),
    ],
    ids=["a process waits for its threads and is not taken apart", "a rank waits for no thread", "a rank that others need"],
)
def test_what_a_process_still_does_at_its_end(program: str, done: list[str]) -> None:
    found = ended(program)
    assert (found.exit_code, found.stdout.splitlines()) == (3, done)


def test_a_file_that_a_users_code_leaves_open_is_written(tmp_path: Path) -> None:
    (tmp_path / "of_a_user.py").write_text(f"file = open({str(tmp_path / 'log')!r}, 'w')\nfile.write('kept')\n")
    imported = f"sys.path.insert(0, {str(tmp_path)!r}); from common.models import user_code; user_code.module('of_a_user'); "
    assert ended(f"{imported}entry.exit_without_teardown(3)").exit_code == 3
    assert (tmp_path / "log").read_text() == "kept"


@pytest.mark.parametrize("what", ["settrace", "setprofile"])
def test_under_a_debugger_or_a_profiler_a_process_ends_as_every_interpreter_does(what: str) -> None:
    watched = f"""
sys.{what}(lambda *_: None)
try:
    entry.exit_without_teardown(3)
except SystemExit as ending:
    sys.{what}(None)
    print("as ever", ending.code)
"""
    assert "as ever 3" in ended(watched).stdout


@pytest.mark.parametrize(("redirected", "code"), [(">&-", 0), (">/dev/full", 120)])
def test_an_output_that_cannot_be_written_counts_and_one_that_is_not_there_does_not(redirected: str, code: int) -> None:
    done = ended("entry.exit_without_teardown(0)", redirected)
    assert done.exit_code == code, done.stderr
