"""The status document as text for Prometheus.

Units are seconds, bytes and ratios. Labels are names of datasets, stages, reasons and states, so their
number is bounded by the configuration. Jobs and ranks have series only while they hold a lease. No series
is about one shard, key or lease. A name that contains `experimental` may change in any release.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Document = Mapping[str, Any]
Rank = tuple[str, str, str]  # dataset, job, rank
Family = CounterMetricFamily | GaugeMetricFamily

# Each table: the name of a metric, the key of the document, the meaning. A counter's name ends in _total.
_CACHE = (
    ("cachecd_cache_limit_bytes", "limit", "cache.limit"),
    ("cachecd_cache_used_bytes", "used", "Allocated bytes, without unfinished shards"),
    ("cachecd_cache_reserved_bytes", "reserved", "Bytes reserved for unfinished shards"),
    ("cachecd_cache_room_bytes", "room", "Bytes that may still be reserved"),
    ("cachecd_fetched_bytes_total", "fetched_since_start", "Bytes fetched since the start"),
    # A gauge: a kill of the daemon may lose the count of a minute, which is no restart from 0.
    ("cachecd_cache_fetched_bytes", "fetched_bytes", "Bytes fetched since the cache was created"),
    ("cachecd_corrupt_shards_total", "corrupt_shards", "Damaged shards found since the start"),
)
_DATASET = (
    ("cachecd_dataset_records", "records", "Records that the next lease names"),
    ("cachecd_dataset_data_bytes", "data_bytes", "Bytes of the shards that the next lease names"),
    ("cachecd_dataset_allocated_bytes", "allocated", "Bytes on disk of all shards"),
    ("cachecd_dataset_share_bytes", "share", "Share of the limit"),
    ("cachecd_dataset_first_bytes", "first", "Bytes that the first lease needs"),
    ("cachecd_dataset_retired_bytes", "retired_bytes", "Bytes of retired shards in use by a lease"),
    ("cachecd_dataset_shards", "shards", "Shards that the next lease names"),
    ("cachecd_dataset_retired_shards", "retired_shards", "Retired shards in use by a lease"),
    ("cachecd_dataset_quarantined_shards", "quarantined_shards", "Shards that are rebuilt"),
    ("cachecd_dataset_unfinished_shards", "making", "Unfinished shards"),
    ("cachecd_dataset_units", "units", "Listed units"),
    ("cachecd_dataset_streams", "streams", "Streams of the generation"),
    ("cachecd_dataset_open_streams", "open_streams", "Streams that a worker has"),
    ("cachecd_dataset_coverage_ratio", "coverage", "Share of the units that were ever cached"),
    (
        "cachecd_dataset_fetch_bytes_per_second",
        "bytes_per_second",
        "Rate of fetching over the last ten seconds",
    ),
    ("cachecd_dataset_stopped_seconds", "stopped_for_s", "Seconds since the source began to fail"),
    ("cachecd_dataset_passes_total", "passes", "Passes that every stream completed"),
    ("cachecd_dataset_listings_total", "listings", "Complete listings of the source"),
    ("cachecd_dataset_evicted_shards_total", "evicted_shards", "Shards retired since the start"),
    (
        "cachecd_dataset_rewritten_units_total",
        "rewritten_units",
        "Units that changed in the source since the start",
    ),
)
_SKIPPED = (
    ("cachecd_dataset_skipped_units_total", "units", "Units skipped since the generation began"),
    (
        "cachecd_dataset_skipped_records_total",
        "records",
        "Single records skipped since the generation began",
    ),
)
_INGEST = (
    (
        "cachecd_ingest_stage_seconds_total",
        "cpu_s",
        "CPU seconds of all workers, by stage of ingest",
    ),
    (
        "cachecd_ingest_stage_wall_seconds_total",
        "wall_s",
        "Seconds of all workers, with waiting, by stage of ingest",
    ),
    ("cachecd_ingest_stage_records_total", "records", "Records that passed the stage of ingest"),
)
_WORKERS = (
    ("cachecd_workers", "workers", "Configured worker processes"),
    ("cachecd_workers_alive", "alive", "Worker processes that are alive"),
    ("cachecd_worker_restarts_total", "restarts", "Worker processes that were replaced"),
)
_TRAINER = (
    ("cachecd_trainer_batches_total", "steps", "Batches delivered"),
    ("cachecd_trainer_records_total", "records", "Records delivered"),
    ("cachecd_trainer_bytes_total", "bytes", "Bytes of the delivered records"),
    ("cachecd_trainer_blocked_seconds_total", "waited_s", "Seconds in which no batch was ready"),
    (
        "cachecd_trainer_step_seconds_total",
        "elsewhere_s",
        "Seconds outside of the loader, such as the training step",
    ),
)
_COUNTS = ("steps", "records", "bytes")
_MOST_PROCESSES = 4096  # whose last values are kept; a process takes 2 KB
_BLOCKED_STAGE = "cachecd_experimental_trainer_blocked_stage_seconds_total"

# Truth values and reasons of a dataset: a reason counts as true if it is not "".
_STATES = (
    *("pinned", "whole", "full", "listed", "contradicted"),
    *("stopped", "waits_for", "rotation_waits", "held_back"),
)


class TrainerTotals:
    """What trainers reported, added up over epochs and processes for each rank. A total never decreases
    while its job holds a lease, because a decrease would count as a restart in `rate()`. Counts nothing
    twice: the last values of a process are kept while it is silent, and at a start of the daemon."""

    def __init__(self) -> None:
        self.ranks: dict[Rank, dict[str, float]] = {}
        self.stages: dict[Rank, dict[str, float]] = {}
        # By process: its epoch and its highest values. The one with the newest row is last.
        self._reported: dict[tuple[Rank, int], tuple[int, dict[str, float]]] = {}

    def add(self, document: Document) -> None:
        """Adds the growth since the last document. Forgets the totals of jobs that hold no lease."""
        leased = _leased(document)
        for known in (self.ranks, self.stages):
            for rank in [each for each in known if not _holds_lease(each, leased)]:
                del known[rank]
        for row in document["trainers"]:
            rank = _rank(row)
            now = {key: float(row[key]) for _, key, _ in _TRAINER}
            now |= {f"/{stage}": float(seconds) for stage, seconds in row["stages_s"].items()}
            growth = self._growth((rank, row["pid"]), row["epoch"], now, document["daemon"])
            if not _holds_lease(rank, leased):
                continue
            totals = self.ranks.setdefault(rank, defaultdict(float))
            stages = self.stages.setdefault(rank, defaultdict(float))
            for key, value in growth.items():
                # A blind row has no true seconds, and a count that it cannot see is 0.
                if row["blind"] and (key not in _COUNTS or not value):
                    continue
                table = stages if key.startswith("/") else totals
                table[key.lstrip("/")] += value

    def _growth(
        self, process: tuple[Rank, int], epoch: int, now: dict[str, float], daemon: Document
    ) -> dict[str, float]:
        """Returns by how much the values of a process grew since its last row. A process whose epoch is
        older than the daemon grew by 0, because an earlier run of the daemon counted its values."""
        known, before = self._reported.pop(process, (epoch, None))
        if before is None:
            is_older = now["waited_s"] + now["elsewhere_s"] > daemon["uptime_s"]
            before = now if is_older else {}
        if known != epoch or now["steps"] < before.get("steps", 0.0):
            before = {}
        highest = {key: max(value, before.get(key, 0.0)) for key, value in now.items()}
        self._reported[process] = epoch, highest
        if len(self._reported) > _MOST_PROCESSES:
            del self._reported[next(iter(self._reported))]
        return {key: value - before.get(key, 0.0) for key, value in highest.items()}


def render(document: Document, totals: TrainerTotals) -> bytes:
    """Returns the text that /metrics answers. `totals`: has this document, and the documents before."""
    registry = CollectorRegistry()
    registry.register(_DocumentCollector(document, totals))
    return generate_latest(registry)


class _DocumentCollector(Collector):
    def __init__(self, document: Document, totals: TrainerTotals) -> None:
        self._document, self._totals = document, totals

    def describe(self) -> list[Metric]:
        return []  # one registry holds one collector, so no two names can collide

    def collect(self) -> Iterator[Metric]:
        yield from _of_daemon(self._document)
        yield from _of_datasets(self._document["datasets"])
        yield from _of_leases(self._document)
        yield from _of_trainers(self._document, self._totals)


def _family(name: str, meaning: str, labels: Sequence[str] = ()) -> Family:
    if name.endswith("_total"):
        return CounterMetricFamily(name, meaning, labels=labels)
    return GaugeMetricFamily(name, meaning, labels=labels)


def _single(name: str, meaning: str, value: float) -> Family:
    family = _family(name, meaning)
    _add(family, (), value)
    return family


def _add(family: Family, labels: Sequence[str], value: float) -> None:
    # A text of the document may have lone surrogates, which UTF-8 cannot express.
    texts = [str(each).encode("utf-8", "replace").decode() for each in labels]
    family.add_metric(texts, value)


def _of_daemon(document: Document) -> Iterator[Metric]:
    build = _family("cachecd_build_info", "Version of cachecd", ["version"])
    _add(build, [_version()], 1)
    yield build
    cache, daemon, sampler = document["cache"], document["daemon"], document["sampler"]
    yield _single("cachecd_up_seconds", "Seconds since the daemon started", daemon["uptime_s"])
    yield _single("cachecd_offline", "Whether the daemon fetches nothing", daemon["offline"])
    for name, key, meaning in _CACHE:
        yield _single(name, meaning, cache[key])
    for name, key, meaning in _WORKERS:
        yield _single(name, meaning, sampler[key])
    states = _family("cachecd_cache_state", "Why nothing is fetched: 1 if it holds", ["state"])
    for state in ("stopped", "resting"):
        _add(states, [state], bool(cache[state]))
    yield states
    complaints = len(document["complaints"])
    yield _single("cachecd_failing_tasks", "Tasks of the daemon that fail now", complaints)
    name, meaning = "cachecd_ingest_paused_seconds_total", "Seconds in which nothing was fetched"
    paused = _family(name, meaning, ["reason"])
    for reason, seconds in cache["paused_s"].items():
        _add(paused, [reason], seconds)
    yield paused


def _of_datasets(datasets: Document) -> Iterator[Metric]:
    for name, key, meaning in _DATASET:
        family = _family(name, meaning, ["dataset"])
        for dataset, values in datasets.items():
            _add(family, [dataset], values[key])
        yield family
    for name, key, meaning in _SKIPPED:
        family = _family(name, meaning, ["dataset"])
        for dataset, values in datasets.items():
            _add(family, [dataset], values["skipped"][key])
        yield family
    for name, key, meaning in _INGEST:
        family = _family(name, meaning, ["dataset", "stage"])
        for dataset, values in datasets.items():
            for stage, seconds in values["ingest"].items():
                _add(family, [dataset, stage], seconds[key])
        yield family
    states = _family("cachecd_dataset_state", "1 if the state holds", ["dataset", "state"])
    for dataset, values in datasets.items():
        for state in _STATES:
            _add(states, [dataset, state], bool(values[state]))
    yield states


def _of_leases(document: Document) -> Iterator[Metric]:
    name, meaning = "cachecd_lease_oldest_seconds", "Age of the oldest lease"
    leases = _family("cachecd_leases", "Leases by state", ["dataset", "state"])
    oldest = _family(name, meaning, ["dataset"])
    for dataset in document["datasets"]:
        own = [each for each in document["leases"] if each["dataset"] == dataset]
        held = sum(each["held"] for each in own)
        _add(leases, [dataset, "held"], held)
        _add(leases, [dataset, "granted"], len(own) - held)
        _add(oldest, [dataset], max((each["age_s"] for each in own), default=0.0))
    yield leases
    yield oldest


def _of_trainers(document: Document, totals: TrainerTotals) -> Iterator[Metric]:
    labels = ["dataset", "job", "rank"]
    for name, key, meaning in _TRAINER:
        family = _family(name, meaning, labels)
        for rank, values in totals.ranks.items():
            if key in values:
                _add(family, rank, values[key])
        yield family
    meaning = "cachecd_trainer_blocked_seconds_total by the work that the loader did meanwhile"
    stages = _family(_BLOCKED_STAGE, meaning, [*labels, "stage"])
    for rank, by_stage in totals.stages.items():
        for stage, seconds in by_stage.items():
            _add(stages, [*rank, stage], seconds)
    yield stages
    leased, shares, fills = _leased(document), dict[Rank, float](), dict[Rank, float]()
    for row in document["trainers"]:
        rank = _rank(row)
        if _holds_lease(rank, leased):
            if not row["blind"]:
                shares[rank] = max(row["wait_share"], shares.get(rank, 0.0))
            if row["queue"] is not None:
                fills[rank] = min(row["queue"], fills.get(rank, 1.0))
    meaning = "Share of the last minute in which the rank waited for data"
    yield _by_rank("cachecd_trainer_wait_ratio", meaning, shares)
    meaning = "Fill of the rank's emptiest queue"
    yield _by_rank("cachecd_trainer_queue_ratio", meaning, fills)


def _by_rank(name: str, meaning: str, values: Mapping[Rank, float]) -> Family:
    family = _family(name, meaning, ["dataset", "job", "rank"])
    for rank, value in values.items():
        _add(family, rank, value)
    return family


def _leased(document: Document) -> dict[str, set[str]]:
    """Returns the datasets that each job leases."""
    leased = defaultdict[str, set[str]](set)
    for each in document["leases"]:
        leased[each["job"]].add(each["dataset"])
    return leased


def _holds_lease(rank: Rank, leased: Mapping[str, set[str]]) -> bool:
    """Whether the rank's job leases the dataset, or each dataset of a mixture such as "a+b"."""
    dataset, job, _ = rank
    return set(dataset.split("+")) <= leased.get(job, set())


def _rank(row: Mapping[str, Any]) -> Rank:
    return row["dataset"], row["job"], str(row["rank"])


def _version() -> str:
    try:
        return version("cachecd")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"
