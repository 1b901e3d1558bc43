"""Rotation: how many bytes an epoch's boundary retires. Pure.

Four figures of a dataset decide it, beside the bytes of the moment. All are lost by a restart, which
only delays the next rotation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Boundary:
    """The figures of a dataset when an epoch begins.

    `live`: bytes of live shards, of which `shards` have records. `held`: live and reserved bytes.
    `first`: what counts of `grow.first`. `full`: no room for one more shard. `feeds`: a stream or a
    supplement needs room.
    """

    live: int
    shards: int
    held: int
    share: int
    first: int
    refresh: float
    footprint: int
    full: bool
    feeds: bool

    @property
    def excess(self) -> int:
        """How far the dataset is above its share."""
        return max(0, self.held - self.share)

    @property
    def floor(self) -> int:
        """What rule (a) leaves live."""
        return max(self.first, int((1 - self.refresh) * self.share))


@dataclass(slots=True)
class Rotation:
    """Bytes sealed since the last boundary (`sealed`) and since the last boundary that retired something
    (`refilled`); bytes delivered since that boundary (`delivered`), and what it retired (`last`)."""

    sealed: int = 0
    refilled: int = 0
    delivered: float = 0.0
    last: int = 0

    def note_sealed(self, allocated: int) -> None:
        """A shard was sealed."""
        self.sealed += allocated
        self.refilled += allocated

    def boundary(self, now: Boundary, oldest: Iterable[tuple[int, int]]) -> list[int]:
        """The numbers of the shards to retire. `oldest` yields (number, allocated bytes), oldest first.

        Nothing is retired while there is room, or while nothing would replace it. Then, oldest first,
        while (a) live bytes stay at the floor, but one shard may always go, (b) no more goes than was
        sealed since the last boundary, or twice the last amount if all of it was refilled, one shard at
        least, (c) no more goes than was delivered since the last boundary that retired something.
        A dataset above its share retires, read or not, at most `refresh` of its live bytes, one shard
        at least, down to the share.
        """
        chosen: list[int] = []
        retired, most = 0, self._most(now)
        for number, allocated in oldest if most > 0 else ():
            # Above the share, the last shard may go beyond the amount: at least one goes.
            if retired >= most or (retired + allocated > most and not now.excess):
                break
            if len(chosen) + 1 >= now.shards:
                break  # the next set needs one: its job holds the last set until then
            chosen.append(number)
            retired += allocated
        self.sealed = 0
        if chosen:
            self.delivered, self.refilled, self.last = 0.0, 0, retired
        return chosen

    def _most(self, now: Boundary) -> float:
        """How many bytes may go."""
        if now.excess:
            return min(now.excess, max(now.footprint, now.refresh * now.live))
        if not (now.full and now.feeds):
            return 0
        again = 2 * self.last if self.refilled >= self.last else 0
        by_link = max(self.sealed, again, now.footprint)
        by_floor = max(now.live - now.floor, now.footprint)
        return min(by_link, by_floor, self.delivered, now.live)
