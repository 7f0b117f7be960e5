"""Runs that take no time, in place of those that a command would start."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import atomic_files, results
from common.artifacts.schema import RunResult
from common.machine import machine
from compare.comparison import comparison_plan, executor
from compare.comparison.run import ComparisonRequest
from compare.judgement.sides import BASE, HEAD
from compare.results import store
from compare.running import matrix
from compare.running.contestants import Contestant
from compare.running.launch import StartedProcess
from compare.running.matrix import Row
from tests.compare.tools.regression.repository import git
from tests.support import comparisons

Behaviour = Callable[[RunResult, Path], RunResult]
"""What becomes of a run: it is changed, fails, or an exception breaks it off. The path is that of its folder / its side."""


def whole(run: RunResult, folder: Path) -> RunResult:
    """A run that ends well."""
    return run


def with_base_rows(rows: Sequence[Row], contestants: Sequence[Contestant]) -> list[Row]:
    """The rows, and those of the bases of their contestants."""
    bases = {each.base_of: each for each in contestants if each.base_of is not None}
    based = [
        matrix.build_row(base.name + row.id.removeprefix(row.contestant), base, row.spec)
        for row in rows
        if (base := bases.get(row.contestant)) is not None
    ]
    return sorted([*based, *rows], key=lambda row: [each.name for each in contestants].index(row.contestant))


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
    """(state, row of the head, repeat) of each run."""
    requests: list[ComparisonRequest] = field(default_factory=list[ComparisonRequest])

    def plan(self, request: ComparisonRequest, shown: Any) -> store.Comparison:
        """Instead of `comparison_plan.build_plan`."""
        self.requests.append(request)
        compared = request.twins.contestants
        rows = self.rows or [comparisons.row(each.name) for each in compared if each.base_of is None]
        commit = git(machine.PROJECT_ROOT, "rev-parse", "HEAD")
        here = {"processor": "Some CPU", "logical_cores": 2, "commit": commit, "dirty": False}
        planned = comparisons.comparison(with_base_rows(rows, compared), request.settings.repeats)
        changes = {
            "contestants": tuple(request.twins.definitions),
            "prove": request.settings.prove,
            "seeds": request.settings.seeds,
        }
        planned = planned.with_settings(**changes)
        return comparisons.with_fields(planned, machine=here, argv=["regress"])

    def executing(
        self, contestant: Contestant, row: Row, repeat: int, folder: Path, watch: Any, restarts: int = 0, **_: Any
    ) -> Generator[StartedProcess, None, RunResult]:
        """Instead of `executor.executing`: it needs no process to look at."""
        return self.execute(contestant, row, repeat, folder)
        yield  # pyright: ignore[reportUnreachable]

    def execute(self, contestant: Contestant, row: Row, repeat: int, folder: Path) -> RunResult:
        state, checkout = contestant.interpreter, contestant.checkout
        if checkout is not None and checkout.root is not None and self.state_file:
            state = (checkout.root / self.state_file).read_text()
            spec_json = checkout.spec_json(row.id, row.spec)
            atomic_files.write_atomically(store.run_folder(folder, row.id, repeat) / "spec.json", spec_json)
        if state == "broken":
            run = comparisons.bad(row, "failed", "exit code 1: it does not build", epochs=0)
        else:
            good = comparisons.good(row, self.seconds(state) * (1 + 0.01 * (repeat % 3)), repeat)
            side = HEAD if contestant.base_of is None else BASE
            run = self.behaviour(comparisons.with_fields(good, **self.fields(contestant)), folder / side)
        self.done.append((state, contestant.head_row(row.id), repeat))
        if run.status == "ok":
            results.save(run, store.run_folder(folder, row.id, repeat))
        return run

    def install(self, patch: pytest.MonkeyPatch, *, with_plan: bool = True) -> "StandIn":
        """Put it in the place of real runs: the commands start these themselves, and each costs a process of seconds."""
        patch.setattr(executor, "executing", self.executing)
        if with_plan:
            patch.setattr(comparison_plan, "build_plan", self.plan)
        return self
