"""The model in scikit-learn, on NumPy batches: neither framework is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neural_network import MLPClassifier

from cachecd.demo.images import CLASSES
from cachecd.demo.passes import Passes
from cachecd.demo.trainers import BATCH, HIDDEN, LEARNING_RATE, MOMENTUM
from cachecd_client.epoch import Epoch


class Trainer:
    def __init__(self, seed: int) -> None:
        self._model: Any = MLPClassifier(
            (HIDDEN,),
            solver="sgd",
            alpha=0,
            learning_rate_init=LEARNING_RATE,
            momentum=MOMENTUM,
            nesterovs_momentum=False,
            random_state=seed,
        )

    def train(self, epoch: Epoch, passes: Passes) -> None:
        for batch in passes.over(lambda n: epoch.numpy(BATCH, seed=epoch.seed + n)):
            self._model.partial_fit(_inputs(batch), batch["label"], classes=range(CLASSES))

    def accuracy(self, held_out: Epoch) -> float:
        right = 0
        for batch in held_out.numpy(BATCH):
            right += int((self._model.predict(_inputs(batch)) == batch["label"]).sum())
        return right / held_out.num_records


def _inputs(batch: dict[str, Any]) -> NDArray[np.float32]:
    """Pixels of 0..255 as one row of 0..1 an image."""
    pixels: NDArray[np.uint8] = batch["image"]
    return pixels.reshape(len(pixels), -1).astype(np.float32) / np.float32(255)
