"""S3 Inventory: a `manifest.json` that names tables of all objects of a bucket, as Amazon writes them."""

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

# A view of the folder of a URL, and the name of the URL's object there.
Open = Callable[[str], AbstractContextManager[tuple[StoreView, str]]]

_COLUMNS = (
    "key",
    "size",
    "etag",
    "e_tag",
    "islatest",
    "is_latest",
    "isdeletemarker",
    "is_delete_marker",
)
_MOST_OF_JSON = 64 << 20


def rows_of_inventory(
    source: SourceConfig, view: StoreView, name: str, open_at: Open, bad: Bad
) -> Iterator[TableRow]:
    """Yields a manifest row for the current version of each object below the source's URL; other objects
    are left out. ConfigError if the document is not an inventory of that bucket."""
    inventory = _read(view, name)
    address = source.address
    if (address.scheme, address.place) != ("s3", inventory["of"]):
        raise ConfigError(
            f"an inventory of the bucket {inventory['of']}, expected one of {without_secrets(source.url)}"
        )
    in_csv = inventory["kind"] == "CSV"
    with open_at(f"s3://{inventory['bucket']}/") as (tables, _):
        for part in inventory["parts"]:
            with tables.open(part) as file:
                rows = read_rows(
                    file,
                    "part.csv.gz" if in_csv else "part.parquet",
                    _COLUMNS,
                    lambda place, why: bad(f"{part}, {place}", why),  # noqa: B023
                    inventory["header"] if in_csv else None,
                )
                for row in rows:
                    fields = _current(row.fields, address.prefix, in_csv)
                    if fields is not None:
                        yield TableRow(f"{part}, {row.place}", fields)


def _read(view: StoreView, name: str) -> dict[str, Any]:
    about = view.stat(name)
    if about.size > _MOST_OF_JSON:
        raise ConfigError(f"{about.size} bytes, expected at most {_MOST_OF_JSON}")
    try:
        manifest = json.loads(view.get(name))
        kind = manifest["fileFormat"]
        parts = [part["key"] for part in manifest["files"]]
        bucket = manifest["destinationBucket"].rpartition(":")[2]
        header = [column.strip() for column in manifest["fileSchema"].split(",")]
        of_bucket = manifest["sourceBucket"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"it is not a manifest of an S3 Inventory: {error!r}") from error
    if kind not in ("CSV", "Parquet"):
        raise ConfigError(f"an inventory in {kind}, expected CSV or Parquet")
    return {
        "kind": kind, "parts": parts, "bucket": bucket, "header": header, "of": of_bucket
    }  # fmt: skip


def _current(fields: Mapping[str, Any], below: str, quoted: bool) -> dict[str, Any] | None:
    """Returns an inventory row as a manifest row; None if the object is not wanted."""
    plain = {name.replace("_", ""): value for name, value in fields.items()}
    if str(plain.get("isdeletemarker")).lower() == "true":
        return None
    if str(plain.get("islatest", "true")).lower() == "false":
        return None
    key = str(plain.get("key", ""))
    key = unquote_plus(key) if quoted else key
    if key and (not key.startswith(below) or key == below):
        return None
    return {**plain, "key": key[len(below) :]}
