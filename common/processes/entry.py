"""The command line that both twins share: `python -m <twin> describe | models | run | ...`.

A twin's `__main__` gives its parts as callables. So the CPU budget and the allocator are set before its framework is imported,
and the launcher of several ranks never imports it.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from common import spec
from common.artifacts import results
from common.data import sources
from common.machine import environment, heartbeat, machine, placement
from common.models import user_code
from common.processes import command_line, commands, ranks, supervisor
from common.processes.commands import refused
from common.processes.twin import EXIT_FAILED, EXIT_OK, EXIT_TERMINATED, Job, Rendezvous, Switches, Twin
from common.spec import Spec, plain_values
from common.training import inference, timing

__all__ = ["EXIT_FAILED", "EXIT_OK", "Rendezvous", "Switches", "Twin", "leave", "main"]

OF_THE_PROCESS = ("mode", "replicas", "cores", "device", "switches", "framework_options", "hosts")
"""Fields of the spec that decide the threads, devices and ranks of a process. They are set once."""

_NOT_FLUSHED = 120
"""Exit code of an interpreter whose output could not be written."""

_WITHOUT_SPEC = {
    "preprocess": commands.preprocess,
    "serve-trials": commands.serve,
    "match": commands.match,
    **dict.fromkeys(inference.COMMANDS, commands.use_model),
}


def main(
    framework: str,
    load_twin: Callable[[], Twin],
    rendezvous: Rendezvous,
    switches: Switches,
    argv: Sequence[str] | None = None,
) -> int:
    """Do one command.

    Args:
        rendezvous: how ranks find each other.
        switches: what a process must set before the import.
        argv: the words behind `python -m <twin>`. None: those of this process.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = command_line.parse(framework, words)
    if "RANK" in os.environ:
        sys.excepthook = ranks.print_exception
    try:
        return _do(framework, lambda: _loaded(load_twin), rendezvous, switches, arguments, words)
    except SystemExit as ending:
        if ending.code:
            raise
        # The user's own code called sys.exit. Exit code 0 would be false.
        print("The process ended before its work was done. Take sys.exit out of the model's module.", file=sys.stderr)
        return EXIT_FAILED


def _do(
    framework: str,
    load_twin: Callable[[], Twin],
    rendezvous: Rendezvous,
    switches: Switches,
    arguments: argparse.Namespace,
    words: list[str],
) -> int:
    if arguments.command == "describe":
        twin = load_twin()
        described = twin.describe()
        own = {"formats": twin.inference.suffixes, "environment": _environment(described)}
        print(json.dumps({**described, **own}, indent=1))
        return EXIT_OK
    supervisor.die_with_parent()
    heartbeat.attach()
    signal.signal(signal.SIGTERM, _leave)
    if arguments.command in _WITHOUT_SPEC:
        return _WITHOUT_SPEC[arguments.command](framework, load_twin, arguments)
    try:
        rendezvous.adopt()
        read = _read(arguments.spec)
        others = [(_of_same_process(other.spec, read), other) for other in arguments.then]
    except spec.SpecError as error:
        return refused(error)
    commands.choose_device(read.device)
    if arguments.command == "models":
        summary = load_twin().summarize(sources.architecture_of(read))
        arguments.out.write_text(json.dumps(summary, indent=1), encoding="utf-8")
        return EXIT_OK
    package = getattr(rendezvous, "__package__", None)
    job = Job(framework, read, arguments, words, timing.process_started(), package)
    try:
        environments = rendezvous.environments(read)
        is_rank = ranks.is_rank(read, environments)
        _check_command(job, others=bool(others))
    except spec.SpecError as error:
        return refused(error)
    if arguments.command == "run" and placement.is_first_rank() and timing.STARTED_VARIABLE not in os.environ:
        results.clear(arguments.out)
    if environments and not is_rank:
        return ranks.launch(job, environments, rendezvous.WAITING)
    return _in_this_process(job, load_twin, switches, others, is_rank=is_rank)


def _loaded(load_twin: Callable[[], Twin]) -> Twin:
    """Import the framework without garbage collection, which takes a sixth of the time: an import makes hardly any garbage."""
    gc.disable()
    try:
        return load_twin()
    finally:
        gc.enable()


def leave(code: int, *, ranks_at_once: bool = True) -> NoReturn:
    """End the process with the exit code of `main`, without interpreter teardown, which takes up to half a second.

    Functions registered with `atexit` run. Threads that are no daemons are waited for. Those of a rank are not: they exchanged
    tensors for it and may still ask for the interpreter, which would end the process by SIGABRT when all is written.

    Args:
        ranks_at_once: False: a rank ends as every interpreter does. For a framework whose ranks may still need each other.
    """
    if "RANK" in os.environ:
        if not ranks_at_once:
            sys.exit(code)
    else:
        # A user's code may have files open, and a profiler or a debugger writes at the very end.
        if user_code.is_imported() or sys.gettrace() is not None or sys.getprofile() is not None:
            sys.exit(code)
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]  # as the interpreter does itself
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # the same
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError):  # there is none, or it is closed
            continue
        except OSError:
            code = code or _NOT_FLUSHED
    os._exit(code)


def _read(path: Path) -> Spec:
    """A spec, judged again for this machine.

    Raises:
        SpecError: the file cannot be read, or is not a spec.
    """
    try:
        return spec.from_json(plain_values.read_text(path)).with_fields()
    except (OSError, ValueError) as error:
        raise spec.SpecError(f"{path} is not a spec: {error}") from None


def _of_same_process(path: Path, first: Spec) -> Spec:
    """A spec of `--then`.

    Raises:
        SpecError: it needs another process than the first spec.
    """
    read = _read(path)
    if differing := [name for name in OF_THE_PROCESS if getattr(read, name) != getattr(first, name)]:
        raise spec.SpecError(f"--then takes specs for one process. {path} has another {', '.join(differing)}.")
    return read


def _check_command(job: Job, *, others: bool) -> None:
    """Refuse a spec that the command cannot take.

    Raises:
        SpecError: it has more replicas than the command takes, or a server that another spec cannot use.
    """
    if job.arguments.command == "layers" and job.spec.mode != "serial":
        raise spec.SpecError(f"layers times one replica. Received: mode {job.spec.mode}. Use serial.")
    if job.arguments.command == "exchanges" and job.spec.mode not in commands.EXCHANGING_MODES:
        modes = " or ".join(commands.EXCHANGING_MODES)
        raise spec.SpecError(f"exchanges times processes. Received: mode {job.spec.mode}. Use {modes}.")
    if others and job.spec.mode == "parameter_server":
        raise spec.SpecError(f"--then takes no spec of mode {job.spec.mode}. Its server holds the parameters of one run.")


def _in_this_process(
    job: Job,
    load_twin: Callable[[], Twin],
    switches: Switches,
    others: list[tuple[Spec, argparse.Namespace]],
    *,
    is_rank: bool,
) -> int:
    """Set the process up, import the framework, and do the command."""
    read, arguments = job.spec, job.arguments
    cpus = machine.cpu_budget(read.cores)
    machine.set_affinity(ranks.own_cpus(cpus, read))
    allocator = switches.prepare(read)
    twin = load_twin()
    description = twin.describe()
    try:
        refusal = spec.check_against(read, description, placement.replicas_that_share_gpus() if is_rank else None)
    except spec.SpecError as error:
        refusal = str(error)
    if refusal is not None:
        return refused(refusal)
    if arguments.command == "layers":
        return commands.time_layers(twin, read, arguments)
    if arguments.command == "exchanges":
        return commands.time_exchanges(twin, read, arguments)
    if arguments.command == "trace":
        twin.configure(read)
        commands.trace(twin, [(read, arguments), *others], description["options"])
        return EXIT_OK
    options = description["options"]
    held = {"allocator": allocator, "cpus": cpus, "physical_cores": machine.physical_cores(cpus)}
    facts = {
        "machine": {**machine.describe(), **held},
        "environment": _environment(description),
        "switches": spec.resolve_switches(read, options),
        "reduced": spec.reduced_precision_switches(read, options),
        "conditions": spec.conditions(read, description) | {"allocator": allocator},
    }
    return commands.run(job, twin, cpus, facts)


def _environment(description: dict[str, Any]) -> dict[str, Any]:
    """This process's environment, with the libraries that the framework names."""
    found = environment.describe()
    return {**found, "libraries": found["libraries"] | description.get("libraries", {})}


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)
