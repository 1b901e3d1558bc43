"""Pours the results of a transform with a step over groups (transforms/groups.py)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

from cachecd.errors import RecordError, UnitError
from cachecd.model import Unit
from cachecd.sampler.draft import Draft, TokenShapes
from cachecd.sampler.formats.content import Content
from cachecd.sampler.formats.records import Format
from cachecd.sampler.meter import METER
from cachecd.sampler.transforms import Item, copied
from cachecd.sampler.transforms.groups import GroupStep

# A group ends with the record that brings it to this many bytes of values.
GROUP = 8 << 20
_RECORD = 64  # bytes that each record counts beside its values; bounds the records of a group
# The ordinal of result i of group g is (g << _BITS) + i. Ordinals have 32 bits.
_BITS = 20
_MOST_GROUPS = 1 << (32 - _BITS)


class Grouped:
    """Runs the steps on one group after the other.

    An ordinal shows the group, and the `offset` of a position is where its group begins. So at most one
    group of a unit is prepared again after a restart. If the offset is unknown, the groups before it are
    read again, but the steps are not run for them.
    """

    def __init__(self, records: Format, steps: Sequence[GroupStep]) -> None:
        self._format = records
        self._steps = steps
        self.held = GROUP
        self.tokens: TokenShapes = {}
        for step in steps:
            self.tokens = step.tokens_after(self.tokens)

    def refusal(self, unit: Unit, capacity: int) -> str | None:
        return self._format.refusal(unit)

    def span(self, unit: Unit) -> tuple[int, int] | None:
        return self._format.span(unit)

    async def pour(
        self, unit: Unit, content: Content, shard: Draft
    ) -> AsyncGenerator[tuple[int, int], int | None]:
        if unit.excluded:
            raise UnitError(
                "samples of it are excluded, but a step over groups mixes samples: exclude the whole "
                "object"
            )
        async with aclosing(self._numbered(unit, content)) as results:
            async for ordinal, offset, result in results:
                yield ordinal, offset
                try:
                    if isinstance(result, RecordError):
                        raise result
                    while not shard.add(result, unit, ordinal):
                        yield ordinal, offset
                except RecordError as error:
                    shard.pass_over(unit, ordinal, error)

    async def _numbered(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, int, Item], None]:
        """Yields the ordinal of each result from `unit.record` up to `unit.stop`, the offset of its group,
        and the result."""
        number = unit.record >> _BITS if unit.offset else 0
        is_empty, has_result = True, unit.record > 0
        async with aclosing(self._format.read(unit, content)) as records:
            while (first := await anext(records, None)) is not None:
                is_empty = False
                group, ordinal = _Group(first, records), number << _BITS
                if unit.stop and ordinal >= unit.stop:
                    return
                number += 1
                if number > _MOST_GROUPS:
                    raise UnitError(
                        f"it has more than {_MOST_GROUPS} groups of 8 MiB: write smaller objects"
                    )
                if unit.record >> _BITS < number:
                    async with aclosing(self._results(group)) as results:
                        async for result in results:
                            has_result = True
                            if ordinal >= unit.record:
                                yield ordinal, first[0], result
                            ordinal += 1
                            if ordinal == unit.stop:
                                return
                            if ordinal == number << _BITS:
                                raise UnitError(
                                    f"a group of 8 MiB has more than {1 << _BITS} results"
                                )
                async for _ in group:
                    pass  # a step may leave some records, and the next group begins after them
        if not has_result and not (is_empty and self._format.may_be_empty(unit)):
            raise UnitError("it has no records" if is_empty else "its transform returned no record")

    async def _results(self, group: _Group) -> AsyncGenerator[Item, None]:
        """Yields the results of a group. The steps measure themselves."""
        items: AsyncIterator[Item] = group
        async with AsyncExitStack() as opened:
            for step in self._steps:
                items = await opened.enter_async_context(aclosing(step.over(items)))
            while True:
                before = METER.enter("") if METER.on else ""
                result = await anext(items, None)
                if METER.on:
                    METER.enter(before)
                if result is None:
                    return
                yield result


class _Group(AsyncIterator[Item]):
    """The records of a group. `first`: its first record, with the offset. `records`: those after it."""

    def __init__(self, first: tuple[int, Item], records: AsyncIterator[tuple[int, Item]]) -> None:
        self._next: tuple[int, Item] | None = first
        self._records = records
        self._size = 0

    async def __anext__(self) -> Item:
        following, self._next = self._next, None
        if following is None and self._size < GROUP:
            following = await anext(self._records)
        if following is None:
            raise StopAsyncIteration
        offset, item = following
        self._size += _RECORD + _size(item)
        if isinstance(item, RecordError):
            # The ordinal of a result would not lead to the record.
            item.sample = item.sample or (f"offset {offset}" if offset else "")
            return item
        return copied(item)  # a reader of one's own may yield the same dict again


def _size(record: Item) -> int:
    """Returns the approximate bytes of the values. Depends only on the record."""
    return 0 if isinstance(record, RecordError) else sum(map(_size_of, record.values()))


def _size_of(value: Any) -> int:
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(_size_of, value))
    return int(getattr(value, "nbytes", 8))
