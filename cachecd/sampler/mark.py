"""What a sampler has in hand, in a file that outlives it: a unit, of which stream, and a sign of life."""

from __future__ import annotations

import mmap
import struct

from cachecd.model import StreamId, etag_hash

_UNIT, _STREAM, _BEATS = struct.Struct("<q"), struct.Struct("<Q"), struct.Struct("<Q")
_STREAM_AT, _BEATS_AT = _UNIT.size, _UNIT.size + _STREAM.size
SIZE = _BEATS_AT + _BEATS.size
_NO_UNIT = _UNIT.pack(-1)


class Mark:
    """Written by the sampler, read by its executor, of which neither waits for the other."""

    def __init__(self, shared: bytearray | memoryview | mmap.mmap) -> None:
        self._shared = shared

    def clear(self) -> None:
        """Nothing is in hand."""
        self._shared[: _UNIT.size] = _NO_UNIT

    def work(self, unit: int) -> None:
        """This unit is worked on next."""
        _UNIT.pack_into(self._shared, 0, unit)

    def turn(self, stream: StreamId | None) -> None:
        """The units from now on are of this stream; None: of none."""
        self.clear()
        _STREAM.pack_into(self._shared, _STREAM_AT, 0 if stream is None else _name(stream))

    def beat(self) -> None:
        """The sampler lives, and is not stuck."""
        (beats,) = _BEATS.unpack_from(self._shared, _BEATS_AT)
        _BEATS.pack_into(self._shared, _BEATS_AT, (beats + 1) % (1 << 64))

    @property
    def unit(self) -> int | None:
        """The unit in hand, of whatever it is."""
        (unit,) = _UNIT.unpack_from(self._shared)
        return None if unit < 0 else unit

    def unit_of(self, stream: StreamId) -> int | None:
        """The unit in hand, if it is of this stream."""
        (name,) = _STREAM.unpack_from(self._shared, _STREAM_AT)
        return self.unit if name == _name(stream) else None

    def read(self) -> bytes:
        """All of it: it changes while the sampler is not stuck."""
        return bytes(self._shared[:SIZE])


def _name(stream: StreamId) -> int:
    return etag_hash(str(stream))
