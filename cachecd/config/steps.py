"""The ready-made steps of a transform, and the one form of the argument that each takes.

What a check gives goes into the generation's name as it is: a form that was once given for an argument
must stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cachecd.quantities import shown

_MAX_SIDE = 65535
_MAX_CLASSES = 65535
IMAGE_MODES = ("RGB", "RGBA", "L")
"""What `decode_image` makes of any image: Pillow's modes of 8 bits with 3, 4 and 1 channels."""
RESAMPLES = ("bilinear", "nearest")


def decode_image(argument: Any) -> Any:
    """{feature, into, mode}."""
    given = {"feature": argument} if isinstance(argument, str) else argument or {}
    defaults: dict[str, Any] = {"feature": "payload", "into": "image", "mode": "RGB"}
    expected = "decode_image: the name of a feature, or {feature: png, into: mask, mode: L}"
    if not isinstance(given, Mapping) or given.keys() - defaults.keys():
        raise _wrong(argument, expected)
    found = {**defaults, **given}
    if not all(isinstance(name, str) and name for name in found.values()):
        raise _wrong(argument, expected)
    if found["mode"] not in IMAGE_MODES:
        raise _wrong(found["mode"], f"mode: {', '.join(IMAGE_MODES)}")
    return found


def shrink(argument: Any) -> Any:
    """{shorter, quality, features, resample}."""
    given = argument if isinstance(argument, Mapping) else {}
    found: Any = {"quality": 90, "features": ["payload"], "resample": "bilinear", **given}
    quality, resample = found["quality"], found["resample"]
    sizes = _is_side(found.get("shorter")) and _is_side(quality) and quality <= 100
    if len(found) == 4 and sizes and _are_features(found["features"]) and resample in RESAMPLES:
        return found
    expected = (
        "shrink: {shorter: 512, quality: 90, features: [payload], resample: nearest}; quality"
    )
    raise _wrong(argument, f"{expected} is 1 to 100, and resample {' or '.join(RESAMPLES)}")


def resize(argument: Any) -> Any:
    """A side, (height, width), {size, features} or {shorter, features}."""
    match argument:
        case {"shorter": side, **rest} if _is_side(side) and not rest.keys() - {"features"}:
            if _are_features(rest.get("features", ["image"])):
                return dict(argument)
    return _sized("resize", argument, ", or {shorter: 256}")


def center_crop(argument: Any) -> Any:
    """As `resize`."""
    return _sized("center_crop", argument)


def class_map(argument: Any) -> Any:
    """{feature, into, colors: [[name, [r, g, b]], ...], other}."""
    expected = "class_map: {feature: png, colors: {road: '#804080', sky: [70, 130, 180]}}"
    match argument:
        case {"colors": dict(colors), **rest} if colors and not rest.keys() - {
            *("feature", "into", "other")
        }:
            pairs = list(colors.items())
        case {"colors": [*listed], **rest}:  # its own form, with which the order counts
            pairs = [(name, color) for name, color in listed]
        case _:
            raise _wrong(argument, expected)
    found = [[str(name), _color(name, color)] for name, color in pairs]
    if len(found) > _MAX_CLASSES:
        raise ValueError(f"found {len(found)} colors, expected at most {_MAX_CLASSES}")
    if len({tuple(color) for _, color in found}) < len(found):
        raise ValueError("found the same color for two classes, expected a color for each")
    other: Any = rest.get("other")
    if other is not None and not (_is_count(other) and other <= _MAX_CLASSES):
        raise _wrong(other, "other: the number for pixels of any other color, from 0 to 65535")
    feature, into = rest.get("feature", "payload"), rest.get("into", "label_map")
    if not (isinstance(feature, str) and isinstance(into, str) and feature and into):
        raise _wrong(argument, expected)
    return {"feature": feature, "into": into, "colors": found, "other": other}


def decode_audio(argument: Any) -> Any:
    """{feature, into, rate, seconds, mono}."""
    given = {"feature": argument} if isinstance(argument, str) else argument or {}
    defaults: dict[str, Any] = {
        **{"feature": "payload", "into": "audio"},
        **{"rate": None, "seconds": None, "mono": False},
    }
    expected = "decode_audio: {feature: flac, rate: 16000, seconds: 4, mono: true}"
    if not isinstance(given, Mapping) or given.keys() - defaults.keys():
        raise _wrong(argument, expected)
    found = {**defaults, **given}
    names = all(isinstance(found[name], str) and found[name] for name in ("feature", "into"))
    rate, seconds = found["rate"], found["seconds"]
    bounded = seconds is None or (isinstance(seconds, (int, float)) and 0 < seconds < 1e6)
    whole = rate is None or (_is_count(rate) and rate > 0)
    if not (names and whole and bounded and isinstance(found["mono"], bool)):
        raise _wrong(argument, expected)
    return found


STEPS: Mapping[str, Callable[[Any], Any]] = {
    "shrink": shrink,
    "decode_image": decode_image,
    "resize": resize,
    "center_crop": center_crop,
    "class_map": class_map,
    "decode_audio": decode_audio,
}

_SIDE = {"type": "integer", "minimum": 1, "maximum": _MAX_SIDE}
_SIZE = {
    "anyOf": [_SIDE, {"type": "array", "items": _SIDE, "minItems": 2, "maxItems": 2}],
}
_NAME = {"type": "string", "minLength": 1}
_FEATURES = {"type": "array", "items": _NAME, "minItems": 1}
_COLOR = {
    "anyOf": [
        {"type": "string", "pattern": "^#[0-9a-fA-F]{6}$"},
        {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 255},
            "minItems": 3,
            "maxItems": 3,
        },
    ]
}


def _mapping(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_SIZED: list[Any] = [*_SIZE["anyOf"], _mapping(["size"], size=_SIZE, features=_FEATURES)]

ARGUMENTS: Mapping[str, Any] = {
    "shrink": _mapping(
        ["shorter"],
        shorter=_SIDE,
        quality={"type": "integer", "minimum": 1, "maximum": 100},
        features=_FEATURES,
        resample={"enum": list(RESAMPLES)},
    ),
    "decode_image": {
        "anyOf": [
            {"type": ["string", "null"]},
            _mapping([], feature=_NAME, into=_NAME, mode={"enum": list(IMAGE_MODES)}),
        ]
    },
    "resize": {"anyOf": [*_SIZED, _mapping(["shorter"], shorter=_SIDE, features=_FEATURES)]},
    "center_crop": {"anyOf": _SIZED},
    "class_map": _mapping(
        ["colors"],
        feature=_NAME,
        into=_NAME,
        colors={"type": "object", "additionalProperties": _COLOR, "minProperties": 1},
        other={"type": ["integer", "null"], "minimum": 0, "maximum": _MAX_CLASSES},
    ),
    "decode_audio": {
        "anyOf": [
            {"type": ["string", "null"]},
            _mapping(
                [],
                feature=_NAME,
                into=_NAME,
                rate={"type": ["integer", "null"], "minimum": 1},
                seconds={"type": ["number", "null"], "exclusiveMinimum": 0},
                mono={"type": "boolean"},
            ),
        ]
    },
}
"""What each takes, as JSON Schema."""


def _sized(name: str, argument: Any, more: str = "") -> Any:
    match argument:
        case _ if _is_side(argument):
            return argument
        case [height, width] if _is_side(height) and _is_side(width):
            return (height, width)
        case {"size": size, "features": features} if len(argument) == 2 and _are_features(features):
            return {"size": _sized(name, size), "features": features}
    raise _wrong(argument, f"{name}: a number of pixels, or [height, width]{more}")


def _are_features(value: Any) -> bool:
    names = isinstance(value, list) and value
    return bool(names) and all(isinstance(name, str) and name for name in value)


def _color(name: Any, color: Any) -> list[int]:
    match color:
        case str() if re.fullmatch("#[0-9a-fA-F]{6}", color):
            return list(bytes.fromhex(color[1:]))
        case [*parts] if len(parts) == 3 and all(_is_count(p) and p <= 255 for p in parts):
            return list(parts)
    raise ValueError(
        f"colors.{name}: found {shown(color)}, expected '#rrggbb' or [red, green, blue] up to 255"
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_side(value: Any) -> bool:
    return _is_count(value) and 1 <= value <= _MAX_SIDE


def _wrong(argument: Any, expected: str) -> ValueError:
    return ValueError(f"found {shown(argument)}, expected {expected}")
