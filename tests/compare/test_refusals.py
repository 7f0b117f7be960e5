"""Refusals of commands, as tables: `refusals/COMMAND.yaml` holds a list of cases. A tool's table stands among its tests.

| field | meaning |
|---|---|
| words | what stands behind the command's name; `{folder}` is the case's own folder, also in `received` |
| files | the tree in that folder, as `trees.write` takes it |
| exit_code | 2 if it is not given |
| field, received, fix, names | parts of the message, as `refusals.refused` takes them |

No case starts a run or a simulation, and no file changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from compare.running import launch
from tests.support import refusals, trees
from tests.support.command_line import convtwins

TABLES = (*Path(__file__).parent.glob("**/refusals"), *Path(__file__).parents[2].glob("plugins/*/tests/refusals"))
CASES = [
    pytest.param(path.stem, case, id=f"{path.stem} {' '.join(map(str, case['words']))}")
    for folder in TABLES
    for path in sorted(folder.glob("*.yaml"))
    for case in yaml.safe_load(path.read_text(encoding="utf-8"))
]


@pytest.mark.usefixtures("fake_twins")
@pytest.mark.parametrize(("command", "case"), CASES)
def test_a_command_refuses_and_leaves_everything_as_it_was(
    command: str, case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = trees.write(tmp_path / "case", case.get("files", {}))
    before = trees.read(folder)
    monkeypatch.chdir(folder)
    words = [str(word).replace("{folder}", str(folder)) for word in case["words"]]
    monkeypatch.setattr(launch, "start", pytest.fail)  # a guard: what is refused starts nothing
    if command == "selftest":
        monkeypatch.setattr("compare.tools.selftest.selftest.simulate", pytest.fail)  # a guard too
    ended = convtwins(*command.split("-"), *words)
    parts = {name: case[name] for name in ("field", "received", "fix", "names") if name in case}
    if isinstance(parts.get("received"), str):
        parts["received"] = parts["received"].replace("{folder}", str(folder))
    refusals.check_ended(ended, exit_code=case.get("exit_code", 2), **parts)
    assert ended.stdout == "" and trees.read(folder) == before


def test_every_case_names_a_part_of_its_message_and_knows_no_other_field() -> None:
    for case in (parameter.values[1] for parameter in CASES):
        assert isinstance(case, dict)
        assert case.keys() <= {"words", "files", "exit_code", "field", "received", "fix", "names"}, case
        assert case.keys() & {"field", "received", "fix", "names"}, case
