"""Makes cpu.lock from requirements.lock: `python locks/cpu.py > locks/cpu.lock`. See docs/contestants.md.

Both frameworks for machines without a GPU. On Linux, PyTorch's wheel is built for CUDA, and loads the libraries that it is
linked with. What it does not load without a GPU is left out. TensorFlow has a wheel without code for GPUs, for x86-64 alone.
"""

import re
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("cuda-bindings", "cuda-pathfinder", "cuda-toolkit", "nvidia-cuda-cccl", "nvidia-cusolver", "nvidia-nvtx", "triton")
"""PyTorch names them as requirements. It imports and trains without them on a CPU, and loads them on a GPU alone."""
OWN, OTHER, LOCK = "tensorflow", "tensorflow-cpu", PROJECT / "locks" / "tensorflow-cpu.lock"
"""TensorFlow, its build without code for GPUs, and the lock that holds that build. Both require the same others."""
WHERE = "sys_platform == 'linux' and platform_machine == 'x86_64'", "sys_platform != 'linux' or platform_machine != 'x86_64'"
"""Markers of machines that get the other one, and of those that do not."""
HEADER = """\
# Made by `python locks/cpu.py` from requirements.lock, for machines without a GPU. Install with --no-deps: PyTorch names
# requirements that are left out here.
"""


def blocks(path: Path) -> dict[str, str]:
    """The lines of each distribution in a lock, by its name. It may have several versions, by markers."""
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", path.read_text(encoding="utf-8")):
        if not block.startswith("#"):
            name = re.split(r"[=\[ ;]", block, maxsplit=1)[0]
            found[name] = found.get(name, "") + block.rstrip("\n") + "\n"
    return found


def lock() -> str:
    """The text of cpu.lock."""
    kept = blocks(PROJECT / "requirements.lock")
    for name in LEFT_OUT:
        del kept[name]
    kept[OTHER] = blocks(LOCK)[OTHER]
    for name, marker in zip((OTHER, OWN), WHERE, strict=True):
        kept[name] = kept[name].replace(" \\\n", f" ; {marker} \\\n", 1)
    return HEADER + "".join(kept[name] for name in sorted(kept))


if __name__ == "__main__":
    sys.stdout.write(lock())
