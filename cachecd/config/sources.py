"""Several weighted sources of one dataset."""

from __future__ import annotations

from pydantic import Field

from cachecd.config.section import conflict
from cachecd.config.source import SourceConfig
from cachecd.config.values import Real

SOURCES = (
    "Several sources in place of one, each with a weight: their records come in these proportions, mixed "
    "within each shard. They are read with one transform, and their records must have the same features."
)


class WeightedSource(SourceConfig):
    """One of several sources of a dataset."""

    weight: Real = Field(
        1.0,
        gt=0,
        allow_inf_nan=False,
        description=(
            "Share of the records, relative to the other sources'. It may be changed while the daemon "
            "runs, and counts from the next shard on."
        ),
        examples=[0.7],
    )


def check_sources(sources: tuple[WeightedSource, ...]) -> None:
    """That there are several, that they differ, and that their labels are numbered alike."""
    if len(sources) == 1:
        raise conflict(
            ("sources",), "found one source, expected several; one alone is source: {url: ..., ...}"
        )
    for place, source in enumerate(sources):
        others = sources[:place]
        same = [n for n, other in enumerate(others) if _what(other) == _what(source)]
        if same:
            raise conflict(
                ("sources", place),
                f"found the same source as sources.{same[0]}, expected another: its records would be "
                "in a set twice; raise the weight of one",
            )
        if source.awaits_classes:
            raise conflict(
                ("sources", place, "label"),
                "found a label without classes, expected label.classes, the same for all sources: each "
                "by itself would number its classes from 0",
            )
        labelled = [n for n, other in enumerate(others) if other.classes]
        if source.classes and labelled and sources[labelled[0]].classes != source.classes:
            raise conflict(
                ("sources", place, "label", "classes"),
                f"found other classes than in sources.{labelled[0]}, expected the same in the same order: "
                "a number would mean one class here and another there",
            )


def _what(source: WeightedSource) -> WeightedSource:
    """All but the weight; a URL names a folder whether it ends in a slash or not."""
    return source.model_copy(update={"weight": 1.0, "url": source.url.rstrip("/")})
