"""What the configuration says of one dataset: its source, its growth, its eviction."""

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
            "Share of the cache, more than 0 and at most 1, that may be replaced when an epoch begins. "
            "Never more is retired than was fetched, or read, in the epoch before."
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
            "Steps that prepare a record once, before it is cached: shrink, decode_image, resize, "
            "center_crop, class_map, decode_audio, and module:function for your own. One "
            "module:function may stand alone."
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
            "Decides the order in which the source is sampled, and the default order of reading. A "
            "generation keeps its order of sampling."
        ),
    )
    streams: Integer = Field(
        8,
        ge=1,
        le=1024,
        description=(
            "How many sequences of records are sampled side by side, at most; fewer where there are few "
            "units or little room. A generation keeps its number. More streams keep more workers busy."
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
    relist: Duration | None = Field(
        None,
        description=(
            "How often the source is listed again while the daemon runs. New and rewritten objects are "
            "sampled from the next pass on. Left out: once a start. Not for a pinned dataset, which is "
            "one set for all epochs."
        ),
        examples=["10m"],
    )

    _held_out: bool = PrivateAttr(False)

    @property
    def held_out(self) -> bool:
        """Whether this dataset is what the split of another one holds out."""
        return self._held_out

    def other_side(self) -> DatasetConfig:
        """What this dataset's split holds out: prepared in the same way, and pinned."""
        whole = {"pin": True, "grow": GrowConfig(), "evict": EvictConfig()}
        other = self.model_copy(update={**whole, "limit": None, "relist": None})
        other._held_out = True
        return other

    @model_validator(mode="after")
    def _steps_read_what_is_joined(self) -> DatasetConfig:
        names = self.source.join or {"payload": ""}
        for place, step in enumerate(self.transform):
            if step.argument is None:  # a function, which may add any feature
                break
            reads = step.argument.get("features") or [step.argument.get("feature")]
            if "payload" in reads and "payload" not in names:
                raise conflict(
                    ("transform", place),
                    f"{step.name} reads the feature payload, expected one of source.join: "
                    + ", ".join(names),
                )
        return self

    @model_validator(mode="after")
    def _keys_agree(self) -> DatasetConfig:
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
