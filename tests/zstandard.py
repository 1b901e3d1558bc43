"""Zstandard streams as others write them."""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Parameter = zstd.CompressionParameter
# A skippable frame of five bytes. pzstd begins each of its frames with one.
SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"abcde"


def compress(data: bytes, **parameters: int) -> bytes:
    """Returns one frame, with a checksum and without the content's size, as `zstd` writes a pipe."""
    known = {"checksum_flag": 1, "content_size_flag": 0} | parameters
    options: Mapping[Any, int] = {Parameter[name]: value for name, value in known.items()}
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(data) + compressor.flush()


def frames(data: bytes) -> bytes:
    """Returns two frames with different options, and skippable frames around them."""
    half = len(data) // 2
    first = zstd.compress(data[:half])
    return SKIPPABLE + first + compress(b"") + SKIPPABLE + compress(data[half:]) + SKIPPABLE


def wide(window_log: int) -> bytes:
    """Returns a small frame whose header asks for a window of 2**window_log bytes."""
    body = struct.pack("<I", 5 << 3 | 1)[:3] + b"hello"  # the last block, not compressed
    return b"\x28\xb5\x2f\xfd\x80" + bytes([(window_log - 10) << 3]) + struct.pack("<I", 5) + body
