"""Requests of `match` to a twin, and the twin's answers. Arrays are passed in safetensors files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from common.frozen import Frozen

Array = npt.NDArray[Any]

RULES = ("sgd", "adam")
"""Optimizers of the compared updates, unless users bring their own."""
OWN_RULE = "own"
LEARNING_RATE, MOMENTUM = {"sgd": 0.05, "adam": 1e-3}, 0.9
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
SEED = 0
STRESS_BATCH = 4
"""Number of images in a pass of `stress_inputs`."""
STRESS_WEIGHT_FACTOR, STRESS_IMAGE_FACTORS = 8.0, (0.01, 0.0, 255.0, -255.0)
"""Factors on weights, and on images in 0..1: dark, black, raw pixels, and negative."""
BRIGHTNESS_DIVISORS = np.array([1, 3, 100, 255], np.uint8)
"""Divisors of the images of one pass. The last image is black."""
IMAGE = "the image"
"""Name of the model's input in `Layer.fed_by`."""
ROUNDING_JITTERS = {"float64": 1e-14, "float32": 2.0**-24}
"""Relative change of weights and images by dtype, as large as its rounding; for float64 a hundred times that."""


class OpenRequest(Frozen):
    """One model to open. Names are `package.module:name`."""

    model: str
    image: tuple[int, int, int]
    """Height, width, channels."""
    classes: int
    steps: int = 20
    weights: str | None = None
    """File of weights in the framework's own format."""
    prepare: str | None = None
    """Function from uint8 images [N, H, W, C] to the model's input."""
    loss: str | None = None
    """Loss function of outputs and labels, in the framework's own order of arguments."""
    optimizer: str | None = None
    """Function that builds an optimizer as users of the framework do."""
    data: str | None = None
    """File of a user's images and labels, see `write_images`. None: random ones."""
    data_name: str | None = None
    """Name of the user's data."""

    @property
    def batch(self) -> int:
        """Number of images in a step. The values of all layers are kept, so batches of large images are small."""
        return 16 if self.image[0] * self.image[1] <= 64 * 64 else 4

    @property
    def hint(self) -> str:
        """Sentence that says what else to check if the model fails."""
        return f" It was given images of --input {'x'.join(map(str, self.image))}: does it take these?"

    @property
    def rules(self) -> tuple[str, ...]:
        return (OWN_RULE,) if self.optimizer else RULES


class Layer(Frozen):
    """One call of a layer. Sizes, shapes and settings have the same form in all frameworks: images are NHWC."""

    name: str
    kind: str
    """Kind: conv, dense, batch_norm, activation, max_pool, ...; `other` is compared by its values alone."""
    settings: dict[str, Any] = {}
    where: str | None = None
    """File and line of the user's code that created the layer, or called the function."""
    parameters: dict[str, list[int]] = {}
    """Canonical shape by role (kernel, bias, gamma, beta, mean, variance)."""
    output: list[int] = []
    """Output shape of one example."""
    dtype: str = ""
    """Dtype of the output."""
    flattened: str | None = None
    """Order of the flattened image that is its input: `hwc`, `chw`, or None."""
    inputs: int = 1
    """Number of input tensors. Values are kept of the first only."""
    fed_by: list[str] = []
    """Names of the calls whose outputs it takes, concatenated in this order. IMAGE is the model's input. Empty: not known."""


class ModelReport(Frozen):
    """Description of a model, made after a pass through it."""

    layers: list[Layer]
    """Layers in order of execution, in inference mode."""
    outputs: list[int]
    """Shape of the model's output for one example."""
    where: str | None
    """File and line of the model."""
    unrecorded: bool = False
    """Whether the model calls functions that are not recorded."""


class MatchModel(Protocol):
    """A user's model in one framework, built and run once. Parameters are named `layer.role`."""

    report: ModelReport

    def parameters(self) -> dict[str, Array]:
        """Return all parameters and running statistics, in canonical form."""
        ...

    def load(self, parameters: dict[str, Array]) -> None:
        """Set parameters, given in canonical form."""
        ...

    def forward(self, images: Array, *, training: bool) -> tuple[list[Layer], list[tuple[Array, Array]], Array]:
        """Return layers in order of execution, (input, output) of each, and the model's output."""
        ...

    def gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Array]]:
        """Return (loss, gradients) in training mode."""
        ...

    def start(self, rule: str) -> dict[str, Any]:
        """Begin training with a rule of `OpenRequest.rules`. Returns the optimizer's settings, by names common to all twins."""
        ...

    def step(self, images: Array, labels: Array) -> float:
        """Do one update. Returns the loss before it."""
        ...


def write_images(pixels: Array, labels: Array, path: Path) -> None:
    """Write a user's images, uint8 [N, H, W, C], and labels, int64 [N]."""
    safetensors.numpy.save_file({"images": pixels, "labels": labels}, path)


@functools.cache
def read_images(path: str) -> tuple[Array, Array]:
    """Read what `write_images` has written."""
    arrays = safetensors.numpy.load_file(path)
    return arrays["images"], arrays["labels"]


def images(request: OpenRequest, step: int = 0) -> tuple[Array, Array]:
    """Return (images, labels) of a step: float64 [N, H, W, C] in 0..1, or uint8 if the user prepares them.

    They are drawn, or the next ones of the user's data, which begin again at their end.
    """
    if request.data is not None:
        pixels, labels = read_images(request.data)
        rows = np.arange(step * request.batch, (step + 1) * request.batch) % len(labels)
        return pixels[rows] if request.prepare else pixels[rows] / 255.0, labels[rows]
    generator = np.random.default_rng([SEED, step])
    shape = (request.batch, *request.image)
    pixels = generator.integers(0, 256, shape, np.uint8) if request.prepare else generator.random(shape)
    return pixels, generator.integers(0, request.classes, request.batch)


def _darken_progressively(pixels: Array) -> Array:
    """Darken each image more than the one before, the last one to black: a model may normalise over the batch."""
    divisors = np.resize(BRIGHTNESS_DIVISORS, len(pixels)).reshape(-1, 1, 1, 1)
    return (
        pixels // divisors if pixels.dtype == np.uint8 else pixels * (255.0 / divisors) * (divisors < BRIGHTNESS_DIVISORS[-1])
    )


def stress_inputs(request: OpenRequest) -> dict[str, tuple[float, Array]]:
    """Return (factor on the weights, a few images) by description. They make functions saturate and conditions change.

    The factor does not apply to running statistics. Images that the user prepares stay uint8, so they only become dark, black
    and white.
    """
    pixels = images(request)[0][:STRESS_BATCH]
    batches = {"images as they are": pixels, "images of mixed brightness": _darken_progressively(pixels)}
    if request.prepare:
        batches |= {"dark images": pixels // 100, "black images": pixels * 0, "white images": pixels * 0 + 255}
    else:
        batches |= {f"images times {factor:g}": pixels * factor for factor in STRESS_IMAGE_FACTORS}
    weights = {"weights as they are": 1.0, f"weights times {STRESS_WEIGHT_FACTOR:g}": STRESS_WEIGHT_FACTOR}
    pairs = {
        f"{weight_words}, {image_words}": (factor, batch)
        for weight_words, factor in weights.items()
        for image_words, batch in batches.items()
    }
    return dict([*pairs.items()][1:])  # the first is the ordinary rung
