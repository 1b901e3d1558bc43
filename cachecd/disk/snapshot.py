"""The shard table of a generation as it was in memory. It only makes a start quick: nothing rests on it."""

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
_ROW = np.dtype(
    [
        *(("number", "<u8"), ("version", "<u4"), ("allocated", "<u8"), ("records", "<u4")),
        *(("data_bytes", "<u8"), ("ended", "<u4"), ("digest", "<u8")),
    ]
)


class Row(NamedTuple):
    """One version of a shard. `allocated`: bytes on disk with its sidecar; `ended`: how many units have
    their last record in it; `digest`: its sidecar's."""

    number: int
    version: int
    allocated: int
    records: int
    data_bytes: int
    ended: int
    digest: int


def write_snapshot(path: Path, rows: Iterable[Row]) -> None:
    """At exit, and every ten minutes. DiskError."""
    packed = np.array(list(rows), _ROW).tobytes()
    header = _HEADER.pack(_MAGIC, _VERSION, len(packed) // _ROW.itemsize, _digest(packed))
    replace(path, header + packed)


def read_snapshot(path: Path) -> Mapping[tuple[int, int], tuple[int, ...]]:
    """The rows, as plain tuples, by number and version. None if there is no snapshot, or a damaged one, or
    one of another version: then all sidecars are read. DiskError."""
    content = read(path) or b""
    if len(content) < _HEADER.size:
        return {}
    magic, version, count, digest = _HEADER.unpack_from(content)
    packed = content[_HEADER.size :]
    if (magic, version) != (_MAGIC, _VERSION) or digest != _digest(packed):
        return {}
    if len(packed) != count * _ROW.itemsize:
        return {}
    return {row[:2]: row for row in np.frombuffer(packed, _ROW).tolist()}


def _digest(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=16).digest()
