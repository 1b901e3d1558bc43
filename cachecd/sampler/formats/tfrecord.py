"""Format `tfrecord`: objects that are TFRecord files.

Without a transform, records that fit the schema are copied unchanged, in large pieces that Python does not
parse. With a transform, each record is decoded as an Example. A feature with one value becomes that value
(bytes, int or float). A feature with several values becomes a NumPy array (int64 or float32) or a list of
bytes.

Objects that are compressed as a whole (GZIP, ZLIB or Zstandard) are inflated as they arrive. Offsets in
messages then count inflated bytes.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from typing_extensions import Buffer

from cachecd.errors import RecordError, UnitError
from cachecd.model import Unit
from cachecd.sampler.draft import Draft, TokenShapes
from cachecd.sampler.formats.content import Content, whole
from cachecd.sampler.formats.packed import LARGEST, unpacked
from cachecd.sampler.formats.records import Format
from cachecd_client._core import decode_example, masked_crc32c
from cachecd_client.errors import CorruptRecordError, SchemaError
from cachecd_client.schema import Form, form, infer_forms

_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_AROUND = _HEADER.size + _CRC.size  # bytes of a frame without the payload
# The schema is inferred from at most this many records, and from about this many bytes.
_SAMPLE, _SAMPLE_BYTES = 64, 16 << 20
# A shard is filled with this many runs of records, or with single records if they are longer than a run.
_RUNS = 128


class Verbatim:
    """Copies whole records, after a check of their CRCs."""

    tokens: ClassVar[TokenShapes] = {}
    held = 0

    def refusal(self, unit: Unit, capacity: int) -> str | None:
        return None

    def span(self, unit: Unit) -> tuple[int, int]:
        return whole(unit)

    async def pour(
        self, unit: Unit, content: Content, shard: Draft
    ) -> AsyncGenerator[tuple[int, int], int | None]:
        chunks, packed = await unpacked(unit, content)
        end = None if packed else unit.size
        frames = _Frames(chunks, unit.offset, max(shard.capacity, LARGEST), end)
        ordinal = unit.record
        if ordinal and not unit.offset:  # the offset of this record is unknown
            await frames.skip(ordinal)
        run = max(shard.capacity // _RUNS, 1)
        while True:
            until = yield ordinal, 0 if packed else frames.offset
            stops = [stop for stop in (unit.stop, until) if stop]
            most = min(stops) - ordinal if stops else None
            try:
                records, ended = await self._copy(frames, unit, shard, ordinal, run, most)
            except RecordError as error:
                shard.pass_over(unit, ordinal, error)
                await frames.skip_unread()
                records, ended = 1, False
            ordinal += records
            if ended:
                frames.end()
                if not ordinal:
                    raise UnitError("it has no records")
            if ended or (unit.stop and ordinal == unit.stop):
                return

    async def _copy(
        self, frames: _Frames, unit: Unit, shard: Draft, ordinal: int, run: int, most: int | None
    ) -> tuple[int, bool]:
        """Copies a run of at most `most` records. Returns the number of records, and whether the object has
        no more. RecordError: the first record fits into no shard."""
        if shard.schema is None:
            await _describe(frames, shard)
        if not await frames.reach(run, shard.room):
            # The record cannot fit, so the rest of it is not fetched.
            shard.refuse((frames.next_length() or 0) - _AROUND)
            return 0, False
        if shard.schema is None:
            return 0, True  # the object has no record
        piece = frames.buffer[: max(run, frames.next_length() or 0)]
        if most is not None:
            piece = frames.first(most)[: len(piece)]
        try:
            records, consumed, full = shard.add_frames(piece, unit, ordinal, frames.offset)
        except CorruptRecordError as error:
            raise _corrupt(error.offset, error.why) from error
        frames.drop(consumed)
        if full:
            length = (frames.next_length() or 0) - _AROUND
            if not records or length <= shard.capacity:  # else the next run begins with it
                shard.refuse(length)
            return records, False
        return records, not records or not (frames.buffer or await frames.more())


class Examples(Format):
    """Decodes records one by one."""

    async def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, dict[str, Any] | RecordError], None]:
        chunks, packed = await unpacked(unit, content)
        frames = _Frames(chunks, unit.offset, LARGEST, None if packed else unit.size)
        while True:
            consumed = 0
            for offset, payload in frames.whole():
                record: dict[str, Any] | RecordError
                try:
                    record = _values(payload)
                except (ValueError, SchemaError) as error:
                    record = RecordError(f"not an Example: {error}")
                yield 0 if packed else offset, record
                consumed += len(payload) + _AROUND
            frames.drop(consumed)
            try:
                if not await frames.more():
                    frames.end()
                    return
            except RecordError as error:
                yield 0 if packed else frames.offset, error
                await frames.skip_unread()


async def _describe(frames: _Frames, shard: Draft) -> None:
    """Infers the dataset's schema from the first records, without consuming them. Ignores a record that
    contradicts the records before it."""
    sample: list[bytes] = []
    try:
        while not sample or (len(sample) < _SAMPLE and len(frames.buffer) < _SAMPLE_BYTES):
            if (frames.next_length() or 0) > shard.room or not await frames.more():
                break
            sample = []
            for _, payload in islice(frames.whole(), _SAMPLE):
                sample.append(bytes(payload))
    except UnitError:  # in a later record: copying the records raises it again
        if not sample:
            raise
    forms: list[Form] = []
    fault = ""
    for number, record in enumerate(sample):
        try:
            extended = [*forms, form(f"record {number}", record)]
            infer_forms(extended, shard.features)
            forms = extended
        except ValueError as error:
            fault = fault or str(error)
    if forms:
        shard.describe(infer_forms(forms, shard.features))
    elif sample:
        raise UnitError(f"no schema fits its first {len(sample)} records: {fault}")


def _values(payload: Buffer) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, (kind, values) in decode_example(payload).items():
        if len(values) == 1:
            record[name] = values[0]
        elif kind == "bytes":
            record[name] = values
        else:
            record[name] = np.array(values, np.int64 if kind == "int64" else np.float32)
    return record


def _corrupt(offset: int, why: str) -> UnitError:
    kept = "; the records before it are kept" if offset else ""
    return UnitError(f"corrupt record at byte {offset}: {why}{kept}")


class _Frames:
    """Reads the frames of a TFRecord file as they arrive. `buffer` begins with a frame, at byte `offset`.

    `buffer` is the rest of the current chunk, which begins at `_begin`. If a frame crosses two chunks,
    `buffer` is a copy of the needed part of both. Frames of more than `most` bytes are refused before they
    are fetched. `end`: the length of the file, if known.
    """

    def __init__(
        self, chunks: AsyncIterator[Buffer], offset: int, most: int, end: int | None
    ) -> None:
        self._chunks = chunks
        self._most = most
        self._end = end
        self._chunk = self.buffer = memoryview(b"")
        self._begin = self.offset = offset

    def whole(self) -> Iterator[tuple[int, memoryview]]:
        """Yields (offset, payload) of each whole record in the buffer, after a check of both CRCs.
        UnitError."""
        at = 0
        while len(self.buffer) - at >= _HEADER.size:
            length: int = _HEADER.unpack_from(self.buffer, at)[0]
            self._check_length(at)
            end = at + length + _AROUND
            if end > len(self.buffer):
                return
            payload = self.buffer[at + _HEADER.size : end - _CRC.size]
            if masked_crc32c(payload) != _CRC.unpack_from(self.buffer, end - _CRC.size)[0]:
                raise _corrupt(self.offset + at, "its data's CRC is wrong")
            yield self.offset + at, payload
            at = end

    def first(self, count: int) -> memoryview:
        """Returns the first `count` frames of the buffer, or the whole buffer if it has fewer. No check."""
        end = 0
        for _ in range(count):
            if len(self.buffer) - end < _HEADER.size:
                return self.buffer
            length: int = _HEADER.unpack_from(self.buffer, end)[0]
            end += length + _AROUND
        return self.buffer[:end]

    async def skip(self, count: int) -> None:
        """Skips the first `count` frames. UnitError if one of them is corrupt or missing."""
        left = count
        while left:
            consumed = 0
            for _, payload in islice(self.whole(), left):
                consumed += len(payload) + _AROUND
                left -= 1
            self.drop(consumed)
            if left and not await self.more():
                self.end()
                raise UnitError(f"it has {count - left} records, expected more than {count}")

    def _check_length(self, at: int = 0) -> None:
        if masked_crc32c(self.buffer[at : at + 8]) != _CRC.unpack_from(self.buffer, at + 8)[0]:
            raise _corrupt(self.offset + at, "its length's CRC is wrong")

    async def reach(self, length: int, room: int) -> bool:
        """Loads the first frame, and at least `length` bytes if the object has them. Returns False as soon
        as the header shows that the frame needs more than `room`. UnitError."""
        while True:
            first = self.next_length()
            if first is not None and first > room:
                self._check_length()
                return False
            needed = max(length, first or _HEADER.size)
            if len(self.buffer) >= needed or not await self._extend(needed):
                return True

    async def skip_unread(self) -> None:
        """Skips the first frame without loading it as a whole. UnitError."""
        self._check_length()
        length = self.next_length() or 0
        end = self.offset + length
        if self._end is None and length > self._most:
            raise UnitError(
                f"the record at byte {self.offset} has {length} bytes, expected at most {self._most} in a "
                "compressed file"
            )
        if self._end is not None and end > self._end:
            self.end()
        while self._begin + len(self._chunk) < end:
            if (chunk := await anext(self._chunks, None)) is None:
                self.end()
            self._begin += len(self._chunk)
            self._chunk = memoryview(chunk or b"").cast("B")
        self.offset, self.buffer = end, self._chunk[end - self._begin :]

    async def _extend(self, length: int) -> bool:
        """Adds the next bytes to the buffer, up to `length` bytes. Returns False if the object has none."""
        end = self.offset + len(self.buffer)
        if end == self._begin + len(self._chunk):
            chunk = await anext(self._chunks, None)
            if chunk is None:
                return False
            self._chunk, self._begin = memoryview(chunk).cast("B"), end
        rest = self._chunk[end - self._begin :]
        if self.buffer:
            self.buffer = memoryview(b"".join((self.buffer, rest[: length - len(self.buffer)])))
        else:
            self.buffer = rest
        return True

    def drop(self, length: int) -> None:
        """Drops whole frames."""
        self.offset += length
        if self.offset < self._begin:
            self.buffer = self.buffer[length:]
        else:
            self.buffer = self._chunk[self.offset - self._begin :]

    def next_length(self) -> int | None:
        """Returns the length of the first frame; None if its header is not loaded yet."""
        if len(self.buffer) < _HEADER.size:
            return None
        length: int = _HEADER.unpack_from(self.buffer)[0]
        return length + _AROUND

    async def more(self) -> bool:
        """Loads the next bytes, at least those that complete the first frame. Returns False if the object
        has no more bytes."""
        end = self.offset + len(self.buffer)
        parts = [self.buffer, self._chunk[end - self._begin :]]
        have = len(self.buffer) + len(parts[1])
        wanted = max(self.next_length() or 0, len(self.buffer) + 1)
        if wanted > self._most:
            raise RecordError(f"it has {wanted} bytes, expected at most {self._most}")
        while have < wanted and (chunk := await anext(self._chunks, None)) is not None:
            parts.append(memoryview(chunk).cast("B"))
            have += len(parts[-1])
        if have == len(self.buffer):
            return False
        self._chunk = self.buffer = memoryview(b"".join(parts))
        self._begin = self.offset
        return True

    def end(self) -> None:
        """UnitError if the object ends within a frame."""
        if self.buffer:
            length = self.next_length()
            raise UnitError(
                f"truncated: the record at byte {self.offset} has {len(self.buffer)} bytes"
                + (f" of {length}" if length is not None else "")
                + ("; the records before it are kept" if self.offset else "")
            )
