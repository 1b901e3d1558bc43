"""A cache directory as a daemon would have left it: very many small, real shards of real units.

Shards are written by the core's writer, the listing by the room `listing`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachecd.config import SourceConfig, load
from cachecd.config.identity import directory_name, identity_of
from cachecd.disk.generation_file import GenerationFile, write_generation
from cachecd.disk.layout import GenerationLayout, Layout
from cachecd.listing.permutation import BlockOrder
from cachecd.listing.table import Table
from cachecd.listing.table_update import Listing
from cachecd.model import Cursor, ObjectInfo, Shape
from cachecd.sampler.encoding import encode
from cachecd.units.unit_store import open_unit_store
from cachecd_client._core import ShardWriter
from cachecd_client.schema import Feature, Schema

DATASET = "train"
_SHARD_SIZE = 64 << 10
_BEYOND = 32 << 20  # bytes of the limit that nothing fills
_LINKS = 20_000  # to one file of the source; ext4 allows 65,000
_SCHEMA = Schema((Feature("payload", "bytes", "bytes", ()), Feature("key", "bytes", "bytes", ())))


@dataclass(frozen=True)
class CacheFolder:
    """A configuration whose cache is at its limit, and has more to fetch than it can hold."""

    folder: Path
    shards: int

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def layout(self) -> Layout:
        return Layout(self.folder / "cache")

    @property
    def generation(self) -> GenerationLayout:
        name = directory_name(identity_of(load(self.config).datasets[DATASET]))
        return self.layout.generation(DATASET, name)

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.folder / 'run' / 'cachecd.sock'}"


def key(unit: int) -> str:
    return f"{unit:08d}.bin"


def make(folder: Path, shards: int) -> CacheFolder:
    """Fills `folder`, which must exist: `shards` shards of one unit each, of 11 units for 10."""
    made = CacheFolder(folder, shards)
    (folder / "run").mkdir(mode=0o750)
    units = shards + shards // 10
    _fill_source(folder / "source", units)
    _write_config(made, limit=1 << 50)
    generation = made.generation
    generation.shards.mkdir(parents=True)
    made.layout.leases.mkdir()
    ends = _list(generation, folder / "source", units)
    seed = load(made.config).datasets[DATASET].seed
    shape = Shape(streams=8, stripe=32, lanes=1, capacity=_SHARD_SIZE, seed=seed)
    schema = json.dumps(_SCHEMA.to_json())
    identity = identity_of(load(made.config).datasets[DATASET])
    known = GenerationFile(identity, time.time(), seed, _SHARD_SIZE, shape, schema)
    write_generation(generation.identity, known)
    _write_shards(generation, shape, ends, shards)
    used = sum(path.lstat().st_blocks * 512 for path in made.layout.root.rglob("*"))
    _write_config(made, limit=used + _BEYOND)
    return made


def _write_config(made: CacheFolder, limit: int) -> None:
    source = {"url": f"file://{made.folder / 'source'}/", "format": "files"}
    document: dict[str, Any] = {
        "version": 1,
        "cache": {"dir": str(made.layout.root), "limit": limit, "shard_size": _SHARD_SIZE},
        "datasets": {DATASET: {"source": source, "grow": {"first": "1MiB"}}},
        "server": {"endpoint": made.endpoint},
    }
    made.config.write_text(json.dumps(document))


def _fill_source(folder: Path, units: int) -> None:
    """Objects of a hundred bytes: many names of few files."""
    folder.mkdir()
    for unit in range(units):
        path = folder / key(unit)
        if unit % _LINKS == 0:
            first = path
            path.write_bytes(b"x" * 100)
        else:
            os.link(first, path)


async def any_room(size: int, grown: int, must_fit: bool) -> bool:
    """Room for a page of a listing, as of Listing: there is always enough."""
    return True


def _list(generation: GenerationLayout, source: Path, units: int) -> Sequence[int]:
    """Writes the listing; returns the ends of its blocks."""
    etags = _etags(source)

    async def pages() -> AsyncIterator[Sequence[ObjectInfo]]:
        for begin in range(0, units, 1000):
            end = min(begin + 1000, units)
            yield [ObjectInfo(key(unit), 100, etags[unit // _LINKS]) for unit in range(begin, end)]

    with ThreadPoolExecutor(1) as thread:
        table = thread.submit(Table, generation.listing).result()
        asyncio.run(Listing(table, thread, any_room, lambda: 0).read(pages()))
        thread.submit(table.close).result()
        return table.ends


def _etags(source: Path) -> Sequence[str]:
    """The ETag of each file of the source, as the store of `file://` makes it."""
    config = SourceConfig.model_validate({"url": f"file://{source}/", "format": "files"})
    return [unit.etag for page in open_unit_store(config, 1).list() for unit in page][::_LINKS]


def _units(shape: Shape, ends: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(stream, block, unit) in the order of places."""
    begin = 0
    for block, end in enumerate(ends):
        order = BlockOrder(shape.seed, block, ends)
        for g in range(begin, end):
            yield g // shape.stripe % shape.streams, block, order.unit(g)
        begin = end


def _write_shards(
    generation: GenerationLayout, shape: Shape, ends: Sequence[int], count: int
) -> None:
    record = encode(_SCHEMA, {"key": b"key", "payload": b"x" * 100})
    sealed, cursors = [0] * shape.streams, [Cursor()] * shape.streams
    for written, (stream, block, unit) in enumerate(_units(shape, ends)):
        if written == count:
            return
        before = cursors[stream]
        place = before.place + 1 if before.block == block else 1
        cursors[stream] = after = Cursor(0, block, place)
        number = shape.number(stream, sealed[stream])
        sealed[stream] += 1
        writer = ShardWriter(str(generation.shard(number)), _SHARD_SIZE)
        writer.describe(unit, key(unit).encode(), 0, b"etag")
        assert writer.append(record, unit, 0)
        meta = {
            "dataset": DATASET,
            "generation": generation.root.name,
            "stream": stream,
            "number": number,
            "before": before.pack(),
            "after": after.pack(),
            "skipped": [],
            "schema": _SCHEMA.to_json(),
        }
        writer.finish(json.dumps(meta))
