"""Start a contestant's twin as a process of its own, and stop it with everything that it started.

This is the only place that names the suite's own twins. Others come with installed packages, see `common.machine.plugins`.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import psutil

from common import USER_PATH
from common.artifacts.schema import Environment
from common.machine import environment, heartbeat, plugins
from common.machine.machine import PROJECT_ROOT
from common.machine.private_folder import PrivateFolder
from common.processes import signals, watchdog
from common.processes.process_spec import HELD_SECONDS, SETTLED
from compare.core import wording
from compare.core.errors import LaunchError, UnfitError
from compare.execution import contestants

FRAMEWORKS = {"pytorch": "pytorch_impl", "tensorflow": "tensorflow_impl"}
"""The suite's own twins."""

OWN = {"dask": "common.processes.dask_scan_process"}
"""The suite's own work that is measured beside the frameworks, in processes started the same way."""

# Asks the kernel to end the process with its parent (PR_SET_PDEATHSIG, Linux), then becomes the twin. A setting made
# between fork and exec would need preexec_fn, which can deadlock in a threaded parent; this one survives the exec.
_TIED_TO_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]): sys.exit(1)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""

_GRACE_SECONDS = 5.0
INTERRUPTED_GRACE_SECONDS = 0.5
"""For a process that Ctrl-C ends: it has nothing to write, and the user waits."""
_DESCRIBE_SECONDS = 300.0
_POLL_SECONDS = 0.5
"""Between two looks at what is running."""
_PROBE_SECONDS = 60.0
_LAST_LINES = 8
_REASON_LENGTH = 400
_STACK_OF_NATIVE_CODE = re.compile(r"\s*(PC: )?@ +0x|frame #\d+: |\*\*\* Check failure stack trace")
LACKED_MEMORY = "; out of memory: the kernel ended a process for lack of it meanwhile"


DESCRIPTIONS: dict[str, dict[str, Any]] = {}
"""Descriptions of twins, by twin and interpreter. Each is asked once per process: importing a framework takes seconds."""


def describe(contestant: str) -> dict[str, Any]:
    """A contestant's description on this machine: versions, devices, modes, options.

    Raises:
        LaunchError: its interpreter cannot be used, or the twin failed or hung, or did not print a JSON object.
    """
    with asked([contestant]) as answer:
        return answer(contestant)


@contextlib.contextmanager
def asked(names: Sequence[str], *, each_apart: bool = False) -> Generator[Callable[[str], dict[str, Any]]]:
    """Ask contestants to describe themselves, at the same time. If the block raises, none is waited for.

    Args:
        names: of the contestants.
        each_apart: whether one that cannot run raises when it is asked for, and the others answer.

    Yields:
        A function that returns the answer of one of them, as `describe` does.

    Raises:
        UnfitError: an interpreter or its framework cannot be used. No framework was imported.
    """
    refused: dict[str, LaunchError] = {}
    missing = {_described_as(name): name for name in reversed(names) if _described_as(name) not in DESCRIPTIONS}
    for key, name in list(missing.items()):
        try:
            _refuse(name)
        except LaunchError as error:
            if not each_apart:
                raise
            refused[key] = error
            del missing[key]
    with contextlib.ExitStack() as started:
        processes: dict[str, _Short] = {}
        for key, name in missing.items():
            with signals.deferred():
                processes[key] = started.enter_context(_Short(_command(name, ["describe"])))

        def answer(name: str) -> dict[str, Any]:
            if (key := _described_as(name)) in refused:
                raise refused[key]
            if key not in DESCRIPTIONS:
                DESCRIPTIONS[key] = _description(name, processes[key])
            return DESCRIPTIONS[key]

        yield answer


def _described_as(name: str) -> str:
    """Key of a contestant's description. Switches do not change it."""
    contestant = contestants.named(name)
    return contestant.twin if contestant.python is None else f"{contestant.twin}@{contestant.python}"


def _refuse(name: str) -> None:
    """Look whether a contestant can run, as far as versions say. The suite's own twins here are looked at without a process.

    Raises:
        UnfitError: it cannot.
    """
    contestant = contestants.named(name)
    if contestant.python is not None or contestant.twin not in FRAMEWORKS:
        probe(name)
        return
    if (refusal := environment.refused_here(FRAMEWORKS[contestant.twin])) is not None:
        raise UnfitError(
            f"{name} cannot run here: {refusal} Received: {sys.executable}. Install convtwins[{contestant.twin}], or choose "
            "other frameworks."
        )


def probe(name: str) -> dict[str, Any]:
    """Look at a contestant's interpreter without importing its framework: see `common.machine.environment`.

    Raises:
        UnfitError: the interpreter is missing, broken, of another Python, or without a version that the twin supports.
    """
    found = inspect(name)
    if found["refusal"] is not None:
        raise UnfitError(f"The interpreter of {name} cannot run it: {found['refusal']} Received: {interpreter(name)}.")
    return found


def inspect(name: str, *options: str) -> dict[str, Any]:
    """The same. `refusal` says why the interpreter cannot run the twin. None: it can, as far as versions say.

    Raises:
        UnfitError: the interpreter is missing, broken or of another Python.
    """
    python = interpreter(name)
    version, said, code = platform.python_version(), "", 0
    if python != sys.executable:
        ask = "import platform; print(platform.python_version())"
        version, said, code = _output(name, [python, "-I", "-S", "-c", ask])
    if code != 0 or not re.match(r"\d+\.\d+", version):
        received = _last_lines(said) or version[:200].strip() or "nothing"
        raise UnfitError(
            f"The interpreter of {name} does not work ({exit_words(code)}): {python}. Received: {received}. "
            "Name the python of an environment."
        )
    if (refusal := environment.unsupported({"Python": environment.PYTHONS}, {"Python": version.strip()})) is not None:
        raise UnfitError(f"The interpreter of {name} cannot run it: {refusal} Received: {python}.")
    twin = contestants.named(name).twin
    package = FRAMEWORKS.get(twin, f"{plugins.TWINS}:{twin}")
    printed, said, code = _output(name, [python, "-m", environment.__name__, package, *options])
    try:
        found = dict(json.loads(printed))
    except (ValueError, TypeError):
        raise UnfitError(
            f"The interpreter of {name} cannot list what is installed ({exit_words(code)}): {python}.\n{_last_lines(said)}"
        ) from None
    if twin not in FRAMEWORKS and twin not in found["brought"]:
        close = difflib.get_close_matches(twin, [*FRAMEWORKS, *found["brought"]], n=1)
        found["refusal"] += f" Did you mean {close[0]}?" if close else ""
    return found


def environment_of(name: str) -> Environment:
    """A contestant's environment as it is now. The framework is not imported, so its libraries are left out.

    Raises:
        LaunchError: as `probe`.
    """
    found = probe(name)
    return Environment.model_validate({field: found[field] for field in Environment.model_fields})


def interpreter(name: str) -> str:
    """Path of a contestant's interpreter."""
    return contestants.named(name).python or sys.executable


def ask(name: str, program: str, words: Sequence[str], *, folder: Path | None, environment: Mapping[str, str]) -> str:
    """Run a short program in a contestant's interpreter, in this folder and environment. Returns what it prints.

    Raises:
        LaunchError: it fails or hangs.
    """
    printed, said, code = _output(name, [interpreter(name), "-c", program, *words], folder, environment)
    if code != 0:
        raise LaunchError(f"The interpreter of {name} does not work ({exit_words(code)}).\n{_last_lines(said)}")
    return printed


def _output(
    name: str, command: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, str, int]:
    """(stdout, stderr, exit code) of a short command of a contestant's interpreter."""
    try:
        with contextlib.ExitStack() as started:
            with signals.deferred():
                process = started.enter_context(_Short(command, folder, environment))
            return *process.communicate(timeout=_PROBE_SECONDS), process.returncode
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"The interpreter of {name} gave no answer in {_PROBE_SECONDS:.0f} s: {command[0]}. Name the python of an "
            "environment."
        ) from None
    except OSError as error:
        raise UnfitError(
            f"The interpreter of {name} cannot be started: {error.strerror}. Received: {command[0]}. Name the python of an "
            "environment, or make one with `env create`."
        ) from None


class _Short(subprocess.Popen[str]):
    """A process whose output is read, and which is killed where its `with` block ends before it."""

    def __init__(
        self, command: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.kills = memory_kills()
        super().__init__(
            command,
            cwd=folder,
            env={**_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def __exit__(self, *raised: Any) -> None:
        self.kill()
        super().__exit__(*raised)


def _description(name: str, process: _Short) -> dict[str, Any]:
    try:
        printed, said = process.communicate(timeout=_DESCRIBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{name} gave no description in {_DESCRIBE_SECONDS:.0f} s. Run: {_shown(name)}") from None
    last_lines = _last_lines(said)
    if process.returncode != 0:
        ending = exit_words(process.returncode)
        if process.returncode == -signal.SIGKILL and memory_kills() > process.kills:
            ending += LACKED_MEMORY
        raise LaunchError(f"{name} cannot describe itself ({ending}). Run: {_shown(name)}\n{last_lines}".rstrip())
    try:
        description = json.loads(printed)
    except json.JSONDecodeError:
        description = None
    if not isinstance(description, dict):
        raise LaunchError(
            f"{name} must describe itself as a JSON object. Received: {printed[:200]!r}. Run: {_shown(name)}\n"
            f"{last_lines}".rstrip()
        )
    found: dict[str, Any] = description
    if (refusal := environment.unsupported(found.get("supported", {}), found.get("versions", {}))) is not None:
        raise UnfitError(f"The interpreter of {name} cannot run it: {refusal} Received: {interpreter(name)}.")
    return found


def _last_lines(said: str) -> str:
    return "\n".join(said.splitlines()[-_LAST_LINES:])


class Started(subprocess.Popen[bytes]):
    """A watched process in a session of its own, with its own temporary folder. With `talks`, stdin and stdout are pipes."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        root: Path | None = None,
        *,
        talks: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
        folder: Path | None = None,
    ) -> None:
        self.watched = watchdog.Watched()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self.temporary = PrivateFolder()
            try:
                super().__init__(
                    command,
                    cwd=folder or root,
                    env={**_environment(root), **environment, **self.watched.environment, **self.temporary.environment},
                    stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if talks else file,
                    stderr=file,
                    pass_fds=self.watched.descriptors,
                    start_new_session=True,
                )
            except BaseException:
                self.release()
                raise
        self.watched.pid = self.pid

    def release(self) -> None:
        """Let go of its files, once it has ended. A second call does nothing."""
        self.watched.close()
        self.temporary.remove()


def start(
    name: str,
    arguments: Sequence[str],
    *,
    log: Path,
    root: Path | None = None,
    talks: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
    folder: Path | None = None,
) -> Started:
    """Start `<python> -m <twin> arguments...` of a contestant in a session of its own.

    Its stdout and stderr go to the log file. With `talks`, its stdin and stdout are connected to this process, which closes
    them. The process ends with the calling thread, so call from the main thread. `stop` ends it earlier, with all that it
    started. The working directory is `folder`. None: the caller's, or `root` if the code of another checkout is started.
    `environment` is added to what every twin gets.

    Call it within `signals.deferred`, and note the process there for whoever stops it.
    """
    return Started(_command(name, arguments), log, root, talks=talks, environment=environment, folder=folder)


def stop(process: Started, *, grace_seconds: float | None = None) -> None:
    """End a started process and all its descendants: SIGTERM, five seconds' wait, SIGKILL. A second call does nothing."""
    grace_seconds = _GRACE_SECONDS if grace_seconds is None else grace_seconds
    descendants = _descendants(process)
    _signal_all(process, descendants, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_seconds)
    _, alive = psutil.wait_procs(descendants, timeout=min(grace_seconds, 1.0))
    _signal_all(process, alive, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # of one that is held, and ends once it is let go
        process.wait(HELD_SECONDS)
    process.release()


def wait(
    process: Started, *, poll_seconds: float, watch: Callable[[], object], hang_seconds: float, folder: Path
) -> str | None:
    """Wait until a started process has ended. A process that hangs is stopped.

    Args:
        process: from `start`.
        poll_seconds: between two calls of `watch`.
        watch: called while it works.
        hang_seconds: limit of a hang, see `common.processes.watchdog`.
        folder: gets the stacks of a process that hangs.

    Returns:
        None if it ended without a hang, else how it hung, in words.
    """
    dog = watchdog.Watchdog([watchdog.Member("the process", process.watched)], hang_seconds)
    while True:
        try:
            process.wait(poll_seconds)
            return None
        except subprocess.TimeoutExpired:
            watch()
        if (words := _hang(process, dog, folder)) is not None:
            return words


def _hang(process: Started, dog: watchdog.Watchdog, folder: Path) -> str | None:
    """How a process hangs, in words, after it was stopped. None if it works."""
    if (hang := dog.look()) is None:
        return None
    try:
        (path,) = watchdog.save_stacks(hang.stacks, ["rank 0"], folder)
        seen = f"; see {path.name}"
    except OSError as error:
        seen = f"; its stacks cannot be written ({error})"
    stop(process, grace_seconds=0.0)
    return f"{hang.words}{seen}"


class Call(NamedTuple):
    """`python -m <twin> arguments...`, to be waited for."""

    framework: str
    arguments: Sequence[str]
    log: Path
    hang_seconds: float = heartbeat.HANG_SECONDS
    environment: Mapping[str, str] = MappingProxyType({})
    """Besides what every twin gets."""


def call(name: str, arguments: Sequence[str], *, log: Path, hang_seconds: float = heartbeat.HANG_SECONDS) -> int:
    """Start a contestant's twin and wait for it. Nothing of it is left running, whatever happens.

    Returns:
        Its exit code. Negative: the signal that ended it. A hung twin is ended by SIGTERM or SIGKILL. The log states this.
    """
    waiting, codes = [Call(name, arguments, log, hang_seconds)], list[int]()
    call_each(lambda: waiting.pop() if waiting else None, lambda _, code: codes.append(code))
    return codes[0]


def call_each(
    following: Callable[[], Call | None],
    ended: Callable[[Call, int], object],
    at_once: int = 1,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Start twins and wait for all. Nothing of them is left running, whatever happens.

    Args:
        following: the next call, or None if there is none before another has ended.
        ended: gets each call with its exit code, see `call`. If it raises, the other twins are stopped.
        at_once: how many side by side. More than one is for work that nobody times.
        meanwhile: called a few times a second.
    """
    running: list[tuple[Call, Started, watchdog.Watchdog]] = []
    try:
        while True:
            while len(running) < at_once and (wanted := following()) is not None:
                with signals.deferred():
                    process = start(wanted.framework, wanted.arguments, log=wanted.log, environment=wanted.environment)
                    dog = watchdog.Watchdog([watchdog.Member("the process", process.watched)], wanted.hang_seconds)
                    running.append((wanted, process, dog))
            if not running:
                return
            for one in list(running):
                each, process, dog = one
                if _has_ended(each, process, dog, _POLL_SECONDS / len(running)):
                    running.remove(one)
                    ended(each, outcome(each, process.returncode))
            meanwhile()
    except BaseException:
        with contextlib.ExitStack() as stopping:  # a signal ends the waiting for one, and the others are stopped all the same
            for _, process, _ in running:
                stopping.callback(stop, process, grace_seconds=INTERRUPTED_GRACE_SECONDS)
        raise


def _has_ended(each: Call, process: Started, dog: watchdog.Watchdog, seconds: float) -> bool:
    """Wait for a twin, but no longer than so many seconds. One that hangs is stopped, and its log says how it hung."""
    hang = None
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        if (hang := _hang(process, dog, each.log.with_suffix(".stacks"))) is None:
            return False
    stop(process)
    if hang is not None:
        with each.log.open("a", encoding="utf-8") as file:
            file.write(f"{hang}\n")
    return True


def outcome(call: Call, code: int) -> int:
    """The exit code of a call that has ended. It is 1, and the log says why, if code 0 left a promised file unwritten."""
    if code == 0 and (missing := [path for path in promised(call.arguments) if not path.exists()]):
        with call.log.open("a", encoding="utf-8") as file:
            file.write(f"It ended with exit code 0 and has not written {missing[0].name}.\n")
        return 1
    return code


def promised(arguments: Sequence[str]) -> list[Path]:
    """The files that a command of a twin writes if it does its work."""
    return [Path(following) for word, following in itertools.pairwise(arguments) if word == "--out"]


def last_line(log: Path) -> str:
    """The last line of a twin's log: its reason, or what ended it. Empty if it printed nothing. A stack trace is no reason."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    said = (line for line in reversed(lines) if line.strip() and not _STACK_OF_NATIVE_CODE.match(line))
    return next((wording.one_line(line)[:_REASON_LENGTH] for line in said), "")


def is_full(folder: Path) -> bool:
    """Whether the disk of a folder could take no more than a MiB."""
    return shutil.disk_usage(folder).free < 2**20


def full_disk_words(folder: Path) -> str:
    """That the disk of a folder is full, after how a process ended. Empty if it is not."""
    return f"; the disk of {folder} is full" if is_full(folder) else ""


def memory_kills() -> int:
    """Processes that the kernel has killed for lack of memory since the machine started. 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def exit_words(code: int) -> str:
    """An exit code in words: `exit code 1`, or `killed by SIGKILL`."""
    return f"exit code {code}" if code >= 0 else f"killed by {signals.name(-code)}"


def _command(name: str, arguments: Sequence[str]) -> list[str]:
    return _tied(interpreter(name), ["-m", *_module(name), *arguments])


def _tied(python: str, words: Sequence[str]) -> list[str]:
    """A command whose process ends with this one, where the system can do that."""
    if sys.platform != "linux":
        return [python, *words]
    return [python, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *words]


def of_suite(name: str, *words: str, stderr: int | None = None) -> subprocess.Popen[str]:
    """Start a module of the suite. Its stdin and stdout are pipes, and it ends with this process."""
    command, pipe = _tied(sys.executable, ["-m", name, *words]), subprocess.PIPE
    return subprocess.Popen(command, env=_environment(), stdin=pipe, stdout=pipe, stderr=stderr, text=True, errors="replace")


def _shown(name: str) -> str:
    return " ".join([contestants.named(name).python or "python", "-m", *_module(name), "describe"])


def module(twin: str) -> list[str]:
    """The words behind `python -m` that run a twin."""
    own = FRAMEWORKS.get(twin)
    return ["common.processes.plugin", twin] if own is None else [own]


def _module(name: str) -> list[str]:
    """The same, of a contestant or of the suite's own work."""
    return [OWN[name]] if name in OWN and not contestants.entered([name]) else module(contestants.named(name).twin)


def _environment(root: Path | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not SETTLED.fullmatch(name)}
    # An empty entry would be the caller's folder. That comes last.
    paths = [str(root or PROJECT_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return kept | {
        "PYTHONPATH": os.pathsep.join(paths),
        USER_PATH: str(Path.cwd()) if root is None else "",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Descendants, including those in another session. If the process has ended: what is left of its session."""
    if process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(process.pid).children(recursive=True)
    return [each for each in psutil.process_iter() if _session(each) == process.pid]


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except OSError:  # it has ended, or is not ours to ask
        return None


def _signal_all(process: subprocess.Popen[bytes], descendants: list[psutil.Process], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)  # its session: the group's id is the process's
    for descendant in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendant.send_signal(number)
