"""The bars that are ratios, from interleaved runs in fresh processes: `python -m tests.benchmarks.bars` (part of `make bench`).

MiniXception, batch 128, float32, made-up leaves of 32 px, on two cores: what two processes gain over serial on one core and
on both, what their exchange costs them (against the same two processes without any until the end, which is what
model_averaging does), and what the harness costs over a loop written by hand.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from compare import launch, report, run
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
HARNESS_BAR = 0.99
HARNESS_PAIRS = 6
"""Epochs of the harness for each repeat of a mode: a bar of one percent needs more of them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--frameworks", default=",".join(launch.FRAMEWORKS))
    arguments = parser.parse_args()
    frameworks = arguments.frameworks.split(",")
    table = Table("framework", "what", "times as fast (95 % interval)", "bar", "met")
    all_met = True

    def add(framework: str, what: str, ratio: Ratio | None, bar: float | None) -> None:
        nonlocal all_met
        shown = interval_words(ratio) if ratio else "not measured"
        met = _met(ratio, bar)
        all_met &= met != "no"
        table.add_row(framework, what, shown, f"{bar:.2f}" if bar else "-", met)

    with tempfile.TemporaryDirectory() as folder:
        stored = _modes(frameworks, arguments.pairs, Path(folder) / "modes")
        for framework in frameworks:
            for fast, slow, bars in BARS:
                ratio = _ratio(stored, f"{framework}-{slow}", f"{framework}-{fast}")
                add(framework, f"{fast} over {slow}", ratio, bars.get(framework))
            add(framework, "harness over a loop by hand", _harness(framework, HARNESS_PAIRS * arguments.pairs), HARNESS_BAR)
    Console().print(table)
    return 0 if all_met else 1


def _met(ratio: Ratio | None, bar: float | None) -> str:
    if ratio is None:
        return "no"
    if bar is None or ratio.value >= bar:
        return "yes"
    # Below the bar, by less than the repeats tell.
    return "not shown" if ratio.high is not None and ratio.high >= bar else "no"


def _modes(frameworks: list[str], pairs: int, folder: Path) -> Stored:
    values = harness.SETTINGS | {
        "data": {"source": "leaves:classes=10,images=1200,size=32,seed=1", "limit": 768},
        "optimizer": {"name": "adam", "learning_rate": 1e-3},
        "epochs": 2,
        "cores": 2,
    }
    modes = ("serial", "data_parallel", "multi_process", "model_averaging")
    request = run.Request(Preset(values, modes, replicas=2, repeats=pairs), frameworks, folder, prove=False)
    run.run(request, as_json=False, show=lambda *given, **options: None)
    return report.read(folder).stored


def _ratio(stored: Stored, slow: str, fast: str) -> Ratio | None:
    rows = {row.id: row for row in stored.comparison.rows}
    return ratio_of_seconds(stored, rows[slow], rows[fast])


def _harness(framework: str, pairs: int) -> Ratio | None:
    command = [sys.executable, "-m", "tests.benchmarks.harness", "--framework", framework, "--pairs", str(pairs)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = paired_ratio([(harness_seconds, hand) for harness_seconds, hand in json.loads(printed)])
    return inverse(found) if found else None


if __name__ == "__main__":
    sys.exit(main())
