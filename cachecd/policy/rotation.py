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


@dataclass(slots=True)
class Rotation:
    """Bytes sealed since the last boundary (`sealed`) and since the last boundary that retired something
    (`refilled`); bytes delivered since that boundary (`delivered`), and what it retired (`last`). `unread`:
    the last boundary retired nothing because too little was delivered."""

    sealed: int = 0
    refilled: int = 0
    delivered: float = 0.0
    last: int = 0
    unread: bool = False

    def note_sealed(self, allocated: int) -> None:
        self.sealed += allocated
        self.refilled += allocated

    def boundary(self, now: Boundary, oldest: Iterable[tuple[int, int]]) -> list[int]:
        """The numbers of the shards to retire. `oldest` yields (number, allocated bytes), oldest first."""
        chosen: list[int] = []
        retired, most, excess = 0, self._most(now), now.held > now.share
        for number, allocated in oldest if most > 0 else ():
            # Above the share, the last shard may go beyond the amount: at least one goes.
            if retired >= most or (retired + allocated > most and not excess):
                break
            if len(chosen) + 1 >= now.shards:
                break  # the next set needs one: its job holds the last set until then
            chosen.append(number)
            retired += allocated
        self.sealed = 0
        self.unread = now.full and now.feeds and not chosen and self.delivered < now.footprint
        if chosen:
            self.delivered, self.refilled, self.last = 0.0, 0, retired
        return chosen

    def _most(self, now: Boundary) -> float:
        """How many bytes may go: nothing while there is room, or while nothing would replace it."""
        if now.held > now.share:  # read or not
            return min(now.held - now.share, max(now.footprint, now.refresh * now.live))
        if not (now.full and now.feeds):
            return 0
        floor = max(now.first, int((1 - now.refresh) * now.share))
        by_floor = max(now.live - floor, now.footprint)  # rule (a)
        again = 2 * self.last if self.refilled >= self.last else 0
        by_link = max(self.sealed, again, now.footprint)  # rule (b)
        return min(by_floor, by_link, self.delivered, now.live)  # rule (c)
