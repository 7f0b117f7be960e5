"""Writes a matched pair as a module that `run --model` takes."""

from __future__ import annotations

import keyword
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from common.artifacts import atomic_files
from common.matching.pair import PairedModel
from common.matching.records import Layer
from common.models.architectures import BatchNorm, Dropout, Native, Opaque
from common.spec import SpecError
from compare.tools.matching import match_words
from compare.tools.matching.alignment import describe_layer
from compare.tools.matching.causes import BIASED_VARIANCE, ROUNDING_CAUSES
from compare.tools.matching.model_comparison import ACCEPTED, FAILED, ROUNDS, Match

_MAY_DIFFER = {BIASED_VARIANCE, *ROUNDING_CAUSES, "adam-epsilon", "weight-decay", "learning-rate"}
"""Accepted causes of a written pair. `run` has its own optimizers and its own rule of running variances. Rounded
constants stay rounded: `write` says what that does to the proof."""
_FIRST_LINE = '"""A pair of models that are the same, written by `convtwins match`.\n'
_KINDS = {"conv", "depthwise_conv", "dense", "batch_norm", "layer_norm", "group_norm", "dropout"}
_ROLES = {"gamma", "beta", "mean", "variance"}

_TEXT = (
    _FIRST_LINE
    + '''
{left}
{right}
"""

from convtwins import models
from convtwins.models import BatchNorm, Dropout, Native, Opaque, PairedModel

MODEL = Opaque(
    name={model.name!r},
    shape={model.shape!r},
    num_outputs={model.num_outputs!r},
    layers=(
{layers}    ),
    outputs={model.outputs!r},
    again={model.again!r},
    rounded={model.rounded!r},
)
PYTORCH = {sides[0]!r}
TENSORFLOW = {sides[1]!r}
IMPORTS = PYTORCH.model, TENSORFLOW.model


def architecture(num_classes, image_size):
    return models.pair_architecture(MODEL, num_classes, image_size)


def build_pytorch(architecture, precision, group):
    return models.build_pair_pytorch(PYTORCH, architecture, precision, group)


def build_tensorflow(architecture, precision, group):
    return models.build_pair_tensorflow(TENSORFLOW, architecture, precision, group)
'''
)


def check(path: Path, *, own_input: bool, own_loss: bool) -> None:
    """Refuse what cannot become a model of a run, before anything starts."""
    if own_input or own_loss:
        raise SpecError(
            f"--write takes no {'--prepare' if own_input else '--loss'}: `run` gives images in 0..1 and takes the "
            "cross-entropy of logits. Put what differs into the models."
        )
    if path.suffix != ".py" or not all(map(_importable, (path.stem, path.absolute().parent.name))):
        raise SpecError(
            "--write must name FOLDER/FILE.py, as `run --model folder.file` imports it: names of letters, digits and "
            f"underscores, and no keyword of Python. Received: {path}. Use e.g. pairs/a.py."
        )
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise SpecError(f"--write names a folder that is a file. Received: {path}; {folder} is a file. Use another folder.")
    if path.exists() and not (path.is_file() and path.read_text(encoding="utf-8", errors="replace").startswith(_FIRST_LINE)):
        raise SpecError(f"--write would overwrite {path}, which `match` has not written. Name a new file.")


def _importable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _module(path: Path) -> tuple[str, str]:
    """Return (name of the module, the variable that lets Python find it outside the current folder)."""
    below = path.resolve().relative_to(Path.cwd()).parts if path.resolve().is_relative_to(Path.cwd()) else ()
    parts = [*below[:-1], path.stem]
    if len(parts) > 1 and all(map(_importable, parts)):
        return ".".join(parts), ""
    folder = path.absolute().parent
    return f"{folder.name}.{path.stem}", f"with PYTHONPATH={shlex.quote(str(folder.parent))}"


def write(result: Match, path: Path) -> list[str]:
    """Write the module of a pair. Returns sentences: how to train it, or why a pair that did not match is not written."""
    if not result.holds:
        failed = [cause.name for rung in result.rungs if rung.status == FAILED for cause in rung.causes]
        hint = f" Add --accept {BIASED_VARIANCE}: a run makes it unbiased." if failed == [BIASED_VARIANCE] else ""
        return [f"{path} was not written, for the models are not the same.{hint}"]
    accepted = {cause.name for rung in result.rungs if rung.status in (ACCEPTED, ROUNDS) for cause in rung.causes}
    if untolerated := accepted - _MAY_DIFFER:
        raise SpecError(
            f"--write takes no pair that differs. Accepted: {', '.join(sorted(untolerated))}. Mend the port, and match again."
        )
    name, where = _module(path)
    model, sides = _model(result, name)
    layers = "".join(f"        {layer!r},\n" for layer in model.layers)
    text = _TEXT.format(left=sides[0].model, right=sides[1].model, model=model, layers=layers, sides=sides)
    atomic_files.write_atomically(path, text)
    words = f"run --model {name} --image-size {model.shape[0]}"
    sentences = [f"{path} was written. Train it in both frameworks: {', '.join(filter(None, (words, where)))}."]
    if BIASED_VARIANCE in accepted:
        sentences.append(
            "Keras's running variances become unbiased there, as PyTorch's are. Without that, scores would differ."
        )
    if ROUNDING_CAUSES & accepted:
        sentences.append(
            "A framework rounds a constant or a layer to float32. The proof of a run fails by that much, and names it."
        )
    return sentences


def _model(result: Match, name: str) -> tuple[Opaque, tuple[PairedModel, PairedModel]]:
    request = result.requests[0]
    if request.image[0] != request.image[1] or request.image[2] not in (1, 3):
        raise SpecError(
            f"--write takes square images of 1 or 3 channels. Received: --input {'x'.join(map(str, request.image))}."
        )
    model_layers: list[Native | BatchNorm | Dropout] = []
    outputs: list[tuple[int, ...]] = []
    again: list[tuple[str, tuple[int, ...]]] = []
    sides = PairedModel(result.requests[0].model, {}), PairedModel(result.requests[1].model, {})
    for pair in result.lines:
        layers = [layer for layer in (pair.left, pair.right) if layer is not None]
        known = [layer for layer in layers if layer.parameters or layer.kind == "dropout"]
        if not known:
            continue
        name, _, call = known[0].name.partition("#")
        if call and known[0].parameters:
            again.append((name, tuple(known[0].output)))
            continue
        if pair.left is None or pair.right is None:
            _refuse(known[0], "is in one model only")
        model_layer = _layer(pair.left, pair.right)
        model_layers.append(model_layer)
        outputs.append(tuple(pair.left.output))
        # A call in one model may be paired with a call of another number in the other.
        sides[0].layers[model_layer.name], sides[1].layers[model_layer.name] = pair.left.name, pair.right.name.partition("#")[0]
        if pair.left.flattened != pair.right.flattened:
            if pair.right.flattened == "chw":
                _refuse(pair.right, "takes an image flattened channels first, which only torch does")
            if pair.left.flattened != "chw":
                _refuse(pair.left, "is behind a flattened image in one model only")
            sides[0].flattened[model_layer.name] = _image(request.image, result.opened[0].layers, pair.left)
    rounded = next(
        (match_words.note(cause) for rung in result.rungs for cause in rung.causes if cause.name in ROUNDING_CAUSES), ""
    )
    return Opaque(
        name, request.image, result.opened[0].outputs[0], tuple(model_layers), tuple(outputs), tuple(again), rounded
    ), sides


def _layer(left: Layer, right: Layer) -> Native | BatchNorm | Dropout:
    if left.kind not in _KINDS or left.kind != right.kind:
        _refuse(left, "has parameters of a kind that a run does not have")
    if right.settings.get("data_format") == "channels_first":
        _refuse(right, "is channels first in Keras")
    if left.parameters != right.parameters:
        _refuse(left, "has other parameters in the other model")
    if left.kind == "dropout":
        return _dropout(left, right)
    if left.kind == "batch_norm":
        settings = left.settings
        if left.parameters.keys() != _ROLES or len(left.output) != 3 or not settings["momentum"]:
            _refuse(left, "must normalise images, with scale, shift and running statistics")
        return BatchNorm(left.name, left.output[-1], float(settings["momentum"]), float(settings["epsilon"]))
    shapes = {role: tuple(shape) for role, shape in left.parameters.items()}
    if left.kind == "depthwise_conv":
        height, width, channels, multiplier = shapes["kernel"]
        if multiplier != 1:
            _refuse(left, "has a depth multiplier")
        shapes["kernel"] = height, width, 1, channels
    return Native(left.name, left.kind, tuple(shapes.items()))


def _dropout(left: Layer, right: Layer) -> Dropout:
    if " at " in left.name:
        _refuse(left, "is a function, which takes no mask of the batch; use torch.nn.Dropout")
    if "#" in left.name or "#" in right.name:
        _refuse(left, "is called twice, and has one mask")
    settings = left.settings
    if len(left.output) not in (1, 3):
        _refuse(left, "drops neither features nor an image")
    if settings["active"] or right.settings["active"]:
        _refuse(left, "is active in inference")
    channels = settings["whole_channels"]
    if right.settings["whole_channels"] is not channels or settings["rate"] != right.settings["rate"]:
        _refuse(left, "drops otherwise in the other model")
    return Dropout(left.name, float(settings["rate"]), left.output[-1] if channels else math.prod(left.output))


def _image(input_shape: tuple[int, int, int], layers: Sequence[Layer], layer: Layer) -> tuple[int, int, int]:
    """Return the shape of the last image in front of a layer that takes it flattened. `input_shape`: that of the model."""

    def images() -> Iterator[tuple[int, int, int]]:
        yield input_shape
        for candidate in layers:
            if candidate.name == layer.name:
                return
            if len(candidate.output) == 3:
                height, width, channels = candidate.output
                yield height, width, channels

    return [*images()][-1]


def _refuse(layer: Layer, why: str) -> NoReturn:
    raise SpecError(f"--write cannot take {describe_layer(layer)}: it {why}. `match` works without --write.")
