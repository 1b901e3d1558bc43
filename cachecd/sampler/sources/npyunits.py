"""What the units of a source of arrays are: found by looking at headers and metadata alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from cachecd.config.array import ArrayConfig, ArrayFile
from cachecd.errors import UnitError
from cachecd.model import ObjectInfo, UnitSlice
from cachecd.sampler.sources.aligned import open_aligned, stem_of
from cachecd.sampler.sources.arrays import matches, zarr_root
from cachecd.sampler.sources.content import UnitContent
from cachecd.sampler.sources.windows import Cut
from cachecd.unittext import encoded

if TYPE_CHECKING:
    from cachecd.sampler.fetch import Store

_AT_ONCE = 64  # objects that are looked into at a time, within the store's connections
_ZARR = ("zarr.json", ".zarray")  # what describes an array of version 3, of version 2
_BEHIND = "\U0010ffff"  # no key of a zarr folder comes after it


def units(config: ArrayConfig, store: Store, after: str) -> Iterator[list[ObjectInfo]]:
    """The units of all arrays, those of one object in one page, in the order of their keys; only
    of objects behind the key `after`. Blocks.

    Objects that match no pattern are no part of the source. One that has no windows is a unit by
    itself. SourceUnreachableError.
    """
    objects = _groups(config, store, after) if config.arrays else _arrays(config, store, after)
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
        about = await _described(config, store, about)
        unit = UnitSlice(0, about.key, about.size, about.etag)
        content = UnitContent(unit, _nothing(), store)  # of which only the beginning is looked at
        aligned = await open_aligned(config, about.key, content, about.size)
    except UnitError:
        return about, None
    aligned.close()
    return about, aligned.cut


async def _described(config: ArrayConfig, store: Store, about: ObjectInfo) -> ObjectInfo:
    """The object that describes a zarr array, in place of one of its chunks; any other as it is."""
    root = zarr_root(about.key)
    if root is None:
        return about
    first = next(iter(config.files.values()))
    folder = f"{root}/{first.path.strip('/')}" if first.path else root
    for name in _ZARR:
        try:
            return await store.find(f"{folder}/{name}")
        except UnitError:
            continue
    return about


async def _nothing() -> AsyncIterator[Buffer]:
    nothing: tuple[Buffer, ...] = ()
    for chunk in nothing:
        yield chunk


def _arrays(config: ArrayFile, store: Store, after: str) -> Iterator[ObjectInfo]:
    """One object of each array: its only one, or any of a zarr folder, of which no other is listed
    where the store lists in order."""
    seen = {zarr_root(after)} if after else set()
    going = True
    while going:
        going = False
        for page in store.list(after):
            for about in page:
                root = zarr_root(about.key)
                if root is not None and root in seen:
                    continue
                seen.add(root)
                if matches(config, about.key):
                    yield about
            # A folder of a million chunks is passed over.
            root = zarr_root(page[-1].key) if page else None
            if root is not None and _inside(root, page, after):
                after, going = f"{root}/{_BEHIND}", True
                break


def _inside(root: str, page: list[ObjectInfo], after: str) -> bool:
    """Whether the listing, which is in order, goes on in this folder."""
    keys = [after, *(about.key for about in page)]
    return f"{root}/{_BEHIND}" > after and keys == sorted(keys)


def _groups(config: ArrayConfig, store: Store, after: str) -> Iterator[ObjectInfo]:
    """The first array's object of each stem; where there is none, that of another, of which its
    reading says what is missing. Lists everything first: what belongs together may be far apart."""
    files = list(config.files.values())
    found: dict[str, tuple[int, ObjectInfo]] = {}
    for about in (a for page in store.list() for a in page):
        for number, file in enumerate(files):
            assert file.match is not None
            stem = stem_of(file.match, about.key)
            if stem is not None and found.get(stem, (len(files),))[0] > number:
                found[stem] = number, about
    keys = {encoded(about.key): about for _, about in found.values()}
    behind = encoded(after)
    yield from (keys[key] for key in sorted(keys) if key > behind)
