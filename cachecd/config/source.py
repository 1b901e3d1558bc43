"""The section `source` of a dataset: every key with its type, default, meaning and checks.

The section `source.array`, the windows of format npy, is in array.py.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    Strict,
    WithJsonSchema,
    model_validator,
)

from cachecd.config.address import EVERY_HOST, Address
from cachecd.config.array import ArrayConfig
from cachecd.config.keypattern import complaint
from cachecd.config.section import SectionModel, check_feature, conflict
from cachecd.config.urls import SourceUrl, StoreUrl, TableUrl
from cachecd.config.values import PYTHON_NAME, Boolean, Text, WrittenInt
from cachecd.quantities import shown

Format = Literal["files", "webdataset", "tfrecord", "parquet", "jsonl", "npy", "python"]
AVAILABLE_FORMATS: Final = get_args(Format)
# The keys that only some formats have.
_KEYS_OF_FORMATS: dict[str, tuple[Format, ...]] = {
    **dict.fromkeys(("match", "skip", "join", "label"), ("files",)),
    **dict.fromkeys(("reader", "options"), ("python",)),
    **{"array": ("npy",), "columns": ("parquet", "jsonl")},
}
_OUTSIDE = re.compile(r"/|(.*/)?\.\.?(/|$)")


def _listed(value: Any) -> Any:
    if value == []:
        raise ValueError("found [], expected a pattern such as '*.jpg', or a list of patterns")
    return [value] if isinstance(value, str) else value


def _joined(value: Any) -> Any:
    if not isinstance(value, dict) or not value:
        raise ValueError(
            f"found {shown(value)}, expected names with patterns, such as {{image: images/*.png, mask: "
            "masks/*.png}"
        )
    for name, pattern in value.items():
        check_feature((name,), name, "key", "label")
        if not isinstance(pattern, str) or pattern.count("*") != 1 or _OUTSIDE.match(pattern):
            raise conflict(
                (name,),
                f"found {shown(pattern)}, expected a pattern below source.url with exactly one *. Objects "
                "whose text at * is equal are one record",
            )
    return value


def _columns(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise ValueError(
            "found [], expected at least one column. To read all columns, remove the key"
        )
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ValueError(f"the column {name!r} is in the list twice: remove one")
    return names


def _class(value: str) -> str:
    if not PYTHON_NAME.fullmatch(value):
        raise ValueError(
            f"found {value!r}, expected module:Class, such as my_project.data:Readings"
        )
    return value


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """Accepts only JSON values, because the options go to other processes, and are part of the
    generation's identity."""
    for name, option in value.items():
        try:
            same = json.loads(json.dumps(option, allow_nan=False)) == option
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ValueError(
                f"the option {name!r} is {option!r}, expected text, a number, true, false, null, or a "
                "list or mapping of these"
            )
    return value


def _class_name(value: object) -> str:
    match value:
        case WrittenInt():
            return value.text  # a folder called 007 is not the number 7
        case int() if not isinstance(value, bool):
            return str(value)
        case str() if value and "\0" not in value:
            return value
    raise ValueError(f"found {shown(value)}, expected the name of a class: text or a whole number")


def _shape(value: object) -> tuple[int | None, ...]:
    extents = tuple(value) if isinstance(value, (list, tuple)) else (0,)
    whole = all(type(extent) is int and extent > 0 for extent in extents)
    if extents != (None,) and not (whole and math.prod(extents) < 2**40):
        raise ValueError(
            f"found {shown(value)}, expected [] for a single value, lengths such as [4] or [2, 3], or "
            "[null] for a list of any length"
        )
    return extents


Patterns = Annotated[
    tuple[Text, ...], BeforeValidator(_listed, json_schema_input_type=str | list[str])
]
Join = Annotated[dict[str, str], BeforeValidator(_joined)]
ClassName = Annotated[
    str,
    PlainValidator(_class_name),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]}),
]
FeatureType = Literal[
    "bytes", "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "bfloat16", "float32", "float64",
]  # fmt: skip
_LENGTHS = {"type": "array", "items": {"type": "integer", "minimum": 1}}
FeatureShape = Annotated[
    tuple[int | None, ...],
    BeforeValidator(_shape),
    WithJsonSchema({"anyOf": [_LENGTHS, {"const": [None]}]}),
]


class LabelConfig(SectionModel):
    """Where the label of a `files` record comes from."""

    pattern: Text | None = Field(
        None,
        description=(
            "Regular expression that is searched in each key. The text of its only group, or of the "
            "group named `label`, is the name of the class."
        ),
        examples=["^([^/]+)/"],
    )
    classes: tuple[ClassName, ...] | None = Field(
        None,
        json_schema_extra={"minItems": 1},
        description=(
            "Names of all classes. The order gives each class its number, so the numbers are the same on "
            "every machine, and sampling begins while the source is listed. An object of another class "
            "is skipped, and reported by name; to choose objects, use `source.match`. A change of the "
            "list makes another generation. Default: classes are numbered in the order of their names "
            "(whole numbers by value) when the first listing ends, and sampling begins only then. A "
            "later class gets the next number. A class keeps its number in every generation."
        ),
        examples=[["cat", "dog"]],
    )
    manifest: TableUrl | None = Field(
        None,
        description=(
            "In place of a pattern: URL of a table with the columns key (or url) and label. It may have "
            "the formats of `source.manifest`. A unit without a row is skipped."
        ),
        examples=["s3://bucket/lists/labels.csv"],
    )
    column: Boolean = Field(
        False,
        description="In place of a pattern: the column `label` of `source.manifest` has the labels.",
    )

    @model_validator(mode="after")
    def _names_one_class(self) -> LabelConfig:
        given = [name for name in ("pattern", "manifest", "column") if getattr(self, name)]
        if len(given) != 1:
            raise conflict(
                (),
                f"found {' and '.join(given) or 'neither pattern, manifest nor column'}: set exactly one "
                "of `pattern`, `manifest` and `column`",
            )
        if self.pattern is not None and (why := complaint(self.pattern, "label")):
            raise conflict(("pattern",), why)
        if self.classes == ():
            raise conflict(("classes",), "found [], expected at least one class")
        first: dict[str, int] = {}
        for number, name in enumerate(self.classes or ()):
            if first.setdefault(name, number) != number:
                raise conflict(
                    ("classes", number),
                    f"{name!r} is class {first[name]} already: remove it here",
                )
        return self


class FeatureConfig(SectionModel):
    """One feature of the records as they are cached."""

    dtype: FeatureType = Field(
        description=(
            "bytes, or the dtype of the numbers. In a TFRecord, int64 and float32 are lists of an "
            "Example. An array of another dtype is one bytes value, little-endian."
        ),
        examples=["float32"],
    )
    shape: FeatureShape = Field(
        (),
        description=(
            "Shape of the feature in each record. [null] is a list of any length. Default: a single "
            "value."
        ),
        examples=[[4], [None]],
    )
    optional: Boolean = Field(
        False,
        description=(
            "Records may lack the feature. A loader then needs `default=`, or omits the feature."
        ),
    )

    @property
    def extents(self) -> tuple[int, ...] | None:
        """The shape as a schema has it: None for a list of any length."""
        return None if None in self.shape else tuple(filter(None, self.shape))


class SourceConfig(SectionModel):
    """A remote store and the format of its objects."""

    url: SourceUrl = Field(
        "",
        description=(
            "The prefix of all objects, such as s3://bucket/train/. cachecd takes the text literally, "
            "without decoding it. Format python does not need it. A password in the URL is refused."
        ),
        examples=["s3://bucket/train/", "file:///data/train/"],
    )
    format: Format = Field(
        description=(
            "Format of one object. files: the object is a record. webdataset: a tar file, in which each "
            "sample is a record. tfrecord: its records, unchanged. parquet: each row is a record. jsonl: "
            "each line is a record. npy: each window of an array is one. python: your class reads records."
        )
    )
    endpoint: StoreUrl | None = Field(
        None,
        description=(
            "Address of an S3 service other than Amazon's. Default: the variable AWS_ENDPOINT_URL."
        ),
        examples=["https://minio.example:9000"],
    )
    id: Text | None = Field(
        None,
        description=(
            "Name of the source in place of `url` and `endpoint`. If a bucket moves, set `id` to the old "
            "default, which `cachecd status --json` shows as `source_id`. Then the cached shards stay in "
            "use."
        ),
        examples=["s3://bucket/train/"],
    )
    region: Text | None = Field(
        None,
        description="Region of the bucket, if neither the environment nor the profile names it.",
        examples=["eu-central-1"],
    )
    anonymous: Boolean = Field(
        False,
        description="Read public buckets without looking for credentials.",
    )
    requester_pays: Boolean = Field(
        False,
        description="Pay for requests yourself (S3 Requester Pays).",
    )
    match: Patterns | None = Field(
        None,
        description=(
            "For files: only objects that match one of these patterns are records. A pattern is compared "
            "with the key below the URL; * matches any text, including slashes. Only the common folder "
            "of the patterns is listed."
        ),
        examples=["train/*.jpg"],
    )
    skip: Patterns | None = Field(
        None,
        description="For files: objects that match one of these patterns are not records.",
        examples=[["*/.thumbnails/*", "*.txt"]],
    )
    join: Join | None = Field(
        None,
        description=(
            "For files: several objects make one record. Each feature has a pattern with exactly one *. "
            "Objects whose text at * is equal belong together; this text is the record's `key`. Only "
            "the objects of the first pattern are listed. If another object is missing, the record is "
            "skipped. Not allowed with `match`, `skip` or `manifest`."
        ),
        examples=[{"image": "images/*.png", "mask": "masks/*.png"}],
    )
    label: LabelConfig | None = Field(
        None, description="For files: adds the feature `label` (int64) to every record."
    )
    array: ArrayConfig | None = Field(
        None, description="For npy: which windows of which arrays are the records."
    )
    columns: Annotated[tuple[Text, ...], AfterValidator(_columns)] | None = Field(
        None,
        description=(
            "For parquet and jsonl: the columns to read. Of Parquet, only their bytes are fetched. Write a "
            "field of a struct or JSON object with dots. The object's name selects all its fields. "
            "Default: all columns. A change makes another generation."
        ),
        examples=[["image", "label", "meta.width"]],
    )
    features: dict[str, FeatureConfig] = Field(
        {},
        description=(
            "Features of the cached records, after the transform. The first records decide all features "
            "that are not named here: a later record that does not fit is skipped. Formats files and "
            "npy allow it only with a transform. A change makes another generation."
        ),
        examples=[{"caption": {"dtype": "bytes", "optional": True}}],
    )
    manifest: TableUrl | None = Field(
        None,
        description=(
            "URL of a table that replaces the store's listing: *.csv, *.jsonl, *.csv.gz, *.jsonl.zst, "
            "*.parquet, or the manifest.json of an S3 Inventory. Required column: key (relative to "
            "`url`) or url (absolute). Optional columns: offset and length (a part of the object), size, "
            "etag and label."
        ),
        examples=["s3://bucket/lists/train.csv"],
    )
    reader: Annotated[Text, AfterValidator(_class)] | None = Field(
        None,
        description=(
            "For python: your class. Each worker imports it, creates an instance with `options`, and "
            "reads the units that the instance names."
        ),
        examples=["my_project.data:Recordings"],
    )
    options: Annotated[dict[Annotated[str, Strict()], Any], AfterValidator(_plain)] = Field(
        {},
        description=(
            "For python: the keyword arguments of the class. Like `reader`, they are part of the "
            "generation's name."
        ),
        examples=[{"rate": 16000}],
    )

    @model_validator(mode="after")
    def _format_has_its_keys(self) -> SourceConfig:
        for name, formats in _KEYS_OF_FORMATS.items():
            if self.format not in formats and getattr(self, name):
                raise conflict(
                    (name,),
                    f"only format {' or '.join(formats)} has `{name}`, but the format is "
                    f"{self.format}: remove `{name}`, or change the format",
                )
        if self.format == "python" and self.reader is None:
            raise conflict((), "`reader` is missing: set it to module:Class for format python")
        if self.format == "npy" and self.array is None:
            raise conflict((), "`array` is missing: set it to {window: ROWS} for format npy")
        return self

    @model_validator(mode="after")
    def _names_its_objects(self) -> SourceConfig:
        if not self.url and self.format != "python":
            raise conflict(("url",), "missing: set it to the prefix of all objects")
        if not self.url and self.manifest is not None:
            raise conflict(
                ("manifest",),
                "found `manifest` without `url`: set `url`, because the keys in the manifest are "
                "relative to it",
            )
        if self.url in EVERY_HOST and self.manifest is None:
            raise conflict(
                ("url",),
                f"found {self.url} without a host: add the host ({self.url}data.example/), or set "
                "`manifest` to a table of URLs",
            )
        given = [name for name in ("match", "skip", "manifest") if getattr(self, name)]
        if self.join and given:
            raise conflict(
                ("join",),
                f"`join` and `{given[0]}` exclude each other, because the first pattern of `join` selects "
                f"the records: remove `{given[0]}`",
            )
        if self.label is not None and self.label.column and self.manifest is None:
            raise conflict(
                ("label", "column"), "`label.column` needs `source.manifest`: set `source.manifest`"
            )
        return self

    @model_validator(mode="after")
    def _somebody_pays(self) -> SourceConfig:
        if self.requester_pays and not (self.url and self.address.scheme == "s3"):
            raise conflict(("requester_pays",), "`requester_pays` works only for s3://: remove it")
        if self.requester_pays and self.anonymous:
            raise conflict(
                ("requester_pays",),
                "`requester_pays` and `anonymous` exclude each other, because an anonymous request cannot "
                "be billed",
            )
        return self

    @property
    def address(self) -> Address:
        """The place and the prefix that `url` names. ValueError if `url` is not valid."""
        return Address.of(self.url)

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's `classes` by number; () if the configuration does not name them."""
        return (self.label.classes or ()) if self.label else ()

    @property
    def listed_pattern(self) -> str:
        """The first pattern of `join`, which selects the objects to list; "" without `join`."""
        return next(iter(self.join.values())) if self.join else ""

    @property
    def lists_objects(self) -> bool:
        """Whether each object that is listed is a unit."""
        return self.format in ("files", "tfrecord", "webdataset")

    @property
    def is_seekable(self) -> bool:
        """Whether a unit can be read from any of its records, without the bytes before the record."""
        return self.format in ("tfrecord", "webdataset", "jsonl")

    @property
    def identity(self) -> str:
        """`id`, or its default: URL and endpoint."""
        return self.id or " ".join(filter(None, (self.url, self.endpoint)))

    @property
    def awaits_classes(self) -> bool:
        """Whether the classes get their numbers only after the first listing."""
        return self.label is not None and not self.label.classes

    @property
    def name(self) -> str:
        """The source's name in messages."""
        return self.url or self.reader or self.format
