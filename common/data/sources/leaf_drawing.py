"""The drawing of synthetic leaves.

A class is a plant (outline, veins, green) with a condition (spots with their colour, rim and halo). The look of a class is
fixed. The generator draws what differs between its images. Pixels come from additions, multiplications, divisions and square
roots alone. IEEE 754 rounds these the same on all machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CONDITIONS_PER_PLANT = 4
_MAX_SPOTS_ACROSS = 12

_Array = NDArray[np.floating[Any]]
_Colour = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class _Plant:
    """Outline and colour. Over the axis x, from stem -1 to tip 1, the half width of a leaf is `width` times a curve."""

    width: float
    roundness: float
    """Roundness in 0..1. 0: pointed at both ends. 1: an ellipse."""
    lean: float
    """Position of the widest part. Positive: towards the tip. Negative: towards the stem."""
    teeth: float
    teeth_depth: float
    veins: float
    green: _Colour


@dataclass(frozen=True, kw_only=True)
class _Condition:
    name: str
    spots_across: float
    """Number of spots that fit along a leaf. At most `_MAX_SPOTS_ACROSS`."""
    density: float
    """Fraction of the cells that hold a spot, on average."""
    centre: _Colour = (0, 0, 0)
    rim: _Colour = (0, 0, 0)
    halo: _Colour = (0, 0, 0)
    halo_width: float = 0.0
    """Width of the halo in radii of the spot."""
    softness: float = 0.3
    """Fraction of its radius over which a spot fades out."""


_HEALTHY = _Condition(name="healthy", spots_across=8, density=0.03, centre=(120, 110, 60), rim=(120, 110, 60))
_CONDITIONS = (
    _Condition(
        name="Brown_spot",
        spots_across=6,
        density=0.4,
        centre=(122, 78, 42),
        rim=(92, 56, 32),
        halo=(190, 180, 80),
        halo_width=0.3,
    ),
    _Condition(name="Rust", spots_across=11, density=0.5, centre=(205, 112, 38), rim=(165, 84, 36)),
    _Condition(name="Powdery_mildew", spots_across=5, density=0.5, centre=(228, 232, 224), rim=(206, 214, 200), softness=0.9),
    _Condition(
        name="Black_rot", spots_across=4, density=0.4, centre=(62, 46, 40), rim=(40, 32, 30), halo=(110, 82, 52), halo_width=0.2
    ),
    _Condition(name="Yellow_mosaic", spots_across=7, density=0.55, centre=(206, 208, 84), rim=(170, 186, 72), softness=0.7),
    _Condition(
        name="Ring_spot",
        spots_across=5,
        density=0.4,
        centre=(196, 186, 150),
        rim=(74, 44, 40),
        halo=(176, 176, 88),
        halo_width=0.15,
    ),
    _Condition(name="Leaf_blight", spots_across=3, density=0.5, centre=(150, 112, 70), rim=(118, 84, 50), softness=0.5),
)
_PLANTS = (
    "Alder", "Beech", "Cherry", "Dogwood", "Elm", "Fig", "Grape", "Hazel", "Ivy", "Jasmine", "Kiwi", "Laurel",
    "Maple", "Nettle", "Oak", "Pear", "Quince", "Rose", "Spinach", "Tomato", "Umbrella_tree", "Vetch", "Walnut", "Yam",
)  # fmt: skip


def class_name(label: int) -> str:
    """Return the class name `Plant___condition`, e.g. `Alder___Brown_spot`. Class ids do not follow the order of names."""
    plant, condition_index = divmod(label, _CONDITIONS_PER_PLANT)
    name = _PLANTS[plant] if plant < len(_PLANTS) else f"Plant_{plant + 1}"
    return f"{name}___{_condition(plant, condition_index).name}"


def draw_leaves(label: int, count: int, size: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Draw images of one class: uint8 [count, size, size, 3]."""
    plant_number, condition_index = divmod(label, _CONDITIONS_PER_PLANT)
    plant, condition = _plant(plant_number), _condition(plant_number, condition_index)

    def uniform(low: float, high: float) -> _Array:
        """Draw one value for each image, [count, 1, 1]."""
        return (low + (high - low) * generator.random((count, 1, 1))).astype(np.float32)

    # From pixels to leaf coordinates: shifted, rotated by half-angle formulas, scaled.
    axis = ((2 * np.arange(size) + 1) / size - 1).astype(np.float32)
    across, down = axis[np.newaxis, np.newaxis] - uniform(-0.12, 0.12), axis[np.newaxis, :, np.newaxis] - uniform(-0.12, 0.12)
    half, scale = uniform(-1, 1), uniform(0.75, 0.98)
    cosine, sine = (1 - half * half) / (1 + half * half) / scale, 2 * half / (1 + half * half) / scale
    x, y = cosine * across + sine * down, cosine * down - sine * across
    side = np.abs(y)

    # Coverage of blade and stem, softened over one pixel.
    along = np.maximum(1 - x * x, 0)
    outline = (plant.width * uniform(0.85, 1.15)) * (along + plant.roundness * (np.sqrt(along) - along))
    outline *= (1 + plant.lean * x) * (1 - plant.teeth_depth * _triangle(x * plant.teeth + uniform(0, 1)))
    pixels = scale * np.float32(size / 2)
    blade = _unit((outline - side) * pixels + 0.5) * _unit((1 - np.abs(x)) * pixels + 0.5)
    stem = _unit((0.03 - side) * pixels + 0.5) * _unit((x + 1.25) * pixels) * (x < -0.9)
    leaf = np.maximum(blade, stem)

    # Light: a lit and a shaded half, veins, and a little unevenness.
    light = uniform(0.80, 1.15) * (1 + uniform(-0.12, 0.12) * np.sign(y))
    vein = np.maximum(
        _unit(1 - side / 0.035), 0.5 * _unit(1 - 6 * np.abs(_triangle((x - 0.8 * side) * plant.veins) - 1)) * (along > 0)
    )
    light = light * (1 + 0.22 * vein + 0.05 * _triangle(x * uniform(0.5, 1.5) + y * uniform(-1.5, 1.5)))

    centre, rim, halo = _spots(condition, x, y, generator, uniform)
    background, grain = 1 - leaf, generator.random((count, size, size), np.float32) * 12 - 6
    healthy = leaf * light * (1 - centre - rim - halo)
    centre, rim, halo = (leaf * light * layer for layer in (centre, rim, halo))
    ground = uniform(90, 200) * (1 + uniform(-0.15, 0.15) * across + uniform(-0.15, 0.15) * down)
    images = np.empty((count, size, size, 3), np.uint8)
    for channel in range(3):
        colour = ground * uniform(0.94, 1.06) * background
        colour += plant.green[channel] * uniform(0.88, 1.12) * healthy
        for layer, colours in ((centre, condition.centre), (rim, condition.rim), (halo, condition.halo)):
            colour += np.float32(colours[channel]) * layer
        colour += grain
        images[..., channel] = np.clip(colour, 0, 255)
    return images


def _plant(number: int) -> _Plant:
    """Return a plant. Width and roundness step through evenly spaced values, so that neighbours differ clearly."""
    draws = iter(np.random.Generator(np.random.Philox(key=number)).random(8).tolist())

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * next(draws)

    return _Plant(
        width=0.30 + 0.40 * (number * 5 % 8) / 7,
        roundness=(number * 3 % 5) / 4,
        lean=uniform(-0.35, 0.25),
        teeth=uniform(3.0, 12.0),
        teeth_depth=0.0 if number % 3 == 0 else uniform(0.10, 0.30),
        veins=uniform(3.0, 7.0),
        green=(uniform(62, 112), uniform(112, 150), uniform(48, 78)),
    )


def _condition(plant: int, index: int) -> _Condition:
    """Return a condition of a plant. Each plant can be healthy, and has some of the other conditions in turn."""
    return _HEALTHY if index == 0 else _CONDITIONS[(plant * (_CONDITIONS_PER_PLANT - 1) + index - 1) % len(_CONDITIONS)]


def _spots(
    condition: _Condition, x: _Array, y: _Array, generator: np.random.Generator, uniform: Callable[[float, float], _Array]
) -> tuple[_Array, _Array, _Array]:
    """Return the fraction of each pixel that is a spot's centre, rim and halo, 0..1.

    A lattice of cells covers the leaf. Each cell holds at most one spot, which does not leave it. So the cost of a pixel does
    not grow with the number of spots.
    """
    count = len(x)
    cells = _MAX_SPOTS_ACROSS
    frequency = condition.spots_across / 2 * uniform(0.85, 1.1)
    column, row = x * frequency + uniform(5, 6), y * frequency + uniform(5, 6)
    left, top = np.floor(column), np.floor(row)
    cell = (np.clip(left, 0, cells - 1) * cells + np.clip(top, 0, cells - 1)).astype(np.intp).reshape(count, -1)

    def uniform_by_cell(low: float, high: float) -> _Array:
        """Draw one value for each cell, and look it up for each pixel."""
        draws = (low + (high - low) * generator.random((count, cells * cells))).astype(np.float32)
        return np.take_along_axis(draws, cell, axis=1).reshape(x.shape)

    density = condition.density * uniform(0.3, 1.7)
    radius = uniform_by_cell(0.18, 0.5)
    radius = np.where(uniform_by_cell(0, 1) < density, radius, np.float32(1e-3)) / (1 + condition.halo_width)
    margin = 0.5 - radius * (1 + condition.halo_width)
    dx, dy = column - left - 0.5 - margin * uniform_by_cell(-1, 1), row - top - 0.5 - margin * uniform_by_cell(-1, 1)
    distance = np.sqrt(dx * dx + dy * dy) / radius * (1 + 0.2 * _triangle(column - 1.3 * row))  # not quite round
    spot = _unit((1 - distance) / np.float32(condition.softness))
    centre = spot * _unit(1.6 - 1.6 * distance)
    halo = (1 - spot) * _unit((1 + condition.halo_width - distance) * 8) if condition.halo_width else np.zeros_like(spot)
    return centre, spot - centre, halo


def _triangle(values: _Array) -> _Array:
    """Return a triangle wave of period 1, from 1 at whole numbers down to -1 and up again."""
    return np.abs(4 * (values - np.floor(values)) - 2) - 1


def _unit(values: _Array) -> _Array:
    return np.clip(values, 0, 1)
