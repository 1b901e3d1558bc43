"""The model in TensorFlow, which reads the leased files itself."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from cachecd.demo.images import CLASSES, SIDE
from cachecd.demo.passes import Passes
from cachecd.demo.trainers import BATCH, HIDDEN, LEARNING_RATE, MOMENTUM
from cachecd_client.epoch import Epoch


class Trainer:
    def __init__(self, seed: int) -> None:
        tf.keras.utils.set_random_seed(seed)
        self._model = tf.keras.Sequential(
            [
                tf.keras.Input((SIDE, SIDE, 1)),
                tf.keras.layers.Rescaling(1 / 255),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(HIDDEN, activation="relu"),
                tf.keras.layers.Dense(CLASSES),
            ]
        )
        self._optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
        self._loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._step = tf.function(self._eager_step)

    def train(self, epoch: Epoch, passes: Passes) -> None:
        # One pipeline for all passes: building one takes longer than a pass over a set this small.
        dataset = epoch.tf_dataset(BATCH, label="label", features=["image"])
        for features, label in passes.over(lambda _: dataset):
            self._step(features["image"], label)

    def accuracy(self, held_out: Epoch) -> float:
        right = 0
        for features, label in held_out.tf_dataset(BATCH, label="label", features=["image"]):
            named = tf.argmax(self._model(features["image"]), axis=1)
            right += int(tf.math.count_nonzero(named == label))
        return right / held_out.num_records

    def _eager_step(self, images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = self._loss(labels, self._model(images, training=True))
        variables = self._model.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
