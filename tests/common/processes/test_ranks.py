"""What a launcher hands to the ranks that it starts, and what becomes of their end."""

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from common import spec
from common.artifacts import results
from common.machine import machine, placement
from common.processes import ranks, supervisor
from common.processes.process_spec import ProcessSpec
from common.processes.twin import EXIT_FAILED, TwinJob


@pytest.fixture(autouse=True)
def given_back() -> Iterator[None]:
    """Gives back the CPUs that a launcher takes from its process."""
    cpus = machine.cpu_budget(machine.available_cores())
    yield
    machine.set_affinity(cpus)


def job_of(what: spec.Spec, out: Path, command: str = "run", place: Path = Path("spec.json")) -> TwinJob:
    arguments = argparse.Namespace(command=command, spec=place, out=out, repeat=0)
    return TwinJob("pytorch", what, arguments, [command, str(place), "--out", str(out)], 0.0)


@pytest.mark.parametrize("kind", ["file", "pipe", "link to a file"])
def test_ranks_read_a_spec_that_their_launcher_has_read_from_a_pipe(tmp_path: Path, kind: str) -> None:
    what = spec.build({"mode": "multi_process", "replicas": 2})
    place, file, seen = tmp_path / "given", tmp_path / "spec.json", list[str]()
    file.write_text(what.to_json(), encoding="utf-8")
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "link to a file":
        place.symlink_to(file)
    else:
        file.rename(place)

    def run(members: Sequence[ProcessSpec], watch: supervisor.Watch) -> supervisor.Failure:
        for member in members:
            path = Path(member.command[member.command.index("run") + 1])
            assert path.is_file() and not path.is_symlink()
            seen.append(path.read_text(encoding="utf-8"))
        return supervisor.Failure(0, EXIT_FAILED, "tried")

    (tmp_path / "out").mkdir()
    job = job_of(what, tmp_path / "out", place=place)
    assert ranks.launch(job, placement.rank_environments(2), "", run) == EXIT_FAILED
    assert [spec.from_json(each.encode()) for each in seen] == [what] * 2


def test_another_error_of_the_system_is_not_taken_for_a_wrong_host(tmp_path: Path) -> None:
    def run(members: Sequence[ProcessSpec], watch: supervisor.Watch) -> None:
        raise FileNotFoundError("no ssh")

    read = spec.build({"mode": "multi_process", "replicas": 2, "cores": 1, "hosts": ["a", "b"]})
    job = job_of(read, tmp_path)
    assert ranks.launch(job, placement.rank_environments(2, read.hosts), "", run) == EXIT_FAILED
    written = results.load(tmp_path / results.RESULT_FILE)
    assert written.status == "failed" and "no ssh" in str(written.reason)


@pytest.mark.parametrize("command", ["run", "trace"])
def test_ranks_that_all_end_well_and_have_written_nothing_have_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    out = tmp_path if command == "run" else tmp_path / "recording"
    job = job_of(spec.build({"mode": "multi_process", "replicas": 2, "cores": 1}), out, command)
    assert ranks.launch(job, placement.rank_environments(2), "", lambda members, watch: None) == EXIT_FAILED
    assert (results.RESULT_FILE if command == "run" else out.name) in capsys.readouterr().err
    if command == "run":
        assert results.load(tmp_path / results.RESULT_FILE).status == "failed"
