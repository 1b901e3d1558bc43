"""The configuration of a source of Parquet files."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from cachecd.config.values import Text


def _columns(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError(
            "found no column, expected at least one; remove the key to read all columns"
        )
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ValueError(f"found {name!r} twice, expected each column once")
    return names


Columns = Annotated[tuple[Text, ...], AfterValidator(_columns)]
COLUMNS = (
    "For parquet: the columns to read. Only their bytes are fetched. A field of a struct is named "
    "with dots; a struct's name stands for all its fields. Left out: all columns. Other columns are "
    "another generation."
)
EXAMPLE = ["image", "label", "meta.width"]
