"""Selects units by `match`, `skip` and `join`, and reads the objects of a joined unit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from typing_extensions import Buffer

from cachecd.config import SourceConfig
from cachecd.config.keypattern import folder_of, matches, text_in
from cachecd.config.objects import Join
from cachecd.errors import UnitError
from cachecd.model import ObjectInfo, Unit
from cachecd.sampler.sources.content import Reader
from cachecd.stores.backend import Backend, GoneError

_Found = TypeVar("_Found")


class PickedBackend:
    """A store that lists units: the objects that `match` and `skip` leave or, for a source with `join`, the
    texts for which its first pattern has an object. It reads any object, by the object's key.

    `open_at` opens the store at a URL; only the folder that the patterns have in common is listed.
    """

    def __init__(
        self, backend: Backend, source: SourceConfig, open_at: Callable[[str], Backend]
    ) -> None:
        self.where = backend.where
        self.find, self.read, self.tail = backend.find, backend.read, backend.tail
        self._backend = backend
        self._first = source.listed_pattern
        self._match = (self._first,) if self._first else source.match or ("*",)
        self._skip = source.skip or ()
        # A URL with more behind its path cannot be made longer, and a table is no folder.
        is_folder = source.manifest is None and "::" not in source.url and "?" not in source.url
        self._folder = folder_of(self._match) if is_folder else ""
        self._url = f"{source.url.rstrip('/')}/{self._folder}"
        self._open_at = open_at

    @cached_property
    def _listed(self) -> Any:
        return self._open_at(self._url) if self._folder else self._backend

    @property
    def page(self) -> Any:
        """As the store's, of objects. AttributeError if the store has none."""
        return self._listed.page

    def units(self, page: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """The units among some listed objects."""
        units = []
        for found in page:
            key = self._folder + found.key
            picked = any(matches(pattern, key) for pattern in self._match)
            picked = picked and not any(matches(pattern, key) for pattern in self._skip)
            name = text_in(self._first, key) if self._first else key
            if picked and name:
                units.append(replace(found, key=name))
        return units

    def glimpse(self) -> Sequence[ObjectInfo]:
        return [replace(found, key=self._folder + found.key) for found in self._listed.glimpse()]

    def list(self, start_after: str = "") -> Iterator[list[ObjectInfo]]:
        # Behind the text's first key or sooner: texts and keys need not be in the same order.
        after = self._first.partition("*")[0] + start_after
        after = after[len(self._folder) :] if after.startswith(self._folder) else ""
        for page in self._listed.list(after):
            units = self.units(page)
            yield [unit for unit in units if unit.key != start_after] if self._first else units


class Joined:
    """The objects of one joined unit, read as one: each begins where the object before it ends.

    The listing has the first object. `read` looks up the other objects before it reads any byte: a unit
    that lacks an object costs no bytes. It calls `longer` with the sum of their sizes, so that memory is
    reserved for them, and adds them to `objects`.
    """

    def __init__(
        self, unit: Unit, join: Join, reader: Reader, longer: Callable[[int], None]
    ) -> None:
        first, *self._others = (pattern.replace("*", unit.key) for pattern in join.values())
        self.objects = [ObjectInfo(first, unit.size, unit.etag)]
        self._reader = reader
        self._longer = longer

    async def read(self, start: int, stop: int) -> Buffer:
        """Bytes [start, stop) of the unit, from 0 on first. UnitError names the object."""
        if start == 0 and self._others:
            others = [await _named(key, self._reader.find(key)) for key in self._others]
            self._others.clear()
            self.objects += others
            self._longer(sum(found.size for found in others))
        parts: list[Buffer] = []
        begin = 0
        for found in self.objects:
            low, high = max(start - begin, 0), min(stop - begin, found.size)
            if low < high:
                read = self._reader.get(found.key, found.size, found.etag, low, high)
                listed = found is self.objects[0]
                parts.append(await (read if listed else _named(found.key, read)))
            begin += found.size
        return parts[0] if len(parts) == 1 else b"".join(parts)


async def _named(key: str, answer: Awaitable[_Found]) -> _Found:
    """An answer of the store; UnitError names the object."""
    try:
        return await answer
    except GoneError as error:
        raise UnitError(f"{key!r} is missing") from error
    except UnitError as error:
        raise UnitError(f"{key!r}: {error}", passing=error.passing) from error
