"""Ready-made step `resize`: the feature `image` at a fixed size."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image


def resize(record: dict[str, Any], size: int | tuple[int, int]) -> dict[str, Any]:
    """Scales `image` (uint8 [height, width, 1 or 3]) to `size`: one number for both sides, or
    (height, width). The whole image is kept, so its proportions may change; bilinear, and smoothed
    before it is made smaller.
    """
    image = record.get("image")
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3:
        found = "none" if image is None else getattr(image, "dtype", type(image).__name__)
        raise TypeError(
            f"expected the feature 'image', uint8 [height, width, channels], found {found}: "
            "put decode_image before resize"
        )
    height, width = (size, size) if isinstance(size, int) else size
    channels = [
        np.asarray(
            Image.fromarray(image[:, :, c]).resize((width, height), Image.Resampling.BILINEAR)
        )
        for c in range(image.shape[2])
    ]
    return {**record, "image": np.stack(channels, axis=2)}
