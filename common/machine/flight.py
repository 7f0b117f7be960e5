"""The flight recorder: the last exchanges of this process with other ranks, in memory that its watcher maps too.

A ring of records. A record is written with one call and no lock. The watcher reads the ring when a rank hangs or has died,
after SIGKILL too. `common.watching.flight_report` lines the rings of all ranks up.
"""

from __future__ import annotations

import itertools
import struct
import time
from functools import cache
from typing import Any, NamedTuple, Protocol

NUM_RECORDS = 256
"""Capacity of the ring, in records."""

KINDS = (
    # As `concurrency` and the frameworks name them.
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "send", "receive", "exchange", "new_group"),
    # What a framework does as a whole, see docs/hangs.md.
    *("rendezvous", "set_up", "gradients", "step_graph"),
    # What workers ask their parameter server.
    *("join", "sum", "load", "load_slots", "push", "pull", "slots", "late"),
)
"""Kinds of exchanges. A record stores the index."""

DTYPES = (
    "",
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
)
"""Dtypes of the values that were sent. Empty: not recorded. A record stores the index."""

_DIMENSIONS = 4
_EXCHANGE = struct.Struct("<q4qiiiBBBB")
"""bytes, shape, ranks (first, step, size, directed), kind, dtype, dimensions."""
_LAYOUT = struct.Struct(f"<qqqq{_EXCHANGE.size}sq")
"""number, sequence, begin, end, exchange, number again."""
_END = struct.Struct("<q")
_END_OFFSET = 24

_RECORD_BYTES = _LAYOUT.size
BYTES = NUM_RECORDS * _RECORD_BYTES
"""Size of the ring."""

_KIND_CODES = {name: code for code, name in enumerate(KINDS)}
_DTYPE_CODES = {name: code for code, name in enumerate(DTYPES)}
_MAX_PACKED = 10_000
"""Largest number of different exchanges that one channel keeps packed."""
MAX_RANKS = 4096
"""Largest number of ranks in a job. A corrupt record may name any number."""

# Bound once: a lookup in a module takes as long as what it finds here.
_pack, _pack_end, _number_at, _now = _LAYOUT.pack_into, _END.pack_into, _END.unpack_from, time.monotonic_ns
_numbers = itertools.count(1)  # several threads may record; `next` is one call in C

# Of this process: nobody reads it, until `attach` gives the watcher's.
_ring: bytearray | memoryview = bytearray(BYTES)


class ExchangeObserver(Protocol):
    """Callbacks at the begin and the end of every exchange, in the thread that records it."""

    def begin(self, number: int, kind: str) -> None: ...
    def end(self, number: int) -> None: ...


_observer: ExchangeObserver | None = None


class RankRange(NamedTuple):
    """Ranks that exchange with each other: `size` of them, from `first` on, each `step` above the one before."""

    first: int
    step: int
    size: int
    directed: bool = False
    """Whether the first sends to the second, and nothing else."""

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(self.first + self.step * place for place in range(self.size))

    @property
    def are_valid(self) -> bool:
        if not 0 < self.size <= MAX_RANKS or (self.directed and self.size != 2):
            return False
        ends = self.first, self.first + self.step * (self.size - 1)
        return min(ends) >= 0 and max(ends) < MAX_RANKS


_UNEVEN = RankRange(0, 0, 0)
"""Range of a group that a record cannot name. `read` leaves its records out."""


class ExchangeRecord(NamedTuple):
    """One exchange of one rank."""

    number: int
    """Count of the exchanges that the rank has begun, from 1."""
    ranks: RankRange
    sequence: int
    """Count of the exchanges of the rank with these ranks, from 1. The same number in all ranks is the same exchange."""
    kind: str
    dtype: str
    shape: tuple[int, ...]
    """The first four sizes, if there are more."""
    num_bytes: int
    """Bytes that this rank sends or receives."""
    begin_ns: int
    """Begin by the monotonic clock of the rank's machine, in nanoseconds."""
    end_ns: int
    """End by the same clock, in nanoseconds. 0: the exchange has not ended."""


class Flight(NamedTuple):
    """The ring of one rank, as it was read."""

    taken_ns: int
    """Time of the reading on the clock of the records, in nanoseconds."""
    records: list[ExchangeRecord]
    """Exchanges in the order that they began."""

    @classmethod
    def from_json(cls, received: Any) -> Flight:
        """Build a Flight from the JSON that another machine sent."""
        taken_ns, records = received
        return cls(
            taken_ns,
            [
                ExchangeRecord(number, RankRange(*ranks), sequence, kind, dtype, tuple(shape), *rest)
                for number, ranks, sequence, kind, dtype, shape, *rest in records
            ],
        )


class Channel:
    """Ranks that exchange with each other, as seen by this one. Create it with `group_channel` or `p2p_channel`."""

    def __init__(self, ranks: RankRange) -> None:
        self._ranks = ranks
        self._sequences = itertools.count(1)
        self._packed_exchanges: dict[tuple[str, str, tuple[int, ...], int], bytes] = {}
        """Packed form of exchanges that were recorded before."""

    def begin(self, kind: str, dtype: str = "", shape: tuple[int, ...] = (), num_bytes: int = 0) -> int:
        """Record that an exchange begins. Returns its number, for `end`.

        Args:
            kind: one of KINDS.
            dtype: one of DTYPES. Any other is not recorded.
            shape: shape of the values. All ranks must have the same, else the report says that they do not match.
            num_bytes: bytes that this rank sends or receives.
        """
        key = kind, dtype, shape, num_bytes
        exchange = self._packed_exchanges.get(key) or self._packed(*key)
        number = next(_numbers)
        # The number stands first and last: who reads while it is written will mostly see that they differ.
        _pack(_ring, number % NUM_RECORDS * _RECORD_BYTES, number, next(self._sequences), _now(), 0, exchange, number)
        if _observer is not None:
            _observer.begin(number, kind)
        return number

    def _packed(self, kind: str, dtype: str, shape: tuple[int, ...], num_bytes: int) -> bytes:
        sizes = (*shape, *[0] * _DIMENSIONS)[:_DIMENSIONS]
        codes = _KIND_CODES[kind], _DTYPE_CODES.get(dtype, 0), min(len(shape), _DIMENSIONS)
        exchange = _EXCHANGE.pack(num_bytes, *sizes, *self._ranks, *codes)
        if len(self._packed_exchanges) < _MAX_PACKED:
            self._packed_exchanges[kind, dtype, tuple(shape), num_bytes] = exchange
        return exchange


def end(number: int) -> None:
    """Record that an exchange has ended."""
    place = number % NUM_RECORDS * _RECORD_BYTES
    if _number_at(_ring, place) == (number,):  # else 256 have begun since
        _pack_end(_ring, place + _END_OFFSET, _now())
    if _observer is not None:
        _observer.end(number)


@cache
def group_channel(ranks: tuple[int, ...]) -> Channel:
    """Return the channel of these ranks. All of them must begin the same exchanges in the same order.

    Exchanges of ranks that are not evenly spaced, such as 0, 1, 3, are not recorded.
    """
    first, second, *_ = *ranks, ranks[0] + 1
    rank_range = RankRange(first, second - first, len(ranks))
    return Channel(rank_range if rank_range.members == ranks else _UNEVEN)


@cache
def p2p_channel(source: int, destination: int) -> Channel:
    """Return the channel of messages from one rank to another. One records that it sends, the other that it receives."""
    return Channel(RankRange(source, destination - source, 2, directed=True))


def attach(ring: memoryview) -> None:
    """Record into memory that a watcher maps, BYTES of zeros."""
    global _ring
    _ring = ring


def observe(observer: ExchangeObserver | None) -> None:
    """Call this observer at every exchange from now on. None: no observer."""
    global _observer
    _observer = observer


def read(ring: bytes, ring_again: bytes, taken_ns: int) -> Flight:
    """Return the records of a ring that was read twice. A record that was begun in between is left out."""
    records: list[ExchangeRecord] = []
    for earlier, later in zip(_LAYOUT.iter_unpack(ring), _LAYOUT.iter_unpack(ring_again), strict=True):
        number, sequence, begin_ns, end_ns, exchange, number_again = later
        num_bytes, *sizes, first, step, count, directed, kind, dtype, dimensions = _EXCHANGE.unpack(exchange)
        is_whole = number == number_again and (number, sequence, begin_ns, exchange) == (*earlier[:3], earlier[4])
        # A process that writes where it should not may have corrupted it. The report must come all the same.
        ranks, shape = RankRange(first, step, count, bool(directed)), tuple(sizes[:dimensions])
        if number and is_whole and ranks.are_valid and kind < len(KINDS) and dtype < len(DTYPES):
            records.append(
                ExchangeRecord(number, ranks, sequence, KINDS[kind], DTYPES[dtype], shape, num_bytes, begin_ns, end_ns)
            )
    return Flight(taken_ns, sorted(records))
