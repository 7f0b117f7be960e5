import pytest

from common import spec
from common.models import architectures
from common.training import communication


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_the_collectives_bytes_are_those_of_their_steps(replicas: int) -> None:
    payload = 840.0
    # Around the ring, R replicas send 1/R of the payload in each of 2 (R - 1) turns.
    turns = sum(payload / replicas for _ in range(2 * (replicas - 1)) for _ in range(replicas))
    assert communication.ring_all_reduce_bytes(payload, replicas) == pytest.approx(turns, rel=1e-15)
    hand_ons = sum(payload for _ in range(replicas - 1) for _ in range(replicas))
    assert communication.all_gather_bytes(payload, replicas) == hand_ons
    assert communication.reduce_bytes(payload, replicas) == payload * (replicas - 1)
    assert communication.server_bytes(payload, replicas) == sum(payload + payload for _ in range(replicas))


@pytest.mark.parametrize(
    ("compression", "expected"),
    [
        ("none", 2 * 4 * 94_474),
        ("float16", 2 * 2 * 94_474),
        ("int8", 2 * (94_476 + 4)),
        ("top_k", 2 * 945 * (4 + 4)),
    ],
)
def test_two_replicas_of_mini_xception_send_what_their_messages_hold(compression: str, expected: int) -> None:
    run = spec.build({"mode": "multi_process", "replicas": 2, "communication": {"compression": compression}})
    assert communication.exchange_bytes(run, architectures.resolve("mini_xception", 10, 32)) == expected


@pytest.mark.parametrize(("accumulation", "parts"), [(1, 1), (2, 2), (3, 2)])
def test_synchronised_batch_norm_makes_four_sums_a_layer_for_every_part_of_a_batch(accumulation: int, parts: int) -> None:
    fields = {"mode": "multi_process", "replicas": 2, "precision": "float64", "accumulation": accumulation}
    alone, together = (
        communication.exchange_bytes(
            spec.build({**fields, "global_batch_size": 8, "batch_norm_statistics": statistics}),
            architectures.resolve("tests.parity.probe", 10, 32),
        )
        for statistics in ("per_replica", "synchronised")
    )
    # Two layers of 8 channels: 8 sums and a count, then 8 squared deviations, and the gradients of both.
    assert together - alone == 2 * (2 - 1) * 8 * parts * 2 * ((8 + 1) + 8 + (8 + 1) + 8)


def test_smaller_buckets_cost_a_scale_each() -> None:
    architecture = architectures.resolve("mini_xception", 10, 32)
    one, many = (
        communication.step_payload_bytes(
            spec.build({"communication": {"compression": "int8", "bucket_mib": mib}}), architecture
        )
        for mib in (25.0, 0.05)
    )
    assert one < many < 1.01 * one
