"""The suite as an installed package: what the wheel holds, and that it works far from its checkout."""

import json
import os
import shutil
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from common.errors import UserError
from tests.support import comparisons, processes
from tests.support.refusals import check

PROJECT = Path(__file__).parents[2]
SUITE = ("common", "compare", "pytorch_impl", "tensorflow_impl")
LAUNCHER = "convtwins"
SHIPPED = (*SUITE, LAUNCHER, "locks")
PLUGIN = "plugins/hangs"
BUILT_WITH = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
VERSION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


class Checkout(NamedTuple):
    root: Path
    commit: str


def done(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a command prints. It must succeed."""
    dropped = {name: None for name in os.environ if name.startswith(("GIT_", "PYTHONPATH", "COLUMNS"))}
    return processes.run(command, folder=cwd, timeout=1800, **dropped | environment).succeeded().stdout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A committed copy of what is built, so that building leaves nothing in the real one."""
    root = tmp_path_factory.mktemp("checkout")
    for package in SHIPPED:
        shutil.copytree(PROJECT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILT_WITH:
        shutil.copy(PROJECT / name, root)
    shutil.copytree(PROJECT / PLUGIN, root / PLUGIN, ignore=shutil.ignore_patterns("__pycache__", "tests", "research", "build"))
    (root / ".gitignore").write_text("__pycache__/\nbuild/\n*.egg-info/\n")
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "All"]):
        processes.git(root, *words)
    (root / "compare" / "notes.txt").write_text("Nobody committed this.\n")
    return Checkout(root, done("git", "rev-parse", "HEAD", cwd=root).strip())


def built(what: str, root: Path, out: Path) -> Path:
    """Build a wheel or a source distribution with the setuptools of this environment, as `make setup` does."""
    out.mkdir(exist_ok=True)
    done(sys.executable, "-c", f"from setuptools import build_meta as b; b.build_{what}({str(out)!r})", cwd=root)
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="session")
def wheel(checkout: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", checkout.root, tmp_path_factory.mktemp("wheel"))


class Environment(NamedTuple):
    folder: Path

    @property
    def site_packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    @property
    def names(self) -> set[str]:
        return {path.name for path in self.site_packages.iterdir()} - {"frameworks.pth", "__pycache__"}

    def install(self, *what: str | Path, cwd: Path) -> None:
        options = ("--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--quiet", "--disable-pip-version-check")
        done(sys.executable, "-m", "pip", "--python", self.folder / "bin" / "python", "install", *options, *what, cwd=cwd)


def environment(folder: Path) -> Environment:
    """An empty environment that finds the libraries of this one, so that no framework is downloaded."""
    venv.create(folder, symlinks=True)
    made = Environment(folder)
    assert made.names == set()
    (made.site_packages / "frameworks.pth").write_text(
        "\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    )
    return made


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = environment(tmp_path_factory.mktemp("environment"))
    made.install(wheel, cwd=wheel.parent)
    return made


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of somebody whose own packages have the names of the suite's, and two models."""
    for package in (*SUITE, "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise SystemExit('this is my own {package}')\n")
    (tmp_path / "common" / "blocks.py").write_text("WIDTH = 8\n")
    (tmp_path / "mine").mkdir()
    source = (PROJECT / "tests" / "compare" / "twins" / "linear.py").read_text()
    (tmp_path / "mine" / "works.py").write_text(source)
    (tmp_path / "mine" / "refused.py").write_text(f"from common.blocks import WIDTH\n{source}")
    return tmp_path


def suite_files(root: Path) -> set[str]:
    files = (path for package in SHIPPED for path in (root / package).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_suite_under_one_name(wheel: Path, checkout: Checkout) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        facts = json.loads(archive.read("convtwins/_app/built.json"))
        entry_points = archive.read(f"{LAUNCHER}-{VERSION}.dist-info/entry_points.txt").decode()
    assert {name.partition("/")[0] for name in names} == {LAUNCHER, f"{LAUNCHER}-{VERSION}.dist-info"}
    assert "convtwins/pytest_plugin.py" in names and "[pytest11]\nconvtwins = convtwins.pytest_plugin" in entry_points
    app = {name.removeprefix("convtwins/_app/") for name in names if name.startswith("convtwins/_app/")}
    assert app == suite_files(checkout.root) - {"compare/notes.txt"} | {"built.json"}  # which would be in no commit
    assert {"locks/cpu.lock", "locks/common.txt"} < app
    assert facts == {"version": VERSION, "commit": checkout.commit, "dirty": False}


@pytest.mark.slow
def test_a_wheel_from_the_source_distribution_is_the_same(wheel: Path, checkout: Checkout, tmp_path: Path) -> None:
    with tarfile.open(built("sdist", checkout.root, tmp_path / "sdist")) as archive:
        assert not [name for name in archive.getnames() if name.endswith("notes.txt")]
        archive.extractall(tmp_path, filter="data")
    again = built("wheel", tmp_path / f"{LAUNCHER}-{VERSION}", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert {each.filename: each.CRC for each in first.infolist()} == {each.filename: each.CRC for each in second.infolist()}


@pytest.mark.slow
def test_a_file_that_is_gone_leaves_the_next_wheel(checkout: Checkout, tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    shutil.copytree(checkout.root, root)
    stray = root / "common" / "stray.py"
    stray.touch()
    built("wheel", root, tmp_path / "first")
    stray.unlink()
    with zipfile.ZipFile(built("wheel", root, tmp_path / "second")) as archive:
        assert "convtwins/_app/common/stray.py" not in archive.namelist()
        assert json.loads(archive.read("convtwins/_app/built.json"))["dirty"] is False
    with zipfile.ZipFile(next((tmp_path / "first").iterdir())) as archive:
        assert json.loads(archive.read("convtwins/_app/built.json"))["dirty"] is True


def test_site_packages_gain_one_name_and_the_command_works_beside_packages_of_the_same_names(
    installed: Environment, checkout: Checkout, elsewhere: Path
) -> None:
    assert installed.names == {LAUNCHER, f"{LAUNCHER}-{VERSION}.dist-info"}
    command = installed.folder / "bin" / LAUNCHER
    assert done(command, "--version", cwd=elsewhere) == f"convtwins {VERSION}, commit {checkout.commit}\n"
    assert "Usage: convtwins report" in done(command, "report", "--help", cwd=elsewhere)
    stored = comparisons.stored_in(comparisons.repeated(1), elsewhere / "stored")
    assert json.loads(done(command, "report", stored, "--json", cwd=elsewhere))["exit_code"] == 0


def test_without_its_plug_in_a_command_says_what_to_install_and_with_all_it_runs(
    installed: Environment, wheel: Path, checkout: Checkout, tmp_path: Path
) -> None:
    missing = processes.run([installed.folder / "bin" / LAUNCHER, "concurrency", "nothing.py"], folder=tmp_path)
    assert missing.exit_code == 2
    check(UserError(missing.stderr), received="concurrency", fix="pip install ./plugins/hangs in a clone")
    plugin = built("wheel", checkout.root / PLUGIN, tmp_path / "wheels")
    assert plugin.name == f"convtwins_hangs-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"{LAUNCHER}-{VERSION}.dist-info/METADATA").decode()
    assert f'Requires-Dist: convtwins-hangs=={VERSION}; extra == "all"' in metadata
    made = environment(tmp_path / "environment")
    made.install(wheel, plugin, cwd=tmp_path)
    assert {name for name in made.names if not name.endswith(".dist-info")} == {LAUNCHER, "convtwins_hangs"}
    (tmp_path / "train.py").write_text("import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()\n")
    command = made.folder / "bin" / LAUNCHER
    found = processes.run([command, "concurrency", "train.py", "--json"], folder=tmp_path)
    assert found.exit_code == 6 and found.json["findings"][0]["rule"] == "lock-again"
    assert "Usage: convtwins watch" in done(command, "watch", "--help", cwd=tmp_path)


def test_a_file_of_the_working_directory_is_taken_for_no_library(installed: Environment, tmp_path: Path) -> None:
    for name in ("typer", "numpy", "rich", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')\n")
    assert "Usage: convtwins run" in done(installed.folder / "bin" / LAUNCHER, "run", "--help", cwd=tmp_path)


@pytest.mark.slow
def test_a_model_that_needs_a_package_of_the_same_name_is_refused_by_name(installed: Environment, elsewhere: Path) -> None:
    command = [installed.folder / "bin" / LAUNCHER, "run", "--model", "mine.refused", "--preset", "digits"]
    ended = processes.run(command, folder=elsewhere)
    assert ended.exit_code == 2
    check(UserError(ended.stderr), names=["mine.refused", "common.blocks", elsewhere / "common"])
    assert [path.name for path in elsewhere.iterdir() if path.name == "results"] == []


@pytest.mark.slow
def test_a_checkout_installed_in_place_runs_its_own_code_and_shows_no_other_name(checkout: Checkout, tmp_path: Path) -> None:
    made = environment(tmp_path / "environment")
    made.install("--editable", ".", cwd=checkout.root)
    assert {name for name in made.names if not name.startswith(("__editable__", f"{LAUNCHER}-{VERSION}"))} == set()
    assert f"commit {checkout.commit}" in done(made.folder / "bin" / LAUNCHER, "--version", cwd=tmp_path)
    python = made.folder / "bin" / "python"
    where = "import importlib.util as i; print([n for n in ('common', 'compare', 'tests') if i.find_spec(n)])"
    assert done(python, "-c", where, cwd=tmp_path) == "[]\n"
    (tmp_path / LAUNCHER).mkdir()  # as the folder of a clone beside a script
    assert done(python, "-c", "import convtwins; print(convtwins.APP)", cwd=tmp_path) == f"{checkout.root}\n"
    assert "convtwins" in done(python, "-m", "compare", "--version", cwd=checkout.root)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["simple_cnn", "mine.works"])
def test_the_digits_comparison_runs_from_the_wheel(
    installed: Environment, checkout: Checkout, elsewhere: Path, model: str
) -> None:
    words = ("run", "--preset", "digits", "--model", model, "--modes", "serial,multi_process", "--epochs", "1", "--cores", "2")
    cache = str(elsewhere / "cache")
    said = done(installed.folder / "bin" / LAUNCHER, *words, "--out", "out", cwd=elsewhere, CONVTWINS_CACHE=cache)
    assert ": proved" in said
    stored = json.loads((elsewhere / "out" / "compare.json").read_text())
    assert stored["machine"]["commit"] == checkout.commit and stored["machine"]["dirty"] is False
    statuses = [json.loads(path.read_text())["status"] for path in elsewhere.glob("out/runs/*/result.json")]
    assert statuses == ["ok"] * 6
    page = (elsewhere / "out" / "report.md").read_text()
    assert "convtwins run --preset digits" in page and ".venv/bin" not in page


def test_the_command_that_set_up_has_installed_starts(tmp_path: Path) -> None:
    command = Path(sys.prefix, "bin", LAUNCHER)
    if not command.exists():
        pytest.skip("`make setup` has not installed the command here")
    assert LAUNCHER in done(command, "--version", cwd=tmp_path)
