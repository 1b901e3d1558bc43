"""The units of a Parquet source: its objects' row groups.

Every object's end is read for that: its last 64 kB, and more if its footer is longer. So to look into
10,000 objects takes 10,000 requests and at most 640 MB, as many at a time as the store may be asked;
what is read is forgotten at once. Of long footers, one is held at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from cachecd.errors import UnitError
from cachecd.model import ObjectInfo
from cachecd.sampler.sources.parquet.footer import TAIL, Footer, read_footer

if TYPE_CHECKING:
    from cachecd.stores.fetch import Store

_AT_A_TIME = 256  # objects of a page


def units(store: Store, after: str) -> Iterator[list[ObjectInfo]]:
    """As sampler.units.list_units has it.

    Left out are objects of which a part of the key begins with "_" or ".", as everywhere with Parquet:
    summaries, markers of success, logs of tables.
    """
    long_ones = asyncio.Lock()
    with asyncio.Runner() as runner:
        for page in store.list(after):
            page = [found for found in page if not _hidden(found.key)]
            for start in range(0, len(page), _AT_A_TIME):
                some = page[start : start + _AT_A_TIME]
                yield runner.run(_look_into(store, some, long_ones))


def first_footer(store: Store, objects: list[ObjectInfo]) -> tuple[str, Footer] | None:
    """Key and footer of the first of these objects that is a Parquet file; None if there is none."""
    with asyncio.Runner() as runner:
        for found in objects:
            if not _hidden(found.key) and found.size:
                try:
                    return found.key, runner.run(_footer(store, found, asyncio.Lock()))
                except UnitError:
                    continue
    return None


def _hidden(key: str) -> bool:
    return any(part.startswith(("_", ".")) for part in key.split("/"))


async def _look_into(
    store: Store, objects: list[ObjectInfo], long_ones: asyncio.Lock
) -> list[ObjectInfo]:
    looks = [_units_of(store, found, long_ones) for found in objects]
    return [unit for units in await asyncio.gather(*looks) for unit in units]


async def _units_of(store: Store, found: ObjectInfo, long_ones: asyncio.Lock) -> list[ObjectInfo]:
    try:
        groups = (await _footer(store, found, long_ones)).groups if found.size else ()
    except UnitError:
        groups = ()
    if not groups:
        return [found]  # whoever reads it says why
    return [ObjectInfo(found.key, g.size, found.etag, g.begin) for g in groups]


async def _footer(store: Store, found: ObjectInfo, long_ones: asyncio.Lock) -> Footer:
    key, size, etag = found.key, found.size, found.etag

    async def read(start: int, stop: int) -> Buffer:
        return await store.get(key, None, etag, start, stop)

    tail = await store.get(key, size, etag, max(0, size - TAIL), size)
    if int.from_bytes(memoryview(tail)[-8:-4], "little") <= TAIL - 8:
        return await read_footer(tail, size, read)
    async with long_ones:
        return await read_footer(tail, size, read)
