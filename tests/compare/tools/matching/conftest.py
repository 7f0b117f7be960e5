"""One process of each framework serves all tests of `match`."""

from collections.abc import Iterator

import pytest

from compare.tools.matching import model_comparison
from compare.tools.matching.model_comparison import ModelProcess


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModelProcess, ModelProcess]]:
    with model_comparison.start_processes(tmp_path_factory.mktemp("match")) as started:
        yield started
