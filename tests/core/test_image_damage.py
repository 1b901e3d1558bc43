"""Pictures that are irregular, and pictures that miss pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from cachecd_client import _core
from cachecd_client.errors import SchemaError
from tests.core.pictures import (
    chunk,
    encoded,
    patched,
    png,
    scans,
    smooth,
    with_orientation,
    with_xmp,
)


def by_libjpeg(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


GOOD = [
    pytest.param(encoded(smooth(61, 77)), id="jpeg"),
    pytest.param(encoded(smooth(61, 77), progressive=True), id="progressive"),
    pytest.param(encoded(smooth(61, 77), "PNG"), id="png"),
]
ALL = {"crop": "none", "height": 61, "width": 77}


@pytest.mark.parametrize("data", GOOD)
def test_truncated_picture_is_damaged(data):
    _core.decode_image(data, ALL)
    for size in [*range(0, 700, 3), *range(700, len(data), 97), len(data) - 3]:
        with pytest.raises(ValueError, match=r"JPEG|PNG"):
            _core.decode_image(data[:size], ALL)


PLAIN = encoded(smooth(61, 77))
SCAN = PLAIN.rindex(b"\xff\xda")
FIELDS = SCAN + 2 + int.from_bytes(PLAIN[SCAN + 2 : SCAN + 4], "big") - 3  # Ss, Se, Ah and Al
RESTARTS = encoded(smooth(61, 77), restart_marker_blocks=2)
SECOND = RESTARTS.index(b"\xff\xd1")
END = b"\xff\xd9"
SCANS_HEAD, SCANS = scans(encoded(smooth(61, 77), progressive=True))
PROGRESSIVE = SCANS_HEAD + b"".join(SCANS) + END


def segment(marker, content):
    return b"\xff" + bytes([marker]) + (len(content) + 2).to_bytes(2, "big") + content


IRREGULAR = {
    "NOT_SEQUENTIAL: Se = 0": (patched(PLAIN, FIELDS + 1, 0), PLAIN),
    "NOT_SEQUENTIAL: Ss and Al": (patched(patched(PLAIN, FIELDS, 9), FIELDS + 2, 1), PLAIN),
    "JFIF_MAJOR": (patched(PLAIN, PLAIN.index(b"JFIF") + 5, 3), PLAIN),
    "ADOBE_XFORM": (PLAIN[:2] + segment(0xEE, b"Adobe\0\x64\0\0\0\0\7") + PLAIN[20:], PLAIN),
    "BOGUS_ICC": (PLAIN[:2] + segment(0xE2, b"ICC_PROFILE\0\x09\2") + PLAIN[2:], PLAIN),
    "EXTRANEOUS_DATA: before a scan": (PLAIN[:SCAN] + b"\0\1\2" + PLAIN[SCAN:], PLAIN),
    "EXTRANEOUS_DATA: before the end": (PLAIN[:-2] + bytes(40) + END, PLAIN),
    "EXTRANEOUS_DATA: between scans": (
        SCANS_HEAD + SCANS[0] + bytes(9) + b"".join(SCANS[1:]) + END, PROGRESSIVE
    ),
    "BOGUS_PROGRESSION: AC before DC": (
        SCANS_HEAD + SCANS[1] + SCANS[0] + b"".join(SCANS[2:]) + END, PROGRESSIVE
    ),
    "JPEG_EOF: only the end is missing": (PLAIN[:-2], PLAIN),
    "JPEG_EOF: half of the end": (PLAIN[:-1], PLAIN),
    "JPEG_EOF: all scans": (PROGRESSIVE[:-2], PROGRESSIVE),
    "JPEG_EOF: all restarts": (RESTARTS[:-2], RESTARTS),
    "bytes behind the end": (PLAIN + b"camera", PLAIN),
    "fill bytes": (RESTARTS[:SECOND] + b"\xff\xff" + RESTARTS[SECOND:], RESTARTS),
}  # fmt: skip


@pytest.mark.parametrize(("data", "regular"), IRREGULAR.values(), ids=IRREGULAR)
def test_irregular_jpeg_has_all_its_pixels(data, regular):
    expected = by_libjpeg(regular)
    np.testing.assert_array_equal(_core.decode_image(data, ALL), expected)
    np.testing.assert_array_equal(by_libjpeg(data + END), expected)


MISSING = {
    "HIT_MARKER": PLAIN[: len(PLAIN) * 3 // 4] + END,
    "HIT_MARKER: one byte": PLAIN[:-3],
    "HIT_MARKER: in a scan of many": SCANS_HEAD + b"".join(SCANS[:-1]) + SCANS[-1][:-9] + END,
    "MUST_RESYNC: another restart": patched(RESTARTS, SECOND + 1, 0xD4),
    "MUST_RESYNC: a restart is missing": RESTARTS[:SECOND]
    + RESTARTS[RESTARTS.index(b"\xff\xd2") :],
    "MUST_RESYNC: cut at a restart": RESTARTS[:SECOND],
    "EXTRANEOUS_DATA: within a scan": RESTARTS[:SECOND] + b"\x5a\x13\x77" + RESTARTS[SECOND:],
    "BOGUS_PROGRESSION: no DC": SCANS_HEAD + b"".join(SCANS[1:]) + END,
    "BOGUS_PROGRESSION: no refinement": SCANS_HEAD + b"".join(SCANS[:5] + SCANS[6:]) + END,
    "no warning: DC alone": SCANS_HEAD + SCANS[0] + END,
    "no warning: cut between scans": SCANS_HEAD + b"".join(SCANS[:8]) + END,
    "JPEG_EOF: cut between scans": SCANS_HEAD + b"".join(SCANS[:4]),
    "JPEG_EOF: without the last scan": SCANS_HEAD + b"".join(SCANS[:-1]),
    "HUFF_BAD_CODE": PLAIN[: SCAN + 40] + b"\xff\0" * 20 + PLAIN[SCAN + 80 :],
}


@pytest.mark.parametrize("data", MISSING.values(), ids=MISSING)
def test_jpeg_that_misses_pixels_is_damaged(data):
    with pytest.raises(ValueError, match="the JPEG is damaged"):
        _core.decode_image(data, ALL)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_jpeg_without_the_scan_of_a_component_is_damaged(kept):
    planes = [encoded(channel) for channel in smooth(64, 64).split()]
    head = bytearray(encoded(smooth(64, 64), subsampling="4:4:4"))
    scan = head.rindex(b"\xff\xda")
    # Three scans of one component each, by the tables of one.
    parts = []
    for number, plane in enumerate(planes, 1):
        at = plane.rindex(b"\xff\xda")
        body = plane[at + 10 : -2]
        parts.append(segment(0xDA, bytes([1, number, 0, 0, 63, 0])) + body)
    tables = bytes(head[:scan])
    whole = tables + b"".join(parts) + END
    options = {"crop": "none"}
    expected = by_libjpeg(whole)
    np.testing.assert_array_equal(_core.decode_image(whole, options), expected)
    for end in (b"", END):
        with pytest.raises(ValueError, match="a scan is missing"):
            _core.decode_image(tables + b"".join(parts[:kept] + parts[kept + 1 :]) + end, options)


def wrong_crc(data, kind):
    at = data.index(kind)
    end = at + 4 + int.from_bytes(data[at - 4 : at], "big")
    return patched(data, end, data[end] ^ 1)


TEXT = chunk(b"tEXt", b"Comment\0x")


def test_irregular_png_has_all_its_pixels():
    data = encoded(smooth(61, 77), "PNG")
    expected = _core.decode_image(data, ALL)
    for irregular in (
        data + b"behind the end",
        wrong_crc(data[:33] + TEXT + data[33:], b"tEXt"),
        wrong_crc(data[:-12] + TEXT + data[-12:], b"tEXt"),
        wrong_crc(data[:33] + chunk(b"gAMA", bytes(4)) + data[33:], b"gAMA"),
    ):
        np.testing.assert_array_equal(_core.decode_image(irregular, ALL), expected)


def test_png_that_misses_pixels_or_its_orientation_is_damaged():
    rows = b"".join(b"\0" + row.tobytes() for row in np.asarray(smooth(61, 77)))
    upright = png(61, 77, 8, 2, rows)
    _core.decode_image(upright, ALL)
    turned = encoded(smooth(61, 77), "PNG", exif=with_orientation(3))
    for damaged in (
        png(61, 77, 8, 2, rows[: len(rows) // 2]),
        wrong_crc(upright, b"IDAT"),
        wrong_crc(turned, b"eXIf"),
        wrong_crc(with_xmp(smooth(61, 77), "PNG", '<x tiff:Orientation="3"/>'), b"iTXt"),
        upright[:-12],  # what followed may have been the orientation
    ):
        with pytest.raises(ValueError, match="the PNG is"):
            _core.decode_image(damaged, ALL)


def test_any_altered_byte_of_a_png_is_damage():
    data = encoded(smooth(31, 17), "PNG")
    for at in range(8, len(data), 5):
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        with pytest.raises((ValueError, SchemaError)):
            _core.decode_image(damaged, {"crop": "center", "height": 1, "width": 1})
