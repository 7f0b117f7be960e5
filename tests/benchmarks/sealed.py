"""Runs of a twin, each in a process of its own, as the benchmarks need many."""

from pathlib import Path
from typing import Any

from common import spec
from common.artifacts import results
from common.artifacts.schema import RunResult
from common.spec import Spec
from compare.judgement.run_figures import times_in_doubt
from compare.running import launch
from compare.running.contestants import Contestant


class Runs:
    """Runs in one folder, made where it is not there, each of which makes room for the next.

    Attributes:
        in_doubt: whether other work disturbed one of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.in_doubt = False
        folder.mkdir(parents=True, exist_ok=True)

    def ran(self, framework: str, wanted: Spec | dict[str, Any]) -> RunResult:
        """The result of one."""
        what = wanted if isinstance(wanted, Spec) else spec.build(wanted)
        path, log = self.folder / "spec.json", self.folder / "log.txt"
        path.write_text(what.to_json(), "utf-8")
        code = launch.call(Contestant.plain(framework), ["run", str(path), "--out", str(self.folder)], log=log)
        assert code == 0, log.read_text("utf-8")
        result = results.load(self.folder / results.RESULT_FILE)
        self.in_doubt |= times_in_doubt(result)
        return result
