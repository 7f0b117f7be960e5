"""Pictures of a data set: some images of each class, and the number of images."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from common.data.dataset import Images
from compare.cli.wording import shortened
from compare.reporting.plots import COLOURS, FONT_FILE, FORMATS, SETTINGS

MAX_CLASSES = 60
"""Most classes in a sample sheet."""

PER_ROW = 8
"""Most images beside a caption."""

_CELL_PX = 112
_GAP_PX = 6
_LABEL_PX = 230
_LABEL_CHARACTERS = 26
_MAX_NAMED_BARS = 100
_MAX_NAME = 40
_COLOURS: dict[str, str] = dict(zip(("train", "validation", "test", "all"), (*COLOURS[:3], COLOURS[0]), strict=True))
_SETTINGS: dict[Any, Any] = {**SETTINGS, "axes.grid": False}


class ImageRow(NamedTuple):
    """One row of images with a caption beside them."""

    caption: str
    """Caption, one line or several."""
    note: str
    """Smaller text below the caption."""
    images: Sequence[NDArray[np.uint8]]
    """Images, uint8 [S, S, 3] each. The first PER_ROW are shown."""


def sample_sheet(images: Images, labels: NDArray[np.int64], captions: Sequence[str]) -> bytes:
    """Draw a row of images for each class, spread evenly over its training examples, beside its caption.

    Args:
        images: uint8 [N, S, S, 3]. A few are read.
        labels: int64 [N], class ids.
        captions: by class id. The first MAX_CLASSES are shown.

    Returns:
        A PNG file.
    """
    rows: list[ImageRow] = []
    for label, caption in enumerate(captions[:MAX_CLASSES]):
        examples = np.flatnonzero(labels == label)
        places = np.unique(np.linspace(0, len(examples) - 1, PER_ROW).round().astype(np.int64)) if len(examples) else []
        rows.append(ImageRow(caption, f"{len(examples):,} in train", [images[examples[place]] for place in places]))
    return rows_of_images(rows)


def rows_of_images(rows: Sequence[ImageRow]) -> bytes:
    """Draw rows of images, each beside its caption, as a PNG file."""
    step = _CELL_PX + _GAP_PX
    sheet = Image.new("RGB", (_LABEL_PX + PER_ROW * step + _GAP_PX, len(rows) * step + _GAP_PX), "white")
    draw = ImageDraw.Draw(sheet)
    names, notes = _font(15), _font(13)
    for number, row in enumerate(rows):
        top = _GAP_PX + number * step
        parts = [shortened(part, 2 * _LABEL_CHARACTERS) for part in row.caption.splitlines()]
        lines = [line for part in parts for line in textwrap.wrap(part, _LABEL_CHARACTERS, max_lines=2, placeholder="…")][:4]
        draw.multiline_text((_GAP_PX, top + 4), "\n".join(lines), fill="black", font=names, spacing=3)
        draw.text((_GAP_PX, top + 12 + 21 * len(lines)), row.note, fill="#666666", font=notes)
        for column, pixels in enumerate(row.images[:PER_ROW]):
            sheet.paste(_cell(pixels), (_LABEL_PX + column * step, top))
    file = io.BytesIO()
    sheet.save(file, "PNG", optimize=True)
    return file.getvalue()


def class_balance(counts: Mapping[str, Sequence[int]], class_names: Sequence[str], title: str) -> dict[str, bytes]:
    """Draw the number of images of each class as bars, one part for each split.

    Args:
        counts: for each split, one number a class.
        class_names: by class id. With more than a hundred the bars have no names.
        title: above the bars.

    Returns:
        A file for each of FORMATS.
    """
    is_named = len(class_names) <= _MAX_NAMED_BARS
    height = 1.6 + (0.27 * len(class_names) if is_named else 0.27 * _MAX_NAMED_BARS)
    files: dict[str, bytes] = {}
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a data set's name, in the title
        figure = Figure(figsize=(9, height), layout="constrained")
        FigureCanvasAgg(figure)
        axis: Axes = figure.subplots()
        places, ends = np.arange(len(class_names)), np.zeros(len(class_names), np.int64)
        for split, numbers in counts.items():
            axis.barh(places, numbers, 0.8 if is_named else 1.0, left=ends, color=_COLOURS[split], label=split)
            ends = ends + np.array(numbers, np.int64)
        if is_named:
            axis.set_yticks(places, [shortened(name, _MAX_NAME) for name in class_names])
            for place, end in zip(places.tolist(), ends.tolist(), strict=True):
                axis.annotate(f"{end:,}", (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
        else:
            axis.set_ylabel("class id")
        axis.set_ylim(len(class_names) - 0.4, -0.6)
        axis.set_xlim(0, 1.2 * max(1, int(ends.max(initial=0))))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.set(title=title, xlabel="images")
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
        if len(counts) > 1:
            figure.legend(loc="outside lower center", ncols=len(counts), frameon=False)
        for suffix in FORMATS:
            file = io.BytesIO()
            figure.savefig(file, format=suffix, dpi=120, metadata={"Date": None} if suffix == "svg" else {"Software": None})
            files[suffix] = file.getvalue()
    return files


def _cell(pixels: NDArray[np.uint8]) -> Image.Image:
    """An image at the size of a cell. Small images keep sharp pixels."""
    image = Image.fromarray(pixels)
    is_small = image.width <= _CELL_PX // 2
    return image.resize((_CELL_PX, _CELL_PX), Image.Resampling.NEAREST if is_small else Image.Resampling.BICUBIC)


def _font(size: int) -> ImageFont.FreeTypeFont:
    """Load DejaVu Sans, which comes with matplotlib and has more scripts than Pillow's own font."""
    return ImageFont.truetype(FONT_FILE, size)
