"""Drawing and writing of all pictures: palette, settings, PNG and SVG."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font
from matplotlib.ticker import LogFormatterMathtext

from common.artifacts import atomic_files
from compare.cli import wording

FORMATS = ("png", "svg")
_DPI = 150
FONT_FILE = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
"""The font of all pictures."""

# Okabe & Ito's palette can be distinguished with every kind of colour blindness. Its yellow is too pale for lines.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D")
SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "text.parse_math": False,  # a `$` in a name is a dollar sign
    "svg.hashsalt": "convtwins",  # the same results give the same file
    "svg.fonttype": "none",
}

LOGARITHMIC = "_log"
"""Suffix of the name of a plot's variant with a logarithmic axis, which the page can show instead."""

Drawing = Callable[[Figure], bool | Literal["x", "y"]]
"""Function that draws into a figure of 9 x 5 inches, within SETTINGS. It returns whether there is something to show, or the
axis whose values may also be drawn on a logarithmic scale."""


def write_all(drawings: Mapping[str, Drawing], folder: Path) -> list[Path]:
    """Write plots by name. A plot with nothing to show is not made, and an earlier one of its name is removed.

    Args:
        folder: folder of the plots. Created if it is missing.

    Returns:
        The files written.
    """
    files: list[Path] = []
    with mpl.rc_context(SETTINGS):
        for name, drawing in drawings.items():
            figure = Figure(figsize=(9, 5), layout="constrained")
            FigureCanvasAgg(figure)
            result = drawing(figure)
            if result:
                files += save(figure, folder, name)
            else:
                for suffix in FORMATS:
                    (folder / f"{name}.{suffix}").unlink(missing_ok=True)
            if isinstance(result, str):
                _rescale(figure, result)
                save(figure, folder, name + LOGARITHMIC, formats=("svg",))
            else:
                (folder / f"{name}{LOGARITHMIC}.svg").unlink(missing_ok=True)
    return files


def mark(artist: Artist, series: str, labels: Sequence[str] = ()) -> None:
    """Let the page show and hide an artist with its series, and say what its points are. Call it once for each artist.

    Args:
        labels: label of each point that has a marker, or of the artist itself.
    """
    values = {"series": wording.one_line(series), "labels": list(map(wording.one_line, labels))}
    artist.set_gid(json.dumps(values))


def luminance(colour: Iterable[float]) -> float:
    """Relative luminance of an sRGB colour as WCAG defines it, 0..1.

    Args:
        colour: red, green and blue, 0..1. More values are ignored.
    """
    red, green, blue, *_ = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _rescale(figure: Figure, name: str) -> None:
    for axes in figure.axes:
        if name == "y":
            axes.set_yscale("log")
        else:
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            axes.set_xlim(low / 2, high)  # a logarithmic axis has no zero where bars could begin


def labels(class_names: Sequence[str]) -> list[str]:
    """Names of classes in pictures, by class id: `class 3` if the font lacks a letter of the name."""
    known = get_font(FONT_FILE).get_charmap().keys()
    names = map(wording.one_line, class_names)
    return [name if known >= set(map(ord, name)) else f"class {number}" for number, name in enumerate(names)]


def save(figure: Figure, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write one plot in these formats. Each file is written whole or not at all. Call it within SETTINGS."""
    files = [folder / f"{name}.{suffix}" for suffix in formats]
    _use_plain_log_ticks(figure)
    figure.set_dpi(_DPI)  # letters are wider at another
    figure.draw_without_rendering()  # layout takes as long as drawing: once for all formats
    figure.set_layout_engine("none")
    bounding_box = figure.get_tightbbox().padded(mpl.rcParams["savefig.pad_inches"])
    for path in files:
        file = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(file, format=path.suffix[1:], dpi=_DPI, bbox_inches=bounding_box, metadata=metadata)
        atomic_files.write_atomically(path, file.getvalue())
    return files


class _PlainLogFormatter(LogFormatterMathtext):
    """Formatter that writes ticks of a logarithmic axis as plain numbers. Matplotlib chooses the ticks."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _use_plain_log_ticks(figure: Figure) -> None:
    """Write the ticks of logarithmic axes as plain numbers. Their mathtext is not rendered under SETTINGS."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for formatter, set_formatter in (
                (axis.get_major_formatter(), axis.set_major_formatter),
                (axis.get_minor_formatter(), axis.set_minor_formatter),
            ):
                if isinstance(formatter, LogFormatterMathtext):
                    set_formatter(_PlainLogFormatter(axis.get_transform().base, formatter.labelOnlyBase))  # pyright: ignore[reportAttributeAccessIssue]
