"""The five paths of the README: each page begins with a command, and its `bash` blocks end with the exit codes on the page."""

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
PAGES = [PROJECT / "docs" / f"{name}.md" for name in ("reading-a-report", "reproduce", "match", "regressions", "architecture")]
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r" +# exit code (\d+)(?:, (\d+))?$")
_COPIED = (
    "common",
    "compare",
    "pytorch_impl",
    "tensorflow_impl",
    "tests",
    "docs",
    "studies",
    "plugins",
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
            allowed = " -o ".join(f"$code -eq {code}" for code in expected.groups() if code)
            plain = f"code=0; {plain} || code=$?; test {allowed}"
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
    git(root, "commit", "--quiet", "--allow-empty", "-m", "Nothing")
    for name, words in {"python": "", "convtwins": " -m compare"}.items():
        program = root / ".venv" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{words} "$@"\n')
        program.chmod(0o755)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_path_does_what_the_page_says(page: Path, checkout: Path) -> None:
    identity = {f"GIT_{who}_{what}": f"a@{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    processes.run(["bash", "-c", script(page)], folder=checkout, timeout=3600, PYTHONPATH=str(checkout), **identity).succeeded()
    named = re.findall(r"`(results/\S+\.html)`", page.read_text())
    assert named and all((checkout / path).exists() for path in named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_path_begins_with_a_command_and_the_readme_leads_to_it(page: Path) -> None:
    first = page.read_text().partition("\n## ")[0]
    assert first.index("```bash\n") < 600 and len(commands(page)) > 3
    assert not _BLOCK.sub("", page.read_text().partition("\n## ")[2]).count("```bash")
    assert f"(docs/{page.name})" in (PROJECT / "README.md").read_text().partition("\n## Commands")[0]
    processes.run(["bash", "-n", "-c", script(page)]).succeeded()


def test_a_wrong_exit_code_on_a_page_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for said, code in (
        ("true", 0),
        ("false", 1),
        ("false    # exit code 1", 0),
        ("true    # exit code 2", 1),
        ("true    # exit code 3", 1),
        ("true    # exit code 0, 5", 0),
        ("exit 5    # exit code 0, 5", 5),
        ("sh -c 'exit 5'    # exit code 0, 5", 0),
    ):
        page.write_text(f"Text.\n\n```bash\n{said}\n```\n")
        assert processes.run(["bash", "-c", script(page)]).exit_code == code


def test_the_first_path_runs_with_twins_that_pretend(fake_twins: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """So that a renamed option or folder shows without the slow tests."""
    fake_twins.chdir(tmp_path)
    # Beside the fixture's two, these have the names on the page.
    fake_twins.setattr(launch, "FRAMEWORKS", {name: f"tests.compare.twins.as_{name}" for name in ("pytorch", "tensorflow")})
    for line in commands(PROJECT / "docs" / "reading-a-report.md"):
        program, *words = shlex.split(line)
        if program == "cp":
            shutil.copytree(PROJECT / words[1], words[2])
            continue
        if words[0] == "run" and "--resume" not in words:
            words.append("--no-proof")
        if "--repeats" in words:
            place = words.index("--repeats") + 1
            words[place] = str(int(words[place]) - 4)
        convtwins(*words).succeeded()
    assert store.read_plan(Path("results/first")).settings.repeats == 2
