import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def interpreters(tmp_path: Path) -> Callable[[int], list[Path]]:
    """Makes interpreters of several environments, which reach the distributions of this one. Each has one more."""

    def made(number: int) -> list[Path]:
        pythons: list[Path] = []
        for place in range(number):
            folder = tmp_path / f"environment{place}"
            venv.create(folder, symlinks=True)
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
            (site / f"newer-{place}.0.dist-info").mkdir()
            pythons.append(folder / "bin" / "python")
        return pythons

    return made
