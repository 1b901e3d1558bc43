"""Inflates GZIP and ZLIB TFRecord files, which TensorFlow's `compression_type` makes, as streams."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Literal

import cachecd_client._core as _core

Compression = Literal["GZIP", "ZLIB"]

_WINDOW_BITS: dict[Compression, int] = {"GZIP": 31, "ZLIB": 15}  # zlib's codes for the two formats
_READ = (
    64 << 10
)  # compressed bytes at a time; not more, because bytes after a member's end are copied
_STEP = 1 << 20  # inflated bytes at a time
HEAD = 12
"""The first bytes of a file, which show its compression: in a plain file, a record's length and its CRC."""


def compression_of(path: str) -> Compression | None:
    """Returns the compression of the file, or None for a plain TFRecord file or an unknown format. A
    TFRecord file begins with a length and its CRC, so it never seems to be compressed."""
    with open(path, "rb", buffering=0) as file:
        return compression_of_head(file.read(HEAD))


def compression_of_head(head: bytes) -> Compression | None:
    """Like `compression_of`, but takes the first HEAD bytes of the file, or all bytes of a shorter file."""
    if len(head) < 2 or begins_a_record(head):
        return None
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    # RFC 1950: method 8, a window of at most 32 kB, and a check of these two bytes.
    if head[0] & 0x8F == 0x08 and int.from_bytes(head[:2], "big") % 31 == 0:
        return "ZLIB"
    return None


def begins_a_record(head: bytes) -> bool:
    """Whether these HEAD bytes are the length of a record and the length's CRC."""
    if len(head) < HEAD:
        return False
    return _core.masked_crc32c(head[:8]) == int.from_bytes(head[8:HEAD], "little")


class InflateError(ValueError):
    """A compressed stream is damaged or incomplete, or other bytes follow it."""


class Inflater:
    """Inflates a stream piece by piece. Inflated pieces have at most a MiB, and may be empty. A GZIP stream
    may have several members, and zeros after them."""

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        self._stream = self._new()
        self.fed = 0  # compressed bytes that were consumed

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yields the inflated bytes, and consumes the data meanwhile. InflateError."""
        for start in range(0, len(data), _READ):
            piece = bytes(data[start : start + _READ])
            self.fed += len(piece)
            while piece:
                if self._stream.eof:
                    if self._compression == "ZLIB":
                        raise InflateError("bytes follow the end of the ZLIB stream")
                    piece = piece.lstrip(b"\0")
                    if not piece:
                        break
                    self._stream = self._new()
                yield self._inflate(piece)
                stream = self._stream
                piece = stream.unused_data if stream.eof else stream.unconsumed_tail

    def finish(self) -> Iterator[bytes]:
        """Yields the rest of the inflated bytes after the last `feed`. InflateError if the stream is
        incomplete."""
        while more := self._inflate(b""):
            yield more
        if not self._stream.eof:
            raise InflateError(
                f"the {self._compression} stream is incomplete: the file ends after {self.fed} bytes"
            )

    def _new(self) -> zlib._Decompress:
        return zlib.decompressobj(_WINDOW_BITS[self._compression])

    def _inflate(self, piece: bytes) -> bytes:
        try:
            return self._stream.decompress(piece, _STEP)
        except zlib.error as error:
            # Without the prefix of zlib: "Error -3 while decompressing data: ".
            reason = str(error).rpartition("decompressing data: ")[2]
            raise InflateError(f"{self._compression} stream: {reason}") from None
