import json
import re
import shutil
from pathlib import Path

import pytest

from common.artifacts.schema import Environment
from compare.results import store
from compare.running.contestants import Contestant
from tests.compare.tools.machines.test_merge import folders, of_machine
from tests.support import comparisons, trees
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended


def links(site: Path) -> list[str]:
    return re.findall(r'href="([^"]+/report.html)"', (site / "index.html").read_text())


@pytest.mark.slow
def test_the_page_links_to_the_report_of_each_comparison(tmp_path: Path) -> None:
    own = Environment(interpreter=f"{tmp_path}/bin/python3", python="3.12", distributions=(), distributions_hash="0")
    entered = Contestant(name="pytorch", twin="pytorch", python=own.interpreter)
    first = of_machine(1, 1.3, environments={"pytorch": own}, contestants=[entered])
    first = comparisons.with_runs(first, repeats=[0], environment=own)
    there, site = folders(tmp_path / "in", first, of_machine(2, 0.8)), tmp_path / "site"
    printed = convtwins_json("gallery", *there, "--out", site)
    found = links(site)
    assert len(set(found)) == 2 and all((site / each).is_file() for each in found)
    page = (site / "index.html").read_text()
    assert "CPU 1" in page and "CPU 2" in page and "tensorflow is 1.2" in page
    written = [path for path in site.rglob("*") if path.suffix in (".html", ".md", ".json", ".csv", ".tex")]
    assert len(written) > 10 and not [path for path in written if str(tmp_path) in path.read_text()]  # of whoever made it
    assert any("python3, Python 3.12" in path.read_text() for path in written)
    assert printed["folders"] == [Path(each).parent.name for each in found]


@pytest.mark.slow
def test_a_gallery_made_again_shows_what_it_is_given_and_nothing_more(tmp_path: Path) -> None:
    first, second = folders(tmp_path / "in", of_machine(1), of_machine(2))
    site = tmp_path / "site"
    assert convtwins("gallery", first, second, "--out", site).exit_code == 0
    assert convtwins("gallery", second, "--out", site).exit_code == 0
    assert [path.name for path in site.iterdir() if (path / "report.html").exists()] == [Path(links(site)[0]).parent.name]
    assert "CPU 1" not in (site / "index.html").read_text()


def test_a_crafted_list_of_an_earlier_gallery_removes_nothing_outside_it(tmp_path: Path) -> None:
    (there,) = folders(tmp_path / "in", of_machine(1))
    site, other = tmp_path / "site", tmp_path / "other"
    convtwins("gallery", there, "--out", site).succeeded()
    other.mkdir()
    (other / "report.html").write_text("mine")
    (site / "link").symlink_to(other)
    listed = json.loads((site / "gallery.json").read_text()) | {"folders": ["../other", "link", str(other), 3]}
    (site / "gallery.json").write_text(json.dumps(listed))
    convtwins("gallery", there, "--out", site).succeeded()
    assert (other / "report.html").read_text() == "mine"


@pytest.mark.slow
def test_what_is_no_gallery_is_left_alone(tmp_path: Path) -> None:
    (there,) = folders(tmp_path / "in", of_machine(1))
    check_ended(convtwins("gallery", there, "--out", there), names=[there, "gallery"])
    assert (there / store.PLAN_FILE).exists()
    notes, damaged = (
        trees.write(tmp_path / name, files) for name, files in (("notes", {}), ("damaged", {store.PLAN_FILE: "{"}))
    )
    for other, reason in ((notes, "no comparison"), (damaged, "cannot be read")):
        shown = convtwins("gallery", there, other, "--out", tmp_path / "other").succeeded().stdout
        (line,) = (line for line in shown.splitlines() if f"{other.name}: " in line)
        assert reason in line
    check_ended(convtwins("gallery", there, tmp_path / "typo", "--out", tmp_path / "other"), names=[tmp_path / "typo"])
    check_ended(convtwins("gallery", there, there, "--out", tmp_path / "site"), names=["twice"])
    check_ended(convtwins("gallery", tmp_path / "nothing", "--out", tmp_path / "site"), names=[tmp_path / "nothing"])


def test_names_from_outside_are_text(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>/../.."
    (there,) = folders(tmp_path / "in", of_machine(1, data_name=bad))
    site = tmp_path / "site"
    convtwins("gallery", there, "--out", site).succeeded()
    assert "<script>alert" not in (site / "index.html").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"in", "site"}


def test_a_gallery_writes_into_no_folder_that_a_link_leads_to(tmp_path: Path) -> None:
    (there,) = folders(tmp_path / "in", of_machine(1))
    site, other = tmp_path / "site", tmp_path / "other"
    convtwins("gallery", there, "--out", site).succeeded()
    place = site / Path(links(site)[0]).parent
    shutil.rmtree(place)
    other.mkdir()
    place.symlink_to(other)
    check_ended(convtwins("gallery", there, "--out", site), names=[place, "link"])
    assert not list(other.iterdir())
