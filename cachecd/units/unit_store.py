"""Opens the store of a source. A table may replace the store's listing or add labels, and patterns may
select objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cachecd.config.keypattern import folder_of, matches, text_in
from cachecd.model import ObjectInfo
from cachecd.stores.backend import LeftOut
from cachecd.stores.fetch import Store, open_store
from cachecd.stores.retry import Retry

if TYPE_CHECKING:
    from cachecd.config import SourceConfig
    from cachecd.stores.backend import Backend


def open_unit_store(
    source: SourceConfig,
    connections: int,
    retry: Retry | None = None,
    left_out: LeftOut | None = None,
) -> Store:
    """Returns the store that `source` names, with at most `connections` concurrent requests. `left_out`
    counts the objects that listings omit.

    Makes no request. For s3://, boto3 signs in (environment, profiles, roles) and lists, and obstore
    reads. obstore serves gs://, az:// and http(s)://. HfFileSystem serves hf://. Files of file:// are
    read directly. fsspec serves every other URL. ConfigError if no installed package can read the URL.
    """
    retry = retry or Retry()
    store = open_store(source, connections, retry)
    label = source.label.manifest if source.label else None
    if not source.url:
        return store

    def open_at(url: str) -> Backend:
        at = source.model_copy(update={"url": url})
        return open_store(at, connections, retry).backend

    units: Any = _Units(source, store, label, open_at, left_out or LeftOut())
    return Store(units, retry, connections)


class _Units:
    """A store that lists units: the rows of a `manifest`, or the objects that `match` and `skip` select.
    With `join`, the name of a unit is the text at `*` in a key that the first pattern matches. The table
    `label` adds labels. Any object can be read by its key. `left_out` decides which objects are omitted,
    except for rows of a manifest.

    `open_at` opens the store at a URL. Only the common folder of the patterns is listed.
    """

    def __init__(
        self,
        source: SourceConfig,
        store: Store,
        label: str | None,
        open_at: Callable[[str], Backend],
        left_out: LeftOut,
    ) -> None:
        backend = store.backend
        self.find, self.read, self.tail = backend.find, backend.read, backend.tail
        self._source, self._store, self._label = source, store, label
        self._open_at = open_at
        self.left_out = left_out
        # A user chose the rows of a manifest, but an S3 Inventory has all objects of a bucket.
        self._is_chosen = not (source.manifest or "manifest.json").lower().endswith("manifest.json")
        self._first = source.listed_pattern
        self._match = (self._first,) if self._first else source.match or ("*",)
        self._skip = source.skip or ()
        # A folder cannot be appended to a chained URL of fsspec, or to a URL with a query.
        is_folder = source.manifest is None and "?" not in (root := source.address.root)
        self._folder = folder_of(self._match) if is_folder and "::" not in root else ""

    @property
    def where(self) -> str:
        return self._store.where

    @cached_property
    def _listed(self) -> Any:
        if not self._folder:
            return self._store.backend
        return self._open_at(self._source.address.url_of(self._folder))

    @property
    def page(self) -> Any:
        """The store's function that lists one page. AttributeError if the store has no such function, or
        if a table replaces the listing."""
        if self._source.manifest or self._label:
            raise AttributeError("page")
        return self._listed.page

    def units(self, page: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """Returns the units among these listed objects."""
        units = []
        for unit in page:
            key = self._folder + unit.key
            picked = self._match == ("*",) or any(matches(pattern, key) for pattern in self._match)
            picked = picked and not any(matches(pattern, key) for pattern in self._skip)
            name = text_in(self._first, key) if self._first else key
            picked = picked and bool(name)
            if not self._is_chosen:
                # An empty object may be a part of a joined record, unless it is a folder's marker.
                is_empty = not unit.size and (not self._first or key.endswith("/"))
                picked = self.left_out.keeps(key, is_empty, picked)
            if picked and name:
                units.append(unit if name == unit.key else replace(unit, key=name))
        return units

    def glimpse(self) -> Sequence[ObjectInfo]:
        if self._source.manifest is not None:
            return next(self._objects(""), [])
        return [replace(unit, key=self._folder + unit.key) for unit in self._listed.glimpse()]

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        self.left_out.begin(start_after)
        listed: Iterator[list[ObjectInfo]] = self._objects(start_after)
        # Keeps empty pages of the store, because many in a row show that the listing does not advance.
        pages = (units for page in listed if (units := self.units(page)) or not page)
        if self._first:
            pages = ([unit for unit in page if unit.key != start_after] for page in pages)
        if self._label is None:
            return pages
        from cachecd.units.label_table import labelled

        return labelled(self._source, self._label, pages, is_whole=not start_after)

    def _objects(self, start_after: str) -> Any:
        """Yields objects, or rows of a manifest, in pages."""
        if self._source.manifest is not None:
            from cachecd.units.unit_table import manifest_pages

            return manifest_pages(self._source, self._source.manifest, self._store, start_after)
        # Starts at the first key that the unit may have, because units may have another order than keys.
        after = self._first.partition("*")[0] + start_after
        return self._listed.list(
            after[len(self._folder) :] if after.startswith(self._folder) else ""
        )
