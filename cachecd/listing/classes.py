"""Numbers of class names: append-only, so that a name keeps its number in every generation. Pure.

The daemon stores the text durably before a number is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from cachecd.errors import DamagedError


@dataclass(frozen=True, slots=True)
class ClassNames:
    """The names of all classes found so far. The number of a class is its index."""

    names: tuple[str, ...] = ()

    def extended(self, labels: Iterable[str]) -> ClassNames:
        """Appends the new names in alphabetical order. Returns self if no name is new."""
        new = sorted(set(labels).difference(self.names))
        return ClassNames((*self.names, *new)) if new else self

    def encode(self) -> bytes:
        """Returns the text for `decode`. ASCII, because a name need not be Unicode."""
        return json.dumps({"version": 1, "classes": self.names}).encode("ascii")

    @staticmethod
    def decode(text: bytes) -> ClassNames:
        """Reads the text of `encode`. DamagedError for any other text."""
        try:
            match json.loads(text):
                case {"version": 1, "classes": [*names]} if all(isinstance(n, str) for n in names):
                    if len(set(names)) == len(names):
                        return ClassNames(tuple(names))
        except (ValueError, RecursionError):
            pass
        raise DamagedError(
            f"the class numbers are damaged: found {text[:80]!r}, expected each name once. Restore the "
            "file, or remove it together with the shards that have labels by it"
        )
