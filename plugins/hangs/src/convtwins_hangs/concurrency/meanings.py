"""Known library names: collectives, ranks, locks, queues, threads. A user's configuration adds more."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common import spec
from common.spec import SpecError

_TORCH = "torch.distributed."
_POINT_TO_POINT = {"send", "recv", "isend", "irecv"}


class CollectiveArguments(NamedTuple):
    """Positions of the arguments of a collective. None: it has no such argument."""

    shared: int | None = None
    """The argument that is equal on all ranks afterwards."""
    root: int | None = None
    group: int | None = None
    has_one_shape: bool = False
    """Whether all ranks must give tensors of one shape."""


TORCH_COLLECTIVES = {
    "all_reduce": CollectiveArguments(0, group=2, has_one_shape=True),
    "all_reduce_coalesced": CollectiveArguments(0),
    "all_gather": CollectiveArguments(0, group=2, has_one_shape=True),
    "all_gather_into_tensor": CollectiveArguments(0, has_one_shape=True),
    "all_gather_object": CollectiveArguments(0, group=2),
    "all_to_all": CollectiveArguments(),
    "all_to_all_single": CollectiveArguments(0),
    "barrier": CollectiveArguments(group=0),
    "broadcast": CollectiveArguments(0, root=1, group=2, has_one_shape=True),
    "broadcast_object_list": CollectiveArguments(0, root=1),
    "gather": CollectiveArguments(root=2),
    "gather_object": CollectiveArguments(root=2),
    "init_process_group": CollectiveArguments(),
    "monitored_barrier": CollectiveArguments(),
    "new_group": CollectiveArguments(),
    "reduce": CollectiveArguments(root=1, group=3, has_one_shape=True),
    "reduce_scatter": CollectiveArguments(),
    "reduce_scatter_tensor": CollectiveArguments(0, has_one_shape=True),
    "scatter": CollectiveArguments(root=2),
    "scatter_object_list": CollectiveArguments(),
}
"""Collectives of `torch.distributed`. Those of other libraries with one of these names have the same arguments."""
_STRATEGY_COLLECTIVES = {"run", "reduce", "gather"}
_ACCELERATOR_COLLECTIVES = {"gather", "gather_for_metrics", "reduce", "pad_across_processes", "wait_for_everyone"}
_OBJECT_COLLECTIVES = {
    "tensorflow.distribute.MultiWorkerMirroredStrategy": _STRATEGY_COLLECTIVES,
    "tensorflow.distribute.experimental.MultiWorkerMirroredStrategy": _STRATEGY_COLLECTIVES,
    "tensorflow.distribute.get_replica_context": {"all_reduce", "all_gather"},
    "accelerate.Accelerator": _ACCELERATOR_COLLECTIVES,
    "accelerate.accelerator.Accelerator": _ACCELERATOR_COLLECTIVES,
}
"""Methods that are collectives, by the class or function that makes the object."""
_MODULE_COLLECTIVES = {
    "accelerate.utils": {
        "gather", "gather_object", "broadcast", "broadcast_object_list", "reduce", "pad_across_processes", "wait_for_everyone",
    },
}  # fmt: skip
"""Functions that are collectives, by module, other than `torch.distributed`."""
DDP_CLASSES = {"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"}
_BUFFERS = re.compile(
    r"BatchNorm\w*|register_buffer|torchvision\.models\.(\w+\.)*"
    r"((resne|wide_resne|dense|mobile|efficient|reg|shuffle|mnas|goog|inception)\w+|\w+_bn)"
)
NO_GRADIENTS = {"torch.no_grad", "torch.inference_mode"}
LOADERS = {"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"}

_RANK_NAMES = {
    "rank", "local_rank", "global_rank", "get_rank", "get_local_rank", "task_id", "task_index", "rank_id", "node_rank",
}  # fmt: skip
_SIZE_NAMES = {"world_size", "get_world_size", "num_processes", "nprocs"}
_FIRST_NAMES = {
    "is_main_process", "is_master", "is_chief", "is_rank_zero", "is_rank0", "is_first_rank", "is_local_main_process", "is_main",
    "is_global_zero", "main_process",
}  # fmt: skip
RANK_VARIABLES = {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"}
SIZE_VARIABLES = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}

LOCAL_CALLS = {
    "time.time", "time.monotonic", "time.perf_counter", "time.process_time", "socket.gethostname", "os.getpid",
    "time.time_ns", "time.monotonic_ns", "time.perf_counter_ns", "datetime.datetime.now", "datetime.datetime.utcnow",
    "torch.cuda.memory_allocated", "torch.cuda.max_memory_allocated", "torch.cuda.memory_reserved", "torch.cuda.mem_get_info",
    "platform.node", "psutil.virtual_memory", "os.getloadavg", "shutil.disk_usage",
}  # fmt: skip
"""Functions whose result differs on each rank."""
TENSOR_FACTORIES = {f"torch.{name}" for name in ("zeros", "ones", "empty", "rand", "randn")}

_EXCHANGES = re.compile(r"broadcast(?!_(to|tensors|arrays|shapes))|bcast|all_?reduce|all_?gather")


_MEASURED = re.compile(
    r"(?:^|_)(?:loss|losses|acc|acc1|accuracy|score|perplexity|ppl)(?:_(?:value|val|item|sum|mean|avg|total))?$"
)
_LOADER = re.compile(r"(?:^|_)(?:data)?_?loader$", re.IGNORECASE)
_COMBINES = re.compile(r"reduce|gather|sync|^compute$|grad.*norm|norm.*grad")
_READS = re.compile(r"load|read|open|listdir|glob|dataset", re.IGNORECASE)
FINITENESS_CHECKS = {"isnan", "isinf", "isfinite", "is_nan", "is_inf", "is_finite"}
"""Functions that test whether a number is finite. They are called on values such as the rank's own loss."""


def is_metric(name: str) -> bool:
    """Return whether a variable, by its name, holds a metric of the rank's own data."""
    return _MEASURED.search(name) is not None


def is_loader(name: str) -> bool:
    """Return whether a variable, by its name, holds a data loader."""
    return _LOADER.search(name) is not None


def may_combine(name: str) -> bool:
    """Return whether a function, by its name, may combine values of all ranks. Gradients are exchanged before their norm."""
    return _COMBINES.search(name) is not None


def may_read_data(name: str) -> bool:
    """Return whether a function, by its name, reads data from the path that it gets."""
    return _READS.search(name) is not None


def may_exchange(name: str) -> bool:
    """Return whether an external function, by its name, may return the same value on all ranks."""
    return _EXCHANGES.search(name) is not None


def has_buffers(dotted: str) -> bool:
    """Return whether a class makes models with buffers, such as running means. DistributedDataParallel broadcasts them."""
    return _BUFFERS.fullmatch(dotted) is not None or _BUFFERS.fullmatch(dotted.rpartition(".")[2]) is not None


def may_be_collective(name: str) -> bool:
    """Return whether an unknown function, by its name, may be a collective."""
    return _EXCHANGES.match(name.lower().removeprefix("i")) is not None or name == "barrier"


KNOWN_LIBRARIES = ("torch.", "tensorflow.", "accelerate.")
"""Prefixes of libraries whose collectives are built in."""

_QUEUES = ("Queue", "SimpleQueue", "LifoQueue", "PriorityQueue", "JoinableQueue")
_LOCKS = {
    "Lock": "lock", "RLock": "lock", "Semaphore": "semaphore", "BoundedSemaphore": "semaphore", "Event": "event",
    "Condition": "condition", "Barrier": "barrier", "Thread": "thread", "Process": "thread", "Timer": "timer",
}  # fmt: skip


def sync_object_kind(dotted: str) -> tuple[str, frozenset[str]] | None:
    """Return (kind, flags) of the lock, queue, thread or pool that a library class makes. None: it makes none."""
    module, _, name = dotted.rpartition(".")
    kind = None
    if module in ("threading", "multiprocessing", "torch.multiprocessing"):
        kind = _LOCKS.get(name)
    if module in ("queue", "multiprocessing", "torch.multiprocessing") and name in _QUEUES:
        kind = "queue"
    if module.startswith("concurrent.futures") and name == "ThreadPoolExecutor":
        kind = "pool"
    if kind is None:
        return None
    is_multiprocessing = "multiprocessing" in module
    return kind, frozenset(["process"] * is_multiprocessing + ["reentrant"] * (name == "RLock"))


HARMLESS_BUILTINS = {
    "print", "len", "str", "repr", "int", "float", "bool", "isinstance", "id", "hash", "abs", "min", "max", "sum", "sorted",
    "format", "round", "type", "getattr", "hasattr", "issubclass", "callable", "any", "all", "next", "divmod", "ord", "chr",
}  # fmt: skip
"""Builtins that keep no reference to their arguments and start nothing."""

HARMLESS_MODULES = ("logging.", "warnings.", "time.", "math.", "json.", "os.path.", "re.", "random.", "gc.")
HARMLESS_METHODS = {
    "info", "debug", "warning", "error", "exception", "critical", "format", "items", "keys", "values", "append", "item", "eval",
    "train", "zero_grad", "write", "flush", "strip", "split", "upper", "lower", "startswith", "endswith", "size", "numel",
    "dim",
}  # fmt: skip
LARGE_RESULTS = {
    "zeros", "ones", "empty", "full", "rand", "randn", "random", "normal", "uniform", "arange", "linspace", "randint", "bytes",
    "bytearray", "state_dict", "read", "read_bytes", "load", "imread", "read_csv",
}  # fmt: skip
"""Functions whose result may be large, unless it is made of few numbers."""
SMALL_RESULTS = {"item", "float", "int", "len", "sum", "mean", "min", "max", "bool", "std", "norm", "argmax", "hash", "str"}
"""Functions whose result is small."""
SAME_RESULTS = {
    "size", "numel", "dim", "type", "is_floating_point", "get_device", "device_count", "is_available", "named_parameters",
}  # fmt: skip
"""Methods and functions that return the same value on all ranks."""
SAME_ATTRIBUTES = {"module", "training", "requires_grad", "shape", "dtype", "device", "ndim", "is_cuda"}
"""Attributes with the same value on all ranks, whatever their data."""
PLACEMENT_KEYWORDS = {"device", "map_location", "device_ids", "output_device", "dtype"}
TYPE_TESTS = {"isinstance", "issubclass", "hasattr", "callable"}
NUMBER_PRESERVING_METHODS = {"to", "cuda", "cpu", "int", "long", "float", "double", "clone", "detach"}
"""Methods of a tensor that return the same numbers on another device or in another type."""
RETURNS_SELF = {"to", "cuda", "cpu", "float", "half", "double", "train", "eval", "requires_grad_"}
"""Methods of a model that return it."""
ITEM_READERS = {"get", "setdefault", "pop"}
"""Methods of a dictionary that read the item at their first argument."""
SAME_LENGTH_METHODS = {"keys", "values", "items", "copy"}
"""Methods of a dictionary or list whose result has the same length."""

_CALLS_BY_API = {
    "Lock": {"acquire", "release"},
    "Semaphore": {"acquire", "release"},
    "Queue": {"put", "put_nowait", "get", "get_nowait", "join", "task_done"},
    "Event": {"wait", "set", "clear"},
    "Condition": {"acquire", "release", "wait", "wait_for", "notify", "notify_all"},
    "Barrier": {"wait"},
    "Thread": {"start", "join", "Thread"},
    "Process": {"start", "join", "Process", "spawn", "start_processes"},
    "Pool": {"submit", "map", "result", "shutdown", "ThreadPoolExecutor", "wait", "as_completed"},
    "fork": {"fork"},
    "DistributedDataParallel": {"backward", "DistributedDataParallel"},
    "distributed": {*TORCH_COLLECTIVES, *_POINT_TO_POINT, "wait", "spawn"},
    "accelerate": set[str]().union(*_MODULE_COLLECTIVES.values()),
    **{name.rpartition(".")[2]: methods for name, methods in _OBJECT_COLLECTIVES.items()},
}
"""Last names of calls that may matter, by a word that must occur in the program's names."""
_STARTERS = {"Thread", "Process", "ThreadPoolExecutor", "spawn", "start_processes", "fork", "acquire", "send", "recv"}
_AMBIGUOUS_COLLECTIVES = {"reduce", "gather", "scatter"}
"""Collectives whose last names are common among functions that have nothing to do with ranks."""
_DISTINCTIVE_NAMES = (TORCH_COLLECTIVES.keys() - _AMBIGUOUS_COLLECTIVES) | {
    name.rpartition(".")[2] for name in (*DDP_CLASSES, *_OBJECT_COLLECTIVES)
}
THREAD_NAMES = {"Thread", "ThreadPoolExecutor", "Timer", "submit"}


@dataclass(frozen=True)
class KnownNames:
    """Built-in and user-defined names of collectives, ranks and world sizes."""

    collectives: frozenset[str] = frozenset()
    """User-defined collectives: dotted names, or the last parts of them."""
    ranks: frozenset[str] = frozenset()
    sizes: frozenset[str] = frozenset()

    def collective(self, dotted: str) -> str | None:
        """Return the last name of a library's function or method if it is a collective, else None."""
        owner, _, last = dotted.rpartition(".")
        if dotted.startswith(_TORCH) and last in TORCH_COLLECTIVES:
            return last
        built_in = last in _OBJECT_COLLECTIVES.get(owner, ()) or last in _MODULE_COLLECTIVES.get(owner, ())
        named = any(dotted == name or dotted.endswith(f".{name}") for name in self.collectives)
        return last if built_in or named else None

    def is_rank(self, name: str) -> bool:
        return name in _RANK_NAMES or name in self.ranks

    def is_size(self, name: str) -> bool:
        return name in _SIZE_NAMES or name in self.sizes

    def is_first_rank(self, name: str) -> bool:
        return name in _FIRST_NAMES

    def relevant_calls(self, names: Collection[str]) -> frozenset[str]:
        """Return the last names of calls that may matter in a program.

        Args:
            names: all names that the program uses.
        """
        text = "\n".join(names)
        calls = {name.rpartition(".")[2] for name in self.collectives}
        return frozenset(calls.union(*(calls for part, calls in _CALLS_BY_API.items() if part in text)))

    def makes_collectives(self, dotted: str) -> bool:
        """Return whether a library's class or function makes an object whose methods are collectives."""
        return dotted in _OBJECT_COLLECTIVES or any(name.startswith(f"{dotted}.") for name in self.collectives)

    def is_rank_operation(self, dotted: str) -> bool:
        """Return whether a call only makes sense among ranks, by its dotted name or a distinctive last name."""
        if self.collective(dotted) is not None or is_point_to_point(dotted):
            return True
        last = dotted.rpartition(".")[2]
        return last in _DISTINCTIVE_NAMES or any(name.rpartition(".")[2] == last for name in self.collectives)

    def starts_concurrency(self, dotted: str) -> bool:
        """Return whether a call starts threads or only makes sense among ranks."""
        return dotted.rpartition(".")[2] in _STARTERS or self.is_rank_operation(dotted)


def is_point_to_point(dotted: str) -> bool:
    return dotted.startswith(_TORCH) and dotted.rpartition(".")[2] in _POINT_TO_POINT


def read_known_names(names: Sequence[str], file: Path | None) -> KnownNames:
    """Read the names from `--collective` and from a YAML file with `collectives`, `ranks` and `sizes`."""
    values: dict[str, Any] = {}
    if file is not None:
        values = spec.read_values(file, "file of --names")
        known = ("collectives", "ranks", "sizes")
        if other := [name for name in values if name not in known]:
            raise SpecError(f"--names has an unknown key. Received: {other[0]!r}. Use {', '.join(known)}.")
        if not all(
            isinstance(entries, list) and all(isinstance(entry, str) for entry in entries) for entries in values.values()
        ):
            raise SpecError(f"--names must hold lists of names. Received: {file}. Use {', '.join(known)}.")
    for dotted in names:
        if not all(part.isidentifier() for part in dotted.split(".")):
            raise SpecError(f"--collective must be a name of Python. Received: {dotted!r}. Use e.g. horovod.torch.allreduce.")
    return KnownNames(
        frozenset([*names, *values.get("collectives", [])]),
        frozenset(values.get("ranks", [])),
        frozenset(values.get("sizes", [])),
    )
