"""The base class of formats that decode records, and the transform of these records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import ClassVar

from cachecd.errors import RecordError, UnitError
from cachecd.model import Unit
from cachecd.sampler.draft import Draft, TokenShapes
from cachecd.sampler.formats.content import Content, whole
from cachecd.sampler.meter import METER
from cachecd.sampler.transforms import Record, name_of, named
from cachecd_client.schema import Schema

Transform = Callable[[Record], Iterable[Record]]


class Format:
    """Decodes the bytes of a unit into records. The defaults suit a format that reads units in sequence."""

    schema: Schema | None = None
    """The schema of the decoded records. None: not known yet, or only the records show it."""

    single = False
    """Whether a unit is one record with all bytes of the unit: a unit larger than a shard is refused."""

    def refusal(self, unit: Unit) -> str | None:
        """See PreparedFormat.refusal, without the check of the capacity."""
        return None

    def may_be_empty(self, unit: Unit) -> bool:
        """Whether it is no error that the unit has no records."""
        return False

    def span(self, unit: Unit) -> tuple[int, int] | None:
        """See PreparedFormat.span."""
        return whole(unit)

    def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, Record | RecordError], None]:
        """Yields (offset, record) from `unit.offset` on; RecordError instead of a record that cannot be
        used. Reading a unit with this `offset` begins with this record. Offset 0: unknown. UnitError: the
        rest of the unit cannot be used."""
        raise NotImplementedError


class Records:
    """Pours the records of a format, after the transform if there is one.

    Ordinals count the results of the transform. A record that cannot be used, or whose transform fails,
    counts as one result. The rest of a unit is read from the `offset` of the record that did not fit. The
    rest is read from the unit's start if the offset is unknown, or if the shard became full between two
    results of one record. Then the first `ordinal` results are skipped.
    """

    tokens: ClassVar[TokenShapes] = {}
    held = 0

    def __init__(self, records: Format, transform: Transform | None) -> None:
        self._format = records
        self._transform = transform
        self._sized = records.single and transform is None

    def refusal(self, unit: Unit, capacity: int) -> str | None:
        if self._sized and unit.size > capacity:
            return (
                f"the object has {unit.size} bytes, more than a shard ({capacity}): raise "
                "cache.shard_size"
            )
        return self._format.refusal(unit)

    def span(self, unit: Unit) -> tuple[int, int] | None:
        return self._format.span(unit)

    async def pour(
        self, unit: Unit, content: Content, shard: Draft
    ) -> AsyncGenerator[tuple[int, int], int | None]:
        while self._sized and shard.records and unit.size > shard.room:
            shard.full = True  # the unit's size shows it, without fetching
            yield unit.record, unit.offset
        done, is_empty = unit.record if unit.offset else 0, True
        excluded = frozenset(unit.excluded)
        if shard.schema is not None and self._transform is None:
            self._format.schema = shard.schema
        async with aclosing(self._format.read(unit, content)) as records:
            async for offset, record in records:
                if shard.schema is None and self._transform is None and self._format.schema:
                    shard.describe(self._format.schema)
                    self._format.schema = shard.schema
                begins_at, is_empty = done, False
                if METER.on:
                    METER.passed("decode", 1)
                for result in self._results(record, excluded):
                    if done >= unit.record:
                        position = done, offset if done == begins_at else 0
                        yield position
                        try:
                            if isinstance(result, RecordError):
                                raise result
                            while result is not None and not shard.add(result, unit, done):
                                yield position
                            if METER.on:
                                METER.enter("decode")
                        except RecordError as error:
                            shard.pass_over(unit, done, named(error, record))
                    done += 1
                    if done == unit.stop:
                        return
                if self._transform is not None:
                    # If the user's code has damaged this process, it fails while this unit is in work.
                    if METER.on:
                        await METER.pause()
                    else:
                        await asyncio.sleep(0)
        if not done and not (is_empty and self._format.may_be_empty(unit)):
            raise UnitError(
                "its transform returned no record" if self._transform else "it has no records"
            )

    def _results(
        self, record: Record | RecordError, excluded: frozenset[str]
    ) -> Iterator[Record | RecordError | None]:
        """Yields the results of a record; None for each result of an excluded sample. Excluded samples are
        transformed too, because their results count as ordinals."""
        is_excluded = bool(excluded) and name_of(record) in excluded
        try:
            if self._transform is None or isinstance(record, RecordError):
                yield None if is_excluded else record
            else:
                for result in self._transform(record):
                    yield None if is_excluded else result
        except RecordError as error:
            yield None if is_excluded else error
