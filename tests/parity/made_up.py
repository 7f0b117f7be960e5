"""Recordings that no framework made, for the ladder's own logic."""

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import safetensors.numpy

from common import spec
from common.data.batches import BatchPlan
from common.models import architectures, weights
from common.models.architectures import Architecture
from common.processes import command_line
from common.spec import Spec
from compare.proof.differences import Arrays
from compare.proof.referee import network, training
from compare.running import launch

Change = Callable[[Arrays], None]
DESCRIBED = {
    "versions": {"made_up": "1.0"},
    "devices": [{"name": "cpu", "kind": "cpu"}],
    "modes": {
        mode: {
            "available": True,
            "reason": None,
            "max_replicas": None,
            "batch_norm_statistics": ["per_replica", "synchronised"],
        }
        for mode in spec.MODES.names()
    },
    "options": {},
}


def recording(what: Spec, *, reverse_batches: bool = False, seed: int = 0) -> Arrays:
    """Plausible arrays of the right names and shapes, the same for the same seed."""
    architecture = architecture_of(what)
    draw = np.random.default_rng(seed)
    initial = weights.initial(architecture, what.seed)
    gradients = {p.name: draw.normal(size=p.shape) for p in architecture.parameters() if p.trainable}
    stepped = {
        name: array - 0.1 * gradients[name] if name in gradients else array + draw.normal(size=array.shape) ** 2
        for name, array in initial.items()
    }
    steps, size = what.steps or 1, what.global_batch_size
    logits = draw.normal(size=(size, 10))
    arrays: Arrays = {
        "ids": np.arange(steps * size),
        "decoded": np.arange(32, dtype=np.uint8),
        "loss": np.linspace(2.3, 1.0, steps),
        "num_correct": np.arange(steps),
        "logits/train": logits + 1.0,
        "logits/eval": logits,
        "logits/final": 2.0 * (logits[::-1] if reverse_batches else logits),
    }
    trainable = sum(gradient.size for gradient in gradients.values())
    arrays["num_values"] = np.array([sum(array.size for array in initial.values()), trainable])
    arrays["pixels"] = draw.integers(0, 256, (steps, 32), np.uint8)
    arrays |= {f"images/{step}": draw.integers(0, 256, (size, 32, 32, 3), np.uint8) for step in range(3)}
    for prefix, group in (("initial", initial), ("gradient", gradients), ("stepped", stepped)):
        arrays |= {f"{prefix}/{name}": array.copy() for name, array in group.items()}
    return arrays


def recording_of_steps(what: Spec, drawn: Sequence[int], by_referee: Collection[str] = ("float32",)) -> Arrays:
    """Single steps as `tracing.trace_steps` records them: the referee's in some precisions, made up in others."""
    made = _recording_of_steps(what.to_json(), tuple(drawn), tuple(by_referee))
    return {name: array.copy() for name, array in made.items()}


@lru_cache(maxsize=4)
def _recording_of_steps(written: str, drawn: tuple[int, ...], by_referee: tuple[str, ...]) -> Arrays:
    what = spec.from_json(written.encode())
    architecture, draw = architecture_of(what), np.random.default_rng(0)
    plan = BatchPlan(what, architecture, what.data.limit or 1257)
    state: Arrays = {name: array.astype(what.precision) for name, array in weights.initial(architecture, what.seed).items()}
    given = what.optimizer
    rule: Any = training.RefereeSGD(given.momentum, given.weight_decay) if given.name == "sgd" else training.RefereeAdam()
    slots = {"buffer": "buffers"} if given.name == "sgd" else {"mean": "means", "square": "squares"}
    arrays: Arrays = {"pixel_mean": np.zeros(3), "pixel_std": np.ones(3)}

    def keep(prefix: str) -> None:
        for name in found:
            for slot, field in slots.items():
                kept = getattr(rule, field).get(name, np.zeros(state[name].shape))
                arrays[f"{prefix}/slots/{slot}/{name}"] = kept.astype(what.precision)
        arrays.update({f"{prefix}/weights/{name}": array.astype(what.precision) for name, array in state.items()})

    for number, step in enumerate(drawn, start=1):
        start, stop = plan.batch(step % plan.steps_per_epoch)
        size = stop - start
        images, labels = draw.integers(0, 256, (size, 32, 32, 3), np.uint8), draw.integers(0, 10, size)
        masks = [draw.random((size, dropout.units)) < 0.5 for dropout in architecture.dropouts]
        statistics: Arrays = {}
        loss, found = 2.0, {p.name: draw.normal(size=p.shape) for p in architecture.parameters() if p.trainable}
        if what.precision in by_referee:
            wide = {name: array.astype(np.float64) for name, array in state.items()}
            batch = network.RefereeBatch(network.scaled(images, [0] * 3, [1] * 3, np.float64), labels, masks)
            done = network.gradients(architecture, wide, batch)
            loss, found = float(done.loss), done.gradients
            statistics = done.statistics
        if step - 1 not in drawn:
            arrays[f"before/{step}/drawn"] = np.array(step)
            keep(f"before/{step}")
        rate = plan.learning_rate(step)
        state |= {name: rule.update(name, state[name], gradient, rate, number) for name, gradient in found.items()}
        state |= {name: array.astype(what.precision) for name, array in statistics.items()}
        keep(f"after/{step}")
        arrays |= {f"ids/{step}": np.arange(size), f"hashes/{step}": np.arange(size), f"loss/{step}": np.array([loss])}
        arrays |= {f"images/{step}": images, f"labels/{step}": labels}
        arrays |= {f"masks/{step}/{index}": mask for index, mask in enumerate(masks)}
    return arrays


def architecture_of(what: Spec) -> Architecture:
    return architectures.build(what, 10, 32)


class FakeTwins:
    """Stands in for `launch`: every trace writes a made-up recording, changed where asked.

    changes: by (framework, mode); reordered: by framework, of recordings with every batch back to front, besides.
    is_idle: no trace writes anything, and all end well.
    waves: the logs of the processes that run at the same time; one each, or with `together` as many as may start.
    polls: the caller is asked for more before the end of each process, and after it.
    """

    def __init__(self) -> None:
        self.changes: dict[tuple[str, str], Change] = {}
        self.reordered: dict[str, Change] = {}
        self.calls: list[tuple[str, Spec]] = []
        self.described: dict[str, Any] = dict(DESCRIBED)
        self.code = 0
        self.stepped: list[tuple[str, Spec]] = []
        self.steps_by_referee = ["float32"]
        self.is_idle = self.together = self.polls = False
        self.asked: list[launch.Call] = []
        self.waves: list[list[str]] = []

    def describe(self, framework: str) -> dict[str, Any]:
        return {"framework": framework, **self.described}

    def call_each(
        self,
        following: Callable[[], launch.Call | None],
        ended: Callable[[launch.Call, int], object],
        at_once: int = 1,
        on_poll: Callable[[], object] = lambda: None,
    ) -> None:
        while True:
            running: list[launch.Call] = []
            while (self.together or not running) and (wanted := following()) is not None:
                running.append(wanted)
            if not running:
                return
            self.waves.append([each.log.stem for each in running])
            for each in running:
                code = launch.checked_exit_code(each, self.call(each))
                if self.polls:
                    on_poll()  # its files are there, and it has not ended
                ended(each, code)
                if self.polls:
                    on_poll()

    def call(self, asked: launch.Call) -> int:
        self.asked.append(asked)
        if self.is_idle:
            return 0
        asked.log.write_text("line one\nRuntimeError: no more memory\n")
        if self.code:
            return self.code
        first = command_line.parse(asked.contestant.name, asked.arguments)
        for each in [first, *first.then]:
            what, out = spec.from_json(each.spec.read_bytes()), str(each.out)
            if each.drawn is not None:
                self.step(asked.contestant.name, what, out, each.drawn)
            else:
                self.record(asked.contestant.name, what, out, reverse_batches=each.reverse_batches)
        return 0

    def step(self, framework: str, what: Spec, out: str, drawn: Sequence[int]) -> None:
        self.stepped.append((framework, what))
        arrays = recording_of_steps(what, drawn, self.steps_by_referee)
        if change := self.changes.get((framework, "steps")):
            change(arrays)
        safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, out)

    def record(self, framework: str, what: Spec, out: str, *, reverse_batches: bool) -> None:
        self.calls.append((framework, what))
        arrays = recording(what, reverse_batches=reverse_batches)
        if change := self.changes.get((framework, what.mode)):
            change(arrays)
        if reverse_batches and (change := self.reordered.get(framework)):
            change(arrays)
        safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, out)
