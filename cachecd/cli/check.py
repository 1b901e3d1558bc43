"""`cachecd check CONFIG`: is this configuration good, and what does it come to?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.quantities import Percent, approximate_size, format_rate, format_size

if TYPE_CHECKING:
    from cachecd.config import Config, DatasetConfig, SourceConfig
    from cachecd.preflight import Figures
    from cachecd.rules import DatasetRules
    from cachecd.cli.sampler import Sample


_ENOUGH = 256 << 10  # bytes of records to estimate by; of less, most is what any start costs


def command(
    config: Annotated[Path, typer.Argument(help="The YAML file.")],
    sources: Annotated[
        bool,
        typer.Option(
            "--sources", help="Also list the first objects of each source and prepare some of them."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a configuration and say what it comes to on this machine.

    Every mistake is one line on stderr with file, line and column, and the exit code is 2. Nothing
    is made on disk. With --sources the first objects go through the transform, in this process:
    their records are shown, and how long the cache takes to fill is estimated from that, and how many
    images it holds.
    """
    from cachecd.config import load

    loaded = load(config)
    from cachecd import preflight  # after the cheap part: it brings in what talks to stores
    from cachecd.disk.filesystem import refuse_network_filesystem

    figures = preflight.figures(loaded)
    refuse_network_filesystem(loaded.cache.dir)
    noticed: dict[str, str] = {}
    samples: dict[str, Sample] = {}
    if sources:
        from cachecd.cli.capacity import LOOKED_AT, capacity
        from cachecd.firstlook import check_sources
        from cachecd.cli.sampler import Sampler

        noticed = check_sources(loaded)
        for rules in figures.datasets:
            sampler = Sampler(loaded, rules.name)
            samples[rules.name] = sample = sampler.take(sampler.beginning(), LOOKED_AT)
            sample.capacity = capacity(loaded, sampler, sample, rules.limit or figures.limit)
            del sample.records[1:]  # one is shown
    if as_json:
        print(json.dumps(_document(loaded, figures, noticed, samples), indent=2))
    else:
        for left, right in _summary(loaded, figures, noticed, samples):
            print(f"{left:<10}{right}")
    for name, sample in samples.items():
        if not sample.records:
            from cachecd.errors import UnitError
            from cachecd.quantities import printable

            reasons = Counter(aside.reason for aside in sample.set_aside)
            ((reason, count),) = reasons.most_common(1)
            raise UnitError(
                f"datasets.{name}: of the first {len(sample.units)} units none gives a record; {count} x "
                f"{printable(reason)}"
            )


def _document(
    config: Config, figures: Figures, noticed: dict[str, str], samples: dict[str, Sample]
) -> dict[str, Any]:
    from cachecd.cli.sample_view import document

    return {
        "config": config.model_dump(mode="json"),
        "resolved": {
            "limit_bytes": figures.limit,
            "datasets": {
                rules.name: {
                    "first_bytes": rules.first,
                    "generation": rules.generation,
                    "noticed": noticed.get(rules.name, ""),
                    **(
                        {
                            "sample": document(samples[rules.name], {}),
                            "estimate": _estimate(samples[rules.name], config, figures, rules),
                            "capacity": samples[rules.name].capacity,
                        }
                        if rules.name in samples
                        else {}
                    ),
                }
                for rules in figures.datasets
            },
        },
    }


def _estimate(
    sample: Sample, config: Config, figures: Figures, rules: DatasetRules
) -> dict[str, float]:
    """Seconds to grow.first and to the limit at the rate of this one read by one process; with more of
    them it takes as long at most, unless the link or the store gives less to several."""
    rate = sample.bytes_per_second
    if sample.outcome.data_bytes < _ENOUGH:
        return {}
    return {
        "bytes_per_second": round(rate),
        "processes": config.sampler.workers,
        "first_s": round(rules.first / rate, 1),
        "limit_s": round((rules.limit or figures.limit) / rate, 1),
    }


def _read(sample: Sample, config: Config, figures: Figures, rules: DatasetRules) -> Iterator[str]:
    from cachecd.quantities import approximate_duration
    from cachecd.cli.sample_view import lines

    outcome = sample.outcome
    yield (
        f"read {sample.read} of the first {len(sample.units)} units: "
        f"{approximate_size(outcome.fetched_bytes)} fetched in {outcome.seconds:.2f} s, "
        f"{outcome.records} records of {approximate_size(outcome.data_bytes)}"
    )
    for left, right in lines(sample, {}):
        yield f"{left}: {right}" if left else f"  {right}"
    if estimate := _estimate(sample, config, figures, rules):
        first, limit = (approximate_duration(estimate[s]) for s in ("first_s", "limit_s"))
        begins = "" if rules.pin else f"grow.first takes {first}, "
        yield (
            f"an estimate from this read alone: {begins}filling the limit {limit}, at "
            f"{approximate_size(sample.bytes_per_second)}/s of records by one process; "
            f"{config.sampler.workers} share the work as far as the link allows"
        )
    elif sample.records:
        yield "too little was read to estimate how long the cache takes to fill"
    if sample.capacity:
        yield sample.capacity


def _summary(
    config: Config, figures: Figures, noticed: dict[str, str], samples: dict[str, Sample]
) -> Iterator[tuple[str, str]]:
    cache, sampler = config.cache, config.sampler
    share = f", {cache.limit} of its file system" if isinstance(cache.limit, Percent) else ""
    yield "cache", str(cache.dir)
    yield "", f"at most {approximate_size(figures.limit)}{share}"
    yield "", f"shards of {format_size(cache.shard_size)}"
    if cache.reserve_free:
        yield "", f"leaves {format_size(cache.reserve_free)} of the file system free"
    for rules in figures.datasets:
        dataset = config.datasets[rules.name]
        yield "dataset", rules.name
        for line in _dataset(dataset, rules.first):
            yield "", line
        if rules.name in noticed:
            yield "", noticed[rules.name]
        if rules.name in samples:
            for line in _read(samples[rules.name], config, figures, rules):
                yield "", line
    rate = "" if sampler.bandwidth is None else f", at most {format_rate(sampler.bandwidth)}"
    yield "sampler", f"{sampler.workers} processes, {sampler.connections} connections{rate}"
    if sampler.python:
        yield "", f"run by {sampler.python}"
    for folder in sampler.path:
        yield "", f"imports from {folder} first"
    yield "server", config.server.endpoint


def _dataset(dataset: DatasetConfig, first: int) -> Iterator[str]:
    grow = dataset.grow
    yield from _source(dataset.source)
    if dataset.split is not None:
        side = "held out" if dataset.held_out else "all but what is held out"
        by = f", by {dataset.split.by}" if dataset.split.group is None else ", by whole groups"
        yield f"{side}: {dataset.split.eval:.3g} of it{by}"
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


def _source(source: SourceConfig) -> Iterator[str]:
    yield f"{source.format} of {source.url or source.reader}"
    if source.url and source.reader:
        yield f"read by {source.reader}"
    for key in ("match", "skip"):
        if patterns := getattr(source, key):
            yield f"{key} {', '.join(patterns)}"
    if source.join:
        yield "joined: " + ", ".join(f"{name} {pattern}" for name, pattern in source.join.items())
    if source.manifest:
        yield f"listed by {source.manifest}"
    if source.label and source.label.manifest:
        yield f"labels of {source.label.manifest}"
    if source.label and source.label.pattern:
        given = f", of {len(source.classes)} classes" if source.classes else ""
        yield f"labels by {source.label.pattern}{given}"
