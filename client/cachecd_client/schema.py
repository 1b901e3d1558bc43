"""The schema of records: features with name, dtype and shape, and how an Example stores them.

Scalars, strings and lists of int64 or float32 are stored as ordinary Example lists, which any TFRecord tool
reads. Every other array or ragged list is one bytes value of raw little-endian elements; the schema has its
dtype and shape. Each sidecar and each lease's manifest has the schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import cachecd_client._core as _core
from cachecd_client.errors import SchemaError

_SHOWN, _NAME = 8, 40  # features that a schema's text shows, and characters of each name

Kind = Literal["bytes", "float", "int64"]

# The dtype of each kind of list; a raw feature has any dtype.
LIST_DTYPES: dict[Kind, str] = {"bytes": "bytes", "float": "float32", "int64": "int64"}

TOKENS = "tokens"
"""The `unit` of a feature that holds token numbers."""

MASK = "mask"
"""The feature that the step `pack` adds: bool, false for padding."""

# NumPy has no bfloat16: its arrays are uint16, and the framework views them as bfloat16.
NUMERIC_DTYPES = frozenset(
    {
        *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "bfloat16", "float32", "float64"),
    }
)


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of every record.

    `dtype`: a NumPy name, "bfloat16", or "bytes". `shape`: the shape in one record; () is a scalar, and
    None is a ragged list. `raw`: stored as one bytes value of little-endian elements. `classes`: for an
    integer label, the name of each class. `unit`: for a date, time or duration, such as "us since 1970";
    for token numbers, TOKENS.
    `optional`: records may lack the feature, so a loader needs a `default`, or must not select the
    feature. A ragged feature is never optional: a record without it has an empty list.
    """

    name: str
    kind: Kind
    dtype: str
    shape: tuple[int, ...] | None
    raw: bool = False
    classes: tuple[str, ...] = ()
    unit: str = ""
    optional: bool = False

    def __post_init__(self) -> None:
        if self.kind not in LIST_DTYPES:
            raise SchemaError(f"feature {self.name!r}: unknown kind {self.kind!r}")
        if self.dtype != "bytes" and self.dtype not in NUMERIC_DTYPES:
            raise SchemaError(f"feature {self.name!r}: unknown dtype {self.dtype!r}")
        if self.raw and self.dtype == "bytes":
            raise SchemaError(f"feature {self.name!r}: a raw array needs a numeric dtype")
        if self.optional and self.shape is None:
            raise SchemaError(f"feature {self.name!r}: a ragged feature needs no `optional`")

    def for_reader(self) -> tuple[str, str, str, tuple[int, ...] | None, bool]:
        """Returns the feature in the form that the core's BatchReader takes."""
        return (self.name, self.kind, self.dtype, self.shape, self.raw)


@dataclass(frozen=True, slots=True)
class Schema:
    """The features of a dataset's records, ordered by name."""

    features: tuple[Feature, ...]

    def __post_init__(self) -> None:
        names = [f.name for f in self.features]
        if len(set(names)) != len(names):
            raise SchemaError(f"a feature is named twice: {sorted(names)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.features)

    @property
    def tokens(self) -> int | None:
        """The number of tokens in each record, padding included; None if records differ or have none."""
        lengths = {f.shape and math.prod(f.shape) for f in self.features if f.unit == TOKENS}
        return lengths.pop() or None if len(lengths) == 1 else None

    @property
    def mask(self) -> str:
        """The name of the feature that is false for padding among the tokens; "" if there is none."""
        shapes = {f.shape for f in self.features if f.unit == TOKENS and f.shape}
        masks = [f.name for f in self.features if f.name == MASK and f.dtype == "bool"]
        return next((name for name in masks if self[name].shape in shapes), "")

    def __getitem__(self, name: str) -> Feature:
        for feature in self.features:
            if feature.name == name:
                return feature
        raise SchemaError(f"no feature {name!r}; the schema has {', '.join(self.names) or 'none'}")

    def for_writer(self) -> list[_core.ReaderFeature]:
        """Returns the schema in the form that the core's ShardWriter takes."""
        return [(*f.for_reader(), {"optional": f.optional}) for f in self.features]

    def select(self, names: Iterable[str]) -> Schema:
        """Returns a schema with only these features. SchemaError for an unknown feature, or for a
        string."""
        if isinstance(names, str):
            raise SchemaError(f"features={names!r}, expected a list of names: [{names!r}]")
        return Schema(tuple(self[name] for name in names))

    def __str__(self) -> str:
        """Returns text such as ``image uint8[224, 224, 3], at int64[] (us since 1970)``, with at most
        eight features."""
        shown = []
        for f in self.features[:_SHOWN]:
            notes = ", ".join(note for note in (f.unit, "optional" if f.optional else "") if note)
            shown.append(f"{f.name[:_NAME]} {f.dtype}{dims(f.shape)}{notes and f' ({notes})'}")
        if (more := len(self.features) - _SHOWN) > 0:
            shown.append(f"{more} more")
        return ", ".join(shown) or "no features"

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values, as sidecars and manifests store the schema."""
        return {
            "version": 1,
            "features": [
                {
                    "name": f.name,
                    "kind": f.kind,
                    "dtype": f.dtype,
                    "shape": None if f.shape is None else list(f.shape),
                    **({"raw": True} if f.raw else {}),
                    **({"classes": list(f.classes)} if f.classes else {}),
                    **({"unit": f.unit} if f.unit else {}),
                    **({"optional": True} if f.optional else {}),
                }
                for f in self.features
            ],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any] | str) -> Schema:
        """Returns the schema from the result of `to_json`, or from its JSON text. Otherwise
        SchemaError."""
        document: Any = value
        try:
            if isinstance(value, str):
                document = json.loads(value)
            if document["version"] != 1:
                raise SchemaError(
                    f"schema version {document['version']}, expected 1: upgrade cachecd-client"
                )
            features = [
                Feature(
                    f["name"], f["kind"], f["dtype"], None if f["shape"] is None else tuple(f["shape"]),
                    f.get("raw", False), tuple(f.get("classes", ())), f.get("unit", ""),
                    f.get("optional", False),
                )
                for f in document["features"]
            ]  # fmt: skip
            return Schema(tuple(features))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise SchemaError(f"not a schema: {error!r} in {str(document)[:200]}") from error


#: The location of a record, and for each feature the kind and the number of its values.
Form = tuple[str, Mapping[str, tuple[Kind, int]]]


def form(place: str, record: bytes) -> Form:
    """Returns the form of a serialized Example. SchemaError, with the location, for other bytes."""
    try:
        return place, _core.count_example(record)
    except ValueError as error:
        raise SchemaError(
            f"{place}: {error}; only TFRecord files of tf.train.Example records can be read"
        ) from None


def infer_forms(forms: Iterable[Form], declared: Collection[str] = ()) -> Schema:
    """Infers the schema of some records from their forms. A list with one length in all records has a
    fixed shape, or is a scalar if the length is 1. A list is ragged if its length differs, or if a record
    lacks it. SchemaError if a feature has two kinds and is not `declared`, if a record is not an Example,
    or if there are no records."""
    lengths: dict[str, set[int]] = {}
    kinds: dict[str, tuple[Kind, str]] = {}
    count = 0
    for place, features in forms:
        count += 1
        for name, (kind, length) in features.items():
            first, where = kinds.setdefault(name, (kind, place))
            if first != kind and name not in declared:
                raise SchemaError(f"feature {name!r} is {first} in {where} and {kind} in {place}")
            lengths.setdefault(name, {0} if count > 1 else set()).add(length)
        for name in lengths.keys() - features.keys():
            lengths[name].add(0)
    if not count:
        raise SchemaError("there are no records, so no schema can be inferred")

    def shape(name: str) -> tuple[int, ...] | None:
        (length, *others) = lengths[name]
        return None if others or length == 0 else () if length == 1 else (length,)

    return Schema(
        tuple(
            Feature(n, kind, LIST_DTYPES[kind], shape(n)) for n, (kind, _) in sorted(kinds.items())
        )
    )


def dims(shape: tuple[int, ...] | None) -> str:
    return "[ragged]" if shape is None else f"[{', '.join(map(str, shape))}]"
