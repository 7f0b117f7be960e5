"""Recordings of the framework's own profiler."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import DeviceType, ProfilerActivity, profile

from common.training.trainer import ProfilerRecording, ProfilerSpan
from pytorch_impl import private_api


def record(work: Callable[[], None]) -> ProfilerRecording:
    """Run `work` under the framework's own profiler.

    Returns:
        Spans of the operations on a CPU or of the kernels on GPUs, and the full trace.
    """
    cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    # Twin: by default torch profiles only the calling thread, but replicas may be threads.
    all_threads = private_api.profiler_of_all_threads()
    with profile(activities=activities, acc_events=True, experimental_config=all_threads) as torch_profile:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        torch_profile.export_chrome_trace(str(path))
        trace = path.read_bytes()
    device = DeviceType.CUDA if cuda else DeviceType.CPU
    spans = [
        ProfilerSpan(event.name, _lane(event.device_index, event.device_resource_id), start / 1e6, (end - start) / 1e6)
        for event in torch_profile.events() or []
        # Leave out what is no operation: user annotations and waits for another thread's operations.
        if event.device_type == device and not event.is_async and not event.is_user_annotation
        for start, end in [(event.time_range.start, event.time_range.end)]
    ]
    return ProfilerRecording(spans, trace)


def _lane(device: int, resource: int) -> int:
    """Return one number for a thread, or for a stream of a GPU."""
    return (max(device, 0) << 32) + resource
