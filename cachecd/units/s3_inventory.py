"""Reads an S3 Inventory: a `manifest.json` that names tables of all objects in a bucket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import unquote_plus

from cachecd.config import SourceConfig
from cachecd.errors import ConfigError
from cachecd.sampler.view import StoreView
from cachecd.stores.answers import without_secrets
from cachecd.units.tables import Bad, TableRow, read_rows

# Opens the folder that contains a URL's object. Returns a view of the folder, and the object's name.
Open = Callable[[str], AbstractContextManager[tuple[StoreView, str]]]

_COLUMNS = (
    *("key", "size", "etag", "e_tag", "islatest", "is_latest"),
    *("isdeletemarker", "is_delete_marker"),
)
_MAX_JSON = 64 << 20  # bytes


def rows_of_inventory(
    source: SourceConfig, view: StoreView, name: str, open_at: Open, bad: Bad
) -> Iterator[TableRow]:
    """Yields a manifest row for the current version of each object below the source's URL. Omits other
    objects. ConfigError if the document is not an inventory of that bucket."""
    listed_bucket, bucket, in_csv, header, parts = _read(view, name)
    address = source.address
    if (address.scheme, address.place) != ("s3", listed_bucket):
        raise ConfigError(
            f"the inventory lists the bucket {listed_bucket}, expected the bucket of "
            f"{without_secrets(source.url)}"
        )
    with open_at(f"s3://{bucket}/") as (tables, _):
        for part in parts:
            with tables.open(part) as file:
                rows = read_rows(
                    file,
                    "part.csv.gz" if in_csv else "part.parquet",
                    _COLUMNS,
                    lambda place, why: bad(f"{part}, {place}", why),  # noqa: B023
                    header if in_csv else None,
                )
                for row in rows:
                    fields = _current(row.fields, address.prefix, in_csv)
                    if fields is not None:
                        yield TableRow(f"{part}, {row.place}", fields)


def _read(view: StoreView, name: str) -> tuple[str, str, bool, list[str], list[str]]:
    """Returns the listed bucket, the bucket of the tables, whether the tables are CSV (else Parquet), their
    columns and their keys."""
    if (size := view.stat(name).size) > _MAX_JSON:
        raise ConfigError(f"the file has {size} bytes, expected at most {_MAX_JSON}")
    try:
        manifest = json.loads(view.get(name))
        kind = manifest["fileFormat"]
        parts = [part["key"] for part in manifest["files"]]
        bucket = manifest["destinationBucket"].rpartition(":")[2]
        header = [column.strip() for column in manifest["fileSchema"].split(",")]
        listed_bucket = manifest["sourceBucket"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"the file is not a manifest of an S3 Inventory: {error!r}") from error
    if kind not in ("CSV", "Parquet"):
        raise ConfigError(f"the inventory's format is {kind}, expected CSV or Parquet")
    return listed_bucket, bucket, kind == "CSV", header, parts


def _current(fields: Mapping[str, Any], prefix: str, is_quoted: bool) -> dict[str, Any] | None:
    """Turns an inventory row into a manifest row. Returns None if the object is not wanted."""
    plain = {name.replace("_", ""): value for name, value in fields.items()}
    if str(plain.get("isdeletemarker")).lower() == "true":
        return None
    if str(plain.get("islatest", "true")).lower() == "false":
        return None
    key = str(plain.get("key", ""))
    key = unquote_plus(key) if is_quoted else key
    if key and (not key.startswith(prefix) or key == prefix):
        return None
    return {**plain, "key": key[len(prefix) :]}
