"""Suites of public projects through `regress --pytest`: false alarms of the same commit, and planted slowdowns that are found.

`python -m tests.benchmarks.own_suites --out DIR [--projects cattrs,...] [--commands 20] [--repeats 5]` fetches each project's
source distribution from the package registry, and makes a git repository and an environment of it. Each command has its
own folder. A line of `figures.jsonl` tells its seconds, exit code and verdicts. Finished ones are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from common.machine.machine import PROJECT_ROOT

SLOWDOWNS = (0.05, 0.10, 0.20)
PLANTED = """

def _slower(function):
    from time import perf_counter

    def slower(*arguments, **options):
        begin = perf_counter()
        result = function(*arguments, **options)
        end = perf_counter()
        while perf_counter() < end + {slowdown} * (end - begin):
            pass
        return result

    return slower


{owner}.{function} = _slower({owner}.{function})
"""
"""Code at the end of a module. Its function then takes so much longer, besides the call of the wrapper."""


class Project(NamedTuple):
    """A public project of pure Python, and what of its suite is run."""

    name: str
    arguments: str
    packages: tuple[str, ...] = ()
    """Packages that its suite needs besides the project."""
    module: str = ""
    """Module that a slowdown is planted in. Empty: its functions are as short as the wrapper."""
    owner: str = ""
    function: str = ""
    """Method that becomes slower. All chosen benchmarks call it."""


QUICK = "-q -o addopts= -p no:cacheprovider --benchmark-max-time=0.2 --benchmark-min-time=0.000005"
PROJECTS = (
    Project(
        "cattrs", f"bench/test_attrs_collections.py {QUICK} -k test_structure", (), "src/cattrs/converters.py",
        "BaseConverter", "structure",
    ),
    Project(
        "python-statemachine", f"tests/test_profiling.py {QUICK} -k guarded_transitions", (),
        "statemachine/statemachine.py", "StateChart", "_processing_loop",
    ),
    Project("lazy-object-proxy", f"tests/test_perf.py {QUICK} -k slots"),
)  # fmt: skip


def run(*words: object, folder: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), cwd=folder, check=check, capture_output=True, text=True)


def git(folder: Path, *words: str) -> None:
    run("git", "-C", folder, "-c", "user.name=A", "-c", "user.email=a@example.org", *words)


def prepare(project: Project, folder: Path) -> tuple[Path, Path]:
    """Return the repository of a project, with a tag for each slowdown, and the interpreter of its environment."""
    repository, python = folder / project.name, folder / f"{project.name}-env" / "bin" / "python"
    if (repository / ".git" / "refs" / "tags" / "base").exists():
        return repository, python
    run(sys.executable, "-m", "pip", "download", "--no-binary", ":all:", "--no-deps", "-d", folder / "sdist", project.name)
    (archive,) = (folder / "sdist").glob(f"{project.name.replace('-', '?')}-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").glob(f"{project.name.replace('-', '?')}-*")
    unpacked.rename(repository)
    run(sys.executable, "-m", "venv", python.parent.parent)
    run(python, "-m", "pip", "install", repository, "pytest", "pytest-benchmark", *project.packages)
    git(repository, "init", "-q")
    git(repository, "add", "--force", ".")
    git(repository, "commit", "-q", "-m", "base")
    git(repository, "tag", "base")
    if not project.module:
        return repository, python
    module = repository / project.module
    code = module.read_text()
    for slowdown in SLOWDOWNS:
        module.write_text(code + PLANTED.format(slowdown=slowdown, owner=project.owner, function=project.function))
        git(repository, "commit", "-q", "-a", "-m", f"slower by {slowdown:.0%}")
        git(repository, "tag", f"slower-{100 * slowdown:.0f}")
    return repository, python


def measure(project: Project, head: str, repository: Path, python: Path, repeats: int, out: Path) -> dict[str, Any]:
    """Measure a revision of the project beside its base, and return what `regress` found."""
    git(repository, "checkout", "-q", head)
    begin = time.monotonic()
    words = ("regress", "--interleaved", "base", "--pytest", project.arguments, "--python", python, "--repeats", repeats)
    answer = subprocess.run(
        [sys.executable, "-m", "convtwins", *map(str, words), "--out", str(out), "--json"],
        cwd=repository, check=False, capture_output=True, text=True, env=_environment(),
    )  # fmt: skip
    seconds = time.monotonic() - begin
    if not answer.stdout:
        sys.exit(f"{project.name}: {answer.stderr}")
    report = json.loads(answer.stdout)
    return {
        "project": project.name,
        "head": head,
        "seconds": seconds,
        "exit_code": answer.returncode,
        "verdicts": [change["verdict"] for change in report["changes"]],
        "ratios": [[change["change"][name] for name in ("value", "low", "high", "n")] for change in report["changes"]],
        "noise": report["noise"],
    }


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--projects", default=",".join(project.name for project in PROJECTS))
    parser.add_argument("--commands", type=int, default=20, help="How often the base is measured against itself.")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(words)
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    lines = out / "figures.jsonl"
    for project in PROJECTS:
        if project.name not in options.projects.split(","):
            continue
        repository, python = prepare(project, out)
        heads = [(f"slower-{100 * slowdown:.0f}", 0) for slowdown in SLOWDOWNS if project.module]
        heads += [("base", number) for number in range(options.commands)]
        for head, number in heads:
            folder = out / "results" / f"{project.name}-{head}-{number}"
            if (folder / "regress.json").exists():
                continue
            found = measure(project, head, repository, python, options.repeats, folder)
            with lines.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
