"""Mode pipeline: each device holds a stage of the model, and micro-batches pass through the stages one after another."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from common.artifacts.schema import StepParts
from common.data.sources import DatasetSplit
from common.machine import flight
from common.models import architectures, stages
from common.models.architectures import Parameter
from common.models.weights import ReadOnlyWeights, Weights
from common.training.trainer import Batch, Update
from pytorch_impl import collectives, device, input, models, train, weights
from pytorch_impl.parallel import group
from pytorch_impl.parallel.trainer import Trainer


class Pipeline(Trainer):
    """Stages of one model on a device each, in the order of GPipe or of 1F1B.

    The one update uses gradients summed over the micro-batches, so the mathematics is that of serial accumulation over the
    same micro-batches. BatchNorm normalises each micro-batch separately.
    """

    def _build(self) -> None:
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
        number = ranks // self._spec.data_replicas
        self.devices = [f"rank {other}: {self._device.type}, stage {other % number}" for other in range(ranks)]
        self._stage = stages.cut(self._architecture, number)[rank % number]
        self._processes = group.all_ranks()
        self._join(rank, number)
        self._model = self._to_device_and_format(models.build_stage(self._stage, self._spec.precision))
        self._optimizer = self._new_optimizer(self._model)
        self._meter = _Meter()
        # Twin: torch's pipelining takes long to import. Imported in `_schedule`, it would count as part of the first step.
        self._metered_stage = _metered_stage()
        self._schedules: dict[tuple[int, int, bool], Any] = {}
        self._bytes_per_step: int | None = None

    def _join(self, rank: int, number: int) -> None:
        """Form a group with the ranks that hold the other stages of the same copy."""
        self._group = distributed.group.WORLD

    def _train_step(self, images: Any, labels: Any, masks: Any, update: Update) -> Any:
        schedule = self._schedule(len(labels), update.micro_batches, training=True)
        parameters = list(self._model.parameters())
        self._model.zero_grad()
        self._model.train()
        losses: list[torch.Tensor] = []
        outputs = schedule.step(
            arg_mbs=self._inputs(images, update.micro_batches),
            kwarg_mbs=self._masks(masks, update.micro_batches),
            target_mbs=train.micro_batches(labels, update.micro_batches) if self._stage.is_last else None,
            losses=losses,
            loss_kwargs={"num_examples": update.num_examples},
        )
        self._meter.end_sends()
        gradients = self._sum_copies([parameter.grad for parameter in parameters if parameter.grad is not None])
        with self._meter.time_busy():
            self._optimizer.apply(gradients, update.learning_rate, update.step)
        return self._outcome(losses, outputs, labels)

    def _to_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
        # What this stage does not use stays on the host, where its size is read.
        images, labels, masks = batch.images, batch.labels, list(batch.masks)
        own_masks = masks[self._stage.masks]
        used = batch._replace(
            images=images if self._stage.is_first else images[:0],
            labels=labels if self._stage.is_last else labels[:0],
            masks=own_masks,
        )
        device_images, device_labels, masks[self._stage.masks] = super()._to_device(used)
        return (
            device_images if self._stage.is_first else images,
            device_labels if self._stage.is_last else labels,
            tuple(masks),
        )

    def _schedule(self, num_examples: int, micro_batches: int, *, training: bool) -> Any:
        """Return torch's schedule for batches of this size. Its stage knows the shapes that it sends and receives."""
        key = num_examples, micro_batches, training
        if key not in self._schedules:
            from torch.distributed import pipelining  # here: see _metered_stage

            stage, size = self._stage, num_examples // micro_batches
            schedule = pipelining.ScheduleGPipe
            # With fewer micro-batches than stages, 1F1B has nothing to alternate, and torch refuses it.
            if self._spec.pipeline.schedule == "1f1b" and training and micro_batches >= stage.num_stages:
                schedule = pipelining.Schedule1F1B
            metered = self._metered_stage(
                self._model,
                stage.index,
                stage.num_stages,
                self._device,
                input_args=self._values(stage.input_shape, size, device="meta").requires_grad_(not stage.is_first),
                output_args=self._values(stage.output_shape, size, device="meta").requires_grad_(),
                group=self._group,
            )
            metered.meter = self._meter
            loss = self._loss if training else None
            self._schedules[key] = schedule(metered, micro_batches, loss_fn=loss, scale_grads=False)
        return self._schedules[key]

    def _values(self, shape: tuple[int, ...], size: int, **options: Any) -> torch.Tensor:
        """Create an empty tensor for a stage's input or output of this many examples."""
        # Twin: channels first.
        shape = (shape[2], *shape[:2]) if len(shape) == 3 else shape
        return torch.empty((size, *shape), dtype=device.dtype(self._spec), **options)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor, num_examples: int) -> torch.Tensor:
        return train.share_of_loss(logits, labels, num_examples, self._objective.loss)

    def _inputs(self, images: torch.Tensor, micro_batches: int) -> list[tuple[torch.Tensor, ...]]:
        if not self._stage.is_first:
            return [()] * micro_batches
        scaled = input.scale(images, device.dtype(self._spec), self._plan.scaling)
        return [(micro_batch,) for micro_batch in train.micro_batches(scaled, micro_batches)]

    def _masks(self, masks: Any, micro_batches: int) -> list[dict[str, Any]]:
        cut = [train.micro_batches(mask, micro_batches) for mask in masks[self._stage.masks]]
        return [{"masks": tuple(mask[number] for mask in cut)} for number in range(micro_batches)]

    def _sum_copies(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Sum gradients over the copies of the stage. There is one copy."""
        return gradients

    def _outcome(self, losses: list[torch.Tensor], logits: Any, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (loss, num_correct), which only the last stage knows. Other stages return zeros, and `fetch` replaces them."""
        if not self._stage.is_last:
            zero = torch.zeros((), device=self._device)
            return zero.to(device.dtype(self._spec)), zero.to(labels.dtype)
        with torch.no_grad():
            return torch.stack(losses).sum().detach(), (logits.argmax(1) == labels).sum()

    def _score_batch(self, images: Any, labels: Any) -> Any:
        logits = self._logits(images)
        return self._loss(logits, labels, 1), logits.argmax(1)

    def _logits(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes] in evaluation mode. The last stage broadcasts them."""
        self._model.eval()
        with torch.no_grad():
            schedule = self._schedule(len(images), 1, training=False)
            logits = schedule.eval(arg_mbs=self._inputs(images, 1))
            self._meter.end_sends()
            if not self._stage.is_last:
                logits = self._values((self._architecture.num_classes,), len(images), device=self._device)
            collectives.broadcast(logits, self._group, self._stage.num_stages - 1)
        return logits

    def train_step(self, batch: Batch, num_examples: int, learning_rate: float) -> tuple[Any, Any]:
        """Pass a batch forward and backward through the stages. Then every stage updates its weights."""
        outcome = super().train_step(batch, num_examples, learning_rate)
        if self._bytes_per_step is None:
            self._bytes_per_step = self._meter.sent_bytes
        return outcome

    def fetch(self, values: list[Any]) -> npt.NDArray[Any]:
        stacked = torch.stack(values)
        collectives.broadcast(stacked, self._group, self._stage.num_stages - 1)
        return stacked.cpu().numpy()

    def _of_all_stages(self, arrays: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        names = [name for name, _ in architectures.decision_layers(self._stage.architecture.layers)]
        stage_arrays = collectives.gather_objects(dict(zip(names, arrays, strict=True)), self._group)
        by_name = {name: array for stage in stage_arrays for name, array in stage.items()}
        return [by_name[name] for name, _ in architectures.decision_layers(self._architecture.layers)]

    def report(self, test: DatasetSplit) -> dict[str, Any]:
        """Report the bytes that the stages send."""
        assert self._bytes_per_step is not None, "a run has at least one step"
        return {"bytes_per_step": float(self.all_reduce_world(np.array([self._bytes_per_step]))[0])}

    def compute_and_exchange(self, batch: Batch, num_examples: int) -> StepParts:
        """Time whole steps at learning rate 0, and the computations of each stage within them."""
        steps, ranks = self._spec.profile_steps, distributed.get_world_size()
        seconds, busy = np.zeros((steps, ranks)), np.zeros((steps, ranks))
        self._meter.is_timed = True
        for step in range(steps):
            collectives.barrier()
            self._meter.busy_seconds, start = 0.0, time.perf_counter()
            self.train_step(batch, num_examples, 0.0)
            self.synchronize()
            seconds[step, distributed.get_rank()] = time.perf_counter() - start
            busy[step, distributed.get_rank()] = self._meter.busy_seconds
        self._meter.is_timed = False
        seconds, busy = self.all_reduce_world(seconds), self.all_reduce_world(busy)
        return StepParts(
            steps=steps,
            step_seconds=float(np.median(seconds.max(1))),
            compute_seconds=float(np.median(busy.max(1))),
            idle_seconds=float(np.median((seconds.max(1, keepdims=True) - busy).mean(1))),
            not_separable="a stage that waits for its neighbour cannot tell idling from receiving: both are idle seconds",
        )

    def load_weights(self, values: ReadOnlyWeights) -> None:
        weights.load(self._model, self._stage.architecture, values)
        self.broadcast_statistics()

    def weights(self) -> Weights:
        return self._gather(weights.extract(self._model, self._stage.architecture), self._architecture.parameters())

    def _by_name(self, arrays: list[npt.NDArray[Any]]) -> Weights:
        stage_weights = weights.extract_gradients(self._model, self._stage.architecture, list(map(torch.from_numpy, arrays)))
        return self._gather(stage_weights, [parameter for parameter in self._architecture.parameters() if parameter.trainable])

    def _gather(self, stage_weights: Weights, parameters: Iterable[Parameter]) -> Weights:
        """Gather these parameters of the model, in order. The rank whose stage has a parameter broadcasts it."""
        holders = {
            parameter.name: stage.index
            for stage in stages.cut(self._architecture, self._stage.num_stages)
            for parameter in stage.architecture.parameters()
        }
        gathered: Weights = {}
        for parameter in parameters:
            values = torch.empty(parameter.shape, dtype=device.dtype(self._spec), device=self._device)
            if parameter.name in stage_weights:
                values = self._tensor(stage_weights[parameter.name]).contiguous()  # memory is sent as it lies
            collectives.broadcast(values, self._group, holders[parameter.name])
            gathered[parameter.name] = values.cpu().numpy()
        return gathered

    def num_values(self) -> tuple[int, int]:
        counts = torch.tensor(models.num_values(self._model), device=self._device)
        collectives.all_reduce(counts, self._group)
        every, trainable = counts.tolist()
        return every, trainable

    def logits(self, batch: Batch, *, training: bool) -> npt.NDArray[np.floating]:
        """Return logits [N, classes] of one batch in evaluation mode, from the first copy of the model."""
        images, _, _ = self._to_device(batch)
        return self._logits(images).cpu().numpy()


class _Meter:
    """Counts the bytes that a stage sends and times its computations. Also records when messages begin and end."""

    def __init__(self) -> None:
        self._sending: list[int] = []
        self._receiving: list[int] = []
        self.sent_bytes = 0
        self.busy_seconds = 0.0
        self.is_timed = False

    def messages(self, operations: list[distributed.P2POp], *, sends: bool) -> list[distributed.P2POp]:
        """Record that these operations begin. Torch's schedule starts them at once, and waits for them itself."""
        open_numbers = self._sending if sends else self._receiving
        open_numbers += [collectives.begin_message(operation.tensor, operation.peer, sends=sends) for operation in operations]
        return operations

    def end_receives(self) -> None:
        """Record that all messages have been received: the schedule computes with them."""
        while self._receiving:
            flight.end(self._receiving.pop())

    def end_sends(self) -> None:
        """Record that all messages have been sent. The schedule waits for that at the end of a step at the latest."""
        while self._sending:
            flight.end(self._sending.pop())

    @contextmanager
    def time_busy(self) -> Iterator[None]:
        """Time a block as busy, if `is_timed`. The device must finish before and after."""
        if not self.is_timed:
            yield
            return
        device.synchronize()
        start = time.perf_counter()
        yield
        device.synchronize()
        self.busy_seconds += time.perf_counter() - start


@cache
def _metered_stage() -> type[Any]:
    """Define the class of a stage with a meter on demand: pipelining imports torch's compiler, as large as torch itself."""
    from torch.distributed.pipelining import PipelineStage

    # Torch does not document these methods. Were one not called any more, bytes or seconds in `test_pipeline` would be wrong.
    class MeteredStage(PipelineStage):
        meter: _Meter

        def forward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
            self.meter.end_receives()
            with self.meter.time_busy():
                return super().forward_one_chunk(*arguments, **options)

        def backward_one_chunk(self, *arguments: Any, **options: Any) -> Any:
            self.meter.end_receives()
            with self.meter.time_busy():
                return super().backward_one_chunk(*arguments, **options)

        def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[distributed.P2POp]:
            return self.meter.messages(super().get_fwd_recv_ops(fwd_chunk_id), sends=False)

        def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[distributed.P2POp]:
            return self.meter.messages(super().get_bwd_recv_ops(bwd_chunk_id), sends=False)

        def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[distributed.P2POp]:
            return self._count_sends(super().get_fwd_send_ops(fwd_chunk_id))

        def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[distributed.P2POp]:
            return self._count_sends(super().get_bwd_send_ops(bwd_chunk_id))

        def _count_sends(self, sends: list[distributed.P2POp]) -> list[distributed.P2POp]:
            self.meter.sent_bytes += sum(send.tensor.nbytes for send in sends)
            return self.meter.messages(sends, sends=True)

    return MeteredStage
