"""Differences between two recordings, each relative to a scale that fits it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from common.models.architectures import Architecture
from common.spec import Spec
from common.training.tracing import group
from compare.cli.differences import absolute
from compare.proof.certificate import Rung

Arrays = dict[str, npt.NDArray[Any]]
UNRECORDED_GRADIENT_NOISE = 1e-14
"""Rounding in gradients of a mode, which are not recorded, relative to the model's largest gradient."""


def compare_parameters(architecture: Architecture, ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    """Return (0 if names, shapes, count and initial values are equal, else infinity; the first parameter that differs)."""
    for parameter in architecture.parameters():
        name = f"initial/{parameter.name}"
        for arrays in (ours, theirs):
            if name not in arrays or arrays[name].shape != parameter.shape:
                return math.inf, parameter.name
            if parameter.trainable != (f"gradient/{parameter.name}" in arrays):
                return math.inf, parameter.name
        if not np.array_equal(ours[name], theirs[name]):
            return math.inf, parameter.name
    values = [parameter.size for parameter in architecture.parameters()]
    trainable = [parameter.size for parameter in architecture.parameters() if parameter.trainable]
    if any(arrays["num_values"].tolist() != [sum(values), sum(trainable)] for arrays in (ours, theirs)):
        return math.inf, "number of values"
    for prefix in ("initial/", "gradient/"):
        if group(ours, prefix).keys() != group(theirs, prefix).keys():
            return math.inf, "names"
    return 0.0, None


def update_difference(spec: Spec, limit: float, ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    """Return (largest difference of the weights after one step, relative to the largest update; its parameter)."""
    gradients = group(ours, "gradient/")
    largest_gradient = max(float(np.abs(gradient).max()) for gradient in gradients.values())
    largest_update = max(float(np.abs(ours[f"stepped/{name}"] - ours[f"initial/{name}"]).max()) for name in gradients)
    differences: list[tuple[float, str]] = []
    for name, gradient in gradients.items():
        difference = absolute(ours[f"stepped/{name}"], theirs.get(f"stepped/{name}"))
        if spec.optimizer.name == "adam" and difference.shape == gradient.shape:
            # Adam's first direction is g / (|g| + epsilon), where g includes the weight decay. If g moves by d, it moves by at
            # most d / 4|g|. So it must agree wherever g is well above rounding. The gradient of a bias before BatchNorm is
            # only rounding, and has no direction.
            is_bias, other = name.endswith(".bias"), theirs.get(f"gradient/{name}")
            noise = UNRECORDED_GRADIENT_NOISE * largest_gradient if other is None else float(absolute(gradient, other).max())
            direction = gradient + spec.optimizer.weight_decay * ours[f"initial/{name}"]
            is_judged = np.abs(direction) * limit >= noise
            if not is_judged.any() and not is_bias and direction.any():
                return math.inf, name  # nothing of it would be compared
            difference = difference[is_judged] if direction.any() else difference  # a parameter that must not move
        differences.append((on_scale(difference.max(initial=0.0), largest_update), name))
    return largest_difference(differences)


def statistics_difference(ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    """Return (largest difference of BatchNorm statistics, relative to the largest mean or variance; its name)."""
    trained = group(ours, "gradient/")
    statistics = {name: array for name, array in group(ours, "stepped/").items() if name not in trained}
    largest: dict[str, float] = {}
    for name, array in statistics.items():
        role = name.rpartition(".")[2]
        largest[role] = max(largest.get(role, 0.0), float(np.abs(array).max()))
    return largest_difference(
        [
            (on_scale(absolute(array, theirs.get(f"stepped/{name}")).max(), largest[name.rpartition(".")[2]]), name)
            for name, array in statistics.items()
        ]
    )


def difference_to_largest(ours: Arrays, theirs: Arrays) -> tuple[float, str | None]:
    """Return (largest difference of all arrays, relative to the largest value of all; the name of its array)."""
    scale = max(float(np.abs(array).max()) for array in ours.values())
    return largest_difference([(on_scale(absolute(ours[name], theirs.get(name)).max(), scale), name) for name in ours])


def scaled_difference(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    """Return the largest difference, relative to the largest value of `ours`."""
    return on_scale(absolute(ours, theirs).max(), float(np.abs(ours).max()))


def on_scale(difference: float, scale: float) -> float:
    """Divide a difference by a scale. Infinite if the scale is zero or not finite, because that compares nothing."""
    return float(difference) / scale if scale > 0.0 and math.isfinite(scale) else math.inf


def largest_difference(differences: list[tuple[float, str]]) -> tuple[float, str | None]:
    return max(differences, default=(math.inf, None))


def make_rung(
    spec: Spec, number: int, aspect: str, difference: float, where: str | None, tolerance: float, reason: str, **fields: Any
) -> Rung:
    """Make a rung about one step. It passes if its difference is a number within the tolerance."""
    values: dict[str, Any] = {"steps": 1, "step": None, "status": "passed" if difference <= tolerance else "failed", **fields}
    name = f"{number} {aspect}"
    if number == 6:
        name = f"6 {spec.variant} against serial" + f": {aspect}" * (aspect != "losses")
    elif number == 8:
        name = f"8 one step in {spec.precision}: {aspect}"
    return Rung(
        name=name,
        number=number,
        aspect=aspect,
        mode=spec.variant if spec.is_parallel else None,
        model=spec.model_label,
        optimizer=spec.optimizer.name,
        precision=spec.precision,
        max_relative_difference=difference,
        where=where,
        tolerance=tolerance,
        reason=reason,
        **values,
    )
