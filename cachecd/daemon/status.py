"""The status document: what `cachecd status --json` prints and `Cache.status()` returns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachecd.config import Config, DatasetConfig
from cachecd.disk.durable import State
from cachecd.disk.generation_file import GenerationFile
from cachecd.policy.dataset import Dataset
from cachecd.policy.fit import describe_epoch
from cachecd.policy.generation import Generation
from cachecd.policy.leases import LeaseState
from cachecd.policy.policy import Policy
from cachecd.policy.shard_table import CURRENT, Status
from cachecd.policy.values import GenerationId, split_change
from cachecd.quantities import approximate_size

_MOST_REASONS = 100  # each may name a class, and there may be as many as objects


def document(
    policy: Policy, states: Mapping[GenerationId, State], config: Config, now: float
) -> dict[str, Any]:
    """Returns every figure for people and programs, as plain JSON values; sizes in bytes."""
    room = policy.room
    shares = room.shares()
    return {
        "version": 1,
        "cache": {
            "limit": room.limit,
            "used": sum(each.table.total for each in room.generations) + room.measured.other,
            "reserved": sum(each.reserved for each in room.generations),
            "room": max(0, room.limit - room.used),
            "stopped": policy.disk.why or _crowded(policy),
            "resting": policy.pauses(now),
        },
        "datasets": {
            name: {
                **_dataset(policy, dataset, states.get(dataset.generation.id, State()), now),
                "share": shares[name],
                "source_id": config.datasets[name].source.identity,
            }
            for name, dataset in sorted(policy.datasets.items())
        },
        "unconfigured": [
            {"dataset": each.id.dataset, **_older(each)}
            for each in room.others
            if each.id.dataset not in policy.datasets
        ],
        "leases": [
            _lease(policy, state)
            for _, state in sorted(policy.leases.by_id.items())
        ],
    }  # fmt: skip


def _dataset(policy: Policy, dataset: Dataset, state: State, now: float) -> dict[str, Any]:
    gen = dataset.generation
    table, opened = gen.table, [s for s in gen.streams if s.open]
    shards = table.select()
    passes = min((s.cursor.pass_ for s in gen.streams), default=0)
    skipped = sorted(state.skipped.values(), key=lambda each: -(each.units + each.records))
    return {
        "generation": gen.id.name,
        "pinned": dataset.rules.pin,
        "whole": gen.is_whole,
        "shards": table.num_live,
        "records": shards.records,
        "skipped_records": shards.passed,
        "data_bytes": shards.data_bytes,
        "allocated": table.total,
        "retired_shards": table.count(Status.RETIRING) + table.num_kept,
        "retired_bytes": table.total - table.live_bytes,
        "quarantined_shards": len(gen.repairs),
        "evicted_shards": gen.num_retired,
        "making": sum(s.reserved for s in gen.streams)
        + gen.supplements.reserved
        + len(gen.remaking),
        "streams": len(gen.streams),
        "open_streams": len(opened),
        "units": gen.units,
        "listed": gen.completed > 0 and not gen.blocks.waits,
        "listings": gen.completed,
        "coverage": round(gen.coverage, 6),
        "passes": passes,
        "full": policy.room.is_full(dataset),
        "first": policy.room.first(dataset),
        "epoch": epoch_of(policy, dataset),
        "waits_for": dataset.waits_for,
        "rotation_waits": policy.rotation_waits(dataset, now),
        "held_back": _held_back(dataset),
        "stopped": "",  # until the workers were looked at
        "contradicted": bool(gen.contradicted),
        "skipped": {
            "units": sum(each.units for each in skipped),
            "records": sum(each.records for each in skipped),
            "reasons": {
                each.reason: {
                    "units": each.units,
                    "records": each.records,
                    "examples": list(each.examples),
                }
                for each in skipped[:_MOST_REASONS]
            },
        },
        "older": [_older(each) for each in dataset.older],
    }


def epoch_of(policy: Policy, dataset: Dataset) -> str:
    """Returns a sentence: how much of the source an epoch has. "" until `grow.first` is cached and the
    source is listed."""
    gen, share = dataset.generation, policy.room.share(dataset)
    records, live = gen.table.select().records, gen.table.live_bytes
    if dataset.rules.pin or not gen.source_records:
        return ""
    if live < policy.room.first(dataset) and not gen.is_whole:
        return ""
    held = records if gen.is_whole else max(0, share - 2 * gen.footprint) * records / live
    return describe_epoch(share, held, gen.source_records, dataset.rules.refresh)


def _older(gen: Generation) -> dict[str, Any]:
    return {
        "generation": gen.id.name,
        "shards": gen.table.count(*CURRENT) + gen.table.num_kept,
        "bytes": gen.table.total,
        "damaged": gen.damaged,
    }


def stale_values(dataset: DatasetConfig, shard_size: int, known: GenerationFile) -> list[str]:
    """The values of the YAML that count from the next generation on."""
    values = [
        ("seed", dataset.seed, known.seed),
        ("cache.shard_size", shard_size, known.shard_size),
    ]
    if known.shape is not None and dataset.streams < known.shape.streams:
        values.append(("streams", dataset.streams, known.shape.streams))
    return [
        f"{key}: {now} in the YAML, {then} in this generation"
        for key, now, then in values
        if now != then
    ]


def _lease(policy: Policy, state: LeaseState) -> dict[str, Any]:
    lease, gen = state.lease, policy.leases.generation_of(state.lease)
    return {
        "lease": lease.id,
        "dataset": lease.dataset,
        "generation": lease.generation,
        "job": lease.job,
        "epoch": lease.epoch,
        "records": lease.num_records,
        "skipped_records": lease.num_skipped,
        "held": False,  # until its locks were looked at
        "ranks": lease.ranks,
        "held_by": sorted(state.held_by),
        "age_s": 0.0,  # as above
        "retired_bytes": gen.table.kept_bytes(lease.id) if gen else 0,
    }


def _held_back(dataset: Dataset) -> str:
    """Why older shards are not leased, or ""."""
    split = dataset.rules.split
    other = [each for each in dataset.older if each.split != split and not each.damaged]
    size = sum(each.table.total for each in other)
    if not size:
        return ""
    change = split_change(other[0].split, dataset.rules.split)
    return (
        f"datasets.{dataset.rules.name}: {change}. Shards cached before are not leased, because they may "
        f"contain records that are now held out. {approximate_size(size)} will be replaced."
    )


def ingest_stops(policy: Policy) -> str:
    """Returns why records that could be fetched are not, though no try failed: the file system has no room,
    or the egress limit is reached. Otherwise returns ""."""
    is_whole = all(each.generation.is_whole for each in policy.datasets.values())
    return "" if is_whole else _crowded(policy) or policy.restraint.spent


def _crowded(policy: Policy) -> str:
    """Returns a message if a dataset has records to fetch and room under the limit, but other programs have
    filled the file system."""
    room = policy.room
    for dataset in policy.datasets.values():
        gen, needed = dataset.generation, dataset.generation.footprint + room.kept
        lacks = needed > room.spare or room.measured.spare_files < 2
        fits = room.used + needed <= room.limit
        if lacks and fits and gen.shape is not None and not gen.is_whole:
            return (
                "the file system of cache.dir has no room for another shard: "
                f"{approximate_size(max(0, room.spare))} are free beyond cache.reserve_free, and "
                f"{approximate_size(needed)} and two inodes are needed. Free space there (see df and "
                "df -i), or lower cache.reserve_free"
            )
    return ""
