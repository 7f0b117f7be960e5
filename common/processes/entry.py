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
from common.machine import environment, heartbeat, machine, parent_process, placement
from common.models import user_code
from common.processes import command_line, commands, ranks
from common.processes.commands import print_refusal
from common.processes.twin import EXIT_FAILED, EXIT_OK, EXIT_TERMINATED, Rendezvous, Switches, Twin, TwinJob
from common.spec import Spec, plain_values
from common.training import inference, timing

__all__ = ["EXIT_FAILED", "EXIT_OK", "Rendezvous", "Switches", "Twin", "exit_without_teardown", "main"]

PROCESS_WIDE_FIELDS = ("mode", "replicas", "cores", "device", "switches", "framework_options", "hosts")
"""Fields of the spec that decide the threads, devices and ranks of a process. A process sets them once."""

_EXIT_NOT_FLUSHED = 120
"""Exit code of an interpreter whose output could not be written."""

_COMMANDS_WITHOUT_SPEC = {
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
    """Run one command.

    Args:
        rendezvous: how ranks find each other.
        switches: switches that a process must set before the import.
        argv: the arguments of `python -m <twin>`. None: those of this process.

    Returns:
        The exit code.
    """
    command_line_words = sys.argv[1:] if argv is None else list(argv)
    arguments = command_line.parse(framework, command_line_words)
    if placement.is_rank():
        sys.excepthook = ranks.print_exception
    try:
        return _dispatch(framework, lambda: _load_without_gc(load_twin), rendezvous, switches, arguments, command_line_words)
    except SystemExit as error:
        if error.code:
            raise
        # The user's own code called sys.exit. Exit code 0 would be false.
        print("The process ended before its work was done. Take sys.exit out of the model's module.", file=sys.stderr)
        return EXIT_FAILED


def _dispatch(
    framework: str,
    load_twin: Callable[[], Twin],
    rendezvous: Rendezvous,
    switches: Switches,
    arguments: argparse.Namespace,
    argv: list[str],
) -> int:
    if arguments.command == "describe":
        twin = load_twin()
        description = twin.describe()
        details = {"formats": twin.inference.suffixes, "environment": _environment(description)}
        print(json.dumps({**description, **details}, indent=1))
        return EXIT_OK
    parent_process.die_with_parent()
    heartbeat.attach()
    signal.signal(signal.SIGTERM, _exit_on_signal)
    if arguments.command in _COMMANDS_WITHOUT_SPEC:
        return _COMMANDS_WITHOUT_SPEC[arguments.command](framework, load_twin, arguments)
    try:
        rendezvous.adopt()
        run_spec = _read_spec(arguments.spec)
        following = [(_read_following_spec(other.spec, run_spec), other) for other in arguments.then]
    except spec.SpecError as error:
        return print_refusal(error)
    commands.choose_device(run_spec.device)
    if arguments.command == "models":
        summary = load_twin().summarize(sources.architecture_of(run_spec))
        arguments.out.write_text(json.dumps(summary, indent=1), encoding="utf-8")
        return EXIT_OK
    package = getattr(rendezvous, "__package__", None)
    job = TwinJob(framework, run_spec, arguments, argv, timing.process_started(), package)
    try:
        environments = rendezvous.environments(run_spec)
        is_rank = ranks.is_rank(run_spec, environments)
        _check_command(job, has_following=bool(following))
    except spec.SpecError as error:
        return print_refusal(error)
    if arguments.command == "run" and placement.is_first_rank() and timing.STARTED_VARIABLE not in os.environ:
        results.clear(arguments.out)
    if environments and not is_rank:
        return ranks.launch(job, environments, rendezvous.WAITING)
    return _in_this_process(job, load_twin, switches, following, is_rank=is_rank)


def _load_without_gc(load_twin: Callable[[], Twin]) -> Twin:
    """Import the framework without garbage collection, which takes a sixth of the time: an import makes hardly any garbage."""
    gc.disable()
    try:
        return load_twin()
    finally:
        gc.enable()


def exit_without_teardown(code: int, *, ranks_too: bool = True) -> NoReturn:
    """End the process with the exit code of `main`, without interpreter teardown, which takes up to half a second.

    Functions registered with `atexit` run. Threads that are no daemons are waited for. Those of a rank are not: they exchanged
    tensors for it and may still ask for the interpreter, which would end the process by SIGABRT when all is written.

    Args:
        ranks_too: False: a rank ends as every interpreter does. For a framework whose ranks may still need each other.
    """
    if placement.is_rank():
        if not ranks_too:
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
            code = code or _EXIT_NOT_FLUSHED
    os._exit(code)


def _read_spec(path: Path) -> Spec:
    """Read a spec, and validate it again for this machine."""
    try:
        return spec.from_json(plain_values.read_text(path)).with_fields()
    except (OSError, ValueError) as error:
        raise spec.SpecError(f"{path} is not a spec: {error}") from None


def _read_following_spec(path: Path, first: Spec) -> Spec:
    """Read a spec of `--then`."""
    run_spec = _read_spec(path)
    if differing := [name for name in PROCESS_WIDE_FIELDS if getattr(run_spec, name) != getattr(first, name)]:
        raise spec.SpecError(f"--then takes specs for one process. {path} has another {', '.join(differing)}.")
    return run_spec


def _check_command(job: TwinJob, *, has_following: bool) -> None:
    """Refuse a spec that the command cannot take."""
    if job.arguments.command == "layers" and job.spec.is_parallel:
        raise spec.SpecError(f"layers times one replica. Received: mode {job.spec.mode}. Use serial.")
    if job.arguments.command == "exchanges" and job.spec.traits.exchange is None:
        modes = " or ".join(spec.MODES.names(lambda mode: mode.exchange is not None))
        raise spec.SpecError(f"exchanges times processes. Received: mode {job.spec.mode}. Use {modes}.")
    if has_following and job.spec.traits.has_server:
        raise spec.SpecError(f"--then takes no spec of mode {job.spec.mode}. Its server holds the parameters of one run.")


def _in_this_process(
    job: TwinJob,
    load_twin: Callable[[], Twin],
    switches: Switches,
    following: list[tuple[Spec, argparse.Namespace]],
    *,
    is_rank: bool,
) -> int:
    """Set the process up, import the framework, and run the command."""
    run_spec, arguments = job.spec, job.arguments
    cpus = machine.cpu_budget(run_spec.cores)
    machine.set_affinity(ranks.rank_cpus(cpus, run_spec))
    allocator = switches.prepare(run_spec)
    twin = load_twin()
    description = twin.describe()
    try:
        refusal = spec.check_against(run_spec, description, placement.replicas_that_share_gpus() if is_rank else None)
    except spec.SpecError as error:
        refusal = str(error)
    if refusal is not None:
        return print_refusal(refusal)
    if arguments.command == "layers":
        return commands.time_layers(twin, run_spec, arguments)
    if arguments.command == "exchanges":
        return commands.time_exchanges(twin, run_spec, arguments)
    if arguments.command == "trace":
        twin.configure(run_spec)
        commands.trace(twin, [(run_spec, arguments), *following], description["options"])
        return EXIT_OK
    options = description["options"]
    resources = {"allocator": allocator, "cpus": cpus, "physical_cores": machine.physical_cores(cpus)}
    facts = {
        "machine": {**machine.describe(), **resources},
        "environment": _environment(description),
        "switches": spec.resolve_switches(run_spec, options),
        "reduced": spec.reduced_precision_switches(run_spec, options),
        "conditions": spec.conditions(run_spec, description) | {"allocator": allocator},
    }
    return commands.run(job, twin, cpus, facts)


def _environment(description: dict[str, Any]) -> dict[str, Any]:
    """Describe this process's environment, with the libraries that the framework names."""
    current = environment.describe()
    return {**current, "libraries": current["libraries"] | description.get("libraries", {})}


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)
