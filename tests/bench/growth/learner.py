"""A perceptron that learns from recorded batches, and its accuracy over time.

784 inputs, one hidden layer of 128 units, 10 classes. SGD with momentum 0.9 and a constant learning rate;
pictures are mirrored at random; an exponential average of the weights is evaluated. Without mirroring and
averaging, the accuracy changes by half a point from step to step, and the time to an accuracy is chance.

`python -m tests.bench.growth --rates` chose the learning rate: the rate with the best accuracy on 5,000
training pictures that were held out, after 10 passes over the other 55,000 in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from tests.bench.growth.fashion import CLASSES, SIDE, Pictures
from tests.bench.growth.pace import Numbers

Curve = list[tuple[float, float]]  # (seconds, accuracy in %)

RATE = 0.03
_HIDDEN = 128
_MOMENTUM = 0.9
_AVERAGED = 0.98  # of the average stays at each step
_SNAPSHOT = 0.5  # seconds between snapshots at first; later a part of the elapsed time
_SNAPSHOT_PART = 0.03


class Learner:
    """The perceptron. It is written out by hand, because that is three times as fast as autograd."""

    def __init__(self, pictures: Pictures, seed: int, rate: float = RATE) -> None:
        torch.set_num_threads(1)
        self._chance = torch.Generator().manual_seed(seed)
        self._rate = rate
        pixels = torch.from_numpy(pictures.pixels)
        # Each picture, and after all of them each mirror image.
        self._pixels = torch.cat([pixels, pixels.flip(2)]).view(-1, SIDE * SIDE)
        self._labels = torch.from_numpy(pictures.labels)
        self._test_inputs = _normalised(torch.from_numpy(pictures.test_pixels))
        self._test_labels = torch.from_numpy(pictures.test_labels)
        inputs = SIDE * SIDE
        self._weights = [
            self._uniform(inputs, (inputs, _HIDDEN)),
            self._uniform(inputs, (_HIDDEN,)),
            self._uniform(_HIDDEN, (_HIDDEN, CLASSES)),
            self._uniform(_HIDDEN, (CLASSES,)),
        ]
        self._momenta = [torch.zeros_like(weight) for weight in self._weights]
        self._averages = [weight.clone() for weight in self._weights]

    def _uniform(self, inputs: int, shape: tuple[int, ...]) -> torch.Tensor:
        """The initial weights of torch's Linear."""
        most = 1 / math.sqrt(inputs)
        return torch.empty(shape).uniform_(-most, most, generator=self._chance)

    @torch.no_grad()
    def step(self, batch: Numbers) -> None:
        rows = torch.from_numpy(batch.astype(np.int64))
        labels = self._labels[rows]
        is_mirrored = torch.randint(0, 2, (len(rows),), generator=self._chance)
        inputs = _normalised(self._pixels[rows + is_mirrored * len(self._labels)])
        first, first_bias, second, second_bias = self._weights
        hidden = torch.addmm(first_bias, inputs, first).relu_()
        # The gradient of the cross entropy, backwards through both layers.
        slope = torch.addmm(second_bias, hidden, second).softmax(1)
        slope[torch.arange(len(rows)), labels] -= 1
        slope /= len(rows)
        back = (slope @ second.t()) * (hidden > 0)
        gradients = (inputs.t() @ back, back.sum(0), hidden.t() @ slope, slope.sum(0))
        for weight, momentum, average, gradient in zip(
            self._weights, self._momenta, self._averages, gradients, strict=True
        ):
            momentum.mul_(_MOMENTUM).add_(gradient)
            weight.sub_(momentum, alpha=self._rate)
            average.lerp_(weight, 1 - _AVERAGED)

    @torch.no_grad()
    def accuracy(self) -> float:
        """In %, of the averaged weights on the test pictures."""
        first, first_bias, second, second_bias = self._averages
        hidden = torch.addmm(first_bias, self._test_inputs, first).relu_()
        scores = torch.addmm(second_bias, hidden, second)
        return 100 * (scores.argmax(1) == self._test_labels).float().mean().item()


def curve_of(pictures: Pictures, steps: Iterable[tuple[float, Numbers]], seed: int) -> Curve:
    """The accuracy on the test pictures over time, of a learner that makes these steps."""
    learner, due = Learner(pictures, seed), 0.0
    curve: Curve = []
    for seconds, batch in steps:
        learner.step(batch)
        if seconds >= due:
            due = seconds + max(_SNAPSHOT, _SNAPSHOT_PART * seconds)
            curve.append((seconds, learner.accuracy()))
    return curve


def _normalised(pixels: torch.Tensor) -> torch.Tensor:
    """Fashion-MNIST's mean is 73, its deviation 90."""
    return pixels.view(len(pixels), -1).float().sub_(73).div_(90)


def reached(curve: Sequence[tuple[float, float]], accuracy: float) -> float:
    """Seconds to the first of three snapshots in a row that are as good; infinite if there is none."""
    good = [value >= accuracy for _, value in curve]
    for place, (seconds, _) in enumerate(curve[:-2]):
        if all(good[place : place + 3]):
            return seconds
    return math.inf


def final(curve: Sequence[tuple[float, float]]) -> float:
    """The mean accuracy of the last tenth of the time."""
    return _mean_from(curve, 0.9, 1.0)


def rise(curve: Sequence[tuple[float, float]]) -> float:
    """How much the accuracy rose from the tenth of the time before the last to the last."""
    return final(curve) - _mean_from(curve, 0.8, 0.9)


def _mean_from(curve: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    last = curve[-1][0]
    values = [value for seconds, value in curve if begin * last <= seconds <= end * last]
    return sum(values) / len(values) if values else math.nan
