"""Reads sidecars: the position of a shard in its stream, its figures, and its units.

If any part of a sidecar is damaged, the shard is lost (LostError), and its records are fetched again.
"""

from __future__ import annotations

import errno
import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cachecd.disk.filesystem import refusing, regular_size
from cachecd.errors import DamagedError, DiskError, LostError
from cachecd.model import SAMPLE, Cursor, Excluded, Skipped, encoded, sample_name
from cachecd_client import _core
from cachecd_client.errors import CorruptError

LOST = (errno.ENOENT, errno.EIO)
"""The error numbers with which the disk reports a lost file."""

END = 1 << 32
"""A number above every record of a unit."""

Encoded = Mapping[bytes, frozenset[str]]
"""model.Excluded, with keys as sidecars store them."""

_GENERATION = re.compile(r'"generation": ?"([^"]*)"')
_NUMBER = re.compile(r'"number": ?(\d+)')


def as_stored(excluded: Excluded) -> Encoded:
    return {encoded(key): samples for key, samples in excluded.items()}


@dataclass(frozen=True, slots=True)
class SidecarHead:
    """The first part of a sidecar. A start reads only this part.

    `before` and `after`: the cursors of the stream before and after the shard. `ended` and `passed`: see
    ShardFacts. `parts`: see sampler.messages.Open.
    """

    records: int
    data_bytes: int
    digest: int
    before: Cursor | None
    after: Cursor | None
    ended: int
    passed: int
    skipped: tuple[Skipped, ...]
    parts: tuple[tuple[int, int, int, int], ...]

    def intervals(self, units: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Returns the records of each unit that the shard covers, as (first, stop), including records
        that could not be used. If stop is END, the shard covers the unit to its end. `units`: the units
        that have records in the shard."""
        before, after = self.before or Cursor(), self.after or Cursor()
        parts = [part for part in self.parts if part[0] < after.place]
        firsts = {lane.unit: lane.record for lane in before.lanes}
        firsts |= {unit: record for _, unit, record, _ in parts}
        stops = {unit: stop for _, unit, _, stop in parts if stop}
        stops |= {lane.unit: lane.record for lane in after.lanes}
        stops |= {skip.unit: skip.record for skip in self.skipped}
        covered = {
            unit: (firsts.get(unit, 0), stops.get(unit, END)) for unit in {*units, *firsts, *stops}
        }
        return {unit: part for unit, part in covered.items() if part[0] < part[1]}


def read_head(path: Path) -> SidecarHead:
    """Reads only the header and the meta text of a sidecar. LostError: the sidecar is damaged or missing,
    or belongs to another shard. DiskError: the disk refuses to read it."""
    with _lost(path):
        text, records, data_bytes, digest, _ = _core.read_sidecar_head(str(path))
        _refuse_other(path, text)
        return _head(text, records, data_bytes, digest)


def read_whole(path: Path) -> tuple[SidecarHead, _core.Sidecar]:
    """Reads a sidecar once. Returns the results of `read_head` and of `read_sidecar`, or raises their
    errors."""
    sidecar = read_sidecar(path)
    with _lost(path):
        return _head(sidecar.meta, len(sidecar), sidecar.data_bytes, sidecar.digest), sidecar


def _head(text: str, records: int, data_bytes: int, digest: int) -> SidecarHead:
    meta = json.loads(text)
    packed = (meta.get(name) for name in ("before", "after"))
    before, after = (None if text is None else Cursor.unpack(text) for text in packed)
    skipped = tuple(Skipped(*row) for row in meta.get("skipped", ()))
    parts = tuple(map(tuple, meta.get("parts", ())))
    counts = meta.get("ended", 0), meta.get("passed", 0)
    return SidecarHead(records, data_bytes, digest, before, after, *counts, skipped, parts)


def read_sidecar(path: Path) -> _core.Sidecar:
    """Reads a whole sidecar, and verifies all of its CRCs. Raises the errors of `read_head`."""
    with _lost(path):
        sidecar = _core.Sidecar.read(str(path))
        _refuse_other(path, sidecar.meta)
        return sidecar


def _refuse_other(path: Path, meta: str) -> None:
    """ValueError if the meta text names another generation or number than the path. Does not parse the
    text as JSON, because a search reads 100,000 sidecars."""
    expectations = (_GENERATION, path.parents[1].name), (_NUMBER, str(int(path.name[:10])))
    for pattern, expected in expectations:
        named = pattern.search(meta)
        if named is not None and named[1] != expected:
            raise ValueError(f"it is the sidecar of shard {named[1]}, expected {expected}")


def holds(path: Path, excluded: Encoded) -> bool:
    """Returns whether a shard has an excluded record. Raises the errors of `read_head`. DamagedError: a
    record of an excluded object is damaged."""
    return any(True for _ in excluded_records(path, read_sidecar(path), excluded))


def excluded_records(path: Path, sidecar: _core.Sidecar, excluded: Encoded) -> Iterator[int]:
    """Yields the index of each excluded record of a shard. `path`: the path of its sidecar. Records are
    read only if single samples of their object are excluded. DiskError; DamagedError."""
    units = {n: excluded[key] for n, (_, key, *_) in enumerate(sidecar.table) if key in excluded}
    if units:
        for place in np.flatnonzero(np.isin(sidecar.indices, list(units))).tolist():
            samples = units[int(sidecar.indices[place])]
            if not samples or sample_at(path, int(sidecar.offsets[place])) in samples:
                yield place


def sample_at(path: Path, offset: int) -> str:
    """Returns the name of the sample at an offset of a shard, or "" if the record has no name. `path`:
    the path of the sidecar. DamagedError: the record is damaged, or the disk cannot read it.
    DiskError."""
    shard = path.with_suffix("")
    try:
        with refusing(f"cannot read {shard}"):
            regular_size(shard)
            return sample_of(_core.read_record(str(shard), offset))
    except (CorruptError, ValueError) as error:
        raise DamagedError(f"{shard}: {error}") from error
    except DiskError as error:
        if is_lost(error):
            raise DamagedError(str(error)) from error
        raise


def sample_of(record: bytes) -> str:
    """Returns the name of the sample in a record, or "" if the record has no name. ValueError."""
    _, values = _core.decode_example(record).get(SAMPLE, ("bytes", []))
    return sample_name(next(iter(values), None))


def is_lost(error: DiskError) -> bool:
    """Returns whether an error concerns only this shard: its sidecar is damaged or missing, or the disk
    cannot read a page of it."""
    cause = error.__cause__
    is_unreadable = isinstance(cause, OSError) and cause.errno in LOST
    return isinstance(error, LostError) or is_unreadable


@contextmanager
def _lost(path: Path) -> Iterator[None]:
    """Raises LostError if the sidecar is damaged or missing, and DiskError if the disk fails."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise LostError(f"{path} is not a regular file")
        yield
    except FileNotFoundError as error:
        raise LostError(f"{path} is missing") from error
    except OSError as error:
        raise DiskError(f"cannot read {path}: {error.strerror or error}") from error
    except (CorruptError, ValueError, TypeError, AttributeError) as error:
        with refusing(f"cannot read {path}"):  # the core reports EIO as damage
            path.read_bytes()
        raise LostError(f"{path}: {error}") from error
