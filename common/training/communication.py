"""How many bytes the replicas of a run send each other in one step.

All replicas together, payload alone: without the headers of the network's packets and the words by which processes agree.
"""

from __future__ import annotations

from common.models.architectures import Architecture, BatchNorm
from common.spec import Spec
from common.training.compression import SUMMABLE, buckets, payload_bytes

_ITEMSIZE = {"float32": 4, "float64": 8}


def ring_all_reduce_bytes(payload: float, replicas: int) -> float:
    """Of a sum over R replicas that all of them receive: each sends 2 (R - 1) / R of the payload.

    R - 1 times a part of 1/R is added up around the ring, then R - 1 times handed on; no algorithm sends less (Patarasu &
    Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations).
    """
    return 2.0 * (replicas - 1) * payload


def all_gather_bytes(payload: float, replicas: int) -> float:
    """Of R messages that all of R replicas receive: each sends R - 1 payloads around the ring, its own and those handed on.

    Thakur, Rabenseifner & Gropp 2005, Optimization of collective communication operations in MPICH: the ring algorithm.
    """
    return float(replicas * (replicas - 1) * payload)


def reduce_bytes(payload: float, replicas: int) -> float:
    """Of a sum over R replicas in one place that all can read: R - 1 of them hand their payload over once."""
    return float((replicas - 1) * payload)


def server_bytes(payload: float, replicas: int) -> float:
    """Of a sum over R replicas that a server makes: each sends it its payload, and is sent the sum."""
    return 2.0 * replicas * payload


def exchange_bytes(spec: Spec, architecture: Architecture) -> float:
    """Of one step's gradients, and sums of synchronised BatchNorm, between replicas that have a memory each.

    What can be added up on its way goes by ring all-reduce, the rest by all-gather.
    """
    way = ring_all_reduce_bytes if spec.communication.compression in SUMMABLE else all_gather_bytes
    gradients = way(step_payload_bytes(spec, architecture), spec.data_replicas)
    return gradients + ring_all_reduce_bytes(statistics_payload_bytes(spec, architecture), spec.data_replicas)


def step_payload_bytes(spec: Spec, architecture: Architecture) -> int:
    """Of one replica's gradients of one step, all its messages together."""
    sizes = [parameter.size for parameter in architecture.parameters() if parameter.trainable]
    itemsize = _ITEMSIZE[spec.precision]
    counts = [sum(sizes[position] for position in bucket) for bucket in buckets(sizes, itemsize, spec.communication.bucket_mib)]
    return sum(payload_bytes(count, itemsize, spec.communication) for count in counts)


def statistics_payload_bytes(spec: Spec, architecture: Architecture) -> int:
    """Of what one replica has synchronised BatchNorm add up in one step of a whole batch.

    A layer of C channels makes two sums on the way forward, of C + 1 values (the examples are counted too) and of C, and
    on the way back the sums of their gradients.
    """
    if spec.batch_norm_statistics == "per_replica":
        return 0
    values = sum(2 * (2 * layer.channels + 1) for layer in architecture.leaves() if isinstance(layer, BatchNorm))
    return values * spec.parts() * _ITEMSIZE[spec.precision]
