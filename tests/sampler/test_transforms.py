"""Steps: the user's, and the ready-made ones."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from cachecd.config import TransformStep
from cachecd.errors import ConfigError, UnitError
from cachecd.sampler.transforms import build
from tests.core.pictures import encoded, png, smooth, with_orientation, with_xmp
from tests.sampler import steps


def run(record: dict[str, Any], *steps: object) -> list[Any]:
    transform = build([TransformStep.model_validate(step) for step in steps])
    assert transform is not None
    return list(transform(record))


def step(name: str) -> str:
    return f"tests.sampler.steps:{name}"


def image_bytes(
    pixels: np.ndarray, mode: str | None = None, file: str = "PNG", **how: Any
) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(out, file, **how)
    return out.getvalue()


RGB = np.random.default_rng(1).integers(0, 256, (6, 9, 3), np.uint8)
GREY = RGB[:, :, 0]


class TestUsersSteps:
    def test_no_steps_are_no_transform(self):
        assert build([]) is None

    def test_results_pass_through_the_whole_chain_in_order(self):
        results = run({"payload": b"large enough"}, step("twice"), step("twice"))
        assert [r["variant"] for r in results] == [0, 1, 0, 1]

    def test_a_second_try_begins_with_the_values_of_the_first(self):
        steps.failed.clear()
        [result] = run({"n": np.array([1, 2])}, step("adds_one_and_fails_once"))
        assert result["n"].tolist() == [2, 3]

    def test_none_drops_the_record(self):
        assert run({"payload": b"tiny"}, step("twice"), step("keep_large")) == []
        assert len(run({"payload": b"large enough"}, step("keep_large"), step("twice"))) == 2

    @pytest.mark.parametrize(
        ("payload", "name"), [(b"raise", "ValueError: no good"), (b"exit", "SystemExit: 3")]
    )
    def test_an_exception_names_the_step_and_the_users_line(self, payload: bytes, name: str):
        with pytest.raises(UnitError) as caught:
            run({"payload": payload}, step("wild"))
        assert str(caught.value).startswith(f"tests.sampler.steps:wild raised {name} (")
        place = re.search(r"\((.*steps\.py):(\d+)\)$", str(caught.value))
        assert place is not None
        line = Path(place[1]).read_text().splitlines()[int(place[2]) - 1]
        assert "raise ValueError" in line or "sys.exit" in line

    @pytest.mark.parametrize(("value", "found"), [(5, "int"), ("text", "str"), ([1, 2], "int")])
    def test_anything_but_records_is_refused(self, value: Any, found: str):
        with pytest.raises(UnitError, match=f"returns returned {found}, expected a dict, None"):
            run({"value": value}, step("returns"))

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("no.such.module:f", "ModuleNotFoundError: No module named 'no'"),
            ("tests.sampler.steps:nothing", "AttributeError: .*nothing"),
            ("tests.sampler.steps:seen", "found list, expected a function"),
        ],
    )
    def test_what_cannot_be_imported_is_a_configuration_error(self, name: str, reason: str):
        with pytest.raises(ConfigError, match=f"transform {name}: .*{reason}"):
            build([TransformStep.model_validate(name)])


class TestDecodeImage:
    def decoded(self, body: bytes) -> np.ndarray:
        [record] = run({"key": b"k", "payload": body, "label": 3}, "decode_image")
        assert record.keys() == {"key", "label", "image"}
        image: np.ndarray = record["image"]
        assert image.dtype == np.uint8
        return image

    def test_grey_has_three_equal_channels_like_any_other_image(self):
        assert np.array_equal(self.decoded(image_bytes(GREY)), np.stack([GREY] * 3, axis=2))

    def test_jpeg_is_decoded_as_pillow_decodes_it(self):
        body = image_bytes(RGB, file="JPEG", quality=95)
        assert np.array_equal(self.decoded(body), np.asarray(Image.open(io.BytesIO(body))))

    @pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGBA", 4), ("L", 1)])
    @pytest.mark.parametrize(
        ("stored", "file"),
        [
            *((mode, "PNG") for mode in (None, "RGBA", "P", "LA", "1")),
            *((mode, "JPEG") for mode in ("L", "CMYK")),
            *(("I;16", "TIFF"), ("P", "GIF"), ("RGBA", "WEBP")),
        ],
    )
    def test_the_mode_decides_how_many_channels_there_are_and_the_file_does_not(
        self, stored: str | None, file: str, mode: str, channels: int
    ):
        pixels = GREY.astype(np.uint16) * 257 if stored == "I;16" else RGB
        body = image_bytes(pixels, None if stored == "I;16" else stored, file)
        [record] = run({"payload": body}, {"decode_image": {"mode": mode}})
        assert record["image"].shape == (6, 9, channels)
        assert record["image"].dtype == np.uint8

    @pytest.mark.parametrize("dtype", [np.float32, np.int32])
    def test_32_bits_are_refused_since_nobody_knows_their_range(self, dtype: type):
        body = image_bytes(np.full((2, 2), 3, dtype), file="TIFF")
        with pytest.raises(UnitError, match=r"32 bits deep .*your own function"):
            run({"payload": body}, "decode_image")

    def test_sixteen_bits_are_scaled_down_to_eight(self):
        deep = np.array([[0, 255, 256, 0x1234, 0xFFFF]], np.uint16)
        for file in ("PNG", "TIFF"):
            [record] = run(
                {"payload": image_bytes(deep, file=file)}, {"decode_image": {"mode": "L"}}
            )
            assert record["image"].ravel().tolist() == [0, 0, 1, 0x12, 0xFF]
            assert self.decoded(image_bytes(deep, file=file))[0, 3].tolist() == [0x12] * 3

    @pytest.mark.parametrize(
        ("body", "reason"),
        [(b"no image", "cannot identify image"), (image_bytes(RGB)[:-30], "truncated|broken")],
    )
    def test_what_is_no_image_is_the_units_fault(self, body: bytes, reason: str):
        with pytest.raises(UnitError, match=f"decode_image raised .*({reason})"):
            run({"payload": body}, "decode_image")

    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
    def test_irregular_picture_is_decoded_and_one_with_missing_pixels_is_refused(self, mode: str):
        step = {"decode_image": {"mode": mode}}
        body = encoded(smooth(40, 61))
        [expected] = run({"payload": body}, step)
        for whole in (body[:-2], body + b"camera", bytearray(body)):
            [record] = run({"payload": whole}, step)
            assert np.array_equal(record["image"], expected["image"])
        rows = b"".join(b"\0" + row.tobytes() for row in np.asarray(smooth(40, 61))[:30])
        for cut in (body[:-200] + body[-2:], png(40, 61, 8, 2, rows)):
            Image.open(io.BytesIO(cut)).load()  # Pillow fills the gap
            with pytest.raises(
                UnitError, match=r"decode_image raised ValueError: the .* is damaged"
            ):
                run({"payload": cut}, step)

    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
    @pytest.mark.parametrize("form", ["JPEG", "PNG", "PNG deflated", "WEBP", "TIFF"])
    def test_orientation_is_applied(self, form: str, mode: str):
        for exif, xmp in ((1, 1), (1, 6), (5, 1), (None, 6), (None, 3), (8, 6)):
            options: dict[str, Any] = {"exif": with_orientation(exif)} if exif else {}
            text = f'<rdf:Description tiff:Orientation="{xmp}"/>'
            if form == "TIFF":
                body = encoded(smooth(40, 61), form, **options)
            else:
                body = with_xmp(smooth(40, 61), form, text, **options)
            [record] = run({"payload": body}, {"decode_image": {"mode": mode}})
            expected = ImageOps.exif_transpose(Image.open(io.BytesIO(body))).convert(mode)
            assert np.array_equal(record["image"].squeeze(), np.asarray(expected))

    def test_a_missing_feature_is_named_with_those_there(self):
        with pytest.raises(
            UnitError, match="no feature 'payload' to decode; the record has jpg, key"
        ):
            run({"jpg": b"", "key": b""}, "decode_image")


class TestResize:
    @pytest.mark.parametrize("size", [(4, 5), (12, 18), (6, 9)])
    @pytest.mark.parametrize("pixels", [RGB, GREY[:, :, None]], ids=["colour", "grey"])
    def test_has_the_size_and_pillows_pixels(self, size: tuple[int, int], pixels: np.ndarray):
        [record] = run({"image": pixels}, {"resize": list(size)})
        flat = Image.fromarray(pixels.squeeze())
        expected = np.asarray(flat.resize(size[::-1], Image.Resampling.BILINEAR))
        assert np.array_equal(record["image"], expected.reshape(*size, -1))
        assert record["image"].dtype == np.uint8

    @pytest.mark.parametrize(
        "record", [{"payload": b""}, {"image": b"bytes"}, {"image": RGB.astype(np.float32)}]
    )
    def test_without_an_image_it_says_what_to_do(self, record: dict[str, Any]):
        with pytest.raises(
            UnitError, match=r"resize raised .*put decode_image or class_map before resize"
        ):
            run(record, {"resize": 4})


def test_equal_faults_of_different_objects_have_equal_reasons():
    step = build([TransformStep.model_validate("decode_image")])
    reasons = set()
    for payload in (b"no image", b"none either"):
        with pytest.raises(UnitError) as caught:
            list(step({"payload": payload}))
        reasons.add(str(caught.value))
    assert len(reasons) == 1
