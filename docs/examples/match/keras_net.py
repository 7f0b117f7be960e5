"""Its port to Keras, and the port as many write it first."""

import keras
from keras import layers


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.ZeroPadding2D(1),  # as PyTorch's padding=1
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(10),
        ]
    )


def first_try() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(10),
        ]
    )
