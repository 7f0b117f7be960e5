"""Cache of proofs, keyed by everything that they depend on."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs

from common.artifacts import records
from common.artifacts.records import RecordError
from common.data import sources
from common.machine import machine
from common.processes.process_spec import KERNEL_VARIABLES
from common.spec import Spec
from compare.cli import differences
from compare.proof.certificate import Proof
from compare.running import code_digest, launch
from compare.running.twins import Twins

_KERNEL_VARIABLES = re.compile(
    f"({KERNEL_VARIABLES}|LD"
    "|CUDA|NVIDIA|TRITON|HIP|HSA|ROCR|ROCBLAS|HIPBLASLT|MIOPEN"  # kernels of a GPU
    "|NCCL|RCCL|GLOO|UCX|UCC|OMPI|I_MPI)_.*|GLIBC_TUNABLES"  # the order of the sums of an all-reduce
)
"""Environment variables that choose kernels, libraries, their threads or the algorithm of an exchange. The launcher keeps
most of them from the twins. It lets others through, and this process obeys some itself. Nothing separates these, so all
count."""


def key(base: Spec, twins: Twins, options: Sequence[object], replicas: int) -> str:
    """Return the SHA-256 over everything that a proof depends on, see `facts`."""
    return digest(facts(base, twins, options, replicas))


def digest(facts: Mapping[str, Any]) -> str:
    """Return the SHA-256 over the names and values of facts."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def facts(base: Spec, twins: Twins, options: Sequence[object], replicas: int) -> dict[str, Any]:
    """Return all that can change the outcome of a proof: code, versions, machine, environment, data, spec and options."""
    descriptions = {name: twins.describe(name) for name in twins.names}
    machine_facts = machine.describe()
    dataset = sources.load(base.data, seed=base.split_seed, cache_dir=base.paths.cache_dir)
    return {
        "twins": code_digest.compute(twins.contestants, base.model),
        "proof": machine.code_digest([Path(file).parent for file in (__file__, launch.__file__, differences.__file__)]),
        "packages": machine.versions("numpy", "pillow"),
        "machine": {fact: machine_facts[fact] for fact in ("processor", "cores", "logical_cores", "host", "system", "python")},
        "host": platform.node(),
        "cpu_flags": machine.cpu_flags(),
        "available_cores": machine.available_cores(),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if _KERNEL_VARIABLES.fullmatch(name)},
        "versions": {name: sorted(description["versions"].items()) for name, description in descriptions.items()},
        "distributions": {
            name: description.get("environment", {}).get("distributions_hash") for name, description in descriptions.items()
        },
        "contestants": [contestant.model_dump_json() for contestant in twins.contestants],
        "devices": {name: description["devices"] for name, description in descriptions.items()},
        "data": dataset.content_hash,
        "spec": base.to_json(),
        "asked": tuple(options),
        "replicas": replicas,
    }


def load(key: str) -> Proof | None:
    """Return the stored proof. None if there is none, or if its file is damaged."""
    try:
        proof = records.read(_path(key), Proof, kind="proof", remedy="It is made again.")
    except RecordError:
        return None
    return proof.model_copy(update={"remembered": True})


def save(key: str, proof: Proof) -> None:
    records.write(_path(key), proof)


def _path(key: str) -> Path:
    return platformdirs.user_cache_path("convtwins") / "proofs" / f"{key}.json"
