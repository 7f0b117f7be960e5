"""Healthy, slow or stuck: fixed rules over what was seen of all ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from common.machine.flight import MAX_RANKS
from common.processes import flight_report
from common.processes.flight_report import Mismatch, Rank
from compare.core import wording
from compare.watching import waits
from compare.watching.job import is_number
from compare.watching.member import IDLE_BYTES, IDLE_CORES, LEAST_TOGETHER, MOST_TOGETHER, Member, Standing

HEALTHY, SLOW, STUCK, ENDED, UNKNOWN = "healthy", "slow", "stuck", "ended", "cannot be told"

STARVED_FROM = 0.5
"""A rank is short of cores if it waits for one in this part of the time that it wants one."""
_STARVED_LEAST_CORES = 0.25
"""That a rank must want, before it can be short of cores."""
_AS_STARVED = 0.8
"""A rank is about as short of cores as the shortest one from this part of its share and of the least cores on."""
DISK_FROM = 0.5
"""A rank is held up by the disk if a thread waits for it in this part of the looks."""
FAULTS_FROM = 20.0
"""Major page faults a second."""
_THROTTLED_FROM = 0.05
"""A quota is named if it stops a rank in this part of the time."""
_DOWNLOAD_CORES = 0.1
"""A rank that uses fewer, while bytes move, waits for the network."""
_ALONE_FROM = 2 / 3
"""A rank keeps the others waiting if it alone is in no exchange, in this part of the samples that were taken together."""
_ALONE_TO = 1 / 3
"""The network does, if no rank is alone in a larger part."""
_UNANSWERED_TRIES = 3
"""After so many, the other end of a connection is taken for gone."""


class Verdict(NamedTuple):
    """What a job is, and why."""

    state: str
    because: str
    ranks: tuple[str, ...] = ()
    """Names of those to blame."""

    @property
    def words(self) -> str:
        return f"{self.state}: {self.because}" if self.state != SLOW else f"slow because {self.because}"


def judge(members: Sequence[Member], patience: float, stacks_age: float = 0.0) -> Verdict:
    """What the job is now.

    Args:
        members: its ranks, with those that have ended.
        patience: a job is called slow or stuck after so many seconds.
        stacks_age: seconds. Younger stacks of an idle rank are not taken again.
    """
    living = [each for each in members if not each.ended]
    if not members:
        return Verdict(ENDED, "it has ended")
    if not living:
        return Verdict(ENDED, f"{_names(members)} {_have(members)} ended")
    return with_ended(_judge_living(members, living, patience, stacks_age), members)


def with_ended(found: Verdict, members: Sequence[Member]) -> Verdict:
    """A verdict that names the ranks that have ended while others go on. At best, such a job is slow."""
    gone = [each for each in members if each.ended]
    if {each.name for each in gone} <= {*found.ranks}:
        return found
    state = SLOW if found.state == HEALTHY else found.state
    blamed = (*(each.name for each in gone), *found.ranks)
    return Verdict(state, f"{_names(gone)} {_have(gone)} ended; {found.because}", blamed)


def _judge_living(members: Sequence[Member], living: Sequence[Member], patience: float, stacks_age: float) -> Verdict:
    if stopped := [each for each in living if each.stopped]:
        said: list[str] = []
        if others := [each for each in stopped if not each.frozen]:
            pids = " ".join(str(each.main) for each in others)
            said.append(f"{_names(others)} {_are(others)} stopped by a signal or a debugger (`kill -CONT {pids}` lets go on)")
        if frozen := [each for each in stopped if each.frozen]:
            said.append(f"{_names(frozen)} {_are(frozen)} frozen by the freezer of a control group")
        return Verdict(STUCK, "; ".join(said), tuple(each.name for each in stopped))
    still = [each for each in living if each.is_idle(patience)]
    asking = [each for each in living if each not in still and each.is_asking(patience)]
    if still or asking:
        for each in still + asking:
            each.take_stacks(stacks_age)
        # One that has just begun to work again is not stuck.
        standing = {each.name: now for each in still + asking if (now := each.standing()).kind != waits.WORK}
        # Who serves, and has no tasks, is idle as it should be.
        useful = {name: each for name, each in standing.items() if each.kind != waits.TASK}
        if len(standing) == len(living):
            return _nobody_works(members, useful) if useful else Verdict(HEALTHY, f"{_grouped(standing)}: nobody gives any")
        working = [each for each in living if each.name not in standing]
        # One that has just stopped working, or has just been found, is about to be judged with the others.
        are_known = all(each.watched_seconds() >= patience and not each.is_idle(patience / 2) for each in working)
        if are_known and (found := _some_wait(working, useful, patience)) is not None:
            return found
        if unread := {name: each for name, each in useful.items() if each.missing}:
            return Verdict(UNKNOWN, f"{_grouped(unread)}; {_names(working)} {'go' if len(working) > 1 else 'goes'} on")
    return _slow(living, patience) or _at_work(living, patience)


def _nobody_works(members: Sequence[Member], standing: dict[str, Standing]) -> Verdict:
    """Judge a job in which nobody does anything."""
    gone = [each for each in members if each.ended]
    found = _mismatch(members)
    exchange, numbers = (f". {found.words}", found.missing) if found is not None else ("", [])
    absent = {f"rank {number}" for number in numbers}
    waiting = {name: each for name, each in standing.items() if each.kind in waits.FOR_OTHERS}
    if alone := {name: each for name, each in standing.items() if name not in waiting}:
        to_blame = {name: each for name, each in alone.items() if name in absent} or alone
        others = waiting | {name: each for name, each in alone.items() if name not in to_blame}
        words = _chain(others, to_blame) if others else _grouped(to_blame)
        state = _state(to_blame)
        blamed = tuple(name for name, each in to_blame.items() if not each.missing) or tuple(to_blame)
        return Verdict(STUCK if state == UNKNOWN and exchange else state, words + exchange, blamed)
    words = _grouped(waiting)
    if gone:
        return Verdict(STUCK, f"{words}, and {_names(gone)} {_have(gone)} ended", tuple(each.name for each in gone))
    if cut := [(each.name, peer) for each in members if (peer := _unanswered(each))]:
        words += f"; {wording.joined([f'{name} gets no answer from {peer}' for name, peer in cut])}: "
        return Verdict(STUCK, f"{words}the network is cut, or the other host is gone", tuple(name for name, _ in cut))
    late = {name: each for name, each in waiting.items() if name in absent}
    if late and (others := {name: each for name, each in waiting.items() if name not in late}):
        # They wait for a message too, but for one of another exchange.
        return Verdict(STUCK, _chain(others, late) + exchange, tuple(late))
    where = {(each.exchange, each.where) for each in waiting.values()}
    if len(waiting) > 1 and len(where) > 1:
        words += ": they do not meet"
    if missing := _missing(members):
        words += f"; {missing}"
    return Verdict(STUCK, words + exchange, tuple(waiting))


def _some_wait(working: Sequence[Member], standing: dict[str, Standing], patience: float) -> Verdict | None:
    """Judge a job in which some work. None: those that wait do so for good reason, or it is not known."""
    known = {name: each for name, each in standing.items() if not each.missing}
    # What it asks for again and again may be done by one of those that work. C code may wait for one of them too.
    waiting = {name: each for name, each in known.items() if each.kind in (*waits.FOR_OTHERS, waits.POLL, waits.CALL)}
    alone = {name: each for name, each in known.items() if name not in waiting and each.kind != waits.TASK}
    if alone:
        words = _chain(waiting, alone) if waiting else _grouped(alone)
        return Verdict(_state(alone), f"{words}; {_names(working)} {'go' if len(working) > 1 else 'goes'} on", tuple(alone))
    if waiting:
        for each in working:
            each.take_stacks()
        doing = {each.name: _held_up(each, patience) or f"computes {each.standing().where}".strip() for each in working}
        at_work = {name: Standing(waits.WORK, words, "", "", "") for name, words in doing.items()}
        return Verdict(SLOW, _chain(waiting, at_work), tuple(at_work))
    return None


def _slow(living: Sequence[Member], patience: float) -> Verdict | None:
    """A job that works and is held up by one rank or by the machine."""
    made = f"; the job makes steps: {steps} since it is watched" if (steps := _steps(living)) else ""
    shown = [found for each in living if (found := _alone(each, living)).num_shown >= LEAST_TOGETHER]
    late = max(shown, key=lambda each: each.part, default=None)
    if late is not None and late.part >= _ALONE_FROM and late.member.watched_seconds() >= patience:
        return Verdict(SLOW, _kept_waiting(late, patience) + made, (late.member.name,))
    if starved := _starved(living, patience):
        reasons = [f"{each.name} {_short_of_cores(each)}" for each in starved]
        return Verdict(SLOW, ", and ".join(reasons) + made, tuple(each.name for each in starved))
    for each in living:
        if reason := _held_up(each, patience):
            return Verdict(SLOW, f"{each.name} {reason}{made}", (each.name,))
    # While too few samples show whether a rank keeps the others waiting, the network is not blamed.
    nobody_is_late = late is not None and len(shown) == len(living) and late.part <= _ALONE_TO
    is_known = nobody_is_late or len(living) == 1 or not any(each.mostly_waits for each in living)
    if is_known and all(_is_downloading(each, patience) for each in living):
        rates = wording.joined([f"{each.name} ({each.over('network_bytes') / 1024:,.0f} KiB a second)" for each in living])
        return Verdict(SLOW, f"little but the network is at work: {rates}", tuple(each.name for each in living))
    return None


class _Alone(NamedTuple):
    """How often a rank was in no exchange while all others were."""

    member: Member
    seen: list[dict[str, Standing]]
    """What each rank waited in then."""
    num_shown: int
    """Looks that show it together with the others."""

    @property
    def part(self) -> float:
        return len(self.seen) / self.num_shown


def _alone(member: Member, living: Sequence[Member]) -> _Alone:
    by_look: dict[float, dict[str, Standing]] = {at: {member.name: standing} for at, standing in member.samples}
    for each in living:
        for at, standing in each.samples:
            if at in by_look:
                by_look[at][each.name] = standing
    together = [seen for seen in by_look.values() if len(seen) >= max(min(len(living), MOST_TOGETHER), 2)]
    return _Alone(member, [seen for seen in together if _is_alone(member.name, seen)], len(together))


def _is_alone(name: str, seen: dict[str, Standing]) -> bool:
    own = seen[name]
    waits_itself = own.missing or own.kind in (*waits.FOR_OTHERS, waits.POLL, waits.TASK)
    return not waits_itself and all(each.kind in waits.FOR_OTHERS for other, each in seen.items() if other != name)


def _kept_waiting(late: _Alone, patience: float) -> str:
    """`rank 0 waits in all_reduce for rank 1, which sleeps in ..., in 9 of 10 looks`."""
    name = late.member.name
    ((words, _),) = Counter(seen[name].words for seen in late.seen).most_common(1)
    seen = next(seen for seen in reversed(late.seen) if seen[name].words == words)
    own = seen[name]
    if own.kind == waits.WORK and (reason := _held_up(late.member, patience)):  # who sleeps needs no core
        own = own._replace(words=reason)
    others = {other: each for other, each in seen.items() if other != name}
    return f"{_chain(others, {name: own})}, in {len(late.seen)} of {late.num_shown} looks"


def _starved(living: Sequence[Member], patience: float) -> list[Member]:
    """The ranks that are short of cores, if one is: that one and those that are about as short."""
    known = [each for each in living if each.watched_seconds() >= patience]
    most = max(map(_starved_share, known), default=0.0)
    least = _AS_STARVED * _STARVED_LEAST_CORES
    return [each for each in known if most >= STARVED_FROM and _starved_share(each, least) >= _AS_STARVED * most]


def _starved_share(member: Member, least_cores: float = _STARVED_LEAST_CORES) -> float:
    """In which part of the time that it wants a core it waits for one. 0: it hardly wants any."""
    ran, waited = member.over("cpu_seconds"), member.over("core_wait_seconds")
    return waited / (ran + waited) if ran + waited >= least_cores else 0.0


def _short_of_cores(member: Member) -> str:
    ran, waited, throttled = (member.over(name) for name in ("cpu_seconds", "core_wait_seconds", "throttled_seconds"))
    stopped = f"; the quota of its control group stops it {wording.percent(min(throttled, 1.0))} of the time"
    gets = f"gets {ran:.2f} of the {ran + waited:.2f} cores that it wants"
    return gets + (stopped if throttled >= _THROTTLED_FROM else "")


def _held_up(member: Member, patience: float) -> str:
    """By what of the machine. Empty: by nothing, or it was not watched for long enough."""
    if member.watched_seconds() < patience:
        return ""
    if _starved_share(member) >= STARVED_FROM:
        return _short_of_cores(member)
    if (faults := member.over("major_faults")) >= FAULTS_FROM:
        swapped = sum(each.swap_bytes for each in member.footprints.values()) / 2**20
        of_it = f" ({swapped:,.0f} MiB of it are swapped out)" if swapped else ""
        return f"waits for its memory{of_it}: {faults:,.0f} pages a second come from the disk"
    if (share := member.over("disk_waits")) >= DISK_FROM:
        rate = member.over("disk_bytes") / 2**20
        return f"waits for the disk {wording.percent(share)} of the time ({rate:,.1f} MiB a second)"
    return ""


def _is_downloading(member: Member, patience: float) -> bool:
    return (
        member.watched_seconds() >= patience
        and member.over("cpu_seconds") < _DOWNLOAD_CORES
        and member.over("network_bytes") >= IDLE_BYTES
    )


def _at_work(living: Sequence[Member], patience: float) -> Verdict:
    """Judge a job that nothing holds up, or one that was not watched for long enough."""
    cores, steps = sum(each.over("cpu_seconds") for each in living), _steps(living)
    seconds = max(each.watched_seconds() for each in living)
    if not seconds:
        found = f"{_names(living)} {'was' if len(living) == 1 else 'were'} found"
        return Verdict(UNKNOWN, f"{found}. What {'it does' if len(living) == 1 else 'they do'} shows from the second look on")
    if cores < IDLE_CORES and not steps:
        moved = sum(each.over("network_bytes") for each in living)
        return Verdict(UNKNOWN, f"{'little' if moved >= IDLE_BYTES else 'nothing'} happens, and {_few(seconds)} to say why")
    use, make = ("uses", "makes") if len(living) == 1 else ("use", "make")
    made = f", and {make} steps: {steps} since it is watched" if steps else ""
    so_far = f" ({_few(seconds)} to call it slow)" if seconds < patience else ""
    return Verdict(HEALTHY, f"{_names(living)} {use} {cores:.1f} cores{made}{so_far}")


def _few(seconds: float) -> str:
    return f"{seconds:.{0 if seconds >= 10 else 1}f} s are too few"


def _steps(living: Sequence[Member]) -> int:
    """Of a run of this suite, since it is watched. 0: it makes none, or they are not known."""
    return max((each.marks.steps - each.first_marks.steps for each in living if each.marks and each.first_marks), default=0)


def _state(to_blame: dict[str, Standing]) -> str:
    lasting = [each for each in to_blame.values() if each.kind not in waits.END_ALONE]
    if not lasting:
        return SLOW
    return UNKNOWN if all(each.missing for each in lasting) else STUCK


def _chain(waiting: dict[str, Standing], to_blame: dict[str, Standing]) -> str:
    """`rank 2 waits in all_reduce for rank 0, which waits for a lock in ...`."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, each in waiting.items():
        groups[each.exchange or each.words].append(name)
    told = [f"{wording.joined(names)} {_plural(words, len(names))}" for words, names in groups.items()]
    first, *rest = to_blame.items()
    words = f"{wording.joined(told)} for {first[0]}, which {_told(first[1])}"
    return words + "".join(f", and {name}, which {_told(each)}" for name, each in rest)


def _told(standing: Standing) -> str:
    return standing.words + (f" (no stacks: {standing.missing})" if standing.missing else "")


def _grouped(standing: dict[str, Standing]) -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    for name, each in standing.items():
        groups[_told(each)].append(name)
    return ", and ".join(f"{wording.joined(names)} {_plural(words, len(names))}" for words, names in groups.items())


def _plural(words: str, count: int) -> str:
    verb, _, rest = words.partition(" ")
    plural = {"does": "do"}.get(verb, verb.removesuffix("s"))
    return words if count == 1 else f"{plural} {rest}".strip()


def _unanswered(member: Member) -> str | None:
    """The other end of a connection that no longer answers."""
    return next((each.peer for each in member.connections if each.unsent_bytes and each.tries >= _UNANSWERED_TRIES), None)


def _missing(members: Sequence[Member]) -> str:
    """How many ranks of the launcher's WORLD_SIZE are not watched, in words."""
    size = members[0].group.environment.get("WORLD_SIZE", "")
    left = int(size) - len(members) if is_number(size) else 0
    return f"{wording.count(left, 'rank')} of {size} {'is' if left == 1 else 'are'} not watched" if left > 0 else ""


def _mismatch(members: Sequence[Member]) -> Mismatch | None:
    """Which exchange does not match, of a run of this suite."""
    flights = {each.group.number: each.flight() for each in members if each.group.number is not None and not each.ended}
    if not any(flights.values()):
        return None
    ended = {each.group.number for each in members if each.ended}
    ranks = [
        Rank(f"rank {number}", flights.get(number), number in ended) for number in range(min(max(flights) + 1, MAX_RANKS))
    ]
    return flight_report.mismatch(ranks)


def _names(members: Sequence[Member]) -> str:
    return wording.joined([each.name for each in members])


def _have(members: Sequence[Member]) -> str:
    return "has" if len(members) == 1 else "have"


def _are(members: Sequence[Member]) -> str:
    return "is" if len(members) == 1 else "are"
