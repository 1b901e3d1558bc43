"""What the units of a source are: the objects that its store lists, or what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cachecd.model import ObjectInfo
from cachecd.stores.extras import extra

if TYPE_CHECKING:
    from cachecd.config import SourceConfig
    from cachecd.stores.fetch import Store
    from cachecd.stores.lanes import Lanes
    from cachecd.stores.sweep import Sweep

_OBJECTS = {"files", "tfrecord", "webdataset"}  # formats of which an object is a unit


def list_units(source: SourceConfig, store: Store, after: str = "") -> Iterator[list[ObjectInfo]]:
    """All units in pages, in the store's order, or only those of objects behind the key `after`. Blocks.

    An object that has several units gives them all in one page. One that cannot be looked into is a
    unit by itself, so that whoever reads it says why. SourceUnreachableError says what to do.
    """
    if source.format in _OBJECTS:
        return store.list(after)
    match source.format:
        case "npy":
            from cachecd.sampler.sources import npyunits

            assert source.array is not None, "the configuration requires it"
            return npyunits.units(source.array, store, after)
        case "parquet":
            with extra("parquet", "format parquet"):
                from cachecd.sampler.sources.parquet import listing

            return listing.units(store, after)
        case "python":
            from cachecd.sampler.reader import list_reader

            return list_reader(source, store, after)
        case other:
            raise NotImplementedError(f"format {other}")


def needs_a_process(source: SourceConfig) -> bool:
    """Whether listing takes more than a store's answers: the user's code, a library that decodes or has
    its own way with a silent store, or a table that may be long."""
    tables = source.manifest is not None or (source.label is not None and source.label.manifest)
    ours = source.format in _OBJECTS and not source.url.startswith("hf://")
    return not ours or bool(tables)


def sweep_units(source: SourceConfig, store: Store, lanes: Lanes) -> Sweep | None:
    """The same by several requests at a time, as `lanes` has it; None where units are in objects, and in
    stores that are listed by one request after the other."""
    return store.sweep(lanes) if source.format in _OBJECTS else None
