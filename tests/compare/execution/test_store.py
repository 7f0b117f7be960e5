from pathlib import Path

import pytest

from common.artifacts import results
from common.artifacts.schema import RunResult
from compare.execution import store
from tests.compare import made


def test_a_result_is_read_once_in_a_command_unless_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = made.repeated(3)
    folder = made.stored_in(stored, tmp_path / "out")
    read: list[Path] = []
    load = results.load

    def counted(path: Path) -> RunResult:
        read.append(path)
        return load(path)

    monkeypatch.setattr(results, "load", counted)
    first = store.read(folder)
    assert len(read) == len(set(read)) == sum(map(len, first.runs.values())) > 0
    assert store.read(folder) == first and len(read) == len(set(read))

    row = stored.comparison.rows[0]
    changed = first.runs[row.id][0].model_copy(update={"peak_memory_mib": 1.5})
    results.save(changed, store.run_folder(folder, row.id, 0))
    assert store.read(folder).runs[row.id][0] == changed
    assert len(read) == len(set(read)) + 1
