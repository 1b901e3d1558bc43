"""Makes pages of units that a table or user code enumerates. Unlike a store's listing, they may have any
order."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from cachecd.model import ObjectInfo, encoded

_PAGE = 1000
_LONGEST = 1.0  # seconds that a unit waits for its page to fill, because user code may be slow
_MOST_TEXT = (1 << 16) - 64  # bytes that the index can store


def pages_of(units: Iterable[ObjectInfo], after: str = "") -> Iterator[list[ObjectInfo]]:
    """Yields the units in pages. Skips the units before the first key that is greater than `after`.

    Skips no later unit: if keys do not ascend, a smaller key may be new.
    """
    page: list[ObjectInfo] = []
    begun = 0.0
    last = encoded(after)
    for unit in units:
        if last and encoded(unit.key) <= last:
            continue
        last = b""
        if not page:
            begun = time.monotonic()
        page.append(unit)
        if len(page) == _PAGE or time.monotonic() - begun > _LONGEST:
            yield page
            page = []
    if page:
        yield page


def unlistable(unit: ObjectInfo) -> str | None:
    """Returns the reason why a listing cannot have this unit, or None."""
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
