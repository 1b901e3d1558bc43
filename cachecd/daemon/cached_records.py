"""Finds the listed records that no live shard of a generation covers, by the sidecars and the listing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cachecd.disk.layout import GenerationLayout
from cachecd.disk.sidecar import END, SidecarHead, is_lost, read_whole
from cachecd.errors import DiskError
from cachecd.model import Excluded, Unit, etag_hash, less_excluded
from cachecd.policy.values import Name, Piece
from cachecd_client._core import Sidecar


@dataclass(slots=True)
class CachedRecords:
    """What some shards cover, for each unit: whether all of it (`whole`), else the records of each shard
    (`parts`); whether two versions of the unit are held (`mixed`); and the hash of the ETag. `lost`: shards
    whose sidecars are lost, so the missing records are unknown."""

    whole: NDArray[np.bool_]
    mixed: NDArray[np.bool_]
    etag: NDArray[np.uint64]
    parts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    lost: list[Name] = field(default_factory=list)

    def pieces(self, units: Sequence[Unit], excluded: Excluded) -> list[Piece]:
        """Returns the missing records of these units. A unit with another version in the shards lacks
        nothing."""
        pieces = []
        for unit in units:
            number = unit.number
            is_known = number < len(self.whole)
            if less_excluded(unit, excluded) is None or (is_known and self.whole[number]):
                continue
            if is_known and self.etag[number] not in (0, etag_hash(unit.etag)):
                continue
            if is_known and self.mixed[number]:
                continue
            pieces += [Piece(number, *gap) for gap in gaps(self.parts.get(number, ()))]
        return sorted(pieces, key=lambda piece: piece[:2])


def gaps(parts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int | None]]:
    """Yields what is between these parts of a unit: (first, stop); stop None: to the unit's end."""
    at = 0
    for first, stop in sorted(parts):
        if first > at:
            yield at, first
        at = max(at, stop)
    if at < END:
        yield at, None


def cached_records(
    layout: GenerationLayout,
    shards: Sequence[Name],
    units: int,
    proceed: Callable[[], None] = lambda: None,
) -> CachedRecords:
    """Reads the sidecars of these shards; calls `proceed` before each: an error that it raises ends the
    work. `units`: the number of listed units. DiskError."""
    flags = np.zeros(units, np.bool_), np.zeros(units, np.bool_)
    held = CachedRecords(*flags, np.zeros(units, np.uint64))
    for name in shards:
        proceed()
        try:
            head, sidecar = read_whole(layout.sidecar(*name))
        except DiskError as error:
            if not is_lost(error):
                raise
            held.lost.append(name)
        else:
            _add(held, head, sidecar)
    return held


def _add(held: CachedRecords, head: SidecarHead, sidecar: Sidecar) -> None:
    for unit, (first, stop) in head.intervals(unit for unit, *_ in sidecar.table).items():
        if (first, stop) == (0, END):
            held.whole[unit] = True
        else:
            held.parts.setdefault(unit, []).append((first, stop))
    for unit, _, _, etag in sidecar.table:
        digest = etag_hash(etag.decode("utf-8", "surrogatepass"))
        held.mixed[unit] |= bool(held.etag[unit]) and held.etag[unit] != digest
        held.etag[unit] = digest
