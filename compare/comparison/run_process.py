"""A comparison in a process of its own, for `api.run`: `call` starts the process, and the process runs `main`.

A Python session may last for days. A fresh process sees the user's model and the environments as they are now, takes Ctrl-C as
the command does, and shares no state with the session.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from common.errors import UserError
from common.spec import Spec, SpecError, plain_values
from compare.cli.errors import LaunchError
from compare.cli.interrupt import Interrupted, interruptible
from compare.comparison import matrix_run, run
from compare.comparison.comparison_plan import ComparisonRequest
from compare.results import signing
from compare.running import launch, options, run_settings
from compare.statistics import until_decided

_INTERRUPTED = Interrupted.__name__


def call(
    spec: Spec | Mapping[str, Any] | str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
    frameworks: Sequence[str] | None,
    *,
    proof: bool,
    sign: str | os.PathLike[str] | None,
    module: str = __name__,
) -> Path:
    """Run a comparison or a matrix as `convtwins run --spec` does, in a process of its own.

    Args:
        spec: the values of a spec file, or the file's path.
        module: the module whose process answers, as `main` does.

    Returns:
        The results folder.

    Raises:
        UserError, OSError: the comparison failed, see `run.run_quietly`.
        KeyboardInterrupt: it was interrupted. Results of the runs that had ended are in the folder.
    """
    request = {
        "spec": spec_values(spec),
        "out": None if out is None else os.fspath(out),
        "frameworks": None if frameworks is None else list(frameworks),
        "proof": proof,
        "sign": None if sign is None else os.fspath(sign),
    }
    with launch.start_suite_module(module) as process:
        try:
            try:
                answer, _ = process.communicate(json.dumps(request))
            except KeyboardInterrupt:  # the process may have it too, and ignores a second one
                process.send_signal(signal.SIGINT)
                answer, _ = process.communicate()
        finally:
            process.kill()
    return read_answer(answer, process.returncode)


def read_answer(answer: str, exit_code: int) -> Path:
    """Return the folder that a process of a comparison has answered with.

    Raises:
        Exception: the error that it has answered with, see `call`. LaunchError if it has answered nothing.
    """
    try:
        message = json.loads(answer)
    except ValueError:
        ending = launch.describe_exit(exit_code)
        raise LaunchError(f"The process of the comparison ended without an answer ({ending}). Its stderr says why.") from None
    if "folder" in message:
        return Path(message["folder"])
    error_types = {kind.__name__: kind for kind in (*UserError.kinds(), OSError)} | {_INTERRUPTED: KeyboardInterrupt}
    raise error_types.get(message["error"], UserError)(message["words"])  # of a module that only the process has imported


def main() -> None:
    """Read a request from stdin, run it, and write the folder or the error to stdout."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # a user's model may print
        try:
            with interruptible(until_exit=True):
                message = {"folder": str(_run(**json.load(sys.stdin)))}
        except Interrupted as interruption:
            message = {"error": _INTERRUPTED, "words": interruption.message}
        except UserError as error:
            message = {"error": type(error).__name__, "words": str(error)}
        except OSError as error:
            message = {"error": OSError.__name__, "words": str(error)}
        json.dump(message, answer)


def _run(spec: dict[str, Any] | str, out: str | None, frameworks: list[str] | None, *, proof: bool, sign: str | None) -> Path:
    key = None if sign is None else Path(sign)
    signing.check_key(key)
    cell_settings = run_settings.settings_of_cells(None, Path(spec) if isinstance(spec, str) else spec, {}, [])
    twins = options.contestants(None if frameworks is None else ",".join(frameworks), None, cell_settings[0][1].contestants)
    argv = ["run", *(["--spec", spec] if isinstance(spec, str) else spec_to_options(spec))]
    argv += ["--frameworks", ",".join(twins.names)] if frameworks is not None else []
    argv += ["--out", out] if out is not None else []
    argv += [] if proof else ["--no-proof"]
    folder = None if out is None else Path(out)
    requests = [
        (
            labels,
            ComparisonRequest(settings.updated(prove=proof), settings.build_rows(twins.contestants), twins, folder, argv=argv),
        )
        for labels, settings in cell_settings
    ]
    return run.run_quietly(matrix_run.build_plan(requests) if requests[0][0] else requests[0][1], folder, key)


def spec_values(spec: Any) -> dict[str, Any] | str:
    """Return the fields that a spec sets, as JSON values, or the path of its file."""
    if isinstance(spec, str | os.PathLike):
        return os.fspath(cast(str, spec))
    values = spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, Spec) else spec
    if not isinstance(values, Mapping):
        raise SpecError(f"spec must be fields or the path of a file. Received: {spec!r}. Use e.g. {{'model': 'simple_cnn'}}.")
    try:
        return plain_values.from_json(json.dumps(dict(cast(Mapping[str, Any], values)), default=os.fspath))
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"spec must hold plain values. Received: {error}. Use text, numbers, true, false, None, lists and mappings."
        ) from None


def spec_to_options(values: Mapping[str, Any]) -> list[str]:
    """Return the options of `run` that are equal to a spec file of these values."""
    return [word for name, value in values.items() for word in _field_options(name, value)]


def _field_options(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if name == "contestants":
        texts = [_contestant_text(contestant, fields) for contestant, fields in (value or {}).items()]
        return [word for text in texts for word in ("--contestant", text)]
    if name == "modes" and isinstance(value, list):
        return [option, ",".join(cast(list[str], value))]
    if name not in ("one_core", *run_settings.MATRIX_FIELDS, *until_decided.FIELDS):
        return ["--set", f"{name}={json.dumps(value)}"]
    if name == until_decided.FIELDS[0]:
        return [option] if value else []
    if value is None:
        return []
    if name == "one_core":
        return [option if value else "--no-one-core"]
    return [option, str(value)]


def _contestant_text(name: str, fields: Mapping[str, Any]) -> str:
    python = f"@{fields['python']}" if fields.get("python") else ""
    switches = [f",{switch}={json.dumps(setting)}" for switch, setting in fields.get("switches", {}).items()]
    return "".join([name, "=", fields["twin"], python, *switches])


if __name__ == "__main__":
    main()
