"""A user's own model of a matched pair, built unchanged, with the suite's names of layers and masks of dropouts."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from common.matching import pair
from common.matching.pair import PairedModel
from common.models import architectures, user_code
from common.models.architectures import Architecture, Opaque
from common.spec import SpecError
from pytorch_impl import batch_norm
from pytorch_impl.batch_norm import ReplicaGroup


def build(paired_model: PairedModel, architecture: Architecture, precision: str, group: ReplicaGroup | None) -> nn.Module:
    """Build a user's own model, as `build_<framework>` of a user's module does.

    Args:
        paired_model: the name of the model, and the names of its layers.
        architecture: the pair's architecture.
        precision: `float32` or `float64`.
        group: replicas that share BatchNorm statistics; None: statistics per replica.
    """
    model = cast(Opaque, architecture.layers[0])
    if isinstance(user_code.find(paired_model.model), nn.Module):
        raise SpecError(
            f"{paired_model.model} is one model, and a run needs several. Name its class, or a function that makes it."
        )
    height, width, channels = model.shape
    # Constants that a model keeps as buffers have the type that new tensors have.
    default_dtype = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, precision))
    try:
        net = user_code.build(paired_model.model, nn.Module, classes=model.num_outputs, image_shape=(height, width, channels))
    finally:
        torch.set_default_dtype(default_dtype)
    user_model = UserModel(paired_model, model, net, group)
    num_trained = sum(parameter.numel() for parameter in user_model.parameters() if parameter.requires_grad)
    pair.check_trained(paired_model, architecture, num_trained)
    return user_model


class UserModel(nn.Module):
    """Passes the suite's images and masks to a user's model."""

    def __init__(self, paired_model: PairedModel, model: Opaque, net: nn.Module, group: ReplicaGroup | None) -> None:
        super().__init__()
        self.net = net
        self._names = paired_model.layers
        self._channels = model.shape[-1]
        self._dropouts: list[str] = []
        for layer in model.layers:
            name, order = paired_model.layers[layer.name], paired_model.order(layer.name)
            if isinstance(layer, architectures.Dropout):
                net.set_submodule(name, _BatchMaskDropout(layer, order))
                self._dropouts.append(name)
            elif isinstance(layer, architectures.BatchNorm) and group is not None:
                net.set_submodule(name, batch_norm.build(layer, group))
            cast(Any, net.get_submodule(name)).input_order = order

    def find(self, name: str) -> Any:
        """Return the object that holds the arrays of a layer of the architecture."""
        return self.net.get_submodule(self._names[name])

    def constants(self) -> list[torch.Tensor]:
        """Return the buffers that belong to no layer of the architecture: constants of the model."""
        layers = tuple(f"{name}." for name in self._names.values())
        return [buffer for name, buffer in self.net.named_buffers() if not name.startswith(layers)]

    def forward(self, images: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
        """Return logits [N, classes] of images, with a mask bool [N, units] for each dropout."""
        # Found anew: torch's copies for other devices have layers of their own.
        for name, mask in zip(self._dropouts if masks else (), masks, strict=True):
            cast(Any, self.net.get_submodule(name)).mask = mask
        model_images = images if self._channels == images.shape[1] else images[:, : self._channels].contiguous()
        return self.net(model_images)


class _BatchMaskDropout(nn.Module):
    """A dropout with the batch's mask, in the canonical order of values, instead of its own random draw."""

    def __init__(self, layer: architectures.Dropout, order: Any) -> None:
        super().__init__()
        self.scale = 1.0 / (1.0 - layer.rate)
        self.mask: torch.Tensor | None = None
        self.register_buffer("places", None if order is None else torch.from_numpy(np.argsort(order)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the mask to [N, C, H, W] or [N, units]; the identity in evaluation mode."""
        if not self.training:
            return x
        assert self.mask is not None
        mask = self.mask if self.places is None else self.mask[:, cast(torch.Tensor, self.places)]
        if x.ndim == 4:
            whole_channels = mask.shape[1] == x.shape[1]
            # Twin: torch's images are channels first.
            size = (1, 1) if whole_channels else tuple(x.shape[2:])
            mask = mask.reshape(len(mask), *size, x.shape[1]).permute(0, 3, 1, 2)
        assert math.prod(mask.shape[1:]) in (x.shape[1], math.prod(x.shape[1:]))
        return x * mask * self.scale
