"""The schema of JSON lines that are cached without a transform, judged by the first lines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from cachecd.errors import RecordError, UnitError
from cachecd.quantities import shown
from cachecd.sampler.encoding import stored_feature
from cachecd.sampler.formats.jsonl.values import MOST_VALUES, LineParser
from cachecd_client.schema import Feature, Schema

_NUMBERS = (
    "int64",
    "uint64",
    "float64",
)  # each dtype is stored in a later one, if it holds the values

# dtype, the number of lists around a value, and the shape; None: the lists are no array.
_Form = tuple[str, int, tuple[int, ...] | None]


def schema_of(
    lines: Iterable[bytes | RecordError], columns: Sequence[str] | None, declared: Collection[str]
) -> Schema:
    """Returns the schema of these lines: Parquet's features of a file with the same values. `declared`: the
    names that the configuration declares.

    A number or text is ragged if a line lacks it. Lists of numbers are an array if all of them have one
    length. The first line with a name decides between text, numbers and lists; values of another kind are
    ignored. UnitError if no line is a record, or if no feature holds a name's values.
    """
    parser, count, fault = LineParser(columns), 0, ""
    forms: dict[str, list[_Form]] = {}
    for line in lines:
        try:
            if isinstance(line, RecordError):
                raise line
            for name, value in parser.record(line).items():
                forms.setdefault(name, []).append(_form_of(value))
            count += 1
        except RecordError as error:
            fault = fault or str(error)
    if not count:
        raise UnitError(f"none of its first lines is a record; the first: {fault}")
    if len(forms) > MOST_VALUES:
        raise UnitError(
            f"its first lines have {len(forms)} different names, expected at most {MOST_VALUES}: name the "
            "wanted ones in source.columns"
        )
    for column in columns or ():
        if not any(f"{name}.".startswith(f"{column}.") for name in (*forms, *declared)):
            names = ", ".join(map(shown, list(forms)[:50]))
            raise UnitError(
                f"none of its first {count} records has a column {column!r} (source.columns), only "
                f"{names}; if the column is rare, declare it in source.features"
            )
    made = (
        _feature(name, forms[name], len(forms[name]) < count, name in declared)
        for name in sorted(forms)
    )
    return Schema(tuple(feature for feature in made if feature is not None))


def _feature(
    name: str, forms: Sequence[_Form], is_missing: bool, is_declared: bool
) -> Feature | None:
    """Returns the feature of values of these forms; None if all of them are empty lists."""
    known = [form for form in forms if form[0]]
    if not known:
        return None
    dtype, dims, _ = known[0]
    like = {dtype, *(_NUMBERS if dtype in _NUMBERS else ())}
    fitting = [form for form in known if form[0] in like and form[1] == dims]
    dtype = max((form[0] for form in fitting), key=[*_NUMBERS, dtype].index)
    shapes = {form[2] for form in (*fitting, *(f for f in forms if dims and not f[0]))}
    shape = None if is_missing or len(shapes) > 1 else shapes.pop()
    if dims > 1 and shape is None and not is_declared:
        raise UnitError(
            f"{shown(name)} has lists of lists that are not one array in every line, which no feature can "
            "hold: name the other columns in source.columns, or use a transform"
        )
    return stored_feature(name, dtype, shape)


def _form_of(value: Any) -> _Form:
    """Returns the form of a value; dtype "" for an empty list."""
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
