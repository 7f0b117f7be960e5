"""Numbers of bytes that the replicas of a run send each other in one step.

They count all replicas together, and the payload only, without packet headers and control messages.
"""

from __future__ import annotations

from common.models.architectures import Architecture, BatchNorm
from common.spec import Spec
from common.training.compression import SUMMABLE, buckets, payload_bytes

_ITEMSIZE = {"float32": 4, "float64": 8}


def ring_all_reduce_bytes(payload: float, replicas: int) -> float:
    """Return the bytes of an all-reduce over R replicas: each sends 2 (R - 1) / R of the payload.

    In R - 1 steps, parts of 1/R of the payload are summed around the ring. In R - 1 more steps the sums are distributed. No
    algorithm sends less (Patarasu & Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations).
    """
    return 2.0 * (replicas - 1) * payload


def all_gather_bytes(payload: float, replicas: int) -> float:
    """Return the bytes of an all-gather over R replicas: each sends R - 1 payloads around the ring, its own and others'.

    Thakur, Rabenseifner & Gropp 2005, Optimization of collective communication operations in MPICH: the ring algorithm.
    """
    return float(replicas * (replicas - 1) * payload)


def reduce_bytes(payload: float, replicas: int) -> float:
    """Return the bytes of a sum over R replicas in memory that all can read: R - 1 of them send their payload once."""
    return float((replicas - 1) * payload)


def server_bytes(payload: float, replicas: int) -> float:
    """Return the bytes of a sum over R replicas on a server: each sends its payload and receives the sum."""
    return 2.0 * replicas * payload


def exchange_bytes(spec: Spec, architecture: Architecture) -> float:
    """Return the bytes of one step's gradients and of synchronised BatchNorm's sums, between replicas with separate memories.

    Messages that can be summed are exchanged by ring all-reduce, all others by all-gather.
    """
    collective_bytes = ring_all_reduce_bytes if spec.communication.compression in SUMMABLE else all_gather_bytes
    gradients = collective_bytes(step_payload_bytes(spec, architecture), spec.data_replicas)
    return gradients + ring_all_reduce_bytes(statistics_payload_bytes(spec, architecture), spec.data_replicas)


def step_payload_bytes(spec: Spec, architecture: Architecture) -> int:
    """Return the bytes of all messages with one replica's gradients of one step."""
    sizes = [parameter.size for parameter in architecture.parameters() if parameter.trainable]
    itemsize = _ITEMSIZE[spec.precision]
    counts = [sum(sizes[position] for position in bucket) for bucket in buckets(sizes, itemsize, spec.communication.bucket_mib)]
    return sum(payload_bytes(count, itemsize, spec.communication) for count in counts)


def statistics_payload_bytes(spec: Spec, architecture: Architecture) -> int:
    """Return the bytes that one replica contributes to synchronised BatchNorm's sums in one step of a whole batch.

    A layer of C channels sums twice in the forward pass: C + 1 values, which include the count of examples, and C values. The
    backward pass sums their gradients.
    """
    if spec.batch_norm_statistics == "per_replica":
        return 0
    values = sum(2 * (2 * layer.channels + 1) for layer in architecture.leaves() if isinstance(layer, BatchNorm))
    return values * spec.micro_batches() * _ITEMSIZE[spec.precision]
