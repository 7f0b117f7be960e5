"""What a launcher hands to the ranks that it starts."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.machine import machine, placement
from common.processes import ranks, supervisor
from common.processes.twin import EXIT_FAILED, TwinJob


@pytest.mark.parametrize("kind", ["file", "pipe", "link to a file"])
def test_ranks_read_a_spec_that_their_launcher_has_read_from_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    what = spec.build({"mode": "multi_process", "replicas": 2})
    place, file, seen = tmp_path / "given", tmp_path / "spec.json", list[str]()
    file.write_text(what.to_json(), encoding="utf-8")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link to a file":
        place.symlink_to(file)
    else:
        file.rename(place)

    def run(members: Sequence[Any], watch: supervisor.Watch) -> supervisor.Failure:
        for member in members:
            path = Path(member.command[member.command.index("run") + 1])
            assert path.is_file() and not path.is_symlink()
            seen.append(path.read_text(encoding="utf-8"))
        return supervisor.Failure(0, EXIT_FAILED, "tried")

    monkeypatch.setattr(supervisor, "run_members", run)
    monkeypatch.setattr(machine, "set_affinity", lambda _: None)
    arguments = argparse.Namespace(command="run", spec=place, out=tmp_path / "out", repeat=0)
    job = TwinJob("pytorch", what, arguments, ["run", str(place), "--out", str(tmp_path / "out")], 0.0)
    (tmp_path / "out").mkdir()
    assert ranks.launch(job, placement.rank_environments(2), "") == EXIT_FAILED
    assert [spec.from_json(each.encode()) for each in seen] == [what] * 2
