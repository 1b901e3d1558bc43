"""`cachecd check CONFIG`: is this configuration valid, and which sizes and rules does it give?"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cachecd.quantities import Percent, approximate_size, format_rate, format_size, printable

if TYPE_CHECKING:
    from cachecd.cli.capacity import Capacity
    from cachecd.cli.progress import Progress
    from cachecd.cli.sampler import Sample, Sampler
    from cachecd.config import Config, DatasetConfig, SourceConfig
    from cachecd.model import Unit
    from cachecd.policy.values import Rules

_HEAD = 256 << 10  # bytes of an object that show its format


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
    """Check a configuration and print its sizes and rules in bytes.

    Each mistake is one line on stderr with file, line and column; then the exit code is 2. The command
    writes nothing to disk. With --sources, it transforms the first objects in this process, shows one of
    their records, and estimates how much of the source an epoch has.
    """
    from cachecd.config import load, placed

    loaded = load(config)
    from cachecd.daemon.rules import refuse_large_limit, resolve  # slow, so after `load`
    from cachecd.disk.filesystem import refuse_network_filesystem

    with placed(config):
        resolved = _Resolved(loaded, *resolve(loaded))
        refuse_large_limit(loaded, resolved.limit)
    refuse_network_filesystem(loaded.cache.dir)
    _find_stale(resolved)
    if sources:
        from cachecd.cli.progress import Progress

        with placed(config), Progress() as progress:
            _sample_sources(resolved, progress)
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

            reasons = Counter(skipped.reason for skipped in sample.outcome.skipped)
            ((reason, count),) = reasons.most_common(1) or [("no line begins in it", 0)]
            raise UnitError(
                f"datasets.{name}: none of the first {len(sample.units)} units has a record; "
                f"{count or len(sample.units)} x {printable(reason)}"
            )


@dataclass(slots=True)
class _Resolved:
    """A configuration with its limit and rules in bytes, and the samples of its sources. `stale`: changed
    values that take effect with the next generation. `listed`: sentences about each listing: the part that
    the split holds out, and the omitted objects."""

    config: Config
    limit: int
    rules: tuple[Rules, ...]
    stale: dict[str, list[str]] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    capacities: dict[str, Capacity] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)

    def part(self, rules: Rules) -> int:
        """Returns roughly how many bytes the dataset may use: its limit, or an equal part of the cache."""
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


def _sample_sources(resolved: _Resolved, progress: Progress) -> None:
    """Lists the beginning of each source, and takes a sample."""
    from cachecd.cli.capacity import SAMPLED, capacity
    from cachecd.cli.sample_view import measure_decoding
    from cachecd.cli.sampler import Sampler
    from cachecd.daemon.workers import lister_of
    from cachecd.units.first_look import check_sources

    config = resolved.config
    progress.note("listing the first objects of each source")
    check_sources(config, lister_of(config, is_owner=False))
    for rules in resolved.rules:
        progress.note(f"{rules.name}: listing")
        sampler = Sampler(config, rules.name)
        units = sampler.beginning()
        progress.note(f"{rules.name}: preparing {len(units)} units")
        resolved.samples[rules.name] = sample = sampler.take(units, SAMPLED)
        progress.note(f"{rules.name}: estimating what the limit holds")
        limit = resolved.part(rules)
        resolved.capacities[rules.name] = capacity(config, sampler, sample, limit)
        left_out = sampler.left_out
        lines = (
            sampler.held_out,
            left_out.kinds and f"omitted: {left_out}",
            left_out.warning,
            _json_hint(config.datasets[rules.name].source, sampler, sample),
            *_packing(config, rules.name, units),
        )
        resolved.listed[rules.name] = [line for line in lines if line]
        measure_decoding(sample)
        del sample.records[1:]  # the command shows one record


def _packing(config: Config, name: str, units: tuple[Unit, ...]) -> Iterator[str]:
    """Yields the padding and the cut documents of each `fit`, for the documents of these units."""
    steps = config.datasets[name].transform
    for place, step in enumerate(steps):
        if step.name != "pack":
            continue
        import numpy as np

        from cachecd.cli.sampler import Sampler
        from cachecd.sampler.transforms.pack import survey

        documents = Sampler(config, name, place).take(units, sys.maxsize).records
        values = (record.values.get(step.argument["feature"]) for record in documents)
        lengths = [
            len(each)
            for each in values
            if isinstance(each, np.ndarray) and each.ndim == 1 and each.dtype.kind in "iu"
        ]
        if not any(lengths):
            return
        shares = survey(lengths, step.argument["window"], step.argument["stride"])
        yield f"pack: {len(lengths)} documents, {sum(lengths)} tokens"
        for fit, (padding, cut) in shares.items():
            yield f"  fit: {fit} pads {padding:.2%} of the positions, and cuts {cut:.1%} of the documents"


def _json_hint(source: SourceConfig, sampler: Sampler, sample: Sample) -> str:
    """Returns a line if the first object has JSON lines, but the format reads it as something else."""
    from cachecd.cli.json_survey import json_lines
    from cachecd_client.files.inflate import inflated_head

    is_known = source.format in ("jsonl", "python") or bool(source.join)
    if is_known or (source.format != "files" and sample.records):
        return ""
    head = sampler.head(sample.units[0], _HEAD)
    if len(json_lines(inflated_head(head, 4 * _HEAD))) < 2:
        return ""
    return (
        f"{printable(sample.units[0].key)} has JSON lines: with format jsonl, each line is a record"
    )


def _document(resolved: _Resolved) -> dict[str, Any]:
    return {
        "config": resolved.config.model_dump(mode="json"),
        "resolved": {
            "limit_bytes": resolved.limit,
            "datasets": {rules.name: _json(resolved, rules) for rules in resolved.rules},
        },
    }


def _json(resolved: _Resolved, rules: Rules) -> dict[str, Any]:
    from cachecd.cli.sample_view import document

    values: dict[str, Any] = {
        "first_bytes": rules.first,
        "generation": rules.generation,
        "from_next_generation": resolved.stale.get(rules.name, []),
    }
    if rules.name in resolved.samples:
        capacity = resolved.capacities[rules.name]
        values["sample"] = document(resolved.samples[rules.name], {})
        values |= {"epoch": capacity.epoch, "capacity": capacity.images, "set_bytes": capacity.size}
        values["listed"] = resolved.listed[rules.name]
    return values


def _sample_lines(resolved: _Resolved, rules: Rules) -> Iterator[str]:
    from cachecd.cli.sample_view import costs, lines

    sample, capacity = resolved.samples[rules.name], resolved.capacities[rules.name]
    outcome = sample.outcome
    skipped = outcome.num_passed
    yield (
        f"read {sample.read} of the first {len(sample.units)} units: "
        f"{approximate_size(outcome.fetched_bytes)} fetched in {outcome.seconds:.2f} s, "
        f"{outcome.records} {f'of {outcome.records + skipped} ' if skipped else ''}records of "
        f"{approximate_size(outcome.data_bytes)}{f', {skipped} skipped' if skipped else ''}"
    )
    for left, right in (*lines(sample, {}), *costs(sample)):
        yield f"{left}: {right}" if left else f"  {right}"
    yield from filter(None, (*resolved.listed[rules.name], capacity.epoch, capacity.images))


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
            yield "", f"takes effect with the next generation: {value}"
        if rules.name in resolved.samples:
            for line in _sample_lines(resolved, rules):
                yield "", line
    rate = "" if sampler.bandwidth is None else f", at most {format_rate(sampler.bandwidth)}"
    yield "sampler", f"{sampler.workers} processes, {sampler.connections} connections{rate}"
    if sampler.python:
        yield "", f"interpreter {sampler.python}"
    for folder in sampler.path:
        yield "", f"imports from {folder} first"
    yield "server", config.server.endpoint
    if config.server.http:
        yield "", f"page and metrics at http://{config.server.http}/"


def _dataset(dataset: DatasetConfig, first: int) -> Iterator[str]:
    grow = dataset.grow
    yield from _source(dataset.source)
    if dataset.split is not None:
        side = "the held-out part" if dataset.held_out else "all except the held-out part"
        by = f"by {dataset.split.by}" if dataset.split.group is None else "by whole groups"
        yield f"{side} ({dataset.split.eval:.3g} of the source, {by})"
    if dataset.transform:
        yield f"prepared by {', '.join(step.name for step in dataset.transform)}"
    for step in dataset.transform:
        if step.name == "tokenize":
            yield f"tokens of {step.argument['tokenizer']}, sha256 {step.argument['sha256']}"
    if dataset.pin:
        yield "pinned: fetched first, leased when whole, never evicted"
        return
    pace = (
        "as fast as the link allows"
        if grow.per_epoch is None
        else f"by {'exactly' if grow.wait else 'at most'} {format_size(grow.per_epoch)} per epoch"
    )
    yield f"begins with {approximate_size(first)}, then grows {pace}"
    if dataset.limit is not None:
        yield f"at most {format_size(dataset.limit)} of the cache"
    yield f"at the limit, each epoch replaces at most {dataset.evict.refresh:.0%}"


def _source(source: SourceConfig) -> Iterator[str]:
    yield f"{source.format} from {source.url or source.reader}"
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
        yield f"labels from {source.label.manifest}"
    if source.label and source.label.pattern:
        given = f", {len(source.classes)} classes" if source.classes else ""
        yield f"labels by {source.label.pattern}{given}"
