"""Serving trials without a framework: what is asked and told, line by line."""

import json
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from common import spec
from common.data.batches import BatchPlan, Feed
from common.machine import machine
from common.models import architectures
from common.models.weights import Weights
from common.processes import serving
from common.processes.serving import TrialServer
from common.spec import Spec, SpecError

EXAMPLES = 8


class Talk:
    """Both ends of a serving process, in this one."""

    def __init__(self, prepare: Callable[[Spec], Any]) -> None:
        self._asked: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        served = TrialServer("made up", {"made up": "1"}, 1, prepare, lambda: None, self._told.put)
        self.thread = threading.Thread(target=served.serve, args=(self._lines(),), kwargs={"device": "none"})
        self.thread.start()

    def _lines(self) -> Iterator[str]:
        while (line := self._asked.get()) is not None:
            yield line

    def ask(self, **message: Any) -> None:
        self._asked.put(json.dumps(message))

    def trial(self, name: str, judged: bool = False, **fields: Any) -> None:
        values = spec.build({"cores": 1, "epochs": 3, "global_batch_size": 4, **fields}).model_dump(mode="json")
        self.ask(trial=name, spec=values, judged=judged)

    def hear(self) -> dict[str, Any]:
        return json.loads(self._told.get(timeout=300))

    def hear_until_end(self) -> list[dict[str, Any]]:
        heard = [self.hear()]
        while heard[-1]["event"] != "end":
            heard.append(self.hear())
        return heard

    def end(self) -> None:
        self._asked.put(None)
        self.thread.join(30)
        assert not self.thread.is_alive()


class Trainer:
    """Counts its steps; each loss is one over their number, or what it is told."""

    implementation, devices, threads, shard = "none", ["none"], {}, (0, 1)
    scores_together = False
    images_on_host = False

    def __init__(self, plan: BatchPlan, loss: float | None) -> None:
        self._plan, self._loss, self._steps = plan, loss, 0

    @property
    def updates(self) -> int:
        return self._steps

    def feed(self) -> Feed[Any]:
        def start(epoch: int, steps: Sequence[int]) -> Iterator[Any]:
            bounds = self._plan.bounds(epoch, 1, 0)
            yield from (SimpleNamespace(ids=np.arange(*bounds[step]), begin_time=0.0) for step in steps)

        return start

    def compile(self, step_sizes: object, score_sizes: object) -> None: ...

    def compilations(self) -> int:
        return 0

    def finish_epoch(self) -> None: ...

    def train_step(self, batch: Any, num_examples: int, learning_rate: float) -> tuple[float, int]:
        self._steps += 1
        return self._loss or 1.0 / self._steps, 0

    def score(self, images: Any, labels: Any) -> tuple[float, Any]:
        return float(len(labels)), labels

    def fetch(self, values: list[Any]) -> Any:
        return np.array(values)

    def all_reduce_shards(self, values: Any) -> Any:
        return values

    all_reduce_world = all_reduce_shards

    def broadcast_statistics(self) -> None: ...

    def memory_by_device(self) -> dict[str, float]:
        return {}

    def weights(self) -> Weights:
        return {}

    def synchronize(self) -> None: ...

    def close(self) -> None: ...


def prepare(read: Spec) -> Any:
    if read.seed == 7:
        raise SpecError("seed is 7. Received: 7.")
    if read.seed == 8:
        raise RuntimeError("no more\nmemory")
    if read.seed == 10:
        raise SystemExit(0)  # as a user's model may do while it trains
    architecture = architectures.resolve("simple_cnn", 10, 32)
    split = SimpleNamespace(images=np.zeros((2, 32, 32, 3), np.uint8), labels=np.zeros(2, np.int64))
    dataset = SimpleNamespace(train=SimpleNamespace(labels=range(EXAMPLES)), validation=split, class_names=("a",))
    plan = BatchPlan(read, architecture, EXAMPLES)
    return cast(Any, (dataset, plan, Trainer(plan, float("nan") if read.seed == 9 else None)))


@pytest.fixture
def talk() -> Iterator[Talk]:
    made = Talk(prepare)
    assert made.hear() == {"event": "ready", "framework": "made up", "versions": {"made up": "1"}, "device": "none"}
    yield made
    made.end()


def test_a_trial_tells_its_events_and_never_scores_the_test_split(talk: Talk) -> None:
    talk.trial("a")
    heard = talk.hear_until_end()
    assert [each["event"] for each in heard] == ["start", "first_step", "epoch", "epoch", "epoch", "end"]
    assert {each["trial"] for each in heard} == {"a"}
    assert heard[2]["train"]["loss"] == pytest.approx((1 + 1 / 2) / 2) and heard[2]["validation"]["loss"] == 1.0
    assert heard[-1]["status"] == "ok" and heard[-1]["reason"] is None
    assert heard[-1]["phases"]["training_seconds"] > 0


def test_a_judged_trial_waits_after_every_epoch_but_the_last_and_stops_when_told(talk: Talk) -> None:
    talk.trial("a", judged=True)
    talk.trial("b", judged=True)
    heard: dict[str, list[str]] = {"a": [], "b": []}
    while len(heard["a"]) + len(heard["b"]) < 6:
        each = talk.hear()
        heard[each["trial"]].append(each["event"])
    assert heard == {"a": ["start", "first_step", "epoch"], "b": ["start", "first_step", "epoch"]}
    talk.ask(trial="a", go_on=False)
    assert [each["status"] for each in talk.hear_until_end() if each["event"] == "end"] == ["stopped"]
    for _ in range(2):
        talk.ask(trial="b", go_on=True)
    told = talk.hear_until_end()
    assert [each["event"] for each in told] == ["epoch", "epoch", "end"] and told[-1]["status"] == "ok"


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"seed": 7}, "failed", "seed is 7. Received: 7."),
        ({"seed": 8}, "failed", "RuntimeError: no more"),
        ({"seed": 9}, "diverged", "loss is nan at epoch 1, step 1; try a smaller optimizer.learning_rate"),
        ({"seed": 10}, "failed", "SystemExit: 0"),
        ({"part": "input"}, "failed", "A trial trains serially, all of it."),
        ({"mode": "data_parallel", "replicas": 2}, "failed", "A trial trains serially, all of it."),
        ({"cores": 2}, "failed", "cores of a trial must be those of the process. Received: 2. Use 1."),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_trial_that_fails_says_why_and_the_next_one_is_trained(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], status: str, reason: str
) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 2)  # a machine may have one
    talk.trial("a", **fields)
    end = talk.hear_until_end()[-1]
    assert end["status"] == status and end["reason"].startswith(reason)
    talk.trial("b")
    assert talk.hear_until_end()[-1]["status"] == "ok"


def test_what_a_framework_prints_on_stdout_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with serving.json_stdout() as answers:
        os.write(1, b"chatter\n")  # as a library does it that knows nothing of Python's streams
        print("an answer", file=answers)
    out, err = capfd.readouterr()
    assert out == "an answer\n" and "chatter" in err
