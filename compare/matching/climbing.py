"""Two models in processes of their own: opened, given the same weights, measured, and compared rung by rung."""

from __future__ import annotations

import functools
import itertools
import math
import queue
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from common.machine import heartbeat
from common.matching.records import ROUNDING_JITTERS, OWN_RULE, Array, OpenRequest, Layer, ModelReport, stress_inputs, images
from common.models import weights
from common.spec import SpecError
from compare.core import wording
from compare.core.errors import LaunchError
from compare.execution import launch
from compare.matching import causes, formulas
from compare.matching.alignment import Alignment, align, pair_layers
from compare.matching.causes import BIASED_VARIANCE, LOWER_PRECISION, ROUNDING_CAUSES, Cause, MeasuredModel
from compare.matching.formulas import max_relative_difference
from compare.tuning.servers import ENDED, LocalServer

_POLL_SECONDS = 0.5
_EXACT, _FORWARD, _GRADIENT, _UPDATE, _STEPS = 0.0, 1e-10, 1e-8, 1e-8, 1e-6
_NOISE = 1e-6
"""Gradients that are smaller than this part of the largest, or of the largest of their layer, count as rounding."""
_FLOAT32 = 1e-4
"""Tolerance of what follows from a constant that is rounded to float32."""
_SEEN = 1e-12
"""Difference of outputs from which on a rounded constant is looked for. Rounding of float64 is smaller."""
_GROWTH = 100.0
"""Outputs behind a rounded constant may differ by so many times what it makes itself, and by no more than the second."""
_REACH = 10.0
"""Outputs far from the usual values may differ by so many times what rounding of weights and images changes them by."""
_CHAOS = {"float64": 1e-6, "float32": 1e-2}
"""Where that is larger, a pass proves nothing. By what is rounded."""
_CONSEQUENCE = 1e3
"""Training may make so many times as much of it as the outputs differ by, and no more than `_FLOAT32`."""

_LAYERS, _STATISTICS, _UPDATE_NAME = "layers and parameters", "running statistics", "one update"
_IN_TRAINING, _GRADIENTS, _FAR = "logits, training", "gradients", "logits, far from the usual values"
PASSED, FAILED, FOLLOWS, UNJUDGED = "passed", "failed", "follows", "not judged"
ACCEPTED, ROUNDS = "accepted", "rounded"

_Look = Callable[..., tuple[MeasuredModel, MeasuredModel]]
"""What `serving.look` gives of both models, for a pass and `record`."""


@dataclass(frozen=True)
class Rung:
    """One comparison of the two models."""

    name: str
    difference: float
    """The largest, relative to the largest value of its array."""
    tolerance: float
    status: str
    """passed, failed, accepted (all its causes are), rounded (by a framework, and nothing else differs), follows (from a rung
    above), or not judged (behind an accepted one)."""
    where: str = ""
    """What differs most."""
    causes: tuple[Cause, ...] = ()
    first: float | None = None
    """Of outputs: the difference at the first layers that differ, which `where` names."""
    at_the_end: bool = True
    """Whether nothing can differ behind these layers. The causes explain no more than them."""
    between: str = ""
    """Where a fault lies at most that no correction explains."""
    under: str = ""
    """The pass that `difference` is of, where a rung has several."""
    left_out: tuple[str, ...] = ()
    """Passes that prove nothing here, and why."""

    @property
    def ended(self) -> str:
        """The rung in a line, before it is known what it follows from and what is accepted."""
        size = f" by {self.difference:.1e}" if math.isfinite(self.difference) else ""
        return f"{self.name}: {'agrees' if self.status == PASSED else f'differs{size}'}"

    def __repr__(self) -> str:
        size = f", largest difference {self.difference:.1e}" if math.isfinite(self.difference) else ""
        return f"{self.name}: {self.status}{size}{f' at {self.where}' if self.where else ''}"


@dataclass(frozen=True)
class Line:
    """One pair of layers."""

    left: Layer | None
    right: Layer | None
    inference: float | None
    """Difference of the outputs. None: there are not two."""
    training: float | None
    settings: str = ""
    """Settings that differ."""


@dataclass(frozen=True)
class Match:
    """What two models have and lack in common."""

    names: tuple[str, str]
    """Frameworks."""
    asks: tuple[OpenRequest, OpenRequest]
    rungs: list[Rung]
    lines: list[Line]
    notes: list[Cause] = field(default_factory=list[Cause])
    """Differences that this match removed."""
    opened: tuple[ModelReport, ...] = ()
    """What each framework knows of its model."""
    optimizers: str = ""
    """Settings of the user's optimizers that differ, in words."""

    def __repr__(self) -> str:
        """The answer, and a line for each rung: what a notebook shows."""
        return "\n".join([*self.sentences, "", *map(repr, self.rungs)])

    @property
    def same(self) -> bool:
        """Whether all rungs agree, and no setting that was recorded says that other values may differ."""
        return self._agrees and not self.unlike and not self.optimizers

    @property
    def _agrees(self) -> bool:
        return all(rung.status == PASSED for rung in self.rungs)

    @property
    def holds(self) -> bool:
        """Whether nothing differs but what was accepted."""
        return all(rung.status not in (FAILED, UNJUDGED) for rung in self.rungs)

    @property
    def told(self) -> list[Rung]:
        """The rungs that differ for themselves, and follow from no other."""
        own = (FAILED, ACCEPTED, ROUNDS)
        return [rung for rung in self.rungs if rung.status in own or (rung.status == UNJUDGED and rung.causes)]

    @property
    def is_biased_alone(self) -> bool:
        """Whether nothing fails but what Keras has no option for: biased running variances."""
        failed = [rung for rung in self.rungs if rung.status == FAILED]
        follow = any(rung.status == FOLLOWS for rung in self.rungs)
        return bool(failed) and not follow and all({cause.name for cause in rung.causes} == {BIASED_VARIANCE} for rung in failed)

    @property
    def unlike(self) -> list[str]:
        """Layers whose settings differ, with these. Where nothing was measured, order alone has paired them: then none."""
        found = [line for line in self.lines if line.settings and line.inference is not None]
        return [f"{line.left.name} ({line.settings})" for line in found if line.left is not None]

    @property
    def answer(self) -> str:
        """Same or not, and where the models part first."""
        models = f"{self.asks[0].model} and {self.asks[1].model}"
        rungs = (
            f"In float64 all {len(self.rungs)} rungs agree: outputs, gradients, updates, and "
            f"{wording.count(self.asks[0].steps, 'step')} of training."
        )
        if self.same:
            return f"Yes: {models} are the same model. {rungs}"
        if self._agrees:
            return f"Yes, but for {self.but_for}: {models}. {rungs}"
        failed = [rung for rung in self.rungs if rung.status == FAILED]
        unjudged = [rung.name for rung in self.rungs if rung.status == UNJUDGED]
        if self.is_biased_alone:
            return f"No: they part at {_STATISTICS} alone. There Keras has a convention of its own: add --accept {BIASED_VARIANCE}."
        if failed:
            return f"No: they part first at: {failed[0].name}."
        if unjudged:
            return (
                f"Cannot tell: what was accepted changes all that follows, so these were not judged: {', '.join(unjudged)}. "
                "Mend the port, and match again."
            )
        return f"Yes, but for {self.but_for}."

    @property
    def sentences(self) -> list[str]:
        """The answer, what differs, and why."""
        said = [self.answer]
        if self._agrees:
            if self.unlike:
                others = ", ".join(self.unlike)
                said.append(f"Other settings, which agree on all values that were compared and may part on others: {others}.")
            return said + self.reservations
        told = self.told
        for rung in told:
            said += self.parting(rung)
            said += [f" {cause.full_text}" for cause in rung.causes]
            if rung.status == FAILED and not rung.causes:
                shown = " The table of layers shows where the difference begins." if self._shows(rung) else ""
                said.append(f" None of the known causes explains it.{shown}")
            if rung.between:
                said.append(f" The fault lies {rung.between}.")
        if any(rung.between for rung in told) and any(each.unrecorded for each in self.opened):
            said.append(
                "Functions that a subclassed Keras model calls are not recorded. A fault in one of them has no name here."
            )
        if self.unlike:
            said.append(f"Other settings, which other layers may even out: {wording.listed(self.unlike, 6)}.")
        return said + self.reservations

    def parting(self, rung: Rung) -> list[str]:
        """By how much a rung differs, and where that begins."""
        size = f" by {rung.difference:.1e}" if math.isfinite(rung.difference) else ""
        at = f" at {rung.where}" if rung.where and rung.first is None else ""
        let_pass = {ACCEPTED: ", accepted", ROUNDS: f", only by {_rounded_words(self.rungs)}"}.get(rung.status, "")
        under = f", with {rung.under}" if rung.under else ""
        said = [f"{rung.name}: differs{size}{at}{let_pass}{under}."]
        if rung.first is not None:
            behind = "" if rung.at_the_end or rung.status in (ACCEPTED, ROUNDS) else " What is behind it was not judged."
            said.append(f" It begins at {rung.where}, by {rung.first:.1e}.{behind}")
        return said

    def _shows(self, rung: Rung) -> bool:
        """Whether the table of layers has the difference of a rung."""
        mode = rung.name.removeprefix("logits, ")
        return mode in ("inference", "training") and any((getattr(line, mode) or 0.0) > rung.tolerance for line in self.lines)

    @property
    def reservations(self) -> list[str]:
        """What was not compared."""
        found = [f"{rung.name}: nothing is proved by {'; '.join(rung.left_out)}." for rung in self.rungs if rung.left_out]
        if self.optimizers and not any(self.optimizers in cause.sentence for rung in self.rungs for cause in rung.causes):
            found.append(f"{self.optimizers} They may act later than in these steps.")
        if self.holds and any(each.unrecorded for each in self.opened):
            found.append(
                "Functions that a subclassed Keras model calls are not recorded. What they gave was compared, their settings "
                "were not."
            )
        return found

    @property
    def but_for(self) -> str:
        """What models that hold differ in all the same."""
        if self._agrees:
            return "settings that differ"
        accepted = any(rung.status == ACCEPTED for rung in self.rungs)
        return "what was accepted" if accepted else _rounded_words(self.rungs)


class Process:
    """A twin that opens models of users, one after another.

    Raises:
        LaunchError: it ends.
        SpecError: it refuses a model. The message is the twin's.
    """

    def __init__(self, framework: str, folder: Path) -> None:
        self.framework, self._folder = framework, folder
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._server = LocalServer(
            framework, ["match"], folder / f"{framework}.log", self._answers.put, heartbeat.LOADING_SECONDS
        )
        self.close = self._server.close

    def send(self, request: Mapping[str, Any]) -> None:
        """Begin a request, whose arrays go to the file `out` of this process."""
        self._server.expect()
        self._server.send({**request, "out": str(self._file)})

    def answer(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """(answer, arrays) of the request that was sent last."""
        while True:
            try:
                answer = self._answers.get(timeout=_POLL_SECONDS)
                break
            except queue.Empty:
                self._server.look()
        if answer.get("event") == ENDED:
            raise LaunchError(f"{self.framework} cannot match ({answer['reason']}).")
        if "refused" in answer:
            raise SpecError(f"{self.framework}: {answer['refused']}")
        return answer, safetensors.numpy.load_file(self._file)

    def give(self, arrays: Mapping[str, Array]) -> str:
        """Write arrays for it. Returns the path."""
        path = self._folder / f"{self.framework}-given.safetensors"
        weights.save(arrays, path)
        return str(path)

    @property
    def _file(self) -> Path:
        return self._folder / f"{self.framework}.safetensors"


@contextmanager
def processes(folder: Path) -> Generator[tuple[Process, Process]]:
    """The processes of both frameworks."""
    with ExitStack() as stack:
        started: list[Process] = []
        for framework in launch.FRAMEWORKS:
            started.append(Process(framework, folder))
            stack.callback(started[-1].close)
        yield started[0], started[1]


def match(
    both: tuple[Process, Process],
    asks: tuple[OpenRequest, OpenRequest],
    given: Mapping[str, str],
    accepted: Sequence[str] = (),
    *,
    as_built: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Match:
    """Compare two models.

    Args:
        both: running processes.
        asks: the models.
        given: names of layers that stand for each other.
        accepted: names of causes that do not count against the models.
        as_built: whether weights are compared as they are, and none are copied.
        progress: takes a line as a stage begins and as a rung ends.

    Raises:
        SpecError: a model is refused, several pairings of layers fit, or models give fewer outputs than classes.
        LaunchError: a process ends.
    """
    progress("opening both models ...")
    for process, ask in zip(both, asks, strict=True):
        process.send({"open": ask.model_dump()})
    answers = _answers(both)
    opened = [ModelReport.model_validate(answer["opened"]) for answer, _ in answers]
    starts = [arrays for _, arrays in answers]
    names = (both[0].framework, both[1].framework)
    by_name = [{each.name: each for each in side.layers} for side in opened]
    alignment = align(opened[0].layers, opened[1].layers, given)
    found = Match(names, asks, [_shapes(names, alignment, opened, by_name)], [])
    progress(found.rungs[0].ended)
    if alignment.incompatible or opened[0].outputs != opened[1].outputs:
        return replace(found, lines=_lines(names, by_name, alignment))  # nothing was measured, so nothing is accepted
    outputs, ask = opened[0].outputs[0], asks[0]
    if outputs < ask.classes and not ask.loss:
        raise SpecError(f"--classes must be the number of outputs. Received: {ask.classes}; both models give {outputs}.")
    own = as_built or all(ask.weights for ask in asks)
    copied = dict(starts[1])
    for one, other in {} if own else alignment.names.items():
        copied |= {
            f"{other}.{role}": starts[0][f"{one}.{role}"] for role in by_name[0][one].parameters if f"{other}.{role}" in copied
        }
    progress(f"measuring both: outputs, gradients, {wording.count(ask.steps, 'step')} of training ...")
    both[0].send({"measure": None})
    both[1].send({"measure": both[1].give(copied)})
    left, right = (_side(process, *answer) for process, answer in zip(both, _answers(both), strict=True))
    alike = functools.partial(causes.layers_agree, left, right)
    alignment = replace(alignment, pairs=pair_layers(opened[0].layers, opened[1].layers, alignment.names, alike))
    rungs = found.rungs
    weights_given = [_own_weights(left, right, alignment, drawn=as_built)] if own else []
    for rung in itertools.chain(weights_given, _climb(asks[0], left, right, alignment, functools.partial(_look, both))):
        rungs.append(rung)
        progress(rung.ended)
    notes = [] if own or asks[0].weights else causes.explain_initialisation(names, starts, alignment)
    notes += _flattened(names, alignment, by_name, copied=not own)
    lines = _lines(names, by_name, alignment, (left, right))
    rungs = _accept(_settled(rungs), accepted)
    own_rule = [side.optimizers[OWN_RULE] for side in (left, right) if OWN_RULE in side.optimizers]
    others = causes.optimizer_settings(names, own_rule) if own_rule else ""
    return Match(names, asks, rungs, lines, notes, tuple(opened), others)


def _look(both: Sequence[Process], words: str, *, record: bool) -> tuple[MeasuredModel, MeasuredModel]:
    for process in both:
        process.send({"far": words, "record": record})
    left, right = (_side(process, *answer) for process, answer in zip(both, _answers(both), strict=True))
    return left, right


def _answers(both: Sequence[Process]) -> list[tuple[dict[str, Any], dict[str, Array]]]:
    """Of both processes. A refusal of one waits for the other, which would answer the next request with this answer else."""
    found: list[tuple[dict[str, Any], dict[str, Array]]] = []
    refused: list[SpecError] = []
    for process in both:
        try:
            found.append(process.answer())
        except SpecError as error:
            refused.append(error)
    if refused:
        raise refused[0]
    return found


def _side(process: Process, answer: dict[str, Any], arrays: dict[str, Array]) -> MeasuredModel:
    layers = {mode: {each["name"]: Layer.model_validate(each) for each in ran} for mode, ran in answer["measured"].items()}
    return MeasuredModel(process.framework, layers, arrays, answer["optimizers"], answer.get("far", {}))


def _shapes(
    names: tuple[str, str], alignment: Alignment, opened: Sequence[ModelReport], by_name: Sequence[Mapping[str, Layer]]
) -> Rung:
    found = causes.explain_layers(names, alignment, by_name)
    if opened[0].outputs != opened[1].outputs:
        outputs = [side.outputs[0] for side in opened]
        said = f"{names[0]} returns {outputs[0]} values for each image, {names[1]} {outputs[1]}."
        more = " Labels that start at 1 need one more." if abs(outputs[0] - outputs[1]) == 1 else ""
        found.append(Cause("label-encoding", said + more, ", ".join(filter(None, (side.where for side in opened)))))
    return Rung(_LAYERS, math.inf if found else 0.0, _EXACT, FAILED if found else PASSED, causes=tuple(found))


def _own_weights(left: MeasuredModel, right: MeasuredModel, alignment: Alignment, *, drawn: bool) -> Rung:
    rung = _rung("weights as given", _parameters(left, right, alignment, "start/"), _EXACT + 1e-7)
    return (
        rung if rung.status == PASSED else replace(rung, causes=tuple(causes.explain_weights(left, right, alignment, as_built=drawn)))
    )


def _climb(ask: OpenRequest, left: MeasuredModel, right: MeasuredModel, alignment: Alignment, look: _Look) -> Generator[Rung]:
    pixels, labels = images(ask)
    sides = (left, right)
    follow = False
    for mode in ("inference", "training"):
        rung = _rung(f"logits, {mode}", [("logits", left.arrays[f"{mode}/logits"], right.arrays[f"{mode}/logits"])], _FORWARD)
        rung = _parted(rung, mode, sides, alignment, np.asarray(pixels, np.float64))
        yield rung
        follow |= rung.status != PASSED
        if mode == "inference":
            yield _far(ask, sides, alignment, rung, look)
    yield _statistics(left, right, alignment, follow=follow)
    trained = [(mine, other) for mine, other, _ in _names(left, right, alignment, "gradients/")]
    rung = _rung("loss", [("loss", left.arrays["loss"], right.arrays["loss"])], _FORWARD)
    yield rung if rung.status == PASSED else replace(rung, causes=tuple(causes.explain_loss(left, right, trained, labels)))
    gradients = _parameters(left, right, alignment, "gradients/")
    of_layers = _largest_of_layers(gradients)
    rounding = _rounding(gradients, of_layers)
    smallest = _NOISE * max(of_layers.values(), default=0.0)
    least = [of_layers[name] if name in rounding else smallest for name, *_ in gradients]
    rung = _rung(_GRADIENTS, gradients, _GRADIENT, least)
    yield (
        rung
        if rung.status == PASSED
        else replace(rung, causes=tuple(causes.explain_gradients(left, right, trained, rung.difference)))
    )
    judged = [
        formulas.beyond_rounding(ours, theirs, floor, _GRADIENT)
        for (_, ours, theirs), floor in zip(gradients, least, strict=True)
    ]
    for rule in ask.rules:
        updates = [
            (mine, _change(left, rule, mine).reshape(-1)[told], _change(right, rule, other).reshape(-1)[told])
            for (mine, other), told in zip(trained, judged, strict=True)
        ]
        rung = _rung(f"{_UPDATE_NAME}, {_rule_words(rule)}", updates, _UPDATE)
        if rung.status != PASSED:
            rung = replace(rung, causes=tuple(causes.explain_update(rule, left, right, trained, judged)))
        yield rung
        agreed = rung.status == PASSED
        last = [each for each in _parameters(left, right, alignment, f"{rule}/last/") if not _is_statistic(each[0])]
        scales = _largest_of_layers(last)
        rung = _rung(
            f"{wording.count(ask.steps, 'step')}, {_rule_words(rule)}",
            [("losses", left.arrays[f"{rule}/losses"], right.arrays[f"{rule}/losses"]), *last],
            _STEPS,
            [0.0, *(scales[name] if name in rounding else 0.0 for name, *_ in last)],
        )
        if rung.status != PASSED and agreed:  # a momentum, and a decay of another kind, act from the second step on
            settings = [side.optimizers[rule] for side in sides]
            rung = replace(rung, causes=tuple(causes.explain_settings((left.name, right.name), settings, math.inf)))
        yield rung


def _far(ask: OpenRequest, sides: tuple[MeasuredModel, MeasuredModel], alignment: Alignment, ordinary: Rung, look: _Look) -> Rung:
    """The outputs where weights and images are large, dark or negative: there functions saturate, and conditions turn.

    A difference counts if it is larger than what rounding makes of these values, which is measured. What TensorFlow rounds to
    float32 may differ by what float32's rounding makes.

    Args:
        ask: of both models.
        sides: the models.
        alignment: their layers.
        ordinary: the rung of usual values. What fails there fails here.
        look: see `_Look`.
    """
    passes, left_out, sizes = stress_inputs(ask), list[str](), dict[str, float]()
    for words in passes:
        if refusing := [side.name for side in sides if words in side.refused]:
            left_out.append(f"{words} ({' and '.join(refusing)} {'refuse' if len(refusing) > 1 else 'refuses'} them)")
            continue
        size = _apart_where_finite(*(side.arrays[f"far/{words}"] for side in sides))
        if size is None or (size == math.inf and all(map(_has_gaps, look(words, record=True)))):
            left_out.append(f"{words} (values are not finite)")
        else:
            sizes[words] = size
    failed = [words for words, size in sizes.items() if size > _FORWARD]
    only_rounded = ordinary.status == FAILED and _rounds_alone(ordinary.causes)
    rung = Rung(_FAR, max(sizes.values(), default=0.0), _FORWARD, FAILED if failed else PASSED)
    if not failed or (ordinary.status == FAILED and not only_rounded):
        return replace(rung, left_out=tuple(left_out))
    rounded: dict[str, float] = {}
    for words in list(failed):
        bounds = _bounds(words, sides, look)
        if sizes[words] > bounds["float32"] or sizes[words] == math.inf:
            continue
        failed.remove(words)
        kind = "float64" if sizes[words] <= bounds["float64"] else "float32"
        if bounds[kind] > _CHAOS[kind]:
            left_out.append(f"{words} (the models make too much of rounding)")
            del sizes[words]
        elif kind == "float32":
            rounded[words] = bounds[kind]
    candidates = failed or ([] if only_rounded else list(rounded))
    for words in candidates[:3]:
        one = replace(rung, difference=sizes[words], under=words, left_out=tuple(left_out))
        with np.errstate(all="ignore"):  # values may overflow
            recorded = look(words, record=True)
            parted = _parted(one, "inference", recorded, alignment, np.asarray(passes[words][1], np.float64))
        if words in rounded and _rounds_alone(parted.causes):
            return replace(parted, status=ROUNDS, tolerance=rounded[words])
        if parted.causes and not _rounds_alone(parted.causes):
            return parted
        rung = rung if rung.under else parted
    if candidates:
        return replace(rung, causes=()) if _rounds_alone(rung.causes) else rung
    size = max(sizes.values(), default=0.0)
    rung = replace(rung, difference=size, left_out=tuple(left_out), status=PASSED)
    return replace(rung, status=ROUNDS, tolerance=max(rounded.values())) if rounded else rung


def _apart_where_finite(left: Array, right: Array) -> float | None:
    """As `apart`. Values that are not finite in both at the same places do not count. None: they tell nothing."""
    finite = np.isfinite(left), np.isfinite(right)
    if np.array_equal(*finite):
        with np.errstate(over="ignore"):
            return max_relative_difference(left[finite[0]], right[finite[1]]) if finite[0].any() else None
    return math.inf if any(each.all() for each in finite) else None


def _has_gaps(side: MeasuredModel) -> bool:
    """Whether a value is not finite on the way to the output. A later layer may hide it, as TensorFlow's maximum does."""
    return not all(np.isfinite(array).all() for name, array in side.arrays.items() if name.startswith("inference/"))


def _bounds(words: str, sides: tuple[MeasuredModel, MeasuredModel], look: _Look) -> dict[str, float]:
    """What rounding may make of the outputs of a pass, by type. Where a model refuses images that were moved by it: little."""
    found = {"float64": _FORWARD, "float32": causes.SAME_VALUES_TOLERANCE}
    try:
        moved = look(words, record=False)
    except SpecError:
        return found
    for kind in ROUNDING_JITTERS:
        pairs = ((side.arrays[f"far/{words}"], other.arrays[kind]) for side, other in zip(sides, moved, strict=True))
        changes = [_apart_where_finite(*pair) for pair in pairs]
        found[kind] = max(found[kind], _REACH * max(each or 0.0 for each in changes))
    return found


def _statistics(left: MeasuredModel, right: MeasuredModel, alignment: Alignment, *, follow: bool) -> Rung:
    """`follow`: what layers see may differ already. Then layers that see the same are judged, if any of these differs."""
    rung = _rung_of_statistics(left, right, alignment)
    if rung.status == PASSED:
        return rung
    names = alike = causes.layers_with_equal_inputs(left, right, alignment)
    judged = _rung_of_statistics(left, right, replace(alignment, names=alike))
    if judged.status == PASSED or not follow:
        judged, names = rung, alignment.names
    return replace(judged, causes=tuple(causes.explain_statistics(left, right, names, alike)))


def _rung_of_statistics(left: MeasuredModel, right: MeasuredModel, alignment: Alignment) -> Rung:
    statistics = [
        (name, *causes.normalised_by_batch_std(left, name, *pair)) for name, *pair in _parameters(left, right, alignment, "statistics/")
    ]
    return _rung(_STATISTICS, statistics, _FORWARD, [float(name.endswith(".mean")) for name, *_ in statistics])


def _parted(rung: Rung, mode: str, sides: tuple[MeasuredModel, MeasuredModel], alignment: Alignment, pixels: Array) -> Rung:
    """A rung of outputs that differ, with the place where they part first, and why.

    Rounded constants explain little. Then the next place counts at which more differs than they can explain. They are told
    where the outputs agree within the tolerance too, since that depends on the weights.
    """
    if rung.difference <= _SEEN:
        return rung
    split = causes.find_divergence(mode, sides, alignment, pixels, _SEEN)
    found = [] if split is None else causes.explain_divergence(split)
    if split is not None and _rounds_alone(found):
        behind = 0.0
        while rung.status != PASSED and _rounds_alone(found):
            before, behind = behind, min(max(formulas.CLOSE, _GROWTH * split.difference), causes.SAME_VALUES_TOLERANCE)
            later = causes.find_divergence(mode, sides, alignment, pixels, behind) if behind > before else None
            if later is None:
                break
            split, found = later, causes.explain_divergence(later)
    elif rung.status == PASSED:
        return rung
    else:
        split = causes.find_divergence(mode, sides, alignment, pixels)
        found = [] if split is None else causes.explain_divergence(split)
    if split is None:
        return rung
    where = "the output" if split.layers is None else f"{split.layers[0].name}, {split.layers[1].name}"
    between = ""
    if not _rounds_alone(found) and not any(each.residual is not None and math.isfinite(each.residual) for each in found):
        within = split.layers is not None and split.close(*split.inputs)
        joins = split.layers is not None and max(each.inputs for each in split.layers) > 1
        between = f"between {split.last_agreeing}, the last that agree, and {where}"
        if within:
            between = "in these layers, which take the same"
            if joins:
                between = f"in {where}, or in what these take beside their first input, which is the same"
    said = {"where": where, "between": between, "causes": tuple(found)}
    return replace(rung, status=FAILED, first=split.difference, at_the_end=split.at_the_end, **said)


def _rounded_words(rungs: Sequence[Rung]) -> str:
    lower = any(cause.name == LOWER_PRECISION for rung in rungs if rung.status == ROUNDS for cause in rung.causes)
    return "what a framework computes in float32" if lower else "constants that a framework rounds to float32"


def _rounds_alone(found: Sequence[Cause]) -> bool:
    return bool(found) and {each.name for each in found} <= ROUNDING_CAUSES


def _change(side: MeasuredModel, rule: str, name: str) -> Array:
    """What the first update changes a parameter by."""
    return side.arrays[f"{rule}/first/{name}"] - side.arrays[f"start/{name}"]


def _rule_words(rule: str) -> str:
    return {"own": "own optimizers"}.get(rule, rule)


def _is_statistic(name: str) -> bool:
    return name.endswith((".mean", ".variance"))


def _names(left: MeasuredModel, right: MeasuredModel, alignment: Alignment, prefix: str) -> list[tuple[str, str, str]]:
    """(left name, right name, role) of parameters that both have."""
    found: list[tuple[str, str, str]] = []
    for one, other in alignment.names.items():
        for key in left.arrays:
            if key.startswith(f"{prefix}{one}."):
                role = key.removeprefix(f"{prefix}{one}.")
                if f"{prefix}{other}.{role}" in right.arrays:
                    found.append((f"{one}.{role}", f"{other}.{role}", role))
    return found


def _parameters(left: MeasuredModel, right: MeasuredModel, alignment: Alignment, prefix: str) -> list[tuple[str, Array, Array]]:
    return [
        (mine, left.arrays[prefix + mine], right.arrays[prefix + other])
        for mine, other, _ in _names(left, right, alignment, prefix)
    ]


def _rung(
    name: str, compared: Sequence[tuple[str, Array, Array]], tolerance: float, least: Sequence[float] | None = None
) -> Rung:
    """`least`: each array counts as no smaller than this."""
    floors = least or [0.0] * len(compared)
    differences = [(max_relative_difference(left, right, floor), what) for (what, left, right), floor in zip(compared, floors, strict=True)]
    most, where = max(differences, default=(0.0, ""))
    passed = most <= tolerance
    return Rung(name, most, tolerance, PASSED if passed else FAILED, "" if passed else where)


def _rounding(gradients: Sequence[tuple[str, Array, Array]], of_layers: Mapping[str, float]) -> set[str]:
    """Parameters whose gradients are the rounding of sums as large as their layer's: a bias in front of BatchNorm."""
    return {name for name, *pair in gradients if _largest(pair) <= _NOISE * of_layers[name]}


def _largest_of_layers(arrays: Sequence[tuple[str, Array, Array]]) -> dict[str, float]:
    """By parameter: the largest value of all parameters of its layer."""
    layers: dict[str, float] = {}
    for name, *pair in arrays:
        layer = name.rpartition(".")[0]
        layers[layer] = max(layers.get(layer, 0.0), _largest(pair))
    return {name: layers[name.rpartition(".")[0]] for name, *_ in arrays}


def _largest(arrays: Sequence[Array]) -> float:
    return max(float(np.abs(each).max(initial=0.0)) for each in arrays)


def _settled(rungs: Sequence[Rung]) -> list[Rung]:
    """A rung that fails below another follows from it, except where it has a cause of its own.

    Causes of running statistics were tried out on what each side's own layer has seen. Running statistics reach nothing else
    in training. What a framework rounds acts in all that follows, also where the tolerance hides it. It explains no other
    cause.
    """
    found: list[Rung] = []
    broken, outputs, rounded = "", "", False
    for rung in rungs:
        only_rounded = _rounds_alone(rung.causes)
        own = bool(rung.causes) and (rung.name == _STATISTICS or not (broken or only_rounded))
        own = own or (rung.name == _FAR and not broken)  # measured against what rounding makes there
        above = broken or (outputs if rung.name == _STATISTICS else "")  # they differ also where a BatchNorm evens it out
        if rung.status == FAILED and (above or rounded) and not own:
            rung = replace(rung, status=FOLLOWS, causes=())
        if rung.status == FAILED and only_rounded:
            rounded = True
        elif rung.status == FAILED and rung.name not in (_LAYERS, _STATISTICS, _FAR):
            broken = rung.name
            outputs = outputs or broken
        elif rung.status == PASSED and rung.name in (_IN_TRAINING, _GRADIENTS):
            broken = ""  # what comes next depends on these alone
        elif broken.startswith(_UPDATE_NAME) and rung.name.endswith(broken.removeprefix(_UPDATE_NAME)):
            broken = ""  # the other rule's update does not follow from this one's
        found.append(rung)
    return found


def _accept(rungs: Sequence[Rung], accepted: Sequence[str]) -> list[Rung]:
    """Take the accepted causes for no fault, where they explain all of a difference.

    What a framework rounds is its own, and let pass. Training may make of them what `_CONSEQUENCE` allows. What
    follows from another accepted cause may hide a second fault. So may the layers behind the one that the cause explains. Only
    the steps of an accepted update are its consequence.
    """
    found: list[Rung] = []
    rounded, behind, rule = 0.0, False, ""
    for rung in rungs:
        names = {cause.name for cause in rung.causes}
        explained = all(each.residual is None or each.residual <= rung.tolerance for each in rung.causes)
        if (
            rung.status == FAILED
            and _rounds_alone(rung.causes)
            and rung.difference <= (causes.SAME_VALUES_TOLERANCE if rung.first else _FLOAT32)
        ):
            rung = replace(rung, status=ROUNDS)
            # What is computed in float32 has gradients that are.
            size = rung.first if rung.first and LOWER_PRECISION in names else rung.difference
            rounded, behind, rule = max(rounded, size, rung.difference), True, ""
        elif rung.status == FAILED and names and explained and names <= {*accepted, *ROUNDING_CAUSES}:
            rung = replace(rung, status=ACCEPTED if rung.at_the_end else UNJUDGED)
            behind = True
            rule = rung.name.removeprefix(_UPDATE_NAME) if rung.name.startswith(_UPDATE_NAME) else ""
        elif rung.status == FAILED:
            behind, rounded = False, rounded if rung.name in (_STATISTICS, _FAR) else 0.0
        elif rung.status == FOLLOWS and behind and rule and rung.name.endswith(rule):
            pass  # a consequence of the update that was accepted
        elif rung.status == FOLLOWS and rounded:
            follows = rung.difference <= min(_CONSEQUENCE * rounded, _FLOAT32)
            rung = replace(rung, status=ROUNDS if follows else FAILED)
            rounded, behind = (max(rounded, rung.difference), behind) if follows else (0.0, False)
        elif rung.status == FOLLOWS and behind:
            rung = replace(rung, status=UNJUDGED)
        found.append(rung)
    return found


def _flattened(
    names: tuple[str, str], alignment: Alignment, by_name: Sequence[Mapping[str, Layer]], *, copied: bool
) -> list[Cause]:
    found: list[Cause] = []
    rows = "The rows of its kernel were reordered. " if copied else ""
    who = "Whoever copies these weights must do so too." if copied else "Whoever copies these weights must reorder its rows."
    words = {"chw": "channels, height, width", "hwc": "height, width, channels"}
    for one, other in alignment.names.items():
        ours, theirs = by_name[0][one], by_name[1][other]
        orders = [words.get(each.flattened or "") for each in (ours, theirs)]
        if ours.kind == "dense" and None not in orders and orders[0] != orders[1]:
            said = (
                f"{one} takes an image flattened as {orders[0]} in {names[0]}, {other} as {orders[1]} in {names[1]}. "
                f"{rows}{who}"
            )
            found.append(Cause("flatten-order", said, ", ".join(filter(None, (ours.where, theirs.where)))))
    return found


def _lines(
    names: tuple[str, str],
    layers: Sequence[Mapping[str, Layer]],
    alignment: Alignment,
    sides: tuple[MeasuredModel, MeasuredModel] | None = None,
) -> list[Line]:
    """Pairs of layers, and then what stands in one model alone."""
    found: list[Line] = []
    for one, other in alignment.pairs:
        differences: list[float | None] = [None, None]
        for place, mode in enumerate(("inference", "training")):
            if sides is not None and one in sides[0].layers[mode] and other in sides[1].layers[mode]:
                differences[place] = max_relative_difference(sides[0].values(mode, one)[1], sides[1].values(mode, other)[1])
        ours, theirs = layers[0][one], layers[1][other]
        same = sides is not None and _same_behind_padding(sides, ours, theirs)
        settings = _settings(names, ours, theirs, ("padding", "padding_mode") if same else ())
        found.append(Line(ours, theirs, differences[0], differences[1], settings))
    found += [Line(one, other, None, None) for one, other in alignment.incompatible]
    named = [{each.name for line in found if (each := (line.left, line.right)[place]) is not None} for place in (0, 1)]
    found += [Line(each, None, None, None) for each in layers[0].values() if each.name not in named[0]]
    found += [Line(None, each, None, None) for each in layers[1].values() if each.name not in named[1]]
    return found


_CONVENTIONS = ("data_format", "biased_variance", "count_padding")
"""Settings that always differ between the frameworks."""


def _settings(names: tuple[str, str], left: Layer, right: Layer, without: Sequence[str] = ()) -> str:
    keys = [key for key in left.settings if key in right.settings and key not in (*_CONVENTIONS, *without)]
    # A user's own function has a name of its own, which says nothing.
    known = all(formulas.is_known(each.settings) for each in (left, right))
    return "; ".join(
        _momentum(names, left, right) if key == "momentum" else f"{key} {left.settings[key]}, {right.settings[key]}"
        for key in keys
        if left.settings[key] != right.settings[key] and (key != "function" or known)
    )


def _momentum(names: tuple[str, str], left: Layer, right: Layer) -> str:
    """That of running statistics, each in its framework's own words. Both are recorded in PyTorch's."""
    ours, theirs = left.settings["momentum"], f"{1 - right.settings['momentum']:.6g}"
    if ours is None:  # a mean over all batches, which Keras does not have
        return f"momentum: {names[0]} None, {names[1]} {theirs}"
    return f"momentum: {names[0]} {ours:.6g}, which is {1 - ours:.6g} in {names[1]}, not {theirs}"


def _same_behind_padding(sides: tuple[MeasuredModel, MeasuredModel], left: Layer, right: Layer) -> bool:
    """Whether zeros that stand in front of one layer are the padding of the other. Other values than zeros must agree."""
    padded: list[Array] = []
    bare: list[Array] = []
    for side, layer in zip(sides, (left, right), strict=True):
        x = side.values("inference", layer.name)[0]
        if "padding" not in layer.settings or x.ndim != 4 or layer.kind == "max_pool":
            return False  # a maximum of negative values, of other images perhaps, tells zeros from padding
        around = ((0, 0), *map(tuple, layer.settings["padding"]), (0, 0))
        padded.append(formulas.pad(x, layer.settings["padding"], layer.settings.get("padding_mode", "zeros")))
        bare.append(np.pad(np.zeros_like(x), around, constant_values=1))
    same = padded[0].shape == padded[1].shape
    if any(each.settings.get("padding_mode", "zeros") != "zeros" for each in (left, right)):
        return same and formulas.close(*padded)
    return same and not any((padded[1 - place] * bare[place]).any() for place in (0, 1))
