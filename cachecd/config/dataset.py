"""What the configuration says of one dataset: its source, its growth, its eviction."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from cachecd.config.array import ArrayConfig
from cachecd.config.manifest import LABELS, MANIFEST, TableUrl, check_manifest
from cachecd.config.parquet import COLUMNS, EXAMPLE, Columns
from cachecd.config.python import OPTIONS, READER, Options, Reader, check_reader
from cachecd.config.section import SectionModel, conflict
from cachecd.config.selection import PartitionConfig, SplitConfig
from cachecd.config.stratify import STRATIFY, check_stratify
from cachecd.config.transforms import Steps
from cachecd.config.values import (
    Boolean,
    ClassName,
    Duration,
    Format,
    Integer,
    Later,
    PositiveSize,
    Real,
    Size,
    StoreAddress,
    Text,
    UrlOrNone,
)
from cachecd.quantities import format_size


class LabelConfig(SectionModel):
    """Where the label of a `files` record comes from."""

    pattern: Text | None = Field(
        None,
        description=(
            "Regular expression, searched in each object's key; its only group, or the group "
            "named label, is the class's name."
        ),
        examples=["^([^/]+)/"],
    )
    classes: tuple[ClassName, ...] | None = Field(
        None,
        json_schema_extra={"minItems": 1},
        description=(
            "The names of all classes, in the order of their numbers. With it the source is "
            "sampled while it is still being listed, and every machine and every run has the same "
            "numbers; objects of other classes are set aside. Without it, classes are numbered in "
            "the order of their names once the listing has come to its end, and nothing is sampled "
            "before. Another list is another generation."
        ),
        examples=[["cat", "dog"]],
    )
    manifest: TableUrl | None = LABELS
    column: Boolean = Field(
        False, description="Take the column label of source.manifest, where that has one."
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
        if self.pattern is not None:
            _check_pattern(self.pattern)
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


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern)
    except re.error as error:
        raise conflict(
            ("pattern",), f"found {pattern!r}, expected a regular expression: {error}"
        ) from None
    if groups.groups != 1 and "label" not in groups.groupindex:
        raise conflict(
            ("pattern",),
            f"found {pattern!r} with {groups.groups} groups, expected exactly one, or one "
            "named label: (?P<label>...)",
        )


class SourceConfig(SectionModel):
    """A remote store and what its objects are."""

    url: UrlOrNone = Field(
        "",
        description=(
            "The prefix under which all objects lie. s3:// is spoken natively; every other scheme "
            "goes through fsspec. Credentials come from the provider's chain (environment, "
            "profile, role), never from here. Only format python does without."
        ),
        examples=["s3://bucket/train/", "file:///data/train/"],
    )
    format: Format = Field(
        description=(
            "What one object is: files (one object, one record), webdataset (a tar or tar.gz; "
            "neighbouring members of one key are a record), tfrecord (plain, GZIP or ZLIB; its "
            "records are carried over verbatim), parquet (its rows are records), npy (windows of "
            "arrays: .npy, raw binary, zarr, HDF5) or python (your own class says; see reader)."
        )
    )
    endpoint: StoreAddress | None = Field(
        None,
        description=(
            "Address of an S3 service other than Amazon's. AWS_ENDPOINT_URL counts when this is "
            "left out."
        ),
        examples=["https://minio.example:9000"],
    )
    region: Text | None = Field(
        None,
        description="Region of the bucket, when neither the environment nor the profile says it.",
        examples=["eu-central-1"],
    )
    anonymous: Boolean = Field(
        False,
        description="Read without credentials and without looking for any: for public buckets.",
    )
    requester_pays: Boolean = Field(
        False,
        description=(
            "Have the bill for listing and reading sent to whom the credentials belong to, as the "
            "owners of some s3:// buckets require."
        ),
    )
    label: LabelConfig | None = Field(
        None, description="For files: adds the feature label (int64) to every record."
    )
    array: ArrayConfig | None = Field(
        None, description="For npy: which windows of which arrays make the records."
    )
    columns: Columns | None = Field(None, description=COLUMNS, examples=[EXAMPLE])
    manifest: TableUrl | None = MANIFEST
    reader: Reader | None = READER
    options: Options = OPTIONS

    @model_validator(mode="after")
    def _names_a_place(self) -> SourceConfig:
        check_reader(self.format, self.reader, self.options)
        if not self.url and self.format != "python":
            raise conflict(("url",), "missing: The prefix under which all objects lie")
        check_manifest(self.url, self.manifest)
        return self

    @model_validator(mode="after")
    def _somebody_pays(self) -> SourceConfig:
        if self.requester_pays and not self.url.startswith(("s3://", "s3a://")):
            scheme = self.url.partition("://")[0]
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
    def classes(self) -> tuple[str, ...]:
        """The names of the label's classes, by number, as far as they are given."""
        return (self.label.classes or ()) if self.label else ()

    @property
    def streams(self) -> bool:
        """Whether a unit is read from any of its records on, without what is before it: then it may be
        cut at will."""
        return self.format in ("tfrecord", "webdataset")

    @property
    def awaits_classes(self) -> bool:
        """Whether the classes are numbered when the listing has come to its end, and not before."""
        return self.label is not None and not self.label.classes


class WeightedSource(SourceConfig):
    """One of several sources of a dataset."""

    weight: Real = Field(1.0, gt=0, description="Share of the records, relative to the others.")


class GrowConfig(SectionModel):
    """How fast the cache grows."""

    first: PositiveSize | None = Field(
        None,
        description=(
            "How much must be cached before the first epoch begins: the first epoch's set. Small "
            "starts training sooner, large gives the first epoch more variety. Left out: 1GiB or "
            "a quarter of the limit, whichever is smaller."
        ),
        examples=["1GiB"],
    )
    per_epoch: Size | None = Field(
        None,
        description="How much each epoch may add. Left out: as fast as the link allows.",
        examples=["20GiB"],
    )
    wait: Boolean = Field(
        False,
        description=(
            "Make epoch k wait for exactly first + k * per_epoch, so that every run sees the same "
            "sets whatever the link does. Needs per_epoch."
        ),
    )

    @model_validator(mode="after")
    def _wait_knows_for_what(self) -> GrowConfig:
        if self.wait and self.per_epoch is None:
            raise conflict(
                ("wait",), "found true without per_epoch, expected per_epoch: how much to wait for"
            )
        return self

    def first_within(self, limit: int) -> int:
        """`first` in bytes, under a limit of `limit` bytes."""
        return min(1 << 30, limit // 4) if self.first is None else self.first


class EvictConfig(SectionModel):
    """How the cache rotates at its limit."""

    refresh: Real = Field(
        0.25,
        gt=0,
        le=1,
        description=(
            "Share of the cache, more than 0 and at most 1, that may be replaced at an epoch's "
            "boundary. Never more is retired than the link refilled in the last epoch."
        ),
    )


class DatasetConfig(SectionModel):
    """A named stream of shards."""

    source: SourceConfig | None = Field(None, description="Where the examples come from.")
    sources: Later[tuple[WeightedSource, ...]] = Field(
        (), description="Several weighted sources in place of one. Not available in this version."
    )
    transform: Steps = Field(
        (),
        description=(
            "Steps that prepare a record once, before it is cached: decode_image, resize, center_crop, "
            "class_map, decode_audio, tokenize, and module:function for your own. One module:function "
            "may stand alone."
        ),
        examples=[["decode_image", {"resize": 256}], "my_project.prepare:to_tensors"],
    )
    grow: GrowConfig = Field(GrowConfig(), description="How fast the cache grows.")
    evict: EvictConfig = Field(EvictConfig(), description="How the cache rotates at its limit.")
    seed: Integer = Field(
        0,
        ge=0,
        le=2**64 - 1,
        description=(
            "Decides the order in which the source is walked and the default order of reading."
        ),
    )
    pin: Boolean = Field(
        False,
        description=(
            "Fetch it first, lease it only when it is whole, and never evict it: for evaluation "
            "sets."
        ),
    )
    limit: PositiveSize | None = Field(
        None,
        description="Disk this dataset may use at most, within cache.limit.",
        examples=["100GiB"],
    )
    split: SplitConfig | None = Field(
        None, description="Hold a part out, as a dataset of its own: NAME-eval, pinned."
    )
    partition: PartitionConfig | None = Field(
        None, description="Take only this node's part of the units, so that no two nodes share one."
    )
    generation: Integer = Field(
        1,
        ge=1,
        description=(
            "Count it up to have everything prepared anew, for example after a change inside a "
            "transform's function. The old shards are served until the new ones suffice."
        ),
    )
    interleave: Integer = Field(
        16,
        ge=1,
        le=32,
        description=(
            "How many units the records of a shard come from at least, where a unit holds many: a "
            "source that is sorted, for example by class, arrives mixed. Of a unit that is larger than "
            "its share of a shard, each shard takes a part. 1: one unit after the other."
        ),
        examples=[16],
    )
    stratify: Boolean = STRATIFY
    relist: Duration | None = Field(
        None,
        description=(
            "How often the source is listed again while the daemon runs: new objects are taken up, "
            "objects that are gone are set aside, and rewritten ones are taken up anew once nothing of "
            "them is cached. Left out: once a start. Not for a pinned dataset, which is one set for all "
            "epochs."
        ),
        examples=["10m"],
    )

    @property
    def held_out(self) -> bool:
        """Whether this is the side of a split that is held out."""
        return self.split is not None and self.split.side == "held_out"

    def other_side(self) -> DatasetConfig:
        """What this dataset's split holds out: prepared in the same way, and pinned."""
        assert self.split is not None, "a dataset that is split"
        split = self.split.model_copy(update={"side": "held_out"})
        whole = {"pin": True, "grow": GrowConfig(), "evict": EvictConfig()}
        whole |= {"limit": None, "relist": None, "stratify": False}
        return self.model_copy(update={**whole, "interleave": 1, "split": split})

    @property
    def lanes(self) -> int:
        """How many units a worker mixes at a time: 1 where a unit is a single record, and units come in a
        random order anyway."""
        single = self.source is not None and self.source.format == "files"
        return 1 if single else self.interleave

    @model_validator(mode="after")
    def _sources_and_sizes_agree(self) -> DatasetConfig:
        if self.source is None:
            raise conflict((), "found no source, expected source: {url: ..., format: ...}")
        check_stratify(self.stratify, self.source.format, self.source.label is not None)
        if self.relist is not None and self.pin:
            raise conflict(
                ("relist",),
                "found relist for a pinned dataset, expected none: it is one set for all epochs; what "
                "is new is taken up at the next start",
            )
        if self.limit is not None and self.grow.first is not None and self.grow.first > self.limit:
            raise conflict(
                ("grow", "first"),
                f"found {format_size(self.grow.first)}, expected at most this dataset's limit, "
                f"{format_size(self.limit)}",
            )
        return self
