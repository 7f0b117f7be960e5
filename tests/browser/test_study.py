"""The page of a study as a reader opens it: drawings, photographs and tables of several steps in one file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from compare.judgement.summary import summarize
from compare.reporting import comparison_plots, comparison_tables, plots
from compare.reporting.document import Mark, Report, Section
from tests.browser.chromium import Chromium
from tests.support import comparisons


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps with the same plots, one of them with a picture, all text from outside hostile."""
    folder = tmp_path_factory.mktemp("study")
    summaries = summarize(comparisons.hostile())
    written = plots.write_all(comparison_plots.drawings(summaries), folder / "plots")
    drawn = [f"plots/{path.name}" for path in written if path.suffix == ".svg"]
    Image.fromarray(np.full((40, 2000, 3), 90, np.uint8)).save(folder / "sheet.png")
    first = Section(
        name="explore",
        title=comparisons.HOSTILE[0],
        findings=[(comparisons.HOSTILE[2], [comparisons.HOSTILE[4]])],
        tables=comparison_tables.written_tables(summaries),
        pictures=[*drawn, "sheet.png"],
        conclusions=[comparisons.HOSTILE[5]],
        more=[comparisons.HOSTILE[0]],
    )
    whole = Report(
        title=comparisons.HOSTILE[0],
        overline="Study",
        facts=[comparisons.HOSTILE[2]],
        marks=[Mark("Steps", "2 of 2", "good")],
        findings=[(comparisons.HOSTILE[0], [comparisons.HOSTILE[5]])],
        sections=[first, replace(first, name="pretrain")],
        commands=[(comparisons.HOSTILE[2], comparisons.HOSTILE[4])],
    )
    page = folder / "report.html"
    page.write_text(whole.to_html(folder), encoding="utf-8")
    return page


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 390])
def test_a_study_loads_without_a_complaint_asks_for_nothing_and_fits(
    browser: Chromium, study: Path, width: int, dark: bool
) -> None:
    browser.open(study, width=width, dark=dark)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [study.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_every_picture_of_a_study_shows_and_hostile_names_do_nothing(browser: Chromium, study: Path) -> None:
    browser.open(study)
    assert browser.evaluate("[document.scripts.length, document.images.length]") == [1, 2]
    assert browser.evaluate("[...document.images].every(image => image.naturalWidth === 2000)")
    sizes = browser.evaluate(
        "[...document.querySelectorAll('.plot svg')].map(svg => svg.getBoundingClientRect())"
        ".map(box => [box.width, box.height])"
    )
    assert len(sizes) >= 10 and all(width > 300 and height > 150 for width, height in sizes)
    ids = "[...document.querySelectorAll('[id]')].map(each => each.id)"
    assert browser.evaluate(f"new Set({ids}).size") == browser.evaluate(f"{ids}.length")
    assert browser.evaluate("[...document.links].every(link => link.getAttribute('href').startsWith('#'))")
