"""What the units of a source of arrays are: found by looking at headers and metadata alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from cachecd.config.array import ArrayConfig
from cachecd.config.keypattern import text_in
from cachecd.errors import UnitError
from cachecd.model import ObjectInfo, Unit, encoded
from cachecd.sampler.sources.aligned import open_aligned
from cachecd.sampler.sources.arrays import matches
from cachecd.sampler.sources.content import UnitContent
from cachecd.sampler.sources.windows import Cut

if TYPE_CHECKING:
    from cachecd.stores.fetch import Store

_AT_ONCE = 64  # objects that are looked into at a time, within the store's connections


def units(config: ArrayConfig, store: Store, after: str) -> Iterator[list[ObjectInfo]]:
    """The units of all arrays, those of one object in one page, in the order of their keys; only
    of objects behind the key `after`. Blocks.

    Objects that match no pattern are no part of the source. One that has no windows is a unit by
    itself. SourceUnreachableError.
    """
    if config.arrays:
        objects = _groups(config, store, after)
    else:
        objects = (a for page in store.list(after) for a in page if matches(config, a.key))
    with asyncio.Runner() as runner:
        while some := list(islice(objects, _AT_ONCE)):
            for about, cut in runner.run(_look_at(config, store, some)):
                found = [(0, about.size)] if cut is None else cut.units()
                yield [ObjectInfo(about.key, size, about.etag, begin) for begin, size in found]


async def _look_at(
    config: ArrayConfig, store: Store, objects: Iterable[ObjectInfo]
) -> list[tuple[ObjectInfo, Cut | None]]:
    return await asyncio.gather(*(_look_into(config, store, about) for about in objects))


async def _look_into(
    config: ArrayConfig, store: Store, about: ObjectInfo
) -> tuple[ObjectInfo, Cut | None]:
    try:
        unit = Unit(0, about.key, about.size, about.etag)
        content = UnitContent(unit, _nothing(), store)  # of which only the beginning is looked at
        aligned = await open_aligned(config, about.key, content, about.size)
    except UnitError:
        return about, None
    return about, aligned.cut


async def _nothing() -> AsyncIterator[Buffer]:
    nothing: tuple[Buffer, ...] = ()
    for chunk in nothing:
        yield chunk


def _groups(config: ArrayConfig, store: Store, after: str) -> Iterator[ObjectInfo]:
    """The first array's object of each stem; where there is none, that of another, of which its
    reading says what is missing. Lists everything first: what belongs together may be far apart."""
    files = list(config.files.values())
    found: dict[str, tuple[int, ObjectInfo]] = {}
    for about in (a for page in store.list() for a in page):
        for number, file in enumerate(files):
            assert file.match is not None
            stem = text_in(file.match, about.key)
            if stem is not None and found.get(stem, (len(files),))[0] > number:
                found[stem] = number, about
    keys = {encoded(about.key): about for _, about in found.values()}
    behind = encoded(after)
    yield from (keys[key] for key in sorted(keys) if key > behind)
