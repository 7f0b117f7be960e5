"""What turns gain, and what they cost: `python -m tests.benchmarks.turns noise FOLDER ...` and `... handover`.

`noise` prints, for each pair of rows of each results folder, the standard deviation of their ratio over the repeats. Compare a
folder of `run --turns` with one of `run --no-turns` that was made in the same hour.

`handover` trains both frameworks with short and with long turns, and prints what each handover adds to a turn: the first step
after a pause finds cold caches.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.artifacts.schema import RunResult
from common.spec import build
from compare.comparison import executor
from compare.judgement.run_pairs import pairs_of_seconds
from compare.results import store
from compare.running import launch, matrix
from compare.running.contestants import Contestant
from compare.running.matrix import Row
from compare.running.taking_turns import TURN_SECONDS, run_round
from compare.statistics.statistics import paired_ratio

SHORT_SECONDS, LONG_SECONDS = 0.05, 0.5
"""Seconds that a turn aims at."""
FIELDS = {"global_batch_size": 32, "epochs": 8, "cores": 2}
LEAST_REPEATS = 3


def print_noise(folders: Sequence[Path]) -> None:
    """Print the noise of each pair of rows, and its median for each folder."""
    for folder in folders:
        stored = store.read(folder)
        deviations: list[float] = []
        print(f"{folder}: {'in turns' if stored.comparison.takes_turns else 'one after the other'}")
        for slow, fast in itertools.combinations(stored.comparison.rows, 2):
            pairs = pairs_of_seconds(stored, slow, fast).values()
            if len(pairs) >= LEAST_REPEATS:
                logs = [math.log(one / other) for one, other in pairs]
                deviations.append(statistics.stdev(logs))
                ratio = math.exp(statistics.fmean(logs))
                print(f"  {slow.id} / {fast.id}: {ratio:.3f}, {100 * deviations[-1]:.1f} % over {len(pairs)} repeats")
        if deviations:
            print(f"  median of the pairs: {100 * statistics.median(deviations):.1f} %")


def print_handover(repeats: int) -> None:
    """Print the seconds that a handover adds to a turn, for each framework, with a 95 % interval of the ratio behind them."""
    rows = [matrix.build_row(name, Contestant.plain(name), build(FIELDS)) for name in launch.FRAMEWORKS]
    paces: dict[str, list[tuple[float, float]]] = {row.id: [] for row in rows}
    steps_per_turn: dict[str, list[tuple[float, float]]] = {row.id: [] for row in rows}
    for repeat in range(repeats):
        lengths = [SHORT_SECONDS, LONG_SECONDS] if repeat % 2 == 0 else [LONG_SECONDS, SHORT_SECONDS]
        results = {seconds: _train(rows if repeat % 4 < 2 else rows[::-1], seconds) for seconds in lengths}
        for row in rows:
            short, long = results[SHORT_SECONDS][row.id], results[LONG_SECONDS][row.id]
            paces[row.id].append((_step_seconds(short), _step_seconds(long)))
            steps_per_turn[row.id].append((_steps_per_turn(short), _steps_per_turn(long)))
    for name, pairs in paces.items():
        ratio = paired_ratio(pairs, one_look=True)
        assert ratio is not None
        step_seconds = statistics.median(long for _, long in pairs)
        short_steps, long_steps = (statistics.median(steps) for steps in zip(*steps_per_turn[name], strict=True))
        turns_per_step = 1.0 / short_steps - 1.0 / long_steps
        costs = [(value - 1.0) * step_seconds / turns_per_step for value in (ratio.value, ratio.low, ratio.high) if value]
        shares = ", ".join(f"{100 * cost / TURN_SECONDS:.2f} %" for cost in costs)
        print(
            f"{name}: a step takes {1e3 * step_seconds:.1f} ms. Turns of {short_steps:.0f} and of {long_steps:.0f} steps: a "
            f"handover costs {1e3 * costs[0]:.2f} ms. Of a turn of {TURN_SECONDS} s (value, and 95 % interval): {shares}."
        )


def _train(rows: Sequence[Row], turn_seconds: float) -> dict[str, RunResult]:
    def run(row: Row, seat: Any) -> Any:
        return executor.executing(Contestant.plain(row.contestant), row, 0, Path(folder), lambda events: None, seat=seat)

    with tempfile.TemporaryDirectory() as folder:
        return {rows[place].id: result for place, result in run_round(rows, run, turn_seconds)}


def _step_seconds(result: RunResult) -> float:
    return sum(epoch.timed_seconds for epoch in result.epochs) / sum(epoch.timed_steps for epoch in result.epochs)


def _steps_per_turn(result: RunResult) -> float:
    return statistics.fmean(slice_.steps for epoch in result.epochs for slice_ in epoch.slices)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("noise").add_argument("folders", nargs="+", type=Path)
    commands.add_parser("handover").add_argument("--repeats", type=int, default=8)
    arguments = parser.parse_args()
    if arguments.command == "noise":
        print_noise(arguments.folders)
    else:
        print_handover(arguments.repeats)


if __name__ == "__main__":
    main()
