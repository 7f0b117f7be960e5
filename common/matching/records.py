"""What `match` asks a twin, and what the twin answers. Arrays travel in safetensors files."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from common.frozen import Frozen

Array = npt.NDArray[Any]

RULES = ("sgd", "adam")
"""Optimizers of the updates and steps, unless users bring their own."""
OWN_RULE = "own"
LEARNING_RATE, MOMENTUM = {"sgd": 0.05, "adam": 1e-3}, 0.9
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
SEED = 0
FEW = 4
"""Images of a pass with values that reach far."""
FAR_WEIGHTS, FAR_IMAGES = 8.0, (0.01, 0.0, 255.0, -255.0)
"""Factors of weights, and of images in 0..1: dark, black, of raw pixels, and negative."""
DARKER = np.array([1, 3, 100, 255], np.uint8)
"""By which the images of one pass are divided. The last one is black."""
IMAGE = "the image"
"""In `Layer.fed_by`."""
JITTERS = {"float64": 1e-14, "float32": 2.0**-24}
"""By type: a relative change of weights and images that is as large as its rounding. Of float64 a hundred times."""


class Ask(Frozen):
    """One model to open. Names are `package.module:name`."""

    model: str
    image: tuple[int, int, int]
    """Height, width, channels."""
    classes: int
    steps: int = 20
    weights: str | None = None
    """A file of the framework's own."""
    prepare: str | None = None
    """Turns uint8 images [N, H, W, C] into what the model takes."""
    loss: str | None = None
    """Loss of outputs and labels, in the framework's own order of arguments."""
    optimizer: str | None = None
    """Makes an optimizer as users of the framework do."""

    @property
    def batch(self) -> int:
        """Images of a step. The values of all layers are kept, so large images are few."""
        return 16 if self.image[0] * self.image[1] <= 64 * 64 else 4

    @property
    def hint(self) -> str:
        """What else to look at if the model fails."""
        return f" It was given images of --input {'x'.join(map(str, self.image))}: does it take these?"

    @property
    def rules(self) -> tuple[str, ...]:
        return (OWN_RULE,) if self.optimizer else RULES


class Layer(Frozen):
    """One call of a layer. Sizes, shapes and settings have one form for all frameworks: images are NHWC."""

    name: str
    kind: str
    """conv, dense, batch_norm, activation, max_pool, ...; `other` compares by its values alone."""
    settings: dict[str, Any] = {}
    where: str | None = None
    """File and line of the user's code that made it (a function: that called it)."""
    parameters: dict[str, list[int]] = {}
    """Role (kernel, bias, gamma, beta, mean, variance) to canonical shape."""
    output: list[int] = []
    """Shape of one example."""
    dtype: str = ""
    """Of its output."""
    flattened: str | None = None
    """Order of the flattened image in front of it: `hwc`, `chw`, or None."""
    inputs: int = 1
    """Tensors that it takes. Values are kept of the first alone."""
    fed_by: list[str] = []
    """Names of the calls whose outputs it takes, joined in this order. IMAGE is the model's input. Empty: not known."""


class Opened(Frozen):
    """What a twin knows of a model once it has run."""

    layers: list[Layer]
    """In order of execution, in inference mode."""
    outputs: list[int]
    """Shape of the model's output for one example."""
    where: str | None
    """File and line of the model itself."""
    unrecorded: bool = False
    """Whether the model calls functions that are not recorded."""


class Model(Protocol):
    """One framework's side of a match: a user's model, built and run once. Parameters are named `layer.role`."""

    opened: Opened

    def parameters(self) -> dict[str, Array]:
        """All parameters and running statistics, in canonical form."""
        ...

    def load(self, parameters: dict[str, Array]) -> None:
        """Set parameters, given in canonical form."""
        ...

    def forward(self, images: Array, *, training: bool) -> tuple[list[Layer], list[tuple[Array, Array]], Array]:
        """Layers in order of execution, (input, output) of each, and the model's output."""
        ...

    def gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Array]]:
        """(loss, gradients) in training mode."""
        ...

    def start(self, rule: str) -> dict[str, Any]:
        """Begin a training with a rule of `Ask.rules`. Returns the optimizer's settings, by names that all frameworks share."""
        ...

    def step(self, images: Array, labels: Array) -> float:
        """One update. Returns the loss before it."""
        ...


def images(ask: Ask, step: int = 0) -> tuple[Array, Array]:
    """(images, labels) of a step: float64 [N, H, W, C] in 0..1, or uint8 if the user prepares them."""
    generator = np.random.default_rng([SEED, step])
    shape = (ask.batch, *ask.image)
    pixels = generator.integers(0, 256, shape, np.uint8) if ask.prepare else generator.random(shape)
    return pixels, generator.integers(0, ask.classes, ask.batch)


def _mixed(pixels: Array) -> Array:
    """Each image darker than the one before, the last one black: a model may look at the whole batch."""
    darker = np.resize(DARKER, len(pixels)).reshape(-1, 1, 1, 1)
    return pixels // darker if pixels.dtype == np.uint8 else pixels * (255.0 / darker) * (darker < DARKER[-1])


def far(ask: Ask) -> dict[str, tuple[float, Array]]:
    """By words: (factor of the weights, a few images), so that values reach where functions saturate and conditions turn.

    Running statistics are no weights. Images that the user prepares stay uint8, so they only become dark, black and white.
    """
    pixels = images(ask)[0][:FEW]
    forms = {"images as they are": pixels, "images of mixed brightness": _mixed(pixels)}
    if ask.prepare:
        forms |= {"dark images": pixels // 100, "black images": pixels * 0, "white images": pixels * 0 + 255}
    else:
        forms |= {f"images times {factor:g}": pixels * factor for factor in FAR_IMAGES}
    weights = {"weights as they are": 1.0, f"weights times {FAR_WEIGHTS:g}": FAR_WEIGHTS}
    pairs = {f"{what}, {words}": (factor, each) for what, factor in weights.items() for words, each in forms.items()}
    return dict([*pairs.items()][1:])  # the first is the ordinary rung
