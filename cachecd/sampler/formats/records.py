"""Formats whose records are decoded here, and the records' way through the transform."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from cachecd.errors import RecordError, UnitError
from cachecd.model import SAMPLE, Unit, sample_name
from cachecd.sampler.draft import Draft
from cachecd.sampler.formats.content import Content, whole
from cachecd_client.schema import Schema

Record = Mapping[str, Any]
Transform = Callable[[Record], Iterable[Record]]


class Format:
    """How a unit's bytes become records. The base class of formats that read a unit from one end to the
    other."""

    schema: Schema | None = None
    """Of the records as they are; None if only a record can tell, or as long as no unit was looked at."""

    single = False
    """Whether a unit is one record that holds all its bytes: then its size tells whether it fits."""

    def refusal(self, unit: Unit) -> str | None:
        """Returns why a unit cannot be used, judged by its key and size."""
        return None

    def span(self, unit: Unit) -> tuple[int, int] | None:
        """See Source.span."""
        return whole(unit)

    def read(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, Record | RecordError], None]:
        """Yields each record with the offset in the unit at which it begins, from `unit.offset` on; or, of
        a record that cannot be used, the reason. Reading a part with that offset begins with this record.
        Offset 0: unknown. UnitError: the rest of the unit cannot be used."""
        raise NotImplementedError


class Records:
    """A format's records, each sent through the transform if there is one.

    A unit's ordinals count the results of the transform; a record that cannot be used, or of which the
    transform fails, counts as one result. The rest of a unit begins, if possible, at the record that did
    not fit (`offset`). If a shard became full between several results of one record, the
    rest begins at the object's start again, and the first `ordinal` results are passed over.
    """

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
            shard.full = True  # need not be fetched to know that it does not fit
            yield unit.record, unit.offset
        done = unit.record if unit.offset else 0
        excluded = frozenset(unit.excluded)
        if shard.schema is not None and self._transform is None:
            self._format.schema = shard.schema
        async with aclosing(self._format.read(unit, content)) as records:
            async for offset, record in records:
                if shard.schema is None and self._transform is None and self._format.schema:
                    shard.describe(self._format.schema)
                    self._format.schema = shard.schema
                begins_at = done
                for result in self._results(record, excluded):
                    if done >= unit.record:
                        position = done, offset if done == begins_at else 0
                        yield position
                        try:
                            if isinstance(result, RecordError):
                                raise result
                            while result is not None and not shard.add(result, unit, done):
                                yield position
                        except RecordError as error:
                            shard.pass_over(unit, done, named(error, record))
                    done += 1
                    if done == unit.stop:
                        return
                if self._transform is not None:
                    # What the user's code has done to this process shows while its own unit is in hand.
                    await asyncio.sleep(0)
        if not done:
            made = "its transform made no record of it" if self._transform else "it has no records"
            raise UnitError(made)

    def _results(
        self, record: Record | RecordError, excluded: frozenset[str]
    ) -> Iterator[Record | RecordError | None]:
        """Yields the results of a record; None for each result of an excluded sample. The transform gets
        this sample too, because its results take ordinals."""
        is_excluded = bool(excluded) and _name_of(record) in excluded
        try:
            if self._transform is None or isinstance(record, RecordError):
                yield None if is_excluded else record
            else:
                for result in self._transform(record):
                    yield None if is_excluded else result
        except RecordError as error:
            yield None if is_excluded else error


def named(error: RecordError, record: Record | RecordError) -> RecordError:
    """Adds the sample's name to the error, if the record has one."""
    error.sample = error.sample or _name_of(record)
    return error


def _name_of(record: Record | RecordError) -> str:
    return record.sample if isinstance(record, RecordError) else sample_name(record.get(SAMPLE))
