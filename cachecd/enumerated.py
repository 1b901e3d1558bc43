"""Units that a table or user code enumerates, in any order, in place of a store's ordered listing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from cachecd.model import ObjectInfo, encoded

_PAGE = 1000
_LONGEST = 1.0  # seconds that a unit waits for others: who enumerates may be slow
_MOST_TEXT = (1 << 16) - 64  # bytes, as the index takes them


def pages_of(units: Iterable[ObjectInfo], after: str = "") -> Iterator[list[ObjectInfo]]:
    """Returns the units in pages, without units at the beginning whose keys are not behind `after`.

    Only at the beginning, because an interrupted listing may continue after its last key only while keys
    ascend: a smaller key that comes later has not been listed.
    """
    page: list[ObjectInfo] = []
    begun = 0.0
    behind = encoded(after)
    for unit in units:
        if behind and encoded(unit.key) <= behind:
            continue
        behind = b""
        if not page:
            begun = time.monotonic()
        page.append(unit)
        if len(page) == _PAGE or time.monotonic() - begun > _LONGEST:
            yield page
            page = []
    if page:
        yield page


def unlistable(unit: ObjectInfo) -> str | None:
    """Returns why this cannot be a unit of a listing, or None."""
    if not unit.key:
        return "its name is empty"
    if "\0" in unit.key:
        return f"the name {unit.key[:60]!r} contains NUL"
    for part, text in (("name", unit.key), ("etag and label", unit.etag + unit.label)):
        if len(encoded(text)) > _MOST_TEXT:
            return f"{part} of {len(encoded(text))} bytes, expected at most {_MOST_TEXT}"
    if not (0 <= unit.size < 1 << 63 and 0 <= unit.begin < 1 << 62):
        return f"{unit.size} bytes from byte {unit.begin}, expected at least 0 and below 2**62"
    return None
