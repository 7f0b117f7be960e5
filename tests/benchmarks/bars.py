"""The bars that are ratios, each pair from fresh processes: `python -m tests.benchmarks.bars` (part of `make bench`).

MiniXception, batch 128, float32, made-up leaves of 32 px, on two cores: what two processes gain over serial on one core and
on both, what their exchange costs them (against the same two processes without any until the end, which is what
model_averaging does), and what the harness costs over a loop written by hand and over others' trainers: there all are timed in
one process, in turn. Then the processor time of its loop for a step in which the framework computes nothing; the seconds from a
twin's command to the first step beyond those of importing the framework; the scans for mean and standard deviation against
their limit and the published way (on real leaves, where they are here); what the switches gain that `compare optimize` finds,
and what part of a step then waits for input; images that are decoded in every epoch against the slower of decoding and
computing; whether an image of many takes more than one of few; and a report over ten thousand runs.

`--parts` measures some of it, `--out` keeps the searches' ladders.

Exit codes: 0 where every bar is met with 95 % confidence, 1 where one is missed or not measured, 2 where the pairs do not tell:
fewer than a verdict needs, or of runs that other work disturbed. What is timed in one process in turn (the harness, the scans),
start-up, which is too short, and the report are not watched for that.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from common import spec
from compare.comparison import run
from compare.judgement.run_figures import epoch_seconds, images_per_second
from compare.judgement.run_pairs import ratio_of_seconds
from compare.judgement.summary import summarize
from compare.results.store import StoredComparison
from compare.running import launch
from compare.running.best_switches import BestSwitches
from compare.running.comparison_settings import ComparisonSettings
from compare.running.interleaving import turn
from compare.running.twins import Twins
from compare.statistics.statistics import VERDICT_PAIRS, MeanEstimate, Ratio, mean_difference, paired_ratio
from compare.statistics.verdict_words import interval_words
from tensorflow_impl.__main__ import _NOT_NEEDED
from tests.benchmarks import flat, harness, overhead, reports, scans
from tests.benchmarks.flat import Pairs
from tests.benchmarks.sealed import Runs
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
"""Model, image size, batch: how many times as fast the best switches are to be as the usual ones."""
EPOCH_STEPS = 5
"""Steps of an epoch of the runs of a pair."""
PACE_EPOCHS = 7
"""Of a few steps each, whose median is the pace of one run."""
SCAN_BARS: tuple[tuple[str, str, float], ...] = (
    (scans.DASK, scans.LIMIT, 0.6),
    (scans.DASK, scans.PUBLISHED, 15.0),
    (scans.TWIN, scans.PUBLISHED, 8.0),
)
"""How many times as many images per second the first is to scan as the second."""
PARTS = ("modes", "harness", "overhead", "start_up", "scans", "best", "streaming", "flat", "reports")
YES, NO, NOT_SHOWN, NO_BAR = "yes", "no", "not shown", "-"
HARNESS_BARS = {harness.BY_HAND: 0.99, harness.KERAS_FIT: 1.0, harness.LIGHTNING: 1.0}
MOST_WAITING = 0.02
"""Part of the time of training that waits for input, cached, at the best switches."""
STREAMED = 0.95
"""Of the pace of decoding or of computing alone, whichever is slower; of decoding by workers or inline, whichever is faster."""
MOST_REPORT_SECONDS = 10.0
MOST_START_UP_SECONDS = {"pytorch": 0.3, "tensorflow": 0.7}
"""From the command to the first step, beyond the import of what a twin needs of its framework."""
IMPORTS = {
    "pytorch": "import os, torch; os._exit(0)",
    "tensorflow": f"import os, sys; sys.modules.update(dict.fromkeys({_NOT_NEEDED})); import tensorflow, keras; os._exit(0)",
}
HARNESS_EPOCHS = 6
"""Of the harness and of each other in a process, whose medians are one pair: a bar of one percent needs several."""


_DISTURBED = ", disturbed by other work"


class _Bars:
    """What was measured so far: the table, and which bars are met. Each row is told when it is known."""

    def __init__(self, frameworks: list[str], pairs: int, folder: Path, searched: dict[str, object], models: list[str]) -> None:
        self.table = Table("framework", "what", "times as fast (95 % interval)", "bar", "met")
        self.rows: list[dict[str, str]] = []
        self._frameworks = frameworks
        self._pairs = pairs
        self._folder = folder
        self._searched = searched
        self._models = models

    def modes(self) -> None:
        stored = _modes(self._frameworks, self._pairs, self._folder / "modes")
        in_doubt = {summary.id: summary.in_doubt for summary in summarize(stored)}
        for framework in self._frameworks:
            for fast, slow, bars in BARS:
                ids = f"{framework}-{slow}", f"{framework}-{fast}"
                doubt = any(in_doubt[each] for each in ids)
                self._add_ratio(framework, f"{fast} over {slow}", _ratio(stored, *ids), bars.get(framework), in_doubt=doubt)

    def harness(self) -> None:
        for framework in self._frameworks:
            for name, ratio in _harness(framework, self._pairs).items():
                self._add_ratio(framework, f"harness over {name}", ratio, HARNESS_BARS[name])

    def overhead(self) -> None:
        for framework in self._frameworks:
            few, many = flat.TRAINED
            found = [
                {images: _overhead(framework, images) for images in turn(flat.TRAINED, number)} for number in range(self._pairs)
            ]
            what = "the loop's own time of a step"
            alone = mean_difference([each[few] for each in found])
            self._add_estimate(framework, what, alone, overhead.MOST_MICROSECONDS, _in_microseconds)
            pairs = [(each[few], each[many]) for each in found]
            self._add_ratio(framework, f"few over many images, {what}", paired_ratio(pairs), 1 / flat.MOST)

    def start_up(self) -> None:
        for framework in self._frameworks:
            beyond = _start_up(framework, self._pairs, Runs(self._folder / framework))
            what = "start-up beyond the import of the framework"
            self._add_estimate(framework, what, beyond, MOST_START_UP_SECONDS[framework], _in_seconds)

    def scans(self) -> None:
        scanned = _scans(self._folder)
        if isinstance(scanned, str):
            Console(stderr=True).print(f"The scans are not measured: {scanned}.", soft_wrap=True)
            return
        for framework in self._frameworks:
            rates = scanned[0].in_turn(framework, scanned[1], self._pairs)
            for fast, slow, bar in SCAN_BARS:
                pair = list(zip(rates[fast], rates[slow], strict=True))
                self._add_ratio(framework, f"scan: {fast} over {slow}", paired_ratio(pair), bar)

    def best(self) -> None:
        for model, image_size, batch_size, bars in (each for each in BEST_BARS if each[0] in self._models):
            for framework in self._frameworks:
                place = self._folder / f"{framework}-{model}"
                searched = self._searched | {"rounds": self._pairs}
                best, ladder = _searched(framework, model, image_size, batch_size, searched, place)
                found = ", ".join(f"{name} {value}" for name, value in best.options.items()) or "nothing is surely faster"
                rates = [
                    f"{step['name']} {_of_matrix_rate(step)}" for step in ladder if step["name"] == "usual" or step["taken"]
                ]
                what, runs = f"{model}, {image_size} px", Runs(place)
                ratio = _best_over_fair(best, self._pairs, runs)
                self._add_ratio(
                    framework,
                    f"best over usual: {what} ({'; '.join((found, *rates))})",
                    ratio,
                    bars[framework],
                    in_doubt=runs.in_doubt,
                )
                runs = Runs(place)
                waits = _waits(best, self._pairs, runs)
                self._add_estimate(
                    framework, f"waits for input at best: {what}", waits, MOST_WAITING, _in_percent, in_doubt=runs.in_doubt
                )

    def streaming(self) -> None:
        for framework in self._frameworks:
            runs = Runs(self._folder / f"{framework}-streaming")
            ratio = _streaming(framework, self._pairs, runs)
            self._add_ratio(framework, "streaming over the slower of its halves", ratio, STREAMED, in_doubt=runs.in_doubt)

    def flat(self) -> None:
        cache = self._folder / "flat"
        self._add_flat("both", flat.of_the_suite(self._pairs, cache))  # first: images are read in once
        for framework in self._frameworks:
            runs = Runs(self._folder / f"{framework}-flat")
            self._add_flat(framework, flat.of_framework(framework, self._pairs, runs, cache), in_doubt=runs.in_doubt)

    def reports(self) -> None:
        seconds = reports.seconds(self._folder / "reports", self._pairs)
        what = f"a report over {reports.RUNS:,} runs"
        self._add_estimate("both", what, mean_difference(seconds), MOST_REPORT_SECONDS, _in_seconds)

    def _add_flat(self, framework: str, found: Pairs, *, in_doubt: bool = False) -> None:
        for what, each in found.items():
            of_times = not what.endswith("memory")  # which other work takes nothing from
            what = f"few over many images, {what}"
            self._add_ratio(framework, what, paired_ratio(each), 1 / flat.MOST, in_doubt=in_doubt and of_times)

    def _add_ratio(self, framework: str, what: str, ratio: Ratio | None, bar: float | None, *, in_doubt: bool = False) -> None:
        shown = interval_words(ratio) if ratio else "not measured"
        shown += _DISTURBED if in_doubt else ""
        self._add(framework, what, shown, f"{bar:.2f}" if bar else "-", met(ratio, bar, in_doubt=in_doubt))

    def _add_estimate(
        self,
        framework: str,
        what: str,
        found: MeanEstimate,
        most: float,
        words: Callable[[float], str],
        *,
        in_doubt: bool = False,
    ) -> None:
        shown = f"{words(found.mean)} ({words(found.mean - found.half_width)} to {words(found.mean + found.half_width)})"
        shown += _DISTURBED if in_doubt else ""
        self._add(framework, what, shown, f"at most {words(most)}", within(found, most, in_doubt=in_doubt))

    def _add(self, *row: str) -> None:
        print(*row, sep=": ", file=sys.stderr, flush=True)
        self.table.add_row(*row)
        self.rows.append(dict(zip(("framework", "what", "measured", "bar", "met"), row, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--frameworks", default=",".join(launch.FRAMEWORKS))
    parser.add_argument("--parts", default=",".join(PARTS))
    models = [model for model, *_ in BEST_BARS]
    parser.add_argument("--models", default=",".join(models), help="whose switches are searched")
    parser.add_argument("--steps", type=int, default=30, help="timed, of each run of the search of switches")
    parser.add_argument("--only", help="switches that are searched; default: all")
    parser.add_argument("--out", type=Path, help="an empty folder that keeps what was measured")
    parser.add_argument("--json", action="store_true", help="print the bars as JSON")
    arguments = parser.parse_args()
    frameworks, parts, searched = (getattr(arguments, each).split(",") for each in ("frameworks", "parts", "models"))
    if unknown := set(parts) - set(PARTS) | set(frameworks) - set(launch.FRAMEWORKS) | set(searched) - set(models):
        parser.error(f"Received: {', '.join(sorted(unknown))}. Use {', '.join((*PARTS, *launch.FRAMEWORKS, *models))}.")
    with contextlib.ExitStack() as kept:
        folder = arguments.out or Path(kept.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            parser.error(f"--out must be empty. Received: {folder}.")
        options: dict[str, object] = {"steps": arguments.steps} | ({"only": arguments.only} if arguments.only else {})
        made = _Bars(frameworks, arguments.pairs, folder, options, searched)
        for part in PARTS:
            if part in parts:
                getattr(made, part)()
    if arguments.json:
        print(json.dumps({"bars": made.rows}, indent=1))
    else:
        Console().print(made.table)
    return exit_code([row["met"] for row in made.rows])


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
    if in_doubt or not ratio.has_enough_pairs:
        return NOT_SHOWN
    if ratio.low is not None and ratio.low >= bar:
        return YES
    return NO if ratio.high is not None and ratio.high < bar else NOT_SHOWN


def within(found: MeanEstimate, most: float, *, in_doubt: bool = False) -> str:
    """Whether a mean is at most so large: YES or NO where its interval says so, else NOT_SHOWN; `in_doubt` as in `met`."""
    if in_doubt or found.freedom + 1 < VERDICT_PAIRS:
        return NOT_SHOWN
    if found.mean + found.half_width <= most:
        return YES
    return NO if found.mean - found.half_width > most else NOT_SHOWN


def _in_seconds(value: float) -> str:
    return f"{value:.2f} s"


def _in_microseconds(value: float) -> str:
    return f"{value:.1f} microseconds"


def _in_percent(part: float) -> str:
    return f"{100 * part:.2f} %"


def _of_matrix_rate(step: dict[str, Any]) -> str:
    rate = step["matrix_fraction"]
    return f"at {rate:.2f} of the matrix rate" if rate else "at an unknown part of the matrix rate"


def _scans(folder: Path) -> tuple[scans.Scans, Path] | str:
    """The images and the limit's program; or why there is nothing to be measured."""
    archive = data_folder() / scans.ARCHIVE
    if not archive.exists():
        return f"{archive} is not here (set CONVTWINS_TEST_DATA)"
    place = folder / "scans"
    place.mkdir()
    program = scans.compiled(place)
    return program if isinstance(program, str) else (scans.Scans(archive, place), program)


def _modes(frameworks: list[str], pairs: int, folder: Path) -> StoredComparison:
    modes = ("serial", "data_parallel", "multi_process", "model_averaging")
    settings = ComparisonSettings(values=SETTINGS | {"epochs": 2}, modes=modes, repeats=pairs, prove=False)
    twins = Twins(frameworks)
    made, _ = run.run_nested(run.ComparisonRequest(settings, settings.build_rows(twins.contestants), twins), folder)
    return made.stored


def _searched(
    framework: str, model: str, image_size: int, batch_size: int, options: dict[str, object], folder: Path
) -> tuple[BestSwitches, list[dict[str, Any]]]:
    """What a search with these options finds, and its ladder; what is stored for `--switches best` stays as it is."""
    words: dict[str, object] = {
        "model": model,
        "framework": framework,
        "data": f"leaves:classes=10,images=1200,size={image_size},seed=1",
        "batch-size": batch_size,
        "cores": SETTINGS["cores"],
        "set": f"paths.cache_dir={folder / 'cache'}",
        "out": folder / "search",
    }
    given = [word for name, value in (words | options).items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "compare", "optimize", *given, "--json"]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    told = json.loads(printed)["frameworks"][framework]
    return BestSwitches.model_validate(told["best"], context={"recorded": True}), told["ladder"]


def _best_over_fair(best: BestSwitches, rounds: int, runs: Runs) -> Ratio | None:
    """What the switches gain, in rounds of their own: of those in which they were found, the ratio would be too large."""
    if not best.options:
        return None
    values = _short(best, part="compute", epochs=PACE_EPOCHS)
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        ways = ({}, best.options)
        turns = turn(ways, number)
        seconds = [epoch_seconds(runs.ran(best.framework, values | {"framework_options": options})) for options in turns]
        found.append((seconds[number % 2], seconds[1 - number % 2]))
    return paired_ratio(found)


def _waits(best: BestSwitches, rounds: int, runs: Runs) -> MeanEstimate:
    """The part of whole trainings that waits for input, cached and inline."""
    parts: list[float] = []
    for _ in range(rounds):
        phases = runs.ran(best.framework, _short(best, epochs=3) | {"framework_options": best.options}).phases
        assert phases is not None
        parts.append(phases.input_wait_seconds / phases.training_seconds)
    return mean_difference(parts)


def _short(best: BestSwitches, **fields: Any) -> dict[str, Any]:
    data = best.spec.data.model_dump() | {"limit": EPOCH_STEPS * best.spec.global_batch_size}
    return best.spec.model_dump() | {"data": data, "checkpoint_seconds": None} | fields


def _streaming(framework: str, rounds: int, runs: Runs) -> Ratio | None:
    """The pace of a training whose images two workers decode in every epoch, over that of the slower of its halves alone.

    Decoding alone is by the same workers or by the training thread, whichever is faster.
    """
    data = SETTINGS["data"] | {"loading": "streaming"}
    values = SETTINGS | {
        "data": data,
        "epochs": 3,
        "input": "workers",
        "workers": SETTINGS["cores"],
        "checkpoint_seconds": None,
    }
    inline = {"input": "inline", "workers": 0}
    decoding = {"part": "input", "epochs": 20}
    parts: list[dict[str, Any]] = [{}, decoding, decoding | inline, {"part": "compute"} | inline]
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        turns = turn(range(len(parts)), number)
        paces = {turn: images_per_second(runs.ran(framework, values | parts[turn])) for turn in turns}
        found.append((paces[0], min(max(paces[1], paces[2]), paces[3])))
    return paired_ratio(found)


def _ratio(stored: StoredComparison, slow: str, fast: str) -> Ratio | None:
    rows = {row.id: row for row in stored.comparison.rows}
    return ratio_of_seconds(stored, rows[slow], rows[fast])


def _start_up(framework: str, pairs: int, runs: Runs) -> MeanEstimate:
    """Seconds from a twin's command to the first step less those of a bare import, in turn; the first pair warms the caches."""
    wanted = spec.build(SETTINGS | {"epochs": None, "steps": 2})
    beyond: list[float] = []

    def bare() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORTS[framework]], check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start

    def whole() -> float:
        phases = runs.ran(framework, wanted).phases
        assert phases is not None
        return phases.import_seconds + phases.build_seconds

    for number in range(pairs + 1):
        turns = (bare, whole) if number % 2 == 0 else (whole, bare)
        seconds = {turn: turn() for turn in turns}
        beyond.append(seconds[whole] - seconds[bare])
    return mean_difference(beyond[1:])


def _overhead(framework: str, images: int) -> float:
    """Microseconds of a step, from a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.overhead", "--framework", framework, "--images", str(images)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["microseconds"]


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
