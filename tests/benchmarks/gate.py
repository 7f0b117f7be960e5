"""What the suite itself costs, against its last release: `python -m tests.benchmarks.gate REVISION`.

Ratios, not times: each pair is measured in turn, in fresh processes of this checkout and of one of the revision. The processor
time counts, so other work on the machine hardly disturbs it.

Exit codes: 0 where nothing has become slower, 1 where something has, 5 where it cannot be told: the pairs are too few for so
small a difference, the revision has no such measure, or the clone is shallow and does not hold it. Wrong usage ends in 2, any
other error in 1: a revision that is nowhere, or a measure that fails or has no cost.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from common.machine.machine import PROJECT_ROOT
from compare.running.interleaving import turn
from compare.statistics.statistics import Ratio, paired_ratio
from compare.statistics.verdict_words import interval_words

MOST = 1.15
"""How many times as much it may cost."""
PAIRS = 5
FINE, SLOWER, UNKNOWN = "not slower", "SLOWER", "cannot be told"
_EXITS = {FINE: 0, UNKNOWN: 5, SLOWER: 1}


class Measure(NamedTuple):
    """What is measured in both checkouts."""

    what: str
    file: str
    """Without it, a checkout has no such measure."""
    words: tuple[str, ...]
    """Behind the interpreter's name."""
    cost: Callable[[str, float], float] = lambda printed, seconds: seconds
    """From what it printed and its processor time."""


def _loop(framework: str) -> Measure:
    words = ("-m", "tests.benchmarks.overhead", "--framework", framework)
    file = "tests/benchmarks/overhead.py"
    return Measure(f"the loop's own time, {framework}", file, words, lambda printed, _: json.loads(printed)["microseconds"])


MEASURES = (
    _loop("pytorch"),
    _loop("tensorflow"),
    Measure("--help", "compare/__main__.py", ("-m", "compare", "--help")),
    Measure("the report of an example", "docs/example/compare.json", ("-m", "compare", "report", "docs/example")),
)


def main(words: Sequence[str] | None = None) -> int:
    """Judge all measures, and return the exit code.

    Args:
        words: of the command line. None: those of this process.

    Raises:
        SystemExit: wrong usage, a revision that is nowhere, or a measure that fails or has no cost.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    arguments = parser.parse_args(words)
    if not arguments.revision.strip():
        parser.error(f"revision must name a commit. Received: {arguments.revision!r}. Name the last release's.")
    if arguments.pairs < 2:
        parser.error(f"--pairs must be at least 2: fewer have no interval. Received: {arguments.pairs}.")
    git = ["git", "-C", str(PROJECT_ROOT)]
    if subprocess.run([*git, "cat-file", "-e", f"{arguments.revision}^{{commit}}"], check=False).returncode:
        is_shallow = [*git, "rev-parse", "--is-shallow-repository"]
        if subprocess.run(is_shallow, check=False, stdout=subprocess.PIPE, text=True).stdout.strip() != "true":
            sys.exit(f"There is no revision {arguments.revision} in {PROJECT_ROOT}. Name a commit of its history.")
        print(f"This clone is shallow and has no revision {arguments.revision}, so nothing is compared.", file=sys.stderr)
        return _EXITS[UNKNOWN]
    with contextlib.ExitStack() as undo:
        sides: list[Path] = []
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        # Both are clones, so that neither has files that the other lacks.
        for name, revision in (("base", arguments.revision), ("head", "HEAD")):
            sides.append(folder / name)
            subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(PROJECT_ROOT), str(sides[-1])], check=True)
            subprocess.run(["git", "-C", str(sides[-1]), "checkout", "--quiet", "--detach", revision], check=True)
            refuse_other_code(sides[-1])
        return judge(MEASURES, sides[0], sides[1], arguments.pairs)


def judge(measures: Sequence[Measure], base: Path, head: Path, pairs: int = PAIRS) -> int:
    """Measure each in both checkouts, tell each ratio, and return the exit code.

    Raises:
        SystemExit: a measure fails, or has no cost.
    """
    found: list[str] = []
    for measure in measures:
        if not (base / measure.file).exists():
            found.append(UNKNOWN)
            print(f"{measure.what}: {UNKNOWN}, the revision has no {measure.file}", flush=True)
            continue
        made = [{side: _measured(measure, side) for side in turn([base, head], number)} for number in range(pairs)]
        ratio = paired_ratio([(each[head], each[base]) for each in made], one_look=True)
        found.append(_verdict(ratio))
        said = "no ratio" if ratio is None else f"{interval_words(ratio)} times as much"
        print(f"{measure.what}: {said}, {found[-1]}", flush=True)
    return max((_EXITS[each] for each in found), key=[0, 5, 1].index)


def refuse_other_code(checkout: Path) -> None:
    """End where Python in a checkout takes the suite from elsewhere: both sides would be the same code."""
    command = [sys.executable, "-c", "import common, compare; print(*common.__path__)"]
    found = subprocess.run(command, cwd=checkout, env=_environment(), check=True, stdout=subprocess.PIPE, text=True)
    said = found.stdout.strip()
    if Path(said).resolve() != (checkout / "common").resolve():
        sys.exit(f"Python in {checkout} imports {said}, and not the code of the checkout.")


def _verdict(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return UNKNOWN
    return FINE if ratio.high < MOST else SLOWER if ratio.low > MOST else UNKNOWN


def _environment() -> dict[str, str]:
    """Of a child: with PYTHONSAFEPATH, it would not import from the checkout that it is started in."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}


def _measured(measure: Measure, checkout: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *measure.words]
    done = subprocess.run(command, cwd=checkout, env=_environment(), check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(
            f"{measure.what}: {' '.join(measure.words)} failed in {checkout} with exit code {done.returncode}.\n{done.stderr}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = measure.cost(done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    if not 0.0 < cost < math.inf:
        sys.exit(f"{measure.what}: a cost must be positive and finite. Received: {cost} in {checkout}. Mend the measure.")
    return cost


if __name__ == "__main__":
    sys.exit(main())
