"""The schema of a Parquet file's records that are cached without a transform."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cachecd.errors import UnitError
from cachecd.sampler.encoding import stored_feature
from cachecd.sampler.formats.parquet.columns import Column
from cachecd.sampler.formats.parquet.footer import Footer
from cachecd_client.schema import Feature, Schema


def schema_of(footer: Footer, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Schema:
    """Returns the schema of these columns, judged by their types, the footer's statistics and notes and the
    `values` of the first rows. UnitError if a column fits no feature.

    A number or text is ragged if the file has a null in its column. Lists of numbers are an array if all of
    them seem to have one length.
    """
    classes = _classes(footer.metadata.metadata or {})
    features = [
        _feature(footer, column, values[i], classes.get(column.name, ()))
        for i, column in enumerate(columns)
    ]
    return Schema(tuple(sorted(features, key=lambda feature: feature.name)))


def _feature(
    footer: Footer, column: Column, values: Sequence[Any], classes: tuple[str, ...]
) -> Feature:
    name, dtype = column.name, column.dtype
    if not column.dims:
        if dtype not in ("bytes", "float64", "uint64"):
            dtype = "float32" if dtype.startswith("float") else "int64"
        shape = None if footer.has_nulls(column.leaf) else ()
        return stored_feature(name, dtype, shape, classes, column.unit)
    if dtype != "bytes" and _regular(footer, column, values):
        array: Any = values[0]
        return stored_feature(name, dtype, array.shape, (), column.unit)
    if column.dims > 1:
        raise UnitError(
            f"column {name!r} has lists of lists of different lengths, which no feature can hold: name "
            "the other columns in source.columns, or use a transform"
        )
    return stored_feature(name, dtype, None, (), column.unit)


def _regular(footer: Footer, column: Column, values: Sequence[Any]) -> bool:
    """Whether all values seem to be arrays of one shape, judged by the first rows and the footer."""
    shapes = {v.shape if isinstance(v, np.ndarray) else None for v in values}
    if len(shapes) != 1 or (shape := shapes.pop()) is None:
        return False
    size = int(np.prod(shape))
    return column.fixed or all(
        group.chunks[column.leaf].values == max(1, size) * group.rows for group in footer.groups
    )


def _classes(notes: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Returns the class names by column, as Hugging Face's datasets store them."""
    try:
        features = json.loads(notes[b"huggingface"])["info"]["features"]
        return {
            name: tuple(about["names"])
            for name, about in features.items()
            if isinstance(about, dict)
            and about.get("_type") == "ClassLabel"
            and all(isinstance(one, str) for one in about["names"])
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
