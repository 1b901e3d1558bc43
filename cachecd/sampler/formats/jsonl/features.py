"""The schema of JSON lines that are cached without a transform, judged by the first lines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cachecd.errors import RecordError, UnitError
from cachecd.sampler.encoding import stored_feature
from cachecd.sampler.formats.jsonl.values import MOST_VALUES, LineParser, Record
from cachecd_client.schema import Schema

_NUMBERS = (
    "int64",
    "uint64",
    "float64",
)  # each dtype is stored in a later one, if it holds the values


@dataclass(slots=True)
class _Form:
    """The values of one name. `dtype`: "" if all of them are empty lists. `dims`: the number of lists
    around a value. `shapes`: None for a list that is no array. `records`: the records with the name."""

    dtype: str
    dims: int
    shapes: set[tuple[int, ...] | None] = field(default_factory=set)
    records: int = 0


def schema_of(
    lines: Iterable[bytes | RecordError], columns: Sequence[str] | None, declared: Collection[str]
) -> Schema:
    """Returns the schema of these lines: Parquet's features of a file with the same values. `declared`: the
    names that the configuration declares.

    A number or text is ragged if a line lacks it. Lists of numbers are an array if all of them have one
    length. The first line with a name decides between text, numbers and lists; values of another kind are
    ignored. UnitError if no line is a record, or if no feature holds a name's values.
    """
    parser, records, fault = LineParser(columns), list[Record](), ""
    for line in lines:
        try:
            if isinstance(line, RecordError):
                raise line
            records.append(parser.record(line))
        except RecordError as error:
            fault = fault or str(error)
    if not records:
        raise UnitError(f"none of its first lines is a record; the first: {fault}")
    forms = _forms_of(records)
    if len(forms) > MOST_VALUES:
        raise UnitError(
            f"its first lines have {len(forms)} different names, expected at most {MOST_VALUES}: name the "
            "wanted ones in source.columns"
        )
    for column in columns or ():
        if not any(f"{name}.".startswith(f"{column}.") for name in (*forms, *declared)):
            names = ", ".join(list(forms)[:50])
            raise UnitError(
                f"none of its first {len(records)} records has a column {column!r} (source.columns), only "
                f"{names}; if the column is rare, declare it in source.features"
            )
    features = []
    for name, form in sorted(forms.items()):
        is_missing = form.records < len(records)
        if form.dtype and (name not in declared or form.dims < 2):
            shape = None if is_missing or len(form.shapes) > 1 else next(iter(form.shapes))
            if form.dims > 1 and shape is None:
                raise UnitError(
                    f"{name!r} has lists of lists that are not one array in every line, which no feature "
                    "can hold: name the other columns in source.columns, or use a transform"
                )
            features.append(stored_feature(name, form.dtype, shape))
    return Schema(tuple(features))


def _forms_of(records: Iterable[Record]) -> dict[str, _Form]:
    forms: dict[str, _Form] = {}
    for record in records:
        for name, value in record.items():
            dtype, dims, shape = _form_of(value)
            form = forms.setdefault(name, _Form(dtype, dims))
            form.records += 1
            if not form.dtype and dims:  # only empty lists so far, which have any dims
                form.dtype, form.dims = dtype, max(dims, form.dims)
            is_number = form.dtype in _NUMBERS and dtype in _NUMBERS
            if dims == form.dims and is_number:
                form.dtype = max(form.dtype, dtype, key=_NUMBERS.index)
            if (dims == form.dims and (is_number or dtype == form.dtype)) or (dims and not dtype):
                form.shapes.add(shape)
    return forms


def _form_of(value: Any) -> tuple[str, int, tuple[int, ...] | None]:
    """Returns dtype, dims and shape of a value. The shape of a list that is no array is None, and the dtype
    of an empty list is ""."""
    if isinstance(value, bytes):
        return "bytes", 0, ()
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.name, value.ndim, value.shape
    if isinstance(value, int):
        return ("int64" if value < 1 << 63 else "uint64"), 0, ()
    if not value:
        return "", 1, (0,)
    dtype, dims, _ = _form_of(value[0])
    return dtype, dims + 1, None
