"""The snapshot: a copy of the shard table of a generation, so that a start need not read all sidecars."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from cachecd.disk.durable import read, replace
from cachecd.errors import DamagedError
from cachecd.model import ShardFacts

_HEADER = struct.Struct("<8sIQ16s")  # magic, version, rows, digest of the rows
_MAGIC = b"CACHECDS"
_VERSION = 3
_ROW = np.dtype(  # the number, and the fields of ShardFacts
    [
        *(("number", "<u8"), ("allocated", "<u8"), ("records", "<u4"), ("data_bytes", "<u8")),
        *(("ended", "<u4"), ("digest", "<u8"), ("version", "<u4"), ("passed", "<u4")),
    ]
)


def write_snapshot(path: Path, shards: Iterable[tuple[int, ShardFacts]]) -> None:
    """Replaces the snapshot. DiskError."""
    packed = np.array([(number, *facts) for number, facts in shards], _ROW).tobytes()
    header = _HEADER.pack(_MAGIC, _VERSION, len(packed) // _ROW.itemsize, _digest(packed))
    replace(path, header + packed)


def read_snapshot(path: Path) -> dict[int, ShardFacts]:
    """Returns the shards by number. Returns no shard if the snapshot is missing, damaged or of another
    version: the start reads all sidecars then. DiskError."""
    try:
        content = read(path) or b""
    except DamagedError:
        return {}
    if len(content) < _HEADER.size:
        return {}
    magic, version, count, digest = _HEADER.unpack_from(content)
    packed = content[_HEADER.size :]
    known = (magic, version, digest) == (_MAGIC, _VERSION, _digest(packed))
    if not known or len(packed) != count * _ROW.itemsize:
        return {}
    rows = np.frombuffer(packed, _ROW).tolist()
    return {row[0]: ShardFacts._make(row[1:]) for row in rows}


def _digest(packed: bytes) -> bytes:
    return hashlib.blake2b(packed, digest_size=16).digest()
