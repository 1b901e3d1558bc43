"""The types of single values: their YAML forms, and the Python values.

A validator raises ValueError with the whole message, ``found ..., expected ...``.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    PlainValidator,
    Strict,
    ValidationInfo,
    WithJsonSchema,
)

from cachecd.config.address import Address
from cachecd.quantities import (
    Percent,
    parse_duration,
    parse_rate,
    parse_size,
    parse_size_or_percent,
    shown,
)

AVAILABLE_FORMATS: Final = ("files", "webdataset", "tfrecord", "parquet", "npy", "python")
MAX_SOCKET_PATH: Final = 107  # sockaddr_un.sun_path is 108 bytes, the last of them NUL


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"found {shown(value)}, expected text")
    return value


class WrittenInt(int):
    """A whole number that is not in Python's notation: `text` is the notation, for example ``007``."""

    text: str

    def __new__(cls, value: int, text: str) -> WrittenInt:
        made = super().__new__(cls, value)
        made.text = text
        return made


def _class_name(value: object) -> str:
    match value:
        case WrittenInt():
            return value.text
        case int() if not isinstance(value, bool):
            return str(value)
        case str() if value and "\0" not in value:
            return value
    raise ValueError(f"found {shown(value)}, expected the name of a class: text or a whole number")


def _shape(value: object) -> tuple[int | None, ...]:
    extents = tuple(value) if isinstance(value, (list, tuple)) else (0,)
    whole = all(type(extent) is int and extent > 0 for extent in extents)
    if extents != (None,) and not (whole and math.prod(extents) < 2**40):
        raise ValueError(
            f"found {shown(value)}, expected [], whole numbers such as [4] or [2, 3], or [null] for a "
            "list of any length"
        )
    return extents


def _path(value: object) -> Path:
    path = value if isinstance(value, Path) else Path(_text(value))
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"found {str(value)!r}, expected the home of a user who exists") from None


def _absolute(value: object) -> Path:
    path = _path(value)
    if not path.is_absolute():
        raise ValueError(
            f"found {str(value)!r}, expected an absolute path: a relative one would depend on "
            "where the daemon is started"
        )
    return path


def _directory(value: object, info: ValidationInfo) -> Path:
    path = _path(value)
    if not path.is_absolute():
        if not (info.context and "folder" in info.context):
            return _absolute(path)
        path = info.context["folder"] / path
    try:
        found = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise ValueError(
            f"found {str(value)!r}, expected a directory: {path}: {error.strerror}"
        ) from None
    if not found:
        raise ValueError(f"found {str(value)!r}, expected a directory: {path} is not a directory")
    return path


def _more_than_nothing(value: Any) -> Any:
    if value == 0:
        raise ValueError("found 0, expected more than 0")
    return value


def _source_url(value: str) -> str:
    _text(value)
    scheme, _, rest = value.partition("://")
    _refuse_password(scheme, rest)
    Address.of(value)
    return value


def _store_address(value: str) -> str:
    scheme, _, rest = value.partition("://")
    _refuse_password(scheme, rest)
    if scheme not in ("http", "https") or not rest.partition("/")[0]:
        raise ValueError(f"found {value!r}, expected a URL such as https://minio.example:9000")
    return value


def _refuse_password(scheme: str, rest: str) -> None:
    user, at, _ = rest.partition("/")[0].rpartition("@")
    name, colon, _ = user.partition(":")
    if at and colon:
        raise ValueError(
            f"found a password, in {scheme}://{name}:...@..., expected none: credentials come from "
            "the environment, a profile or the machine's role"
        )


def _socket_address(value: str) -> str:
    path = value.removeprefix("ipc://")
    if path == value or not path.startswith("/"):
        raise ValueError(f"found {value!r}, expected ipc:// and an absolute path")
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise ValueError(
            f"found a socket path of {length} bytes ({path}), expected at most {MAX_SOCKET_PATH}: "
            "choose a shorter directory"
        )
    return value


# Strict, because a true that counts as 1 or a "no" that counts as false hides a mistake.
Integer = Annotated[int, Strict()]
Real = Annotated[float, Strict()]
Boolean = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), AfterValidator(_text)]

# A folder called 007 is not the number 7.
ClassName = Annotated[
    str,
    PlainValidator(_class_name),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]}),
]

Format = Literal["files", "webdataset", "tfrecord", "parquet", "npy", "python"]
SourceUrl = Annotated[Text, AfterValidator(_source_url)]
UrlOrNone = Annotated[str, Strict(), AfterValidator(lambda value: value and _source_url(value))]
StoreAddress = Annotated[Text, AfterValidator(_store_address)]
SocketAddress = Annotated[Text, AfterValidator(_socket_address)]
AbsolutePath = Annotated[
    Path, PlainValidator(_absolute), PlainSerializer(str), WithJsonSchema({"type": "string"})
]

# One that is there; a relative one lies beside the configuration file.
Directory = Annotated[
    Path, PlainValidator(_directory), PlainSerializer(str), WithJsonSchema({"type": "string"})
]

FeatureType = Literal[
    "bytes", "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float32", "float64",
]  # fmt: skip
FeatureShape = Annotated[
    tuple[int | None, ...],
    BeforeValidator(_shape),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "integer", "minimum": 1}},
                {"const": [None]},
            ]
        }
    ),
]

_WHOLE_OR_TEXT: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
_REAL_OR_TEXT: Final = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}

Size = Annotated[int, PlainValidator(parse_size), WithJsonSchema(_WHOLE_OR_TEXT)]
PositiveSize = Annotated[
    int,
    PlainValidator(parse_size),
    AfterValidator(_more_than_nothing),
    WithJsonSchema(_WHOLE_OR_TEXT),
]
SizeOrPercent = Annotated[
    int | Percent,
    PlainValidator(parse_size_or_percent),
    AfterValidator(_more_than_nothing),
    PlainSerializer(lambda value: str(value) if isinstance(value, Percent) else value),
    WithJsonSchema(_WHOLE_OR_TEXT),
]
Duration = Annotated[
    float,
    PlainValidator(parse_duration),
    AfterValidator(_more_than_nothing),
    WithJsonSchema(_REAL_OR_TEXT),
]
Rate = Annotated[
    float,
    PlainValidator(parse_rate),
    AfterValidator(_more_than_nothing),
    WithJsonSchema(_REAL_OR_TEXT),
]
