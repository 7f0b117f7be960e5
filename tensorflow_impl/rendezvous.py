"""How the ranks of a run of several processes on this machine find each other."""

from __future__ import annotations

import json
import os

from common import processes
from common.spec import Spec

# Twin: TensorFlow's way over several devices is one graph where it can be; torch's is a process for each.
_MODES = ("multi_process", "parameter_server", "model_averaging")


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


def meeting_place() -> str:
    """Where the ranks of this run meet: a word that no other run has at the same time."""
    return json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0]
