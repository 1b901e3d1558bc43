"""MDS sets, written from the published layout."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow

from tests import zstandard

PACK: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstandard.zstd.compress,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "br": lambda data: pyarrow.Codec("brotli").compress(data, asbytes=True),
    "snappy": lambda data: pyarrow.Codec("snappy").compress(data, asbytes=True),
}


def sample(sizes: Sequence[int | None], values: Sequence[bytes]) -> bytes:
    """Returns a sample: the lengths of the columns without a fixed size, and then all columns."""
    stated = [len(v) for v, size in zip(values, sizes, strict=True) if size is None]
    return struct.pack(f"<{len(stated)}I", *stated) + b"".join(values)


def shard(samples: Sequence[bytes]) -> bytes:
    """Returns a shard: the number of samples, the offsets, a description, and the samples."""
    description = b'{"format": "mds"}'
    begin = 4 * (len(samples) + 2) + len(description)
    offsets = accumulate(map(len, samples), initial=begin)
    head = struct.pack(f"<{len(samples) + 2}I", len(samples), *offsets)
    return head + description + b"".join(samples)


class MdsSet:
    """A set in a folder. `columns`: name -> (encoding, fixed size or None)."""

    def __init__(
        self,
        folder: Path,
        columns: Mapping[str, tuple[str, int | None]],
        compression: str = "",
        hashes: Sequence[str] = (),
    ) -> None:
        self.folder, self.columns = folder, columns
        self.compression, self.hashes = compression, hashes
        self.entries: list[dict[str, Any]] = []

    def add(self, rows: Sequence[Sequence[bytes]]) -> Path:
        """Adds a shard with these encoded rows. Returns its path."""
        sizes = [size for _, size in self.columns.values()]
        return self.put(shard([sample(sizes, row) for row in rows]), len(rows))

    def put(self, raw: bytes, samples: int) -> Path:
        """Adds a shard with these bytes. Returns its path."""
        name, algorithm = f"shard.{len(self.entries):05}.mds", self.compression.partition(":")[0]
        packed = PACK[algorithm](raw) if algorithm else None
        self.entries.append({
            "version": 2,
            "format": "mds",
            "samples": samples,
            "compression": self.compression or None,
            "column_names": list(self.columns),
            "column_encodings": [encoding for encoding, _ in self.columns.values()],
            "column_sizes": [size for _, size in self.columns.values()],
            "raw_data": self._about(name, raw),
            "zip_data": packed and self._about(f"{name}.{algorithm}", packed),
        })  # fmt: skip
        path = self.folder / (f"{name}.{algorithm}" if algorithm else name)
        path.write_bytes(raw if packed is None else packed)
        self.write_index()
        return path

    def write_index(self) -> None:
        text = json.dumps({"version": 2, "shards": self.entries})
        (self.folder / "index.json").write_text(text)

    def _about(self, name: str, body: bytes) -> dict[str, Any]:
        hashes = {h: hashlib.new(h, body).hexdigest() for h in self.hashes}
        return {"basename": name, "bytes": len(body), "hashes": hashes}
