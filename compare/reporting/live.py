"""A page that is updated while a comparison runs: progress, time left, curves and results so far.

The runs that are measured share the machine. So the page is a few kilobytes, is drawn at most every few seconds, and states
its own cost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from common.artifacts import atomic_files
from common.artifacts.schema import RunResult
from compare.cli import wording
from compare.cli.progress import Display, time_left
from compare.cli.wording import clock_words
from compare.reporting import page, tables
from compare.reporting.plots import COLOURS

PAGE_FILE = "live.html"
REFRESH_SECONDS = 5.0
"""Seconds between two drawings, and between two loads of the page."""

_WIDTH, _HEIGHT = 600.0, 220.0
_COLOURS = (*COLOURS[:-1], "currentColor")


@dataclass
class _Run:
    """One run, as the page shows it."""

    name: str
    label: str
    epochs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    status: str = "running"
    seconds: float | None = None


class Live(Display):
    """A display that also draws live.html in the folder of a comparison. A failed write is tried again and stops no run.

    Args:
        display: display that draws on the terminal until now.
        folder: results folder of the comparison. None: no page is drawn.
        title: title of the page.
    """

    def __init__(self, display: Display, folder: Path | None, title: str) -> None:
        super().__init__(display.terminal, display.clock)
        self._path = folder / PAGE_FILE if folder else None
        self._title = wording.one_line(title)
        self._message = ""
        self._total = 0
        self._runs: list[_Run] = []
        self._comparison_started = self.clock()
        self._last_drawn = -REFRESH_SECONDS
        self._cost_seconds = 0.0
        self._drawings = 0
        self._has_report = True

    def say(self, text: str) -> None:
        super().say(text)
        self._message = text
        self._draw(at_once=True)

    def plan(self, jobs: Sequence[str]) -> None:
        super().plan(jobs)
        self._total, self._message = len(jobs), ""
        self._draw(at_once=True)

    def begin(self, name: str, label: str, seconds: float = 0.0, sharing: int = 1, working: int = 1) -> None:
        super().begin(name, label, seconds, sharing, working)
        if self._runs and self._runs[-1].seconds is None:  # it stood for runs that worked together
            self._runs.pop()
        self._runs.append(_Run(name, label))
        self._draw()

    def watch(self, events: list[dict[str, Any]]) -> None:
        super().watch(events)
        self._runs[-1].epochs = [event for event in events if event.get("event") == "epoch"]
        self._draw()

    def end(self, result: RunResult | None = None, note: str = "") -> None:
        super().end(result, note)
        run = self._runs[-1]
        run.seconds = self._seconds[run.name][-1]
        if result is not None:  # some of its epochs may not have been watched
            run.status, run.epochs = result.status, [epoch.model_dump() for epoch in result.epochs]
        self._draw()

    def finish(self, text: str, *, has_report: bool = True) -> None:
        """Draw the final page. It no longer reloads, and points to the report if there is one."""
        self._message, self._has_report = "", has_report
        self._draw(at_once=True, final_text=text)

    def _draw(self, *, at_once: bool = False, final_text: str | None = None) -> None:
        if self._path is None or (not at_once and self.clock() - self._last_drawn < REFRESH_SECONDS):
            return
        before = time.thread_time()
        try:
            atomic_files.write_atomically(self._path, self._html(final_text))
        except OSError:
            pass  # the runs report a full disk; the next drawing may succeed
        self._last_drawn = self.clock()
        self._drawings += 1
        self._cost_seconds += time.thread_time() - before

    def _html(self, final_text: str | None) -> str:
        now = self.clock()
        running = 0.0 if final_text or not self._runs or self._runs[-1].seconds is not None else now - self._started
        remaining_seconds = max(time_left(self._jobs, self._seconds) - running, 0.0)
        done = self._total - len(self._jobs)
        cost = f"{self._cost_seconds:.2f} s of CPU in {wording.count(self._drawings, 'drawing')}"
        marks = [
            {"label": "Runs", "value": f"{done} of {self._total}" if self._total else "not begun", "tone": ""},
            {"label": "Elapsed", "value": clock_words(now - self._comparison_started, hours=True), "tone": ""},
        ]
        if not final_text:
            marks.append(
                {
                    "label": "Left, about",
                    "value": clock_words(remaining_seconds, hours=True) if self._seconds else "not known yet",
                    "tone": "",
                }
            )
        return page.render(
            "live.html.jinja",
            scripted=False,
            title=self._title,
            overline="Comparison of frameworks, as it runs" if not final_text else "Comparison of frameworks",
            facts=[f"Drawn at {datetime.now().astimezone():%Y-%m-%d %H:%M:%S}."],
            refresh=None if final_text else round(REFRESH_SECONDS),
            finished=final_text,
            reported=self._has_report,
            message=self._message,
            marks=marks,
            done=done,
            total=self._total,
            awaited=not final_text and not any(run.epochs for run in self._runs),
            runs=[_line(run, number) for number, run in enumerate(self._runs)],
            charts=[
                chart
                for what, split, score in (
                    ("Training loss", "train", "loss"),
                    ("Validation accuracy", "validation", "accuracy"),
                )
                if (chart := _chart(what, self._runs, split, score))
            ],
            cost=cost,
        )


def _line(run: _Run, number: int) -> dict[str, Any]:
    """Values of a run's line in the table, taken from its last epoch."""
    last = run.epochs[-1] if run.epochs else {}
    train, validation = last.get("train") or {}, last.get("validation") or {}
    return {
        "label": run.label,
        "colour": _colour(number),
        "status": run.status,
        "tone": page.TONES.get(run.status, ""),
        "epoch": str(last.get("epoch", tables.MISSING)),
        "loss": _number(train.get("loss"), 4),
        "accuracy": _number(validation.get("accuracy"), 4),
        "epoch_seconds": _number(_epoch_seconds(last), 2),
        "seconds": _number(run.seconds, 1),
    }


def _epoch_seconds(epoch: dict[str, Any]) -> float | None:
    """Seconds of a whole epoch at the pace of its timed images, as in the report."""
    timed, whole, seconds = (epoch.get(name) for name in ("timed_images", "epoch_images", "timed_seconds"))
    return seconds * whole / timed if timed and whole and seconds is not None else None


def _chart(what: str, runs: Sequence[_Run], split: str, score: str) -> dict[str, Any] | None:
    """Points of a figure's curves, one for each run, in an area of _WIDTH x _HEIGHT. None: no value yet."""
    curves: list[tuple[int, list[tuple[int, float]]]] = []
    for number, run in enumerate(runs):
        values = [(int(epoch_values["epoch"]), (epoch_values.get(split) or {}).get(score)) for epoch_values in run.epochs]
        known = [(epoch, float(value)) for epoch, value in values if isinstance(value, int | float)]
        if known:
            curves.append((number, known))
    if not curves:
        return None
    heights = [value for _, points in curves for _, value in points]
    low, high = min(heights), max(heights)
    last = max(epoch for _, points in curves for epoch, _ in points)

    def place(epoch: int, value: float) -> tuple[float, float]:
        x = _WIDTH * (epoch - 1) / max(last - 1, 1)
        return round(x, 1), round(_HEIGHT * (high - value) / ((high - low) or 1.0), 1)

    return {
        "title": what,
        "low": _number(low, 4),
        "high": _number(high, 4),
        "last": last,
        "curves": [{"colour": _colour(number), "points": [place(*point) for point in points]} for number, points in curves],
    }


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else tables.MISSING
