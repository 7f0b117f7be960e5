"""The recordings of a proof: which files each process is to write."""

from pathlib import Path

import pytest

from common import spec
from compare.execution import launch
from compare.proof.recordings import Recorder, Recording
from tests.parity.made_up import FakeTwins


def test_a_process_promises_just_the_recordings_that_are_read(
    twins: FakeTwins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`launch` fails a process that leaves a promised file unwritten. So every recording must be such a file."""
    promised: list[Path] = []
    call = twins.call

    def noted(asked: launch.Call) -> int:
        promised.extend(launch.promised(asked.arguments))
        return call(asked)

    monkeypatch.setattr(twins, "call", noted)
    serial, parallel = (
        spec.build({"mode": mode, "replicas": number, "steps": 2}) for mode, number in (("serial", 1), ("data_parallel", 2))
    )
    drawn = ("--drawn", "0,1")
    teacher = Recording("teacher", "pytorch", serial, drawn)
    wanted = [
        Recording("serial", "pytorch", serial, ("--batches",)),
        Recording("copies", "pytorch", serial, ("--copies", "2", "2")),
        teacher,
        Recording("pupil", "pytorch", parallel, drawn, teacher),
        Recording("pupil", "tensorflow", serial, drawn, teacher),
    ]
    recorder = Recorder(tmp_path, lambda text: None)
    recorder.make(wanted)
    assert sorted(promised) == sorted(recorder.path(each) for each in wanted)
