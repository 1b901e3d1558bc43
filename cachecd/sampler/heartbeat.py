"""A shared file that outlives the sampler: the unit, the stream and the step of user code in work, and a
sign of life."""

from __future__ import annotations

import mmap
import struct

from cachecd.model import StreamId, Unit, encoded, etag_hash

_UNIT, _STREAM, _BEATS = struct.Struct("<q"), struct.Struct("<Q"), struct.Struct("<Q")
_STREAM_AT, _BEATS_AT = _UNIT.size, _UNIT.size + _STREAM.size
_STATE_AT = _BEATS_AT + _BEATS.size
_STEP_AT, _KEY_AT, SIZE = _STATE_AT + 1, _STATE_AT + 128, _STATE_AT + 512
_IDLE, _RUNS, _RAN = 0, 1, 2  # states of the step
_NO_UNIT = _UNIT.pack(-1)


class Heartbeat:
    """The sampler writes it, and the executor reads it. Neither process waits for the other."""

    def __init__(self, shared: bytearray | memoryview | mmap.mmap) -> None:
        self._shared = shared

    def clear(self) -> None:
        """Notes that no unit is in work."""
        self._shared[: _UNIT.size] = _NO_UNIT
        self._shared[_STATE_AT] = _IDLE

    def work(self, unit: Unit) -> None:
        """Notes that the sampler processes this unit next."""
        _UNIT.pack_into(self._shared, 0, unit.number)
        self._shared[_STATE_AT] = _IDLE
        self._write(_KEY_AT, SIZE, encoded(unit.key))

    def enter(self, step: str) -> None:
        """Notes that the sampler runs this step of user code next."""
        self._write(_STEP_AT, _KEY_AT, step.encode())
        self._shared[_STATE_AT] = _RUNS

    def leave(self) -> None:
        """Notes that the step has ended. The step may have damaged the process."""
        self._shared[_STATE_AT] = _RAN

    def turn(self, stream: StreamId | None) -> None:
        """Notes the stream of the next units; None: no stream."""
        self.clear()
        _STREAM.pack_into(self._shared, _STREAM_AT, 0 if stream is None else _name(stream))

    def beat(self) -> None:
        """Gives a sign of life: the event loop of the sampler runs."""
        (beats,) = _BEATS.unpack_from(self._shared, _BEATS_AT)
        _BEATS.pack_into(self._shared, _BEATS_AT, (beats + 1) % (1 << 64))

    @property
    def unit(self) -> int | None:
        """The unit in work, of any stream."""
        (unit,) = _UNIT.unpack_from(self._shared)
        return None if unit < 0 else unit

    @property
    def key(self) -> str:
        """The key of the unit in work, without its end if it is long; "" if no unit is in work."""
        return "" if self.unit is None else self._read(_KEY_AT, SIZE)

    @property
    def step(self) -> str:
        """The end of a message about this sampler. It names the step of user code that runs, or that ran
        for the unit in work. "" if there is no such step."""
        state, step = self._shared[_STATE_AT], self._read(_STEP_AT, _KEY_AT)
        if state == _RUNS:
            return f" while {step} was running"
        return f" after {step} had run" if state == _RAN and self.unit is not None else ""

    def unit_of(self, stream: StreamId) -> int | None:
        """Returns the unit in work, if it belongs to this stream."""
        (name,) = _STREAM.unpack_from(self._shared, _STREAM_AT)
        return self.unit if name == _name(stream) else None

    def read(self) -> bytes:
        """Returns the whole content, which changes as long as the sampler is not stuck."""
        return bytes(self._shared[:SIZE])

    def _write(self, begin: int, end: int, text: bytes) -> None:
        self._shared[begin:end] = text[: end - begin].ljust(end - begin, b"\0")

    def _read(self, begin: int, end: int) -> str:
        return bytes(self._shared[begin:end]).rstrip(b"\0").decode(errors="replace")


def _name(stream: StreamId) -> int:
    return etag_hash(str(stream))
