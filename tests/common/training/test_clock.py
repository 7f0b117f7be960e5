"""What the clock of a run covers: defects of timing are planted in a made-up trainer, and the run names each."""

import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from common import spec
from common.artifacts import contradictions, event_log
from common.artifacts.schema import RunResult
from common.data.batches import BatchPlan, Feed
from common.data.sources import Dataset, DatasetSplit
from common.models.architectures import resolve
from common.training import run_clock, timing
from common.training.loop import TrainingRun
from common.training.timing import ClockAudit, ClockError, ClockEvidence, Stopwatch
from common.training.trainer import BaseTrainer, Batch

STEP_SECONDS = 0.02
LONG_SECONDS = 0.2
"""Of a slow step. Five steps take longer than the slack."""
EPOCHS, STEPS, SIZE = 2, 5, 4
ARCHITECTURE = resolve("simple_cnn", 10, 32)
SPLIT = DatasetSplit(images=np.zeros((SIZE * STEPS, 32, 32, 3), np.uint8), labels=np.zeros(SIZE * STEPS, np.int64))
DATA = Dataset(
    name="none",
    class_names=tuple("0123456789"),
    train=SPLIT,
    validation=SPLIT,
    test=SPLIT,
    content_hash="none",
    image_size=32,
    notes=(),
)


class Ranks:
    """What two processes of a run share."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stamps_seconds = 0.0
        """What it takes to tell the others when a rank has ended."""
        self._barrier = threading.Barrier(number)
        self._parts: dict[int, Any] = {}

    def sum(self, rank: int, values: Any) -> Any:
        self._parts[rank] = values
        if np.shape(values) == (2, self.number):
            time.sleep(self.stamps_seconds)
        self._barrier.wait()
        total = np.sum([self._parts[other] for other in range(self.number)], 0)
        self._barrier.wait()
        return total


class Counting:
    """A trainer that counts its updates in its only parameter. Its device computes while the host goes on."""

    implementation = "made up"
    images_on_host = False
    scores_together = False

    def __init__(self, plan: BatchPlan, ranks: Ranks, rank: int = 0) -> None:
        self.devices, self.threads = ["none"], dict[str, int]()
        self.plan, self.shard, self.ranks = plan, (rank, ranks.number), ranks
        self.updates = self.compiled = 0
        self.step_seconds = STEP_SECONDS
        self.idle_at = 0.0
        self.weight = np.zeros(1)

    def feed(self) -> Feed[Batch]:
        def start(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
            bounds = self.plan.bounds(epoch, self.shard[1], self.shard[0])
            yield from (self.made(self.plan.draw(epoch).ids[slice(*bounds[step])]) for step in steps)

        return start

    def made(self, ids: Any) -> Batch:
        return Batch(ids, None, np.zeros(len(ids)), (), timing.time.time())

    def compile(self, step_sizes: Sequence[int], score_sizes: Sequence[int]) -> None:
        self.compiled += len(step_sizes) + len(score_sizes)

    def compilations(self) -> int:
        return self.compiled

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        self.updates += 1
        self.weight = self.weight + 1
        self.idle_at = max(self.idle_at, time.perf_counter()) + self.step_seconds
        return np.float64(1.0), np.int64(0)

    def finish_epoch(self) -> None: ...

    def broadcast_statistics(self) -> None: ...

    def memory_by_device(self) -> dict[str, float]:
        return {}

    def synchronize(self) -> None:
        time.sleep(max(self.idle_at - time.perf_counter(), 0.0))

    def drain(self) -> None:
        """What the stopwatch waits for. In real runs it is the twin's own function, and not the trainer's."""
        Counting.synchronize(self)

    def fetch(self, values: list[Any]) -> Any:
        Counting.synchronize(self)
        return np.array(values)

    def score(self, images: Any, labels: Any) -> tuple[Any, Any]:
        return np.float64(len(labels)), np.asarray(labels)

    def all_reduce_shards(self, values: Any) -> Any:
        return self.ranks.sum(self.shard[0], values)

    all_reduce_world = all_reduce_shards

    def weights(self) -> Any:
        return {"conv1.kernel": self.weight}

    def state(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state(self, values: dict[str, Any], step: int) -> None:
        self.weight, self.updates = values["weight"], step

    def report(self, test: object) -> dict[str, Any]:
        return {}


def run(
    folder: Path, change: Callable[[Counting], object] = lambda trainer: None, earlier: Path | None = None, **fields: Any
) -> RunResult:
    wanted = spec.build({"epochs": EPOCHS, "global_batch_size": SIZE, **fields})
    plan = BatchPlan(wanted, ARCHITECTURE, len(SPLIT))
    trainer = Counting(plan, Ranks(1))
    change(trainer)
    made = TrainingRun("made up", wanted, {}, folder, 0, Stopwatch(trainer.drain))
    is_second = (folder / event_log.EVENTS_FILE).exists()
    folder.mkdir(exist_ok=True)
    made.record.update(data_hash="none", weights_hash="none")
    made.train(cast(BaseTrainer, trainer), plan, DATA, earlier)
    result = made.result("ok")
    assert is_second or contradictions.find_contradictions(result, event_log.read_events(folder)) == []
    return result


class Ended(SimpleNamespace):
    """An error of a clock, once its block has ended."""

    message: str
    figures: list[float]


@contextmanager
def ended_for(defect: str, subject: str = "") -> Generator[Ended]:
    """The block ends with an error that names a defect, and first what it was found in."""
    ended = Ended()
    with pytest.raises(ClockError) as caught:
        yield ended
    ended.message = str(caught.value)
    ended.figures = figures(ended.message)
    assert ended.message.startswith(f"{defect}: {subject}"), ended.message


def figures(text: str) -> list[float]:
    return list(map(float, re.findall(r"-?\d+\.\d+", text)))


def without_figures(text: str) -> str:
    return re.sub(r"\d+\.\d+", "FIGURE", text)


def test_a_process_has_its_pace_when_its_device_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its neighbour has a pace of 1 image/s."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def beside_a_neighbour(trainer: Counting) -> None:
        alone, neighbour = trainer.all_reduce_world, np.array([0.0, 1.0])
        trainer.all_reduce_world = lambda values: values + neighbour if np.shape(values) == (2,) else alone(values)

    result = run(tmp_path, beside_a_neighbour)
    fastest = max(each.timed_images / each.timed_seconds for each in result.epochs)
    assert result.images_per_second_by_process and result.images_per_second_by_process[0] <= 1.1 * fastest


def test_a_sound_clock_covers_what_the_device_computes(tmp_path: Path) -> None:
    result = run(tmp_path)
    for record, steps in zip(result.epochs, (STEPS - 1, STEPS), strict=True):
        assert record.timed_steps == steps
        assert record.timed_seconds >= steps * STEP_SECONDS
    phases = result.phases
    assert phases is not None
    parts = phases.model_dump(exclude={"wall_seconds", "input_wait_seconds"})
    assert sum(parts.values()) == pytest.approx(phases.wall_seconds)
    assert phases.other_seconds >= 0


# One defect each. All but the slow rank, which takes two.


def missing_synchronisation(trainer: Counting) -> None:
    trainer.step_seconds = LONG_SECONDS
    trainer.synchronize = lambda: None


def missing_synchronisation_of_the_stopwatch_too(trainer: Counting) -> None:
    missing_synchronisation(trainer)
    trainer.drain = lambda: None


def queue_filled_off_the_clock(trainer: Counting, behind: int = 0) -> None:
    feed = trainer.feed()

    def ahead(epoch: int, steps: Sequence[int]) -> Iterator[Batch]:
        ready = list(feed(epoch, steps))
        time.sleep(STEP_SECONDS)
        return (batch if number >= behind else batch._replace(begin_time=time.time()) for number, batch in enumerate(ready))

    trainer.feed = lambda: ahead


def queue_filled_off_the_clock_behind_its_first_batch(trainer: Counting) -> None:
    """As where one of two workers is ahead."""
    queue_filled_off_the_clock(trainer, behind=1)


def compile_inside_the_clock(trainer: Counting) -> None:
    train_step = trainer.train_step

    def traced(batch: Batch, num_examples: int, learning_rate: float) -> Any:
        trainer.compiled += trainer.updates == STEPS - 1
        return train_step(batch, num_examples, learning_rate)

    trainer.train_step = traced


def doubled_step(trainer: Counting) -> None:
    train_step = trainer.train_step

    def twice(*arguments: Any) -> Any:
        train_step(*arguments)
        return train_step(*arguments)

    trainer.train_step = twice


def work_moved_into_evaluation(trainer: Counting) -> None:
    def average() -> None:
        trainer.weight = trainer.weight / 2

    trainer.broadcast_statistics = average


@pytest.mark.parametrize(
    ("plant", "least", "most"),
    [
        (missing_synchronisation, 0.25, 9.99),
        (missing_synchronisation_of_the_stopwatch_too, 0.25, 9.99),
        (queue_filled_off_the_clock, STEP_SECONDS, 0.1),
        (queue_filled_off_the_clock_behind_its_first_batch, STEP_SECONDS, 0.1),
        (compile_inside_the_clock, 0.0, 0.0),
        (doubled_step, 0.0, 0.0),
        (work_moved_into_evaluation, 0.0, 0.0),
    ],
)
def test_a_planted_defect_of_timing_ends_the_run_and_is_named(
    plant: Callable[[Counting], object], least: float, most: float, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    name = plant.__name__.replace("_", " ").partition(" behind ")[0].partition(" of the stopwatch")[0]
    assert name in timing.DEFECTS
    with ended_for(name) as ended:
        run(tmp_path, plant)
    first = ended.message.partition("; ")[0]  # a busy machine may add another
    assert without_figures(first) == snapshot
    assert least <= (figures(first) or [0.0])[0] <= most


def both_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Counting], object]) -> dict[int, Any]:
    """Two ranks as threads, and what each has made: seconds of its epochs, or its error."""
    own, found = threading.local(), dict[int, Any]()
    monkeypatch.setattr("os.environ", _Environment(own))  # two ranks are two processes elsewhere
    wanted = spec.build({"epochs": EPOCHS, "global_batch_size": SIZE, "cores": 1})
    plan, ranks = BatchPlan(wanted, ARCHITECTURE, len(SPLIT)), Ranks(2)

    def one(rank: int) -> None:
        own.rank = rank
        trainer = Counting(plan, ranks, rank)
        trainer.step_seconds = LONG_SECONDS if rank else STEP_SECONDS
        change(trainer)
        made = TrainingRun("made up", wanted, {}, folder, 0, Stopwatch(trainer.synchronize))
        try:
            made.train_and_validate(cast(BaseTrainer, trainer), plan, DATA)
            found[rank] = [record.timed_seconds for record in made.result("ok").epochs]
        except ClockError as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


class _Environment(dict[str, str]):
    def __init__(self, own: threading.local) -> None:
        super().__init__(WORLD_SIZE="2")
        self._own = own

    def get(self, name: str, default: Any = None) -> Any:
        return str(self._own.rank) if name == "RANK" else super().get(name, default)


def test_ranks_that_need_nothing_of_each_other_are_timed_until_the_slowest_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = both_ranks(tmp_path, monkeypatch, lambda trainer: None)
    for steps, *seconds in zip((STEPS - 1, STEPS), found[0], found[1], strict=True):
        assert min(seconds) >= steps * LONG_SECONDS


def test_what_ranks_tell_each_other_at_the_end_is_not_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a meeting of ranks that takes longer than all their steps."""

    def change(trainer: Counting) -> None:
        trainer.step_seconds, trainer.ranks.stamps_seconds = 0.0, 0.5

    found = both_ranks(tmp_path, monkeypatch, change)
    assert found[0] == found[1] and max(found[0]) < 0.5


def test_an_epoch_lasts_from_the_first_start_to_the_last_end_whichever_ranks_these_are() -> None:
    assert timing.elapsed_over_ranks(np.array([10.0, 10.5, 10.25]), np.array([12.0, 11.0, 13.5])) == 3.5


@pytest.mark.parametrize(("here", "expected"), [("2", [[0.0, 100.0], [0.0, 103.5]]), ("1", [[0.0, 0.0], [0.0, 3.5]])])
def test_ranks_of_several_hosts_count_from_their_own_starts(
    monkeypatch: pytest.MonkeyPatch, here: str, expected: list[list[float]]
) -> None:
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_WORLD_SIZE", here)):
        monkeypatch.setenv(name, value)
    alone = cast(Any, SimpleNamespace(all_reduce_world=lambda stamps: stamps))
    assert run_clock.gather_start_and_end(alone, 100.0, 103.5).tolist() == expected


@pytest.mark.parametrize("planted_in", ["the rule that makes seconds of it", "what the ranks tell each other"])
def test_a_slow_rank_that_the_clock_does_not_wait_for_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted_in: str
) -> None:
    # The defect itself, as are the patches below.
    if planted_in == "what the ranks tell each other":
        stamps = run_clock.gather_start_and_end
        monkeypatch.setattr(run_clock, "gather_start_and_end", lambda *stamp: stamps(*stamp)[:, :1])
    else:
        monkeypatch.setattr(timing, "elapsed_over_ranks", lambda starts, ends: float(ends[0] - starts[0]))
    found = both_ranks(tmp_path, monkeypatch, lambda trainer: None)
    assert str(found[0]).startswith("slow rank: rank 1 ")
    assert str(found[1]) == str(found[0])  # no rank is left behind


def test_ranks_whose_clocks_differ_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each rank has a time namespace of its own, and counts from another start."""
    stamps = run_clock.gather_start_and_end

    def elsewhere(trainer: Any, start: float, end: float) -> Any:
        ahead = 3600.0 * trainer.shard[0]
        return stamps(trainer, start + ahead, end + ahead)

    monkeypatch.setattr(run_clock, "gather_start_and_end", elsewhere)
    monkeypatch.setattr(run_clock.placement, "on_one_host", lambda: True)
    found = both_ranks(tmp_path, monkeypatch, lambda trainer: None)
    assert str(found[1]) == str(found[0])
    assert str(found[0]).startswith("ranks without a common clock: ") and "rank 0" in str(found[0])
    ran, knew = figures(str(found[0]))
    assert 3600.0 <= ran < 3610.0 and knew < 10.0


SOUND = ClockEvidence(1.0, 1.0, 1.01, 0.01, -1.0, 0.0, 0, 0, 0)


@pytest.mark.parametrize("name", timing.DEFECTS)
def test_seconds_within_the_slack_and_counts_as_planned_are_no_defect(name: str) -> None:
    audit = ClockAudit()
    assert [audit.defects([SOUND, SOUND]) for _ in range(2)] == [{}, {}]
    assert audit.caution() is None
    planted = {
        "slow rank": {"rank_seconds": 1.01},
        "ranks without a common clock": {"barrier_to_barrier_seconds": 0.99},
        "missing synchronisation": {"unfinished_device_seconds": 2.0},
        "queue filled off the clock": {"prefetch_lead_seconds": 0.1},
        "compile inside the clock": {"compilations": 1},
        "doubled step": {"updates": 1},
        "work moved into evaluation": {"parameters_changed": 1},
    }
    unstamped = ClockAudit().defects([SOUND._replace(prefetch_lead_seconds=float("inf"))])
    assert list(unstamped) == ["queue filled off the clock"] and "inf" not in str(unstamped), "a batch without its time"
    epochs = 3 if name == "missing synchronisation" else 1
    (found,) = [audit.defects([SOUND, SOUND._replace(**planted[name])]) for _ in range(epochs)][-1].items()
    assert found[0] == name and "rank 1" in found[1]


@pytest.mark.parametrize(
    ("late", "is_noticed"),
    [((0.02, 0.02, 0.02), True), ((0.02, 0.0, 0.02), True), ((0.02, 0.0, 0.0), False), ((0.01, 0.01, 0.01), False)],
)
def test_an_epoch_that_misses_more_than_a_hundredth_is_a_caution_where_most_do(
    late: tuple[float, ...], is_noticed: bool
) -> None:
    audit = ClockAudit()
    assert [audit.defects([SOUND._replace(unfinished_device_seconds=each)]) for each in late] == [{}] * 3
    assert (audit.caution() is not None) is is_noticed


def test_a_rank_that_is_late_in_most_epochs_is_not_hidden_by_one_that_was_late_once() -> None:
    late = SOUND._replace(unfinished_device_seconds=0.02)
    audit = ClockAudit()
    for once in (0.1, 0.0, 0.0):
        assert audit.defects([SOUND._replace(unfinished_device_seconds=once), late]) == {}
    assert {"rank 1", "0.06 s"} <= set(re.findall(r"rank \d|\d\.\d\d s", audit.caution() or ""))
    alone = ClockAudit()
    assert alone.defects([late]) == {} and alone.caution() is None, "one epoch tells nothing"


def stalled(trainer: Counting) -> None:
    """Other work holds the process up for a while, where it fetches the losses of the first epoch."""
    fetch, fetched = trainer.fetch, list[int]()

    def late(values: list[Any]) -> Any:
        fetched.append(len(values))
        if fetched.count(STEPS) == 1 and fetched[-1] == STEPS:
            time.sleep(timing.ALLOWED_LATE_SECONDS + LONG_SECONDS)
        return fetch(values)

    trainer.fetch = late


def test_a_machine_that_holds_a_run_up_is_a_caution_and_no_defect(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    result = run(tmp_path, stalled)
    assert result.status == "ok" and result.clock_caution is not None
    assert without_figures(result.clock_caution) == snapshot
    assert any(run(tmp_path).clock_caution is None for _ in range(5)), "other work held all of them up"


def cut_short(trainer: Counting) -> None:
    """The run breaks off in its second epoch, after its only checkpoint."""
    train_step = trainer.train_step

    def until_then(*arguments: Any) -> Any:
        if trainer.updates > STEPS:
            raise InterruptedError
        return train_step(*arguments)

    trainer.train_step = until_then


def test_what_was_seen_of_the_clock_before_an_interruption_is_in_the_result(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        run(tmp_path / "first", lambda trainer: (stalled(trainer), cut_short(trainer)), checkpoint_seconds=0)
    result = run(tmp_path / "last", earlier=tmp_path / "first", checkpoint_seconds=0)
    assert (result.resumes, len(result.epochs)) == (1, EPOCHS)
    assert result.clock_caution is not None


def test_losses_that_are_late_before_and_after_an_interruption_are_a_defect(tmp_path: Path) -> None:
    def unsynchronised(trainer: Counting) -> None:
        missing_synchronisation(trainer)
        cut_short(trainer)

    with pytest.raises(InterruptedError):
        run(tmp_path / "first", unsynchronised, checkpoint_seconds=0)
    with ended_for("missing synchronisation"):
        run(tmp_path / "last", missing_synchronisation, tmp_path / "first", checkpoint_seconds=0)


def test_losses_that_are_late_in_a_single_epoch_tell_no_defect_from_a_busy_machine() -> None:
    audit = ClockAudit()
    late = SOUND._replace(unfinished_device_seconds=2.0)
    assert audit.defects([late]) == {} and audit.caution() is not None
    assert list(audit.defects([late])) == ["missing synchronisation"] and audit.caution() is None


def test_a_phase_within_a_phase_would_count_twice() -> None:
    stopwatch = Stopwatch(lambda: None)
    with (
        stopwatch.phase("training"),
        ended_for("time counted twice", "phase evaluation"),
        stopwatch.phase("evaluation"),
    ):
        pass


# Clocks that disagree. What is planted is the clock of the run, `time.perf_counter`, as a twin could replace it.


class Planted:
    """A clock that goes as fast as `pace` says, and jumps. It stands in for `time.perf_counter` in the loop and its timers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pace: float = 1.0) -> None:
        self.pace, self._real, self._own = pace, time.perf_counter(), time.perf_counter()
        self.set_by = 0.0
        """Seconds by which the system's time was set."""
        clock = SimpleNamespace(**{name: getattr(time, name) for name in dir(time) if not name.startswith("_")})
        clock.perf_counter, clock.time = self, lambda: time.time() + self.set_by
        for module in (run_clock, timing):
            monkeypatch.setattr(module, "time", clock)

    def __call__(self) -> float:
        real = time.perf_counter()
        self._own += self.pace * (real - self._real)
        self._real = real
        return self._own

    def turn(self, pace: float = 1.0, jump: float = 0.0) -> None:
        self()
        self.pace = pace
        self._own += jump


def at_update(number: int, what: Callable[[], object]) -> Callable[[Counting], object]:
    """Do it within an update of a run. Updates count from 1."""

    def change(trainer: Counting) -> None:
        train_step = trainer.train_step

        def step(*arguments: Any) -> Any:
            if trainer.updates == number - 1:
                what()
            return train_step(*arguments)

        trainer.train_step = step

    return change


def in_evaluation(what: Callable[[], object]) -> Callable[[Counting], object]:
    return lambda trainer: setattr(trainer, "broadcast_statistics", what)


TIMED, WHOLE = "the timed steps of made up:", "all since the last look of made up:"


@pytest.mark.parametrize(
    ("pace", "jump"),
    [*((pace, 0.0) for pace in (0.9, 0.97, 1.03, 1.1, 2.0, 0.0, -1.0)), *((1.0, jump) for jump in (0.5, -0.05, 3600.0))],
)
def test_a_clock_that_is_slow_or_fast_or_jumps_ends_the_run_with_both_figures(
    pace: float, jump: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Planted(monkeypatch, pace)
    with ended_for(timing.CLOCKS_DISAGREE, TIMED) as ended:
        run(tmp_path, at_update(STEPS + 2, lambda: clock.turn(pace, jump)))
    own, kernel = ended.figures
    assert (own < kernel) == (pace < 1.0 or jump < 0.0)


def test_a_clock_that_is_as_fast_as_others_to_half_a_hundredth_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pace in (0.995, 1.0, 1.005):
        Planted(monkeypatch, pace)
        assert run(tmp_path).status == "ok"


def test_a_clock_that_is_slow_from_the_second_epoch_on_ends_the_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Planted(monkeypatch)
    with ended_for(timing.CLOCKS_DISAGREE, TIMED):
        run(tmp_path, at_update(STEPS + 1, lambda: clock.turn(pace=0.9)))
    events = event_log.read_events(tmp_path)
    assert [event["epoch"] for event in events if event["event"] == "epoch"] == [1]


def test_a_clock_that_jumps_while_nothing_is_timed_ends_the_run_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Planted(monkeypatch)
    with ended_for(timing.CLOCKS_DISAGREE, WHOLE) as ended:
        run(tmp_path, in_evaluation(lambda: clock.turn(jump=0.2)))
    assert len(ended.figures) == 2


@pytest.mark.parametrize("part", ["compute", "input"])
def test_a_slow_clock_is_found_where_only_a_part_is_run(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Planted(monkeypatch, 0.9)
    with ended_for(timing.CLOCKS_DISAGREE):
        run(tmp_path, lambda trainer: setattr(trainer, "chunks", lambda: None), part=part)


def set_time(clock: Planted, seconds: float) -> Callable[[], object]:
    """Sets the system's time."""
    return lambda: setattr(clock, "set_by", seconds)


def time_was_set(result: RunResult) -> list[float]:
    """The seconds by which a run's caution says that the system's time was set, and those of its clock."""
    return figures((result.clock_caution or "").partition("the system's time ")[2])


@pytest.mark.parametrize("seconds", [-3600.0, 0.5])
def test_a_system_time_that_is_set_in_an_epoch_excuses_no_batch_but_takes_the_run_its_times(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own clock is right. When a batch was begun is told by the system's time, so no verdict rests on the run."""
    clock = Planted(monkeypatch)
    result = run(tmp_path, at_update(STEPS + 2, set_time(clock, seconds)))
    step, ran = time_was_set(result)
    assert result.status == "ok" and step == pytest.approx(abs(seconds), abs=0.1) and ran < 10.0


def test_a_system_time_that_was_set_is_remembered_by_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = set_time(Planted(monkeypatch), 3600.0)
    with pytest.raises(InterruptedError):
        run(tmp_path / "first", lambda each: (at_update(2, setting)(each), cut_short(each)), checkpoint_seconds=0)
    result = run(tmp_path / "last", earlier=tmp_path / "first", checkpoint_seconds=0)
    assert result.resumes == 1 and time_was_set(result)[0] == pytest.approx(3600.0, abs=0.1)


def test_a_system_time_that_is_set_while_nothing_is_timed_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Planted(monkeypatch)
    result = run(tmp_path, in_evaluation(lambda: set_time(clock, clock.set_by + 3600.0)()))
    assert result.status == "ok" and time_was_set(result) == []


def test_a_rank_whose_clock_is_slow_is_named_in_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the readings of rank 1 alone."""
    end = timing.Timer.end

    def slow(timer: timing.Timer) -> timing.ClockSpan:
        span = end(timer)
        return span._replace(seconds=0.9 * span.seconds) if span.seconds > STEPS * LONG_SECONDS / 2 else span

    monkeypatch.setattr(timing.Timer, "end", slow)
    found = both_ranks(tmp_path, monkeypatch, lambda trainer: None)
    assert str(found[0]).startswith("clocks that disagree: the timed steps of rank 1 of made up: ")
    assert str(found[1]) == str(found[0])


AGREED = timing.ClockSpan(10.0, 9.999, 10.001, 19.9, 2)


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ({}, None),
        ({"seconds": 9.95}, None),
        ({"seconds": 10.08}, None),
        ({"kernel_min_seconds": 3.0}, None),  # it was held while it read its clocks
        ({"cpu_seconds": 20.1}, None),  # ticks
        ({"seconds": 9.89}, [9.89, 10.001]),  # the kernel's clock
        ({"seconds": 10.11}, [10.11, 10.001]),
        ({"cpu_seconds": 22.0}, [10.0, 22.0]),  # the CPUs' seconds
        # Both clocks are planted.
        ({"seconds": 9.0, "kernel_min_seconds": 8.999, "kernel_max_seconds": 9.001}, [9.0, 19.9]),
    ],
)
def test_the_seconds_of_a_span_agree_with_the_kernels_clock_and_the_cpu_time(
    planted: dict[str, float], named: list[float] | None, snapshot: SnapshotAssertion
) -> None:
    found = AGREED._replace(**planted).disagreement()
    assert (None if found is None else figures(found)) == named
    assert found is None or without_figures(found) == snapshot


def test_no_process_computes_longer_than_its_cpus_have_passed() -> None:
    begin = timing.ClockReading()
    threads = [threading.Thread(target=lambda: sum(range(2_000_000))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    span = begin.span_until(timing.ClockReading())
    assert 0.0 < span.cpu_seconds <= span.cpus * span.kernel_max_seconds and span.disagreement() is None


@pytest.mark.parametrize(
    ("seconds", "more", "is_defect"), [(0.1, 0.015, False), (0.1, 0.05, True), (10.0, 0.015, False), (10.0, 0.5, True)]
)
def test_cpu_time_may_have_a_tick_of_each_cpu_from_before_the_span(seconds: float, more: float, is_defect: bool) -> None:
    """A span between two recorded steps may be as short as a tenth of a second."""
    span = timing.ClockSpan(
        seconds, seconds, seconds, cpu_seconds=2 * seconds * (1 + timing.MAX_CLOCK_DIFFERENCE) + more, cpus=2
    )
    assert (span.disagreement() is not None) == is_defect
