"""Recordings of the framework's own profiler."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

from common.training.trainer import ProfilerRecording, ProfilerSpan


def record(work: Callable[[], None]) -> ProfilerRecording:
    """Run `work` under the framework's own profiler.

    Returns:
        Spans of the operations on a CPU or of the kernels on GPUs, and the full trace.
    """
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            work()
        (path,) = Path(folder).glob("plugins/profile/*/*.trace.json.gz")
        trace = gzip.decompress(path.read_bytes())
    # Twin: JAX writes Chrome's format itself. An operation of a program has its name among the arguments.
    spans = [
        ProfilerSpan(
            event["args"]["hlo_op"].partition(".")[0],
            (event["pid"] << 32) + event["tid"],
            event["ts"] / 1e6,
            event["dur"] / 1e6,
        )
        for event in json.loads(trace)["traceEvents"]
        if event.get("ph") == "X" and "hlo_op" in event.get("args", {})
    ]
    return ProfilerRecording(spans, trace)
