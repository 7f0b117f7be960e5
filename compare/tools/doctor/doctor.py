"""`convtwins doctor`: what this machine offers for a comparison, and what it lacks."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from common import spec
from common.data import cache as store
from common.data import cache_items
from common.machine import machine
from compare.cli import commands, wording
from compare.cli.errors import LaunchError
from compare.reporting.document import Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Column, Table
from compare.running import launch, matrix
from compare.running.contestants import Contestant
from compare.running.twins import Twins
from compare.statistics import noise
from compare.statistics.noise import LEAST_NEIGHBOURS, NoiseRange

EXIT_LACKING = 1

JITTER_SECONDS = 60.0
_LOOP = 2_000_000
"""Numbers that the loop of `--jitter` adds: a few hundredths of a second."""
_MIB = 2**20
_LEAST_DISK_MIB, _LEAST_MEMORY_MIB, _LEAST_SHARED_MIB = 2_048, 2_048, 256
_BUSY_LOAD = 0.5
"""Load of each core above which times suffer."""


@commands.command()
def command(
    jitter: Annotated[
        bool, typer.Option("--jitter", help="Time the same loop for a minute: how much does the same code differ here?")
    ] = False,
) -> Report:
    """Say what this machine has for a comparison: frameworks, devices, modes, threads, memory, disk, caches."""
    facts = examine(list(launch.FRAMEWORKS))
    return report({**facts, "noise": measure_noise().model_dump(mode="json") if jitter else None})


def measure_noise(seconds: float = JITTER_SECONDS) -> NoiseRange:
    """Time the same loop again and again for so many seconds, and at least often enough for a range."""
    times: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) <= LEAST_NEIGHBOURS:
        before = time.perf_counter()
        sum(range(_LOOP))
        times.append(time.perf_counter() - before)
    noise_range = noise.of_neighbours(list(pairwise(times)))
    assert noise_range is not None  # there are enough
    return noise_range


def examine(frameworks: Sequence[str]) -> dict[str, Any]:
    """Return everything that is known of this machine, JSON-ready. Each framework answers in a process of its own."""
    with Twins(frameworks).describe_all(defer_errors=True) as answer:
        framework_facts = [_framework(name, answer) for name in frameworks]
    memory = psutil.virtual_memory()
    facts: dict[str, Any] = {
        **machine.describe(),
        "cores_allowed": (allowed := machine.available_cores()),
        "threads": {"of_a_run": allowed, "physical_cores": machine.physical_cores(machine.cpu_budget(allowed))},
        "load": os.getloadavg()[0],
        "memory_free_mib": memory.available // _MIB,
        "allocator": "keeps freed pages in every run" if machine.keep_freed_memory() else "the system's default",
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "has_byte_code": not sys.dont_write_bytecode or _are_compiled(),
        "tools": {name: shutil.which(name) for name in ("git", "ssh")},
        "folders": [_folder(what, path) for what, path in _folders()],
        "caches": [
            _cache("decoded data, downloads and proofs", store.folder(None)),
            _cache("Keras' own", store.keras_home()),
            _cache("PyTorch's own", store.torch_home()),
        ],
        "frameworks": framework_facts,
    }
    return {**facts, "warnings": list(_warnings(facts))}


def report(facts: dict[str, Any]) -> Report:
    modes = _modes(facts["frameworks"])
    return Report(
        title="This machine",
        facts=_facts(facts),
        findings=[
            ("Folders", _folder_lines(facts)),
            *([("Cautions", facts["warnings"])] if facts["warnings"] else []),
        ],
        tables=[modes] if modes else [],
        values=facts,
        screen=_screen(facts),
        exit_code=EXIT_LACKING if any(framework["error"] for framework in facts["frameworks"]) else 0,
    )


def _screen(facts: dict[str, Any]) -> Screen:
    """Show which modes can be trained here, and what is in the way."""
    started = [framework for framework in facts["frameworks"] if not framework["error"]]
    unavailable: dict[tuple[str, str], list[str]] = {}
    for description in started:
        for mode in description["modes"]:
            if not mode["available"]:
                unavailable.setdefault((description["framework"], mode["here"]), []).append(mode["mode"])
    free = ", ".join(f"{folder['free_mib']:,} MiB in {folder['path']}" for folder in facts["folders"][:2])
    return Screen(
        subject=[
            "What can be trained on this machine?",
            f"{machine.cpu_name(facts)}, {facts['cores_allowed']} of {facts['logical_cores']} logical cores",
        ],
        answers=[
            *(Paragraph(description["framework"], [_modes_words(description)]) for description in started),
            Paragraph("Not here", [f"{name} {wording.joined(modes)}: {why}" for (name, why), modes in unavailable.items()]),
            Paragraph("Free", [f"{facts['memory_free_mib']:,} of {facts['memory_mib']:,} MiB of memory, {free}"]),
            Paragraph(
                "Trouble",
                [
                    f"{description['framework']}: {description['error']}"
                    for description in facts["frameworks"]
                    if description["error"]
                ],
                "bad",
            ),
            Paragraph("Jitter", [_noise_words(facts["noise"])] if facts.get("noise") else []),
            Paragraph("Cautions", facts["warnings"], "warn"),
        ],
    )


def _noise_words(values: dict[str, Any]) -> str:
    noise_range = NoiseRange.model_validate(values)
    text = f"{noise_range.words} times as long as the one before, in {noise_range.share} repeats of one loop"
    return f"{text}. A single run shows no smaller change."


def _modes_words(framework: dict[str, Any]) -> str:
    devices = wording.joined([device["name"] for device in framework["devices"]])
    available = sum(mode["available"] for mode in framework["modes"])
    modes = f"{available} of {len(framework['modes'])} modes, with 2 replicas"
    return f"{wording.versions(framework['versions'])}, on {devices}: {modes}"


def _are_compiled() -> bool:
    """Tell whether the frameworks that are installed here have byte code, which an earlier process has left."""
    packages = [Path(sysconfig.get_path("purelib")) / name for name in ("torch", "tensorflow")]
    return all((package / "__pycache__").exists() for package in packages if package.exists())


def _facts(facts: dict[str, Any]) -> list[str]:
    threads = facts["threads"]
    tools = ", ".join(f"{name} {'found' if path else 'missing'}" for name, path in facts["tools"].items())
    return [
        f"{machine.cpu_name(facts)}, {facts['cores_allowed']} of {facts['logical_cores']} logical cores, "
        f"load {facts['load']:.1f}",
        f"{facts['memory_free_mib']:,} of {facts['memory_mib']:,} MiB of memory free; allocator: {facts['allocator']}; "
        f"{facts['open_files']:,} open files",
        f"threads: {threads['of_a_run']} in a run, shared by its replicas, on {threads['physical_cores']} physical cores. "
        "--cores sets fewer. OMP_NUM_THREADS and its like have no effect: no run receives them",
        f"{facts['system']}, Python {facts['python']}",
        f"{tools}; commit {facts['commit'] or 'unknown'}{' with changes' if facts['dirty'] else ''}",
        *map(_framework_line, facts["frameworks"]),
    ]


def _framework_line(framework: dict[str, Any]) -> str:
    if framework["error"]:
        return f"{framework['framework']}: {framework['error']}"
    versions = ", ".join(f"{package} {version}" for package, version in framework["versions"].items())
    devices = ", ".join(f"{device['name']} ({device['kind']})" for device in framework["devices"])
    options = "; ".join(f"{name}: {', '.join(map(str, option['values']))}" for name, option in framework["options"].items())
    return f"{framework['framework']}: {versions}; {devices}; switches: {options or 'none'}"


def _folder_lines(facts: dict[str, Any]) -> list[str]:
    folders = [
        f"{folder['what']}: {folder['path']}, {folder['free_mib']:,} MiB free"
        f"{'' if folder['writable'] else ', CANNOT BE WRITTEN'}"
        for folder in facts["folders"]
    ]
    caches = [
        f"{entry['what']}: {entry['path']}, {'not there' if entry['mib'] is None else format(entry['mib'], ',') + ' MiB'}"
        for entry in facts["caches"]
    ]
    return folders + caches


def _modes(frameworks: Sequence[dict[str, Any]]) -> Table | None:
    """Build a table of the modes of each framework, one line per mode. None if no framework has started."""
    started = [framework for framework in frameworks if not framework["error"]]
    if not started:
        return None
    columns = (
        Column("mode", "mode", pick="0.mode"),
        *(
            Column(framework["framework"], framework["framework"], fold=26, pick=f"{place}.here")
            for place, framework in enumerate(started)
        ),
        Column("needs", "needs", pick="0.needs"),
        Column("cut_short", "when cut short", pick="0.cut_short"),
    )
    same_mode = zip(*(framework["modes"] for framework in started), strict=True)
    return Table.from_items("modes", "Modes, with 2 replicas", columns, same_mode)


def _framework(framework: str, answer: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    try:
        description = answer(framework)
    except LaunchError as error:
        return {"framework": framework, "error": str(error)}
    twin = [Contestant.plain(framework)]
    rows = matrix.check_rows(matrix.build_rows({}, twin, list(spec.MODES), 2), {framework: description}, twin)
    row_by_mode = {row.spec.variant: row for row in rows}  # of serial's rows the one on all cores
    modes = [
        {
            "mode": variant,
            "available": row.unavailable is None,
            "here": str(row.unavailable or "yes"),
            "implementation": description["modes"].get(row.spec.mode, {}).get("implementation"),
            "needs": row.spec.traits.needs,
            "cut_short": "goes on" if row.spec.not_resumable_because is None else "starts over",
        }
        for variant, row in row_by_mode.items()
    ]
    return {**description, "modes": modes, "error": None}


def _folders() -> Iterator[tuple[str, Path]]:
    yield "results", Path("results").absolute()
    yield "cache", store.folder(None)
    yield "temporary files", Path(tempfile.gettempdir())
    if (shared := Path("/dev/shm")).exists():
        yield "shared memory", shared


def _folder(what: str, path: Path) -> dict[str, Any]:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing).free // _MIB
    return {"what": what, "path": str(path), "free_mib": free, "writable": os.access(existing, os.W_OK)}


def _cache(what: str, path: Path) -> dict[str, Any]:
    if not path.is_dir():
        return {"what": what, "path": str(path), "mib": None}
    sizes = [file.lstat().st_size for file in path.rglob("*") if file.is_file()]
    is_suite_cache = path == store.folder(None)
    num_bytes = sum(item.num_bytes for item in cache_items.list_items(path)) if is_suite_cache else sum(sizes)
    return {"what": what, "path": str(path), "mib": num_bytes // _MIB}


def _warnings(facts: dict[str, Any]) -> Iterator[str]:
    for folder in facts["folders"]:
        least = _LEAST_SHARED_MIB if folder["what"] == "shared memory" else _LEAST_DISK_MIB
        if folder["free_mib"] < least and folder["writable"]:
            why = ", through which PyTorch's input workers pass batches" if folder["what"] == "shared memory" else ""
            yield f"{folder['path']} ({folder['what']}{why}) has {folder['free_mib']:,} MiB free. Make it {least:,} at least."
        if not folder["writable"]:
            yield f"{folder['path']} ({folder['what']}) cannot be written. Choose another folder, or change its rights."
    if facts["memory_free_mib"] < _LEAST_MEMORY_MIB:
        yield f"{facts['memory_free_mib']:,} MiB of memory are free. A run of both frameworks needs {_LEAST_MEMORY_MIB:,}."
    if facts["load"] > _BUSY_LOAD * facts["logical_cores"]:
        yield f"the machine is busy (load {facts['load']:.1f}). Rely on no time until it is idle."
    if not facts["has_byte_code"]:
        yield (
            "PYTHONDONTWRITEBYTECODE is set. So each process compiles its framework's Python anew, which takes seconds. Unset "
            "it once: make does so."
        )
    if facts["cores_allowed"] < 2:
        yield "only one core: no parallel mode can pay here."
