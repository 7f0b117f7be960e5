"""One process of a run is killed or stopped, and `--restarts` brings it to its end: not a bit of what it learns differs.

`make test-all` draws two blows for each mode. All of them, with a line for each mode:

    CONVTWINS_BLOWS=all pytest tests/twins/test_restarts.py --framework pytorch -m slow -s -k blows
"""

import collections
import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil
import pytest

from common import spec
from common.artifacts import checkpoint, event_log
from common.artifacts.schema import RunResult
from compare.comparison import executor
from compare.results import store
from compare.running import matrix
from compare.running.contestants import Contestant
from compare.running.twins import Twins
from tests.twins.runs import PROJECT, SETTINGS

ALL, SEED, DRAWN = os.environ.get("CONVTWINS_BLOWS") == "all", 29, 2
EPOCHS = 12
SECONDS = 300
HANG_SECONDS = 10.0

Moment = Literal["start", "middle", "last epoch", "checkpoint"]
KEPT: dict[str, int] = {"serial": 1, "multi_process": 2, "sharded_data_parallel": 2}
"""Processes of each mode that goes on from a checkpoint."""
STARTING_OVER: dict[str, int] = {
    **dict.fromkeys(("parameter_server", "parameter_server_async", "model_averaging"), 2),
    **dict.fromkeys(("model_parallel", "tensor_parallel", "pipeline", "pipeline_1f1b", "pipeline_async"), 2),
    **dict.fromkeys(("hybrid_tensor", "hybrid_pipeline"), 4),
}
IN_ANY_ORDER = ("parameter_server_async",)
"""Its updates come as they come. Two undisturbed runs of it differ too."""


LAUNCHER = -1


class Blow(NamedTuple):
    """What meets one process of a run."""

    victim: int
    """Its rank. LAUNCHER: what has started the ranks."""
    signal: signal.Signals
    moment: Moment
    precision: spec.Precision

    @classmethod
    def all_of(cls, mode: str, draw: random.Random) -> list["Blow"]:
        """Every rank, both signals and every moment, each in a precision that is drawn, and SIGKILL for the launcher."""
        processes = (KEPT | STARTING_OVER)[mode]
        moments: tuple[Moment, ...] = ("start", "middle", "last epoch", *(("checkpoint",) if mode in KEPT else ()))
        return [
            cls(victim, sent, moment, draw.choice(("float32", "float64")))
            for victim in range(LAUNCHER if processes > 1 else 0, processes)
            for sent in (signal.SIGKILL, signal.SIGSTOP)
            for moment in moments
            # Before it has its data, a stopped process counts as stuck after ten minutes only.
            if sent == signal.SIGKILL or (moment != "start" and victim != LAUNCHER)
        ]


class Striker:
    """Deals a blow to the first attempt of a run.

    Attributes:
        struck: whether it came in time.
        cut_short: whether it left a checkpoint half written.
    """

    def __init__(self, directory: Path, blow: Blow, processes: int, draw: random.Random) -> None:
        self.struck = self.cut_short = False
        self._directory = directory
        self._blow = blow
        self._processes = processes
        self._draw = draw
        self._over = threading.Event()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _work(self) -> None:
        after = EPOCHS - 1 if self._blow.moment == "last epoch" else self._draw.randint(1, EPOCHS - 2)
        while not self._over.wait(0.002):
            if self._blow.moment == "start":
                if self._victim() is not None:
                    self._over.wait(self._draw.uniform(0.0, 2.0))
                    break
            elif len(event_log.read_epochs(self._directory)) >= after:
                break
        if self._blow.moment == "checkpoint":
            while not self._over.is_set() and not self._is_half_written():
                pass
        elif self._blow.moment != "start":
            self._over.wait(self._draw.uniform(0.0, 0.05))
        victim = self._victim()
        if victim is not None and not self._over.is_set():
            try:
                victim.send_signal(self._blow.signal)
                self.struck = True
                is_writer = self._processes == 1 or self._blow.victim == 0
                while is_writer and self._blow.signal == signal.SIGKILL and not self._over.is_set():
                    has_ended = victim.status() == psutil.STATUS_ZOMBIE  # whoever waits for it would take its exit code
                    self.cut_short = self._is_half_written()  # after it has ended, or it might still finish the file
                    if has_ended:
                        break
            except psutil.NoSuchProcess:
                self.cut_short = False  # it was quicker, or has been waited for

    def _is_half_written(self) -> bool:
        return any(self._directory.glob(f".{checkpoint.FILE}*"))

    def _victim(self) -> psutil.Process | None:
        """The rank, or the only process of the run."""
        for attempt in psutil.Process().children():
            try:
                if str(self._directory) not in " ".join(attempt.cmdline()):
                    continue
                if self._processes == 1 or self._blow.victim == LAUNCHER:
                    return attempt
                ranks = {each.environ().get("RANK"): each for each in attempt.children()}
                return ranks.get(str(self._blow.victim))
            except psutil.Error:
                pass
        return None


@pytest.fixture
def execute(framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(PROJECT)

    def run(name: str, mode: str, blow: Blow | None = None, **fields: Any) -> tuple[RunResult, Striker | None]:
        """The result of a run, and who dealt the blow."""
        processes = (KEPT | STARTING_OVER)[mode]
        settings = {**SETTINGS, "model": "tests.twins.own_plain_model", "data": {"image_size": 12, "limit": 256}}
        settings |= {"epochs": EPOCHS, "checkpoint_seconds": 0, "hang_seconds": HANG_SECONDS}
        settings |= {"precision": blow.precision} if blow else {}
        twin = Contestant.plain(framework)
        row = matrix.build_row(name, twin, spec.build(spec.with_variant(settings | fields, mode, min(processes, 2))))
        if blow is None:
            return executor.execute(twin, row, 0, tmp_path, lambda events: None), None
        striker = Striker(store.run_folder(tmp_path, row.id, 0), blow, processes, random.Random(f"{SEED} {name}"))
        with striker.at_work():
            return executor.execute(twin, row, 0, tmp_path, lambda events: None, restarts=1), striker

    return run


def learned(result: RunResult) -> list[Any]:
    """All that a run has learned, to the last bit."""
    assert result.status == "ok", result.reason
    assert result.final_weights_hash is not None
    scores = [(record.epoch, record.steps, record.train, record.validation) for record in result.epochs]
    hashes = [result.final_weights_hash, result.weights_hash, result.order_hash, result.predictions_hash]
    return [scores, result.test, result.first_step_loss, *hashes]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*KEPT, *STARTING_OVER])
def test_blows_at_random_moments_lose_double_and_change_nothing(execute: Any, framework: str, mode: str) -> None:
    if mode != "serial" and Twins([framework]).describe(framework)["modes"][spec.MODES[mode].name]["one_process"]:
        pytest.skip(f"{mode} is one process in {framework}")
    draw = random.Random(f"{SEED} {framework} {mode}")
    blows = Blow.all_of(mode, draw)
    blows = blows if ALL else draw.sample(blows, DRAWN)
    alone: dict[str, RunResult] = {}
    counts: collections.Counter[str] = collections.Counter()
    for number, blow in enumerate(blows):
        if blow.precision not in alone:
            alone[blow.precision], _ = execute(blow.precision, mode, precision=blow.precision)
        made, striker = execute(f"blow{number}", mode, blow)
        assert made.status == "ok", (blow, made.reason)
        assert [record.epoch for record in made.epochs] == list(range(1, EPOCHS + 1)), blow
        assert mode in IN_ANY_ORDER or learned(made) == learned(alone[blow.precision]), blow
        assert striker.struck or not made.restarts, blow
        counts[blow.signal.name] += striker.struck
        counts["checkpoint cut short"] += striker.cut_short
        if not made.restarts:
            counts["too late"] += 1  # its result was written already
            continue
        (death,) = made.restarts
        assert ("SIGKILL" if blow.signal == signal.SIGKILL else "stopped") in death.reason, (blow, death.reason)
        assert death.epochs >= {"start": 0, "last epoch": EPOCHS - 1}.get(blow.moment, 1), blow
        assert 0.0 < death.seconds_lost < SECONDS
        resumed = mode in KEPT and (blow.moment != "start" or made.resumes == 1)
        assert made.resumes == resumed
        if mode in STARTING_OVER:
            assert made.started_over == f"mode {mode} starts over: each of its processes holds a part of what is trained"
        counts["went on" if resumed else "began again"] += 1
    print(f"\n{framework} {mode}: {dict(counts)}")
    assert counts["too late"] <= max(1, len(blows) / 4)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["multi_process", "sharded_data_parallel"])
@pytest.mark.parametrize("statistics", ["synchronised", "per_replica"])
def test_an_elastic_run_goes_on_with_one_replica_and_its_mathematics_are_those_that_are_said(
    execute: Any, mode: str, statistics: str
) -> None:
    """Over the whole batch BatchNorm is the same for one replica. Over each replica's share it is another."""
    fields = {"least_replicas": 1, "batch_norm_statistics": statistics}
    alone, _ = execute("alone", mode, **fields)
    made, striker = execute("killed", mode, Blow(1, signal.SIGKILL, "middle", "float64"), **fields)
    (death,) = made.restarts
    assert (striker.struck, death.replicas, made.resumes, made.started_over) == (True, 1, 1, None)
    assert (made.spec, made.order_hash, made.weights_hash) == (alone.spec, alone.order_hash, alone.weights_hash)
    before = death.epochs - 1  # the last one may have ended before its checkpoint was written
    assert [each.train for each in made.epochs[:before]] == [each.train for each in alone.epochs[:before]]
    apart = max(
        abs(one.train.loss - other.train.loss) / other.train.loss for one, other in zip(made.epochs, alone.epochs, strict=True)
    )
    assert apart < 1e-9 if statistics == "synchronised" else apart > 1e-6
    assert made.status == "not parallel"
