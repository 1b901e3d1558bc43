"""The types of single values: their YAML forms, and the Python values.

A validator raises ValueError with the whole message, ``found ..., expected ...``.
"""

from __future__ import annotations

import re
import stat
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    PlainSerializer,
    PlainValidator,
    Strict,
    ValidationInfo,
    WithJsonSchema,
)

from cachecd.quantities import (
    Percent,
    parse_duration,
    parse_rate,
    parse_size,
    parse_size_or_percent,
    shown,
)

# The name of a function or class in a module: module:name.
PYTHON_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_text(value: object) -> str:
    """Returns the text. ValueError if the value is empty, has a NUL, or is not text."""
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


def _path(value: object) -> Path:
    path = value if isinstance(value, Path) else Path(check_text(value))
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(
            f"found {str(value)!r}, but the home directory is unknown: write an absolute path"
        ) from None


def _absolute(value: object) -> Path:
    path = _path(value)
    if not path.is_absolute():
        raise ValueError(
            f"found {str(value)!r}, expected an absolute path, because a relative path would depend on "
            "the directory where the daemon starts"
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


def http_address(value: str) -> tuple[str, int]:
    """Returns the IP address and the port of an HTTP server. ValueError for a name other than localhost,
    because its addresses may change."""
    host, _, port = value.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.removeprefix("[").removesuffix("]")
    try:
        address = ip_address(host)
        if port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16:
            return str(address), int(port)
    except ValueError:
        pass
    raise ValueError(
        f"found {shown(value)}, expected an IP address and a port such as 127.0.0.1:9400 or [::1]:9400"
    )


def _more_than_nothing(value: Any) -> Any:
    if value == 0:
        raise ValueError("found 0, expected more than 0")
    return value


# Strict, because accepting true as 1, or "no" as false, would hide mistakes.
Integer = Annotated[int, Strict()]
Real = Annotated[float, Strict()]
Boolean = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), AfterValidator(check_text)]

AbsolutePath = Annotated[
    Path, PlainValidator(_absolute), PlainSerializer(str), WithJsonSchema({"type": "string"})
]

# An existing directory. A relative path is relative to the folder of the configuration file.
Directory = Annotated[
    Path, PlainValidator(_directory), PlainSerializer(str), WithJsonSchema({"type": "string"})
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
