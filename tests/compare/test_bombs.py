"""A small file that would expand to gigabytes costs a command little time and memory, and ends it with a sentence."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from compare.execution import launch
from tests.common.spec.test_plain_values import ALIASES, CHAIN, LONG_WORD, MERGES

CPU_SECONDS = 5
MAX_MIB = 512
DEEP = "[" * 5000
HEXADECIMAL = f"0x{'f' * 5000}"
WORD = "x" * 1000


def run(*words: str | Path) -> tuple[int, str]:
    """Exit code and stderr of a command that may use so much and no more."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))

    command = [sys.executable, "-m", "compare", *map(str, words)]
    process = subprocess.Popen(
        command, cwd=launch.PROJECT_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=limited
    )
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert used.ru_maxrss / 1024 < MAX_MIB
    return process.returncode, said


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in KiB on Linux alone")
@pytest.mark.parametrize("content", [ALIASES, MERGES, LONG_WORD, CHAIN], ids=["aliases", "merges", "a long word", "a chain"])
def test_a_bomb_for_a_spec_is_refused_at_little_cost(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(content)
    code, said = run("run", "--spec", path, "--out", tmp_path / "out")
    assert code == 2 and said.startswith(f"spec file {path} is not valid yaml: it ") and said.endswith(". Mend the file.\n")


@pytest.mark.parametrize(
    "words",
    [
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
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_bombs_elsewhere_are_refused_at_little_cost(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(ALIASES)
    code, said = run(*(str(path) if word == "{bomb}" else word for word in words), "--out", tmp_path / "out")
    assert code == 2 and "Traceback" not in said and len(said) < 1000
