"""Ready-made step `decode_image`: decodes an image file into pixels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from cachecd.sampler.transforms.pictures import encoded
from cachecd_client import _core


def decode_image(
    record: dict[str, Any], feature: str, into: str = "image", mode: str = "RGB"
) -> dict[str, Any]:
    """Replaces `feature`, an image file, with `into`: uint8 [height, width, channels].

    `mode`, not the file, decides the number of channels: 3 for RGB, 4 for RGBA, 1 for L (grey by Rec. 601).
    A grey file becomes three equal channels in RGB. RGB and L drop transparency. RGBA is opaque if the file
    has no transparency. 16 bits are scaled down to 8. The orientation is applied. ValueError for missing
    pixels, and for pixels of 32 bits, because their range is unknown.
    """
    pixels = decoded(encoded(record, feature), mode)
    rest = {name: value for name, value in record.items() if name != feature}
    return {**rest, into: pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels}


def decoded(body: Any, mode: str) -> NDArray[np.uint8]:
    """Returns the pixels of an image file, upright, in Pillow's mode RGB, RGBA or L."""
    if mode != "RGBA" and (pixels := by_core(body)) is not None:
        return pixels if mode == "RGB" else np.asarray(Image.fromarray(pixels).convert(mode))
    with open_image(body) as image:
        return np.asarray(upright(_of_8_bits(image).convert(mode), image.info))


def open_image(body: Any) -> ImageFile.ImageFile:
    """Opens an image file with Pillow. ValueError if a JPEG or PNG lacks pixels, which Pillow would
    fill."""
    is_whole = by_core(body, height=1, width=1, grey=True) is not None  # reads all pixels
    return Image.open(
        io.BytesIO(bytes(body) + b"\xff\xd9" * is_whole)
    )  # a JPEG may lack its end mark


def upright(image: Image.Image, info: dict[Any, Any]) -> Image.Image:
    """Returns the image turned upright. `info`: the metadata that Pillow read from the file."""
    turn = _core.orientation(info.get("exif", b""), info.get("xmp", b""))
    return image.transpose(Image.Transpose((0, 3, 1, 5, 4, 6, 2)[turn - 2])) if turn > 1 else image


def by_core(body: Any, **options: Any) -> NDArray[np.uint8] | None:
    """Returns the pixels of a JPEG or PNG; None for another format. ValueError for missing pixels."""
    form = {b"\xff\xd8\xff": "jpeg", b"\x89PN": "png"}.get(bytes(body[:3]))
    given: Any = {"crop": "none", "max_pixels": 178_956_970, **options}  # Pillow's limit
    return _core.decode_image(body, given) if form in _core.image_formats() else None


def _of_8_bits(image: Image.Image) -> Image.Image:
    deep = image.mode == "I" and image.format in ("PNG", "PPM")  # 32 bits in a TIFF
    if deep or image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image, np.int32) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(
            f"the pixels are 32 bits deep (Pillow's mode {image.mode}), expected at most 16: decode the "
            "image in your own function"
        )
    # Pillow warns about a direct conversion without alpha, and the user may have made warnings errors.
    return image.convert("RGBA") if image.mode in ("P", "PA") else image
