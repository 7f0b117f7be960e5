"""Proofs between contestants of one twin, made of fake recordings."""

from pathlib import Path
from typing import Any

import pytest

from common import spec
from compare.proof import ladder, proof_cache
from compare.proof.certificate import Proof
from compare.proof.differences import Arrays
from compare.running.contestants import Contestant
from compare.running.twins import Twins
from tests.parity.made_up import FakeTwins

OPTIONS: dict[str, Any] = {
    "layout": {"values": ["one", "other"], "default": "one"},
    "digits": {"values": ["full", "few"], "default": "full", "reduced": ["few"]},
    "graph": {"values": ["eager", "compiled"], "default": "eager", "only": {"compiled": {"precision": ["float32"]}}},
}


@pytest.fixture(autouse=True)
def only_float64(twins: FakeTwins, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the rungs in float64: those of the timed runs know nothing of contestants."""
    monkeypatch.setattr(ladder.Ladder, "single_steps", lambda *arguments: [])
    twins.described["options"] = OPTIONS


def prove(tmp_path: Path, **switches: str) -> Proof:
    compared = [Contestant(name="usual", twin="pytorch"), Contestant(name="own", twin="pytorch", switches=dict(switches))]
    timed = spec.build({"model": "simple_cnn"})
    runs = [("usual", timed), ("own", timed.with_fields(framework_options=switches))]
    request = ladder.ProofRequest(timed, Twins(["usual", "own"], compared), ["serial"], replicas=2, steps=5, runs=runs)
    return ladder.prove(request, out=tmp_path / "out", progress=lambda text: None, remember=False)


def test_a_switch_that_keeps_all_digits_is_set_in_the_float64_proof(twins: FakeTwins, tmp_path: Path) -> None:
    proof = prove(tmp_path, layout="other")
    assert proof.verdict == "proved" and proof.not_claimed == {}
    assert proof.mode_verdict("own", "serial") == "proved"
    recorded = {(name, what.framework_options.get("layout"), what.precision) for name, what in twins.calls}
    assert recorded == {("usual", None, "float64"), ("own", "other", "float64")}


@pytest.mark.parametrize("switches", [{"digits": "few"}, {"graph": "compiled"}, {"layout": "other", "digits": "few"}])
def test_a_contestant_with_another_switch_is_not_claimed_to_be_proved(
    twins: FakeTwins, tmp_path: Path, switches: dict[str, str]
) -> None:
    proof = prove(tmp_path, **switches)
    assert proof.not_claimed == {"own": "the float64 proof is made without its switches"}
    assert (proof.mode_verdict("usual", "serial"), proof.mode_verdict("own", "serial")) == ("proved", "not claimed")
    proved = {name: switches[name] for name in switches if name == "layout"}
    assert all(what.framework_options == (proved if name == "own" else {}) for name, what in twins.calls)


def test_a_defect_of_one_contestant_of_a_twin_is_caught(twins: FakeTwins, tmp_path: Path) -> None:
    def wrong(arrays: Arrays) -> None:
        arrays["loss"] = arrays["loss"] * (1 + 1e-6)

    twins.changes["own", "serial"] = wrong
    proof = prove(tmp_path)
    assert proof.verdict == "not proved" and "first: losses" in proof.sentence


@pytest.mark.parametrize(
    "changed",
    [{"twin": "tensorflow"}, {"python": "/other/python"}, {"switches": {"layout": "other"}}],
)
def test_a_proof_is_not_remembered_for_another_contestant_of_the_same_name(twins: FakeTwins, changed: dict[str, Any]) -> None:
    base = spec.build({"model": "simple_cnn"})

    def key(own: Contestant) -> str:
        return proof_cache.key(base, Twins(["own", "pytorch"], [own]), [], 2)

    own = Contestant(name="own", twin="pytorch")
    assert key(own) == key(own)
    assert key(own) != key(Contestant(**{**own.model_dump(), **changed}))


def test_a_proof_is_not_remembered_for_other_distributions(twins: FakeTwins) -> None:
    base = spec.build({"model": "simple_cnn"})
    keys = set[str]()
    for digest in ("a", "b"):
        twins.described["environment"] = {"distributions_hash": digest}
        keys.add(proof_cache.key(base, Twins(["pytorch", "tensorflow"]), [], 2))
    assert len(keys) == 2
