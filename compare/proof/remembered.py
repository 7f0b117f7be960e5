"""Stored proofs, found again by everything that they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

from common.artifacts import records
from common.artifacts.records import RecordError
from common.data import sources
from common.machine import machine
from common.spec import Spec
from compare.execution import code_digest, launch
from compare.proof.certificate import Proof


def key(base: Spec, frameworks: Sequence[str], modes: Sequence[str], replicas: int, timed: Mapping[str, Spec]) -> str:
    """SHA-256 over all that a proof depends on: code, versions, devices, the machine, the data and the specs."""
    sha256 = hashlib.sha256(code_digest.of(frameworks, base.model).encode())
    sha256.update(machine.code_digest([Path(__file__).parent]).encode() + repr(machine.versions("numpy", "pillow")).encode())
    facts = machine.describe()
    sha256.update(repr([facts[fact] for fact in ("processor", "logical_cores", "system", "python")]).encode())
    for name in frameworks:
        described = launch.describe(name)
        sha256.update(repr((sorted(described["versions"].items()), described["devices"])).encode())
    dataset = sources.load(base.data, seed=base.seed, cache_dir=base.paths.cache_dir)
    sha256.update(repr((dataset.content_hash, base.to_json(), tuple(modes), replicas)).encode())
    sha256.update(repr([(name, timed[name].to_json()) for name in sorted(timed)]).encode())
    return sha256.hexdigest()


def load(key: str) -> Proof | None:
    """The stored proof. None if there is none, or if it is not as it was written."""
    try:
        proof = records.read(_path(key), Proof, what="proof", again="It is made again.")
    except RecordError:
        return None
    return proof.model_copy(update={"remembered": True})


def save(key: str, proof: Proof) -> None:
    records.write(_path(key), proof)


def _path(key: str) -> Path:
    return platformdirs.user_cache_path("convtwins") / "proofs" / f"{key}.json"
