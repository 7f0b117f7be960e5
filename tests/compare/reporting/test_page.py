import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from common.artifacts.schema import Noise
from compare.judgement.summary import summarize
from compare.reporting import comparison_report, page, svg
from compare.reporting.comparison_report import judge
from compare.reporting.document import Report
from compare.reporting.plots import SETTINGS
from compare.results.store import StoredComparison
from tests.support import comparisons, processes, trees

TEMPLATES = Path(page.__file__).parent / "templates"


def report(stored: StoredComparison) -> Report:
    return comparison_report.report(judge(stored), Path("out"))


def html_of(stored: StoredComparison) -> str:
    return report(stored).to_html(Path("out"))


class Reader(HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.within: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.tags[-1:] in (["style"], ["script"]):
            self.within.setdefault(self.tags[-1], data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_the_policy_allows_the_pages_own_style_and_script_by_their_digests_and_nothing_else() -> None:
    reader = read(html_of(comparisons.hostile()))
    policy = next(value for name, value in reader.attributes if name == "content" and "default-src" in (value or ""))
    digests = {
        tag: base64.b64encode(hashlib.sha256(reader.within[tag].encode()).digest()).decode() for tag in ("style", "script")
    }
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digests['style']}'; script-src 'sha256-{digests['script']}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_a_page_without_a_script_allows_none() -> None:
    html = page.render("document.html.jinja", scripted=False, **VALUES)
    assert "script-src" not in html and "<script" not in html


def test_text_from_outside_adds_no_element_and_no_attribute_that_acts() -> None:
    kind, plain = (read(html_of(stored)) for stored in (comparisons.hostile(), comparisons.profiled()))
    assert set(kind.tags) - set(plain.tags) <= {"section", "details", "summary", "h3"}
    assert kind.tags.count("script") == kind.tags.count("style") == 1 and "img" not in kind.tags
    assert not [name for name, _ in kind.attributes if name.startswith("on") or name in ("style", "src")]
    assert {value[0] for name, value in kind.attributes if name == "href" and value} == {"#", "d"}  # the empty icon is data:,
    assert "{{ 7 * 7 }}{% raw %}" in kind.text


def test_what_a_template_is_not_given_is_an_error_and_no_gap() -> None:
    with pytest.raises(jinja2.UndefinedError) as error:
        page.render("document.html.jinja", **{name: value for name, value in VALUES.items() if name != "commands"})
    assert "'commands'" in str(error.value)


def test_nothing_but_our_own_style_script_and_pictures_is_left_unescaped() -> None:
    safe = re.findall(r"\{\{ ?(\w+)\|safe", "".join(path.read_text() for path in TEMPLATES.glob("*.jinja")))
    assert sorted(safe) == ["plot", "script", "style"]


def test_the_answers_of_the_first_screen_stand_before_every_table() -> None:
    whole = report(comparisons.repeated())
    assert whole.screen is not None
    first = read(whole.to_html(Path("out")).partition("<table")[0]).text
    answers = {answer.label: answer.sentences for answer in whole.screen.answers}
    assert answers.keys() == {"Faster", "Parallel", "Fair?"}
    assert all(sentence in first for sentences in answers.values() for sentence in sentences)


def test_the_headline_has_every_decided_finding_before_what_is_not_decided_modes_too() -> None:
    html = html_of(comparisons.repeated())
    first = html.partition("<table")[0]
    assert html.index("<dl") < html.index("<table")
    decided = ("pytorch: 3.00", "faster than serial on 2 cores: pytorch data_parallel x2", "slower than serial on 2 cores")
    assert all(words in first for words in decided)
    assert first.index("pytorch: 3.00") < first.index("no difference shown")


def test_the_proof_is_one_line_that_unfolds_and_is_open_where_it_fails() -> None:
    html = html_of(comparisons.hostile())
    proof = html[html.index('<details class="proof" id="proof"') :]
    proof = proof[: proof.index("</details>")]
    assert proof.count("<summary>") == 1 and "Identical training:" in proof.partition("</summary>")[0]
    assert "Certificate of parity" in proof and "Certificate of parity" not in html.replace(proof, "")
    assert 'id="proof" open' in html  # of hostile, a rung fails
    assert 'id="proof">' in html_of(comparisons.repeated())


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({}, '<b class="warn">comparable, at unequal settings</b>'),
        ({"cores_of_others": 1.5, "machine": {"logical_cores": 2}}, '<b class="warn">times in doubt in 1 of 4 rows</b>'),
        ({"noise": Noise(cores_stolen=0.5)}, '<b class="warn">times in doubt in 1 of 4 rows</b>'),
        ({"cores_used": None}, '<b class="warn">times in doubt in 1 of 4 rows</b>'),
        ({"data_hash": "other", "cores_used": None}, '<b class="bad">not comparable</b>'),
    ],
)
def test_runs_whose_times_are_in_doubt_are_not_called_comparable(changed: dict[str, Any], shown: str) -> None:
    html = html_of(comparisons.with_runs(comparisons.repeated(1), "pytorch-serial-2", **changed))
    assert f"<span>Timed runs</span>{shown}" in html


def test_timed_runs_are_comparable_without_reserve_where_all_conditions_are_equal() -> None:
    conditions = comparisons.repeated(1).runs["pytorch-serial-2"][0].conditions
    html = html_of(comparisons.with_runs(comparisons.repeated(1), conditions=conditions))
    assert '<span>Timed runs</span><b class="good">comparable</b>' in html
    assert "nequal settings" not in html and "different settings" not in html


def test_the_certificate_shows_difference_step_and_tolerance() -> None:
    text = re.sub(r"\s+", " ", read(html_of(comparisons.hostile())).text)
    assert "4.0e-16 7 50 1.0e-12 passed" in text and "inf 7 50 0.0e+00 failed" in text


def test_confusion_is_coloured_by_the_share_of_its_row() -> None:
    html = html_of(comparisons.with_runs(comparisons.repeated(1), confusion=[[9, 1], [0, 0]]))
    assert '<tr><th scope="row">0</th><td class="s9">9</td><td class="s1">1</td></tr>' in html
    assert '<tr><th scope="row">1</th><td></td><td></td></tr>' in html


def test_the_picture_of_the_confusion_stands_beside_the_page_and_its_tables_in_it(tmp_path: Path) -> None:
    assert report(comparisons.hostile()).write(tmp_path) is None
    assert 'aria-label="confusion"' not in (tmp_path / "report.html").read_text("utf-8")
    assert "![confusion](plots/confusion.png)" in (tmp_path / "report.md").read_text("utf-8")
    assert {path.name for path in (tmp_path / "plots").glob("confusion.*")} == {"confusion.png", "confusion.svg"}
    assert {path.suffix for path in (tmp_path / "tables").glob("confusion.*")} == {".csv", ".md", ".tex"}


def test_the_matrices_of_all_repeats_are_added_up() -> None:
    stored = comparisons.with_runs(comparisons.repeated(3), confusion=lambda run: [[run.repeat, 1], [2, 3]])
    assert summarize(stored)[0].confusion == [[3, 3], [6, 9]]


def test_commands_are_quoted_for_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = dict(comparison_report.commands(judge(comparisons.hostile()), Path("a folder; rm -r x")))
    line = commands["The comparison:"].removeprefix(".venv/bin/convtwins ")
    assert line != commands["The comparison:"] and line.isprintable()
    words = processes.run(["bash", "-c", f"printf '%s\\0' {line}"]).succeeded().stdout
    assert words.split("\0")[:-1] == ["run", "--data", *comparisons.HOSTILE]
    assert commands["This report, from the stored results:"] == ".venv/bin/convtwins report 'a folder; rm -r x'"
    monkeypatch.chdir(tmp_path)
    stored = comparisons.repeated(2)
    assert comparison_report.run_commands(judge(stored), Path("out")) == []
    row = stored.comparison.rows[0]
    spec_file = Path("out", "runs", f"{row.id}-r1", "spec.json")
    trees.write(tmp_path, {str(spec_file): ""})
    brought = comparisons.with_plan(stored, rows=[comparisons.with_fields(row, twin="brought")])
    for made, program in ((stored, "pytorch_impl"), (brought, "common.processes.plugin brought")):
        assert comparison_report.run_commands(judge(made), Path("out")) == [
            f".venv/bin/python -m {program} run {spec_file} --out again/{row.id}"
        ]


def test_a_report_written_elsewhere_is_repeated_elsewhere() -> None:
    commands = dict(comparison_report.commands(judge(comparisons.repeated()), Path("a"), Path("b")))
    assert commands["This report, from the stored results:"] == ".venv/bin/convtwins report a --out b"


@pytest.mark.parametrize("given", [("--out", "results/a"), ("--out=results/a",), ()])
def test_the_command_that_repeats_a_comparison_takes_a_new_folder(given: tuple[str, ...]) -> None:
    stored = comparisons.with_plan(comparisons.repeated(), argv=["run", *given, "--repeats", "2", "--name", "out"])
    commands = dict(comparison_report.commands(judge(stored), Path("results/a")))
    assert commands["The comparison:"] == ".venv/bin/convtwins run --repeats 2 --name out"


def test_a_report_says_that_its_commit_lacks_changes() -> None:
    changed = judge(comparisons.with_plan(comparisons.repeated(), machine={"commit": "a" * 40, "dirty": True}))
    commands = dict(comparison_report.commands(changed, Path("a")))
    assert commands["The last commit of its code. It lacks changes that were not committed:"] == f"git checkout {'a' * 40}"
    assert dict(comparison_report.environment(changed))["uncommitted changes"] == "yes"


def test_a_plot_brings_no_style_of_its_own_and_no_id_twice(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    with mpl.rc_context(SETTINGS):
        figure = Figure()
        axis = figure.subplots()
        axis.bar([1, 2], [3, 4], hatch="//", edgecolor="white", label="<b>")
        axis.set_title("<script>&")
        figure.legend()
        figure.savefig(path)
    one, two = (svg.svg(path.read_text(), name) for name in ("one", "two words"))
    reader = read(one)
    assert not {"style", "script", "metadata"} & set(reader.tags) and "style" not in dict(reader.attributes)
    assert "<script>&" in reader.text and "<b>" in reader.text
    ids = re.findall(r' id="([^"]+)"', one + two)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:url\(|href=\")#([^)\"]+)", one + two)) <= set(ids)
    drawing, hatches = one.partition("<pattern")[::2]
    assert not {"#000000", "#ffffff"} & set(re.findall(r"#\w+", drawing)) and "var(--card)" in drawing
    assert "#ffffff" in hatches  # seen on the bar's colour, light or dark


VALUES = {
    "title": "T", "overline": "", "facts": [], "answers": [], "marks": [], "findings": [], "grids": [], "drawings": [],
    "photographs": [], "sections": [], "environment": [], "commands": [("It:", "c")], "beside": "report.md",
}  # fmt: skip
