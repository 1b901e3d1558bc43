"""What the demo asks of a training framework."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Literal, Protocol, cast

from cachecd.demo.passes import Passes
from cachecd_client.epoch import Epoch
from cachecd_client.errors import CallerError

Framework = Literal["numpy", "torch", "tensorflow"]

BATCH = 32
HIDDEN = 32
LEARNING_RATE = 0.01
MOMENTUM = 0.9


class Trainer(Protocol):
    """A model with one hidden layer, trained by gradient descent with momentum."""

    def __init__(self, seed: int) -> None:
        """Makes the weights; the same ones for the same seed."""

    def train(self, epoch: Epoch, passes: Passes) -> None:
        """Trains on batches of BATCH, as long as `passes` gives any."""

    def accuracy(self, held_out: Epoch) -> float:
        """The share of these images that the model names rightly, 0..1."""


def load_trainer(framework: Framework) -> type[Trainer]:
    """Imports the framework; CallerError with the remedy if it is not installed."""
    # TensorFlow reports every library that it finds, and every one that it does not.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    try:
        module = import_module(f"cachecd.demo.trainer_{framework}")
    except ModuleNotFoundError as error:
        if error.name != framework:
            raise
        raise CallerError(
            f"--framework {framework}: {framework} is not installed: pip install {framework}"
        ) from error
    return cast("type[Trainer]", module.Trainer)
