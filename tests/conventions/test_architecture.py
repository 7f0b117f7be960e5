"""docs/architecture.md says what is: its files and names exist, each folder has its row, and tools import what it lists.

`pytest tests/conventions/test_architecture.py --snapshot-update` writes the names of the interface anew.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "architecture.md"
CORE = ("cli", "statistics", "running", "results", "judgement", "reporting", "proof", "comparison")
"""The folders of `compare` that are the core. Those of `compare/tools` are tools."""

_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_NAMED = re.compile(r"((?:`[\w.]+`(?:, | and )?)+) in \[[^\]]*\]\((\.\./[^)#\s]+\.py)\)")
"""Names and the file that has them: "`a` and `b` in [file](../file.py)"."""
_FOLDER = re.compile(r"^\| \[((?:common|compare(?:/tools)?)/\w+)\]\(\.\./\1\) \|", re.MULTILINE)
_OFFERED = re.compile(r"^(\| \[(compare/[\w/]+\.py)\]\(\.\./\2\) \| [^|]+ \| )([^|]*)( \|)$", re.MULTILINE)
"""A row of the interface: file, purpose, names."""


def defined(path: Path) -> set[str]:
    """Return the names that a file defines, those in a class as `Class.name`."""
    return _defined(ast.parse(path.read_text(encoding="utf-8")).body, "")


def _defined(body: list[ast.stmt], prefix: str) -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(prefix + node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {prefix + node.name} | _defined(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            stored = [each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
            found |= {prefix + each.id for each in stored}
    return found


def imported_by_tools(root: Path) -> dict[str, set[str]]:
    """Return what tools and plug-ins import of the core, by file: names, and attributes of modules that are imported whole."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in [*root.glob("compare/tools/**/*.py"), *root.glob("plugins/*/src/**/*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules: dict[str, str] = {}
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
                tuple(f"compare.{each}" for each in CORE)
            ):
                continue
            for alias in node.names:
                if module := _file_of(root, f"{node.module}.{alias.name}"):
                    modules[alias.asname or alias.name] = module
                else:
                    found[_file_of(root, node.module or "") or ""].add(alias.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                found[modules[node.value.id]].add(node.attr)
    # A local variable may have a module's name. Its attributes are not the module's.
    offered = {file: _offered(root / file) for file in found}
    return {file: names & offered[file] for file, names in found.items()}


def _file_of(root: Path, module: str) -> str | None:
    for file in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py"):
        if (root / file).exists():
            return file
    return None


def _offered(path: Path) -> set[str]:
    """Return the names that can be imported from a file: its own, and those that it has imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return defined(path) | {alias.asname or alias.name for node in imports for alias in node.names}


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_file_and_folder_that_the_page_links_exists() -> None:
    targets = [target for target in _LINK.findall(text()) if not re.match(r"[a-z]+:", target)]
    assert len(targets) > 100
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []


def test_every_name_beside_a_file_is_defined_in_that_file() -> None:
    named = [(name, file) for names, file in _NAMED.findall(text()) for name in re.findall(r"`([\w.]+)`", names)]
    assert len(named) > 40
    assert [f"{name} is not in {file}" for name, file in named if name not in defined(PAGE.parent / file)] == []


def test_every_folder_of_common_and_compare_has_one_row() -> None:
    there = {
        path.parent.relative_to(PROJECT).as_posix()
        for each in ("common", "compare", "compare/tools")
        for path in PROJECT.glob(f"{each}/*/*.py")
        if path.parent.name != "tools"
    }
    rows = _FOLDER.findall(text())
    assert sorted(rows) == sorted(there)


def test_the_interface_is_what_tools_import(pytestconfig: pytest.Config) -> None:
    used = imported_by_tools(PROJECT)
    if pytestconfig.getoption("update_snapshots", default=False):
        renewed = _OFFERED.sub(lambda row: f"{row[1]}{_listed(used.get(row[2], set()))}{row[4]}", text())
        PAGE.write_text(renewed, encoding="utf-8")
    rows = {file: names for _, file, names, _ in _OFFERED.findall(text())}
    assert rows.keys() == used.keys(), "Add or remove a row of the interface in docs/architecture.md."
    wrong = {file: _listed(names) for file, names in used.items() if rows[file] != _listed(names)}
    assert not wrong, "Tools import other names: pytest tests/conventions/test_architecture.py --snapshot-update writes them."


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names, key=lambda name: (name.lower(), name)))


# The checks themselves, on a small planted tree.


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    numbers = "from compare.cli.words import SHORT\nONE, TWO = 1, 2\nclass Ratio:\n    p = 0\n    def low(self): ...\n"
    tune = "from compare.cli import numbers\nfrom compare.cli.words import SHORT\nnumbers.ONE + numbers.SHORT\n"
    files = {
        "compare/cli/__init__.py": "",
        "compare/cli/numbers.py": numbers,
        "compare/cli/words.py": "SHORT = 1\n",
        "compare/cli/own.py": "from compare.cli.numbers import TWO\n",
        "compare/tools/tuning/tune.py": f"{tune}def f(numbers):\n    return numbers.nowhere\n",
        "compare/tools/doctor/doctor.py": "from compare.cli.numbers import Ratio\nimport compare.tools.tuning\n",
    }
    for name, source in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return tmp_path


def test_names_and_attributes_of_whole_modules_are_found_and_those_of_the_core_itself_are_not(planted: Path) -> None:
    assert imported_by_tools(planted) == {
        "compare/cli/numbers.py": {"ONE", "SHORT", "Ratio"},
        "compare/cli/words.py": {"SHORT"},
    }


def test_names_of_classes_and_of_several_targets_are_definitions(planted: Path) -> None:
    assert defined(planted / "compare" / "cli" / "numbers.py") == {"ONE", "TWO", "Ratio", "Ratio.p", "Ratio.low"}
