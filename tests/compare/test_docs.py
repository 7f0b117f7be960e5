"""The pages say what is: links lead somewhere, commands and tests exist, and what is quoted of a report is in it."""

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from compare.__main__ import app
from tests.support import processes

PROJECT = Path(__file__).parents[2]
PAGES = sorted(
    [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *(PROJECT / "docs").glob("**/*.md"), *PROJECT.glob("plugins/**/*.md")]
)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_TESTS = {
    name
    for path in (*PROJECT.glob("tests/**/*.py"), *PROJECT.glob("plugins/**/*.py"))
    for name in re.findall(r"def (test_\w+)", path.read_text())
}


_TOOLS = {
    name
    for line in re.findall(r"one folder for each tool: ([\w,\s]*?)\n  comparison", (PROJECT / "CONTRIBUTING.md").read_text())
    for name in re.findall(r"\w+", line)
}
_GONE = _TOOLS - {path.parent.name for path in PROJECT.glob("compare/tools/*/__init__.py")}
"""Tools that were taken away. Pages still name their files, tests and commands."""


def renew() -> Any:
    """docs/renew.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("renew", PROJECT / "docs" / "renew.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere_and_named_tests_exist(page: Path) -> None:
    text = _CODE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = page.parent / path if path else page
        if _GONE & {*there.parts}:
            continue
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target
    for name in re.findall(r"`(test_\w+)`", text) if not _GONE else ():
        assert (
            name in _TESTS or list(PROJECT.glob(f"tests/**/{name}.py")) or list(PROJECT.glob(f"plugins/*/tests/**/{name}.py"))
        ), name


def test_the_folders_of_all_tools_are_listed() -> None:
    assert len(_TOOLS) > 10 and {path.parent.name for path in PROJECT.glob("compare/tools/*/__init__.py")} <= _TOOLS


def slow_tests() -> set[str]:
    """Names of the tests that run with `make test-all` alone, whatever their parameters."""
    found: set[str] = set()
    for path in (*PROJECT.glob("tests/**/test_*.py"), *PROJECT.glob("plugins/*/tests/**/test_*.py")):
        tree = ast.parse(path.read_text())
        whole = any(isinstance(node, ast.Assign) and "pytestmark = pytest.mark.slow" in ast.unparse(node) for node in tree.body)
        found |= {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and (whole or "pytest.mark.slow" in map(ast.unparse, node.decorator_list))
        }
    return found


def test_slow_tests_are_called_so_where_a_test_is_named_as_evidence() -> None:
    slow = slow_tests()
    assert len(slow) > 20
    named = re.findall(r"`(\w*\.*_\w+)`( \(\*slow\*)?", (PROJECT / "docs" / "prove-us-wrong.md").read_text())
    tests = [(name, bool(said)) for name, said in named if name in _TESTS or name.startswith("...")]
    assert len(tests) > 60
    wrong = {name for name, said in tests if said != any(each.endswith(name.removeprefix("...")) for each in slow)}
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_commands_exist_with_their_options(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    for line in re.findall(r"(?<![\w/.-])(?:\.venv/bin/)?convtwins +([a-z][^`|#&>\n]+)", page.read_text()):
        first, *rest = shlex.split(line.replace("\\", "").replace("'", " "))
        command = group.get_command(None, first)
        if command is None:  # a word of a sentence
            assert _GONE or not any(word.startswith("--") for word in rest), line
            continue
        if hasattr(command, "commands"):
            command = command.commands[rest[0]] if rest and rest[0] in command.commands else command
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
        used = {word.partition("=")[0] for word in rest if word.startswith("--") and "<" not in word}
        assert used <= known, f"{line}: {used - known}"


def test_the_page_that_reads_a_report_quotes_the_report_of_today(tmp_path: Path) -> None:
    made = renew()
    page = made.PAGE.read_text()
    assert page == made.renewed(page, made.report(made.EXAMPLE, tmp_path / "report")), "run `make example`"
    assert made.stale(page) == set(), "numbers in sentences that no block holds"


def test_a_stale_number_and_a_missing_section_are_named() -> None:
    made = renew()
    page = "It takes 1.52 s.\n\n```\nSpeed-up\nold 1.53\n```\n"
    assert made.stale(page) == {"1.52"}
    assert made.renewed(page, "of all\n\nSpeed-up\nnew 1.52   \n\nReport: here\n") == page.replace("old 1.53", "new 1.52")
    with pytest.raises(KeyError, match="Speed-up"):
        made.renewed(page, "of all\n\nAccuracy\n")


def test_tables_of_stored_results_are_what_these_make_today() -> None:
    made = renew()
    page = made.MEASUREMENTS.read_text()
    names = re.findall(r"<!-- results: (.*?) -->", page)
    assert page == made.with_results(page), "run `make measurements`"
    assert {f"{name}.json" for name in names} - {"example.json"} == {path.name for path in made.MEASURED_FOLDER.glob("*")}
    assert {*names} - {"example"} <= {*made.MEASURED}


def test_every_other_table_of_measurements_stands_below_the_command_that_printed_it() -> None:
    """Page by page: a heading of the second or third level, whose section or the one around it names the command."""
    text = re.sub(r"<!-- results.*?end of results -->", "", renew().MEASUREMENTS.read_text(), flags=re.DOTALL)
    around = ""
    for section in re.split(r"^(?=##)", text, flags=re.MULTILINE)[1:]:
        around = around if section.startswith("###") else section
        if "\n|" in section:
            assert re.search(r"convtwins |bars --parts|tests\.benchmarks", section + around), section.splitlines()[0]


def test_a_changed_result_changes_its_table(tmp_path: Path) -> None:
    made = renew()
    lines = [
        {"model": "net", "optimizer": "sgd", "framework": framework, "precision": "float64", "referee": "float64"}
        | {"what": what, "difference": difference, "tolerance": 1e-12}
        for framework, difference in (("left", 1e-15), ("right", 3e-15))
        for what in ("losses", "last weights", "gradients of the first step")
    ]
    record = {"command": ["parity"], "day": "1 May 2026", "machine": "Some CPU", "cores": 2, "versions": {}, "lines": lines}
    (tmp_path / "referee.json").write_text(json.dumps(record))
    page = "before\n<!-- results: referee -->\nold\n<!-- end of results -->\nbehind\n"
    renewed = made.with_results(page, tmp_path)
    assert renewed.count("3.0e-15 (1e-12)") == 3 and "1.0e-15" not in renewed and "6 of 6" in renewed and "old" not in renewed
    with pytest.raises(FileNotFoundError):
        made.with_results(page.replace("referee", "unknown"), tmp_path)


@pytest.mark.slow
def test_the_site_is_built_and_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    mkdocs = shutil.which("mkdocs", path=f"{PROJECT / '.venv-docs' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if mkdocs is None:
        pytest.skip("mkdocs is not installed: `make docs` installs it")
    shutil.copytree(PROJECT / "docs", tmp_path / "docs")
    for name in ("mkdocs.yml", "compare", "common", "plugins", ".venv"):
        (tmp_path / name).symlink_to(PROJECT / name)
    command = [mkdocs, "build", "--site-dir", tmp_path / "site"]
    processes.run(command, folder=tmp_path).succeeded()
    for made in ("reference/commands/index.html", "reference/python/index.html", "example/report.html"):
        assert (tmp_path / "site" / made).stat().st_size > 10_000
    with (tmp_path / "docs" / "clock.md").open("a") as page:
        page.write("\n[nowhere](nowhere.md)\n")
    done = processes.run(command, folder=tmp_path)
    assert done.exit_code == 1 and "nowhere.md" in done.stderr


def test_the_citation_names_this_version() -> None:
    cited = yaml.safe_load((PROJECT / "CITATION.cff").read_text())
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
