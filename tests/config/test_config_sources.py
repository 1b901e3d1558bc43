"""Several sources in the configuration: what is refused, where, and what a change of it changes."""

from __future__ import annotations

from typing import Any

import pytest

from cachecd.config import DatasetConfig
from cachecd.preflight import generation_of, listing_of

ONE = "{url: 's3://b/one/', format: files, weight: 3}"
TWO = "{url: 's3://b/two/', format: tfrecord}"
LABELS = "label: {pattern: '^(.)/', classes: [%s]}"


def with_sources(good: str, sources: str, more: str = "") -> str:
    """The good configuration with another dataset."""
    return good + f"  mixed: {{sources: [{sources}]{more}}}\n"


def test_several_sources_load_with_their_weights(loaded, good):
    found = loaded(with_sources(good, f"{ONE}, {TWO}")).datasets["mixed"]
    assert found.weights == (3.0, 1.0)
    assert [source.name for source in found.all_sources] == ["s3://b/one/", "s3://b/two/"]
    assert loaded(good).datasets["train"].weights == (1.0,)


MISTAKES = {
    "one alone": (ONE, "", "sources: found one source, expected several"),
    "none": ("", "", "found no source, expected source"),
    "both": (f"{ONE}, {TWO}", f", source: {TWO}", "sources: found sources beside source"),
    "the same twice": (
        f"{ONE}, {ONE.replace('3}', '1}')}",
        "",
        "sources.1: found the same source as sources.0",
    ),
    "the same with a slash and without": (
        f"{ONE}, {ONE.replace('one/', 'one')}",
        "",
        "sources.1: found the same source as sources.0",
    ),
    "a weight of nothing": (f"{ONE.replace('3}', '0}')}, {TWO}", "", "more than 0"),
    "a negative weight": (f"{ONE.replace('3}', '-1}')}, {TWO}", "", "more than 0"),
    "no number": (f"{ONE.replace('3}', '.nan}')}, {TWO}", "", "sources.0.weight: found nan"),
    "no end": (f"{ONE.replace('3}', '.inf}')}, {TWO}", "", "sources.0.weight: found inf"),
    "no weight": (f"{ONE.replace('3}', 'null}')}, {TWO}", "", "sources.0.weight: found nothing"),
    "a misspelt key": (f"{ONE.replace('weight', 'wieght')}, {TWO}", "", "did you mean 'weight'?"),
    "labels without classes": (
        f"{{url: 's3://b/x/', format: files, label: {{pattern: '^(.)/'}}}}, {TWO}",
        "",
        "sources.0.label: found a label without classes",
    ),
    "other classes": (
        f"{{url: 's3://b/x/', format: files, {LABELS % 'a, b'}}}, "
        f"{{url: 's3://b/y/', format: files, {LABELS % 'b, a'}}}",
        "",
        "sources.1.label.classes: found other classes than in sources.0",
    ),
}


@pytest.mark.parametrize(("sources", "more", "expected"), MISTAKES.values(), ids=MISTAKES.keys())
def test_what_cannot_be_is_refused_with_its_place(complaints, good, sources, more, expected):
    (line,) = complaints(with_sources(good, sources, more))
    assert expected in line
    assert line.split(":")[0].isdigit()


def dataset(*weights: float, **changes: Any) -> DatasetConfig:
    sources = [
        {"url": f"s3://b/{n}/", "format": "files", "weight": weight, **changes}
        for n, weight in enumerate(weights)
    ]
    return DatasetConfig.model_validate({"sources": sources})


def test_a_weight_is_no_part_of_listing_and_generation_and_the_sources_are():
    one, other = dataset(1.0, 2.0), dataset(0.5, 7.0)
    assert (listing_of(one), generation_of(one)) == (listing_of(other), generation_of(other))
    turned = DatasetConfig(sources=tuple(reversed(one.sources)))
    elsewhere = dataset(1.0, 2.0, endpoint="https://x.example")
    assert (listing_of(one), generation_of(one)) == (
        listing_of(elsewhere),
        generation_of(elsewhere),
    )
    every = [one, turned, dataset(1.0, 2.0, 3.0)]
    assert len(set(map(listing_of, every))) == len(set(map(generation_of, every))) == len(every)
