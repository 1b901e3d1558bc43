"""The model, only with NumPy: one hidden layer, trained with gradient descent and momentum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.demo.images import CLASSES, SIDE
from cachecd.demo.passes import PassTimer
from cachecd_client import Epoch

Array = NDArray[np.float32]

BATCH = 32
_HIDDEN = 32
_LEARNING_RATE = 0.01
_MOMENTUM = 0.9


class Trainer:
    def __init__(self, seed: int) -> None:
        """The seed determines the weights."""
        random = np.random.default_rng(seed)
        pixels = SIDE * SIDE

        def weights(inputs: int, outputs: int) -> Array:
            scale = np.float32(np.sqrt(2 / inputs))
            return random.standard_normal((inputs, outputs), np.float32) * scale

        self._parameters: list[Array] = [
            weights(pixels, _HIDDEN),
            np.zeros(_HIDDEN, np.float32),
            weights(_HIDDEN, CLASSES),
            np.zeros(CLASSES, np.float32),
        ]
        self._velocities = [np.zeros_like(parameter) for parameter in self._parameters]

    def train(self, epoch: Epoch, passes: PassTimer) -> None:
        """Trains on batches of BATCH until `passes` ends."""
        for batch in passes.over(lambda n: epoch.numpy(BATCH, seed=epoch.seed + n)):
            self._step(_inputs(batch), batch["label"])

    def accuracy(self, held_out: Epoch) -> float:
        """Returns the share of these images that the model classifies correctly, 0..1."""
        right = sum(
            int((self._forward(_inputs(batch))[1].argmax(1) == batch["label"]).sum())
            for batch in held_out.numpy(BATCH)
        )
        return right / held_out.num_records

    def _forward(self, inputs: Array) -> tuple[Array, Array]:
        """Returns the values of the hidden layer, and the scores of the classes."""
        first, first_biases, second, second_biases = self._parameters
        hidden: Array = np.maximum(inputs @ first + first_biases, 0)
        return hidden, hidden @ second + second_biases

    def _step(self, inputs: Array, labels: NDArray[np.int64]) -> None:
        hidden, scores = self._forward(inputs)
        # The gradient of the mean cross-entropy after a softmax: the probabilities minus the truth.
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        by_score = exponentials / exponentials.sum(axis=1, keepdims=True)
        by_score[np.arange(len(labels)), labels] -= 1
        by_score /= len(labels)
        by_hidden = (by_score @ self._parameters[2].T) * (hidden > 0)
        gradients = (
            inputs.T @ by_hidden,
            by_hidden.sum(axis=0),
            hidden.T @ by_score,
            by_score.sum(axis=0),
        )
        for parameter, velocity, gradient in zip(
            self._parameters, self._velocities, gradients, strict=True
        ):
            velocity *= _MOMENTUM
            velocity -= _LEARNING_RATE * gradient
            parameter += velocity


def _inputs(batch: dict[str, Any]) -> Array:
    """Returns the pixels 0..255 of each image as one row of numbers 0..1."""
    pixels: NDArray[np.uint8] = batch["image"]
    return pixels.reshape(len(pixels), -1).astype(np.float32) / np.float32(255)
