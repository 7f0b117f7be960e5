"""The flight recorder: the last exchanges of this process with other ranks, in memory that its watcher maps too.

A ring of records. A record is written with one call and no lock. The watcher reads the ring when a rank hangs or has died,
after SIGKILL too. `common.processes.flight_report` lines the rings of all ranks up.
"""

from __future__ import annotations

import itertools
import struct
import time
from functools import cache
from typing import Any, NamedTuple, Protocol

SIZE = 256
"""Records that are kept."""

KINDS = (
    # As `concurrency` and the frameworks name them.
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "send", "receive", "exchange", "new_group"),
    # What a framework does as a whole, see docs/hangs.md.
    *("rendezvous", "set_up", "gradients", "step_graph"),
    # What workers ask their parameter server.
    *("join", "sum", "load", "load_slots", "push", "pull", "slots", "late"),
)
"""Of a record: what was exchanged. Its code is its place."""

DTYPES = (
    "",
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
)
"""Of the values that were sent; empty: not told."""

_DIMENSIONS = 4
_WHAT = struct.Struct("<q4qiiiBBBB")
"""bytes, shape, ranks (first, step, number, directed), kind, dtype, dimensions."""
_LAYOUT = struct.Struct(f"<qqqq{_WHAT.size}sq")
"""number, sequence, begin, end, what, number again."""
_END = struct.Struct("<q")
_END_OFFSET = 24

_RECORD_BYTES = _LAYOUT.size
BYTES = SIZE * _RECORD_BYTES
"""Size of the ring."""

_KIND_CODES = {name: code for code, name in enumerate(KINDS)}
_DTYPE_CODES = {name: code for code, name in enumerate(DTYPES)}
_MOST_KNOWN = 10_000
"""Different exchanges of one channel that are kept packed."""
MOST_RANKS = 4096
"""Of a job. A spoilt record may say anything."""

# Bound once: a lookup in a module takes as long as what it finds here.
_pack, _pack_end, _number_at, _now = _LAYOUT.pack_into, _END.pack_into, _END.unpack_from, time.monotonic_ns
_numbers = itertools.count(1)  # several threads may record; `next` is one call in C

# Of this process: nobody reads it, until `attach` gives the watcher's.
_ring: bytearray | memoryview = bytearray(BYTES)


class Marks(Protocol):
    """Sees every exchange begin and end, in the thread that records it."""

    def begin(self, number: int, kind: str) -> None: ...
    def end(self, number: int) -> None: ...


_marks: Marks | None = None


class Ranks(NamedTuple):
    """Ranks that exchange with each other: `number` of them, from `first` on, each `step` above the one before."""

    first: int
    step: int
    number: int
    directed: bool = False
    """Whether the first sends to the second, and nothing else."""

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self.first + self.step * place for place in range(self.number))

    @property
    def are_valid(self) -> bool:
        if not 0 < self.number <= MOST_RANKS or (self.directed and self.number != 2):
            return False
        ends = self.first, self.first + self.step * (self.number - 1)
        return min(ends) >= 0 and max(ends) < MOST_RANKS


_UNEVEN = Ranks(0, 0, 0)
"""Of a group that a record cannot name. `read` leaves its records out."""


class Record(NamedTuple):
    """One exchange of one rank."""

    number: int
    """Counts all that the rank has begun, from 1."""
    ranks: Ranks
    sequence: int
    """Counts those of the rank with these ranks, from 1. The same number at all of them is the same exchange."""
    kind: str
    dtype: str
    shape: tuple[int, ...]
    """The first four sizes, if there are more."""
    num_bytes: int
    """That this rank hands over or receives."""
    begin_ns: int
    """Monotonic clock of the rank's machine."""
    end_ns: int
    """0: it has not ended."""


class Flight(NamedTuple):
    """What the ring of one rank held."""

    taken_ns: int
    """When, on the clock of the records."""
    records: list[Record]
    """In their order."""

    @classmethod
    def from_json(cls, received: Any) -> Flight:
        """What another machine sent as JSON."""
        taken_ns, records = received
        return cls(
            taken_ns,
            [
                Record(number, Ranks(*ranks), sequence, kind, dtype, tuple(shape), *rest)
                for number, ranks, sequence, kind, dtype, shape, *rest in records
            ],
        )


class Channel:
    """Ranks that exchange with each other, as seen by this one. Make it with `channel` or `way`."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._sequences = itertools.count(1)
        self._known: dict[tuple[str, str, tuple[int, ...], int], bytes] = {}
        """What was exchanged before, packed."""

    def begin(self, kind: str, dtype: str = "", shape: tuple[int, ...] = (), num_bytes: int = 0) -> int:
        """Record that an exchange begins; its number, for `end`.

        Args:
            kind: of KINDS.
            dtype: of DTYPES. Any other is not told.
            shape: of the values. All ranks must have the same, else the report says that they do not match.
            num_bytes: that this rank hands over or receives.
        """
        key = kind, dtype, shape, num_bytes
        what = self._known.get(key) or self._packed(*key)
        number = next(_numbers)
        # The number stands first and last: who reads while it is written will mostly see that they differ.
        _pack(_ring, number % SIZE * _RECORD_BYTES, number, next(self._sequences), _now(), 0, what, number)
        if _marks is not None:
            _marks.begin(number, kind)
        return number

    def _packed(self, kind: str, dtype: str, shape: tuple[int, ...], num_bytes: int) -> bytes:
        sizes = (*shape, *[0] * _DIMENSIONS)[:_DIMENSIONS]
        codes = _KIND_CODES[kind], _DTYPE_CODES.get(dtype, 0), min(len(shape), _DIMENSIONS)
        what = _WHAT.pack(num_bytes, *sizes, *self._ranks, *codes)
        if len(self._known) < _MOST_KNOWN:
            self._known[kind, dtype, tuple(shape), num_bytes] = what
        return what


def end(number: int) -> None:
    """Record that an exchange has ended."""
    place = number % SIZE * _RECORD_BYTES
    if _number_at(_ring, place) == (number,):  # else 256 have begun since
        _pack_end(_ring, place + _END_OFFSET, _now())
    if _marks is not None:
        _marks.end(number)


@cache
def channel(ranks: tuple[int, ...]) -> Channel:
    """The channel of these ranks. All of them must begin the same exchanges in the same order.

    Exchanges of ranks that are not evenly spaced, such as 0, 1, 3, are not recorded.
    """
    first, second, *_ = *ranks, ranks[0] + 1
    found = Ranks(first, second - first, len(ranks))
    return Channel(found if found.members == ranks else _UNEVEN)


@cache
def way(source: int, destination: int) -> Channel:
    """The channel of messages from one rank to another. One records that it sends, the other that it receives."""
    return Channel(Ranks(source, destination - source, 2, directed=True))


def attach(ring: memoryview) -> None:
    """Record into memory that a watcher maps, BYTES of zeros."""
    global _ring
    _ring = ring


def mark(marks: Marks | None) -> None:
    """Tell of every exchange from now on; None: nobody."""
    global _marks
    _marks = marks


def read(ring: bytes, ring_again: bytes, taken_ns: int) -> Flight:
    """The records of a ring that was read twice. A record that was begun in between is left out."""
    found: list[Record] = []
    for before, now in zip(_LAYOUT.iter_unpack(ring), _LAYOUT.iter_unpack(ring_again), strict=True):
        number, sequence, begin, ended, what, again = now
        num_bytes, *sizes, first, step, count, directed, kind, dtype, dimensions = _WHAT.unpack(what)
        is_whole = number == again and (number, sequence, begin, what) == (*before[:3], before[4])
        # A process that writes where it should not may have spoilt it. The report must come all the same.
        ranks, shape = Ranks(first, step, count, bool(directed)), tuple(sizes[:dimensions])
        if number and is_whole and ranks.are_valid and kind < len(KINDS) and dtype < len(DTYPES):
            found.append(Record(number, ranks, sequence, KINDS[kind], DTYPES[dtype], shape, num_bytes, begin, ended))
    return Flight(taken_ns, sorted(found))
