"""The keys of `source` for format python: the user's class, and its options."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, Strict

from cachecd.config.section import conflict
from cachecd.config.values import Text

_CLASS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def _class(value: str) -> str:
    if not _CLASS.fullmatch(value):
        raise ValueError(
            f"found {value!r}, expected module:Class, such as my_project.data:Readings"
        )
    return value


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Accepts values that JSON can hold: the options go to other processes, and are part of the
    generation's identity."""
    for name, option in value.items():
        try:
            same = json.loads(json.dumps(option, allow_nan=False)) == option
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ValueError(
                f"found {name!r}: {option!r}, expected text, numbers, true, false, null, and lists and "
                "mappings of them"
            )
    return value


Reader = Annotated[Text, AfterValidator(_class)]
Options = Annotated[dict[Annotated[str, Strict()], Any], AfterValidator(_plain)]

READER: Any = Field(
    None,
    description=(
        "For python: your class. The workers import it, make it with `options`, and read the units "
        "that it names."
    ),
    examples=["my_project.data:Recordings"],
)
OPTIONS: Any = Field(
    {},
    description=(
        "For python: the keyword arguments of the class. Part of the generation's name, as "
        "`reader` is."
    ),
    examples=[{"rate": 16000}],
)


def check_reader(format: str, reader: str | None, options: dict[str, Any]) -> None:
    """Checks that a source of format python has a reader, and a source of another format has none."""
    if format == "python" and reader is None:
        raise conflict((), "found format python without reader, expected reader: module:Class")
    if format != "python":
        for name, value in (("reader", reader), ("options", options)):
            if value:
                raise conflict(
                    (name,), f"found it for format {format}, expected it for python only"
                )
