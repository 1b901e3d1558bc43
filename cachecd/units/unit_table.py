"""A manifest: a table that replaces a store's listing.

A row needs only one column: `key`, relative to the source's URL, or `url`, below the source's URL. If the
source's URL is only `http://` or `https://`, `url` may name any host. Optional columns: `offset` and
`length` for a part of the object, `size`, `etag`, `label`. Missing sizes are requested from the store.
The `manifest.json` of an S3 Inventory names tables of a bucket's objects.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from cachecd.config import EVERY_HOST, SourceConfig
from cachecd.config.address import OBJECT_STORES
from cachecd.enumerated import pages_of, unlistable
from cachecd.errors import ConfigError, SourceUnreachableError, UnitError
from cachecd.model import ObjectInfo
from cachecd.sampler.view import Direct, opened_folder
from cachecd.stores import listed_urls
from cachecd.stores.answers import without_secrets
from cachecd.stores.fetch import Store
from cachecd.units.s3_inventory import rows_of_inventory
from cachecd.units.tables import TableRow, read_rows

T = TypeVar("T")

_log = logging.getLogger(__name__)

COLUMNS = ("key", "url", "offset", "length", "size", "etag", "label")
_MAX_LOGGED = 5  # ignored rows that get a log line each
_BATCH = 1000  # rows whose missing sizes are requested together
_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*://")
_NUMBER = re.compile(r"[0-9]{1,19}(\.0+)?")  # pandas writes 3.0 if the column has gaps


class BadRowError(Exception):
    """A row cannot be used; the message gives the reason."""


def manifest_pages(
    source: SourceConfig, url: str, store: Store, after: str
) -> Iterator[list[ObjectInfo]]:
    """Yields the units that the manifest at `url` names, in pages. Requests missing sizes from `store`."""
    table = UnitTable(source, url)
    with contextlib.closing(Direct()) as direct:
        yield from pages_of(_units(source, table, store, direct), after)
    table.end()


def _units(
    source: SourceConfig, table: UnitTable, store: Store, direct: Direct
) -> Iterator[ObjectInfo]:
    rows = table.rows(COLUMNS, partial(_row_unit, source))
    while batch := list(itertools.islice(rows, _BATCH)):
        missing = [row.unit.key for row in batch if row.needs_size]
        found = direct.do(partial(_look_up, store, missing)) if missing else {}
        for row in batch:
            try:
                unit = row.sized(found[row.unit.key]) if row.needs_size else row.unit
            except (UnitError, BadRowError) as error:
                table.bad(row.place, str(error))
            else:
                table.good += 1
                yield unit


async def _look_up(store: Store, keys: Sequence[str]) -> dict[str, ObjectInfo | BaseException]:
    results = await asyncio.gather(*map(store.find, keys), return_exceptions=True)
    for error in results:
        if isinstance(error, BaseException) and not isinstance(error, UnitError):
            raise error
    return dict(zip(keys, results, strict=True))


class UnitTable:
    """The table at `url`. Ignores and logs rows that cannot be used. `good`: the number of other rows; the
    caller counts them."""

    def __init__(self, source: SourceConfig, url: str) -> None:
        self.good = 0
        self._source = source
        self._url = url
        self._ignored = 0
        self._example = ""

    def rows(self, columns: Sequence[str], make: Callable[[TableRow], T]) -> Iterator[T]:
        """Yields the result of `make` for each row. BadRowError: the row is ignored."""
        for row in self._rows(columns):
            try:
                made = make(row)
            except BadRowError as error:
                self.bad(row.place, str(error))
            else:
                yield made

    def bad(self, place: str, why: str) -> None:
        """Logs and counts a row that is ignored."""
        self._ignored += 1
        self._example = self._example or f"{place}: {why}"
        if self._ignored <= _MAX_LOGGED:
            _log.warning("%s, %s: row ignored: %s", without_secrets(self._url), place, why)

    def end(self) -> None:
        """Logs the number of ignored rows. ConfigError if the table has rows and none can be used."""
        url, ignored = without_secrets(self._url), self._ignored
        if ignored and not self.good:
            raise ConfigError(
                f"{url}: none of the {ignored} rows can be used; the first: {self._example}"
            )
        if ignored > _MAX_LOGGED:
            _log.warning("%s: ignored %d of %d rows", url, ignored, ignored + self.good)

    def _rows(self, columns: Sequence[str]) -> Iterator[TableRow]:
        """Yields the rows of the table, or of the tables that an inventory names."""
        try:
            with opened_folder(self._source, self._url) as (view, name):
                if name.lower() == "manifest.json":
                    open_at = partial(opened_folder, self._source)
                    yield from rows_of_inventory(self._source, view, name, open_at, self.bad)
                else:
                    with view.open(name) as file:
                        yield from read_rows(file, name, columns, self.bad)
        except (UnitError, SourceUnreachableError, ConfigError) as error:
            kind = SourceUnreachableError if isinstance(error, UnitError) else type(error)
            raise kind(f"{without_secrets(self._url)}: {error}") from error


@dataclass(frozen=True, slots=True)
class _RowUnit:
    """The unit of a row. `needs_size`: the row does not determine the size of the unit."""

    place: str
    unit: ObjectInfo
    needs_size: bool = False

    def sized(self, result: ObjectInfo | BaseException) -> ObjectInfo:
        """Returns the unit with the size and ETag that the store reported. Raises the store's error."""
        if isinstance(result, BaseException):
            raise result
        unit = self.unit
        size = _size_from(unit.begin, result.size)
        return replace(unit, size=size, etag=unit.etag or result.etag)


def _size_from(offset: int, size: int) -> int:
    """Returns the number of bytes after the offset in an object of `size` bytes. BadRowError unless the
    number is positive."""
    if size < offset or (offset and size == offset):
        raise BadRowError(f"offset is {offset}, but the object has {size} bytes")
    return size - offset


def _row_unit(source: SourceConfig, row: TableRow) -> _RowUnit:
    """Returns the unit that a row names. BadRowError."""
    fields = row.fields
    key = key_of(source, fields)
    offset, length, size = (_number(fields, name) for name in ("offset", "length", "size"))
    etag, label = text_of(fields, "etag") or "", text_of(fields, "label") or ""
    if (offset is not None or length is not None) and source.format in ("parquet", "npy"):
        raise BadRowError(
            f"the row names a part of an object, but format {source.format} reads whole objects"
        )
    begin = offset or 0
    if length is None and size is not None:
        length = _size_from(begin, size)
    elif length is not None and size is not None and begin + length > size:
        raise BadRowError(f"the row ends at byte {begin + length}, but the object has {size} bytes")
    elif length == 0:
        raise BadRowError("length is 0, expected at least 1")
    if source.address.scheme not in OBJECT_STORES:
        etag = ""  # this program computes the ETags of files itself
    elif etag and not etag.endswith('"'):
        etag = f'"{etag}"'  # HTTP headers quote ETags
    unit = ObjectInfo(key, length or 0, etag, begin, label)
    if (why := unlistable(unit)) is not None:
        raise BadRowError(why)
    return _RowUnit(row.place, unit, needs_size=length is None)


def key_of(source: SourceConfig, fields: Mapping[str, Any]) -> str:
    """Returns the key that a row names, relative to the source's URL. The key is a URL if the source's URL
    names no host. BadRowError."""
    key, url = text_of(fields, "key"), text_of(fields, "url")
    if source.url in EVERY_HOST:
        if url is None:
            raise BadRowError("the row has no url")
        if (why := listed_urls.refused(url, listed_urls.schemes_of(source.url))) is not None:
            raise BadRowError(why)
        return url
    address = source.address
    below = without_secrets(address.url_of(""))
    if url is not None and (key := address.key_of(url)) is None:
        raise BadRowError(f"{without_secrets(url)!r} is not below {below}")
    if not key:
        raise BadRowError("the row has neither key nor url")
    if url is None and _ABSOLUTE.match(key):
        raise BadRowError(f"the key {key[:60]!r} is a URL: rename the column to url")
    if address.scheme not in OBJECT_STORES and {"", ".", ".."} & set(key.split("/")):
        raise BadRowError(f"{key[:60]!r} is not a path below {below}")
    return key


def text_of(fields: Mapping[str, Any], name: str) -> str | None:
    """Returns a field of a row, or None if the row lacks the field. BadRowError."""
    value = fields.get(name)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None or isinstance(value, str):
        return value
    if name == "label" and isinstance(value, (int, bool)):
        return str(value)
    raise BadRowError(f"{name} is {value!r}, expected text")


def _number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value.partition(".")[0])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise BadRowError(f"{name} is {value!r}, expected a whole number of at least 0")
