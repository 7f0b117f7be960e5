"""What was learned of stuck jobs: the tree, who judges by it, and how it is fitted and scored."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from convtwins_hangs.watching.member import Look
from plugins.hangs.research import footprints, learn_watch, learned
from plugins.hangs.research.learned import DecisionTree, RankUsage, TreeJudge, TreeNode, TreeWatcher
from plugins.hangs.tests.watching.jobs import started
from plugins.hangs.tests.watching.test_member import QUIET
from plugins.hangs.tests.watching.test_watch import LOCKS, TRAINING
from tests.support import processes

IDLE_IS_STUCK = DecisionTree(
    threshold=0.9,
    lasting_seconds=1.0,
    nodes=[TreeNode(field="cores", border=0.05, below=1, above=2, stuck=0.5), TreeNode(stuck=0.95), TreeNode(stuck=0.0)],
)
BUSY = QUIET | {"cpu_seconds": 1.0, "wants": True}


def of_looks(given: dict[str, Any], count: int = 3) -> RankUsage:
    return RankUsage([Look(**given)] * count, is_stopped=False, quiet_seconds=None)


def test_a_rank_is_described_with_what_the_others_do_once_it_was_looked_at_for_long_enough() -> None:
    found = learned.features(
        {"rank 0": of_looks(BUSY | {"network_bytes": 99.0}), "rank 1": of_looks(QUIET), "rank 2": of_looks(BUSY, 1)}
    )
    assert set(found) == {"rank 0", "rank 1"}
    assert all(set(each) == set(learned.FEATURES) for each in found.values())
    assert (found["rank 1"]["cores"], found["rank 1"]["others' most cores"], found["rank 1"]["ranks"]) == (0.0, 1.0, 2.0)
    assert found["rank 1"]["others' most network"] == found["rank 0"]["network"] == pytest.approx(4.605, abs=1e-3)
    assert found["rank 0"]["seconds without progress"] == learned.UNKNOWN_VALUE


def test_a_rank_is_called_stuck_once_it_has_looked_so_for_long_enough_without_a_break() -> None:
    judge = TreeJudge(IDLE_IS_STUCK)
    idle, busy = ({"rank 1": {"cores": cores}} for cores in (0.0, 1.0))
    assert [judge.stuck(found, now) for found, now in ((idle, 0.0), (busy, 0.5), (idle, 1.0), (idle, 1.9))] == [{}] * 4
    assert judge.stuck(idle, 2.0) == {"rank 1": "cores at most 0.05"}


def test_the_stored_tree_asks_for_what_is_known_and_every_way_through_it_ends() -> None:
    tree = learned.load_tree()
    for number, node in enumerate(tree.nodes):
        assert node.field is None or node.field in learned.FEATURES
        assert node.field is None or number < min(node.below, node.above) <= max(node.below, node.above) < len(tree.nodes)
    assert 0.5 < tree.threshold <= 1.0
    with pytest.raises(ValidationError):
        DecisionTree.model_validate({"threshold": 0.9})


@pytest.mark.parametrize(("code", "seconds", "exit_code", "verdict"), [(LOCKS, 9, 6, "stuck"), (TRAINING, 5, 0, "healthy")])
def test_a_job_is_watched_by_the_tree(tmp_path: Path, code: str, seconds: int, exit_code: int, verdict: str) -> None:
    with started(code, tmp_path) as pid:
        module = "plugins.hangs.research.learned"
        ended = processes.python("-m", module, pid, "--seconds", seconds, "--interval", 0.25, "--json")
    assert ended.exit_code == exit_code and json.loads(ended.stdout)["verdict"] == verdict


def recorded(folder: Path, mode: str, fault: str, *, alarm_at: float | None) -> None:
    """A made-up recording of two ranks in which rank 1 is idle from second 5 on if the fault makes it stuck."""
    looks: list[dict[str, Any]] = []
    for number in range(60):
        at = 0.25 * number
        idle = fault in learn_watch.STUCK_FAULTS and at >= 5.0
        ranks = {
            name: {**(QUIET if idle and name == "rank 1" else BUSY), "seconds": 0.25, "stopped": False}
            for name in ("rank 0", "rank 1")
        }
        done = min(number, 20) if idle else number
        marks = {name: {**each, "marks": [done, 0.0]} for name, each in ranks.items()}
        said = ["stuck", ["rank 1"]] if alarm_at is not None and at >= alarm_at else ["healthy", []]
        looks.append({"at": at, "ranks": marks, **{f"rule {each:g}": said for each in footprints.PATIENCES}})
    document = {
        "framework": "pytorch",
        "mode": mode,
        "fault": fault,
        "begun": 5.0,
        "culprit": "rank 1",
        "load": float(len(mode + fault) % 7),
        "looks": looks,
    }
    (folder / f"{mode}-{fault}.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))


def test_fitting_finds_what_was_planted_and_the_scores_tell_false_alarms_from_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(learned, "MODEL_FILE", tmp_path / "tree.json")
    for mode in ("serial", "pipeline", "data_parallel", "multi_process", "tensor_parallel"):
        for fault in footprints.FAULTS:
            # The rules cry too early in one mode, miss one kind, and see the others after four seconds.
            late = None if fault not in learn_watch.STUCK_FAULTS or fault == "queue" else 9.0
            recorded(tmp_path, mode, fault, alarm_at=3.0 if mode == "pipeline" else late)
    learn_watch.learn(tmp_path, write=True)
    rules, _, *rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith(("| rules", "| tree"))]
    assert "24 of 35" in rules and "4.0 (4.0)" in rules and "11 in " in rules and "pipeline" not in rules and "queue 5" in rules
    assert [row.split(" | ")[1] for row in rows[::2]] == ["modes", "loads", "kinds of fault"] and len(rows) == 6
    for row in rows:
        assert "| 35 of 35 |" in row and "| 35 of 35 | 0 in " in row and row.endswith("| none |"), row
    # Only the cores tell these recordings apart.
    assert learned.load_tree().nodes[0].field in ("cores", "wants")


def test_a_rank_that_was_away_is_judged_anew() -> None:
    judge, idle = TreeJudge(IDLE_IS_STUCK), {"rank 1": {"cores": 0.0}}
    assert [judge.stuck(found, now) for found, now in ((idle, 0.0), ({}, 0.5), (idle, 9.0))] == [{}] * 3
    assert judge.stuck(idle, 10.0)


def test_the_tree_has_its_seconds_of_looks_with_any_patience(tmp_path: Path) -> None:
    with started("import time\nprint('ready')\ntime.sleep(60)", tmp_path) as pid:
        watcher = TreeWatcher([pid], 1.0, IDLE_IS_STUCK)
        for _ in range(7):
            watcher.look()
            time.sleep(0.4)
        watched = watcher.ranks[0].watched_seconds()
        watcher.close()
    assert watched >= learned.WINDOW_SECONDS


def test_a_process_that_there_is_not_is_named_in_one_line() -> None:
    ended = processes.python("-m", "plugins.hangs.research.learned", 2**22 + 1)
    assert ended.exit_code == 2 and ended.stderr.splitlines() == [
        f"There is no such process. Received: {2**22 + 1}. `ps -ef` lists them."
    ]
