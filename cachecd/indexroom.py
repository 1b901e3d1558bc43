"""Room under the limit for the indexes of the sources, which grow while shards are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachecd.errors import LimitTooSmallError, NoRoomError
from cachecd.ledger import Ledger


class IndexRoom:
    """Counts what the indexes are about to take before they take it.

    `measure` tells the ledger anew what lies on the disk, `ahead` included. All indexes together leave
    `least` bytes of the limit to the shards, so that sampling and training go on whatever a store
    lists. `drop` removes an index that nobody uses now, and says whether there was one: those are kept as
    long as no other index needs their room.
    """

    def __init__(
        self,
        ledger: Ledger,
        least: int,
        measure: Callable[[], None],
        drop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ledger = ledger
        self._least = least
        self._measure = measure
        self._drop = drop
        self._claims: dict[str, int] = {}
        self._writing: set[str] = set()

    def of(self, dataset: str) -> DatasetRoom:
        """What the listing of one dataset needs of it."""
        return DatasetRoom(self, dataset)

    @property
    def ahead(self) -> int:
        """Bytes that the indexes may take, or wait for, and that the disk does not show yet."""
        return sum(self._claims.values())

    @property
    def writing(self) -> int:
        """Those of them that are granted."""
        return sum(self._claims[dataset] for dataset in self._writing)

    def reserve(self, dataset: str, cost: int) -> None:
        """Before the index of `dataset` takes `cost` more bytes.

        LimitTooSmallError if the limit does not allow for so long a listing. NoRoomError if shards
        have the room now: then as much of what they give back is kept, until this is asked again.
        """
        self._claims[dataset] = cost
        self._measure()
        while self._lacks() and self._drop():
            self._measure()
        left = self._ledger.limit - self._ledger.metadata
        if left < self._least:
            self.settle(dataset)
            raise LimitTooSmallError(
                f"cache.limit ({self._ledger.limit} bytes) has no room for so long a listing: with "
                f"{cost} bytes more, its index would leave {max(left, 0)} to the shards, which need "
                f"{self._least}; raise cache.limit to {self._ledger.limit + self._least - left} or "
                "more, unless the source's listing has no end"
            )
        if self._ledger.room < 0:
            raise NoRoomError(
                f"the listing waits for room: it needs {-self._ledger.room} bytes more than "
                f"cache.limit ({self._ledger.limit}) leaves; the next shards that are evicted make it"
            )
        self._writing.add(dataset)

    def _lacks(self) -> bool:
        return self._ledger.room < 0 or self._ledger.limit - self._ledger.metadata < self._least

    def settle(self, dataset: str) -> None:
        """After that: what was taken is on the disk, what was not is not needed."""
        self._writing.discard(dataset)
        if self._claims.pop(dataset, 0):
            self._measure()


@dataclass(frozen=True, slots=True)
class DatasetRoom:
    """The room for one dataset's index: see IndexRoom."""

    room: IndexRoom
    dataset: str

    def reserve(self, cost: int) -> None:
        self.room.reserve(self.dataset, cost)

    def settle(self) -> None:
        self.room.settle(self.dataset)
