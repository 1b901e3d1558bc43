"""The configuration of one dataset: its source, its growth, its eviction."""

from __future__ import annotations

from pydantic import Field, PrivateAttr, model_validator

from cachecd.config.section import SectionModel, conflict
from cachecd.config.selection import PartitionConfig, SplitConfig
from cachecd.config.source import SourceConfig
from cachecd.config.transforms import Steps
from cachecd.config.values import Boolean, Duration, Integer, PositiveSize, Real, Size
from cachecd.quantities import format_size


class GrowConfig(SectionModel):
    """How fast the cache grows."""

    first: PositiveSize | None = Field(
        None,
        description=(
            "Data to cache before the first epoch begins. With a small value, training starts "
            "sooner; with a large value, the first epoch has more variety. At most half of the "
            "dataset's share counts. Default: 1GiB, or a quarter of the limit if that is smaller."
        ),
        examples=["1GiB"],
    )
    per_epoch: Size | None = Field(
        None,
        description=(
            "Data that each epoch may add after `first`. Default: as fast as the link allows."
        ),
        examples=["20GiB"],
    )
    wait: Boolean = Field(
        False,
        description=(
            "Epoch k waits until the cached data is exactly `first + k * per_epoch`. So every run has "
            "the same sets, regardless of the speed of the link. `wait` has no effect once a shard has "
            "been retired. Needs `per_epoch`."
        ),
    )

    @model_validator(mode="after")
    def _wait_knows_for_what(self) -> GrowConfig:
        if self.wait and self.per_epoch is None:
            raise conflict(
                ("wait",), "`wait` needs `per_epoch`: set it to the data that each epoch adds"
            )
        return self

    def first_within(self, limit: int) -> int:
        """Returns `first` in bytes, under a limit of `limit` bytes."""
        return min(1 << 30, limit // 4) if self.first is None else self.first


class EvictConfig(SectionModel):
    """How the cache rotates at its limit."""

    refresh: Real = Field(
        0.25,
        gt=0,
        le=1,
        description=(
            "Part of a full share that may be retired when an epoch begins. Never more data is retired "
            "than the link refills, or than trainers received since the last rotation."
        ),
    )


class DatasetConfig(SectionModel):
    """A named stream of shards."""

    source: SourceConfig = Field(
        description="Where the examples come from, {url: ..., format: ...}."
    )
    transform: Steps = Field(
        (),
        description=(
            "The steps that prepare each record once, before it is cached. A step is a ready-made step, or "
            "your own function, written as `module:function`. A single function needs no list."
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
            "Determines the default order of reading, and the order of fetching. A generation keeps its "
            "order of fetching."
        ),
    )
    streams: Integer = Field(
        8,
        ge=1,
        le=1024,
        description=(
            "Maximum number of streams that are fetched at the same time. More streams keep more workers "
            "busy. There is at most one stream for each 8 units of the first block of the listing, and "
            "for each 4 shards of the share. A generation keeps its number of streams."
        ),
    )
    pin: Boolean = Field(
        False,
        description=(
            "For evaluation sets: the dataset is fetched first, leased only when it is whole, and "
            "never evicted."
        ),
    )
    limit: PositiveSize | None = Field(
        None,
        description="Maximum disk usage of this dataset, within `cache.limit`.",
        examples=["100GiB"],
    )
    split: SplitConfig | None = Field(
        None,
        description="Holds out a part of the source as a separate, pinned dataset: NAME-eval.",
    )
    partition: PartitionConfig | None = Field(
        None,
        description="This node's part of the units, if several nodes share a source.",
    )
    generation: Integer = Field(
        1,
        ge=1,
        description=(
            "A higher number prepares all records again, for example after a change inside a "
            "transform's function. The old shards are leased until `grow.first` of new shards is "
            "cached."
        ),
    )
    relist: Duration | None = Field(
        None,
        description=(
            "How often the source is listed again. New and rewritten objects are fetched in the "
            "next pass. Default: only at each start. Not allowed for a pinned dataset."
        ),
        examples=["10m"],
    )

    _held_out: bool = PrivateAttr(False)

    @property
    def held_out(self) -> bool:
        """Whether this dataset is the held-out part of another dataset."""
        return self._held_out

    def other_side(self) -> DatasetConfig:
        """Returns the pinned dataset of the records that this dataset's split holds out."""
        whole = {"pin": True, "grow": GrowConfig(), "evict": EvictConfig()}
        other = self.model_copy(update={**whole, "limit": None, "relist": None})
        other._held_out = True
        return other

    @model_validator(mode="after")
    def _steps_read_what_is_joined(self) -> DatasetConfig:
        names = self.source.join or {"payload": ""}
        for place, step in enumerate(self.transform):
            if step.argument is None or "function" in step.argument:
                break  # a function may add any feature
            reads = step.argument.get("features") or [step.argument.get("feature")]
            if "payload" in reads and "payload" not in names:
                raise conflict(
                    ("transform", place),
                    f"{step.name} reads the feature payload, which `source.join` does not name. Set "
                    f"`feature` or `features` to one of {', '.join(names)}",
                )
        return self

    @model_validator(mode="after")
    def _packs_once(self) -> DatasetConfig:
        places = [place for place, step in enumerate(self.transform) if step.name == "pack"]
        if len(places) > 1:
            raise conflict(
                ("transform", places[1]),
                "a second `pack` would take the padding of the first for tokens: remove one of them",
            )
        return self

    @model_validator(mode="after")
    def _keys_agree(self) -> DatasetConfig:
        if self.source.features and not self.transform and self.source.format in ("files", "npy"):
            raise conflict(
                ("source", "features"),
                f"all records of format {self.source.format} have the same features: remove `features`, or "
                "set `transform`",
            )
        if self.relist is not None and self.pin:
            raise conflict(
                ("relist",),
                "a pinned dataset cannot have `relist`, because it is one set for all epochs. A restart "
                "adds new objects",
            )
        if self.limit is not None and self.grow.first is not None and self.grow.first > self.limit:
            raise conflict(
                ("grow", "first"),
                f"found {format_size(self.grow.first)}, expected at most this dataset's limit, "
                f"{format_size(self.limit)}",
            )
        return self
