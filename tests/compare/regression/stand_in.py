"""Runs that take no time, in place of those that a command would start."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import atomic_files, results
from common.artifacts.schema import RunResult
from common.machine import machine
from compare.comparison import comparison_plan
from compare.comparison.run import ComparisonRequest
from compare.execution import executor, store
from compare.execution.contestants import Contestant
from compare.execution.executor import CodeOverride
from compare.execution.matrix import Row
from tests.compare.regression.repository import git
from tests.support import comparisons

Behaviour = Callable[[RunResult, Path], RunResult]
"""What becomes of a run: it is changed, fails, or an exception breaks it off. The folder is that of its side."""


def whole(run: RunResult, folder: Path) -> RunResult:
    """A run that ends well."""
    return run


@dataclass
class StandIn:
    """What a test sets, and what was run."""

    seconds: Callable[[str], float]
    """Of an epoch, by the state of the code or the interpreter. Code in the state `broken` does not build."""
    state_file: str = ""
    """Holds the state of the code. Empty: the interpreter is the state."""
    rows: list[Row] = field(default_factory=list[Row])
    """What is run. Empty: a row of each framework that is asked for."""
    behaviour: Behaviour = whole
    fields: Callable[[Contestant], Mapping[str, Any]] = lambda contestant: {}
    """Further fields of a result."""
    done: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    """(state, row, repeat) of each run."""
    requests: list[ComparisonRequest] = field(default_factory=list[ComparisonRequest])

    def plan(self, request: ComparisonRequest, shown: Any) -> store.Comparison:
        """Instead of `comparison_plan.build_plan`."""
        self.requests.append(request)
        rows = self.rows or [comparisons.row(name) for name in request.twins.names]
        commit = git(machine.PROJECT_ROOT, "rev-parse", "HEAD")
        here = {"processor": "Some CPU", "logical_cores": 2, "commit": commit, "dirty": False}
        planned = comparisons.comparison(rows, request.settings.repeats)
        return comparisons.with_fields(planned, machine=here, settings__seeds=request.settings.seeds)

    def execute(
        self, contestant: Contestant, row: Row, repeat: int, folder: Path, watch: Any, code: CodeOverride | None
    ) -> RunResult:
        """Instead of `executor.execute`."""
        state = contestant.interpreter
        if code is not None and code.root is not None and self.state_file:
            state = (code.root / self.state_file).read_text()
            atomic_files.write_atomically(store.run_folder(folder, row.id, repeat) / "spec.json", code.spec_json(row))
        if state == "broken":
            run = comparisons.bad(row, "failed", "exit code 1: it does not build", epochs=0)
        else:
            good = comparisons.good(row, self.seconds(state) * (1 + 0.01 * (repeat % 3)), repeat)
            run = self.behaviour(comparisons.with_fields(good, **self.fields(contestant)), folder)
        self.done.append((state, row.id, repeat))
        if run.status == "ok":
            results.save(run, store.run_folder(folder, row.id, repeat))
        return run

    def install(self, patch: pytest.MonkeyPatch, *, with_plan: bool = True) -> "StandIn":
        """Put it in the place of real runs: the commands start these themselves, and each costs a process of seconds."""
        patch.setattr(executor, "execute", self.execute)
        if with_plan:
            patch.setattr(comparison_plan, "build_plan", self.plan)
        return self
