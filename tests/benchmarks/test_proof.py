"""Seconds of a proof that both frameworks train the same, serially, from a standing start (`make bench`)."""

from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from common import spec
from compare import launch, parity
from compare.parity import Proof


def test_seconds_of_a_proof_of_serial_training(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    def prove() -> Proof:
        frameworks = list(launch.FRAMEWORKS)
        return parity.prove(
            spec.build({}),
            frameworks,
            ["serial"],
            replicas=2,
            out=tmp_path,
            progress=lambda text: None,
            steps=5,
            remember=False,
        )

    for framework in launch.FRAMEWORKS:
        launch.describe(framework)  # asked once a process
    assert benchmark.pedantic(prove, rounds=3).verdict == "proved"
