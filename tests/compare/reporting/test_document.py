"""The common report as whole text. `make snapshots` renews it after a wanted change."""

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image
from syrupy.assertion import SnapshotAssertion

from common.machine.machine import PROJECT_ROOT
from compare.cli import exits, wording
from compare.reporting.document import Mark, Report, Section
from compare.reporting.tables import Column, Table
from compare.statistics.statistics import Ratio, Spread
from tests.support import comparisons


def table(name: str = "times", title: str = "Times") -> Table:
    columns = (Column("run", "run"), Column("seconds", "seconds", 2, interval=True), Column("ratio", "ratio", 2, interval=True))
    seconds = Spread(median=1.25, low=1.0, high=1.5, n=5)
    rows: list[dict[str, Any]] = [
        {"run": "serial", "seconds": seconds, "ratio": Ratio(value=1.0, low=0.9, high=1.1, n=5)},
        {"run": "failed", "seconds": None, "ratio": float("nan")},
    ]
    return Table(name, title, columns, rows, note="Median (25 % to 75 % quantile).")


def png() -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (2, 2)).save(content, "png")
    return content.getvalue()


def line(figure: Figure) -> bool:
    figure.subplots().plot([1, 2], [3, 4])
    return True


def small(**fields: Any) -> Report:
    return Report(
        **{
            "title": "What was measured",
            "json_file": "small.json",
            "facts": ["simple_cnn on digits", "a machine of 2 cores"],
            "marks": [Mark("Rows", "1 of 2", "warn")],
            "findings": [("Which is faster?", ["None.", wording.Detail("It is a draw.")]), ("Cautions", ["One run failed."])],
            "tables": [table()],
            "detail_tables": [table("every_time", "Every time")],
            "drawings": {"line": line, "nothing": lambda figure: False},
            "files": {"images/first.png": png(), "notes.txt": "more"},
            "environment": [("processor", "Some CPU")],
            "commands": [("Again:", "python -m compare report out")],
            "notes": ["", "One row is left out of the plots."],
            "values": {"kind": "small", "seconds": [1.0, float("inf")]},
            "exit_code": 1,
        }
        | fields
    )


@pytest.mark.parametrize("width", [44, 120])
def test_the_terminal_shows_facts_tables_findings_and_where_the_files_are(
    snapshot: SnapshotAssertion, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    small().show(Path("out"), as_json=False)
    assert "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines()) == snapshot


def test_markdown_shows_everything_in_order(snapshot: SnapshotAssertion) -> None:
    assert small().to_markdown(["plots/line.svg", "images/first.png"]) == snapshot


def test_json_has_tables_findings_values_and_the_exit_code(snapshot: SnapshotAssertion) -> None:
    assert small().to_json() + "\n" == snapshot
    assert json.loads(small().to_json())["seconds"] == [1.0, None]


def test_a_value_of_the_command_wins_over_the_common_field() -> None:
    found = json.loads(small(values={"findings": {"own": 1}, "exit_code": 0}).to_json())
    assert found["findings"] == {"own": 1} and found["exit_code"] == 0


@pytest.mark.drawn
def test_every_file_is_written_and_the_page_shows_what_the_command_line_shows(tmp_path: Path) -> None:
    assert small().write(tmp_path) is None
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    tables = {f"tables/{name}.{form}" for name in ("times", "every_time") for form in ("md", "csv", "tex")}
    plots = {"plots/line.png", "plots/line.svg"}
    assert found == {"report.html", "report.md", "small.json", "images/first.png", "notes.txt"} | tables | plots
    html = (tmp_path / "report.html").read_text("utf-8")
    whole = small()
    shown = (
        whole.title,
        *whole.facts,
        *whole.findings[0][1],
        "1.25 (1.00 to 1.50)",
        *whole.environment[0],
        whole.commands[0][1],
    )
    assert all(text.strip() in html for text in shown)
    assert html.count("<img ") == 1 and html.count('aria-label="line"') == 1 and "Every time" not in html
    assert (tmp_path / "report.md").read_text("utf-8") == small().to_markdown(["plots/line.svg", "images/first.png"])
    assert (tmp_path / "small.json").read_text("utf-8") == small().to_json() + "\n"


def test_files_name_no_folder_of_their_author(tmp_path: Path) -> None:
    """A command that is started elsewhere shows the whole path of the suite on the screen."""
    code = """
import sys
from pathlib import Path
from compare.reporting import document
from tests.compare.reporting.test_document import small
small(commands=[("Again:", f"{document.COMPARE} report out")], values={"again": document.COMPARE}).write(Path(sys.argv[1]))
print(document.COMPARE)
"""
    words = [sys.executable, "-c", code, str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    shown = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    assert shown == str(PROJECT_ROOT / ".venv/bin/convtwins")
    for name in ("report.html", "report.md", "small.json"):
        text = (tmp_path / "out" / name).read_text()
        assert ".venv/bin/convtwins" in text and shown not in text


def test_sections_stand_in_markdown_and_page_and_their_tables_do_not_overwrite_each_other(tmp_path: Path) -> None:
    parts = [
        Section(
            name=name, title=f"The {name} step", findings=[("Found", [name])], tables=[table(title=name)], more=[f"{name}.md"]
        )
        for name in ("first", "second")
    ]
    whole = small(sections=parts, tables=[], detail_tables=[], drawings={}, files={})
    assert whole.write(tmp_path) is None
    names = {path.stem for path in (tmp_path / "tables").iterdir()}
    assert names == {"first_times", "second_times"}
    written = (tmp_path / "report.md").read_text("utf-8")
    assert written.index("- Rows: **1 of 2**") < written.index("## Conclusion") < written.index("## The first step")
    assert (
        written.index("## The first step") < written.index("More: [first.md](first.md)") < written.index("## The second step")
    )
    html = (tmp_path / "report.html").read_text("utf-8")
    assert '<a href="#first">The first step</a>' in html and '<h2 id="second">The second step</h2>' in html


def test_text_from_outside_means_itself_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(comparisons.HOSTILE)
    hostile = small(
        title=text,
        facts=comparisons.HOSTILE,
        marks=[Mark(text, text, "good")],
        findings=[(text, comparisons.HOSTILE)],
        tables=[Table("t", text, (Column("a", "a"),), [{"a": each} for each in comparisons.HOSTILE], note=text)],
        environment=[(text, text)],
        commands=[(text, wording.shell(comparisons.HOSTILE))],
        values={"text": comparisons.HOSTILE},
    )
    assert hostile.write(tmp_path) is None
    html, markdown = ((tmp_path / name).read_text("utf-8") for name in ("report.html", "report.md"))
    assert html.count("<script") == 1 and html.count("<img") == 1 and "onerror=&#34;" in html  # the img is our own PNG
    prose = "\n".join(line for line in markdown.splitlines() if not line.startswith("    "))
    assert not re.search(r"(?<!\\)<", prose)
    assert not {"\x1b", "\u202e"} & set(html + markdown)
    assert json.loads((tmp_path / "small.json").read_text("utf-8"))["text"] == comparisons.HOSTILE
    hostile.show(tmp_path / "of\x1b[31m\u202eothers", as_json=False)
    assert not {"\x1b", "\u202e"} & set(capsys.readouterr().out)


@pytest.mark.parametrize(("number", "frees"), [(errno.ENOSPC, True), (errno.EROFS, False)], ids=["full", "read_only"])
def test_a_disk_that_takes_nothing_is_said_and_the_report_is_printed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, frees: bool
) -> None:
    def refused(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refused)  # as such a disk would answer
    assert small(exit_code=0).deliver(tmp_path, as_json=False) == exits.RUN_FAILED
    printed = capsys.readouterr()
    assert "It is a draw." in printed.out and "Report:" not in printed.out
    (line,) = printed.err.splitlines()
    assert f"{tmp_path} ([Errno {number}] {os.strerror(number)}: '{tmp_path}/tables/times.md')" in line
    assert ("Free space" in line) == frees and "--out" in line
    assert not (tmp_path / "report.md").exists()


@pytest.mark.parametrize("exit_code", [0, 1, 4])
def test_the_exit_code_is_the_reports_own_where_it_is_written(exit_code: int, tmp_path: Path) -> None:
    assert small(exit_code=exit_code).deliver(tmp_path, as_json=True) == exit_code
    assert small(exit_code=exit_code).deliver(None, as_json=False) == exit_code


def test_tables_of_the_report_before_are_removed_and_files_of_others_stay(tmp_path: Path) -> None:
    assert small(tables=[table(), table("gone")]).write(tmp_path) is None
    (tmp_path / "tables" / "other.md").write_text("of another command")
    assert small().write(tmp_path) is None
    left = {path.name for path in (tmp_path / "tables").iterdir()}
    assert left == {"other.md"} | {f"{name}.{form}" for name in ("times", "every_time") for form in ("md", "csv", "tex")}
