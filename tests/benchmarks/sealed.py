"""One run of a twin in a process of its own, as the benchmarks need many of."""

from pathlib import Path
from typing import Any

from common import results, spec
from common.results import RunResult
from common.spec import Spec
from compare import launch


def ran(framework: str, wanted: Spec | dict[str, Any], folder: Path) -> RunResult:
    """The result of a run; an earlier one in the folder makes room for it."""
    what = wanted if isinstance(wanted, Spec) else spec.build(wanted)
    path, log = folder / "spec.json", folder / "log.txt"
    path.write_text(what.to_json(), "utf-8")
    assert launch.call(framework, ["run", str(path), "--out", str(folder)], log=log) == 0, log.read_text("utf-8")
    return results.load(folder / results.RESULT_FILE)
