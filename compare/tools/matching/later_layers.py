"""Causes in layers behind the first that differ. There inputs differ too, so each layer is judged alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from common.matching.records import Array, Layer
from compare.tools.matching import formulas
from compare.tools.matching.causes import Cause
from compare.tools.matching.divergence import Divergence
from compare.tools.matching.formulas import max_relative_difference

_NO_PADDING = [[0, 0], [0, 0]]
SETTINGS_OF_CAUSE = {
    "padding": ("padding", "padding_mode"),
    "epsilon": ("epsilon",),
    "batch-norm-momentum": ("momentum",),
}
"""Settings of a layer that a cause is about."""
_JUDGED = {
    "conv": "padding",
    "depthwise_conv": "padding",
    "batch_norm": "epsilon",
    "layer_norm": "epsilon",
    "group_norm": "epsilon",
}
"""Cause that is tried out, by kind of layer."""
_SHARED = ("kernel", "stride", "dilation", "groups", "axis")
"""Settings that must be equal, so that nothing else differs."""


def explain_later_layers(divergence: Divergence) -> list[Cause]:
    """Return causes in layers that run behind the first that differ.

    A cause is verified if each layer, computed with what it states, gives its own output from its own input. Its size is the
    difference that it makes from the left layer's input.
    """
    if divergence.layers is None:
        return []
    left, right = (side.layers[divergence.mode] for side in divergence.sides)
    names = list(left)
    causes: list[Cause] = []
    for name in names[names.index(divergence.layers[0].name) + 1 :]:
        other = divergence.pairs.get(name)
        if other is not None and other in right and (cause := _explain_alone(divergence, left[name], right[other])):
            causes.append(cause)
    return causes


def _explain_alone(divergence: Divergence, ours: Layer, theirs: Layer) -> Cause | None:
    """Return the cause of a difference between two layers that takes nothing of what differs in front of them."""
    name, both = _JUDGED.get(ours.kind), (ours.settings, theirs.settings)
    if name is None or ours.kind != theirs.kind:
        return None
    keys = SETTINGS_OF_CAUSE[name]
    if all(ours.settings.get(key) == theirs.settings.get(key) for key in keys):
        return None
    if any(key not in settings for settings in both for key in keys):
        return None
    if any(ours.settings.get(key) != theirs.settings.get(key) for key in _SHARED):
        return None
    layers = (ours, theirs)
    measured = [side.values(divergence.mode, layer.name) for side, layer in zip(divergence.sides, layers, strict=True)]
    if measured[0][0].shape != measured[1][0].shape:
        return None  # one model pads in front
    parameters = [side.parameters(layer.name) for side, layer in zip(divergence.sides, layers, strict=True)]
    for batch in (False, True):
        errors = [
            max_relative_difference(_computed(layer.kind, x, arrays, layer.settings, batch=batch), y)
            for layer, arrays, (x, y) in zip(layers, parameters, measured, strict=True)
        ]
        if max(errors) <= formulas.CLOSE:
            break
    else:
        return None
    x, y = measured[0]
    changed = {**ours.settings, **{key: theirs.settings[key] for key in keys}}
    size = max_relative_difference(_computed(ours.kind, x, parameters[0], changed, batch=batch), y)
    if size <= formulas.CLOSE or not math.isfinite(size):
        return None
    where = ", ".join(filter(None, (ours.where, theirs.where)))
    return Cause(name, {**divergence.named(), **_facts(name, layers)}, where, max(errors), "", size, ours.name)


def _computed(kind: str, x: Array, parameters: Mapping[str, Array], settings: Mapping[str, Any], *, batch: bool) -> Array:
    """Compute a layer of `_JUDGED`. `batch`: with the statistics of this batch."""
    if "padding" not in settings:
        return formulas.normalisation(kind, x, parameters, settings["epsilon"], settings.get("groups", 1), batch=batch)
    padded = formulas.pad(x, settings["padding"], settings["padding_mode"])
    kernel, bias = parameters["kernel"], parameters.get("bias")
    return formulas.convolution(padded, kernel, bias, settings, _NO_PADDING, kind == "depthwise_conv")


def _facts(name: str, layers: tuple[Layer, Layer]) -> dict[str, Any]:
    if name == "padding":
        return {"forms": [[[layer.settings["padding"], layer.settings["padding_mode"]]] for layer in layers]}
    epsilons = [layer.settings["epsilon"] for layer in layers]
    return {"layers": [layer.name for layer in layers], "kind": layers[0].kind, "epsilon": epsilons}
