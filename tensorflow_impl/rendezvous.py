"""How the ranks of a run of several processes on this machine find each other."""

from __future__ import annotations

import json

from common import processes
from common.spec import Spec

# Twin: TensorFlow's way over several devices is one graph where it can be; torch's is a process for each.
_MODES = ("multi_process", "parameter_server", "model_averaging")

# Twin: a graph's exchanges are inside the call that runs it, or where its outcome is fetched.
WAITING = r"/tensorflow/python/(eager/(context|execute)|distribute/|framework/ops)"
"""Matches the file names of the frames in which a rank waits for the others."""


def environments(spec: Spec) -> list[dict[str, str]]:
    """The environment of each rank, as torchrun sets it; none for a mode of one process."""
    if spec.mode not in _MODES:
        return []
    # Twin: TF_CONFIG says where every worker listens; the other twin has torchrun's variables alone.
    workers = [f"127.0.0.1:{port}" for port in processes.free_ports(spec.replicas)]
    return [
        {
            "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}),
            "WORLD_SIZE": str(spec.replicas),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        for rank in range(spec.replicas)
    ]
