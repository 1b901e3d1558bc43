"""Numbers class names. The numbers are append-only, so a name keeps its number in every generation. Pure.

The daemon stores the names durably before it uses a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_WHOLE_NUMBER = re.compile("-?[0-9]{1,1000}")  # Python reads at most 4300 digits


@dataclass(frozen=True, slots=True)
class ClassNames:
    """The names of all classes found so far. The number of a class is its index."""

    names: tuple[str, ...] = ()

    def extended(self, labels: Iterable[str]) -> ClassNames:
        """Appends the new names. Returns self if no name is new.

        If all new names are whole numbers (ASCII digits, optionally with a minus sign), they are sorted
        by value, and equal values ("007", "7") by text. Otherwise all new names are sorted by text.
        """
        new = sorted(set(labels).difference(self.names))
        if all(map(_WHOLE_NUMBER.fullmatch, new)):
            new.sort(key=int)
        return ClassNames((*self.names, *new)) if new else self

    def content(self) -> dict[str, Any]:
        """Returns the content of the file, for `from_content`."""
        return {"classes": list(self.names)}

    @staticmethod
    def from_content(content: Any) -> ClassNames:
        """Restores the names from the result of `content`. ValueError for any other value."""
        match content:
            case {"classes": [*names]} if all(isinstance(name, str) for name in names):
                if len(set(names)) == len(names):
                    return ClassNames(tuple(names))
        raise ValueError(f"found {str(content)[:80]!r}, expected each name once")
