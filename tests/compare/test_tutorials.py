"""Every command of the tutorials runs, in the order of the page, and ends with the exit code that stands there."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from compare.results import store
from compare.running import launch
from tests.support import processes
from tests.support.command_line import convtwins
from tests.support.processes import git

PROJECT = Path(__file__).parents[2]
PAGES = sorted((PROJECT / "docs" / "tutorials").glob("*.md"))
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r" +# exit code (\d+)$")
_COPIED = (
    "common",
    "compare",
    "pytorch_impl",
    "tensorflow_impl",
    "tests",
    "docs",
    "pyproject.toml",
    "requirements.lock",
    "locks",
)


def commands(page: Path) -> list[str]:
    """The lines of the page's `bash` blocks."""
    return "".join(_BLOCK.findall(page.read_text())).splitlines()


def script(page: Path) -> str:
    """The page's commands as one script, which ends at the first that has another exit code than the page says."""
    # On a busy machine `regress` rightly says that it cannot tell.
    lines = ["set -e", 'busy() { test "$(cut -d. -f1 /proc/loadavg)" -ge "$(nproc)"; }']
    for line in commands(page):
        expected = _CODE.search(line)
        plain = _CODE.sub("", line)
        if expected is not None:
            plain = f"code=0; {plain} || code=$?; test $code -eq {expected[1]}"
        lines.append(f"{plain} || {{ test $code -eq 5 && busy; }}" if expected and expected[1] == "3" else plain)
    return "\n".join(lines)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A committed copy of the project with commands that run it."""
    root = tmp_path / "checkout"
    for name in _COPIED:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(PROJECT / name, root)
    (root / ".gitignore").write_text("__pycache__/\n.venv/\nresults/\n")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "All"]):
        git(root, *words)
    for name, words in {"python": "", "convtwins": " -m compare"}.items():
        program = root / ".venv" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{words} "$@"\n')
        program.chmod(0o755)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_tutorial_does_what_the_page_says(page: Path, checkout: Path) -> None:
    identity = {f"GIT_{who}_{what}": f"a@{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    processes.run(["bash", "-c", script(page)], folder=checkout, timeout=3600, PYTHONPATH=str(checkout), **identity).succeeded()
    named = re.findall(r"`(results/\S+\.html)`", page.read_text())
    assert named and all((checkout / path).exists() for path in named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_has_no_command_that_its_test_does_not_run(page: Path) -> None:
    text = page.read_text()
    assert len(commands(page)) > 3
    outside = _BLOCK.sub("", text)
    assert "```" not in outside and not re.search(r"^(    |\$ )\S", outside, re.MULTILINE)
    processes.run(["bash", "-n", "-c", script(page)]).succeeded()


def test_a_wrong_exit_code_on_a_page_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for said, code in (
        ("true", 0),
        ("false", 1),
        ("false    # exit code 1", 0),
        ("true    # exit code 2", 1),
        ("true    # exit code 3", 1),
    ):
        page.write_text(f"Text.\n\n```bash\n{said}\n```\n")
        assert processes.run(["bash", "-c", script(page)]).exit_code == code


def test_the_first_tutorial_runs_with_twins_that_pretend(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So that a renamed option or folder shows without the slow tests."""
    fake_twins.chdir(tmp_path)
    # Beside the fixture's two, these have the names on the page.
    fake_twins.setattr(launch, "FRAMEWORKS", {name: f"tests.compare.twins.as_{name}" for name in ("pytorch", "tensorflow")})
    for line in commands(PROJECT / "docs" / "tutorials" / "head-to-head.md"):
        _, *words = shlex.split(line)
        if words[0] == "run" and "--resume" not in words:
            words.append("--no-proof")
        if "--repeats" in words:
            place = words.index("--repeats") + 1
            words[place] = str(int(words[place]) - 4)
        convtwins(*words).succeeded()
    assert store.read_plan(Path("results/first")).settings.repeats == 4
