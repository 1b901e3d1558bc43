"""The ready-made steps beside decode_image and resize, as they stand in a configuration."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile
from pydantic import ValidationError

from cachecd.config import TransformStep
from cachecd.errors import ConfigError, UnitError
from cachecd.sampler.encoding import infer
from cachecd.sampler.transforms import build
from tests.core.pictures import with_orientation
from tests.sampler.test_transforms import GREY, RGB, image_bytes, run

RED, BLUE, BLACK = [255, 0, 0], [0, 0, 255], [0, 0, 0]
COLORS = {"road": "#ff0000", "sky": BLUE, 7: "#000000"}
MAP = np.array([[RED, BLUE], [BLACK, RED], [BLUE, BLUE]], np.uint8)
NUMBERS = [[0, 1], [2, 0], [1, 1]]


def sound(samples: np.ndarray, rate: int = 8000, file: str = "FLAC") -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=file)
    return out.getvalue()


INTEGERS = (np.arange(1, 401) * 80).astype("<i2")


def chunk_of(name: bytes, content: bytes, size: int | None = None) -> bytes:
    return name + (len(content) if size is None else size).to_bytes(4, "little") + content


def wav(chunks: bytes, riff: int | None = None, size: int | None = None) -> bytes:
    return chunk_of(b"RIFF", b"WAVE" + chunks + chunk_of(b"data", INTEGERS.tobytes(), size), riff)


FORMAT = struct.pack("<HIIHH", 1, 8000, 16000, 2, 16)
GUID = bytes.fromhex("0100000000001000800000aa00389b71")
PCM = chunk_of(b"fmt ", b"\1\0" + FORMAT)
EXTENSIBLE = chunk_of(b"fmt ", b"\xfe\xff" + FORMAT + struct.pack("<HHI", 22, 16, 4) + GUID)
WAVE = (np.arange(400) % 50 / 100).astype(np.float32)
STEREO = np.stack([WAVE, -WAVE / 2], axis=1)


class TestSizes:
    def test_the_middle_is_cut_out_and_the_odd_pixel_goes_below_and_right(self):
        [record] = run({"image": RGB, "x": 1}, {"center_crop": [3, 4]})
        assert np.array_equal(record["image"], RGB[1:4, 2:6])
        assert record["x"] == 1

    def test_a_picture_that_is_smaller_is_the_units_fault(self):
        with pytest.raises(UnitError, match="'image' has 6 x 9 pixels, expected at least 7 x 7"):
            run({"image": RGB}, {"center_crop": 7})

    def test_the_map_of_an_image_is_cropped_and_resized_with_it(self):
        record = {"image": RGB, "label_map": GREY}
        [cropped] = run(record, {"center_crop": [4, 7]})
        assert np.array_equal(cropped["label_map"], GREY[1:5, 1:8])
        [resized] = run(record, {"resize": [12, 18]})
        assert np.array_equal(resized["label_map"], GREY.repeat(2, axis=0).repeat(2, axis=1))
        assert set(run(record, {"resize": 2})[0]["label_map"].flat) <= set(GREY.flat), (
            "no new numbers"
        )


class TestClassMap:
    @pytest.mark.parametrize("mode", [None, "P", "RGBA"])
    def test_colors_become_the_numbers_of_their_classes(self, mode: str | None):
        record = {"png": image_bytes(MAP, mode), "key": b"k"}
        [found] = run(record, {"class_map": {"feature": "png", "colors": COLORS}})
        assert found.keys() == {"key", "label_map"}
        assert found["label_map"].dtype == np.uint8
        assert found["label_map"].tolist() == NUMBERS

    def test_map_is_turned_like_its_image(self):
        record = {"png": image_bytes(MAP, exif=with_orientation(6))}
        [found] = run(record, {"class_map": {"feature": "png", "colors": COLORS}})
        assert found["label_map"].tolist() == np.rot90(NUMBERS, -1).tolist()

    def test_an_array_is_taken_as_well_and_the_result_may_have_another_name(self):
        step = {"class_map": {"feature": "image", "into": "classes", "colors": COLORS}}
        [found] = run({"image": MAP}, step)
        assert found["classes"].tolist() == NUMBERS

    def test_a_color_without_a_class_is_named_with_its_place(self):
        step = {"class_map": {"feature": "png", "colors": {"road": RED, "sky": BLUE}}}
        with pytest.raises(UnitError, match="color #000000 at row 1, column 0 belongs to no class"):
            run({"png": image_bytes(MAP)}, step)

    def test_all_other_colors_may_have_a_number(self):
        step = {"class_map": {"feature": "png", "colors": {"road": RED, "sky": BLUE}, "other": 300}}
        [found] = run({"png": image_bytes(MAP)}, step)
        assert found["label_map"].dtype == np.uint16
        assert found["label_map"].tolist() == [[0, 1], [300, 0], [1, 1]]

    def test_the_order_of_the_colors_survives_the_way_to_the_samplers(self):
        colors = {"zebra": RED, "ant": BLUE, "moth": BLACK}
        step = TransformStep.model_validate({"class_map": {"colors": colors}})
        again = TransformStep.model_validate(step.model_dump(mode="json"))
        assert again == step
        assert [name for name, _ in again.argument["colors"]] == list(colors)


class TestDecodeAudio:
    def test_one_channel_has_the_length_that_it_has(self):
        [found] = run({"payload": sound(WAVE), "key": b"k"}, "decode_audio")
        assert found.keys() == {"key", "audio", "rate"}
        assert found["rate"] == 8000
        assert np.allclose(found["audio"], WAVE, atol=1e-4)
        audio = {f.name: f for f in infer(found).features}["audio"]
        assert (audio.dtype, audio.shape) == ("float32", None)

    @pytest.mark.parametrize("seconds", [0.01, 0.1])
    def test_a_fixed_length_cuts_off_or_ends_in_silence(self, seconds: float):
        step = {"decode_audio": {"feature": "flac", "seconds": seconds}}
        [found] = run({"flac": sound(STEREO)}, step)
        length = round(seconds * 8000)
        expected = np.zeros((length, 2), np.float32)
        expected[: len(STEREO)] = STEREO[:length]
        assert found["audio"].dtype == np.float32
        assert np.allclose(found["audio"], expected, atol=1e-4)

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (sound(STEREO), "2 channels and no fixed length: set `mono`"),
            (sound(WAVE, 16000), "has 16000 samples per second, expected 8000"),
            (b"no sound", "LibsndfileError"),
        ],
    )
    def test_what_cannot_be_used_is_the_units_fault(self, body: bytes, reason: str):
        with pytest.raises(UnitError, match=f"decode_audio raised .*{reason}"):
            run({"payload": body}, {"decode_audio": {"rate": 8000}})

    @pytest.mark.parametrize("seconds", [None, 0.06])
    @pytest.mark.parametrize(
        ("riff", "size"),
        [(0, 0), (36, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0), (0x7FFFF024, 0x7FFFF000)],
    )
    def test_wav_without_a_size_is_read_to_its_end(
        self, riff: int, size: int, seconds: float | None
    ):
        for chunks in (PCM, EXTENSIBLE, PCM + chunk_of(b"junk", b"odd") + b"\0"):
            body = wav(chunks, riff, size)
            [found] = run({"payload": body}, {"decode_audio": {"seconds": seconds}})
            samples = np.asarray(found["audio"])
            assert len(samples) == (400 if seconds is None else 480)
            assert np.array_equal(samples[:400] * 2**15, INTEGERS)

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (lambda: wav(PCM)[:-200], "the WAV ends after 600 of 800 bytes of samples"),
            (lambda: wav(PCM, size=900), "the WAV ends after 800 of 900"),
            (lambda: wav(PCM, size=0), "ends after 0 of 0 samples"),
            (lambda: wav(PCM)[:40], "ends after 0 of 0 samples"),
            (lambda: sound(np.tile(WAVE, 20), file="MP3")[:-100], "ends after .* of 8000 samples"),
        ],
    )
    def test_sound_that_misses_samples_is_refused(self, body: Callable[[], bytes], reason: str):
        for seconds in (None, 1.5):
            with pytest.raises(UnitError, match=reason):
                run({"payload": body()}, {"decode_audio": {"seconds": seconds}})

    def test_a_header_that_promises_more_than_fits_is_not_believed(self):
        body = bytearray(sound(np.tile(WAVE, 3)))
        begin = body.index(b"fLaC") + 8
        body[begin + 13] |= 0x0F  # the upper bits of how many samples there are
        with pytest.raises(UnitError, match="too many for a record"):
            run({"payload": bytes(body)}, "decode_audio")


@pytest.mark.parametrize(
    ("step", "package", "name"),
    [("decode_image", "PIL", "images"), ("decode_audio", "soundfile", "audio")],
)
def test_step_without_its_library_names_the_extra(step, package, name, monkeypatch):
    monkeypatch.delitem(sys.modules, f"cachecd.sampler.transforms.{step}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        build([TransformStep.model_validate(step)])
    assert str(caught.value).startswith(f"transform {step}: ")
    assert str(caught.value).endswith(f": pip install 'cachecd[{name}]'")


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        ({"center_crop": 0}, "found 0, but center_crop accepts a number of pixels"),
        ({"decode_image": {"mode": "CMYK"}}, "found mode: 'CMYK', but decode_image accepts"),
        ({"class_map": {"colors": {"a": "#12345"}}},
         "colors.a: found '#12345', expected '#rrggbb'"),
        ({"class_map": {"colors": {"a": RED, "b": "#FF0000"}}}, "two classes have the same color"),
        ({"decode_audio": {"rate": 0}}, "decode_audio accepts"),
    ],
)  # fmt: skip
def test_an_argument_that_does_not_fit_is_a_mistake_of_the_configuration(
    step: dict[str, Any], complaint: str
):
    with pytest.raises(ValidationError) as caught:
        TransformStep.model_validate(step)
    assert complaint in str(caught.value)
