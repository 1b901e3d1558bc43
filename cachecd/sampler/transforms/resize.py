"""Ready-made step `resize`: scales pictures to a fixed size, or to a fixed shorter side."""

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
    """Scales the named pictures to `size` (height, width), or until the shorter side has `shorter` pixels.
    Default: scales `image` and `label_map`.

    Nothing is cropped, so that `size` may change the proportions. Images (uint8 [height, width, channels])
    are scaled bilinearly, with antialiasing. In maps (integers [height, width]), each pixel takes the
    value of the nearest input pixel.
    """
    resized = dict(record)
    for name, value in pictures(record, "resize", features):
        scale = _smoothly if value.ndim == 3 else _nearest
        resized[name] = scale(
            value, *(size or scaled(value.shape[0], value.shape[1], shorter or 0))
        )
    return resized


def _smoothly(image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    channels = (Image.fromarray(image[:, :, c]) for c in range(image.shape[2]))
    resized = [c.resize((width, height), Image.Resampling.BILINEAR) for c in channels]
    return np.stack([np.asarray(channel) for channel in resized], axis=2)


def _nearest(image: NDArray[Any], height: int, width: int) -> NDArray[Any]:
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(np.intp)
        for new, old in zip((height, width), image.shape, strict=True)
    )
    pixels: NDArray[Any] = image[rows[:, np.newaxis], columns]
    return pixels
