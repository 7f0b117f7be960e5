"""Finds the exchange of a run that does not match. It aligns the flight records of all ranks by their sequence numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common.machine.flight import ExchangeRecord, Flight, RankRange
from common.watching.phrases import Phrase

FILE = "collectives.txt"
"""File with the last records of every rank, beside the stacks."""
_LISTED = 32
"""Largest number of records per rank in the file."""
_STATES = {"send": ("have", "begun"), "gradients": ("be", "in"), "step_graph": ("be", "in")}
"""Words for a record that has not ended, by its kind. Others wait. The last two compute as well."""


class Rank(NamedTuple):
    """The evidence on one rank. Its index among all ranks is its number."""

    name: str
    """Name in messages, e.g. `rank 1`."""
    flight: Flight | None
    """Recorded exchanges. None: they could not be read."""
    has_ended: bool = False


class Mismatch(NamedTuple):
    """The exchange that explains why ranks stand still."""

    message: str
    missing: list[int]
    """Ranks that have not reached it."""


def mismatch(ranks: Sequence[Rank]) -> Mismatch | None:
    """Return the first exchange that does not match, or the exchange of all waiting ranks. None: no rank is in one.

    An exchange that differs between ranks comes first. The next is an exchange that one rank waits in and another has not
    begun. If there are several, it is the one whose missing rank does not wait itself, else the one begun first.
    """
    exchanges = [exchange for exchange in _align(ranks) if exchange.differs or exchange.waiting]
    # Who sends goes on meanwhile.
    blocked = {
        rank for exchange in exchanges if exchange.missing for rank in exchange.waiting if exchange.records[rank].kind != "send"
    }

    def order(exchange: _Exchange) -> tuple[bool, bool, bool, float]:
        is_free = any(rank not in blocked for rank in exchange.missing)
        return not exchange.differs, not exchange.missing, not is_free, -exchange.age_seconds

    first = min(exchanges, key=order, default=None)
    return None if first is None else Mismatch(first.state(ranks), first.missing)


def sentence(ranks: Sequence[Rank]) -> str | None:
    """Return the message of `mismatch`."""
    mismatched = mismatch(ranks)
    return None if mismatched is None else mismatched.message


def save(ranks: Sequence[Rank], folder: Path) -> Path:
    """Write the last records of every rank. Returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text("\n".join(line for rank in ranks for line in _table(rank)), encoding="utf-8")
    return path


class _Exchange(NamedTuple):
    """One exchange, as the ranks that take part in it have recorded it."""

    ranks: RankRange
    sequence: int
    records: dict[int, ExchangeRecord]
    missing: list[int]
    """Ranks that have not reached it."""
    waiting: list[int]
    """Ranks that have begun it and not ended it. A rank that has ended a later one has abandoned it, and does not count."""
    age_seconds: float
    """Seconds since the first rank began it."""

    @property
    def differs(self) -> bool:
        contents = {
            (record.dtype, record.shape, record.kind if not self.ranks.directed else "") for record in self.records.values()
        }
        return len(contents) > 1

    def state(self, ranks: Sequence[Rank]) -> str:
        groups: dict[Phrase, list[int]] = defaultdict(list)
        for rank in sorted(self.records, key=lambda rank: (rank not in self.waiting, rank)):
            groups[self._state(rank, ranks)].append(rank)
        for rank in self.missing:
            groups[self._absence(rank, ranks)].append(rank)
        phrases = [
            f"{_join_names([ranks[rank].name for rank in group])} {phrase.for_count(len(group))}"
            for phrase, group in groups.items()
        ]
        name = _name(self.ranks, self.sequence, ranks)
        return f"{name[0].upper()}{name[1:]}, begun {self.age_seconds:.1f} s ago: {'; '.join(phrases)}"

    def _state(self, rank: int, ranks: Sequence[Rank]) -> Phrase:
        record, exchange = self.records[rank], _describe(self.records[rank])
        if record.end_ns:
            return Phrase("have", f"done {exchange}")
        if ranks[rank].has_ended:
            return Phrase("have", f"ended in {exchange}")
        verb, preposition = _STATES.get(record.kind, ("wait", "in"))
        return Phrase(verb, f"{preposition} {exchange}")

    def _absence(self, rank: int, ranks: Sequence[Rank]) -> Phrase:
        """Describe why the exchange is not among the records of a rank."""
        reason = "ended before it" if ranks[rank].has_ended else "not come to it"
        flight = ranks[rank].flight
        records = flight.records if flight is not None else []
        if not records:
            return Phrase("have", f"{reason}, nor to any other")
        is_partial = records[0].number > 1 and all(record.ranks != self.ranks for record in records)
        last_record = records[-1]
        name = (
            str(last_record.sequence)
            if last_record.ranks == self.ranks
            else _name(last_record.ranks, last_record.sequence, ranks)
        )
        state = f"done {_seconds_since(last_record.end_ns, ranks[rank]):.1f} s ago" if last_record.end_ns else "not done"
        one, several = (
            f"{reason}{f', as far as {whose} last {len(records)} tell' if is_partial else ''}: "
            f"{whose} last was {name}, {last_record.kind}, {state}"
            for whose in ("its", "their")
        )
        return Phrase("have", one, several)


def _align(ranks: Sequence[Rank]) -> Iterator[_Exchange]:
    """Yield every exchange that a rank has recorded."""
    recorded: dict[tuple[RankRange, int], dict[int, ExchangeRecord]] = defaultdict(dict)
    last: dict[tuple[RankRange, int], int] = defaultdict(int)
    done: dict[tuple[RankRange, int], int] = defaultdict(int)
    for rank, (_, flight, _) in enumerate(ranks):
        for record in flight.records if flight is not None else ():
            recorded[record.ranks, record.sequence][rank] = record
            last[record.ranks, rank] = max(last[record.ranks, rank], record.sequence)
            if record.end_ns:
                done[record.ranks, rank] = max(done[record.ranks, rank], record.sequence)
    for (rank_range, sequence), records in recorded.items():
        # A rank that has come further has overwritten its record. One whose recorder could not be read is not blamed.
        missing = [
            rank
            for rank in rank_range.members
            if rank < len(ranks) and ranks[rank].flight is not None and last[rank_range, rank] < sequence
        ]
        waiting = [rank for rank, record in records.items() if not record.end_ns and done[rank_range, rank] < sequence]
        age = max(_seconds_since(record.begin_ns, ranks[rank]) for rank, record in records.items())
        yield _Exchange(rank_range, sequence, records, missing, waiting, age)


def _name(rank_range: RankRange, sequence: int, ranks: Sequence[Rank]) -> str:
    members = [ranks[rank].name if rank < len(ranks) else f"rank {rank}" for rank in rank_range.members]
    if rank_range.directed:
        return f"message {sequence} from {members[0]} to {members[1]}"
    return f"collective {sequence}{'' if len(members) == len(ranks) else f' of {_join_names(members)}'}"


def _describe(record: ExchangeRecord) -> str:
    """Describe an exchange, e.g. `all_reduce of 4 x 25 float32 (400 bytes)`."""
    sizes = " x ".join(map(str, record.shape))
    if record.kind == "step_graph":
        contents = (
            f"{sizes} collective{'' if record.shape == (1,) else 's'}, {record.num_bytes:,} bytes" if sizes else "not counted"
        )
        return f"the graph of a step ({contents})"
    if record.kind == "new_group":
        return f"new_group of ranks {', '.join(map(str, record.shape))}"
    values = f" of {sizes}{' ' if sizes else ''}{record.dtype}" if record.dtype else ""
    return f"{record.kind}{values}{f' ({record.num_bytes:,} bytes)' if record.num_bytes else ''}"


def _seconds_since(moment_ns: int, rank: Rank) -> float:
    assert rank.flight is not None
    return (rank.flight.taken_ns - moment_ns) / 1e9


def _join_names(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _table(rank: Rank) -> Iterator[str]:
    if rank.flight is None:
        yield f"{rank.name}: its recorder could not be read.\n"
        return
    records = rank.flight.records
    note = f", of which the last {len(records)} are kept" if records and records[0].number > 1 else ""
    begun = records[-1].number if records else 0
    yield f"{rank.name}{', which has ended' if rank.has_ended else ''}: {begun} exchanges{note}"
    yield f"  {'with':<24} {'number':>8}  {'begun':>12}  {'took':>12}  what"
    for record in records[-_LISTED:]:
        members = record.ranks.members
        among = f"{members[0]} -> {members[1]}" if record.ranks.directed else f"{', '.join(map(str, members))}"
        begun = f"{_seconds_since(record.begin_ns, rank):.3f} s ago"
        duration = f"{(record.end_ns - record.begin_ns) / 1e6:.3f} ms" if record.end_ns else "not done"
        yield f"  {among:<24} {record.sequence:>8}  {begun:>12}  {duration:>12}  {_describe(record)}"
    yield ""
