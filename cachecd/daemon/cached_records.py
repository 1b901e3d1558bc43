"""Compares sidecars and listing, to find the listed records that no live shard of a generation covers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cachecd.disk.layout import GenerationLayout
from cachecd.disk.sidecar import END, SidecarHead, is_lost, read_whole
from cachecd.errors import DiskError
from cachecd.model import Excluded, ShardVersion, Unit, etag_hash, less_excluded
from cachecd.policy.values import Piece
from cachecd_client._core import Sidecar


@dataclass(slots=True)
class CachedRecords:
    """The records that some shards cover, by unit. `whole`: one shard covers the whole unit. `parts`: the
    intervals of records in the other shards. `mixed`: the shards have two versions of the unit. `etag`:
    the hash of the unit's ETag in the sidecars. `lost`: the shards with lost sidecars; if there are any,
    the missing records are unknown."""

    whole: NDArray[np.bool_]
    mixed: NDArray[np.bool_]
    etag: NDArray[np.uint64]
    parts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    lost: list[ShardVersion] = field(default_factory=list)

    def pieces(self, units: Sequence[Unit], excluded: Excluded) -> list[Piece]:
        """Returns the missing records of these units. If the shards have another version of a unit, none of
        its records count as missing."""
        pieces = []
        for unit in units:
            number = unit.number
            lacks_nothing = number < len(self.whole) and (
                self.whole[number]
                or self.mixed[number]
                or self.etag[number] not in (0, etag_hash(unit.etag))
            )
            if not lacks_nothing and less_excluded(unit, excluded) is not None:
                pieces += [Piece(number, *gap) for gap in gaps(self.parts.get(number, ()))]
        return sorted(pieces, key=lambda piece: piece[:2])


def gaps(parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int | None]]:
    """Yields the intervals of records between these parts of a unit, as (first, stop). If stop is None, the
    interval ends with the unit."""
    at = 0
    for first, stop in sorted(parts):
        if first > at:
            yield at, first
        at = max(at, stop)
    if at < END:
        yield at, None


def cached_records(
    layout: GenerationLayout,
    shards: Sequence[ShardVersion],
    units: int,
    proceed: Callable[[], None] = lambda: None,
) -> CachedRecords:
    """Reads the sidecars of these shards. `units`: the number of listed units. `proceed` is called before
    each shard; an error that it raises ends the work. DiskError."""
    flags = np.zeros(units, np.bool_), np.zeros(units, np.bool_)
    cached = CachedRecords(*flags, np.zeros(units, np.uint64))
    for name in shards:
        proceed()
        try:
            head, sidecar = read_whole(layout.sidecar(*name))
        except DiskError as error:
            if not is_lost(error):
                raise
            cached.lost.append(name)
        else:
            _add(cached, head, sidecar)
    return cached


def _add(cached: CachedRecords, head: SidecarHead, sidecar: Sidecar) -> None:
    for unit, interval in head.intervals(unit for unit, *_ in sidecar.table).items():
        if interval == (0, END):
            cached.whole[unit] = True
        else:
            cached.parts.setdefault(unit, []).append(interval)
    for unit, _, _, etag in sidecar.table:
        digest = etag_hash(etag.decode("utf-8", "surrogatepass"))
        cached.mixed[unit] |= bool(cached.etag[unit]) and cached.etag[unit] != digest
        cached.etag[unit] = digest
