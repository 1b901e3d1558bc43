"""A cache directory as a daemon would have left it: many small, real shards, and their catalog.

Every file is what the daemon itself would write: shards by the core's writer, rows and plan by the
catalog, the index from a listing of the real source.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cachecd.catalog import Adopted, Catalog
from cachecd.dataset import DatasetState
from cachecd.index import Index
from cachecd.layout import Layout
from cachecd.ledger import METADATA_SLACK
from cachecd.plan import Plan
from cachecd.preflight import figures, listing_of
from cachecd.recovery import saved_plan
from cachecd.rules import DatasetRules

from cachecd.config import load
from cachecd.model import Shard, ShardId
from cachecd.sampler.opening import open_store
from cachecd_client._core import ShardWriter
from cachecd_client.schema import Feature, Schema

DATASET = "train"
_SHARD_SIZE = 64 << 10
_GAP = 1000  # every so many numbers one shard is missing, so that a set is no single range
_LINKS = 20_000  # to one file of the source; ext4 allows 65,000
_SCHEMA = Schema((Feature("key", "bytes", "bytes", ()), Feature("payload", "bytes", "bytes", ())))


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
    def socket(self) -> Path:
        return self.folder / "run" / "cachecd.sock"

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.socket}"

    def lose_catalog(self) -> None:
        """As if its disk had lost it: the next start has the sidecars alone."""
        for path in self.layout.root.glob("catalog.sqlite*"):
            path.unlink()


def make(folder: Path, shards: int) -> CacheFolder:
    """Fills `folder`, which must exist: `shards` shards of one unit each, of 11 units for 10."""
    made = CacheFolder(folder, shards)
    layout = made.layout
    for path in (layout.root, layout.shards, layout.tmp, layout.leases, layout.index):
        path.mkdir(mode=0o750)
    (layout.shards / DATASET).mkdir()
    made.socket.parent.mkdir(mode=0o750)
    _fill_source(folder / "source", shards + shards // 10)
    _write_config(made, limit=1 << 50)
    config = load(made.config)
    rules = figures(config).datasets[0]
    index = Index.open(layout.index, DATASET, listing_of(config.datasets[DATASET]))
    for page in open_store(config.datasets[DATASET].source, 1).list():
        index.append(page)
    index.finish()
    catalog = Catalog(layout.catalog)
    used, rows = 0, []
    for shard, unit in _write_shards(layout, rules, index, shards):
        rows.append(Adopted(shard, [unit]))
        used += shard.allocated
    catalog.adopt(rows)
    catalog.save_schema(DATASET, rules.generation, _SCHEMA.to_json())
    plan = Plan(DATASET, rules.generation, index, rules.seed, _SHARD_SIZE)
    plan.extend()
    plan.skip_to(shard.id.number, 0)
    catalog.save_progress(saved_plan(DatasetState(rules, plan), index))
    catalog.close()
    index.close()
    # Room for what a daemon writes beside its shards, and for less than one more of them.
    beside = sum(p.stat().st_blocks * 512 for p in layout.root.rglob("*") if p.is_file()) - used
    _write_config(made, limit=used + beside + METADATA_SLACK + (32 << 20))
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
    """So many objects of a hundred bytes; names of few files, as only the names must be many."""
    folder.mkdir()
    for number in range(units):
        path = folder / f"{number:08d}.bin"
        if number % _LINKS == 0:
            first = path
            path.write_bytes(b"x" * 100)
        else:
            os.link(first, path)


def _write_shards(
    layout: Layout, rules: DatasetRules, index: Index, count: int
) -> Iterator[tuple[Shard, int]]:
    record = _SCHEMA.encode({"key": b"key", "payload": b"x" * 100})
    schema = _SCHEMA.to_json()
    numbers = np.arange(1, 2 * count + 2)
    for unit, number in enumerate(numbers[numbers % _GAP != 0][:count].tolist()):
        shard = ShardId(DATASET, number)
        path = layout.shard(shard)
        writer = ShardWriter(str(path))
        assert writer.append(record, unit, 0)
        data, _ = writer.finish(
            json.dumps(
                {
                    "dataset": DATASET,
                    "number": number,
                    "generation": rules.generation,
                    "index": index.id,
                    "cursor": number,
                    "schema": schema,
                    "remainder": [],
                }
            )
        )
        allocated = sum(os.stat(p).st_blocks * 512 for p in (path, layout.sidecar(path)))
        yield Shard(shard, rules.generation, 1, data, allocated), unit
