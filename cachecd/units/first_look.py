"""Checks that each source has a usable unit, before the daemon writes to the disk."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Generator
from dataclasses import dataclass, field

from cachecd.config import Config, DatasetConfig, SourceConfig
from cachecd.errors import ConfigError, SourceError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.formats.files import Files
from cachecd.sampler.formats.npy import Arrays
from cachecd.sampler.formats.records import Format
from cachecd.stores.backend import LeftOut
from cachecd.stores.extras import extra
from cachecd.stores.fetch import Store
from cachecd.units.selection import empty_side, selection_of
from cachecd.units.source_units import Lister
from cachecd.units.unit_store import open_unit_store

_CONNECTIONS = 4
_TRIED_OBJECTS = 10  # until one is a valid Parquet file


def check_sources(config: Config, lister: Lister) -> None:
    """Lists every source until a usable object is found. Called at a start without any cached shard.

    SourceUnreachableError if a source cannot be listed. ConfigError if the listing is empty, if the
    format refuses the keys or sizes of all objects, or if one side of a split is empty.
    """
    for name, dataset in config.datasets.items():
        try:
            look = _look_at(dataset, lister)
            if look.taken and dataset.source.format == "parquet":
                store = open_unit_store(dataset.source, _CONNECTIONS)
                _check_columns(f"{name}.source", dataset.source, store, look.page)
        except SourceError as error:
            raise type(error)(f"datasets.{name}.source: {error}") from error
        if not look.seen:
            message = _nothing_listed(dataset.source, look.left_out)
            raise ConfigError(f"datasets.{name}.source{message}")
        if not look.usable:
            raise ConfigError(
                f"datasets.{name}.source: none of the {look.seen} objects can be used. The first is "
                f"{look.refused}"
            )
        _check_side(name, dataset, look)


def check_side(config: Config, lister: Lister, name: str) -> None:
    """ConfigError if the split leaves a dataset without units, SourceError if its source cannot be
    listed. Called for a new split if other datasets already have shards."""
    dataset = config.datasets[name]
    _check_side(name, dataset, _look_at(dataset, lister))


def _check_side(name: str, dataset: DatasetConfig, look: _Look) -> None:
    if look.usable and not look.taken:
        raise ConfigError(f"datasets.{name}: {empty_side(dataset, look.usable)}")


@dataclass(slots=True)
class _Look:
    """The findings for one source, up to the first page with a usable unit on the dataset's side of its
    split. `taken`: that there is such a unit. `page`: the last page. `refused`: the first object that
    cannot be used, with the reason. `left_out`: the objects that the listing omitted."""

    seen: int = 0
    usable: int = 0
    taken: bool = False
    refused: str = ""
    page: list[ObjectInfo] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)


def _look_at(dataset: DatasetConfig, lister: Lister) -> _Look:
    """Lists a source up to its first usable unit. SourceError, ConfigError."""
    source, look = dataset.source, _Look()
    # Ignores the partition: if this node's part of a side is empty, other nodes have the units.
    takes = selection_of(dataset.model_copy(update={"partition": None}))
    by_unit = dataset.split is not None and dataset.split.by == "unit"
    form = _format_of(source)
    with contextlib.closing(_pages(source, lister, by_unit, look.left_out)) as pages:
        for page in pages:
            look.page, look.seen = page, look.seen + len(page)
            for unit in page:
                if why := _refusal(form, unit):
                    look.refused = look.refused or f"{unit.key!r}: {why}"
                else:
                    look.usable += 1
                    look.taken = look.taken or takes is None or takes(unit)
            if look.taken:
                break
    return look


def _pages(
    source: SourceConfig, lister: Lister, in_objects: bool, left_out: LeftOut
) -> Generator[list[ObjectInfo], None, None]:
    """Yields the objects of the source in pages. Yields its units if a table or the user's class names
    them, or if a split divides objects (`in_objects`)."""
    table = source.reader or source.manifest or (source.label and source.label.manifest)
    if table or in_objects:
        yield from lister.units(source, "", left_out)
    else:
        yield from open_unit_store(source, _CONNECTIONS, left_out=left_out).list()


def _format_of(source: SourceConfig) -> Format:
    """Returns a format that checks keys and sizes. Imports no user code."""
    if source.format == "files":
        return Files(source, source.classes)
    return Arrays(source.array) if source.array is not None else Format()


def _refusal(form: Format, unit: ObjectInfo) -> str | None:
    try:
        return form.refusal(Unit(0, unit.key, unit.size, label=unit.label))
    except SourceUnreachableError:
        return None  # classes get their numbers when the listing ends


def _nothing_listed(source: SourceConfig, left_out: LeftOut) -> str:
    omitted = f" (omitted: {left_out})" if left_out.kinds else ""
    if table := source.manifest or source.reader:
        return f": {table} names no unit, expected at least one"
    if keys := [key for key in ("match", "skip", "join") if getattr(source, key)]:
        return (
            f".{' and '.join(keys)}: no object under {source.url} is selected: check the patterns, which "
            f"match whole keys below the URL{omitted}"
        )
    return f".url: no objects under {source.url}: check the names of its folders{omitted}"


def _check_columns(name: str, source: SourceConfig, store: Store, page: list[ObjectInfo]) -> None:
    """ConfigError if the first Parquet file lacks a requested column, or no installed package can read
    it."""
    if source.columns is None and importlib.util.find_spec("pyarrow"):
        return  # avoids importing pyarrow into the daemon
    with extra("parquet", f"datasets.{name}"):
        from cachecd.sampler.formats.parquet.footer import first_footer
        from cachecd.sampler.formats.parquet.rows import wanted_columns
    if first := first_footer(store, page[:_TRIED_OBJECTS]):
        try:
            wanted_columns(first[1], source.columns)
        except UnitError as error:
            raise ConfigError(f"datasets.{name}.columns: {first[0]!r}: {error}") from error
