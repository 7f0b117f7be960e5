"""Mode pipeline, asynchronous: each stage updates its weights as soon as a micro-batch has come back to it."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.func import functional_call

from common.models import stages
from common.training.trainer import Batch, Update
from pytorch_impl import collectives, train
from pytorch_impl.parallel.pipeline import Pipeline


class PipelineAsync(Pipeline):
    """PipeDream (Narayanan et al. 2019): new micro-batches start before the updates of earlier ones are made.

    Every micro-batch makes its own update, from the mean over its own examples: a batch has as many updates as micro-batches.
    Stage s of S goes forward with weights that lack the last S - 1 - s updates, also across the border of two batches (see
    `common.models.stages.updates_missing`). The backward pass uses the same weights. Its gradient then moves weights that
    have moved on since. All updates of an epoch are made before anything is scored. Losses are those of the moving weights.
    """

    def _build(self) -> None:
        super()._build()
        # torch.distributed.pipelining has no schedule that crosses the border between two batches.
        self.implementation = f"stages that send to each other, {distributed.get_backend()}"
        index, number = self._stage.index, self._stage.num_stages
        # Each pair of stages has a channel for each direction. On a shared channel, messages would wait for others.
        pairs = [[stage, stage + 1] for stage in range(number - 1)]
        down, up = ([collectives.new_group(pair) for pair in pairs] for _ in ("down", "up"))
        self._forward_source, self._backward_target = (down[index - 1], up[index - 1]) if index else (None, None)
        self._forward_target, self._backward_source = (None, None) if self._stage.is_last else (down[index], up[index])
        self._max_in_flight = stages.in_flight("asynchronous", index, number, number)
        self._in_flight: deque[_InFlight] = deque()
        self._sends: list[tuple[Any, torch.Tensor]] = []
        self._updates = 0

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        self._model.train()
        number = update.micro_batches
        size = len(labels) // number
        incoming = [self._receive(self._stage.input_shape, size, self._forward_source) for _ in range(number)]
        cut = zip(self._inputs(images, number), self._masks(masks, number), train.micro_batches(labels, number), strict=True)
        losses: list[torch.Tensor] = []
        outputs: list[torch.Tensor] = []
        for message, (stage_input, own_masks, own_labels) in zip(incoming, cut, strict=True):
            values = stage_input[0] if stage_input else _wait_for_message(message).requires_grad_()
            result = self._forward(values, own_masks, own_labels, update.learning_rate)
            if self._stage.is_last:
                losses.append(self._in_flight[-1].output.detach() / number)
                outputs.append(result)
            if len(self._in_flight) == self._max_in_flight:
                self._backward()
        self._wait_for_sends()
        return self._outcome(losses, torch.cat(outputs) if outputs else None, labels)

    def _wait_for_sends(self) -> None:
        """Wait until all messages have left. Their receivers never wait for this rank in between."""
        for send, _ in self._sends:
            send.wait()
        self._sends.clear()

    def _forward(self, values: torch.Tensor, masks: dict[str, Any], labels: torch.Tensor, learning_rate: float) -> torch.Tensor:
        """Run a micro-batch forward with the current weights, and keep them for its backward pass."""
        with self._meter.time_busy():
            stash, result, output = self._compute(values, masks, labels)
        self._send(result, self._forward_target)
        output_gradients = self._receive(self._stage.output_shape, len(labels), self._backward_source)
        self._in_flight.append(_InFlight(values, stash, output, output_gradients, learning_rate))
        return result.detach()

    def _compute(
        self, values: torch.Tensor, masks: dict[str, Any], labels: torch.Tensor
    ) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
        """Run forward. Returns (copies of the weights, the stage's result, the loss in the last stage, else the result)."""
        stash = {name: parameter.detach().clone().requires_grad_() for name, parameter in self._model.named_parameters()}
        # The way back reads BatchNorm's running statistics, and torch refuses it where a later micro-batch has changed them.
        statistics = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        result = functional_call(self._model, stash | statistics, (values,), masks)
        for name, buffer in self._model.named_buffers():
            buffer.copy_(statistics[name])
        return list(stash.values()), result, self._loss(result, labels, len(labels)) if self._stage.is_last else result

    def _blank_step(self, examples: int, num_examples: int) -> None:
        # Each stage computes alone: messages of the first step are still under way, and no others may come between them.
        images, labels, masks = self._to_device(self._blank(examples))
        number = self._spec.micro_batches(num_examples)
        self._shapes.add((examples, number))
        self._model.train()
        cut = zip(self._inputs(images, number), self._masks(masks, number), train.micro_batches(labels, number), strict=True)
        for stage_input, own_masks, own_labels in cut:
            empty = self._values(self._stage.input_shape, len(own_labels), device=self._device)
            values = stage_input[0] if stage_input else empty.zero_().requires_grad_()
            stash, _, output = self._compute(values, own_masks, own_labels)
            sources = [*stash, *([] if self._stage.is_first else [values])]
            torch.autograd.grad(output, sources, None if self._stage.is_last else torch.zeros_like(output))

    def _backward(self) -> None:
        """Run the oldest micro-batch backward, and update the current weights."""
        oldest = self._in_flight.popleft()
        output_gradients = None if self._stage.is_last else _wait_for_message(oldest.output_gradients)
        with self._meter.time_busy():
            sources = [*oldest.weights, *([] if self._stage.is_first else [oldest.values])]
            gradients = list(torch.autograd.grad(oldest.output, sources, output_gradients))
        if not self._stage.is_first:
            self._send(gradients.pop().contiguous(), self._backward_target)
        with self._meter.time_busy():
            self._updates += 1
            self._optimizer.apply(gradients, oldest.learning_rate, self._updates)

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Start every micro-batch of a batch. At the end of an epoch, also make all updates that are still due."""
        outcome = super().train_step(batch, num_examples, learning_rate)
        if self._plan.ends_epoch(self._step):
            while self._in_flight:
                self._backward()
            self._wait_for_sends()
        return outcome

    def _send(self, values: torch.Tensor, group: Any) -> None:
        if group is None:
            return
        values = values.detach()
        peer = 1 if group is self._forward_target else 0
        self._sends.append((collectives.send(values, group, peer), values))

    def _receive(self, shape: tuple[int, ...], size: int, group: Any) -> Any:
        """Start to receive a message. Returns (work, values). It is requested early, so that the sender need not wait."""
        if group is None:
            return None
        values = self._values(shape, size, device=self._device)
        self._meter.sent_bytes += values.nbytes  # counted here: some of a step's messages are sent in the next step
        peer = 0 if group is self._forward_source else 1
        return collectives.receive(values, group, peer), values


class _InFlight(NamedTuple):
    """A micro-batch whose backward pass is still due."""

    values: torch.Tensor
    weights: list[torch.Tensor]
    output: torch.Tensor
    """Output of the stage; in the last stage the loss."""
    output_gradients: Any
    """Message with the gradient of the loss by the output."""
    learning_rate: float


def _wait_for_message(message: Any) -> torch.Tensor:
    work, values = message
    work.wait()
    return values
