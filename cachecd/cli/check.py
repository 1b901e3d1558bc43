"""`cachecd check CONFIG`: is this configuration good, and what does it come to?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.quantities import Percent, approximate_size, format_rate, format_size

if TYPE_CHECKING:
    from cachecd.config import Config, DatasetConfig
    from cachecd.preflight import Figures


def command(
    config: Annotated[Path, typer.Argument(help="The YAML file.")],
    sources: Annotated[
        bool, typer.Option("--sources", help="Also look whether each source can be listed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a configuration and say what it comes to on this machine.

    Every mistake is one line on stderr with file, line and column, and the exit code is 2. Nothing
    is made on disk.
    """
    from cachecd.config import load

    loaded = load(config)
    from cachecd import preflight  # after the cheap part: it brings in what talks to stores

    figures = preflight.figures(loaded)
    preflight.check_disk(loaded)
    noticed: dict[str, str] = {}
    if sources:
        from cachecd.firstlook import check_sources

        noticed = check_sources(loaded)
    if as_json:
        print(json.dumps(_document(loaded, figures, noticed), indent=2))
        return
    for left, right in _summary(loaded, figures, noticed):
        print(f"{left:<10}{right}")


def _document(config: Config, figures: Figures, noticed: dict[str, str]) -> dict[str, Any]:
    return {
        "config": config.model_dump(mode="json"),
        "resolved": {
            "limit_bytes": figures.limit,
            "datasets": {
                rules.name: {
                    "first_bytes": rules.first,
                    "generation": rules.generation,
                    "noticed": noticed.get(rules.name, ""),
                }
                for rules in figures.datasets
            },
        },
    }


def _summary(
    config: Config, figures: Figures, noticed: dict[str, str]
) -> Iterator[tuple[str, str]]:
    cache, sampler = config.cache, config.sampler
    share = f", {cache.limit} of its file system" if isinstance(cache.limit, Percent) else ""
    yield "cache", str(cache.dir)
    yield "", f"at most {approximate_size(figures.limit)}{share}"
    yield "", f"shards of {format_size(cache.shard_size)}"
    if cache.reserve_free:
        yield "", f"leaves {format_size(cache.reserve_free)} of the file system free"
    if cache.scrub is not None:
        yield "", f"read again and verified at {format_rate(cache.scrub)}"
    for rules in figures.datasets:
        dataset = config.datasets[rules.name]
        yield "dataset", rules.name
        for line in _dataset(dataset, rules.first):
            yield "", line
        if rules.name in noticed:
            yield "", noticed[rules.name]
    rate = "" if sampler.bandwidth is None else f", at most {format_rate(sampler.bandwidth)}"
    yield "sampler", f"{sampler.workers} processes, {sampler.connections} connections{rate}"
    if sampler.python:
        yield "", f"run by {sampler.python}"
    yield "server", config.server.endpoint


def _dataset(dataset: DatasetConfig, first: int) -> Iterator[str]:
    grow, source = dataset.grow, dataset.source
    assert source is not None, "the configuration requires a source"
    yield f"{source.format} of {source.url}"
    if source.label and source.label.pattern:
        given = f", of {len(source.classes)} classes" if source.classes else ""
        yield f"labels by {source.label.pattern}{given}"
    if dataset.transform:
        yield f"prepared by {', '.join(step.name for step in dataset.transform)}"
    if dataset.pin:
        yield "pinned: fetched first, leased when whole, never evicted"
        return
    pace = (
        "as fast as the link allows"
        if grow.per_epoch is None
        else f"by {'exactly' if grow.wait else 'at most'} {format_size(grow.per_epoch)} an epoch"
    )
    yield f"begins with {approximate_size(first)}, then grows {pace}"
    if dataset.limit is not None:
        yield f"at most {format_size(dataset.limit)} of the cache"
    yield f"at the limit, at most {dataset.evict.refresh:.0%} is replaced an epoch"
