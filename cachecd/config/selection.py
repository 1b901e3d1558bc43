"""Which part of its source a dataset takes: a node's, and what is not held out."""

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
            "Share of the source that is held out, as a pinned dataset NAME-eval. What that is follows "
            "from keys alone, or with `by: unit` from keys and places in objects: on every machine and "
            "in every run the same. Another share is another generation; a larger one holds out all "
            "that a smaller one did."
        ),
        examples=[0.01],
    )
    by: Literal["key", "unit"] = Field(
        "key",
        description=(
            "What is hashed. key: the object's key, or its group in it, so that an object is on one "
            "side. unit: the key and the place in the object, so that one large object is divided: an "
            "array by runs of windows of about 4 MiB, a Parquet file by row groups. Windows that overlap "
            "share rows across the border of two runs."
        ),
    )
    group: Text | None = Field(
        None,
        description=(
            "Regular expression, searched in each object's key; objects whose only group, or group "
            "named group, is the same stay on one side: those of one patient, or one recording. A key "
            "in which it is not found is a group by itself."
        ),
        examples=["^(patient-[0-9]+)/"],
    )

    @model_validator(mode="after")
    def _names_one_group(self) -> SplitConfig:
        if self.by == "unit" and self.group is not None:
            raise conflict(
                ("group",),
                "found a group with by: unit, which divides objects; expected by: key, which keeps the "
                "objects of a group on one side",
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
            "Number of this node, from 0: each node takes the units whose keys' hash leaves this "
            "number. ${RANK} or the like takes it from the environment."
        ),
        examples=[0],
    )
    count: Integer = Field(
        ge=1,
        description="How many nodes there are. Another number is another generation.",
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
