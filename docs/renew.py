"""Makes the example of these pages again, and all that is quoted of it, and the tables of measurements from stored results.

    make example                          the example and all that shows it
    make measurements                     tables of measurements.md, from the results in docs/measured and docs/example
    python docs/renew.py measure NAME     first runs the command of MEASURED[NAME], and stores its results there

The example is a comparison of five repeats in docs/example. Its picture is in docs/images. The notebook shows it. The page
reading-a-report.md quotes each section of its report. Numbers in the page's sentences are yours to renew: a test names the
stale ones.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent))

from common.artifacts import atomic_files  # noqa: E402
from common.machine import machine  # noqa: E402
from compare.cli import wording  # noqa: E402
from compare.reporting import comparison_report, tables  # noqa: E402
from compare.reporting.document import without_options  # noqa: E402
from compare.reporting.tables import Column, Table  # noqa: E402

EXAMPLE = DOCS / "example"
PAGE = DOCS / "reading-a-report.md"
PICTURE = "seconds_per_epoch.png"
RUN = ("run", "--preset", "digits", "--modes", "serial", "--cores", "1", "--repeats", "5", "--out", "example")
_BLOCK = re.compile(r"^```(bash)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REFERENCE = "\n## The files of a report\n"
"""Behind this heading the page quotes no report."""


MEASUREMENTS, MEASURED_FOLDER = DOCS / "measurements.md", DOCS / "measured"
MEASURED = {"referee": ("parity", "--referee", "--model", "simple_cnn,mini_xception,resnet18")}
"""Commands whose results make a table, by the name of their file in docs/measured."""
_RESULTS = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
"""A table of stored results on a page."""


def main(task: str = "example", *names: str) -> None:
    """Train the example and renew what shows it, or renew the tables of measurements, these measured again."""
    if task == "example":
        _renew_example()
        return
    for name in names:
        measure(name)
    MEASUREMENTS.write_text(with_results(MEASUREMENTS.read_text()))


def measure(name: str) -> None:
    """Run a command of MEASURED, and store its results with the machine, the versions and the day."""
    with tempfile.TemporaryDirectory() as folder:
        values = json.loads(_convtwins(*MEASURED[name], "--json", cwd=Path(folder)))
        described = json.loads(_convtwins("doctor", "--json", cwd=Path(folder)))
    facts = machine.describe()
    record = {
        "command": [*MEASURED[name]],
        "day": datetime.now(UTC).strftime("%-d %B %Y"),
        "machine": machine.processors(facts),
        "cores": facts["logical_cores"],
        "versions": {framework["name"]: framework["version"] for framework in described["frameworks"]},
        "lines": values["lines"],
    }
    MEASURED_FOLDER.mkdir(exist_ok=True)
    atomic_files.write_atomically(MEASURED_FOLDER / f"{name}.json", json.dumps(record, indent=1) + "\n")


def with_results(page: str, folder: Path = MEASURED_FOLDER) -> str:
    """A page with each table of stored results as these make it today.

    Raises:
        FileNotFoundError: a table has no stored results.
    """

    def block(match: re.Match[str]) -> str:
        name = match[2]
        text = example_table() if name == "example" else measured_table(name, json.loads((folder / f"{name}.json").read_text()))
        return f"{match[1]}{text}{match[3]}"

    return _RESULTS.sub(block, page)


def measured_table(name: str, record: dict[str, Any]) -> str:
    """The table of one stored record, below its command, machine, versions and day."""
    command = f"    .venv/bin/convtwins {wording.shell(record['command'])}"
    where = f"{wording.count(record['cores'], 'core')} of {record['machine']}, {wording.versions(record['versions'])}"
    return f"{command}\n\n{_TABLES[name](record['lines'])} From docs/measured/{name}.json: {where}, {record['day']}.\n"


def _referee_table(lines: list[dict[str, Any]]) -> str:
    """For each model and optimizer the larger difference of the frameworks, in float64, and its tolerance."""
    headings = {"gradients of the first step": "gradients", "losses": "losses", "last weights": "weights"}
    cells: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for line in lines:
        if (line["precision"], line["referee"]) == ("float64", "float64") and line["what"] in headings and line["tolerance"]:
            row = cells.setdefault((line["model"], line["optimizer"]), {})
            worst = max(row.get(line["what"], (0.0, 0.0)), (line["difference"], line["tolerance"]))
            row[line["what"]] = worst
    rows = [
        {"model": model, "optimizer": optimizer}
        | {headings[what]: f"{difference:.1e} ({tolerance:.0e})" for what, (difference, tolerance) in row.items()}
        for (model, optimizer), row in cells.items()
    ]
    columns = (
        Column("model", "model"),
        Column("optimizer", "optimizer"),
        Column("gradients", "gradients of the first step"),
        Column("losses", "losses"),
        Column("weights", "last weights"),
    )
    judged = [line for line in lines if line["tolerance"]]
    passed = sum(line["difference"] <= line["tolerance"] for line in judged)
    return f"{_markdown(columns, rows)}\n{passed} of {len(judged)} comparisons passed."


_TABLES = {"referee": _referee_table}


def example_table() -> str:
    """The times of the example in docs/example, as its judged results have them."""
    judged = comparison_report.read(EXAMPLE)
    rows = [
        {"row": summary.name, "seconds": summary.epoch_seconds, "accuracy": summary.test.accuracy, "n": summary.repeats_done}
        for summary in judged.summaries
    ]
    columns = (
        Column("row", "row"),
        Column("seconds", "seconds per epoch", 3, interval=True),
        Column("accuracy", "test accuracy", 4, interval=True),
        Column("n", "repeats"),
    )
    comparison = judged.stored.comparison
    words = wording.shell(without_options(comparison.argv, "--out"))
    day = f"{datetime.fromisoformat(comparison.created_at):%-d %B %Y}"
    where = f"{wording.count(comparison.machine['logical_cores'], 'core')} of {machine.processors(comparison.machine)}"
    return f"    .venv/bin/convtwins {words}\n\n{_markdown(columns, rows)}\nFrom docs/example: {where}, {day}.\n"


def _markdown(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> str:
    """A table without a heading."""
    return tables.to_markdown(Table("measured", "", columns, rows)).partition("\n\n")[2]


def _renew_example() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "example"
        _convtwins(*RUN, cwd=Path(folder))
        shutil.rmtree(EXAMPLE, ignore_errors=True)
        for record in (made / "compare.json", *made.glob("runs/*/result.json")):
            copy = EXAMPLE / record.relative_to(made)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(without_paths(record.read_text()))
        PAGE.write_text(renewed(PAGE.read_text(), report(EXAMPLE, Path(folder) / "report")))
        shutil.copy(Path(folder) / "report" / "plots" / PICTURE, DOCS / "images" / PICTURE)
    # Jupyter is in an environment of its own, and the notebook needs what is in this one.
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "PYTHONWARNINGS": "ignore"}
    subprocess.run(["jupyter", "execute", "--inplace", DOCS / "notebook.ipynb"], env=environment, check=True)


def without_paths(record: str) -> str:
    """A stored record with this checkout's folder called /convtwins, and its checksum made anew."""
    values = json.loads(record.replace(str(DOCS.parent), "/convtwins"))
    values.pop("sha256", None)
    return atomic_files.with_checksum(json.dumps(values))


def report(example: Path, out: Path) -> str:
    """What `convtwins report` prints of stored results: the first screen, and everything. Its files go into `out`, a copy."""
    shutil.copytree(example, out)
    first, everything = (_convtwins("report", out.name, *full, cwd=out.parent) for full in ((), ("--full",)))
    return f"{first}\n{everything}".replace(f"{DOCS.parent}/.venv/", ".venv/")  # as a reader in the clone would see it


def renewed(page: str, printed: str) -> str:
    """A page with each block of it as a report prints that section today. A block's first line is the section's title.

    Raises:
        KeyError: the report has no such section.
    """
    sections = re.split(r"\n\n(?=\S)", "\n".join(line.rstrip() for line in printed.splitlines()))
    # The first screen and the heading have no title. They begin with the names of the model and the data.
    titled = {_title(section): section for section in sections}
    return _BLOCK.sub(lambda block: block[0] if block[1] else f"```\n{titled[_title(block[2])].rstrip()}\n```", page)


def stale(page: str) -> set[str]:
    """The decimal numbers in a page's sentences that none of its blocks holds."""
    quoting = page.partition(REFERENCE)[0]
    blocks = " ".join(text for _, text in _BLOCK.findall(quoting))
    return {number for number in re.findall(r"\d+\.\d+", _BLOCK.sub("", quoting)) if number not in blocks}


def _title(section: str) -> str:
    return section.partition("\n")[0].partition(",")[0]


def _convtwins(*arguments: str, cwd: Path) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(DOCS.parent),
        "COLUMNS": "100" if "report" in arguments and "--full" not in arguments else "120",
    }
    command = [sys.executable, "-m", "compare", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
