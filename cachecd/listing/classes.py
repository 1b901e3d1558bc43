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
    """The names of all classes that were ever found; the number of a class is its place."""

    names: tuple[str, ...] = ()

    def extended(self, found: Iterable[str]) -> ClassNames:
        """With the names that are new, in alphabetical order after the known ones; self if none is new."""
        new = sorted(set(found).difference(self.names))
        return ClassNames((*self.names, *new)) if new else self

    def encode(self) -> bytes:
        """As `decode` reads it: ASCII, so that names that are not Unicode can be kept too."""
        return json.dumps({"version": 1, "classes": self.names}).encode("ascii")

    @staticmethod
    def decode(text: bytes) -> ClassNames:
        """DamagedError if it is nothing that `encode` gives."""
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
