"""The JAX twin is an example for others: small, with the suite's names. These checks need no JAX."""

import re
from pathlib import Path

PROJECT = Path(__file__).parents[2]
PLUGIN = PROJECT / "plugins" / "jax_twin"
MOST_LINES = 1500


def test_the_whole_twin_has_fewer_than_1500_lines() -> None:
    lines = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in PLUGIN.rglob("*.py") if "build" not in path.parts
    }
    assert sum(lines.values()) < MOST_LINES, sorted(lines.items(), key=lambda each: -each[1])[:5]


def test_its_files_have_the_names_of_the_other_twins() -> None:
    own = {path.relative_to(PLUGIN / "jax_impl").as_posix() for path in (PLUGIN / "jax_impl").rglob("*.py")}
    theirs = {path.relative_to(PROJECT / "pytorch_impl").as_posix() for path in (PROJECT / "pytorch_impl").rglob("*.py")}
    assert own <= theirs, own - theirs


def test_its_lock_has_the_versions_of_the_project() -> None:
    def pins(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9_.-]+)==([^ ;\\\n]+)", path.read_text(encoding="utf-8").lower(), re.MULTILINE))

    wanted, locked = pins(PLUGIN / "requirements.txt"), pins(PLUGIN / "requirements.lock")
    assert wanted.items() <= locked.items()
    project = pins(PROJECT / "requirements.txt")
    assert {name: version for name, version in wanted.items() if name in project}.items() <= project.items()
