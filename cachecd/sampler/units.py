"""Lists the units of a source: the objects of its store, or parts of these objects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

from cachecd.errors import UnitError
from cachecd.model import ObjectInfo
from cachecd.sampler.sources.content import Content
from cachecd.stores.backend import PAGE
from cachecd.stores.extras import extra

if TYPE_CHECKING:
    from cachecd.config import SourceConfig
    from cachecd.stores.fetch import Store
    from cachecd.stores.lanes import Lanes
    from cachecd.stores.sweep import Sweep

OBJECTS = {"files", "tfrecord", "webdataset"}  # formats of which an object is a unit
_AT_ONCE = 256  # objects that are looked into at a time, within the store's connections

# The units in one object: begin and size of each.
Look = Callable[[Content, ObjectInfo], Awaitable[Iterable[tuple[int, int]]]]


def list_units(source: SourceConfig, store: Store, after: str = "") -> Iterator[list[ObjectInfo]]:
    """Yields all units in pages, in the store's order, or only units of objects after the key `after`.
    Blocks.

    All units of an object are in one page. An object whose parts cannot be listed is one unit, so that
    reading it gives the reason. SourceUnreachableError: the message says what to do.
    """
    if source.format in OBJECTS:
        return store.list(after)
    match source.format:
        case "npy":
            from cachecd.sampler.sources import npy

            assert source.array is not None, "the configuration requires it"
            objects = npy.first_arrays(source.array, store, after)
            return _looked_into(objects, partial(npy.units_in, source.array), store)
        case "parquet":
            with extra("parquet", "format parquet"):
                from cachecd.sampler.sources.parquet import footer

            objects = chain.from_iterable(store.list(after))
            return _looked_into(objects, partial(footer.units_in, asyncio.Lock()), store)
        case "python":
            from cachecd.sampler.reader import list_reader

            return list_reader(source, store, after)
        case other:
            raise NotImplementedError(f"format {other}")


def _looked_into(
    objects: Iterator[ObjectInfo], look: Look, store: Store
) -> Iterator[list[ObjectInfo]]:
    async def units_of(unit: ObjectInfo) -> list[ObjectInfo]:
        try:
            parts = await look(Content.without_chunks(unit, store), unit)
        except UnitError:
            return [unit]
        return [ObjectInfo(unit.key, size, unit.etag, begin) for begin, size in parts]

    async def units_of_all(batch: list[ObjectInfo]) -> list[list[ObjectInfo]]:
        return await asyncio.gather(*map(units_of, batch))

    page: list[ObjectInfo] = []
    with asyncio.Runner() as runner:
        while batch := list(islice(objects, _AT_ONCE)):
            for units in runner.run(units_of_all(batch)):
                page += units
                if len(page) >= PAGE:
                    yield page
                    page = []
            if page:
                yield page
                page = []


def needs_a_process(source: SourceConfig) -> bool:
    """Whether listing needs a separate process: it runs user code, a library that decodes or that may hang
    with a silent store, or reads a table that may be long."""
    tables = source.manifest is not None or (source.label is not None and source.label.manifest)
    is_native = source.format in OBJECTS and not (source.url and source.address.scheme == "hf")
    return not is_native or bool(tables)


def sweep_units(source: SourceConfig, store: Store, lanes: Lanes) -> Sweep | None:
    """The same by several requests at a time (stores/lanes.py); None if objects have several units, or if
    the store can be listed only by one request after the other."""
    return store.sweep(lanes) if source.format in OBJECTS else None
