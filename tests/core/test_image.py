"""Decoded pictures, against Pillow's."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from cachecd_client import _core
from cachecd_client.errors import SchemaError
from tests.core.pictures import (
    by_pillow,
    chunk,
    encoded,
    frame_header,
    patched,
    png,
    smooth,
    tall_chroma,
    with_orientation,
    with_xmp,
)
from tests.core.shards import LONG

RANDOM = {"crop": "random", "height": 64, "width": 80, "flip": 0.5}
CUT = {**RANDOM, "height": 30, "width": 37, "resized": False}
CENTER = {"crop": "center", "height": 60, "width": 60, "shorter": 80}
WHOLE = {"crop": "none", "height": 97, "width": 120}
SMALL = {"crop": "none", "shorter": 25}
NEAREST = {**RANDOM, "nearest": True}

JPEGS = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:2:0": {"subsampling": "4:2:0"},
    "4:4:0": {"subsampling": "4:2:2"},
    "grey": {},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 3},
}


def jpeg(kind, height, width, **options):
    image = smooth(height, width)
    data = encoded(
        image.convert("L") if kind == "grey" else image, quality=90, **JPEGS[kind], **options
    )
    return tall_chroma(data) if kind == "4:4:0" else data


def opened(data):
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data)))


def difference(data, options, key, image=None):
    found = _core.decode_image(data, options, key)
    expected = by_pillow(image or opened(data), options, key)
    np.testing.assert_array_equal(_core.decode_image(data, options, key, _portable=True), found)
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    return np.abs(found.astype(int) - expected)


@pytest.mark.parametrize("kind", JPEGS)
@pytest.mark.parametrize(("height", "width"), [(128, 128), (141, 203)])
def test_jpeg_is_what_pillow_makes_of_it(kind, height, width):
    if kind == "4:4:0" and height != width:
        height = width = 64
    data = jpeg(kind, height, width)
    for key in range(6 if LONG else 1):
        assert difference(data, CUT, key).max() == 0
        assert difference(data, NEAREST, key).max() == 0
        for options in (RANDOM, CENTER, WHOLE):
            found = difference(data, options, key)
            assert found.mean() < 0.2
            assert found.max() <= 2
        # Not made from RGB.
        assert difference(data, {**RANDOM, "grey": True}, key).mean() < 1


@pytest.mark.parametrize("kind", JPEGS)
@pytest.mark.parametrize("side", [100, 402, 801])
def test_reduced_jpeg_is_close_to_pillows(kind, side):
    data = jpeg(kind, side, side)
    for options in (SMALL, {**CENTER, "height": 20, "width": 22, "shorter": 25}):
        assert difference(data, options, 0).mean() < 4


@pytest.mark.parametrize("orientation", [0, *range(2, 10)])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_orientation_is_applied(format, orientation):
    data = encoded(smooth(90, 131), format, exif=with_orientation(orientation))
    for key in range(4 if LONG else 1):
        for options in (CUT, NEAREST, {**CENTER, "nearest": True, "flip": 1}):
            assert difference(data, options, key).max() == 0
        for options in (RANDOM, {**RANDOM, "grey": True}, {**CENTER, "flip": 1}, SMALL):
            assert difference(data, options, key).mean() < 1


XMP = ('<rdf:Description tiff:Orientation="{}"/>', "<tiff:Orientation>{}</tiff:Orientation>")


@pytest.mark.parametrize("format", ["JPEG", "PNG", "PNG deflated"])
@pytest.mark.parametrize("text", XMP)
@pytest.mark.parametrize("exif", [None, 1, 6])
def test_orientation_of_xmp_is_applied_unless_exif_has_one(format, text, exif):
    options = {"exif": with_orientation(exif)} if exif else {}
    for orientation in range(10):
        data = with_xmp(smooth(60, 91), format, text.format(orientation), **options)
        expected = np.asarray(opened(data).convert("RGB"))
        np.testing.assert_array_equal(_core.decode_image(data, {"crop": "none"}), expected)


def test_orientation_is_exifs_else_xmps_else_1():
    exif = with_orientation(8).tobytes()
    for packet in (
        b"tiff:Orientation='5'",
        b'<a tiff:Orientation = "5"',
        b"<tiff:Orientation>\n5<",
    ):
        assert _core.orientation(b"", packet) == 5
        assert _core.orientation(b"Exif\0\0damaged", packet) == 5
        assert _core.orientation(exif, packet) == _core.orientation(exif[6:], packet) == 8
    for packet in (b"", b"tiff:Orientation", b"tiff:Orientation=", b"tiff:Orientation='x'"):
        assert _core.orientation(b"", packet) == 1


@pytest.mark.parametrize("transform", [0, 2])
def test_inverted_cmyk_is_converted_as_pillow_does(transform):
    data = bytearray(encoded(smooth(70, 90).convert("CMYK"), quality=95))
    adobe = data.index(b"Adobe")
    data[adobe + 11] = transform  # 2: the same numbers are YCCK's
    assert difference(bytes(data), CUT, 1).max() <= 1
    assert difference(bytes(data), RANDOM, 1).mean() < 0.5
    assert difference(bytes(data), {**RANDOM, "grey": True}, 1).mean() < 0.5


def deep(channels):
    return np.random.default_rng(3).integers(0, 1 << 16, (41, 53, channels), np.uint16)


def as_rows(pixels):
    rows = pixels.astype(">u2").reshape(len(pixels), -1).view(np.uint8)
    return np.hstack([np.zeros((len(rows), 1), np.uint8), rows]).tobytes()


def pngs():
    image = smooth(41, 53)
    grey = image.convert("L")
    palette = image.quantize(37)
    alpha = image.copy()
    alpha.putalpha(grey)
    yield "rgb", encoded(image, "PNG"), image
    yield "rgba", encoded(alpha, "PNG"), image
    yield "grey", encoded(grey, "PNG"), grey
    yield "grey and alpha", encoded(alpha.convert("LA"), "PNG"), alpha.convert("LA").convert("L")
    yield "palette", encoded(palette, "PNG"), palette
    some = {"transparency": bytes(range(0, 200, 9))}
    yield "palette and tRNS", encoded(palette, "PNG", **some), palette
    yield "rgb and tRNS", encoded(image, "PNG", transparency=image.getpixel((0, 0))), image
    yield "grey and tRNS", encoded(grey, "PNG", transparency=grey.getpixel((0, 0))), grey
    yield "1 bit", encoded(grey.convert("1"), "PNG"), grey.convert("1")
    for bits in (1, 2, 4):
        few = image.quantize(1 << bits)
        yield f"palette of {bits} bits", encoded(few, "PNG", bits=bits), few
        steps = np.random.default_rng(bits).integers(0, 256, (41, 53 * bits // 8 + 1), np.uint8)
        rows = np.hstack([np.zeros((41, 1), np.uint8), steps]).tobytes()
        data = png(41, 53, bits, 0, rows)
        yield f"grey of {bits} bits", data, Image.open(io.BytesIO(data)).convert("L")
    for channels, color in ((1, 0), (2, 4), (3, 2), (4, 6)):
        pixels = deep(channels)
        colors = (pixels >> 8).astype(np.uint8)[..., : 1 if channels < 3 else 3]
        expected = Image.fromarray(colors.squeeze())
        yield f"{channels} x 16 bits", png(41, 53, 16, color, as_rows(pixels)), expected
    for colors, name in ((palette, "palette"), (image, "rgb"), (grey, "grey")):
        yield f"interlaced {name}", interlaced(colors), colors


def interlaced(image):
    """By Adam7, which Pillow does not write."""
    pixels = np.asarray(image).reshape(image.height, image.width, -1)
    rows = b""
    for y, x, down, across in [
        (0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)
    ]:  # fmt: skip
        part = pixels[y::down, x::across]
        rows += b"".join(b"\0" + row.tobytes() for row in part)
    color = {"L": 0, "RGB": 2, "P": 3}[image.mode]
    chunks = [chunk(b"PLTE", bytes(image.getpalette()))] if image.mode == "P" else []
    data = bytearray(png(image.height, image.width, 8, color, rows, *chunks))
    header = data[16:28] + b"\1"
    return bytes(data[:8] + chunk(b"IHDR", bytes(header)) + data[33:])


@pytest.mark.parametrize(("data", "image"), [pytest.param(d, i, id=name) for name, d, i in pngs()])
def test_png_is_what_pillow_makes_of_it(data, image):
    depth, color = data[24:26]
    for key in range(3 if LONG else 1):
        for grey in (False, True):
            for options in (CUT, NEAREST):
                if options is NEAREST and (
                    (grey and color == 3) or (depth == 16 and color in (0, 4))
                ):
                    with pytest.raises(SchemaError, match="resample='nearest' would"):
                        _core.decode_image(data, {**options, "grey": grey}, key)
                    continue
                assert difference(data, {**options, "grey": grey}, key, image).max() == 0
            for options in (RANDOM, WHOLE, SMALL):
                found = difference(data, {**options, "grey": grey}, key, image)
                assert found.mean() < 0.2
                assert found.max() <= 2


@pytest.mark.parametrize("channels", [1, 3])
def test_stored_pixels_take_the_same_options(channels):
    image = smooth(90, 131)
    pixels = np.asarray(image)[..., :channels]
    image = image if channels == 3 else Image.fromarray(pixels[..., 0])
    for key in range(4 if LONG else 2):
        for options in (CUT, NEAREST, RANDOM, CENTER, WHOLE, SMALL):
            for grey in (False, True):
                found = _core.convert_image(pixels, {**options, "grey": grey}, key)
                expected = by_pillow(image, {**options, "grey": grey}, key)
                apart = np.abs(found.astype(int) - expected)
                assert apart.mean() < 0.2
                assert apart.max() <= 2
                assert apart.max() == 0 or options not in (CUT, NEAREST)


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (2, 3)])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_tiny_pictures_are_scaled(format, size):
    data = encoded(smooth(*size), format)
    for options in (RANDOM, CENTER, WHOLE, {**WHOLE, "height": 1, "width": 1}, NEAREST):
        assert difference(data, options, 5).mean() < 2


COLORS = [(0, 0, 0), (255, 0, 128), (0, 255, 128), (7, 7, 7)]


@pytest.mark.parametrize("orientation", [1, 6])
def test_colors_become_class_numbers(orientation):
    numbers = np.random.default_rng(4).integers(0, 4, (40, 50))
    image = Image.fromarray(np.array(COLORS, np.uint8)[numbers])
    data = encoded(image, "PNG", exif=with_orientation(orientation))
    classes = [(*color, 10 + i) for i, color in enumerate(COLORS)]
    options = {**NEAREST, "height": 30, "width": 40, "resized": False, "classes": classes}
    pixels = by_pillow(opened(data), options, 9)
    expected = (pixels[:, :, np.newaxis] == COLORS).all(-1).argmax(-1) + 10
    np.testing.assert_array_equal(_core.decode_image(data, options, 9), expected)
    known = {**options, "classes": [(*COLORS[i], 10 + i) for i in (0, 1, 3)], "other": 255}
    expected[expected == 12] = 255
    np.testing.assert_array_equal(_core.decode_image(data, known, 9), expected)


@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 8])
@pytest.mark.parametrize("flip", [0, 1])
def test_color_without_class_is_named_with_its_place(orientation, flip):
    image = Image.new("RGB", (30, 20))
    image.putpixel((23, 5), (1, 2, 3))
    data = encoded(image, "PNG", exif=with_orientation(orientation))
    [row], [column] = np.nonzero(np.asarray(opened(data))[..., 2])
    options = {"crop": "none", "height": 60, "width": 60, "nearest": True, "flip": flip}
    options["classes"] = [(0, 0, 0, 0)]
    with pytest.raises(SchemaError, match=f"#010203 at row {row}, column {column} of the picture"):
        _core.decode_image(data, options)


PLAIN = encoded(smooth(61, 77))
ALL = {"crop": "none", "height": 61, "width": 77}
FRAME = frame_header(PLAIN)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (encoded(smooth(9, 9), "GIF"), "a GIF file, expected a JPEG or a PNG"),
        (encoded(smooth(9, 9), "WEBP"), "a WebP file"),
        (encoded(smooth(9, 9), "BMP"), "a BMP file"),
        (encoded(smooth(9, 9), "TIFF"), "a TIFF file"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 file"),
        (b"\0\0\0\x20ftypavif", "an AVIF or HEIF file"),
        (patched(PLAIN, FRAME + 4, 12), "Unsupported JPEG data precision 12"),
        (patched(PLAIN, FRAME + 1, 0xC3), "Unsupported JPEG process: SOF type 0xc3"),
    ],
)
def test_other_format_is_named(data, why):
    with pytest.raises(SchemaError, match=why):
        _core.decode_image(data, ALL)


def test_bytes_of_no_format_are_damaged():
    with pytest.raises(ValueError, match="the 5 bytes are neither a JPEG nor a PNG"):
        _core.decode_image(b"hello", ALL)
    with pytest.raises(ValueError, match="the 0 bytes are neither"):
        _core.decode_image(b"", ALL)


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_more_pixels_than_allowed_are_refused(format):
    data = encoded(smooth(61, 77), format)
    _core.decode_image(data, {**ALL, "max_pixels": 61 * 77})
    with pytest.raises(SchemaError, match="61 x 77 pixels, more than max_pixels=4696"):
        _core.decode_image(data, {**ALL, "max_pixels": 61 * 77 - 1})


def test_bombs_are_refused_by_their_header():
    huge = patched(patched(PLAIN, FRAME + 5, 255), FRAME + 7, 255)
    with pytest.raises(SchemaError, match=r"65341 x 65357 pixels"):
        _core.decode_image(huge, {**ALL, "max_pixels": 10**8})
    with pytest.raises(SchemaError, match="sides of at most 1000000"):
        _core.decode_image(png(1, 1_000_001, 1, 0, b""), ALL)


def test_tables_of_one_jpeg_do_not_serve_the_next():
    tables = PLAIN.index(b"\xff\xdb")
    size = int.from_bytes(PLAIN[tables + 2 : tables + 4], "big") + 2
    without = PLAIN[:tables] + PLAIN[tables + size :]
    _core.decode_image(PLAIN, ALL)
    with pytest.raises(ValueError, match=r"Quantization table"):
        _core.decode_image(without, ALL)


def test_jpeg_of_hundreds_of_scans_is_refused():
    data = encoded(Image.new("L", (64, 64), 128), progressive=True)
    scan = data.index(b"\xff\xda")
    # The first scan, again and again.
    end = (
        data.index(b"\xff\xc4", scan)
        if b"\xff\xc4" in data[scan:]
        else data.index(b"\xff\xda", scan + 2)
    )
    repeated = data[:scan] + data[scan:end] * 200 + data[end:]
    with pytest.raises(ValueError, match="JPEG is damaged"):
        _core.decode_image(repeated, {**ALL, "height": 64, "width": 64})
