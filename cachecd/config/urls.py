"""The types of URLs: of a source, of its store, and of a table."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Strict

from cachecd.config.address import Address
from cachecd.config.values import Text, check_text
from cachecd.quantities import shown

TEXT_TABLES = tuple(
    f".{kind}{packing}" for kind in ("csv", "jsonl", "ndjson") for packing in ("", ".gz", ".zst")
)


def _source_url(value: str) -> str:
    if value:
        scheme, _, rest = check_text(value).partition("://")
        _refuse_password(scheme, rest)
        Address.of(value)
    return value


def _store_address(value: str) -> str:
    scheme, _, rest = value.partition("://")
    _refuse_password(scheme, rest)
    if scheme not in ("http", "https") or not rest.partition("/")[0]:
        raise ValueError(f"found {value!r}, expected a URL such as https://minio.example:9000")
    return value


def _refuse_password(scheme: str, rest: str) -> None:
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at and (":" in user or scheme in ("http", "https")):  # a token may stand alone there
        raise ValueError(
            f"found a password in {scheme}://...@...: remove it. Credentials come from the environment, a "
            "profile or the machine's role"
        )


def check_file_url(value: str) -> str:
    """Returns the URL of a file. ValueError for a URL that is none, or that has a password or a query."""
    scheme, _, rest = check_text(value).partition("://")
    _refuse_password(scheme, rest)
    folder, _, name = value.rpartition("/")
    address = Address.of(f"{folder}/")
    if not name or (address.scheme == "http" and "?" in name) or address.url_of("") == value:
        raise ValueError(
            f"found {value.partition('?')[0]!r}, expected the URL of a file, without a query"
        )
    return value


def _table(value: str) -> str:
    name = value.rpartition("/")[2].lower()
    if not name.endswith((*TEXT_TABLES, ".parquet")) and name != "manifest.json":
        raise ValueError(
            f"found {shown(value)}, expected a file name that ends with .csv, .jsonl (also with .gz or "
            ".zst after it) or .parquet, or the manifest.json of an S3 Inventory"
        )
    Address.of(value.removesuffix(value.rpartition("/")[2]))  # its folder is opened
    return value


SourceUrl = Annotated[str, Strict(), AfterValidator(_source_url)]  # "" for none
StoreUrl = Annotated[Text, AfterValidator(_store_address)]
TableUrl = Annotated[SourceUrl, AfterValidator(_table)]
