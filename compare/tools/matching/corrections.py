"""Says what to write in the Keras port to mend a cause, where one argument or one layer does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compare.tools.matching import formulas
from compare.tools.matching.causes import Cause

_Values = Mapping[str, Any]
_NORMALISATIONS = {
    "batch_norm": "BatchNormalization",
    "layer_norm": "LayerNormalization",
    "group_norm": "GroupNormalization",
}
_ROLES = {"bias": "use_bias", "beta": "center", "gamma": "scale"}
"""Keras's argument that gives a layer a parameter, by role."""
_ACTIVATIONS = {
    "ReLU": 'activation="relu"',
    "ReLU6": 'activation="relu6"',
    "GELU (erf)": 'activation="gelu"',
    "GELU (tanh)": "keras.activations.gelu(x, approximate=True)",
    "SiLU": 'activation="silu"',
    "ELU": 'activation="elu"',
    "SELU": 'activation="selu"',
    "Mish": 'activation="mish"',
    "sigmoid": 'activation="sigmoid"',
    "tanh": 'activation="tanh"',
    "hard tanh": 'activation="hard_tanh"',
    "softsign": 'activation="softsign"',
    "softplus": 'activation="softplus"',
    "hard swish": 'activation="hard_silu"',
    "hard sigmoid": 'activation="hard_sigmoid"',
    "softmax": 'activation="softmax"',
    "log-softmax": 'activation="log_softmax"',
}
"""Keras's activation by the name of `formulas.ACTIVATIONS`."""
_PADDING_MODES = {"zeros", "reflect", "symmetric"}
"""Padding modes that Keras has in `keras.ops.pad`."""


class AcceptOption(str):
    """A correction by an option of `match`, because Keras has none."""


def correction(cause: Cause) -> str:
    """Return what to write in Keras, as a clause that begins with a verb. Empty: it takes more than one argument."""
    key = f"{cause.name}/{cause.variant}" if cause.variant else cause.name
    return _CORRECTIONS[key](cause.values) if key in _CORRECTIONS else ""


def _in_keras(values: _Values) -> bool:
    """Return whether `one` is the Keras model."""
    return values.get("place", 0) == 1


def _only(values: _Values) -> Any:
    """Return PyTorch's form. None: several fit."""
    forms = values["forms"][0]
    return forms[0] if len(forms) == 1 else None


def _sides(padding: Sequence[Sequence[int]]) -> str:
    """Return the argument of `ZeroPadding2D`, as short as it can be."""
    rows, columns = (tuple(pair) for pair in padding)
    if len({*rows, *columns}) == 1:
        return str(rows[0])
    return f"({rows[0]}, {columns[0]})" if rows[0] == rows[1] and columns[0] == columns[1] else f"({rows}, {columns})"


def _padding(values: _Values) -> str:
    if (form := _only(values)) is None:
        return ""
    padding, mode = form
    if not any(map(any, padding)):
        return 'write padding="valid"'
    if mode not in _PADDING_MODES:
        return ""
    rows, columns = padding
    layer = (
        f"ZeroPadding2D({_sides(padding)})"
        if mode == "zeros"
        else f'keras.ops.pad(x, [[0, 0], {[*rows]}, {[*columns]}, [0, 0]], mode="{mode}")'
    )
    return f'write {layer} before it and padding="valid" in it'


def _cut(values: _Values) -> str:
    padding = _only(values)
    if padding is None or not values.get("is_whole") or min(map(min, padding)) < 0:
        return ""
    cropped = f" and Cropping2D({_sides(padding)}) behind it" if any(map(any, padding)) else ""
    return f'write padding="valid"{cropped}'


def _activation(values: _Values) -> str:
    name = _only(values)
    name = name if name is None or isinstance(name, str) else name[0]
    if name == "no activation":
        return "leave the activation out"
    if name is not None and name.startswith("leaky ReLU, slope "):
        return f"write LeakyReLU(negative_slope={name.removeprefix('leaky ReLU, slope ')})"
    return f"write {_ACTIVATIONS[name]}" if name in _ACTIVATIONS else ""


def _pooling(values: _Values) -> str:
    form = _only(values)
    if form is None or len(form) > 2:  # Keras has no such padding
        return ""
    figure, window = form
    layer = {"maximum": "MaxPooling2D", "average": "AveragePooling2D"}[figure]
    return f'write {layer}({tuple(window)}, padding="valid") with the same strides'


def _epsilon(values: _Values) -> str:
    layer = _NORMALISATIONS.get(values.get("kind", ""))
    return f"write {layer}(epsilon={values['epsilon'][0]!r})" if layer else ""


def _momentum(values: _Values) -> str:
    stated = values.get("stated")
    return "" if stated is None else f"write BatchNormalization(momentum={1 - stated:.6g})"


def _batch_norm_mode(values: _Values) -> str:
    batch = values["batch"][0]
    if values["mode"] == "training":
        return "leave training=False and trainable=False out" if batch else "call the layer with training=False"
    return "call the layer with training=True" if batch else "leave training=True out"


def _bias(values: _Values, *, is_lacking: bool) -> str:
    """`is_lacking`: `one` is the model without the parameter."""
    argument = _ROLES.get(values["role"])
    return f"write {argument}={_in_keras(values) == is_lacking}" if argument else ""


def _dropout_in_inference(values: _Values) -> str:
    return "leave training=True out" if _in_keras(values) else "call the dropout with training=True"


def _dropout_in_training(values: _Values) -> str:
    return "leave the dropout out" if _in_keras(values) else f"write Dropout({values['rate']:.4g})"


def _dropped_channels(values: _Values) -> str:
    layers = ("Dropout", "SpatialDropout2D") if _in_keras(values) else ("SpatialDropout2D", "Dropout")
    return f"write {layers[0]} in the place of {layers[1]}"


def _softmax(values: _Values) -> str:
    if _in_keras(values):
        return "leave the softmax of the last layer out"
    return f'write activation="{"log_softmax" if values["returns"].startswith("log") else "softmax"}" in the last layer'


def _frozen(values: _Values) -> str:
    return "leave trainable=False out" if _in_keras(values) else "write trainable=False"


def _loss(values: _Values) -> str:
    ours, theirs = values["losses"]
    if ours == formulas.LOGITS_LOSS:
        return {
            formulas.PROBABILITIES_LOSS: "write from_logits=True in the loss",
            formulas.SUMMED_LOSS: 'write reduction="sum_over_batch_size" in the loss',
            formulas.SMOOTHED_LOSS: "leave label_smoothing out of the loss",
        }.get(theirs, "")
    if theirs != formulas.LOGITS_LOSS:
        return ""
    return {
        formulas.PROBABILITIES_LOSS: "write from_logits=False in the loss",
        formulas.SUMMED_LOSS: 'write reduction="sum" in the loss',
        formulas.SMOOTHED_LOSS: "write label_smoothing=0.1 in the loss",
    }.get(ours, "")


def _arguments(optimizers: Sequence[_Values], **names: str) -> str:
    """Return PyTorch's values of the settings that differ, as arguments of Keras's optimizer. `names`: Keras's by ours."""
    ours, theirs = optimizers
    return ", ".join(f"{name}={ours[key]!r}" for key, name in names.items() if ours.get(key) != theirs.get(key))


def _adam(values: _Values) -> str:
    arguments = _arguments(values["optimizers"], epsilon="epsilon")
    return f"write Adam({arguments})" if arguments else AcceptOption("add --accept adam-epsilon: Keras has no option for it")


def _rmsprop(values: _Values) -> str:
    arguments = _arguments(values["optimizers"], decay="rho", epsilon="epsilon")
    return f"write RMSprop({arguments})" if arguments else AcceptOption("add --accept rmsprop: Keras has no option for it")


def _weight_decay(values: _Values) -> str:
    ours, theirs = values["optimizers"]
    if not ours["weight_decay"]:
        return "" if theirs["coupled"] else "leave weight_decay out of the optimizer"
    return "" if ours["coupled"] else f"write weight_decay={ours['weight_decay']!r} in the optimizer"


def _learning_rate(values: _Values) -> str:
    ours, theirs = values["optimizers"]
    if ours["rule"] != theirs["rule"]:
        return ""
    names = {"learning_rate": "learning_rate", "momentum": "momentum", "nesterov": "nesterov"}
    arguments = _arguments(values["optimizers"], **names)
    return f"write {arguments} in the optimizer" if arguments else ""


_CORRECTIONS: dict[str, Callable[[_Values], str]] = {
    "bias-missing": lambda values: _bias(values, is_lacking=True),
    "bias-missing/parameter": lambda values: _bias(values, is_lacking=False),
    "data-format/axis": lambda values: "write axis=-1" if values["axis"][0] == -1 else "",
    "data-format/shape": lambda values: "write axis=-1",
    "padding": _padding,
    "padding/cut": _cut,
    "activation": _activation,
    "activation/addition": _activation,
    "pooling": _pooling,
    "interpolation": lambda values: (
        f'write interpolation="{_only(values)}"' if _only(values) in ("nearest", "bilinear") else ""
    ),
    "epsilon": _epsilon,
    "batch-norm-mode": _batch_norm_mode,
    "dropout-active/inference": _dropout_in_inference,
    "dropout-active/training": _dropout_in_training,
    "dropout-rate": lambda values: f"write Dropout({values['rates'][0]:.4g})",
    "dropout-rate/channels": _dropped_channels,
    "softmax-output": _softmax,
    "batch-norm-momentum": _momentum,
    "batch-norm-momentum/complement": _momentum,
    "biased-variance": lambda values: AcceptOption("add --accept biased-variance: Keras has no option for it"),
    "frozen": _frozen,
    "label-encoding/outputs": lambda values: f"write units={values['outputs'][0]} in the last layer",
    "loss": _loss,
    "adam-epsilon": _adam,
    "rmsprop": _rmsprop,
    "weight-decay": _weight_decay,
    "weight-decay/regularizer": lambda values: "leave kernel_regularizer out" if _in_keras(values) else "",
    "learning-rate": _learning_rate,
}
"""Correction by the cause's name, and by its variant."""
