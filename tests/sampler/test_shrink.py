"""The step `shrink`, and `resize` by the shorter side."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cachecd.errors import UnitError
from tests.core.pictures import with_orientation, with_xmp
from tests.sampler.test_transforms import image_bytes, run

RNG = np.random.default_rng(2)
# Little color, as a JPEG keeps half of the resolution of color.
COARSE = RNG.integers(60, 200, (3, 4, 1)) + RNG.integers(0, 20, (3, 4, 3))
SMOOTH = np.asarray(
    Image.fromarray(COARSE.astype(np.uint8)).resize((90, 60), Image.Resampling.BICUBIC)
)
NUMBERS = np.kron(RNG.integers(0, 21, (6, 9)), np.ones((10, 10), np.int64))


def opened(body: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(body))
    image.load()
    return image


def shrunk(body: bytes, shorter: int = 30, **more: Any) -> Image.Image:
    [record] = run({"payload": body, "key": b"k"}, {"shrink": {"shorter": shorter, **more}})
    assert record.keys() == {"payload", "key"}
    return opened(record["payload"])


def expected(shorter: int = 30) -> np.ndarray:
    image = Image.fromarray(SMOOTH).resize((shorter * 3 // 2, shorter), Image.Resampling.BILINEAR)
    return np.asarray(image, np.int16)


def distance(image: Image.Image) -> float:
    return float(np.abs(np.asarray(image.convert("RGB"), np.int16) - expected()).mean())


def palette(numbers: np.ndarray) -> Image.Image:
    image = Image.fromarray(numbers.astype(np.uint8)).convert("L")
    image.putpalette(bytes(range(256)) * 3)
    return image


class TestShrink:
    @pytest.mark.parametrize("file", ["JPEG", "PNG"])
    @pytest.mark.parametrize("shorter", [60, 1000])
    def test_picture_that_is_not_larger_stays_byte_for_byte(self, file: str, shorter: int):
        body = image_bytes(SMOOTH, file=file)
        [record] = run({"payload": body}, {"shrink": {"shorter": shorter}})
        assert record["payload"] == body

    @pytest.mark.parametrize(
        ("file", "becomes"),
        [("JPEG", "JPEG"), ("MPO", "JPEG"), ("PNG", "PNG"), ("WEBP", "JPEG"), ("BMP", "JPEG")],
    )  # fmt: skip
    def test_large_picture_gets_the_shorter_side_and_keeps_its_looks(self, file: str, becomes: str):
        how = {} if file in ("PNG", "BMP", "TIFF") else {"quality": 97}
        image = shrunk(image_bytes(SMOOTH, file=file, **how), quality=97)
        assert (image.format, image.mode, image.size) == (becomes, "RGB", (45, 30))
        assert distance(image) < 3

    @pytest.mark.parametrize("file", ["JPEG", "PNG", "WEBP", "TIFF"])
    @pytest.mark.parametrize("mode", ["RGB", "RGBA"])
    def test_orientation_is_applied_and_dropped(self, file: str, mode: str):
        if (file, mode) == ("JPEG", "RGBA"):
            mode = "CMYK"
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned to the right
        turned = np.ascontiguousarray(np.rot90(SMOOTH))
        more: dict[str, Any] = {"quality": 97} if file in ("JPEG", "WEBP") else {}
        image = shrunk(image_bytes(turned, mode, file, exif=exif, **more), quality=97)
        assert image.size == (45, 30)
        assert not image.getexif()
        assert distance(image) < 4

    @pytest.mark.parametrize("file", ["JPEG", "PNG", "WEBP"])
    @pytest.mark.parametrize("exif", [None, 1, 6])
    def test_orientation_of_xmp_is_applied_or_kept_with_the_file(self, file: str, exif: int | None):
        options: dict[str, Any] = {"exif": with_orientation(exif)} if exif else {}
        turned = Image.fromarray(SMOOTH if exif == 1 else np.ascontiguousarray(np.rot90(SMOOTH)))
        body = with_xmp(turned, file, '<x tiff:Orientation="6"/>', quality=97, **options)
        image = shrunk(body, quality=97)
        assert image.size == (45, 30)
        assert not image.getexif()
        assert "xmp" not in image.info
        assert distance(image) < 3
        [kept] = run({"payload": body}, {"shrink": {"shorter": 60}})
        assert kept["payload"] == body

    def test_irregular_jpeg_is_shrunk_and_one_with_missing_pixels_is_refused(self):
        body = image_bytes(SMOOTH, file="JPEG", quality=97)
        assert distance(shrunk(body[:-2], quality=97)) < 3
        with pytest.raises(UnitError, match="shrink raised ValueError: the JPEG is damaged"):
            shrunk(body[:-200] + body[-2:])

    def test_palette_and_its_numbers_survive(self):
        body = io.BytesIO()
        palette(NUMBERS).save(body, "PNG")
        image = shrunk(body.getvalue())
        assert (image.format, image.mode) == ("PNG", "P")
        assert image.getpalette()[: 3 * 21] == palette(NUMBERS).getpalette()[: 3 * 21]
        assert np.array_equal(np.asarray(image), NUMBERS[1::2, 1::2])

    @pytest.mark.parametrize("file", ["PNG", "TIFF"])
    def test_pixels_of_16_bits_keep_their_values(self, file: str):
        deep = (NUMBERS * 3001).astype(np.uint16)
        image = shrunk(image_bytes(deep, file=file))
        assert image.format == "PNG"
        assert np.array_equal(np.asarray(image), deep[1::2, 1::2])

    @pytest.mark.parametrize("file", ["PNG", "GIF", "BMP", "WEBP"])
    def test_nearest_keeps_the_values_of_any_picture(self, file: str):
        colors = np.stack([NUMBERS, NUMBERS * 2, NUMBERS * 0], axis=2).astype(np.uint8)
        how = {"lossless": True} if file == "WEBP" else {}
        image = shrunk(image_bytes(colors, file=file, **how), resample="nearest")
        assert image.format == "PNG"
        assert np.array_equal(np.asarray(image.convert("RGB")), colors[1::2, 1::2])

    @pytest.mark.parametrize("shape", [(61, 97), (41, 400)])
    def test_image_and_mask_end_in_the_same_size(self, shape: tuple[int, int]):
        record = {
            "image": image_bytes(np.zeros((*shape, 3), np.uint8), file="JPEG"),
            "mask": image_bytes(np.zeros(shape, np.uint8)),
        }
        both = {"shrink": {"shorter": 40, "features": ["image", "mask"]}}
        [together] = run(record, both)
        [apart] = run(
            record,
            {"shrink": {"shorter": 40, "features": ["image"]}},
            {"shrink": {"shorter": 40, "features": ["mask"], "resample": "nearest"}},
        )
        sizes = {opened(found[name]).size for found in (together, apart) for name in record}
        assert len(sizes) == 1
        assert min(sizes.pop()) == 40

    @pytest.mark.parametrize(
        ("record", "reason"),
        [
            ({"payload": b"no picture"}, "UnidentifiedImageError"),
            ({"payload": image_bytes(SMOOTH, file="JPEG")[:900]},
             "the JPEG is damaged: .*premature end of data"),
            ({"payload": image_bytes(NUMBERS.astype(np.float32), file="TIFF")},
             "at most 16 bits for an image with one channel"),
            ({"payload": SMOOTH}, "found ndarray: put shrink before the step that decodes it"),
        ],
    )  # fmt: skip
    def test_record_that_cannot_be_used_is_the_units_fault(
        self, record: dict[str, Any], reason: str
    ):
        with pytest.raises(UnitError, match=f"shrink raised .*{reason}"):
            run(record, {"shrink": {"shorter": 30}})


class TestResizeByTheShorterSide:
    @pytest.mark.parametrize("shorter", [30, 90])
    def test_proportions_are_kept_when_it_shrinks_or_grows(self, shorter: int):
        numbers = NUMBERS.astype(np.uint8)
        record = {"image": SMOOTH, "label_map": numbers, "left": SMOOTH}
        [found] = run(record, {"resize": {"shorter": shorter}})
        assert np.array_equal(found["image"], expected(shorter))
        assert found["label_map"].shape == (shorter, shorter * 3 // 2)
        assert np.array_equal(found["left"], SMOOTH)
        [tall] = run(
            {"left": SMOOTH.transpose(1, 0, 2)},
            {"resize": {"shorter": 31, "features": ["left"]}},
        )
        assert tall["left"].shape == (46, 31, 3)
