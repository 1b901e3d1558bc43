"""Finds the listed records that no live shard of a generation holds, by the sidecars and the listing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cachecd.disk.layout import GenerationLayout
from cachecd.disk.sidecar import Head, is_lost, read_head, read_sidecar
from cachecd.errors import DiskError
from cachecd.model import Unit, etag_hash
from cachecd.policy.values import Name, Piece
from cachecd_client._core import Sidecar


@dataclass(slots=True)
class HeldRecords:
    """The records of some shards, for each unit: their number (`count`), the number after the last record
    (`top`), whether a shard has the unit's last record (`ended`), the hash of the ETag, and whether two
    versions of the unit are held (`mixed`). `lost`: shards whose sidecars are lost, so the missing records
    are unknown. `proceed` is called before each sidecar is read."""

    layout: GenerationLayout
    count: NDArray[np.int64]
    top: NDArray[np.int64]
    ended: NDArray[np.bool_]
    etag: NDArray[np.uint64]
    mixed: NDArray[np.bool_]
    proceed: Callable[[], None]
    sidecars: list[Name] = field(default_factory=list)
    lost: list[Name] = field(default_factory=list)

    def pieces(self, units: Sequence[Unit], excluded: frozenset[str]) -> list[Piece]:
        """Returns the missing records of these units. A unit with another version in the shards lacks
        nothing."""
        pieces = []
        holes = []
        for unit in units:
            number = unit.number
            if unit.key in excluded:
                continue
            if number >= len(self.count) or not self.count[number]:
                pieces.append(Piece(number))
            elif not self.mixed[number] and self.etag[number] == etag_hash(unit.etag):
                if self.count[number] != self.top[number]:
                    holes.append(number)
                if not self.ended[number]:
                    pieces.append(Piece(number, int(self.top[number])))
        return sorted([*pieces, *self._holes(holes)], key=lambda piece: piece[:2])

    def _holes(self, numbers: Sequence[int]) -> Iterator[Piece]:
        """Reads the sidecars again for units with gaps between their records."""
        if not numbers:
            return
        held: dict[int, list[int]] = {number: [] for number in numbers}
        for name in self.sidecars:
            self.proceed()
            sidecar = read_sidecar(self.layout.sidecar(*name))
            wanted = np.isin(sidecar.units, np.array(numbers, np.uint64))
            for unit, ordinal in zip(
                sidecar.units[wanted].tolist(), sidecar.ordinals[wanted].tolist(), strict=True
            ):
                held[unit].append(ordinal)
        for number, ordinals in held.items():
            following = 0
            for ordinal in sorted(set(ordinals)):
                if ordinal > following:
                    yield Piece(number, following, ordinal)
                following = ordinal + 1


def held_records(
    layout: GenerationLayout,
    shards: Sequence[Name],
    units: int,
    proceed: Callable[[], None] = lambda: None,
) -> HeldRecords:
    """Reads the sidecars of these shards. `units`: the number of listed units. An error that `proceed`
    raises ends the work. DiskError."""
    counts = (np.zeros(units, np.int64), np.zeros(units, np.int64), np.zeros(units, np.bool_))
    etags, mixed = np.zeros(units, np.uint64), np.zeros(units, np.bool_)
    held = HeldRecords(layout, *counts, etags, mixed, proceed)
    held.sidecars += shards
    for name in shards:
        proceed()
        try:
            head, sidecar = read_head(layout.sidecar(*name)), read_sidecar(layout.sidecar(*name))
        except DiskError as error:
            if not is_lost(error):
                raise
            held.lost.append(name)
        else:
            _add(held, head, sidecar)
    return held


def _add(held: HeldRecords, head: Head, sidecar: Sidecar) -> None:
    units = sidecar.units.astype(np.int64)
    np.add.at(held.count, units, 1)
    np.maximum.at(held.top, units, sidecar.ordinals.astype(np.int64) + 1)
    open_ = {skip.unit for skip in head.skipped}
    open_ |= {lane.unit for lane in head.after.lanes} if head.after else set()
    for unit, _, _, etag in sidecar.table:
        digest = etag_hash(etag.decode("utf-8", "surrogatepass"))
        held.mixed[unit] |= bool(held.etag[unit]) and held.etag[unit] != digest
        held.etag[unit] = digest
        held.ended[unit] |= unit not in open_
