"""The parallel modes: each that is called available trains as serial does."""

from __future__ import annotations

from common import spec
from compare.conformance.trial import Faults, Trial, failed, spec_of
from compare.execution import launch
from compare.proof import ladder


def check(trial: Trial) -> Faults:
    for name, mode in trial.description["modes"].items():
        words = [word for word, (of, _) in spec.VARIANTS.items() if of == name and name != "serial"]
        if not mode["available"] or not words:
            continue
        what = spec_of("mini_xception" if name == "data_parallel" else "simple_cnn")
        proof = ladder.prove(
            what, [trial.name], words, replicas=2, out=trial.out / name, progress=trial.progress, steps=5, remember=False
        )
        yield from failed(proof.rungs)
        for word in words:
            own = spec.build(spec.with_variant(what.model_dump(), word, 2))
            if own.departs is None and not any(rung.mode == word for rung in proof.rungs):
                yield f"{word}: it is called available, and nothing of it could be tried with 2 replicas"
            elif own.departs is not None and (code := trial.run(own, f"{word}-run")[0]) != 0:
                yield f"{word}: a run ended with {launch.exit_words(code)}"
