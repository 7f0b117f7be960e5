"""The recordings of a proof: which files each process is to write."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from common import spec
from common.processes import commands
from compare.execution import launch
from compare.proof import ladder
from compare.proof.recordings import Recorder, TraceRequest
from tests.parity.made_up import FakeTwins

SMALL = {"steps": 2, "global_batch_size": 10, "width": 0.125}
"""The referee computes what a made-up twin records."""


def test_a_process_promises_just_the_recordings_that_are_read(
    twins: FakeTwins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`launch` fails a process that leaves a promised file unwritten. So every recording must be such a file."""
    promised: list[Path] = []
    call = twins.call

    def noted(asked: launch.Call) -> int:
        promised.extend(launch.output_files(asked.arguments))
        return call(asked)

    monkeypatch.setattr(twins, "call", noted)
    serial, parallel = (
        spec.build({**SMALL, "mode": mode, "replicas": number}) for mode, number in (("serial", 1), ("data_parallel", 2))
    )
    drawn = ("--drawn", "0,1")
    teacher = TraceRequest("teacher", "pytorch", serial, drawn)
    wanted = [
        TraceRequest("serial", "pytorch", serial, ("--batches",)),
        teacher,
        TraceRequest("pupil", "pytorch", parallel, drawn, teacher),
        TraceRequest("pupil", "tensorflow", serial, drawn, teacher),
    ]
    recorder = Recorder(tmp_path, lambda text: None)
    recorder.make(wanted)
    assert sorted(promised) == sorted(recorder.path(each) for each in wanted)


def test_a_process_starts_while_its_teacher_records_and_never_before(
    twins: FakeTwins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial = spec.build(SMALL)
    drawn = ("--drawn", "0,1")
    teacher = TraceRequest("teacher", "pytorch", serial, drawn)
    pupils = [
        TraceRequest("pupil", "tensorflow", serial, drawn, teacher),
        TraceRequest("pupil", "pytorch", serial, drawn, teacher),
    ]
    started: list[str] = []
    ended_before: list[int] = []
    made: list[bool] = []

    def call_each(
        following: Callable[[], launch.Call | None],
        ended: Callable[[launch.Call, int], object],
        at_once: int,
        on_poll: Callable[[], object],
    ) -> None:
        running: list[launch.Call] = []
        while (wanted := following()) is not None:
            running.append(wanted)
            started.append(wanted.log.stem)
            ended_before.append(len(made))
        for each in running:
            code = twins.call(each)
            on_poll()  # its files are there, and it has not ended
            on_poll()
            ended(each, code)

    monkeypatch.setattr(launch, "call_all", call_each)
    recorder = Recorder(tmp_path, lambda text: None)
    recorder.make(pupils, lambda: made.append(recorder.is_made(teacher)))
    assert started == ["teacher-pytorch", "pupil-tensorflow"]  # the process of the teacher makes one pupil too
    assert ended_before == [0, 0] and made == [True, True]


def test_a_twin_waits_for_the_recording_of_its_teacher(tmp_path: Path) -> None:
    path = tmp_path / "teacher"
    timer = threading.Timer(0.2, path.touch)
    timer.start()
    assert not path.exists() and commands.wait_for_file(path) == path and path.exists()
    timer.join()


def test_blas_has_one_thread_while_the_referee_judges() -> None:
    """So its float32 copies, and the tolerances that they give, are the same on any number of cores."""

    def threads() -> list[int]:
        return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]

    with threadpool_limits(2, "blas"):  # these tests have one already
        before = threads()
        with ladder.fast_referee():
            assert set(threads()) == {1}
        assert threads() == before and set(before) == {2}
