"""The bars that are ratios, each pair from fresh processes: `python -m tests.benchmarks.bars` (part of `make bench`).

MiniXception, batch 128, float32, made-up leaves of 32 px, on two cores: what two processes gain over serial on one core and
on both, what their exchange costs them (against the same two processes without any until the end, which is what
model_averaging does), and what the harness costs over a loop written by hand and over others' trainers: there all are timed in
one process, in turn. Then the seconds from the command to the first step beyond those of importing the framework, the scans
for mean and standard deviation against their limit and the published way (on real leaves, where they are here), and what
the switches gain that `compare optimize` finds. `--parts` measures some of it.

Exit codes: 0 where every bar is met with 95 % confidence, 1 where one is missed or not measured, 2 where the pairs do not tell:
fewer than a verdict needs, or of runs that other work disturbed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common import results, spec
from compare import launch, run
from compare.best import Best
from compare.presets import Preset
from compare.statistics import Estimate, Ratio, interval_words, of_differences, paired_ratio
from compare.store import Stored
from compare.summary import epoch_seconds, ratio_of_seconds, summarize
from compare.switch_search import EPOCH_STEPS
from tests.benchmarks import harness, scans
from tests.conftest import data_folder

BARS: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("multi_process-2replicas", "serial-1core", {"pytorch": 1.9, "tensorflow": 1.85}),
    ("multi_process-2replicas", "serial-2cores", {"pytorch": 1.0, "tensorflow": 1.0}),
    ("multi_process-2replicas", "model_averaging-2replicas", {"pytorch": 0.95, "tensorflow": 0.95}),
    ("data_parallel-2replicas", "serial-1core", {}),
)
"""How many times as fast the first is to be as the second; without a number it is shown as it is."""
SETTINGS = harness.SETTINGS | {
    "data": {"source": "leaves:classes=10,images=1200,size=32,seed=1", "limit": 768},
    "optimizer": {"name": "adam", "learning_rate": 1e-3},
    "cores": 2,
}
BEST_BARS: tuple[tuple[str, int, int, dict[str, float]], ...] = (
    ("mini_xception", 32, 128, {"pytorch": 2.4, "tensorflow": 1.3}),
    ("resnet18", 64, 64, {"pytorch": 1.6, "tensorflow": 1.4}),
)
"""Model, image size, batch: how many times as fast the best switches are to be as the fair ones."""
PACE_EPOCHS = 7
"""Of a few steps each, whose median is the pace of one run."""
SCAN_BARS: tuple[tuple[str, str, float], ...] = (
    (scans.DASK, scans.LIMIT, 0.6),
    (scans.DASK, scans.PUBLISHED, 15.0),
    (scans.TWIN, scans.PUBLISHED, 8.0),
)
"""How many times as many images per second the first is to scan as the second."""
PARTS = ("modes", "harness", "start_up", "scans", "best")
YES, NO, NOT_SHOWN, NO_BAR = "yes", "no", "not shown", "-"
HARNESS_BARS = {harness.BY_HAND: 0.99, harness.KERAS_FIT: 1.0, harness.LIGHTNING: 1.0}
MOST_START_UP_SECONDS = 2.0
"""From the command to the first step, beyond the import of the framework: spec, data from the cache, weights, model."""
IMPORTS = {
    name: f"import os, {packages}; os._exit(0)"
    for name, packages in (("pytorch", "torch"), ("tensorflow", "tensorflow, keras"))
}
HARNESS_EPOCHS = 6
"""Of the harness and of each other in a process, whose medians are one pair: a bar of one percent needs several."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--frameworks", default=",".join(launch.FRAMEWORKS))
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments = parser.parse_args()
    frameworks, parts, pairs = arguments.frameworks.split(","), arguments.parts.split(","), arguments.pairs
    if unknown := set(parts) - set(PARTS) | set(frameworks) - set(launch.FRAMEWORKS):
        parser.error(f"Received: {', '.join(sorted(unknown))}. Use {', '.join((*PARTS, *launch.FRAMEWORKS))}.")
    table = Table("framework", "what", "times as fast (95 % interval)", "bar", "met")
    answers: list[str] = []

    def add(framework: str, what: str, ratio: Ratio | None, bar: float | None, *, in_doubt: bool = False) -> None:
        shown = interval_words(ratio) if ratio else "not measured"
        answer = met(ratio, bar, in_doubt=in_doubt)
        shown += ", disturbed by other work" if in_doubt else ""
        answers.append(answer)
        table.add_row(framework, what, shown, f"{bar:.2f}" if bar else "-", answer)

    with tempfile.TemporaryDirectory() as folder:
        stored = _modes(frameworks, pairs, Path(folder) / "modes") if "modes" in parts else None
        scanned = _scans(Path(folder)) if "scans" in parts else None
        if isinstance(scanned, str):
            Console().print(f"The scans are not measured: {scanned}.", soft_wrap=True)
        in_doubt = {summary.id: summary.in_doubt for summary in summarize(stored)} if stored else {}
        for framework in frameworks:
            for fast, slow, bars in BARS if stored else ():
                ids = f"{framework}-{slow}", f"{framework}-{fast}"
                doubt = any(in_doubt[each] for each in ids)
                add(framework, f"{fast} over {slow}", _ratio(stored, *ids), bars.get(framework), in_doubt=doubt)
            if "harness" in parts:
                for name, ratio in _harness(framework, pairs).items():
                    add(framework, f"harness over {name}", ratio, HARNESS_BARS[name])
            if "start_up" in parts:
                beyond = _start_up(framework, pairs, Path(folder) / framework)
                answers.append(within(beyond, MOST_START_UP_SECONDS))
                shown = f"{beyond.mean:.2f} s ({beyond.mean - beyond.half:.2f} to {beyond.mean + beyond.half:.2f})"
                most = f"at most {MOST_START_UP_SECONDS:g} s"
                table.add_row(framework, "start-up beyond the import of the framework", shown, most, answers[-1])
            if isinstance(scanned, tuple):
                rates = scanned[0].in_turn(framework, scanned[1], pairs)
                for fast, slow, bar in SCAN_BARS:
                    pair = list(zip(rates[fast], rates[slow], strict=True))
                    add(framework, f"scan: {fast} over {slow}", paired_ratio(pair), bar)
            for model, image_size, batch_size, bars in BEST_BARS if "best" in parts else ():
                ratio, found = _best(framework, model, image_size, batch_size, pairs, Path(folder) / f"{framework}-{model}")
                add(framework, f"best over fair: {model}, {image_size} px ({found})", ratio, bars[framework])
    Console().print(table)
    return exit_code(answers)


def exit_code(answers: Sequence[str]) -> int:
    """Of the command, see above.

    Args:
        answers: of `met`.
    """
    return 1 if NO in answers else 2 if NOT_SHOWN in answers else 0


def met(ratio: Ratio | None, bar: float | None, *, in_doubt: bool = False) -> str:
    """Whether a ratio is at least as large as its bar: YES or NO where its interval says so, else NOT_SHOWN.

    Args:
        ratio: as measured; None: it was not, which is NO.
        bar: None: NO_BAR is to be met.
        in_doubt: whether other work disturbed one of its runs.
    """
    if ratio is None:
        return NO
    if bar is None:
        return NO_BAR
    if in_doubt or not ratio.decided:
        return NOT_SHOWN
    if ratio.low is not None and ratio.low >= bar:
        return YES
    return NO if ratio.high is not None and ratio.high < bar else NOT_SHOWN


def within(found: Estimate, most: float) -> str:
    """Whether a mean is at most so large: YES or NO where its interval says so, else NOT_SHOWN."""
    if found.mean + found.half <= most:
        return YES
    return NO if found.mean - found.half > most else NOT_SHOWN


def _scans(folder: Path) -> tuple[scans.Scans, Path] | str:
    """The images and the limit's program; or why there is nothing to be measured."""
    archive = data_folder() / scans.ARCHIVE
    if not archive.exists():
        return f"{archive} is not here (set CONVTWINS_TEST_DATA)"
    place = folder / "scans"
    place.mkdir()
    program = scans.compiled(place)
    return program if isinstance(program, str) else (scans.Scans(archive, place), program)


def _modes(frameworks: list[str], pairs: int, folder: Path) -> Stored:
    modes = ("serial", "data_parallel", "multi_process", "model_averaging")
    request = run.Request(Preset(SETTINGS | {"epochs": 2}, modes, replicas=2, repeats=pairs), frameworks, folder, prove=False)
    made, _ = run.within(request, folder)
    return made.stored


def _best(framework: str, model: str, image_size: int, batch_size: int, rounds: int, folder: Path) -> tuple[Ratio | None, str]:
    """What the switches gain that a search finds, and which they are; what is stored for `--switches best` stays as it is."""
    words: dict[str, object] = {
        "model": model,
        "framework": framework,
        "data": f"leaves:classes=10,images=1200,size={image_size},seed=1",
        "batch-size": batch_size,
        "rounds": rounds,
        "cores": SETTINGS["cores"],
        "set": f"paths.cache_dir={folder / 'cache'}",
        "out": folder / "search",
    }
    options = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "compare", "optimize", *options, "--json"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    best = Best.model_validate(json.loads(printed)["frameworks"][framework]["best"], context={"recorded": True})
    if not best.options:
        return None, "nothing is surely faster"
    # In rounds of their own: of those in which it was found to be the fastest, the ratio would be too large.
    data = best.spec.data.model_dump() | {"limit": EPOCH_STEPS * batch_size}
    values = best.spec.model_dump() | {"part": "compute", "epochs": PACE_EPOCHS, "data": data, "checkpoint_seconds": None}
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        ways = ({}, best.options)
        seconds = [_paced(framework, values, options, folder) for options in (ways if number % 2 == 0 else reversed(ways))]
        found.append((seconds[number % 2], seconds[1 - number % 2]))
    return paired_ratio(found), ", ".join(f"{name} {value}" for name, value in best.options.items())


def _paced(framework: str, values: dict[str, Any], options: dict[str, Any], folder: Path) -> float:
    (folder / "spec.json").write_text(spec.build(values | {"framework_options": options}).to_json(), "utf-8")
    if launch.call(framework, ["run", str(folder / "spec.json"), "--out", str(folder)], log=folder / "log.txt") != 0:
        raise RuntimeError((folder / "log.txt").read_text("utf-8"))
    return epoch_seconds(results.load(folder / results.RESULT_FILE))


def _ratio(stored: Stored, slow: str, fast: str) -> Ratio | None:
    rows = {row.id: row for row in stored.comparison.rows}
    return ratio_of_seconds(stored, rows[slow], rows[fast])


def _start_up(framework: str, pairs: int, folder: Path) -> Estimate:
    """Seconds from the command to the first step less those of a bare import, in turn; the first of both warms the caches."""
    folder.mkdir()
    values = SETTINGS | {"epochs": None, "steps": 2}
    (folder / "spec.json").write_text(spec.build(values).to_json(), "utf-8")
    beyond: list[float] = []

    def bare() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORTS[framework]], check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start

    def whole() -> float:
        words = ["run", str(folder / "spec.json"), "--out", str(folder)]
        if launch.call(framework, words, log=folder / "log.txt") != 0:
            raise RuntimeError((folder / "log.txt").read_text("utf-8"))
        phases = results.load(folder / results.RESULT_FILE).phases
        assert phases is not None
        return phases.import_seconds + phases.build_seconds

    for number in range(pairs + 1):
        turns = (bare, whole) if number % 2 == 0 else (whole, bare)
        seconds = {turn: turn() for turn in turns}
        beyond.append(seconds[whole] - seconds[bare])
    return of_differences(beyond[1:])


def _harness(framework: str, processes: int) -> dict[str, Ratio | None]:
    """How many times as fast the harness is as each other that can be measured here, by its name."""
    command = [sys.executable, "-m", "tests.benchmarks.harness", "--framework", framework, "--rounds", str(HARNESS_EPOCHS)]
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in harness.RIVALS[framework] if harness.is_installed(name)}
    for _ in range(processes):
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = {name: statistics.median(seconds) for name, seconds in json.loads(printed).items()}
        for name, each in pairs.items():
            each.append((found[name], found[harness.HARNESS]))
    return {name: paired_ratio(each) for name, each in pairs.items()}


if __name__ == "__main__":
    sys.exit(main())
