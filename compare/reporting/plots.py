"""How every picture is drawn and written: palette, settings, PNG and SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font
from matplotlib.ticker import LogFormatterMathtext

from common.artifacts import atomic_files
from compare.core import wording

FORMATS = ("png", "svg")
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

Drawing = Callable[[Figure], bool]
"""Draws into a figure of 9 x 5 inches, within SETTINGS. Returns whether there is something to show."""


def write_all(drawings: Mapping[str, Drawing], folder: Path) -> list[Path]:
    """Write plots by name. A plot with nothing to show is not made, and an earlier one of its name is removed.

    Args:
        folder: made if it is missing.

    Returns:
        The files written.
    """
    files: list[Path] = []
    with mpl.rc_context(SETTINGS):
        for name, drawing in drawings.items():
            figure = Figure(figsize=(9, 5), layout="constrained")
            FigureCanvasAgg(figure)
            if drawing(figure):
                files += save(figure, folder, name)
            else:
                for path in _files(folder, name):
                    path.unlink(missing_ok=True)
    return files


def labels(class_names: Sequence[str]) -> list[str]:
    """Names of classes in pictures, by class id: `class 3` if the font lacks a letter of the name."""
    known = get_font(FONT_FILE).get_charmap().keys()
    names = map(wording.one_line, class_names)
    return [name if known >= set(map(ord, name)) else f"class {number}" for number, name in enumerate(names)]


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write one plot in every format. Each file is written whole or not at all. Call it within SETTINGS."""
    files = _files(folder, name)
    _write_powers_plainly(figure)
    figure.draw_without_rendering()  # layout takes as long as drawing: once for all formats
    figure.set_layout_engine("none")
    whole = figure.get_tightbbox().padded(mpl.rcParams["savefig.pad_inches"])
    for path in files:
        drawn = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(drawn, format=path.suffix[1:], dpi=150, bbox_inches=whole, metadata=metadata)
        atomic_files.write_atomically(path, drawn.getvalue())
    return files


class _Plain(LogFormatterMathtext):
    """Ticks of a logarithmic axis as numbers. Matplotlib chooses which ones."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _write_powers_plainly(figure: Figure) -> None:
    """Logarithmic axes write powers of ten in mathtext, which SETTINGS do not render."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for own, replace in (
                (axis.get_major_formatter(), axis.set_major_formatter),
                (axis.get_minor_formatter(), axis.set_minor_formatter),
            ):
                if isinstance(own, LogFormatterMathtext):
                    replace(_Plain(axis.get_transform().base, own.labelOnlyBase))  # pyright: ignore[reportAttributeAccessIssue]


def _files(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.{suffix}" for suffix in FORMATS]
