"""How much longer the steps behind a recorded one take: `python -m tests.benchmarks.recorded_steps FRAMEWORK`.

Every fifth step of fifteen epochs of `run --preset digits` is recorded. Prints, by the distance from the recorded step, the
median of the steps' seconds beside that of the two farthest. Step 0 is the recorded one, which is off the clock.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from common.machine import placement
from common.processes import entry
from common.training import spot_checks
from compare.running import presets

EVERY = 5


def main(framework: str) -> int:
    """Train, and print."""
    if framework == "pytorch":
        import pytorch_impl.__main__ as module
    else:
        import tensorflow_impl.__main__ as module
    twin, seconds = module.load_twin(), dict[int, list[float]]()

    def build(*given: Any) -> Any:
        trainer: Any = twin.build(*given)
        train, whole = trainer.train_step, trainer._plan.spec.global_batch_size

        def timed(batch: Any, number: int, rate: float) -> Any:
            start = time.perf_counter()
            outputs = train(batch, number, rate)
            trainer.fetch([outputs[0]])
            if number == whole:
                seconds.setdefault((trainer.updates - 1) % EVERY, []).append(time.perf_counter() - start)
            return outputs

        trainer.train_step = timed
        return trainer

    built = dataclasses.replace(twin, build=build)
    os.environ[placement.SPOT_CHECKS_VARIABLE] = "any"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        every = lambda self, trainer, losses, begin, stop: [step for step in range(begin, stop) if step % EVERY == 0]  # noqa: E731
        patch.setattr(spot_checks.SpotChecks, "steps_of_epoch", every)
        file = Path(folder) / "spec.json"
        file.write_text(json.dumps({**presets.digits().values, "epochs": 15}), encoding="utf-8")
        words = ["run", str(file), "--out", str(Path(folder) / "out")]
        code = entry.main(framework, lambda: built, module.rendezvous, module.switches, words)
    far = statistics.median(seconds[EVERY - 1] + seconds[EVERY - 2])
    for distance, own in sorted(seconds.items()):
        print(f"step {distance}: {statistics.median(own) / far - 1:+.1%} ({len(own)} steps)")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
