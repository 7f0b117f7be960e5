"""The suite's own fixtures, for the tests of this package."""

from tests.conftest import nothing_is_left_in_the_checkout, products_on_one_thread, pytest_collection_modifyitems
from tests.support.snapshots import screens

__all__ = ["nothing_is_left_in_the_checkout", "products_on_one_thread", "pytest_collection_modifyitems", "screens"]
