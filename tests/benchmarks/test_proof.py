"""Seconds of a proof that both frameworks train the same, serially, from a standing start (`make bench`)."""

from pathlib import Path
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

from common import spec
from compare.proof import ladder
from compare.proof.certificate import Proof
from compare.running import launch
from compare.running.twins import Twins


def test_seconds_of_a_proof_of_serial_training(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    twins = Twins(launch.FRAMEWORKS)

    def fresh() -> tuple[tuple[Any, ...], dict[str, Any]]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))  # recordings that lie there already are not made again
        folder.mkdir()
        return (folder,), {}

    def prove(folder: Path) -> Proof:
        request = ladder.ProofRequest(spec.build({}), twins, ["serial"], replicas=2, steps=5)
        return ladder.prove(request, out=folder, progress=lambda text: None, remember=False)

    for framework in launch.FRAMEWORKS:
        twins.describe(framework)  # asked once
    assert benchmark.pedantic(prove, setup=fresh, rounds=3).verdict == "proved"
