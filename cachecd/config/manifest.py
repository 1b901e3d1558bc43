"""Tables that replace a listing or add labels: the key `manifest` of `source` and of `label`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from cachecd.config.address import EVERY_HOST, Address
from cachecd.config.section import conflict
from cachecd.config.values import SourceUrl
from cachecd.quantities import shown

TABLES = (".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".parquet")
INVENTORY = "manifest.json"


def _table(value: str) -> str:
    name = value.rpartition("/")[2].lower()
    if not name.endswith(TABLES) and name != INVENTORY:
        raise ValueError(
            f"found {shown(value)}, expected a table by its name: *.csv, *.jsonl (both also with .gz), "
            "*.parquet, or the manifest.json of an S3 Inventory"
        )
    Address.of(value.removesuffix(value.rpartition("/")[2]))  # its folder is opened
    return value


TableUrl = Annotated[SourceUrl, AfterValidator(_table)]

MANIFEST: Any = Field(
    None,
    description=(
        "URL of a table that replaces the store's listing: *.csv, *.jsonl (both also with .gz), "
        "*.parquet, or the manifest.json of an S3 Inventory. Columns: key (relative to `url`) or "
        "url (absolute); if wanted, offset and length (a part of the object), size, etag and "
        "label."
    ),
    examples=["s3://bucket/lists/train.csv"],
)
LABELS: Any = Field(
    None,
    description=(
        "In place of a pattern: URL of a table with the columns key (or url) and label, in a "
        "format of `source.manifest`. A unit without a row is skipped."
    ),
    examples=["s3://bucket/lists/labels.csv"],
)


def check_manifest(url: str, manifest: str | None) -> None:
    """Checks that a source with a manifest has a URL, and that a source whose URL names no host has a
    manifest."""
    if not url and manifest is not None:
        raise conflict(
            ("manifest",), "found manifest without url, expected url: keys are relative to it"
        )
    if url in EVERY_HOST and manifest is None:
        raise conflict(
            ("url",),
            f"found {url!r} without manifest, expected a name after {url}, or manifest: a table of URLs",
        )
