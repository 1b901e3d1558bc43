"""What a byte of a source becomes, as far as its shards have shown. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cachecd.model import UnitSlice

_RECORD_OVERHEAD = 36  # framing and sidecar
# Framing, sidecar, key and label of a small object; corrected by the ratio later.
_UNIT_OVERHEAD = 128


class Ratio:
    """Sums over shards: bytes of units, and the bytes that they became."""

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0

    def add(self, bytes_in: int, bytes_out: int) -> None:
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out

    def estimate(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """What units of these sizes take as records."""
        if self.bytes_in and self.bytes_out:
            scaled = (sizes * (self.bytes_out / self.bytes_in)).astype(np.int64)
            return np.maximum(scaled, _RECORD_OVERHEAD)
        return sizes + _UNIT_OVERHEAD

    def estimate_of(self, unit: UnitSlice) -> int:
        """What this slice takes."""
        return int(self.estimate(np.array([max(unit.size - unit.offset, 0)], np.int64))[0])

    def estimate_all(self, total: int, units: int) -> int:
        """What so many units of `total` bytes take."""
        if self.bytes_in and self.bytes_out:
            return int(total * (self.bytes_out / self.bytes_in))
        return total + _UNIT_OVERHEAD * units
