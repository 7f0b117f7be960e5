"""Recordings of a few steps by each framework, made through the code that is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import safetensors.numpy

from common.spec import Spec
from compare.core.errors import LaunchError
from compare.execution import launch
from compare.proof import claims
from compare.proof.differences import Arrays


def path(out: Path, what: Spec, label: str, framework: str) -> Path:
    """Where a recording lies."""
    return out / what.model / what.optimizer.name / f"{label}-{framework}.safetensors"


def record(
    specs: Mapping[str, Spec], frameworks: Sequence[str], out: Path, progress: Callable[[str], None], *options: str
) -> dict[str, dict[str, Arrays]]:
    """Record every spec in every framework. A framework records all specs in one process.

    The processes run one after the other. Side by side, their threads would wait for each other.

    Args:
        specs: by label.
        frameworks: by name.
        out: folder for specs, recordings and logs.
        progress: called with what is being done.
        options: of `python -m <twin> trace`.

    Returns:
        {label: {framework: arrays}}

    Raises:
        LaunchError: a twin could not record.
    """
    recordings: dict[str, dict[str, Arrays]] = {label: {} for label in specs}
    if not specs:
        return recordings
    first, what = next(iter(specs.items()))
    folder = path(out, what, first, "").parent
    folder.mkdir(parents=True, exist_ok=True)
    for label, each in specs.items():
        (folder / f"{label}.json").write_text(each.to_json(), encoding="utf-8")
    labels = " and ".join(specs)
    for name in frameworks:
        progress(f"proof: {what.model}, {what.optimizer.name}, {labels}, {name}")
        paths, log = {label: path(out, what, label, name) for label in specs}, folder / f"{first}-{name}.log"
        words: list[str] = []
        for label, place in paths.items():
            place.unlink(missing_ok=True)  # never judge a recording of an earlier proof
            source = str(_source(folder, label, specs, name))
            words += ["--then", source, str(place)] if words else ["trace", source, "--out", str(place)]
        code = launch.call(name, [*words, *options], log=log, hang_seconds=what.hang_seconds)
        if code != 0:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise LaunchError(
                f"{name} could not record {labels} ({launch.exit_words(code)}). See {log}.\n" + "\n".join(lines[-3:])
            )
        for label, place in paths.items():
            if not place.exists():
                raise LaunchError(f"{name} recorded nothing for {label}, and ended as if all were well. See {log}.")
            recordings[label][name] = safetensors.numpy.load_file(place)
    return recordings


def _source(folder: Path, label: str, specs: Mapping[str, Spec], name: str) -> Path:
    """The spec that a contestant records: the one for all, or one with the switches of its own that prove something."""
    own = claims.proved_switches(name, *specs.values())
    if not own:
        return folder / f"{label}.json"
    what = specs[label]
    path = folder / f"{label}-{name}.json"
    path.write_text(what.with_fields(framework_options={**what.framework_options, **own}).to_json(), encoding="utf-8")
    return path
