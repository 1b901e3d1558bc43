"""What the demo learns: scikit-learn's 1,797 scanned handwritten digits, as PNG files."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np

SIDE = 64  # pixels; the scans have 8, too few bytes to be worth a cache
CLASSES = 10

# The last ones, not some in between: neighbours are by the same hand.
_HELD_OUT = 197


@dataclass(frozen=True, slots=True)
class StoredImage:
    """One object: its key, such as ``train/0042-3.png``, and the PNG file."""

    key: str
    png: bytes


def images() -> list[StoredImage]:
    """All images, SIDE pixels square in 8 bits of grey: 1,600 under train/, 197 under test/."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    found = []
    for number, (scan, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        grey = Image.fromarray((scan * (255 / scan.max())).astype(np.uint8))
        file = io.BytesIO()
        grey.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "png")
        part = "train" if number < len(digits.target) - _HELD_OUT else "test"
        found.append(StoredImage(f"{part}/{number:04}-{digit}.png", file.getvalue()))
    return found
