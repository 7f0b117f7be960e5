"""The ends of the supported range of versions train as the pinned versions do. Skipped where there are no such environments.

CONVTWINS_VERSIONS names them, with colons: interpreters or folders, each with one framework or both.
"""

import os
from pathlib import Path

import pytest

from common import spec
from common.machine import machine
from compare.proof import ladder
from compare.running import launch, options
from compare.running.contestants import Contestant
from compare.running.twins import Twins

ENVIRONMENTS = [word for word in os.environ.get("CONVTWINS_VERSIONS", "").split(":") if word]


@pytest.mark.slow
@pytest.mark.skipif(not ENVIRONMENTS, reason="CONVTWINS_VERSIONS names no environments of other versions")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("place", ENVIRONMENTS or [""])
def test_another_version_trains_as_the_pinned_one_does(place: str, optimizer: str, tmp_path: Path) -> None:
    python = str(machine.PROJECT_ROOT / place)
    others = [Contestant(name=f"other-{twin}", twin=twin, python=python) for twin in launch.FRAMEWORKS]
    usable = [other for other in others if launch.inspect(other)["refusal"] is None]
    assert usable, f"{place} runs no twin. Use `env check {place}`."
    for other in usable:
        settings = options.OPTIMIZERS[optimizer]
        what = spec.build({"model": "mini_xception", "data": {"limit": 100}, "optimizer": settings})
        request = ladder.ProofRequest(what, Twins([other.twin, other.name], [other]), [], replicas=2, steps=5)
        proof = ladder.prove(request, out=tmp_path / other.twin, progress=lambda text: None, remember=False)
        assert proof.verdict == "proved", proof.sentence
