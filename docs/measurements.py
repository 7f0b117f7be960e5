"""The tables of measurements.md that are made from stored results, see renew.py.

An entry of `MEASURED` names the commands of a table and its kind, see measured_tables.py. docs/measured holds what is kept of
their results. So a table can be made again anywhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
sys.path += [str(DOCS), str(DOCS.parent)]

import measured_tables as kinds  # noqa: E402

from common.artifacts import atomic_files  # noqa: E402
from common.machine import machine  # noqa: E402
from compare.cli import wording  # noqa: E402
from compare.reporting import comparison_report, tables  # noqa: E402
from compare.reporting.document import without_output_options  # noqa: E402
from compare.reporting.tables import Column, Table  # noqa: E402

PAGE, FOLDER, EXAMPLE = DOCS / "measurements.md", DOCS / "measured", DOCS / "example"
_RESULTS = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
"""A table of stored results on the page."""


class Entry(NamedTuple):
    """A table of the page."""

    kind: kinds.Kind
    commands: Sequence[str]
    """Words of convtwins, or of a module whose name has a dot."""


_LEAVES = "--data leaves:classes=10,images=1000,size=32 --limit 256 --set global_batch_size=128"
_SHORT = f"--model mini_xception {_LEAVES} --epochs 2"
_LAYERS = "--model mini_xception --data leaves:classes=10,images=1200,size=32,seed=1 --batch-size 128 --cores 2"
_ONE_CORE = "--modes serial --cores 1 --no-proof --repeats 7"
_KERAS = f"run --frameworks pytorch,keras-torch,tensorflow,keras-tensorflow {_ONE_CORE}"
# Both in one environment, so with the same JAX.
_KERAS_JAX = f"run --contestant jax=jax@keras-jax --contestant keras-jax=keras-jax@keras-jax {_ONE_CORE}"
_INPUT = "--set data.loading=streaming --input-only --workers 0,1,2,4,8 --modes serial --epochs 3"
_PLAN = "--modes data_parallel,multi_process,parameter_server,tensor_parallel,pipeline,model_averaging --score --repeats 5"
_REGRESS = "--frameworks pytorch --model mini_xception --epochs 3 --limit 400 --batch-size 32 --repeats 6"
_BARS = "tests.benchmarks.bars --parts"
MEASURED = {
    "modes": Entry(kinds.MODES, [f"run {_SHORT} --modes all --oversubscribe --no-turns --no-proof --repeats 5"]),
    "keras": Entry(kinds.KERAS, [f"{_KERAS} --model simple_cnn --data digits", f"{_KERAS} {_SHORT}"]),
    "keras-jax": Entry(kinds.KERAS, [f"{_KERAS_JAX} --model simple_cnn --data digits", f"{_KERAS_JAX} {_SHORT}"]),
    "suite": Entry(kinds.BARS, [f"{_BARS} harness,overhead,start_up"]),
    "input": Entry(
        kinds.INPUTS,
        [f"run --data tomato-leaf-subset.tar {_INPUT}", f"run --data leaves:classes=38,images=20000,size=64 {_INPUT}"],
    ),
    "flat": Entry(kinds.BARS, [f"{_BARS} flat"]),
    "preprocess": Entry(kinds.SCANS, ["preprocess tomato-leaf-subset.tar --workers 1,2,4,8 --repeats 3"]),
    "switches": Entry(kinds.SWITCHES, [f"optimize {_LAYERS} --only arithmetic,memory_format,allocator,onednn --steps 8"]),
    "layers": Entry(kinds.LAYERS, [f"layers {_LAYERS} --calls 5"]),
    "plan": Entry(kinds.PREDICTIONS, [f"plan --model simple_cnn --data digits --image-size 32 --limit 1280 {_PLAN}"]),
    "steps": Entry(
        kinds.STEPS, [f"parity --single-steps --model {model} --modes all" for model in ("simple_cnn", "mini_xception")]
    ),
    "steps-resnet18": Entry(kinds.STEPS, ["parity --single-steps --model resnet18 --modes all"]),
    "referee": Entry(kinds.REFEREE, ["parity --referee --model simple_cnn,mini_xception,resnet18"]),
    "pairs": Entry(kinds.PAIRS, ["selftest --frameworks pytorch --real-pairs 60 --slowdown 3% --within 8 --epochs 6"]),
    "verdict": Entry(kinds.VERDICTS, ["run --preset verdict --until-decided --most-repeats 7 --smallest-effect 5%"] * 10),
    "environments": Entry(kinds.ENVIRONMENTS, [f"regress --environments OLD NEW {_REGRESS}"]),
}
"""The tables by the name of their file in docs/measured."""


def measure(name: str, places: Mapping[str, str]) -> None:
    """Run the commands of a table and store what its kind keeps, with the machine, the versions and the day.

    Args:
        places: {word: folder of the environment that it stands for}, see `placed`.
    """
    entry = MEASURED[name]
    runs: list[kinds.Values] = []
    versions: list[Mapping[str, str]] = []
    folder = tempfile.mkdtemp(prefix=f"{name}-")  # it stays if a command fails: `store` takes the comparisons that have ended
    facts = _answer(["doctor"], folder)
    for command in entry.commands:
        start = time.perf_counter()
        values = _answer([placed(word, places) for word in command.split()], folder)
        runs.append({"command": command, "seconds": time.perf_counter() - start, **entry.kind.keep(values)})
        versions += values["comparison"]["versions"].values() if "comparison" in values else ()
    shutil.rmtree(folder)
    installed = [framework["versions"] for framework in facts["frameworks"] if framework["error"] is None]
    in_rows = "baseline" in values  # the table of a change has its versions
    _store(name, facts, [] if in_rows else versions or installed, datetime.now(UTC), runs)


def placed(word: str, places: Mapping[str, str]) -> str:
    """A word of a command with the folder of the environment that it names: the whole word, or what stands behind its `@`."""
    contestant, at, environment = word.rpartition("@")
    return f"{contestant}{at}{places.get(environment, environment)}"


def store(name: str, *folders: str) -> None:
    """Store what the kind of a table keeps of comparisons that are in these folders. Their reports end their seconds."""
    runs: list[kinds.Values] = []
    versions: list[Mapping[str, str]] = []
    for folder in map(Path, folders):
        values, comparison = comparison_values(folder)
        began = datetime.fromisoformat(comparison["created_at"])
        seconds = (folder / "report.html").stat().st_mtime - began.timestamp()
        command = wording.shell(without_output_options(comparison["argv"]))
        if command not in MEASURED[name].commands:
            raise SystemExit(f"{folder} is of another command. Received: {command}.")
        runs.append({"command": command, "seconds": seconds, **MEASURED[name].kind.keep(values)})
        versions += comparison["versions"].values()
    _store(name, comparison["machine"], versions, began, runs)


def comparison_values(folder: Path) -> tuple[kinds.Values, kinds.Values]:
    """The JSON of the report of a stored comparison, and what it says of the comparison."""
    values = json.loads(comparison_report.report(comparison_report.read(folder), folder).to_json())
    return values, values["comparison"]


def _store(
    name: str, facts: kinds.Values, versions: Iterable[Mapping[str, str]], day: datetime, runs: list[kinds.Values]
) -> None:
    record = {
        "day": f"{day:%-d %B %Y}",
        "machine": machine.processors(facts),
        "cores": facts["logical_cores"],
        "versions": {package: version for each in versions for package, version in each.items()},
        "runs": runs,
    }
    FOLDER.mkdir(exist_ok=True)
    atomic_files.write_atomically(FOLDER / f"{name}.json", json.dumps(record, indent=1) + "\n")


def _answer(words: Sequence[str], folder: str) -> kinds.Values:
    """The JSON of a command. Its exit code may say that it found something wrong, which the table will show.

    Raises:
        SystemExit: it printed nothing. It has said why on stderr.
    """
    module = [] if "." in words[0] else ["compare"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DOCS.parent), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", *module, *words, "--json"]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        print(f"What was measured before it is in {folder}.", file=sys.stderr)
        raise SystemExit(done.returncode or 1)
    return json.loads(done.stdout)


def with_results(page: str, folder: Path = FOLDER) -> str:
    """A page with each table of stored results as these make it today. One that has no stored results yet stays as it is.

    Raises:
        KeyError: there is no such table.
    """

    def block(match: re.Match[str]) -> str:
        name, record = match[2], folder / f"{match[2]}.json"
        if name == "example":
            return f"{match[1]}{_example()}{match[3]}"
        kind = MEASURED[name].kind
        if not record.exists():
            return match[0]
        return f"{match[1]}{measured_table(kind, name, json.loads(record.read_text()))}{match[3]}"

    return _RESULTS.sub(block, page)


def measured_table(kind: kinds.Kind, name: str, record: kinds.Values) -> str:
    """The table of one stored record, between its commands and its machine, versions and day."""
    seconds = sum(run["seconds"] for run in record["runs"])
    where, versions = _machine(record["cores"], record["machine"]), wording.versions(record["versions"])
    facts = filter(None, (where, versions, record["day"], f"in {seconds:,.0f} s"))
    return _block(kind, record["runs"], f"docs/measured/{name}.json", facts)


def _example() -> str:
    values, comparison = comparison_values(EXAMPLE)
    facts = comparison["machine"]
    day = f"{datetime.fromisoformat(comparison['created_at']):%-d %B %Y}"
    run = {"command": wording.shell(without_output_options(comparison["argv"])), **kinds.RUN.keep(values)}
    return _block(kinds.RUN, [run], "docs/example", [_machine(facts["logical_cores"], machine.processors(facts)), day])


def _machine(cores: int, processors: str) -> str:
    return f"{wording.count(cores, 'core')} of {processors}"


def _block(kind: kinds.Kind, runs: list[kinds.Values], source: str, facts: Iterable[str]) -> str:
    """The commands of a table, the table, and what it rests on."""
    commands = [run["command"] for run in runs]
    made = kind.table(runs)
    headings = dict.fromkeys(heading for row in made.rows for heading in row)
    columns = tuple(Column(heading, heading, made.digits.get(heading)) for heading in headings)
    table = tables.to_markdown(Table("measured", "", columns, made.rows)).partition("\n\n")[2]
    lines = [
        f"    .venv/bin/{'python -m ' if '.' in command.split()[0] else 'convtwins '}{command}"
        f"{f'  # {commands.count(command)} times' if commands.count(command) > 1 else ''}"
        for command in dict.fromkeys(commands)
    ]
    return "\n".join([*lines, "", table, f"{made.sentences} From {source}: {', '.join(facts)}.".strip(), ""])
