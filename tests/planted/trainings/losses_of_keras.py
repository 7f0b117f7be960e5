"""Losses of a small Keras training in a CSV file, as somebody's script writes them."""

import csv
import sys
from pathlib import Path

import keras
import tensorflow as tf

from convtwins.ulp import nudge

keras.utils.set_random_seed(1)
images = tf.random.normal((96, 6), seed=3)
labels = tf.cast(tf.reduce_sum(images[:, :2], 1) > 0, tf.int32)
images = nudge(images)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
model.set_weights(nudge(model.get_weights()))
optimizer = keras.optimizers.SGD(float(sys.argv[2]) if sys.argv[2:] else 0.1)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
with Path(sys.argv[1]).open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["step", "loss", "val_loss"])
    for step in range(30):
        batch = slice(step % 6 * 16, step % 6 * 16 + 16)
        with tf.GradientTape() as tape:
            loss = loss_of(labels[batch], model(images[batch]))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        writer.writerow([step, float(loss), 2 * float(loss)])
