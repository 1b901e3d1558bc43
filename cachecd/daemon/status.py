"""The status document, which `cachecd status --json` prints and `Cache.status()` returns. It reads no file:
the state of the disk is known from the last probe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cachecd.config import DatasetConfig
from cachecd.disk.durable import State
from cachecd.disk.generation_file import GenerationFile
from cachecd.disk.leases import Probe
from cachecd.executors import ExecutorStatus
from cachecd.model import StageSeconds
from cachecd.policy.dataset import Dataset
from cachecd.policy.fit import describe_epoch
from cachecd.policy.generation import Generation
from cachecd.policy.leases import LeaseState
from cachecd.policy.policy import Policy
from cachecd.policy.shard_table import CURRENT
from cachecd.policy.shard_table import Status as ShardStatus
from cachecd.policy.values import GenerationId, split_change
from cachecd.quantities import approximate_size

_MOST_REASONS = 100  # a reason may name a class, so there may be a reason for each object


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """The cache directory, in bytes. `stopped`: why the disk stops fetching. `resting`: why nothing is
    fetched although there may be space. `fetched_bytes`: fetched in all runs. `paused_s`: seconds since the
    start in which nothing was fetched, by reason."""

    limit: int
    used: int
    reserved: int
    room: float
    stopped: str
    resting: str
    dir: str
    corrupt_shards: int
    fetched_bytes: int
    fetched_since_start: int
    paused_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class SkippedReason:
    """The numbers of units and of single records that are skipped for one kind of reason."""

    units: int
    records: int
    examples: list[str]


@dataclass(frozen=True, slots=True)
class SkippedStatus:
    """Skipped units and single records, with the most frequent `reasons`."""

    units: int
    records: int
    reasons: dict[str, SkippedReason]


@dataclass(frozen=True, slots=True)
class OlderStatus:
    """A generation that is not configured. `damaged`: why it cannot be read."""

    dataset: str
    generation: str
    shards: int
    bytes: int
    damaged: str


@dataclass(frozen=True, slots=True)
class ListingStatus:
    """The last listing. `ended_ago_s`: seconds since it ended; None if no listing ended since the start."""

    objects: int
    ended_ago_s: float | None
    failed: str
    left_out: str
    warning: str


@dataclass(frozen=True, slots=True)
class SeenDataset:
    """The fields of DatasetStatus that the daemon knows, and the policy does not. `ingest`: the work of all
    samplers since the daemon's start, by stage."""

    source_id: str
    bytes_per_second: int
    stopped: str
    stopped_for_s: float
    rewritten_units: int
    listing: ListingStatus
    ingest: dict[str, StageSeconds]
    from_next_generation: list[str]


@dataclass(frozen=True, slots=True)
class DatasetStatus(SeenDataset):
    """A configured dataset. docs/commands.md explains each figure."""

    generation: str
    pinned: bool
    whole: bool
    leasable: bool
    shards: int
    records: int
    skipped_records: int
    data_bytes: int
    allocated: int
    retired_shards: int
    retired_bytes: int
    quarantined_shards: int
    evicted_shards: int
    making: int
    streams: int
    open_streams: int
    units: int
    listed: bool
    listings: int
    coverage: float
    passes: int
    full: bool
    first: int
    share: int
    epoch: str
    waits_for: str
    rotation_waits: str
    held_back: str
    contradicted: bool
    skipped: SkippedStatus
    older: list[OlderStatus]


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """A lease. `held`: a process locked its manifest at the last probe, or a rank reported that since.
    `retired_bytes`: the bytes that are freed when the lease ends."""

    lease: str
    dataset: str
    generation: str
    job: str
    epoch: int
    records: int
    skipped_records: int
    held: bool
    ranks: int
    held_by: list[int]
    age_s: float
    retired_bytes: int


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """What one reading process of a trainer reported last (see protocol.TrainerReport). `wait_share`: the
    share of the last minute in which it waited, 0..1, without waiting for the first set."""

    dataset: str
    job: str
    rank: int
    pid: int
    epoch: int
    reader: str
    age_s: float
    steps: int
    records: int
    bytes: int
    waited_s: float
    elsewhere_s: float
    stages_s: dict[str, float]
    queue: float | None
    wait_share: float
    memory: int
    random_bytes: int
    reads_per_record: float
    gil_s: float
    first: bool
    blind: str


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """The daemon's process, and what it may use. `memory`: bytes that its cgroup allows. `worker_memory`:
    bytes for each worker. `connections`: of all workers. `bandwidth`: bytes per second, None: no limit."""

    pid: int
    uptime_s: float
    workers: int
    offline: bool
    processors: int
    memory: int
    worker_memory: int
    connections: int
    bandwidth: float | None


@dataclass(frozen=True, slots=True)
class Status:
    """The status document. `trainers`: the process that waited most in the last minute is first.
    `complaints`: the present failures, by subject."""

    cache: CacheStatus
    datasets: dict[str, DatasetStatus]
    unconfigured: list[OlderStatus]
    leases: list[LeaseStatus]
    trainers: list[TrainerStatus]
    complaints: dict[str, str]
    sampler: ExecutorStatus
    daemon: DaemonStatus
    version: int = 1


def status_of(
    policy: Policy,
    states: Mapping[GenerationId, State],
    now: float,
    cache: tuple[str, int, int, int, dict[str, float]],
    seen: Mapping[str, SeenDataset],
    probed: Mapping[str, Probe],
    trainers: list[TrainerStatus],
    complaints: dict[str, str],
    sampler: ExecutorStatus,
    daemon: DaemonStatus,
) -> Status:
    """Returns the status document. `cache`: the last five fields of CacheStatus. `probed`: the last probe
    of each lease."""
    room = policy.room
    others = [each for each in room.others if each.id.dataset not in policy.datasets]
    kept = {each.id: each.table.kept_bytes() for each in room.generations}
    return Status(
        cache=CacheStatus(
            room.limit,
            sum(each.table.total for each in room.generations) + room.measured.other,
            sum(each.reserved for each in room.generations),
            max(0, room.limit - room.used),
            policy.disk.why or _crowded(policy),
            policy.pauses(now),
            *cache,
        ),
        datasets={
            name: _dataset(policy, dataset, states.get(dataset.generation.id), now, seen[name])
            for name, dataset in sorted(policy.datasets.items())
        },
        unconfigured=[_older(each) for each in others],
        leases=[
            _lease(state, kept, probed.get(name))
            for name, state in sorted(policy.leases.by_id.items())
        ],
        trainers=trainers,
        complaints=complaints,
        sampler=sampler,
        daemon=daemon,
    )


def skipped_status(state: State | None) -> SkippedStatus:
    """Returns the skipped units and records of a generation. `state`: the content of state.json."""
    skips = list(state.skipped.values()) if state else []
    skips.sort(key=lambda each: -(each.units + each.records))
    reasons = {
        each.reason: SkippedReason(each.units, each.records, list(each.examples))
        for each in skips[:_MOST_REASONS]
    }
    units, records = sum(each.units for each in skips), sum(each.records for each in skips)
    return SkippedStatus(units, records, reasons)


def _dataset(
    policy: Policy, dataset: Dataset, state: State | None, now: float, seen: SeenDataset
) -> DatasetStatus:
    gen = dataset.generation
    table, shards = gen.table, gen.table.select()
    making = sum(s.reserved for s in gen.streams) + gen.supplements.reserved + len(gen.remaking)
    as_seen: dict[str, Any] = {field.name: getattr(seen, field.name) for field in fields(seen)}
    return DatasetStatus(
        **as_seen,
        generation=gen.id.name,
        pinned=dataset.rules.pin,
        whole=gen.is_whole,
        leasable=policy.acquire.is_leasable(dataset),
        shards=table.num_live,
        records=shards.records,
        skipped_records=shards.passed,
        data_bytes=shards.data_bytes,
        allocated=table.total,
        retired_shards=table.count(ShardStatus.RETIRING) + table.num_kept,
        retired_bytes=table.total - table.live_bytes,
        quarantined_shards=len(gen.repairs),
        evicted_shards=gen.num_retired,
        making=making,
        streams=len(gen.streams),
        open_streams=sum(stream.open for stream in gen.streams),
        units=gen.units,
        listed=gen.completed > 0 and not gen.blocks.is_growing,
        listings=gen.completed,
        coverage=round(gen.coverage, 6),
        passes=min((s.cursor.pass_ for s in gen.streams), default=0),
        full=policy.room.is_full(dataset),
        first=policy.room.first(dataset),
        share=policy.room.share(dataset),
        epoch=epoch_of(policy, dataset),
        waits_for=dataset.waits_for,
        rotation_waits=policy.rotation_waits(dataset, now),
        held_back=_held_back(dataset),
        contradicted=bool(gen.contradicted),
        skipped=skipped_status(state),
        older=[_older(each) for each in dataset.older],
    )


def epoch_of(policy: Policy, dataset: Dataset) -> str:
    """Returns a sentence that says how much of the source an epoch reads. "" for a pinned dataset, and
    until `grow.first` is cached and the source is listed."""
    gen, share = dataset.generation, policy.room.share(dataset)
    records, live = gen.table.select().records, gen.table.live_bytes
    is_ready = gen.is_whole or live >= policy.room.first(dataset)
    if dataset.rules.pin or not gen.source_records or not is_ready:
        return ""
    in_set = records if gen.is_whole else max(0, share - 2 * gen.footprint) * records / live
    return describe_epoch(share, in_set, gen.source_records, dataset.rules.refresh)


def _older(gen: Generation) -> OlderStatus:
    shards = gen.table.count(*CURRENT) + gen.table.num_kept
    return OlderStatus(*gen.id, shards, gen.table.total, gen.damaged)


def stale_values(dataset: DatasetConfig, shard_size: int, known: GenerationFile) -> list[str]:
    """Returns the values of the YAML that have no effect before the next generation."""
    seed, size = (dataset.seed, known.seed), (shard_size, known.shard_size)
    values = {"seed": seed, "cache.shard_size": size}
    if known.shape is not None and dataset.streams < known.shape.streams:
        values["streams"] = dataset.streams, known.shape.streams
    text = "{}: {} in the YAML, {} in this generation"
    return [text.format(key, now, then) for key, (now, then) in values.items() if now != then]


def _lease(
    state: LeaseState, kept: Mapping[GenerationId, Mapping[str, int]], probed: Probe | None
) -> LeaseStatus:
    lease = state.lease
    return LeaseStatus(
        lease=lease.id,
        dataset=lease.dataset,
        generation=lease.generation,
        job=lease.job,
        epoch=lease.epoch,
        records=lease.num_records,
        skipped_records=lease.num_skipped,
        held=probed.is_held if probed else bool(state.held_by),
        ranks=lease.ranks,
        held_by=sorted(state.held_by),
        age_s=round(max(0.0, time.time() - probed.written), 1) if probed else 0.0,
        retired_bytes=kept.get(GenerationId(lease.dataset, lease.generation), {}).get(lease.id, 0),
    )


def _held_back(dataset: Dataset) -> str:
    """Returns why older shards are not leased, or ""."""
    split = dataset.rules.split
    others = [each for each in dataset.older if each.split != split and not each.damaged]
    size = sum(each.table.total for each in others)
    if not size:
        return ""
    change = split_change(others[0].split, split)
    return (
        f"datasets.{dataset.rules.name}: {change}. Shards cached before are not leased, because they may "
        f"contain records that are now held out. {approximate_size(size)} will be replaced."
    )


def ingest_stops(policy: Policy) -> str:
    """Returns why nothing is fetched although no request failed, or "": the file system is full, or the
    egress limit is reached."""
    is_whole = all(each.generation.is_whole for each in policy.datasets.values())
    return "" if is_whole else _crowded(policy) or policy.restraint.spent


def _crowded(policy: Policy) -> str:
    """Returns a message if a dataset could fetch records under the limit, but other programs have filled
    the file system. Otherwise returns ""."""
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
