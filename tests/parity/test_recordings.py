"""The recordings of a proof: which files each process is to write."""

import threading
from pathlib import Path

from threadpoolctl import threadpool_info, threadpool_limits

from common import spec
from common.processes import commands
from compare.proof import ladder
from compare.proof.recordings import Recorder, TraceRequest
from compare.running import launch
from compare.running.twins import Twins
from tests.parity.made_up import FakeTwins

SMALL = {"steps": 2, "global_batch_size": 10, "width": 0.125}
"""The referee computes what a made-up twin records."""


def test_a_process_promises_just_the_recordings_that_are_read(twins: FakeTwins, tmp_path: Path) -> None:
    """`launch` fails a process that leaves a promised file unwritten. So every recording must be such a file."""
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
    recorder = Recorder(Twins(["pytorch", "tensorflow"]), tmp_path, lambda text: None)
    recorder.make(wanted)
    promised = [path for call in twins.asked for path in launch.output_files(call.arguments)]
    assert sorted(promised) == sorted(recorder.path(each) for each in wanted)


def test_a_process_starts_while_its_teacher_records_and_never_before(twins: FakeTwins, tmp_path: Path) -> None:
    serial = spec.build(SMALL)
    drawn = ("--drawn", "0,1")
    teacher = TraceRequest("teacher", "pytorch", serial, drawn)
    pupils = [TraceRequest("pupil", name, serial, drawn, teacher) for name in ("tensorflow", "pytorch")]
    made: list[bool] = []
    twins.together = twins.polls = True
    recorder = Recorder(Twins(["pytorch", "tensorflow"]), tmp_path, lambda text: None)
    recorder.make(pupils, lambda: made.append(recorder.is_made(teacher)))
    # The process of the teacher makes one pupil too. The other starts before anything is made.
    assert twins.waves == [["teacher-pytorch", "pupil-tensorflow"]]
    assert made == [True, True]


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
