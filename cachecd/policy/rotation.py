"""Rotation: how many bytes an epoch's boundary retires, and why nothing rotates. Pure.

Each field of `Rotation` is a figure in rotation.json, so it survives restarts. docs/contributing.md has
the recipe for a new rule. A rule has its bound, its reason in `waits`, and its figure in this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

from cachecd.policy.values import Figures, Rules
from cachecd.quantities import approximate_size


class HeldLease(NamedTuple):
    """A lease of the dataset's generation. `kept`: the bytes of retired shards that it names."""

    id: str
    job: str
    kept: int


@dataclass(frozen=True, slots=True)
class Boundary:
    """The state of a dataset when an epoch begins.

    `now`: seconds since 1970. `live`: bytes of live shards. `shards`: number of live shards with records.
    `occupied`: live and reserved bytes. `first`: the part of `grow.first` that counts. `full`: there is
    no room for one more shard. `feeds`: a stream or a supplement needs room, or the dataset owes room to
    another dataset. `page`: bytes that a page of the dataset's listing lacks. `leases`: the leases of its
    generation.
    """

    now: float
    rules: Rules
    live: int
    shards: int
    occupied: int
    share: int
    first: int
    footprint: int
    full: bool
    feeds: bool
    page: float = 0
    leases: tuple[HeldLease, ...] = ()


@dataclass(slots=True)
class Rotation:
    """The figures of rotation, in bytes. `sealed`: sealed since the last boundary. `refilled` and
    `delivered`: sealed and delivered since the last boundary that retired a shard. `last`: retired by
    that boundary. `unread`: the last boundary retired nothing, because too little was delivered."""

    sealed: float = 0
    refilled: float = 0
    delivered: float = 0
    last: float = 0
    unread: bool = False

    @classmethod
    def restored(cls, figures: Figures) -> Rotation:
        """Returns the rotation of the last daemon. A missing figure starts from zero."""
        rotation = cls()
        for field in fields(cls):
            setattr(rotation, field.name, figures.get(field.name, getattr(rotation, field.name)))
        return rotation

    def figures(self) -> Figures:
        """Returns the figures for `restored`."""
        return asdict(self)

    def note_sealed(self, allocated: int) -> None:
        self.sealed += allocated
        self.refilled += allocated

    def boundary(self, at: Boundary, oldest: Iterable[tuple[int, int]]) -> list[int]:
        """Returns the numbers of the shards to retire. `oldest` yields (number, allocated bytes), oldest
        first."""
        chosen: list[int] = []
        retired, by_rules, excess = 0, self._most(at), at.occupied > at.share
        wanted = max(by_rules, at.page)
        most = max(by_rules, _above_floor(at)) if at.page else by_rules
        for number, allocated in oldest if wanted > 0 else ():
            # Above the share, the last shard may exceed the amount, so that at least one is retired.
            if retired >= wanted or (retired + allocated > most and not excess):
                break
            if len(chosen) + 1 >= at.shards:
                break  # the next set needs a shard while its job holds the last set
            chosen.append(number)
            retired += allocated
        self.sealed = 0
        self.unread = at.full and at.feeds and not chosen and self.delivered < at.footprint
        if chosen:
            self.delivered, self.refilled, self.last = 0, 0, retired
        return chosen

    def waits(self, at: Boundary) -> str:
        """Returns why a full dataset retires nothing when the next epoch begins, or ""."""
        if at.rules.pin or not (at.full and at.feeds and at.shards):
            return ""
        most = max(at.leases, key=lambda lease: lease.kept, default=None)
        if most is not None and most.kept:
            return (
                f"lease {most.id} of job {most.job} keeps {approximate_size(most.kept)} of retired shards: "
                "they make room when the lease ends"
            )
        if self.unread and self.delivered < at.footprint:
            return (
                f"jobs reported {approximate_size(self.delivered)} as delivered since the last rotation: "
                "less than a shard"
            )
        return ""

    def _most(self, at: Boundary) -> float:
        """Returns how many bytes may be retired: 0 if there is room, or if nothing would replace the
        bytes."""
        if at.occupied > at.share:  # whether they were read or not
            return min(at.occupied - at.share, max(at.footprint, at.rules.refresh * at.live))
        if not (at.full and at.feeds):
            return 0
        again = 2 * self.last if self.refilled >= self.last else 0
        by_link = max(self.sealed, again, at.footprint)  # rule (b)
        return min(_above_floor(at), by_link, self.delivered, at.live)  # rule (c)


def _above_floor(at: Boundary) -> int:
    """Returns how many bytes may be retired above the floor: rule (a)."""
    return max(at.live - floor_bytes(at.first, at.rules.refresh, at.share), at.footprint)


def floor_bytes(first: int, refresh: float, share: int) -> int:
    """Returns how many bytes of a dataset rotation keeps live."""
    return max(first, int((1 - refresh) * share))
