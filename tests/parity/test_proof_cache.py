"""The key of a remembered proof: another outcome is possible wherever one of its facts is another."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common import spec
from common.data import sources
from common.machine import machine
from compare.execution import code_digest
from compare.proof import proof_cache
from tests.parity.made_up import FakeTwins

Patch = pytest.MonkeyPatch
TIMED: dict[str, Any] = {"model": "simple_cnn", "epochs": 2}


def _facts(**changed: Any) -> Callable[[Patch, FakeTwins], None]:
    known = {**machine.describe(), **changed}
    return lambda patch, twins: patch.setattr(machine, "describe", lambda: known)


def _variable(name: str, value: str = "1") -> Callable[[Patch, FakeTwins], None]:
    return lambda patch, twins: patch.setenv(name, value if os.environ.get(name) != value else f"{value}x")


def _described(field: str, value: Any) -> Callable[[Patch, FakeTwins], None]:
    return lambda patch, twins: twins.described.update({field: value})


def _code(module: Any, name: str, value: Any) -> Callable[[Patch, FakeTwins], None]:
    return lambda patch, twins: patch.setattr(module, name, lambda *arguments, **options: value)


OF_THE_MACHINE = {
    "processor": _facts(processor="another EPYC"),
    "cores": _facts(cores=64),
    "logical cores": _facts(logical_cores=128),
    "machine id": _facts(host="fedcba9876543210"),
    "system and C library": _facts(system="Linux-9.9-glibc2.99"),
    "python": _facts(python="3.99.0"),
    "host name": _code(platform, "node", "another-host"),
    "CPU flags without AVX-512": _code(machine, "cpu_flags", ["avx2", "fma"]),
    "CPU flags with AMX and bf16": _code(machine, "cpu_flags", ["avx512_bf16", "avx512f", "amx_bf16", "amx_tile"]),
    "cores that the process may use": _code(machine, "available_cores", 1),
    "numpy": _code(machine, "versions", {"numpy": "9.9", "pillow": "9.9"}),
    "framework": _described("versions", {"made_up": "1.1"}),
    "device": _described("devices", [{"name": "a card", "kind": "cuda"}]),
    "ONEDNN_MAX_CPU_ISA": _variable("ONEDNN_MAX_CPU_ISA", "AVX2"),
    "DNNL_DEFAULT_FPMATH_MODE": _variable("DNNL_DEFAULT_FPMATH_MODE", "BF16"),
    "MKL_CBWR": _variable("MKL_CBWR", "COMPATIBLE"),
    "OMP_NUM_THREADS": _variable("OMP_NUM_THREADS"),
    "TF_ENABLE_ONEDNN_OPTS": _variable("TF_ENABLE_ONEDNN_OPTS", "0"),
    "OPENBLAS_CORETYPE": _variable("OPENBLAS_CORETYPE", "Haswell"),
    "NPY_DISABLE_CPU_FEATURES": _variable("NPY_DISABLE_CPU_FEATURES", "AVX512F"),
    **{
        name: _variable(name, value)
        for name, value in (
            ("NCCL_ALGO", "Ring"),
            ("NCCL_PROTO", "LL128"),
            ("GLOO_SOCKET_IFNAME", "lo"),
            ("UCC_TLS", "ucp"),
            ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
            ("CUBLASLT_LOG_MASK", "1"),
            ("CUDNN_DETERMINISTIC", "1"),
            ("XLA_FLAGS", "--xla_cpu_enable_fast_math=true"),
            ("KMP_DETERMINISTIC_REDUCTION", "1"),
            ("TORCH_NCCL_HIGH_PRIORITY", "1"),
            ("TORCHINDUCTOR_EMULATE_PRECISION_CASTS", "1"),
            ("NVIDIA_TF32_OVERRIDE", "1"),
            ("MIOPEN_DEBUG_CONV_GEMM", "0"),
            ("GOTO_NUM_THREADS", "1"),
            ("LD_PRELOAD", "libother.so"),
            ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512F"),
        )
    },
    "code of the twins": _code(code_digest, "compute", "another"),
    "code of the proof": _code(machine, "code_digest", "another"),
    "data": _code(sources, "load", SimpleNamespace(content_hash="of other pixels")),
}


def key(**options: Any) -> str:
    base = spec.build({**TIMED, "precision": "float64", **options.pop("base", {})})
    return proof_cache.key(
        base, **{"frameworks": ["pytorch", "tensorflow"], "options": ["data_parallel"], "replicas": 2, **options}
    )


@pytest.mark.parametrize("what", OF_THE_MACHINE)
def test_a_proof_is_forgotten_where_the_machine_or_its_software_is_another(
    twins: FakeTwins, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    before = key()
    assert key() == before
    OF_THE_MACHINE[what](monkeypatch, twins)
    assert key() != before


@pytest.mark.parametrize(
    "options",
    [
        {"base": {"steps": 7, "epochs": None}}, {"base": {"seed": 2}}, {"base": {"model": "tests.parity.probe"}},
        {"base": {"precision": "float32"}}, {"base": {"global_batch_size": 32}}, {"base": {"accumulation": 4}},
        {"base": {"optimizer": {"learning_rate": 0.2}}}, {"base": {"schedule": {"name": "cosine"}}},
        {"base": {"switches": "plain"}}, {"base": {"augmentation": {"shift_px": 1}}},
        {"options": ["data_parallel", "multi_process"]}, {"options": []}, {"replicas": 3},
        {"frameworks": ["tensorflow", "pytorch"]}, {"frameworks": ["pytorch"]},
    ],
)  # fmt: skip
def test_a_proof_is_forgotten_where_it_was_asked_for_otherwise(twins: FakeTwins, options: dict[str, Any]) -> None:
    assert key(**options) != key()


def test_what_no_kernel_reads_is_no_part_of_the_key(twins: FakeTwins, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setenv("EDITOR", "ed")
    assert key() == before


def test_the_flags_of_this_processor_are_read() -> None:
    if Path("/proc/cpuinfo").exists():
        assert machine.cpu_flags() == sorted(set(machine.cpu_flags()))
        assert machine.cpu_flags()
