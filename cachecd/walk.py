"""What the plan has made of a dataset, in its order: shards that are there, and gaps. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cachecd.shardtable import Numbers


@dataclass(frozen=True, slots=True)
class Walk:
    """Shards in the order of their numbers, served ones and others, and the data bytes of each.

    `before`: data bytes of those before the first, which are gone.
    """

    numbers: Numbers
    sizes: NDArray[np.int64]
    served: NDArray[np.bool_]
    before: int

    @property
    def data_bytes(self) -> int:
        """Of all, those that are gone included."""
        return self.before + int(self.sizes.sum())

    def first(self, enough: int) -> Numbers:
        """The served ones among as many as hold `enough` data bytes, and one at least."""
        upto = self.before + self.sizes.cumsum() - self.sizes
        over = (upto >= enough) & (self.served.cumsum() - self.served > 0)
        end = int(over.argmax()) if over.any() else len(self.numbers)
        return self.numbers[:end][self.served[:end]]
