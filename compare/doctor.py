"""`convtwins doctor`: what this machine offers for a comparison, and what it lacks."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import typer

from common import spec
from common.data import cache as store
from common.machine import machine
from compare.core import exits, wording
from compare.core.errors import LaunchError
from compare.core.interrupt import interruptible
from compare.data import cache
from compare.execution import launch, matrix, options
from compare.reporting.document import Report
from compare.reporting.screen import Paragraph, Screen
from compare.reporting.tables import Column, Table

EXIT_LACKING = 1

_EACH = "a core or GPU for each"
NEEDS = {
    "serial": "one device",
    "data_parallel": f"{_EACH} replica",
    "multi_process": f"{_EACH} rank",
    "sharded_data_parallel": f"{_EACH} replica",
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
"""Load of each core above which times suffer."""


def command(as_json: options.AsJson = False) -> None:
    """Say what this machine has for a comparison: frameworks, devices, modes, threads, memory, disk, caches."""
    with exits.exit_on_error(), interruptible():
        found = examine(list(launch.FRAMEWORKS))
    raise typer.Exit(report(found).deliver(None, as_json=as_json))


def examine(frameworks: Sequence[str]) -> dict[str, Any]:
    """Everything that is known of this machine, JSON-ready. Each framework answers in a process of its own."""
    with launch.describe_all(frameworks, defer_errors=True) as answer:
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
        "has_byte_code": not sys.dont_write_bytecode or _are_compiled(),
        "tools": {name: shutil.which(name) for name in ("git", "ssh")},
        "folders": [_folder(what, path) for what, path in _folders()],
        "caches": [
            _cache("decoded data, downloads and proofs", store.folder(None)),
            _cache("Keras' own", store.keras_home()),
            _cache("PyTorch's own", store.torch_home()),
        ],
        "frameworks": asked,
    }
    return {**found, "warnings": list(_warnings(found))}


def report(found: dict[str, Any]) -> Report:
    modes = _modes(found["frameworks"])
    return Report(
        title="This machine",
        facts=_facts(found),
        findings=[
            ("Folders", _folder_lines(found)),
            *([("Cautions", found["warnings"])] if found["warnings"] else []),
        ],
        tables=[modes] if modes else [],
        values=found,
        screen=_screen(found),
        exit_code=EXIT_LACKING if any(each["error"] for each in found["frameworks"]) else 0,
    )


def _screen(found: dict[str, Any]) -> Screen:
    """What can be trained here, and what is in the way."""
    started = [each for each in found["frameworks"] if not each["error"]]
    lacking: dict[tuple[str, str], list[str]] = {}
    for each in started:
        for mode in each["modes"]:
            if not mode["available"]:
                lacking.setdefault((each["framework"], mode["here"]), []).append(mode["mode"])
    free = ", ".join(f"{each['free_mib']:,} MiB in {each['path']}" for each in found["folders"][:2])
    return Screen(
        subject=[
            "What can be trained on this machine?",
            f"{found['processor']}, {found['cores_allowed']} of {found['logical_cores']} logical cores",
        ],
        answers=[
            *(Paragraph(each["framework"], [_modes_words(each)]) for each in started),
            Paragraph(
                "Not here", [f"{framework} {wording.joined(modes)}: {why}" for (framework, why), modes in lacking.items()]
            ),
            Paragraph("Free", [f"{found['memory_free_mib']:,} of {found['memory_mib']:,} MiB of memory, {free}"]),
            Paragraph(
                "Trouble", [f"{each['framework']}: {each['error']}" for each in found["frameworks"] if each["error"]], "bad"
            ),
            Paragraph("Cautions", found["warnings"], "warn"),
        ],
    )


def _modes_words(each: dict[str, Any]) -> str:
    devices = wording.joined([device["name"] for device in each["devices"]])
    available = sum(mode["available"] for mode in each["modes"])
    return f"{wording.versions(each['versions'])}, on {devices}: {available} of {len(each['modes'])} modes, with 2 replicas"


def _are_compiled() -> bool:
    """Whether the frameworks that are installed here have byte code, which an earlier process has left."""
    packages = [Path(sysconfig.get_path("purelib")) / name for name in ("torch", "tensorflow")]
    return all((package / "__pycache__").exists() for package in packages if package.exists())


def _facts(found: dict[str, Any]) -> list[str]:
    threads = found["threads"]
    tools = ", ".join(f"{name} {'found' if path else 'missing'}" for name, path in found["tools"].items())
    return [
        f"{found['processor']}, {found['cores_allowed']} of {found['logical_cores']} logical cores, load {found['load']:.1f}",
        f"{found['memory_free_mib']:,} of {found['memory_mib']:,} MiB of memory free; allocator: {found['allocator']}; "
        f"{found['open_files']:,} open files",
        f"threads: {threads['of_a_run']} in a run, shared by its replicas, on {threads['physical_cores']} physical cores. "
        "--cores sets fewer. OMP_NUM_THREADS and its like have no effect: no run receives them",
        f"{found['system']}, Python {found['python']}",
        f"{tools}; commit {found['commit'] or 'unknown'}{' with changes' if found['dirty'] else ''}",
        *map(_framework_line, found["frameworks"]),
    ]


def _framework_line(each: dict[str, Any]) -> str:
    if each["error"]:
        return f"{each['framework']}: {each['error']}"
    versions = ", ".join(f"{package} {version}" for package, version in each["versions"].items())
    devices = ", ".join(f"{device['name']} ({device['kind']})" for device in each["devices"])
    options = "; ".join(f"{name}: {', '.join(map(str, option['values']))}" for name, option in each["options"].items())
    return f"{each['framework']}: {versions}; {devices}; switches: {options or 'none'}"


def _folder_lines(found: dict[str, Any]) -> list[str]:
    folders = [
        f"{each['what']}: {each['path']}, {each['free_mib']:,} MiB free{'' if each['writable'] else ', CANNOT BE WRITTEN'}"
        for each in found["folders"]
    ]
    caches = [
        f"{each['what']}: {each['path']}, {'not there' if each['mib'] is None else format(each['mib'], ',') + ' MiB'}"
        for each in found["caches"]
    ]
    return folders + caches


def _modes(frameworks: Sequence[dict[str, Any]]) -> Table | None:
    """What each framework can do here, one line per mode. None if no framework has started."""
    started = [each for each in frameworks if not each["error"]]
    if not started:
        return None
    columns = (
        Column("mode", "mode", pick="0.mode"),
        *(Column(each["framework"], each["framework"], fold=26, pick=f"{place}.here") for place, each in enumerate(started)),
        Column("needs", "needs", pick="0.needs"),
        Column("cut_short", "when cut short", pick="0.cut_short"),
    )
    same_mode = zip(*(each["modes"] for each in started), strict=True)
    return Table.from_items("modes", "Modes, with 2 replicas", columns, same_mode)


def _framework(framework: str, answer: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    try:
        description = answer(framework)
    except LaunchError as error:
        return {"framework": framework, "error": str(error)}
    rows = matrix.check_rows(matrix.build_rows({}, [framework], list(spec.VARIANTS), 2), {framework: description})
    whole = {row.spec.variant: row for row in rows}  # of serial's rows the one on all cores
    modes = [
        {
            "mode": variant,
            "available": row.unavailable is None,
            "here": row.unavailable or "yes",
            "implementation": description["modes"][row.spec.mode]["implementation"],
            "needs": NEEDS[row.spec.mode],
            "cut_short": "goes on" if row.spec.not_resumable_because is None else "starts over",
        }
        for variant, row in whole.items()
    ]
    return {**description, "modes": modes, "error": None}


def _folders() -> Iterator[tuple[str, Path]]:
    yield "results", Path("results").absolute()
    yield "cache", store.folder(None)
    yield "temporary files", Path(tempfile.gettempdir())
    if (shared := Path("/dev/shm")).exists():
        yield "shared memory", shared


def _folder(what: str, path: Path) -> dict[str, Any]:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(there).free // _MIB
    return {"what": what, "path": str(path), "free_mib": free, "writable": os.access(there, os.W_OK)}


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
        if each["free_mib"] < least and each["writable"]:
            why = ", through which PyTorch's input workers pass batches" if each["what"] == "shared memory" else ""
            yield f"{each['path']} ({each['what']}{why}) has {each['free_mib']:,} MiB free. Make it {least:,} at least."
        if not each["writable"]:
            yield f"{each['path']} ({each['what']}) cannot be written. Choose another folder, or change its rights."
    if found["memory_free_mib"] < _LEAST_MEMORY_MIB:
        yield f"{found['memory_free_mib']:,} MiB of memory are free. A run of both frameworks needs {_LEAST_MEMORY_MIB:,}."
    if found["load"] > _BUSY * found["logical_cores"]:
        yield f"the machine is busy (load {found['load']:.1f}). Rely on no time until it is idle."
    if not found["has_byte_code"]:
        yield (
            "PYTHONDONTWRITEBYTECODE is set. So each process compiles its framework's Python anew, which takes seconds. Unset "
            "it once: make does so."
        )
    if found["cores_allowed"] < 2:
        yield "only one core: no parallel mode can pay here."
