"""Ready-made step `decode_image`: compressed bytes -> an image."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

_GREY = {"1", "L", "LA", "La", "I", "F"}


def decode_image(record: dict[str, Any], feature: str, into: str = "image") -> dict[str, Any]:
    """Replaces `feature`, which holds an image file, by `into`: uint8 [height, width, channels].

    One channel for grey images, three (RGB) for all others; transparency is dropped, 16 bits are
    scaled down to 8. Pixels stay as they are stored: EXIF's orientation is not applied.
    """
    with Image.open(io.BytesIO(encoded(record, feature))) as image:
        image.load()
        mode = image.mode
        if mode.startswith("I;16") or (mode == "I" and image.format in ("PNG", "TIFF")):
            pixels = (np.asarray(image, np.int32) >> 8).clip(0, 255).astype(np.uint8)
        else:
            pixels = np.asarray(image.convert("L" if mode in _GREY else "RGB"))
    rest = {name: value for name, value in record.items() if name != feature}
    return {**rest, into: pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels}


def encoded(record: Mapping[str, Any], feature: str) -> Any:
    """The feature, which is to be decoded; KeyError says what there is instead."""
    if feature not in record:
        raise KeyError(f"no feature {feature!r} to decode; the record has {', '.join(record)}")
    return record[feature]
