"""Rendezvous of the ranks of a run with several processes."""

from __future__ import annotations

import json
import os

from common.machine import flight, placement
from common.processes import rendezvous, supervisor
from common.spec import Spec, SpecError

# Twin: a graph exchanges inside the call that runs it, or where its result is fetched.
WAITING: str = (
    r"/tensorflow/python/(eager/(context|execute)|distribute/|framework/ops)|/common/(processes/parameter_server|data/owners)"
)
"""Regular expression that matches a stack frame's file name if the rank waits for others there."""


def environments(spec: Spec) -> list[dict[str, str]]:
    """Return the environment of each rank, see `common.processes.rendezvous`. Empty for a mode with one process."""
    # Twin: TensorFlow uses one graph over all devices where it can. torch uses one process for each device.
    return placement.rank_environments(spec.replicas, spec.hosts) if spec.traits.processes == "each" else []


def adopt() -> None:
    """Read this rank's number from an outer launcher, if one started it."""
    # Twin: TF_CONFIG names all workers. It is translated to torchrun's variables for this one.
    if "TF_CONFIG" not in os.environ or "RANK" in os.environ:
        return
    config = json.loads(os.environ["TF_CONFIG"])
    if config["task"]["type"] not in ("chief", "worker"):
        raise SpecError(f"TF_CONFIG makes this process no worker. Received: {config['task']['type']}. Do not start it.")
    if others := set(config["cluster"]) - {"chief", "worker"}:
        raise SpecError(f"TF_CONFIG must name a chief or workers alone. Received: {', '.join(sorted(others))}. Leave them out.")
    addresses = [*config["cluster"].get("chief", []), *config["cluster"].get("worker", [])]
    rank = config["task"]["index"] + (len(config["cluster"].get("chief", [])) if config["task"]["type"] == "worker" else 0)
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses]  # the notation of an IPv6 address
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(addresses)),
        "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
        "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank])),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": addresses[0].rpartition(":")[2],
    }


def join(spec: Spec) -> None:
    """Connect to the other ranks, if there are any. Call before making a tensor."""
    if not placement.is_rank() or "TF_CONFIG" in os.environ or spec.traits.has_server:
        return
    number = flight.group_channel(tuple(range(placement.num_ranks()))).begin("rendezvous")
    # Twin: TF_CONFIG lists every worker's address. torch's store needs only rank 0's.
    address = placement.local_address()
    (port,) = supervisor.free_ports(1, address)
    workers = rendezvous.all_gather(rendezvous.join_address(address, port))
    flight.end(number)
    task = {"type": "worker", "index": placement.rank()}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
