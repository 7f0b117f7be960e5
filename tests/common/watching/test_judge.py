"""Who is to blame, by facts on each process alone."""

from typing import Any

import pytest

from common.watching.judge import Blame, BlameCause, ProcessState, is_idle, judge
from common.watching.phrases import Phrase
from common.watching.watchdog import _Look

WAITS = {"stands_still": True, "waits_for_others": True}
STANDS = {"stands_still": True, "waits_for_others": False}
UNKNOWN = {"stands_still": True, "waits_for_others": None}
ENDED, WORKS = {"has_ended": True}, dict[str, Any]()
MISSING, CUT = {"is_missing": True}, {"unanswered_peer": "10.0.0.2:4711"}

CASES: dict[str, tuple[list[dict[str, Any]], BlameCause | None, str]] = {
    "all work": ([WORKS, WORKS], None, ""),
    "one waits for one that works": ([WAITS, WORKS], None, ""),
    "one may wait for one that works": ([UNKNOWN, WORKS], None, ""),
    "a halted one comes first": ([STANDS, WORKS | {"is_halted": True}], BlameCause.HALTED, "1"),
    "one stands still alone": ([STANDS, WORKS, WAITS], BlameCause.ALONE, "0"),
    "all but one wait": ([WAITS, STANDS, WAITS], BlameCause.NOT_WAITING, "1"),
    "all but one wait, and nobody knows what that one does": ([WAITS, UNKNOWN], BlameCause.NOT_WAITING, "1"),
    "one that does not wait is missing in an exchange": ([STANDS, STANDS | MISSING, WAITS], BlameCause.NOT_WAITING, "1"),
    "nobody waits, and one is missing in an exchange": ([STANDS, STANDS | MISSING], BlameCause.NOT_WAITING, "1"),
    "all wait for one that has ended": ([WAITS, ENDED, WAITS], BlameCause.ENDED, "1"),
    "one that lives comes before one that has ended": ([WAITS, ENDED, STANDS], BlameCause.NOT_WAITING, "2"),
    "the network is cut": ([WAITS, WAITS | CUT], BlameCause.UNANSWERED, "1"),
    "all wait, one in a later exchange": ([WAITS, WAITS | MISSING], BlameCause.MISSING, "1"),
    "all wait, and one is ahead": ([WAITS | {"position": (5, 1)}, WAITS | {"position": (4, 1)}], BlameCause.AHEAD, "0"),
    "nothing is known of the stacks, and one is behind": (
        [UNKNOWN | {"position": (5, 1)}, UNKNOWN | {"position": (4, 1)}], BlameCause.BEHIND, "1"
    ),
    "all wait alike": ([WAITS, WAITS], BlameCause.ALL, "01"),
    "all have ended": ([ENDED, ENDED], None, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_first_cause_that_applies_names_those_to_blame(name: str) -> None:
    facts, cause, names = CASES[name]
    blame = judge([ProcessState(str(number), **each) for number, each in enumerate(facts)])
    assert blame == (None if cause is None else Blame(cause, tuple(names)))


@pytest.mark.parametrize(
    ("cores", "wants", "idle"), [(0.0, False, True), (0.04, False, True), (0.06, False, False), (0.0, True, False)]
)
def test_a_process_is_idle_by_its_last_looks_alone(cores: float, wants: bool, idle: bool) -> None:
    busy, last = [_Look(1.0, 1.0, True)] * 5, [_Look(1.0, cores, wants)] * 4
    assert is_idle([*busy, *last], 4.0) is idle
    assert not is_idle([*busy, *last], 9.0)


def test_a_phrase_serves_for_one_process_and_for_several() -> None:
    phrase = Phrase("wait", "for its processes", "for their processes").followed_by(" in step")
    assert (phrase, phrase.for_count(1), phrase.for_count(2)) == (
        "waits for its processes in step", "waits for its processes in step", "wait for their processes in step",
    )  # fmt: skip
    assert [Phrase(verb, "in it").for_count(2) for verb in ("be", "have", "do")] == ["are in it", "have in it", "do in it"]
    assert not Phrase("")
