"""The key of a dataset by which each class has its share of every shard."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cachecd.config.section import conflict

STRATIFY: Any = Field(
    False,
    description=(
        "Draw units so that every shard, and every set while it grows, has the label's classes in about "
        "the proportions of the source, and rare ones are spread evenly over the pass instead of by "
        "chance. Units without a label are a class of their own. For files with a label. Nothing is "
        "sampled before the listing has come to its end, and the order takes 4 bytes a unit of the "
        "daemon's memory. Changed, the walk begins anew, and what is cached stays."
    ),
    examples=[True],
)


def check_stratify(stratify: bool, format: str, labelled: bool) -> None:
    """That the class of a unit can be known before it is read."""
    if stratify and format != "files":
        raise conflict(
            ("stratify",),
            f"found true for format {format}, expected it for files with a label: the classes of its "
            "records are not known before they are read. a shard mixes the records of 16 units",
        )
    if stratify and not labelled:
        raise conflict(
            ("stratify",),
            "found true without source.label, expected source.label with pattern, manifest or column: "
            "by which class an object counts",
        )
