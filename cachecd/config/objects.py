"""Which objects are records of format `files`: the keys `match`, `skip` and `join` of `source`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from cachecd.config.section import conflict
from cachecd.config.values import Text
from cachecd.quantities import shown

_FEATURE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_OUTSIDE = re.compile(r"/|(.*/)?\.\.?(/|$)")


def check_feature(at: tuple[str, ...], name: object, *own: str) -> None:
    """Refuses a name that no feature may have, or that is one of `own`, which every record has."""
    if not _FEATURE.fullmatch(str(name)) or name in own:
        raise conflict(
            at,
            f"found a feature named {name!r}, expected letters, digits, _, - and ., and neither "
            f"{' nor '.join(own)}: every record has these",
        )


def _listed(value: Any) -> Any:
    if value == []:
        raise ValueError("found none, expected a pattern such as '*.jpg', or a list of patterns")
    return [value] if isinstance(value, str) else value


def _joined(value: Any) -> Any:
    if not isinstance(value, dict) or not value:
        raise ValueError(
            f"found {shown(value)}, expected names and patterns: {{image: images/*.png, mask: masks/*.png}}"
        )
    for name, pattern in value.items():
        check_feature((name,), name, "key", "label")
        if not isinstance(pattern, str) or pattern.count("*") != 1 or _OUTSIDE.match(pattern):
            raise conflict(
                (name,),
                f"found {shown(pattern)}, expected a pattern below source.url with exactly one *, which "
                "stands for the same text in each of them",
            )
    return value


Patterns = Annotated[
    tuple[Text, ...], BeforeValidator(_listed, json_schema_input_type=str | list[str])
]
Join = Annotated[dict[str, str], BeforeValidator(_joined)]

MATCH: Any = Field(
    None,
    description=(
        "For files: only objects that match one of these patterns are records. A pattern is of the "
        "key below the URL; * stands for any text, also with slashes. Only the folder that the "
        "patterns have in common is listed."
    ),
    examples=["train/*.jpg"],
)
SKIP: Any = Field(
    None,
    description="For files: objects that match one of these patterns are not records.",
    examples=[["*/.thumbnails/*", "*.txt"]],
)
JOIN: Any = Field(
    None,
    description=(
        "For files: feature -> pattern with exactly one *. A record holds one object of each "
        "pattern, for the same text in place of the *; `key` is that text. Only the objects of the "
        "first pattern are listed. If another object is missing, the record is skipped. Not beside "
        "`match`, `skip` or `manifest`."
    ),
    examples=[{"image": "images/*.png", "mask": "masks/*.png"}],
)


def check_objects(format: str, **given: object) -> None:
    """Checks match, skip, manifest and join (`given`; None if the source has none)."""
    present = [name for name, value in given.items() if value is not None]
    for name in present:
        if format != "files" and name != "manifest":
            raise conflict((name,), f"found {name} for format {format}, expected format files")
    if "join" in present[1:]:
        raise conflict(
            ("join",),
            f"found join beside {present[0]}, expected one of them: the first pattern of join selects "
            "the records",
        )
