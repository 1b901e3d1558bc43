"""`cachecd check CONFIG`: is this configuration valid, and which sizes and rules follow from it?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.quantities import Percent, approximate_size, format_rate, format_size

if TYPE_CHECKING:
    from cachecd.cli.capacity import Capacity
    from cachecd.cli.sampler import Sample
    from cachecd.config import Config, DatasetConfig, SourceConfig
    from cachecd.policy.values import Rules


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
    """Check a configuration and print the sizes and rules that follow from it.

    Every mistake is one line on stderr with file, line and column, and the exit code is 2. Nothing is
    written to disk. With --sources, the first objects go through the transform in this process: the command
    shows one of their records and estimates how much of the source an epoch has.
    """
    from cachecd.config import load, placed

    loaded = load(config)
    from cachecd.daemon.rules import refuse_large_limit, resolve  # after the cheap part
    from cachecd.disk.filesystem import refuse_network_filesystem

    with placed(config):
        resolved = _Resolved(loaded, *resolve(loaded))
        refuse_large_limit(loaded, resolved.limit)
    refuse_network_filesystem(loaded.cache.dir)
    _find_stale(resolved)
    if sources:
        with placed(config):
            _look(resolved)
            sizes = {n: c.size for n, c in resolved.capacities.items() if c.size is not None}
            resolve(loaded, sizes)
    if as_json:
        print(json.dumps(_document(resolved), indent=2))
    else:
        for left, right in _summary(resolved):
            print(f"{left:<10}{right}")
    for name, sample in resolved.samples.items():
        if not sample.records:
            from cachecd.errors import UnitError
            from cachecd.quantities import printable

            reasons = Counter(skipped.reason for skipped in sample.skipped)
            ((reason, count),) = reasons.most_common(1)
            raise UnitError(
                f"datasets.{name}: of the first {len(sample.units)} units none gives a record; {count} x "
                f"{printable(reason)}"
            )


@dataclass(slots=True)
class _Resolved:
    """A configuration with its limit and rules in bytes, the results of looking at its sources, and the
    values (`stale`) that count from the next generation on. `listed`: sentences about the listings: what a
    split holds out, and what is left out."""

    config: Config
    limit: int
    rules: tuple[Rules, ...]
    stale: dict[str, list[str]] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    capacities: dict[str, Capacity] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)

    def part(self, rules: Rules) -> int:
        """The bytes that a dataset may use, roughly, beside the other datasets."""
        return rules.limit or self.limit // max(1, sum(not each.pin for each in self.rules))


def _find_stale(resolved: _Resolved) -> None:
    """Compares the configuration with the generations in the cache directory."""
    from cachecd.daemon.status import stale_values
    from cachecd.disk.generation_file import read_generation
    from cachecd.disk.layout import Layout

    config, layout = resolved.config, Layout(resolved.config.cache.dir)
    names = {rules.name: rules.generation for rules in resolved.rules}
    for name, directory in layout.generations():
        known = read_generation(layout.generation(name, directory).identity)
        if known is not None and directory.partition("-")[0] == names.get(name):
            dataset, size = config.datasets[name], config.cache.shard_size
            resolved.stale[name] = stale_values(dataset, size, known)


def _look(resolved: _Resolved) -> None:
    """Looks at each source, and takes a sample of it."""
    from cachecd.cli.capacity import LOOKED_AT, capacity
    from cachecd.cli.sampler import Sampler
    from cachecd.daemon.workers import lister_of
    from cachecd.units.first_look import check_sources

    config = resolved.config
    check_sources(config, lister_of(config, is_owner=False))
    for rules in resolved.rules:
        sampler = Sampler(config, rules.name)
        resolved.samples[rules.name] = sample = sampler.take(sampler.beginning(), LOOKED_AT)
        limit = resolved.part(rules)
        resolved.capacities[rules.name] = capacity(config, sampler, sample, limit)
        left_out = sampler.left_out
        lines = sampler.held_out, left_out.kinds and f"left out: {left_out}", left_out.warning
        resolved.listed[rules.name] = [line for line in lines if line]
        del sample.records[1:]  # one is shown


def _document(resolved: _Resolved) -> dict[str, Any]:
    return {
        "config": resolved.config.model_dump(mode="json"),
        "resolved": {
            "limit_bytes": resolved.limit,
            "datasets": {rules.name: _of_dataset(resolved, rules) for rules in resolved.rules},
        },
    }


def _of_dataset(resolved: _Resolved, rules: Rules) -> dict[str, Any]:
    from cachecd.cli.sample_view import document

    about: dict[str, Any] = {
        "first_bytes": rules.first,
        "generation": rules.generation,
        "from_next_generation": resolved.stale.get(rules.name, []),
    }
    if rules.name in resolved.samples:
        held = resolved.capacities[rules.name]
        about["sample"] = document(resolved.samples[rules.name], {})
        about |= {"epoch": held.epoch, "capacity": held.images, "set_bytes": held.size}
        about["listed"] = resolved.listed[rules.name]
    return about


def _read(resolved: _Resolved, rules: Rules) -> Iterator[str]:
    from cachecd.cli.sample_view import lines

    sample, held = resolved.samples[rules.name], resolved.capacities[rules.name]
    outcome = sample.outcome
    odd = outcome.num_passed
    yield (
        f"read {sample.read} of the first {len(sample.units)} units: "
        f"{approximate_size(outcome.fetched_bytes)} fetched in {outcome.seconds:.2f} s, "
        f"{outcome.records} {f'of {outcome.records + odd} ' if odd else ''}records of "
        f"{approximate_size(outcome.data_bytes)}{f', {odd} skipped' if odd else ''}"
    )
    for left, right in lines(sample, {}):
        yield f"{left}: {right}" if left else f"  {right}"
    yield from filter(None, (*resolved.listed[rules.name], held.epoch, held.images))


def _summary(resolved: _Resolved) -> Iterator[tuple[str, str]]:
    config = resolved.config
    cache, sampler = config.cache, config.sampler
    share = f", {cache.limit} of its file system" if isinstance(cache.limit, Percent) else ""
    yield "cache", str(cache.dir)
    yield "", f"at most {approximate_size(resolved.limit)}{share}"
    yield "", f"shards of {format_size(cache.shard_size)}"
    if cache.reserve_free:
        yield "", f"leaves {format_size(cache.reserve_free)} of the file system free"
    for rules in resolved.rules:
        dataset = config.datasets[rules.name]
        yield "dataset", rules.name
        for line in _dataset(dataset, min(rules.first, resolved.part(rules) // 2)):
            yield "", line
        for value in resolved.stale.get(rules.name, ()):
            yield "", f"counts from the next generation on: {value}"
        if rules.name in resolved.samples:
            for line in _read(resolved, rules):
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
        side = "held out" if dataset.held_out else "all other records"
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
