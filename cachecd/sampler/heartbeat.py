"""The unit and the stream that a sampler works on, and a sign of life, in a file that outlives the
sampler."""

from __future__ import annotations

import mmap
import struct

from cachecd.model import StreamId, etag_hash

_UNIT, _STREAM, _BEATS = struct.Struct("<q"), struct.Struct("<Q"), struct.Struct("<Q")
_STREAM_AT, _BEATS_AT = _UNIT.size, _UNIT.size + _STREAM.size
SIZE = _BEATS_AT + _BEATS.size
_NO_UNIT = _UNIT.pack(-1)


class Heartbeat:
    """Written by the sampler, read by its executor. Neither waits for the other."""

    def __init__(self, shared: bytearray | memoryview | mmap.mmap) -> None:
        self._shared = shared

    def clear(self) -> None:
        """No unit is in work."""
        self._shared[: _UNIT.size] = _NO_UNIT

    def work(self, unit: int) -> None:
        """The sampler processes this unit next."""
        _UNIT.pack_into(self._shared, 0, unit)

    def turn(self, stream: StreamId | None) -> None:
        """The next units belong to this stream; None: to no stream."""
        self.clear()
        _STREAM.pack_into(self._shared, _STREAM_AT, 0 if stream is None else _name(stream))

    def beat(self) -> None:
        """A sign of life: the sampler is not stuck."""
        (beats,) = _BEATS.unpack_from(self._shared, _BEATS_AT)
        _BEATS.pack_into(self._shared, _BEATS_AT, (beats + 1) % (1 << 64))

    @property
    def unit(self) -> int | None:
        """The unit in work, of any stream."""
        (unit,) = _UNIT.unpack_from(self._shared)
        return None if unit < 0 else unit

    def unit_of(self, stream: StreamId) -> int | None:
        """The unit in work, if it belongs to this stream."""
        (name,) = _STREAM.unpack_from(self._shared, _STREAM_AT)
        return self.unit if name == _name(stream) else None

    def read(self) -> bytes:
        """The whole content. It changes while the sampler is not stuck."""
        return bytes(self._shared[:SIZE])


def _name(stream: StreamId) -> int:
    return etag_hash(str(stream))
