import io
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from compare.cli.progress import display
from compare.reporting import live
from compare.reporting.live import REFRESH_SECONDS, Live
from tests.support import comparisons, trees


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def live_page(folder: Path | None, clock: Clock | None = None) -> Live:
    with display(Console(file=io.StringIO())) as shown:
        shown.clock = clock or Clock()
        return Live(shown, folder, "T")


def an_epoch(number: int, loss: float) -> dict[str, Any]:
    scores = {"loss": loss, "accuracy": 1 - loss}
    timed = {"timed_seconds": 2.0, "timed_images": 50, "epoch_images": 75}  # 3 s an epoch at this pace
    return {"event": "epoch", "epoch": number, "train": scores, "validation": scores, **timed}


def text_of(path: Path) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", path.read_text("utf-8").partition("</style>")[2]))


def test_the_page_is_drawn_at_most_once_in_so_many_seconds(tmp_path: Path) -> None:
    clock = Clock()
    shown = live_page(tmp_path, clock)
    shown.plan(["a", "b"])
    shown.begin("a", "a (1 of 2)")
    for second in range(21):
        clock.now = float(second)
        shown.watch([an_epoch(1, 0.5)])
    assert shown._drawings == 1 + 20 // REFRESH_SECONDS
    assert "Keeping it up to date has taken" in text_of(tmp_path / live.PAGE_FILE)


def test_the_page_shows_progress_curves_and_the_time_left_and_then_points_to_the_report(tmp_path: Path) -> None:
    clock = Clock()
    shown = live_page(tmp_path, clock)
    shown.say("Before the runs.")
    assert "Runs not begun Elapsed 0:00" in text_of(tmp_path / live.PAGE_FILE)
    shown.plan(["a", "a", "b"])
    assert "Before the runs." not in text_of(tmp_path / live.PAGE_FILE)
    shown.begin("a", "a (1 of 2)")
    shown.watch([{"event": "start", "total_epochs": 2}, an_epoch(1, 0.5)])
    clock.now = 60.0
    shown.end(comparisons.good(comparisons.row("pytorch"), 2.0))
    shown.begin("a", "a (2 of 2)")
    path = tmp_path / live.PAGE_FILE
    page = path.read_text("utf-8")
    assert 'points="0.0,0.0 600.0,220.0 "' in page and '<meta http-equiv="refresh" content="5">' in page
    assert "Runs 1 of 3 Elapsed 1:00 Left, about 2:00" in text_of(path)
    assert "a (1 of 2) ok 2 0.5000 0.7500 2.00 60.0" in text_of(path)
    shown.end(comparisons.bad(comparisons.row("pytorch"), "killed", "interrupted", 1))
    shown.say("report")
    shown.finish("Interrupted.")
    assert "report " not in text_of(path).partition("Interrupted.")[0]
    assert "refresh" not in path.read_text("utf-8") and 'href="report.html"' in path.read_text("utf-8")
    assert "Interrupted." in text_of(path) and "a (2 of 2) killed" in text_of(path)
    on_terminal = shown.terminal.progress.console.file
    assert isinstance(on_terminal, io.StringIO) and "a (1 of 2): 1:00; 2 left, about 2:00." in on_terminal.getvalue()


def test_runs_that_worked_together_have_their_share_of_the_seconds_and_no_line_in_common(tmp_path: Path) -> None:
    clock = Clock()
    shown = live_page(tmp_path, clock)
    shown.plan(["a", "b"])
    shown.begin("a", "a and 1 more in turns")
    clock.now = 60.0
    for name in ("a", "b"):
        shown.begin(name, name, 30.0)
        shown.end(comparisons.good(comparisons.row("pytorch"), 2.0))
    shown.finish("All runs have ended.")
    text = text_of(tmp_path / live.PAGE_FILE)
    assert "in turns" not in text and "a ok 2 0.5000 0.7500 2.00 30.0" in text and "b ok 2 0.5000 0.7500 2.00 30.0" in text


def test_where_no_report_was_written_the_page_points_to_none_and_loads_itself_no_more(tmp_path: Path) -> None:
    shown = live_page(tmp_path)
    shown.finish("Broken off by an error.", has_report=False)
    page = (tmp_path / live.PAGE_FILE).read_text("utf-8")
    assert "Broken off by an error." in page and "report.html" not in page and 'http-equiv="refresh"' not in page


def test_before_the_first_epoch_the_page_says_so_and_shows_no_empty_plot_or_table(tmp_path: Path) -> None:
    clock = Clock()
    shown = live_page(tmp_path, clock)
    path = tmp_path / live.PAGE_FILE
    empty = "No epoch has ended yet"
    shown.plan(["a"])
    assert empty in text_of(path) and "<table" not in path.read_text("utf-8")
    clock.now = REFRESH_SECONDS
    shown.begin("a", "a")
    assert empty in text_of(path) and "a running" in text_of(path)
    clock.now = 2 * REFRESH_SECONDS
    shown.watch([{"event": "start", "total_epochs": 2}, an_epoch(1, 0.5)])
    assert empty not in text_of(path) and "over 1 epoch " in text_of(path)


def test_a_part_alone_has_no_curves_and_no_page_where_none_is_wanted(tmp_path: Path) -> None:
    shown = live_page(tmp_path)
    shown.plan(["a"])
    shown.begin("a", "a")
    shown.watch([{"event": "epoch", "epoch": 1, "train": None, "validation": None, "timed_seconds": 2.0}])
    shown.finish("All runs have ended.")
    assert "<polyline" not in (tmp_path / live.PAGE_FILE).read_text("utf-8")
    nowhere = live_page(None)
    nowhere.plan(["a"])
    nowhere.finish("")
    assert nowhere._drawings == 0


def test_a_page_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    page = trees.write(tmp_path, {live.PAGE_FILE: None}) / live.PAGE_FILE
    shown = live_page(tmp_path)
    shown.plan(["a"])
    shown.finish("All runs have ended.")
    assert page.is_dir() and list(tmp_path.rglob("*")) == [page]


def test_an_epochs_seconds_are_those_of_the_report_for_all_its_images() -> None:
    assert live._epoch_seconds(an_epoch(1, 0.5)) == 3.0
    assert live._epoch_seconds({"timed_seconds": 2.0, "timed_images": 0, "epoch_images": 75}) is None
