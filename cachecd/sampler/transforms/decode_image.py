"""Ready-made step `decode_image`: compressed bytes -> an image."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from cachecd.sampler.transforms.pictures import encoded

# What these formats hold in Pillow's mode I has 16 bits; a TIFF file in it has 32.
_DEEP_FORMATS = ("PNG", "PPM")


def decode_image(
    record: dict[str, Any], feature: str, into: str = "image", mode: str = "RGB"
) -> dict[str, Any]:
    """Replaces `feature`, which holds an image file, by `into`: uint8 [height, width, channels].

    `mode` decides the number of channels, not the file: 3 in mode RGB, 4 in RGBA, 1 in L (grey, by Rec.
    601). Grey has three equal channels in RGB. RGB and L drop transparency. RGBA is opaque if a file has no
    transparency. 16 bits are scaled down to 8. Pixels stay as they are stored: EXIF's orientation is not
    applied. ValueError for pixels of 32 bits, because their range is unknown.
    """
    with Image.open(io.BytesIO(encoded(record, feature))) as image:
        image.load()
        pixels = np.asarray(_of_8_bits(image).convert(mode))
    rest = {name: value for name, value in record.items() if name != feature}
    return {**rest, into: pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels}


def _of_8_bits(image: Image.Image) -> Image.Image:
    deep = image.mode == "I" and image.format in _DEEP_FORMATS
    if deep or image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image, np.int32) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(
            f"the pixels are 32 bits deep (Pillow's mode {image.mode}), expected at most 16: decode the "
            "image in a function of your own"
        )
    # Straight to a mode without alpha, Pillow warns, and a user may have made warnings errors.
    return image.convert("RGBA") if image.mode in ("P", "PA") else image
