"""What the plan asks of a listing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cachecd.model import UnitSlice
from cachecd.segments import Segments


class UnitTable(Protocol):
    """The listing, as far as the plan needs it; units are numbered from 0, over all sources.

    `segments` say which unit is of which source, and which of them are listed to their end.
    """

    def __len__(self) -> int: ...
    @property
    def segments(self) -> Segments: ...
    def ends_of(self, source: int) -> Sequence[int]:
        """The ends of the blocks of a source that are listed, ascending, in its own ordinals. They follow
        from the listing alone, and once given stay the same."""

    def sizes(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]: ...
    def unit(self, number: int) -> UnitSlice: ...
