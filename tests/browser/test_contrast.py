"""Every text of a page can be read: its contrast with what is drawn behind it, in both themes."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compare.judgement.summary import summarize
from compare.reporting import comparison_plots, plots
from compare.reporting.document import Report, Section
from tests.browser.chromium import Chromium
from tests.browser.conftest import write
from tests.support import comparisons

LEAST = 4.5
"""Least contrast of text and background of WCAG 2.2, level AA, for text of any size."""

_TEXTS = """
[...document.querySelectorAll('details')].forEach(each => each.open = true);
canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
rgba = colour => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
texts = [];
walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.textContent.trim() || parent.closest('script, style, template')) continue;
  const style = getComputedStyle(parent), range = document.createRange();
  range.selectNodeContents(node);
  const inSvg = parent.closest('svg') !== null, clip = parent.closest('.scroll, .plot, .photograph')?.getBoundingClientRect();
  for (const box of range.getClientRects()) {
    const isHidden = style.visibility === 'hidden' || box.width < 2 || box.height < 4;
    const isCut = clip && (box.left < clip.left || box.right > clip.right);
    if (isHidden || isCut) continue;
    texts.push([node.textContent.trim().slice(0, 60), rgba(inSvg ? style.fill : style.color),
      [box.left + scrollX, box.top + scrollY, box.width, box.height]]);
  }
}
texts
"""
"""Words, colour as RGBA, and place of each line of text."""

_HIDE_TEXT = """
sheet = new CSSStyleSheet();
sheet.replaceSync('* { -webkit-text-fill-color: transparent !important; transition: none !important }' +
  ' svg text { fill: transparent !important }');
document.adoptedStyleSheets = [sheet];
undefined
"""


def too_faint(browser: Chromium) -> tuple[int, list[str]]:
    """Return the number of texts of the open page, and those with less contrast than `LEAST`."""
    browser.call("Emulation.setScrollbarsHidden", hidden=True)  # they would make the page narrower than its picture
    texts = browser.evaluate(f"(() => {{ {_TEXTS.strip().removesuffix('texts')} return texts }})()")
    browser.evaluate(_HIDE_TEXT)
    shot = browser.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(shot))).convert("RGB"), np.float64)
    faint: list[str] = []
    for words, (*colour, alpha), (left, top, width, height) in texts:
        behind = pixels[round(top) : round(top + height), round(left) : round(left + width)].reshape(-1, 3)
        assert len(behind), f"{words!r} stands beyond the picture of the page"
        background = np.median(behind, axis=0)
        ink = background + (np.array(colour) - background) * alpha / 255
        lighter, darker = sorted(map(plots.luminance, (ink / 255, background / 255)), reverse=True)
        if (contrast := (lighter + 0.05) / (darker + 0.05)) < LEAST:
            faint.append(f"{words!r}: {contrast:.2f}")
    return len(texts), faint


SHARES = [[10 * row if column == 0 else 100 - 10 * row if column == 1 else 0 for column in range(11)] for row in range(11)]
"""A confusion matrix whose cells have all shares of their rows."""


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a comparison with such matrices."""
    return write(comparisons.with_runs(comparisons.repeated(5), confusion=SHARES), tmp_path_factory.mktemp("shares"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every plot as a picture, the confusion matrices among them, as `evaluate` shows them."""
    folder = tmp_path_factory.mktemp("pictures")
    summaries = summarize(comparisons.with_runs(comparisons.repeated(5), confusion=SHARES))
    written = plots.write_all(comparison_plots.drawings(summaries), folder / "plots")
    drawn = [f"plots/{path.name}" for path in written if path.suffix == ".svg"]
    assert "plots/confusion.svg" in drawn
    section = Section(name="a", title="Plots", findings=[], tables=[], pictures=drawn, conclusions=[], more=[])
    page = folder / "report.html"
    page.write_text(Report(title="Plots", sections=[section]).to_html(folder), encoding="utf-8")
    return page


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("which", ["page", pytest.param("many", marks=pytest.mark.slow), "shares", "pictures"])
def test_every_text_stands_out_from_what_is_behind_it(
    browser: Chromium, request: pytest.FixtureRequest, which: str, dark: bool
) -> None:
    browser.open(request.getfixturevalue(which), dark=dark)
    number, faint = too_faint(browser)
    assert number > 50 and faint == []


def test_text_that_cannot_be_read_is_found(browser: Chromium, pictures: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.html"
    text = pictures.read_text("utf-8")
    spoilt.write_text(
        text.replace("<h1>", '<h1><svg width="90" height="20"><text y="15" fill="#fafafa">x</text></svg>'), "utf-8"
    )
    browser.open(spoilt)
    assert [words.partition(":")[0] for words in too_faint(browser)[1]] == ["'x'"]
