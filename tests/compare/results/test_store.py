import json
from pathlib import Path

import pytest

from common.artifacts import atomic_files, results
from common.data import sources
from common.errors import UserError
from compare.cli.errors import FolderError
from compare.results import store
from compare.running import matrix
from compare.running.twins import Twins
from tests.support import comparisons, trees
from tests.support.command_line import convtwins, here
from tests.support.refusals import check, refused


def test_a_result_is_read_once_in_a_command_unless_it_changes(tmp_path: Path) -> None:
    stored = comparisons.repeated(3)
    folder = comparisons.stored_in(stored, tmp_path / "out")
    first, again = store.read(folder).runs, store.read(folder).runs
    assert sum(map(len, first.values())) == 12
    assert all(again[row][repeat] is run for row, runs in first.items() for repeat, run in runs.items())
    row = stored.comparison.rows[0].id
    changed = comparisons.with_fields(first[row][0], peak_memory_mib=1.5)
    results.save(changed, store.run_folder(folder, row, 0))
    later = store.read(folder).runs
    assert later[row][0] == changed and later[row][1] is first[row][1]


@pytest.mark.parametrize("name", ["x" * 201, "../outside", ".hidden", ""])
def test_a_plan_with_a_row_whose_id_is_no_name_of_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = comparisons.stored_in(comparisons.repeated(1), tmp_path / "out")
    plan = json.loads((folder / store.PLAN_FILE).read_text())
    del plan["sha256"]
    plan["rows"][0]["id"] = name
    (folder / store.PLAN_FILE).write_text(atomic_files.with_checksum(json.dumps(plan)))
    with refused(FolderError, names=["compare.json", "rows"]):
        store.read(folder)


@pytest.mark.parametrize(("count", "fits"), [(matrix.MOST_ROWS, True), (matrix.MOST_ROWS + 1, False)])
def test_a_plan_has_no_more_rows_than_a_report_can_compare(tmp_path: Path, count: int, fits: bool) -> None:
    folder = comparisons.stored_in(comparisons.repeated(1), tmp_path / "out")
    plan = json.loads((folder / store.PLAN_FILE).read_text())
    del plan["sha256"]
    plan["rows"] = [{**plan["rows"][0], "id": f"row{number}"} for number in range(count)]
    (folder / store.PLAN_FILE).write_text(atomic_files.with_checksum(json.dumps(plan)))
    if fits:
        assert len(store.read_plan(folder).rows) == count
    else:
        with refused(FolderError, names=["compare.json", "rows", str(matrix.MOST_ROWS), str(count)]):
            store.read_plan(folder)


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


@pytest.mark.parametrize("words", here(*WITH_OUT))
def test_a_folder_that_cannot_be_written_is_refused_first(words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before a framework is asked, data are read, or results are."""
    monkeypatch.chdir(trees.write(tmp_path, {"study.yaml": "title: A study\n", "file": ""}))
    for owner, name in ((Twins, "describe_all"), (sources, "load"), (sources, "describe"), (store, "read")):
        monkeypatch.setattr(owner, name, pytest.fail)  # each takes seconds, and none is needed
    done = convtwins(*words.split(), "--out", "file/in/it")
    assert done.exit_code == 2, done.output
    check(UserError(done.stderr.splitlines()[-1]), field=f"{tmp_path}/file", fix="--out")
