"""Twins and data sets of installed packages."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from common.data import sources
from common.data.sources import DataRefused
from common.machine import machine, plugins
from common.spec import Data
from tests.support import processes, trees
from tests.support.refusals import refused

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with one module and entry points of one group, as far as imports can tell."""

    def one(group: str, entries: str, source: str, name: str = "brought_package") -> Path:
        files = {
            f"{name}/__init__.py": source,
            f"{name}-1.0.dist-info/METADATA": f"Name: {name}\nVersion: 1.0\n",
            f"{name}-1.0.dist-info/entry_points.txt": f"[{group}]\n{entries}\n",
        }
        place = trees.write(tmp_path / "site", files)
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return place

    return one


def test_a_twin_of_a_package_is_found_and_run_as_python_m_would(install: Install, tmp_path: Path) -> None:
    others = set(plugins.installed(plugins.TWINS))  # those that this environment has
    place = install(plugins.TWINS, "third = brought_package", "SUPPORTED = {}\n")
    (place / "brought_package" / "__main__.py").write_text(
        "import sys\nif __name__ == '__main__':\n    print(*sys.argv)\n    sys.exit(7)\n", encoding="utf-8"
    )
    assert set(plugins.installed(plugins.TWINS)) - others == {"third"}
    path = f"{machine.PROJECT_ROOT}:{place}"
    third, fourth = (
        processes.python("-m", "common.processes.plugin", name, "describe", folder=tmp_path, PYTHONPATH=path)
        for name in ("third", "fourth")
    )
    assert third.exit_code == 7 and third.output.split()[1:] == ["describe"]
    assert fourth.exit_code == 2 and "fourth" in fourth.output and "third" in fourth.output


def test_a_source_that_setuptools_has_built_is_a_package_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, value in (("first", "one"), ("second", "two")):
        entries = {"brought_package.egg-info/entry_points.txt": f"[{plugins.TWINS}]\nthird = {value}\n"}
        trees.write(tmp_path / folder, entries)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert plugins.entry_values(plugins.TWINS) == {"third": "one"}


def test_the_code_of_a_package_is_part_of_what_was_compared(install: Install) -> None:
    place = install(plugins.TWINS, "third = brought_package", "SUPPORTED = {}\n")
    package = plugins.installed(plugins.TWINS)["third"].load()
    before = plugins.code_digest(package)
    (place / "brought_package" / "more.py").write_text("x = 1\n", encoding="utf-8")
    assert plugins.code_digest(package) != before


def test_a_data_set_of_a_package_is_a_source_by_its_name(install: Install, tmp_path: Path) -> None:
    install(
        plugins.DATASETS,
        "squares = brought_package:locate",
        "from pathlib import Path\ndef locate(cache_folder):\n    return Path(cache_folder) / 'squares'\n",
    )
    generator = np.random.default_rng(0)
    images = {
        f"squares/{label}/{number}.png": generator.integers(0, 256, (32, 32, 3), np.uint8)
        for label in ("red", "green")
        for number in range(12)
    }
    trees.write(tmp_path / "cache", images)
    found = sources.load(Data(source="squares"), seed=0, cache_dir=str(tmp_path / "cache"))
    assert (found.name, found.class_names, found.image_size) == ("squares", ("green", "red"), 32)


@pytest.mark.parametrize(
    ("body", "received"),
    [
        ("raise RuntimeError('no disk')", "RuntimeError: no disk"),
        ("return 7", "7"),
        ("return '/nowhere/at/all'", "'/nowhere/at/all'"),
    ],
)
def test_a_data_set_that_fails_is_refused_by_name(install: Install, tmp_path: Path, body: str, received: str) -> None:
    install(plugins.DATASETS, "squares = brought_package:locate", f"def locate(cache_folder):\n    {body}\n")
    with refused(DataRefused, received=received, names=["squares", "brought_package:locate"]):
        sources.load(Data(source="squares"), seed=0, cache_dir=str(tmp_path))


def test_an_unknown_name_is_refused_with_the_names_that_packages_bring(install: Install, tmp_path: Path) -> None:
    install(plugins.DATASETS, "squares = brought_package:locate", "")
    with refused(DataRefused, names=["or squares", "did you mean squares?"]):
        sources.load(Data(source="sqares"), seed=0, cache_dir=str(tmp_path))
