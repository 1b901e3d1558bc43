"""Runs one cache.dir with its policy, from start to end. Only this module connects the rooms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from cachecd.config import Config
from cachecd.config.identity import classes_rule
from cachecd.daemon.command_runner import CommandRunner, ToClient
from cachecd.daemon.directory_check import DirectoryCheck
from cachecd.daemon.failures import Failures
from cachecd.daemon.ingest import Ingest
from cachecd.daemon.listings import ListingKeeper
from cachecd.daemon.measurement import measure, weigh_foreign
from cachecd.daemon.progress_log import ProgressLog
from cachecd.daemon.rules import configured, resolve
from cachecd.daemon.start import known_sizes, start
from cachecd.daemon.status import (
    DaemonStatus,
    SeenDataset,
    SkippedStatus,
    Status,
    TrainerStatus,
    epoch_of,
    ingest_stops,
    skipped_status,
    stale_values,
    status_of,
)
from cachecd.daemon.story import Story
from cachecd.daemon.timeline import Timeline
from cachecd.daemon.worker_streams import FedGeneration
from cachecd.disk import leases
from cachecd.disk.durable import read_egress, write_egress
from cachecd.disk.layout import Layout
from cachecd.disk.snapshot import write_snapshot
from cachecd.errors import DiskError, LimitTooSmallError
from cachecd.executors import Executor, ExecutorStatus
from cachecd.policy import commands as do
from cachecd.policy import events as ev
from cachecd.policy.policy import Policy
from cachecd.policy.values import GenerationId
from cachecd.quantities import approximate_size
from cachecd.units.source_units import Lister

_TICK, _PROBE, _MEASURE = 0.5, 0.5, 1.0  # seconds; a lease ends within one second
_MINUTE, _SNAPSHOT = 60.0, 600.0
# Bytes of a page of a listing. At a limit below 25 MiB, 1 % would mean a transaction for each unit.
_LEAST_PAGE = 256 << 10
_PAUSE = 1.0  # seconds after a failure
_PATIENCE = 60.0  # seconds until the log reports why nothing rotates

Request = ev.AcquireAsked | ev.RankHolds | ev.DamageReported | ev.ExcludeAsked

_log = structlog.get_logger("cachecd.daemon")


class CacheLoop:
    """All methods belong to the thread of the event loop. `lister` lists the sources. `open` starts the
    executor, and the caller closes it. `offline`: nothing is listed or fetched. `progress`: see `start`.
    `logs_progress`: the log has the progress of first listings and first fills."""

    def __init__(
        self,
        config: Config,
        limit: int,
        executor: Executor,
        lister: Lister,
        *,
        offline: bool = False,
        progress: Callable[[str], None] = lambda text: None,
        logs_progress: bool = True,
    ) -> None:
        self.policy = Policy(lambda lease: len(self._started.work.manifest(lease)))
        self.layout = Layout(config.cache.dir)
        self.config, self._offline = config, offline
        self._limit = limit
        self._executor, self._lister = executor, lister
        self._progress = progress
        self._pending: dict[str, Callable[[ToClient], None]] = {}  # by request
        # Seconds since 1970, because the policy keeps times over restarts. A change of the clock while the
        # daemon runs has no effect.
        self._zero = time.time() - time.monotonic()
        self.failures, self._stopped = Failures(), Failures()
        self.story = Story()
        self._keepers: dict[str, ListingKeeper] = {}
        self._described: set[str] = set()
        self._probed: dict[str, leases.Probe] = {}  # the last probe of each lease
        self._corrupt = 0
        self._progress_log = ProgressLog() if logs_progress else None
        self.timeline = Timeline()
        self.ingest = Ingest(self.timeline, config.sampler.workers)

    async def open(self) -> None:
        """Reports the result of a start. Then begins to list, to probe leases and to measure. DiskError.
        LimitTooSmallError: a pinned dataset that was listed before does not fit."""
        started = await start(self.config, self._limit, self._offline, self._progress)
        self._started, self.work, self.listings = started, started.work, started.listings
        try:
            resolve(self.config, known_sizes(self.config, started))
        except LimitTooSmallError:
            await self._close_listings()
            raise
        self._directory_check = DirectoryCheck(started.directories)
        self.work.check = self._directory_check.check
        self.ingest.fetched = started.fetched or 0
        self.runner = CommandRunner(
            *(self.work, self._executor, self.feed, self._reply, self.timeline, self.ingest)
        )
        self.streams = self.runner.streams
        await self._executor.start(self.streams.handle)
        self._keepers = {name: self._keeper_of(name) for name in started.configured}
        for keeper in self._keepers.values():
            try:
                await keeper.load_classes()  # before a stream opens that needs the numbers
            except DiskError as error:  # `keep` reads the file again, and logs the error
                keeper.reason, keeper.doubted = str(error), True
        for event in started.events:
            if isinstance(event, ev.Listed):
                keeper = self._keepers[event.generation.dataset]
                event = event._replace(reason=keeper.reason, doubted=keeper.doubted)
            self.feed(event)
        started.events.clear()  # they hold the facts of all shards
        await self._probe_all()
        for name in started.configured:
            for value in self._stale_values(name):
                _log.warning("from the next generation on", dataset=name, value=value)
        self._compare_limit()
        keepers = {} if self._offline else self._keepers
        work = [self._repeat(k.keep, f"the listing of {name}") for name, k in keepers.items()]
        work += [
            self._every(_TICK, self._tick),
            self._every(_PROBE, self._probe_all),
            self._every(_MEASURE, self._measure),
            self._every(_MINUTE, self._write_counts),
            self._every(_SNAPSHOT, self._write_snapshots),
            self._every(_SNAPSHOT, self._weigh_foreign),
        ]
        for each in work:
            self.runner.background.start(each)

    def configure(self, config: Config, limit: int) -> None:
        """Applies the values that may change while the daemon runs: limits, growth, rotation, the window.
        DamagedError, and nothing is applied, if `egress_limit` is set and egress.json is damaged."""
        started = self._started
        if started.fetched is None and config.sampler.egress_limit is not None:
            started.fetched = read_egress(self.layout.egress)
            self.ingest.fetched += started.fetched
        self.config, self.ingest.workers = config, config.sampler.workers
        self.work.configure(config.cache.window)
        self.feed(configured(config, limit, started.names, started.boot, self._offline))
        self._compare_limit()

    def request(
        self, event: Request, answer: Callable[[ToClient], None], *, after_writes: bool = False
    ) -> None:
        """Reports a request to the policy. `answer` receives the reply, now or later. `after_writes`: the
        results of all writes that were started are reported before the request."""
        self._pending[event.request] = answer
        if after_writes:
            self.runner.record(lambda: [event])
        else:
            self.feed(event)

    def _reply(self, command: ToClient) -> None:
        if (answer := self._pending.pop(command.request, None)) is not None:
            answer(command)

    def feed(self, event: ev.Event) -> None:
        """Reports an event to the policy, and starts the resulting commands."""
        match event:
            case ev.Published(stream, number):
                self.streams.published(stream, number)
            case ev.CommandDone(do.WriteShape(generation, shape)):
                self.streams.generations[generation].shape = shape
            case ev.ShardVerified(name) | ev.ShardLost(name) if self.policy.shows_damage(event):
                self._corrupt += 1
                is_lost = isinstance(event, ev.ShardLost)
                effect = "its sidecar is damaged: retired" if is_lost else "quarantined"
                shard = f"{name.dataset}/{name.name}/{event.number}"
                _log.error(f"shard is damaged: {effect}", shard=shard)
            case ev.StreamFailed(stream, "worker", reason, None, False):
                why = f"{reason}. Check sampler.python, and run `cachecd sample CONFIG`"
                self._stopped.note(_workers(stream.dataset), why)
            case ev.ShardSealed(stream):
                self._stopped.note(_workers(stream.dataset), "")
        commands = self.policy.handle(event, self._now())
        self.story.note(event, commands)
        self.runner.carry_out(commands)
        self._note_failures()
        if isinstance(event, ev.ShardSealed):
            self.runner.record(self._counts)

    async def drain(self, grace: float) -> None:
        """Starts no more shards. Returns when no shard is being written, or after `grace` seconds."""
        self.feed(ev.Draining())
        deadline = time.monotonic() + grace
        room = self.policy.room
        while time.monotonic() < deadline and any(each.reserved for each in room.generations):
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Ends all work. First completes the disk work that was started."""
        self.feed(ev.Draining())
        await self.runner.background.close()
        await self._write_counts()
        await self._write_snapshots()
        await self.runner.finish()
        await self._close_listings()

    async def _close_listings(self) -> None:
        for listing in self.listings.values():
            await listing.close()

    # --- requests

    def probe(self, lease: str) -> bool:
        """Returns whether a process holds a lease. If not, reports this to the policy. Returns True also
        for a lease that is unknown or cannot be checked."""
        state = self.policy.leases.by_id.get(lease)
        if state is None or not state.written:
            return True
        try:
            self._directory_check.check()
            probed = leases.probe(self.layout, lease)
        except DiskError as error:
            self.failures.note("probing leases", str(error))
            return True
        if probed is not None and probed.is_held:
            return True
        self.feed(ev.LeaseUnheld(lease))
        return False

    def why_nothing_fetched(self, name: str) -> str:
        """Returns why nothing is fetched for a dataset, or for any dataset, or ""."""
        return self.policy.disk.why or ingest_stops(self.policy) or self._why_stopped(name)

    def _why_stopped(self, name: str) -> str:
        why = self._why_unreadable(name) or self.policy.datasets[name].generation.reason
        return why or self._stopped.reasons.get(_workers(name), "")

    def _why_unreadable(self, name: str) -> str:
        dataset, table = self.policy.datasets[name], self.listings[name].table
        return table.damage or dataset.source.why or dataset.generation.contradicted

    def skipped(self, name: str) -> SkippedStatus:
        """Returns the skipped units and records of a dataset."""
        return skipped_status(self.work.states.get(self.policy.datasets[name].generation.id))

    def status(
        self, sampler: ExecutorStatus, daemon: DaemonStatus, trainers: list[TrainerStatus]
    ) -> Status:
        """Returns the status document."""
        seen = {name: self._seen(name) for name in self.policy.datasets}
        paused = {name: round(each, 1) for name, each in self.ingest.pauses.seconds.items()}
        fetched = self.ingest.fetched, self.ingest.fetched_since_start
        cache = str(self.layout.root), self._corrupt, *fetched, paused
        return status_of(
            *(self.policy, self.work.states, self._now(), cache, seen),
            *(self._probed, trainers, self.failures.reasons, sampler, daemon),
        )

    def _seen(self, name: str) -> SeenDataset:
        keeper, subjects = self._keepers[name], (_workers(name), _source(name))
        return SeenDataset(
            source_id=self.config.datasets[name].source.identity,
            bytes_per_second=round(self.ingest.rate(name)),
            stopped=self._why_stopped(name),
            stopped_for_s=round(max(map(self._stopped.seconds, subjects)), 1),
            rewritten_units=keeper.rewritten,
            listing=keeper.status(),
            ingest=self.ingest.stages(name),
            from_next_generation=self._stale_values(name),
        )

    def _stale_values(self, name: str) -> list[str]:
        known = self._started.generations[self._started.configured[name]]
        return stale_values(self.config.datasets[name], self.config.cache.shard_size, known)

    # --- wiring

    def _keeper_of(self, name: str) -> ListingKeeper:
        """Returns the keeper of a dataset's listing. From now on the streams of its generation get
        units."""
        generation, listing = self._started.configured[name], self.listings[name]
        layout, schema = self.layout.generation(*generation), self.work.schemas.get(generation)
        shape = self._started.generations[generation].shape
        fed = FedGeneration(generation, layout, listing, schema, shape)
        self.streams.generations[generation] = fed
        dataset = self.config.datasets[name]
        return ListingKeeper(
            *(generation, dataset, listing, self._lister),
            *(self.layout.classes(name, classes_rule(dataset)), shape is not None),
            partial(self._reserve, generation),
            lambda: max(self.policy.room.limit // 100, _LEAST_PAGE),
            self.feed,
            lambda: self.streams.wake(generation),
            partial(self.ingest.listed, name),
        )

    def _reserve(self, generation: GenerationId, size: int, grown: int, must_fit: bool) -> bool:
        is_reserved = self.policy.reserve(generation, size, grown, must_fit)
        if not is_reserved and must_fit:
            self.feed(ev.Tick())  # the policy retires shards for the page
        return is_reserved

    def _compare_limit(self) -> None:
        """Warns if the file system has less space than the limit. This is no error: the cache grows until
        the file system is full, and training continues with the shards that fit."""
        room = self.policy.room
        reachable = room.used + max(0, room.measured.spare)
        if reachable < room.limit:
            _log.warning(
                "cache.limit exceeds the file system: free space there, or lower the limit",
                limit=approximate_size(room.limit),
                used_and_free=approximate_size(reachable),
            )

    def _note_failures(self) -> None:
        why = self.policy.disk.why
        self._stopped.note("the disk of cache.dir", why and f"{why}. Check df, df -i and dmesg")
        for name in self.policy.datasets:
            self._stopped.note(_source(name), self._why_unreadable(name))

    # --- time

    def _now(self) -> float:
        return self._zero + time.monotonic()

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._repeat(work, work.__name__.strip("_"))

    async def _repeat(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Runs work, and repeats it until it succeeds."""
        while True:
            try:
                await work()
                self.failures.note(name, "")
                return
            except DiskError as error:
                self.failures.note(name, str(error))
            except Exception as error:
                why = f"it failed unexpectedly: {type(error).__name__}: {error}"
                if self.failures.note(name, why):
                    _log.error("traceback of the failure", exc_info=error)
            await asyncio.sleep(_PAUSE)

    async def _tick(self) -> None:
        self.feed(ev.Tick())
        self.ingest.tick(self.policy, self._now())

    async def _probe_all(self) -> None:
        """Probes all leases. Reports each lease that no process holds."""
        written = [name for name, state in self.policy.leases.by_id.items() if state.written]

        def probe() -> dict[str, leases.Probe | None]:
            self._directory_check.check()
            return {name: leases.probe(self.layout, name) for name in written}

        try:
            probed = await asyncio.to_thread(probe)
        except DiskError as error:
            self.failures.note("probing leases", str(error))
            return
        self.failures.note("probing leases", "")
        self._probed = {name: each for name, each in probed.items() if each is not None}
        for name, each in probed.items():
            if each is None or not each.is_held:
                self.feed(ev.LeaseUnheld(name))

    async def _measure(self) -> None:
        self.ingest.measure()

        def measure_now() -> ev.Measured:
            self._directory_check.check()
            reserve_free, foreign = self.config.cache.reserve_free, self._started.foreign
            return measure(self.layout, self.ingest.fetched, reserve_free, foreign)

        try:
            measured = await asyncio.to_thread(measure_now)
        except DiskError as error:
            measured = self.policy.room.measured._replace(refused=str(error))
        self.feed(measured)
        if self._progress_log is not None:
            objects = {name: keeper.objects for name, keeper in self._keepers.items()}
            self._progress_log.note(self.policy, objects)
        reason = "" if self._offline else ingest_stops(self.policy)
        self._stopped.note("ingest", reason, verb="stops")
        for name, dataset in self.policy.datasets.items():
            reason = self.policy.rotation_waits(dataset, self._now())
            self._stopped.note(f"rotation of {name}", reason, _PATIENCE, "waits")
            if name not in self._described and (description := epoch_of(self.policy, dataset)):
                self._described.add(name)
                _log.info("an epoch", dataset=name, what=description)

    async def _weigh_foreign(self) -> None:
        self._started.foreign = await weigh_foreign(self.layout, self.policy.room.by_id)

    def _counts(self) -> list[ev.Event]:
        if self._started.fetched is not None:  # a damaged file stays until a person repairs it
            self._write(
                "egress.json", lambda: write_egress(self.layout.egress, self.ingest.fetched)
            )
        return self._write("state.json", self.work.write_counts)

    async def _write_counts(self) -> None:
        """Writes the counts of fetched bytes and of skipped units."""
        self.runner.record(self._counts)

    async def _write_snapshots(self) -> None:
        for generation in self.policy.room.generations:
            table = generation.table
            shards = [(number, table.facts(number)) for number, _ in table.live()]
            path = self.layout.generation(*generation.id).snapshot
            write = partial(write_snapshot, path, shards)
            self.runner.record(partial(self._write, str(path), write))

    def _write(self, name: str, write: Callable[[], None]) -> list[ev.Event]:
        """Writes a file. A failure is only logged, because a start also works without the file."""
        reason = ""
        try:
            self._directory_check.check()
            write()
        except DiskError as error:
            reason = str(error)
        self.failures.note(f"writing {name}", reason)
        return []


def _workers(name: str) -> str:
    return f"the work on {name}"


def _source(name: str) -> str:
    return f"the source of {name}"
