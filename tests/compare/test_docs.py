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


def renew(name: str = "renew") -> Any:
    """A script of docs, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, PROJECT / "docs" / f"{name}.py")
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
    made = renew("measurements")
    page = made.PAGE.read_text()
    names = re.findall(r"<!-- results: (.*?) -->", page)
    assert page == made.with_results(page), "run `make measurements`"
    assert {path.stem for path in made.FOLDER.glob("*")} <= {*names} <= {"example", *made.MEASURED}
    assert len(names) == len({*names})


def test_a_stored_result_is_small_names_no_folder_and_is_of_its_tables_commands() -> None:
    made = renew("measurements")
    for path in made.FOLDER.glob("*"):
        text = path.read_text()
        assert len(text) < 100_000 and not re.search(r'[" =]/(tmp|home|root|work)\b', text), path
        assert {run["command"] for run in json.loads(text)["runs"]} == {*made.MEASURED[path.stem].commands}, path


@pytest.mark.parametrize("name", renew("measurements").MEASURED)
def test_each_tables_commands_parse(name: str) -> None:
    group: Any = typer.main.get_command(app)
    for line in renew("measurements").MEASURED[name].commands:
        first, *rest = line.split()
        if "." in first:
            source = (PROJECT / f"{first.replace('.', '/')}.py").read_text()
            assert all(f'"{word}"' in source for word in ("--json", *rest) if word.startswith("--"))
        elif (command := group.get_command(None, first)) is not None:
            assert command.make_context(first, [*rest, "--json"]).params["as_json"]
        else:
            assert _GONE, line


def test_every_other_table_of_measurements_stands_below_the_command_that_printed_it() -> None:
    """Page by page: a heading of the second or third level, whose section or the one around it names the command."""
    text = re.sub(r"<!-- results.*?end of results -->", "", renew("measurements").PAGE.read_text(), flags=re.DOTALL)
    around = ""
    for section in re.split(r"^(?=##)", text, flags=re.MULTILINE)[1:]:
        around = around if section.startswith("###") else section
        if "\n|" in section:
            assert re.search(r"convtwins |bars --parts|tests\.benchmarks", section + around), section.splitlines()[0]


def kept(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """What an entry keeps of the JSON of a command."""
    return renew("measurements").MEASURED[name].kind.keep(values)


def table_of(name: str, *runs: dict[str, Any]) -> str:
    """The table that an entry makes of what was kept of its commands."""
    made = renew("measurements")
    record = {"day": "1 May 2026", "machine": "Some CPU", "cores": 2, "versions": {"torch": "1.0"}}
    record["runs"] = [{"command": "layers", "seconds": 60.0, **values} for values in runs]
    return made.measured_table(made.MEASURED[name].kind, name, record)


def test_a_changed_result_changes_its_table_and_one_without_results_stays(tmp_path: Path) -> None:
    made = renew("measurements")
    lines = [
        {"model": "net", "optimizer": "sgd", "framework": framework, "precision": "float64", "referee": "float64"}
        | {"what": what, "difference": difference, "tolerance": 1e-12}
        for framework, difference in (("left", 1e-15), ("right", 3e-15))
        for what in ("losses", "last weights", "gradients of the first step")
    ]
    run = {"command": "parity", "seconds": 60.0, "lines": lines}
    record = {"day": "1 May 2026", "machine": "Some CPU", "cores": 2, "versions": {}, "runs": [run]}
    (tmp_path / "referee.json").write_text(json.dumps(record))
    page = "before\n<!-- results: referee -->\nold\n<!-- end of results -->\nbehind\n"
    renewed = made.with_results(page, tmp_path)
    assert renewed.count("3.0e-15 (1e-12)") == 3 and "1.0e-15" not in renewed and "6 of 6" in renewed and "old" not in renewed
    assert "From docs/measured/referee.json: 2 cores of Some CPU, 1 May 2026, in 60 s." in renewed
    assert made.with_results(page.replace("referee", "modes"), tmp_path) == page.replace("referee", "modes")
    with pytest.raises(KeyError, match="unknown"):
        made.with_results(page.replace("referee", "unknown"), tmp_path)


def test_tables_of_comparisons_have_times_verdicts_and_doubts() -> None:
    made = renew("measurements")
    run = kept("modes", made.comparison_values(made.EXAMPLE)[0])
    pytorch, tensorflow = run["rows"]
    assert len(json.dumps(run)) < 3000
    paces = [f"{row['images_per_second']['median']:,.0f}" for row in run["rows"]]
    assert f"| serial, 1 core | {paces[0]} | - | {paces[1]} | - |" in table_of("modes", run)
    assert "doubt" not in table_of("modes", run)
    doubted = run | {"rows": [pytorch | {"doubt": "too_short"}, tensorflow]}
    assert "pytorch serial, 1 core (too short)" in table_of("modes", doubted)
    both = f"{paces[0]} | {paces[1]}"
    assert f"| inline | {both} | {both} |" in table_of("input", run, run | {"data": "others"})
    (judged,) = run["verdicts"]
    answered = table_of("verdict", run, run | {"verdicts": [judged | {"verdict": "no difference shown"}]})
    assert "1 of 2 questions were decided, all of them in 1 of 2 runs." in answered and ", open" in answered
    assert "0 of 1" in table_of("verdict", run | {"verdicts": [judged | {"disturbed": True}]})
    assert judged["name"].startswith(f"{pytorch['id']} against ")
    is_faster = pytorch["seconds"]["median"] < tensorflow["seconds"]["median"]
    assert (judged["ratio"]["value"] > 1) is is_faster and "above 1 the first is faster" in answered


def test_what_keras_costs_is_seconds_over_those_of_the_framework_below_it() -> None:
    spread = {"median": 0.5, "low": 0.5, "high": 0.5, "n": 5}
    row = {"configuration": "serial", "seconds": spread, "accuracy": spread, "repeats": 5, "doubt": None}
    names = ("pytorch", "keras-torch", "tensorflow", "keras-tensorflow", "jax", "keras-jax")
    rows = [row | {"id": name, "contestant": name} for name in names]
    ratio = {"low": 1.9, "high": 2.1, "n": 5, "value": 2.0}
    verdicts = [
        {"name": "pytorch against keras-torch", "ratio": ratio, "disturbed": False},
        {"name": "keras-tensorflow against tensorflow", "ratio": ratio, "disturbed": False},
    ]
    run = {"model": "net", "rows": rows, "verdicts": verdicts}
    table = table_of("keras", run)
    assert "| net | pytorch | 0.500 | 0.500 | 2.00 (1.90 to 2.10) | 0.5000 | 0.5000 |" in table
    assert "| net | tensorflow | 0.500 | 0.500 | 0.50 (0.48 to 0.53) | 0.5000 | 0.5000 |" in table
    assert "| net | jax | 0.500 | 0.500 | - |" in table  # these two were not compared
    verdicts.append({"name": "jax against keras-jax", "ratio": ratio, "disturbed": False})
    assert "| net | jax | 0.500 | 0.500 | 2.00 (1.90 to 2.10) | 0.5000 | 0.5000 |" in table_of("keras-jax", run)
    verdicts[0]["disturbed"] = True
    assert "| disturbed |" in table_of("keras", run)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("OLD", "/old"),
        ("jax=jax@keras-jax", "jax=jax@/env"),
        ("keras-jax=keras-jax@keras-jax", "keras-jax=keras-jax@/env"),
        ("keras-jax=keras-jax@other", "keras-jax=keras-jax@other"),
        ("pytorch,keras-jax", "pytorch,keras-jax"),
        ("--no-proof", "--no-proof"),
    ],
)
def test_a_word_of_a_command_stands_for_an_environment_alone_or_behind_its_contestant(word: str, meant: str) -> None:
    assert renew("measurements").placed(word, {"OLD": "/old", "keras-jax": "/env"}) == meant


def test_tables_of_tools_hold_what_their_json_says() -> None:
    ratio = {"value": 1.5, "low": 1.4, "high": 1.6, "n": 6}
    change = {"name": "row", "metric": "epoch_seconds", "change": ratio, "verdict": "regression", "not_ruled_out": False}
    sides = {side: {"versions": {"torch": number, "python": "3"}} for side, number in (("baseline", "1"), ("candidate", "2"))}
    table = table_of("environments", kept("environments", {**sides, "changes": [change | {"baseline": "left out"}]}))
    assert "| torch 1, 2 | 1.50 (1.40 to 1.60) |" in table and "Regressions: 1 of 1 figures" in table
    unknown = change | {"verdict": "not judged", "metric": "peak_memory_mib"}
    table = table_of("environments", kept("environments", {**sides, "changes": [change, unknown]}))
    assert "Regressions: 1 of 1 figures." in table and "Not judged: 1." in table and "| not judged |" in table
    check = {"where": "pytorch", "what": "equal runs", "found": "2 %", "required": "at most 7 %", "passed": True}
    simulated = check | {"where": "simulated", "what": "left out"}
    table = table_of("pairs", kept("pairs", {"checks": [simulated, check], "sentences": ["Noise is 1 %."]}))
    assert "| equal runs | 2 % | at most 7 % |" in table and "1 of 1 checks passed. Noise is 1 %." in table
    assert "left out" not in table
    spread = {"median": 20.0, "low": 19.0, "high": 21.0, "n": 3}
    layer = {"layers": "ReLU", "number": 3, "limit_ms": 10.0, "bound": "memory", "left_ms": spread, "left_times": 2.0}
    stored = {"tables": [{"name": "layers"}, {"name": "layer-kinds", "rows": [layer], "note": "Said."}]}
    assert "| 3 ReLU | 10.0 | memory | 20.0 (19.0 to 21.0) | 2.0 |" in table_of("layers", kept("layers", stored))
    scan = {"engine": "dask", "workers": 2, "images_per_second": 4321.0, "peak_memory_mib": 80.2, "status": "ok"}
    table = table_of("preprocess", kept("preprocess", {"rows": [scan], "tables": [{"note": "Disturbed."}]}))
    assert "| 2 | 4,321 | 80 |" in table and "Disturbed. From" in table
    errors = {"median_error": 0.1, "worst_error": 0.3, "median_memory_error": None, "worst_memory_error": None}
    accuracy = errors | {"n": 12, "best_found": {"left": True, "right": False}}
    table = table_of("plan", kept("plan", {"spec": {"model": "net"}, "accuracy": accuracy}))
    assert "| net | 12 | 10 % | 30 % | - | - | in 1 of 2 frameworks |" in table
    step = {"name": "allocator", "ratio": ratio, "loss_drift": 0.01, "status": "measured", "taken": True, "in_doubt": 0}
    equal = step | {"name": "threads", "ratio": ratio | {"low": 0.9}}
    ladders = kept("switches", {"frameworks": {"left": {"ladder": [step | {"name": "usual"}, step, equal]}}})
    assert "| threads" not in table_of("switches", ladders) and "is shown: threads." in table_of("switches", ladders)
    assert "| allocator | 1.50 (1.40 to 1.60), best | 1.0e-02 |" in table_of("switches", ladders)
    bar = {"framework": "left", "what": "the loop", "measured": "13 us", "bar": "at most 50", "met": "yes"}
    assert "| the loop | 13 us | at most 50: yes |" in table_of("suite", kept("suite", {"bars": [bar]}))
    rung = {"model": "net", "optimizer": "sgd", "mode": None, "status": "passed", "of_terms": {}}
    rung |= {"max_relative_difference": 1e-15}
    failed = rung | {"mode": "pipeline", "status": "failed", "of_terms": {"bias": 0.1}, "max_relative_difference": None}
    later = rung | {"mode": "pipeline"}  # a finite difference leaves an infinite one the largest
    table = table_of("steps", kept("steps", {"rungs": [rung, rung | {"max_relative_difference": 2e-15}, failed, later]}))
    assert "| serial | 2.0e-15 |" in table and "| pipeline | infinite \\*, failed |" in table and "3 of 4 comparisons" in table


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
