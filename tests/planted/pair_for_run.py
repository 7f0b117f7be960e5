"""A pair of models that are the same, written by `convtwins match`.

tests.planted.ports_torch:ForRun
tests.planted.ports_keras:ForRun
"""

from convtwins import models
from convtwins.models import BatchNorm, Dropout, Native, Opaque, PairedModel

MODEL = Opaque(
    name="planted.pair_for_run",
    shape=(8, 8, 3),
    num_outputs=5,
    layers=(
        Native(
            name="stem", kind="conv", parameters=(("kernel", (3, 3, 3, 4)), ("bias", (4,))), initializer="kaiming_normal_fan_in"
        ),
        BatchNorm(name="block.0", channels=4, momentum=0.1, epsilon=1e-05),
        Native(
            name="block.2", kind="depthwise_conv", parameters=(("kernel", (3, 3, 1, 4)),), initializer="kaiming_normal_fan_in"
        ),
        Native(
            name="point",
            kind="conv",
            parameters=(("kernel", (1, 1, 4, 4)), ("bias", (4,))),
            initializer="kaiming_normal_fan_in",
        ),
        Native(
            name="norm", kind="group_norm", parameters=(("gamma", (4,)), ("beta", (4,))), initializer="kaiming_normal_fan_in"
        ),
        Dropout(name="drop.0", rate=0.2, units=4),
        Dropout(name="drop.1", rate=0.1, units=256),
        Dropout(name="drop.2", rate=0.3, units=64),
        Native(name="hidden", kind="dense", parameters=(("kernel", (64, 6)),), initializer="kaiming_normal_fan_in"),
        Native(
            name="scale", kind="layer_norm", parameters=(("gamma", (6,)), ("beta", (6,))), initializer="kaiming_normal_fan_in"
        ),
        Native(
            name="dense", kind="dense", parameters=(("kernel", (6, 5)), ("bias", (5,))), initializer="kaiming_normal_fan_in"
        ),
    ),
    outputs=((8, 8, 4), (8, 8, 4), (8, 8, 4), (8, 8, 4), (8, 8, 4), (8, 8, 4), (8, 8, 4), (64,), (6,), (6,), (5,)),
)
PYTORCH = PairedModel(
    model="tests.planted.ports_torch:ForRun",
    layers={
        "stem": "stem",
        "block.0": "block.0",
        "block.2": "block.2",
        "point": "point",
        "norm": "norm",
        "drop.0": "drop.0",
        "drop.1": "drop.1",
        "drop.2": "drop.2",
        "hidden": "hidden",
        "scale": "scale",
        "dense": "dense",
    },
    flattened={"drop.2": (4, 4, 4), "hidden": (4, 4, 4)},
)
TENSORFLOW = PairedModel(
    model="tests.planted.ports_keras:ForRun",
    layers={
        "stem": "conv2d",
        "block.0": "batch_normalization",
        "block.2": "separable_conv2d.depthwise",
        "point": "separable_conv2d.pointwise",
        "norm": "group_normalization",
        "drop.0": "spatial_dropout2d",
        "drop.1": "dropout",
        "drop.2": "dropout_1",
        "hidden": "dense",
        "scale": "layer_normalization",
        "dense": "dense_1",
    },
    flattened={},
)
IMPORTS = PYTORCH.model, TENSORFLOW.model


def architecture(num_classes, image_size):
    return models.pair_architecture(MODEL, num_classes, image_size)


def build_pytorch(architecture, precision, group):
    return models.build_pair_pytorch(PYTORCH, architecture, precision, group)


def build_tensorflow(architecture, precision, group):
    return models.build_pair_tensorflow(TENSORFLOW, architecture, precision, group)
