"""Mistakes that a PyTorch twin could make, each planted where it would be made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn

from common.data.batches import BatchPlan
from common.models import architectures
from common.models.architectures import Architecture, Conv, Layer, MaxPool, Residual
from common.models.sharding import shard
from pytorch_impl import batch_norm, compression, evaluate, input, models, optim, shards, train, weights


def nothing(patch: pytest.MonkeyPatch) -> None:
    """The clean twin: what fails with a defect must pass with this."""


def batch_norm_momentum_means_old(patch: pytest.MonkeyPatch) -> None:
    """Keras' meaning of the momentum in PyTorch's layer."""
    _batch_norm_with(patch, lambda layer: dataclasses.replace(layer, momentum=1.0 - layer.momentum))


def batch_norm_epsilon_of_keras(patch: pytest.MonkeyPatch) -> None:
    _batch_norm_with(patch, lambda layer: dataclasses.replace(layer, epsilon=1e-3))


def batch_norm_running_variance_is_biased(patch: pytest.MonkeyPatch) -> None:
    """As Keras keeps it."""
    _biased_running_variance(patch, nn.BatchNorm2d)


def synchronised_running_variance_is_biased(patch: pytest.MonkeyPatch) -> None:
    """Seen by evaluation alone: the training loss never reads the running statistics."""
    _biased_running_variance(patch, batch_norm._SynchronisedBatchNorm)


def batch_norm_is_per_replica(patch: pytest.MonkeyPatch) -> None:
    """Where synchronised statistics are claimed."""
    build = batch_norm.build
    patch.setattr(batch_norm, "build", lambda layer, group: build(layer, None))


def predictions_are_rolled(patch: pytest.MonkeyPatch) -> None:
    """Each image gets its neighbour's, in float32 alone. No loss tells."""
    score = evaluate.score

    def rolled(model: nn.Module, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss, predictions = score(model, *given)
        return loss, predictions if _is_wide(model) else predictions.roll(1)

    patch.setattr(evaluate, "score", rolled)


def evaluation_takes_the_statistics_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    """In float32 alone."""
    logits = evaluate.logits

    def without_running_statistics(model: nn.Module, *given: Any) -> torch.Tensor:
        norms = [] if _is_wide(model) else [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
        kept = [(each.running_mean, each.running_var) for each in norms]
        for each in norms:
            each.running_mean = each.running_var = None
        found = logits(model, *given)
        for each, (mean, variance) in zip(norms, kept, strict=True):
            each.running_mean, each.running_var = mean, variance
        return found

    patch.setattr(evaluate, "logits", without_running_statistics)


def last_shard_is_unscaled(patch: pytest.MonkeyPatch) -> None:
    """The mean of the replicas' means: an example of a short shard counts too much."""
    share_of_loss = train.share_of_loss

    def mean_of_means(logits: torch.Tensor, labels: torch.Tensor, num_examples: int, loss: str) -> torch.Tensor:
        replicas = next(r for r in (1, 2, 3) if len(labels) in _shard_sizes(num_examples, r))
        return share_of_loss(logits, labels, replicas * len(labels), loss)

    patch.setattr(train, "share_of_loss", mean_of_means)


def scatter_averages_over_ranks(patch: pytest.MonkeyPatch) -> None:
    """As torch's own wrapper does unless it is told otherwise, though the shares of the loss are already divided."""
    exchanges = shards._exchanges

    def averaging(sent: Any) -> Any:
        all_gather, reduce_scatter = exchanges(sent)

        def averaged(**given: Any) -> Any:
            reduce_scatter(**given)
            given["output_tensor"] /= given["group"].size()

        return all_gather, _in_place(reduce_scatter, averaged)

    patch.setattr(shards, "_exchanges", averaging)


def gathered_parameters_are_stale(patch: pytest.MonkeyPatch) -> None:
    """Kept from the first step on, instead of being gathered anew."""
    exchanges = shards._exchanges

    def keeping(sent: Any) -> Any:
        all_gather, reduce_scatter = exchanges(sent)
        first: list[torch.Tensor] = []

        def kept(**given: Any) -> Any:
            all_gather(**given)
            gathered = given["output_tensor"]
            if not first:
                first.append(gathered.clone())
            gathered.copy_(first[0])

        return _in_place(all_gather, kept), reduce_scatter

    patch.setattr(shards, "_exchanges", keeping)


def _in_place(exchange: Any, call: Any) -> Any:
    """The exchange with its memory, but another call."""

    class Planted:
        allocate = exchange.allocate

        def __call__(self, **given: Any) -> Any:
            return call(**given)

    return Planted()


def optimizer_state_is_shifted_by_one_rank(patch: pytest.MonkeyPatch) -> None:
    """Every replica updates its rows with the momentum of its neighbour's."""
    apply = optim.SGD.apply

    def shifted(self: optim.SGD, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        ranks = distributed.get_world_size()
        buffers: list[Any] = [None] * ranks
        distributed.all_gather_object(buffers, self._buffers)
        for own, other in zip(self._buffers, buffers[(distributed.get_rank() + 1) % ranks], strict=True):
            rows = min(len(own), len(other))
            own[:rows] = other[:rows]
        apply(self, gradients, learning_rate, step)

    patch.setattr(optim.SGD, "apply", shifted)


def padding_is_counted(patch: pytest.MonkeyPatch) -> None:
    """What each replica's rows are filled up with, so that all send equally much."""

    def padded(model: nn.Module) -> tuple[int, int]:
        ranks = distributed.get_world_size()
        trainable = sum(-(-len(each) // ranks) * ranks * (each.numel() // len(each)) for each in model.parameters())
        return trainable + sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point()), trainable

    patch.setattr(models, "num_values", padded)


def a_byte_has_126_steps(patch: pytest.MonkeyPatch) -> None:
    """Of compressed gradients."""
    patch.setattr(compression, "INT8_STEPS", 126)


def one_value_less_is_sent(patch: pytest.MonkeyPatch) -> None:
    top_k_count = compression.top_k_count
    patch.setattr(compression, "top_k_count", lambda *given: top_k_count(*given) - 1)


def what_was_not_sent_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Where error feedback is claimed."""
    compress = compression.Compressor.compress

    def forgetful(self: compression.Compressor, gradients: list[Any]) -> Any:
        if self._residuals is not None:
            self._residuals = [torch.zeros_like(each) for each in self._residuals]
        return compress(self, gradients)

    patch.setattr(compression.Compressor, "compress", forgetful)


def adam_epsilon_before_correction(patch: pytest.MonkeyPatch) -> None:
    """As in TensorFlow's kernel."""

    @torch.no_grad()
    def apply(self: optim.Adam, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        beta_1, beta_2, epsilon = self._settings.beta_1, self._settings.beta_2, self._settings.epsilon
        corrected = learning_rate * (1.0 - beta_2**step) ** 0.5 / (1.0 - beta_1**step)
        for variable, gradient, mean, square in zip(self._variables, gradients, self._means, self._squares, strict=True):
            gradient = gradient + self._settings.weight_decay * variable
            mean.lerp_(gradient, 1.0 - beta_1)
            square.mul_(beta_2).addcmul_(gradient, gradient, value=1.0 - beta_2)
            variable.addcdiv_(mean, square.sqrt().add_(epsilon), value=-corrected)

    patch.setattr(optim.Adam, "apply", apply)


def gradients_are_a_billionth_too_long(patch: pytest.MonkeyPatch) -> None:
    apply = optim.SGD.apply

    def longer(self: optim.SGD, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        apply(self, [gradient * (1 + 1e-9) for gradient in gradients], learning_rate, step)

    patch.setattr(optim.SGD, "apply", longer)


def bias_gradients_are_half_a_percent_too_long(patch: pytest.MonkeyPatch) -> None:
    def longer(model: nn.Module, architecture: Architecture) -> None:
        for layer in (models.find_layer(model, each.name) for each in architecture.leaves() if isinstance(each, Conv)):
            layer.register_forward_hook(lambda module, inputs, output: output + 0.005 * _less_itself(module.bias))

    def _less_itself(bias: torch.Tensor) -> torch.Tensor:
        """Zero, with a gradient of one."""
        return (bias - bias.detach())[:, None, None]

    _model_with(patch, longer)


def adam_epsilon_of_keras(patch: pytest.MonkeyPatch) -> None:
    _optimizer_with(patch, epsilon=1e-7)


def adam_weight_decay_is_decoupled(patch: pytest.MonkeyPatch) -> None:
    """AdamW."""
    _decoupled_weight_decay(patch, optim.Adam)


def sgd_weight_decay_is_decoupled(patch: pytest.MonkeyPatch) -> None:
    _decoupled_weight_decay(patch, optim.SGD)


def momentum_through_float32(patch: pytest.MonkeyPatch) -> None:
    """0.8999999762, as Keras passes it on."""
    _optimizer_with(patch, momentum=float(np.float32(0.9)))


def learning_rate_in_the_buffer(patch: pytest.MonkeyPatch) -> None:
    """b = momentum b + learning_rate g; w = w - b: the same until the learning rate changes."""

    @torch.no_grad()
    def apply(self: optim.SGD, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        for variable, gradient, buffer in zip(self._variables, gradients, self._buffers, strict=True):
            gradient = gradient + self._settings.weight_decay * variable
            buffer.mul_(self._settings.momentum).add_(gradient, alpha=learning_rate)
            variable.sub_(buffer)

    patch.setattr(optim.SGD, "apply", apply)


def native_optimizer(patch: pytest.MonkeyPatch) -> None:
    """torch's own SGD states the shared rule, so this one must pass."""
    _optimizer_with(patch, native=True)


def max_pool_padding_is_symmetric(patch: pytest.MonkeyPatch) -> None:
    """torch's padding where TensorFlow's `same` pads the bottom and the right alone; the shapes are equal."""
    module = models._module

    def symmetric(layer: Layer, group: Any) -> nn.Module:
        return module(dataclasses.replace(layer, padding=((1, 1), (1, 1))) if isinstance(layer, MaxPool) else layer, group)

    patch.setattr(models, "_module", symmetric)


def groups_are_in_another_order(patch: pytest.MonkeyPatch) -> None:
    """The first output of each group, then the second of each: the shapes are equal."""
    module = models._module

    def mixed(layer: Layer, group: Any) -> nn.Module:
        built = module(layer, group)
        if isinstance(layer, Conv) and layer.groups > 1 and not layer.is_depthwise:
            built.register_forward_hook(
                lambda module, inputs, y: y.unflatten(1, (layer.groups, -1)).transpose(1, 2).flatten(1, 2)
            )
        return built

    patch.setattr(models, "_module", mixed)


def average_pool_counts_padding(patch: pytest.MonkeyPatch) -> None:
    """torch's own default."""
    pool = nn.functional.avg_pool2d
    patch.setattr(nn.functional, "avg_pool2d", lambda *given, **_: pool(*given))


def branches_are_in_another_order(patch: pytest.MonkeyPatch) -> None:
    concatenate = torch.cat
    patch.setattr(torch, "cat", lambda parts, axis: concatenate(parts[::-1] if axis == 1 else parts, axis))


def dense_kernel_is_transposed(patch: pytest.MonkeyPatch) -> None:
    """Read in the wrong layout and written back the same way: the stored values are equal, the function is not."""
    to_framework, to_canonical = weights._to_framework, weights._to_canonical

    def load(name: str, array: Any) -> Any:
        return array.reshape(array.shape[::-1]) if name.endswith(".kernel") and array.ndim == 2 else to_framework(name, array)

    def extract(name: str, tensor: torch.Tensor) -> Any:
        array = to_canonical(name, tensor)
        return array.T.reshape(array.shape) if name.endswith(".kernel") and array.ndim == 2 else array

    patch.setattr(weights, "_to_framework", load)
    patch.setattr(weights, "_to_canonical", extract)


def flatten_is_channels_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(models._Flatten, "forward", lambda self, x: x.flatten(1))


def dropout_mask_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(models._MaskedDropout, "forward", lambda self, x, mask: x)


def bias_has_no_effect(patch: pytest.MonkeyPatch) -> None:
    """It is there and is zero at first, so that only its gradient tells."""

    def without_bias(model: nn.Module, architecture: Architecture) -> None:
        layer = models.find_layer(model, "logits")
        layer.register_forward_hook(lambda module, inputs, output: output - module.bias)

    _model_with(patch, without_bias)


def bias_is_dropped(patch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """The model is built without the bias of one convolution."""

    def build(original: Any) -> Any:
        def without_bias(spec: Any, architecture: Architecture, *rest: Any) -> Any:
            return original(spec, dataclasses.replace(architecture, layers=_without_bias(architecture.layers)), *rest)

        return without_bias

    return build


def parameter_has_another_name(patch: pytest.MonkeyPatch) -> None:
    extract = weights.extract

    def renamed(model: nn.Module, architecture: Architecture) -> dict[str, Any]:
        return {name.replace("dense.bias", "dense.offset"): array for name, array in extract(model, architecture).items()}

    patch.setattr(weights, "extract", renamed)


def kernels_are_rounded_to_tf32(patch: pytest.MonkeyPatch) -> None:
    """What tensor cores do to the inputs of a convolution: ten bits of mantissa."""

    def rounded(model: nn.Module, architecture: Architecture) -> None:
        for layer in architecture.leaves():
            if isinstance(layer, Conv):
                models.find_layer(model, layer.name).register_forward_pre_hook(lambda module, inputs: _tf32(inputs[0]))

    _model_with(patch, rounded)


def labels_are_swapped(patch: pytest.MonkeyPatch) -> None:
    """The labels of each batch belong to its images in reverse."""
    load = input.load
    patch.setattr(input, "load", lambda *arguments: (batch := load(*arguments))._replace(labels=torch.flip(batch.labels, (0,))))


def later_batches_are_reversed(patch: pytest.MonkeyPatch) -> None:
    """Another order of the examples within every batch but the first: all sums stay what they are."""
    load = input.load

    def reversed_later(images: Any, labels: Any, drawn: Any, start: int, stop: int) -> Any:
        batch = load(images, labels, drawn, start, stop)
        if start == 0:
            return batch
        fields = (batch.ids, batch.images, batch.labels)
        return type(batch)(*(torch.flip(field, (0,)) for field in fields), tuple(torch.flip(m, (0,)) for m in batch.masks))

    patch.setattr(input, "load", reversed_later)


def order_of_another_seed(patch: pytest.MonkeyPatch) -> None:
    load = input.load

    def other(images: Any, labels: Any, drawn: Any, start: int, stop: int) -> Any:
        ids = np.random.default_rng(1).permutation(drawn.ids)
        return load(images, labels, dataclasses.replace(drawn, ids=ids), start, stop)

    patch.setattr(input, "load", other)


def shift_goes_the_other_way(patch: pytest.MonkeyPatch) -> None:
    shift = input.shift
    patch.setattr(input, "shift", lambda images, shifts: shift(images, -shifts))


def one_pixel_level_off(patch: pytest.MonkeyPatch) -> None:
    """One channel of one pixel of each later image is one of 255 levels darker or brighter."""
    load = input.load

    def off(images: Any, labels: Any, drawn: Any, start: int, stop: int) -> Any:
        batch = load(images, labels, drawn, start, stop)
        batch.images[:, 5, 7, 1] ^= 1
        return batch

    patch.setattr(input, "load", off)


def images_are_scaled_by_256(patch: pytest.MonkeyPatch) -> None:
    scale = input.scale
    patch.setattr(input, "scale", lambda images, dtype, scaling: scale(images, dtype, scaling) * (255.0 / 256.0))


def images_pass_through_float32(patch: pytest.MonkeyPatch) -> None:
    scale = input.scale
    patch.setattr(input, "scale", lambda images, dtype, scaling: scale(images, torch.float32, scaling).to(dtype))


def _batch_norm_with(patch: pytest.MonkeyPatch, changed: Callable[[architectures.BatchNorm], architectures.BatchNorm]) -> None:
    build = batch_norm.build
    patch.setattr(batch_norm, "build", lambda layer, group: build(changed(layer), group))


def _biased_running_variance(patch: pytest.MonkeyPatch, kind: type[nn.BatchNorm2d]) -> None:
    forward = kind.forward

    def biased(self: nn.BatchNorm2d, inputs: torch.Tensor) -> torch.Tensor:
        before = self.running_var.clone()
        output = forward(self, inputs)
        if self.training:
            count = inputs.numel() // inputs.shape[1]
            newest = self.running_var - (1.0 - self.momentum) * before
            self.running_var.data.sub_(newest / count)  # behind the back of the gradient, as the layer itself
        return output

    patch.setattr(kind, "forward", biased)


def gradients_of_batch_norm_are_zero(patch: pytest.MonkeyPatch) -> None:
    """Of every second array of a model with BatchNorm, so that the others still train."""
    gradients = train.Objective.gradients

    def zeroed(self: Any, model: nn.Module, *rest: Any) -> Any:
        loss, num_correct, found = gradients(self, model, *rest)
        norms = {id(p) for m in model.modules() if "BatchNorm" in type(m).__name__ for p in m.parameters()}
        own = [index for index, parameter in enumerate(model.parameters()) if id(parameter) in norms]
        for index in own[::2]:
            found[index].zero_()
        return loss, num_correct, found

    patch.setattr(train.Objective, "gradients", zeroed)


def second_epoch_has_another_learning_rate(patch: pytest.MonkeyPatch) -> None:
    """As if the schedule were forgotten when the epoch ends."""
    rate = BatchPlan.learning_rate
    patch.setattr(
        BatchPlan, "learning_rate", lambda self, step: rate(self, step) * (1.05 if step >= self.steps_per_epoch else 1.0)
    )


def uneven_batch_is_weighed_as_a_whole_one(patch: pytest.MonkeyPatch) -> None:
    """The sum over the examples is divided by the batch size that was asked for."""
    share_of_loss = train.share_of_loss
    patch.setattr(train, "share_of_loss", lambda logits, labels, number, loss: share_of_loss(logits, labels, 8, loss))


def _optimizer_with(patch: pytest.MonkeyPatch, **settings: Any) -> None:
    build = optim.build
    patch.setattr(optim, "build", lambda given, *rest: build(given.model_copy(update=settings), *rest))


def _decoupled_weight_decay(patch: pytest.MonkeyPatch, kind: type[optim.SGD | optim.Adam]) -> None:
    original = kind.apply

    @torch.no_grad()
    def apply(self: Any, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        settings = self._settings
        for variable in self._variables:
            variable.mul_(1.0 - learning_rate * settings.weight_decay)
        self._settings = settings.model_copy(update={"weight_decay": 0.0})
        original(self, gradients, learning_rate, step)
        self._settings = settings

    patch.setattr(kind, "apply", apply)


def _model_with(patch: pytest.MonkeyPatch, change: Callable[[nn.Module, Architecture], None]) -> None:
    build = models.build

    def changed(architecture: Architecture, *rest: Any) -> nn.Module:
        model = build(architecture, *rest)
        change(model, architecture)
        return model

    patch.setattr(models, "build", changed)


def _is_wide(model: nn.Module) -> bool:
    return next(model.parameters()).dtype == torch.float64


def _without_bias(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(
        dataclasses.replace(layer, body=_without_bias(layer.body))
        if isinstance(layer, Residual)
        else dataclasses.replace(layer, bias=False)
        if isinstance(layer, Conv) and layer.kernel_size == 1
        else layer
        for layer in layers
    )


def _tf32(x: torch.Tensor) -> torch.Tensor:
    rounded = ((x.detach().float().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).to(x.dtype)
    return x + (rounded - x.detach())


def _shard_sizes(num_examples: int, replicas: int) -> set[int]:
    bounds = (shard(num_examples, replicas, rank) for rank in range(replicas))
    return {stop - start for start, stop in bounds}


DEFECTS = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", None) == __name__ and not name.startswith("_")
}
