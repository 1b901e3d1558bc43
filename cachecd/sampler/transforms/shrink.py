"""Ready-made step `shrink`: makes large image files smaller, and encodes them again."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from cachecd.sampler.transforms.decode_image import by_core, open_image, upright
from cachecd.sampler.transforms.pictures import encoded, scaled


def shrink(
    record: dict[str, Any], shorter: int, quality: int, features: list[str], resample: str
) -> dict[str, Any]:
    """Scales the image files in `features` down until the shorter side has `shorter` pixels. ValueError for
    missing pixels, for pixels of 32 bits, and for colors of 16 bits.

    A file whose shorter side is not longer stays unchanged, with its orientation. For a larger file, the
    orientation is applied and metadata are dropped. A JPEG stays a JPEG, with `quality`; a PNG stays a PNG.
    Another format becomes a JPEG if the pixels are opaque, have 8 bits and are smoothed; else a PNG. Pixels
    of a palette, of 1 bit and of 16 bits are never smoothed, whatever `resample` is.
    """
    shrunk = dict(record)
    for name in features:
        shrunk[name] = _shrunk(name, encoded(record, name), shorter, quality, resample == "nearest")
    return shrunk


def _shrunk(name: str, value: Any, shorter: int, quality: int, nearest: bool) -> Any:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"expected {name!r} as an image file, found {type(value).__name__}: put shrink before the "
            "step that decodes it"
        )
    with Image.open(io.BytesIO(value)) as image:
        if min(image.size) <= shorter:
            return value
        form, mode = image.format, image.mode
        is_deep = ";16" in str(image.tile) and mode[0] != "I"  # colors: Pillow would keep 8 bits
        if is_deep or mode == "F" or (mode == "I" and form != "PNG"):
            raise ValueError(
                f"{name!r} is too deep: expected at most 8 bits per channel, or at most 16 bits for an "
                "image with one channel"
            )
    exact = nearest or mode in ("1", "P", "PA") or mode[0] == "I"
    has_alpha = mode in ("LA", "RGBA")
    is_cores = mode in ("RGB", "L") and not exact
    if is_cores and (pixels := by_core(value, shorter=shorter, grey=mode == "L")) is not None:
        smaller = Image.fromarray(pixels if mode == "RGB" else pixels[:, :, 0])
    else:
        resample = Image.Resampling.NEAREST if exact else Image.Resampling.BILINEAR
        with open_image(value) as image:
            # With alpha, each channel is scaled alone: Pillow would make transparent pixels black.
            channels = image.split() if has_alpha else (image,)
            size = scaled(image.height, image.width, shorter)[::-1]
            resized = [c.resize(size, resample) for c in channels]
            smaller = upright(Image.merge(mode, resized) if has_alpha else resized[0], image.info)
    smaller.info = {k: v for k, v in image.info.items() if k == "transparency"}  # drops XMP
    as_jpeg = form in ("JPEG", "MPO") or not (form == "PNG" or exact or has_alpha)
    out = io.BytesIO()
    smaller.save(out, "JPEG" if as_jpeg else "PNG", quality=quality, icc_profile=None)
    return out.getvalue()
