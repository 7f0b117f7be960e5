"""The software bill of materials has what the locks can install, with the same hashes, and the licence list's licences."""

import csv
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
LOCKS = [path for folder in (".", "locks", "plugins/*") for path in sorted(PROJECT.glob(f"{folder}/*.lock"))]
Hashes = dict[str, set[str]]


def locks() -> dict[str, str]:
    return {path.relative_to(PROJECT).as_posix(): path.read_text(encoding="utf-8") for path in LOCKS}


def sbom() -> dict[str, Any]:
    return json.loads((PROJECT / "locks" / "sbom.cdx.json").read_text(encoding="utf-8"))


def hashes(lock: str) -> Hashes:
    """SHA-256 of the files of each `name==version` in the text of a lock. A distribution may have several versions."""
    found: Hashes = {}
    for block in re.split(r"\n(?=\S)", lock):
        if entry := re.match(r"([\w.-]+)(?:\[.*?\])?(==[^ ;\\\n]+)", block):
            found[entry[1] + entry[2]] = set(re.findall(r"--hash=sha256:(\w+)", block))
    return found


def differences(texts: dict[str, str], bom: dict[str, Any]) -> list[str]:
    """Where the locks and the bill differ: each sentence names a package."""
    listed: Hashes = {
        f"{each['name']}=={each['version']}": {
            digest["content"] for reference in each["externalReferences"] for digest in reference["hashes"]
        }
        for each in bom["components"]
    }
    found: list[str] = []
    wanted: set[str] = set()
    for name, text in texts.items():
        locked = hashes(text)
        wanted |= locked.keys()
        found += [f"{each} of {name} is not in the bill" for each in sorted(locked.keys() - listed.keys())]
        shared = sorted(locked.keys() & listed.keys())
        found += [f"{each} of {name} has other hashes" for each in shared if locked[each] != listed[each]]
    return found + [f"{each} is in no lock" for each in sorted(listed.keys() - wanted)]


def test_the_bill_has_what_the_locks_have() -> None:
    assert all(hashes(text) and all(hashes(text).values()) for text in locks().values())
    assert {"requirements.lock", "locks/cpu.lock", "plugins/jax_twin/requirements.lock"} < locks().keys()
    assert differences(locks(), sbom()) == [], "Run: make sbom"


@pytest.mark.parametrize("lock", list(locks()))
def test_a_changed_lock_is_found_by_the_name_of_the_package(lock: str) -> None:
    texts = locks()
    text, (version,) = texts[lock], re.findall(r"^numpy==(\S+)", texts[lock], re.MULTILINE)
    digest = min(hashes(text)[f"numpy=={version}"])
    for planted, found in (
        (text.replace(digest, "0" * 64), f"numpy=={version} of {lock} has other hashes"),
        (text.replace(f" \\\n    --hash=sha256:{digest}", ""), f"numpy=={version} of {lock} has other hashes"),
        (text.replace(f"numpy=={version}", "numpy==0.0.1"), f"numpy==0.0.1 of {lock} is not in the bill"),
        (f"{text}left-pad==1.3.0 \\\n    --hash=sha256:{digest}\n", f"left-pad==1.3.0 of {lock} is not in the bill"),
    ):
        assert planted != text
        assert differences(texts | {lock: planted}, sbom()) == [found]


def test_a_package_that_left_the_locks_or_that_the_bill_has_lost_is_named() -> None:
    texts, bom = locks(), sbom()
    without = {name: re.sub(r"^pooch==.*\n( .*\n)*", "", text, flags=re.MULTILINE) for name, text in texts.items()}
    (pooch,) = (each for each in bom["components"] if each["name"] == "pooch")
    assert differences(without, bom) == [f"pooch=={pooch['version']} is in no lock"]
    bom["components"].remove(pooch)
    assert {each.split("==")[0] for each in differences(texts, bom)} == {"pooch"}


def test_the_bill_has_the_licence_of_the_list_for_each_package_and_the_version_of_the_project() -> None:
    with (PROJECT / "locks" / "licences.csv").open(encoding="utf-8", newline="") as file:
        listed = {row["package"]: row["licence"] for row in csv.DictReader(file)}
    bom = sbom()
    named = {each["name"]: [licence["expression"] for licence in each["licenses"]] for each in bom["components"]}
    assert named == {package: [licence] for package, licence in listed.items()}, "Run: make sbom"
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert bom["metadata"]["component"]["version"] == project["version"], "Run: make sbom"


def test_the_bill_says_nothing_of_the_machine_that_made_it() -> None:
    bom = sbom()
    assert "timestamp" not in bom["metadata"] and "serialNumber" not in bom
    addresses = set(re.findall(r"\w+://[^/\"]+", json.dumps(bom)))
    assert addresses == {"http://cyclonedx.org"}  # that of the schema
