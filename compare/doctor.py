"""`python -m compare doctor`: what this machine has for a comparison, and what it lacks."""

from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.text import Text

from common import spec
from common.data import cache as store
from common.machine import machine
from compare.core import exits, terminal, wording
from compare.core.errors import LaunchError
from compare.core.interrupt import interruptible
from compare.data import cache
from compare.execution import launch, matrix
from compare.reporting import tables
from compare.reporting.tables import Column, Table

EXIT_LACKING = 1

_EACH = "a core or GPU for each"
NEEDS = {
    "serial": "one device",
    "data_parallel": f"{_EACH} replica",
    "multi_process": f"{_EACH} rank",
    "parameter_server": f"{_EACH} worker",
    "model_parallel": f"{_EACH} part",
    "tensor_parallel": f"{_EACH} slice",
    "pipeline": f"{_EACH} stage",
    "hybrid": "4 cores or GPUs at least",
    "model_averaging": f"{_EACH} replica",
}
"""What each mode runs on."""

_MIB = 2**20
_LEAST_DISK_MIB, _LEAST_MEMORY_MIB, _LEAST_SHARED_MIB = 2_048, 2_048, 256
_BUSY = 0.5
"""Other work for each core from which times suffer."""


def command(as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False) -> None:
    """Say what this machine has for a comparison: frameworks, devices, modes, threads, memory, disk, caches."""
    with exits.told(), interruptible():
        found = examine(list(launch.FRAMEWORKS))
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        print_to(terminal.stdout(), found)
    raise typer.Exit(EXIT_LACKING if any(each["error"] for each in found["frameworks"]) else 0)


def examine(frameworks: Sequence[str]) -> dict[str, Any]:
    """Everything that is known of this machine, JSON-ready; each framework is asked in a process of its own."""
    with launch.asked(frameworks) as answer:
        asked = [_framework(name, answer) for name in frameworks]
    memory = psutil.virtual_memory()
    found: dict[str, Any] = {
        **machine.describe(),
        "cores_allowed": (allowed := machine.available_cores()),
        "threads": {"of_a_run": allowed, "physical_cores": machine.physical_cores(machine.cpu_budget(allowed))},
        "load": os.getloadavg()[0],
        "memory_free_mib": memory.available // _MIB,
        "allocator": "keeps freed pages in every run" if machine.keep_freed_memory() else "the system's default",
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "tools": {name: shutil.which(name) for name in ("git", "ssh")},
        "folders": [_folder(what, path) for what, path in _folders()],
        "caches": [_cache(what, path) for what, path in _caches()],
        "frameworks": asked,
    }
    return {**found, "warnings": list(_warnings(found))}


def print_to(console: Console, found: dict[str, Any]) -> None:
    """For a reader on a terminal."""
    say(
        console,
        f"{found['processor']}, {found['cores_allowed']} of {found['logical_cores']} logical cores, load {found['load']:.1f}",
    )
    memory = f"{found['memory_free_mib']:,} of {found['memory_mib']:,} MiB of memory free"
    say(console, f"{memory}; allocator: {found['allocator']}; {found['open_files']:,} open files")
    threads = found["threads"]
    say(
        console,
        f"threads: {threads['of_a_run']} in a run, shared by its replicas, on {threads['physical_cores']} physical cores; "
        "fewer with --cores, never by OMP_NUM_THREADS and its like, which no run is given",
    )
    say(console, f"{found['system']}, Python {found['python']}")
    tools = ", ".join(f"{name} {'found' if path else 'missing'}" for name, path in found["tools"].items())
    say(console, f"{tools}; commit {found['commit'] or 'unknown'}{' with changes' if found['dirty'] else ''}")
    for each in found["frameworks"]:
        if each["error"]:
            say(console, f"{each['framework']}: {each['error']}")
            continue
        versions = ", ".join(f"{package} {version}" for package, version in each["versions"].items())
        devices = ", ".join(f"{device['name']} ({device['kind']})" for device in each["devices"])
        options = "; ".join(f"{name}: {', '.join(map(str, option['values']))}" for name, option in each["options"].items())
        say(console, f"{each['framework']}: {versions}; {devices}; switches: {options or 'none'}")
    console.print()
    if modes := _modes(found["frameworks"]):
        console.print(tables.to_rich(modes, console.width))
    console.print()
    for each in found["folders"]:
        say(
            console,
            f"{each['what']}: {each['path']}, {each['free_mib']:,} MiB free{'' if each['writable'] else ', CANNOT BE WRITTEN'}",
        )
    for each in found["caches"]:
        say(
            console,
            f"{each['what']}: {each['path']}, {each['mib']:,} MiB"
            if each["mib"] is not None
            else f"{each['what']}: {each['path']}, not there",
        )
    for warning in found["warnings"]:
        console.print(Text(f"Caution: {warning}", style="yellow"), soft_wrap=True)


def say(console: Console, line: str) -> None:
    console.print(Text(wording.one_line(line)), soft_wrap=True)


def _modes(frameworks: Sequence[dict[str, Any]]) -> Table | None:
    """What each framework can do here, one line a mode; None where none of them has started."""
    started = [each for each in frameworks if not each["error"]]
    if not started:
        return None
    columns = (
        Column("mode", "mode"),
        *(Column(each["framework"], each["framework"], fold=26) for each in started),
        Column("needs", "needs"),
        Column("cut_short", "cut short"),
    )
    rows: list[dict[str, tables.Cell]] = []
    for same in zip(*(each["modes"] for each in started), strict=True):
        here = {each["framework"]: mode["here"] for each, mode in zip(started, same, strict=True)}
        rows.append({**same[0], **here})
    return Table("modes", "Modes, with 2 replicas; what becomes of a run that is cut short", columns, rows)


def _framework(framework: str, answer: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    try:
        description = answer(framework)
    except LaunchError as error:
        return {"framework": framework, "error": str(error)}
    rows = matrix.judge(matrix.rows({}, [framework], list(spec.VARIANTS), 2), {framework: description})
    whole = {row.spec.variant: row for row in rows}  # of serial's rows the one on all cores
    modes = [
        {
            "mode": variant,
            "available": row.unavailable is None,
            "here": row.unavailable or "yes",
            "implementation": description["modes"][row.spec.mode]["implementation"],
            "needs": NEEDS[row.spec.mode],
            "cut_short": "goes on" if row.spec.starts_over is None else "starts over",
        }
        for variant, row in whole.items()
    ]
    return {**description, "modes": modes, "error": None}


def _folders() -> Iterator[tuple[str, Path]]:
    yield "results", Path.cwd()
    yield "cache", store.folder(None)
    yield "temporary files", Path(tempfile.gettempdir())
    if (shared := Path("/dev/shm")).exists():
        yield "shared memory", shared


def _folder(what: str, path: Path) -> dict[str, Any]:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(there).free // _MIB
    return {"what": what, "path": str(path), "free_mib": free, "writable": os.access(there, os.W_OK)}


def _caches() -> Iterator[tuple[str, Path]]:
    yield "decoded data, downloads and proofs", store.folder(None)
    yield "Keras' own", store.keras_home()
    yield "PyTorch's own", store.torch_home()


def _cache(what: str, path: Path) -> dict[str, Any]:
    if not path.is_dir():
        return {"what": what, "path": str(path), "mib": None}
    sizes = [file.lstat().st_size for file in path.rglob("*") if file.is_file()]
    own = path == store.folder(None)
    taken = sum(item.num_bytes for item in cache.found(path)) if own else sum(sizes)
    return {"what": what, "path": str(path), "mib": taken // _MIB}


def _warnings(found: dict[str, Any]) -> Iterator[str]:
    for each in found["folders"]:
        least = _LEAST_SHARED_MIB if each["what"] == "shared memory" else _LEAST_DISK_MIB
        if each["free_mib"] < least:
            why = ", through which PyTorch's input workers pass batches" if each["what"] == "shared memory" else ""
            yield f"{each['path']} ({each['what']}{why}) has {each['free_mib']:,} MiB free. Make it {least:,} at least."
        if not each["writable"]:
            yield f"{each['path']} ({each['what']}) cannot be written. Choose another folder, or change its rights."
    if found["memory_free_mib"] < _LEAST_MEMORY_MIB:
        yield f"{found['memory_free_mib']:,} MiB of memory are free. A run of both frameworks wants {_LEAST_MEMORY_MIB:,}."
    if found["load"] > _BUSY * found["logical_cores"]:
        yield f"the machine is busy (load {found['load']:.1f}): rely on no time until it is idle."
    if found["cores_allowed"] < 2:
        yield "one core alone: no parallel mode can pay here."
