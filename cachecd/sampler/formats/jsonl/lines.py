"""The lines of a unit: a range of a plain object, or a whole compressed object.

Only ``\\n`` ends a line. A line belongs to the range that has its first byte. So the bytes of a range begin
one byte before the range, which shows whether a line begins with the range. The last line may continue
after the range.
"""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import Buffer

from cachecd.errors import RecordError
from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.formats.content import Content

RANGE = 64 << 20  # bytes of a unit; a change makes other units of the same objects
LONGEST = 64 << 20  # bytes of a line
_BOM = b"\xef\xbb\xbf"

# The offset in the unit at which the line begins, and the line without its end.
Line = tuple[int, bytes | RecordError]


async def units_in(content: Content, about: ObjectInfo) -> list[tuple[int, int]]:
    """Returns begin and size of the units of an object, judged by its name and size. Reads nothing."""
    if Unit(0, about.key, about.size).seems_packed:
        return [(about.begin, about.size)]
    end = about.begin + about.size
    return [(at, min(RANGE, end - at)) for at in range(about.begin, end, RANGE)]


class LineSplitter:
    """Splits the bytes of a unit into lines, as they arrive in pieces of any length.

    `start`: the offset of the first byte in the unit. -1: the byte before the unit, so the bytes up to the
    first ``\\n`` belong to a line of the unit before. Lines that begin at byte `end` or later belong to the
    next unit. A line above LONGEST becomes a RecordError, and its bytes are dropped as they arrive. The
    order mark (BOM) at the start of an object is dropped.
    """

    def __init__(self, start: int, end: float) -> None:
        self._start = start  # of the current line
        self._end = end
        self._mark = b"" if start else _BOM
        self._pieces: list[bytes] = []  # of the current line
        self._length = 0

    @property
    def is_done(self) -> bool:
        """Whether all lines of the unit are complete."""
        return self._start >= self._end

    @property
    def is_within_line(self) -> bool:
        """Whether a line of this unit has begun, and its end is needed."""
        return 0 <= self._start < self._end and 0 < self._length <= LONGEST

    def feed(self, chunk: Buffer) -> Iterator[Line]:
        """Yields the lines that end in this piece."""
        data = bytes(chunk)
        at = 0
        while (stop := data.find(b"\n", at)) >= 0:
            line = self._end_line(data[at:stop])
            if line is not None:
                yield line
            if self.is_done:
                return
            at = stop + 1
        self._length += len(data) - at
        if self._start < 0 or self._length > LONGEST:
            self._pieces.clear()
        else:
            self._pieces.append(data[at:])

    def finish(self) -> Line | None:
        """Returns the last line, if no ``\\n`` ends it."""
        return self._end_line(b"") if self._length else None

    def _end_line(self, piece: bytes) -> Line | None:
        """Returns the current line. `piece`: its last piece. None if the line belongs to another unit."""
        start, length = self._start, self._length + len(piece)
        line = b"".join((*self._pieces, piece)) if self._pieces else piece
        self._start, self._length = start + length + 1, 0
        self._pieces.clear()
        if start < 0:
            return None
        if length > LONGEST:
            return start, RecordError(f"the line is longer than {LONGEST} bytes")
        if not start:
            line = line.removeprefix(self._mark)
        return start, line
