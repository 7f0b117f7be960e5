"""Suites of public projects through `regress --pytest` and other tools: false alarms, and planted slowdowns that are found.

`python -m tests.benchmarks.own_suites --out DIR [--projects cattrs,...] [--tools regress,asv,...] [--commands 20]` fetches each
project's source distribution from the package registry, and makes a git repository and an environment of it. Each command
has its own folder. A line of `figures.jsonl` tells its seconds, its exit code and what it said. Finished ones are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import textwrap
import time
from collections.abc import Mapping, Sequence
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
    calls: tuple[str, ...] = ()
    """The chosen benchmarks as calls, for tools that do not run pytest-benchmark."""


QUICK = "-q -o addopts= -p no:cacheprovider --benchmark-max-time=0.2 --benchmark-min-time=0.000005"
PROJECTS = (
    Project(
        "cattrs", f"bench/test_attrs_collections.py {QUICK} -k test_structure", (), "src/cattrs/converters.py",
        "BaseConverter", "structure",
        tuple(f"suite.test_structure_attrs_mappings(benchmark, suite.{name})" for name in ("BaseConverter", "Converter")),
    ),
    Project(
        "python-statemachine", f"tests/test_profiling.py {QUICK} -k guarded_transitions", (),
        "statemachine/statemachine.py", "StateChart", "_processing_loop",
        ("suite.TestEventPerformance().test_guarded_transitions(benchmark)",),
    ),
    Project("lazy-object-proxy", f"tests/test_perf.py {QUICK} -k slots"),
)  # fmt: skip

CAUGHT = """
import functools
import importlib.util

class Benchmark:
    def __call__(self, function, *arguments):
        self.call = functools.partial(function, *arguments)

    def pedantic(self, function, args=(), **options):
        self(function, *args)

spec = importlib.util.spec_from_file_location("suite", {file!r})
suite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(suite)
benchmark = Benchmark()
{call}
call = benchmark.call
"""
"""Code that makes `call` what a test of pytest-benchmark hands to its fixture."""

PINS = {"asv": ("asv==0.6.6", "virtualenv==21.15.7"), "pytest-perf": ("pytest-perf==1.0.0", "pytest==9.2.0")}
SAID = {
    "benchmark-compare": r"^.*has failed.*",
    "asv": r"^\| .*time_call.*|^.*SIGNIFICANTLY.*|^.*PERFORMANCE.*",
    "pytest-perf": r"^suite_.*%\)$",
}
"""Lines of a tool's output that are its verdicts."""


def run(
    *words: object, folder: Path | None = None, check: bool = True, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), cwd=folder, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )


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
    git(repository, "commit", "-q", "--allow-empty", "-m", "same")
    git(repository, "tag", "same")
    if not project.module:
        return repository, python
    module = repository / project.module
    code = module.read_text()
    for slowdown in SLOWDOWNS:
        module.write_text(code + PLANTED.format(slowdown=slowdown, owner=project.owner, function=project.function))
        git(repository, "commit", "-q", "-a", "-m", f"slower by {slowdown:.0%}")
        git(repository, "tag", f"slower-{100 * slowdown:.0f}")
    return repository, python


class HeadBesideBase(NamedTuple):
    """What one command measures, and where."""

    project: Project
    head: str
    repository: Path
    python: Path
    common: Path
    """Folder of all commands."""
    folder: Path
    """Folder of this one."""


def regress(work: HeadBesideBase, repeats: int) -> dict[str, Any]:
    """Measure with this suite, and return what its report says."""
    git(work.repository, "checkout", "-q", work.head)
    words = ("--interleaved", "base", "--pytest", work.project.arguments, "--python", work.python, "--repeats", repeats)
    answer = subprocess.run(
        [sys.executable, "-m", "convtwins", "regress", *map(str, words), "--out", str(work.folder), "--json"],
        cwd=work.repository, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
    )  # fmt: skip
    if not answer.stdout:
        sys.exit(f"{work.project.name}: {answer.stderr}")
    report = json.loads(answer.stdout)
    return {
        "exit_code": answer.returncode,
        "verdicts": [change["verdict"] for change in report["changes"]],
        "ratios": [[change["change"][name] for name in ("value", "low", "high", "n")] for change in report["changes"]],
        "noise": report["noise"],
    }


def other_tool(tool: str, work: HeadBesideBase) -> dict[str, Any]:
    """Measure with another tool, and return its exit code and the lines of its verdict."""
    work.folder.mkdir(parents=True, exist_ok=True)
    # Builds look for a version, and the repository has none.
    env = {**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION": "1"}
    answer = {"benchmark-compare": _benchmark_compare, "asv": _asv, "pytest-perf": _pytest_perf}[tool](work, env)
    (work.folder / "output.txt").write_text(answer.stdout)
    return {"exit_code": answer.returncode, "said": re.findall(SAID[tool], answer.stdout, re.MULTILINE)}


def _benchmark_compare(work: HeadBesideBase, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Store a file of the base, and let pytest-benchmark itself compare the head with it."""
    env["PYTHONPATH"] = f"{work.repository / 'src'}:{work.repository}"
    words = [work.python, "-m", "pytest", *shlex.split(work.project.arguments), "--benchmark-autosave"]
    words.append(f"--benchmark-storage=file://{work.folder}")
    git(work.repository, "checkout", "-q", "base")
    run(*words, folder=work.repository, env=env)
    git(work.repository, "checkout", "-q", work.head)
    words += ["--benchmark-compare", "--benchmark-compare-fail=median:5%"]
    return run(*words, folder=work.repository, env=env, check=False)


def _asv(work: HeadBesideBase, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Let `asv continuous` install both revisions in turn. Each commit has one result, so the base needs a second commit."""
    python = _installed("asv", work)
    env["HOME"] = str(work.common)  # asv keeps the description of this machine there
    settings = {
        "version": 1,
        "project": work.project.name,
        "repo": str(work.repository),
        "branches": ["base"],
        "environment_type": "virtualenv",
        "pythons": [f"{sys.version_info.major}.{sys.version_info.minor}"],
        "matrix": {"req": {"pytest": [""]}},
        "build_command": ["python -m pip wheel --no-deps -w {build_cache_dir} {build_dir}"],
        "env_dir": str(work.common / f"{work.project.name}-asv"),
    }
    (work.folder / "asv.conf.json").write_text(json.dumps(settings))
    (work.folder / "benchmarks").mkdir(exist_ok=True)
    (work.folder / "benchmarks" / "__init__.py").touch()
    for number, code in enumerate(_caught(work)):
        (work.folder / "benchmarks" / f"suite_{number}.py").write_text(f"{code}\ndef time_call():\n    call()\n")
    run(python, "-m", "asv", "machine", "--yes", folder=work.folder, env=env)
    head = "same" if work.head == "base" else work.head
    return run(python, "-m", "asv", "continuous", "--factor", "1.05", "base", head, folder=work.folder, env=env, check=False)


def _pytest_perf(work: HeadBesideBase, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Let pytest-perf install both revisions, and time each once. It prints the growth, and judges nothing."""
    python = _installed("pytest-perf", work)
    for number, code in enumerate(_caught(work)):
        body = textwrap.indent(f'"suite {number}"{code}# end warmup\ncall()\n', "    ")
        head = "from pytest_perf.deco import control\n\n\n@control('base')\ndef call_perf():\n"
        (work.folder / f"suite_{number}.py").write_text(head + body)
    git(work.repository, "checkout", "-q", work.head)
    # It takes the base from `origin`, and pip accepts no address of a file there.
    git(work.repository, "config", "remote.origin.url", f"example.invalid:x/{work.project.name}")
    env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_VALUE_0": "ssh://example.invalid/x/"}
    env["GIT_CONFIG_KEY_0"] = f"url.file://{work.common}/.insteadOf"
    words = ("-m", "pytest", *sorted(work.folder.glob("suite_*.py")), "--rootdir", work.folder)
    return run(python, *words, folder=work.repository, env=env, check=False)


def _caught(work: HeadBesideBase) -> list[str]:
    file = str(work.repository / work.project.arguments.split()[0])
    return [CAUGHT.format(file=file, call=call) for call in work.project.calls]


def _installed(tool: str, work: HeadBesideBase) -> Path:
    """Return the interpreter of an environment of the tool's own."""
    python = work.common / f"{tool}-env" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", python.parent.parent)
        run(python, "-m", "pip", "install", *PINS[tool])
    return python


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--projects", default=",".join(project.name for project in PROJECTS))
    parser.add_argument("--tools", default="regress", help=f"Of: regress, {', '.join(SAID)}.")
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
        for head, number, tool in [(*revision, tool) for revision in heads for tool in options.tools.split(",")]:
            folder = out / "results" / tool / f"{project.name}-{head}-{number}"
            finished = (folder / "regress.json").exists() or (folder / "output.txt").exists()
            if finished or (tool in PINS and not project.calls):
                continue
            work = HeadBesideBase(project, head, repository, python, out, folder)
            begin = time.monotonic()
            answer = regress(work, options.repeats) if tool == "regress" else other_tool(tool, work)
            facts = {"tool": tool, "project": project.name, "head": head, "seconds": time.monotonic() - begin, **answer}
            with lines.open("a") as file:
                file.write(json.dumps(facts) + "\n")
            print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
