"""What `match` says that it supports. The matches themselves are in `tests/compare/tools/matching`."""

from pathlib import Path

import pytest

from tests.twins.adapters import Twin

PAGE = Path(__file__).parents[2] / "docs" / "match.md"
WITH_PARAMETERS = ("conv", "transposed_conv", "dense", "batch_norm", "layer_norm", "group_norm", "dropout")


@pytest.mark.parametrize("kind", WITH_PARAMETERS)
def test_the_docs_list_every_layer_that_is_supported_by_name(twin: Twin, kind: str) -> None:
    listed = PAGE.read_text().partition("## Supported layers")[2]
    names = [name for name in twin.match.SUPPORTED[kind] if name[0].isupper()]
    assert names and all(f"`{name}`" in listed for name in names)
