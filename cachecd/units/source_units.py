"""Lists the units of a source: the objects of its store, or parts of these objects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Protocol

from cachecd.config import SourceConfig
from cachecd.enumerated import pages_of
from cachecd.errors import SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.sampler.formats.content import Content
from cachecd.sampler.view import Direct
from cachecd.stores.backend import PAGE, LeftOut
from cachecd.stores.extras import extra
from cachecd.stores.fetch import Store
from cachecd.stores.key_ranges import Lanes
from cachecd.stores.sweep import ListingSweep

_AT_ONCE = 256  # objects that are examined concurrently; the store limits its connections

# Returns begin and size of each unit in one object.
Look = Callable[[Content, ObjectInfo], Awaitable[Iterable[tuple[int, int]]]]


class Lister(Protocol):
    """Lists sources. SourceError, ConfigError."""

    def units(
        self, source: SourceConfig, after: str, left_out: LeftOut
    ) -> Generator[list[ObjectInfo], None, None]:
        """Yields the units in the store's order: all units, or only units of objects after the key
        `after`. `left_out` counts the omitted objects. Blocks."""

    def sweep(self, source: SourceConfig, lanes: Lanes, left_out: LeftOut) -> ListingSweep | None:
        """Lists all units with concurrent requests. Returns None if the store does not support this."""


def list_units(source: SourceConfig, store: Store, after: str = "") -> Iterator[list[ObjectInfo]]:
    """Yields all units in pages, in the store's order. `after`: only units of objects after this key.
    Blocks.

    All units of an object are in one page. If the parts of an object cannot be listed, the object is one
    unit, and reading it reports the reason. SourceUnreachableError: the message says what to do.
    """
    if source.lists_objects:
        return store.list(after)
    match source.format:
        case "npy":
            from cachecd.sampler.formats import npy

            assert source.array is not None, "the configuration requires it"
            objects = npy.first_arrays(source.array, store, after)
            return _parts_of(objects, partial(npy.units_in, source.array), store)
        case "parquet":
            with extra("parquet", "format parquet"):
                from cachecd.sampler.formats.parquet import footer

            objects = chain.from_iterable(store.list(after))
            return _parts_of(objects, partial(footer.units_in, asyncio.Lock()), store)
        case "jsonl":
            from cachecd.sampler.formats.jsonl import lines

            return _parts_of(chain.from_iterable(store.list(after)), lines.units_in, store)
        case "python":
            return _named_by_reader(source, store, after)
        case other:
            raise NotImplementedError(f"format {other}")


def _named_by_reader(source: SourceConfig, store: Store, after: str) -> Iterator[list[ObjectInfo]]:
    """Yields the units of a source of format `python`."""
    if source.manifest is not None:
        yield from store.list(after)
        return
    from cachecd.sampler.user_reader import UserReader
    from cachecd.sampler.usercode import BlamedError

    with contextlib.closing(Direct()) as direct:
        try:
            units = UserReader(source).units(direct.view(store))
            yield from store.list(after) if units is None else pages_of(units, after)
        except BlamedError as error:
            raise SourceUnreachableError(str(error)) from error


def _parts_of(
    objects: Iterator[ObjectInfo], look: Look, store: Store
) -> Iterator[list[ObjectInfo]]:
    """Yields the units in the objects, in pages."""

    async def units_of(unit: ObjectInfo) -> list[ObjectInfo]:
        try:
            parts = await look(Content.without_chunks(unit, store), unit)
        except UnitError:
            return [unit]
        return [ObjectInfo(unit.key, size, unit.etag, begin) for begin, size in parts]

    async def units_of_all(batch: list[ObjectInfo]) -> list[list[ObjectInfo]]:
        return await asyncio.gather(*map(units_of, batch))

    with asyncio.Runner() as runner:
        while batch := list(islice(objects, _AT_ONCE)):
            page: list[ObjectInfo] = []
            for units in runner.run(units_of_all(batch)):
                page += units
                if len(page) >= PAGE:
                    yield page
                    page = []
            if page:
                yield page


def needs_a_process(source: SourceConfig) -> bool:
    """Whether listing needs a separate process, because it runs user code, reads a possibly long table,
    or uses a library that decodes or may hang."""
    tables = source.manifest is not None or (source.label is not None and source.label.manifest)
    is_native = source.lists_objects and not (source.url and source.address.scheme == "hf")
    return not is_native or bool(tables)


def sweep_units(source: SourceConfig, store: Store, lanes: Lanes) -> ListingSweep | None:
    """Lists all units with concurrent requests (stores/key_ranges.py). Returns None if objects have several
    units, or if the store does not support concurrent listing."""
    return store.sweep(lanes) if source.lists_objects else None
