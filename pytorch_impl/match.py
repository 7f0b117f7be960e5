"""A user's own model for `match`: built as it is, recorded layer by layer, its parameters in canonical form."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from common.matching import recording, records
from common.matching.recording import LayerRecorder
from common.matching.records import Array, Layer, ModelReport, OpenRequest
from common.models import user_code
from common.spec import SpecError
from pytorch_impl import private_api

SUPPORTED: dict[str, tuple[str, ...]] = {
    "conv": ("Conv2d",),
    "transposed_conv": ("ConvTranspose2d",),
    "dense": ("Linear",),
    "batch_norm": ("BatchNorm1d", "BatchNorm2d"),
    "layer_norm": ("LayerNorm",),
    "group_norm": ("GroupNorm",),
    "max_pool": ("MaxPool2d", "max_pool2d"),
    "average_pool": ("AvgPool2d", "avg_pool2d"),
    "global_average_pool": ("AdaptiveAvgPool2d", "adaptive_avg_pool2d", "mean"),
    "global_max_pool": ("AdaptiveMaxPool2d", "adaptive_max_pool2d", "amax"),
    "activation": (
        *("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "GELU", "SiLU", "Mish", "Sigmoid", "Tanh", "Softplus", "Hardswish"),
        *("relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "sigmoid", "tanh", "softplus"),
        *("Hardtanh", "hardtanh", "Softsign", "softsign"),
        *("hardswish", "Hardsigmoid", "hardsigmoid", "Softmax", "softmax", "LogSoftmax", "log_softmax"),
    ),
    "dropout": ("Dropout", "Dropout2d", "dropout", "dropout2d"),
    "flatten": ("Flatten", "flatten"),
    "padding": ("ZeroPad2d", "pad"),
    "add": ("add", "add_", "__add__", "__iadd__", "__radd__"),
    "concatenate": ("cat", "concat"),
}
"""Names of layers and functions by kind. Another layer without parameters is compared by its values."""

_WITH_PARAMETERS = ("conv", "depthwise_conv", "transposed_conv", "dense", "batch_norm", "layer_norm", "group_norm")
_ROLES = {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "variance"}
_DROPOUTS = ("dropout", "dropout2d")
_OTHER_DROPOUTS = (
    *("dropout1d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "bernoulli", "bernoulli_"),
    *("rand", "randn", "rand_like", "randn_like"),
)


class RecordedModel:
    """Implementation of `common.matching.records.MatchModel`."""

    def __init__(self, request: OpenRequest) -> None:
        self._request = request
        # Twin: here the type of new tensors is a setting of the process.
        torch.set_default_dtype(torch.float64)
        _seed()
        with user_code.record_lines(nn.Module) as self._lines:
            user_code.find(request.model)
            # The same call gives the same answer, whatever importing the module has drawn.
            _seed()
            net = user_code.build(request.model, nn.Module, classes=request.classes, image_shape=request.image)
        # Twin: torch makes layers before it converts them; Keras takes the type where they are made.
        self._net: nn.Module = net.double()
        self._prepare = user_code.find(request.prepare) if request.prepare else None
        self._loss = user_code.find(request.loss) if request.loss else functional.cross_entropy
        self._leaves = {id(layer): (name, layer) for name, layer in net.named_modules() if _is_leaf(layer)}
        if request.weights is not None:
            self._read(request.weights)
        self._refuse_unsupported()
        self._orders: dict[str, Array] | None = None
        layers, _, logits = self.forward(records.images(request)[0], training=False)
        self._used_layers = list(dict.fromkeys(layer.name.partition("#")[0] for layer in layers if layer.parameters))
        self.report = ModelReport(layers=layers, outputs=list(logits.shape[1:]), where=self._lines.get(id(net)))

    def parameters(self) -> dict[str, Array]:
        """Return all parameters and running statistics, in canonical form."""
        return {name: self._canonical(name, role, layer, tensor) for name, role, layer, tensor in self._all()}

    def load(self, parameters: dict[str, Array]) -> None:
        """Set parameters, given in canonical form."""
        with torch.no_grad():
            for name, role, layer, tensor in self._all():
                array = recording.to_native(parameters[name], role, self._order(name))
                tensor.copy_(torch.from_numpy(np.ascontiguousarray(_from_canonical(array, role, layer))))

    def forward(self, images: Array, *, training: bool) -> tuple[list[Layer], list[tuple[Array, Array]], Array]:
        """Return layers in order of execution, (input, output) of each, and the model's output."""
        recorder = LayerRecorder(edges=self._orders is None)
        constants = {name: buffer.clone() for name, buffer in self._constants.items()}
        with torch.no_grad():
            logits = self._run(images, recorder, training=training)
        for name, before in constants.items():
            if not torch.equal(before, buffer_now := self._net.get_buffer(name)):
                buffer_now.copy_(before)
                raise SpecError(
                    f"The buffer {name} of {self._request.model} changes while the model runs. Only constants are supported."
                )
        if self._orders is None:  # ordinary images tell orders, and are the first; black ones fit any order
            self._orders = recorder.orders
        return recorder.layers, recorder.values, logits.numpy()

    def gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Array]]:
        """Return (loss, gradients) in training mode."""
        loss = self._backward(images, labels, LayerRecorder(keep=False))
        gradients: dict[str, Array] = {}
        for name, role, layer, tensor in self._all():
            if isinstance(tensor, nn.Parameter):
                gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                gradients[name] = self._canonical(name, role, layer, gradient)
        return loss, gradients

    def start(self, rule: str) -> dict[str, Any]:
        """Begin training with a rule of `OpenRequest.rules`. Returns the optimizer's settings, by names common to all twins."""
        parameters = list(self._net.parameters())
        if self._request.optimizer:
            with user_code.report_errors(self._request.optimizer):
                self._optimizer = user_code.find(self._request.optimizer)(parameters)
        elif rule == "sgd":
            self._optimizer = torch.optim.SGD(parameters, records.LEARNING_RATE[rule], records.MOMENTUM)
        else:
            betas = (records.BETA_1, records.BETA_2)
            self._optimizer = torch.optim.Adam(parameters, records.LEARNING_RATE[rule], betas, records.EPSILON)
        self._steps = 0
        # Twin: torch's Adam adds weight decay to the gradient, Keras's takes it from the weights.
        kind, defaults = type(self._optimizer).__name__.lower(), self._optimizer.defaults
        settings = {"rule": {"adamw": "adam"}.get(kind, kind), "learning_rate": defaults["lr"], "epsilon": defaults.get("eps")}
        settings |= {"weight_decay": defaults.get("weight_decay", 0), "coupled": kind != "adamw", "rounding": 1.0}
        settings |= dict(zip(("beta_1", "beta_2"), defaults.get("betas", (0, 0)), strict=True))
        # Twin: torch's RMSprop adds epsilon behind the root, Keras's below it.
        settings |= {"epsilon_before_correction": False, "epsilon_below_root": False, "decay": defaults.get("alpha")}
        # Twin: torch clips, averages and schedules outside of the optimizer.
        option_names = ("amsgrad", "centered", "maximize", "lr_decay", "initial_accumulator_value")
        settings["more"] = {key: str(defaults[key]) for key in option_names if defaults.get(key)}
        return {**settings, **{key: defaults.get(key, 0) for key in ("momentum", "nesterov")}}

    def step(self, images: Array, labels: Array) -> float:
        """Do one update. Returns the loss before it."""
        loss = self._backward(images, labels, LayerRecorder(keep=False, step=self._steps))
        self._optimizer.step()
        self._steps += 1
        return loss

    def _backward(self, images: Array, labels: Array, recorder: LayerRecorder) -> float:
        self._net.zero_grad()
        outputs = self._run(images, recorder, training=True)
        with user_code.report_errors(self._request.loss or self._request.model):
            loss = self._loss(outputs, torch.from_numpy(labels))
            loss.backward()
        return loss.item()

    def _run(self, images: Array, recorder: LayerRecorder, *, training: bool) -> torch.Tensor:
        with user_code.report_errors(self._request.prepare or self._request.model):
            # Twin: torch's images are NCHW.
            tensor = self._prepare(images) if self._prepare else torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
            tensor = torch.as_tensor(tensor).double()
        recorder.set_input(tensor.numpy(), self._request.image, channels_first=True)
        self._net.train(training)
        functions = _FunctionRecorder(recorder)
        hooks: list[Any] = []
        for name, layer in self._leaves.values():
            hooks.append(layer.register_forward_pre_hook(functions.enter))
            hooks.append(layer.register_forward_hook(self._leave(name, functions)))
        try:
            with user_code.report_errors(self._request.model, self._request.hint), functions:
                outputs = self._net(tensor)
        finally:
            for hook in hooks:
                hook.remove()
        if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
            received = list(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            raise SpecError(f"{self._request.model} must return one tensor [N, classes]. Received: {received}.")
        return outputs

    def _leave(self, name: str, functions: _FunctionRecorder) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def leave(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            kind, settings = _describe(layer)
            shapes = {
                role: list(_to_canonical(tensor.detach().numpy(), role, layer).shape) for role, tensor in _parameters(layer)
            }
            where = self._lines.get(id(layer))
            recorded_layer = Layer(
                name=name, kind=kind, settings=settings, where=where, parameters=shapes, inputs=functions.inputs
            )
            functions.leave(recorded_layer, output, last_axis=_is_along_last_axis(layer))

        return leave

    def _all(self) -> list[tuple[str, str, nn.Module, torch.Tensor]]:
        """List (name, role, layer, tensor) of each parameter of the layers that ran, in this order."""
        layers = dict(self._leaves.values())
        return [
            (f"{name}.{role}", role, layers[name], tensor)
            for name in self._used_layers
            for role, tensor in _parameters(layers[name])
        ]

    def _order(self, name: str) -> Array | None:
        return (self._orders or {}).get(name.rpartition(".")[0])

    def _canonical(self, name: str, role: str, layer: nn.Module, tensor: torch.Tensor) -> Array:
        array = _to_canonical(tensor.detach().numpy(), role, layer)
        return np.array(recording.to_canonical(array, role, self._order(name)))

    def _weights_in(self, state: Any) -> Any:
        """Find the state_dict in a file. A checkpoint also has an epoch and an optimizer. `nn.DataParallel` adds a prefix."""
        # Twin: a file of torch.save may hold anything. Keras's .weights.h5 holds the weights of one model.
        if not isinstance(state, dict):
            return state
        names = self._net.state_dict().keys()

        def state_dicts(candidate: Any) -> list[Any]:
            if not isinstance(candidate, dict):
                return []
            bare = {str(name).removeprefix("module."): value for name, value in candidate.items()}
            return [weights for weights in (candidate, bare) if names & weights.keys()][:1]

        top_level = state_dicts(state) or state_dicts(state.get("state_dict"))
        matches = top_level or [weights for candidate in state.values() for weights in state_dicts(candidate)]
        if len(matches) != 1:
            names_words = ", ".join([*map(str, state)][:6]) or "nothing"
            raise ValueError(f"it holds {names_words}, and weights of this model in {len(matches)} of them")
        return matches[0]

    def _read(self, path: str) -> None:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            match = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
            content = f"an object of {match[1]}" if match else "no file of torch.save"
            raise SpecError(
                f"{path} is no state_dict. Received: {content}. Save one with torch.save(model.state_dict(), FILE)."
            ) from error
        try:
            built = {name: buffer.clone() for name, buffer in self._constants.items()}
            self._net.load_state_dict(self._weights_in(state))
            for name, before in built.items():  # a file of float32 rounds a constant; then the model's own is the exact one
                if torch.equal(before.float(), (buffer_now := self._net.get_buffer(name)).float()):
                    buffer_now.copy_(before)
        except Exception as error:
            words = " ".join(str(error).split())[:400]
            raise SpecError(
                f"{path} does not fit {self._request.model}: {words}. Give the state_dict of this model."
            ) from error

    @property
    def _constants(self) -> dict[str, torch.Tensor]:
        """Buffers by name that are no running statistics but constants of the model."""
        prefixes = [f"{name}." for name, layer in self._leaves.values() if _describe(layer)[0] in _WITH_PARAMETERS]
        return {name: buffer for name, buffer in self._net.named_buffers() if not name.startswith(tuple(prefixes))}

    def _refuse_unsupported(self) -> None:
        for name, layer in self._net.named_modules():
            parameter_names = [parameter_name for parameter_name, _ in layer.named_parameters(recurse=False)]
            is_supported = id(layer) in self._leaves and _describe(layer)[0] in _WITH_PARAMETERS
            if (parameter_names and not is_supported) or hasattr(layer, "parametrizations"):
                names_words = f" ({', '.join(parameter_names)})" if parameter_names else ""
                raise SpecError(
                    f"{name or 'The model itself'} ({type(layer).__name__}, {self._lines.get(id(layer)) or 'line unknown'}) "
                    f"has parameters of its own{names_words} and is not supported. Use layers of the list in docs/match.md."
                )


class _FunctionRecorder(TorchFunctionMode):
    """Records calls of functions outside of layers, and gives dropout its mask."""

    def __init__(self, recorder: LayerRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._depth = 0

    def enter(self, layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._depth += 1
        # A layer may work in place.
        self._layer_input = inputs[0].detach().clone() if inputs and isinstance(inputs[0], torch.Tensor) else None
        self.inputs = sum(isinstance(value, torch.Tensor) for value in inputs)

    def leave(self, layer: Layer, output: Any, *, last_axis: bool) -> None:
        self._depth -= 1
        if self._layer_input is not None and isinstance(output, torch.Tensor):
            channels_first = None if last_axis and self._layer_input.ndim == 4 else True
            self._recorder.add(layer, self._layer_input.numpy(), output.detach().numpy().copy(), channels_first=channels_first)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _OTHER_DROPOUTS:
            raise SpecError(f"{name} draws random numbers and is not supported ({user_code.line()}). Use Dropout or Dropout2d.")
        kind = next((kind for kind, names in SUPPORTED.items() if name in names), None)
        tensors = args[0] if kind == "concatenate" and args else args
        is_recorded = self._depth == 0 and kind is not None and self._is_layer(kind, tensors)
        function_input = tensors[0].detach().clone() if is_recorded else None
        output = self._drop(name, *args, **kwargs) if name in _DROPOUTS else func(*args, **kwargs)
        if name in ("mean", "amax") and (output.ndim not in (2, 4) or output.numel() != output.shape[0] * output.shape[1]):
            is_recorded = False  # over other axes than height and width
        if is_recorded and function_input is not None and kind is not None:
            where = user_code.line()
            settings = _function_settings(name, func, args, kwargs)
            inputs = sum(isinstance(value, torch.Tensor) for value in tensors)
            layer = Layer(name=f"{name.strip('_')} at {where}", kind=kind, settings=settings, where=where, inputs=inputs)
            self._recorder.add(layer, function_input.numpy(), output.detach().numpy().copy(), channels_first=True)
        return output

    def _is_layer(self, kind: str, tensors: Any) -> bool:
        floats = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()]
        if not floats or floats[0].ndim not in (2, 4):
            return False
        return len(floats) > 1 if kind in ("add", "concatenate") else True

    def _drop(
        self, name: str, values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p == 0:
            return values
        shape = (*values.shape[:2], 1, 1) if name == "dropout2d" and values.ndim == 4 else tuple(values.shape)
        mask = self._recorder.keep_mask(values.detach().numpy(), shape, p, channels_first=True)
        return values * torch.from_numpy(np.ascontiguousarray(mask)).to(values.dtype) / (1 - p)


def _seed() -> None:
    # Twin: one function of Keras seeds all three.
    random.seed(records.SEED)
    np.random.seed(records.SEED)
    torch.manual_seed(records.SEED)


def _is_leaf(layer: nn.Module) -> bool:
    return not any(True for _ in layer.children()) and type(layer) is not nn.Sequential


def _is_along_last_axis(layer: nn.Module) -> bool:
    """Return whether channels are the last axis of any image that a layer takes. Its own forward may transpose it first."""
    return type(layer).forward in (nn.Linear.forward, nn.LayerNorm.forward)


def _parameters(layer: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """List (role, tensor) of each parameter and running statistic of a layer."""
    kind = _describe(layer)[0]
    names = {"weight": "kernel", "bias": "bias"} if kind.endswith(("conv", "dense")) else _ROLES
    tensors = ((role, getattr(layer, name, None)) for name, role in names.items())
    return [(role, tensor) for role, tensor in tensors if isinstance(tensor, torch.Tensor)]


def _to_canonical(array: Array, role: str, layer: nn.Module) -> Array:
    """Convert kernels to HWIO (depthwise: height, width, channels, multiplier; transposed: HWOI), dense ones to IO."""
    if role != "kernel":
        return array
    if _describe(layer)[0] == "depthwise_conv":
        array = array.reshape(getattr(layer, "groups", 1), -1, *array.shape[2:])
        return array.transpose(2, 3, 0, 1)
    return array.T if array.ndim == 2 else array.transpose(2, 3, 1, 0)


def _from_canonical(array: Array, role: str, layer: nn.Module) -> Array:
    if role != "kernel":
        return array
    if _describe(layer)[0] == "depthwise_conv":
        return array.transpose(2, 3, 0, 1).reshape(-1, 1, *array.shape[:2])
    return array.T if array.ndim == 2 else array.transpose(3, 2, 0, 1)


def _describe(layer: nn.Module) -> tuple[str, dict[str, Any]]:
    """Return (kind, settings) of a layer."""
    match layer:
        case nn.Conv2d():
            padding = layer.padding
            if isinstance(padding, str):
                # Twin: torch's `same` allows no stride, so it needs no image size.
                zipped = zip(layer.kernel_size, layer.dilation, strict=True)
                padding = [
                    recording.same_padding(1, size, 1, dilation) if padding == "same" else (0, 0) for size, dilation in zipped
                ]
            settings = {
                "kernel": list(layer.kernel_size), "stride": list(layer.stride), "dilation": list(layer.dilation),
                "groups": layer.groups, "padding": [list(_pair(size)) for size in padding], "bias": layer.bias is not None,
                "padding_mode": layer.padding_mode, "data_format": "channels_first",
            }  # fmt: skip
            return "depthwise_conv" if layer.groups == layer.in_channels > 1 else "conv", settings
        case nn.ConvTranspose2d():
            settings = {"stride": list(layer.stride), "dilation": list(layer.dilation), "bias": layer.bias is not None}
            return "transposed_conv", settings
        case nn.Linear():
            return "dense", {"bias": layer.bias is not None}
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return "batch_norm", {"epsilon": layer.eps, "momentum": layer.momentum, "biased_variance": False, "axis": -1}
        case nn.LayerNorm() if len(layer.normalized_shape) == 1:
            return "layer_norm", {"epsilon": layer.eps}
        case nn.GroupNorm():
            return "group_norm", {"epsilon": layer.eps, "groups": layer.num_groups}
    name = type(layer).__name__
    kind = next((kind for kind, names in SUPPORTED.items() if name in names and not name.islower()), "other")
    attributes = {
        key: value for key, value in vars(layer).items() if (not key.startswith("_") and key != "training") or kind == "dropout"
    }
    return kind, _settings(kind, name, attributes)


def _function_settings(name: str, func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    kind = next(kind for kind, names in SUPPORTED.items() if name in names)
    try:
        bound = inspect.signature(private_api.with_signature(name, func)).bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {key: value for key, value in bound.arguments.items() if not isinstance(value, torch.Tensor)}
    except (TypeError, ValueError):  # a builtin has no signature
        arguments = kwargs
    return _settings(kind, name, arguments)


def _settings(kind: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return settings in the form that all frameworks share."""
    if kind in ("max_pool", "average_pool") and "kernel_size" in arguments:
        size = _pair(arguments["kernel_size"])
        stride = _pair(arguments.get("stride") or size)
        padding = [[pixels, pixels] for pixels in _pair(arguments.get("padding", 0))]
        settings: dict[str, Any] = {"window": list(size), "stride": list(stride), "padding": padding}
        return (
            {**settings, "count_padding": bool(arguments.get("count_include_pad", True))}
            if kind == "average_pool"
            else settings
        )
    if kind == "dropout":
        channels = name.lower() == "dropout2d"
        return {"rate": arguments.get("p", 0.5), "active": bool(arguments.get("training", True)), "whole_channels": channels}
    if kind == "activation":
        function = {"logsoftmax": "log_softmax", "leakyrelu": "leaky_relu"}.get(name.lower(), name.lower().strip("_"))
        slope = {"slope": arguments.get("negative_slope", 0.01)} if function == "leaky_relu" else {}
        return {
            "function": function,
            **slope,
            **({"approximate": arguments.get("approximate", "none")} if function == "gelu" else {}),
        }
    return {}


def _pair(value: Any) -> tuple[int, int]:
    return (value[0], value[-1]) if isinstance(value, (tuple, list)) else (value, value)
