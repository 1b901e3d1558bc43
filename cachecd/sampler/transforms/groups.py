"""Steps over groups: they take all records of a group together.

A group is a run of records of one unit with about 8 MiB of values. Only the unit decides its groups. So the
results of a group are the same on every machine and after every restart. If one step of a transform is over
groups, the other steps also run group by group.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from cachecd.config import SourceConfig, TransformStep
from cachecd.errors import RecordError, UnitError
from cachecd.sampler.draft import TokenShapes
from cachecd.sampler.meter import METER
from cachecd.sampler.transforms import Item, Record, build, copied, named
from cachecd.sampler.usercode import BlamedError, Guest, imported
from cachecd.stores.extras import extra


class GroupStep(Protocol):
    """A step over groups."""

    def over(self, items: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
        """Yields the results of a group, which depend only on its `items`. Yields a RecordError for each
        record that cannot be used. UnitError: the rest of the unit cannot be used."""

    def tokens_after(self, before: TokenShapes) -> TokenShapes:
        """Returns the features of the results that hold tokens. `before`: the features of the records that
        hold tokens."""


def group_steps(steps: Sequence[TransformStep], source: SourceConfig) -> list[GroupStep]:
    """Returns the steps of a transform that has a step over groups; [] if it has none. ConfigError if a
    function cannot be imported or a tokenizer cannot be used. `source`: reads the tokenizer."""
    if not any(step.is_over_groups for step in steps):
        return []
    return [_open(step, source) if step.is_over_groups else _EachRecord(step) for step in steps]


def _open(step: TransformStep, source: SourceConfig) -> GroupStep:
    arguments: Mapping[str, Any] = step.argument
    match step.name:
        case "tokenize":
            with extra("text", "transform tokenize"):
                from cachecd.sampler.transforms.tokenize import Tokenize
            return Tokenize(source, **arguments)
        case "pack":
            from cachecd.sampler.transforms.pack import Pack

            return Pack(**arguments)
        case "over_groups":
            return _UsersStep(**arguments)
        case other:
            raise NotImplementedError(f"step {other}")


class _EachRecord:
    """A step that takes one record."""

    def __init__(self, step: TransformStep) -> None:
        self._name = step.name
        self._transform = build((step,))

    async def over(self, items: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
        assert self._transform is not None, "it has a step"
        async for item in items:
            if isinstance(item, RecordError):
                yield item
                continue
            try:
                with METER.stage(self._name):
                    results = [copied(result) for result in self._transform(item)]
            except RecordError as error:
                if ":" not in self._name:  # a ready-made step: the bytes are at fault
                    yield named(error, item)
                    continue
                # The windows after this record would be others, but they would have the same names.
                raise UnitError(
                    f"{error}; the rest of the unit is skipped, because a step over groups needs each "
                    "record. Return None for a record that you want to drop"
                ) from error
            await asyncio.sleep(0)  # heartbeats and fetches run; damage of user code shows now
            for result in results:
                yield result

    def tokens_after(self, before: TokenShapes) -> TokenShapes:
        return before


class _UsersStep:
    """The user's function. It takes an iterator of the group's records, and yields records."""

    def __init__(self, function: str) -> None:
        self._name = function
        self._function = imported(function, "transform", "function")
        self._guest = Guest()

    async def over(self, items: AsyncIterator[Item]) -> AsyncGenerator[Item, None]:
        records, errors = list[Record](), list[RecordError]()
        async for item in items:
            if isinstance(item, RecordError):
                errors.append(item)
            else:
                records.append(item)
        with METER.stage(self._name, len(records)):
            try:
                results = self._results(records)
            except BlamedError:
                results = self._results(records)  # like all user code, it gets a second try
        for result in results:
            yield result
        for error in errors:
            yield error

    def _results(self, records: Sequence[Record]) -> list[Record]:
        copies = map(copied, records)  # the function may change them
        return self._guest.call(self._name, partial(self._listed, copies))

    def _listed(self, records: Iterator[Record]) -> list[Record]:
        results = list[Record]()
        for result in self._function(records):
            if not isinstance(result, Mapping):
                raise TypeError(f"it gave {type(result).__name__}, expected an iterable of dicts")
            results.append(copied(result))
        return results

    def tokens_after(self, before: TokenShapes) -> TokenShapes:
        return {}  # it may give windows
