"""The machine of a run, and the limits on cores and memory that hold for both frameworks."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import hashlib
import hmac
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

import psutil
from pydantic import AfterValidator

from common.machine import code_version, environment

PROJECT_ROOT = Path(__file__).resolve().parents[2]
"""The folder of the suite's packages: a checkout, or `convtwins/_app` of an installed package."""
INSTALLED = PROJECT_ROOT.name == "_app"


def pasteable_command(folder: Path, launcher: Path, on_path: str | None) -> str:
    """Return the command line of the suite, as a user can paste it into a shell that stands in a folder.

    Args:
        folder: working directory of the shell.
        launcher: the program that starts the suite.
        on_path: the program that the shell starts for `convtwins`. None: there is none.
    """
    if on_path is not None and os.path.realpath(on_path) == os.path.realpath(launcher):
        return "convtwins"
    is_near = folder in (launcher.parent.parent, launcher.parent.parent.parent)  # as .venv/bin/convtwins
    return shlex.quote(str(launcher.relative_to(folder) if is_near else launcher))


def _pasteable_command() -> str:
    launcher = Path(sys.executable).with_name("convtwins") if INSTALLED else PROJECT_ROOT / ".venv/bin/convtwins"
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # the shell's folder is gone
        folder = launcher.parent
    return pasteable_command(folder, launcher, shutil.which("convtwins") if INSTALLED else None)


COMMAND = _pasteable_command()
"""The command line of the suite, as a user can paste it where this process was started."""
_SHORT_COMMAND = "convtwins" if INSTALLED else ".venv/bin/convtwins"


def with_short_command(text: str) -> str:
    """Return the text of a file with commands that hold in any checkout. Files are published, and paths are private."""
    return text.replace(COMMAND, _SHORT_COMMAND)


COMPANION_VARIABLE = "CONVTWINS_COMPANION"
"""Variable with the pid of a process that counts to this one's tree: a server that all ranks of a run share."""

_TOPOLOGY = Path("/sys/devices/system/cpu")
IDENTITY = ("processor", "processor_model", "cores", "logical_cores", "memory_mib", "gpus", "host")
"""Fields of a machine's record that tell one machine from another."""
_FACT_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("processor", "processor_model", "host", "system", "python", "commit", "allocator"), str),
    **dict.fromkeys(("cores", "logical_cores", "physical_cores", "memory_mib"), (int, float)),
    "dirty": bool,
    "cpus": list,
}
_MEMORY_TOLERANCE = 0.02
"""Relative difference in memory within which two machines count as equal. Kernels reserve different parts."""
_HOST_FILE = Path("/etc/machine-id")
_CPU_FILE = Path("/proc/cpuinfo")
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "sve": "SVE", "asimd": "NEON"}
"""Names of vector instructions by their flag in /proc/cpuinfo, the widest first."""

# glibc's mallopt(3) parameters.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_KEEP_BYTES = 2**31 - 1


def keep_freed_memory(c_library: str | None = None) -> bool:
    """Keep glibc's allocator from giving freed pages back to the kernel.

    A training step frees and asks for the same hundreds of megabytes again; by default every step then pays for them in
    page faults, in one framework more than in the other. Called in every process of every run, before its first tensor.

    Args:
        c_library: name of this process's C library, e.g. `musl`. None: the system says.

    Returns:
        Whether it was done: only glibc has the knobs.
    """
    if (c_library or platform.libc_ver()[0]) != "glibc":
        return False
    libc = ctypes.CDLL(None)
    # M_MMAP_THRESHOLD is capped at 32 MiB, less than one activation of a large batch: so no mmap at all.
    # A thread's own arena holds no block above 64 MiB, so that a pool thread would map and unmap it all the same: one arena.
    settings = ((_M_MMAP_MAX, 0), (_M_ARENA_MAX, 1), (_M_TRIM_THRESHOLD, _KEEP_BYTES), (_M_TOP_PAD, 64 * 2**20))
    return all(libc.mallopt(parameter, value) for parameter, value in settings)


def trim_heap() -> None:
    """Give freed pages back to the kernel now."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def available_cores() -> int:
    """Return the number of CPU cores that this process may use, by its affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_budget(cores: int, allowed: Iterable[int] | None = None, topology: Path = _TOPOLOGY) -> list[int]:
    """Return the CPUs for a run of so many cores, threads of one physical core side by side.

    They are the first of the allowed ones: one of each physical core, before a second thread of any.

    Args:
        cores: number of CPUs.
        allowed: CPUs to choose from. None: those that this process may use.
        topology: folder where the system says which CPUs are threads of one physical core.
    """
    if allowed is None:
        if not hasattr(os, "sched_getaffinity"):
            return list(range(cores))
        allowed = os.sched_getaffinity(0)
    cpus_of_cores: dict[int, list[int]] = {}
    thread_index: dict[int, int] = {}
    for cpu in sorted(allowed):
        siblings = cpus_of_cores.setdefault(_physical_core(cpu, topology), [])
        thread_index[cpu] = len(siblings)
        siblings.append(cpu)
    chosen = sorted(thread_index, key=lambda cpu: thread_index[cpu])[:cores]
    return [cpu for siblings in cpus_of_cores.values() for cpu in siblings if cpu in chosen]


def physical_cores(cpus: Sequence[int], topology: Path = _TOPOLOGY) -> int:
    """Return the number of physical cores that these CPUs are threads of."""
    return len({_physical_core(cpu, topology) for cpu in cpus})


def _physical_core(cpu: int, topology: Path) -> int:
    """Return the first CPU of the same physical core, or the CPU itself where the system does not say."""
    try:
        siblings = (topology / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return cpu
    return int(re.split("[,-]", siblings.strip())[0])


def set_affinity(cpus: list[int]) -> None:
    """Restrict this process, and all that it starts from now on, to these CPUs. Call before a framework is imported."""
    if not hasattr(os, "sched_setaffinity"):
        return
    # Each thread has its own: NumPy's were started when it was imported.
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)


def process_tree() -> list[psutil.Process]:
    """Return this process, its living descendants (input workers), and the process of COMPANION_VARIABLE if it is set."""
    this_process = psutil.Process()
    processes = [this_process, *this_process.children(recursive=True)]
    if COMPANION_VARIABLE in os.environ:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(int(os.environ[COMPANION_VARIABLE])))
    return processes


def clock() -> float:
    """Return seconds of a clock that all local processes share: since boot on Linux, since 1970 elsewhere."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.time()


def process_cpu_seconds() -> float:
    """Return the CPU time of this process alone, summed over its threads by the kernel."""
    return time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) if sys.platform != "win32" else time.process_time()


def usable_cpus() -> int:
    """Return the number of CPUs that some thread of this process may run on."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cpus = os.sched_getaffinity(0)
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            cpus |= os.sched_getaffinity(int(thread.name))
    return len(cpus)


def cpu_seconds(processes: Sequence[psutil.Process] | None = None) -> float:
    """Return the CPU time of `process_tree`, or of these processes, with their children that have ended and were waited for."""
    total = 0.0
    for process in process_tree() if processes is None else processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of children that have ended
    return total


def busy_cpu_seconds(cpus: Sequence[int] | None = None, times: Sequence[Any] | None = None) -> float:
    """Return the busy CPU time of these CPUs, or of the whole machine, whoever used it. `times` is psutil's of each CPU."""
    return sum(map(_busy, _cpu_times(cpus, times)))


def stolen_cpu_seconds(cpus: Sequence[int] | None = None, times: Sequence[Any] | None = None) -> float:
    """Return the CPU time that a hypervisor gave to other machines while these CPUs, or any of this machine's, wanted it.

    0 where there is none or it does not say. `times` is psutil's of each CPU.
    """
    return sum(getattr(cpu_times, "steal", 0.0) for cpu_times in _cpu_times(cpus, times))


def _cpu_times(cpus: Sequence[int] | None, times: Sequence[Any] | None) -> Sequence[Any]:
    """Return psutil's times of these CPUs, or of all. Without `times` they are read now, of all as one sum."""
    if cpus is None:
        return [psutil.cpu_times()] if times is None else times
    times = psutil.cpu_times(percpu=True) if times is None else times
    return [times[cpu] for cpu in cpus if cpu < len(times)]


def _busy(times: Any) -> float:
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user and nice already
    return sum(times) - idle - guests


def load() -> float | None:
    """Return the load average of the last minute, or None where the system does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def frequency_mhz(cpus: Sequence[int] | None = None, read: Callable[[], Sequence[Any]] | None = None) -> float | None:
    """Return the current mean clock of these CPUs, or None where the system does not say.

    Args:
        cpus: their numbers. None: those that this process may use.
        read: returns psutil's clock of each CPU. None: `psutil.cpu_freq`.
    """
    try:
        clocks = [clock.current for clock in (read() if read else psutil.cpu_freq(percpu=True))]
    except (AttributeError, NotImplementedError, OSError):
        return None
    cpus = cpu_budget(len(clocks)) if cpus is None else cpus
    frequencies = [clocks[cpu] for cpu in cpus if cpu < len(clocks) and clocks[cpu]]
    return sum(frequencies) / len(frequencies) if frequencies else None


def peak_memory_mib(processes: Sequence[psutil.Process] | None = None) -> float:
    """Return the sum of the peak resident memory of `process_tree`, or of these processes.

    Pages that they share (libraries, a memory-mapped data set) count in each.
    """
    total_kib = 0
    for process in process_tree() if processes is None else processes:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            continue
        total_kib += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)
    return total_kib / 1024


def proportional_memory_mib() -> float | None:
    """Return the summed proportional set size (PSS) of this process and its living descendants. None: the system does not say.

    A page that n processes share counts 1 / n in each. The kernel walks all pages: call it outside timed blocks.
    """
    total_kib = 0
    for process in process_tree():
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            if process.is_running():
                return None
            continue
        except OSError:
            return None
        total_kib += next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
    return total_kib / 1024


@cache
def describe() -> dict[str, Any]:
    """Return processor, cores, memory, system, Python, and the commit of the code."""
    code = code_version.describe(PROJECT_ROOT)
    return {
        "processor": _processor(),
        "processor_model": processor_model(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "logical_cores": psutil.cpu_count() or 0,
        "memory_mib": round(psutil.virtual_memory().total / 2**20),
        "host": host_digest(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        **{fact: code[fact] for fact in ("commit", "dirty")},
    }


def validate_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a machine from a stored record, which may come from anybody, after a check of their types.

    Raises:
        ValueError: a fact has another type than in `describe`. All may be None.
    """
    for name, expected in _FACT_TYPES.items():
        value = facts.get(name)
        if value is None:
            continue
        numbers: list[Any] = cast(list[Any], value) if expected is list else [value] if expected is not str else []
        if not isinstance(value, expected) or not all(
            isinstance(number, int | float) and 0 <= number < 2**63 for number in numbers
        ):
            raise ValueError(f"{name} is no fact of a machine")
    names: Any = facts.get("gpus")
    if names is not None and not (isinstance(names, list) and all(isinstance(gpu, str) for gpu in cast(list[Any], names))):
        raise ValueError("gpus is no fact of a machine")
    return facts


Facts = Annotated[dict[str, Any], AfterValidator(validate_facts)]


def processors(facts: Mapping[str, Any]) -> str:
    """Return the names of the processors, e.g. `AMD EPYC 7B13` or `AMD EPYC 7B13 with 2 x NVIDIA H200`."""
    names = collections.Counter[str](facts.get("gpus") or ())
    counted = ", ".join(f"{number} x {name}" if number > 1 else name for name, number in names.items())
    return f"{cpu_name(facts) or 'unknown processor'}{' with ' if counted else ''}{counted}"


def cpu_name(facts: Mapping[str, Any]) -> str:
    """Return the name of the CPU and its model, e.g. `AMD EPYC (family 25, model 1, AVX2)`. Empty if it is not known."""
    name, model = facts.get("processor") or "", facts.get("processor_model") or ""
    return f"{name} ({model})" if name and model else name


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the fields of IDENTITY that differ between two records of a machine. Fields unknown to either are skipped."""

    def differs(fact: str) -> bool:
        ours, theirs = one.get(fact), other.get(fact)
        if ours is None or theirs is None:
            return False
        if fact == "memory_mib":
            return abs(ours - theirs) > _MEMORY_TOLERANCE * max(ours, theirs)
        return ours != theirs

    return [fact for fact in IDENTITY if differs(fact)]


def versions(*packages: str) -> dict[str, str]:
    """Return the installed versions of these distributions, or of their variants for CPUs.

    Raises:
        PackageNotFoundError: one is not installed.
    """
    installed = environment.distributions()
    return {package: environment.version(package, installed) or importlib.metadata.version(package) for package in packages}


def code_digest(folders: Sequence[Path]) -> str:
    """Return the SHA-256 over the names and contents of all Python files in these folders. A folder may be one file."""
    sha256 = hashlib.sha256()
    for folder in folders:
        for path in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
            sha256.update(f"{folder.name}/{path.relative_to(folder)}".encode() + path.read_bytes())
    return sha256.hexdigest()


def host_digest(file: Path = _HOST_FILE) -> str | None:
    """Return an id of this machine: a keyed digest, because the id itself must stay secret (machine-id(5))."""
    try:
        identity = file.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return hmac.new(identity.encode(), b"convtwins", "sha256").hexdigest()[:16] if identity else None


def cpu_flags(file: Path = _CPU_FILE) -> list[str]:
    """Return the instruction sets of the processor (`avx512f`, `amx_bf16` ...), that libraries choose their kernels by.

    Empty where the system does not say.
    """
    return sorted((_cpuinfo("flags", file) or _cpuinfo("Features", file) or "").split())


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor()


def processor_model(file: Path = _CPU_FILE) -> str:
    """Return the CPU's model by the numbers of its maker, and its vector instructions, e.g. `family 25, model 1, AVX2`.

    Virtual machines of several generations share one name, and a generation may be faster in one framework alone. Empty where
    the system does not say.
    """
    numbers = {"cpu family": "family", "model": "model", "CPU implementer": "implementer", "CPU part": "part"}
    words = [f"{word} {number}" for field, word in numbers.items() if (number := _cpuinfo(field, file))]
    flags = set(cpu_flags(file))
    vectors = next((name for flag, name in _VECTORS.items() if flag in flags), None)
    return ", ".join([*words, *([vectors] if vectors else [])])


def _cpuinfo(field: str, file: Path = _CPU_FILE) -> str | None:
    """Return a field of the first CPU in /proc/cpuinfo."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.partition(":")[0].strip() == field), None)
