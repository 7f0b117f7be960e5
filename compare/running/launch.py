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
from typing import IO, Any, NamedTuple, TypeVar

import psutil

from common import USER_PATH
from common.artifacts.schema import Environment
from common.machine import environment, heartbeat, plugins
from common.machine.machine import PROJECT_ROOT
from common.machine.parent_process import tied_to_parent
from common.machine.private_folder import PrivateFolder
from common.processes import signals
from common.processes.process_spec import KILL_SECONDS, RESERVED_VARIABLES
from common.watching import watchdog
from compare.cli import wording
from compare.cli.errors import LaunchError, NoAnswerError, UnfitError
from compare.running.contestants import Checkout, Contestant

FRAMEWORKS = {"pytorch": "pytorch_impl", "tensorflow": "tensorflow_impl"}
"""The suite's own twins."""

SUITE_WORKERS = {"dask": "common.processes.dask_scan_process"}
"""{name: module} of the suite's own work that is measured beside the frameworks, in processes started the same way."""

_GRACE_SECONDS = 5.0
INTERRUPTED_GRACE_SECONDS = 0.5
"""Grace period of a process that Ctrl-C ends: it has nothing to write, and the user waits."""
_DESCRIBE_SECONDS = 300.0
_POLL_SECONDS, _LOOK_SECONDS = 0.5, 0.25
"""Interval between two polls of the running processes, and between two looks at a single one."""
PROBE_SECONDS = 60.0
"""Limit of an answer of an interpreter."""
PYTHON_ADVICE = "Name the python of an environment, or make one with `env create`."
"""Advice about an interpreter that is not there."""
_LAST_LINES = 8
_REASON_LENGTH = 400
_STACK_OF_NATIVE_CODE = re.compile(r"\s*(PC: )?@ +0x|frame #\d+: |\*\*\* Check failure stack trace")
LACKED_MEMORY = "; out of memory: the kernel ended a process for lack of it meanwhile"


def check_usable(contestant: Contestant) -> None:
    """Check that a contestant can run, as far as versions say. The suite's own twins are checked without a process."""
    if contestant.python is not None or contestant.twin not in FRAMEWORKS:
        probe(contestant)
        return
    if (refusal := environment.why_unusable_here(FRAMEWORKS[contestant.twin])) is not None:
        raise UnfitError(
            f"{contestant.name} cannot run here: {refusal} Received: {sys.executable}. Install "
            f"convtwins[{contestant.twin}], or choose other frameworks."
        )


def probe(contestant: Contestant) -> dict[str, Any]:
    """Describe a contestant's interpreter without importing its framework: see `common.machine.environment`."""
    facts = inspect(contestant)
    if facts["refusal"] is not None:
        raise UnfitError(
            f"The interpreter of {contestant.name} cannot run it: {facts['refusal']} Received: {contestant.interpreter}."
        )
    return facts


def inspect(contestant: Contestant, *options: str, answer_seconds: float = PROBE_SECONDS) -> dict[str, Any]:
    """Describe a contestant's interpreter as `probe` does, also if it lacks a version that the twin supports.

    The field `refusal` says why the interpreter cannot run the twin. None: it can, as far as versions say.

    Args:
        answer_seconds: limit of each answer of the interpreter.
    """
    name, twin, python = contestant.name, contestant.twin, contestant.interpreter
    version, stderr, code = platform.python_version(), "", 0
    if python != sys.executable:
        program = "import platform; print(platform.python_version())"
        version, stderr, code = _run_captured(name, [python, "-I", "-S", "-c", program], seconds=answer_seconds)
    if code != 0 or not re.match(r"\d+\.\d+", version):
        received = _last_lines(stderr) or version[:200].strip() or "nothing"
        raise UnfitError(
            f"The interpreter of {name} does not work ({describe_exit(code)}): {python}. Received: {received}. "
            "Name the python of an environment."
        )
    if (refusal := environment.describe_unsupported({"Python": environment.PYTHONS}, {"Python": version.strip()})) is not None:
        raise UnfitError(f"The interpreter of {name} cannot run it: {refusal} Received: {python}.")
    package = FRAMEWORKS.get(twin, f"{plugins.TWINS}:{twin}")
    command = [python, "-m", environment.__name__, package, *options]
    printed, stderr, code = _run_captured(name, command, seconds=answer_seconds)
    try:
        facts = dict(json.loads(printed))
    except (ValueError, TypeError):
        raise UnfitError(
            f"The interpreter of {name} cannot list what is installed ({describe_exit(code)}): {python}.\n{_last_lines(stderr)}"
        ) from None
    if twin not in FRAMEWORKS and twin not in facts["brought"]:
        close = difflib.get_close_matches(twin, [*FRAMEWORKS, *facts["brought"]], n=1)
        facts["refusal"] += f" Did you mean {close[0]}?" if close else ""
    return facts


def current_environment(contestant: Contestant) -> Environment:
    """Return a contestant's environment as it is now. The framework is not imported, so its libraries are left out."""
    facts = probe(contestant)
    return Environment.model_validate({field: facts[field] for field in Environment.model_fields})


def run_program(
    contestant: Contestant, program: str, arguments: Sequence[str], *, folder: Path | None, environment: Mapping[str, str]
) -> str:
    """Run a short program in a contestant's interpreter, in this folder and environment. Returns what it prints."""
    stdout, stderr, code = _run_captured(
        contestant.name, [contestant.interpreter, "-c", program, *arguments], folder, environment
    )
    if code != 0:
        raise LaunchError(f"The interpreter of {contestant.name} does not work ({describe_exit(code)}).\n{_last_lines(stderr)}")
    return stdout


def _run_captured(
    name: str,
    command: Sequence[str],
    folder: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    *,
    seconds: float = PROBE_SECONDS,
) -> tuple[str, str, int]:
    """Run a short command of a contestant's interpreter for at most `seconds`. Returns (stdout, stderr, exit code)."""
    try:
        with contextlib.ExitStack() as process_stack:
            with signals.defer_signals():
                process = process_stack.enter_context(_CapturedProcess(command, folder, environment))
            return *process.communicate(timeout=seconds), process.returncode
    except subprocess.TimeoutExpired:
        raise NoAnswerError(
            f"The interpreter of {name} gave no answer in {seconds:g} s: {command[0]}. Name the python of an environment."
        ) from None
    except OSError as error:
        raise UnfitError(
            f"The interpreter of {name} cannot be started: {error.strerror}. Received: {command[0]}. {PYTHON_ADVICE}"
        ) from None


class _CapturedProcess(subprocess.Popen[str]):
    """A process whose output is captured, and which is killed if its `with` block ends before it."""

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


class DescribingProcess(_CapturedProcess):
    """A twin that describes itself."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        super().__init__(_command(contestant, ["describe"]))

    def description(self) -> dict[str, Any]:
        """Return the description once the process has ended."""
        name, command = self.contestant.name, _describe_command(self.contestant)
        try:
            stdout, stderr = self.communicate(timeout=_DESCRIBE_SECONDS)
        except subprocess.TimeoutExpired:
            raise NoAnswerError(f"{name} gave no description in {_DESCRIBE_SECONDS:.0f} s. Run: {command}") from None
        last_lines = _last_lines(stderr)
        if self.returncode != 0:
            ending, error = describe_exit(self.returncode), LaunchError
            if self.returncode == -signal.SIGKILL and memory_kills() > self.kills:
                ending, error = f"{ending}{LACKED_MEMORY}", NoAnswerError
            raise error(f"{name} cannot describe itself ({ending}). Run: {command}\n{last_lines}".rstrip())
        try:
            description = json.loads(stdout)
        except json.JSONDecodeError:
            description = None
        if not isinstance(description, dict):
            raise LaunchError(
                f"{name} must describe itself as a JSON object. Received: {stdout[:200]!r}. Run: {command}\n"
                f"{last_lines}".rstrip()
            )
        fields: dict[str, Any] = description
        refusal = environment.describe_unsupported(fields.get("supported", {}), fields.get("versions", {}))
        if refusal is not None:
            raise UnfitError(f"The interpreter of {name} cannot run it: {refusal} Received: {self.contestant.interpreter}.")
        return fields


class CommandOutput(NamedTuple):
    """How a command of a user ended."""

    printed: str
    """Stdout and stderr."""
    code: int


def run_command(words: Sequence[str], folder: Path | None, environment: Mapping[str, str]) -> CommandOutput:
    """Run a user's command to its end, with its descendants in a group of their own, which ends if this process is interrupted.

    Args:
        words: program and arguments. No shell reads them.
        folder: where it runs. None: here.
        environment: all its variables.
    """
    with _user_process(words, folder, environment, subprocess.PIPE, subprocess.STDOUT) as process:
        printed, _ = process.communicate()
    return CommandOutput(printed, process.returncode)


def run_into_files(words: Sequence[str], environment: Mapping[str, str], stdout: Path, stderr: Path, most_bytes: int) -> int:
    """Run a user's command as `run_command` does, here. What it prints is in files while it runs. Returns its exit code.

    Args:
        most_bytes: limit of each file. A command that prints more is killed.
    """
    with (
        stdout.open("wb") as output,
        stderr.open("wb") as errors,
        _user_process(words, None, environment, output, errors) as process,
    ):
        is_running = True
        while is_running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_SECONDS)
                is_running = False
            if max(os.fstat(file.fileno()).st_size for file in (output, errors)) > most_bytes:
                if is_running:
                    os.killpg(process.pid, signal.SIGKILL)
                raise UnfitError(f"A command printed more than {most_bytes:,} bytes. Received: {words}. Let it print less.")
    return process.returncode


@contextlib.contextmanager
def _user_process(
    words: Sequence[str], folder: Path | None, environment: Mapping[str, str], stdout: int | IO[bytes], stderr: int | IO[bytes]
) -> Generator[subprocess.Popen[str]]:
    """Start a user's command in a group of its own, which ends with this block."""
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # a word with a null letter is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnfitError(f"{words[0]} cannot be started ({reason}). Name a program that is there.") from None
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_LAST_LINES:])


class StartedProcess(subprocess.Popen[bytes]):
    """A watched process in a session of its own, with a temporary folder. `with_pipes`: stdin and stdout are pipes."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        root: Path | None = None,
        *,
        with_pipes: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
        folder: Path | None = None,
    ) -> None:
        self.watched = watchdog.WatchedProcess()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self.temporary = PrivateFolder()
            try:
                super().__init__(
                    command,
                    cwd=folder or root,
                    env={**_environment(root), **environment, **self.watched.environment, **self.temporary.environment},
                    stdin=subprocess.PIPE if with_pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if with_pipes else file,
                    stderr=file,
                    pass_fds=self.watched.descriptors,
                    start_new_session=True,
                )
            except BaseException:
                self.release()
                raise
        self.watched.pid = self.pid

    def release(self) -> None:
        """Close and remove its files, once it has ended. A second call does nothing."""
        self.watched.close()
        self.temporary.remove()


def start(
    contestant: Contestant,
    arguments: Sequence[str],
    *,
    log: Path,
    with_pipes: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> StartedProcess:
    """Start `<python> -m <twin> arguments...` of a contestant in a session of its own.

    Its stdout and stderr go to the log file. With `with_pipes`, its stdin and stdout are connected to this process, which
    closes them. The process ends with the calling thread, so call from the main thread. `stop` ends it earlier, with all
    that it started. `environment` is added to what every twin gets. The code and the working directory are those of the
    contestant's checkout, if it has one.

    Call it within `signals.defer_signals`, and store the process there for the code that stops it.
    """
    checkout = contestant.checkout or Checkout()
    return StartedProcess(
        _command(contestant, arguments),
        log,
        checkout.root,
        with_pipes=with_pipes,
        environment={**checkout.environment, **environment},
        folder=checkout.folder,
    )


_Result = TypeVar("_Result")


def waited_for(looks: Generator[StartedProcess, None, _Result]) -> _Result:
    """Return what a generator that looks at its process returns, with a look every quarter of a second."""
    with contextlib.closing(looks):  # a signal that ends the waiting here closes it before it goes on
        while True:
            try:
                process = next(looks)
            except StopIteration as ended:
                return ended.value
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_SECONDS)


def stop(process: StartedProcess, *, grace_seconds: float = _GRACE_SECONDS, kill_seconds: float = KILL_SECONDS) -> None:
    """End a started process and all its descendants: SIGTERM, five seconds' wait, SIGKILL. A second call does nothing.

    Args:
        process: from `start`.
        grace_seconds: time between SIGTERM and SIGKILL.
        kill_seconds: limit of the wait for its end after SIGKILL.
    """
    descendants = _descendants(process)
    _signal_all(process, descendants, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_seconds)
    _, alive = psutil.wait_procs(descendants, timeout=min(grace_seconds, 1.0))
    _signal_all(process, alive, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # of one that is held, and ends once it is let go
        process.wait(kill_seconds)
    process.release()


def watching(
    process: StartedProcess, *, watch: Callable[[], object], hang_seconds: float, folder: Path
) -> Generator[StartedProcess, None, str | None]:
    """Watch a started process until it has ended, one look for each step of the generator. A process that hangs is stopped.

    Args:
        process: from `start`. The caller waits for it between two looks.
        watch: called while it works.
        hang_seconds: limit of a hang, see `common.watching.watchdog`.
        folder: folder that gets the stacks of a process that hangs.

    Returns:
        None if it ended without a hang, else how it hung, in words.
    """
    hang_monitor = watchdog.Watchdog([watchdog.WatchTarget("the process", process.watched)], hang_seconds)
    while True:
        yield process
        if process.poll() is not None:
            return None
        watch()
        if (words := _stop_if_hung(process, hang_monitor, folder)) is not None:
            return words


def _stop_if_hung(process: StartedProcess, hang_monitor: watchdog.Watchdog, folder: Path) -> str | None:
    """Stop a process if it hangs. Returns how it hung, in words; None if it works."""
    if (hang := hang_monitor.check()) is None:
        return None
    try:
        (path,) = watchdog.save_stacks(hang.stacks, ["rank 0"], folder)
        stacks_text = f"; see {path.name}"
    except OSError as error:
        stacks_text = f"; its stacks cannot be written ({error})"
    stop(process, grace_seconds=0.0)
    return f"{hang.message}{stacks_text}"


def calling(call: Call) -> Generator[StartedProcess, None, int]:
    """Call a twin as `call` does, one look at its process for each step of the generator. Returns its exit code."""
    process: StartedProcess | None = None
    try:
        with signals.defer_signals():
            process = start(call.contestant, call.arguments, log=call.log, environment=call.environment)
        folder = call.log.with_suffix(".stacks")
        hang = yield from watching(process, watch=lambda: None, hang_seconds=call.hang_seconds, folder=folder)
    except BaseException:
        if process is not None:
            stop(process, grace_seconds=INTERRUPTED_GRACE_SECONDS)
        raise
    stop(process)
    if hang is not None:
        _append_hang(call.log, hang)
    return checked_exit_code(call, process.returncode)


class Call(NamedTuple):
    """One call `python -m <twin> arguments...` for `call_all`."""

    contestant: Contestant
    arguments: Sequence[str]
    log: Path
    hang_seconds: float = heartbeat.HANG_SECONDS
    environment: Mapping[str, str] = MappingProxyType({})
    """Environment variables added to what every twin gets."""


def call(contestant: Contestant, arguments: Sequence[str], *, log: Path, hang_seconds: float = heartbeat.HANG_SECONDS) -> int:
    """Start a contestant's twin and wait for it. No process of it is left running, whatever happens.

    Returns:
        Its exit code. Negative: the signal that ended it. A hung twin is ended by SIGTERM or SIGKILL. The log states this.
    """
    return waited_for(calling(Call(contestant, arguments, log, hang_seconds)))


def call_all(
    next_call: Callable[[], Call | None],
    on_end: Callable[[Call, int], object],
    most_parallel: int = 1,
    on_poll: Callable[[], object] = lambda: None,
) -> None:
    """Start twins and wait for all. No process of them is left running, whatever happens.

    Args:
        next_call: returns the next call, or None if there is none before another has ended.
        on_end: called with each call and its exit code, see `call`. If it raises, the other twins are stopped.
        most_parallel: largest number of twins at a time. More than one is for work that is not timed.
        on_poll: called a few times a second.
    """
    running: list[tuple[Call, StartedProcess, watchdog.Watchdog]] = []
    try:
        while True:
            while len(running) < most_parallel and (new_call := next_call()) is not None:
                with signals.defer_signals():
                    process = start(new_call.contestant, new_call.arguments, log=new_call.log, environment=new_call.environment)
                    hang_monitor = watchdog.Watchdog(
                        [watchdog.WatchTarget("the process", process.watched)], new_call.hang_seconds
                    )
                    running.append((new_call, process, hang_monitor))
            if not running:
                return
            for entry in list(running):
                twin_call, process, hang_monitor = entry
                if _has_ended(twin_call, process, hang_monitor, _POLL_SECONDS / len(running)):
                    running.remove(entry)
                    on_end(twin_call, checked_exit_code(twin_call, process.returncode))
            on_poll()
    except BaseException:
        with contextlib.ExitStack() as stopping:  # a signal ends the waiting for one, and the others are stopped all the same
            for _, process, _ in running:
                stopping.callback(stop, process, grace_seconds=INTERRUPTED_GRACE_SECONDS)
        raise


def _has_ended(twin_call: Call, process: StartedProcess, hang_monitor: watchdog.Watchdog, seconds: float) -> bool:
    """Wait for a twin, at most this number of seconds. A twin that hangs is stopped, and its log says how it hung."""
    hang = None
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        if (hang := _stop_if_hung(process, hang_monitor, twin_call.log.with_suffix(".stacks"))) is None:
            return False
    stop(process)
    if hang is not None:
        _append_hang(twin_call.log, hang)
    return True


def _append_hang(log: Path, hang: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{hang}\n")


def checked_exit_code(call: Call, code: int) -> int:
    """Return the exit code of a call that has ended. It is 1, and the log says why, if code 0 left an output file unwritten."""
    if code == 0 and (missing := [path for path in output_files(call.arguments) if not path.exists()]):
        with call.log.open("a", encoding="utf-8") as file:
            file.write(f"It ended with exit code 0 and has not written {missing[0].name}.\n")
        return 1
    return code


def output_files(arguments: Sequence[str]) -> list[Path]:
    """Return the files that a command of a twin writes if it succeeds."""
    return [Path(value) for word, value in itertools.pairwise(arguments) if word == "--out"]


def last_line(log: Path) -> str:
    """Return the last line of a twin's log: why it ended. Empty if it printed nothing. Lines of a stack trace are skipped."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    candidates = (line for line in reversed(lines) if line.strip() and not _STACK_OF_NATIVE_CODE.match(line))
    return next((wording.one_line(line)[:_REASON_LENGTH] for line in candidates), "")


def is_full(folder: Path) -> bool:
    """Whether the disk of a folder could take no more than a MiB."""
    return shutil.disk_usage(folder).free < 2**20


def describe_full_disk(folder: Path) -> str:
    """Return a clause saying that the disk of a folder is full. Empty if it is not."""
    return f"; the disk of {folder} is full" if is_full(folder) else ""


def memory_kills() -> int:
    """Number of processes that the kernel has killed for lack of memory since the machine started. 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def describe_exit(code: int) -> str:
    """Describe an exit code: `exit code 1`, or `killed by SIGKILL`."""
    return f"exit code {code}" if code >= 0 else f"killed by {signals.name(-code)}"


def describe_ending(code: int, log: Path, lacked_memory: bool) -> str:
    """Describe how a process without a result ended, with the last line of its log."""
    words = describe_exit(code) if code else "ended without a result"
    if lacked_memory:
        return words + LACKED_MEMORY
    if full := describe_full_disk(log.parent):
        return f"{words}{full}"
    last = "" if code == -signal.SIGKILL else last_line(log)  # a killed process said nothing of its end
    return f"{words}: {last}" if last else words


def _command(contestant: Contestant, arguments: Sequence[str]) -> list[str]:
    command = [contestant.interpreter, "-m", *module(contestant.twin), *arguments]
    return tied_to_parent(command, contestant.interpreter)


def start_suite_module(name: str, *words: str, stderr: int | None = None) -> subprocess.Popen[str]:
    """Start a module of the suite. Its stdin and stdout are pipes, and it ends with this process."""
    command, pipe = tied_to_parent([sys.executable, "-m", name, *words]), subprocess.PIPE
    return subprocess.Popen(command, env=_environment(), stdin=pipe, stdout=pipe, stderr=stderr, text=True, errors="replace")


def _describe_command(contestant: Contestant) -> str:
    return " ".join([contestant.python or "python", "-m", *module(contestant.twin), "describe"])


def module(twin: str) -> list[str]:
    """Return the words behind `python -m` that run a twin or the suite's own work."""
    package = FRAMEWORKS.get(twin) or SUITE_WORKERS.get(twin)
    return ["common.processes.plugin", twin] if package is None else [package]


def _environment(root: Path | None = None) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not RESERVED_VARIABLES.fullmatch(name)}
    # An empty entry would be the caller's folder. That comes last.
    paths = [str(root or PROJECT_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return variables | {
        "PYTHONPATH": os.pathsep.join(paths),
        USER_PATH: str(Path.cwd()) if root is None else "",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return all descendants, also in other sessions. If the process has ended: the processes left in its session."""
    if process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(process.pid).children(recursive=True)
    return [candidate for candidate in psutil.process_iter() if _session(candidate) == process.pid]


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
