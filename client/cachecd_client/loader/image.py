"""The option `decode`, which decodes pictures to pixels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from cachecd_client.errors import CallerError
from cachecd_client.options import integer

if TYPE_CHECKING:
    from cachecd_client._core import ImageOptions

Color = str | tuple[int, int, int]

_SCALE = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_LONGEST_SIDE = 65_535  # the limit of JPEG
_CHOICES = {
    "crop": ("center", "random", None), "mode": ("RGB", "L"), "resample": ("bilinear", "nearest"),
}  # fmt: skip


@dataclass(frozen=True)
class Image:
    """A picture as uint8 pixels [height, width, 3]: `decode={"image": Image(224, crop="random")}`.

    Decodes a JPEG or PNG, and turns it upright by its EXIF or XMP orientation; or converts stored pixels,
    uint8 [height, width, 1 or 3] or [height, width]. Boxes and other coordinates are not changed.

    size: (height, width) of the result, or one number for both. With crop=None, one number means the
    shorter side, so pictures of different shapes need batch_size=1. crop: "random": a random part, as
    torchvision's RandomResizedCrop, or with scale=None as RandomCrop. "center": the picture is scaled
    until its shorter side is `resize`, and the center is cut out. None: the whole picture. A pair as
    `size` then changes the aspect ratio. scale, ratio: for "random": the limits of the part's share of
    the area, and of its width / height. flip: the probability that the picture is mirrored, left to
    right. resize: for "center": by default the shortest side that covers `size`. mode: "RGB", or "L" for
    one grey channel. resample: "bilinear", antialiased; or "nearest", for masks. max_pixels: SchemaError
    for a larger picture. class_map: {"#rrggbb" or (r, g, b): class number}, for masks: the result is
    [height, width] of numbers. other: the number of all other colors; without it they are a SchemaError.

    The loader's seed, the pass and the record's place in the pass determine crops and flips. All images of
    a record have the same crop and flip, so their options and their sizes must agree.

    CallerError for impossible options.
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    crop: Literal["center", "random"] | None = "center"
    scale: tuple[float, float] | None = _SCALE
    ratio: tuple[float, float] = _RATIO
    flip: float = 0.0
    resize: int | None = None
    mode: Literal["RGB", "L"] = "RGB"
    resample: Literal["bilinear", "nearest"] = "bilinear"
    max_pixels: int = 89_478_485
    class_map: Mapping[Color, int] | None = None
    other: int | None = None

    def __post_init__(self) -> None:
        for option, values in _CHOICES.items():
            if getattr(self, option) not in values:
                expected = " or ".join(map(repr, values))
                raise CallerError(f"{option}={getattr(self, option)!r}, expected {expected}")
        _range("scale", _SCALE if self.scale is None else self.scale, 1.0)
        _range("ratio", self.ratio, float("inf"))
        classes = self.class_map is not None
        refusals = {
            "scale and ratio are for crop='random'": self.crop != "random"
            and (self.scale, self.ratio) != (_SCALE, _RATIO),
            "ratio is for crops that are resized, and scale=None resizes none": self.scale is None
            and self.ratio != _RATIO,
            "resize is for crop='center'": self.resize is not None and self.crop != "center",
            "other is for class_map": self.other is not None and not classes,
            "class_map needs resample='nearest' and mode='RGB'": classes
            and (self.resample, self.mode) != ("nearest", "RGB"),
        }
        if wrong := [why for why, applies in refusals.items() if applies]:
            raise CallerError(wrong[0])
        if not _is_number(self.flip) or not 0 <= self.flip <= 1:
            raise CallerError(f"flip={self.flip!r}, expected a probability, 0 to 1")
        height, width = self.extent
        if height * width > integer("max_pixels", self.max_pixels, 1):
            raise CallerError(f"size={self.size!r} is more than max_pixels={self.max_pixels}")
        if self.resize is not None:
            integer("resize", self.resize, max(height, width), _LONGEST_SIDE)
        if classes:
            _colors(self.class_map)
        if self.other is not None:
            integer("other", self.other, 0, 255)

    @property
    def extent(self) -> tuple[int, int]:
        """The height and width in `size`; CallerError for an impossible size."""
        is_pair = isinstance(self.size, Sequence) and not isinstance(self.size, str)
        sides: Any = self.size if is_pair else (self.size, self.size)
        if len(sides) != 2:
            raise CallerError(f"size={self.size!r}, expected a number or (height, width)")
        height, width = (integer("size", side, 1, _LONGEST_SIDE) for side in sides)
        return height, width

    @property
    def _keeps_shape(self) -> bool:
        return self.crop is None and not isinstance(self.size, Sequence)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result; -1 for a length that depends on the picture."""
        extent = (-1, -1) if self._keeps_shape else self.extent
        return extent if self.class_map is not None else (*extent, 3 if self.mode == "RGB" else 1)

    @property
    def view(self) -> tuple[Any, ...]:
        """The options that decide which part of a picture is shown: equal for all images of a record."""
        part: tuple[Any, ...] = ()
        height, width = self.extent
        if self.crop == "random":
            part = self.extent if self.scale is None else (*self.scale, *self.ratio)
        elif self.crop == "center" and self.resize is None:
            part = (Fraction(height, width),)
        elif self.crop == "center":
            part = Fraction(height, self.resize), Fraction(width, self.resize)
        return self.crop, self.flip, *part

    def for_reader(self) -> ImageOptions:
        """Returns the options in the form that the core's BatchReader takes."""
        height, width = (0, 0) if self._keeps_shape else self.extent
        shorter = self.extent[0] if self._keeps_shape else self.resize or 0
        options: ImageOptions = {
            "crop": self.crop or "none", "height": height, "width": width, "shorter": int(shorter),
            "resized": self.scale is not None, "scale": self.scale or _SCALE, "ratio": self.ratio,
            "flip": self.flip, "grey": self.mode == "L", "nearest": self.resample == "nearest",
            "max_pixels": int(self.max_pixels),
            "classes": [] if self.class_map is None else _colors(self.class_map),
        }  # fmt: skip
        return options if self.other is None else {**options, "other": int(self.other)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _range(option: str, value: Any, most: float) -> None:
    pair = isinstance(value, Sequence) and len(value) == 2 and all(map(_is_number, value))
    if not pair or not 0 < value[0] <= value[1] <= most or value[1] == float("inf"):
        limit = "" if most == float("inf") else f" <= {most:g}"
        raise CallerError(f"{option}={value!r}, expected (a, b) with 0 < a <= b{limit}")


def _colors(class_map: Any) -> list[tuple[int, int, int, int]]:
    """Returns (red, green, blue, number) for each color. CallerError if there are no colors, or if a color
    has two numbers."""
    if not isinstance(class_map, Mapping) or not class_map:
        raise CallerError(f"class_map={class_map!r}, expected a dict of color -> class number")
    numbers: dict[tuple[int, ...], int] = {}
    for color, number in class_map.items():
        parts: Any = color
        if isinstance(color, str):
            parts = bytes.fromhex(color[1:]) if re.fullmatch("#[0-9a-fA-F]{6}", color) else ()
        if not isinstance(parts, Sequence) or len(parts) != 3:
            raise CallerError(f"class_map: {color!r}, expected '#rrggbb' or (red, green, blue)")
        rgb = tuple(integer(f"class_map: a part of {color!r}", part, 0, 255) for part in parts)
        if numbers.setdefault(rgb, number) != number:
            raise CallerError(f"class_map: {color!r} has two class numbers")
        integer(f"class_map: {color!r}", number, 0, 255)
    return [(*rgb, int(number)) for rgb, number in numbers.items()]  # type: ignore[misc]
