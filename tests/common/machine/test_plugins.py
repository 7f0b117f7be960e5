"""Twins and data sets of installed packages."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from common.data import sources
from common.data.sources import DataRefused
from common.machine import machine, plugins
from common.spec import Data

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with one module and entry points of one group, as far as imports can tell."""

    def one(group: str, entries: str, source: str, name: str = "brought_package") -> Path:
        place = tmp_path / "site"
        (place / name).mkdir(parents=True, exist_ok=True)
        (place / name / "__init__.py").write_text(source, encoding="utf-8")
        metadata = place / f"{name}-1.0.dist-info"
        metadata.mkdir(exist_ok=True)
        (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{entries}\n", encoding="utf-8")
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return place

    return one


def test_a_twin_of_a_package_is_found_and_run_as_python_m_would(install: Install, tmp_path: Path) -> None:
    assert plugins.installed(plugins.TWINS) == {}
    place = install(plugins.TWINS, "third = brought_package", "SUPPORTED = {}\n")
    (place / "brought_package" / "__main__.py").write_text(
        "import sys\nif __name__ == '__main__':\n    print(*sys.argv)\n    sys.exit(7)\n", encoding="utf-8"
    )
    assert list(plugins.installed(plugins.TWINS)) == ["third"]
    environment = {"PYTHONPATH": f"{machine.PROJECT_ROOT}:{place}"}

    def run(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "common.processes.plugin", *words]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    code, said = run("third", "describe")
    assert code == 7 and said.split()[1:] == ["describe"]
    code, said = run("fourth", "describe")
    assert code == 2 and "There is no twin fourth here." in said and "which has third" in said


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
    for label in ("red", "green"):
        folder = tmp_path / "cache" / "squares" / label
        folder.mkdir(parents=True)
        for number in range(12):
            Image.fromarray(generator.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{number}.png")
    found = sources.load(Data(source="squares"), seed=0, cache_dir=str(tmp_path / "cache"))
    assert (found.name, found.class_names, found.image_size) == ("squares", ("green", "red"), 32)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            "raise RuntimeError('no disk')",
            "data.source squares failed in brought_package:locate. Received: RuntimeError: no disk",
        ),
        ("return 7", "must return the path of a folder or an archive. Received: 7"),
        ("return '/nowhere/at/all'", "must return the path of a folder or an archive. Received: '/nowhere/at/all'"),
    ],
)
def test_a_data_set_that_fails_is_refused_by_name(install: Install, tmp_path: Path, body: str, words: str) -> None:
    install(plugins.DATASETS, "squares = brought_package:locate", f"def locate(cache_folder):\n    {body}\n")
    with pytest.raises(DataRefused) as refused:
        sources.load(Data(source="squares"), seed=0, cache_dir=str(tmp_path))
    assert words in str(refused.value)


def test_an_unknown_name_is_refused_with_the_names_that_packages_bring(install: Install, tmp_path: Path) -> None:
    install(plugins.DATASETS, "squares = brought_package:locate", "")
    with pytest.raises(DataRefused, match=r"or squares, .*did you mean squares\?"):
        sources.load(Data(source="sqares"), seed=0, cache_dir=str(tmp_path))
