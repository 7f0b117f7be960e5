"""The groups of fields of a spec."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from common.frozen import Finite
from common.spec.effects import Keeps
from common.spec.names import MOST_EPOCHS, MOST_IMAGES, MOST_MICRO_BATCHES, MOST_REPLICAS, MOST_STEPS

_NO_NUL = r"^[^\x00]*$"
"""Pattern of paths: the system accepts none with a NUL."""


class Data(Finite):
    source: Annotated[str, Keeps("work", is_in_data_hash=True)] = Field(
        "digits", min_length=1, pattern=_NO_NUL, coerce_numbers_to_str=True
    )
    """One of `sources.NAMES` (`leaves` takes settings), or the path of an image folder or of an archive of one."""
    image_size: Annotated[int | None, Keeps(is_in_data_hash=True)] = Field(None, ge=1, le=4096)
    """Height and width in pixels. Images are resized once, when cached. None: their own size."""
    limit: Annotated[int | None, Keeps("step", is_in_data_hash=True)] = Field(None, ge=1, le=MOST_IMAGES)
    """Number of training examples to keep, by a seeded draw. Validation and test shrink in proportion."""
    on_bad: Annotated[Literal["strict", "skip"], Keeps(is_in_data_hash=True)] = "strict"
    """Action on files that are not usable images: refuse the data, or leave them out in all frameworks alike."""
    duplicates: Annotated[Literal["refuse", "allow"], Keeps(is_in_data_hash=True)] = "refuse"
    """Whether images with equal pixels may be in two splits."""
    loading: Annotated[Literal["cached", "streaming"], Keeps()] = "cached"
    """Training images come from the decoded cache, or each framework decodes their files itself at every epoch."""
    drawn_part: Annotated[float, Keeps(is_in_data_hash=True)] = Field(0.1, gt=0, le=0.5)
    """Fraction of the training images for each split that the data lacks. Each class has at least one image in it."""
    normalization: Annotated[Literal["none", "half", "dataset", "imagenet"], Keeps()] = "none"
    """Per channel, after division by 255: nothing, or (pixel - mean) / standard deviation: 0.5 and 0.5, or those of the
    training split or of ImageNet."""
    seed: Annotated[int | None, Keeps("step", is_in_data_hash=True)] = Field(None, ge=0, lt=2**63)
    """Seed of drawn splits and of the limit. None: the run's own seed."""


class Optimizer(Finite):
    name: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = Field(0.05, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    """SGD only."""
    beta_1: float = Field(0.9, ge=0, lt=1)
    """Adam only."""
    beta_2: float = Field(0.999, ge=0, lt=1)
    """Adam only."""
    epsilon: float = Field(1e-8, gt=0)
    """Adam only. Added after the bias correction, as in the paper and in PyTorch."""
    weight_decay: float = Field(0.0, ge=0)
    """Coupled: added to the gradient, as the L2 penalty weight_decay / 2 * |w|^2 would."""
    native: bool = False
    """Use the framework's own optimizer instead of the shared update rule. The twins then differ."""


class Schedule(Finite):
    name: Literal["constant", "step", "exponential", "cosine"] = "constant"
    step_size: int = Field(10, ge=1, le=MOST_EPOCHS)
    """`step`: epochs between two drops."""
    gamma: float = Field(0.1, gt=0, le=1)
    """`step`: factor at each drop; `exponential`: factor at each epoch."""
    warmup_steps: int = Field(0, ge=0, le=MOST_STEPS)
    """Steps over which the learning rate rises linearly to its full value."""
    scaling: Literal["none", "linear", "sqrt"] = "none"
    """Factor on the learning rate from the number R of replicas that share the batch: 1, R, or the square root of R."""


class Augmentation(Finite):
    horizontal_flip: bool = False
    """Mirror each training image left to right with probability 1/2."""
    shift_px: int = Field(0, ge=0, le=4096)
    """Shift each training image by up to this many pixels both ways, zeros moving in: a padded random crop."""
    rotation_degrees: float = Field(0.0, ge=0, le=180)
    """Rotate each training image about its middle by up to this angle both ways."""
    shear_degrees: float = Field(0.0, ge=0, le=60)
    """Shear each training image along its rows by up to this angle both ways."""
    zoom: float = Field(0.0, ge=0, lt=1)
    """Scale each training image about its middle by a factor within 1 - zoom and 1 + zoom."""
    brightness: float = Field(0.0, ge=0, lt=1)
    """Multiply the pixels of each training image by a factor within 1 - brightness and 1 + brightness."""


class Dask(Finite):
    """Settings of `input: dask`: how it cuts the training images into chunks, and who computes them."""

    chunk_images: int = Field(256, ge=1, le=MOST_IMAGES)
    scheduler: str = Field("threads", pattern=r"threads|processes|(tcp|tls|ucx|ws|wss)://\S+")
    """`threads` of the training process, worker `processes` on this machine, or the address of a dask.distributed cluster."""
    order: Literal["global", "chunks", "owned"] = "global"
    """`global`: the order of serial, each batch gathered from all chunks. `chunks`: random chunks, and random order in each.
    `owned`: each replica trains on its own part of the images alone, in random order, and nothing is moved."""
    owners: int | None = Field(None, ge=1, le=MOST_REPLICAS)
    """Order `owned` only: number of parts. In a parallel mode it is that of the replicas. Serial runs follow the same order."""
    partition: Literal["balanced", "class_skew", "speed"] = "balanced"
    """Order `owned` only: parts of equal size, of classes in unequal parts, or of sizes in proportion to `speeds`."""
    skew: float = Field(0.5, gt=0, le=1e6)
    """Partition `class_skew` only: concentration of the Dirichlet distribution that divides each class. Less: more unequal."""
    speeds: tuple[Annotated[float, Field(gt=0, le=1e9)], ...] = Field((), max_length=MOST_REPLICAS)
    """Partition `speed` only: one number for each owner, e.g. the `images_per_second_by_process` of a result."""


class Communication(Finite):
    """Exchange of gradients between the replicas of synchronous data-parallel modes."""

    bucket_mib: float = Field(25.0, gt=0, le=2**20)
    """Gradients are sent in buckets of this size, each as soon as it is full. Compressed ones, and those for a server, are sent
    after the backward pass. PyTorch's threads of one process share memory, and cut only compressed gradients. With the default,
    the first bucket of PyTorch's DistributedDataParallel has 1 MiB, as that is its own default."""
    compression: Literal["none", "float16", "int8", "top_k"] = "none"
    """Encoding of gradients: unchanged, in half the width, as a byte each with a scale per bucket, or only the largest."""
    top_k: float = Field(0.01, gt=0, le=1)
    """Fraction of each bucket's values that `top_k` sends."""
    error_feedback: bool = True
    """Whether what compression loses is added to the next step's gradients (Seide et al. 2014, Stich et al. 2018)."""


class ParameterServer(Finite):
    updates: Literal["synchronous", "asynchronous"] = "synchronous"
    """One update a step from all workers' gradients, or one for each worker's as it arrives (Dean et al. 2012)."""
    staleness: int | None = Field(None, ge=0, le=MOST_STEPS)
    """Asynchronous only: steps that a worker may be ahead of the slowest (Ho et al. 2013). None: any number."""
    scheduler: str | None = Field(None, pattern=r"(tcp|tls|ucx|ws|wss)://\S+")
    """A dask.distributed cluster that holds the parameters. None: the run starts a server process."""


class Pipeline(Finite):
    micro_batches: int = Field(4, ge=1, le=MOST_MICRO_BATCHES)
    """Micro-batches of each replica's batch. They follow one another through the stages. See `micro_batches`."""
    schedule: Literal["gpipe", "1f1b", "asynchronous"] = "gpipe"
    """All forward, then all backward (Huang et al. 2019); in turn; or without waiting, on stale weights (Narayanan et al.)."""


class Hybrid(Finite):
    inner: Literal["tensor_parallel", "pipeline"] = "tensor_parallel"
    """Mode of the replicas of one copy, which divide the model. The copies divide the batch."""
    inner_replicas: int = Field(2, ge=2, le=MOST_REPLICAS)
    """Replicas of each copy. There are `replicas` / `inner_replicas` copies."""


class Averaging(Finite):
    every_steps: int | None = Field(None, ge=1, le=MOST_STEPS)
    """Steps between two averages of all replicas' weights (local SGD, Stich 2019). None: one average, at the end."""


class BestEpoch(Finite):
    """Selection of the best epoch, whose weights may be kept, and early stopping."""

    keep: bool = False
    """Write the weights of the best epoch beside the result (see `common.artifacts.trained`). Of equal ones the earliest."""
    by: Literal["accuracy", "loss"] = "accuracy"
    """Score on the validation split that decides."""
    patience: int | None = Field(None, ge=1, le=MOST_EPOCHS)
    """Epochs in a row without a new best one, after which training stops. None: it ends with `epochs` or `steps`."""


class Paths(Finite):
    cache_dir: Annotated[str | None, Keeps("work", "step")] = Field(None, pattern=_NO_NUL)
    """Folder of decoded data and downloads. None: the user's cache folder."""
