"""A small network that learns at a given pace, and how good it was when.

Trained as people train who care for the result: pictures are mirrored at random, and what is evaluated
is an average of the latest weights. Both matter to what is compared. A network that is trained plainly
learns a small cache by heart and its accuracy at a constant rate goes up and down by half a point from
step to step, so that the moment at which it is good enough is chance.

The learning rate is that of which the whole data takes as long as in the simulation that is measured
here anew (some 50 s to 88 % once it is there; with twice this rate 35 s).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.bench.growth.fashion import CLASSES, SIDE

Schedule = Literal["constant", "cosine"]
BATCH = 128
_HIDDEN = 128
_RATE = 0.01  # SGD's learning rate
_MOMENTUM = 0.9
_AVERAGED = 0.99  # an exponential moving average of some hundred steps' weights is evaluated
_SNAPSHOTS = 300  # in a run
_AHEAD = 0.1  # seconds of steps that a device has in its queue


@dataclass(frozen=True)
class Pace:
    """`samples`: a second, which the processor stands for a GPU with: it sleeps the rest of each step's
    time away. As a device does that has its next steps in a queue, it makes up for what the loop comes
    late by up to a tenth of a second, and for no more. `horizon`: seconds, after which training ends,
    counted from when the way of getting data began."""

    samples: float
    horizon: float


@dataclass
class Learner:
    """Dense, on one core. The clock runs from when it is made; accuracies are found afterwards."""

    seed: int
    schedule: Schedule
    pace: Pace
    began: float = field(default_factory=time.perf_counter)
    trained: int = 0  # samples
    _snapshots: list[tuple[float, torch.Tensor]] = field(default_factory=list)
    _next: float = 0.0  # when the next snapshot is due
    _first: float = math.inf
    _due: float = 0.0

    def __post_init__(self) -> None:
        torch.set_num_threads(1)  # the other core is the samplers' and the store's
        torch.manual_seed(self.seed)
        self._model = nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE * SIDE, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, CLASSES)
        )
        # Fused: one pass over the weights, time that samplers and store have then.
        self._optimizer = torch.optim.SGD(
            self._model.parameters(), lr=_RATE, momentum=_MOMENTUM, fused=True
        )
        self._average = AveragedModel(self._model, multi_avg_fn=get_ema_multi_avg_fn(_AVERAGED))

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    @property
    def over(self) -> bool:
        return self.elapsed >= self.pace.horizon

    def step(self, pixels: torch.Tensor, labels: torch.Tensor) -> None:
        """One batch, uint8 and int64, and the time that it takes at this pace."""
        starts = max(self._due, self.elapsed - _AHEAD)
        self._first = min(self._first, starts)
        if self.schedule == "cosine":
            # Over the time that is left for training, so that each way ends at a rate of nothing.
            done = min(1.0, (starts - self._first) / (self.pace.horizon - self._first))
            for group in self._optimizer.param_groups:
                group["lr"] = _RATE * 0.5 * (1 + math.cos(math.pi * done))
        images = _normalised(_mirrored(pixels.view(-1, SIDE, SIDE)))
        loss = nn.functional.cross_entropy(self._model(images), labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._average.update_parameters(self._model)
        self.trained += len(labels)
        self._due = starts + len(labels) / self.pace.samples
        time.sleep(max(0.0, self._due - self.elapsed))
        if self.elapsed >= self._next:
            self._next = self.elapsed + self.pace.horizon / _SNAPSHOTS
            weights = parameters_to_vector(self._average.parameters()).detach().clone()
            self._snapshots.append((self.elapsed, weights))

    @torch.no_grad()
    def curve(
        self, pixels: NDArray[np.uint8], labels: NDArray[np.int64]
    ) -> list[tuple[float, float]]:
        """(seconds, accuracy in %) of each snapshot."""
        images, wanted = _normalised(torch.tensor(pixels)), torch.tensor(labels)
        found = []
        for seconds, weights in self._snapshots:
            vector_to_parameters(weights, self._model.parameters())
            right = (self._model(images).argmax(1) == wanted).float().mean().item()
            found.append((seconds, 100 * right))
        return found


def _mirrored(pixels: torch.Tensor) -> torch.Tensor:
    """Each picture, or with the same chance its mirror image: a shoe may point either way."""
    return torch.where(torch.rand(len(pixels), 1, 1) < 0.5, pixels.flip(2), pixels)


def _normalised(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.float() - 73) / 90  # Fashion-MNIST's mean and deviation


def reached(curve: Sequence[tuple[float, float]], accuracy: float) -> float:
    """Seconds to the first of three snapshots in a row that are as good; infinite if there is none."""
    good = [value >= accuracy for _, value in curve]
    for place, (seconds, _) in enumerate(curve[:-2]):
        if all(good[place : place + 3]):
            return seconds
    return math.inf


def final(curve: Sequence[tuple[float, float]]) -> float:
    """The mean accuracy of the last tenth of the time."""
    end = curve[-1][0]
    last = [value for seconds, value in curve if seconds >= 0.9 * end]
    return sum(last) / len(last)
