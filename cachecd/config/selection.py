"""The part of its source that a dataset takes: one node's part, and one side of a split."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cachecd.config.keypattern import complaint
from cachecd.config.section import SectionModel, conflict
from cachecd.config.values import Integer, Real, Text


class SplitConfig(SectionModel):
    """A hold-out by stable hash."""

    eval: Real = Field(
        gt=0,
        lt=1,
        description=(
            "Part of the source that is held out as the pinned dataset NAME-eval, prepared in the "
            "same way. A hash of each key decides, so every machine and every run makes the same "
            "choice. A larger part contains every smaller part. A change makes another generation "
            "of both datasets."
        ),
        examples=[0.01],
    )
    by: Literal["key", "unit"] = Field(
        "key",
        description=(
            "Input of the hash. key: the object's key, or the group in it. unit: the key and the "
            "position in the object, so that large objects are divided: a Parquet file into row groups, "
            "JSON lines into ranges of 64 MiB, an array into runs of windows of about 4 MiB. Overlapping "
            "windows share rows across the border of two runs."
        ),
    )
    group: Text | None = Field(
        None,
        description=(
            "Regular expression that is searched in each key. Objects with the same text in the "
            "expression's only group, or in its group named `group`, are on the same side, for "
            "example all objects of a patient. Each key without a match is a separate group."
        ),
        examples=["^(patient-[0-9]+)/"],
    )

    @model_validator(mode="after")
    def _names_one_group(self) -> SplitConfig:
        if self.by == "unit" and self.group is not None:
            raise conflict(
                ("group",),
                "`by: unit` cannot be used with `group`, because it divides objects. Use `by: key`",
            )
        why = complaint(self.group, "group") if self.group is not None else ""
        if why:
            raise conflict(("group",), why)
        return self


class PartitionConfig(SectionModel):
    """This node's part of the units, when several nodes share a source."""

    index: Integer = Field(
        ge=0,
        description=(
            "Number of this node, from 0. A hash of each unit decides which node takes the unit. Each "
            "unit is on exactly one node. Classes are numbered across the whole source."
        ),
        examples=[0],
    )
    count: Integer = Field(
        ge=1,
        description="Number of nodes. A change makes another generation.",
        examples=[8],
    )

    @model_validator(mode="after")
    def _is_one_of_them(self) -> PartitionConfig:
        if self.index >= self.count:
            raise conflict(
                ("index",),
                f"found {self.index}, expected less than partition.count, which is {self.count}: nodes "
                "are numbered from 0",
            )
        return self
