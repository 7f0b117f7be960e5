"""The twin under test, and the few words in which the frameworks differ: to and from NumPy."""

import importlib
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from common.data.batches import BatchPlan, all_batches
from common.data.sources import DatasetSplit
from common.training.trainer import Batch

Array = npt.NDArray[Any]


class Twin:
    """One framework's modules by name (`twin.models` is `<framework>_impl.models`), and its adapter."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self._adapter = {"pytorch": _PyTorch, "tensorflow": _TensorFlow}[framework]()

    def __getattr__(self, module: str) -> ModuleType:
        return importlib.import_module(f"{self.framework}_impl.{module}")

    def batches(self, plan: BatchPlan, split: DatasetSplit, world_size: int, rank: int) -> Iterator[Batch]:
        """The batches of a shard, in order, from the first epoch."""
        return all_batches(plan, self.input.feed(plan, split, world_size, rank))

    def tensor(self, array: Array) -> Any:
        """A framework's tensor of the same shape and dtype."""
        return self._adapter.tensor(array)

    def number(self, value: float) -> Any:
        """A step or a learning rate as a trainer passes it on."""
        return self._adapter.number(value)

    def variable(self, array: Array) -> Any:
        """What a model has as a trainable parameter, of the same dtype."""
        return self._adapter.variable(array)

    def array(self, tensor: Any) -> Array:
        return self._adapter.array(tensor)

    def nhwc(self, images: Any) -> Array:
        """What `input.scale` gave, as [N, H, W, C]."""
        array = self.array(images)
        return array.transpose(0, 2, 3, 1) if self._adapter.channels_first else array

    def through_stage(self, model: Any, values: Array, masks: Sequence[Array]) -> Array:
        """What a stage hands on in training mode, from [N, H, W, C] or [N, features] to the like."""
        return self._adapter.through_stage(model, values, masks)

    def forward_flops(self, model: Any, images: Array, masks: Sequence[Array]) -> int:
        """What the framework's own counter finds of convolutions and dense layers, for float32 [N, H, W, C]."""
        return self._adapter.forward_flops(model, images, masks)

    def flops(self, model: Any, images: Array, masks: Sequence[Array]) -> int | None:
        """The same, forward and backward; None where the framework does not count gradients."""
        return self._adapter.flops(model, images, masks)

    def random_state(self) -> Any:
        """What the framework's next random numbers depend on."""
        return self._adapter.random_state()

    def dtype(self, name: str) -> Any:
        return getattr(self._adapter.framework, name)

    def batch(self, images: Array, labels: Array, masks: Sequence[Array] = ()) -> Batch:
        """A batch as the input gives it."""
        masks = tuple(map(self.tensor, masks))
        return Batch(self.tensor(np.arange(len(labels))), self.tensor(images), self.tensor(labels), masks)


class _PyTorch:
    channels_first = True

    def __init__(self) -> None:
        import torch

        self.framework = torch

    def tensor(self, array: Array) -> Any:
        return self.framework.tensor(array)

    def number(self, value: float) -> Any:
        return value

    def variable(self, array: Array) -> Any:
        return self.framework.nn.Parameter(self.tensor(array))

    def array(self, tensor: Any) -> Array:
        return tensor.detach().cpu().numpy()

    def random_state(self) -> Any:
        return self.framework.get_rng_state().tolist()

    def through_stage(self, model: Any, values: Array, masks: Sequence[Array]) -> Array:
        if values.ndim == 4:
            values = values.transpose(0, 3, 1, 2)
        given = self.array(model.train()(self.tensor(values), masks=tuple(map(self.tensor, masks))))
        return given.transpose(0, 2, 3, 1) if given.ndim == 4 else given

    def forward_flops(self, model: Any, images: Array, masks: Sequence[Array]) -> int:
        with self.framework.no_grad():
            return self.flops(model, images, masks)

    def flops(self, model: Any, images: Array, masks: Sequence[Array]) -> int:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            logits = model(self.tensor(images.transpose(0, 3, 1, 2)), *map(self.tensor, masks))
            if logits.requires_grad:
                logits.sum().backward()
        return counter.get_total_flops()


class _TensorFlow:
    channels_first = False

    def __init__(self) -> None:
        import keras
        import tensorflow

        self.framework, self._keras = tensorflow, keras
        # A run has one strategy. Several in one process would number their collectives alike and meet each other's.
        build = tensorflow.distribute.MirroredStrategy
        shared = cache(lambda *devices: build(list(devices)))
        tensorflow.distribute.MirroredStrategy = lambda devices: shared(*devices)

    def tensor(self, array: Array) -> Any:
        return self.framework.constant(array)

    def number(self, value: float) -> Any:
        return self.framework.constant(np.asarray(value))

    def variable(self, array: Array) -> Any:
        return self._keras.Variable(array, dtype=array.dtype.name)

    def array(self, tensor: Any) -> Array:
        return tensor.numpy()

    def random_state(self) -> Any:
        return self.framework.random.get_global_generator().state.numpy().tolist()

    def through_stage(self, model: Any, values: Array, masks: Sequence[Array]) -> Array:
        return self.array(model([self.tensor(values), *map(self.tensor, masks)], training=True))

    def forward_flops(self, model: Any, images: Array, masks: Sequence[Array]) -> int:
        given = [self.tensor(images), *map(self.tensor, masks)]
        graph = self.framework.function(lambda: model(given)).get_concrete_function().graph
        profiler = self.framework.compat.v1.profiler
        options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation()).with_empty_output().build()
        kinds = [profiler.profile(graph, cmd="op", options=options)]
        counted = 0
        while kinds:
            kind = kinds.pop()
            counted += kind.float_ops if kind.name in ("Conv2D", "DepthwiseConv2dNative", "MatMul") else 0
            kinds += kind.children
        return counted

    def flops(self, model: Any, images: Array, masks: Sequence[Array]) -> None:
        return None
