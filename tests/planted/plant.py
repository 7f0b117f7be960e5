"""Record the proof's arrays through a twin's own code, with one defect planted in it.

    python -m tests.planted.plant FRAMEWORK OUT SPEC.json:DEFECT ...

A file SPEC.options holds more options of `trace`. Every recording goes to OUT/<name of the spec>-<defect>.safetensors. The
defects are planted one after another in one process, each by replacing a function of the twin and taken back afterwards; the
defect `nothing` records the clean twin.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from common import spec
from common.processes import entry
from tests.ranks import run_ranks

Plant = Callable[[pytest.MonkeyPatch], Any]


def main(framework: str, out: Path, jobs: list[str]) -> int:
    module, plants = _twin(framework)
    specs = {name: spec.from_json(Path(name).read_bytes()) for name, _ in map(_parted, jobs)}
    if "RANK" not in os.environ and any(map(module.rendezvous.environments, specs.values())):
        return _in_ranks(module, framework, out, jobs, specs)
    # Threads and devices can be set once a process: those of a parallel mode serve serial runs too.
    widest = max(specs.values(), key=lambda each: each.replicas)
    twin = module.load_twin()
    twin.configure(widest)
    configured = dataclasses.replace(twin, configure=lambda ignored: None)
    for job in jobs:
        name, defect = _parted(job)
        recording = out / f"{Path(name).stem}-{defect}.safetensors"
        more = Path(name).with_suffix(".options")
        options = more.read_text(encoding="utf-8").split() if more.exists() else []
        with pytest.MonkeyPatch.context() as patch:
            planted = plants[defect](patch)
            built = configured if planted is None else dataclasses.replace(configured, build=planted(configured.build))
            code = entry.main(
                framework,
                lambda twin=built: twin,
                module.rendezvous,
                module.switches,
                ["trace", name, "--out", str(recording), *options],
            )
        if code != entry.EXIT_OK:
            return code
    return entry.EXIT_OK


def _twin(framework: str) -> tuple[ModuleType, dict[str, Plant]]:
    """The framework is imported only now: no process may have both."""
    if framework == "pytorch":
        import pytorch_impl.__main__ as twin
        from tests.planted import defects_pytorch as defects
    else:
        import tensorflow_impl.__main__ as twin
        from tests.planted import defects_tensorflow as defects
    return twin, defects.DEFECTS


def _in_ranks(module: ModuleType, framework: str, out: Path, jobs: list[str], specs: dict[str, spec.Spec]) -> int:
    for job in jobs:
        command = [sys.executable, "-m", "tests.planted.plant", framework, str(out), job]
        failure = run_ranks(command, module.rendezvous.environments(specs[_parted(job)[0]]))
        if failure is not None:
            print(f"{job}: {failure}", file=sys.stderr)
            return entry.EXIT_FAILED
    return entry.EXIT_OK


def _parted(job: str) -> tuple[str, str]:
    name, _, defect = job.rpartition(":")
    return name, defect


if __name__ == "__main__":
    leave = entry.exit_without_teardown if sys.argv[1] == "pytorch" else sys.exit  # as the twins do
    leave(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
