"""The update rules: the same formulas in both twins, or the framework's own optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from common import spec
from common.training.optim import TwinOptimizer

_FIRST_LOSS_SCALE = 2.0**15
_GROWTH_STEPS = 2000


def build(settings: spec.Optimizer, variables: list[Any], switches: dict[str, Any] | None = None) -> TwinOptimizer:
    """Build the optimizer for a model's trainable variables.

    Args:
        variables: in the order of the gradients that `apply` gets.
        switches: the run's resolved switches; None: only the update rule matters.
    """
    switch_values = switches or {}
    optimizer_class = NativeOptimizer if settings.native else {"sgd": SGD, "adam": Adam}[settings.name]
    optimizer: TwinOptimizer = optimizer_class(settings, variables, switch_values.get("optimizer_kernel", "loop"))
    return LossScaled(optimizer) if switch_values.get("arithmetic") == "float16" else optimizer


class SGD:
    """Momentum as in PyTorch: b = momentum b + g; w = w - learning_rate b; weight decay is added to g.

    The buffer does not include the learning rate, so a schedule acts at once. Sutskever et al. 2013 include it.
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Any], kernel: str = "loop") -> None:
        self._settings = settings
        self._variables = variables
        self._kernel = kernel
        self._buffers = [torch.zeros_like(variable) for variable in variables]

    @torch.no_grad()
    def apply(self, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        gradients, weight_decay = _for_kernel(self._kernel, gradients, self._variables), self._settings.weight_decay
        if not self._settings.momentum:  # torch keeps no buffer then
            self._keep(gradients)
            if weight_decay:  # what is kept has it already
                gradients, weight_decay = self._buffers, 0.0
        # Twin: torch's own optimizer has this rule.
        sgd(
            self._variables,
            gradients,
            list(self._buffers),
            weight_decay=weight_decay,
            momentum=self._settings.momentum,
            lr=learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            **_kernel_options(self._kernel),
        )

    def _keep(self, gradients: list[torch.Tensor]) -> None:
        """Keep what the formula has as buffers without momentum: the gradients. No update reads them.

        Each kernel here is timed with the update. So none runs, unless the gradients would be others when `state` reads them:
        weight decay needs the variables before the update, and DistributedDataParallel writes the next gradients into the same
        memory, of which they are views.
        """
        weight_decay = self._settings.weight_decay
        if weight_decay or any(gradient.untyped_storage().nbytes() != gradient.nbytes for gradient in gradients):
            gradients = self._decayed(gradients)
        self._buffers = list(gradients)

    def _decayed(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the gradients with weight decay, in memory of their own."""
        weight_decay = self._settings.weight_decay
        return [torch.add(*pair, alpha=weight_decay) for pair in zip(gradients, self._variables, strict=True)]

    @torch.no_grad()
    def state(self) -> dict[str, npt.NDArray[Any]]:
        if self._settings.momentum or self._settings.weight_decay:
            return _values(buffer=self._buffers)
        return _values(buffer=self._decayed(self._buffers))  # a decay of 0 makes 0 of -0, as it does in the formula

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        self._buffers = [torch.zeros_like(variable) for variable in self._variables]  # the former may be gradients
        _assign(values, buffer=self._buffers)


class Adam:
    """Adam of Kingma & Ba 2015. Epsilon is added after the bias correction; weight decay is added to g.

    m = beta_1 m + (1 - beta_1) g; v = beta_2 v + (1 - beta_2) g^2;
    w = w - learning_rate / (1 - beta_1^t) m / (sqrt(v) / sqrt(1 - beta_2^t) + epsilon).
    """

    def __init__(self, settings: spec.Optimizer, variables: list[Any], kernel: str = "loop") -> None:
        self._settings = settings
        self._variables = variables
        self._kernel = kernel
        self._means = [torch.zeros_like(variable) for variable in variables]
        self._squares = [torch.zeros_like(variable) for variable in variables]
        # The fused kernel reads the step on its device, the others on the host.
        self._steps = [torch.zeros((), device=variable.device if kernel == "fused" else "cpu") for variable in variables]
        self._last_step = 0

    @torch.no_grad()
    def apply(self, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        if self._last_step != step - 1:  # as after a checkpoint; otherwise torch counts the steps
            for step_tensor in self._steps:
                step_tensor.fill_(step - 1)
        self._last_step = step
        # Twin: torch's own optimizer has this rule.
        adam(
            self._variables,
            _for_kernel(self._kernel, gradients, self._variables),
            self._means,
            self._squares,
            [],
            self._steps,
            amsgrad=False,
            beta1=self._settings.beta_1,
            beta2=self._settings.beta_2,
            lr=learning_rate,
            weight_decay=self._settings.weight_decay,
            eps=self._settings.epsilon,
            maximize=False,
            **_kernel_options(self._kernel),
        )

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return _values(mean=self._means, square=self._squares)

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        _assign(values, mean=self._means, square=self._squares)


class NativeOptimizer:
    """The framework's own SGD or Adam with the spec's settings. Its rule differs between the twins."""

    def __init__(self, settings: spec.Optimizer, variables: list[Any], kernel: str = "loop") -> None:
        self._kernel = kernel
        self._variables = variables
        if settings.name == "sgd":
            self._optimizer: torch.optim.Optimizer = torch.optim.SGD(
                variables,
                settings.learning_rate,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
                **_kernel_options(kernel),
            )
        else:
            self._optimizer = torch.optim.Adam(
                variables,
                settings.learning_rate,
                betas=(settings.beta_1, settings.beta_2),
                eps=settings.epsilon,
                weight_decay=settings.weight_decay,
                **_kernel_options(kernel),
            )

    def apply(self, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        for variable, gradient in zip(self._variables, _for_kernel(self._kernel, gradients, self._variables), strict=True):
            variable.grad = gradient
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        tensors_by_index = self._optimizer.state_dict()["state"]
        return {
            f"{index}/{name}": tensor.cpu().numpy()
            for index, tensors in tensors_by_index.items()
            for name, tensor in tensors.items()
            if tensor is not None
        }

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        tensors_by_index: dict[int, dict[str, torch.Tensor]] = {}
        for path, array in values.items():
            index, _, name = path.partition("/")
            value = torch.tensor(array)
            if name != "step":
                (value,) = _with_strides_of([self._variables[int(index)]], [value])
            tensors_by_index.setdefault(int(index), {})[name] = value
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": tensors_by_index})


class LossScaled:
    """An optimizer under a scaled loss, which keeps float16 from rounding small gradients to 0 (Micikevicius et al. 2018).

    A gradient that is not finite skips the step and halves the scale. After 2,000 applied steps in a row the scale doubles.
    """

    def __init__(self, optimizer: TwinOptimizer) -> None:
        self._optimizer = optimizer
        self._scale, self._applied_in_a_row, self._skipped = _FIRST_LOSS_SCALE, 0, 0

    @property
    def scale(self) -> float:
        return self._scale

    def apply(self, gradients: list[torch.Tensor], learning_rate: float, step: int) -> None:
        """Update every variable once, or skip the step; `step` counts from 1."""
        # The largest magnitude: a sum of squares may overflow where all gradients are finite.
        if not torch.nn.utils.get_total_norm(gradients, torch.inf).isfinite():
            self._scale = max(self._scale / 2, 1.0)
            self._applied_in_a_row = 0
            self._skipped += 1
            return
        self._optimizer.apply(gradients, learning_rate, step - self._skipped)
        self._applied_in_a_row += 1
        if self._applied_in_a_row % _GROWTH_STEPS == 0:
            self._scale *= 2

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {**self._optimizer.state(), "loss_scale": np.array([self._scale, self._applied_in_a_row, self._skipped])}

    def load_state(self, values: dict[str, npt.NDArray[Any]]) -> None:
        others = dict(values)
        self._scale, applied_in_a_row, skipped = others.pop("loss_scale").tolist()
        self._applied_in_a_row, self._skipped = int(applied_in_a_row), int(skipped)
        self._optimizer.load_state(others)


# Twin: fused kernels are a switch in torch. The other twin always uses them.
def _kernel_options(kernel: str) -> dict[str, Any]:
    """Return torch's options of a kernel. Without them, torch would choose by the device."""
    return {"foreach": False} if kernel == "loop" else {kernel: True}


def _for_kernel(kernel: str, gradients: list[torch.Tensor], variables: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients as a kernel needs them: see `_with_strides_of`."""
    return gradients if kernel == "loop" else _with_strides_of(variables, gradients)


def _with_strides_of(variables: list[torch.Tensor], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients or a state, each with its variable's strides.

    torch's fused kernels read variable, gradient and state side by side in memory, and do not look at strides. Gradients
    that were sent in a vector, and stored states, have other strides. They would update other weights.
    """

    def order(tensor: torch.Tensor) -> list[int]:
        return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]

    return [
        gradient if order(gradient) == order(variable) else torch.empty_like(variable).copy_(gradient)
        for variable, gradient in zip(variables, gradients, strict=True)
    ]


def _values(**slots: list[torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
    return {f"{name}/{index}": tensor.cpu().numpy() for name, tensors in slots.items() for index, tensor in enumerate(tensors)}


def _assign(values: dict[str, npt.NDArray[Any]], **slots: list[torch.Tensor]) -> None:
    for name, tensors in slots.items():
        for index, tensor in enumerate(tensors):
            tensor.copy_(torch.tensor(values[f"{name}/{index}"]))
