"""What a start finds on disk -> what is kept. Run before the first event, with the directory locked.

The shards are the truth. A row without its files goes; files without a row come back into the
catalog if their sidecar vouches for them; half a pair, a wrong length or a damaged sidecar costs
that one shard, at once or, if a trainer has it on lease, when that ends. Temporary files of our own
naming are removed. Any other file is never touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachecd.catalog import Adopted, Catalog
from cachecd.disk.filesystem import refusing, sync_directory
from cachecd.errors import DiskError
from cachecd.layout import SIDECAR_SUFFIX, Layout
from cachecd.live import marks_of
from cachecd.model import Assignment, Outcome, Shard, ShardId, UnitSlice
from cachecd.parts import Part, parts_written
from cachecd.shardtable import ROW, Numbers, Rows
from cachecd_client._core import Sidecar
from cachecd_client.errors import CorruptSidecarError

_SUFFIX = ".tfrecord"
# Sidecars that are saved together; fewer where they name many units, which are in memory till then.
_ADOPTED_AT_ONCE, _UNITS_AT_ONCE = 100, 50_000
_SIDECAR_BYTES, _RECORD_BYTES = 72, 16  # of a sidecar without meta, and more for each record
_TEMPORARY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.\d{10}\.tfrecord(\.idx)?")


@dataclass(frozen=True, slots=True)
class Written:
    """What a shard holds whose assignment is open, by its sidecar."""

    units: NDArray[np.uint64]
    sidecar_bytes: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A valid shard, by itself. Its row in the catalog has the units: all shards' are too many for memory.

    `adopted` has what its sidecar's meta says of the walk if the catalog did not know it, or not surely
    what became of it, and as "most" the highest unit that it holds, -1 if none. `parts`: of the units that
    it does not hold whole.
    """

    shard: Shard
    retired: bool
    barred: bool
    adopted: dict[str, Any] | None = None
    parts: Sequence[Part] = ()
    written: Written | None = None  # of one whose assignment is open


@dataclass(slots=True)
class Found:
    """One dataset's shards after a start, and what had to go.

    `known`: those that were found as the catalog has them: the names of their generations, and rows of
    ROW. `kept`: all others. `gone`: those that the catalog has as retired (or barred), and that are gone
    now, as when the last run was killed while it removed them. `schemas`: by generation, as sidecars of
    `kept` have them.
    """

    known: tuple[list[str], Rows] = field(default_factory=lambda: ([], np.zeros(0, ROW)))
    kept: list[Kept] = field(default_factory=list)
    gone: list[tuple[Shard, bool]] = field(default_factory=list)
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)  # one line a shard: what and why
    in_use: list[str] = field(default_factory=list)  # likewise, of the damaged ones that stay

    def damages(self) -> Iterator[tuple[str, str]]:
        """For the log: what became of a shard, and why."""
        yield from (("shard removed", why) for why in self.removed)
        yield from (("shard damaged while on lease", why) for why in self.in_use)


def remove_temporaries(layout: Layout) -> list[Path]:
    """Removes what a killed daemon's samplers left in tmp/; only names that we give."""
    removed = []
    with refusing(f"cannot clear {layout.tmp}"):
        for entry in os.scandir(layout.tmp):
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)
                removed.append(Path(entry.path))
    return removed


def find_shards(
    layout: Layout,
    catalog: Catalog,
    dataset: str,
    used: int,
    in_use: Callable[[int], bool],
    progress: Callable[[int, int], None] = lambda read, of: None,
) -> Found:
    """Brings the shards of one dataset and the catalog's rows together. A damaged one that may be
    `in_use` is kept, barred. `used`: the highest number that any plan has given.

    Of a shard that the catalog does not know, the sidecar is read. What sidecars say is saved on the way,
    some at a time: a start that is killed meanwhile has the next one read only the others. `progress` is
    called each time, with how many were read, and of how many.
    """
    found = Found()
    generations, rows = catalog.shards(dataset)
    # Of a shard whose assignment is still open, only the sidecar knows what became of it; so it is
    # with one that the plan has not come to: then a power failure took back what was saved last.
    opened = [number for number, _, _ in catalog.assignments(dataset)]
    folder = layout.shards / dataset
    data, sidecars = _on_disk(folder)
    read = catalog.adopted(dataset)
    numbers = rows["number"]
    judged = (numbers <= used) & ~np.isin(numbers, opened)
    sure = judged | np.isin(numbers, [*read]) & ~np.isin(numbers, opened)
    sure &= np.isin(numbers, data) & np.isin(numbers, sidecars)
    sure[sure] = _seem_whole(folder, rows[sure])
    found.known = generations, rows[sure & judged]
    found.kept = [
        _read_before(row, ShardId(dataset, int(row["number"])), generations, read)
        for row in rows[sure & ~judged]
    ]
    there = set(data.tolist()), set(sidecars.tolist())
    uncertain = rows[~sure]
    marks = dict(zip(uncertain["number"].tolist(), marks_of(uncertain["flags"]), strict=True))
    by_plan = set(numbers[judged].tolist())
    todo = np.setdiff1d(np.concatenate([numbers, data, sidecars]), numbers[sure]).tolist()
    new = _New(catalog)
    for done, number in enumerate(todo):
        shard_id = ShardId(dataset, number)
        path = layout.shard(shard_id)
        pair = number in there[0], number in there[1]
        retired, barred = marks.get(number, (False, False))
        known: Shard | None = None
        if number in marks:
            row = uncertain[np.searchsorted(uncertain["number"], number)]
            known = _shard_of(row, shard_id, generations)
        try:
            if not all(pair):
                raise ValueError(_missing(*pair))
            if known and number in by_plan:
                _check_length(path, known.data_bytes)
                _check_sidecar(path, known.records)
            kept, units = _from_sidecar(
                path, shard_id, (retired, barred), found.schemas, number in opened
            )
        except (ValueError, CorruptSidecarError) as error:
            if pair[0] and in_use(number):
                kept = Kept(known or _without_row(path, shard_id), retired, True)
                units = np.zeros(0, np.uint64)
                found.in_use.append(f"{path}: {error}")
            else:
                if known and (retired or barred):
                    found.gone.append((known, retired))
                _remove(path)
                catalog.remove(shard_id)
                found.removed.append(f"{path}: {error}")
                continue
        except OSError as error:
            # Not damaged as far as we know: what a disk does not give back now is not to be removed.
            raise DiskError(
                f"cannot read the shard {path}: {error.strerror}; if this file alone stays unreadable, "
                "remove it and its sidecar"
            ) from error
        found.kept.append(kept)
        if new.add(kept, units):
            progress(done + 1, len(todo))
    new.save()
    found.kept.sort(key=lambda kept: kept.shard.id.number)
    return found


class _New:
    """Shards that are not in the catalog yet, or not as they are."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._shards: list[Adopted] = []
        self._units = 0

    def add(self, kept: Kept, units: NDArray[np.uint64]) -> bool:
        """Whether it was saved, with those before it."""
        self._shards.append(
            Adopted(kept.shard, units, kept.parts, kept.retired, kept.barred, kept.adopted)
        )
        self._units += len(units)
        if full := len(self._shards) >= _ADOPTED_AT_ONCE or self._units >= _UNITS_AT_ONCE:
            self.save()
        return full

    def save(self) -> None:
        self._catalog.adopt(self._shards)
        self._shards, self._units = [], 0


def _read_before(
    row: np.void,
    shard: ShardId,
    generations: Sequence[str],
    read: Mapping[int, tuple[dict[str, Any], Sequence[Part]]],
) -> Kept:
    """A shard whose sidecar was read by a start that came to no plan."""
    walk, parts = read[shard.number]
    ((retired, barred),) = marks_of(row["flags"].reshape(1))
    return Kept(_shard_of(row, shard, generations), retired, barred, walk, parts)


def _shard_of(row: np.void, shard: ShardId, generations: Sequence[str]) -> Shard:
    figures = (int(row[name]) for name in ("records", "data_bytes", "allocated", "digest"))
    return Shard(shard, generations[row["generation"]], *figures)


def _without_row(path: Path, shard: ShardId) -> Shard:
    """A shard of which nothing but its file is known."""
    file = path.stat()
    return Shard(shard, "", 0, file.st_size, file.st_blocks * 512)


def _on_disk(folder: Path) -> tuple[Numbers, Numbers]:
    """The numbers of which there is a shard, and of which there is a sidecar."""
    suffixes = (_SUFFIX, _SUFFIX + SIDECAR_SUFFIX)
    names: dict[int, list[str]] = {10 + len(suffix): [] for suffix in suffixes}
    with refusing(f"cannot look through {folder}"), os.scandir(folder) as entries:
        for entry in entries:
            # Many names at once below: one by one, 200,000 of them take half a second.
            if (same := names.get(len(entry.name))) is not None and entry.is_file(
                follow_symlinks=False
            ):
                same.append(entry.name)
    data, sidecars = (_numbers(names[10 + len(suffix)], suffix) for suffix in suffixes)
    return data, sidecars


def _numbers(names: list[str], suffix: str) -> Numbers:
    """Of those names that are ten digits and the suffix; all are as long as that."""
    names = [name for name in names if name.endswith(suffix) and name.isascii()]
    text = np.frombuffer("".join(names).encode(), np.uint8)
    digits = text.reshape(len(names), 10 + len(suffix))[:, :10]
    digits = digits[((digits >= ord("0")) & (digits <= ord("9"))).all(axis=1)] - ord("0")
    numbers: Numbers = digits @ (10 ** np.arange(9, -1, -1, dtype=np.int64))
    return numbers


def _seem_whole(folder: Path, rows: Rows) -> NDArray[np.bool_]:
    """Whether each of these shards is as long as its row says, and its sidecar as long as it must be;
    one that the disk does not tell of is not."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = [Layout.name(number) for number in rows["number"].tolist()]
        data = _sizes(names, directory) == rows["data_bytes"]
        sidecars = _sizes([name + SIDECAR_SUFFIX for name in names], directory)
        found: NDArray[np.bool_] = data & (
            sidecars >= _SIDECAR_BYTES + rows["records"] * _RECORD_BYTES
        )
        return found
    finally:
        os.close(directory)


def _sizes(names: list[str], directory: int) -> NDArray[np.int64]:
    """Bytes of each of these files; -1 from the first on that the disk does not tell of."""
    stat, sizes = os.stat, np.full(len(names), -1, np.int64)
    with contextlib.suppress(OSError):  # whoever looks at it by itself says what is wrong
        for at, name in enumerate(names):
            sizes[at] = stat(name, dir_fd=directory).st_size
    return sizes


def _missing(data: bool, sidecar: bool) -> str:
    if not (data or sidecar):
        return "the catalog has it, but its files are gone"
    return "the sidecar is missing" if data else "there is a sidecar, but no shard"


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


def _from_sidecar(
    path: Path,
    shard_id: ShardId,
    marks: tuple[bool, bool],
    schemas: dict[str, dict[str, Any]],
    is_open: bool,
) -> tuple[Kept, NDArray[np.uint64]]:
    """A shard as its sidecar describes it, and its units; what the catalog has marked it as (retired,
    barred) stays, and its schema is noted."""
    sidecar_path = Layout.sidecar(path)
    sidecar = Sidecar.read(str(sidecar_path))
    _check_length(path, sidecar.data_bytes)
    meta = json.loads(sidecar.meta)
    if (meta.get("dataset"), meta.get("number")) != (shard_id.dataset, shard_id.number):
        raise ValueError(f"its sidecar is that of {meta.get('dataset')}/{meta.get('number')}")
    files = [p.stat() for p in (path, sidecar_path)]
    allocated = sum(found.st_blocks * 512 for found in files)
    digest = int(meta.get("digest", "0"), 16)
    generation = sys.intern(meta["generation"])
    shard = Shard(shard_id, generation, len(sidecar), sidecar.data_bytes, allocated, digest)
    units, first = np.unique(sidecar.units, return_index=True)
    remainder, stops = meta.get("remainder", ()), dict(meta.get("stops", ()))
    parts = parts_written(units, sidecar.ordinals[first], remainder, stops)
    if "schema" in meta:
        schemas[shard.generation] = meta["schema"]
    # Of a hundred thousand metas, what nobody asks for again is most of the memory.
    walk = {key: meta[key] for key in ("index", "cursor", "remainder") if key in meta}
    walk["most"] = int(units[-1]) if len(units) else -1
    written = Written(units, files[1].st_size) if is_open else None
    return Kept(shard, *marks, walk, parts, written), units


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
    assert kept.written is not None, "its assignment is open"
    written = set(kept.written.units.tolist())
    rest = {part.unit: part for part in (Part(*p) for p in kept.adopted.get("remainder", ()))}
    shard = kept.shard
    return Outcome(
        shard.records, shard.data_bytes, kept.written.sidecar_bytes, shard.allocated, 0, 0.0,
        tuple(_remainder(assignment.units, written, rest)),
    )  # fmt: skip


def _remainder(
    units: tuple[UnitSlice, ...], written: set[int], rest: dict[int, Part]
) -> Iterator[UnitSlice]:
    for unit in units:
        if left := rest.get(unit.unit):
            yield dataclasses.replace(unit, ordinal=left.ordinal, offset=left.offset)
        elif unit.unit not in written:
            yield unit
