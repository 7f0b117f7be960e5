"""What turns gain, and what they cost: `python -m tests.benchmarks.turns noise FOLDER ...`, `handover`, `seconds` or `scan`.

`noise` prints, for each pair of rows of each results folder, the standard deviation of their ratio over the repeats. Compare a
folder of `run --turns` with one of `run --no-turns` that was made in the same hour.

`handover` trains both frameworks in turns of two lengths, and prints what each handover adds to a turn: the first step after a
pause finds cold caches. That step is not timed, so this is what is left.

`seconds` trains the rows of `--preset verdict` in turns and one after the other, alternately, and prints whether the seconds of
an epoch agree. With `--out` the runs are kept, and the same command goes on.

`scan` sums the pixels of JPEG files in one pass, as `preprocess` does, and in turns of some chunks, and prints how much longer
these take: at the end of each turn, workers wait for the slowest one.
"""

from __future__ import annotations

import argparse
import io
import itertools
import math
import shutil
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from common.artifacts.schema import RunResult
from common.data.decoding.encoded import Encoded
from common.data.preprocessing.scan import file_sums, parts
from common.data.preprocessing.sums import Sums
from common.spec import build
from compare.comparison import comparison_plan, executor
from compare.judgement import slices
from compare.judgement.run_figures import epoch_seconds
from compare.judgement.run_pairs import pairs_of_seconds
from compare.results import store
from compare.running import launch, matrix, presets
from compare.running.contestants import Contestant
from compare.running.interleaving import Job, one_round, turn
from compare.running.launch import StartedProcess
from compare.running.matrix import Row
from compare.running.taking_turns import POLL_SECONDS, TURN_SECONDS, Seat
from compare.running.twins import Twins
from compare.statistics.statistics import paired_ratio

TURN_STEPS = (4, 16)
"""Steps of a short and of a long turn."""
FIELDS = {"global_batch_size": 16, "epochs": 10, "cores": 2}
LEAST_REPEATS = 3
TURN_CHUNKS, SCAN_WORKERS, SCAN_PIXELS = (2, 4, 8), 2, 448
AGREEMENT = 0.01
"""Largest relative difference of median seconds of an epoch, in turns and without."""


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


def print_seconds(repeats: int, folder: Path) -> None:
    """Print for each row its seconds of an epoch in turns over those without, with a 95 % interval over repeats.

    A repeat has both within a minute, so it is a pair.
    """
    settings = presets.preset("verdict")
    twins = Twins(launch.FRAMEWORKS)
    rows = settings.build_rows(twins.contestants)
    seconds: dict[str, list[tuple[float, float]]] = {row.id: [] for row in rows}
    for repeat in range(repeats):
        jobs = one_round(rows, repeat // 2)  # each order meets each way first
        ways: dict[str, dict[str, RunResult]] = {}
        started = time.monotonic()
        for way in turn(("turns", "alone"), repeat):
            ways[way] = _stored_or_made(way, [job._replace(repeat=repeat) for job in jobs], twins, folder / way)
        print(f"repeat {repeat + 1} of {repeats}: {time.monotonic() - started:.0f} s", flush=True)
        for row in rows:
            pair = [ways[way].get(row.id) for way in ("turns", "alone")]
            one, other = pair
            if one is not None and other is not None and one.status == other.status == "ok":
                seconds[row.id].append((epoch_seconds(one), epoch_seconds(other)))
    for row_id, pairs in seconds.items():
        if len(pairs) < LEAST_REPEATS:
            print(f"{row_id}: {len(pairs)} good repeats. {LEAST_REPEATS} are needed.")
            continue
        in_turns, alone = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = paired_ratio(pairs, one_look=True)
        assert ratio is not None and ratio.low is not None and ratio.high is not None  # there are LEAST_REPEATS
        low, high = ratio.low, ratio.high
        within = low > 1.0 - AGREEMENT and high < 1.0 + AGREEMENT
        verdict = f"agree within {100 * AGREEMENT:g} %" if within else f"not shown to agree within {100 * AGREEMENT:g} %"
        if high < 1.0 - AGREEMENT or low > 1.0 + AGREEMENT:
            verdict = f"DIFFER by more than {100 * AGREEMENT:g} %"
        print(
            f"{row_id}: {in_turns:.3f} s in turns, {alone:.3f} s alone; {ratio.value:.3f} ({low:.3f} to {high:.3f}) over "
            f"{len(pairs)} repeats: {verdict}"
        )


def _stored_or_made(way: str, jobs: Sequence[Job[Row]], twins: Twins, folder: Path) -> dict[str, RunResult]:
    """Return the results of a repeat's rows, made now in turns or one after the other if any is missing."""

    def watch(events: list[dict[str, Any]]) -> None:
        """Show nothing."""

    stored = {row.id: comparison_plan.good_result(folder, row, repeat) for row, repeat in jobs}
    if all(stored.values()):
        return {row_id: result for row_id, result in stored.items() if result is not None}
    for row, repeat in jobs:  # a round that was cut short is made again as a whole
        shutil.rmtree(store.run_folder(folder, row.id, repeat), ignore_errors=True)
    if way == "turns":
        return {jobs[place].item.id: result for place, result in executor.execute_together(jobs, twins, folder, watch)}
    return {row.id: executor.execute(twins[row.contestant], row, repeat, folder, watch) for row, repeat in jobs}


def print_scan(repeats: int, files: int) -> None:
    """Print the seconds of a scan in turns over those of one pass: the median of pairs, with quartiles."""
    with tempfile.TemporaryDirectory() as folder:
        chunks = parts(_jpeg_files(Path(folder) / "files", files))
        ratios: dict[int, list[float]] = {chunks_a_turn: [] for chunks_a_turn in TURN_CHUNKS}
        pass_seconds: list[float] = []
        for repeat, chunks_a_turn in itertools.product(range(repeats), TURN_CHUNKS):
            seconds = {size: _scan(chunks, size) for size in turn((chunks_a_turn, len(chunks)), repeat)}
            pass_seconds.append(seconds[len(chunks)])
            ratios[chunks_a_turn].append(seconds[chunks_a_turn] / seconds[len(chunks)])
    chunk_seconds = statistics.median(pass_seconds) / len(chunks)
    for chunks_a_turn, values in ratios.items():
        low, median, high = np.percentile(values, [25, 50, 75])
        print(
            f"turns of {chunks_a_turn} chunks, {chunks_a_turn * chunk_seconds:.2f} s: {median:.2f} times as long as one pass "
            f"({low:.2f} to {high:.2f}, {repeats} pairs, {SCAN_WORKERS} workers)"
        )


def _jpeg_files(path: Path, number: int) -> Encoded:
    """Write JPEG files of smooth noise."""
    random, contents = np.random.default_rng(0), list[bytes]()
    for _ in range(8):
        content = io.BytesIO()
        coarse = Image.fromarray(random.integers(0, 256, (SCAN_PIXELS // 8, SCAN_PIXELS // 8, 3), np.uint8))
        coarse.resize((SCAN_PIXELS, SCAN_PIXELS), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
        contents.append(content.getvalue())
    sizes = np.array([len(contents[place % len(contents)]) for place in range(number)])
    path.write_bytes(b"".join(contents[place % len(contents)] for place in range(number)))
    return Encoded(path, np.cumsum(sizes) - sizes, sizes, np.ones(number, np.bool_))


def _scan(chunks: Sequence[Encoded], chunks_a_turn: int) -> float:
    """Return the seconds of a scan whose workers rest after so many chunks."""
    with ThreadPoolExecutor(SCAN_WORKERS) as pool:
        deque(pool.map(file_sums, chunks[:SCAN_WORKERS], itertools.repeat(SCAN_PIXELS)), maxlen=0)  # a warm-up
        started = time.perf_counter()
        for first in range(0, len(chunks), chunks_a_turn):
            sum(pool.map(file_sums, chunks[first : first + chunks_a_turn], itertools.repeat(SCAN_PIXELS)), Sums())
        return time.perf_counter() - started


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
    seconds = commands.add_parser("seconds")
    seconds.add_argument("--repeats", type=int, default=20)
    seconds.add_argument("--out", type=Path, help="folder that keeps the runs; default: a temporary one")
    scan = commands.add_parser("scan")
    scan.add_argument("--repeats", type=int, default=20)
    scan.add_argument("--files", type=int, default=400)
    arguments = parser.parse_args()
    if arguments.command == "noise":
        print_noise(arguments.folders)
    elif arguments.command == "seconds" and arguments.out is not None:
        print_seconds(arguments.repeats, arguments.out)
    elif arguments.command == "seconds":
        with tempfile.TemporaryDirectory() as folder:
            print_seconds(arguments.repeats, Path(folder))
    elif arguments.command == "scan":
        print_scan(arguments.repeats, arguments.files)
    else:
        print_handover(arguments.repeats)


if __name__ == "__main__":
    main()
