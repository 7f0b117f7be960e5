"""Each change is one line in a file of its own, which towncrier can join into the CHANGELOG."""

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
CHANGES = PROJECT / "changes"
TYPES = {"results", "added", "changed", "fixed", "removed"}
MOST_LETTERS = 200


def faults(path: Path) -> list[str]:
    """Return what is wrong with the file of one change, as sentences that name it."""
    found: list[str] = []
    name = re.fullmatch(r"[a-z0-9-]+\.([a-z]+)\.md", path.name)
    if name is None or name[1] not in TYPES:
        found.append(f"{path.name}: the name must be NAME.TYPE.md. TYPE is one of {', '.join(sorted(TYPES))}.")
    text = path.read_text(encoding="utf-8")
    if text.count("\n") != 1 or not text.endswith(".\n"):
        found.append(f"{path.name}: it must have one line, which ends in a full stop.")
    if len(text) > MOST_LETTERS + 1:
        found.append(f"{path.name}: it must have at most {MOST_LETTERS} letters. Received: {len(text) - 1}.")
    return found


def test_each_change_is_one_line_of_a_known_type() -> None:
    assert [fault for path in sorted(CHANGES.iterdir()) if path.name != "README.md" for fault in faults(path)] == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("resume.fixed.md", "A comparison goes on.\n", ""),
        ("resume.mended.md", "A comparison goes on.\n", "TYPE is one of"),
        ("fixed.md", "A comparison goes on.\n", "NAME.TYPE.md"),
        ("resume.fixed.md", "A comparison\ngoes on.\n", "one line"),
        ("resume.fixed.md", "", "one line"),
        ("resume.fixed.md", "A comparison goes on.", "one line"),
        ("resume.fixed.md", f"{'A' * MOST_LETTERS}.\n", "Received: 201."),
    ],
)
def test_a_wrong_change_is_named(name: str, text: str, found: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert found in " ".join(faults(tmp_path / name)) if found else faults(tmp_path / name) == []


def test_towncrier_knows_these_types_and_finds_its_place_in_the_changelog() -> None:
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
    assert {each["directory"] for each in settings["type"]} == TYPES
    assert PROJECT / settings["directory"] == CHANGES
    assert (PROJECT / settings["filename"]).read_text(encoding="utf-8").count(settings["start_string"]) == 1


def test_the_changelog_is_short_up_to_the_first_release() -> None:
    lines = (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 128
    assert len(lines[lines.index("## 0.1.0: what it does") :]) <= 60
