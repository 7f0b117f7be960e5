"""A user's own model for `match`: built as it is, recorded layer by layer, its parameters in canonical form."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from keras.src.backend.common import global_state
from keras.src.models.functional import Functional

from common.matching import recording, records
from common.matching.recording import LayerRecorder
from common.matching.records import Array, OpenRequest, Layer, ModelReport
from common.models import user_code
from common.spec import SpecError

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


class Model:
    """See `common.matching.records.Model`."""

    def __init__(self, ask: OpenRequest) -> None:
        self._ask = ask
        keras.utils.clear_session()
        keras.utils.set_random_seed(records.SEED)
        # Twin: here the type of layers is a setting of the process that they take where they are made.
        keras.config.set_floatx("float64")
        with user_code.noting_lines(layers.Layer) as self._lines:
            user_code.find(ask.model)
            # The same call gives the same answer, whatever importing the module has drawn.
            keras.utils.set_random_seed(records.SEED)
            # Twin: Keras counts layers for their names. Those that the module itself makes do not count, see `native`.
            global_state.set_global_attribute("object_name_uids", None)
            net = user_code.build(ask.model, keras.Model, classes=ask.classes, image=ask.image)
            self._net: Any = net
            self._prepare = user_code.find(ask.prepare) if ask.prepare else None
            self._loss = user_code.find(ask.loss) if ask.loss else _cross_entropy
            # Twin: Keras makes variables in the first call.
            self._run(records.images(ask)[0], None, training=False)
        if ask.weights is not None:
            self._read(ask.weights)
        self._recorder: LayerRecorder | None = None
        self._channels_first = False
        # Twin: layers of Keras that stand in different blocks may have one name. torch's names tell the block.
        self._names = recording.unique_names(net, lambda layer: layer._layers)
        self._leaves = self._find_leaves()
        self._refuse_unsupported()
        for leaf in self._leaves:
            self._watch(leaf)
        self._orders: dict[str, Array] | None = None
        ran, _, logits = self.forward(records.images(ask)[0], training=False)
        self._ran = list(dict.fromkeys(layer.name.partition("#")[0] for layer in ran if layer.parameters))
        # Twin: functions that a class of Keras calls are not recorded.
        classes = [each for each in net._flatten_layers() if each._layers and id(each) not in {*map(id, self._leaves)}]
        unrecorded = not all(isinstance(each, (Functional, keras.Sequential)) for each in classes)
        where = self._lines.get(id(net))
        self.opened = ModelReport(layers=ran, outputs=list(logits.shape[1:]), where=where, unrecorded=unrecorded)

    def parameters(self) -> dict[str, Array]:
        """All parameters and running statistics, in canonical form."""
        return {name: self._canonical(name, role, layer, variable) for name, role, layer, variable in self._all()}

    def load(self, parameters: dict[str, Array]) -> None:
        """Set parameters, given in canonical form."""
        for name, role, _, variable in self._all():
            array = recording.to_native(parameters[name], role, self._order(name))
            variable.assign(array.reshape(variable.shape))

    def forward(self, images: Array, *, training: bool) -> tuple[list[Layer], list[tuple[Array, Array]], Array]:
        """Layers in order of execution, (input, output) of each, and the model's output."""
        recorder = LayerRecorder(edges=self._orders is None)
        logits = self._run(images, recorder, training=training)
        if self._orders is None:  # ordinary images tell orders, and are the first; black ones fit any order
            self._orders = recorder.orders
        return recorder.layers, recorder.values, logits.numpy()

    def gradients(self, images: Array, labels: Array) -> tuple[float, dict[str, Array]]:
        """(loss, gradients) in training mode."""
        loss, gradients = self._backward(images, labels, LayerRecorder(keep=False))
        by_variable = {id(variable): gradient for variable, gradient in gradients}
        found: dict[str, Array] = {}
        for name, role, layer, variable in self._all():
            if role not in ("mean", "variance"):
                gradient = by_variable.get(id(variable))
                found[name] = self._canonical(
                    name, role, layer, tf.zeros(variable.shape, tf.float64) if gradient is None else gradient
                )
        return loss, found

    def start(self, rule: str) -> dict[str, Any]:
        """Begin a training with a rule of `Ask.rules`. Returns the optimizer's settings, by names that all frameworks share."""
        if self._ask.optimizer:
            with user_code.running(self._ask.optimizer):
                self._optimizer = user_code.find(self._ask.optimizer)()
        # Twin: Keras rounds Python's numbers to float32 here, and leaves NumPy's as they are.
        elif rule == "sgd":
            self._optimizer = keras.optimizers.SGD(records.LEARNING_RATE[rule], np.float64(records.MOMENTUM))
        else:
            betas = (np.float64(records.BETA_1), np.float64(records.BETA_2))
            self._optimizer = keras.optimizers.Adam(records.LEARNING_RATE[rule], *betas, records.EPSILON)
        self._rule, self._steps = "own" if self._ask.optimizer else rule, 0
        # Twin: torch's Adam adds weight decay to the gradient, Keras's takes it from the weights.
        kind, given = type(self._optimizer).__name__.lower(), self._optimizer.get_config()
        rate = float(np.asarray(self._optimizer.learning_rate))
        found = {"rule": {"adamw": "adam"}.get(kind, kind), "learning_rate": rate, "epsilon": given.get("epsilon")}
        found |= {"weight_decay": given.get("weight_decay") or 0, "coupled": False, "rounding": 1.0}
        if "beta_2" in given:
            exact, rounded = (
                (1 - np.asarray([given["beta_1"], given["beta_2"]], kind).astype(float)) for kind in (float, "f4")
            )
            found["rounding"] = float(exact[0] / rounded[0] * np.sqrt(rounded[1] / exact[1]))
        # Twin: torch's RMSprop adds epsilon behind the root, Keras's below it.
        found |= {"epsilon_before_correction": self._rule != "adam", "epsilon_below_root": True, "decay": given.get("rho")}
        # Twin: Keras clips, averages and schedules in the optimizer.
        more = ["amsgrad", "centered", "initial_accumulator_value", "clipnorm", "clipvalue", "global_clipnorm"]
        more += ["use_ema", "gradient_accumulation_steps", "loss_scale_factor"]
        found["more"] = {key: str(given[key]) for key in more if given.get(key)}
        if given.get("use_ema"):
            found["more"]["use_ema"] += f" (every {given['ema_overwrite_frequency']} steps)"
        schedule = self._optimizer._learning_rate
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            words = ", ".join(f"{key} {value}" for key, value in schedule.get_config().items() if key != "name")
            found["more"]["schedule"] = f"{type(schedule).__name__} ({words})"
        return {**found, **{key: given.get(key) or 0 for key in ("beta_1", "beta_2", "momentum", "nesterov")}}

    def step(self, images: Array, labels: Array) -> float:
        """One update. Returns the loss before it."""
        loss, gradients = self._backward(images, labels, LayerRecorder(keep=False, step=self._steps))
        self._steps += 1
        if self._rule == "adam":
            # Twin: Keras adds epsilon before it corrects the bias of the second moment, torch afterwards.
            self._optimizer.epsilon = records.EPSILON * math.sqrt(1 - records.BETA_2**self._steps)
        with user_code.running(self._ask.optimizer or self._ask.model):
            self._optimizer.apply([gradient for _, gradient in gradients], [variable for variable, _ in gradients])
        return loss

    def _backward(self, images: Array, labels: Array, recorder: LayerRecorder) -> tuple[float, list[tuple[Any, Any]]]:
        variables = self._net.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self._run(images, recorder, training=True)
            with user_code.running(self._ask.loss or self._ask.model):
                loss = tf.reduce_mean(tf.cast(self._loss(tf.constant(labels), outputs), tf.float64))
                # Twin: regularizers of Keras are losses of the model.
                loss = tf.add_n([loss, *(tf.cast(each, tf.float64) for each in self._net.losses)])
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        return float(loss), [
            (variable, gradient) for variable, gradient in zip(variables, gradients, strict=True) if gradient is not None
        ]

    def _run(self, images: Array, recorder: LayerRecorder | None, *, training: bool) -> Any:
        with user_code.running(self._ask.prepare or self._ask.model):
            if self._prepare:
                given = tf.cast(tf.convert_to_tensor(self._prepare(images)), tf.float64)
            else:
                # Twin: Keras's images are NHWC, unless the model says otherwise.
                given = tf.constant(images.transpose(0, 3, 1, 2) if self._takes_channels_first() else images)
        if recorder:
            recorder.set_input(given.numpy(), self._ask.image, channels_first=self._takes_channels_first())
        self._recorder = recorder
        try:
            with user_code.running(self._ask.model, self._ask.hint):
                outputs = self._net(given, training=training)
        finally:
            self._recorder = None
        if not isinstance(outputs, tf.Tensor) or outputs.shape.rank != 2:
            received = list(outputs.shape) if isinstance(outputs, tf.Tensor) else type(outputs).__name__
            raise SpecError(f"{self._ask.model} must return one tensor [N, classes]. Received: {received}.")
        return outputs

    def _takes_channels_first(self) -> bool:
        height, width, channels = self._ask.image
        shape = getattr(self._net, "input_shape", None)
        return shape is not None and tuple(shape[1:]) == (channels, height, width) != (height, width, channels)

    def _find_leaves(self) -> list[Any]:
        """Layers that hold no others, and functions of Keras in a functional model."""
        found: list[Any] = []
        inner: set[int] = set()
        models = [self._net]
        for layer in self._net._flatten_layers(include_self=False):
            if isinstance(layer, keras.Model):
                models.append(layer)
            if isinstance(layer, _WITH_PARAMETERS):
                inner.update(map(id, layer._flatten_layers(include_self=False)))
            if (isinstance(layer, _WITH_PARAMETERS) or not layer._layers) and not isinstance(layer, layers.InputLayer):
                found += [layer] * layer.built  # else it has never run
        for model in models:
            found += [each for each in getattr(model, "operations", []) if not isinstance(each, layers.Layer)]
        return [each for each in {id(each): each for each in found}.values() if id(each) not in inner]

    def _watch(self, leaf: Any) -> None:
        """Record each call of one layer."""
        call, kind = leaf.call, _kind(leaf)
        activation = getattr(leaf, "activation", None) if isinstance(leaf, _WITH_PARAMETERS) else None
        between: list[Any] = []
        if activation is not None and getattr(activation, "__name__", "") != "linear":

            def observed(values: Any) -> Any:
                between.append(values)
                return activation(values)

            leaf.activation = observed

        def watched(*words: Any, **named: Any) -> Any:
            recorder = self._recorder
            first = words[0] if words else next(iter(named.values()), None)
            given = first[0] if isinstance(first, (list, tuple)) and first else first
            # Twin: a layer of Keras takes several tensors as one list, a function as words.
            every = first if isinstance(first, (list, tuple)) else (*words, *named.values())
            if recorder is None or not isinstance(given, tf.Tensor):
                return call(*words, **named)
            between.clear()
            if kind == "dropout":
                made = self._drop(leaf, given, recorder, training=bool(named.get("training")))
            else:
                made = call(*words, **named)
            if isinstance(made, tf.Tensor):
                own = between[0] if between else made
                inputs = sum(isinstance(each, tf.Tensor) for each in every)
                self._record(leaf, given, own, recorder, active=bool(named.get("training")), inputs=inputs)
                if between:
                    self._record_activation(leaf, activation, own, made, recorder)
            return made

        leaf.call = watched

    def _record(self, leaf: Any, given: Any, made: Any, recorder: LayerRecorder, *, active: bool, inputs: int) -> None:
        self._channels_first = getattr(leaf, "data_format", _format(self._channels_first)) == "channels_first"
        where, kind, name = self._lines.get(id(leaf)), _kind(leaf), self._name(leaf)
        settings = _settings(leaf, given.shape, active=active)
        by_part: dict[str, dict[str, list[int]]] = {}
        for part, role, variable in _parameters(leaf):
            by_part.setdefault(part, {})[role] = list(_to_canonical(variable.numpy(), role, leaf).shape)
        if isinstance(leaf, layers.SeparableConv2D):
            form: dict[str, Any] = {"strides": leaf.strides, "padding": leaf.padding, "dilation_rate": leaf.dilation_rate}
            middle = keras.ops.depthwise_conv(given, leaf.depthwise_kernel, **form, data_format=leaf.data_format)
            depthwise = {**settings, "bias": False, "groups": given.shape[-1]}
            self._add(f"{name}.depthwise", "depthwise_conv", depthwise, where, by_part[".depthwise"], given, middle, recorder)
            settings = {**settings, "kernel": [1, 1], "stride": [1, 1], "padding": [[0, 0], [0, 0]], "groups": 1}
            self._add(f"{name}.pointwise", "conv", settings, where, by_part[".pointwise"], middle, made, recorder)
            return
        layer = Layer(name=name, kind=kind, settings=settings, where=where, parameters=by_part.get("", {}), inputs=inputs)
        channels_first = None if _is_along_last_axis(leaf, len(given.shape)) else self._channels_first
        recorder.add(layer, given.numpy(), made.numpy(), channels_first=channels_first)

    def _record_activation(self, leaf: Any, activation: Any, given: Any, made: Any, recorder: LayerRecorder) -> None:
        name, where = f"{self._name(leaf)}.activation", self._lines.get(id(leaf))
        self._add(name, "activation", _of_activation(activation), where, {}, given, made, recorder)

    def _add(
        self, name: str, kind: str, settings: dict[str, Any], where: str | None, parameters: dict[str, list[int]], given: Any,
        made: Any, recorder: LayerRecorder,
    ) -> None:  # fmt: skip
        layer = Layer(name=name, kind=kind, settings=settings, where=where, parameters=parameters)
        recorder.add(layer, given.numpy(), made.numpy(), channels_first=self._channels_first)

    def _drop(self, leaf: Any, given: Any, recorder: LayerRecorder, *, training: bool) -> Any:
        if not training or leaf.rate == 0:
            return given
        first = self._channels_first
        shape = list(given.shape)
        if isinstance(leaf, layers.SpatialDropout2D):
            shape = [shape[0], shape[1], 1, 1] if first else [shape[0], 1, 1, shape[3]]
        elif leaf.noise_shape is not None:
            shape = [size if noise is None else noise for size, noise in zip(shape, leaf.noise_shape, strict=True)]
        kept = recorder.keep_mask(given.numpy(), shape, leaf.rate, channels_first=first)
        return given * tf.constant(np.ascontiguousarray(kept), given.dtype) / (1 - leaf.rate)

    def _all(self) -> list[tuple[str, str, Any, Any]]:
        """(name, role, layer, variable) of each parameter of the layers that ran, in this order."""
        by_name = {
            f"{self._name(leaf)}{part}": (leaf, part)
            for leaf in self._leaves
            for part in dict.fromkeys(p for p, _, _ in _parameters(leaf))
        }
        return [
            (f"{name}.{role}", role, by_name[name][0], variable)
            for name in self._ran
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
            raise SpecError(f"{path} does not fit {self._ask.model}: {words}. Give the weights of this model.") from error

    def _refuse_unsupported(self) -> None:
        known = {id(variable) for leaf in self._leaves for _, _, variable in _parameters(leaf)}
        for layer in self._net._flatten_layers():
            own = [*getattr(layer, "_trainable_variables", []), *getattr(layer, "_non_trainable_variables", [])]
            random = hasattr(layer, "seed_generator") and _kind(layer) != "dropout"
            unknown = [variable for variable in own if id(variable) not in known]
            if random or (unknown and not isinstance(layer, layers.Dropout)):
                what = "draws random numbers" if random else "has parameters of its own"
                raise SpecError(
                    f"{layer.name} ({type(layer).__name__}, {self._lines.get(id(layer)) or 'line unknown'}) {what} and is not "
                    "supported. Use layers of the list in docs/match.md."
                )


def _cross_entropy(labels: Any, outputs: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


def _format(channels_first: bool) -> str:
    return "channels_first" if channels_first else "channels_last"


def _kind(leaf: Any) -> str:
    if isinstance(leaf, layers.DepthwiseConv2D) or (isinstance(leaf, layers.Conv2D) and _is_depthwise(leaf)):
        return "depthwise_conv"
    names = [each.__name__ for each in type(leaf).__mro__ if each.__module__.startswith("keras.")]
    found = (kind for name in names for kind, known in SUPPORTED.items() if name in known)
    return next(found, "other")


def _is_depthwise(leaf: Any) -> bool:
    return leaf.groups > 1 and getattr(leaf, "kernel", None) is not None and leaf.kernel.shape[2] == 1


def _is_along_last_axis(leaf: Any, rank: int) -> bool:
    """Whether the channels are the last axis of any image that a layer takes. Its own call may turn it first."""
    # Twin: layers of Keras that normalise have an axis. torch's BatchNorm and GroupNorm know channels first alone.
    kinds = (layers.BatchNormalization, layers.LayerNormalization, layers.GroupNormalization)
    if rank != 4 or type(leaf).call not in (layers.Dense.call, *(each.call for each in kinds)):
        return False
    axis = getattr(leaf, "axis", -1)
    return (axis if isinstance(axis, int) else axis[-1]) in (-1, rank - 1)


def _parameters(leaf: Any) -> list[tuple[str, str, Any]]:
    """(part of the layer, role, variable) of each parameter and running statistic. Only a separable layer has parts."""
    match leaf:
        case layers.SeparableConv2D():
            found = [
                (".depthwise", "kernel", leaf.depthwise_kernel), (".pointwise", "kernel", leaf.pointwise_kernel),
                (".pointwise", "bias", leaf.bias),
            ]  # fmt: skip
        case layers.BatchNormalization():
            roles = {"gamma": leaf.gamma, "beta": leaf.beta, "mean": leaf.moving_mean, "variance": leaf.moving_variance}
            found = [("", role, variable) for role, variable in roles.items()]
        case layers.LayerNormalization() | layers.GroupNormalization():
            found = [("", "gamma", leaf.gamma), ("", "beta", leaf.beta)]
        case _ if isinstance(leaf, _WITH_PARAMETERS):
            found = [("", "kernel", leaf.kernel), ("", "bias", leaf.bias)]
        case _:
            found = []
    return [(part, role, variable) for part, role, variable in found if variable is not None]


def _to_canonical(array: Array, role: str, layer: Any) -> Array:
    """Kernels as HWIO (depthwise: height, width, channels, multiplier; transposed: HWOI), dense kernels as inputs, outputs."""
    if role == "kernel" and isinstance(layer, layers.Conv2D) and _is_depthwise(layer):
        return array.reshape(*array.shape[:2], layer.groups, -1)
    return array


def _settings(leaf: Any, given: Any, *, active: bool) -> dict[str, Any]:
    """Settings in the form that all frameworks share.

    Args:
        leaf: the layer.
        given: shape of its input.
        active: whether it was called in training mode.
    """
    kind = _kind(leaf)
    first = getattr(leaf, "data_format", "channels_last") == "channels_first"
    sizes = list(given[2:4] if first else given[1:3])
    if kind in ("conv", "depthwise_conv") and isinstance(leaf, layers.Layer):
        zipped = zip(sizes, leaf.kernel_size, leaf.strides, leaf.dilation_rate, strict=True)
        same = [list(recording.same_padding(*each)) if leaf.padding == "same" else [0, 0] for each in zipped]
        return {
            "kernel": list(leaf.kernel_size), "stride": list(leaf.strides), "dilation": list(leaf.dilation_rate),
            "groups": getattr(leaf, "groups", 1) if kind == "conv" else given[1 if first else -1], "padding": same,
            "bias": leaf.use_bias, "padding_mode": "zeros", "data_format": leaf.data_format,
        }  # fmt: skip
    if kind == "transposed_conv":
        return {"stride": list(leaf.strides), "dilation": list(leaf.dilation_rate), "bias": leaf.use_bias}
    if kind == "dense":
        return {"bias": leaf.use_bias}
    if kind == "batch_norm":
        axis = leaf.axis if isinstance(leaf.axis, int) else leaf.axis[0]
        last = axis in (-1, len(given) - 1)
        # Twin: Keras's momentum is the weight of the old statistics, torch's that of the new ones.
        momentum = round(1 - leaf.momentum, 12)
        return {"epsilon": leaf.epsilon, "momentum": momentum, "biased_variance": True, "axis": -1 if last else axis}
    if kind in ("layer_norm", "group_norm"):
        return {"epsilon": leaf.epsilon, **({"groups": leaf.groups} if kind == "group_norm" else {})}
    if kind in ("max_pool", "average_pool") and isinstance(leaf, layers.Layer):
        zipped = zip(sizes, leaf.pool_size, leaf.strides, strict=True)
        same = [list(recording.same_padding(*each)) if leaf.padding == "same" else [0, 0] for each in zipped]
        found: dict[str, Any] = {"window": list(leaf.pool_size), "stride": list(leaf.strides), "padding": same}
        return {**found, "count_padding": False} if kind == "average_pool" else found
    if kind == "dropout":
        channels = isinstance(leaf, layers.SpatialDropout2D) or getattr(leaf, "noise_shape", None) or False
        return {"rate": leaf.rate, "active": active, "whole_channels": channels}
    if kind == "activation":
        return _of_activation(leaf.activation if isinstance(leaf, layers.Activation) else leaf)
    return _of_scaling(leaf)


def _of_scaling(leaf: Any) -> dict[str, Any]:
    """Factor and summand of a layer that scales and shifts, as it states them: it computes with them in float32."""
    if isinstance(leaf, layers.Rescaling):
        scale, offset = np.float64(leaf.scale), np.float64(leaf.offset)
    elif isinstance(leaf, layers.Normalization) and leaf.input_mean is not None and not leaf.invert:
        scale = 1 / np.maximum(np.sqrt(np.float64(leaf.input_variance)), keras.config.epsilon())
        offset = -np.float64(leaf.input_mean) * scale
    else:
        return {}
    return {"scale": scale.tolist(), "offset": offset.tolist()}


def _of_activation(activation: Any) -> dict[str, Any]:
    """The name of a function, and its slope or variant where it has one."""
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
