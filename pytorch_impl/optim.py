"""The update rules: the same formula in both twins, and the framework's own optimizers by choice."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt
import torch

from common import spec


class Optimizer(Protocol):
    """What a training step asks of an optimizer."""

    def apply(self, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        """Update every variable once; `step` counts from 1."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What it keeps from one update to the next, by name."""
        ...

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave of an optimizer of the same settings."""
        ...


def build(settings: spec.Optimizer, variables: list[Any]) -> Optimizer:
    """The optimizer of a spec for a model's trainable variables."""
    if settings.native:
        return Native(settings, variables)
    return {"sgd": SGD, "adam": Adam}[settings.name](settings, variables)


class SGD:
    """Momentum as in PyTorch: b = momentum b + g; w = w - learning_rate b; weight decay is added to g.

    The learning rate stands outside the buffer, so that a schedule acts at once (Sutskever et al. 2013 fold it in).
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Any]) -> None:
        self._settings = settings
        self._variables = variables
        self._buffers = [torch.zeros_like(variable) for variable in variables]

    @torch.no_grad()
    def apply(self, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        """Update every variable once; `step` counts from 1."""
        for variable, gradient, buffer in zip(self._variables, gradients, self._buffers, strict=True):
            if self._settings.weight_decay:
                gradient = gradient.add(variable, alpha=self._settings.weight_decay)
            buffer.mul_(self._settings.momentum).add_(gradient)
            variable.add_(buffer, alpha=-learning_rate)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What it keeps from one update to the next, by name."""
        return _values(buffer=self._buffers)

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave of an optimizer of the same settings."""
        _assign(values, buffer=self._buffers)


class Adam:
    """Kingma & Ba 2015, epsilon added after the bias correction; weight decay is added to g.

    m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
    w = w - learning_rate / (1 - beta_1^t) m / (sqrt(v) / sqrt(1 - beta_2^t) + epsilon).
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Any]) -> None:
        self._settings = settings
        self._variables = variables
        self._means = [torch.zeros_like(variable) for variable in variables]
        self._squares = [torch.zeros_like(variable) for variable in variables]

    @torch.no_grad()
    def apply(self, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        """Update every variable once; `step` counts from 1."""
        beta_1, beta_2 = self._settings.beta_1, self._settings.beta_2
        correction_1, correction_2 = 1.0 - beta_1**step, 1.0 - beta_2**step
        for variable, gradient, mean, square in zip(self._variables, gradients, self._means, self._squares, strict=True):
            if self._settings.weight_decay:
                gradient = gradient.add(variable, alpha=self._settings.weight_decay)
            mean.lerp_(gradient, 1.0 - beta_1)
            square.mul_(beta_2).addcmul_(gradient, gradient, value=1.0 - beta_2)
            denominator = square.sqrt().div_(correction_2**0.5).add_(self._settings.epsilon)
            variable.addcdiv_(mean, denominator, value=-learning_rate / correction_1)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What it keeps from one update to the next, by name."""
        return _values(mean=self._means, square=self._squares)

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave of an optimizer of the same settings."""
        _assign(values, mean=self._means, square=self._squares)


class Native:
    """The framework's own SGD or Adam with the spec's numbers; its rule differs between the twins."""

    def __init__(self, settings: spec.Optimizer, variables: list[Any]) -> None:
        self._variables = variables
        if settings.name == "sgd":
            self._optimizer: torch.optim.Optimizer = torch.optim.SGD(
                variables, settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
            )
        else:
            self._optimizer = torch.optim.Adam(
                variables,
                settings.learning_rate,
                betas=(settings.beta_1, settings.beta_2),
                eps=settings.epsilon,
                weight_decay=settings.weight_decay,
            )

    def apply(self, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        """Update every variable once; `step` counts from 1."""
        for variable, gradient in zip(self._variables, gradients, strict=True):
            variable.grad = gradient
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """What it keeps from one update to the next, by name."""
        kept = self._optimizer.state_dict()["state"]
        return {
            f"{index}/{name}": tensor.cpu().numpy()
            for index, tensors in kept.items()
            for name, tensor in tensors.items()
            if tensor is not None
        }

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave of an optimizer of the same settings."""
        kept: dict[int, dict[str, torch.Tensor]] = {}
        for path, array in values.items():
            index, _, name = path.partition("/")
            kept.setdefault(int(index), {})[name] = torch.tensor(array)
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": kept})


def _values(**kept: list[torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
    return {f"{name}/{index}": one.cpu().numpy() for name, each in kept.items() for index, one in enumerate(each)}


def _assign(values: dict[str, npt.NDArray[Any]], **kept: list[torch.Tensor]) -> None:
    for name, each in kept.items():
        for index, one in enumerate(each):
            one.copy_(torch.tensor(values[f"{name}/{index}"]))
