"""Which object a cached record came from: a shard's sidecar and the listing tell, beside a daemon or
without one. Changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cachecd.config import EVERY_HOST
from cachecd.errors import DiskError
from cachecd.index import Index
from cachecd.layout import Layout
from cachecd.model import ShardId, UnitSlice
from cachecd_client._core import Sidecar
from cachecd_client.errors import CallerError


@dataclass(frozen=True, slots=True)
class Origin:
    """The record is number `ordinal` of what the transform made of `unit`, of the source at `url`."""

    url: str
    unit: UnitSlice
    ordinal: int
    object_url: str
    """Of the whole object; of a joined unit, the first object."""


def find_origin(layout: Layout, shard: ShardId, record: int) -> Origin:
    """Where record number `record` of a shard came from.

    CallerError if there is no such shard or record, DiskError if what says it cannot be read, or the
    source was listed anew since the shard was made.
    """
    path = layout.shard(shard)
    try:
        sidecar = Sidecar.read(str(layout.sidecar(path)))
    except FileNotFoundError:
        raise CallerError(
            f"{path}: there is no such shard; it was evicted, if it was ever there"
        ) from None
    if not 0 <= record < len(sidecar):
        raise CallerError(f"record {record} of {shard}: it has {len(sidecar)} records, from 0 on")
    listing = json.loads(sidecar.meta).get("index", "")
    index = Index.by_id(layout.index, shard.dataset, str(listing))
    if index is None:
        raise DiskError(
            f"{layout.index} has no listing {listing} of {shard.dataset}, by which {shard} names its "
            "units: the source was configured otherwise since, or it was listed anew after damage, or the "
            "listing is damaged"
        )
    try:
        unit = index.unit(int(sidecar.units[record]))
        names = json.loads(index.source)  # as preflight.listing_of has it
        url, key = names["url"], (names["join"] or "*").replace("*", unit.key)
        whole = key if url in EVERY_HOST else f"{url.rstrip('/')}/{key}"
        return Origin(url, unit, int(sidecar.ordinals[record]), whole)
    finally:
        index.close()
