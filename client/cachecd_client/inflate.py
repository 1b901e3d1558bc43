"""GZIP and ZLIB TFRecord files, as TensorFlow's `compression_type` makes them, inflated as streams."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from threading import Event
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cachecd_client import _core
from cachecd_client.errors import CorruptRecordError

Compression = Literal["GZIP", "ZLIB"]

_WINDOW_BITS: dict[Compression, int] = {"GZIP": 31, "ZLIB": 15}  # zlib's names of the two formats
_HEADER = 12  # bytes of a frame's length and the length's CRC
_READ = 64 << 10  # compressed bytes at a time: what a member's end leaves over is copied
_STEP = 1 << 20  # inflated bytes at a time
_RATIO = 1032  # Deflate cannot do better: 258 bytes by two codes of one bit


class Inflated(NamedTuple):
    """What an inflated file turned out to hold."""

    offsets: NDArray[np.uint64]  # of each record's frame
    num_bytes: int


def compression_of(path: str) -> Compression | None:
    """How the file is compressed; None if it is a TFRecord file as it is, or nothing known.

    A TFRecord file begins with a length and its CRC, so none can be mistaken for compressed.
    """
    with open(path, "rb", buffering=0) as file:
        head = file.read(_HEADER)
    if len(head) == _HEADER:
        if _core.masked_crc32c(head[:8]) == int.from_bytes(head[8:], "little"):
            return None
    elif len(head) < 2:
        return None
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    # RFC 1950: method 8, a window of at most 32 kB, and a check of these two bytes.
    if head[0] & 0x8F == 0x08 and int.from_bytes(head[:2], "big") % 31 == 0:
        return "ZLIB"
    return None


def inflate(
    path: str, compression: Compression, write: Callable[[bytes], object], stopped: Event
) -> Inflated:
    """Hands the inflated file to `write`, piece by piece; returns where its records are.

    The stream's own checksums and the lengths of the records are checked on the way, so what is no
    TFRecord file ends at its first wrong length: CorruptRecordError with `path`, the offset in the
    inflated stream of the first record that is not there whole, and why. A GZIP file may have
    several members, and zeros after them. Memory: some MB, and 8 bytes per record.
    CancelledError soon after `stopped` is set.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        scanner = _core.FrameScanner(path, _RATIO * size)
        try:
            for piece in _inflated(file, compression):
                if stopped.is_set():
                    raise CancelledError
                scanner.feed(piece)
                write(piece)
        except (zlib.error, EOFError) as error:
            raise CorruptRecordError(
                path, scanner.offset, f"{compression} stream: {_reason(error)}"
            ) from None
    return Inflated(scanner.finish(), scanner.offset)


def _inflated(file: BinaryIO, compression: Compression) -> Iterator[bytes]:
    stream = zlib.decompressobj(_WINDOW_BITS[compression])
    while piece := file.read(_READ):
        while piece:
            if stream.eof:
                if compression == "ZLIB":
                    raise zlib.error("bytes follow its end")
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                stream = zlib.decompressobj(_WINDOW_BITS[compression])
            yield stream.decompress(piece, _STEP)
            piece = stream.unused_data if stream.eof else stream.unconsumed_tail
    while more := stream.decompress(b"", _STEP):
        yield more
    if not stream.eof:
        raise EOFError(f"cut short: the file ends within it, after {file.tell()} bytes")


def _reason(error: Exception) -> str:
    """Without what Python's zlib puts before: "Error -3 while decompressing data: "."""
    return str(error).rpartition("decompressing data: ")[2]
