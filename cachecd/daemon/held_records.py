"""Finds the listed records that no live shard of a generation holds, by the sidecars and the listing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cachecd.disk.filesystem import refusing
from cachecd.disk.layout import GenerationLayout, parse
from cachecd.model import Cursor, Unit, etag_hash
from cachecd.policy.values import Name, Piece
from cachecd_client._core import Sidecar
from cachecd_client.errors import CorruptError


@dataclass(slots=True)
class HeldRecords:
    """The records of all shards without a mark `.old`, for each unit: their number (`count`), the number
    after the last record (`top`), whether a shard has the unit's last record (`ended`), the hash of the
    ETag, and whether two versions of the unit are held (`mixed`). `damaged`: sidecars that cannot be read,
    so the missing records are unknown."""

    layout: GenerationLayout
    count: NDArray[np.int64]
    top: NDArray[np.int64]
    ended: NDArray[np.bool_]
    etag: NDArray[np.uint64]
    mixed: NDArray[np.bool_]
    sidecars: list[Name] = field(default_factory=list)
    damaged: list[Name] = field(default_factory=list)

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
            sidecar = _read(self.layout, name)
            if sidecar is None:
                continue
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


def held_records(layout: GenerationLayout, units: int) -> HeldRecords:
    """Reads every sidecar. `units`: the number of listed units. DiskError."""
    counts = (np.zeros(units, np.int64), np.zeros(units, np.int64), np.zeros(units, np.bool_))
    held = HeldRecords(layout, *counts, np.zeros(units, np.uint64), np.zeros(units, np.bool_))
    held.sidecars = _current(layout)
    for name in held.sidecars:
        try:
            if (sidecar := _read(layout, name)) is not None and len(sidecar):
                _add(held, sidecar)
        except CorruptError:
            held.damaged.append(name)
    return held


def _add(held: HeldRecords, sidecar: Sidecar) -> None:
    units = sidecar.units.astype(np.int64)
    np.add.at(held.count, units, 1)
    np.maximum.at(held.top, units, sidecar.ordinals.astype(np.int64) + 1)
    meta = json.loads(sidecar.meta)
    open_ = {row[0] for row in meta["skipped"]}
    open_ |= {lane.unit for lane in Cursor.unpack(meta["after"]).lanes}
    for unit, _, _, etag in sidecar.table:
        digest = etag_hash(etag.decode("utf-8", "surrogatepass"))
        held.mixed[unit] |= bool(held.etag[unit]) and held.etag[unit] != digest
        held.etag[unit] = digest
        held.ended[unit] |= unit not in open_


def _current(layout: GenerationLayout) -> list[Name]:
    """The highest version of each number without a mark `.old` that has a sidecar."""
    highest: dict[int, int] = {}
    old = set()
    with refusing(f"cannot look at {layout.shards}"):
        for name in os.listdir(layout.shards):
            if (file := parse(name)) is None:
                continue
            if file.kind == ".old":
                old.add(file.number)
            elif file.kind == ".tfrecord.idx":
                highest[file.number] = max(highest.get(file.number, 0), file.version)
    return [name for name in sorted(highest.items()) if name[0] not in old]


def _read(layout: GenerationLayout, name: Name) -> Sidecar | None:
    """None for a sidecar that was unlinked meanwhile. CorruptError."""
    try:
        return Sidecar.read(str(layout.sidecar(*name)))
    except FileNotFoundError:
        return None
