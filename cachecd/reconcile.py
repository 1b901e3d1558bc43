"""What a start finds on disk -> what is kept. Run before the first event, with the directory locked.

The shards are the truth. A row without its files goes; files without a row come back into the
catalog if their sidecar vouches for them; half a pair, a wrong length or a damaged sidecar costs
that one shard. Temporary files of our own naming are removed. Any other file is never touched.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.catalog import Catalog, ShardRow
from cachecd.disk import refusing, sync_directory
from cachecd.errors import DiskError
from cachecd.layout import SIDECAR_SUFFIX, Layout
from cachecd.model import Assignment, Outcome, Shard, ShardId, UnitSlice
from cachecd_client._core import Sidecar
from cachecd_client.errors import CorruptSidecarError

_SHARD = re.compile(r"(\d{10})\.tfrecord(\.idx)?")
_SIDECAR_BYTES, _RECORD_BYTES = 52, 20  # of a sidecar without meta, and more for each record
_TEMPORARY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.\d{10}\.tfrecord(\.idx)?")


@dataclass(frozen=True, slots=True)
class Kept:
    """A valid shard; `adopted` has its sidecar's meta if the catalog did not know it, or not surely
    what became of it."""

    shard: Shard
    retired: bool
    barred: bool
    units: NDArray[np.uint64]
    adopted: dict[str, Any] | None = None
    firsts: NDArray[np.uint32] | None = None  # of an adopted one: each unit's first ordinal in it
    sidecar_bytes: int = 0  # of an adopted one


@dataclass(slots=True)
class Found:
    """One dataset's shards after a start, and what had to go."""

    kept: list[Kept] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)  # one line a shard: what and why


def remove_temporaries(layout: Layout) -> list[Path]:
    """Removes what a killed daemon's samplers left in tmp/; only names that we give."""
    removed = []
    with refusing(f"cannot clear {layout.tmp}"):
        for entry in os.scandir(layout.tmp):
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)
                removed.append(Path(entry.path))
    return removed


def find_shards(layout: Layout, catalog: Catalog, dataset: str) -> Found:
    """Brings the shards of one dataset and the catalog's rows together."""
    found = Found()
    rows = {row.shard.id.number: row for row in catalog.shards(dataset)}
    # Of a shard whose assignment is still open, only the sidecar knows what became of it; so it is
    # with one that the plan has not come to: then a power failure took back what was saved last.
    open_numbers = {number for number, _, _ in catalog.assignments(dataset)}
    plan = catalog.plan(dataset)
    planned = plan["plan"]["next_number"] if plan else 0
    on_disk = _on_disk(layout.shards / dataset)
    for number in sorted(rows.keys() | on_disk.keys()):
        shard_id = ShardId(dataset, number)
        row, files = rows.get(number), on_disk.get(number, set())
        path = layout.shard(shard_id)
        try:
            if files != {"", SIDECAR_SUFFIX}:
                raise ValueError(_missing(files))
            if row is not None and number < planned and number not in open_numbers:
                _check_length(path, row.shard.data_bytes)
                _check_sidecar(path, row.shard.records)
                units = catalog.units(shard_id)
                found.kept.append(Kept(row.shard, row.retired, row.barred, units))
            else:
                kept = _from_sidecar(path, shard_id, row)
                catalog.adopt(kept.shard, kept.units, kept.retired, kept.barred)
                found.kept.append(kept)
        except (ValueError, CorruptSidecarError) as error:
            _remove(path)
            catalog.remove(shard_id)
            found.removed.append(f"{path}: {error}")
        except OSError as error:
            # Not damaged as far as we know: what a disk does not give back now is not to be removed.
            raise DiskError(
                f"cannot read the shard {path}: {error.strerror}; if this file alone stays unreadable, "
                "remove it and its sidecar"
            ) from error
    return found


def _on_disk(directory: Path) -> dict[int, set[str]]:
    """Number -> which of the two files are there."""
    numbers: dict[int, set[str]] = {}
    with refusing(f"cannot look through {directory}"):
        entries = list(os.scandir(directory))
    for entry in entries:
        match = _SHARD.fullmatch(entry.name)
        if match and entry.is_file(follow_symlinks=False):
            numbers.setdefault(int(match[1]), set()).add(match[2] or "")
    return numbers


def _missing(files: set[str]) -> str:
    if not files:
        return "the catalog has it, but its files are gone"
    return "the sidecar is missing" if "" in files else "there is a sidecar, but no shard"


def _check_length(path: Path, expected: int) -> None:
    actual = path.stat().st_size
    if actual != expected:
        raise ValueError(f"{actual} bytes long, expected {expected}")


def _check_sidecar(path: Path, records: int) -> None:
    """That it may be whole; whether it is, the reader finds out."""
    actual = Layout.sidecar(path).stat().st_size
    least = _SIDECAR_BYTES + records * _RECORD_BYTES
    if actual < least:
        raise ValueError(f"its sidecar is {actual} bytes long, expected at least {least}")


def _from_sidecar(path: Path, shard_id: ShardId, row: ShardRow | None) -> Kept:
    """A shard as its sidecar describes it; what the catalog has marked it as stays."""
    sidecar_path = Layout.sidecar(path)
    sidecar = Sidecar.read(str(sidecar_path))
    _check_length(path, sidecar.data_bytes)
    meta = json.loads(sidecar.meta)
    if (meta.get("dataset"), meta.get("number")) != (shard_id.dataset, shard_id.number):
        raise ValueError(f"its sidecar is that of {meta.get('dataset')}/{meta.get('number')}")
    files = [p.stat() for p in (path, sidecar_path)]
    allocated = sum(found.st_blocks * 512 for found in files)
    shard = Shard(shard_id, meta["generation"], len(sidecar), sidecar.data_bytes, allocated)
    units, first = np.unique(sidecar.units, return_index=True)
    retired, barred = (row.retired, row.barred) if row else (False, False)
    firsts = sidecar.ordinals[first]
    return Kept(shard, retired, barred, units, meta, firsts, files[1].st_size)


def _remove(path: Path) -> None:
    with refusing(f"cannot remove the damaged shard {path}"):
        for file in (path, Layout.sidecar(path)):
            file.unlink(missing_ok=True)
        sync_directory(path.parent)


def outcome_of(assignment: Assignment, kept: Kept) -> Outcome:
    """What became of an assignment whose shard was published but never noted.

    What is in the shard comes from its sidecar. A unit of the assignment that is not in it did not
    fit, or was set aside: it is tried again, and set aside again if it must be.
    """
    assert kept.adopted is not None, "only a shard that was adopted has its outcome rebuilt"
    written = {int(u) for u in kept.units}
    rest = {unit: (ordinal, offset) for unit, ordinal, offset in kept.adopted.get("remainder", [])}
    shard = kept.shard
    return Outcome(
        shard.records, shard.data_bytes, kept.sidecar_bytes, shard.allocated, 0, 0.0,
        tuple(_remainder(assignment.units, written, rest)),
    )  # fmt: skip


def _remainder(
    units: tuple[UnitSlice, ...], written: set[int], rest: dict[int, tuple[int, int]]
) -> Iterator[UnitSlice]:
    for unit in units:
        if unit.unit in rest:
            ordinal, offset = rest[unit.unit]
            yield UnitSlice(unit.unit, unit.key, unit.size, unit.etag, ordinal, offset)
        elif unit.unit not in written:
            yield unit
