"""Check of bad input: the exit code and the message of each refusal."""

from __future__ import annotations

import os
from pathlib import Path

from common import spec
from common.artifacts import results
from common.spec import MODES
from compare.conformance.trial import Faults, TwinUnderTest, last_line, spec_of
from compare.core import exits
from compare.execution import launch


def check(trial: TwinUnderTest) -> Faults:
    modes, out = trial.description["modes"], trial.out / "bad"
    missing = next((mode for mode in MODES.names() if not modes.get(mode, {}).get("available")), None)
    empty = trial.out / "no-images"
    empty.mkdir(exist_ok=True)
    pipe = trial.out / "pipe.json"
    if not pipe.exists():
        os.mkfifo(pipe)
    cases: list[tuple[str, list[str | Path], int, str]] = [
        ("an unknown command", ["nonsense"], exits.USAGE, "nonsense"),
        ("no spec file", ["run", trial.out / "none.json", "--out", out], exits.USAGE, "none.json"),
        ("a pipe in place of a spec", ["run", pipe, "--out", out], exits.USAGE, "no plain file"),
        ("an empty value", ["run", trial.write_spec(spec_of(), "whole"), "--out", ""], exits.USAGE, "empty"),
        ("an unknown field", ["run", trial.write_spec('{"modle": 1}', "misspelt"), "--out", out], exits.USAGE, "modle"),
        ("a torn spec", ["run", trial.write_spec("{", "torn"), "--out", out], exits.USAGE, "torn.json"),
    ]
    for label, fields, code, mentioned in (
        ("an unknown switch", {"framework_options": {"nonsense": 1}}, exits.USAGE, "nonsense"),
        ("data without images", {"data": {"source": str(empty)}}, exits.DATA_REFUSED, "no-images"),
        ("a loss that diverges", {"optimizer": {"learning_rate": 1e30}, "steps": 20}, exits.RUN_FAILED, ""),
    ):
        path = trial.write_spec(spec_of().with_fields(**fields), label.replace(" ", "-"))
        cases.append((label, ["run", path, "--out", trial.out / f"{path.stem}-run"], code, mentioned))
    if missing is not None:
        word = next(word for word, mode in MODES.items() if mode.name == missing)
        unavailable = spec.build(spec.with_variant(spec_of().model_dump(), word, 2))
        path = trial.write_spec(unavailable, f"mode-{missing}")
        cases.append((f"mode {missing}", ["run", path, "--out", out], exits.USAGE, "not available"))
    endings = trial.call_all([words for _, words, _, _ in cases])
    for (label, _, expected, mentioned), (code, output) in zip(cases, endings, strict=True):
        if code != expected:
            yield f"{label} must end with exit code {expected}. Received: {launch.describe_exit(code)}: {last_line(output)}"
        elif mentioned not in output:
            yield f"{label} must be refused with a message that names {mentioned!r}. Received: {last_line(output)}"
    if out.exists():
        yield "a run that is refused must leave no folder"
    path = trial.out / "a-loss-that-diverges-run" / results.RESULT_FILE
    status = results.load(path).status if path.exists() else "none"
    if status != "diverged":
        yield f"a loss that diverges must leave a result of status diverged. Received: {status}"
