"""The ready-made steps of a transform, and their arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cachecd.quantities import shown

_MAX_CLASSES = 65535


def _pair(size: Any) -> Any:
    """Turns the side of a square into [height, width]."""
    return [size, size] if isinstance(size, int) else size


_Hex = Annotated[str, Field(pattern="^#[0-9a-fA-F]{6}$")]
_Byte = Annotated[int, Field(ge=0, le=255)]
_Name = Annotated[str, Field(min_length=1)]
_Features = Annotated[list[_Name], Field(min_length=1)]
_Side = Annotated[int, Field(ge=1, le=65535)]
_Pair = Annotated[list[_Side], Field(min_length=2, max_length=2)]
_Size = Annotated[_Pair, BeforeValidator(_pair, json_schema_input_type=_Side | _Pair)]


class Step(BaseModel):
    """The argument of a step. A value that is not a mapping is the value of the key `SHORT`."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)

    FORM: ClassVar[str]
    SHORT: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _as_mapping(cls, value: Any) -> Any:
        if value is None:
            return {}
        return {cls.SHORT: value} if cls.SHORT and not isinstance(value, dict) else value

    @classmethod
    def schema_of_argument(cls) -> dict[str, Any]:
        """JSON Schema of all forms of the argument."""
        whole = cls.model_json_schema()
        short = [whole["properties"][cls.SHORT]] if cls.SHORT else []
        return {"anyOf": [*short, *([] if "required" in whole else [{"type": "null"}]), whole]}


class Shrink(Step):
    """Makes large image files smaller, and encodes them again."""

    FORM = (
        "{shorter: 512, quality: 90, features: [payload], resample: nearest}; quality is 1 to 100, "
        "and resample bilinear or nearest"
    )

    shorter: _Side
    quality: Annotated[int, Field(ge=1, le=100)] = 90
    features: _Features = ["payload"]
    resample: Literal["bilinear", "nearest"] = "bilinear"


class DecodeImage(Step):
    """Decodes an image file. `mode` is Pillow's: 3, 4 or 1 channels with 8 bits each."""

    FORM = "the name of a feature, or {feature: png, into: mask, mode: L}; mode is RGB, RGBA or L"
    SHORT = "feature"

    feature: _Name = "payload"
    into: _Name = "image"
    mode: Literal["RGB", "RGBA", "L"] = "RGB"


class CenterCrop(Step):
    """Cuts the middle out of pictures."""

    FORM = "a number of pixels, or [height, width], or {size: 256, features: [image]}"
    SHORT = "size"

    size: _Size
    features: _Features | None = None


class Resize(Step):
    """Scales pictures to a size, or to a shorter side."""

    FORM = "a number of pixels, or [height, width], or {shorter: 256}, or {size: 256, features: [image]}"
    SHORT = "size"

    size: _Size | None = None
    shorter: _Side | None = None
    features: _Features | None = None

    @model_validator(mode="after")
    def _one_size(self) -> Resize:
        if (self.size is None) == (self.shorter is None):
            given = "size and" if self.size else "neither size nor"
            raise ValueError(f"found {given} shorter, but resize accepts {self.FORM}")
        return self


def _colors(given: Any) -> Any:
    """Returns [[name, [r, g, b]], ...]. The order, which numbers the classes, is part of the generation's
    identity."""
    pairs = [list(pair) for pair in given.items()] if isinstance(given, dict) else given
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        return None
    found = [[str(name), _color(name, color)] for name, color in pairs]
    if len(found) > _MAX_CLASSES:
        raise ValueError(f"found {len(found)} colors, expected at most {_MAX_CLASSES}")
    if len({tuple(color) for _, color in found}) < len(found):
        raise ValueError("two classes have the same color: give each class its own color")
    return found


def _color(name: Any, color: Any) -> list[int]:
    match color:
        case str() if re.fullmatch("#[0-9a-fA-F]{6}", color):
            return list(bytes.fromhex(color[1:]))
        case [int(), int(), int()] if all(type(p) is not bool and 0 <= p <= 255 for p in color):
            return list(color)
    raise ValueError(
        f"colors.{name}: found {shown(color)}, expected '#rrggbb', or [red, green, blue] from 0 to 255"
    )


class ClassMapStep(Step):
    """Turns colors into numbers of classes."""

    FORM = (
        "{feature: png, colors: {road: '#804080', sky: [70, 130, 180]}, other: 255}; other is the class "
        "of pixels of any other color, from 0 to 65535"
    )

    feature: _Name = "payload"
    into: _Name = "label_map"
    colors: Annotated[
        list[Any],
        Field(min_length=1),
        BeforeValidator(_colors, json_schema_input_type=dict[str, _Hex | list[_Byte]]),
    ]
    other: Annotated[int, Field(ge=0, le=_MAX_CLASSES)] | None = None


class DecodeAudio(Step):
    """Decodes a sound file."""

    FORM = "the name of a feature, or {feature: flac, rate: 16000, seconds: 4, mono: true}"
    SHORT = "feature"

    feature: _Name = "payload"
    into: _Name = "audio"
    rate: Annotated[int, Field(ge=1)] | None = None
    seconds: Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)] | None = None
    mono: bool = False


STEPS: Mapping[str, type[Step]] = {
    "shrink": Shrink,
    "decode_image": DecodeImage,
    "resize": Resize,
    "center_crop": CenterCrop,
    "class_map": ClassMapStep,
    "decode_audio": DecodeAudio,
}


def checked(name: str, argument: Any) -> dict[str, Any]:
    """Returns the argument of a ready-made step, with all keys. ValueError has the expected form."""
    try:
        return STEPS[name].model_validate(argument).model_dump()
    except ValidationError as error:
        wrong = error.errors()[0]
    if wrong["type"] == "value_error":
        raise ValueError(str(wrong["ctx"]["error"]))
    key = next(iter(wrong["loc"]), None)
    found = shown(argument)
    if isinstance(argument, dict) and key in argument:
        found = f"{key}: {shown(argument[key])}"
    raise ValueError(f"found {found}, but {name} accepts {STEPS[name].FORM}")
