"""A user's own model for `match`: built as it is, recorded layer by layer, its parameters in canonical form."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from common.matching import recording, records
from common.matching.recording import LayerRecorder
from common.matching.records import Array, Layer, ModelReport, OpenRequest
from common.models import user_code
from common.spec import SpecError
from tensorflow_impl import private_api

SUPPORTED: dict[str, tuple[str, ...]] = {
    "conv": ("Conv2D", "DepthwiseConv2D", "SeparableConv2D"),
    "transposed_conv": ("Conv2DTranspose",),
    "dense": ("Dense",),
    "batch_norm": ("BatchNormalization",),
    "layer_norm": ("LayerNormalization",),
    "group_norm": ("GroupNormalization",),
    "max_pool": ("MaxPooling2D", "MaxPool"),
    "average_pool": ("AveragePooling2D", "AveragePool"),
    "global_average_pool": ("GlobalAveragePooling2D", "Mean"),
    "global_max_pool": ("GlobalMaxPooling2D", "Max"),
    "activation": (
        *("Activation", "ReLU", "LeakyReLU", "ELU", "Softmax", "Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Gelu", "Silu"),
        *("Mish", "Sigmoid", "Tanh", "Softplus", "HardSilu", "HardSigmoid", "LogSoftmax", "HardTanh", "Softsign"),
    ),
    "dropout": ("Dropout", "SpatialDropout2D"),
    "flatten": ("Flatten",),
    "padding": ("ZeroPadding2D", "Pad"),
    "add": ("Add",),
    "concatenate": ("Concatenate",),
}
"""Names of layers and functions by kind. Another layer without parameters is compared by its values."""

_WITH_PARAMETERS = (
    *(layers.Conv2D, layers.DepthwiseConv2D, layers.SeparableConv2D, layers.Conv2DTranspose, layers.Dense),
    *(layers.BatchNormalization, layers.LayerNormalization, layers.GroupNormalization),
)
_FUNCTIONS = {
    "hard_silu": "hardswish",
    "hardsilu": "hardswish",
    "hard_sigmoid": "hardsigmoid",
    "hard_tanh": "hardtanh",
    "leakyrelu": "leaky_relu",
}


class RecordedModel:
    """Implementation of `common.matching.records.MatchModel`."""

    def __init__(self, request: OpenRequest) -> None:
        self._request = request
        keras.utils.clear_session()
        keras.utils.set_random_seed(records.SEED)
        # Twin: here the type of layers is a setting of the process that they take where they are made.
        keras.config.set_floatx("float64")
        with user_code.record_lines(layers.Layer) as self._lines:
            user_code.find(request.model)
            # The same call gives the same answer, whatever importing the module has drawn.
            keras.utils.set_random_seed(records.SEED)
            # Twin: Keras counts layers for their names. Those that the module itself makes do not count, see `native`.
            with private_api.new_name_counts():
                net = user_code.build(request.model, keras.Model, classes=request.classes, image_shape=request.image)
            self._net: Any = net
            self._prepare = user_code.find(request.prepare) if request.prepare else None
            self._loss = user_code.find(request.loss) if request.loss else _cross_entropy
            # Twin: Keras makes variables in the first call.
            self._run(records.images(request)[0], None, training=False)
        if request.weights is not None:
            self._read(request.weights)
        self._recorder: LayerRecorder | None = None
        self._channels_first = False
        # Twin: layers of Keras that stand in different blocks may have one name. torch's names tell the block.
        self._names = recording.unique_names(net, private_api.sublayers)
        self._leaves = self._find_leaves()
        self._refuse_unsupported()
        for leaf in self._leaves:
            self._record_calls(leaf)
        self._orders: dict[str, Array] | None = None
        recorded_layers, _, logits = self.forward(records.images(request)[0], training=False)
        self._used_layers = list(dict.fromkeys(layer.name.partition("#")[0] for layer in recorded_layers if layer.parameters))
        # Twin: functions that a class of Keras calls are not recorded.
        leaf_ids = {*map(id, self._leaves)}
        classes = [layer for layer in private_api.all_layers(net) if private_api.sublayers(layer) and id(layer) not in leaf_ids]
        unrecorded = not all(map(private_api.records_all_calls, classes))
        where = self._lines.get(id(net))
        self.report = ModelReport(layers=recorded_layers, outputs=list(logits.shape[1:]), where=where, unrecorded=unrecorded)

    def parameters(self) -> dict[str, Array]:
        """Return all parameters and running statistics, in canonical form."""
        return {name: self._canonical(name, role, layer, variable) for name, role, layer, variable in self._all()}

    def load(self, parameters: dict[str, Array]) -> None:
        """Set parameters, given in canonical form."""
        for name, role, _, variable in self._all():
            array = recording.to_native(parameters[name], role, self._order(name))
            variable.assign(array.reshape(variable.shape))

    def forward(self, images: Array, *, training: bool) -> tuple[list[Layer], list[tuple[Array, Array]], Array]:
        """Return layers in order of execution, (input, output) of each, and the model's output."""
        recorder = LayerRecorder(edges=self._orders is None)
        logits = self._run(images, recorder, training=training)
        if self._orders is None:  # ordinary images tell orders, and are the first; black ones fit any order
            self._orders = recorder.orders
        return recorder.layers, recorder.values, logits.numpy()

    def gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Array]]:
        """Return (loss, gradients) in training mode."""
        loss, gradients = self._backward(images, labels, LayerRecorder(keep=False))
        by_variable = {id(variable): gradient for variable, gradient in gradients}
        canonical_gradients: dict[str, Array] = {}
        for name, role, layer, variable in self._all():
            if role not in ("mean", "variance"):
                gradient = by_variable.get(id(variable))
                canonical_gradients[name] = self._canonical(
                    name, role, layer, tf.zeros(variable.shape, tf.float64) if gradient is None else gradient
                )
        return loss, canonical_gradients

    def start(self, rule: str) -> dict[str, Any]:
        """Begin training with a rule of `OpenRequest.rules`. Returns the optimizer's settings, by names common to all twins."""
        if self._request.optimizer:
            with user_code.report_errors(self._request.optimizer):
                self._optimizer = user_code.find(self._request.optimizer)()
        # Twin: Keras rounds Python's numbers to float32 here, and leaves NumPy's as they are.
        elif rule == "sgd":
            self._optimizer = keras.optimizers.SGD(records.LEARNING_RATE[rule], np.float64(records.MOMENTUM))
        else:
            betas = (np.float64(records.BETA_1), np.float64(records.BETA_2))
            self._optimizer = keras.optimizers.Adam(records.LEARNING_RATE[rule], *betas, records.EPSILON)
        self._rule, self._steps = "own" if self._request.optimizer else rule, 0
        # Twin: torch's Adam adds weight decay to the gradient, Keras's takes it from the weights.
        kind, config = type(self._optimizer).__name__.lower(), self._optimizer.get_config()
        rate = float(np.asarray(self._optimizer.learning_rate))
        settings = {"rule": {"adamw": "adam"}.get(kind, kind), "learning_rate": rate, "epsilon": config.get("epsilon")}
        settings |= {"weight_decay": config.get("weight_decay") or 0, "coupled": False, "rounding": 1.0}
        if "beta_2" in config:
            exact, rounded = (
                (1 - np.asarray([config["beta_1"], config["beta_2"]], kind).astype(float)) for kind in (float, "f4")
            )
            settings["rounding"] = float(exact[0] / rounded[0] * np.sqrt(rounded[1] / exact[1]))
        # Twin: torch's RMSprop adds epsilon behind the root, Keras's below it.
        settings |= {"epsilon_before_correction": self._rule != "adam", "epsilon_below_root": True, "decay": config.get("rho")}
        # Twin: Keras clips, averages and schedules in the optimizer.
        option_names = ["amsgrad", "centered", "initial_accumulator_value", "clipnorm", "clipvalue", "global_clipnorm"]
        option_names += ["use_ema", "gradient_accumulation_steps", "loss_scale_factor"]
        settings["more"] = {key: str(config[key]) for key in option_names if config.get(key)}
        if config.get("use_ema"):
            settings["more"]["use_ema"] += f" (every {config['ema_overwrite_frequency']} steps)"
        if isinstance(schedule := config["learning_rate"], dict):
            words = ", ".join(f"{key} {value}" for key, value in schedule["config"].items() if key != "name")
            settings["more"]["schedule"] = f"{schedule['class_name']} ({words})"
        return {**settings, **{key: config.get(key) or 0 for key in ("beta_1", "beta_2", "momentum", "nesterov")}}

    def step(self, images: Array, labels: Array) -> float:
        """Do one update. Returns the loss before it."""
        loss, gradients = self._backward(images, labels, LayerRecorder(keep=False, step=self._steps))
        self._steps += 1
        if self._rule == "adam":
            # Twin: Keras adds epsilon before it corrects the bias of the second moment, torch afterwards.
            self._optimizer.epsilon = records.EPSILON * math.sqrt(1 - records.BETA_2**self._steps)
        with user_code.report_errors(self._request.optimizer or self._request.model):
            self._optimizer.apply([gradient for _, gradient in gradients], [variable for variable, _ in gradients])
        return loss

    def _backward(self, images: Array, labels: Array, recorder: LayerRecorder) -> tuple[float, list[tuple[Any, Any]]]:
        variables = self._net.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._run(images, recorder, training=True)
            with user_code.report_errors(self._request.loss or self._request.model):
                loss = tf.reduce_mean(tf.cast(self._loss(tf.constant(labels), outputs), tf.float64))
                # Twin: regularizers of Keras are losses of the model.
                loss = tf.add_n([loss, *(tf.cast(loss_term, tf.float64) for loss_term in self._net.losses)])
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        return float(loss), [
            (variable, gradient) for variable, gradient in zip(variables, gradients, strict=True) if gradient is not None
        ]

    def _run(self, images: Array, recorder: LayerRecorder | None, *, training: bool) -> Any:
        with user_code.report_errors(self._request.prepare or self._request.model):
            if self._prepare:
                tensor = tf.cast(tf.convert_to_tensor(self._prepare(images)), tf.float64)
            else:
                # Twin: Keras's images are NHWC, unless the model says otherwise.
                tensor = tf.constant(images.transpose(0, 3, 1, 2) if self._takes_channels_first() else images)
        if recorder:
            recorder.set_input(tensor.numpy(), self._request.image, channels_first=self._takes_channels_first())
        self._recorder = recorder
        try:
            with user_code.report_errors(self._request.model, self._request.hint):
                outputs = self._net(tensor, training=training)
        finally:
            self._recorder = None
        if not isinstance(outputs, tf.Tensor) or outputs.shape.rank != 2:
            received = list(outputs.shape) if isinstance(outputs, tf.Tensor) else type(outputs).__name__
            raise SpecError(f"{self._request.model} must return one tensor [N, classes]. Received: {received}.")
        return outputs

    def _takes_channels_first(self) -> bool:
        height, width, channels = self._request.image
        shape = getattr(self._net, "input_shape", None)
        return shape is not None and tuple(shape[1:]) == (channels, height, width) != (height, width, channels)

    def _find_leaves(self) -> list[Any]:
        """Return layers without sublayers, and functions of Keras in a functional model."""
        leaves: list[Any] = []
        inner: set[int] = set()
        models = [self._net]
        for layer in private_api.all_layers(self._net, include_self=False):
            if isinstance(layer, keras.Model):
                models.append(layer)
            if isinstance(layer, _WITH_PARAMETERS):
                inner.update(map(id, private_api.all_layers(layer, include_self=False)))
            if (isinstance(layer, _WITH_PARAMETERS) or not private_api.sublayers(layer)) and not isinstance(
                layer, layers.InputLayer
            ):
                leaves += [layer] * layer.built  # else it has never run
        for model in models:
            leaves += [operation for operation in getattr(model, "operations", []) if not isinstance(operation, layers.Layer)]
        return [leaf for leaf in {id(leaf): leaf for leaf in leaves}.values() if id(leaf) not in inner]

    def _record_calls(self, leaf: Any) -> None:
        """Record each call of one layer."""
        call, kind = leaf.call, _kind(leaf)
        activation = getattr(leaf, "activation", None) if isinstance(leaf, _WITH_PARAMETERS) else None
        before_activation: list[Any] = []
        if activation is not None and getattr(activation, "__name__", "") != "linear":

            def observed_activation(values: Any) -> Any:
                before_activation.append(values)
                return activation(values)

            leaf.activation = observed_activation

        def recorded_call(*arguments: Any, **options: Any) -> Any:
            recorder = self._recorder
            first = arguments[0] if arguments else next(iter(options.values()), None)
            layer_input = first[0] if isinstance(first, (list, tuple)) and first else first
            # Twin: a layer of Keras takes several tensors as one list, a function as words.
            tensors = first if isinstance(first, (list, tuple)) else (*arguments, *options.values())
            if recorder is None or not isinstance(layer_input, tf.Tensor):
                return call(*arguments, **options)
            before_activation.clear()
            if kind == "dropout":
                output = self._drop(leaf, layer_input, recorder, training=bool(options.get("training")))
            else:
                output = call(*arguments, **options)
            if isinstance(output, tf.Tensor):
                layer_output = before_activation[0] if before_activation else output
                inputs = sum(isinstance(value, tf.Tensor) for value in tensors)
                self._record(leaf, layer_input, layer_output, recorder, active=bool(options.get("training")), inputs=inputs)
                if before_activation:
                    self._record_activation(leaf, activation, layer_output, output, recorder)
            return output

        leaf.call = recorded_call

    def _record(self, leaf: Any, layer_input: Any, output: Any, recorder: LayerRecorder, *, active: bool, inputs: int) -> None:
        self._channels_first = getattr(leaf, "data_format", _format(self._channels_first)) == "channels_first"
        where, kind, name = self._lines.get(id(leaf)), _kind(leaf), self._name(leaf)
        settings = _settings(leaf, layer_input.shape, active=active)
        by_part: dict[str, dict[str, list[int]]] = {}
        for part, role, variable in _parameters(leaf):
            by_part.setdefault(part, {})[role] = list(_to_canonical(variable.numpy(), role, leaf).shape)
        if isinstance(leaf, layers.SeparableConv2D):
            form: dict[str, Any] = {"strides": leaf.strides, "padding": leaf.padding, "dilation_rate": leaf.dilation_rate}
            middle = keras.ops.depthwise_conv(layer_input, leaf.depthwise_kernel, **form, data_format=leaf.data_format)
            depthwise = {**settings, "bias": False, "groups": layer_input.shape[-1]}
            self._add(
                f"{name}.depthwise", "depthwise_conv", depthwise, where, by_part[".depthwise"], layer_input, middle, recorder
            )
            settings = {**settings, "kernel": [1, 1], "stride": [1, 1], "padding": [[0, 0], [0, 0]], "groups": 1}
            self._add(f"{name}.pointwise", "conv", settings, where, by_part[".pointwise"], middle, output, recorder)
            return
        layer = Layer(name=name, kind=kind, settings=settings, where=where, parameters=by_part.get("", {}), inputs=inputs)
        channels_first = None if _is_along_last_axis(leaf, len(layer_input.shape)) else self._channels_first
        recorder.add(layer, layer_input.numpy(), output.numpy(), channels_first=channels_first)

    def _record_activation(self, leaf: Any, activation: Any, layer_input: Any, output: Any, recorder: LayerRecorder) -> None:
        name, where = f"{self._name(leaf)}.activation", self._lines.get(id(leaf))
        self._add(name, "activation", _activation_settings(activation), where, {}, layer_input, output, recorder)

    def _add(
        self, name: str, kind: str, settings: dict[str, Any], where: str | None, parameters: dict[str, list[int]],
        layer_input: Any, output: Any, recorder: LayerRecorder,
    ) -> None:  # fmt: skip
        layer = Layer(name=name, kind=kind, settings=settings, where=where, parameters=parameters)
        recorder.add(layer, layer_input.numpy(), output.numpy(), channels_first=self._channels_first)

    def _drop(self, leaf: Any, values: Any, recorder: LayerRecorder, *, training: bool) -> Any:
        if not training or leaf.rate == 0:
            return values
        first = self._channels_first
        shape = list(values.shape)
        if isinstance(leaf, layers.SpatialDropout2D):
            shape = [shape[0], shape[1], 1, 1] if first else [shape[0], 1, 1, shape[3]]
        elif leaf.noise_shape is not None:
            shape = [size if noise is None else noise for size, noise in zip(shape, leaf.noise_shape, strict=True)]
        mask = recorder.keep_mask(values.numpy(), shape, leaf.rate, channels_first=first)
        return values * tf.constant(np.ascontiguousarray(mask), values.dtype) / (1 - leaf.rate)

    def _all(self) -> list[tuple[str, str, Any, Any]]:
        """List (name, role, layer, variable) of each parameter of the layers that ran, in this order."""
        by_name = {
            f"{self._name(leaf)}{part}": (leaf, part)
            for leaf in self._leaves
            for part in dict.fromkeys(p for p, _, _ in _parameters(leaf))
        }
        return [
            (f"{name}.{role}", role, by_name[name][0], variable)
            for name in self._used_layers
            for part, role, variable in _parameters(by_name[name][0])
            if part == by_name[name][1]
        ]

    def _name(self, leaf: Any) -> str:
        return self._names.get(id(leaf)) or str(leaf.name)  # a function of a functional model is no layer

    def _order(self, name: str) -> Array | None:
        return (self._orders or {}).get(name.rpartition(".")[0])

    def _canonical(self, name: str, role: str, layer: Any, variable: Any) -> Array:
        array = _to_canonical(variable.numpy(), role, layer)
        return np.array(recording.to_canonical(array, role, self._order(name)))

    def _read(self, path: str) -> None:
        try:
            self._net.load_weights(path)
        except Exception as error:
            words = " ".join(str(error).split())[:400]
            raise SpecError(f"{path} does not fit {self._request.model}: {words}. Give the weights of this model.") from error

    def _refuse_unsupported(self) -> None:
        known_ids = {id(variable) for leaf in self._leaves for _, _, variable in _parameters(leaf)}
        for layer in private_api.all_layers(self._net):
            is_random = hasattr(layer, "seed_generator") and _kind(layer) != "dropout"
            inner_ids = {id(weight) for inner in private_api.sublayers(layer) for weight in inner.weights}
            unknown = [weight for weight in layer.weights if id(weight) not in known_ids | inner_ids]
            if is_random or (unknown and not isinstance(layer, layers.Dropout)):
                reason = "draws random numbers" if is_random else "has parameters of its own"
                raise SpecError(
                    f"{layer.name} ({type(layer).__name__}, {self._lines.get(id(layer)) or 'line unknown'}) {reason} and is "
                    "not supported. Use layers of the list in docs/match.md."
                )


def _cross_entropy(labels: Any, outputs: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


def _format(channels_first: bool) -> str:
    return "channels_first" if channels_first else "channels_last"


def _kind(leaf: Any) -> str:
    if isinstance(leaf, layers.DepthwiseConv2D) or (isinstance(leaf, layers.Conv2D) and _is_depthwise(leaf)):
        return "depthwise_conv"
    names = [base.__name__ for base in type(leaf).__mro__ if base.__module__.startswith("keras.")]
    kinds = (kind for name in names for kind, keras_names in SUPPORTED.items() if name in keras_names)
    return next(kinds, "other")


def _is_depthwise(leaf: Any) -> bool:
    return leaf.groups > 1 and getattr(leaf, "kernel", None) is not None and leaf.kernel.shape[2] == 1


def _is_along_last_axis(leaf: Any, rank: int) -> bool:
    """Return whether channels are the last axis of any image that a layer takes. Its own call may transpose it first."""
    # Twin: layers of Keras that normalise have an axis. torch's BatchNorm and GroupNorm know channels first alone.
    kinds = (layers.BatchNormalization, layers.LayerNormalization, layers.GroupNormalization)
    if rank != 4 or type(leaf).call not in (layers.Dense.call, *(layer.call for layer in kinds)):
        return False
    axis = getattr(leaf, "axis", -1)
    return (axis if isinstance(axis, int) else axis[-1]) in (-1, rank - 1)


def _parameters(leaf: Any) -> list[tuple[str, str, Any]]:
    """List (part of the layer, role, variable) of each parameter and running statistic. Only a separable layer has parts."""
    match leaf:
        case layers.SeparableConv2D():
            variables = [
                (".depthwise", "kernel", leaf.depthwise_kernel), (".pointwise", "kernel", leaf.pointwise_kernel),
                (".pointwise", "bias", leaf.bias),
            ]  # fmt: skip
        case layers.BatchNormalization():
            roles = {"gamma": leaf.gamma, "beta": leaf.beta, "mean": leaf.moving_mean, "variance": leaf.moving_variance}
            variables = [("", role, variable) for role, variable in roles.items()]
        case layers.LayerNormalization() | layers.GroupNormalization():
            variables = [("", "gamma", leaf.gamma), ("", "beta", leaf.beta)]
        case _ if isinstance(leaf, _WITH_PARAMETERS):
            variables = [("", "kernel", leaf.kernel), ("", "bias", leaf.bias)]
        case _:
            variables = []
    return [(part, role, variable) for part, role, variable in variables if variable is not None]


def _to_canonical(array: Array, role: str, layer: Any) -> Array:
    """Convert kernels to HWIO (depthwise: height, width, channels, multiplier; transposed: HWOI), dense ones to IO."""
    if role == "kernel" and isinstance(layer, layers.Conv2D) and _is_depthwise(layer):
        return array.reshape(*array.shape[:2], layer.groups, -1)
    return array


def _settings(leaf: Any, input_shape: Any, *, active: bool) -> dict[str, Any]:
    """Return settings in the form that all frameworks share.

    Args:
        leaf: the layer.
        input_shape: shape of its input.
        active: whether it was called in training mode.
    """
    kind = _kind(leaf)
    first = getattr(leaf, "data_format", "channels_last") == "channels_first"
    sizes = list(input_shape[2:4] if first else input_shape[1:3])
    if kind in ("conv", "depthwise_conv") and isinstance(leaf, layers.Layer):
        zipped = zip(sizes, leaf.kernel_size, leaf.strides, leaf.dilation_rate, strict=True)
        padding = [
            list(recording.same_padding(*sizes_of_axis)) if leaf.padding == "same" else [0, 0] for sizes_of_axis in zipped
        ]
        return {
            "kernel": list(leaf.kernel_size), "stride": list(leaf.strides), "dilation": list(leaf.dilation_rate),
            "groups": getattr(leaf, "groups", 1) if kind == "conv" else input_shape[1 if first else -1], "padding": padding,
            "bias": leaf.use_bias, "padding_mode": "zeros", "data_format": leaf.data_format,
        }  # fmt: skip
    if kind == "transposed_conv":
        return {"stride": list(leaf.strides), "dilation": list(leaf.dilation_rate), "bias": leaf.use_bias}
    if kind == "dense":
        return {"bias": leaf.use_bias}
    if kind == "batch_norm":
        axis = leaf.axis if isinstance(leaf.axis, int) else leaf.axis[0]
        last = axis in (-1, len(input_shape) - 1)
        # Twin: Keras's momentum is the weight of the old statistics, torch's that of the new ones.
        momentum = round(1 - leaf.momentum, 12)
        return {"epsilon": leaf.epsilon, "momentum": momentum, "biased_variance": True, "axis": -1 if last else axis}
    if kind in ("layer_norm", "group_norm"):
        return {"epsilon": leaf.epsilon, **({"groups": leaf.groups} if kind == "group_norm" else {})}
    if kind in ("max_pool", "average_pool") and isinstance(leaf, layers.Layer):
        zipped = zip(sizes, leaf.pool_size, leaf.strides, strict=True)
        padding = [
            list(recording.same_padding(*sizes_of_axis)) if leaf.padding == "same" else [0, 0] for sizes_of_axis in zipped
        ]
        settings: dict[str, Any] = {"window": list(leaf.pool_size), "stride": list(leaf.strides), "padding": padding}
        return {**settings, "count_padding": False} if kind == "average_pool" else settings
    if kind == "dropout":
        channels = isinstance(leaf, layers.SpatialDropout2D) or getattr(leaf, "noise_shape", None) or False
        return {"rate": leaf.rate, "active": active, "whole_channels": channels}
    if kind == "activation":
        return _activation_settings(leaf.activation if isinstance(leaf, layers.Activation) else leaf)
    return _scaling_settings(leaf)


def _scaling_settings(leaf: Any) -> dict[str, Any]:
    """Return the factor and summand of a layer that scales and shifts, as configured: it computes with them in float32."""
    if isinstance(leaf, layers.Rescaling):
        scale, offset = np.float64(leaf.scale), np.float64(leaf.offset)
    elif isinstance(leaf, layers.Normalization) and leaf.input_mean is not None and not leaf.invert:
        scale = 1 / np.maximum(np.sqrt(np.float64(leaf.input_variance)), keras.config.epsilon())
        offset = -np.float64(leaf.input_mean) * scale
    else:
        return {}
    return {"scale": scale.tolist(), "offset": offset.tolist()}


def _activation_settings(activation: Any) -> dict[str, Any]:
    """Return the name of a function, and its slope or variant if it has one."""
    name = getattr(activation, "__name__", type(activation).__name__).lower()
    name = {"logsoftmax": "log_softmax"}.get(name, _FUNCTIONS.get(name, name))
    slope = float(getattr(activation, "negative_slope", 0.2 if name == "leaky_relu" else 0.0))
    if getattr(activation, "max_value", None) == 6:
        name = "relu6"
    if name == "leaky_relu" or slope:
        return {"function": "leaky_relu", "slope": slope}
    if name == "gelu":
        return {"function": name, "approximate": "tanh" if getattr(activation, "approximate", False) else "none"}
    return {"function": name}
