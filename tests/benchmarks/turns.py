"""What turns gain, and what they cost: `python -m tests.benchmarks.turns noise FOLDER ...` and `... handover`.

`noise` prints, for each pair of rows of each results folder, the standard deviation of their ratio over the repeats. Compare a
folder of `run --turns` with one of `run --no-turns` that was made in the same hour.

`handover` trains both frameworks in turns of two lengths, and prints what each handover adds to a turn: the first step after a
pause finds cold caches. That step is not timed, so this is what is left.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.artifacts.schema import RunResult
from common.spec import build
from compare.comparison import executor
from compare.judgement import slices
from compare.judgement.run_pairs import pairs_of_seconds
from compare.results import store
from compare.running import launch, matrix
from compare.running.contestants import Contestant
from compare.running.interleaving import turn
from compare.running.launch import StartedProcess
from compare.running.matrix import Row
from compare.running.taking_turns import POLL_SECONDS, TURN_SECONDS, Seat

TURN_STEPS = (4, 16)
"""Steps of a short and of a long turn."""
FIELDS = {"global_batch_size": 16, "epochs": 10, "cores": 2}
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
    """Print the seconds that a handover adds to a turn, for each framework, with a 95 % interval by bootstrap over slices."""
    rows = [matrix.build_row(name, Contestant.plain(name), build(FIELDS)) for name in launch.FRAMEWORKS]
    step_seconds: dict[str, dict[int, list[float]]] = {row.id: {steps: [] for steps in TURN_STEPS} for row in rows}
    for repeat in range(repeats):
        for row_id, result in _train(turn(rows, repeat)).items():
            for timed, _ in slices.paired(result, result):
                if timed.slice.steps in TURN_STEPS and result.epochs[0].steps not in timed.steps:
                    step_seconds[row_id][timed.slice.steps].append(timed.step_seconds)
    for name, by_steps in step_seconds.items():
        short, long = map(np.array, by_steps.values())
        random = np.random.default_rng(0)
        costs = [_cost(*(random.choice(values, len(values)) for values in (short, long))) for _ in range(2000)]
        shares = [f"{100 * cost / TURN_SECONDS:.2f} %" for cost in (_cost(short, long), *np.percentile(costs, [2.5, 97.5]))]
        print(
            f"{name}: {len(short)} turns of {TURN_STEPS[0]} steps, {len(long)} of {TURN_STEPS[1]}; a step takes "
            f"{1e3 * np.median(long):.1f} ms. A handover costs {1e3 * _cost(short, long):.2f} ms: of a turn of "
            f"{TURN_SECONDS} s, {shares[0]} ({shares[1]} to {shares[2]})."
        )


def _cost(short: NDArray[np.float64], long: NDArray[np.float64]) -> float:
    """Return the seconds that each turn has on top of its timed steps, which are all but the first one.

    Args:
        short, long: seconds per timed step of the turns of each length.
    """
    short_steps, long_steps = (steps - 1 for steps in TURN_STEPS)
    return float(np.median(short) - np.median(long)) / (1.0 / short_steps - 1.0 / long_steps)


def _train(rows: Sequence[Row]) -> dict[str, RunResult]:
    """Train the rows in turns of both lengths, each length as often before the other one as behind it."""
    results: dict[str, RunResult] = {}
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
        seats = {row.id: Seat(str(folder / row.id)) for row in rows}
        looks = {
            row.id: executor.executing(
                Contestant.plain(row.contestant), row, 0, folder / "runs", lambda events: None, seat=seats[row.id]
            )
            for row in rows
        }
        for row in rows:
            closing.callback(seats[row.id].close)
            closing.callback(looks[row.id].close)
            closing.callback(seats[row.id].release)
        for steps in itertools.chain([0, 0], itertools.cycle([*TURN_STEPS, *reversed(TURN_STEPS)])):
            training = [row for row in rows if row.id not in results]
            if not training:
                return results
            for row in training:
                if (result := _advance(seats[row.id], looks[row.id], steps)) is not None:
                    results[row.id] = result
    raise AssertionError


def _advance(seat: Seat, looks: Generator[StartedProcess, None, RunResult], steps: int) -> RunResult | None:
    """Give a run a turn. Returns its result if it has ended."""
    seat.start_turn(steps)
    try:
        while not (seat.listen(process := next(looks), POLL_SECONDS) and next(looks) is process):
            pass
    except StopIteration as ended:
        return ended.value
    seat.stop()
    return None


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
