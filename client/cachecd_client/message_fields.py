"""Checks the types of the fields in a message, by the annotations of its dataclass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any


def _is_int(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 64


def _is_float(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def _is_list(value: Any, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_item, value))


def _is_span(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and all(map(_is_float, value[1:]))
    )


#: By the annotation of a field: whether a JSON value has this type.
_IS: dict[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "int | None": lambda value: value is None or _is_int(value),
    "float": _is_float,
    "float | None": lambda value: value is None or _is_float(value),
    "list[int]": lambda value: _is_list(value, _is_int),
    "list[list[int]]": lambda value: _is_list(value, _IS["list[int]"]),
    "list[str]": lambda value: _is_list(value, _IS["str"]),
    "list[Span]": lambda value: _is_list(value, _is_span),
    "dict[str, list[Span]]": lambda value: (
        isinstance(value, dict) and all(map(_IS["list[Span]"], value.values()))
    ),
    "dict[str, float]": lambda value: (
        isinstance(value, dict) and all(map(_is_float, value.values()))
    ),
    "dict[str, Any]": lambda value: isinstance(value, dict),
}


def check_fields(cls: type[Any], fields: dict[str, Any]) -> None:
    """ValueError, with the name of the field, if a value does not have the type of its field in `cls`."""
    for f in dataclasses.fields(cls):
        if f.name in fields and not _IS[str(f.type)](fields[f.name]):
            name = f"{cls.__name__}.{f.name}"
            raise ValueError(f"{name} is {str(fields[f.name])[:40]!r}, expected {f.type}")
