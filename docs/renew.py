"""Makes the example of these pages again, and all that is quoted of it, and the tables of measurements from stored results.

    make example                               the example and all that shows it
    make measurements                          tables of measurements.md, from the results in docs/measured and docs/example
    python docs/renew.py measure NAME...       first runs the commands of these tables, and stores their results there
    python docs/renew.py measure environments OLD=FOLDER NEW=FOLDER    says which environments a command's words stand for
    python docs/renew.py store NAME FOLDER...  takes comparisons that have been run already

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
from pathlib import Path

DOCS = Path(__file__).parent
sys.path += [str(DOCS.parent), str(DOCS)]

import measurements  # noqa: E402

from common.artifacts import atomic_files  # noqa: E402

EXAMPLE = measurements.EXAMPLE
PAGE = DOCS / "reading-a-report.md"
PICTURE = "seconds_per_epoch.png"
RUN = ("run", "--preset", "digits", "--modes", "serial", "--cores", "1", "--repeats", "5", "--out", "example")
_BLOCK = re.compile(r"^```(bash)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REFERENCE = "\n## The files of a report\n"
"""Behind this heading the page quotes no report."""


def main(task: str = "example", *words: str) -> None:
    """Train the example and renew what shows it; or measure or store tables, and renew all of the page's measurements."""
    if task == "example":
        _renew_example()
        return
    if task == "store":
        measurements.store(*words)
    else:
        named = dict(word.split("=", 1) for word in words if "=" in word)
        places = {word: str(Path(folder).absolute()) for word, folder in named.items()}  # commands run in another folder
        for name in (word for word in words if "=" not in word):
            measurements.measure(name, places)
    measurements.PAGE.write_text(measurements.with_results(measurements.PAGE.read_text()))


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
