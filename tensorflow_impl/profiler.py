"""Recordings of the framework's own profiler."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from common.training.trainer import ProfilerRecording, ProfilerSpan
from tensorflow_impl import device, private_api

_OPERATION = re.compile(r"[A-Za-z0-9.][\w.\\/>-]*:(?P<type>[A-Z_]\w*)")
"""Pattern of a graph's node in TensorFlow's profile: name and type."""


def record(work: Callable[[], None]) -> ProfilerRecording:
    """Run `work` under the framework's own profiler.

    Returns:
        Spans of the operations on a CPU or of the kernels on GPUs, and the full trace.
    """
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            work()
        # Twin: TensorFlow writes planes of lines of events for a TensorBoard plug-in. torch writes Chrome's format itself.
        (path,) = Path(folder).glob("plugins/profile/*/*.xplane.pb")
        planes = private_api.planes(path.read_bytes())
    begin = min((line.timestamp_ns for plane in planes for line in plane.lines if line.events), default=0)
    return ProfilerRecording(list(_spans(planes, begin)), json.dumps({"traceEvents": list(_events(planes, begin))}).encode())


def _spans(planes: Any, begin: int) -> Iterator[ProfilerSpan]:
    kernels = bool(device.gpus())
    lines = [(plane.name, *line) for plane in planes for line in _timed(plane, begin)]
    for lane, (plane, line, events) in enumerate(lines):
        if kernels and not (plane.startswith("/device:GPU:") and line.startswith("Stream")):
            continue
        for name, start, seconds in events:
            if kernels:
                yield ProfilerSpan(name, lane, start, seconds)
            elif operation := _OPERATION.fullmatch(name):
                yield ProfilerSpan(operation["type"], lane, start, seconds)


def _events(planes: Any, begin: int) -> Iterator[dict[str, Any]]:
    """Yield all lines of all planes as Chrome's trace events, in microseconds."""
    for process, plane in enumerate(planes):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": plane.name}}
        for thread, (line, events) in enumerate(_timed(plane, begin)):
            place = {"pid": process, "tid": thread}
            yield {"ph": "M", **place, "name": "thread_name", "args": {"name": line}}
            for name, start, seconds in events:
                yield {"ph": "X", **place, "name": name, "ts": 1e6 * start, "dur": 1e6 * seconds}


def _timed(plane: Any, begin: int) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
    """Yield (name, events) of each line. An event is (name, start, duration), in seconds."""
    for line in plane.lines:
        offset = (line.timestamp_ns - begin) / 1e9
        yield (
            line.display_name or line.name,
            [
                (plane.event_metadata[event.metadata_id].name, offset + event.offset_ps / 1e12, event.duration_ps / 1e12)
                for event in line.events
            ],
        )
