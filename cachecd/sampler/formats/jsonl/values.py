"""One line of JSON as a record. The values are those of Parquet's columns (parquet/columns.py).

    whole numbers           int, within 64 bits
    other numbers           numpy.float64
    true, false             int
    texts                   bytes, in UTF-8
    objects                 their fields, named with dots
    lists of numbers        an array: int64, uint64, float64 or bool; lists of lists one of more dimensions,
                            or lists of arrays
    lists of texts          a list of bytes
    lists of objects        a list for each field
    null, {}                a missing feature

A null within a list of floats is NaN; within any other list it is an error. The kind of an empty list is
unknown.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from cachecd.errors import RecordError
from cachecd.quantities import shown
from cachecd_client.schema import Schema

MOST_VALUES = 1000  # of a record; more names are data rather than names
_MOST_DIMS = 32  # of an array, in every version of NumPy
_HUGE = 2.0**63  # orjson makes floats of integers outside 64 bits
_COLON = re.compile(rb"\\u003[aA]")  # an escaped colon, which makes the counts of colons differ
_WANTED, _ABOVE = 2, 1

Record = dict[str, Any]


class LineParser:
    """Parses lines. `columns`: the names whose values are built, or the names of objects around them; None:
    all."""

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self._columns = columns
        self._choice = None if columns is None else _choice_of(columns)
        self._names: frozenset[str] | None = None
        self._floats: frozenset[str] = frozenset()
        self._has_huge = False  # whether the current line has a float that may be an integer

    def follow(self, schema: Schema | None) -> None:
        """Notes the schema of the records. Then integers beside nulls are floats in a list of floats, and
        an empty list that the schema does not have is a missing feature."""
        self._names = None if schema is None else frozenset(schema.names)
        floats = (f.name for f in schema.features if f.dtype == "float64") if schema else ()
        self._floats = frozenset(floats)

    def record(self, line: bytes) -> Record:
        """Returns the record of a line. RecordError if the line is no JSON object, if a value would change,
        or if a name is in it twice."""
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            why = f"the line is not JSON: {error}" if line.strip() else "the line is blank"
            raise RecordError(why) from None
        if type(document) is not dict:
            raise RecordError("the line is JSON, but not an object")
        try:
            written = orjson.dumps(document)
        except TypeError:
            raise RecordError("its values are nested more than 254 deep") from None
        # A key that is in the line twice is once in the document, with one colon less.
        is_same = written == line or (
            written.count(b":") == line.count(b":")
            and not (b"\\u003" in line and _COLON.search(line))
        )
        self._has_huge = False
        record: Record = {}
        self._add(document, "", record)
        if not is_same or self._has_huge:
            _parse_again(line, self._has_huge)
        if len(record) > MOST_VALUES:
            raise RecordError(
                f"it has {len(record)} values, expected at most {MOST_VALUES}: name the wanted ones in "
                "source.columns"
            )
        if self._columns is not None and not record:
            keys = ", ".join(map(shown, list(document)[:9])) or "none"
            wanted = ", ".join(map(repr, self._columns))
            raise RecordError(
                f"no value in the columns {wanted} (source.columns); its keys: {keys}"
            )
        return record

    def _add(self, fields: Mapping[str, Any], above: str, record: Record) -> None:
        """Adds the fields of an object. `above`: its name and a dot, or ""."""
        choice = self._choice
        for key, value in fields.items():
            name, kind = above + key, type(value)
            if choice is not None and choice(name) < (_ABOVE if kind in (dict, list) else _WANTED):
                continue
            if kind is str:
                value = value.encode()
            elif kind is float:
                self._has_huge = self._has_huge or abs(value) >= _HUGE
                value = np.float64(value)
            elif kind is bool:
                value = int(value)
            elif kind is dict:
                self._add(value, f"{name}.", record)
                continue
            elif kind is list:
                self._add_list(name, value, [], record)
                continue
            elif value is None:
                continue
            _put(record, name, value)

    def _add_list(
        self, name: str, values: list[Any], lengths: list[list[int]], record: Record
    ) -> None:
        """Adds the flattened values of lists. `lengths`: the lengths of the lists around them, from the
        outermost to the innermost; the outermost list of all is no element."""
        kinds = set(map(type, values))
        if kinds == {list}:
            inner = [*lengths, [*map(len, values)]]
            self._add_list(name, [*chain.from_iterable(values)], inner, record)
        elif kinds == {dict}:
            for key in dict.fromkeys(chain.from_iterable(values)):
                field = f"{name}.{key}"
                if self._choice is None or self._choice(field):
                    try:
                        column = [each[key] for each in values]
                    except KeyError:
                        raise RecordError(
                            f"{shown(field)}: an object of the list lacks it, expected it in all or in none"
                        ) from None
                    self._add_list(field, column, lengths, record)
        elif (self._choice is None or self._choice(name) == _WANTED) and (
            values or self._names is None or name in self._names
        ):
            _put(record, name, _nested(name, self._flat(name, values, kinds), lengths))

    def _flat(self, name: str, values: list[Any], kinds: set[type]) -> Any:
        numbers = kinds - {type(None)}
        if kinds == {str}:
            return [each.encode() for each in values]
        if kinds == {int}:
            return _integers(name, values)
        if kinds == {bool}:
            return np.array(values, np.bool_)
        if numbers <= {int, float} and (float in numbers or (kinds and name in self._floats)):
            if int in numbers and any(type(n) is int and float(n) != n for n in values):
                raise RecordError(f"{shown(name)}: float64 cannot hold all of its integers")
            array = np.array([math.nan if n is None else n for n in values], np.float64)
            self._has_huge = self._has_huge or bool((np.abs(array) >= _HUGE).any())
            return array
        if not kinds:
            return []
        if type(None) in kinds:
            raise RecordError(f"{shown(name)}: a null within a list cannot be stored")
        raise RecordError(f"{shown(name)}: the values of a list have several kinds")


def _choice_of(columns: Sequence[str]) -> Callable[[str], int]:
    """Returns a function that classifies names: _WANTED, _ABOVE wanted names, or 0."""

    @lru_cache(4096)
    def choice(name: str) -> int:
        if any(name == wanted or name.startswith(f"{wanted}.") for wanted in columns):
            return _WANTED
        return _ABOVE if any(wanted.startswith(f"{name}.") for wanted in columns) else 0

    return choice


def _put(record: Record, name: str, value: Any) -> None:
    if name in record:
        raise RecordError(f"it has the name {shown(name)} twice")
    record[name] = value


def _integers(name: str, values: list[int]) -> NDArray[Any]:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        if min(values) < 0:
            raise RecordError(
                f"{shown(name)}: neither int64 nor uint64 holds its integers"
            ) from None
        return np.array(values, np.uint64)


def _nested(name: str, values: Any, lengths: list[list[int]]) -> Any:
    """Groups flattened values into lists of these lengths. An array gets one more dimension if all lengths
    are equal."""
    if len(lengths) >= _MOST_DIMS:
        raise RecordError(f"{shown(name)}: its lists are nested more than {_MOST_DIMS} deep")
    for inner in reversed(lengths):
        if isinstance(values, np.ndarray) and len(set(inner)) <= 1:
            values = values.reshape(len(inner), inner[0] if inner else 0, *values.shape[1:])
        else:
            ends = np.cumsum(inner).tolist()
            values = [values[end - n : end] for n, end in zip(inner, ends, strict=True)]
    return values


def _parse_again(line: bytes, integers: bool) -> None:
    """RecordError if an object has a key twice, or with `integers` if an integer is outside 64 bits. Takes
    ten times as long as orjson."""

    def check_keys(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > len({key for key, _ in pairs}):
            ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise RecordError(f"it has the key {shown(twice)} twice")

    def check_integer(text: str) -> None:
        if integers and (len(text) > 20 or not -(2**63) <= int(text) < 2**64):
            raise RecordError(f"it has the integer {text[:99]}, which is outside 64 bits")

    json.loads(line, object_pairs_hook=check_keys, parse_int=check_integer)
