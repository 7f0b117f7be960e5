"""What the flight recorder costs: microseconds of a record times records of a step, against the step, in every mode.

`python -m tests.benchmarks.flight --framework pytorch` trains MiniXception (float32, 32 px) in each mode of several processes,
one thread a rank, with batches of 32 unless `--batch` says otherwise. Rank 0 counts the records of a step, and times one of
them in its own process. All is CPU time, so that other work on the machine hardly counts. A step takes at least the CPU time
of one rank, and larger batches take more. `--pairs N` also pairs epochs with the recorder and without it, in turn, in one run
of each of two modes: two runs differ by more than the recorder could cost.

Exit code 1: in a mode the recorder costs more than LIMIT of a step, or the pairs do not exclude MOST_BY_PAIRS.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import spec
from common.artifacts.schema import RunResult
from compare.statistics.statistics import paired_ratio
from tests.benchmarks.sealed import Runs
from tests.planted import recorded

LIMIT = 0.005
"""Of a step."""
MOST_BY_PAIRS = 0.03
PAIRED = ("multi_process", "tensor_parallel")
"""The mode with the fewest records of a step, and the one with the most."""
UNPAIRED = 2
"""A process's first epochs are slower."""
SETTINGS: dict[str, Any] = {
    "model": "tests.planted.recorded",
    "data": {"source": "leaves:classes=10,images=800,size=32,seed=1"},
    "epochs": 2,
    "cores": 2,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", required=True)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--modes", help="comma-separated; default: all")
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    costly, wanted = False, arguments.modes.split(",") if arguments.modes else None
    print(f"{'mode':<40} records a step, CPU us a record, CPU us a step, CPU ms of a step, share")
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder) / "run")
        chosen = [
            (name, fields) for name, fields in modes(arguments.framework, arguments.batch) if not wanted or name in wanted
        ]
        for name, fields in chosen:
            measured, _ = ran(runs, arguments.framework, fields, "measured")
            records, each, step = measured["records"], measured["microseconds"], measured["step_seconds"]
            share = records * each / 1e6 / step
            costly |= share > LIMIT
            print(f"{name:<40} {records:6.1f} {each:6.2f} {records * each:8.1f} {step * 1e3:8.1f} {share:9.4%}", flush=True)
        for name, fields in chosen if arguments.pairs else ():
            if name in PAIRED:
                costly |= not excluded(runs, arguments.framework, name, fields, arguments.pairs)
    return int(costly)


def modes(framework: str, batch: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Those of several processes, each as (name, fields of the spec)."""
    environments = importlib.import_module(f"{framework}_impl.rendezvous").environments
    for name in spec.MODES:
        fields = spec.with_variant(
            SETTINGS | {"global_batch_size": batch, "data": SETTINGS["data"] | {"limit": recorded.STEPS * batch}}, name, 2
        )
        if environments(spec.build(fields)):
            yield name, fields
        if name == "multi_process":
            yield "multi_process, synchronised BatchNorm", fields | {"batch_norm_statistics": "synchronised"}


def ran(runs: Runs, framework: str, fields: dict[str, Any], recorder: str) -> tuple[dict[str, Any], RunResult]:
    """What `tests.planted.recorded` measured in one run, if anything, and its result."""
    out = runs.folder / "recorded.json"
    out.unlink(missing_ok=True)
    os.environ |= {"CONVTWINS_RECORDER": recorder, "CONVTWINS_RECORDED": str(out)}
    result = runs.ran(framework, fields)
    return json.loads(out.read_text("utf-8")) if out.exists() else {}, result


def excluded(runs: Runs, framework: str, name: str, fields: dict[str, Any], pairs: int) -> bool:
    """Whether pairs of epochs exclude that the recorder costs more than MOST_BY_PAIRS."""
    _, result = ran(runs, framework, fields | {"epochs": UNPAIRED + 2 * pairs}, "alternating")
    seconds = [each.seconds for each in result.epochs]
    by_pairs: list[tuple[float, float]] = []
    for first in range(UNPAIRED, len(seconds), 2):
        with_it, without = (first + 1, first) if recorded.rests(first + 1) else (first, first + 1)
        assert not recorded.rests(with_it + 1) and recorded.rests(without + 1)
        by_pairs.append((seconds[with_it], seconds[without]))
    ratio = paired_ratio(by_pairs, one_look=True)
    assert ratio is not None
    print(f"{name}: with the recorder over without it {ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f}), {ratio.n} pairs")
    return ratio.high is not None and ratio.high <= 1 + MOST_BY_PAIRS


if __name__ == "__main__":
    sys.exit(main())
