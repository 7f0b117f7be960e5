"""Bad input: the exit code and the message of each refusal."""

from __future__ import annotations

from pathlib import Path

from common import spec
from common.artifacts import results
from common.spec import MODES
from compare.conformance.trial import Faults, Trial, last_line, spec_of
from compare.core import exits
from compare.execution import launch


def check(trial: Trial) -> Faults:
    modes, out = trial.description["modes"], trial.out / "bad"
    missing = next((mode for mode in MODES if not modes.get(mode, {}).get("available")), None)
    empty = trial.out / "no-images"
    empty.mkdir(exist_ok=True)
    cases: list[tuple[str, list[str | Path], int, str]] = [
        ("an unknown command", ["nonsense"], exits.USAGE, "nonsense"),
        ("no spec file", ["run", trial.out / "none.json", "--out", out], exits.USAGE, "none.json"),
        ("a torn spec", ["run", trial.written("{", "torn"), "--out", out], exits.USAGE, "torn.json"),
    ]
    for what, fields, code, named in (
        ("an unknown switch", {"framework_options": {"nonsense": 1}}, exits.USAGE, "nonsense"),
        ("data without images", {"data": {"source": str(empty)}}, exits.DATA_REFUSED, "no-images"),
        ("a loss that diverges", {"optimizer": {"learning_rate": 1e30}, "steps": 20}, exits.RUN_FAILED, ""),
    ):
        path = trial.written(spec_of().with_fields(**fields), what.replace(" ", "-"))
        cases.append((what, ["run", path, "--out", trial.out / f"{path.stem}-run"], code, named))
    if missing is not None:
        word = next(word for word, (mode, _) in spec.VARIANTS.items() if mode == missing)
        asked = spec.build(spec.with_variant(spec_of().model_dump(), word, 2))
        path = trial.written(asked, f"mode-{missing}")
        cases.append((f"mode {missing}", ["run", path, "--out", out], exits.USAGE, "not available"))
    for what, words, expected, named in cases:
        code, said = trial.call(words)
        if code != expected:
            yield f"{what} must end with exit code {expected}. Received: {launch.exit_words(code)}: {last_line(said)}"
        elif named not in said:
            yield f"{what} must be refused with a message that names {named!r}. Received: {last_line(said)}"
    path = trial.out / "a-loss-that-diverges-run" / results.RESULT_FILE
    status = results.load(path).status if path.exists() else "none"
    if status != "diverged":
        yield f"a loss that diverges must leave a result of status diverged. Received: {status}"
