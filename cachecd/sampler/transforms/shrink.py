"""Ready-made step `shrink`: a large encoded picture -> a smaller one, encoded again."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image, ImageOps

from cachecd.sampler.transforms.pictures import encoded, scaled


def shrink(
    record: dict[str, Any], shorter: int, quality: int, features: list[str], resample: str
) -> dict[str, Any]:
    """Scales the image files in `features` down until their shorter side has `shorter` pixels.

    A file whose shorter side is not larger stays byte for byte. EXIF's orientation is applied, and
    metadata are dropped. A JPEG stays a JPEG, of `quality`, and a PNG a PNG. Another format becomes a
    JPEG if its pixels are opaque, have 8 bits and are smoothed, else a PNG. Pixels of a palette, of
    1 bit and of 16 bits keep their values: whatever `resample` is, they are never mixed.
    ValueError for pixels of 32 bits.
    """
    nearest = resample == "nearest"
    return {
        **record,
        **{name: _shrunk(record, name, shorter, quality, nearest) for name in features},
    }


def _shrunk(record: dict[str, Any], name: str, shorter: int, quality: int, nearest: bool) -> Any:
    value = encoded(record, name)
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"expected {name!r} as an image file, found {type(value).__name__}: put shrink before the "
            "step that decodes it"
        )
    with Image.open(io.BytesIO(value)) as image:
        if min(image.size) <= shorter:
            return value
        form, mode = image.format, image.mode
        if mode == "F" or (mode == "I" and form != "PNG"):
            raise ValueError(f"{name!r} has pixels of 32 bits (Pillow's mode {mode}), expected 16")
        nearest = nearest or mode in ("1", "P", "PA") or mode.startswith("I")
        height, width = scaled(image.height, image.width, shorter)
        # A JPEG may be decoded at a half, a quarter or an eighth; twice the size is left to smooth.
        draft = None if nearest else image.draft(None, (2 * width, 2 * height))
        smaller = ImageOps.exif_transpose(
            _resized(image, (width, height), nearest, draft[1] if draft else None)
        )
    has_alpha = mode in ("LA", "RGBA")
    is_jpeg = form in ("JPEG", "MPO") or not (form == "PNG" or nearest or has_alpha)
    out = io.BytesIO()
    if is_jpeg:
        smaller.save(out, "JPEG", quality=quality)
    else:
        smaller.save(out, "PNG", icc_profile=None)
    return out.getvalue()


def _resized(
    image: Image.Image,
    size: tuple[int, int],
    nearest: bool,
    box: tuple[float, float, float, float] | None,
) -> Image.Image:
    if nearest:
        return image.resize(size, Image.Resampling.NEAREST)
    if image.mode not in ("LA", "RGBA"):
        return image.resize(size, Image.Resampling.BILINEAR, box)
    # By channels: Pillow would paint black what is transparent, and readers drop transparency.
    channels = [band.resize(size, Image.Resampling.BILINEAR) for band in image.split()]
    resized = Image.merge(image.mode, channels)
    resized.info = image.info  # the orientation is in it
    return resized
