"""Pictures for tests: encoded, and what Pillow makes of them."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from cachecd_client import _core


def smooth(height: int, width: int) -> Image.Image:
    """Clouds: as in a photograph, the brightness varies more than the color, and large things more."""
    random = np.random.default_rng(height * width)
    total = np.zeros((height, width, 3))
    for size in (2, 8, 32, 128):
        for spread in (1.0, 0.2, 0.2, 0.2):
            layer = random.normal(0, spread * size, (height // size + 2, width // size + 2))
            image = Image.fromarray(layer.astype(np.float32))
            channel = slice(None) if spread == 1 else random.integers(3)
            cloud = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
            total[..., channel] += cloud[..., np.newaxis] if spread == 1 else cloud
    low, high = np.percentile(total, [1, 99])
    return Image.fromarray(np.clip((total - low) / (high - low) * 255, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def with_orientation(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x112] = orientation
    return exif


def patched(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def frame_header(jpeg: bytes) -> int:
    """Where the frame header's marker is."""
    at = 2
    while jpeg[at + 1] not in (0xC0, 0xC1, 0xC2):
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    return at


def tall_chroma(jpeg: bytes) -> bytes:
    """A 4:2:2 picture with the sampling 4:4:0: other blocks belong together, so it looks strange."""
    at = frame_header(jpeg) + 11
    assert jpeg[at] == 0x21
    return jpeg[:at] + b"\x12" + jpeg[at + 1 :]


def scans(jpeg: bytes) -> tuple[bytes, list[bytes]]:
    """The header, and the scans of a progressive picture, each with the tables before it."""
    at, begin, parts = 2, 0, []
    while jpeg[at : at + 2] != b"\xff\xd9":
        marker, size = jpeg[at + 1], int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if marker == 0xC4 and not begin:
            begin = at
        at += 2 + size
        if marker == 0xDA:
            while jpeg[at] != 0xFF or jpeg[at + 1] == 0:
                at += 1
            parts.append(at)
    ends = [begin, *parts]
    return jpeg[:begin], [jpeg[a:b] for a, b in itertools.pairwise(ends)]


def with_xmp(image: Image.Image, format: str, text: str, **options: Any) -> bytes:
    """The picture as a file with this text in its XMP packet; "PNG deflated": compressed."""
    if not format.startswith("PNG"):
        return encoded(image, format, xmp=text.encode(), **options)
    packet = PngImagePlugin.PngInfo()
    packet.add_itxt("XML:com.adobe.xmp", text, zip=format != "PNG")
    return encoded(image, "PNG", pnginfo=packet, **options)


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def png(height: int, width: int, depth: int, color: int, rows: bytes, *chunks: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + b"".join(chunks)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def by_pillow(image: Image.Image, options: dict[str, Any], key: int) -> np.ndarray:
    """What decode_image is to make of an upright picture, whose colors Pillow has converted."""
    (y, x, height, width), scaled, (top, left, rows, columns), flip = _core.place_image(
        options, image.height, image.width, key
    )
    how = Image.Resampling.NEAREST if options.get("nearest") else Image.Resampling.BILINEAR
    image = image.convert("L" if options.get("grey") else "RGB")
    image = image.crop((x, y, x + width, y + height)).resize(scaled[::-1], how)
    pixels = np.asarray(image.crop((left, top, left + columns, top + rows)))
    pixels = pixels[:, ::-1] if flip else pixels
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]
