import sysconfig
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from common.artifacts.schema import Environment
from compare.running import launch
from compare.running.contestants import Contestant
from tests.compare.tools.regression.stand_in import StandIn


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences are not folded."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def interpreters(tmp_path: Path) -> Callable[[int], list[Path]]:
    """Makes interpreters of several environments, which reach the distributions of this one. Each has one more."""

    def create(number: int) -> list[Path]:
        pythons: list[Path] = []
        for place in range(number):
            folder = tmp_path / f"environment{place}"
            venv.create(folder, symlinks=True)
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
            (site / f"newer-{place}.0.dist-info").mkdir()
            pythons.append(folder / "bin" / "python")
        return pythons

    return create


@pytest.fixture
def recorded(fake_twins: pytest.MonkeyPatch) -> StandIn:
    """Runs in environments that take no time, whose descriptions and results hold the environment. The first is faster."""
    described, known = launch.DescribingProcess.description, dict[str, Environment]()

    def environment(contestant: Contestant) -> Environment:
        """As the interpreter says it, asked once for each version of the distribution that it alone has."""
        (there,) = Path(contestant.interpreter).parents[1].glob("lib/python*/site-packages/newer-*.dist-info")
        return known.setdefault(str(there), known.get(str(there)) or launch.current_environment(contestant))

    def description(process: launch.DescribingProcess) -> dict[str, Any]:
        return described(process) | {"environment": environment(process.contestant).model_dump()}

    def fields(contestant: Contestant) -> Mapping[str, Any]:
        return {"framework": contestant.twin, "environment": environment(contestant)}

    fake_twins.setattr(launch.DescribingProcess, "description", description)  # no fake twin states its environment
    runs = StandIn(lambda python: 2.0 if "environment0" in python else 3.0, fields=fields)
    return runs.install(fake_twins, with_plan=False)


def upgrade(python: Path) -> None:
    """Another version of the distribution that an environment alone has."""
    (there,) = python.parents[1].glob("lib/python*/site-packages/newer-*.dist-info")
    there.rename(there.with_name("newer-99.0.dist-info"))
