"""The figures of passes: steps, records, and the seconds that the loop waited, by stage."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import NamedTuple, Self, TypeVar

#: The levels at which the core counts the fill of the queue: 0/31, 1/31 ... 31/31.
_LEVELS = 32

Key = TypeVar("Key", str, int)


class Sums(dict[Key, float]):
    """Numbers by name. `+` adds them by name."""

    def __add__(self, other: Mapping[Key, float]) -> Self:
        total = type(self)(self)
        for key, number in other.items():
            total[key] = total.get(key, 0.0) + number
        return total


class Figures(NamedTuple):
    """The figures of a pass until now, or of several passes together."""

    steps: int = 0
    records: int = 0  # records of this rank, without padding
    reads: int = 0  # records across all ranks
    rows: int = 0  # rows across all ranks, with padding
    delivered: int = 0  # `reads`, and the records that a whole pass omits, if less than a step
    dropped: int = 0  # records that `drop_last` omits from a whole pass, across all ranks
    bytes: int = 0
    masked: int = 0  # tokens of the records that were delivered with a mask
    padding: int = 0  # those that are padding
    waited: float = 0.0  # seconds until a batch was ready, or the files were open
    elapsed: float = (
        0.0  # seconds from the beginning of the pass until now, or until its last batch
    )
    queue: float = 0.0  # the sum across all steps
    stages: Sums[str] = Sums()  # `waited` by what the reader did meanwhile
    fills: Sums[int] = Sums()  # how often the queue had each fill, 0 to 31

    def plus(self, other: Figures) -> Figures:
        return Figures(*map(operator.add, self, other))

    def queue_percentile(self, share: float) -> float | None:
        """Returns the fill of the queue, 0..1, that this share of the steps did not exceed; None if there
        were no steps."""
        left = share * sum(self.fills.values())
        for fill, steps in sorted(self.fills.items()):
            left -= steps
            if left <= 0:
                return fill / (_LEVELS - 1)
        return None
