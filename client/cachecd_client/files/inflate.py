"""Inflates GZIP, ZLIB and Zstandard streams piece by piece. The first bytes show the compression."""

from __future__ import annotations

import contextlib
import importlib
import sys
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

import cachecd_client._core as _core
from cachecd_client.errors import CallerError

Compression = Literal["GZIP", "ZLIB", "ZSTD"]

_WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}  # zlib's codes for the two formats
_FRAME = b"\x28\xb5\x2f\xfd"  # begins a Zstandard frame
_LARGEST_WINDOW = 128 << 20  # bytes that a Zstandard frame may refer back to; held in memory
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
    if head.startswith(_FRAME) or (head[0] >> 4 == 5 and head[1:4] == b"\x2a\x4d\x18"):
        return "ZSTD"  # the second: a skippable frame, with which pzstd begins
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
    """A compressed stream is damaged or incomplete, other bytes follow it, or it needs too much memory or a
    dictionary."""


class Inflater:
    """Inflates a stream piece by piece. Inflated pieces have at most a MiB, and may be empty. A GZIP stream
    may have several members, and zeros after them. A ZSTD stream may have several frames.

    Each checksum in the stream is verified. GZIP and ZLIB always have one; a Zstandard frame may lack it.
    """

    def __init__(self, compression: Compression) -> None:
        """CallerError if the library for ZSTD is missing."""
        self._compression = compression
        self._zstd = _zstd() if compression == "ZSTD" else None
        self._stream: Any = None  # the decompressor of the current member or frame
        self._held = b""  # the beginning of a frame whose header is not complete
        self.fed = 0  # compressed bytes that were consumed

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yields the inflated bytes, and consumes the data meanwhile. InflateError."""
        for start in range(0, len(data), _READ):
            piece = bytes(data[start : start + _READ])
            self.fed += len(piece)
            piece, self._held = self._held + piece, b""
            while piece:
                if self._stream is None or self._stream.eof:
                    piece = self._begin(piece)
                    if not piece:
                        break
                yield from self._inflate(piece)
                piece = self._stream.unused_data

    def finish(self) -> None:
        """InflateError if the stream is incomplete."""
        if self._held or self._stream is None or not self._stream.eof:
            raise InflateError(
                f"the {self._compression} stream is incomplete: the file ends after {self.fed} bytes"
            )

    def read(self, file: BinaryIO) -> Iterator[bytes]:
        """Yields the inflated content of the file, to its end. InflateError."""
        while data := file.read(_STEP):
            yield from self.feed(data)
        self.finish()

    def _begin(self, data: bytes) -> bytes:
        """Begins the next member or frame. Returns its bytes, or b"" if none begins yet."""
        if self._zstd is not None:
            if not _is_admitted(data):
                self._held = data
                return b""
            self._stream = self._zstd.ZstdDecompressor()
            return data
        if self._stream is not None:
            if self._compression == "ZLIB":
                raise InflateError("bytes follow the end of the ZLIB stream")
            data = data.lstrip(b"\0")
        if data:
            self._stream = zlib.decompressobj(_WINDOW_BITS[self._compression])
        return data

    def _inflate(self, data: bytes) -> Iterator[bytes]:
        """Yields the inflated bytes of the current member or frame in `data`."""
        stream = self._stream
        errors = zlib.error if self._zstd is None else self._zstd.ZstdError
        while True:
            try:
                piece = stream.decompress(data, _STEP)
            except errors as error:
                # Without the library's prefix, such as "Error -3 while decompressing data: ".
                reason = str(error).rpartition(" data: ")[2]
                raise InflateError(f"{self._compression} stream: {reason}") from None
            yield piece
            if stream.eof or len(piece) < _STEP:
                return
            data = stream.unconsumed_tail if self._zstd is None else b""  # zstd keeps the rest


def _is_admitted(frame: bytes) -> bool:
    """Returns False if the header of the Zstandard frame is not complete. InflateError if the frame needs a
    larger window or a dictionary.

    libzstd checks the window too, but not if a small frame arrives as a whole. So what is refused would
    depend on how the bytes arrive.
    """
    if not _FRAME.startswith(frame[:4]):
        return True  # a skippable frame, or other bytes, which the decompressor refuses
    if len(frame) < 6:
        return False
    flags = frame[4]  # RFC 8878, 3.1.1.1
    is_single = bool(flags & 0x20)  # a frame of a single segment: its content is its window
    begin = 5 if is_single else 6
    middle = begin + (0, 1, 2, 4)[flags & 3]
    end = middle + (int(is_single), 2, 4, 8)[flags >> 6]
    if len(frame) < end:
        return False
    dictionary = int.from_bytes(frame[begin:middle], "little")
    window = int.from_bytes(frame[middle:end], "little")
    window = window if is_single else (8 + (frame[5] & 7)) << (7 + (frame[5] >> 3))
    if window > _LARGEST_WINDOW:
        raise InflateError(
            f"ZSTD stream: a frame has a window of {window} bytes, expected at most {_LARGEST_WINDOW}: "
            "compress it with a window of 128 MiB or less (zstd --long=27)"
        )
    if dictionary:
        raise InflateError(
            f"ZSTD stream: a frame needs the dictionary {dictionary}: compress it without a dictionary"
        )
    return True


def _zstd() -> Any:
    """Imports the library when the first Zstandard stream is opened: the client does not require it."""
    try:
        return importlib.import_module(
            "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        )
    except ImportError:
        raise CallerError("it is compressed with Zstandard: pip install backports.zstd") from None


def inflated_head(head: bytes, most: int) -> bytes:
    """Returns the first bytes of the content, at most `most`, of an object that begins with `head`; `head`
    itself if the object is not compressed. Ignores damage."""
    compression = compression_of_head(head[:HEAD])
    if compression is None:
        return head
    content = bytearray()
    with contextlib.suppress(InflateError):
        for piece in Inflater(compression).feed(head):
            content += piece
            if len(content) >= most:
                break
    return bytes(content[:most])
