"""Ready-made step `resize`: pictures at a fixed size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cachecd.sampler.transforms.pictures import pictures, scaled


def resize(
    record: dict[str, Any],
    size: tuple[int, int] | None = None,
    shorter: int | None = None,
    features: list[str] | None = None,
) -> dict[str, Any]:
    """Scales pictures to `size`, (height, width), or until their shorter side has `shorter` pixels.

    Scales the named pictures, by default `image` and `label_map`. The whole picture is kept; `size` may
    change its proportions. Images (uint8 [height, width, channels]) are scaled bilinearly, and smoothed
    before they are made smaller. In maps (integers [height, width]) each pixel gets the number of the
    nearest pixel.
    """
    resized = dict(record)
    for name, value in pictures(record, "resize", features):
        scale = _smoothly if value.ndim == 3 else _nearest
        resized[name] = scale(
            value, *(size or scaled(value.shape[0], value.shape[1], shorter or 0))
        )
    return resized


def _smoothly(image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    channels = [
        np.asarray(
            Image.fromarray(image[:, :, c]).resize((width, height), Image.Resampling.BILINEAR)
        )
        for c in range(image.shape[2])
    ]
    return np.stack(channels, axis=2)


def _nearest(image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(np.intp)
        for new, old in zip((height, width), image.shape, strict=True)
    )
    pixels: NDArray[Any] = image[rows[:, np.newaxis], columns]
    return pixels
