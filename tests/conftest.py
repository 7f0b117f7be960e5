"""What all tests share: which twin is under test, and where the real data lies."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from threadpoolctl import threadpool_limits

if "tests.support" not in sys.modules:  # as where `pytest-benchmark compare` has read this file under another name
    pytest.register_assert_rewrite("tests.support")  # so that a changed screen shows what has changed

PROJECT = Path(__file__).parents[1]

# No deadline: a shared machine may stall any example. In CI the same examples every time, so that red means changed.
hypothesis.settings.register_profile("convtwins", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("convtwins")

# Tests count on replicas that are CPU cores. So GPUs are hidden from all but tests/twins/test_gpu.py.
VISIBLE_GPUS = "CONVTWINS_TEST_GPUS"
os.environ.setdefault(VISIBLE_GPUS, os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Tables are as wide as this says, and pytest-xdist, like some shells, sets it.
os.environ.pop("COLUMNS", None)


def in_folder(folder: Path) -> set[str]:
    """What lies in a checkout and in its `results`. Hidden files are caches."""
    return {str(path.relative_to(folder)) for pattern in ("[!.]*", "results/*") for path in folder.glob(pattern)}


_THERE = in_folder(PROJECT)


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_checkout(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    # pytest-benchmark makes its folder when the session begins: a tutorial has it in `results`.
    storage = Path(str(request.config.getoption("benchmark_storage", "")).removeprefix("file://")).absolute()
    left = {name for name in in_folder(PROJECT) - _THERE if not storage.is_relative_to(PROJECT / name)}
    _THERE.update(left)  # said once. What a developer makes here meanwhile is said too.
    assert not left, (
        f"This test, or one beside it, has left {', '.join(sorted(left))} in the checkout. Give it --out or a folder."
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that hold something printed against what is kept. `make snapshots` runs them alone."""
    for item in items:
        if "snapshot" in getattr(item, "fixturenames", ()):
            item.add_marker("snapshots")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end, so Python need not look for garbage among it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def products_on_one_thread() -> Iterator[None]:
    """NumPy's products here are small: its threads wait for each other, and take the cores from the part beside this one.

    This costs the referee up to ten times its own processor time. The processes that tests start keep their threads.
    """
    with threadpool_limits(1, "blas"):
        yield


CONTRACT_ALONE = ("jax", "keras-torch", "keras-tensorflow", "keras-jax")
"""Twins of packages. They have tests/twins/test_contract.py alone."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--framework",
        choices=("pytorch", "tensorflow", *CONTRACT_ALONE),
        help="the twin that tests/twins hold to their contract; one a process, for the frameworks cannot share one. "
        "JAX and Keras have only test_contract.py",
    )


NO_FRAMEWORK = (
    "These tests need to know the twin. Use --framework pytorch or tensorflow. tests/twins/test_contract.py also takes "
    f"{', '.join(CONTRACT_ALONE)}."
)


def data_folder() -> Path:
    """Where the real data lies, if it is here."""
    return Path(os.environ.get("CONVTWINS_TEST_DATA", PROJECT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def framework(request: pytest.FixtureRequest) -> str:
    name = request.config.getoption("--framework")
    if name is None:
        raise pytest.UsageError(NO_FRAMEWORK)
    return name


@pytest.fixture(scope="session")
def test_data() -> Callable[[str], Path]:
    """Gives the path of a file of real data by name, or skips the test where it is missing."""
    folder = data_folder()

    def find(name: str) -> Path:
        path = folder / name
        if not path.exists():
            pytest.skip(f"{name} is not in {folder} (set CONVTWINS_TEST_DATA)")
        return path

    return find
