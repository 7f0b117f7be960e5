import json
from pathlib import Path

import pytest

from common.artifacts import atomic_files, results
from common.artifacts.schema import RunResult
from common.data import sources
from compare.core.errors import FolderError
from compare.execution import launch, store
from tests.support import comparisons
from tests.support.command_line import convtwins


def test_a_result_is_read_once_in_a_command_unless_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = comparisons.repeated(3)
    folder = comparisons.stored_in(stored, tmp_path / "out")
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


@pytest.mark.parametrize("name", ["x" * 201, "../outside", ".hidden", ""])
def test_a_plan_with_a_row_whose_id_is_no_name_of_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = comparisons.stored_in(comparisons.repeated(1), tmp_path / "out")
    plan = json.loads((folder / store.PLAN_FILE).read_text())
    del plan["sha256"]
    plan["rows"][0]["id"] = name
    (folder / store.PLAN_FILE).write_text(atomic_files.with_checksum(json.dumps(plan)))
    with pytest.raises(FolderError, match=r"compare\.json.*rows"):
        store.read(folder)


WITH_OUT = (
    "run", "run --modes serial --dry-run", "run --model simple_cnn,resnet18 --dry-run", "scaling",
    "evaluate --frameworks pytorch", "tune --frameworks pytorch", "optimize --model simple_cnn --frameworks pytorch",
    "layers --model simple_cnn", "parity", "parity --contestant mine=pytorch,channels_last=True", "conformance pytorch",
    "match net:Net port:build --input 8x8x1 --classes 2", "data digits", "preprocess digits --engines dask",
    "regress --interleaved HEAD", "regress --environments A B", "bisect --good HEAD~1", "bisect --environments A B",
    "history DIR", "selftest --real-pairs 200 --frameworks pytorch", "study study.yaml",
    "reproduce cifar10-minixception --scale smoke", "report DIR", "report DIR DIR2", "export DIR --to mlflow", "schema",
)  # fmt: skip
"""Every command with --out, but `infer`, which reads its checkpoint first."""


@pytest.mark.parametrize("words", WITH_OUT)
def test_a_folder_that_cannot_be_written_is_refused_first(words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before a framework is asked, data are read, or results are."""
    (tmp_path / "study.yaml").write_text("title: A study\n")
    (tmp_path / "file").touch()
    for owner, name in ((launch, "describe_all"), (sources, "load"), (sources, "describe"), (store, "read")):
        monkeypatch.setattr(owner, name, pytest.fail)
    monkeypatch.chdir(tmp_path)
    done = convtwins(*words.split(), "--out", "file/in/it")
    assert (done.exit_code, done.stderr.splitlines()[-1:]) == (
        2,
        [f"{tmp_path}/file is a file, not a folder. Choose a folder with --out."],
    ), done.output
