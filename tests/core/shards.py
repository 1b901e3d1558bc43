"""Shards, spoilt and whole, and a reference for the formats that shares no code with the core."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cachecd_client import _core

LONG = "CACHECD_LONG" in os.environ  # more examples of everything

# (name, kind, dtype, shape, raw) of `example`.
FEATURES = [
    ("label", "int64", "int64", (), False),
    ("name", "bytes", "bytes", (), False),
    ("list", "int64", "int64", None, False),
]


def slow_crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, from its polynomial."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def slow_mask(data: bytes) -> bytes:
    crc = slow_crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(value: int) -> bytes:
    """A number on the wire of protocol buffers, a negative one as 64 bits."""
    made = bytearray()
    value &= 2**64 - 1
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def entry(name: str, feature: bytes) -> bytes:
    """A map entry of an Example."""
    return field(1, field(1, name.encode()) + field(2, feature))


def wire(*entries: bytes) -> bytes:
    return field(1, b"".join(entries))


def slow_frame(payload: bytes) -> bytes:
    """One TFRecord frame, from the format's description."""
    length = struct.pack("<Q", len(payload))
    return length + slow_mask(length) + payload + slow_mask(payload)


Unit = tuple[int, bytes, int, bytes]  # number, key, begin, ETag


def slow_digest(units: Sequence[Unit], indices: Sequence[int], ordinals: Sequence[int]) -> int:
    """A sidecar's digest, from docs/formats.md."""
    most = 2**64 - 1

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & most
        x = (x ^ x >> 27) * 0x94D049BB133111EB & most
        return x ^ x >> 31

    hashes = []
    for _, key, begin, etag in units:
        fnv = 0xCBF29CE484222325
        for byte in key + b"\xff" + etag + b"\xff" + struct.pack("<Q", begin):
            fnv = (fnv ^ byte) * 0x100000001B3 & most
        hashes.append(mix(fnv))
    records = zip(indices, ordinals, strict=True)
    return (
        sum(mix(hashes[i] + 0x9E3779B97F4A7C15 * (ordinal + 1) & most) for i, ordinal in records)
        & most
    )


def slow_sidecar(
    meta: bytes,
    data_bytes: int,
    table: Sequence[Unit],
    offsets: Sequence[int],
    indices: Sequence[int],
    ordinals: Sequence[int],
    /,
    **changes: int,
) -> bytes:
    """The bytes of a sidecar, from docs/formats.md. `changes`: header fields that are to be wrong."""
    packed = b"".join(
        struct.pack("<QQII", number, begin, len(key), len(etag)) + key + etag
        for number, key, begin, etag in table
    )
    fields = {
        "version": 2,
        "meta_bytes": len(meta),
        "records": len(offsets),
        "data_bytes": data_bytes,
        "digest": 0 if "digest" in changes else _digest_or_0(table, indices, ordinals),
        "units": len(table),
        "units_bytes": len(packed),
    } | changes
    sections = [
        b"CACHECDX" + struct.pack("<IIQQQII", *fields.values()),
        meta,
        packed,
        struct.pack(f"<{len(offsets)}Q", *offsets),
        struct.pack(f"<{len(indices)}I", *indices),
        struct.pack(f"<{len(ordinals)}I", *ordinals),
    ]
    return b"".join(section + slow_mask(section) for section in sections)


def _digest_or_0(units: Sequence[Unit], indices: Sequence[int], ordinals: Sequence[int]) -> int:
    if any(index >= len(units) for index in indices):
        return 0
    return slow_digest(units, indices, ordinals)


def frames(payloads: Iterable[bytes]) -> bytes:
    """Frames of the core's own making, for tests of something else than framing."""
    made = bytearray()
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        made += length + struct.pack("<I", _core.masked_crc32c(length))
        made += payload + struct.pack("<I", _core.masked_crc32c(payload))
    return bytes(made)


def example(number: int) -> bytes:
    """A record that tells its number in every feature; the list's length differs."""
    return _core.encode_example(
        {"label": number, "name": f"record {number}", "list": [number] * (number % 3)}
    )


def write(path: Path, payloads: Sequence[bytes], meta: str = "{}") -> Path:
    writer = _core.ShardWriter(str(path))
    writer.describe(7, b"key", 0, b"etag")
    for ordinal, payload in enumerate(payloads):
        assert writer.append(payload, unit=7, ordinal=ordinal)
    writer.finish(meta)
    return path


def write_files(
    folder: Path, sizes: Sequence[int], starts: Sequence[int]
) -> list[tuple[str, None]]:
    """Shards of so many examples, each numbered from its start on; as a reader takes them."""
    numbers = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    return [
        (str(write(folder / f"{file:02d}", [example(n) for n in of])), None)
        for file, of in enumerate(numbers)
    ]


def flip(path: Path, offset: int, mask: int = 0x01) -> None:
    """Alters the byte at `offset`, which may count from the end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def spoil(path: Path, records: Iterable[int] | None = None) -> None:
    """Alters a payload byte of each of these records, or of all."""
    offsets = _core.scan(str(path))
    for record in range(len(offsets)) if records is None else records:
        flip(path, int(offsets[record]) + 14)


def reader_of(
    path: Path | str, features: Sequence[Any] = FEATURES, **options: Any
) -> _core.BatchReader:
    return _core.BatchReader([(str(path), None)], features, **options)


def batches(reader: _core.BatchReader) -> list[dict[str, Any]]:
    found = []
    while (batch := reader.next()) is not None:
        found.append(batch)
    return found


def labels(reader: _core.BatchReader) -> list[int]:
    return [int(label) for batch in batches(reader) for label in np.ravel(batch["label"])]
