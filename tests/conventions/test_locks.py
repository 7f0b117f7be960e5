"""The locks of environments for contestants pin what the project pins."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
LOCKS = sorted(path.stem for path in (PROJECT / "locks").glob("*.lock") if path.stem != "cpu")


def pins(path: Path) -> dict[str, str]:
    """Versions by name, without extras, and with the CPU variant of a distribution under its own name. `-r` is followed."""
    text = path.read_text(encoding="utf-8")
    others = [pins(path.parent / name) for name in re.findall(r"^-r (\S+)$", text, re.MULTILINE)]
    found = re.findall(r"^([A-Za-z0-9_.-]+?)(?:-cpu)?(?:\[.*\])?==([^ ;\\\n]+)", text, re.MULTILINE)
    return {name.lower(): version for each in [*(other.items() for other in others), found] for name, version in each}


def entries(path: Path) -> list[tuple[str, str]]:
    """(name, version) of all entries. A distribution may have several versions, by markers."""
    return sorted(re.findall(r"^([A-Za-z0-9_.-]+)(?:\[.*\])?==([^ ;\\\n]+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_there_is_a_lock_for_each_framework_and_kind_of_device() -> None:
    assert LOCKS == ["pytorch-cuda", "tensorflow-cpu", "tensorflow-cuda"]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_the_versions_of_the_project(name: str) -> None:
    wanted, locked = pins(PROJECT / "locks" / f"{name}.txt"), pins(PROJECT / "locks" / f"{name}.lock")
    assert pins(PROJECT / "locks" / "common.txt").items() < wanted.items()
    assert wanted.items() <= pins(PROJECT / "requirements.txt").items()
    assert wanted.items() <= locked.items()


def test_the_lock_for_cpus_is_the_projects_without_what_a_gpu_needs() -> None:
    command = [sys.executable, PROJECT / "locks" / "cpu.py"]
    made = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    text = (PROJECT / "locks" / "cpu.lock").read_text(encoding="utf-8")
    assert text == made, "Run: python locks/cpu.py > locks/cpu.lock"
    whole, locked = (entries(PROJECT / path) for path in ("requirements.lock", "locks/cpu.lock"))
    left_out = {
        "cuda-bindings",
        "cuda-pathfinder",
        "cuda-toolkit",
        "nvidia-cuda-cccl",
        "nvidia-cusolver",
        "nvidia-nvtx",
        "triton",
    }
    variant = [("tensorflow-cpu", dict(whole)["tensorflow"])]
    assert locked == sorted([each for each in whole if each[0] not in left_out] + variant)
    assert left_out < {name for name, _ in whole}
    assert re.search(r"^tensorflow-cpu==\S+ ; sys_platform == 'linux' and platform_machine == 'x86_64' ", text, re.MULTILINE)


def test_a_lock_for_cpus_has_no_library_for_gpus_and_no_lock_has_those_of_both_frameworks() -> None:
    libraries = {name: {pin for pin in pins(PROJECT / "locks" / f"{name}.lock") if pin.startswith("nvidia")} for name in LOCKS}
    assert libraries["tensorflow-cpu"] == set()
    assert {"nvidia-cudnn-cu13"} <= libraries["pytorch-cuda"] and {"nvidia-cudnn-cu12"} <= libraries["tensorflow-cuda"]
    assert not any({"nvidia-cudnn-cu12", "nvidia-cudnn-cu13"} <= each for each in libraries.values())
