import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import results
from common.artifacts.schema import Environment, RunResult
from compare.execution import executor, launch, store
from compare.execution.matrix import Row
from tests.support import comparisons


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
def recorded(fake_twins: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Runs that take no time, whose descriptions and results hold the environment; gives (interpreter, folder) of each."""
    done: list[tuple[str, str]] = []
    described, known = launch._read_description, dict[str, Environment]()

    def environment(name: str) -> Environment:
        """As the interpreter says it, asked once for each version of the distribution that it alone has."""
        (there,) = Path(launch.interpreter(name)).parents[1].glob("lib/python*/site-packages/newer-*.dist-info")
        return known.setdefault(str(there), known.get(str(there)) or launch.current_environment(name))

    def description(name: str, process: Any) -> dict[str, Any]:
        return described(name, process) | {"environment": environment(name).model_dump()}

    def execute(row: Row, repeat: int, folder: Path, watch: Any, code: Any) -> RunResult:
        python = launch.interpreter(row.contestant)
        done.append((python, folder.name))
        own = {"framework": row.framework, "environment": environment(row.contestant)}
        made_up = comparisons.good(row, (1 + 0.01 * (repeat % 3)) * (2.0 if "environment0" in python else 3.0), repeat)
        results.save(made_up := made_up.model_copy(update=own), store.run_folder(folder, row.id, repeat))
        return made_up

    fake_twins.setattr(launch, "_read_description", description)
    fake_twins.setattr(executor, "execute", execute)
    return done


def upgrade(python: Path) -> None:
    """Another version of the distribution that an environment alone has."""
    (there,) = python.parents[1].glob("lib/python*/site-packages/newer-*.dist-info")
    there.rename(there.with_name("newer-99.0.dist-info"))
