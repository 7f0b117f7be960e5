"""Recorders with a planted mismatch, and what the report says."""

from pathlib import Path

from common.machine import flight
from common.machine.flight import ExchangeRecord, Flight, RankRange
from common.processes import flight_report
from common.processes.flight_report import Rank

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


def said(*recorders: Recorder) -> str | None:
    return flight_report.sentence([each.rank(number) for number, each in enumerate(recorders)])


def test_another_kind_is_named_on_both_sides() -> None:
    assert said(Recorder().does().waits(shape=(4, 25)), Recorder().does().waits("barrier")) == (
        "Collective 2, begun 19.0 s ago: rank 0 waits in all_reduce of 4 x 25 float32 (100 bytes); "
        "rank 1 waits in barrier of 25 float32 (100 bytes)"
    )


def test_another_shape_is_named_though_both_have_done_it() -> None:
    words = said(Recorder().does().does(shape=(4, 25)).waits(), Recorder().does().does(shape=(25, 4)).waits())
    assert words == (
        "Collective 2, begun 19.0 s ago: rank 0 has done all_reduce of 4 x 25 float32 (100 bytes); "
        "rank 1 has done all_reduce of 25 x 4 float32 (100 bytes)"
    )


def test_another_type_is_a_mismatch() -> None:
    words = said(Recorder().does(dtype="int64", done=False), Recorder().waits())
    assert words is not None
    assert "rank 0 waits in all_reduce of 25 int64" in words
    assert "rank 1 waits in all_reduce of 25 float32" in words


def test_of_several_mismatches_the_first_one_is_named() -> None:
    # Rank 1 has left out its second one, so nothing fits from there on.
    everything = Recorder().does(shape=(1,)).does(shape=(2,)).does(shape=(3,)).waits(shape=(4,))
    without = Recorder().does(shape=(1,)).does(shape=(3,)).does(shape=(4,)).waits(shape=(5,))
    words = said(everything, without)
    assert words is not None
    assert words.startswith("Collective 2, begun "), words


def test_one_that_has_not_come_is_named_with_its_last() -> None:
    ranks = RankRange(0, 1, 3)
    first, last = (Recorder().does(ranks=ranks).waits(ranks=ranks) for _ in range(2))
    assert said(first, last, Recorder().does(ranks=ranks)) == (
        "Collective 2, begun 19.0 s ago: rank 0 and rank 1 wait in all_reduce of 25 float32 (100 bytes); "
        "rank 2 has not come to it: its last was 1, all_reduce, done 19.9 s ago"
    )


def test_one_that_has_recorded_nothing_is_named() -> None:
    assert said(Recorder().waits("rendezvous", ()), Recorder()) == (
        "Collective 1, begun 20.0 s ago: rank 0 waits in rendezvous of float32 (100 bytes); "
        "rank 1 has not come to it, nor to any other"
    )


def test_one_that_has_ended_is_named() -> None:
    ranks = [Recorder().does().waits().rank(0), Recorder().does().rank(1, has_ended=True)]
    assert flight_report.sentence(ranks) == (
        "Collective 2, begun 19.0 s ago: rank 0 waits in all_reduce of 25 float32 (100 bytes); "
        "rank 1 has ended before it: its last was 1, all_reduce, done 19.9 s ago"
    )


def test_one_that_has_ended_in_an_exchange_is_named() -> None:
    ranks = [Recorder().does().rank(0), Recorder().does().waits().rank(1, has_ended=True)]
    words = flight_report.sentence(ranks)
    assert words is not None
    assert "rank 1 has ended in all_reduce of 25 float32 (100 bytes); rank 0 has not come to it" in words


def test_where_all_are_equal_the_exchange_is_named_that_all_wait_in() -> None:
    assert said(Recorder().does().waits(), Recorder().does().waits()) == (
        "Collective 2, begun 19.0 s ago: rank 0 and rank 1 wait in all_reduce of 25 float32 (100 bytes)"
    )


def test_one_that_is_done_elsewhere_is_named_where_nothing_is_missing() -> None:
    assert said(Recorder().does("broadcast"), Recorder().waits("broadcast")) == (
        "Collective 1, begun 20.0 s ago: rank 1 waits in broadcast of 25 float32 (100 bytes); "
        "rank 0 has done broadcast of 25 float32 (100 bytes)"
    )


def test_nothing_is_said_where_nobody_is_in_an_exchange() -> None:
    assert said(Recorder().does().does(), Recorder().does()) is None
    assert said(Recorder(), Recorder()) is None


def test_a_ring_that_has_gone_round_is_lined_up_by_sequence() -> None:
    ahead, behind = Recorder(900.0), Recorder(900.0)
    for _ in range(flight.NUM_RECORDS + 50):
        ahead.does()
        behind.does()
    ahead.waits(shape=(7,))
    behind.does("barrier")
    words = said(ahead, behind)
    assert words is not None
    assert words.startswith(f"Collective {flight.NUM_RECORDS + 51}, begun ")
    assert "rank 0 waits in all_reduce of 7 float32" in words
    assert "rank 1 has done barrier" in words


def test_a_record_that_only_one_ring_still_has_is_no_mismatch() -> None:
    busy, idle = Recorder(900.0), Recorder(900.0)
    for other in (busy, idle):
        other.does("barrier")
    for _ in range(flight.NUM_RECORDS):
        busy.does(ranks=RankRange(0, 1, 1))
    busy.waits(shape=(7,))
    idle.waits(shape=(7,))
    words = said(busy, idle)
    assert words is not None
    assert "rank 0 and rank 1 wait in all_reduce of 7" in words


def test_a_ring_without_a_trace_of_the_ranks_says_how_far_it_can_tell() -> None:
    busy = Recorder(900.0).does()
    for _ in range(flight.NUM_RECORDS):
        busy.does(ranks=RankRange(1, 1, 1))
    ranks = [Recorder().does().waits().rank(0), busy.rank(1)]
    words = flight_report.sentence(ranks)
    assert words is not None
    assert "rank 1 has not come to it, as far as its last 256 tell: its last was collective 256 of rank 1, all_reduce" in words


def test_of_a_chain_the_rank_is_named_that_waits_for_nobody() -> None:
    # Rank 0 waits for rank 1, which waits for rank 2. Rank 0 has waited for longest.
    first, second = RankRange(0, 1, 2), RankRange(1, 1, 2)
    chain = [Recorder(30.0).waits(ranks=first), Recorder(10.0).waits(ranks=second), Recorder().does(ranks=RankRange(2, 1, 1))]
    words = said(*chain)
    assert words is not None
    assert words.startswith("Collective 1 of rank 1 and rank 2, begun 10.0 s ago: rank 1 waits in all_reduce")


def test_of_a_ring_of_waiting_ranks_the_longest_wait_is_named() -> None:
    first, second = RankRange(0, 1, 2, directed=True), RankRange(1, -1, 2, directed=True)
    words = said(Recorder(30.0).waits("receive", ranks=second), Recorder(10.0).waits("receive", ranks=first))
    assert words == (
        "Message 1 from rank 1 to rank 0, begun 30.0 s ago: rank 0 waits in receive of 25 float32 (100 bytes); "
        "rank 1 has not come to it: its last was message 1 from rank 0 to rank 1, receive, not done"
    )


def test_a_message_that_one_sends_and_the_other_receives_matches() -> None:
    way = RankRange(0, 1, 2, directed=True)
    assert said(Recorder().does("send", ranks=way), Recorder().does("receive", ranks=way)) is None
    words = said(Recorder().waits("send", (3,), way), Recorder().waits("receive", (4,), way))
    assert words is not None
    assert "rank 0 has begun send of 3 float32 (100 bytes); rank 1 waits in receive of 4 float32" in words


def test_a_rank_whose_recorder_could_not_be_read_is_not_blamed() -> None:
    ranks = [Recorder().waits().rank(0), Rank("rank 1", None)]
    assert flight_report.sentence(ranks) == (
        "Collective 1, begun 20.0 s ago: rank 0 waits in all_reduce of 25 float32 (100 bytes)"
    )


def test_clocks_of_two_machines_are_not_compared() -> None:
    other = Recorder().does().rank(1)
    assert other.flight is not None
    later = [record._replace(begin_ns=record.begin_ns + NOW, end_ns=record.end_ns + NOW) for record in other.flight.records]
    ranks = [Recorder().does().waits().rank(0), other._replace(flight=Flight(2 * NOW, later))]
    words = flight_report.sentence(ranks)
    assert words is not None
    assert words.endswith("its last was 1, all_reduce, done 19.9 s ago")


def test_the_file_has_the_last_records_of_every_rank(tmp_path: Path) -> None:
    many = Recorder(900.0)
    for _ in range(flight.NUM_RECORDS + 1):
        many.does("step_graph", (3,))
    way = RankRange(1, -1, 2, directed=True)
    ranks = [many.rank(0), Recorder(2.0).does("step_graph", ()).waits("send", ranks=way).rank(1), Rank("rank 2", None)]
    assert flight_report.save(ranks, tmp_path / "made").name == "collectives.txt"
    lines = (tmp_path / "made" / "collectives.txt").read_text().splitlines()
    assert lines[0] == "rank 0: 257 exchanges, of which the last 256 are kept"
    assert sum("the graph of a step (3 collectives, 100 bytes)" in line for line in lines) == 32
    assert lines[35:] == [
        "rank 1: 2 exchanges",
        "  with                       number         begun          took  what",
        "  0, 1                            1   2.000 s ago    100.000 ms  the graph of a step (not counted)",
        "  1 -> 0                          1   1.000 s ago      not done  send of 25 float32 (100 bytes)",
        "",
        "rank 2: its recorder could not be read.",
    ]


def test_an_exchange_that_was_given_up_long_ago_is_not_named() -> None:
    """One that raises an error leaves its record open."""
    recorders = [Recorder(900.0).waits("broadcast") for _ in range(2)]
    for recorder in recorders:
        recorder.ago = 20.0
    recorders[0].does().waits()
    recorders[1].does()
    words = said(*recorders)
    assert words is not None
    assert words.startswith("Collective 3, begun 19.0 s ago: rank 0 waits in all_reduce"), words


def test_who_has_sent_and_hangs_elsewhere_is_blamed() -> None:
    all_of_them, message = RankRange(0, 1, 3), RankRange(1, 1, 2, directed=True)
    words = said(
        Recorder().waits(ranks=all_of_them),
        Recorder().does("send", ranks=message, done=False),
        Recorder(5.0).waits(ranks=all_of_them),
    )
    assert words is not None
    assert "rank 0 and rank 2 wait in all_reduce of 25 float32 (100 bytes); rank 1 has not come to it" in words


def test_who_computes_between_its_exchanges_is_not_said_to_wait() -> None:
    words = said(Recorder().waits("gradients"), Recorder().waits("gradients"))
    assert words is not None
    assert "rank 0 and rank 1 are in gradients of 25 float32" in words


def test_groups_that_differ_are_named_by_their_ranks() -> None:
    words = said(
        Recorder().does("new_group", (0, 1), done=False, dtype=""), Recorder().does("new_group", (0, 2), done=False, dtype="")
    )
    assert words is not None
    assert "rank 0 waits in new_group of ranks 0, 1; rank 1 waits in new_group of ranks 0, 2" in words
