"""The source of digits.yaml: scikit-learn's 1,797 scanned digits, enlarged to 32 x 32 pixels."""

import numpy as np
from sklearn.datasets import load_digits


class Digits:
    def __init__(self, held_out=False):
        digits = load_digits()
        chosen = np.arange(len(digits.target)) % 5 == 0
        chosen = chosen if held_out else ~chosen
        self.scans, self.labels = digits.images[chosen], digits.target[chosen]

    def units(self):
        return [{"name": str(i), "size": 110_000} for i in range(0, len(self.labels), 100)]

    def read(self, unit, store):
        first = int(unit)
        rows = slice(first, first + 100)
        for scan, label in zip(self.scans[rows], self.labels[rows], strict=True):
            image = np.kron(scan * 15, np.ones((4, 4)))[..., None]  # [height, width, channels]
            yield {"image": image.astype(np.uint8), "label": int(label)}
