"""The ready-made steps of a transform, and their arguments."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from cachecd.config.urls import check_file_url
from cachecd.config.values import PYTHON_NAME
from cachecd.quantities import shown

_MAX_CLASSES = 65535
_MAX_WINDOW = 1 << 20
# With a smaller stride, a group of 8 MiB of text could have more windows than a group's ordinals.
_MIN_STRIDE = 16


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
    IS_OVER_GROUPS: ClassVar[bool] = False
    """Whether the step takes all records of a group together (sampler/transforms/groups.py)."""
    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset()
    """Keys that do not change records."""

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


class Tokenize(Step):
    """Turns text into the token numbers of a Hugging Face tokenizer."""

    FORM = (
        "{tokenizer: tokenizer.json, sha256: ..., feature: text, into: tokens, append: '<|endoftext|>', "
        "prepend: '<s>', max_tokens: 2048}; tokenizer is a path or a URL"
    )
    IS_OVER_GROUPS = True
    NOT_IDENTITY = frozenset({"tokenizer"})  # the hash decides

    tokenizer: _Name
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    feature: _Name = "text"
    into: _Name = "tokens"
    append: _Name | None = None
    prepend: _Name | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_one_file(cls, value: Any, info: ValidationInfo) -> Any:
        """Makes a path absolute. Refuses a tokenizer without its hash; if the file can be read, the message
        has the hash."""
        if not isinstance(value, dict) or not isinstance(name := value.get("tokenizer"), str):
            return value
        if "://" in name:
            check_file_url(name)
        else:
            path = Path((info.context or {}).get("folder", ""), Path(name).expanduser())
            if not path.is_absolute():
                raise ValueError(f"found tokenizer: {name}, expected an absolute path or a URL")
            name = str(path)
        if value.get("sha256") is None:
            remedy = "the hash that `sha256sum` prints for the file"
            with contextlib.suppress(OSError):
                remedy = hashlib.sha256(Path(name).read_bytes()).hexdigest()
            raise ValueError(
                f"`sha256` is missing, by which workers recognize the tokenizer: add sha256: {remedy}"
            )
        return {**value, "tokenizer": name}


class Pack(Step):
    """Packs the tokens of documents into windows of equal length."""

    FORM = (
        "{feature: tokens, window: 2049, stride: 2048, remainder: drop, segments: false, fit: plain}; "
        "remainder is drop or pad, fit is plain or best"
    )
    IS_OVER_GROUPS = True

    feature: _Name = "tokens"
    window: Annotated[int, Field(ge=_MIN_STRIDE, le=_MAX_WINDOW)]
    stride: Annotated[int, Field(ge=_MIN_STRIDE)] | None = None
    remainder: Literal["drop", "pad"] | None = None
    segments: bool = False
    fit: Literal["plain", "best"] = "plain"

    @model_validator(mode="after")
    def _covers_every_token(self) -> Pack:
        self.stride = self.stride or self.window
        if self.stride > self.window:
            raise ValueError(
                f"found stride: {self.stride}, expected at most the window, {self.window}: otherwise "
                "windows omit tokens"
            )
        if self.feature in ("mask", "segments"):
            raise ValueError(f"found feature: {self.feature}, which is a feature that pack adds")
        if self.fit == "best" and self.remainder == "drop":
            raise ValueError(
                "found remainder: drop, but `fit: best` pads windows: remove one of them"
            )
        self.remainder = self.remainder or ("pad" if self.fit == "best" else "drop")
        return self


class OverGroups(Step):
    """Gives all records of a group to your function."""

    FORM = "module:function; the function takes an iterator of records, and yields records"
    SHORT = "function"
    IS_OVER_GROUPS = True

    function: Annotated[str, Field(pattern=PYTHON_NAME.pattern)]


STEPS: Mapping[str, type[Step]] = {
    "shrink": Shrink,
    "decode_image": DecodeImage,
    "resize": Resize,
    "center_crop": CenterCrop,
    "class_map": ClassMapStep,
    "decode_audio": DecodeAudio,
    "tokenize": Tokenize,
    "pack": Pack,
    "over_groups": OverGroups,
}


def checked(name: str, argument: Any, context: Any = None) -> dict[str, Any]:
    """Returns the argument of a ready-made step, with all keys. `context`: of the validation of the
    configuration. ValueError has the expected form."""
    try:
        return STEPS[name].model_validate(argument, context=context).model_dump()
    except ValidationError as error:
        wrong = error.errors()[0]
    if wrong["type"] == "value_error":
        raise ValueError(str(wrong["ctx"]["error"]))
    key = next(iter(wrong["loc"]), None)
    found = shown(argument)
    if isinstance(argument, dict) and key in argument:
        found = f"{key}: {shown(argument[key])}"
    raise ValueError(f"found {found}, but {name} accepts {STEPS[name].FORM}")
