"""The key of a remembered proof: another outcome is possible wherever one of its facts is another."""

import os
import platform
from pathlib import Path
from typing import Any

import pytest

from common import spec
from common.data import sources
from common.machine import machine
from compare.proof import proof_cache
from compare.running import code_digest
from compare.running.twins import Twins
from tests.parity.made_up import FakeTwins

TIMED: dict[str, Any] = {"model": "simple_cnn", "epochs": 2}
ASKED: dict[str, Any] = {"twins": Twins(["pytorch", "tensorflow"]), "options": ["data_parallel"], "replicas": 2}


def base_spec(**fields: Any) -> spec.Spec:
    return spec.build({**TIMED, "precision": "float64", **fields})


def key(**options: Any) -> str:
    return proof_cache.key(base_spec(**options.pop("base", {})), **ASKED | options)


FACTS = (
    "twins", "proof", "packages", "machine", "host", "cpu_flags", "available_cores", "environment", "versions",
    "distributions", "contestants", "devices", "data", "spec", "asked", "replicas",
)  # fmt: skip


def test_the_facts_of_a_proof_are_those_of_code_machine_software_and_data(twins: FakeTwins) -> None:
    base, described = base_spec(), machine.describe()
    facts = proof_cache.facts(base, **ASKED)
    assert tuple(facts) == FACTS
    assert key() == key() == proof_cache.digest(facts)
    assert facts["machine"] == {
        name: described[name] for name in ("processor", "cores", "logical_cores", "host", "system", "python")
    }
    assert (facts["host"], facts["cpu_flags"]) == (platform.node(), machine.cpu_flags())
    assert facts["available_cores"] == machine.available_cores()
    assert facts["packages"] == machine.versions("numpy", "pillow")
    assert facts["twins"] == code_digest.compute(ASKED["twins"].contestants, base.model)
    root = machine.PROJECT_ROOT / "compare"
    assert facts["proof"] == machine.code_digest([root / name for name in ("proof", "running", "cli")])
    assert facts["data"] == sources.load(base.data, seed=base.split_seed, cache_dir=base.paths.cache_dir).content_hash


@pytest.mark.parametrize("name", FACTS)
def test_a_proof_is_forgotten_where_a_fact_is_another(twins: FakeTwins, name: str) -> None:
    facts = proof_cache.facts(base_spec(), **ASKED)
    assert proof_cache.digest({**facts, name: "another"}) != proof_cache.digest(facts)


@pytest.mark.parametrize(
    ("field", "value"), [("versions", {"made_up": "1.1"}), ("devices", [{"name": "a card", "kind": "cuda"}])]
)
def test_a_proof_is_forgotten_where_a_twin_describes_itself_otherwise(twins: FakeTwins, field: str, value: Any) -> None:
    before = key()
    twins.described[field] = value
    assert key() != before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ONEDNN_MAX_CPU_ISA", "AVX2"),
        ("DNNL_DEFAULT_FPMATH_MODE", "BF16"),
        ("MKL_CBWR", "COMPATIBLE"),
        ("OMP_NUM_THREADS", "1"),
        ("TF_ENABLE_ONEDNN_OPTS", "0"),
        ("OPENBLAS_CORETYPE", "Haswell"),
        ("NPY_DISABLE_CPU_FEATURES", "AVX512F"),
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
    ],
)
def test_a_proof_is_forgotten_where_a_variable_may_choose_other_kernels(
    twins: FakeTwins, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    before = key()
    monkeypatch.setenv(name, value if os.environ.get(name) != value else f"{value}x")
    assert key() != before


@pytest.mark.parametrize(
    "options",
    [
        {"base": {"steps": 7, "epochs": None}}, {"base": {"seed": 2}}, {"base": {"model": "tests.parity.probe"}},
        {"base": {"precision": "float32"}}, {"base": {"global_batch_size": 32}}, {"base": {"accumulation": 4}},
        {"base": {"optimizer": {"learning_rate": 0.2}}}, {"base": {"schedule": {"name": "cosine"}}},
        {"base": {"switches": "plain"}}, {"base": {"augmentation": {"shift_px": 1}}},
        {"options": ["data_parallel", "multi_process"]}, {"options": []}, {"replicas": 3},
        {"twins": Twins(["tensorflow", "pytorch"])}, {"twins": Twins(["pytorch"])},
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
