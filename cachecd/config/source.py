"""The configuration of a source: its URL, its format, and which objects belong to it."""

from __future__ import annotations

from pydantic import Field, model_validator

from cachecd.config.address import Address
from cachecd.config.array import ArrayConfig
from cachecd.config.keypattern import complaint
from cachecd.config.manifest import LABELS, MANIFEST, TableUrl, check_manifest
from cachecd.config.objects import JOIN, MATCH, SKIP, Join, Patterns, check_objects
from cachecd.config.parquet import COLUMNS, EXAMPLE, Columns
from cachecd.config.python import OPTIONS, READER, Options, Reader, check_reader
from cachecd.config.section import SectionModel, conflict
from cachecd.config.values import (
    Boolean,
    ClassName,
    FeatureShape,
    FeatureType,
    Format,
    StoreAddress,
    Text,
    UrlOrNone,
)


class LabelConfig(SectionModel):
    """Where the label of a `files` record comes from."""

    pattern: Text | None = Field(
        None,
        description=(
            "Regular expression, searched in each key. Its only group, or the group named `label`, "
            "is the class's name."
        ),
        examples=["^([^/]+)/"],
    )
    classes: tuple[ClassName, ...] | None = Field(
        None,
        json_schema_extra={"minItems": 1},
        description=(
            "The names of all classes, in the order of their numbers, which are then the same on "
            "every machine, and the source is sampled while it is listed. Objects of other classes "
            "are skipped, each by name: the list is no filter. Left out: classes are numbered by "
            "name (whole numbers by value) when the first listing ends, and nothing is sampled "
            "before; a class that comes later gets the next number. A label keeps its number in "
            "every generation. Another list is another generation."
        ),
        examples=[["cat", "dog"]],
    )
    manifest: TableUrl | None = LABELS
    column: Boolean = Field(
        False,
        description="In place of a pattern: the labels are in the column `label` of `source.manifest`.",
    )

    @model_validator(mode="after")
    def _names_one_class(self) -> LabelConfig:
        given = [name for name in ("pattern", "manifest", "column") if getattr(self, name)]
        if len(given) != 1:
            raise conflict(
                (),
                f"found {' and '.join(given) or 'neither pattern, manifest nor column'}, expected exactly "
                "one of pattern, manifest and column",
            )
        if self.pattern is not None and (why := complaint(self.pattern, "label")):
            raise conflict(("pattern",), why)
        if self.classes == ():
            raise conflict(("classes",), "found none, expected at least one")
        first: dict[str, int] = {}
        for number, name in enumerate(self.classes or ()):
            if first.setdefault(name, number) != number:
                raise conflict(
                    ("classes", number),
                    f"found {name!r} again, which is class {first[name]} already, expected each "
                    "class once",
                )
        return self


class FeatureConfig(SectionModel):
    """One feature of the records as they are cached."""

    dtype: FeatureType = Field(
        description="bytes, or the dtype of the numbers; int64 and float32 are lists of an Example.",
        examples=["float32"],
    )
    shape: FeatureShape = Field(
        (),
        description="Shape in each record. [null]: a list of any length. Left out: a single value.",
        examples=[[4], [None]],
    )
    optional: Boolean = Field(
        False,
        description="Records may lack it: a loader then needs default=, or leaves the feature out.",
    )

    @property
    def extents(self) -> tuple[int, ...] | None:
        """The shape as a schema has it: None for a list of any length."""
        return None if None in self.shape else tuple(filter(None, self.shape))


class SourceConfig(SectionModel):
    """A remote store and the format of its objects."""

    url: UrlOrNone = Field(
        "",
        description=(
            "The prefix of all objects, such as s3://bucket/train/: literal, as keys are. Not "
            "required for format python. A password in the URL is refused."
        ),
        examples=["s3://bucket/train/", "file:///data/train/"],
    )
    format: Format = Field(
        description=(
            "What one object is. files: one record. webdataset: a tar file, one record a sample. "
            "tfrecord: its records, verbatim. parquet: its rows are records. npy: windows of "
            "arrays. python: what a class of yours says."
        )
    )
    endpoint: StoreAddress | None = Field(
        None,
        description="Address of an S3 service other than Amazon's. Left out: AWS_ENDPOINT_URL counts.",
        examples=["https://minio.example:9000"],
    )
    id: Text | None = Field(
        None,
        description=(
            "Names the source in place of `url` and `endpoint`. If a bucket moves, set `id` to the "
            "default, `source_id` in `cachecd status --json`: the cached shards stay in use."
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
        description="Read without credentials and without looking for any: for public buckets.",
    )
    requester_pays: Boolean = Field(
        False,
        description="Pay for requests yourself (S3 Requester Pays).",
    )
    match: Patterns | None = MATCH
    skip: Patterns | None = SKIP
    join: Join | None = JOIN
    label: LabelConfig | None = Field(
        None, description="For files: adds the feature `label` (int64) to every record."
    )
    array: ArrayConfig | None = Field(
        None, description="For npy: which windows of which arrays are the records."
    )
    columns: Columns | None = Field(None, description=COLUMNS, examples=[EXAMPLE])
    features: dict[str, FeatureConfig] = Field(
        {},
        description=(
            "Features of the records as they are cached, after the transform. The first records "
            "decide all others: a later record that does not fit is skipped. Not for npy and files "
            "without a transform. Other features are another generation."
        ),
        examples=[{"caption": {"dtype": "bytes", "optional": True}}],
    )
    manifest: TableUrl | None = MANIFEST
    reader: Reader | None = READER
    options: Options = OPTIONS

    @model_validator(mode="after")
    def _names_a_place(self) -> SourceConfig:
        check_reader(self.format, self.reader, self.options)
        if not self.url and self.format != "python":
            raise conflict(("url",), "missing: The prefix under which all objects lie")
        check_manifest(self.url, self.manifest)
        check_objects(
            self.format, match=self.match, skip=self.skip, manifest=self.manifest, join=self.join
        )
        return self

    @model_validator(mode="after")
    def _somebody_pays(self) -> SourceConfig:
        if self.requester_pays and (scheme := self.address.scheme if self.url else "") != "s3":
            raise conflict(
                ("requester_pays",), f"found true for {scheme}://, expected it for s3:// alone"
            )
        if self.requester_pays and self.anonymous:
            raise conflict(
                ("requester_pays",),
                "found true with anonymous: true, expected one of them: nobody can be billed",
            )
        return self

    @model_validator(mode="after")
    def _label_has_a_use(self) -> SourceConfig:
        if self.label is not None and self.format != "files":
            raise conflict(
                ("label",),
                f"found a label for format {self.format}, expected none: its records carry their "
                "own features",
            )
        if self.label is not None and self.label.column and self.manifest is None:
            raise conflict(("label", "column"), "found true without source.manifest, expected one")
        return self

    @model_validator(mode="after")
    def _arrays_have_windows(self) -> SourceConfig:
        if self.format == "npy" and self.array is None:
            raise conflict((), "found no array, expected array: {window: ...} for format npy")
        if self.format != "npy" and self.array is not None:
            raise conflict(
                ("array",), f"found array for format {self.format}, expected it for npy alone"
            )
        return self

    @model_validator(mode="after")
    def _columns_have_a_use(self) -> SourceConfig:
        if self.columns is not None and self.format != "parquet":
            raise conflict(
                ("columns",),
                f"found columns for format {self.format}, expected none: only parquet has columns",
            )
        return self

    @property
    def address(self) -> Address:
        """The place and the prefix that `url` names. ValueError if it names none."""
        return Address.of(self.url)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the label's classes by number, as far as the configuration gives them."""
        return (self.label.classes or ()) if self.label else ()

    @property
    def listed_pattern(self) -> str:
        """The pattern of the objects that are listed for `join`; "" without `join`."""
        return next(iter(self.join.values())) if self.join else ""

    @property
    def lists_objects(self) -> bool:
        """Whether each object that is listed is a unit."""
        return self.format in ("files", "tfrecord", "webdataset")

    @property
    def is_seekable(self) -> bool:
        """Whether a unit can be read from any of its records on, without the bytes before that record."""
        return self.format in ("tfrecord", "webdataset")

    @property
    def identity(self) -> str:
        """`id`, or its default: URL and endpoint."""
        return self.id or " ".join(filter(None, (self.url, self.endpoint)))

    @property
    def awaits_classes(self) -> bool:
        """Whether the classes get their numbers only when the first listing ends."""
        return self.label is not None and not self.label.classes

    @property
    def name(self) -> str:
        """The source's name in messages."""
        return self.url or self.reader or self.format
