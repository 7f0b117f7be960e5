"""Compares two models rung by rung: each is opened in its own process, given the same weights, and measured."""

from __future__ import annotations

import functools
import itertools
import math
import queue
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from pydantic import JsonValue

from common.machine import heartbeat
from common.matching.records import OWN_RULE, ROUNDING_JITTERS, Array, Layer, ModelReport, OpenRequest, images, stress_inputs
from common.models import weights
from common.spec import SpecError
from compare.cli import wording
from compare.cli.errors import LaunchError
from compare.judgement.statement import Statement
from compare.running import launch
from compare.running.servers import ENDED, LocalServer
from compare.tools.matching import formulas, match_words, model_causes
from compare.tools.matching.alignment import Alignment, align, pair_layers
from compare.tools.matching.causes import (
    BIASED_VARIANCE,
    LOWER_PRECISION,
    ROUNDED_CONSTANTS,
    ROUNDING_CAUSES,
    Cause,
    explain_divergence,
)
from compare.tools.matching.divergence import SAME_VALUES_TOLERANCE, MeasuredModel, MeasuredPair, find_divergence, layers_agree
from compare.tools.matching.formulas import max_relative_difference
from compare.tools.matching.later_layers import SETTINGS_OF_CAUSE, explain_later_layers

_POLL_SECONDS = 0.5
_EXACT, _FORWARD, _GRADIENT, _UPDATE, _STEPS = 0.0, 1e-10, 1e-8, 1e-8, 1e-6
_ROUNDING_FRACTION = 1e-6
"""Gradients below this fraction of the largest, or of the largest of their layer, count as rounding."""
_FLOAT32_TOLERANCE = 1e-4
"""Tolerance of differences that follow from a constant rounded to float32."""
_ROUNDING_FLOOR = 1e-12
"""Smallest difference of outputs that may come from a rounded constant. Rounding of float64 is smaller."""
_MAX_GROWTH = 100.0
"""Largest ratio of the difference behind a rounded constant to the difference that the constant itself makes."""
_ROUNDING_MARGIN = 10.0
"""Largest ratio of the difference for extreme inputs to the effect of rounding weights and images."""
_MAX_ROUNDING_EFFECT = {"float64": 1e-6, "float32": 1e-2}
"""Largest effect of rounding, by its type, of a pass that still proves something."""
_MAX_TRAINING_GROWTH = 1e3
"""Largest ratio of the difference after training to that of the outputs. `_FLOAT32_TOLERANCE` bounds it, too."""

_LAYERS, _WEIGHTS, _LOSS, _GRADIENTS = "layers and parameters", "weights as given", "loss", "gradients"
_IN_INFERENCE, _IN_TRAINING, _EXTREME_INPUTS = "logits, inference", "logits, training", "logits, far from the usual values"
_STATISTICS, _UPDATE_NAME = "running statistics", "one update"
_DEPENDS_ON = {
    _IN_INFERENCE: (_WEIGHTS,),
    _EXTREME_INPUTS: (_WEIGHTS, _IN_INFERENCE),
    _IN_TRAINING: (_WEIGHTS, _IN_INFERENCE),
    _STATISTICS: (_WEIGHTS, _IN_INFERENCE, _IN_TRAINING),
    _LOSS: (_IN_TRAINING,),
    _GRADIENTS: (_IN_TRAINING, _LOSS),
}
"""Rungs that may explain a rung's difference. `_depends_on` has those of each update rule."""
PASSED, FAILED, FOLLOWS, UNJUDGED = "passed", "failed", "follows", "not judged"
ACCEPTED, ROUNDS = "accepted", "rounded"

_RunPass = Callable[..., MeasuredPair]
"""Function from a pass's name and `record` to the measurements of both models in this pass."""


@dataclass(frozen=True)
class RungResult:
    """One comparison of the two models."""

    name: str
    difference: float
    """Largest difference, relative to the largest value of its array."""
    tolerance: float
    status: str
    """passed, failed, accepted (all its causes are), rounded (only a framework's rounding differs), follows (from a rung
    above), or not judged (behind an accepted one)."""
    where: str = ""
    """Name of the array that differs most."""
    causes: tuple[Cause, ...] = ()
    behind: tuple[Cause, ...] = ()
    """Causes in layers behind the first that differ. Each of these layers was judged alone."""
    first: float | None = None
    """Difference of outputs at the first layers that differ, which `where` names. None: not located."""
    at_the_end: bool = True
    """Whether no layer follows these. The causes explain only the difference of these layers."""
    between: str = ""
    """Description of the layers that contain a fault without a known cause."""
    under: str = ""
    """Name of the pass that `difference` is from, if a rung has several."""
    left_out: tuple[str, ...] = ()
    """Passes that prove nothing here, with the reason."""

    @property
    def all_causes(self) -> tuple[Cause, ...]:
        return self.causes + self.behind

    @property
    def progress_text(self) -> str:
        """Line of progress, before consequences and accepted causes are known."""
        size = f" by {self.difference:.1e}" if math.isfinite(self.difference) else ""
        return f"{self.name}: {'agrees' if self.status == PASSED else f'differs{size}'}"

    def __repr__(self) -> str:
        size = f", largest difference {self.difference:.1e}" if math.isfinite(self.difference) else ""
        return f"{self.name}: {self.status}{size}{f' at {self.where}' if self.where else ''}"


@dataclass(frozen=True)
class LayerPair:
    """One pair of layers, or a layer without a counterpart."""

    left: Layer | None
    right: Layer | None
    inference: float | None
    """Difference of the outputs in inference. None: there are not two."""
    training: float | None
    setting_words: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that differ, in words, by their names."""

    @property
    def settings(self) -> str:
        """All settings that differ, in words."""
        return "; ".join(self.setting_words.values())


@dataclass(frozen=True)
class Match:
    """Result of the comparison of two models."""

    names: tuple[str, str]
    """Names of the frameworks."""
    requests: tuple[OpenRequest, OpenRequest]
    rungs: list[RungResult]
    lines: list[LayerPair]
    notes: list[Cause] = field(default_factory=list[Cause])
    """Differences that this comparison removed."""
    opened: tuple[ModelReport, ...] = ()
    """Layers and outputs of each model, as its framework reports them."""
    optimizers: list[JsonValue] = field(default_factory=list[JsonValue])
    """(setting, value, other value) of the settings of the user's optimizers that differ."""
    versions: tuple[Mapping[str, str | None], ...] = ()
    """Versions of each framework's distributions, where its model ran."""

    def __repr__(self) -> str:
        """Return the answer and a line for each rung, for notebooks."""
        return "\n".join([*self.sentences, "", *map(repr, self.rungs)])

    @property
    def same(self) -> bool:
        """Whether all rungs agree, and no setting that was recorded says that other values may differ."""
        return self._agrees and not self.settings_differences and not self.optimizers

    @property
    def _agrees(self) -> bool:
        return all(rung.status == PASSED for rung in self.rungs)

    @property
    def holds(self) -> bool:
        """Whether nothing differs but what was accepted."""
        return all(rung.status not in (FAILED, UNJUDGED) for rung in self.rungs)

    @property
    def primary_rungs(self) -> list[RungResult]:
        """Rungs that differ and do not follow from another one."""
        statuses = (FAILED, ACCEPTED, ROUNDS)
        return [rung for rung in self.rungs if rung.status in statuses or (rung.status == UNJUDGED and rung.causes)]

    @property
    def only_biased_variance(self) -> bool:
        """Whether only running variances fail, because they are biased: Keras has no option for that. All else is judged."""
        failed = [rung for rung in self.rungs if rung.status == FAILED]
        follow = any(rung.status in (FOLLOWS, UNJUDGED) for rung in self.rungs)
        return (
            bool(failed) and not follow and all({cause.name for cause in rung.causes} == {BIASED_VARIANCE} for rung in failed)
        )

    @property
    def settings_differences(self) -> list[str]:
        """Layers whose settings differ, with these. Empty if nothing was measured, since then only order paired them."""
        pairs = [pair for pair in self.lines if pair.settings and pair.inference is not None]
        return [f"{pair.left.name} ({pair.settings})" for pair in pairs if pair.left is not None]

    @property
    def unexplained_settings(self) -> list[str]:
        """Settings of layers that differ, without those that a named cause is about."""
        explained = {
            (place, key)
            for rung in self.rungs
            for cause in rung.all_causes
            for key in SETTINGS_OF_CAUSE.get(cause.name, ())
            for place in cause.places
        }
        differences: list[str] = []
        for pair in self.lines:
            if pair.left is not None and pair.inference is not None:
                words = [words for key, words in pair.setting_words.items() if (pair.left.name, key) not in explained]
                differences += [f"{pair.left.name} ({'; '.join(words)})"] * bool(words)
        return differences

    @property
    def answer(self) -> Statement:
        """The answer: same or not, and the first rung that differs."""
        values: dict[str, JsonValue] = {"models": [request.model for request in self.requests]}
        agreement: dict[str, JsonValue] = {**values, "rungs": len(self.rungs), "steps": self.requests[0].steps}
        if self.same:
            return Statement(kind="models_same", level="finding", values=agreement)
        if self._agrees:
            return Statement(kind="models_agree", level="finding", values={**agreement, "but": self.tolerated_difference})
        failed = [rung.name for rung in self.rungs if rung.status == FAILED]
        if self.only_biased_variance:
            values = {**values, "rung": _STATISTICS, "accept": BIASED_VARIANCE}
            return Statement(kind="models_part_by_convention", level="finding", values=values)
        if failed:
            return Statement(kind="models_part", level="finding", values={**values, "rung": failed[0]})
        if unjudged := [rung.name for rung in self.rungs if rung.status == UNJUDGED]:
            return Statement(kind="models_not_judged", level="finding", values={**values, "unjudged": [*unjudged]})
        return Statement(kind="models_hold", level="finding", values={**values, "but": self.tolerated_difference})

    @property
    def statements(self) -> list[Statement]:
        """Statements: the answer, the differences, and their causes."""
        statements = [self.answer]
        if not self._agrees:
            for rung in self.primary_rungs:
                statements += [*self.describe_rung(rung), *self._explain_rung(rung)]
            if any(rung.between for rung in self.primary_rungs) and any(model.unrecorded for model in self.opened):
                statements.append(Statement(kind="faults_without_name", level="caution"))
        if self.settings_differences:
            kind = "settings_may_part" if self._agrees else "settings_may_even_out"
            statements.append(Statement(kind=kind, level="caution", values={"settings": [*self.settings_differences]}))
        return statements + self.caveats

    @property
    def sentences(self) -> list[str]:
        return match_words.sentences(self.statements)

    def describe_rung(self, rung: RungResult) -> list[Statement]:
        """Describe how much a rung differs, and where the difference begins."""
        values: dict[str, JsonValue] = {
            "rung": rung.name,
            "difference": rung.difference if math.isfinite(rung.difference) else None,
            "where": rung.where if rung.first is None else "",
            "accepted": rung.status == ACCEPTED,
            "rounding": _rounding_cause(self.rungs) if rung.status == ROUNDS else "",
            "under": rung.under,
        }
        statements = [Statement(kind="rung_differs", level="finding", values=values)]
        if rung.first is not None:
            is_rest_judged = rung.at_the_end or rung.status in (ACCEPTED, ROUNDS)
            judged_in_part = not is_rest_judged and bool(rung.behind)
            begins: dict[str, JsonValue] = {
                "where": rung.where,
                "by": rung.first,
                "rest_judged": is_rest_judged,
                "judged_in_part": judged_in_part,
            }
            statements.append(Statement(kind="difference_begins", level="finding", values=begins))
        return statements

    def _explain_rung(self, rung: RungResult) -> list[Statement]:
        """The causes of a difference, or that none is known, and the layers that the fault lies between."""
        statements = [Statement(kind="cause", level="finding", values=cause.facts()) for cause in rung.causes]
        if rung.status == FAILED and not rung.causes:
            in_table = self._is_in_table(rung)
            statements.append(Statement(kind="no_known_cause", level="finding", values={"in_table": in_table}))
        if rung.between:
            statements.append(Statement(kind="fault_between", level="finding", values={"place": rung.between}))
        statements += [Statement(kind="cause_behind", level="finding", values=cause.facts()) for cause in rung.behind]
        return statements

    def _is_in_table(self, rung: RungResult) -> bool:
        """Return whether the table of layers shows the difference of a rung."""
        mode = rung.name.removeprefix("logits, ")
        return mode in ("inference", "training") and any((getattr(pair, mode) or 0.0) > rung.tolerance for pair in self.lines)

    @property
    def caveats(self) -> list[Statement]:
        """Statements on what was not compared."""
        statements = [
            Statement(kind="nothing_proved", level="caution", values={"rung": rung.name, "by": [*rung.left_out]})
            for rung in self.rungs
            if rung.left_out
        ]
        explained = [cause.values.get("settings") for rung in self.rungs for cause in rung.causes]
        if self.optimizers and self.optimizers not in explained:
            values: dict[str, JsonValue] = {"one": self.names[0], "other": self.names[1], "settings": self.optimizers}
            statements.append(Statement(kind="optimizers_differ", level="caution", values=values))
        if self.holds and any(model.unrecorded for model in self.opened):
            statements.append(Statement(kind="functions_not_recorded", level="caution"))
        return statements

    @property
    def tolerated_difference(self) -> str:
        """Differences that are tolerated in models that hold, as a key of `match_words.TOLERATED`."""
        if self._agrees:
            return "settings"
        return "accepted" if any(rung.status == ACCEPTED for rung in self.rungs) else _rounding_cause(self.rungs)


class ModelServer(Protocol):
    """One model that answers requests, see `common.matching.serving.serve`: a process, or a dump of one."""

    @property
    def framework(self) -> str: ...

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request."""

    def answer(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Wait for and return (answer, arrays) of the last request."""
        ...

    def give(self, arrays: Mapping[str, Array]) -> str:
        """Keep arrays for the next request. Returns the path that the request names."""
        ...


class ModelProcess:
    """Process of a twin that opens models of users, one after another."""

    def __init__(self, framework: str, folder: Path) -> None:
        self.framework, self._folder = framework, folder
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._server = LocalServer(
            framework, ["match"], folder / f"{framework}.log", self._answers.put, heartbeat.LOADING_SECONDS
        )
        self.close = self._server.close

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request. The arrays of its answer go to this process's file."""
        self._server.expect()
        self._server.send({**request, "out": str(self._file)})

    def answer(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Wait for and return (answer, arrays) of the last request."""
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
        """Write arrays for the process to read. Returns the path."""
        path = self._folder / f"{self.framework}-given.safetensors"
        weights.save(arrays, path)
        return str(path)

    @property
    def _file(self) -> Path:
        return self._folder / f"{self.framework}.safetensors"


@contextmanager
def start_processes(folder: Path) -> Generator[tuple[ModelProcess, ModelProcess]]:
    """Start the processes of both frameworks, and end them with the block."""
    with ExitStack() as stack:
        first, second = (start_process(framework, folder, stack) for framework in launch.FRAMEWORKS)
        yield first, second


def start_process(framework: str, folder: Path, stack: ExitStack) -> ModelProcess:
    """Start the process of a framework. It ends with the stack."""
    process = ModelProcess(framework, folder)
    stack.callback(process.close)
    return process


def match(
    processes: tuple[ModelServer, ModelServer],
    requests: tuple[OpenRequest, OpenRequest],
    user_pairs: Mapping[str, str],
    accepted: Sequence[str] = (),
    *,
    as_built: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Match:
    """Compare two models.

    Args:
        processes: running processes, or dumps of them.
        requests: the requests that open the models.
        user_pairs: names of layers that the user pairs.
        accepted: names of causes that do not count against the models.
        as_built: whether weights are compared as they are, and none are copied.
        progress: called with a line when a stage begins and when a rung ends.
    """
    progress("opening both models ...")
    for process, request in zip(processes, requests, strict=True):
        process.send({"open": request.model_dump()})
    answers = _answers(processes)
    opened = [ModelReport.model_validate(answer["opened"]) for answer, _ in answers]
    starts = [arrays for _, arrays in answers]
    names = (processes[0].framework, processes[1].framework)
    by_name = [{layer.name: layer for layer in side.layers} for side in opened]
    alignment = align(opened[0].layers, opened[1].layers, user_pairs)
    result = Match(names, requests, [_shapes(names, alignment, opened, by_name)], [])
    progress(result.rungs[0].progress_text)
    if alignment.incompatible or opened[0].outputs != opened[1].outputs:
        return replace(result, lines=_layer_pairs(names, by_name, alignment))  # nothing was measured, so nothing is accepted
    outputs, request = opened[0].outputs[0], requests[0]
    if outputs < request.classes and not request.loss:
        raise SpecError(f"--classes must be the number of outputs. Received: {request.classes}; both models give {outputs}.")
    own_weights = as_built or all(request.weights for request in requests)
    copied = dict(starts[1])
    for one, other in {} if own_weights else alignment.names.items():
        copied |= {
            f"{other}.{role}": starts[0][f"{one}.{role}"] for role in by_name[0][one].parameters if f"{other}.{role}" in copied
        }
    progress(f"measuring both: outputs, gradients, {wording.count(request.steps, 'step')} of training ...")
    processes[0].send({"measure": None})
    processes[1].send({"measure": processes[1].give(copied)})
    pair = _measured(processes, alignment)
    agree = functools.partial(layers_agree, *pair.sides)
    alignment = replace(alignment, pairs=pair_layers(opened[0].layers, opened[1].layers, alignment.names, agree))
    pair, run_pass = replace(pair, alignment=alignment), functools.partial(_run_pass, processes, alignment)
    rungs = result.rungs
    weights_given = [_compare_weights(pair, as_built=as_built)] if own_weights else []
    for rung in itertools.chain(weights_given, _compare_models(request, pair, run_pass)):
        rungs.append(rung)
        progress(rung.progress_text)
    notes = [] if own_weights or requests[0].weights else model_causes.explain_initialisation(names, starts, alignment)
    notes += _flatten_order_notes(names, alignment, by_name, copied=not own_weights)
    lines = _layer_pairs(names, by_name, alignment, pair.sides)
    rungs = _apply_accepted(_mark_consequences(rungs), accepted)
    own_settings = [side.optimizers[OWN_RULE] for side in pair.sides if OWN_RULE in side.optimizers]
    differences = model_causes.optimizer_settings(own_settings) if own_settings else []
    return Match(names, requests, rungs, lines, notes, tuple(opened), differences)


def _run_pass(processes: Sequence[ModelServer], alignment: Alignment, words: str, *, record: bool) -> MeasuredPair:
    for process in processes:
        process.send({"far": words, "record": record})
    return _measured(processes, alignment)


def _measured(processes: Sequence[ModelServer], alignment: Alignment) -> MeasuredPair:
    """Wait for the measurements of both models."""
    left, right = (_side(process, *answer) for process, answer in zip(processes, _answers(processes), strict=True))
    return MeasuredPair(left, right, alignment)


def _answers(processes: Sequence[ModelServer]) -> list[tuple[dict[str, Any], dict[str, Array]]]:
    """Return the answers of both processes. Both are read before a refusal is raised, so that none is left for later."""
    answers: list[tuple[dict[str, Any], dict[str, Array]]] = []
    refusals: list[SpecError] = []
    for process in processes:
        try:
            answers.append(process.answer())
        except SpecError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
    return answers


def _side(process: ModelServer, answer: dict[str, Any], arrays: dict[str, Array]) -> MeasuredModel:
    layers = {
        mode: {layer["name"]: Layer.model_validate(layer) for layer in records} for mode, records in answer["measured"].items()
    }
    return MeasuredModel(process.framework, layers, arrays, answer["optimizers"], answer.get("far", {}))


def _shapes(
    names: tuple[str, str], alignment: Alignment, opened: Sequence[ModelReport], by_name: Sequence[Mapping[str, Layer]]
) -> RungResult:
    layer_causes = model_causes.explain_layers(names, alignment, by_name)
    if opened[0].outputs != opened[1].outputs:
        values: dict[str, JsonValue] = {"one": names[0], "other": names[1], "outputs": [side.outputs[0] for side in opened]}
        where = ", ".join(filter(None, (side.where for side in opened)))
        layer_causes.append(Cause("label-encoding", values, where, None, "outputs"))
    return RungResult(
        _LAYERS, math.inf if layer_causes else 0.0, _EXACT, FAILED if layer_causes else PASSED, causes=tuple(layer_causes)
    )


def _compare_weights(pair: MeasuredPair, *, as_built: bool) -> RungResult:
    rung = _rung(_WEIGHTS, pair.parameters("start/"), _EXACT + 1e-7)
    return _explained(rung, lambda: model_causes.explain_weights(pair, as_built=as_built))


def _explained(rung: RungResult, explain: Callable[[], list[Cause]]) -> RungResult:
    """Add the causes to a rung that differs."""
    if rung.status == PASSED:
        return rung
    causes = explain()
    if len(causes) == 1 and causes[0].is_verified and math.isfinite(rung.difference):
        causes = [causes[0]._replace(size=rung.difference, at=rung.where)]
    return replace(rung, causes=tuple(causes))


def _compare_models(request: OpenRequest, pair: MeasuredPair, run_pass: _RunPass) -> Generator[RungResult]:
    pixels, labels = images(request)
    inputs_differ = False
    for mode in ("inference", "training"):
        rung = _rung(f"logits, {mode}", [("logits", *pair.arrays(f"{mode}/logits"))], _FORWARD)
        rung = _locate_first_difference(rung, mode, pair, np.asarray(pixels, np.float64))
        yield rung
        inputs_differ |= rung.status != PASSED
        if mode == "inference":
            yield _check_extreme_inputs(request, pair, rung, run_pass)
    yield _statistics(pair, inputs_differ=inputs_differ)
    rung = _rung(_LOSS, [("loss", *pair.arrays("loss"))], _FORWARD)
    yield _explained(rung, lambda: model_causes.explain_loss(pair, labels))
    gradients = pair.parameters("gradients/")
    layer_maxima = _largest_of_layers(gradients)
    rounding = _rounding_only(gradients, layer_maxima)
    smallest = _ROUNDING_FRACTION * max(layer_maxima.values(), default=0.0)
    least = [layer_maxima[name] if name in rounding else smallest for name, *_ in gradients]
    gradient_rung = _rung(_GRADIENTS, gradients, _GRADIENT, least)
    yield _explained(gradient_rung, lambda: model_causes.explain_gradients(pair, gradient_rung.difference))
    masks = [
        formulas.beyond_rounding(ours, theirs, floor, _GRADIENT)
        for (_, ours, theirs), floor in zip(gradients, least, strict=True)
    ]
    for rule in request.rules:
        yield from _compare_training(request, rule, pair, masks, rounding)


def _compare_training(
    request: OpenRequest, rule: str, pair: MeasuredPair, masks: Sequence[npt.NDArray[np.bool_]], rounding: Container[str]
) -> Generator[RungResult]:
    """Compare one update, and the steps of a training, by one update rule.

    Args:
        masks: bool[n] for each parameter with a gradient: the components that are not rounding alone.
        rounding: names of the parameters with gradients that are only rounding.
    """
    updates = [
        (one, _change(pair.left, rule, one).reshape(-1)[mask], _change(pair.right, rule, other).reshape(-1)[mask])
        for (one, other), mask in zip(pair.names(), masks, strict=True)
    ]
    update_rung = _rung(f"{_UPDATE_NAME}, {_rule_words(rule)}", updates, _UPDATE)
    yield _explained(update_rung, lambda: model_causes.explain_update(rule, pair, masks))
    last = [entry for entry in pair.parameters(f"{rule}/last/") if not _is_statistic(entry[0])]
    scales = _largest_of_layers(last)
    rung = _rung(
        f"{wording.count(request.steps, 'step')}, {_rule_words(rule)}",
        [("losses", *pair.arrays(f"{rule}/losses")), *last],
        _STEPS,
        [0.0, *(scales[name] if name in rounding else 0.0 for name, *_ in last)],
    )
    if update_rung.status == PASSED:  # a momentum, and another kind of decay, act from the second step on
        settings = [side.optimizers[rule] for side in pair.sides]
        rung = _explained(rung, lambda: model_causes.explain_settings(pair.frameworks, settings, math.inf))
    yield rung


def _check_extreme_inputs(request: OpenRequest, pair: MeasuredPair, usual_rung: RungResult, run_pass: _RunPass) -> RungResult:
    """Compare outputs where weights and images are large, dark or negative: functions saturate there, and conditions change.

    A difference counts if it is larger than the measured effect of rounding on these values. If TensorFlow rounds to
    float32, the effect of rounding to float32 is the bound.

    Args:
        request: the request that opens both models.
        pair: the models.
        usual_rung: the rung of usual values. If it fails for another cause than rounding, this one fails, too.
        run_pass: see `_RunPass`.
    """
    sizes, left_out = _measure_extremes(request, pair, run_pass)
    only_rounded = usual_rung.status == FAILED and _only_rounding(usual_rung.causes)
    has_failed = any(size > _FORWARD for size in sizes.values())
    rung = RungResult(
        _EXTREME_INPUTS, max(sizes.values(), default=0.0), _FORWARD, FAILED if has_failed else PASSED, left_out=tuple(left_out)
    )
    if not has_failed or (usual_rung.status == FAILED and not only_rounded):
        return rung
    failed, rounded, overly_rounded = _classify_extremes(sizes, pair, run_pass)
    left_out += [f"{words} (the models make too much of rounding)" for words in overly_rounded]
    rung = replace(rung, left_out=tuple(left_out))
    if candidates := failed or ([] if only_rounded else list(rounded)):
        differences = {words: sizes[words] for words in candidates[:3]}
        return _locate_extremes(rung, request, differences, rounded, run_pass)
    size = max((size for words, size in sizes.items() if words not in overly_rounded), default=0.0)
    rung = replace(rung, difference=size, status=PASSED)
    return replace(rung, status=ROUNDS, tolerance=max(rounded.values())) if rounded else rung


def _measure_extremes(request: OpenRequest, pair: MeasuredPair, run_pass: _RunPass) -> tuple[dict[str, float], list[str]]:
    """Return the difference of outputs in each pass, and the passes that prove nothing, with the reason."""
    sizes: dict[str, float] = {}
    left_out: list[str] = []
    for words in stress_inputs(request):
        if refusing := [side.name for side in pair.sides if words in side.refused]:
            left_out.append(f"{words} ({' and '.join(refusing)} {'refuse' if len(refusing) > 1 else 'refuses'} them)")
            continue
        size = _difference_where_finite(*pair.arrays(f"far/{words}"))
        if size is None or (size == math.inf and all(map(_has_gaps, run_pass(words, record=True).sides))):
            left_out.append(f"{words} (values are not finite)")
        else:
            sizes[words] = size
    return sizes, left_out


def _classify_extremes(
    sizes: Mapping[str, float], pair: MeasuredPair, run_pass: _RunPass
) -> tuple[list[str], dict[str, float], list[str]]:
    """Return the passes that differ by more than rounding, those rounded to float32 with their bounds, and those that
    rounding changes too much.
    """
    failed: list[str] = []
    rounded: dict[str, float] = {}
    overly_rounded: list[str] = []
    for words, size in sizes.items():
        if size <= _FORWARD:
            continue
        bounds = _rounding_bounds(words, pair, run_pass)
        kind = "float64" if size <= bounds["float64"] else "float32"
        if size > bounds["float32"] or size == math.inf:
            failed.append(words)
        elif bounds[kind] > _MAX_ROUNDING_EFFECT[kind]:
            overly_rounded.append(words)
        elif kind == "float32":
            rounded[words] = bounds[kind]
    return failed, rounded, overly_rounded


def _locate_extremes(
    rung: RungResult,
    request: OpenRequest,
    sizes: Mapping[str, float],
    rounded: Mapping[str, float],
    run_pass: _RunPass,
) -> RungResult:
    """Add the first place where outputs of a pass differ, and the causes, to a rung.

    Args:
        sizes: differences of the passes to try.
        rounded: bounds of the passes that TensorFlow rounds to float32.
    """
    passes, first_located = stress_inputs(request), rung
    for words, size in sizes.items():
        candidate = replace(rung, difference=size, under=words)
        with np.errstate(all="ignore"):  # values may overflow
            recorded = run_pass(words, record=True)
            pixels = np.asarray(passes[words][1], np.float64)
            located = _locate_first_difference(candidate, "inference", recorded, pixels)
        if words in rounded and _only_rounding(located.causes):
            return replace(located, status=ROUNDS, tolerance=rounded[words])
        if located.causes and not _only_rounding(located.causes):
            return located
        first_located = first_located if first_located.under else located
    return replace(first_located, causes=()) if _only_rounding(first_located.causes) else first_located


def _difference_where_finite(left: Array, right: Array) -> float | None:
    """Return the largest relative difference of values that are finite in both. None: no such values.

    Infinite: values are not finite at different places, and some are finite in both.
    """
    finite = np.isfinite(left), np.isfinite(right)
    if np.array_equal(*finite):
        with np.errstate(over="ignore"):
            return max_relative_difference(left[finite[0]], right[finite[1]]) if finite[0].any() else None
    return math.inf if any(mask.all() for mask in finite) else None


def _has_gaps(side: MeasuredModel) -> bool:
    """Return whether a value of a layer is not finite. A later layer may hide it, as TensorFlow's maximum does."""
    return not all(np.isfinite(array).all() for name, array in side.arrays.items() if name.startswith("inference/"))


def _rounding_bounds(words: str, pair: MeasuredPair, run_pass: _RunPass) -> dict[str, float]:
    """Return the effect of rounding on the outputs of a pass, by type. The smallest, if a model refuses the rounded images."""
    bounds = {"float64": _FORWARD, "float32": SAME_VALUES_TOLERANCE}
    try:
        moved = run_pass(words, record=False)
    except SpecError:
        return bounds
    for kind in ROUNDING_JITTERS:
        outputs = zip(pair.arrays(f"far/{words}"), moved.arrays(kind), strict=True)
        changes = [_difference_where_finite(*both) for both in outputs]
        bounds[kind] = max(bounds[kind], _ROUNDING_MARGIN * max(change or 0.0 for change in changes))
    return bounds


def _statistics(pair: MeasuredPair, *, inputs_differ: bool) -> RungResult:
    """Compare running statistics. `inputs_differ`: only layers with equal inputs are judged, if any of these differs."""
    rung = _rung_of_statistics(pair)
    if rung.status == PASSED:
        return rung
    equal_inputs = model_causes.layers_with_equal_inputs(pair)
    fed_equally = replace(pair, alignment=replace(pair.alignment, names=equal_inputs))
    judged = _rung_of_statistics(fed_equally)
    if judged.status == PASSED or not inputs_differ:
        return replace(rung, causes=tuple(model_causes.explain_statistics(pair, equal_inputs)))
    causes = model_causes.explain_statistics(fed_equally, equal_inputs)
    behind = model_causes.explain_later_statistics(pair, equal_inputs)
    return replace(judged, causes=tuple(causes), behind=tuple(behind))


def _rung_of_statistics(pair: MeasuredPair) -> RungResult:
    statistics = [
        (name, *model_causes.normalised_by_batch_std(pair.left, name, *arrays))
        for name, *arrays in pair.parameters("statistics/")
    ]
    return _rung(_STATISTICS, statistics, _FORWARD, [float(name.endswith(".mean")) for name, *_ in statistics])


def _locate_first_difference(rung: RungResult, mode: str, pair: MeasuredPair, pixels: Array) -> RungResult:
    """Add the first place where outputs differ, and the causes, to a rung.

    If these are rounded constants, the next place counts where more differs than they explain. Rounded constants are
    reported even if the outputs agree within the tolerance, since that depends on the weights.
    """
    if rung.difference <= _ROUNDING_FLOOR:
        return rung
    divergence = find_divergence(mode, pair, pixels, _ROUNDING_FLOOR)
    reasons = [] if divergence is None else explain_divergence(divergence)
    if divergence is not None and _only_rounding(reasons):
        threshold = 0.0
        while rung.status != PASSED and _only_rounding(reasons):
            previous, threshold = (
                threshold,
                min(max(formulas.CLOSE, _MAX_GROWTH * divergence.difference), SAME_VALUES_TOLERANCE),
            )
            later = find_divergence(mode, pair, pixels, threshold) if threshold > previous else None
            if later is None:
                break
            divergence, reasons = later, explain_divergence(later)
    elif rung.status == PASSED:
        return rung
    else:
        divergence = find_divergence(mode, pair, pixels)
        reasons = [] if divergence is None else explain_divergence(divergence)
    if divergence is None:
        return rung
    where = "the output" if divergence.layers is None else f"{divergence.layers[0].name}, {divergence.layers[1].name}"
    between = ""
    if not _only_rounding(reasons) and not any(cause.is_verified for cause in reasons):
        within = divergence.layers is not None and divergence.close(*divergence.inputs)
        joins = divergence.layers is not None and max(layer.inputs for layer in divergence.layers) > 1
        between = f"between {divergence.last_agreeing}, the last that agree, and {where}"
        if within:
            between = "in these layers, which take the same"
            if joins:
                between = f"in {where}, or in what these take beside their first input, which is the same"
    is_searched = rung.name != _EXTREME_INPUTS and not _only_rounding(reasons)
    behind = tuple(explain_later_layers(divergence)) if is_searched else ()
    details = {"where": where, "between": between, "causes": tuple(reasons), "behind": behind}
    return replace(rung, status=FAILED, first=divergence.difference, at_the_end=divergence.at_the_end, **details)


def _rounding_cause(rungs: Sequence[RungResult]) -> str:
    lower = any(cause.name == LOWER_PRECISION for rung in rungs if rung.status == ROUNDS for cause in rung.causes)
    return LOWER_PRECISION if lower else ROUNDED_CONSTANTS


def _only_rounding(reasons: Sequence[Cause]) -> bool:
    return bool(reasons) and {cause.name for cause in reasons} <= ROUNDING_CAUSES


def _change(side: MeasuredModel, rule: str, name: str) -> Array:
    """Return the change of a parameter in the first update."""
    return side.arrays[f"{rule}/first/{name}"] - side.arrays[f"start/{name}"]


def _rule_words(rule: str) -> str:
    return {"own": "own optimizers"}.get(rule, rule)


def _is_statistic(name: str) -> bool:
    return name.endswith((".mean", ".variance"))


def _rung(
    name: str, compared: Sequence[tuple[str, Array, Array]], tolerance: float, least: Sequence[float] | None = None
) -> RungResult:
    """Compare arrays. `least`: floor of the scale of each array."""
    floors = least or [0.0] * len(compared)
    differences = [
        (max_relative_difference(left, right, floor), array_name)
        for (array_name, left, right), floor in zip(compared, floors, strict=True)
    ]
    most, where = max(differences, default=(0.0, ""))
    passed = most <= tolerance
    return RungResult(name, most, tolerance, PASSED if passed else FAILED, "" if passed else where)


def _rounding_only(gradients: Sequence[tuple[str, Array, Array]], layer_maxima: Mapping[str, float]) -> set[str]:
    """Return parameters whose gradients are only rounding, relative to their layer's: e.g. a bias in front of BatchNorm."""
    return {name for name, *pair in gradients if _largest(pair) <= _ROUNDING_FRACTION * layer_maxima[name]}


def _largest_of_layers(arrays: Sequence[tuple[str, Array, Array]]) -> dict[str, float]:
    """Return, by parameter, the largest value of all parameters of its layer."""
    layers: dict[str, float] = {}
    for name, *pair in arrays:
        layer = name.rpartition(".")[0]
        layers[layer] = max(layers.get(layer, 0.0), _largest(pair))
    return {name: layers[name.rpartition(".")[0]] for name, *_ in arrays}


def _largest(arrays: Sequence[Array]) -> float:
    return max(float(np.abs(array).max(initial=0.0)) for array in arrays)


def _depends_on(name: str, earlier: Sequence[str]) -> list[str]:
    """Return the names of the rungs that a rung's difference may follow from.

    Args:
        name: name of the rung.
        earlier: names of the rungs before it.
    """
    if name in _DEPENDS_ON or name == _LAYERS:
        return list(_DEPENDS_ON.get(name, ()))
    rule = name.partition(", ")[2]
    names = [_GRADIENTS, *(other for other in earlier if " step" in other.partition(", ")[0])]
    return names if name.startswith(_UPDATE_NAME) else [f"{_UPDATE_NAME}, {rule}", *names]


def _mark_consequences(rungs: Sequence[RungResult]) -> list[RungResult]:
    """Mark rungs that follow from a failed rung above, unless they have their own cause.

    Causes of running statistics were tried out on the inputs of each side's own layer. A framework's rounding affects all later
    rungs, even if the tolerance hides it. It explains no other cause.
    """
    marked: list[RungResult] = []
    broken, rounded = set[str](), False
    for rung in rungs:
        only_rounded = _only_rounding(rung.causes)
        is_downstream = not broken.isdisjoint(_depends_on(rung.name, [earlier.name for earlier in marked]))
        has_cause = rung.name == _STATISTICS and bool(rung.causes)
        # Extreme inputs were measured against what rounding makes there.
        has_cause |= not is_downstream and (rung.name == _EXTREME_INPUTS or (bool(rung.causes) and not only_rounded))
        if rung.status == FAILED and (is_downstream or rounded) and not has_cause:
            rung = replace(rung, status=FOLLOWS, causes=(), behind=())
        if rung.status == FAILED and only_rounded:
            rounded = True
        elif rung.status == FAILED or (rung.status == FOLLOWS and is_downstream and rung.name in _DEPENDS_ON):
            broken.add(rung.name)
        marked.append(rung)
    return marked


class _Tolerated(NamedTuple):
    """Differences of earlier rungs that are tolerated."""

    rounding: float = 0.0
    """Largest difference that is only a framework's rounding. 0: none."""
    accepted: bool = False
    """Whether what follows may hide a second fault."""
    rule: str = ""
    """End of the name of an accepted update, and of its steps."""


def _apply_accepted(rungs: Sequence[RungResult], accepted: Sequence[str]) -> list[RungResult]:
    """Mark rungs as accepted if accepted causes explain all of their difference.

    A framework's rounding is always accepted, and may grow in training within `_MAX_TRAINING_GROWTH`. Rungs that follow from
    another accepted cause may hide a second fault, as may the layers behind the explained one: they are not judged. Only the
    steps of an accepted update count as its consequence.
    """
    results: list[RungResult] = []
    tolerated = _Tolerated()
    for rung in rungs:
        if rung.status == FAILED:
            rung, tolerated = _settle_failed(rung, tolerated, {*accepted, *ROUNDING_CAUSES})
        elif rung.status == FOLLOWS:
            rung, tolerated = _settle_following(rung, tolerated)
        results.append(rung)
    return results


def _settle_failed(rung: RungResult, tolerated: _Tolerated, accepted: set[str]) -> tuple[RungResult, _Tolerated]:
    """Return a failed rung, accepted if it is, and what is tolerated after it."""
    names = {cause.name for cause in rung.causes}
    most_rounding = SAME_VALUES_TOLERANCE if rung.first else _FLOAT32_TOLERANCE
    if _only_rounding(rung.causes) and rung.difference <= most_rounding:
        # Layers that compute in float32 have gradients in float32.
        size = rung.first if rung.first and LOWER_PRECISION in names else rung.difference
        return replace(rung, status=ROUNDS), _Tolerated(max(tolerated.rounding, size, rung.difference), accepted=True)
    explained = all(cause.residual is None or cause.residual <= rung.tolerance for cause in rung.causes)
    if names and explained and names <= accepted:
        rule = rung.name.removeprefix(_UPDATE_NAME) if rung.name.startswith(_UPDATE_NAME) else ""
        rung = replace(rung, status=ACCEPTED if rung.at_the_end else UNJUDGED)
        return rung, tolerated._replace(accepted=True, rule=rule)
    rounding = tolerated.rounding if rung.name in (_STATISTICS, _EXTREME_INPUTS) else 0.0
    return rung, tolerated._replace(rounding=rounding, accepted=False)


def _settle_following(rung: RungResult, tolerated: _Tolerated) -> tuple[RungResult, _Tolerated]:
    """Return a rung that follows from others, with its status, and what is tolerated after it."""
    if tolerated.accepted and tolerated.rule and rung.name.endswith(tolerated.rule):
        return rung, tolerated  # a consequence of the update that was accepted
    if not tolerated.rounding:
        return replace(rung, status=UNJUDGED) if tolerated.accepted else rung, tolerated
    if rung.difference > min(_MAX_TRAINING_GROWTH * tolerated.rounding, _FLOAT32_TOLERANCE):
        return replace(rung, status=FAILED), tolerated._replace(rounding=0.0, accepted=False)
    return replace(rung, status=ROUNDS), tolerated._replace(rounding=max(tolerated.rounding, rung.difference))


def _flatten_order_notes(
    names: tuple[str, str], alignment: Alignment, by_name: Sequence[Mapping[str, Layer]], *, copied: bool
) -> list[Cause]:
    notes: list[Cause] = []
    for one, other in alignment.names.items():
        ours, theirs = by_name[0][one], by_name[1][other]
        orders = {ours.flattened, theirs.flattened}
        if ours.kind == "dense" and orders == {"chw", "hwc"}:
            values: dict[str, JsonValue] = {
                "one": names[0],
                "other": names[1],
                "layers": [one, other],
                "orders": [ours.flattened, theirs.flattened],
                "copied": copied,
            }
            where = ", ".join(filter(None, (ours.where, theirs.where)))
            notes.append(Cause("flatten-order", values, where, None, "evened-out"))
    return notes


def _layer_pairs(
    names: tuple[str, str],
    layers: Sequence[Mapping[str, Layer]],
    alignment: Alignment,
    sides: tuple[MeasuredModel, MeasuredModel] | None = None,
) -> list[LayerPair]:
    """Return pairs of layers, then layers of one model only."""
    pairs: list[LayerPair] = []
    for one, other in alignment.pairs:
        differences: list[float | None] = [None, None]
        for place, mode in enumerate(("inference", "training")):
            if sides is not None and one in sides[0].layers[mode] and other in sides[1].layers[mode]:
                differences[place] = max_relative_difference(sides[0].values(mode, one)[1], sides[1].values(mode, other)[1])
        ours, theirs = layers[0][one], layers[1][other]
        same = sides is not None and _same_behind_padding(sides, ours, theirs)
        settings = _settings(names, ours, theirs, ("padding", "padding_mode") if same else ())
        pairs.append(LayerPair(ours, theirs, differences[0], differences[1], settings))
    pairs += [LayerPair(one, other, None, None) for one, other in alignment.incompatible]
    paired_names = [{layer.name for pair in pairs if (layer := (pair.left, pair.right)[place]) is not None} for place in (0, 1)]
    pairs += [LayerPair(layer, None, None, None) for layer in layers[0].values() if layer.name not in paired_names[0]]
    pairs += [LayerPair(None, layer, None, None) for layer in layers[1].values() if layer.name not in paired_names[1]]
    return pairs


_CONVENTIONS = ("data_format", "biased_variance", "count_padding")
"""Settings that always differ between the frameworks."""


def _settings(names: tuple[str, str], left: Layer, right: Layer, without: Sequence[str] = ()) -> dict[str, str]:
    """Return the settings that differ, in words, by their names."""
    keys = [key for key in left.settings if key in right.settings and key not in (*_CONVENTIONS, *without)]
    # The name of a user's own function proves nothing.
    known = all(formulas.is_known(layer.settings) for layer in (left, right))
    return {
        key: _momentum(names, left, right) if key == "momentum" else f"{key} {left.settings[key]}, {right.settings[key]}"
        for key in keys
        if left.settings[key] != right.settings[key] and (key != "function" or known)
    }


def _momentum(names: tuple[str, str], left: Layer, right: Layer) -> str:
    """Describe the momentum of running statistics in each framework's convention. Both are recorded in PyTorch's."""
    ours, theirs = left.settings["momentum"], f"{1 - right.settings['momentum']:.6g}"
    if ours is None:  # a mean over all batches, which Keras does not have
        return f"momentum: {names[0]} None, {names[1]} {theirs}"
    return f"momentum: {names[0]} {ours:.6g}, which is {1 - ours:.6g} in {names[1]}, not {theirs}"


def _same_behind_padding(sides: tuple[MeasuredModel, MeasuredModel], left: Layer, right: Layer) -> bool:
    """Return whether zeros in front of one layer are the padding of the other. Other values than zeros must agree."""
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
    if any(layer.settings.get("padding_mode", "zeros") != "zeros" for layer in (left, right)):
        return same and formulas.close(*padded)
    return same and not any((padded[1 - place] * bare[place]).any() for place in (0, 1))
