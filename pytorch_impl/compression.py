"""Compressed gradient exchange: gradients are cut into buckets and compressed. The error is kept for the next step.

`common.training.compression` defines the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from common.models.architectures import Architecture
from common.spec import Communication
from common.training.compression import FLOAT16_MAX, INT8_STEPS, SUMMABLE, WORD_BYTES, buckets, top_k_count
from pytorch_impl import collectives, models, weights


def encode(values: torch.Tensor, settings: Communication) -> torch.Tensor:
    """Compress one bucket into the message that a replica sends.

    Args:
        values: float32 or float64 [count].

    Returns:
        The one-dimensional message of `common.training.compression.payload_bytes` bytes.
    """
    if settings.compression == "float16":
        return values.clamp(-FLOAT16_MAX, FLOAT16_MAX).float().half()
    if settings.compression == "int8":
        scale = values.abs().max() / INT8_STEPS
        steps = torch.where(scale == 0, 0.0, values / scale).round().to(torch.int8)
        # Twin: torch's collectives send bytes. TensorFlow's send nothing smaller than 32 bits.
        return torch.cat([_bytes(scale), _bytes(functional.pad(steps, (0, -len(steps) % WORD_BYTES)))])
    if settings.compression == "top_k":
        indices = _largest(values.abs(), top_k_count(len(values), settings.top_k))
        return torch.cat([_bytes(values[indices]), _bytes(indices.to(torch.int32))])
    return values


def decode(message: torch.Tensor, count: int, dtype: torch.dtype, settings: Communication) -> torch.Tensor:
    """Decompress the message of one bucket.

    Args:
        message: from `encode`; with `float16` it may be the sum of several messages.
        count: number of values in the bucket.
        dtype: dtype of the values.

    Returns:
        [count]; a value that was not sent is 0.
    """
    if settings.compression == "int8":
        scale, steps = message[: dtype.itemsize].view(dtype), message[dtype.itemsize :].view(torch.int8)
        return steps[:count].to(dtype) * scale
    if settings.compression == "top_k":
        cut = top_k_count(count, settings.top_k) * dtype.itemsize
        values, indices = message[:cut].view(dtype), message[cut:].view(torch.int32)
        return values.new_zeros(count).index_put_((indices.long(),), values)
    return message.to(dtype)


class Compressor:
    """Turns one replica's gradients into messages, and all replicas' messages into the sum of the gradients."""

    summable: bool
    """Whether an all-reduce can sum the messages. Otherwise every replica needs all messages."""
    sizes: list[int]
    """Number of values of each trainable parameter, in canonical order."""
    counts: list[int]
    """Number of values of each bucket."""

    def __init__(self, settings: Communication, model: nn.Module, architecture: Architecture) -> None:
        self.summable = settings.compression in SUMMABLE
        self._settings = settings
        self._variables = list(model.parameters())
        self._positions = weights.positions(model, architecture)
        self._names = list(self._positions)
        self._orders = _flattened_orders(model, architecture)
        # Twin: compressed messages have the canonical layout, which is Keras'. Others have values as they lie in memory: torch
        # would turn each kernel in each step.
        self._is_canonical = settings.compression != "none"
        self.sizes = [self._variables[position].numel() for position in self._positions.values()]
        self._dtype = self._variables[0].dtype
        self._buckets = buckets(self.sizes, self._dtype.itemsize, settings.bucket_mib)
        self.counts = [sum(self.sizes[index] for index in bucket) for bucket in self._buckets]
        self._residuals: list[torch.Tensor] | None = None
        if settings.compression != "none" and settings.error_feedback:
            self._residuals = [self._variables[0].new_zeros(count).detach() for count in self.counts]

    @torch.no_grad()
    def compress(self, gradients: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield the message of each bucket. Gradients are in the order of the model's own parameters."""
        for number, bucket in enumerate(self._buckets):
            names = [self._names[index] for index in bucket]
            values = torch.cat([self.flatten(name, gradients[self._positions[name]]) for name in names])
            if self._residuals is not None:
                values = values + self._residuals[number]
            message = encode(values, self._settings)
            if self._residuals is not None:
                self._residuals[number] = values - decode(message, len(values), self._dtype, self._settings)
            yield message

    @property
    def residuals(self) -> list[torch.Tensor]:
        """Residuals [count] of each bucket, which are added to the next gradients. Empty: there is no error feedback."""
        return self._residuals or []

    @torch.no_grad()
    def sum_messages(self, messages: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        """Decode messages into the sum of the replicas' gradients, in the order of the model's own parameters.

        Args:
            messages: for each bucket the messages of every replica, in order; or only their sum, if summable.
        """
        gradients: list[torch.Tensor] = [torch.empty(0)] * len(self._variables)
        for bucket, count, parts in zip(self._buckets, self.counts, messages, strict=True):
            summed = self._sum(parts, count).split([self.sizes[index] for index in bucket])
            for index, values in zip(bucket, summed, strict=True):
                gradients[self._positions[self._names[index]]] = self.restore(self._names[index], values)
        return gradients

    def flatten(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return all values of a parameter or of its gradient [count], in the order of messages."""
        if self._is_canonical:
            return self._in_canonical_order(name, weights.flatten(name, tensor))
        is_channels_last = not self._variable(name).is_contiguous()
        return (tensor.permute(0, 2, 3, 1) if is_channels_last else tensor).reshape(-1)

    def restore(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Reshape values from `flatten` to the shape of the model's own variable."""
        variable = self._variable(name)
        if self._is_canonical:
            order = self._orders.get(name)
            if order is not None:
                canonical = values.view(len(order), -1)
                values = torch.empty_like(canonical).index_copy_(0, order, canonical).view(-1)
            return weights.restore(name, values, variable)
        if variable.is_contiguous():
            return values.view(variable.shape)
        outputs, inputs, height, width = variable.shape
        return values.view(outputs, height, width, inputs).permute(0, 3, 1, 2)

    def to_canonical(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Return values from `flatten` in the canonical layout [count]."""
        if self._is_canonical:
            return values
        return self._in_canonical_order(name, weights.flatten(name, self.restore(name, values)))

    def _in_canonical_order(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Turn the inputs of a parameter that follows an image which a user's model flattens channels first."""
        order = self._orders.get(name)
        return values if order is None else values.view(len(order), -1)[order].view(-1)

    def _variable(self, name: str) -> torch.Tensor:
        return self._variables[self._positions[name]]

    def exchange(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sum the gradients of all replicas. Each replica passes its own, in the order of the model's parameters."""
        # Twin: only between processes. TensorFlow's strategy tells which replica calls.
        replicas = distributed.get_world_size()
        work: list[Any] = []
        messages: list[list[torch.Tensor]] = []
        for message in self.compress(gradients):  # each is sent while the next is made
            if self.summable:
                messages.append([message])
                work.append(collectives.start_all_reduce(message))
            else:
                messages.append([torch.empty_like(message) for _ in range(replicas)])
                work.append(collectives.start_all_gather(messages[-1], message))
        for pending in work:
            pending.wait()
        return self.sum_messages(messages)

    def _sum(self, parts: Sequence[torch.Tensor], count: int) -> torch.Tensor:
        if not self.summable:
            parts = [decode(part, count, self._dtype, self._settings) for part in parts]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return decode(total, count, self._dtype, self._settings) if self.summable else total


def _flattened_orders(model: nn.Module, architecture: Architecture) -> dict[str, torch.Tensor]:
    """Return the order of inputs of each parameter that follows an image which a user's model flattens channels first."""
    orders: dict[str, torch.Tensor] = {}
    for parameter in architecture.parameters():
        layer = models.find_layer(model, parameter.name.rpartition(".")[0])
        order = getattr(layer, "input_order", None)
        if order is not None and not parameter.name.endswith(".bias"):
            orders[parameter.name] = torch.from_numpy(order).to(next(layer.parameters()).device)
    return orders


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1).view(torch.uint8)


def _largest(magnitudes: torch.Tensor, number: int) -> torch.Tensor:
    """Return indices of the largest values. Among equal values the first ones win. NaN counts as the largest."""
    magnitudes = magnitudes.nan_to_num(nan=torch.inf, posinf=torch.inf)
    # Twin: torch.topk takes equal values in any order, tf.math.top_k takes the first ones.
    least = magnitudes.topk(number).values[-1]
    above_least, equal_to_least = (magnitudes > least).nonzero(), (magnitudes == least).nonzero()
    return torch.cat([above_least, equal_to_least[: number - len(above_least)]]).squeeze(1)
