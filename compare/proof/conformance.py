"""`convtwins conformance TWIN`: try any installed twin over the contract, and say what is missing.

The contract is `docs/a-new-twin.md`. The referee in plain NumPy says what is right, so no other framework is needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console

from common import spec
from common.artifacts import checkpoint, results, trained
from common.artifacts.records import RecordError
from common.artifacts.trained import Trained
from common.data import sources
from common.data.batches import Plan, order_digest
from common.data.sources import Dataset
from common.machine import heartbeat
from common.machine.private_folder import PrivateFolder
from common.models import architectures, weights
from common.models.architectures import Architecture, BatchNorm, Dropout, Layer, ReLU, Residual
from common.processes import signals
from common.spec import MODES, Spec
from common.training import inference
from common.training.tracing import group
from compare.core import exits, wording
from compare.core.errors import LaunchError
from compare.core.interrupt import interruptible
from compare.core.option_parsing import chosen, names
from compare.execution import contestants, launch, options
from compare.proof import ladder, single_steps, third_opinion
from compare.proof.certificate import Rung
from compare.proof.differences import Arrays, scaled
from compare.proof.recordings import Recorder, Recording
from compare.proof.referee import network
from compare.proof.referee.layers import Array, Backward
from compare.proof.referee.network import Batch, Network
from compare.reporting.document import Mark, Report
from compare.reporting.tables import Column, Table

STEPS = {"simple_cnn": 10, "mini_xception": 4, "resnet18": 2}
"""Of each model's training that the referee repeats."""
TOLERANCE = 1e-12
"""Of float64 arrays that must be equal but for rounding, on the scale of the largest value."""
_SLOTS = {"sgd": {"buffer"}, "adam": {"mean", "square"}}
_MODE_KEYS = {"available", "reason", "max_replicas", "resource", "implementation", "mechanism", "batch_norm_statistics"}
_LEAVES = "leaves:classes=2,images=60,size=32"
_EPOCHS = 12
"""Of a run that is cut short after the first."""
_POLL_SECONDS = 0.02
_MOST_SHOWN = 3

Faults = Iterator[str]


class Check(NamedTuple):
    """One part of the contract."""

    name: str
    faults: list[str]

    @property
    def status(self) -> str:
        return "failed" if self.faults else "passed"


@dataclass
class Trial:
    """One twin that is tried.

    Args:
        name: of the contestant.
        out: folder of specs, recordings, results and logs.
        progress: called with what is being done.
    """

    name: str
    out: Path
    progress: Callable[[str], None] = lambda text: None
    _count: int = field(default=0)

    @cached_property
    def description(self) -> dict[str, Any]:
        return launch.describe(self.name)

    def call(self, words: Sequence[str | Path]) -> tuple[int, str]:
        """(exit code, output) of one command of the twin."""
        self._count += 1
        log = self.out / f"{self._count}.log"
        log.unlink(missing_ok=True)
        code = launch.call(self.name, [str(word) for word in words], log=log)
        return code, log.read_text(encoding="utf-8", errors="replace")

    def written(self, what: Spec | str, name: str) -> Path:
        """A file of a spec."""
        path = self.out / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(what if isinstance(what, str) else what.to_json(), encoding="utf-8")
        return path

    @cached_property
    def recorder(self) -> Recorder:
        return Recorder(self.out, self.progress)

    def traced(self, what: Spec, label: str, *options: str, teacher: Recording | None = None) -> Arrays:
        """A recording of the twin."""
        return self.recorder.arrays(Recording(label, self.name, what, options, teacher))

    def run(self, what: Spec, name: str, *options: str | Path) -> tuple[int, str, Path]:
        """(exit code, output, folder) of a training."""
        folder = self.out / name
        return *self.call(["run", self.written(what, f"{name}-spec"), "--out", folder, *options]), folder


def loaded(what: Spec) -> tuple[Dataset, Architecture]:
    """The data and the model of a spec."""
    dataset = sources.load(what.data, seed=what.split_seed, cache_dir=what.paths.cache_dir)
    return dataset, architectures.resolve(what.model, len(dataset.class_names), dataset.image_size)


def _spec(model: str = "simple_cnn", optimizer: str = "sgd", **fields: Any) -> Spec:
    values = {
        "model": model,
        "data": {"source": "digits", "limit": 100},
        "optimizer": options.OPTIMIZERS[optimizer],
        "augmentation": {"horizontal_flip": True, "shift_px": 2},
        "precision": "float64",
        "global_batch_size": ladder.BATCH_SIZE,
        "steps": 3,
    }
    return spec.build({**values, **fields})


def description_faults(found: Mapping[str, Any], framework: str) -> Faults:
    """What a twin's `describe` lacks."""
    kinds = {"framework": str, "versions": dict, "devices": list, "modes": dict, "options": dict, "formats": list}
    for name, kind in kinds.items():
        if not isinstance(found.get(name), kind):
            yield f"describe has no {name} of type {kind.__name__}. Received: {found.get(name)!r}"
            return
    if found["framework"] != framework:
        yield f"describe names another framework. Received: {found['framework']!r}, expected {framework!r}"
    if not found["versions"] or not all(isinstance(version, str) for version in found["versions"].values()):
        yield f"versions must name packages and their versions. Received: {found['versions']!r}"
    if not found["devices"] or any(device.keys() != {"name", "kind"} for device in found["devices"]):
        yield f"devices must have a name and a kind each. Received: {found['devices']!r}"
    if not all(isinstance(suffix, str) and suffix.startswith(".") for suffix in found["formats"]):
        yield f"formats must be suffixes that begin with a dot. Received: {found['formats']!r}"
    if not found["modes"].get("serial", {}).get("available"):
        yield "modes must have serial, and it must be available"
    for name, mode in found["modes"].items():
        if name not in MODES:
            yield f"modes names {name!r}, which is no mode. Use {', '.join(MODES)}"
        elif lacking := _MODE_KEYS - mode.keys():
            yield f"modes.{name} lacks {', '.join(sorted(lacking))}"
        elif mode["available"] != (mode["reason"] is None):
            yield f"modes.{name} must have a reason if it is not available, and only then. Received: {mode['reason']!r}"
    for name, option in found["options"].items():
        if lacking := {"values", "default", "help"} - option.keys():
            yield f"options.{name} lacks {', '.join(sorted(lacking))}"
        elif option["default"] not in option["values"]:
            yield f"options.{name} has a default that is none of its values. Received: {option['default']!r}"


def _describe(trial: Trial) -> Faults:
    yield from description_faults(trial.description, contestants.named(trial.name).twin)


def _models(trial: Trial) -> Faults:
    for model in spec.MODELS:
        what, out = _spec(model), trial.out / f"{model}-summary.json"
        _, architecture = loaded(what)
        code, said = trial.call(["models", trial.written(what, f"models-{model}"), "--out", out])
        if code != 0:
            yield f"models {model} ended with {launch.exit_words(code)}: {_last(said)}"
            continue
        found = json.loads(out.read_text(encoding="utf-8"))
        parameters = architecture.parameters()
        totals = sum(each.size for each in parameters), sum(each.size for each in parameters if each.trainable)
        if (received := (found.get("values"), found.get("trainable_values"))) != totals:
            yield f"{model} has {received[0]} values, {received[1]} of them trainable. Expected {totals[0]} and {totals[1]}"
        built = {layer["name"]: layer for layer in found["layers"]}
        size = architecture.image_size
        for name, shape in _shapes(architecture.layers, (size, size, 3)):
            values = sum(each.size for each in parameters if each.name.rpartition(".")[0] == name)
            wanted = {"output_shape": list(shape), "values": values}
            if {key: built.get(name, {}).get(key) for key in wanted} != wanted:
                yield f"{model}, layer {name} must be {wanted}. Received: {built.get(name)}"


def _shapes(layers: tuple[Layer, ...], shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, output shape) of each layer but residuals and ReLUs."""
    for layer in layers:
        after = architectures.output_shape((layer,), shape, layer.name)
        if isinstance(layer, Residual):
            yield from _shapes(layer.body, shape)
            yield from _shapes(layer.shortcut, shape)
        elif not isinstance(layer, ReLU):
            yield layer.name, after
        shape = after


def _training(trial: Trial) -> Faults:
    specs = {
        (model, optimizer): third_opinion.spec_of(_spec(model, optimizer)).with_fields(steps=steps)
        for model, steps in STEPS.items()
        for optimizer in (options.OPTIMIZERS if model == "simple_cnn" else ("sgd",))
    }
    trial.recorder.make(Recording("referee", trial.name, what, ("--batches",)) for what in specs.values())  # by one process
    for (model, optimizer), what in specs.items():
        dataset, architecture = loaded(what)
        recorded = trial.traced(what, "referee", "--batches")
        faults = [*_recorded(what, dataset, architecture, recorded)]
        yield from (f"{model}, {optimizer}: {fault}" for fault in faults)
        if faults:
            continue
        lines = third_opinion.compare(what, architecture, len(dataset.train), {trial.name: recorded}, np.float64)
        yield from (
            f"{model}, {optimizer}: {line.what} differ from the referee by {line.difference:.1e}, tolerance "
            f"{line.tolerance:.0e} ({line.where})"
            for line in lines
            if line.status == "failed"
        )
        expected = _evaluated(architecture, group(recorded, "initial/"), recorded["images/0"])
        if (apart := scaled(recorded["logits/eval"], expected)) > TOLERANCE:
            yield f"{model}, {optimizer}: logits/eval differ from the referee by {apart:.1e}, tolerance {TOLERANCE:.0e}"


def _recorded(what: Spec, dataset: Dataset, architecture: Architecture, recorded: Arrays) -> Faults:
    """What a recording lacks: names, shapes and types, the drawn weights, the plan's examples, pixels and masks."""
    parameters = architecture.parameters()
    trainable = [parameter.name for parameter in parameters if parameter.trainable]
    everything = [parameter.name for parameter in parameters]
    wanted = {"ids", "loss", "num_correct", "num_values", "pixels", "decoded", "logits/train", "logits/eval", "logits/final"}
    wanted |= {f"{prefix}/{name}" for prefix in ("initial", "stepped", "final") for name in everything}
    wanted |= {f"gradient/{name}" for name in trainable}
    if lacking := sorted(wanted - recorded.keys()):
        yield f"the recording lacks {_some(lacking)}"
        return
    drawn = weights.initial(architecture, what.seed)
    for parameter in parameters:
        found = recorded[f"initial/{parameter.name}"]
        if found.dtype != what.precision or not np.array_equal(found, drawn[parameter.name].astype(what.precision)):
            yield f"initial/{parameter.name} is not the drawn array. Received: {found.dtype} {list(found.shape)}"
    plan = Plan(what, architecture, len(dataset.train))
    taken = 0
    for step in range(what.steps or 1):
        number, position = divmod(step, plan.steps_per_epoch)
        epoch, (start, stop) = plan.draw(number + 1), plan.batch(position)
        ids = epoch.ids[start:stop]
        if not np.array_equal(recorded["ids"][taken : taken + len(ids)], ids):
            yield f"step {step + 1} trains on other examples than the plan's"
        taken += len(ids)
        assert epoch.flips is not None and epoch.shifts is not None, "_spec asks for both"
        images = _augmented(dataset.train.images[ids], epoch.flips[start:stop], epoch.shifts[start:stop])
        if not np.array_equal(recorded[f"images/{step}"], images):
            yield f"step {step + 1} trains on other pixels than the plan's flips and shifts give"
        for index, units in enumerate(epoch.mask_units):
            mask = np.unpackbits(epoch.masks[index][start:stop], axis=1, count=units, bitorder="little").astype(bool)
            if not np.array_equal(recorded[f"masks/{step}/{index}"], mask):
                yield f"step {step + 1} has another dropout mask than the plan's"


def _augmented(images: npt.NDArray[Any], flips: npt.NDArray[Any], shifts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Flipped and shifted one image at a time, zeros moving in."""
    made = np.zeros_like(images)
    size = images.shape[1]
    for index, (image, flip, moved) in enumerate(zip(images, flips, shifts, strict=True)):
        source = image[:, ::-1] if flip else image
        to, of = zip(
            *((slice(max(-by, 0), size - max(by, 0)), slice(max(by, 0), size + min(by, 0))) for by in moved), strict=True
        )
        made[index][to] = source[of]
    return made


class _Evaluation(Network):
    """The referee's network in evaluation mode."""

    def _layer(self, layer: Layer, x: Array) -> tuple[Array, Backward]:
        back: Backward = lambda dy: (dy, {})  # noqa: E731  nobody goes back
        if isinstance(layer, Dropout):
            return x, back
        if isinstance(layer, BatchNorm):
            mean, variance, gamma, beta = (self._of(layer, role) for role in ("mean", "variance", "gamma", "beta"))
            return (x - mean) / np.sqrt(variance + layer.epsilon) * gamma + beta, back
        return super()._layer(layer, x)


def _evaluated(architecture: Architecture, arrays: Arrays, images: npt.NDArray[Any]) -> Array:
    """The referee's logits in evaluation mode, of pixels without normalisation."""
    pixels = network.scaled(images, [0.0] * 3, [1.0] * 3, np.float64)
    evaluation = _Evaluation(arrays, Batch(pixels, np.zeros(len(images), np.int64)))
    return evaluation.through(architecture.layers, pixels)[0]


def _single_steps(trial: Trial) -> Faults:
    for optimizer in options.OPTIMIZERS:
        for precision in ("float32", "float64"):
            what = _spec(optimizer=optimizer, precision=precision, steps=6)
            dataset, architecture = loaded(what)
            steps = [0, 1, 4]
            words = ["--drawn", ",".join(map(str, steps))]
            label = f"steps-{precision}"
            recording = Recording(label, trial.name, what, tuple(words))
            teacher = trial.traced(what, label, *words)
            where = f"{optimizer}, {precision}"
            trainable = {parameter.name for parameter in architecture.parameters() if parameter.trainable}
            slots = {name.split("/")[0] for name in group(teacher, "after/0/slots/")}
            if slots != _SLOTS[optimizer]:
                wanted = ", ".join(sorted(_SLOTS[optimizer]))
                yield f"{where}: the optimizer's slots must be {wanted}. Received: {_some(sorted(slots))}"
                continue
            kept = {slot: set(group(teacher, f"after/0/slots/{slot}/")) for slot in slots}
            if other := [slot for slot, found in kept.items() if found != trainable]:
                yield f"{where}: {other[0]} must have one array for each trainable parameter, by its name"
                continue
            again = trial.traced(what, f"{label}-again", *words, teacher=recording)
            for name in sorted(name for name in teacher if name.startswith(("after/", "loss/"))):
                unit = {"float32": 1e-5, "float64": TOLERANCE}[precision]
                if name not in again or scaled(again[name], teacher[name]) > unit:
                    yield f"{where}: {name} differs if its state is loaded from a recording"
                    break
            judge = single_steps.Judge(architecture, teacher, steps, Plan(what, architecture, len(dataset.train)))
            yield from (f"{where}: {fault}" for fault in _failed(judge.rungs(what, teacher, trial.name)))


def _failed(rungs: Sequence[Rung]) -> Faults:
    for rung in rungs:
        if rung.status == "failed":
            apart, where = f"{rung.max_relative_difference:.1e}", f" ({rung.where})" if rung.where else ""
            yield f"{rung.name} differ by {apart}, tolerance {rung.tolerance:.0e}{where}"


def _trajectories(trial: Trial) -> Faults:
    what = _spec()
    plain = trial.traced(what, "plain")["loss"]
    losses = trial.traced(what, "copies", "--copies", "2", "3").get("losses")
    if losses is None or losses.shape != (3, 3):
        yield f"--copies 2 3 must record losses [3, 3]. Received: {None if losses is None else list(losses.shape)}"
    elif not np.allclose(losses[0], plain, rtol=TOLERANCE, atol=0) or not np.allclose(losses, losses[0], rtol=1e-9, atol=0):
        yield "the losses of copies differ by more than the last place of their weights can make"


def _input(trial: Trial) -> Faults:
    data = {"source": _LEAVES}
    specs = {
        "cached": _spec(data=data),
        "input-workers": _spec(data=data, input="workers", workers=2),
        "loading-streaming": _spec(data={**data, "loading": "streaming"}),
        "streaming-workers": _spec(data={**data, "loading": "streaming"}, input="workers", workers=2),
    }
    trial.recorder.make(Recording(name, trial.name, what) for name, what in specs.items())
    first, *others = (trial.traced(what, name) for name, what in specs.items())
    for name, other in zip(list(specs)[1:], others, strict=True):
        yield from (f"{name} gives other {what}" for what in ("ids", "pixels") if not np.array_equal(first[what], other[what]))


def _modes(trial: Trial) -> Faults:
    for name, mode in trial.description["modes"].items():
        words = [word for word, (of, _) in spec.VARIANTS.items() if of == name and name != "serial"]
        if not mode["available"] or not words:
            continue
        what = _spec("mini_xception" if name == "data_parallel" else "simple_cnn")
        proof = ladder.prove(
            what, [trial.name], words, replicas=2, out=trial.out / name, progress=trial.progress, steps=5, remember=False
        )
        yield from _failed(proof.rungs)
        for word in words:
            own = spec.build(spec.with_variant(what.model_dump(), word, 2))
            if own.departs is None and not any(rung.mode == word for rung in proof.rungs):
                yield f"{word}: it is called available, and nothing of it could be tried with 2 replicas"
            elif own.departs is not None and (code := trial.run(own, f"{word}-run")[0]) != 0:
                yield f"{word}: a run ended with {launch.exit_words(code)}"


def _runs(trial: Trial) -> Faults:
    what = _spec(
        data={"source": "digits", "limit": 100}, steps=None, epochs=_EPOCHS, checkpoint_seconds=0, best_epoch={"keep": True}
    )
    dataset, architecture = loaded(what)
    code, said, folder = trial.run(what, "run")
    try:
        result = results.load(folder / results.RESULT_FILE)
    except (OSError, RecordError) as error:
        yield f"run left no result ({launch.exit_words(code)}): {error}. {_last(said)}"
        return
    if code != 0 or result.status != "ok":
        yield f"run ended with {launch.exit_words(code)} and status {result.status}: {result.reason}"
        return
    plan = Plan(what, architecture, len(dataset.train))
    order = np.concatenate([plan.draw(epoch).ids[: plan.batch(plan.steps_per_epoch - 1)[1]] for epoch in range(1, _EPOCHS + 1)])
    expected = {
        "framework": contestants.named(trial.name).twin,
        "order_hash": order_digest(order),
        "data_hash": dataset.content_hash,
        "weights_hash": weights.digest(
            {name: array.astype(what.precision) for name, array in weights.initial(architecture, 0).items()}
        ),
    }
    for name, wanted in expected.items():
        if (received := getattr(result, name)) != wanted:
            yield f"the result's {name} is not {wanted}. Received: {received}"
    if lacking := {"layout", "graph", "mechanism"} - result.conditions.keys():
        yield f"the result's conditions lack {', '.join(sorted(lacking))}, see `sets` and `mechanism` of describe"
    yield from _resumed(trial, what, result.predictions_hash)
    yield from _trained(trial, folder / results.BEST_FILE, dataset)


def _resumed(trial: Trial, what: Spec, predictions_hash: str | None) -> Faults:
    """A run that is cut short after an epoch goes on from its checkpoint, to the same predictions."""
    folder = trial.out / "cut-short"
    words = ["run", str(trial.written(what, "cut-short-spec")), "--out", str(folder)]
    log, process, code = folder.with_suffix(".log"), None, None
    try:
        with signals.deferred():
            process = launch.start(trial.name, words, log=log)
        until = time.monotonic() + heartbeat.HANG_SECONDS
        while (code := process.poll()) is None and not (folder / checkpoint.FILE).exists() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
    finally:
        if process is not None:
            launch.stop(process, grace_seconds=0.0)
    if not (folder / checkpoint.FILE).exists():
        ending = (
            f"was stopped after {heartbeat.HANG_SECONDS:.0f} s" if code is None else f"ended with {launch.exit_words(code)}"
        )
        said = _last(log.read_text(encoding="utf-8", errors="replace"))
        yield (
            f"run --resume could not be tried: a run must save {checkpoint.FILE} after each epoch but the last, because "
            f"checkpoint_seconds is 0. It {ending} before one was seen: {said}"
        )
        return
    code, said, again = trial.run(what, "resumed", "--resume", folder)
    if code != 0:
        yield f"run --resume ended with {launch.exit_words(code)}: {_last(said)}"
        return
    result = results.load(again / results.RESULT_FILE)
    if result.resumes != 1:
        yield f"run --resume starts over. Received: {result.started_over}"
    if result.predictions_hash != predictions_hash:
        yield "a run that goes on from its checkpoint makes other predictions than one that was left alone"


def _trained(trial: Trial, best: Path, dataset: Dataset) -> Faults:
    model = trained.load(best)
    images = np.asarray(dataset.test.images[:10])
    np.save(given := trial.out / "images.npy", images, allow_pickle=False)
    expected = _evaluated(model.architecture, model.weights, images)
    for label, path in _files(trial, best, model):
        code, said = trial.call(["score", path, "--images", given, "--out", out := trial.out / f"{label}-logits.safetensors"])
        if code != 0:
            yield f"score ended with {launch.exit_words(code)}: {_last(said)}"
        elif (apart := scaled(inference.logits(out, trained.load(path), len(images)), expected)) > TOLERANCE:
            yield f"score gives logits of {label} that differ from the referee by {apart:.1e}, tolerance {TOLERANCE:.0e}"


def _files(trial: Trial, best: Path, model: Trained) -> Iterator[tuple[str, Path]]:
    """The trained model, and the same by way of the framework's own file."""
    yield "a trained model", best
    card = trial.written(model.card.model_dump_json(), "card")
    for suffix in trial.description["formats"]:
        own, back = trial.out / f"own{suffix}", trial.out / f"back{suffix}{trained.SUFFIX}"
        for words in (["write", best, "--out", own], ["read", own, "--card", card, "--out", back]):
            code, said = trial.call(words)
            if code != 0:
                raise LaunchError(f"{words[0]} of {suffix} ended with {launch.exit_words(code)}: {_last(said)}")
        yield f"a {suffix} file", back


def _bad_input(trial: Trial) -> Faults:
    modes, out = trial.description["modes"], trial.out / "bad"
    missing = next((mode for mode in MODES if not modes.get(mode, {}).get("available")), None)
    empty = trial.out / "no-images"
    empty.mkdir(exist_ok=True)
    cases: list[tuple[str, list[str | Path], int, str]] = [
        ("an unknown command", ["nonsense"], exits.USAGE, "nonsense"),
        ("no spec file", ["run", trial.out / "none.json", "--out", out], exits.USAGE, "none.json"),
        ("a torn spec", ["run", trial.written("{", "torn"), "--out", out], exits.USAGE, "torn.json"),
    ]
    for what, fields, code, named in (
        ("an unknown switch", {"framework_options": {"nonsense": 1}}, exits.USAGE, "nonsense"),
        ("data without images", {"data": {"source": str(empty)}}, exits.DATA_REFUSED, "no-images"),
        ("a loss that diverges", {"optimizer": {"learning_rate": 1e30}, "steps": 20}, exits.RUN_FAILED, ""),
    ):
        path = trial.written(_spec().with_fields(**fields), what.replace(" ", "-"))
        cases.append((what, ["run", path, "--out", trial.out / f"{path.stem}-run"], code, named))
    if missing is not None:
        word = next(word for word, (mode, _) in spec.VARIANTS.items() if mode == missing)
        asked = spec.build(spec.with_variant(_spec().model_dump(), word, 2))
        path = trial.written(asked, f"mode-{missing}")
        cases.append((f"mode {missing}", ["run", path, "--out", out], exits.USAGE, "not available"))
    for what, words, expected, named in cases:
        code, said = trial.call(words)
        if code != expected:
            yield f"{what} must end with exit code {expected}. Received: {launch.exit_words(code)}: {_last(said)}"
        elif named not in said:
            yield f"{what} must be refused with a message that names {named!r}. Received: {_last(said)}"
    path = trial.out / "a-loss-that-diverges-run" / results.RESULT_FILE
    status = results.load(path).status if path.exists() else "none"
    if status != "diverged":
        yield f"a loss that diverges must leave a result of status diverged. Received: {status}"


CHECKS: dict[str, Callable[[Trial], Faults]] = {
    "describe": _describe,
    "models": _models,
    "bad input": _bad_input,
    "training": _training,
    "single steps": _single_steps,
    "trajectories": _trajectories,
    "input": _input,
    "runs": _runs,
    "modes": _modes,
}
"""What is tried, in this order, by the names of `--checks`."""


def conform(trial: Trial, checks: Sequence[str]) -> list[Check]:
    """Try a twin. A check that a twin does not survive is failed, and the next one is tried.

    Raises:
        LaunchError: the twin cannot even describe itself.
    """
    trial.out.mkdir(parents=True, exist_ok=True)
    assert trial.description
    made: list[Check] = []
    for name in checks:
        trial.progress(f"conformance: {name}")
        faults: list[str] = []
        try:
            faults.extend(CHECKS[name](trial))
        except Exception as error:  # whatever a faulty twin leads to
            faults.append(f"{type(error).__name__}: {error}")
        made.append(Check(name, [wording.one_line(fault) for fault in faults]))
    return made


def command(
    twin: Annotated[str, typer.Argument(metavar="TWIN[@PYTHON]", help="A twin, and the interpreter that has it.")],
    checks: Annotated[str, typer.Option(help=f"With commas, of: {', '.join(CHECKS)}.")] = ",".join(CHECKS),
    out: Annotated[Path | None, typer.Option(help="Keep report, specs, recordings and logs here. Default: nothing.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Try an installed twin over the contract, and say what is missing; exit code 1 where a check fails."""
    console = Console(stderr=True)

    def progress(text: str) -> None:
        console.print(text, style="dim", highlight=False)

    with exits.reported(), interruptible(), PrivateFolder() as temporary:
        asked = chosen("--checks", names(checks), tuple(CHECKS))
        name = twin.partition("@")[0]
        (name,) = contestants.choose(None, [f"{name}={twin}"], {}, launch.FRAMEWORKS)
        made = conform(Trial(name, out or temporary.path, progress), asked)
        code = report(name, made).deliver(out, as_json=as_json)
    raise typer.Exit(code)


def report(name: str, made: Sequence[Check]) -> Report:
    """One line a check, and all that is missing."""
    failed = [check for check in made if check.faults]
    verdict = "does not conform" if failed else "conforms"
    columns = (
        Column("check", "check", pick="name"),
        Column("status", "status"),
        Column("found", "found", pick=lambda check: "" if not check.faults else f"{len(check.faults)}: {check.faults[0]}"),
    )
    missing = [f"{check.name}: {fault}." for check in failed for fault in check.faults]
    return Report(
        title=f"Does the twin {name} keep the contract?",
        name="conformance",
        json_file="conformance.json",
        marks=[Mark("Contract", verdict, "bad" if failed else "good")],
        findings=[
            ("Verdict", [f"{name} {verdict}: {len(made) - len(failed)} of {len(made)} checks passed."]),
            *([("What is missing", missing)] if missing else []),
        ],
        tables=[Table.of("checks", "Checks of the contract", columns, made)],
        values={"verdict": verdict, "checks": [{**check._asdict(), "status": check.status} for check in made]},
        exit_code=exits.RUN_FAILED if failed else 0,
    )


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return wording.one_line(lines[-1]) if lines else "it printed nothing"


def _some(found: Sequence[str]) -> str:
    more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    return ", ".join(found[:_MOST_SHOWN]) + more or "none"
