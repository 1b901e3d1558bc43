"""Keys that this edition no longer has, each with its replacement.

Only this module knows them. A configuration with such a key is refused with ``FILE:LINE:COLUMN: KEY:
removed; REMEDY``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

_REMOVED: Final = {
    "cache.scrub": "run `cachecd verify DIR --report` from a timer",
    "datasets.*.sources": 'use epochs({"web": 0.7, "code": 0.3})',
    "datasets.*.stratify": "use label.classes and a larger grow.first",
    "datasets.*.interleave": "a shard always mixes the records of 16 units",
    "datasets.*.split.side": "the pinned dataset NAME-eval has the held-out part",
    "datasets.*.source.array.random": "use stride, or your own reader with format: python",
    "datasets.*.source.array.path": (
        "use format: python with reader: cachecd.readers.hdf5:Windows or cachecd.readers.zarr:Windows"
    ),
    "datasets.*.source.array.arrays.*.path": (
        "use format: python with reader: cachecd.readers.hdf5:Windows or cachecd.readers.zarr:Windows"
    ),
}


def removed(path: Sequence[str | int]) -> str | None:
    """Returns "removed; REMEDY" if an earlier edition had a key at this path, else None."""
    key = ".".join(map(str, path))
    for pattern, remedy in _REMOVED.items():
        if fnmatchcase(key, pattern) and key.count(".") == pattern.count("."):
            return f"removed; {remedy}"
    return None
