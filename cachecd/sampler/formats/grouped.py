"""Pours the results of a transform with a step over groups (transforms/groups.py)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from cachecd.errors import RecordError, UnitError
from cachecd.model import Unit
from cachecd.sampler.draft import Draft, TokenShapes
from cachecd.sampler.formats.content import Content
from cachecd.sampler.formats.records import Format
from cachecd.sampler.meter import METER
from cachecd.sampler.transforms import Item
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
        group = unit.record >> _BITS if unit.offset else 0
        is_empty = True
        async with aclosing(self._groups(unit, content)) as groups:
            async for offset, items in groups:
                is_empty = False
                first, group = group << _BITS, group + 1
                if group > _MOST_GROUPS:
                    raise UnitError(
                        f"it has more than {_MOST_GROUPS} groups of 8 MiB: write smaller objects"
                    )
                if unit.stop and first >= unit.stop:
                    return
                if unit.record >> _BITS >= group:
                    continue
                for ordinal, result in enumerate(await self._results(items), first):
                    if ordinal < unit.record:
                        continue
                    yield ordinal, offset
                    try:
                        if isinstance(result, RecordError):
                            raise result
                        while not shard.add(result, unit, ordinal):
                            yield ordinal, offset
                        if METER.on:
                            METER.enter("decode")
                    except RecordError as error:
                        shard.pass_over(unit, ordinal, error)
                    if ordinal + 1 == unit.stop:
                        return
        if is_empty and not self._format.may_be_empty(unit):
            raise UnitError("it has no records")

    async def _groups(
        self, unit: Unit, content: Content
    ) -> AsyncGenerator[tuple[int, list[Item]], None]:
        """Yields the offset and the records of each group."""
        begin, size = unit.offset, 0
        items: list[Item] = []
        async with aclosing(self._format.read(unit, content)) as records:
            async for offset, record in records:
                begin = begin if items else offset
                items.append(record)
                size += _RECORD + _size(record)
                if size >= GROUP:
                    yield begin, items
                    items, size = [], 0
        if items:
            yield begin, items

    async def _results(self, items: list[Item]) -> list[Item]:
        before = METER.enter("") if METER.on else ""  # the steps measure themselves
        for step in self._steps:
            items = await step.over(items)
        if len(items) > 1 << _BITS:
            raise UnitError(
                f"a group of 8 MiB has {len(items)} results, expected at most {1 << _BITS}"
            )
        if METER.on:
            METER.enter(before)
        return items


def _size(record: Item) -> int:
    """Returns about how many bytes the values take. Follows from the record alone."""
    return 0 if isinstance(record, RecordError) else sum(map(_size_of, record.values()))


def _size_of(value: Any) -> int:
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, (list, tuple)):
        return sum(map(_size_of, value))
    return int(getattr(value, "nbytes", 8))
