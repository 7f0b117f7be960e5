"""Simulates tasks on devices and links as discrete events, and splits the time of each device."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["compute", "input", "communication"]


class Task(NamedTuple):
    """Work of one resource without a break."""

    resource: str
    """Name of a device, a link or a server, which does one task at a time."""
    seconds: float
    needs: tuple[int, ...] = ()
    """Indices of earlier tasks that must end before this one begins."""
    kind: Kind = "compute"


class TaskTiming(NamedTuple):
    """Times in seconds when a task was ready, began and ended."""

    ready: float
    start: float
    end: float


class Parts(NamedTuple):
    """Parts of the devices' time: means over devices, in seconds. The four parts add up to the whole time."""

    compute: float
    input: float
    exposed: float
    """Seconds when a device waits for communication."""
    bubble: float
    """Seconds when a device waits for the computing of another device."""

    @property
    def total(self) -> float:
        return sum(self)


def run(tasks: Sequence[Task]) -> list[TaskTiming]:
    """Simulate tasks. A free resource takes the task that has been ready for longest, of equal ones the first in the list.

    Raises:
        ValueError: a task needs a later one, or takes less than no time.
    """
    for place, task in enumerate(tasks):
        if any(not 0 <= need < place for need in task.needs) or task.seconds < 0:
            raise ValueError(f"A task needs earlier tasks and takes 0 seconds or more. Received: {task} at {place}.")
    missing = [len(set(task.needs)) for task in tasks]
    followers: list[list[int]] = [[] for _ in tasks]
    for place, task in enumerate(tasks):
        for need in set(task.needs):
            followers[need].append(place)
    waiting: dict[str, list[tuple[float, int]]] = {task.resource: [] for task in tasks}
    busy = dict.fromkeys(waiting, False)
    spans: dict[int, TaskTiming] = {}
    events: list[tuple[float, int]] = []
    """Heap of (time, index) of the tasks' ends."""

    def begin(resource: str, now: float) -> None:
        if not busy[resource] and waiting[resource]:
            ready, place = heapq.heappop(waiting[resource])
            spans[place] = TaskTiming(ready, now, now + tasks[place].seconds)
            busy[resource] = True
            heapq.heappush(events, (spans[place].end, place))

    for place, task in enumerate(tasks):
        if not missing[place]:
            heapq.heappush(waiting[task.resource], (0.0, place))
    for resource in waiting:
        begin(resource, 0.0)
    while events:
        now = events[0][0]
        changed: dict[str, None] = {}
        while events and events[0][0] == now:
            _, place = heapq.heappop(events)
            busy[tasks[place].resource] = False
            changed[tasks[place].resource] = None
            for other in followers[place]:
                missing[other] -= 1
                if not missing[other]:
                    heapq.heappush(waiting[tasks[other].resource], (now, other))
                    changed[tasks[other].resource] = None
        for resource in changed:
            begin(resource, now)
    return [spans[place] for place in range(len(tasks))]


def parts(tasks: Sequence[Task], spans: Sequence[TaskTiming], devices: Sequence[str]) -> Parts:
    """Split the time of each device, from 0 to the end of all tasks.

    An idle device waits for the tasks that its next one needs. The walk back over them says how much of the wait is
    communication: its sending, and its queueing for a link.
    """
    end = max((span.end for span in spans), default=0.0)
    tasks_by_device: dict[str, list[int]] = {device: [] for device in devices}
    for place in sorted(range(len(tasks)), key=lambda place: (spans[place].start, spans[place].end)):
        if tasks[place].resource in tasks_by_device:
            tasks_by_device[tasks[place].resource].append(place)
    blockers = [max(task.needs, key=lambda need: spans[need].end) if task.needs else None for task in tasks]
    last = max(range(len(tasks)), key=lambda place: spans[place].end, default=0)

    def communication_seconds(place: int | None, begin: float, end: float) -> float:
        """Return the seconds of communication in an interval, on the path of tasks that ends with this one."""
        total, now = 0.0, end
        while place is not None and now > begin:
            sends = tasks[place].kind == "communication"
            start = max(begin, min(spans[place].ready if sends else spans[place].start, now))
            total += (now - start) * sends
            now, place = start, blockers[place]
        return total

    sums = {"compute": 0.0, "input": 0.0, "exposed": 0.0, "bubble": 0.0}
    for places in tasks_by_device.values():
        free = 0.0
        for place in places:
            exposed = communication_seconds(blockers[place], free, spans[place].start)
            sums["exposed"] += exposed
            sums["bubble"] += spans[place].start - free - exposed
            sums["input" if tasks[place].kind == "input" else "compute"] += tasks[place].seconds
            free = spans[place].end
        tail = communication_seconds(last, free, end) if places else 0.0
        sums["exposed"] += tail
        sums["bubble"] += end - free - tail
    number = max(len(devices), 1)
    return Parts(**{name: seconds / number for name, seconds in sums.items()})
