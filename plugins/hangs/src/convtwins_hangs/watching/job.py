"""The processes of a job, and which of them are its ranks."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import psutil

from common.machine import footprint
from common.spec import SpecError
from convtwins_hangs.watching import stacks

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK", "SLURM_PROCID")
"""Environment variables where launchers pass the rank. The variable with the most different values counts."""
_MAX_DIGITS = 9
"""Maximum digits of a rank. The text comes from the job and may be anything."""
_STARTING_SECONDS = 60.0
"""Seconds after its start where a process may not have reached the function that knows its rank."""


class ProcessInfo(NamedTuple):
    """A process of the job."""

    pid: int
    parent: int
    environment: Mapping[str, str]
    """Environment at the start of the process. Empty where it may not be read."""


class ProcessGroup(NamedTuple):
    """Processes that form one rank, or that start the ranks."""

    name: str
    number: int | None
    """Number of the rank. None: unknown."""
    pids: list[int]
    """Process ids. The first one started the others."""
    environment: Mapping[str, str]
    """Environment of the first process."""
    is_rank: bool

    @property
    def order(self) -> tuple[bool, int, str]:
        """Sort key: ranks first, by number."""
        return not self.is_rank, -1 if self.number is None else self.number, self.name


class WatchedJob:
    """A job: the processes that a user named and all that they start.

    Args:
        pids: the processes that the user named.
        dump: takes the stacks of a process.
    """

    def __init__(self, pids: Sequence[int], dump: Callable[[int], stacks.StackDump] = stacks.dump) -> None:
        self._dump = dump
        self._roots: list[psutil.Process] = []
        for pid in dict.fromkeys(pids):
            try:
                self._roots.append(psutil.Process(pid))
            except (psutil.NoSuchProcess, ValueError, OverflowError):
                raise (
                    _hidden_error(pid)
                    if _is_hidden(pid)
                    else SpecError(f"There is no such process. Received: {pid}. `ps -ef` lists them.")
                ) from None
        self._known_processes: dict[psutil.Process, None] = {}
        """All processes seen so far. Ranks whose launcher has ended have another parent and still belong to the job."""
        self._environments: dict[psutil.Process, tuple[str, dict[str, str]]] = {}
        """(stack start, environment) of each process. The stack start changes when a shell executes another program."""
        self._ranks_in_locals: dict[psutil.Process, int | None] = {}
        """Ranks found in the processes' local variables, read once. None: there is none."""

    def processes(self) -> list[psutil.Process]:
        """Return the living processes, parents first. The watcher and its children are excluded unless named by the user."""
        watcher = psutil.Process()
        processes: dict[psutil.Process, None] = {}
        for descendant in [*self._roots, *self._known_processes]:
            try:
                if descendant not in processes and descendant.is_running():
                    below = descendant.children(recursive=True)
                    watcher_processes = (
                        {watcher, *watcher.children(recursive=True)} if watcher in below else set[psutil.Process]()
                    )
                    processes |= dict.fromkeys(
                        [descendant, *(process for process in below if process not in watcher_processes)]
                    )
            except psutil.NoSuchProcess:
                continue
            except psutil.AccessDenied:
                raise _hidden_error(descendant.pid) from None
        self._known_processes = processes
        return list(processes)

    def groups(self) -> list[ProcessGroup]:
        """Return the ranks in order, then the processes that are no rank."""
        living: dict[psutil.Process, ProcessInfo] = {}
        for process in self.processes():
            try:
                living[process] = ProcessInfo(process.pid, process.ppid(), self._environment(process))
            except psutil.NoSuchProcess:
                continue
            except psutil.AccessDenied:
                raise _hidden_error(process.pid) from None
        processes = list(living.values())
        ranks = ranks_from_environment(processes)
        if len(set(ranks.values())) < 2 and len(processes) > 1:  # a batch system tells all processes of a node the same
            ranks_in_locals = self._find_ranks_in_locals(living)
            ranks = ranks_in_locals if len(set(ranks_in_locals.values())) > 1 else ranks or ranks_in_locals
        return group_by_rank(processes, ranks)

    def _environment(self, process: psutil.Process) -> dict[str, str]:
        stack_start = footprint.stack_start(process.pid)
        known = self._environments.get(process)
        if known is None or (known[0] != stack_start and stack_start not in _ENDED_STACK_STARTS):
            if known is not None:
                del self._environments[process]
                self._ranks_in_locals.pop(process, None)
            try:
                environment = process.environ()
            except (psutil.AccessDenied, psutil.ZombieProcess, OSError):
                environment = dict[str, str]()
            if not environment:  # a program that starts has none for a moment
                return {}
            known = self._environments[process] = stack_start, environment
        return known[1]

    def _find_ranks_in_locals(self, living: Mapping[psutil.Process, ProcessInfo]) -> dict[int, str]:
        """Find the ranks of processes that got theirs as an argument, e.g. by torch.multiprocessing.spawn.

        Processes started by a rank, such as input workers, and those that started the ranks are not searched.
        """
        parents = {info.pid: info.parent for info in living.values()}
        for generation in _generations(parents):
            heads = _rank_processes({process.pid: rank for process, rank in self._ranks_in_locals.items()}, parents)
            known = _descendants(heads, parents) | {parents[head] for head in heads if head in parents}
            for process in living:
                if process.pid not in generation or process.pid in known:
                    continue
                is_new = time.time() - process.create_time() < _STARTING_SECONDS
                if process not in self._ranks_in_locals or (self._ranks_in_locals[process] is None and is_new):
                    self._ranks_in_locals[process] = self._dump(process.pid).rank
        ranks = {process.pid: str(rank) for process in living if (rank := self._ranks_in_locals.get(process)) is not None}
        # Who started the ranks may have a variable of that name too.
        starters = {info.parent for info in living.values() if info.pid in ranks and ranks.get(info.parent) != ranks[info.pid]}
        return {pid: rank for pid, rank in ranks.items() if pid not in starters}


_ENDED_STACK_STARTS = ("", "0")
"""Stack starts of zombie processes. They keep the environment that they had."""


def _is_hidden(pid: int) -> bool:
    """Return whether a process exists but is hidden: a signal to it is refused."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _hidden_error(pid: int) -> SpecError:
    return SpecError(
        f"The system hides processes of other users (/proc is mounted with hidepid). Received: {pid}. "
        "Run the command as root, or, with hidepid=2, as the user of the job."
    )


def _generations(parents: Mapping[int, int]) -> list[list[int]]:
    """Return the processes by their distance from those that a user named."""
    generations: list[list[int]] = [[pid for pid, parent in parents.items() if parent not in parents]]
    while generation := [pid for pid, parent in parents.items() if parent in generations[-1]]:
        generations.append(generation)
    return generations


def _rank_processes(ranks_by_process: Mapping[int, int | None], parents: Mapping[int, int]) -> set[int]:
    """Return the processes with a rank whose siblings have other ranks. A process that starts ranks may have one too."""
    by_parent: dict[int | None, dict[int, int]] = defaultdict(dict)
    for pid, rank in ranks_by_process.items():
        if rank is not None:
            by_parent[parents.get(pid)][pid] = rank
    return {pid for ranks in by_parent.values() if len(set(ranks.values())) > 1 for pid in ranks}


def _descendants(heads: set[int], parents: Mapping[int, int]) -> set[int]:
    """Return all descendants of these processes."""
    descendants: set[int] = set()
    for generation in _generations(parents):
        descendants |= {pid for pid in generation if parents[pid] in heads or parents[pid] in descendants}
    return descendants


def ranks_from_environment(processes: Sequence[ProcessInfo]) -> dict[int, str]:
    """Return the ranks of processes from their environment: `0`, or `worker 0` of TF_CONFIG."""
    by_variable: list[dict[int, str]] = [
        {info.pid: info.environment[variable] for info in processes if is_number(info.environment.get(variable, ""))}
        for variable in _RANK_VARIABLES
    ]
    tasks = {info.pid: task for info in processes if (task := _tensorflow_task(info.environment.get("TF_CONFIG", "")))}
    return max([*by_variable, tasks], key=lambda ranks: len(set(ranks.values())))


def is_number(text: str) -> bool:
    """Return whether a text from a job is a whole number of a usual size."""
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _tensorflow_task(config: str) -> str:
    try:
        task = json.loads(config)["task"]
        return f"{task['type']} {task['index']}"
    except (ValueError, KeyError, TypeError):
        return ""


def group_by_rank(processes: Sequence[ProcessInfo], ranks: Mapping[int, str]) -> list[ProcessGroup]:
    """Group the processes by rank. A process started by a rank inherits the rank in its environment.

    Args:
        processes: parents first.
        ranks: rank of each process. Empty: each process that a user named is one rank, with all that it started.
    """
    heads: dict[int, int] = {}
    for info in processes:
        rank = ranks.get(info.pid)
        is_head = info.parent not in heads or (rank is not None and rank != ranks.get(info.parent))
        heads[info.pid] = info.pid if is_head else heads[info.parent]
    members: dict[int, list[int]] = defaultdict(list)
    for pid, head in heads.items():
        members[head].append(pid)
    environments = {info.pid: info.environment for info in processes}
    groups: list[ProcessGroup] = []
    for head, pids in members.items():
        rank = ranks.get(head)
        number = int(rank) if rank is not None and is_number(rank) else None
        name = f"rank {rank}" if number is not None else rank
        groups.append(ProcessGroup(name or f"process {head}", number, pids, environments[head], rank is not None or not ranks))
    duplicate_names = {group.name for group in groups if [other.name for other in groups].count(group.name) > 1}
    unique_groups = [
        group._replace(name=f"{group.name} (process {group.pids[0]})") if group.name in duplicate_names else group
        for group in groups
    ]
    return sorted(unique_groups, key=lambda group: group.order)
