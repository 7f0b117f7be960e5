"""Verdict on a job: fixed rules over the observations of all ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from common.machine.flight import MAX_RANKS
from common.watching import flight_report, judge
from common.watching.flight_report import Mismatch, Rank
from common.watching.judge import MAX_IDLE_CORES, Blame, BlameCause, ProcessState
from common.watching.phrases import Phrase
from compare.cli import wording
from convtwins_hangs.watching import waits
from convtwins_hangs.watching.job import is_number
from convtwins_hangs.watching.member import IDLE_BYTES, MAX_JOINT_MEMBERS, MIN_JOINT_SAMPLES, JobMember, WaitState

HEALTHY, SLOW, STUCK, ENDED, UNKNOWN = "healthy", "slow", "stuck", "ended", "cannot be told"

MIN_STARVED_FRACTION = 0.5
"""Minimum fraction of its wanted core time when a starved rank waits for a core."""
_MIN_WANTED_CORES = 0.25
"""Minimum cores that a rank must want to count as starved."""
_NEARLY_STARVED_RATIO = 0.8
"""Minimum ratio of a rank's starved fraction and wanted cores to those of the most starved rank."""
MIN_DISK_WAIT_FRACTION = 0.5
"""Minimum fraction of the looks where a thread waits for the disk."""
MIN_FAULTS_PER_SECOND = 20.0
"""Minimum major page faults a second of a rank that waits for its memory."""
_MIN_THROTTLED_FRACTION = 0.05
"""Minimum fraction of the time when a quota stops a rank, to be named."""
_MAX_DOWNLOAD_CORES = 0.1
"""Maximum cores of a rank that waits for the network while bytes move."""
_MIN_LATE_FRACTION = 2 / 3
"""Minimum fraction of the joint samples where a late rank alone is in no exchange."""
_MAX_ON_TIME_FRACTION = 1 / 3
"""Maximum such fraction of every rank if the network is to blame."""
_MIN_UNANSWERED_TRIES = 3
"""Minimum retransmissions after which a peer counts as gone."""


class Verdict(NamedTuple):
    """Verdict on a job, with the reason."""

    state: str
    reason: str
    ranks: tuple[str, ...] = ()
    """Names of the ranks to blame."""

    @property
    def text(self) -> str:
        return f"{self.state}: {self.reason}" if self.state != SLOW else f"slow because {self.reason}"


def judge_job(members: Sequence[JobMember], patience: float, stacks_age: float = 0.0) -> Verdict:
    """Return the verdict on a job.

    Args:
        members: the job's ranks, with those that have ended.
        patience: a job is called slow or stuck after so many seconds.
        stacks_age: age in seconds of an idle rank's stacks before they are taken again.
    """
    living = [member for member in members if not member.ended]
    if not members:
        return Verdict(ENDED, "it has ended")
    if not living:
        return Verdict(ENDED, f"{_clause(members, 'have')} ended")
    return name_ended_members(_judge_living(members, living, patience, stacks_age), members)


def name_ended_members(verdict: Verdict, members: Sequence[JobMember]) -> Verdict:
    """Add the ranks that have ended while others go on to a verdict. At best, such a job is slow."""
    ended = [member for member in members if member.ended]
    if {member.name for member in ended} <= {*verdict.ranks}:
        return verdict
    state = SLOW if verdict.state == HEALTHY else verdict.state
    to_blame = (*(member.name for member in ended), *verdict.ranks)
    return Verdict(state, f"{_clause(ended, 'have')} ended; {verdict.reason}", to_blame)


def _judge_living(members: Sequence[JobMember], living: Sequence[JobMember], patience: float, stacks_age: float) -> Verdict:
    if any(member.is_stopped for member in living):
        halted = judge.judge([ProcessState(member.name, is_halted=member.is_stopped) for member in living])
        return _stopped_verdict(living, halted)
    idle = [member for member in living if member.is_idle(patience)]
    polling = [member for member in living if member not in idle and member.is_polling(patience)]
    for member in idle + polling:
        member.take_stacks(stacks_age)
    # One that has just begun to work again is not stuck.
    states = {member.name: state for member in idle + polling if (state := member.wait_state()).kind != waits.WORK}
    # Who serves, and has no tasks, is idle as it should be.
    not_idle_workers = {name: state for name, state in states.items() if state.kind != waits.TASK}
    if len(states) == len(living):
        if not not_idle_workers:
            return Verdict(HEALTHY, f"{_grouped_text(states)}: nobody gives any")
        return _judge_all_waiting(members, not_idle_workers)
    working = [member for member in living if member.name not in states]
    # One that has just stopped working, or has just been found, is about to be judged with the others.
    are_judged = all(member.watched_seconds() >= patience and not member.is_idle(patience / 2) for member in working)
    if states and are_judged and (verdict := _judge_some_waiting(working, not_idle_workers, patience)) is not None:
        return verdict
    if without_stacks := {name: state for name, state in not_idle_workers.items() if state.missing}:
        return Verdict(UNKNOWN, f"{_grouped_text(without_stacks)}; {_clause(working, 'go', 'on')}")
    return _judge_slow(living, patience) or _judge_working(living, patience)


def _stopped_verdict(living: Sequence[JobMember], blame: Blame | None) -> Verdict:
    stopped = [member for member in living if blame is not None and member.name in blame.names]
    reasons: list[str] = []
    if others := [member for member in stopped if not member.frozen]:
        pids = " ".join(str(member.main_pid) for member in others)
        reasons.append(f"{_clause(others, 'be')} stopped by a signal or a debugger (`kill -CONT {pids}` lets go on)")
    if frozen := [member for member in stopped if member.frozen]:
        reasons.append(f"{_clause(frozen, 'be')} frozen by the freezer of a control group")
    return Verdict(STUCK, "; ".join(reasons), tuple(member.name for member in stopped))


def _standing(name: str, state: WaitState, **facts: Any) -> ProcessState:
    """Return the state of a rank that stands still."""
    is_open = state.missing or state.kind in (waits.POLL, waits.CALL)
    # What it asks for again and again may be done by one of those that work. C code may wait for one of them too.
    return ProcessState(name, stands_still=True, waits_for_others=None if is_open else state.kind in waits.PEER_WAITS, **facts)


def _judge_all_waiting(members: Sequence[JobMember], states: dict[str, WaitState]) -> Verdict:
    """Judge a job where all ranks wait."""
    mismatch = _find_mismatch(members)
    exchange, numbers = (f". {mismatch.message}", mismatch.missing) if mismatch is not None else ("", [])
    peers = {member.name: peer for member in members if (peer := _unanswered_peer(member))}
    processes = [
        _standing(name, state, is_missing=name in {f"rank {number}" for number in numbers}, unanswered_peer=peers.get(name, ""))
        for name, state in states.items()
    ]
    processes += [ProcessState(member.name, has_ended=True) for member in members if member.ended]
    blame = judge.judge(processes)
    assert blame is not None, "all stand still"
    to_blame = {name: state for name, state in states.items() if name in blame.names}
    others = {name: state for name, state in states.items() if name not in to_blame}
    match blame.cause:
        case BlameCause.ENDED:
            ended = [member for member in members if member.ended]
            return Verdict(STUCK, f"{_grouped_text(states)}, and {_clause(ended, 'have')} ended", blame.names)
        case BlameCause.UNANSWERED:
            answers = wording.joined([f"{name} gets no answer from {peers[name]}" for name in blame.names])
            text = f"{_grouped_text(states)}; {answers}: the network is cut, or the other host is gone"
            return Verdict(STUCK, text, blame.names)
        case BlameCause.MISSING:  # they wait for a message too, but for one of another exchange
            return Verdict(STUCK, _waits_for_text(others, to_blame) + exchange, blame.names)
        case _:
            pass
    if any(state.kind not in waits.PEER_WAITS for state in to_blame.values()):
        text = _waits_for_text(others, to_blame) if others else _grouped_text(to_blame)
        verdict_state = _blamed_state(to_blame)
        known_names = tuple(name for name, state in to_blame.items() if not state.missing) or tuple(to_blame)
        return Verdict(STUCK if verdict_state == UNKNOWN and exchange else verdict_state, text + exchange, known_names)
    text = _grouped_text(states)
    if len(states) > 1 and len({(state.exchange, state.where) for state in states.values()}) > 1:
        text += ": they do not meet"
    if missing := _missing_ranks_text(members):
        text += f"; {missing}"
    return Verdict(STUCK, text + exchange, tuple(states))


def _judge_some_waiting(working: Sequence[JobMember], states: dict[str, WaitState], patience: float) -> Verdict | None:
    """Judge a job where some ranks work. None: the others wait for good reason, or it is unknown."""
    processes = [_standing(name, state) for name, state in states.items()]
    blame = judge.judge([*processes, *(ProcessState(member.name) for member in working)])
    alone = {name: state for name, state in states.items() if blame is not None and name in blame.names}
    waiting = {name: state for name, state in states.items() if name not in alone and not state.missing}
    if alone:
        text = _waits_for_text(waiting, alone) if waiting else _grouped_text(alone)
        return Verdict(_blamed_state(alone), f"{text}; {_clause(working, 'go', 'on')}", tuple(alone))
    if waiting:
        for member in working:
            member.take_stacks()
        activities = {
            member.name: _bottleneck(member, patience) or Phrase("compute", member.wait_state().where) for member in working
        }
        at_work = {name: WaitState(waits.WORK, activity, Phrase(""), "", "") for name, activity in activities.items()}
        return Verdict(SLOW, _waits_for_text(waiting, at_work), tuple(at_work))
    return None


def _judge_slow(living: Sequence[JobMember], patience: float) -> Verdict | None:
    """Judge a job that works and is held up by one rank or by the machine. None: nothing holds it up."""
    steps_text = f"; the job makes steps: {steps} since it is watched" if (steps := _num_steps(living)) else ""
    latenesses = [lateness for member in living if (lateness := _lateness(member, living)).num_samples >= MIN_JOINT_SAMPLES]
    late = max(latenesses, key=lambda lateness: lateness.fraction, default=None)
    if late is not None and late.fraction >= _MIN_LATE_FRACTION and late.member.watched_seconds() >= patience:
        return Verdict(SLOW, _late_text(late, patience) + steps_text, (late.member.name,))
    if starved := _starved_members(living, patience):
        reasons = [f"{member.name} {_starved_phrase(member)}" for member in starved]
        return Verdict(SLOW, ", and ".join(reasons) + steps_text, tuple(member.name for member in starved))
    for member in living:
        if reason := _bottleneck(member, patience):
            return Verdict(SLOW, f"{member.name} {reason}{steps_text}", (member.name,))
    # While too few samples show whether a rank keeps the others waiting, the network is not blamed.
    nobody_is_late = late is not None and len(latenesses) == len(living) and late.fraction <= _MAX_ON_TIME_FRACTION
    may_blame_network = nobody_is_late or len(living) == 1 or not any(member.is_mostly_waiting for member in living)
    if may_blame_network and all(_is_downloading(member, patience) for member in living):
        rates = wording.joined(
            [f"{member.name} ({member.rate('network_bytes') / 1024:,.0f} KiB a second)" for member in living]
        )
        return Verdict(SLOW, f"little but the network is at work: {rates}", tuple(member.name for member in living))
    return None


class _Lateness(NamedTuple):
    """Joint samples where a rank was in no exchange while all others were."""

    member: JobMember
    late_samples: list[dict[str, WaitState]]
    """Wait state of each rank in these samples, by name."""
    num_samples: int
    """Number of joint samples of the rank and the others."""

    @property
    def fraction(self) -> float:
        return len(self.late_samples) / self.num_samples


def _lateness(member: JobMember, living: Sequence[JobMember]) -> _Lateness:
    states_by_time: dict[float, dict[str, WaitState]] = {taken_at: {member.name: state} for taken_at, state in member.samples}
    for other in living:
        for at, standing in other.samples:
            if at in states_by_time:
                states_by_time[at][other.name] = standing
    joint_samples = [states for states in states_by_time.values() if len(states) >= max(min(len(living), MAX_JOINT_MEMBERS), 2)]
    return _Lateness(member, [states for states in joint_samples if _is_late(member.name, states)], len(joint_samples))


def _is_late(name: str, states: dict[str, WaitState]) -> bool:
    own_state = states[name]
    is_waiting = own_state.missing or own_state.kind in (*waits.PEER_WAITS, waits.POLL, waits.TASK)
    return not is_waiting and all(state.kind in waits.PEER_WAITS for other, state in states.items() if other != name)


def _late_text(late: _Lateness, patience: float) -> str:
    """Return a text such as `rank 0 waits in all_reduce for rank 1, which sleeps in ..., in 9 of 10 looks`."""
    name = late.member.name
    ((words, _),) = Counter(states[name].words for states in late.late_samples).most_common(1)
    states = next(sample for sample in reversed(late.late_samples) if sample[name].words == words)
    own_state = states[name]
    if own_state.kind == waits.WORK and (reason := _bottleneck(late.member, patience)):  # who sleeps needs no core
        own_state = own_state._replace(words=reason)
    others = {other: state for other, state in states.items() if other != name}
    return f"{_waits_for_text(others, {name: own_state})}, in {len(late.late_samples)} of {late.num_samples} looks"


def _starved_members(living: Sequence[JobMember], patience: float) -> list[JobMember]:
    """Return the starved ranks: the most starved one and those nearly as starved. Empty: none is starved."""
    known = [member for member in living if member.watched_seconds() >= patience]
    largest = max(map(_starved_fraction, known), default=0.0)
    least_cores = _NEARLY_STARVED_RATIO * _MIN_WANTED_CORES
    return [
        member
        for member in known
        if largest >= MIN_STARVED_FRACTION and _starved_fraction(member, least_cores) >= _NEARLY_STARVED_RATIO * largest
    ]


def _starved_fraction(member: JobMember, least_cores: float = _MIN_WANTED_CORES) -> float:
    """Return the fraction of its wanted core time when a rank waits for a core. 0: it hardly wants any."""
    ran, waited = member.rate("cpu_seconds"), member.rate("core_wait_seconds")
    return waited / (ran + waited) if ran + waited >= least_cores else 0.0


def _starved_phrase(member: JobMember) -> Phrase:
    ran, waited, throttled = (member.rate(name) for name in ("cpu_seconds", "core_wait_seconds", "throttled_seconds"))
    throttled_text = f"; the quota of its control group stops it {wording.percent(min(throttled, 1.0))} of the time"
    cores_text = f"{ran:.2f} of the {ran + waited:.2f} cores that it wants"
    return Phrase("get", cores_text + (throttled_text if throttled >= _MIN_THROTTLED_FRACTION else ""))


def _bottleneck(member: JobMember, patience: float) -> Phrase:
    """Return what of the machine holds up a rank. Empty: nothing, or it was not watched for long enough."""
    if member.watched_seconds() < patience:
        return Phrase("")
    if _starved_fraction(member) >= MIN_STARVED_FRACTION:
        return _starved_phrase(member)
    if (faults := member.rate("major_faults")) >= MIN_FAULTS_PER_SECOND:
        swapped = sum(footprint.swap_bytes for footprint in member.footprints.values()) / 2**20
        swapped_text = f" ({swapped:,.0f} MiB of it are swapped out)" if swapped else ""
        return Phrase("wait", f"for its memory{swapped_text}: {faults:,.0f} pages a second come from the disk")
    if (fraction := member.rate("disk_waits")) >= MIN_DISK_WAIT_FRACTION:
        rate = member.rate("disk_bytes") / 2**20
        return Phrase("wait", f"for the disk {wording.percent(fraction)} of the time ({rate:,.1f} MiB a second)")
    return Phrase("")


def _is_downloading(member: JobMember, patience: float) -> bool:
    return (
        member.watched_seconds() >= patience
        and member.rate("cpu_seconds") < _MAX_DOWNLOAD_CORES
        and member.rate("network_bytes") >= IDLE_BYTES
    )


def _judge_working(living: Sequence[JobMember], patience: float) -> Verdict:
    """Judge a job that nothing holds up, or was not watched for long enough."""
    cores, steps = sum(member.rate("cpu_seconds") for member in living), _num_steps(living)
    seconds = max(member.watched_seconds() for member in living)
    if not seconds:
        found_text = f"{_names(living)} {'was' if len(living) == 1 else 'were'} found"
        return Verdict(
            UNKNOWN, f"{found_text}. What {'it does' if len(living) == 1 else 'they do'} shows from the second look on"
        )
    if cores < MAX_IDLE_CORES and not steps:
        moved = sum(member.rate("network_bytes") for member in living)
        return Verdict(
            UNKNOWN, f"{'little' if moved >= IDLE_BYTES else 'nothing'} happens, and {_too_few_text(seconds)} to say why"
        )
    steps_text = f", and {Phrase('make', 'steps').for_count(len(living))}: {steps} since it is watched" if steps else ""
    too_few_text = f" ({_too_few_text(seconds)} to call it slow)" if seconds < patience else ""
    return Verdict(HEALTHY, f"{_clause(living, 'use')} {cores:.1f} cores{steps_text}{too_few_text}")


def _too_few_text(seconds: float) -> str:
    return f"{seconds:.{0 if seconds >= 10 else 1}f} s are too few"


def _num_steps(living: Sequence[JobMember]) -> int:
    """Return the steps of a run of this suite while watched. 0: it makes none, or they are unknown."""
    return max(
        (member.marks.steps - member.first_marks.steps for member in living if member.marks and member.first_marks), default=0
    )


def _blamed_state(to_blame: dict[str, WaitState]) -> str:
    lasting_states = [state for state in to_blame.values() if state.kind not in waits.SELF_ENDING_WAITS]
    if not lasting_states:
        return SLOW
    return UNKNOWN if all(state.missing for state in lasting_states) else STUCK


def _waits_for_text(waiting: dict[str, WaitState], to_blame: dict[str, WaitState]) -> str:
    """Return a text such as `rank 2 waits in all_reduce for rank 0, which waits for a lock in ...`."""
    reasons = [f"{name}, which {_state_phrase(state)}" for name, state in to_blame.items()]
    phrases = {name: state.exchange or state.words for name, state in waiting.items()}
    return f"{wording.joined(_grouped(phrases))} for {', and '.join(reasons)}"


def _state_phrase(state: WaitState) -> Phrase:
    return state.words.followed_by(f" (no stacks: {state.missing})" if state.missing else "")


def _grouped_text(states: dict[str, WaitState]) -> str:
    return ", and ".join(_grouped({name: _state_phrase(state) for name, state in states.items()}))


def _grouped(phrases: dict[str, Phrase]) -> list[str]:
    """Return what ranks do. Ranks that do the same share a clause."""
    groups: dict[Phrase, list[str]] = defaultdict(list)
    for name, phrase in phrases.items():
        groups[phrase].append(name)
    return [f"{wording.joined(names)} {phrase.for_count(len(names))}" for phrase, names in groups.items()]


def _unanswered_peer(member: JobMember) -> str | None:
    """Return the peer of a connection that no longer answers. None: all answer."""
    return next(
        (
            connection.peer
            for connection in member.connections
            if connection.unsent_bytes and connection.tries >= _MIN_UNANSWERED_TRIES
        ),
        None,
    )


def _missing_ranks_text(members: Sequence[JobMember]) -> str:
    """Return a text with the number of ranks of the launcher's WORLD_SIZE that are not watched. Empty: none."""
    size = members[0].group.environment.get("WORLD_SIZE", "")
    num_missing = int(size) - len(members) if is_number(size) else 0
    return (
        f"{wording.count(num_missing, 'rank')} of {size} {'is' if num_missing == 1 else 'are'} not watched"
        if num_missing > 0
        else ""
    )


def _find_mismatch(members: Sequence[JobMember]) -> Mismatch | None:
    """Return the exchange that does not match in a run of this suite. None: all match, or it is another program."""
    flights = {
        member.group.number: member.flight() for member in members if member.group.number is not None and not member.ended
    }
    if not any(flights.values()):
        return None
    ended = {member.group.number for member in members if member.ended}
    ranks = [Rank(f"rank {number}", flights.get(number), number in ended) for number in range(min(max(flights) + 1, MAX_RANKS))]
    return flight_report.mismatch(ranks)


def _names(members: Sequence[JobMember]) -> str:
    return wording.joined([member.name for member in members])


def _clause(members: Sequence[JobMember], verb: str, rest: str = "") -> str:
    """Return what ranks do, e.g. `rank 0 and rank 1 have ended`. The verb is an infinitive."""
    return f"{_names(members)} {Phrase(verb, rest).for_count(len(members))}"
