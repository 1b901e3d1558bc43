"""What the plan asks of a listing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cachecd.model import UnitSlice


class UnitTable(Protocol):
    """The listing, as far as the plan needs it; units are numbered from 0."""

    def __len__(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Bytes of all units together."""

    @property
    def ends(self) -> Sequence[int]:
        """The ends of the blocks that are listed, ascending. They follow from the listing alone, and once
        given stay the same."""

    def sizes(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]: ...
    def unit(self, number: int) -> UnitSlice: ...
