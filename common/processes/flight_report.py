"""Which exchange of a run does not match: the flight recorders of its ranks, lined up by their sequence numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common.machine.flight import Flight, RankRange, ExchangeRecord

FILE = "collectives.txt"
"""Beside the stacks: the last records of every rank."""
_LISTED = 32
"""Records of a rank in the file."""
_STATES = {"send": "has begun", "gradients": "is in", "step_graph": "is in"}
"""Words for a record that has not ended, by its kind. Others wait. The last two compute as well."""
_PLURALS = {"has": "have", "is": "are", "waits": "wait"}


class Rank(NamedTuple):
    """What is known of one rank. Its place among all ranks is its number."""

    name: str
    """As a message names it, e.g. `rank 1`."""
    flight: Flight | None
    """None: it could not be read."""
    has_ended: bool = False


class Mismatch(NamedTuple):
    """The exchange that explains why ranks stand still."""

    words: str
    missing: list[int]
    """Ranks that have not come to it."""


def mismatch(ranks: Sequence[Rank]) -> Mismatch | None:
    """The first exchange that does not match, or the one that all ranks wait in. None: no rank is in one.

    An exchange that differs between ranks comes first. The next is an exchange that one rank waits in and another has not
    begun. Of several such, it is the one whose missing rank does not wait itself, else the one begun first.
    """
    exchanges = [each for each in _lined_up(ranks) if each.differs or each.waiting]
    # Who sends goes on meanwhile.
    blocked = {rank for each in exchanges if each.missing for rank in each.waiting if each.found[rank].kind != "send"}

    def order(each: _Exchange) -> tuple[bool, bool, bool, float]:
        is_free = any(rank not in blocked for rank in each.missing)
        return not each.differs, not each.missing, not is_free, -each.age_seconds

    first = min(exchanges, key=order, default=None)
    return None if first is None else Mismatch(first.words(ranks), first.missing)


def sentence(ranks: Sequence[Rank]) -> str | None:
    """See `mismatch`."""
    found = mismatch(ranks)
    return None if found is None else found.words


def save(ranks: Sequence[Rank], folder: Path) -> Path:
    """Write the last records of every rank; the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text("\n".join(line for rank in ranks for line in _table(rank)), encoding="utf-8")
    return path


class _Exchange(NamedTuple):
    """One exchange, as the ranks that take part in it have recorded it."""

    ranks: RankRange
    sequence: int
    found: dict[int, ExchangeRecord]
    missing: list[int]
    """Ranks that have not come to it."""
    waiting: list[int]
    """Ranks that have begun it, and have not ended it. Where a later one has ended, it was given up."""
    age_seconds: float
    """Since the first began it."""

    @property
    def differs(self) -> bool:
        what = {(each.dtype, each.shape, each.kind if not self.ranks.directed else "") for each in self.found.values()}
        return len(what) > 1

    def words(self, ranks: Sequence[Rank]) -> str:
        groups: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(self.found, key=lambda rank: (rank not in self.waiting, rank)):
            groups[self._state(rank, ranks)].append(rank)
        for rank in self.missing:
            groups[self._absence(rank, ranks)].append(rank)
        told = [
            f"{_joined([ranks[rank].name for rank in group])} {_number(words, len(group))}" for words, group in groups.items()
        ]
        name = _name(self.ranks, self.sequence, ranks)
        return f"{name[0].upper()}{name[1:]}, begun {self.age_seconds:.1f} s ago: {'; '.join(told)}"

    def _state(self, rank: int, ranks: Sequence[Rank]) -> str:
        record, what = self.found[rank], _what(self.found[rank])
        if record.end_ns:
            return f"has done {what}"
        if ranks[rank].has_ended:
            return f"has ended in {what}"
        return f"{_STATES.get(record.kind, 'waits in')} {what}"

    def _absence(self, rank: int, ranks: Sequence[Rank]) -> str:
        """Why it is not among the records of a rank."""
        words = "has ended before it" if ranks[rank].has_ended else "has not come to it"
        taken = ranks[rank].flight
        records = taken.records if taken is not None else []
        if not records:
            return f"{words}, nor to any other"
        if records[0].number > 1 and all(record.ranks != self.ranks for record in records):
            words += f", as far as its last {len(records)} tell"
        own = records[-1]
        name = str(own.sequence) if own.ranks == self.ranks else _name(own.ranks, own.sequence, ranks)
        state = f"done {_seconds_since(own.end_ns, ranks[rank]):.1f} s ago" if own.end_ns else "not done"
        return f"{words}: its last was {name}, {own.kind}, {state}"


def _lined_up(ranks: Sequence[Rank]) -> Iterator[_Exchange]:
    """Every exchange that a rank has recorded."""
    recorded: dict[tuple[RankRange, int], dict[int, ExchangeRecord]] = defaultdict(dict)
    last: dict[tuple[RankRange, int], int] = defaultdict(int)
    done: dict[tuple[RankRange, int], int] = defaultdict(int)
    for rank, (_, taken, _) in enumerate(ranks):
        for record in taken.records if taken is not None else ():
            recorded[record.ranks, record.sequence][rank] = record
            last[record.ranks, rank] = max(last[record.ranks, rank], record.sequence)
            if record.end_ns:
                done[record.ranks, rank] = max(done[record.ranks, rank], record.sequence)
    for (among, sequence), found in recorded.items():
        # A rank that has come further has overwritten its record. One whose recorder could not be read is not blamed.
        missing = [
            rank
            for rank in among.members
            if rank < len(ranks) and ranks[rank].flight is not None and last[among, rank] < sequence
        ]
        waiting = [rank for rank, record in found.items() if not record.end_ns and done[among, rank] < sequence]
        age = max(_seconds_since(record.begin_ns, ranks[rank]) for rank, record in found.items())
        yield _Exchange(among, sequence, found, missing, waiting, age)


def _name(among: RankRange, sequence: int, ranks: Sequence[Rank]) -> str:
    members = [ranks[rank].name if rank < len(ranks) else f"rank {rank}" for rank in among.members]
    if among.directed:
        return f"message {sequence} from {members[0]} to {members[1]}"
    return f"collective {sequence}{'' if len(members) == len(ranks) else f' of {_joined(members)}'}"


def _what(record: ExchangeRecord) -> str:
    """An exchange in words, e.g. `all_reduce of 4 x 25 float32 (400 bytes)`."""
    sizes = " x ".join(map(str, record.shape))
    if record.kind == "step_graph":
        held = (
            f"{sizes} collective{'' if record.shape == (1,) else 's'}, {record.num_bytes:,} bytes" if sizes else "not counted"
        )
        return f"the graph of a step ({held})"
    if record.kind == "new_group":
        return f"new_group of ranks {', '.join(map(str, record.shape))}"
    of = f" of {sizes}{' ' if sizes else ''}{record.dtype}" if record.dtype else ""
    return f"{record.kind}{of}{f' ({record.num_bytes:,} bytes)' if record.num_bytes else ''}"


def _number(words: str, count: int) -> str:
    """Words about one rank, about so many."""
    if count == 1:
        return words
    verb, rest = words.split(" ", 1)
    return f"{_PLURALS[verb]} {rest.replace(' its ', ' their ')}"


def _seconds_since(moment_ns: int, rank: Rank) -> float:
    assert rank.flight is not None
    return (rank.flight.taken_ns - moment_ns) / 1e9


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _table(rank: Rank) -> Iterator[str]:
    if rank.flight is None:
        yield f"{rank.name}: its recorder could not be read.\n"
        return
    records = rank.flight.records
    kept = f", of which the last {len(records)} are kept" if records and records[0].number > 1 else ""
    begun = records[-1].number if records else 0
    yield f"{rank.name}{', which has ended' if rank.has_ended else ''}: {begun} exchanges{kept}"
    yield f"  {'with':<24} {'number':>8}  {'begun':>12}  {'took':>12}  what"
    for record in records[-_LISTED:]:
        members = record.ranks.members
        among = f"{members[0]} -> {members[1]}" if record.ranks.directed else f"{', '.join(map(str, members))}"
        begun = f"{_seconds_since(record.begin_ns, rank):.3f} s ago"
        took = f"{(record.end_ns - record.begin_ns) / 1e6:.3f} ms" if record.end_ns else "not done"
        yield f"  {among:<24} {record.sequence:>8}  {begun:>12}  {took:>12}  {_what(record)}"
    yield ""
