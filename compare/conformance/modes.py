"""Check that each available parallel mode trains as serial does."""

from __future__ import annotations

from common import spec
from compare.conformance.trial import Faults, TwinUnderTest, rung_faults, spec_of
from compare.execution import launch
from compare.proof import ladder


def check(trial: TwinUnderTest) -> Faults:
    for name, mode in trial.description["modes"].items():
        words = [word for word, traits in spec.MODES.items() if traits.name == name and traits.is_parallel]
        if not mode["available"] or not words:
            continue
        # BatchNorm over all replicas is tried where they share a process.
        serial = spec_of("mini_xception" if spec.MODES[words[0]].processes == "one" else "simple_cnn")
        request = ladder.ProofRequest(serial, trial.twins, words, replicas=2, steps=5)
        proof = ladder.prove(request, out=trial.out / name, progress=trial.progress, remember=False)
        yield from rung_faults(proof.rungs)
        for word in words:
            parallel = spec.build(spec.with_variant(serial.model_dump(), word, 2))
            if parallel.not_serial_because is None and not any(rung.mode == word for rung in proof.rungs):
                yield f"{word}: it is called available, and nothing of it could be tried with 2 replicas"
            elif parallel.not_serial_because is not None and (code := trial.run(parallel, f"{word}-run")[0]) != 0:
                yield f"{word}: a run ended with {launch.describe_exit(code)}"
