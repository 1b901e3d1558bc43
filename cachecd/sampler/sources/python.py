"""Format `python`: the user's class says what is in a unit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from typing_extensions import Buffer

from cachecd import model
from cachecd.config import SourceConfig
from cachecd.model import ObjectInfo
from cachecd.sampler.reader import BlamedError, Reader, Record, Unit
from cachecd.sampler.sources.content import Content
from cachecd.sampler.sources.lockstep import Lockstep
from cachecd.sampler.usercode import imported
from cachecd.sampler.view import StoreView
from cachecd_client.schema import Schema


class Python:
    """Reads units by one object of the class, made and used in one thread.

    A unit that raises is read once more, from its start; what had come before is passed over. So is it
    where only a part of a unit is wanted.
    """

    schema: Schema | None = None
    ranged = True
    single = False

    def __init__(self, source: SourceConfig) -> None:
        """ConfigError if there is no such class. Imports it."""
        assert source.reader is not None, "the configuration requires a reader"
        imported(source.reader, "reader", "class")  # ahead of the first unit, in the main thread
        self._source = source
        self._steps = Lockstep()
        self._reader: Reader | None = None

    def refusal(self, unit: model.Unit) -> str | None:
        return None

    def span(self, unit: model.Unit) -> None:
        return None

    async def read(
        self, unit: model.Unit, content: Content
    ) -> AsyncGenerator[tuple[int, Record], None]:
        made = 0
        try:
            async with aclosing(self._records(unit, content, 0)) as records:
                async for record in records:
                    made += 1
                    yield 0, record
            return
        except BlamedError as error:
            first = error
        try:
            async with aclosing(self._records(unit, content, made)) as records:
                async for record in records:
                    yield 0, record
        except BlamedError as again:
            raise first from again

    async def _records(
        self, unit: model.Unit, content: Content, passed: int
    ) -> AsyncGenerator[Record, None]:
        """The records from the `passed`th on."""
        steps = self._steps
        store = StoreView(_Reached(content, steps))
        reader = await steps.run(self._made)
        records = await steps.run(lambda: reader.read(Unit.of(unit), store))
        try:
            # One at a time: whoever gave a record may change it in place to make the next.
            while (record := await steps.run(lambda: next(records, None))) is not None:
                if passed:
                    passed -= 1
                else:
                    yield record
        finally:
            await steps.run(records.close)

    def _made(self) -> Reader:
        if self._reader is None:
            self._reader = Reader(self._source)
        return self._reader


class _Reached:
    """Access to the store by the worker's event loop."""

    def __init__(self, content: Content, steps: Lockstep) -> None:
        self._content, self._steps = content, steps

    def list(self) -> Iterator[list[ObjectInfo]]:
        return self._content.list()

    def stat(self, key: str) -> ObjectInfo:
        return self._steps.wait(lambda: self._content.find(key))

    def read(self, key: str, start: int, stop: int, etag: str) -> Buffer:
        return self._steps.wait(lambda: self._content.read(start, stop, key, etag))
