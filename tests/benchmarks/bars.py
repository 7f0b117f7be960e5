"""The bars that are ratios, each pair from fresh processes: `python -m tests.benchmarks.bars` (part of `make bench`).

MiniXception, batch 128, float32, made-up leaves of 32 px, on two cores: what two processes gain over serial on one core and
on both, what their exchange costs them (against the same two processes without any until the end, which is what
model_averaging does), and what the harness costs over a loop written by hand: there both are timed in one process, in turn.

Exit codes: 0 where every bar is met with 95 % confidence, 1 where one is missed or not measured, 2 where the pairs do not tell.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from compare import launch, run
from compare.presets import Preset
from compare.statistics import Ratio, interval_words, inverse, paired_ratio
from compare.store import Stored
from compare.summary import ratio_of_seconds
from tests.benchmarks import harness

BARS: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("multi_process-2replicas", "serial-1core", {"pytorch": 1.9, "tensorflow": 1.85}),
    ("multi_process-2replicas", "serial-2cores", {"pytorch": 1.0, "tensorflow": 1.0}),
    ("multi_process-2replicas", "model_averaging-2replicas", {"pytorch": 0.95, "tensorflow": 0.95}),
    ("data_parallel-2replicas", "serial-1core", {}),
)
"""How many times as fast the first is to be as the second; without a number it is shown as it is."""
YES, NO, NOT_SHOWN = "yes", "no", "not shown"
HARNESS_BAR = 0.99
HARNESS_EPOCHS = 6
"""Of the harness and of the loop in each process, whose medians are one pair: a bar of one percent needs several."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--frameworks", default=",".join(launch.FRAMEWORKS))
    arguments = parser.parse_args()
    frameworks = arguments.frameworks.split(",")
    table = Table("framework", "what", "times as fast (95 % interval)", "bar", "met")
    answers: list[str] = []

    def add(framework: str, what: str, ratio: Ratio | None, bar: float | None) -> None:
        shown = interval_words(ratio) if ratio else "not measured"
        answer = met(ratio, bar)
        answers.append(answer)
        table.add_row(framework, what, shown, f"{bar:.2f}" if bar else "-", answer)

    with tempfile.TemporaryDirectory() as folder:
        stored = _modes(frameworks, arguments.pairs, Path(folder) / "modes")
        for framework in frameworks:
            for fast, slow, bars in BARS:
                ratio = _ratio(stored, f"{framework}-{slow}", f"{framework}-{fast}")
                add(framework, f"{fast} over {slow}", ratio, bars.get(framework))
            add(framework, "harness over a loop by hand", _harness(framework, arguments.pairs), HARNESS_BAR)
    Console().print(table)
    return exit_code(answers)


def exit_code(answers: Sequence[str]) -> int:
    """Of the command, see above.

    Args:
        answers: of `met`.
    """
    return 1 if NO in answers else 2 if NOT_SHOWN in answers else 0


def met(ratio: Ratio | None, bar: float | None) -> str:
    """Whether a ratio is at least as large as its bar: YES or NO where its interval says so, else NOT_SHOWN."""
    if ratio is None:
        return NO
    if bar is None or (ratio.low is not None and ratio.low >= bar):
        return YES
    return NO if ratio.high is not None and ratio.high < bar else NOT_SHOWN


def _modes(frameworks: list[str], pairs: int, folder: Path) -> Stored:
    values = harness.SETTINGS | {
        "data": {"source": "leaves:classes=10,images=1200,size=32,seed=1", "limit": 768},
        "optimizer": {"name": "adam", "learning_rate": 1e-3},
        "epochs": 2,
        "cores": 2,
    }
    modes = ("serial", "data_parallel", "multi_process", "model_averaging")
    request = run.Request(Preset(values, modes, replicas=2, repeats=pairs), frameworks, folder, prove=False)
    made, _ = run.within(request, folder)
    return made.stored


def _ratio(stored: Stored, slow: str, fast: str) -> Ratio | None:
    rows = {row.id: row for row in stored.comparison.rows}
    return ratio_of_seconds(stored, rows[slow], rows[fast])


def _harness(framework: str, processes: int) -> Ratio | None:
    command = [sys.executable, "-m", "tests.benchmarks.harness", "--framework", framework, "--pairs", str(HARNESS_EPOCHS)]
    pairs: list[tuple[float, float]] = []
    for _ in range(processes):
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        ours, by_hand = zip(*json.loads(printed), strict=True)
        pairs.append((statistics.median(ours), statistics.median(by_hand)))
    found = paired_ratio(pairs)
    return inverse(found) if found else None


if __name__ == "__main__":
    sys.exit(main())
