"""The source of digits.yaml: scikit-learn's 1,797 scanned digits, enlarged to 32 x 32 pixels."""

from functools import cached_property

import numpy as np

EACH = 100  # digits of a unit


class Digits:
    def __init__(self, held_out=False, noise=0):
        self.numbers = [number for number in range(1797) if (number % 5 == 0) == held_out]
        self.noise = noise  # up to so much on each pixel of 0..255

    def units(self):
        firsts = range(0, len(self.numbers), EACH)
        return [{"name": str(first), "size": EACH * 1100} for first in firsts]

    @cached_property
    def scans(self):
        from sklearn.datasets import (
            load_digits,
        )  # takes a second, which who lists the units is spared

        return load_digits()

    def read(self, unit, store):
        for number in self.numbers[int(unit) :][:EACH]:
            image = np.kron(self.scans.images[number] * 15, np.ones((4, 4)))
            image += np.random.default_rng(number).uniform(0, self.noise, image.shape)
            yield {
                "image": image.clip(0, 255).astype(np.uint8)[
                    ..., None
                ],  # [height, width, channels]
                "label": int(self.scans.target[number]),
            }
