"""The shard table of a generation as it was in memory. It only makes a start quick."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cachecd.disk.durable import read, replace

_HEADER = struct.Struct("<8sIQ16s")  # magic, version, rows, digest of the rows
_MAGIC = b"CACHECDS"
_VERSION = 1
_Plain = tuple[int, int, int, int, int, int, int]  # a Row
_ROW = np.dtype(
    [
        *(("number", "<u8"), ("version", "<u4"), ("allocated", "<u8"), ("records", "<u4")),
        *(("data_bytes", "<u8"), ("ended", "<u4"), ("digest", "<u8")),
    ]
)


class Row(NamedTuple):
    """One version of a shard. `allocated`: bytes on disk with the sidecar. `ended`: the number of units
    whose last record is in the shard. `digest`: the digest in the sidecar."""

    number: int
    version: int
    allocated: int
    records: int
    data_bytes: int
    ended: int
    digest: int


def write_snapshot(path: Path, rows: Iterable[Row]) -> None:
    """Replaces the snapshot. The daemon does so at exit and every ten minutes. DiskError."""
    packed = np.array(list(rows), _ROW).tobytes()
    header = _HEADER.pack(_MAGIC, _VERSION, len(packed) // _ROW.itemsize, _digest(packed))
    replace(path, header + packed)


def read_snapshot(path: Path) -> Mapping[tuple[int, int], _Plain]:
    """Returns the rows, as plain tuples, by number and version. A snapshot that is missing, damaged or of
    another version has no rows: all sidecars are read then. DiskError."""
    content = read(path) or b""
    if len(content) < _HEADER.size:
        return {}
    magic, version, count, digest = _HEADER.unpack_from(content)
    packed = content[_HEADER.size :]
    known = (magic, version, digest) == (_MAGIC, _VERSION, _digest(packed))
    if not known or len(packed) != count * _ROW.itemsize:
        return {}
    return {row[:2]: row for row in np.frombuffer(packed, _ROW).tolist()}


def _digest(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=16).digest()
