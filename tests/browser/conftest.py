import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from compare.judgement.findings import findings
from compare.judgement.summary import summarize
from compare.reporting import comparison_report
from compare.reporting.comparison_report import JudgedComparison
from compare.results.store import StoredComparison
from tests.browser.chromium import Chromium
from tests.support import comparisons

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    opened = Chromium(executable, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a comparison all of whose text from outside is hostile."""
    return write(comparisons.hostile(), tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of data with 38 classes."""
    return write(comparisons.hostile(38), tmp_path_factory.mktemp("many"))


def write(stored: StoredComparison, folder: Path) -> Path:
    summaries = summarize(stored)
    report = comparison_report.report(JudgedComparison(stored, summaries, findings(stored, summaries)), folder)
    assert report.write(folder) is None
    return folder / report.page_file
