"""The report as a reader opens it: in a real browser, from a file, without a network."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from compare.cli.progress import display
from compare.reporting import live, side_by_side
from compare.reporting.comparison_report import read
from tests.browser.chromium import Chromium
from tests.browser.conftest import write
from tests.support import comparisons


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_loads_without_a_complaint_and_asks_for_nothing(browser: Chromium, page: Path, width: int, dark: bool) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]


def test_a_page_that_breaks_its_policy_is_seen_to(browser: Chromium, page: Path, tmp_path: Path) -> None:
    planted = '<img src="http://example.invalid/x.png"><p style="color: red">x</p><script>document.title = "run"</script>'
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text("utf-8").replace("</main>", f"{planted}</main>"), encoding="utf-8")
    browser.open(broken)
    said = json.dumps(browser.complaints)
    assert all(directive in said for directive in ("img-src", "style-src", "script-src"))
    assert browser.evaluate("document.title") != "run"


def test_hostile_names_are_shown_and_do_nothing(browser: Chromium, page: Path) -> None:
    browser.open(page)
    assert browser.evaluate("document.title").startswith("simple_cnn on <script>")
    assert browser.evaluate("[document.scripts.length, document.images.length]") == [1, 0]
    assert browser.count("[onerror]") == 0
    assert browser.evaluate("[...document.links].every(link => link.getAttribute('href').startsWith('#'))")
    text = browser.evaluate("document.body.textContent")
    for number in (0, 2, 4, 5):
        assert comparisons.HOSTILE[number] in text
    assert "49" not in browser.evaluate("[...document.querySelectorAll('.heat th')].map(head => head.textContent).join(' ')")
    assert "\u202e" not in text and "\x1b" not in text


def test_tables_sort_by_click_and_key_and_come_back(browser: Chromium, page: Path) -> None:
    browser.open(page)
    browser.evaluate(
        "table = document.querySelector('header > .scroll table'); "
        "column = [...table.tHead.rows[0].cells].findIndex(head => head.textContent.includes('seconds per epoch')); "
        "head = table.tHead.rows[0].cells[column]; "
        "shown = () => [...table.tBodies[0].rows].map(row => Number(row.cells[column].dataset.value)); undefined"
    )
    before = browser.evaluate("shown()")
    assert before != sorted(before)
    browser.evaluate("head.querySelector('button').click()")
    assert browser.evaluate("shown()") == sorted(before)
    assert browser.evaluate("head.getAttribute('aria-sort')") == "ascending"
    browser.evaluate("head.querySelector('button').focus()")
    browser.press("Enter", 13)
    assert browser.evaluate("shown()") == sorted(before, reverse=True)
    assert browser.evaluate("[...table.tHead.rows[0].cells].filter(each => each.ariaSort !== 'none').length") == 1
    browser.evaluate("head.querySelector('button').click()")
    assert browser.evaluate("shown()") == before


def test_what_is_missing_stays_below_however_a_table_is_sorted(browser: Chromium, page: Path) -> None:
    browser.open(page)
    browser.evaluate(
        "table = document.querySelector('header > .scroll table'); "
        "column = [...table.tHead.rows[0].cells].findIndex(head => head.textContent.includes('same cores')); "
        "missing = () => [...table.tBodies[0].rows].map(row => 'missing' in row.cells[column].dataset); undefined"
    )
    assert browser.evaluate("missing()") == [True, False, True, False]
    for _ in range(2):
        browser.evaluate("table.tHead.rows[0].cells[column].querySelector('button').click()")
        assert browser.evaluate("missing()") == [False, False, True, True]


def test_every_plot_shows_and_follows_the_colours_of_the_page(browser: Chromium, page: Path) -> None:
    boxes = "[...document.querySelectorAll('.plot svg')].map(svg => svg.getBoundingClientRect())"
    ink = "getComputedStyle(document.querySelector('.plot text')).fill"
    paper = "getComputedStyle(document.querySelector('.plot svg path')).fill"
    looks = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        sizes = browser.evaluate(f"{boxes}.map(box => [box.width, box.height])")
        assert len(sizes) == 5 and all(width > 300 and height > 150 for width, height in sizes)
        looks.append([browser.evaluate(ink), browser.evaluate(paper)])
    assert looks == [["rgb(28, 30, 33)", "rgb(255, 255, 255)"], ["rgb(228, 230, 232)", "rgb(27, 30, 33)"]]
    assert browser.evaluate("new Set([...document.querySelectorAll('[id]')].map(each => each.id)).size") == browser.evaluate(
        "document.querySelectorAll('[id]').length"
    )


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("which", ["page", "many"])
def test_nothing_is_wider_than_the_window_but_what_scrolls(
    browser: Chromium, request: pytest.FixtureRequest, which: str, width: int
) -> None:
    browser.open(request.getfixturevalue(which), width=width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_a_matrix_of_38_classes_has_a_name_and_a_count_in_every_place(browser: Chromium, many: Path) -> None:
    browser.open(many)
    assert browser.complaints == []
    rows = browser.evaluate("[...document.querySelector('.heat').tBodies[0].rows].map(row => row.cells.length)")
    assert rows == [39] * 38
    size = browser.evaluate("parseFloat(getComputedStyle(document.querySelector('.heat tbody td')).fontSize)")
    assert size >= 10
    names = browser.evaluate("[...document.querySelectorAll('.heat')][0].innerText")
    assert "Class___number_37" in names


def test_the_page_says_everything_without_its_script(browser: Chromium, page: Path) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        buttons, rows = (browser.count(f"table.sortable {what}") for what in ("button", "tbody tr"))
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert buttons == 0 and rows > 20


@pytest.mark.parametrize(("width", "goes_on"), [(390, True), (1400, False)])
def test_a_table_that_goes_on_beyond_its_edge_has_a_shadow_there(
    browser: Chromium, page: Path, tmp_path: Path, width: int, goes_on: bool
) -> None:
    browser.open(page, width=width)
    browser.call("Emulation.setScrollbarsHidden", hidden=True)
    box = browser.evaluate(
        "(() => {const table = document.querySelector('header > .scroll'), box = table.getBoundingClientRect();"
        " return [box.left + scrollX, box.top + scrollY, box.width, box.height, table.scrollWidth > table.clientWidth]})()"
    )
    left, top, table_width, height, is_wider = box
    assert is_wider == goes_on
    browser.screenshot(tmp_path / "page.png")
    row = np.asarray(Image.open(tmp_path / "page.png").convert("L"), int)[round(top + height) - 6]
    edge, middle = (row[round(left + table_width) - offset] for offset in (4, 60))
    assert (middle - edge > 20) == goes_on


PAPER_PX = 963
"""Width that a landscape letter leaves, which is narrower than A4."""


def test_paper_has_the_whole_page_in_light_colours(browser: Chromium, page: Path, tmp_path: Path) -> None:
    browser.open(page, width=PAPER_PX, dark=True)
    browser.print(tmp_path / "page.pdf")
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") > 2
    browser.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


@pytest.mark.parametrize("which", ["page", "many"])
def test_paper_has_every_section_open_whole_numbers_and_whole_tables(
    browser: Chromium, request: pytest.FixtureRequest, which: str
) -> None:
    folded = "document.querySelectorAll('details:not([open])').length"
    browser.open(request.getfixturevalue(which), width=PAPER_PX)
    before = browser.evaluate(folded)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert before > 3 and browser.evaluate(folded) == 0
        broken = browser.evaluate(
            "[...document.querySelectorAll('table.sortable td[data-value]')].filter(cell => {"
            "  const range = document.createRange(); range.selectNodeContents(cell);"
            "  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1;"
            "}).map(cell => cell.textContent)"
        )
        assert broken == [] and browser.count("table.sortable td[data-value]") > 50
        assert browser.evaluate("document.documentElement.scrollWidth") <= PAPER_PX
        sizes = "[...document.querySelectorAll('table.sortable')].map(table => parseFloat(getComputedStyle(table).fontSize))"
        assert min(browser.evaluate(sizes)) > 5
        assert browser.evaluate("getComputedStyle(document.querySelector('header > .scroll')).breakInside") == "avoid"
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(folded) == before and browser.count("table.turned, table.fitted") == 0


def test_two_comparisons_side_by_side_are_as_safe(browser: Chromium, page: Path, tmp_path: Path) -> None:
    folder = comparisons.stored_in(comparisons.hostile(), tmp_path / "a")
    other = comparisons.stored_in(comparisons.hostile(), tmp_path / "b")
    pair = side_by_side.report((folder, other), (read(folder), read(other)), tmp_path / "out")
    assert pair.write(tmp_path / "out") is None
    browser.open(tmp_path / "out" / pair.page_file)
    assert browser.complaints == [] and browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.querySelectorAll('table.sortable tbody tr').length") > 10


def test_the_live_page_shows_curves_and_loads_itself_again(browser: Chromium, tmp_path: Path) -> None:
    with display(Console(file=io.StringIO())) as terminal:
        shown = live.Live(terminal, tmp_path, comparisons.HOSTILE[0])
        shown.plan(["a", "b"])
        shown.begin("a", comparisons.HOSTILE[1])
        shown.end(comparisons.good(comparisons.row("pytorch"), 1.0))
        shown.finish("All runs have ended.")
    browser.open(tmp_path / live.PAGE_FILE)
    assert browser.complaints == [] and browser.evaluate("document.images.length + document.scripts.length") == 0
    assert browser.evaluate("document.querySelectorAll('.plot polyline').length") == 2


def _chart(browser: Chromium, name: str) -> None:
    browser.evaluate(
        f"figure = document.querySelector('.plot svg[aria-label=\"{name}\"]').closest('figure'); "
        "figure.scrollIntoView({behavior: 'instant'}); "
        "said = () => figure.querySelector('output').textContent; "
        "marks = () => [...figure.querySelectorAll('[data-label]')].filter(mark => mark.getClientRects().length); "
        "named = text => [...figure.querySelectorAll('button')].find(each => each.textContent === text); undefined"
    )


@pytest.mark.parametrize(
    ("name", "mark", "words"),
    [("seconds per epoch", "[data-label]", "pytorch serial, 2 cores: 4.000 s per epoch"),
     ("loss", "use[data-label]", "pytorch serial, 2 cores, epoch 1: training loss 1.0000")],
)  # fmt: skip
def test_a_chart_says_the_value_under_the_pointer(browser: Chromium, page: Path, name: str, mark: str, words: str) -> None:
    browser.open(page)
    _chart(browser, name)
    box = f"figure.querySelector({mark!r}).getBoundingClientRect()"
    # A marker of one of several equal curves: the last one drawn is on top, its value the same.
    x, y = browser.evaluate(f"(() => {{ const box = {box}; return [box.x + box.width / 2, box.y + box.height / 2] }})()")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert browser.evaluate("said()").split(",")[-1].split(":")[-1] == words.split(":")[-1]
    assert browser.evaluate("getComputedStyle(figure.querySelector('output')).display") == "block"
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert browser.evaluate("said()") == ""
    assert browser.complaints == []


def test_a_chart_in_focus_says_its_values_by_the_arrow_keys(browser: Chromium, page: Path) -> None:
    browser.open(page)
    _chart(browser, "loss")
    browser.evaluate("figure.focus()")
    assert browser.evaluate("said()") == "pytorch serial, 2 cores, epoch 1: training loss 1.0000"
    browser.press("ArrowRight", 39)
    assert browser.evaluate("said()") == "pytorch serial, 2 cores, epoch 2: training loss 0.5000"
    for _ in range(2):
        browser.press("ArrowLeft", 37)
    assert browser.evaluate("said()") == "tensorflow data_parallel x2, epoch 2: validation loss 0.5000"
    browser.evaluate("figure.blur()")
    assert browser.evaluate("said()") == ""


def test_a_series_of_a_chart_goes_and_comes_back(browser: Chromium, page: Path) -> None:
    browser.open(page)
    _chart(browser, "seconds per epoch")
    shown = "marks().map(mark => mark.dataset.series)"
    assert browser.evaluate(shown) == ["pytorch"] * 2 + ["tensorflow"] * 2
    browser.evaluate("named('pytorch').click()")
    assert browser.evaluate(shown) == ["tensorflow"] * 2
    assert browser.evaluate("named('pytorch').ariaPressed") == "false"
    browser.evaluate("figure.focus()")
    assert browser.evaluate("said()").startswith("tensorflow serial")
    browser.evaluate("named('logarithmic axis').click()")
    assert browser.evaluate(shown) == ["tensorflow"] * 2
    browser.evaluate("named('pytorch').click()")
    assert len(browser.evaluate(shown)) == 4


def test_a_chart_changes_between_a_linear_and_a_logarithmic_axis(browser: Chromium, page: Path) -> None:
    browser.open(page)
    _chart(browser, "seconds per epoch")
    ends = "[...figure.querySelectorAll('[data-label]')].map(mark => mark.getBoundingClientRect().width)"
    linear = browser.evaluate(ends)
    assert linear[0] / linear[1] == pytest.approx(2.0, rel=0.02)  # 4 s against 2 s
    browser.evaluate("named('logarithmic axis').click()")
    logarithmic = browser.evaluate(ends)
    assert logarithmic[0] / logarithmic[1] != pytest.approx(2.0, rel=0.1)
    assert browser.evaluate("figure.querySelectorAll('svg').length") == 1
    browser.evaluate("named('logarithmic axis').click()")
    assert browser.evaluate(ends) == linear
    assert browser.complaints == []
    assert browser.evaluate("[...document.querySelectorAll('.plot:has(template)')].length") == 3


def test_charts_have_no_button_on_paper_or_without_their_script(browser: Chromium, page: Path) -> None:
    browser.open(page)
    assert browser.count(".controls button") > 10
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.evaluate("[...document.querySelectorAll('.controls')].every(each => !each.getClientRects().length)")
        assert browser.evaluate("[...document.querySelectorAll('.plot svg')].every(each => each.getClientRects().length)")
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page)
        assert browser.count(".controls, output") == 0 and browser.count(".plot svg") == 5
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_hostile_names_in_a_chart_are_text(browser: Chromium, tmp_path: Path) -> None:
    stored = comparisons.hostile()
    names = zip(stored.comparison.rows, comparisons.HOSTILE, strict=False)
    hostile = comparisons.with_plan(stored, rows=[comparisons.with_fields(row, contestant=name) for row, name in names])
    browser.open(write(hostile, tmp_path))
    _chart(browser, "seconds per epoch")
    assert comparisons.HOSTILE[1] in browser.evaluate("[...figure.querySelectorAll('button')].map(each => each.textContent)")
    browser.evaluate("figure.focus()")
    assert browser.evaluate("said()").startswith(f"{comparisons.HOSTILE[0]} serial")
    assert browser.evaluate("[document.scripts.length, document.images.length]") == [1, 0]
    assert browser.evaluate("document.title") != "run" and browser.complaints == []
