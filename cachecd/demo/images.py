"""The demo's training data: scikit-learn's 1,797 scanned handwritten digits, as PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

SIDE = 64  # pixels; with the original 8 pixels, the images would be too small for a cache
CLASSES = 10

# The last images. One person wrote neighbouring digits, so a random choice would not be independent.
_HELD_OUT = 197


def images() -> dict[str, bytes]:
    """Returns PNG files by key. The image ``train/0042-3.png`` shows a 3. 1,600 images are under train/ and
    197 under test/, each SIDE pixels square in 8 bits of grey."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    files = {}
    for number, (scan, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        grey = Image.fromarray((scan * (255 / scan.max())).astype(np.uint8))
        png = io.BytesIO()
        grey.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(png, "png")
        part = "train" if number < len(digits.target) - _HELD_OUT else "test"
        files[f"{part}/{number:04}-{digit}.png"] = png.getvalue()
    return files


def write_images(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes each image to its key under `folder`."""
    for key, png in files.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png)
