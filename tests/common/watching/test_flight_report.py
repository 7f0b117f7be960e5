"""Recorders with a planted mismatch, and what the report says."""

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from common.machine import flight
from common.machine.flight import ExchangeRecord, Flight, RankRange
from common.watching import flight_report
from common.watching.flight_report import Rank

SECOND = 10**9
NOW = 1000 * SECOND


class Recorder:
    """What one rank records, one exchange each second before NOW."""

    def __init__(self, begun_ago: float = 20.0) -> None:
        self.records: list[ExchangeRecord] = []
        self.ago = begun_ago
        self.sequences: dict[RankRange, int] = {}

    def does(
        self,
        kind: str = "all_reduce",
        shape: tuple[int, ...] = (25,),
        ranks: RankRange | None = None,
        *,
        done: bool = True,
        dtype: str = "float32",
    ) -> "Recorder":
        ranks = ranks or RankRange(0, 1, 2)
        self.sequences[ranks] = self.sequences.get(ranks, 0) + 1
        begin = NOW - round(self.ago * SECOND)
        self.ago -= 1.0
        number = len(self.records) + 1
        end = begin + SECOND // 10 if done else 0
        self.records.append(ExchangeRecord(number, ranks, self.sequences[ranks], kind, dtype, shape, 100, begin, end))
        return self

    def waits(self, kind: str = "all_reduce", shape: tuple[int, ...] = (25,), ranks: RankRange | None = None) -> "Recorder":
        return self.does(kind, shape, ranks, done=False)

    def rank(self, number: int, *, has_ended: bool = False, ring: int = flight.NUM_RECORDS) -> Rank:
        return Rank(f"rank {number}", Flight(NOW, self.records[-ring:]), has_ended)


def ranks_of(*recorders: Recorder) -> list[Rank]:
    return [each.rank(number) for number, each in enumerate(recorders)]


def many(recorder: Recorder, ranks: RankRange | None = None, count: int = flight.NUM_RECORDS) -> Recorder:
    for _ in range(count):
        recorder.does(ranks=ranks)
    return recorder


def given_up(recorder: Recorder) -> Recorder:
    """After an exchange that was begun long ago and raised an error, which leaves its record open."""
    recorder.ago = 20.0
    return recorder


def on_another_clock(rank: Rank) -> Rank:
    """As of a machine whose clock shows later times."""
    assert rank.flight is not None
    later = [each._replace(begin_ns=each.begin_ns + NOW, end_ns=each.end_ns + NOW) for each in rank.flight.records]
    return rank._replace(flight=Flight(2 * NOW, later))


PAIR, THREE = RankRange(1, 1, 2), RankRange(0, 1, 3)
TO_1, TO_0, TO_2 = RankRange(0, 1, 2, directed=True), RankRange(1, -1, 2, directed=True), RankRange(1, 1, 2, directed=True)
ALONE_0, ALONE_1, ALONE_2 = (RankRange(rank, 1, 1) for rank in range(3))

MISMATCHES: dict[str, tuple[list[Rank], list[int]]] = {
    "another kind": (ranks_of(Recorder().does().waits(shape=(4, 25)), Recorder().does().waits("barrier")), []),
    "another shape, done by both": (
        ranks_of(Recorder().does().does(shape=(4, 25)).waits(), Recorder().does().does(shape=(25, 4)).waits()),
        [],
    ),
    "another shape, before one has not come": (
        ranks_of(Recorder().does(shape=(4, 25)).waits(), Recorder().does(shape=(25, 4))),
        [],
    ),
    "another type": (ranks_of(Recorder().does(dtype="int64", done=False), Recorder().waits()), []),
    "the first of several, after one was left out": (
        ranks_of(
            Recorder().does(shape=(1,)).does(shape=(2,)).does(shape=(3,)).waits(shape=(4,)),
            Recorder().does(shape=(1,)).does(shape=(3,)).does(shape=(4,)).waits(shape=(5,)),
        ),
        [],
    ),
    "one has not come": (
        ranks_of(*(Recorder().does(ranks=THREE).waits(ranks=THREE) for _ in range(2)), Recorder().does(ranks=THREE)),
        [2],
    ),
    "one has recorded nothing": (ranks_of(Recorder().waits("rendezvous", ()), Recorder()), [1]),
    "one has ended": ([Recorder().does().waits().rank(0), Recorder().does().rank(1, has_ended=True)], [1]),
    "one has ended in an exchange": ([Recorder().does().rank(0), Recorder().does().waits().rank(1, has_ended=True)], [0]),
    "all wait in the same": (ranks_of(Recorder().does().waits(), Recorder().does().waits()), []),
    "one is done and nothing is missing": (ranks_of(Recorder().does("broadcast"), Recorder().waits("broadcast")), []),
    "a ring that has gone round": (
        ranks_of(
            many(Recorder(900.0), count=flight.NUM_RECORDS + 50).waits(shape=(7,)),
            many(Recorder(900.0), count=flight.NUM_RECORDS + 50).does("barrier"),
        ),
        [],
    ),
    "a record that only one ring still has": (
        ranks_of(
            many(Recorder(900.0).does("barrier"), ALONE_0).waits(shape=(7,)), Recorder(900.0).does("barrier").waits(shape=(7,))
        ),
        [],
    ),
    "a ring without a trace of the ranks": (ranks_of(Recorder().does().waits(), many(Recorder(900.0).does(), ALONE_1)), [1]),
    # Rank 0 waits for rank 1, which waits for rank 2. Rank 0 has waited for longest.
    "a chain": (ranks_of(Recorder(30.0).waits(), Recorder(10.0).waits(ranks=PAIR), Recorder().does(ranks=ALONE_2)), [2]),
    "a ring of waiting ranks": (
        ranks_of(Recorder(30.0).waits("receive", ranks=TO_0), Recorder(10.0).waits("receive", ranks=TO_1)),
        [1],
    ),
    "a message of another shape": (ranks_of(Recorder().waits("send", (3,), TO_1), Recorder().waits("receive", (4,), TO_1)), []),
    "a recorder that could not be read": ([Recorder().waits().rank(0), Rank("rank 1", None)], []),
    "clocks of two machines": ([Recorder().does().waits().rank(0), on_another_clock(Recorder().does().rank(1))], [1]),
    "an exchange that was given up long ago": (
        ranks_of(
            given_up(Recorder(900.0).waits("broadcast")).does().waits(), given_up(Recorder(900.0).waits("broadcast")).does()
        ),
        [1],
    ),
    "who has sent hangs elsewhere": (
        ranks_of(Recorder().waits(ranks=THREE), Recorder().waits("send", ranks=TO_2), Recorder(5.0).waits(ranks=THREE)),
        [1],
    ),
    "who computes between its exchanges": (ranks_of(Recorder().waits("gradients"), Recorder().waits("gradients")), []),
    "groups that differ": (
        ranks_of(*(Recorder().does("new_group", members, done=False, dtype="") for members in ((0, 1), (0, 2)))),
        [],
    ),
}
"""Name: (what ranks have recorded, those that have not come to the exchange that is named)."""


@pytest.mark.parametrize("name", MISMATCHES)
def test_the_exchange_is_named_that_explains_why_ranks_stand_still(name: str, snapshot: SnapshotAssertion) -> None:
    ranks, missing = MISMATCHES[name]
    found = flight_report.mismatch(ranks)
    assert found is not None and found.missing == missing
    assert found.message == flight_report.sentence(ranks) == snapshot


@pytest.mark.parametrize(
    "recorders",
    [
        (Recorder().does().does(), Recorder().does()),
        (Recorder(), Recorder()),
        (Recorder().does("send", ranks=TO_1), Recorder().does("receive", ranks=TO_1)),  # the same message
    ],
)
def test_nothing_is_said_where_nobody_is_in_an_exchange(recorders: tuple[Recorder, Recorder]) -> None:
    assert flight_report.sentence(ranks_of(*recorders)) is None


def test_the_file_has_the_last_records_of_every_rank(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    recorder = Recorder(900.0)
    for _ in range(flight.NUM_RECORDS + 1):
        recorder.does("step_graph", (3,))
    ranks = [recorder.rank(0), Recorder(2.0).does("step_graph", ()).waits("send", ranks=TO_0).rank(1), Rank("rank 2", None)]
    path = flight_report.save(ranks, tmp_path / "new")
    assert path == tmp_path / "new" / "collectives.txt"
    lines = path.read_text().splitlines()
    assert sum("100 bytes" in line for line in lines[:34]) == 32
    assert lines[:3] + lines[33:] == snapshot
