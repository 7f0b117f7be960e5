"""A small file that would expand to gigabytes costs a command little time and memory, and ends it with a sentence."""

import sys
from pathlib import Path

import pytest

from common.errors import UserError
from tests.common.spec.test_plain_values import ALIASES
from tests.support import processes
from tests.support.command_line import here
from tests.support.refusals import check

CPU_SECONDS = 5
MAX_MIB = 512
DEEP = "[" * 5000
HEXADECIMAL = f"0x{'f' * 5000}"

MEASURED = """
import resource, subprocess, sys
limit, command = int(sys.argv[1]), sys.argv[2:]
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Runs a command from a small process: a child's highest memory is at least that of the process that started it."""


def run(*words: str | Path) -> tuple[int, str]:
    """Exit code and stderr of a command that may use so much and no more."""
    command = [sys.executable, "-m", "compare", *words]
    done = processes.python("-S", "-c", MEASURED, CPU_SECONDS, *command).succeeded()
    code, highest = map(int, done.stdout.split())
    assert highest / 1024 < MAX_MIB
    return code, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in KiB on Linux alone")
def test_a_bomb_for_a_spec_is_refused_at_little_cost(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(ALIASES)
    code, said = run("run", "--spec", path, "--out", tmp_path / "out")
    assert code == 2
    check(UserError(said), names=[path, "yaml"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    here(
        ("study", "{bomb}"),
        ("reproduce", "{bomb}"),
        ("tune", "--space", "{bomb}"),
        ("evaluate", "--tuned", "{bomb}"),
        ("run", "--set", f"framework_options.x={ALIASES}"),
        ("run", "--set", f"epochs={DEEP}"),
        ("run", "--set", f"epochs={HEXADECIMAL}"),
        ("run", "--set", "optimizer=!!timestamp 2001-99-99"),
        ("run", "--set", f"{'x.' * 5000}y=1"),
        ("run", "--seeds", "9" * 5000),
        ("parity", "--set", f"epochs={DEEP}"),
    ),
    ids=lambda words: " ".join(words)[:40],
)
def test_bombs_elsewhere_are_refused_at_little_cost(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(ALIASES)
    code, said = run(*(str(path) if word == "{bomb}" else word for word in words), "--out", tmp_path / "out")
    assert code == 2 and "Traceback" not in said and len(said) < 1000
