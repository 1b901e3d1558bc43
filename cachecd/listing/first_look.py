"""Checks each source before anything is made on disk: does it have a usable unit?"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Generator
from dataclasses import dataclass, field

from cachecd.config import Config, DatasetConfig, SourceConfig
from cachecd.errors import ConfigError, SourceError, UnitError
from cachecd.listing.selection import Takes, empty_side, selection_of
from cachecd.listing.source_pages import Lister
from cachecd.model import ObjectInfo
from cachecd.sampler.opening import open_store
from cachecd.sampler.sources.arrays import matches
from cachecd.sampler.sources.files import label_of
from cachecd.stores.extras import extra
from cachecd.stores.fetch import Store

_CONNECTIONS = 4
_LOOKED_INTO = 10  # objects, for one that is what its format says
_NAMED = 5  # classes that a sentence names


def check_sources(config: Config, lister: Lister) -> dict[str, str]:
    """Lists every source until a usable object is found. For a start without any cached shard.

    Returns a warning for each dataset that has objects of classes that are not configured.
    SourceUnreachableError if a source cannot be listed, ConfigError if there is nothing, or if no
    object has a label, or none of a configured class, or none matches the pattern of an array, or if a
    split leaves one of its sides nothing.
    """
    noticed = {}
    for name, dataset in config.datasets.items():
        look = _check_source(name, lister, dataset)
        _check_side(name, dataset, look)
        if look.noticed:
            noticed[name] = look.noticed
    return noticed


def check_side(config: Config, lister: Lister, name: str) -> None:
    """ConfigError if the split leaves a dataset nothing, SourceError if its source cannot be listed. For a
    new split beside other datasets that are cached."""
    dataset = config.datasets[name]
    look = _Look(dataset.source, _side_of(dataset))
    for _ in _looked_at(look, lister, dataset):
        pass
    _check_side(name, dataset, look)


def _check_side(name: str, dataset: DatasetConfig, look: _Look) -> None:
    if look.usable and not look.taken:
        raise ConfigError(f"datasets.{name}: {empty_side(dataset, look.usable)}")


def _side_of(dataset: DatasetConfig) -> Takes | None:
    """Other nodes have the rest of a side: none is empty because of that."""
    return selection_of(dataset.model_copy(update={"partition": None}))


@dataclass(slots=True)
class _Look:
    """What was seen of one source; `taken`: whether something usable is on the dataset's side of its
    split; `others` are the classes that are not configured."""

    source: SourceConfig
    on_side: Takes | None = None
    seen: int = 0
    usable: int = 0
    taken: bool = False
    example: str = ""
    others: dict[str, int] = field(default_factory=dict)

    def at(self, page: list[ObjectInfo]) -> None:
        classes = frozenset(self.source.classes)
        for found in page:
            name = label_of(self.source, found.key, found.label)
            files = self.source.array.files.values() if self.source.array else ()
            foreign = bool(files) and not any(matches(file, found.key) for file in files)
            if foreign or (self.source.label is not None and name is None):
                self.example = found.key
            elif name is not None and classes and name not in classes:
                self.others[name] = self.others.get(name, 0) + 1
            else:
                self.usable += 1
                self.taken = self.taken or self.on_side is None or self.on_side(found)
        self.seen += len(page)

    @property
    def noticed(self) -> str:
        """What is to be said of a source that can be used; mostly nothing."""
        if not self.others:
            return ""
        return (
            f"{sum(self.others.values())} of the first {self.seen} objects are of classes that "
            f"label.classes does not have: {self.named}; they will be skipped"
        )

    @property
    def named(self) -> str:
        """The first of the classes that are not configured."""
        names = [repr(name) for name in self.others]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(names[:_NAMED]) + more


def _pages(
    source: SourceConfig, lister: Lister, in_objects: bool
) -> Generator[list[ObjectInfo], None, None]:
    """Its objects; its units, if a table or the user's class says what these are, or they are asked for."""
    told = source.reader or source.manifest or (source.label and source.label.manifest)
    if told or in_objects:
        yield from lister.units(source)
    else:
        yield from open_store(source, _CONNECTIONS).list()


def _looked_at(
    look: _Look, lister: Lister, dataset: DatasetConfig
) -> Generator[list[ObjectInfo], None, None]:
    """The pages of its source, up to the first with something usable on the dataset's side."""
    by_unit = dataset.split is not None and dataset.split.by == "unit"
    with contextlib.closing(_pages(look.source, lister, by_unit)) as pages:
        for page in pages:
            look.at(page)
            yield page
            if look.taken:
                return


def _check_source(dataset_name: str, lister: Lister, dataset: DatasetConfig) -> _Look:
    name, source = f"{dataset_name}.source", dataset.source
    look = _Look(source, _side_of(dataset))
    try:
        for page in _looked_at(look, lister, dataset):
            if look.taken and source.format == "parquet":
                store = open_store(source, _CONNECTIONS)
                _check_columns(name, source, store, page)
    except SourceError as error:
        raise type(error)(f"datasets.{name}: {error}") from error
    told = source.manifest or source.reader
    if not look.seen and told:
        raise ConfigError(f"datasets.{name}: {told} names no unit, expected at least one")
    if not look.seen and (keys := [k for k in ("match", "skip", "join") if getattr(source, k)]):
        raise ConfigError(
            f"datasets.{name}.{' and '.join(keys)}: selects none of the objects under {source.url}, "
            "expected at least one: patterns are of keys below the URL"
        )
    if not look.seen:
        raise ConfigError(
            f"datasets.{name}.url: no objects under {source.url}; expected at least one: "
            "check the prefix, and that it ends where the keys begin"
        )
    others = sum(look.others.values())
    if not look.usable and source.array is not None:
        patterns = ", ".join(repr(file.match) for file in source.array.files.values())
        raise ConfigError(
            f"datasets.{name}.array: {patterns} matches none of the {look.seen} keys under "
            f"{source.url} (for example {look.example!r})"
        )
    if not look.usable and not others:
        assert source.label is not None
        if source.label.pattern is None:
            raise ConfigError(
                f"datasets.{name}.label: {source.label.manifest or told} has a label for none of "
                f"the {look.seen} units (for example {look.example!r})"
            )
        raise ConfigError(
            f"datasets.{name}.label.pattern: {source.label.pattern!r} matches none of the "
            f"{look.seen} keys under {source.url} (for example {look.example!r})"
        )
    if not look.usable:
        raise ConfigError(
            f"datasets.{name}.label.classes: none of the {look.seen} objects under "
            f"{source.url} is of a class in the list; found {look.named}, expected names such as "
            f"{source.classes[0]!r}"
        )
    return look


def _check_columns(name: str, source: SourceConfig, store: Store, page: list[ObjectInfo]) -> None:
    """ConfigError if the first Parquet file lacks a wanted column, or nothing here can read it."""
    if source.columns is None and importlib.util.find_spec("pyarrow"):
        return  # the daemon itself needs no pyarrow
    with extra("parquet", f"datasets.{name}"):
        from cachecd.sampler.sources.parquet.footer import first_footer
        from cachecd.sampler.sources.parquet.rows import wanted_columns
    found = first_footer(store, page[:_LOOKED_INTO])
    if found is None:
        return
    key, footer = found
    try:
        wanted_columns(footer, source.columns)
    except UnitError as error:
        raise ConfigError(f"datasets.{name}.columns: {key!r}: {error}") from error
